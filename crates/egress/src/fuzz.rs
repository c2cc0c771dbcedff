//! The parsers of what strangers send to the proxy, for the fuzzer in `fuzz/`: each is called as the
//! proxy calls it, and panics where what it found breaks a promise.

use crate::dns;
use crate::hello::{self, Hello};
use crate::http::head::{self, Authority};
use ironcage_model::HostName;

fn name() -> Option<HostName> {
    HostName::from_ascii(b"api.example.com").ok()
}

/// A question from inside: what is answered is an answer to it.
pub fn dns_question(bytes: &[u8]) {
    let _ = dns::hear(bytes);
}

/// A resolver's answer.
pub fn dns_answer(bytes: &[u8]) {
    const A: u16 = 1;
    const AAAA: u16 = 28;
    let Some(name) = name() else { return };
    let id = bytes
        .get(..2)
        .map_or(0, |two| u16::from_be_bytes([two[0], two[1]]));
    for kind in [A, AAAA] {
        let _ = dns::read(bytes, id, &name, kind);
    }
}

/// The first message of TLS: a beginning of it is never read as another name than the whole.
pub fn tls_hello(bytes: &[u8]) {
    let whole = hello::read(bytes);
    for end in 0..bytes.len().min(600) {
        match hello::read(&bytes[..end]) {
            Hello::Incomplete => {}
            early @ Hello::For(_) => assert_eq!(early, whole, "decided by {end} bytes"),
            Hello::Refused(_) => {
                assert!(
                    !matches!(whole, Hello::For(_)),
                    "refused by {end} bytes and then let through"
                );
            }
        }
    }
}

/// A request of HTTP/1, and an answer to it: what goes on is understood the same again.
pub fn http_head(bytes: &[u8]) {
    let Some(name) = name() else { return };
    let authority = Authority {
        name,
        port: 80,
        usual_port: 80,
    };
    let Ok(Some((request, used))) = head::request(bytes, &authority) else {
        return;
    };
    assert!(used <= bytes.len());
    // The proxy adds up to four fields, which may be more than it would take itself.
    if request.parts.fields.len() + 4 > head::MOST_FIELDS {
        return;
    }
    let written = request.written(&authority, false);
    let again = head::request(&written, &authority);
    let Ok(Some((again, length))) = again else {
        panic!("what goes on is not understood: {written:?}");
    };
    assert_eq!(length, written.len());
    assert_eq!(again.parts.target, request.parts.target);
    assert_eq!(again.framing, request.framing);
    if let Ok(Some((response, used))) = head::response(&bytes[used..], &request) {
        assert!(used <= bytes.len());
        let _ = response.written(false);
    }
}
