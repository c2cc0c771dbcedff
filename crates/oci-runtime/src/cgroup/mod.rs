//! The control groups of a container, where the engine wants them: in version 2 or in every
//! hierarchy of version 1.
//!
//! Ironcage's cages have groups of their own naming (`layers/cgroup`), with three limits and a lock
//! that ends with their supervisor. A container's groups are named by its engine, outlive this
//! program, and take every limit of the specification.

mod values;

use crate::error::{Error, IoContext as _};
use crate::kernel;
use crate::spec::Resources;
use ironcage_sys::process::signal_process;
use ironcage_sys::rustix::io::Errno;
use ironcage_sys::rustix::process::{Pid, PidfdFlags, pidfd_open};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::io;
use std::os::fd::AsFd as _;
use std::path::{Component, Path, PathBuf};
use std::time::{Duration, Instant};

pub(crate) const SIGKILL: i32 = 9;
/// How long processes may take to freeze, to die and to leave their group.
const PATIENCE: Duration = Duration::from_secs(10);
const PAUSE: Duration = Duration::from_millis(1);
/// What of the hierarchies of version 1 needs values from the group above.
const INHERITED: [&str; 2] = ["cpuset.cpus", "cpuset.mems"];

/// One directory of a hierarchy.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Group {
    /// The controllers of version 1, or `name=...`; empty for version 2.
    controllers: Vec<String>,
    /// Where the hierarchy is mounted.
    mount: PathBuf,
    pub(crate) path: PathBuf,
}

/// All groups of a container.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Groups {
    pub(crate) unified: bool,
    pub(crate) groups: Vec<Group>,
}

/// A mounted hierarchy, and where this process is in it.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Hierarchy {
    controllers: Vec<String>,
    mount: PathBuf,
    own: PathBuf,
}

/// The hierarchies of `/proc/self/mountinfo` and `/proc/self/cgroup`: all of version 1, or the one of
/// version 2 where there is no other.
fn hierarchies(mountinfo: &str, own: &str) -> (bool, Vec<Hierarchy>) {
    // `ID:CONTROLLERS:PATH`
    let places: Vec<(&str, &str)> = own
        .lines()
        .filter_map(|line| line.split_once(':')?.1.split_once(':'))
        .collect();
    let place = |controller: &str| {
        let named = |list: &str| list.split(',').any(|name| name == controller);
        let found = places.iter().find(|(list, _)| named(list));
        found.map(|(_, path)| PathBuf::from(path))
    };
    let (mut first, mut second) = (Vec::<Hierarchy>::new(), Vec::new());
    for line in mountinfo.lines() {
        let Some((before, after)) = line.split_once(" - ") else {
            continue;
        };
        let (Some(root), Some(mount)) = (before.split(' ').nth(3), before.split(' ').nth(4)) else {
            continue;
        };
        let mut after = after.split(' ');
        let kind = after.next().unwrap_or_default();
        let options = after.nth(1).unwrap_or_default();
        // A part of a hierarchy that is mounted elsewhere, as in a container.
        let whole = |own: PathBuf| match own.strip_prefix(root) {
            Ok(below) => Path::new("/").join(below),
            Err(_) => own,
        };
        match kind {
            "cgroup2" => second.push(Hierarchy {
                controllers: Vec::new(),
                mount: mount.into(),
                own: whole(place("").unwrap_or("/".into())),
            }),
            "cgroup" => {
                let controllers = options
                    .split(',')
                    .filter(|word| place(word).is_some())
                    .map(str::to_owned)
                    .collect::<Vec<_>>();
                let Some(own) = controllers.first().and_then(|first| place(first)) else {
                    continue;
                };
                if !first.iter().any(|known| known.controllers == controllers) {
                    first.push(Hierarchy {
                        controllers,
                        mount: mount.into(),
                        own: whole(own),
                    });
                }
            }
            _ => {}
        }
    }
    let controls = |hierarchy: &Hierarchy| {
        let named = |name: &String| name.starts_with("name=");
        !hierarchy.controllers.iter().all(named)
    };
    match first.iter().any(controls) {
        true => (false, first),
        false => (true, second.into_iter().take(1).collect()),
    }
}

