//! Finds what the host would execute or trust in a change, by the lists in `policies/`.

use crate::git::{self, Part};
use crate::mode::Umask;
use crate::reading::Entry;
use crate::tree::{self, Kind, Node};
use crate::{Change, content};
use ironcage_catalog::{Class, Executed, executed, is_like};
use std::cell::OnceCell;
use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::os::fd::AsFd as _;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Component, Path, PathBuf};

/// What the host would execute or trust in an entry, and what becomes of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Note {
    /// What becomes of it.
    pub class: Class,
    /// What would happen on the host.
    pub why: String,
    /// What has to be named for it to be applied: the entry, or what of it the list names.
    pub root: PathBuf,
}

/// The most that is read of settings of git.
const CONFIG_SIZE: u64 = 1024 * 1024;
const EXECUTABLE: u32 = 0o111;

/// Puts notes to every entry that deserves one; also to one that was only touched, since a cage
/// that runs may write it in the next moment.
pub(crate) fn annotate(change: &Change, entries: &mut [Entry]) {
    let host = HostPath::of_environment();
    let umask = Umask::of_process();
    let made = PackageMarkers::of(entries);
    for entry in entries {
        let Some(layer) = change.layers().get(entry.layer) else {
            continue;
        };
        let mut notes = Vec::new();
        if let Some(git) = &entry.git {
            let real = layer.real.join(git);
            let own = git::own_worktree(change, entry.layer);
            notes = of_git_directory(entry, git, &real, &layer.upper, own.as_deref());
        } else if let Some(dependencies) = &entry.dependencies {
            // One decision, whatever the names in it.
            let root = dependencies.root.clone();
            notes.extend(shape(dependencies.manager.shape(), root));
            notes.extend(by_mode(entry, &layer.real, umask));
        } else {
            notes.extend(by_name(&entry.path, entry.after.as_ref()));
            notes.extend(by_git_name(entry));
            notes.extend(by_mode(entry, &layer.real, umask));
            if let Some(after) = &entry.after {
                by_shape(entry, after, &layer.real, &host, &mut notes);
                if let Some(programs) = made.environment_of(entry, &layer.real) {
                    notes.extend(shape("venv-interpreter", programs));
                }
                if let Some(repository) = made.repository_of(entry, &layer.real) {
                    notes.extend(shape("bare-repository", repository));
                }
            }
        }
        entry.notes = notes;
    }
}

/// What the change itself has of the names that make a directory something special. Paths are in
/// lower case: where case does not count, `head` makes a repository as `HEAD` does.
struct PackageMarkers(BTreeSet<(usize, Vec<u8>)>);

