//! Deliveries: each webhook gets its events in their order, one at a time, until it has taken them.

use super::WebhookError;
use super::sender::{Authorities, SendError, send};
use crate::clock;
use crate::engine::{Engine, blocking, store_error};
use crate::error::{ApiError, ApiResult};
use crate::store::{WaitingDelivery, WebhookState};
use ironcage_model::in_full;
use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::sync::{Notify, Semaphore};

/// Attempts at the same time: of all webhooks, and of those of one project.
const AT_ONCE: usize = 32;
const OF_A_PROJECT: usize = 4;
/// The wait after a first failure, which doubles with each further one, and the longest.
const FIRST_WAIT: Duration = Duration::from_secs(1);
const LONGEST_WAIT: Duration = Duration::from_secs(900);
/// Attempts after which a delivery is dropped: they take some three days. Attempts are counted, and
/// not time, so that a clock that jumps drops nothing.
const MOST_ATTEMPTS: u32 = 300;
/// How long a webhook whose file cannot be read waits.
const UNREADABLE: Duration = Duration::from_secs(60);

/// Why a delivery was not taken.
#[derive(Debug, thiserror::Error)]
enum DeliveryError {
    /// The ceiling of its project does not allow the receiver any more.
    #[error("{}", .0.message)]
    NotAllowed(ApiError),
    #[error(transparent)]
    Send(SendError),
}

/// What the service knows of its deliveries, besides the store.
#[derive(Debug)]
pub(crate) struct Deliveries {
    authorities: Authorities,
    /// Woken when there may be something to send.
    wake: Notify,
    /// Webhooks that are being delivered to.
    running: Mutex<HashSet<String>>,
    all: Semaphore,
    projects: Mutex<HashMap<String, Arc<Semaphore>>>,
    delivered: AtomicU64,
    failed: AtomicU64,
}

impl Default for Deliveries {
    fn default() -> Deliveries {
        Deliveries {
            authorities: Authorities::default(),
            wake: Notify::new(),
            running: Mutex::default(),
            all: Semaphore::new(AT_ONCE),
            projects: Mutex::default(),
            delivered: AtomicU64::new(0),
            failed: AtomicU64::new(0),
        }
    }
}

impl Deliveries {
    /// There is something to send.
    pub(crate) fn wake(&self) {
        self.wake.notify_one();
    }

    /// Attempts that succeeded, and those that failed.
    pub(crate) fn counts(&self) -> (u64, u64) {
        (
            self.delivered.load(Ordering::Relaxed),
            self.failed.load(Ordering::Relaxed),
        )
    }

    fn of_project(&self, project: &str) -> Arc<Semaphore> {
        let mut projects = self.projects.lock().unwrap_or_else(PoisonError::into_inner);
        // Those that nobody uses are made again when they are needed.
        projects.retain(|_, semaphore| Arc::strong_count(semaphore) > 1);
        let semaphore = projects.entry(project.to_owned());
        Arc::clone(semaphore.or_insert_with(|| Arc::new(Semaphore::new(OF_A_PROJECT))))
    }

    /// Whether a webhook is free to be delivered to; it is taken then.
    fn begin(&self, webhook: &str) -> bool {
        let mut running = self.running.lock().unwrap_or_else(PoisonError::into_inner);
        running.insert(webhook.to_owned())
    }

    fn end(&self, webhook: &str) {
        let mut running = self.running.lock().unwrap_or_else(PoisonError::into_inner);
        running.remove(webhook);
        drop(running);
        // Something may have come after the last look.
        self.wake();
    }
}

/// The wait after a number of failures in a row.
fn pause(failures: u32) -> Duration {
    let Some(doublings) = failures.checked_sub(1) else {
        return Duration::ZERO;
    };
    let factor = 2_u32.saturating_pow(doublings.min(20));
    FIRST_WAIT.saturating_mul(factor).min(LONGEST_WAIT)
}

/// What is left of that wait. A clock that was set back makes it no longer.
fn rest(state: &WebhookState, now: u64) -> Duration {
    let pause = pause(state.failures);
    let since = state.attempted.and_then(|then| now.checked_sub(then));
    pause.saturating_sub(Duration::from_micros(since.unwrap_or(0)))
}

impl Engine {
    /// Delivers to webhooks as events come. Does not return.
    pub(crate) async fn deliver_webhooks(self: Arc<Self>) {
        loop {
            let engine = Arc::clone(&self);
            let waiting = blocking(move || engine.store.waiting_webhooks().map_err(store_error));
            match waiting.await {
                Ok(waiting) => {
                    for webhook in waiting {
                        if self.deliveries.begin(&webhook) {
                            tokio::spawn(Arc::clone(&self).deliver_to(webhook));
                        }
                    }
                }
                Err(error) => {
                    anstream::eprintln!("ironcage serve: cannot look for deliveries: {error}");
                    tokio::time::sleep(UNREADABLE).await;
                    continue;
                }
            }
            self.deliveries.wake.notified().await;
        }
    }

    /// Delivers what waits for one webhook.
    async fn deliver_to(self: Arc<Self>, webhook: String) {
        loop {
            match self.deliver_next(&webhook).await {
                Ok(true) => {}
                Ok(false) => break,
                Err(error) => {
                    anstream::eprintln!(
                        "ironcage serve: cannot deliver to webhook {webhook}: {error}"
                    );
                    tokio::time::sleep(UNREADABLE).await;
                }
            }
        }
        self.deliveries.end(&webhook);
    }

