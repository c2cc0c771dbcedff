//! Channels between cages: named, typed, limited and recorded. The operator opens one; what
//! goes through it is carried from supervisor to supervisor as text that neither of them reads:
//! whether it is of the channel's type is looked at by the clerks, on both sides.

use crate::RunError;
use crate::asking::Came;
use crate::supervise::Supervision;
use ironcage_control::{Channel, ChannelDescription, ChannelRequest, ChannelRole, Packet, Reply};
use ironcage_model::{EventKind, MessageVerdict, Taint};
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

/// Refused messages that are put on record, of one cage.
const MOST_RECORDED: u32 = 64;
/// Why most channels end.
const GONE: &str = "the other end is gone";
/// The time in which messages are counted.
const WINDOW: Duration = Duration::from_secs(60);

/// What goes from one supervisor to the other, and back.
#[derive(Debug, Serialize, Deserialize)]
enum Carried {
    /// A message.
    Message { text: String, taint: Taint },
    /// One was taken out of the queue.
    Taken,
}

/// The ends of channels that a cage has.
#[derive(Debug, Default)]
pub(crate) struct Channels {
    ends: Vec<End>,
    last: u32,
    refused: u32,
    /// Whether messages wait until nothing leads out of the cage.
    held_back: bool,
}

#[derive(Debug)]
struct End {
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
}

impl Channels {
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
        let of = |end: &End| ChannelDescription {
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

    fn index(&self, name: &str, role: ChannelRole) -> Option<usize> {
        let mut ends = self.ends.iter();
        ends.position(|end| end.what.name == name && end.what.role == role)
    }
}

impl End {
    fn new(serial: u32, what: ChannelRequest, socket: Channel) -> End {
        End {
            serial,
            what,
            socket,
            on_the_way: 0,
            minute: None,
            counted: 0,
            queue: VecDeque::new(),
            waiting: VecDeque::new(),
            over: false,
        }
    }

    /// Why a message of this length does not go now, if it does not.
    fn against(&mut self, bytes: u32, now: Instant) -> Option<String> {
        let ChannelRequest {
            size, rate, queue, ..
        } = &self.what;
        if bytes > *size {
            return Some(format!(
                "it has {bytes} bytes, and the channel carries {size} at once"
            ));
        }
        let is_new = self
            .minute
            .is_none_or(|since| now.duration_since(since) >= WINDOW);
        if is_new {
            self.minute = Some(now);
            self.counted = 0;
        }
        if self.counted >= *rate {
            return Some(format!(
                "the channel carries {rate} messages in a minute; send it later"
            ));
        }
        if self.on_the_way >= *queue {
            return Some(format!(
                "{queue} messages wait to be received; send it later"
            ));
        }
        None
    }
}

impl Supervision<'_> {
    /// Takes an end of a channel from the operator.
    pub(crate) fn open_channel(
        &mut self,
        key: u64,
        what: ChannelRequest,
        descriptors: Vec<OwnedFd>,
    ) -> Result<(), RunError> {
        let most = self.plan.channels;
        let against = if most == 0 {
            Some("its policy lets this cage have none: [ceiling] channels = N would".to_owned())
        } else if self.channels.ends.len() >= most as usize {
            Some(format!(
                "it has the {most} channels that its policy lets it have"
            ))
        } else if self
            .channels
            .ends
            .iter()
            .any(|end| end.what.name == what.name)
        {
            Some(format!("it has a channel with the name {}", what.name))
        } else {
            None
        };
        if let Some(reason) = against {
            self.control.refuse(key, reason);
            return Ok(());
        }
        let mut descriptors = descriptors.into_iter();
        let (Some(socket), None) = (descriptors.next(), descriptors.next()) else {
            self.control
                .refuse(key, "a channel needs one socket beside the request");
            return Ok(());
        };
        self.recorder.write(EventKind::ChannelOpened {
            channel: what.name.clone(),
            peer: what.peer.clone(),
            sends: what.role == ChannelRole::Send,
            size: what.size,
            rate: what.rate,
            queue: what.queue,
        })?;
        self.tell_type(what.name.clone(), what.schema.clone());
        self.channels.last += 1;
        let end = End::new(self.channels.last, what, Channel::new(socket));
        self.channels.ends.push(end);
        self.control.reply(key, &Reply::ChannelChanged, &[]);
        Ok(())
    }

