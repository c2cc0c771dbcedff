//! Approval of what the ceiling gives a scope only after asking: the scope's supervisor has a
//! person asked, and waits for the answer as long as its client is there and wants to.
//!
//! An approved resource is the scope's, not the cage's: the request opens nothing itself.

use super::link::{
    FromScope, PersonAnswer, ScopeLink, ScopeNeeds, ScopePermissionRequest, ToScope,
};
use crate::RunError;
use crate::leases::Requester;
use crate::permission_requests::NewRequest;
use crate::supervise::Supervision;
use ironcage_control::{Channel, Reply};
use ironcage_layers::live::Identity;
use ironcage_model::{LeaseReason, Reason, Resource};
use ironcage_sys::rustix::event::{PollFd, PollFlags, Timespec, poll};
use ironcage_sys::rustix::io::Errno;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

/// What a person is asked for a scope, and what they said.
struct AskedNeed {
    resource: Resource,
    because: Reason,
    /// Its number, once a person is asked.
    question: Option<u32>,
    said: Option<PersonAnswer>,
}

impl AskedNeed {
    fn is_refused(&self) -> bool {
        matches!(self.said, Some(PersonAnswer::No { .. }))
    }
}

fn not_answered(how: &str) -> PersonAnswer {
    let how = how.to_owned();
    let reason = LeaseReason::NotAnswered { how }.into();
    PersonAnswer::No { reason }
}

/// Has a person asked for all of it together, and waits for what they say. One no is the end: the
/// command does not run without what it was refused. The answers are in the order of the requests.
pub(super) fn ask(
    link: &ScopeLink,
    client: &Channel,
    needs: ScopeNeeds,
    wait: Duration,
) -> Result<Vec<PersonAnswer>, RunError> {
    let of = |request: &ScopePermissionRequest| AskedNeed {
        resource: request.resource.clone(),
        because: request.because.clone(),
        question: None,
        said: None,
    };
    let mut asked: Vec<AskedNeed> = needs.requests.iter().map(of).collect();
    let failed = crate::supervise::failed("have a person asked");
    link.say(&FromScope::Ask(Box::new(needs))).map_err(failed)?;
    let until = Instant::now() + wait;
    let mut gone = None;
    while gone.is_none() {
        match link.word() {
            Ok(Some(ToScope::Answered { ticket, said })) => {
                if let Some(need) = asked.get_mut(ticket as usize) {
                    need.said = Some(said);
                }
                continue;
            }
            Ok(Some(ToScope::Asked { ticket, question })) => {
                if let Some(need) = asked.get_mut(ticket as usize) {
                    need.question = Some(question);
                    let resource = need.resource.clone();
                    let _ = client.send(&Reply::Asked { question, resource }, &[]);
                }
                continue;
            }
            Ok(Some(ToScope::End)) | Err(_) => {
                gone = Some("the scope was ended");
                continue;
            }
            Ok(Some(_)) => continue,
            Ok(None) => {}
        }
        let mut open = asked.iter().filter(|need| need.said.is_none()).peekable();
        if open.peek().is_none() || asked.iter().any(AskedNeed::is_refused) {
            break;
        }
        let all_asked = open.all(|need| need.question.is_some());
        let left = until.saturating_duration_since(Instant::now());
        if all_asked && left.is_zero() {
            break;
        }
        if !is_there(link, client, all_asked.then_some(left)) {
            gone = Some("the requester is gone");
        }
    }
    let in_vain = asked.iter().any(AskedNeed::is_refused);
    let answer = |need: AskedNeed| match (need.said, gone, need.question) {
        (Some(said), _, _) => said,
        (None, Some(how), _) => not_answered(how),
        (None, None, Some(question)) if !in_vain => PersonAnswer::No {
            reason: LeaseReason::StillPending {
                because: need.because.to_string(),
                question: question.into(),
            }
            .into(),
        },
        (None, None, _) => not_answered("something else that the command needs was denied"),
    };
    Ok(asked.into_iter().map(answer).collect())
}

/// Waits for a word, so long if there is an end to it. `false` where the client is gone.
fn is_there(link: &ScopeLink, client: &Channel, left: Option<Duration>) -> bool {
    let mut fds = [
        PollFd::new(link, PollFlags::IN),
        // Only its end is of interest, which is told unasked.
        PollFd::from_borrowed_fd(client.as_fd(), PollFlags::empty()),
    ];
    let timeout = left.map(|left| {
        let left = left + Duration::from_millis(1);
        Timespec::try_from(left).unwrap_or_default()
    });
    match poll(&mut fds, timeout.as_ref()) {
        Ok(_) => {}
        Err(Errno::INTR) => return true,
        Err(_) => return false,
    }
    fds.get(1).is_some_and(|client| client.revents().is_empty())
}

impl Supervision<'_> {
    /// A scope's supervisor has a person asked.
    pub(crate) fn ask_for_scope(
        &mut self,
        number: u32,
        needs: ScopeNeeds,
        now: Instant,
    ) -> Result<(), RunError> {
        let ScopeNeeds { command, requests } = needs;
        let mut all = Vec::new();
        for asks in requests {
            let ScopePermissionRequest { ticket, .. } = asks;
            let identity = asks.identity;
            all.push(NewRequest {
                by: Requester::Scope { number, ticket },
                origin: asks.origin,
                identity: identity.map(|(device, inode)| Identity { device, inode }),
                announced: self.intents.announced(&asks.resource, now),
                resource: asks.resource,
                grant: asks.grant,
                descriptor: None,
                because: asks.because,
            });
        }
        self.raise_requests(all, &command, now)
    }
}

/// Device and number of what was seen.
pub(super) fn numbers(identity: Identity) -> (u64, u64) {
    (identity.device, identity.inode)
}
