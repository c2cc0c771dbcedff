//! One table of requests, over HTTP/1.1 and HTTP/2: both send the same to the server, refuse the
//! same and record the same.

use super::super::exchange::{Client, carry};
use super::super::head::{self, Authority};
use super::super::judge::Recorder;
use super::*;
use crate::decide::Rules;
use crate::http2;
use crate::reader::Reader;
use crate::secret::{
    Claim, Keys, Secret, SecretInjector, SecretStore, ServerTrust, Signed, SignedPath, Signer,
};
use crate::traffic_counters::TrafficEvent;
use crate::traffic_log::TrafficLog;
use bytes::Bytes;
use ironcage_model::{
    Destination, HostName, HostRule, HttpRule, NetworkLimits, PathPattern, Ports, Protocol,
    SecretPlace, SecretRule,
};
use ironcage_plan::Models;
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream, duplex};
use tokio::net::UnixStream;
use tokio::task::{LocalSet, spawn_local};
use tokio::time::timeout;
use zeroize::Zeroizing;

const VALUE: &str = "value-of-the-key-in-full";
const OTHER: &str = "value-of-the-other-secret";
const BEARER: (&str, &str) = ("authorization", "Bearer ironcage-K");
const JSON: (&str, &str) = ("content-type", "application/json");
const FORM: (&str, &str) = ("content-type", "application/x-www-form-urlencoded");

#[derive(Default)]
struct Notes(RefCell<Vec<TrafficEvent>>);

impl Recorder for Notes {
    fn refuse(&self, kind: TrafficEvent) {
        self.note(kind);
    }

    fn note(&self, kind: TrafficEvent) {
        self.0.borrow_mut().push(kind);
    }
}

fn name() -> HostName {
    HostName::from_ascii(b"a.com").unwrap()
}

fn signer() -> Signer {
    Signer {
        placeholder: "ironcage-AWS".into(),
        placeholder_key: "ironcage-AWS-KEY".into(),
        id: Zeroizing::new("AKIDREAL".into()),
        key: Zeroizing::new("the-real-key-of-the-signer".into()),
        token: None,
        hosts: vec!["a.com".parse().unwrap()],
        credentials: Vec::new(),
    }
}

fn judge(signed: bool, reader: Option<&Rc<Reader>>) -> (Judge, Rc<Notes>) {
    let secret = |own: &str, value: &str, host: &str| {
        let more = [
            SecretPlace::Query("key".into()),
            SecretPlace::Body("token".into()),
        ];
        let places = SecretRule::usual_places().into_iter().chain(more).collect();
        let hosts = vec![host.parse().unwrap()];
        Secret::new(own.into(), format!("ironcage-{own}"), value, hosts, places)
    };
    let mut store = SecretStore::default();
    store.secrets = vec![secret("K", VALUE, "a.com"), secret("O", OTHER, "b.com")];
    store.signer = signed.then(signer);
    let rule = |method: &str| HttpRule {
        methods: vec![method.to_owned()],
        host: HostRule {
            to: Destination::Name(name()),
            ports: Ports::Web,
        },
        path: PathPattern::parse("/v1/**").unwrap(),
    };
    let notes = Rc::new(Notes::default());
    let judge = Judge {
        rules: Rc::new(Rules::of_requests(["GET", "POST"].map(rule).into())),
        injector: SecretInjector::of(&Rc::new(store), &name(), 443, ServerTrust::Proved),
        reader: reader.cloned(),
        authority: Authority {
            name: name(),
            port: 443,
            usual_port: 443,
        },
        rule: "a.com".into(),
        protocol: Protocol::Https,
        address: RefCell::default(),
        takes_urls: std::cell::Cell::default(),
        round_trip: Cell::default(),
        recorder: Rc::clone(&notes) as Rc<dyn Recorder>,
    };
    (judge, notes)
}

/// What one request comes to.
#[derive(Debug, PartialEq, Eq)]
struct Outcome {
    /// What the server got, without what every version of HTTP writes in its own way.
    upstream: Option<(RequestParts, String)>,
    status: u16,
    record: Vec<String>,
}

