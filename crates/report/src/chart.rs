//! Authority over time: how many entries were open, and how many of them had been used by then.

use crate::authority::{EntrySpan, EntryUse};
use serde::Serialize;
use std::collections::BTreeSet;

/// More steps are thinned out evenly: a page stays readable.
const MOST: usize = 600;

/// The state from this time on, until the next point.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Point {
    /// Microseconds since the epoch.
    pub time: u64,
    /// Entries that are open.
    pub open: usize,
    /// Those of them that were used by now.
    pub used: usize,
    /// Those of which the log cannot show it.
    pub unknown: usize,
}

/// The steps of a run, from its first to its last time.
pub(crate) fn points(entries: &[EntrySpan], from: u64, until: u64) -> Vec<Point> {
    let until = until.max(from);
    let mut times: BTreeSet<u64> = [from, until].into();
    for entry in entries {
        let all = [Some(entry.from), Some(entry.until), entry.first_use()];
        times.extend(
            all.into_iter()
                .flatten()
                .map(|time| time.clamp(from, until)),
        );
    }
    let times: Vec<u64> = times.into_iter().collect();
    let step = times.len().div_ceil(MOST).max(1);
    let last = times.len().saturating_sub(1);
    let kept = times
        .iter()
        .enumerate()
        .filter(|(at, _)| at % step == 0 || *at == last);
    kept.map(|(_, time)| at(entries, *time, until)).collect()
}

fn at(entries: &[EntrySpan], time: u64, until: u64) -> Point {
    // What lasts to the end is still open at the last point.
    let open = |entry: &&EntrySpan| {
        entry.from <= time && (time < entry.until || (entry.until >= until && time >= until))
    };
    let (mut count, mut used, mut unknown) = (0, 0, 0);
    for entry in entries.iter().filter(open) {
        count += 1;
        used += usize::from(entry.first_use().is_some_and(|first| first <= time));
        unknown += usize::from(matches!(entry.used, EntryUse::Unknown { .. }));
    }
    Point {
        time,
        open: count,
        used,
        unknown,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::authority::Source;

    fn entry(from: u64, until: u64, used: EntryUse) -> EntrySpan {
        EntrySpan {
            source: Source::Lease { number: 1 },
            what: "host a.test".into(),
            from,
            until,
            used,
        }
    }

    #[test]
    fn each_change_is_a_point_and_uses_count_from_their_time() {
        let entries = [
            entry(0, 100, EntryUse::Unused),
            entry(20, 60, EntryUse::Exact { first: 40 }),
        ];
        let found: Vec<_> = points(&entries, 0, 100)
            .into_iter()
            .map(|point| (point.time, point.open, point.used))
            .collect();
        assert_eq!(
            found,
            [(0, 1, 0), (20, 2, 0), (40, 2, 1), (60, 1, 0), (100, 1, 0)]
        );
    }

    #[test]
    fn many_changes_are_thinned_out_and_the_last_stays() {
        let entries: Vec<_> = (0..5000)
            .map(|at| entry(at, at + 1, EntryUse::Unused))
            .collect();
        let found = points(&entries, 0, 5000);
        assert!(found.len() <= MOST + 1, "{}", found.len());
        assert_eq!(found.last().map(|point| point.time), Some(5000));
    }
}
