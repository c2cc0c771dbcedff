//! `/v1/cages/{id}/files`.

use super::events::{Events, Gone};
use super::types::{
    FileChange, FileChangeKind, FileEntry, FileKind, FileList, ListFiles, MakeDirectory, MoveFile,
    PathQuery, RemoveFile, WatchFiles, WriteFile,
};
use super::{Caller, Json, Path, Query, Shared};
use crate::clock;
use crate::daemon::{Daemon, Link, PATIENCE, Received};
use crate::error::{ApiError, ApiResult, Code, ErrorBody};
use crate::keys::Scope;
use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use futures_util::{Stream, StreamExt};
use ironcage_cage_daemon::protocol::{self, ChangeKind, EntryKind, Kind, Reply, Request};
use serde_json::json;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

const KEEP_ALIVE: Duration = Duration::from_secs(20);
/// How long a download may stand still.
const STALLED: Duration = Duration::from_secs(300);

fn shown(entry: protocol::Entry) -> FileEntry {
    FileEntry {
        name: entry.name,
        path: entry.path,
        kind: match entry.kind {
            EntryKind::File => FileKind::File,
            EntryKind::Directory => FileKind::Directory,
            EntryKind::Symlink => FileKind::Symlink,
            EntryKind::Other => FileKind::Other,
        },
        size: entry.size,
        mode: entry.mode,
        owner: entry.owner,
        group: entry.group,
        modified_at: clock::rfc3339_signed(entry.modified),
        target: entry.target,
    }
}

async fn one(daemon: &Arc<Daemon>, request: &Request) -> ApiResult<axum::Json<FileEntry>> {
    match daemon.ask_one(request).await? {
        Reply::Entry { entry } => Ok(axum::Json(shown(entry))),
        _ => Err(daemon.garbled("not a file")),
    }
}

/// List a directory
#[utoipa::path(get, path = "/v1/cages/{id}/files", tag = "files", params(("id" = String, Path), ListFiles),
    responses((status = 200, body = FileList), (status = "default", body = ErrorBody)))]
pub(super) async fn list_files(
    caller: Caller,
    State(engine): Shared,
    Path(id): Path<String>,
    Query(query): Query<ListFiles>,
) -> ApiResult<axum::Json<FileList>> {
    caller.needs(Scope::Read)?;
    let entry = engine.cage(&caller.key, &id)?;
    let depth = query.depth.unwrap_or(1);
    if !(1..=64).contains(&depth) {
        return Err(ApiError::invalid(format!(
            "the depth is {depth}; expected 1 to 64"
        )));
    }
    let request = Request::List {
        path: query.path,
        depth,
    };
    let mut entries = Vec::new();
    for reply in entry.running()?.ask(&request).await? {
        if let Reply::Entries { entries: found } = reply {
            entries.extend(found.into_iter().map(shown));
        }
    }
    Ok(axum::Json(FileList { entries }))
}

/// Remove a file or a directory
#[utoipa::path(delete, path = "/v1/cages/{id}/files", tag = "files", params(("id" = String, Path), RemoveFile),
    responses((status = 204), (status = "default", body = ErrorBody)))]
pub(super) async fn remove_file(
    caller: Caller,
    State(engine): Shared,
    Path(id): Path<String>,
    Query(query): Query<RemoveFile>,
) -> ApiResult<StatusCode> {
    caller.needs(Scope::Cages)?;
    let entry = engine.cage(&caller.key, &id)?;
    let request = Request::Remove {
        path: query.path,
        recursive: query.recursive,
    };
    entry.running()?.ask(&request).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Describe a file, directory or link
#[utoipa::path(get, path = "/v1/cages/{id}/files/entry", tag = "files", params(("id" = String, Path), PathQuery),
    responses((status = 200, body = FileEntry), (status = "default", body = ErrorBody)))]