fn outcome(upstream: Option<(RequestParts, Vec<u8>)>, status: u16, notes: &Notes) -> Outcome {
    let plain = |(mut parts, body): (RequestParts, Vec<u8>)| {
        let own = ["host", "content-length", "connection"];
        parts
            .fields
            .retain(|(name, _)| !own.contains(&name.as_str()));
        parts.fields.sort();
        (parts, String::from_utf8(body).unwrap())
    };
    let notes = notes.0.borrow();
    let shown = |kind: &TrafficEvent| {
        let TrafficEvent {
            verdict,
            request,
            status,
            reason,
            ..
        } = kind;
        format!("{verdict:?} {request:?} {status:?} {reason:?}")
    };
    Outcome {
        upstream: upstream.map(plain),
        status,
        record: notes.iter().map(shown).collect(),
    }
}

fn run<T>(task: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    let within = async { timeout(Duration::from_secs(60), task).await.unwrap() };
    LocalSet::new().block_on(&runtime, within)
}

async fn over_http1(
    (judge, notes): (Judge, Rc<Notes>),
    parts: &RequestParts,
    body: &str,
) -> Outcome {
    let RequestParts {
        method,
        target,
        fields,
    } = parts;
    let mut text = format!("{method} {target} HTTP/1.1\r\nhost: a.com\r\nconnection: close\r\n");
    for (name, value) in fields {
        text += &format!("{name}: {}\r\n", String::from_utf8_lossy(value));
    }
    text += &format!("content-length: {}\r\n\r\n{body}", body.len());
    let ((mut outer, inner), (mut far, near)) = (duplex(1 << 20), duplex(1 << 20));
    outer.write_all(text.as_bytes()).await.unwrap();
    outer.shutdown().await.unwrap();
    let answer = b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n";
    far.write_all(answer).await.unwrap();
    let mut client = Client::new(inner, Vec::new());
    let counts = Counts::uncounted();
    match client.request(&judge).await.unwrap() {
        Ok(Some(first)) => {
            let _ = carry(&mut client, near, first, (&judge, &counts)).await;
        }
        Ok(None) => panic!("no request"),
        Err(refused) => {
            drop(near);
            client.refuse(&refused).await.unwrap();
        }
    }
    drop(client);
    let (mut got, mut said) = (Vec::new(), String::new());
    far.read_to_end(&mut got).await.unwrap();
    outer.read_to_string(&mut said).await.unwrap();
    let upstream = head::request(&got, &judge.authority).unwrap();
    let upstream = upstream.map(|(request, length)| (request.parts, got[length..].to_vec()));
    let said = said.trim_start_matches("HTTP/1.1 100 Continue\r\n\r\n");
    let status = said.split(' ').nth(1).unwrap().parse().unwrap();
    outcome(upstream, status, &notes)
}

async fn over_http2(
    (judge, notes): (Judge, Rc<Notes>),
    parts: &RequestParts,
    body: &str,
) -> Outcome {
    let ((outer, inner), (far, near)) = (duplex(1 << 16), duplex(1 << 16));
    spawn_local(async move {
        let _ = http2::carry(inner, near, (judge, Counts::uncounted()), None).await;
    });
    let seen = Rc::new(RefCell::new(None));
    let sees = Rc::clone(&seen);
    spawn_local(async move {
        let served: Result<h2::server::Connection<DuplexStream, Bytes>, _> =
            h2::server::handshake(far).await;
        let mut server = served.unwrap();
        while let Some(Ok((request, mut respond))) = server.accept().await {
            let sees = Rc::clone(&sees);
            spawn_local(async move {
                let (head, mut body) = request.into_parts();
                let mut got = Vec::new();
                while let Some(part) = body.data().await {
                    got.extend(part.unwrap());
                }
                let fields = head.headers.iter();
                let parts = RequestParts {
                    method: head.method.to_string(),
                    target: head.uri.path_and_query().unwrap().to_string(),
                    fields: fields
                        .map(|(name, value)| (name.to_string(), value.as_bytes().to_vec()))
                        .collect(),
                };
                sees.replace(Some((parts, got)));
                respond
                    .send_response(http::Response::new(()), true)
                    .unwrap();
            });
        }
    });
    let (sender, connection) = h2::client::handshake(outer).await.unwrap();
    spawn_local(async move {
        let _ = connection.await;
    });
    let mut sender = sender.ready().await.unwrap();
    let mut request = http::Request::builder()
        .method(parts.method.as_str())
        .uri(format!("https://a.com{}", parts.target))
        .header("content-length", body.len());
    for (name, value) in &parts.fields {
        request = request.header(name, value.as_slice());
    }
    let (response, mut sink) = sender
        .send_request(request.body(()).unwrap(), false)
        .unwrap();
    sink.send_data(Bytes::copy_from_slice(body.as_bytes()), true)
        .unwrap();
    let status = response.await.unwrap().status().as_u16();
    outcome(seen.take(), status, &notes)
}

