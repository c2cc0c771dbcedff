//! Amounts as text: `2G`, `50%`, `1.5`, `30m`, `none`.
//!
//! Parses, prints and compares them. The host's resources are arguments; nothing here reads them.

use crate::{Amount, Cpus};
use serde::Serialize;
use std::fmt;
use std::str::FromStr;
use std::time::Duration;

/// Text that is not an amount of the wanted kind.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("cannot parse `{}`; expected {wanted}", .text.escape_debug())]
pub struct InvalidQuantity {
    pub text: String,
    /// What can be written instead, with an example.
    pub wanted: &'static str,
}

const AMOUNT: &str =
    "a size of at least 1M with its unit, such as \"512M\" or \"2G\", or a share such as \"50%\"";
const CPUS: &str = "a number of CPUs such as 1.5, or a share of them such as \"50%\"";
const TIME: &str = "a time of at least 1s such as \"90s\", \"30m\" or \"2h\", or \"none\"";

const MEBIBYTE: u64 = 1 << 20;
/// A year: a limit beyond it is a slip of the pen.
const LONGEST: u64 = 365 * 24 * 3600;
/// More processors than any host has.
const MOST_CPUS: f64 = 8192.0;

fn percent(text: &str) -> Option<u8> {
    let share = text.strip_suffix('%')?.trim_end().parse().ok()?;
    (1..=100).contains(&share).then_some(share)
}

impl Amount {
    /// The amount in bytes on a host that has `total`.
    pub fn of(self, total: u64) -> u64 {
        let share = |percent: u8| (u128::from(total) * u128::from(percent) / 100) as u64;
        match self {
            Amount::Bytes(bytes) => bytes,
            Amount::Percent(percent) => share(percent),
            Amount::Least { bytes, percent } => bytes.min(share(percent)),
        }
    }

    fn parts(self) -> (Option<u64>, Option<u8>) {
        match self {
            Amount::Bytes(bytes) => (Some(bytes), None),
            Amount::Percent(percent) => (None, Some(percent)),
            Amount::Least { bytes, percent } => (Some(bytes), Some(percent)),
        }
    }

    /// Whether it is no larger than `other`, whatever the host has.
    pub(crate) fn is_within(self, other: Amount) -> bool {
        parts_within(self.parts(), other.parts())
    }

    /// The smaller of the two, whatever the host has.
    pub(crate) fn least(self, other: Amount) -> Amount {
        match least_parts(self.parts(), other.parts()) {
            (Some(bytes), Some(percent)) => Amount::Least { bytes, percent },
            (Some(bytes), None) => Amount::Bytes(bytes),
            (None, Some(percent)) => Amount::Percent(percent),
            (None, None) => self,
        }
    }
}

impl Cpus {
    /// Thousandths of one processor on a host that has this many.
    pub fn milli_of(self, processors: u32) -> u32 {
        let share = |percent: u8| {
            let milli = u64::from(processors) * 10 * u64::from(percent);
            u32::try_from(milli).unwrap_or(u32::MAX).max(1)
        };
        match self {
            Cpus::Milli(milli) => milli,
            Cpus::Percent(percent) => share(percent),
            Cpus::Least { milli, percent } => milli.min(share(percent)),
        }
    }

    fn parts(self) -> (Option<u32>, Option<u8>) {
        match self {
            Cpus::Milli(milli) => (Some(milli), None),
            Cpus::Percent(percent) => (None, Some(percent)),
            Cpus::Least { milli, percent } => (Some(milli), Some(percent)),
        }
    }

    /// Whether it is no larger than `other`, whatever the host has.
    pub(crate) fn is_within(self, other: Cpus) -> bool {
        parts_within(self.parts(), other.parts())
    }

    /// The smaller of the two, whatever the host has.
    pub(crate) fn least(self, other: Cpus) -> Cpus {
        match least_parts(self.parts(), other.parts()) {
            (Some(milli), Some(percent)) => Cpus::Least { milli, percent },
            (Some(milli), None) => Cpus::Milli(milli),
            (None, Some(percent)) => Cpus::Percent(percent),
            (None, None) => self,
        }
    }

    /// From a plain number of processors.
    pub(crate) fn from_number(number: f64) -> Option<Cpus> {
        // One hundredth is the least that the kernel's quota can hold to.
        if !(0.01..=MOST_CPUS).contains(&number) {
            return None;
        }
        Some(Cpus::Milli((number * 1000.0).round() as u32))
    }
}

