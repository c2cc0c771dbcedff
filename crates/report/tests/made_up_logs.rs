//! Reports of logs that were made up, event by event.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a test that cannot go on fails"
)]

use ironcage_model::{CageId, Event, EventKind};
use ironcage_report::{EntryUse, Report};
use serde_json::{Value, json};
use std::path::Path;

fn id() -> CageId {
    "c0123456789ab".parse().unwrap()
}

/// Events at seconds.
fn log(events: &[(u64, Value)]) -> Report {
    let events = events.iter().map(|(second, kind)| Event {
        time: 1_000_000_000 + second * 1_000_000,
        cage: id(),
        kind: serde_json::from_value::<EventKind>(kind.clone()).expect("an event"),
    });
    Report::of(id(), events, Some(Path::new("/home/u")))
}

fn start() -> (u64, Value) {
    let start = json!({"event": "start", "command": ["sh"], "workspace": "/w", "profile": "shell", "plan": "0", "layers": []});
    (0, start)
}

fn exit(second: u64, observed: bool, granted: &[(&str, &str)]) -> (u64, Value) {
    let granted: Vec<Value> = granted
        .iter()
        .map(|(key, value)| json!({"key": key, "value": value, "origin": "p.toml:1"}))
        .collect();
    let usage = json!({"observed": observed, "granted": granted});
    let exit =
        json!({"event": "exit", "ending": "exited", "code": 0, "milliseconds": 1, "usage": usage});
    (second, exit)
}

fn seen(second: u64, how: &str, what: &str) -> (u64, Value) {
    let seen =
        json!({"event": "observed", "how": how, "what": what, "program": "cat", "found": true});
    (second, seen)
}

fn contact(second: u64, host: &str, rule: &str) -> (u64, Value) {
    let traffic = json!({"event": "network", "verdict": "allowed", "host": host, "port": 443,
        "protocol": "tls", "rule": rule, "connections": 1, "sent": 0, "received": 0});
    (second, traffic)
}

fn lease(second: u64, number: u32, resource: Value) -> (u64, Value) {
    let lease = json!({"event": "lease", "number": number, "resource": resource, "scope": "cage",
        "term": "until-revoked", "reason": "why", "origin": "ask", "approver": "policy"});
    (second, lease)
}

fn lease_end(second: u64, number: u32, end: &str) -> (u64, Value) {
    let end = json!({"event": "lease-end", "number": number, "end": end, "cause": "time", "milliseconds": 1});
    (second, end)
}

fn path(path: &str, right: &str) -> Value {
    json!({"kind": "path", "path": path, "right": right})
}

fn excess(report: &Report, what: &str) -> Option<f64> {
    let entry = report.entries.iter().find(|entry| entry.what == what);
    entry.map(|entry| entry.excess() as f64 / 1e6)
}

#[test]
fn the_base_policy_counts_for_the_whole_run_until_exactly_it_is_used() {
    let granted = [
        ("files.read", "/data/one"),
        ("files.read", "/data/dir"),
        ("files.write", "/out"),
        ("network.allow", "a.test"),
        ("network.allow", "b.test"),
        ("network.allow", "*.c.test"),
        ("limits.pids", "64"),
    ];
    let report = log(&[
        start(),
        seen(4, "read", "/data/one"),
        seen(5, "read", "/data/dir/x"),
        seen(6, "read", "/out"),
        contact(2, "a.test", "a.test"),
        contact(3, "x.c.test", "*.c.test"),
        exit(10, true, &granted),
    ]);
    assert_eq!(excess(&report, "read /data/one"), Some(4.0));
    // Wider than what was used: it stays in the count.
    assert_eq!(excess(&report, "read /data/dir"), Some(10.0));
    assert_eq!(excess(&report, "host *.c.test"), Some(10.0));
    // Read only: the permission to write was not used.
    assert_eq!(excess(&report, "write /out"), Some(10.0));
    assert_eq!(excess(&report, "host a.test"), Some(2.0));
    assert_eq!(excess(&report, "host b.test"), Some(10.0));
    assert_eq!(
        report.entries.len(),
        6,
        "limits are neither paths nor hosts"
    );
    assert_eq!(report.authority.excess_seconds, 46.0);
    assert_eq!(report.authority.base.granted_seconds, 60.0);
    assert_eq!(report.authority.all.unknown_seconds, 0.0);
    assert!(report.notes.is_empty(), "{:?}", report.notes);
}

#[test]
fn the_workspace_counts_its_rights_apart() {
    let mode = [("workspace.mode", "cow")];
    let report = log(&[start(), exit(10, true, &mode)]);
    assert_eq!(report.authority.base.granted_seconds, 20.0);
    let mode = [("workspace.mode", "leased")];
    let report = log(&[start(), exit(10, true, &mode)]);
    assert_eq!(report.authority.base.granted_seconds, 10.0);
}

#[test]
fn files_of_a_run_that_was_not_observed_are_unknown_and_hosts_are_not() {
    let granted = [("files.read", "/data"), ("network.allow", "a.test")];
    let report = log(&[start(), exit(10, false, &granted)]);
    assert_eq!(report.authority.all.unknown_seconds, 10.0);
    assert_eq!(report.authority.excess_seconds, 10.0);
    assert!(report.notes.iter().any(|note| note.contains("--observe")));
}

