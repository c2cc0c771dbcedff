//! The door's process: forked, confined, served; and the supervisor's handle of it.

use crate::books::Books;
use crate::confine::{self, DoorIds};
use crate::decide::Rules;
use crate::order::{self, Order};
use crate::reader;
use crate::relay;
use crate::resolve::Resolver;
use crate::secret::Vault;
use crate::serve::{self, Service};
use crate::tls::Opener;
use crate::wire::{self, FromDoor};
use ironcage_plan::Network;
use ironcage_sys::clone::{Forked, Namespaces, exit_now, fork};
use ironcage_sys::rustix::event::{PollFd, PollFlags, Timespec, poll};
use ironcage_sys::rustix::net::{
    AddressFamily, Shutdown, SocketFlags, SocketType, shutdown, socketpair,
};
use ironcage_sys::rustix::process::{
    Pid, Signal, WaitId, WaitIdOptions, getpid, pidfd_send_signal, waitid,
};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

/// How long the door may take to tell the last sums.
const PATIENCE: Duration = Duration::from_secs(2);

/// A door, as the supervisor has it. Dropping it ends it.
#[derive(Debug)]
pub struct Door {
    control: OwnedFd,
    pid: Pid,
    pidfd: OwnedFd,
}

impl Door {
    /// Forks a door for a network. It waits for its sockets, confines itself and serves.
    ///
    /// Preconditions: the calling process has one thread and holds no secret; its end is the
    /// door's end.
    ///
    /// # Errors
    /// Where there is no process to be had.
    pub fn start(network: &Network, ids: Option<DoorIds>) -> io::Result<Door> {
        let (control, inner) = socketpair(
            AddressFamily::UNIX,
            SocketType::SEQPACKET,
            SocketFlags::CLOEXEC,
            None,
        )?;
        let parent = getpid().as_raw_nonzero().get();
        match fork(Namespaces::NONE, None)? {
            Forked::Child => {
                drop(control);
                run(network, ids, parent, inner)
            }
            Forked::Parent { pid, pidfd } => Ok(Door {
                control,
                pid,
                pidfd,
            }),
        }
    }

