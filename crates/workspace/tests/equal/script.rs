//! Random trees and random sequences of operations on them, and what carries them out.

use std::collections::HashMap;
use std::fs;
use std::io;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};

/// Small numbers that follow from a seed.
pub(crate) struct Dice(u64);

impl Dice {
    pub(crate) fn new(seed: u64) -> Dice {
        Dice(seed)
    }

    pub(crate) fn below(&mut self, sides: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % sides
    }

    fn path(&mut self) -> PathBuf {
        let depth = 1 + self.below(3);
        (0..depth)
            .map(|_| ["a", "b", "c", "d"][self.below(4) as usize])
            .collect()
    }

    fn fill(&mut self) -> Fill {
        let length = [0, 1, 5, 4096, 5000][self.below(5) as usize];
        Fill(b'a' + self.below(26) as u8, length)
    }

    fn mode(&mut self) -> u32 {
        [0o755, 0o700, 0o711, 0o744, 0o750][self.below(5) as usize]
    }
}

/// One byte, many times.
#[derive(Debug, Clone)]
pub(crate) struct Fill(u8, usize);

impl Fill {
    fn bytes(&self) -> Vec<u8> {
        vec![self.0; self.1]
    }
}

#[derive(Debug, Clone)]
pub(crate) enum Operation {
    Write(PathBuf, Fill),
    Append(PathBuf, Fill),
    Truncate(PathBuf, u64),
    Rename(PathBuf, PathBuf),
    Link(PathBuf, PathBuf),
    Symlink(PathBuf, PathBuf),
    Mode(PathBuf, u32),
    MakeDirectory(PathBuf),
    RemoveDirectory(PathBuf),
    Remove(PathBuf),
    RemoveTree(PathBuf),
    FileToDirectory(PathBuf),
    DirectoryToFile(PathBuf, Fill),
    DeleteAndRecreate(PathBuf, Fill),
    Time(PathBuf, u64),
}

pub(crate) fn operations(dice: &mut Dice) -> Vec<Operation> {
    let count = 1 + dice.below(24);
    (0..count).map(|_| operation(dice)).collect()
}

fn operation(dice: &mut Dice) -> Operation {
    let path = dice.path();
    match dice.below(20) {
        0..=2 => Operation::Write(path, dice.fill()),
        3 => Operation::Append(path, dice.fill()),
        4 => Operation::Truncate(path, dice.below(6000)),
        5..=8 => Operation::Rename(path, dice.path()),
        9 => Operation::Link(path, dice.path()),
        10 => Operation::Symlink(dice.path(), path),
        11 => Operation::Mode(path, dice.mode()),
        12 | 13 => Operation::MakeDirectory(path),
        14 => Operation::RemoveDirectory(path),
        15 => Operation::Remove(path),
        16 => Operation::RemoveTree(path),
        17 => Operation::FileToDirectory(path),
        18 => match dice.below(2) {
            0 => Operation::DirectoryToFile(path, dice.fill()),
            _ => Operation::DeleteAndRecreate(path, dice.fill()),
        },
        _ => Operation::Time(path, 1_000_000_000 + dice.below(1_000_000)),
    }
}

/// Makes a random tree, without hard links: those of the lower layer part when one is written.
pub(crate) fn plant(root: &Path, dice: &mut Dice) {
    for _ in 0..dice.below(16) {
        let path = dice.path();
        let operation = match dice.below(5) {
            0 => Operation::Symlink(dice.path(), path),
            1 => Operation::MakeDirectory(path),
            2 => Operation::Mode(path, dice.mode()),
            _ => {
                if let Some(above) = path.parent() {
                    let _ = fs::create_dir_all(root.join(above));
                }
                Operation::Write(path, dice.fill())
            }
        };
        let _ = carry_out(root, &operation, None);
    }
}

/// Carries out an operation. Says `moved by copy` where a directory could not be renamed and was
/// copied, as mv does. What it said in the other tree is done likewise.
pub(crate) fn carry_out(root: &Path, operation: &Operation, as_before: Option<&str>) -> String {
    const BY_COPY: &str = "moved by copy";
    let at = |path: &Path| root.join(path);
    let result = match operation {
        Operation::Write(path, bytes) => write(&at(path), bytes),
        Operation::Append(path, bytes) => plain(&at(path)).and_then(|()| {
            let mut file = fs::OpenOptions::new().append(true).open(at(path))?;
            io::Write::write_all(&mut file, &bytes.bytes())
        }),
        Operation::Truncate(path, length) => plain(&at(path))
            .and_then(|()| fs::OpenOptions::new().write(true).open(at(path)))
            .and_then(|file| file.set_len(*length)),
        Operation::Rename(from, to) => {
            if as_before == Some(BY_COPY) {
                move_by_copy(&at(from), &at(to)).expect("a copy");
                return BY_COPY.into();
            }
            match fs::rename(at(from), at(to)) {
                Err(error) if error.kind() == io::ErrorKind::CrossesDevices => {
                    if may_replace(&at(from), &at(to)) {
                        move_by_copy(&at(from), &at(to)).expect("a copy");
                        return BY_COPY.into();
                    }
                    return "not moved".into();
                }
                result => result,
            }
        }
        Operation::Link(from, to) => {
            plain(&at(from)).and_then(|()| fs::hard_link(at(from), at(to)))
        }
        Operation::Symlink(target, path) => symlink(target, at(path)),
        Operation::Mode(path, mode) => match at(path).symlink_metadata() {
            Ok(metadata) if metadata.is_symlink() => Ok(()),
            Ok(_) => fs::set_permissions(at(path), fs::Permissions::from_mode(*mode)),
            Err(error) => Err(error),
        },
        Operation::MakeDirectory(path) => fs::create_dir(at(path)),
        Operation::RemoveDirectory(path) => fs::remove_dir(at(path)),
        Operation::Remove(path) => fs::remove_file(at(path)),
        Operation::RemoveTree(path) => remove(&at(path)),
        Operation::FileToDirectory(path) => plain(&at(path))
            .and_then(|()| fs::remove_file(at(path)))
            .and_then(|()| fs::create_dir(at(path))),
        Operation::DirectoryToFile(path, bytes) => {
            fs::remove_dir_all(at(path)).and_then(|()| write(&at(path), bytes))
        }
        Operation::DeleteAndRecreate(path, bytes) => remove(&at(path)).and_then(|()| {
            fs::create_dir(at(path))?;
            write(&at(path).join("a"), bytes)
        }),
        Operation::Time(path, seconds) => set_time(&at(path), *seconds as i64),
    };
    match result {
        Ok(()) => "done".into(),
        Err(error) => match error.raw_os_error() {
            // Two names for the same refusal.
            Some(17) => "refused 39".into(),
            Some(number) => format!("refused {number}"),
            None => "refused".into(),
        },
    }
}

