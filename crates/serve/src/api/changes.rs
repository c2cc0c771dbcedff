//! `/v1/changes`: what cages did to copy-on-write directories, until somebody decides.

use super::{Caller, Json, Path, Query, Shared};
use crate::engine::ListedChange;
use crate::error::{ApiError, ApiResult, Code, ErrorBody};
use crate::keys::Scope;
use crate::{answers, clock};
use axum::extract::State;
use axum::http::{HeaderName, StatusCode, header};
use serde::{Deserialize, Serialize};
use std::ffi::OsString;
use utoipa::{IntoParams, ToSchema};

/// A pending change: what cages did to a directory, and is not applied yet.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub(crate) struct PendingChange {
    #[schema(example = "w7h2k9m4q1xz8")]
    pub(crate) id: String,
    /// The directory of the host.
    pub(crate) workspace: String,
    /// The workspace mode, for example `cow`.
    pub(crate) mode: String,
    /// RFC 3339.
    pub(crate) began_at: String,
    pub(crate) bytes: u64,
    /// The cage that works on it, or worked on it last.
    pub(crate) cage: String,
    /// Whether the next cage in this directory continues it.
    pub(crate) current: bool,
    /// Whether a cage works on it now.
    pub(crate) in_use: bool,
}

#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub(crate) struct PendingChangeList {
    pub(crate) changes: Vec<PendingChange>,
}

impl From<ListedChange> for PendingChange {
    fn from(change: ListedChange) -> PendingChange {
        PendingChange {
            id: change.id,
            workspace: change.workspace,
            mode: change.mode,
            began_at: clock::rfc3339_signed(change.began.saturating_mul(1_000_000)),
            bytes: change.bytes,
            cage: change.cage,
            current: change.current,
            in_use: change.in_use,
        }
    }
}

#[derive(Debug, Default, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct ListChanges {
    /// Only the change that this cage works on, or left.
    pub(crate) cage: Option<String>,
}

#[derive(Debug, Default, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct ChangePath {
    /// Only this file or directory, relative to the workspace.
    pub(crate) path: Option<String>,
}

#[derive(Debug, Default, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct DiffQuery {
    /// Only this file or directory, relative to the workspace.
    pub(crate) path: Option<String>,
    /// The bytes as they are, for `git apply`: control characters are not escaped.
    #[serde(default)]
    pub(crate) raw: bool,
}

/// The files of a change.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub(crate) struct ChangeFiles {
    pub(crate) id: String,
    /// The digest of this reading, for `digest` of an apply of the same paths.
    pub(crate) digest: String,
    pub(crate) workspace: String,
    pub(crate) files: Vec<ChangedFile>,
    /// References of git that are new, moved or deleted.
    pub(crate) references: Vec<ChangedReference>,
    /// Files that the host's own tools would execute or trust: they are applied when they are named.
    pub(crate) withheld: Vec<ReportedFile>,
    pub(crate) flagged: Vec<ReportedFile>,
    /// Paths that cannot be applied as they are.
    pub(crate) obstacles: Vec<ReportedFile>,
    /// Paths that changed on both sides.
    pub(crate) conflicts: Vec<String>,
    /// Files that git ignores, by directory.
    pub(crate) ignored: Vec<IgnoredFiles>,
}

#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub(crate) struct ChangedFile {
    pub(crate) path: String,
    /// Where it was before, if it was moved.
    pub(crate) from: Option<String>,
    /// added, removed, modified, type, mode or touched.
    pub(crate) status: String,
    /// Absent where the file is not text.
    pub(crate) lines_added: Option<u64>,
    pub(crate) lines_removed: Option<u64>,
    pub(crate) mode_before: Option<u32>,
    pub(crate) mode_after: Option<u32>,
    pub(crate) bytes: Option<u64>,
}

#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub(crate) struct ChangedReference {
    pub(crate) name: String,
    pub(crate) change: String,
    pub(crate) before: Option<String>,
    pub(crate) after: Option<String>,
    pub(crate) repository: Option<String>,
}

#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub(crate) struct ReportedFile {
    pub(crate) path: String,
    pub(crate) why: String,
}

#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub(crate) struct IgnoredFiles {
    pub(crate) path: String,
    pub(crate) files: u64,
    pub(crate) bytes: u64,
}

