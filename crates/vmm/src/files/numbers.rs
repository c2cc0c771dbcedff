//! Numbers of requests, as those of system calls.

use fuse_backend_rs::abi::fuse_abi::{SetattrValid, stat64};
use ironcage_sys::rustix::fs::{FileType, OFlags, Timespec, Timestamps};

/// `UTIME_NOW` in the nanoseconds of a time that is set, and the one that is left.
const NOW: i64 = libc::UTIME_NOW;
const OMIT: i64 = libc::UTIME_OMIT;

pub(super) fn kind_number(kind: FileType) -> u32 {
    let number = match kind {
        FileType::RegularFile => libc::DT_REG,
        FileType::Directory => libc::DT_DIR,
        FileType::Symlink => libc::DT_LNK,
        FileType::Fifo => libc::DT_FIFO,
        FileType::Socket => libc::DT_SOCK,
        FileType::CharacterDevice => libc::DT_CHR,
        FileType::BlockDevice => libc::DT_BLK,
        FileType::Unknown => libc::DT_UNKNOWN,
    };
    u32::from(number)
}

/// Flags of an open that mean something here. What a file is was decided before.
pub(super) fn open_flags(flags: u32) -> OFlags {
    let kept = libc::O_ACCMODE | libc::O_APPEND | libc::O_TRUNC | libc::O_EXCL | libc::O_SYNC;
    OFlags::from_bits_truncate(flags & kept as u32)
        | OFlags::CLOEXEC
        | OFlags::NOFOLLOW
        | OFlags::NONBLOCK
        | OFlags::NOCTTY
}

pub(super) fn times(attr: &stat64, valid: SetattrValid) -> Option<Timestamps> {
    let one = |set: SetattrValid, now: SetattrValid, seconds: i64, nanoseconds: i64| {
        let (tv_sec, tv_nsec) = match (valid.contains(now), valid.contains(set)) {
            (true, _) => (0, NOW),
            (false, true) => (seconds, nanoseconds),
            (false, false) => (0, OMIT),
        };
        Timespec { tv_sec, tv_nsec }
    };
    let any = SetattrValid::ATIME
        | SetattrValid::MTIME
        | SetattrValid::ATIME_NOW
        | SetattrValid::MTIME_NOW;
    valid.intersects(any).then(|| Timestamps {
        last_access: one(
            SetattrValid::ATIME,
            SetattrValid::ATIME_NOW,
            attr.st_atime,
            attr.st_atime_nsec,
        ),
        last_modification: one(
            SetattrValid::MTIME,
            SetattrValid::MTIME_NOW,
            attr.st_mtime,
            attr.st_mtime_nsec,
        ),
    })
}
