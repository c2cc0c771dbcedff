//! Messages of the domain name system, as much as the proxy says and hears: questions from the
//! cage, which it answers itself, and its own questions to the host's resolvers.
//!
//! Nothing of a question from the cage goes any further than its name, and that only after a
//! rule knows it. The parser takes no compression in questions and bounded chains in answers.

use ironcage_model::HostName;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Longest message that is taken or made over UDP.
pub(crate) const LONGEST: usize = 4096;

/// Types of records.
pub(crate) const A: u16 = 1;
const CNAME: u16 = 5;
pub(crate) const AAAA: u16 = 28;
const IN: u16 = 1;

const HEADER: usize = 12;
const RESPONSE: u8 = 0x80;
const TRUNCATED: u8 = 0x02;
const RECURSION_DESIRED: u8 = 0x01;
const RECURSION_AVAILABLE: u8 = 0x80;
const OPCODE: u8 = 0x78;
const COMPRESSED: u8 = 0xc0;
/// Pointers and aliases that are followed before a message counts as hostile.
const HOPS: usize = 32;

/// How a question is answered without an address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Code {
    /// There is such a name, perhaps with addresses.
    NoError = 0,
    /// The question is not one.
    FormatError = 1,
    /// Ask later, or another.
    ServerFailure = 2,
    /// There is no such name.
    NoSuchName = 3,
    NotImplemented = 4,
}

/// A question from the cage.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Question {
    id: u16,
    recursion: bool,
    /// The name, where it is one; names with other bytes in them are none.
    pub(crate) name: Option<HostName>,
    /// The type of record asked for.
    pub(crate) kind: u16,
    /// The question as it came, to be repeated in the answer.
    section: Vec<u8>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum DnsMessage {
    Question(Question),
    /// Something that gets this answer.
    Answer(Vec<u8>),
    /// Something that gets none.
    Nothing,
}

fn word(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_be_bytes(bytes.get(at..at + 2)?.try_into().ok()?))
}

/// Takes a message of the cage's apart.
pub(crate) fn hear(message: &[u8]) -> DnsMessage {
    let (Some(id), Some([flags, _])) = (word(message, 0), message.get(2..4)) else {
        return DnsMessage::Nothing;
    };
    // An answer is not answered: two resolvers would talk for ever.
    if flags & RESPONSE != 0 || message.len() < HEADER {
        return DnsMessage::Nothing;
    }
    let refuse = |code: Code| DnsMessage::Answer(bare(id, *flags, code));
    if flags & OPCODE != 0 {
        return refuse(Code::NotImplemented);
    }
    // Exactly one question; what is asked beside it (EDNS) changes nothing of the answer.
    if word(message, 4) != Some(1) || word(message, 6) != Some(0) || word(message, 8) != Some(0) {
        return refuse(Code::FormatError);
    }
    let mut labels: Vec<u8> = Vec::new();
    let mut at = HEADER;
    loop {
        match message.get(at) {
            Some(0) => break,
            Some(length @ 1..=63) => {
                let end = at + 1 + usize::from(*length);
                let Some(label) = message.get(at + 1..end) else {
                    return refuse(Code::FormatError);
                };
                if !labels.is_empty() {
                    labels.push(b'.');
                }
                // A dot inside of a label is not the dot between two.
                labels.extend(
                    label
                        .iter()
                        .map(|byte| if *byte == b'.' { 0 } else { *byte }),
                );
                at = end;
            }
            _ => return refuse(Code::FormatError),
        }
        if labels.len() > HostName::LONGEST + 1 {
            return refuse(Code::FormatError);
        }
    }
    let (Some(kind), Some(class)) = (word(message, at + 1), word(message, at + 3)) else {
        return refuse(Code::FormatError);
    };
    if class != IN {
        return refuse(Code::NotImplemented);
    }
    DnsMessage::Question(Question {
        id,
        recursion: flags & RECURSION_DESIRED != 0,
        name: HostName::from_ascii(&labels).ok(),
        kind,
        section: message.get(HEADER..at + 5).unwrap_or_default().to_vec(),
    })
}

fn header(id: u16, recursion: bool, code: Code, counts: [u16; 2]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(64);
    bytes.extend(id.to_be_bytes());
    bytes.push(RESPONSE | u8::from(recursion));
    bytes.push(RECURSION_AVAILABLE | code as u8);
    for count in counts.into_iter().chain([0, 0]) {
        bytes.extend(count.to_be_bytes());
    }
    bytes
}

fn bare(id: u16, flags: u8, code: Code) -> Vec<u8> {
    header(id, flags & RECURSION_DESIRED != 0, code, [0, 0])
}

