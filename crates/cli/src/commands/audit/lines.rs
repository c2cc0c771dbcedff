//! A record in words, line by line.

use super::utc;
use crate::commands::{family, leases, net};
use crate::error::without_numbers;
use ironcage_audit::{Record, Verdict};
use ironcage_model::{
    Ending, Enforcement, EventKind, LayerReport, LimitHit, Printable, RuleChange, Span,
};
use std::io::{self, Write};

/// One line for an event, and indented ones for its details.
pub(super) fn print_record(out: &mut dyn Write, record: &Record) -> io::Result<()> {
    const INDENT: &str = "                                 ";
    let event = &record.event;
    write!(out, "{}  ", utc(event.time))?;
    match &event.kind {
        EventKind::Start {
            name,
            command,
            workspace,
            profile,
            isolation,
            runtime,
            plan,
            layers,
            degraded,
            shared,
            parent,
        } => {
            writeln!(out, "start   {}", words(command))?;
            if let Some(parent) = parent {
                writeln!(out, "{INDENT}child of {parent}")?;
            }
            if let Some(name) = name {
                writeln!(out, "{INDENT}name {}", Printable::new(name))?;
            }
            writeln!(out, "{INDENT}workspace {}", Printable::new(workspace))?;
            writeln!(out, "{INDENT}profile {}", Printable::new(profile))?;
            if let Some(isolation) = isolation {
                writeln!(out, "{INDENT}isolation {isolation}")?;
            }
            if let Some(runtime) = runtime {
                writeln!(out, "{INDENT}runtime {}", Printable::new(runtime))?;
            }
            writeln!(out, "{INDENT}plan {}", Printable::new(plan))?;
            for line in layers_in_words(layers) {
                writeln!(out, "{INDENT}{line}")?;
            }
            for layer in degraded {
                let layer = Printable::new(layer);
                writeln!(out, "{INDENT}allowed to be weaker: {layer}")?;
            }
            for entry in shared {
                writeln!(out, "{INDENT}shared: {}", Printable::new(entry))?;
            }
            Ok(())
        }
        EventKind::Denied(denial) => writeln!(
            out,
            "denied  {}, {}, by {}",
            Printable::new(&denial.syscall),
            times(denial.count),
            Printable::new(&denial.program)
        ),
        EventKind::Limit(hit) => writeln!(out, "limit   {}", limit_in_words(hit)),
        EventKind::Network(traffic) => writeln!(out, "network {}", net::in_words(traffic)),
        EventKind::NetworkRule {
            change,
            rule,
            closed,
        } => writeln!(
            out,
            "network {}",
            net::change_in_words(*change, rule, *closed)
        ),
        EventKind::Published { change, publish } => {
            let how = match change {
                RuleChange::Added => "published at",
                RuleChange::Removed => "no longer published at",
            };
            let (outer, inner) = (publish.outer, publish.inner);
            writeln!(out, "network port {inner} is {how} 127.0.0.1:{outer}")
        }
        EventKind::NetworkLimits(limits) => {
            writeln!(out, "network limits: {}", net::limits_in_words(limits))
        }
        EventKind::DoorNarrowed { reason } => {
            let reason = Printable::new(reason);
            writeln!(out, "network listens on single ports only: {reason}")
        }
        EventKind::DoorEnded { reason } => {
            let reason = Printable::new(reason);
            writeln!(out, "network ended before the cage: {reason}")
        }
        EventKind::Planted { paths } => {
            let paths: Vec<String> = paths
                .iter()
                .map(|path| Printable::new(path).to_string())
                .collect();
            writeln!(out, "planted {}", paths.join(" "))
        }
        EventKind::Exec {
            number,
            command,
            detached,
            scope,
        } => {
            let how = match (scope, detached) {
                (true, _) => " (in a scope)",
                (false, true) => " (detached)",
                (false, false) => "",
            };
            writeln!(out, "exec    {number}: {}{how}", words(command))
        }
        EventKind::ExecExit {
            number,
            ending,
            milliseconds,
        } => writeln!(
            out,
            "exec    {number}: {} after {:#}",
            ending_in_words(ending),
            Span(*milliseconds)
        ),
        EventKind::Lease(_)
        | EventKind::LeaseRefused { .. }
        | EventKind::LeaseEnd { .. }
        | EventKind::Question(_)
        | EventKind::QuestionEnd { .. }
        | EventKind::QuestionUntold { .. }
        | EventKind::Intent(_)
        | EventKind::IntentUnread { .. }
        | EventKind::IntentRuin { .. }
        | EventKind::Drift { .. }
        | EventKind::Resumed => leases::line(out, &event.kind),
        EventKind::ChildOpened { .. }
        | EventKind::ChildEnded { .. }
        | EventKind::ChildRefused { .. }
        | EventKind::ChannelOpened { .. }
        | EventKind::Message { .. }
        | EventKind::ChannelClosed { .. }
        | EventKind::Tainted { .. } => family::line(out, &event.kind),
        EventKind::PeerRefused { reason } => {
            writeln!(out, "refused a connection: {}", Printable::new(reason))
        }
        EventKind::Observed(seen) => {
            let there = if seen.found {
                ""
            } else {
                ", which was not there"
            };
            let below = if seen.below {
                ", and more below it"
            } else {
                ""
            };
            writeln!(
                out,
                "seen    {} {}{below}, by {}{there}",
                seen.how.name(),
                Printable::new(&seen.what),
                Printable::new(&seen.program)
            )
        }
        EventKind::Exit {
            ending,
            milliseconds,
            ..
        } => writeln!(
            out,
            "exit    {} after {:#}",
            ending_in_words(ending),
            Span(*milliseconds)
        ),
    }
}

