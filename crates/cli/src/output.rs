//! Printing to standard output, and how numbers and long texts are written there.

use crate::error::CliError;
use std::io::{self, Write};

/// Prints to standard output. A reader that has gone away, as `head` does, is not an error.
pub(crate) fn print(write: impl FnOnce(&mut dyn Write) -> io::Result<()>) -> Result<(), CliError> {
    let mut out = io::BufWriter::new(io::stdout().lock());
    match write(&mut out).and_then(|()| out.flush()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(CliError::new(format!(
            "cannot write to standard output: {error}"
        ))),
        _ => Ok(()),
    }
}

/// Prints a text in lines of moderate length, those after the first indented below it.
pub(crate) fn wrap(out: &mut dyn Write, first: &str, text: &str) -> io::Result<()> {
    const WIDTH: usize = 96;
    write!(out, "{first}")?;
    let indent = first.chars().count();
    let mut column = indent;
    for (i, word) in text.split_whitespace().enumerate() {
        let length = word.chars().count();
        if i > 0 && column + 1 + length > WIDTH {
            write!(out, "\n{:indent$}", "")?;
            column = indent;
        } else if i > 0 {
            write!(out, " ")?;
            column += 1;
        }
        write!(out, "{word}")?;
        column += length;
    }
    writeln!(out)
}

/// A number of bytes in a unit that keeps it below five digits.
pub(crate) fn size(bytes: u64) -> String {
    let mut value = bytes;
    for unit in ["B", "KiB", "MiB"] {
        if value < 10_000 {
            return format!("{value} {unit}");
        }
        value = value.div_ceil(1024);
    }
    format!("{value} GiB")
}

/// Microseconds since the epoch as a date and time, to the millisecond, in UTC.
pub(crate) fn utc(microseconds: u64) -> String {
    let seconds = microseconds / 1_000_000;
    let (days, second) = (seconds / 86_400, seconds % 86_400);
    let (year, month, day) = date(days);
    format!(
        "{year:04}-{month:02}-{day:02} {:02}:{:02}:{:02}.{:03}",
        second / 3600,
        second / 60 % 60,
        second % 60,
        microseconds / 1000 % 1000
    )
}

/// The Gregorian date of a day since 1970-01-01. Years begin in March here, so that the
/// leap day is the last of its year; 719,468 days lie between that calendar's origin and 1970.
fn date(days: u64) -> (u64, u64, u64) {
    let days = days + 719_468;
    let (era, day) = (days / 146_097, days % 146_097);
    let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let day_of_month = day - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    let year = year + era * 400 + u64::from(month <= 2);
    (year, month, day_of_month)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_those_of_the_calendar() {
        assert_eq!(utc(0), "1970-01-01 00:00:00.000");
        assert_eq!(utc(951_782_400_000_000), "2000-02-29 00:00:00.000");
        assert_eq!(utc(1_709_251_199_999_000), "2024-02-29 23:59:59.999");
        assert_eq!(utc(1_772_323_200_000_000), "2026-03-01 00:00:00.000");
        // The end of time, which only a forged line can hold.
        assert!(
            utc(u64::MAX).starts_with("586524-01-19"),
            "{}",
            utc(u64::MAX)
        );
    }

    #[test]
    fn sizes_are_short_and_never_rounded_down_to_nothing() {
        assert_eq!(size(0), "0 B");
        assert_eq!(size(9_999), "9999 B");
        assert_eq!(size(10_240), "10 KiB");
        assert_eq!(size(20 << 20), "20 MiB");
        assert_eq!(size(u64::from(u32::MAX) * 100), "400 GiB");
    }
}
