//! Heads of HTTP/1.1 messages, read strictly: what two programs could understand differently
//! is understood by neither. What goes on is written anew from what was understood.

use ironcage_model::HostName;

/// Longest head.
pub(crate) const LONGEST: usize = 64 * 1024;
/// Most fields.
const MOST_FIELDS: usize = 200;

/// Why a message does not go on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Refused {
    /// The status that the sender gets.
    pub(crate) status: u16,
    /// In words.
    pub(crate) reason: String,
}

impl Refused {
    pub(crate) fn new(status: u16, reason: impl Into<String>) -> Self {
        Refused {
            status,
            reason: reason.into(),
        }
    }
}

fn bad(reason: &str) -> Refused {
    Refused::new(400, reason)
}

/// For whom requests of a connection are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Authority {
    /// The name.
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
                format!(
                    "the request is for {}, the connection for {}",
                    String::from_utf8_lossy(bytes),
                    self.name
                ),
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

/// A request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Request {
    /// GET and so on.
    pub(crate) method: String,
    /// Path and query.
    pub(crate) target: String,
    /// Whether it is HTTP/1.1 rather than 1.0.
    eleven: bool,
    pub(super) fields: Fields,
    /// How long its body is.
    pub(crate) framing: Framing,
    /// Whether no other request follows.
    pub(crate) last: bool,
    /// Whether the connection is to become a WebSocket.
    pub(crate) upgrade: bool,
}

/// A response.
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
        None if bytes.len() >= LONGEST => Err(Refused::new(431, "the head is too long")),
        None => Ok(None),
    }
}

fn is_token(byte: u8) -> bool {
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
        return Err(bad("a line ends in an odd way"));
    }
    let mut lines = lines.into_iter();
    let first = lines.next().unwrap_or_default();
    let mut fields = Vec::new();
    for line in lines {
        let at = line
            .iter()
            .position(|byte| *byte == b':')
            .ok_or_else(|| bad("a line of the head has no colon"))?;
        let (name, value) = line.split_at(at);
        // Also refuses folded lines and spaces before the colon.
        if name.is_empty() || !name.iter().copied().all(is_token) {
            return Err(bad("a field has an odd name"));
        }
        let value = value.get(1..).unwrap_or_default().trim_ascii();
        if value
            .iter()
            .any(|byte| *byte < 0x20 && *byte != b'\t' || *byte == 0x7f)
        {
            return Err(bad("a field holds a control character"));
        }
        fields.push((
            String::from_utf8_lossy(name).to_ascii_lowercase(),
            value.to_vec(),
        ));
        if fields.len() > MOST_FIELDS {
            return Err(Refused::new(431, "the head has too many fields"));
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
                _ => Err(bad("the length of the body is no number")),
            }
        }
        ([coding], []) if eleven && coding.eq_ignore_ascii_case(b"chunked") => {
            Ok(Some(Framing::Chunked))
        }
        _ => Err(bad(
            "the length of the body is said in two ways, or in an odd one",
        )),
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
    let Some(length) = end(bytes)? else {
        return Ok(None);
    };
    let (line, fields) = split(bytes.get(..length).unwrap_or_default())?;
    let words: Vec<&[u8]> = line.split(|byte| *byte == b' ').collect();
    let [method, target, version] = words.as_slice() else {
        return Err(bad("the first line is no request"));
    };
    let eleven = match *version {
        b"HTTP/1.1" => true,
        b"HTTP/1.0" => false,
        _ => {
            return Err(Refused::new(
                505,
                "only HTTP/1.0 and HTTP/1.1 are spoken here",
            ));
        }
    };
    if method.is_empty() || !method.iter().copied().all(is_token) {
        return Err(bad("the method is none"));
    }
    if method.eq_ignore_ascii_case(b"connect") {
        return Err(Refused::new(
            405,
            "CONNECT is not needed here: connections are made directly",
        ));
    }
    let target = check_target(method, target, authority)?;
    let hosts: Vec<&[u8]> = values(&fields, "host").collect();
    match hosts.as_slice() {
        [host] => authority.check(host)?,
        [] if !eleven => {}
        _ => return Err(bad("a request has one Host field")),
    }
    let framing = framing(&fields, eleven)?.unwrap_or(Framing::Empty);
    let upgrade = lists(&fields, "connection", "upgrade")
        && values(&fields, "upgrade").all(|value| value.eq_ignore_ascii_case(b"websocket"))
        && values(&fields, "upgrade").count() == 1
        && eleven
        && framing == Framing::Empty
        && *method == b"GET";
    let request = Request {
        method: String::from_utf8_lossy(method).into_owned(),
        target,
        eleven,
        framing,
        last: !eleven || lists(&fields, "connection", "close"),
        upgrade,
        fields,
    };
    Ok(Some((request, length)))
}

