//! Completion candidates for arguments: the cages, changes and requests that exist now.
//!
//! The shell asks at each press of the key; a list that cannot be read offers nothing.

use crate::{cages, paths};
use clap_complete::engine::{ArgValueCandidates, CompletionCandidate};
use ironcage_client::RunningCage;
use ironcage_host::SystemFiles;
use ironcage_model::{CageId, Printable};

pub(crate) fn running_cages() -> ArgValueCandidates {
    ArgValueCandidates::new(|| candidates(&[]))
}

/// Running cages, and ended ones whose output is kept.
pub(crate) fn kept_cages() -> ArgValueCandidates {
    ArgValueCandidates::new(|| {
        let kept = cages::all().ok().map(|cages| cages.archive().list());
        candidates(&kept.and_then(Result::ok).unwrap_or_default())
    })
}

/// Cages that have an audit log.
pub(crate) fn recorded_cages() -> ArgValueCandidates {
    ArgValueCandidates::new(|| {
        let records = ironcage_audit::audit_dir().ok();
        let recorded = records.and_then(|dir| ironcage_audit::recorded(&dir).ok());
        candidates(&recorded.unwrap_or_default())
    })
}

pub(crate) fn changes() -> ArgValueCandidates {
    ArgValueCandidates::new(|| {
        let store = paths::home(&SystemFiles::default())
            .ok()
            .map(|home| paths::changes(&home, &SystemFiles::default()));
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

pub(crate) fn templates() -> ArgValueCandidates {
    ArgValueCandidates::new(|| {
        let home = paths::home(&SystemFiles::default()).ok();
        let store = home.map(|home| ironcage_images::Store::at(&paths::images(&home)));
        let templates = store.and_then(|store| store.templates().ok()).into_iter();
        templates
            .flatten()
            .map(|template| CompletionCandidate::new(template.name.to_string()))
            .collect()
    })
}

/// Images of the store by their names, and those without one by digest.
pub(crate) fn images() -> ArgValueCandidates {
    ArgValueCandidates::new(|| {
        let home = paths::home(&SystemFiles::default()).ok();
        let store = home.map(|home| ironcage_images::Store::at(&paths::images(&home)));
        let images = store.and_then(|store| store.images().ok()).into_iter();
        images
            .flatten()
            .flat_map(|image| match image.names.is_empty() {
                true => vec![image.digest.short().to_owned()],
                false => image.names,
            })
            .map(CompletionCandidate::new)
            .collect()
    })
}

/// Running cages by name or ID, then others by ID.
fn candidates(others: &[CageId]) -> Vec<CompletionCandidate> {
    let found = cages::all().ok().and_then(|cages| cages.running().ok());
    let found = found.unwrap_or_default();
    let mut offered = Vec::new();
    for cage in &found {
        let RunningCage::Answered(described) = cage else {
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

pub(crate) fn pending_requests() -> ArgValueCandidates {
    ArgValueCandidates::new(|| {
        let waiting = crate::pending_request::list(None).unwrap_or_default();
        let offered = waiting.iter().map(|one| {
            let name = format!("{}/{}", one.shown(), one.described.question.number);
            let what = one.described.question.resource.to_string();
            CompletionCandidate::new(name).help(Some(what.into()))
        });
        let calls = crate::tool_calls::pending().unwrap_or_default();
        let calls = calls.iter().map(|call| {
            let what = format!("{} of {}", Printable::new(&call.tool), call.server);
            CompletionCandidate::new(crate::tool_calls::name(call)).help(Some(what.into()))
        });
        offered.chain(calls).collect()
    })
}
