//! Copies the traffic between an agent and its model to a process that reads it.
//!
//! The proxy copies the bytes and goes on: nothing waits for the reader, and nothing of what it
//! does is done here. It reads what strangers write with parsers for JSON, compression and the
//! shell; the proxy holds secrets. So the two are apart, and the reader is forked before there is
//! any. Its messages are believed no further than they are well-formed.

mod message_buffer;
mod process;

use crate::confine::ProxyIds;
use crate::http::Fields;
use crate::traffic_log::TrafficLog;
use ironcage_intent::{Encoding, Format};
use ironcage_model::{HostName, HostRule, Overheard};
use ironcage_plan::Models;
use ironcage_sys::clone::{Forked, Namespaces, exit_now, fork};
use ironcage_sys::rustix::process::getpid;
use message_buffer::MessageBuffer;
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream as Socket;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;
use tokio::net::UnixStream;

/// Bodies that are read at once: what an answer keeps is bounded, and so are all together.
const AT_ONCE: usize = 32;
/// Bytes that may wait for the reader.
const WAITING: usize = 16 << 20;
/// Most bytes of a body in one frame.
const PART: usize = 64 << 10;
/// Longest thing that it says.
const LONGEST: usize = 8000;
/// Bytes of a frame before its content.
const HEAD: usize = 9;

/// What a frame to the reader is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Frame {
    /// A request begins; its encoding.
    Request = 1,
    /// An answer begins; its encoding and its format.
    Answer = 2,
    /// More of a body.
    More = 3,
    /// A body is over.
    End = 4,
    /// Some of a body is missing: the rest says nothing.
    Lost = 5,
}

impl Frame {
    fn read(byte: u8) -> Option<Self> {
        let all = [
            Frame::Request,
            Frame::Answer,
            Frame::More,
            Frame::End,
            Frame::Lost,
        ];
        all.into_iter().find(|frame| *frame as u8 == byte)
    }
}

/// A frame, as it is written.
fn frame(frame: Frame, body: u32, content: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(HEAD + content.len());
    bytes.push(frame as u8);
    bytes.extend(body.to_le_bytes());
    bytes.extend((content.len() as u32).to_le_bytes());
    bytes.extend(content);
    bytes
}

const ENCODINGS: [Encoding; 4] = [
    Encoding::Identity,
    Encoding::Gzip,
    Encoding::Deflate,
    Encoding::Brotli,
];

fn number(encoding: Encoding) -> u8 {
    let place = ENCODINGS.iter().position(|known| *known == encoding);
    place.unwrap_or_default() as u8
}

/// Forks the reader.
///
/// Preconditions: the calling process holds no secret yet, and may still fork.
pub(crate) fn start(models: &Models, ids: Option<ProxyIds>) -> io::Result<OwnedFd> {
    let (ours, theirs) = Socket::pair()?;
    let parent = getpid().as_raw_nonzero().get();
    match fork(Namespaces::NONE, None)? {
        Forked::Child => {
            drop(ours);
            let read = || process::run(models, ids, parent, theirs);
            let ran = catch_unwind(AssertUnwindSafe(read));
            exit_now(i32::from(!matches!(ran, Ok(Ok(())))))
        }
        Forked::Parent { .. } => Ok(ours.into()),
    }
}

/// The reader, as the proxy has it.
#[derive(Debug)]
pub(crate) struct Reader {
    hosts: Vec<HostRule>,
    socket: UnixStream,
    /// Frames that it has not taken yet.
    waiting: RefCell<VecDeque<Vec<u8>>>,
    /// How much of the first of them it has taken.
    taken: Cell<usize>,
    bytes: Cell<usize>,
    bodies: Cell<usize>,
    last: Cell<u32>,
    gone: Cell<bool>,
    /// What came that is never read, by its few kinds: how often, and how much of that was told.
    never: RefCell<BTreeMap<String, (u64, u64)>>,
    traffic_log: Rc<TrafficLog>,
}

