//! `ironcage why`: explains denials from the audit log. It changes nothing and grants nothing.

use crate::audit_log::{self, audit_error};
use crate::cage_flags::CageFlags;
use crate::completion::recorded_cages;
use crate::error::{CliError, CommandResult};
use crate::failed_start::{self, ErrorDocument};
use crate::failure::find_failure;
use crate::hidden_files::{self, HiddenFile};
use crate::named_hosts::NamedHosts;
use crate::output::{print, wrap};
use crate::paths;
use crate::render::event::{command_line, ending_text, limit_text, times};
use crate::render::{self, traffic};
use crate::values::SuggestedName;
use ironcage_audit::{Error, Reader};
use ironcage_catalog::{Explanation, Explanations};
use ironcage_host::SystemFiles;
use ironcage_model::{
    CageId, Denial, Ending, EventKind, KeyUse, LimitHit, NetworkVerdict, PermissionRequestEnd,
    Printable, Reason, Resource, ToolCall, Traffic, find_reason,
};
use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

/// Explain what was denied in a cage, and what would allow it
///
/// The audit log has denied system calls, connections, leases and limits. The kernel does not
/// report access to absent, hidden or read-only files: files that the command itself names are
/// explained, and --path explains any other.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Cage ID, unique ID prefix, name, or `last` [default: the last cage of this workspace]
    #[arg(add = recorded_cages())]
    cage: Option<String>,
    /// Explain the last cage of this workspace; the default
    #[arg(long, conflicts_with_all = ["cage", "path", "code"])]
    last: bool,
    /// Explain PATH in a cage that `run` would start here (`ironcage plan --path` accepts the
    /// flags of a cage)
    #[arg(long, value_name = "PATH", value_hint = clap::ValueHint::AnyPath, conflicts_with = "cage")]
    path: Option<PathBuf>,
    /// Explain the code of a denial or of a failure to start
    #[arg(long, value_name = "CODE", value_parser = SuggestedName::reason_codes(), hide_possible_values = true, conflicts_with_all = ["cage", "path"])]
    code: Option<String>,
}

/// A cage chooses the names of its programs, so their number is limited.
const NAMED_PROGRAMS: usize = 5;
const MOST_ENTRIES: usize = 50;

/// Denials of one system call.
#[derive(Debug, Default)]
struct SyscallDenials {
    count: u64,
    programs: BTreeSet<String>,
    /// Whether more programs were denied than are kept.
    more: bool,
}

/// Everything that was denied in one cage.
#[derive(Debug, Default)]
struct CageDenials {
    command: Vec<String>,
    workspace: PathBuf,
    /// Files of the host that the command names, and that a cage does not have.
    hidden: Vec<HiddenFile>,
    denied: BTreeMap<String, SyscallDenials>,
    limits: Vec<LimitHit>,
    ending: Option<Ending>,
    planted: Vec<String>,
    traffic: Vec<Traffic>,
    /// Hosts that the command names.
    named: NamedHosts,
    door_ended: Option<Reason>,
    /// Resource, reason and count.
    leases: Vec<(Resource, String, u64)>,
    /// Uses of keys that were denied or came to nothing, and how often.
    keys: Vec<(KeyUse, u64)>,
    /// Tool calls that the gateway refused, and how often.
    tools: Vec<(ToolCall, u64)>,
    tainted: Vec<String>,
    children: Vec<String>,
    /// Permission requests whose end has not been read yet.
    requests: BTreeMap<u32, Resource>,
    damaged: u64,
}

pub(crate) fn run(args: Args) -> CommandResult {
    if let Some(code) = &args.code {
        return explain_code(code);
    }
    if let Some(path) = &args.path {
        let prepared = CageFlags::default().prepare(vec!["/bin/sh".into()])?;
        return render::path::explain(&prepared, path);
    }
    let dir = audit_log::directory()?;
    if args.cage.is_none() {
        let newest = audit_log::newest_here(&dir)?;
        if let Some(failed) = failed_start::newest(newest.as_ref().and_then(|cage| cage.time)) {
            let id = newest.as_ref().map(|cage| &cage.id);
            print(|out| report_failed_start(out, &failed.error, id))?;
            return Ok(0);
        }
    }
    let id = audit_log::find(&dir, args.cage.as_deref())?;
    let mut denials = read(&dir, &id)?;
    denials.find_hidden()?;
    denials.find_named()?;
    let explanations = Explanations::built_in().map_err(|error| CliError::from_error(&error))?;
    print(|out| report(out, &id, &denials, &explanations))?;
    Ok(0)
}

