//! The needs of a tool call, as resources of leases: paths of the host by descriptor, and
//! hosts.
//!
//! Whoever wrote the call may be an attacker: what it names is looked at only where the ceiling
//! speaks of it.

mod remotes;

use crate::leases::{SeenPath, look, look_at_name};
use crate::path_lookup::{FoundName, PathLookup, look_up, look_up_for_scope};
use ironcage_control::{DeniedLease, LeaseTarget};
use ironcage_model::{Contact, Extent, HostRule, LeaseReason, Mark, Resource, Right};
use ironcage_plan::Plan;
use remotes::Remote;
pub use remotes::hosts as remote_hosts;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

/// What a call names.
#[derive(Debug, Default)]
pub(crate) struct Names {
    pub(crate) reads: Vec<PathBuf>,
    pub(crate) writes: Vec<PathBuf>,
    pub(crate) contacts: Vec<Contact>,
}

/// Something that the cage does not have, as far as that is known here.
#[derive(Debug)]
pub(crate) enum Need {
    /// A path of the host.
    Path {
        path: PathBuf,
        right: Right,
        /// What it is, whatever takes its place meanwhile.
        handle: OwnedFd,
    },
    /// A file that a scope writes, makes, replaces or removes: one name of a directory.
    Name(FoundName),
    Host(HostRule),
}

impl Need {
    /// What is asked for, and the descriptor that comes with it.
    pub(crate) fn target(self) -> (LeaseTarget, Option<OwnedFd>) {
        match self {
            Need::Path { right, handle, .. } => (LeaseTarget::Path { right }, Some(handle)),
            Need::Name(FoundName { name, handle, .. }) => {
                (LeaseTarget::Name { name }, Some(handle))
            }
            Need::Host(rule) => (LeaseTarget::Other(Resource::Host { rule }), None),
        }
    }

    /// What is seen of it now, where it is a path.
    pub(crate) fn look(&self) -> Option<io::Result<SeenPath>> {
        match self {
            Need::Path { right, handle, .. } => Some(look(handle, *right)),
            Need::Name(found) => Some(look_at_name(&found.handle, &found.name)),
            Need::Host(_) => None,
        }
    }

    /// The path and what is to be done with it.
    fn path(&self) -> Option<(PathBuf, Right)> {
        match self {
            Need::Path { path, right, .. } => Some((path.clone(), *right)),
            Need::Name(found) => Some((found.path(), Right::Write)),
            Need::Host(_) => None,
        }
    }

    /// How deep it is mounted: a name is, where its directory is.
    fn depth(&self) -> usize {
        match self {
            Need::Path { path, .. } => path.components().count(),
            Need::Name(found) => found.directory.components().count(),
            Need::Host(_) => 0,
        }
    }

    /// What a lease for it would be about.
    pub(crate) fn resource(&self) -> Resource {
        match self {
            Need::Path { path, right, .. } => Resource::Path {
                path: path.to_string_lossy().into_owned(),
                right: *right,
            },
            Need::Name(found) => Resource::Path {
                path: found.path().to_string_lossy().into_owned(),
                right: Right::Write,
            },
            Need::Host(rule) => Resource::Host { rule: rule.clone() },
        }
    }
}

/// Whether a lease may lie in another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Nesting {
    /// Of a scope: all of them end together, the inner ones first.
    Allowed,
    /// Of a cage: each ends by itself, which it could not where another lies in it.
    Merged,
}

/// What a call needs.
#[derive(Debug, Default)]
pub(crate) struct Needed {
    pub(crate) needs: Vec<Need>,
    /// What cannot even be asked for.
    pub(crate) refused: Vec<DeniedLease>,
    /// Paths that are to be written where it is gone with who wrote it.
    pub(crate) passing: Vec<PathBuf>,
}

impl Needed {
    /// What of all that is named the cage does not have; what lies in something else behind it.
    pub(crate) fn of(plan: &Plan, names: &Names, nesting: Nesting) -> Self {
        let mut needed = Needed::default();
        let mut paths: Vec<(PathBuf, Right)> = Vec::new();
        let mut hosts: Vec<HostRule> = Vec::new();
        for contact in &names.contacts {
            match lead(plan, contact) {
                Ok(led) => {
                    hosts.extend(led.hosts);
                    let led = led.paths.into_iter().map(|path| (path, Right::Write));
                    paths.extend(led);
                }
                Err(UnnamableHost(text)) => needed.refused.push(DeniedLease {
                    resource: Resource::Socket { path: text },
                    reason: LeaseReason::HostNotNamable.into(),
                    ask: false,
                }),
            }
        }
        let writes = names.writes.iter().map(|path| (path.clone(), Right::Write));
        let reads = names.reads.iter().map(|path| (path.clone(), Right::Read));
        paths.extend(writes.chain(reads));
        for (path, right) in paths {
            needed.path(plan, (&path, right), nesting);
        }
        needed.show_directories();
        needed.needs.sort_by_key(Need::depth);
        for rule in hosts {
            let same = |need: &Need| matches!(need, Need::Host(known) if *known == rule);
            if !needed.needs.iter().any(same) {
                needed.needs.push(Need::Host(rule));
            }
        }
        needed
    }

