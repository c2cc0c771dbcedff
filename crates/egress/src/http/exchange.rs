//! One request and its response after the other, with bodies that stream.
//!
//! The next request is read only when the response before it is over: there is no doubt which
//! answer belongs to which, and no request hides behind another.

use super::head::{self, Framing, Refused, Request};
use super::judge::{Asked, Judge, Passed, refusal};
use crate::books::Counts;
use std::cell::Cell;
use std::future::{Future, poll_fn};
use std::io;
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadHalf, WriteHalf};
use tokio::time::timeout;

/// How long a client may take for a head that it has begun.
const HEAD_PATIENCE: Duration = Duration::from_secs(30);
/// How long a connection without a request is kept.
const IDLE_PATIENCE: Duration = Duration::from_secs(300);
/// Bytes read in one go.
const PART: usize = 16 * 1024;
/// Longest line before a chunk, and longest part after the last one.
const LONGEST_LINE: usize = 1024;
const LONGEST_TRAILER: usize = 16 * 1024;

/// A reader that keeps what was read and not used.
#[derive(Debug)]
pub(crate) struct Source<R> {
    inner: R,
    buffer: Vec<u8>,
}

impl<R: AsyncRead + Unpin> Source<R> {
    fn new(inner: R, buffer: Vec<u8>) -> Self {
        Source { inner, buffer }
    }

    /// Reads more. `false` at the end.
    async fn fill(&mut self) -> io::Result<bool> {
        // Not by way of an array: it would be a part of every connection's state.
        self.buffer.reserve(PART);
        Ok(self.inner.read_buf(&mut self.buffer).await? > 0)
    }

    /// Drops what was used.
    fn used(&mut self, length: usize) {
        self.buffer.drain(..length.min(self.buffer.len()));
    }

    /// A line, without its end.
    async fn line(&mut self, longest: usize) -> io::Result<Vec<u8>> {
        loop {
            if let Some(at) = self.buffer.windows(2).position(|two| two == b"\r\n") {
                let line = self.buffer.get(..at).unwrap_or_default().to_vec();
                self.used(at + 2);
                return Ok(line);
            }
            if self.buffer.len() > longest || !self.fill().await? {
                return Err(io::ErrorKind::InvalidData.into());
            }
        }
    }
}

/// The cage's side of a connection.
#[derive(Debug)]
pub(crate) struct Client<S> {
    reader: Source<ReadHalf<S>>,
    writer: WriteHalf<S>,
}

impl<S: AsyncRead + AsyncWrite> Client<S> {
    /// `seen` was read from the stream before.
    pub(crate) fn new(stream: S, seen: Vec<u8>) -> Self {
        let (reader, writer) = tokio::io::split(stream);
        Client {
            reader: Source::new(reader, seen),
            writer,
        }
    }

    /// The next request, which stays in the buffer's front until its head is used up. `None`
    /// where there is no other.
    pub(crate) async fn request(
        &mut self,
        judge: &Judge,
    ) -> io::Result<Result<Option<(Request, Passed)>, Refused>> {
        loop {
            let patience = if self.reader.buffer.is_empty() {
                IDLE_PATIENCE
            } else {
                HEAD_PATIENCE
            };
            match head::request(&self.reader.buffer, &judge.authority) {
                Err(refused) => {
                    judge.refuse(None, &refused);
                    return Ok(Err(refused));
                }
                Ok(Some((mut request, length))) => {
                    self.reader.used(length);
                    let passed = judge.judge(Asked {
                        method: &request.method,
                        target: &mut request.target,
                        fields: &mut request.fields,
                    });
                    return Ok(passed.map(|passed| Some((request, passed))));
                }
                Ok(None) => {}
            }
            match timeout(patience, self.reader.fill()).await {
                Ok(Ok(true)) => {}
                // Asleep in the middle of a head.
                Err(_) if !self.reader.buffer.is_empty() => {
                    let refused = Refused::new(408, "the request did not come in time");
                    judge.refuse(None, &refused);
                    return Ok(Err(refused));
                }
                // Gone, or asleep.
                Ok(Ok(false)) | Err(_) => return Ok(Ok(None)),
                Ok(Err(error)) => return Err(error),
            }
        }
    }

    /// Answers a request that does not go on, and ends the connection.
    pub(crate) async fn refuse(&mut self, refused: &Refused) -> io::Result<()> {
        self.writer.write_all(&refuse(refused)).await?;
        self.writer.shutdown().await?;
        // What the client still sends would turn the answer into a reset.
        let drain = async {
            while let Ok(true) = self.reader.fill().await {
                self.reader.buffer.clear()
            }
        };
        let _ = timeout(Duration::from_secs(1), drain).await;
        Ok(())
    }
}

