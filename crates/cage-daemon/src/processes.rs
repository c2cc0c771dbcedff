//! Processes that the daemon started: their streams, their ends, and what is kept of them.

use crate::connection::{RequestError, expand, from_errno};
use crate::output::Output;
use crate::protocol::{CHUNK, Exit, FailureCode, Kind, ProcessState, StartProcess, TerminalSize};
use ironcage_sys::rustix::event::{PollFd, PollFlags, Timespec, poll};
use ironcage_sys::rustix::fs::{Access, Mode, OFlags, access, open};
use ironcage_sys::rustix::io::Errno;
use ironcage_sys::rustix::pipe::{PipeFlags, pipe_with};
use ironcage_sys::rustix::process::{
    Pid, Signal, WaitOptions, kill_process, kill_process_group, waitpid,
};
use ironcage_sys::rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use ironcage_sys::rustix::termios::{Winsize, tcsetwinsize};
use ironcage_sys::spawn::{FAILURE, Image, Seat, Streams, spawn};
use std::collections::BTreeMap;
use std::ffi::CString;
use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Processes that run at once.
const MOST_RUNNING: usize = 1024;
/// Processes that are over and whose output can still be read.
const MOST_ENDED: usize = 64;
/// After the end of a process, output of its children is waited for as long as it comes in pauses
/// shorter than this.
const RUN_DRY: Duration = Duration::from_millis(50);
/// Nothing here recurses.
const STACK: usize = 128 * 1024;

/// All processes of a daemon.
#[derive(Debug, Default)]
pub(crate) struct Processes(Mutex<BTreeMap<u32, Arc<Process>>>);

/// One process.
#[derive(Debug)]
pub(crate) struct Process {
    pid: Pid,
    start: StartProcess,
    cwd: String,
    started: u64,
    pub(crate) output: Output,
    input: Mutex<Option<File>>,
    terminal: Option<OwnedFd>,
    /// Set before its id can belong to another process.
    reaped: Mutex<bool>,
    over: AtomicBool,
}

impl Processes {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<u32, Arc<Process>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn list(&self) -> Vec<ProcessState> {
        let all: Vec<_> = self.lock().values().cloned().collect();
        all.iter().map(|process| process.state()).collect()
    }

    pub(crate) fn get(&self, pid: u32) -> Result<Arc<Process>, RequestError> {
        let found = self.lock().get(&pid).cloned();
        found.ok_or_else(|| {
            RequestError::new(
                FailureCode::NotFound,
                format!("the cage has no process {pid} of the service"),
            )
        })
    }

    /// Starts a process.
    pub(crate) fn start(&self, start: StartProcess) -> Result<Arc<Process>, RequestError> {
        let running = self
            .lock()
            .values()
            .filter(|process| process.output.exit().is_none())
            .count();
        if running >= MOST_RUNNING {
            return Err(RequestError::new(
                FailureCode::TooMany,
                format!("cannot start a process: {MOST_RUNNING} of them run already"),
            ));
        }
        let process = Process::start(start)?;
        let mut all = self.lock();
        let mut ended: Vec<(u64, u32)> = all
            .values()
            .filter(|process| process.output.exit().is_some())
            .map(|process| (process.started, process.id()))
            .collect();
        ended.sort_unstable();
        for (_, pid) in ended.iter().take(ended.len().saturating_sub(MOST_ENDED)) {
            all.remove(pid);
        }
        all.insert(process.id(), Arc::clone(&process));
        Ok(process)
    }
}

impl Process {
    fn id(&self) -> u32 {
        self.pid.as_raw_nonzero().get().unsigned_abs()
    }

    pub(crate) fn state(&self) -> ProcessState {
        let (output_from, output) = self.output.extent();
        ProcessState {
            pid: self.id(),
            argv: self.start.argv.clone(),
            env: self.start.env.clone(),
            cwd: self.cwd.clone(),
            tag: self.start.tag.clone(),
            terminal: self.terminal.is_some(),
            started: self.started,
            output,
            output_from,
            exit: self.output.exit(),
        }
    }

