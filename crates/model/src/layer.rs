//! The layers a cage is built from, by the names users type and read.

use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// One kernel mechanism that a cage is built from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Layer {
    /// User namespace: ids inside are not ids outside.
    UserNs,
    /// Mount namespace: an allow-listed file view behind pivot_root.
    MountNs,
    /// Process-id namespace: no outside process is visible, all die with PID 1.
    PidNs,
    /// Network namespace: only the cage's own loopback.
    NetNs,
    /// IPC namespace: own System V IPC and POSIX message queues.
    IpcNs,
    /// UTS namespace: own host name.
    UtsNs,
    /// Cgroup namespace: the cgroup path outside is not visible.
    CgroupNs,
    /// Time namespace: own monotonic and boot clocks.
    TimeNs,
    /// All capabilities dropped, bounding set included.
    Capabilities,
    /// no_new_privs: set-user-id programs gain nothing.
    NoNewPrivs,
    /// Seccomp allow-list of system calls.
    Seccomp,
    /// Landlock: a second lock on file writes, signals and abstract sockets.
    Landlock,
    /// No inherited descriptor but the three standard streams, as pipes or an own pty.
    Descriptors,
    /// A session of its own: no way to the user's terminal.
    Session,
    /// Per-user kernel counters (namespaces, inotify) limited inside the user namespace.
    Counters,
    /// Bound on memory, tmpfs and memfd included.
    Memory,
    /// Bound on processor time.
    Cpu,
    /// Bound on the number of processes and threads.
    Pids,
    /// Bound on bytes written to storage.
    Disk,
    /// Bound on the number of files created.
    Inodes,
    /// Bound on open descriptors for each process.
    Files,
}

impl Layer {
    /// Every layer, in the order in which reports list them.
    pub const ALL: [Layer; 21] = [
        Layer::UserNs,
        Layer::MountNs,
        Layer::PidNs,
        Layer::NetNs,
        Layer::IpcNs,
        Layer::UtsNs,
        Layer::CgroupNs,
        Layer::TimeNs,
        Layer::Capabilities,
        Layer::NoNewPrivs,
        Layer::Seccomp,
        Layer::Landlock,
        Layer::Descriptors,
        Layer::Session,
        Layer::Counters,
        Layer::Memory,
        Layer::Cpu,
        Layer::Pids,
        Layer::Disk,
        Layer::Inodes,
        Layer::Files,
    ];

    /// The name used in policies, flags and reports.
    pub const fn name(self) -> &'static str {
        match self {
            Layer::UserNs => "user-ns",
            Layer::MountNs => "mount-ns",
            Layer::PidNs => "pid-ns",
            Layer::NetNs => "net-ns",
            Layer::IpcNs => "ipc-ns",
            Layer::UtsNs => "uts-ns",
            Layer::CgroupNs => "cgroup-ns",
            Layer::TimeNs => "time-ns",
            Layer::Capabilities => "capabilities",
            Layer::NoNewPrivs => "no-new-privs",
            Layer::Seccomp => "seccomp",
            Layer::Landlock => "landlock",
            Layer::Descriptors => "descriptors",
            Layer::Session => "session",
            Layer::Counters => "counters",
            Layer::Memory => "memory",
            Layer::Cpu => "cpu",
            Layer::Pids => "pids",
            Layer::Disk => "disk",
            Layer::Inodes => "inodes",
            Layer::Files => "files",
        }
    }
}

impl fmt::Display for Layer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A layer name that does not exist.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnknownLayer(pub String);

impl fmt::Display for UnknownLayer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "unknown layer `{}`; expected one of ", self.0)?;
        for (i, layer) in Layer::ALL.iter().enumerate() {
            if i > 0 {
                f.write_str(", ")?;
            }
            f.write_str(layer.name())?;
        }
        Ok(())
    }
}

impl std::error::Error for UnknownLayer {}

impl FromStr for Layer {
    type Err = UnknownLayer;

    fn from_str(s: &str) -> Result<Self, Self::Err> {
        Layer::ALL
            .into_iter()
            .find(|layer| layer.name() == s)
            .ok_or_else(|| UnknownLayer(s.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_parses_back_to_its_layer() {
        for layer in Layer::ALL {
            assert_eq!(layer.name().parse::<Layer>(), Ok(layer));
        }
    }

    #[test]
    fn an_unknown_name_is_refused_with_the_list_of_names() {
        let error = "bpf".parse::<Layer>().unwrap_err().to_string();
        assert!(error.contains("`bpf`") && error.contains("seccomp"));
    }
}
