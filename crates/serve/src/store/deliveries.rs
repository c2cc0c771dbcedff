//! Deliveries that wait for webhooks: a bounded queue for each, in the same file as the cages.

use super::{CAGES, CageRecord, Store, StoreError, using};
use redb::{ReadableDatabase, ReadableTable, TableDefinition, WriteTransaction};
use serde::{Deserialize, Serialize};

/// Deliveries by webhook and number.
const DELIVERIES: TableDefinition<'_, (&str, u64), &[u8]> = TableDefinition::new("deliveries");
const WEBHOOKS: TableDefinition<'_, &str, &[u8]> = TableDefinition::new("webhooks");

/// Deliveries that wait for one webhook, and their bytes. When there are more, the oldest go.
pub(crate) const MOST_WAITING: u64 = 1000;
const MOST_BYTES: u64 = 4 << 20;

/// Something to send to a webhook.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Delivery {
    /// Id of the event.
    pub(crate) id: String,
    pub(crate) webhook: String,
    pub(crate) project: String,
    pub(crate) body: String,
}

/// How the deliveries of a webhook go.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct WebhookState {
    pub(crate) project: String,
    /// Number of the delivery that comes next.
    next: u64,
    pub(crate) waiting: u64,
    bytes: u64,
    pub(crate) delivered: u64,
    /// Deliveries that were given up: the queue was full, or too many attempts failed.
    pub(crate) dropped: u64,
    /// Attempts in a row that failed.
    pub(crate) failures: u32,
    /// Microseconds since the epoch.
    pub(crate) attempted: Option<u64>,
    /// Why the last attempt failed, if it did.
    pub(crate) error: Option<String>,
}

/// The delivery whose turn it is.
#[derive(Debug, Clone)]
pub(crate) struct WaitingDelivery {
    pub(crate) number: u64,
    pub(crate) delivery: Delivery,
    pub(crate) state: WebhookState,
}

pub(super) fn open(write: &WriteTransaction) -> Result<(), StoreError> {
    write.open_table(DELIVERIES).map_err(using)?;
    write.open_table(WEBHOOKS).map_err(using)?;
    Ok(())
}

fn state(
    table: &impl ReadableTable<&'static str, &'static [u8]>,
    webhook: &str,
) -> Result<WebhookState, StoreError> {
    let found = table.get(webhook).map_err(using)?;
    let state = found.map(|value| serde_json::from_slice(value.value()));
    Ok(state.transpose()?.unwrap_or_default())
}

