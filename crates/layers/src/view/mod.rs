//! The file view: carries out the plan's view operations, in order.
//!
//! First everything that needs a node on the cage's own tmpfs gets one, before any part of
//! the host is attached: so nothing is ever created in a tree of the host. Then mounts are
//! attached, each target opened once as a handle below the new root, following no link.

mod layout;
mod mounts;
mod nodes;
mod places;

use crate::error::{LayerError, shown};
pub use crate::shared::Shared;
use ironcage_model::{Layer, StartCode};
use ironcage_plan::{Access, NodeKind, Owner, ViewOp};
use ironcage_sys::mount::{AttributeChange, MountAttributes, clone_source, set_attributes};
use ironcage_sys::process::{started_as, started_with_group};
use ironcage_sys::rustix::fs::{CWD, Mode, OFlags, openat};
use ironcage_sys::rustix::io::Errno;
use ironcage_sys::rustix::mount::{
    MountAttrFlags, MountFlags, MoveMountFlags, UnmountFlags, move_mount, unmount,
};
use ironcage_sys::rustix::process::{fchdir, pivot_root, umask};
pub(crate) use mounts::{
    clone_tree, doing, make_filesystem, mount_new, relative, stop_propagation,
};
use std::cell::{Cell, OnceCell, RefCell};
use std::collections::BTreeSet;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

/// A user namespace that maps the owner of files on disk to the agent.
#[derive(Debug)]
pub struct OwnerMap {
    /// Whose files.
    pub owner: Owner,
    pub namespace: OwnedFd,
}

/// What the building of a view depends on besides the plan.
#[derive(Debug)]
pub struct Setting<'a> {
    /// Size of the ephemeral storage in bytes.
    pub bytes: u64,
    /// Its number of files.
    pub inodes: u64,
    /// The agent's ids in the namespace in which the view is built.
    pub agent: (u32, u32),
    /// The certificate authority of the cage's own; empty where it has none.
    pub authority: &'a str,
    /// Maps for binds that have an owner; empty where the caller is not privileged.
    pub owner_maps: &'a [OwnerMap],
    /// Trees that are taken over from another view; what the plan does at these places and below
    /// was done there.
    pub shared: &'a [Shared],
}

/// Whose processes a process file system shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Processes {
    /// Those of the caller's pid namespace, which is a new one.
    Own,
    Hosts {
        /// Whether it stands in the view where the plan says; else it is only held.
        shown: bool,
    },
}

/// A view under construction.
#[derive(Debug)]
pub struct View<'a> {
    root: OwnedFd,
    proc: OwnedFd,
    /// The process file system that the view shows, where it is of another PID namespace.
    shown: Option<OwnedFd>,
    /// Where the root is mounted as long as it is not the caller's.
    place: &'static str,
    processes: Processes,
    setting: Setting<'a>,
    /// Whether the nodes that cover others can be mounted.
    pub(crate) covers: Cell<bool>,
    foreign: RefCell<Vec<PathBuf>>,
    /// Overlays that are made and not in their place yet.
    made: RefCell<Vec<(PathBuf, OwnedFd)>>,
    overlays: RefCell<Vec<OwnedFd>>,
    /// Directories on the cage's own tmpfs, relative to the root.
    directories: RefCell<BTreeSet<PathBuf>>,
    /// Files on it that were just written.
    written: RefCell<Vec<OwnedFd>>,
    /// What is in the root of the process file system.
    kernel_files: OnceCell<Vec<KernelFile>>,
    /// Mounts that overlays were made of, each with the directory of the old root that it goes down
    /// with.
    left_behind: RefCell<Vec<(OwnedFd, OwnedFd)>>,
    /// Descriptors that are no longer needed: closing each would be a fifth of the calls by which
    /// a view is made.
    spent: RefCell<Vec<OwnedFd>>,
    /// Those of them that are roots of mounts, and where these stand.
    places: RefCell<Vec<(PathBuf, OwnedFd)>>,
    /// Whether what this process makes belongs to somebody else than the agent.
    gives_to_agent: bool,
    /// A mount of the root's storage without anything mounted in it, where nodes are made after
    /// mounts: so nothing is created in a tree of the host's then, either.
    bare_storage: Option<OwnedFd>,
    /// Whether the nodes that cover others are there.
    laid_out: Cell<bool>,
}

/// A name in the root of the process file system, and what it stands for.
type KernelFile = (Box<[u8]>, NodeKind);

const NOT_THERE: i32 = Errno::NOENT.raw_os_error();

/// As many descriptors are left open, at most: a plan can have thousands of operations.
const MOST_SPENT: usize = 256;

