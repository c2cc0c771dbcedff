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

/// The words before those of the command: ids, bounds, directory, program.
pub(crate) const WORDS: usize = 6;

/// Executes the command that the words name, or says why not with a shell's exit status.
pub(crate) fn run(words: Vec<OsString>) -> ExitCode {
    let (Some(fixed), Some(argv)) = (words.get(..WORDS), words.get(WORDS..)) else {
        return ExitCode::from(125);
    };
    let [uid, gid, files, processes, cwd, program] = fixed else {
        return ExitCode::from(125);
    };
    let numbers = [uid, gid, files, processes].map(|word| word.to_str()?.parse::<u64>().ok());
    let [Some(uid), Some(gid), Some(files), Some(processes)] = numbers else {
        return ExitCode::from(125);
    };
    if let Err(error) = confine([uid as u32, gid as u32], files, processes, cwd) {
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

fn confine([uid, gid]: [u32; 2], files: u64, processes: u64, cwd: &OsStr) -> io::Result<()> {
    // Read while this process still sees the initramfs.
    let filter = std::fs::read(FILTER)?;
    let instructions = decode(&filter);
    chroot(ROOT)?;
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
