//! The needs of a tool call, as resources of leases: paths of the host by descriptor, and
//! hosts.
//!
//! Whoever wrote the call may be an attacker: what it names is looked at only where the ceiling
//! speaks of it.

mod remotes;

use crate::path_lookup::{PathLookup, look_up};
use ironcage_control::DeniedLease;
use ironcage_model::{Contact, Extent, HostRule, LeaseReason, Mark, Resource, Right};
use ironcage_plan::Plan;
use remotes::Remote;
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
    Host(HostRule),
}

impl Need {
    /// What a lease for it would be about.
    pub(crate) fn resource(&self) -> Resource {
        match self {
            Need::Path { path, right, .. } => Resource::Path {
                path: path.to_string_lossy().into_owned(),
                right: *right,
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
        needed.needs.sort_by_key(|need| match need {
            Need::Path { path, .. } => path.components().count(),
            Need::Host(_) => 0,
        });
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
        let reason = match look_up(plan, path, right) {
            PathLookup::Had { passing } => {
                if passing && right == Right::Write {
                    self.passing.push(path.to_owned());
                }
                return;
            }
            PathLookup::Found { path, handle } => {
                // A directory that is read and in which something is written becomes one lease,
                // where one could not end without the other.
                let writes_inside = |need: &Need| match need {
                    Need::Path {
                        path: other,
                        right: has,
                        ..
                    } => other.starts_with(&path) && *has > right,
                    Need::Host(_) => false,
                };
                let merged = nesting == Nesting::Merged;
                let right = match merged && self.needs.iter().any(writes_inside) {
                    true => Right::Write,
                    false => right,
                };
                // One lease for what lies in another that gives as much.
                let covered = |need: &Need| match need {
                    Need::Path {
                        path: other,
                        right: has,
                        ..
                    } => path.starts_with(other) && *has >= right,
                    Need::Host(_) => false,
                };
                if !self.needs.iter().any(covered) {
                    self.needs.retain(|need| match need {
                        Need::Path {
                            path: other,
                            right: has,
                            ..
                        } => !(other.starts_with(&path) && *has <= right),
                        Need::Host(_) => true,
                    });
                    self.needs.push(Need::Path {
                        path,
                        right,
                        handle,
                    });
                }
                return;
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
