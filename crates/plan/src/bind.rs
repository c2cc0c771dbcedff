//! Binding: the values that exist only when the cage starts take the place of the plan's symbols.
//!
//! [`Plan::bind`] is the only way to a [`BoundPlan`], and nothing can edit one. A backend starts a
//! cage from a `BoundPlan` alone, so what PID 1 carries out is what `ironcage plan` printed and
//! the audit log has the digest of, with these values filled in and nothing else changed.

use crate::plan::{Access, Item, NodeKind, Plan, SupervisorFile, ViewOp};
use ironcage_model::CageId;
use std::borrow::Cow;
use std::ops::Deref;
use std::path::{Path, PathBuf};

/// Where a file of the supervisor's is, for one target of the view.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileBinding {
    /// Its path inside the cage, as planned.
    pub target: PathBuf,
    /// Its path on the host.
    pub source: PathBuf,
}

/// Where a change that was planned as [`CHANGE`](crate::CHANGE) is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChangeBinding {
    /// Its directory, as planned.
    pub planned: PathBuf,
    /// Its directory.
    pub real: PathBuf,
}

/// The values that a plan is bound to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Bindings<'a> {
    /// The cage's id: it replaces [`CAGE`](crate::CAGE) in paths.
    pub cage: &'a CageId,
    /// The processors that the cage has for itself; empty where the plan reserves none, or where
    /// they are bound already, as in a scope's plan.
    pub processors: &'a [u32],
    /// Where the change is, if it was made for this run.
    pub change: Option<&'a ChangeBinding>,
    /// One for each [`ViewOp::Supervisor`].
    pub files: Vec<FileBinding>,
}

/// Why a plan could not be bound.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BindError {
    /// A symbol of the plan has no value.
    #[error("cannot bind the plan: no file for {}", target.display())]
    MissingFile {
        /// The target of the operation.
        target: PathBuf,
    },
    /// A value belongs to no symbol: it would have been left out in silence.
    #[error("cannot bind the plan: nothing is planned at {}", target.display())]
    UnplannedFile {
        /// The target of the value.
        target: PathBuf,
    },
    /// The reserved processors are not as many as planned.
    #[error("cannot bind the plan: {planned} processors are planned, and {bound} were reserved")]
    Processors {
        /// How many the plan wants at least.
        planned: u32,
        /// How many there are.
        bound: usize,
    },
}

/// A plan with every value of its run. It cannot be changed: it derefs to a [`Plan`] that can
/// only be read.
#[derive(Debug, Clone)]
pub struct BoundPlan<'a> {
    source: &'a Plan,
    bound: Cow<'a, Plan>,
}

impl<'a> BoundPlan<'a> {
    /// Of a plan that came in two parts, which were bound before they were separated.
    pub(crate) fn of_parts(source: &'a Plan, bound: Plan) -> BoundPlan<'a> {
        BoundPlan {
            source,
            bound: Cow::Owned(bound),
        }
    }

    /// The plan that this one was bound from: what `ironcage plan` prints.
    pub fn source(&self) -> &Plan {
        self.source
    }

    /// The digest of the plan that this one was bound from.
    pub fn digest(&self) -> String {
        self.source.digest()
    }
}

impl Deref for BoundPlan<'_> {
    type Target = Plan;

    fn deref(&self) -> &Plan {
        &self.bound
    }
}

impl Plan {
    /// Binds the plan to the values of one run.
    pub fn bind(&self, bindings: Bindings<'_>) -> Result<BoundPlan<'_>, BindError> {
        let mut bound = Cow::Borrowed(self);
        self.bind_scratch(bindings.cage, &mut bound);
        if let Some(hardening) = &self.hardening
            && hardening.what.processors.is_empty()
        {
            if bindings.processors.len() < hardening.what.wanted as usize {
                return Err(BindError::Processors {
                    planned: hardening.what.wanted,
                    bound: bindings.processors.len(),
                });
            }
            if let Some(hardening) = &mut bound.to_mut().hardening {
                hardening.what.processors = bindings.processors.to_vec();
            }
        }
        if let Some(change) = bindings.change {
            bind_change(change, bound.to_mut());
        }
        self.bind_files(bindings.files, &mut bound)?;
        Ok(BoundPlan {
            source: self,
            bound,
        })
    }

    /// The targets of the operations that need a [`FileBinding`], with what each is.
    pub fn supervisor_files(&self) -> impl Iterator<Item = (SupervisorFile, &Path)> {
        self.view.iter().filter_map(|item| match &item.what {
            ViewOp::Supervisor { file, target } => Some((*file, target.as_path())),
            _ => None,
        })
    }

    fn bind_files(
        &self,
        mut files: Vec<FileBinding>,
        bound: &mut Cow<'_, Plan>,
    ) -> Result<(), BindError> {
        for (index, item) in self.view.iter().enumerate() {
            let ViewOp::Supervisor { target, .. } = &item.what else {
                continue;
            };
            let at = files.iter().position(|file| file.target == *target);
            let Some(at) = at else {
                return Err(BindError::MissingFile {
                    target: target.clone(),
                });
            };
            if let Some(item) = bound.to_mut().view.get_mut(index) {
                item.what = ViewOp::Bind {
                    source: files.remove(at).source,
                    target: target.clone(),
                    access: Access::Read,
                    kind: NodeKind::File,
                    owner: None,
                };
            }
        }
        match files.pop() {
            Some(FileBinding { target, .. }) => Err(BindError::UnplannedFile { target }),
            None => Ok(()),
        }
    }

    /// Puts the cage's id into every path below the directory of its own.
    fn bind_scratch(&self, id: &CageId, bound: &mut Cow<'_, Plan>) {
        let Some(planned) = &self.scratch else {
            return;
        };
        let plan = bound.to_mut();
        let own = planned
            .path
            .with_file_name(format!("ironcage-{}", id.as_str()));
        let below_own = |path: &Path| match path.strip_prefix(&planned.path) {
            Ok(rest) if rest.as_os_str().is_empty() => Some(own.clone()),
            Ok(rest) => Some(own.join(rest)),
            Err(_) => None,
        };
        for item in &mut plan.command.env {
            if let Some(path) = below_own(Path::new(&item.what.value)) {
                item.what.value = path.into();
            }
        }
        for item in &mut plan.access_rules {
            if let Some(path) = below_own(&item.what.path) {
                item.what.path = path;
            }
        }
        if let Some(scratch) = &mut plan.scratch {
            scratch.path = own;
        }
    }

    /// Adds operations at the end of the view's own ones, before it is sealed.
    pub fn add_to_view(&mut self, ops: impl IntoIterator<Item = Item<ViewOp>>) {
        before_seal(&mut self.view, ops);
    }
}

fn bind_change(change: &ChangeBinding, plan: &mut Plan) {
    let bind = |path: &mut PathBuf| {
        if let Ok(rest) = path.strip_prefix(&change.planned) {
            *path = change.real.join(rest);
        }
    };
    for item in &mut plan.view {
        if let ViewOp::Overlay { upper, work, .. } = &mut item.what {
            bind(upper);
            bind(work);
        }
    }
    plan.writable.iter_mut().for_each(bind);
}

/// Inserts operations before the view is sealed.
pub(crate) fn before_seal(
    view: &mut Vec<Item<ViewOp>>,
    ops: impl IntoIterator<Item = Item<ViewOp>>,
) {
    let seal = view.iter().position(|op| matches!(op.what, ViewOp::Seal));
    let place = seal.unwrap_or(view.len());
    view.splice(place..place, ops);
}