/// The answer to a request that does not go on, in words that a program can read.
fn refuse(refused: &Refused) -> Vec<u8> {
    let status = refused.status;
    let words = match status {
        403 => "Forbidden",
        405 => "Method Not Allowed",
        408 => "Request Timeout",
        413 => "Content Too Large",
        429 => "Too Many Requests",
        431 => "Request Header Fields Too Large",
        502 => "Bad Gateway",
        505 => "HTTP Version Not Supported",
        _ => "Bad Request",
    };
    let body = refusal(refused);
    format!(
        "HTTP/1.1 {status} {words}\r\ncontent-type: application/json\r\nx-ironcage: refused\r\n\
         content-length: {}\r\nconnection: close\r\n\r\n{body}",
        body.len()
    )
    .into_bytes()
}

/// Carries requests to a server, the first of which was read before, until there is no other.
pub(crate) async fn carry<C, S>(
    client: &mut Client<C>,
    server: S,
    first: (Request, Passed),
    (judge, counts): (&Judge, &Counts),
) -> io::Result<()>
where
    C: AsyncRead + AsyncWrite,
    S: AsyncRead + AsyncWrite,
{
    let (reader, mut writer) = tokio::io::split(server);
    let mut answers = Source::new(reader, Vec::new());
    let (mut request, mut passed) = first;
    let mut is_first = true;
    loop {
        if let Some(refused) = over_a_limit(&request, counts, is_first) {
            judge.stop(&passed, &refused);
            return client.refuse(&refused).await;
        }
        is_first = false;
        let head = request.written(&judge.authority);
        counts.send(head.len() as u64)?;
        writer.write_all(&head).await?;
        let body = Cell::new(0_u64);
        let outcome = {
            let upload = copy(&mut client.reader, &mut writer, request.framing, |bytes| {
                body.set(body.get().saturating_add(bytes));
                counts.body(body.get())?;
                counts.send(bytes)
            });
            let writer = &mut client.writer;
            let download = answer(&mut answers, writer, (&request, &passed), (judge, counts));
            exchange(upload, download).await
        };
        let outcome = match outcome {
            Ok(outcome) => outcome,
            Err(error) => {
                judge.unanswered(&passed, "the connection broke");
                return Err(error);
            }
        };
        match outcome {
            Outcome::Next => {}
            Outcome::Last => {
                client.writer.shutdown().await?;
                return Ok(());
            }
            Outcome::Refused(refused) => {
                judge.unanswered(&passed, &refused.reason);
                return client.refuse(&refused).await;
            }
            Outcome::Switched => {
                let sent = |bytes| counts.send(bytes);
                let received = |bytes| {
                    counts.received(bytes);
                    Ok(())
                };
                crate::relay::both(
                    to_the_end(&mut client.reader, &mut writer, sent),
                    to_the_end(&mut answers, &mut client.writer, received),
                )
                .await?;
                return Ok(());
            }
        }
        match client.request(judge).await? {
            Ok(Some(next)) => (request, passed) = next,
            Ok(None) => return Ok(()),
            Err(refused) => return client.refuse(&refused).await,
        }
    }
}

/// Why a request does not go on, where there are too many or its body is too long.
fn over_a_limit(request: &Request, counts: &Counts, first: bool) -> Option<Refused> {
    let body = match request.framing {
        Framing::Length(length) => Some(length),
        _ => None,
    };
    if let Err(denied) = counts.requests(first) {
        return Some(Refused::new(429, denied.reason));
    }
    let denied = counts.says_body(body.unwrap_or(0)).err()?;
    Some(Refused::new(413, denied.reason))
}

/// What follows a response.
#[derive(Debug)]
enum Outcome {
    /// Another request may.
    Next,
    /// Nothing.
    Last,
    /// Bytes of another protocol.
    Switched,
    /// Nothing: the server's answer was none.
    Refused(Refused),
}

