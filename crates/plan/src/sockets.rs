//! Host Unix sockets that a cage can reach, each at its own path.
//!
//! The host socket itself is not in the view: the cage has a socket proxy in its place, and the
//! egress proxy carries and logs each connection.

use crate::plan::{Item, Plan, SupervisorFile, ViewOp};
use crate::{NoSocket, PlanError, Request, bytes};
use ironcage_host::{HostFiles, NodeType};
use ironcage_model::{ASK_PROGRAM, ASK_SOCKET, Extent, Mark};
use ironcage_policy::{CeilingWhat, Policy, Sourced};
use serde::{Deserialize, Serialize};
use std::borrow::Cow;
use std::path::{Path, PathBuf};

/// A socket of the host's.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AllowedSocket {
    /// Its real path, inside too.
    #[serde(serialize_with = "bytes::path")]
    pub path: PathBuf,
    /// What who connects to it commands; `null` where that is nothing known.
    pub commands: Option<Cow<'static, str>>,
    /// Whether it is reached only while there is a lease on it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub leased: bool,
}

/// Names of sockets whose servers do what root does for whoever connects.
const COMMANDING: [(&str, &str); 12] = [
    ("docker.sock", "Docker (root on this host)"),
    ("podman.sock", "Podman (containers with the user's files)"),
    ("containerd.sock", "containerd (root on this host)"),
    ("crio.sock", "CRI-O (root on this host)"),
    ("buildkitd.sock", "BuildKit (root on this host)"),
    ("libvirt-sock", "libvirt (root on this host)"),
    ("virtqemud-sock", "libvirt (root on this host)"),
    ("unix.socket", "LXD or Incus (root on this host)"),
    ("snapd.socket", "snapd (installs packages)"),
    ("system_bus_socket", "the system bus (systemd and others)"),
    ("bus", "the session bus (starts programs as the user)"),
    ("private", "systemd (starts programs)"),
];

/// The operation that puts the proxy of a socket into the view.
pub(crate) fn proxy(socket: &Item<AllowedSocket>) -> Item<ViewOp> {
    Item {
        what: ViewOp::Supervisor {
            file: SupervisorFile::SocketProxy,
            target: socket.what.path.clone(),
        },
        origin: socket.origin.clone(),
    }
}

/// The operations that let the agent ask for permissions.
pub(crate) fn for_requests() -> [Item<ViewOp>; 2] {
    [
        (SupervisorFile::RequestSocket, ASK_SOCKET),
        (SupervisorFile::InsideProgram, ASK_PROGRAM),
    ]
    .map(|(file, target)| Item {
        what: ViewOp::Supervisor {
            file,
            target: target.into(),
        },
        origin: "for asking".into(),
    })
}

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
    let refuse = |why: NoSocket| PlanError::Socket {
        path: asked.value.clone(),
        origin: asked.origin.to_string(),
        why,
    };
    let path = files
        .real(&asked.value)
        .map_err(|error| refuse(NoSocket::Missing(error)))?;
    if files.node(&path).map(|node| node.kind) != Some(NodeType::Socket) {
        return Err(refuse(NoSocket::OtherNode));
    }
    if request.own.paths.iter().any(|own| path.starts_with(own)) {
        return Err(refuse(NoSocket::Own));
    }
    let commands = commands(&path);
    if let (Some(commands), false) = (commands, request.i_know) {
        return Err(refuse(NoSocket::Controls(commands)));
    }
    Ok(Item {
        what: AllowedSocket {
            path,
            commands: commands.map(Cow::Borrowed),
            leased: false,
        },
        origin: asked.origin.to_string(),
    })
}

impl Plan {
    /// Whether a socket of the plan is reached only while there is a lease on it.
    pub fn is_leased_socket(&self, path: &Path) -> bool {
        let mut sockets = self.network.iter().flat_map(|network| &network.sockets);
        sockets.any(|socket| socket.what.leased && socket.what.path == path)
    }

    /// Plans a proxy for one more host socket.
    pub fn add_socket(&mut self, socket: Item<AllowedSocket>) {
        let Some(network) = &mut self.network else {
            return;
        };
        let op = proxy(&socket);
        network.sockets.push(socket);
        self.add_to_view([op]);
    }
}

/// What whoever connects to a socket controls, by the socket's name; `None` where that is nothing
/// known.
pub fn commands(path: &Path) -> Option<&'static str> {
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
