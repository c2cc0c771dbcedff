//! The prompt on the terminal of an interactive run: it comes by its key while a question waits, and
//! nothing in the cage can draw on it or answer it.

use ironcage_tests::{Running, Screen, Stage, either, skip, wait_until};
use std::time::Duration;

const PATIENCE: Duration = Duration::from_secs(60);
const ASK: &str = "/.ironcage/bin/ironcage ask";

/// A policy whose ceiling gives `data` and `more` after asking; what is in `data` is a file.
fn policy(stage: &Stage) -> String {
    stage.write(stage.aside().join("data/file"), "asked for\n");
    stage.write(stage.aside().join("more/file"), "more\n");
    let path = stage.base().join("asking.toml");
    let at = |name: &str| stage.aside().join(name).display().to_string();
    let text = format!(
        "[ceiling.ask.files]\nread = [\"{}\", \"{}\"]\n",
        at("data"),
        at("more")
    );
    stage.write(&path, text);
    path.display().to_string()
}

/// What is to be seen, without what went past.
fn seen(screen: &Screen<'_>) -> String {
    screen.tmux(&["capture-pane", "-p"])
}

#[track_caller]
fn sees(screen: &Screen<'_>, wanted: &str) {
    let shown = wait_until(PATIENCE, || seen(screen).contains(wanted));
    assert!(shown, "no {wanted:?} on the screen:\n{}", seen(screen));
}

/// Presses one key as a person does who has read the screen.
fn presses(screen: &Screen<'_>, key: &str) {
    std::thread::sleep(Duration::from_millis(600));
    screen.keys(&[key]);
}

#[track_caller]
fn outside(stage: &Stage, args: &[&str]) -> String {
    Running::start(&mut stage.ironcage(args))
        .finish(PATIENCE)
        .stdout()
}

#[track_caller]
fn until_asked(stage: &Stage, what: &str) {
    let asked = || outside(stage, &["request", "list"]).contains(what);
    assert!(wait_until(PATIENCE, asked), "nobody was asked for {what}");
}

