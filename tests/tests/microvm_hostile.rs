//! Guests whose kernel and init are the attacker's, in place of the one that `ironcage setup microvm` made: what they
//! say on the control channel, to the file server's device and to the network ends nothing but their own machine.

use crate::microvm::{DEADLINE, finish, set_up};
use ironcage_tests::{Ran, Stage, Who, either, only_in_full, processes_with, skip, wait_until};
use std::fs;
use std::io::Write as _;
use std::process::Command;

/// What each attack does is in `crates/probe/src/hostile_guest`.
struct Attack {
    name: &'static str,
    /// How the run ends, and a word of what it says of that.
    ends: &'static [(i32, &'static str)],
    flags: &'static [&'static str],
}

const BROKEN: (i32, &str) = (125, "cannot run");
const ATTACKS: [Attack; 8] = [
    Attack {
        name: "garbage",
        ends: &[(125, "broke the protocol")],
        flags: &[],
    },
    Attack {
        name: "oversized",
        ends: &[(125, "broke the protocol")],
        flags: &[],
    },
    Attack {
        name: "flood",
        ends: &[BROKEN],
        flags: &[],
    },
    // What is not of a session goes nowhere, and the session lives.
    Attack {
        name: "unasked",
        ends: &[(7, "survived")],
        flags: &[],
    },
    Attack {
        name: "overfed",
        ends: &[BROKEN],
        flags: &[],
    },
    // A request in order: what follows reaches a file server that answers.
    Attack {
        name: "asked",
        ends: &[(7, "answered: true\nsurvived")],
        flags: &[],
    },
    // QEMU or the file server may refuse the device from then on: then the machine ends.
    Attack {
        name: "device",
        ends: &[(7, "survived"), BROKEN],
        flags: &[],
    },
    Attack {
        name: "frames",
        ends: &[(7, "survived"), BROKEN],
        flags: &["--allow-host", "only.test"],
    },
];

/// An archive as the kernel unpacks it over the ones before it.
fn archive(files: &[(&str, &[u8])]) -> Vec<u8> {
    let mut bytes = Vec::new();
    let last: (&str, &[u8]) = ("TRAILER!!!", b"");
    for (index, (name, content)) in (1_u32..).zip(files.iter().chain([&last])) {
        let size = content.len() as u32;
        let length = name.len() as u32 + 1;
        bytes.extend(b"070701");
        for field in [index, 0o100_755, 0, 0, 1, 0, size, 0, 0, 0, 0, length, 0] {
            bytes.extend(format!("{field:08x}").into_bytes());
        }
        bytes.extend(name.as_bytes());
        bytes.push(0);
        bytes.resize(bytes.len().next_multiple_of(4), 0);
        bytes.extend(*content);
        bytes.resize(bytes.len().next_multiple_of(4), 0);
    }
    bytes
}

/// The suite's program as the init of a guest: without what only a debugger reads, which a guest would unpack.
fn init(stage: &Stage) -> Option<Vec<u8>> {
    let lab = ironcage_tests::binary().with_file_name("ironcage-lab");
    let small = stage.base().join("init");
    let stripped = Command::new("strip")
        .arg("-o")
        .arg(&small)
        .arg(lab)
        .status();
    if !stripped.is_ok_and(|status| status.success()) {
        skip("binutils is not installed");
        return None;
    }
    Some(fs::read(small).expect("the stripped program"))
}

/// Puts an attack into the guest of a stage.
fn arm(stage: &Stage, init: &[u8], attack: &str, made: &[u8]) {
    let path = stage.state().join("ironcage/microvm/initramfs");
    let mut file = fs::File::create(path).expect("the guest's initramfs");
    file.write_all(made).expect("it is written");
    let more = archive(&[("init", init), ("attack", attack.as_bytes())]);
    file.write_all(&more).expect("it is written");
}

fn run(stage: &Stage, attack: &Attack) -> Ran {
    let mut flags = vec!["--isolation", "microvm", "--memory", "1G"];
    flags.extend(attack.flags);
    finish(&mut stage.cage(&flags, &["/bin/echo", "never", &marker(stage)]))
}

/// An argument of the cage's processes, by which they are found.
fn marker(stage: &Stage) -> String {
    format!("hostile-{}", stage.base().display())
}

fn attacks(stage: &Stage, chosen: impl Fn(&Attack) -> bool) {
    if !set_up(stage) {
        return;
    }
    let Some(init) = init(stage) else {
        return;
    };
    let made =
        fs::read(stage.state().join("ironcage/microvm/initramfs")).expect("the guest's initramfs");
    for attack in ATTACKS.iter().filter(|attack| chosen(attack)) {
        arm(stage, &init, attack.name, &made);
        let ran = run(stage, attack);
        let said = format!("{}{}", ran.stdout(), ran.stderr);
        let known = attack
            .ends
            .iter()
            .any(|(code, word)| ran.code() == *code && said.contains(word));
        assert!(known, "{}: {ran:?}", attack.name);
        let gone = || processes_with(&marker(stage)).is_empty();
        assert!(
            wait_until(DEADLINE, gone),
            "{}: processes are left",
            attack.name
        );
    }
    // The guest as it was made: what the attacks left is in nobody's way.
    fs::write(stage.state().join("ironcage/microvm/initramfs"), made)
        .expect("the guest's initramfs");
    let seen = finish(&mut stage.cage(&["--isolation", "microvm"], &["/bin/echo", "well"])).ok();
    assert_eq!(seen.stdout(), "well\n");
}

either! {
    fn a_hostile_guest_ends_its_own_machine_at_most(stage) {
        attacks(stage, |attack| matches!(attack.name, "oversized" | "asked" | "device"));
    }
}

#[test]
fn every_attack_of_a_hostile_guest_ends_its_own_machine_at_most() {
    if !only_in_full() {
        return;
    }
    for who in [Who::Root, Who::User] {
        if let Some(stage) = Stage::new(who) {
            attacks(&stage, |_| true);
        }
    }
}
