//! Authority-seconds: how long each permission was open, and how much of that was shown to be
//! used. docs/adr/0040 defines the number.

use serde::Serialize;

/// What gave a permission.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub enum Source {
    /// The policy that the cage started with.
    Base { key: String, origin: String },
    /// A lease of the running cage.
    Lease { number: u32 },
    /// A network rule that the operator added to the running cage.
    LiveRule { number: u32 },
}

/// Whether a permission was used, as far as the log shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(tag = "use", rename_all = "kebab-case")]
pub enum EntryUse {
    /// No use is on record.
    Unused,
    /// Exactly what the entry names was used, first at this time.
    Exact { first: u64 },
    /// Something within the entry was used, first at this time; the entry names more.
    Within { first: u64 },
    /// The log cannot show it.
    Unknown { because: Unknown },
}

/// Why the log cannot show a use.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Unknown {
    /// Files were not observed.
    NotObserved,
    /// More was used than the log lists.
    Incomplete,
    /// Only first uses are on record, and the first was before this permission.
    SeenBefore,
    /// The log names the entry, not its paths or hosts.
    NotListed,
}

impl Unknown {
    pub(crate) const fn text(self) -> &'static str {
        match self {
            Unknown::NotObserved => {
                "file uses are not in this log; `ironcage run --observe` records them"
            }
            Unknown::Incomplete => "the run used more files than the log lists",
            Unknown::SeenBefore => {
                "the log has first uses only, and the first was before this permission"
            }
            Unknown::NotListed => "the log does not list the paths or hosts of this entry",
        }
    }
}

/// One path or host that was open for some time.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct EntrySpan {
    pub source: Source,
    /// As the policy or the lease writes it.
    pub what: String,
    /// Microseconds since the epoch.
    pub from: u64,
    pub until: u64,
    #[serde(flatten)]
    pub used: EntryUse,
}

impl EntrySpan {
    /// Microseconds that it was open.
    pub fn open(&self) -> u64 {
        self.until.saturating_sub(self.from)
    }

    /// Microseconds that it was open without the use that it is for.
    pub fn excess(&self) -> u64 {
        match self.used {
            // The rest of a wider entry was open and not used all the time.
            EntryUse::Unused | EntryUse::Within { .. } => self.open(),
            EntryUse::Exact { first } => {
                first.clamp(self.from, self.until.max(self.from)) - self.from
            }
            EntryUse::Unknown { .. } => 0,
        }
    }

    /// Microseconds of which nothing can be said.
    pub fn unknown(&self) -> u64 {
        match self.used {
            EntryUse::Unknown { .. } => self.open(),
            _ => 0,
        }
    }

    pub(crate) fn first_use(&self) -> Option<u64> {
        match self.used {
            EntryUse::Exact { first } | EntryUse::Within { first } => Some(first),
            EntryUse::Unused | EntryUse::Unknown { .. } => None,
        }
    }
}

/// Authority-seconds of some entries. `granted` is `excess`, `unknown` and the rest, which was used.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub struct Share {
    pub entries: usize,
    pub granted_seconds: f64,
    pub excess_seconds: f64,
    pub unknown_seconds: f64,
}

impl Share {
    fn of<'a>(entries: impl Iterator<Item = &'a EntrySpan>) -> Self {
        let (mut count, mut granted, mut excess, mut unknown) = (0, 0_u128, 0_u128, 0_u128);
        for entry in entries {
            count += 1;
            granted += u128::from(entry.open());
            excess += u128::from(entry.excess());
            unknown += u128::from(entry.unknown());
        }
        let seconds = |microseconds: u128| microseconds as f64 / 1e6;
        Share {
            entries: count,
            granted_seconds: seconds(granted),
            excess_seconds: seconds(excess),
            unknown_seconds: seconds(unknown),
        }
    }
}

/// The authority of a run.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub struct Authority {
    /// The one number: excess authority-seconds.
    pub excess_seconds: f64,
    pub all: Share,
    pub base: Share,
    pub leases: Share,
}

impl Authority {
    pub(crate) fn of(entries: &[EntrySpan]) -> Self {
        let is_base = |entry: &&EntrySpan| matches!(entry.source, Source::Base { .. });
        let all = Share::of(entries.iter());
        Authority {
            excess_seconds: all.excess_seconds,
            all,
            base: Share::of(entries.iter().filter(is_base)),
            leases: Share::of(entries.iter().filter(|entry| !is_base(entry))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(used: EntryUse) -> EntrySpan {
        EntrySpan {
            source: Source::Lease { number: 1 },
            what: "read /d".into(),
            from: 10_000_000,
            until: 20_000_000,
            used,
        }
    }

    #[test]
    fn an_entry_counts_until_exactly_it_is_used() {
        assert_eq!(entry(EntryUse::Unused).excess(), 10_000_000);
        let exact = entry(EntryUse::Exact { first: 13_000_000 });
        assert_eq!(exact.excess(), 3_000_000);
        // A directory of which one file was used stays in the count.
        let within = entry(EntryUse::Within { first: 13_000_000 });
        assert_eq!(within.excess(), 10_000_000);
    }

    #[test]
    fn what_is_unknown_is_neither_excess_nor_used() {
        let because = Unknown::NotObserved;
        let unknown = entry(EntryUse::Unknown { because });
        let all = Authority::of(&[unknown, entry(EntryUse::Unused)]);
        assert_eq!(all.excess_seconds, 10.0);
        assert_eq!(all.all.unknown_seconds, 10.0);
        assert_eq!(all.all.granted_seconds, 20.0);
        assert_eq!((all.base.entries, all.leases.entries), (0, 2));
    }

    #[test]
    fn times_that_run_backwards_count_nothing() {
        let mut backwards = entry(EntryUse::Exact { first: 5 });
        backwards.until = 1;
        assert_eq!((backwards.open(), backwards.excess()), (0, 0));
    }
}
