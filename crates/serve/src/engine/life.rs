//! The end of cages: asked for, by their time, or by themselves.

use super::recover::describe;
use super::{Engine, Entry, blocking, ending_text};
use crate::api::types::{CageState, OnTimeout};
use crate::clock;
use crate::error::{ApiError, ApiResult};
use crate::event_log::Kind;
use ironcage_client::{Cages, ClientError};
use ironcage_control::{Reply, Request};
use ironcage_model::CageId;
use std::collections::BTreeMap;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::Duration;

/// How often the times of cages are looked at.
const LOOK: Duration = Duration::from_millis(500);
/// How long a cage that has ended can still be seen.
const KEPT: u64 = 3_600_000_000;
/// How many of one project.
const MOST_ENDED: usize = 256;
/// How long an idempotency key holds.
const CREATIONS_KEPT: u64 = 24 * 3_600_000_000;

/// Ends a cage and waits for its end. Whether it ran: one that does not may be about to.
pub(super) fn stop(id: &CageId) -> ApiResult<bool> {
    let connection = match Cages::of_user()?.connect(id) {
        Ok(connection) => connection,
        Err(ClientError::NotRunning { .. }) => return Ok(false),
        Err(error) => return Err(error.into()),
    };
    // Its daemon has nothing to finish.
    match connection
        .send(&Request::Stop { milliseconds: 0 })
        .and_then(|()| connection.await_end())
    {
        Ok(_) | Err(ClientError::Gone { .. }) => Ok(true),
        Err(error) => Err(error.into()),
    }
}

impl Engine {
    /// Ends a cage and forgets it.
    pub(crate) async fn delete(self: &Arc<Self>, entry: &Arc<Entry>) -> ApiResult<()> {
        let (engine, entry) = (Arc::clone(self), Arc::clone(entry));
        let deleted = tokio::spawn(async move {
            let _turn = entry.turn.lock().await;
            if entry.state() != CageState::Ended {
                engine.sample_usage(&entry).await;
                let id = entry.id.clone();
                blocking(move || stop(&id)).await?;
            }
            engine.finish_usage(&entry).await;
            entry.let_go();
            engine.change(&entry, |record| {
                record
                    .ending
                    .get_or_insert((clock::now(), "deleted".into()))
                    .clone()
            })?;
            let record = entry.record();
            let event = engine.event(&record, &entry.id, Kind::Deleted);
            engine
                .store
                .remove_telling(&record.name, &event.deliveries)
                .map_err(super::store_error)?;
            engine.take(&entry.id);
            engine.tell(event);
            Ok(())
        });
        deleted
            .await
            .map_err(|error| ApiError::internal("delete a cage", &error))?
    }

    /// Notices the end of a cage.
    pub(super) fn watch(self: &Arc<Self>, entry: &Arc<Entry>) {
        let (engine, entry) = (Arc::clone(self), Arc::clone(entry));
        tokio::spawn(async move {
            loop {
                match await_end(&entry.id).await {
                    Ok(true) => break,
                    // A supervisor that is stopped does not answer. The cage is there all the same.
                    Ok(false) | Err(_) => tokio::time::sleep(Duration::from_secs(1)).await,
                }
            }
            engine.ended(&entry).await;
        });
    }

    pub(super) async fn ended(&self, entry: &Entry) {
        if entry.state() == CageState::Ended {
            return;
        }
        let id = entry.id.clone();
        let how = blocking(move || Ok(ending_text(&Cages::of_user()?, &id))).await;
        let how = how.unwrap_or_else(|error| error.message);
        self.finish_usage(entry).await;
        entry.let_go();
        // Without a store the end is noticed again after a restart.
        let _ = self.change(entry, |record| {
            record.ending.get_or_insert((clock::now(), how));
        });
    }

