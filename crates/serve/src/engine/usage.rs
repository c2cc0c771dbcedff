//! Looks at what cages use, and keeps it when they have ended (ADR 78).

use super::{Engine, Entry, blocking, store_error};
use crate::api::types::CageState;
use crate::error::ApiResult;
use crate::store::UsageSample;
use crate::usage::up;
use futures_util::StreamExt;
use ironcage_client::{Cages, ClientError};
use ironcage_control::{Reply, Request};
use std::sync::Arc;
use std::time::Duration;

/// How often cages are looked at, and how much longer it is for each of them.
const LOOK: Duration = Duration::from_secs(5);
const FOR_EACH: Duration = Duration::from_millis(5);
/// Cages that are looked at at the same time.
const AT_ONCE: usize = 8;
/// Records of ended cages that a project keeps.
const MOST_RECORDS: usize = 10_000;
/// Looks between two times that old records become a sum.
const FOLD: u32 = 200;

impl Engine {
    pub(super) fn begin_usage(&self, entry: &Entry) {
        let record = entry.lock();
        let id = entry.id.as_str();
        self.usage.begin(&record.project, id, record.created, up());
    }

    /// What cages had used when the service ended.
    pub(super) fn load_usage(&self) -> ApiResult<()> {
        self.usage
            .load(self.store.open_usage().map_err(store_error)?);
        Ok(())
    }

    /// Ends with cages that nobody knows any more: the service was killed while they ended.
    pub(super) fn close_lost_usage(&self) -> ApiResult<()> {
        for record in self.usage.all() {
            let known = self.any_cage(&record.cage);
            if known.is_none_or(|entry| entry.state() == CageState::Ended) {
                // No more is known of it than at the last look.
                let ended = self.usage.end(&record.cage, record.last.at);
                let ended: Vec<_> = ended.into_iter().collect();
                self.store.put_usage(&ended).map_err(store_error)?;
            }
        }
        Ok(())
    }

    /// Looks at a cage. One that does not answer is looked at again later.
    pub(super) async fn sample_usage(&self, entry: &Arc<Entry>) {
        let (id, traffics) = (entry.id.clone(), self.traffics.clone());
        let looked = blocking(move || {
            let cages = Cages::of_user()?;
            let log = ironcage_audit::log_path(cages.audit(), &id);
            let sums = traffics.of(id.as_str(), &log);
            match cages.connect(&id)?.ask(&Request::Stats)? {
                Reply::Stats(stats) => Ok((stats, sums)),
                other => Err(ClientError::Answer(format!("{other:?}")).into()),
            }
        });
        if let Ok((stats, sums)) = looked.await {
            let sample = UsageSample {
                at: up(),
                cpu_microseconds: stats.cpu_microseconds.unwrap_or(0),
                memory: stats.memory.unwrap_or(0),
            };
            self.usage.sampled(entry.id.as_str(), sample);
            self.usage.sent(entry.id.as_str(), sums);
        }
    }

    /// Keeps what a cage used that has ended.
    pub(super) async fn finish_usage(&self, entry: &Entry) {
        let (id, traffics) = (entry.id.clone(), self.traffics.clone());
        let sums = blocking(move || {
            let log = ironcage_audit::log_path(Cages::of_user()?.audit(), &id);
            Ok(traffics.of(id.as_str(), &log))
        });
        if let Ok(sums) = sums.await {
            self.usage.sent(entry.id.as_str(), sums);
        }
        let Some(record) = self.usage.end(entry.id.as_str(), up()) else {
            return;
        };
        if let Err(error) = self.store.put_usage(&[record]) {
            anstream::eprintln!(
                "ironcage serve: what cage {} used is not kept: {}",
                entry.id,
                ironcage_model::in_full(&error)
            );
        }
    }

    /// Looks at what cages use. Does not return.
    pub(crate) async fn keep_usage(self: Arc<Self>) {
        let mut looks = 0_u32;
        loop {
            let running = || {
                let mut all = self.all();
                all.retain(|entry| entry.state() != CageState::Ended);
                all
            };
            let count = u32::try_from(running().len()).unwrap_or(u32::MAX);
            tokio::time::sleep(LOOK.max(FOR_EACH.saturating_mul(count))).await;
            let cages = running();
            if !cages.is_empty() {
                futures_util::stream::iter(cages)
                    .for_each_concurrent(AT_ONCE, |entry| {
                        let engine = Arc::clone(&self);
                        async move { engine.sample_usage(&entry).await }
                    })
                    .await;
                let (engine, records) = (Arc::clone(&self), self.usage.all());
                let kept = blocking(move || engine.store.put_usage(&records).map_err(store_error));
                self.said_usage(kept.await);
            }
            self.traffics.forget(&self);
            looks = looks.wrapping_add(1);
            if looks.is_multiple_of(FOLD) {
                let engine = Arc::clone(&self);
                let folded =
                    blocking(move || engine.store.fold_usage(MOST_RECORDS).map_err(store_error));
                self.said_usage(folded.await);
            }
        }
    }

    fn said_usage(&self, kept: ApiResult<()>) {
        if let Err(error) = kept {
            anstream::eprintln!("ironcage serve: usage is not kept: {error}");
        }
    }
}