/// A start that failed: it left no cage, and no log.
fn report_failed_start(
    out: &mut dyn Write,
    error: &ErrorDocument,
    newest: Option<&CageId>,
) -> io::Result<()> {
    let message = Printable::new(&error.message);
    writeln!(out, "the last start here failed: {message}")?;
    let code = error.code.as_deref();
    if let Some(entry) = code.and_then(|code| find_reason(code).or_else(|| find_failure(code))) {
        let means = format!("{}: {}", entry.code, entry.meaning.trim());
        wrap(out, "  what it means: ", &means)?;
        wrap(out, "  what to do:    ", entry.remedy)?;
    }
    for hint in &error.hints {
        wrap(out, "  hint:          ", &Printable::new(hint).to_string())?;
    }
    match newest {
        Some(id) => writeln!(out, "\n`ironcage why {id}` explains the cage before it."),
        None => Ok(()),
    }
}

fn explain_code(code: &str) -> CommandResult {
    let Some(entry) = find_reason(code).or_else(|| find_failure(code)) else {
        let shown = Printable::new(code);
        return Err(CliError::new(format!("unknown reason code `{shown}`"))
            .hint("docs/reference/reasons.md and docs/reference/failures.md list every code"));
    };
    print(|out| {
        writeln!(out, "{}: {}", entry.code, entry.meaning.trim())?;
        writeln!(out, "  what to do: {}", entry.remedy)
    })?;
    Ok(0)
}

fn read(dir: &Path, id: &CageId) -> Result<CageDenials, CliError> {
    let path = ironcage_audit::log_path(dir, id);
    if !path.exists() {
        return Err(audit_error(Error::NoSuchCage { id: id.clone() }));
    }
    let mut denials = CageDenials::default();
    for item in Reader::open(&path).map_err(audit_error)? {
        match item {
            Ok(record) => denials.add(record.event.kind),
            Err(Error::Damaged { .. }) => denials.damaged += 1,
            Err(error) => return Err(audit_error(error)),
        }
    }
    Ok(denials)
}

impl CageDenials {
    /// Finds files that the command names and that a cage which `run` starts here does not have.
    /// The log already has the paths that an agent's own commands named.
    fn find_hidden(&mut self) -> Result<(), CliError> {
        let failed = self.ending.as_ref().is_some_and(|end| end.exit_code() != 0);
        if !failed {
            return Ok(());
        }
        let Ok(prepared) = CageFlags::default().prepare(vec!["/bin/sh".into()]) else {
            // No cage can start here, so the workspace of this one is elsewhere.
            return Ok(());
        };
        if prepared.plan.workspace == self.workspace {
            let home = paths::home(&SystemFiles::default())?;
            self.hidden = hidden_files::named_by(&prepared.plan, &home, &self.command);
        }
        Ok(())
    }

    /// Reads the command for hosts, where one was denied: a lookup has no port.
    fn find_named(&mut self) -> Result<(), CliError> {
        if !self.traffic.is_empty() {
            let (home, at) = (paths::home(&SystemFiles::default())?, &self.workspace);
            self.named = NamedHosts::of_command(&self.command, at, at, &home);
        }
        Ok(())
    }

