//! HTTP/2 between the cage and a server: every stream is a request of its own, judged as one
//! of HTTP/1.1 is. Pushed responses, tunnels and upgrades there are none.

mod room;

use crate::http::{
    Fields, Judge, NotSent, Passing, Refused, RequestBody, RequestParts, UpstreamRequest,
    check_path, refusal,
};
use crate::traffic_log::Counts;
use bytes::Bytes;
use h2::client::SendRequest;
use h2::server::SendResponse;
use h2::{Reason, RecvStream, SendStream};
use http::header::{HeaderName, HeaderValue};
use http::{HeaderMap, Method, Request, Response, StatusCode, Uri};
use ironcage_model::NetworkReason;
use room::RequestRoom;
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
use tokio::time::{timeout, timeout_at};

/// Requests at once on one connection.
const STREAMS: u32 = 100;
/// Bytes that a stream, and a connection, may have on the way.
const STREAM_WINDOW: u32 = 256 * 1024;
const CONNECTION_WINDOW: u32 = 1024 * 1024;
/// What a connection has before anything is said about it.
const LEAST_WINDOW: u32 = 65_535;
/// Bytes of a stream that a side may leave unread, which it does with the largest windows.
const UNSENT: usize = 64 * 1024;
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
        .max_send_buffer_size(UNSENT)
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
        .max_send_buffer_size(UNSENT)
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
    let (head, mut body) = request.into_parts();
    let Shared { judge, counts } = &*place.shared;
    let Some(_room) = RequestRoom::take(&head) else {
        return no_room(judge, &mut respond);
    };
    let prepared = async {
        let parts = parts(judge, &head)?;
        let authorised = judge.authorise(parts).await?;
        let length = match body.is_end_stream() {
            true => Some(0),
            false => content_length(&head.headers),
        };
        let mut body = StreamedBody {
            length,
            stream: &mut body,
        };
        let limits = (counts, place.first);
        let upstream = judge.prepare(authorised, limits, &mut body).await?;
        let request = upstream_request(judge, &upstream)?;
        Ok::<_, NotSent>((request, upstream))
    };
    let (request, upstream) = match prepared.await {
        Ok(prepared) => prepared,
        Err(NotSent::Refused(refused)) => {
            // A client that is gone needs no answer.
            let _ = say_refused(&mut respond, &refused);
            drop(head);
            return drain(body).await;
        }
        Err(NotSent::Broken(error)) => return respond.send_reset(reset_reason(&error)),
    };
    let of = (&*place.shared, &upstream);
    if let Err(error) = exchange(outside, request, body, &mut respond, of).await {
        judge.broke(&upstream.record, &error);
        respond.send_reset(reset_reason(&error));
    }
}

/// Refuses a request for which there is no room. Nothing is kept of it, not even to read what its
/// client still sends.
fn no_room(judge: &Judge, respond: &mut SendResponse<Bytes>) {
    let refused = Refused::new(429, NetworkReason::TooManyInProgress);
    judge.refuse(None, &refused);
    // A client that is gone needs no answer.
    let _ = say_refused(respond, &refused);
}

fn reset_reason(error: &io::Error) -> Reason {
    let inner = error.get_ref();
    inner
        .and_then(|inner| inner.downcast_ref::<h2::Error>())
        .and_then(h2::Error::reason)
        .unwrap_or(Reason::INTERNAL_ERROR)
}

fn content_length(fields: &HeaderMap) -> Option<u64> {
    fields.get("content-length")?.to_str().ok()?.parse().ok()
}

