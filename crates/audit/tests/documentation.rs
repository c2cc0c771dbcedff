//! The example in docs/reference/audit-log.md is what the writer writes.
//!
//! `UPDATE=1 cargo test -p ironcage-audit --test documentation` renews it.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use ironcage_audit::{Log, Verdict, head_path, log_path, verify};
use ironcage_model::{
    Approver, CageId, Denial, Ending, Enforcement, Event, EventKind, IntentRecord, Isolation,
    KeyAgent, KeyPurpose, KeyUse, Layer, LayerReport, Lease, LeaseEnd, LeaseEndCause, LeaseOrigin,
    LeaseReason, LeftOut, LimitHit, LimitKind, NetworkReason, NetworkVerdict, PermissionRequest,
    PermissionRequestEnd, Protocol, Resource, Right, Scope, SupervisorReason, Term, Traffic, Trust,
};
use std::path::{Path, PathBuf};

fn page() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/reference/audit-log.md")
}

fn events(cage: &CageId) -> Vec<Event> {
    let kinds = [
        EventKind::Start {
            name: Some("demo".into()),
            command: vec!["python3".into(), "agent.py".into()],
            workspace: "/home/user/project".into(),
            profile: "python".into(),
            isolation: Some(Isolation::Namespace),
            runtime: None,
            plan: "2c".repeat(32),
            layers: vec![
                LayerReport {
                    layer: Layer::Seccomp,
                    enforcement: Enforcement::Full,
                },
                LayerReport {
                    layer: Layer::Memory,
                    enforcement: Enforcement::Partial("a watchdog over the cage's total".into()),
                },
            ],
            degraded: Vec::new(),
            shared: vec!["/srv/cache, written, by --write".into()],
            parent: None,
        },
        EventKind::Denied(Denial {
            syscall: "mount".into(),
            program: "python3".into(),
            count: 2,
        }),
        EventKind::Network(Traffic {
            verdict: NetworkVerdict::Allowed,
            host: "api.example.com".into(),
            port: 443,
            protocol: Protocol::Tls,
            address: Some("203.0.113.7".into()),
            rule: Some("*.example.com".into()),
            reason: None,
            request: None,
            status: None,
            connections: 1,
            sent: 0,
            received: 0,
        }),
        EventKind::Network(Traffic {
            verdict: NetworkVerdict::Allowed,
            host: "api.example.com".into(),
            port: 443,
            protocol: Protocol::Https,
            address: Some("203.0.113.7".into()),
            rule: Some("GET api.example.com/v1/**".into()),
            reason: None,
            request: Some("GET /v1/items".into()),
            status: Some(200),
            connections: 1,
            sent: 120,
            received: 800,
        }),
        EventKind::Network(Traffic {
            verdict: NetworkVerdict::Denied,
            host: "other.example".into(),
            port: 53,
            protocol: Protocol::Dns,
            address: None,
            rule: None,
            reason: Some(NetworkReason::HostNotAllowed.into()),
            request: None,
            status: None,
            connections: 1,
            sent: 0,
            received: 0,
        }),
        EventKind::Limit(LimitHit {
            limit: LimitKind::Pids,
            value: "4096".into(),
            ended: false,
            used: None,
        }),
        EventKind::KeyUse(KeyUse {
            agent: KeyAgent::Ssh,
            key: Some("~/.ssh/id_ed25519.pub".into()),
            purpose: Some(KeyPurpose::Login {
                host: "github.com".into(),
                user: "git".into(),
            }),
            verdict: NetworkVerdict::Allowed,
            reason: None,
        }),
        EventKind::Planted {
            paths: vec!["/home/user/project/.envrc".into()],
        },
        EventKind::Exec {
            number: 1,
            command: vec!["git".into(), "status".into()],
            detached: false,
            scope: false,
            plan: None,
        },
        EventKind::ExecExit {
            number: 1,
            ending: Ending::Exited { code: 0 },
            milliseconds: 12,
        },
        EventKind::Lease(Lease {
            number: 1,
            resource: Resource::Path {
                path: "/home/user/data".into(),
                right: Right::Read,
            },
            scope: Scope::Cage,
            term: Term::Milliseconds(600_000),
            uses: None,
            reason: "load the rows".into(),
            origin: LeaseOrigin::Operator,
            approver: Approver::Operator,
        }),
        EventKind::LeaseRefused {
            resource: Resource::Path {
                path: "/home/user/.ssh".into(),
                right: Right::Read,
            },
            origin: LeaseOrigin::Ask,
            reason: LeaseReason::AboveCeiling {
                resource: "read access to /home/user/.ssh".into(),
                section: "files".into(),
            }
            .into(),
            unrecorded: 0,
        },
        EventKind::LeaseEnd {
            number: 1,
            end: LeaseEnd::Revoked,
            cause: LeaseEndCause::TimeUp.into(),
            holders: Vec::new(),
            milliseconds: 600_000,
        },
        EventKind::Question(PermissionRequest {
            number: 1,
            resource: Resource::Path {
                path: "/home/user/results".into(),
                right: Right::Write,
            },
            scope: Scope::Cage,
            term: Term::Milliseconds(600_000),
            uses: None,
            reason: "store the table".into(),
            origin: LeaseOrigin::Ask,
            because: "the ceiling requires approval for write /home/user/results".into(),
            code: Some("approval-required".into()),
            announced: Some("/home/user/results/table.csv".into()),
            command: Some("bash -c 'sort table.csv > /home/user/results/table.csv'".into()),
            group: Some(1),
        }),
        EventKind::QuestionEnd {
            number: 1,
            end: PermissionRequestEnd::Denied,
            reason: "not today".into(),
            asked: 2,
            milliseconds: 8_000,
        },
        EventKind::Intent(IntentRecord {
            tool: "Bash".into(),
            call: Some("toolu_01".into()),
            needs: vec![Resource::Path {
                path: "/home/user/results".into(),
                right: Right::Write,
            }],
            open: false,
            shell: false,
        }),
        EventKind::IntentUnread {
            times: 1,
            reason: SupervisorReason::IntentNotRead {
                error: "an event is too long".into(),
            }
            .into(),
        },
        EventKind::IntentRuin {
            tool: "Bash".into(),
            call: Some("toolu_02".into()),
            path: "/home/user".into(),
            reason: SupervisorReason::IntentRemoves {
                held: "that is the cage's own and goes with it; the host's is not in the cage".into(),
            }
            .into(),
        },
        EventKind::Drift {
            what: "the model called Bash, which says nothing of evil.example, and that was connected to"
                .into(),
            number: 3,
            trust: Trust::Shortened,
        },
        EventKind::QuestionUntold {
            number: 1,
            reason: SupervisorReason::RequestNotTold {
                how: "questions.notify".into(),
                error: "its program ended with status 1".into(),
            }
            .into(),
        },
        EventKind::PeerRefused {
            reason: SupervisorReason::PeerRejected {
                error: "the peer is not in the supervisor's user namespace".into(),
            }
            .into(),
        },
        EventKind::LeftOut {
            what: LeftOut::Message,
            times: 120,
        },
        EventKind::Exit {
            ending: Ending::Exited { code: 0 },
            milliseconds: 1234,
            usage: None,
        },
    ];
    (0..)
        .zip(kinds)
        .map(|(i, kind)| Event {
            time: 1_772_323_200_000_000 + i * 411_000,
            cage: cage.clone(),
            kind,
        })
        .collect()
}

