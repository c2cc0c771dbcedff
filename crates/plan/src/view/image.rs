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
/// Where a cage keeps what it mounts over other things, and programs for the agent. An image with such a
/// name would put its own in their place.
const RESERVED: [&str; 2] = [".hidden", ".ironcage"];
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
            if RESERVED.iter().any(|reserved| name == *reserved) {
                self.made.notes.push(format!(
                    "{} of the image is hidden: cages have their own",
                    target.display()
                ));
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
                "passwd" => with_agent(&image.passwd, identity, &self.request.home),
                "group" => with_group(&image.group, identity.gid),
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

/// Whether a line of a list of users or groups has this number.
fn has_id(line: &str, id: u32) -> bool {
    line.split(':').nth(2) == Some(id.to_string().as_str())
}

/// The name of a user in an image's list. It comes from a stranger: one that no name can be is as
/// good as none.
pub(crate) fn name_of(passwd: &str, uid: u32) -> Option<&str> {
    let line = passwd.lines().find(|line| has_id(line, uid))?;
    let name = line.split(':').next()?;
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    (!name.is_empty() && name.len() <= 32 && name.bytes().all(plain)).then_some(name)
}

/// A list of users with the one that the command runs as, whose home is the cage's.
fn with_agent(list: &str, identity: &Identity, home: &Path) -> String {
    let Identity { uid, gid, .. } = identity;
    let home = home.display().to_string();
    let mut found = false;
    let mut text = String::with_capacity(list.len() + 64);
    for line in list.lines() {
        let mut fields: Vec<&str> = line.split(':').collect();
        if has_id(line, *uid) && fields.len() == 7 {
            found = true;
            if let Some(field) = fields.get_mut(5) {
                *field = &home;
            }
        }
        text.push_str(&fields.join(":"));
        text.push('\n');
    }
    if !found {
        text.push_str(&format!("agent:x:{uid}:{gid}:agent:{home}:/bin/sh\n"));
    }
    text
}

/// A list of groups with this one.
fn with_group(list: &str, gid: u32) -> String {
    let mut text = list.trim_end().to_owned();
    if !text.is_empty() {
        text.push('\n');
    }
    if !list.lines().any(|line| has_id(line, gid)) {
        text.push_str(&format!("agent:x:{gid}:\n"));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::IdMap;

    const ROOT: &str = "root:x:0:0:root:/root:/bin/sh\n";

    fn with(list: &str, uid: u32) -> String {
        let identity = Identity {
            uid,
            gid: uid,
            map: IdMap::Own { uid, gid: uid },
        };
        with_agent(list, &identity, Path::new("/home/ann"))
    }

    #[test]
    fn the_user_of_the_cage_is_listed_once_with_its_home() {
        let agent = "agent:x:1000:1000:agent:/home/ann:/bin/sh\n";
        assert_eq!(with(ROOT, 1000), format!("{ROOT}{agent}"));
        assert_eq!(with(&with(ROOT, 1000), 1000), format!("{ROOT}{agent}"));
        assert_eq!(with(ROOT, 0), "root:x:0:0:root:/home/ann:/bin/sh\n");
        assert_eq!(with("", 1000), agent);
        // A line that is too short to be a user's is not the agent's.
        assert_eq!(with("x:y:1000\n", 1000), format!("x:y:1000\n{agent}"));
    }

    #[test]
    fn the_group_of_the_cage_is_listed_once() {
        assert_eq!(with_group("root:x:0:\n", 0), "root:x:0:\n");
        assert_eq!(with_group("root:x:0:\n", 7), "root:x:0:\nagent:x:7:\n");
        assert_eq!(with_group("", 7), "agent:x:7:\n");
    }

    #[test]
    fn a_name_that_is_not_one_does_not_count() {
        assert_eq!(name_of(ROOT, 0), Some("root"));
        for list in ["", "a b:x:0:0", "\x1b[2J:x:0:0", ":x:0:0"] {
            assert_eq!(name_of(list, 0), None, "{list:?}");
        }
    }
}
