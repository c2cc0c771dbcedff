//! The output of a run, collected while it goes on.

use std::io::Read;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Collects a stream in a thread, within a bound.
pub(super) struct Collected(Arc<Mutex<(Vec<u8>, bool)>>);

impl Collected {
    pub(super) fn start(mut stream: impl Read + Send + 'static) -> Collected {
        // The beginning and the end are what counts; a flood in between is dropped.
        const BOUND: usize = 4 << 20;
        const KEPT: usize = 2 << 20;
        let shared = Arc::new(Mutex::new((Vec::new(), false)));
        let target = Arc::clone(&shared);
        std::thread::spawn(move || {
            let mut buffer = [0u8; 65536];
            while let Ok(length @ 1..) = stream.read(&mut buffer) {
                let mut state = target.lock().unwrap_or_else(PoisonError::into_inner);
                state.0.extend_from_slice(&buffer[..length]);
                if state.0.len() > BOUND {
                    let end = state.0.len() - KEPT / 2;
                    state.0.drain(KEPT..end);
                }
            }
            target.lock().unwrap_or_else(PoisonError::into_inner).1 = true;
        });
        Collected(shared)
    }

    /// What came, once the stream has ended or a moment has passed: a process that outlived its
    /// launcher may hold the other end.
    pub(super) fn take(&self) -> Vec<u8> {
        let started = Instant::now();
        loop {
            let state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            if state.1 || started.elapsed() > Duration::from_millis(300) {
                return state.0.clone();
            }
            drop(state);
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    pub(super) fn contains(&self, text: &str) -> bool {
        let state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        crate::oracle::contains(&state.0, text.as_bytes())
    }
}