    /// Ends or pauses cages whose time is over, and forgets what is long over. Does not return.
    pub(crate) async fn keep_time(self: Arc<Self>) {
        let mut rounds = 0_u64;
        loop {
            tokio::time::sleep(LOOK).await;
            let now = clock::now();
            let mut latest = BTreeMap::new();
            for entry in self.all() {
                let record = entry.record();
                match record.ending {
                    Some((when, _)) if when + KEPT < now => self.forget(&entry),
                    None if record.ends <= now => {
                        let last = self.is_at_last_end(&entry, &mut latest);
                        if last || !(record.paused && record.on_timeout == OnTimeout::Pause) {
                            self.time_is_over(&entry, last);
                        } else {
                            entry.daemon.drop_idle(false);
                        }
                    }
                    _ => entry.daemon.drop_idle(false),
                }
            }
            for entry in beyond(self.all()) {
                self.forget(&entry);
            }
            rounds += 1;
            if rounds.is_multiple_of(10) {
                self.finish_creations().await;
                self.finish_warm().await;
                for entry in self.all() {
                    if entry.state() == CageState::Paused {
                        self.look_at_paused(entry);
                    }
                }
            }
            if rounds.is_multiple_of(1000) {
                let _ = self
                    .store
                    .forget_creations(now.saturating_sub(CREATIONS_KEPT));
            }
        }
    }

    /// Forgets a cage that has ended.
    fn forget(&self, entry: &Entry) {
        let name = entry.record().name;
        // One that fails is tried again in the next round.
        if self.store.remove(&name).is_ok() {
            self.take(&entry.id);
        }
    }

    /// A cage that was resumed by hand is used again.
    fn look_at_paused(self: &Arc<Self>, entry: Arc<Entry>) {
        let engine = Arc::clone(self);
        tokio::spawn(async move {
            let Ok(_turn) = entry.turn.try_lock() else {
                return;
            };
            let id = entry.id.clone();
            let described = blocking(move || describe(&id)).await;
            if matches!(described, Ok(Some(false))) && entry.state() == CageState::Paused {
                // One that fails is tried again in a later round.
                let _ = engine.change(&entry, |record| record.paused = false);
            }
        });
    }

    /// Whether a cage has had all the time that its project gives: it ends then, paused or not. A
    /// project that cannot be read is looked at again in the next round.
    fn is_at_last_end(&self, entry: &Entry, latest: &mut BTreeMap<String, Option<u32>>) -> bool {
        let record = entry.record();
        let timeout = latest.entry(record.project.clone()).or_insert_with(|| {
            let project = self.projects.of_request(&record.project);
            project.ok().and_then(|project| project.ceiling.timeout)
        });
        timeout.is_some_and(|most| last_end(record.created, most) <= clock::now())
    }

    /// Ends a cage, or pauses it where it may live on.
    fn time_is_over(self: &Arc<Self>, entry: &Arc<Entry>, last: bool) {
        let (engine, entry) = (Arc::clone(self), Arc::clone(entry));
        tokio::spawn(async move {
            // What is already being done about it goes first.
            if entry.turn.try_lock().is_err() {
                return;
            }
            // One that fails is tried again in the next round.
            let _ = match entry.on_timeout() {
                OnTimeout::Pause if !last => engine.pause(&entry).await,
                OnTimeout::Delete | OnTimeout::Pause => engine.delete(&entry).await,
            };
        });
    }
}

/// When a cage of this age has had this number of seconds, whatever moved its end meanwhile.
pub(super) fn last_end(created: u64, seconds: u32) -> u64 {
    created.saturating_add(u64::from(seconds) * 1_000_000)
}

/// Ended cages that are more than a project keeps: the oldest.
fn beyond(entries: Vec<Arc<Entry>>) -> Vec<Arc<Entry>> {
    let mut ended: BTreeMap<String, Vec<(u64, Arc<Entry>)>> = BTreeMap::new();
    for entry in entries {
        let (project, ending) = {
            let record = entry.lock();
            let when = record.ending.as_ref().map(|(when, _)| *when);
            (record.project.clone(), when)
        };
        if let Some(when) = ending {
            ended.entry(project).or_default().push((when, entry));
        }
    }
    let oldest = ended.into_values().flat_map(|mut of_project| {
        of_project.sort_by_key(|(when, _)| std::cmp::Reverse(*when));
        of_project.into_iter().skip(MOST_ENDED)
    });
    oldest.map(|(_, entry)| entry).collect()
}

