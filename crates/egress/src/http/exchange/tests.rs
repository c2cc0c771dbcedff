//! Requests and responses, talked through streams in memory.

use super::super::body_stream::chunk_size;
use super::super::head::Authority;
use super::super::judge::Recorder;
use super::*;
use crate::decide::Rules;
use crate::traffic_counters::TrafficEvent;
use ironcage_model::{
    Destination, HostName, HostRule, HttpRule, NetworkVerdict, PathPattern, Ports, Protocol,
};
use std::cell::RefCell;
use std::rc::Rc;
use tokio::io::{AsyncReadExt as _, duplex};

#[derive(Default)]
pub(super) struct Notes(pub(super) RefCell<Vec<TrafficEvent>>);

impl Recorder for Notes {
    fn refuse(&self, kind: TrafficEvent) {
        self.note(kind);
    }

    fn note(&self, kind: TrafficEvent) {
        self.0.borrow_mut().push(kind);
    }
}

/// Every request is allowed, but where rules are given.
pub(super) fn judge(paths: Option<&[(&str, &str)]>) -> (Judge, Rc<Notes>) {
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
        rules: Rc::new(Rules::of_requests(
            paths.unwrap_or_default().iter().map(rule).collect(),
        )),
        authority: Authority {
            name: name.clone(),
            port: 80,
            usual_port: 80,
        },
        rule: "a.com".into(),
        injector: None,
        reader: None,
        protocol: Protocol::Http,
        address: RefCell::default(),
        takes_urls: std::cell::Cell::default(),
        round_trip: Cell::default(),
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
fn the_words_of_a_status_are_the_usual_ones() {
    let get = "GET /1 HTTP/1.1\r\nHost: a.com\r\n\r\n";
    for (said, goes_on) in [
        ("200 the-value", "HTTP/1.1 200 OK\r\n"),
        ("799 the-value", "HTTP/1.1 799 \r\n"),
    ] {
        let (_, client) = talk(
            get,
            &format!("HTTP/1.1 {said}\r\nContent-Length: 0\r\n\r\n"),
        );
        assert!(client.starts_with(goes_on), "{client}");
    }
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

#[test]
fn a_body_that_stops_coming_does_not_hold_a_connection_for_good() {
    // Time that passes only when nothing else happens.
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .unwrap();
    let (judge, notes) = judge(None);
    for (silence, goes_on) in [(BODY_PATIENCE / 2, true), (BODY_PATIENCE * 2, false)] {
        let server = runtime.block_on(async {
            let (mut outer, inner) = duplex(1 << 16);
            let (mut far, near) = duplex(1 << 16);
            let half = b"POST / HTTP/1.1\r\nHost: a.com\r\nContent-Length: 4\r\n\r\nab";
            outer.write_all(half).await.unwrap();
            let mut client = Client::new(inner, Vec::new());
            let counts = Counts::uncounted();
            let first = client.request(&judge).await.unwrap().unwrap().unwrap();
            let carried = async {
                let _ = carry(&mut client, near, first, (&judge, &counts)).await;
                Ok(())
            };
            let slow = async {
                tokio::time::sleep(silence).await;
                // It may be too late.
                let _ = outer.write_all(b"cd").await;
                Ok(())
            };
            // The server never answers, so this takes all the time there is.
            let _ = timeout(BODY_PATIENCE * 4, crate::relay::both(carried, slow)).await;
            let mut got = vec![0; 1 << 16];
            let length = far.read(&mut got).await.unwrap();
            String::from_utf8_lossy(&got[..length]).into_owned()
        });
        assert_eq!(server.ends_with("abcd"), goes_on, "{server}");
    }
    let seen = notes.0.borrow();
    let reasons: Vec<&str> = seen
        .iter()
        .filter_map(|kind| kind.reason.as_ref()?.code())
        .collect();
    assert_eq!(reasons, ["http-body-timeout"]);
}
