//! Leases and permission requests, as text.

use ironcage_model::{Approver, EventKind, Holder, Lease, Printable, Span, Term};
use std::io::{self, Write};

/// A lease in one line.
pub(crate) fn lease_text(lease: &Lease) -> String {
    let term = match lease.term {
        Term::Milliseconds(time) => format!("for {}", Span(time)),
        Term::UntilRevoked => "until revoked".to_owned(),
    };
    let uses = match lease.uses {
        Some(1) => ", once".to_owned(),
        Some(uses) => format!(", {uses} times"),
        None => String::new(),
    };
    let approver = match lease.approver {
        Approver::Policy => "the policy",
        Approver::Operator => "the operator",
    };
    format!(
        "lease {}: {} {term}{uses}, granted by {approver}",
        lease.number, lease.resource
    )
}

/// An event about leases: one line, and one for each process that still used the lease.
pub(crate) fn event_line(out: &mut dyn Write, kind: &EventKind) -> io::Result<()> {
    match kind {
        EventKind::Lease(lease) => {
            let reason = match lease.reason.as_str() {
                "" => String::new(),
                reason => format!(": {}", Printable::new(reason)),
            };
            writeln!(out, "{}{reason}", lease_text(lease))
        }
        EventKind::LeaseRefused {
            resource,
            reason,
            unrecorded,
            ..
        } => {
            if *unrecorded > 0 {
                writeln!(
                    out,
                    "leases denied: {unrecorded} others, not recorded one by one"
                )?;
            }
            writeln!(out, "lease denied: {resource}: {reason}")
        }
        EventKind::LeaseEnd {
            number,
            end,
            cause,
            holders,
            milliseconds,
        } => {
            writeln!(
                out,
                "lease {number}: {} after {:#}, {}",
                end.name(),
                Span(*milliseconds),
                cause
            )?;
            for line in holder_lines(holders) {
                writeln!(out, "    {line}")?;
            }
            Ok(())
        }
        EventKind::Question(question) => {
            let reason = match question.reason.as_str() {
                "" => String::new(),
                reason => format!(": {}", Printable::new(reason)),
            };
            let announced = match &question.announced {
                Some(named) => format!("; the model announced {}", Printable::new(named)),
                None => String::new(),
            };
            let command = match &question.command {
                Some(command) => format!("; command: {}", Printable::new(command)),
                None => String::new(),
            };
            writeln!(
                out,
                "request {}: {} asks for {}{reason}{announced}{command}",
                question.number,
                question.origin.name(),
                question.resource
            )
        }
        EventKind::QuestionUntold { number, reason } => {
            writeln!(out, "request {number}: {reason}")
        }
        EventKind::QuestionEnd {
            number,
            end,
            reason,
            asked,
            milliseconds,
        } => {
            let reason = match reason.as_str() {
                "" => String::new(),
                reason => format!(": {}", Printable::new(reason)),
            };
            let often = match asked {
                0 | 1 => String::new(),
                asked => format!(", requested {asked} times"),
            };
            writeln!(
                out,
                "request {number}: {} after {:#}{often}{reason}",
                end.name(),
                Span(*milliseconds)
            )
        }
        EventKind::Intent(intent) => {
            let needs: Vec<String> = intent.needs.iter().map(ToString::to_string).collect();
            let more = match intent.open {
                true => ", and possibly more",
                false => "",
            };
            let who = match intent.shell {
                true => "shell command",
                false => "model calls",
            };
            writeln!(
                out,
                "{who} {}: {}{more}",
                Printable::new(&intent.tool),
                needs.join(", ")
            )
        }
        EventKind::IntentUnread { times, reason } => {
            writeln!(out, "model's response not parsed, {times} times: {reason}")
        }
        EventKind::IntentRuin {
            tool, path, reason, ..
        } => {
            let (tool, path) = (Printable::new(tool), Printable::new(path));
            writeln!(out, "model calls {tool}, which removes {path}: {reason}")
        }
        EventKind::Drift {
            what,
            number,
            trust,
        } => writeln!(
            out,
            "drift {number}: {}; {}",
            Printable::new(what),
            trust.name()
        ),
        EventKind::Resumed => writeln!(out, "resumed by the operator"),
        EventKind::Paused => writeln!(out, "paused"),
        EventKind::Unpaused => writeln!(out, "resumed after a pause"),
        _ => Ok(()),
    }
}

/// The processes that still used a lease when it ended, a line each.
pub(crate) fn holder_lines(holders: &[Holder]) -> Vec<String> {
    let of = |holder: &Holder| {
        let killed = if holder.killed {
            "killed"
        } else {
            "left running"
        };
        format!(
            "{} (PID {} in the cage) still used it: {}; {killed}",
            Printable::new(&holder.program),
            holder.pid,
            Printable::new(&holder.what)
        )
    };
    holders.iter().map(of).collect()
}
