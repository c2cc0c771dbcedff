//! Which directory can be the workspace, and which of its paths are protected.

use crate::plan::{Access, Item, ViewOp};
use crate::{GitPlace, PlanError, Request};
use ironcage_host::{HostFiles, NodeType};
use ironcage_policy::{Executed, Policy, executed, protected};
use std::ffi::OsStr;
use std::path::{Path, PathBuf};

/// Trees that hold no workspace: they are the kernel's, or the cage has its own.
const KERNEL_TREES: [&str; 3] = ["/proc", "/sys", "/dev"];

/// Directories that many share, or that hold the system: no project is one of them, and none
/// of them is a project.
const SHARED: [&str; 20] = [
    "/bin",
    "/boot",
    "/etc",
    "/home",
    "/lib",
    "/lib64",
    "/media",
    "/mnt",
    "/opt",
    "/root",
    "/run",
    "/sbin",
    "/srv",
    "/tmp",
    "/usr",
    "/usr/local",
    "/var",
    "/var/lib",
    "/var/tmp",
    "/var/log",
];
/// Trees in which nothing is a project.
const SYSTEM_TREES: [&str; 9] = [
    "/bin", "/boot", "/etc", "/lib", "/lib64", "/run", "/sbin", "/usr/bin", "/usr/lib",
];

/// Refuses places at which no workspace can be, of real files or empty.
pub(crate) fn check_place(request: &Request) -> Result<(), PlanError> {
    let path = &request.workspace;
    let refuse = |why| {
        Err(PlanError::Workspace {
            path: path.clone(),
            why,
            can_be_forced: false,
        })
    };
    if path == Path::new("/") {
        return refuse("it is the root of the file system");
    }
    if KERNEL_TREES.iter().any(|tree| path.starts_with(tree)) {
        return refuse("it is a kernel file system");
    }
    if request.own.paths.iter().any(|own| path.starts_with(own)) {
        return refuse("it is in Ironcage's own directories");
    }
    Ok(())
}

/// Refuses workspaces that would give away too much.
pub(crate) fn check(request: &Request, files: &dyn HostFiles) -> Result<(), PlanError> {
    check_place(request)?;
    if request.workspace_named && request.i_know {
        return Ok(());
    }
    let path = &request.workspace;
    let refuse = |why| {
        Err(PlanError::Workspace {
            path: path.clone(),
            why,
            can_be_forced: true,
        })
    };
    if *path == request.home {
        return refuse("it is your home directory, with your keys and settings");
    }
    if request.home.starts_with(path) {
        return refuse("it contains your home directory");
    }
    if request
        .other_homes
        .iter()
        .any(|home| home.starts_with(path))
    {
        return refuse("it is or contains its owner's home directory, with keys and settings");
    }
    if request.own.paths.iter().any(|own| own.starts_with(path)) {
        return refuse("it contains Ironcage's own configuration or state");
    }
    let is_shared = SHARED.iter().any(|shared| path == Path::new(shared));
    let in_system = SYSTEM_TREES.iter().any(|tree| path.starts_with(tree));
    if is_shared || in_system {
        return refuse("it belongs to the system or to all of its users");
    }
    const OTHERS_WRITE: u32 = 0o002;
    if files
        .node(path)
        .is_some_and(|node| node.mode & OTHERS_WRITE != 0)
    {
        return refuse("every user of this system can write to it");
    }
    Ok(())
}

/// Refuses to lift a protection that the workspace has not.
pub(crate) fn check_lifted(
    policy: &Policy,
    request: &Request,
    files: &dyn HostFiles,
) -> Result<(), PlanError> {
    let workspace = &request.workspace;
    let trusted = trusted_in(workspace, &request.git_places, files, &mut Vec::new());
    for sourced in &policy.unprotect {
        let path = workspace.join(&sourced.value);
        let parts: Vec<&OsStr> = sourced.value.iter().collect();
        let listed = |entry: &Executed| entry.found_in(&parts).is_some();
        let known = trusted
            .iter()
            .any(|entry| path.starts_with(&entry.path) || entry.path.starts_with(&path))
            || executed::NAMES.iter().any(listed);
        if !known || path == *workspace {
            return Err(PlanError::NotProtected {
                path: sourced.value.clone(),
                origin: sourced.origin.to_string(),
            });
        }
    }
    Ok(())
}

/// A path in a writable tree that the host executes or trusts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct TrustedPath {
    pub(crate) path: PathBuf,
    why: String,
}

