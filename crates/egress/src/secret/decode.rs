//! Text with its escapes undone, for the redactor: as JSON, URLs and HTML write characters, and as
//! UTF-16 and UTF-32 do. Pure, and it knows nothing of what is looked for.

/// Decoded text, with the place in the original at which each of its bytes begins.
pub(super) struct Decoded {
    pub(super) text: Vec<u8>,
    /// One more than there are bytes: the last is the end.
    at: Vec<usize>,
}

impl Decoded {
    /// Where a part of the decoded text lies in the original.
    pub(super) fn original(&self, from: usize, to: usize) -> (usize, usize) {
        let place = |at: usize| self.at.get(at).copied().unwrap_or_default();
        (place(from), place(to))
    }

    fn new() -> Self {
        Decoded {
            text: Vec::new(),
            at: Vec::new(),
        }
    }

    fn push(&mut self, byte: u8, at: usize) {
        self.text.push(byte);
        self.at.push(at);
    }
}

/// How characters may be written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Escapes {
    /// `\u0041`, `\/`; two backslashes are one.
    Json,
    /// `%41`.
    Percent,
    /// `&#65;`, `&amp;`.
    Html,
    /// All of them, mixed; escaped several times, which leaves several backslashes.
    Any,
}

/// Every reading of a word other than the word itself.
pub(super) fn readings(word: &[u8]) -> Vec<Decoded> {
    let mut all = escaped(word);
    if word.contains(&0) {
        let narrow = narrow(word);
        let inner = escaped(&narrow.text);
        all.extend(inner.into_iter().map(|decoded| {
            Decoded {
                at: decoded
                    .at
                    .iter()
                    .map(|at| narrow.original(*at, *at).0)
                    .collect(),
                text: decoded.text,
            }
        }));
        all.push(narrow);
    }
    all
}

/// A word without its zero bytes: what UTF-16 and UTF-32 put between characters of ASCII.
fn narrow(word: &[u8]) -> Decoded {
    let mut decoded = Decoded::new();
    for (at, byte) in word.iter().enumerate().filter(|(_, byte)| **byte != 0) {
        decoded.push(*byte, at);
    }
    decoded.at.push(word.len());
    decoded
}

fn escaped(word: &[u8]) -> Vec<Decoded> {
    let has = |byte: u8| memchr::memchr(byte, word).is_some();
    let (json, percent, html) = (has(b'\\'), has(b'%'), has(b'&'));
    let mut all = Vec::new();
    for (escapes, there) in [
        (Escapes::Json, json),
        (Escapes::Percent, percent),
        (Escapes::Html, html),
        (Escapes::Any, json || percent && html),
    ] {
        if there {
            all.push(decode(word, escapes));
        }
    }
    all
}

fn decode(word: &[u8], escapes: Escapes) -> Decoded {
    let mut decoded = Decoded::new();
    let mut at = 0;
    while let Some(byte) = word.get(at) {
        let rest = word.get(at + 1..).unwrap_or_default();
        let is = |one: Escapes| escapes == one || escapes == Escapes::Any;
        let read = match byte {
            b'%' if is(Escapes::Percent) => {
                number(rest, 2, 16).map(|(byte, used)| (byte, used + 1))
            }
            b'&' if is(Escapes::Html) => entity(rest).map(|(byte, used)| (byte, used + 1)),
            b'\\' if escapes == Escapes::Json => backslash(rest).map(|(b, used)| (b, used + 1)),
            b'\\' if escapes == Escapes::Any => {
                let more = rest.iter().take_while(|byte| **byte == b'\\').count();
                let after = rest.get(more..).unwrap_or_default();
                match backslash(after) {
                    Some((byte, used)) => Some((byte, 1 + more + used)),
                    None => Some((b'\\', 1 + more)),
                }
            }
            _ => None,
        };
        let (byte, used) = read.unwrap_or((*byte, 1));
        decoded.push(byte, at);
        at += used;
    }
    decoded.at.push(word.len());
    decoded
}

/// Whether a byte stands between the hexadecimal digits of two bytes.
fn is_separator(byte: Option<&u8>) -> bool {
    byte.is_some_and(|byte| b" :-,\t\n".contains(byte))
}

