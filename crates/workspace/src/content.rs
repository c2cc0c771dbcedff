//! Contents of files: comparing, and copying with holes.

use ironcage_files::Links;
use ironcage_sys::rustix::fs::{SeekFrom, copy_file_range, ftruncate, ioctl_ficlone, seek};
use ironcage_sys::rustix::io::Errno;
use std::fs::File;
use std::io::{self, Read as _};
use std::os::unix::fs::FileExt as _;
use std::path::Path;

const STEP: usize = 128 * 1024;

/// Whether two files hold the same bytes. What is a hole in both is not read: an agent can make a
/// file that would take hours.
pub(crate) fn same(a: &File, b: &File) -> io::Result<bool> {
    let length = a.metadata()?.len();
    if length != b.metadata()?.len() {
        return Ok(false);
    }
    let (mut left, mut right) = (vec![0; STEP], vec![0; STEP]);
    let mut at = 0;
    loop {
        let data = [next_data(a, at)?, next_data(b, at)?];
        let Some(next) = data.into_iter().flatten().min() else {
            return Ok(true);
        };
        at = next;
        let read = fill(a, &mut left, at)?;
        if fill(b, &mut right, at)? != read || left[..read] != right[..read] {
            return Ok(false);
        }
        if read < STEP {
            return Ok(true);
        }
        at += read as u64;
    }
}

/// Where data begins from a place on; `None` where nothing but a hole is left.
fn next_data(file: &File, at: u64) -> io::Result<Option<u64>> {
    match seek(file, SeekFrom::Data(at)) {
        Ok(start) => Ok(Some(start)),
        Err(Errno::NXIO) => Ok(None),
        // A file system that knows no holes has data all over.
        Err(Errno::INVAL | Errno::NOTSUP) => Ok(Some(at)),
        Err(error) => Err(error.into()),
    }
}

fn fill(file: &File, buffer: &mut [u8], at: u64) -> io::Result<usize> {
    let mut filled = 0;
    while filled < buffer.len() {
        match file.read_at(&mut buffer[filled..], at + filled as u64) {
            Ok(0) => break,
            Ok(read) => filled += read,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(filled)
}

/// The most that is read of a file of Ironcage's own: the journal of a large apply is the longest.
const OWN_SIZE: u64 = 1 << 30;

/// Reads a file that Ironcage keeps beside a change.
pub(crate) fn own_file(path: &Path) -> io::Result<Vec<u8>> {
    Ok(ironcage_files::read(path, OWN_SIZE, Links::Refuse)?)
}

pub(crate) fn own_text(path: &Path) -> io::Result<String> {
    Ok(ironcage_files::read_text(path, OWN_SIZE, Links::Refuse)?)
}

/// Reads a file that has at most so many bytes; `None` when it has more.
pub(crate) fn read_bounded(file: &File, most: u64) -> io::Result<Option<Vec<u8>>> {
    let mut bytes = Vec::new();
    let mut bounded = file.take(most.saturating_add(1));
    bounded.read_to_end(&mut bytes)?;
    Ok((bytes.len() as u64 <= most).then_some(bytes))
}

/// Copies all of a file into an empty one: as a clone where the file system can, else the
/// parts that hold data, so that holes stay holes.
pub(crate) fn copy(from: &File, to: &File) -> io::Result<()> {
    if ioctl_ficlone(to, from).is_ok() {
        return Ok(());
    }
    let length = from.metadata()?.len();
    ftruncate(to, length)?;
    let mut at = 0;
    while at < length {
        let Some(start) = next_data(from, at)? else {
            break;
        };
        let end = match seek(from, SeekFrom::Hole(start)) {
            Ok(end) => end.min(length),
            Err(Errno::INVAL | Errno::NOTSUP) => length,
            Err(error) => return Err(error.into()),
        };
        copy_range(from, to, start, end)?;
        at = end.max(at + 1);
    }
    Ok(())
}

fn copy_range(from: &File, to: &File, start: u64, end: u64) -> io::Result<()> {
    let mut at = start;
    let mut buffer = Vec::new();
    while at < end {
        let wanted = usize::try_from(end - at).unwrap_or(usize::MAX);
        let (mut source, mut target) = (at, at);
        match copy_file_range(from, Some(&mut source), to, Some(&mut target), wanted) {
            // The file became shorter while we read.
            Ok(0) => break,
            Ok(copied) => at += copied as u64,
            Err(Errno::INTR) => {}
            Err(Errno::XDEV | Errno::NOSYS | Errno::INVAL | Errno::OPNOTSUPP | Errno::PERM) => {
                buffer.resize(STEP, 0);
                let part = wanted.min(STEP);
                let read = fill(from, &mut buffer[..part], at)?;
                if read == 0 {
                    break;
                }
                to.write_all_at(&buffer[..read], at)?;
                at += read as u64;
            }
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::MetadataExt as _;

    #[test]
    fn a_sparse_file_is_copied_with_its_holes() {
        let (from, to) = (
            tempfile::tempfile().expect("a file"),
            tempfile::tempfile().expect("a file"),
        );
        from.set_len(64 << 20).expect("a length");
        from.write_all_at(b"middle", 32 << 20).expect("data");
        from.write_all_at(b"end", (64 << 20) - 3).expect("data");
        copy(&from, &to).expect("a copy");
        assert!(same(&from, &to).expect("both can be read"));
        let blocks = to.metadata().expect("metadata").blocks() * 512;
        assert!(blocks < 4 << 20, "{blocks} bytes are taken");
        to.write_all_at(b"X", 1).expect("data");
        assert!(!same(&from, &to).expect("both can be read"));
        assert!(!same(&to, &from).expect("both can be read"));
        // Zeros are what a hole is.
        to.write_all_at(b"\0", 1).expect("data");
        assert!(same(&from, &to).expect("both can be read"));
        to.write_all_at(b"END", (64 << 20) - 3).expect("data");
        assert!(!same(&from, &to).expect("both can be read"));
    }

    #[test]
    fn more_than_the_bound_is_not_read() {
        let file = tempfile::tempfile().expect("a file");
        file.write_all_at(b"12345", 0).expect("data");
        assert_eq!(
            read_bounded(&file, 5).expect("read"),
            Some(b"12345".to_vec())
        );
        let again = file.try_clone().expect("a descriptor");
        io::Seek::rewind(&mut { again }).expect("rewound");
        assert_eq!(read_bounded(&file, 4).expect("read"), None);
    }
}
