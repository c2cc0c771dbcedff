//! Root of a writable image: what package managers need besides user 0.
//!
//! As root, a cage has a range of IDs: owners are real, and user 0 inside gets the capabilities over
//! them. Anybody else has one ID to give: changes of owner and user succeed, and change nothing.

use crate::Request;
use crate::bind::before_seal;
use crate::plan::{Capability, Item, Variable, ViewOp, WriteRights, WriteRule};
use crate::view::ViewPlan;
use ironcage_host::{HostCaps, Privilege};
use ironcage_model::{Isolation, Right};
use ironcage_policy::{Origin, Policy, Sourced, WorkspaceMode, capabilities};
use std::path::PathBuf;

const FLAG: &str = "--writable-image";
/// What dpkg, useradd and tar use as root.
const CAPABILITIES: [&str; 6] = [
    "CAP_CHOWN",
    "CAP_DAC_OVERRIDE",
    "CAP_FOWNER",
    "CAP_KILL",
    "CAP_SETGID",
    "CAP_SETUID",
];
/// Groups of system calls.
const SET_ID: &str = "set-id";
const ONE_ID: &str = "one-id";
/// apt changes to a user of its own and checks that it is it.
const APT: &str = "/run/ironcage/apt.conf";

/// Whether user 0 inside is root of a system that it can write.
pub(crate) fn is_given(policy: &Policy, request: &Request) -> bool {
    let writable = request
        .image
        .as_ref()
        .is_some_and(|image| image.layers.is_some());
    writable
        && policy.root_inside.value
        && policy.isolation.value == Isolation::Namespace
        && policy.syscalls.value == "standard"
}

/// Whether everything that the cage writes is Ironcage's own until it is applied. A lease on writing
/// is on real files, too, and the filter of a cage stays as it is while leases come and go.
fn writes_aside(policy: &Policy) -> bool {
    let mut paths = policy.ceiling.paths.iter();
    policy.workspace_mode.value != WorkspaceMode::Direct
        && policy.write_direct.is_empty()
        && !paths.any(|path| path.value.right == Right::Write && path.value.mark.gives())
}

/// The policy with the groups of system calls that root of a system has.
pub(crate) fn policy(policy: &Policy, host: &HostCaps) -> Policy {
    let aside = writes_aside(policy);
    let mut policy = policy.clone();
    let mut add = |group: &str| {
        let origin = Origin::Flag { flag: FLAG.into() };
        let group = Sourced::new(group.to_owned(), origin);
        policy.syscall_groups.push(group);
    };
    if aside {
        add(SET_ID);
    }
    if host.privilege == Privilege::User {
        add(ONE_ID);
    }
    policy
}

/// The capabilities over the IDs of the cage.
pub(crate) fn capabilities(host: &HostCaps) -> Vec<Item<Capability>> {
    if host.privilege == Privilege::User {
        return Vec::new();
    }
    let known = CAPABILITIES
        .iter()
        .filter_map(|name| capabilities::find(name));
    known
        .map(|entry| Item {
            what: Capability {
                name: entry.name.into(),
                number: u32::from(entry.number),
            },
            origin: format!("{FLAG} as user 0"),
        })
        .collect()
}

/// A `/run` that root can write, settings for programs that insist on other users, and what the user should know.
pub(crate) fn settle(view: &mut ViewPlan, policy: &Policy, host: &HostCaps) {
    if !writes_aside(policy) {
        view.notes.push(
            "packages with set-user-ID programs cannot be installed in a cage that writes to real files, or may by a lease"
                .into(),
        );
    }
    let run = PathBuf::from("/run");
    let places = [
        // Programs of the system do not follow paths through a directory of somebody else's.
        ViewOp::Directory {
            target: "/".into(),
            mode: 0o755,
            agents: true,
        },
        ViewOp::Directory {
            target: run.clone(),
            mode: 0o755,
            agents: true,
        },
        ViewOp::Ephemeral {
            target: run.clone(),
            executable: false,
        },
    ];
    let item = |what| Item {
        what,
        origin: FLAG.into(),
    };
    view.ops.splice(0..0, places.map(item));
    view.write_rules.push(Item {
        what: WriteRule {
            path: run,
            rights: WriteRights::Tree,
        },
        origin: FLAG.into(),
    });
    if host.privilege == Privilege::Root {
        return;
    }
    view.notes.push(
        "the image has one user: changes of owner and user succeed and change nothing; as root, a cage has 65,535"
            .into(),
    );
    let settings = Item {
        what: ViewOp::File {
            target: APT.into(),
            content: "APT::Sandbox::User \"root\";\n".into(),
            mode: 0o644,
        },
        origin: FLAG.into(),
    };
    before_seal(&mut view.ops, std::iter::once(settings));
    view.variables.push(Item {
        what: Variable {
            name: "APT_CONFIG".into(),
            value: APT.into(),
        },
        origin: FLAG.into(),
    });
}
