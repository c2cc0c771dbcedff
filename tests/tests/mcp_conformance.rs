//! The conformance suite of MCP. What a server passes alone has to pass through the gateway; the gateway as a client passes
//! the scenarios for clients; `ironcage mcp` passes what needs no tools of the suite.

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

/// Scenarios for clients, with the revision. Those below `auth/` need a login, which the gateway does not have.
const AS_CLIENT: [(&str, &str); 12] = [
    ("initialize", "2025-11-25"),
    ("tools_call", "2025-11-25"),
    ("tools_call", "2026-07-28"),
    ("elicitation-sep1034-client-defaults", "2025-11-25"),
    ("sse-retry", "2025-11-25"),
    ("request-metadata", "2026-07-28"),
    ("sep-2322-client-request-state", "2026-07-28"),
    ("http-standard-headers", "2026-07-28"),
    ("http-custom-headers", "2026-07-28"),
    ("http-invalid-tool-headers", "2026-07-28"),
    ("json-schema-ref-no-deref", "2026-07-28"),
    ("json-schema-2020-12-preservation", "2026-07-28"),
];

/// Checks of a scenario for clients that passed, and what failed.
fn as_client(stage: &Stage, scenario: &str, revision: &str) -> (u64, Vec<String>) {
    let reports = stage.aside().join(format!("{scenario}-{revision}"));
    let client = stage.aside().join("client.py");
    let started = format!("{PYTHON} {} {}", client.display(), binary().display());
    let mut command = stage.outside(format!("{SUITE}/node_modules/.bin/node"));
    command.arg(format!(
        "{SUITE}/node_modules/@modelcontextprotocol/conformance/dist/index.js"
    ));
    command.args(["client", "--timeout", "240000", "--command", &started]);
    command.args(["--scenario", scenario, "--spec-version", revision, "-o"]);
    command.arg(&reports).env("SCENE", stage.project());
    let ran = Running::start(&mut command).finish(WITHIN);
    let name = |entry: std::io::Result<std::fs::DirEntry>| entry.expect("an entry").path();
    let mut found = std::fs::read_dir(&reports).expect("a report").map(name);
    let report = found
        .next()
        .unwrap_or_else(|| panic!("{scenario}: {ran:?}"));
    let part = |name: &str| std::fs::read_to_string(report.join(name)).unwrap_or_default();
    eprintln!("{scenario} {revision}: {}", part("stderr.txt"));
    let text = part("checks.json");
    let checks: Vec<Value> = serde_json::from_str(&text).expect("JSON");
    let of = |status: &'static str| checks.iter().filter(move |check| check["status"] == status);
    let passed = of("SUCCESS").count() as u64;
    let failed = of("FAILURE").map(ToString::to_string).collect();
    (passed, failed)
}

/// Scenarios that a server without the tools, resources and prompts of the suite can pass, by revision.
const OWN: [(&str, &[&str]); 2] = [
    (
        "2025-11-25",
        &[
            "server-initialize",
            "server-session-lifecycle",
            "ping",
            "completion-complete",
            "tools-list",
            "resources-list",
            "prompts-list",
            "server-sse-polling",
            "server-sse-multiple-streams",
            "dns-rebinding-protection",
        ],
    ),
    (
        "2026-07-28",
        &[
            "completion-complete",
            "tools-list",
            "resources-list",
            "prompts-list",
            "sep-2164-resource-not-found",
            "server-sse-multiple-streams",
            "caching",
            "dns-rebinding-protection",
            "http-header-validation",
        ],
    ),
];

either! {
    fn the_gateway_as_a_client_passes_the_scenarios_for_clients(stage) {
        if !prepare(stage) {
            return;
        }
        let client = include_str!("../fixtures/mcp_conformance_client.py");
        stage.write(stage.aside().join("client.py"), client);
        for (scenario, revision) in AS_CLIENT {
            let (passed, failed) = as_client(stage, scenario, revision);
            assert!(failed.is_empty() && passed > 0, "{scenario} {revision}: {passed} passed, {failed:#?}");
        }
    }

    fn ironcage_mcp_passes_what_needs_no_tools_of_the_suite(stage) {
        if !prepare(stage) {
            return;
        }
        let own = binary().display().to_string();
        let token = stage.aside().join("token").display().to_string();
        let origins = ["--allow-origin", "http://127.0.0.1:*", "--allow-origin", "http://localhost:*"];
        let start = [TOKEN, &own, "mcp", "--listen", "127.0.0.1:0", "--token-file", &token];
        for (revision, scenarios) in OWN {
            let found = run(stage, revision, &[&start[..], &origins].concat());
            for name in scenarios {
                let checks = found.get(*name).copied().unwrap_or_default();
                assert!(checks.0 > 0 && checks.1 == 0, "{revision} {name}: {checks:?} of {found:?}");
            }
        }
    }

    fn what_passes_alone_passes_through_the_gateway_with_initialize(stage) {
        same_through_the_gateway(stage, "2025-11-25", 80);
    }

    fn what_passes_alone_passes_through_the_gateway_without_initialize(stage) {
        same_through_the_gateway(stage, "2026-07-28", 140);
    }
}