pub(super) async fn stat_file(
    caller: Caller,
    State(engine): Shared,
    Path(id): Path<String>,
    Query(query): Query<PathQuery>,
) -> ApiResult<axum::Json<FileEntry>> {
    caller.needs(Scope::Read)?;
    let entry = engine.cage(&caller.key, &id)?;
    one(entry.running()?, &Request::Stat { path: query.path }).await
}

/// Read a file
///
/// With the header `Range: bytes=FROM-TO`, a part of it.
#[utoipa::path(get, path = "/v1/cages/{id}/files/content", tag = "files", params(("id" = String, Path), PathQuery),
    responses((status = 200, content_type = "application/octet-stream", body = Vec<u8>),
        (status = 206, content_type = "application/octet-stream", body = Vec<u8>),
        (status = "default", body = ErrorBody)))]
pub(super) async fn read_file(
    caller: Caller,
    State(engine): Shared,
    Path(id): Path<String>,
    Query(query): Query<PathQuery>,
    headers: HeaderMap,
) -> ApiResult<Response> {
    caller.needs(Scope::Read)?;
    let entry = engine.cage(&caller.key, &id)?;
    content_of(entry.running()?, query.path, &headers).await
}

/// The part of a file that is wanted: the first byte and the last, either may be left out.
type Range = (Option<u64>, Option<u64>);

/// A range; `None` where there is none, or several, which are answered with the whole file.
fn range(headers: &HeaderMap) -> Option<Range> {
    let text = headers
        .get(header::RANGE)?
        .to_str()
        .ok()?
        .strip_prefix("bytes=")?;
    let (from, to) = text.split_once('-')?;
    let number = |text: &str| match text.trim() {
        "" => Some(None),
        digits => digits.parse().ok().map(Some),
    };
    let range = (number(from)?, number(to)?);
    (range != (None, None)).then_some(range)
}

/// A file of a cage as an answer.
pub(crate) async fn content_of(
    daemon: &Arc<Daemon>,
    path: String,
    headers: &HeaderMap,
) -> ApiResult<Response> {
    let wanted = range(headers);
    let size = match wanted {
        None => None,
        Some(_) => match daemon
            .ask_one(&Request::Stat { path: path.clone() })
            .await?
        {
            // Of a link, the size that counts is found by reading.
            Reply::Entry { entry } if entry.kind == EntryKind::File => Some(entry.size),
            Reply::Entry { .. } => None,
            _ => return Err(daemon.garbled("not a file")),
        },
    };
    let part = match (wanted, size) {
        (Some((Some(from), to)), Some(size)) => Some((
            from,
            to.unwrap_or(u64::MAX).min(size.saturating_sub(1)),
            size,
        )),
        // The last bytes.
        (Some((None, Some(count))), Some(size)) => {
            Some((size.saturating_sub(count), size.saturating_sub(1), size))
        }
        _ => None,
    };
    if let Some((from, to, size)) = part
        && (from >= size || from > to)
    {
        let error = ApiError::new(
            Code::RangeNotSatisfiable,
            format!("the file has {size} bytes"),
        );
        let mut response = error.into_response();
        if let Ok(value) = HeaderValue::from_str(&format!("bytes */{size}")) {
            response.headers_mut().insert(header::CONTENT_RANGE, value);
        }
        return Ok(response);
    }
    let request = Request::Read {
        path,
        offset: part.map_or(0, |(from, ..)| from),
        length: part.map(|(from, to, _)| to - from + 1),
    };
    let mut link = daemon.send(&request).await?;
    match link.receive(Some(PATIENCE)).await? {
        Received::Reply(Reply::Reading { .. }) => {}
        _ => return Err(daemon.garbled("not a file")),
    }
    let mut response = Response::new(content(link));
    let headers = response.headers_mut();
    headers.insert(
        header::CONTENT_TYPE,
        HeaderValue::from_static("application/octet-stream"),
    );
    headers.insert(header::ACCEPT_RANGES, HeaderValue::from_static("bytes"));
    // What a cage wrote is not for a browser to show.
    headers.insert(
        header::X_CONTENT_TYPE_OPTIONS,
        HeaderValue::from_static("nosniff"),
    );
    headers.insert(
        header::CONTENT_DISPOSITION,
        HeaderValue::from_static("attachment"),
    );
    if let Some((from, to, size)) = part {
        if let Ok(value) = HeaderValue::from_str(&format!("bytes {from}-{to}/{size}")) {
            headers.insert(header::CONTENT_RANGE, value);
        }
        *response.status_mut() = StatusCode::PARTIAL_CONTENT;
    }
    Ok(response)
}

