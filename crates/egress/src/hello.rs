//! The TLS ClientHello, as far as the server name in it. It is read, never
//! changed: the connection stays between the cage and the server.

use ironcage_model::{HostName, NetworkReason};

/// Longest first message that is waited for. Post-quantum key shares make them some kilobytes.
pub(crate) const LONGEST: usize = 32 * 1024;

const HANDSHAKE: u8 = 22;
const CLIENT_HELLO: u8 = 1;
const SERVER_NAME: u16 = 0;
const HOST_NAME: u8 = 0;
/// Encrypted Client Hello, with the drafts' numbers.
const ECH: [u16; 4] = [0xfe0d, 0xff02, 0xff03, 0xfe0a];

/// The fatal alert `access_denied`, for a client that is refused.
pub(crate) const ACCESS_DENIED: [u8; 7] = [21, 3, 3, 0, 2, 2, 49];

/// What the first bytes of a connection are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Hello {
    /// More bytes are needed.
    Incomplete,
    /// A first message of TLS, for this name where it says one.
    For(Option<HostName>),
    /// Something that is not let through; why.
    Refused(NetworkReason),
}

fn invalid(error: &str) -> Hello {
    Hello::Refused(NetworkReason::TlsInvalid {
        error: error.to_owned(),
    })
}

/// Reads what a client has sent so far.
pub(crate) fn read(bytes: &[u8]) -> Hello {
    match message(bytes) {
        Ok(Some(body)) => parse(&body),
        Ok(None) if bytes.len() >= LONGEST => invalid("the ClientHello is too long"),
        Ok(None) => Hello::Incomplete,
        Err(why) => invalid(why),
    }
}

/// The handshake message put together from its records, without its header; `None` while it
/// is not all there.
fn message(mut bytes: &[u8]) -> Result<Option<Vec<u8>>, &'static str> {
    let mut handshake: Vec<u8> = Vec::new();
    loop {
        let Some((kind, rest)) = bytes.split_first() else {
            return Ok(None);
        };
        if *kind != HANDSHAKE {
            return Err("not a TLS record");
        }
        if rest.first().is_some_and(|major| *major != 3) {
            return Err("unknown version");
        }
        let (Some(length), Some(body)) = (rest.get(2..4), rest.get(4..)) else {
            return Ok(None);
        };
        let length = usize::from(u16::from_be_bytes([length[0], length[1]]));
        if length == 0 || length > 1 << 14 {
            return Err("invalid record length");
        }
        let there = body.get(..length.min(body.len())).unwrap_or_default();
        handshake.extend(there);
        if handshake.first().is_some_and(|kind| *kind != CLIENT_HELLO) {
            return Err("not a ClientHello");
        }
        if let Some([_, a, b, c]) = handshake.first_chunk::<4>() {
            let whole = usize::from(*a) << 16 | usize::from(*b) << 8 | usize::from(*c);
            if whole > LONGEST {
                return Err("the ClientHello is too long");
            }
            if let Some(body) = handshake.get(4..4 + whole) {
                return Ok(Some(body.to_vec()));
            }
        }
        match body.get(length..) {
            Some(rest) => bytes = rest,
            None => return Ok(None),
        }
    }
}

/// A reader that ends where the bytes do.
struct HelloReader<'a>(&'a [u8]);

impl<'a> HelloReader<'a> {
    fn take(&mut self, count: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(count)?;
        self.0 = rest;
        Some(taken)
    }

    /// A number of so many bytes.
    fn number(&mut self, bytes: usize) -> Option<usize> {
        let taken = self.take(bytes)?;
        Some(
            taken
                .iter()
                .fold(0, |all, byte| all << 8 | usize::from(*byte)),
        )
    }

    /// What follows its own length of so many bytes.
    fn sized(&mut self, bytes: usize) -> Option<HelloReader<'a>> {
        let length = self.number(bytes)?;
        self.take(length).map(HelloReader)
    }
}

fn parse(body: &[u8]) -> Hello {
    fields(body).unwrap_or_else(|| invalid("malformed ClientHello"))
}