    fn add(&mut self, kind: EventKind) {
        match kind {
            EventKind::Start {
                command, workspace, ..
            } => (self.command, self.workspace) = (command, workspace.into()),
            EventKind::Denied(denial) => self.add_denial(denial),
            EventKind::Limit(hit) => self.add_limit(hit),
            EventKind::KeyUse(used) => self.add_key_use(used),
            EventKind::Network(traffic) => self.add_traffic(traffic),
            EventKind::DoorNarrowed { .. }
            | EventKind::NetworkRule { .. }
            | EventKind::NetworkLimits(_)
            | EventKind::Published { .. } => {}
            EventKind::DoorEnded { reason } => self.door_ended = Some(reason),
            EventKind::Planted { paths } => self.planted = paths,
            EventKind::Exec { .. }
            | EventKind::ExecExit { .. }
            | EventKind::Lease(_)
            | EventKind::LeaseEnd { .. }
            | EventKind::QuestionUntold { .. }
            | EventKind::Intent(_)
            | EventKind::IntentUnread { .. }
            | EventKind::IntentRuin { .. }
            | EventKind::Drift { .. }
            | EventKind::Resumed
            | EventKind::Paused
            | EventKind::Unpaused
            | EventKind::PeerRefused { .. }
            | EventKind::LeftOut { .. }
            | EventKind::ChildOpened { .. }
            | EventKind::ChildEnded { .. }
            | EventKind::ChannelOpened { .. }
            | EventKind::Message { .. }
            | EventKind::ChannelClosed { .. }
            | EventKind::Observed(_) => {}
            EventKind::Tainted { taint, because } => {
                if self.tainted.len() < MOST_ENTRIES {
                    self.tainted.push(format!("{taint}: {because}"));
                }
            }
            EventKind::ToolCall(call) => self.add_tool_call(call),
            EventKind::ChildRefused { reason } => {
                let reason = reason.to_string();
                if self.children.len() < MOST_ENTRIES && !self.children.contains(&reason) {
                    self.children.push(reason);
                }
            }
            EventKind::LeaseRefused {
                resource, reason, ..
            } => self.add_lease(resource, reason.to_string()),
            EventKind::Question(question) => {
                self.requests.insert(question.number, question.resource);
            }
            EventKind::QuestionEnd {
                number,
                end,
                reason,
                ..
            } => {
                let asked = self.requests.remove(&number);
                if let Some(resource) = asked.filter(|_| end != PermissionRequestEnd::Approved) {
                    let reason = match reason.as_str() {
                        "" => format!("the request was {}", end.name()),
                        reason => format!("the request was {}: {reason}", end.name()),
                    };
                    self.add_lease(resource, reason);
                }
            }
            EventKind::Exit { ending, .. } => {
                if let Ending::Limit { hit } = &ending {
                    self.add_limit(hit.clone());
                }
                self.ending = Some(ending);
            }
        }
    }

    fn add_lease(&mut self, resource: Resource, reason: String) {
        let mut known = self.leases.iter_mut();
        if let Some((_, _, times)) =
            known.find(|(what, why, _)| *what == resource && *why == reason)
        {
            *times = times.saturating_add(1);
        } else if self.leases.len() < MOST_ENTRIES {
            self.leases.push((resource, reason, 1));
        }
    }

    fn add_tool_call(&mut self, call: ToolCall) {
        let Some(because) = call.because.clone() else {
            return;
        };
        let mut known = self.tools.iter_mut();
        let same = |known: &ToolCall| {
            known.because.as_ref() == Some(&because)
                && (&known.server, &known.name) == (&call.server, &call.name)
        };
        if let Some((_, times)) = known.find(|(known, _)| same(known)) {
            *times = times.saturating_add(1);
        } else if self.tools.len() < MOST_ENTRIES {
            self.tools.push((call, 1));
        }
    }

    fn add_key_use(&mut self, used: KeyUse) {
        if used.reason.is_none() {
            return;
        }
        let mut known = self.keys.iter_mut();
        if let Some((_, times)) = known.find(|(known, _)| *known == used) {
            *times = times.saturating_add(1);
        } else if self.keys.len() < MOST_ENTRIES {
            self.keys.push((used, 1));
        }
    }

    fn add_denial(&mut self, denial: Denial) {
        let denied = self.denied.entry(denial.syscall).or_default();
        denied.count = denied.count.saturating_add(denial.count);
        if denied.programs.len() < NAMED_PROGRAMS {
            denied.programs.insert(denial.program);
        } else {
            denied.more |= !denied.programs.contains(&denial.program);
        }
    }

    fn add_traffic(&mut self, traffic: Traffic) {
        // Also connections that were allowed but failed.
        let failed =
            matches!(&traffic.reason, Some(Reason::Network(reason)) if reason.is_failure());
        if traffic.verdict == NetworkVerdict::Allowed && !failed {
            return;
        }
        let known = self.traffic.iter_mut().find(|known| {
            (&known.host, known.port, &known.reason)
                == (&traffic.host, traffic.port, &traffic.reason)
        });
        match known {
            Some(known) => {
                known.connections = known.connections.saturating_add(traffic.connections)
            }
            None => self.traffic.push(traffic),
        }
    }

    /// A limit that ended the cage is in the log twice, as a limit and as the ending.
    fn add_limit(&mut self, hit: LimitHit) {
        if !self.limits.contains(&hit) {
            self.limits.push(hit);
        }
    }

    fn is_empty(&self) -> bool {
        self.denied.is_empty()
            && self.hidden.is_empty()
            && self.limits.is_empty()
            && self.planted.is_empty()
            && self.traffic.is_empty()
            && self.door_ended.is_none()
            && self.leases.is_empty()
            && self.keys.is_empty()
            && self.children.is_empty()
            && self.tools.is_empty()
            && self.tainted.is_empty()
    }
}

