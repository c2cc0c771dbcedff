//! Places of the host that hold private data or untrusted content, because a cage that had come
//! into contact with it could write there.
//!
//! One line for each in a file of the state directory: who reads such a place has what its line
//! says. A line that cannot be read says the worst of every place. Whoever writes holds a lock, and
//! when the file has become long, lines of places that are not there any more go.

use ironcage_files::{Links, ReadError};
use ironcage_model::{CageId, Taint};
use ironcage_sys::rustix::fs::stat;
use ironcage_sys::rustix::io::Errno;
use serde::{Deserialize, Serialize};
use std::fs::{File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

const NAME: &str = "taint.jsonl";
/// What is longer was not written by us.
const LONGEST: u64 = 16 << 20;
/// From which length on it is looked for what can go.
const LONG: u64 = 256 << 10;

/// What is known of one place.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mark {
    /// Its real path; what lies in it is meant too.
    pub place: PathBuf,
    pub taint: Taint,
    /// From which cage; `None` where the line cannot be read.
    pub cage: Option<CageId>,
}

/// Which edition of the marks there is: the same one says the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Edition {
    /// There is no mark.
    None,
    /// A file with marks, by its number, its length and when it was changed.
    Some(u64, u64, i64, i64),
}

/// All marks of one user.
#[derive(Debug, Clone)]
pub struct Marks {
    path: PathBuf,
}

impl Marks {
    /// Those in a state directory.
    pub fn in_state(state: &Path) -> Marks {
        Marks {
            path: state.join(NAME),
        }
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Which edition there is now.
    ///
    /// # Errors
    /// Where the file is there and cannot be looked at.
    pub fn edition(&self) -> io::Result<Edition> {
        match stat(&self.path) {
            Ok(file) => Ok(Edition::Some(
                file.st_ino,
                file.st_size.unsigned_abs(),
                file.st_mtime,
                i64::try_from(file.st_mtime_nsec).unwrap_or(0),
            )),
            Err(Errno::NOENT) => Ok(Edition::None),
            Err(error) => Err(error.into()),
        }
    }

    /// Every mark, in the order in which they were made.
    ///
    /// # Errors
    /// Where the file is there and cannot be read.
    pub fn all(&self) -> io::Result<Vec<Mark>> {
        let text = match ironcage_files::read(&self.path, LONGEST, Links::Refuse) {
            Ok(text) => text,
            Err(error) if error.is_absent() => return Ok(Vec::new()),
            Err(ReadError::TooLarge { .. }) => return Ok(vec![worst()]),
            Err(error) => return Err(error.into()),
        };
        let lines = text.split(|byte| *byte == b'\n');
        let lines = lines.filter(|line| !line.is_empty());
        Ok(lines
            .map(|line| serde_json::from_slice(line).unwrap_or_else(|_| worst()))
            .collect())
    }

    /// The marks of what can be read at these places: on them, in them, or around them.
    ///
    /// # Errors
    /// Where the file is there and cannot be read.
    pub fn of(&self, places: &[&Path]) -> io::Result<Vec<Mark>> {
        let meets = |mark: &Mark| {
            let mut places = places.iter();
            places.any(|place| place.starts_with(&mark.place) || mark.place.starts_with(place))
        };
        let mut all = self.all()?;
        all.retain(meets);
        Ok(all)
    }

    /// Marks places, as far as they are not.
    ///
    /// # Errors
    /// Where the file cannot be read or written.
    pub fn add(&self, places: &[&Path], taint: Taint, cage: &CageId) -> io::Result<()> {
        let mut known = self.all()?;
        if lacking(&known, places, taint).next().is_none() {
            return Ok(());
        }
        let _lock = self.lock()?;
        known = self.all()?;
        let mut text = Vec::new();
        for place in lacking(&known, places, taint) {
            let mark = Mark {
                place: place.to_owned(),
                taint,
                cage: Some(cage.clone()),
            };
            serde_json::to_writer(&mut text, &mark)?;
            text.push(b'\n');
        }
        let mut file = OpenOptions::new()
            .append(true)
            .create(true)
            .mode(0o600)
            .open(&self.path)?;
        let before = file.metadata()?.len();
        if let Err(error) = file.write_all(&text) {
            // Half a line would say the worst of every place.
            file.set_len(before)?;
            return Err(error);
        }
        if before > LONG {
            let there = |mark: &Mark| std::fs::symlink_metadata(&mark.place).is_ok();
            self.keep(there)?;
        }
        Ok(())
    }

    /// Waits until nobody else writes.
    fn lock(&self) -> io::Result<File> {
        let mut options = OpenOptions::new();
        let options = options.create(true).append(true).mode(0o600);
        let file = options.open(self.path.with_extension("lock"))?;
        file.lock()?;
        Ok(file)
    }

    /// Takes the marks of a place and of everything in it away. Returns how many there were.
    ///
    /// # Errors
    /// Where the file cannot be read or replaced.
    pub fn forget(&self, place: &Path) -> io::Result<usize> {
        let _lock = self.lock()?;
        self.keep(|mark| !mark.place.starts_with(place))
    }

    /// Keeps some, under the lock. Returns how many are gone.
    fn keep(&self, keeps: impl Fn(&Mark) -> bool) -> io::Result<usize> {
        let all = self.all()?;
        let kept: Vec<&Mark> = all.iter().filter(|mark| keeps(mark)).collect();
        let gone = all.len() - kept.len();
        if gone == 0 {
            return Ok(0);
        }
        let mut text = Vec::new();
        for mark in kept {
            serde_json::to_writer(&mut text, mark)?;
            text.push(b'\n');
        }
        let new = self.path.with_extension("new");
        let mut file = OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(true)
            .mode(0o600)
            .open(&new)?;
        file.write_all(&text)?;
        file.sync_all()?;
        std::fs::rename(&new, &self.path)?;
        Ok(gone)
    }
}

/// Those of some places of which not all of this is known.
fn lacking<'a>(
    known: &[Mark],
    places: &'a [&Path],
    taint: Taint,
) -> impl Iterator<Item = &'a Path> {
    let places = places.iter().map(|place| nameable(place));
    places.filter(move |place| {
        let has = known.iter().filter(|mark| place.starts_with(&mark.place));
        let has = has.fold(Taint::NONE, |taint, mark| taint.with(mark.taint));
        has.with(taint) != has
    })
}