/// The path and query of a target, in whatever form it came.
fn check_target(method: &[u8], target: &[u8], authority: &Authority) -> Result<String, Refused> {
    if target.iter().any(|byte| !(0x21..0x7f).contains(byte)) || target.contains(&b'#') {
        return Err(bad("the target of the request holds odd characters"));
    }
    let text = String::from_utf8_lossy(target).into_owned();
    if text.starts_with('/') {
        return Ok(text);
    }
    if text == "*" && method == b"OPTIONS" {
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
        return Err(bad("the target of the request is no path"));
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
    /// The head as it goes on.
    pub(crate) fn written(&self, authority: &Authority) -> Vec<u8> {
        let mut bytes = format!(
            "{} {} HTTP/1.{}\r\nhost: {}\r\n",
            self.method,
            self.target,
            u8::from(self.eleven),
            authority.written()
        )
        .into_bytes();
        write_fields(&mut bytes, &self.fields);
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
    let wrong = |reason: &str| Refused::new(502, format!("the server's answer: {reason}"));
    let Some(length) = end(bytes).map_err(|error| wrong(&error.reason))? else {
        return Ok(None);
    };
    let head = bytes.get(..length).unwrap_or_default();
    let (line, fields) = split(head).map_err(|error| wrong(&error.reason))?;
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
    let said = framing(&fields, eleven).map_err(|error| wrong(&error.reason))?;
    let bodiless = status < 200 || matches!(status, 204 | 304) || to.method == "HEAD";
    let framing = if bodiless {
        Framing::Empty
    } else {
        said.unwrap_or(Framing::ToTheEnd)
    };
    if status == 101 && !to.upgrade {
        return Err(wrong("it changes the protocol, which was not asked for"));
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
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn authority() -> Authority {
        Authority {
            name: HostName::from_ascii(b"api.example.com").unwrap(),
            port: 80,
            usual_port: 80,
        }
    }

    fn read(text: &str) -> Result<Option<(Request, usize)>, Refused> {
        request(text.as_bytes(), &authority())
    }

    fn status(text: &str) -> u16 {
        read(text).unwrap_err().status
    }

    #[test]
    fn a_plain_request_goes_on() {
        let text = "GET /a?b=c HTTP/1.1\r\nHost: API.example.com\r\nX-Own: 1\r\n\r\nmore";
        let (request, length) = read(text).unwrap().unwrap();
        assert_eq!(length, text.len() - 4);
        assert_eq!(request.framing, Framing::Empty);
        let written = String::from_utf8(request.written(&authority())).unwrap();
        assert_eq!(
            written,
            "GET /a?b=c HTTP/1.1\r\nhost: api.example.com\r\nx-own: 1\r\n\r\n"
        );
        assert!(
            read("GET / HTTP/1.1\r\nHost: api.example.com\r\n")
                .unwrap()
                .is_none()
        );
        assert!(read("GET / HTTP/1.1\r\nHost: api.example.com:80\r\n\r\n").is_ok());
    }

    #[test]
    fn requests_for_others_are_refused() {
        assert_eq!(status("GET / HTTP/1.1\r\nHost: other.com\r\n\r\n"), 403);
        assert_eq!(
            status("GET / HTTP/1.1\r\nHost: api.example.com:81\r\n\r\n"),
            403
        );
        assert_eq!(
            status("GET / HTTP/1.1\r\nHost: api.example.com@other.com\r\n\r\n"),
            403
        );
        assert_eq!(status("GET / HTTP/1.1\r\n\r\n"), 400);
        let two = "GET / HTTP/1.1\r\nHost: api.example.com\r\nHost: other.com\r\n\r\n";
        assert_eq!(status(two), 400);
        let absolute = "GET http://other.com/ HTTP/1.1\r\nHost: api.example.com\r\n\r\n";
        assert_eq!(status(absolute), 403);
        let own = "GET http://API.example.com?x HTTP/1.1\r\nHost: api.example.com\r\n\r\n";
        assert_eq!(read(own).unwrap().unwrap().0.target, "/?x");
        let connect = "CONNECT other.com:443 HTTP/1.1\r\nHost: other.com:443\r\n\r\n";
        assert_eq!(status(connect), 405);
        assert_eq!(status("PRI * HTTP/2.0\r\n\r\n"), 505);
    }

    #[test]
    fn what_could_be_read_in_two_ways_is_refused() {
        let with =
            |fields: &str| format!("POST / HTTP/1.1\r\nHost: api.example.com\r\n{fields}\r\n");
        for fields in [
            "Content-Length: 1\r\nTransfer-Encoding: chunked\r\n",
            "Content-Length: 1\r\nContent-Length: 1\r\n",
            "Content-Length: 1, 1\r\n",
            "Content-Length: +1\r\n",
            "Content-Length: 0x1\r\n",
            "Content-Length:\r\n",
            "Transfer-Encoding: chunked, identity\r\n",
            "Transfer-Encoding: xchunked\r\n",
            "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n",
            "Transfer-Encoding : chunked\r\n",
            " folded: 1\r\n",
            "X: a\r\n b\r\n",
            "X: a\nb: c\r\n",
            "X\r\n",
            "X: \u{1}\r\n",
        ] {
            assert_eq!(status(&with(fields)), 400, "{fields:?}");
        }
        assert!(read(&with("Transfer-Encoding: Chunked\r\n")).is_ok());
        assert!(read(&with("Content-Length: 12\r\n")).is_ok());
        assert_eq!(
            status("POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n"),
            400
        );
        assert_eq!(
            status("GET  / HTTP/1.1\r\nHost: api.example.com\r\n\r\n"),
            400
        );
        assert_eq!(
            status("GET /\t HTTP/1.1\r\nHost: api.example.com\r\n\r\n"),
            400
        );
    }

    #[test]
    fn only_websockets_change_the_protocol() {
        let with = |what: &str| {
            let text = format!(
                "GET / HTTP/1.1\r\nHost: api.example.com\r\nConnection: Upgrade\r\nUpgrade: {what}\r\n\r\n"
            );
            read(&text).unwrap().unwrap().0
        };
        assert!(with("websocket").upgrade);
        let h2c = with("h2c");
        assert!(!h2c.upgrade);
        let written = String::from_utf8(h2c.written(&authority())).unwrap();
        assert!(!written.contains("h2c"), "{written}");
        let switch = b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\n\r\n";
        assert!(response(switch, &with("websocket")).unwrap().is_some());
        assert_eq!(response(switch, &h2c).unwrap_err().status, 502);
    }

    #[test]
    fn the_end_of_a_response_is_known() {
        let get = read("GET / HTTP/1.1\r\nHost: api.example.com\r\n\r\n")
            .unwrap()
            .unwrap()
            .0;
        let head = read("HEAD / HTTP/1.1\r\nHost: api.example.com\r\n\r\n")
            .unwrap()
            .unwrap()
            .0;
        let read = |text: &str, to: &Request| response(text.as_bytes(), to).unwrap().unwrap().0;
        let five = "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n";
        assert_eq!(read(five, &get).framing, Framing::Length(5));
        let to_head = read(five, &head);
        assert_eq!(to_head.framing, Framing::Empty);
        let written = String::from_utf8(to_head.written(false)).unwrap();
        assert!(written.contains("content-length: 5"), "{written}");
        assert_eq!(
            read("HTTP/1.1 204 No\r\n\r\n", &get).framing,
            Framing::Empty
        );
        let open = read("HTTP/1.1 200\r\n\r\n", &get);
        assert!(open.framing == Framing::ToTheEnd && open.last);
        assert!(read("HTTP/1.0 200 OK\r\nContent-Length: 1\r\n\r\n", &get).last);
        assert!(response(b"SSH-2.0-x\r\n\r\n", &get).is_err());
        assert!(response(b"HTTP/1.1 20x OK\r\n\r\n", &get).is_err());
    }

    proptest! {
        #[test]
        fn no_bytes_make_it_panic(bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
            let _ = request(&bytes, &authority());
        }

        #[test]
        fn what_goes_on_is_understood_the_same_again(
            target in "/[!-~]{0,20}",
            name in "[a-zA-Z-]{1,12}",
            value in "[ -~]{0,20}",
            length in 0_u32..100,
        ) {
            let text = format!(
                "POST {target} HTTP/1.1\r\nHost: api.example.com\r\n{name}: {value}\r\nContent-Length: {length}\r\n\r\n"
            );
            if let Ok(Some((request, _))) = read(&text) {
                let written = request.written(&authority());
                let (again, used) = super::request(&written, &authority()).unwrap().unwrap();
                prop_assert_eq!(used, written.len());
                prop_assert_eq!(&again.target, &request.target);
                prop_assert_eq!(again.framing, request.framing);
                prop_assert_eq!(again.written(&authority()), written);
            }
        }
    }
}
