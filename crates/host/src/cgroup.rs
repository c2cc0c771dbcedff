//! Finds where cgroups for cages can be created, without creating any.
//!
//! The rule for version 2: the nearest ancestor of this process's own cgroup that this user may
//! write and whose children have the controllers. Nearest, so that every limit that already
//! applies to the process applies to its cages too; an ancestor, because the kernel moves a
//! process only where `cgroup.procs` of the common ancestor is writable. Ironcage never asks
//! systemd: a scope per cage costs more than a cage.

use crate::{CgroupHost, CgroupV1, NoCgroup, Privilege};
use ironcage_sys::rustix;
use rustix::fs::{Access, AtFlags, CWD, StatVfsMountFlags};
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

/// The controllers that a cage's limits need.
const WANTED: [&str; 3] = ["memory", "pids", "cpu"];
/// A version 1 controller that is used where it is and missed by no limit.
const FREEZER: &str = "freezer";
const CONVENTIONAL: &str = "/sys/fs/cgroup";
const CGROUP_MAGIC: u64 = 0x0027_e0eb;
const CGROUP2_MAGIC: u64 = 0x6367_7270;

/// Which version of the cgroup file system a directory is on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Version {
    V1,
    V2,
}

/// What is known of a directory of a cgroup file system without asking for rights in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct GroupDirectory {
    pub(crate) version: Version,
    /// Whether nobody can write there, root included.
    pub(crate) read_only: bool,
}

/// The files that the search looks at: the kernel's, or those of a test.
pub(crate) trait GroupFiles {
    fn look(&self, directory: &Path) -> Option<GroupDirectory>;
    fn read(&self, file: &Path) -> Option<String>;
    fn writable(&self, file: &Path) -> bool;
    fn has_children(&self, directory: &Path) -> bool;
}

/// The files of the running kernel.
#[derive(Debug)]
pub(crate) struct KernelFiles;

impl GroupFiles for KernelFiles {
    fn look(&self, directory: &Path) -> Option<GroupDirectory> {
        let found = rustix::fs::statfs(directory).ok()?;
        let version = match u64::try_from(found.f_type).ok()? {
            CGROUP_MAGIC => Version::V1,
            CGROUP2_MAGIC => Version::V2,
            _ => return None,
        };
        let flags = StatVfsMountFlags::from_bits_retain(u64::try_from(found.f_flags).ok()?);
        Some(GroupDirectory {
            version,
            read_only: flags.contains(StatVfsMountFlags::RDONLY),
        })
    }

    fn read(&self, file: &Path) -> Option<String> {
        crate::quick::small_file(file).ok()
    }

    fn writable(&self, file: &Path) -> bool {
        rustix::fs::accessat(CWD, file, Access::WRITE_OK, AtFlags::EACCESS).is_ok()
    }

    fn has_children(&self, directory: &Path) -> bool {
        fs::read_dir(directory)
            .map(|entries| {
                entries
                    .flatten()
                    .any(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()))
            })
            .unwrap_or(true)
    }
}

/// Finds how limits by cgroup can be had by this process.
pub(crate) fn detect(privilege: Privilege) -> CgroupHost {
    detect_in(&KernelFiles, privilege)
}

pub(crate) fn detect_in(files: &dyn GroupFiles, privilege: Privilege) -> CgroupHost {
    let Some(own) = files.read(Path::new("/proc/self/cgroup")) else {
        return CgroupHost::None {
            why: NoCgroup::NoCgroups,
        };
    };
    let memberships = parse_memberships(&own);
    let search = Search {
        files,
        memberships: &memberships,
        privilege,
    };
    let v1 = search.version_one();
    // The memory controller decides: a host keeps its controllers in one of the two trees.
    if v1.controllers.contains_key("memory") {
        return CgroupHost::V1(v1);
    }
    match search.version_two() {
        Ok(found) => found,
        Err(_) if !v1.controllers.is_empty() => CgroupHost::V1(v1),
        Err(why) => CgroupHost::None { why },
    }
}

/// The group of this process in the version 2 hierarchy, if groups can be made below it. An init
/// system needs one of its own, with or without controllers.
pub(crate) fn own_group(privilege: Privilege) -> Result<PathBuf, NoCgroup> {
    own_group_in(&KernelFiles, privilege)
}

