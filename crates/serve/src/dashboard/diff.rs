//! The pending change of a cage, as `ironcage diff` prints it.
//!
//! A process of its own reads it: files whose modes keep even their owner out are read in a user
//! namespace, which a process enters as a whole.

use crate::answers;
use crate::api::{Caller, Path};
use crate::engine::{Engine, Entry};
use crate::error::{ApiError, ApiResult, Code};
use crate::keys::Scope;
use axum::extract::State;
use serde::{Deserialize, Serialize};
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::AsyncReadExt;
use tokio::process::Command;
use tokio::sync::Semaphore;

/// Bytes of a diff that are shown.
const MOST: u64 = 2 << 20;
const LONGEST_MESSAGE: u64 = 64 * 1024;
/// How long it may take.
const PATIENCE: Duration = Duration::from_secs(60);
/// Diffs that are made at the same time.
static TURNS: Semaphore = Semaphore::const_new(2);

#[derive(Debug, Serialize)]
pub(super) struct Diff {
    /// The ID of the change; absent where the cage has none.
    #[serde(skip_serializing_if = "Option::is_none")]
    change: Option<String>,
    /// What `ironcage diff` prints: control characters are escaped.
    text: String,
    /// Whether there is more than is shown.
    truncated: bool,
}

/// A line of `ironcage change list --json`.
#[derive(Debug, Deserialize)]
struct FoundChange {
    id: String,
    cages: Vec<String>,
}

/// An error of `ironcage`, as `IRONCAGE_ERROR_CODES=json` prints it.
#[derive(Debug, Deserialize)]
struct DiffFailed {
    error: FailedDetail,
}

#[derive(Debug, Deserialize)]
struct FailedDetail {
    message: String,
    #[serde(default)]
    hints: Vec<String>,
}

pub(super) async fn diff(
    caller: Caller,
    State(engine): State<Arc<Engine>>,
    Path(id): Path<String>,
) -> ApiResult<axum::Json<Diff>> {
    caller.needs(Scope::Read)?;
    let entry = engine.cage(&caller.key, &id)?;
    let _turn = TURNS
        .acquire()
        .await
        .map_err(|error| ApiError::internal("make a diff", &error))?;
    let Some(change) = change_of(&engine, &entry).await? else {
        return Ok(axum::Json(Diff {
            change: None,
            text: String::new(),
            truncated: false,
        }));
    };
    let (bytes, truncated) = run(&engine, &["diff", &change]).await?;
    answers::hold(bytes.len())?;
    Ok(axum::Json(Diff {
        change: Some(change),
        text: String::from_utf8_lossy(&bytes).into_owned(),
        truncated,
    }))
}

/// The change that a cage works on, or left.
async fn change_of(engine: &Engine, entry: &Arc<Entry>) -> ApiResult<Option<String>> {
    match crate::api::change_of(entry).await {
        Ok(change) => return Ok(change),
        Err(error) if error.code == Code::CageEnded => {}
        Err(error) => return Err(error),
    }
    let (bytes, _) = run(engine, &["change", "list", "--json"]).await?;
    let changes: Vec<FoundChange> = serde_json::from_slice(&bytes)
        .map_err(|error| ApiError::internal("read the list of changes", &error))?;
    let of_cage = changes
        .into_iter()
        .find(|change| change.cages.last().map(String::as_str) == Some(entry.id.as_str()));
    Ok(of_cage.map(|change| change.id))
}

/// What a command of `ironcage` prints, and whether that is not all.
async fn run(engine: &Engine, words: &[&str]) -> ApiResult<(Vec<u8>, bool)> {
    let failed = |error: std::io::Error| ApiError::internal("execute ironcage", &error);
    let mut child = Command::new(&engine.settings.ironcage)
        .args(words)
        // A name that is a file here would be taken for a path.
        .current_dir("/")
        .env("IRONCAGE_ERROR_CODES", "json")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .map_err(failed)?;
    let (stdout, stderr) = (child.stdout.take(), child.stderr.take());
    let (mut printed, mut errors) = (Vec::new(), Vec::new());
    let read = async {
        if let Some(stdout) = stdout {
            stdout.take(MOST + 1).read_to_end(&mut printed).await?;
        }
        if printed.len() as u64 > MOST {
            child.kill().await?;
            return Ok(None);
        }
        if let Some(stderr) = stderr {
            stderr
                .take(LONGEST_MESSAGE)
                .read_to_end(&mut errors)
                .await?;
        }
        child.wait().await.map(Some)
    };
    let ended = tokio::time::timeout(PATIENCE, read).await.map_err(|_| {
        ApiError::new(
            Code::Timeout,
            format!("the change was not read within {} s", PATIENCE.as_secs()),
        )
        .hint("`ironcage diff` shows it in a terminal, however long it takes")
    })?;
    match ended.map_err(failed)? {
        None => {
            printed.truncate(usize::try_from(MOST).unwrap_or(usize::MAX));
            Ok((printed, true))
        }
        Some(status) if status.success() => Ok((printed, false)),
        Some(_) => Err(error_of(&errors)),
    }
}

fn error_of(text: &[u8]) -> ApiError {
    let text = String::from_utf8_lossy(text);
    let failed = text
        .lines()
        .find_map(|line| serde_json::from_str::<DiffFailed>(line).ok());
    match failed {
        Some(DiffFailed { error }) => {
            let shown = ApiError::new(Code::Conflict, error.message);
            match error.hints.is_empty() {
                true => shown,
                false => shown.hint(error.hints.join("; ")),
            }
        }
        None => ApiError::new(Code::Internal, format!("ironcage failed: {}", text.trim())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_of_the_command_line_keeps_its_hints() {
        let error = error_of(
            b"noise\n{\"error\":{\"message\":\"no\",\"code\":null,\"hints\":[\"a\",\"b\"]}}\n",
        );
        assert_eq!(
            (error.code, error.message.as_str(), error.hint.as_deref()),
            (Code::Conflict, "no", Some("a; b"))
        );
        assert_eq!(error_of(b"died\n").message, "ironcage failed: died");
    }
}
