//! `/dev` of a container: the devices that every one has, those that its engine names, its terminal.

use super::{RootFs, attach, clone_at, kind_of};
use crate::error::{Error, IoContext as _};
use crate::spec::{Device, Process, Spec};
use ironcage_sys::rustix::fs::{
    AtFlags, CWD, Dir, FileType, Gid, Mode, OFlags, Uid, chownat, fchmod, fchown, fstatfs, makedev,
    mkdirat, mknodat, open, openat, readlinkat, statat, symlinkat, unlinkat,
};
use ironcage_sys::rustix::io::Errno;
use ironcage_sys::rustix::process::umask;
use ironcage_sys::rustix::pty::{OpenptFlags, ioctl_tiocgptpeer, unlockpt};
use ironcage_sys::rustix::termios::{Winsize, tcsetwinsize};
use std::os::fd::{AsFd as _, OwnedFd};
use std::path::{Path, PathBuf};

/// Name, major and minor number.
const USUAL: [(&str, i64, i64); 6] = [
    ("/dev/null", 1, 3),
    ("/dev/zero", 1, 5),
    ("/dev/full", 1, 7),
    ("/dev/random", 1, 8),
    ("/dev/urandom", 1, 9),
    ("/dev/tty", 5, 0),
];

const LINKS: [(&str, &str); 5] = [
    ("/proc/self/fd", "fd"),
    ("/proc/self/fd/0", "stdin"),
    ("/proc/self/fd/1", "stdout"),
    ("/proc/self/fd/2", "stderr"),
    ("pts/ptmx", "ptmx"),
];

/// What an image may have in a directory that `tmpcopyup` copies.
const MOST_COPIED: usize = 10_000;
const LARGEST_COPIED: u64 = 64 << 20;

/// A terminal of the container.
#[derive(Debug)]
pub(crate) struct Terminal {
    /// The engine's end.
    pub(crate) master: OwnedFd,
    /// The container's.
    pub(crate) slave: OwnedFd,
}

impl RootFs {
    /// Makes devices and links, unless the engine brought a whole `/dev`.
    pub(crate) fn devices(&self, spec: &Spec, user_namespace: bool) -> Result<(), Error> {
        let dev = Path::new("/dev");
        let brought = spec.mounts.iter().any(|mount| {
            mount.destination == dev
                && (mount.kind == "bind"
                    || mount
                        .options
                        .iter()
                        .any(|word| word == "bind" || word == "rbind"))
        });
        if brought {
            return Ok(());
        }
        let usual = USUAL.map(|(path, major, minor)| Device {
            path: PathBuf::from(path),
            kind: "c".into(),
            major,
            minor,
            file_mode: Some(0o666),
            ..Device::default()
        });
        let named = &spec.linux.devices;
        let usual = usual
            .iter()
            .filter(|device| !named.iter().any(|other| other.path == device.path));
        for device in usual.chain(named) {
            self.device(device, user_namespace)?;
        }
        let place = self.directory(dev)?;
        for (to, name) in LINKS {
            match symlinkat(to, &place, name) {
                Err(Errno::EXIST) if name == "ptmx" => {
                    // The image's own would be a terminal of the host.
                    unlinkat(&place, name, AtFlags::empty())
                        .and_then(|()| symlinkat(to, &place, name))
                        .doing(|| format!("make the link /dev/{name}"))?;
                }
                Err(Errno::EXIST) => {}
                other => other.doing(|| format!("make the link /dev/{name}"))?,
            }
        }
        Ok(())
    }

    fn device(&self, device: &Device, user_namespace: bool) -> Result<(), Error> {
        let path = &device.path;
        let action = || format!("make the device {}", path.display());
        let kind = match device.kind.as_str() {
            "c" | "u" => FileType::CharacterDevice,
            "b" => FileType::BlockDevice,
            "p" => FileType::Fifo,
            other => return Err(Error::refused(action(), format!("unknown type {other:?}"))),
        };
        let (Some(above), Some(name)) = (path.parent(), path.file_name()) else {
            return Err(Error::refused(action(), "expected a path with a name"));
        };
        if user_namespace && kind != FileType::Fifo {
            // The kernel makes no devices in one: the host's is bound.
            let source = open(path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).doing(action)?;
            if kind_of(&source).doing(action)? != kind {
                return Err(Error::refused(
                    action(),
                    "the host has something else there",
                ));
            }
            let tree = clone_at(source.as_fd(), false).doing(action)?;
            let place = self.file(path)?;
            return attach(tree.as_fd(), place.as_fd()).doing(action);
        }
        let above = self.directory(above)?;
        let number = |number: i64| {
            u32::try_from(number)
                .map_err(|_| Error::refused(action(), format!("{number} is not a device number")))
        };
        let number = match kind {
            FileType::Fifo => 0,
            _ => makedev(number(device.major)?, number(device.minor)?),
        };
        let mode = device.file_mode.unwrap_or(0o666) & 0o7777;
        // The mode is that of the file from its first moment: a change by name would follow a link
        // that took its place.
        let before = umask(Mode::empty());
        let made = mknodat(&above, name, kind, Mode::from_raw_mode(mode), number);
        umask(before);
        match made {
            // The engine mounted something there.
            Err(Errno::EXIST) => return Ok(()),
            other => other.doing(action)?,
        }
        let (uid, gid) = (device.uid.unwrap_or(0), device.gid.unwrap_or(0));
        chownat(
            &above,
            name,
            Some(Uid::from_raw(uid)),
            Some(Gid::from_raw(gid)),
            AtFlags::SYMLINK_NOFOLLOW,
        )
        .doing(action)
    }

