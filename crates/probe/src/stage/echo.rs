//! A host that answers as its client asks it to, byte for byte, and says again the credentials
//! that it gets: what somebody would look for who wants to read a secret that a proxy adds.
//!
//! `POST /script`: the body is lines of `MILLISECONDS HEX`; each becomes a chunk of the answer,
//! after that time. `GET /echo`: the `Authorization` field, encoded as the request's header fields
//! choose. `GET /pause`: the same with its length said, and a pause in the middle.
//! `GET /coding`: a `Content-Encoding` that is the value of that field.
//!
//! A second port of it makes the mistake that an egress proxy may make: it holds back an end that
//! begins like the secret. There the probes show that they would find out.

use super::{StageError, making};
use std::io::{self, BufReader, Read as _, Write as _};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::thread;
use std::time::Duration;

/// Where it listens, on the stage's own loopback.
pub(crate) const PORT: u16 = 8474;
/// Where it makes the mistake.
pub(crate) const LEAKING_PORT: u16 = 8475;
/// An encoding that no proxy knows: letters move by 13 places.
pub(crate) const CODING: &str = "rot13";

/// Listens until the process ends.
pub(super) fn start(secret: &str) -> Result<(), StageError> {
    for (port, leaks) in [(PORT, None), (LEAKING_PORT, Some(secret.to_owned()))] {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port))
            .map_err(making(format!("the host that echoes, port {port}")))?;
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let leaks = leaks.clone();
                // A client that went away is an end like any other.
                thread::spawn(move || drop(serve(&stream, leaks.as_deref())));
            }
        });
    }
    Ok(())
}

/// The same text in the encoding [`CODING`], and back.
pub(crate) fn rotated(text: &[u8]) -> Vec<u8> {
    let rotate = |byte: &u8| match byte {
        b'a'..=b'z' => (byte - b'a' + 13) % 26 + b'a',
        b'A'..=b'Z' => (byte - b'A' + 13) % 26 + b'A',
        other => *other,
    };
    text.iter().map(rotate).collect()
}

struct EchoRequest {
    target: String,
    fields: Vec<(String, String)>,
    body: Vec<u8>,
}

impl EchoRequest {
    fn read(reader: &mut impl io::BufRead) -> io::Result<Option<EchoRequest>> {
        let mut line = String::new();
        if reader.read_line(&mut line)? == 0 {
            return Ok(None);
        }
        let target = line.split(' ').nth(1).unwrap_or_default().to_owned();
        let mut request = EchoRequest {
            target,
            fields: Vec::new(),
            body: Vec::new(),
        };
        loop {
            let mut line = String::new();
            if reader.read_line(&mut line)? == 0 || line.trim().is_empty() {
                break;
            }
            if let Some((name, value)) = line.split_once(':') {
                let name = name.to_ascii_lowercase().replace('_', "-");
                request.fields.push((name, value.trim().to_owned()));
            }
        }
        let length = request.field("content-length").parse().unwrap_or(0);
        reader.take(length).read_to_end(&mut request.body)?;
        Ok(Some(request))
    }

    fn field(&self, wanted: &str) -> &str {
        let mut found = self.fields.iter().filter(|(name, _)| name == wanted);
        found.next().map_or("", |(_, value)| value)
    }

    /// Whether a header field asks for something.
    fn asks(&self, what: &str) -> bool {
        self.fields.iter().any(|(_, value)| value.contains(what))
    }

    /// The part of the answer that is asked for.
    fn range(&self) -> Option<(usize, usize)> {
        let mut values = self.fields.iter().map(|(_, value)| value);
        let text = values.find_map(|value| value.strip_prefix("bytes="))?;
        let (first, last) = text.split_once('-')?;
        Some((first.parse().ok()?, last.parse().ok()?))
    }
}