/// The request of a stream, which has to be for the connection's name.
fn parts(judge: &Judge, head: &http::request::Parts) -> Result<RequestParts, Refused> {
    let refuse = |refused: Refused| {
        judge.refuse(None, &refused);
        refused
    };
    if head.method == Method::CONNECT {
        return Err(refuse(Refused::new(405, NetworkReason::HttpConnect)));
    }
    if head.uri.scheme_str() != Some("https") {
        return Err(refuse(Refused::invalid("the scheme is not https")));
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
        return Err(refuse(Refused::invalid("no host")));
    }
    let target = match head.uri.path_and_query() {
        Some(path) if !path.as_str().is_empty() => path.as_str().to_owned(),
        _ => "/".to_owned(),
    };
    check_path(head.method.as_str().as_bytes(), &target).map_err(refuse)?;
    // A server that hands requests on in HTTP/1.1 could take either for the end of this one.
    if head.headers.get_all("content-length").iter().count() > 1 {
        return Err(refuse(Refused::invalid("ambiguous length of the body")));
    }
    let mut fields = fields(&head.headers);
    fields.retain(|(name, _)| name != "host" && name != "proxy-authorization");
    Ok(RequestParts {
        method: head.method.as_str().to_owned(),
        target,
        fields,
    })
}

/// A request as HTTP/2 sends it.
fn upstream_request(judge: &Judge, upstream: &UpstreamRequest) -> Result<Request<()>, Refused> {
    let parts = &upstream.parts;
    let made = || {
        let mut request = Request::new(());
        let method = Method::from_bytes(parts.method.as_bytes());
        *request.method_mut() = method.map_err(|_| Refused::invalid("invalid method"))?;
        *request.uri_mut() = Uri::builder()
            .scheme("https")
            .authority(judge.authority.written())
            .path_and_query(parts.target.as_str())
            .build()
            .map_err(|_| Refused::invalid("the request target is not a path"))?;
        *request.version_mut() = http::Version::HTTP_2;
        *request.headers_mut() = map(&parts.fields)?;
        if let Some(body) = &upstream.body {
            let length = HeaderValue::from(body.upstream().len());
            request.headers_mut().insert("content-length", length);
        }
        Ok(request)
    };
    made().inspect_err(|refused| judge.stop(&upstream.record, refused))
}

/// The body of a request that is still to be read from its client.
struct StreamedBody<'a> {
    length: Option<u64>,
    stream: &'a mut RecvStream,
}

impl RequestBody for StreamedBody<'_> {
    fn length(&self) -> Option<u64> {
        self.length
    }

    async fn read(&mut self, length: usize, _: bool) -> Result<Vec<u8>, NotSent> {
        let mut whole = Vec::new();
        loop {
            let part = match timeout(BEGIN, self.stream.data()).await {
                Ok(Some(part)) => part.map_err(broken)?,
                Ok(None) => return Ok(whole),
                Err(_) => {
                    return Err(Refused::new(408, NetworkReason::BodyTimeout).into());
                }
            };
            let mut window = self.stream.flow_control().clone();
            window.release_capacity(part.len()).map_err(broken)?;
            whole.extend(part);
            // The other end checks that, too.
            if whole.len() > length {
                return Err(Refused::invalid("the body is longer than its length").into());
            }
        }
    }
}

fn fields(map: &HeaderMap) -> Fields {
    map.iter()
        .map(|(name, value)| (name.as_str().to_owned(), value.as_bytes().to_vec()))
        .collect()
}

fn map(fields: &Fields) -> Result<HeaderMap, Refused> {
    let wrong = || Refused::invalid("invalid header field");
    let mut map = HeaderMap::with_capacity(fields.len());
    for (name, value) in fields {
        let name = HeaderName::from_bytes(name.as_bytes()).map_err(|_| wrong())?;
        map.append(name, HeaderValue::from_bytes(value).map_err(|_| wrong())?);
    }
    Ok(map)
}

