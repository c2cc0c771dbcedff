//! First messages of TLS, made byte by byte: no library makes those that should be refused.

/// A first message of TLS with these extensions, in one record.
pub(super) fn hello(extensions: &[Vec<u8>]) -> Vec<u8> {
    let length = |bytes: usize| u16::try_from(bytes).unwrap_or(u16::MAX).to_be_bytes();
    let mut body = vec![3, 3];
    body.extend_from_slice(b"the random number of this hello ");
    // No session, one suite, no compression.
    body.extend_from_slice(&[0, 0, 2, 0x13, 0x01, 1, 0]);
    let all: Vec<u8> = extensions.concat();
    body.extend_from_slice(&length(all.len()));
    body.extend_from_slice(&all);
    let mut message = vec![1, 0];
    message.extend_from_slice(&length(body.len()));
    message.extend_from_slice(&body);
    record(&message)
}

fn record(part: &[u8]) -> Vec<u8> {
    let mut record = vec![22, 3, 1];
    record.extend_from_slice(&u16::try_from(part.len()).unwrap_or(u16::MAX).to_be_bytes());
    record.extend_from_slice(part);
    record
}

pub(super) fn extension(kind: u16, content: &[u8]) -> Vec<u8> {
    let mut bytes = kind.to_be_bytes().to_vec();
    bytes.extend_from_slice(
        &u16::try_from(content.len())
            .unwrap_or(u16::MAX)
            .to_be_bytes(),
    );
    bytes.extend_from_slice(content);
    bytes
}

/// The extension with the server's name; with several, one after another.
pub(super) fn server_names(names: &[&str]) -> Vec<u8> {
    let mut list = Vec::new();
    for name in names {
        list.push(0);
        list.extend_from_slice(&u16::try_from(name.len()).unwrap_or(0).to_be_bytes());
        list.extend_from_slice(name.as_bytes());
    }
    let mut content = u16::try_from(list.len())
        .unwrap_or(0)
        .to_be_bytes()
        .to_vec();
    content.extend_from_slice(&list);
    extension(0, &content)
}

/// The same handshake message, in records of so many bytes.
pub(super) fn split(hello: &[u8], each: usize) -> Vec<u8> {
    let message = hello.get(5..).unwrap_or_default();
    message.chunks(each).flat_map(record).collect()
}