impl Reader {
    /// Begins to hear it, in a runtime.
    pub(crate) fn new(
        models: &Models,
        socket: OwnedFd,
        traffic_log: &Rc<TrafficLog>,
    ) -> io::Result<Rc<Self>> {
        let socket = Socket::from(socket);
        socket.set_nonblocking(true)?;
        let reader = Rc::new(Reader {
            hosts: models
                .hosts
                .iter()
                .map(|item| item.what.rule.clone())
                .collect(),
            socket: UnixStream::from_std(socket)?,
            waiting: RefCell::default(),
            taken: Cell::default(),
            bytes: Cell::default(),
            bodies: Cell::default(),
            last: Cell::default(),
            gone: Cell::default(),
            never: RefCell::default(),
            traffic_log: Rc::clone(traffic_log),
        });
        tokio::task::spawn_local(Rc::clone(&reader).hear());
        Ok(reader)
    }

    /// Whether answers of this port of a name are read.
    pub(crate) fn is_for(&self, name: &HostName, port: u16) -> bool {
        self.hosts.iter().any(|host| host.names(name, port))
    }

    /// Reads a request's body, where it is one of a conversation.
    pub(crate) fn request(self: &Rc<Self>, fields: &Fields) -> Option<Watch> {
        is_type(fields, "application/json").then_some(())?;
        let Some(encoding) = encoding(fields) else {
            self.never_read(&format!("a request is {}", encoded(fields)));
            return None;
        };
        self.begin(Frame::Request, &[number(encoding)])
    }

    /// Reads an answer's body, where it is one that can hold calls.
    pub(crate) fn answer(self: &Rc<Self>, status: u16, fields: &Fields) -> Option<Watch> {
        if status != 200 {
            return None;
        }
        let format = match is_type(fields, "text/event-stream") {
            true => Format::Events,
            false if is_type(fields, "application/json") => Format::Document,
            false => return None,
        };
        let Some(encoding) = encoding(fields) else {
            self.never_read(&format!("an answer is {}", encoded(fields)));
            return None;
        };
        let events = u8::from(format == Format::Events);
        self.begin(Frame::Answer, &[number(encoding), events])
    }

    /// From now on something else than HTTP is spoken, of which nothing is read.
    pub(crate) fn switched(&self) {
        self.never_read("a WebSocket was opened; its messages are not read");
    }

    fn begin(self: &Rc<Self>, kind: Frame, content: &[u8]) -> Option<Watch> {
        if self.gone.get() {
            return None;
        }
        if self.bodies.get() >= AT_ONCE {
            self.not_read("too many responses at once");
            return None;
        }
        self.last.set(self.last.get().wrapping_add(1));
        let body = self.last.get();
        let put = self.put(frame(kind, body, content));
        put.then(|| {
            self.bodies.set(self.bodies.get() + 1);
            Watch {
                reader: Rc::clone(self),
                body,
                lost: false,
            }
        })
    }

    fn not_read(&self, why: &str) {
        self.traffic_log.overhear(Overheard::NotRead {
            times: 1,
            why: why.to_owned(),
        });
    }

    /// Something came that is of a kind which is not read. An agent that speaks so does it all the
    /// time: it is told once, and then ever more rarely.
    fn never_read(&self, why: &str) {
        let mut never = self.never.borrow_mut();
        let (count, told) = never.entry(why.to_owned()).or_default();
        *count = count.saturating_add(1);
        if count.is_power_of_two() {
            let times = *count - std::mem::replace(told, *count);
            let why = why.to_owned();
            self.traffic_log.overhear(Overheard::NotRead { times, why });
        }
    }

    /// Hands a frame over, now or when it is taken. `false` where there is no room.
    fn put(self: &Rc<Self>, frame: Vec<u8>) -> bool {
        if self.gone.get() || self.bytes.get() + frame.len() > WAITING {
            return false;
        }
        self.put_always(frame);
        true
    }

