//! The change that a run works on: started or continued, locked during the run, and applied, kept
//! or removed at its end.

use crate::error::CliError;
use crate::paths;
use ironcage_files::{Links, read_text};
use ironcage_host::HostFiles;
use ironcage_model::CageId;
use ironcage_plan::{CHANGE, ChangeBinding, ChangeLayer, ChangePlace, Overlaid, Plan, ViewOp};
use ironcage_policy::{Policy, WorkspaceMode};
use ironcage_workspace::{
    ApplyOptions, Change, Draft, Emptied, HowMoved, LayerRequest, LayerRole, Lock, Selection,
    Store, WorkspaceError, take_owners_rights,
};
use std::cell::RefCell;
use std::io::{BufRead as _, IsTerminal as _};
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

/// The file in a change's directory with the summary that was printed last.
const TOLD: &str = "told";

/// The change that a run will work on. Nothing is created or locked yet.
#[derive(Debug, Default)]
pub(crate) enum ChangeChoice {
    /// Nothing of this run is copy-on-write.
    #[default]
    None,
    /// A pending change of an earlier run.
    Continue(Store, Change),
    Begin {
        store: Store,
        draft: Draft,
        /// The pending change of the workspace.
        beside: Option<Change>,
        /// Whether another cage works on that pending change.
        busy: bool,
        /// Whether the next run still continues that pending change.
        stays_first: bool,
    },
}

impl ChangeChoice {
    /// The pending change of the workspace, or a new one if there is none or `fresh` is set.
    pub(crate) fn make(
        (home, files): (&Path, &dyn HostFiles),
        workspace: &Path,
        policy: &Policy,
        fresh: bool,
    ) -> Result<ChangeChoice, CliError> {
        let mode = policy.workspace_mode.value;
        // With real files only the git directory is a layer.
        let direct = mode == WorkspaceMode::Direct;
        if !mode.is_copy_on_write() && !direct && policy.write.is_empty() {
            return Ok(ChangeChoice::None);
        }
        let store = paths::changes(home, files);
        let pending = store.pending(workspace).map_err(change_error)?;
        // Two overlays on one upper layer have undefined behaviour.
        let busy = pending.as_ref().is_some_and(Change::in_use);
        // A change in memory always starts empty.
        let in_memory = policy.in_memory.value;
        // A copy-on-write change cannot be continued on real files, nor the other way round.
        let alike = pending
            .as_ref()
            .is_some_and(|change| (change.mode() == WorkspaceMode::Direct.name()) == direct);
        match pending {
            Some(change) if !fresh && !busy && alike && !in_memory => {
                Ok(ChangeChoice::Continue(store, change))
            }
            beside => Ok(ChangeChoice::Begin {
                draft: store.draft(workspace).map_err(change_error)?,
                store,
                stays_first: beside.is_some() && (busy && !fresh || direct && !alike || in_memory),
                busy: busy && !fresh && alike && !in_memory,
                beside,
            }),
        }
    }

    /// Where the plan puts its layers. The name of a change that is still to be made is a symbol.
    pub(crate) fn planned_place(&self) -> ChangePlace {
        match self {
            ChangeChoice::Begin { draft, .. } => ChangePlace {
                directory: planned_directory(draft),
                layers: Vec::new(),
            },
            ChangeChoice::None | ChangeChoice::Continue(..) => self.place(),
        }
    }

    /// The value of that symbol.
    pub(crate) fn binding(&self) -> Option<ChangeBinding> {
        match self {
            ChangeChoice::Begin { draft, .. } => Some(ChangeBinding {
                planned: planned_directory(draft),
                real: draft.directory.clone(),
            }),
            ChangeChoice::None | ChangeChoice::Continue(..) => None,
        }
    }

