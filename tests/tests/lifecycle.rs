//! A cage ends whole: with its command, with its launcher, whatever runs in it.

use ironcage_tests::{DIRECT, Running, Stage, both, processes_with, wait_until};
use rustix::process::Signal;
use std::path::Path;
use std::time::Duration;

const MINUTE: Duration = Duration::from_secs(60);

/// A word that stands in no other command line: the stage's own directory has a random name.
fn marker(stage: &Stage) -> String {
    let name = stage.base().file_name().expect("a name").to_string_lossy();
    format!("marked-{name}")
}

/// Writes `beat` again and again, from a process that has left its session and its parent.
fn heart(marker: &str) -> String {
    format!(
        "setsid setsid -f /bin/sh -c 'while :; do echo beat >> beat; sleep 0.05; done' {marker}"
    )
}

fn length(path: &Path) -> u64 {
    std::fs::metadata(path).map_or(0, |metadata| metadata.len())
}

fn stops(path: &Path) {
    let before = length(path);
    std::thread::sleep(Duration::from_millis(500));
    assert_eq!(before, length(path), "{} still grows", path.display());
}

/// Starts a cage with two processes in it, ends the launcher with the signal, and waits for both to be gone.
fn dies_with_its_launcher(stage: &Stage, signal: Signal) {
    let marker = marker(stage);
    let script = format!("{}; exec sleep 600 ", heart(&marker));
    let cage = Running::start(&mut stage.cage(&DIRECT, &["/bin/sh", "-c", &script, &marker]));
    let beat = stage.project().join("beat");
    assert!(
        wait_until(MINUTE, || length(&beat) > 20),
        "the heart never beat"
    );
    assert!(
        !processes_with(&marker).is_empty(),
        "the marker marks nothing"
    );
    cage.signal(signal);
    let gone = wait_until(MINUTE, || {
        processes_with(&marker).iter().all(|pid| *pid == cage.pid())
    });
    assert!(gone, "still there: {:?}", processes_with(&marker));
    stops(&beat);
}

both! {
    fn killing_the_launcher_kills_everything(stage) {
        dies_with_its_launcher(stage, Signal::KILL);
    }

    fn stopping_the_launcher_by_sigterm_ends_everything(stage) {
        dies_with_its_launcher(stage, Signal::TERM);
    }

    fn a_daemonised_child_dies_with_the_command(stage) {
        let marker = marker(stage);
        let script = format!("{}; while ! [ -s beat ]; do sleep 0.01; done; echo done", heart(&marker));
        // The child holds the output open; the end of the command is the end of the cage all the same.
        let ran = stage.sh_direct(&script).ok();
        assert_eq!(ran.stdout(), "done\n");
        assert!(wait_until(MINUTE, || processes_with(&marker).is_empty()), "{:?}", processes_with(&marker));
        stops(&stage.project().join("beat"));
    }

    fn a_cage_cannot_outlive_its_command_by_ignoring_signals(stage) {
        let marker = marker(stage);
        let script = format!(
            "setsid -f /bin/sh -c 'trap \"\" TERM INT HUP; echo $$ > beat; while :; do sleep 1; done' {marker}; while ! [ -s beat ]; do sleep 0.01; done"
        );
        stage.sh(&script).ok();
        assert!(wait_until(MINUTE, || processes_with(&marker).is_empty()), "{:?}", processes_with(&marker));
    }

    fn zombies_are_reaped_inside(stage) {
        let script = "
            for i in 1 2 3 4 5 6 7 8 9 10; do (setsid -f true); done
            sleep 0.5
            cat /proc/[0-9]*/stat | cut -d' ' -f3 | grep -c Z || true
        ";
        assert_eq!(stage.sh(script).ok().stdout(), "0\n");
    }
}