/// A path without what leads upwards.
fn clean(path: &str) -> PathBuf {
    let parts = Path::new(path).components();
    parts
        .filter(|part| matches!(part, Component::Normal(_)))
        .collect()
}

fn write(path: &Path, value: &str) -> Result<(), Error> {
    // In one call: the kernel takes each write for itself.
    std::fs::OpenOptions::new()
        .write(true)
        .open(path)
        .and_then(|mut file| io::Write::write_all(&mut file, value.as_bytes()))
        .doing(|| format!("write {value:?} to {}", path.display()))
}

impl Group {
    fn has(&self, controller: &str) -> bool {
        self.controllers.iter().any(|name| name == controller)
    }

    /// Where the hierarchy is mounted in a container: the last part of its own mount point.
    pub(crate) fn name(&self) -> Option<&std::ffi::OsStr> {
        self.mount.file_name()
    }

    /// Other names of it: each of several controllers has a link.
    pub(crate) fn links(&self) -> impl Iterator<Item = &str> {
        let several = self.controllers.len() > 1;
        self.controllers
            .iter()
            .filter(move |_| several)
            .map(String::as_str)
    }

    fn below(&self) -> impl Iterator<Item = PathBuf> {
        let mut path = self.mount.clone();
        let parts = self.path.strip_prefix(&self.mount).map(Path::to_path_buf);
        let parts: Vec<_> = parts
            .unwrap_or_default()
            .components()
            .map(|part| part.as_os_str().to_owned())
            .collect();
        parts.into_iter().map(move |part| {
            path.push(part);
            path.clone()
        })
    }

    fn make(&self, unified: bool) -> Result<(), Error> {
        let mut above = self.mount.clone();
        for path in self.below() {
            if unified {
                enable(&above);
            }
            match std::fs::create_dir(&path) {
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                other => other.doing(|| format!("make the cgroup {}", path.display()))?,
            }
            if self.has("cpuset") {
                for name in INHERITED {
                    let own = path.join(name);
                    if kernel::read(&own).is_ok_and(|text| text.trim().is_empty()) {
                        let value = kernel::read(above.join(name))
                            .doing(|| format!("read {}", above.join(name).display()))?;
                        write(&own, value.trim())?;
                    }
                }
            }
            above = path;
        }
        Ok(())
    }

    /// The processes in it and in those below it.
    fn processes(&self) -> Vec<i32> {
        fn walk(path: &Path, found: &mut Vec<i32>) {
            let text = kernel::read(path.join("cgroup.procs")).unwrap_or_default();
            found.extend(text.lines().filter_map(|line| line.parse::<i32>().ok()));
            for below in directories(path) {
                walk(&below, found);
            }
        }
        let mut found = Vec::new();
        walk(&self.path, &mut found);
        found
    }
}

fn directories(path: &Path) -> Vec<PathBuf> {
    let Ok(entries) = path.read_dir() else {
        return Vec::new();
    };
    let entries = entries.filter_map(Result::ok);
    entries
        .filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()))
        .map(|entry| entry.path())
        .collect()
}

/// Gives the groups below one the controllers that it has itself. One that cannot be given is missed
/// by the limit that needs it.
fn enable(path: &Path) {
    let text = kernel::read(path.join("cgroup.controllers")).unwrap_or_default();
    for controller in text.split_whitespace() {
        let _ = write(
            &path.join("cgroup.subtree_control"),
            &format!("+{controller}"),
        );
    }
}

/// Removes a group and those below it; waits while processes in it are still exiting.
fn remove(path: &Path, until: Instant) -> Result<(), Error> {
    for below in directories(path) {
        remove(&below, until)?;
    }
    loop {
        match ironcage_sys::rustix::fs::rmdir(path) {
            Ok(()) | Err(Errno::NOENT) => return Ok(()),
            Err(Errno::BUSY) if Instant::now() < until => std::thread::sleep(PAUSE),
            Err(error) => {
                return Err(Error::failed(
                    format!("remove the cgroup {}", path.display()),
                    error,
                ));
            }
        }
    }
}

