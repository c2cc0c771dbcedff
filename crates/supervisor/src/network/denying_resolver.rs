//! The resolver of a cage without a network. Names fail at once there, and which ones goes on
//! record.
//!
//! The supervisor reads no query. An egress proxy whose rules allow nothing does, and it is started
//! with the first query: a cage that looks nothing up pays for one socket.

use super::pace::{AT_ONCE, TrafficPace};
use crate::RunError;
use crate::supervise::Supervision;
use ironcage_egress::{FromProxy, Proxy, give_sockets};
use ironcage_model::{EventKind, NetworkReason, Reason, Traffic};
use ironcage_plan::Network;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Instant;

/// The resolver, as the supervisor has it.
#[derive(Debug)]
pub(crate) struct DenyingResolver {
    answerer: ResolverState,
    pace: TrafficPace,
}

#[derive(Debug)]
enum ResolverState {
    /// Nobody yet: nothing was looked up.
    Nobody(OwnedFd),
    Proxy(Proxy),
}

impl DenyingResolver {
    pub(crate) fn new(socket: OwnedFd, now: Instant) -> Self {
        DenyingResolver {
            answerer: ResolverState::Nobody(socket),
            pace: TrafficPace::new(now),
        }
    }

    /// What it waits for, unless it waits for the time.
    pub(crate) fn descriptor(&self, now: Instant) -> Option<BorrowedFd<'_>> {
        let descriptor = match &self.answerer {
            ResolverState::Nobody(socket) => socket.as_fd(),
            ResolverState::Proxy(proxy) => proxy.control(),
        };
        self.pace.pause(now).is_none().then_some(descriptor)
    }

    /// When it is read again.
    pub(crate) fn next(&self, now: Instant) -> Option<Instant> {
        self.pace.pause(now)
    }
}

/// Takes one message; an error where the proxy is of no more use.
fn hear(proxy: &Proxy) -> Result<Option<Traffic>, Reason> {
    match proxy.hear() {
        Ok(Some(FromProxy::Failed(reason))) => Err(reason),
        Ok(Some(FromProxy::Closed)) => Err(NetworkReason::ProxyDied.into()),
        Ok(Some(FromProxy::Traffic(traffic) | FromProxy::Sum(traffic))) => Ok(Some(traffic)),
        Ok(_) => Ok(None),
        Err(error) => Err(unreachable_proxy(&error)),
    }
}

fn unreachable_proxy(error: &dyn std::error::Error) -> Reason {
    let error = error.to_string();
    NetworkReason::ProxyUnreachable { error }.into()
}

impl Supervision<'_> {
    /// Starts the proxy that answers, or takes one message of it.
    pub(crate) fn hear_resolver(&mut self, now: Instant) -> Result<(), RunError> {
        let Some(mut resolver) = self.resolver.take() else {
            return Ok(());
        };
        let heard = match &resolver.answerer {
            ResolverState::Nobody(socket) => {
                let started = Proxy::start(&Network::denying(), self.cage.proxy_ids());
                let given = started.and_then(|proxy| {
                    give_sockets(proxy.control(), socket, &[], None).map(|()| proxy)
                });
                match given {
                    Ok(proxy) => {
                        resolver.answerer = ResolverState::Proxy(proxy);
                        Ok(None)
                    }
                    Err(error) => Err(unreachable_proxy(&error)),
                }
            }
            ResolverState::Proxy(proxy) => {
                resolver.pace.count(now);
                hear(proxy)
            }
        };
        match heard {
            Ok(traffic) => {
                self.resolver = Some(resolver);
                match traffic {
                    Some(traffic) => self.audit.write(EventKind::Network(traffic)),
                    None => Ok(()),
                }
            }
            // With the socket goes the answer: names fail as without a resolver.
            Err(reason) => self.audit.write(EventKind::DoorEnded { reason }),
        }
    }

    /// Ends the proxy that answers, and records what it has not told yet. Where nobody answered, it
    /// returns the socket, to be closed with others.
    pub(crate) fn close_resolver(&mut self) -> Result<Option<OwnedFd>, RunError> {
        match self.resolver.take().map(|resolver| resolver.answerer) {
            Some(ResolverState::Proxy(proxy)) => {
                for traffic in proxy.close().into_iter().take(AT_ONCE as usize) {
                    self.audit.write(EventKind::Network(traffic))?;
                }
                Ok(None)
            }
            Some(ResolverState::Nobody(socket)) => Ok(Some(socket)),
            None => Ok(None),
        }
    }
}