/// Every bound of `b` is held by the same form of bound in `a`.
fn parts_within<T: Ord + Copy>(a: (Option<T>, Option<u8>), b: (Option<T>, Option<u8>)) -> bool {
    fn held<U: Ord>(a: Option<U>, b: Option<U>) -> bool {
        match (a, b) {
            (_, None) => true,
            (Some(a), Some(b)) => a <= b,
            (None, Some(_)) => false,
        }
    }
    held(a.0, b.0) && held(a.1, b.1)
}

fn least_parts<T: Ord + Copy>(
    a: (Option<T>, Option<u8>),
    b: (Option<T>, Option<u8>),
) -> (Option<T>, Option<u8>) {
    fn least<U: Ord>(a: Option<U>, b: Option<U>) -> Option<U> {
        match (a, b) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, None) => a,
            (None, b) => b,
        }
    }
    (least(a.0, b.0), least(a.1, b.1))
}

/// A size in bytes, as policies write it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Size(pub u64);

impl FromStr for Size {
    type Err = InvalidQuantity;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text.parse() {
            Ok(Amount::Bytes(bytes)) => Ok(Size(bytes)),
            _ => Err(InvalidQuantity {
                text: text.to_owned(),
                wanted: "a size of at least 1M with its unit, such as \"512M\" or \"2G\"",
            }),
        }
    }
}

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&ironcage_model::bytes_as_written(self.0))
    }
}

impl FromStr for Amount {
    type Err = InvalidQuantity;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let invalid = || InvalidQuantity {
            text: text.to_owned(),
            wanted: AMOUNT,
        };
        let trimmed = text.trim();
        if let Some(share) = percent(trimmed) {
            return Ok(Amount::Percent(share));
        }
        let digits = trimmed
            .find(|c: char| !c.is_ascii_digit())
            .unwrap_or(trimmed.len());
        let (number, unit) = trimmed.split_at(digits);
        let number: u64 = number.parse().map_err(|_| invalid())?;
        let factor = match unit.trim_start().to_ascii_uppercase().as_str() {
            "" | "B" => 1,
            "K" | "KB" | "KIB" => 1 << 10,
            "M" | "MB" | "MIB" => MEBIBYTE,
            "G" | "GB" | "GIB" => 1 << 30,
            "T" | "TB" | "TIB" => 1 << 40,
            _ => return Err(invalid()),
        };
        number
            .checked_mul(factor)
            // Sizes are passed to the kernel as signed numbers.
            .filter(|bytes| (MEBIBYTE..=i64::MAX as u64).contains(bytes))
            .map(Amount::Bytes)
            .ok_or_else(invalid)
    }
}

impl FromStr for Cpus {
    type Err = InvalidQuantity;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let trimmed = text.trim();
        percent(trimmed)
            .map(Cpus::Percent)
            .or_else(|| trimmed.parse().ok().and_then(Cpus::from_number))
            .ok_or_else(|| InvalidQuantity {
                text: text.to_owned(),
                wanted: CPUS,
            })
    }
}

/// A bound on time, or none.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TimeLimit(pub Option<Duration>);

impl FromStr for TimeLimit {
    type Err = InvalidQuantity;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let invalid = || InvalidQuantity {
            text: text.to_owned(),
            wanted: TIME,
        };
        let trimmed = text.trim();
        if trimmed == "none" {
            return Ok(TimeLimit(None));
        }
        let digits = trimmed
            .find(|c: char| !c.is_ascii_digit())
            .unwrap_or(trimmed.len());
        let (number, unit) = trimmed.split_at(digits);
        let number: u64 = number.parse().map_err(|_| invalid())?;
        let factor = match unit.trim_start() {
            // A bare number is seconds, as with timeout(1).
            "" | "s" => 1,
            "m" | "min" => 60,
            "h" => 3600,
            "d" => 24 * 3600,
            _ => return Err(invalid()),
        };
        number
            .checked_mul(factor)
            .filter(|seconds| (1..=LONGEST).contains(seconds))
            .map(|seconds| TimeLimit(Some(Duration::from_secs(seconds))))
            .ok_or_else(invalid)
    }
}

