//! Claude Code and Codex, as npm installs them, work in a cage day after day: the guide's commands run as they stand.

use ironcage_tests::{Ran, Running, Screen, Stage, binary, either, skip, tree};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Names the npm prefix with the agents.
const VARIABLE: &str = "IRONCAGE_TEST_AGENTS";
/// Where `scripts/test` installs them.
const INSTALLED: &str = "/var/cache/ironcage-test/agents";
const SYSTEM: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
const GUIDE: &str = include_str!("../../docs/guides/agents.md");
const SERVER: &str = include_str!("../fixtures/model_server.py");

/// The npm prefix with both agents, or `None`, which counts as skipped.
fn agents() -> Option<PathBuf> {
    let prefix = std::env::var_os(VARIABLE).map_or_else(|| INSTALLED.into(), PathBuf::from);
    for name in ["claude", "codex"] {
        if !prefix.join("bin").join(name).exists() {
            skip(&format!(
                "no {name} from npm in {}: ./scripts/test installs it",
                prefix.display()
            ));
            return None;
        }
    }
    Some(prefix)
}

/// A script of the user's, outside, with the agents and `ironcage` on PATH.
fn user(stage: &Stage, prefix: &Path, script: &str) -> Ran {
    let ironcage = binary().parent().expect("its directory").display();
    let path = format!("{}/bin:{ironcage}:{SYSTEM}", prefix.display());
    let mut shell = stage.outside("/bin/sh");
    shell.args(["-ec", script]).env("PATH", path);
    Running::start(&mut shell).finish(Duration::from_secs(300))
}

/// The guide's scripts, each with what it prints.
fn guide() -> Vec<(String, String)> {
    let mut steps = Vec::new();
    let mut script = None;
    let mut block: Option<(&str, String)> = None;
    for line in GUIDE.lines() {
        block = match (block, line.strip_prefix("```")) {
            (None, Some(kind)) => Some((kind, String::new())),
            (None, None) => {
                // Only what stands directly below a script is what that script prints.
                script = None;
                None
            }
            (Some(("sh", text)), Some(_)) => {
                script = Some(text);
                None
            }
            (Some(("text", text)), Some(_)) => {
                steps.extend(script.take().map(|script| (script, text)));
                None
            }
            (Some(_), Some(_)) => None,
            (Some((kind, text)), None) => Some((kind, format!("{text}{line}\n"))),
        };
    }
    steps
}

/// Everything about a tree that reading or writing it would change.
fn traces(below: &Path) -> Vec<String> {
    let mut all = tree(below);
    all.push(below.to_owned());
    let trace = |path: &PathBuf| {
        let meta = path.symlink_metadata().expect("what is there");
        let times = [
            (meta.atime(), meta.atime_nsec()),
            (meta.mtime(), meta.mtime_nsec()),
            (meta.ctime(), meta.ctime_nsec()),
        ];
        let (inode, mode, size) = (meta.ino(), meta.mode(), meta.size());
        format!("{path:?} {inode} {mode:o} {size} {times:?}")
    };
    all.iter().map(trace).collect()
}

