//! Rules over requests of HTTP: methods, hosts and paths.
//!
//! A path is matched in every reading that a server could have of it: what one of them would
//! take elsewhere matches nothing.

use crate::network::{HostName, HostRule};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// A rule that allows requests.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HttpRule {
    /// Methods, in capitals; empty means every one.
    pub methods: Vec<String>,
    /// Which names, and which of their ports.
    pub host: HostRule,
    /// Which paths.
    pub path: PathPattern,
}

impl HttpRule {
    /// Whether it is about requests to this port of this name.
    pub fn is_about(&self, name: &HostName, port: u16) -> bool {
        self.host.names(name, port)
    }

    /// Whether it allows a request, where it is about its host.
    pub fn allows(&self, method: &str, path: &RequestPath) -> bool {
        (self.methods.is_empty() || self.methods.iter().any(|known| known == method))
            && self.path.matches(path)
    }
}

/// As a policy writes it.
impl fmt::Display for HttpRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.methods.is_empty() {
            write!(f, "{} ", self.methods.join(","))?;
        }
        write!(f, "{}{}", self.host, self.path)
    }
}

impl Serialize for HttpRule {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// Text that is no rule in its normal form, as [`HttpRule`] prints it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct InvalidHttpRuleText;

impl fmt::Display for InvalidHttpRuleText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("not a rule over requests in its normal form")
    }
}

impl std::error::Error for InvalidHttpRuleText {}

/// Reads the normal form, as it is printed. What people write is read by `policy`.
impl FromStr for HttpRule {
    type Err = InvalidHttpRuleText;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        // `every host` has a space too, in small letters.
        let (methods, rest) = match text.split_once(' ') {
            Some((methods, rest)) if !methods.bytes().any(|b| b.is_ascii_lowercase()) => {
                (methods.split(',').map(str::to_owned).collect(), rest)
            }
            _ => (Vec::new(), text),
        };
        if methods.iter().any(String::is_empty) {
            return Err(InvalidHttpRuleText);
        }
        let at = rest.find('/').ok_or(InvalidHttpRuleText)?;
        let (host, path) = rest.split_at(at);
        Ok(HttpRule {
            methods,
            host: host.parse().map_err(|_| InvalidHttpRuleText)?,
            path: PathPattern::parse(path).map_err(|_| InvalidHttpRuleText)?,
        })
    }
}

impl<'de> Deserialize<'de> for HttpRule {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = <std::borrow::Cow<'de, str>>::deserialize(deserializer)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

/// Which paths a rule is about. `*` stands for any text without a slash, `**` between slashes
/// for any number of parts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PathPattern(Vec<String>);

/// Text that is no pattern for paths.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct InvalidPathPattern(pub &'static str);

impl PathPattern {
    /// Every path.
    pub fn any() -> Self {
        PathPattern(vec!["**".to_owned()])
    }

    /// Reads a pattern, which begins with a slash.
    ///
    /// # Errors
    /// Where it is none; the text says what to write.
    pub fn parse(text: &str) -> Result<Self, InvalidPathPattern> {
        let rest = text
            .strip_prefix('/')
            .ok_or(InvalidPathPattern("a path begins with a slash"))?;
        if rest
            .bytes()
            .any(|byte| !(0x21..0x7f).contains(&byte) || b"?#\\%;".contains(&byte))
        {
            return Err(InvalidPathPattern(
                "a path has no spaces, escapes, queries or fragments; a * stands for what varies",
            ));
        }
        let parts: Vec<String> = rest.split('/').map(str::to_owned).collect();
        for (at, part) in parts.iter().enumerate() {
            if matches!(part.as_str(), "." | "..") || part.is_empty() && at + 1 < parts.len() {
                return Err(InvalidPathPattern("a path has no empty parts, . or .."));
            }
            if part.contains("**") && part != "**" {
                return Err(InvalidPathPattern("** stands alone between slashes"));
            }
        }
        Ok(PathPattern(parts))
    }

    /// Whether every reading of a path is meant.
    pub fn matches(&self, path: &RequestPath) -> bool {
        path.readings.iter().all(|reading| {
            let parts: Vec<&[u8]> = reading.split(|byte| *byte == b'/').skip(1).collect();
            parts_match(&self.0, &parts)
        })
    }
}

impl PathPattern {
    /// Whether every path that another pattern means is meant. Where that is not plain, `false`.
    pub fn contains(&self, other: &PathPattern) -> bool {
        // Each part of the other stands for itself; a star of its own only fits into a star.
        fn part(own: &str, other: &str) -> bool {
            own == "*" && other != "**"
                || own != "**" && other != "**" && part_matches(own.as_bytes(), other.as_bytes())
        }
        fits(
            &self.0,
            &other.0,
            |many| many == "**",
            |own, other| part(own, other),
        )
    }