fn request(method: &str, target: &str, fields: &[(&str, &str)]) -> RequestParts {
    let field = |(name, value): &(&str, &str)| ((*name).to_owned(), value.as_bytes().to_vec());
    RequestParts {
        method: method.into(),
        target: target.into(),
        fields: fields.iter().map(field).collect(),
    }
}

/// What the same request comes to over both versions.
fn both(signed: bool, parts: &RequestParts, body: &str) -> Outcome {
    let one = run(over_http1(judge(signed, None), parts, body));
    let two = run(over_http2(judge(signed, None), parts, body));
    assert_eq!(one, two, "{parts:?} {body}");
    one
}

#[test]
fn requests_go_on_the_same_over_both_versions() {
    let identity = ("accept-encoding", "identity");
    let nested = r#"{"a":{"token":"ironcage-K"}}"#;
    for (what, sent, body, got, got_body) in [
        (
            "nothing to inject",
            ("GET", "/v1/a?x=1", &[("x-a", "1")][..]),
            "",
            ("/v1/a?x=1", &[identity, ("x-a", "1")][..]),
            "",
        ),
        (
            "a header field",
            ("GET", "/v1/a", &[BEARER]),
            "",
            (
                "/v1/a",
                &[
                    identity,
                    ("authorization", "Bearer value-of-the-key-in-full"),
                ],
            ),
            "",
        ),
        (
            "a parameter",
            ("GET", "/v1/a?key=ironcage-K", &[]),
            "",
            ("/v1/a?key=value-of-the-key-in-full", &[identity]),
            "",
        ),
        (
            "JSON",
            ("POST", "/v1/a", &[JSON]),
            r#"{"token":"ironcage-K"}"#,
            ("/v1/a", &[identity, JSON]),
            r#"{"token":"value-of-the-key-in-full"}"#,
        ),
        (
            "a form that waits for a word",
            ("POST", "/v1/a", &[FORM, ("expect", "100-continue")]),
            "token=ironcage-K&x=1",
            ("/v1/a", &[identity, FORM]),
            "token=value-of-the-key-in-full&x=1",
        ),
        (
            "a body of another type",
            ("POST", "/v1/a", &[("content-type", "text/plain")]),
            "ironcage-K",
            ("/v1/a", &[identity, ("content-type", "text/plain")]),
            "ironcage-K",
        ),
        (
            "negotiation",
            (
                "GET",
                "/v1/a",
                &[
                    BEARER,
                    ("accept-encoding", "gzip"),
                    ("accept-charset", "utf-16"),
                    ("accept", "text/plain;charset=utf-7"),
                    ("grpc-accept-encoding", "gzip"),
                    ("range", "bytes=0-3"),
                    ("want-digest", "sha-256"),
                ],
            ),
            "",
            (
                "/v1/a",
                &[
                    ("accept", "text/plain"),
                    identity,
                    ("authorization", "Bearer value-of-the-key-in-full"),
                ],
            ),
            "",
        ),
    ] {
        let outcome = both(false, &request(sent.0, sent.1, sent.2), body);
        let mut wanted = request(sent.0, got.0, got.1);
        wanted.fields.sort();
        let wanted = Some((wanted, got_body.to_owned()));
        assert_eq!(outcome.upstream, wanted, "{what}");
        assert_eq!(outcome.status, 200, "{what}");
        // What is recorded holds no value.
        let record = outcome.record.concat();
        assert!(!record.contains(VALUE), "{what}: {record}");
    }
    for (what, sent, body, status) in [
        ("another path", ("GET", "/v2", &[][..]), "", 403),
        ("another method", ("PUT", "/v1/a", &[]), "x", 403),
        (
            "a method that overrides",
            ("GET", "/v1/a", &[("x-http-method-override", "PUT")]),
            "",
            403,
        ),
        (
            "another host's secret",
            ("GET", "/v1/a", &[("authorization", "Bearer ironcage-O")]),
            "",
            403,
        ),
        (
            "another host's secret in a body",
            ("POST", "/v1/a", &[JSON]),
            r#"{"x":"ironcage-O"}"#,
            403,
        ),
        (
            "a field that is not its own",
            ("GET", "/v1/a", &[("x-a", "ironcage-K")]),
            "",
            403,
        ),
        ("a path", ("GET", "/v1/ironcage-K", &[]), "", 403),
        (
            "a field of the body that is not its own",
            ("POST", "/v1/a", &[JSON]),
            nested,
            403,
        ),
    ] {
        let outcome = both(false, &request(sent.0, sent.1, sent.2), body);
        assert_eq!(outcome.upstream, None, "{what}");
        assert_eq!(outcome.status, status, "{what}");
        assert_eq!(outcome.record.len(), 1, "{what}: {:?}", outcome.record);
    }
}

