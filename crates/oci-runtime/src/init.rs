//! The container's first process, until it is its program.

use crate::channel::{Channel, Step};
use crate::error::{Error, IoContext as _};
use crate::namespaces::{self, Plan};
use crate::process::{Confinement, Surroundings, become_program};
use crate::rootfs::{RootFs, Terminal, detached};
use crate::spec::{Process, Spec};
use crate::{hooks, state};
use ironcage_layers::privileges;
use ironcage_sys::clone::{Forked, exit_now, fork};
use ironcage_sys::mount::MountAttributes;
use ironcage_sys::rustix::event::{PollFd, PollFlags, poll};
use ironcage_sys::rustix::fs::{Mode, OFlags, open, openat};
use ironcage_sys::rustix::io::{Errno, write};
use ironcage_sys::rustix::process::{Gid, Uid, setsid};
use ironcage_sys::rustix::system::{setdomainname, sethostname};
use ironcage_sys::rustix::thread::{set_thread_res_gid, set_thread_res_uid};
use std::convert::Infallible;
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::{Component, Path, PathBuf};

/// What the start of a container has, before anything of it is made.
#[derive(Debug)]
pub(crate) struct Start<'a> {
    pub(crate) record: &'a state::ContainerRecord,
    pub(crate) process: &'a Process,
    pub(crate) plan: &'a Plan,
    pub(crate) confinement: &'a Confinement,
    /// Where the engine waits for the terminal.
    pub(crate) console: Option<UnixStream>,
    /// By which `start` says that the program may run.
    pub(crate) waiting: Option<OwnedFd>,
    pub(crate) preserved: i32,
    pub(crate) no_pivot: bool,
    pub(crate) new_keyring: bool,
}

/// In the child that joins namespaces: makes the first process, says which it is, and ends. The
/// kernel gives the first process to the engine's own reaper then.
pub(crate) fn fork_first(start: Start<'_>, mut channel: Channel) -> ! {
    let forked = join_and_fork(&start);
    match forked {
        Ok(Forked::Parent { pid, .. }) => {
            let _ = channel.send(&Step::Forked(pid.as_raw_nonzero().get()));
            exit_now(0)
        }
        Ok(Forked::Child) => {
            let failed = match run(start, &mut channel) {
                Err(error) => error,
                Ok(never) => match never {},
            };
            end(&mut channel, &failed)
        }
        Err(error) => end(&mut channel, &error),
    }
}

/// Says why, to whoever still listens, and ends.
pub(crate) fn end(channel: &mut Channel, error: &Error) -> ! {
    if channel.send(&Step::Failed(error.to_string())).is_err() {
        eprintln!("ironcage-oci-runtime: {error}");
    }
    exit_now(1)
}

fn join_and_fork(start: &Start<'_>) -> Result<Forked, Error> {
    // What it forks is counted from its first moment on.
    start.record.groups.enter()?;
    // From here on the container's processes may see this one.
    privileges::not_dumpable()?;
    namespaces::join(&start.plan.joined)?;
    if namespaces::joins_user(&start.plan.joined) {
        become_root()?;
    }
    fork(start.plan.new, None).doing(|| "make the container's namespaces".into())
}

/// Root of a user namespace, which its maps make somebody else outside.
pub(crate) fn become_root() -> Result<(), Error> {
    let action = || "become root of the user namespace".to_owned();
    set_thread_res_gid(Gid::ROOT, Gid::ROOT, Gid::ROOT).doing(action)?;
    set_thread_res_uid(Uid::ROOT, Uid::ROOT, Uid::ROOT).doing(action)
}

fn run(start: Start<'_>, channel: &mut Channel) -> Result<Infallible, Error> {
    channel.expect(&Step::Go)?;
    if start.plan.new_user {
        become_root()?;
    }
    privileges::not_dumpable()?;
    setsid().doing(|| "start a session".into())?;
    if namespaces::has(&start.record.spec, "network") {
        // Bringing up an interface that is up, or that another container brought up, changes nothing.
        let _ = ironcage_sys::net::loopback_up();
    }
    let (mut root, terminal) = fill(&start)?;
    channel.send(&Step::Mounted)?;
    channel.expect(&Step::Go)?;
    let spec = &start.record.spec;
    let shown = start.record.shown(state::Status::Created);
    let shown = serde_json::to_string(&shown).unwrap_or_default();
    hooks::run("createContainer", &spec.hooks.create_container, &shown)?;
    settle(&start, &mut root)?;
    let process = start.process;
    let console = start.console.as_ref();
    if let (Some(terminal), Some(console)) = (&terminal, console) {
        hand_over(console, terminal)?;
    }
    let keyring = start.new_keyring.then_some(start.record.id.as_str());
    let surroundings = Surroundings {
        confinement: start.confinement,
        terminal,
        preserved: start.preserved,
        keyring,
    };
    drop(root);
    become_program(process, surroundings, || {
        channel.send(&Step::Ready)?;
        // Whoever asked for the container has written down which process this is.
        channel.expect(&Step::Go)?;
        if let Some(waiting) = &start.waiting {
            wait_for_start(waiting)?;
        }
        hooks::run("startContainer", &spec.hooks.start_container, &shown)
    })
}

