//! The work of the mount helper, order by order.

use super::holders::{self, MountHolder};
use super::names::LeasedNames;
use super::{enter_mounts, open_place};
use ironcage_backend::faults::lease_step as step;
use ironcage_backend::ids::{Reaped, owner_map};
use ironcage_backend::{LeaseOrder, LeasedFrom, MountHelperReply, Progress};
use ironcage_control::{Channel, Packet};
use ironcage_layers::LayerError;
use ironcage_layers::live::{
    DiskOwner, Identity, LiveMount, Removal, Source, clone_decided, clone_part, mounts_below,
    open_decided,
};
use ironcage_model::{Holder, Right};
use ironcage_plan::{Owner, Plan};
use ironcage_sys::clone::exit_now;
use ironcage_sys::rustix::fs::{Mode, OFlags, openat};
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::time::Duration;

/// How often holders are looked for and killed before it is said that they cannot be found.
const ROUNDS: u32 = 20;
/// How long those who were killed may take to be gone, each round.
const PATIENCE: Duration = Duration::from_millis(10);
/// Holders that are told by name.
const NAMED: usize = 16;

/// The mount helper at work.
pub(super) struct Service<'a> {
    pub(super) channel: &'a Channel,
    /// The outer mount namespace.
    pub(super) outer: OwnedFd,
    pub(super) cage: BorrowedFd<'a>,
    pub(super) inside: OwnedFd,
    /// The storage that this is on, writable.
    pub(super) storage: BorrowedFd<'a>,
    /// Where the cage was built.
    pub(super) built: Option<BorrowedFd<'a>>,
    /// In a scope: the storage of its cage, and the plan that says which places are on it.
    pub(super) beside: Option<(BorrowedFd<'a>, &'a Plan)>,
    /// The process file system that shows the cage's processes.
    pub(super) proc: BorrowedFd<'a>,
    /// This process in the host's process file system, and its descriptors.
    pub(super) own: OwnedFd,
    pub(super) links: OwnedFd,
    /// The agent's ids outside, where root mounts.
    pub(super) agent: Option<(u32, u32)>,
    /// Whether the cage's processes are a virtual machine and its file server.
    pub(super) guest: bool,
    pub(super) leases: BTreeMap<u32, Open>,
    /// Leases on names in a directory that another lease of a name brought, by that one.
    pub(super) joined: BTreeMap<u32, u32>,
    /// Why something is not in its place that was written under a leased name, until it is told.
    pub(super) misplaced: Option<String>,
    /// User namespaces that map owners on disk to the agent.
    pub(super) owners: Vec<(DiskOwner, OwnedFd, Reaped)>,
}

/// An open lease.
pub(super) struct Open {
    mount: LiveMount,
    /// Whether there are mounts of the host below it: then the kernel says less of it.
    below: Vec<u64>,
    path: String,
    /// Whether it is a part of the cage's own view: then reading is no part of the lease.
    of_view: bool,
    /// Whether it is one of a scope's, which ends when nobody is left in there.
    in_scope: bool,
    /// Where only leased names are in it.
    names: Option<LeasedNames>,
}

impl Open {
    fn ids(&self) -> Vec<u64> {
        let mut ids = vec![self.mount.id()];
        ids.extend(&self.below);
        ids
    }
}

impl<'a> Service<'a> {
    /// Serves until the supervisor is gone.
    pub(super) fn run(mut self) -> io::Result<()> {
        loop {
            let (order, with) = match self.channel.receive::<LeaseOrder>(true)? {
                Some(Packet::Message(order, with)) => (order, with),
                Some(Packet::Closed) => return Ok(()),
                Some(Packet::Garbled(error)) => return Err(io::Error::other(error)),
                None => continue,
            };
            step();
            let answer = self.obey(order, with)?;
            step();
            self.channel.send(&answer, &[])?;
        }
    }

