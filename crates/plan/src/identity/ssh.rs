//! What ssh in the cage knows: settings of its own, and the keys of allowed hosts as the user
//! knows them.
//!
//! No key, agent or setting of the user's comes in. Of the known hosts a line is made anew from
//! the name of an allowed host and its key, so that nobody inside learns other names and
//! addresses that the user's line had, nor its comment.

use hmac::{Hmac, KeyInit as _, Mac as _};
use sha1::Sha1;
use std::fmt::Write as _;

/// The port of SSH servers, unless something else is said.
const PORT: u16 = 22;

/// A host whose key the agent is to know.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SshHost {
    /// Its name or address; `*.` in front stands for the names below, `**.` also for itself.
    pub name: String,
    /// The port of its server.
    pub port: u16,
}

impl SshHost {
    /// The host on its usual port.
    pub fn new(name: &str) -> Self {
        SshHost {
            name: name.to_owned(),
            port: PORT,
        }
    }

    fn covers(&self, name: &str, port: u16) -> bool {
        if port != self.port {
            return false;
        }
        let below = |domain: &str| {
            let rest = name.strip_suffix(domain);
            rest.is_some_and(|rest| rest.len() > 1 && rest.ends_with('.'))
        };
        if let Some(domain) = self.name.strip_prefix("**.") {
            name == domain || below(domain)
        } else if let Some(domain) = self.name.strip_prefix("*.") {
            below(domain)
        } else {
            name == self.name
        }
    }

    /// As files of known hosts have it, or `None` for a pattern.
    fn exact(&self) -> Option<String> {
        (!self.name.contains('*')).then(|| place(&self.name, self.port))
    }
}

fn place(name: &str, port: u16) -> String {
    if port == PORT {
        name.to_owned()
    } else {
        format!("[{name}]:{port}")
    }
}

/// The settings of ssh in the cage.
pub(crate) fn config() -> String {
    "# Made by Ironcage: your own settings, keys and agent are not in the cage.\n\
     Host *\n\
     \tGlobalKnownHostsFile /etc/ssh/ssh_known_hosts\n\
     \t# Nobody is there to answer a question.\n\
     \tStrictHostKeyChecking yes\n\
     \tUpdateHostKeys no\n"
        .into()
}

/// The text of the cage's `ssh_known_hosts`.
pub(crate) fn known_hosts_file(lines: &[String]) -> String {
    let mut text = String::from("# Made by Ironcage: the hosts that this cage may reach.\n");
    for line in lines {
        text.push_str(line);
        text.push('\n');
    }
    text
}

/// Takes the keys of allowed hosts from the text of a file of known hosts. Hashed names are
/// found where an allowed host has a whole name; against a pattern nothing can be held. What is
/// not understood is passed over: ssh then does not know the host.
pub fn known_hosts(text: &str, allowed: &[SshHost]) -> Vec<String> {
    let mut lines = Vec::new();
    if allowed.is_empty() {
        return lines;
    }
    for line in text.lines() {
        let mut words = line.split_ascii_whitespace().peekable();
        let marker = words.next_if(|word| word.starts_with('@'));
        if !matches!(marker, None | Some("@cert-authority" | "@revoked")) {
            continue;
        }
        let (Some(names), Some(kind), Some(key)) = (words.next(), words.next(), words.next())
        else {
            continue;
        };
        if !is_kind(kind) || !is_base64(key) {
            continue;
        }
        for name in reached(names, allowed) {
            let mut made = String::new();
            if let Some(marker) = marker {
                made.push_str(marker);
                made.push(' ');
            }
            // Writing to a string cannot fail.
            let _ = write!(made, "{name} {kind} {key}");
            if !lines.contains(&made) {
                lines.push(made);
            }
        }
    }
    lines
}

