//! Signature Version 4 of Amazon's: reads one, checks it, makes another. Pure.
//!
//! The signature made with the placeholder is checked first, so that both sides mean the same
//! request; what goes on is signed again from the fields that do go on.

use super::place::{escaped, unescaped};
use crate::http::{Fields, RequestParts};
use hmac::{Hmac, KeyInit as _, Mac as _};
use sha2::{Digest as _, Sha256};
use std::fmt::Write as _;
use std::time::{SystemTime, UNIX_EPOCH};

const ALGORITHM: &str = "AWS4-HMAC-SHA256";
const HASH: &str = "x-amz-content-sha256";
const TOKEN: &str = "x-amz-security-token";
/// Bodies that are not a part of the signature; what follows one is not either.
const UNSIGNED: &str = "UNSIGNED-PAYLOAD";
const TRAILED: &str = "STREAMING-UNSIGNED-PAYLOAD-TRAILER";
/// Fields that are for the next hop alone: they are written anew, and no part of a signature.
const HOPS: [&str; 9] = [
    "connection",
    "expect",
    "keep-alive",
    "proxy-connection",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
    TOKEN,
];

/// Keys to sign with.
pub(crate) struct Keys<'a> {
    pub(crate) id: &'a str,
    pub(crate) key: &'a str,
    pub(crate) token: Option<&'a str>,
}

/// A request, as far as a signature is about it.
pub(crate) struct Signed<'a> {
    pub(crate) method: &'a str,
    pub(crate) target: &'a str,
    /// As the `Host` field says it, which goes on.
    pub(crate) host: &'a str,
    pub(crate) fields: &'a Fields,
}

impl<'a> Signed<'a> {
    pub(crate) fn of(parts: &'a RequestParts, host: &'a str) -> Self {
        Signed {
            method: &parts.method,
            target: &parts.target,
            host,
            fields: &parts.fields,
        }
    }
}

/// What a request says of its signature.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Claim {
    /// Whether it stands in the query.
    query: bool,
    /// The name of the key.
    pub(crate) id: String,
    /// Day, region, service and a last word.
    scope: String,
    /// When, to the second.
    pub(crate) stamp: String,
    /// How many seconds it holds, where it stands in the query.
    pub(crate) expires: Option<u64>,
    names: Vec<String>,
    signature: String,
}

/// What a body is to a signature.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Payload {
    /// It is said, or no part of it.
    Said(String),
    /// Its hash is to be found out.
    Hashed,
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        // Writing to a string cannot fail.
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// The hash of a body.
pub(crate) fn hash(body: &[u8]) -> String {
    hex(&Sha256::digest(body))
}

fn hmac(key: &[u8], text: &str) -> Vec<u8> {
    // A key of any length is one.
    let Ok(mut mac) = Hmac::<Sha256>::new_from_slice(key) else {
        return Vec::new();
    };
    mac.update(text.as_bytes());
    mac.finalize().into_bytes().to_vec()
}

fn field<'a>(fields: &'a Fields, name: &str) -> Option<&'a str> {
    let mut found = fields.iter().filter(|(known, _)| known == name);
    let (_, value) = found.next()?;
    // Said twice it is said in no way.
    found
        .next()
        .is_none()
        .then(|| std::str::from_utf8(value).ok())?
}

/// Names and values of a query, without their escapes.
pub(super) fn parameters(target: &str) -> Vec<(String, String)> {
    let query = target.split_once('?').map_or("", |(_, query)| query);
    let plain = |text: &str| String::from_utf8_lossy(&unescaped(text.as_bytes())).into_owned();
    let parts = query.split('&').filter(|part| !part.is_empty());
    parts
        .map(|part| {
            let (name, value) = part.split_once('=').unwrap_or((part, ""));
            (plain(name), plain(value))
        })
        .collect()
}

