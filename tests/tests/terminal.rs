//! A real terminal: programs that draw, keys that are signals, sizes, pastes. tmux is the user's terminal.

use ironcage_tests::{Running, Screen, either, skip, wait_until};
use std::time::Duration;

/// Two children that say every moment that they run; one has a timer that wakes it again and
/// again. Then it stops itself, and everything with it.
const WOKEN: &str = r#"
import ctypes, os, signal, struct, time

def child(name, work):
    if os.fork() == 0:
        work()
        while True:
            with open(name, "a") as file:
                file.write("x")
            time.sleep(0.05)

def arrange():
    # A signal that is ignored does not set the timer again.
    signal.signal(signal.SIGCONT, lambda *_: None)
    libc = ctypes.CDLL(None, use_errno=True)
    event = ctypes.create_string_buffer(struct.pack("qii48x", 0, signal.SIGCONT, 0))
    timer = ctypes.c_void_p()
    assert libc.timer_create(1, event, ctypes.byref(timer)) == 0, "no timer"
    often = ctypes.create_string_buffer(struct.pack("qqqq", 0, 5000000, 0, 5000000))
    assert libc.timer_settime(timer, 0, often, None) == 0, "not set"

child("ticker", arrange)
child("quiet", lambda: None)
while not (os.path.exists("ticker") and os.path.exists("quiet")):
    time.sleep(0.05)
os.kill(os.getpid(), signal.SIGSTOP)
# Whoever only stood goes on.
then = os.path.getsize("quiet")
while os.path.getsize("quiet") == then:
    time.sleep(0.05)
print("\nwent on", flush=True)
"#;

