//! Heads of HTTP/1.1 messages, read strictly: what two programs could understand differently
//! is understood by neither. The proxy writes a new head from what it understood.

use super::pipeline::RequestParts;
use ironcage_model::{HostName, NetworkReason};

/// Longest head.
pub(crate) const LONGEST: usize = 64 * 1024;
pub(crate) const MOST_FIELDS: usize = 200;

/// Why a message does not go on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Refused {
    /// The status that the sender gets.
    pub(crate) status: u16,
    pub(crate) reason: NetworkReason,
}

impl Refused {
    pub(crate) fn new(status: u16, reason: NetworkReason) -> Self {
        Refused { status, reason }
    }

    /// An invalid request, or one that two programs could parse differently.
    pub(crate) fn invalid(error: &str) -> Self {
        let error = error.to_owned();
        Refused::new(400, NetworkReason::RequestInvalid { error })
    }
}

/// Bytes of empty lines before a request.
const MOST_EMPTY: usize = 64;

fn too_long(error: &str) -> Refused {
    let error = error.to_owned();
    Refused::new(431, NetworkReason::HeadTooLong { error })
}

/// For whom requests of a connection are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Authority {
    pub(crate) name: HostName,
    /// The port of the connection.
    pub(crate) port: u16,
    /// The port that need not be written.
    pub(crate) usual_port: u16,
}

impl Authority {
    /// Checks a `Host` field, or the same in a target.
    pub(crate) fn check(&self, bytes: &[u8]) -> Result<(), Refused> {
        let wrong = || {
            Refused::new(
                403,
                NetworkReason::OtherHost {
                    host: String::from_utf8_lossy(bytes).into_owned(),
                    name: self.name.to_string(),
                },
            )
        };
        let (name, port) = match bytes.iter().position(|byte| *byte == b':') {
            Some(at) => {
                let (name, port) = bytes.split_at(at);
                (name, port.get(1..).unwrap_or_default())
            }
            None => (bytes, &[][..]),
        };
        let port = match std::str::from_utf8(port) {
            Ok("") => self.usual_port,
            Ok(digits) if digits.bytes().all(|byte| byte.is_ascii_digit()) => {
                digits.parse().map_err(|_| wrong())?
            }
            _ => return Err(wrong()),
        };
        let name = HostName::from_ascii(name).map_err(|_| wrong())?;
        if name != self.name || port != self.port {
            return Err(wrong());
        }
        Ok(())
    }

    /// As a `Host` field says it.
    pub(crate) fn written(&self) -> String {
        if self.port == self.usual_port {
            self.name.to_string()
        } else {
            format!("{}:{}", self.name, self.port)
        }
    }
}

/// How long the body of a message is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Framing {
    /// There is none.
    Empty,
    /// So many bytes.
    Length(u64),
    /// In chunks, the last of which is empty.
    Chunked,
    /// To the end of the connection.
    ToTheEnd,
}

/// Fields of a head, in order.
pub(crate) type Fields = Vec<(String, Vec<u8>)>;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Request {
    pub(crate) parts: RequestParts,
    /// Whether it is HTTP/1.1 rather than 1.0.
    eleven: bool,
    /// Whether an answer to it has no body.
    is_head: bool,
    /// How long its body is.
    pub(crate) framing: Framing,
    /// Whether no other request follows.
    pub(crate) last: bool,
    /// Whether the connection is to become a WebSocket.
    pub(crate) upgrade: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Response {
    /// 200 and so on.
    pub(crate) status: u16,
    /// How long its body is.
    pub(crate) framing: Framing,
    /// Whether no other response follows.
    pub(crate) last: bool,
    pub(super) fields: Fields,
}

/// Where a head ends, if it is all there.
fn end(bytes: &[u8]) -> Result<Option<usize>, Refused> {
    let limit = bytes.len().min(LONGEST);
    let head = bytes.get(..limit).unwrap_or_default();
    match head.windows(4).position(|four| four == b"\r\n\r\n") {
        Some(at) => Ok(Some(at + 4)),
        None if bytes.len() >= LONGEST => Err(too_long("the head is too long")),
        None => Ok(None),
    }
}

pub(crate) fn is_token(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte)
}

