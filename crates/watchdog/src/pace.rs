//! How long to wait until the next look. Pure.

use std::time::Duration;

/// No processor fills fresh pages faster than about this many bytes in a second; several
/// together reach it too.
const FILL_RATE: u64 = 4 << 30;
/// And no file system makes more files than this.
const FILE_RATE: u64 = 200_000;
const SHORTEST: Duration = Duration::from_millis(5);
const LONGEST: Duration = Duration::from_millis(500);
/// Looking may take one part in this many of the time.
const COST_SHARE: u32 = 20;
/// And near a limit, where a late look is worse than a dear one.
const COST_SHARE_NEAR: u32 = 4;
/// Even looks that cost much come at least this often.
const LONGEST_FOR_COST: Duration = Duration::from_secs(5);

/// The pause after a look that found `used` of `limit` and took `cost`: shorter than it takes to
/// fill what is left, within bounds, and long enough for the cost.
pub(crate) fn next_check(used: u64, limit: u64, cost: Duration) -> Duration {
    let left = limit.saturating_sub(used);
    let to_fill = Duration::from_micros(left / (FILL_RATE / 1_000_000));
    let pause = to_fill.clamp(SHORTEST, LONGEST);
    let near = used > limit / 10 * 7;
    let share = if near { COST_SHARE_NEAR } else { COST_SHARE };
    pause.max((cost * share).min(LONGEST_FOR_COST))
}

/// The longest pause between two looks at free space, which cost next to nothing.
const LONGEST_FOR_STORAGE: Duration = Duration::from_millis(200);

/// The pause before the next look at free space, where so many bytes and files are left until
/// the cage could have passed a limit.
pub(crate) fn next_storage_check(bytes: u64, files: u64) -> Duration {
    let to_fill = Duration::from_micros(bytes / (FILL_RATE / 1_000_000));
    let to_make = Duration::from_micros(files.saturating_mul(1_000_000 / FILE_RATE));
    to_fill.min(to_make).clamp(SHORTEST, LONGEST_FOR_STORAGE)
}

/// The pause that makes a look's cost bearable.
pub(crate) fn affordable(cost: Duration) -> Duration {
    (cost * COST_SHARE).min(LONGEST_FOR_COST)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MEGABYTE: u64 = 1 << 20;
    const NOTHING: Duration = Duration::ZERO;

    #[test]
    fn the_nearer_the_limit_the_shorter_the_pause() {
        let pause = |used| next_check(used * MEGABYTE, 1024 * MEGABYTE, NOTHING);
        assert!(pause(0) > pause(300) && pause(300) > pause(700));
        assert_eq!(pause(1020), SHORTEST);
        assert_eq!(pause(5000), SHORTEST);
        assert_eq!(next_check(0, 1 << 40, NOTHING), LONGEST);
    }

    #[test]
    fn what_is_left_cannot_be_filled_before_the_next_look_unless_it_is_little() {
        for used in (0..2000).step_by(100) {
            let left = (2048 - used) * MEGABYTE;
            let pause = next_check(used * MEGABYTE, 2048 * MEGABYTE, NOTHING);
            let filled = FILL_RATE / 1000 * u64::try_from(pause.as_millis()).unwrap();
            assert!(filled <= left + left / 10 || pause == SHORTEST, "{used}");
        }
    }

    #[test]
    fn the_less_is_left_of_either_limit_the_sooner_free_space_is_looked_at() {
        let pause = next_storage_check;
        assert_eq!(pause(u64::MAX, u64::MAX), LONGEST_FOR_STORAGE);
        assert_eq!(pause(0, u64::MAX), SHORTEST);
        assert_eq!(pause(u64::MAX, 0), SHORTEST);
        assert_eq!(pause(u64::MAX, 5000), Duration::from_millis(25));
        assert!(pause(64 * MEGABYTE, u64::MAX) < Duration::from_millis(20));
    }

    #[test]
    fn an_expensive_look_is_made_less_often_but_not_never() {
        let cost = Duration::from_millis(10);
        assert_eq!(next_check(0, MEGABYTE, cost), Duration::from_millis(200));
        assert_eq!(
            next_check(MEGABYTE, MEGABYTE, cost),
            Duration::from_millis(40)
        );
        assert_eq!(affordable(Duration::from_secs(60)), LONGEST_FOR_COST);
    }
}