fn serve(stream: &TcpStream, leaks: Option<&str>) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let mut reader = BufReader::new(stream);
    while let Some(request) = EchoRequest::read(&mut reader)? {
        match request.target.as_str() {
            "/script" => script(stream, &request.body, leaks)?,
            "/pause" => pause(stream, request.field("authorization"))?,
            _ => echo(stream, &request)?,
        }
    }
    Ok(())
}

/// Where the end of a text begins that may become the secret.
fn held(text: &[u8], secret: &str) -> usize {
    let from = text.len().saturating_sub(secret.len());
    let begins = |at: &usize| secret.as_bytes().starts_with(&text[*at..]);
    (from..text.len()).find(begins).unwrap_or(text.len())
}

fn script(mut stream: &TcpStream, body: &[u8], leaks: Option<&str>) -> io::Result<()> {
    stream.write_all(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")?;
    let mut waiting = Vec::new();
    let mut chunk = |part: &[u8]| match part {
        [] => Ok(()),
        part => {
            let mut bytes = format!("{:x}\r\n", part.len()).into_bytes();
            bytes.extend_from_slice(part);
            bytes.extend_from_slice(b"\r\n");
            stream.write_all(&bytes)
        }
    };
    for line in String::from_utf8_lossy(body).lines() {
        let Some((milliseconds, hex)) = line.split_once(' ') else {
            continue;
        };
        thread::sleep(Duration::from_millis(milliseconds.parse().unwrap_or(0)));
        waiting.extend(unhex(hex));
        let end = leaks.map_or(waiting.len(), |secret| held(&waiting, secret));
        let rest = waiting.split_off(end);
        chunk(&waiting)?;
        waiting = rest;
    }
    chunk(&waiting)?;
    stream.write_all(b"0\r\n\r\n")
}

fn unhex(text: &str) -> Vec<u8> {
    let digits: Vec<u8> = text
        .chars()
        .filter_map(|digit| u8::try_from(digit.to_digit(16)?).ok())
        .collect();
    digits
        .chunks(2)
        .map(|two| two.iter().fold(0, |byte, digit| byte << 4 | digit))
        .collect()
}

fn pause(mut stream: &TcpStream, said: &str) -> io::Result<()> {
    let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", said.len());
    let (first, last) = said.split_at(said.len().saturating_sub(4));
    stream.write_all(head.as_bytes())?;
    stream.write_all(first.as_bytes())?;
    thread::sleep(Duration::from_millis(400));
    stream.write_all(last.as_bytes())
}

fn echo(mut stream: &TcpStream, request: &EchoRequest) -> io::Result<()> {
    let said = request.field("authorization");
    let mut body = said.as_bytes().to_vec();
    let mut status = "200 OK";
    let mut fields = String::new();
    if request.target == "/coding" {
        fields += &format!("Content-Encoding: {said}\r\n");
    }
    if request.asks("utf-16") {
        body = said.encode_utf16().flat_map(u16::to_le_bytes).collect();
        fields += "Content-Type: text/plain; charset=utf-16le\r\n";
    }
    if request.asks(CODING) {
        body = rotated(&body);
        fields += &format!("Content-Encoding: {CODING}\r\n");
    }
    if let Some((first, last)) = request.range() {
        status = "206 Partial Content";
        let last = last.saturating_add(1).min(body.len());
        body = body.get(first..last).unwrap_or_default().to_vec();
    }
    let head = format!(
        "HTTP/1.1 {status}\r\n{fields}Content-Length: {}\r\n\r\n",
        body.len()
    );
    stream.write_all(head.as_bytes())?;
    stream.write_all(&body)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mistake_is_made_for_what_begins_like_the_secret_alone() {
        assert_eq!(held(b"a nonce-1", "nonce-12"), 2);
        assert_eq!(held(b"a nonce-2", "nonce-12"), 9);
        assert_eq!(unhex("6162"), b"ab");
        assert_eq!(rotated(&rotated(b"nonce-0aZ")), b"nonce-0aZ");
    }
}
