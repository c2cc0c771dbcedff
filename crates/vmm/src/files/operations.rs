//! The requests of the guest's kernel, as system calls of this process.

use super::numbers::{kind_number, open_flags, times};
use super::tree::{self, FoundFile, ROOT, look, look_at};
use super::{Files, Handle, LONG, Listed, Listing, State, stale};
use fuse_backend_rs::abi::fuse_abi::{
    CreateIn, FsOptions, OpenOptions, SetattrValid, stat64, statvfs64,
};
use fuse_backend_rs::api::filesystem::{
    Context, DirEntry, Entry, FileSystem, GetxattrReply, ListxattrReply, ZeroCopyReader,
    ZeroCopyWriter,
};
use ironcage_sys::rustix::fs::{
    AtFlags, CWD, Dir, FallocateFlags, FileType, Gid, Mode, OFlags, RenameFlags, SeekFrom,
    StatxTimestamp, Uid, XattrFlags, chmodat, chownat, fallocate, fchmod, fchown, ftruncate,
    futimens, lgetxattr, linkat, llistxattr, lremovexattr, lsetxattr, mkdirat, mknodat, open,
    readlink, renameat_with, rmdir, seek, symlink, unlink, utimensat,
};
use ironcage_sys::rustix::io::Errno;
use std::ffi::{CStr, CString};
use std::fs::File;
use std::io;
use std::time::Duration;

/// Longest value of an attribute.
const LONGEST_VALUE: u32 = 64 << 10;

impl State {
    fn attributes(&mut self, found: &FoundFile) -> stat64 {
        let stat = &found.stat;
        // All zero, before it is filled.
        let mut attr = Entry::default().attr;
        attr.st_ino = self.tree.inode(found.key);
        attr.st_mode = u32::from(stat.stx_mode);
        attr.st_nlink = u64::from(stat.stx_nlink);
        attr.st_uid = stat.stx_uid;
        attr.st_gid = stat.stx_gid;
        attr.st_rdev = libc::makedev(stat.stx_rdev_major, stat.stx_rdev_minor);
        attr.st_size = stat.stx_size as i64;
        attr.st_blksize = i64::from(stat.stx_blksize);
        attr.st_blocks = stat.stx_blocks as i64;
        let time = |time: &StatxTimestamp| (time.tv_sec, i64::from(time.tv_nsec));
        (attr.st_atime, attr.st_atime_nsec) = time(&stat.stx_atime);
        (attr.st_mtime, attr.st_mtime_nsec) = time(&stat.stx_mtime);
        (attr.st_ctime, attr.st_ctime_nsec) = time(&stat.stx_ctime);
        attr
    }

    /// How long the guest may keep what it was told: what never changes, and links of the root,
    /// which are made once.
    fn patience(&self, found: &FoundFile) -> Duration {
        let link = u32::from(found.stat.stx_mode) & libc::S_IFMT == libc::S_IFLNK;
        let of_root = link && found.mount == self.tree.root_mount();
        match of_root || self.fixed.contains(&found.mount) {
            true => LONG,
            false => Duration::ZERO,
        }
    }

    fn entry(&mut self, parent: u64, name: &CStr) -> io::Result<Entry> {
        let path = self.tree.path_in(parent, name)?;
        let found = look(&path)?;
        self.admit(&found)?;
        let inode = self.tree.learn(parent, name, &found)?;
        let patience = self.patience(&found);
        Ok(Entry {
            inode,
            generation: 0,
            attr: self.attributes(&found),
            attr_flags: 0,
            attr_timeout: patience,
            entry_timeout: patience,
        })
    }

    fn admit(&self, found: &FoundFile) -> io::Result<()> {
        // By these names the guest would write the memory of this process, or of QEMU.
        let below = |root: &tree::Key| found.key.is_beside(*root) && found.key != *root;
        if self.processes.as_ref().is_some_and(below) {
            return Err(Errno::ACCESS.into());
        }
        if self.own.contains(&found.mount) {
            return Err(Errno::NOENT.into());
        }
        match self.blocked.contains(&found.mount) {
            true => Err(stale()),
            false => Ok(()),
        }
    }