    /// What a path leads to, on the host, if the cage does not have it anyway. For what is not
    /// there yet and is to be made, the directory around it is asked for.
    fn path(&mut self, plan: &Plan, (path, right): (&Path, Right), nesting: Nesting) {
        // What is made there is read and filled by the same command.
        let is_made =
            |need: &Need| matches!(need, Need::Name(found) if path.starts_with(found.path()));
        if self.needs.iter().any(is_made) {
            return;
        }
        let found = match nesting {
            Nesting::Allowed => look_up_for_scope(plan, path, right),
            Nesting::Merged => look_up(plan, path, right),
        };
        let reason = match found {
            PathLookup::Had { passing } => {
                if passing && right == Right::Write {
                    self.passing.push(path.to_owned());
                }
                return;
            }
            PathLookup::Name(found) => return self.add(Need::Name(found)),
            PathLookup::Found { path, handle } => {
                // A directory that is read and in which something is written becomes one lease,
                // where one could not end without the other.
                let writes_inside = |need: &Need| {
                    let other = need.path();
                    other.is_some_and(|(other, has)| other.starts_with(&path) && has > right)
                };
                let merged = nesting == Nesting::Merged;
                let right = match merged && self.needs.iter().any(writes_inside) {
                    true => Right::Write,
                    false => right,
                };
                return self.add(Need::Path {
                    path,
                    right,
                    handle,
                });
            }
            PathLookup::Neither(reason) => reason,
        };
        self.refused.push(DeniedLease {
            resource: Resource::Path {
                path: path.to_string_lossy().into_owned(),
                right,
            },
            reason: reason.into(),
            ask: false,
        });
    }

    /// One lease for what lies in another that gives as much.
    fn add(&mut self, need: Need) {
        let Some((path, right)) = need.path() else {
            return;
        };
        let covers = |need: &Need| {
            // A name covers what is made below it, and nothing beside it.
            let other = need.path();
            other.is_some_and(|(other, has)| path.starts_with(other) && has >= right)
        };
        if self.needs.iter().any(covers) {
            return;
        }
        self.needs.retain(|other| {
            let inner = other.path();
            !inner.is_some_and(|(inner, has)| inner.starts_with(&path) && has <= right)
        });
        self.needs.push(need);
    }

    /// A directory that is seen is not covered by one with a single name: where it is read too, the
    /// file in it is leased itself, or the directory where one is to be made.
    fn show_directories(&mut self) {
        let seen: Vec<PathBuf> = self
            .needs
            .iter()
            .filter_map(|need| match need {
                Need::Path { path, .. } => Some(path.clone()),
                Need::Name(_) | Need::Host(_) => None,
            })
            .collect();
        let is_seen = |found: &FoundName| {
            let mut seen = seen.iter();
            seen.any(|path| found.directory.starts_with(path))
        };
        let (named, rest): (Vec<Need>, Vec<Need>) = std::mem::take(&mut self.needs)
            .into_iter()
            .partition(|need| matches!(need, Need::Name(found) if is_seen(found)));
        self.needs = rest;
        for need in named {
            if let Need::Name(found) = need {
                let (path, handle) = found.without_name();
                self.add(Need::Path {
                    path,
                    right: Right::Write,
                    handle,
                });
            }
        }
    }
}

/// Where a contact leads.
#[derive(Debug, Default)]
struct ContactTargets {
    hosts: Vec<HostRule>,
    /// Repositories on this host, which are written.
    paths: Vec<PathBuf>,
}

/// A host of a contact that no rule can name.
struct UnnamableHost(String);

fn lead(plan: &Plan, contact: &Contact) -> Result<ContactTargets, UnnamableHost> {
    let mut led = ContactTargets::default();
    match contact {
        Contact::Host(text) => {
            let rule = text.parse().map_err(|_| UnnamableHost(text.clone()))?;
            led.hosts.push(rule);
        }
        // Hosts that the base has of it need nothing; those of the ceiling a lease each.
        Contact::Bundle(name) => {
            let parts = plan.leases.iter().flat_map(|leases| &leases.others);
            let of_it = parts.filter(|part| {
                part.what.mark != Mark::Deny && part.what.bundle.as_ref() == Some(name)
            });
            led.hosts
                .extend(of_it.filter_map(|part| match &part.what.extent {
                    Extent::Host(rule) => Some(rule.clone()),
                    _ => None,
                }));
        }
        Contact::Remote(name) => {
            for remote in remotes::of(&plan.workspace, name) {
                match remote {
                    Remote::Host(rule) => led.hosts.push(rule),
                    Remote::Path(path) => led.paths.push(path),
                }
            }
        }
    }
    Ok(led)
}
