//! Commands of shells in the cage: what each names, and whether a scope is asked for.

use super::{Clerk, MOST_PATHS};
use crate::asking::FromClerk;
use crate::intents::in_base;
use crate::leases::look;
use crate::named::{Named, look_up};
use crate::needed::{Names, Need, Needed};
use ironcage_control::{Answered, GrantRequest, NotGiven, ShellInquiry, ShellIntent, Wanted, pair};
use ironcage_model::{Resource, Right, Term};
use std::os::fd::AsFd;
use std::path::PathBuf;

impl Clerk<'_> {
    /// A command of a shell: where anything that it names could be given, a scope is asked for.
    /// What is to be executed goes to the scope's supervisor, and not through here.
    pub(super) fn run_shell(&mut self, index: usize, inquiry: ShellInquiry) {
        if !self.plan.shares_storage() {
            let lacks = Vec::new();
            return self.answer(index, &Answered::InCage { lacks });
        }
        let names = Names {
            reads: inquiry.reads,
            writes: inquiry.writes,
            contacts: inquiry.contacts,
        };
        let mut needed = Needed::of(self.plan, &names);
        let plan = self.plan;
        needed
            .needs
            .retain(|need| !matches!(need, Need::Host(rule) if in_base(plan, rule)));
        let mut refused = needed.refused;
        let in_home = |path: &&PathBuf| self.plan.home().is_some_and(|home| path.starts_with(home));
        for path in names.reads.iter().filter(in_home) {
            // What is read and not there: most likely the user's own was meant.
            if let Named::Had { passing: true } = look_up(self.plan, path, Right::Read) {
                refused.push(NotGiven {
                    resource: Resource::Path {
                        path: path.to_string_lossy().into_owned(),
                        right: Right::Read,
                    },
                    reason: "the user's is outside of the cage's ceiling; the cage has a home of its own"
                        .into(),
                    ask: false,
                });
            }
        }
        let (mut leases, mut descriptors) = (Vec::new(), Vec::new());
        for need in needed.needs {
            let resource = need.resource();
            let wanted = match need {
                // A file system that does not answer is waited for here, and not in the supervisor.
                Need::Path { right, handle, .. }
                    if descriptors.len() < MOST_PATHS && look(&handle, right).is_ok() =>
                {
                    descriptors.push(handle);
                    Wanted::Path { right }
                }
                Need::Path { .. } => {
                    refused.push(NotGiven {
                        resource,
                        reason: "it cannot be looked at, or too many paths are named".into(),
                        ask: false,
                    });
                    continue;
                }
                Need::Host(rule) => Wanted::Other(Resource::Host { rule }),
            };
            leases.push(GrantRequest {
                wanted,
                term: Term::UntilRevoked,
                uses: None,
                reason: format!("a command of {}", inquiry.name),
            });
        }
        let lacks = refused.iter().map(NotGiven::to_string).collect();
        if leases.is_empty() {
            for one in refused {
                let (resource, reason) = (one.resource, one.reason);
                let _ = self
                    .link
                    .send(&FromClerk::Refused { resource, reason }, &[]);
            }
            return self.answer(index, &Answered::InCage { lacks });
        }
        let runs = FromClerk::Runs {
            shell: ShellIntent {
                shell: inquiry.name,
                refused,
                open: inquiry.open,
            },
            leases,
            wait: inquiry.wait,
        };
        let Ok((ours, theirs)) = pair() else {
            let reason = "the cage has no descriptors left; try again".to_owned();
            return self.answer(index, &Answered::Denied { reason });
        };
        let mut beside = vec![theirs.as_fd()];
        beside.extend(descriptors.iter().map(AsFd::as_fd));
        if self.link.send(&runs, &beside).is_err() {
            let reason = "the cage is busy; try again later".to_owned();
            return self.answer(index, &Answered::Denied { reason });
        }
        if let Some(asker) = self.askers.get_mut(index) {
            asker.hand_over(ours.as_fd());
        }
    }
}
