//! The proxy's process: started, confined, served; and the supervisor's handle of it.

use crate::confine::{self, ProxyIds};
use crate::decide::Rules;
use crate::order::{self, Order};
use crate::reader;
use crate::relay;
use crate::resolve::Resolver;
use crate::secret::SecretStore;
use crate::serve::{self, Service};
use crate::setup::Setup;
use crate::tls::TlsInterceptor;
use crate::traffic_log::TrafficLog;
use crate::upstream::Upstream;
use crate::wire::{self, FromProxy};
use ironcage_model::{Reason, StartCode};
use ironcage_plan::Network;
use ironcage_programs::Program;
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
use std::os::unix::process::CommandExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::{Command, ExitCode};
use std::rc::Rc;
use std::time::{Duration, Instant};

/// How long the proxy may take to tell the last sums.
const PATIENCE: Duration = Duration::from_secs(2);

/// A proxy, as the supervisor has it. Dropping it ends it.
#[derive(Debug)]
pub struct Proxy {
    control: OwnedFd,
    pid: Pid,
    pidfd: OwnedFd,
}

impl Proxy {
    /// Starts the proxy's program for a network. It waits for its sockets, confines itself and
    /// serves.
    ///
    /// Preconditions: the calling process has one thread; its end is the proxy's end.
    ///
    /// # Errors
    /// Where the program is not beside this one, or there is no process to be had.
    pub fn start(network: &Network, ids: Option<ProxyIds>) -> io::Result<Proxy> {
        let program = Program::Egress
            .find()
            .map_err(|error| io::Error::other(format!("{error}; {}", error.hint())))?;
        let (control, inner) = socketpair(
            AddressFamily::UNIX,
            SocketType::SEQPACKET,
            SocketFlags::CLOEXEC,
            None,
        )?;
        let setup = Setup {
            network: network.clone(),
            ids,
            supervisor: getpid().as_raw_nonzero().get(),
        };
        let setup = setup.send()?;
        match fork(Namespaces::NONE, None)? {
            Forked::Child => {
                drop(control);
                // Standard streams need no word about which number they have.
                let report = inner.try_clone();
                let error = Command::new(&program)
                    .arg0("ironcage-egress")
                    .stdin(inner)
                    .stdout(setup)
                    .exec();
                let text = format!("cannot execute {}: {error}", program.display());
                let code = StartCode::ProxyFailed;
                let reason = Reason::Start { code, text };
                if let Ok(report) = report {
                    // If nobody hears it, nobody needs the proxy.
                    let _ = wire::say(report.as_fd(), &FromProxy::Failed(reason));
                }
                exit_now(1)
            }
            Forked::Parent { pid, pidfd } => Ok(Proxy {
                control,
                pid,
                pidfd,
            }),
        }
    }

