//! The plan of a scope: the cage's own, for one command beside it.

use crate::{HiddenBy, PathStatus, Plan, ScopeOf, ViewOp, WriteRights, locate};
use ironcage_model::{ASK_SOCKET, Mark, Right, ShellMode};
use ironcage_policy::sensitive;
use std::path::Path;

impl Plan {
    /// The plan by which a scope of this cage is made. It has every layer of the cage's, and no
    /// command: that is executed when its leases are open. What the cage's own supervisor watches
    /// for both is not watched twice.
    pub fn scoped(&self, of: ScopeOf) -> Plan {
        let mut plan = self.clone();
        plan.command.argv.clear();
        plan.command.candidates.clear();
        plan.sticky = true;
        plan.scope = Some(of);
        plan.writable.clear();
        plan.absent.clear();
        // Requests made in a scope would be the cage's.
        let is_socket = |op: &ViewOp| op.target() == Some(Path::new(ASK_SOCKET));
        plan.view.retain(|item| !is_socket(&item.what));
        plan.bounds.time.what.value = None;
        plan.bounds.idle.what.value = None;
        if let Some(network) = &mut plan.network {
            // Both lead to the cage itself: ports to what listens there, sockets through what its
            // supervisor listens at.
            network.publish.clear();
            // Who is in a scope is no agent: what it needs was read before.
            if let Some(models) = &mut network.models {
                models.hosts.clear();
            }
            for socket in std::mem::take(&mut network.sockets) {
                let path = socket.what.path;
                plan.view.retain(
                    |item| !matches!(&item.what, ViewOp::Bind { target, .. } if *target == path),
                );
            }
        }
        plan.update_machine();
        plan
    }

    /// Places of the view that whoever stands beside a cage takes over from it as they are: the
    /// workspace, and every copy-on-write view, which cannot be made a second time; a scope also
    /// the cage's own storage where they share it. None lies in another.
    pub fn shared_places(&self) -> Vec<&Path> {
        self.places_beside(self.scope.is_some() && self.shares_storage())
    }

    /// The same of a scope of this cage.
    pub fn scope_places(&self) -> Vec<&Path> {
        self.places_beside(self.shares_storage())
    }

    fn places_beside(&self, own: bool) -> Vec<&Path> {
        let mut places: Vec<&Path> = Vec::new();
        let all = self.view.iter().filter_map(|item| match &item.what {
            ViewOp::Overlay { target, .. } => Some(target.as_path()),
            ViewOp::Bind { target, .. } if *target == self.workspace => Some(target.as_path()),
            ViewOp::Ephemeral { target, .. } if own => Some(target.as_path()),
            _ => None,
        });
        for place in all {
            if places.iter().any(|known| place.starts_with(known)) {
                continue;
            }
            places.retain(|known| !known.starts_with(place));
            places.push(place);
        }
        places
    }

    /// Copy-on-write views that are read-only where no lease lets them be written: a lease in one
    /// is a part of the same view, and never the real tree.
    pub fn locked_places(&self) -> impl Iterator<Item = &Path> {
        self.view.iter().filter_map(|item| match &item.what {
            ViewOp::Overlay {
                target,
                locked: true,
                ..
            } => Some(target.as_path()),
            _ => None,
        })
    }

    /// Whether a path lies in such a view.
    pub fn is_locked(&self, path: &Path) -> bool {
        self.locked_places().any(|place| path.starts_with(place))
    }