/// The first delivery that waits for a webhook: its number, and what was written of it.
fn first(
    table: &impl ReadableTable<(&'static str, u64), &'static [u8]>,
    webhook: &str,
) -> Result<Option<(u64, Vec<u8>)>, StoreError> {
    let mut range = table
        .range((webhook, 0)..=(webhook, u64::MAX))
        .map_err(using)?;
    let Some(row) = range.next() else {
        return Ok(None);
    };
    let (key, value) = row.map_err(using)?;
    Ok(Some((key.value().1, value.value().to_vec())))
}

/// Adds deliveries to the queues of their webhooks.
pub(super) fn enqueue(write: &WriteTransaction, deliveries: &[Delivery]) -> Result<(), StoreError> {
    if deliveries.is_empty() {
        return Ok(());
    }
    let mut queue = write.open_table(DELIVERIES).map_err(using)?;
    let mut webhooks = write.open_table(WEBHOOKS).map_err(using)?;
    for delivery in deliveries {
        let webhook = delivery.webhook.as_str();
        let mut state = state(&webhooks, webhook)?;
        let value = serde_json::to_vec(delivery)?;
        queue
            .insert((webhook, state.next), value.as_slice())
            .map_err(using)?;
        state.project.clone_from(&delivery.project);
        state.next += 1;
        state.waiting += 1;
        state.bytes += value.len() as u64;
        while state.waiting > MOST_WAITING || (state.bytes > MOST_BYTES && state.waiting > 1) {
            let Some((number, value)) = first(&queue, webhook)? else {
                break;
            };
            queue.remove((webhook, number)).map_err(using)?;
            state.left(value.len());
            state.dropped += 1;
            // Its attempts were those of the one that went.
            state.failures = 0;
        }
        let value = serde_json::to_vec(&state)?;
        webhooks.insert(webhook, value.as_slice()).map_err(using)?;
    }
    Ok(())
}

impl WebhookState {
    fn left(&mut self, bytes: usize) {
        self.waiting = self.waiting.saturating_sub(1);
        self.bytes = self.bytes.saturating_sub(bytes as u64);
    }
}

impl Store {
    /// A record, and what webhooks are told about it, together.
    pub(crate) fn put_telling(
        &self,
        record: &CageRecord,
        deliveries: &[Delivery],
    ) -> Result<(), StoreError> {
        let value = serde_json::to_vec(record)?;
        let write = self.0.begin_write().map_err(using)?;
        {
            let mut cages = write.open_table(CAGES).map_err(using)?;
            cages
                .insert(record.name.as_str(), value.as_slice())
                .map_err(using)?;
        }
        enqueue(&write, deliveries)?;
        write.commit().map_err(using)
    }

    /// The same for a record that goes.
    pub(crate) fn remove_telling(
        &self,
        name: &str,
        deliveries: &[Delivery],
    ) -> Result<(), StoreError> {
        let write = self.0.begin_write().map_err(using)?;
        write
            .open_table(CAGES)
            .map_err(using)?
            .remove(name)
            .map_err(using)?;
        enqueue(&write, deliveries)?;
        write.commit().map_err(using)
    }

    /// Webhooks for which something waits.
    pub(crate) fn waiting_webhooks(&self) -> Result<Vec<String>, StoreError> {
        let states = self.webhook_states()?.into_iter();
        let waiting = states.filter(|(_, state)| state.waiting > 0);
        Ok(waiting.map(|(id, _)| id).collect())
    }

    pub(crate) fn webhook_states(&self) -> Result<Vec<(String, WebhookState)>, StoreError> {
        let read = self.0.begin_read().map_err(using)?;
        let table = read.open_table(WEBHOOKS).map_err(using)?;
        let mut states = Vec::new();
        for row in table.iter().map_err(using)? {
            let (id, value) = row.map_err(using)?;
            states.push((
                id.value().to_owned(),
                serde_json::from_slice(value.value())?,
            ));
        }
        Ok(states)
    }

    pub(crate) fn webhook_state(&self, webhook: &str) -> Result<WebhookState, StoreError> {
        let read = self.0.begin_read().map_err(using)?;
        state(&read.open_table(WEBHOOKS).map_err(using)?, webhook)
    }

    /// The delivery whose turn it is.
    pub(crate) fn next_delivery(
        &self,
        webhook: &str,
    ) -> Result<Option<WaitingDelivery>, StoreError> {
        let read = self.0.begin_read().map_err(using)?;
        let queue = read.open_table(DELIVERIES).map_err(using)?;
        let Some((number, value)) = first(&queue, webhook)? else {
            return Ok(None);
        };
        Ok(Some(WaitingDelivery {
            number,
            delivery: serde_json::from_slice(&value)?,
            state: state(&read.open_table(WEBHOOKS).map_err(using)?, webhook)?,
        }))
    }

    /// Notes an attempt, and why it failed if it did. A delivery that was taken goes, and so does
    /// one that is given up.
    pub(crate) fn attempted(
        &self,
        webhook: &str,
        number: u64,
        time: u64,
        failure: Option<String>,
        give_up: bool,
    ) -> Result<(), StoreError> {
        let write = self.0.begin_write().map_err(using)?;
        {
            let mut queue = write.open_table(DELIVERIES).map_err(using)?;
            let mut webhooks = write.open_table(WEBHOOKS).map_err(using)?;
            if webhooks.get(webhook).map_err(using)?.is_none() {
                // It was deleted meanwhile.
                return Ok(());
            }
            let mut state = state(&webhooks, webhook)?;
            let goes = failure.is_none() || give_up;
            if goes {
                // One that the queue had no place for any more is counted as that.
                let removed = queue.remove((webhook, number)).map_err(using)?;
                if let Some(value) = &removed {
                    state.left(value.value().len());
                    match failure {
                        None => state.delivered += 1,
                        Some(_) => state.dropped += 1,
                    }
                }
            }
            state.failures = if goes { 0 } else { state.failures + 1 };
            state.attempted = Some(time);
            state.error = failure;
            let value = serde_json::to_vec(&state)?;
            webhooks.insert(webhook, value.as_slice()).map_err(using)?;
        }
        write.commit().map_err(using)
    }

    /// Forgets a webhook and what waits for it.
    pub(crate) fn forget_webhook(&self, webhook: &str) -> Result<(), StoreError> {
        let write = self.0.begin_write().map_err(using)?;
        {
            let mut queue = write.open_table(DELIVERIES).map_err(using)?;
            queue
                .retain_in((webhook, 0)..=(webhook, u64::MAX), |_, _| false)
                .map_err(using)?;
            let mut webhooks = write.open_table(WEBHOOKS).map_err(using)?;
            webhooks.remove(webhook).map_err(using)?;
        }
        write.commit().map_err(using)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::tests::record;

    fn delivery(webhook: &str, number: u64, length: usize) -> Delivery {
        Delivery {
            id: format!("evt_{number}"),
            webhook: webhook.to_owned(),
            project: "team".to_owned(),
            body: "x".repeat(length),
        }
    }

    fn open(data: &tempfile::TempDir) -> Store {
        Store::open(&data.path().join("store")).unwrap()
    }

    #[test]
    fn deliveries_wait_in_their_order_until_they_are_taken_and_survive() {
        let data = tempfile::tempdir().unwrap();
        let store = open(&data);
        store
            .put_telling(&record(), &[delivery("a", 0, 1), delivery("b", 0, 1)])
            .unwrap();
        store
            .remove_telling("serve-0", &[delivery("a", 1, 1)])
            .unwrap();
        assert!(store.cages().unwrap().is_empty());
        let next = |store: &Store| {
            let next = store.next_delivery("a").unwrap();
            next.map(|next| (next.number, next.delivery.id, next.state.failures))
        };
        assert_eq!(next(&store), Some((0, "evt_0".to_owned(), 0)));
        store
            .attempted("a", 0, 7, Some("refused".to_owned()), false)
            .unwrap();
        assert_eq!(next(&store), Some((0, "evt_0".to_owned(), 1)));
        // The queue and the count of failures are there after a restart.
        drop(store);
        let store = open(&data);
        assert_eq!(next(&store), Some((0, "evt_0".to_owned(), 1)));
        let state = store.webhook_state("a").unwrap();
        assert_eq!((state.waiting, state.attempted), (2, Some(7)));
        assert_eq!(state.error.as_deref(), Some("refused"));
        store.attempted("a", 0, 8, None, false).unwrap();
        assert_eq!(next(&store), Some((1, "evt_1".to_owned(), 0)));
        store
            .attempted("a", 1, 9, Some("refused".to_owned()), true)
            .unwrap();
        assert_eq!(next(&store), None);
        let state = store.webhook_state("a").unwrap();
        assert_eq!(
            (state.waiting, state.bytes, state.delivered, state.dropped),
            (0, 0, 1, 1)
        );
        assert_eq!(store.waiting_webhooks().unwrap(), ["b"]);
        store.forget_webhook("b").unwrap();
        // An attempt that was under way brings nothing back.
        store.attempted("b", 0, 9, None, false).unwrap();
        assert_eq!(
            store.next_delivery("b").unwrap().map(|next| next.number),
            None
        );
        assert_eq!(store.webhook_states().unwrap().len(), 1);
    }

    #[test]
    fn a_queue_is_bounded_in_number_and_bytes_and_the_oldest_go() {
        let data = tempfile::tempdir().unwrap();
        let store = open(&data);
        let many: Vec<_> = (0..MOST_WAITING + 5)
            .map(|number| delivery("a", number, 1))
            .collect();
        store.put_telling(&record(), &many).unwrap();
        let state = store.webhook_state("a").unwrap();
        assert_eq!((state.waiting, state.dropped), (MOST_WAITING, 5));
        assert_eq!(store.next_delivery("a").unwrap().unwrap().number, 5);
        let large: Vec<_> = (0..6)
            .map(|number| delivery("b", number, 1 << 20))
            .collect();
        store.put_telling(&record(), &large).unwrap();
        let state = store.webhook_state("b").unwrap();
        assert_eq!((state.waiting, state.dropped), (3, 3));
        assert!(state.bytes <= MOST_BYTES);
    }
}
