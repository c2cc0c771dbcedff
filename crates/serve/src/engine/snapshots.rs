//! Snapshots of the files of cages, and cages that start with them (ADR 47).
//!
//! The daemon of a cage packs what the agent wrote, and the daemon of another one unpacks it: nothing
//! outside follows a path of the agent. Processes and memory are not part of it.

use super::packing::{Packing, SnapshotUse};
use super::{Engine, Entry, Order, TIMEOUT, store_error};
use crate::api::types::CreateCage;
use crate::clock;
use crate::daemon::{Link, PATIENCE, Received};
use crate::error::{ApiError, ApiResult, Code};
use crate::keys::{Key, Scope, random_hex};
use crate::store::{E2bState, SnapshotRecord};
use futures_util::future::join_all;
use ironcage_cage_daemon::protocol::{CHUNK, Kind, Request};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tokio::fs::File;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

/// Bytes that a name may have.
const LONGEST_NAME: usize = 128;
/// How long the daemon may take between two pieces of an archive.
const STALLED: Duration = Duration::from_secs(120);
/// Cages that one fork may make.
pub(crate) const MOST_FORKS: usize = 20;
const ARCHIVE: &str = "tar";
const PART: &str = "part";

/// A file that goes unless it is finished.
struct UnfinishedArchive(Option<PathBuf>);

impl Drop for UnfinishedArchive {
    fn drop(&mut self) {
        if let Some(path) = &self.0 {
            let _ = std::fs::remove_file(path);
        }
    }
}

fn failed(what: &'static str) -> impl Fn(std::io::Error) -> ApiError {
    move |error| match error.kind() {
        std::io::ErrorKind::StorageFull => ApiError::new(
            Code::NoSpace,
            format!("cannot {what}: the disk of the service is full"),
        ),
        _ => ApiError::internal(what, &error),
    }
}

pub(super) fn check_snapshot_name(name: &str) -> ApiResult<()> {
    let begins = name.starts_with(|first: char| first.is_ascii_alphanumeric());
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    match begins && name.len() <= LONGEST_NAME && name.bytes().all(allowed) {
        true => Ok(()),
        false => Err(ApiError::invalid(format!(
            "a name has at most {LONGEST_NAME} letters, digits and the characters . _ -, beginning with a letter or digit"
        ))),
    }
}

/// Where the agent of a cage writes: its home, `/tmp`, and a workspace that goes with it.
fn places(entry: &Entry) -> Vec<String> {
    let record = entry.record();
    let mut places = vec![record.home, "/tmp".to_owned()];
    if record.spec.directory.is_none() && record.e2b.building.is_none() {
        places.push(record.workspace);
    }
    places
}

impl Engine {
    fn snapshot_file(&self, id: &str, extension: &str) -> PathBuf {
        let directory = self.settings.data.join("snapshots");
        directory.join(id).with_extension(extension)
    }

    /// Removes archives that no record has: those of a service that was killed.
    pub(super) fn sweep_snapshots(&self) -> ApiResult<()> {
        let directory = self.settings.data.join("snapshots");
        let mut builder = std::fs::DirBuilder::new();
        std::os::unix::fs::DirBuilderExt::mode(builder.recursive(true), 0o700);
        let made = builder.create(&directory);
        made.map_err(failed("make the directory of snapshots"))?;
        for record in self.store.snapshots().map_err(store_error)? {
            if record.temporary {
                self.store
                    .remove_snapshot(&record.id)
                    .map_err(store_error)?;
            }
        }
        let kept = self.store.snapshots().map_err(store_error)?;
        let kept: Vec<_> = kept.into_iter().map(|record| record.id).collect();
        sweep(&directory, &kept).map_err(failed("remove a part of a snapshot"))
    }