/// A time as signatures write it.
fn stamp(seconds: u64) -> String {
    let (days, rest) = (seconds / 86_400 + 719_468, seconds % 86_400);
    let era = days / 146_097;
    let day_of_era = days % 146_097;
    let year = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year + year / 4 - year / 100);
    let month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month + 2) / 5 + 1;
    let (year, month) = match month < 10 {
        true => (year + era * 400, month + 3),
        false => (year + era * 400 + 1, month - 9),
    };
    let (hour, minute, second) = (rest / 3600, rest / 60 % 60, rest % 60);
    format!("{year:04}{month:02}{day:02}T{hour:02}{minute:02}{second:02}Z")
}

/// A request as the cage signs it: with the placeholders.
fn signed(
    service: &str,
    target: &str,
    fields: &[(&str, &str)],
    body: &str,
    key: &str,
) -> RequestParts {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    let stamp = stamp(now.as_secs());
    let scope = format!("{}/eu-west-1/{service}/aws4_request", &stamp[..8]);
    let credential = format!(
        "AWS4-HMAC-SHA256 Credential=ironcage-AWS/{scope}, SignedHeaders=host;x-amz-date, Signature=0"
    );
    let mut all = vec![
        ("authorization", credential.as_str()),
        ("x-amz-date", stamp.as_str()),
    ];
    all.extend(fields);
    let mut parts = request("POST", target, &all);
    let unsigned = Signed::of(&parts, "a.com");
    let claim = Claim::read(&unsigned).unwrap().unwrap();
    let keys = Keys {
        id: "ironcage-AWS",
        key,
        token: None,
    };
    let payload = crate::secret::hash(body.as_bytes());
    let (target, fields) = claim.sign(&keys, &unsigned, &payload, SignedPath::AsItIs);
    (parts.target, parts.fields) = (target, fields);
    parts
}