pub(crate) fn own_group_in(
    files: &dyn GroupFiles,
    privilege: Privilege,
) -> Result<PathBuf, NoCgroup> {
    let own = files.read(Path::new("/proc/self/cgroup"));
    let own = own.ok_or(NoCgroup::NoCgroups)?;
    let memberships = parse_memberships(&own);
    let path = memberships.get("").ok_or(NoCgroup::NoVersion2)?;
    if path.starts_with("/..") {
        return Err(NoCgroup::OutsideNamespace);
    }
    let search = Search {
        files,
        memberships: &memberships,
        privilege,
    };
    let (root, own) = search.unified(path)?;
    match search.may_hold_children(&own) {
        true => Ok(own),
        false => Err(NoCgroup::NotDelegated {
            group: own.strip_prefix(&root).unwrap_or(&own).to_owned(),
        }),
    }
}

/// Whether the groups of a host count swap. The real root of version 2 cannot be asked: it has no
/// limits of its own.
pub(crate) fn counts_swap(host: &CgroupHost) -> bool {
    counts_swap_in(&KernelFiles, host)
}

fn counts_swap_in(files: &dyn GroupFiles, host: &CgroupHost) -> bool {
    let file = match host {
        CgroupHost::V2 { parent, .. } => parent.join("memory.swap.max"),
        CgroupHost::V1(v1) => match v1.controllers.get("memory") {
            Some(group) => group.join("memory.memsw.limit_in_bytes"),
            None => return false,
        },
        CgroupHost::None { .. } => return false,
    };
    files.read(&file).is_some()
}

/// Controller to path of the own group; version 2 is the controller with the empty name.
fn parse_memberships(text: &str) -> BTreeMap<&str, &str> {
    let mut memberships = BTreeMap::new();
    for line in text.lines() {
        let mut fields = line.splitn(3, ':');
        let (Some(_), Some(names), Some(path)) = (fields.next(), fields.next(), fields.next())
        else {
            continue;
        };
        for name in names.split(',') {
            memberships.insert(name, path);
        }
    }
    memberships
}

struct Search<'a> {
    files: &'a dyn GroupFiles,
    memberships: &'a BTreeMap<&'a str, &'a str>,
    privilege: Privilege,
}

