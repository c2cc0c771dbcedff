//! What somebody inside can see of answers: every write, every flush and when, whatever the values
//! of the secrets are.

use super::tests::judge;
use super::*;
use crate::secret::{Secret, SecretInjector, SecretStore, ServerTrust};
use ironcage_model::{HostName, SecretRule};
use proptest::prelude::*;
use std::cell::RefCell;
use std::pin::Pin;
use std::rc::Rc;
use std::task::Context;
use tokio::io::{AsyncReadExt as _, ReadBuf, duplex};
use tokio::time::{Instant, sleep};

/// What the client sees, and how many milliseconds after the beginning.
#[derive(Debug, Clone, PartialEq, Eq)]
enum ClientEvent {
    Write(u128, Vec<u8>),
    Flush(u128),
    End(u128),
}

/// The cage's side of a connection, which writes down what comes.
struct Observer {
    says: Vec<u8>,
    since: Instant,
    seen: Rc<RefCell<Vec<ClientEvent>>>,
}

impl Observer {
    fn note(&self, seen: impl FnOnce(u128) -> ClientEvent) {
        let at = self.since.elapsed().as_millis();
        self.seen.borrow_mut().push(seen(at));
    }
}

impl AsyncRead for Observer {
    fn poll_read(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        buffer.put_slice(&std::mem::take(&mut self.says));
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Observer {
    fn poll_write(
        self: Pin<&mut Self>,
        _: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.note(|at| ClientEvent::Write(at, bytes.to_vec()));
        Poll::Ready(Ok(bytes.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.note(ClientEvent::Flush);
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.note(ClientEvent::End);
        Poll::Ready(Ok(()))
    }
}

/// A part of an answer, and the milliseconds before it.
type Part = (u64, Vec<u8>);

pub(crate) fn secret(name: &str, value: &str, host: &str) -> Secret {
    Secret::new(
        name.into(),
        format!("ironcage-{name}"),
        value,
        vec![host.parse().unwrap()],
        SecretRule::usual_places(),
    )
}

/// Everything that shows, inside and in the record, of one request and the answer to it.
fn observe(secrets: Vec<Secret>, request: &str, answer: &[Part]) -> (Vec<ClientEvent>, String) {
    observe_from(Duration::ZERO, secrets, request, answer)
}

/// The same with a server that is this far away.
fn observe_from(
    round_trip: Duration,
    secrets: Vec<Secret>,
    request: &str,
    answer: &[Part],
) -> (Vec<ClientEvent>, String) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .unwrap();
    let (mut judge, notes) = judge(None);
    let mut store = SecretStore::default();
    store.secrets = secrets;
    let name = HostName::from_ascii(b"a.com").unwrap();
    judge.injector = SecretInjector::of(&Rc::new(store), &name, 80, ServerTrust::Proved);
    judge.round_trip.set(round_trip);
    let seen = Rc::new(RefCell::new(Vec::new()));
    runtime.block_on(async {
        let (mut far, near) = duplex(1 << 20);
        let observer = Observer {
            says: request.as_bytes().to_vec(),
            since: Instant::now(),
            seen: Rc::clone(&seen),
        };
        let mut client = Client::new(observer, Vec::new());
        let counts = Counts::uncounted();
        let first = client.request(&judge).await.unwrap().unwrap().unwrap();
        let carried = async {
            let _ = carry(&mut client, near, first, (&judge, &counts)).await;
            Ok(())
        };
        let server = async {
            for (pause, part) in answer {
                sleep(Duration::from_millis(*pause)).await;
                // The connection may be over.
                let _ = far.write_all(part).await;
            }
            let _ = far.shutdown().await;
            Ok(())
        };
        crate::relay::both(carried, server).await.unwrap();
    });
    let record = format!("{:?}", notes.0.borrow());
    (seen.take(), record)
}

pub(crate) const FIRST: &str = "sk-0aB1cD2eF3gH4iJ5kL6mN7oP8qR9sT";
pub(crate) const SECOND: &str = "sk-9zY8xW7vU6tS5rQ4pO3nM2lK1jI0hG";
const BEARER: &str = "GET / HTTP/1.1\r\nHost: a.com\r\nAuthorization: Bearer ironcage-K\r\n\r\n";
const NOTHING: &str = "GET / HTTP/1.1\r\nHost: a.com\r\n\r\n";

fn chunked(parts: &[Part]) -> Vec<Part> {
    let head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n".to_vec();
    let mut all = vec![(0, head)];
    for (pause, part) in parts.iter().filter(|(_, part)| !part.is_empty()) {
        let mut chunk = format!("{:x}\r\n", part.len()).into_bytes();
        chunk.extend(part);
        chunk.extend(b"\r\n");
        all.push((*pause, chunk));
    }
    all.push((0, b"0\r\n\r\n".to_vec()));
    all
}

#[test]
fn a_guess_at_the_beginning_of_a_value_looks_like_any_other() {
    // A server that says again what the agent says, in two parts, as an agent would ask it to.
    let echo = |guess: &str| chunked(&[(0, guess.into()), (200, b" end".to_vec())]);
    for length in 1..FIRST.len() {
        let right = &FIRST[..length];
        let wrong = format!("{}~", &FIRST[..length - 1]);
        let sizes = |guess: &str, request: &str, host: &str| {
            let secrets = vec![secret("K", FIRST, host)];
            let (seen, record) = observe(secrets, request, &echo(guess));
            let shape: Vec<(u128, usize)> = seen
                .iter()
                .map(|one| match one {
                    ClientEvent::Write(at, bytes) => (*at, bytes.len()),
                    ClientEvent::Flush(at) | ClientEvent::End(at) => (*at, 0),
                })
                .collect();
            (shape, record)
        };
        // The host that has it, before and after it got it, and another.
        for (request, host) in [(BEARER, "a.com"), (NOTHING, "a.com"), (NOTHING, "b.com")] {
            assert_eq!(
                sizes(right, request, host),
                sizes(&wrong, request, host),
                "{right}"
            );
        }
    }
}

#[test]
fn an_end_without_a_delimiter_goes_on_when_it_is_due() {
    let answer = chunked(&[
        (0, b"a word".to_vec()),
        (30, b"s".to_vec()),
        (500, b"x".to_vec()),
    ]);
    let (seen, _) = observe(vec![secret("K", FIRST, "a.com")], BEARER, &answer);
    let written: Vec<(u128, String)> = seen
        .iter()
        .filter_map(|one| match one {
            ClientEvent::Write(at, bytes) => {
                Some((*at, String::from_utf8_lossy(bytes).into_owned()))
            }
            _ => None,
        })
        .skip(1)
        .collect();
    let text = |at: u128| {
        let parts = written.iter().filter(|(when, _)| *when == at);
        parts.map(|(_, text)| text.as_str()).collect::<String>()
    };
    assert_eq!(text(0), "2\r\na \r\n", "{seen:?}");
    // Fifty milliseconds after its last byte, which came after thirty.
    assert_eq!(text(80), "5\r\nwords\r\n", "{seen:?}");
    assert_eq!(text(530), "1\r\nx\r\n0\r\n\r\n", "{seen:?}");
}

fn shown(seen: &[ClientEvent]) -> String {
    let written = seen.iter().flat_map(|one| match one {
        ClientEvent::Write(_, bytes) => bytes.clone(),
        _ => Vec::new(),
    });
    String::from_utf8_lossy(&written.collect::<Vec<u8>>()).into_owned()
}

#[test]
fn a_pause_that_the_agent_can_cause_does_not_cut_a_value() {
    // With much text before the value, a server that is far away pauses in the middle of it for a
    // round trip, as it waits for the proxy to take what it sent.
    let (a, b) = FIRST.split_at(20);
    let covered = format!("<{}>", "*".repeat(FIRST.len()));
    let secrets = || vec![secret("K", FIRST, "a.com")];
    let length = format!(
        "HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n<{a}",
        FIRST.len() + 2
    );
    let sized = vec![
        (0, length.into_bytes()),
        (5000, format!("{b}>").into_bytes()),
    ];
    let size = FIRST.len() + 2;
    let in_a_chunk = vec![
        (
            0,
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n".to_vec(),
        ),
        (0, format!("{size:x}\r\n<{a}").into_bytes()),
        (5000, format!("{b}>\r\n0\r\n\r\n").into_bytes()),
    ];
    for answer in [sized, in_a_chunk] {
        let (seen, _) = observe(secrets(), BEARER, &answer);
        assert!(shown(&seen).contains(&covered), "{}", shown(&seen));
    }
    // Between chunks a server may mean a pause: its distance decides.
    let between = chunked(&[(0, format!("<{a}").into()), (140, format!("{b}>").into())]);
    for (round_trip, whole) in [(70, true), (0, false)] {
        let round_trip = Duration::from_millis(round_trip);
        let (seen, _) = observe_from(round_trip, secrets(), BEARER, &between);
        assert_eq!(shown(&seen).contains(&covered), whole, "{}", shown(&seen));
    }
}

#[test]
fn a_client_that_reads_slowly_does_not_cut_a_value() {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .unwrap();
    let (mut judge, _) = judge(None);
    let mut store = SecretStore::default();
    store.secrets = vec![secret("K", FIRST, "a.com")];
    let name = HostName::from_ascii(b"a.com").unwrap();
    judge.injector = SecretInjector::of(&Rc::new(store), &name, 80, ServerTrust::Proved);
    let (a, b) = FIRST.split_at(20);
    let said = runtime.block_on(async {
        // Room for little, so that the proxy waits for its client.
        let ((mut outer, inner), (mut far, near)) = (duplex(512), duplex(1 << 20));
        outer.write_all(BEARER.as_bytes()).await.unwrap();
        let mut client = Client::new(inner, Vec::new());
        let counts = Counts::uncounted();
        let first = client.request(&judge).await.unwrap().unwrap().unwrap();
        let carried = async {
            let _ = carry(&mut client, near, first, (&judge, &counts)).await;
            drop(client);
            Ok(())
        };
        let talk = async {
            let padding = "x ".repeat(1000);
            let first = chunked(&[(0, format!("{padding}<{a}").into())]);
            for (_, part) in &first[..2] {
                far.write_all(part).await.unwrap();
            }
            // The client takes nothing for long; what follows comes as soon as it does.
            sleep(Duration::from_secs(3)).await;
            let mut said = Vec::new();
            let more = format!("{:x}\r\n{b}>\r\n0\r\n\r\n", b.len() + 1);
            let server = async {
                sleep(Duration::from_millis(20)).await;
                far.write_all(more.as_bytes()).await?;
                far.shutdown().await
            };
            let reads = async { outer.read_to_end(&mut said).await.map(|_| ()) };
            crate::relay::both(server, reads).await.unwrap();
            Ok::<_, io::Error>(said)
        };
        let mut got = Vec::new();
        let talk = async {
            got = talk.await?;
            Ok(())
        };
        crate::relay::both(carried, talk).await.unwrap();
        String::from_utf8_lossy(&got).into_owned()
    });
    let text: String = said.split("\r\n").filter(|line| line.len() > 4).collect();
    assert!(
        text.contains(&format!("<{}>", "*".repeat(FIRST.len()))),
        "{said}"
    );
}

#[test]
fn a_value_that_comes_back_is_covered_wherever_it_is_cut() {
    let value = "value-of-the-secret-0123";
    for cut in 0..value.len() {
        let (a, b) = value.split_at(cut);
        let answer = chunked(&[(0, format!("<{a}").into()), (10, format!("{b}>").into())]);
        let (seen, _) = observe(vec![secret("K", value, "a.com")], BEARER, &answer);
        let all: Vec<u8> = seen
            .iter()
            .flat_map(|one| match one {
                ClientEvent::Write(_, bytes) => bytes.clone(),
                _ => Vec::new(),
            })
            .collect();
        let all = String::from_utf8_lossy(&all).into_owned();
        assert!(
            all.contains(&format!("<{}>", "*".repeat(value.len()))),
            "{all}"
        );
    }
}

pub(crate) fn piece() -> impl Strategy<Value = Vec<u8>> {
    let part = |value: &'static str| {
        (0..value.len(), 0..value.len()).prop_map(|(a, b)| {
            let (a, b) = (a.min(b), a.max(b));
            value.as_bytes().get(a..b).unwrap_or_default().to_vec()
        })
    };
    prop_oneof![
        part(FIRST),
        part(SECOND),
        "[ \n\"%\\\\&=,{}a-z]{0,6}".prop_map(String::into_bytes),
        Just(vec![b's'; 5000]),
        proptest::collection::vec(any::<u8>(), 0..6),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    #[test]
    fn stores_that_differ_in_a_value_show_the_same(
        parts in proptest::collection::vec((0..120_u64, piece()), 0..8),
        framing in 0..4_u8,
        injects in any::<bool>(),
    ) {
        let body: Vec<u8> = parts.iter().flat_map(|(_, part)| part.clone()).collect();
        let with_head = |head: String| {
            let mut all = vec![(0, head.into_bytes())];
            all.extend(parts.iter().cloned());
            all
        };
        let upgrade = "GET / HTTP/1.1\r\nHost: a.com\r\nAuthorization: Bearer ironcage-K\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n";
        let (request, answer) = match framing {
            0 => (BEARER, chunked(&parts)),
            1 => (BEARER, with_head(format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", body.len()))),
            2 => (BEARER, with_head("HTTP/1.1 200 OK\r\nX-A: sk-0aB1\r\n\r\n".into())),
            _ => (upgrade, with_head("HTTP/1.1 101 Switching\r\nUpgrade: websocket\r\n\r\n".into())),
        };
        let request = if injects || framing == 3 { request } else { NOTHING };
        let run = |value: &str, other: &str| {
            let secrets = vec![secret("K", value, "a.com"), secret("O", other, "b.com")];
            observe(secrets, request, &answer)
        };
        let first = run(FIRST, "other-value-0123456789");
        prop_assume!(memchr::memmem::find(&body, FIRST.as_bytes()).is_none());
        prop_assume!(memchr::memmem::find(&body, SECOND.as_bytes()).is_none());
        prop_assert_eq!(&first, &run(SECOND, "other-value-0123456789"));
        prop_assert_eq!(&first, &run(FIRST, SECOND));
    }
}