/// Handles of a view that was entered.
#[derive(Debug)]
pub struct Entered {
    /// The process file system.
    pub proc: OwnedFd,
    /// The ephemeral storage.
    pub storage: OwnedFd,
    /// The copy-on-write views, for [`renew`](crate::overlay::renew).
    pub overlays: Vec<OwnedFd>,
    /// Places of the view at which something is mounted, each with its root: the last one of a
    /// place is what stands there.
    pub places: Vec<(PathBuf, OwnedFd)>,
}

impl<'a> View<'a> {
    /// Makes the new root, in the caller's mount namespace, which must be a new one; and the
    /// process file system where the pid namespace is a new one, too.
    pub fn new(setting: Setting<'a>, processes: Processes) -> Result<Self, LayerError> {
        stop_propagation()?;
        // Nodes get the modes of the plan, whatever mask the caller has. The first process of the
        // cage sets the command's own before it starts it.
        umask(Mode::empty());
        // Before the new root covers /proc: the kernel lets a user namespace mount a process
        // file system only while it can see a whole one.
        let proc = match processes {
            Processes::Own => own_processes()?,
            Processes::Hosts { shown: true } => {
                doing(clone_source(Path::new("/proc")), || "clone /proc".into())?
            }
            Processes::Hosts { shown: false } => doing(
                openat(
                    CWD,
                    "/proc",
                    OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC,
                    Mode::empty(),
                ),
                || "open /proc".into(),
            )?,
        };
        // Any directory would do as the place: it is in a namespace that nobody else sees,
        // and gone after pivot_root. These exist everywhere; files of the host's /proc may
        // still be needed, those of /proc/fs never.
        let place = match processes {
            Processes::Own => "/proc",
            Processes::Hosts { .. } => "/proc/fs",
        };
        let (bytes, inodes) = (setting.bytes, setting.inodes);
        let data = format!("size={bytes},nr_inodes={inodes},mode=0755");
        let flags = MountFlags::NOSUID | MountFlags::NODEV;
        mount_new("tmpfs", Path::new(place), flags, &data)?;
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let root = openat(CWD, place, flags, Mode::empty());
        let root = doing(root, || "open the new root".into())?;
        // What this process makes belongs to it: without root it is the agent already.
        let own = (started_as(), started_with_group());
        Ok(View {
            root,
            proc,
            gives_to_agent: setting.agent != own,
            place,
            shown: None,
            processes,
            setting,
            covers: Cell::new(false),
            foreign: RefCell::default(),
            made: RefCell::default(),
            overlays: RefCell::default(),
            directories: RefCell::default(),
            written: RefCell::default(),
            kernel_files: OnceCell::new(),
            spent: RefCell::default(),
            left_behind: RefCell::default(),
            places: RefCell::default(),
            bare_storage: None,
            laid_out: Cell::new(false),
        })
    }

    /// Allows nodes to be made after mounts. Before anything is mounted.
    pub fn keep_bare_storage(&mut self) -> Result<(), LayerError> {
        self.bare_storage = Some(self.open_storage()?);
        Ok(())
    }

    /// Shows this process file system instead of the caller's own.
    pub fn show_processes(&mut self, proc: OwnedFd) {
        self.shown = Some(proc);
    }

    /// Goes on with other settings, for a view that was begun before they were known. Size and
    /// agent stay what they are.
    pub fn with_setting<'b>(self, authority: &'b str, owner_maps: &'b [OwnerMap]) -> View<'b> {
        let View {
            root,
            proc,
            shown,
            place,
            processes,
            setting,
            covers,
            foreign,
            made,
            overlays,
            directories,
            written,
            kernel_files,
            spent,
            left_behind,
            places,
            gives_to_agent,
            bare_storage,
            laid_out,
        } = self;
        View {
            root,
            proc,
            shown,
            place,
            processes,
            setting: Setting {
                bytes: setting.bytes,
                inodes: setting.inodes,
                agent: setting.agent,
                authority,
                owner_maps,
                shared: &[],
            },
            covers,
            foreign,
            made,
            overlays,
            directories,
            written,
            kernel_files,
            spent,
            left_behind,
            places,
            gives_to_agent,
            bare_storage,
            laid_out,
        }
    }

