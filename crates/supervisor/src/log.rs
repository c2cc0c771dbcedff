//! The output of a background cage, kept in its directory below the state directory: two files
//! at most, each of a bounded size.

use ironcage_state::{EARLIER_LOG, OUTPUT_LOG};
use ironcage_sys::rustix::fs::{Mode, OFlags, open};
use ironcage_sys::rustix::io::{Errno, write};
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

/// When the current one becomes the one before.
pub(crate) const MOST: u64 = 8 * 1024 * 1024;

/// The log of a cage's output, open for writing.
#[derive(Debug)]
pub(crate) struct OutputLog {
    directory: PathBuf,
    file: OwnedFd,
    length: u64,
}

fn create(directory: &Path) -> Result<OwnedFd, Errno> {
    let flags =
        OFlags::WRONLY | OFlags::CREATE | OFlags::APPEND | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    open(directory.join(OUTPUT_LOG), flags, Mode::RUSR | Mode::WUSR)
}

impl OutputLog {
    /// Begins a log in a directory.
    pub(crate) fn create(directory: &Path) -> io::Result<Self> {
        Ok(OutputLog {
            file: create(directory)?,
            directory: directory.to_owned(),
            length: 0,
        })
    }

    /// Appends bytes. Where the disk is full they are lost: the cage goes on, and the record of
    /// what it did is another.
    pub(crate) fn append(&mut self, mut bytes: &[u8]) {
        if self.length >= MOST {
            let before = self.directory.join(EARLIER_LOG);
            if std::fs::rename(self.directory.join(OUTPUT_LOG), before).is_ok()
                && let Ok(file) = create(&self.directory)
            {
                self.file = file;
                self.length = 0;
            } else {
                return;
            }
        }
        while !bytes.is_empty() {
            match write(&self.file, bytes) {
                Ok(0) => return,
                Ok(count) => {
                    self.length += count as u64;
                    bytes = bytes.get(count..).unwrap_or_default();
                }
                Err(Errno::INTR) => {}
                Err(_) => return,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn however_much_is_written_two_files_of_a_bounded_size_are_kept() {
        let place = tempfile::tempdir().unwrap();
        let mut log = OutputLog::create(place.path()).unwrap();
        let block = vec![b'x'; 1 << 20];
        for _ in 0..30 {
            log.append(&block);
        }
        log.append(b"the last words");
        let size = |name: &str| std::fs::metadata(place.path().join(name)).unwrap().len();
        assert!(size(OUTPUT_LOG) <= MOST + (1 << 20) && size(EARLIER_LOG) <= MOST + (1 << 20));
        let names = std::fs::read_dir(place.path()).unwrap().count();
        assert_eq!(names, 2);
        let text = std::fs::read(place.path().join(OUTPUT_LOG)).unwrap();
        assert!(text.ends_with(b"the last words"));
    }
}