#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct ApplyChange {
    /// Files and directories relative to the workspace [default: all that is not withheld].
    #[serde(default)]
    pub(crate) paths: Vec<String>,
    /// The digest of what was reviewed: as `digest` of the files, or the header `ETag` of the diff, of
    /// the same paths. Where it is not the change's any more, nothing is applied [default: whatever
    /// the change holds].
    #[serde(default)]
    pub(crate) digest: Option<String>,
    /// What becomes of files that changed on both sides [default: keep].
    #[serde(default)]
    pub(crate) on_conflict: OnConflict,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum OnConflict {
    /// Both versions stay: the real file, and the change.
    #[default]
    Keep,
    /// The agent's version is taken.
    Theirs,
    /// The real file stays, and the agent's version is discarded.
    Ours,
}

#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct DiscardChange {
    /// Files and directories relative to the workspace [default: the whole change].
    #[serde(default)]
    pub(crate) paths: Vec<String>,
}

/// What `apply` did.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub(crate) struct AppliedChange {
    pub(crate) id: String,
    /// Differences that are in the real files now.
    pub(crate) applied: u64,
    pub(crate) withheld: Vec<ReportedFile>,
    pub(crate) flagged: Vec<ReportedFile>,
    /// Paths that changed on both sides, and were left as they are.
    pub(crate) conflicts: Vec<String>,
    /// Whether nothing is pending any more.
    pub(crate) finished: bool,
    pub(crate) summary: String,
}

fn words(fixed: &[&str], change: &ListedChange, paths: &[String]) -> ApiResult<Vec<OsString>> {
    let mut words: Vec<OsString> = fixed.iter().map(OsString::from).collect();
    words.push(OsString::from(&change.id));
    words.extend(change.words(paths)?.into_iter().map(OsString::from));
    Ok(words)
}

/// List pending changes, the oldest first
///
/// Those that a cage of the project works on, or left: they stay when their cage is gone. A change
/// that another cage continued belongs to that one's project.
#[utoipa::path(get, path = "/v1/changes", tag = "changes", params(ListChanges),
    responses((status = 200, body = PendingChangeList), (status = "default", body = ErrorBody)))]
pub(super) async fn list_changes(
    caller: Caller,
    State(engine): Shared,
    Query(query): Query<ListChanges>,
) -> ApiResult<axum::Json<PendingChangeList>> {
    caller.needs(Scope::Read)?;
    let changes = engine.changes(&caller.key).await?;
    let changes = changes
        .into_iter()
        .map(PendingChange::from)
        .filter(|change| query.cage.as_ref().is_none_or(|cage| change.cage == *cage));
    Ok(axum::Json(PendingChangeList {
        changes: changes.collect(),
    }))
}

/// List the files of a pending change
#[utoipa::path(get, path = "/v1/changes/{change}", tag = "changes",
    params(("change" = String, Path), ChangePath),
    responses((status = 200, body = ChangeFiles), (status = "default", body = ErrorBody)))]
pub(super) async fn get_change(
    caller: Caller,
    State(engine): Shared,
    Path(id): Path<String>,
    Query(query): Query<ChangePath>,
) -> ApiResult<axum::Json<ChangeFiles>> {
    caller.needs(Scope::Read)?;
    let change = engine.pending_change(&caller.key, &id).await?;
    let paths: Vec<String> = query.path.into_iter().collect();
    let words = words(&["change", "diff", "--json", "--digest"], &change, &paths)?;
    let printed = engine.command_line.run(&caller.key.project, &words).await?;
    answers::hold(printed.len())?;
    let files = serde_json::from_slice(&printed)
        .map_err(|error| ApiError::internal("read the change", &error))?;
    Ok(axum::Json(files))
}

/// Show a pending change as a diff
///
/// The header `ETag` has the digest of what is shown, for `digest` of an apply of the same paths.
#[utoipa::path(get, path = "/v1/changes/{change}/diff", tag = "changes",
    params(("change" = String, Path), DiffQuery),
    responses((status = 200, content_type = "text/x-diff", body = String), (status = "default", body = ErrorBody)))]
pub(super) async fn diff_change(
    caller: Caller,
    State(engine): Shared,
    Path(id): Path<String>,
    Query(query): Query<DiffQuery>,
) -> ApiResult<([(HeaderName, String); 2], Vec<u8>)> {
    caller.needs(Scope::Read)?;
    let change = engine.pending_change(&caller.key, &id).await?;
    let fixed: &[&str] = match query.raw {
        true => &["change", "diff", "--digest", "--raw"],
        false => &["change", "diff", "--digest"],
    };
    let paths: Vec<String> = query.path.into_iter().collect();
    let mut diff = engine
        .command_line
        .run(&caller.key.project, &words(fixed, &change, &paths)?)
        .await?;
    let digest = split_digest(&mut diff)?;
    answers::hold(diff.len())?;
    let headers = [
        // What an agent wrote is not a page.
        (
            header::CONTENT_TYPE,
            "text/x-diff; charset=utf-8".to_owned(),
        ),
        (header::ETAG, format!("\"{digest}\"")),
    ];
    Ok((headers, diff))
}