impl Claim {
    /// Reads what a request says of its signature; `None` where it has none.
    pub(crate) fn read(signed: &Signed<'_>) -> Result<Option<Claim>, &'static str> {
        let credentials = field(signed.fields, "authorization");
        let query = parameters(signed.target);
        let asked = |name: &str| {
            let mut found = query.iter().filter(|(known, _)| known == name);
            let (_, value) = found.next()?;
            found.next().is_none().then_some(value.as_str())
        };
        let claim = match (credentials, asked("X-Amz-Algorithm")) {
            (Some(text), None) if text.starts_with("AWS4-") => Claim::header(text, signed.fields),
            (None, Some(algorithm)) => (algorithm == ALGORITHM)
                .then(|| Claim::query(asked))
                .flatten(),
            (None, None) => return Ok(None),
            (Some(_), None) => {
                return Err("its credentials are not a signature (AWS4-HMAC-SHA256)");
            }
            (Some(_), Some(_)) => return Err("it is signed twice"),
        };
        let claim = claim.ok_or("its signature is not of the form AWS4-HMAC-SHA256")?;
        let day = claim.scope.split('/').next().unwrap_or_default();
        let plain = claim.scope.split('/').count() == 4
            && claim.scope.ends_with("/aws4_request")
            && claim.stamp.len() == 16
            && claim.stamp.starts_with(day)
            && day.len() == 8
            && claim.names.iter().any(|name| name == "host");
        match plain {
            true => Ok(Some(claim)),
            false => Err("its signature is not of the form AWS4-HMAC-SHA256"),
        }
    }

    fn header(text: &str, fields: &Fields) -> Option<Claim> {
        let parts = text.strip_prefix(ALGORITHM)?.strip_prefix(' ')?;
        let said = |name: &str| {
            let mut parts = parts.split(',').map(str::trim);
            parts.find_map(|part| part.strip_prefix(name)?.strip_prefix('='))
        };
        let (id, scope) = said("Credential")?.split_once('/')?;
        Some(Claim {
            query: false,
            id: id.to_owned(),
            scope: scope.to_owned(),
            stamp: field(fields, "x-amz-date")?.to_owned(),
            expires: None,
            names: names(said("SignedHeaders")?),
            signature: said("Signature")?.to_owned(),
        })
    }

    fn query<'a>(asked: impl Fn(&str) -> Option<&'a str>) -> Option<Claim> {
        let (id, scope) = asked("X-Amz-Credential")?.split_once('/')?;
        Some(Claim {
            query: true,
            id: id.to_owned(),
            scope: scope.to_owned(),
            stamp: asked("X-Amz-Date")?.to_owned(),
            expires: Some(asked("X-Amz-Expires")?.parse().ok()?),
            names: names(asked("X-Amz-SignedHeaders")?),
            signature: asked("X-Amz-Signature")?.to_owned(),
        })
    }

    /// What the body is to the signature.
    ///
    /// # Errors
    /// Where its parts are signed, each with the signature before it: they are not made anew.
    pub(crate) fn payload(&self, fields: &Fields) -> Result<Payload, &'static str> {
        let is_hash = |text: &str| text.len() == 64 && text.bytes().all(|b| b.is_ascii_hexdigit());
        match field(fields, HASH) {
            // S3 alone takes a body in chunks with a trailer; what it holds is not read.
            Some(TRAILED) if !self.service().starts_with("s3") => {
                Err("only S3 accepts a chunked body with a trailer")
            }
            Some(said) if matches!(said, UNSIGNED | TRAILED) || is_hash(said) => {
                Ok(Payload::Said(said.to_owned()))
            }
            Some(_) => Err(
                "chunk-signed bodies are not supported; send the body unsigned or in one piece, as AWS clients do over TLS by default",
            ),
            None if fields.iter().any(|(name, _)| name == HASH) => Err("it has two content hashes"),
            None if self.query && self.service() == "s3" => Ok(Payload::Said(UNSIGNED.to_owned())),
            None => Ok(Payload::Hashed),
        }
    }

    pub(super) fn service(&self) -> &str {
        self.scope.split('/').nth(2).unwrap_or_default()
    }

    /// Whether it is for now: a signature of another time would be good for who finds it.
    pub(crate) fn is_now(&self, now: SystemTime) -> bool {
        const SKEW: u64 = 15 * 60;
        const LONGEST: u64 = 7 * 24 * 3600;
        let Some(stamp) = seconds(&self.stamp) else {
            return false;
        };
        let now = now
            .duration_since(UNIX_EPOCH)
            .map_or(0, |since| since.as_secs());
        let holds = match self.expires {
            Some(expires) if expires > LONGEST => return false,
            Some(expires) => expires,
            None => SKEW,
        };
        now <= stamp.saturating_add(holds) && stamp <= now.saturating_add(SKEW)
    }

    /// Whether a key made this signature; how the path was written in it.
    pub(crate) fn is_by(&self, key: &str, signed: &Signed<'_>, payload: &str) -> Option<Path> {
        [Path::AsItIs, Path::EscapedAgain].into_iter().find(|path| {
            let made = self.signature(key, signed, payload, &self.names, *path);
            same(made.as_bytes(), self.signature.as_bytes())
        })
    }

    fn signature(
        &self,
        key: &str,
        signed: &Signed<'_>,
        payload: &str,
        names: &[String],
        path: Path,
    ) -> String {
        let request = canonical(signed, payload, names, path);
        let text = format!(
            "{ALGORITHM}\n{}\n{}\n{}",
            self.stamp,
            self.scope,
            hash(request.as_bytes())
        );
        let mut key = format!("AWS4{key}").into_bytes();
        for part in self.scope.split('/') {
            key = hmac(&key, part);
        }
        hex(&hmac(&key, &text))
    }

    /// Signs a request anew: its target and its fields, as they go on.
    pub(crate) fn sign(
        &self,
        keys: &Keys<'_>,
        signed: &Signed<'_>,
        payload: &str,
        path: Path,
    ) -> (String, Fields) {
        let mut fields = signed.fields.clone();
        fields.retain(|(name, _)| name != TOKEN && name != "authorization");
        let mut names = self.names.clone();
        names.retain(|name| !HOPS.contains(&name.as_str()));
        let mut target = signed.target.to_owned();
        if self.query {
            target = self.requery(keys, signed.target, &names);
        } else if let Some(token) = keys.token {
            fields.push((TOKEN.to_owned(), token.as_bytes().to_vec()));
            names.push(TOKEN.to_owned());
            names.sort();
        }
        let anew = Signed {
            target: &target,
            fields: &fields,
            ..*signed
        };
        let signature = self.signature(keys.key, &anew, payload, &names, path);
        if self.query {
            target.push_str("&X-Amz-Signature=");
            target.push_str(&signature);
        } else {
            let text = format!(
                "{ALGORITHM} Credential={}/{}, SignedHeaders={}, Signature={signature}",
                keys.id,
                self.scope,
                names.join(";")
            );
            fields.push(("authorization".to_owned(), text.into_bytes()));
        }
        (target, fields)
    }

    /// The target with other keys in its query, without a signature.
    fn requery(&self, keys: &Keys<'_>, target: &str, names: &[String]) -> String {
        let path = target.split('?').next().unwrap_or_default();
        let mut query: Vec<(String, String)> = parameters(target);
        query.retain(|(name, _)| {
            !matches!(
                name.as_str(),
                "X-Amz-Signature"
                    | "X-Amz-Security-Token"
                    | "X-Amz-Credential"
                    | "X-Amz-SignedHeaders"
            )
        });
        let mut add = |name: &str, value: String| query.push((name.to_owned(), value));
        add("X-Amz-Credential", format!("{}/{}", keys.id, self.scope));
        add("X-Amz-SignedHeaders", names.join(";"));
        if let Some(token) = keys.token {
            add("X-Amz-Security-Token", token.to_owned());
        }
        let parts: Vec<String> = query
            .iter()
            .map(|(name, value)| {
                format!("{}={}", escaped(name.as_bytes()), escaped(value.as_bytes()))
            })
            .collect();
        format!("{path}?{}", parts.join("&"))
    }
}

