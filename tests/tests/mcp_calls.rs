//! What a call takes with it: leases of its server's cage that last as long as it does, and marks that make ways out ask.

use ironcage_tests::{Ran, Running, Stage, binary, either};
use serde_json::{Value, json};
use std::time::Duration;

const WITHIN: Duration = Duration::from_secs(300);

fn prepare(stage: &Stage, tools: &[&str], rules: &str, cage: &str) {
    stage.write(
        stage.aside().join("client.py"),
        include_str!("../fixtures/mcp_client.py"),
    );
    stage.write(
        stage.project().join("server.py"),
        include_str!("../fixtures/mcp_server.py"),
    );
    let tool = |name: &&str| json!({"name": name, "description": "A tool.", "inputSchema": {"type": "object"}});
    let tools: Vec<Value> = tools.iter().map(tool).collect();
    stage.write(stage.project().join("tools.json"), json!(tools).to_string());
    stage.write(stage.aside().join("server.toml"), cage);
    let policy = format!(
        "[mcp.notes]\ncommand = [\"python3\", \"server.py\"]\nfirst-use = \"pin\"\npolicy = \"server.toml\"\n\
         workspace-mode = \"read-only\"\n{rules}"
    );
    stage.write(stage.aside().join("policy.toml"), policy);
}

fn gateway(stage: &Stage, requests: &[String]) -> Vec<Value> {
    let policy = stage.aside().join("policy.toml").display().to_string();
    let client = stage.aside().join("client.py").display().to_string();
    let own = binary().display().to_string();
    let mut command = stage.outside("python3");
    command.args([
        &client, &own, "mcp", "gateway", "--server", "notes", "--policy", &policy,
    ]);
    let input = requests.join("\n").into_bytes();
    let ran = Running::start(&mut command).feed(input, WITHIN).ok();
    let told = ran.stdout();
    let lines = told
        .lines()
        .map(|line| serde_json::from_str(line).expect("JSON"));
    lines.collect()
}

fn call(tool: &str, arguments: Value) -> String {
    format!(
        "tools/call {}",
        json!({"name": tool, "arguments": arguments})
    )
}

fn code(answer: &Value) -> &str {
    let places = ["/structuredContent/code", "/data/code"];
    let found = places.iter().find_map(|place| answer.pointer(place));
    found.and_then(Value::as_str).unwrap_or_default()
}

fn text(answer: &Value) -> &str {
    let found = answer.pointer("/content/0/text");
    found.and_then(Value::as_str).unwrap_or_default()
}

fn ironcage(stage: &Stage, words: &[&str]) -> Ran {
    Running::start(&mut stage.ironcage(words)).finish(WITHIN)
}

/// Approves the call that waits.
fn approve(stage: &Stage) {
    let policy = stage.aside().join("policy.toml").display().to_string();
    let waiting = ironcage(stage, &["mcp", "pins", "--json", "--policy", &policy])
        .ok()
        .stdout();
    let waiting: Value = serde_json::from_str(&waiting).expect("JSON");
    let number = waiting["calls"][0]["number"].to_string();
    ironcage(stage, &["mcp", "approve", &number, "--policy", &policy]).ok();
}

