//! What a shell offers for an argument: cages and changes that are there now.
//!
//! Asked at each press of the key; what cannot be found out is not offered.

use crate::{places, running};
use clap_complete::engine::{ArgValueCandidates, CompletionCandidate};
use ironcage_model::{CageId, Printable};
use ironcage_runtime::client::Found;

/// Cages that run.
pub(crate) fn running_cages() -> ArgValueCandidates {
    ArgValueCandidates::new(|| living(&[]))
}

/// Cages that run, and those of which output is kept.
pub(crate) fn kept_cages() -> ArgValueCandidates {
    ArgValueCandidates::new(|| {
        let kept = running::cages().ok().map(|cages| cages.archive().list());
        living(&kept.and_then(Result::ok).unwrap_or_default())
    })
}

/// Cages that have a record.
pub(crate) fn recorded_cages() -> ArgValueCandidates {
    ArgValueCandidates::new(|| {
        let records = ironcage_audit::audit_dir().ok();
        let recorded = records.and_then(|dir| ironcage_audit::recorded(&dir).ok());
        living(&recorded.unwrap_or_default())
    })
}

/// Changes that were not applied yet.
pub(crate) fn changes() -> ArgValueCandidates {
    ArgValueCandidates::new(|| {
        let store = places::home().ok().map(|home| places::changes(&home));
        let changes = store.and_then(|store| store.list().ok()).into_iter();
        changes
            .flatten()
            .map(|change| {
                let workspace =
                    Printable::new(&change.workspace().display().to_string()).to_string();
                CompletionCandidate::new(change.id().as_str()).help(Some(workspace.into()))
            })
            .collect()
    })
}

/// Running cages by name where they have one, by id else; then others by id.
fn living(others: &[CageId]) -> Vec<CompletionCandidate> {
    let found = running::cages().ok().and_then(|cages| cages.running().ok());
    let found = found.unwrap_or_default();
    let mut offered = Vec::new();
    for cage in &found {
        let Found::Answered(described) = cage else {
            offered.push(CompletionCandidate::new(cage.id().as_str()));
            continue;
        };
        let command = Printable::new(&described.command.join(" ")).to_string();
        let name = described.name.as_deref().unwrap_or(described.id.as_str());
        offered.push(CompletionCandidate::new(name).help(Some(command.into())));
    }
    let over = others
        .iter()
        .filter(|id| found.iter().all(|cage| cage.id() != *id));
    offered.extend(over.map(|id| CompletionCandidate::new(id.as_str())));
    offered
}

/// Questions that wait for an answer.
pub(crate) fn questions() -> ArgValueCandidates {
    ArgValueCandidates::new(|| {
        let waiting = crate::question::waiting(None).unwrap_or_default();
        let offered = waiting.iter().map(|one| {
            let name = format!("{}/{}", one.shown(), one.described.question.number);
            let what = one.described.question.resource.to_string();
            CompletionCandidate::new(name).help(Some(what.into()))
        });
        offered.collect()
    })
}