impl PackageMarkers {
    const NAMES: [&'static str; 2] = ["pyvenv.cfg", "conda-meta"];

    fn of(entries: &[Entry]) -> PackageMarkers {
        let special = entries.iter().filter(|entry| {
            let name = entry.path.file_name().unwrap_or_default();
            let mut special = PackageMarkers::NAMES.iter().chain(&git::MAKERS);
            entry.after.is_some() && special.any(|special| is_like(special, name))
        });
        let folded = special.map(|entry| (entry.layer, PackageMarkers::folded(&entry.path)));
        PackageMarkers(folded.collect())
    }

    fn folded(path: &Path) -> Vec<u8> {
        path.as_os_str().as_bytes().to_ascii_lowercase()
    }

    /// Whether a directory has a name in it, by the change or really.
    fn has(&self, layer: usize, directory: &Path, name: &str, real: &Path) -> bool {
        let path = directory.join(name);
        let folded = PackageMarkers::folded(&path);
        self.0.contains(&(layer, folded)) || real.join(path).symlink_metadata().is_ok()
    }

    /// The directory that git would take for a repository and that an entry changes.
    fn repository_of(&self, entry: &Entry, real: &Path) -> Option<PathBuf> {
        git::repository_around(&entry.path, &|directory, name| {
            self.has(entry.layer, directory, name, real)
        })
    }

    /// The directory of programs of a Python environment that an entry lies in.
    fn environment_of(&self, entry: &Entry, real: &Path) -> Option<PathBuf> {
        let directory = entry.path.parent()?;
        let name = directory.file_name()?;
        let environment = directory.parent()?;
        let has = |marker| self.has(entry.layer, environment, marker, real);
        let of_programs = is_like("bin", name) || is_like("Scripts", name);
        (of_programs && (has("pyvenv.cfg") || has("conda-meta"))).then(|| directory.to_owned())
    }
}

fn of_git_directory(
    entry: &Entry,
    git: &Path,
    real: &Path,
    upper: &Path,
    own: Option<&Path>,
) -> Vec<Note> {
    if entry.path == git && entry.after.is_none() {
        return shape("repository-removed", git.to_owned())
            .into_iter()
            .collect();
    }
    if !git::is_repository(real) {
        return shape("nested-repository", git.to_owned())
            .into_iter()
            .collect();
    }
    if entry
        .after
        .as_ref()
        .is_some_and(|node| node.kind == Kind::Directory)
    {
        return Vec::new();
    }
    let path = entry.path.strip_prefix(git).unwrap_or(&entry.path);
    let is_module = |path: &Path| {
        let path = real.join(path);
        ["HEAD", "objects"]
            .iter()
            .all(|name| path.join(name).symlink_metadata().is_ok())
    };
    let hooks = git.join("hooks");
    let root = match entry.path.starts_with(&hooks) {
        true => hooks,
        false => entry.path.clone(),
    };
    let note = |class: Class, why: String| Note {
        class,
        why,
        root: root.clone(),
    };
    match git::sort(path, own, &is_module).part {
        Part::Withheld(why) => vec![note(Class::Withheld, why.to_owned())],
        Part::Unfinished => vec![note(Class::Flagged, git::UNFINISHED.to_owned())],
        Part::Config => {
            let read = |root: &Path, path: &Path| {
                let root = tree::open_root(root).ok()?;
                let file = tree::open_file_below(root.as_fd(), path).ok()?;
                let bytes = content::read_bounded(&file, CONFIG_SIZE).ok().flatten()?;
                String::from_utf8(bytes).ok()
            };
            let settings = read(real, path).unwrap_or_default();
            let agents = read(upper, &entry.path).unwrap_or_default();
            let Some(change) = git::compare_settings(
                &real.join(path.parent().unwrap_or(Path::new(""))),
                &settings,
                &agents,
            ) else {
                return vec![note(Class::Withheld, git::NO_SETTINGS.to_owned())];
            };
            let taken = git::told_settings(&change.taken).map(|why| note(Class::Flagged, why));
            let withheld = (!change.withheld.is_empty())
                .then(|| note(Class::Withheld, git::withheld_settings(&change.withheld)));
            withheld.into_iter().chain(taken).collect()
        }
        _ => Vec::new(),
    }
}

pub(crate) fn shape(name: &str, root: PathBuf) -> Option<Note> {
    let found = executed::SHAPES.iter().find(|shape| shape.path == name)?;
    Some(Note {
        class: found.class,
        why: found.why.to_owned(),
        root,
    })
}

/// The names of the lists that a path has in it; what is there now tells files from directories.
pub(crate) fn by_name(path: &Path, node: Option<&Node>) -> Vec<Note> {
    let parts: Vec<&OsStr> = path.components().map(Component::as_os_str).collect();
    let is_directory = node.is_some_and(|node| node.kind == Kind::Directory);
    executed::found_in(&parts)
        .into_iter()
        .filter(|(listed, _)| !(listed.files_only && is_directory))
        .map(|(listed, end)| Note {
            class: listed.class,
            why: listed.why.to_owned(),
            root: parts[..end].iter().collect(),
        })
        .collect()
}

/// What is a git directory, or lies in one, where its name is not `.git` itself: on a file system
/// without regard to case, `.GIT/config` is the real one. A directory that is really called `.git`
/// is read by the rules of git.
fn by_git_name(entry: &Entry) -> Option<Note> {
    let parts: Vec<&OsStr> = entry.path.components().map(Component::as_os_str).collect();
    let at = parts.iter().position(|part| git::is_git_name(part))?;
    let (last, root) = (at + 1 == parts.len(), parts[..=at].iter().collect());
    match &entry.after {
        None if last => shape("repository-removed", root),
        Some(node) if last && node.kind == Kind::Directory && parts[at] == ".git" => None,
        _ => shape("git-pointer", root),
    }
}

fn by_mode(entry: &Entry, real: &Path, umask: Umask) -> Vec<Note> {
    let Some(after) = &entry.after else {
        return Vec::new();
    };
    let above = || {
        let above = real.join(entry.path.parent()?);
        Some(above.symlink_metadata().ok()?.mode())
    };
    umask.notes(&entry.path, entry.before.as_ref(), after, above())
}

/// A listed name that begins in a path, and what of it does not lie in that path.
pub(crate) type Begun = (&'static Executed, Vec<OsString>);

/// The listed names that a path has in it, or ends with the beginning of; with the rest of those.
pub(crate) fn beginnings(path: &Path) -> Vec<Begun> {
    let parts: Vec<&OsStr> = path.components().map(Component::as_os_str).collect();
    let mut found = Vec::new();
    for listed in executed::NAMES {
        if listed.found_in(&parts).is_some() {
            found.push((listed, Vec::new()));
            continue;
        }
        let wanted: Vec<&str> = listed.path.split('/').collect();
        for begun in 1..wanted.len() {
            let end = parts.len().checked_sub(begun).map(|at| &parts[at..]);
            let mut pairs = wanted.iter().zip(end.unwrap_or_default());
            if end.is_some() && pairs.all(|(wanted, part)| is_like(wanted, part)) {
                let beyond = wanted[begun..].iter().map(OsString::from).collect();
                found.push((listed, beyond));
            }
        }
    }
    found
}

fn by_shape(entry: &Entry, after: &Node, real: &Path, host: &HostPath, notes: &mut Vec<Note>) {
    let root = || entry.path.clone();
    let name = entry.path.file_name().unwrap_or_default();
    let is_program = is_program(after);
    if after.kind == Kind::Pipe {
        notes.extend(shape("pipe", root()));
    }
    if after.kind == Kind::Link {
        // What it leads to would have the listed name.
        let begun = beginnings(&entry.path).into_iter();
        notes.extend(
            begun
                .filter(|(_, beyond)| !beyond.is_empty())
                .map(|(listed, _)| Note {
                    class: listed.class,
                    why: listed.why.to_owned(),
                    root: root(),
                }),
        );
    }
    if is_program || after.kind == Kind::Link {
        let directory = real.join(&entry.path);
        let directory = directory.parent().unwrap_or(real);
        if host.directories.contains(directory) {
            notes.extend(shape("on-path", root()));
        } else if is_program && host.has(name) {
            notes.extend(shape("shadows-command", root()));
        }
    }
}

/// Whether something is a file that can be executed.
pub(crate) fn is_program(node: &Node) -> bool {
    node.kind == Kind::File && node.mode & EXECUTABLE != 0
}

/// The directories of the user's search path, by their names.
pub(crate) fn path_directories() -> Vec<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let directories = std::env::split_paths(&path);
    directories.filter(|path| path.is_absolute()).collect()
}

/// The search path of the one who applies.
struct HostPath {
    directories: BTreeSet<PathBuf>,
    /// Read when the first program of a change asks for it.
    commands: OnceCell<BTreeSet<OsString>>,
}

impl HostPath {
    fn of_environment() -> HostPath {
        // By its name and by what that leads to. Where the change would lead it is for the links.
        let directories: BTreeSet<PathBuf> = path_directories()
            .into_iter()
            .flat_map(|directory| [std::fs::canonicalize(&directory).ok(), Some(directory)])
            .flatten()
            .collect();
        HostPath {
            directories,
            commands: OnceCell::new(),
        }
    }

