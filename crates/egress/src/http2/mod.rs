//! HTTP/2 between the cage and a server: every stream is a request of its own, judged as one
//! of HTTP/1.1 is. Pushed responses, tunnels and upgrades there are none.

use crate::books::Counts;
use crate::http::{Asked, Fields, Judge, Passed, Passing, Refused, refusal};
use bytes::Bytes;
use h2::client::SendRequest;
use h2::server::SendResponse;
use h2::{Reason, RecvStream, SendStream};
use http::header::{HeaderName, HeaderValue};
use http::{HeaderMap, Method, Request, Response, StatusCode, Uri};
use std::borrow::Cow;
use std::cell::Cell;
use std::future::{Future, poll_fn};
use std::io;
use std::pin::pin;
use std::rc::Rc;
use std::task::Poll;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::task::JoinSet;
use tokio::time::timeout;

/// Requests at once on one connection.
const STREAMS: u32 = 100;
/// Bytes that a stream, and a connection, may have on the way.
const STREAM_WINDOW: u32 = 256 * 1024;
const CONNECTION_WINDOW: u32 = 1024 * 1024;
/// What a connection has before anything is said about it.
const LEAST_WINDOW: u32 = 65_535;
/// Bytes of heads that are held at once, all connections together.
const HEADS: usize = 32 << 20;
/// Longest head.
const HEAD: u32 = 64 * 1024;
/// How long a connection without a request is kept, and how long one may take to begin.
const IDLE: Duration = Duration::from_secs(300);
const BEGIN: Duration = Duration::from_secs(30);

fn broken(error: h2::Error) -> io::Error {
    io::Error::other(error)
}

/// What a stream, and a connection, may have on the way where there are many connections.
fn windows(share: Option<u32>) -> (u32, u32) {
    let share = share.unwrap_or(CONNECTION_WINDOW).max(LEAST_WINDOW);
    (share.min(STREAM_WINDOW), share)
}

async fn accept<C>(client: C, share: Option<u32>) -> io::Result<h2::server::Connection<C, Bytes>>
where
    C: AsyncRead + AsyncWrite + Unpin,
{
    let (stream, connection) = windows(share);
    let mut builder = h2::server::Builder::new();
    builder
        .max_concurrent_streams(STREAMS)
        .initial_window_size(stream)
        .initial_connection_window_size(connection)
        .max_header_list_size(HEAD);
    match timeout(BEGIN, builder.handshake(client)).await {
        Ok(begun) => begun.map_err(broken),
        Err(_) => Err(io::ErrorKind::TimedOut.into()),
    }
}

/// What the requests of a connection share.
struct Shared {
    judge: Judge,
    counts: Counts,
}

/// One request among those of its connection.
struct Place {
    shared: Rc<Shared>,
    first: bool,
}

thread_local! {
    static HELD: Cell<usize> = const { Cell::new(0) };
}

/// Room for the head of a request while that is under way.
struct Room(usize);

impl Room {
    fn take(bytes: usize) -> Option<Self> {
        HELD.with(|held| {
            let with = held.get().checked_add(bytes)?;
            (with <= HEADS).then(|| {
                held.set(with);
                Room(bytes)
            })
        })
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        HELD.with(|held| held.set(held.get().saturating_sub(self.0)));
    }
}

/// Bytes that a head takes, in about.
fn size(head: &http::request::Parts) -> usize {
    let field = |(name, value): (&HeaderName, &HeaderValue)| name.as_str().len() + value.len() + 64;
    let fields: usize = head.headers.iter().map(field).sum();
    let path = head
        .uri
        .path_and_query()
        .map_or(0, |path| path.as_str().len());
    fields + path
}

