//! Names of signals.

const NAMES: [(&str, i32); 16] = [
    ("HUP", 1),
    ("INT", 2),
    ("QUIT", 3),
    ("ABRT", 6),
    ("KILL", 9),
    ("USR1", 10),
    ("SEGV", 11),
    ("USR2", 12),
    ("PIPE", 13),
    ("ALRM", 14),
    ("TERM", 15),
    ("CHLD", 17),
    ("CONT", 18),
    ("STOP", 19),
    ("TSTP", 20),
    ("WINCH", 28),
];

/// The number of a signal, from its name or its number.
pub(crate) fn number(text: &str) -> Option<i32> {
    if let Ok(number) = text.parse() {
        return (1..=64).contains(&number).then_some(number);
    }
    let upper = text.to_ascii_uppercase();
    let name = upper.strip_prefix("SIG").unwrap_or(&upper);
    NAMES
        .iter()
        .find(|(known, _)| *known == name)
        .map(|(_, number)| *number)
}

#[cfg(test)]
mod tests {
    use super::number;

    #[test]
    fn signals_have_names_and_numbers() {
        assert_eq!(number("SIGTERM"), Some(15));
        assert_eq!(number("kill"), Some(9));
        assert_eq!(number("2"), Some(2));
        for text in ["", "0", "65", "-1", "SIG", "NOPE"] {
            assert_eq!(number(text), None, "{text}");
        }
    }
}
