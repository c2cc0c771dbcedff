//! Pending changes that the cages of a project left, or work on.

use super::{Engine, blocking, store_error};
use crate::api::types::CageState;
use crate::error::{ApiError, ApiResult, Code};
use crate::keys::{Key, Scope};
use crate::store::{CageRecord, ChangeOwner};
use ironcage_client::{Cages, ClientError, RunningCage};
use ironcage_control::{Reply, Request};
use ironcage_model::CageId;
use serde::Deserialize;
use std::collections::HashSet;
use std::path::{Component, Path, PathBuf};

/// Paths of one request, and bytes of one.
const MOST_PATHS: usize = 1000;
const LONGEST_PATH: usize = 4096;

/// A change as `ironcage change list --json` shows it.
#[derive(Debug, Clone, Deserialize)]
pub(crate) struct ListedChange {
    pub(crate) id: String,
    pub(crate) workspace: String,
    pub(crate) mode: String,
    /// Seconds since the epoch.
    pub(crate) began: i64,
    pub(crate) bytes: u64,
    /// Cages that are done with it.
    cages: Vec<String>,
    /// The cage of the service that works on it, or worked on it last.
    #[serde(skip)]
    pub(crate) cage: String,
    pub(crate) current: bool,
    pub(crate) in_use: bool,
}

impl ListedChange {
    /// Paths of a request as words of a command line: absolute, so that none is an option.
    pub(crate) fn words(&self, paths: &[String]) -> ApiResult<Vec<PathBuf>> {
        if paths.len() > MOST_PATHS {
            return Err(ApiError::new(
                Code::TooLarge,
                format!("{} paths are named; at most {MOST_PATHS} are", paths.len()),
            ));
        }
        paths.iter().map(|path| self.word(path)).collect()
    }

    fn word(&self, path: &str) -> ApiResult<PathBuf> {
        let relative = Path::new(path);
        let inside = relative
            .components()
            .all(|part| matches!(part, Component::Normal(_) | Component::CurDir));
        if path.is_empty() || path.contains('\0') || path.len() > LONGEST_PATH || !inside {
            return Err(ApiError::invalid(format!(
                "`{}` is not a path below the workspace",
                path.chars().take(100).collect::<String>().escape_debug()
            ))
            .hint("name paths as the change lists them"));
        }
        Ok(Path::new(&self.workspace).join(relative))
    }
}

impl Engine {
    /// Notes the change that a new cage works on, and whose it is.
    pub(super) async fn note_change(&self, record: &mut CageRecord, id: &CageId) -> ApiResult<()> {
        if record.spec.directory.is_none() {
            return Ok(());
        }
        let cage = id.clone();
        record.change =
            blocking(
                move || match Cages::of_user()?.connect(&cage)?.ask(&Request::Describe)? {
                    Reply::Description(description) => Ok(description.change),
                    other => Err(ClientError::Answer(format!("{other:?}")).into()),
                },
            )
            .await?;
        if let Some(change) = &record.change {
            let owner = ChangeOwner {
                project: record.project.clone(),
                cage: id.to_string(),
            };
            self.store
                .put_change_owner(change, &owner)
                .map_err(store_error)?;
        }
        Ok(())
    }

    /// The changes that a key sees, the oldest first. A change belongs to the project whose cage
    /// works on it, or worked on it last: one that another cage continued, of another project or of
    /// the command line, is not seen any more.
    pub(crate) async fn changes(&self, key: &Key) -> ApiResult<Vec<ListedChange>> {
        // The owners first: a change that begins in between is not taken for one that is gone.
        let owners = self.store.change_owners().map_err(store_error)?;
        // So are the cages: a change in the memory of one is listed once that has ended, which may be
        // while the list is made.
        let running = owners.values().filter(|owner| self.runs(&owner.cage));
        let running: HashSet<String> = running.map(|owner| owner.cage.clone()).collect();
        let listed: Vec<ListedChange> = self
            .command_line
            .json(&key.project, &["change", "list", "--json"])
            .await?;
        for (id, owner) in &owners {
            let is_listed = listed.iter().any(|change| change.id == *id);
            if !is_listed && !running.contains(&owner.cage) && !self.runs(&owner.cage) {
                self.store.forget_change_owner(id).map_err(store_error)?;
            }
        }
        let mut seen = Vec::new();
        for mut change in listed {
            let owner = owners.get(&change.id);
            let Some(owner) =
                owner.filter(|owner| key.may(Scope::Admin) || owner.project == key.project)
            else {
                continue;
            };
            let its = match change.in_use {
                true if self.runs(&owner.cage) => true,
                // Its cage has ended and is not done with it yet, or another one works on it.
                true => !in_use_by_another(&change.id).await?,
                false => change.cages.last() == Some(&owner.cage),
            };
            if its {
                change.cage.clone_from(&owner.cage);
                seen.push(change);
            }
        }
        Ok(seen)
    }