#[test]
fn a_lease_counts_while_it_is_open() {
    let report = log(&[
        start(),
        lease(2, 1, path("/data/one", "read")),
        seen(3, "read", "/data/one"),
        lease_end(6, 1, "revoked"),
        lease(7, 2, path("/other", "read")),
        lease_end(9, 2, "revoked"),
        lease(9, 3, path("/never", "read")),
        lease_end(10, 3, "not-opened"),
        exit(10, true, &[]),
    ]);
    assert_eq!(excess(&report, "read /data/one"), Some(1.0));
    assert_eq!(excess(&report, "read /other"), Some(2.0));
    assert_eq!(excess(&report, "read /never"), Some(0.0));
    assert_eq!(report.authority.leases.granted_seconds, 6.0);
    assert_eq!(report.authority.excess_seconds, 3.0);
}

#[test]
fn a_second_lease_of_a_path_that_was_seen_before_is_unknown() {
    let report = log(&[
        start(),
        lease(1, 1, path("/data/one", "read")),
        seen(2, "read", "/data/one"),
        lease_end(3, 1, "revoked"),
        lease(5, 2, path("/data/one", "read")),
        lease_end(9, 2, "revoked"),
        exit(10, true, &[]),
    ]);
    let second = report.entries.get(1).expect("the second lease");
    assert!(matches!(second.used, EntryUse::Unknown { .. }));
    assert_eq!(report.authority.all.unknown_seconds, 4.0);
}

#[test]
fn a_log_without_an_end_says_that_the_base_is_not_counted() {
    let report = log(&[start(), lease(1, 1, path("/d", "read"))]);
    assert_eq!(report.authority.base.entries, 0);
    assert!(report.ending.is_none());
    assert!(report.notes.iter().any(|note| note.contains("exit event")));
}

#[test]
fn requests_denials_and_drift_are_listed_with_their_codes() {
    let question = json!({"event": "question", "number": 1, "resource": path("/d", "read"), "scope": "cage",
        "term": "until-revoked", "reason": "r", "origin": "ask", "because": "the ceiling says ask"});
    let answer = json!({"event": "question-end", "number": 1, "end": "denied", "asked": 1, "milliseconds": 5});
    let refused = json!({"event": "lease-refused", "resource": path("/x", "write"), "origin": "ask",
        "reason": "outside", "code": "outside-ceiling"});
    let call = json!({"event": "denied", "syscall": "bpf", "program": "x", "count": 3});
    let drift = json!({"event": "drift", "what": "wrote elsewhere", "number": 1, "trust": "asked"});
    let report = log(&[
        start(),
        (1, question),
        (2, answer),
        (3, refused),
        (4, call),
        (5, drift),
        exit(6, false, &[]),
    ]);
    assert_eq!(report.requests.len(), 1);
    assert_eq!(report.requests[0].milliseconds, Some(5));
    let kinds: Vec<_> = report.denials.iter().map(|denial| denial.kind).collect();
    assert_eq!(kinds, ["lease", "system-call"]);
    assert_eq!(report.denials[0].code.as_deref(), Some("outside-ceiling"));
    assert_eq!(report.denials[1].count, 3);
    assert_eq!(report.drift.len(), 1);
}

#[test]
fn no_text_of_an_agent_becomes_markup_in_the_page() {
    let hostile = "/d/</title><script src=//evil.test></script><img onerror=x>\"'";
    let report = log(&[
        (
            0,
            json!({"event": "start", "command": [hostile], "workspace": hostile, "profile": hostile, "plan": "0", "layers": []}),
        ),
        lease(1, 1, path(hostile, "read")),
        (
            2,
            json!({"event": "drift", "what": hostile, "number": 1, "trust": "full"}),
        ),
        (
            3,
            json!({"event": "denied", "syscall": hostile, "program": hostile, "count": 1}),
        ),
        exit(4, true, &[("files.read", hostile)]),
    ]);
    let page = report.html();
    // The allowing arm: it is there, as text.
    assert!(page.contains("&lt;script src=//evil.test&gt;"));
    let tags: Vec<&str> = page
        .split('<')
        .skip(1)
        .map(|rest| rest.split(['>', ' ']).next().unwrap_or(""))
        .collect();
    let known = [
        "!DOCTYPE", "html", "head", "meta", "title", "style", "body", "h1", "h2", "p", "code",
        "span", "svg", "path", "text", "rect", "table", "tr", "th", "td",
    ];
    for tag in tags {
        let name = tag.trim_start_matches('/');
        assert!(
            known.contains(&name),
            "<{tag} is not one of the page's own elements"
        );
    }
    for address in ["http:", "https:", "url(", "@import", "src="] {
        let own = page.replace(&"src=//evil.test".to_owned(), "");
        assert!(!own.contains(address), "the page refers to {address}");
    }
    assert!(page.contains("default-src 'none'; style-src 'sha256-"));
    assert!(!report.to_string().contains('\u{1b}'));
}

#[test]
fn an_empty_log_is_a_report_of_nothing() {
    let report = log(&[]);
    assert_eq!(report.authority.excess_seconds, 0.0);
    assert!(report.to_string().contains("excess authority-seconds: 0.0"));
    assert!(report.html().ends_with("</html>\n"));
}
