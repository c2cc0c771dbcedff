//! Approval of what the ceiling gives a scope only after asking: the scope's supervisor has a
//! person asked, and waits for the answer as long as its client is there and wants to.
//!
//! An approved resource is the scope's, not the cage's: the request opens nothing itself.

use super::link::{FromScope, PersonAnswer, ScopeLink, ScopePermissionRequest, ToScope};
use crate::RunError;
use crate::leases::Requester;
use crate::permission_requests::NewRequest;
use crate::supervise::Supervision;
use ironcage_control::{Channel, Reply};
use ironcage_layers::live::Identity;
use ironcage_model::LeaseReason;
use ironcage_sys::rustix::event::{PollFd, PollFlags, Timespec, poll};
use ironcage_sys::rustix::io::Errno;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

/// Has a person asked, and waits for what they say.
pub(super) fn ask(
    link: &ScopeLink,
    client: &Channel,
    asks: ScopePermissionRequest,
    wait: Duration,
) -> Result<PersonAnswer, RunError> {
    let (ticket, resource) = (asks.ticket, asks.resource.clone());
    let failed = crate::supervise::failed("have a person asked");
    let because = asks.because.clone();
    link.say(&FromScope::Ask(Box::new(asks))).map_err(failed)?;
    let until = Instant::now() + wait;
    let mut asked = None;
    loop {
        match link.word() {
            Ok(Some(ToScope::Answered { ticket: of, said })) if of == ticket => return Ok(said),
            Ok(Some(ToScope::Asked {
                ticket: of,
                question,
            })) if of == ticket => {
                asked = Some(question);
                let resource = resource.clone();
                let _ = client.send(&Reply::Asked { question, resource }, &[]);
            }
            Ok(Some(ToScope::End)) | Err(_) => {
                let how = "the scope was ended".into();
                let reason = LeaseReason::NotAnswered { how }.into();
                return Ok(PersonAnswer::No { reason });
            }
            Ok(Some(_)) => continue,
            Ok(None) => {}
        }
        let left = until.saturating_duration_since(Instant::now());
        if let Some(question) = asked.filter(|_| left.is_zero()) {
            let reason = LeaseReason::StillPending {
                because: because.to_string(),
                question: question.into(),
            };
            let reason = reason.into();
            return Ok(PersonAnswer::No { reason });
        }
        if !is_there(link, client, asked.map(|_| left)) {
            let how = "the requester is gone".into();
            let reason = LeaseReason::NotAnswered { how }.into();
            return Ok(PersonAnswer::No { reason });
        }
    }
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
        asks: ScopePermissionRequest,
        now: Instant,
    ) -> Result<(), RunError> {
        let by = Requester::Scope {
            number,
            ticket: asks.ticket,
        };
        let identity = asks
            .identity
            .map(|(device, inode)| Identity { device, inode });
        let announced = self.intents.announced(&asks.resource, now);
        let new = NewRequest {
            by,
            origin: asks.origin,
            resource: asks.resource,
            identity,
            grant: asks.grant,
            descriptor: None,
            because: asks.because,
            announced,
        };
        self.raise_request(new, now)
    }
}

/// Device and number of what was seen.
pub(super) fn numbers(identity: Identity) -> (u64, u64) {
    (identity.device, identity.inode)
}