    /// Where the doorway's sockets are sent, and messages come from.
    pub fn control(&self) -> BorrowedFd<'_> {
        self.control.as_fd()
    }

    /// The process.
    pub fn pid(&self) -> Pid {
        self.pid
    }

    /// Takes the next message, if there is one.
    ///
    /// # Errors
    /// Where what came is no message: then the door is not to be trusted any more.
    pub fn hear(&self) -> io::Result<Option<FromDoor>> {
        wire::receive(self.control.as_fd(), false)
    }

    /// Tells the door something, without waiting.
    ///
    /// # Errors
    /// Where it is gone, or has not listened for so long that there is no room.
    pub fn tell(&self, order: &Order, descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
        order::tell(self.control.as_fd(), order, descriptors)
    }

    /// Waits until the door is at work, or has failed.
    ///
    /// # Errors
    /// Where it failed, went away or said nothing within the time.
    pub fn wait_ready(&self, within: Duration) -> io::Result<Option<String>> {
        let deadline = Instant::now() + within;
        match self.next_before(deadline)? {
            Some(FromDoor::Ready { per_port }) => Ok(per_port),
            Some(FromDoor::Failed(reason)) => Err(io::Error::other(reason)),
            Some(FromDoor::Closed) => Err(io::Error::other("it ended before it was ready")),
            Some(
                FromDoor::Traffic(_)
                | FromDoor::Sum(_)
                | FromDoor::Changed { .. }
                | FromDoor::Authority(_)
                | FromDoor::Overheard(_)
                | FromDoor::Dial { .. },
            )
            | None => Err(io::Error::other("it did not get ready")),
        }
    }

    /// Waits for the certificate authority that it makes where TLS is opened.
    ///
    /// # Errors
    /// Where it failed, went away or said nothing within the time.
    pub fn authority(&self, within: Duration) -> io::Result<String> {
        match self.next_before(Instant::now() + within)? {
            Some(FromDoor::Authority(text)) => Ok(text),
            Some(FromDoor::Failed(reason)) => Err(io::Error::other(reason)),
            Some(FromDoor::Closed) => Err(io::Error::other("it ended before it was ready")),
            Some(_) | None => Err(io::Error::other("it made no certificate authority")),
        }
    }

    fn next_before(&self, deadline: Instant) -> io::Result<Option<FromDoor>> {
        loop {
            if let Some(message) = wire::receive(self.control.as_fd(), false)? {
                return Ok(Some(message));
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(None);
            }
            let timeout = Timespec::try_from(left).map_err(io::Error::other)?;
            let mut fds = [PollFd::new(&self.control, PollFlags::IN)];
            match poll(&mut fds, Some(&timeout)) {
                Ok(_) | Err(ironcage_sys::rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Ends the door in order: no connection goes on, and what it has counted is told.
    pub fn close(self) -> Vec<ironcage_model::Traffic> {
        let mut told = Vec::new();
        let _ = shutdown(&self.control, Shutdown::Write);
        let deadline = Instant::now() + PATIENCE;
        loop {
            match self.next_before(deadline) {
                Ok(Some(FromDoor::Traffic(traffic) | FromDoor::Sum(traffic))) => told.push(traffic),
                // Nobody waits for that any more.
                Ok(Some(
                    FromDoor::Changed { .. } | FromDoor::Dial { .. } | FromDoor::Overheard(_),
                )) => {}
                _ => return told,
            }
        }
    }
}

impl Drop for Door {
    fn drop(&mut self) {
        // Both can only fail because it is gone already.
        let _ = pidfd_send_signal(&self.pidfd, Signal::KILL);
        let _ = waitid(WaitId::PidFd(self.pidfd.as_fd()), WaitIdOptions::EXITED);
    }
}

/// The door itself, to its end.
fn run(network: &Network, ids: Option<DoorIds>, parent: i32, control: OwnedFd) -> ! {
    match prepare(network, ids, parent, &control) {
        Ok(Prepared {
            rules,
            resolver,
            opener,
            vault,
            sockets,
            files,
            reader,
        }) => {
            let ready = FromDoor::Ready {
                per_port: sockets.per_port.clone(),
            };
            if !matches!(wire::say(control.as_fd(), &ready), Ok(true)) {
                exit_now(1)
            }
            let books = Books::new(network.limits, control);
            let service = Service::new(rules, resolver, (opener, vault), files, books);
            // A fault must not unwind into what was copied from the supervisor.
            let reader = reader.zip(network.models.as_ref());
            let served = catch_unwind(AssertUnwindSafe(|| serve::run(service, sockets, reader)));
            exit_now(i32::from(!matches!(served, Ok(Ok(())))))
        }
        Err(Some(reason)) => {
            // If nobody hears it, nobody needs the door.
            let _ = wire::say(control.as_fd(), &FromDoor::Failed(reason));
            exit_now(1)
        }
        Err(None) => exit_now(0),
    }
}

/// What is there before the first stranger's byte.
struct Prepared {
    rules: Rules,
    resolver: Resolver,
    opener: Option<Opener>,
    vault: Vault,
    sockets: wire::Sockets,
    files: u64,
    reader: Option<OwnedFd>,
}

/// Everything before the first stranger's byte. `Err(None)` where the supervisor gave up.
fn prepare(
    network: &Network,
    ids: Option<DoorIds>,
    parent: i32,
    control: &OwnedFd,
) -> Result<Prepared, Option<String>> {
    // While the caller's environment is there, and files can be read.
    ironcage_sys::faults::prepare_door();
    // Before there is any secret in this process: it reads what strangers write.
    let models = network.models.as_ref();
    let reader = match models.filter(|models| !models.hosts.is_empty()) {
        Some(models) => Some(reader::start(models, ids).map_err(|error| Some(error.to_string()))?),
        None => None,
    };
    let mut vault = Vault::load(network).map_err(Some)?;
    let mut keep = vec![control.as_fd()];
    keep.extend(reader.as_ref().map(AsFd::as_fd));
    confine::detach(Some(parent), &keep, c"ironcage-door")
        .map_err(|error| Some(error.in_full()))?;
    // While another process can be had, and before a stranger's byte.
    vault.start_logins(network).map_err(Some)?;
    let rules = Rules::of(network);
    let resolver = Resolver::from_host(network);
    let opener = match network.opens_tls() {
        true => Some(open_tls(network, control).map_err(|error| Some(error.to_string()))?),
        false => None,
    };
    let sockets = wire::take_sockets(control.as_fd())
        .map_err(|error| Some(error.to_string()))?
        .ok_or(None)?;
    relay::prepare().map_err(|error| Some(format!("a pipe for the door: {error}")))?;
    let files = confine::confine(network, ids).map_err(|error| Some(error.in_full()))?;
    Ok(Prepared {
        rules,
        resolver,
        opener,
        vault,
        sockets,
        files,
        reader,
    })
}

/// Makes the cage's certificate authority and tells it to who puts it into the view.
fn open_tls(network: &Network, control: &OwnedFd) -> io::Result<Opener> {
    let opener = Opener::new(&network.authorities)?;
    wire::say(
        control.as_fd(),
        &FromDoor::Authority(opener.pem().to_owned()),
    )?;
    Ok(opener)
}
