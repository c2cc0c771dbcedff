//! Usage of cages, kept after their end: one record for each, and sums of those that are too many.

use super::{Store, StoreError, using};
use redb::{ReadableDatabase, ReadableTable, TableDefinition, WriteTransaction};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Cages by project, start and id.
const USAGE: TableDefinition<'_, (&str, u64, &str), &[u8]> = TableDefinition::new("usage");
/// Sums of cages whose records are gone, by project.
const GONE: TableDefinition<'_, &str, &[u8]> = TableDefinition::new("usage_gone");

/// What was used.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub(crate) struct UsedAmounts {
    /// Time from the start to the end, also while paused.
    pub(crate) seconds: f64,
    /// Time of CPUs.
    pub(crate) cpu_seconds: f64,
    /// Memory over time: 2 GiB for 3 seconds are 6.
    pub(crate) memory_gib_seconds: f64,
    /// Bytes that went out through the egress proxy.
    pub(crate) bytes_sent: u64,
    pub(crate) bytes_received: u64,
}

impl UsedAmounts {
    pub(crate) fn add(&mut self, other: UsedAmounts) {
        self.seconds += other.seconds;
        self.cpu_seconds += other.cpu_seconds;
        self.memory_gib_seconds += other.memory_gib_seconds;
        self.bytes_sent = self.bytes_sent.saturating_add(other.bytes_sent);
        self.bytes_received = self.bytes_received.saturating_add(other.bytes_received);
    }
}

/// The last look at a cage.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct UsageSample {
    /// Microseconds since the machine was started: the clock of that is not set.
    pub(crate) at: u64,
    pub(crate) cpu_microseconds: u64,
    pub(crate) memory: u64,
}

/// What a cage used.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct UsageRecord {
    pub(crate) project: String,
    pub(crate) cage: String,
    /// Microseconds since the epoch.
    pub(crate) started: u64,
    pub(crate) ended: Option<u64>,
    pub(crate) used: UsedAmounts,
    pub(crate) last: UsageSample,
}

pub(super) fn open(write: &WriteTransaction) -> Result<(), StoreError> {
    write.open_table(USAGE).map_err(using)?;
    write.open_table(GONE).map_err(using)?;
    Ok(())
}

impl Store {
    pub(crate) fn put_usage(&self, records: &[UsageRecord]) -> Result<(), StoreError> {
        let write = self.0.begin_write().map_err(using)?;
        {
            let mut table = write.open_table(USAGE).map_err(using)?;
            for record in records {
                let value = serde_json::to_vec(record)?;
                let key = (
                    record.project.as_str(),
                    record.started,
                    record.cage.as_str(),
                );
                table.insert(key, value.as_slice()).map_err(using)?;
            }
        }
        write.commit().map_err(using)
    }

    /// The records of all projects, of cages that have not ended.
    pub(crate) fn open_usage(&self) -> Result<Vec<UsageRecord>, StoreError> {
        let read = self.0.begin_read().map_err(using)?;
        let table = read.open_table(USAGE).map_err(using)?;
        let mut records = Vec::new();
        for row in table.iter().map_err(using)? {
            let (_, value) = row.map_err(using)?;
            let record: UsageRecord = serde_json::from_slice(value.value())?;
            if record.ended.is_none() {
                records.push(record);
            }
        }
        Ok(records)
    }

    /// The records of a project, the oldest first, and the sum of those that are gone.
    pub(crate) fn usage_of(
        &self,
        project: &str,
    ) -> Result<(Vec<UsageRecord>, UsedAmounts), StoreError> {
        let read = self.0.begin_read().map_err(using)?;
        let table = read.open_table(USAGE).map_err(using)?;
        let mut records = Vec::new();
        for row in table.range((project, 0, "")..).map_err(using)? {
            let (key, value) = row.map_err(using)?;
            if key.value().0 != project {
                break;
            }
            records.push(serde_json::from_slice(value.value())?);
        }
        let gone = read.open_table(GONE).map_err(using)?;
        let gone = gone.get(project).map_err(using)?;
        let gone = gone.map(|value| serde_json::from_slice(value.value()));
        Ok((records, gone.transpose()?.unwrap_or_default()))
    }

    /// Adds the oldest records of each project to its sum, where it has more of ended cages than `most`.
    pub(crate) fn fold_usage(&self, most: usize) -> Result<(), StoreError> {
        let write = self.0.begin_write().map_err(using)?;
        {
            let mut table = write.open_table(USAGE).map_err(using)?;
            let mut gone = write.open_table(GONE).map_err(using)?;
            let mut ended: Vec<UsageRecord> = Vec::new();
            for row in table.iter().map_err(using)? {
                let (_, value) = row.map_err(using)?;
                let record: UsageRecord = serde_json::from_slice(value.value())?;
                if record.ended.is_some() {
                    ended.push(record);
                }
            }
            for of_project in ended.chunk_by(|one, other| one.project == other.project) {
                let beyond = of_project.len().saturating_sub(most);
                let Some(first) = of_project.first().filter(|_| beyond > 0) else {
                    continue;
                };
                let project = first.project.as_str();
                let sum = gone.get(project).map_err(using)?;
                let sum = sum.map(|value| serde_json::from_slice(value.value()));
                let mut sum: UsedAmounts = sum.transpose()?.unwrap_or_default();
                for record in of_project.iter().take(beyond) {
                    sum.add(record.used);
                    let key = (project, record.started, record.cage.as_str());
                    table.remove(key).map_err(using)?;
                }
                let value = serde_json::to_vec(&sum)?;
                gone.insert(project, value.as_slice()).map_err(using)?;
            }
        }
        write.commit().map_err(using)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_used_stays_and_old_records_become_a_sum_of_their_project() {
        let data = tempfile::tempdir().unwrap();
        let store = Store::open(&data.path().join("store")).unwrap();
        let record = |project: &str, started: u64, ended: Option<u64>| UsageRecord {
            project: project.to_owned(),
            cage: format!("c{started}"),
            started,
            ended,
            used: UsedAmounts {
                seconds: 1.0,
                bytes_sent: 10,
                ..UsedAmounts::default()
            },
            last: UsageSample::default(),
        };
        let mut all: Vec<_> = (0..5).map(|start| record("a", start, Some(9))).collect();
        all.push(record("a", 5, None));
        all.push(record("ab", 0, Some(1)));
        store.put_usage(&all).unwrap();
        assert_eq!(store.open_usage().unwrap(), [record("a", 5, None)]);
        let starts = |project: &str| {
            let (records, gone) = store.usage_of(project).unwrap();
            let starts: Vec<_> = records.iter().map(|record| record.started).collect();
            (starts, gone.seconds, gone.bytes_sent)
        };
        assert_eq!(starts("a"), (vec![0, 1, 2, 3, 4, 5], 0.0, 0));
        store.fold_usage(2).unwrap();
        store.fold_usage(2).unwrap();
        assert_eq!(starts("a"), (vec![3, 4, 5], 3.0, 30));
        assert_eq!(starts("ab"), (vec![0], 0.0, 0));
        assert_eq!(starts("b"), (Vec::new(), 0.0, 0));
    }
}
