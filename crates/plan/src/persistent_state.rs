//! State that outlives a run: paths in the agent's home, and tool caches.
//!
//! Both are in Ironcage's own directories, separate for each workspace. This module decides what
//! is mounted where; `state` creates the directories before the cage starts.

use crate::Request;
use crate::plan::{Item, KeptPlace, NodeKind, Variable};
use ironcage_host::{HostFiles, NodeType};
use ironcage_policy::caches::{self, kept_files};
use ironcage_policy::{Policy, Sourced};
use std::ffi::OsString;
use std::path::{Path, PathBuf};

/// Where the caches are in the cage: outside of the home, so that no path of it that is kept
/// or granted can lie over them.
pub(crate) const CACHES: &str = "/var/cache/cage";

/// One directory or file to be mounted.
#[derive(Debug)]
pub(crate) struct Mount {
    pub(crate) place: Item<KeptPlace>,
    pub(crate) target: PathBuf,
}

/// What is kept in one run.
#[derive(Debug, Default)]
pub(crate) struct PersistentState {
    pub(crate) home: Vec<Mount>,
    pub(crate) caches: Option<Mount>,
    pub(crate) variables: Vec<Item<Variable>>,
    pub(crate) notes: Vec<String>,
}

/// Decides what is kept. `given` are the paths that are mounted for other reasons.
pub(crate) fn find(
    policy: &Policy,
    request: &Request,
    files: &dyn HostFiles,
    given: &[PathBuf],
) -> PersistentState {
    let mut kept = PersistentState::default();
    keep_home(policy, request, files, given, &mut kept);
    keep_caches(policy, request, given, &mut kept);
    kept
}

fn keep_home(
    policy: &Policy,
    request: &Request,
    files: &dyn HostFiles,
    given: &[PathBuf],
    kept: &mut PersistentState,
) {
    if policy.keep.is_empty() {
        return;
    }
    let home = &request.home;
    if given.iter().any(|path| home.starts_with(path)) {
        kept.notes.push(
            "nothing in the home directory is kept: the cage has the real home, or a directory above it"
                .into(),
        );
        return;
    }
    let mut wanted: Vec<(PathBuf, NodeKind, String)> = Vec::new();
    for path in &policy.keep {
        let origin = format!("state, {}", path.origin);
        if let Some(file) = kept_files::find(&path.value) {
            kept.variables.push(Item {
                what: Variable {
                    name: file.variable.into(),
                    value: home.join(file.value).into(),
                },
                origin: format!("state: {}", file.why),
            });
            let directory = Path::new(file.inside).parent().unwrap_or(Path::new(""));
            wanted.push((directory.to_owned(), NodeKind::Directory, origin));
        } else {
            // What it is on the host, or was in an earlier run, it is here; else a directory.
            let known = [&request.kept.home, home]
                .into_iter()
                .find_map(|place| files.node(&place.join(&path.value)));
            let kind = match known.map(|node| node.kind) {
                Some(NodeType::File) => NodeKind::File,
                _ => NodeKind::Directory,
            };
            wanted.push((path.value.clone(), kind, origin));
        }
    }
    wanted.sort_by_key(|(path, ..)| path.components().count());
    for (path, kind, origin) in wanted {
        let target = home.join(&path);
        let hidden = |hidden: &Sourced<PathBuf>| target.starts_with(&hidden.value);
        if policy.hide.iter().any(hidden) {
            continue;
        }
        if kept
            .home
            .iter()
            .any(|mount| target.starts_with(&mount.target))
        {
            continue;
        }
        // A mount below it would need a place in what is kept, and one above covers it.
        if let Some(other) = given
            .iter()
            .find(|other| other.starts_with(&target) || target.starts_with(other))
        {
            kept.notes.push(format!(
                "{} is not kept: the cage has the real {}",
                target.display(),
                other.display()
            ));
            continue;
        }
        kept.home.push(Mount {
            place: Item {
                what: KeptPlace {
                    path: request.kept.home.join(&path),
                    kind,
                },
                origin,
            },
            target,
        });
    }
}

fn keep_caches(policy: &Policy, request: &Request, given: &[PathBuf], kept: &mut PersistentState) {
    let Some(first) = policy.caches.first() else {
        return;
    };
    let target = PathBuf::from(CACHES);
    if given
        .iter()
        .any(|path| target.starts_with(path) || path.starts_with(&target))
    {
        kept.notes
            .push(format!("no cache is kept: the cage has the real {CACHES}"));
        return;
    }
    for name in &policy.caches {
        for (variable, place) in caches::find(&name.value).map_or(&[][..], |cache| cache.set) {
            kept.variables.push(Item {
                what: Variable {
                    name: OsString::from(variable),
                    value: target.join(place).into(),
                },
                origin: format!("cache {}, {}", name.value, name.origin),
            });
        }
    }
    kept.caches = Some(Mount {
        place: Item {
            what: KeptPlace {
                path: request.kept.caches.clone(),
                kind: NodeKind::Directory,
            },
            origin: format!("caches, {}", first.origin),
        },
        target,
    });
}
