//! Toolchains outside the system's directories: recognised by the caller's PATH and by the
//! command, readable as far as they execute.
//!
//! An agent may have written what the caller's PATH names in the workspace, so from there only
//! an interpreter is followed to.
//!
//! Bounded work: a few looks for each PATH entry outside the system, no walk over trees;
//! none at all where PATH names only the system's directories.

use crate::Request;
use crate::plan::{Item, NodeKind, Owner, Variable};
use ironcage_host::{HostFiles, NodeType};
use ironcage_policy::toolchains::{CREDENTIALS, ENTRIES, Toolchain, VARIABLES};
use ironcage_policy::{Listed, Policy, WorkspaceMode, system};
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Component, Path, PathBuf};

/// A part of a toolchain that is to be seen.
#[derive(Debug)]
pub(crate) struct Part {
    /// Where it is, outside and inside.
    pub(crate) target: PathBuf,
    pub(crate) shape: Shape,
    pub(crate) origin: String,
}

#[derive(Debug)]
pub(crate) enum Shape {
    /// Bound from this real path. An owner where ids are to be mapped.
    Bound {
        source: PathBuf,
        kind: NodeKind,
        owner: Option<Owner>,
    },
    /// A link to its neighbour, made again.
    Link { to: PathBuf },
}

/// What was found.
#[derive(Debug, Default)]
pub(crate) struct ToolchainSet {
    pub(crate) parts: Vec<Part>,
    pub(crate) variables: Vec<Item<Variable>>,
    /// Entries for PATH in the caller's order; some may not be visible.
    pub(crate) search: Vec<PathBuf>,
    /// Files of credentials below the parts.
    pub(crate) credentials: Vec<(PathBuf, &'static str)>,
    pub(crate) notes: Vec<String>,
}

/// Looks for the toolchains of one run.
pub(crate) fn find(
    policy: &Policy,
    request: &Request,
    files: &dyn HostFiles,
    map_owners: bool,
) -> ToolchainSet {
    // The host's programs need the host's libraries, which an image replaces.
    if !policy.toolchains.value || request.image.is_some() {
        return ToolchainSet::default();
    }
    let writable = policy
        .write
        .iter()
        .chain(&policy.write_direct)
        .map(|path| path.value.clone());
    let mut search = Search {
        request,
        files,
        map_owners,
        hidden: policy
            .hide
            .iter()
            .map(|path| path.value.as_path())
            .collect(),
        agents: writable.chain([request.workspace.clone()]).collect(),
        scratch: policy.workspace_mode.value == WorkspaceMode::Scratch,
        roots: Vec::new(),
        real_parent: None,
        found: ToolchainSet::default(),
    };
    let variable = |name: &str| {
        let found = request.env.iter().find(|(known, _)| known == name);
        found.map(|(_, value)| value.clone())
    };
    for entry in variable("PATH")
        .unwrap_or_default()
        .as_bytes()
        .split(|byte| *byte == b':')
    {
        // An entry that depends on the current directory is a trap in every workspace.
        if entry.starts_with(b"/") {
            search.entry(PathBuf::from(OsString::from_vec(entry.to_vec())));
        }
    }
    search.command();
    search.found
}

struct Search<'a> {
    request: &'a Request,
    files: &'a dyn HostFiles,
    map_owners: bool,
    /// What the policy hides: a part of it is not to be seen either.
    hidden: Vec<&'a Path>,
    /// Trees in which an agent may have written before.
    agents: Vec<PathBuf>,
    scratch: bool,
    /// Values of the variables, made when the first entry needs them.
    roots: Vec<PathBuf>,
    /// A directory and its real path: parts lie beside each other.
    real_parent: Option<(PathBuf, PathBuf)>,
    found: ToolchainSet,
}

/// What of a path stands for the stars of a pattern, and the directory above an entry.
struct Fit<'p> {
    stars: Vec<&'p OsStr>,
    above: &'p Path,
}

