//! The user's home, Ironcage's own directories, and the workspace.

use crate::error::CliError;
use ironcage_files::{Links, ReadError, read_text};
use ironcage_host::{HostFiles, NodeType, SystemFiles};
use ironcage_model::Printable;
use ironcage_plan::{GitSetting, git_settings};
use ironcage_state::Store;
use ironcage_sys::process::started_as;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

/// `HOME`, which must be absolute, with links resolved so that paths can be compared.
pub(crate) fn home(files: &dyn HostFiles) -> Result<PathBuf, CliError> {
    let home = std::env::var_os("HOME").map(PathBuf::from);
    let home = match home {
        Some(home) if home.is_absolute() => files.real(&home).unwrap_or(home),
        _ => {
            return Err(CliError::new(
                "cannot find your home directory: HOME is not an absolute path",
            )
            .hint("set HOME to your home directory"));
        }
    };
    for directory in [config_dir(&home), state_dir(&home), cache_dir(&home)] {
        check_owner(&directory, files)?;
    }
    Ok(home)
}

/// Refuses a directory of Ironcage's own that somebody else can write: settings in it name programs
/// that are run, and changes in it name directories that are written. As root with a `HOME` that
/// sudo kept, that would be the user's.
fn check_owner(directory: &Path, files: &dyn HostFiles) -> Result<(), CliError> {
    const OTHERS_WRITE: u32 = 0o002;
    const STICKY: u32 = 0o1000;
    let real = resolved(directory, files);
    let found = real
        .ancestors()
        .find_map(|path| Some((path, files.node(path)?)));
    let Some((path, found)) = found else {
        return Ok(());
    };
    let own = started_as();
    let is_shared = found.mode & OTHERS_WRITE != 0 && found.mode & STICKY == 0;
    if [own, 0].contains(&found.uid) && !is_shared {
        return Ok(());
    }
    let whose = match is_shared {
        true => "every user can write to it".to_owned(),
        false => format!("it belongs to user {}, and this is user {own}", found.uid),
    };
    Err(CliError::new(format!(
        "cannot use {} for {}: {whose}",
        path.display(),
        directory.display()
    ))
    .hint("run as the user whose home it is, or set HOME to your own (`sudo -H`)"))
}

fn xdg(variable: &str, otherwise: PathBuf) -> PathBuf {
    std::env::var_os(variable)
        .map(PathBuf::from)
        .filter(|path| path.is_absolute())
        .unwrap_or(otherwise)
        .join("ironcage")
}

pub(crate) fn config_dir(home: &Path) -> PathBuf {
    xdg("XDG_CONFIG_HOME", home.join(".config"))
}

/// That directory, unless it is known not to be there. One that cannot be looked at may be.
pub(crate) fn existing_config_dir(home: &Path, files: &dyn HostFiles) -> Option<PathBuf> {
    let path = config_dir(home);
    let absent = |error: std::io::Error| error.kind() == std::io::ErrorKind::NotFound;
    match files.real(&path).is_err_and(absent) {
        true => None,
        false => Some(path),
    }
}

pub(crate) fn state_dir(home: &Path) -> PathBuf {
    xdg("XDG_STATE_HOME", home.join(".local/state"))
}

/// Where the guest of microVMs is kept.
pub(crate) fn guest(home: &Path) -> PathBuf {
    state_dir(home).join("microvm")
}

/// Where container images are kept.
pub(crate) fn images(home: &Path) -> PathBuf {
    state_dir(home).join("images")
}

pub(crate) fn cache_dir(home: &Path) -> PathBuf {
    xdg("XDG_CACHE_HOME", home.join(".cache"))
}

/// A real path, because file rules do not follow links.
pub(crate) fn temporary(files: &dyn HostFiles) -> PathBuf {
    let path = std::env::temp_dir();
    files.real(&path).unwrap_or(path)
}

/// Files that outlive cages. Real paths, because a mount's source does not follow links.
pub(crate) fn store(home: &Path, files: &dyn HostFiles) -> Store {
    let real = |path: PathBuf| resolved(&path, files);
    Store::new(&real(state_dir(home)), &real(cache_dir(home)))
}