/// Carries requests to a server until there is no other. `share` is what the connection may have
/// on the way, where there are many.
pub(crate) async fn carry<C, S>(
    client: C,
    server: S,
    (judge, counts): (Judge, Counts),
    share: Option<u32>,
) -> io::Result<()>
where
    C: AsyncRead + AsyncWrite + Unpin,
    S: AsyncRead + AsyncWrite + Unpin + 'static,
{
    let mut inside = accept(client, share).await?;
    let (stream_window, connection_window) = windows(share);
    let mut builder = h2::client::Builder::new();
    builder
        .enable_push(false)
        .initial_window_size(stream_window)
        .initial_connection_window_size(connection_window)
        .max_header_list_size(HEAD);
    let (outside, connection) = builder.handshake(server).await.map_err(broken)?;
    // All of it ends with this function: a set that goes takes its tasks along.
    let mut tasks = JoinSet::new();
    tasks.spawn_local(async move {
        // How the connection ended is seen by its streams.
        let _ = connection.await;
    });
    let shared = Rc::new(Shared { judge, counts });
    let mut first = true;
    loop {
        let next = match timeout(IDLE, inside.accept()).await {
            Ok(next) => next,
            Err(_) if tasks.len() > 1 => continue,
            Err(_) => {
                inside.graceful_shutdown();
                return Ok(());
            }
        };
        let Some(next) = next else {
            return Ok(());
        };
        let (request, respond) = next.map_err(broken)?;
        while tasks.try_join_next().is_some() {}
        let place = Place {
            shared: Rc::clone(&shared),
            first: std::mem::take(&mut first),
        };
        tasks.spawn_local(stream(place, outside.clone(), request, respond));
    }
}

/// Answers every request with a refusal, for a while.
pub(crate) async fn refuse<C>(client: C, refused: &Refused) -> io::Result<()>
where
    C: AsyncRead + AsyncWrite + Unpin,
{
    let mut inside = accept(client, None).await?;
    while let Ok(Some(next)) = timeout(BEGIN, inside.accept()).await {
        let (_, mut respond) = next.map_err(broken)?;
        say_refused(&mut respond, refused)?;
    }
    Ok(())
}

fn say_refused(respond: &mut SendResponse<Bytes>, refused: &Refused) -> io::Result<()> {
    let status = StatusCode::from_u16(refused.status).unwrap_or(StatusCode::BAD_REQUEST);
    let mut response = Response::new(());
    *response.status_mut() = status;
    let fields = response.headers_mut();
    fields.insert("content-type", HeaderValue::from_static("application/json"));
    fields.insert("x-ironcage", HeaderValue::from_static("refused"));
    let mut body = respond.send_response(response, false).map_err(broken)?;
    body.send_data(Bytes::from(refusal(refused)), true)
        .map_err(broken)
}

/// Takes what a client still sends after a refusal, for a while: a stream that is let go before
/// its end is reset, and the client would not see the answer.
async fn drain(mut body: RecvStream) {
    let all = async {
        while let Some(Ok(part)) = body.data().await {
            let _ = body.flow_control().release_capacity(part.len());
        }
    };
    let _ = timeout(BEGIN, all).await;
}

/// One request and its response.
async fn stream(
    place: Place,
    outside: SendRequest<Bytes>,
    request: Request<RecvStream>,
    mut respond: SendResponse<Bytes>,
) {
    let (head, body) = request.into_parts();
    let Shared { judge, counts } = &*place.shared;
    if let Err(refused) = judge.refresh(&fields(&head.headers)).await {
        let _ = say_refused(&mut respond, &refused);
        return;
    }
    let room = Room::take(size(&head));
    let checked = check(judge, &head).and_then(|(request, passed)| {
        match over_a_limit(&head, counts, place.first) {
            None if room.is_none() => {
                let refused = Refused::new(429, "too many requests at once");
                judge.stop(&passed, &refused);
                Err(refused)
            }
            None => Ok((request, passed)),
            Some(refused) => {
                judge.stop(&passed, &refused);
                Err(refused)
            }
        }
    });
    let (request, passed) = match checked {
        Ok(checked) => checked,
        Err(refused) => {
            // A client that is gone needs no answer.
            let _ = say_refused(&mut respond, &refused);
            return drain(body).await;
        }
    };
    let of = (&*place.shared, &passed);
    match exchange(outside, request, body, &mut respond, of).await {
        Ok(()) => {}
        Err(error) => {
            judge.broke(&passed, &error);
            let reason = error
                .get_ref()
                .and_then(|inner| inner.downcast_ref::<h2::Error>())
                .and_then(h2::Error::reason)
                .unwrap_or(Reason::INTERNAL_ERROR);
            respond.send_reset(reason);
        }
    }
}

