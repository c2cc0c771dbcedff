//! The protocol of gpg-agent (Assuan): the named keys sign a hash, and nothing else is done.
//!
//! Most of what gpg asks is answered here. The real agent is asked for one signature at a time,
//! on its restricted socket, with a description of Ironcage's own for the passphrase prompt. It
//! gets no option of the cage: they name terminals and displays on which it would ask.

use crate::{Denial, Exchange, Progress, Step, Use};
use ironcage_model::{KeyPurpose, SigningReason};
use std::fmt::Write as _;

/// Longest line of the protocol.
pub const LONGEST_LINE: usize = 1000;
/// Longest answer of the real agent to one signature.
const LONGEST_ANSWER: usize = 64 * 1024;
/// What the agent says first.
pub(crate) const GREETING: &[u8] = b"OK Pleased to meet you\n";

const OK: &[u8] = b"OK\n";
/// Numbers of libgpg-error, as gpg-agent says them.
const FORBIDDEN: &str = "ERR 67109115 Forbidden <GPG Agent>\n";
const NO_SECRET_KEY: &str = "ERR 67108881 No secret key <GPG Agent>\n";
const NO_SIGNATURE: &str = "ERR 67108963 Operation cancelled <GPG Agent>\n";

/// A key that the cage may use.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GpgKey {
    /// Its name in the policy.
    pub name: String,
    /// Keygrips of what signs in it, in upper case.
    pub grips: Vec<String>,
}

/// What a cage may do with a gpg-agent.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct GpgRules {
    /// The real agent's version.
    pub version: String,
    /// Who asks, for the passphrase prompt.
    pub description: String,
    pub keys: Vec<GpgKey>,
}

impl GpgRules {
    fn find(&self, grip: &str) -> Option<&GpgKey> {
        let mut keys = self.keys.iter();
        keys.find(|key| key.grips.iter().any(|own| own.eq_ignore_ascii_case(grip)))
    }
}

/// What one connection has said.
#[derive(Debug, Default)]
pub struct GpgConnection {
    heard: Vec<u8>,
    /// The key that is to sign: its name and keygrip.
    key: Option<(String, String)>,
    /// The hash that is to be signed: the number of its algorithm, and its digits.
    hash: Option<(u32, String)>,
}

impl GpgConnection {
    pub(crate) fn receive(&mut self, bytes: &[u8]) {
        self.heard.extend_from_slice(bytes);
    }

    pub(crate) fn next(&mut self, rules: &GpgRules) -> Step {
        let end = self.heard.iter().position(|byte| *byte == b'\n');
        if end.unwrap_or(self.heard.len()) > LONGEST_LINE {
            let limit = LONGEST_LINE as u64;
            return Step::Close(Denial::of(SigningReason::KeyRequestTooLong { limit }));
        }
        let Some(end) = end else {
            return Step::More;
        };
        let line: Vec<u8> = self.heard.drain(..=end).collect();
        let line = line.strip_suffix(b"\n").unwrap_or(&line);
        match std::str::from_utf8(line) {
            Ok(line) => self.line(line.trim_end_matches('\r'), rules),
            Err(_) => Step::Close(Denial::of(SigningReason::KeyRequestMalformed)),
        }
    }