impl Groups {
    /// The groups of a container, which need not be there yet.
    pub(crate) fn of(wanted: &str, id: &str) -> Result<Groups, Error> {
        let action = || "look for cgroups".to_owned();
        let mountinfo = kernel::read("/proc/self/mountinfo").doing(action)?;
        let own = kernel::read("/proc/self/cgroup").doing(action)?;
        let (unified, found) = hierarchies(&mountinfo, &own);
        let groups = found.into_iter().map(|hierarchy| {
            let Hierarchy {
                controllers,
                mount,
                own,
            } = hierarchy;
            let path = match wanted {
                // As runc has it: beside this process, by the container's name.
                "" => mount.join(clean(&own.to_string_lossy())).join(id),
                absolute if absolute.starts_with('/') => mount.join(clean(absolute)),
                relative => mount
                    .join(clean(&own.to_string_lossy()))
                    .join(clean(relative)),
            };
            Group {
                controllers,
                mount,
                path,
            }
        });
        let groups: Vec<Group> = groups.collect();
        if let Some(group) = groups.iter().find(|group| group.path == group.mount) {
            let action = format!("use the cgroup {}", group.path.display());
            return Err(Error::refused(action, "it is the root of the hierarchy"));
        }
        Ok(Groups { unified, groups })
    }

    /// Refuses groups that have processes: they are somebody else's, and would end with the container.
    /// Asked before anything is written down, because what is written down is cleaned up.
    pub(crate) fn check_empty(&self) -> Result<(), Error> {
        for group in &self.groups {
            let inside = group.processes().len();
            if inside > 0 {
                let action = format!("use the cgroup {}", group.path.display());
                let why = format!("{inside} processes are in it");
                return Err(Error::refused(action, why));
            }
        }
        Ok(())
    }

    /// Makes them and writes their limits.
    pub(crate) fn make(&self, resources: &Resources) -> Result<(), Error> {
        for group in &self.groups {
            group.make(self.unified)?;
        }
        self.limit(resources, true)
    }

    /// Writes limits; those that are not given stay. Device rules are for a new container alone.
    pub(crate) fn limit(&self, resources: &Resources, new: bool) -> Result<(), Error> {
        for value in values::of(resources, self.unified, new) {
            let group = match self.unified {
                true => self.groups.first(),
                false => self.groups.iter().find(|group| group.has(value.controller)),
            };
            let Some(group) = group else {
                let action = format!("set {}", value.file);
                let why = format!("this host has no cgroup controller {}", value.controller);
                return Err(Error::refused(action, why));
            };
            let path = group.path.join(&value.file);
            match (write(&path, &value.text), value.instead) {
                (Ok(()), _) => {}
                (Err(_), Some(values)) => {
                    for (file, text) in values {
                        write(&group.path.join(file), &text)?;
                    }
                }
                (Err(error), None) if value.optional && !path.exists() => drop(error),
                (Err(error), None) => return Err(error),
            }
        }
        Ok(())
    }

    /// Moves this process in. It has one thread, whose own file spares the kernel's lock over all
    /// forks and exits.
    pub(crate) fn enter(&self) -> Result<(), Error> {
        let file = match self.unified {
            true => "cgroup.procs",
            false => "tasks",
        };
        for group in &self.groups {
            write(&group.path.join(file), "0")?;
        }
        Ok(())
    }

    /// The group with this controller, or the one of version 2.
    pub(crate) fn with(&self, controller: &str) -> Option<&Path> {
        let found = match self.unified {
            true => self.groups.first(),
            false => self.groups.iter().find(|group| group.has(controller)),
        };
        found.map(|group| group.path.as_path())
    }

    /// Every process of the container.
    pub(crate) fn processes(&self) -> Vec<i32> {
        let preferred = self.groups.iter().find(|group| group.has("pids"));
        let group = preferred.or(self.groups.first());
        group.map_or_else(Vec::new, Group::processes)
    }

    fn freezer(&self) -> Option<(PathBuf, &'static str, &'static str)> {
        let path = self.with("freezer")?;
        Some(match self.unified {
            true => (path.join("cgroup.freeze"), "1", "0"),
            false => (path.join("freezer.state"), "FROZEN", "THAWED"),
        })
    }