    /// Whether whoever asks may write all of a directory in such a view at once, as far as the
    /// ceiling and the task tell: a command whose writes cannot be read from its text is leased it.
    pub fn writes_at_once(&self, directory: &Path) -> bool {
        let Some(leases) = &self.leases else {
            return false;
        };
        let mut auto = leases.paths.iter().filter(|part| {
            part.what.mark == Mark::Auto
                && part.what.right == Right::Write
                && directory.starts_with(&part.what.path)
        });
        let others = leases.paths.iter().any(|part| {
            let held_back = match part.what.mark {
                Mark::Ask => part.what.right == Right::Write,
                Mark::Deny => true,
                Mark::Auto | Mark::Always => false,
            };
            held_back
                && (directory.starts_with(&part.what.path) || part.what.path.starts_with(directory))
        });
        let judged = leases.task.is_some() || !leases.cedar.is_empty() || !leases.judge.is_empty();
        self.is_locked(directory) && auto.next().is_some() && !others && !judged
    }

    /// Whether scopes of the agent's shell have the cage's own storage too, its home and `/tmp`:
    /// where each command may be in another scope, one finds there what the one before has left.
    pub fn shares_storage(&self) -> bool {
        let leases = self.leases.as_ref();
        leases.is_some_and(|leases| leases.shell == ShellMode::Scoped)
            && self.scope != Some(ScopeOf::Operator)
    }

    /// Whether a path lies in the cage's own storage, as far as scopes share it.
    pub fn is_shared_storage(&self, path: &Path) -> bool {
        self.shares_storage() && matches!(locate(self, path).standing, PathStatus::Ephemeral)
    }

    /// Whether a path of the workspace is read by nobody who did not ask for it, because its name
    /// tells that it holds secrets. It need not be hidden: in a large workspace not every name is
    /// looked at.
    pub fn asks_to_read(&self, path: &Path) -> bool {
        let Some(leases) = &self.leases else {
            return false;
        };
        let named = || path.file_name().and_then(sensitive::hidden).is_some();
        let shown = || leases.shown.iter().any(|shown| path.starts_with(shown));
        let deeper = leases.sensitive_deeper && path.starts_with(&self.workspace);
        let candidate = deeper || self.hides_sensitive(path);
        candidate
            && named()
            && !shown()
            && matches!(
                locate(self, path).hidden_by,
                None | Some(HiddenBy::Sensitive)
            )
    }

    /// Whether a path is hidden because of its name.
    fn hides_sensitive(&self, path: &Path) -> bool {
        let mut ops = self.view.iter().map(|item| &item.what);
        ops.any(|op| {
            matches!(op, ViewOp::Hide { target, by: HiddenBy::Sensitive, .. } if target == path)
        })
    }

    /// Whether Landlock lets something that is mounted on a directory be written: a rule on the
    /// directory itself does not cover it, one above does.
    pub fn lets_write_below(&self, directory: &Path) -> bool {
        !self.landlock
            || self.write_rules.iter().any(|rule| {
                rule.what.rights == WriteRights::Tree
                    && rule.what.path != directory
                    && directory.starts_with(&rule.what.path)
            })
    }

    /// Whether a path lies in a place that a scope takes over, or one lies in it.
    pub fn is_shared(&self, path: &Path) -> bool {
        let places = self.scope_places();
        let mut places = places.iter();
        places.any(|place| path.starts_with(place) || place.starts_with(path))
    }
}

impl ViewOp {
    /// Where an operation makes or mounts something; `None` for those that have a place of their
    /// own.
    pub fn target(&self) -> Option<&Path> {
        match self {
            ViewOp::Directory { target, .. }
            | ViewOp::Symlink { target, .. }
            | ViewOp::File { target, .. }
            | ViewOp::Authorities { target, .. }
            | ViewOp::Cover { target, .. }
            | ViewOp::Ephemeral { target, .. }
            | ViewOp::Bind { target, .. }
            | ViewOp::Supervisor { target, .. }
            | ViewOp::Overlay { target, .. }
            | ViewOp::Pin { target, .. }
            | ViewOp::Hide { target, .. }
            | ViewOp::MaskProc { target, .. }
            | ViewOp::ReadOnlyProc { target } => Some(target),
            ViewOp::Proc | ViewOp::Cgroup | ViewOp::Terminals | ViewOp::Seal => None,
        }
    }
}