    /// What is known of a file: by its name, or by an open file where it has none any more.
    fn find(&mut self, inode: u64) -> io::Result<(Option<CString>, FoundFile)> {
        match self.tree.find(inode) {
            Ok((path, found)) => Ok((Some(path), found)),
            Err(error) => {
                let handle = self.tree.open_handle(inode).ok_or(error)?;
                let found = look_at(self.file(handle)?)?;
                Ok((None, found))
            }
        }
    }

    fn path(&mut self, inode: u64) -> io::Result<CString> {
        let (path, found) = self.tree.find(inode)?;
        self.admit(&found)?;
        Ok(path)
    }

    fn file(&mut self, handle: u64) -> io::Result<&mut File> {
        match self.handles.get_mut(&handle) {
            Some(Handle::File { file, .. }) => file.as_mut().ok_or_else(stale),
            Some(Handle::Directory(_)) | None => Err(Errno::BADF.into()),
        }
    }

    fn keep(&mut self, handle: Handle) -> u64 {
        let number = self.next_handle;
        self.next_handle += 1;
        if let Handle::File { node, .. } = &handle {
            self.tree.opened(*node, number);
        }
        self.handles.insert(number, handle);
        number
    }

    fn opened(&mut self, node: u64, file: File) -> io::Result<(u64, OpenOptions)> {
        let mount = look_at(&file)?.mount;
        if self.blocked.contains(&mount) {
            return Err(stale());
        }
        let options = match self.fixed.contains(&mount) {
            true => OpenOptions::KEEP_CACHE,
            false => OpenOptions::empty(),
        };
        let handle = Handle::File {
            file: Some(file),
            node,
            mount,
        };
        Ok((self.keep(handle), options))
    }

    fn close(&mut self, handle: u64) {
        if let Some(Handle::File { node, .. }) = self.handles.remove(&handle) {
            self.tree.closed(node, handle);
        }
    }

    fn list(&mut self, inode: u64) -> io::Result<Vec<Listed>> {
        let path = self.path(inode)?;
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let directory = open(&path, flags, Mode::empty())?;
        let key = look_at(&directory)?.key;
        let mut entries = Vec::new();
        for entry in Dir::read_from(&directory)? {
            let entry = entry?;
            entries.push(Listed {
                name: entry.file_name().to_bytes().to_vec(),
                inode: self.tree.inode(key.with_inode(entry.ino())),
                kind: kind_number(entry.file_type()),
            });
        }
        Ok(entries)
    }
}

impl FileSystem for Files {
    type Inode = u64;
    type Handle = u64;

    fn init(&self, _: FsOptions) -> io::Result<FsOptions> {
        // No locks, no write-back and no DAX: the guest's kernel keeps its own locks, and writes
        // arrive when they are made.
        Ok(FsOptions::ASYNC_READ
            | FsOptions::BIG_WRITES
            | FsOptions::MAX_PAGES
            | FsOptions::ATOMIC_O_TRUNC
            | FsOptions::AUTO_INVAL_DATA
            | FsOptions::PARALLEL_DIROPS
            | FsOptions::CACHE_SYMLINKS)
    }

    fn lookup(&self, _: &Context, parent: u64, name: &CStr) -> io::Result<Entry> {
        self.state().entry(parent, name)
    }

    fn forget(&self, _: &Context, inode: u64, count: u64) {
        self.state().tree.forget(inode, count);
    }

    fn getattr(
        &self,
        _: &Context,
        inode: u64,
        handle: Option<u64>,
    ) -> io::Result<(stat64, Duration)> {
        let mut state = self.state();
        let found = match handle {
            Some(handle) => look_at(state.file(handle)?)?,
            None => state.find(inode)?.1,
        };
        state.admit(&found)?;
        let patience = state.patience(&found);
        Ok((state.attributes(&found), patience))
    }

