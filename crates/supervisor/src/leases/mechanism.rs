//! The mechanism that holds a lease, by its kind: a mount of the mount helper, a rule, port or
//! secret of the egress proxy's, a socket proxy, a value of the cgroup's. How each is opened and
//! closed.

use super::table::Opening;
use crate::RunError;
use crate::network::NewRule;
use crate::supervise::Supervision;
use ironcage_backend::{LeaseOrder, LeasedFrom};
use ironcage_egress::SecretUses;
use ironcage_lease::life::{LeaseEvent, LeasePhase, Release};
use ironcage_model::{
    HostRule, HttpRule, LeaseReason, LimitKind, NetworkReason, NetworkVerdict, Publish, Reason,
    Resource, Right,
};
use ironcage_sys::faults::lease_step as step;
use std::io;
use std::path::Path;
use std::time::Instant;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum LeaseMechanism {
    /// A mount of the mount helper's.
    Mount,
    /// The egress proxy: an order by this number is under way.
    Proxy {
        /// Of the last order.
        serial: u32,
        /// What the proxy was told.
        what: ProxyLease,
    },
    /// A value of the cgroup's; what it was before.
    Cgroup { limit: LimitKind, before: u64 },
}

/// What the egress proxy was told.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum ProxyLease {
    /// A rule, by its number.
    Rule(u32),
    /// A port that is published.
    Port(Publish),
    /// A secret, by its name.
    Secret(String),
    /// A host socket that has a socket proxy, by its path.
    Socket(String),
}

impl LeaseMechanism {
    /// Whether the supervisor counts the uses; of the rest the egress proxy does.
    pub(crate) fn is_counted_here(&self) -> bool {
        matches!(
            self,
            LeaseMechanism::Proxy {
                what: ProxyLease::Port(_) | ProxyLease::Socket(_),
                ..
            }
        )
    }

    /// The host socket that it opens.
    pub(crate) fn socket(&self) -> Option<&str> {
        match self {
            LeaseMechanism::Proxy {
                what: ProxyLease::Socket(path),
                ..
            } => Some(path),
            _ => None,
        }
    }
}

/// Why a directory is not given for writing that nobody can watch.
pub(crate) fn unwatched(path: &str, error: &io::Error) -> Reason {
    LeaseReason::DiskNotMeasured {
        path: path.to_owned(),
        error: error.to_string(),
    }
    .into()
}

fn allow(rule: HostRule, requests: Option<HttpRule>, uses: Option<u32>) -> NewRule {
    NewRule {
        verdict: NetworkVerdict::Allowed,
        rule,
        requests,
        uses,
    }
}