either! {
    fn the_guide_holds_and_the_users_own_state_is_never_touched(stage) {
        let Some(prefix) = agents() else {
            return;
        };
        let own = stage.home().join(".claude");
        stage.write(own.join("settings.json"), r#"{"env":{"CANARY":"canary"}}"#);
        stage.write(own.join("projects/old.jsonl"), "canary");
        stage.write(stage.home().join(".claude.json"), r#"{"canary":true}"#);
        stage.write(stage.home().join(".codex/auth.json"), r#"{"OPENAI_API_KEY":"canary"}"#);
        stage.write(stage.project().join("model_server.py"), SERVER);
        let places = [own, stage.home().join(".claude.json"), stage.home().join(".codex")];
        let before = places.each_ref().map(|place| traces(place));

        let project = stage.project().display().to_string();
        let steps = guide();
        assert_eq!(steps.len(), 7, "scripts of the guide: {steps:?}");
        for (script, printed) in &steps {
            if script.contains("ironcage discard") {
                let asked = stage.sh_with(&["-q"], "cat requests.jsonl").ok().stdout();
                assert!(asked.contains("What did I ask?"), "{asked}");
                assert!(!asked.contains("canary"), "the agents sent something of the user's own state");
            }
            let ran = user(stage, &prefix, script).ok();
            let said = ran.stdout().replace(&project, "~/src/project");
            assert_eq!(said.trim(), printed.trim(), "{script}\n{ran:?}");
        }
        assert_eq!(places.each_ref().map(|place| traces(place)), before);
        assert_eq!(stage.read("greeting").as_deref(), Some("hello\n"));
    }

    fn an_agent_finds_nothing_of_the_users_own_state_and_leaves_nothing_there(stage) {
        let Some(prefix) = agents() else {
            return;
        };
        let settings = stage.home().join(".claude/settings.json");
        stage.write(&settings, r#"{"env":{"CANARY":"canary"}}"#);
        stage.write(stage.project().join("model_server.py"), SERVER);
        let claude = |flags: &str, prompt: &str| {
            let run = "ironcage run --profile coding-agent -- python3 model_server.py requests.jsonl claude";
            user(stage, &prefix, &format!("{run} -p --dangerously-skip-permissions {flags} '{prompt}'")).ok()
        };
        let look = "cat ~/.claude/settings.json ~/.claude.json 2>&1; env | grep CANARY; true";
        let seen = claude("", &format!("run: {look}")).stdout();
        assert!(seen.starts_with("done:") && !seen.contains("canary"), "{seen}");
        let outside = stage.sh_outside(look).stdout();
        assert!(outside.contains("canary"), "the host has it: {outside}");

        let plant = r#"run: echo "{\"env\":{\"PLANTED\":\"planted\"}}" > ~/.claude/settings.json"#;
        claude("", plant);
        let next = claude("", "run: echo $PLANTED").stdout();
        assert_eq!(next.trim(), "done: planted", "settings of this workspace are kept");
        let own = std::fs::read_to_string(&settings).expect("the user's own");
        assert!(!own.contains("planted"), "{own}");
    }

    fn claude_code_uses_ironcage_as_an_mcp_server(stage) {
        let Some(prefix) = agents() else {
            return;
        };
        stage.write(stage.project().join("model_server.py"), SERVER);
        stage.write(stage.home().join("key"), "canary");
        let key = stage.home().join("key").display().to_string();
        let ask = format!(r#"call: mcp__ironcage__run_command {{"command": "cat {key} 2>&1; echo made > made; pwd"}}"#);
        let quiet = "export CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC=1 DISABLE_AUTOUPDATER=1 ENABLE_TOOL_SEARCH=false MODEL_PORT=0\n";
        let claude = format!(
            "{quiet} claude mcp add ironcage -- ironcage mcp >&2\n\
             python3 model_server.py requests.jsonl claude -p --allowedTools mcp__ironcage__run_command -- '{ask}'"
        );
        let ran = user(stage, &prefix, &claude).ok();
        let said = ran.stdout();
        assert!(said.contains(&stage.project().display().to_string()), "{ran:?}");
        assert!(!said.contains("canary"), "{said}");
        assert_eq!(stage.read("made"), None, "the change is only pending");
    }

    fn codex_uses_ironcage_as_an_mcp_server_and_servers_behind_the_gateway(stage) {
        let Some(prefix) = agents() else {
            return;
        };
        stage.write(stage.project().join("model_server.py"), SERVER);
        stage.write(stage.home().join("key"), "canary");
        let key = stage.home().join("key").display().to_string();
        // Codex starts servers without these variables, so nothing here has them.
        let user = |script: &str| {
            user(stage, &prefix, &format!("unset XDG_STATE_HOME XDG_CONFIG_HOME XDG_RUNTIME_DIR\n{script}")).ok()
        };
        // The model's own tools are not used, so Codex needs no sandbox of its own.
        let codex = |call: &str| {
            let script = format!(
                "export OPENAI_API_KEY=scripted MODEL_PORT=0\n\
                 python3 model_server.py requests.jsonl codex exec --skip-git-repo-check -c model=scripted -c model_provider=scripted \
                 -c 'model_providers.scripted={{name=\"scripted\",base_url=\"http://127.0.0.1:MODEL_PORT/v1\",env_key=\"OPENAI_API_KEY\",wire_api=\"responses\"}}' \
                 -c sandbox_mode=danger-full-access -c approval_policy=never '{call}' </dev/null"
            );
            user(&script).stdout()
        };
        user("codex mcp add ironcage -- ironcage mcp");
        let ask = format!(r#"call: mcp__ironcage__run_command {{"command": "cat {key} 2>&1; echo made > made; pwd"}}"#);
        let said = codex(&ask);
        assert!(said.contains(&stage.project().display().to_string()), "{said}");
        assert!(!said.contains("canary"), "{said}");
        assert_eq!(stage.read("made"), None, "the change is only pending");

        // A server that Codex starts itself, and the same one after `wrap`.
        let tool = |name: &str| serde_json::json!({"name": name, "description": "A tool.", "inputSchema": {"type": "object"}});
        stage.write(stage.project().join("server.py"), include_str!("../fixtures/mcp_server.py"));
        stage.write(stage.project().join("tools.json"), serde_json::json!([tool("peek"), tool("echo")]).to_string());
        user("codex mcp add notes -- python3 server.py");
        let peek = format!(r#"call: mcp__notes__peek {{"path": "{key}"}}"#);
        assert!(codex(&peek).contains("canary"), "without the gateway the server reads what the user can");
        let rules = "[mcp.notes]\nallow = [\"peek\"]\nfirst-use = \"pin\"\n";
        stage.write(stage.project().join("ironcage.toml"), rules);
        user("ironcage trust --yes && ironcage mcp wrap ~/.codex/config.toml");
        let wrapped = codex(&peek);
        assert!(wrapped.contains("done:") && !wrapped.contains("canary"), "{wrapped}");
        let own = format!(r#"call: mcp__notes__peek {{"path": "{}/server.py"}}"#, stage.project().display());
        assert!(codex(&own).contains("def send"), "what its cage has it reads");
        // What the policy does not list is not offered.
        let offered = |name: &str| stage.read("requests.jsonl").unwrap_or_default().lines().last().is_some_and(|line| line.contains(name));
        assert!(offered(r#""name": "peek""#) && !offered(r#""name": "echo""#));
        user("ironcage mcp unwrap ~/.codex/config.toml");
        assert!(codex(&peek).contains("canary"), "as before");
    }

    fn claude_code_talks_on_a_terminal(stage) {
        let Some(prefix) = agents() else {
            return;
        };
        let Some(screen) = Screen::open(stage) else {
            return;
        };
        stage.write(stage.project().join("model_server.py"), SERVER);
        // Its first run would ask for a theme and for trust, and look for its maker's servers.
        let project = stage.project().display().to_string();
        let answers = format!(
            r#"{{"hasCompletedOnboarding":true,"projects":{{"{project}":{{"hasTrustDialogAccepted":true}}}}}}"#
        );
        stage.write(stage.project().join("answers"), answers);
        user(stage, &prefix, "ironcage run --profile coding-agent -- sh -c 'cp answers ~/.claude/.claude.json'").ok();
        screen.line(&format!("PATH={}/bin:$PATH", prefix.display()));
        screen.cage("--profile coding-agent -- python3 model_server.py requests.jsonl claude");
        screen.shows("❯");
        screen.keys(&["Good morning"]);
        screen.shows("❯\u{a0}Good morning");
        screen.keys(&["Enter"]);
        screen.shows("● heard: Good morning");
        screen.keys(&["C-c"]);
        screen.keys(&["C-c"]);
        screen.prompt();
    }
}