fn worst() -> Mark {
    Mark {
        place: PathBuf::from("/"),
        taint: Taint {
            private: true,
            untrusted: true,
        },
        cage: None,
    }
}

/// The place, or what is around it where a line cannot name it.
fn nameable(place: &Path) -> &Path {
    let mut above = place.ancestors();
    above
        .find(|path| path.to_str().is_some())
        .unwrap_or(Path::new("/"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ffi::OsStr;
    use std::os::unix::ffi::OsStrExt as _;

    const PRIVATE: Taint = Taint {
        private: true,
        untrusted: false,
    };
    const UNTRUSTED: Taint = Taint {
        private: false,
        untrusted: true,
    };

    fn known(marks: &Marks, place: &str) -> Taint {
        let found = marks.of(&[Path::new(place)]).unwrap();
        let taints = found.iter().map(|mark| mark.taint);
        taints.fold(Taint::NONE, Taint::with)
    }

    #[test]
    fn a_mark_holds_for_the_place_what_is_in_it_and_what_is_around_it_until_it_is_forgotten() {
        let directory = tempfile::tempdir().unwrap();
        let marks = Marks::in_state(directory.path());
        let cage = CageId::from_entropy([7; 12]);
        assert_eq!(known(&marks, "/a"), Taint::NONE);
        marks.add(&[Path::new("/a/b")], PRIVATE, &cage).unwrap();
        marks.add(&[Path::new("/a/c")], UNTRUSTED, &cage).unwrap();
        assert_eq!(known(&marks, "/a/b"), PRIVATE);
        assert_eq!(known(&marks, "/a/b/deep"), PRIVATE);
        assert_eq!(known(&marks, "/a/c"), UNTRUSTED);
        assert_eq!(known(&marks, "/a/d"), Taint::NONE);
        assert_eq!(known(&marks, "/a/bb"), Taint::NONE);
        assert!(known(&marks, "/a").meets());
        // What is known is not written twice, nor what lies in it.
        let before = std::fs::read(marks.path()).unwrap();
        let inner = [Path::new("/a/b"), Path::new("/a/b/deep")];
        marks.add(&inner, PRIVATE, &cage).unwrap();
        assert_eq!(std::fs::read(marks.path()).unwrap(), before);
        assert_eq!(marks.forget(Path::new("/a/b/deep")).unwrap(), 0);
        assert_eq!(marks.forget(Path::new("/a/b")).unwrap(), 1);
        assert_eq!(known(&marks, "/a/b"), Taint::NONE);
        assert_eq!(known(&marks, "/a/c"), UNTRUSTED);
    }

    #[test]
    fn what_cannot_be_read_or_named_says_more_and_never_less() {
        let directory = tempfile::tempdir().unwrap();
        let marks = Marks::in_state(directory.path());
        let cage = CageId::from_entropy([7; 12]);
        let odd = Path::new(OsStr::from_bytes(b"/a/\xff/b"));
        marks.add(&[odd], PRIVATE, &cage).unwrap();
        assert_eq!(known(&marks, "/a/x"), PRIVATE);
        assert_eq!(known(&marks, "/b"), Taint::NONE);
        std::fs::write(marks.path(), "{\"place\": \"/a").unwrap();
        assert!(known(&marks, "/b").meets());
        assert_eq!(marks.forget(Path::new("/")).unwrap(), 1);
        assert_eq!(known(&marks, "/b"), Taint::NONE);
    }
}
