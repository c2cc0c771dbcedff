//! Commands of shells in the cage: what each names, and whether a scope is asked for.

use super::{MOST_PATHS, Reader};
use crate::intents::in_base;
use crate::needed::{Names, Need, Needed, Nesting};
use crate::path_lookup::{PathLookup, look_up};
use crate::request_reader::FromReader;
use ironcage_control::{Answered, DeniedLease, GrantRequest, ShellIntent, ShellRequest, pair};
use ironcage_model::{LeaseReason, Resource, Right, SupervisorReason, Term};
use std::os::fd::AsFd;
use std::path::PathBuf;

impl Reader<'_> {
    /// A command of a shell: where anything that it names could be given, a scope is asked for.
    /// What is to be executed goes to the scope's supervisor, and not through here.
    pub(super) fn run_shell(&mut self, index: usize, inquiry: ShellRequest) {
        if !self.plan.shares_storage() {
            let lacks = Vec::new();
            return self.answer(index, &Answered::InCage { lacks });
        }
        let names = Names {
            reads: inquiry.reads,
            writes: inquiry.writes,
            contacts: inquiry.contacts,
        };
        let mut needed = Needed::of(self.plan, &names, Nesting::Allowed);
        let plan = self.plan;
        needed
            .needs
            .retain(|need| !matches!(need, Need::Host(rule) if in_base(plan, rule)));
        let mut refused = needed.refused;
        let in_home = |path: &&PathBuf| self.plan.home().is_some_and(|home| path.starts_with(home));
        for path in names.reads.iter().filter(in_home) {
            // What is read and not there: most likely the user's own was meant.
            if let PathLookup::Had { passing: true } = look_up(self.plan, path, Right::Read) {
                refused.push(DeniedLease {
                    resource: Resource::Path {
                        path: path.to_string_lossy().into_owned(),
                        right: Right::Read,
                    },
                    reason: LeaseReason::PathPrivate.into(),
                    ask: false,
                });
            }
        }
        let (mut leases, mut descriptors) = (Vec::new(), Vec::new());
        for need in needed.needs {
            let resource = need.resource();
            // A file system that does not answer is waited for here, and not in the supervisor.
            let seen = need.look();
            if seen.is_some_and(|seen| descriptors.len() >= MOST_PATHS || seen.is_err()) {
                refused.push(DeniedLease {
                    resource,
                    reason: LeaseReason::PathNotInspected {
                        error: "it is not accessible, or too many paths are named".into(),
                    }
                    .into(),
                    ask: false,
                });
                continue;
            }
            let (wanted, handle) = need.target();
            descriptors.extend(handle);
            leases.push(GrantRequest {
                wanted,
                term: Term::UntilRevoked,
                uses: None,
                reason: format!("a command of {}", inquiry.name),
            });
        }
        let lacks = refused.iter().map(DeniedLease::to_string).collect();
        if leases.is_empty() {
            for one in refused {
                let (resource, reason) = (one.resource, one.reason);
                let _ = self
                    .link
                    .send(&FromReader::Refused { resource, reason }, &[]);
            }
            return self.answer(index, &Answered::InCage { lacks });
        }
        let runs = FromReader::Runs {
            shell: ShellIntent {
                shell: inquiry.name,
                refused,
                open: inquiry.open,
            },
            leases,
            wait: inquiry.wait,
        };
        let Ok((ours, theirs)) = pair() else {
            return self.answer(index, &Answered::denied(SupervisorReason::Busy));
        };
        let mut beside = vec![theirs.as_fd()];
        beside.extend(descriptors.iter().map(AsFd::as_fd));
        if self.link.send(&runs, &beside).is_err() {
            return self.answer(index, &Answered::denied(SupervisorReason::Busy));
        }
        if let Some(client) = self.clients.get_mut(index) {
            client.hand_over(ours.as_fd());
        }
    }
}
