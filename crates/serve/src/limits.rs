//! How much is asked of the service: requests by key, creations by project, streams by key.

use crate::error::{ApiError, ApiResult, Code};
use crate::keys::Key;
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// A key may send at once what it may send in this many seconds.
const BURST: f64 = 2.0;
/// Requests without a valid key in a second, from everybody together.
const WRONG_KEYS: u32 = 50;
/// Streams of events that one key has open at once.
const MOST_STREAMS: usize = 64;
/// Buckets that are kept; full ones say nothing and go first.
const MOST_BUCKETS: usize = 10_000;

/// What may be taken now, and what comes back in a second.
#[derive(Debug, Clone, Copy)]
struct Bucket {
    tokens: f64,
    at: Instant,
}

#[derive(Debug)]
struct Buckets(Mutex<HashMap<String, Bucket>>);

impl Buckets {
    /// Takes one of `most`, of which `per_second` come back; otherwise how long it is until the next one.
    fn take(&self, name: &str, per_second: f64, most: f64, now: Instant) -> Result<(), Duration> {
        let mut buckets = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let filled = |bucket: &Bucket| {
            let since = now.saturating_duration_since(bucket.at).as_secs_f64();
            (bucket.tokens + since * per_second).min(most)
        };
        if buckets.len() >= MOST_BUCKETS && !buckets.contains_key(name) {
            buckets.retain(|_, bucket| filled(bucket) < most);
        }
        let bucket = buckets.entry(name.to_owned()).or_insert(Bucket {
            tokens: most,
            at: now,
        });
        let tokens = filled(bucket);
        (bucket.at, bucket.tokens) = (now, tokens);
        if tokens < 1.0 {
            return Err(Duration::from_secs_f64((1.0 - tokens) / per_second));
        }
        bucket.tokens = tokens - 1.0;
        Ok(())
    }
}

#[derive(Debug)]
pub(crate) struct Limits {
    /// Requests of one key in a second, where the key has no rate of its own.
    rate: u32,
    requests: Buckets,
    creations: Buckets,
    streams: Arc<Mutex<HashMap<String, usize>>>,
    /// Requests that were refused.
    refused: AtomicU64,
}

/// A stream of a key, counted as long as this lives.
#[derive(Debug)]
pub(crate) struct OpenStream {
    streams: Arc<Mutex<HashMap<String, usize>>>,
    key: String,
}

impl Drop for OpenStream {
    fn drop(&mut self) {
        let mut streams = self.streams.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = streams.get_mut(&self.key) {
            *count -= 1;
            if *count == 0 {
                streams.remove(&self.key);
            }
        }
    }
}

impl Limits {
    pub(crate) fn new(rate: u32) -> Limits {
        Limits {
            rate,
            requests: Buckets(Mutex::default()),
            creations: Buckets(Mutex::default()),
            streams: Arc::default(),
            refused: AtomicU64::new(0),
        }
    }

    fn taken(&self, taken: Result<(), Duration>, message: String) -> ApiResult<()> {
        taken.map_err(|wait| {
            self.refused.fetch_add(1, Ordering::Relaxed);
            ApiError::new(Code::LimitReached, message)
                .hint("the header Retry-After says when to ask again")
                .retry_after(wait)
        })
    }

    /// Counts a request of a key.
    pub(crate) fn request(&self, key: &Key) -> ApiResult<()> {
        self.request_of(&key.id, key.quota.rate)
    }

    /// Counts a request with the token of a cage, as one of the key that created it.
    pub(crate) fn request_of(&self, key: &str, rate: Option<u32>) -> ApiResult<()> {
        let rate = rate.unwrap_or(self.rate);
        self.count(key, rate, || {
            format!("key {key} may send {rate} requests in a second")
        })
    }

    /// Counts a request to a cage that needs no token.
    pub(crate) fn open_request(&self, cage: &str) -> ApiResult<()> {
        self.count(&format!("cage {cage}"), self.rate, || {
            let rate = self.rate;
            format!("cage {cage} takes {rate} requests in a second without its token")
        })
    }

    fn count(&self, name: &str, rate: u32, message: impl FnOnce() -> String) -> ApiResult<()> {
        let (per_second, most) = (f64::from(rate), f64::from(rate) * BURST);
        let taken = self.requests.take(name, per_second, most, Instant::now());
        match taken {
            Ok(()) => Ok(()),
            Err(_) => self.taken(taken, message()),
        }
    }

