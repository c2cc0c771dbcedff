//! The quick look at a host, on the start path of every cage.
//!
//! Some twenty small reads and system calls, no fork, nothing tried out. Whatever can only be
//! known by trying is assumed to work; the start then says what failed, with the hint of
//! `HostCaps::diagnose_userns_failure`, and `ironcage doctor` tries everything.

use crate::assess::{self, Facts, Namespaces, Sysctls};
use crate::cgroup;
use crate::{CgroupHost, HostCaps, HostError, Inotify, Kernel, NoCgroup, Privilege};
use ironcage_sys::host::{SeccompAction, landlock_abi, seccomp_action_available};
use ironcage_sys::process::started_with_group;
use ironcage_sys::rustix;
use ironcage_sys::spent::close_later;
use ironcage_sys::trial::{self, Step};
use rustix::fs::{Mode, OFlags};
use rustix::thread::{CapabilitySet, SecureComputingMode, secure_computing_mode};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// The least kernel: the first with Landlock and with working idmapped mounts (5.12 has
/// mount_setattr, 5.13 Landlock). Every other mechanism that a cage needs is older.
pub const LEAST_KERNEL: Kernel = Kernel {
    major: 5,
    minor: 13,
};

/// How many consecutive ids a user namespace must map from zero on, so that cages can have
/// ranges of their own in it.
const IDS_FOR_RANGES: u64 = 1 << 31;

impl HostCaps {
    /// Gathers what can be known without trying anything. `state` is where changes are kept, or
    /// will be.
    pub fn quick(state: &Path) -> Result<HostCaps, HostError> {
        let facts = look(Extent::Needed)?;
        Ok(from_facts(facts, disk(state)?))
    }

    /// Below which group of the version 2 hierarchy an init system can have one of its own. `None`
    /// is the cage's own group.
    ///
    /// # Errors
    /// Where this process may make none.
    pub fn group_for_init(&self) -> Result<Option<PathBuf>, NoCgroup> {
        match self.cgroup {
            CgroupHost::V2 { .. } => Ok(None),
            CgroupHost::V1(_) | CgroupHost::None { .. } => {
                cgroup::own_group(self.privilege).map(Some)
            }
        }
    }

    /// What most likely made the kernel refuse a user namespace, and what would mend it: for the
    /// message when clone or unshare, or writing the id maps, fails at the start of a cage.
    pub fn diagnose_userns_failure(errno: i32) -> String {
        match gather() {
            Ok(facts) => {
                crate::doctor::userns_failure_hint(&facts, crate::doctor::Place::here(), errno)
            }
            Err(error) => error.to_string(),
        }
    }
}

/// How much is looked at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Extent {
    /// What this process needs to know for a start.
    Needed,
    /// What somebody may want to read of this host.
    All,
}

/// The facts of this host, as the quick look sees them.
pub(crate) fn gather() -> Result<Facts, HostError> {
    look(Extent::All)
}

fn look(extent: Extent) -> Result<Facts, HostError> {
    let name = rustix::system::uname();
    let release = name.release().to_string_lossy().into_owned();
    let kernel = parse_release(&release).ok_or_else(|| HostError::UnreadableRelease {
        release: release.clone(),
    })?;
    if kernel < LEAST_KERNEL {
        return Err(HostError::KernelTooOld {
            release,
            least: LEAST_KERNEL,
        });
    }
    let uid = ironcage_sys::process::started_as();
    let gid = started_with_group();
    let privilege = privilege(uid)?;
    let info = rustix::system::sysinfo();
    let affinity = rustix::thread::sched_getaffinity(None).map_err(|error| HostError::Call {
        call: "sched_getaffinity",
        source: error.into(),
    })?;
    let notify = seccomp_action_available(SeccompAction::UserNotify);
    let sysctls = sysctls(privilege, extent);
    let cgroup = cgroup::detect(privilege);
    Ok(Facts {
        release,
        kernel,
        privilege,
        uid,
        gid,
        landlock_abi: landlock_abi(),
        // A kernel that knows the newer action knows the older one.
        seccomp: notify || seccomp_action_available(SeccompAction::Errno),
        seccomp_notify: notify && !listener_is_taken(),
        memory: u64::from(info.mem_unit).saturating_mul(info.totalram),
        cpus: affinity.count().max(1),
        namespaces: namespaces(&sysctls, !matches!(cgroup, CgroupHost::None { .. })),
        sysctls,
        swap_uncounted: info.totalswap > 0 && !cgroup::counts_swap(&cgroup),
        cgroup,
    })
}

