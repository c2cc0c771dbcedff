//! The client side of the control socket: finds cages, sends requests, and relays streams.
//!
//! Tool calls at the MCP gateway wait in files of the state directory, which it reads and answers too.
//!
//! The client is a process of the user on the host. It gets the outer ends of streams and relays them
//! itself, so that no bytes pass through the supervisor.
#![forbid(unsafe_code)]

mod attach;
mod call;
mod exec;
mod hold;
mod leases;
mod logs;
mod network;
mod tool_calls;

pub use attach::{Attachment, attach};
pub use call::{Called, MOST_OUTPUT, call};
pub use exec::{ExecEnd, ExecOptions, ScopeOptions, exec};
pub use hold::FrozenCage;
pub use leases::{
    Ended, approve, deny, grant, grant_for_call, grant_path, grant_port, leases, open_path,
    questions, revoke,
};
pub use logs::{LogOptions, logs};
pub use network::Watch;
pub use tool_calls::{ToolCallError, WaitingCall, WaitingCalls};

use ironcage_audit::{Container, NoStateDir};
use ironcage_control::DeniedLease;
use ironcage_control::{
    Channel, Description, Dialled, Entry, Packet, PlaceError, Reply, Request, RuntimeDir,
};
use ironcage_model::{CageId, Ending, Printable};
use ironcage_state::Archive;
use ironcage_sys::rustix::event::{PollFd, PollFlags, Timespec, poll};
use ironcage_sys::rustix::io::Errno;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// How long a supervisor may take to answer a question. It has nothing else to do, unless it was
/// stopped.
const PATIENCE: Duration = Duration::from_secs(2);