/// Data as it comes. A body that breaks off tells the client that it is not whole.
fn content(link: Link) -> Body {
    let stream = futures_util::stream::unfold(Some(link), |link| async move {
        let mut link = link?;
        match link.receive(Some(STALLED)).await {
            Ok(Received::Data(Kind::Data, bytes)) => Some((Ok(Bytes::from(bytes)), Some(link))),
            Ok(Received::Done) => None,
            Ok(_) => Some((
                Err(ApiError::internal("read a file", &std::fmt::Error)),
                None,
            )),
            Err(error) => Some((Err(error), None)),
        }
    });
    Body::from_stream(stream)
}

/// Write a file
///
/// Makes its parents, and replaces the file at once when the whole body is there. A file that is a
/// mount, or in a directory that cannot be written, is written in place.
#[utoipa::path(put, path = "/v1/cages/{id}/files/content", tag = "files", params(("id" = String, Path), WriteFile),
    request_body(content = Vec<u8>, content_type = "application/octet-stream"),
    responses((status = 200, body = FileEntry), (status = "default", body = ErrorBody)))]
pub(super) async fn write_file(
    caller: Caller,
    State(engine): Shared,
    Path(id): Path<String>,
    Query(query): Query<WriteFile>,
    body: Body,
) -> ApiResult<axum::Json<FileEntry>> {
    caller.needs(Scope::Cages)?;
    let entry = engine.cage(&caller.key, &id)?;
    if let Some(mode) = query.mode.filter(|mode| *mode > 0o777) {
        return Err(ApiError::invalid(format!(
            "the mode is {mode}; expected at most 511"
        )));
    }
    let data = body.into_data_stream();
    let (daemon, none) = (entry.running()?, BTreeMap::new());
    let written = write_stream(daemon, query.path, query.mode, none, data).await?;
    Ok(axum::Json(shown(written)))
}

/// Writes data as it comes to a file of a cage.
pub(crate) async fn write_stream<E: std::fmt::Display>(
    daemon: &Arc<Daemon>,
    path: String,
    mode: Option<u32>,
    metadata: BTreeMap<String, String>,
    mut data: impl Stream<Item = Result<Bytes, E>> + Unpin,
) -> ApiResult<protocol::Entry> {
    let request = Request::Write {
        path,
        mode,
        metadata,
    };
    let mut link = daemon.send(&request).await?;
    // Data that breaks off closes the connection: the file stays as it was.
    while let Some(bytes) = data.next().await {
        let broken = |error| ApiError::invalid(format!("the body did not arrive whole: {error}"));
        link.write_data(&bytes.map_err(broken)?).await?;
    }
    link.write(Kind::End, &[]).await?;
    match link.replies().await?.into_iter().next() {
        Some(Reply::Entry { entry }) => Ok(entry),
        _ => Err(daemon.garbled("not a file")),
    }
}

/// Make a directory and its parents
#[utoipa::path(post, path = "/v1/cages/{id}/files/directories", tag = "files", params(("id" = String, Path)),
    request_body = MakeDirectory,
    responses((status = 200, body = FileEntry), (status = "default", body = ErrorBody)))]
pub(super) async fn make_directory(
    caller: Caller,
    State(engine): Shared,
    Path(id): Path<String>,
    Json(wanted): Json<MakeDirectory>,
) -> ApiResult<axum::Json<FileEntry>> {
    caller.needs(Scope::Cages)?;
    let entry = engine.cage(&caller.key, &id)?;
    one(
        entry.running()?,
        &Request::MakeDirectory { path: wanted.path },
    )
    .await
}

