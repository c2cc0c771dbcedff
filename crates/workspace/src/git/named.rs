//! Files that the user's own settings and hooks of git run or read: `core.hooksPath = tools/hooks`
//! makes programs of what an agent writes there, and so does `.git/hooks/pre-commit` as a link to
//! `scripts/check`.
//!
//! Read are the settings of the system, of the user and of every repository in the tree, with what
//! they include, whatever the condition. All of it is the user's, so links are followed.

use super::config::{self, Setting};
use super::index::submodules_in_index;
use crate::ignored::{common_directory, git_directory, own_settings, read_index};
use crate::path_text::plain;
use std::collections::BTreeSet;
use std::fs::{File, OpenOptions};
use std::io::Read as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

/// The most that is read of settings or of a hook.
const LARGEST: u64 = 1024 * 1024;
/// As deep as git follows includes.
const DEEPEST_INCLUDE: usize = 10;
/// More are not read of the environment.
const MOST_VARIABLES: usize = 1000;
const SYSTEM_SETTINGS: &str = "/etc/gitconfig";

/// Settings whose value git executes: section and key, a star for any.
const COMMANDS: &[(&str, &str)] = &[
    ("alias", "*"),
    ("browser", "cmd"),
    ("browser", "path"),
    ("core", "alternaterefscommand"),
    ("core", "askpass"),
    ("core", "editor"),
    ("core", "fsmonitor"),
    ("core", "gitproxy"),
    ("core", "pager"),
    ("core", "sshcommand"),
    ("credential", "helper"),
    ("diff", "command"),
    ("diff", "external"),
    ("diff", "textconv"),
    ("difftool", "cmd"),
    ("difftool", "path"),
    ("filter", "clean"),
    ("filter", "process"),
    ("filter", "smudge"),
    ("gc", "recentobjectshook"),
    ("gpg", "defaultkeycommand"),
    ("gpg", "program"),
    ("guitool", "cmd"),
    ("hook", "command"),
    ("imap", "tunnel"),
    ("instaweb", "*"),
    ("interactive", "difffilter"),
    ("lfs", "*"),
    ("man", "cmd"),
    ("man", "path"),
    ("merge", "driver"),
    ("mergetool", "cmd"),
    ("mergetool", "path"),
    ("pager", "*"),
    ("remote", "receivepack"),
    ("remote", "uploadpack"),
    ("sendemail", "*"),
    ("sequence", "editor"),
    ("submodule", "update"),
    ("tar", "command"),
    ("trailer", "cmd"),
    ("trailer", "command"),
    ("uploadpack", "packobjectshook"),
];

/// Settings that name a file or a directory whose content git trusts or copies into repositories.
const TRUSTED: &[(&str, &str)] = &[
    ("gpg", "allowedsignersfile"),
    ("gpg", "revocationfile"),
    ("http", "cookiefile"),
    ("http", "sslcainfo"),
    ("http", "sslcapath"),
    ("http", "sslcert"),
    ("init", "templatedir"),
];

/// A place that a setting or a hook of the user's names.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct NamedPlace {
    /// Its path from the root, as it is written: links and `..` are still to be followed.
    pub path: PathBuf,
    /// Whether all that lies in it counts; else only a file does.
    pub whole: bool,
    /// What git does with it.
    pub why: String,
}

/// Submodules that are looked into, at any depth: more are left out.
const MOST_SUBMODULES: usize = 1000;

/// The places that git on the host runs, obeys or takes for a repository, where a program works on
/// the real files of a tree: what settings and hooks name, of its repository and its submodules,
/// and the pointers of those submodules.
pub fn places_git_obeys(tree: &Path) -> BTreeSet<NamedPlace> {
    let modules = submodules(tree);
    let inner: Vec<PathBuf> = (modules.iter())
        .filter_map(|module| module.strip_prefix(tree).ok())
        .map(Path::to_owned)
        .collect();
    let pointers = modules.into_iter().map(|module| NamedPlace {
        path: module.join(".git"),
        whole: true,
        why: "git in the repository around it reads the settings of this submodule".into(),
    });
    let mut places = named_places(tree, &inner);
    places.extend(pointers);
    // Without `.`: what is left apart from the real path are links, and `..`.
    let tidy = |place: NamedPlace| NamedPlace {
        path: place.path.components().collect(),
        ..place
    };
    places.into_iter().map(tidy).collect()
}