    pub(crate) fn is_frozen(&self) -> bool {
        let Some((file, frozen, _)) = self.freezer() else {
            return false;
        };
        let text = kernel::read(file).unwrap_or_default();
        let text = text.trim();
        text == frozen || text == "FREEZING"
    }

    /// Stops or resumes every process, and waits until they have.
    pub(crate) fn freeze(&self, stop: bool) -> Result<(), Error> {
        let action = || match stop {
            true => "pause the container".to_owned(),
            false => "resume the container".to_owned(),
        };
        let Some((file, frozen, thawed)) = self.freezer() else {
            return Err(Error::refused(action(), "this host has no cgroup freezer"));
        };
        let until = Instant::now() + PATIENCE;
        loop {
            // Version 1 forgets a process that was forked while it froze: it is told again.
            write(&file, if stop { frozen } else { thawed })?;
            let done = match self.unified {
                true => file.parent().is_some_and(|group| {
                    let events = kernel::read(group.join("cgroup.events")).unwrap_or_default();
                    kernel::field(&events, "frozen") == Some(u64::from(stop))
                }),
                false => kernel::read(&file)
                    .is_ok_and(|text| text.trim() == if stop { frozen } else { thawed }),
            };
            if done {
                return Ok(());
            }
            if Instant::now() > until {
                if stop {
                    let _ = write(&file, thawed);
                }
                return Err(Error::refused(
                    action(),
                    "its processes did not stop in time",
                ));
            }
            std::thread::sleep(PAUSE);
        }
    }

    /// Signals every process. Frozen, none of them forks or ends meanwhile.
    pub(crate) fn signal(&self, signal: i32) {
        let was_frozen = self.is_frozen();
        // Without a freezer a second look finds what was forked meanwhile.
        let frozen = self.freeze(true).is_ok();
        for pid in self.processes() {
            let opened = Pid::from_raw(pid).map(|pid| pidfd_open(pid, PidfdFlags::empty()));
            if let Some(Ok(process)) = opened {
                let _ = signal_process(process.as_fd(), signal);
            }
        }
        if frozen && (!was_frozen || signal == SIGKILL) {
            let _ = self.freeze(false);
        }
    }

    /// Kills every process and waits until none is left.
    pub(crate) fn kill(&self) -> Result<(), Error> {
        let until = Instant::now() + PATIENCE;
        while !self.processes().is_empty() {
            if Instant::now() > until {
                let why = "its processes did not end in time";
                return Err(Error::refused("end the container", why));
            }
            let at_once = self.unified && {
                let file = self
                    .groups
                    .first()
                    .map(|group| group.path.join("cgroup.kill"));
                file.is_some_and(|file| write(&file, "1").is_ok())
            };
            if !at_once {
                self.signal(SIGKILL);
            }
            std::thread::sleep(PAUSE);
        }
        Ok(())
    }

    /// Removes the groups, with those that the container made below them.
    pub(crate) fn remove(&self) -> Result<(), Error> {
        let until = Instant::now() + PATIENCE;
        self.groups
            .iter()
            .try_for_each(|group| remove(&group.path, until))
    }

