//! Why a host gives this process no cgroup.

use serde::{Serialize, Serializer};
use std::fmt;
use std::path::PathBuf;

/// Why no group can be made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NoCgroup {
    /// `/proc/self/cgroup` cannot be read.
    NoCgroups,
    NoVersion2,
    NotMounted,
    /// The group of this process is outside its cgroup namespace.
    OutsideNamespace,
    /// The group of this process is not below the mount point.
    NotVisible {
        group: String,
        point: PathBuf,
    },
    NoControllers,
    /// A container's root group, which has processes and so no controllers for children.
    Container {
        group: PathBuf,
    },
    NotDelegated {
        group: PathBuf,
    },
    /// A test left the layer out.
    LeftOut,
}

impl NoCgroup {
    pub fn remedy(&self) -> Option<&'static str> {
        match self {
            NoCgroup::NotMounted => Some("as root: mount -t cgroup2 none /sys/fs/cgroup"),
            NoCgroup::NoControllers => {
                Some("boot with systemd.unified_cgroup_hierarchy=1 on the kernel command line")
            }
            NoCgroup::Container { .. } => Some(
                "start the container with a cgroup manager inside, \
                 or with --cgroupns=host and /sys/fs/cgroup writable",
            ),
            NoCgroup::NotDelegated { .. } => {
                Some("start with: systemd-run --user --scope -p Delegate=yes ironcage ...")
            }
            NoCgroup::NoCgroups
            | NoCgroup::NoVersion2
            | NoCgroup::OutsideNamespace
            | NoCgroup::NotVisible { .. }
            | NoCgroup::LeftOut => None,
        }
    }

    /// With the remedy behind it.
    pub fn with_remedy(&self) -> String {
        match self.remedy() {
            Some(remedy) => format!("{self}; {remedy}"),
            None => self.to_string(),
        }
    }
}

impl fmt::Display for NoCgroup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            NoCgroup::NoCgroups => {
                f.write_str("this kernel has no cgroups, or /proc is not mounted")
            }
            NoCgroup::NoVersion2 => f.write_str("this kernel has no cgroup version 2"),
            NoCgroup::NotMounted => f.write_str("no cgroup file system is mounted"),
            NoCgroup::OutsideNamespace => {
                f.write_str("this process's cgroup is outside the cgroup namespace")
            }
            NoCgroup::NotVisible { group, point } => {
                let point = point.display();
                write!(
                    f,
                    "the cgroup {group} of this process is not visible below {point}"
                )
            }
            NoCgroup::NoControllers => {
                f.write_str("cgroup v2 has none of the controllers memory, pids and cpu")
            }
            NoCgroup::Container { group } => write!(
                f,
                "the cgroup /{} has its own processes and no controllers for children \
                 (a container with its own cgroup namespace)",
                group.display()
            ),
            NoCgroup::NotDelegated { group } => {
                write!(
                    f,
                    "the cgroup /{} is not delegated to this user",
                    group.display()
                )
            }
            NoCgroup::LeftOut => f.write_str("left out"),
        }
    }
}

impl Serialize for NoCgroup {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&self.with_remedy())
    }
}
