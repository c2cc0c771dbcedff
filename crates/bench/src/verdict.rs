//! A number beside the target that the project set for it.

use serde::Serialize;
use std::fmt;

/// What a number should be at most.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Target {
    pub at_most: f64,
    /// In which unit; empty for a ratio.
    pub unit: &'static str,
}

/// A number, its target, and whether it was met.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Verdict {
    /// What the number is.
    pub what: String,
    pub value: f64,
    pub target: Target,
    pub met: bool,
}

impl Verdict {
    /// Holds `value` against `target`. A value that is not a number meets nothing.
    pub fn new(what: impl Into<String>, value: f64, target: Target) -> Self {
        Verdict {
            what: what.into(),
            value,
            target,
            met: value <= target.at_most,
        }
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Target { at_most, unit } = self.target;
        let space = if unit.is_empty() { "" } else { " " };
        let word = if self.met { "met" } else { "missed" };
        // As written in the requirement; a quotient has two decimals.
        let precision = (0..2)
            .find(|digits| {
                let scale = 10_f64.powi(*digits);
                (at_most * scale - (at_most * scale).round()).abs() < 1e-9
            })
            .map_or(2, |digits| digits as usize);
        write!(
            f,
            "{}: {:.2}{space}{unit} (target at most {at_most:.precision$}{space}{unit}: {word})",
            self.what, self.value
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RATIO: Target = Target {
        at_most: 0.6,
        unit: "",
    };

    #[test]
    fn the_bound_itself_is_met_and_above_it_is_missed() {
        assert!(Verdict::new("r", 0.6, RATIO).met);
        assert!(!Verdict::new("r", 0.61, RATIO).met);
        assert!(!Verdict::new("r", f64::NAN, RATIO).met);
    }

    #[test]
    fn verdict_reads_as_a_sentence() {
        let ratio = Verdict::new("added, by median", 0.71, RATIO).to_string();
        assert_eq!(ratio, "added, by median: 0.71 (target at most 0.6: missed)");
        let bound = Target {
            at_most: 60.0,
            unit: "ns",
        };
        let time = Verdict::new("getppid", 49.0, bound).to_string();
        assert_eq!(time, "getppid: 49.00 ns (target at most 60 ns: met)");
    }
}