    /// What the container used, as `events --stats` prints it.
    pub(crate) fn stats(&self) -> serde_json::Value {
        let number = |controller: &str, file: &str| {
            let path = self.with(controller)?.join(file);
            kernel::number(path)
        };
        let fields = |controller: &str, file: &str| -> BTreeMap<String, u64> {
            let text = self
                .with(controller)
                .and_then(|path| kernel::read(path.join(file)).ok());
            let text = text.unwrap_or_default();
            let pairs = text.lines().filter_map(|line| {
                let (name, value) = line.split_once(' ')?;
                Some((name.to_owned(), value.trim().parse().ok()?))
            });
            pairs.collect()
        };
        let (usage, limit, peak, failed) = match self.unified {
            true => ("memory.current", "memory.max", "memory.peak", ""),
            false => (
                "memory.usage_in_bytes",
                "memory.limit_in_bytes",
                "memory.max_usage_in_bytes",
                "memory.failcnt",
            ),
        };
        let cpu = match self.unified {
            true => fields("cpu", "cpu.stat")
                .get("usage_usec")
                .map(|used| used * 1000),
            false => number("cpuacct", "cpuacct.usage"),
        };
        serde_json::json!({
            "cpu": { "usage": { "total": cpu.unwrap_or(0) }, "throttling": fields("cpu", "cpu.stat") },
            "memory": {
                "usage": {
                    "usage": number("memory", usage).unwrap_or(0),
                    "limit": number("memory", limit).unwrap_or(0),
                    "max": number("memory", peak).unwrap_or(0),
                    "failcnt": number("memory", failed).unwrap_or(0),
                },
                "raw": fields("memory", "memory.stat"),
            },
            "pids": {
                "current": number("pids", "pids.current").unwrap_or(0),
                "limit": number("pids", "pids.max").unwrap_or(0),
            },
        })
    }

    /// How often the kernel killed a process of the container for memory.
    pub(crate) fn killed_for_memory(&self) -> Option<u64> {
        let path = self.with("memory")?;
        let file = match self.unified {
            true => "memory.events",
            false => "memory.oom_control",
        };
        kernel::field(&kernel::read(path.join(file)).ok()?, "oom_kill")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HYBRID: &str = "25 1 0:22 / /sys/fs/cgroup rw - tmpfs tmpfs rw,mode=755\n\
        26 25 0:23 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n\
        27 25 0:24 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n\
        28 25 0:25 / /sys/fs/cgroup/systemd rw - cgroup cgroup rw,name=systemd\n\
        29 25 0:26 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n";
    const OWN: &str = "3:name=systemd:/\n2:memory:/engine/x\n1:cpu,cpuacct:/\n0::/\n";

    #[test]
    fn a_hybrid_host_is_version_1_and_a_pure_one_version_2() {
        let (unified, found) = hierarchies(HYBRID, OWN);
        assert!(!unified);
        assert_eq!(found.len(), 3);
        assert_eq!(found[0].controllers, ["cpu", "cpuacct"]);
        assert_eq!(found[1].own, Path::new("/engine/x"));
        let pure = "29 25 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw,nsdelegate\n";
        let (unified, found) = hierarchies(pure, "0::/a\n");
        assert!(unified);
        assert_eq!(found[0].mount, Path::new("/sys/fs/cgroup"));
        assert_eq!(found[0].own, Path::new("/a"));
    }

    #[test]
    fn no_path_leads_out_of_a_hierarchy() {
        assert_eq!(clean("/../../etc/./x"), Path::new("etc/x"));
        assert_eq!(clean("///"), Path::new(""));
    }

    #[test]
    fn limits_of_version_2_are_written_to_the_group() {
        let top = tempfile::tempdir().unwrap();
        let path = top.path().join("a/b");
        std::fs::create_dir_all(&path).unwrap();
        let groups = Groups {
            unified: true,
            groups: vec![Group {
                controllers: Vec::new(),
                mount: top.path().to_owned(),
                path: path.clone(),
            }],
        };
        for file in ["memory.max", "memory.swap.max", "pids.max", "cpu.max"] {
            std::fs::write(path.join(file), "").unwrap();
        }
        let resources = crate::spec::parse(
            br#"{"memory":{"limit":1048576,"swap":2097152},"pids":{"limit":7},"cpu":{"quota":5000,"period":10000}}"#,
        );
        groups.limit(&resources.unwrap(), true).unwrap();
        let read = |file| std::fs::read_to_string(path.join(file)).unwrap();
        assert_eq!(read("memory.max"), "1048576");
        assert_eq!(read("memory.swap.max"), "1048576");
        assert_eq!(read("pids.max"), "7");
        assert_eq!(read("cpu.max"), "5000 10000");
        // One whose controller is not there is an error, not silence.
        let resources = crate::spec::parse(br#"{"cpu":{"cpus":"0"}}"#).unwrap();
        assert!(groups.limit(&resources, true).is_err());
    }
}
