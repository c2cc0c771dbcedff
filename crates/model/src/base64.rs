//! Base64, in the two alphabets that the standard has.

const PLAIN: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

/// Bytes as text, filled up with `=`.
pub fn encode(bytes: &[u8]) -> String {
    let mut out = letters(bytes);
    while !out.len().is_multiple_of(4) {
        out.push('=');
    }
    out
}

/// Bytes as text in the alphabet for names (`-` and `_`), not filled up.
pub fn encode_for_names(bytes: &[u8]) -> String {
    letters(bytes).replace('+', "-").replace('/', "_")
}

fn letters(bytes: &[u8]) -> String {
    let mut out = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for three in bytes.chunks(3) {
        let word = three
            .iter()
            .fold(0_u32, |word, byte| word << 8 | u32::from(*byte));
        let word = word << (8 * (3 - three.len()));
        for at in 0..=three.len() {
            let index = (word >> (18 - 6 * at) & 63) as usize;
            out.push(PLAIN.get(index).copied().map_or('=', char::from));
        }
    }
    out
}

/// The bytes of a text in the plain alphabet, filled up or not. `None` where it holds anything else.
pub fn decode(text: &str) -> Option<Vec<u8>> {
    bytes(text.trim_end_matches('=').bytes())
}

/// The bytes of a text in either alphabet; what follows the first `=` is left out.
pub fn decode_either(text: &[u8]) -> Option<Vec<u8>> {
    let plain = |byte: &u8| match byte {
        b'-' => b'+',
        b'_' => b'/',
        other => *other,
    };
    bytes(text.iter().take_while(|byte| **byte != b'=').map(plain))
}

fn bytes(letters: impl Iterator<Item = u8>) -> Option<Vec<u8>> {
    let mut out = Vec::with_capacity(letters.size_hint().0 / 4 * 3);
    let (mut bits, mut held) = (0_u32, 0);
    for letter in letters {
        let value = match letter {
            b'A'..=b'Z' => letter - b'A',
            b'a'..=b'z' => letter - b'a' + 26,
            b'0'..=b'9' => letter - b'0' + 52,
            b'+' => 62,
            b'/' => 63,
            _ => return None,
        };
        bits = bits << 6 | u32::from(value);
        held += 6;
        if held >= 8 {
            held -= 8;
            out.push((bits >> held & 0xff) as u8);
        }
    }
    Some(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_as_the_standard_has_it() {
        let known = [
            ("", "", ""),
            ("f", "Zg==", "Zg"),
            ("fo", "Zm8=", "Zm8"),
            ("foo", "Zm9v", "Zm9v"),
            ("foob?>", "Zm9vYj8+", "Zm9vYj8-"),
        ];
        for (plain, text, name) in known {
            assert_eq!(encode(plain.as_bytes()), text);
            assert_eq!(encode_for_names(plain.as_bytes()), name);
            assert_eq!(decode(text).unwrap(), plain.as_bytes());
            assert_eq!(decode_either(name.as_bytes()).unwrap(), plain.as_bytes());
        }
        assert_eq!(decode("Zm9vYj8-"), None);
        assert_eq!(decode("Zg=="), decode("Zg"));
        assert_eq!(decode("Z g"), None);
        assert_eq!(decode_either(b"!"), None);
    }

    #[test]
    fn every_length_comes_back() {
        let all: Vec<u8> = (0..=255).chain((0..=255).rev()).collect();
        for end in 0..all.len() {
            let bytes = &all[..end];
            assert_eq!(decode(&encode(bytes)).unwrap(), bytes);
            assert_eq!(
                decode_either(encode_for_names(bytes).as_bytes()).unwrap(),
                bytes
            );
        }
    }
}