/// The path with links resolved, as far as it exists.
pub(crate) fn resolved(path: &Path, files: &dyn HostFiles) -> PathBuf {
    match (files.real(path), path.parent(), path.file_name()) {
        (Ok(real), ..) => real,
        (Err(_), Some(above), Some(name)) => resolved(above, files).join(name),
        _ => path.to_owned(),
    }
}

pub(crate) fn changes(home: &Path, files: &dyn HostFiles) -> ironcage_workspace::Store {
    ironcage_workspace::Store::open(&resolved(&state_dir(home), files))
}

const LARGEST_FILE: u64 = 8 << 20;

/// The text of one of the user's files. An unreadable file is skipped with a note.
pub(crate) fn text(path: &Path) -> Option<String> {
    or_note(read_text(path, LARGEST_FILE, Links::Follow))
}

fn or_note(read: Result<String, ReadError>) -> Option<String> {
    match read {
        Ok(text) => Some(text),
        Err(error) => {
            if !error.is_absent() {
                let error = error.to_string();
                eprintln!("ironcage: note: skipped: {}", Printable::new(&error));
            }
            None
        }
    }
}

/// The user's harmless git settings, from the files that git reads last.
pub(crate) fn git(home: &Path, files: &dyn HostFiles) -> Vec<GitSetting> {
    let absolute = |variable: &str| {
        let path = std::env::var_os(variable).map(PathBuf::from);
        path.filter(|path| path.is_absolute())
    };
    let paths = match absolute("GIT_CONFIG_GLOBAL") {
        Some(path) => vec![path],
        None => {
            let config = absolute("XDG_CONFIG_HOME").unwrap_or_else(|| home.join(".config"));
            let config = Some(config).filter(|path| files.node(path).is_some());
            let config = config.map(|path| path.join("git/config"));
            config
                .into_iter()
                .chain([home.join(".gitconfig")])
                .collect()
        }
    };
    // Without a setting git asks for a name.
    let parts: Vec<String> = paths.iter().filter_map(|path| text(path)).collect();
    git_settings(&parts.join("\n"))
}

/// The contents of the user's and the host's known_hosts files.
pub(crate) fn known_hosts(home: &Path) -> String {
    let paths = [
        home.join(".ssh/known_hosts"),
        "/etc/ssh/ssh_known_hosts".into(),
    ];
    let parts: Vec<String> = paths.iter().filter_map(|path| text(path)).collect();
    parts.join("\n")
}

/// Of a `.git` file and its targets.
const LARGEST_POINTER: u64 = 8 * 1024;

fn small_text(path: &Path) -> Option<String> {
    or_note(read_text(path, LARGEST_POINTER, Links::Refuse))
}

/// The git directory of a workspace whose `.git` is a file: a worktree's common directory, or a
/// submodule's own. Agents can write the `.git` file, so its target must point back: that pointer
/// is outside their reach.
pub(crate) fn git_directory(workspace: &Path, files: &dyn HostFiles) -> Option<PathBuf> {
    let pointer = workspace.join(".git");
    if files.kind(&pointer)? != NodeType::File {
        return None;
    }
    let text = small_text(&pointer)?;
    let named = text.strip_prefix("gitdir:")?.trim();
    let directory = std::fs::canonicalize(workspace.join(named)).ok()?;
    if directory.starts_with(workspace) {
        return None;
    }
    let points_back = |text: &str, wanted: &Path| {
        std::fs::canonicalize(directory.join(text.trim())).is_ok_and(|real| real == wanted)
    };
    let common = match small_text(&directory.join("gitdir")) {
        Some(back) if points_back(&back, &pointer) => {
            let common = small_text(&directory.join("commondir"))?;
            let common = std::fs::canonicalize(directory.join(common.trim())).ok()?;
            directory
                .starts_with(common.join("worktrees"))
                .then_some(common)?
        }
        Some(_) => return None,
        None => {
            let config = small_text(&directory.join("config"))?;
            let mut lines = config.lines().map(str::trim);
            let back = lines.find_map(|line| {
                let (key, value) = line.split_once('=')?;
                (key.trim() == "worktree").then(|| value.trim().to_owned())
            })?;
            points_back(&back, workspace).then_some(directory)?
        }
    };
    let owner = |path: &Path| std::fs::metadata(path).map(|metadata| metadata.uid());
    (owner(&common).ok()? == owner(workspace).ok()?).then_some(common)
}

