//! Effects: what the parts of the supervisor want done, as data. The loop applies effects in order;
//! no part calls another.

use crate::RunError;
use crate::channels::ChannelEvent;
use crate::children::ChildEvent;
use crate::intents::IntentEvent;
use crate::leases::Requester;
use crate::limits::LimitEvent;
use crate::network::NewRule;
use crate::permission_requests::Answerer;
use crate::request_reader::ReaderReply;
use crate::scope::{ScopeEvent, ScopeNeeds, ScopeTaint};
use crate::signing::ToFilter;
use crate::supervise::Supervision;
use ironcage_backend::LeaseOrder;
use ironcage_control::Reply;
use ironcage_lease::life::LeaseEvent;
use ironcage_model::{
    CageId, Ending, EventKind, Intent, KeyAgent, LeaseEndCause, LeaseOrigin, NetworkReason,
    Overheard, PermissionRequest, Publish, Reason, RequestOutcome, Resource, Taint, Traffic, Trust,
};
use ironcage_sys::faults::lease_step as step;
use ironcage_terminal::prompt::Choice;
use ironcage_watchdog::Guest;
use std::path::PathBuf;
use std::time::Instant;

/// What every part may know besides its own state.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Facts<'a> {
    pub(crate) id: &'a CageId,
    /// What it may have come into contact with.
    pub(crate) taint: Taint,
    pub(crate) now: Instant,
}