    /// The snapshots that a key sees, the newest first.
    pub(crate) fn snapshots(&self, key: &Key) -> ApiResult<Vec<SnapshotRecord>> {
        let mut found = self.store.snapshots().map_err(store_error)?;
        found.retain(|record| {
            let listed = !record.temporary && record.template.is_none();
            listed && (key.may(Scope::Admin) || record.project == key.project)
        });
        found.sort_by_key(|record| (std::cmp::Reverse(record.created), record.id.clone()));
        Ok(found)
    }

    /// A snapshot that a key sees, by its id or its name.
    pub(crate) fn find_snapshot(&self, key: &Key, text: &str) -> ApiResult<SnapshotRecord> {
        let mut found = self.store.snapshots().map_err(store_error)?.into_iter();
        let seen = |record: &SnapshotRecord| {
            record.project == key.project || (key.may(Scope::Admin) && record.id == text)
        };
        let named = found.find(|record| {
            seen(record) && (record.id == text || record.name.as_deref() == Some(text))
        });
        named.ok_or_else(|| {
            ApiError::new(
                Code::NotFound,
                format!("snapshot `{}` was not found", text.escape_debug()),
            )
            .hint("GET /v1/snapshots lists the snapshots of the project")
        })
    }

    pub(crate) async fn delete_snapshot(&self, record: &SnapshotRecord) -> ApiResult<()> {
        self.store
            .remove_snapshot(&record.id)
            .map_err(store_error)?;
        let removed = tokio::fs::remove_file(self.snapshot_file(&record.id, ARCHIVE)).await;
        match removed {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                Err(failed("remove a snapshot")(error))
            }
            _ => Ok(()),
        }
    }

    /// Keeps what the agent of a running cage wrote. A name that another snapshot of the project has
    /// is this one's then.
    pub(crate) async fn snapshot(
        self: &Arc<Self>,
        entry: &Arc<Entry>,
        name: Option<String>,
    ) -> ApiResult<SnapshotRecord> {
        name.as_deref().map_or(Ok(()), check_snapshot_name)?;
        let (engine, entry) = (Arc::clone(self), Arc::clone(entry));
        // To its end, also when the client goes away.
        let done = tokio::spawn(async move { engine.take_snapshot(&entry, name, false).await });
        done.await
            .map_err(|error| ApiError::internal("take a snapshot", &error))?
    }

    pub(super) async fn take_snapshot(
        &self,
        entry: &Arc<Entry>,
        name: Option<String>,
        temporary: bool,
    ) -> ApiResult<SnapshotRecord> {
        let record = entry.record();
        if record.spec.directory.is_some() {
            return Err(ApiError::new(
                Code::NotOffered,
                format!("cage {} works on a directory of the host", entry.id),
            )
            .hint(
                "`ironcage change snapshot` and `ironcage change fork` keep changes of directories",
            ));
        }
        let packing = self.packings.begin(&record.project, || {
            let stored = self.store.snapshots().map_err(store_error)?.into_iter();
            let of_project = stored.filter(|snapshot| snapshot.project == record.project);
            Ok(
                of_project.fold(SnapshotUse::default(), |used, snapshot| SnapshotUse {
                    count: used.count + 1,
                    bytes: used.bytes.saturating_add(snapshot.bytes),
                }),
            )
        })?;
        let random =
            random_hex(8).map_err(|error| ApiError::internal("get random bytes", &error))?;
        let id = format!("s{random}");
        let bytes = self.pack(entry, &id, &packing).await?;
        let snapshot = SnapshotRecord {
            id,
            project: record.project,
            name,
            cage: entry.id.to_string(),
            created: clock::now(),
            bytes,
            temporary,
            spec: CreateCage {
                metadata: Default::default(),
                timeout: None,
                on_timeout: None,
                network: None,
                ..record.spec
            },
            e2b_template: record.e2b_template,
            // What its commands ran in, and at its start.
            state: Some(E2bState {
                workdir: record.e2b.workdir,
                start: record.e2b.start,
                ready: record.e2b.ready,
                ..E2bState::default()
            }),
            template: None,
        };
        self.store.put_snapshot(&snapshot).map_err(store_error)?;
        Ok(snapshot)
    }

    /// Writes the archive of a cage to a file, and returns its length.
    async fn pack(&self, entry: &Entry, id: &str, packing: &Packing<'_>) -> ApiResult<u64> {
        let write = failed("write a snapshot");
        let path = self.snapshot_file(id, PART);
        let mut options = tokio::fs::OpenOptions::new();
        let opened = options.write(true).create_new(true).mode(0o600).open(&path);
        let mut file = opened.await.map_err(&write)?;
        let mut part = UnfinishedArchive(Some(path.clone()));
        let daemon = entry.running()?;
        let paths = places(entry);
        let record = entry.record();
        // That of a build is a place that no other cage has.
        let except = record.e2b.building.map(|_| record.workspace);
        let except = except.into_iter().collect();
        let mut link = daemon.send(&Request::Pack { paths, except }).await?;
        let mut bytes = 0;
        loop {
            match link.receive(Some(STALLED)).await? {
                Received::Data(Kind::Data, data) => {
                    packing.add(data.len())?;
                    bytes += data.len() as u64;
                    file.write_all(&data).await.map_err(&write)?;
                }
                Received::Done => break,
                _ => return Err(daemon.garbled("not an archive")),
            }
        }
        file.sync_all().await.map_err(&write)?;
        tokio::fs::rename(&path, self.snapshot_file(id, ARCHIVE))
            .await
            .map_err(&write)?;
        part.0 = None;
        Ok(bytes)
    }

    /// Gives a cage the files of a snapshot. With `clear`, in place of what it has.
    pub(crate) async fn restore(
        &self,
        entry: &Arc<Entry>,
        snapshot: &SnapshotRecord,
        clear: bool,
    ) -> ApiResult<()> {
        let clear = match clear {
            true => places(entry),
            false => Vec::new(),
        };
        let path = self.snapshot_file(&snapshot.id, ARCHIVE);
        self.unpack_at(entry, &path, clear, None).await
    }

    /// Unpacks an archive of the service in a cage.
    pub(super) async fn unpack_at(
        &self,
        entry: &Entry,
        path: &Path,
        clear: Vec<String>,
        into: Option<String>,
    ) -> ApiResult<()> {
        let daemon = entry.running()?;
        let read = failed("read an archive");
        let mut file = File::open(path).await.map_err(&read)?;
        let mut link: Link = daemon.send(&Request::Unpack { clear, into }).await?;
        let mut buffer = vec![0; CHUNK];
        loop {
            let count = file.read(&mut buffer).await.map_err(&read)?;
            if count == 0 {
                break;
            }
            link.write_data(buffer.get(..count).unwrap_or_default())
                .await?;
        }
        link.write(Kind::End, &[]).await?;
        match link.receive(Some(STALLED.max(PATIENCE))).await? {
            Received::Done => Ok(()),
            _ => Err(daemon.garbled("more than an end")),
        }
    }

    /// What a cage is made of that starts with a snapshot: what is not named is as it was.
    pub(super) fn start_from(
        &self,
        key: &Key,
        spec: &mut CreateCage,
        e2b: &mut E2bState,
    ) -> ApiResult<Option<String>> {
        let Some(text) = &spec.snapshot else {
            return Ok(None);
        };
        let snapshot = match self.store.snapshot(text).map_err(store_error)? {
            // The one of a fork, which is not listed.
            Some(found) if found.project == key.project => found,
            _ => self.find_snapshot(key, text)?,
        };
        let base = snapshot.spec;
        spec.image = base.image;
        spec.template = base.template;
        spec.profile = spec.profile.take().or(base.profile);
        spec.policy = spec.policy.take().or(base.policy);
        spec.limits = spec.limits.take().or(base.limits);
        for (name, value) in base.env {
            spec.env.entry(name).or_insert(value);
        }
        if let Some(state) = snapshot.state {
            (e2b.workdir, e2b.start, e2b.ready) = (state.workdir, state.start, state.ready);
        }
        spec.snapshot = Some(snapshot.id.clone());
        Ok(Some(snapshot.id))
    }

    /// Gives a new cage the files that it is to start with. One that does not get them is ended.
    pub(super) async fn finish_restore(self: &Arc<Self>, entry: &Arc<Entry>) -> ApiResult<()> {
        let turn = entry.turn.lock().await;
        let Some(id) = entry.record().restoring else {
            return Ok(());
        };
        let done = match self.store.snapshot(&id).map_err(store_error)? {
            Some(snapshot) => self.restore(entry, &snapshot, false).await,
            None => Err(ApiError::new(
                Code::NotFound,
                format!("snapshot `{id}` was deleted meanwhile"),
            )),
        };
        let done = match done {
            Ok(()) => self.change(entry, |record| record.restoring = None),
            Err(error) => Err(error),
        };
        let record = entry.record();
        let done = match done {
            // The steps of a build follow first.
            Ok(()) if record.e2b.building.is_none() => {
                super::templates::start_command(entry, &record.e2b, &record.spec.env).await
            }
            done => done,
        };
        drop(turn);
        if done.is_err() {
            self.delete(entry).await?;
        }
        done
    }

    /// Makes cages with the files of a running one. Each is made, or fails, by itself.
    pub(crate) async fn fork(
        self: &Arc<Self>,
        key: &Key,
        entry: &Arc<Entry>,
        count: usize,
        timeout: Option<u32>,
    ) -> ApiResult<Vec<ApiResult<Arc<Entry>>>> {
        if !(1..=MOST_FORKS).contains(&count) {
            return Err(ApiError::invalid(format!(
                "the count is {count}; expected 1 to {MOST_FORKS}"
            )));
        }
        let snapshot = self.take_snapshot(entry, None, true).await?;
        let record = entry.record();
        let order = Order {
            spec: CreateCage {
                snapshot: Some(snapshot.id.clone()),
                image: None,
                template: None,
                timeout: Some(timeout.unwrap_or(TIMEOUT)),
                ..record.spec
            },
            e2b_template: record.e2b_template,
            e2b: E2bState {
                rules_pending: !record.e2b.allow_out.is_empty() || !record.e2b.deny_out.is_empty(),
                ..record.e2b
            },
            idempotency_key: None,
        };
        let forks = (0..count).map(|_| self.create(key, order.clone()));
        let forks = join_all(forks).await;
        self.delete_snapshot(&snapshot).await?;
        Ok(forks)
    }
}