/// The byte that two hexadecimal digits say.
fn pair(text: &[u8], at: usize) -> Option<u8> {
    number(text.get(at..)?, 2, 16).map(|(byte, _)| byte)
}

/// Every part of a text that is hexadecimal digits with one separator between bytes (`67 68 70`),
/// for so many bytes at least.
pub(super) fn spaced_hexadecimal(text: &[u8], least: usize) -> Vec<Decoded> {
    let mut all = Vec::new();
    let mut at = 0;
    while at < text.len() {
        let mut decoded = Decoded::new();
        let mut next = at;
        while let Some(byte) = pair(text, next) {
            decoded.push(byte, next);
            match is_separator(text.get(next + 2)) {
                true => next += 3,
                false => break,
            }
        }
        let Some(last) = decoded.at.last().copied() else {
            at += 1;
            continue;
        };
        // No other run begins before its last digit.
        at = last + 1;
        if decoded.text.len() >= least {
            decoded.at.push(last + 2);
            all.push(decoded);
        }
    }
    all
}

/// Where the end of a text begins that is hexadecimal digits with separators, and may go on so.
pub(super) fn spaced_hexadecimal_at_end(text: &[u8]) -> usize {
    let is_digit = |at: usize| text.get(at).is_some_and(u8::is_ascii_hexdigit);
    let whole = text.len();
    // Back to the end of the last whole pair.
    let mut end = whole;
    if let Some(last) = whole.checked_sub(1)
        && is_digit(last)
        && !last.checked_sub(1).is_some_and(is_digit)
    {
        end = last;
    }
    if let Some(last) = end.checked_sub(1)
        && is_separator(text.get(last))
    {
        end = last;
    }
    let mut start = whole;
    while let Some(at) = end.checked_sub(2).filter(|at| pair(text, *at).is_some()) {
        start = at;
        match at.checked_sub(1) {
            Some(before) if is_separator(text.get(before)) => end = before,
            _ => break,
        }
    }
    start
}

/// So many digits at the beginning of a text: the character, and how many bytes they were. What is
/// not ASCII is no character of a secret, and stays unlike any.
fn number(text: &[u8], digits: usize, radix: u32) -> Option<(u8, usize)> {
    let digits = std::str::from_utf8(text.get(..digits)?).ok()?;
    let plain = digits.bytes().all(|byte| byte.is_ascii_hexdigit());
    let value = u32::from_str_radix(digits, radix).ok().filter(|_| plain)?;
    let byte = u8::try_from(value).unwrap_or(u8::MAX);
    Some((byte, digits.len()))
}

/// What follows a backslash.
fn backslash(rest: &[u8]) -> Option<(u8, usize)> {
    match rest.first()? {
        b'u' => number(rest.get(1..)?, 4, 16).map(|(byte, used)| (byte, used + 1)),
        b'x' => number(rest.get(1..)?, 2, 16).map(|(byte, used)| (byte, used + 1)),
        // A letter after a backslash is not that letter.
        byte if byte.is_ascii_graphic() && !byte.is_ascii_alphanumeric() => Some((*byte, 1)),
        _ => None,
    }
}

/// Characters that have a name in HTML.
const NAMED: [(&str, u8); 30] = [
    ("amp", b'&'),
    ("apos", b'\''),
    ("ast", b'*'),
    ("bsol", b'\\'),
    ("colon", b':'),
    ("comma", b','),
    ("commat", b'@'),
    ("dollar", b'$'),
    ("equals", b'='),
    ("excl", b'!'),
    ("grave", b'`'),
    ("gt", b'>'),
    ("hat", b'^'),
    ("lbrace", b'{'),
    ("lowbar", b'_'),
    ("lpar", b'('),
    ("lsqb", b'['),
    ("lt", b'<'),
    ("num", b'#'),
    ("percnt", b'%'),
    ("period", b'.'),
    ("plus", b'+'),
    ("quest", b'?'),
    ("quot", b'"'),
    ("rbrace", b'}'),
    ("rpar", b')'),
    ("rsqb", b']'),
    ("semi", b';'),
    ("sol", b'/'),
    ("vert", b'|'),
];

