//! Where things are: the user's home, Ironcage's own directories, the workspace.

use crate::error::CliError;
use ironcage_plan::{GitSetting, git_settings};
use ironcage_state::Store;
use std::io::Read as _;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

/// The user's home directory: `HOME`, which must be absolute. Links in it are resolved, so
/// that paths can be compared.
pub(crate) fn home() -> Result<PathBuf, CliError> {
    let home = std::env::var_os("HOME").map(PathBuf::from);
    match home {
        Some(home) if home.is_absolute() => Ok(std::fs::canonicalize(&home).unwrap_or(home)),
        _ => Err(CliError::new("HOME is not set to an absolute path")
            .hint("set HOME to your home directory")),
    }
}

fn xdg(variable: &str, otherwise: PathBuf) -> PathBuf {
    std::env::var_os(variable)
        .map(PathBuf::from)
        .filter(|path| path.is_absolute())
        .unwrap_or(otherwise)
        .join("ironcage")
}

/// Where the user's configuration is.
pub(crate) fn config_dir(home: &Path) -> PathBuf {
    xdg("XDG_CONFIG_HOME", home.join(".config"))
}

/// Where records are kept.
pub(crate) fn state_dir(home: &Path) -> PathBuf {
    xdg("XDG_STATE_HOME", home.join(".local/state"))
}

/// Where caches of cages are kept.
pub(crate) fn cache_dir(home: &Path) -> PathBuf {
    xdg("XDG_CACHE_HOME", home.join(".cache"))
}

/// Where temporary files are made. A real path: rules on files follow no link.
pub(crate) fn temporary() -> PathBuf {
    let path = std::env::temp_dir();
    std::fs::canonicalize(&path).unwrap_or(path)
}

/// What outlives cages. Real paths, as a mount's source follows no link.
pub(crate) fn store(home: &Path) -> Store {
    let real = |path: PathBuf| resolved(&path);
    Store::new(&real(state_dir(home)), &real(cache_dir(home)))
}

/// A path without links, as far as it exists.
pub(crate) fn resolved(path: &Path) -> PathBuf {
    match (std::fs::canonicalize(path), path.parent(), path.file_name()) {
        (Ok(real), ..) => real,
        (Err(_), Some(above), Some(name)) => resolved(above).join(name),
        _ => path.to_owned(),
    }
}

/// Pending changes of all workspaces.
pub(crate) fn changes(home: &Path) -> ironcage_workspace::Store {
    ironcage_workspace::Store::open(&resolved(&state_dir(home)))
}

/// The most that is read of one of the user's files.
const FILE_SIZE: u64 = 1 << 20;

/// The text of one of the user's files. One that is not there, is no file or is not text says
/// nothing.
fn text(path: &Path) -> Option<String> {
    let file = std::fs::File::open(path).ok()?;
    if !file.metadata().is_ok_and(|metadata| metadata.is_file()) {
        return None;
    }
    let mut text = String::new();
    file.take(FILE_SIZE).read_to_string(&mut text).ok()?;
    Some(text)
}

/// The user's harmless settings of git, from the files that git itself would read last.
pub(crate) fn git(home: &Path) -> Vec<GitSetting> {
    let absolute = |variable: &str| {
        let path = std::env::var_os(variable).map(PathBuf::from);
        path.filter(|path| path.is_absolute())
    };
    let paths = match absolute("GIT_CONFIG_GLOBAL") {
        Some(path) => vec![path],
        None => {
            let config = absolute("XDG_CONFIG_HOME").unwrap_or_else(|| home.join(".config"));
            vec![config.join("git/config"), home.join(".gitconfig")]
        }
    };
    // Where nothing is said, commits ask for a name.
    let parts: Vec<String> = paths.iter().filter_map(|path| text(path)).collect();
    git_settings(&parts.join("\n"))
}

