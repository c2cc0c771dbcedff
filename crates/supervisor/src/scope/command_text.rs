//! A command as a person is shown it: its words as a shell would take them.

use ironcage_control::Bytes;

/// Bytes of it that are looked at: a person is shown less.
const LOOKED_AT: usize = 4096;
/// Marks where text was left out. A word has it only within quotes.
const MORE: &str = " ...";

/// The words of a command, quoted so that their limits are seen, and cut where it is long.
pub(super) fn shell_words(argv: &[Bytes]) -> String {
    words(argv, LOOKED_AT)
}

/// The words of a command, however long it is.
pub(super) fn all_shell_words(argv: &[Bytes]) -> String {
    words(argv, usize::MAX)
}

fn words(argv: &[Bytes], most: usize) -> String {
    let mut text = String::new();
    for word in argv {
        if text.len() > most {
            text.push_str(MORE);
            break;
        }
        if !text.is_empty() {
            text.push(' ');
        }
        let shown = word.0.get(..most).unwrap_or(&word.0);
        text.push_str(&quoted(&String::from_utf8_lossy(shown)));
        if shown.len() < word.0.len() {
            // A closing quote alone would say that this is all of it.
            text.push_str(MORE);
            break;
        }
    }
    text
}

fn quoted(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "_-./=:,@%+".contains(c);
    match !word.is_empty() && word.chars().all(plain) {
        true => word.to_owned(),
        false => format!("'{}'", word.replace('\'', r"'\''")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_limits_of_words_are_seen_and_long_ones_are_bounded() {
        let words = |words: &[&str]| -> Vec<Bytes> {
            let bytes = |word: &&str| Bytes(word.as_bytes().to_vec());
            words.iter().map(bytes).collect()
        };
        let shown = shell_words(&words(&["/bin/sh", "-c", "cat a 'b'", ""]));
        assert_eq!(shown, r"/bin/sh -c 'cat a '\''b'\''' ''");
        let long = "x".repeat(100_000);
        assert!(shell_words(&words(&[&long, &long, &long])).len() < 4 * LOOKED_AT);
    }

    #[test]
    fn what_was_left_out_is_seen_and_a_judge_is_told_all_of_it() {
        let hidden = format!("true {}; rm -rf ~", " ".repeat(LOOKED_AT));
        let argv = ["/bin/sh", "-c", &hidden].map(|word| Bytes(word.as_bytes().to_vec()));
        assert!(shell_words(&argv).ends_with(MORE));
        assert!(all_shell_words(&argv).ends_with("; rm -rf ~'"));
        let whole = ["/bin/sh", "-c", "true ..."].map(|word| Bytes(word.as_bytes().to_vec()));
        assert_eq!(shell_words(&whole), "/bin/sh -c 'true ...'");
        assert_eq!(all_shell_words(&whole), shell_words(&whole));
    }
}
