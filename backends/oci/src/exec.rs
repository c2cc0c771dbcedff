//! The command and every exec: what is ordered is the runtime's `exec` of it.
//!
//! crun is called directly. runc and runsc are called by a program of Ironcage's, which makes up for
//! what theirs leaves out (`ironcage-inside`, `container_exec.rs`).

use crate::bundle::{Locks, Program, ROOT};
use crate::runtimes::{in_view, options};
use ironcage_backend::{Execution, Images};
use ironcage_plan::{CONTAINER_INIT, OciRuntime, RuntimeProgram};
use ironcage_sys::rustix::fs::{
    CWD, FileType, Mode, OFlags, ResolveFlags, fstat, openat, openat2, unlink,
};
use ironcage_sys::rustix::io::Errno;
use ironcage_sys::spawn::Image;
use std::ffi::CString;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// The container's name: there is no other where it is kept.
pub(crate) const NAME: &str = "cage";
/// Where the runtime looks for programs and keeps its own things: nothing of the caller's.
pub(crate) const ENVIRONMENT: [(&str, &str); 3] = [
    (
        "PATH",
        "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    ),
    ("HOME", "/tmp"),
    ("XDG_RUNTIME_DIR", "/tmp"),
];

/// From orders to calls of the runtime.
#[derive(Debug)]
pub(crate) struct Calls {
    /// What is executed for each command, before the words of `exec`.
    caller: Caller,
    env: Vec<CString>,
    locks: Locks,
    root: OwnedFd,
}

impl Calls {
    pub(crate) fn new(runtime: &OciRuntime, locks: Locks) -> Result<Calls, Errno> {
        let env = ENVIRONMENT.map(|(name, value)| format!("{name}={value}"));
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        Ok(Calls {
            caller: Caller::of(runtime)?,
            env: texts(&env)?,
            locks,
            root: openat(CWD, ROOT, flags, Mode::empty())?,
        })
    }

    /// The first candidate that can be executed in the container, as a search in PATH finds it.
    fn find<'a>(&self, candidates: &'a [CString]) -> Result<&'a CString, Errno> {
        let mut answer = Errno::NOENT;
        for candidate in candidates {
            let path = candidate.as_bytes();
            let below = path.strip_prefix(b"/").unwrap_or(path);
            let found = openat2(
                &self.root,
                below,
                OFlags::PATH | OFlags::CLOEXEC,
                Mode::empty(),
                ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS,
            )
            .and_then(fstat);
            match found {
                Err(Errno::NOENT | Errno::NOTDIR) => {}
                Err(error) => answer = error,
                Ok(stat) => {
                    let regular = FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile;
                    if regular && stat.st_mode & 0o111 != 0 {
                        return Ok(candidate);
                    }
                    // It is there, but is a directory or may not be executed.
                    answer = Errno::ACCESS;
                }
            }
        }
        Err(answer)
    }
}

/// How a command is executed: by the runtime itself, or by a program of Ironcage's that calls it.
#[derive(Debug)]
struct Caller {
    program: CString,
    words: Vec<CString>,
    called: bool,
}

impl Caller {
    fn of(runtime: &OciRuntime) -> Result<Caller, Errno> {
        let path = CString::new(runtime.path.as_os_str().as_bytes()).map_err(|_| Errno::INVAL)?;
        let mut words = vec![path.clone()];
        words.extend(texts(options(runtime.program))?);
        if runtime.program == RuntimeProgram::Crun {
            return Ok(Caller {
                program: path,
                words,
                called: false,
            });
        }
        let helper = in_view(Path::new(CONTAINER_INIT));
        let helper = CString::new(helper.as_os_str().as_bytes()).map_err(|_| Errno::INVAL)?;
        let before = texts(&["ironcage", "__container-exec", runtime.program.name()])?;
        words.splice(0..0, before);
        Ok(Caller {
            program: helper,
            words,
            called: true,
        })
    }

    fn argv(&self, number: u32, process: &str) -> Result<Vec<CString>, Errno> {
        let mut words = self.words.clone();
        if self.called {
            // Between the helper's own words and the runtime's.
            words.splice(3..3, texts(&[&pid_file(number), NAME, process])?);
        } else {
            words.extend(texts(&["exec", "--process", process, NAME])?);
        }
        Ok(words)
    }
}

fn texts(words: &[impl AsRef<str>]) -> Result<Vec<CString>, Errno> {
    let text = |word: &_| CString::new(AsRef::<str>::as_ref(word)).map_err(|_| Errno::INVAL);
    words.iter().map(text).collect()
}

fn pid_file(number: u32) -> String {
    format!("/tmp/process-{number}.pid")
}

fn file(number: u32) -> String {
    format!("/tmp/process-{number}.json")
}

/// Words as the runtime's JSON holds them: others than UTF-8 it cannot.
fn words(bytes: &[CString]) -> Result<Vec<String>, Errno> {
    let word = |bytes: &CString| bytes.to_str().map(str::to_owned).map_err(|_| Errno::ILSEQ);
    bytes.iter().map(word).collect()
}

impl Images for Calls {
    fn image(&mut self, number: u32, order: Execution, terminal: bool) -> Result<Image, Errno> {
        if terminal {
            return Err(Errno::NOTTY);
        }
        let path = self.find(&order.candidates)?;
        let mut args = words(&order.argv)?;
        let program = path.to_str().map_err(|_| Errno::ILSEQ)?.to_owned();
        match args.first_mut() {
            Some(first) => *first = program,
            None => args.push(program),
        }
        let cwd = words(&order.cwd)?;
        let process = self.locks.process(&Program {
            args: &args,
            env: &words(&order.envp)?,
            cwd: cwd.first().map_or("/", String::as_str),
            terminal,
        });
        let file = file(number);
        std::fs::write(&file, process.to_string())
            .map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))?;
        Ok(Image {
            path: self.caller.program.clone(),
            argv: self.caller.argv(number, &file)?,
            envp: self.env.clone(),
            cwd: None,
        })
    }

    fn ended(&mut self, number: u32) {
        // It holds the environment of the program: not kept longer than needed.
        let _ = unlink(file(number));
        let _ = unlink(pid_file(number));
    }
}