    /// Where the proxy's sockets are sent, and messages come from.
    pub fn control(&self) -> BorrowedFd<'_> {
        self.control.as_fd()
    }

    pub fn pid(&self) -> Pid {
        self.pid
    }

    /// Takes the next message, if there is one.
    ///
    /// # Errors
    /// Where what came is no message: then the proxy is not to be trusted any more.
    pub fn hear(&self) -> io::Result<Option<FromProxy>> {
        wire::receive(self.control.as_fd(), false)
    }

    /// Tells the proxy something, without waiting.
    ///
    /// # Errors
    /// Where it is gone, or has not listened for so long that there is no room.
    pub fn tell(&self, order: &Order, descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
        order::tell(self.control.as_fd(), order, descriptors)
    }

    /// Waits until the proxy is at work, or has failed.
    ///
    /// # Errors
    /// Where it failed, went away or said nothing within the time.
    pub fn wait_ready(&self, within: Duration) -> io::Result<Option<String>> {
        let deadline = Instant::now() + within;
        match self.next_before(deadline)? {
            Some(FromProxy::Ready { per_port }) => Ok(per_port),
            Some(FromProxy::Failed(reason)) => Err(io::Error::other(reason)),
            Some(FromProxy::Closed) => Err(io::Error::other("it ended before it was ready")),
            Some(
                FromProxy::Traffic(_)
                | FromProxy::Sum(_)
                | FromProxy::Changed { .. }
                | FromProxy::Authority(_)
                | FromProxy::Overheard(_)
                | FromProxy::Dial { .. },
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
            Some(FromProxy::Authority(text)) => Ok(text),
            Some(FromProxy::Failed(reason)) => Err(io::Error::other(reason)),
            Some(FromProxy::Closed) => Err(io::Error::other("it ended before it was ready")),
            Some(_) | None => Err(io::Error::other("it made no certificate authority")),
        }
    }

    fn next_before(&self, deadline: Instant) -> io::Result<Option<FromProxy>> {
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

    /// Ends the proxy in order: no connection goes on, and what it has counted is told.
    pub fn close(self) -> Vec<ironcage_model::Traffic> {
        let mut told = Vec::new();
        let _ = shutdown(&self.control, Shutdown::Write);
        let deadline = Instant::now() + PATIENCE;
        loop {
            match self.next_before(deadline) {
                Ok(Some(FromProxy::Traffic(traffic) | FromProxy::Sum(traffic))) => {
                    told.push(traffic)
                }
                // Nobody waits for that any more.
                Ok(Some(
                    FromProxy::Changed { .. } | FromProxy::Dial { .. } | FromProxy::Overheard(_),
                )) => {}
                _ => return told,
            }
        }
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        // Both can only fail because it is gone already.
        let _ = pidfd_send_signal(&self.pidfd, Signal::KILL);
        let _ = waitid(WaitId::PidFd(self.pidfd.as_fd()), WaitIdOptions::EXITED);
    }
}

/// The program `ironcage-egress`: standard input is the socket to the supervisor, standard output
/// the file with the setup.
pub fn run_program() -> ExitCode {
    let begin = || {
        let control = io::stdin().as_fd().try_clone_to_owned()?;
        let setup = Setup::receive(io::stdout().as_fd().try_clone_to_owned()?);
        io::Result::Ok((control, setup))
    };
    match begin() {
        Ok((control, Ok(setup))) => run(&setup.network, setup.ids, setup.supervisor, control),
        Ok((control, Err(error))) => {
            eprintln!("ironcage-egress: cannot read the setup of the egress proxy: {error}");
            eprintln!("hint: `ironcage run` starts this program for cages that have a network");
            let text = format!("cannot read its setup: {error}");
            let code = StartCode::ProxyFailed;
            let reason = Reason::Start { code, text };
            // If it was not started by a supervisor, nobody hears it.
            let _ = wire::say(control.as_fd(), &FromProxy::Failed(reason));
            ExitCode::from(2)
        }
        Err(error) => {
            eprintln!("ironcage-egress: cannot keep the standard streams: {error}");
            ExitCode::from(2)
        }
    }
}

/// The proxy itself, to its end.
fn run(network: &Network, ids: Option<ProxyIds>, parent: i32, control: OwnedFd) -> ! {
    match prepare(network, ids, parent, &control) {
        Ok(ProxySetup {
            rules,
            resolver,
            upstream,
            interceptor,
            store,
            sockets,
            files,
            reader,
            runtime,
        }) => {
            let ready = FromProxy::Ready {
                per_port: sockets.per_port.clone(),
            };
            if !matches!(wire::say(control.as_fd(), &ready), Ok(true)) {
                exit_now(1)
            }
            let traffic_log = TrafficLog::new(network.limits, control);
            let way = (resolver, upstream);
            let service = Service::new(rules, way, (interceptor, store), files, traffic_log);
            // A fault must not unwind into what was copied from the supervisor.
            let reader = reader.zip(network.models.as_ref());
            let served = catch_unwind(AssertUnwindSafe(|| {
                serve::run(&runtime, service, sockets, reader)
            }));
            exit_now(i32::from(!matches!(served, Ok(Ok(())))))
        }
        Err(Some(reason)) => {
            // If nobody hears it, nobody needs the door.
            let mut reason = reason;
            reason.cut(LONGEST_REASON);
            let _ = wire::say(control.as_fd(), &FromProxy::Failed(reason));
            exit_now(1)
        }
        Err(None) => exit_now(0),
    }
}

/// Longest text of why it did not start: it goes in one packet.
const LONGEST_REASON: usize = 2048;

/// What is there before the first stranger's byte.
struct ProxySetup {
    rules: Rules,
    resolver: Resolver,
    upstream: Rc<Upstream>,
    interceptor: Option<TlsInterceptor>,
    store: SecretStore,
    sockets: wire::Sockets,
    files: u64,
    reader: Option<OwnedFd>,
    runtime: tokio::runtime::Runtime,
}

/// Everything before the first stranger's byte. `Err(None)` where the supervisor gave up.
fn prepare(
    network: &Network,
    ids: Option<ProxyIds>,
    parent: i32,
    control: &OwnedFd,
) -> Result<ProxySetup, Option<Reason>> {
    let failed = |text: String| {
        Some(Reason::Start {
            code: StartCode::ProxyFailed,
            text,
        })
    };
    // While the caller's environment is there, and files can be read.
    ironcage_sys::faults::prepare_proxy();
    // Before there is any secret in this process: it reads what strangers write.
    let models = network.models.as_ref();
    let reader = match models.filter(|models| !models.hosts.is_empty()) {
        Some(models) => {
            Some(reader::start(models, ids).map_err(|error| failed(error.to_string()))?)
        }
        None => None,
    };
    let mut store = SecretStore::load(network).map_err(Some)?;
    let upstream = Rc::new(Upstream::load(network).map_err(Some)?);
    let mut keep = vec![control.as_fd()];
    keep.extend(reader.as_ref().map(AsFd::as_fd));
    confine::detach(Some(parent), &keep, c"ironcage-egress")
        .map_err(|error| failed(error.in_full()))?;
    // While another process can be had, and before a stranger's byte.
    store.start_logins(network, &upstream).map_err(Some)?;
    let rules = Rules::of(network);
    let resolver = Resolver::from_host(network);
    let interceptor = match network.opens_tls() {
        true => Some(open_tls(network, control).map_err(|error| failed(error.to_string()))?),
        false => None,
    };
    let sockets = wire::take_sockets(control.as_fd())
        .map_err(|error| failed(error.to_string()))?
        .ok_or(None)?;
    relay::prepare().map_err(|error| failed(format!("a pipe for the proxy: {error}")))?;
    let runtime = serve::runtime().map_err(|error| failed(format!("the runtime: {error}")))?;
    let files = confine::confine(network, ids).map_err(|error| failed(error.in_full()))?;
    Ok(ProxySetup {
        rules,
        resolver,
        upstream,
        interceptor,
        store,
        sockets,
        files,
        reader,
        runtime,
    })
}

/// Makes the cage's certificate authority and tells it to who puts it into the view.
fn open_tls(network: &Network, control: &OwnedFd) -> io::Result<TlsInterceptor> {
    let interceptor = TlsInterceptor::new(&network.authorities)?;
    wire::say(
        control.as_fd(),
        &FromProxy::Authority(interceptor.pem().to_owned()),
    )?;
    Ok(interceptor)
}
