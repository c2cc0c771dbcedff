//! `ironcage why`: what was refused in a cage, what it means, what would allow it.
//!
//! It reads the record and the explanations; it changes nothing and grants nothing.

use super::audit::{ending_in_words, find, limit_in_words, logs, print, said, times, words};
use super::net;
use crate::cage_flags::CageFlags;
use crate::completed::recorded_cages;
use crate::error::{CliError, CommandResult};
use ironcage_audit::{Error, Explanation, Explanations, Reader};
use ironcage_model::{
    CageId, Denial, Ending, EventKind, LimitHit, NetworkVerdict, Printable, QuestionEnd, Resource,
    Traffic,
};
use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

/// Say what was refused in a cage, what that means and what would allow it.
///
/// Refused system calls and limits are recorded. Files that are not there, hidden or read-only
/// are not: `--path` explains one.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The cage: its id or the beginning of it, its name, or `last` [default: last]
    #[arg(add = recorded_cages())]
    cage: Option<String>,
    /// Say what this path is in a cage that `run` would make here, and what would change it
    /// (`ironcage plan --path` does so for a cage with flags)
    #[arg(long, value_name = "PATH", value_hint = clap::ValueHint::AnyPath, conflicts_with = "cage")]
    path: Option<PathBuf>,
}

/// How the reason begins where a connection was allowed and not made.
const UNREACHED: &str = "cannot connect";

/// Programs can be called anything, so only so many are named.
const NAMED_PROGRAMS: usize = 5;
/// Leases that were not given and are told.
const MOST_NOT_GIVEN: usize = 50;

/// How often a system call was refused, and to whom.
#[derive(Debug, Default)]
struct Refusal {
    count: u64,
    programs: BTreeSet<String>,
    /// Whether there were more programs than are kept.
    more: bool,
}

/// All that was refused in one cage.
#[derive(Debug, Default)]
struct Refusals {
    command: Vec<String>,
    denied: BTreeMap<String, Refusal>,
    limits: Vec<LimitHit>,
    ending: Option<Ending>,
    planted: Vec<String>,
    traffic: Vec<Traffic>,
    door_ended: Option<String>,
    /// Leases that were not given, why, and how often that was said.
    not_given: Vec<(Resource, String, u64)>,
    /// What the cage came into contact with, and by what.
    tainted: Vec<String>,
    /// Why child cages were not opened.
    no_child: Vec<String>,
    /// Questions whose end has not been read.
    asked: BTreeMap<u32, Resource>,
    damaged: u64,
}

/// Runs the command.
pub(crate) fn run(args: Args) -> CommandResult {
    if let Some(path) = &args.path {
        let prepared = CageFlags::default().prepare(vec!["/bin/sh".into()])?;
        return super::standing::tell(&prepared, path);
    }
    let dir = logs()?;
    let id = find(&dir, args.cage.as_deref())?;
    let refusals = read(&dir, &id)?;
    let explanations = Explanations::built_in().map_err(|error| CliError::from_error(&error))?;
    print(|out| tell(out, &id, &refusals, &explanations))?;
    Ok(0)
}

fn read(dir: &Path, id: &CageId) -> Result<Refusals, CliError> {
    let path = ironcage_audit::log_path(dir, id);
    if !path.exists() {
        return Err(said(Error::NoSuchCage { id: id.clone() }));
    }
    let mut refusals = Refusals::default();
    for item in Reader::open(&path).map_err(said)? {
        match item {
            Ok(record) => refusals.add(record.event.kind),
            Err(Error::Damaged { .. }) => refusals.damaged += 1,
            Err(error) => return Err(said(error)),
        }
    }
    Ok(refusals)
}