    /// Opens a terminal of the container's own and makes it `/dev/console`.
    pub(crate) fn terminal(&self, process: &Process, console: bool) -> Result<Terminal, Error> {
        let terminal = open_terminal(process, || {
            self.find(Path::new("/dev/pts/ptmx"), OFlags::RDWR | OFlags::NOCTTY)
        })?;
        if console {
            let action = || "make /dev/console".to_owned();
            let place = self.file(Path::new("/dev/console"))?;
            let tree = clone_at(terminal.slave.as_fd(), false).doing(action)?;
            attach(tree.as_fd(), place.as_fd()).doing(action)?;
        }
        Ok(terminal)
    }
}

/// Opens a terminal by the multiplexer that `open` finds: a link of the image's must not lead to
/// another file.
pub(crate) fn open_terminal(
    process: &Process,
    open: impl FnOnce() -> Result<OwnedFd, Errno>,
) -> Result<Terminal, Error> {
    const DEVPTS: i64 = 0x1cd1;
    let action = || "open a terminal".to_owned();
    let master = open().doing(action)?;
    if fstatfs(&master).doing(action)?.f_type as i64 != DEVPTS {
        return Err(Error::refused(
            action(),
            "/dev/pts/ptmx is not on a devpts file system",
        ));
    }
    unlockpt(&master).doing(action)?;
    let slave = ioctl_tiocgptpeer(
        &master,
        OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC,
    )
    .doing(action)?;
    if let Some(size) = process.console_size.filter(|size| size.height > 0) {
        let size = Winsize {
            ws_row: size.height,
            ws_col: size.width,
            ws_xpixel: 0,
            ws_ypixel: 0,
        };
        tcsetwinsize(&slave, size).doing(action)?;
    }
    fchown(&slave, Some(Uid::from_raw(process.user.uid)), None).doing(action)?;
    fchmod(&slave, Mode::RUSR | Mode::WUSR | Mode::WGRP).doing(action)?;
    Ok(Terminal { master, slave })
}

/// Copies what an image has in a directory into a tmpfs that will cover it.
pub(super) fn copy_up(from: &OwnedFd, to: &OwnedFd) -> Result<(), Errno> {
    let mut left = (MOST_COPIED, LARGEST_COPIED);
    copy_directory(from, to, &mut left)
}

fn copy_directory(from: &OwnedFd, to: &OwnedFd, left: &mut (usize, u64)) -> Result<(), Errno> {
    let directory = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let listed = openat(from, ".", directory, Mode::empty())?;
    for entry in Dir::read_from(&listed)? {
        let entry = entry?;
        let name = entry.file_name();
        if matches!(name.to_bytes(), b"." | b"..") {
            continue;
        }
        left.0 = left.0.checked_sub(1).ok_or(Errno::NOSPC)?;
        let stat = statat(&listed, name, AtFlags::SYMLINK_NOFOLLOW)?;
        let mode = Mode::from_raw_mode(stat.st_mode & 0o7777);
        match FileType::from_raw_mode(stat.st_mode) {
            FileType::Directory => {
                mkdirat(to, name, mode)?;
                let below = openat(&listed, name, directory, Mode::empty())?;
                let made = openat(to, name, directory, Mode::empty())?;
                copy_directory(&below, &made, left)?;
            }
            FileType::Symlink => symlinkat(readlinkat(&listed, name, Vec::new())?, to, name)?,
            FileType::RegularFile => {
                left.1 = left
                    .1
                    .checked_sub(u64::try_from(stat.st_size).unwrap_or(u64::MAX))
                    .ok_or(Errno::NOSPC)?;
                let read = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
                let source = openat(&listed, name, read, Mode::empty())?;
                let write = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
                let target = openat(to, name, write, mode)?;
                let mut buffer = [0; 16 * 1024];
                loop {
                    let read = ironcage_sys::rustix::io::read(&source, &mut buffer)?;
                    let mut rest = buffer.get(..read).unwrap_or_default();
                    if rest.is_empty() {
                        break;
                    }
                    while !rest.is_empty() {
                        let written = ironcage_sys::rustix::io::write(&target, rest)?;
                        rest = rest.get(written..).unwrap_or_default();
                    }
                }
            }
            // Devices, pipes and sockets of an image are nothing that a program needs there.
            _ => continue,
        }
        chownat(
            to,
            name,
            Some(Uid::from_raw(stat.st_uid)),
            Some(Gid::from_raw(stat.st_gid)),
            AtFlags::SYMLINK_NOFOLLOW,
        )?;
    }
    Ok(())
}

/// The terminal of a process that joins the container, whose root is the caller's by now.
pub(crate) fn joined_terminal(process: &Process) -> Result<Terminal, Error> {
    open_terminal(process, || {
        let how = OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC;
        openat(CWD, "/dev/pts/ptmx", how, Mode::empty())
    })
}