/// The first line and the fields.
fn split(head: &[u8]) -> Result<(&[u8], Fields), Refused> {
    let text = head.strip_suffix(b"\r\n\r\n").unwrap_or(head);
    let mut lines = Vec::new();
    let mut rest = text;
    while let Some(at) = rest.windows(2).position(|two| two == b"\r\n") {
        lines.push(rest.get(..at).unwrap_or_default());
        rest = rest.get(at + 2..).unwrap_or_default();
    }
    lines.push(rest);
    if lines
        .iter()
        .any(|line| line.iter().any(|byte| matches!(byte, b'\r' | b'\n' | 0)))
    {
        return Err(Refused::invalid(
            "a line ends in neither CRLF nor the end of the head",
        ));
    }
    let mut lines = lines.into_iter();
    let first = lines.next().unwrap_or_default();
    let mut fields = Vec::new();
    for line in lines {
        let at = line
            .iter()
            .position(|byte| *byte == b':')
            .ok_or_else(|| Refused::invalid("a header line has no colon"))?;
        let (name, value) = line.split_at(at);
        // Also refuses folded lines and spaces before the colon.
        if name.is_empty() || !name.iter().copied().all(is_token) {
            return Err(Refused::invalid("invalid name of a header field"));
        }
        let value = value.get(1..).unwrap_or_default().trim_ascii();
        if value
            .iter()
            .any(|byte| *byte < 0x20 && *byte != b'\t' || *byte == 0x7f)
        {
            return Err(Refused::invalid("a control character in a header field"));
        }
        fields.push((
            String::from_utf8_lossy(name).to_ascii_lowercase(),
            value.to_vec(),
        ));
        if fields.len() > MOST_FIELDS {
            return Err(too_long("the head has too many fields"));
        }
    }
    Ok((first, fields))
}

fn values<'a>(fields: &'a Fields, name: &str) -> impl Iterator<Item = &'a [u8]> {
    let name = name.to_owned();
    fields
        .iter()
        .filter(move |(known, _)| *known == name)
        .map(|(_, value)| value.as_slice())
}

/// Whether a list in fields holds a word.
fn lists(fields: &Fields, name: &str, word: &str) -> bool {
    values(fields, name).any(|value| {
        value
            .split(|byte| *byte == b',')
            .any(|part| part.trim_ascii().eq_ignore_ascii_case(word.as_bytes()))
    })
}

/// What the fields say of the body; `None` where they say nothing.
fn framing(fields: &Fields, eleven: bool) -> Result<Option<Framing>, Refused> {
    let codings: Vec<&[u8]> = values(fields, "transfer-encoding").collect();
    let lengths: Vec<&[u8]> = values(fields, "content-length").collect();
    match (codings.as_slice(), lengths.as_slice()) {
        ([], []) => Ok(None),
        ([], [length]) => {
            let digits = std::str::from_utf8(length).unwrap_or_default();
            let plain = !digits.is_empty()
                && digits.len() <= 18
                && digits.bytes().all(|byte| byte.is_ascii_digit());
            match digits.parse() {
                Ok(length) if plain => Ok(Some(Framing::Length(length))),
                _ => Err(Refused::invalid("the content length is not a number")),
            }
        }
        ([coding], []) if eleven && coding.eq_ignore_ascii_case(b"chunked") => {
            Ok(Some(Framing::Chunked))
        }
        _ => Err(Refused::invalid("ambiguous length of the body")),
    }
}

/// Fields that are not passed on as they are.
fn is_written_anew(name: &str) -> bool {
    matches!(
        name,
        "host"
            | "content-length"
            | "transfer-encoding"
            | "connection"
            | "upgrade"
            | "keep-alive"
            | "proxy-connection"
            | "proxy-authorization"
            | "proxy-authenticate"
            | "http2-settings"
            | "te"
            | "trailer"
    )
}