/// Whether a filter around this process has a listener already, as below WSL2's init: the kernel
/// takes one in a chain of filters and answers EBUSY to the next. Whether it does is known only by
/// trying, which a process without any filter need not do.
fn listener_is_taken() -> bool {
    if matches!(secure_computing_mode(), Ok(SecureComputingMode::Disabled)) {
        return false;
    }
    let steps = [Step::NoNewPrivileges, Step::Seccomp { listener: true }];
    matches!(trial::attempt(&steps), Ok(Some(_)))
}

/// The size of the file system that a path is on, or will be.
fn disk(path: &Path) -> Result<u64, HostError> {
    let there = path
        .ancestors()
        .find_map(|path| rustix::fs::statvfs(path).ok());
    let found = there.ok_or_else(|| HostError::Call {
        call: "statfs",
        source: std::io::ErrorKind::NotFound.into(),
    })?;
    Ok(found.f_frsize.saturating_mul(found.f_blocks))
}

pub(crate) fn from_facts(facts: Facts, disk: u64) -> HostCaps {
    let layers = assess::layers(&facts);
    HostCaps {
        kernel: facts.kernel,
        privilege: facts.privilege,
        uid: facts.uid,
        gid: facts.gid,
        landlock_abi: facts.landlock_abi,
        seccomp_notify: facts.seccomp_notify,
        memory: facts.memory,
        disk,
        cpus: facts.cpus,
        cgroup: facts.cgroup,
        swap_uncounted: facts.swap_uncounted,
        inotify: inotify(),
        side_channels: None,
        layers,
    }
}

/// `6.18.44-fc` is 6.18.
pub(crate) fn parse_release(release: &str) -> Option<Kernel> {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit());
    let major = numbers.next()?.parse().ok()?;
    let minor = numbers.next()?.parse().ok()?;
    Some(Kernel { major, minor })
}

/// Whether this process can give every cage a range of ids of its own. Being uid 0 is not
/// enough: containers drop capabilities, and root of a small user namespace has no spare ids.
fn privilege(uid: u32) -> Result<Privilege, HostError> {
    if uid != 0 {
        return Ok(Privilege::User);
    }
    let sets = rustix::thread::capabilities(None).map_err(|error| HostError::Call {
        call: "capget",
        source: error.into(),
    })?;
    let needed = CapabilitySet::SYS_ADMIN | CapabilitySet::SETUID | CapabilitySet::SETGID;
    if !sets.effective.contains(needed) {
        return Ok(Privilege::User);
    }
    let users = read("/proc/self/uid_map")?;
    // The initial user namespace maps all ids to themselves, groups as well: the one read is enough.
    let enough = users.split_ascii_whitespace().eq(["0", "0", "4294967295"])
        || (maps_enough(&users) && maps_enough(&read("/proc/self/gid_map")?));
    Ok(if enough {
        Privilege::Root
    } else {
        Privilege::User
    })
}

/// Whether an id map holds the ids from zero to 2^31 in one extent.
pub(crate) fn maps_enough(map: &str) -> bool {
    map.lines().any(|line| {
        let mut fields = line.split_ascii_whitespace().map(str::parse::<u64>);
        match (fields.next(), fields.next(), fields.next()) {
            (Some(Ok(0)), Some(Ok(_)), Some(Ok(count))) => count >= IDS_FOR_RANGES,
            _ => false,
        }
    })
}

/// Looks for the namespaces that distributions leave out; each lookup below `/proc/self` costs
/// microseconds, and a kernel without one of the others does not boot a distribution.
fn namespaces(sysctls: &Sysctls, has_cgroups: bool) -> Namespaces {
    let has = |name: &str| {
        rustix::fs::access(
            Path::new("/proc/self/ns").join(name),
            rustix::fs::Access::EXISTS,
        )
        .is_ok()
    };
    Namespaces {
        // A kernel that counts them has them.
        user: sysctls.max_user_namespaces.is_some() || has("user"),
        time: has("time"),
        // Every kernel that has cgroups has them, and no switch leaves them out.
        cgroup: has_cgroups || has("cgroup"),
        ..Namespaces::ALL
    }
}