/// Why a cage could not be asked.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// There is no place to look.
    #[error(transparent)]
    StateDir(#[from] NoStateDir),
    /// The runtime directory cannot be used.
    #[error(transparent)]
    Place(#[from] PlaceError),
    /// What is kept of background cages cannot be read or removed.
    #[error("cannot use what is kept of background cages")]
    Archive(#[source] io::Error),
    /// The record of a cage cannot be read.
    #[error(transparent)]
    Audit(#[from] ironcage_audit::Error),
    /// No cage has this id or name.
    #[error("no cage has the id or name `{}`", text.escape_debug())]
    NotFound { text: String },
    /// Several have.
    #[error("`{}` may be any of {}", text.escape_debug(), list(matches))]
    Ambiguous {
        text: String,
        /// Which cages it fits.
        matches: Vec<CageId>,
    },
    /// What is to be leased is not there, or cannot be opened.
    #[error("cannot open {}, which is to be leased", Printable::new(path))]
    Path { path: PathBuf, source: io::Error },
    /// The cage is over.
    #[error("the cage {id} is not running")]
    NotRunning { id: CageId },
    /// An engine runs it, and nobody of Ironcage's is there to ask.
    #[error(
        "{id} is container {} of an engine: it has no supervisor, leases or egress proxy",
        Printable::new(container)
    )]
    Container {
        id: CageId,
        /// Its ID, as the engine has it.
        container: String,
    },
    /// The supervisor does not answer.
    #[error("the supervisor of {id} does not answer; it may be stopped (Ctrl-Z), or busy")]
    Silent { id: CageId },
    /// The supervisor ended while it was asked.
    #[error("the supervisor of {id} ended without an answer; its cage is gone with it")]
    Gone { id: CageId },
    /// A scope was not given what it was to have.
    #[error("{}", not_given(refused))]
    NotGiven { refused: Vec<DeniedLease> },
    #[error("the cage refused: {reason}")]
    Refused { reason: ironcage_model::Reason },
    /// It said something else than was asked.
    #[error("the supervisor's answer makes no sense: {0}")]
    Answer(String),
    /// Something of the system's failed.
    #[error("cannot {action}")]
    System {
        action: &'static str,
        source: io::Error,
    },
}

/// What was not given, in words.
fn not_given(refused: &[DeniedLease]) -> String {
    let one = |one: &DeniedLease| {
        let reason = &one.reason;
        format!("{} was not given: {reason}", one.resource)
    };
    refused.iter().map(one).collect::<Vec<_>>().join("; ")
}

fn list(ids: &[CageId]) -> String {
    let ids: Vec<&str> = ids.iter().map(CageId::as_str).collect();
    ids.join(", ")
}

fn system<E: Into<io::Error>>(action: &'static str) -> impl FnOnce(E) -> ClientError {
    move |source| ClientError::System {
        action,
        source: source.into(),
    }
}

/// The cages of this user.
#[derive(Debug)]
pub struct Cages {
    runtime: RuntimeDir,
    archive: Archive,
    audit: PathBuf,
}

/// A running cage, as it was found.
#[derive(Debug)]
pub enum RunningCage {
    Answered(Box<Description>),
    /// It has a supervisor, which does not answer.
    Silent {
        id: CageId,
        /// Its supervisor's process id.
        supervisor: u32,
    },
}

impl RunningCage {
    pub fn id(&self) -> &CageId {
        match self {
            RunningCage::Answered(description) => &description.id,
            RunningCage::Silent { id, .. } => id,
        }
    }
}

impl Cages {
    /// Those of the user who asks.
    pub fn of_user() -> Result<Self, ClientError> {
        let state = ironcage_audit::state_dir()?;
        Ok(Cages {
            runtime: RuntimeDir::of_user(&state),
            archive: Archive::in_state(&state),
            audit: ironcage_audit::audit_dir()?,
        })
    }

    /// What is kept of background cages.
    pub fn archive(&self) -> &Archive {
        &self.archive
    }

    /// Where records are.
    pub fn audit(&self) -> &std::path::Path {
        &self.audit
    }

    /// Every running cage. What killed supervisors left is removed on the way.
    pub fn running(&self) -> Result<Vec<RunningCage>, ClientError> {
        self.runtime.sweep()?;
        let deadline = Instant::now() + PATIENCE;
        let mut asked = Vec::new();
        for entry in self.runtime.entries()? {
            match RuntimeDir::dial(&entry)? {
                Dialled::Open(channel) => {
                    // Who cannot take a question does not answer either.
                    let _ = channel.send(&Request::Describe, &[]);
                    asked.push((entry, Some(channel)));
                }
                Dialled::Busy => asked.push((entry, None)),
                Dialled::Dead => {}
            }
        }
        let mut found = Vec::new();
        for (entry, channel) in asked {
            let connection = channel.map(|channel| Connection {
                channel,
                id: entry.id.clone(),
            });
            let answer = match &connection {
                Some(connection) => connection.receive(Some(deadline)),
                None => Err(ClientError::Silent {
                    id: entry.id.clone(),
                }),
            };
            match answer {
                Ok((Reply::Description(description), _)) => {
                    found.push(RunningCage::Answered(description));
                }
                // It ended meanwhile.
                Err(ClientError::Gone { .. }) => {}
                _ => found.push(RunningCage::Silent {
                    id: entry.id,
                    supervisor: entry.supervisor,
                }),
            }
        }
        Ok(found)
    }

    /// Whether a cage has a living supervisor.
    pub fn is_running(&self, id: &CageId) -> Result<bool, ClientError> {
        Ok(matches!(
            self.dial(id)?,
            Some(Dialled::Open(_) | Dialled::Busy)
        ))
    }

    fn entry(&self, id: &CageId) -> Result<Option<Entry>, ClientError> {
        let entries = self.runtime.entries()?;
        Ok(entries.into_iter().find(|entry| entry.id == *id))
    }

    fn dial(&self, id: &CageId) -> Result<Option<Dialled>, ClientError> {
        match self.entry(id)? {
            Some(entry) => Ok(Some(RuntimeDir::dial(&entry)?)),
            None => Ok(None),
        }
    }

    /// The cage that a user means: an id, the name of a running one or else of one of which
    /// something is kept, or the beginning of just one id.
    pub fn find(&self, text: &str) -> Result<CageId, ClientError> {
        if let Ok(id) = text.parse() {
            return Ok(id);
        }
        if let Some(id) = self.runtime.named(text) {
            return Ok(id);
        }
        let kept = self.archive.list().map_err(ClientError::Archive)?;
        let mut ids: Vec<CageId> = self.runtime.entries()?.into_iter().map(|e| e.id).collect();
        ids.extend(kept.iter().cloned());
        let containers = self.containers()?;
        if let Some(named) = containers.iter().find(|container| container.id == text) {
            return Ok(named.cage.clone());
        }
        ids.extend(containers.iter().map(|container| container.cage.clone()));
        ids.sort();
        ids.dedup();
        let named = || {
            let summaries = kept.iter().filter_map(|id| {
                let summary = ironcage_audit::summary(&self.audit, id).ok()?;
                (summary.name.as_deref() == Some(text)).then_some((summary.time, id.clone()))
            });
            summaries.max().map(|(_, id)| id)
        };
        let mut matches = ids;
        // An engine's own ID may be shortened, too.
        let of_engine = |id: &CageId| {
            let mut containers = containers.iter();
            containers.any(|container| container.cage == *id && container.id.starts_with(text))
        };
        matches.retain(|id| !text.is_empty() && (id.as_str().starts_with(text) || of_engine(id)));
        match matches.as_slice() {
            [only] => Ok(only.clone()),
            [] => named().ok_or_else(|| ClientError::NotFound {
                text: text.to_owned(),
            }),
            _ => Err(ClientError::Ambiguous {
                text: text.to_owned(),
                matches,
            }),
        }
    }

    /// Connects to a running cage.
    pub fn connect(&self, id: &CageId) -> Result<Connection, ClientError> {
        match self.dial(id)? {
            Some(Dialled::Open(channel)) => Ok(Connection {
                channel,
                id: id.clone(),
            }),
            Some(Dialled::Busy) => Err(ClientError::Silent { id: id.clone() }),
            Some(Dialled::Dead) | None => Err(match self.container(id)? {
                Some(container) => ClientError::Container {
                    id: id.clone(),
                    container: container.id,
                },
                None => ClientError::NotRunning { id: id.clone() },
            }),
        }
    }

    /// The containers that engines made with Ironcage's runtime, and that exist. Notes about others
    /// stay: it is for the runtime to say that one is gone.
    pub fn containers(&self) -> Result<Vec<Container>, ClientError> {
        let mut found = ironcage_audit::containers(&self.audit)?;
        found.retain(Container::exists);
        Ok(found)
    }

    /// The container that a cage ID stands for.
    pub fn container(&self, id: &CageId) -> Result<Option<Container>, ClientError> {
        let found = ironcage_audit::container(&self.audit, id)?;
        Ok(found.filter(Container::exists))
    }

    /// How a cage ended, as its record says; `None` when it was killed together with its
    /// supervisor, who could not say.
    pub fn ending(&self, id: &CageId) -> Result<Option<Ending>, ClientError> {
        Ok(ironcage_audit::summary(&self.audit, id)?.ending)
    }
}

/// A connection to one cage's supervisor.
#[derive(Debug)]
pub struct Connection {
    channel: Channel,
    id: CageId,
}

impl Connection {
    pub fn id(&self) -> &CageId {
        &self.id
    }

    pub fn send(&self, request: &Request) -> Result<(), ClientError> {
        self.send_with(request, &[])
    }

    fn send_with(
        &self,
        request: &Request,
        descriptors: &[BorrowedFd<'_>],
    ) -> Result<(), ClientError> {
        match self.channel.send(request, descriptors) {
            Ok(()) => Ok(()),
            // Who was refused finds why in what was said before the end.
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => {
                Err(self.take().err().unwrap_or_else(|| self.gone()))
            }
            Err(error) => Err(system("ask the supervisor")(error)),
        }
    }

    fn gone(&self) -> ClientError {
        ClientError::Gone {
            id: self.id.clone(),
        }
    }

    /// Asks and waits for the answer.
    pub fn ask(&self, request: &Request) -> Result<Reply, ClientError> {
        self.send(request)?;
        Ok(self.receive(Some(Instant::now() + PATIENCE))?.0)
    }

    /// Asks with descriptors beside the request, and waits for the answer.
    pub fn ask_with(
        &self,
        request: &Request,
        descriptors: &[BorrowedFd<'_>],
    ) -> Result<Reply, ClientError> {
        self.send_with(request, descriptors)?;
        Ok(self.receive(Some(Instant::now() + PATIENCE))?.0)
    }

    /// Waits until the cage is gone.
    pub fn await_end(&self) -> Result<Ending, ClientError> {
        loop {
            if let (Reply::Ended(ending), _) = self.receive(None)? {
                return Ok(ending);
            }
        }
    }

    /// Takes the next answer, waiting for it, at most until a deadline.
    fn receive(&self, deadline: Option<Instant>) -> Result<(Reply, Vec<OwnedFd>), ClientError> {
        loop {
            if let Some(answer) = self.take()? {
                return Ok(answer);
            }
            let timeout = deadline
                .map(|at| Timespec::try_from(at.saturating_duration_since(Instant::now())))
                .transpose()
                .map_err(|error| system("wait for the supervisor")(io::Error::other(error)))?;
            let mut fds = [PollFd::new(&self.channel, PollFlags::IN)];
            match poll(&mut fds, timeout.as_ref()) {
                Ok(0) => {
                    return Err(ClientError::Silent {
                        id: self.id.clone(),
                    });
                }
                Ok(_) | Err(Errno::INTR) => {}
                Err(error) => return Err(system("wait for the supervisor")(error)),
            }
        }
    }

    /// Takes an answer if there is one.
    fn take(&self) -> Result<Option<(Reply, Vec<OwnedFd>)>, ClientError> {
        let packet = self.channel.receive::<Reply>(false);
        match packet.map_err(system("hear the supervisor"))? {
            None => Ok(None),
            Some(Packet::Message(Reply::NotGiven(refused), _)) => {
                Err(ClientError::NotGiven { refused })
            }
            Some(Packet::Message(Reply::Refused { reason }, _)) => {
                Err(ClientError::Refused { reason })
            }
            Some(Packet::Message(reply, descriptors)) => Ok(Some((reply, descriptors))),
            Some(Packet::Garbled(error)) => Err(ClientError::Answer(error.to_string())),
            Some(Packet::Closed) => Err(self.gone()),
        }
    }
}

impl AsFd for Connection {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.channel.as_fd()
    }
}
