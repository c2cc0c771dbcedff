//! Every cage leaves a record that cannot be changed unseen, and `why` explains it.

use ironcage_tests::{Ran, Running, Stage, both, either, tree};
use rustix::process::Signal;
use std::io::Read as _;
use std::path::PathBuf;
use std::time::Duration;

#[track_caller]
fn ironcage(stage: &Stage, args: &[&str]) -> Ran {
    Running::start(&mut stage.ironcage(args)).finish(Duration::from_secs(60))
}

/// The one log of this stage.
fn log(stage: &Stage) -> PathBuf {
    let mut logs: Vec<PathBuf> = tree(&stage.state())
        .into_iter()
        .filter(|path| {
            path.extension()
                .is_some_and(|extension| extension == "jsonl")
        })
        .collect();
    assert_eq!(logs.len(), 1, "{logs:?}");
    logs.remove(0)
}

/// Each tries what every profile refuses, by the named system call.
const REFUSED: &[(&str, &str)] = &[
    ("unshare", "unshare -U true"),
    ("mount", "mount -t tmpfs none /tmp"),
    (
        "keyctl",
        "/usr/bin/python3 -c 'import ctypes, sys; sys.exit(ctypes.CDLL(None).syscall(250, 0, 0) == -1)'",
    ),
];

/// Below a filter that has a listener already, as below WSL2's init.
fn with_listener(stage: &Stage, args: &[&str]) -> Ran {
    let wrapper = stage.base().join("with_listener.py");
    stage.write(&wrapper, include_str!("../fixtures/with_listener.py"));
    let mut command = stage.outside("/usr/bin/python3");
    command
        .arg(&wrapper)
        .arg(ironcage_tests::binary())
        .args(args);
    Running::start(&mut command).finish(Duration::from_secs(60))
}

both! {
    fn below_another_listener_a_start_needs_consent_and_denials_are_not_reported(stage) {
        let unshare = ["--", "/bin/sh", "-c", "unshare -U true"];
        let doctor = with_listener(stage, &["doctor"]).ended(1);
        assert!(doctor.stdout().contains("--allow-degraded seccomp"), "{}", doctor.stdout());
        assert!(!doctor.stdout().contains("has every layer"), "{}", doctor.stdout());
        let refused = with_listener(stage, &[&["run", "-q"][..], &unshare].concat()).ended(125);
        assert!(refused.stderr.contains("--allow-degraded seccomp"), "{}", refused.stderr);
        let flags = ["run", "-q", "--allow-degraded", "seccomp"];
        with_listener(stage, &[&flags[..], &["--", "true"]].concat()).ok();
        // The filter holds, and nobody hears of it.
        let held = with_listener(stage, &[&flags[..], &unshare].concat());
        assert_ne!(held.code(), 0);
        let why = ironcage(stage, &["why"]).stdout();
        assert!(!why.contains("denied: unshare"), "{why}");
        let plan = with_listener(stage, &["plan", "--all", "--allow-degraded", "seccomp", "--", "true"]).ok();
        assert!(plan.stdout().contains("denials cannot be reported"), "{}", plan.stdout());
        // Without that filter around it, all of it is there.
        ironcage(stage, &["doctor"]).ok();
        stage.sh("unshare -U true");
        assert!(ironcage(stage, &["why"]).ok().stdout().contains("denied: unshare"));
    }
}

