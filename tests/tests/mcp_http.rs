//! The gateway on HTTP, used by the MCP SDK for Python and attacked by plain requests.

use ironcage_tests::{Running, Stage, binary, either, skip};
use serde_json::{Value, json};
use std::path::Path;
use std::time::Duration;

const WITHIN: Duration = Duration::from_secs(300);
/// `scripts/test` installs the MCP SDK there, with the frameworks of the SDK's suites.
const PYTHON: &str = "/var/cache/ironcage-test/sdk-python/bin/python";
const TOKEN: &str = "0123456789abcdef0123456789abcdef";

/// What the client found out about a gateway with this policy.
fn found_out(stage: &Stage, flags: &[&str]) -> Option<Value> {
    if !Path::new(PYTHON).exists() {
        skip(&format!("no {PYTHON}: ./scripts/test installs it"));
        return None;
    }
    let client = stage.aside().join("client.py");
    let token = stage.aside().join("token");
    let policy = stage.aside().join("policy.toml");
    stage.write(&client, include_str!("../fixtures/mcp_http.py"));
    stage.write(&token, TOKEN);
    let mut command = stage.outside(PYTHON);
    command.arg(&client).arg(TOKEN).arg(binary());
    command.args(["mcp", "gateway", "--server", "notes"]);
    command
        .args(["--listen", "127.0.0.1:0", "--token-file"])
        .arg(&token);
    command.args(flags).arg("--policy").arg(&policy);
    let ran = Running::start(&mut command).finish(WITHIN).ok();
    Some(serde_json::from_str(&ran.stdout()).expect("JSON"))
}

either! {
    fn the_gateway_on_http_serves_the_sdk_and_refuses_strangers(stage) {
        let tool = |name: &str| json!({"name": name, "description": "A tool.", "inputSchema": {"type": "object"}});
        let tools = json!(["echo", "slow", "hidden"].map(tool));
        stage.write(stage.project().join("server.py"), include_str!("../fixtures/mcp_server.py"));
        stage.write(stage.project().join("tools.json"), tools.to_string());
        let policy = "[mcp.notes]\ncommand = [\"python3\", \"server.py\"]\nallow = [\"echo\", \"slow\"]\nfirst-use = \"pin\"\n";
        stage.write(stage.aside().join("policy.toml"), policy);
        let Some(found) = found_out(stage, &["--allow-origin", "https://app.example.com"]) else {
            return;
        };
        for (mode, version) in [("legacy", "2025-11-25"), ("modern", "2026-07-28")] {
            let expected = json!({"version": version, "tools": ["echo", "slow"], "echo": "{\"a\": 1}", "refused": "tool-not-listed"});
            assert_eq!(found[mode], expected);
        }
        assert_eq!(found["token"], json!({"right": 200, "none": 401, "wrong": 401, "shorter": 401, "basic": 401}));
        assert_eq!(found["host"], json!({"localhost": 200, "rebound": 403, "suffix": 403}));
        assert_eq!(found["origin"], json!({"allowed": 200, "page": 403, "own": 403, "null": 403}));
        assert_eq!(found["headers"], json!({"equal": 200, "named": 200, "method": 400, "name": 400, "version": 400}));
        assert_eq!(found["bodies"], json!({"ambiguous": 400, "elsewhere": 404, "large": 413}));
        let sessions = json!({
            "distinct": true, "listed": 200, "unknown": 404, "missing": 400, "foreign": 401, "ended": 202, "gone": 404,
        });
        assert_eq!(found["sessions"], sessions);
        let resumed = &found["resumed"];
        assert_eq!(resumed["before"], json!(["notifications/progress"]), "{resumed}");
        let after = resumed["after"].as_array().expect("events");
        assert_eq!(after.last(), Some(&json!("slowly done")), "{resumed}");
        assert!(after.contains(&json!("notifications/progress")), "{resumed}");
        assert_eq!(resumed["stolen"], json!([]));
    }
}
