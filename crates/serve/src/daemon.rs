//! The service's side of the daemon in a cage: connections by a relay, and requests over them.
//!
//! Everything that comes from there is the agent's word: it is bounded, and nothing waits for it
//! without a deadline.

use crate::answers;
use crate::error::{ApiError, ApiResult, Code};
use bytes::{Buf, BytesMut};
use ironcage_cage_daemon::protocol::{self, Failure, HEADER, Kind, Reply, Request};
use ironcage_client::{Cages, Connection};
use ironcage_control::{Bytes, ExecRequest, ExecStreams};
use ironcage_model::CageId;
use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::unix::pipe;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// How long a relay may take to start.
const START: Duration = Duration::from_secs(15);
/// How long the daemon may take to answer a request that does not wait for anything.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);
/// Connections to one cage at once.
const MOST_LINKS: usize = 128;
/// Connections that are kept for the next request, and for how long.
const MOST_IDLE: usize = 4;
const IDLE: Duration = Duration::from_secs(60);
/// Replies to one request that are collected, their bytes, and how long all of them may take.
const MOST_REPLIES: usize = 20_000;
const MOST_BYTES: usize = 32 << 20;
const ALL_REPLIES: Duration = Duration::from_secs(300);

/// The way to the daemon of one cage.
#[derive(Debug)]
pub(crate) struct Daemon {
    cage: CageId,
    /// The relay's command.
    relay: Vec<String>,
    idle: Mutex<Vec<(Instant, Pipes)>>,
    links: Arc<Semaphore>,
}

/// Both directions of a connection, and the exec that it is.
#[derive(Debug)]
struct Pipes {
    to: pipe::Sender,
    from: pipe::Receiver,
    /// What has come, up to a part of a frame.
    came: BytesMut,
    _exec: Connection,
}

impl Pipes {
    /// Whether the other side is there, and says nothing unasked.
    fn live(&self) -> bool {
        let mut byte = [0];
        matches!(self.from.try_read(&mut byte), Err(error) if error.kind() == io::ErrorKind::WouldBlock)
    }
}

/// A connection while it is used.
#[derive(Debug)]
pub(crate) struct Link {
    daemon: Arc<Daemon>,
    pipes: Option<Pipes>,
    _permit: OwnedSemaphorePermit,
}

/// What comes over a connection.
#[derive(Debug)]
pub(crate) enum Received {
    Reply(Reply),
    Data(Kind, Vec<u8>),
    /// The request is carried out.
    Done,
}

impl Daemon {
    pub(crate) fn new(cage: CageId, relay: Vec<String>) -> Arc<Daemon> {
        Arc::new(Daemon {
            cage,
            relay,
            idle: Mutex::default(),
            links: Arc::new(Semaphore::new(MOST_LINKS)),
        })
    }

    fn take_idle(&self) -> Option<Pipes> {
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        while let Some((since, pipes)) = idle.pop() {
            if pipes.live() && since.elapsed() < IDLE {
                return Some(pipes);
            }
        }
        None
    }

    /// Keeps the connections that live for another while. Whether there is one.
    pub(crate) fn renew_idle(&self) -> bool {
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        idle.retain_mut(|(since, pipes)| {
            *since = Instant::now();
            pipes.live()
        });
        !idle.is_empty()
    }

    /// Drops connections that nobody used for a while.
    pub(crate) fn drop_idle(&self, all: bool) {
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        idle.retain(|(since, _)| !all && since.elapsed() < IDLE);
    }

    async fn link(self: &Arc<Self>) -> ApiResult<Link> {
        let permit = Arc::clone(&self.links).try_acquire_owned().map_err(|_| {
            ApiError::new(
                Code::LimitReached,
                format!(
                    "cage {} has {MOST_LINKS} open connections already",
                    self.cage
                ),
            )
        })?;
        let pipes = match self.take_idle() {
            Some(pipes) => pipes,
            None => {
                let (cage, relay) = (self.cage.clone(), self.relay.clone());
                let started = tokio::task::spawn_blocking(move || connect(&cage, relay));
                let ends = started
                    .await
                    .map_err(|error| ApiError::internal("connect to the cage", &error))??;
                ends.pipes()?
            }
        };
        Ok(Link {
            daemon: Arc::clone(self),
            pipes: Some(pipes),
            _permit: permit,
        })
    }