either! {
    fn a_run_is_recorded_from_start_to_exit(stage) {
        stage.sh("exit 3").ended(3);
        let text = std::fs::read_to_string(log(stage)).expect("the log");
        let events: Vec<serde_json::Value> =
            text.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
        assert!(events.len() >= 2, "{text}");
        assert!(events[0].to_string().contains("exit 3"), "the first record has the command: {text}");
        let shown = ironcage(stage, &["audit", "show"]).ok();
        assert!(shown.stdout().contains("exit 3"), "{shown:?}");
        ironcage(stage, &["audit", "verify"]).ok();
    }

    fn old_records_go_and_a_running_cage_keeps_its_own(stage) {
        stage.sh("true").ok();
        stage.sh("true").ok();
        let mut running = Running::start(&mut stage.cage(&[], &["/bin/sh", "-c", "echo up; sleep 60"]));
        let mut said = [0; 3];
        running.stdout().read_exact(&mut said).expect("a sign that it runs");
        ironcage(stage, &["audit", "prune", "--keep", "0", "--dry-run"]).ok();
        // Nobody is there to be asked, and a bare number could mean anything.
        ironcage(stage, &["audit", "prune", "--keep", "0"]).failed("confirmation-needed").says("--yes");
        ironcage(stage, &["audit", "prune", "--older-than", "30", "--yes"]).ended(125).says("for example 12h or 30d");
        let told = ironcage(stage, &["audit", "prune", "--keep", "0", "--yes"]).ok();
        assert!(told.stdout().contains("its cage is running") && told.stdout().contains("removed 2, 1 stay"), "{told:?}");
        ironcage(stage, &["audit", "verify", "--all"]).ok();
        assert!(log(stage).exists());
        running.signal(Signal::KILL);
        running.finish(Duration::from_secs(60));
    }

    fn without_a_record_nothing_runs(stage) {
        stage.sh_direct("echo > first").ok();
        assert!(stage.read("first").is_some());
        let audit = log(stage).parent().expect("a directory").to_owned();
        std::fs::remove_dir_all(&audit).expect("the records");
        std::fs::write(&audit, "").expect("something in the way");
        stage.sh_direct("echo > second").ended(125).denied("start-no-audit-log");
        assert!(stage.read("second").is_none());
    }

    fn a_changed_record_is_found(stage) {
        stage.sh("exit 3").ended(3);
        let log = log(stage);
        let whole = std::fs::read_to_string(&log).expect("the log");
        let lines: Vec<&str> = whole.lines().collect();
        let changed = [
            whole.replacen("exit 3", "exit 0", 1),
            lines[1..].join("\n") + "\n",
            lines[..lines.len() - 1].join("\n") + "\n",
            whole.trim_end().to_owned(),
            format!("{}\n{whole}", lines[lines.len() - 1]),
            String::new(),
        ];
        for text in changed {
            std::fs::write(&log, &text).expect("the log");
            ironcage(stage, &["audit", "verify"]).ended(1);
        }
        std::fs::write(&log, &whole).expect("the log");
        ironcage(stage, &["audit", "verify"]).ok();
    }

    fn the_record_of_a_killed_launcher_has_an_unproven_tail(stage) {
        let mut cage = Running::start(&mut stage.cage(&[], &["/bin/sh", "-c", "echo up; exec sleep 600"]));
        let mut up = [0; 3];
        std::io::Read::read_exact(&mut cage.stdout(), &mut up).expect("a start");
        cage.signal(Signal::KILL);
        drop(cage);
        let ran = ironcage(stage, &["audit", "verify"]).ended(1);
        assert!(format!("{}{}", ran.stdout(), ran.stderr).contains("unproven"), "{ran:?}");
    }

    fn the_record_is_out_of_the_cages_reach(stage) {
        stage.sh(&format!("! test -e {}", stage.state().display())).ok();
        let state = stage.state();
        let granted = stage.sh_with(&["-w", state.to_str().unwrap()], "true");
        assert_eq!(granted.code(), 125, "{granted:?}");
    }

    fn a_refused_system_call_is_recorded_and_explained(stage) {
        for (call, attempt) in REFUSED {
            assert_ne!(stage.sh(attempt).code(), 0, "{attempt}");
            let why = ironcage(stage, &["why"]).ok();
            assert!(why.stdout().contains(&format!("denied: {call}, once")), "{attempt}: {why:?}");
            assert!(why.stdout().contains("to allow it"), "{why:?}");
        }
    }

    fn an_allowed_call_is_not_recorded(stage) {
        stage.sh("echo nothing refused").ok();
        let why = ironcage(stage, &["why"]).ok();
        assert!(!why.stdout().contains("denied:"), "{why:?}");
    }

    fn a_flood_of_refused_calls_is_coalesced(stage) {
        let script = "
import ctypes
libc = ctypes.CDLL(None)
for _ in range(20000): libc.mount(b'none', b'/tmp', b'tmpfs', 0, None)
print('done')
";
        let ran = stage.run(&[], &["/usr/bin/python3", "-c", script]).ok();
        assert_eq!(ran.stdout(), "done\n");
        let length = std::fs::metadata(log(stage)).expect("the log").len();
        assert!(length < 1 << 20, "20,000 refused calls made a log of {length} bytes");
    }

    fn control_characters_of_the_cage_are_shown_escaped(stage) {
        stage.run(&[], &["/bin/echo", "\u{1b}]0;title\u{7}"]).ok();
        for args in [&["audit", "show"][..], &["audit", "show", "--json"], &["why"], &["audit", "list"]] {
            let ran = ironcage(stage, args).ok();
            assert!(!ran.bytes.contains(&0x1b) && !ran.bytes.contains(&7), "{args:?}: {ran:?}");
        }
    }
}
