//! The change that a run works on: begun or continued, locked while it lasts, and what becomes
//! of it at the end.

use crate::error::CliError;
use crate::places;
use ironcage_model::CageId;
use ironcage_plan::{ChangeLayer, ChangePlace, Overlaid, Plan, ViewOp};
use ironcage_policy::{Policy, WorkspaceMode};
use ironcage_workspace::{
    ApplyOptions, Change, Draft, HowMoved, LayerRequest, LayerRole, Lock, Selection, Store,
    WorkspaceError, take_owners_rights,
};
use std::io::{BufRead as _, IsTerminal as _};
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

/// Which change a run is going to work on. Nothing is made or taken yet.
#[derive(Debug, Default)]
pub(crate) enum Choice {
    /// None: nothing of this run is copy-on-write.
    #[default]
    None,
    /// One that an earlier run left.
    Continue(Store, Change),
    /// A new one.
    Begin {
        store: Store,
        draft: Draft,
        /// The pending one that it stands beside.
        beside: Option<Change>,
        /// Whether that is so because another cage works on it.
        busy: bool,
        /// Whether the next run goes on with that one all the same.
        stays_first: bool,
    },
}

impl Choice {
    /// Chooses: the pending change of the workspace, unless there is none or the user wants to
    /// start from the real files.
    pub(crate) fn make(
        home: &Path,
        workspace: &Path,
        policy: &Policy,
        fresh: bool,
    ) -> Result<Choice, CliError> {
        let mode = policy.workspace_mode.value;
        // On real files the git directory alone is a layer, where there is one.
        let direct = mode == WorkspaceMode::Direct;
        if !mode.is_copy_on_write() && !direct && policy.write.is_empty() {
            return Ok(Choice::None);
        }
        let store = places::changes(home);
        let pending = store.pending(workspace).map_err(shown)?;
        // One upper layer cannot serve two overlays at once: what either sees then is undefined.
        let busy = pending.as_ref().is_some_and(Change::in_use);
        // What is in memory begins with nothing.
        let in_memory = policy.in_memory.value;
        // A change to files is not for a run on the real ones, nor the other way round.
        let alike = pending
            .as_ref()
            .is_some_and(|change| (change.mode() == WorkspaceMode::Direct.name()) == direct);
        match pending {
            Some(change) if !fresh && !busy && alike && !in_memory => {
                Ok(Choice::Continue(store, change))
            }
            beside => Ok(Choice::Begin {
                draft: store.draft(workspace).map_err(shown)?,
                store,
                stays_first: beside.is_some() && (busy && !fresh || direct && !alike || in_memory),
                busy: busy && !fresh && alike && !in_memory,
                beside,
            }),
        }
    }

    /// Where the plan puts its layers.
    pub(crate) fn place(&self) -> ChangePlace {
        match self {
            Choice::None => ChangePlace::default(),
            Choice::Begin { draft, .. } => ChangePlace {
                directory: draft.directory.clone(),
                layers: Vec::new(),
            },
            Choice::Continue(_, change) => ChangePlace {
                directory: change.directory().to_owned(),
                layers: change
                    .layers()
                    .iter()
                    .map(|layer| ChangeLayer {
                        real: layer.real.clone(),
                        upper: layer.upper.clone(),
                        work: layer.work.clone(),
                    })
                    .collect(),
            },
        }
    }

    /// Makes what is missing and takes the change for this run alone. `allowed` are the paths
    /// of the workspace that the policy lets be applied though the host would execute them.
    pub(crate) fn open(
        self,
        plan: &Plan,
        mode: WorkspaceMode,
        allowed: &[PathBuf],
    ) -> Result<Option<Open>, CliError> {
        let layers = |directory: &Path| layers(plan, directory);
        match self {
            Choice::None => Ok(None),
            Choice::Begin {
                store,
                draft,
                beside,
                busy,
                stays_first,
            } => {
                let wanted = layers(&draft.directory);
                if wanted.is_empty() {
                    return Ok(None);
                }
                let (mut change, lock) = store
                    .create(&plan.workspace, draft, mode.name(), &wanted)
                    .map_err(shown)?;
                change.allow(allowed).map_err(shown)?;
                if plan.in_memory().next().is_some() {
                    change.set_in_memory(true).map_err(shown)?;
                }
                if let Some(first) = beside.as_ref().filter(|_| stays_first) {
                    store.put_beside(&mut change, first).map_err(shown)?;
                }
                Ok(Some(Open {
                    store,
                    change,
                    origin: match beside {
                        Some(first) if busy => Origin::BesideBusy(first),
                        Some(first) if !stays_first => Origin::InPlaceOf(first),
                        _ => Origin::First,
                    },
                    lock,
                }))
            }
            Choice::Continue(store, mut change) => {
                let wanted = layers(change.directory());
                if wanted.is_empty() {
                    return Ok(None);
                }
                let mut lock = change.lock().map_err(|error| in_use(&error))?;
                same_directories(&change)?;
                if change.in_memory() {
                    anstream::eprintln!(
                        "ironcage: the last cage kept {} in memory and was killed: what it changed is lost",
                        change.id()
                    );
                    change.set_in_memory(false).map_err(shown)?;
                }
                store.renew_work(&change).map_err(shown)?;
                store.extend(&mut change, &wanted).map_err(shown)?;
                change.allow(allowed).map_err(shown)?;
                lock.share();
                Ok(Some(Open {
                    store,
                    change,
                    origin: Origin::Continued,
                    lock,
                }))
            }
        }
    }
}