/// The submodules of a tree and of each other, as their indexes have them.
fn submodules(tree: &Path) -> Vec<PathBuf> {
    let mut found: Vec<PathBuf> = Vec::new();
    let mut open = vec![tree.to_owned()];
    while let Some(root) = open.pop() {
        let index = git_directory_followed(&root).and_then(|git| read_index(&git));
        for path in index.map_or_else(Vec::new, |index| submodules_in_index(&index)) {
            let module = plain(&root.join(path));
            if found.len() >= MOST_SUBMODULES {
                return found;
            }
            if !found.contains(&module) {
                found.push(module.clone());
                open.push(module);
            }
        }
    }
    found
}

/// The places that settings and hooks name, of the repository around a tree, of those in it, by
/// their paths below its root, and of the user.
pub(crate) fn named_places(tree: &Path, inner: &[PathBuf]) -> BTreeSet<NamedPlace> {
    let home = std::env::var_os("HOME").map(PathBuf::from);
    let variable = |name: &str| std::env::var(name).ok();
    named_by(home, (&own_files(), of_environment(&variable)), tree, inner)
}

fn named_by(
    home: Option<PathBuf>,
    (own, of_environment): (&[PathBuf], Vec<Setting>),
    tree: &Path,
    inner: &[PathBuf],
) -> BTreeSet<NamedPlace> {
    let mut found = NamedPlaces {
        home,
        places: BTreeSet::new(),
    };
    let mut of_user = found.settings_of(own, false);
    of_user.extend(of_environment);
    let around = tree.ancestors().find(|above| has_git(above));
    let mut roots: Vec<PathBuf> = vec![around.unwrap_or(tree).to_owned()];
    roots.extend(inner.iter().map(|below| tree.join(below)));
    roots.sort();
    roots.dedup();
    for root in roots {
        found.of_repository(&root, &of_user);
    }
    found.places
}

fn own_files() -> Vec<PathBuf> {
    let variable = |name: &str| std::env::var_os(name).map(PathBuf::from);
    let system = variable("GIT_CONFIG_SYSTEM").unwrap_or_else(|| SYSTEM_SETTINGS.into());
    let mut files = vec![system];
    files.extend(own_settings());
    files.extend(variable("GIT_CONFIG_GLOBAL"));
    files
}

fn has_git(directory: &Path) -> bool {
    directory.join(".git").symlink_metadata().is_ok()
}

/// Variables whose value git executes.
const VARIABLES: &[&str] = &[
    "EDITOR",
    "GIT_ASKPASS",
    "GIT_EDITOR",
    "GIT_EXTERNAL_DIFF",
    "GIT_PAGER",
    "GIT_SEQUENCE_EDITOR",
    "GIT_SSH",
    "GIT_SSH_COMMAND",
    "PAGER",
    "SSH_ASKPASS",
    "VISUAL",
];

/// The settings that variables of the environment make.
fn of_environment(variable: &dyn Fn(&str) -> Option<String>) -> Vec<Setting> {
    let count = variable("GIT_CONFIG_COUNT").and_then(|count| count.parse::<usize>().ok());
    let numbered = (0..count.unwrap_or(0).min(MOST_VARIABLES)).filter_map(|number| {
        let name = variable(&format!("GIT_CONFIG_KEY_{number}"))?;
        let (section, rest) = name.split_once('.')?;
        let (subsection, key) = match rest.rsplit_once('.') {
            Some((subsection, key)) => (Some(subsection.to_owned()), key),
            None => (None, rest),
        };
        Some(Setting {
            section: section.to_ascii_lowercase(),
            subsection,
            key: key.to_ascii_lowercase(),
            value: variable(&format!("GIT_CONFIG_VALUE_{number}")),
        })
    });
    // As the setting that says the same.
    let commands = VARIABLES.iter().filter_map(|name| {
        Some(Setting {
            section: "core".into(),
            subsection: None,
            key: "editor".into(),
            value: Some(variable(name)?),
        })
    });
    numbered.chain(commands).collect()
}

struct NamedPlaces {
    home: Option<PathBuf>,
    places: BTreeSet<NamedPlace>,
}

impl NamedPlaces {
    fn add(&mut self, path: PathBuf, whole: bool, why: String) {
        self.places.insert(NamedPlace { path, whole, why });
    }

    /// The same of what lies in a git directory, whose own rules hold for it: only a link there
    /// leads to files of the tree.
    fn add_link(&mut self, path: &Path, whole: bool, why: &str) {
        if path.is_symlink() {
            self.add(path.to_owned(), whole, why.to_owned());
        }
    }