impl fmt::Display for Amount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Amount::Bytes(bytes) => write_bytes(f, *bytes),
            Amount::Percent(percent) => write!(f, "{percent}%"),
            Amount::Least { bytes, percent } => {
                write_bytes(f, *bytes)?;
                write!(f, " or {percent}%, whichever is less")
            }
        }
    }
}

fn write_bytes(f: &mut fmt::Formatter<'_>, bytes: u64) -> fmt::Result {
    for (unit, size) in [
        ("T", 1u64 << 40),
        ("G", 1 << 30),
        ("M", 1 << 20),
        ("K", 1 << 10),
    ] {
        if bytes >= size && bytes.is_multiple_of(size) {
            return write!(f, "{}{unit}", bytes / size);
        }
    }
    write!(f, "{bytes}")
}

impl fmt::Display for Cpus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Cpus::Milli(milli) => write!(f, "{}", f64::from(*milli) / 1000.0),
            Cpus::Percent(percent) => write!(f, "{percent}%"),
            Cpus::Least { milli, percent } => {
                let number = f64::from(*milli) / 1000.0;
                write!(f, "{number} or {percent}%, whichever is less")
            }
        }
    }
}

impl fmt::Display for TimeLimit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(duration) = self.0 else {
            return f.write_str("none");
        };
        let seconds = duration.as_secs();
        for (unit, size) in [("d", 24 * 3600), ("h", 3600), ("m", 60)] {
            if seconds >= size && seconds.is_multiple_of(size) {
                return write!(f, "{}{unit}", seconds / size);
            }
        }
        write!(f, "{seconds}s")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn amounts_are_sizes_or_shares() {
        assert_eq!("2G".parse(), Ok(Amount::Bytes(2 << 30)));
        assert_eq!("512 MiB".parse(), Ok(Amount::Bytes(512 << 20)));
        assert_eq!("50%".parse(), Ok(Amount::Percent(50)));
        for bad in [
            "",
            "%",
            "0%",
            "101%",
            "-1G",
            "2X",
            "1K",
            "99999999999T",
            "1.5G",
            "G",
        ] {
            assert!(bad.parse::<Amount>().is_err(), "{bad}");
        }
    }

    #[test]
    fn processors_are_numbers_or_shares() {
        assert_eq!("1.5".parse(), Ok(Cpus::Milli(1500)));
        assert_eq!("50%".parse(), Ok(Cpus::Percent(50)));
        for bad in ["0", "-1", "nan", "inf", "1e9", "", "two"] {
            assert!(bad.parse::<Cpus>().is_err(), "{bad}");
        }
    }

    #[test]
    fn times_have_units_or_are_none() {
        let seconds = |n| Ok(TimeLimit(Some(Duration::from_secs(n))));
        assert_eq!("90s".parse(), seconds(90));
        assert_eq!("30m".parse(), seconds(1800));
        assert_eq!("15".parse(), seconds(15));
        assert_eq!("none".parse(), Ok(TimeLimit(None)));
        for bad in ["0s", "1w", "", "m", "-5s", "999999999d"] {
            assert!(bad.parse::<TimeLimit>().is_err(), "{bad}");
        }
    }

    #[test]
    fn what_is_printed_parses_back() {
        for text in ["2G", "50%", "513M"] {
            assert_eq!(text.parse::<Amount>().unwrap().to_string(), text);
        }
        for text in ["90s", "30m", "2h", "none", "1d"] {
            assert_eq!(text.parse::<TimeLimit>().unwrap().to_string(), text);
        }
        assert_eq!("1.5".parse::<Cpus>().unwrap().to_string(), "1.5");
    }

    #[test]
    fn a_size_and_a_share_make_the_lesser_of_both() {
        let both = Amount::Bytes(4 << 30).least(Amount::Percent(50));
        assert_eq!(both.of(2 << 30), 1 << 30);
        assert_eq!(both.of(100 << 30), 4 << 30);
        assert!(both.is_within(Amount::Percent(50)) && both.is_within(Amount::Bytes(4 << 30)));
        assert!(!Amount::Bytes(1 << 20).is_within(Amount::Percent(50)));
        assert_eq!(Cpus::Percent(50).milli_of(4), 2000);
        assert_eq!(Cpus::Milli(1500).least(Cpus::Percent(50)).milli_of(2), 1000);
    }
}