/// Something that a part wants done.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Effect {
    /// Write an event to the audit log.
    Audit(EventKind),
    /// Reply to a client of the control socket.
    Reply { client: u64, reply: Reply },
    /// Reply to somebody in the cage, through the request reader.
    ReplyReader {
        /// The reader's number for the request.
        ticket: u64,
        reply: ReaderReply,
    },
    /// Tell the request reader what the messages of a channel look like.
    ReaderSchema {
        channel: String,
        /// Their type.
        schema: String,
    },
    /// Hand out the first message of a channel, unless private data and untrusted content would
    /// meet by it.
    DeliverMessage {
        /// The channel's serial number.
        channel: u32,
        /// What the message brings.
        taint: Taint,
    },
    /// The cage takes something on.
    TakeOn { taint: Taint, because: String },
    /// Mark the places that the cage writes to.
    MarkPlaces {
        taint: Taint,
        /// Those of them that it was leased.
        leased: Vec<PathBuf>,
    },
    /// Tell the cage's parent and children what it has.
    TellRelativesOfTaint,
    /// End what leads out of the cage and was allowed by no person.
    CloseWaysOut,
    /// Report what came of a request for a lease.
    Report {
        requester: Requester,
        outcome: RequestOutcome,
    },
    /// Deny a lease: record that, and report it.
    DenyLease {
        requester: Requester,
        resource: Resource,
        /// In whose name.
        origin: LeaseOrigin,
        reason: Reason,
    },
    /// Tell the person who answered a permission request what came of it.
    ReportToPerson {
        person: Answerer,
        number: u32,
        outcome: RequestOutcome,
    },
    /// Start the programs that tell a person of a permission request.
    Notify(Vec<PermissionRequest>),
    /// Have a permission request counted by the cage's parent and children.
    TellRelativesOfRequest,
    /// Ask for the lease that a person approved.
    RequestApproved(u32),
    /// The audit log has a lease: it may be opened.
    LeaseRecorded(u32),
    /// Have a lease opened by what is to hold it.
    OpenLease(u32),
    /// Have a lease closed by what holds it.
    CloseLease {
        number: u32,
        /// Whether its holders have had their time.
        grace_over: bool,
    },
    /// Order something of the mount helper.
    HelperOrder(LeaseOrder),
    /// Order the mount helper to kill who holds a lease.
    ExpelHolders(u32),
    /// The mount helper did not answer in time.
    GiveUpHelper,
    /// The egress proxy did not answer in time.
    GiveUpProxy,
    /// Add a rule that the operator asks for.
    AddOperatorRule { client: u64, rule: NewRule },
    /// End what has a network of its own and was opened by the agent: this one was narrowed.
    EndOtherNetworks,
    /// Send a signal to an exec.
    SignalExec { number: u32, signal: i32 },
    /// In a scope: its command is over.
    ScopeCommandEnded(Ending),
    /// Tell somebody in the cage that there is no child.
    DenyChild { ticket: u64, reason: Reason },
    /// Let a child run that is on record.
    AdmitChild(u64),
    /// Count what a child uses, by its ticket.
    CountChild(u64),
    /// What a child used is not counted any more.
    UncountChild(CageId),
    /// A person was asked for a child.
    CountRequests { times: u32, from: u64 },
    /// Something was done that nobody announced.
    CountDrift(String),
    /// Requests that a scope waited for are not waited for any more.
    ForgetScopeRequests(u32),
    /// Tell a scope's supervisor that what it asked for is done.
    AnswerScope(u32),
    /// Let a scope be made, unless something stands against it now.
    AdmitScope {
        number: u32,
        /// What its leases bring to the cage.
        brings: ScopeTaint,
    },
    /// Count what a scope uses.
    CountScope(u32),
    /// Ask a person for a scope.
    AskForScope { number: u32, needs: ScopeNeeds },
    /// What was leased goes to where it can be written, and is marked.
    MarkLeased(Resource),
    /// Somebody beside the cage is gone whose use was counted.
    GuestLeft(Guest),
    /// End the cage, because a lease of a scope cannot be ended otherwise.
    KillCageForScope,
    /// Look what an announced call needs.
    LookUpNeeds(Intent),
    /// Log what an announced call would take away, with what holds it.
    RecordRemoval {
        tool: String,
        /// The call's own name for itself.
        call: Option<String>,
        path: String,
    },
    /// Look how what a call needs meets the leases that are there.
    MeetNeed { call: u32, need: u32 },
    /// Ask for what a call needs.
    RequestNeed { call: u32, need: u32 },
    /// Log that something was denied before it could be asked for.
    LogDenial {
        resource: Resource,
        origin: LeaseOrigin,
        reason: Reason,
    },
    /// Begin the end of a lease.
    EndLease { number: u32, cause: LeaseEndCause },
    /// Tell the cage's parent what was done that nobody announced.
    TellParentOfDrift(String),
    /// Tell the children how far the cage is trusted.
    TellChildrenOfTrust(Trust),
    /// Stop the cage for a person to look at.
    FreezeForReview,
    /// Compare traffic with what the model announced.
    CompareTraffic(Traffic),
    /// The proxy has read something between the agent and its model.
    Overheard(Overheard),
    /// What the proxy was ordered holds.
    ProxyAnswered(u32),
    /// There is no egress proxy any more.
    ProxyGone,
    /// Begin a connection into the cage, where a port that leads there may be used.
    DialInside {
        /// By which the proxy knows it.
        ticket: u32,
        port: u16,
        /// Whether by IPv6.
        six: bool,
        /// The ports that lead there.
        published: Vec<Publish>,
    },
    /// Ask a person for one use of a key.
    AskForKey { ticket: u64, resource: Resource },
    /// Connect the key filter to the real agent, for one use that is logged.
    AllowKeyUse { ticket: u64, agent: KeyAgent },
    /// Tell the key filter that a use may not take place.
    DenyKeyUse { ticket: u64 },
    /// Count a use of a leased host socket.
    UseSocket(PathBuf),
    /// Let nobody connect through the proxy of a host socket.
    CloseSocketProxy(String),
    /// End the cage at once: what it does cannot be counted.
    StopNow,
    /// Stop the cage, its children and its scopes while somebody counts what they wrote, or let
    /// them go on.
    PauseForCount(bool),
    /// Stop every process of the cage for the end of a lease.
    FreezeCage,
    /// Let them go on.
    ResumeCage,
    /// End the cage, because a lease cannot be ended otherwise.
    KillCage,
    /// Show bytes on the user's terminal.
    ShowOnTerminal(Vec<u8>),
    /// Let nothing of the command's pass to the user's terminal, or let it pass again.
    HoldOutput(bool),
    /// Give the cage's terminal the size of the user's, or one row less.
    FitTerminal { smaller: bool },
    /// Carry out the answer that the user gave at the prompt.
    AnswerAtPrompt { number: u32, choice: Choice },
}