    /// The same, for the few bytes of an end: without it the reader would keep a body for good.
    fn put_always(self: &Rc<Self>, frame: Vec<u8>) {
        if self.gone.get() {
            return;
        }
        self.bytes.set(self.bytes.get() + frame.len());
        let idle = self.waiting.borrow().is_empty();
        self.waiting.borrow_mut().push_back(frame);
        if idle && !self.drain() {
            let reader = Rc::clone(self);
            tokio::task::spawn_local(async move {
                while !reader.drain() {
                    if reader.socket.writable().await.is_err() {
                        return reader.lose();
                    }
                }
            });
        }
    }

    /// Hands over what is taken now. `false` while something is left.
    fn drain(&self) -> bool {
        let mut waiting = self.waiting.borrow_mut();
        while let Some(first) = waiting.front() {
            let rest = first.get(self.taken.get()..).unwrap_or_default();
            match self.socket.try_write(rest) {
                Ok(count) if count == rest.len() => {
                    self.bytes.set(self.bytes.get().saturating_sub(first.len()));
                    self.taken.set(0);
                    waiting.pop_front();
                }
                Ok(count) => self.taken.set(self.taken.get() + count),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return false,
                Err(_) => {
                    drop(waiting);
                    self.lose();
                    return true;
                }
            }
        }
        true
    }

    /// It is gone: nothing more is read, which is told.
    fn lose(&self) {
        self.waiting.borrow_mut().clear();
        self.bytes.set(0);
        if !self.gone.replace(true) {
            self.not_read("the process that reads responses ended");
        }
    }

    /// Hears what it says, to its end.
    async fn hear(self: Rc<Self>) {
        let mut heard = MessageBuffer::default();
        let mut part = vec![0; 4096];
        loop {
            if self.socket.readable().await.is_err() {
                return self.lose();
            }
            match self.socket.try_read(&mut part) {
                Ok(0) => return self.lose(),
                Ok(count) => {
                    let told = heard.take(part.get(..count).unwrap_or_default());
                    let Ok(told) = told else {
                        return self.lose();
                    };
                    for overheard in told {
                        self.traffic_log.overhear(overheard);
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(_) => return self.lose(),
            }
        }
    }
}

/// One body that is read while it passes. Dropping it says that it is over.
#[derive(Debug)]
pub(crate) struct Watch {
    reader: Rc<Reader>,
    body: u32,
    lost: bool,
}

impl Watch {
    pub(crate) fn went(&mut self, bytes: &[u8]) {
        for part in bytes.chunks(PART) {
            if !self.lost && !self.reader.put(frame(Frame::More, self.body, part)) {
                self.lost = true;
                if !self.reader.gone.get() {
                    self.reader
                        .not_read("responses arrived faster than they can be read");
                }
            }
        }
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        let bodies = &self.reader.bodies;
        bodies.set(bodies.get().saturating_sub(1));
        let end = match self.lost {
            true => Frame::Lost,
            false => Frame::End,
        };
        self.reader.put_always(frame(end, self.body, &[]));
    }
}

fn field<'a>(fields: &'a Fields, name: &str) -> Option<&'a str> {
    let mut found = fields.iter().filter(|(known, _)| known == name);
    let first = found.next()?;
    // Which of two is meant is not known.
    found.next().is_none().then_some(())?;
    std::str::from_utf8(&first.1).ok()
}

fn is_type(fields: &Fields, wanted: &str) -> bool {
    let said = field(fields, "content-type").unwrap_or_default();
    let plain = said.split(';').next().unwrap_or_default();
    plain.trim().eq_ignore_ascii_case(wanted)
}

/// How something is encoded that is not read, for the record: a name is told as it is where it is
/// one of those that are common.
fn encoded(fields: &Fields) -> String {
    match field(fields, "content-encoding").map(|name| name.trim().to_ascii_lowercase()) {
        Some(name) if matches!(name.as_str(), "zstd" | "compress") => {
            format!("encoded as {name}, which is not read")
        }
        _ => "encoded in a way that is not read".to_owned(),
    }
}

fn encoding(fields: &Fields) -> Option<Encoding> {
    match fields.iter().any(|(name, _)| name == "content-encoding") {
        true => Encoding::named(field(fields, "content-encoding")?),
        false => Some(Encoding::Identity),
    }
}