/// A request's body goes while its response comes. A response that is over before the body is
/// ends the connection.
async fn exchange(
    upload: impl Future<Output = io::Result<()>>,
    download: impl Future<Output = io::Result<Outcome>>,
) -> io::Result<Outcome> {
    let (mut upload, mut download) = (pin!(upload), pin!(download));
    let mut sent = false;
    poll_fn(move |context| {
        if !sent && let Poll::Ready(result) = upload.as_mut().poll(context) {
            result?;
            sent = true;
        }
        match download.as_mut().poll(context) {
            Poll::Ready(Ok(Outcome::Next)) if !sent => Poll::Ready(Ok(Outcome::Last)),
            other => other,
        }
    })
    .await
}

/// Reads the response to a request and passes it on.
async fn answer<R: AsyncRead + Unpin, W: AsyncWrite + Unpin>(
    source: &mut Source<R>,
    sink: &mut W,
    (request, passed): (&Request, &Passed),
    (judge, counts): (&Judge, &Counts),
) -> io::Result<Outcome> {
    loop {
        let (response, length) = loop {
            match head::response(&source.buffer, request) {
                Ok(Some(found)) => break found,
                Ok(None) => {}
                Err(refused) => return Ok(Outcome::Refused(refused)),
            }
            if !source.fill().await? {
                let reason = "the server closed the connection without an answer";
                return Ok(Outcome::Refused(Refused::new(502, reason)));
            }
        };
        source.used(length);
        let last = response.last || request.last;
        let head = response.written(last);
        sink.write_all(&head).await?;
        counts.received(head.len() as u64);
        if response.status == 101 || response.status >= 200 {
            judge.answered(passed, response.status);
            counts.tell_request(&request.method, &request.target, response.status);
        }
        if response.status == 101 {
            sink.flush().await?;
            return Ok(Outcome::Switched);
        }
        if response.status < 200 {
            sink.flush().await?;
            continue;
        }
        copy(source, sink, response.framing, |bytes| {
            counts.received(bytes);
            Ok(())
        })
        .await?;
        return Ok(if last { Outcome::Last } else { Outcome::Next });
    }
}

/// Carries a body of known length; chunks are read and made anew.
async fn copy<R: AsyncRead + Unpin, W: AsyncWrite + Unpin>(
    source: &mut Source<R>,
    sink: &mut W,
    framing: Framing,
    count: impl Fn(u64) -> io::Result<()>,
) -> io::Result<()> {
    match framing {
        Framing::Empty => {}
        Framing::Length(length) => exactly(source, sink, length, false, &count).await?,
        Framing::Chunked => {
            loop {
                let line = source.line(LONGEST_LINE).await?;
                let size = chunk_size(&line).ok_or(io::ErrorKind::InvalidData)?;
                if size == 0 {
                    break;
                }
                exactly(source, sink, size, true, &count).await?;
                if !source.line(2).await?.is_empty() {
                    return Err(io::ErrorKind::InvalidData.into());
                }
            }
            let mut trailer = 0;
            loop {
                let line = source.line(LONGEST_TRAILER).await?;
                trailer += line.len();
                if trailer > LONGEST_TRAILER {
                    return Err(io::ErrorKind::InvalidData.into());
                }
                if line.is_empty() {
                    break;
                }
            }
            sink.write_all(b"0\r\n\r\n").await?;
        }
        Framing::ToTheEnd => return to_the_end(source, sink, count).await,
    }
    sink.flush().await
}

/// The size that a line before a chunk says. What may follow it is dropped.
fn chunk_size(line: &[u8]) -> Option<u64> {
    let digits = line.split(|byte| *byte == b';').next()?.trim_ascii_end();
    let plain = (1..=15).contains(&digits.len()) && digits.iter().all(u8::is_ascii_hexdigit);
    let text = std::str::from_utf8(digits).ok()?;
    plain.then(|| u64::from_str_radix(text, 16).ok())?
}