either! {
    fn a_call_is_leased_what_its_argument_names_and_nothing_stays_open_after_it(stage) {
        let data = stage.home().join("data").display().to_string();
        for name in ["open", "asked", "outside"] {
            stage.write(stage.home().join("data").join(name).join("file"), format!("the {name} file"));
        }
        std::os::unix::fs::symlink(
            stage.home().join("data/asked/file"),
            stage.home().join("data/open/link"),
        )
        .expect("a link");
        let cage = format!(
            "[ceiling.auto.files]\nread = [\"{data}/open\"]\n[ceiling.ask.files]\nread = [\"{data}/asked\"]\n"
        );
        let rules = format!(
            "allow = [\"read_file\", \"peek\"]\n[mcp.notes.arguments.read_file]\npath = {{ path-below = [\"{data}\"], lease = \"read\" }}\n\
             [mcp.notes.arguments.peek]\npath = {{ path-below = [\"{data}\"] }}\n"
        );
        prepare(stage, &["read_file", "peek"], &rules, &cage);
        let path = |name: &str| json!({"path": format!("{data}/{name}")});
        let requests = [
            // Without the lease the file is not there, before and after.
            call("peek", path("open/file")),
            call("read_file", path("open/file")),
            call("peek", path("open/file")),
            call("read_file", path("outside/file")),
            call("read_file", path("open/link")),
            call("read_file", path("asked/file")),
        ];
        let told = gateway(stage, &requests);
        assert!(text(&told[0]).contains("No such file"), "{}", told[0]);
        assert_eq!(text(&told[1]), "the open file");
        assert!(text(&told[2]).contains("No such file"), "{}", told[2]);
        assert_eq!(code(&told[3]), "tool-lease-denied", "{}", told[3]);
        assert_eq!(code(&told[4]), "tool-lease-denied", "{}", told[4]);
        assert!(text(&told[4]).contains("a link in it leads to"), "{}", told[4]);
        assert_eq!(code(&told[5]), "tool-approval-required", "{}", told[5]);
        approve(stage);
        let again = gateway(stage, &[call("read_file", path("asked/file")), call("peek", path("asked/file"))]);
        assert_eq!(text(&again[0]), "the asked file", "{}", again[0]);
        assert!(text(&again[1]).contains("No such file"), "{}", again[1]);
        // The audit logs of the gateway and of the cage agree.
        let list = ironcage(stage, &["audit", "list"]).ok().stdout();
        let mut leased = 0;
        let mut proven = 0;
        for id in list.lines().filter_map(|line| line.split_whitespace().next()) {
            let log = ironcage(stage, &["audit", "show", id, "--json"]).stdout();
            leased += log.matches(&format!("\"leases\":[\"read {data}/")).count();
            proven += log.lines().filter(|line| line.contains("tools/call read_file") && line.contains("lease")).count();
        }
        assert_eq!(leased, 2, "{list}");
        assert!(proven >= 2, "{list}");
    }

    fn a_way_out_is_asked_about_once_private_data_met_untrusted_content(stage) {
        let rules = "allow = [\"*\"]\nprivate = [\"read_mail\"]\nuntrusted = [\"browse\"]\nsends = [\"post_*\"]\n";
        prepare(stage, &["read_mail", "browse", "post_note", "count"], rules, "");
        let one = |tool: &str| call(tool, json!({"a": 1}));
        // Either alone asks nothing.
        for first in ["read_mail", "browse"] {
            let told = gateway(stage, &[one(first), one("post_note")]);
            assert_eq!(text(&told[1]), r#"{"a": 1}"#, "{first}: {}", told[1]);
        }
        let both = [one("browse"), one("post_note"), one("read_mail"), one("post_note"), one("count")];
        let told = gateway(stage, &both);
        assert_eq!(text(&told[1]), r#"{"a": 1}"#);
        assert_eq!(code(&told[3]), "tool-flow-approval-required");
        assert!(text(&told[3]).contains("read_mail of notes"), "{}", told[3]);
        assert_eq!(text(&told[4]), r#"{"a": 1}"#);
        approve(stage);
        let told = gateway(stage, &[one("browse"), one("read_mail"), one("post_note"), one("post_note")]);
        assert_eq!(text(&told[2]), r#"{"a": 1}"#, "{}", told[2]);
        assert_eq!(code(&told[3]), "tool-flow-approval-required", "an approval is for one call");
    }

    fn a_completion_is_a_way_out_like_a_call(stage) {
        let rules = "allow = [\"*\"]\nprompts = [\"open\"]\nprivate = [\"read_mail\"]\nuntrusted = [\"browse\"]\nsends = [\"completion/*\"]\n";
        prepare(stage, &["read_mail", "browse"], rules, "");
        let one = |tool: &str| call(tool, json!({"a": 1}));
        let complete = || format!(
            "completion/complete {}",
            json!({"ref": {"type": "ref/prompt", "name": "open"}, "argument": {"name": "a", "value": "the mail"}})
        );
        let told = gateway(stage, &[one("browse"), complete(), one("read_mail"), complete()]);
        assert_eq!(told[1].pointer("/completion/values/0"), Some(&json!("the mail")), "{}", told[1]);
        assert_eq!(code(&told[3]), "tool-flow-approval-required", "{}", told[3]);
        // Both are in the log, as calls are.
        let last = ironcage(stage, &["audit", "list"]).ok().stdout();
        let logs: String = last
            .lines()
            .filter_map(|line| line.split_whitespace().next())
            .map(|id| ironcage(stage, &["audit", "show", id, "--json"]).stdout())
            .collect();
        let method = r#""method":"completion/complete""#;
        assert_eq!(logs.matches(method).count(), 2, "{logs}");
    }
}