/// Why a request does not go on, where there are too many or its body is too long.
fn over_a_limit(head: &http::request::Parts, counts: &Counts, first: bool) -> Option<Refused> {
    if let Err(denied) = counts.requests(first) {
        return Some(Refused::new(429, denied.reason));
    }
    let length = head.headers.get("content-length");
    let length = length.and_then(|length| length.to_str().ok()?.parse().ok());
    let denied = counts.says_body(length.unwrap_or(0)).err()?;
    Some(Refused::new(413, denied.reason))
}

/// Holds a head to the connection's name and to the rules, and makes it anew.
fn check(judge: &Judge, head: &http::request::Parts) -> Result<(Request<()>, Passed), Refused> {
    let refuse = |refused: Refused| {
        judge.refuse(None, &refused);
        refused
    };
    if head.method == Method::CONNECT {
        return Err(refuse(Refused::new(
            405,
            "CONNECT is not needed here: connections are made directly",
        )));
    }
    if head.uri.scheme_str() != Some("https") {
        return Err(refuse(Refused::new(400, "the scheme is not https")));
    }
    let authority = head.uri.authority().map(|name| name.as_str().as_bytes());
    let hosts = head
        .headers
        .get_all("host")
        .iter()
        .map(HeaderValue::as_bytes);
    let mut named = false;
    for said in authority.into_iter().chain(hosts) {
        judge.authority.check(said).map_err(refuse)?;
        named = true;
    }
    if !named {
        return Err(refuse(Refused::new(400, "a request names its host")));
    }
    let mut target = match head.uri.path_and_query() {
        Some(path) if !path.as_str().is_empty() => path.as_str().to_owned(),
        _ => "/".to_owned(),
    };
    let mut fields = fields(&head.headers);
    fields.retain(|(name, _)| name != "host" && name != "proxy-authorization");
    let passed = judge.judge(Asked {
        method: head.method.as_str(),
        target: &mut target,
        fields: &mut fields,
    })?;
    let uri = uri(judge, target).map_err(refuse)?;
    let mut request = Request::new(());
    *request.method_mut() = head.method.clone();
    *request.uri_mut() = uri;
    *request.version_mut() = http::Version::HTTP_2;
    *request.headers_mut() = map(&fields).map_err(refuse)?;
    Ok((request, passed))
}

fn fields(map: &HeaderMap) -> Fields {
    map.iter()
        .map(|(name, value)| (name.as_str().to_owned(), value.as_bytes().to_vec()))
        .collect()
}

fn map(fields: &Fields) -> Result<HeaderMap, Refused> {
    let wrong = || Refused::new(400, "a field of the head is none");
    let mut map = HeaderMap::with_capacity(fields.len());
    for (name, value) in fields {
        let name = HeaderName::from_bytes(name.as_bytes()).map_err(|_| wrong())?;
        map.append(name, HeaderValue::from_bytes(value).map_err(|_| wrong())?);
    }
    Ok(map)
}

