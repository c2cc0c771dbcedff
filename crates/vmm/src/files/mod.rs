//! The file server: the cage's view as the root of the guest, by virtiofs.
//!
//! It runs in the cage, as the agent and under every layer: what it can open, the agent could open
//! in a namespace cage. Nothing is held open for a name that the guest knows, only for files that it
//! has opened; so a mount is free as soon as those are closed, which [`Files::evict`] does.
//!
//! Requests are served one after the other. An eviction takes the same lock, and so it never meets
//! a request that is under way.

mod device;
mod numbers;
mod operations;
mod tree;

use crate::files::tree::Tree;
use crate::{VmError, confine, doing, machine};
use ironcage_guest::{INITRAMFS, KERNEL, MACHINE, PROGRAM, QEMU, SYSTEM, TEMPLATE};
use ironcage_sys::rustix::event::{PollFd, PollFlags, poll};
use ironcage_sys::rustix::fs::{Mode, statfs};
use ironcage_sys::rustix::io::Errno;
use ironcage_sys::rustix::process::umask;
use ironcage_sys::rustix::stdio;
use ironcage_sys::rustix::thread::set_name;
use ironcage_sys::signals;
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::process::ExitCode;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// How long the guest may keep names and attributes of what never changes.
const LONG: Duration = Duration::from_secs(60);

/// Places of the system that do not change while a cage runs, where they are mounted read-only.
const FIXED: [&str; 6] = ["/usr", "/bin", "/sbin", "/lib", "/lib64", "/opt"];

/// The kernel's number of process file systems.
const PROCESSES: i64 = 0x9fa0;

/// A directory that the guest has opened: what is in it is read at once, and the directory closed.
#[derive(Debug, Default)]
pub(crate) struct Listing {
    entries: Option<Vec<Listed>>,
}

/// An entry of a directory.
#[derive(Debug)]
pub(crate) struct Listed {
    name: Vec<u8>,
    inode: u64,
    kind: u32,
}

/// What the guest has opened.
#[derive(Debug)]
enum Handle {
    File {
        /// `None` once the mount that it was opened through is gone.
        file: Option<File>,
        node: u64,
        mount: u64,
    },
    Directory(Listing),
}

/// What the server knows.
#[derive(Debug)]
pub(crate) struct State {
    tree: Tree,
    handles: BTreeMap<u64, Handle>,
    next_handle: u64,
    /// Mounts of what never changes.
    fixed: BTreeSet<u64>,
    /// The root of the process file system, whose other names are never given out: by them the
    /// guest would write the memory of this process. The root is there to be mounted over.
    processes: Option<tree::Key>,
    /// Mounts of what the machine itself is made of: the guest is not given them.
    own: BTreeSet<u64>,
    /// Mounts that are being taken off: nothing is opened through them.
    blocked: BTreeSet<u64>,
}

/// The file server's state, for requests and evictions.
#[derive(Debug)]
pub(crate) struct Files {
    state: Mutex<State>,
}

impl Files {
    pub(crate) fn new() -> io::Result<Files> {
        let tree = Tree::new()?;
        let root = tree.root_mount();
        let mut fixed = BTreeSet::new();
        for place in FIXED {
            let Ok(found) = tree::look(&tree::absolute(place.as_bytes())?) else {
                continue;
            };
            let read_only = ironcage_sys::mount::file_system(&tree::absolute(place.as_bytes())?)
                .is_ok_and(|answer| answer.f_flag & libc::ST_RDONLY != 0);
            if found.mount != root && read_only {
                fixed.insert(found.mount);
            }
        }
        let processes = statfs(c"/proc")
            .is_ok_and(|answer| answer.f_type == PROCESSES)
            .then(|| tree::look(c"/proc"))
            .transpose()?
            .map(|found| found.key);
        let state = State {
            tree,
            processes,
            own: own_mounts(root),
            handles: BTreeMap::new(),
            next_handle: 1,
            fixed,
            blocked: BTreeSet::new(),
        };
        Ok(Files {
            state: Mutex::new(state),
        })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // What a request left behind when it panicked is whole: each changes one thing.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Obeys the mount helper: a mount is to go, or its number is free again.
    fn obey(&self, orders: &OwnedFd) {
        loop {
            let mut fds = [PollFd::new(orders, PollFlags::IN)];
            if poll(&mut fds, None).is_err_and(|error| error != Errno::INTR) {
                return;
            }
            while let Ok(Some((_, value))) = signals::next_value(orders.as_fd()) {
                let mount = u64::from(value.unsigned_abs());
                match value < 0 {
                    false => self.evict(mount),
                    true => self.readmit(mount),
                }
            }
        }
    }

    /// Closes every file that was opened through a mount, and opens none until
    /// [`Files::readmit`].
    fn evict(&self, gone: u64) {
        let mut state = self.state();
        state.blocked.insert(gone);
        for handle in state.handles.values_mut() {
            if let Handle::File { file, mount, .. } = handle
                && *mount == gone
            {
                *file = None;
            }
        }
    }

    /// The kernel uses numbers of mounts again: what follows is another mount.
    fn readmit(&self, mount: u64) {
        self.state().blocked.remove(&mount);
    }
}

/// Mounts of the files that the machine is made of.
fn own_mounts(root: u64) -> BTreeSet<u64> {
    let places = [
        PROGRAM.to_owned(),
        KERNEL.to_owned(),
        INITRAMFS.to_owned(),
        format!("{SYSTEM}/usr"),
        QEMU.to_owned(),
        TEMPLATE.to_owned(),
    ];
    let found = places.into_iter().filter_map(|place| {
        let place = tree::absolute(place.as_bytes()).ok()?;
        Some(tree::look(&place).ok()?.mount)
    });
    found.filter(|mount| *mount != root).collect()
}

/// Serves one machine, at the socket that is standard input.
pub(crate) fn run(words: &[OsString]) -> Result<ExitCode, VmError> {
    let description = words.first().map_or(Path::new(MACHINE), Path::new);
    // The guest's kernel has applied the one of its process.
    umask(Mode::empty());
    let own = stdio::stdin().try_clone_to_owned();
    let listener = UnixListener::from(own.map_err(doing("take the socket"))?);
    // Before any thread is there: all of them leave these signals to the one that reads them.
    let orders = signals::catch(&[signals::mounts_signal()]).map_err(doing("catch signals"))?;
    // The mount helper finds it by this.
    set_name(c"ironcage-files").map_err(doing("take a name"))?;
    let files = Arc::new(Files::new().map_err(doing("look at the cage's view"))?);
    // Before the first thread, and the first byte of the guest.
    confine::install(&machine::read(description)?.files_filter)?;
    let told = Arc::clone(&files);
    std::thread::Builder::new()
        .name("ironcage-files".into())
        .spawn(move || told.obey(&orders))
        .map_err(doing("start a thread"))?;
    device::serve(files, listener).map_err(doing("serve files"))?;
    Ok(ExitCode::SUCCESS)
}

fn stale() -> io::Error {
    Errno::STALE.into()
}

#[cfg(test)]
mod tests {
    use super::tree::ROOT;
    use super::*;
    use fuse_backend_rs::abi::fuse_abi::CreateIn;
    use fuse_backend_rs::api::filesystem::{Context, FileSystem as _};
    use std::ffi::CString;
    use std::os::unix::fs::PermissionsExt as _;

