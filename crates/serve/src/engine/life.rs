//! The end of cages: asked for, by their time, or by themselves.

use super::{Engine, Entry, blocking, ending_text};
use crate::api::types::{CageState, OnTimeout};
use crate::clock;
use crate::error::{ApiError, ApiResult};
use ironcage_client::{Cages, ClientError};
use ironcage_control::{Reply, Request};
use ironcage_model::CageId;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::Duration;

/// How often the times of cages are looked at.
const LOOK: Duration = Duration::from_millis(500);
/// How long a cage that has ended can still be seen.
const KEPT: u64 = 3_600_000_000;
/// How long an idempotency key holds.
const CREATIONS_KEPT: u64 = 24 * 3_600_000_000;

/// Ends a cage and waits for its end.
pub(super) fn stop(id: &CageId) -> ApiResult<()> {
    let connection = match Cages::of_user()?.connect(id) {
        Ok(connection) => connection,
        Err(ClientError::NotRunning { .. }) => return Ok(()),
        Err(error) => return Err(error.into()),
    };
    // Its daemon has nothing to finish.
    match connection
        .send(&Request::Stop { milliseconds: 0 })
        .and_then(|()| connection.await_end())
    {
        Ok(_) | Err(ClientError::Gone { .. }) => Ok(()),
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
                let id = entry.id.clone();
                blocking(move || stop(&id)).await?;
            }
            entry.let_go();
            engine.change(&entry, |record| {
                record
                    .ending
                    .get_or_insert((clock::now(), "deleted".into()))
                    .clone()
            })?;
            engine
                .store
                .remove(&entry.lock().name)
                .map_err(super::store_error)?;
            engine.take(&entry.id);
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
            for entry in self.all() {
                let record = entry.record();
                match record.ending {
                    Some((when, _)) if when + KEPT < now => {
                        if self.store.remove(&record.name).is_ok() {
                            self.take(&entry.id);
                        }
                    }
                    None if record.ends <= now
                        && !(record.paused && record.on_timeout == OnTimeout::Pause) =>
                    {
                        self.time_is_over(&entry);
                    }
                    _ => entry.daemon.drop_idle(false),
                }
            }
            rounds += 1;
            if rounds.is_multiple_of(10) {
                self.finish_creations().await;
            }
            if rounds.is_multiple_of(1000) {
                let _ = self
                    .store
                    .forget_creations(now.saturating_sub(CREATIONS_KEPT));
            }
        }
    }

    fn time_is_over(self: &Arc<Self>, entry: &Arc<Entry>) {
        let (engine, entry) = (Arc::clone(self), Arc::clone(entry));
        tokio::spawn(async move {
            // What is already being done about it goes first.
            if entry.turn.try_lock().is_err() {
                return;
            }
            // One that fails is tried again in the next round.
            let _ = match entry.on_timeout() {
                OnTimeout::Delete => engine.delete(&entry).await,
                OnTimeout::Pause => engine.pause(&entry).await,
            };
        });
    }
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
