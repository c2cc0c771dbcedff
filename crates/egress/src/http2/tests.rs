//! Requests and responses of HTTP/2, talked through streams in memory.

use super::*;
use crate::decide::Rules;
use crate::http::{Authority, Recorder};
use crate::secret::{Secret, SecretInjector, SecretStore, ServerTrust};
use crate::traffic_counters::TrafficEvent;
use ironcage_model::{HostName, Protocol, SecretRule};
use std::cell::RefCell;
use tokio::io::{DuplexStream, duplex};
use tokio::task::{LocalSet, spawn_local};

const HELD: Duration = Duration::from_secs(60);

struct Silent;

impl Recorder for Silent {
    fn refuse(&self, _: TrafficEvent) {}
    fn note(&self, _: TrafficEvent) {}
}

pub(super) fn judge() -> Judge {
    let name = HostName::from_ascii(b"a.com").unwrap();
    let secret = Secret::new(
        "KEY".into(),
        "ironcage-KEY".into(),
        "value-of-the-key",
        vec!["a.com".parse().unwrap()],
        SecretRule::usual_places(),
    );
    let mut store = SecretStore::default();
    store.secrets.push(secret);
    let store = Rc::new(store);
    Judge {
        rules: Rc::new(Rules::of_requests(Vec::new())),
        injector: SecretInjector::of(&store, &name, 443, ServerTrust::Proved),
        reader: None,
        authority: Authority {
            name,
            port: 443,
            usual_port: 443,
        },
        rule: "a.com".into(),
        protocol: Protocol::Https,
        address: RefCell::default(),
        takes_urls: std::cell::Cell::default(),
        round_trip: Cell::default(),
        recorder: Rc::new(Silent),
    }
}

type Server = h2::server::Connection<DuplexStream, Bytes>;

/// Talks through the proxy: what to do as the client, and as the server.
fn talk<C, S>(
    client: impl FnOnce(SendRequest<Bytes>) -> C,
    server: impl FnOnce(Server) -> S + 'static,
) where
    C: Future<Output = ()>,
    S: Future<Output = ()> + 'static,
{
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .build()
        .unwrap();
    LocalSet::new().block_on(&runtime, async {
        let ((outer, inner), (far, near)) = (duplex(1 << 16), duplex(1 << 16));
        spawn_local(async move {
            let _ = carry(inner, near, (judge(), Counts::uncounted()), None).await;
        });
        let served = h2::server::handshake(far);
        let serving = async move { served.await.map(server) };
        let serving = spawn_local(async move { serving.await.unwrap().await });
        let (sender, connection) = h2::client::handshake(outer).await.unwrap();
        spawn_local(async move {
            let _ = connection.await;
        });
        let sender = sender.ready().await.unwrap();
        timeout(HELD, client(sender)).await.unwrap();
        timeout(HELD, serving).await.unwrap().unwrap();
    });
}

fn get() -> Request<()> {
    let request = Request::get("https://a.com/x").header("authorization", "Bearer ironcage-KEY");
    request.body(()).unwrap()
}

fn trailers(name: &'static str, value: &str) -> HeaderMap {
    let mut map = HeaderMap::new();
    map.insert(name, HeaderValue::from_str(value).unwrap());
    map
}

#[test]
fn what_follows_a_body_is_covered_and_that_of_a_request_stays_inside() {
    talk(
        async |mut sender| {
            let (response, mut body) = sender.send_request(get(), false).unwrap();
            body.send_data("body".into(), false).unwrap();
            let after = trailers("x-http-method-override", "DELETE");
            body.send_trailers(after).unwrap();
            let mut body = response.await.unwrap().into_body();
            while body.data().await.is_some() {}
            let after = body.trailers().await.unwrap().unwrap();
            assert_eq!(after["grpc-status"], "0 ****************");
        },
        async |mut server| {
            let (request, mut respond) = server.accept().await.unwrap().unwrap();
            assert_eq!(
                request.headers()["authorization"],
                "Bearer value-of-the-key"
            );
            let answered = spawn_local(async move {
                let mut body = request.into_body();
                let mut got = Vec::new();
                while let Some(part) = body.data().await {
                    got.extend(part.unwrap());
                }
                assert_eq!(got, b"body");
                assert!(body.trailers().await.unwrap().is_none());
                let mut body = respond.send_response(Response::new(()), false).unwrap();
                let after = trailers("grpc-status", "0 value-of-the-key");
                body.send_trailers(after).unwrap();
            });
            // Until the client is gone.
            while let Some(Ok(_)) = server.accept().await {}
            answered.await.unwrap();
        },
    );
}