impl Refusals {
    fn add(&mut self, kind: EventKind) {
        match kind {
            EventKind::Start { command, .. } => self.command = command,
            EventKind::Denied(denial) => self.add_denial(denial),
            EventKind::Limit(hit) => self.add_limit(hit),
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
            | EventKind::PeerRefused { .. }
            | EventKind::ChildOpened { .. }
            | EventKind::ChildEnded { .. }
            | EventKind::ChannelOpened { .. }
            | EventKind::Message { .. }
            | EventKind::ChannelClosed { .. }
            | EventKind::Observed(_) => {}
            EventKind::Tainted { taint, because } => {
                if self.tainted.len() < MOST_NOT_GIVEN {
                    self.tainted.push(format!("{taint}: {because}"));
                }
            }
            EventKind::ChildRefused { reason } => {
                if self.no_child.len() < MOST_NOT_GIVEN && !self.no_child.contains(&reason) {
                    self.no_child.push(reason);
                }
            }
            EventKind::LeaseRefused {
                resource, reason, ..
            } => self.add_not_given(resource, reason),
            EventKind::Question(question) => {
                self.asked.insert(question.number, question.resource);
            }
            EventKind::QuestionEnd {
                number,
                end,
                reason,
                ..
            } => {
                let asked = self.asked.remove(&number);
                if let Some(resource) = asked.filter(|_| end != QuestionEnd::Approved) {
                    let reason = match reason.as_str() {
                        "" => format!("it was asked for, and {}", end.name()),
                        said => format!("it was asked for, and {}: {said}", end.name()),
                    };
                    self.add_not_given(resource, reason);
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

    fn add_not_given(&mut self, resource: Resource, reason: String) {
        let mut known = self.not_given.iter_mut();
        if let Some((_, _, times)) =
            known.find(|(what, why, _)| *what == resource && *why == reason)
        {
            *times = times.saturating_add(1);
        } else if self.not_given.len() < MOST_NOT_GIVEN {
            self.not_given.push((resource, reason, 1));
        }
    }

    fn add_denial(&mut self, denial: Denial) {
        let refusal = self.denied.entry(denial.syscall).or_default();
        refusal.count = refusal.count.saturating_add(denial.count);
        if refusal.programs.len() < NAMED_PROGRAMS {
            refusal.programs.insert(denial.program);
        } else {
            refusal.more |= !refusal.programs.contains(&denial.program);
        }
    }

    fn add_traffic(&mut self, traffic: Traffic) {
        // Also what was allowed and found nobody.
        let failed = traffic
            .reason
            .as_deref()
            .is_some_and(|reason| reason.starts_with(UNREACHED));
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

    /// A limit that ended the cage stands in the record twice, as a limit and as the ending.
    fn add_limit(&mut self, hit: LimitHit) {
        if !self.limits.contains(&hit) {
            self.limits.push(hit);
        }
    }

    fn is_empty(&self) -> bool {
        self.denied.is_empty()
            && self.limits.is_empty()
            && self.planted.is_empty()
            && self.traffic.is_empty()
            && self.door_ended.is_none()
            && self.not_given.is_empty()
            && self.no_child.is_empty()
            && self.tainted.is_empty()
    }
}

fn tell(
    out: &mut dyn Write,
    id: &CageId,
    refusals: &Refusals,
    explanations: &Explanations,
) -> io::Result<()> {
    writeln!(out, "cage {id}: {}", words(&refusals.command))?;
    // System calls that mean the same are told together.
    let mut told: Vec<(Explanation, Vec<String>)> = Vec::new();
    for (syscall, refusal) in &refusals.denied {
        let explanation = explanations.syscall(syscall);
        let line = refusal_in_words(syscall, refusal);
        match told.iter_mut().find(|(known, _)| *known == explanation) {
            Some((_, lines)) => lines.push(line),
            None => told.push((explanation, vec![line])),
        }
    }
    for (explanation, lines) in &told {
        writeln!(out)?;
        for line in lines {
            writeln!(out, "denied: {line}")?;
        }
        explain(out, explanation)?;
    }
    for traffic in &refusals.traffic {
        writeln!(out, "\nnetwork: {}", net::in_words(traffic))?;
        match net::remedy(traffic) {
            Some(remedy) => wrap(out, "  what would allow it: ", &remedy)?,
            None if traffic.verdict == NetworkVerdict::Allowed => wrap(
                out,
                "  what it means:       ",
                "it was allowed, and nobody answered there",
            )?,
            None => wrap(
                out,
                "  what would allow it: ",
                "nothing; it is not what the rule was given for",
            )?,
        }
    }
    for (resource, reason, times) in &refusals.not_given {
        let times = super::audit::times(*times);
        let reason = Printable::new(reason);
        writeln!(out, "\nlease refused {times}: {resource}: {reason}")?;
    }
    if !refusals.not_given.is_empty() {
        wrap(
            out,
            "  what would allow it: ",
            "the ceiling of the cage's policy: [ceiling.auto] gives it at once, [ceiling.ask] when you say so \
             (`ironcage pending`, `ironcage grant`)",
        )?;
    }
    for marked in &refusals.tainted {
        writeln!(out, "\nmarked as {}", Printable::new(marked))?;
    }
    for reason in &refusals.no_child {
        writeln!(
            out,
            "\nno child cage was opened: {}",
            Printable::new(reason)
        )?;
    }
    if let Some(reason) = &refusals.door_ended {
        writeln!(
            out,
            "\nthe network door ended before the cage: {}",
            Printable::new(reason)
        )?;
    }
    for hit in &refusals.limits {
        writeln!(out, "\nlimit reached: {}", limit_in_words(hit))?;
        if let Some(explanation) = explanations.limit(hit.limit) {
            explain(out, &explanation)?;
        }
    }
    if !refusals.planted.is_empty() {
        writeln!(out, "\nmade, and not removed by us:")?;
        for path in &refusals.planted {
            writeln!(out, "  {}", Printable::new(path))?;
        }
        wrap(
            out,
            "  ",
            "Your own tools execute or trust files of these names. They were not there when the \
             cage started, so nothing protected them: read them before you go on.",
        )?;
    }
    let ending = refusals.ending.as_ref();
    let ended = ending.and_then(|ending| Some((ending, explanations.ending(ending)?)));
    if let Some((ending, explanation)) = &ended {
        writeln!(out, "\nended: {}", ending_in_words(ending))?;
        explain(out, explanation)?;
    }
    if refusals.is_empty() && ended.is_none() {
        writeln!(
            out,
            "\nNo system call was refused, and no limit was noticed."
        )?;
        wrap(
            out,
            "",
            "A file that is not in the cage's view is simply absent, one that is read-only refuses writing, and an \
             address that the cage does not reach is unreachable: none of that is recorded. `ironcage why --path PATH` \
             says what a path is in a cage, why, and what would change it.",
        )?;
        wrap(out, "", net::NO_NETWORK)?;
    }
    if refusals.damaged > 0 {
        let lines = refusals.damaged;
        writeln!(
            out,
            "\n{lines} lines of the record cannot be read; `ironcage audit verify {id}` says more."
        )?;
    }
    Ok(())
}

fn refusal_in_words(syscall: &str, refusal: &Refusal) -> String {
    let mut programs: Vec<_> = refusal
        .programs
        .iter()
        .map(|program| Printable::new(program).to_string())
        .collect();
    if refusal.more {
        programs.push("others".into());
    }
    format!(
        "{}, {}, by {}",
        Printable::new(syscall),
        times(refusal.count),
        programs.join(", ")
    )
}

fn explain(out: &mut dyn Write, explanation: &Explanation) -> io::Result<()> {
    wrap(out, "  what it means:       ", &explanation.means)?;
    wrap(out, "  what would allow it: ", &explanation.allow)
}

/// Prints a text in lines of moderate length, those after the first indented below it.
pub(super) fn wrap(out: &mut dyn Write, first: &str, text: &str) -> io::Result<()> {
    const WIDTH: usize = 96;
    write!(out, "{first}")?;
    let indent = first.chars().count();
    let mut column = indent;
    for (i, word) in text.split_whitespace().enumerate() {
        let length = word.chars().count();
        if i > 0 && column + 1 + length > WIDTH {
            write!(out, "\n{:indent$}", "")?;
            column = indent;
        } else if i > 0 {
            write!(out, " ")?;
            column += 1;
        }
        write!(out, "{word}")?;
        column += length;
    }
    writeln!(out)
}

#[cfg(test)]
mod tests {
    use super::*;
    use ironcage_model::LimitKind;

    fn told(kinds: Vec<EventKind>) -> String {
        let mut refusals = Refusals::default();
        kinds.into_iter().for_each(|kind| refusals.add(kind));
        let id = "c0123456789ab".parse().unwrap();
        let mut out = Vec::new();
        tell(&mut out, &id, &refusals, &Explanations::built_in().unwrap()).unwrap();
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
    fn calls_of_one_family_are_told_together() {
        let text = told(vec![
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
    fn names_from_the_cage_are_escaped_and_only_some_are_told() {
        let mut kinds: Vec<_> = (0..9).map(|i| denied("bpf", &format!("p{i}"))).collect();
        kinds.insert(0, denied("bpf", "\u{1b}[2J"));
        let text = told(kinds);
        assert!(!text.contains('\u{1b}'));
        assert!(
            text.contains("by \\u{1b}[2J, p0, p1, p2, p3, others"),
            "{text}"
        );
    }

    #[test]
    fn a_limit_that_ended_the_cage_is_told_once() {
        let hit = LimitHit {
            limit: LimitKind::Memory,
            value: "512M".into(),
            ended: true,
        };
        let text = told(vec![
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
    fn a_program_that_is_not_in_view_is_told_and_a_clean_exit_is_not() {
        let exit = |ending| {
            told(vec![EventKind::Exit {
                ending,
                milliseconds: 1,
                usage: None,
            }])
        };
        assert!(exit(Ending::NotExecuted { errno: 2 }).contains("-r PATH"));
        assert!(exit(Ending::Exited { code: 0 }).contains("No system call was refused"));
    }
}
