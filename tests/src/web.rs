//! A web server on the host's loopback that cages reach through the door.

use std::io::{BufRead, BufReader, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex};

/// An address of the loopback that no other test has.
pub fn own_address() -> Ipv4Addr {
    static NEXT: AtomicU8 = AtomicU8::new(1);
    let pid = std::process::id();
    let next = NEXT.fetch_add(1, Ordering::Relaxed);
    Ipv4Addr::new(127, 64 + (pid / 250 % 64) as u8, (pid % 250) as u8, next)
}

/// A server that answers every request of HTTP with its name, and remembers who asked.
#[derive(Debug)]
pub struct Web {
    /// Where it listens.
    pub address: SocketAddr,
    heard: Arc<Mutex<Vec<String>>>,
}

impl Web {
    /// Starts one on a port of an address of its own; 0 is any.
    ///
    /// # Panics
    /// When it cannot.
    pub fn start(port: u16) -> Web {
        let listener = TcpListener::bind((own_address(), port)).expect("an address");
        Web::on(listener)
    }

    /// Starts one on a listening socket.
    ///
    /// # Panics
    /// When it cannot.
    pub fn on(listener: TcpListener) -> Web {
        let address = listener.local_addr().expect("an address");
        let heard = Arc::new(Mutex::new(Vec::new()));
        let notes = Arc::clone(&heard);
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let notes = Arc::clone(&notes);
                std::thread::spawn(move || answer(stream, &notes));
            }
        });
        Web { address, heard }
    }

    /// Whom it was asked for.
    ///
    /// # Panics
    /// When a test has panicked meanwhile.
    pub fn heard(&self) -> Vec<String> {
        self.heard.lock().expect("a list").clone()
    }

    /// Flags that lead a name here.
    pub fn flags(&self, name: &str) -> Vec<String> {
        let (ip, port) = (self.address.ip(), self.address.port());
        [
            "--allow-host",
            &format!("{name}:{port}"),
            "--allow-host",
            &format!("{ip}:{port}"),
            "--resolve",
            &format!("{name}={ip}"),
        ]
        .map(str::to_owned)
        .to_vec()
    }
}

fn answer(stream: TcpStream, notes: &Mutex<Vec<String>>) {
    let mut writer = stream.try_clone().expect("a copy");
    let mut lines = BufReader::new(stream).lines();
    let mut host = String::new();
    while let Some(Ok(line)) = lines.next() {
        if let Some(value) = line.strip_prefix("host: ").or(line.strip_prefix("Host: ")) {
            host = value.to_owned();
        }
        if line.is_empty() {
            notes.lock().expect("a list").push(host.clone());
            let body = format!("hello {host}\n");
            let length = body.len();
            let _ = write!(
                writer,
                "HTTP/1.1 200 OK\r\nContent-Length: {length}\r\n\r\n{body}"
            );
        } else if line.starts_with("raw") {
            notes.lock().expect("a list").push(line.clone());
            let _ = writeln!(writer, "got {line}");
        }
    }
}

/// Flags as they are given.
pub fn refs(flags: &[String]) -> Vec<&str> {
    flags.iter().map(String::as_str).collect()
}
