//! The namespaces in which the stage lives: nothing of the machine's own is in them that a
//! probe could harm, and all of it goes when their first process ends.

use super::listeners::METADATA;
use super::{StageError, files::c_path, making, sweep};
use ironcage_sys::attack::{self, ChildEnd};
use ironcage_sys::rustix::mount::{MountPropagationFlags, mount_change};
use ironcage_sys::rustix::process::{
    Pid, Signal, WaitOptions, getegid, geteuid, getppid, kill_process, waitpid,
};
use ironcage_sys::rustix::system::sethostname;
use ironcage_sys::rustix::thread::set_name;
use std::ffi::CString;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

const NEWNS: i32 = ironcage_sys::rustix::thread::UnshareFlags::NEWNS.bits() as i32;
const NEWUTS: i32 = ironcage_sys::rustix::thread::UnshareFlags::NEWUTS.bits() as i32;
const NEWIPC: i32 = ironcage_sys::rustix::thread::UnshareFlags::NEWIPC.bits() as i32;
const NEWUSER: i32 = ironcage_sys::rustix::thread::UnshareFlags::NEWUSER.bits() as i32;
const NEWPID: i32 = ironcage_sys::rustix::thread::UnshareFlags::NEWPID.bits() as i32;
const NEWNET: i32 = ironcage_sys::rustix::thread::UnshareFlags::NEWNET.bits() as i32;

const SIGTERM: i32 = ironcage_sys::rustix::process::Signal::TERM.as_raw();
const SIGCHLD: i32 = ironcage_sys::rustix::process::Signal::CHILD.as_raw();
/// HUP, INT and TERM end the stage; CHLD tells of its end.
const HEARD: [i32; 4] = [1, 2, SIGTERM, SIGCHLD];

/// Enters the namespaces and runs `suite` in them, below a first process that collects orphans.
///
/// Preconditions: the caller has one thread.
pub(crate) fn run_in_stage(
    home: &Path,
    hostname: &str,
    suite: impl FnOnce() -> i32,
) -> Result<i32, StageError> {
    let parent = getppid();
    let (uid, gid) = (geteuid().as_raw(), getegid().as_raw());
    let kinds = NEWNS | NEWUTS | NEWIPC | NEWPID | NEWNET;
    if uid == 0 {
        attack::share_nothing(kinds).map_err(making("namespaces"))?;
    } else {
        attack::share_nothing(kinds | NEWUSER).map_err(making("a user namespace"))?;
        // The same id inside: probes run as the user who runs the suite.
        let write = |file: &str, text: String| {
            std::fs::write(format!("/proc/self/{file}"), text).map_err(making(file))
        };
        write("uid_map", format!("{uid} {uid} 1"))?;
        write("setgroups", "deny".to_owned())?;
        write("gid_map", format!("{gid} {gid} 1"))?;
        // A small number of its own: what a probe uses up is the stage's, not the user's.
        std::fs::write("/proc/sys/user/max_inotify_instances", "64")
            .map_err(making("a counter of its own"))?;
    }
    // Now, not earlier: a change of credentials clears it. Not the end at once: what the
    // sandboxes leave outside these namespaces is taken away first.
    attack::block_signals(&HEARD);
    attack::hear_of_parent(SIGTERM).map_err(making("the bond to the parent"))?;
    let first = attack::fork_start(|| {
        attack::unblock_signals(&HEARD);
        match first_process(home, hostname, suite) {
            Ok(code) => code,
            Err(error) => {
                let source = std::error::Error::source(&error).map(ToString::to_string);
                eprintln!("ironcage: {error}: {}", source.unwrap_or_default());
                125
            }
        }
    });
    let first = first.map_err(making("the first process"))?;
    let end = loop {
        let ended = waitpid(Some(first), WaitOptions::NOHANG);
        if let Some((_, status)) = ended.map_err(making("the first process"))? {
            break status.exit_status().unwrap_or(125);
        }
        let orphaned = getppid().map(Pid::as_raw_nonzero) != parent.map(Pid::as_raw_nonzero);
        let heard = attack::wait_signal(&HEARD, Duration::from_millis(500));
        if orphaned || heard.is_some_and(|signal| signal.0 != SIGCHLD) {
            // The kernel ends everything on the stage with its first process.
            kill_process(first, Signal::KILL).map_err(making("the end"))?;
        }
    };
    sweep::remove_groups(home);
    Ok(end)
}

