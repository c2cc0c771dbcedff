//! System calls of the benchmarks: a start that costs little itself, a child in
//! new namespaces, and the calls that `bench syscalls` times and rustix does not offer.
//!
//! Nothing here belongs to a cage: no child made here is confined, it is only measured.

use rustix::process::{Pid, WaitOptions, waitpid};
use std::ffi::{CStr, CString, OsStr};
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::ExitStatus;
use std::time::{Duration, Instant};

/// All namespaces that a cage has, as `clone3` flags.
pub const ALL_NAMESPACES: u64 = (libc::CLONE_NEWUSER
    | libc::CLONE_NEWNS
    | libc::CLONE_NEWPID
    | libc::CLONE_NEWNET
    | libc::CLONE_NEWIPC
    | libc::CLONE_NEWUTS
    | libc::CLONE_NEWCGROUP
    | libc::CLONE_NEWTIME) as u64;

/// A program with its arguments and its whole environment, ready for `exec`.
#[derive(Debug, Clone)]
pub struct Program {
    path: CString,
    argv: Vec<CString>,
    environment: Vec<CString>,
}

fn c_string(text: &OsStr) -> io::Result<CString> {
    CString::new(text.as_bytes())
        .map_err(|_| io::Error::new(io::ErrorKind::InvalidInput, "a zero byte in an argument"))
}

/// Null-terminated, as `exec` wants it; borrows from `strings` without saying so, so it
/// never leaves the function that calls this.
fn pointers(strings: &[CString]) -> Vec<*mut libc::c_char> {
    strings
        .iter()
        .map(|s| s.as_ptr().cast_mut())
        .chain(std::iter::once(std::ptr::null_mut()))
        .collect()
}

impl Program {
    /// A program by its path (no search), with the arguments after its name.
    pub fn new<A, V>(
        path: &Path,
        arguments: impl IntoIterator<Item = A>,
        environment: impl IntoIterator<Item = (V, V)>,
    ) -> io::Result<Program>
    where
        A: AsRef<OsStr>,
        V: AsRef<OsStr>,
    {
        let path = c_string(path.as_os_str())?;
        let mut argv = vec![path.clone()];
        for argument in arguments {
            argv.push(c_string(argument.as_ref())?);
        }
        let mut variables = Vec::new();
        for (name, value) in environment {
            let mut pair = name.as_ref().to_os_string();
            pair.push("=");
            pair.push(value.as_ref());
            variables.push(c_string(&pair)?);
        }
        Ok(Program {
            path,
            argv,
            environment: variables,
        })
    }

    /// Replaces this process by the program; comes back only with the reason why not.
    pub fn exec(&self) -> io::Error {
        let argv = pointers(&self.argv);
        let environment = pointers(&self.environment);
        // SAFETY: path and both arrays are null-terminated and live until the call returns.
        unsafe {
            libc::execve(
                self.path.as_ptr(),
                argv.as_ptr().cast(),
                environment.as_ptr().cast(),
            )
        };
        io::Error::last_os_error()
    }
}

/// How one start went.
#[derive(Debug, Clone, Copy)]
pub struct FinishedStart {
    /// From just before the spawn to just after the exit was collected.
    pub elapsed: Duration,
    /// How the program ended.
    pub status: ExitStatus,
}

/// A program that is started again and again from the same state: standard input and
/// output on /dev/null, standard error in a file.
#[derive(Debug)]
pub struct Launch {
    program: Program,
    directory: CString,
    stderr: OwnedFd,
}

impl Launch {
    /// Prepares starts of `program` in `directory`.
    pub fn new(program: Program, directory: &Path, stderr: OwnedFd) -> io::Result<Launch> {
        Ok(Launch {
            program,
            directory: c_string(directory.as_os_str())?,
            stderr,
        })
    }

    /// Starts the program and does not wait. `posix_spawn` and not `fork`: its cost does
    /// not grow with the memory of the caller.
    pub fn spawn(&self) -> io::Result<Pid> {
        let actions = FileActions::new(&self.directory, &self.stderr)?;
        self.spawn_with(&actions)
    }