    /// All settings in files and in what they include; each of the files is a place, too.
    fn settings_of(&mut self, files: &[PathBuf], are_of_repository: bool) -> Vec<Setting> {
        let mut open: Vec<(PathBuf, usize)> = files.iter().map(|file| (file.clone(), 0)).collect();
        let mut seen: Vec<PathBuf> = Vec::new();
        let mut settings = Vec::new();
        while let Some((file, depth)) = open.pop() {
            if seen.contains(&file) || depth > DEEPEST_INCLUDE {
                continue;
            }
            seen.push(file.clone());
            let why = format!("git reads it as settings, by the name {}", file.display());
            match are_of_repository && depth == 0 {
                true => self.add_link(&file, false, &why),
                false => self.add(file.clone(), false, why),
            }
            for setting in read(&file).map_or_else(Vec::new, |text| config::parse_lenient(&text)) {
                let is_include = matches!(&*setting.section, "include" | "includeif");
                if let (true, "path", Some(value)) = (is_include, &*setting.key, &setting.value) {
                    let from = file.parent().unwrap_or(Path::new("/"));
                    open.push((self.from(from, value), depth + 1));
                }
                settings.push(setting);
            }
        }
        settings
    }

    /// Where a path leads that is written in settings, from a directory.
    fn from(&self, directory: &Path, text: &str) -> PathBuf {
        let below = ["~/", "$HOME/", "${HOME}/"]
            .iter()
            .find_map(|start| text.strip_prefix(start));
        match (below, &self.home) {
            (Some(below), Some(home)) => home.join(below),
            _ => directory.join(text),
        }
    }

    fn of_repository(&mut self, root: &Path, of_user: &[Setting]) {
        let git = git_directory_followed(root);
        let common = git.as_deref().map(common_directory);
        let own = [
            common.as_ref().map(|common| common.join("config")),
            git.map(|git| git.join("config.worktree")),
        ];
        let own: Vec<PathBuf> = own.into_iter().flatten().collect();
        let mut settings = self.settings_of(&own, true);
        settings.extend_from_slice(of_user);
        let mut hooks: Vec<PathBuf> = common.into_iter().map(|git| git.join("hooks")).collect();
        for setting in &settings {
            let Some(value) = &setting.value else {
                continue;
            };
            let why = format!(
                "your git setting {} names it: git runs or obeys it",
                setting.name()
            );
            let is = |(section, key): &(&str, &str)| {
                setting.section == *section && (*key == "*" || setting.key == *key)
            };
            if (&*setting.section, &*setting.key) == ("core", "hookspath") {
                let path = self.from(root, value);
                self.add(path.clone(), true, why);
                hooks.push(path);
            } else if TRUSTED.iter().any(is) {
                self.add(self.from(root, value), true, why);
            } else if COMMANDS.iter().any(is) {
                self.words(root, value, &why);
            }
        }
        for directory in hooks {
            self.of_hooks(root, &directory);
        }
    }

    /// The hooks in a directory: where they are, if by links, and what they name.
    fn of_hooks(&mut self, root: &Path, directory: &Path) {
        self.add_link(directory, true, "git runs its hooks there");
        for hook in std::fs::read_dir(directory).into_iter().flatten().flatten() {
            let path = hook.path();
            if path.extension().is_some_and(|end| end == "sample") {
                continue;
            }
            let name = hook.file_name().to_string_lossy().into_owned();
            let why = format!("your git hook {name} leads to it or names it");
            self.add_link(&path, false, &why);
            let Some(text) = read(&path).filter(|text| text.starts_with("#!")) else {
                continue;
            };
            let lines = text
                .lines()
                .filter(|line| !line.trim_start().starts_with('#'));
            for line in lines {
                self.words(root, line, &why);
            }
        }
    }

    /// What the words of a command may name.
    fn words(&mut self, root: &Path, command: &str, why: &str) {
        let separators = |c: char| c.is_whitespace() || "\"'`;|&<>()!=".contains(c);
        for word in command.split(separators) {
            // `$(git rev-parse --show-toplevel)/x` and `$ROOT/x` are `x` of the tree.
            let below = word.starts_with(['/', '$']).then(|| word.split_once('/'));
            let below = below.flatten().map(|(_, below)| below);
            for word in [Some(word), below].into_iter().flatten() {
                if word.contains(['/', '.']) || has_file(root, word) {
                    self.add(self.from(root, word), false, why.to_owned());
                }
            }
        }
    }
}

