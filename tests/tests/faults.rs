//! A start that is killed at any step leaves nothing behind, and never runs the command uncaged.
//!
//! Debug builds die at the step that `IRONCAGE_FAULT` names: one stands before and after each operation, in the
//! launcher and in PID 1. The test kills at every one, until a start gets through. It takes an
//! exclusive turn because it looks at the whole host.

use ironcage_tests::{Exit, Host, Running, Stage, Who, exclusive, tree, wait_until};
use std::time::Duration;

/// More steps than any start has.
const MANY: u32 = 2000;

/// What the command writes when it runs: the namespaces and locks it runs in.
const PROOF: &str = "cd \"$0\"; for kind in user mnt pid net ipc uts cgroup; do readlink /proc/self/ns/$kind; done > proof; \
     grep -E '^(NoNewPrivs|Seccomp|CapBnd):' /proc/self/status >> proof; cat proof";

/// Why the proof is not one of a cage, if it is not.
fn uncaged(proof: &str) -> Option<String> {
    for kind in ["user", "mnt", "pid", "net", "ipc", "uts", "cgroup"] {
        let host = std::fs::read_link(format!("/proc/self/ns/{kind}")).expect("a namespace");
        if proof.contains(&*host.to_string_lossy()) {
            return Some(format!("it ran in the host's {kind} namespace"));
        }
    }
    let locks = ["NoNewPrivs:\t1", "Seccomp:\t2", "CapBnd:\t0000000000000000"];
    // The command may have been killed while it wrote.
    let complete = proof.contains("Seccomp:");
    let missing = locks
        .iter()
        .find(|lock| complete && !proof.contains(**lock));
    missing.map(|lock| format!("it ran without {lock}"))
}

fn killed_at_every_step(who: Who) {
    let _turn = exclusive();
    let Some(stage) = Stage::new(who) else {
        return;
    };
    // The allowing arm: without a fault the command runs, and what it writes is a proof.
    // In a directory that is given as it is, beside the copy-on-write workspace: it outlives what is killed.
    let place = stage.aside().display().to_string();
    let given = format!("{place}:direct");
    let flags = ["-q", "-w", &given];
    let command = ["/bin/sh", "-c", PROOF, &place];
    let ran = stage.run(&flags, &command).ok();
    assert_eq!(uncaged(&ran.stdout()), None, "{ran:?}");
    assert!(uncaged("NoNewPrivs:\t0\nSeccomp:\t0\n").is_some());

    let before = Host::now();
    let runtime = tree(&stage.run_dir());
    let mut steps = 0;
    for step in 0..MANY {
        let _ = std::fs::remove_file(stage.aside().join("proof"));
        let mut command = stage.cage(&flags, &command);
        command.env("IRONCAGE_FAULT", step.to_string());
        let ran = Running::start(&mut command).finish(Duration::from_secs(60));
        if let Ok(proof) = std::fs::read_to_string(stage.aside().join("proof"))
            && let Some(why) = uncaged(&proof)
        {
            panic!("killed at step {step}, the command ran uncaged: {why}\n{proof}");
        }
        steps = step;
        match ran.exit {
            Exit::Code(0) => break,
            // The launcher was killed, or said that the start failed, or saw a cage that was killed after its start.
            Exit::Signal(9) | Exit::Code(125 | 137) => {}
            other => panic!("killed at step {step}, the start ended with {other:?}: {ran:?}"),
        }
    }
    assert!(steps > 20, "only {steps} steps: is this a debug build?");
    assert!(steps < MANY - 1, "no start got through");
    // A launcher that is killed cannot remove its own cgroup; `ps` does, and the end of the next
    // cage where the launcher was killed late enough to leave a socket.
    Running::start(&mut stage.ironcage(["ps"]))
        .finish(Duration::from_secs(60))
        .ok();
    let mut left = Vec::new();
    wait_until(Duration::from_secs(30), || {
        left = Host::left_since(&before, steps as usize);
        left.is_empty()
    });
    assert!(left.is_empty(), "left behind: {left:#?}");
    assert_eq!(
        tree(&stage.run_dir()),
        runtime,
        "files in the runtime directory"
    );
}

#[test]
fn a_start_killed_at_any_step_leaves_nothing_as_root() {
    killed_at_every_step(Who::Root);
}

#[test]
fn a_start_killed_at_any_step_leaves_nothing_as_user() {
    killed_at_every_step(Who::User);
}