    /// Starts the program, waits for its end, and says how long that took.
    pub fn run(&self) -> io::Result<FinishedStart> {
        let actions = FileActions::new(&self.directory, &self.stderr)?;
        let started = Instant::now();
        let pid = self.spawn_with(&actions)?;
        let status = wait_for(pid)?;
        let elapsed = started.elapsed();
        Ok(FinishedStart { elapsed, status })
    }

    fn spawn_with(&self, actions: &FileActions) -> io::Result<Pid> {
        let argv = pointers(&self.program.argv);
        let environment = pointers(&self.program.environment);
        let mut pid: libc::pid_t = 0;
        // SAFETY: every pointer is to a live, null-terminated string or array, `actions`
        // was initialised by FileActions::new, and `pid` is ours to be written.
        let error = unsafe {
            libc::posix_spawn(
                &mut pid,
                self.program.path.as_ptr(),
                actions.0.as_ptr(),
                std::ptr::null(),
                argv.as_ptr(),
                environment.as_ptr(),
            )
        };
        check(error)?;
        Pid::from_raw(pid).ok_or_else(|| io::Error::other("posix_spawn gave no process id"))
    }
}

/// Waits until a child has ended.
pub fn wait_for(pid: Pid) -> io::Result<ExitStatus> {
    loop {
        match waitpid(Some(pid), WaitOptions::empty()) {
            Ok(Some((_, status))) => return Ok(ExitStatus::from_raw(status.as_raw())),
            Ok(None) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

fn check(error: libc::c_int) -> io::Result<()> {
    match error {
        0 => Ok(()),
        code => Err(io::Error::from_raw_os_error(code)),
    }
}

struct FileActions(MaybeUninit<libc::posix_spawn_file_actions_t>);

impl FileActions {
    fn new(directory: &CStr, stderr: &OwnedFd) -> io::Result<FileActions> {
        let mut actions = MaybeUninit::uninit();
        // SAFETY: the call initialises the memory that it is given.
        let made = unsafe { libc::posix_spawn_file_actions_init(actions.as_mut_ptr()) };
        check(made)?;
        let mut actions = FileActions(actions);
        let raw = actions.0.as_mut_ptr();
        for (number, flags) in [(0, libc::O_RDONLY), (1, libc::O_WRONLY)] {
            // SAFETY: `raw` is initialised and the path is a literal; the call copies it.
            let added = unsafe {
                libc::posix_spawn_file_actions_addopen(raw, number, c"/dev/null".as_ptr(), flags, 0)
            };
            check(added)?;
        }
        // SAFETY: `raw` is initialised; a bad descriptor would only make the spawn fail.
        let added = unsafe { libc::posix_spawn_file_actions_adddup2(raw, stderr.as_raw_fd(), 2) };
        check(added)?;
        // SAFETY: `raw` is initialised; the call copies the string.
        let added = unsafe { libc::posix_spawn_file_actions_addchdir_np(raw, directory.as_ptr()) };
        check(added)?;
        Ok(actions)
    }
}

impl Drop for FileActions {
    fn drop(&mut self) {
        // SAFETY: a value of this type exists only after a successful init.
        unsafe { libc::posix_spawn_file_actions_destroy(self.0.as_mut_ptr()) };
    }
}

/// Makes a child by `clone3` in new namespaces, which runs `body` and leaves with what it
/// returns. The child is a copy of this process, as after `fork`; a process with threads
/// is refused, since a lock that another thread holds stays locked in the copy.
pub fn clone_child(namespaces: u64, body: impl FnOnce() -> u8) -> io::Result<Pid> {
    if !is_single_threaded()? {
        return Err(io::Error::other("a process with threads cannot be copied"));
    }
    let arguments = libc::clone_args {
        flags: namespaces,
        pidfd: 0,
        child_tid: 0,
        parent_tid: 0,
        exit_signal: libc::SIGCHLD as u64,
        stack: 0,
        stack_size: 0,
        tls: 0,
        set_tid: 0,
        set_tid_size: 0,
        cgroup: 0,
    };
    // SAFETY: the arguments live through the call and share no memory (no CLONE_VM), so
    // the child runs on its own copy of this stack.
    let made = unsafe {
        libc::syscall(
            libc::SYS_clone3,
            &raw const arguments,
            size_of::<libc::clone_args>(),
        )
    };
    match made {
        -1 => Err(io::Error::last_os_error()),
        0 => {
            let code = body();
            // SAFETY: ends the child without running what the parent registered for exit.
            unsafe { libc::_exit(libc::c_int::from(code)) }
        }
        pid => i32::try_from(pid)
            .ok()
            .and_then(Pid::from_raw)
            .ok_or_else(|| io::Error::other("clone3 gave no process id")),
    }
}

/// Whether this process has no thread but the one that asks. One `stat`, since it is asked
/// before every child: the directory has two links of its own and one for each thread.
fn is_single_threaded() -> io::Result<bool> {
    Ok(rustix::fs::stat(c"/proc/self/task")?.st_nlink == 3)
}

/// One `fork` whose child ends at once, collected.
pub fn fork_and_wait() -> io::Result<()> {
    // SAFETY: the child calls nothing but _exit.
    let pid = unsafe { libc::fork() };
    match pid {
        -1 => Err(io::Error::last_os_error()),
        // SAFETY: ends the child at once; nothing of the parent's is flushed or dropped.
        0 => unsafe { libc::_exit(0) },
        pid => {
            let pid = Pid::from_raw(pid).ok_or_else(|| io::Error::other("fork gave no id"))?;
            wait_for(pid).map(|_| ())
        }
    }
}

/// Puts this process in a mount namespace of its own.
pub fn unshare_mounts() -> io::Result<()> {
    // SAFETY: takes no pointer; file descriptors and memory stay as they are.
    match unsafe { libc::unshare(libc::CLONE_NEWNS) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Makes a mount, and all below it, read-only, without set-user-id and devices. Only adds:
/// flags that an unprivileged user may not take away stay.
pub fn make_read_only(target: &CStr) -> io::Result<()> {
    let attributes = libc::mount_attr {
        attr_set: libc::MOUNT_ATTR_RDONLY | libc::MOUNT_ATTR_NOSUID | libc::MOUNT_ATTR_NODEV,
        attr_clr: 0,
        propagation: 0,
        userns_fd: 0,
    };
    // SAFETY: path and attributes live through the call; the size is that of the struct.
    let changed = unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            libc::AT_FDCWD,
            target.as_ptr(),
            libc::AT_RECURSIVE,
            &raw const attributes,
            size_of::<libc::mount_attr>(),
        )
    };
    match changed {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn null() -> OwnedFd {
        std::fs::File::options()
            .write(true)
            .open("/dev/null")
            .unwrap()
            .into()
    }

    fn shell(script: &str) -> Launch {
        let variables = [("GREETING", "hello")];
        let program = Program::new(Path::new("/bin/sh"), ["-c", script], variables).unwrap();
        Launch::new(program, Path::new("/usr"), null()).unwrap()
    }

    #[test]
    fn launch_reports_the_exit_status_of_the_program() {
        assert_eq!(shell("exit 7").run().unwrap().status.code(), Some(7));
        assert_eq!(shell("exit 0").run().unwrap().status.code(), Some(0));
    }

    #[test]
    fn launch_sets_directory_and_environment_and_nothing_else() {
        let sees = shell("test \"$PWD\" = /usr && test \"$GREETING\" = hello && test -z \"$HOME\"");
        assert!(sees.run().unwrap().status.success());
        let lacks = shell("test \"$GREETING\" = bye");
        assert!(!lacks.run().unwrap().status.success());
    }

    #[test]
    fn launch_of_a_missing_program_is_an_error() {
        let none: [(&str, &str); 0] = [];
        let program = Program::new(Path::new("/nonexistent/x"), [""; 0], none).unwrap();
        let launch = Launch::new(program, Path::new("/"), null()).unwrap();
        assert_eq!(launch.run().unwrap_err().kind(), io::ErrorKind::NotFound);
    }

    #[test]
    fn zero_byte_in_an_argument_is_refused() {
        let none: [(&str, &str); 0] = [];
        assert!(Program::new(Path::new("/bin/true"), ["a\0b"], none).is_err());
    }

    // The test harness has threads, so the allowing arm is the floor's own test in bench.
    #[test]
    fn clone_child_in_a_process_with_threads_is_refused() {
        let error = clone_child(0, || 0).unwrap_err();
        assert!(error.to_string().contains("threads"), "{error}");
    }

    #[test]
    fn fork_and_wait_collects_its_child() {
        fork_and_wait().unwrap();
    }
}