fn report(
    out: &mut dyn Write,
    id: &CageId,
    denials: &CageDenials,
    explanations: &Explanations,
) -> io::Result<()> {
    writeln!(out, "cage {id}: {}", command_line(&denials.command))?;
    // What ended the cage, then what the agent could not do, and last what programs only tried.
    let ending = denials.ending.as_ref();
    let ended = ending.and_then(|ending| Some((ending, explanations.ending(ending)?)));
    if let Some((ending, explanation)) = &ended {
        writeln!(out, "\nended: {}", ending_text(ending))?;
        explain(out, explanation)?;
    }
    for hit in &denials.limits {
        writeln!(out, "\nlimit reached: {}", limit_text(hit))?;
        if let Some(explanation) = explanations.limit(hit.limit) {
            explain(out, &explanation)?;
        }
    }
    for traffic in &denials.traffic {
        writeln!(out, "\nnetwork: {}", traffic::summary(traffic))?;
        match render::remedy::remedy(traffic, &denials.named) {
            Some(remedy) => wrap(out, "  to allow it:   ", &remedy.to_string())?,
            None if traffic.verdict == NetworkVerdict::Allowed => wrap(
                out,
                "  what it means: ",
                "the connection was allowed, but the host did not answer",
            )?,
            None => wrap(
                out,
                "  to allow it:   ",
                "nothing: the connection does not match what the rule is for",
            )?,
        }
    }
    for file in &denials.hidden {
        let shown = Printable::new(&file.path);
        writeln!(out, "\nhidden {}: {shown}", file.kind_name())?;
        let is = "the host has it, a cage without further flags does not: programs get \"No such file or directory\"";
        wrap(out, "  what it means: ", is)?;
        wrap(out, "  to allow it:   ", &file.remedy)?;
    }
    for (resource, reason, count) in &denials.leases {
        let times = times(*count);
        let reason = Printable::new(reason);
        writeln!(out, "\nlease denied {times}: {resource}: {reason}")?;
    }
    let is_key = |resource: &Resource| matches!(resource, Resource::Key { .. });
    if denials.leases.iter().any(|(what, ..)| is_key(what)) {
        wrap(
            out,
            "  to allow it:   ",
            "a use of a key: approve it while the cage waits (`ironcage request list`, `ironcage approve`), or start \
             the cage without --confirm-keys",
        )?;
    }
    if denials.leases.iter().any(|(what, ..)| !is_key(what)) {
        wrap(
            out,
            "  to allow it:   ",
            "the ceiling of the cage's policy: [ceiling.auto] grants it automatically, [ceiling.ask] with your \
             approval (`ironcage request list`, `ironcage grant`)",
        )?;
    }
    for (used, count) in &denials.keys {
        writeln!(out, "\nkey, {}: {used}", times(*count))?;
        let code = used.reason.as_ref().and_then(Reason::code);
        if let Some(entry) = code.and_then(find_reason) {
            wrap(out, "  what to do:    ", entry.remedy)?;
        }
    }
    for (call, count) in &denials.tools {
        writeln!(out)?;
        render::tool_call::explain(out, call, *count)?;
    }
    for marked in &denials.tainted {
        writeln!(out, "\ntainted: {}", Printable::new(marked))?;
    }
    for reason in &denials.children {
        writeln!(out, "\nchild cage denied: {}", Printable::new(reason))?;
    }
    if let Some(reason) = &denials.door_ended {
        writeln!(out, "\nthe egress proxy ended before the cage: {reason}")?;
    }
    if !denials.planted.is_empty() {
        writeln!(out, "\ncreated by the cage, and left in place:")?;
        for path in &denials.planted {
            writeln!(out, "  {}", Printable::new(path))?;
        }
        wrap(
            out,
            "  ",
            "Your own tools execute or trust files with these names. They did not exist when the cage started, \
             so nothing protected them: review them before you continue.",
        )?;
    }
    // System calls with the same explanation are one entry.
    let mut entries: Vec<(Explanation, Vec<String>)> = Vec::new();
    for (syscall, denied) in &denials.denied {
        let explanation = explanations.syscall(syscall);
        let line = denial_text(syscall, denied);
        match entries.iter_mut().find(|(known, _)| *known == explanation) {
            Some((_, lines)) => lines.push(line),
            None => entries.push((explanation, vec![line])),
        }
    }
    for (explanation, lines) in &entries {
        writeln!(out)?;
        for line in lines {
            writeln!(out, "denied: {line}")?;
        }
        explain(out, explanation)?;
    }
    if denials.is_empty() && ended.is_none() {
        writeln!(
            out,
            "\nNo system call was denied, and no limit was reached."
        )?;
        wrap(
            out,
            "",
            "The audit log does not record absent files or writes to read-only files. \
             `ironcage why --path PATH` explains what a path is in a cage, why, and how to change it.",
        )?;
        wrap(out, "", traffic::NO_NETWORK)?;
    }
    if denials.damaged > 0 {
        let lines = denials.damaged;
        writeln!(
            out,
            "\n{lines} lines of the audit log are unreadable; `ironcage audit verify {id}` shows more."
        )?;
    }
    Ok(())
}

