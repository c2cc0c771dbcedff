//! Copy-on-write views: the workspace, its git directory and other writable paths; and when they
//! are not possible.

use super::{Builder, Grant, HostAccess};
use crate::plan::{MEMORY, Overlaid, Owner, ViewOp, WriteRights};
use crate::{NoOverlay, PlanError};
use ironcage_host::{Kernel, NodeType};
use ironcage_model::Isolation;
use ironcage_policy::{Policy, WorkspaceMode};
use std::path::{Path, PathBuf};

/// The first kernel whose overlayfs can be mounted in a user namespace and keeps its marks in
/// extended attributes that need no privilege.
const LEAST_KERNEL: Kernel = Kernel {
    major: 5,
    minor: 11,
};
/// The first whose overlayfs takes layers with mapped owners, which root's cages need.
const LEAST_KERNEL_FOR_ROOT: Kernel = Kernel {
    major: 5,
    minor: 19,
};

/// Where a repository keeps its own.
pub(super) const OWN_GIT: &str = ".git";

impl Builder<'_> {
    /// The git directory, where it is a layer of its own: that of a worktree, which lies
    /// elsewhere, and in a workspace of real files its own. Never the real one: of that an agent
    /// could change hooks and settings that the host runs.
    pub(super) fn git_directory(&mut self, policy: &Policy, origin: &str) -> Option<Grant> {
        let mode = policy.workspace_mode.value;
        let path = match (mode, &self.request.git_directory) {
            (mode, elsewhere) if mode.is_copy_on_write() => elsewhere.clone()?,
            (WorkspaceMode::Direct, elsewhere) => {
                self.direct_git_directory(policy, elsewhere.as_deref())?
            }
            _ => return None,
        };
        Some(Grant {
            path,
            way: HostAccess::CopyOnWrite,
            origin: format!("git directory of the {origin}"),
        })
    }

    /// The git directory of a workspace of real files. Where it cannot be a layer it stays as
    /// the list of protected paths says, and that is told.
    fn direct_git_directory(
        &mut self,
        policy: &Policy,
        elsewhere: Option<&Path>,
    ) -> Option<PathBuf> {
        let own = self.request.workspace.join(OWN_GIT);
        let lifted = policy.unprotect.iter();
        let mut lifted = lifted.map(|path| self.request.workspace.join(&path.value));
        // Without mounts there are no layers; and the user may have asked for the real one.
        if policy.isolation.value == Isolation::Landlock || lifted.any(|path| path == own) {
            return None;
        }
        let path = elsewhere.map_or(own, Path::to_owned);
        let node = self.files.node(&path)?;
        if node.kind != NodeType::Directory {
            return None;
        }
        let owner = Owner::one(node.uid, node.gid);
        match self.no_overlay(&path, node.kind, owner) {
            None => Some(path),
            Some(why) => {
                let text = format!(
                    "commits will fail: {} has no copy-on-write layer, because {why}",
                    path.display()
                );
                self.made.notes.push(text);
                None
            }
        }
    }

    pub(super) fn overlay_grant(&mut self, grant: Grant, policy: &Policy) -> Result<(), PlanError> {
        let Some(node) = self.files.node(&grant.path) else {
            return Err(PlanError::MissingPath {
                path: grant.path,
                origin: grant.origin,
            });
        };
        let owner = Owner::one(node.uid, node.gid);
        if let Some(why) = self.no_overlay(&grant.path, node.kind, owner) {
            return Err(PlanError::CopyOnWrite {
                path: grant.path,
                why,
            });
        }
        let layer = self
            .request
            .change
            .layer(&grant.path, &self.request.workspace);
        let of = if grant.path == self.request.workspace {
            Overlaid::Workspace
        } else if Some(&grant.path) == self.request.git_directory.as_ref()
            || grant.path == self.request.workspace.join(OWN_GIT)
        {
            Overlaid::Git
        } else {
            Overlaid::Granted
        };
        self.write_rule(grant.path.clone(), WriteRights::Tree, &grant.origin);
        let memory = match policy.in_memory.value {
            false => None,
            true => Some(self.memory(&grant)?),
        };
        if memory.is_none() {
            self.made.writable.push(layer.upper.clone());
        }
        self.granted.push(grant.path.clone());
        let leased = policy.workspace_mode.value == WorkspaceMode::Leased;
        self.push(
            ViewOp::Overlay {
                locked: leased && matches!(of, Overlaid::Workspace | Overlaid::Git),
                of,
                lower: grant.path.clone(),
                target: grant.path,
                upper: layer.upper,
                work: layer.work,
                memory,
                owner: self.map_owners.then_some(owner),
            },
            grant.origin,
        );
        Ok(())
    }

    /// The next free place for a change in memory.
    fn memory(&self, grant: &Grant) -> Result<&'static str, PlanError> {
        let taken = self.made.ops.iter().filter(|item| {
            matches!(
                item.what,
                ViewOp::Overlay {
                    memory: Some(_),
                    ..
                }
            )
        });
        MEMORY
            .get(taken.count())
            .copied()
            .ok_or_else(|| PlanError::CopyOnWrite {
                path: grant.path.clone(),
                why: NoOverlay::TooManyInMemory(MEMORY.len()),
            })
    }

    /// Why overlayfs cannot serve for a directory, as far as that can be known beforehand.
    pub(super) fn no_overlay(
        &self,
        path: &Path,
        kind: NodeType,
        owner: Owner,
    ) -> Option<NoOverlay> {
        if kind != NodeType::Directory {
            return Some(NoOverlay::SingleFile);
        }
        let least = if self.map_owners {
            LEAST_KERNEL_FOR_ROOT
        } else {
            LEAST_KERNEL
        };
        if self.kernel < least {
            let kernel = self.kernel;
            return Some(NoOverlay::Kernel { least, kernel });
        }
        let change = &self.request.change.directory;
        if change.starts_with(path) {
            let change = change.clone();
            return Some(NoOverlay::ChangeBelow { change });
        }
        if !self.map_owners && owner.uid != self.caller.uid {
            return Some(NoOverlay::OtherUser(owner.uid));
        }
        if !self.map_owners && owner.gid != self.caller.gid {
            let (gid, own) = (owner.gid, self.caller.gid);
            return Some(NoOverlay::OtherGroup { gid, own });
        }
        let below = self.files.mounts_below(path);
        below.first().cloned().map(NoOverlay::MountBelow)
    }
}

/// Takes out what another copy-on-write grant contains already. The workspace stays a layer of
/// its own: its change is what the user is shown.
pub(super) fn drop_contained(grants: &mut Vec<Grant>, workspace: &Path) {
    let copied = |grant: &Grant| grant.way == HostAccess::CopyOnWrite;
    let mut trees: Vec<PathBuf> = Vec::new();
    grants.sort_by_key(|grant| grant.path.components().count());
    grants.retain(|grant| {
        let contained = trees.iter().any(|tree| grant.path.starts_with(tree));
        let keep = !copied(grant) || !contained || grant.path == workspace;
        if copied(grant) && keep {
            trees.push(grant.path.clone());
        }
        keep
    });
    // Named with -w too, it would be there twice.
    let mut seen = false;
    grants.retain(|grant| {
        let again = copied(grant) && grant.path == workspace && seen;
        seen |= copied(grant) && grant.path == workspace;
        !again
    });
}
