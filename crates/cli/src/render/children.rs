//! Events of child cages and channels, as text.

use ironcage_model::{EventKind, MessageVerdict, Printable, Span};
use std::io::{self, Write};

pub(crate) fn event_line(out: &mut dyn Write, kind: &EventKind) -> io::Result<()> {
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
            writeln!(out, "child   denied: {reason}")
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
                "channel {} {way} {peer}: at most {size} bytes a message, {rate} messages a minute, {queue} unread",
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
                MessageVerdict::Refused => "denied",
            };
            let why = reason.as_ref().map(|why| format!(": {why}"));
            let why = why.unwrap_or_default();
            writeln!(
                out,
                "message {what}, {bytes} bytes on {} from {from} to {to}{why}",
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
                "channel {} closed: {reason}{unread}",
                Printable::new(channel)
            )
        }
        _ => Ok(()),
    }
}
