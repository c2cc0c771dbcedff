//! Channels between cages: named, typed, limited and recorded. The operator opens one; what
//! goes through it is carried from supervisor to supervisor as text that neither of them reads:
//! the request readers on both sides check that it is of the channel's type.
//!
//! A part of the supervisor: it owns its ends, takes a [`ChannelEvent`] and returns effects.

use crate::effects::{Effect, Facts};
use crate::log_budget::LogBudget;
use crate::request_reader::ReaderReply;
use ironcage_control::{Channel, ChannelDescription, ChannelRequest, ChannelRole, Packet, Reply};
use ironcage_model::{EventKind, MessageVerdict, Reason, SupervisorReason, Taint};
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

/// Refused messages of one channel that are put on record at once; then one a minute.
const MOST_RECORDED: u32 = 64;
/// The time in which messages are counted.
const WINDOW: Duration = Duration::from_secs(60);

/// What goes from one supervisor to the other, and back.
#[derive(Debug, Serialize, Deserialize)]
enum ChannelPacket {
    Message {
        text: String,
        taint: Taint,
    },
    /// One was taken out of the queue.
    Taken,
}

/// What happens to the channels of a cage.
#[derive(Debug)]
pub(crate) enum ChannelEvent {
    /// The operator opens one; its socket is beside the request.
    Open {
        client: u64,
        request: ChannelRequest,
        descriptors: Vec<OwnedFd>,
    },
    /// The operator closes one.
    Close { client: u64, name: String },
    /// Somebody in the cage sends a message: its text where it is of the channel's type, else
    /// where it is not.
    Send {
        ticket: u64,
        name: String,
        bytes: u32,
        message: Result<String, Reason>,
    },
    /// Somebody in the cage wants the next message, and may wait for it.
    Receive {
        ticket: u64,
        name: String,
        waits: bool,
    },
    /// Nobody waits by this ticket any more.
    Left { ticket: u64 },
    /// The other end of a channel says something.
    Ready { serial: u32 },
    /// The first message of a queue may be handed out.
    Deliver { serial: u32 },
    /// It may not, as private data and untrusted content would meet: it waits.
    HoldBack,
    /// Messages that wait are tried again.
    TryAgain,
}

/// The ends of channels that a cage has.
#[derive(Debug)]
pub(crate) struct Channels {
    /// How many the policy allows.
    most: u32,
    ends: Vec<ChannelEnd>,
    last: u32,
    /// Refused messages of channels that are gone, without a line on record.
    unrecorded: u64,
    /// Whether messages wait until nothing leads out of the cage.
    held_back: bool,
}

#[derive(Debug)]
struct ChannelEnd {
    serial: u32,
    what: ChannelRequest,
    socket: Channel,
    /// Messages that the other end has not taken yet.
    on_the_way: u32,
    /// When the minute began in which messages are counted, and how many there were.
    minute: Option<Instant>,
    counted: u32,
    /// What has come and nobody has taken.
    queue: VecDeque<(String, Taint)>,
    /// Who waits for something to come.
    waiting: VecDeque<u64>,
    /// Whether the other end is gone, and only the queue is left.
    over: bool,
    refused: LogBudget,
}

impl Channels {
    pub(crate) fn new(most: u32) -> Channels {
        Channels {
            most,
            ends: Vec::new(),
            last: 0,
            unrecorded: 0,
            held_back: false,
        }
    }

    /// Refused messages that have no line on record.
    pub(crate) fn unrecorded(&self) -> u64 {
        let open = self.ends.iter().map(|end| end.refused.unrecorded());
        open.fold(self.unrecorded, u64::saturating_add)
    }

    /// Where the other ends speak.
    pub(crate) fn sockets(&self) -> impl Iterator<Item = (u32, BorrowedFd<'_>)> {
        let living = self.ends.iter().filter(|end| !end.over);
        living.map(|end| (end.serial, end.socket.as_fd()))
    }

    /// Names and types, for who looks at messages.
    pub(crate) fn schemas(&self) -> Vec<(String, String)> {
        let ends = self.ends.iter().map(|end| &end.what);
        ends.map(|what| (what.name.clone(), what.schema.clone()))
            .collect()
    }

