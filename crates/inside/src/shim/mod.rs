//! The shell shim: this program under the name of a shell, before the real one in the cage's PATH.
//! `bash -c COMMAND` runs in a scope of its own if it needs a lease, and in the cage otherwise.
//!
//! The shim runs in the cage, so the agent can read, copy or bypass it, and no decision depends on
//! it. The supervisor treats its requests as the agent's own, and a command that bypasses it has
//! what the cage has.

mod names;
mod words;

use ironcage_control::{
    Answered, Bytes, CageRequestLine, Channel, DeniedLease, ExecRequest, ExecStreams,
    LONGEST_CAGE_REQUEST, Packet, Reply, Request,
};
use ironcage_model::{ASK_PROGRAM, ASK_SOCKET, Ending, LeaseOutcome, Printable, SHELL_PLACE};
use ironcage_sys::process::signal_one;
use ironcage_sys::rustix::event::{PollFd, PollFlags, poll};
use ironcage_sys::rustix::fs::{Mode, OFlags, open};
use ironcage_sys::rustix::io::{Errno, fcntl_dupfd_cloexec};
use ironcage_sys::rustix::process::Signal;
use ironcage_sys::rustix::stdio;
use ironcage_sys::{packet, signals};
use std::ffi::{OsStr, OsString};
use std::io::{self, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::net::UnixStream;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

const SHELLS: [&str; 4] = ["bash", "zsh", "sh", "dash"];

/// Seconds to wait for the user's answer: agents give a command two minutes.
const WAIT: u64 = 100;

/// Exit status if the command was not run, as in shells.
const NOT_RUN: u8 = 126;

/// Signals that the command gets, too.
const FORWARDED: [i32; 6] = [
    Signal::HUP.as_raw(),
    Signal::INT.as_raw(),
    Signal::QUIT.as_raw(),
    Signal::USR1.as_raw(),
    Signal::USR2.as_raw(),
    Signal::TERM.as_raw(),
];
const SIGCHLD: i32 = Signal::CHILD.as_raw();

/// The shell whose name this program was started with.
pub(crate) fn invoked_as() -> Option<&'static str> {
    let own = std::env::args_os().next()?;
    let name = Path::new(&own).file_name()?.as_bytes();
    // A login shell has a dash before its name.
    let name = name.strip_prefix(b"-").unwrap_or(name);
    SHELLS.into_iter().find(|known| known.as_bytes() == name)
}

pub(crate) fn run(name: &'static str) -> ExitCode {
    let words: Vec<OsString> = std::env::args_os().collect();
    let (own, arguments) = match words.split_first() {
        Some((own, arguments)) => (own.clone(), arguments.to_vec()),
        None => (name.into(), Vec::new()),
    };
    let Some(program) = real(name) else {
        say(&[format!("there is no {name} in this cage")]);
        return ExitCode::from(127);
    };
    let shell = ShellCall {
        name,
        own,
        program,
        arguments,
    };
    let Some(text) = words::command(&shell.arguments) else {
        return shell.become_it();
    };
    let Some(line) = names::of(name, text) else {
        return shell.become_it();
    };
    let asked = CageRequestLine {
        shell: Some(line),
        wait: Some(WAIT),
        ..CageRequestLine::default()
    };
    // Where nobody listens nothing can be given: in a scope, or at the end of the cage.
    let Ok(socket) = UnixStream::connect(ASK_SOCKET) else {
        return shell.become_it();
    };
    match ask(&socket, &asked) {
        Ok((Answered::Scope, Some(connection))) => shell.in_scope(&Channel::new(connection)),
        Ok((Answered::InCage { lacks }, _)) => shell.in_cage(&lacks),
        Ok((
            Answered::Outcome(LeaseOutcome::Denied { reason }) | Answered::Invalid { reason },
            _,
        )) => not_run(&[reason.with_code()]),
        Ok(_) => not_run(&["cannot parse the answer of the cage".into()]),
        Err(error) => not_run(&[format!("cannot get an answer from the cage: {error}")]),
    }
}

