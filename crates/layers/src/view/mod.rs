//! The file view: carries out the plan's view operations, in order.
//!
//! First everything that needs a node on the cage's own tmpfs gets one, before any part of
//! the host is attached: so nothing is ever created in a tree of the host's. Then mounts are
//! attached, each target opened once as a handle below the new root, following no link.

mod mounts;
mod nodes;

use crate::authorities;
use crate::error::{LayerError, shown};
use crate::hiding::{Covers, HIDDEN_DIRECTORY, HIDDEN_FILE};
use crate::overlay::{LAYERS, Layers, MAP_OWNER, Place, UPPER, WORK};
pub use crate::shared::Shared;
use ironcage_plan::{Access, Item, NodeKind, Owner, ViewOp};
use ironcage_sys::mount::{
    AttributeChange, MountAttributes, clone_source, open_below, set_attributes,
};
use ironcage_sys::rustix::fs::{
    AtFlags, CWD, FileType, Mode, OFlags, chmodat, fstat, openat, symlinkat,
};
use ironcage_sys::rustix::io::Errno;
use ironcage_sys::rustix::mount::{
    MountAttrFlags, MoveMountFlags, UnmountFlags, move_mount, unmount,
};
use ironcage_sys::rustix::process::{fchdir, pivot_root};
pub(crate) use mounts::{clone_tree, doing, make_filesystem, relative, stop_propagation};
use std::cell::{OnceCell, RefCell};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

/// A user namespace that maps the owner of files on disk to the agent.
#[derive(Debug)]
pub struct OwnerMap {
    /// Whose files.
    pub owner: Owner,
    /// The namespace.
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
    /// The host's.
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
    setting: Setting<'a>,
    pub(crate) covers: OnceCell<Covers>,
    foreign: RefCell<Vec<PathBuf>>,
    overlays: RefCell<Vec<OwnedFd>>,
}

/// Handles of a view that was entered.
#[derive(Debug)]
pub struct Entered {
    /// The process file system.
    pub proc: OwnedFd,
    /// The ephemeral storage.
    pub storage: OwnedFd,
    /// The copy-on-write views, for [`renew`](crate::overlay::renew).
    pub overlays: Vec<OwnedFd>,
}

