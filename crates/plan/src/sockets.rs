//! Unix sockets of the host's that are reached from inside, each by its own name.
//!
//! The socket itself is in no view: the agent meets one of Ironcage's own in its place, and each
//! connection is carried and recorded by the network door.

use crate::plan::Item;
use crate::{PlanError, Request, bytes};
use ironcage_host::{HostFiles, NodeType};
use ironcage_model::{Extent, Mark};
use ironcage_policy::{CeilingWhat, Policy, Sourced};
use serde::Serialize;
use std::path::{Path, PathBuf};

/// A socket of the host's.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct AllowedSocket {
    /// Its real path, inside too.
    #[serde(serialize_with = "bytes::path")]
    pub path: PathBuf,
    /// What who connects to it commands; `null` where that is nothing known.
    pub commands: Option<&'static str>,
    /// Whether it is reached only while there is a lease on it.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub leased: bool,
}

/// Names of sockets whose servers do what root does for whoever connects.
const COMMANDING: [(&str, &str); 12] = [
    ("docker.sock", "Docker: root on this host"),
    ("podman.sock", "Podman: containers with the user's files"),
    ("containerd.sock", "containerd: root on this host"),
    ("crio.sock", "CRI-O: root on this host"),
    ("buildkitd.sock", "BuildKit: root on this host"),
    ("libvirt-sock", "libvirt: root on this host"),
    ("virtqemud-sock", "libvirt: root on this host"),
    ("unix.socket", "LXD or Incus: root on this host"),
    ("snapd.socket", "snapd: installs packages"),
    (
        "system_bus_socket",
        "the system's bus: systemd among others",
    ),
    ("bus", "the session's bus: starts programs as the user"),
    ("private", "systemd: starts programs"),
];

pub(crate) fn make(
    policy: &Policy,
    request: &Request,
    files: &dyn HostFiles,
) -> Result<Vec<Item<AllowedSocket>>, PlanError> {
    let sockets = policy.network.sockets.iter();
    let mut found: Vec<Item<AllowedSocket>> = sockets
        .map(|path| one(path, request, files))
        .collect::<Result<_, _>>()?;
    for part in &policy.ceiling.others {
        let CeilingWhat::Extent(Extent::Socket(path)) = &part.value.what else {
            continue;
        };
        let named = Sourced::new(PathBuf::from(path), part.origin.clone());
        // What is not there when the cage starts is given by no lease.
        if part.value.mark == Mark::Deny || files.node(&named.value).is_none() {
            continue;
        }
        let mut socket = one(&named, request, files)?;
        socket.what.leased = true;
        if found
            .iter()
            .all(|known| known.what.path != socket.what.path)
        {
            found.push(socket);
        }
    }
    Ok(found)
}

fn one(
    asked: &Sourced<PathBuf>,
    request: &Request,
    files: &dyn HostFiles,
) -> Result<Item<AllowedSocket>, PlanError> {
    let refuse = |why: String| PlanError::Socket {
        path: asked.value.clone(),
        origin: asked.origin.to_string(),
        why,
    };
    let path = files
        .real(&asked.value)
        .map_err(|error| refuse(format!("it cannot be found: {error}")))?;
    if files.node(&path).map(|node| node.kind) != Some(NodeType::Socket) {
        return Err(refuse("it is not a socket".into()));
    }
    if request.own.paths.iter().any(|own| path.starts_with(own)) {
        return Err(refuse("it is one of Ironcage's own".into()));
    }
    let commands = commands(&path);
    if let (Some(commands), false) = (commands, request.i_know) {
        return Err(refuse(format!(
            "who connects to it commands {commands}; --i-know gives it all the same"
        )));
    }
    Ok(Item {
        what: AllowedSocket {
            path,
            commands,
            leased: false,
        },
        origin: asked.origin.to_string(),
    })
}

fn commands(path: &Path) -> Option<&'static str> {
    let name = path.file_name()?;
    let mut known = COMMANDING.iter().filter(|(known, _)| name == *known);
    known.next().map(|(_, what)| *what)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sockets_that_command_the_host_are_known_by_their_names() {
        assert!(commands(Path::new("/run/docker.sock")).is_some());
        assert!(commands(Path::new("/run/user/1000/bus")).is_some());
        assert!(commands(Path::new("/run/postgresql/.s.PGSQL.5432")).is_none());
    }
}
