//! Beside the container: calls the runtime's `exec`, and is for the container monitor what the
//! program inside is. It passes signals on and ends as the program ends.
//!
//! `runc exec` copies streams, and does not end while anything holds their other ends; so it is
//! detached, and the program becomes a child of this process. `runsc exec` passes no signals on
//! without a terminal; `runsc kill` does.

use ironcage_command::error::{CliError, CommandResult};
use ironcage_model::Printable;
use ironcage_sys::rustix::event::{PollFd, PollFlags, Timespec, poll};
use ironcage_sys::rustix::process::{
    Pid, Signal, WaitOptions, WaitStatus, getpid, set_child_subreaper, wait,
};
use ironcage_sys::{process, signals};
use std::collections::VecDeque;
use std::ffi::OsString;
use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::path::PathBuf;
use std::process::{Command, Stdio};

const SIGCHLD: i32 = Signal::CHILD.as_raw();
/// Signals that nobody can catch, that the kernel means for this process, or that libc uses.
const NOT_PASSED: [i32; 9] = [
    Signal::KILL.as_raw(),
    Signal::STOP.as_raw(),
    Signal::SEGV.as_raw(),
    Signal::BUS.as_raw(),
    Signal::FPE.as_raw(),
    Signal::ILL.as_raw(),
    Signal::TRAP.as_raw(),
    32,
    33,
];
/// How `runsc exec` ends when its container ends first.
const LOST: i32 = 128;
const KILLED: u8 = 128 + 9;
/// Pause between two looks for the program's number.
const ROUND: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 5_000_000,
};

#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Kind {
    Runc,
    Runsc,
}

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    kind: Kind,
    /// Where the runtime writes the number of the program
    pid_file: PathBuf,
    /// The container
    name: OsString,
    /// The `process` object
    process: PathBuf,
    /// The runtime and its options
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true)]
    runtime: Vec<OsString>,
}

impl Args {
    fn call(&self, verb: &str) -> Command {
        let mut words = self.runtime.iter();
        let mut command = Command::new(words.next().map_or("".as_ref(), OsString::as_os_str));
        command.args(words).arg(verb);
        command
    }

    /// The number that the runtime has written, once it is there whole.
    fn number(&self) -> Option<i32> {
        let text = std::fs::read_to_string(&self.pid_file).ok()?;
        text.trim().parse().ok()
    }
}

pub(crate) fn run(args: &Args) -> CommandResult {
    supervise(args).map_err(|error| {
        let name = args.runtime.first().map(Printable::new);
        let name = name.map(|name| name.to_string()).unwrap_or_default();
        CliError::new(format!("cannot execute a command with {name}: {error}"))
    })
}

fn supervise(args: &Args) -> io::Result<u8> {
    let numbers: Vec<i32> = (1..=64)
        .filter(|number| !NOT_PASSED.contains(number))
        .collect();
    let caught = signals::catch(&numbers)?;
    set_child_subreaper(Some(getpid()))?;
    match args.kind {
        Kind::Runc => {
            let mut exec = args.call("exec");
            exec.args(["--detach", "--pid-file"]).arg(&args.pid_file);
            exec.arg("--process").arg(&args.process).arg(&args.name);
            let status = exec.status()?;
            if !status.success() {
                return Ok(status
                    .code()
                    .and_then(|code| u8::try_from(code).ok())
                    .unwrap_or(KILLED));
            }
            let pid = args.number().and_then(Pid::from_raw);
            let pid = pid.ok_or_else(|| io::Error::other("it wrote no number of a process"))?;
            let status = await_end(pid, &caught, |signal| {
                // What is gone by now needs no signal.
                let _ = process::signal_one(pid.as_raw_nonzero().get(), signal);
                true
            })?;
            Ok(code(status))
        }
        Kind::Runsc => {
            let mut exec = args.call("exec");
            exec.arg("--internal-pid-file").arg(&args.pid_file);
            exec.arg("--process").arg(&args.process).arg(&args.name);
            let child = exec.spawn()?;
            let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
            let pid = pid.ok_or_else(|| io::Error::other("it has no number"))?;
            let status = await_end(pid, &caught, |signal| send(args, signal))?;
            if status.exit_status() == Some(LOST) && is_gone(args) {
                return Ok(KILLED);
            }
            Ok(code(status))
        }
    }
}

/// Waits for a child and passes signals on; those that cannot be passed on yet are kept.
fn await_end(
    child: Pid,
    caught: &OwnedFd,
    mut pass: impl FnMut(i32) -> bool,
) -> io::Result<WaitStatus> {
    let mut kept = VecDeque::new();
    loop {
        while let Some(signal) = signals::next(caught.as_fd())? {
            if signal != SIGCHLD {
                kept.push_back(signal);
            }
        }
        // By any number: the program that runc leaves behind is in a process group of its own.
        while let Ok(Some((pid, status))) = wait(WaitOptions::NOHANG) {
            if pid == child {
                return Ok(status);
            }
        }
        while kept.front().is_some_and(|signal| pass(*signal)) {
            kept.pop_front();
        }
        let limit = (!kept.is_empty()).then_some(&ROUND);
        // An interrupted wait is as good as one that was not.
        let _ = poll(&mut [PollFd::new(caught, PollFlags::IN)], limit);
    }
}

/// Sends a signal to the program in gVisor's container, if it is there already.
fn send(args: &Args, signal: i32) -> bool {
    let Some(number) = args.number() else {
        return false;
    };
    let mut kill = args.call("kill");
    kill.arg(format!("--pid={number}"))
        .arg(&args.name)
        .arg(signal.to_string());
    // What is gone by now needs no signal.
    let _ = quiet(&mut kill).status();
    true
}

/// Whether gVisor's container has ended, as it does when its kernel is killed over a limit. Until the
/// kernel's process is collected, runsc takes it for one that runs.
fn is_gone(args: &Args) -> bool {
    let mut state = args.call("state");
    let output = quiet(state.arg(&args.name)).stdout(Stdio::piped()).output();
    let Ok(output) = output else {
        return false;
    };
    let state: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap_or_default();
    if state["status"] != "running" {
        return true;
    }
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", state["pid"])).unwrap_or_default();
    // After the name, which is in brackets and may hold anything.
    stat.rsplit(") ")
        .next()
        .is_none_or(|rest| rest.is_empty() || rest.starts_with('Z'))
}

fn quiet(command: &mut Command) -> &mut Command {
    command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
}

fn code(status: WaitStatus) -> u8 {
    let code = status.exit_status();
    let killed = || status.terminating_signal().map(|signal| 128 + signal);
    code.or_else(killed)
        .and_then(|code| u8::try_from(code).ok())
        .unwrap_or(KILLED)
}
