//! Heads of requests and answers, well-formed and not.

use super::*;
use proptest::prelude::*;

fn authority() -> Authority {
    Authority {
        name: HostName::from_ascii(b"api.example.com").unwrap(),
        port: 80,
        usual_port: 80,
    }
}

fn read(text: &str) -> Result<Option<(Request, usize)>, Refused> {
    request(text.as_bytes(), &authority())
}

fn status(text: &str) -> u16 {
    read(text).unwrap_err().status
}

#[test]
fn a_plain_request_goes_on() {
    let text = "GET /a?b=c HTTP/1.1\r\nHost: API.example.com\r\nX-Own: 1\r\n\r\nmore";
    let (request, length) = read(text).unwrap().unwrap();
    assert_eq!(length, text.len() - 4);
    assert_eq!(request.framing, Framing::Empty);
    let written = String::from_utf8(request.written(&authority(), false)).unwrap();
    assert_eq!(
        written,
        "GET /a?b=c HTTP/1.1\r\nhost: api.example.com\r\nx-own: 1\r\n\r\n"
    );
    assert!(
        read("GET / HTTP/1.1\r\nHost: api.example.com\r\n")
            .unwrap()
            .is_none()
    );
    assert!(read("GET / HTTP/1.1\r\nHost: api.example.com:80\r\n\r\n").is_ok());
}

#[test]
fn empty_lines_before_a_request_are_skipped_and_what_follows_is_checked() {
    let text = "\r\n\r\nGET / HTTP/1.1\r\nHost: api.example.com\r\n\r\nmore";
    let (request, length) = read(text).unwrap().unwrap();
    assert_eq!(
        (request.parts.target.as_str(), length),
        ("/", text.len() - 4)
    );
    assert!(read("\r\n\r\n").unwrap().is_none());
    let other = "\r\nGET / HTTP/1.1\r\nHost: other.com\r\n\r\n";
    assert_eq!(status(other), 403);
    assert_eq!(status(&"\r\n".repeat(40)), 400);
}

#[test]
fn requests_for_others_are_refused() {
    assert_eq!(status("GET / HTTP/1.1\r\nHost: other.com\r\n\r\n"), 403);
    assert_eq!(
        status("GET / HTTP/1.1\r\nHost: api.example.com:81\r\n\r\n"),
        403
    );
    assert_eq!(
        status("GET / HTTP/1.1\r\nHost: api.example.com@other.com\r\n\r\n"),
        403
    );
    assert_eq!(status("GET / HTTP/1.1\r\n\r\n"), 400);
    let two = "GET / HTTP/1.1\r\nHost: api.example.com\r\nHost: other.com\r\n\r\n";
    assert_eq!(status(two), 400);
    let absolute = "GET http://other.com/ HTTP/1.1\r\nHost: api.example.com\r\n\r\n";
    assert_eq!(status(absolute), 403);
    let own = "GET http://API.example.com?x HTTP/1.1\r\nHost: api.example.com\r\n\r\n";
    assert_eq!(read(own).unwrap().unwrap().0.parts.target, "/?x");
    let connect = "CONNECT other.com:443 HTTP/1.1\r\nHost: other.com:443\r\n\r\n";
    assert_eq!(status(connect), 405);
    assert_eq!(status("PRI * HTTP/2.0\r\n\r\n"), 505);
}