    async fn waiting(self: &Arc<Self>, webhook: &str) -> ApiResult<Option<WaitingDelivery>> {
        let (engine, webhook) = (Arc::clone(self), webhook.to_owned());
        blocking(move || engine.store.next_delivery(&webhook).map_err(store_error)).await
    }

    /// Makes one attempt when it is time for it. `false` where nothing waits any more.
    async fn deliver_next(self: &Arc<Self>, webhook: &str) -> ApiResult<bool> {
        let Some(waiting) = self.waiting(webhook).await? else {
            return Ok(false);
        };
        let wait = rest(&waiting.state, clock::now());
        if !wait.is_zero() {
            tokio::time::sleep(wait).await;
        }
        let of_project = self.deliveries.of_project(&waiting.delivery.project);
        let (Ok(_turn), Ok(_place)) = (
            of_project.acquire().await,
            self.deliveries.all.acquire().await,
        ) else {
            return Ok(false);
        };
        // It may be another one by now: the oldest go when the queue is full.
        let Some(waiting) = self.waiting(webhook).await? else {
            return Ok(false);
        };
        let result = self.attempt(&waiting).await?;
        let Some(result) = result else {
            // It was deleted.
            let (engine, webhook) = (Arc::clone(self), webhook.to_owned());
            blocking(move || engine.store.forget_webhook(&webhook).map_err(store_error)).await?;
            return Ok(false);
        };
        let count = match &result {
            Ok(()) => &self.deliveries.delivered,
            Err(_) => &self.deliveries.failed,
        };
        count.fetch_add(1, Ordering::Relaxed);
        let last = result.is_err() && waiting.state.failures + 1 >= MOST_ATTEMPTS;
        let (engine, webhook) = (Arc::clone(self), webhook.to_owned());
        let failure = result.err().map(|error| in_full(&error));
        blocking(move || {
            let store = &engine.store;
            let finished = store.attempted(&webhook, waiting.number, clock::now(), failure, last);
            finished.map_err(store_error)
        })
        .await?;
        Ok(true)
    }

    /// Attempts a delivery: why it failed, or `None` where its webhook is gone.
    async fn attempt(
        self: &Arc<Self>,
        waiting: &WaitingDelivery,
    ) -> ApiResult<Option<Result<(), DeliveryError>>> {
        let (engine, delivery) = (Arc::clone(self), waiting.delivery.clone());
        let webhook = blocking(move || {
            let found = engine.webhooks.get(&delivery.project, &delivery.webhook);
            match found {
                Ok(webhook) => Ok(Some(webhook)),
                Err(WebhookError::NotFound { .. }) => Ok(None),
                Err(error) => Err(crate::api::webhook_error(error)),
            }
        });
        let Some(webhook) = webhook.await? else {
            return Ok(None);
        };
        // The ceiling may have been lowered since it was made.
        let within = match webhook.operator {
            true => Ok(()),
            false => crate::api::check_webhook_ceiling(self, &webhook.project, &webhook.url),
        };
        if let Err(error) = within {
            return Ok(Some(Err(DeliveryError::NotAllowed(error))));
        }
        let sent = send(&self.deliveries.authorities, &webhook, &waiting.delivery).await;
        Ok(Some(sent.map_err(DeliveryError::Send)))
    }

    /// Forgets what waits for webhooks that were deleted while the service did not run.
    pub(crate) fn sweep_webhooks(&self) -> ApiResult<()> {
        for (id, state) in self.store.webhook_states().map_err(store_error)? {
            if let Err(WebhookError::NotFound { .. }) = self.webhooks.get(&state.project, &id) {
                self.store.forget_webhook(&id).map_err(store_error)?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_double_up_to_the_longest() {
        let seconds: Vec<u64> = (0..13).map(|failures| pause(failures).as_secs()).collect();
        assert_eq!(
            seconds,
            [0, 1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 900, 900]
        );
        assert_eq!(pause(u32::MAX), LONGEST_WAIT);
    }

    #[test]
    fn a_wait_is_never_longer_than_it_was_whatever_the_clock_says() {
        let state = |failures, attempted| {
            let mut state = WebhookState::default();
            (state.failures, state.attempted) = (failures, attempted);
            state
        };
        let second = 1_000_000;
        assert_eq!(rest(&state(0, None), 5), Duration::ZERO);
        assert_eq!(rest(&state(0, Some(5)), 5), Duration::ZERO);
        assert_eq!(rest(&state(3, Some(0)), second), Duration::from_secs(3));
        assert_eq!(rest(&state(3, Some(0)), 100 * second), Duration::ZERO);
        // The clock was set back by an hour.
        let back = rest(&state(3, Some(3600 * second)), 0);
        assert_eq!(back, Duration::from_secs(4));
    }

    #[tokio::test]
    async fn one_project_takes_its_own_places_alone() {
        let deliveries = Deliveries::default();
        let one = deliveries.of_project("one");
        let held: Vec<_> = (0..OF_A_PROJECT)
            .map(|_| one.try_acquire().unwrap())
            .collect();
        let free = |project| deliveries.of_project(project).try_acquire().is_ok();
        assert!(!free("one") && free("other"));
        drop(held);
        assert!(free("one"));
        assert!(deliveries.begin("w") && !deliveries.begin("w"));
        deliveries.end("w");
        assert!(deliveries.begin("w"));
    }
}