impl Question {
    /// The answer: an address of the kind asked for, or none.
    pub(crate) fn answer(&self, code: Code, address: Option<IpAddr>) -> Vec<u8> {
        let count = u16::from(address.is_some());
        let mut bytes = header(self.id, self.recursion, code, [1, count]);
        bytes.extend(&self.section);
        if let Some(address) = address {
            // The name of the question, by a pointer to it.
            bytes.extend([COMPRESSED, HEADER as u8]);
            let (kind, octets) = match address {
                IpAddr::V4(four) => (A, four.octets().to_vec()),
                IpAddr::V6(six) => (AAAA, six.octets().to_vec()),
            };
            bytes.extend(kind.to_be_bytes());
            bytes.extend(IN.to_be_bytes());
            // The address stays the name's as long as the proxy is there.
            bytes.extend(300_u32.to_be_bytes());
            bytes.extend((octets.len() as u16).to_be_bytes());
            bytes.extend(octets);
        }
        bytes
    }
}

/// A question to a resolver of the host's.
pub(crate) fn ask(id: u16, name: &HostName, kind: u16) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(64);
    bytes.extend(id.to_be_bytes());
    bytes.extend([RECURSION_DESIRED, 0]);
    for count in [1_u16, 0, 0, 0] {
        bytes.extend(count.to_be_bytes());
    }
    for label in name.as_str().split('.') {
        // A host name's labels have 63 bytes at most.
        bytes.push(label.len() as u8);
        bytes.extend(label.as_bytes());
    }
    bytes.push(0);
    bytes.extend(kind.to_be_bytes());
    bytes.extend(IN.to_be_bytes());
    bytes
}

/// What a resolver said.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum DnsReply {
    /// Addresses of the name, and for how many seconds.
    Addresses(Vec<IpAddr>, u32),
    /// There is no such name.
    NoSuchName,
    /// The answer did not fit; ask over TCP.
    Truncated,
    /// The resolver could not tell.
    Failed,
}

/// Reads the answer to [`ask`]; `None` for what is not the answer to that question.
pub(crate) fn read(message: &[u8], id: u16, name: &HostName, kind: u16) -> Option<DnsReply> {
    let [flags, more] = *message.get(2..4)? else {
        return None;
    };
    let asked = (word(message, 0)? == id) && flags & RESPONSE != 0 && word(message, 4)? == 1;
    let (owner, at) = name_at(message, HEADER)?;
    if !asked
        || owner.as_ref() != Some(name)
        || word(message, at)? != kind
        || word(message, at + 2)? != IN
    {
        return None;
    }
    if flags & TRUNCATED != 0 {
        return Some(DnsReply::Truncated);
    }
    match more & 0x0f {
        0 => {}
        3 => return Some(DnsReply::NoSuchName),
        _ => return Some(DnsReply::Failed),
    }
    let mut records = Vec::new();
    let mut at = at + 4;
    for _ in 0..word(message, 6)? {
        let (owner, next) = name_at(message, at)?;
        let (kind, class) = (word(message, next)?, word(message, next + 2)?);
        let ttl = u32::from_be_bytes(message.get(next + 4..next + 8)?.try_into().ok()?);
        let start = next + 10;
        let length = usize::from(word(message, next + 8)?);
        let data = message.get(start..start + length)?;
        if class == IN
            && let Some(owner) = owner
        {
            records.push((owner, kind, ttl, start, data));
        }
        at = start + length;
    }
    // From alias to alias, then the addresses of the last.
    let mut current = name.clone();
    for _ in 0..HOPS {
        let alias = records
            .iter()
            .find(|(owner, kind, ..)| *kind == CNAME && *owner == current);
        match alias {
            Some((_, _, _, start, _)) => current = name_at(message, *start)?.0?,
            None => break,
        }
    }
    let mut least = u32::MAX;
    let mut addresses = Vec::new();
    for (owner, found, ttl, _, data) in records {
        if owner != current || found != kind {
            continue;
        }
        let address = match kind {
            A => <[u8; 4]>::try_from(data)
                .ok()
                .map(|octets| IpAddr::V4(Ipv4Addr::from(octets))),
            _ => <[u8; 16]>::try_from(data)
                .ok()
                .map(|octets| IpAddr::V6(Ipv6Addr::from(octets))),
        };
        addresses.extend(address);
        least = least.min(ttl);
    }
    Some(DnsReply::Addresses(addresses, least))
}

