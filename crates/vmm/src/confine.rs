//! The file server and QEMU give up more than their cage takes: system calls by lists of their own,
//! and for QEMU every file that it does not need to start.
//!
//! The cage holds either way. This is for a guest that breaks out of one of the two: it is left with
//! less than an agent in a namespace cage has.

use crate::{VmError, doing, machine};
use ironcage_guest::{KVM, MachineConfig, PLACE};
use ironcage_sys::rustix::thread::set_no_new_privs;
use ironcage_sys::seccomp::{decode, install_plain};
use landlock::{
    ABI, Access as _, AccessFs, AccessNet, BitFlags, CompatLevel, Compatible as _, PathBeneath,
    PathFd, Ruleset, RulesetAttr as _, RulesetCreatedAttr as _, Scope,
};
use std::ffi::OsString;
use std::io;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Command, ExitCode};

/// Directories that QEMU, its libraries and its firmware are in, and those of the guest's files.
const TREES: [&str; 7] = ["/usr", "/bin", "/sbin", "/lib", "/lib64", "/opt", PLACE];
/// Single files: where libraries are, what libnuma asks for, and the time zone.
const FILES: [&str; 7] = [
    "/etc/ld.so.cache",
    "/etc/localtime",
    "/dev/urandom",
    "/proc/filesystems",
    "/proc/stat",
    "/proc/cpuinfo",
    "/proc/meminfo",
];

/// Installs a filter of the machine's description.
pub(crate) fn install(filter: &[u8]) -> Result<(), VmError> {
    let action = "install the system call filter";
    set_no_new_privs(true).map_err(doing(action))?;
    match decode(filter).as_slice() {
        [] => Err(doing(action)(io::Error::from(io::ErrorKind::InvalidData))),
        program => install_plain(program).map_err(doing(action)),
    }
}

/// Executes a program as the VMM is: `confined MACHINE PROGRAM ARGUMENTS...`.
pub(crate) fn run(words: &[OsString]) -> Result<ExitCode, VmError> {
    let [description, program, arguments @ ..] = words else {
        return Err(doing("read the command")(io::Error::from(
            io::ErrorKind::InvalidInput,
        )));
    };
    let config = machine::read(Path::new(description))?;
    set_no_new_privs(true).map_err(doing("set no_new_privs"))?;
    restrict_files(&config)?;
    install(&config.vmm_filter)?;
    let error = Command::new(program).args(arguments).exec();
    Err(doing(format!("start {}", program.display()))(error))
}

/// Reads what it needs to start, writes nothing, and connects nowhere by TCP in a cage without a
/// network. An older kernel holds less of it; the cage holds either way.
fn restrict_files(config: &MachineConfig) -> Result<(), VmError> {
    let wrong =
        |error: landlock::RulesetError| doing("make the Landlock ruleset")(io::Error::other(error));
    let mut net: BitFlags<AccessNet> = AccessNet::BindTcp.into();
    if !config.guest.network {
        net |= AccessNet::ConnectTcp;
    }
    let mut ruleset = Ruleset::default()
        .set_compatibility(CompatLevel::BestEffort)
        .handle_access(AccessFs::from_all(ABI::V5))
        .and_then(|ruleset| ruleset.handle_access(net))
        .and_then(|ruleset| ruleset.scope(Scope::Signal))
        .and_then(Ruleset::create)
        .map_err(wrong)?;
    let tree = AccessFs::ReadFile | AccessFs::ReadDir | AccessFs::Execute;
    let trees = TREES.into_iter().map(|place| (place, tree));
    let files = FILES.map(|place| (place, AccessFs::ReadFile.into()));
    for (place, rights) in trees.chain(files) {
        // A view need not have each of them.
        let Ok(place) = PathFd::new(place) else {
            continue;
        };
        ruleset = ruleset
            .add_rule(PathBeneath::new(place, rights))
            .map_err(wrong)?;
    }
    if config.kvm {
        let place =
            PathFd::new(KVM).map_err(|error| doing("open /dev/kvm")(io::Error::other(error)))?;
        let rights = AccessFs::ReadFile | AccessFs::WriteFile | AccessFs::IoctlDev;
        ruleset = ruleset
            .add_rule(PathBeneath::new(place, rights))
            .map_err(wrong)?;
    }
    ruleset.restrict_self().map(drop).map_err(wrong)
}
