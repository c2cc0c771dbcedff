//! The stage: everything outside the sandbox that a probe may try to reach.
//!
//! All of it is the suite's own and lives in namespaces of its own, so that nothing of the
//! machine is touched and nothing stays behind: when the stage's first process ends, for
//! whatever reason, the kernel takes the rest away.

pub(crate) mod allowed;
pub(crate) mod control;
pub(crate) mod echo;
mod files;
pub(crate) mod guest;
pub(crate) mod key_agent;
mod leaks;
mod listeners;
mod log;
pub(crate) mod namespaces;
mod nonce;
mod queues;
pub(crate) mod sweep;
mod terminal;
pub(crate) mod upstream;
pub(crate) mod victim;

pub(crate) use files::{LEADS_OUT, Layout, MACHINE, ON_PATH, TRUSTED, VMM};
pub(crate) use log::{Channel, HitLog};
pub(crate) use nonce::{Canary, Nonces, random_hex};
pub(crate) use terminal::Terminal;

use crate::params::Params;
use ironcage_programs::Program;
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io;
use std::path::PathBuf;

/// The variable with the secret that the egress proxy is to hold.
pub(crate) const PROXY_SECRET: &str = "STAGE_PROXY_TOKEN";

/// A part of the stage that could not be made.
#[derive(Debug, thiserror::Error)]
#[error("the stage cannot be made: {what}")]
pub(crate) struct StageError {
    what: String,
    #[source]
    source: io::Error,
}

/// Names what was being made when an error came.
pub(crate) fn making<E: Into<io::Error>>(what: impl Into<String>) -> impl FnOnce(E) -> StageError {
    let what = what.into();
    move |source| StageError {
        what,
        source: source.into(),
    }
}

/// Programs as they are put on the stage, read before it covers the places where they may lie.
pub(crate) struct Programs {
    pub(crate) suite: Vec<u8>,
    /// The `ironcage` beside it, or why there is none: only some sandboxes need it.
    pub(crate) ironcage: io::Result<Vec<u8>>,
    /// What `ironcage` puts into cages.
    pub(crate) inside: io::Result<Vec<u8>>,
    /// The proxy of cages that have a network.
    pub(crate) egress: io::Result<Vec<u8>>,
    /// What reads commands in cages whose shell runs them in scopes.
    pub(crate) reader: io::Result<Vec<u8>>,
    /// The gateway for tools.
    pub(crate) mcp: io::Result<Vec<u8>>,
    /// What loads images and makes them.
    pub(crate) registry: io::Result<Vec<u8>>,
    /// What boots a virtual machine in a cage.
    pub(crate) vmm: io::Result<Vec<u8>>,
    /// The init of guests, and the guest that the user has set up.
    pub(crate) guest: io::Result<guest::StagedGuest>,
}

impl Programs {
    pub(crate) fn read() -> Result<Programs, StageError> {
        let suite = std::env::current_exe().and_then(std::fs::read);
        let read = |program: Program| {
            let found = program.find().map_err(io::Error::other);
            found.and_then(std::fs::read)
        };
        Ok(Programs {
            suite: suite.map_err(making("the program"))?,
            ironcage: read(Program::Ironcage),
            inside: read(Program::Inside),
            egress: read(Program::Egress),
            reader: read(Program::Reader),
            mcp: read(Program::Mcp),
            registry: read(Program::Registry),
            vmm: read(Program::Vmm),
            guest: guest::StagedGuest::read(),
        })
    }
}

/// The stage, complete.
pub(crate) struct Stage {
    /// What probes inside are told.
    pub(crate) params: Params,
    /// What they are not told.
    pub(crate) nonces: Nonces,
    /// What happened to listeners and the canary process.
    pub(crate) log: HitLog,
    /// Files, and how to put them back.
    pub(crate) layout: Layout,
    /// The pty whose input queue is watched.
    pub(crate) terminal: Terminal,
    /// What reached the host that a policy allows.
    pub(crate) heard: allowed::ReceivedBytes,
    /// The host name of the stage.
    pub(crate) hostname: String,
    _leaks: leaks::LeakedFds,
    _queues: queues::Queues,
    _victim: victim::VictimHandle,
}

impl Stage {
    /// Makes everything. Runs in the stage's namespaces.
    pub(crate) fn build(
        home: PathBuf,
        programs: &Programs,
        hostname: String,
    ) -> Result<Stage, StageError> {
        let nonces = Nonces::new().map_err(making("random numbers"))?;
        let log = HitLog::default();
        let mut params = Params {
            home,
            ..Params::default()
        };
        let layout = Layout::create(&mut params, &nonces, programs)?;
        let listeners = listeners::start(&mut params, &log)?;
        control::start(&mut params, &log)?;
        let heard = allowed::ReceivedBytes::start()?;
        echo::start(nonces.of(Canary::ProxySecret))?;
        let agent = layout.agent_socket();
        key_agent::start(&agent, nonces.of(Canary::OtherKey), &log)?;
        upstream::start(&log)?;
        let queues = queues::Queues::create(&mut params, &nonces)?;
        let victim = victim::VictimHandle::start(&layout, &nonces, &log)?;
        params.victim = victim.params();
        params.own_counters = !ironcage_sys::rustix::process::geteuid().is_root();
        let terminal = Terminal::open()?;
        params.terminal = terminal.path();
        // Last, as these descriptors reach every process started from here on.
        let leaks = leaks::LeakedFds::open(&mut params, &layout, &log, listeners.network)?;
        Ok(Stage {
            params,
            nonces,
            log,
            layout,
            terminal,
            heard,
            hostname,
            _leaks: leaks,
            _queues: queues,
            _victim: victim,
        })
    }

    /// The environment in which a user of the sandbox starts it, with secrets in it.
    pub(crate) fn environment(&self) -> BTreeMap<OsString, OsString> {
        let home = self.params.home.as_os_str();
        let mut path = home.to_owned();
        path.push("/.local/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin");
        let user = std::env::var_os("USER").unwrap_or_else(|| "user".into());
        let secret = OsString::from(self.nonces.of(Canary::Environment));
        let runtime = OsString::from(self.layout.runtime.as_os_str());
        BTreeMap::from([
            ("PATH".into(), path),
            ("HOME".into(), home.to_owned()),
            ("USER".into(), user.clone()),
            ("LOGNAME".into(), user),
            ("LANG".into(), "C.UTF-8".into()),
            ("TERM".into(), "dumb".into()),
            ("XDG_RUNTIME_DIR".into(), runtime),
            ("AWS_SECRET_ACCESS_KEY".into(), secret.clone()),
            ("IRONCAGE_STAGE_TOKEN".into(), secret),
            (
                PROXY_SECRET.into(),
                self.nonces.of(Canary::ProxySecret).into(),
            ),
            ("HTTP_PROXY".into(), "http://127.0.0.1:9".into()),
        ])
    }

    /// Writes what probes inside are told to where they read it.
    pub(crate) fn publish(&self, params: &Params) -> Result<(), StageError> {
        let text = serde_json::to_vec(params)
            .map_err(|error| making("parameters")(io::Error::other(error)))?;
        std::fs::write(&self.layout.params, text).map_err(making("the parameter file"))
    }
}
