//! This program under the name of a shell, ahead of it in a cage: `bash -c COMMAND` runs in a scope
//! of its own where it needs a lease, and in the cage, as it would have, where it needs none.
//!
//! It runs in the cage and so is the agent's to read, copy or leave aside: nothing hangs on it.
//! What it says the command names is taken outside as if the agent had written it, and a command
//! that goes around it has what the cage has.

mod names;
mod words;

use ironcage_control::{
    ASK_PROGRAM, ASK_SOCKET, Answered, Bytes, Channel, ExecRequest, ExecStreams, InquiryLine,
    LONGEST_INQUIRY, NotGiven, Packet, Reply, Request,
};
use ironcage_model::{Ending, Printable, SHELL_PLACE};
use ironcage_sys::process::signal_one;
use ironcage_sys::rustix::event::{PollFd, PollFlags, poll};
use ironcage_sys::rustix::fs::{Mode, OFlags, open};
use ironcage_sys::rustix::io::{Errno, fcntl_dupfd_cloexec};
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

/// Names under which this program is a shell.
const SHELLS: [&str; 4] = ["bash", "zsh", "sh", "dash"];

/// How long a person's answer is waited for, in seconds: agents give a command two minutes.
const WAIT: u64 = 100;

/// Exit status where the command was not run, as shells have it for what cannot be executed.
const NOT_RUN: u8 = 126;

/// Hang-up, interrupt, quit, the two for users, termination.
const FORWARDED: [i32; 6] = [1, 2, 3, 10, 12, 15];
const SIGCHLD: i32 = 17;

/// What a command does not get, one line each.
type Lacks = Vec<String>;

/// The name of the shell that this program was started as, if it was.
pub(crate) fn invoked_as() -> Option<&'static str> {
    let own = std::env::args_os().next()?;
    let name = Path::new(&own).file_name()?.as_bytes();
    // A login shell is told so by a dash before its name.
    let name = name.strip_prefix(b"-").unwrap_or(name);
    SHELLS.into_iter().find(|known| known.as_bytes() == name)
}

/// Runs what a shell of this name was to run.
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
    let shell = Shell {
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
    let asked = InquiryLine {
        shell: Some(line),
        wait: Some(WAIT),
        ..InquiryLine::default()
    };
    // Where nobody listens nothing can be given: in a scope, or at the end of the cage.
    let Ok(socket) = UnixStream::connect(ASK_SOCKET) else {
        return shell.become_it();
    };
    match ask(&socket, &asked) {
        Ok((Answered::Scope, Some(connection))) => shell.in_scope(&Channel::new(connection)),
        Ok((Answered::InCage { lacks }, _)) => shell.in_cage(&lacks),
        Ok((Answered::Denied { reason } | Answered::Invalid { reason }, _)) => not_run(&[reason]),
        Ok(_) => not_run(&["the cage's answer makes no sense".into()]),
        Err(error) => not_run(&[format!("the cage did not answer: {error}")]),
    }
}

/// The shell of this name that is no stand-in.
fn real(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let system = ["/usr/local/bin", "/usr/bin", "/bin"].map(PathBuf::from);
    let mut places = std::env::split_paths(&path).chain(system);
    places.find_map(|place| {
        let stand_in = place == Path::new(SHELL_PLACE) || !place.is_absolute();
        let program = place.join(name);
        let there = !stand_in && program.metadata().is_ok_and(|file| file.is_file());
        there.then_some(program)
    })
}

/// Asks the cage, and takes its answer with what is beside it.
fn ask(socket: &UnixStream, asked: &InquiryLine) -> io::Result<(Answered, Option<OwnedFd>)> {
    let mut line = serde_json::to_vec(asked)?;
    line.push(b'\n');
    let mut writer = socket;
    writer.write_all(&line)?;
    let (mut heard, mut beside) = (Vec::new(), None);
    while !heard.ends_with(b"\n") {
        let part = packet::receive(socket.as_fd(), true, LONGEST_INQUIRY, 1)?.unwrap_or_default();
        if part.bytes.is_empty() || heard.len() > 4 * LONGEST_INQUIRY {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        heard.extend(part.bytes);
        beside = beside.or(part.descriptors.into_iter().next());
    }
    Ok((serde_json::from_slice(&heard)?, beside))
}

/// Tells the agent something, in the command's own output.
fn say(lines: &[String]) {
    let mut err = io::stderr().lock();
    for line in lines {
        // Who does not read it is not told.
        let _ = writeln!(err, "ironcage: {}", Printable::new(line));
    }
}

fn not_run(why: &[String]) -> ExitCode {
    say(&["the command was not run".into()]);
    say(why);
    ExitCode::from(NOT_RUN)
}

/// What was not given, and how to ask.
fn explain(lacks: &[String]) {
    if lacks.is_empty() {
        return;
    }
    say(&["the cage did not give this command:".into()]);
    for lack in lacks {
        say(&[format!("  {lack}")]);
    }
    say(&[format!(
        "what the cage's ceiling holds can be asked for: {ASK_PROGRAM} ask --read PATH, --write PATH or --host HOST, with --reason TEXT"
    )]);
}

fn in_words(list: &[NotGiven]) -> Lacks {
    list.iter().map(NotGiven::to_string).collect()
}

/// A shell that was to run something.
struct Shell {
    name: &'static str,
    /// Its name as it was called.
    own: OsString,
    program: PathBuf,
    arguments: Vec<OsString>,
}

impl Shell {
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
                            "the user is asked (question {question}): {resource}"
                        )]);
                        continue;
                    }
                    Reply::InCage => return self.in_cage(&lacks),
                    Reply::NotGiven(list) => return not_run(&in_words(&list)),
                    Reply::Refused { reason } => return not_run(&[reason]),
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

    /// What is to be executed: the same words, the same variables, the same place and streams.
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