/// The names of allowed hosts that the names of a line stand for.
fn reached(names: &str, allowed: &[SshHost]) -> Vec<String> {
    if let Some(hashed) = names.strip_prefix("|1|") {
        let exact = allowed.iter().filter_map(SshHost::exact);
        return exact.filter(|name| is_hash_of(hashed, name)).collect();
    }
    let patterns: Vec<&str> = names.split(',').collect();
    let mut found = Vec::new();
    // A pattern of the user's, and one that is to be left out, hold for whole names.
    for host in allowed.iter().filter_map(SshHost::exact) {
        let fits = |pattern: &str| matches_pattern(&host, pattern);
        let left_out = patterns
            .iter()
            .any(|pattern| pattern.strip_prefix('!').is_some_and(fits));
        if !left_out && patterns.iter().any(|pattern| fits(pattern)) {
            found.push(host);
        }
    }
    for name in &patterns {
        let Some((host, port)) = parse(name) else {
            continue;
        };
        if allowed.iter().any(|allowed| allowed.covers(host, port)) {
            found.push(place(host, port));
        }
    }
    found.sort();
    found.dedup();
    found
}

/// Name and port of an entry that is no pattern and cannot break a line.
fn parse(entry: &str) -> Option<(&str, u16)> {
    let (name, port) = match entry.strip_prefix('[') {
        Some(rest) => {
            let (name, port) = rest.split_once("]:")?;
            (name, port.parse().ok()?)
        }
        None => (entry, PORT),
    };
    let plain =
        |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-' | b'_' | b':');
    (!name.is_empty() && name.bytes().all(plain)).then_some((name, port))
}

/// Whether a name fits a pattern in which `*` stands for any characters and `?` for one.
fn matches_pattern(name: &str, pattern: &str) -> bool {
    let (name, pattern) = (name.as_bytes(), pattern.as_bytes());
    let (mut at, mut in_pattern) = (0, 0);
    let mut star: Option<(usize, usize)> = None;
    while at < name.len() {
        match pattern.get(in_pattern) {
            Some(b'*') => {
                star = Some((in_pattern, at));
                in_pattern += 1;
            }
            Some(byte) if *byte == b'?' || name[at].eq_ignore_ascii_case(byte) => {
                at += 1;
                in_pattern += 1;
            }
            _ => match star {
                Some((after, from)) => {
                    star = Some((after, from + 1));
                    (at, in_pattern) = (from + 1, after + 1);
                }
                None => return false,
            },
        }
    }
    pattern[in_pattern..].iter().all(|byte| *byte == b'*')
}

/// Whether `SALT|HASH` is of a name: HMAC-SHA1 with the salt as its key.
fn is_hash_of(hashed: &str, name: &str) -> bool {
    let parts = hashed.split_once('|');
    let Some((Some(salt), Some(hash))) = parts.map(|(a, b)| (base64(a), base64(b))) else {
        return false;
    };
    let Ok(mut made) = Hmac::<Sha1>::new_from_slice(&salt) else {
        return false;
    };
    made.update(name.as_bytes());
    made.verify_slice(&hash).is_ok()
}

fn is_kind(word: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'@');
    word.bytes().all(plain)
}

fn is_base64(word: &str) -> bool {
    base64(word).is_some_and(|bytes| !bytes.is_empty())
}