fn denial_text(syscall: &str, denied: &SyscallDenials) -> String {
    let mut programs: Vec<_> = denied
        .programs
        .iter()
        .map(|program| Printable::new(program).to_string())
        .collect();
    if denied.more {
        programs.push("others".into());
    }
    format!(
        "{}, {}, by {}",
        Printable::new(syscall),
        times(denied.count),
        programs.join(", ")
    )
}

fn explain(out: &mut dyn Write, explanation: &Explanation) -> io::Result<()> {
    wrap(out, "  what it means: ", &explanation.means)?;
    wrap(out, "  to allow it:   ", &explanation.allow)
}

#[cfg(test)]
mod tests {
    use super::*;
    use ironcage_model::LimitKind;

    fn text_of(kinds: Vec<EventKind>) -> String {
        let mut denials = CageDenials::default();
        kinds.into_iter().for_each(|kind| denials.add(kind));
        let id = "c0123456789ab".parse().unwrap();
        let mut out = Vec::new();
        report(&mut out, &id, &denials, &Explanations::built_in().unwrap()).unwrap();
        String::from_utf8(out).unwrap()
    }

    fn denied(syscall: &str, program: &str) -> EventKind {
        EventKind::Denied(Denial {
            syscall: syscall.into(),
            program: program.into(),
            count: 2,
        })
    }

    #[test]
    fn a_failed_start_is_explained_by_its_code_and_its_hints() {
        let error = ErrorDocument {
            message: "cannot start: \u{1b}[2J".into(),
            code: Some("start-owner-map".into()),
            hints: vec!["do this".into()],
        };
        let mut out = Vec::new();
        let id = "c0123456789ab".parse().unwrap();
        report_failed_start(&mut out, &error, Some(&id)).unwrap();
        let text = String::from_utf8(out).unwrap();
        for part in [
            "failed: cannot start: \\u{1b}[2J\n",
            "what it means: start-owner-map: ",
            "what to do: ",
            "hint:          do this\n",
            "`ironcage why c0123456789ab`",
        ] {
            assert!(text.contains(part), "no {part:?} in {text}");
        }
    }

    #[test]
    fn calls_with_one_explanation_are_one_entry() {
        let text = text_of(vec![
            denied("mount", "sh"),
            denied("mount", "mount"),
            denied("umount2", "sh"),
        ]);
        assert!(
            text.contains(
                "denied: mount, 4 times, by mount, sh\ndenied: umount2, 2 times, by sh\n"
            )
        );
        assert_eq!(text.matches("what it means").count(), 1);
    }

    #[test]
    fn names_from_the_cage_are_escaped_and_limited_in_number() {
        let mut kinds: Vec<_> = (0..9).map(|i| denied("bpf", &format!("p{i}"))).collect();
        kinds.insert(0, denied("bpf", "\u{1b}[2J"));
        let text = text_of(kinds);
        assert!(!text.contains('\u{1b}'));
        assert!(
            text.contains("by \\u{1b}[2J, p0, p1, p2, p3, others"),
            "{text}"
        );
    }

    #[test]
    fn a_limit_that_ended_the_cage_is_shown_once() {
        let hit = LimitHit {
            limit: LimitKind::Memory,
            value: "512M".into(),
            ended: true,
            used: None,
        };
        let text = text_of(vec![
            EventKind::Limit(hit.clone()),
            EventKind::Exit {
                ending: Ending::Limit { hit },
                milliseconds: 1,
                usage: None,
            },
        ]);
        assert_eq!(text.matches("limit reached: memory 512M").count(), 1);
        assert!(text.contains("--memory"));
    }

    #[test]
    fn a_program_that_is_not_in_view_is_explained_and_a_clean_exit_is_not() {
        let exit = |ending| {
            text_of(vec![EventKind::Exit {
                ending,
                milliseconds: 1,
                usage: None,
            }])
        };
        assert!(exit(Ending::NotExecuted { errno: 2 }).contains("-r PATH"));
        assert!(exit(Ending::Exited { code: 0 }).contains("No system call was denied"));
    }
}