/// What the user's and the host's files of known hosts say.
pub(crate) fn known_hosts(home: &Path) -> String {
    let paths = [
        home.join(".ssh/known_hosts"),
        "/etc/ssh/ssh_known_hosts".into(),
    ];
    let parts: Vec<String> = paths.iter().filter_map(|path| text(path)).collect();
    parts.join("\n")
}

/// The most that is read of a file that says where a repository is.
const POINTER_SIZE: u64 = 8 * 1024;

fn small_text(path: &Path) -> Option<String> {
    let file = std::fs::File::open(path).ok()?;
    if !file.metadata().ok()?.is_file() {
        return None;
    }
    let mut text = String::new();
    file.take(POINTER_SIZE).read_to_string(&mut text).ok()?;
    Some(text)
}

/// The git directory of a workspace that has a pointer to it instead: the common one of a
/// worktree, a submodule's own. The pointer lies where agents write, so it counts only if what
/// it leads to points back: that is written in a place which they cannot reach.
pub(crate) fn git_directory(workspace: &Path) -> Option<PathBuf> {
    let pointer = workspace.join(".git");
    if !pointer.symlink_metadata().ok()?.is_file() {
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

/// Ironcage's own directories, real paths where they exist: no cage gets to see them.
pub(crate) fn own(home: &Path) -> Vec<PathBuf> {
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
    paths.into_iter().map(|path| resolved(&path)).collect()
}

/// Makes those of Ironcage's own directories that would lie in a workspace: what is not there
/// cannot be covered, and the agent would make it.
pub(crate) fn make_own_in(workspace: &Path, own: &[PathBuf]) -> Result<(), CliError> {
    for path in own.iter().filter(|path| path.starts_with(workspace)) {
        std::fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(path)
            .map_err(|error| CliError::new(format!("cannot make {}: {error}", path.display())))?;
    }
    Ok(())
}

/// Home directories that are not the caller's but matter when root starts a cage: that of the
/// workspace's owner, and that of the user who called through sudo.
pub(crate) fn other_homes(workspace: &Path, home: &Path) -> Vec<PathBuf> {
    let Ok(metadata) = std::fs::metadata(workspace) else {
        return Vec::new();
    };
    let caller = std::env::var("SUDO_UID").ok();
    let caller: Option<u32> = caller.and_then(|uid| uid.parse().ok());
    // For an ordinary user in a workspace of its own there is nothing to look up.
    let own = std::fs::metadata(home).map(|home| home.uid());
    if caller.is_none() && own.is_ok_and(|own| own == metadata.uid()) {
        return Vec::new();
    }
    let passwd = std::fs::read_to_string("/etc/passwd").unwrap_or_default();
    passwd
        .lines()
        .filter_map(|line| {
            let mut fields = line.split(':').skip(2);
            let uid: u32 = fields.next()?.parse().ok()?;
            let directory = PathBuf::from(fields.nth(2)?);
            let wanted = uid == metadata.uid() || Some(uid) == caller;
            (wanted && directory.is_absolute() && directory != Path::new("/"))
                .then(|| resolved(&directory))
        })
        .filter(|directory| directory != home)
        .collect()
}

/// The top of the repository around a directory, else the directory. A repository that is
/// the home directory itself, or lies above it, does not count: people keep their settings
/// in one. Nor does one above a directory of somebody else's, or one that everybody writes:
/// a stranger's `.git` there would widen the workspace.
pub(crate) fn workspace_around(cwd: &Path, home: &Path) -> PathBuf {
    let owner = std::fs::metadata(cwd).map(|metadata| metadata.uid()).ok();
    let own = |directory: &Path| {
        const OTHERS_WRITE: u32 = 0o002;
        std::fs::metadata(directory).is_ok_and(|metadata| {
            Some(metadata.uid()) == owner && metadata.mode() & OTHERS_WRITE == 0
        })
    };
    cwd.ancestors()
        .take_while(|directory| !home.starts_with(directory) && own(directory))
        .find(|directory| directory.join(".git").symlink_metadata().is_ok())
        .unwrap_or(cwd)
        .to_owned()
}