either! {
    fn a_shell_has_a_terminal_of_the_cages_own_and_sees_its_size_change(stage) {
        let Some(screen) = Screen::open(stage) else { return };
        screen.cage("--env PS1='in> ' -- /bin/sh; echo status=$?");
        screen.asks("in>");
        screen.line("tty; stty size");
        screen.shows("/dev/pts/0");
        screen.shows("30 100");
        screen.asks("in>");
        screen.tmux(&["resize-window", "-x", "90", "-y", "20"]);
        screen.line("while [ \"$(stty size)\" != '20 90' ]; do sleep 0.1; done; stty size");
        screen.shows("20 90");
        screen.asks("in>");
        screen.line("exit 7");
        screen.shows("status=7");
    }

    fn without_a_terminal_the_streams_are_pipes(stage) {
        // The allowing arm is above: there `tty` names one.
        assert_eq!(stage.sh("tty || true").ok().stdout(), "not a tty\n");
        let Some(screen) = Screen::open(stage) else { return };
        screen.cage("-T -- /usr/bin/tty");
        screen.shows("not a tty");
    }

    fn who_reads_at_a_terminal_learns_that_the_input_is_at_its_end(stage) {
        let script = "tty; cat; echo ended";
        for flags in [vec!["run", "-q", "-t"], vec!["exec", "-it"]] {
            let cage = (flags[0] == "exec").then(|| {
                let ran = Running::start(&mut stage.ironcage(["run", "-q", "-d"])).finish(Screen::PATIENCE);
                ran.ok().stdout().trim().to_owned()
            });
            let mut command = stage.ironcage(flags.into_iter().chain(cage.as_deref()));
            command.args(["--", "/bin/sh", "-c", script]);
            let input = b"a line\na line that was begun".to_vec();
            let ran = Running::start(&mut command).feed(input, Screen::PATIENCE).ok();
            for said in ["/dev/pts/", "a line that was begun", "ended"] {
                assert!(ran.stdout().contains(said), "{said}: {ran:?}");
            }
            if let Some(cage) = cage {
                Running::start(&mut stage.ironcage(["rm", "--force", &cage])).finish(Screen::PATIENCE).ok();
            }
        }
    }

    fn ctrl_c_reaches_the_command_and_not_the_launcher(stage) {
        let Some(screen) = Screen::open(stage) else { return };
        screen.cage("-- /bin/sh -c 'trap \"echo; echo caught; exit 3\" INT; echo ready; while :; do sleep 0.1; done'");
        screen.shows("ready");
        screen.keys(&["C-c"]);
        screen.shows("caught");
        screen.prompt();
        screen.line("echo status=$?");
        screen.shows("status=3");
    }

    fn ctrl_z_stops_the_job_and_fg_lets_it_go_on(stage) {
        let Some(screen) = Screen::open(stage) else { return };
        // One process: a shell that is just forking with vfork(2) cannot be stopped. Its words are in two parts, so
        // that the command line on the screen, wherever it wraps, does not show them.
        screen.cage(r"--workspace-mode direct -- /usr/bin/perl -e '$|=1; print qq(ready\n); select(undef, undef, undef, 0.1) until -e q(go); print qq(\nwent ), qq(on\n)'");
        screen.shows("ready");
        screen.keys(&["C-z"]);
        let stopped = || screen.text().contains("Stopped");
        assert!(wait_until(Screen::PATIENCE, stopped), "{}", screen.text());
        screen.prompt();
        // The terminal is the host's shell's again, in its own mode.
        screen.line("stty -a | grep -o -e '-*icanon'; touch go");
        screen.shows("icanon");
        assert!(!screen.text().contains("-icanon"), "{}", screen.text());
        assert!(!screen.text().contains("\nwent on"), "it ran while it was stopped");
        screen.line("fg");
        screen.shows("went on");
    }

    fn nothing_in_the_cage_runs_while_its_supervisor_is_stopped(stage) {
        let Some(screen) = Screen::open(stage) else { return };
        let beat = "(while :; do echo x >> beats; sleep 0.1; done) &";
        screen.cage(&format!("--workspace-mode direct -- /bin/sh -c '{beat} sleep 0.5; echo ready; kill -STOP $$; echo on; rm -f beats; sleep 1'"));
        screen.shows("ready");
        let stopped = || screen.text().contains("Stopped");
        assert!(wait_until(Screen::PATIENCE, stopped), "{}", screen.text());
        let beats = || stage.read("beats").map_or(0, |text| text.len());
        let then = beats();
        assert!(then > 0, "it never ran");
        std::thread::sleep(Duration::from_secs(1));
        assert_eq!(beats(), then, "it ran on");
        screen.line("fg");
        screen.shows("on");
        assert!(wait_until(Screen::PATIENCE, || beats() > 0 && beats() != then), "it did not go on");
    }

    fn who_arranged_to_be_woken_does_not_run_on_while_its_supervisor_is_stopped(stage) {
        let Some(screen) = Screen::open(stage) else { return };
        stage.write(stage.project().join("woken.py"), WOKEN);
        screen.cage("--workspace-mode direct -- /usr/bin/python3 woken.py");
        let stopped = || screen.text().contains("Stopped");
        assert!(wait_until(Screen::PATIENCE, stopped), "{}", screen.text());
        screen.prompt();
        // It stands or is ended, though nobody is there to see to it but PID 1.
        let ticks = || stage.read("ticker").map_or(0, |text| text.len());
        let stands = || {
            let then = ticks();
            std::thread::sleep(Duration::from_secs(1));
            ticks() == then
        };
        assert!(wait_until(Screen::PATIENCE, stands), "it runs on");
        assert!(ticks() > 0, "it never ran");
        screen.line("fg");
        screen.shows("went on");
    }

    fn limits_hold_in_the_background_too(stage) {
        let Some(screen) = Screen::open(stage) else { return };
        screen.cage("--workspace-mode direct --time 2s -- /bin/sh -c 'touch began; sleep 60; touch ended'; echo status=$? &");
        assert!(wait_until(Screen::PATIENCE, || stage.project().join("began").exists()), "{}", screen.text());
        let told = || screen.text().contains("status=124");
        assert!(wait_until(Screen::PATIENCE, told), "{}", screen.text());
        assert!(!stage.project().join("ended").exists());
    }

    fn a_stopped_cage_can_be_ended(stage) {
        let Some(screen) = Screen::open(stage) else { return };
        screen.cage("-- /bin/sh -c 'echo ready; exec sleep 60'");
        screen.shows("ready");
        screen.keys(&["C-z"]);
        let stopped = || screen.text().contains("Stopped");
        assert!(wait_until(Screen::PATIENCE, stopped), "{}", screen.text());
        screen.prompt();
        screen.line("kill %1; kill -CONT %1; while kill -0 %1; do sleep 0.2; done 2>/dev/null; echo gone");
        screen.shows("gone");
    }

    fn vim_edits_and_saves(stage) {
        let Some(screen) = Screen::open(stage) else { return };
        if !std::path::Path::new("/usr/bin/vim").exists() {
            skip("vim is not installed");
            return;
        }
        screen.cage("--workspace-mode direct -- /usr/bin/vim -u NONE note.txt");
        screen.shows("~");
        screen.keys(&["i", "written in a cage", "Escape"]);
        screen.line(":wq");
        screen.prompt();
        let saved = || stage.read("note.txt").as_deref() == Some("written in a cage\n");
        assert!(wait_until(Screen::PATIENCE, saved), "{}", screen.text());
    }

    fn htop_draws_the_cages_processes(stage) {
        let Some(screen) = Screen::open(stage) else { return };
        if !std::path::Path::new("/usr/bin/htop").exists() {
            skip("htop is not installed");
            return;
        }
        screen.cage("-- /usr/bin/htop");
        let drawn = || screen.text().contains("Tasks:") && screen.text().contains("Quit");
        assert!(wait_until(Screen::PATIENCE, drawn), "{}", screen.text());
        screen.keys(&["q"]);
        screen.prompt();
        screen.line("echo back");
        screen.shows("back");
    }

    fn a_paste_of_a_megabyte_arrives_whole(stage) {
        let Some(screen) = Screen::open(stage) else { return };
        let paste = "0123456789abcdef".repeat(1 << 16);
        stage.write(stage.project().join("paste"), &paste);
        screen.cage("--workspace-mode direct -- /bin/sh -c 'stty raw -echo; echo ready; head -c 1048576 > got; stty sane; echo; echo done'");
        screen.shows("ready");
        let file = stage.project().join("paste").display().to_string();
        screen.tmux(&["load-buffer", &file]);
        screen.tmux(&["paste-buffer"]);
        screen.shows("done");
        assert!(stage.read("got").as_deref() == Some(paste.as_str()), "the paste was changed");
    }

    fn the_clipboard_is_out_of_reach_unless_it_is_let_through(stage) {
        let Some(screen) = Screen::open(stage) else { return };
        screen.tmux(&["set-option", "-g", "set-clipboard", "on"]);
        let plant = "/usr/bin/printf '\\033]52;c;cGxhbnRlZA==\\007'";
        screen.cage(&format!("-- {plant}; echo first"));
        screen.shows("first");
        let buffers = || screen.tmux(&["list-buffers"]);
        assert!(!buffers().contains("planted"), "{}", buffers());
        // Whatever the other streams are.
        let errors = format!("/bin/sh -c \"{plant} >&2\"");
        for (number, (command, streams)) in [
            (plant, "</dev/null"),
            (plant, "2>/dev/null"),
            (errors.as_str(), "</dev/null"),
            (errors.as_str(), ">/dev/null </dev/null"),
        ]
        .into_iter()
        .enumerate()
        {
            screen.cage(&format!("-- {command} {streams}; echo status{number}=$?"));
            screen.shows(&format!("status{number}=0"));
            assert!(!buffers().contains("planted"), "{streams}: {}", buffers());
        }
        screen.cage(&format!("--raw-terminal -- {plant}"));
        assert!(wait_until(Screen::PATIENCE, || buffers().contains("planted")), "{}", screen.text());
    }

    fn what_exec_brings_to_a_terminal_is_filtered_beside_a_pipe(stage) {
        let Some(screen) = Screen::open(stage) else { return };
        screen.tmux(&["set-option", "-g", "set-clipboard", "on"]);
        let program = ironcage_tests::binary().display().to_string();
        screen.line(&format!("{program} run -q -d --sticky --name filtered -- /bin/true; echo started=$?"));
        screen.shows("started=0");
        screen.prompt();
        let plant = "/usr/bin/printf '\\033]52;c;cGxhbnRlZA==\\007'";
        screen.line(&format!("{program} exec filtered -- {plant} </dev/null; echo status=$?"));
        screen.shows("status=0");
        let buffers = || screen.tmux(&["list-buffers"]);
        assert!(!buffers().contains("planted"), "{}", buffers());
        screen.line(&format!("{program} exec --raw-terminal filtered -- {plant} </dev/null; echo status=$?"));
        assert!(wait_until(Screen::PATIENCE, || buffers().contains("planted")), "{}", screen.text());
        screen.line(&format!("{program} stop filtered; echo stopped=$?"));
        screen.shows("stopped=0");
    }
}