impl Search<'_> {
    fn version_one(&self) -> CgroupV1 {
        let mut controllers = BTreeMap::new();
        for name in WANTED.into_iter().chain([FREEZER]) {
            let Some(path) = self.memberships.get(name) else {
                continue;
            };
            let group = self
                .conventional(&Path::new(CONVENTIONAL).join(name), path, Version::V1)
                .or_else(|| self.mounted(name, path));
            // Version 1 asks for nothing above the new group, which is its maker's. Root is kept out
            // by a read-only mount alone.
            if let Some((group, found)) = group
                && !found.read_only
                && (self.privilege == Privilege::Root || self.files.writable(&group))
            {
                controllers.insert(name.to_owned(), group);
            }
        }
        CgroupV1 { controllers }
    }

    fn version_two(&self) -> Result<CgroupHost, NoCgroup> {
        let path = self.memberships.get("").ok_or(NoCgroup::NoVersion2)?;
        // `/../..` is how a group outside the own cgroup namespace is shown.
        if path.starts_with("/..") {
            return Err(NoCgroup::OutsideNamespace);
        }
        let (root, own) = self.unified(path)?;
        let mut fallback = None;
        let mut seen_controllers = false;
        let mut group = own.clone();
        loop {
            let enabled = self.controllers(&group, "cgroup.subtree_control");
            seen_controllers |= !enabled.is_empty();
            if self.may_hold_children(&group) {
                let usable = if enabled.is_empty() {
                    self.could_enable(&group, &root)
                } else {
                    enabled
                };
                let complete = ["memory", "pids"]
                    .iter()
                    .all(|wanted| usable.iter().any(|name| name == wanted));
                if complete {
                    return Ok(CgroupHost::V2 {
                        parent: group,
                        controllers: usable,
                    });
                }
                if !usable.is_empty() && fallback.is_none() {
                    fallback = Some(CgroupHost::V2 {
                        parent: group.clone(),
                        controllers: usable,
                    });
                }
            }
            if group == root || !group.pop() {
                break;
            }
        }
        fallback.ok_or_else(|| self.refusal(&root, &own, seen_controllers))
    }

    fn refusal(&self, root: &Path, own: &Path, seen_controllers: bool) -> NoCgroup {
        if self.controllers(root, "cgroup.controllers").is_empty() {
            return NoCgroup::NoControllers;
        }
        let group = own.strip_prefix(root).unwrap_or(own).to_owned();
        match self.privilege == Privilege::Root && !seen_controllers {
            true => NoCgroup::Container { group },
            false => NoCgroup::NotDelegated { group },
        }
    }

    /// Whether this user may make groups in a directory and move processes below it.
    fn may_hold_children(&self, group: &Path) -> bool {
        self.files.writable(&group.join("cgroup.procs")) && self.files.writable(group)
    }

    /// Controllers that may be enabled for children without touching anybody else: in a delegated
    /// group that has no processes of its own, or in the real root while it has no child at all.
    fn could_enable(&self, group: &Path, root: &Path) -> Vec<String> {
        // Only the real root lacks this file; the root of a cgroup namespace has it.
        let real_root = group == root && self.files.read(&group.join("cgroup.type")).is_none();
        let allowed = if real_root {
            !self.files.has_children(group)
        } else {
            let empty = self
                .files
                .read(&group.join("cgroup.procs"))
                .is_some_and(|processes| processes.trim().is_empty());
            empty
                && self.privilege == Privilege::User
                && self.files.writable(&group.join("cgroup.subtree_control"))
        };
        if allowed {
            self.controllers(group, "cgroup.controllers")
        } else {
            Vec::new()
        }
    }

    fn controllers(&self, group: &Path, file: &str) -> Vec<String> {
        let text = self.files.read(&group.join(file)).unwrap_or_default();
        let found = text.split_ascii_whitespace();
        found
            .filter(|name| WANTED.contains(name))
            .map(str::to_owned)
            .collect()
    }

    /// Root of the version 2 tree and the own group in it.
    fn unified(&self, path: &str) -> Result<(PathBuf, PathBuf), NoCgroup> {
        for root in [
            PathBuf::from(CONVENTIONAL),
            Path::new(CONVENTIONAL).join("unified"),
        ] {
            if let Some((own, _)) = self.conventional(&root, path, Version::V2) {
                return Ok((root, own));
            }
        }
        let mounts = self.mountinfo();
        let mount = parse_mounts(&mounts)
            .find(|mount| mount.kind == "cgroup2")
            .ok_or(NoCgroup::NotMounted)?;
        let own = mount.locate(path).ok_or_else(|| NoCgroup::NotVisible {
            group: path.to_owned(),
            point: mount.point.clone(),
        })?;
        Ok((mount.point, own))
    }

    /// The own group below a conventional mount point, if it is there: saves reading the mount
    /// table, which is long on a desktop.
    fn conventional(
        &self,
        root: &Path,
        path: &str,
        version: Version,
    ) -> Option<(PathBuf, GroupDirectory)> {
        let own = join(root, path);
        let found = self.files.look(&own)?;
        (found.version == version).then_some((own, found))
    }

    fn mounted(&self, controller: &str, path: &str) -> Option<(PathBuf, GroupDirectory)> {
        let mounts = self.mountinfo();
        let own = parse_mounts(&mounts)
            .find(|mount| {
                mount.kind == "cgroup"
                    && mount.options.split(',').any(|option| option == controller)
            })?
            .locate(path)?;
        self.files.look(&own).map(|found| (own, found))
    }

    fn mountinfo(&self) -> String {
        self.files
            .read(Path::new("/proc/self/mountinfo"))
            .unwrap_or_default()
    }
}

fn join(root: &Path, path: &str) -> PathBuf {
    let relative = path.trim_start_matches('/');
    if relative.is_empty() {
        root.to_owned()
    } else {
        root.join(relative)
    }
}

struct Mount<'a> {
    /// Which part of the file system is mounted.
    inner: &'a str,
    point: PathBuf,
    kind: &'a str,
    options: &'a str,
}

impl Mount<'_> {
    /// Where a group is seen through this mount, if it is.
    fn locate(&self, path: &str) -> Option<PathBuf> {
        let inside = Path::new(path).strip_prefix(self.inner).ok()?;
        Some(join(&self.point, inside.to_str()?))
    }
}

fn parse_mounts(text: &str) -> impl Iterator<Item = Mount<'_>> {
    text.lines().filter_map(|line| {
        let (before, after) = line.split_once(" - ")?;
        let mut fields = before.split(' ').skip(3);
        let inner = fields.next()?;
        let point = fields.next()?;
        let mut after = after.split(' ');
        let kind = after.next()?;
        let options = after.nth(1).unwrap_or("");
        Some(Mount {
            inner,
            // Mount points of cgroups have no blanks on any known system; one that had would be
            // shown escaped, would not be found, and cages would be without cgroups: `None`.
            point: PathBuf::from(point),
            kind,
            options,
        })
    })
}

#[cfg(test)]
#[path = "cgroup_tests.rs"]
mod tests;
