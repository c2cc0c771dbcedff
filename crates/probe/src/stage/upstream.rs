//! The HTTP proxy of the user's network, on the host's loopback: it leads everybody who knows its
//! password to every host, and its error pages repeat what it was asked.

use super::log::{Channel, HitLog};
use super::{StageError, allowed, making};
use std::io::{self, Read as _, Write as _};
use std::net::{Ipv4Addr, Shutdown, TcpListener, TcpStream};
use std::thread;

/// Where it listens, on the stage's own loopback.
pub(crate) const PORT: u16 = 8476;
/// Who it is known to.
pub(crate) const USER: &str = "stage";

/// Its URL, as somebody's environment has it.
pub(crate) fn url(password: &str) -> String {
    format!("http://{USER}:{password}@127.0.0.1:{PORT}")
}

/// Listens until the process ends.
pub(super) fn start(log: &HitLog) -> Result<(), StageError> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, PORT))
        .map_err(making("a stand-in for an upstream proxy"))?;
    let log = log.clone();
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let log = log.clone();
            // A client that went away is an end like any other.
            thread::spawn(move || drop(serve(stream, &log)));
        }
    });
    Ok(())
}

/// Where a request leads.
fn destination(head: &str) -> Option<&str> {
    let target = head.split(' ').nth(1)?;
    let rest = target.strip_prefix("http://").unwrap_or(target);
    rest.split('/').next()
}

/// Whether the policy of the probes names it.
fn is_allowed(destination: &str) -> bool {
    let name = destination.strip_suffix(":80").unwrap_or(destination);
    name == allowed::NAME
}

fn serve(mut client: TcpStream, log: &HitLog) -> io::Result<()> {
    const LONGEST: usize = 64 << 10;
    let mut head = Vec::new();
    let mut byte = [0];
    while !head.ends_with(b"\r\n\r\n") && head.len() < LONGEST {
        client.read_exact(&mut byte)?;
        head.push(byte[0]);
    }
    let head = String::from_utf8_lossy(&head).into_owned();
    let destination = destination(&head).unwrap_or_default();
    let is_tunnel = head.starts_with("CONNECT ");
    if !(is_allowed(destination) && is_tunnel) {
        log.note(Channel::Upstream, format!("asked for {destination}"));
        let answer = format!(
            "HTTP/1.1 403 Forbidden\r\nContent-Length: {}\r\n\r\n{head}",
            head.len()
        );
        return client.write_all(answer.as_bytes());
    }
    let mut server = TcpStream::connect((Ipv4Addr::LOCALHOST, 80))?;
    client.write_all(b"HTTP/1.1 200 Connection established\r\n\r\n")?;
    let (mut up, mut down) = (client.try_clone()?, server.try_clone()?);
    thread::spawn(move || io::copy(&mut up, &mut down));
    io::copy(&mut server, &mut client)?;
    client.shutdown(Shutdown::Both)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_named_host_is_allowed() {
        for (head, allows) in [
            ("CONNECT allowed.test:80 HTTP/1.1\r\n", true),
            ("CONNECT allowed.test:22 HTTP/1.1\r\n", false),
            ("GET http://allowed.test/x HTTP/1.1\r\n", true),
            ("CONNECT hidden.test:80 HTTP/1.1\r\n", false),
            ("GET http://hidden.test/x HTTP/1.1\r\n", false),
            ("", false),
        ] {
            assert_eq!(
                is_allowed(destination(head).unwrap_or_default()),
                allows,
                "{head}"
            );
        }
        assert!(url("word").contains("stage:word@127.0.0.1:"));
    }
}