    /// Whether some path is meant by both. Where that is not plain, `true`.
    pub fn overlaps(&self, other: &PathPattern) -> bool {
        // Up to the first part that stands for many, both go side by side.
        for (at, own) in self.0.iter().enumerate() {
            match other.0.get(at) {
                Some(other) if own == "**" || other == "**" => return true,
                Some(other) if own.contains('*') || other.contains('*') || own == other => {}
                // It may stand for none.
                None if own == "**" => {}
                _ => return false,
            }
        }
        let rest = other.0.get(self.0.len()..).unwrap_or_default();
        rest.iter().all(|part| part == "**")
    }
}

impl fmt::Display for PathPattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "/{}", self.0.join("/"))
    }
}

/// Parts against a pattern's.
fn parts_match(pattern: &[String], parts: &[&[u8]]) -> bool {
    fits(
        pattern,
        parts,
        |many| many == "**",
        |one, part| part_matches(one.as_bytes(), part),
    )
}

/// One part against one with stars.
fn part_matches(pattern: &[u8], text: &[u8]) -> bool {
    fits(pattern, text, |byte| *byte == b'*', |a, b| a == b)
}

/// Items against a pattern's, some of which stand for any number of them. It never goes back
/// further than to the last of those, so that no pattern takes more than the product of both.
fn fits<P, T>(
    pattern: &[P],
    items: &[T],
    any: impl Fn(&P) -> bool,
    same: impl Fn(&P, &T) -> bool,
) -> bool {
    let (mut p, mut t) = (0, 0);
    let mut retry: Option<(usize, usize)> = None;
    loop {
        match (pattern.get(p), items.get(t)) {
            (Some(many), _) if any(many) => {
                retry = Some((p, t));
                p += 1;
                continue;
            }
            (Some(one), Some(item)) if same(one, item) => {
                p += 1;
                t += 1;
                continue;
            }
            (None, None) => return true,
            _ => {}
        }
        match retry {
            Some((many, from)) if from < items.len() => {
                retry = Some((many, from + 1));
                p = many + 1;
                t = from + 1;
            }
            _ => return false,
        }
    }
}

/// The path of a request, in every reading that a server could have of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RequestPath {
    readings: Vec<Vec<u8>>,
}

/// A path that could lead elsewhere than it says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AmbiguousPath(pub &'static str);

impl RequestPath {
    /// Reads the path of a target, with or without its query.
    ///
    /// # Errors
    /// Where some reading of it climbs, or holds what no path does.
    pub fn read(target: &str) -> Result<Self, AmbiguousPath> {
        let path = target.split(['?', '#']).next().unwrap_or_default();
        if !path.starts_with('/') {
            return Err(AmbiguousPath("the path does not begin with a slash"));
        }
        // As it is, decoded once, and decoded by a server behind a server.
        let mut readings = vec![path.as_bytes().to_vec()];
        for _ in 0..2 {
            let last = readings.last().map(Vec::as_slice).unwrap_or_default();
            let decoded = decode(last).ok_or(AmbiguousPath("invalid percent-encoding in the path"));
            match decoded {
                Ok(decoded) if decoded != last => readings.push(decoded),
                Ok(_) => break,
                // The first layer of escapes has to be right; what is below it may be text.
                Err(error) if readings.len() == 1 => return Err(error),
                Err(_) => break,
            }
        }
        for reading in &readings {
            if reading
                .iter()
                .any(|byte| *byte < 0x20 || *byte == 0x7f || *byte == b'\\')
            {
                return Err(AmbiguousPath("the path holds control characters or a \\"));
            }
            for part in reading.split(|byte| *byte == b'/') {
                // Some servers drop what follows a semicolon.
                let name = part.split(|byte| *byte == b';').next().unwrap_or_default();
                if matches!(name, b"." | b"..") {
                    return Err(AmbiguousPath("the path climbs with . or .."));
                }
            }
        }
        // Some servers drop what follows a semicolon, in a part or to the end, or what follows a
        // mark that was escaped; some take several slashes for one.
        add(&mut readings, |path| before(path, b"?#"));
        add(&mut readings, |path| before(path, b";"));
        add(&mut readings, without_parameters);
        add(&mut readings, collapse);
        Ok(RequestPath { readings })
    }
}

/// Adds what every reading becomes, where that is another.
fn add(readings: &mut Vec<Vec<u8>>, becomes: impl Fn(&[u8]) -> Vec<u8>) {
    for at in 0..readings.len() {
        let Some(reading) = readings.get(at).map(|reading| becomes(reading)) else {
            return;
        };
        if !readings.contains(&reading) {
            readings.push(reading);
        }
    }
}

/// A path up to the first of some marks.
fn before(path: &[u8], marks: &[u8]) -> Vec<u8> {
    let end = path.iter().position(|byte| marks.contains(byte));
    path.get(..end.unwrap_or(path.len()))
        .unwrap_or_default()
        .to_vec()
}

