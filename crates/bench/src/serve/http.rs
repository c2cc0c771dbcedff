//! A client that keeps its connection, and the server that somebody would write in an afternoon: for
//! each request it starts `bwrap`.

use crate::ArmError;
use serde_json::Value;
use std::ffi::OsString;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// How long an answer may take.
const PATIENCE: Duration = Duration::from_secs(120);
/// Most bytes of an answer.
const LONGEST: usize = 16 << 20;

/// A connection to a server.
#[derive(Debug)]
pub(super) struct Client {
    address: SocketAddr,
    key: String,
    stream: Option<BufReader<TcpStream>>,
}

impl Client {
    pub(super) fn new(address: SocketAddr, key: &str) -> Client {
        Client {
            address,
            key: key.to_owned(),
            stream: None,
        }
    }

    /// Sends a request and reads its answer; the text of one that is not JSON is a string.
    pub(super) fn send(
        &mut self,
        method: &str,
        path: &str,
        body: Option<&Value>,
    ) -> Result<Value, ArmError> {
        let body = body.map(ToString::to_string).unwrap_or_default();
        let request = format!(
            "{method} {path} HTTP/1.1\r\nHost: bench\r\nAuthorization: Bearer {}\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
            self.key,
            body.len()
        );
        let answered = self.exchange(request.as_bytes());
        if answered.is_err() {
            self.stream = None;
        }
        let (status, text) = answered.map_err(ArmError::system("use the server"))?;
        if !(200..300).contains(&status) {
            return Err(ArmError::Result(format!(
                "{method} {path} answered {status}: {text}"
            )));
        }
        Ok(serde_json::from_str(&text).unwrap_or(Value::String(text)))
    }

    fn exchange(&mut self, request: &[u8]) -> io::Result<(u16, String)> {
        let stream = match &mut self.stream {
            Some(stream) => stream,
            none => {
                let stream = TcpStream::connect(self.address)?;
                stream.set_nodelay(true)?;
                stream.set_read_timeout(Some(PATIENCE))?;
                none.insert(BufReader::new(stream))
            }
        };
        stream.get_mut().write_all(request)?;
        let wrong = || io::Error::other("the answer is not HTTP");
        let status = line(stream)?;
        let status = status.split(' ').nth(1).and_then(|word| word.parse().ok());
        let status = status.ok_or_else(wrong)?;
        let mut length = 0;
        loop {
            let field = line(stream)?.to_ascii_lowercase();
            if field.is_empty() {
                break;
            }
            if let Some(value) = field.strip_prefix("content-length:") {
                length = value.trim().parse().map_err(|_| wrong())?;
            }
        }
        if length > LONGEST {
            return Err(wrong());
        }
        let mut body = vec![0; length];
        stream.read_exact(&mut body)?;
        Ok((status, String::from_utf8_lossy(&body).into_owned()))
    }
}

fn line(stream: &mut BufReader<TcpStream>) -> io::Result<String> {
    let mut line = String::new();
    if stream.read_line(&mut line)? == 0 {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    Ok(line.trim_end().to_owned())
}

/// What one start of `bwrap` is made of.
#[derive(Debug, Clone)]
pub(super) struct Wrapped {
    pub(super) program: PathBuf,
    pub(super) words: Vec<OsString>,
    pub(super) directory: PathBuf,
}

impl Wrapped {
    pub(super) fn run(&self) -> Result<(), ArmError> {
        run(&self.program, &self.words, &self.directory)
    }
}

/// Runs a program to its end.
pub(super) fn run(program: &Path, words: &[OsString], directory: &Path) -> Result<(), ArmError> {
    let mut command = Command::new(program);
    command.args(words).current_dir(directory);
    let output = command.stdin(Stdio::null()).output();
    let output = output.map_err(ArmError::system("start it"))?;
    match output.status.success() {
        true => Ok(()),
        false => Err(ArmError::Status {
            status: output.status.to_string(),
            complaints: String::from_utf8_lossy(&output.stderr).trim().to_owned(),
        }),
    }
}

/// A server with a thread for each connection, as long as it lives.
#[derive(Debug)]
pub(super) struct NaiveServer {
    pub(super) address: SocketAddr,
    stopping: Arc<AtomicBool>,
}

impl NaiveServer {
    pub(super) fn start(wrapped: Wrapped) -> io::Result<NaiveServer> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let address = listener.local_addr()?;
        let stopping = Arc::new(AtomicBool::new(false));
        let stops = Arc::clone(&stopping);
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                if stops.load(Ordering::Acquire) {
                    break;
                }
                let wrapped = wrapped.clone();
                // A client that leaves ends its thread.
                std::thread::spawn(move || stream.and_then(|stream| answer(stream, &wrapped)));
            }
        });
        Ok(NaiveServer { address, stopping })
    }
}

impl Drop for NaiveServer {
    fn drop(&mut self) {
        self.stopping.store(true, Ordering::Release);
        // It looks at the flag with the next connection.
        let _ = TcpStream::connect(self.address);
    }
}

fn answer(stream: TcpStream, wrapped: &Wrapped) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let mut stream = BufReader::new(stream);
    loop {
        let mut length = 0;
        loop {
            let field = line(&mut stream)?.to_ascii_lowercase();
            if field.is_empty() {
                break;
            }
            if let Some(value) = field.strip_prefix("content-length:") {
                length = value.trim().parse().unwrap_or(0);
            }
        }
        io::copy(&mut (&mut stream).take(length), &mut io::sink())?;
        let (status, body) = match wrapped.run() {
            Ok(()) => ("200 OK", "{\"exit\":0}".to_owned()),
            Err(error) => ("500 Internal Server Error", error.to_string()),
        };
        let head = format!(
            "HTTP/1.1 {status}\r\nContent-Length: {}\r\n\r\n{body}",
            body.len()
        );
        stream.get_mut().write_all(head.as_bytes())?;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_naive_server_answers_with_how_its_command_ended() {
        let wrapped = |program: &str| Wrapped {
            program: program.into(),
            words: Vec::new(),
            directory: "/".into(),
        };
        let good = NaiveServer::start(wrapped("/bin/true")).unwrap();
        let mut client = Client::new(good.address, "");
        for _ in 0..2 {
            let answer = client.send("POST", "/", Some(&Value::Null)).unwrap();
            assert_eq!(answer["exit"], 0);
        }
        let bad = NaiveServer::start(wrapped("/bin/false")).unwrap();
        let refused = Client::new(bad.address, "").send("POST", "/", None);
        assert!(refused.unwrap_err().to_string().contains("500"));
    }
}
