//! What goes in and out of a cage: bytes, back-pressure, ends of file, exit statuses, signals.

use ironcage_tests::{DIRECT, Ran, Running, Stage, either, wait_until};
use rustix::process::Signal;
use sha2::{Digest, Sha256};
use std::io::{Read, Write};
use std::time::Duration;

const MINUTE: Duration = Duration::from_secs(60);

/// Bytes of every value in no pattern; the same ones every time.
fn noise(length: usize) -> Vec<u8> {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut bytes = Vec::with_capacity(length + 8);
    while bytes.len() < length {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        bytes.extend_from_slice(&state.to_le_bytes());
    }
    bytes.truncate(length);
    bytes
}

fn read_line(from: &mut impl Read) -> String {
    let mut line = Vec::new();
    let mut byte = [0];
    while from.read(&mut byte).expect("a readable stream") == 1 && byte[0] != b'\n' {
        line.push(byte[0]);
    }
    String::from_utf8(line).expect("text")
}

/// Starts a script, waits until it says `ready`, sends the signal, and waits for its end.
fn signalled(stage: &Stage, script: &str, signal: Signal) -> Ran {
    let mut cage = Running::start(&mut stage.cage(&[], &["/bin/bash", "-c", script]));
    let hold = cage.stdin();
    let mut stdout = cage.stdout();
    assert_eq!(read_line(&mut stdout), "ready");
    cage.signal(signal);
    let rest = std::thread::spawn(move || {
        let mut rest = Vec::new();
        stdout.read_to_end(&mut rest).map(|_| rest)
    });
    let mut ran = cage.finish(MINUTE);
    ran.bytes = rest
        .join()
        .expect("a reader")
        .expect("the rest of the output");
    drop(hold);
    ran
}

