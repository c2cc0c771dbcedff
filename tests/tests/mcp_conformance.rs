//! The conformance suite of MCP, against a server alone and against the gateway in front of it: what passes alone has to
//! pass through the gateway.

use ironcage_tests::{Running, Stage, binary, either, skip};
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

const WITHIN: Duration = Duration::from_secs(600);
/// Both are installed by `scripts/test`.
const PYTHON: &str = "/var/cache/ironcage-test/sdk-python/bin/python";
const SUITE: &str = "/var/cache/ironcage-test/mcp-conformance";
const TOKEN: &str = "0123456789abcdef0123456789abcdef";

/// Checks that fail through the gateway, by revision and scenario, each with its reason.
const EXPECTED: [(&str, &str, u64); 0] = [];

/// How many checks of each scenario passed and failed.
type Checks = BTreeMap<String, (u64, u64)>;

fn run(stage: &Stage, revision: &str, words: &[&str]) -> Checks {
    let mut command = stage.outside(PYTHON);
    command.arg(stage.aside().join("conformance.py"));
    command.args([SUITE, revision]).args(words);
    let ran = Running::start(&mut command).finish(WITHIN).ok();
    eprintln!("{}", ran.stderr);
    let found: BTreeMap<String, Vec<u64>> = serde_json::from_str::<Value>(&ran.stdout())
        .ok()
        .and_then(|found| serde_json::from_value(found).ok())
        .unwrap_or_else(|| panic!("{ran:?}"));
    found
        .into_iter()
        .map(|(name, counts)| (name, (counts[0], counts[1])))
        .collect()
}

fn prepare(stage: &Stage) -> bool {
    let parts = [
        PYTHON.to_owned(),
        format!("{SUITE}/node_modules/.bin/conformance"),
    ];
    if let Some(missing) = parts.iter().find(|part| !Path::new(part).exists()) {
        skip(&format!("no {missing}: ./scripts/test installs it"));
        return false;
    }
    let server = include_str!("../fixtures/mcp_everything.py");
    stage.write(stage.project().join("server.py"), server);
    let client = include_str!("../fixtures/mcp_conformance.py");
    stage.write(stage.aside().join("conformance.py"), client);
    stage.write(stage.aside().join("token"), TOKEN);
    let cage = "[files]\nread = [\"/var/cache/ironcage-test/sdk-python\"]\n";
    stage.write(stage.aside().join("server.toml"), cage);
    let policy = format!(
        "[mcp.everything]\ncommand = [\"{PYTHON}\", \"-W\", \"ignore\", \"server.py\"]\npolicy = \"server.toml\"\n\
         workspace-mode = \"read-only\"\nfirst-use = \"pin\"\nallow = [\"*\"]\nresources = [\"*\"]\nprompts = [\"*\"]\n\
         sampling = true\nelicitation = true\nroots = true\n"
    );
    stage.write(stage.aside().join("policy.toml"), policy);
    true
}

fn same_through_the_gateway(stage: &Stage, revision: &str, least: u64) {
    if !prepare(stage) {
        return;
    }
    let server = stage.project().join("server.py").display().to_string();
    let alone = run(
        stage,
        revision,
        &["direct", PYTHON, "-W", "ignore", &server],
    );
    // The fixture itself passes everything: what fails through the gateway is the gateway's.
    let failed: Vec<_> = alone.iter().filter(|(_, checks)| checks.1 > 0).collect();
    assert!(failed.is_empty(), "{failed:?}");
    let passed: u64 = alone.values().map(|checks| checks.0).sum();
    assert!(passed >= least, "{alone:?}");
    let own = binary().display().to_string();
    let aside = |name: &str| stage.aside().join(name).display().to_string();
    let (policy, token) = (aside("policy.toml"), aside("token"));
    let gateway = [
        TOKEN,
        &own,
        "mcp",
        "gateway",
        "--server",
        "everything",
        "--listen",
        "127.0.0.1:0",
        // The suite sends the origin of the address that it talks to.
        "--allow-origin",
        "http://127.0.0.1:*",
        "--allow-origin",
        "http://localhost:*",
        "--token-file",
        &token,
        "--policy",
        &policy,
    ];
    let through = run(stage, revision, &gateway);
    for (name, checks) in &alone {
        let mut expected = EXPECTED.iter();
        let expected = expected.find(|entry| entry.0 == revision && entry.1 == name);
        let failures = expected.map_or(0, |entry| entry.2);
        let found = through.get(name).copied().unwrap_or_default();
        assert_eq!(
            found.1, failures,
            "{revision} {name}: {found:?}, alone {checks:?}"
        );
        assert!(
            found.0 + failures >= checks.0,
            "{revision} {name}: {found:?}, alone {checks:?}"
        );
    }
}

either! {
    fn what_passes_alone_passes_through_the_gateway_with_initialize(stage) {
        same_through_the_gateway(stage, "2025-11-25", 80);
    }

    fn what_passes_alone_passes_through_the_gateway_without_initialize(stage) {
        same_through_the_gateway(stage, "2026-07-28", 140);
    }
}
