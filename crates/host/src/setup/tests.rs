//! Planning against made-up hosts.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use super::*;

fn facts() -> SetupFacts {
    SetupFacts {
        binary: "/usr/bin/ironcage".into(),
        apparmor_restricts: true,
        systemd_and_cgroup2: true,
        user: Some("ann".into()),
        files: BTreeMap::from([
            ("/etc/subuid".into(), "bob:100000:65536\n".into()),
            ("/etc/subgid".into(), String::new()),
        ]),
        ..SetupFacts::default()
    }
}

/// The host after the actions.
fn after(mut facts: SetupFacts, actions: &[Action]) -> SetupFacts {
    for action in actions {
        match action {
            Action::Write { path, content, .. } => {
                facts.files.insert(path.clone(), content.clone());
            }
            Action::Remove { path } => {
                facts.files.remove(path);
            }
            Action::Run { .. } => {}
        }
    }
    facts
}

#[test]
fn what_is_missing_is_done_once_and_undone_to_the_byte() {
    let before = facts();
    let actions = plan(&before).unwrap();
    let done = after(before.clone(), &actions);
    assert!(done.files[Path::new(PROFILE)].contains("profile ironcage /usr/bin/ironcage "));
    assert!(done.files[Path::new(DELEGATION)].contains("Delegate=cpu"));
    assert_eq!(
        done.files[Path::new("/etc/subuid")],
        "bob:100000:65536\nann:165536:65536\n"
    );
    assert_eq!(done.files[Path::new("/etc/subgid")], "ann:100000:65536\n");
    assert_eq!(
        plan(&done).unwrap(),
        [],
        "a second time there is nothing to do"
    );
    let undone = after(done.clone(), &undo(&done));
    assert_eq!(undone.files, before.files);
    assert_eq!(undo(&undone), []);
}

#[test]
fn undo_leaves_what_others_wrote_meanwhile() {
    let before = facts();
    let mut done = after(before.clone(), &plan(&before).unwrap());
    let text = done.files.get_mut(Path::new("/etc/subuid")).unwrap();
    text.push_str("eve:300000:65536\n");
    let undone = after(done.clone(), &undo(&done));
    assert_eq!(
        undone.files[Path::new("/etc/subuid")],
        "bob:100000:65536\neve:300000:65536\n"
    );
}

#[test]
fn nothing_is_done_where_nothing_is_missing() {
    let plain = SetupFacts {
        apparmor_restricts: false,
        systemd_and_cgroup2: false,
        user: None,
        ..facts()
    };
    assert_eq!(plan(&plain).unwrap(), []);
    let served = SetupFacts {
        files: BTreeMap::from(SUBORDINATE.map(|path| (path.into(), "ann:1:2\n".into()))),
        apparmor_restricts: false,
        systemd_and_cgroup2: false,
        ..facts()
    };
    assert_eq!(plan(&served).unwrap(), []);
}

#[test]
fn a_program_that_others_can_replace_gets_nothing() {
    let refused = |facts: SetupFacts| plan(&facts).unwrap_err().to_string();
    let error = refused(SetupFacts {
        changeable: Some("/usr/local".into()),
        ..facts()
    });
    assert!(error.contains("/usr/local"), "{error}");
    for binary in [
        "/opt/a b/ironcage",
        "/opt/**/ironcage",
        "/opt/{a,b}",
        "bin/ironcage",
    ] {
        let error = refused(SetupFacts {
            binary: binary.into(),
            ..facts()
        });
        assert!(error.contains("plain path"), "{error}");
    }
    for user in ["", "-ann", "ann:0:1\nroot"] {
        let error = refused(SetupFacts {
            user: Some(user.into()),
            ..facts()
        });
        assert!(error.contains("invalid user name"), "{error}");
    }
}

#[test]
fn a_range_is_free_of_every_other() {
    assert_eq!(free(""), Some(100_000));
    assert_eq!(free("a:100000:65536\nb:165536:10"), Some(165_546));
    assert_eq!(free("a:120000:65536"), Some(185_536), "no room before it");
    assert_eq!(free("a:165536:65536"), Some(100_000), "room before it");
    assert_eq!(free("a:1000:1\ngarbage\nb:x:y"), Some(100_000));
    assert_eq!(free(&format!("a:100000:{}", 1_u64 << 40)), None);
}
