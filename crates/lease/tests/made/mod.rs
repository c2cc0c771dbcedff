//! Plans with a ceiling and rules, made up.
#![allow(dead_code, reason = "each test uses a part of it")]

#[path = "../../../plan/tests/made_up/mod.rs"]
mod made_up;

use ironcage_host::Privilege;
use ironcage_lease::{Facts, Node, RequestedLease, RequestedPath, RequestedResource};
use ironcage_model::{Extent, LeaseOrigin, Mark, Resource, Right, Scope, Term};
use ironcage_plan::{Item, LeasePart, LeasePath, LeaseRules, Plan};
use ironcage_policy::FlagLayer;
use made_up::{host, plan_of, request};
use std::path::Path;

pub(crate) fn path_part(path: &str, right: Right, mark: Mark) -> Item<LeasePath> {
    let path = path.into();
    Item {
        what: LeasePath { path, right, mark },
        origin: "test".into(),
    }
}

pub(crate) fn part(extent: Extent, mark: Mark) -> Item<LeasePart> {
    Item {
        what: LeasePart {
            extent,
            mark,
            bundle: None,
        },
        origin: "test".into(),
    }
}

pub(crate) fn file(name: &str, text: &str, only_forbids: bool) -> Item<LeaseRules> {
    Item {
        what: LeaseRules {
            path: Path::new("/etc").join(name),
            text: text.to_owned(),
            only_forbids,
        },
        origin: "test".into(),
    }
}

/// A plan of the profile `coding-agent`, whose ceiling is replaced by these parts.
pub(crate) fn plan(
    paths: Vec<Item<LeasePath>>,
    others: Vec<Item<LeasePart>>,
    cedar: Vec<Item<LeaseRules>>,
) -> Plan {
    let (flags, host) = (FlagLayer::default(), host(Privilege::User));
    let mut plan = plan_of("coding-agent", flags, &request(), &host).unwrap();
    let leases = plan.leases.as_mut().unwrap();
    leases.paths = paths;
    leases.others = others;
    leases.cedar = cedar;
    plan
}

pub(crate) fn path(path: &str, right: Right) -> RequestedResource<'_> {
    RequestedResource::Path(RequestedPath {
        path: Path::new(path),
        right,
        facts: Facts {
            node: Node::Directory,
            executed: None,
        },
    })
}

pub(crate) fn asked(what: RequestedResource<'_>, origin: LeaseOrigin) -> RequestedLease<'_> {
    RequestedLease {
        what,
        term: Term::Milliseconds(1000),
        uses: None,
        scope: Scope::Cage,
        origin,
        approved: false,
    }
}

pub(crate) fn host_resource(text: &str) -> Resource {
    Resource::Host {
        rule: text.parse().unwrap(),
    }
}
