//! The needs of a command, as far as its text shows.

use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::fmt;
use std::path::{Component, Path, PathBuf};

/// The programs, files and destinations that a command names, and what it leaves open.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Needs {
    /// Programs, as they are written: a name that is searched for, or a path.
    pub programs: BTreeSet<String>,
    /// Absolute paths that are read, or trees in which something is read.
    pub reads: BTreeSet<PathBuf>,
    /// Absolute paths that are made, changed or removed, or trees in which that happens.
    pub writes: BTreeSet<PathBuf>,
    /// Those that are removed with all that is in them; with a `*` at the end, much of what is.
    pub removes: BTreeSet<PathBuf>,
    /// Directories that become the working directory and of which nothing else is named.
    pub enters: BTreeSet<PathBuf>,
    /// Where it connects to.
    pub destinations: BTreeSet<Destination>,
    /// What the text does not tell.
    pub unknown: BTreeSet<Unknown>,
    /// Whether something that it starts goes on after it: a job in the background, a daemon.
    #[serde(default, skip_serializing_if = "is_false")]
    pub leaves_running: bool,
}

fn is_false(value: &bool) -> bool {
    !value
}

/// Where a command connects to.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Destination {
    /// A host by name or address, with the port where one is written or implied.
    Host {
        /// As it is written, in lower case.
        name: String,
        port: Option<u16>,
    },
    /// What a tool is set up to use: a bundle of the policy.
    Bundle(String),
    /// A remote of the repository, by its name; `@upstream` is the one that the branch follows.
    Remote(String),
}

impl fmt::Display for Destination {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Destination::Host {
                name,
                port: Some(port),
            } if name.contains(':') => write!(f, "[{name}]:{port}"),
            Destination::Host {
                name,
                port: Some(port),
            } => write!(f, "{name}:{port}"),
            Destination::Host { name, port: None } => f.write_str(name),
            Destination::Bundle(name) => write!(f, "bundle {name}"),
            Destination::Remote(name) => write!(f, "remote {name}"),
        }
    }
}

/// What cannot be known from the text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Unsure {
    Reads,
    Writes,
    /// Where it connects to.
    Destinations,
    /// What is executed, and so everything else.
    Everything,
}

impl fmt::Display for Unsure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Unsure::Reads => "reads",
            Unsure::Writes => "writes",
            Unsure::Destinations => "destinations",
            Unsure::Everything => "everything",
        })
    }
}

/// Something that is left open, and why.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Unknown {
    pub what: Unsure,
    /// Why, for a person.
    pub why: String,
    /// The directory below which it stays by the conventions of the tool; anywhere where none is
    /// named. It is a hint for what to ask for: nothing holds the program to it but the cage.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub below: Option<PathBuf>,
}

impl fmt::Display for Unknown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.below {
            Some(below) => write!(f, "{} below {}: {}", self.what, below.display(), self.why),
            None => write!(f, "{}: {}", self.what, self.why),
        }
    }
}

/// Reasons that are kept. Whoever writes more of them has said enough.
const MOST_UNKNOWNS: usize = 64;

/// Entries of each kind that are kept.
const MOST_ENTRIES: usize = 1024;

impl Needs {
    /// Notes that something cannot be known.
    pub fn unsure(&mut self, what: Unsure, why: impl Into<String>) {
        let why = why.into();
        self.leave_open(Unknown {
            what,
            why,
            below: None,
        });
    }

    /// Notes code that cannot be read and works below a directory: what it reads and writes there,
    /// and which hosts it contacts, is not known.
    pub fn unsure_below(&mut self, below: &Path, why: &str) {
        for (what, below) in [
            (Unsure::Reads, Some(below)),
            (Unsure::Writes, Some(below)),
            (Unsure::Destinations, None),
        ] {
            self.leave_open(Unknown {
                what,
                why: why.to_owned(),
                below: below.map(Path::to_owned),
            });
        }
    }

    fn leave_open(&mut self, unknown: Unknown) {
        if self.unknown.len() < MOST_UNKNOWNS {
            self.unknown.insert(unknown);
        }
    }

    /// Notes a program.
    pub fn program(&mut self, name: &str) {
        if self.programs.len() < MOST_ENTRIES {
            self.programs.insert(name.to_owned());
        } else {
            self.full();
        }
    }