    /// Takes a channel away, by the operator's word.
    pub(crate) fn close_channel(&mut self, key: u64, name: &str) -> Result<(), RunError> {
        let mut ends = self.channels.ends.iter();
        match ends.position(|end| end.what.name == name) {
            Some(index) => {
                self.drop_channel(index, "by the operator")?;
                self.control.reply(key, &Reply::ChannelChanged, &[]);
            }
            None => self
                .control
                .refuse(key, format!("this cage has no channel `{name}`")),
        }
        Ok(())
    }

    fn drop_channel(&mut self, index: usize, reason: &str) -> Result<(), RunError> {
        let end = self.channels.ends.remove(index);
        for ticket in &end.waiting {
            let reason = "the channel was closed".to_owned();
            self.tell_clerk(*ticket, Came::Refused { reason });
        }
        self.recorder.write(EventKind::ChannelClosed {
            channel: end.what.name,
            reason: reason.to_owned(),
            unread: end.queue.len() as u64,
        })
    }

    /// Somebody in the cage sends a message: its text where it is of the channel's type, else
    /// where it is not.
    pub(crate) fn send_message(
        &mut self,
        (ticket, name): (u64, String),
        bytes: u32,
        message: Result<String, String>,
        now: Instant,
    ) -> Result<(), RunError> {
        let taint = self.tainted(now)?;
        let index = self.channels.index(&name, ChannelRole::Send);
        let Some(end) = index.and_then(|index| self.channels.ends.get_mut(index)) else {
            let reason = "no channel of this name leads out of this cage".to_owned();
            self.tell_clerk(ticket, Came::Refused { reason });
            return Ok(());
        };
        let against = end.against(bytes, now);
        let sent = match (message, against) {
            (Err(mismatch), _) => Err(format!("it is not of the channel's type: {mismatch}")),
            (Ok(_), Some(reason)) => Err(reason),
            (Ok(text), None) => match end.socket.send(&Carried::Message { text, taint }, &[]) {
                Ok(()) => {
                    end.on_the_way += 1;
                    end.counted += 1;
                    Ok(())
                }
                Err(_) => Err("the other end does not take it; send it later".into()),
            },
        };
        let to = end.what.peer.clone();
        let (verdict, reason) = match &sent {
            Ok(()) => (MessageVerdict::Sent, String::new()),
            Err(reason) => (MessageVerdict::Refused, reason.clone()),
        };
        if sent.is_err() {
            self.channels.refused = self.channels.refused.saturating_add(1);
        }
        if sent.is_ok() || self.channels.refused <= MOST_RECORDED {
            self.recorder.write(EventKind::Message {
                channel: name,
                from: self.control.description.id.clone(),
                to,
                bytes,
                verdict,
                reason,
            })?;
        }
        let came = match sent {
            Ok(()) => Came::Sent,
            Err(reason) => Came::Refused { reason },
        };
        self.tell_clerk(ticket, came);
        Ok(())
    }

    /// Somebody in the cage wants the next message, and may wait for it.
    pub(crate) fn receive_message(
        &mut self,
        ticket: u64,
        name: &str,
        waits: bool,
        now: Instant,
    ) -> Result<(), RunError> {
        let Some(index) = self.channels.index(name, ChannelRole::Receive) else {
            let reason = "no channel of this name leads into this cage".to_owned();
            self.tell_clerk(ticket, Came::Refused { reason });
            return Ok(());
        };
        let Some(end) = self.channels.ends.get_mut(index) else {
            return Ok(());
        };
        if end.queue.is_empty() && !waits {
            self.tell_clerk(ticket, Came::Empty);
            return Ok(());
        }
        end.waiting.push_back(ticket);
        self.deliver(index, now)
    }

    /// Nobody waits by this ticket any more.
    pub(crate) fn leave_channels(&mut self, ticket: u64) {
        let mut ends = self.channels.ends.iter_mut();
        let waited = ends.any(|end| {
            let before = end.waiting.len();
            end.waiting.retain(|waiting| *waiting != ticket);
            end.waiting.len() < before
        });
        if waited {
            self.tell_clerk(ticket, Came::Empty);
        }
    }