/// The name at a place, `None` inside for one that is no host name, and where it ends.
fn name_at(message: &[u8], start: usize) -> Option<(Option<HostName>, usize)> {
    let mut labels = Vec::new();
    let mut at = start;
    let mut end = None;
    for _ in 0..HOPS + 128 {
        let length = *message.get(at)?;
        if length & COMPRESSED == COMPRESSED {
            let target = usize::from(word(message, at)? & 0x3fff);
            end.get_or_insert(at + 2);
            // Only backwards: no circles.
            if target >= at {
                return None;
            }
            at = target;
            continue;
        }
        if length & COMPRESSED != 0 {
            return None;
        }
        if length == 0 {
            let name = HostName::from_ascii(&labels).ok();
            return Some((name, end.unwrap_or(at + 1)));
        }
        let next = at + 1 + usize::from(length);
        if !labels.is_empty() {
            labels.push(b'.');
        }
        labels.extend(message.get(at + 1..next)?);
        if labels.len() > HostName::LONGEST + 1 {
            return None;
        }
        at = next;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn name(text: &str) -> HostName {
        HostName::from_ascii(text.as_bytes()).unwrap()
    }

    fn question(message: &[u8]) -> Question {
        match hear(message) {
            DnsMessage::Question(question) => question,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_question_is_heard_and_its_answer_is_read_back() {
        let asked = ask(7, &name("api.example.com"), A);
        let heard = question(&asked);
        assert_eq!(heard.name, Some(name("api.example.com")));
        let address: IpAddr = "198.18.1.2".parse().unwrap();
        let answer = heard.answer(Code::NoError, Some(address));
        let said = read(&answer, 7, &name("api.example.com"), A);
        assert_eq!(said, Some(DnsReply::Addresses(vec![address], 300)));
        assert_eq!(read(&answer, 8, &name("api.example.com"), A), None);
        assert_eq!(read(&answer, 7, &name("other.example.com"), A), None);
        let none = heard.answer(Code::NoSuchName, None);
        assert_eq!(
            read(&none, 7, &name("api.example.com"), A),
            Some(DnsReply::NoSuchName)
        );
    }

    #[test]
    fn dots_and_other_bytes_in_labels_make_no_name() {
        let mut asked = ask(1, &name("aXb.com"), A);
        asked[HEADER + 2] = b'.';
        assert_eq!(question(&asked).name, None);
        asked[HEADER + 2] = 0;
        assert_eq!(question(&asked).name, None);
    }

    #[test]
    fn answers_and_odd_messages_get_no_address() {
        let mut answer = ask(1, &name("a.com"), A);
        answer[2] |= RESPONSE;
        assert_eq!(hear(&answer), DnsMessage::Nothing);
        let mut two = ask(1, &name("a.com"), A);
        two[5] = 2;
        assert!(matches!(hear(&two), DnsMessage::Answer(bytes) if bytes[3] & 15 == 1));
        let mut status = ask(1, &name("a.com"), A);
        status[2] |= 0x10;
        assert!(matches!(hear(&status), DnsMessage::Answer(bytes) if bytes[3] & 15 == 4));
        // A pointer instead of a name.
        let mut pointer = ask(1, &name("a.com"), A);
        pointer[HEADER] = COMPRESSED;
        assert!(matches!(hear(&pointer), DnsMessage::Answer(_)));
    }

    #[test]
    fn aliases_are_followed_and_addresses_of_others_are_not_taken() {
        let mut message = ask(3, &name("www.example.com"), A);
        message[2] |= RESPONSE;
        message[7] = 3;
        let mut record = |owner: &str, kind: u16, data: &[u8]| {
            for label in owner.split('.') {
                message.push(label.len() as u8);
                message.extend(label.as_bytes());
            }
            message.push(0);
            message.extend(kind.to_be_bytes());
            message.extend(IN.to_be_bytes());
            message.extend(60_u32.to_be_bytes());
            message.extend((data.len() as u16).to_be_bytes());
            message.extend(data);
        };
        record("www.example.com", CNAME, b"\x03cdn\x03net\x00");
        record("evil.net", A, &[6, 6, 6, 6]);
        record("cdn.net", A, &[1, 2, 3, 4]);
        let said = read(&message, 3, &name("www.example.com"), A);
        assert_eq!(
            said,
            Some(DnsReply::Addresses(vec!["1.2.3.4".parse().unwrap()], 60))
        );
    }

    proptest! {
        #[test]
        fn no_bytes_make_the_parsers_panic(bytes in proptest::collection::vec(any::<u8>(), 0..600)) {
            let _ = hear(&bytes);
            let _ = read(&bytes, 0, &name("a.com"), A);
        }

        #[test]
        fn a_changed_question_never_panics(at in 0_usize..40, byte: u8, cut in 0_usize..48) {
            let mut asked = ask(1, &name("some.example.com"), AAAA);
            if let Some(slot) = asked.get_mut(at) {
                *slot = byte;
            }
            asked.truncate(cut);
            let _ = hear(&asked);
        }

        #[test]
        fn a_changed_answer_never_panics(at in 0_usize..80, byte: u8) {
            let heard = question(&ask(1, &name("some.example.com"), A));
            let mut answer = heard.answer(Code::NoError, Some("1.2.3.4".parse().unwrap()));
            if let Some(slot) = answer.get_mut(at) {
                *slot = byte;
            }
            let _ = read(&answer, 1, &name("some.example.com"), A);
        }
    }
}