    /// An error means that it is not known what is open, which only the end of the cage mends.
    fn obey(&mut self, order: LeaseOrder, with: Vec<OwnedFd>) -> io::Result<MountHelperReply> {
        match order {
            LeaseOrder::Open {
                number,
                path,
                from,
                right,
            } => {
                let opened = match from {
                    LeasedFrom::Name {
                        device,
                        inode,
                        existing,
                    } => {
                        let file = |(device, inode)| Identity { device, inode };
                        let directory = Identity { device, inode };
                        self.open_name(number, &path, (directory, existing.map(file)))
                    }
                    _ => self.open(&path, (from, with), right).map(Some),
                };
                let failed = match opened {
                    Ok(Some(open)) => {
                        self.leases.insert(number, open);
                        None
                    }
                    Ok(None) => None,
                    Err(error) => Some(format!("{error}: {}", error.source)),
                };
                Ok(MountHelperReply::Opened { number, failed })
            }
            LeaseOrder::Close { number } => {
                let progress = self.close(self.owner(number))?;
                self.ended(number, progress, Vec::new())
            }
            LeaseOrder::Expel { number, alone } => {
                let (progress, holders) = self.expel(self.owner(number), alone)?;
                self.ended(number, progress, holders)
            }
            LeaseOrder::Leave { number } => {
                let (progress, holders) = self.leave(self.owner(number))?;
                self.ended(number, progress, holders)
            }
        }
    }

    /// The lease whose mount holds a lease. Names in one directory end together: they are a scope's.
    fn owner(&self, number: u32) -> u32 {
        self.joined.get(&number).copied().unwrap_or(number)
    }

    fn ended(
        &mut self,
        number: u32,
        progress: Progress,
        mut holders: Vec<Holder>,
    ) -> io::Result<MountHelperReply> {
        holders.truncate(NAMED);
        let open = self.leases.get(&self.owner(number));
        let mounts = open.map(Open::ids).unwrap_or_default();
        Ok(MountHelperReply::Ended {
            number,
            progress,
            holders,
            mounts,
            misplaced: self.misplaced.take(),
        })
    }

