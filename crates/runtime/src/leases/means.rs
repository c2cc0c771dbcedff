//! What holds a lease, by its kind: the keeper's mounts, the network door's rules, ports and
//! secrets, the supervisor's own stand-ins, the cgroup's values. How each is opened and closed.

use super::{Held, Stage};
use crate::RunError;
use crate::live_network::Wanted;
use crate::supervise::Supervision;
use ironcage_backend::{LeaseOrder, LeasedFrom};
use ironcage_egress::SecretUses;
use ironcage_layers::live::Identity;
use ironcage_model::{HostRule, HttpRule, LeaseEnd, LimitKind, NetworkVerdict, Publish, Resource};
use ironcage_sys::faults::lease_step as step;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::{Duration, Instant};

/// How often it is looked whether less of a limit is used.
const AGAIN: Duration = Duration::from_millis(50);

/// What holds a lease.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Means {
    /// A mount of the keeper's.
    Mount,
    /// The network door: an order by this number is under way.
    Door {
        /// Of the last order.
        serial: u32,
        /// What the door was told.
        what: Told,
    },
    /// A value of the cgroup's; what it was before.
    Cgroup { limit: LimitKind, before: u64 },
}

/// What the network door was told.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Told {
    /// A rule, by its number.
    Rule(u32),
    /// A port that is published.
    Port(Publish),
    /// A secret, by its name.
    Secret(String),
    /// A socket that the supervisor stands in for, by its path.
    Socket(String),
}

/// What comes with a lease that is about to be opened.
#[derive(Debug)]
pub(super) struct Ready {
    pub(super) number: u32,
    /// What a path was when it was decided upon.
    pub(super) identity: Option<Identity>,
    /// What came beside the request.
    pub(super) descriptor: Option<OwnedFd>,
}

/// A rule that allows.
fn allow(rule: HostRule, requests: Option<HttpRule>, uses: Option<u32>) -> Wanted {
    Wanted {
        verdict: NetworkVerdict::Allowed,
        rule,
        requests,
        uses,
    }
}

