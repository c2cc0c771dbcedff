//! Between the init and a command: enters the root, becomes the agent, gives up the rest, executes.

use crate::boot::{FILTER, ROOT};
use ironcage_sys::process::{drop_bounding_set, give_up_capabilities};
use ironcage_sys::rustix::fs::Mode;
use ironcage_sys::rustix::process::{Gid, Resource, Rlimit, Uid, chdir, chroot, setrlimit, umask};
use ironcage_sys::rustix::thread::{
    set_no_new_privs, set_thread_groups, set_thread_res_gid, set_thread_res_uid,
};
use ironcage_sys::seccomp::{decode, install_plain};
use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::process::CommandExt as _;
use std::process::{Command, ExitCode};

/// The words before those of the command: ids, bounds, whether it is root, directory, program.
pub(crate) const WORDS: usize = 7;

/// Executes the command that the words name, or says why not with a shell's exit status.
pub(crate) fn run(words: Vec<OsString>) -> ExitCode {
    let (Some(fixed), Some(argv)) = (words.get(..WORDS), words.get(WORDS..)) else {
        return ExitCode::from(125);
    };
    let [uid, gid, files, processes, root, cwd, program] = fixed else {
        return ExitCode::from(125);
    };
    let numbers = [uid, gid, files, processes, root].map(|word| word.to_str()?.parse::<u64>().ok());
    let [
        Some(uid),
        Some(gid),
        Some(files),
        Some(processes),
        Some(root),
    ] = numbers
    else {
        return ExitCode::from(125);
    };
    let entered = match root {
        0 => enter(),
        // The init is in the root of the guest itself, and nothing is taken away.
        _ => Ok(Vec::new()),
    };
    let confined = entered.and_then(|filter| {
        bound([files, processes])?;
        match root {
            0 => confine([uid as u32, gid as u32], cwd, &filter),
            _ => Ok(chdir(cwd)?),
        }
    });
    if let Err(error) = confined {
        eprintln!("ironcage: cannot become the agent in the guest: {error}");
        return ExitCode::from(125);
    }
    let mut command = Command::new(program);
    if let Some((name, rest)) = argv.split_first() {
        command.arg0(name).args(rest);
    }
    let error = command.exec();
    eprintln!("ironcage: cannot execute {}: {error}", program.display());
    match error.kind() {
        io::ErrorKind::NotFound => ExitCode::from(127),
        _ => ExitCode::from(126),
    }
}

/// Enters the shared root; gives the system call filter.
fn enter() -> io::Result<Vec<u8>> {
    // Read while this process still sees the initramfs.
    let filter = std::fs::read(FILTER)?;
    chroot(ROOT)?;
    Ok(filter)
}

/// The limits of the cage on one process.
fn bound([files, processes]: [u64; 2]) -> io::Result<()> {
    umask(Mode::from_raw_mode(0o022));
    for (resource, value) in [
        (Resource::Nofile, files),
        (Resource::Nproc, processes),
        (Resource::Core, 1),
    ] {
        let limit = Rlimit {
            current: Some(value),
            maximum: Some(value),
        };
        setrlimit(resource, limit)?;
    }
    Ok(())
}

/// Becomes the agent, and gives up the rest.
fn confine([uid, gid]: [u32; 2], cwd: &OsStr, filter: &[u8]) -> io::Result<()> {
    let instructions = decode(filter);
    // Before the ids: it takes a capability that goes with them.
    drop_bounding_set(0)?;
    let (uid, gid) = (Uid::from_raw(uid), Gid::from_raw(gid));
    set_thread_groups(&[])?;
    set_thread_res_gid(gid, gid, gid)?;
    set_thread_res_uid(uid, uid, uid)?;
    give_up_capabilities()?;
    chdir(cwd)?;
    set_no_new_privs(true)?;
    // Last, because it denies what the steps before need.
    if !instructions.is_empty() {
        install_plain(&instructions)?;
    }
    Ok(())
}