async fn exactly<R: AsyncRead + Unpin, W: AsyncWrite + Unpin>(
    source: &mut Source<R>,
    sink: &mut W,
    mut left: u64,
    chunked: bool,
    count: &impl Fn(u64) -> io::Result<()>,
) -> io::Result<()> {
    while left > 0 {
        if source.buffer.is_empty() && !source.fill().await? {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let most = usize::try_from(left).unwrap_or(usize::MAX);
        let length = source.buffer.len().min(most);
        count(length as u64)?;
        let part = source.buffer.get(..length).unwrap_or_default();
        if chunked {
            sink.write_all(format!("{length:x}\r\n").as_bytes()).await?;
        }
        sink.write_all(part).await?;
        if chunked {
            sink.write_all(b"\r\n").await?;
        }
        source.used(length);
        left -= length as u64;
        if source.buffer.is_empty() {
            // As it comes: events of a stream are not held back.
            sink.flush().await?;
        }
    }
    Ok(())
}

async fn to_the_end<R: AsyncRead + Unpin, W: AsyncWrite + Unpin>(
    source: &mut Source<R>,
    sink: &mut W,
    count: impl Fn(u64) -> io::Result<()>,
) -> io::Result<()> {
    loop {
        if source.buffer.is_empty() && !source.fill().await? {
            // The other side may be gone already.
            let _ = sink.shutdown().await;
            return Ok(());
        }
        let part = std::mem::take(&mut source.buffer);
        count(part.len() as u64)?;
        sink.write_all(&part).await?;
        sink.flush().await?;
    }
}

#[cfg(test)]
mod tests {
    use super::super::head::Authority;
    use super::super::judge::Recorder;
    use super::*;
    use crate::ledger::Kind;
    use ironcage_model::{
        Destination, HostName, HostRule, HttpRule, NetworkVerdict, PathPattern, Ports, Protocol,
    };
    use std::cell::RefCell;
    use std::rc::Rc;
    use tokio::io::duplex;

    #[derive(Default)]
    struct Notes(RefCell<Vec<Kind>>);

    impl Recorder for Notes {
        fn refuse(&self, kind: Kind) {
            self.note(kind);
        }

        fn note(&self, kind: Kind) {
            self.0.borrow_mut().push(kind);
        }
    }

    /// Every request is allowed, but where rules are given.
    fn judge(paths: Option<&[(&str, &str)]>) -> (Judge, Rc<Notes>) {
        let name = HostName::from_ascii(b"a.com").unwrap();
        let notes = Rc::new(Notes::default());
        let rule = |(method, path): &(&str, &str)| HttpRule {
            methods: vec![(*method).to_owned()],
            host: HostRule {
                to: Destination::Name(name.clone()),
                ports: Ports::Web,
            },
            path: PathPattern::parse(path).unwrap(),
        };
        let judge = Judge {
            rules: paths.map(|paths| paths.iter().map(rule).collect()),
            authority: Authority {
                name: name.clone(),
                port: 80,
                usual_port: 80,
            },
            rule: "a.com".into(),
            protocol: Protocol::Http,
            address: RefCell::default(),
            recorder: Rc::clone(&notes) as Rc<dyn Recorder>,
        };
        (judge, notes)
    }

    /// What the server got and the client got, when the client says one thing and the server
    /// another.
    fn talk(from_client: &str, from_server: &str) -> (String, String) {
        talk_to(&judge(None).0, from_client, from_server)
    }

    fn talk_to(judge: &Judge, from_client: &str, from_server: &str) -> (String, String) {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .build()
            .unwrap();
        runtime.block_on(async {
            let (mut outer, inner) = duplex(1 << 20);
            let (mut far, near) = duplex(1 << 20);
            outer.write_all(from_client.as_bytes()).await.unwrap();
            outer.shutdown().await.unwrap();
            far.write_all(from_server.as_bytes()).await.unwrap();
            far.shutdown().await.unwrap();
            let mut client = Client::new(inner, Vec::new());
            let counts = Counts::uncounted();
            match client.request(judge).await.unwrap() {
                Ok(Some(first)) => {
                    let _ = carry(&mut client, near, first, (judge, &counts)).await;
                }
                Ok(None) => {}
                Err(refused) => {
                    drop(near);
                    client.refuse(&refused).await.unwrap();
                }
            }
            drop(client);
            let (mut server, mut answer) = (String::new(), String::new());
            let _ = far.read_to_string(&mut server).await;
            let _ = outer.read_to_string(&mut answer).await;
            (server, answer)
        })
    }

    const OK: &str = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";

    #[test]
    fn two_requests_go_one_after_the_other() {
        let get = "GET /1 HTTP/1.1\r\nHost: a.com\r\n\r\nPOST /2 HTTP/1.1\r\nHost: a.com\r\nTransfer-Encoding: chunked\r\n\r\n3;x=y\r\nabc\r\n0\r\nT: 1\r\n\r\n";
        let (server, client) = talk(get, &format!("{OK}{OK}"));
        assert_eq!(
            server,
            "GET /1 HTTP/1.1\r\nhost: a.com\r\n\r\nPOST /2 HTTP/1.1\r\nhost: a.com\r\ntransfer-encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n"
        );
        assert_eq!(client.matches("\r\n\r\nok").count(), 2);
    }

    #[test]
    fn a_second_request_is_decided_again() {
        let get = "GET /1 HTTP/1.1\r\nHost: a.com\r\n\r\nGET /2 HTTP/1.1\r\nHost: b.com\r\n\r\n";
        let (server, client) = talk(get, &format!("{OK}{OK}"));
        assert!(!server.contains("/2"), "{server}");
        assert!(client.contains("403 Forbidden"), "{client}");
    }

    #[test]
    fn requests_are_held_to_rules_each_on_its_own() {
        let (judge, notes) = judge(Some(&[("GET", "/v1/**")]));
        let two = "GET /v1/a?token=x HTTP/1.1\r\nHost: a.com\r\n\r\nPOST /v1/a HTTP/1.1\r\nHost: a.com\r\nContent-Length: 0\r\n\r\n";
        let (server, client) = talk_to(&judge, two, &format!("{OK}{OK}"));
        assert!(
            server.contains("GET /v1/a?token=x") && !server.contains("POST"),
            "{server}"
        );
        assert!(
            client.contains("200 OK") && client.contains("403 Forbidden"),
            "{client}"
        );
        assert!(client.contains("no rule allows POST /v1/a"), "{client}");
        let seen: Vec<_> = notes
            .0
            .borrow()
            .iter()
            .map(|kind| {
                (
                    kind.verdict,
                    kind.request.clone().unwrap(),
                    kind.status.unwrap(),
                )
            })
            .collect();
        assert_eq!(
            seen,
            [
                (NetworkVerdict::Allowed, "GET /v1/a".to_owned(), 200),
                (NetworkVerdict::Denied, "POST /v1/a".to_owned(), 403),
            ]
        );
        let other = "GET /v1/ HTTP/1.1\r\nHost: a.com\r\nX-HTTP-Method-Override: DELETE\r\n\r\n";
        let (server, client) = talk_to(&judge, other, OK);
        assert!(server.is_empty() && client.contains("403"), "{client}");
        let climb = "GET /v1/../admin HTTP/1.1\r\nHost: a.com\r\n\r\n";
        let (server, client) = talk_to(&judge, climb, OK);
        assert!(server.is_empty() && client.contains("403"), "{client}");
    }

    #[test]
    fn a_request_in_a_body_stays_a_body() {
        let inner = "GET /evil HTTP/1.1\r\nHost: b.com\r\n\r\n";
        let post = format!(
            "POST / HTTP/1.1\r\nHost: a.com\r\nContent-Length: {}\r\n\r\n{inner}",
            inner.len()
        );
        let (server, _) = talk(&post, OK);
        assert!(server.ends_with(inner) && server.starts_with("POST / "));
        let odd = "POST / HTTP/1.1\r\nHost: a.com\r\nTransfer-Encoding: chunked\r\n\r\n-1\r\n";
        let (server, _) = talk(odd, OK);
        assert!(!server.contains("-1"), "{server}");
    }

    #[test]
    fn a_switch_of_protocols_is_carried_to_the_end() {
        let ask = "GET / HTTP/1.1\r\nHost: a.com\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\nclient bytes";
        let yes = "HTTP/1.1 101 Switching\r\nUpgrade: websocket\r\n\r\nserver bytes";
        let (server, client) = talk(ask, yes);
        assert!(server.ends_with("client bytes"), "{server}");
        assert!(client.ends_with("server bytes"), "{client}");
    }

    #[test]
    fn answers_that_are_none_become_an_error() {
        let (_, client) = talk("GET / HTTP/1.1\r\nHost: a.com\r\n\r\n", "garbage\r\n\r\n");
        assert!(client.contains("502 Bad Gateway"), "{client}");
        let (_, client) = talk("GET / HTTP/1.1\r\nHost: a.com\r\n\r\n", "");
        assert!(client.contains("502 Bad Gateway"), "{client}");
        let (server, client) = talk("CONNECT b.com:443 HTTP/1.1\r\n\r\n", "");
        assert!(server.is_empty() && client.contains("405"), "{client}");
    }

    #[test]
    fn sizes_of_chunks_are_plain_numbers() {
        assert_eq!(chunk_size(b"1f"), Some(31));
        assert_eq!(chunk_size(b"1f ;a=b"), Some(31));
        for odd in [
            &b""[..],
            b"+1",
            b"0x1",
            b"-1",
            b" 1",
            b"ffffffffffffffff",
            b"1g",
        ] {
            assert_eq!(chunk_size(odd), None, "{odd:?}");
        }
    }
}
