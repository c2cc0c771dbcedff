//! Scopes: commands beside the cage, each with leases of its own, seen from the cage's supervisor.
//!
//! A scope has a supervisor of its own ([`supervisor`]), forked from this one, which makes it, serves its
//! client and ends it. Here it is known by its number, its leases are kept account of, and what
//! happens in it is put on record. Nothing here waits for a scope, but at the end of the cage.
//! [`part`] owns what is known of them; here the loop forks them and asks other parts.

mod approval;
mod call;
mod command_text;
mod deciding;
mod judge;
mod leases;
mod link;
mod part;
mod planning;
mod shell;
mod supervisor;
mod taint;

pub(crate) use link::{ScopeLink, ScopeNeeds, ScopeTaint};
pub(crate) use part::{ScopeEvent, Scopes};
pub(crate) use supervisor::{CLIENT, ScopeState};

use crate::RunError;
use crate::execs::MAX_EXECS;
use crate::supervise::Supervision;
use crate::untrusted_fds::close_elsewhere;
use ironcage_backend::Sibling;
use ironcage_control::{Channel, ExecRequest, ExecStreams, Reply, ScopeRequest, pair};
use ironcage_model::{Reason, SupervisorReason, Taint};
use ironcage_sys::clone::{Forked, Namespaces, fork};
use ironcage_sys::faults::lease_step as step;
use ironcage_sys::rustix::process::getpid;
use ironcage_watchdog::Guest;
use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::Instant;

/// Leases that a tool call can have.
pub(super) const MOST_OF_A_CALL: usize = 64;

/// Scopes at once that shells in the cage asked for: the rest are the user's own.
const MOST_SHELLS: usize = 16;