    /// Counts a request without a valid key. What it takes is taken from nobody who has one.
    pub(crate) fn wrong_key(&self) -> ApiResult<()> {
        let (per_second, most) = (f64::from(WRONG_KEYS), f64::from(WRONG_KEYS) * BURST);
        let taken = self.requests.take("", per_second, most, Instant::now());
        self.taken(taken, "too many requests without a valid key".to_owned())
    }

    /// Counts a creation of a project that may have this number in a minute.
    pub(crate) fn creation(&self, project: &str, per_minute: u32) -> ApiResult<()> {
        let most = f64::from(per_minute);
        let taken = self
            .creations
            .take(project, most / 60.0, most, Instant::now());
        self.taken(
            taken,
            format!("project {project} may create {per_minute} cages in a minute"),
        )
    }

    /// Counts a stream of a key.
    pub(crate) fn stream(&self, key: &Key) -> ApiResult<OpenStream> {
        let mut streams = self.streams.lock().unwrap_or_else(PoisonError::into_inner);
        let count = streams.entry(key.id.clone()).or_default();
        if *count >= MOST_STREAMS {
            self.refused.fetch_add(1, Ordering::Relaxed);
            return Err(ApiError::new(
                Code::LimitReached,
                format!(
                    "key {} has {MOST_STREAMS} streams of events open already",
                    key.id
                ),
            )
            .hint("close one"));
        }
        *count += 1;
        Ok(OpenStream {
            streams: Arc::clone(&self.streams),
            key: key.id.clone(),
        })
    }

    /// Streams that are open.
    pub(crate) fn streams(&self) -> usize {
        let streams = self.streams.lock().unwrap_or_else(PoisonError::into_inner);
        streams.values().sum()
    }

    pub(crate) fn refused(&self) -> u64 {
        self.refused.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bucket_gives_what_it_has_and_fills_with_time() {
        let buckets = Buckets(Mutex::default());
        let start = Instant::now();
        let take = |name: &str, after: u64| {
            let now = start + Duration::from_millis(after);
            buckets.take(name, 2.0, 4.0, now)
        };
        for _ in 0..4 {
            take("a", 0).unwrap();
        }
        assert_eq!(take("a", 0), Err(Duration::from_millis(500)));
        take("b", 0).unwrap();
        take("a", 500).unwrap();
        assert!(take("a", 500).is_err());
        for _ in 0..4 {
            take("a", 60_000).unwrap();
        }
        assert!(take("a", 60_000).is_err());
    }

    #[test]
    fn streams_are_counted_as_long_as_they_are_open_and_by_key() {
        let data = tempfile::tempdir().unwrap();
        let keys = crate::keys::Keys::in_data(data.path());
        let key = || keys.create("k", "team", [].into()).unwrap().0;
        let (one, other) = (key(), key());
        let limits = Limits::new(10);
        let mut open: Vec<_> = (0..MOST_STREAMS)
            .map(|_| limits.stream(&one).unwrap())
            .collect();
        assert_eq!(limits.stream(&one).unwrap_err().code, Code::LimitReached);
        limits.stream(&other).unwrap();
        open.pop();
        open.push(limits.stream(&one).unwrap());
        drop(open);
        assert_eq!(limits.streams(), 0);
        assert!(limits.streams.lock().unwrap().is_empty());
    }

    #[test]
    fn a_request_too_many_says_when_the_next_may_come_and_other_keys_go_on() {
        let data = tempfile::tempdir().unwrap();
        let keys = crate::keys::Keys::in_data(data.path());
        let key = || keys.create("k", "team", [].into()).unwrap().0;
        let (one, other) = (key(), key());
        let limits = Limits::new(1);
        let refused = std::iter::repeat_with(|| limits.request(&one))
            .take(4)
            .find_map(Result::err);
        let refused = refused.unwrap();
        assert_eq!(
            (refused.code, refused.retry_after),
            (Code::LimitReached, Some(1))
        );
        limits.request(&other).unwrap();
        // With the token of a cage it is the same bucket; without any, one of the cage's own.
        let again = std::iter::repeat_with(|| limits.request_of(&one.id, None));
        assert!(again.take(4).any(|taken| taken.is_err()));
        limits.open_request("c1").unwrap();
        assert!(limits.refused() > 0);
    }
}