/// A path each part of which ends before its semicolon.
fn without_parameters(path: &[u8]) -> Vec<u8> {
    let parts: Vec<Vec<u8>> = (path.split(|byte| *byte == b'/'))
        .map(|part| before(part, b";"))
        .collect();
    parts.join(&b'/')
}

fn collapse(path: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(path.len());
    for byte in path {
        if *byte != b'/' || out.last() != Some(&b'/') {
            out.push(*byte);
        }
    }
    out
}

fn decode(path: &[u8]) -> Option<Vec<u8>> {
    let mut out = Vec::with_capacity(path.len());
    let mut rest = path;
    while let Some((first, after)) = rest.split_first() {
        if *first == b'%' {
            let digits = std::str::from_utf8(after.get(..2)?).ok()?;
            if !digits.bytes().all(|byte| byte.is_ascii_hexdigit()) {
                return None;
            }
            out.push(u8::from_str_radix(digits, 16).ok()?);
            rest = after.get(2..).unwrap_or_default();
        } else {
            out.push(*first);
            rest = after;
        }
    }
    Some(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn matches(pattern: &str, target: &str) -> bool {
        RequestPath::read(target)
            .is_ok_and(|path| PathPattern::parse(pattern).unwrap().matches(&path))
    }

    #[test]
    fn stars_stand_for_a_part_and_for_many() {
        assert!(matches("/**", "/"));
        assert!(matches("/**", "/a/b?c=d"));
        assert!(matches("/repos/**", "/repos/a/b"));
        assert!(matches("/repos/**", "/repos/"));
        assert!(!matches("/repos/**", "/reposx/a"));
        assert!(!matches("/repos/**", "/users"));
        assert!(matches("/repos/*/issues", "/repos/a/issues"));
        assert!(!matches("/repos/*/issues", "/repos/a/b/issues"));
        assert!(matches("/**/issues", "/repos/a/b/issues"));
        assert!(!matches("/**/issues", "/repos/a/b/issues/1"));
        assert!(matches("/v*/x-*.json", "/v12/x-abc.json"));
        assert!(matches("/", "/"));
        assert!(!matches("/", "/a"));
        assert!(matches("/a*b*c", "/aXbXbYc"));
        assert!(!matches("/a*b*c", "/aXbXbY"));
    }

    #[test]
    fn a_path_has_to_match_in_every_reading() {
        for target in [
            "/repos/../admin",
            "/repos/%2e%2e/admin",
            "/repos/%2E./admin",
            "/repos/%252e%252e/admin",
            "/repos/a%2f..%2f..%2fadmin",
            "/repos/..;x/admin",
            "/repos/.%00/",
            "/repos/a\\b",
            "/repos/%5c..",
            "/repos/%zz",
            "/repos/%",
            "repos",
        ] {
            assert!(!matches("/**", target), "{target}");
        }
        // Two parts to a server that decodes the slash.
        assert!(!matches("/repos/*", "/repos/a%2fb"));
        assert!(matches("/repos/**", "/repos/@a%2fb"));
        assert!(!matches("/public/*", "/public//x/y"));
        assert!(!matches("/repos/*/x", "/repos//x"));
        // What a server drops before it looks.
        for target in [
            "/v1/secret;.json",
            "/v1/secret%3b.json",
            "/v1/secret%3f.json",
            "/v1/secret%23.json",
            "/v1/secret%253f.json",
            "/v1/a;b/c.json",
        ] {
            assert!(!matches("/v1/*.json", target), "{target}");
        }
        assert!(matches("/v1/*.json", "/v1/a.json?x=;"));
        assert!(!matches("/v1/*/x", "/v1/a;b=c/x"));
        assert!(matches("/v1/**", "/v1/a;b=c/x%3fy"));
        // Escaped where it need not be: what is compared as it stands does not fit.
        assert!(!matches("/me/**", "/%6de/a"));
    }

    #[test]
    fn the_normal_form_is_read_back_as_it_was_printed() {
        for text in [
            "GET,HEAD api.example.com/v1/**",
            "*.example.com:8443/a/*",
            "POST every host/**",
            "every host/",
        ] {
            let rule: HttpRule = text.parse().unwrap();
            assert_eq!(rule.to_string(), text);
        }
        for wrong in [
            "",
            "GET",
            "GET a.com",
            "a.com/../b",
            ", a.com/",
            "GET  a.com/",
        ] {
            assert!(wrong.parse::<HttpRule>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn patterns_are_checked() {
        for wrong in [
            "", "a", "/a//b", "/../a", "/a**", "/a?b", "/a b", "/a%20", "/\u{e4}",
        ] {
            assert!(PathPattern::parse(wrong).is_err(), "{wrong}");
        }
        for right in ["/", "/a/", "/a/**", "/**/b", "/a*c/*"] {
            assert_eq!(PathPattern::parse(right).unwrap().to_string(), right);
        }
    }
}