/// What is protected in a tree: what the list names in its root, and what git is told to run or
/// obey, by its real path. A link on the way there can be replaced, which is noted.
pub(crate) fn trusted_in(
    root: &Path,
    places: &[GitPlace],
    files: &dyn HostFiles,
    notes: &mut Vec<String>,
) -> Vec<TrustedPath> {
    let mut of_git: Vec<TrustedPath> = Vec::new();
    for place in places {
        let real = match files.real(&place.path) {
            Ok(real) => real,
            Err(_) => place.path.clone(),
        };
        let is_plain = !place.path.iter().any(|part| part == "..");
        if real != place.path && is_plain && place.path.starts_with(root) {
            notes.push(format!(
                "{} is behind a symbolic link and cannot be protected in a writable workspace",
                place.path.display()
            ));
        }
        if root.starts_with(&real) && place.whole {
            notes.push(format!(
                "{} cannot be protected, because all of the workspace is in it: {}",
                real.display(),
                place.why
            ));
        }
        let is_directory = (files.node(&real)).is_some_and(|node| node.kind == NodeType::Directory);
        let counts = real.starts_with(root) && real != root && (place.whole || !is_directory);
        let is_known = of_git.iter().any(|known| known.path == real);
        if counts && !is_known {
            of_git.push(TrustedPath {
                path: real,
                why: place.why.clone(),
            });
        }
    }
    // A directory before what is in it, which it covers.
    of_git.sort_by_key(|trusted| trusted.path.components().count());
    let listed = protected::ENTRIES.iter().map(|entry| TrustedPath {
        path: root.join(entry.path),
        why: entry.why.to_owned(),
    });
    listed.chain(of_git).collect()
}

/// Operations that keep the host from executing or trusting what the agent wrote, in a
/// writable tree of real files: the workspace, or another that is given for writing. Only what
/// exists and is named: no walk. `lifted` are the paths whose protection the policy lifts; a
/// deeper path that is itself given for writing is mounted over its protection later. `layers`
/// are copy-on-write views, in which nothing needs protection. What is not there cannot be
/// mounted over: it goes to `absent`, to be looked for at the end.
pub(crate) fn protect(
    (lifted, layers): (&[PathBuf], &[PathBuf]),
    (root, trusted): (&Path, &[TrustedPath]),
    files: &dyn HostFiles,
    notes: &mut Vec<String>,
    absent: &mut Vec<PathBuf>,
) -> Vec<Item<ViewOp>> {
    let mut ops: Vec<Item<ViewOp>> = Vec::new();
    let mut done: Vec<PathBuf> = layers.to_vec();
    for entry in trusted {
        let target = entry.path.clone();
        let covered = done.iter().any(|parent| target.starts_with(parent));
        // Lifting `.git` lets commits be made; hooks and config in it are entries of their own,
        // and are lifted by their own names only. A directory that is no entry itself stands
        // for those in it.
        let is_lifted = lifted.iter().any(|path| {
            let is_entry = trusted.iter().any(|entry| *path == entry.path);
            target == *path || (!is_entry && target.starts_with(path))
        });
        if covered || is_lifted {
            continue;
        }
        let through_link = ancestors_between(root, &target).iter().any(|ancestor| {
            files
                .node(ancestor)
                .is_some_and(|node| node.kind == NodeType::Symlink)
        });
        match files.node(&target).map(|node| node.kind) {
            None => {
                absent.push(target);
                continue;
            }
            Some(_) if through_link => {
                notes.push(format!(
                    "{} is behind a symbolic link and cannot be protected in a writable workspace",
                    target.display()
                ));
                continue;
            }
            // Nothing can be mounted on a link; what it leads to is protected only if it is
            // itself in the list.
            Some(NodeType::Symlink) => {
                notes.push(format!(
                    "{} is a symbolic link and cannot be protected in a writable workspace",
                    target.display()
                ));
                continue;
            }
            Some(NodeType::File) if files.node(&target).is_some_and(|node| node.links > 1) => {
                notes.push(format!(
                    "{} has another name (a hard link), under which it can be written",
                    target.display()
                ));
            }
            Some(_) => {}
        }
        let origin = format!("protected: {}", entry.why);
        for ancestor in ancestors_between(root, &target) {
            let pinned = ops
                .iter()
                .any(|op| matches!(&op.what, ViewOp::Pin { target, .. } if *target == ancestor));
            if !pinned {
                ops.push(Item {
                    what: ViewOp::Pin {
                        target: ancestor,
                        access: Access::Write,
                    },
                    origin: format!("keeps {} from being moved", below(root, &target).display()),
                });
            }
        }
        ops.push(Item {
            what: ViewOp::Pin {
                target: target.clone(),
                access: Access::Read,
            },
            origin,
        });
        // A writable part below a protected one: the part is mounted over it again.
        for path in lifted.iter().filter(|path| path.starts_with(&target)) {
            if let Some(op) = lift(path, files) {
                ops.push(op);
            }
        }
        done.push(target);
    }
    ops
}

fn below<'p>(root: &Path, path: &'p Path) -> &'p Path {
    path.strip_prefix(root).unwrap_or(path)
}

fn lift(path: &Path, files: &dyn HostFiles) -> Option<Item<ViewOp>> {
    let node = files.node(path)?;
    let kind = match node.kind {
        NodeType::Directory => crate::plan::NodeKind::Directory,
        NodeType::Symlink => return None,
        _ => crate::plan::NodeKind::File,
    };
    Some(Item {
        what: ViewOp::Bind {
            source: path.to_owned(),
            target: path.to_owned(),
            access: Access::Write,
            kind,
            owner: None,
        },
        origin: "--unprotect".into(),
    })
}

/// Directories strictly between the workspace and a target below it, from the top.
pub(crate) fn ancestors_between(workspace: &Path, target: &Path) -> Vec<PathBuf> {
    let mut between: Vec<PathBuf> = target
        .ancestors()
        .skip(1)
        .take_while(|ancestor| *ancestor != workspace)
        .map(Path::to_owned)
        .collect();
    between.reverse();
    between
}
