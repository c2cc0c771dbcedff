//! Other parts of the view: toolchains, kept state and caches, another root.

use super::{Builder, Grant, HostAccess};
use crate::login::PlannedLogin;
use crate::plan::{Access, HiddenBy, Item, KeptPlace, NodeKind, ViewOp, WriteRights};
use crate::toolchains::{Shape, ToolchainSet};
use crate::{PlanError, persistent_state, workspace};
use ironcage_host::NodeType;
use ironcage_policy::{Listed, Origin, Policy, Sourced, credentials};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// What is seen of a root directory that the user gives.
const ROOT_PARTS: [&str; 12] = [
    "usr", "bin", "sbin", "lib", "lib32", "lib64", "libx32", "etc", "opt", "srv", "nix", "gnu",
];

impl Builder<'_> {
    /// What outlives the run. Ironcage's own directories are in no cage but for these.
    pub(super) fn kept(&mut self, policy: &Policy, toolchains: &ToolchainSet, grants: &[Grant]) {
        let mut given: Vec<PathBuf> = grants.iter().map(|grant| grant.path.clone()).collect();
        given.push(self.request.workspace.clone());
        given.extend(toolchains.parts.iter().map(|part| part.target.clone()));
        let kept = persistent_state::find(policy, self.request, self.files, &given);
        if !kept.home.is_empty() {
            self.made.writable.push(self.request.kept.home.clone());
        }
        if let Some(caches) = &kept.caches {
            self.made.writable.push(caches.place.what.path.clone());
            self.write_rule(
                caches.target.clone(),
                WriteRights::Tree,
                &caches.place.origin,
            );
        }
        let caches = kept.caches.is_some();
        let owner = self.map_owners.then_some(self.caller);
        for mount in kept.home.into_iter().chain(kept.caches) {
            self.parents(&mount.target);
            let KeptPlace { path, kind } = mount.place.what.clone();
            self.push(
                ViewOp::Bind {
                    source: path,
                    target: mount.target,
                    access: Access::Write,
                    kind,
                    owner,
                },
                mount.place.origin.clone(),
            );
            self.made.kept.push(mount.place);
        }
        self.made.variables.extend(kept.variables);
        self.made.notes.extend(kept.notes);
        if caches {
            self.host_caches(policy);
        }
    }

    /// Files of placeholders where agents look for their logins. Where that place outlives the
    /// run, the file that lies there is covered, not changed.
    pub(super) fn logins(&mut self, logins: &[Item<PlannedLogin>]) {
        for login in logins {
            let PlannedLogin {
                target, content, ..
            } = &login.what;
            let kept = self.made.ops.iter().find_map(|op| match &op.what {
                ViewOp::Bind { target: kept, .. } if target.starts_with(kept) => Some(kept.clone()),
                _ => None,
            });
            let Some(below) = kept.and_then(|kept| {
                kept.strip_prefix(&self.request.home).ok()?;
                target.strip_prefix(&self.request.home).ok()
            }) else {
                if let Some(parent) = target.parent() {
                    self.directory(parent, 0o700, true);
                }
                self.push(
                    ViewOp::File {
                        target: target.clone(),
                        content: content.clone(),
                        mode: 0o644,
                    },
                    login.origin.clone(),
                );
                continue;
            };
            self.push(
                ViewOp::File {
                    target: login.what.made_at(),
                    content: content.clone(),
                    mode: 0o644,
                },
                login.origin.clone(),
            );
            self.push(
                ViewOp::Cover {
                    target: target.clone(),
                    with: login.what.made_at(),
                },
                login.origin.clone(),
            );
            self.made.kept.push(Item {
                what: KeptPlace {
                    path: self.request.kept.home.join(below),
                    kind: NodeKind::File,
                },
                origin: login.origin.clone(),
            });
        }
    }

    /// The system from a directory that the user gives: its parts by their names, so that the
    /// cage's own directories stay beside them. What else lies in it is not seen.
    pub(super) fn given_root(&mut self, root: &Path) -> Result<(), PlanError> {
        let origin = Origin::Flag {
            flag: "--root".into(),
        };
        let sourced = Sourced::new(root.to_owned(), origin);
        let root = self.grant(&sourced, HostAccess::Read)?.path;
        let mut found = false;
        for name in ROOT_PARTS {
            let source = root.join(name);
            let target = Path::new("/").join(name);
            match self.files.node(&source).map(|node| node.kind) {
                Some(NodeType::Directory) => {
                    found = true;
                    self.bind_as_is(source, target, NodeKind::Directory, "--root".into());
                }
                Some(NodeType::Symlink) => {
                    if let Ok(to) = self.files.link(&source) {
                        self.push(ViewOp::Symlink { target, to }, "--root");
                    }
                }
                _ => {}
            }
        }
        if found {
            return Ok(());
        }
        Err(PlanError::RefusedPath {
            path: root,
            origin: "--root".into(),
            why: "it has no /usr, /bin, /lib or /etc, so it is not a root directory",
        })
    }

    /// Directories of the agent's home above something that is mounted there are the agent's.
    fn parents(&mut self, target: &Path) {
        let home = self.request.home.clone();
        if !target.starts_with(&home) {
            return;
        }
        for above in workspace::ancestors_between(&home, target) {
            if !self.below_home.contains(&above) {
                self.directory(above.clone(), 0o755, true);
                self.below_home.push(above);
            }
        }
    }

    pub(super) fn toolchains(&mut self, found: ToolchainSet) {
        let mut credentials = found.credentials;
        for part in found.parts {
            self.parents(&part.target);
            let op = match part.shape {
                Shape::Link { to } => ViewOp::Symlink {
                    target: part.target,
                    to,
                },
                Shape::Bound {
                    source,
                    kind,
                    owner,
                } => {
                    credentials.extend(self.credentials_below(&part.target));
                    ViewOp::Bind {
                        source,
                        target: part.target,
                        access: Access::Read,
                        kind,
                        owner,
                    }
                }
            };
            self.push(op, part.origin);
        }
        for (path, why) in credentials {
            self.hide(&path, HiddenBy::Credentials, format!("credentials: {why}"));
        }
        self.made.variables.extend(found.variables);
        self.made.search = found.search;
        self.made.notes.extend(found.notes);
    }

    /// Credentials of the home directory that lie in a part of it. By their names alone: this
    /// is done at every start, and parts hold none where they are where they usually are.
    fn credentials_below(&self, part: &Path) -> Vec<(PathBuf, &'static str)> {
        let home = &self.request.home;
        let Ok(part) = part.strip_prefix(home) else {
            return Vec::new();
        };
        let part = part.as_os_str().as_bytes();
        let below = |entry: &&Listed| {
            let rest = entry.path.as_bytes().strip_prefix(part);
            rest.is_some_and(|rest| rest.starts_with(b"/"))
        };
        credentials::ENTRIES
            .iter()
            .filter(below)
            .map(|entry| (home.join(entry.path), entry.why))
            .collect()
    }
}