impl Supervision<'_> {
    /// What will hold a lease; or why nothing can.
    pub(super) fn means_of(&mut self, resource: &Resource, ready: &Ready) -> Result<Means, String> {
        let door = |what| Means::Door { serial: 0, what };
        Ok(match resource {
            Resource::Path { .. } => {
                self.start_keeper()?;
                Means::Mount
            }
            Resource::Host { rule } => {
                self.can_add_rule(&allow(rule.clone(), None, None))?;
                door(Told::Rule(0))
            }
            Resource::Http { rule } => {
                self.can_add_rule(&allow(rule.host.clone(), Some(rule.clone()), None))?;
                door(Told::Rule(0))
            }
            Resource::Port { publish } => {
                let listener = ready.descriptor.as_ref();
                let listener = listener.ok_or("a port comes with its listening socket")?;
                self.can_publish(*publish, listener)?;
                door(Told::Port(*publish))
            }
            Resource::Secret { name } => {
                self.door_is_there()?;
                door(Told::Secret(name.clone()))
            }
            Resource::Socket { path } => {
                self.door_is_there()?;
                let mut sockets = self.sockets.iter();
                if !sockets.any(|socket| socket.stands_for(path)) {
                    return Err(
                        "it was not there when the cage started; start the cage again".into(),
                    );
                }
                door(Told::Socket(path.clone()))
            }
            Resource::Limit { limit, .. } => {
                let bounds = &self.plan.bounds;
                let before = match limit {
                    LimitKind::Memory => bounds.memory.what.value,
                    LimitKind::Cpus => bounds.cpu.what.value,
                    _ => bounds.pids.what.value,
                };
                if !self.cage.cgroup().is_some_and(|group| group.bounds(*limit)) {
                    return Err(format!(
                        "{limit} is not bounded by a cgroup here, and what bounds it instead only ever tightens; `ironcage doctor` says what is missing"
                    ));
                }
                Means::Cgroup {
                    limit: *limit,
                    before,
                }
            }
            Resource::Syscalls { .. } | Resource::Capability { .. } => {
                return Err("filters and capabilities of a running cage only ever tighten".into());
            }
        })
    }

    /// Opens a lease that is on record.
    pub(super) fn open_lease(&mut self, ready: &Ready, now: Instant) -> Result<(), RunError> {
        let Some(held) = self.held(ready.number) else {
            return Ok(());
        };
        let (resource, uses) = (held.lease.resource.clone(), held.lease.uses);
        let origin = format!("lease {}", ready.number);
        let told = match (&resource, ready) {
            (
                Resource::Path { path, right },
                Ready {
                    identity: Some(identity),
                    ..
                },
            ) => {
                let from = match self.plan.is_locked(Path::new(path)) {
                    true => LeasedFrom::View,
                    false => LeasedFrom::Host {
                        device: identity.device,
                        inode: identity.inode,
                    },
                };
                return self.order(&LeaseOrder::Open {
                    number: ready.number,
                    path: path.clone(),
                    from,
                    right: *right,
                });
            }
            (Resource::Host { rule }, _) => {
                let wanted = allow(rule.clone(), None, uses);
                self.add_network_rule(None, wanted, &origin).map(Told::Rule)
            }
            (Resource::Http { rule }, _) => {
                let wanted = allow(rule.host.clone(), Some(rule.clone()), uses);
                self.add_network_rule(None, wanted, &origin).map(Told::Rule)
            }
            (
                Resource::Port { publish },
                Ready {
                    descriptor: Some(listener),
                    ..
                },
            ) => self
                .publish(None, *publish, listener)
                .map(|()| Told::Port(*publish)),
            (Resource::Secret { name }, _) => self
                .lease_secret(name, uses.map_or(SecretUses::Any, SecretUses::Some))
                .map(|()| Told::Secret(name.clone())),
            (Resource::Socket { path }, _) => {
                // The supervisor itself takes connections from now on; nobody is asked.
                self.set_socket(path, true);
                step();
                return self.opened(ready.number, None, now);
            }
            (Resource::Limit { limit, value }, _) => {
                let set = self.set_limit(*limit, *value);
                step();
                return self.opened(ready.number, set.err(), now);
            }
            _ => Err("nothing came that it could be held by".into()),
        };
        step();
        match told {
            Ok(what) => {
                let serial = self.network.last_serial();
                if let Some(held) = self.held(ready.number) {
                    held.means = Means::Door { serial, what };
                }
                Ok(())
            }
            Err(reason) => self.opened(ready.number, Some(reason), now),
        }
    }

    /// Ends a lease that no mount holds.
    pub(super) fn close_means(
        &mut self,
        number: u32,
        means: Means,
        (grace, now): (Instant, Instant),
    ) -> Result<(), RunError> {
        match means {
            Means::Mount => self.order(&LeaseOrder::Close { number }),
            Means::Cgroup { limit, before } => {
                self.close_limit(number, (limit, before), grace, now)
            }
            Means::Door { what, .. } => {
                step();
                let told = match &what {
                    Told::Rule(rule) => self.remove_network_rules(None, &[*rule]),
                    Told::Port(publish) => self.unpublish(None, publish.outer),
                    Told::Secret(name) => self.lease_secret(name, SecretUses::None),
                    Told::Socket(path) => {
                        self.set_socket(path, false);
                        self.drop_carried(path)
                    }
                };
                if let Err(reason) = told {
                    // What the door cannot be told, it cannot go on doing.
                    return self.lose_door(reason);
                }
                let serial = self.network.last_serial();
                if let Some(held) = self.held(number) {
                    held.means = Means::Door { serial, what };
                }
                Ok(())
            }
        }
    }

    /// The door says that what it was told holds.
    pub(crate) fn lease_changed(&mut self, serial: u32) -> Result<(), RunError> {
        let by_this =
            |held: &&Held| matches!(&held.means, Means::Door { serial: own, .. } if *own == serial);
        let found = self.leases.held.iter().find(by_this);
        let Some((number, stage)) = found.map(|held| (held.lease.number, held.stage)) else {
            return Ok(());
        };
        step();
        match stage {
            Stage::Opening { .. } => self.opened(number, None, Instant::now()),
            Stage::Closing { .. } => self.finish_lease(number, LeaseEnd::Revoked),
            _ => Ok(()),
        }
    }

    /// There is no door any more: nothing that it held can be used.
    pub(crate) fn leases_without_door(&mut self) -> Result<(), RunError> {
        let held = self.leases.held.iter();
        let by_door = held.filter(|held| matches!(held.means, Means::Door { .. }));
        let found: Vec<(u32, Stage)> = by_door
            .map(|held| (held.lease.number, held.stage))
            .collect();
        for (number, stage) in found {
            if let Some(held) = self.held(number)
                && let Means::Door {
                    what: Told::Socket(path),
                    ..
                } = held.means.clone()
            {
                self.set_socket(&path, false);
            }
            match stage {
                Stage::Opening { .. } => {
                    let reason = "the network door ended before it could do that".to_owned();
                    self.opened(number, Some(reason), Instant::now())?;
                }
                _ => {
                    if let Some(held) = self.held(number) {
                        held.cause = "the network door ended";
                    }
                    self.finish_lease(number, LeaseEnd::Revoked)?;
                }
            }
        }
        Ok(())
    }

    /// Whether a port is published by a lease.
    pub(crate) fn is_leased_port(&self, publish: Publish) -> bool {
        let mut held = self.leases.held.iter();
        held.any(|held| crate::publish::is_port(&held.lease.resource, publish))
    }

    /// Counts a use of a leased port or socket. `false` where there is none left.
    pub(crate) fn use_lease(&mut self, is_it: impl Fn(&Resource) -> bool) -> bool {
        let mut held = self.leases.held.iter_mut();
        let found = held.find(|held| is_it(&held.lease.resource) && held.stage == Stage::Open);
        match found.map(|held| &mut held.left) {
            None => false,
            Some(None) => true,
            Some(Some(0)) => false,
            Some(Some(left)) => {
                *left -= 1;
                true
            }
        }
    }

    /// The limit that a lease has raised, where one has.
    pub(crate) fn leased_limit(&self, wanted: LimitKind) -> Option<u64> {
        let mut held = self.leases.held.iter();
        held.find_map(|held| match held.lease.resource {
            Resource::Limit { limit, value } if limit == wanted => Some(value),
            _ => None,
        })
    }

    fn set_limit(&self, limit: LimitKind, value: u64) -> Result<(), String> {
        let group = self.cage.cgroup().ok_or("there is no cgroup")?;
        let set = group.set(limit, value);
        set.map_err(|error| ironcage_model::in_full(&error))
    }

    /// Takes a limit back: at once where no more is used, else after the grace.
    fn close_limit(
        &mut self,
        number: u32,
        (limit, before): (LimitKind, u64),
        grace: Instant,
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
        // More processes than that can be kept from growing at once; memory that is used would
        // be taken from whoever has it.
        let waits = limit == LimitKind::Memory && now < grace;
        if waits && used(self).is_some_and(|used| used > before) {
            if let Some(held) = self.held(number) {
                held.stage = Stage::Draining {
                    next: grace.min(now + AGAIN),
                    grace,
                };
            }
            return Ok(());
        }
        step();
        if self.set_limit(limit, before).is_err() {
            // A limit that cannot be taken back is ended with what it is on.
            return self.kill_for_leases();
        }
        step();
        let end = match used(self) {
            Some(used) if used > before => LeaseEnd::ClosedToNewOpens,
            _ => LeaseEnd::Revoked,
        };
        self.finish_lease(number, end)
    }
}
