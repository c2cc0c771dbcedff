//! `filesystem.Filesystem` of envd.

use super::Sandbox;
use super::rpc::{self, Gone, JsonReply, Messages, RpcError, RpcResult};
use crate::clock;
use crate::daemon::{Daemon, Link, PATIENCE, Received};
use crate::error::{ApiError, ApiResult};
use crate::keys::random_hex;
use axum::body::Bytes;
use axum::http::HeaderMap;
use axum::response::Response;
use ironcage_cage_daemon::protocol::{Change, ChangeKind, Entry, EntryKind, Reply, Request};
use serde::Deserialize;
use serde_json::{Value, json};
use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// Watchers of one cage, and events that wait for one.
const MOST_WATCHERS: usize = 32;
const MOST_EVENTS: usize = 1_000;
/// Bytes of a name: longer ones are none that the kernel has.
const LONGEST_NAME: usize = 4096;

/// An entry as envd describes it.
pub(super) fn shown(entry: &Entry) -> Value {
    let (kind, letter) = match entry.kind {
        EntryKind::File => ("FILE_TYPE_FILE", '-'),
        EntryKind::Directory => ("FILE_TYPE_DIRECTORY", 'd'),
        EntryKind::Symlink => ("FILE_TYPE_SYMLINK", 'L'),
        EntryKind::Other => ("FILE_TYPE_UNSPECIFIED", '?'),
    };
    let mut permissions = String::from(letter);
    for shift in [6, 3, 0] {
        for (bit, letter) in [(4, 'r'), (2, 'w'), (1, 'x')] {
            permissions.push(match entry.mode >> shift & bit {
                0 => '-',
                _ => letter,
            });
        }
    }
    let mut shown = json!({
        "name": entry.name,
        "type": kind,
        "path": entry.path,
        "size": entry.size.to_string(),
        "mode": entry.mode & 0o777,
        "permissions": permissions,
        "owner": entry.owner,
        "group": entry.group,
        "modifiedTime": clock::rfc3339_signed(entry.modified),
    });
    if let (Some(target), Some(shown)) = (&entry.target, shown.as_object_mut()) {
        shown.insert("symlinkTarget".into(), target.as_str().into());
    }
    if let (false, Some(shown)) = (entry.metadata.is_empty(), shown.as_object_mut()) {
        shown.insert("metadata".into(), json!(entry.metadata));
    }
    shown
}

#[derive(Debug, Deserialize)]
struct PathOnly {
    path: String,
}

async fn one(daemon: &Arc<Daemon>, request: &Request) -> JsonReply {
    match daemon.ask_one(request).await? {
        Reply::Entry { entry } => Ok(axum::Json(json!({ "entry": shown(&entry) }))),
        _ => Err(daemon.garbled("not a file").into()),
    }
}

pub(super) async fn stat(Sandbox(entry): Sandbox, body: Bytes) -> JsonReply {
    let wanted: PathOnly = rpc::unary(&body)?;
    let path = rpc::from_home(&wanted.path);
    one(entry.running()?, &Request::Stat { path }).await
}

pub(super) async fn make_dir(Sandbox(entry): Sandbox, body: Bytes) -> JsonReply {
    let wanted: PathOnly = rpc::unary(&body)?;
    let path = rpc::from_home(&wanted.path);
    one(entry.running()?, &Request::MakeDirectory { path }).await
}

#[derive(Debug, Deserialize)]
struct Rename {
    source: String,
    destination: String,
}

pub(super) async fn rename(Sandbox(entry): Sandbox, body: Bytes) -> JsonReply {
    let wanted: Rename = rpc::unary(&body)?;
    let (from, to) = (
        rpc::from_home(&wanted.source),
        rpc::from_home(&wanted.destination),
    );
    one(entry.running()?, &Request::Move { from, to }).await
}

#[derive(Debug, Deserialize)]
struct ListDir {
    path: String,
    #[serde(default)]
    depth: u32,
}

