//! A command as a person is shown it: its words as a shell would take them.

use ironcage_control::Bytes;

/// Bytes of it that are looked at: a person is shown less.
const LOOKED_AT: usize = 4096;

/// The words of a command, quoted so that their limits are seen.
pub(super) fn shell_words(argv: &[Bytes]) -> String {
    let mut text = String::new();
    for word in argv {
        if !text.is_empty() {
            text.push(' ');
        }
        if text.len() > LOOKED_AT {
            text.push_str("...");
            break;
        }
        let word = word.0.get(..LOOKED_AT).unwrap_or(&word.0);
        text.push_str(&quoted(&String::from_utf8_lossy(word)));
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
}
