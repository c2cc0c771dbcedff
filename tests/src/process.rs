//! Running a command to its end, or holding it while it runs, with a deadline that kills what hangs.
//!
//! The deadlines are for programs that hang; no test asserts on how long something took.

use rustix::process::{Pid, Signal, kill_process};
use std::fmt;
use std::io::{Read, Write};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, ExitStatus, Stdio};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Names how many times longer than usual tests wait before they call something hung: on an emulated machine
/// everything is slow.
const PATIENCE: &str = "IRONCAGE_TEST_PATIENCE";

/// How long to wait on this machine for what should take no longer than this.
fn patiently(within: Duration) -> Duration {
    let times = std::env::var(PATIENCE)
        .ok()
        .and_then(|text| text.parse().ok());
    within * times.unwrap_or(1)
}

/// How a process ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Exit {
    /// By itself, with this status.
    Code(i32),
    /// By this signal.
    Signal(i32),
}

/// A command that has ended, with all that it said.
#[derive(Clone)]
pub struct Ran {
    /// How it ended.
    pub exit: Exit,
    /// Everything on standard output.
    pub bytes: Vec<u8>,
    /// Everything on standard error.
    pub stderr: String,
}

impl Ran {
    /// Standard output as text.
    pub fn stdout(&self) -> String {
        String::from_utf8_lossy(&self.bytes).into_owned()
    }

    /// The exit status.
    ///
    /// # Panics
    /// When a signal ended the process.
    pub fn code(&self) -> i32 {
        match self.exit {
            Exit::Code(code) => code,
            Exit::Signal(_) => panic!("{self:?}"),
        }
    }

    /// This, when the command ended with status 0.
    ///
    /// # Panics
    /// When it did not; the message has all that the command said.
    #[track_caller]
    pub fn ok(self) -> Self {
        self.ended(0)
    }

    /// This, when the command ended with the given status.
    ///
    /// # Panics
    /// When it did not; the message has all that the command said.
    #[track_caller]
    pub fn ended(self, code: i32) -> Self {
        assert_eq!(self.exit, Exit::Code(code), "{self:?}");
        self
    }

    /// This, when standard error contains the text.
    ///
    /// # Panics
    /// When it does not; the message has all that the command said.
    #[track_caller]
    pub fn says(self, text: &str) -> Self {
        assert!(self.stderr.contains(text), "no {text:?} in {self:?}");
        self
    }
}

impl Ran {
    /// This, when it failed for the reason with this code (docs/reference/reasons.md), which stands in brackets
    /// behind the message.
    ///
    /// # Panics
    /// When it did not; the message has all that the command said.
    #[track_caller]
    pub fn denied(self, code: &str) -> Self {
        assert_ne!(self.exit, Exit::Code(0), "{self:?}");
        let shown = format!("[{code}]");
        let found = self.stderr.contains(&shown) || self.stdout().contains(&shown);
        assert!(found, "no code {code} in {self:?}");
        self
    }
}

impl Ran {
    /// This, when it failed with this code, a reason's or a failure's (docs/reference/failures.md).
    ///
    /// # Panics
    /// When it did not; the message has all that the command said.
    #[track_caller]
    pub fn failed(self, code: &str) -> Self {
        self.ended(125).denied(code)
    }
}

impl fmt::Debug for Ran {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shown = &self.bytes[..self.bytes.len().min(4096)];
        writeln!(f, "{:?}", self.exit)?;
        writeln!(f, "--- stdout ({} bytes)", self.bytes.len())?;
        writeln!(f, "{}", String::from_utf8_lossy(shown))?;
        write!(f, "--- stderr\n{}", self.stderr)
    }
}

/// A command that runs; it is killed when this is dropped.
#[derive(Debug)]
pub struct Running {
    child: Child,
    stderr: Option<JoinHandle<String>>,
}

impl Running {
    /// Starts the command with pipes on all three streams.
    ///
    /// # Panics
    /// When it cannot be started.
    #[track_caller]
    pub fn start(command: &mut Command) -> Self {
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap_or_else(|error| panic!("{command:?}: {error}"));
        let stderr = child.stderr.take().map(|mut pipe| {
            std::thread::spawn(move || {
                let mut text = Vec::new();
                // A read error ends the text here; what came before is still worth showing.
                let _ = pipe.read_to_end(&mut text);
                String::from_utf8_lossy(&text).into_owned()
            })
        });
        Running { child, stderr }
    }