/// How a path is written in what is signed: services other than S3 escape it once more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Path {
    AsItIs,
    EscapedAgain,
}

/// A time such as 20150830T123600Z, in seconds since 1970.
fn seconds(stamp: &str) -> Option<u64> {
    let digits = |from: usize, to: usize| {
        let part = stamp.get(from..to)?;
        let plain = part.bytes().all(|byte| byte.is_ascii_digit());
        part.parse::<u64>().ok().filter(|_| plain)
    };
    let (year, month, day) = (digits(0, 4)?, digits(4, 6)?, digits(6, 8)?);
    let plain = stamp.len() == 16 && stamp.get(8..9)? == "T" && stamp.ends_with('Z');
    if !plain || year < 1970 || !(1..=12).contains(&month) || !(1..=31).contains(&day) {
        return None;
    }
    // Years begin in March, so that the day that is not always there is their last.
    let (year, month) = if month > 2 {
        (year, month - 3)
    } else {
        (year - 1, month + 9)
    };
    let days = 365 * year + year / 4 - year / 100 + year / 400 + (153 * month + 2) / 5 + day - 1;
    let days = days.checked_sub(719_468)?;
    Some(days * 86_400 + digits(9, 11)? * 3600 + digits(11, 13)? * 60 + digits(13, 15)?)
}

fn names(text: &str) -> Vec<String> {
    text.split(';').map(str::to_ascii_lowercase).collect()
}

/// Whether two texts are the same, in the same time wherever they differ.
fn same(a: &[u8], b: &[u8]) -> bool {
    a.len() == b.len() && a.iter().zip(b).fold(0, |all, (a, b)| all | (a ^ b)) == 0
}

/// A request in the one form in which it is signed.
fn canonical(signed: &Signed<'_>, payload: &str, names: &[String], path: Path) -> String {
    let said = signed.target.split('?').next().unwrap_or_default();
    let written = match path {
        Path::AsItIs => said.to_owned(),
        Path::EscapedAgain => {
            let parts: Vec<String> = said
                .split('/')
                .map(|part| escaped(part.as_bytes()))
                .collect();
            parts.join("/")
        }
    };
    let mut query: Vec<(String, String)> = parameters(signed.target)
        .into_iter()
        .filter(|(name, _)| name != "X-Amz-Signature")
        .map(|(name, value)| (escaped(name.as_bytes()), escaped(value.as_bytes())))
        .collect();
    query.sort();
    let query: Vec<String> = query
        .iter()
        .map(|(name, value)| format!("{name}={value}"))
        .collect();
    let mut text = format!("{}\n{written}\n{}\n", signed.method, query.join("&"));
    for name in names {
        let value = match name.as_str() {
            "host" => signed.host.to_owned(),
            name => {
                let values = signed.fields.iter().filter(|(known, _)| known == name);
                let values: Vec<String> = values
                    .map(|(_, value)| {
                        let value = String::from_utf8_lossy(value);
                        let words: Vec<&str> =
                            value.split([' ', '\t']).filter(|w| !w.is_empty()).collect();
                        words.join(" ")
                    })
                    .collect();
                values.join(",")
            }
        };
        // Writing to a string cannot fail.
        let _ = writeln!(text, "{name}:{value}");
    }
    let _ = write!(text, "\n{}\n{payload}", names.join(";"));
    text
}

#[cfg(test)]
#[path = "sigv4_tests.rs"]
mod tests;
