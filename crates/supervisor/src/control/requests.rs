//! Handles each request: one arm each.

use crate::RunError;
use crate::channels::ChannelEvent;
use crate::execs::ExecEvent;
use crate::leases::{LeaseRequest, Requester};
use crate::network::NetworkEvent;
use crate::permission_requests::Answerer;
use crate::supervise::Supervision;
use ironcage_control::{GrantRequest, Packet, Reply, Request};
use ironcage_model::{LeaseOrigin, SupervisorReason};
use ironcage_sys::rustix::fs::{FileType, OFlags, fcntl_getfl, fcntl_setfl, fstat};
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

impl Supervision<'_> {
    /// Takes what a client says.
    pub(crate) fn serve(&mut self, key: u64, now: Instant) -> Result<(), RunError> {
        let Some(client) = self.control.client(key) else {
            return Ok(());
        };
        match client.channel.receive::<Request>(false) {
            Ok(None) => Ok(()),
            Ok(Some(Packet::Message(request, descriptors))) => {
                self.answer(key, request, descriptors, now)
            }
            Ok(Some(Packet::Garbled(error))) => {
                let error = error.to_string();
                let reason = SupervisorReason::RequestInvalid { error };
                self.control.refuse(key, reason);
                self.lose(key, now)
            }
            Ok(Some(Packet::Closed)) | Err(_) => self.lose(key, now),
        }
    }

    fn lose(&mut self, key: u64, now: Instant) -> Result<(), RunError> {
        self.streams.output.detach(key);
        if let Some(number) = self.control.forget(key) {
            self.exec_event(ExecEvent::ClientGone(number), now)?;
        }
        self.release(key, now)
    }

    fn answer(
        &mut self,
        key: u64,
        request: Request,
        descriptors: Vec<OwnedFd>,
        now: Instant,
    ) -> Result<(), RunError> {
        if self.scope.is_some() && !matches!(request, Request::Signal { .. } | Request::Leave) {
            self.control.refuse(key, SupervisorReason::ConnectionInUse);
            return Ok(());
        }
        match request {
            Request::Describe => {
                let family = (self.children.ids(), self.channels.describe());
                let over = self.command_is_over();
                let mut description = Box::new(self.control.describe(
                    over,
                    (&self.execs, &self.scopes),
                    family,
                ));
                description.taint = self.taint.current();
                self.control
                    .reply(key, &Reply::Description(description), &[]);
            }
            Request::Stats => {
                let stats = self.stats(now);
                self.control.reply(key, &Reply::Stats(stats), &[]);
            }
            Request::Wait => {
                if let Some(client) = self.control.client(key) {
                    client.waits = true;
                }
            }
            Request::Stop { milliseconds } => {
                if let Some(client) = self.control.client(key) {
                    client.waits = true;
                }
                self.control.reply(key, &Reply::Stopping, &[]);
                self.begin_stop(Duration::from_millis(milliseconds), now);
            }
            Request::Exec(request) if request.scope.is_some() => {
                self.start_scope(key, request, descriptors, now)?;
            }
            Request::Exec(request) => {
                if let Some(request) = self.put_off(key, request) {
                    self.exec(key, request, None, now)?;
                }
            }
            Request::Signal { signal } => {
                let exec = self.control.client(key).and_then(|client| client.exec);
                if let Some(number) = exec {
                    // An exec that is just ending needs no signal.
                    let _ = self.cage.signal_exec(number, signal);
                }
            }
            Request::Leave => {
                for descriptor in descriptors.into_iter().filter(is_pipe) {
                    // Beyond the bound they are closed, and who writes to them learns it.
                    let _ = self.streams.output.adopt(descriptor);
                }
            }
            Request::Attach => self.attach(key, now),
            Request::Network(request) => {
                let event = NetworkEvent::Request {
                    client: key,
                    request,
                    descriptors,
                };
                self.network_event(event, now)?;
            }
            Request::Grant(grant) => {
                self.request_outside(key, LeaseOrigin::Operator, grant, descriptors, now)?;
            }
            Request::GrantForCall(grant) => {
                self.request_outside(key, LeaseOrigin::ToolCall, grant, descriptors, now)?;
            }
            Request::OpenChannel(request) => {
                let event = ChannelEvent::Open {
                    client: key,
                    request,
                    descriptors,
                };
                self.channel_event(event, now)?;
            }
            Request::CloseChannel { name } => {
                self.channel_event(ChannelEvent::Close { client: key, name }, now)?;
            }
            Request::Questions => self.list_questions(key, now),
            Request::Approve(request) => self.approve(Answerer::Client(key), &request, now)?,
            Request::Deny { number, reason } => {
                self.deny(Answerer::Client(key), number, &reason, now)?;
            }
            Request::Revoke { number } => self.revoke(key, number, now)?,
            Request::Leases => self.list_leases(key, now),
            Request::Hold => self.hold(key),
            Request::Release => self.release(key, now)?,
            Request::Resume => self.thaw(key)?,
            Request::Pause => self.pause(key)?,
            Request::Unpause => self.unpause(key)?,
        }
        Ok(())
    }

    /// A lease of the cage's own that a client at the control socket asks for.
    fn request_outside(
        &mut self,
        key: u64,
        origin: LeaseOrigin,
        grant: GrantRequest,
        descriptors: Vec<OwnedFd>,
        now: Instant,
    ) -> Result<(), RunError> {
        let request = LeaseRequest {
            by: Requester::Client(key),
            origin,
            grant,
            descriptor: descriptors.into_iter().next(),
            unannounced: false,
        };
        self.request_lease(request, now)
    }

    fn attach(&mut self, key: u64, now: Instant) {
        match self.streams.output.attach(key, now) {
            Ok((output, input)) => {
                let terminal = self.control.description.terminal;
                let attached = Reply::Attached {
                    terminal,
                    input: input.is_some(),
                };
                let mut ends = vec![output.as_fd()];
                ends.extend(input.as_ref().map(AsFd::as_fd));
                self.control.reply(key, &attached, &ends);
                if let Some(client) = self.control.client(key) {
                    client.waits = true;
                }
                self.sign_of_life(now);
            }
            Err(reason) => self.control.refuse(key, reason),
        }
    }
}

/// Whether a descriptor that came from outside is the reading end of a pipe, which can be made
/// not to block.
fn is_pipe(descriptor: &OwnedFd) -> bool {
    let pipe =
        fstat(descriptor).is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::Fifo);
    let flags = fcntl_getfl(descriptor);
    pipe && flags.is_ok_and(|flags| {
        !flags.contains(OFlags::WRONLY) && fcntl_setfl(descriptor, flags | OFlags::NONBLOCK).is_ok()
    })
}