    fn start(start: StartProcess) -> Result<Arc<Process>, RequestError> {
        let cwd = match &start.cwd {
            Some(cwd) => expand(cwd)?,
            None => {
                std::env::current_dir().map_err(RequestError::io("find the working directory"))?
            }
        };
        let image = image(&start, &cwd)?;
        let failed = |error: Errno| from_errno(error, "prepare the streams of the process");
        let pipe = || pipe_with(PipeFlags::CLOEXEC).map_err(failed);
        let null =
            || open("/dev/null", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty()).map_err(failed);
        let (report_read, report) = pipe()?;
        let mut outputs: Vec<(Kind, OwnedFd)> = Vec::new();
        let (input, terminal, spawned);
        if let Some(size) = start.terminal {
            let controller = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC)
                .map_err(failed)?;
            grantpt(&controller).map_err(failed)?;
            unlockpt(&controller).map_err(failed)?;
            let name = ptsname(&controller, Vec::new()).map_err(failed)?;
            let side = open(
                &name,
                OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC,
                Mode::empty(),
            )
            .map_err(failed)?;
            set_size(&controller, size)?;
            let streams = Streams {
                stdin: side.as_fd(),
                stdout: side.as_fd(),
                stderr: side.as_fd(),
                seat: Seat::Session(Some(side.as_fd())),
                report: report.as_fd(),
                failure: [0; FAILURE],
                closing: true,
            };
            spawned = spawn(&image, &streams);
            outputs.push((
                Kind::Terminal,
                controller
                    .try_clone()
                    .map_err(RequestError::io("copy a descriptor"))?,
            ));
            input = Some(File::from(
                controller
                    .try_clone()
                    .map_err(RequestError::io("copy a descriptor"))?,
            ));
            terminal = Some(controller);
        } else {
            let (input_side, input_end) = match start.input {
                true => {
                    let (read, write) = pipe()?;
                    (read, Some(File::from(write)))
                }
                false => (null()?, None),
            };
            let (stdout_read, stdout) = pipe()?;
            let (stderr_read, stderr) = pipe()?;
            let streams = Streams {
                stdin: input_side.as_fd(),
                stdout: stdout.as_fd(),
                stderr: stderr.as_fd(),
                seat: Seat::Session(None),
                report: report.as_fd(),
                failure: [0; FAILURE],
                closing: true,
            };
            spawned = spawn(&image, &streams);
            outputs.push((Kind::Stdout, stdout_read));
            outputs.push((Kind::Stderr, stderr_read));
            input = input_end;
            terminal = None;
        }
        drop(report);
        let spawned = spawned.map_err(RequestError::io("start the process"))?;
        if !spawned.executed {
            // It has ended, and nobody else waits for it.
            let _ = waitpid(Some(spawned.pid), WaitOptions::empty());
            return Err(not_executed(report_read, &start, &cwd));
        }
        let process = Process {
            pid: spawned.pid,
            cwd: cwd.to_string_lossy().into_owned(),
            start,
            started: now(),
            output: Output::of(outputs.len()),
            input: Mutex::new(input),
            terminal,
            reaped: Mutex::new(false),
            over: AtomicBool::new(false),
        };
        let process = Arc::new(process);
        for (kind, stream) in outputs {
            let followed = Arc::clone(&process);
            process.thread(move || followed.read(kind, &stream))?;
        }
        let waited = Arc::clone(&process);
        process.thread(move || waited.wait())?;
        Ok(process)
    }

    /// Starts a thread of this process; where there can be none, the process does not go on.
    fn thread(&self, work: impl FnOnce() + Send + 'static) -> Result<(), RequestError> {
        let thread = std::thread::Builder::new().stack_size(STACK);
        thread.spawn(work).map(drop).map_err(|error| {
            let _ = kill_process_group(self.pid, Signal::KILL);
            RequestError::io("start a thread for the process")(error)
        })
    }

    /// Reads one stream to its end.
    fn read(&self, kind: Kind, stream: &OwnedFd) {
        let mut buffer = vec![0; CHUNK];
        let mut closed = false;
        loop {
            let over = self.over.load(Ordering::Acquire);
            let patience = Timespec::try_from(RUN_DRY).ok().filter(|_| over && !closed);
            let mut fds = [PollFd::new(stream, PollFlags::IN)];
            // The end of the process is noticed by looking: it does not end its streams if a child
            // has them.
            let patience = patience.or_else(|| {
                (!closed)
                    .then(|| Timespec::try_from(RUN_DRY * 2).ok())
                    .flatten()
            });
            match poll(&mut fds, patience.as_ref()) {
                Ok(0) => {
                    if over && !closed {
                        closed = true;
                        self.output.close_stream();
                    }
                    continue;
                }
                Ok(_) | Err(Errno::INTR) => {}
                Err(_) => break,
            }
            match ironcage_sys::rustix::io::read(stream, &mut buffer) {
                // A terminal without processes answers EIO.
                Ok(0) | Err(Errno::IO) => break,
                // What children write after the end of the process belongs to nobody.
                Ok(_) if closed => {}
                Ok(count) => self
                    .output
                    .push(kind, buffer.get(..count).unwrap_or_default()),
                Err(Errno::INTR) => {}
                Err(_) => break,
            }
        }
        if !closed {
            self.output.close_stream();
        }
    }

    /// Waits for the end of the process.
    fn wait(&self) {
        // First only looked at, so that its id stays its own until nobody signals it any more.
        let exit = loop {
            use ironcage_sys::rustix::process::{WaitId, WaitIdOptions, waitid};
            match waitid(
                WaitId::Pid(self.pid),
                WaitIdOptions::EXITED | WaitIdOptions::NOWAIT,
            ) {
                Ok(Some(status)) => {
                    break Exit {
                        code: status.exit_status(),
                        signal: status.terminating_signal(),
                    };
                }
                Err(Errno::INTR) | Ok(None) => {}
                Err(_) => {
                    break Exit {
                        code: None,
                        signal: None,
                    };
                }
            }
        };
        let mut reaped = self.reaped.lock().unwrap_or_else(PoisonError::into_inner);
        *reaped = true;
        let _ = waitpid(Some(self.pid), WaitOptions::empty());
        drop(reaped);
        self.over.store(true, Ordering::Release);
        *self.input.lock().unwrap_or_else(PoisonError::into_inner) = None;
        self.output.exited(exit);
    }

    pub(crate) fn signal(&self, signal: i32) -> Result<(), RequestError> {
        let named = Signal::from_named_raw(signal).ok_or_else(|| {
            RequestError::new(
                FailureCode::InvalidArgument,
                format!("there is no signal {signal}"),
            )
        })?;
        let reaped = self.reaped.lock().unwrap_or_else(PoisonError::into_inner);
        if *reaped {
            return Err(RequestError::new(
                FailureCode::NotFound,
                format!("process {} has ended", self.id()),
            ));
        }
        match kill_process_group(self.pid, named) {
            // It left its group, or has not made it yet.
            Err(Errno::SRCH) => kill_process(self.pid, named),
            other => other,
        }
        .map_err(|error| from_errno(error, "send the signal"))
    }

    /// Writes to the input of the process. Waits as long as it does not read.
    pub(crate) fn write(&self, bytes: &[u8]) -> Result<(), RequestError> {
        let mut input = self.input.lock().unwrap_or_else(PoisonError::into_inner);
        let input = input.as_mut().ok_or_else(|| {
            RequestError::new(
                FailureCode::InvalidArgument,
                format!(
                    "the input of process {} is closed; start it with an input to write to it",
                    self.id()
                ),
            )
        })?;
        input
            .write_all(bytes)
            .map_err(RequestError::io("write to the process"))
    }

    pub(crate) fn close_input(&self) {
        let mut input = self.input.lock().unwrap_or_else(PoisonError::into_inner);
        if self.terminal.is_some() {
            // The end of input is a character there.
            if let Some(input) = input.as_mut() {
                let _ = input.write_all(&[4]);
            }
            return;
        }
        *input = None;
    }

    pub(crate) fn resize(&self, size: TerminalSize) -> Result<(), RequestError> {
        let terminal = self.terminal.as_ref().ok_or_else(|| {
            RequestError::new(
                FailureCode::InvalidArgument,
                format!("process {} has no terminal", self.id()),
            )
        })?;
        set_size(terminal, size)
    }
}

