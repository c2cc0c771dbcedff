//! The system from an image: what lies at its top, and files in `/etc` of the cage's own.

use super::Builder;
use crate::PlanError;
use crate::etc;
use crate::network::Network;
use crate::plan::{Identity, Item, NodeKind, Overlaid, Owner, Variable, ViewOp, WriteRights};
use crate::request::ImageRoot;
use crate::signing::Signing;
use ironcage_host::NodeType;
use ironcage_policy::Policy;
use std::path::{Path, PathBuf};

/// Directories that every cage has of its own.
const OWN: [&str; 5] = ["dev", "proc", "run", "sys", "tmp"];
/// Files in `/etc` that are covered. The store sees to it that each is there.
const COVERED: [&str; 5] = ["passwd", "group", "hosts", "hostname", "resolv.conf"];
/// Those that root inside changes itself.
const MANAGED: [&str; 3] = ["passwd", "group", "hostname"];
/// Where git finds the user's harmless settings.
const GIT: &str = "/run/ironcage/gitconfig";

impl Builder<'_> {
    /// The whole image, read-only or copy-on-write, but for directories that lead to the agent's home or workspace:
    /// those are the cage's.
    pub(super) fn image(
        &mut self,
        image: &ImageRoot,
        policy: &Policy,
        made_of: (&Identity, Option<&Network>, Option<&Signing>),
    ) -> Result<(), PlanError> {
        let (identity, _, _) = made_of;
        let origin = format!("image {}", image.name);
        let missing = || PlanError::MissingPath {
            path: image.root.clone(),
            origin: origin.clone(),
        };
        let mut entries = self.files.list(&image.root).map_err(|_| missing())?;
        entries.sort_by(|(a, _), (b, _)| a.cmp(b));
        for (name, kind) in entries {
            let target = Path::new("/").join(&name);
            if OWN.iter().any(|own| name == *own) {
                continue;
            }
            let request = self.request;
            let lead = [&request.home, &request.workspace, &request.cwd];
            if lead.into_iter().any(|path| path.starts_with(&target)) {
                self.made.notes.push(format!(
                    "{} of the image is hidden: your home directory or workspace lies in it",
                    target.display()
                ));
                continue;
            }
            let source = image.root.join(&name);
            match kind {
                NodeType::Directory => match &image.layers {
                    None => self.bind_as_is(source, target, NodeKind::Directory, origin.clone()),
                    Some(layers) => {
                        self.writable_directory(source, target, &layers.join(&name), &origin)?;
                    }
                },
                NodeType::Symlink => {
                    if let Ok(to) = self.files.link(&source) {
                        self.push(ViewOp::Symlink { target, to }, origin.clone());
                    }
                }
                _ => {}
            }
        }
        // Root of a system that can be written manages its users and its name.
        let own = image.layers.is_some() && identity.uid == 0;
        let covered = COVERED.into_iter();
        for name in covered.filter(|name| !(own && MANAGED.contains(name))) {
            let content = match name {
                "passwd" => with_agent(&image.passwd, identity, || {
                    let home = self.request.home.display();
                    format!("agent:x:{0}:{0}:agent:{home}:/bin/sh", identity.uid)
                }),
                "group" => with_agent(&image.group, identity, || {
                    format!("agent:x:{}:", identity.uid)
                }),
                other => {
                    let made = etc::content(other, made_of, policy, self.request);
                    made.unwrap_or_default()
                }
            };
            let with = Path::new("/.hidden/image").join(name);
            let file = ViewOp::File {
                target: with.clone(),
                content,
                mode: 0o644,
            };
            self.push(file, origin.clone());
            let target = Path::new("/etc").join(name);
            self.push(ViewOp::Cover { target, with }, origin.clone());
        }
        let git = etc::content("gitconfig", made_of, policy, self.request);
        self.push(
            ViewOp::File {
                target: GIT.into(),
                content: git.unwrap_or_default(),
                mode: 0o644,
            },
            origin.clone(),
        );
        self.made.variables.push(Item {
            what: Variable {
                name: "GIT_CONFIG_SYSTEM".into(),
                value: GIT.into(),
            },
            origin,
        });
        Ok(())
    }
}

impl Builder<'_> {
    /// A directory at the top of an image, copy-on-write. Its layer is not a change of the user's
    /// files: nothing of it is ever applied.
    fn writable_directory(
        &mut self,
        lower: PathBuf,
        target: PathBuf,
        layer: &Path,
        origin: &str,
    ) -> Result<(), PlanError> {
        let Some(node) = self.files.node(&lower) else {
            return Err(PlanError::MissingPath {
                path: lower,
                origin: origin.to_owned(),
            });
        };
        let owner = Owner {
            // Root of a system has its files as they are on disk: those of its other users, too.
            all: self.root_inside && node.uid == 0,
            ..Owner::one(node.uid, node.gid)
        };
        if let Some(why) = self.no_overlay(&lower, node.kind, owner) {
            return Err(PlanError::CopyOnWrite { path: lower, why });
        }
        let (upper, work) = (layer.join("upper"), layer.join("work"));
        self.write_rule(target.clone(), WriteRights::Tree, origin);
        self.made.writable.push(upper.clone());
        let op = ViewOp::Overlay {
            of: Overlaid::System,
            lower,
            target,
            upper,
            work,
            locked: false,
            memory: None,
            owner: self.map_owners.then_some(owner),
        };
        self.push(op, origin.to_owned());
        Ok(())
    }
}

/// A list of users or groups with the agent in it, unless its number is there already.
fn with_agent(list: &str, identity: &Identity, agent: impl FnOnce() -> String) -> String {
    let number = identity.uid.to_string();
    let known = |line: &str| line.split(':').nth(2) == Some(number.as_str());
    let mut text = list.trim_end().to_owned();
    if !text.lines().any(known) {
        if !text.is_empty() {
            text.push('\n');
        }
        text.push_str(&agent());
    }
    text.push('\n');
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::IdMap;

    #[test]
    fn the_agent_is_added_once() {
        let identity = |uid| Identity {
            uid,
            gid: uid,
            map: IdMap::Own { uid, gid: uid },
        };
        let list = "root:x:0:0:root:/root:/bin/sh\n";
        let added = with_agent(list, &identity(1000), || "agent:x:1000:1000".into());
        assert_eq!(added, format!("{list}agent:x:1000:1000\n"));
        let same = with_agent(list, &identity(0), || "agent:x:0:0".into());
        assert_eq!(same, list);
        assert_eq!(
            with_agent("", &identity(7), || "agent:x:7:7".into()),
            "agent:x:7:7\n"
        );
    }
}