    fn line(&mut self, line: &str, rules: &GpgRules) -> Step {
        let (command, rest) = line.split_once(' ').unwrap_or((line, ""));
        let rest = rest.trim();
        let ok = || Step::Reply(OK.to_vec());
        match command.to_ascii_uppercase().as_str() {
            "" | "#" | "NOP" => ok(),
            // The real agent's own restricted socket takes none of them, either.
            "OPTION" | "SETKEYDESC" => ok(),
            "RESET" => {
                (self.key, self.hash) = (None, None);
                ok()
            }
            "BYE" => Step::Bye(b"OK closing connection\n".to_vec()),
            "GETINFO" => match rest {
                "version" => Step::Reply(format!("D {}\nOK\n", rules.version).into_bytes()),
                "restricted" => ok(),
                _ => Step::Reply(FORBIDDEN.into()),
            },
            "HAVEKEY" => match (rest.starts_with("--list"), has_one(rest, rules)) {
                (true, _) => Step::Reply(list(rules)),
                (false, true) => ok(),
                (false, false) => Step::Reply(NO_SECRET_KEY.into()),
            },
            "KEYINFO" => match rules.find(rest.rsplit(' ').next().unwrap_or_default()) {
                Some(_) => {
                    let grip = rest.rsplit(' ').next().unwrap_or_default();
                    let grip = grip.to_ascii_uppercase();
                    // A key on disk, of which nothing more is told.
                    Step::Reply(format!("S KEYINFO {grip} D - - - P - - -\nOK\n").into_bytes())
                }
                None => Step::Reply(NO_SECRET_KEY.into()),
            },
            "SIGKEY" => match rules.find(rest) {
                Some(key) => {
                    self.key = Some((key.name.clone(), rest.to_ascii_uppercase()));
                    ok()
                }
                None => {
                    self.key = None;
                    let key = is_grip(rest).then(|| rest.to_ascii_uppercase());
                    denied(key, SigningReason::KeyNotGiven, NO_SECRET_KEY)
                }
            },
            "SETHASH" => match hash(rest) {
                Some(hash) => {
                    self.hash = Some(hash);
                    ok()
                }
                None => {
                    self.hash = None;
                    denied(None, SigningReason::KeyRequestMalformed, FORBIDDEN)
                }
            },
            "PKSIGN" if rest.is_empty() => self.sign(rules),
            other => {
                let request = other.chars().take(32).collect();
                let reason = SigningReason::KeyRequestNotAllowed { request };
                denied(None, reason, FORBIDDEN)
            }
        }
    }

    fn sign(&mut self, rules: &GpgRules) -> Step {
        // A hash is signed once.
        let (Some((name, grip)), Some((algorithm, digits))) = (self.key.clone(), self.hash.take())
        else {
            return denied(None, SigningReason::KeyRequestMalformed, FORBIDDEN);
        };
        let exchange = GpgExchange::new(&grip, &rules.description, algorithm, &digits);
        Step::Use(Box::new(Use {
            key: name,
            purpose: KeyPurpose::OpenPgp,
            exchange: Exchange::Gpg(exchange),
            refused: NO_SIGNATURE.into(),
        }))
    }
}

fn denied(key: Option<String>, reason: SigningReason, reply: &str) -> Step {
    Step::Denied {
        denial: Denial {
            key,
            purpose: None,
            reason,
        },
        reply: reply.into(),
    }
}

fn is_grip(text: &str) -> bool {
    text.len() == 40 && text.bytes().all(|byte| byte.is_ascii_hexdigit())
}

fn has_one(grips: &str, rules: &GpgRules) -> bool {
    grips
        .split_ascii_whitespace()
        .any(|grip| rules.find(grip).is_some())
}

/// Every keygrip, as bytes in the protocol's escapes.
fn list(rules: &GpgRules) -> Vec<u8> {
    let mut answer = b"D ".to_vec();
    for grip in rules.keys.iter().flat_map(|key| &key.grips) {
        for at in (0..grip.len()).step_by(2) {
            let digits = grip.get(at..at + 2).unwrap_or_default();
            let byte = u8::from_str_radix(digits, 16).unwrap_or_default();
            match byte {
                b'%' | b'\r' | b'\n' => answer.extend(format!("%{byte:02X}").bytes()),
                byte => answer.push(byte),
            }
        }
    }
    answer.extend(b"\nOK\n");
    answer
}

/// The number of a hash algorithm and the digits of a hash, of a length that it has.
fn hash(text: &str) -> Option<(u32, String)> {
    let (algorithm, digits) = text.split_once(' ')?;
    let (number, bytes) = match algorithm {
        "2" | "--hash=sha1" => (2, 20),
        "8" | "--hash=sha256" => (8, 32),
        "9" | "--hash=sha384" => (9, 48),
        "10" | "--hash=sha512" => (10, 64),
        "11" | "--hash=sha224" => (11, 28),
        _ => return None,
    };
    let digits = digits.trim();
    let fits = digits.len() == bytes * 2 && digits.bytes().all(|byte| byte.is_ascii_hexdigit());
    fits.then(|| (number, digits.to_ascii_uppercase()))
}

/// A conversation with the real gpg-agent: one line at a time, then one signature.
#[derive(Debug)]
pub struct GpgExchange {
    /// What is still to be sent, the last first.
    lines: Vec<String>,
    heard: Vec<u8>,
    /// The signature's data lines, for the cage.
    signature: Vec<u8>,
}

