//! How far a download is, on one line of a terminal; elsewhere nothing.

use crate::images::size;
use std::io::IsTerminal as _;
use std::time::{Duration, Instant};

/// How often the line is drawn.
const PACE: Duration = Duration::from_millis(100);

pub(crate) struct Progress {
    drawn: bool,
    last: Option<Instant>,
}

impl Progress {
    pub(crate) fn new(quiet: bool) -> Self {
        Progress {
            drawn: !quiet && std::io::stderr().is_terminal(),
            last: None,
        }
    }

    pub(crate) fn layer(&mut self, number: usize, count: usize, done: u64, of: u64) {
        if self.last.is_some_and(|last| last.elapsed() < PACE) {
            return;
        }
        self.last = Some(Instant::now());
        self.draw(&format!(
            "layer {number} of {count}: {} of {}",
            size(done),
            size(of)
        ));
    }

    pub(crate) fn unpacking(&self, number: usize, count: usize) {
        self.draw(&format!("unpacking layer {number} of {count}"));
    }

    fn draw(&self, text: &str) {
        if self.drawn {
            anstream::eprint!("\r\u{1b}[K{text}");
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if self.drawn {
            anstream::eprint!("\r\u{1b}[K");
        }
    }
}
