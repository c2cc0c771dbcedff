//! Measuring processes that stay: one is asked for a start, makes it, and answers how long
//! it took. For what cannot be a plain spawn: the floor, and `crun` on a host whose cgroup
//! tree it refuses.
//!
//! One line in, one line out: `ok NANOSECONDS` or `failed REASON`. It ends when its standard
//! input does.

use crate::scratch::{Complaints, Scratch};
use crate::{ArmError, BenchError};
use ironcage_model::Printable;
use ironcage_sys::bench::{Launch, Program, unshare_mounts};
use ironcage_sys::rustix;
use ironcage_sys::rustix::mount::{MountPropagationFlags, mount_bind, mount_change};
use std::ffi::OsString;
use std::io::{self, BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Duration;

/// Answers requests on standard input until it ends.
pub(crate) fn serve(mut measure: impl FnMut() -> Result<Duration, ArmError>) -> io::Result<()> {
    let mut answers = io::stdout().lock();
    for request in io::stdin().lock().lines() {
        request?;
        match measure() {
            Ok(elapsed) => writeln!(answers, "ok {}", elapsed.as_nanos())?,
            Err(error) => {
                let reason = error.to_string().replace('\n', "; ");
                writeln!(answers, "failed {reason}")?;
            }
        }
        answers.flush()?;
    }
    Ok(())
}

/// The asking side.
#[derive(Debug)]
pub(crate) struct Resident {
    arm: String,
    process: Child,
    // An option only so that it can be closed before the wait.
    requests: Option<ChildStdin>,
    answers: BufReader<ChildStdout>,
    complaints: Complaints,
}

impl Resident {
    pub(crate) fn start(
        arm: &str,
        program: &Path,
        arguments: &[OsString],
        scratch: &Scratch,
    ) -> Result<Resident, BenchError> {
        let spawn_error = |source| BenchError::Spawn {
            program: arm.to_owned(),
            source,
        };
        let complaints = scratch.complaints(arm)?;
        let mut process = Command::new(program)
            .args(arguments)
            .env_clear()
            .envs(scratch.environment())
            .current_dir(scratch.work())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(complaints.descriptor()?)
            .spawn()
            .map_err(spawn_error)?;
        let no_pipe = || spawn_error(io::Error::other("no pipe to it"));
        let requests = process.stdin.take().ok_or_else(no_pipe)?;
        let answers = process.stdout.take().ok_or_else(no_pipe)?;
        Ok(Resident {
            arm: arm.to_owned(),
            process,
            requests: Some(requests),
            answers: BufReader::new(answers),
            complaints,
        })
    }

    /// One start; the inner error is why it failed.
    pub(crate) fn measure(&mut self) -> Result<Result<Duration, ArmError>, BenchError> {
        let answer = match self.ask("")? {
            Ok(answer) => answer,
            Err(reason) => return Ok(Err(reason)),
        };
        match answer.parse() {
            Ok(nanoseconds) => Ok(Ok(Duration::from_nanos(nanoseconds))),
            Err(_) => Err(BenchError::Protocol {
                arm: self.arm.clone(),
                answer,
            }),
        }
    }

    /// What it answers to a request; the inner error is why it failed.
    pub(crate) fn ask(&mut self, request: &str) -> Result<Result<String, ArmError>, BenchError> {
        let mut answer = String::new();
        let asked = match &mut self.requests {
            Some(requests) => requests.write_all(format!("{request}\n").as_bytes()),
            None => Err(io::ErrorKind::BrokenPipe.into()),
        };
        let read = asked.and_then(|()| self.answers.read_line(&mut answer));
        if matches!(read, Err(_) | Ok(0)) {
            let complaints = self.complaints.take();
            return Ok(Err(ArmError::Ended { complaints }));
        }
        let answer = answer.trim_end();
        if let Some(reason) = answer.strip_prefix("failed ") {
            let complaints = self.complaints.take();
            let reason = Printable::new(reason).to_string();
            return Ok(Err(ArmError::Resident { reason, complaints }));
        }
        answer
            .strip_prefix("ok ")
            .map(|answer| Ok(answer.to_owned()))
            .ok_or_else(|| BenchError::Protocol {
                arm: self.arm.clone(),
                answer: answer.to_owned(),
            })
    }
}

impl Drop for Resident {
    fn drop(&mut self) {
        // The end of its input is the end of the process.
        self.requests = None;
        let _ = self.process.wait();
    }
}

/// Starts of a program from a mount namespace in which the version 2 cgroup tree of a
/// hybrid host stands alone, as on a host with version 2 only.
#[derive(Debug, Clone)]
pub struct PrivateCgroupLaunch {
    /// The program, by its path.
    pub program: PathBuf,
    pub arguments: Vec<OsString>,
}

pub(crate) const CGROUP: &str = "/sys/fs/cgroup";
/// Where a hybrid host has its version 2 tree.
pub(crate) const HYBRID: &str = "/sys/fs/cgroup/unified";

/// Serves starts until standard input ends.
pub fn serve_launches(launch: &PrivateCgroupLaunch) -> Result<(), BenchError> {
    unshare_mounts().map_err(BenchError::call("unshare(CLONE_NEWNS)"))?;
    let private = MountPropagationFlags::PRIVATE | MountPropagationFlags::REC;
    mount_change("/", private)
        .map_err(rustix::io::Errno::into)
        .map_err(BenchError::call("mount(/, MS_PRIVATE)"))?;
    mount_bind(HYBRID, CGROUP)
        .map_err(rustix::io::Errno::into)
        .map_err(BenchError::file("bind the version 2 tree over", CGROUP))?;
    let spawn_error = |source| BenchError::Spawn {
        program: launch.program.display().to_string(),
        source,
    };
    let directory = std::env::current_dir().map_err(BenchError::call("getcwd"))?;
    let stderr = rustix::io::fcntl_dupfd_cloexec(io::stderr(), 3)
        .map_err(rustix::io::Errno::into)
        .map_err(BenchError::call("fcntl(F_DUPFD_CLOEXEC)"))?;
    let program = Program::new(&launch.program, &launch.arguments, std::env::vars_os())
        .map_err(spawn_error)?;
    let prepared = Launch::new(program, &directory, stderr).map_err(spawn_error)?;
    serve(|| {
        let finished = prepared.run().map_err(ArmError::system("start it"))?;
        if finished.status.success() {
            Ok(finished.elapsed)
        } else {
            Err(ArmError::Result(finished.status.to_string()))
        }
    })
    .map_err(BenchError::call("reading requests"))
}