    /// Sends a request; the answer is read from the connection.
    pub(crate) async fn send(self: &Arc<Self>, request: &Request) -> ApiResult<Link> {
        let mut link = self.link().await?;
        let body = serde_json::to_vec(request)
            .map_err(|error| ApiError::internal("encode a request", &error))?;
        if body.len() > protocol::MAX_PAYLOAD {
            return Err(ApiError::new(
                Code::TooLarge,
                format!("the request is longer than {} bytes", protocol::MAX_PAYLOAD),
            ));
        }
        link.write(Kind::Json, &body).await?;
        Ok(link)
    }

    /// Sends a request and collects its replies.
    pub(crate) async fn ask(self: &Arc<Self>, request: &Request) -> ApiResult<Vec<Reply>> {
        self.send(request).await?.replies().await
    }

    /// Sends a request that has one reply.
    pub(crate) async fn ask_one(self: &Arc<Self>, request: &Request) -> ApiResult<Reply> {
        let reply = self.ask(request).await?.into_iter().next();
        reply.ok_or_else(|| self.garbled("the answer is missing"))
    }

    pub(crate) fn garbled(&self, what: &str) -> ApiError {
        ApiError::new(
            Code::CageUnresponsive,
            format!(
                "the daemon of cage {} does not answer as it should: {what}",
                self.cage
            ),
        )
    }

    fn lost(&self, error: &io::Error) -> ApiError {
        ApiError::new(
            Code::CageUnresponsive,
            format!("the connection to cage {} ended: {error}", self.cage),
        )
    }
}

/// The ends of the streams of a relay.
struct Ends {
    to: std::os::fd::OwnedFd,
    from: std::os::fd::OwnedFd,
    exec: Connection,
}

impl Ends {
    fn pipes(self) -> ApiResult<Pipes> {
        let wrong = |error: io::Error| ApiError::internal("use the streams of the relay", &error);
        Ok(Pipes {
            to: pipe::Sender::from_owned_fd(self.to).map_err(wrong)?,
            from: pipe::Receiver::from_owned_fd(self.from).map_err(wrong)?,
            came: BytesMut::new(),
            _exec: self.exec,
        })
    }
}

fn connect(cage: &CageId, relay: Vec<String>) -> ApiResult<Ends> {
    let exec = Cages::of_user()?.connect(cage)?;
    let request = ExecRequest {
        argv: relay
            .into_iter()
            .map(|word| Bytes(word.into_bytes()))
            .collect(),
        env: Vec::new(),
        cwd: None,
        streams: ExecStreams::Pipes { input: true },
        scope: None,
    };
    let mut ends = exec.start_exec(request, START)?.into_iter();
    match (ends.next(), ends.next()) {
        (Some(to), Some(from)) => Ok(Ends { to, from, exec }),
        _ => Err(ApiError::new(
            Code::Internal,
            "the supervisor gave no streams",
        )),
    }
}

impl Link {
    fn pipes(&mut self) -> ApiResult<&mut Pipes> {
        let ended = || {
            ApiError::new(
                Code::CageUnresponsive,
                "the connection to the cage has ended",
            )
        };
        self.pipes.as_mut().ok_or_else(ended)
    }

    pub(crate) async fn write(&mut self, kind: Kind, payload: &[u8]) -> ApiResult<()> {
        let written = tokio::time::timeout(PATIENCE, self.write_waiting(kind, payload)).await;
        match written {
            Ok(written) => written,
            Err(_) => {
                self.pipes = None;
                Err(self.silent())
            }
        }
    }

    /// The same, however long the other side does not read.
    pub(crate) async fn write_waiting(&mut self, kind: Kind, payload: &[u8]) -> ApiResult<()> {
        let daemon = Arc::clone(&self.daemon);
        let lost = |error: io::Error| daemon.lost(&error);
        let frame = protocol::frame(kind, payload).map_err(lost)?;
        self.pipes()?.to.write_all(&frame).await.map_err(lost)
    }