    /// Where nodes are made.
    pub(crate) fn nodes(&self) -> BorrowedFd<'_> {
        self.bare_storage.as_ref().unwrap_or(&self.root).as_fd()
    }

    /// Takes a descriptor that is no longer needed.
    pub(crate) fn spend(&self, descriptor: OwnedFd) {
        let mut spent = self.spent.borrow_mut();
        if spent.len() < MOST_SPENT {
            spent.push(descriptor);
        }
    }

    /// Takes a mount that is attached to nowhere and no longer needed, and a directory of the old
    /// root. Whoever closes the last descriptor of such a mount waits until every processor has
    /// noticed, and that was PID 1, right before it starts the command. Attached to the old root,
    /// it goes with all the other mounts there, for which PID 1 waits once.
    pub(crate) fn leave_behind(&self, tree: OwnedFd, directory: OwnedFd) {
        self.left_behind.borrow_mut().push((tree, directory));
    }

    /// Attaches them: after everything that looks names up in the old root, which they cover.
    fn attach_left_behind(&self) {
        for (tree, directory) in self.left_behind.take() {
            let flags =
                MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH | MoveMountFlags::MOVE_MOUNT_T_EMPTY_PATH;
            // Where the kernel refuses, as for a mount that was attached and taken off before, it goes
            // when it is closed.
            let _ = move_mount(&tree, "", &directory, "", flags);
            self.spend(tree);
            self.spend(directory);
        }
    }

    /// Takes the root of a mount that stands at a place of the view.
    fn stands(&self, target: &Path, root: OwnedFd) {
        let mut places = self.places.borrow_mut();
        // What is not remembered must not leave an earlier one as the last of its place.
        places.retain(|(place, _)| place != target);
        if places.len() < MOST_SPENT {
            places.push((target.to_owned(), root));
        }
    }

    /// A place of the view as a path of the namespace in which it is built. Only for what is on
    /// the cage's own tmpfs or the kernel's own: nobody else has been there.
    pub(crate) fn outside(&self, target: &Path) -> PathBuf {
        Path::new(self.place).join(relative(target))
    }

    /// How many overlays were made.
    pub(crate) fn made_so_far(&self) -> usize {
        self.overlays.borrow().len()
    }

    /// Keeps the handle by which an overlay is told to look at its layers anew.
    pub(crate) fn keep_overlay(&self, context: OwnedFd) {
        self.overlays.borrow_mut().push(context);
    }

    pub(crate) fn root(&self) -> BorrowedFd<'_> {
        self.root.as_fd()
    }

    /// A handle of the cage's process file system, through which nothing is masked yet.
    pub fn proc(&self) -> BorrowedFd<'_> {
        self.proc.as_fd()
    }

    /// Another mount of the root's storage that stays writable, attached nowhere. Before anything
    /// is mounted in it: only the storage itself is to be seen through it.
    pub fn open_storage(&self) -> Result<OwnedFd, LayerError> {
        clone_tree(self.root.as_fd(), false, Path::new("/"))
    }

    /// Carries out one operation.
    pub fn mount(&self, op: &ViewOp) -> Result<(), LayerError> {
        if let Some(shared) = self.taken_over(op) {
            let its_own = op.from_host().is_some() || matches!(op, ViewOp::Ephemeral { .. });
            let first = its_own && op.target() == Some(&shared.target);
            return match first {
                true => self.take_over(shared),
                false => Ok(()),
            };
        }
        let base = MountAttributes::NO_SUID.with(MountAttributes::NO_DEVICES);
        match op {
            ViewOp::Directory { .. }
            | ViewOp::Symlink { .. }
            | ViewOp::File { .. }
            | ViewOp::Authorities { .. } => Ok(()),
            ViewOp::Cover { target, with } => match self.kind_of(target)? {
                Some(NodeKind::File) => {
                    let set = base
                        .with(MountAttributes::READ_ONLY)
                        .with(MountAttributes::NO_EXEC);
                    self.cover(with, target, set, false)
                }
                Some(NodeKind::Directory) | None => Ok(()),
            },
            ViewOp::Ephemeral { target, executable } => {
                let set = if *executable {
                    base
                } else {
                    base.with(MountAttributes::NO_EXEC)
                };
                self.cover(target, target, set, false)
            }
            ViewOp::Bind {
                source,
                target,
                access,
                owner,
                ..
            } => self.bind(source, target, *access, *owner),
            ViewOp::Overlay { target, .. } => {
                let mut made = self.made.borrow_mut();
                let Some(index) = made.iter().position(|(place, _)| place == target) else {
                    return doing(Err(Errno::NOENT), || {
                        format!("find the overlay of {}", shown(target))
                    });
                };
                let (_, handle) = made.swap_remove(index);
                self.attach(&handle, target)?;
                self.stands(target, handle);
                self.is_foreign(target);
                Ok(())
            }
            ViewOp::Supervisor { target, .. } => Err(unbound(target)),
            ViewOp::Pin { target, access } => {
                let set = match access {
                    Access::Read => base.with(MountAttributes::READ_ONLY),
                    Access::Write | Access::Device => base,
                };
                self.cover(target, target, set, true)
            }
            ViewOp::Hide { target, kind, .. } => self.hide_there(target, *kind),
            ViewOp::Proc => match &self.shown {
                Some(proc) => self.attach(proc, Path::new("/proc")),
                None => self.attach(&self.proc, Path::new("/proc")),
            },
            ViewOp::MaskProc {
                target,
                instead: Some(file),
            } => match self.cover_with(file, target) {
                // The node that covers is there: it is the kernel that has no such file.
                Err(error) if error.source.raw_os_error() == Some(NOT_THERE) => Ok(()),
                other => other,
            },
            ViewOp::MaskProc {
                target,
                instead: None,
            } => match self.kind_of(target)? {
                None => Ok(()),
                Some(kind) => self.hide(target, kind),
            },
            ViewOp::ReadOnlyProc { target } => match self.kind_of(target)? {
                Some(_) => {
                    let set = base
                        .with(MountAttributes::READ_ONLY)
                        .with(MountAttributes::NO_EXEC);
                    self.cover(target, target, set, true)
                }
                None => Ok(()),
            },
            // In the cgroup namespace that the first process made before this.
            ViewOp::Cgroup => mount_new(
                "cgroup2",
                &self.outside(Path::new("/sys/fs/cgroup")),
                MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC,
                "",
            ),
            // The kernel counts the terminals of all instances together: one cage gets some.
            ViewOp::Terminals => mount_new(
                "devpts",
                &self.outside(Path::new("/dev/pts")),
                MountFlags::NOSUID | MountFlags::NOEXEC,
                "newinstance,mode=0620,ptmxmode=0666,max=128",
            ),
            ViewOp::Seal => doing(
                set_attributes(
                    self.root.as_fd(),
                    AttributeChange {
                        set: MountAttributes::READ_ONLY,
                        ..AttributeChange::default()
                    },
                ),
                || "make the root read-only".into(),
            ),
        }
    }

    /// The tree by which an operation was done in another view.
    fn taken_over(&self, op: &ViewOp) -> Option<&'a Shared> {
        let target = op.target()?;
        let mut shared = self.setting.shared.iter();
        shared.find(|shared| target.starts_with(&shared.target))
    }

    fn take_over(&self, shared: &Shared) -> Result<(), LayerError> {
        let there = self.foreign.borrow().contains(&shared.target);
        if !there {
            self.attach(&shared.tree, &shared.target)?;
            self.is_foreign(&shared.target);
        }
        Ok(())
    }

    /// Makes the view the root and lets the old one go. The caller's working directory is
    /// the new root.
    ///
    /// Descriptors that were needed on the way stay open: the caller is the first process of a
    /// cage, which closes all but its own in one call before it starts anything.
    pub fn enter(self) -> Result<Entered, LayerError> {
        self.attach_left_behind();
        std::mem::forget(self.spent.into_inner());
        doing(fchdir(&self.root), || "enter the new root".into())?;
        doing(pivot_root(".", "."), || "pivot into the new root".into())?;
        doing(unmount(".", UnmountFlags::DETACH), || {
            "unmount the old root".into()
        })?;
        doing(ironcage_sys::rustix::process::chdir("/"), || {
            "enter the root".into()
        })?;
        Ok(Entered {
            proc: self.proc,
            storage: self.root,
            overlays: self.overlays.into_inner(),
            places: self.places.into_inner(),
        })
    }

    /// Moves the view to a directory of the caller's mount namespace, for a program that makes it
    /// a root itself.
    pub fn place_at(self, place: &Path) -> Result<Entered, LayerError> {
        let from = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH;
        doing(move_mount(&self.root, "", CWD, place, from), || {
            format!("move the view to {}", shown(place))
        })?;
        Ok(Entered {
            proc: self.proc,
            storage: self.root,
            overlays: self.overlays.into_inner(),
            places: self.places.into_inner(),
        })
    }
}

/// The process file system of the caller's PID namespace, attached nowhere.
pub fn own_processes() -> Result<OwnedFd, LayerError> {
    make_filesystem(
        "proc",
        MountAttrFlags::MOUNT_ATTR_NOSUID
            | MountAttrFlags::MOUNT_ATTR_NODEV
            | MountAttrFlags::MOUNT_ATTR_NOEXEC,
    )
}

/// Only a bound plan is carried out, and that has none of these.
fn unbound(target: &Path) -> LayerError {
    LayerError {
        layer: Layer::MountNs,
        action: format!("mount {}, which is not bound to a file", shown(target)),
        source: std::io::ErrorKind::InvalidInput.into(),
        code: StartCode::LayerFailed,
    }
}
