//! The proxy's own cage: no files, no capabilities, few system calls.
//!
//! It stays in the host's network namespace, because connections go out from there; what a
//! proxy that is taken over can still do is to make connections.

use ironcage_plan::Network;
use ironcage_sys::rustix::process::{
    DumpableBehavior, Resource, Rlimit, Signal, getppid, getrlimit, set_dumpable_behavior,
    set_parent_process_death_signal, setrlimit, setsid,
};
use ironcage_sys::rustix::stdio;
use ironcage_sys::rustix::thread::{
    CapabilitySet, CapabilitySets, clear_ambient_capability_set, set_capabilities, set_name,
    set_no_new_privs, set_thread_res_gid, set_thread_res_uid,
};
use ironcage_sys::{process, seccomp};
use landlock::{
    ABI, Access, AccessFs, AccessNet, BitFlags, CompatLevel, Compatible, NetPort, PathBeneath,
    Ruleset, RulesetAttr, RulesetCreatedAttr, Scope,
};
use std::io;
use std::os::fd::{AsFd, BorrowedFd};

/// Most memory of the reader of models' answers: what it keeps of them is bounded far below.
const READER_MEMORY: u64 = 1 << 30;
/// The same for the proxy, which no limit of the cage counts. Connections have budgets far below; what
/// they miss ends the proxy, and not the host.
const PROXY_MEMORY: u64 = 2 << 30;

/// Where the proxy's process could not be confined.
#[derive(Debug, thiserror::Error)]
#[error("cannot {action}")]
pub(crate) struct ConfineError {
    action: &'static str,
    source: io::Error,
}

fn failed<E: Into<io::Error>>(action: &'static str) -> impl FnOnce(E) -> ConfineError {
    move |source| ConfineError {
        action,
        source: source.into(),
    }
}

impl ConfineError {
    /// With its source, in one line.
    pub(crate) fn in_full(&self) -> String {
        format!("{self}: {}", self.source)
    }
}

/// Ids to become, where root starts the door.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ProxyIds {
    /// User and group.
    pub id: u32,
}