fn is_system(path: &Path) -> bool {
    let path = path.as_os_str().as_bytes();
    system::DIRECTORIES.iter().any(|directory| {
        path.strip_prefix(directory.path.as_bytes())
            .is_some_and(|rest| rest.is_empty() || rest.starts_with(b"/"))
    })
}

impl Search<'_> {
    fn entry(&mut self, entry: PathBuf) {
        if self.found.search.contains(&entry) {
            return;
        }
        if !is_system(&entry) && !self.recognise(&entry) {
            // A link, such as a profile's or a "current" version: what it leads to counts.
            let Ok(real) = self.files.real(&entry) else {
                return;
            };
            if real != entry {
                if self.is_agents(&entry) {
                    self.by_pattern(&real, |toolchain| toolchain.interpreter);
                } else if !is_system(&real) {
                    self.recognise(&real);
                }
                self.found.search.push(real);
                return;
            }
        }
        self.found.search.push(entry);
    }

    /// The command itself: a program by its path, or a link in one of the entries.
    fn command(&mut self) {
        let Some(program) = self.request.argv.first() else {
            return;
        };
        let path = if program.as_bytes().contains(&b'/') {
            let path = self.request.cwd.join(program);
            if let Some(directory) = path.parent().filter(|path| !is_system(path)) {
                let directory = directory.to_owned();
                self.recognise(&directory);
            }
            Some(path)
        } else {
            let mut candidates = self
                .found
                .search
                .iter()
                .filter(|entry| !is_system(entry))
                .map(|entry| entry.join(program));
            candidates.find(|path| self.files.node(path).is_some())
        };
        if let Some(path) = path {
            self.follow(&path);
        }
    }

    /// What a link leads to may belong to a toolchain of its own.
    fn follow(&mut self, path: &Path) {
        let is_link = self
            .files
            .node(path)
            .is_some_and(|node| node.kind == NodeType::Symlink);
        if !is_link {
            return;
        }
        if let Ok(real) = self.files.real(path)
            && let Some(directory) = real.parent()
            && !is_system(directory)
            && !self.has(directory)
        {
            let anything = !self.is_agents(path);
            self.by_pattern(directory, |toolchain| anything || toolchain.interpreter);
        }
    }

    fn has(&self, path: &Path) -> bool {
        self.found
            .parts
            .iter()
            .any(|part| path.starts_with(&part.target))
    }

    fn is_agents(&self, path: &Path) -> bool {
        self.agents.iter().any(|tree| path.starts_with(tree))
    }

    fn recognise(&mut self, entry: &Path) -> bool {
        // What lies in the workspace is seen anyway; a pattern would open what is around it.
        (!self.is_agents(entry) && self.by_pattern(entry, |_| true)) || self.by_neighbour(entry)
    }

    fn by_pattern(&mut self, entry: &Path, allowed: impl Fn(&Toolchain) -> bool) -> bool {
        self.set_roots();
        for toolchain in ENTRIES.iter().filter(|toolchain| allowed(toolchain)) {
            for pattern in toolchain.entries {
                let above = Path::new("/");
                let (root, rest) = self.rooted(pattern, above);
                if let Some(stars) = fits(entry, root, rest) {
                    self.take(toolchain, &Fit { stars, above });
                    return true;
                }
            }
        }
        false
    }

    fn by_neighbour(&mut self, entry: &Path) -> bool {
        self.set_roots();
        let Some(above) = entry.parent() else {
            return false;
        };
        // Next to a directory of the home's root lies the home: what is there says nothing.
        if self.request.home.starts_with(above) {
            return false;
        }
        for toolchain in ENTRIES {
            let Some(beside) = toolchain.beside else {
                continue;
            };
            if self.files.node(&above.join(beside)).is_some() {
                let stars = Vec::new();
                self.take(toolchain, &Fit { stars, above });
                if let Some(link) = toolchain.follow {
                    let (root, rest) = self.rooted(link, above);
                    let link = root.join(rest);
                    self.follow(&link);
                }
                return true;
            }
        }
        false
    }

    fn take(&mut self, toolchain: &Toolchain, fit: &Fit<'_>) {
        for part in toolchain.parts {
            let path = self.filled(part.path, fit);
            self.part(toolchain, part, path);
        }
        for (name, value) in toolchain.set {
            let value = self.filled(value, fit).into_os_string();
            let name = OsString::from(name);
            if self
                .found
                .variables
                .iter()
                .all(|item| item.what.name != name)
            {
                self.found.variables.push(Item {
                    what: Variable { name, value },
                    origin: format!("toolchain: {}", toolchain.name),
                });
            }
        }
        for held in CREDENTIALS {
            let path = self.filled(held.path, fit);
            if self.has(&path) {
                self.found.credentials.push((path, held.why));
            }
        }
    }

    fn part(&mut self, toolchain: &Toolchain, part: &Listed, target: PathBuf) {
        let workspace = &self.request.workspace;
        // What lies in the workspace is there as the workspace is; a scratch one has nothing
        // of the host in it, nor around it.
        if self.has(&target)
            || self.is_agents(&target)
            || self.hidden.iter().any(|hidden| target.starts_with(hidden))
            || (self.scratch && workspace.starts_with(&target))
        {
            return;
        }
        let Some(node) = self.files.node(&target) else {
            return;
        };
        let origin = format!("toolchain: {}, {}", toolchain.name, part.why);
        let mut source = target.clone();
        let mut node = node;
        if node.kind == NodeType::Symlink {
            match self.files.link(&target) {
                Ok(to) if is_neighbour(&to) => {
                    let shape = Shape::Link { to };
                    self.found.parts.push(Part {
                        target,
                        shape,
                        origin,
                    });
                    return;
                }
                _ => {}
            }
        }
        if let Some(real) = self.real(&target, node.kind)
            && real != source
        {
            let Some(at_real) = self.files.node(&real) else {
                return;
            };
            (source, node) = (real, at_real);
        }
        if let Some(why) = self.refused(&source) {
            self.found.notes.push(format!(
                "the toolchain {} is not readable: {} {why}",
                toolchain.name,
                source.display()
            ));
            return;
        }
        let kind = match node.kind {
            NodeType::Directory => NodeKind::Directory,
            NodeType::File => NodeKind::File,
            NodeType::Symlink | NodeType::Socket | NodeType::Other => return,
        };
        // What is installed for everybody can be read by everybody; what is in a home may be
        // for its owner alone.
        let owner = (self.map_owners && !part.path.starts_with('/'))
            .then_some(Owner::one(node.uid, node.gid));
        self.found.parts.push(Part {
            target,
            shape: Shape::Bound {
                source,
                kind,
                owner,
            },
            origin,
        });
    }

    /// The real path of a part.
    fn real(&mut self, path: &Path, kind: NodeType) -> Option<PathBuf> {
        let (parent, name) = (path.parent()?, path.file_name()?);
        if kind == NodeType::Symlink {
            return self.files.real(path).ok();
        }
        match &self.real_parent {
            Some((known, real)) if known == parent => Some(real.join(name)),
            _ => {
                let real = self.files.real(path).ok()?;
                self.real_parent = Some((parent.to_owned(), real.parent()?.to_owned()));
                Some(real)
            }
        }
    }

    fn refused(&self, source: &Path) -> Option<&'static str> {
        if self.request.home.starts_with(source) {
            return Some("contains your home directory");
        }
        if ["/proc", "/sys", "/dev", "/etc", "/run"]
            .iter()
            .any(|tree| source.starts_with(tree))
        {
            return Some("belongs to the system");
        }
        let mut own = self.request.own.paths.iter();
        own.any(|own| own.starts_with(source) || source.starts_with(own))
            .then_some("overlaps Ironcage's own directories")
    }

    /// The root of a pattern as a path, and the rest of the pattern.
    fn rooted<'s, 'p: 's>(&'s self, pattern: &'p str, above: &'s Path) -> (&'s Path, &'p str) {
        let (first, rest) = pattern.split_once('/').unwrap_or((pattern, ""));
        let root = match first.strip_prefix('$') {
            Some(name) => {
                let index = VARIABLES.iter().position(|variable| variable.name == name);
                index.and_then(|index| self.roots.get(index))
            }
            None if first == "~" => Some(&self.request.home),
            None if first == "@" => return (above, rest),
            None => None,
        };
        (root.map_or(Path::new("/"), PathBuf::as_path), rest)
    }

    fn set_roots(&mut self) {
        if !self.roots.is_empty() {
            return;
        }
        let request = self.request;
        let root = |variable: &ironcage_policy::toolchains::Variable| {
            let moved = request
                .env
                .iter()
                .find(|(name, _)| name == variable.name)
                .map(|(_, value)| PathBuf::from(value))
                .filter(|path| is_plain(path));
            let default = variable.default.trim_start_matches("~/");
            moved.unwrap_or_else(|| request.home.join(default))
        };
        self.roots = VARIABLES.iter().map(root).collect();
    }

    fn filled(&self, pattern: &str, fit: &Fit<'_>) -> PathBuf {
        let (root, rest) = self.rooted(pattern, fit.above);
        let mut path = root.to_owned();
        let mut stars = fit.stars.iter();
        for part in rest.split('/').filter(|part| !part.is_empty()) {
            match part {
                "*" => path.extend(stars.next()),
                part => path.push(part),
            }
        }
        path
    }
}