/// Takes the last line of a diff, which has its digest.
fn split_digest(diff: &mut Vec<u8>) -> ApiResult<String> {
    let text = diff.trim_ascii_end();
    let begin = text.iter().rposition(|byte| *byte == b'\n');
    let begin = begin.map_or(0, |newline| newline + 1);
    let last = text
        .get(begin..)
        .and_then(|last| std::str::from_utf8(last).ok());
    let digest = last.and_then(|last| last.strip_prefix("digest: "));
    let digest = digest.filter(|digest| is_digest(digest)).map(str::to_owned);
    let digest = digest.ok_or_else(|| ApiError::new(Code::Internal, "the diff has no digest"))?;
    diff.truncate(begin);
    Ok(digest)
}

/// Whether a text may be a digest, and is not an option of a command line.
fn is_digest(text: &str) -> bool {
    let is_part = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    (1..=128).contains(&text.len()) && !text.starts_with('-') && text.bytes().all(is_part)
}

/// Apply a pending change to the real files
///
/// Files that the host's own tools would execute or trust are withheld until they are named. A cage
/// that works on the change is paused meanwhile. Needs the scopes `permissions` and `host`.
///
/// An agent that still runs can change what was reviewed: name the `digest` of the review, and 409 is the
/// answer then.
#[utoipa::path(post, path = "/v1/changes/{change}/apply", tag = "changes", params(("change" = String, Path)),
    request_body = ApplyChange,
    responses((status = 200, body = AppliedChange), (status = "default", body = ErrorBody)))]
pub(super) async fn apply_change(
    caller: Caller,
    State(engine): Shared,
    Path(id): Path<String>,
    Json(wanted): Json<ApplyChange>,
) -> ApiResult<axum::Json<AppliedChange>> {
    caller.needs(Scope::Permissions)?;
    caller.needs(Scope::Host)?;
    let change = engine.pending_change(&caller.key, &id).await?;
    let fixed: &[&str] = match wanted.on_conflict {
        OnConflict::Keep => &["change", "apply", "--json"],
        OnConflict::Theirs => &["change", "apply", "--json", "--theirs"],
        OnConflict::Ours => &["change", "apply", "--json", "--ours"],
    };
    let expected = wanted
        .digest
        .map(|digest| digest.trim_matches('"').to_owned());
    if expected.as_deref().is_some_and(|digest| !is_digest(digest)) {
        return Err(ApiError::invalid("`digest` is not the digest of a review"));
    }
    let expected = expected.map(|digest| format!("--expect={digest}"));
    let fixed: Vec<&str> = fixed.iter().copied().chain(expected.as_deref()).collect();
    let words = words(&fixed, &change, &wanted.paths)?;
    let applied = engine
        .command_line
        .json(&caller.key.project, &words)
        .await?;
    Ok(axum::Json(applied))
}

/// Discard a pending change, or a part of it
///
/// The real files are not touched. A cage that works on the change is to be ended first.
#[utoipa::path(post, path = "/v1/changes/{change}/discard", tag = "changes", params(("change" = String, Path)),
    request_body = DiscardChange,
    responses((status = 204), (status = "default", body = ErrorBody)))]
pub(super) async fn discard_change(
    caller: Caller,
    State(engine): Shared,
    Path(id): Path<String>,
    Json(wanted): Json<DiscardChange>,
) -> ApiResult<StatusCode> {
    caller.needs(Scope::Cages)?;
    let change = engine.pending_change(&caller.key, &id).await?;
    let words = words(&["change", "discard", "--yes"], &change, &wanted.paths)?;
    engine.command_line.run(&caller.key.project, &words).await?;
    Ok(StatusCode::NO_CONTENT)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_digest_is_the_last_line_whatever_a_diff_says() {
        let mut diff = b"+digest: evil-1\ndigest: evil-2\n\ndigest: text-0a\n".to_vec();
        assert_eq!(split_digest(&mut diff).unwrap(), "text-0a");
        assert_eq!(diff, b"+digest: evil-1\ndigest: evil-2\n\n");
        let mut alone = b"digest: raw-0a\n".to_vec();
        assert_eq!(split_digest(&mut alone).unwrap(), "raw-0a");
        assert!(alone.is_empty());
        for wrong in ["", "+line\n", "digest: \n", "digest: --json\n"] {
            assert!(
                split_digest(&mut wrong.as_bytes().to_vec()).is_err(),
                "{wrong}"
            );
        }
    }
}
