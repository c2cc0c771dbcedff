//! The cage's network namespace, made by a short-lived helper while PID 1 builds the file
//! view: it costs as much as all mounts together, and there is a second processor.
//!
//! It belongs to the outer user namespace (to the initial one when root starts the cage): not
//! even root of the cage has power over it. Ports below 1024 can be bound in it by anybody.

use crate::StartError;
use crate::faults::step;
use crate::wire;
use ironcage_layers::{LayerError, network};
use ironcage_model::Layer;
use ironcage_sys::clone::{Forked, Namespaces, exit_now, fork, unshare};
use ironcage_sys::rustix::fs::{Mode, OFlags, open};
use ironcage_sys::rustix::process::{
    Pid, Signal, WaitId, WaitIdOptions, set_parent_process_death_signal, waitid,
};
use ironcage_sys::rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// A helper that makes a network namespace and hands it to PID 1.
#[derive(Debug)]
pub(crate) struct Helper {
    pidfd: OwnedFd,
}

impl Helper {
    /// Starts the helper. `init` is PID 1 outside when it has a user namespace of its own.
    pub(crate) fn start(init: Option<Pid>, control: BorrowedFd<'_>) -> Result<Self, StartError> {
        match fork(Namespaces::NONE, None).map_err(StartError::Fork)? {
            Forked::Child => {
                let code = match make(init).and_then(|namespace| hand_over(&namespace, control)) {
                    Ok(()) => 0,
                    Err(error) => error.source.raw_os_error().unwrap_or(1),
                };
                exit_now(code)
            }
            Forked::Parent { pidfd, .. } => Ok(Helper { pidfd }),
        }
    }

    /// Waits until the namespace is made and handed over.
    pub(crate) fn finish(self) -> Result<(), StartError> {
        let failed = |errno| StartError::Layer {
            layer: Layer::NetNs,
            action: "make the network namespace".into(),
            errno,
        };
        let status = waitid(WaitId::PidFd(self.pidfd.as_fd()), WaitIdOptions::EXITED)
            .map_err(|error| failed(error.raw_os_error()))?;
        match status.and_then(|status| status.exit_status()) {
            Some(0) => Ok(()),
            Some(errno) => Err(failed(errno)),
            None => Err(StartError::Died),
        }
    }
}

fn failed(action: &str, source: impl Into<std::io::Error>) -> LayerError {
    LayerError {
        layer: Layer::NetNs,
        action: action.into(),
        source: source.into(),
    }
}

fn make(init: Option<Pid>) -> Result<OwnedFd, LayerError> {
    set_parent_process_death_signal(Some(Signal::KILL))
        .map_err(|error| failed("die with the supervisor", error))?;
    step();
    if let Some(init) = init {
        let path = format!("/proc/{}/ns/user", init.as_raw_nonzero());
        let user = open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())
            .map_err(|error| failed("open the cage's user namespace", error))?;
        move_into_link_name_space(user.as_fd(), Some(LinkNameSpaceType::User))
            .map_err(|error| failed("enter the cage's user namespace", error))?;
    }
    unshare(Namespaces::NET).map_err(|error| failed("unshare the network", error))?;
    step();
    network::loopback_up()?;
    network::open_low_ports();
    open(
        "/proc/self/ns/net",
        OFlags::RDONLY | OFlags::CLOEXEC,
        Mode::empty(),
    )
    .map_err(|error| failed("open the new network namespace", error))
}

fn hand_over(namespace: &OwnedFd, control: BorrowedFd<'_>) -> Result<(), LayerError> {
    step();
    wire::give_network(control, namespace.as_fd())
        .map_err(|error| failed("hand the network namespace over", error))
}