impl<'a> View<'a> {
    /// Makes the new root, in the caller's mount namespace, which must be a new one; and the
    /// process file system where the pid namespace is a new one, too.
    pub fn new(setting: Setting<'a>, processes: Processes) -> Result<Self, LayerError> {
        stop_propagation()?;
        // Before the new root covers /proc: the kernel lets a user namespace mount a process
        // file system only while it can see a whole one.
        let proc = match processes {
            Processes::Own => make_filesystem(
                "proc",
                &[],
                MountAttrFlags::MOUNT_ATTR_NOSUID
                    | MountAttrFlags::MOUNT_ATTR_NODEV
                    | MountAttrFlags::MOUNT_ATTR_NOEXEC,
            )?,
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
        let root = make_filesystem(
            "tmpfs",
            &[
                ("size", &setting.bytes.to_string()),
                ("nr_inodes", &setting.inodes.to_string()),
                ("mode", "0755"),
            ],
            MountAttrFlags::MOUNT_ATTR_NOSUID | MountAttrFlags::MOUNT_ATTR_NODEV,
        )?;
        // Any directory would do as the place: it is in a namespace that nobody else sees,
        // and gone after pivot_root. These exist everywhere; files of the host's /proc may
        // still be needed, those of /proc/fs never.
        let place = match processes {
            Processes::Own => "/proc",
            Processes::Hosts { .. } => "/proc/fs",
        };
        doing(
            move_mount(
                &root,
                "",
                CWD,
                place,
                MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH,
            ),
            || "attach the new root".into(),
        )?;
        Ok(View {
            root,
            proc,
            setting,
            covers: OnceCell::new(),
            foreign: RefCell::new(Vec::new()),
            overlays: RefCell::new(Vec::new()),
        })
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

    /// Makes the nodes that the operations need.
    pub fn lay_out(&self, ops: &[Item<ViewOp>]) -> Result<(), LayerError> {
        self.directory(Path::new(HIDDEN_DIRECTORY), 0o700)?;
        self.file(Path::new(HIDDEN_FILE), b"", 0o000)?;
        doing(
            chmodat(
                &self.root,
                HIDDEN_DIRECTORY,
                Mode::empty(),
                AtFlags::empty(),
            ),
            || "close the hidden directory".into(),
        )?;
        for item in ops {
            match &item.what {
                ViewOp::Directory {
                    target,
                    mode,
                    agents,
                } => {
                    self.directory(target, *mode)?;
                    if *agents {
                        self.give_to_agent(target)?;
                    }
                }
                ViewOp::Symlink { target, to } => {
                    let make = || symlinkat(to, &self.root, relative(target));
                    let made = self.with_parents(target, make)?;
                    doing(made, || format!("make the link {}", shown(target)))?;
                }
                ViewOp::File {
                    target,
                    content,
                    mode,
                } => {
                    self.file(target, content.as_bytes(), *mode)?;
                    // Some programs, ssh among them, refuse settings of somebody else's.
                    self.give_to_agent(target)?;
                }
                ViewOp::Authorities {
                    target,
                    bundles,
                    java,
                } => {
                    let content = authorities::content(bundles, self.setting.authority, *java);
                    let content = doing(content, || {
                        format!("gather authorities for {}", shown(target))
                    })?;
                    self.file(target, &content, 0o444)?;
                }
                ViewOp::Bind { target, kind, .. } => match kind {
                    NodeKind::Directory => self.directory(target, 0o755)?,
                    NodeKind::File => self.empty_file(target)?,
                },
                ViewOp::Overlay {
                    lower,
                    target,
                    owner,
                    memory,
                    ..
                } => {
                    self.directory(target, 0o755)?;
                    if owner.is_some() {
                        self.directory(Path::new(LAYERS), 0o700)?;
                    }
                    if let Some(place) = memory {
                        self.make_memory(lower, Path::new(place), *owner)?;
                    }
                }
                ViewOp::Proc => self.directory(Path::new("/proc"), 0o555)?,
                ViewOp::Terminals => self.directory(Path::new("/dev/pts"), 0o755)?,
                ViewOp::Ephemeral { .. }
                | ViewOp::Cover { .. }
                | ViewOp::Pin { .. }
                | ViewOp::Hide { .. }
                | ViewOp::MaskProc { .. }
                | ViewOp::ReadOnlyProc { .. }
                | ViewOp::Seal => {}
            }
        }
        Ok(())
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
            ViewOp::Overlay {
                lower,
                target,
                upper,
                work,
                memory,
                owner,
                of: _,
                locked: _,
            } => match memory {
                None => self.overlay(Layers { lower, upper, work }, target, (*owner, Place::Host)),
                Some(place) => {
                    let place = Path::new(place);
                    let (upper, work) = (&place.join(UPPER), &place.join(WORK));
                    self.overlay(
                        Layers { lower, upper, work },
                        target,
                        (*owner, Place::Memory),
                    )
                }
            },
            ViewOp::Pin { target, access } => {
                let set = match access {
                    Access::Read => base.with(MountAttributes::READ_ONLY),
                    Access::Write | Access::Device => base,
                };
                self.cover(target, target, set, true)
            }
            ViewOp::Hide { target, kind } => self.hide_there(target, *kind),
            ViewOp::Proc => self.attach(&self.proc, Path::new("/proc")),
            ViewOp::MaskProc { target, instead } => match (self.kind_of(target)?, instead) {
                (None, _) => Ok(()),
                (Some(kind), None) => self.hide(target, kind),
                (Some(_), Some(file)) => {
                    let set = base
                        .with(MountAttributes::READ_ONLY)
                        .with(MountAttributes::NO_EXEC);
                    self.cover(Path::new(file), target, set, false)
                }
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
            ViewOp::Terminals => {
                let terminals = make_filesystem(
                    "devpts",
                    // The kernel counts the terminals of all instances together: one cage gets some.
                    &[("mode", "0620"), ("ptmxmode", "0666"), ("max", "128")],
                    MountAttrFlags::MOUNT_ATTR_NOSUID | MountAttrFlags::MOUNT_ATTR_NOEXEC,
                )?;
                let target = Path::new("/dev/pts");
                self.attach(&terminals, target)
            }
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
    pub fn enter(self) -> Result<Entered, LayerError> {
        doing(fchdir(&self.root), || "enter the new root".into())?;
        doing(pivot_root(".", "."), || "pivot into the new root".into())?;
        doing(unmount(".", UnmountFlags::DETACH), || {
            "let the old root go".into()
        })?;
        doing(ironcage_sys::rustix::process::chdir("/"), || {
            "enter the root".into()
        })?;
        Ok(Entered {
            proc: self.proc,
            storage: self.root,
            overlays: self.overlays.into_inner(),
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
        })
    }

    fn bind(
        &self,
        source: &Path,
        target: &Path,
        access: Access,
        owner: Option<Owner>,
    ) -> Result<(), LayerError> {
        let tree = doing(clone_source(source), || {
            format!("clone the mount of {}", shown(source))
        })?;
        let set = match access {
            Access::Read => MountAttributes::NO_SUID
                .with(MountAttributes::NO_DEVICES)
                .with(MountAttributes::READ_ONLY),
            Access::Write => MountAttributes::NO_SUID.with(MountAttributes::NO_DEVICES),
            Access::Device => MountAttributes::NO_SUID.with(MountAttributes::NO_EXEC),
        };
        let id_map = self.id_map(owner);
        doing(
            set_attributes(
                tree.as_fd(),
                AttributeChange {
                    set,
                    id_map,
                    recursive: true,
                    private: true,
                    ..AttributeChange::default()
                },
            ),
            || match id_map {
                Some(_) => format!(
                    "{MAP_OWNER} {} (its file system, or one mounted below it, may not allow that)",
                    shown(source)
                ),
                None => format!("restrict the mount of {}", shown(source)),
            },
        )?;
        self.attach(&tree, target)?;
        if access != Access::Device {
            self.is_foreign(target);
        }
        Ok(())
    }

    /// Remembers that others may change what stands at a place.
    pub(crate) fn is_foreign(&self, target: &Path) {
        self.foreign.borrow_mut().push(target.to_owned());
    }

    /// The agent's ids in the namespace in which the view is built.
    pub(crate) fn agent(&self) -> (u32, u32) {
        self.setting.agent
    }

    pub(crate) fn id_map(&self, owner: Option<Owner>) -> Option<BorrowedFd<'_>> {
        let mut maps = self.setting.owner_maps.iter();
        let map = maps.find(|map| Some(map.owner) == owner)?;
        Some(map.namespace.as_fd())
    }

    /// Mounts a part of the view onto another, or onto itself.
    pub(crate) fn cover(
        &self,
        part: &Path,
        target: &Path,
        set: MountAttributes,
        recursive: bool,
    ) -> Result<(), LayerError> {
        let tree = clone_tree(self.open(part)?.as_fd(), recursive, part)?;
        doing(
            set_attributes(
                tree.as_fd(),
                AttributeChange {
                    set,
                    recursive,
                    ..AttributeChange::default()
                },
            ),
            || format!("restrict {}", shown(target)),
        )?;
        self.attach(&tree, target)
    }

    /// Mounts a tree at a place of the view. A place on the cage's own tmpfs is named: nobody
    /// else has been there. One in a tree of the host's is opened as a handle that follows no
    /// link, since others may change that tree at any moment.
    pub(crate) fn attach(&self, tree: &OwnedFd, target: &Path) -> Result<(), LayerError> {
        let action = || format!("mount at {}", shown(target));
        let from = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH;
        let in_foreign_tree = self
            .foreign
            .borrow()
            .iter()
            .any(|tree| target.starts_with(tree));
        if in_foreign_tree {
            let place = self.open(target)?;
            let to = MoveMountFlags::MOVE_MOUNT_T_EMPTY_PATH;
            doing(move_mount(tree, "", &place, "", from | to), action)
        } else {
            doing(
                move_mount(tree, "", &self.root, relative(target), from),
                action,
            )
        }
    }

    pub(crate) fn open(&self, target: &Path) -> Result<OwnedFd, LayerError> {
        doing(open_below(self.root.as_fd(), target), || {
            format!("open {} in the view", shown(target))
        })
    }

    /// What stands at a place, or `None` when nothing does.
    pub(crate) fn kind_of(&self, target: &Path) -> Result<Option<NodeKind>, LayerError> {
        match open_below(self.root.as_fd(), target) {
            Ok(handle) => {
                let stat = doing(fstat(&handle), || format!("look at {}", shown(target)))?;
                let directory = FileType::from_raw_mode(stat.st_mode) == FileType::Directory;
                Ok(Some(if directory {
                    NodeKind::Directory
                } else {
                    NodeKind::File
                }))
            }
            Err(error) if error.raw_os_error() == Some(Errno::NOENT.raw_os_error()) => Ok(None),
            Err(error) => doing(Err(error), || format!("open {} in the view", shown(target))),
        }
    }
}
