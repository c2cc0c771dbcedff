//! Messages of channels: whether each is of its channel's type is looked at here.

use super::{AwaitedReply, Reader};
use crate::request_reader::FromReader;
use ironcage_control::{Answered, Schema};
use ironcage_model::SupervisorReason;

impl Reader<'_> {
    /// Takes what the messages of a channel look like. The operator's program has read it before;
    /// a channel without a type carries nothing.
    pub(super) fn learn(&mut self, channel: String, schema: &str) {
        self.schemas.retain(|(known, _)| *known != channel);
        if let Ok(schema) = Schema::read(schema) {
            self.schemas.push((channel, schema));
        }
    }

    pub(super) fn ask_to_send(
        &mut self,
        index: usize,
        channel: String,
        message: &serde_json::Value,
    ) {
        let schema = self.schemas.iter().find(|(known, _)| *known == channel);
        let text = message.to_string();
        let message = match schema.map(|(_, schema)| schema.check(message)) {
            Some(Ok(())) => Ok(text.clone()),
            Some(Err(mismatch)) => {
                let error = mismatch.to_string();
                Err(SupervisorReason::MessageType { error }.into())
            }
            None => {
                let channel = channel.clone();
                Err(SupervisorReason::NoSuchChannel { channel }.into())
            }
        };
        self.last += 1;
        let asks = FromReader::Send {
            ticket: self.last,
            channel,
            bytes: u32::try_from(text.len()).unwrap_or(u32::MAX),
            message,
        };
        self.pass_on(index, &asks, &[], (0, AwaitedReply::Lease));
    }

    pub(super) fn ask_for_message(&mut self, index: usize, channel: String, wait: u64) {
        self.last += 1;
        let asks = FromReader::Receive {
            ticket: self.last,
            channel,
            waits: wait > 0,
        };
        self.pass_on(
            index,
            &asks,
            &[],
            (wait, AwaitedReply::Message { told: wait == 0 }),
        );
    }
}

/// A message as it is handed on: looked at once more, as the other side may have been deceived.
pub(super) fn understood(schemas: &[(String, Schema)], channel: &str, text: &str) -> Answered {
    let schema = schemas.iter().find(|(known, _)| known == channel);
    let message = serde_json::from_str(text).ok();
    let fits = |message: &serde_json::Value| {
        schema.is_some_and(|(_, schema)| schema.check(message).is_ok())
    };
    match message.filter(fits) {
        Some(message) => Answered::Message { message },
        None => {
            let error = "it came from the other end, and was dropped".into();
            Answered::denied(SupervisorReason::MessageType { error })
        }
    }
}