/// The overlays of a plan, as the store is to make them.
fn layers(plan: &Plan, directory: &Path) -> Vec<LayerRequest> {
    let overlays = plan.view.iter().filter_map(|item| match &item.what {
        ViewOp::Overlay {
            of, lower, upper, ..
        } => {
            let role = match of {
                Overlaid::Workspace => LayerRole::Workspace,
                Overlaid::Git => LayerRole::Git,
                Overlaid::Granted => LayerRole::Granted,
                // What is kept, and no change to be applied.
                Overlaid::Cache => return None,
            };
            Some((role, lower, upper))
        }
        _ => None,
    });
    overlays
        .map(|(role, lower, upper)| {
            let place = upper.parent().unwrap_or(upper);
            LayerRequest {
                role,
                real: lower.clone(),
                place: place
                    .strip_prefix(directory)
                    .map_or_else(|_| PathBuf::new(), Path::to_owned),
            }
        })
        .collect()
}

/// A change belongs to the directories that it was begun in, not to their names.
fn same_directories(change: &Change) -> Result<(), CliError> {
    for layer in change.layers() {
        let same = std::fs::symlink_metadata(&layer.real)
            .is_ok_and(|now| (now.dev(), now.ino()) == (layer.device, layer.inode));
        if !same {
            return Err(CliError::new(format!(
                "the change {} belongs to a {} that is gone: another directory has its name",
                change.id(),
                layer.real.display()
            ))
            .hint("--fresh starts a change of its own; the earlier one stays")
            .hint(format!("`ironcage discard {}` lets it go", change.id())));
        }
    }
    Ok(())
}

fn in_use(error: &WorkspaceError) -> CliError {
    let message = CliError::from_error(error);
    match error {
        WorkspaceError::InUse { .. } => message
            .hint("wait until that cage has ended; then this run goes on with its change")
            .hint("--fresh starts another change, from the real files"),
        _ => message,
    }
}

fn shown(error: WorkspaceError) -> CliError {
    CliError::from_error(&error)
}

/// A change that this process holds.
#[derive(Debug)]
pub(crate) struct Open {
    store: Store,
    change: Change,
    origin: Origin,
    lock: Lock,
}

/// How a run came to its change.
#[derive(Debug)]
enum Origin {
    /// An earlier run left it.
    Continued,
    /// It is the only one of its workspace.
    First,
    /// The user wanted one from the real files, though this one is pending.
    InPlaceOf(Change),
    /// Another cage works on this one.
    BesideBusy(Change),
}

/// How the run ended, as far as its change is concerned.
#[derive(Debug)]
pub(crate) struct End {
    /// The workspace's mode.
    pub(crate) mode: WorkspaceMode,
    /// Whether the command ended with status 0.
    pub(crate) succeeded: bool,
    /// Whether to say nothing and ask nothing.
    pub(crate) quiet: bool,
}

impl Open {
    /// The change's id.
    pub(crate) fn id(&self) -> String {
        self.change.id().to_string()
    }

    /// Says what the cage starts with, where that is not the real files alone.
    pub(crate) fn announce(&self) {
        match &self.origin {
            Origin::Continued => anstream::eprintln!(
                "ironcage: goes on with the pending change {}; --fresh starts from the real files",
                self.change.id()
            ),
            Origin::BesideBusy(first) => anstream::eprintln!(
                "ironcage: another cage works on the pending change {}; this one begins {} from the real files",
                first.id(),
                self.change.id()
            ),
            Origin::First | Origin::InPlaceOf(_) => {}
        }
    }

    /// Lets a change go that this run began and in which nothing is, since the cage did not start.
    pub(crate) fn abandon(self) -> Result<(), CliError> {
        match self.origin {
            Origin::Continued => Ok(()),
            _ if !self.change.is_unused() => Ok(()),
            _ => self.remove(),
        }
    }