fn base64(text: &str) -> Option<Vec<u8>> {
    let text = text.trim_end_matches('=');
    let mut bytes = Vec::with_capacity(text.len() * 3 / 4);
    let (mut held, mut bits) = (0_u32, 0);
    for byte in text.bytes() {
        let value = match byte {
            b'A'..=b'Z' => byte - b'A',
            b'a'..=b'z' => byte - b'a' + 26,
            b'0'..=b'9' => byte - b'0' + 52,
            b'+' => 62,
            b'/' => 63,
            _ => return None,
        };
        held = held << 6 | u32::from(value);
        bits += 6;
        if bits >= 8 {
            bits -= 8;
            bytes.push(u8::try_from(held >> bits & 0xff).ok()?);
        }
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: &str = "AAAAC3NzaC1lZDI1NTE5AAAAIJ8y";

    fn hosts(names: &[&str]) -> Vec<SshHost> {
        names.iter().map(|name| SshHost::new(name)).collect()
    }

    fn taken(text: &str, names: &[&str]) -> Vec<String> {
        known_hosts(text, &hosts(names))
    }

    #[test]
    fn only_lines_of_allowed_hosts_are_taken_and_nothing_else_of_them() {
        let text = format!(
            "# comment\ngit.example,10.0.0.7 ssh-ed25519 {KEY} ann@laptop\nsecret.example ssh-rsa {KEY}\n\
             [git.example]:2222 ssh-rsa {KEY}\n@revoked git.example ssh-rsa {KEY}\n@odd git.example ssh-rsa {KEY}\n"
        );
        assert_eq!(
            taken(&text, &["git.example"]),
            [
                format!("git.example ssh-ed25519 {KEY}"),
                format!("@revoked git.example ssh-rsa {KEY}")
            ]
        );
        assert_eq!(taken(&text, &[]), [""; 0]);
        let other_port = SshHost {
            port: 2222,
            ..SshHost::new("git.example")
        };
        assert_eq!(
            known_hosts(&text, &[other_port]),
            [format!("[git.example]:2222 ssh-rsa {KEY}")]
        );
    }

    #[test]
    fn patterns_of_either_side_hold() {
        let text = format!(
            "*.git.example,!old.git.example ssh-rsa {KEY}\na.git.example ssh-ed25519 {KEY}\n"
        );
        assert_eq!(
            taken(&text, &["b.git.example"]),
            [format!("b.git.example ssh-rsa {KEY}")]
        );
        assert_eq!(taken(&text, &["old.git.example"]), [""; 0]);
        for pattern in ["*.git.example", "**.git.example"] {
            assert_eq!(
                taken(&text, &[pattern]),
                [format!("a.git.example ssh-ed25519 {KEY}")]
            );
        }
        assert!(!SshHost::new("*.git.example").covers("git.example", 22));
        assert!(!SshHost::new("*.git.example").covers("evilgit.example", 22));
        assert!(SshHost::new("**.git.example").covers("git.example", 22));
    }

    #[test]
    fn a_hashed_name_is_found_by_its_hash() {
        // Made with `ssh-keygen -H`.
        let text = "\
            |1|xUpi1iWkQ7DjHyfOfCVTCqz3KV4=|HqgQ9KZJrYJvcerohjfRt4U/Mcg= ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAINudDhn03Dtd3KHFEYhXEZ1UTD0soyib8Ymdvr0W0QTO\n\
            |1|qsmriqnmtU4uN+Y5JEi0AtHys4c=|1f7F22WHdYmptrGIAGOtPKVV4Dw= ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAINudDhn03Dtd3KHFEYhXEZ1UTD0soyib8Ymdvr0W0QTO\n";
        assert_eq!(taken(text, &["git.example"]).len(), 1, "{text}");
        assert!(taken(text, &["git.example"])[0].starts_with("git.example ssh-ed25519 "));
        assert_eq!(taken(text, &["other.example", "*.example"]), [""; 0]);
    }

    #[test]
    fn a_line_cannot_bring_in_another() {
        for text in [
            "git.example ssh-rsa AAAA\u{1b}[2J",
            "git.example ssh-\u{7}rsa AAAA",
            "|1|%%%|AAAA ssh-rsa AAAA",
            "|1| ssh-rsa AAAA",
            "git.example ssh-rsa",
            "@revoked",
        ] {
            assert_eq!(taken(text, &["git.example"]), [""; 0], "{text:?}");
        }
        assert_eq!(parse("a b"), None);
        assert_eq!(parse("[a]:x"), None);
        assert_eq!(parse("*.example"), None);
    }
}