/// Whether a plain word is the name of a file of the tree: `ci`, and not `make`.
fn has_file(root: &Path, word: &str) -> bool {
    !word.is_empty() && root.join(word).is_file()
}

/// The git directory of a real tree, also where `.git` is a link to it.
fn git_directory_followed(root: &Path) -> Option<PathBuf> {
    let git = root.join(".git");
    match git.is_dir() {
        true => Some(git),
        false => git_directory(root),
    }
}

/// What a file of the user's says; nothing for a pipe, a device or what is too large.
fn read(path: &Path) -> Option<String> {
    const NONBLOCK: i32 = ironcage_sys::rustix::fs::OFlags::NONBLOCK
        .bits()
        .cast_signed();
    let is_file = |file: &File| file.metadata().is_ok_and(|found| found.is_file());
    if !path.is_file() {
        return None;
    }
    let file = OpenOptions::new()
        .read(true)
        .custom_flags(NONBLOCK)
        .open(path)
        .ok()
        .filter(is_file)?;
    let mut bytes = Vec::new();
    file.take(LARGEST).read_to_end(&mut bytes).ok()?;
    Some(String::from_utf8_lossy(&bytes).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    #[test]
    fn programs_of_the_tree_that_settings_and_hooks_name_are_found_and_no_others() {
        let base = tempfile::tempdir().expect("a directory");
        let tree = base.path().join("tree");
        std::fs::create_dir_all(tree.join(".git/hooks")).expect("directories");
        let write = |path: &str, text: &str| std::fs::write(tree.join(path), text).expect("a file");
        write("ci", "");
        write("notes", "");
        write(".git/hooks/pre-push.sample", "#!/bin/sh\n./never\n");
        write(
            ".git/hooks/pre-push",
            "#!/bin/sh\n# ./comment\nexec \"$(git rev-parse --show-toplevel)/scripts/push\" \"$@\"\n",
        );
        symlink("../../scripts/check", tree.join(".git/hooks/pre-commit")).expect("a link");
        write(
            "included",
            "not a line\n[gpg \"ssh\"]\n\tallowedSignersFile = signers\n",
        );
        write(
            ".git/config",
            "[core]\n\thooksPath = tools/hooks\n\tfsmonitor = true\n[filter \"x\"]\n\tclean = \"python3 tools/clean.py %f\"\n\
             [alias]\n\tci = \"!ci && make\"\n[includeIf \"onbranch:x\"]\n\tpath = ../included\n[user]\n\tname = notes\n[merge \"y\"]\n\tdriver = /abs/drive %O\n",
        );
        let home = base.path().join("home");
        std::fs::create_dir(&home).expect("a home");
        // As dotfiles are kept: a link to a file of the tree.
        write("gitconfig", "[core]\n\tpager = ~/page\n");
        symlink("../tree/gitconfig", home.join(".gitconfig")).expect("a link");
        let own = [home.join(".gitconfig")];
        let variable = |name: &str| {
            let value = match name {
                "GIT_CONFIG_COUNT" => "1",
                "GIT_CONFIG_KEY_0" => "diff.external",
                "GIT_CONFIG_VALUE_0" => "bin/compare",
                "GIT_EDITOR" => "bin/edit --wait",
                _ => return None,
            };
            Some(value.to_owned())
        };
        let own_settings = (&own[..], of_environment(&variable));
        let places = named_by(Some(home.clone()), own_settings, &tree, &[]);
        let find = |path: &Path| {
            let mut all = places.iter().filter(|place| plain(&place.path) == path);
            all.next().map(|place| place.whole)
        };
        for (path, whole) in [
            ("tools/hooks", true),
            ("tools/clean.py", false),
            ("ci", false),
            ("included", false),
            ("signers", true),
            ("scripts/push", false),
            ("bin/compare", false),
            ("bin/edit", false),
            (".git/hooks/pre-commit", false),
        ] {
            assert_eq!(find(&tree.join(path)), Some(whole), "{path}: {places:?}");
        }
        for path in [
            PathBuf::from("/abs/drive"),
            own[0].clone(),
            home.join("page"),
        ] {
            assert_eq!(find(&path), Some(false), "{}", path.display());
        }
        for path in ["notes", "make", "python3", "true", "never", "comment", ""] {
            assert_eq!(find(&tree.join(path)), None, "{path}: {places:?}");
        }
    }
}