    pub(crate) fn describe(&self) -> Vec<ChannelDescription> {
        let of = |end: &ChannelEnd| ChannelDescription {
            name: end.what.name.clone(),
            role: end.what.role,
            peer: end.what.peer.clone(),
            queued: match end.what.role {
                ChannelRole::Send => end.on_the_way,
                ChannelRole::Receive => end.queue.len() as u32,
            },
        };
        self.ends.iter().map(of).collect()
    }

    pub(crate) fn handle(&mut self, event: ChannelEvent, facts: &Facts<'_>) -> Vec<Effect> {
        match event {
            ChannelEvent::Open {
                client,
                request,
                descriptors,
            } => self.open(client, request, descriptors),
            ChannelEvent::Close { client, name } => self.close(client, &name),
            ChannelEvent::Send {
                ticket,
                name,
                bytes,
                message,
            } => self.send((ticket, name), bytes, message, facts),
            ChannelEvent::Receive {
                ticket,
                name,
                waits,
            } => self.receive(ticket, &name, waits),
            ChannelEvent::Left { ticket } => self.leave(ticket),
            ChannelEvent::Ready { serial } => self.hear(serial),
            ChannelEvent::Deliver { serial } => self.deliver(serial, facts),
            ChannelEvent::HoldBack => {
                self.held_back = true;
                Vec::new()
            }
            ChannelEvent::TryAgain => {
                if !std::mem::take(&mut self.held_back) {
                    return Vec::new();
                }
                let serials: Vec<u32> = self.ends.iter().map(|end| end.serial).collect();
                let effects = serials.into_iter().flat_map(|serial| self.look(serial));
                effects.collect()
            }
        }
    }

    fn index(&self, name: &str, role: ChannelRole) -> Option<usize> {
        let mut ends = self.ends.iter();
        ends.position(|end| end.what.name == name && end.what.role == role)
    }

    fn by_serial(&mut self, serial: u32) -> Option<&mut ChannelEnd> {
        self.ends.iter_mut().find(|end| end.serial == serial)
    }

    fn open(
        &mut self,
        client: u64,
        what: ChannelRequest,
        descriptors: Vec<OwnedFd>,
    ) -> Vec<Effect> {
        let most = self.most;
        let against = if most == 0 {
            Some(SupervisorReason::NoChannels)
        } else if self.ends.len() >= most as usize {
            let limit = most.into();
            Some(SupervisorReason::TooManyChannels { limit })
        } else if self.ends.iter().any(|end| end.what.name == what.name) {
            let channel = what.name.clone();
            Some(SupervisorReason::ChannelExists { channel })
        } else {
            None
        };
        if let Some(reason) = against {
            return vec![Effect::refuse(client, reason)];
        }
        let mut descriptors = descriptors.into_iter();
        let (Some(socket), None) = (descriptors.next(), descriptors.next()) else {
            let expected = "one socket".into();
            let reason = SupervisorReason::WrongDescriptors { expected };
            return vec![Effect::refuse(client, reason)];
        };
        let effects = vec![
            Effect::Audit(EventKind::ChannelOpened {
                channel: what.name.clone(),
                peer: what.peer.clone(),
                sends: what.role == ChannelRole::Send,
                size: what.size,
                rate: what.rate,
                queue: what.queue,
            }),
            Effect::ReaderSchema {
                channel: what.name.clone(),
                schema: what.schema.clone(),
            },
            Effect::Reply {
                client,
                reply: Reply::ChannelChanged,
            },
        ];
        self.last += 1;
        self.ends
            .push(ChannelEnd::new(self.last, what, Channel::new(socket)));
        effects
    }

    fn close(&mut self, client: u64, name: &str) -> Vec<Effect> {
        let Some(index) = self.ends.iter().position(|end| end.what.name == name) else {
            let channel = name.to_owned();
            let reason = SupervisorReason::NoSuchChannel { channel };
            return vec![Effect::refuse(client, reason)];
        };
        let mut effects = self.remove(index, SupervisorReason::ChannelClosedByOperator);
        effects.push(Effect::Reply {
            client,
            reply: Reply::ChannelChanged,
        });
        effects
    }