/// What a server that answers everything sees of requests, and what the client gets for each.
fn answered(requests: Vec<Request<()>>) -> (Vec<String>, Vec<u16>) {
    let (seen, statuses) = (
        Rc::new(RefCell::new(Vec::new())),
        Rc::new(RefCell::new(Vec::new())),
    );
    let (sees, gets) = (Rc::clone(&seen), Rc::clone(&statuses));
    talk(
        async move |mut sender| {
            for request in requests {
                let (response, mut body) = sender.send_request(request, false).unwrap();
                body.send_data("1".into(), true).unwrap();
                let status = response.await.unwrap().status().as_u16();
                gets.borrow_mut().push(status);
                sender = sender.ready().await.unwrap();
            }
        },
        async move |mut server: Server| {
            while let Some(Ok((request, mut respond))) = server.accept().await {
                let line = format!("{} {}", request.method(), request.uri().path());
                sees.borrow_mut().push(line);
                respond.send_response(Response::new(()), true).unwrap();
            }
        },
    );
    (seen.take(), statuses.take())
}

#[test]
fn requests_that_a_server_could_read_in_two_ways_are_refused() {
    let request = |method: &str, path: &str, lengths: &[&str]| {
        let uri = Uri::builder().scheme("https").authority("a.com");
        let uri = uri.path_and_query(path).build().unwrap();
        let mut request = Request::builder().method(method).uri(uri).body(()).unwrap();
        for length in lengths {
            let length = HeaderValue::from_str(length).unwrap();
            request.headers_mut().append("content-length", length);
        }
        request
    };
    let (seen, statuses) = answered(vec![
        request("POST", "/one", &["1"]),
        request("POST", "/two", &["1", "1"]),
        request("GET", "*", &[]),
        request("GET", "/\u{fc}", &[]),
        request("OPTIONS", "*", &[]),
    ]);
    assert_eq!(statuses, [200, 400, 400, 400, 200]);
    assert_eq!(seen, ["POST /one", "OPTIONS *"]);
}

/// A client with the largest windows that reads nothing, and a server that sends without end.
#[test]
fn what_a_client_leaves_unread_is_bounded_by_stream() {
    const PART: usize = 16 * 1024;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .build()
        .unwrap();
    LocalSet::new().block_on(&runtime, async {
        let ((outer, inner), (far, near)) = (duplex(PART), duplex(PART));
        spawn_local(async move {
            let _ = carry(inner, near, (judge(), Counts::uncounted()), None).await;
        });
        let sent = Rc::new(Cell::new(0));
        let sends = Rc::clone(&sent);
        spawn_local(async move {
            let mut builder = h2::server::Builder::new();
            builder.max_send_buffer_size(PART);
            let mut server: Server = builder.handshake(far).await.unwrap();
            while let Some(Ok((_, mut respond))) = server.accept().await {
                let sends = Rc::clone(&sends);
                spawn_local(async move {
                    let mut body = respond.send_response(Response::new(()), false).unwrap();
                    while give(&mut body, vec![b' '; PART].into()).await.is_ok() {
                        sends.set(sends.get() + PART);
                    }
                });
            }
        });
        let mut builder = h2::client::Builder::new();
        builder
            .initial_window_size(1 << 30)
            .initial_connection_window_size(1 << 30);
        let (sender, mut connection) = builder.handshake::<_, Bytes>(outer).await.unwrap();
        let mut sender = sender.ready().await.unwrap();
        let mut requests = Vec::new();
        requests.push(sender.send_request(get(), true).unwrap());
        // Until the request is on its way; from then on nothing is read.
        let _ =
            poll_fn(|context| Poll::Ready(std::pin::Pin::new(&mut connection).poll(context))).await;
        let quiet = async {
            let mut before = (sent.get(), 0);
            while before.1 < 1000 {
                tokio::task::yield_now().await;
                before = match sent.get() == before.0 {
                    true => (before.0, before.1 + 1),
                    false => (sent.get(), 0),
                };
            }
        };
        timeout(HELD, quiet).await.unwrap();
        let waiting = sent.get();
        // The window of the proxy, what it holds for the client, and what is between.
        let most = STREAM_WINDOW as usize + UNSENT + 8 * PART;
        assert!(waiting >= UNSENT && waiting <= most, "{waiting} of {most}");
        // And when it reads, there is more.
        spawn_local(async move {
            let _ = connection.await;
        });
        let (response, _) = requests.remove(0);
        let mut body = timeout(HELD, response).await.unwrap().unwrap().into_body();
        let mut got = 0;
        while got <= waiting {
            let part = timeout(HELD, body.data()).await.unwrap().unwrap().unwrap();
            body.flow_control().release_capacity(part.len()).unwrap();
            got += part.len();
        }
    });
}

