//! Examines the first bytes of a client: whether it speaks TLS or HTTP, which are held to the name
//! of the connection on every port.

use std::time::Duration;

/// What the first bytes of a client look like.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Looks {
    Undecided,
    Tls,
    Http,
    Other,
}

/// Methods that a request begins with.
const METHODS: [&[u8]; 10] = [
    b"GET ",
    b"HEAD ",
    b"POST ",
    b"PUT ",
    b"PATCH ",
    b"DELETE ",
    b"OPTIONS ",
    b"TRACE ",
    b"CONNECT ",
    b"PRI ",
];

/// What stands before a request where a server takes it from a proxy, which the cage is not.
const PROXY_PROTOCOL: [&[u8]; 2] = [b"PROXY ", b"\0\r\nQUIT\n"];

/// The first byte of a message that begins TLS.
pub(crate) const HANDSHAKE: u8 = 22;

/// Most of a first line that is held while it is not clear what it is; then it goes on, watched.
pub(crate) const LONGEST_FIRST_LINE: usize = 16 * 1024;

/// Most of a first line that is watched for a request.
pub(crate) const LONGEST_WATCHED: usize = 4 << 20;

/// How long a client may pause in its first line before that goes on.
pub(crate) const FIRST_LINE: Duration = Duration::from_millis(200);

/// What a client that speaks first looks like. What is HTTP here has to be HTTP for the name, in
/// the one form that the proxy reads; so in doubt it is.
pub(crate) fn looks_like(seen: &[u8]) -> Looks {
    let text = without_empty_lines(seen);
    if METHODS.iter().any(|method| text.starts_with(method)) {
        return Looks::Http;
    }
    first_line(seen)
}

/// Whether some server somewhere takes this byte for a space between words. Python's do so with
/// every one that Unicode calls a space.
fn is_space(byte: u8) -> bool {
    matches!(
        byte,
        b'\t' | 0x0b | 0x0c | b'\r' | 0x1c..=b' ' | 0x85 | 0xa0
    )
}

/// Servers skip empty lines and spaces before a request.
fn without_empty_lines(seen: &[u8]) -> &[u8] {
    let at = seen
        .iter()
        .position(|byte| !(is_space(*byte) || *byte == b'\n'));
    seen.get(at.unwrap_or(seen.len())..).unwrap_or_default()
}

/// Whether a line names a version of HTTP, or one that servers of HTTP take for it: Node's take
/// RTSP and ICE.
fn names_version(line: &[u8]) -> bool {
    const PROTOCOLS: [&[u8]; 3] = [b"http/", b"rtsp/", b"ice/"];
    PROTOCOLS.iter().any(|protocol| {
        let length = protocol.len();
        line.windows(length + 1).any(|text| {
            let (name, digit) = text.split_at(length);
            name.eq_ignore_ascii_case(protocol) && digit.iter().all(u8::is_ascii_digit)
        })
    })
}

/// What a client looks like by its first line: a request's has a word, whichever, and a version of
/// HTTP. Servers differ in which methods, spaces and other bytes they take there; what any of
/// them takes for a request is one.
pub(crate) fn first_line(seen: &[u8]) -> Looks {
    if let [HANDSHAKE, rest @ ..] = seen {
        return match rest {
            [] => Looks::Undecided,
            [3, ..] => Looks::Tls,
            _ => Looks::Other,
        };
    }
    let text = without_empty_lines(seen);
    if PROXY_PROTOCOL.iter().any(|with| text.starts_with(with)) {
        return Looks::Http;
    }
    if PROXY_PROTOCOL.iter().any(|with| with.starts_with(text)) {
        return Looks::Undecided;
    }
    let end = text.iter().position(|byte| *byte == b'\n');
    let line = text.get(..end.unwrap_or(text.len())).unwrap_or_default();
    // Protocols of bytes show themselves here, before they have to wait for a line.
    let mut word = line.iter().take_while(|byte| !is_space(**byte));
    if word.any(u8::is_ascii_control) {
        return Looks::Other;
    }
    // Some servers end a line at a carriage return.
    let ended = end.is_some() || line.contains(&b'\r');
    match (ended && names_version(line), end) {
        (true, _) => Looks::Http,
        (false, Some(_)) => Looks::Other,
        (false, None) => Looks::Undecided,
    }
}

