//! How far a download is, as a bar on one line of a terminal; elsewhere nothing.

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
            "layer {number} of {count} {} {} of {}",
            bar(done, of),
            size(done),
            size(of)
        ));
    }

    /// `done` of the layers are unpacked.
    pub(crate) fn unpacking(&self, done: usize, count: usize) {
        if done < count {
            self.draw(&format!(
                "unpacking {} layer {} of {count}",
                bar(done as u64, count as u64),
                done + 1
            ));
        }
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

/// A part of a whole, in cells.
fn bar(done: u64, of: u64) -> String {
    const CELLS: u64 = 24;
    let filled = u128::from(done.min(of)) * u128::from(CELLS) / u128::from(of.max(1));
    let filled = usize::try_from(filled).unwrap_or_default();
    let open = CELLS as usize - filled;
    format!("[{}{}]", "#".repeat(filled), "-".repeat(open))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bar_shows_a_part_of_a_whole() {
        assert_eq!(bar(0, 10), "[------------------------]");
        assert_eq!(bar(5, 10), "[############------------]");
        // What a registry sends beyond its word, and sizes of nothing and of everything.
        for (done, of) in [(20, 10), (10, 10), (u64::MAX, u64::MAX)] {
            assert_eq!(bar(done, of), "[########################]");
        }
        assert_eq!(bar(0, 0), "[------------------------]");
    }
}