/// Move a file or a directory
///
/// Makes the parents of the new path, and replaces a file that is there.
#[utoipa::path(post, path = "/v1/cages/{id}/files/move", tag = "files", params(("id" = String, Path)),
    request_body = MoveFile,
    responses((status = 200, body = FileEntry), (status = "default", body = ErrorBody)))]
pub(super) async fn move_file(
    caller: Caller,
    State(engine): Shared,
    Path(id): Path<String>,
    Json(wanted): Json<MoveFile>,
) -> ApiResult<axum::Json<FileEntry>> {
    caller.needs(Scope::Cages)?;
    let entry = engine.cage(&caller.key, &id)?;
    let request = Request::Move {
        from: wanted.from,
        to: wanted.to,
    };
    one(entry.running()?, &request).await
}

/// Watch a directory
///
/// Events: `start` once it is watched, then `change` with a `FileChange`, or `error` with an
/// `ErrorBody`.
#[utoipa::path(get, path = "/v1/cages/{id}/files/watch", tag = "files", params(("id" = String, Path), WatchFiles),
    responses((status = 200, content_type = "text/event-stream", body = FileChange), (status = "default", body = ErrorBody)))]
pub(super) async fn watch_files(
    caller: Caller,
    State(engine): Shared,
    Path(id): Path<String>,
    Query(query): Query<WatchFiles>,
) -> ApiResult<Response> {
    caller.needs(Scope::Read)?;
    let entry = engine.cage(&caller.key, &id)?;
    let daemon = entry.running()?;
    let request = Request::Watch {
        path: query.path,
        recursive: query.recursive,
    };
    let mut link = daemon.send(&request).await?;
    match link.receive(Some(PATIENCE)).await? {
        Received::Reply(Reply::Watching) => {}
        _ => return Err(daemon.garbled("not a watch")),
    }
    let (events, response) = Events::channel();
    tokio::spawn(async move {
        let work = report(link, &events);
        events.run(&engine, &caller.key, work).await;
    });
    Ok(response)
}

async fn report(mut link: Link, events: &Events) -> Result<(), Gone> {
    events.send("start", &json!({})).await?;
    loop {
        match tokio::time::timeout(KEEP_ALIVE, link.receive(None)).await {
            Err(_) => events.keep_alive().await?,
            // No file has a longer name.
            Ok(Ok(Received::Reply(Reply::Changed { change }))) if change.name.len() > 4096 => {}
            Ok(Ok(Received::Reply(Reply::Changed { change }))) => {
                let kind = match change.kind {
                    ChangeKind::Create => FileChangeKind::Create,
                    ChangeKind::Write => FileChangeKind::Write,
                    ChangeKind::Remove => FileChangeKind::Remove,
                    ChangeKind::Rename => FileChangeKind::Rename,
                    ChangeKind::Chmod => FileChangeKind::Chmod,
                    ChangeKind::Overflow => FileChangeKind::Overflow,
                };
                events
                    .send(
                        "change",
                        &FileChange {
                            name: change.name,
                            kind,
                        },
                    )
                    .await?;
            }
            Ok(Ok(_)) => return Ok(()),
            Ok(Err(error)) => return events.send("error", &error.body()).await,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_read_and_what_is_not_one_is_not() {
        let of = |text: &str| {
            let mut headers = HeaderMap::new();
            headers.insert(header::RANGE, HeaderValue::from_str(text).unwrap());
            range(&headers)
        };
        assert_eq!(of("bytes=0-9"), Some((Some(0), Some(9))));
        assert_eq!(of("bytes=5-"), Some((Some(5), None)));
        assert_eq!(of("bytes=-5"), Some((None, Some(5))));
        for text in [
            "bytes=-",
            "bytes=a-b",
            "lines=1-2",
            "bytes=1-2,4-5",
            "bytes=5",
        ] {
            assert_eq!(of(text), None, "{text}");
        }
    }
}
