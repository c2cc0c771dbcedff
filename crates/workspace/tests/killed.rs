//! An apply that is killed at any step is completed by the next command, and loses nothing.
//!
//! Debug builds die at the step that `IRONCAGE_FAULT` names. The test kills at every one, until
//! an apply gets through.
#![allow(clippy::expect_used)]

mod bed;

use bed::Bed;
use ironcage_workspace::{ApplyOptions, Change, Selection, Store};
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};

const STATE: &str = "IRONCAGE_KILLED_STATE";
const WORKSPACE: &str = "IRONCAGE_KILLED_WORKSPACE";
/// More steps than the apply has.
const MANY: u32 = 500;

const HOST: &str = "echo base >edit; echo base >late; echo b >gone; mkdir -p dir/sub full; echo x >dir/x; echo y >dir/sub/y; echo z >full/z; echo t >type; ln -s edit link; git init -q -b main; git add .; \
     git -c user.name=a -c user.email=a@b commit -qm first; git branch old";
const AGENT: &str = "echo agent >edit; echo agent >late; rm gone; rm -r dir; mkdir -p dir/new; echo n >dir/new/n; echo e >dir/.envrc; rm -r full; \
     rm type; mkdir type; echo i >type/inside; ln -sfn other link; echo 1 >one; ln one two; mkdir closed; echo c >closed/c; chmod 711 closed; \
     git add one; git -c user.name=a -c user.email=a@b commit -qm second; git branch -D old; echo evil >.git/hooks/pre-commit";
const PICTURE: &str = "git fsck --strict; git log --format='%s %D'; git status --porcelain; find .git -name '*lock*'; \
     find . -path ./.git -prune -o -path ./late -prune -o -printf '%p %y %m %n %l\\n' | sort; find . -path ./.git -prune -o -type f ! -name late -print | sort | xargs cat";

/// The apply that is killed. Only as a part of the tests below.
#[test]
fn apply_and_die() {
    let (Some(state), Some(workspace)) = (std::env::var_os(STATE), std::env::var_os(WORKSPACE))
    else {
        return;
    };
    let store = Store::open(&PathBuf::from(state));
    let workspace = PathBuf::from(workspace);
    let change = store
        .pending(&workspace)
        .expect("a store")
        .expect("a change");
    store
        .apply(&change, &Selection::everything(), &ApplyOptions::default())
        .expect("applied");
}

fn apply_in_a_process(bed: &Bed, fault: u32) -> ExitStatus {
    Command::new(std::env::current_exe().expect("this program"))
        .args(["--exact", "apply_and_die", "--test-threads=1"])
        .env(STATE, bed.base.path().join("state"))
        .env(WORKSPACE, &bed.workspace)
        .env("IRONCAGE_FAULT", fault.to_string())
        .output()
        .expect("it starts")
        .status
}

fn was_killed(status: ExitStatus) -> bool {
    assert!(status.success() || status.signal() == Some(9), "{status:?}");
    !status.success()
}

/// Kills at every step; after each, `then` looks at what is left and at what completes it.
fn kill_at_every_step(then: impl Fn(&Bed, u32)) {
    let mut steps = 0;
    let first = Bed::new();
    first.host(HOST);
    let made = first.changed_by(AGENT);
    for step in 0..MANY {
        let bed = copy_of(&first, &made);
        steps = step;
        let killed = was_killed(apply_in_a_process(&bed, step));
        then(&bed, step);
        if !killed {
            break;
        }
    }
    assert!(steps > 40, "only {steps} steps: is this a debug build?");
    assert!(steps < MANY - 1, "no apply got through");
}

/// The same workspace and the same change once more: faster than to make them.
fn copy_of(first: &Bed, made: &Change) -> Bed {
    let bed = Bed::new();
    let copy = |from: &Path, to: &Path| {
        let done = Command::new("cp")
            .arg("-a")
            .arg(from.join("."))
            .arg(to)
            .status();
        assert!(done.expect("cp").success());
    };
    copy(&first.workspace, &bed.workspace);
    let change = bed.begin();
    copy(&made.layers()[0].upper, &change.layers()[0].upper);
    bed
}

fn without_faults() -> String {
    let bed = Bed::new();
    bed.host(HOST);
    let change = bed.changed_by(AGENT);
    bed.store
        .apply(&change, &Selection::everything(), &ApplyOptions::default())
        .expect("applied");
    bed.say(PICTURE)
}

#[test]
fn killed_at_any_step_and_done_again_it_is_the_same() {
    let expected = without_faults();
    assert!(
        expected.contains("./two f") && expected.contains("second HEAD -> main"),
        "{expected}"
    );
    kill_at_every_step(|bed, step| {
        let change = bed
            .store
            .pending(&bed.workspace)
            .expect("a store")
            .expect("withheld files keep it");
        bed.store
            .apply(&change, &Selection::everything(), &ApplyOptions::default())
            .unwrap_or_else(|error| panic!("killed at step {step}: {error}"));
        assert_eq!(bed.say(PICTURE), expected, "killed at step {step}");
        assert_eq!(
            bed.read("late").as_deref(),
            Some("agent\n"),
            "killed at step {step}"
        );
        bed.agent(
            &change,
            "test -f dir/.envrc; test -f dir/new/n; test ! -e dir/x",
        );
    });
}

#[test]
fn what_the_host_wrote_after_the_kill_stays_and_so_does_the_agents() {
    kill_at_every_step(|bed, step| {
        let landed = bed.read("late").as_deref() == Some("agent\n");
        bed.host("echo host >late.new; mv late.new late");
        let change = bed
            .store
            .pending(&bed.workspace)
            .expect("a store")
            .expect("withheld files keep it");
        let applied = bed
            .store
            .apply(&change, &Selection::everything(), &ApplyOptions::default())
            .unwrap_or_else(|error| panic!("killed at step {step}: {error}"));
        assert_eq!(
            bed.read("late").as_deref(),
            Some("host\n"),
            "killed at step {step}"
        );
        if !landed {
            assert!(
                applied.conflicts.iter().any(|path| path.ends_with("late")),
                "killed at step {step}: {applied:?}"
            );
            bed.agent(&change, "grep -q agent late");
        }
    });
}