#[test]
fn what_could_be_read_in_two_ways_is_refused() {
    let with = |fields: &str| format!("POST / HTTP/1.1\r\nHost: api.example.com\r\n{fields}\r\n");
    for fields in [
        "Content-Length: 1\r\nTransfer-Encoding: chunked\r\n",
        "Content-Length: 1\r\nContent-Length: 1\r\n",
        "Content-Length: 1, 1\r\n",
        "Content-Length: +1\r\n",
        "Content-Length: 0x1\r\n",
        "Content-Length:\r\n",
        "Transfer-Encoding: chunked, identity\r\n",
        "Transfer-Encoding: xchunked\r\n",
        "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n",
        "Transfer-Encoding : chunked\r\n",
        " folded: 1\r\n",
        "X: a\r\n b\r\n",
        "X: a\nb: c\r\n",
        "X\r\n",
        "X: \u{1}\r\n",
    ] {
        assert_eq!(status(&with(fields)), 400, "{fields:?}");
    }
    assert!(read(&with("Transfer-Encoding: Chunked\r\n")).is_ok());
    assert!(read(&with("Content-Length: 12\r\n")).is_ok());
    assert_eq!(
        status("POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n"),
        400
    );
    assert_eq!(
        status("GET  / HTTP/1.1\r\nHost: api.example.com\r\n\r\n"),
        400
    );
    assert_eq!(
        status("GET /\t HTTP/1.1\r\nHost: api.example.com\r\n\r\n"),
        400
    );
}

#[test]
fn only_websockets_change_the_protocol() {
    let with = |what: &str| {
        let text = format!(
            "GET / HTTP/1.1\r\nHost: api.example.com\r\nConnection: Upgrade\r\nUpgrade: {what}\r\n\r\n"
        );
        read(&text).unwrap().unwrap().0
    };
    assert!(with("websocket").upgrade);
    let h2c = with("h2c");
    assert!(!h2c.upgrade);
    let written = String::from_utf8(h2c.written(&authority(), false)).unwrap();
    assert!(!written.contains("h2c"), "{written}");
    let switch = b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\n\r\n";
    assert!(response(switch, &with("websocket")).unwrap().is_some());
    assert_eq!(response(switch, &h2c).unwrap_err().status, 502);
}

#[test]
fn the_end_of_a_response_is_known() {
    let get = read("GET / HTTP/1.1\r\nHost: api.example.com\r\n\r\n")
        .unwrap()
        .unwrap()
        .0;
    let head = read("HEAD / HTTP/1.1\r\nHost: api.example.com\r\n\r\n")
        .unwrap()
        .unwrap()
        .0;
    let read = |text: &str, to: &Request| response(text.as_bytes(), to).unwrap().unwrap().0;
    let five = "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n";
    assert_eq!(read(five, &get).framing, Framing::Length(5));
    let to_head = read(five, &head);
    assert_eq!(to_head.framing, Framing::Empty);
    let written = String::from_utf8(to_head.written(false)).unwrap();
    assert!(written.contains("content-length: 5"), "{written}");
    assert_eq!(
        read("HTTP/1.1 204 No\r\n\r\n", &get).framing,
        Framing::Empty
    );
    let open = read("HTTP/1.1 200\r\n\r\n", &get);
    assert!(open.framing == Framing::ToTheEnd && open.last);
    assert!(read("HTTP/1.0 200 OK\r\nContent-Length: 1\r\n\r\n", &get).last);
    assert!(response(b"SSH-2.0-x\r\n\r\n", &get).is_err());
    assert!(response(b"HTTP/1.1 20x OK\r\n\r\n", &get).is_err());
}

proptest! {
    #[test]
    fn no_bytes_make_it_panic(bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
        let _ = request(&bytes, &authority());
    }

    #[test]
    fn what_goes_on_is_understood_the_same_again(
        target in "/[!-~]{0,20}",
        name in "[a-zA-Z-]{1,12}",
        value in "[ -~]{0,20}",
        length in 0_u32..100,
    ) {
        let text = format!(
            "POST {target} HTTP/1.1\r\nHost: api.example.com\r\n{name}: {value}\r\nContent-Length: {length}\r\n\r\n"
        );
        if let Ok(Some((request, _))) = read(&text) {
            let written = request.written(&authority(), false);
            let (again, used) = super::request(&written, &authority()).unwrap().unwrap();
            prop_assert_eq!(used, written.len());
            prop_assert_eq!(&again.parts.target, &request.parts.target);
            prop_assert_eq!(again.framing, request.framing);
            prop_assert_eq!(again.written(&authority(), false), written);
        }
    }
}
