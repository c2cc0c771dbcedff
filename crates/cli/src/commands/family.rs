//! What happened between cages, in words.

use ironcage_model::{EventKind, MessageVerdict, Printable, Span};
use std::io::{self, Write};

/// One line for an event of a family.
pub(super) fn line(out: &mut dyn Write, kind: &EventKind) -> io::Result<()> {
    match kind {
        EventKind::ChildOpened {
            child,
            command,
            workspace,
        } => writeln!(
            out,
            "child   {child}: {}, on the same workspace ({})",
            Printable::new(&command.join(" ")),
            Printable::new(workspace)
        ),
        EventKind::ChildEnded {
            child,
            status,
            milliseconds,
        } => writeln!(
            out,
            "child   {child}: ended with status {status} after {:#}",
            Span(*milliseconds)
        ),
        EventKind::ChildRefused { reason } => {
            writeln!(out, "child   refused: {}", Printable::new(reason))
        }
        EventKind::ChannelOpened {
            channel,
            peer,
            sends,
            size,
            rate,
            queue,
        } => {
            let way = if *sends { "to" } else { "from" };
            writeln!(
                out,
                "channel {} {way} {peer}: {size} bytes at once, {rate} messages in a minute, {queue} unread",
                Printable::new(channel)
            )
        }
        EventKind::Message {
            channel,
            from,
            to,
            bytes,
            verdict,
            reason,
        } => {
            let what = match verdict {
                MessageVerdict::Sent => "sent",
                MessageVerdict::Received => "received",
                MessageVerdict::Refused => "refused",
            };
            let why = match reason.as_str() {
                "" => String::new(),
                why => format!(": {}", Printable::new(why)),
            };
            writeln!(
                out,
                "message {what}, {bytes} bytes by {} from {from} to {to}{why}",
                Printable::new(channel)
            )
        }
        EventKind::Tainted { taint, because } => {
            writeln!(out, "taint   {taint}: {}", Printable::new(because))
        }
        EventKind::ChannelClosed {
            channel,
            reason,
            unread,
        } => {
            let unread = match unread {
                0 => String::new(),
                unread => format!(", {unread} messages unread"),
            };
            writeln!(
                out,
                "channel {} closed: {}{unread}",
                Printable::new(channel),
                Printable::new(reason)
            )
        }
        _ => Ok(()),
    }
}