pub(super) async fn list_dir(Sandbox(entry): Sandbox, body: Bytes) -> JsonReply {
    let wanted: ListDir = rpc::unary(&body)?;
    let request = Request::List {
        path: rpc::from_home(&wanted.path),
        depth: wanted.depth.max(1),
    };
    let mut entries = Vec::new();
    for reply in entry.running()?.ask(&request).await? {
        if let Reply::Entries { entries: found } = reply {
            entries.extend(found.iter().map(shown));
        }
    }
    Ok(axum::Json(json!({ "entries": entries })))
}

pub(super) async fn remove(Sandbox(entry): Sandbox, body: Bytes) -> JsonReply {
    let wanted: PathOnly = rpc::unary(&body)?;
    let path = rpc::from_home(&wanted.path);
    let request = Request::Remove {
        path,
        recursive: true,
    };
    match entry.running()?.ask(&request).await {
        // What is not there is as it was to be.
        Err(error) if error.code == crate::error::Code::NotFound => {}
        other => drop(other?),
    }
    Ok(axum::Json(json!({})))
}

#[derive(Debug, Deserialize)]
struct Watch {
    path: String,
    #[serde(default)]
    recursive: bool,
    #[serde(default, rename = "includeEntry")]
    include_entry: bool,
}

/// What describes the entries of events, where that is wanted.
struct Describer {
    daemon: Arc<Daemon>,
    directory: String,
}

impl Describer {
    fn of(daemon: &Arc<Daemon>, wanted: &Watch) -> Option<Describer> {
        wanted.include_entry.then(|| Describer {
            daemon: Arc::clone(daemon),
            directory: rpc::from_home(&wanted.path),
        })
    }

    /// Adds the entry to an event, if it is there still.
    async fn describe(&self, change: &Change, event: &mut Value) {
        if matches!(change.kind, ChangeKind::Remove) {
            return;
        }
        let path = format!("{}/{}", self.directory, change.name);
        if let Ok(Reply::Entry { entry }) = self.daemon.ask_one(&Request::Stat { path }).await
            && let Some(event) = event.as_object_mut()
        {
            event.insert("entry".into(), shown(&entry));
        }
    }
}

/// An event as it is sent.
async fn described(change: &Change, describer: Option<&Describer>) -> Option<Value> {
    let mut event = event(change)?;
    if let Some(describer) = describer {
        describer.describe(change, &mut event).await;
    }
    Some(event)
}

async fn watch(daemon: &Arc<Daemon>, wanted: &Watch) -> ApiResult<Link> {
    let request = Request::Watch {
        path: rpc::from_home(&wanted.path),
        recursive: wanted.recursive,
    };
    let mut link = daemon.send(&request).await?;
    match link.receive(Some(PATIENCE)).await? {
        Received::Reply(Reply::Watching) => Ok(link),
        _ => Err(daemon.garbled("not a watch")),
    }
}

fn event(change: &Change) -> Option<Value> {
    if change.name.len() > LONGEST_NAME {
        return None;
    }
    let kind = match change.kind {
        ChangeKind::Create => "EVENT_TYPE_CREATE",
        ChangeKind::Write => "EVENT_TYPE_WRITE",
        ChangeKind::Remove => "EVENT_TYPE_REMOVE",
        ChangeKind::Rename => "EVENT_TYPE_RENAME",
        ChangeKind::Chmod => "EVENT_TYPE_CHMOD",
        // There is no word for it there.
        ChangeKind::Overflow => return None,
    };
    Some(json!({ "name": change.name, "type": kind }))
}

pub(super) async fn watch_dir(
    Sandbox(entry): Sandbox,
    headers: HeaderMap,
    body: Bytes,
) -> RpcResult<Response> {
    let wanted: Watch = rpc::enveloped(&body)?;
    let deadline = rpc::deadline(&headers)?;
    let link = watch(entry.running()?, &wanted).await?;
    let describer = Describer::of(entry.running()?, &wanted);
    let (messages, response) = Messages::channel();
    let keepalive = rpc::keepalive(&headers);
    tokio::spawn(async move {
        tokio::select! {
            _ = pass(link, &messages, keepalive, describer.as_ref()) => {}
            () = messages.closed() => {}
            () = rpc::passed(deadline) => {
                // A client that is gone needs no answer.
                let _ = messages.end(Some(rpc::late())).await;
            }
        }
    });
    Ok(response)
}