    /// Where its layers are.
    pub(crate) fn place(&self) -> ChangePlace {
        match self {
            ChangeChoice::None => ChangePlace::default(),
            ChangeChoice::Begin { draft, .. } => ChangePlace {
                directory: draft.directory.clone(),
                layers: Vec::new(),
            },
            ChangeChoice::Continue(_, change) => ChangePlace {
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

    /// Creates what is missing, and locks the change for this run. `allowed` are workspace paths
    /// that the policy allows to be applied although the host would execute them.
    pub(crate) fn open(
        self,
        plan: &Plan,
        mode: WorkspaceMode,
        allowed: &[PathBuf],
    ) -> Result<Option<OpenChange>, CliError> {
        let layers = |directory: &Path| layers(plan, directory);
        match self {
            ChangeChoice::None => Ok(None),
            ChangeChoice::Begin {
                store,
                draft,
                beside,
                busy,
                stays_first,
            } => {
                let wanted = layers(&planned_directory(&draft));
                if wanted.is_empty() {
                    return Ok(None);
                }
                let (mut change, lock) = store
                    .create(&plan.workspace, draft, mode.name(), &wanted)
                    .map_err(change_error)?;
                change.allow(allowed).map_err(change_error)?;
                if plan.in_memory().next().is_some() {
                    change.set_in_memory(true).map_err(change_error)?;
                }
                if let Some(first) = beside.as_ref().filter(|_| stays_first) {
                    store.put_beside(&mut change, first).map_err(change_error)?;
                }
                Ok(Some(OpenChange {
                    emptied: RefCell::new(store.emptied()),
                    store,
                    change,
                    origin: match beside {
                        Some(first) if busy => ChangeOrigin::BesideBusy(first),
                        Some(first) if !stays_first => ChangeOrigin::InPlaceOf(first),
                        _ => ChangeOrigin::First,
                    },
                    lock,
                }))
            }
            ChangeChoice::Continue(store, mut change) => {
                let wanted = layers(change.directory());
                if wanted.is_empty() {
                    return Ok(None);
                }
                let mut lock = change.lock().map_err(|error| in_use(&error))?;
                same_directories(&change)?;
                if change.in_memory() {
                    anstream::eprintln!(
                        "ironcage: the last cage kept change {} in memory and was killed: its changes are lost",
                        change.id()
                    );
                    change.set_in_memory(false).map_err(change_error)?;
                }
                store.renew_work(&change).map_err(change_error)?;
                store.extend(&mut change, &wanted).map_err(change_error)?;
                change.allow(allowed).map_err(change_error)?;
                lock.share();
                Ok(Some(OpenChange {
                    emptied: RefCell::new(store.emptied()),
                    store,
                    change,
                    origin: ChangeOrigin::Continued,
                    lock,
                }))
            }
        }
    }
}

/// The directory of a change that is still to be made, in a plan.
fn planned_directory(draft: &Draft) -> PathBuf {
    draft.directory.with_file_name(CHANGE)
}

/// The overlays of a plan, for the store.
fn layers(plan: &Plan, directory: &Path) -> Vec<LayerRequest> {
    let overlays = plan.view.iter().filter_map(|item| match &item.what {
        ViewOp::Overlay {
            of, lower, upper, ..
        } => {
            let role = match of {
                Overlaid::Workspace => LayerRole::Workspace,
                Overlaid::Git => LayerRole::Git,
                Overlaid::Granted => LayerRole::Granted,
                // Never applied.
                Overlaid::Cache | Overlaid::System => return None,
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

/// A change belongs to the directories where it started, not to their names.
fn same_directories(change: &Change) -> Result<(), CliError> {
    for layer in change.layers() {
        let same = std::fs::symlink_metadata(&layer.real)
            .is_ok_and(|now| (now.dev(), now.ino()) == (layer.device, layer.inode));
        if !same {
            return Err(CliError::new(format!(
                "cannot continue change {}: {} is now another directory",
                change.id(),
                layer.real.display()
            ))
            .hint("--fresh starts a new change; the earlier one stays pending")
            .hint(format!("`ironcage discard {}` to drop it", change.id())));
        }
    }
    Ok(())
}

fn in_use(error: &WorkspaceError) -> CliError {
    let message = CliError::from_error(error);
    match error {
        WorkspaceError::InUse { .. } => message
            .hint("wait until that cage has ended, to continue its change")
            .hint("--fresh starts a new change from the real files"),
        _ => message,
    }
}

fn change_error(error: WorkspaceError) -> CliError {
    CliError::from_error(&error)
}

/// A change that this process has locked.
#[derive(Debug)]
pub(crate) struct OpenChange {
    store: Store,
    change: Change,
    origin: ChangeOrigin,
    lock: Lock,
    /// Empty directories of earlier runs.
    emptied: RefCell<Emptied>,
}

#[derive(Debug)]
enum ChangeOrigin {
    /// Left by an earlier run.
    Continued,
    /// The only one of its workspace.
    First,
    /// Started with --fresh, although this one is pending.
    InPlaceOf(Change),
    /// Started because another cage works on this one.
    BesideBusy(Change),
}

/// The content of a change that is removed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ChangeContent {
    Nothing,
    Something,
}

#[derive(Debug)]
pub(crate) struct RunEnd {
    pub(crate) mode: WorkspaceMode,
    /// Whether the command exited with status 0.
    pub(crate) succeeded: bool,
    /// Print nothing, and do not prompt.
    pub(crate) quiet: bool,
}

impl OpenChange {
    pub(crate) fn id(&self) -> String {
        self.change.id().to_string()
    }

    /// Removes a part of what earlier runs have left empty. Returns whether there is more.
    pub(crate) fn remove_emptied(&self) -> bool {
        self.emptied.borrow_mut().step()
    }

    /// Reports what the cage starts with, if that is not only the real files.
    pub(crate) fn announce(&self) {
        match &self.origin {
            ChangeOrigin::Continued => anstream::eprintln!(
                "ironcage: continuing pending change {}; --fresh starts from the real files",
                self.change.id()
            ),
            ChangeOrigin::BesideBusy(first) => anstream::eprintln!(
                "ironcage: another cage works on pending change {}; this one starts change {} from the real files",
                first.id(),
                self.change.id()
            ),
            ChangeOrigin::First | ChangeOrigin::InPlaceOf(_) => {}
        }
    }

    /// Removes an empty change that this run started: the cage did not start.
    pub(crate) fn abandon(self) -> Result<(), CliError> {
        match self.origin {
            ChangeOrigin::Continued => Ok(()),
            _ if !self.change.is_unused() => Ok(()),
            _ => self.remove(ChangeContent::Nothing),
        }
    }

    /// Writes a change that was in memory to disk. `storage` is the cage's storage, and `places` are
    /// its directories there.
    pub(crate) fn write_down<'p>(
        &mut self,
        storage: &OwnedFd,
        places: impl Iterator<Item = (&'p Path, &'static str)>,
    ) -> Result<(), CliError> {
        // Refused on hosts without user namespaces, which cannot start such cages either.
        let _ = take_owners_rights();
        let storage = PathBuf::from(format!("/proc/self/fd/{}", storage.as_raw_fd()));
        let uppers: Vec<(PathBuf, PathBuf)> = places
            .map(|(real, place)| {
                let below = place.trim_start_matches('/');
                (real.to_owned(), storage.join(below).join("upper"))
            })
            .collect();
        self.change.write_down(&uppers).map_err(|error| {
            change_error(error).hint("the change was in the cage's memory, and is lost")
        })?;
        if !self.change.is_unused() {
            self.store
                .make_current(&self.change)
                .map_err(change_error)?;
        }
        Ok(())
    }

    /// Ends the run's use of the change: applies it if that is the mode and the command succeeded;
    /// else keeps it pending and reports it, with a prompt on a terminal.
    pub(crate) fn finish(mut self, cage: &CageId, end: &RunEnd) -> Result<(), CliError> {
        if self.change.is_unused() {
            return self.remove(ChangeContent::Nothing);
        }
        self.change.add_cage(cage).map_err(change_error)?;
        // Refused on hosts without user namespaces; a file that cannot be read there is reported.
        let _ = take_owners_rights();
        self.lock.unshare(&self.change).map_err(change_error)?;
        if !self.change.differs().map_err(change_error)? {
            return self.remove(ChangeContent::Something);
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
        let summary = self.change.summary().map_err(change_error)?;
        // The same as after the last run: the user knows it, and has answered.
        let text = summary.to_string();
        let told = self.change.directory().join(TOLD);
        let largest = u64::try_from(text.len()).unwrap_or(u64::MAX);
        let known = read_text(&told, largest, Links::Refuse).is_ok_and(|known| known == text);
        if known {
            return Ok(());
        }
        // Without the note, the summary is printed again after the next run.
        let _ = std::fs::write(&told, &text);
        if summary.only_aside {
            let aside = self.change.aside(&summary);
            anstream::eprintln!(
                "ironcage: pending change {}: kept for the next run: {aside}; `ironcage apply PATH` copies it to the real tree",
                self.change.id()
            );
            return Ok(());
        }
        let asks = std::io::stdin().is_terminal() && std::io::stderr().is_terminal();
        if asks {
            // What the agent left set must not hide what is asked.
            ironcage_terminal::reclaim_screen();
        }
        anstream::eprintln!("ironcage: pending change {}: {text}", self.change.id());
        if asks {
            return self.ask();
        }
        // Without an ID the commands would use another change, or find none from here.
        let here =
            std::env::current_dir().is_ok_and(|cwd| cwd.starts_with(self.change.workspace()));
        let id = match self.change.beside() {
            None if here => String::new(),
            _ => format!(" {}", self.change.id()),
        };
        anstream::eprintln!(
            "  hint: `ironcage diff{id}` to review, `ironcage apply{id}` to keep it, `ironcage discard{id}` to drop it"
        );
        Ok(())
    }

    fn apply(self, options: &ApplyOptions, quiet: bool) -> Result<(), CliError> {
        let everything = Selection::everything();
        let OpenChange {
            store,
            change,
            lock,
            ..
        } = self;
        let applied = store
            .apply_locked(&change, &lock, &everything, options)
            .map_err(change_error)?;
        if !quiet {
            anstream::eprintln!("ironcage: {applied}");
            if !applied.finished {
                anstream::eprintln!(
                    "  hint: the rest stays pending as {}; `ironcage diff` to review",
                    change.id()
                );
            }
        }
        Ok(())
    }

    /// Applies new commits, however the command ended: the files that belong to them are real
    /// already. Reports only what stays pending or is lost.
    fn commit(self, options: &ApplyOptions, quiet: bool) -> Result<(), CliError> {
        let everything = Selection::everything();
        let applied = self
            .store
            .apply_locked(&self.change, &self.lock, &everything, options)
            .map_err(change_error)?;
        let lost = applied
            .references
            .iter()
            .any(|reference| reference.how == HowMoved::Deleted);
        let to_report = !applied.finished || !applied.flagged.is_empty() || lost;
        if !quiet && to_report {
            anstream::eprintln!("ironcage: in the git directory: {applied}");
        }
        if !quiet && !applied.finished {
            anstream::eprintln!(
                "  hint: it stays pending as {}; `ironcage diff {}` to review",
                self.change.id(),
                self.change.id()
            );
        }
        Ok(())
    }

    /// Prompts the user. No answer keeps the change.
    fn ask(self) -> Result<(), CliError> {
        loop {
            // Input that answered something the agent showed must not answer this.
            ironcage_terminal::drop_typed();
            anstream::eprint!("[a]pply, [d]iff, [k]eep or [x] discard? [k] ");
            let mut answer = String::new();
            let read = std::io::stdin().lock().read_line(&mut answer);
            match (read, answer.trim()) {
                (Ok(0) | Err(_), _) | (_, "" | "k" | "keep") => return Ok(()),
                (_, "a" | "apply") => return self.apply(&ApplyOptions::default(), false),
                (_, "x" | "discard") => return self.remove(ChangeContent::Something),
                (_, "d" | "diff") => {
                    crate::commands::change::diff::show(&self.change, &Selection::everything())?;
                }
                _ => {}
            }
        }
    }

    fn remove(self, found: ChangeContent) -> Result<(), CliError> {
        let OpenChange {
            store,
            change,
            lock,
            origin,
            emptied,
        } = self;
        let removed = match found {
            ChangeContent::Nothing => {
                // In one of an earlier run there may be more than empty directories.
                let mut emptied = emptied.into_inner();
                let begun = !matches!(origin, ChangeOrigin::Continued);
                store.remove_unused(&change, begun.then_some(&mut emptied))
            }
            ChangeContent::Something => store.remove_locked(&change),
        };
        removed.map_err(change_error)?;
        // It went with the change, and this process ends.
        std::mem::forget(lock);
        match origin {
            // The next run continues the earlier change again.
            ChangeOrigin::InPlaceOf(first) if first.directory().is_dir() => {
                store.make_current(&first).map_err(change_error)
            }
            _ => Ok(()),
        }
    }
}