    /// Notes a path that is read.
    pub fn read(&mut self, path: PathBuf) {
        if is_harmless_device(&path) {
            return;
        }
        if self.reads.len() < MOST_ENTRIES {
            self.reads.insert(path);
        } else {
            self.full();
        }
    }

    /// Notes a path that is made, changed or removed.
    pub fn write(&mut self, path: PathBuf) {
        if is_harmless_device(&path) {
            return;
        }
        if self.writes.len() < MOST_ENTRIES {
            self.writes.insert(path);
        } else {
            self.full();
        }
    }

    /// Notes a path that is removed with all that is in it.
    pub fn remove(&mut self, path: PathBuf) {
        if self.removes.len() < MOST_ENTRIES {
            self.removes.insert(path);
        } else {
            self.full();
        }
    }

    /// Notes a place that is connected to.
    pub fn destination(&mut self, destination: Destination) {
        if self.destinations.len() < MOST_ENTRIES {
            self.destinations.insert(destination);
        } else {
            self.full();
        }
    }

    /// Notes a directory that becomes the working directory.
    pub(crate) fn enter(&mut self, path: PathBuf) {
        if self.enters.len() < MOST_ENTRIES {
            self.enters.insert(path);
        } else {
            self.full();
        }
    }

    /// A directory in which something is named is there with that.
    pub(crate) fn drop_entered(&mut self) {
        let named: Vec<&PathBuf> = self.reads.iter().chain(&self.writes).collect();
        self.enters.retain(|directory| {
            let mut named = named.iter();
            !named.any(|path| path.starts_with(directory) || directory.starts_with(path))
        });
    }

    /// Adds what another command needs.
    pub fn merge(&mut self, other: Needs) {
        other.programs.iter().for_each(|name| self.program(name));
        other.reads.into_iter().for_each(|path| self.read(path));
        other.writes.into_iter().for_each(|path| self.write(path));
        other.removes.into_iter().for_each(|path| self.remove(path));
        other.enters.into_iter().for_each(|path| self.enter(path));
        let destinations = other.destinations.into_iter();
        destinations.for_each(|to| self.destination(to));
        let unknown = other.unknown.into_iter();
        unknown.for_each(|unknown| self.leave_open(unknown));
        self.leaves_running |= other.leaves_running;
    }

    /// These needs, from a process that read untrusted text: within the same bounds as those that
    /// are read here, and with absolute paths only.
    pub(crate) fn within_bounds(self) -> Needs {
        let mut needs = Needs::default();
        let absolute = |paths: BTreeSet<PathBuf>| {
            let paths = paths.into_iter().filter(|path| path.is_absolute());
            paths
                .map(|path| tidy(Path::new("/"), &path.to_string_lossy()))
                .collect()
        };
        needs.merge(Needs {
            reads: absolute(self.reads),
            writes: absolute(self.writes),
            removes: absolute(self.removes),
            enters: absolute(self.enters),
            ..self
        });
        needs
    }

    /// What may be read: also directories that are only entered.
    pub fn reads_and_enters(&self) -> impl Iterator<Item = &PathBuf> {
        self.reads.iter().chain(&self.enters)
    }

    fn full(&mut self) {
        let entry = Unknown {
            what: Unsure::Everything,
            why: "it names more resources than Ironcage tracks".to_owned(),
            below: None,
        };
        // Also where there is no room for another reason.
        self.unknown.insert(entry);
    }

    /// Whether what is written, or contacted, may be more than is named.
    pub fn may_do_more(&self) -> bool {
        self.unknown
            .iter()
            .any(|unknown| unknown.what != Unsure::Reads)
    }
}

/// Reading or writing there changes nothing that lasts.
fn is_harmless_device(path: &Path) -> bool {
    let text = path.to_str().unwrap_or_default();
    matches!(
        text,
        "/dev/null" | "/dev/stdout" | "/dev/stderr" | "/dev/tty" | "/dev/zero" | "/dev/full"
    ) || text.starts_with("/dev/fd/")
}

/// The path in one spelling, from its text alone: for telling and comparing. Links are followed by
/// whoever opens it.
pub fn tidy(base: &Path, path: &str) -> PathBuf {
    let mut tidy = PathBuf::new();
    for component in base.join(path).components() {
        match component {
            Component::ParentDir => {
                tidy.pop();
            }
            Component::CurDir | Component::Prefix(_) => {}
            Component::RootDir => tidy.push("/"),
            Component::Normal(name) => tidy.push(name),
        }
    }
    tidy
}
