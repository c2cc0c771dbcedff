//! Finds names in a command that may lead out of the cage.
//!
//! The cage's own files need no permission: that is seen from inside. The rest is decided
//! outside, by the plan.

use ironcage_control::{MOST_NAMED, ShellLine};
use ironcage_intent::{Context, Destination, Needs, Table, Unsure, read_with};
use ironcage_model::{Contact, READER_PROGRAM};
use ironcage_sys::rustix::fs::{Access, AtFlags, CWD, Statx, StatxFlags, access, statx};
use std::path::{Path, PathBuf};

/// The resources that a command names; `None` if the cage cannot lack any of them.
pub(super) fn of(name: &str, text: &str) -> Option<ShellLine> {
    let table = Table::shipped().ok()?;
    let context = Context {
        cwd: std::env::current_dir().ok()?,
        home: std::env::var_os("HOME").map(PathBuf::from),
    };
    let needs = read_with(Path::new(READER_PROGRAM), &table, text, &context);
    line(name, &needs, &context.cwd, &Cage::look())
}

fn line(name: &str, needs: &Needs, cwd: &Path, cage: &Cage) -> Option<ShellLine> {
    let text = |path: &PathBuf| path.to_str().map(str::to_owned);
    let reads = needs.reads_and_enters().filter(|path| !cage.reads(path));
    let writes = needs.writes.iter().filter(|path| !cage.writes(path));
    let unread = needs
        .unknown
        .iter()
        .filter(|unknown| matches!(unknown.what, Unsure::Writes | Unsure::Everything))
        .map(|unknown| unknown.below.as_deref().unwrap_or(cwd));
    let mut below: Vec<String> = unread
        .filter(|path| !cage.writes(path))
        .filter_map(|path| path.to_str().map(str::to_owned))
        .collect();
    below.sort();
    below.dedup();
    let mut line = ShellLine {
        name: name.to_owned(),
        reads: reads.filter_map(text).collect(),
        writes: writes.filter_map(text).collect(),
        contacts: needs.destinations.iter().map(contact).collect(),
        open: needs.may_do_more(),
        held_reads: Vec::new(),
        held_writes: Vec::new(),
        stays: needs.leaves_running,
        below,
    };
    let mut room = MOST_NAMED;
    let cut = |list: &mut Vec<String>, room: &mut usize| {
        let more = list.len() > *room;
        list.truncate(*room);
        *room -= list.len();
        more
    };
    line.open |= line.contacts.len() > room;
    line.contacts.truncate(room);
    room -= line.contacts.len();
    line.open |= cut(&mut line.writes, &mut room);
    line.open |= cut(&mut line.reads, &mut room);
    line.open |= cut(&mut line.below, &mut room);
    let nothing = line.reads.is_empty() && line.writes.is_empty() && line.contacts.is_empty();
    if nothing && line.below.is_empty() {
        return None;
    }
    // A lease of the cage is not in a scope: what a command has by one, it needs there, too.
    let reads = needs.reads_and_enters().filter(|path| cage.is_apart(path));
    let writes = needs
        .writes
        .iter()
        .filter(|path| cage.is_apart(path) && cage.writes(path));
    line.held_writes = writes.filter_map(text).collect();
    cut(&mut line.held_writes, &mut room);
    line.held_reads = reads.filter_map(text).collect();
    cut(&mut line.held_reads, &mut room);
    Some(line)
}

fn contact(destination: &Destination) -> Contact {
    match destination {
        Destination::Host { .. } => Contact::Host(destination.to_string()),
        Destination::Bundle(name) => Contact::Bundle(name.clone()),
        Destination::Remote(name) => Contact::Remote(name.clone()),
    }
}

/// The cage as it is seen from inside.
struct Cage {
    /// Its root: directories that are on no other mount only lead to something deeper.
    root: Option<Statx>,
    /// Where the command starts.
    here: Option<Statx>,
}

fn look(path: &Path) -> Option<Statx> {
    let wanted = StatxFlags::BASIC_STATS | StatxFlags::MNT_ID;
    statx(CWD, path, AtFlags::empty(), wanted).ok()
}

impl Cage {
    fn look() -> Self {
        Cage {
            root: look(Path::new("/")),
            here: look(Path::new(".")),
        }
    }

    /// Whether something of the cage's is there, and not only a way to something deeper.
    fn has(&self, path: &Path) -> Option<Statx> {
        let (found, root) = (look(path)?, self.root.as_ref()?);
        (found.stx_mnt_id != root.stx_mnt_id).then_some(found)
    }

    /// A hidden file is there too, and cannot be read: a lease may show it.
    fn reads(&self, path: &Path) -> bool {
        self.has(path).is_some() && access(path, Access::READ_OK).is_ok()
    }

    /// Whether it is there by a mount that may be a lease: it is neither where the command starts,
    /// nor in the cage's own storage.
    fn is_apart(&self, path: &Path) -> bool {
        let here = self.here.as_ref().map(|here| here.stx_mnt_id);
        let apart = |found: &Statx| Some(found.stx_mnt_id) != here && !self.is_own(found);
        self.has(path).is_some_and(|found| apart(&found))
    }

    /// Whether it is the cage's own storage.
    fn is_own(&self, found: &Statx) -> bool {
        let device = |file: &Statx| (file.stx_dev_major, file.stx_dev_minor);
        let root = self.root.as_ref();
        root.is_some_and(|root| device(root) == device(found))
    }

    /// The cage can create an absent file if it has the directory around it, unless that
    /// is the cage's own storage: then the host's may be meant.
    fn writes(&self, path: &Path) -> bool {
        let writable = |path: &Path| access(path, Access::WRITE_OK).is_ok();
        if self.has(path).is_some() {
            return writable(path);
        }
        let around = path.parent();
        around.is_some_and(|around| {
            self.has(around).is_some_and(|found| !self.is_own(&found)) && writable(around)
        })
    }
}
