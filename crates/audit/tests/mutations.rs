//! Whatever is done to a finished log, `verify` finds it; what nothing was done to verifies.
//!
//! Each property starts from a log that the writer wrote, proves that it is intact (the
//! allowing arm), changes it in one way and demands a finding.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use ironcage_audit::{
    Error, Finding, Log, Reader, Unproven, Verdict, head_path, log_path, read, verify,
};
use ironcage_model::{
    CageId, Denial, Ending, Enforcement, Event, EventKind, Isolation, Layer, LayerReport, LimitHit,
    LimitKind, Reason, StartCode,
};
use proptest::prelude::*;
use proptest::test_runner::TestCaseError;
use std::path::{Path, PathBuf};

fn id() -> CageId {
    CageId::from_entropy([7; 12])
}

fn start() -> impl Strategy<Value = EventKind> {
    let words = prop::collection::vec(any::<String>(), 0..4);
    (words, any::<String>(), any::<Option<String>>()).prop_map(|(command, workspace, name)| {
        EventKind::Start {
            name,
            command,
            workspace,
            profile: "shell".into(),
            isolation: Some(Isolation::Landlock),
            runtime: None,
            plan: "ab".repeat(32),
            layers: vec![
                LayerReport {
                    layer: Layer::Seccomp,
                    enforcement: Enforcement::Full,
                },
                LayerReport {
                    layer: Layer::Memory,
                    enforcement: Enforcement::Partial("a watchdog".into()),
                },
            ],
            degraded: vec!["memory".into()],
            shared: Vec::new(),
            parent: None,
        }
    })
}

fn middle() -> impl Strategy<Value = EventKind> {
    let denied =
        (any::<String>(), any::<String>(), any::<u64>()).prop_map(|(syscall, program, count)| {
            EventKind::Denied(Denial {
                syscall,
                program,
                count,
            })
        });
    let limit = any::<String>().prop_map(|value| {
        EventKind::Limit(LimitHit {
            limit: LimitKind::Pids,
            value,
            ended: false,
            used: None,
        })
    });
    prop_oneof![denied, limit]
}

fn exit() -> impl Strategy<Value = EventKind> {
    let hit = LimitHit {
        limit: LimitKind::Time,
        value: "30s".into(),
        ended: true,
        used: None,
    };
    let ending = prop_oneof![
        any::<u8>().prop_map(|code| Ending::Exited { code }),
        any::<i32>().prop_map(|signal| Ending::Signalled { signal }),
        Just(Ending::Stopped),
        Just(Ending::Unobserved),
        any::<i32>().prop_map(|errno| Ending::NotExecuted { errno }),
        any::<String>().prop_map(|text| Ending::Failed {
            reason: Reason::Start {
                code: StartCode::Timeout,
                text
            }
        }),
        Just(Ending::Limit { hit }),
    ];
    (ending, any::<u64>()).prop_map(|(ending, milliseconds)| EventKind::Exit {
        ending,
        milliseconds,
        usage: None,
    })
}

/// A start, some denials and limits, an exit.
fn events() -> impl Strategy<Value = Vec<Event>> {
    let middle = prop::collection::vec(middle(), 0..6);
    (start(), middle, exit(), any::<u64>()).prop_map(|(start, middle, exit, time)| {
        std::iter::once(start)
            .chain(middle)
            .chain(std::iter::once(exit))
            .map(|kind| Event {
                time,
                cage: id(),
                kind,
            })
            .collect()
    })
}

/// A finished, intact log in a directory of its own.
struct Written {
    dir: PathBuf,
    text: Vec<u8>,
    _state: tempfile::TempDir,
}

impl Written {
    fn new(events: &[Event]) -> Self {
        let state = tempfile::tempdir().unwrap();
        let dir = state.path().join("audit");
        let mut log = Log::create(&dir, &id()).unwrap();
        for event in events {
            log.append(event).unwrap();
        }
        drop(log);
        let intact = Verdict::Intact {
            lines: events.len() as u64,
            running: false,
        };
        assert_eq!(verify(&dir, &id()).unwrap(), intact);
        let text = std::fs::read(log_path(&dir, &id())).unwrap();
        Written {
            dir,
            text,
            _state: state,
        }
    }

    fn lines(&self) -> Vec<Vec<u8>> {
        self.text
            .split_inclusive(|&b| b == b'\n')
            .map(<[u8]>::to_vec)
            .collect()
    }

    /// The verdict on this text in place of the log's.
    fn verdict(&self, text: &[u8]) -> Verdict {
        std::fs::write(log_path(&self.dir, &id()), text).unwrap();
        verify(&self.dir, &id()).unwrap()
    }

