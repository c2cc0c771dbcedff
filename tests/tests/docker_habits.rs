//! What a user of Docker types: it works, or the answer names the flag that does.

use ironcage_tests::{Ran, Running, Screen, Stage, either, wait_until};
use std::time::Duration;

const PATIENCE: Duration = Duration::from_secs(60);

#[track_caller]
fn ironcage(stage: &Stage, args: &[&str]) -> Ran {
    Running::start(&mut stage.ironcage(args)).finish(PATIENCE)
}

either! {
    fn a_command_without_dashes_keeps_its_own_flags(stage) {
        let ran = ironcage(stage, &["run", "-q", "printf", "%s|", "-q", "--", "-e"]).ok();
        assert_eq!(ran.stdout(), "-q|--|-e|");
        let ran = ironcage(stage, &["run", "-i", "--rm", "-q", "-e", "STAGE=test", "sh", "-c", "echo $STAGE"]).ok();
        assert_eq!(ran.stdout(), "test\n");
        let id = ironcage(stage, &["run", "-q", "-d", "--name", "box"]).ok().stdout();
        let ran = ironcage(stage, &["exec", "-e", "STAGE=live", "box", "sh", "-c", "echo $STAGE"]).ok();
        assert_eq!(ran.stdout(), "live\n");
        ironcage(stage, &["rm", "--force", id.trim()]).ok();
    }

    fn an_image_in_the_place_of_the_program_is_answered_with_its_flag(stage) {
        for (words, image) in [
            (&["ubuntu:22.04", "bash"][..], Some("ubuntu:22.04")),
            (&["ubuntu", "sh"], Some("ubuntu")),
            (&["no-such-program", "no-such-argument"], None),
        ] {
            let ran = ironcage(stage, &[&["run", "--"], words].concat());
            assert_eq!(ran.code(), 127, "{ran:?}");
            let hint = |image| format!("`ironcage run --image {image} -- COMMAND`");
            assert_eq!(ran.stderr.contains("--image"), image.is_some(), "{ran:?}");
            assert!(image.is_none_or(|image| ran.stderr.contains(&hint(image))), "{ran:?}");
        }
    }

    fn what_docker_calls_otherwise_is_answered_with_the_flag_that_works(stage) {
        stage.write(stage.aside().join("file"), "from aside\n");
        let aside = stage.aside().display().to_string();
        let inside = format!("{aside}/file");
        let volume = format!("{aside}:/data:ro");
        ironcage(stage, &["run", "-v", &volume, "cat", "/data/file"]).ended(125)
            .says(&format!("`-r {aside}`")).says("not /data");
        // What the answer names, typed.
        let ran = ironcage(stage, &["run", "-q", "-r", &aside, "cat", &inside]).ok();
        assert_eq!(ran.stdout(), "from aside\n");
        ironcage(stage, &["run", "-w", "/no/such/place", "pwd"]).ended(125).says("--cwd");
        ironcage(stage, &["run", "--mount", "/tmp", "pwd"]).ended(125).says("`-r PATH`");
        assert_eq!(ironcage(stage, &["run", "-q", "--workdir", "/tmp", "pwd"]).ok().stdout(), "/tmp\n");
        assert_eq!(ironcage(stage, &["run", "-q", "-u", "1234:56", "sh", "-c", "id -u; id -g"]).ok().stdout(), "1234\n56\n");
        assert_eq!(ironcage(stage, &["run", "-q", "-u", "root", "id", "-u"]).ok().stdout(), "0\n");
        // Users of the host have no names in a cage.
        ironcage(stage, &["run", "-q", "-u", "daemon", "id"]).ended(125).says("--user UID:GID");
        ironcage(stage, &["run", "-q", "--cwd", &stage.project().display().to_string(), "pwd"]).ok();
        ironcage(stage, &["run", "--network", "none", "true"]).ended(125).says("--network off");
        ironcage(stage, &["run", "-q", "--network", "off", "true"]).ok();
    }

    fn rm_leaves_nothing_of_a_background_cage(stage) {
        let listed = |id: &str| ironcage(stage, &["ps", "-a"]).ok().stdout().contains(id);
        let kept = ironcage(stage, &["run", "-q", "-d", "true"]).ok().stdout();
        let removed = ironcage(stage, &["run", "-q", "-d", "--rm", "true"]).ok().stdout();
        assert!(wait_until(PATIENCE, || !listed(removed.trim())), "it is still listed");
        assert!(listed(kept.trim()), "the other one is gone, too");
        ironcage(stage, &["rm", "--all"]).ok();
    }

    fn exec_has_a_terminal_at_a_terminal_and_run_alone_is_a_shell(stage) {
        let Some(screen) = Screen::open(stage) else { return };
        let id = ironcage(stage, &["run", "-q", "-d"]).ok().stdout();
        let id = id.trim();
        let program = ironcage_tests::binary().display().to_string();
        screen.line(&format!("{program} exec -e PS1='in> ' {id} -- /bin/sh; echo status=$?"));
        screen.asks("in>");
        screen.line("tty; stty size");
        screen.shows("/dev/pts/");
        screen.shows("30 100");
        screen.line("exit 5");
        screen.shows("status=5");
        screen.line(&format!("{program} exec -T {id} tty; echo pipes=$?"));
        screen.shows("pipes=1");
        ironcage(stage, &["rm", "--force", id]).ok();
        screen.prompt();
        screen.line(&format!("SHELL=/bin/sh {program} run -q -it -e PS1='caged> '; echo ended=$?"));
        screen.asks("caged>");
        screen.line("echo in-$((40+2)); exit 6");
        screen.shows("in-42");
        screen.shows("ended=6");
    }
}