/// `None` where the message does not hold together.
fn fields(body: &[u8]) -> Option<Hello> {
    let mut reader = HelloReader(body);
    // Version, random.
    reader.take(2 + 32)?;
    // Session, cipher suites, compression.
    reader.sized(1)?;
    reader.sized(2)?;
    reader.sized(1)?;
    if reader.0.is_empty() {
        return Some(Hello::For(None));
    }
    let mut extensions = reader.sized(2)?;
    if !reader.0.is_empty() {
        return None;
    }
    let mut name = None;
    while !extensions.0.is_empty() {
        let kind = extensions.number(2)? as u16;
        let mut data = extensions.sized(2)?;
        if ECH.contains(&kind) {
            return Some(Hello::Refused(NetworkReason::TlsNameHidden));
        }
        if kind != SERVER_NAME {
            continue;
        }
        let mut list = data.sized(2)?;
        let kind = list.number(1)? as u8;
        let host = list.sized(2)?;
        // One name of one kind, once.
        if kind != HOST_NAME || !list.0.is_empty() || !data.0.is_empty() || name.is_some() {
            return Some(invalid("invalid server name"));
        }
        match HostName::from_ascii(host.0) {
            Ok(host) => name = Some(host),
            Err(_) => return Some(invalid("invalid server name")),
        }
    }
    Some(Hello::For(name))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn sized(bytes: usize, content: &[u8]) -> Vec<u8> {
        let length = (content.len() as u32).to_be_bytes();
        let mut all = length[4 - bytes..].to_vec();
        all.extend(content);
        all
    }

    fn extension(kind: u16, content: &[u8]) -> Vec<u8> {
        let mut all = kind.to_be_bytes().to_vec();
        all.extend(sized(2, content));
        all
    }

    fn server_name(name: &[u8]) -> Vec<u8> {
        let mut entry = vec![HOST_NAME];
        entry.extend(sized(2, name));
        extension(SERVER_NAME, &sized(2, &entry))
    }

    /// The handshake message, without records.
    fn handshake(extensions: &[Vec<u8>]) -> Vec<u8> {
        let mut body = vec![3, 3];
        body.extend([9; 32]);
        body.extend(sized(1, &[1; 32]));
        body.extend(sized(2, &[0x13, 1]));
        body.extend(sized(1, &[0]));
        body.extend(sized(2, &extensions.concat()));
        let mut message = vec![CLIENT_HELLO];
        message.extend(sized(3, &body));
        message
    }

    fn records(message: &[u8], each: usize) -> Vec<u8> {
        message
            .chunks(each)
            .flat_map(|part| {
                let mut record = vec![HANDSHAKE, 3, 1];
                record.extend(sized(2, part));
                record
            })
            .collect()
    }

    fn hello(extensions: &[Vec<u8>]) -> Vec<u8> {
        records(&handshake(extensions), 1 << 14)
    }

    fn name(text: &str) -> Hello {
        Hello::For(Some(HostName::from_ascii(text.as_bytes()).unwrap()))
    }

    #[test]
    fn the_name_is_found_however_the_message_is_cut() {
        let message = handshake(&[extension(43, &[2, 3, 4]), server_name(b"API.example.com")]);
        for each in [1, 2, 3, 7, 100, 1 << 14] {
            let bytes = records(&message, each);
            assert_eq!(read(&bytes), name("api.example.com"), "{each}");
            for cut in 0..bytes.len() {
                assert_eq!(read(&bytes[..cut]), Hello::Incomplete, "{each} {cut}");
            }
        }
    }

    #[test]
    fn hidden_odd_and_double_names_are_refused() {
        let refused =
            |extensions: &[Vec<u8>]| matches!(read(&hello(extensions)), Hello::Refused(_));
        assert!(refused(&[server_name(b"a.com"), extension(0xfe0d, &[0])]));
        assert!(refused(&[server_name(b"a.com"), server_name(b"b.com")]));
        assert!(refused(&[server_name(b"a.com\0.b.com")]));
        assert!(refused(&[server_name(b"127.0.0.1")]));
        assert!(refused(&[server_name(b"")]));
        let mut two = vec![HOST_NAME];
        two.extend(sized(2, b"a.com"));
        two.push(HOST_NAME);
        two.extend(sized(2, b"b.com"));
        assert!(refused(&[extension(SERVER_NAME, &sized(2, &two))]));
        assert!(!refused(&[server_name(b"a.com"), extension(16, &[0])]));
        assert_eq!(read(&hello(&[])), Hello::For(None));
    }

    #[test]
    fn what_is_not_the_first_message_of_tls_is_refused_at_once() {
        assert!(matches!(read(b"GET / HTTP/1.1"), Hello::Refused(_)));
        assert!(matches!(read(&[23, 3, 3]), Hello::Refused(_)));
        assert!(matches!(read(&[22, 2]), Hello::Refused(_)));
        assert!(matches!(read(&[22, 3, 1, 0, 0, 1]), Hello::Refused(_)));
        assert!(matches!(read(&[22, 3, 1, 0, 9, 2]), Hello::Refused(_)));
        let long = [22, 3, 1, 0x40, 0, 1, 0xff, 0xff, 0xff];
        assert!(matches!(read(&long), Hello::Refused(_)));
    }

    proptest! {
        #[test]
        fn no_bytes_make_it_panic(bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
            let _ = read(&bytes);
            let mut record = vec![22, 3, 1];
            record.extend((bytes.len() as u16).to_be_bytes());
            record.extend(&bytes);
            let _ = read(&record);
        }

        #[test]
        fn a_changed_message_never_panics_and_never_names_two(at in 0_usize..120, byte: u8) {
            let mut bytes = hello(&[server_name(b"api.example.com"), extension(43, &[2, 3, 4])]);
            if let Some(slot) = bytes.get_mut(at) {
                *slot = byte;
            }
            let _ = read(&bytes);
        }
    }
}
