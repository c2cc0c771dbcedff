//! Hidden and protected paths: credentials and other hidden paths, the active policy, which must
//! not be written, and the mounts that keep them from being moved.

use super::Builder;
use crate::plan::{Access, HiddenBy, NodeKind, ViewOp};
use crate::{PlanError, guarded, workspace};
use ironcage_host::NodeType;
use ironcage_policy::guarded as listed;
use ironcage_policy::{Policy, credentials};
use std::path::{Path, PathBuf};

impl Builder<'_> {
    /// What must not be seen in what is: credentials, Ironcage's own, and what the policy
    /// hides. Only where something granted contains it; a granted path itself was asked for
    /// by name and with `--i-know`.
    pub(super) fn hidden(&mut self, policy: &Policy) -> Result<(), PlanError> {
        let granted = std::mem::take(&mut self.granted);
        let contains = |tree: &PathBuf, path: &Path| path.starts_with(tree) && path != tree;
        let known = guarded::known_homes(self.request);
        let mut homes: Vec<PathBuf> = granted
            .iter()
            .flat_map(|tree| guarded::homes(&known, tree))
            .collect();
        homes.sort();
        homes.dedup();
        for home in &homes {
            let near_home = |tree: &&PathBuf| tree.starts_with(home) || home.starts_with(tree);
            if !granted.iter().any(|tree| near_home(&tree)) {
                continue;
            }
            for entry in credentials::ENTRIES {
                let named = home.join(entry.path);
                // Where it is a link, what it leads to is the secret.
                let path = match self.files.node(&named) {
                    None => continue,
                    Some(node) if node.kind == NodeType::Symlink => match self.files.real(&named) {
                        Ok(real) => real,
                        Err(_) => continue,
                    },
                    Some(_) => named,
                };
                if granted.iter().any(|tree| contains(tree, &path)) {
                    let origin = format!("credentials: {}", entry.why);
                    self.hide(&path, HiddenBy::Credentials, origin);
                }
            }
        }
        for entry in listed::SECRETS {
            let path = Path::new(entry.path);
            if granted.iter().any(|tree| contains(tree, path)) {
                let origin = format!("secret of the system: {}", entry.why);
                self.hide(path, HiddenBy::SystemSecret, origin);
            }
        }
        for own in &self.request.own.paths {
            if granted.iter().any(|tree| contains(tree, own)) {
                let origin = "Ironcage's own directories are never in a cage";
                self.hide(own, HiddenBy::Ironcage, origin.into());
            }
        }
        for path in &policy.hide {
            let real = self
                .files
                .real(&path.value)
                .unwrap_or_else(|_| path.value.clone());
            let visible = self.made.ops.iter().any(|item| {
                let mounted = item.what.from_host();
                mounted.is_some_and(|(target, _)| real.starts_with(target))
            });
            let origin = path.origin.to_string();
            if visible {
                self.hide(&real, HiddenBy::Policy, origin);
                continue;
            }
            // A directory above things in the view: each of them is hidden.
            let below: Vec<(PathBuf, NodeKind)> = self
                .made
                .ops
                .iter()
                .filter_map(|item| item.what.from_host())
                .filter(|(target, _)| target.starts_with(&real))
                .map(|(target, kind)| (target.to_owned(), kind))
                .collect();
            if below.is_empty() {
                let text = format!(
                    "{} is not visible in the cage, so it does not need to be hidden",
                    real.display()
                );
                self.made.notes.push(text);
            }
            for (target, kind) in below {
                let by = HiddenBy::Policy;
                self.push(ViewOp::Hide { target, kind, by }, origin.clone());
            }
        }
        self.hide_matching(policy, &granted)?;
        self.hide_sensitive(policy, &granted);
        Ok(())
    }

    pub(super) fn hide(&mut self, path: &Path, by: HiddenBy, origin: String) {
        let kind = match self.files.node(path).map(|node| node.kind) {
            Some(NodeType::Directory) => NodeKind::Directory,
            Some(NodeType::File | NodeType::Socket | NodeType::Other) => NodeKind::File,
            Some(NodeType::Symlink) => {
                self.made.notes.push(format!(
                    "{} is a symbolic link and cannot be hidden itself",
                    path.display()
                ));
                return;
            }
            None => return,
        };
        self.pin_ancestors(path);
        self.push(
            ViewOp::Hide {
                target: path.to_owned(),
                kind,
                by,
            },
            origin,
        );
    }

    /// Keeps a place where it is: a directory above it that the agent could rename would take
    /// what is mounted there along, and the place would be free in the next run.
    pub(super) fn pin_ancestors(&mut self, path: &Path) {
        let renameable = self.renameable.iter();
        let Some(tree) = renameable.filter(|tree| path.starts_with(tree)).max() else {
            return;
        };
        for ancestor in workspace::ancestors_between(tree, path) {
            let pinned = self.made.ops.iter().any(
                |item| matches!(&item.what, ViewOp::Pin { target, .. } if *target == ancestor),
            );
            if !pinned {
                self.push(
                    ViewOp::Pin {
                        target: ancestor,
                        access: Access::Write,
                    },
                    format!("keeps {} from being moved", path.display()),
                );
            }
        }
    }

    /// The documents of the policy in force: the agent must not write its own next policy.
    pub(super) fn policy_documents(&mut self) {
        for document in &self.request.policy_documents {
            let writable = self
                .made
                .writable
                .iter()
                .any(|tree| document.starts_with(tree));
            let protected = self.made.ops.iter().any(|item| {
                matches!(&item.what, ViewOp::Pin { target, access: Access::Read }
                    if document.starts_with(target))
            });
            if writable && !protected && self.files.node(document).is_some() {
                self.pin_ancestors(document);
                self.push(
                    ViewOp::Pin {
                        target: document.clone(),
                        access: Access::Read,
                    },
                    "protected: the active policy",
                );
            }
        }
    }
}