    /// The process id of the launcher.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Takes the writing end of standard input; dropping it is the end of file.
    ///
    /// # Panics
    /// When it was taken before.
    pub fn stdin(&mut self) -> ChildStdin {
        self.child
            .stdin
            .take()
            .unwrap_or_else(|| panic!("stdin was taken before"))
    }

    /// Takes the reading end of standard output.
    ///
    /// # Panics
    /// When it was taken before.
    pub fn stdout(&mut self) -> ChildStdout {
        self.child
            .stdout
            .take()
            .unwrap_or_else(|| panic!("stdout was taken before"))
    }

    /// Sends a signal to the launcher.
    ///
    /// # Panics
    /// When the launcher is gone.
    pub fn signal(&self, signal: Signal) {
        let pid = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw);
        match pid.map(|pid| kill_process(pid, signal)) {
            Some(Ok(())) => {}
            other => panic!("signal {signal:?} to {}: {other:?}", self.child.id()),
        }
    }

    /// Closes standard input and waits for the end, at most for the given time.
    ///
    /// # Panics
    /// When it does not end in time.
    #[track_caller]
    pub fn finish(mut self, within: Duration) -> Ran {
        drop(self.child.stdin.take());
        let stdout = self.child.stdout.take().map(|mut pipe| {
            std::thread::spawn(move || {
                let mut bytes = Vec::new();
                let _ = pipe.read_to_end(&mut bytes);
                bytes
            })
        });
        let status = self.wait(within);
        let bytes = stdout
            .and_then(|reader| reader.join().ok())
            .unwrap_or_default();
        let stderr = self
            .stderr
            .take()
            .and_then(|reader| reader.join().ok())
            .unwrap_or_default();
        match status {
            Some(status) => Ran {
                exit: exit_of(status),
                bytes,
                stderr,
            },
            None => panic!(
                "not at its end after {within:?}\n--- stdout\n{}\n--- stderr\n{stderr}",
                String::from_utf8_lossy(&bytes)
            ),
        }
    }

    /// Writes all of the input while the output is read, then waits for the end.
    ///
    /// # Panics
    /// When it does not end in time.
    #[track_caller]
    pub fn feed(mut self, input: Vec<u8>, within: Duration) -> Ran {
        let mut pipe = self.stdin();
        let writer = std::thread::spawn(move || {
            // A command that ends before it has read everything closes the pipe; that is its right.
            let _ = pipe.write_all(&input);
        });
        let ran = self.finish(within);
        let _ = writer.join();
        ran
    }

    /// `None`, with the process killed, when it was not at its end in time.
    fn wait(&mut self, within: Duration) -> Option<ExitStatus> {
        let mut status = None;
        wait_until(within, || {
            status = self.child.try_wait().ok().flatten();
            status.is_some()
        });
        if status.is_none() {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
        status
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if !matches!(self.child.try_wait(), Ok(Some(_))) {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}

fn exit_of(status: ExitStatus) -> Exit {
    match (status.code(), status.signal()) {
        (Some(code), _) => Exit::Code(code),
        (None, signal) => Exit::Signal(signal.unwrap_or_default()),
    }
}

/// Processes of the host whose command line contains the word.
pub fn processes_with(word: &str) -> Vec<u32> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir("/proc").expect("/proc").flatten() {
        let Some(pid) = entry
            .file_name()
            .to_str()
            .and_then(|name| name.parse().ok())
        else {
            continue;
        };
        let line = std::fs::read(entry.path().join("cmdline")).unwrap_or_default();
        if pid != std::process::id() && String::from_utf8_lossy(&line).contains(word) {
            found.push(pid);
        }
    }
    found
}

/// Waits until nobody writes to a file any more: it is as long as it was a moment ago.
pub fn wait_until_still(path: &Path, within: Duration) -> bool {
    let length = || std::fs::metadata(path).map_or(0, |file| file.len());
    let mut last = length();
    wait_until(within, || {
        std::thread::sleep(Duration::from_millis(50));
        let now = length();
        std::mem::replace(&mut last, now) == now
    })
}

/// Asks again and again until the condition holds; false when it did not within the time.
pub fn wait_until(within: Duration, mut holds: impl FnMut() -> bool) -> bool {
    let within = patiently(within);
    let start = Instant::now();
    let mut pause = Duration::from_millis(1);
    loop {
        if holds() {
            return true;
        }
        if start.elapsed() > within {
            return false;
        }
        std::thread::sleep(pause);
        pause = (pause * 2).min(Duration::from_millis(50));
    }
}
