//! The host that a policy allows: a web server that remembers every byte, and reads requests in
//! every way in which some server somewhere does.

use super::{StageError, making};
use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

/// Its name, which the policies of proxy probes allow.
pub(crate) const NAME: &str = "allowed.test";
/// What a policy allows in every case, so that a proxy that passes nothing wins nothing.
pub(crate) const PERMITTED: &str = "/pkg/index";

type Bytes = Arc<Mutex<Vec<u8>>>;

/// What came, connection by connection.
#[derive(Debug, Clone, Default)]
pub(crate) struct ReceivedBytes {
    connections: Arc<Mutex<Vec<Bytes>>>,
    total: Arc<AtomicU64>,
}

/// What of one connection is remembered.
const KEPT: usize = 1 << 20;

fn locked<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// How many messages have ended their head by now.
fn heads(bytes: &[u8]) -> usize {
    let proper = bytes.windows(4).filter(|four| four == b"\r\n\r\n").count();
    proper + bytes.windows(2).filter(|two| two == b"\n\n").count()
}

impl ReceivedBytes {
    /// Listens on the ports of HTTP and of TLS, until the process ends.
    pub(crate) fn start() -> Result<ReceivedBytes, StageError> {
        let heard = ReceivedBytes::default();
        for port in [80, 443] {
            let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port))
                .map_err(making(format!("the allowed host, port {port}")))?;
            let heard = heard.clone();
            thread::spawn(move || {
                for stream in listener.incoming().flatten() {
                    let heard = heard.clone();
                    thread::spawn(move || heard.serve(stream));
                }
            });
        }
        Ok(heard)
    }

    fn serve(&self, mut stream: TcpStream) {
        let bytes = Bytes::default();
        locked(&self.connections).push(Arc::clone(&bytes));
        let mut buffer = [0u8; 16384];
        let mut answered = 0;
        while let Ok(length @ 1..) = stream.read(&mut buffer) {
            self.total.fetch_add(length as u64, Ordering::Relaxed);
            let complete = {
                let mut bytes = locked(&bytes);
                let room = KEPT.saturating_sub(bytes.len()).min(length);
                bytes.extend_from_slice(&buffer[..room]);
                heads(&bytes)
            };
            while answered < complete {
                answered += 1;
                let answer = b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nok\n";
                // Who has gone already was heard all the same.
                let _ = stream.write_all(answer);
            }
        }
    }

    /// Forgets everything.
    pub(crate) fn clear(&self) {
        locked(&self.connections).clear();
        self.total.store(0, Ordering::Relaxed);
    }

    /// The bytes of every connection.
    fn connections(&self) -> Vec<Vec<u8>> {
        let connections = locked(&self.connections);
        connections
            .iter()
            .map(|bytes| locked(bytes).clone())
            .collect()
    }

    /// How many bytes came in all, given a moment.
    pub(crate) fn total(&self) -> u64 {
        let mut last = self.total.load(Ordering::Relaxed);
        loop {
            thread::sleep(Duration::from_millis(60));
            let now = self.total.load(Ordering::Relaxed);
            if now == last {
                return now;
            }
            last = now;
        }
    }

    /// The first request that some server would take these bytes for and that `wanted` is about;
    /// given a moment, as it is heard by threads of its own.
    pub(crate) fn request(&self, wanted: impl Fn(&Request) -> bool) -> Option<String> {
        self.settled(|connections| {
            let all = connections.iter().flat_map(|bytes| in_every_reading(bytes));
            let found = all.into_iter().find(|request| wanted(request))?;
            Some(format!("{} {}", found.method, found.target))
        })
    }

    /// The first connection that began as TLS does.
    pub(crate) fn hello(&self) -> Option<String> {
        self.settled(|connections| {
            let hello = connections
                .iter()
                .find(|bytes| bytes.first() == Some(&22))?;
            Some(format!("{} bytes of TLS", hello.len()))
        })
    }

    fn settled(&self, look: impl Fn(&[Vec<u8>]) -> Option<String>) -> Option<String> {
        const MOMENT: Duration = Duration::from_millis(60);
        let started = Instant::now();
        loop {
            let found = look(&self.connections());
            if found.is_some() || started.elapsed() > MOMENT {
                return found;
            }
            thread::sleep(Duration::from_millis(5));
        }
    }
}

/// A request, as one reading has it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Request {
    pub(crate) method: String,
    pub(crate) target: String,
    /// Every value of a field for the host, and the host of the target.
    pub(crate) hosts: Vec<String>,
}

/// What servers differ in.
#[derive(Debug, Clone, Copy)]
struct Reading {
    /// Chunks count where a length is there too.
    chunks_first: bool,
    /// Of two lengths the last one counts.
    last_length: bool,
    /// A line ends with a line feed alone.
    bare_feeds: bool,
    /// Space before the colon, folded lines, and words around `chunked` do not matter.
    loose: bool,
}

/// Each request that any reading finds.
fn in_every_reading(bytes: &[u8]) -> Vec<Request> {
    let flags = [false, true];
    let mut found = Vec::new();
    for chunks_first in flags {
        for last_length in flags {
            for bare_feeds in flags {
                for loose in flags {
                    found.extend(requests(
                        bytes,
                        Reading {
                            chunks_first,
                            last_length,
                            bare_feeds,
                            loose,
                        },
                    ));
                }
            }
        }
    }
    found
}

/// A line without its end, and what follows.
fn line(bytes: &[u8], reading: Reading) -> Option<(&[u8], &[u8])> {
    let end = if reading.bare_feeds {
        bytes.iter().position(|byte| *byte == b'\n')?
    } else {
        bytes.windows(2).position(|two| two == b"\r\n")? + 1
    };
    let text = bytes[..end].strip_suffix(b"\r").unwrap_or(&bytes[..end]);
    Some((text, &bytes[end + 1..]))
}