/// The real shell of this name, behind the shim.
fn real(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let system = ["/usr/local/bin", "/usr/bin", "/bin"].map(PathBuf::from);
    let mut places = std::env::split_paths(&path).chain(system);
    places.find_map(|place| {
        let is_shim = place == Path::new(SHELL_PLACE) || !place.is_absolute();
        let program = place.join(name);
        let there = !is_shim && program.metadata().is_ok_and(|file| file.is_file());
        there.then_some(program)
    })
}

/// Sends a request to the cage; returns its answer and the descriptor that came with it.
fn ask(socket: &UnixStream, asked: &CageRequestLine) -> io::Result<(Answered, Option<OwnedFd>)> {
    let mut line = serde_json::to_vec(asked)?;
    line.push(b'\n');
    let mut writer = socket;
    writer.write_all(&line)?;
    let (mut heard, mut beside) = (Vec::new(), None);
    while !heard.ends_with(b"\n") {
        let part =
            packet::receive(socket.as_fd(), true, LONGEST_CAGE_REQUEST, 1)?.unwrap_or_default();
        if part.bytes.is_empty() || heard.len() > 4 * LONGEST_CAGE_REQUEST {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        heard.extend(part.bytes);
        beside = beside.or(part.descriptors.into_iter().next());
    }
    Ok((serde_json::from_slice(&heard)?, beside))
}

/// Prints lines for the agent, in the command's own output.
fn say(lines: &[String]) {
    let mut err = io::stderr().lock();
    for line in lines {
        // Nothing to do if nobody reads it.
        let _ = writeln!(err, "ironcage: {}", Printable::new(line));
    }
}

fn not_run(why: &[String]) -> ExitCode {
    say(&["the command was not run".into()]);
    say(why);
    ExitCode::from(NOT_RUN)
}

/// Denied resources, and how to request them.
fn explain(lacks: &[String]) {
    if lacks.is_empty() {
        return;
    }
    say(&["denied to this command:".into()]);
    for lack in lacks {
        say(&[format!("  {lack}")]);
    }
    say(&[format!(
        "to request what the ceiling allows: {ASK_PROGRAM} ask --read PATH, --write PATH or --host HOST, with --reason TEXT"
    )]);
}

fn in_words(list: &[DeniedLease]) -> Vec<String> {
    list.iter().map(DeniedLease::to_string).collect()
}

struct ShellCall {
    name: &'static str,
    /// Its name as it was called.
    own: OsString,
    program: PathBuf,
    arguments: Vec<OsString>,
}

impl ShellCall {
    fn command(&self) -> Command {
        let mut command = Command::new(&self.program);
        command.arg0(&self.own).args(&self.arguments);
        command
    }

    /// Goes on as the shell itself.
    fn become_it(&self) -> ExitCode {
        let error = self.command().exec();
        say(&[format!("{} cannot be executed: {error}", self.name)]);
        ExitCode::from(NOT_RUN)
    }

    /// Runs the command in the cage; where it fails, says what it did not have.
    fn in_cage(&self, lacks: &[String]) -> ExitCode {
        if lacks.is_empty() {
            return self.become_it();
        }
        let mut caught = FORWARDED.to_vec();
        caught.push(SIGCHLD);
        let Ok(caught) = signals::catch(&caught) else {
            return self.become_it();
        };
        let mut child = match self.command().spawn() {
            Ok(child) => child,
            Err(error) => return not_run(&[format!("{} cannot be executed: {error}", self.name)]),
        };
        let status = loop {
            match child.try_wait() {
                Ok(None) => {}
                Ok(Some(status)) => break status,
                Err(error) => return not_run(&[format!("its end cannot be told: {error}")]),
            }
            wait_for(&[caught.as_fd()]);
            while let Ok(Some(signal)) = signals::next(caught.as_fd()) {
                if signal != SIGCHLD {
                    // What is gone by now needs no signal.
                    let child = i32::try_from(child.id()).unwrap_or_default();
                    let _ = signal_one(child, signal);
                }
            }
        };
        if !status.success() {
            explain(lacks);
        }
        match (status.code(), status.signal()) {
            (Some(code), _) => ExitCode::from(u8::try_from(code).unwrap_or(NOT_RUN)),
            (None, signal) => signals::end_by(signal.unwrap_or_default()),
        }
    }

    /// Runs the command in a scope, with these streams.
    fn in_scope(&self, connection: &Channel) -> ExitCode {
        let Ok(caught) = signals::catch(&FORWARDED) else {
            return not_run(&["signals cannot be passed on".into()]);
        };
        let told = match self.request() {
            Ok((request, streams)) => {
                let beside: Vec<BorrowedFd<'_>> = streams.iter().map(AsFd::as_fd).collect();
                connection.send(&request, &beside)
            }
            Err(error) => Err(error),
        };
        if let Err(error) = told {
            return not_run(&[format!("the scope cannot be told what to run: {error}")]);
        }
        let mut lacks = Vec::new();
        loop {
            match connection.receive::<Reply>(false) {
                Ok(None) => {}
                Ok(Some(Packet::Message(reply, _))) => match reply {
                    Reply::Started { .. } => continue,
                    Reply::Lacks(list) => {
                        lacks = in_words(&list);
                        continue;
                    }
                    Reply::Asked { question, resource } => {
                        say(&[format!(
                            "waiting for the user's approval (request {question}): {resource}"
                        )]);
                        continue;
                    }
                    Reply::InCage => return self.in_cage(&lacks),
                    Reply::NotGiven(list) => return not_run(&in_words(&list)),
                    Reply::Refused { reason } => return not_run(&[reason.with_code()]),
                    Reply::ExecEnded(ending) => return ended(&ending, &lacks),
                    _ => return not_run(&["the scope's answer makes no sense".into()]),
                },
                Ok(Some(Packet::Garbled(_) | Packet::Closed)) | Err(_) => {
                    say(&["the scope of this command is gone, and the command with it".into()]);
                    return ExitCode::from(NOT_RUN);
                }
            }
            wait_for(&[connection.as_fd(), caught.as_fd()]);
            while let Ok(Some(signal)) = signals::next(caught.as_fd()) {
                let _ = connection.send(&Request::Signal { signal }, &[]);
            }
        }
    }

    /// The command to execute: same arguments, environment, directory and streams.
    fn request(&self) -> io::Result<(Request, Vec<OwnedFd>)> {
        let bytes = |text: &OsStr| Bytes(text.as_bytes().to_vec());
        let mut argv = vec![bytes(self.program.as_os_str())];
        argv.extend(self.arguments.iter().map(|word| bytes(word)));
        let variables = std::env::vars_os();
        let request = Request::Exec(ExecRequest {
            argv,
            env: variables
                .map(|(name, value)| (Bytes(name.into_vec()), Bytes(value.into_vec())))
                .collect(),
            cwd: Some(bytes(std::env::current_dir()?.as_os_str())),
            streams: ExecStreams::Given,
            scope: None,
        });
        let streams = [stdio::stdin(), stdio::stdout(), stdio::stderr()];
        let streams: io::Result<Vec<OwnedFd>> = streams.into_iter().map(stream).collect();
        Ok((request, streams?))
    }
}

/// A standard stream; one that is closed leads nowhere.
fn stream(stream: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    match fcntl_dupfd_cloexec(stream, 3) {
        Ok(copy) => Ok(copy),
        Err(Errno::BADF) => {
            let flags = OFlags::RDWR | OFlags::CLOEXEC;
            Ok(open("/dev/null", flags, Mode::empty())?)
        }
        Err(error) => Err(error.into()),
    }
}

fn wait_for(descriptors: &[BorrowedFd<'_>]) {
    let mut fds: Vec<PollFd<'_>> = descriptors
        .iter()
        .map(|fd| PollFd::from_borrowed_fd(*fd, PollFlags::IN))
        .collect();
    // Interrupted or not: what there is, is looked at.
    let _ = poll(&mut fds, None);
}

fn ended(ending: &Ending, lacks: &[String]) -> ExitCode {
    if ending.exit_code() != 0 {
        explain(lacks);
    }
    match ending {
        Ending::Signalled { signal } => signals::end_by(*signal),
        Ending::NotExecuted { errno } => {
            let why = io::Error::from_raw_os_error(*errno);
            say(&[format!(
                "the command cannot be executed in its scope: {why}"
            )]);
            ExitCode::from(ending.exit_code())
        }
        other => ExitCode::from(other.exit_code()),
    }
}