    fn setattr(
        &self,
        _: &Context,
        inode: u64,
        attr: stat64,
        handle: Option<u64>,
        valid: SetattrValid,
    ) -> io::Result<(stat64, Duration)> {
        let mut state = self.state();
        let (path, found) = state.find(inode)?;
        state.admit(&found)?;
        let mode = Mode::from_raw_mode(attr.st_mode & 0o7777);
        let owner = valid
            .contains(SetattrValid::UID)
            .then(|| Uid::from_raw(attr.st_uid));
        let group = valid
            .contains(SetattrValid::GID)
            .then(|| Gid::from_raw(attr.st_gid));
        let times = times(&attr, valid);
        // It would be the mode of what the link leads to, which may be what is given to nobody.
        let link = u32::from(found.stat.stx_mode) & libc::S_IFMT == libc::S_IFLNK;
        if link && valid.contains(SetattrValid::MODE) {
            return Err(Errno::OPNOTSUPP.into());
        }
        match &path {
            Some(path) => {
                if valid.contains(SetattrValid::MODE) {
                    chmodat(CWD, path, mode, AtFlags::empty())?;
                }
                if owner.is_some() || group.is_some() {
                    chownat(CWD, path, owner, group, AtFlags::SYMLINK_NOFOLLOW)?;
                }
            }
            None => {
                let handle = state.tree.open_handle(inode).ok_or_else(stale)?;
                let file = state.file(handle)?;
                if valid.contains(SetattrValid::MODE) {
                    fchmod(&*file, mode)?;
                }
                if owner.is_some() || group.is_some() {
                    fchown(&*file, owner, group)?;
                }
            }
        }
        if valid.contains(SetattrValid::SIZE) {
            let length = u64::try_from(attr.st_size).map_err(|_| Errno::INVAL)?;
            match (handle, &path) {
                (Some(handle), _) => ftruncate(&*state.file(handle)?, length)?,
                (None, Some(path)) => {
                    if u32::from(found.stat.stx_mode) & libc::S_IFMT != libc::S_IFREG {
                        return Err(Errno::INVAL.into());
                    }
                    let flags = open_flags(libc::O_WRONLY as u32);
                    ftruncate(open(path, flags, Mode::empty())?, length)?;
                }
                (None, None) => return Err(stale()),
            }
        }
        if let Some(times) = times {
            match &path {
                Some(path) => utimensat(CWD, path, &times, AtFlags::SYMLINK_NOFOLLOW)?,
                None => {
                    let handle = state.tree.open_handle(inode).ok_or_else(stale)?;
                    futimens(&*state.file(handle)?, &times)?;
                }
            }
        }
        if let Some(path) = &path {
            state.tree.changed(inode, path)?;
        }
        let (_, found) = state.find(inode)?;
        let patience = state.patience(&found);
        Ok((state.attributes(&found), patience))
    }

    fn readlink(&self, _: &Context, inode: u64) -> io::Result<Vec<u8>> {
        let path = self.state().path(inode)?;
        Ok(readlink(&path, Vec::new())?.into_bytes())
    }

    fn symlink(&self, _: &Context, to: &CStr, parent: u64, name: &CStr) -> io::Result<Entry> {
        let mut state = self.state();
        symlink(to, &state.tree.path_in(parent, name)?)?;
        state.entry(parent, name)
    }