    fn found(&self, text: &[u8]) -> Result<(), TestCaseError> {
        let verdict = self.verdict(text);
        prop_assert!(
            matches!(verdict, Verdict::Broken(_)),
            "{verdict:?} for {}",
            String::from_utf8_lossy(text)
        );
        // And the way back: the finding was about the change, not about the place.
        let restored = self.verdict(&self.text);
        prop_assert!(matches!(restored, Verdict::Intact { .. }), "{restored:?}");
        Ok(())
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn what_was_written_is_what_is_read(events in events()) {
        let log = Written::new(&events);
        let read: Vec<Event> = read(&log_path(&log.dir, &id()))
            .unwrap()
            .into_iter()
            .map(|record| record.event)
            .collect();
        prop_assert_eq!(read, events);
    }

    #[test]
    fn a_changed_byte_is_found(events in events(), at in any::<prop::sample::Index>(), mask in 1u8..) {
        let log = Written::new(&events);
        let mut text = log.text.clone();
        let at = at.index(text.len());
        text[at] ^= mask;
        log.found(&text)?;
    }

    #[test]
    fn a_missing_line_is_found(events in events(), at in any::<prop::sample::Index>()) {
        let log = Written::new(&events);
        let mut lines = log.lines();
        lines.remove(at.index(lines.len()));
        log.found(&lines.concat())?;
    }

    #[test]
    fn lines_in_another_order_are_found(
        events in events(),
        one in any::<prop::sample::Index>(),
        other in any::<prop::sample::Index>(),
    ) {
        let log = Written::new(&events);
        let mut lines = log.lines();
        let one = one.index(lines.len());
        let other = (one + 1 + other.index(lines.len() - 1)) % lines.len();
        lines.swap(one, other);
        log.found(&lines.concat())?;
    }

    #[test]
    fn a_doubled_line_is_found(
        events in events(),
        from in any::<prop::sample::Index>(),
        to in any::<prop::sample::Index>(),
    ) {
        let log = Written::new(&events);
        let mut lines = log.lines();
        let line = lines[from.index(lines.len())].clone();
        lines.insert(to.index(lines.len() + 1), line);
        log.found(&lines.concat())?;
    }

    #[test]
    fn an_end_cut_at_any_byte_is_found(events in events(), at in any::<prop::sample::Index>()) {
        let log = Written::new(&events);
        log.found(&log.text[..at.index(log.text.len())])?;
    }

    #[test]
    fn inserted_bytes_are_found(
        events in events(),
        at in any::<prop::sample::Index>(),
        bytes in prop::collection::vec(any::<u8>(), 1..200),
    ) {
        let log = Written::new(&events);
        let mut text = log.text.clone();
        let at = at.index(text.len() + 1);
        text.splice(at..at, bytes);
        log.found(&text)?;
    }

    #[test]
    fn another_history_with_a_right_chain_is_found(real in events(), forged in events()) {
        prop_assume!(real != forged);
        let log = Written::new(&real);
        let forged = Written::new(&forged);
        log.found(&forged.text)?;
    }

    #[test]
    fn a_changed_head_is_found(events in events(), at in 0usize..86, mask in 1u8..) {
        let log = Written::new(&events);
        let path = head_path(&log.dir, &id());
        let mut head = std::fs::read(&path).unwrap();
        head[at] ^= mask;
        std::fs::write(&path, head).unwrap();
        let verdict = verify(&log.dir, &id()).unwrap();
        prop_assert!(matches!(verdict, Verdict::Broken(_)), "{:?}", verdict);
    }

    #[test]
    fn any_bytes_at_all_are_read_without_a_panic(bytes in prop::collection::vec(any::<u8>(), 0..4096)) {
        let lines = bytes.split(|&b| b == b'\n').filter(|line| !line.is_empty()).count();
        let items = Reader::new(&bytes[..], Path::new("any")).collect::<Vec<_>>();
        prop_assert!(items.len() >= lines);
        for item in items {
            let damaged = matches!(item, Err(Error::Damaged { .. }));
            prop_assert!(damaged);
        }
    }

    #[test]
    fn any_json_in_the_form_of_a_line_is_read_without_a_panic(
        seq in any::<u64>(),
        body in "[ -~]{0,300}",
        hex in "[0-9a-f]{64}",
    ) {
        let line = format!("{{\"seq\":{seq},\"prev\":\"{hex}\",{body},\"hash\":\"{hex}\"}}\n");
        let log = Written::new(&finished());
        prop_assert!(matches!(log.verdict(line.as_bytes()), Verdict::Broken(_)));
    }
}

fn finished() -> Vec<Event> {
    let exit = EventKind::Exit {
        ending: Ending::Exited { code: 0 },
        milliseconds: 3,
        usage: None,
    };
    let denied = EventKind::Denied(Denial {
        syscall: "mount".into(),
        program: "sh".into(),
        count: 2,
    });
    [denied, exit]
        .map(|kind| Event {
            time: 1,
            cage: id(),
            kind,
        })
        .to_vec()
}

#[test]
fn without_a_head_the_tail_is_unproven() {
    let log = Written::new(&finished());
    std::fs::remove_file(head_path(&log.dir, &id())).unwrap();
    assert_eq!(
        verify(&log.dir, &id()).unwrap(),
        Verdict::TailUnproven(Unproven::NoHead)
    );
}

#[test]
fn a_line_that_the_head_does_not_know_is_unproven_and_two_are_broken() {
    let events = finished();
    let log = Written::new(&events);
    // The head as it was before the last line, and before both.
    let shorter = Written::with_head_of(&events[..1]);
    std::fs::write(head_path(&log.dir, &id()), shorter).unwrap();
    assert_eq!(
        verify(&log.dir, &id()).unwrap(),
        Verdict::TailUnproven(Unproven::PastHead)
    );
    std::fs::write(head_path(&log.dir, &id()), b"").unwrap();
    let Verdict::Broken(fault) = verify(&log.dir, &id()).unwrap() else {
        panic!("two lines without a head must be found")
    };
    assert_eq!(fault.what, Finding::PastHead { head_lines: 0 });
}

impl Written {
    /// The head that a log of these events has.
    fn with_head_of(events: &[Event]) -> Vec<u8> {
        let state = tempfile::tempdir().unwrap();
        let dir = state.path().join("audit");
        let mut log = Log::create(&dir, &id()).unwrap();
        for event in events {
            log.append(event).unwrap();
        }
        std::fs::read(head_path(&dir, &id())).unwrap()
    }
}

#[test]
fn a_log_that_is_gone_is_found_by_its_head() {
    let log = Written::new(&finished());
    std::fs::remove_file(log_path(&log.dir, &id())).unwrap();
    let Verdict::Broken(fault) = verify(&log.dir, &id()).unwrap() else {
        panic!("a missing log must be found")
    };
    assert_eq!(fault.what, Finding::Gone { head_lines: 2 });
    std::fs::remove_file(head_path(&log.dir, &id())).unwrap();
    assert!(matches!(
        verify(&log.dir, &id()),
        Err(Error::NoSuchCage { .. })
    ));
}

#[test]
fn a_link_in_the_place_of_a_log_or_head_is_found() {
    let log = Written::new(&finished());
    for path in [head_path(&log.dir, &id()), log_path(&log.dir, &id())] {
        let moved = path.with_extension("moved");
        std::fs::rename(&path, &moved).unwrap();
        std::os::unix::fs::symlink(&moved, &path).unwrap();
        let verdict = verify(&log.dir, &id()).unwrap();
        assert!(matches!(verdict, Verdict::Broken(_)), "{verdict:?}");
        std::fs::rename(&moved, &path).unwrap();
        let verdict = verify(&log.dir, &id()).unwrap();
        assert!(matches!(verdict, Verdict::Intact { .. }), "{verdict:?}");
    }
}

#[test]
fn the_log_of_another_cage_under_this_name_is_found() {
    let log = Written::new(&finished());
    let other = CageId::from_entropy([8; 12]);
    std::fs::rename(log_path(&log.dir, &id()), log_path(&log.dir, &other)).unwrap();
    std::fs::rename(head_path(&log.dir, &id()), head_path(&log.dir, &other)).unwrap();
    let Verdict::Broken(fault) = verify(&log.dir, &other).unwrap() else {
        panic!("a renamed log must be found")
    };
    assert_eq!((fault.line, fault.what), (1, Finding::Unchained));
}

#[test]
fn the_findings_name_the_line() {
    let log = Written::new(&finished());
    let lines = log.lines();
    let fault = |text: &[u8]| match log.verdict(text) {
        Verdict::Broken(fault) => fault,
        other => panic!("{other:?}"),
    };
    let changed = String::from_utf8(log.text.clone())
        .unwrap()
        .replace("mount", "mkdir");
    let changed = fault(changed.as_bytes());
    assert_eq!((changed.line, changed.what), (1, Finding::Changed));
    let missing = fault(&lines[1]);
    let what = Finding::OutOfOrder {
        expected: 1,
        found: 2,
    };
    assert_eq!((missing.line, missing.what), (1, what));
    let cut = fault(&lines[0]);
    assert_eq!((cut.line, cut.what), (1, Finding::Cut { head_lines: 2 }));
}