/// What follows an ampersand, up to a semicolon.
fn entity(rest: &[u8]) -> Option<(u8, usize)> {
    const LONGEST: usize = 12;
    let end = rest.iter().take(LONGEST).position(|byte| *byte == b';')?;
    let name = std::str::from_utf8(rest.get(..end)?).ok()?;
    let byte = match name.strip_prefix('#') {
        Some(digits) => {
            let (digits, radix) = match digits.strip_prefix(['x', 'X']) {
                Some(digits) => (digits, 16),
                None => (digits, 10),
            };
            number(digits.as_bytes(), digits.len(), radix)?.0
        }
        None => {
            let known = NAMED
                .iter()
                .find(|(known, _)| known.eq_ignore_ascii_case(name));
            known?.1
        }
    };
    Some((byte, end + 1))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reads(word: &[u8]) -> Vec<String> {
        let all = readings(word).into_iter();
        all.map(|decoded| {
            assert_eq!(decoded.at.len(), decoded.text.len() + 1);
            assert_eq!(decoded.original(0, decoded.text.len()).1, word.len());
            String::from_utf8_lossy(&decoded.text).into_owned()
        })
        .collect()
    }

    #[test]
    fn spaced_digits_are_read_wherever_they_stand_and_known_at_an_end() {
        let read = |text: &str| -> Vec<String> {
            let all = spaced_hexadecimal(text.as_bytes(), 3).into_iter();
            all.map(|decoded| {
                let (from, to) = decoded.original(0, decoded.text.len());
                let said = String::from_utf8_lossy(&decoded.text).into_owned();
                format!("{said} in {}", text.get(from..to).unwrap_or_default())
            })
            .collect()
        };
        assert_eq!(read("<B>67 68 70</B>"), ["ghp in 67 68 70"]);
        assert_eq!(read("x:67:68:70:"), ["ghp in 67:68:70"]);
        assert_eq!(
            read("1067 68 7041 42 43"),
            ["ghp in 67 68 70", "ABC in 41 42 43"]
        );
        for none in [
            "67 68",
            "67  68  70",
            "676870",
            "6 7 6 8 7 0",
            "",
            "zz 67 68 zz",
        ] {
            assert!(read(none).is_empty(), "{none}");
        }
        for (text, end) in [
            ("", ""),
            ("a word", ""),
            ("said 12", "12"),
            ("<B>67 68", "67 68"),
            ("<B>67 68 ", "67 68 "),
            ("<B>67 68 7", "67 68 7"),
            ("<B>67 68 70 ", "67 68 70 "),
            ("<B>67 68 70<", ""),
            ("y ", ""),
            ("a", ""),
        ] {
            assert_eq!(
                &text[spaced_hexadecimal_at_end(text.as_bytes())..],
                end,
                "{text}"
            );
        }
    }

    #[test]
    fn characters_are_read_in_every_way_that_they_are_written() {
        for written in [
            r"a\/b",
            r"a\u002fb",
            r"a\u002Fb",
            r"a\x2fb",
            r"a\\/b",
            r"a\\\\u002fb",
            "a%2fb",
            "a%2Fb",
            "a&#47;b",
            "a&#x2F;b",
            "a&#0047;b",
            "a&sol;b",
            "a&SOL;b",
            "a\0/\0b",
            "\0a\0\\\0/\0b",
            "a\0\0\0%\0\0\x002\0\0\0F\0\0\0b\0\0",
        ] {
            let all = reads(written.as_bytes());
            assert!(all.iter().any(|one| one == "a/b"), "{written:?}: {all:?}");
        }
        assert!(reads(br"a\\b").iter().any(|one| one == r"a\b"));
        assert!(reads(b"a/b").is_empty());
        for left in [
            "100%", r"a\", "a&b", "a%2", "a&#47", r"a\u00", "%+1", "&#-1;",
        ] {
            assert!(
                reads(left.as_bytes()).iter().all(|one| one == left),
                "{left}"
            );
        }
    }
}
