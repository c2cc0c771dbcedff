//! Host paths in the view: the workspace, and those that the policy adds.

use super::{Builder, Grant, HostAccess, NEVER, ViewPlan, overlay};
use crate::plan::{Access, NodeKind, Owner, ViewOp, WriteRights};
use crate::{PlanError, guarded, workspace};
use ironcage_host::NodeType;
use ironcage_policy::{Policy, Sourced, WorkspaceMode};
use std::path::{Path, PathBuf};

impl Builder<'_> {
    /// The workspace and what the policy adds, shallow paths first, so that a deeper one is
    /// mounted over what contains it.
    pub(super) fn grants(
        &mut self,
        policy: &Policy,
        mut grants: Vec<Grant>,
    ) -> Result<(), PlanError> {
        let workspace = self.request.workspace.clone();
        let mode = policy.workspace_mode.value;
        match mode {
            WorkspaceMode::Scratch => {
                workspace::check_place(self.request)?;
                self.directory(workspace.clone(), 0o755, true);
                self.push(
                    ViewOp::Ephemeral {
                        target: workspace.clone(),
                        executable: true,
                    },
                    policy.workspace_mode.origin.to_string(),
                );
                self.write_rule(workspace.clone(), WriteRights::Tree, "workspace");
            }
            WorkspaceMode::Direct
            | WorkspaceMode::ReadOnly
            | WorkspaceMode::Leased
            | WorkspaceMode::Cow
            | WorkspaceMode::Apply => {
                workspace::check(self.request, self.files)?;
                workspace::check_lifted(policy, self.request, self.files)?;
                let origin = format!("workspace, {}", policy.workspace_mode.origin);
                grants.extend(self.git_directory(policy, &origin));
                grants.push(Grant {
                    path: workspace.clone(),
                    way: match mode {
                        WorkspaceMode::Direct => HostAccess::Write,
                        mode if mode.is_copy_on_write() => HostAccess::CopyOnWrite,
                        _ => HostAccess::Read,
                    },
                    origin,
                });
            }
        }
        overlay::drop_contained(&mut grants, &workspace);
        grants.sort_by_key(|grant| grant.path.components().count());
        let layers = grants
            .iter()
            .filter(|grant| grant.way == HostAccess::CopyOnWrite);
        let layers: Vec<PathBuf> = layers.map(|grant| grant.path.clone()).collect();
        for grant in grants {
            match grant.way {
                HostAccess::Read | HostAccess::Write => self.bind_grant(policy, grant, &layers)?,
                HostAccess::CopyOnWrite => self.overlay_grant(grant, policy)?,
            }
        }
        Ok(())
    }

    pub(super) fn collect(&self, policy: &Policy) -> Result<Vec<Grant>, PlanError> {
        // Where the user works on the real files, what is written beside them is real too.
        let write = if policy.workspace_mode.value == WorkspaceMode::Direct {
            HostAccess::Write
        } else {
            HostAccess::CopyOnWrite
        };
        let lists = [
            (&policy.read, HostAccess::Read),
            (&policy.write, write),
            (&policy.write_direct, HostAccess::Write),
        ];
        lists
            .into_iter()
            .flat_map(|(list, way)| list.iter().map(move |path| (path, way)))
            .map(|(path, way)| self.grant(path, way))
            .collect()
    }

    pub(super) fn grant(
        &self,
        path: &Sourced<PathBuf>,
        way: HostAccess,
    ) -> Result<Grant, PlanError> {
        let origin = path.origin.to_string();
        let missing = || PlanError::MissingPath {
            path: path.value.clone(),
            origin: origin.clone(),
        };
        let real = self.files.real(&path.value).map_err(|_| missing())?;
        let refuse = |why| {
            Err(PlanError::RefusedPath {
                path: path.value.clone(),
                origin: origin.clone(),
                why,
            })
        };
        if real != path.value && self.passes_a_link_of_the_agents(&path.value) {
            return refuse(
                "a symbolic link in a directory that agents can write is on its path, and may point anywhere",
            );
        }
        for (tree, why) in NEVER {
            let inside_kernel_tree = tree != "/" && real.starts_with(tree);
            if real == Path::new(tree) || inside_kernel_tree {
                return refuse(why);
            }
        }
        if matches!(
            self.files.node(&real).map(|node| node.kind),
            Some(NodeType::Socket | NodeType::Other)
        ) {
            return refuse("host sockets, pipes and devices cannot be allowed as files");
        }
        let own = &self.request.own.paths;
        if own
            .iter()
            .any(|own| own.starts_with(&real) || real.starts_with(own))
        {
            return refuse("it overlaps Ironcage's own directories, which are never in a cage");
        }
        let homes = guarded::known_homes(self.request);
        if !self.request.i_know
            && let Some(guard) = guarded::why(&homes, &real, way.access())
                .or_else(|| guarded::behind_link(self.files, &homes, &real))
        {
            return Err(PlanError::GuardedPath {
                path: path.value.clone(),
                origin,
                why: guard.why,
                parts_are_free: guard.parts_are_free,
            });
        }
        Ok(Grant {
            path: real,
            way,
            origin,
        })
    }

    /// Whether a path goes through a link that an agent may have made: one that lies in the
    /// workspace or in another directory that is given for writing.
    pub(super) fn passes_a_link_of_the_agents(&self, path: &Path) -> bool {
        path.ancestors().any(|part| {
            let is_link = self
                .files
                .node(part)
                .is_some_and(|node| node.kind == NodeType::Symlink);
            let place = part.parent().filter(|_| is_link);
            place.is_some_and(|place| {
                let place = self.files.real(place).unwrap_or_else(|_| place.to_owned());
                place.starts_with(&self.request.workspace)
                    || self.agents.iter().any(|tree| place.starts_with(tree))
            })
        })
    }

    pub(super) fn bind_grant(
        &mut self,
        policy: &Policy,
        grant: Grant,
        layers: &[PathBuf],
    ) -> Result<(), PlanError> {
        let Some(node) = self.files.node(&grant.path) else {
            return Err(PlanError::MissingPath {
                path: grant.path,
                origin: grant.origin,
            });
        };
        let kind = if node.kind == NodeType::Directory {
            NodeKind::Directory
        } else {
            NodeKind::File
        };
        let owner = self.map_owners.then_some(Owner::one(node.uid, node.gid));
        let access = grant.way.access();
        self.granted.push(grant.path.clone());
        self.push(
            ViewOp::Bind {
                source: grant.path.clone(),
                target: grant.path.clone(),
                access,
                kind,
                owner,
            },
            grant.origin.clone(),
        );
        if access == Access::Write {
            let rights = match kind {
                NodeKind::Directory => WriteRights::Tree,
                NodeKind::File => WriteRights::Existing,
            };
            self.write_rule(grant.path.clone(), rights, &grant.origin);
            self.made.writable.push(grant.path.clone());
            self.renameable.push(grant.path.clone());
            if kind == NodeKind::Directory {
                let lifted = policy.unprotect.iter();
                let lifted: Vec<PathBuf> = lifted
                    .map(|path| self.request.workspace.join(&path.value))
                    .collect();
                let below = layers.iter().filter(|layer| layer.starts_with(&grant.path));
                let layers: Vec<PathBuf> = below.cloned().collect();
                let ViewPlan { notes, absent, .. } = &mut self.made;
                let places = &self.request.git_places;
                let trusted = workspace::trusted_in(&grant.path, places, self.files, notes);
                let mut ops = workspace::protect(
                    (&lifted, &layers),
                    (&grant.path, &trusted),
                    self.files,
                    notes,
                    absent,
                );
                for op in &mut ops {
                    if let ViewOp::Bind { owner: of, .. } = &mut op.what {
                        *of = owner;
                    }
                }
                self.made.ops.append(&mut ops);
            }
        }
        Ok(())
    }
}
