//! The last start of a cage that failed. It has no audit log, so `why` would explain the cage before it.

use crate::error::CliError;
use crate::paths;
use ironcage_files::{Links, read};
use ironcage_host::SystemFiles;
use serde::{Deserialize, Serialize};
use std::fs::{DirBuilder, OpenOptions};
use std::io::Write as _;
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

const FILE: &str = "failed-start";
/// Bytes of that file, at most.
const LARGEST: u64 = 64 * 1024;

/// A start that failed.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct FailedStart {
    workspace: PathBuf,
    /// Microseconds since the epoch.
    time: u64,
    pub(crate) error: ErrorDocument,
}

/// An error as programs read it.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ErrorDocument {
    pub(crate) message: String,
    pub(crate) code: Option<String>,
    pub(crate) hints: Vec<String>,
}

/// Notes why a cage did not start here. Where that fails, `why` explains the cage before it.
pub(crate) fn note(error: &CliError) {
    let (Ok(workspace), Ok(home)) = (
        paths::workspace_here(),
        paths::home(&SystemFiles::default()),
    ) else {
        return;
    };
    let Ok(error) = serde_json::from_value(error.document()) else {
        return;
    };
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    let now = now.unwrap_or_default().as_micros();
    let failed = FailedStart {
        workspace,
        time: u64::try_from(now).unwrap_or(u64::MAX),
        error,
    };
    write(&paths::state_dir(&home), &failed);
}

fn write(state: &Path, failed: &FailedStart) {
    let Ok(text) = serde_json::to_vec(failed) else {
        return;
    };
    let mut options = OpenOptions::new();
    options.write(true).create(true).truncate(true).mode(0o600);
    // The first run makes the directory.
    let made = DirBuilder::new().recursive(true).mode(0o700).create(state);
    if let (Ok(()), Ok(mut file)) = (made, options.open(state.join(FILE))) {
        // What is cut off is not read.
        let _ = file.write_all(&text);
    }
}

/// The last start that failed here, if no cage has started here since.
pub(crate) fn newest(newest_cage: Option<u64>) -> Option<FailedStart> {
    let home = paths::home(&SystemFiles::default()).ok()?;
    let here = paths::workspace_here().ok()?;
    find(&paths::state_dir(&home), &here, newest_cage)
}

fn find(state: &Path, workspace: &Path, newest_cage: Option<u64>) -> Option<FailedStart> {
    let text = read(&state.join(FILE), LARGEST, Links::Refuse).ok()?;
    let failed: FailedStart = serde_json::from_slice(&text).ok()?;
    let is_newer = newest_cage.is_none_or(|cage| failed.time > cage);
    (failed.workspace == workspace && is_newer).then_some(failed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failed_start_is_found_in_its_workspace_until_a_cage_starts() {
        let state = std::env::temp_dir().join(format!("failed-start-{}", std::process::id()));
        let here = Path::new("/work");
        assert_eq!(find(&state, here, None), None);
        let failed = FailedStart {
            workspace: here.to_owned(),
            time: 7,
            error: ErrorDocument {
                message: "no".into(),
                code: None,
                hints: vec!["do this".into()],
            },
        };
        write(&state, &failed);
        assert_eq!(find(&state, here, None).as_ref(), Some(&failed));
        assert_eq!(find(&state, here, Some(6)).as_ref(), Some(&failed));
        assert_eq!(find(&state, here, Some(8)), None);
        assert_eq!(find(&state, Path::new("/other"), None), None);
        std::fs::remove_dir_all(&state).unwrap();
    }
}