/// A file of its own, not what a link leads to: two trees at two places follow links alike, but
/// a link may lead into itself.
fn plain(path: &Path) -> io::Result<()> {
    match path.symlink_metadata()?.is_file() {
        true => Ok(()),
        false => Err(io::Error::from_raw_os_error(22)),
    }
}

fn write(path: &Path, fill: &Fill) -> io::Result<()> {
    match path.symlink_metadata() {
        Ok(metadata) if metadata.is_symlink() => Ok(()),
        _ => fs::write(path, fill.bytes()),
    }
}

fn remove(path: &Path) -> io::Result<()> {
    match path.symlink_metadata()?.is_dir() {
        true => fs::remove_dir_all(path),
        false => fs::remove_file(path),
    }
}

fn set_time(path: &Path, seconds: i64) -> io::Result<()> {
    use super::rustix::fs::{AtFlags, CWD, Timespec, Timestamps, utimensat};
    let time = Timespec {
        tv_sec: seconds,
        tv_nsec: 0,
    };
    let times = Timestamps {
        last_access: time,
        last_modification: time,
    };
    Ok(utimensat(CWD, path, &times, AtFlags::SYMLINK_NOFOLLOW)?)
}

/// Whether a rename of a directory would be allowed where it can be done.
fn may_replace(from: &Path, to: &Path) -> bool {
    if to.starts_with(from) || !to.parent().is_some_and(Path::is_dir) {
        return false;
    }
    match to.symlink_metadata() {
        Err(_) => true,
        Ok(metadata) => {
            metadata.is_dir() && fs::read_dir(to).is_ok_and(|mut inside| inside.next().is_none())
        }
    }
}

fn move_by_copy(from: &Path, to: &Path) -> io::Result<()> {
    if to.symlink_metadata().is_ok() {
        fs::remove_dir(to)?;
    }
    copy(from, to, &mut HashMap::new())?;
    remove(from)
}

fn copy(from: &Path, to: &Path, linked: &mut HashMap<u64, PathBuf>) -> io::Result<()> {
    let metadata = from.symlink_metadata()?;
    if metadata.is_dir() {
        fs::create_dir(to)?;
        for entry in fs::read_dir(from)? {
            let entry = entry?;
            copy(&entry.path(), &to.join(entry.file_name()), linked)?;
        }
        fs::set_permissions(to, metadata.permissions())?;
    } else if metadata.is_symlink() {
        symlink(fs::read_link(from)?, to)?;
    } else if let Some(first) = linked.get(&metadata.ino()) {
        fs::hard_link(first, to)?;
    } else {
        fs::copy(from, to)?;
        fs::set_permissions(to, metadata.permissions())?;
        linked.insert(metadata.ino(), to.to_owned());
    }
    set_time(to, metadata.mtime())
}

/// Everything that can be seen of a tree; times only where an operation set them.
pub(crate) fn picture(root: &Path) -> Vec<String> {
    let mut lines = Vec::new();
    let mut links: HashMap<u64, PathBuf> = HashMap::new();
    let mut work = vec![root.to_owned()];
    while let Some(path) = work.pop() {
        let metadata = path.symlink_metadata().expect("it is there");
        let shown = path.strip_prefix(root).expect("below").to_owned();
        let time = (metadata.mtime() < 1_500_000_000).then(|| metadata.mtime());
        let what = if metadata.is_dir() {
            let mut names: Vec<PathBuf> = fs::read_dir(&path)
                .expect("a directory")
                .map(|entry| entry.expect("an entry").path())
                .collect();
            names.sort();
            names.reverse();
            work.extend(names);
            "directory".to_owned()
        } else if metadata.is_symlink() {
            format!("link to {:?}", fs::read_link(&path).expect("a link"))
        } else {
            let first = links.entry(metadata.ino()).or_insert_with(|| shown.clone());
            let bytes = fs::read(&path).expect("a file");
            format!(
                "file {} x {:?}, as {}",
                bytes.len(),
                bytes.first(),
                first.display()
            )
        };
        lines.push(format!(
            "{} {:o} {time:?} {what}",
            shown.display(),
            metadata.mode() & 0o7777
        ));
    }
    lines
}