/// Whether a path means what it says: absolute, without `..`.
fn is_plain(path: &Path) -> bool {
    path.is_absolute()
        && path
            .components()
            .all(|part| matches!(part, Component::RootDir | Component::Normal(_)))
}

fn is_neighbour(to: &Path) -> bool {
    let mut parts = to.components();
    matches!(parts.next(), Some(Component::Normal(_))) && parts.next().is_none()
}

/// What stands for the stars, where an entry fits a pattern.
fn fits<'p>(entry: &'p Path, root: &Path, pattern: &str) -> Option<Vec<&'p OsStr>> {
    let rest = entry.strip_prefix(root).ok()?;
    let mut stars = Vec::new();
    let mut parts = rest.components();
    for wanted in pattern.split('/').filter(|part| !part.is_empty()) {
        if wanted == "..." {
            return is_plain(entry).then_some(stars);
        }
        let Component::Normal(part) = parts.next()? else {
            return None;
        };
        match wanted {
            "*" => stars.push(part),
            wanted if wanted == part => {}
            _ => return None,
        }
    }
    parts.next().is_none().then_some(stars)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_fit_whole_entries() {
        let fit = |entry: &str, pattern: &str| {
            fits(Path::new(entry), Path::new("/h"), pattern).map(|stars| stars.len())
        };
        assert_eq!(fit("/h/v/18/bin", "v/*/bin"), Some(1));
        assert_eq!(fit("/h/v/18/bin/", "v/*/bin"), Some(1));
        assert_eq!(fit("/h/v/18/bin/x", "v/*/bin"), None);
        assert_eq!(fit("/h/v/18", "v/*/bin"), None);
        assert_eq!(fit("/h/v/../bin", "v/*/bin"), None);
        assert_eq!(fit("/hh/v/18/bin", "v/*/bin"), None);
        assert_eq!(fit("/h/a/b/c", "*/..."), Some(1));
        assert_eq!(fit("/h/a", "*/..."), Some(1));
        assert_eq!(fit("/h/a/../../etc", "*/..."), None);
        assert_eq!(fit("/h", ""), Some(0));
    }

    #[test]
    fn only_whole_directories_are_the_systems() {
        assert!(is_system(Path::new("/usr/local/bin")) && is_system(Path::new("/bin")));
        assert!(!is_system(Path::new("/usrlocal")) && !is_system(Path::new("/opt/x/bin")));
    }
}