/// The page with the block that follows a mark replaced.
fn with_block(page: &str, mark: &str, block: &str) -> String {
    let (before, rest) = page.split_once(mark).unwrap();
    let open = rest.find("```").unwrap();
    let body = open + rest[open..].find('\n').unwrap() + 1;
    let close = body + rest[body..].find("```").unwrap();
    format!("{before}{mark}{}{block}{}", &rest[..body], &rest[close..])
}

#[test]
fn the_example_is_what_is_written() {
    let state = tempfile::tempdir().unwrap();
    let dir = state.path().join("audit");
    let id: CageId = "c0123456789ab".parse().unwrap();
    let mut log = Log::create(&dir, &id).unwrap();
    for event in events(&id) {
        log.append(&event).unwrap();
    }
    drop(log);
    assert!(matches!(
        verify(&dir, &id).unwrap(),
        Verdict::Intact { lines: 23, .. }
    ));

    let text = |path: PathBuf| std::fs::read_to_string(path).unwrap();
    let found = text(page());
    let wanted = with_block(
        &found,
        "<!-- example: log -->\n",
        &text(log_path(&dir, &id)),
    );
    let wanted = with_block(
        &wanted,
        "<!-- example: head -->\n",
        &text(head_path(&dir, &id)),
    );
    if std::env::var_os("UPDATE").is_some() {
        std::fs::write(page(), &wanted).unwrap();
        return;
    }
    assert_eq!(
        found, wanted,
        "the example is out of date; see this file's head"
    );
}
