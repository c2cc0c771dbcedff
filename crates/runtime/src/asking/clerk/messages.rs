//! Messages of channels: whether each is of its channel's type is looked at here.

use super::{Awaited, Clerk};
use crate::asking::FromClerk;
use ironcage_control::{Answered, Schema};

impl Clerk<'_> {
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
            Some(Err(mismatch)) => Err(mismatch.to_string()),
            None => Err("there is no such channel".into()),
        };
        self.last += 1;
        let asks = FromClerk::Send {
            ticket: self.last,
            channel,
            bytes: u32::try_from(text.len()).unwrap_or(u32::MAX),
            message,
        };
        self.pass_on(index, &asks, &[], (0, Awaited::Lease));
    }

    pub(super) fn ask_for_message(&mut self, index: usize, channel: String, wait: u64) {
        self.last += 1;
        let asks = FromClerk::Receive {
            ticket: self.last,
            channel,
            waits: wait > 0,
        };
        self.pass_on(
            index,
            &asks,
            &[],
            (wait, Awaited::Message { told: wait == 0 }),
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
        None => Answered::Denied {
            reason: "a message came that is not of the channel's type; it was dropped".into(),
        },
    }
}
