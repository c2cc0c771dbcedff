//! The user's terminal: pushing input that his shell would run.

use super::{Attempts, Class, Inside, Kind, Observation, Oracle, Probe, Setup, Severity, Stage};
use ironcage_sys::attack;
use ironcage_sys::rustix::process::setsid;
use std::fs::File;
use std::os::fd::AsFd;

const TT: Probe = Probe {
    setup: Setup::Terminal,
    ..Probe::of(Class::Tt)
};
const SESSION: &str = "a session of its own";
const NO_DEVICE: &str = "the terminal's device is not in view";

pub(crate) const PROBES: &[Probe] = &[
    Probe {
        id: "TT-01",
        severity: Severity::Critical,
        title: "push a character into the terminal's input",
        canary: "the input queue of the launcher's terminal",
        layers: &[SESSION, NO_DEVICE, "streams are pipes", "seccomp on ioctl"],
        references: &["CVE-2017-5226", "CVE-2019-10063", "ATT&CK T1674"],
        inside: |inside| push(inside, false),
        oracle: Oracle::Seen(pushed),
        ..TT
    },
    Probe {
        id: "TT-02",
        kind: Kind::Surface,
        severity: Severity::Medium,
        title: "open the controlling terminal",
        canary: "a descriptor of /dev/tty",
        layers: &[SESSION],
        references: &["ATT&CK T1674"],
        inside: |_| {
            let mut attempts = Attempts::new();
            let opened = File::options().read(true).write(true).open("/dev/tty");
            attempts.note("/dev/tty", opened);
            attempts.done()
        },
        ..TT
    },
    Probe {
        id: "TT-03",
        title: "take the terminal over, then push input",
        canary: "the input queue of the launcher's terminal",
        layers: &[SESSION, NO_DEVICE, "seccomp on ioctl"],
        references: &["CVE-2017-5226", "ATT&CK T1674"],
        inside: |inside| push(inside, true),
        oracle: Oracle::Seen(pushed),
        ..TT
    },
];

fn pushed(stage: &Stage, _: &super::Evidence) -> Option<String> {
    let input = stage.terminal.take_input();
    input
        .contains(&b'#')
        .then(|| "the character is in the terminal's input".to_owned())
}

fn push(inside: &Inside, take_over: bool) -> Observation {
    let mut attempts = Attempts::new();
    if take_over {
        // A leader cannot begin a session; a child of it can. Failing is no reason to stop.
        let _ = setsid();
    }
    let mut terminals: Vec<(String, File)> = Vec::new();
    for path in [std::path::Path::new("/dev/tty"), &inside.params.terminal] {
        let opened = File::options().read(true).write(true).open(path);
        match opened {
            Ok(file) => terminals.push((path.display().to_string(), file)),
            Err(error) => {
                attempts.note(&path.display().to_string(), Err::<(), _>(error));
            }
        }
    }
    for stream in 0..3 {
        if let Ok(copy) = attack::duplicate(stream) {
            terminals.push((format!("descriptor {stream}"), File::from(copy)));
        }
    }
    for (name, terminal) in &terminals {
        if take_over {
            // Either may be refused; what counts is the push.
            let _ = attack::steal_terminal(terminal.as_fd());
            let _ = attack::console_paste(terminal.as_fd());
        }
        for high_bits in [false, true] {
            let what = format!("TIOCSTI on {name}");
            attempts.note(&what, attack::push_input(terminal.as_fd(), b'#', high_bits));
        }
    }
    attempts.done()
}