#[test]
fn frames_of_an_answer_do_not_tell_a_right_guess_from_a_wrong_one() {
    let frames = |parts: &'static [(u64, &'static str)]| {
        let seen = Rc::new(RefCell::new(Vec::new()));
        let sees = Rc::clone(&seen);
        talk(
            async move |mut sender| {
                let (response, _) = sender.send_request(get(), true).unwrap();
                let mut body = response.await.unwrap().into_body();
                while let Some(part) = body.data().await {
                    let part = part.unwrap();
                    let _ = body.flow_control().release_capacity(part.len());
                    sees.borrow_mut().push(part);
                }
            },
            async move |mut server: Server| {
                let (_, mut respond) = server.accept().await.unwrap().unwrap();
                spawn_local(async move {
                    let mut body = respond.send_response(Response::new(()), false).unwrap();
                    for (pause, part) in parts {
                        tokio::time::sleep(Duration::from_millis(*pause)).await;
                        body.send_data((*part).into(), false).unwrap();
                    }
                    body.send_data(Bytes::new(), true).unwrap();
                });
                while let Some(Ok(_)) = server.accept().await {}
            },
        );
        let seen = seen.take();
        let text = |part: &Bytes| String::from_utf8_lossy(part).into_owned();
        let shown: Vec<String> = seen
            .iter()
            .map(text)
            .filter(|part| !part.is_empty())
            .collect();
        shown
    };
    let right = frames(&[(0, "a value-of-the"), (400, "-ke"), (400, "z.")]);
    let wrong = frames(&[(0, "a value-of-th~"), (400, "-ke"), (400, "z.")]);
    let sizes = |parts: &[String]| parts.iter().map(String::len).collect::<Vec<_>>();
    assert_eq!(right, ["a ", "value-of-the", "-ke", "z."]);
    assert_eq!(sizes(&right), sizes(&wrong));
    // Whole, it is covered, wherever it is cut.
    let whole = frames(&[(0, "a value-of"), (1, "-the-key b\n")]).concat();
    assert_eq!(whole, "a **************** b\n");
}

#[test]
fn a_request_that_is_given_up_is_given_up_outside_too() {
    for answers in [false, true] {
        let seen = Rc::new(Cell::new(None));
        let tells = Rc::clone(&seen);
        talk(
            async |mut sender| {
                let (response, mut body) = sender.send_request(get(), true).unwrap();
                if answers {
                    let response = response.await.unwrap();
                    assert_eq!(response.status(), 200);
                }
                body.send_reset(Reason::CANCEL);
                // The connection stays: what is seen outside is the request's own end.
                while seen.get().is_none() {
                    tokio::time::sleep(Duration::from_millis(1)).await;
                }
                assert_eq!(seen.get(), Some(Some(Reason::CANCEL)));
            },
            async move |mut server: Server| {
                let (_, mut respond) = server.accept().await.unwrap().unwrap();
                spawn_local(async move {
                    let reset = if answers {
                        let sent = respond.send_response(Response::new(()), false);
                        let mut body = sent.unwrap();
                        poll_fn(|context| body.poll_reset(context)).await
                    } else {
                        poll_fn(|context| respond.poll_reset(context)).await
                    };
                    tells.set(Some(reset.ok()));
                });
                while let Some(Ok(_)) = server.accept().await {}
            },
        );
    }
}