/// Removes every file that is not the archive of one of these ids.
fn sweep(directory: &Path, ids: &[String]) -> std::io::Result<()> {
    for entry in std::fs::read_dir(directory)? {
        let path = entry?.path();
        let name = path.file_stem().and_then(|name| name.to_str());
        let whole = path.extension().is_some_and(|end| end == ARCHIVE);
        if !whole || !ids.iter().any(|id| Some(&**id) == name) {
            std::fs::remove_file(&path)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_short_and_lead_nowhere() {
        for good in ["a", "my-snapshot", "v1.2_x"] {
            check_snapshot_name(good).unwrap();
        }
        for bad in ["", ".", "..", "a/b", "-a", "a:b", &"a".repeat(129)] {
            assert!(check_snapshot_name(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn what_a_killed_service_left_is_removed_and_what_is_kept_stays() {
        let directory = tempfile::tempdir().unwrap();
        for name in ["skept.tar", "slost.tar", "skept.part"] {
            std::fs::write(directory.path().join(name), "x").unwrap();
        }
        sweep(directory.path(), &["skept".to_owned()]).unwrap();
        let left = std::fs::read_dir(directory.path()).unwrap();
        let left: Vec<_> = left.flatten().map(|entry| entry.file_name()).collect();
        assert_eq!(left, ["skept.tar"]);
    }
}