async fn exchange(
    outside: SendRequest<Bytes>,
    mut request: Request<()>,
    mut body: RecvStream,
    respond: &mut SendResponse<Bytes>,
    (shared, passed): (&Shared, &Passed),
) -> io::Result<()> {
    let Shared { judge, counts } = shared;
    let held = match hold(&mut request, &mut body, judge).await? {
        Ok(held) => held,
        Err(refused) => {
            judge.stop(passed, &refused);
            return say_refused(respond, &refused);
        }
    };
    if let Err(refused) = sign(&mut request, held.as_deref(), judge) {
        judge.stop(passed, &refused);
        return say_refused(respond, &refused);
    }
    let (method, target) = (
        request.method().to_string(),
        request.uri().path().to_owned(),
    );
    let said = fields(request.headers());
    let head: usize = request
        .headers()
        .iter()
        .map(|(name, value)| name.as_str().len() + value.len())
        .sum();
    counts.send((head + request.uri().to_string().len()) as u64)?;
    let ready = async { outside.ready().await.map_err(broken) };
    let mut outside = unless_given_up(respond, ready).await?;
    let empty = held.is_none() && body.is_end_stream();
    let (response, mut sink) = outside.send_request(request, empty).map_err(broken)?;
    let sent = Cell::new(0_u64);
    let passing = judge.way_out(&said, held.is_some());
    let upload = async {
        let mut passing = passing;
        let send = |bytes| {
            sent.set(sent.get().saturating_add(bytes));
            counts.body(sent.get())?;
            counts.send(bytes)
        };
        if let Some(held) = held {
            send(held.len() as u64)?;
            give(&mut sink, held.clone()).await?;
            passing.went(&held);
            return sink.send_data(Bytes::new(), true).map_err(broken);
        }
        match empty {
            true => Ok(()),
            false => pump(body, sink, passing, send, Way::Out).await,
        }
    };
    let download = async {
        let response = async { response.await.map_err(broken) };
        let (head, body) = unless_given_up(respond, response).await?.into_parts();
        judge.answered(passed, head.status.as_u16());
        counts.tell_request(&method, &target, head.status.as_u16());
        let mut response = Response::new(());
        *response.status_mut() = head.status;
        let mut fields = fields(&head.headers);
        if let Err(refused) = judge.answer(&mut fields) {
            return say_refused(respond, &refused);
        }
        let passing = judge.way_back(head.status.as_u16(), &fields);
        *response.headers_mut() =
            map(&fields).map_err(|refused| io::Error::other(refused.reason))?;
        let empty = body.is_end_stream();
        let sink = respond.send_response(response, empty).map_err(broken)?;
        match empty {
            true => Ok(()),
            false => {
                let receive = |bytes| {
                    counts.received(bytes);
                    Ok(())
                };
                pump(body, sink, passing, receive, Way::Back(judge)).await
            }
        }
    };
    until_answered(upload, download).await
}

/// Method, target and fields of a request.
fn asked(request: &Request<()>) -> (String, String, Fields) {
    let target = request.uri().path_and_query();
    let target = target.map_or("/", |target| target.as_str()).to_owned();
    let method = request.method().as_str().to_owned();
    (method, target, fields(request.headers()))
}

/// Signs a request anew, where that is done.
fn sign(request: &mut Request<()>, held: Option<&[u8]>, judge: &Judge) -> Result<(), Refused> {
    let (method, target, said) = asked(request);
    let Some((target, fields)) = judge.sign((&method, &target, &said), held)? else {
        return Ok(());
    };
    *request.uri_mut() = uri(judge, target)?;
    *request.headers_mut() = map(&fields)?;
    Ok(())
}

fn uri(judge: &Judge, target: String) -> Result<Uri, Refused> {
    Uri::builder()
        .scheme("https")
        .authority(judge.authority.written())
        .path_and_query(target)
        .build()
        .map_err(|_| Refused::new(400, "the target of the request is no path"))
}

/// Reads a small body before its request goes on, where secrets make that necessary.
async fn hold(
    request: &mut Request<()>,
    body: &mut RecvStream,
    judge: &Judge,
) -> io::Result<Result<Option<Bytes>, Refused>> {
    let length = request.headers().get("content-length");
    let length = length.and_then(|length| length.to_str().ok()?.parse().ok());
    let length = match body.is_end_stream() {
        true => Some(0),
        false => length,
    };
    let (method, target, said) = asked(request);
    let room = judge.holds_body((&method, &target, &said), length);
    let (_room, dealing) = match (room, &judge.dealing) {
        (Ok(Some(room)), Some(dealing)) => (room, dealing),
        (Ok(_), _) => return Ok(Ok(None)),
        (Err(refused), _) => return Ok(Err(refused)),
    };
    let most = length
        .and_then(|length| usize::try_from(length).ok())
        .unwrap_or(0);
    let mut whole = Vec::new();
    loop {
        let part = match timeout(BEGIN, body.data()).await {
            Ok(Some(part)) => part.map_err(broken)?,
            Ok(None) => break,
            Err(_) => {
                let reason = "the body of the request did not come in time";
                return Ok(Err(Refused::new(408, reason)));
            }
        };
        body.flow_control()
            .release_capacity(part.len())
            .map_err(broken)?;
        whole.extend(part);
        // More than was said is no body of this request's; the other end checks that too.
        if whole.len() > most {
            return Ok(Err(Refused::new(400, "the body is longer than it says")));
        }
    }
    if let Err(refused) = dealing.body(&fields(request.headers()), &mut whole) {
        return Ok(Err(refused));
    }
    request
        .headers_mut()
        .insert("content-length", HeaderValue::from(whole.len()));
    Ok(Ok(Some(whole.into())))
}

