//! `ironcage setup` on a made-up host: shows first, does once, undoes to the byte, refuses what others can change.

use ironcage_tests::{Ran, Running, Stage, Who, tree};
use std::fs;
use std::os::unix::fs::chown;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// A host that lacks everything, below a directory of root's.
fn host(stage: &Stage) -> PathBuf {
    let root = stage.base().join("host");
    for directory in [
        "usr/bin",
        "proc/sys/kernel",
        "run/systemd/system",
        "sys/fs/cgroup",
        "etc",
    ] {
        fs::create_dir_all(root.join(directory)).expect("a directory");
    }
    for (file, content) in [
        ("usr/bin/ironcage", "#!"),
        (
            "proc/sys/kernel/apparmor_restrict_unprivileged_userns",
            "1\n",
        ),
        ("sys/fs/cgroup/cgroup.controllers", "cpu memory pids\n"),
        ("etc/subuid", "bob:100000:65536\n"),
        ("etc/passwd", "ann:x:1000:1000::/home/ann:/bin/sh\n"),
    ] {
        fs::write(root.join(file), content).expect("a file");
    }
    root
}

fn setup(stage: &Stage, root: &Path, flags: &[&str]) -> Ran {
    let root = root.to_string_lossy().into_owned();
    let mut args = vec![
        "setup",
        "--root",
        &root,
        "--binary",
        "/usr/bin/ironcage",
        "--user",
        "ann",
    ];
    args.extend(flags);
    Running::start(&mut stage.ironcage(args)).finish(Duration::from_secs(60))
}

#[test]
fn a_host_is_set_up_once_and_as_shown_and_undone() {
    let Some(stage) = Stage::new(Who::Root) else {
        return;
    };
    let root = host(&stage);
    let before = tree(&root);
    let shown = setup(&stage, &root, &["--dry-run"]).ok().stdout();
    assert_eq!(tree(&root), before, "a dry run changes nothing");
    for part in [
        "write /etc/apparmor.d/ironcage",
        "profile ironcage /usr/bin/ironcage",
        "Delegate=cpu",
        "ann:165536:65536",
        "apparmor_parser -r",
    ] {
        assert!(shown.contains(part), "{part} is not in {shown}");
    }
    // Nobody to ask, and nobody said yes.
    setup(&stage, &root, &[])
        .failed("confirmation-needed")
        .says("--yes");
    assert_eq!(tree(&root), before);
    setup(&stage, &root, &["--yes"]).ok();
    let subuid = fs::read_to_string(root.join("etc/subuid")).expect("subuid");
    assert_eq!(subuid, "bob:100000:65536\nann:165536:65536\n");
    assert!(
        root.join("etc/systemd/system/user@.service.d/50-ironcage.conf")
            .is_file()
    );
    assert_eq!(
        setup(&stage, &root, &["--yes"]).ok().stdout(),
        "Nothing to do.\n"
    );
    setup(&stage, &root, &["--undo", "--yes"]).ok();
    assert_eq!(
        fs::read_to_string(root.join("etc/subuid")).expect("subuid"),
        "bob:100000:65536\n"
    );
    assert!(!root.join("etc/apparmor.d/ironcage").exists());
    assert_eq!(
        setup(&stage, &root, &["--undo", "--yes"]).ok().stdout(),
        "Nothing to do.\n"
    );
}

#[test]
fn a_program_that_others_can_replace_is_refused() {
    let Some(stage) = Stage::new(Who::Root) else {
        return;
    };
    let root = host(&stage);
    setup(&stage, &root, &["--dry-run"]).ok();
    chown(root.join("usr"), Some(1000), None).expect("another owner");
    setup(&stage, &root, &["--yes"])
        .ended(125)
        .says("/usr")
        .says("only root can write");
    assert!(!root.join("etc/apparmor.d/ironcage").exists());
}

#[test]
fn a_user_may_look_and_not_touch() {
    let Some(stage) = Stage::new(Who::User) else {
        return;
    };
    let ran = Running::start(&mut stage.ironcage([
        "setup",
        "--yes",
        "--binary",
        "/usr/bin/env",
        "--user",
        "nobody",
    ]))
    .finish(Duration::from_secs(60));
    ran.failed("not-root");
}

#[test]
fn ids_are_given_only_to_users_that_are_there() {
    let Some(stage) = Stage::new(Who::Root) else {
        return;
    };
    let root = host(&stage);
    setup(&stage, &root, &["--dry-run"]).ok();
    fs::write(root.join("etc/passwd"), "annabel:x:1000:1000::/:/bin/sh\n").expect("a file");
    let before = tree(&root);
    setup(&stage, &root, &["--yes"])
        .ended(125)
        .says("cannot set up user ann: no such user");
    assert_eq!(tree(&root), before);
    // What is not there any more can still be taken away.
    setup(&stage, &root, &["--undo", "--yes"]).ok();
    // On the host itself, whoever keeps its names.
    let here = |user: &str| {
        let flags = ["setup", "--dry-run", "--binary", "/usr/bin/env", "--user"];
        let mut command = stage.ironcage(flags.into_iter().chain([user]));
        Running::start(&mut command).finish(Duration::from_secs(60))
    };
    here("nobody").ok();
    here("ironcage-nobody-has-this-name")
        .ended(125)
        .says("no such user");
}