    /// On which storage the mount points of a path are made.
    fn storage_at(&self, path: &Path) -> BorrowedFd<'a> {
        match self.beside {
            Some((storage, plan)) if plan.is_shared_storage(path) => storage,
            _ => self.storage,
        }
    }

    fn open(
        &mut self,
        path: &str,
        (from, with): (LeasedFrom, Vec<OwnedFd>),
        right: Right,
    ) -> Result<Open, LayerError> {
        let failed = |source: io::Error| LayerError {
            layer: ironcage_model::Layer::MountNs,
            action: "change the mount namespace".into(),
            source,
            code: ironcage_model::StartCode::LayerFailed,
        };
        let place = Path::new(path);
        let around = match (from, self.built) {
            (LeasedFrom::View, Some(built)) => built,
            _ => self.outer.as_fd(),
        };
        enter_mounts(around).map_err(failed)?;
        step();
        let source = match from {
            LeasedFrom::Host { device, inode } => {
                self.source(place, Identity { device, inode }, right)
            }
            LeasedFrom::View => {
                let root = open_place("/").map_err(failed);
                root.and_then(|root| Source::of_view(clone_part(root.as_fd(), place)?))
            }
            LeasedFrom::Name { .. } => Err(failed(io::ErrorKind::InvalidInput.into())),
            LeasedFrom::Beside => {
                let none = || failed(io::ErrorKind::InvalidInput.into());
                let tree = with.into_iter().next().ok_or_else(none);
                tree.and_then(Source::of_view)
            }
        };
        step();
        // Whatever came of it: everything else is done in the cage's.
        enter_mounts(self.cage).map_err(failed)?;
        if let Ok(source) = &source {
            let made = self.make_place(place, source.is_directory());
            made.map_err(failed)?;
        }
        let (inside, storage) = (self.inside.as_fd(), self.storage_at(place));
        let mount = LiveMount::attach(source?, inside, storage, place)?;
        step();
        // Which mounts came along is asked in the cage's namespace, where they are.
        let Ok(list) = self.mount_list() else {
            // It is attached, and nobody could prove its end: with the mount helper the cage ends.
            exit_now(1)
        };
        let below = mounts_below(&list, mount.id());
        Ok(Open {
            mount,
            below,
            path: path.to_owned(),
            of_view: !matches!(from, LeasedFrom::Host { .. }),
            in_scope: from == LeasedFrom::Beside,
            names: None,
        })
    }

    /// Opens a lease on a name of a directory: with others there, or by a mount of its own. `None`
    /// where it is with others.
    fn open_name(
        &mut self,
        number: u32,
        path: &str,
        (directory, existing): (Identity, Option<Identity>),
    ) -> Result<Option<Open>, LayerError> {
        let failed = |source: io::Error| LayerError {
            layer: ironcage_model::Layer::MountNs,
            action: format!("lease {} by its name", Path::new(path).display()),
            source,
            code: ironcage_model::StartCode::LayerFailed,
        };
        let place = Path::new(path);
        let (Some(around), Some(name)) = (place.parent(), place.file_name()) else {
            return Err(failed(io::ErrorKind::InvalidInput.into()));
        };
        let beside = self
            .leases
            .iter_mut()
            .find(|(_, open)| open.names.is_some() && Path::new(&open.path) == around);
        if let Some((owner, open)) = beside {
            if let Some(names) = &mut open.names {
                names.take_in(name, existing).map_err(failed)?;
            }
            self.joined.insert(number, *owner);
            return Ok(None);
        }
        enter_mounts(self.outer.as_fd()).map_err(failed)?;
        step();
        let (handle, owner) = open_decided(around, directory)?;
        let made =
            LeasedNames::make(handle, owner, self.agent.is_some()).and_then(
                |mut names| match names.take_in(name, existing) {
                    Ok(()) => Ok(names),
                    Err(error) => {
                        names.remove()?;
                        Err(error)
                    }
                },
            );
        step();
        let names = match (made, existing) {
            (Ok(names), _) => names,
            // A file system without links, or a directory where nothing can be made: the file itself.
            (Err(_), Some(Identity { device, inode })) => {
                let from = (LeasedFrom::Host { device, inode }, Vec::new());
                return self.open(path, from, Right::Write).map(Some);
            }
            (Err(error), None) => return Err(failed(error)),
        };
        let source = self
            .map_of(owner)
            .map_err(failed)
            .and_then(|map| clone_decided(names.handle(), around, Right::Write, map));
        step();
        enter_mounts(self.cage).map_err(failed)?;
        let (inside, storage) = (self.inside.as_fd(), self.storage_at(around));
        let attached = source.and_then(|source| LiveMount::attach(source, inside, storage, around));
        let mount = match attached {
            Ok(mount) => mount,
            Err(error) => {
                enter_mounts(self.outer.as_fd()).map_err(failed)?;
                names.remove().map_err(failed)?;
                return Err(error);
            }
        };
        step();
        Ok(Some(Open {
            mount,
            below: Vec::new(),
            path: around.to_string_lossy().into_owned(),
            of_view: false,
            in_scope: true,
            names: Some(names),
        }))
    }

    /// Puts what was written under leased names in its place: nobody has anything of it any more.
    fn finish_names(&mut self, names: Option<LeasedNames>) -> io::Result<()> {
        let Some(names) = names else {
            return Ok(());
        };
        enter_mounts(self.outer.as_fd())?;
        step();
        let misplaced = names.finish();
        step();
        enter_mounts(self.cage)?;
        self.misplaced = misplaced.or(self.misplaced.take());
        Ok(())
    }

    /// Makes the mount point of what is leased in a directory of which only names are seen.
    fn make_place(&self, place: &Path, is_directory: bool) -> io::Result<()> {
        let around = self.leases.values().find_map(|open| {
            let names = open.names.as_ref()?;
            let below = place.strip_prefix(&open.path).ok()?;
            Some((names, below))
        });
        match around {
            Some((names, below)) if !below.as_os_str().is_empty() => {
                names.make_place(below, is_directory)
            }
            _ => Ok(()),
        }
    }

    /// What is leased, in the outer namespace.
    fn source(
        &mut self,
        place: &Path,
        decided: Identity,
        right: Right,
    ) -> Result<Source, LayerError> {
        let (handle, owner) = open_decided(place, decided)?;
        let id_map = self.map_of(owner).map_err(|source| LayerError {
            layer: ironcage_model::Layer::UserNs,
            action: "map the owner of what is leased".into(),
            source,
            code: ironcage_model::StartCode::LayerFailed,
        })?;
        clone_decided(handle.as_fd(), place, right, id_map)
    }

    /// The map by which the owner on disk is the agent, where root mounts.
    fn map_of(&mut self, owner: DiskOwner) -> io::Result<Option<BorrowedFd<'_>>> {
        let Some(agent) = self.agent else {
            return Ok(None);
        };
        if !self.owners.iter().any(|(known, ..)| *known == owner) {
            let (uid, gid) = owner;
            let (namespace, child) = owner_map(Owner::one(uid, gid), agent)?;
            self.owners.push((owner, namespace, child));
        }
        let mut owners = self.owners.iter();
        let map = owners.find(|(known, ..)| *known == owner);
        Ok(map.map(|(_, namespace, _)| namespace.as_fd()))
    }

    fn mount_list(&self) -> io::Result<String> {
        let flags = OFlags::RDONLY | OFlags::CLOEXEC;
        let file = openat(&self.own, "mountinfo", flags, Mode::empty())?;
        let mut text = Vec::new();
        File::from(file).read_to_end(&mut text)?;
        // Names in it may be any bytes; only numbers are read.
        Ok(String::from_utf8_lossy(&text).into_owned())
    }

    /// Ends a lease if nobody uses it. In a guest, the file server first closes what it has open of
    /// it; that it did, the kernel says.
    fn close(&mut self, number: u32) -> io::Result<Progress> {
        let evicted = match self.leases.get(&number) {
            Some(open) if self.guest => {
                let ids = open.ids();
                super::eviction::begin(self.proc, &ids, &open.path)?;
                ids
            }
            _ => Vec::new(),
        };
        let progress = self.close_unused(number);
        // The kernel uses numbers of mounts again.
        super::eviction::end(self.proc, &evicted)?;
        progress
    }

    /// Ends a lease if nobody uses it.
    fn close_unused(&mut self, number: u32) -> io::Result<Progress> {
        let Some(open) = self.leases.remove(&number) else {
            // It is closed already, or never was: nobody has anything of it.
            return Ok(Progress::Revoked);
        };
        // First of all, on every mount of it: once it is off, it could not be said any more
        // that nobody writes.
        if !open.mount.flip(open.of_view).map_err(io::Error::other)? {
            self.leases.insert(number, open);
            return Ok(Progress::Busy);
        }
        step();
        if !open.below.is_empty() && open.of_view {
            // What is mounted in it hides something, so in a cage it goes with it in one piece; and
            // then the kernel does not say whether something of it is mapped. Whoever stops the cage
            // may look. In a scope nobody is left who could see what was hidden.
            let apart = open.in_scope && {
                let list = self.mount_list()?;
                let (inside, storage) = (self.inside.as_fd(), self.storage);
                let taken = open.mount.take_apart(inside, storage, &list);
                taken.map_err(io::Error::other)?
            };
            if !apart {
                self.leases.insert(number, open);
                return Ok(Progress::Busy);
            }
        } else if !open.below.is_empty() {
            // The kernel takes no tree off in one piece unless it is told not to look.
            let busy = holders::find(self.proc, &open.ids(), &open.path)?;
            if !busy.is_empty() {
                self.leases.insert(number, open);
                return Ok(Progress::Busy);
            }
            let storage = self.storage_at(Path::new(&open.path));
            let off = open.mount.detach(storage, self.links.as_fd());
            off.map_err(io::Error::other)?;
            self.finish_names(open.names)?;
            return Ok(Progress::Closed);
        }
        let Open {
            mount,
            below,
            path,
            of_view,
            in_scope,
            names,
        } = open;
        let storage = self.storage_at(Path::new(&path));
        let removed = mount.remove(storage, self.links.as_fd());
        match removed.map_err(io::Error::other)? {
            Removal::Proved => {
                self.finish_names(names)?;
                Ok(Progress::Revoked)
            }
            Removal::Detached => {
                self.finish_names(names)?;
                Ok(Progress::Closed)
            }
            Removal::Busy(mount) => {
                let open = Open {
                    mount,
                    below,
                    path,
                    of_view,
                    in_scope,
                    names,
                };
                self.leases.insert(number, open);
                Ok(Progress::Busy)
            }
        }
    }

    /// Ends a lease, and kills who uses it: as often as others are found.
    fn expel(&mut self, number: u32, alone: bool) -> io::Result<(Progress, Vec<Holder>)> {
        let mut told: Vec<Holder> = Vec::new();
        for _ in 0..ROUNDS {
            // The cage stands still, and a file server that was to obey has had its time.
            match self.close_unused(number)? {
                Progress::Busy => {}
                over => return Ok((over, told)),
            }
            let Some(open) = self.leases.get(&number) else {
                break;
            };
            // Who only reads what the cage can read anyway is left alone.
            let spared = alone && open.of_view && holders::is_plain(&open.path);
            let found = match spared {
                true => holders::find_writers(self.proc, &open.ids(), &open.path)?,
                false => holders::find(self.proc, &open.ids(), &open.path)?,
            };
            let unseen = open.of_view && found.is_empty();
            let whole = open.below.is_empty();
            if unseen && (spared || !whole) && self.let_readers_be(number)? {
                // Nobody in the cage writes. That nobody at all does, only the plain end would say:
                // what was handed to somebody elsewhere keeps it from that as a reader does.
                return Ok((Progress::Closed, told));
            }
            for MountHolder { holder, process } in found {
                step();
                holders::kill(process.as_fd());
                if told.iter().all(|known| known.pid != holder.pid) {
                    told.push(Holder {
                        killed: true,
                        ..holder
                    });
                }
            }
            std::thread::sleep(PATIENCE);
        }
        Ok((Progress::Busy, told))
    }

    /// Takes a part of the cage's own view off in which nobody writes. `false` where the kernel
    /// says that somebody does.
    fn let_readers_be(&mut self, number: u32) -> io::Result<bool> {
        let Some(open) = self.leases.remove(&number) else {
            return Ok(true);
        };
        if !open.mount.flip(true).map_err(io::Error::other)? {
            self.leases.insert(number, open);
            return Ok(false);
        }
        step();
        let off = open.mount.detach(self.storage, self.links.as_fd());
        off.map_err(io::Error::other)?;
        Ok(true)
    }

    /// Ends a lease for who has nothing of it yet.
    fn leave(&mut self, number: u32) -> io::Result<(Progress, Vec<Holder>)> {
        match self.close(number)? {
            Progress::Busy => {}
            over => return Ok((over, Vec::new())),
        }
        let Some(open) = self.leases.remove(&number) else {
            return Ok((Progress::Revoked, Vec::new()));
        };
        let found = match open.of_view {
            true => holders::find_writers(self.proc, &open.ids(), &open.path)?,
            false => holders::find(self.proc, &open.ids(), &open.path)?,
        };
        let writes = open.of_view && !found.is_empty();
        let told = found.into_iter().map(|found| found.holder).collect();
        if writes {
            self.leases.insert(number, open);
            return Ok((Progress::Busy, told));
        }
        // While somebody writes it stays: off the view, nothing could be said of it any more.
        if !open.mount.flip(open.of_view).map_err(io::Error::other)? {
            self.leases.insert(number, open);
            return Ok((Progress::Busy, told));
        }
        let storage = self.storage_at(Path::new(&open.path));
        let off = open.mount.detach(storage, self.links.as_fd());
        off.map_err(io::Error::other)?;
        self.finish_names(open.names)?;
        Ok((Progress::Closed, told))
    }
}