impl Supervision<'_> {
    /// Starts a command in a scope. What stands against it later is told by the scope's supervisor.
    pub(crate) fn start_scope(
        &mut self,
        key: u64,
        request: ExecRequest,
        descriptors: Vec<OwnedFd>,
        now: Instant,
    ) -> Result<(), RunError> {
        let against = match request.streams {
            ExecStreams::Detached => Some(SupervisorReason::ScopeDetached),
            _ if request.scope.iter().any(|scope| scope.shell.is_some()) => {
                Some(SupervisorReason::ShellOnly)
            }
            ExecStreams::Given => Some(SupervisorReason::HostDescriptors),
            _ if self.control.has_exec(key) => Some(SupervisorReason::ConnectionInUse),
            _ => self.against_scope(),
        };
        if let Some(reason) = against {
            self.control.refuse(key, reason);
            return Ok(());
        }
        let Some(client) = self.control.give_away(key) else {
            return Ok(());
        };
        self.begin_scope(client, request, descriptors, now)
    }

    /// A shell in the cage wants to run a command in a scope. What it is, the shell says to the
    /// scope's own supervisor.
    pub(crate) fn run_for_shell(
        &mut self,
        client: OwnedFd,
        asked: ScopeRequest,
        descriptors: Vec<OwnedFd>,
        now: Instant,
    ) -> Result<(), RunError> {
        let Ok(another) = client.try_clone() else {
            close_elsewhere(vec![client]);
            return Ok(());
        };
        let answered = self.answer_shell(Channel::new(another), asked, descriptors, now);
        // The agent may have put descriptors into it, and closes them with it.
        close_elsewhere(vec![client]);
        answered
    }

    fn answer_shell(
        &mut self,
        client: Channel,
        mut asked: ScopeRequest,
        mut descriptors: Vec<OwnedFd>,
        now: Instant,
    ) -> Result<(), RunError> {
        let against = match () {
            () if !self.plan.shares_storage() => Some(SupervisorReason::NoShellScopes),
            () if !self.requests.spend(now) => Some(SupervisorReason::RequestRate),
            () if self.scopes.count_of_shells() >= MOST_SHELLS => {
                Some(SupervisorReason::TooManyCommands {
                    limit: MOST_SHELLS as u64,
                })
            }
            () if self.counts_together() => Some(SupervisorReason::ScopeNotCounted),
            () if self.network.is_narrowed() => Some(SupervisorReason::NetworkNarrowed),
            () => self.against_scope(),
        };
        if let Some(reason) = against {
            // Who does not take it learns by the end of the connection.
            let reason = reason.into();
            let _ = client.send(&Reply::Refused { reason }, &[]);
            return Ok(());
        }
        if let Some(shell) = &asked.shell {
            let held = &shell.held;
            (asked.leases, descriptors) = self.without_unheld(asked.leases, descriptors, held);
        }
        if self.has_leases_for(&asked.leases, &descriptors) {
            let _ = client.send(&Reply::InCage, &[]);
            return Ok(());
        }
        let request = ExecRequest {
            argv: Vec::new(),
            env: Vec::new(),
            cwd: None,
            streams: ExecStreams::Given,
            scope: Some(asked),
        };
        self.begin_scope(client, request, descriptors, now)
    }

    fn begin_scope(
        &mut self,
        client: Channel,
        request: ExecRequest,
        descriptors: Vec<OwnedFd>,
        now: Instant,
    ) -> Result<(), RunError> {
        let (sibling, ours, theirs) = match self.prepare_scope() {
            Ok(prepared) => prepared,
            Err(reason) => {
                let reason = reason.into();
                let _ = client.send(&Reply::Refused { reason }, &[]);
                return Ok(());
            }
        };
        let number = self.execs.draw_number();
        let shell = request.scope.iter().any(|scope| scope.shell.is_some());
        let count = match &request.scope {
            // How many it needs is read later, and not here.
            Some(scope) if scope.call.is_some() => MOST_OF_A_CALL,
            Some(scope) => scope.leases.len(),
            None => 0,
        };
        let first_lease = self.leases.reserve(count);
        let mut command: Vec<String> = request
            .argv
            .iter()
            .map(|word| String::from_utf8_lossy(&word.0).into_owned())
            .collect();
        if command.is_empty() {
            command.push(match shell {
                true => "(a command of the shell)".into(),
                false => "(a tool call)".into(),
            });
        }
        let taint = match self.plan.taint.is_some() {
            true => self.tainted(now)?,
            false => Taint::NONE,
        };
        let supervisor = getpid();
        step();
        match fork(Namespaces::NONE, None) {
            Err(error) => {
                let error = error.to_string();
                let reason = SupervisorReason::ScopeFailed { error }.into();
                let _ = client.send(&Reply::Refused { reason }, &[]);
                Ok(())
            }
            Ok(Forked::Child) => supervisor::run(supervisor::ScopeSetup {
                plan: self.plan,
                description: self.control.description().clone(),
                supervisor,
                link: theirs,
                client,
                sibling,
                request,
                descriptors,
                number,
                first_lease,
                distrusted: self.intents.is_distrusted(),
                taint,
            }),
            Ok(Forked::Parent { pidfd, .. }) => {
                let started = ScopeEvent::Started {
                    number,
                    command,
                    shell,
                    channel: ours,
                    pidfd,
                };
                self.sign_of_life(now);
                self.scope_event(started, now)
            }
        }
    }

    /// Whether the cage's network has limits that are counted over all of its connections.
    fn counts_together(&self) -> bool {
        let network = self.plan.network.as_ref();
        network.is_some_and(|network| network.limits.count_together())
    }

    fn against_scope(&self) -> Option<SupervisorReason> {
        use ironcage_backend::{Ability, Support};
        let isolation = self.plan.isolation_level.what.isolation;
        if let Support::No(why) = crate::backend(isolation).can(Ability::Scope) {
            let why = why.to_string();
            return Some(SupervisorReason::NoScopes { why });
        }
        if let Some(machine) = &self.plan.isolation_level.what.microvm {
            // Each is a guest of its own, and the memory limit is theirs together.
            if machine.scope_memory.is_none() {
                let why = "the memory limit leaves no room for a second guest; start the cage with --memory 704M or more";
                return Some(SupervisorReason::NoScopes { why: why.into() });
            }
            if self.scopes.count() > 0 {
                return Some(SupervisorReason::TooManyCommands { limit: 1 });
            }
        }
        if self.execs.count() + self.scopes.count() >= MAX_EXECS {
            let limit = MAX_EXECS as u64;
            return Some(SupervisorReason::TooManyCommands { limit });
        }
        self.against_scope_now()
    }

    /// What stands against a scope at the moment when it is made.
    fn against_scope_now(&self) -> Option<SupervisorReason> {
        if self.control.stop_deadline().is_some() {
            return Some(SupervisorReason::Stopping);
        }
        if self.is_held() {
            return Some(SupervisorReason::ChangeInProgress);
        }
        self.against_shared_lease(&self.plan.scope_places())
    }

    fn prepare_scope(&self) -> Result<(Sibling, Channel, Channel), SupervisorReason> {
        let failed = |error: io::Error| SupervisorReason::ScopeFailed {
            error: error.to_string(),
        };
        let nothing = || {
            failed(io::Error::other(
                "this cage has nothing that a scope could share",
            ))
        };
        let sibling = self.sibling().map_err(failed)?.ok_or_else(nothing)?;
        let (ours, theirs) = pair().map_err(failed)?;
        Ok((sibling, ours, theirs))
    }

    /// Gives an event to the scopes.
    pub(crate) fn scope_event(&mut self, event: ScopeEvent, now: Instant) -> Result<(), RunError> {
        let effects = self.scopes.handle(event, now);
        self.apply(effects, now)
    }

    /// What a scope's supervisor asked for is done.
    pub(crate) fn answer_scope(&mut self, number: u32, now: Instant) -> Result<(), RunError> {
        step();
        self.sign_of_life(now);
        self.scope_event(ScopeEvent::Done(number), now)
    }

    /// A scope is about to be made: it is looked at once more, by what the cage has now.
    pub(crate) fn admit_scope(
        &mut self,
        number: u32,
        brings: &ScopeTaint,
        now: Instant,
    ) -> Result<(), RunError> {
        let event = match self.against_scope_with(brings, now)? {
            Some(reason) => ScopeEvent::Denied { number, reason },
            None => ScopeEvent::Admitted {
                number,
                leads_out: brings.leads_out,
            },
        };
        self.scope_event(event, now)
    }

    fn against_scope_with(
        &mut self,
        brings: &ScopeTaint,
        now: Instant,
    ) -> Result<Option<Reason>, RunError> {
        if let Some(reason) = self.against_scope_now() {
            return Ok(Some(reason.into()));
        }
        if let Some(reason) = self.against_taint_of_scope(brings, now)? {
            return Ok(Some(reason));
        }
        for path in &brings.writes {
            // For as long as the cage lives: one scope after the other may write there.
            let watched = match self.plan.is_locked(Path::new(path)) {
                true => Ok(()),
                false => self.limits.watch_directory(Path::new(path), now),
            };
            if let Err(error) = watched {
                return Ok(Some(crate::leases::unwatched(path, &error)));
            }
        }
        Ok(None)
    }

    /// Counts what a scope uses.
    pub(crate) fn count_scope(&mut self, number: u32, now: Instant) -> Result<(), RunError> {
        match self.scopes.take_places(number) {
            Some(places) => self.count_guest(Guest::Scope(number), places, now),
            None => Ok(()),
        }
    }

    /// Ends the cage, because a lease of a scope cannot be ended otherwise.
    pub(crate) fn kill_for_scope(&mut self, now: Instant) -> Result<(), RunError> {
        self.end_with_children()?;
        self.control.stop_by(now);
        Ok(())
    }

    /// Ends every scope, and waits until they are gone.
    pub(crate) fn finish_scopes(&mut self) -> Result<(), RunError> {
        let effects = self.scopes.finish();
        self.apply(effects, Instant::now())
    }
}