    fn runs(&self, cage: &str) -> bool {
        let entry = self.any_cage(cage);
        entry.is_some_and(|entry| entry.state() != CageState::Ended)
    }

    /// A change that a key sees.
    pub(crate) async fn pending_change(&self, key: &Key, id: &str) -> ApiResult<ListedChange> {
        let mut changes = self.changes(key).await?.into_iter();
        changes.find(|change| change.id == id).ok_or_else(|| {
            ApiError::new(
                Code::NotFound,
                format!("change `{}` was not found", id.escape_debug()),
            )
            .hint("GET /v1/changes lists the changes of the project")
        })
    }
}

/// Whether a running cage works on a change, besides those of the table that do.
async fn in_use_by_another(id: &str) -> ApiResult<bool> {
    let id = id.to_owned();
    blocking(move || {
        let running = Cages::of_user()?.running()?;
        Ok(running.iter().any(|cage| match cage {
            RunningCage::Answered(description) => description.change.as_ref() == Some(&id),
            // It may be the one.
            RunningCage::Silent { .. } => true,
        }))
    })
    .await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_change_keeps_its_owner_when_its_cage_ends_while_changes_are_listed() {
        let data = tempfile::tempdir().unwrap();
        let path = |name: &str| data.path().join(name);
        // A list without the change, which takes until the cage has ended.
        let script = format!(
            "#!/bin/sh\n: > {0}/listing\nwhile [ ! -e {0}/ended ]; do sleep 0.05; done\necho '[]'\n",
            data.path().display()
        );
        std::fs::write(path("ironcage"), script).unwrap();
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        std::fs::set_permissions(path("ironcage"), mode).unwrap();
        let engine = Engine::open(crate::engine::tests::settings(data.path())).unwrap();
        let (key, _) = engine.keys.create("k", "team", [].into()).unwrap();
        let id: CageId = "c0123456789ab".parse().unwrap();
        let owner = ChangeOwner {
            project: "team".to_owned(),
            cage: id.to_string(),
        };
        engine.store.put_change_owner("w0", &owner).unwrap();
        let daemon = crate::daemon::Daemon::new(id.clone(), Vec::new());
        let entry = engine.entry(crate::engine::life::tests::record(), id, daemon);
        engine.insert(&entry);
        let listing = {
            let (engine, key) = (std::sync::Arc::clone(&engine), key.clone());
            tokio::spawn(async move { engine.changes(&key).await.map(|found| found.len()) })
        };
        while !path("listing").exists() {
            tokio::time::sleep(std::time::Duration::from_millis(10)).await;
        }
        let end = |record: &mut CageRecord| record.ending = Some((1, "stopped".to_owned()));
        engine.change(&entry, end).unwrap();
        std::fs::write(path("ended"), "").unwrap();
        assert_eq!(listing.await.unwrap().unwrap(), 0);
        assert_eq!(engine.store.change_owners().unwrap().len(), 1);
        // Not there after its cage has ended: it is gone.
        assert!(engine.changes(&key).await.unwrap().is_empty());
        assert!(engine.store.change_owners().unwrap().is_empty());
    }

    #[test]
    fn a_path_stays_below_the_workspace_and_is_never_an_option() {
        let change = ListedChange {
            id: "w0".to_owned(),
            workspace: "/srv/work".to_owned(),
            mode: "cow".to_owned(),
            began: 0,
            bytes: 0,
            cages: Vec::new(),
            cage: String::new(),
            current: true,
            in_use: false,
        };
        let word = |path: &str| {
            change
                .words(&[path.to_owned()])
                .map(|words| words[0].clone())
        };
        assert_eq!(word("a/b").unwrap(), Path::new("/srv/work/a/b"));
        assert_eq!(word("--theirs").unwrap(), Path::new("/srv/work/--theirs"));
        for path in [
            "",
            "/etc/passwd",
            "../up",
            "a/../../up",
            "a\0b",
            &"x".repeat(5000),
        ] {
            assert_eq!(word(path).unwrap_err().code, Code::InvalidRequest, "{path}");
        }
        let many = vec!["a".to_owned(); MOST_PATHS + 1];
        assert_eq!(change.words(&many).unwrap_err().code, Code::TooLarge);
        change.words(&many[1..]).unwrap();
    }
}