/// Mounts everything and opens the terminal.
fn fill(start: &Start<'_>) -> Result<(RootFs, Option<Terminal>), Error> {
    let record = start.record;
    let spec = &record.spec;
    let mut root = RootFs::open(
        spec,
        &record.rootfs,
        &record.bundle,
        record.layers.host_devices,
    )?;
    root.mount_all(spec, &record.groups)?;
    root.devices(spec, start.plan.any_user)?;
    // As runc does, for engines that rely on it.
    root.directory(&start.process.cwd)?;
    let terminal = match start.process.terminal {
        true => Some(root.terminal(start.process, true)?),
        false => None,
    };
    Ok((root, terminal))
}

fn settle(start: &Start<'_>, root: &mut RootFs) -> Result<(), Error> {
    let spec = &start.record.spec;
    root.enter(start.no_pivot)?;
    if !spec.hostname.is_empty() || !spec.domainname.is_empty() {
        if !start.plan.new_uts {
            let why = "it would be the host's or another container's: config.json has no new uts namespace";
            return Err(Error::refused("set the host name", why));
        }
        if !spec.hostname.is_empty() {
            sethostname(spec.hostname.as_bytes()).doing(|| "set the host name".into())?;
        }
        if !spec.domainname.is_empty() {
            setdomainname(spec.domainname.as_bytes()).doing(|| "set the domain name".into())?;
        }
    }
    sysctl(spec)?;
    root.seal(spec)
}

/// Which kernel settings belong to a namespace that the container has for itself.
fn is_own_setting(spec: &Spec, key: &str) -> bool {
    let ipc = ["kernel.msg", "kernel.sem", "kernel.shm", "fs.mqueue."];
    let has = |name| namespaces::has(spec, name);
    (key.starts_with("net.") && has("network"))
        || (ipc.iter().any(|start| key.starts_with(start)) && has("ipc"))
        || (matches!(key, "kernel.hostname" | "kernel.domainname") && has("uts"))
}

fn sysctl(spec: &Spec) -> Result<(), Error> {
    if spec.linux.sysctl.is_empty() {
        return Ok(());
    }
    // The image's /proc may be anything; this one is the kernel's.
    let proc = detached("proc", Path::new("proc"), &[], MountAttributes::NONE)?;
    for (key, value) in &spec.linux.sysctl {
        let action = || format!("set the sysctl {key:?}");
        let path = setting(key);
        let climbs = path
            .components()
            .any(|part| !matches!(part, Component::Normal(_)));
        if climbs || !is_own_setting(spec, key) {
            let why = "it is not in a namespace of the container's own";
            return Err(Error::refused(action(), why));
        }
        let how = OFlags::WRONLY | OFlags::CLOEXEC;
        let file = openat(&proc, Path::new("sys").join(path), how, Mode::empty()).doing(action)?;
        write(&file, value.as_bytes()).doing(action)?;
    }
    Ok(())
}

/// `net.ipv4.conf.eth0/1.x`: dots part, and a slash stands for a dot.
fn setting(key: &str) -> PathBuf {
    let swapped = key.chars().map(|letter| match letter {
        '.' => '/',
        '/' => '.',
        letter => letter,
    });
    PathBuf::from(swapped.collect::<String>())
}

/// Gives the engine its end of the terminal.
pub(crate) fn hand_over(console: &UnixStream, terminal: &Terminal) -> Result<(), Error> {
    ironcage_sys::packet::send_with(console.as_fd(), b"/dev/ptmx", terminal.master.as_fd())
        .doing(|| "send the terminal to --console-socket".into())
}

/// Opens the end at which the first process waits, before it cannot see it any more.
pub(crate) fn open_waiting(path: &Path) -> Result<OwnedFd, Error> {
    // Nobody has to be at the other end yet.
    let how = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
    open(path, how, Mode::empty()).doing(|| format!("open {}", path.display()))
}

fn wait_for_start(waiting: &OwnedFd) -> Result<(), Error> {
    let action = || "wait for the start".to_owned();
    loop {
        let mut polled = [PollFd::new(waiting, PollFlags::IN)];
        match poll(&mut polled, None) {
            Ok(_) => {}
            Err(Errno::INTR) => continue,
            Err(error) => return Err(error).doing(action),
        }
        let mut byte = [0];
        match ironcage_sys::rustix::io::read(waiting, &mut byte) {
            Ok(1) => return Ok(()),
            // Somebody opened it and said nothing: the next one may. Nobody asks without end.
            Ok(_) => std::thread::sleep(std::time::Duration::from_millis(10)),
            Err(Errno::AGAIN | Errno::INTR) => {}
            Err(error) => return Err(error).doing(action),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_of_the_host_are_not_the_container_s() {
        let spec: Spec =
            crate::spec::parse(br#"{"linux":{"namespaces":[{"type":"network"},{"type":"ipc"}]}}"#)
                .unwrap();
        for key in ["net.ipv4.ip_forward", "kernel.shmmax", "fs.mqueue.msg_max"] {
            assert!(is_own_setting(&spec, key), "{key}");
        }
        for key in [
            "kernel.core_pattern",
            "vm.swappiness",
            "kernel.hostname",
            "fs.file-max",
        ] {
            assert!(!is_own_setting(&spec, key), "{key}");
        }
        assert_eq!(
            setting("net.ipv4.conf.eth0/1.x"),
            Path::new("net/ipv4/conf/eth0.1/x")
        );
    }
}