#[test]
fn a_refusal_is_seen_by_a_client_that_still_sends() {
    talk(
        async |mut sender| {
            let request = Request::post("https://b.com/x").body(()).unwrap();
            let (response, mut body) = sender.send_request(request, false).unwrap();
            let response = response.await.unwrap();
            assert_eq!(response.status(), 403);
            // No reset came: the rest is taken, and the answer's body is whole.
            body.send_data("late".into(), true).unwrap();
            let mut said = response.into_body();
            let mut got = Vec::new();
            while let Some(part) = said.data().await {
                got.extend(part.unwrap());
            }
            assert!(!got.is_empty());
        },
        async |mut server| while let Some(Ok(_)) = server.accept().await {},
    );
}

#[test]
fn a_connection_among_many_has_smaller_windows() {
    assert_eq!(windows(None), (STREAM_WINDOW, CONNECTION_WINDOW));
    assert_eq!(windows(Some(16 << 10)), (LEAST_WINDOW, LEAST_WINDOW));
}

/// A frame as it is on the wire.
fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = (payload.len() as u32).to_be_bytes();
    let mut frame = length[1..].to_vec();
    frame.extend([kind, flags]);
    frame.extend(stream.to_be_bytes());
    frame.extend(payload);
    frame
}

/// GET https://a.com/ in the static table of header fields.
const GET: &[u8] = b"\x82\x87\x84\x41\x05a.com";

/// A flood, part by part.
type Flood = fn(u32) -> Vec<u8>;

/// Bytes of a flood that the proxy takes from a client that reads nothing, until it takes no more.
async fn taken(flood: Flood, most: usize) -> usize {
    let ((mut outer, inner), (far, near)) = (duplex(1 << 14), duplex(1 << 14));
    let carried = spawn_local(async move {
        let _ = carry(inner, near, (judge(), Counts::uncounted()), None).await;
    });
    let served = spawn_local(async move {
        let mut server: Server = h2::server::handshake(far).await?;
        while let Some(next) = server.accept().await {
            next?;
        }
        Ok::<_, h2::Error>(())
    });
    let written = Rc::new(Cell::new(0));
    let writes = Rc::clone(&written);
    let writer = spawn_local(async move {
        use tokio::io::AsyncWriteExt as _;
        let begin = [
            b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec(),
            frame(4, 0, 0, b""),
        ]
        .concat();
        if outer.write_all(&begin).await.is_err() {
            return;
        }
        for number in 0.. {
            let part = flood(number);
            if writes.get() > most || outer.write_all(&part).await.is_err() {
                return;
            }
            writes.set(writes.get() + part.len());
        }
    });
    let mut quiet = (written.get(), 0);
    while quiet.1 < 1000 && !writer.is_finished() {
        tokio::task::yield_now().await;
        quiet = match written.get() == quiet.0 {
            true => (quiet.0, quiet.1 + 1),
            false => (written.get(), 0),
        };
    }
    writer.abort();
    carried.abort();
    served.abort();
    written.get()
}

#[test]
fn floods_of_frames_are_not_taken_without_end() {
    let most = 4 << 20;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .build()
        .unwrap();
    let floods: [(&str, Flood); 6] = [
        ("continuations", |number| match number {
            0 => frame(1, 1, 1, GET),
            _ => frame(9, 0, 1, b""),
        }),
        ("continuations with fields", |number| match number {
            0 => frame(1, 1, 1, GET),
            _ => frame(9, 0, 1, b"\x00\x01a\x01b"),
        }),
        ("empty data", |number| match number {
            0 => frame(1, 4, 1, GET),
            _ => frame(0, 0, 1, b""),
        }),
        ("data after the end", |number| match number {
            0 => frame(1, 5, 1, GET),
            _ => frame(0, 0, 1, b"x"),
        }),
        ("settings", |_| frame(4, 0, 0, b"\0\x04\0\x01\0\0")),
        ("pings", |_| frame(6, 0, 0, &[0; 8])),
    ];
    for (name, flood) in floods {
        let taken = LocalSet::new().block_on(&runtime, taken(flood, most));
        assert!(taken < most, "{name}: {taken}");
    }
    // Data that a window allows is no flood.
    let allowed = LocalSet::new().block_on(
        &runtime,
        taken(
            |number| match number {
                0 => frame(1, 4, 1, GET),
                _ => frame(0, 0, 1, &[b' '; 1024]),
            },
            64 << 10,
        ),
    );
    assert!(allowed > 32 << 10, "{allowed}");
}
