//! The programs that belong to `ironcage`: each is found beside it, and one that is not there stops only what needs it.

use ironcage_tests::{Ran, Running, Stage, binary, both, copy_program};
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

const DEADLINE: Duration = Duration::from_secs(120);
const EGRESS: &str = "ironcage-egress";
const INSIDE: &str = "ironcage-inside";
const LAB: &str = "ironcage-lab";

fn install(program: &str, place: &Path) -> PathBuf {
    fs::create_dir_all(place).expect("a directory");
    let to = place.join(program);
    copy_program(&binary().with_file_name(program), &to).expect("a copy");
    to
}

/// `ironcage` alone in a `bin`.
fn alone(stage: &Stage) -> PathBuf {
    install("ironcage", &stage.base().join("usr/bin"))
}

fn run(stage: &Stage, ironcage: &Path, words: &[&str]) -> Ran {
    Running::start(stage.outside(ironcage).args(words)).finish(DEADLINE)
}

/// A cage whose ceiling holds something; the other has none.
const WITH_CEILING: [&str; 4] = ["run", "-q", "--profile", "coding-agent"];

both! {
    fn ironcage_alone_starts_a_cage_that_can_ask_for_nothing(stage) {
        let ironcage = alone(stage);
        let ran = run(stage, &ironcage, &["run", "-q", "--", "/bin/sh", "-c", "echo inside; ls -d /.ironcage"]);
        assert_eq!(ran.stdout(), "inside\n", "{ran:?}");
    }

    fn a_cage_that_can_ask_does_not_start_without_the_program_for_it(stage) {
        let ironcage = alone(stage);
        let command = [&WITH_CEILING[..], &["--", "/.ironcage/bin/ironcage", "--help"]].concat();
        let place = stage.base().join("usr/libexec/ironcage");
        install(EGRESS, &place);
        run(stage, &ironcage, &command).ended(125).says(INSIDE).says(&place.display().to_string());
        // What was made for the start is gone.
        let run_dir = stage.run_dir().join("ironcage");
        let left = fs::read_dir(&run_dir).into_iter().flatten().flatten();
        let left: Vec<PathBuf> = left.map(|entry| entry.path()).filter(|path| path.extension().is_some()).collect();
        assert!(left.is_empty(), "{left:?}");
        install(INSIDE, &place);
        let ran = run(stage, &ironcage, &command).ok();
        for verb in ["ask", "child", "send", "receive"] {
            assert!(ran.stdout().contains(verb), "{ran:?}");
        }
    }

    fn a_cage_with_a_network_does_not_start_without_the_proxy_s_program(stage) {
        let ironcage = alone(stage);
        let echo = ["--", "/bin/echo", "inside"];
        let command = [&["run", "-q", "--allow-host", "a.example"], &echo[..]].concat();
        let place = stage.base().join("usr/libexec/ironcage");
        run(stage, &ironcage, &command).ended(125).says(EGRESS).says(&place.display().to_string());
        install(EGRESS, &place);
        let ran = run(stage, &ironcage, &command).ok();
        assert_eq!(ran.stdout(), "inside\n", "{ran:?}");
        // What stands in its place is executed, and is not taken for it.
        let other = stage.base().join("other/ironcage-egress");
        fs::create_dir_all(other.parent().expect("a directory")).expect("a directory");
        copy_program(Path::new("/bin/false"), &other).expect("a copy");
        let ironcage = install("ironcage", &stage.base().join("other"));
        let ran = run(stage, &ironcage, &command).ended(125);
        assert!(!ran.stdout().contains("inside"), "{ran:?}");
    }

    fn the_proxy_s_program_says_who_starts_it(stage) {
        run(stage, &binary().with_file_name(EGRESS), &[]).ended(2).says("`ironcage run` starts this program");
    }

    fn nothing_of_the_supervisor_is_in_the_cage(stage) {
        let script = "/.ironcage/bin/ironcage run -- true; cmp \"$1\" /.ironcage/bin/ironcage && echo same";
        let ironcage = install("ironcage", &stage.project());
        let inside = install(INSIDE, &stage.project());
        for (program, same) in [(&ironcage, false), (&inside, true)] {
            let program = program.to_string_lossy();
            let command = [&WITH_CEILING[..], &["--", "/bin/sh", "-c", script, "sh", &program]].concat();
            let ran = run(stage, binary(), &command).says("cannot use `ironcage run` here");
            assert_eq!(ran.stdout().contains("same"), same, "{ran:?}");
        }
    }

    fn probe_and_bench_are_carried_out_by_the_program_beside(stage) {
        let ironcage = alone(stage);
        let show = ["probe", "show", "FS-01"];
        run(stage, &ironcage, &show).ended(125).says(LAB).says("install all programs");
        // What needs no other program is said all the same.
        let help = run(stage, &ironcage, &["bench", "start", "--help"]).ok();
        assert!(help.stdout().contains("--runs"), "{help:?}");
        run(stage, &ironcage, &["probe", "--no-such-flag"]).ended(125).says("--no-such-flag");
        install(LAB, &stage.base().join("usr/libexec/ironcage"));
        let shown = run(stage, &ironcage, &show).ok();
        assert!(shown.stdout().starts_with("FS-01 "), "{shown:?}");
    }
}

#[test]
fn a_program_of_a_stranger_s_is_not_executed() {
    let Some(stage) = Stage::new(ironcage_tests::Who::Root) else {
        return;
    };
    let ironcage = alone(&stage);
    let lab = install(LAB, &stage.base().join("usr/bin"));
    let show = ["probe", "show", "FS-01"];
    run(&stage, &ironcage, &show).ok();
    std::os::unix::fs::chown(&lab, Some(12_345), None).expect("another owner");
    run(&stage, &ironcage, &show).ended(125).says("belongs");
}