    /// Hands messages to those who wait for them.
    fn deliver(&mut self, index: usize, now: Instant) -> Result<(), RunError> {
        while let Some(end) = self.channels.ends.get_mut(index) {
            if end.queue.is_empty() && end.over {
                return self.drop_channel(index, GONE);
            }
            if end.queue.is_empty() || end.waiting.is_empty() {
                return Ok(());
            }
            let first = end.queue.front().map(|(_, taint)| *taint);
            if self
                .against_meeting(first.unwrap_or_default(), now)?
                .is_some()
            {
                // Until nothing leads out any more.
                self.channels.held_back = true;
                return Ok(());
            }
            let Some(end) = self.channels.ends.get_mut(index) else {
                return Ok(());
            };
            let (Some((text, taint)), Some(ticket)) =
                (end.queue.pop_front(), end.waiting.pop_front())
            else {
                return Ok(());
            };
            // One that is gone shows when it is looked at next.
            let _ = end.socket.send(&Carried::Taken, &[]);
            let (channel, from) = (end.what.name.clone(), end.what.peer.clone());
            let because = format!("it got a message by {channel} from {from}");
            self.take_on(taint, &because, now)?;
            self.recorder.write(EventKind::Message {
                channel: channel.clone(),
                from,
                to: self.control.description.id.clone(),
                bytes: u32::try_from(text.len()).unwrap_or(u32::MAX),
                verdict: MessageVerdict::Received,
                reason: String::new(),
            })?;
            self.tell_clerk(ticket, Came::Message { channel, text });
        }
        Ok(())
    }

    /// Hands messages out that waited until nothing led out of the cage.
    pub(crate) fn deliver_held_back(&mut self, now: Instant) -> Result<(), RunError> {
        if !std::mem::take(&mut self.channels.held_back) {
            return Ok(());
        }
        // From the last on: one that is over is dropped.
        for index in (0..self.channels.ends.len()).rev() {
            self.deliver(index, now)?;
        }
        Ok(())
    }

    /// Takes what the other end of a channel says.
    pub(crate) fn hear_channel(&mut self, serial: u32, now: Instant) -> Result<(), RunError> {
        let mut ends = self.channels.ends.iter();
        let Some(index) = ends.position(|end| end.serial == serial) else {
            return Ok(());
        };
        let Some(end) = self.channels.ends.get_mut(index) else {
            return Ok(());
        };
        let role = end.what.role;
        match (end.socket.receive::<Carried>(false), role) {
            (Ok(None), _) => Ok(()),
            (Ok(Some(Packet::Message(Carried::Taken, _))), ChannelRole::Send) => {
                end.on_the_way = end.on_the_way.saturating_sub(1);
                Ok(())
            }
            (
                Ok(Some(Packet::Message(Carried::Message { text, taint }, _))),
                ChannelRole::Receive,
            ) if end.queue.len() < end.what.queue as usize
                && text.len() <= end.what.size as usize =>
            {
                end.queue.push_back((text, taint));
                self.deliver(index, now)
            }
            (Ok(Some(Packet::Closed)) | Err(_), _) => {
                end.over = true;
                self.deliver(index, now)
            }
            (Ok(Some(_)), _) => self.drop_channel(index, "the other end made no sense"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ironcage_model::CageId;

    fn end(size: u32, rate: u32, queue: u32) -> End {
        let (socket, _) = ironcage_control::pair().unwrap();
        let what = ChannelRequest {
            name: "tasks".into(),
            role: ChannelRole::Send,
            peer: CageId::from_entropy([7; 12]),
            schema: "{}".into(),
            size,
            rate,
            queue,
        };
        End::new(1, what, socket)
    }

    #[test]
    fn each_limit_refuses_by_itself_and_the_rate_begins_anew_after_a_minute() {
        let now = Instant::now();
        assert!(end(4, 1, 1).against(4, now).is_none());
        assert!(end(4, 1, 1).against(5, now).is_some());
        let mut full = end(4, 9, 2);
        full.on_the_way = 2;
        assert!(full.against(1, now).is_some());
        full.on_the_way = 1;
        assert!(full.against(1, now).is_none());
        let mut fast = end(4, 2, 9);
        assert!(fast.against(1, now).is_none());
        fast.counted = 2;
        assert!(fast.against(1, now + WINDOW / 2).is_some());
        assert!(fast.against(1, now + WINDOW).is_none());
    }
}