    /// Writes a change down that was in memory: the cage's storage, and where on it what of the
    /// change is.
    pub(crate) fn write_down<'p>(
        &mut self,
        storage: &OwnedFd,
        places: impl Iterator<Item = (&'p Path, &'static str)>,
    ) -> Result<(), CliError> {
        // Refused on hosts without user namespaces, where there are no such cages either.
        let _ = take_owners_rights();
        let storage = PathBuf::from(format!("/proc/self/fd/{}", storage.as_raw_fd()));
        let uppers: Vec<(PathBuf, PathBuf)> = places
            .map(|(real, place)| {
                let below = place.trim_start_matches('/');
                (real.to_owned(), storage.join(below).join("upper"))
            })
            .collect();
        self.change.write_down(&uppers).map_err(|error| {
            shown(error).hint("what the cage changed was in its memory, and is lost")
        })?;
        if !self.change.is_unused() {
            self.store.make_current(&self.change).map_err(shown)?;
        }
        Ok(())
    }

    /// What becomes of it when the command has ended: applied where that is the mode and the
    /// command succeeded, else kept aside, told, and on a terminal asked about.
    pub(crate) fn finish(mut self, cage: &CageId, end: &End) -> Result<(), CliError> {
        if self.change.is_unused() {
            return self.remove();
        }
        self.change.add_cage(cage).map_err(shown)?;
        // Refused on hosts without user namespaces: what cannot be read there is told.
        let _ = take_owners_rights();
        self.lock.unshare(&self.change).map_err(shown)?;
        if !self.change.differs().map_err(shown)? {
            return self.remove();
        }
        let options = ApplyOptions {
            hold_flagged: true,
            allowed: self.change.allowed().to_vec(),
            ..ApplyOptions::default()
        };
        if end.mode == WorkspaceMode::Direct {
            return self.commit(&options, end.quiet);
        }
        if end.mode == WorkspaceMode::Apply && end.succeeded {
            return self.apply(&options, end.quiet);
        }
        if end.quiet {
            return Ok(());
        }
        let summary = self.change.summary().map_err(shown)?;
        anstream::eprintln!("ironcage: kept aside as {}: {summary}", self.change.id());
        if std::io::stdin().is_terminal() && std::io::stderr().is_terminal() {
            return self.ask();
        }
        // Without an id the commands are about another one, or find none from here.
        let here =
            std::env::current_dir().is_ok_and(|cwd| cwd.starts_with(self.change.workspace()));
        let id = match self.change.beside() {
            None if here => String::new(),
            _ => format!(" {}", self.change.id()),
        };
        anstream::eprintln!(
            "  hint: `ironcage diff{id}` shows it, `ironcage apply{id}` brings it over, `ironcage discard{id}` lets it go"
        );
        Ok(())
    }

    fn apply(self, options: &ApplyOptions, quiet: bool) -> Result<(), CliError> {
        let everything = Selection::everything();
        let Open {
            store,
            change,
            lock,
            ..
        } = self;
        let applied = store
            .apply_locked(&change, &lock, &everything, options)
            .map_err(shown)?;
        if !quiet {
            anstream::eprintln!("ironcage: {applied}");
            if !applied.finished {
                anstream::eprintln!(
                    "  hint: the rest stays aside as {}: `ironcage diff` shows it",
                    change.id()
                );
            }
        }
        Ok(())
    }

    /// Brings over what was committed, however the command ended: the files that belong to it
    /// are real already. Only what stays aside
    /// or is lost is told.
    fn commit(self, options: &ApplyOptions, quiet: bool) -> Result<(), CliError> {
        let everything = Selection::everything();
        let applied = self
            .store
            .apply_locked(&self.change, &self.lock, &everything, options)
            .map_err(shown)?;
        let lost = applied
            .references
            .iter()
            .any(|reference| reference.how == HowMoved::Deleted);
        let to_tell = !applied.finished || !applied.flagged.is_empty() || lost;
        if !quiet && to_tell {
            anstream::eprintln!("ironcage: in the git directory: {applied}");
        }
        if !quiet && !applied.finished {
            anstream::eprintln!(
                "  hint: it stays aside as {}: `ironcage diff {}` shows it",
                self.change.id(),
                self.change.id()
            );
        }
        Ok(())
    }

    /// Lets the user choose. No answer keeps it.
    fn ask(self) -> Result<(), CliError> {
        loop {
            anstream::eprint!("[a]pply, [d]iff, [k]eep or [x] discard? [k] ");
            let mut answer = String::new();
            let read = std::io::stdin().lock().read_line(&mut answer);
            match (read, answer.trim()) {
                (Ok(0) | Err(_), _) | (_, "" | "k" | "keep") => return Ok(()),
                (_, "a" | "apply") => return self.apply(&ApplyOptions::default(), false),
                (_, "x" | "discard") => return self.remove(),
                (_, "d" | "diff") => {
                    crate::commands::diff::show(&self.change, &Selection::everything())?;
                }
                _ => {}
            }
        }
    }

    fn remove(self) -> Result<(), CliError> {
        let Open {
            store,
            change,
            lock,
            origin,
        } = self;
        store.remove_locked(&change).map_err(shown)?;
        drop(lock);
        match origin {
            // It is the one to go on with again.
            Origin::InPlaceOf(first) if first.directory().is_dir() => {
                store.make_current(&first).map_err(shown)
            }
            _ => Ok(()),
        }
    }
}