/// A request's body goes while its response comes; when the response is over, so is all.
async fn until_answered(
    upload: impl Future<Output = io::Result<()>>,
    download: impl Future<Output = io::Result<()>>,
) -> io::Result<()> {
    let (mut upload, mut download) = (pin!(upload), pin!(download));
    let mut sent = false;
    poll_fn(move |context| {
        if !sent && let Poll::Ready(result) = upload.as_mut().poll(context) {
            result?;
            sent = true;
        }
        download.as_mut().poll(context)
    })
    .await
}

/// Gives a part at the pace of who takes it.
async fn give(to: &mut SendStream<Bytes>, mut part: Bytes) -> io::Result<()> {
    while !part.is_empty() {
        to.reserve_capacity(part.len());
        let room = poll_fn(|context| to.poll_capacity(context)).await;
        let room = room.ok_or(io::ErrorKind::BrokenPipe)?.map_err(broken)?;
        let now = part.split_to(room.min(part.len()));
        to.send_data(now, false).map_err(broken)?;
    }
    Ok(())
}

/// Waits for something, unless the client gives its request up: what it cost goes with it.
async fn unless_given_up<T>(
    respond: &mut SendResponse<Bytes>,
    wanted: impl Future<Output = io::Result<T>>,
) -> io::Result<T> {
    let mut wanted = pin!(wanted);
    poll_fn(move |context| match wanted.as_mut().poll(context) {
        Poll::Ready(result) => Poll::Ready(result),
        Poll::Pending => respond.poll_reset(context).map(given_up),
    })
    .await
}

fn given_up<T>(reset: Result<Reason, h2::Error>) -> io::Result<T> {
    let error = match reset {
        Ok(reason) => reason.into(),
        Err(error) => error,
    };
    Err(broken(error))
}

/// Which way a body goes.
enum Way<'a> {
    /// To the server. What follows the body is not looked at, so it does not go on; it does not
    /// with HTTP/1.1 either.
    Out,
    /// To the client, which may give it up. What follows the body is covered as the head is.
    Back(&'a Judge),
}

/// Carries a body, and what follows it, at the pace of who takes it.
async fn pump(
    mut from: RecvStream,
    mut to: SendStream<Bytes>,
    mut passing: Passing,
    count: impl Fn(u64) -> io::Result<()>,
    way: Way<'_>,
) -> io::Result<()> {
    loop {
        let part = poll_fn(|context| match (from.poll_data(context), &way) {
            (Poll::Ready(part), _) => Poll::Ready(part.transpose().map_err(broken)),
            (Poll::Pending, Way::Out) => Poll::Pending,
            (Poll::Pending, Way::Back(_)) => to.poll_reset(context).map(given_up),
        });
        let Some(part) = part.await? else {
            break;
        };
        let length = part.len();
        count(length as u64)?;
        let part = match passing.part(&part)? {
            Cow::Borrowed(_) => part,
            Cow::Owned(changed) => changed.into(),
        };
        // A clone of it shares the bytes.
        give(&mut to, part.clone()).await?;
        passing.went(&part);
        from.flow_control()
            .release_capacity(length)
            .map_err(broken)?;
    }
    let rest: Bytes = passing.rest().into();
    give(&mut to, rest.clone()).await?;
    passing.went(&rest);
    drop(passing);
    let trailers = from.trailers().await.map_err(broken)?;
    let trailers = match (way, trailers) {
        (Way::Back(judge), Some(trailers)) => {
            let mut fields = fields(&trailers);
            judge.cover(&mut fields);
            map(&fields).ok()
        }
        _ => None,
    };
    match trailers {
        Some(trailers) => to.send_trailers(trailers).map_err(broken),
        None => to.send_data(Bytes::new(), true).map_err(broken),
    }
}

#[cfg(test)]
mod tests;
