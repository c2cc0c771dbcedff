//! Usage of the cages that run, so far: looked at every few seconds, and summed up.

use crate::clock;
use crate::store::{UsageRecord, UsageSample, UsedAmounts};
use crate::traffic::TrafficSums;
use ironcage_sys::rustix::time::{ClockId, clock_gettime};
use std::collections::{BTreeMap, HashMap};
use std::sync::{Mutex, MutexGuard, PoisonError};

pub(crate) const GIB: f64 = (1_u64 << 30) as f64;

/// Microseconds since the machine was started.
pub(crate) fn up() -> u64 {
    let up = clock_gettime(ClockId::Boottime);
    let seconds = u64::try_from(up.tv_sec).unwrap_or(0);
    let nanoseconds = u64::try_from(up.tv_nsec).unwrap_or(0);
    seconds * 1_000_000 + nanoseconds / 1000
}

#[derive(Debug, Default)]
struct Records {
    /// The cages that run, by their ids.
    running: HashMap<String, UsageRecord>,
    /// What those used that ended since the service started, by project.
    ended: BTreeMap<String, UsedAmounts>,
}

/// The cages that run, and the sums of those that ended.
#[derive(Debug, Default)]
pub(crate) struct UsageBook(Mutex<Records>);

impl UsageBook {
    fn lock(&self) -> MutexGuard<'_, Records> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What the cages of each project used that ran since the service started. It never becomes less:
    /// a cage that ends goes from one place to the other in one step.
    pub(crate) fn by_project(&self) -> BTreeMap<String, UsedAmounts> {
        let records = self.lock();
        let mut sums = records.ended.clone();
        for record in records.running.values() {
            let sum = sums.entry(record.project.clone()).or_default();
            sum.add(record.used);
        }
        sums
    }

    /// Begins with a cage, unless it is known from before.
    pub(crate) fn begin(&self, project: &str, cage: &str, started: u64, now: u64) {
        let mut records = self.lock();
        records
            .running
            .entry(cage.to_owned())
            .or_insert_with(|| UsageRecord {
                project: project.to_owned(),
                cage: cage.to_owned(),
                started,
                ended: None,
                used: UsedAmounts::default(),
                last: UsageSample {
                    at: now,
                    ..UsageSample::default()
                },
            });
    }

    /// Goes on with records of before.
    pub(crate) fn load(&self, records: Vec<UsageRecord>) {
        let records = records
            .into_iter()
            .map(|record| (record.cage.clone(), record));
        self.lock().running.extend(records);
    }

    /// Notes a look at a cage. A counter that went back, as that of processes does which are gone,
    /// takes nothing away.
    pub(crate) fn sampled(&self, cage: &str, sample: UsageSample) {
        let mut records = self.lock();
        let Some(record) = records.running.get_mut(cage) else {
            return;
        };
        let memory = f64::midpoint(record.last.memory as f64, sample.memory as f64);
        record.pass(sample.at, memory);
        let cpu = sample
            .cpu_microseconds
            .saturating_sub(record.last.cpu_microseconds);
        record.used.cpu_seconds += cpu as f64 / 1e6;
        record.last = sample;
    }

    /// Notes what went through its proxy since its start.
    pub(crate) fn sent(&self, cage: &str, sums: TrafficSums) {
        if let Some(record) = self.lock().running.get_mut(cage) {
            record.used.bytes_sent = sums.sent;
            record.used.bytes_received = sums.received;
        }
    }

    /// What cages have used so far.
    pub(crate) fn all(&self) -> Vec<UsageRecord> {
        self.lock().running.values().cloned().collect()
    }

    /// Ends with a cage.
    pub(crate) fn end(&self, cage: &str, now: u64) -> Option<UsageRecord> {
        let mut records = self.lock();
        let mut record = records.running.remove(cage)?;
        let memory = record.last.memory as f64;
        record.pass(now, memory);
        record.last.at = now;
        record.ended = Some(clock::now());
        let sum = records.ended.entry(record.project.clone()).or_default();
        sum.add(record.used);
        Some(record)
    }
}

impl UsageRecord {
    /// Adds the time since the last look. That of another start of the machine says nothing.
    fn pass(&mut self, now: u64, memory: f64) {
        let seconds = now.saturating_sub(self.last.at) as f64 / 1e6;
        self.used.seconds += seconds;
        self.used.memory_gib_seconds += memory / GIB * seconds;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(seconds: u64, cpu: u64, memory: u64) -> UsageSample {
        UsageSample {
            at: seconds * 1_000_000,
            cpu_microseconds: cpu,
            memory: memory << 30,
        }
    }

    #[test]
    fn time_memory_and_cpu_add_up_and_a_counter_that_goes_back_takes_nothing_away() {
        let book = UsageBook::default();
        book.begin("team", "c1", 7, 0);
        book.sampled("c1", sample(0, 0, 2));
        book.sampled("c1", sample(10, 3_000_000, 2));
        // Half of its memory, and processes that are not counted any more.
        book.sampled("c1", sample(20, 1_000_000, 1));
        book.sampled("c1", sample(30, 2_000_000, 1));
        book.sampled("unknown", sample(1, 1, 1));
        let (record, more) = (book.end("c1", 32_000_000).unwrap(), book.end("c1", 0));
        assert!(more.is_none() && record.ended.is_some());
        let used = record.used;
        assert_eq!((used.seconds, used.cpu_seconds), (32.0, 4.0));
        assert_eq!(used.memory_gib_seconds, 20.0 + 15.0 + 10.0 + 2.0);
        assert!(book.all().is_empty());
    }

    #[test]
    fn sums_of_a_project_do_not_become_less_when_a_cage_ends() {
        let book = UsageBook::default();
        for (project, cage) in [("one", "c1"), ("one", "c2"), ("two", "c3")] {
            book.begin(project, cage, 7, 0);
            book.sampled(cage, sample(10, 2_000_000, 1));
        }
        let cpu = |project: &str| book.by_project()[project].cpu_seconds;
        assert_eq!((cpu("one"), cpu("two")), (4.0, 2.0));
        book.end("c1", 10_000_000).unwrap();
        assert_eq!((cpu("one"), cpu("two")), (4.0, 2.0));
        book.sampled("c2", sample(20, 3_000_000, 1));
        assert_eq!(cpu("one"), 5.0);
    }

    #[test]
    fn a_service_that_comes_back_goes_on_where_it_was() {
        let book = UsageBook::default();
        book.begin("team", "c1", 7, 0);
        book.sampled("c1", sample(10, 1_000_000, 1));
        let again = UsageBook::default();
        again.load(book.all());
        again.begin("team", "c1", 7, 50_000_000);
        again.sampled("c1", sample(60, 2_000_000, 1));
        let used = again.all()[0].used;
        assert_eq!((used.seconds, used.cpu_seconds), (60.0, 2.0));
        // After another start of the machine its clock is behind.
        again.sampled("c1", sample(5, 2_000_000, 1));
        assert_eq!(again.all()[0].used.seconds, 60.0);
    }
}
