//! Events of the audit log, as text.

use super::{children, lease, tool_call, traffic};
use crate::error::without_numbers;
use crate::output::utc;
use ironcage_audit::{LogEntry, Verdict};
use ironcage_model::{
    Ending, Enforcement, EventKind, LayerReport, LimitHit, Printable, RuleChange, Span,
};
use std::io::{self, Write};

/// One line for an event, and indented lines for its details.
pub(crate) fn print_record(out: &mut dyn Write, record: &LogEntry) -> io::Result<()> {
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
            writeln!(out, "start   {}", command_line(command))?;
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
            for line in layer_lines(layers) {
                writeln!(out, "{INDENT}{line}")?;
            }
            for layer in degraded {
                let layer = Printable::new(layer);
                writeln!(out, "{INDENT}degraded as allowed: {layer}")?;
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
        EventKind::Limit(hit) => writeln!(out, "limit   {}", limit_text(hit)),
        EventKind::KeyUse(used) => writeln!(out, "key     {used}"),
        EventKind::Network(traffic) => writeln!(out, "network {}", traffic::summary(traffic)),
        EventKind::NetworkRule {
            change,
            rule,
            closed,
        } => writeln!(
            out,
            "network {}",
            traffic::rule_change(*change, rule, *closed)
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
            writeln!(out, "network limits: {}", traffic::limits_text(limits))
        }
        EventKind::DoorNarrowed { reason } => {
            writeln!(out, "network proxy listens on single ports only: {reason}")
        }
        EventKind::DoorEnded { reason } => {
            writeln!(out, "network proxy ended before the cage: {reason}")
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
            ..
        } => {
            let how = match (scope, detached) {
                (true, _) => " (in a scope)",
                (false, true) => " (detached)",
                (false, false) => "",
            };
            writeln!(out, "exec    {number}: {}{how}", command_line(command))
        }
        EventKind::ExecExit {
            number,
            ending,
            milliseconds,
        } => writeln!(
            out,
            "exec    {number}: {} after {:#}",
            ending_text(ending),
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
        | EventKind::Resumed
        | EventKind::Paused
        | EventKind::Unpaused => lease::event_line(out, &event.kind),
        EventKind::ChildOpened { .. }
        | EventKind::ChildEnded { .. }
        | EventKind::ChildRefused { .. }
        | EventKind::ChannelOpened { .. }
        | EventKind::Message { .. }
        | EventKind::ChannelClosed { .. }
        | EventKind::Tainted { .. } => children::event_line(out, &event.kind),
        EventKind::ToolCall(call) => tool_call::event_line(out, call),
        EventKind::LeftOut { what, times } => {
            writeln!(out, "left out of this log: {times} {}", what.plural())
        }
        EventKind::PeerRefused { reason } => {
            writeln!(out, "denied a control connection: {reason}")
        }
        EventKind::Observed(seen) => {
            let there = if seen.found {
                ""
            } else {
                ", which does not exist"
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
            ending_text(ending),
            Span(*milliseconds)
        ),
    }
}

fn layer_lines(layers: &[LayerReport]) -> Vec<String> {
    let full: Vec<_> = layers
        .iter()
        .filter(|report| report.enforcement == Enforcement::Full)
        .map(|report| report.layer.name())
        .collect();
    let mut lines = Vec::new();
    if !full.is_empty() {
        lines.push(format!("enforced in full: {}", full.join(", ")));
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

/// The verdict on a log, on one line.
pub(crate) fn verdict_text(verdict: &Verdict) -> String {
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

/// How a cage ended, as part of a sentence.
pub(crate) fn ending_text(ending: &Ending) -> String {
    match ending {
        Ending::Exited { code } => format!("status {code}"),
        Ending::Stopped => "stopped".into(),
        Ending::Unobserved => "its engine knows how it ended".into(),
        Ending::Signalled { signal } => format!("killed by signal {signal}"),
        Ending::Limit { hit } => format!("ended by the limit {}", limit_text(hit)),
        Ending::NotExecuted { errno } => {
            let error = io::Error::from_raw_os_error(*errno).to_string();
            format!("cannot execute the command: {}", without_numbers(&error))
        }
        Ending::Failed { reason } => format!("ended by Ironcage: {reason}"),
    }
}

pub(crate) fn ending_short(ending: &Ending) -> String {
    match ending {
        Ending::Exited { code } => format!("exit {code}"),
        Ending::Stopped => "stopped".into(),
        Ending::Unobserved => "ended".into(),
        Ending::Signalled { signal } => format!("signal {signal}"),
        Ending::Limit { hit } => format!("limit {}", hit.limit),
        Ending::NotExecuted { .. } => "not executed".into(),
        Ending::Failed { .. } => "failed".into(),
    }
}

/// A limit that was reached, and its effect.
pub(crate) fn limit_text(hit: &LimitHit) -> String {
    let value = Printable::new(&hit.value);
    let what = match (hit.ended, hit.used_as_written()) {
        (true, Some(used)) => format!("the cage was ended after using {used}"),
        (true, None) => "the cage was ended".to_owned(),
        (false, _) => "the operation was denied".to_owned(),
    };
    format!("{} {value}: {what}", hit.limit)
}

pub(crate) fn times(count: u64) -> String {
    match count {
        1 => "once".into(),
        count => format!("{count} times"),
    }
}

/// A command line, escaped, with words quoted where needed.
pub(crate) fn command_line(command: &[String]) -> String {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_line_is_escaped_and_its_words_stay_apart() {
        let command = ["sh", "-c", "echo 'a'", "", "\u{1b}]0;x\u{7}"].map(String::from);
        let shown = command_line(&command);
        assert_eq!(shown, r"sh -c 'echo '\''a'\''' '' \u{1b}]0;x\u{7}");
    }
}