fn set_size(terminal: &OwnedFd, size: TerminalSize) -> Result<(), RequestError> {
    let size = Winsize {
        ws_row: size.rows,
        ws_col: size.columns,
        ws_xpixel: 0,
        ws_ypixel: 0,
    };
    tcsetwinsize(terminal, size).map_err(|error| from_errno(error, "set the size of the terminal"))
}

fn now() -> u64 {
    let since = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    u64::try_from(since.as_micros()).unwrap_or(u64::MAX)
}

/// The program with its arguments and its environment.
fn image(start: &StartProcess, cwd: &Path) -> Result<Image, RequestError> {
    let text = |text: &str| {
        CString::new(text).map_err(|_| {
            RequestError::new(
                FailureCode::InvalidArgument,
                "a text with a NUL cannot be passed to a process".into(),
            )
        })
    };
    let program = start
        .argv
        .first()
        .filter(|program| !program.is_empty())
        .ok_or_else(|| {
            RequestError::new(
                FailureCode::InvalidArgument,
                "cannot start a process without a program".into(),
            )
        })?;
    if !cwd.is_dir() {
        return Err(RequestError::new(
            FailureCode::InvalidArgument,
            format!(
                "cannot start a process in {}: no such directory",
                cwd.display()
            ),
        ));
    }
    let mut env: BTreeMap<String, String> = std::env::vars_os()
        .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
        .collect();
    for (name, value) in &start.env {
        if name.is_empty() || name.contains('=') {
            return Err(RequestError::new(
                FailureCode::InvalidArgument,
                format!("`{}` is not the name of a variable", name.escape_debug()),
            ));
        }
        env.insert(name.clone(), value.clone());
    }
    env.insert("PWD".to_owned(), cwd.to_string_lossy().into_owned());
    let path = match program.contains('/') {
        true => PathBuf::from(program),
        false => search(
            program,
            env.get("PATH")
                .map_or("/usr/local/bin:/usr/bin:/bin", String::as_str),
        ),
    };
    Ok(Image {
        path: text(&path.to_string_lossy())?,
        argv: start
            .argv
            .iter()
            .map(|word| text(word))
            .collect::<Result<_, _>>()?,
        envp: env
            .iter()
            .map(|(name, value)| text(&format!("{name}={value}")))
            .collect::<Result<_, _>>()?,
        cwd: Some(text(&cwd.to_string_lossy())?),
    })
}

/// The program of this name in PATH; where none is found, the name, which the kernel then misses.
fn search(program: &str, path: &str) -> PathBuf {
    path.split(':')
        .filter(|directory| directory.starts_with('/'))
        .map(|directory| Path::new(directory).join(program))
        .find(|path| path.is_file() && access(path, Access::EXEC_OK).is_ok())
        .unwrap_or_else(|| Path::new("/nonexistent").join(program))
}

/// Why a program was not executed, as the child reported it.
fn not_executed(report: OwnedFd, start: &StartProcess, cwd: &Path) -> RequestError {
    let mut text = Vec::new();
    let _ = File::from(report).take(64).read_to_end(&mut text);
    let number = text
        .get(FAILURE..FAILURE + 4)
        .and_then(|bytes| bytes.try_into().ok());
    let error = std::io::Error::from_raw_os_error(number.map_or(0, i32::from_ne_bytes));
    let program = start.argv.first().map_or("", String::as_str);
    RequestError::new(
        FailureCode::NotExecuted,
        format!(
            "cannot execute {} in {}: {error}",
            program.escape_debug(),
            cwd.display()
        ),
    )
}
