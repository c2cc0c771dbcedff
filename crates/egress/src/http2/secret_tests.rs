//! What somebody inside can see of answers over HTTP/2: every byte of every frame, every flush and
//! when, whatever the values of the secrets are.

use super::tests::judge;
use super::*;
use crate::http::secret_tests::{FIRST, SECOND, piece, secret};
use crate::http::{Recorder, secret_tests};
use crate::secret::{Secret, SecretInjector, SecretStore, ServerTrust};
use crate::traffic_counters::TrafficEvent;
use ironcage_model::HostName;
use proptest::prelude::*;
use std::cell::RefCell;
use std::pin::Pin;
use std::task::Context;
use tokio::io::{ReadBuf, duplex};
use tokio::task::{LocalSet, spawn_local};
use tokio::time::{Instant, sleep};

#[derive(Default)]
struct Notes(RefCell<Vec<String>>);

impl Recorder for Notes {
    fn refuse(&self, kind: TrafficEvent) {
        self.note(kind);
    }

    fn note(&self, kind: TrafficEvent) {
        self.0.borrow_mut().push(format!("{kind:?}"));
    }
}

/// Bytes that the client gets, and how many milliseconds after the beginning. A flush has none.
type ArrivedBytes = (u128, Vec<u8>);

/// The proxy's side of the client's connection, which writes down what the client gets.
struct Observed<S> {
    inner: S,
    since: Instant,
    seen: Rc<RefCell<Vec<ArrivedBytes>>>,
}

impl<S: AsyncRead + Unpin> AsyncRead for Observed<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_read(context, buffer)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Observed<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.inner).poll_write(context, bytes);
        if let Poll::Ready(Ok(length)) = &written {
            let at = self.since.elapsed().as_millis();
            self.seen.borrow_mut().push((at, bytes[..*length].to_vec()));
        }
        written
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_shutdown(context)
    }
}

/// An answer: its parts, how long before each the server pauses, and whether it says its length.
#[derive(Debug, Clone)]
struct ServerAnswer {
    parts: Vec<(u64, Vec<u8>)>,
    is_sized: bool,
    trailer: String,
}

/// Everything that shows, inside and in the record, of one request and the answer to it; and the
/// text of the answer.
fn observe(
    secrets: Vec<Secret>,
    injects: bool,
    answer: &ServerAnswer,
) -> (Vec<ArrivedBytes>, String, Vec<u8>) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .unwrap();
    let notes = Rc::new(Notes::default());
    let mut judge = judge();
    let mut store = SecretStore::default();
    store.secrets = secrets;
    let name = HostName::from_ascii(b"a.com").unwrap();
    judge.injector = SecretInjector::of(&Rc::new(store), &name, 443, ServerTrust::Proved);
    judge.recorder = Rc::clone(&notes) as Rc<dyn Recorder>;
    let seen = Rc::new(RefCell::new(Vec::new()));
    let sees = Rc::clone(&seen);
    let answer = answer.clone();
    let text = LocalSet::new().block_on(&runtime, async move {
        let ((outer, inner), (far, near)) = (duplex(1 << 20), duplex(1 << 20));
        let inner = Observed {
            inner,
            since: Instant::now(),
            seen: sees,
        };
        spawn_local(async move {
            let _ = carry(inner, near, (judge, Counts::uncounted()), None).await;
        });
        spawn_local(async move {
            let mut server = h2::server::handshake(far).await.unwrap();
            let (_, mut respond) = server.accept().await.unwrap().unwrap();
            spawn_local(async move {
                let mut response = Response::builder().header("x-a", "sk-0aB1");
                if answer.is_sized {
                    let length: usize = answer.parts.iter().map(|(_, part)| part.len()).sum();
                    response = response.header("content-length", length);
                }
                let response = response.body(()).unwrap();
                let mut body = respond.send_response(response, false).unwrap();
                for (pause, part) in answer.parts {
                    sleep(Duration::from_millis(pause)).await;
                    body.send_data(part.into(), false).unwrap();
                }
                let mut trailers = HeaderMap::new();
                trailers.insert("x-b", HeaderValue::from_str(&answer.trailer).unwrap());
                body.send_trailers(trailers).unwrap();
            });
            while let Some(Ok(_)) = server.accept().await {}
        });
        let (sender, connection) = h2::client::handshake(outer).await.unwrap();
        spawn_local(async move {
            let _ = connection.await;
        });
        let mut request = Request::get("https://a.com/x");
        if injects {
            request = request.header("authorization", "Bearer ironcage-K");
        }
        let mut sender = sender.ready().await.unwrap();
        let (response, _) = sender
            .send_request(request.body(()).unwrap(), true)
            .unwrap();
        let mut body = response.await.unwrap().into_body();
        let mut text = Vec::new();
        while let Some(part) = body.data().await {
            let part = part.unwrap();
            let _ = body.flow_control().release_capacity(part.len());
            text.extend(part);
        }
        body.trailers().await.unwrap();
        text
    });
    let record = notes.0.borrow().concat();
    (seen.take(), record, text)
}

#[test]
fn a_pause_within_a_known_length_does_not_cut_a_value() {
    let (a, b) = FIRST.split_at(20);
    let covered = format!("<{}>", "*".repeat(FIRST.len())).into_bytes();
    for (is_sized, pause, whole) in [(true, 5000, true), (false, 20, true), (false, 5000, false)] {
        let answer = ServerAnswer {
            parts: vec![(0, format!("<{a}").into()), (pause, format!("{b}>").into())],
            is_sized,
            trailer: String::new(),
        };
        let secrets = vec![secret_tests::secret("K", FIRST, "a.com")];
        let (_, _, text) = observe(secrets, true, &answer);
        assert_eq!(text == covered, whole, "{}", String::from_utf8_lossy(&text));
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn stores_that_differ_in_a_value_show_the_same(
        parts in proptest::collection::vec((0..120_u64, piece()), 0..8),
        trailer in 0..FIRST.len(),
        is_sized in any::<bool>(),
        injects in any::<bool>(),
    ) {
        let body: Vec<u8> = parts.iter().flat_map(|(_, part)| part.clone()).collect();
        prop_assume!(memchr::memmem::find(&body, FIRST.as_bytes()).is_none());
        prop_assume!(memchr::memmem::find(&body, SECOND.as_bytes()).is_none());
        let answer = ServerAnswer { parts, is_sized, trailer: FIRST[..trailer].to_owned() };
        let run = |value: &str, other: &str| {
            let secrets = vec![secret("K", value, "a.com"), secret("O", other, "b.com")];
            observe(secrets, injects, &answer)
        };
        let first = run(FIRST, "other-value-0123456789");
        // All of it came, as it was.
        prop_assert_eq!(&first.2, &body);
        prop_assert_eq!(&first, &run(SECOND, "other-value-0123456789"));
        prop_assert_eq!(&first, &run(FIRST, SECOND));
    }
}
