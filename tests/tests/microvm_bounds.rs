//! Bounds of a guest, and its end at the worst moment: what it takes too much of ends inside, and a VMM, a file server, a
//! monitor or a supervisor that is killed leaves nothing.

use crate::microvm::{DEADLINE, Guest, finish, set_up};
use ironcage_tests::{Exit, Running, Stage, Who, either, only_in_full, processes_with, wait_until};
use std::fs;
use std::io::Read as _;
use std::path::PathBuf;

/// Parts of a running machine, by how their command lines begin.
const PARTS: [&str; 3] = [
    "/usr/bin/qemu-system-x86_64 ",
    "/.ironcage/vm/ironcage-vmm files",
    "/.ironcage/vm/ironcage-vmm monitor",
];

/// The process namespace of a process: one for each cage.
fn namespace(pid: u32) -> Option<PathBuf> {
    fs::read_link(format!("/proc/{pid}/ns/pid")).ok()
}

/// Processes of the machine whose command has this word among its arguments.
fn machine(word: &str) -> Vec<(u32, String)> {
    let clients = processes_with(word).into_iter();
    let mut clients = clients.filter(|pid| line(*pid).contains("ironcage-vmm client"));
    let Some(cage) = clients.next().and_then(namespace) else {
        return Vec::new();
    };
    let same = processes_with("")
        .into_iter()
        .filter(|pid| namespace(*pid).as_ref() == Some(&cage));
    same.map(|pid| (pid, line(pid))).collect()
}

fn line(pid: u32) -> String {
    let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    String::from_utf8_lossy(&line).replace('\0', " ")
}

fn kill(pid: u32) {
    let pid = rustix::process::Pid::from_raw(pid.cast_signed()).expect("a process id");
    // It may have ended with another one.
    let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
}

/// Waits for the first word of a command in a guest.
#[track_caller]
fn await_up(running: &mut Running) {
    let mut word = [0; 3];
    running
        .stdout()
        .read_exact(&mut word)
        .expect("the guest is up");
    assert_eq!(&word, b"up\n");
}

/// Starts a machine of this name whose command runs until it is killed.
fn start(stage: &Stage, word: &str, name: &str) -> Running {
    let script = format!("echo up; exec sleep 1000 # {word}");
    let flags = ["--isolation", "microvm", "--memory", "400M", "--name", name];
    Running::start(&mut stage.cage(&flags, &["/bin/sh", "-c", &script]))
}

/// That nothing of machines is left, neither processes nor cages of this name in the list.
#[track_caller]
fn nothing_is_left(stage: &Stage, word: &str, name: &str) {
    let gone = || processes_with(word).is_empty();
    assert!(
        wait_until(DEADLINE, gone),
        "{name}: {:?}",
        processes_with(word)
    );
    let ps = || finish(&mut stage.ironcage(["ps"])).ok().stdout();
    assert!(
        wait_until(DEADLINE, || !ps().contains(name)),
        "{name}: {}",
        ps()
    );
}

either! {
    fn what_a_guest_takes_too_much_of_ends_in_the_guest(stage) {
        if !set_up(stage) {
            return;
        }
        let guest = Guest::start(stage, &["--memory", "800M", "--pids", "120"]);
        // Its own kernel ends what needs too much memory, and the guest goes on.
        let greedy = "held = []\nwhile True: held.append(bytearray(16 << 20))";
        let ran = finish(&mut stage.ironcage(["exec", "guest", "--", "/usr/bin/python3", "-c", greedy]));
        assert_ne!(ran.code(), 0, "{ran:?}");
        guest.exec("true").ok();
        // So does what it starts too much of.
        let many = "import os, time\nmade = 0\ntry:\n\
            \x20   while made < 1000:\n\
            \x20       if os.fork() == 0: time.sleep(1000)\n\
            \x20       made += 1\n\
            except OSError as error: print(error.errno, made)\n\
            os.killpg(0, 9)";
        let script = format!("setsid -w /usr/bin/python3 -uc '{many}'; true");
        let said = guest.exec(&script).ok().stdout();
        let words: Vec<u32> = said.split_whitespace().map(|word| word.parse().expect("a number")).collect();
        assert!(matches!(words[..], [11, made] if made < 120), "{said}");
        guest.exec("true").ok();
        // A flood of output arrives whole: a reader holds its writer up.
        let mut flood = stage.ironcage(["exec", "guest", "--", "/usr/bin/head", "-c", "8000000", "/dev/zero"]);
        assert_eq!(finish(&mut flood).ok().bytes.len(), 8_000_000);
        let log = guest.ironcage(&["audit", "show", "last"]);
        assert!(!log.stdout().contains("ended for"), "{log:?}");
    }

    fn a_part_of_a_machine_that_is_killed_takes_the_rest_along(stage) {
        if !set_up(stage) {
            return;
        }
        let word = |name: &str| format!("{name}-{}", stage.base().display());
        for (index, part) in PARTS.into_iter().enumerate() {
            let name = format!("killed-{index}");
            let mut running = start(stage, &word(&name), &name);
            await_up(&mut running);
            assert!(finish(&mut stage.ironcage(["ps"])).ok().stdout().contains(&name));
            let parts = machine(&word(&name));
            let victim = parts.iter().find(|(_, line)| line.starts_with(part));
            let (pid, _) = victim.unwrap_or_else(|| panic!("no {part} in {parts:?}"));
            kill(*pid);
            running.finish(DEADLINE).ended(125).says("cannot run /bin/sh in the guest");
            nothing_is_left(stage, &word(&name), &name);
        }
        let name = "killed-supervisor";
        let mut running = start(stage, &word(name), name);
        await_up(&mut running);
        kill(running.pid());
        let ran = running.finish(DEADLINE);
        assert_ne!(ran.exit, Exit::Code(0), "{ran:?}");
        nothing_is_left(stage, &word(name), name);
        // What was killed is in nobody's way.
        finish(&mut stage.cage(&["--isolation", "microvm"], &["true"])).ok();
    }
}

#[test]
fn twenty_guests_at_once_and_parts_killed_at_random_leave_nothing() {
    if !only_in_full() {
        return;
    }
    for who in [Who::Root, Who::User] {
        let Some(stage) = Stage::new(who) else {
            return;
        };
        if !set_up(&stage) {
            return;
        }
        let name = |index: usize| format!("twenty-{index}");
        let word = |index: usize| format!("{}-{}", name(index), stage.base().display());
        let mut all: Vec<Running> = (0..20)
            .map(|index| start(&stage, &word(index), &name(index)))
            .collect();
        all.iter_mut().for_each(await_up);
        // Each loses another part, some of them the supervisor.
        for (index, running) in all.iter().enumerate() {
            let parts = machine(&word(index));
            let part = PARTS.get(index % 4);
            let victim = parts
                .iter()
                .find(|(_, line)| part.is_some_and(|part| line.starts_with(part)));
            kill(victim.map_or(running.pid(), |(pid, _)| *pid));
        }
        for running in all.drain(..) {
            assert_ne!(running.finish(DEADLINE).exit, Exit::Code(0));
        }
        let word = format!("-{}", stage.base().display());
        nothing_is_left(&stage, &word, "twenty-");
    }
}