#[test]
fn requests_are_signed_the_same_over_both_versions() {
    let body = "Action=DescribeInstances";
    let own = signed("ec2", "/v1/x", &[FORM], body, "ironcage-AWS-KEY");
    let outcome = both(true, &own, body);
    let (parts, got) = outcome.upstream.unwrap();
    assert_eq!((got.as_str(), outcome.status), (body, 200));
    let authorization = parts
        .fields
        .iter()
        .find(|(name, _)| name == "authorization");
    let text = String::from_utf8(authorization.unwrap().1.clone()).unwrap();
    assert!(text.contains("Credential=AKIDREAL/"), "{text}");
    // The server finds the signature of the real key.
    let fresh = Signed::of(&parts, "a.com");
    let claim = Claim::read(&fresh).unwrap().unwrap();
    let payload = crate::secret::hash(body.as_bytes());
    let key = "the-real-key-of-the-signer";
    assert!(claim.is_by(key, &fresh, &payload).is_some());
    let mints = "Action=CreateKeyPair";
    for (what, parts, body) in [
        ("no signature", request("POST", "/v1/x", &[FORM]), body),
        (
            "another key",
            signed("ec2", "/v1/x", &[FORM], body, "another-key"),
            body,
        ),
        (
            "another body",
            signed("ec2", "/v1/x", &[FORM], body, "ironcage-AWS-KEY"),
            "Action=DescribeVolumes",
        ),
        (
            "credentials",
            signed("ec2", "/v1/x", &[FORM], mints, "ironcage-AWS-KEY"),
            mints,
        ),
        (
            "a service of credentials",
            signed("sts", "/v1/x", &[JSON], body, "ironcage-AWS-KEY"),
            body,
        ),
    ] {
        let outcome = both(true, &parts, body);
        assert_eq!((outcome.upstream, outcome.status), (None, 403), "{what}");
    }
}

#[test]
fn the_reader_of_a_models_exchange_gets_no_value() {
    let body = r#"{"token":"ironcage-K","messages":[]}"#;
    let parts = request("POST", "/v1/messages", &[JSON, BEARER]);
    for version in [1, 2] {
        let read = run(async {
            let (ours, mut theirs) = UnixStream::pair().unwrap();
            let ours = ours.into_std().unwrap();
            let supervisor = UnixStream::pair().unwrap().0.into_std().unwrap();
            let traffic_log = Rc::new(TrafficLog::new(NetworkLimits::default(), supervisor.into()));
            let models = Models {
                hosts: Vec::new(),
                cwd: "/".into(),
                home: None,
                reader_filter: Vec::new(),
                tools: Default::default(),
            };
            let reader = Reader::new(&models, ours.into(), &traffic_log).unwrap();
            let of = judge(false, Some(&reader));
            let outcome = match version {
                1 => over_http1(of, &parts, body).await,
                _ => over_http2(of, &parts, body).await,
            };
            let (_, sent) = outcome.upstream.unwrap();
            assert!(sent.contains(VALUE), "{sent}");
            // The last frame says that the body is over.
            let mut read = Vec::new();
            while !read.ends_with(&[4, 1, 0, 0, 0, 0, 0, 0, 0]) {
                theirs.read_buf(&mut read).await.unwrap();
            }
            String::from_utf8_lossy(&read).into_owned()
        });
        assert!(read.contains(body), "{version}: {read}");
        assert!(!read.contains(VALUE), "{version}: {read}");
    }
}

/// A body in which nothing is replaced.
struct Spaces(usize);

impl RequestBody for Spaces {
    fn length(&self) -> Option<u64> {
        Some(self.0 as u64)
    }

    async fn read(&mut self, length: usize, _: bool) -> Result<Vec<u8>, NotSent> {
        Ok(vec![b' '; length])
    }
}

#[test]
fn a_body_that_is_held_takes_room_until_the_server_has_it() {
    let (judge, _) = judge(false, None);
    run(async {
        let prepared = async || {
            let sent = request("POST", "/v1/x", &[JSON, BEARER]);
            let authorised = judge.authorise(sent).await.unwrap();
            let counts = Counts::uncounted();
            let body = &mut Spaces(256 * 1024);
            let upstream = judge.prepare(authorised, (&counts, true), body).await;
            upstream.unwrap()
        };
        let mut waiting = Vec::new();
        // As many as there is room for; the next one streams, and nothing is kept of it.
        loop {
            let upstream = prepared().await;
            if upstream.body.is_none() {
                break;
            }
            waiting.push(upstream);
            assert!(waiting.len() <= 256, "bodies without end");
        }
        assert!(waiting.len() > 16);
        waiting.pop();
        assert!(prepared().await.body.is_some());
    });
}