    /// Writes data of any length.
    pub(crate) async fn write_data(&mut self, bytes: &[u8]) -> ApiResult<()> {
        for chunk in bytes.chunks(protocol::CHUNK) {
            self.write(Kind::Data, chunk).await?;
        }
        Ok(())
    }

    fn silent(&self) -> ApiError {
        ApiError::new(
            Code::Timeout,
            format!("the daemon of cage {} does not answer", self.daemon.cage),
        )
    }

    /// Waits for what comes next, at most for a while.
    pub(crate) async fn receive(&mut self, patience: Option<Duration>) -> ApiResult<Received> {
        Ok(self.receive_sized(patience).await?.0)
    }

    /// The same, with the bytes that it had on its way.
    async fn receive_sized(&mut self, patience: Option<Duration>) -> ApiResult<(Received, usize)> {
        let frame = self.frame();
        let (kind, payload) = match patience {
            Some(patience) => match tokio::time::timeout(patience, frame).await {
                Ok(frame) => frame?,
                Err(_) => {
                    self.pipes = None;
                    return Err(self.silent());
                }
            },
            None => frame.await?,
        };
        let length = payload.len();
        if kind != Kind::Json {
            return Ok((Received::Data(kind, payload), length));
        }
        let reply: Reply = serde_json::from_slice(&payload)
            .map_err(|error| self.daemon.garbled(&error.to_string()))?;
        match reply {
            Reply::Done => {
                self.keep();
                Ok((Received::Done, length))
            }
            Reply::Failed(Failure { code, message }) => {
                self.keep();
                Err(Failure { code, message }.into())
            }
            reply => Ok((Received::Reply(reply), length)),
        }
    }

    /// The next frame. What has come of it stays where waiting for it is given up.
    async fn frame(&mut self) -> ApiResult<(Kind, Vec<u8>)> {
        let daemon = Arc::clone(&self.daemon);
        let lost = |error: io::Error| daemon.lost(&error);
        let Pipes { from, came, .. } = self.pipes()?;
        loop {
            if let Some(header) = came.first_chunk::<HEADER>() {
                let (kind, length) = protocol::header(*header).map_err(lost)?;
                if came.len() >= HEADER + length {
                    came.advance(HEADER);
                    return Ok((kind, came.split_to(length).to_vec()));
                }
            }
            if from.read_buf(came).await.map_err(lost)? == 0 {
                return Err(lost(io::ErrorKind::UnexpectedEof.into()));
            }
        }
    }

    /// Collects the replies to a request without data.
    pub(crate) async fn replies(mut self) -> ApiResult<Vec<Reply>> {
        let collected = tokio::time::timeout(ALL_REPLIES, self.collect()).await;
        collected.unwrap_or_else(|_| Err(self.silent()))
    }

    async fn collect(&mut self) -> ApiResult<Vec<Reply>> {
        let (mut replies, mut bytes) = (Vec::new(), 0);
        loop {
            let (received, length) = self.receive_sized(Some(PATIENCE)).await?;
            bytes += length;
            if bytes > MOST_BYTES {
                return Err(ApiError::new(
                    Code::TooLarge,
                    format!("the answer of the cage is longer than {MOST_BYTES} bytes"),
                )
                .hint("ask for less: a directory with fewer files, or fewer levels"));
            }
            match received {
                Received::Done => return Ok(replies),
                Received::Reply(reply) if replies.len() < MOST_REPLIES => {
                    answers::hold(length)?;
                    replies.push(reply);
                }
                Received::Reply(_) => return Err(self.daemon.garbled("too many replies")),
                Received::Data(..) => return Err(self.daemon.garbled("data without a question")),
            }
        }
    }

    /// Keeps the connection for the next request.
    fn keep(&mut self) {
        // More than was asked for: not a connection to go on with.
        let Some(pipes) = self.pipes.take().filter(|pipes| pipes.came.is_empty()) else {
            return;
        };
        let mut idle = self
            .daemon
            .idle
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        if idle.len() < MOST_IDLE {
            idle.push((Instant::now(), pipes));
        }
    }
}