/// Waits for the end of a cage. `false` where its supervisor did not answer.
async fn await_end(id: &CageId) -> ApiResult<bool> {
    let cage = id.clone();
    let connected = blocking(move || match Cages::of_user()?.connect(&cage) {
        Ok(connection) => {
            connection.send(&Request::Wait)?;
            Ok(Some(connection))
        }
        Err(ClientError::NotRunning { .. }) => Ok(None),
        Err(error) => Err(error.into()),
    });
    let Some(connection) = connected.await? else {
        return Ok(true);
    };
    let wrong = |error: std::io::Error| ApiError::internal("wait for a cage", &error);
    // Only waited for: what it says is read by the connection itself.
    let socket = UnixStream::from(connection.as_fd().try_clone_to_owned().map_err(wrong)?);
    socket.set_nonblocking(true).map_err(wrong)?;
    let ready = tokio::net::UnixStream::from_std(socket).map_err(wrong)?;
    ready.readable().await.map_err(wrong)?;
    blocking(move || match connection.await_end() {
        Ok(_) | Err(ClientError::Gone { .. }) => Ok(true),
        Err(error) => Err(error.into()),
    })
    .await
}

impl Engine {
    /// Stops every process of a cage until it is resumed. They go on where they were.
    pub(crate) async fn pause(self: &Arc<Self>, entry: &Arc<Entry>) -> ApiResult<()> {
        self.set_paused(entry, true).await
    }

    pub(crate) async fn resume(self: &Arc<Self>, entry: &Arc<Entry>) -> ApiResult<()> {
        self.set_paused(entry, false).await
    }

    async fn set_paused(self: &Arc<Self>, entry: &Arc<Entry>, paused: bool) -> ApiResult<()> {
        let _turn = entry.turn.lock().await;
        if entry.state() == CageState::Ended {
            entry.running()?;
        }
        if (entry.state() == CageState::Paused) == paused {
            return Ok(());
        }
        let id = entry.id.clone();
        blocking(move || {
            let connection = Cages::of_user()?.connect(&id)?;
            let request = match paused {
                true => Request::Pause,
                false => Request::Unpause,
            };
            match connection.ask(&request)? {
                Reply::Paused | Reply::Resumed => Ok(()),
                other => Err(ClientError::Answer(format!("{other:?}")).into()),
            }
        })
        .await?;
        self.change(entry, |record| record.paused = paused)
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::api::types::CreateCage;
    use crate::daemon::Daemon;
    use crate::store::CageRecord;
    use std::sync::Mutex;

    /// A cage that runs, of no project.
    pub(crate) fn record() -> CageRecord {
        CageRecord {
            name: "serve-0".to_owned(),
            id: None,
            project: String::new(),
            spec: CreateCage::default(),
            created: 0,
            ends: 0,
            on_timeout: OnTimeout::Delete,
            paused: false,
            ending: None,
            home: String::new(),
            workspace: String::new(),
            e2b_template: None,
            token: String::new(),
            change: None,
            key: String::new(),
            memory: None,
            template_policy: false,
            e2b: crate::store::E2bState::default(),
            restoring: None,
        }
    }

    fn entry(project: &str, ended: Option<u64>) -> Arc<Entry> {
        let id: CageId = "c7h2k9m4q1xz8".parse().unwrap();
        let record = CageRecord {
            id: Some(id.to_string()),
            project: project.to_owned(),
            ending: ended.map(|when| (when, "stopped".to_owned())),
            ..record()
        };
        Arc::new(Entry {
            daemon: Daemon::new(id.clone(), Vec::new()),
            id,
            record: Mutex::new(record),
            watchers: crate::e2b::Watchers::default(),
            contexts: tokio::sync::Mutex::new(()),
            rules: tokio::sync::Mutex::new(()),
            changed: tokio::sync::Notify::new(),
            turn: tokio::sync::Mutex::new(()),
        })
    }

    #[test]
    fn a_project_keeps_its_latest_ended_cages_and_all_that_run() {
        let most = MOST_ENDED as u64;
        let mut entries: Vec<_> = (0..most).map(|when| entry("a", Some(when + 1))).collect();
        entries.extend((0..most).map(|_| entry("a", None)));
        entries.push(entry("b", Some(0)));
        assert!(beyond(entries.clone()).is_empty());
        entries.push(entry("a", Some(0)));
        let gone = beyond(entries);
        let times: Vec<_> = gone.iter().map(|entry| entry.record().ending).collect();
        assert_eq!(times, [Some((0, "stopped".to_owned()))]);
    }
}