/// Reads a request for an authority. `None` while it is not all there; else with the length
/// of its head.
pub(crate) fn request(
    bytes: &[u8],
    authority: &Authority,
) -> Result<Option<(Request, usize)>, Refused> {
    // As RFC 9112 has it, empty lines before a request are skipped.
    let empty = bytes.chunks(2).take_while(|two| two == b"\r\n").count() * 2;
    if empty > MOST_EMPTY {
        return Err(Refused::invalid("only empty lines"));
    }
    let bytes = bytes.get(empty..).unwrap_or_default();
    let Some(length) = end(bytes)? else {
        return Ok(None);
    };
    let (line, fields) = split(bytes.get(..length).unwrap_or_default())?;
    let words: Vec<&[u8]> = line.split(|byte| *byte == b' ').collect();
    let [method, target, version] = words.as_slice() else {
        return Err(Refused::invalid("invalid request line"));
    };
    let eleven = match *version {
        b"HTTP/1.1" => true,
        b"HTTP/1.0" => false,
        _ => {
            return Err(Refused::new(505, NetworkReason::HttpVersion));
        }
    };
    if method.is_empty() || !method.iter().copied().all(is_token) {
        return Err(Refused::invalid("invalid method"));
    }
    if method.eq_ignore_ascii_case(b"connect") {
        return Err(Refused::new(405, NetworkReason::HttpConnect));
    }
    let target = check_target(method, target, authority)?;
    let hosts: Vec<&[u8]> = values(&fields, "host").collect();
    match hosts.as_slice() {
        [host] => authority.check(host)?,
        [] if !eleven => {}
        _ => return Err(Refused::invalid("expected one Host field")),
    }
    let framing = framing(&fields, eleven)?.unwrap_or(Framing::Empty);
    let upgrade = lists(&fields, "connection", "upgrade")
        && values(&fields, "upgrade").all(|value| value.eq_ignore_ascii_case(b"websocket"))
        && values(&fields, "upgrade").count() == 1
        && eleven
        && framing == Framing::Empty
        && *method == b"GET";
    let request = Request {
        eleven,
        is_head: *method == b"HEAD",
        framing,
        last: !eleven || lists(&fields, "connection", "close"),
        upgrade,
        parts: RequestParts {
            method: String::from_utf8_lossy(method).into_owned(),
            target,
            fields,
        },
    };
    Ok(Some((request, empty + length)))
}

fn not_a_path() -> Refused {
    Refused::invalid("the request target is not a path")
}

fn check_characters(target: &[u8]) -> Result<(), Refused> {
    if target.iter().any(|byte| !(0x21..0x7f).contains(byte)) || target.contains(&b'#') {
        return Err(Refused::invalid("invalid characters in the request target"));
    }
    Ok(())
}

fn is_path(method: &[u8], target: &str) -> bool {
    target.starts_with('/') || target == "*" && method == b"OPTIONS"
}

/// Checks that a target is a path and query, whichever version of HTTP says it.
///
/// # Errors
/// Where some server could read it as something else.
pub(crate) fn check_path(method: &[u8], target: &str) -> Result<(), Refused> {
    check_characters(target.as_bytes())?;
    match is_path(method, target) {
        true => Ok(()),
        false => Err(not_a_path()),
    }
}

/// The path and query of a target, in whatever form it came.
fn check_target(method: &[u8], target: &[u8], authority: &Authority) -> Result<String, Refused> {
    check_characters(target)?;
    let text = String::from_utf8_lossy(target).into_owned();
    if is_path(method, &text) {
        return Ok(text);
    }
    let scheme = if authority.usual_port == 443 {
        "https://"
    } else {
        "http://"
    };
    let same = text
        .get(..scheme.len())
        .is_some_and(|start| start.eq_ignore_ascii_case(scheme));
    let Some(rest) = text.get(scheme.len()..).filter(|_| same) else {
        return Err(not_a_path());
    };
    let at = rest.find(['/', '?']).unwrap_or(rest.len());
    let (host, path) = rest.split_at(at);
    authority.check(host.as_bytes())?;
    Ok(if path.starts_with('/') {
        path.to_owned()
    } else {
        format!("/{path}")
    })
}

impl Request {
    /// The head as it goes on. `whole_url` is for a proxy, which reads there where it goes.
    pub(crate) fn written(&self, authority: &Authority, whole_url: bool) -> Vec<u8> {
        let target = match (whole_url, self.parts.target.as_str()) {
            (false, target) => target.to_owned(),
            (true, "*") => format!("http://{}", authority.written()),
            (true, path) => format!("http://{}{path}", authority.written()),
        };
        let mut bytes = format!(
            "{} {target} HTTP/1.{}\r\nhost: {}\r\n",
            self.parts.method,
            u8::from(self.eleven),
            authority.written()
        )
        .into_bytes();
        write_fields(&mut bytes, &self.parts.fields);
        write_framing(&mut bytes, self.framing);
        if self.upgrade {
            bytes.extend(b"connection: upgrade\r\nupgrade: websocket\r\n");
        } else if self.last {
            bytes.extend(b"connection: close\r\n");
        }
        bytes.extend(b"\r\n");
        bytes
    }
}

