//! Leases of a server's cage that last as long as one call.
//!
//! The gateway opens the resources that a call names in its arguments, and proves them closed after it. It asks as the
//! agent's controller: a person approves resources that the ceiling marks `ask`, and nothing is opened beyond the ceiling.

use ironcage_client::{
    Cages, ClientError, Connection, Ended, deny, grant, grant_for_call, leases, open_path, revoke,
};
use ironcage_control::{GrantRequest, LeaseTarget};
use ironcage_model::{
    CageId, GrantedLease, LeaseEnd, LeaseOutcome, Reason, RequestOutcome, Resource, Term, in_full,
};
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};

/// Who wants what a call needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Asker {
    /// The agent, by its call.
    Call,
    /// A person, who approved this call.
    Person,
}

/// Why a call does not get what it needs.
#[derive(Debug)]
pub(crate) enum NotLeased {
    /// The ceiling wants a person's word.
    NeedsPerson,
    Denied {
        resource: String,
        error: CallLeaseError,
    },
}

/// Why a resource is not leased for a call.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CallLeaseError {
    #[error(transparent)]
    Client(#[from] ClientError),
    /// A link would lead past what the rules compared.
    #[error("a link in it leads to {}", leads_to.display())]
    Link { leads_to: PathBuf },
    #[error("cannot read where it leads")]
    Handle(#[source] io::Error),
    #[error("it is open for a scope only")]
    ForScope,
    #[error("{0}")]
    Refused(Reason),
}

/// A lease that could not be proven closed.
#[derive(Debug)]
pub(crate) struct NotClosed {
    pub(crate) resource: String,
    pub(crate) error: String,
}

/// What is open for one call. Dropped, it is closed, and nobody waits for the proof.
#[derive(Debug)]
pub(crate) struct CallLeases {
    cage: CageId,
    open: Vec<(u32, Resource)>,
}

impl CallLeases {
    /// Opens all of it, or nothing.
    pub(crate) fn open(
        cage: &str,
        needs: Vec<Resource>,
        asker: Asker,
        tool: &str,
    ) -> Result<Self, NotLeased> {
        let first = needs.first().map(ToString::to_string).unwrap_or_default();
        let unreachable = |error: ClientError| NotLeased::Denied {
            resource: first.clone(),
            error: error.into(),
        };
        let cages = Cages::of_user().map_err(unreachable)?;
        let id = cages.find(cage).map_err(unreachable)?;
        let connection = cages.connect(&id).map_err(unreachable)?;
        // What is open already is somebody else's, and stays.
        let known = leases(&connection).map_err(unreachable)?;
        let mut opened = CallLeases {
            cage: id,
            open: Vec::new(),
        };
        for need in needs {
            let outcome = request(&connection, &need, asker, tool);
            let denied = |error: CallLeaseError| NotLeased::Denied {
                resource: need.to_string(),
                error,
            };
            match outcome {
                Ok(LeaseOutcome::Granted(GrantedLease::Open(lease))) => {
                    if known.iter().all(|known| known.lease.number != lease.number) {
                        opened.open.push((lease.number, need));
                    }
                }
                Ok(LeaseOutcome::InBase { .. }) => {}
                Ok(LeaseOutcome::Pending { question, .. }) => {
                    // It is asked about at the gateway, with the call. A question that is gone already needs no answer.
                    let reason = "asked at the gateway".to_owned();
                    let _ = deny(&connection, question, reason);
                    return Err(NotLeased::NeedsPerson);
                }
                Ok(LeaseOutcome::Granted(GrantedLease::ForScope { .. })) => {
                    return Err(denied(CallLeaseError::ForScope));
                }
                Ok(LeaseOutcome::Denied { reason }) => {
                    return Err(denied(CallLeaseError::Refused(reason)));
                }
                Err(error) => return Err(denied(error)),
            }
        }
        Ok(opened)
    }

    /// What is open, for the audit log.
    pub(crate) fn names(&self) -> Vec<String> {
        let open = self.open.iter();
        open.map(|(_, resource)| resource.to_string()).collect()
    }

    /// Closes all of it, and waits until the kernel has proved it.
    pub(crate) fn close(mut self) -> Result<(), NotClosed> {
        let open = std::mem::take(&mut self.open);
        end(&self.cage, &open)
    }
}

impl Drop for CallLeases {
    fn drop(&mut self) {
        let open = std::mem::take(&mut self.open);
        if !open.is_empty() {
            let cage = self.cage.clone();
            std::thread::spawn(move || {
                if let Err(left) = end(&cage, &open) {
                    let NotClosed { resource, error } = left;
                    anstream::eprintln!("ironcage: {resource} is not proven closed: {error}");
                }
            });
        }
    }
}

fn request(
    connection: &Connection,
    need: &Resource,
    asker: Asker,
    tool: &str,
) -> Result<RequestOutcome, CallLeaseError> {
    let (wanted, handle) = match need {
        Resource::Path { path, right } => {
            let handle = open_path(Path::new(path))?;
            is_itself(&handle, path)?;
            (LeaseTarget::Path { right: *right }, Some(handle))
        }
        other => (LeaseTarget::Other(other.clone()), None),
    };
    let request = GrantRequest {
        wanted,
        term: Term::UntilRevoked,
        uses: None,
        reason: format!("tools/call {tool}"),
    };
    let handles: Vec<_> = handle.iter().map(AsFd::as_fd).collect();
    Ok(match asker {
        Asker::Call => grant_for_call(connection, request, &handles)?,
        Asker::Person => grant(connection, request, &handles)?,
    })
}

fn is_itself(handle: &OwnedFd, path: &str) -> Result<(), CallLeaseError> {
    let link = format!("/proc/self/fd/{}", handle.as_raw_fd());
    let leads_to = std::fs::read_link(link).map_err(CallLeaseError::Handle)?;
    match leads_to == Path::new(path) {
        true => Ok(()),
        false => Err(CallLeaseError::Link { leads_to }),
    }
}

fn end(cage: &CageId, open: &[(u32, Resource)]) -> Result<(), NotClosed> {
    let mut left = None;
    for (number, resource) in open {
        let not_closed = |error: String| NotClosed {
            resource: resource.to_string(),
            error,
        };
        let ended = Cages::of_user()
            .and_then(|cages| cages.connect(cage))
            .and_then(|connection| {
                let mut ended: Option<Ended> = None;
                revoke(&connection, Some(*number), |end| ended = Some(end))?;
                Ok(ended)
            });
        match ended {
            Ok(Some(Ended {
                end: LeaseEnd::Revoked,
                ..
            })) => {}
            Ok(Some(ended)) => left = Some(not_closed(ended.end.name().to_owned())),
            // Its time was over: the cage's own log has the proof.
            Ok(None) => {}
            // With the cage everything in it is gone.
            Err(ClientError::NotRunning { .. } | ClientError::Gone { .. }) => {}
            Err(error) => left = Some(not_closed(in_full(&error))),
        }
    }
    left.map_or(Ok(()), Err)
}