    fn mknod(
        &self,
        _: &Context,
        parent: u64,
        name: &CStr,
        mode: u32,
        _: u32,
        _: u32,
    ) -> io::Result<Entry> {
        let mut state = self.state();
        let kind = FileType::from_raw_mode(mode);
        // Devices are of the guest's own kernel, and none is in the view.
        if !matches!(
            kind,
            FileType::RegularFile | FileType::Fifo | FileType::Socket
        ) {
            return Err(Errno::PERM.into());
        }
        let path = state.tree.path_in(parent, name)?;
        mknodat(CWD, &path, kind, Mode::from_raw_mode(mode & 0o7777), 0)?;
        state.entry(parent, name)
    }

    fn mkdir(&self, _: &Context, parent: u64, name: &CStr, mode: u32, _: u32) -> io::Result<Entry> {
        let mut state = self.state();
        let path = state.tree.path_in(parent, name)?;
        mkdirat(CWD, &path, Mode::from_raw_mode(mode & 0o7777))?;
        state.entry(parent, name)
    }

    fn unlink(&self, _: &Context, parent: u64, name: &CStr) -> io::Result<()> {
        self.remove(parent, name, |path| unlink(path))
    }

    fn rmdir(&self, _: &Context, parent: u64, name: &CStr) -> io::Result<()> {
        self.remove(parent, name, |path| rmdir(path))
    }

    fn rename(
        &self,
        _: &Context,
        old_parent: u64,
        old: &CStr,
        new_parent: u64,
        new: &CStr,
        flags: u32,
    ) -> io::Result<()> {
        let mut state = self.state();
        let from = state.tree.path_in(old_parent, old)?;
        let to = state.tree.path_in(new_parent, new)?;
        let flags = RenameFlags::from_bits_truncate(flags);
        if flags.contains(RenameFlags::WHITEOUT) {
            return Err(Errno::INVAL.into());
        }
        let moved = look(&from)?.key;
        let replaced = look(&to).ok().map(|found| found.key);
        renameat_with(CWD, &from, CWD, &to, flags)?;
        state.tree.unname(moved, old_parent, old);
        if let Some(replaced) = replaced {
            state.tree.unname(replaced, new_parent, new);
            if flags.contains(RenameFlags::EXCHANGE) {
                state.tree.rename(replaced, old_parent, old);
            }
        }
        state.tree.rename(moved, new_parent, new);
        Ok(())
    }

    fn link(&self, _: &Context, inode: u64, parent: u64, name: &CStr) -> io::Result<Entry> {
        let mut state = self.state();
        let from = state.path(inode)?;
        let to = state.tree.path_in(parent, name)?;
        linkat(CWD, &from, CWD, &to, AtFlags::empty())?;
        state.tree.changed(inode, &from)?;
        state.entry(parent, name)
    }

    fn open(
        &self,
        _: &Context,
        inode: u64,
        flags: u32,
        _: u32,
    ) -> io::Result<(Option<u64>, OpenOptions, Option<u32>)> {
        let mut state = self.state();
        let (path, found) = state.find(inode)?;
        state.admit(&found)?;
        // Pipes, sockets and devices are the guest's own: none is ever opened here.
        if u32::from(found.stat.stx_mode) & libc::S_IFMT != libc::S_IFREG {
            return Err(Errno::NXIO.into());
        }
        let path = path.ok_or_else(stale)?;
        let file = File::from(open(&path, open_flags(flags), Mode::empty())?);
        let writes = open_flags(flags).intersects(OFlags::RWMODE);
        let now = match writes {
            true => state.tree.changed(inode, &path)?,
            false => found,
        };
        if look_at(&file)?.key != now.key {
            return Err(stale());
        }
        let (handle, options) = state.opened(inode, file)?;
        Ok((Some(handle), options, None))
    }