async fn exchange(
    outside: SendRequest<Bytes>,
    request: Request<()>,
    body: RecvStream,
    respond: &mut SendResponse<Bytes>,
    (shared, upstream): (&Shared, &UpstreamRequest),
) -> io::Result<()> {
    let Shared { judge, counts } = shared;
    let UpstreamRequest {
        parts,
        body: held,
        record,
    } = upstream;
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
    let passing = judge.way_out(&parts.fields, held.is_some());
    let upload = async {
        let mut passing = passing;
        let send = |bytes| {
            sent.set(sent.get().saturating_add(bytes));
            counts.body(sent.get())?;
            counts.send(bytes)
        };
        if let Some(held) = held {
            send(held.upstream().len() as u64)?;
            give(&mut sink, Bytes::copy_from_slice(held.upstream())).await?;
            passing.went(held.as_sent());
            return sink.send_data(Bytes::new(), true).map_err(broken);
        }
        match empty {
            true => Ok(()),
            false => pump(body, sink, passing, send, BodyDirection::Out).await,
        }
    };
    let download = async {
        let response = async { response.await.map_err(broken) };
        let (head, body) = unless_given_up(respond, response).await?.into_parts();
        judge.answered(record, head.status.as_u16());
        counts.tell_request(&parts.method, &parts.target, head.status.as_u16());
        let mut response = Response::new(());
        *response.status_mut() = head.status;
        let mut fields = fields(&head.headers);
        if let Err(refused) = judge.answer(&mut fields) {
            return say_refused(respond, &refused);
        }
        let passing = judge.way_back(head.status.as_u16(), &fields);
        *response.headers_mut() = map(&fields)
            .map_err(|refused| io::Error::other(ironcage_model::Reason::from(refused.reason)))?;
        let empty = body.is_end_stream();
        let sink = respond.send_response(response, empty).map_err(broken)?;
        match empty {
            true => Ok(()),
            false => {
                let receive = |bytes| {
                    counts.received(bytes);
                    Ok(())
                };
                let way = BodyDirection::Back {
                    judge,
                    is_sized: head.headers.contains_key("content-length"),
                };
                pump(body, sink, passing, receive, way).await
            }
        }
    };
    until_answered(upload, download).await
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
enum BodyDirection<'a> {
    /// To the server. What follows the body is not looked at, so it does not go on; it does not
    /// with HTTP/1.1 either.
    Out,
    /// To the client, which may give it up. What follows the body is covered as the head is. Of
    /// a body whose length is known the rest is sure to follow.
    Back { judge: &'a Judge, is_sized: bool },
}

/// Sends what was held back.
async fn send_rest(to: &mut SendStream<Bytes>, passing: &mut Passing) -> io::Result<()> {
    let rest: Bytes = passing.rest().into();
    give(to, rest.clone()).await?;
    passing.went(&rest);
    Ok(())
}

/// Carries a body, and what follows it, at the pace of who takes it.
async fn pump(
    mut from: RecvStream,
    mut to: SendStream<Bytes>,
    mut passing: Passing,
    count: impl Fn(u64) -> io::Result<()>,
    way: BodyDirection<'_>,
) -> io::Result<()> {
    loop {
        let part = poll_fn(|context| match (from.poll_data(context), &way) {
            (Poll::Ready(part), _) => Poll::Ready(part.transpose().map_err(broken)),
            (Poll::Pending, BodyDirection::Out) => Poll::Pending,
            (Poll::Pending, BodyDirection::Back { .. }) => to.poll_reset(context).map(given_up),
        });
        let may_pause = !matches!(way, BodyDirection::Back { is_sized: true, .. });
        let part = match passing.due().filter(|_| may_pause) {
            None => part.await?,
            Some(due) => match timeout_at(due, part).await {
                Ok(part) => part?,
                Err(_) => {
                    send_rest(&mut to, &mut passing).await?;
                    continue;
                }
            },
        };
        let Some(part) = part else {
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
    send_rest(&mut to, &mut passing).await?;
    drop(passing);
    let trailers = from.trailers().await.map_err(broken)?;
    let trailers = match (way, trailers) {
        (BodyDirection::Back { judge, .. }, Some(trailers)) => {
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
mod secret_tests;
#[cfg(test)]
mod tests;
