//! The cage's network namespace, made by a short-lived helper while PID 1 builds the file
//! view: it costs as much as all mounts together, and there is a second processor.
//!
//! It belongs to the outer user namespace (to the initial one when root starts the cage): not
//! even root of the cage has power over it. Ports below 1024 can be bound in it by anybody.

use ironcage_backend::faults::step;
use ironcage_backend::{Helper, StartError, wire};
use ironcage_egress::{Proxy, give_failure, give_sockets};
use ironcage_layers::{LayerError, network};
use ironcage_model::Layer;
use ironcage_plan::Network;
use ironcage_sys::clone::{Forked, Namespaces, exit_now, fork, unshare};
use ironcage_sys::rustix::fs::{Mode, OFlags, open};
use ironcage_sys::rustix::process::{Pid, Signal, set_parent_process_death_signal};
use ironcage_sys::rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// Starts the helper. `init` is PID 1 outside when it has a user namespace of its own.
pub(crate) fn start(
    init: Option<Pid>,
    control: BorrowedFd<'_>,
    proxy: Option<(&Network, &Proxy)>,
) -> Result<Helper, StartError> {
    match fork(Namespaces::NONE, None).map_err(StartError::Fork)? {
        Forked::Child => {
            let made = make(init, proxy).and_then(|namespace| hand_over(namespace, control));
            let code = match made {
                Ok(()) => 0,
                Err(error) => {
                    if let Some((_, proxy)) = proxy {
                        let text = format!("{error}: {}", error.source);
                        // Without its sockets the proxy would wait for ever.
                        let _ = give_failure(proxy.control(), &text);
                    }
                    error.source.raw_os_error().unwrap_or(1)
                }
            };
            exit_now(code)
        }
        Forked::Parent { pidfd, .. } => Ok(Helper {
            pidfd,
            layer: Layer::NetNs,
            action: "make the network namespace",
        }),
    }
}

fn failed(action: &str, source: impl Into<std::io::Error>) -> LayerError {
    LayerError {
        layer: Layer::NetNs,
        action: action.into(),
        source: source.into(),
        code: ironcage_model::StartCode::LayerFailed,
    }
}

fn make(init: Option<Pid>, proxy: Option<(&Network, &Proxy)>) -> Result<OwnedFd, LayerError> {
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
    match proxy {
        Some((rules, proxy)) => open_proxy_sockets(rules, proxy)?,
        None => network::loopback_up()?,
    }
    network::open_low_ports();
    open(
        "/proc/self/ns/net",
        OFlags::RDONLY | OFlags::CLOEXEC,
        Mode::empty(),
    )
    .map_err(|error| failed("open the new network namespace", error))
}

/// Leads every connection to sockets that go to the door.
fn open_proxy_sockets(rules: &Network, proxy: &Proxy) -> Result<(), LayerError> {
    let ports = rules.ports();
    let host_ports: Vec<u16> = rules.host_ports.iter().map(|item| item.what.port).collect();
    let proxy_sockets = network::proxy_sockets(ports.as_deref(), &host_ports)?;
    step();
    give_sockets(
        proxy.control(),
        &proxy_sockets.dns,
        &proxy_sockets.listeners,
        proxy_sockets.per_port.as_deref(),
    )
    .map_err(|error| failed("pass the sockets to the egress proxy", error))
}

fn hand_over(namespace: OwnedFd, control: BorrowedFd<'_>) -> Result<(), LayerError> {
    step();
    wire::give_network(control, namespace.as_fd())
        .map_err(|error| failed("pass the network namespace on", error))?;
    // This process ends now.
    std::mem::forget(namespace);
    Ok(())
}
