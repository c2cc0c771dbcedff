//! Processes as /proc shows them: who is whose child, whose program it is, what memory it
//! has to itself.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// One process. Its start time is part of it: a number is used again, the pair is not.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Process {
    pub(crate) pid: i32,
    pub(crate) parent: i32,
    pub(crate) started: u64,
    pub(crate) name: String,
}

/// All processes at one moment.
#[derive(Debug, Default)]
pub(crate) struct ProcessTree {
    processes: BTreeMap<i32, Process>,
    children: BTreeMap<i32, Vec<i32>>,
}

impl ProcessTree {
    /// Reads /proc. A process that ends meanwhile is left out.
    pub(crate) fn now() -> io::Result<ProcessTree> {
        let mut tree = ProcessTree::default();
        for entry in fs::read_dir("/proc")? {
            let name = entry?.file_name();
            let Some(pid) = name.to_str().and_then(|name| name.parse().ok()) else {
                continue;
            };
            if let Some(process) = read_process(pid) {
                tree.insert(process);
            }
        }
        Ok(tree)
    }

    fn insert(&mut self, process: Process) {
        self.children
            .entry(process.parent)
            .or_default()
            .push(process.pid);
        self.processes.insert(process.pid, process);
    }

    pub(crate) fn all(&self) -> impl Iterator<Item = &Process> {
        self.processes.values()
    }

    /// A process and all below it.
    pub(crate) fn below(&self, top: i32) -> Vec<&Process> {
        let mut found = Vec::new();
        let mut pending = vec![top];
        while let Some(pid) = pending.pop() {
            found.extend(self.processes.get(&pid));
            pending.extend(self.children.get(&pid).into_iter().flatten());
        }
        found
    }
}

/// A process by its number, if it exists and is not merely waiting to be collected.
pub(crate) fn read_process(pid: i32) -> Option<Process> {
    parse_stat(&fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)
}

/// `pid (name) state ppid ...`: the name may hold spaces and brackets, so the last closing
/// bracket ends it.
fn parse_stat(text: &str) -> Option<Process> {
    let (pid, rest) = text.split_once(" (")?;
    let (name, rest) = rest.rsplit_once(") ")?;
    let fields: Vec<&str> = rest.split_ascii_whitespace().collect();
    if *fields.first()? == "Z" {
        return None;
    }
    Some(Process {
        pid: pid.parse().ok()?,
        parent: fields.get(1)?.parse().ok()?,
        started: fields.get(19)?.parse().ok()?,
        name: name.to_owned(),
    })
}

/// Whether a process runs this very file; an error when that may not be looked at.
pub(crate) fn runs_program(pid: i32, program: &Path) -> io::Result<bool> {
    let theirs = fs::metadata(format!("/proc/{pid}/exe"))?;
    let ours = fs::metadata(program)?;
    Ok((theirs.dev(), theirs.ino()) == (ours.dev(), ours.ino()))
}

/// Memory that a process shares with no other, in bytes.
pub(crate) fn private_memory(pid: i32) -> io::Result<u64> {
    let text = fs::read_to_string(format!("/proc/{pid}/smaps_rollup"))?;
    sum_private(&text).ok_or_else(|| io::Error::other("no Private_ lines in smaps_rollup"))
}

fn sum_private(text: &str) -> Option<u64> {
    let kilobytes: Vec<u64> = text
        .lines()
        .filter_map(|line| {
            let (key, value) = line.split_once(':')?;
            matches!(key, "Private_Clean" | "Private_Dirty")
                .then(|| value.trim().trim_end_matches(" kB").parse().ok())?
        })
        .collect();
    (kilobytes.len() == 2).then(|| kilobytes.iter().sum::<u64>() * 1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stat(name: &str, state: &str) -> String {
        format!("41 ({name}) {state} 7 1 1 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 1 0 9876 1 2")
    }

    #[test]
    fn a_name_with_brackets_does_not_shift_the_fields() {
        let process = parse_stat(&stat("a) R 99 (b", "S")).unwrap();
        assert_eq!((process.pid, process.parent), (41, 7));
        assert_eq!(
            (process.name.as_str(), process.started),
            ("a) R 99 (b", 9876)
        );
    }

    #[test]
    fn one_that_only_waits_to_be_collected_does_not_count() {
        assert_eq!(parse_stat(&stat("x", "Z")), None);
        assert!(parse_stat(&stat("x", "S")).is_some());
    }

    #[test]
    fn below_holds_the_whole_tree_and_nothing_else() {
        let mut tree = ProcessTree::default();
        for (pid, parent) in [(10, 1), (11, 10), (12, 11), (13, 1)] {
            let name = String::new();
            tree.insert(Process {
                pid,
                parent,
                started: 0,
                name,
            });
        }
        let mut pids: Vec<i32> = tree.below(10).iter().map(|p| p.pid).collect();
        pids.sort_unstable();
        assert_eq!(pids, [10, 11, 12]);
    }

    #[test]
    fn private_memory_is_clean_and_dirty_together() {
        let text =
            "Rss: 100 kB\nPrivate_Clean:  12 kB\nPrivate_Dirty:  30 kB\nPrivate_Hugetlb: 0 kB\n";
        assert_eq!(sum_private(text), Some(42 * 1024));
        assert_eq!(sum_private("Rss: 100 kB\n"), None);
    }

    #[test]
    fn this_process_is_seen() {
        let own = std::process::id().cast_signed();
        let tree = ProcessTree::now().unwrap();
        assert_eq!(tree.below(own)[0].pid, own);
        assert!(private_memory(own).unwrap() > 0);
        assert!(runs_program(own, &std::env::current_exe().unwrap()).unwrap());
        assert!(!runs_program(own, Path::new("/bin/sh")).unwrap());
    }
}
