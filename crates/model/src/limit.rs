//! Limits of a cage, and what is said when one is hit.

use serde::{Deserialize, Serialize};
use std::fmt;

/// One limit of a cage.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum LimitKind {
    /// Memory in bytes, tmpfs and memfd included.
    Memory,
    /// Processor time.
    Cpus,
    /// Processes and threads.
    Pids,
    /// Bytes written.
    Disk,
    /// Files created.
    Inodes,
    /// Open descriptors for each process.
    Files,
    /// Wall-clock time.
    Time,
    /// Time without output, input or processor use.
    Idle,
}

impl LimitKind {
    /// The name in policies; the flag is the same with two dashes before it.
    pub const fn name(self) -> &'static str {
        match self {
            LimitKind::Memory => "memory",
            LimitKind::Cpus => "cpus",
            LimitKind::Pids => "pids",
            LimitKind::Disk => "disk",
            LimitKind::Inodes => "inodes",
            LimitKind::Files => "files",
            LimitKind::Time => "time",
            LimitKind::Idle => "idle",
        }
    }
}

impl fmt::Display for LimitKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A limit that was reached.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LimitHit {
    /// Which one.
    pub limit: LimitKind,
    /// Its value as a person writes it: `512M`, `100`, `30s`.
    pub value: String,
    /// Whether it ended the run: the cage was killed, or had written more than it may when its
    /// command ended. Otherwise the kernel refused the operation.
    pub ended: bool,
    /// Bytes or files that were counted, where that is more than the limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub used: Option<u64>,
}

impl LimitHit {
    /// What was counted, as a person reads it.
    pub fn used_as_written(&self) -> Option<String> {
        const MEGABYTE: u64 = 1 << 20;
        self.used.map(|used| match self.limit {
            LimitKind::Memory | LimitKind::Disk if used >= MEGABYTE => {
                format!("{}M", used.div_ceil(MEGABYTE))
            }
            LimitKind::Memory | LimitKind::Disk => format!("{used} bytes"),
            _ => used.to_string(),
        })
    }
}

/// A size as a person writes it: `536870912` is `512M`, the largest unit that leaves no rest.
pub fn bytes_as_written(bytes: u64) -> String {
    const UNITS: [(&str, u64); 4] = [
        ("T", 1 << 40),
        ("G", 1 << 30),
        ("M", 1 << 20),
        ("K", 1 << 10),
    ];
    UNITS
        .into_iter()
        .find(|(_, size)| bytes >= *size && bytes.is_multiple_of(*size))
        .map_or_else(
            || bytes.to_string(),
            |(unit, size)| format!("{}{unit}", bytes / size),
        )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_used_is_rounded_up_so_that_it_never_reads_as_the_limit() {
        let hit = |limit, used| LimitHit {
            limit,
            value: "64M".into(),
            ended: true,
            used,
        };
        let written = |limit, used| hit(limit, used).used_as_written();
        assert_eq!(written(LimitKind::Disk, None), None);
        let disk = written(LimitKind::Disk, Some((64 << 20) + 1));
        assert_eq!(disk.as_deref(), Some("65M"));
        let small = written(LimitKind::Disk, Some(4096));
        assert_eq!(small.as_deref(), Some("4096 bytes"));
        let files = written(LimitKind::Inodes, Some(5001));
        assert_eq!(files.as_deref(), Some("5001"));
    }

    #[test]
    fn sizes_are_written_in_the_largest_unit_without_rest() {
        assert_eq!(bytes_as_written(512 << 20), "512M");
        assert_eq!(bytes_as_written((1 << 30) + 1), "1073741825");
        assert_eq!(bytes_as_written(0), "0");
    }
}