fn write_fields(bytes: &mut Vec<u8>, fields: &Fields) {
    for (name, value) in fields {
        if !is_written_anew(name) {
            bytes.extend(name.as_bytes());
            bytes.extend(b": ");
            bytes.extend(value);
            bytes.extend(b"\r\n");
        }
    }
}

fn write_framing(bytes: &mut Vec<u8>, framing: Framing) {
    match framing {
        Framing::Empty | Framing::ToTheEnd => {}
        Framing::Length(length) => {
            bytes.extend(format!("content-length: {length}\r\n").as_bytes());
        }
        Framing::Chunked => bytes.extend(b"transfer-encoding: chunked\r\n"),
    }
}

/// Reads a response to a request. `None` while it is not all there; else with the length of
/// its head.
pub(crate) fn response(bytes: &[u8], to: &Request) -> Result<Option<(Response, usize)>, Refused> {
    let wrong = |error: &str| {
        let error = error.to_owned();
        Refused::new(502, NetworkReason::AnswerInvalid { error })
    };
    let inner = |refused: Refused| match refused.reason {
        NetworkReason::RequestInvalid { error } | NetworkReason::HeadTooLong { error } => {
            wrong(&error)
        }
        other => wrong(&other.to_string()),
    };
    let Some(length) = end(bytes).map_err(inner)? else {
        return Ok(None);
    };
    let head = bytes.get(..length).unwrap_or_default();
    let (line, fields) = split(head).map_err(inner)?;
    let eleven = match line.get(..9) {
        Some(b"HTTP/1.1 ") => true,
        Some(b"HTTP/1.0 ") => false,
        _ => return Err(wrong("it is not HTTP/1")),
    };
    let digits = line
        .get(9..12)
        .and_then(|digits| std::str::from_utf8(digits).ok());
    let status: u16 = digits
        .filter(|digits| digits.bytes().all(|byte| byte.is_ascii_digit()))
        .and_then(|digits| digits.parse().ok())
        .filter(|status| (100..1000).contains(status))
        .filter(|_| line.get(12).is_none_or(|byte| *byte == b' '))
        .ok_or_else(|| wrong("it has no status"))?;
    let said = framing(&fields, eleven).map_err(inner)?;
    let bodiless = status < 200 || matches!(status, 204 | 304) || to.is_head;
    let framing = if bodiless {
        Framing::Empty
    } else {
        said.unwrap_or(Framing::ToTheEnd)
    };
    if status == 101 && !to.upgrade {
        return Err(wrong("it switches protocols without a request to do so"));
    }
    let response = Response {
        status,
        framing,
        last: framing == Framing::ToTheEnd
            || !eleven && !lists(&fields, "connection", "keep-alive")
            || lists(&fields, "connection", "close"),
        fields,
    };
    Ok(Some((response, length)))
}

impl Response {
    /// The head as it goes on. `last` says that the connection ends after it.
    pub(crate) fn written(&self, last: bool) -> Vec<u8> {
        // The server's own words for its status could be anything, a secret too.
        let known = http::StatusCode::from_u16(self.status).ok();
        let words = known.and_then(|status| status.canonical_reason());
        let mut bytes =
            format!("HTTP/1.1 {} {}\r\n", self.status, words.unwrap_or("")).into_bytes();
        write_fields(&mut bytes, &self.fields);
        if self.status == 101 {
            bytes.extend(b"connection: upgrade\r\nupgrade: websocket\r\n");
        } else {
            match self.framing {
                // What a body would have been, in answer to HEAD or as 304.
                Framing::Empty => {
                    if let Ok(Some(Framing::Length(length))) = framing(&self.fields, true) {
                        write_framing(&mut bytes, Framing::Length(length));
                    }
                }
                other => write_framing(&mut bytes, other),
            }
            if last && self.status >= 200 {
                bytes.extend(b"connection: close\r\n");
            }
        }
        bytes.extend(b"\r\n");
        bytes
    }
}

#[cfg(test)]
#[path = "head_tests.rs"]
mod tests;