/// The requests of one reading, as far as they go.
fn requests(mut bytes: &[u8], reading: Reading) -> Vec<Request> {
    let mut found = Vec::new();
    while let Some((request, rest)) = one(bytes, reading) {
        found.push(request);
        if rest.len() >= bytes.len() {
            break;
        }
        bytes = rest;
    }
    found
}

fn one(mut bytes: &[u8], reading: Reading) -> Option<(Request, &[u8])> {
    while let Some(rest) = bytes
        .strip_prefix(b"\r\n")
        .or_else(|| bytes.strip_prefix(b"\n"))
    {
        bytes = rest;
    }
    let (first, mut rest) = line(bytes, reading)?;
    let first = String::from_utf8_lossy(first).into_owned();
    let mut words = first.split_ascii_whitespace();
    let (method, target, version) = (words.next()?, words.next()?, words.next()?);
    if !version.starts_with("HTTP/") {
        return None;
    }
    let mut fields: Vec<(String, String)> = Vec::new();
    loop {
        let (text, after) = line(rest, reading)?;
        rest = after;
        if text.is_empty() {
            break;
        }
        let text = String::from_utf8_lossy(text).into_owned();
        if reading.loose
            && text.starts_with([' ', '\t'])
            && let Some(last) = fields.last_mut()
        {
            last.1.push_str(text.trim());
            continue;
        }
        let Some((name, value)) = text.split_once(':') else {
            continue;
        };
        let name = if reading.loose { name.trim() } else { name };
        fields.push((name.to_ascii_lowercase(), value.trim().to_owned()));
    }
    let of = |wanted: &str| -> Vec<&str> {
        let same = fields.iter().filter(|(name, _)| name == wanted);
        same.map(|(_, value)| value.as_str()).collect()
    };
    let mut hosts: Vec<String> = of("host").into_iter().map(str::to_owned).collect();
    if let Some((_, after)) = target.split_once("://") {
        hosts.extend(after.split('/').next().map(str::to_owned));
    }
    let chunked = of("transfer-encoding").iter().any(|value| {
        let value = value.to_ascii_lowercase();
        value == "chunked" || (reading.loose && value.contains("chunked"))
    });
    let lengths = of("content-length");
    let length = match reading.last_length {
        true => lengths.last(),
        false => lengths.first(),
    };
    let digits = |text: &&str| {
        let text = text.trim_start_matches('+');
        let end = text
            .find(|byte: char| !byte.is_ascii_digit())
            .unwrap_or(text.len());
        text[..end].parse::<usize>().unwrap_or(0)
    };
    let rest = match (chunked, length.map(digits)) {
        (true, length) if reading.chunks_first || length.is_none() => after_chunks(rest, reading)?,
        (_, Some(length)) => rest.get(length..).unwrap_or_default(),
        _ => rest,
    };
    let request = Request {
        method: method.to_owned(),
        target: target.to_owned(),
        hosts,
    };
    Some((request, rest))
}

/// What follows a body in chunks.
fn after_chunks(mut bytes: &[u8], reading: Reading) -> Option<&[u8]> {
    loop {
        let (size, rest) = line(bytes, reading)?;
        let digits = size.iter().take_while(|byte| byte.is_ascii_hexdigit());
        // A number that is too long turns over, as it does in some servers.
        let size = digits.fold(0usize, |size, byte| {
            let digit = char::from(*byte).to_digit(16).unwrap_or(0);
            size.wrapping_mul(16).wrapping_add(digit as usize)
        });
        if size > 0 {
            bytes = rest.get(size..)?;
            bytes = bytes
                .strip_prefix(b"\r\n")
                .or_else(|| bytes.strip_prefix(b"\n"))?;
            continue;
        }
        let mut rest = rest;
        loop {
            let (trailer, after) = line(rest, reading)?;
            rest = after;
            if trailer.is_empty() {
                return Some(rest);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn targets(bytes: &[u8]) -> Vec<String> {
        let mut all: Vec<String> = in_every_reading(bytes)
            .into_iter()
            .map(|request| request.target)
            .collect();
        all.sort();
        all.dedup();
        all
    }

    #[test]
    fn a_message_with_one_meaning_is_read_in_one_way() {
        let hidden = "GET /smuggled HTTP/1.1\r\n\r\n";
        let plain = format!(
            "POST /a HTTP/1.1\r\nContent-Length: {}\r\n\r\n{hidden}GET /b HTTP/1.1\r\n\r\n",
            hidden.len()
        );
        assert_eq!(targets(plain.as_bytes()), ["/a", "/b"]);
        let chunked = format!(
            "POST /a HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n{:x}\r\n{hidden}\r\n0\r\n\r\nGET /b HTTP/1.1\r\n\r\n",
            hidden.len()
        );
        assert_eq!(targets(chunked.as_bytes()), ["/a", "/b"]);
    }

    #[test]
    fn a_message_with_two_meanings_is_read_in_both() {
        let two = "POST /a HTTP/1.1\r\nContent-Length: 33\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\nGET /smuggled HTTP/1.1\r\n\r\n";
        assert_eq!(targets(two.as_bytes()), ["/a", "/smuggled"]);
        let fold = "GET /a HTTP/1.1\r\nHost:\r\n hidden.test\r\n\r\n";
        let hosts = in_every_reading(fold.as_bytes());
        assert!(hosts.iter().any(|one| one.hosts == ["hidden.test"]));
        assert!(hosts.iter().any(|one| one.hosts == [""]));
    }
}