/// Ironcage's own directories, with links resolved: no cage sees them.
pub(crate) fn own(home: &Path, files: &dyn HostFiles) -> Vec<PathBuf> {
    let mut paths = vec![
        config_dir(home),
        state_dir(home),
        cache_dir(home),
        "/run/ironcage".into(),
    ];
    if let Some(runtime) = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from)
        && runtime.is_absolute()
    {
        paths.push(runtime.join("ironcage"));
    }
    let paths = paths.iter().map(|path| resolved(path, files));
    paths.collect()
}

/// Creates those of Ironcage's own directories that are in the workspace: an absent directory
/// cannot be covered, and the agent could create it.
pub(crate) fn make_own_in(workspace: &Path, own: &[PathBuf]) -> Result<(), CliError> {
    for path in own.iter().filter(|path| path.starts_with(workspace)) {
        std::fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(path)
            .map_err(|error| CliError::new(format!("cannot create {}: {error}", path.display())))?;
    }
    Ok(())
}

/// Other homes that matter when root starts a cage: of the workspace's owner, and of the user who
/// called sudo.
pub(crate) fn other_homes(workspace: &Path, home: &Path, files: &dyn HostFiles) -> Vec<PathBuf> {
    // Both are real paths.
    let Some(owner) = files.node(workspace).map(|node| node.uid) else {
        return Vec::new();
    };
    let caller = std::env::var("SUDO_UID").ok();
    let caller: Option<u32> = caller.and_then(|uid| uid.parse().ok());
    // An ordinary user in their own workspace needs no lookup.
    let own = files.node(home).map(|home| home.uid);
    if caller.is_none() && own == Some(owner) {
        return Vec::new();
    }
    let passwd = std::fs::read_to_string("/etc/passwd").unwrap_or_default();
    passwd
        .lines()
        .filter_map(|line| {
            let mut fields = line.split(':').skip(2);
            let uid: u32 = fields.next()?.parse().ok()?;
            let directory = PathBuf::from(fields.nth(2)?);
            let wanted = uid == owner || Some(uid) == caller;
            (wanted && directory.is_absolute() && directory != Path::new("/"))
                .then(|| resolved(&directory, files))
        })
        .filter(|directory| directory != home)
        .collect()
}

/// The workspace of a cage that `run` would start here.
pub(crate) fn workspace_here() -> Result<PathBuf, CliError> {
    let files = SystemFiles::default();
    let cwd = std::env::current_dir().map_err(|error| {
        CliError::new(format!("cannot determine the current directory: {error}"))
    })?;
    Ok(workspace_around(&cwd, &home(&files)?, &files))
}

/// The top of the repository around a directory, or else the directory. A repository at or above
/// the home directory does not count: people keep their dotfiles in one. Nor does one above a
/// directory that belongs to another user or is world-writable: a foreign `.git` there would widen
/// the workspace.
pub(crate) fn workspace_around(cwd: &Path, home: &Path, files: &dyn HostFiles) -> PathBuf {
    // The kernel names it without links.
    let owner = files.node(cwd).map(|node| node.uid);
    let own = |directory: &Path| {
        const OTHERS_WRITE: u32 = 0o002;
        files
            .node(directory)
            .is_some_and(|node| Some(node.uid) == owner && node.mode & OTHERS_WRITE == 0)
    };
    cwd.ancestors()
        .take_while(|directory| !home.starts_with(directory) && own(directory))
        .find(|directory| files.node(&directory.join(".git")).is_some())
        .unwrap_or(cwd)
        .to_owned()
}