    fn create(
        &self,
        _: &Context,
        parent: u64,
        name: &CStr,
        args: CreateIn,
    ) -> io::Result<(Entry, Option<u64>, OpenOptions, Option<u32>)> {
        let mut state = self.state();
        let path = state.tree.path_in(parent, name)?;
        if let Ok(found) = look(&path) {
            state.admit(&found)?;
            if u32::from(found.stat.stx_mode) & libc::S_IFMT != libc::S_IFREG {
                return Err(Errno::EXIST.into());
            }
        }
        let mode = Mode::from_raw_mode(args.mode & 0o7777);
        let file = File::from(open(&path, open_flags(args.flags) | OFlags::CREATE, mode)?);
        let entry = state.entry(parent, name)?;
        let (handle, options) = state.opened(entry.inode, file)?;
        Ok((entry, Some(handle), options, None))
    }

    fn read(
        &self,
        _: &Context,
        _: u64,
        handle: u64,
        w: &mut dyn ZeroCopyWriter,
        size: u32,
        offset: u64,
        _: Option<u64>,
        _: u32,
    ) -> io::Result<usize> {
        let mut state = self.state();
        w.write_from(state.file(handle)?, size as usize, offset)
    }

    fn write(
        &self,
        _: &Context,
        _: u64,
        handle: u64,
        r: &mut dyn ZeroCopyReader,
        size: u32,
        offset: u64,
        _: Option<u64>,
        _: bool,
        _: u32,
        _: u32,
    ) -> io::Result<usize> {
        let mut state = self.state();
        r.read_to(state.file(handle)?, size as usize, offset)
    }

    fn flush(&self, _: &Context, _: u64, _: u64, _: u64) -> io::Result<()> {
        Ok(())
    }

    fn fsync(&self, _: &Context, _: u64, datasync: bool, handle: u64) -> io::Result<()> {
        let mut state = self.state();
        let file = state.file(handle)?;
        match datasync {
            true => file.sync_data(),
            false => file.sync_all(),
        }
    }

    fn fallocate(
        &self,
        _: &Context,
        _: u64,
        handle: u64,
        mode: u32,
        offset: u64,
        length: u64,
    ) -> io::Result<()> {
        let mut state = self.state();
        let flags = FallocateFlags::from_bits(mode).ok_or(Errno::OPNOTSUPP)?;
        Ok(fallocate(&*state.file(handle)?, flags, offset, length)?)
    }

    fn release(
        &self,
        _: &Context,
        _: u64,
        _: u32,
        handle: u64,
        _: bool,
        _: bool,
        _: Option<u64>,
    ) -> io::Result<()> {
        self.state().close(handle);
        Ok(())
    }

    fn statfs(&self, _: &Context, inode: u64) -> io::Result<statvfs64> {
        let path = match self.state().path(inode) {
            Ok(path) => path,
            Err(_) => tree::absolute(b"/")?,
        };
        ironcage_sys::mount::file_system(&path)
    }

    fn setxattr(
        &self,
        _: &Context,
        inode: u64,
        name: &CStr,
        value: &[u8],
        flags: u32,
    ) -> io::Result<()> {
        let path = self.state().path(inode)?;
        let flags = XattrFlags::from_bits(flags).ok_or(Errno::INVAL)?;
        Ok(lsetxattr(&path, name, value, flags)?)
    }

    fn getxattr(
        &self,
        _: &Context,
        inode: u64,
        name: &CStr,
        size: u32,
    ) -> io::Result<GetxattrReply> {
        let path = self.state().path(inode)?;
        let mut value = vec![0; size.min(LONGEST_VALUE) as usize];
        let length = lgetxattr(&path, name, &mut value[..])?;
        match size {
            0 => Ok(GetxattrReply::Count(length as u32)),
            _ => {
                value.truncate(length);
                Ok(GetxattrReply::Value(value))
            }
        }
    }

    fn listxattr(&self, _: &Context, inode: u64, size: u32) -> io::Result<ListxattrReply> {
        let path = self.state().path(inode)?;
        let mut names = vec![0; size.min(LONGEST_VALUE) as usize];
        let length = llistxattr(&path, &mut names[..])?;
        match size {
            0 => Ok(ListxattrReply::Count(length as u32)),
            _ => {
                names.truncate(length);
                Ok(ListxattrReply::Names(names))
            }
        }
    }

