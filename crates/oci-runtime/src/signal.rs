//! Signals by name or number, as engines give them.

use crate::error::Error;

const NAMES: [&str; 31] = [
    "HUP", "INT", "QUIT", "ILL", "TRAP", "ABRT", "BUS", "FPE", "KILL", "USR1", "SEGV", "USR2",
    "PIPE", "ALRM", "TERM", "STKFLT", "CHLD", "CONT", "STOP", "TSTP", "TTIN", "TTOU", "URG",
    "XCPU", "XFSZ", "VTALRM", "PROF", "WINCH", "IO", "PWR", "SYS",
];
/// The first real-time signal that a libc leaves to programs, and the last.
const REAL_TIME: (i32, i32) = (34, 64);

pub(crate) fn parse(text: &str) -> Result<i32, Error> {
    let refuse = || {
        Error::refused(
            format!("send the signal {text:?}"),
            "expected a name or a number to 64",
        )
    };
    if let Ok(number) = text.parse::<i32>() {
        return match (0..=REAL_TIME.1).contains(&number) {
            true => Ok(number),
            false => Err(refuse()),
        };
    }
    let upper = text.to_ascii_uppercase();
    let name = upper.strip_prefix("SIG").unwrap_or(&upper);
    if let Some(index) = NAMES.iter().position(|known| *known == name) {
        return i32::try_from(index + 1).map_err(|_| refuse());
    }
    let real_time = |offset: &str, start: i32, sign: i32| {
        let offset: i32 = match offset {
            "" => 0,
            digits => digits.get(1..)?.parse().ok()?,
        };
        let number = start.checked_add(offset.checked_mul(sign)?)?;
        (REAL_TIME.0..=REAL_TIME.1)
            .contains(&number)
            .then_some(number)
    };
    let found = match (name.strip_prefix("RTMIN"), name.strip_prefix("RTMAX")) {
        (Some(offset), _) => real_time(offset, REAL_TIME.0, 1),
        (_, Some(offset)) => real_time(offset, REAL_TIME.1, -1),
        _ => None,
    };
    found.ok_or_else(refuse)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signals_have_names_and_numbers() {
        for (text, number) in [
            ("KILL", 9),
            ("SIGTERM", 15),
            ("term", 15),
            ("9", 9),
            ("SYS", 31),
            ("RTMIN+3", 37),
            ("SIGRTMAX-1", 63),
            ("0", 0),
        ] {
            assert_eq!(parse(text).unwrap(), number, "{text}");
        }
        for text in ["", "65", "-1", "KILLED", "RTMIN+31", "RTMAX-99999999999"] {
            assert!(parse(text).is_err(), "{text}");
        }
    }
}