/// Forgets the middle of a long first line that may still be a request's: a version of HTTP would
/// stand at its end.
pub(crate) fn shorten(seen: &mut Vec<u8>) {
    const END: usize = 64;
    if seen.len() <= LONGEST_FIRST_LINE || first_line(seen) != Looks::Undecided {
        return;
    }
    let line = match without_empty_lines(seen) {
        [] => Vec::new(),
        text => {
            let end = text.get(text.len().saturating_sub(END)..);
            [b"X ", end.unwrap_or_default()].concat()
        }
    };
    *seen = line;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_client_says_first_tells_what_it_is() {
        for http in [
            &b"GET / HTTP/1.1"[..],
            b"PRI * HTTP/2.0",
            b"\r\nGET / HTTP/1.1\r\n",
            b"\n\r\n\r\nGET /",
            b" GET /",
            b"FOO / HTTP/1.1\r\n",
            b"PROPFIND http://other/ HTTP/1.1\r\nHost: other",
            b"get / http/1.1\n",
            b"GET\t/ HTTP/1.1\r\n",
            // Servers in Python split a line at every space there is.
            b"GET\x0b/ HTTP/1.1\r\n",
            b"GET\r/ HTTP/1.1\n",
            b"\x0cGET\xa0/\x85HTTP/1.1\n",
            b"\x1fPROPFIND / HTTP/1.1\r\n",
            // Some take any word for a method, and any byte in a target.
            b"G@T / HTTP/1.1\r\n",
            b"\"GET\" / HTTP/1.1\r\n",
            b"PROPFIND /\0\x01 HTTP/1.1\r\n",
            // Some end a line at a carriage return.
            b"PROPFIND / HTTP/1.1\rHost: other\r\r",
            // Node takes these for requests.
            b"SOURCE / ICE/1.0\r\n",
            b"SETUP rtsp://a/ RTSP/1.0\r\n",
            b"x-y! \xc3\xa9 HTTP/1.0\r\n",
            b"PROXY TCP4 1.1.1.1 1.1.1.1 1 1\r\nGET / HTTP/1.1\r\n",
            b"\r\n\r\n\0\r\nQUIT\n!",
        ] {
            assert_eq!(looks_like(http), Looks::Http, "{}", http.escape_ascii());
        }
        for open in [
            &b""[..],
            b"GE",
            b"GEX",
            b"\r\n",
            b"\r\n\r\n\0\r\nQU",
            b"PROX",
            b"FOO / HT",
            b"JDWP-Handshake",
            b"<stream>",
            b"{\"a\":1}",
            b"003agit-upload-pack /x\0host=a",
            &[b'a'; LONGEST_FIRST_LINE + 1],
            &[22],
        ] {
            assert_eq!(
                looks_like(open),
                Looks::Undecided,
                "{}",
                open.escape_ascii()
            );
        }
        for other in [
            &[0, 0, 0, 8][..],
            &[22, 4],
            b"GEX\r\n",
            b"SSH-2.0-x\r\n",
            b"get key\r\n",
            b"*1\r\n$4\r\nPING\r\n",
            b"0\x02\x01",
            b"<stream>\n",
            b"{\"a\":1}\r\n",
            b"NICK a\r\nUSER b HTTP/1.1\r\n",
            b"AMQP\0",
            b"PUBLISH news HTTP/x\r\n",
        ] {
            assert_eq!(looks_like(other), Looks::Other, "{}", other.escape_ascii());
        }
        assert_eq!(looks_like(&[22, 3, 1]), Looks::Tls);
        // However long it is, its end tells.
        for (begin, looks) in [
            ("FOO /", Looks::Http),
            ("\r\n", Looks::Http),
            ("raw\0", Looks::Other),
        ] {
            let mut seen = begin.as_bytes().to_vec();
            for part in 0..8 {
                let fill = if begin == "\r\n" { b'\n' } else { b'a' };
                seen.extend([fill; 5000]);
                shorten(&mut seen);
                assert!(
                    seen.len() <= LONGEST_FIRST_LINE + 5000 || looks == Looks::Other,
                    "{part}"
                );
            }
            if begin == "\r\n" {
                seen.extend(b"FOO /");
            }
            seen.extend(b" HTTP/1.1\r\n");
            assert_eq!(first_line(&seen), looks, "{begin:?}");
        }
        // Where the server speaks first, a word alone is no request.
        assert_eq!(first_line(b"HEAD 1\r\n"), Looks::Other);
        assert_eq!(first_line(b"HEAD / HTTP/1.1\r\n"), Looks::Http);
    }
}