impl Effect {
    /// A refusal for a client of the control socket.
    pub(crate) fn refuse(client: u64, reason: impl Into<Reason>) -> Effect {
        Effect::Reply {
            client,
            reply: Reply::Refused {
                reason: reason.into(),
            },
        }
    }
}

impl Supervision<'_> {
    /// Gives an event to the channels.
    pub(crate) fn channel_event(
        &mut self,
        event: ChannelEvent,
        now: Instant,
    ) -> Result<(), RunError> {
        let facts = Facts {
            id: self.control.id(),
            taint: self.taint.current(),
            now,
        };
        let effects = self.channels.handle(event, &facts);
        self.apply(effects, now)
    }

    /// Applies effects in order.
    pub(crate) fn apply(&mut self, effects: Vec<Effect>, now: Instant) -> Result<(), RunError> {
        for effect in effects {
            self.apply_one(effect, now)?;
        }
        Ok(())
    }

    fn apply_one(&mut self, effect: Effect, now: Instant) -> Result<(), RunError> {
        match effect {
            Effect::Audit(event) => {
                let is_lease = matches!(event, EventKind::Lease(_) | EventKind::LeaseEnd { .. });
                self.audit.write(event)?;
                if is_lease {
                    step();
                }
                Ok(())
            }
            Effect::Reply { client, reply } => {
                self.control.reply(client, &reply, &[]);
                Ok(())
            }
            Effect::ReplyReader { ticket, reply } => {
                self.reply_to_reader(ticket, reply);
                Ok(())
            }
            Effect::ReaderSchema { channel, schema } => {
                self.send_schema_to_reader(channel, schema);
                Ok(())
            }
            Effect::DeliverMessage { channel, taint } => {
                let event = match self.against_meeting(taint, now)? {
                    Some(_) => ChannelEvent::HoldBack,
                    None => ChannelEvent::Deliver { serial: channel },
                };
                self.channel_event(event, now)
            }
            Effect::TakeOn { taint, because } => self.take_on(taint, &because, now),
            Effect::MarkPlaces { taint, leased } => self.mark_places(taint, &leased),
            Effect::TellRelativesOfTaint => self.tell_relatives_of_taint(now),
            Effect::CloseWaysOut => self.close_ways_out(now),
            Effect::Report { requester, outcome } => self.tell_requester(requester, outcome),
            Effect::DenyLease {
                requester,
                resource,
                origin,
                reason,
            } => self.refuse_lease(requester, resource, origin, reason),
            Effect::ReportToPerson {
                person,
                number,
                outcome,
            } => self.tell_answerer(person, number, outcome, now),
            Effect::Notify(requests) => self.notify(&requests),
            Effect::TellRelativesOfRequest => self.tell_relatives_of_requests(1, None, now),
            Effect::RequestApproved(number) => self.request_approved(number, now),
            Effect::LeaseRecorded(number) => self.lease_event(number, LeaseEvent::Recorded, now),
            Effect::OpenLease(number) => self.open_lease(number, now),
            Effect::CloseLease { number, grace_over } => self.close_lease(number, grace_over, now),
            Effect::HelperOrder(order) => self.order(&order, now),
            Effect::ExpelHolders(number) => {
                let alone = !self.scopes.is_any() && !self.children.is_any();
                self.order(&LeaseOrder::Expel { number, alone }, now)
            }
            Effect::GiveUpHelper => self.lose_helper(now),
            Effect::GiveUpProxy => self.lose_proxy(NetworkReason::ProxyNoReply.into(), now),
            Effect::CloseSocketProxy(path) => {
                self.network.set_socket(&path, false);
                Ok(())
            }
            Effect::AddOperatorRule { client, rule } => self.add_operator_rule(client, rule, now),
            Effect::EndOtherNetworks => {
                self.scope_event(ScopeEvent::EndOfShells, now)?;
                self.child_event(ChildEvent::End, now)
            }
            Effect::SignalExec { number, signal } => {
                // What is gone by now needs no signal.
                let _ = self.cage.signal_exec(number, signal);
                Ok(())
            }
            Effect::ScopeCommandEnded(ending) => {
                if let Some(scope) = &mut self.scope {
                    scope.command_ended(ending);
                }
                Ok(())
            }
            Effect::DenyChild { ticket, reason } => {
                self.tell_of_denied_child(ticket, reason);
                Ok(())
            }
            Effect::AdmitChild(ticket) => self.admit_child(ticket, now),
            Effect::CountChild(ticket) => self.count_child(ticket, now),
            Effect::UncountChild(id) => {
                self.uncount_child(&id);
                Ok(())
            }
            Effect::CountRequests { times, from } => self.count_requests(times, from, now),
            Effect::CountDrift(what) => self.intent_event(IntentEvent::Differed(what), now),
            Effect::ForgetScopeRequests(number) => {
                self.permission_requests.forget_scope(number);
                Ok(())
            }
            Effect::AnswerScope(number) => self.answer_scope(number, now),
            Effect::AdmitScope { number, brings } => self.admit_scope(number, &brings, now),
            Effect::CountScope(number) => self.count_scope(number, now),
            Effect::AskForScope { number, needs } => self.ask_for_scope(number, needs, now),
            Effect::MarkLeased(resource) => self.mark_leased(&resource, now),
            Effect::GuestLeft(guest) => self.limit_event(LimitEvent::GuestLeft(guest), now),
            Effect::KillCageForScope => self.kill_for_scope(now),
            Effect::LookUpNeeds(intent) => self.look_up_needs(intent, now),
            Effect::RecordRemoval { tool, call, path } => self.record_removal(tool, call, path),
            Effect::MeetNeed { call, need } => self.meet_need(call, need, now),
            Effect::RequestNeed { call, need } => self.request_need(call, need, now),
            Effect::LogDenial {
                resource,
                origin,
                reason,
            } => self.record_refusal(resource, origin, reason, now),
            Effect::EndLease { number, cause } => self.end_lease(number, cause, now),
            Effect::TellParentOfDrift(what) => {
                self.tell_parent_of_difference(&what);
                Ok(())
            }
            Effect::TellChildrenOfTrust(trust) => self.child_event(ChildEvent::Trusted(trust), now),
            Effect::FreezeForReview => self.freeze_for_review(now),
            Effect::CompareTraffic(traffic) => {
                self.intent_event(IntentEvent::Traffic(traffic), now)
            }
            Effect::Overheard(overheard) => self.overheard(overheard, now),
            Effect::ProxyAnswered(serial) => self.lease_changed(serial),
            Effect::ProxyGone => self.leases_without_proxy(),
            Effect::DialInside {
                ticket,
                port,
                six,
                published,
            } => self.dial_inside((ticket, port, six), &published, now),
            Effect::AskForKey { ticket, resource } => self.ask_for_key(ticket, resource, now),
            Effect::AllowKeyUse { ticket, agent } => {
                self.allow_key_use(ticket, agent);
                Ok(())
            }
            Effect::DenyKeyUse { ticket } => {
                self.tell_key_filter(&ToFilter::Denied { ticket }, None);
                Ok(())
            }
            Effect::UseSocket(path) => self.use_socket(&path, now),
            Effect::StopNow => {
                self.control.stop_by(Instant::now());
                Ok(())
            }
            Effect::PauseForCount(paused) => self.pause_for_count(paused, now),
            Effect::FreezeCage => {
                self.freeze_for_a_lease(now);
                Ok(())
            }
            Effect::ResumeCage => {
                self.resume_after_a_lease(now);
                Ok(())
            }
            Effect::KillCage => self.kill_for_leases(now),
            Effect::ShowOnTerminal(bytes) => {
                self.streams.show(&bytes);
                Ok(())
            }
            Effect::HoldOutput(held) => {
                self.streams.hold(held);
                Ok(())
            }
            Effect::FitTerminal { smaller } => {
                self.streams.fit(smaller);
                Ok(())
            }
            Effect::AnswerAtPrompt { number, choice } => self.answer_at_prompt(number, choice, now),
        }
    }
}
