//! The table after a restart: what the store remembers, and what of it still runs.

use super::{Engine, blocking, life};
use crate::api::types::CageState;
use crate::clock;
use crate::daemon::Daemon;
use crate::error::ApiResult;
use crate::store::CageRecord;
use ironcage_client::{Cages, ClientError};
use ironcage_control::{Reply, Request, State};
use ironcage_model::CageId;
use std::sync::{Arc, PoisonError};

/// How long a start that nobody waits for may still take.
const START: u64 = 180_000_000;

impl Engine {
    /// Finds the cages of the store again.
    pub(crate) async fn recover(self: &Arc<Self>) -> ApiResult<()> {
        self.load_usage()?;
        for record in self.store.cages().map_err(super::store_error)? {
            if let Some(id) = record.id.as_ref().and_then(|id| id.parse::<CageId>().ok()) {
                self.find_again(record, id).await?;
            }
        }
        self.finish_creations().await;
        self.close_lost_usage()?;
        self.sweep_snapshots()?;
        self.sweep_webhooks()?;
        self.finish_warm().await;
        Ok(())
    }

    async fn find_again(self: &Arc<Self>, mut record: CageRecord, id: CageId) -> ApiResult<()> {
        let daemon = Daemon::new(id.clone(), self.relay(&record.name));
        let cage = id.clone();
        let described = blocking(move || describe(&cage)).await;
        // It may have been paused or resumed in the moment of the kill, or by hand.
        if let Ok(Some(frozen)) = described {
            record.paused = frozen;
        }
        let entry = self.entry(record, id, daemon);
        self.insert(&entry);
        if entry.state() != CageState::Ended {
            self.begin_usage(&entry);
        }
        self.watch(&entry);
        Ok(())
    }

    /// Cages whose creation a killed service, or a start that took too long, left unfinished: those
    /// with an idempotency key are taken, as the client asks again; others are ended, as nobody knows
    /// them.
    pub(super) async fn finish_creations(self: &Arc<Self>) {
        let Ok(records) = self.store.cages() else {
            return;
        };
        for mut record in records.into_iter().filter(|record| record.id.is_none()) {
            let in_hand = self
                .starting
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .contains(&record.name);
            // What this service had in hand when it was read may be finished by now.
            let unfinished = self.store.cage(&record.name);
            if in_hand || !matches!(unfinished, Ok(Some(now)) if now.id.is_none()) {
                continue;
            }
            let name = record.name.clone();
            let found = blocking(move || match Cages::of_user()?.find(&name) {
                Ok(id) => Ok(Some(id)),
                Err(ClientError::NotFound { .. }) => Ok(None),
                Err(error) => Err(error.into()),
            });
            match found.await {
                Ok(Some(id)) => {
                    let wanted = self.store.creates(&record.name).unwrap_or(true);
                    let joined = match wanted {
                        true => self.join(&mut record, &id).await.is_ok(),
                        false => false,
                    };
                    if !joined {
                        let stopped = blocking(move || life::stop(&id)).await;
                        // One that is in the log and not running may be just starting.
                        let old = record.created + START < clock::now();
                        if stopped.is_ok_and(|ran| ran || old) {
                            let _ = self.store.remove(&record.name);
                        }
                    }
                }
                Ok(None) if record.created + START < clock::now() => {
                    let _ = self.store.remove(&record.name);
                }
                Ok(None) | Err(_) => {}
            }
        }
    }
}

/// Whether a running cage is paused; `None` where it does not run.
pub(super) fn describe(id: &CageId) -> ApiResult<Option<bool>> {
    let connection = match Cages::of_user()?.connect(id) {
        Ok(connection) => connection,
        Err(ClientError::NotRunning { .. }) => return Ok(None),
        Err(error) => return Err(error.into()),
    };
    match connection.ask(&Request::Describe)? {
        Reply::Description(description) => Ok(Some(description.state == State::Paused)),
        other => Err(ClientError::Answer(format!("{other:?}")).into()),
    }
}