fn layers_in_words(layers: &[LayerReport]) -> Vec<String> {
    let full: Vec<_> = layers
        .iter()
        .filter(|report| report.enforcement == Enforcement::Full)
        .map(|report| report.layer.name())
        .collect();
    let mut lines = Vec::new();
    if !full.is_empty() {
        lines.push(format!("in full: {}", full.join(", ")));
    }
    let rest = layers
        .iter()
        .filter(|report| report.enforcement != Enforcement::Full);
    lines.extend(rest.map(|report| {
        let how = report.enforcement.to_string();
        format!("{}: {}", report.layer, Printable::new(&how))
    }));
    lines
}

/// What a verdict says, on one line.
pub(super) fn in_words(verdict: &Verdict) -> String {
    match verdict {
        Verdict::Intact {
            lines,
            running: true,
        } => format!("intact so far, {lines} lines; the cage is running"),
        Verdict::Intact { lines, .. } => format!("intact, {lines} lines"),
        Verdict::TailUnproven(why) => format!("tail unproven: {why}"),
        Verdict::Broken(fault) => {
            let fault = fault.to_string();
            format!("broken: {}", Printable::new(&fault))
        }
    }
}

/// How a cage ended, as a sentence's part.
pub(in crate::commands) fn ending_in_words(ending: &Ending) -> String {
    match ending {
        Ending::Exited { code } => format!("status {code}"),
        Ending::Stopped => "stopped".into(),
        Ending::Signalled { signal } => format!("ended by signal {signal}"),
        Ending::Limit { hit } => format!("ended by the limit {}", limit_in_words(hit)),
        Ending::NotExecuted { errno } => {
            let error = io::Error::from_raw_os_error(*errno).to_string();
            format!(
                "the command could not be executed: {}",
                without_numbers(&error)
            )
        }
        Ending::Failed { reason } => format!("ended by Ironcage: {}", Printable::new(reason)),
    }
}

pub(in crate::commands) fn ending_in_short(ending: &Ending) -> String {
    match ending {
        Ending::Exited { code } => format!("exit {code}"),
        Ending::Stopped => "stopped".into(),
        Ending::Signalled { signal } => format!("signal {signal}"),
        Ending::Limit { hit } => format!("limit {}", hit.limit),
        Ending::NotExecuted { .. } => "not executed".into(),
        Ending::Failed { .. } => "failed".into(),
    }
}

/// A limit and what came of it.
pub(in crate::commands) fn limit_in_words(hit: &LimitHit) -> String {
    let value = Printable::new(&hit.value);
    let what = if hit.ended {
        "the cage was ended"
    } else {
        "the operation was refused"
    };
    format!("{} {value}: {what}", hit.limit)
}

/// A count of events.
pub(in crate::commands) fn times(count: u64) -> String {
    match count {
        1 => "once".into(),
        count => format!("{count} times"),
    }
}

/// A command line, escaped, its words apart.
pub(in crate::commands) fn words(command: &[String]) -> String {
    let word = |word: &String| {
        let shown = Printable::new(word).to_string();
        if shown.is_empty() || shown.contains([' ', '\'', '"']) {
            format!("'{}'", shown.replace('\'', "'\\''"))
        } else {
            shown
        }
    };
    command.iter().map(word).collect::<Vec<_>>().join(" ")
}
