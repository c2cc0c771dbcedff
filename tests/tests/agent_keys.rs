//! Claude Code and Codex, as npm installs them, do a task in a cage that reaches one model, and
//! never hold the key to it: the egress proxy puts it on.

use ironcage_tests::{Running, Screen, TlsWeb, binary, either, skip};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Names the npm prefix with the agents, and where `scripts/test` installs them.
const VARIABLE: &str = "IRONCAGE_TEST_AGENTS";
const INSTALLED: &str = "/var/cache/ironcage-test/agents";
const SYSTEM: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
const SERVER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/fixtures/model_tls.py");
const KEY: &str = "real-key-of-the-user-0123456789";
/// What the server gives for the first token that renews.
const RENEWED: &str = "renewed-access-token-0123456789";

/// A policy by which the proxy uses a login of the user's, renewed by the same server.
const LOGIN: &str = r#"
            port=${MODEL##*:}
            cat > ~/policy.toml <<END
extends = "coding-agent"
[network]
allow = ["model.test:$port"]
[network.logins.$AGENT]
hosts = ["model.test:$port"]
token-url = "$MODEL/oauth/token"
END
"#;

fn installed(name: &str) -> Option<PathBuf> {
    let prefix = std::env::var_os(VARIABLE).map_or_else(|| INSTALLED.into(), PathBuf::from);
    if prefix.join("bin").join(name).exists() {
        return Some(prefix);
    }
    skip(&format!("no {name} from npm: ./scripts/test installs it"));
    None
}

/// A script of the user's, outside, with the agents and `ironcage` on PATH, and the key.
fn user(stage: &ironcage_tests::Stage, prefix: &Path, server: &TlsWeb, script: &str) -> String {
    let ironcage = binary().parent().expect("its directory").display();
    let mut shell = stage.outside("/bin/sh");
    shell
        .args(["-ec", script])
        .env(
            "PATH",
            format!("{}/bin:{ironcage}:{SYSTEM}", prefix.display()),
        )
        .env("SSL_CERT_FILE", &server.authority)
        .env("MODEL", format!("https://model.test:{}", server.port))
        .env(
            "RULES",
            format!(
                "{} --allow-host model.test:{}",
                server.place("model.test").join(" "),
                server.port
            ),
        )
        .env("KEY", KEY);
    Running::start(&mut shell)
        .finish(Duration::from_secs(300))
        .ok()
        .stdout()
}

/// What the task leaves behind, and that the model heard the key and the cage did not.
fn check(stage: &ironcage_tests::Stage, prefix: &Path, server: &TlsWeb, said: &str, key: &str) {
    assert!(said.contains("done:"), "{said}");
    assert!(!said.contains(key), "{said}");
    let log = server.log();
    assert!(log.contains(key), "{log}");
    let keys: Vec<&str> = log
        .lines()
        .filter(|line| line.contains("\"POST\"") && !line.contains("/oauth/token"))
        .collect();
    assert!(
        !keys.is_empty() && keys.iter().all(|line| line.contains(key)),
        "{log}"
    );
    // What the task printed of its surroundings, as the model heard it: a placeholder.
    assert!(log.contains("seen=ironcage-"), "{log}");
    assert!(log.contains("elsewhere=refused"), "{log}");
    assert_eq!(stage.read("greeting"), None, "the change is kept aside");
    let diff = user(stage, prefix, server, "ironcage diff greeting");
    assert!(diff.contains("+hello"), "{diff}");
    let told = user(
        stage,
        prefix,
        server,
        "ironcage net; ironcage audit show last",
    );
    assert!(told.contains("POST /v1/") && !told.contains(key), "{told}");
}

/// The vendor's own server: the user's configuration leads its name here, and that is all.
fn vendor(stage: &ironcage_tests::Stage, name: &str) -> Option<TlsWeb> {
    let address = ironcage_tests::web::own_address().to_string();
    let server = TlsWeb::at(stage, name, "/usr/bin/python3", SERVER, Some(&address))?;
    let config = stage.base().join("config/ironcage/config.toml");
    let text = format!(
        "[network]\nallow = [\"{address}:443\"]\nresolve = {{ \"{name}\" = \"{address}\" }}\n[env.set]\nCLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC = \"1\"\n"
    );
    stage.write(&config, text);
    Some(server)
}

either! {
    fn claude_code_does_a_task_with_a_key_that_it_never_holds(stage) {
        let Some(prefix) = installed("claude") else { return };
        let Some(server) = TlsWeb::of(stage, "model.test", "/usr/bin/python3", SERVER) else { return };
        let said = user(stage, &prefix, &server, r#"
            export ANTHROPIC_API_KEY=$KEY
            port=${MODEL##*:}
            ironcage run --profile coding-agent $RULES --secret ANTHROPIC_API_KEY@model.test:$port \
                --env ANTHROPIC_BASE_URL=$MODEL --env CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC=1 \
                -- sh -c 'exec claude -p --dangerously-skip-permissions "$1"' sh \
                'run: echo hello > greeting; echo seen=$ANTHROPIC_API_KEY; curl -sS -m 20 https://other.test/ || echo elsewhere=refused'
        "#);
        check(stage, &prefix, &server, &said, KEY);
    }

    fn claude_code_with_a_key_is_one_command(stage) {
        let Some(prefix) = installed("claude") else { return };
        let Some(server) = vendor(stage, "api.anthropic.com") else { return };
        let Some(screen) = Screen::open(stage) else { return };
        let ironcage = binary().parent().expect("its directory").display();
        screen.line(&format!("export PATH={}/bin:{ironcage}:{SYSTEM} ANTHROPIC_API_KEY={KEY}", prefix.display()));
        screen.line(&format!("export SSL_CERT_FILE={}; clear", server.authority.display()));
        screen.prompt();
        // The one command, on a terminal.
        screen.line(
            "ironcage run -- claude -p --dangerously-skip-permissions \
             'run: echo hello > greeting; echo seen=$ANTHROPIC_API_KEY; curl -sS -m 20 https://other.test/ || echo elsewhere=refused'",
        );
        screen.shows("done:");
        screen.asks("discard? [k]");
        screen.line("k");
        screen.prompt();
        check(stage, &prefix, &server, &screen.text().replace(&format!("={KEY}"), ""), KEY);
    }

    fn codex_with_a_key_is_one_command(stage) {
        let Some(prefix) = installed("codex") else { return };
        let Some(server) = vendor(stage, "api.openai.com") else { return };
        let said = user(stage, &prefix, &server, r#"
            export CODEX_API_KEY=$KEY
            ironcage run -- codex exec -m scripted --skip-git-repo-check --dangerously-bypass-approvals-and-sandbox \
                'run: echo hello > greeting; echo seen=$CODEX_API_KEY; curl -sS -m 20 https://other.test/ || echo elsewhere=refused'
        "#);
        check(stage, &prefix, &server, &said, KEY);
    }

    fn gemini_with_a_key_is_one_command(stage) {
        // Not the agent itself: what it sends, under its name.
        let prefix = stage.home().join("prefix");
        let agent = prefix.join("bin/gemini");
        stage.write(&agent, "#!/bin/sh\necho seen=$GEMINI_API_KEY\nexec curl -sS -m 60 -o /dev/null -w 'status=%{http_code}\\n' -H \"x-api-key: $GEMINI_API_KEY\" -d '{}' https://generativelanguage.googleapis.com/v1/x\n");
        std::fs::set_permissions(&agent, std::os::unix::fs::PermissionsExt::from_mode(0o755)).expect("a mode");
        let Some(server) = vendor(stage, "generativelanguage.googleapis.com") else { return };
        let said = user(stage, &prefix, &server, r#"
            export GEMINI_API_KEY=$KEY
            ironcage run -r ~/prefix -- gemini
        "#);
        assert!(said.contains("seen=ironcage-GEMINI_API_KEY-") && said.contains("status="), "{said}");
        assert!(!said.contains(KEY) && server.log().contains(KEY), "{said} {}", server.log());
    }

    fn codex_does_a_task_with_a_key_that_it_never_holds(stage) {
        let Some(prefix) = installed("codex") else { return };
        let Some(server) = TlsWeb::of(stage, "model.test", "/usr/bin/python3", SERVER) else { return };
        let said = user(stage, &prefix, &server, r#"
            export OPENAI_API_KEY=$KEY
            port=${MODEL##*:}
            cat > settings <<END
model = "scripted"
model_provider = "scripted"
sandbox_mode = "danger-full-access"
approval_policy = "never"
[model_providers.scripted]
name = "scripted"
base_url = "$MODEL/v1"
env_key = "OPENAI_API_KEY"
wire_api = "responses"
END
            ironcage run --profile coding-agent $RULES --secret OPENAI_API_KEY@model.test:$port \
                -- sh -c 'cp settings ~/.codex/config.toml && exec codex exec --skip-git-repo-check "$1"' sh \
                'run: echo hello > greeting; echo seen=$OPENAI_API_KEY; curl -sS -m 20 https://other.test/ || echo elsewhere=refused'
        "#);
        check(stage, &prefix, &server, &said, KEY);
    }

    fn claude_code_does_a_task_with_a_login_that_it_never_holds(stage) {
        let Some(prefix) = installed("claude") else { return };
        let Some(server) = TlsWeb::of(stage, "model.test", "/usr/bin/python3", SERVER) else { return };
        let script = r#"
            mkdir ~/.claude
            cat > ~/.claude/.credentials.json <<END
{"claudeAiOauth":{"accessToken":"ended-access-token","refreshToken":"first-refresh-token","expiresAt":1700000000000,"scopes":["user:inference"],"subscriptionType":"max"}}
END
            ironcage run --policy ~/policy.toml $RULES \
                --env ANTHROPIC_BASE_URL=$MODEL --env CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC=1 \
                -- sh -c 'exec claude -p --dangerously-skip-permissions "$1"' sh \
                'run: echo hello > greeting; echo seen=$(grep -o "ironcage-[a-z0-9-]*" ~/.claude/.credentials.json | head -n 1); curl -sS -m 20 https://other.test/ || echo elsewhere=refused'
        "#;
        let said = user(stage, &prefix, &server, &format!("AGENT=claude{LOGIN}{script}"));
        check(stage, &prefix, &server, &said, RENEWED);
        let stored = std::fs::read_to_string(stage.home().join(".claude/.credentials.json"));
        let stored = stored.expect("the user's own file");
        assert!(stored.contains("second-refresh-token") && stored.contains(RENEWED), "{stored}");
    }

    fn codex_does_a_task_with_a_login_that_it_never_holds(stage) {
        let Some(prefix) = installed("codex") else { return };
        let Some(server) = TlsWeb::of(stage, "model.test", "/usr/bin/python3", SERVER) else { return };
        // {"exp":1700000000}
        let script = r#"
            mkdir ~/.codex
            cat > ~/.codex/auth.json <<END
{"OPENAI_API_KEY":null,"tokens":{"id_token":"id-token-of-before","access_token":"eyJhbGciOiJub25lIn0.eyJleHAiOjE3MDAwMDAwMDB9.signature","refresh_token":"first-refresh-token","account_id":"account-of-the-user"},"last_refresh":"2025-01-01T00:00:00Z"}
END
            cat > settings <<END
model = "scripted"
model_provider = "scripted"
sandbox_mode = "danger-full-access"
approval_policy = "never"
[model_providers.scripted]
name = "scripted"
base_url = "$MODEL/v1"
requires_openai_auth = true
wire_api = "responses"
END
            ironcage run --policy ~/policy.toml $RULES \
                -- sh -c 'cp settings ~/.codex/config.toml && exec codex exec --skip-git-repo-check "$1"' sh \
                'run: echo hello > greeting; echo seen=$(grep -o "ironcage-[a-z0-9-]*" ~/.codex/auth.json | head -n 1); curl -sS -m 20 https://other.test/ || echo elsewhere=refused'
        "#;
        let said = user(stage, &prefix, &server, &format!("AGENT=codex{LOGIN}{script}"));
        check(stage, &prefix, &server, &said, RENEWED);
        let stored = std::fs::read_to_string(stage.home().join(".codex/auth.json"));
        let stored = stored.expect("the user's own file");
        assert!(stored.contains("second-refresh-token") && stored.contains(RENEWED), "{stored}");
    }
}