async fn pass(
    mut link: Link,
    messages: &Messages,
    keepalive: Duration,
    describer: Option<&Describer>,
) -> Result<(), Gone> {
    messages.send(&json!({ "start": {} })).await?;
    loop {
        match tokio::time::timeout(keepalive, link.receive(None)).await {
            Err(_) => messages.send(&json!({ "keepalive": {} })).await?,
            Ok(Ok(Received::Reply(Reply::Changed { change }))) => {
                if let Some(event) = described(&change, describer).await {
                    messages.send(&json!({ "filesystem": event })).await?;
                }
            }
            Ok(Ok(_)) => return messages.end(None).await,
            Ok(Err(error)) => return messages.end(Some(error.into())).await,
        }
    }
}

/// Watchers whose events are fetched. They end with the service or the cage.
#[derive(Debug, Default)]
pub(crate) struct Watchers(Mutex<HashMap<String, Watcher>>);

#[derive(Debug)]
struct Watcher {
    events: Arc<Mutex<VecDeque<Value>>>,
    task: tokio::task::JoinHandle<()>,
}

impl Drop for Watcher {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Watchers {
    fn add(&self, mut link: Link, describer: Option<Describer>) -> RpcResult<String> {
        let mut watchers = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if watchers.len() >= MOST_WATCHERS {
            return Err(RpcError::new(
                "resource_exhausted",
                format!("the sandbox has {MOST_WATCHERS} watchers already"),
            ));
        }
        let id = random_hex(12).map_err(|error| ApiError::internal("get random bytes", &error))?;
        let events = Arc::new(Mutex::new(VecDeque::new()));
        let queue = Arc::clone(&events);
        let task = tokio::spawn(async move {
            while let Ok(Received::Reply(Reply::Changed { change })) = link.receive(None).await {
                let event = described(&change, describer.as_ref()).await;
                let mut queue = queue.lock().unwrap_or_else(PoisonError::into_inner);
                // Of what nobody fetches, the oldest goes.
                if queue.len() >= MOST_EVENTS {
                    queue.pop_front();
                }
                queue.extend(event);
            }
        });
        watchers.insert(id.clone(), Watcher { events, task });
        Ok(id)
    }

    fn fetch(&self, id: &str) -> RpcResult<Vec<Value>> {
        let watchers = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let watcher = watchers.get(id).ok_or_else(|| missing(id))?;
        let mut events = watcher
            .events
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        Ok(events.drain(..).collect())
    }

    fn remove(&self, id: &str) -> RpcResult<()> {
        let mut watchers = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        watchers.remove(id).map(drop).ok_or_else(|| missing(id))
    }

    /// Ends all watchers, as the cage does.
    pub(crate) fn clear(&self) {
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clear();
    }
}

fn missing(id: &str) -> RpcError {
    RpcError::new(
        "not_found",
        format!("watcher with id {} not found", id.escape_debug()),
    )
}

pub(super) async fn create_watcher(Sandbox(entry): Sandbox, body: Bytes) -> JsonReply {
    let wanted: Watch = rpc::unary(&body)?;
    let link = watch(entry.running()?, &wanted).await?;
    let describer = Describer::of(entry.running()?, &wanted);
    let id = entry.watchers.add(link, describer)?;
    Ok(axum::Json(json!({ "watcherId": id })))
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct WatcherId {
    watcher_id: String,
}

pub(super) async fn watcher_events(Sandbox(entry): Sandbox, body: Bytes) -> JsonReply {
    let wanted: WatcherId = rpc::unary(&body)?;
    let events = entry.watchers.fetch(&wanted.watcher_id)?;
    Ok(axum::Json(json!({ "events": events })))
}

pub(super) async fn remove_watcher(Sandbox(entry): Sandbox, body: Bytes) -> JsonReply {
    let wanted: WatcherId = rpc::unary(&body)?;
    entry.watchers.remove(&wanted.watcher_id)?;
    Ok(axum::Json(json!({})))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_that_no_file_can_have_is_no_event() {
        let of = |length: usize| {
            event(&Change {
                name: "n".repeat(length),
                kind: ChangeKind::Create,
            })
        };
        assert!(of(LONGEST_NAME).is_some());
        assert!(of(LONGEST_NAME + 1).is_none());
    }
}