impl GpgExchange {
    pub(crate) fn new(grip: &str, description: &str, algorithm: u32, digits: &str) -> Self {
        let mut escaped = String::new();
        for byte in description.bytes().take(200) {
            match byte {
                b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.' | b':' | b',' => {
                    escaped.push(char::from(byte));
                }
                // Writing to a string cannot fail.
                byte => drop(write!(escaped, "%{byte:02X}")),
            }
        }
        GpgExchange {
            lines: vec![
                "PKSIGN\n".into(),
                format!("SETHASH {algorithm} {digits}\n"),
                format!("SETKEYDESC {escaped}\n"),
                format!("SIGKEY {grip}\n"),
            ],
            heard: Vec::new(),
            signature: Vec::new(),
        }
    }

    /// Nothing: the agent speaks first.
    pub(crate) fn begin(&mut self) -> Vec<u8> {
        Vec::new()
    }

    pub(crate) fn receive(&mut self, bytes: &[u8]) -> Progress {
        self.heard.extend_from_slice(bytes);
        let refused = || Progress::Refused(NO_SIGNATURE.into());
        if self.heard.len() + self.signature.len() > LONGEST_ANSWER {
            return refused();
        }
        while let Some(end) = self.heard.iter().position(|byte| *byte == b'\n') {
            let line: Vec<u8> = self.heard.drain(..=end).collect();
            let word = line.split(|byte| matches!(byte, b' ' | b'\n')).next();
            match word.unwrap_or_default() {
                b"OK" => match self.lines.pop() {
                    Some(line) => return Progress::Send(line.into_bytes()),
                    None if self.signature.is_empty() => return refused(),
                    None => {
                        let mut reply = std::mem::take(&mut self.signature);
                        reply.extend_from_slice(OK);
                        return Progress::Signed(reply);
                    }
                },
                b"D" if self.lines.is_empty() => self.signature.extend_from_slice(&line),
                // That a prompt is shown; there is nothing to say to it.
                b"INQUIRE" => return Progress::Send(b"END\n".to_vec()),
                b"S" | b"#" | b"D" => {}
                _ => return refused(),
            }
        }
        Progress::More
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GRIP: &str = "8558A9D19C7287E08892909E3B1CE5A466871C10";
    const OTHER: &str = "0000000000000000000000000000000000000000";

    fn rules() -> GpgRules {
        GpgRules {
            version: "2.2.40".into(),
            description: "Ironcage: 100% \"ann\"\n".into(),
            keys: vec![GpgKey {
                name: "ann@example.org".into(),
                grips: vec![GRIP.into()],
            }],
        }
    }

    fn last(lines: &[&str]) -> Step {
        let mut connection = GpgConnection::default();
        let mut step = Step::More;
        for line in lines {
            connection.receive(line.as_bytes());
            connection.receive(b"\n");
            step = connection.next(&rules());
        }
        step
    }

    fn reply(lines: &[&str]) -> String {
        match last(lines) {
            Step::Reply(reply) => String::from_utf8(reply).unwrap(),
            other => panic!("no reply: {other:?}"),
        }
    }

    fn reason(lines: &[&str]) -> &'static str {
        match last(lines) {
            Step::Denied { denial, reply } => {
                assert!(reply.starts_with(b"ERR "));
                denial.reason.code()
            }
            Step::Close(denial) => denial.reason.code(),
            other => panic!("not denied: {other:?}"),
        }
    }

    fn set_hash() -> String {
        format!("SETHASH 8 {}", "ab".repeat(32))
    }

    #[test]
    fn a_hash_is_signed_by_the_named_key_with_a_description_of_our_own() {
        let (key, hash) = (format!("SIGKEY {GRIP}"), set_hash());
        let Step::Use(used) = last(&[&key, "SETKEYDESC trust+me", &hash, "PKSIGN"]) else {
            panic!("no use");
        };
        assert_eq!(
            (used.key.as_str(), used.purpose),
            ("ann@example.org", KeyPurpose::OpenPgp)
        );
        let Exchange::Gpg(mut exchange) = used.exchange else {
            panic!("another agent");
        };
        assert!(exchange.begin().is_empty());
        let mut sent = Vec::new();
        for answer in ["OK hello\n", "OK\n", "S PROGRESS x\nOK\n", "OK\n"] {
            match exchange.receive(answer.as_bytes()) {
                Progress::Send(line) => sent.push(String::from_utf8(line).unwrap()),
                other => panic!("{other:?}"),
            }
        }
        let description = "SETKEYDESC Ironcage:%20100%25%20%22ann%22%0A\n";
        let hash = format!("SETHASH 8 {}\n", "AB".repeat(32));
        assert_eq!(
            sent,
            [
                format!("SIGKEY {GRIP}\n").as_str(),
                description,
                &hash,
                "PKSIGN\n"
            ]
        );
        let inquired = exchange.receive(b"INQUIRE PINENTRY_LAUNCHED 1\n");
        assert_eq!(inquired, Progress::Send(b"END\n".to_vec()));
        assert_eq!(exchange.receive(b"D (sig"), Progress::More);
        let signed = exchange.receive(b")\nOK\n");
        assert_eq!(signed, Progress::Signed(b"D (sig)\nOK\n".to_vec()));
    }

    #[test]
    fn another_key_signs_nothing_and_a_hash_is_signed_once() {
        assert_eq!(reason(&[&format!("SIGKEY {OTHER}")]), "key-not-given");
        let (key, hash) = (format!("SIGKEY {GRIP}"), set_hash());
        let other = format!("SIGKEY {OTHER}");
        assert_eq!(
            reason(&[&key, &hash, &other, "PKSIGN"]),
            "key-request-malformed"
        );
        assert_eq!(
            reason(&[&key, &hash, "PKSIGN", "PKSIGN"]),
            "key-request-malformed"
        );
        assert_eq!(
            reason(&[&key, &hash, "RESET", "PKSIGN"]),
            "key-request-malformed"
        );
        assert!(matches!(last(&[&key, &hash, "pksign"]), Step::Use(_)));
    }

    #[test]
    fn everything_but_signing_is_refused() {
        for command in [
            "PKDECRYPT",
            "SETKEY x",
            "EXPORT_KEY x",
            "KEYWRAP_KEY --export",
            "IMPORT_KEY",
            "GENKEY",
            "DELETE_KEY x",
            "PASSWD x",
            "GET_PASSPHRASE x",
            "PRESET_PASSPHRASE x",
            "LEARN",
            "SCD SERIALNO",
            "READKEY x",
            "KEYTOCARD",
            "LISTTRUSTED",
            "MARKTRUSTED x",
            "PUTVAL x",
            "KILLAGENT",
            "RELOADAGENT",
            "PKSIGN --hash=sha1",
            "UPDATESTARTUPTTY",
        ] {
            assert_eq!(reason(&[command]), "key-request-not-allowed", "{command}");
        }
        for hash in [
            "SETHASH 8 ab",
            "SETHASH --inquire",
            "SETHASH 1 ab",
            "SETHASH 8 zz",
        ] {
            assert_eq!(reason(&[hash]), "key-request-malformed", "{hash}");
        }
        assert_eq!(
            reason(&[&"x".repeat(LONGEST_LINE + 1)]),
            "key-request-too-long"
        );
    }

    #[test]
    fn the_named_keys_are_there_and_no_others() {
        assert_eq!(reply(&[&format!("HAVEKEY {OTHER} {GRIP}")]), "OK\n");
        assert_eq!(reply(&[&format!("HAVEKEY {OTHER}")]), NO_SECRET_KEY);
        assert_eq!(reply(&[&format!("KEYINFO {OTHER}")]), NO_SECRET_KEY);
        assert_eq!(reply(&["KEYINFO --list"]), NO_SECRET_KEY);
        assert!(reply(&[&format!("KEYINFO {GRIP}")]).starts_with("S KEYINFO"));
        assert_eq!(reply(&["GETINFO version"]), "D 2.2.40\nOK\n");
        assert_eq!(reply(&["GETINFO socket_name"]), FORBIDDEN);
        assert_eq!(reply(&["OPTION display=evil"]), "OK\n");
        assert_eq!(list(&rules()).len(), 20 + 2 + 4);
    }

    #[test]
    fn an_agent_that_says_anything_else_has_not_signed() {
        for answer in ["ERR 1 no\n", "HTTP/1.1 200\n", "OK\nERR 2\n"] {
            let mut exchange = GpgExchange::new(GRIP, "x", 8, "00");
            exchange.begin();
            let progress = match exchange.receive(answer.as_bytes()) {
                Progress::Send(_) => exchange.receive(b""),
                other => other,
            };
            assert_eq!(progress, Progress::Refused(NO_SIGNATURE.into()), "{answer}");
        }
        let mut exchange = GpgExchange::new(GRIP, "x", 8, "00");
        let long = vec![b'x'; LONGEST_ANSWER + 1];
        assert!(matches!(exchange.receive(&long), Progress::Refused(_)));
    }
}