    #[test]
    fn no_process_is_given_out_by_any_name() {
        let top = tempfile::tempdir().unwrap();
        std::fs::write(top.path().join("file"), "mine").unwrap();
        std::os::unix::fs::symlink("/proc/self", top.path().join("link")).unwrap();
        let files = Files::new().unwrap();
        let context = Context::default();
        let down = |parent: u64, name: &str| {
            let name = CString::new(name).unwrap();
            files
                .lookup(&context, parent, &name)
                .map(|found| found.inode)
        };
        let refused = |result: io::Result<u64>| {
            assert_eq!(result.unwrap_err().raw_os_error(), Some(libc::EACCES));
        };
        // Its root is there, to be mounted over.
        let processes = down(ROOT, "proc").unwrap();
        for name in ["self", "1", "thread-self", "sys", "version"] {
            refused(down(processes, name));
        }
        let place = top.path().iter().skip(1);
        let place = place.fold(ROOT, |at, name| down(at, name.to_str().unwrap()).unwrap());
        // The guest's kernel does not ask for names below a link. A hostile one does.
        let link = down(place, "link").unwrap();
        refused(down(link, "mem"));
        let made = files.create(&context, link, c"mem", CreateIn::default());
        assert_eq!(made.err().unwrap().raw_os_error(), Some(libc::EACCES));
        let file = down(place, "file").unwrap();
        assert!(files.open(&context, file, libc::O_RDWR as u32, 0).is_ok());
    }

    #[test]
    fn a_request_for_another_kind_of_file_reaches_no_pipe_and_nothing_behind_a_link() {
        let top = tempfile::tempdir().unwrap();
        let path = |name: &str| top.path().join(name);
        std::fs::write(path("file"), "mine").unwrap();
        std::fs::set_permissions(path("file"), std::fs::Permissions::from_mode(0o640)).unwrap();
        std::os::unix::fs::symlink(path("file"), path("link")).unwrap();
        std::os::unix::fs::symlink(top.path(), path("place")).unwrap();
        std::fs::create_dir(path("directory")).unwrap();
        let pipe = CString::new(path("pipe").as_os_str().as_encoded_bytes()).unwrap();
        let kind = ironcage_sys::rustix::fs::FileType::Fifo;
        ironcage_sys::rustix::fs::mknodat(
            ironcage_sys::rustix::fs::CWD,
            &pipe,
            kind,
            Mode::RUSR | Mode::WUSR,
            0,
        )
        .unwrap();
        let files = Files::new().unwrap();
        let context = Context::default();
        let down = |parent: u64, name: &str| {
            let name = CString::new(name).unwrap();
            files.lookup(&context, parent, &name).unwrap().inode
        };
        let mut at = ROOT;
        for name in top.path().iter().skip(1) {
            at = down(at, name.to_str().unwrap());
        }
        // Nobody writes to the pipe: to open it would wait for ever, with every other request.
        for name in ["pipe", "file", "link", "place"] {
            let synced = files.fsyncdir(&context, down(at, name), false, 0);
            assert!(synced.is_err(), "{name}");
        }
        files
            .fsyncdir(&context, down(at, "directory"), false, 0)
            .unwrap();
        let change = |name: &str| {
            let mut attr = fuse_backend_rs::api::filesystem::Entry::default().attr;
            attr.st_mode = 0o600;
            let valid = fuse_backend_rs::abi::fuse_abi::SetattrValid::MODE;
            let changed = files.setattr(&context, down(at, name), attr, None, valid);
            let mode = std::fs::metadata(path("file"))
                .unwrap()
                .permissions()
                .mode();
            (changed.is_ok(), mode & 0o777)
        };
        assert_eq!(change("link"), (false, 0o640));
        assert_eq!(change("file"), (true, 0o600));
    }
}
