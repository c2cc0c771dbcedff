//! Which mode comes over, and what of it has to be told.
//!
//! An agent does not decide who else may read, write or enter what the user owns. The user's
//! umask holds for whatever comes over, as for what the user makes: beyond the bits that the real
//! file has already, group and others get none that the umask takes. A gain within it is
//! told, or stays aside where it lets them write.

use crate::executed::{Note, shape};
use crate::tree::{Kind, Node};
use std::path::Path;

const SET_ID: u32 = 0o6000;
const SET_GROUP: u32 = 0o2000;
const STICKY: u32 = 0o1000;
const OTHERS: u32 = 0o077;
const WRITE: u32 = 0o022;
const READ: u32 = 0o044;

/// The umask of this process: of the user who applies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Umask(u32);

impl Umask {
    /// Read and not set, which would change it for other threads. Where it cannot be read it is
    /// the strictest.
    pub(crate) fn of_process() -> Umask {
        const STRICTEST: u32 = 0o077;
        let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
        let value = status.lines().find_map(|line| line.strip_prefix("Umask:"));
        let value = value.and_then(|value| u32::from_str_radix(value.trim(), 8).ok());
        Umask(value.unwrap_or(STRICTEST))
    }

    /// The mode that something of the agent's gets in the real tree.
    pub(crate) fn applied_mode(self, before: Option<&Node>, after: &Node) -> u32 {
        let had = before.filter(|before| before.kind == after.kind);
        let had = had.map_or(0, |before| before.mode & OTHERS);
        after.mode & !(self.0 & OTHERS & !had)
    }

    /// What has to be told of a mode. `above` is the mode of the real directory that it lies in.
    pub(crate) fn notes(
        self,
        path: &Path,
        before: Option<&Node>,
        after: &Node,
        above: Option<u32>,
    ) -> Vec<Note> {
        if matches!(after.kind, Kind::Link | Kind::Socket | Kind::Device) {
            return Vec::new();
        }
        let told = |name: &str| shape(name, path.to_owned());
        let before = before.filter(|before| before.kind == after.kind);
        let mode = self.applied_mode(before, after);
        let is_directory = after.kind == Kind::Directory;
        let mut notes = Vec::new();
        if !is_directory && after.mode & SET_ID != 0 {
            notes.extend(told("set-id"));
        }
        let had_set_group = before.map(|before| before.mode).or(above).unwrap_or(0) & SET_GROUP;
        if is_directory && mode & SET_GROUP != 0 && had_set_group == 0 {
            notes.extend(told("mode-set-group"));
        }
        let Some(before) = before else {
            return notes;
        };
        let gained = mode & !before.mode & OTHERS;
        let lost_sticky =
            is_directory && before.mode & STICKY != 0 && mode & STICKY == 0 && mode & WRITE != 0;
        // A program whose text could be read before could be run before, by a copy of it; a
        // directory is entered by that bit alone.
        let tells = if is_directory { READ | 0o011 } else { READ };
        if gained & WRITE != 0 || lost_sticky {
            notes.extend(told("mode-write"));
        } else if gained & tells != 0 || gained & 0o011 & !(before.mode >> 2) != 0 {
            notes.extend(told("mode-read"));
        }
        if after.mode & !mode & WRITE != 0 {
            notes.extend(told("mode-cut"));
        }
        notes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(kind: Kind, mode: u32) -> Node {
        let file = tempfile::tempfile().expect("a file");
        let mut node = Node::of(&file).expect("a node");
        (node.kind, node.mode) = (kind, mode);
        node
    }

    /// Umask, mode before (none where it is new), mode in the change; mode applied, reasons.
    type Case = (u32, Option<u32>, u32, u32, &'static [&'static str]);

    fn check(kind: Kind, cases: &[Case]) {
        for (umask, before, after, applied, told) in cases {
            let umask = Umask(*umask);
            let before = before.map(|mode| node(kind, mode));
            let after = node(kind, *after);
            let case = format!("{umask:?} {before:?} {after:?}");
            assert_eq!(
                umask.applied_mode(before.as_ref(), &after),
                *applied,
                "{case}"
            );
            let notes = umask.notes(Path::new("x"), before.as_ref(), &after, Some(0o755));
            let wanted = told.iter().filter_map(|name| shape(name, "x".into()));
            assert_eq!(notes, wanted.collect::<Vec<_>>(), "{case}");
        }
    }

    #[test]
    fn files_gain_nothing_in_silence() {
        check(
            Kind::File,
            &[
                // New ones are cut as by the umask at creation.
                (0o022, None, 0o644, 0o644, &[]),
                (0o022, None, 0o777, 0o755, &[]),
                (0o077, None, 0o644, 0o600, &[]),
                (0o002, None, 0o664, 0o664, &[]),
                (0o022, None, 0o4755, 0o4755, &["set-id"]),
                // What is there keeps what it has.
                (0o022, Some(0o644), 0o644, 0o644, &[]),
                (0o022, Some(0o666), 0o666, 0o666, &[]),
                (0o022, Some(0o644), 0o600, 0o600, &[]),
                (0o022, Some(0o644), 0o755, 0o755, &[]),
                (0o022, Some(0o644), 0o666, 0o644, &["mode-cut"]),
                (0o022, Some(0o755), 0o777, 0o755, &["mode-cut"]),
                (0o002, Some(0o644), 0o664, 0o664, &["mode-write"]),
                (0o000, Some(0o644), 0o666, 0o666, &["mode-write"]),
                (0o022, Some(0o600), 0o644, 0o644, &["mode-read"]),
                (0o022, Some(0o700), 0o711, 0o711, &["mode-read"]),
                (0o077, Some(0o600), 0o644, 0o600, &[]),
            ],
        );
    }

    #[test]
    fn directories_gain_nothing_in_silence() {
        check(
            Kind::Directory,
            &[
                (0o022, None, 0o777, 0o755, &[]),
                (0o022, None, 0o2755, 0o2755, &["mode-set-group"]),
                (0o022, Some(0o755), 0o777, 0o755, &["mode-cut"]),
                (0o022, Some(0o700), 0o755, 0o755, &["mode-read"]),
                (0o022, Some(0o700), 0o711, 0o711, &["mode-read"]),
                (0o000, Some(0o755), 0o775, 0o775, &["mode-write"]),
                (0o022, Some(0o755), 0o1755, 0o1755, &[]),
                (0o022, Some(0o755), 0o2755, 0o2755, &["mode-set-group"]),
                (0o022, Some(0o2755), 0o2755, 0o2755, &[]),
                // Without the bit everybody removes what others made in it.
                (0o022, Some(0o1777), 0o777, 0o777, &["mode-write"]),
                (0o022, Some(0o1777), 0o755, 0o755, &[]),
            ],
        );
    }

    #[test]
    fn the_umask_of_the_process_is_read() {
        let said = std::process::Command::new("/bin/sh")
            .args(["-c", "umask"])
            .output()
            .expect("a shell");
        let said = String::from_utf8(said.stdout).expect("text");
        let wanted = u32::from_str_radix(said.trim(), 8).expect("a number");
        assert_eq!(Umask::of_process(), Umask(wanted));
    }
}