either! {
    fn fifty_megabytes_pass_unchanged(stage) {
        let sent = noise(50 * 1024 * 1024);
        let sum = Sha256::digest(&sent);
        let ran = Running::start(&mut stage.cage(&[], &["/bin/cat"])).feed(sent, 3 * MINUTE).ok();
        assert_eq!(ran.bytes.len(), 50 * 1024 * 1024);
        assert_eq!(Sha256::digest(&ran.bytes), sum);
    }

    fn standard_error_is_a_stream_of_its_own(stage) {
        let ran = stage.run(&["-q"], &["/bin/sh", "-c", "printf out; printf 'err\\377' >&2"]).ok();
        assert_eq!(ran.stdout(), "out");
        assert_eq!(ran.stderr, "err\u{fffd}");
    }

    fn a_writer_waits_for_a_reader_that_does_not_read(stage) {
        let script = "
import os
block = bytes(65536)
for written in range(1, 1025):
    left = memoryview(block)
    while left:
        left = left[os.write(1, left):]
    with open('progress.new', 'w') as f: f.write(str(written))
    os.rename('progress.new', 'progress')
";
        let mut cage = Running::start(&mut stage.cage(&DIRECT, &["/usr/bin/python3", "-c", script]));
        let mut stdout = cage.stdout();
        let progress = || stage.read("progress").and_then(|text| text.parse::<u64>().ok());
        // Nobody reads. The writer stalls when all buffers are full: two looks apart show the same.
        let mut before = None;
        let stalled = wait_until(MINUTE, || {
            let now = progress();
            std::thread::sleep(Duration::from_millis(700));
            std::mem::replace(&mut before, now).is_some() && before == progress()
        });
        assert!(stalled, "the writer never stalled");
        let buffered = progress().expect("some progress") * 65536;
        assert!(buffered < 16 * 1024 * 1024, "{buffered} bytes were taken in from a writer nobody reads");
        // The allowing arm: once read, all of it arrives.
        let mut received = 0;
        let mut block = vec![0; 65536];
        loop {
            match stdout.read(&mut block).expect("a readable stream") {
                0 => break,
                length => received += length,
            }
        }
        assert_eq!(received, 1024 * 65536);
        cage.finish(MINUTE).ok();
    }

    fn bytes_come_through_before_the_end_of_file(stage) {
        let mut cage = Running::start(&mut stage.cage(&[], &["/bin/cat"]));
        let mut stdin = cage.stdin();
        let mut stdout = cage.stdout();
        for word in ["first", "second"] {
            stdin.write_all(format!("{word}\n").as_bytes()).expect("a writable stream");
            assert_eq!(read_line(&mut stdout), word);
        }
        drop(stdin);
        cage.finish(MINUTE).ok();
    }

    fn end_of_file_reaches_the_command(stage) {
        let cage = Running::start(&mut stage.cage(&[], &["/bin/sh", "-c", "cat; echo end"]));
        assert_eq!(cage.feed(b"input\n".to_vec(), MINUTE).ok().stdout(), "input\nend\n");
    }

    fn a_command_that_does_not_read_ends_while_its_input_stays_open(stage) {
        let mut cage = Running::start(&mut stage.cage(&[], &["/bin/echo", "done"]));
        let hold = cage.stdin();
        assert_eq!(cage.finish(MINUTE).ok().stdout(), "done\n");
        drop(hold);
    }

    fn a_command_that_stops_reading_does_not_stop_the_rest(stage) {
        let cage = Running::start(&mut stage.cage(&[], &["/bin/sh", "-c", "head -c 4; exec 0<&-; echo; echo end"]));
        assert_eq!(cage.feed(noise(4 * 1024 * 1024), MINUTE).ok().bytes[4..], *b"\nend\n");
    }

    fn a_closed_output_ends_the_writer_by_sigpipe(stage) {
        let mut cage = Running::start(&mut stage.cage(&[], &["/usr/bin/yes"]));
        let mut stdout = cage.stdout();
        assert_eq!(read_line(&mut stdout), "y");
        drop(stdout);
        assert_eq!(cage.finish(MINUTE).code(), 128 + 13);
    }

    fn the_exit_status_is_the_commands_own(stage) {
        for status in [0, 1, 3, 77, 124, 125, 255] {
            assert_eq!(stage.sh(&format!("exit {status}")).code(), status);
        }
    }

    fn a_command_that_is_not_there_is_127(stage) {
        stage.run(&[], &["no-such-command"]).ended(127).says("no-such-command");
        stage.run(&[], &["/no/such/command"]).ended(127).says("/no/such/command");
    }

    fn a_command_that_cannot_be_executed_is_126(stage) {
        stage.write(stage.project().join("plain"), "not a program\n");
        stage.run(&[], &["./plain"]).ended(126).says("plain");
        stage.run(&[], &["/usr"]).ended(126).says("/usr");
        // The allowing arm: the same file, made executable, is a script.
        stage.sh_outside("printf '#!/bin/sh\\nexit 5\\n' > plain && chmod +x plain").ok();
        stage.run(&[], &["./plain"]).ended(5);
    }

    fn an_error_of_ironcages_own_is_125(stage) {
        stage.run(&["--no-such-flag"], &["/bin/true"]).ended(125);
        stage.run(&["-r", "/no/such/path"], &["/bin/true"]).ended(125).says("/no/such/path");
        stage.run(&["--memory", "much"], &["/bin/true"]).ended(125).says("much");
        stage.run(&[], &["/bin/true"]).ended(0);
    }

    fn a_command_killed_by_a_signal_ends_with_128_and_its_number(stage) {
        for (name, number) in [("TERM", 15), ("SEGV", 11), ("KILL", 9)] {
            let ran = stage.sh(&format!("kill -{name} $$")).ended(128 + number);
            assert!(!ran.stderr.contains("--memory"), "no limit was hit: {ran:?}");
        }
    }

    fn signals_reach_the_command(stage) {
        for (name, signal) in [
            ("TERM", Signal::TERM),
            ("INT", Signal::INT),
            ("HUP", Signal::HUP),
            ("QUIT", Signal::QUIT),
            ("USR1", Signal::USR1),
            ("USR2", Signal::USR2),
        ] {
            let script = format!(
                "trap 'echo got {name}; exit 7' {name}; echo ready; while :; do sleep 0.05; done"
            );
            let ran = signalled(stage, &script, signal).ended(7);
            assert_eq!(ran.stdout(), format!("got {name}\n"));
        }
    }

    fn a_signal_that_the_command_does_not_handle_ends_it(stage) {
        let ran = signalled(stage, "echo ready; exec sleep 600", Signal::TERM);
        assert_eq!(ran.code(), 128 + 15);
    }

    fn a_signal_that_the_command_ignores_does_not_end_it(stage) {
        let script = "trap '' HUP; echo ready; sleep 1; echo still here";
        assert_eq!(signalled(stage, script, Signal::HUP).ok().stdout(), "still here\n");
    }

    fn control_characters_of_the_cage_reach_no_line_of_ours(stage) {
        let name = "no-such-\u{1b}[31mcommand\u{7}";
        let ran = stage.run(&[], &[name]).ended(127);
        assert!(!ran.stderr.contains('\u{1b}') && !ran.stderr.contains('\u{7}'), "{ran:?}");
        assert!(ran.stderr.contains("command"), "{ran:?}");
    }
}