    fn remove(&mut self, index: usize, reason: SupervisorReason) -> Vec<Effect> {
        let end = self.ends.remove(index);
        let unrecorded = end.refused.unrecorded();
        self.unrecorded = self.unrecorded.saturating_add(unrecorded);
        let mut effects: Vec<Effect> = (end.waiting.iter())
            .map(|ticket| Effect::ReplyReader {
                ticket: *ticket,
                reply: ReaderReply::denied(SupervisorReason::ChannelClosed),
            })
            .collect();
        effects.push(Effect::Audit(EventKind::ChannelClosed {
            channel: end.what.name,
            reason: reason.into(),
            unread: end.queue.len() as u64,
        }));
        effects
    }

    fn send(
        &mut self,
        (ticket, name): (u64, String),
        bytes: u32,
        message: Result<String, Reason>,
        facts: &Facts<'_>,
    ) -> Vec<Effect> {
        let reply = |reply| Effect::ReplyReader { ticket, reply };
        let index = self.index(&name, ChannelRole::Send);
        let Some(end) = index.and_then(|index| self.ends.get_mut(index)) else {
            let reason = SupervisorReason::NoSuchChannel { channel: name };
            return vec![reply(ReaderReply::denied(reason))];
        };
        let taint = facts.taint;
        let against = end.against(bytes, facts.now);
        let sent = match (message, against) {
            (Err(reason), _) => Err(reason),
            (Ok(_), Some(reason)) => Err(reason.into()),
            (Ok(text), None) => match end
                .socket
                .send(&ChannelPacket::Message { text, taint }, &[])
            {
                Ok(()) => {
                    end.on_the_way += 1;
                    end.counted += 1;
                    Ok(())
                }
                Err(_) => Err(SupervisorReason::MessageNotTaken.into()),
            },
        };
        let (verdict, reason) = match &sent {
            Ok(()) => (MessageVerdict::Sent, None),
            Err(reason) => (MessageVerdict::Refused, Some(reason.clone())),
        };
        let mut effects = Vec::new();
        if sent.is_ok() || end.refused.spend(facts.now) {
            effects.push(Effect::Audit(EventKind::Message {
                channel: name,
                from: facts.id.clone(),
                to: end.what.peer.clone(),
                bytes,
                verdict,
                reason,
            }));
        }
        effects.push(reply(match sent {
            Ok(()) => ReaderReply::Sent,
            Err(reason) => ReaderReply::denied(reason),
        }));
        effects
    }

    fn receive(&mut self, ticket: u64, name: &str, waits: bool) -> Vec<Effect> {
        let reply = |reply| vec![Effect::ReplyReader { ticket, reply }];
        let index = self.index(name, ChannelRole::Receive);
        let Some(end) = index.and_then(|index| self.ends.get_mut(index)) else {
            let channel = name.to_owned();
            let reason = SupervisorReason::NoSuchChannel { channel };
            return reply(ReaderReply::denied(reason));
        };
        if end.queue.is_empty() && !waits {
            return reply(ReaderReply::Empty);
        }
        end.waiting.push_back(ticket);
        let serial = end.serial;
        self.look(serial)
    }

    fn leave(&mut self, ticket: u64) -> Vec<Effect> {
        let waited = self.ends.iter_mut().any(|end| {
            let before = end.waiting.len();
            end.waiting.retain(|waiting| *waiting != ticket);
            end.waiting.len() < before
        });
        let reply = ReaderReply::Empty;
        let told = waited.then_some(Effect::ReplyReader { ticket, reply });
        told.into_iter().collect()
    }

    /// What follows from what is in the queue and who waits for it.
    fn look(&mut self, serial: u32) -> Vec<Effect> {
        let Some(index) = self.ends.iter().position(|end| end.serial == serial) else {
            return Vec::new();
        };
        let Some(end) = self.ends.get(index) else {
            return Vec::new();
        };
        match end.queue.front() {
            None if end.over => self.remove(index, SupervisorReason::ChannelPeerGone),
            Some((_, taint)) if !end.waiting.is_empty() => vec![Effect::DeliverMessage {
                channel: serial,
                taint: *taint,
            }],
            _ => Vec::new(),
        }
    }