/// What the kernel lets this user have. A kernel that does not tell gives at least the default.
fn inotify() -> Inotify {
    let least = Inotify::default();
    let user = |name: &str| number(&format!("/proc/sys/user/max_inotify_{name}"));
    Inotify {
        instances: user("instances").unwrap_or(least.instances),
        watches: user("watches").unwrap_or(least.watches),
    }
}

fn sysctls(privilege: Privilege, extent: Extent) -> Sysctls {
    let max_user_namespaces = number("/proc/sys/user/max_user_namespaces");
    if (privilege, extent) == (Privilege::Root, Extent::Needed) {
        // The others are about those who have no privilege.
        return Sysctls {
            max_user_namespaces,
            ..Sysctls::default()
        };
    }
    let apparmor_restrict = number("/proc/sys/kernel/apparmor_restrict_unprivileged_userns");
    // The label matters only where the rule is in force; most hosts save the read.
    let apparmor_label = match apparmor_restrict {
        Some(1..) => fs::read_to_string("/proc/self/attr/apparmor/current")
            .or_else(|_| fs::read_to_string("/proc/self/attr/current"))
            .ok()
            .map(|label| label.trim_end_matches(['\n', '\0']).to_owned()),
        _ => None,
    };
    Sysctls {
        userns_clone: number("/proc/sys/kernel/unprivileged_userns_clone"),
        apparmor_restrict,
        apparmor_label,
        max_user_namespaces,
    }
}

/// A number in a file of the kernel; `None` where the file is not there or not readable,
/// which for an optional switch means that it does not apply.
pub(crate) fn number(path: &str) -> Option<u64> {
    small_file(Path::new(path)).ok()?.trim().parse().ok()
}

pub(crate) fn read(path: &str) -> Result<String, HostError> {
    small_file(Path::new(path)).map_err(|source| HostError::Read {
        path: path.into(),
        source,
    })
}

/// Reads a small file of the kernel whole, in one read where that is enough.
///
/// The kernel writes most of these files in one piece, whatever their length. Of the others it
/// fills a page at a time, and stops before a line that does not fit: a read of less than half a
/// page was the last one, since no line of an id map is that long.
pub(crate) fn small_file(path: &Path) -> io::Result<String> {
    let bytes = read_file(path, PAGE / 2)?;
    String::from_utf8(bytes).map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))
}

/// Reads a file of the kernel to its end. The standard library asks for the size first and then
/// reads 32 bytes at a time, which is twice the system calls.
pub(crate) fn whole(path: &Path) -> io::Result<Vec<u8>> {
    read_file(path, 0)
}

const PAGE: usize = 4096;

/// Reads until the end, which a read of fewer bytes than `last` tells without another.
fn read_file(path: &Path, last: usize) -> io::Result<Vec<u8>> {
    let file = rustix::fs::open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
    let mut bytes = Vec::with_capacity(2 * PAGE);
    loop {
        bytes.reserve(PAGE);
        let read = rustix::io::read(&file, rustix::buffer::spare_capacity(&mut bytes))?;
        if read == 0 || read < last {
            close_later(file);
            return Ok(bytes);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ironcage_model::Layer;

    #[test]
    fn releases_of_distributions_are_read() {
        let read = |text| parse_release(text).map(|kernel| (kernel.major, kernel.minor));
        assert_eq!(read("6.18.44-fc-v490"), Some((6, 18)));
        assert_eq!(read("5.15.167.4-microsoft-standard-WSL2"), Some((5, 15)));
        assert_eq!(read("6.1-rc3"), Some((6, 1)));
        assert_eq!(read("mainline"), None);
    }

    #[test]
    fn only_a_map_of_the_whole_range_is_enough() {
        assert!(maps_enough("         0          0 4294967295\n"));
        assert!(!maps_enough("         0       1000          1\n"));
        assert!(!maps_enough("0 1000 1\n1 100000 65536\n"));
        assert!(!maps_enough("1000 1000 4294966295\n"));
        assert!(!maps_enough(""));
    }

    #[test]
    fn this_host_has_an_entry_for_every_layer() {
        let caps = HostCaps::quick(Path::new("/")).unwrap();
        assert!(
            Layer::ALL
                .iter()
                .all(|layer| caps.layers.contains_key(layer))
        );
        assert!(caps.memory > 0 && caps.cpus > 0);
    }
}