/// First steps, before anything is waited for: die with the supervisor, let go of what is its.
pub(crate) fn detach(
    parent: Option<i32>,
    keep: &[BorrowedFd<'_>],
    name: &std::ffi::CStr,
) -> Result<(), ConfineError> {
    die_with(parent)?;
    // Away from the terminal: its interrupts are for the command.
    setsid().map_err(failed("start a session"))?;
    let null = ironcage_sys::rustix::fs::open(
        "/dev/null",
        ironcage_sys::rustix::fs::OFlags::RDWR | ironcage_sys::rustix::fs::OFlags::CLOEXEC,
        ironcage_sys::rustix::fs::Mode::empty(),
    )
    .map_err(failed("open /dev/null"))?;
    stdio::dup2_stdin(&null).map_err(failed("let the caller's streams go"))?;
    stdio::dup2_stdout(&null).map_err(failed("let the caller's streams go"))?;
    stdio::dup2_stderr(&null).map_err(failed("let the caller's streams go"))?;
    drop(null);
    process::close_all_but(keep).map_err(failed("close descriptors"))?;
    process::wipe_arguments_and_environment();
    let _ = set_name(name);
    Ok(())
}

/// Confines the calling process as a proxy is whose rules are about these ports, so that it can be
/// tried what somebody who has taken one over could do. Its streams stay.
///
/// # Errors
/// Where a part of it does not hold.
pub fn confine_as_proxy(
    ports: &[u16],
    filter: &[ironcage_plan::seccomp::Instruction],
    ids: Option<ProxyIds>,
) -> io::Result<()> {
    let wrong = |error: ConfineError| io::Error::other(error.in_full());
    setsid()?;
    process::close_all_but(&[])?;
    process::wipe_arguments_and_environment();
    restrict(Some(ports.to_vec()), filter, ids)
        .map(drop)
        .map_err(wrong)
}

/// First steps of a process that the proxy has forked: die with it, keep one socket.
pub(crate) fn end_with_parent(parent: i32, keep: BorrowedFd<'_>) -> Result<(), ConfineError> {
    die_with(Some(parent))?;
    process::close_all_but(&[keep.as_fd()]).map_err(failed("close descriptors"))?;
    let _ = set_name(c"ironcage-login");
    Ok(())
}

/// Takes everything away from the reader of models' answers but its socket and memory.
pub(crate) fn confine_reader(
    filter: &[ironcage_plan::seccomp::Instruction],
    ids: Option<ProxyIds>,
) -> Result<(), ConfineError> {
    for resource in [Resource::Core, Resource::Nproc, Resource::Fsize] {
        bound(resource, 0)?;
    }
    bound(Resource::As, READER_MEMORY)?;
    become_nobody(ids)?;
    give_up()?;
    landlock(Some(Vec::new()))?;
    seccomp::install_plain(&program(filter)).map_err(failed("install the system call filter"))
}

/// Takes everything away that the refresher of a login does not need: it has the directory of its
/// file, connections to the ports of its server, of upstream proxies and of resolvers, and starts
/// nothing.
pub(crate) fn confine_token_refresher(
    directory: BorrowedFd<'_>,
    ports: &[u16],
) -> Result<(), ConfineError> {
    for resource in [Resource::Core, Resource::Nproc] {
        bound(resource, 0)?;
    }
    give_up()?;
    let wrong = |error: landlock::RulesetError| ConfineError {
        action: "make the Landlock ruleset",
        source: io::Error::other(error),
    };
    let files = AccessFs::ReadFile
        | AccessFs::ReadDir
        | AccessFs::WriteFile
        | AccessFs::Truncate
        | AccessFs::MakeReg
        | AccessFs::RemoveFile;
    let connect = |port| NetPort::new(port, AccessNet::ConnectTcp);
    let ruleset = Ruleset::default()
        .set_compatibility(CompatLevel::BestEffort)
        .handle_access(AccessFs::from_all(ABI::V5))
        .and_then(|ruleset| ruleset.handle_access(AccessNet::BindTcp | AccessNet::ConnectTcp))
        .and_then(|ruleset| ruleset.scope(Scope::AbstractUnixSocket | Scope::Signal))
        .and_then(Ruleset::create)
        .and_then(|ruleset| ruleset.add_rule(PathBeneath::new(directory, files)));
    let ports = ports.iter().copied().chain([53]);
    ports
        .fold(ruleset, |ruleset, port| {
            ruleset.and_then(|ruleset| ruleset.add_rule(connect(port)))
        })
        .and_then(|ruleset| ruleset.restrict_self())
        .map(drop)
        .map_err(wrong)
}

/// Sets a limit for good. One that is lower already stays.
fn bound(resource: Resource, most: u64) -> Result<(), ConfineError> {
    let before = getrlimit(resource);
    let most = before.maximum.map_or(most, |before| before.min(most));
    let limit = Rlimit {
        current: Some(before.current.map_or(most, |before| before.min(most))),
        maximum: Some(most),
    };
    setrlimit(resource, limit).map_err(failed("set limits"))
}

/// No capabilities, no way to new ones, nothing for others to look into.
fn give_up() -> Result<(), ConfineError> {
    set_no_new_privs(true).map_err(failed("set no_new_privs"))?;
    clear_ambient_capability_set().map_err(failed("drop capabilities"))?;
    let none = CapabilitySet::empty();
    let sets = CapabilitySets {
        effective: none,
        permitted: none,
        inheritable: none,
    };
    set_capabilities(None, sets).map_err(failed("drop capabilities"))?;
    set_dumpable_behavior(DumpableBehavior::NotDumpable)
        .map_err(failed("become unreadable for others"))
}

fn die_with(parent: Option<i32>) -> Result<(), ConfineError> {
    set_parent_process_death_signal(Some(Signal::KILL))
        .map_err(failed("ask to die with the supervisor"))?;
    // It may have died before the line above.
    if getppid().map(|pid| pid.as_raw_nonzero().get()) != parent {
        return Err(ConfineError {
            action: "go on without the supervisor",
            source: io::ErrorKind::NotFound.into(),
        });
    }
    Ok(())
}

/// Takes everything away that the proxy does not need, for good. Returns how many descriptors
/// it can have, which it cannot ask for afterwards.
pub(crate) fn confine(network: &Network, ids: Option<ProxyIds>) -> Result<u64, ConfineError> {
    let upstream = network
        .upstream
        .iter()
        .flat_map(|upstream| upstream.proxies());
    let upstream = upstream.map(|proxy| proxy.what.server.port);
    let ports = network
        .ports()
        .map(|ports| ports.into_iter().chain(upstream).collect());
    restrict(ports, &network.proxy_filter, ids)
}

fn restrict(
    ports: Option<Vec<u16>>,
    filter: &[ironcage_plan::seccomp::Instruction],
    ids: Option<ProxyIds>,
) -> Result<u64, ConfineError> {
    // As many connections as the host lets one process have.
    let files = getrlimit(Resource::Nofile);
    let _ = setrlimit(
        Resource::Nofile,
        Rlimit {
            current: files.maximum,
            maximum: files.maximum,
        },
    );
    for resource in [Resource::Core, Resource::Nproc, Resource::Fsize] {
        bound(resource, 0)?;
    }
    bound(Resource::As, PROXY_MEMORY)?;
    become_nobody(ids)?;
    give_up()?;
    // The resolvers' port too: long answers come over TCP.
    landlock(ports.map(|ports| ports.into_iter().chain([53]).collect()))?;
    seccomp::install_plain(&program(filter)).map_err(failed("install the system call filter"))?;
    Ok(files.maximum.unwrap_or(u64::MAX))
}

/// A filter, as the kernel takes it.
fn program(filter: &[ironcage_plan::seccomp::Instruction]) -> Vec<seccomp::Instruction> {
    let instruction = |i: &ironcage_plan::seccomp::Instruction| seccomp::Instruction {
        code: i.code,
        jt: i.jt,
        jf: i.jf,
        k: i.k,
    };
    filter.iter().map(instruction).collect()
}

/// Takes on the ids of nobody, where root starts the door.
fn become_nobody(ids: Option<ProxyIds>) -> Result<(), ConfineError> {
    if let Some(ProxyIds { id }) = ids {
        use ironcage_sys::rustix::fs::{Gid, Uid};
        // All but those two go before the ids do, those two after.
        const SETGID_AND_SETUID: u64 = 1 << 6 | 1 << 7;
        process::set_capabilities(SETGID_AND_SETUID).map_err(failed("drop capabilities"))?;
        ironcage_sys::rustix::thread::set_thread_groups(&[])
            .map_err(failed("leave the supervisor's groups"))?;
        let (uid, gid) = (Uid::from_raw(id), Gid::from_raw(id));
        set_thread_res_gid(gid, gid, gid).map_err(failed("become nobody"))?;
        set_thread_res_uid(uid, uid, uid).map_err(failed("become nobody"))?;
        // A change of ids takes the signal away.
        set_parent_process_death_signal(Some(Signal::KILL))
            .map_err(failed("ask to die with the supervisor"))?;
    }
    Ok(())
}

/// No file at all, no listening, no signals, and connections to ports that a rule is about. An
/// older kernel holds less of it; the system call filter opens no file either way.
fn landlock(ports: Option<Vec<u16>>) -> Result<(), ConfineError> {
    let wrong = |error: landlock::RulesetError| ConfineError {
        action: "make the Landlock ruleset",
        source: io::Error::other(error),
    };
    let mut net: BitFlags<AccessNet> = AccessNet::BindTcp.into();
    if ports.is_some() {
        net |= AccessNet::ConnectTcp;
    }
    let mut ruleset = Ruleset::default()
        .set_compatibility(CompatLevel::BestEffort)
        .handle_access(AccessFs::from_all(ABI::V5))
        .and_then(|ruleset| ruleset.handle_access(net))
        .and_then(|ruleset| ruleset.scope(Scope::AbstractUnixSocket | Scope::Signal))
        .and_then(Ruleset::create)
        .map_err(wrong)?;
    for port in ports.into_iter().flatten() {
        if net.contains(AccessNet::ConnectTcp) {
            ruleset = ruleset
                .add_rule(NetPort::new(port, AccessNet::ConnectTcp))
                .map_err(wrong)?;
        }
    }
    ruleset.restrict_self().map(drop).map_err(wrong)
}