fn code_of(end: ChildEnd) -> i32 {
    match end {
        ChildEnd::Exited(code) => code,
        ChildEnd::Killed(signal) => 128 + signal,
    }
}

fn first_process(
    home: &Path,
    hostname: &str,
    suite: impl FnOnce() -> i32,
) -> Result<i32, StageError> {
    attack::die_with_parent().map_err(making("the bond to the parent"))?;
    // A host has threads of the kernel among its first processes. firejail looks for one, and adds
    // nothing where there is none.
    set_name(c"kthreadd").map_err(making("its name"))?;
    let private = MountPropagationFlags::PRIVATE | MountPropagationFlags::REC;
    mount_change("/", private).map_err(making("private mounts"))?;
    attack::mount_fs(c"proc", c"/proc", None).map_err(making("/proc"))?;
    let mount_tmpfs = |target: &Path, data: &str| {
        let data = CString::new(data).map_err(io::Error::from);
        let target = c_path(target);
        target
            .and_then(|target| Ok((target, data?)))
            .and_then(|(target, data)| Ok(attack::mount_fs(c"tmpfs", &target, Some(&data))?))
    };
    let places: [(&Path, &str); 4] = [
        (Path::new("/tmp"), "mode=1777,size=512m"),
        (Path::new("/dev/shm"), "mode=1777,size=64m"),
        (Path::new("/run"), "mode=755,size=16m"),
        (home, "mode=700,size=1g"),
    ];
    for (target, data) in places {
        mount_tmpfs(target, data).map_err(making(target.display().to_string()))?;
    }
    own_resolver().map_err(making("a resolver of its own"))?;
    sethostname(hostname.as_bytes()).map_err(making("a host name"))?;
    attack::loopback_up().map_err(making("the loopback interface"))?;
    for address in METADATA {
        attack::add_loopback_address(address).map_err(making(format!("address {address}")))?;
    }
    std::env::set_current_dir(home).map_err(making("the home directory"))?;
    let suite = attack::fork_start(|| {
        if attack::die_with_parent().is_err() {
            return 125;
        }
        suite()
    });
    let suite = suite.map_err(making("the suite's process"))?;
    attack::run_as_init(suite)
        .map(code_of)
        .map_err(making("the suite's process"))
}

/// Makes the stage's listener on port 53 the host's resolver, so that a proxy which passed
/// questions on would be heard. Without such a file that is the custom anyway.
fn own_resolver() -> io::Result<()> {
    let settings = "nameserver 127.0.0.1\n";
    let target = Path::new("/etc/resolv.conf");
    if let Ok(file) = target.canonicalize() {
        let own = Path::new("/run/stage-resolver");
        std::fs::write(own, settings)?;
        return Ok(attack::bind_mount(&c_path(own)?, &c_path(&file)?, false)?);
    }
    // A link to where something of the system's would have written it, which is covered now.
    match std::fs::read_link(target) {
        Ok(link) => {
            let file = Path::new("/etc").join(link);
            file.parent().map_or(Ok(()), std::fs::create_dir_all)?;
            std::fs::write(file, settings)
        }
        Err(_) => Ok(()),
    }
}

/// The directory that stands for the user's home: his own path, covered by an empty file system.
pub(crate) fn home_directory() -> Result<PathBuf, StageError> {
    let home = std::env::var_os("HOME")
        .map(PathBuf::from)
        .and_then(|home| home.canonicalize().ok());
    let usable = |path: &PathBuf| {
        path.is_dir()
            && path.parent().is_some()
            && !path.starts_with("/tmp")
            && !path.starts_with("/run")
    };
    home.filter(usable)
        .or_else(|| Some(PathBuf::from("/home")).filter(usable))
        .ok_or_else(|| {
            making("a home")(io::Error::other(
                "HOME is not a directory that can be covered",
            ))
        })
}
