//! Times as the API writes them.

use jiff::Timestamp;
use std::time::{SystemTime, UNIX_EPOCH};

/// Microseconds since the epoch.
pub(crate) fn now() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    u64::try_from(since.unwrap_or_default().as_micros()).unwrap_or(u64::MAX)
}

/// Microseconds since the epoch as RFC 3339, in UTC.
pub(crate) fn rfc3339(microseconds: u64) -> String {
    rfc3339_signed(i64::try_from(microseconds).unwrap_or(i64::MAX))
}

/// The same for a time that may be before the epoch, or none at all: a cage says it.
pub(crate) fn rfc3339_signed(microseconds: i64) -> String {
    Timestamp::from_microsecond(microseconds)
        .unwrap_or(match microseconds < 0 {
            true => Timestamp::MIN,
            false => Timestamp::MAX,
        })
        .to_string()
}

/// Microseconds since the epoch of a time in RFC 3339.
pub(crate) fn parse(text: &str) -> Option<u64> {
    let time: Timestamp = text.parse().ok()?;
    u64::try_from(time.as_microsecond()).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_rfc_3339_and_none_is_out_of_range() {
        assert_eq!(rfc3339(0), "1970-01-01T00:00:00Z");
        assert_eq!(rfc3339(1_500_000), "1970-01-01T00:00:01.5Z");
        assert_eq!(parse("1970-01-01T00:00:01.5Z"), Some(1_500_000));
        assert!(rfc3339(u64::MAX).starts_with("9999"));
        assert!(rfc3339_signed(i64::MIN).starts_with("-009999"));
        assert_eq!(parse("yesterday"), None);
    }
}