    fn deliver(&mut self, serial: u32, facts: &Facts<'_>) -> Vec<Effect> {
        let Some(end) = self.by_serial(serial) else {
            return Vec::new();
        };
        if end.waiting.is_empty() {
            return Vec::new();
        }
        let (Some((text, taint)), Some(ticket)) = (end.queue.pop_front(), end.waiting.pop_front())
        else {
            return Vec::new();
        };
        // One that is gone shows when it is heard next.
        let _ = end.socket.send(&ChannelPacket::Taken, &[]);
        let (channel, from) = (end.what.name.clone(), end.what.peer.clone());
        let mut effects = vec![
            // Before it is read: who reads it has what it brings.
            Effect::TakeOn {
                taint,
                because: format!("it got a message by {channel} from {from}"),
            },
            Effect::Audit(EventKind::Message {
                channel: channel.clone(),
                from,
                to: facts.id.clone(),
                bytes: u32::try_from(text.len()).unwrap_or(u32::MAX),
                verdict: MessageVerdict::Received,
                reason: None,
            }),
            Effect::ReplyReader {
                ticket,
                reply: ReaderReply::Message { channel, text },
            },
        ];
        effects.extend(self.look(serial));
        effects
    }

    /// Takes what the other end of a channel says.
    fn hear(&mut self, serial: u32) -> Vec<Effect> {
        let Some(index) = self.ends.iter().position(|end| end.serial == serial) else {
            return Vec::new();
        };
        let Some(end) = self.ends.get_mut(index) else {
            return Vec::new();
        };
        let role = end.what.role;
        match (end.socket.receive::<ChannelPacket>(false), role) {
            (Ok(None), _) => Vec::new(),
            (Ok(Some(Packet::Message(ChannelPacket::Taken, _))), ChannelRole::Send) => {
                end.on_the_way = end.on_the_way.saturating_sub(1);
                Vec::new()
            }
            (
                Ok(Some(Packet::Message(ChannelPacket::Message { text, taint }, _))),
                ChannelRole::Receive,
            ) if end.queue.len() < end.what.queue as usize
                && text.len() <= end.what.size as usize =>
            {
                end.queue.push_back((text, taint));
                self.look(serial)
            }
            (Ok(Some(Packet::Closed)) | Err(_), _) => {
                end.over = true;
                self.look(serial)
            }
            (Ok(Some(_)), _) => self.remove(index, SupervisorReason::ChannelPeerInvalid),
        }
    }
}

impl ChannelEnd {
    fn new(serial: u32, what: ChannelRequest, socket: Channel) -> ChannelEnd {
        ChannelEnd {
            serial,
            what,
            socket,
            on_the_way: 0,
            minute: None,
            counted: 0,
            queue: VecDeque::new(),
            waiting: VecDeque::new(),
            over: false,
            refused: LogBudget::new(MOST_RECORDED),
        }
    }

    /// Why a message of this length does not go now, if it does not.
    fn against(&mut self, bytes: u32, now: Instant) -> Option<SupervisorReason> {
        let ChannelRequest {
            size, rate, queue, ..
        } = &self.what;
        if bytes > *size {
            return Some(SupervisorReason::MessageTooLarge {
                bytes: bytes.into(),
                limit: (*size).into(),
            });
        }
        let is_new = self
            .minute
            .is_none_or(|since| now.duration_since(since) >= WINDOW);
        if is_new {
            self.minute = Some(now);
            self.counted = 0;
        }
        if self.counted >= *rate {
            let limit = (*rate).into();
            return Some(SupervisorReason::MessageRate { limit });
        }
        if self.on_the_way >= *queue {
            let limit = (*queue).into();
            return Some(SupervisorReason::MessageQueue { limit });
        }
        None
    }
}

#[cfg(test)]
#[path = "channels_tests.rs"]
mod tests;