impl Supervision<'_> {
    /// What will hold a lease; or why nothing can.
    pub(super) fn mechanism_for(
        &mut self,
        resource: &Resource,
        opening: &Opening,
    ) -> Result<LeaseMechanism, Reason> {
        let held_by_proxy = |what| LeaseMechanism::Proxy { serial: 0, what };
        Ok(match resource {
            Resource::Path { .. } => {
                self.start_helper()?;
                LeaseMechanism::Mount
            }
            Resource::Host { rule } => {
                self.network
                    .can_add_rule(&allow(rule.clone(), None, None))?;
                held_by_proxy(ProxyLease::Rule(0))
            }
            Resource::Http { rule } => {
                self.network
                    .can_add_rule(&allow(rule.host.clone(), Some(rule.clone()), None))?;
                held_by_proxy(ProxyLease::Rule(0))
            }
            Resource::Port { publish } => {
                let listener = opening.descriptor.as_ref();
                let listener = listener.ok_or(NetworkReason::NotAListener)?;
                self.network.can_publish(*publish, listener)?;
                held_by_proxy(ProxyLease::Port(*publish))
            }
            Resource::Secret { name } => {
                self.network.proxy_is_there()?;
                held_by_proxy(ProxyLease::Secret(name.clone()))
            }
            Resource::Socket { path } => {
                self.network.proxy_is_there()?;
                if !self.network.has_socket(path) {
                    return Err(LeaseReason::SocketUnknown.into());
                }
                held_by_proxy(ProxyLease::Socket(path.clone()))
            }
            Resource::Limit { limit, .. } => {
                let bounds = &self.plan.bounds;
                let before = match limit {
                    LimitKind::Memory => bounds.memory.what.value,
                    LimitKind::Cpus => bounds.cpu.what.value,
                    _ => bounds.pids.what.value,
                };
                if !self.cage.cgroup().is_some_and(|group| group.bounds(*limit)) {
                    let limit = limit.to_string();
                    return Err(LeaseReason::LimitWithoutCgroup { limit }.into());
                }
                LeaseMechanism::Cgroup {
                    limit: *limit,
                    before,
                }
            }
            Resource::Key { .. } => return Err(LeaseReason::KeyNotLeased.into()),
            Resource::Syscalls { .. } | Resource::Capability { .. } => {
                let kind = resource.kind().to_string();
                return Err(LeaseReason::FiltersOnlyTighten { kind }.into());
            }
        })
    }

    /// Opens a lease that is on record.
    pub(crate) fn open_lease(&mut self, number: u32, now: Instant) -> Result<(), RunError> {
        let Some((resource, uses, opening)) = self.leases.take_opening(number) else {
            return Ok(());
        };
        let origin = format!("lease {number}");
        let told = match (&resource, &opening) {
            (
                Resource::Path { path, right },
                Opening {
                    identity: Some(identity),
                    ..
                },
            ) => {
                // What is read there is hidden in the view, and the host's own.
                let in_view = *right == Right::Write && self.plan.is_locked(Path::new(path));
                let from = match in_view {
                    true => LeasedFrom::View,
                    false => LeasedFrom::Host {
                        device: identity.device,
                        inode: identity.inode,
                    },
                };
                if let (Right::Write, LeasedFrom::Host { .. }) = (*right, &from)
                    && let Err(error) = self.limits.watch_directory(Path::new(path), now)
                {
                    return self.opened(number, Some(unwatched(path, &error)), now);
                }
                let order = LeaseOrder::Open {
                    number,
                    path: path.clone(),
                    from,
                    right: *right,
                };
                return self.order(&order, now);
            }
            (Resource::Host { rule }, _) => {
                let wanted = allow(rule.clone(), None, uses);
                self.network
                    .add_rule(None, wanted, &origin)
                    .map(ProxyLease::Rule)
            }
            (Resource::Http { rule }, _) => {
                let wanted = allow(rule.host.clone(), Some(rule.clone()), uses);
                self.network
                    .add_rule(None, wanted, &origin)
                    .map(ProxyLease::Rule)
            }
            (
                Resource::Port { publish },
                Opening {
                    descriptor: Some(listener),
                    ..
                },
            ) => self
                .network
                .publish(None, *publish, listener)
                .map(|()| ProxyLease::Port(*publish)),
            (Resource::Secret { name }, _) => self
                .network
                .lease_secret(name, uses.map_or(SecretUses::Any, SecretUses::Some))
                .map(|()| ProxyLease::Secret(name.clone())),
            (Resource::Socket { path }, _) => {
                // The supervisor itself takes connections from now on; nobody is asked.
                self.network.set_socket(path, true);
                step();
                return self.opened(number, None, now);
            }
            (Resource::Limit { limit, value }, _) => {
                let set = self.set_limit(*limit, *value);
                step();
                return self.opened(number, set.err().map(Reason::from), now);
            }
            _ => Err(NetworkReason::NotAListener),
        };
        step();
        match told {
            Ok(what) => {
                self.told_proxy(number, what);
                Ok(())
            }
            Err(reason) => self.opened(number, Some(reason.into()), now),
        }
    }

    fn opened(
        &mut self,
        number: u32,
        failed: Option<Reason>,
        now: Instant,
    ) -> Result<(), RunError> {
        let effects = match failed {
            None => self.leases.handle(number, LeaseEvent::Opened, now),
            Some(reason) => self.leases.not_opened(number, reason, now),
        };
        self.apply(effects, now)
    }

    /// The egress proxy's answer to its last order is one for this lease.
    fn told_proxy(&mut self, number: u32, what: ProxyLease) {
        let serial = self.network.last_serial();
        let mechanism = LeaseMechanism::Proxy { serial, what };
        self.leases.set_mechanism(number, mechanism);
    }

    /// Has a lease closed by what holds it.
    pub(crate) fn close_lease(
        &mut self,
        number: u32,
        grace_over: bool,
        now: Instant,
    ) -> Result<(), RunError> {
        match self.leases.mechanism(number).cloned() {
            None => Ok(()),
            Some(LeaseMechanism::Mount) => self.order(&LeaseOrder::Close { number }, now),
            Some(LeaseMechanism::Cgroup { limit, before }) => {
                self.close_limit(number, (limit, before), grace_over, now)
            }
            Some(LeaseMechanism::Proxy { what, .. }) => {
                step();
                let told = match &what {
                    ProxyLease::Rule(rule) => self.network.remove_rules(None, &[*rule]),
                    ProxyLease::Port(publish) => self.network.unpublish(None, publish.outer),
                    ProxyLease::Secret(name) => self.network.lease_secret(name, SecretUses::None),
                    ProxyLease::Socket(path) => {
                        self.network.set_socket(path, false);
                        self.network.drop_carried(path)
                    }
                };
                match told {
                    Ok(()) => {
                        self.told_proxy(number, what);
                        Ok(())
                    }
                    // What the proxy cannot be told, it cannot go on doing.
                    Err(reason) => self.lose_proxy(reason.into(), now),
                }
            }
        }
    }

    /// The egress proxy says that what it was told holds.
    pub(crate) fn lease_changed(&mut self, serial: u32) -> Result<(), RunError> {
        let Some(number) = self.leases.by_proxy_order(serial) else {
            return Ok(());
        };
        let now = Instant::now();
        step();
        match self.leases.phase(number) {
            Some(LeasePhase::Opening) => self.lease_event(number, LeaseEvent::Opened, now),
            Some(LeasePhase::Ending) => {
                let revoked = LeaseEvent::Released(Release::Revoked);
                self.lease_event(number, revoked, now)
            }
            Some(LeasePhase::Open | LeasePhase::Over) | None => Ok(()),
        }
    }

    /// There is no egress proxy any more: nothing that it held can be used.
    pub(crate) fn leases_without_proxy(&mut self) -> Result<(), RunError> {
        let now = Instant::now();
        let effects = self.leases.proxy_ended(now);
        self.apply(effects, now)
    }

    /// Whether a port is published by a lease.
    pub(crate) fn is_leased_port(&self, publish: Publish) -> bool {
        let mut leases = self.leases.all();
        leases.any(|lease| crate::network::is_port(&lease.resource, publish))
    }

    fn set_limit(&self, limit: LimitKind, value: u64) -> Result<(), LeaseReason> {
        let group = self.cage.cgroup();
        let group = group.ok_or_else(|| LeaseReason::LimitWithoutCgroup {
            limit: limit.to_string(),
        })?;
        let set = group.set(limit, value);
        set.map_err(|error| LeaseReason::NotOpened {
            error: ironcage_model::in_full(&error),
        })
    }

    /// Takes a limit back: at once where no more is used, else after the grace.
    fn close_limit(
        &mut self,
        number: u32,
        (limit, before): (LimitKind, u64),
        grace_over: bool,
        now: Instant,
    ) -> Result<(), RunError> {
        let used = |this: &Self| {
            let stats = this
                .cage
                .cgroup()
                .map(ironcage_layers::cgroup::Cgroup::stats);
            stats.and_then(|stats| match limit {
                LimitKind::Memory => stats.memory,
                LimitKind::Pids => stats.pids,
                _ => None,
            })
        };
        let exceeded = |this: &Self| used(this).is_some_and(|used| used > before);
        // More processes than that can be kept from growing at once; memory that is used would
        // be taken from whoever has it.
        let release = if limit == LimitKind::Memory && !grace_over && exceeded(self) {
            Release::Busy
        } else {
            step();
            if self.set_limit(limit, before).is_err() {
                // A limit that cannot be taken back is ended with what it is on.
                return self.lease_event(number, LeaseEvent::MechanismLost, now);
            }
            match exceeded(self) {
                true => Release::ClosedToNewOpens,
                false => Release::Revoked,
            }
        };
        self.lease_event(number, LeaseEvent::Released(release), now)
    }
}