    fn has(&self, command: &OsStr) -> bool {
        let read = || {
            let listings = self.directories.iter().map(std::fs::read_dir);
            let entries = listings.flatten().flatten().flatten();
            entries.map(|entry| entry.file_name()).collect()
        };
        self.commands.get_or_init(read).contains(command)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn listed_names_are_found_at_any_depth_and_in_any_case() {
        for (path, root) in [
            (".envrc", ".envrc"),
            ("sub/.vscode/tasks.json", "sub/.vscode"),
            ("a/b/.Claude/hooks/x.sh", "a/b/.Claude"),
            ("home/.config/fish/config.fish", "home/.config/fish"),
            ("x/evil.pth", "x/evil.pth"),
        ] {
            let notes = by_name(Path::new(path), None);
            assert_eq!(
                notes.first().map(|note| note.root.as_path()),
                Some(Path::new(root)),
                "{path}"
            );
            assert!(
                notes.iter().any(|note| note.class == Class::Withheld),
                "{path}"
            );
        }
        for path in ["src/main.rs", "envrc", "claude/x", ".config/other", "pth"] {
            assert_eq!(by_name(Path::new(path), None), [], "{path}");
        }
        let flagged = by_name(Path::new("deep/package.json"), None);
        assert_eq!(flagged.len(), 1);
        assert_eq!(flagged[0].class, Class::Flagged);
    }

    #[test]
    fn every_shape_that_is_looked_for_is_in_the_list() {
        for name in [
            "set-id",
            "mode-write",
            "mode-read",
            "mode-cut",
            "mode-set-group",
            "python-environment",
            "node-modules",
            "imported-at-start",
            "path-link",
            "nested-repository",
            "git-pointer",
            "bare-repository",
            "repository-removed",
            "venv-interpreter",
            "on-path",
            "shadows-command",
            "link-outside",
            "pipe",
        ] {
            assert!(shape(name, PathBuf::new()).is_some(), "{name}");
        }
    }

    #[test]
    fn beginnings_of_listed_names_are_found_at_the_end_of_a_path() {
        let beyond = |path: &str| -> Vec<String> {
            let found = beginnings(Path::new(path)).into_iter();
            found
                .map(|(listed, beyond)| format!("{}:{}", listed.path, beyond.len()))
                .collect()
        };
        assert!(beyond("sub/gradle").contains(&"gradle/wrapper:1".to_owned()));
        assert!(beyond(".config").contains(&".config/autostart:1".to_owned()));
        assert!(beyond("x/.vscode/a/b").contains(&".vscode:0".to_owned()));
        assert!(beyond("gradle/other").is_empty());
        let starred = executed::NAMES
            .iter()
            .filter(|listed| listed.path.contains('/'));
        assert!(
            starred.clone().all(|listed| !listed.path.contains('*')),
            "what lies beyond a link is looked for by its name"
        );
    }
}
