//! Servers of npm and PyPI behind the gateway, each in a cage, by the rules in docs/examples/mcp.

use ironcage_tests::{Running, Stage, TlsWeb, binary, either, skip};
use serde_json::{Value, json};
use std::path::Path;
use std::time::Duration;

const WITHIN: Duration = Duration::from_secs(300);
/// `scripts/test` installs them there.
const SERVERS: &str = "/var/cache/ironcage-test/mcp-servers";
const RULES: &str = include_str!("../../docs/examples/mcp/servers.toml");
const CAGE: &str = include_str!("../../docs/examples/mcp/programs.toml");
const FETCH: &str = include_str!("../../docs/examples/mcp/fetch.toml");
/// Where each program is installed.
const PROGRAMS: [(&str, &str); 5] = [
    ("mcp-server-filesystem", "node/node_modules/.bin"),
    ("mcp-server-everything", "node/node_modules/.bin"),
    ("mcp-server-git", "python/bin"),
    ("mcp-server-fetch", "python/bin"),
    ("mcp-server-sqlite", "sqlite/bin"),
];

/// The examples with the places of this machine.
fn policies(stage: &Stage, web: &TlsWeb) -> bool {
    let mut rules = RULES.replace(
        "docs.example.com",
        &format!("docs.example.com:{}", web.port),
    );
    for (name, place) in PROGRAMS {
        let program = format!("{SERVERS}/{place}/{name}");
        if !Path::new(&program).exists() {
            skip(&format!("no {program}: ./scripts/test installs it"));
            return false;
        }
        let quoted = format!("\"{name}\"");
        assert!(rules.contains(&quoted), "{name}");
        rules = rules.replace(&quoted, &format!("\"{program}\""));
    }
    // The server reads the authority that the test made.
    rules = rules.replace("[mcp.fetch]\n", "[mcp.fetch]\nenv = [\"SSL_CERT_FILE\"]\n");
    let place = |text: &str| text.replace("~/.local", SERVERS);
    let flags = web.place("docs.example.com");
    let (local, address) = (&flags[1], flags[3].trim_start_matches("docs.example.com="));
    let hosts = format!(
        "allow = [\"docs.example.com:{}\", \"{local}\"]\nresolve = {{ \"docs.example.com\" = \"{address}\" }}",
        web.port
    );
    let fetch = place(FETCH).replace("allow = [\"docs.example.com\"]", &hosts);
    let fetch = fetch.replace("read = [", &format!("read = [{:?}, ", web.authority));
    stage.write(stage.project().join("servers.toml"), rules);
    stage.write(stage.project().join("programs.toml"), place(CAGE));
    stage.write(stage.project().join("fetch.toml"), fetch);
    true
}

fn text(answer: &Value) -> &str {
    let text = answer.pointer("/content/0/text").and_then(Value::as_str);
    text.unwrap_or_default()
}

fn code(answer: &Value) -> &str {
    let code = answer.pointer("/structuredContent/code");
    code.and_then(Value::as_str).unwrap_or_default()
}

either! {
    fn servers_of_npm_and_pypi_run_in_cages_by_the_example_rules(stage) {
        let Some(web) = TlsWeb::start(stage, "docs.example.com") else { return };
        if !policies(stage, &web) {
            return;
        }
        stage.write(stage.project().join("note.txt"), "in the project");
        stage.write(stage.home().join("key"), "canary");
        let sqlite = "import sqlite3; c = sqlite3.connect('data.db'); c.execute('create table t (a)'); c.execute('insert into t values (7)'); c.commit()";
        stage.sh_outside(&format!("python3 -c \"{sqlite}\" && git init -q . && git -c user.name=a -c user.email=a@b.c commit -q --allow-empty -m first")).ok();
        stage.write(stage.aside().join("client.py"), include_str!("../fixtures/mcp_client.py"));
        let policy = stage.project().join("servers.toml").display().to_string();
        for name in ["filesystem", "git", "fetch", "sqlite", "everything"] {
            let mut approve = stage.ironcage(["mcp", "approve", name, "--yes", "--policy", &policy]);
            approve.env("SSL_CERT_FILE", &web.authority);
            Running::start(&mut approve).finish(WITHIN).ok();
        }
        let project = stage.project().display().to_string();
        let url = |host: &str| format!("https://{host}:{}/echo", web.port);
        let calls = [
            ("filesystem__read_text_file", json!({"path": "note.txt"}), "in the project"),
            ("filesystem__read_text_file", json!({"path": stage.home().join("key")}), "tool-argument"),
            ("filesystem__write_file", json!({"path": "new.txt", "content": "x"}), "tool-approval-required"),
            ("git__git_log", json!({"repo_path": project}), "first"),
            ("git__git_log", json!({"repo_path": stage.home()}), "tool-argument"),
            ("git__git_commit", json!({"repo_path": project, "message": "x"}), "tool-not-listed"),
            ("fetch__fetch", json!({"url": url("docs.example.com")}), "Contents of"),
            ("fetch__fetch", json!({"url": url("evil.example.com")}), "tool-argument"),
            ("sqlite__read_query", json!({"query": "select a from t"}), "7"),
            ("sqlite__read_query", json!({"query": "delete from t"}), "tool-argument"),
            ("everything__echo", json!({"message": "hi"}), "Echo: hi"),
            ("everything__get-env", json!({}), "tool-not-listed"),
        ];
        let requests = calls.iter().map(|(tool, arguments, _)| {
            format!("tools/call {}", json!({"name": tool, "arguments": arguments}))
        });
        let requests: Vec<String> = requests.collect();
        let mut client = stage.outside("python3");
        client.arg(stage.aside().join("client.py")).arg(binary());
        client.args(["mcp", "gateway", "--policy", &policy]).env("SSL_CERT_FILE", &web.authority);
        let ran = Running::start(&mut client).feed(requests.join("\n").into_bytes(), WITHIN).ok();
        let told = ran.stdout();
        let answers: Vec<Value> = told.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
        assert_eq!(answers.len(), calls.len(), "{ran:?}");
        for ((tool, arguments, wanted), answer) in calls.iter().zip(&answers) {
            match wanted.strip_prefix("tool-") {
                Some(_) => assert_eq!(code(answer), *wanted, "{tool} {arguments}: {answer}"),
                None => assert!(answer["isError"] != true && text(answer).contains(wanted), "{tool} {arguments}: {answer} {}", ran.stderr),
            }
        }
        assert!(!told.contains("canary"), "{told}");
        assert!(!stage.project().join("new.txt").exists());
    }
}
