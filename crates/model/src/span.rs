//! A length of time, as a person reads it.

use std::fmt;

/// Milliseconds: `8 h`, `2 min 30 s`, `0.123 s`. What was measured is written with `{:#}`, which keeps
/// its thousandths where they happen to be none: `2.000 s`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Span(pub u64);

impl fmt::Display for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (seconds, rest) = (self.0 / 1000, self.0 % 1000);
        let (hours, minutes, seconds) = (seconds / 3600, seconds / 60 % 60, seconds % 60);
        let mut gap = "";
        for (count, unit) in [(hours, "h"), (minutes, "min")] {
            if count > 0 {
                write!(f, "{gap}{count} {unit}")?;
                gap = " ";
            }
        }
        match (seconds, rest) {
            _ if f.alternate() => write!(f, "{gap}{seconds}.{rest:03} s"),
            (0, 0) if !gap.is_empty() => Ok(()),
            (_, 0) => write!(f, "{gap}{seconds} s"),
            _ => write!(f, "{gap}{seconds}.{rest:03} s"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units_that_are_nothing_are_left_out() {
        let told = [
            (0, "0 s"),
            (123, "0.123 s"),
            (30_000, "30 s"),
            (59_999, "59.999 s"),
            (150_000, "2 min 30 s"),
            (600_000, "10 min"),
            (3_600_000, "1 h"),
            (3_605_007, "1 h 5.007 s"),
            (28_860_000, "8 h 1 min"),
            (u64::MAX, "5124095576030 h 25 min 51.615 s"),
        ];
        for (time, text) in told {
            assert_eq!(Span(time).to_string(), text);
        }
        assert_eq!(
            format!("{:#} {:#}", Span(0), Span(62_000)),
            "0.000 s 1 min 2.000 s"
        );
    }
}