either! {
    fn a_question_is_answered_by_its_key_and_nothing_of_the_cage_is_on_the_prompt(stage) {
        let Some(screen) = Screen::open(stage) else { return };
        let policy = policy(stage);
        let data = stage.aside().join("data");
        screen.cage(&format!("--policy {policy} --env PS1='in> ' --env D={} -- /bin/sh", data.display()));
        screen.asks("in>");
        // Without a question the key is the shell's.
        screen.keys(&["C-^"]);
        screen.line("; echo quiet-$((40+2))");
        screen.shows("quiet-42");
        screen.asks("in>");
        screen.line(&format!("{ASK} --read $D --reason 'for a test'; echo status-$?"));
        screen.shows("status-2");
        // The last row tells of it and of the key, whatever is drawn and cleared above it.
        sees(&screen, "press ctrl-^ to answer");
        screen.line("clear; stty size");
        sees(&screen, "29 100");
        sees(&screen, "press ctrl-^ to answer");
        let shown = seen(&screen);
        let row = shown.lines().position(|line| line.contains("press ctrl-^"));
        assert_eq!(row, Some(29), "{shown}");
        // Somebody in the cage draws all the time, and would answer if he could.
        screen.line("(while sleep 0.05; do printf 'a\\rNOISE\\r\\n'; done) & noise=$!");
        screen.shows("NOISE");
        screen.keys(&["C-^"]);
        sees(&screen, "ironcage: question 1 (1 of 1)");
        sees(&screen, "for a test");
        // Enter alone is no answer, and nothing of the cage's comes through.
        screen.keys(&["Enter"]);
        for _ in 0..20 {
            // Being drawn anew, it may be seen half; never with anything of the cage's.
            let now = seen(&screen);
            assert!(!now.contains("NOISE"), "{now}");
            std::thread::sleep(Duration::from_millis(20));
        }
        sees(&screen, "ironcage: question 1 (1 of 1)");
        assert!(outside(stage, &["request", "list"]).contains("/1 "));
        // Pasted, it is not an answer, and neither is the key that comes right behind.
        screen.keys(&["aaaa"]);
        screen.keys(&["a"]);
        sees(&screen, "came too early");
        assert!(outside(stage, &["request", "list"]).contains("/1 "));
        presses(&screen, "a");
        let answered = || outside(stage, &["request", "list"]).starts_with("no pending");
        assert!(wait_until(PATIENCE, answered), "{}", seen(&screen));
        sees(&screen, "NOISE");
        screen.line("kill $noise; wait; clear; cat $D/file; echo after");
        sees(&screen, "asked for\nafter");
        assert!(!seen(&screen).contains("press ctrl-^"), "{}", seen(&screen));
        screen.line("clear; stty size");
        sees(&screen, "30 100");
        screen.line("exit");
        screen.prompt();
    }

    fn a_full_screen_program_is_as_it_was_when_the_prompt_is_gone(stage) {
        if !std::path::Path::new("/usr/bin/vim.tiny").exists() {
            return skip("vim is not installed");
        }
        let Some(screen) = Screen::open(stage) else { return };
        let policy = policy(stage);
        stage.write(stage.project().join("text"), "the first line\nthe second line\n");
        screen.cage(&format!("--policy {policy} --name edited -- /usr/bin/vim.tiny -u NONE text"));
        sees(&screen, "the second line");
        let more = stage.aside().join("more").display().to_string();
        let ask = ["exec", "edited", "--", "/.ironcage/bin/ironcage", "ask", "--read", &more];
        outside(stage, &ask);
        until_asked(stage, &more);
        sees(&screen, "press ctrl-^ to answer");
        sees(&screen, "the second line");
        screen.keys(&["C-^"]);
        sees(&screen, "ironcage: question 1 (1 of 1)");
        let now = seen(&screen);
        assert!(!now.contains("the second line"), "{now}");
        presses(&screen, "d");
        sees(&screen, "the second line");
        assert!(!seen(&screen).contains("ironcage: question"), "{}", seen(&screen));
        // It works on: what is typed goes to it again.
        screen.keys(&["o", "typed after it"]);
        sees(&screen, "typed after it");
        screen.keys(&["Escape"]);
        screen.keys(&[":wq", "Enter"]);
        screen.prompt();
        let record = outside(stage, &["audit", "show", "edited"]);
        assert!(record.contains("request 1: denied"), "{record}");
    }

    fn a_question_that_is_answered_elsewhere_takes_its_prompt_along(stage) {
        let Some(screen) = Screen::open(stage) else { return };
        let policy = policy(stage);
        let at = |name: &str| stage.aside().join(name).display().to_string();
        screen.cage(&format!("--policy {policy} --name shelled --env PS1='in> ' -- /bin/sh"));
        screen.asks("in>");
        screen.line(&format!("{ASK} --read {}; {ASK} --read {}; echo status-$?", at("data"), at("more")));
        screen.shows("status-2");
        screen.keys(&["C-^"]);
        sees(&screen, "question 1 (1 of 2)");
        screen.keys(&["n"]);
        sees(&screen, "question 2 (2 of 2)");
        outside(stage, &["deny", "shelled/2"]);
        sees(&screen, "question 1 (1 of 1)");
        screen.keys(&["q"]);
        sees(&screen, "in>");
        sees(&screen, "press ctrl-^ to answer");
        screen.keys(&["C-^"]);
        sees(&screen, "question 1 (1 of 1)");
        // The end of the cage is the end of the prompt.
        outside(stage, &["stop", "shelled"]);
        screen.prompt();
    }

    fn always_is_one_key_and_holds_in_the_next_run(stage) {
        let Some(screen) = Screen::open(stage) else { return };
        let policy = policy(stage);
        let at = |name: &str| stage.aside().join(name).display().to_string();
        screen.cage(&format!("--policy {policy} --env PS1='in> ' -- /bin/sh"));
        screen.asks("in>");
        screen.line(&format!("{ASK} --read {} --wait 100; echo status-$?", at("data")));
        sees(&screen, "press ctrl-^ to answer");
        screen.keys(&["C-^"]);
        sees(&screen, "w always");
        presses(&screen, "w");
        screen.shows("status-0");
        screen.line("exit");
        screen.prompt();
        let config = stage.base().join("config/ironcage/config.toml");
        let written = std::fs::read_to_string(&config).unwrap_or_default();
        assert!(written.contains("[ceiling.always.files]") && written.contains(&at("data")), "{written}");
        // The next run is not asked; what was not approved still is.
        let ask = |name: &str| {
            let args = ["run", "-q", "--policy", &policy, "--", "/.ironcage/bin/ironcage", "ask", "--read"];
            let args: Vec<&str> = args.into_iter().collect();
            let path = at(name);
            let args = [&args[..], &[path.as_str()]].concat();
            Running::start(&mut stage.ironcage(args)).finish(PATIENCE).code()
        };
        assert_eq!((ask("data"), ask("more")), (0, 2));
    }

    fn all_that_one_command_needs_is_one_prompt_with_one_key(stage) {
        let Some(screen) = Screen::open(stage) else { return };
        let policy = policy(stage);
        let at = |name: &str| stage.aside().join(name).display().to_string();
        screen.cage(&format!("--policy {policy} --shell scoped --name shelled --env PS1='in> ' -- /bin/sh"));
        screen.asks("in>");
        let command = format!("cat {}/file {}/file", at("data"), at("more"));
        screen.line(&format!("bash -c '{command}'; echo status-$?"));
        sees(&screen, "asks for 2 things for one command");
        let listed = outside(stage, &["request", "list"]);
        for part in ["shelled/1 ", "2 things for one command", "data", "more", "command given by the agent"] {
            assert!(listed.contains(part), "{part}: {listed}");
        }
        assert!(!listed.contains("shelled/2"), "{listed}");
        screen.keys(&["C-^"]);
        sees(&screen, "question 1 (1 of 1)");
        for part in ["1. read", "2. read", "data", "more", "cat ", "o once (this command)", "a this run"] {
            sees(&screen, part);
        }
        presses(&screen, "a");
        sees(&screen, "asked for\nmore\nstatus-0");
        // For this run: the same is not asked again. A command that needs less is not either.
        screen.line(&format!("clear; bash -c '{command}'; bash -c 'cat {}/file'; echo again-$?", at("more")));
        sees(&screen, "asked for\nmore\nmore\nagain-0");
        // The cage itself has nothing of it.
        screen.line(&format!("clear; cat {}/file; echo cage-$?", at("data")));
        sees(&screen, "cage-1");
        screen.line("exit");
        screen.prompt();
        let record = outside(stage, &["audit", "show", "shelled"]);
        for said in ["request 1: approved", "request 2: approved", "command: "] {
            assert!(record.contains(said), "{said}: {record}");
        }
        assert!(!record.contains("request 3"), "{record}");
    }

    fn one_answer_denies_all_that_a_command_needs_and_once_is_for_one_command(stage) {
        let policy = policy(stage);
        let at = |name: &str| stage.aside().join(name).display().to_string();
        let mut run = stage.ironcage(["run", "-q", "-d", "--name", "grouped", "--shell", "scoped", "--policy"]);
        Running::start(run.arg(&policy)).finish(PATIENCE).ok();
        let script = format!("$SHELL -c 'cat {}/file {}/file'", at("data"), at("more"));
        let exec = |script: &str| Running::start(&mut stage.ironcage(["exec", "grouped", "--", "/bin/sh", "-c", script]));
        for (number, answer) in [(1, vec!["approve", "--once", "grouped/2"]), (3, vec!["deny", "grouped/3"])] {
            let waits = exec(&script);
            until_asked(stage, &format!("grouped/{number} "));
            let said = Running::start(&mut stage.ironcage(&answer)).finish(PATIENCE).ok().stdout();
            assert!(said.contains("answered with it"), "{said}");
            let ran = waits.finish(PATIENCE);
            match number {
                1 => assert_eq!(ran.ok().stdout(), "asked for\nmore\n"),
                _ => assert_eq!(ran.code(), 126, "{ran:?}"),
            }
            assert!(outside(stage, &["request", "list"]).starts_with("no pending"));
        }
        // What was denied is not asked again with something else, and nobody is asked for the rest.
        let ran = exec(&script).finish(PATIENCE);
        assert_eq!(ran.code(), 126, "{ran:?}");
        assert!(outside(stage, &["request", "list"]).starts_with("no pending"));
        outside(stage, &["rm", "--force", "grouped"]);
    }

    fn ctrl_c_ends_a_command_that_waits_for_an_answer(stage) {
        let Some(screen) = Screen::open(stage) else { return };
        let policy = policy(stage);
        let data = stage.aside().join("data").display().to_string();
        screen.cage(&format!("--policy {policy} --env PS1='in> ' -- /bin/sh"));
        screen.asks("in>");
        screen.line(&format!("{ASK} --read {data} --wait 1000; echo ended-$?"));
        sees(&screen, "press ctrl-^ to answer");
        screen.keys(&["C-c"]);
        screen.line("echo free-$((40+2))");
        sees(&screen, "free-42");
        screen.line("exit");
        screen.prompt();
    }
}