    fn removexattr(&self, _: &Context, inode: u64, name: &CStr) -> io::Result<()> {
        let path = self.state().path(inode)?;
        Ok(lremovexattr(&path, name)?)
    }

    fn opendir(&self, _: &Context, inode: u64, _: u32) -> io::Result<(Option<u64>, OpenOptions)> {
        let mut state = self.state();
        // Whether it may be read is said when it is opened.
        let listing = Listing {
            entries: Some(state.list(inode)?),
        };
        let handle = state.keep(Handle::Directory(listing));
        Ok((Some(handle), OpenOptions::empty()))
    }

    fn readdir(
        &self,
        _: &Context,
        inode: u64,
        handle: u64,
        _: u32,
        offset: u64,
        add_entry: &mut dyn FnMut(DirEntry<'_>) -> io::Result<usize>,
    ) -> io::Result<()> {
        let mut state = self.state();
        let is_read = |state: &State| match state.handles.get(&handle) {
            Some(Handle::Directory(listing)) => Ok(listing.entries.is_some()),
            _ => Err(io::Error::from(Errno::BADF)),
        };
        if !is_read(&state)? {
            let entries = state.list(inode)?;
            if let Some(Handle::Directory(listing)) = state.handles.get_mut(&handle) {
                listing.entries = Some(entries);
            }
        }
        let Some(Handle::Directory(listing)) = state.handles.get_mut(&handle) else {
            return Err(Errno::BADF.into());
        };
        let entries = listing.entries.iter().flatten();
        let start = usize::try_from(offset).unwrap_or(usize::MAX);
        let mut added = false;
        for (index, entry) in entries.enumerate().skip(start) {
            added = true;
            let full = add_entry(DirEntry {
                ino: entry.inode,
                offset: index as u64 + 1,
                type_: entry.kind,
                name: &entry.name,
            })? == 0;
            if full {
                return Ok(());
            }
        }
        // Read to its end: a program that begins again sees what is there then.
        if !added {
            listing.entries = None;
        }
        Ok(())
    }

    fn fsyncdir(&self, _: &Context, inode: u64, _: bool, _: u64) -> io::Result<()> {
        let mut state = self.state();
        let (path, found) = state.tree.find(inode)?;
        state.admit(&found)?;
        // Whoever asks: a pipe would hold up every request, and a link lead elsewhere.
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        File::from(open(&path, flags, Mode::empty())?).sync_all()
    }

    fn releasedir(&self, _: &Context, _: u64, _: u32, handle: u64) -> io::Result<()> {
        self.state().close(handle);
        Ok(())
    }

    fn access(&self, _: &Context, _: u64, _: u32) -> io::Result<()> {
        // The guest's kernel checks modes; what they do not say shows when the file is used.
        Err(Errno::NOSYS.into())
    }

    fn lseek(&self, _: &Context, _: u64, handle: u64, offset: u64, whence: u32) -> io::Result<u64> {
        let mut state = self.state();
        let to = match whence as i32 {
            libc::SEEK_DATA => SeekFrom::Data(offset),
            libc::SEEK_HOLE => SeekFrom::Hole(offset),
            _ => return Err(Errno::INVAL.into()),
        };
        Ok(seek(&*state.file(handle)?, to)?)
    }
}

impl Files {
    fn remove(
        &self,
        parent: u64,
        name: &CStr,
        remove: impl Fn(&CStr) -> Result<(), Errno>,
    ) -> io::Result<()> {
        let mut state = self.state();
        let path = state.tree.path_in(parent, name)?;
        let key = look(&path)?.key;
        remove(&path)?;
        state.tree.unname(key, parent, name);
        Ok(())
    }
}

/// The root is there from the start.
const _: () = assert!(ROOT == fuse_backend_rs::api::filesystem::ROOT_ID);
