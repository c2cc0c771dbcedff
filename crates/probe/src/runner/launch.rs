//! One run: the sandbox is started, watched, and ended.

use super::Runner;
use super::collected::Collected;
use super::leased::NAME;
use super::leftovers::Inventory;
use super::settings::IMAGE;
use crate::adapter::Launch;
use crate::inside::{HOLDING, RELEASE, STARTED};
use crate::mustwork;
use crate::oracle::Evidence;
use crate::params::Limits;
use crate::probe::{Probe, ProxyRules, Setup};
use crate::sampler::{self, Sampler};
use crate::stage::key_agent::OWN_KEY;
use crate::stage::{Canary, Channel, StageError, upstream};
use ironcage_sys::rustix::fs::{FlockOperation, flock};
use ironcage_sys::rustix::process::{Pid, Signal, geteuid, kill_process};
use ironcage_sys::rustix::thread as threads;
use std::ffi::OsString;
use std::fs::{File, OpenOptions};
use std::io::{self, Read};
use std::net::TcpStream;
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

/// How a probe is started.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mode {
    /// In the sandbox under test.
    Caged,
    /// Without any, as the same user.
    Bare,
    /// Without any, with every capability in the stage's user namespace.
    Privileged,
    /// Under the suite's own faulty launcher.
    Faulty,
}

/// A run that did not come about.
#[derive(Debug, thiserror::Error)]
pub(crate) enum RunError {
    /// The stage is broken.
    #[error(transparent)]
    Stage(#[from] StageError),
    /// The launcher could not be started.
    #[error("`{program}` cannot be started: {source}")]
    Start {
        program: String,
        #[source]
        source: io::Error,
    },
}

pub(super) const PATIENCE: Duration = Duration::from_secs(15);
/// The same where a machine boots first, which is emulated.
const PATIENCE_FOR_A_MACHINE: Duration = Duration::from_secs(90);

/// A run that has begun.
pub(super) struct Begun {
    pub(super) child: Child,
    output: Option<Collected>,
    errors: Option<Collected>,
}

impl Begun {
    /// Waits for its end.
    pub(super) fn end(mut self, runner: &Runner, evidence: &mut Evidence) {
        runner.finish(&mut self.child, runner.patience(PATIENCE), evidence);
        let taken = |stream: Option<Collected>| stream.map(|stream| stream.take());
        evidence.output = taken(self.output).unwrap_or_default();
        let said = taken(self.errors).unwrap_or_default();
        evidence.errors.extend(said);
    }
}

fn outcome(status: ExitStatus) -> i32 {
    status
        .code()
        .unwrap_or_else(|| -status.signal().unwrap_or(0))
}

/// Raises every capability that this thread has into the ambient set, so that a program which
/// it starts keeps them without being root.
fn keep_capabilities() -> io::Result<()> {
    let mut sets = threads::capabilities(None)?;
    sets.inheritable = sets.permitted;
    threads::set_capabilities(None, sets)?;
    for capability in sets.permitted.iter() {
        threads::configure_capability_in_ambient_set(capability, true)?;
    }
    Ok(())
}

fn kill(pid: u32, signal: Signal) {
    if let Some(pid) = i32::try_from(pid).ok().and_then(Pid::from_raw) {
        // It may have ended by itself.
        let _ = kill_process(pid, signal);
    }
}

pub(super) fn resident_mib(pid: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib = line.and_then(|rest| rest.split_whitespace().next()?.parse::<u64>().ok());
    kib.unwrap_or(0) / 1024
}

impl Runner {
    fn inside_command(&self, id: &str) -> Vec<OsString> {
        let layout = &self.stage.layout;
        let words = [
            layout.program.as_os_str(),
            "probe".as_ref(),
            "role".as_ref(),
            "inside".as_ref(),
        ];
        let mut command: Vec<OsString> = words.iter().map(|word| (*word).to_owned()).collect();
        command.extend([id.into(), layout.params.as_os_str().to_owned()]);
        command
    }

    fn role_line(&self, words: &[&std::ffi::OsStr], then: Vec<OsString>) -> Vec<OsString> {
        let program = self.stage.layout.program.as_os_str().to_owned();
        let mut line: Vec<OsString> = vec![program, "probe".into(), "role".into()];
        line.extend(words.iter().map(|word| (*word).to_owned()));
        line.push("--".into());
        line.extend(then);
        line
    }

    fn line(&self, setup: Setup, mode: Mode, command: Vec<OsString>) -> Vec<OsString> {
        let params = &self.stage.params;
        let mask = (setup == Setup::Mask).then_some(params.masked.as_path());
        let grant = (setup == Setup::ReadGrant).then_some(params.granted.as_path());
        let line = match mode {
            Mode::Bare => command,
            Mode::Faulty => self.role_line(&["hoard".as_ref()], command),
            Mode::Privileged => {
                let none = Path::new("-");
                let words = [
                    "privileged".as_ref(),
                    mask.unwrap_or(none).as_os_str(),
                    grant.unwrap_or(none).as_os_str(),
                ];
                self.role_line(&words, command)
            }
            Mode::Caged => {
                let limits = match setup {
                    Setup::CpuShare => Some(Limits::SHARE),
                    Setup::SlowReader => Some(Limits::SMALL),
                    setup if setup.is_limited() => Some(Limits::SMALL),
                    _ => None,
                };
                self.adapter.line(&Launch {
                    launcher: &self.launcher,
                    workspace: &params.workspace,
                    read: grant,
                    hide: mask,
                    // A machine has what its adapter gives it: it does not start with less.
                    limits: limits.filter(|_| self.adapter.limits && !self.adapter.guest),
                    in_memory: setup == Setup::LimitsInMemory,
                    seconds: (setup == Setup::Deadline && self.adapter.limits)
                        .then_some(if self.adapter.guest { 20 } else { 1 }),
                    outside: setup == Setup::OutsideCwd,
                    network: match setup {
                        Setup::Proxy(rules) => Some(rules),
                        Setup::Crowded => Some(ProxyRules::Name),
                        _ => None,
                    },
                    key: (setup == Setup::Keys).then_some(OWN_KEY),
                    ceiling: matches!(setup, Setup::Leased | Setup::Scoped)
                        .then_some((NAME, self.stage.layout.ceiling.as_path())),
                    image: (setup == Setup::Committed).then_some(IMAGE),
                    system: self.adapter.boots.then_some(&*self.system),
                    command,
                })
            }
        };
        match setup {
            Setup::Terminal => {
                self.role_line(&["terminal".as_ref(), params.terminal.as_os_str()], line)
            }
            _ => line,
        }
    }

    /// The command, with the environment and the directory of the stage.
    pub(super) fn command(&self, line: &[OsString], setup: Setup, mode: Mode) -> Command {
        let program = line.first().cloned().unwrap_or_default();
        let mut command = Command::new(&program);
        command
            .args(line.get(1..).unwrap_or_default())
            .env_clear()
            .envs(self.stage.environment());
        if setup == Setup::Keys {
            command.env("SSH_AUTH_SOCK", self.stage.layout.agent_socket());
        }
        if setup == Setup::Proxy(ProxyRules::Upstream) {
            let password = self.stage.nonces.of(Canary::UpstreamPassword);
            for name in ["HTTP_PROXY", "HTTPS_PROXY"] {
                command.env(name, upstream::url(password));
            }
        }
        if mode == Mode::Caged && !self.off.is_empty() {
            let names: Vec<&str> = self.off.iter().map(|part| part.name()).collect();
            command.env("IRONCAGE_LAYERS_OFF", names.join(","));
        }
        command
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .stdin(Stdio::null());
        let params = &self.stage.params;
        command.current_dir(match setup {
            Setup::OutsideCwd => params.home.join("elsewhere"),
            _ => params.workspace.clone(),
        });
        command
    }

    fn spawn(&self, line: &[OsString], setup: Setup, mode: Mode) -> Result<Child, RunError> {
        let program = line.first().cloned().unwrap_or_default();
        let mut command = self.command(line, setup, mode);
        let wrong = |source| RunError::Start {
            program: program.to_string_lossy().into_owned(),
            source,
        };
        if setup == Setup::HostStdin {
            let file = OpenOptions::new()
                .read(true)
                .write(true)
                .open(&self.stage.layout.host_file);
            command.stdin(file.map_err(wrong)?);
        }
        if mode == Mode::Privileged && !geteuid().is_root() {
            // In a thread of its own: capabilities belong to threads, and this one ends.
            let spawned = std::thread::spawn(move || {
                keep_capabilities()?;
                command.spawn()
            });
            let lost = || Err(io::Error::other("the thread ended early"));
            return spawned.join().unwrap_or_else(|_| lost()).map_err(wrong);
        }
        command.spawn().map_err(wrong)
    }

    /// A run that the caller ends itself.
    pub(super) fn begin(&self, line: &[OsString], mode: Mode) -> Result<Begun, RunError> {
        let mut child = self.spawn(line, Setup::Plain, mode)?;
        Ok(Begun {
            output: child.stdout.take().map(Collected::start),
            errors: child.stderr.take().map(Collected::start),
            child,
        })
    }

    /// How long to wait for what takes this long in a sandbox without a kernel of its own.
    pub(super) fn patience(&self, otherwise: Duration) -> Duration {
        match self.adapter.guest {
            true => PATIENCE_FOR_A_MACHINE,
            false => otherwise,
        }
    }

    /// Waits for the end, stopping what is overdue.
    pub(super) fn finish(&self, child: &mut Child, patience: Duration, evidence: &mut Evidence) {
        let started = Instant::now();
        loop {
            match child.try_wait() {
                Ok(Some(status)) => {
                    evidence.status = outcome(status);
                    return;
                }
                Ok(None) if started.elapsed() < patience => {
                    evidence.launcher_mib = evidence.launcher_mib.max(resident_mib(child.id()));
                    std::thread::sleep(Duration::from_millis(2));
                }
                _ => {
                    evidence.overdue = true;
                    kill(child.id(), Signal::KILL);
                    evidence.status = child.wait().map_or(-9, outcome);
                    return;
                }
            }
        }
    }

    fn heartbeat(&self) -> u64 {
        std::fs::metadata(&self.stage.layout.heartbeat).map_or(0, |metadata| metadata.len())
    }

    /// Whether a process of the probe goes on after its end. Those that are being ended have time
    /// for it; one that is left goes on if its heart beats again and again.
    fn still_beating(&self) -> bool {
        const BEATS: u64 = 3;
        let gone = || self.stragglers().is_empty();
        self.wait_for(Duration::from_secs(2), gone);
        let before = self.heartbeat();
        let beats = || self.heartbeat() >= before + BEATS;
        self.wait_until(|| gone() || beats());
        beats()
    }

    /// Processes of a probe that outlived it; they are the suite's own program.
    fn stragglers(&self) -> Vec<i32> {
        let mut pids = sampler::processes_of(&self.stage.layout.program);
        pids.retain(|pid| *pid != self.stage.params.victim.pid);
        pids
    }

    fn sweep_stragglers(&self) {
        for pid in self.stragglers() {
            kill(pid.unsigned_abs(), Signal::KILL);
        }
    }

    fn prepare(&mut self) -> Result<(), RunError> {
        self.stage.layout.restore()?;
        let name = self.launcher_name.clone();
        let installed = self
            .stage
            .layout
            .install_launcher(&name, &self.launcher_content);
        let wrong = |source| RunError::Start {
            program: name.clone(),
            source,
        };
        self.launcher = installed.map_err(wrong)?;
        let metadata = std::fs::metadata(&self.launcher).map_err(wrong)?;
        self.stage.params.launcher_inode = (metadata.dev(), metadata.ino());
        let nice = sampler::nice_value(self.stage.params.victim.pid).unwrap_or(0);
        self.stage.params.victim_nice = i32::try_from(nice).unwrap_or(0) + 1;
        self.stage.log.clear();
        self.stage.heard.clear();
        self.stage.terminal.take_input();
        Ok(())
    }

    pub(super) fn launch_probe(&mut self, probe: &Probe, mode: Mode) -> Result<Evidence, RunError> {
        self.prepare()?;
        let setup = probe.setup;
        let sibling = match setup {
            Setup::Sibling => Some(self.start_sibling(mode)?),
            _ => None,
        };
        self.lay_out(setup)?;
        self.stage.publish(&self.stage.params)?;
        let line = self.line(setup, mode, self.inside_command(probe.id));
        let mut evidence = Evidence {
            line: line.clone(),
            ..Evidence::default()
        };
        match setup {
            Setup::Repeated(times) => self.repeat(times, &line, mode, &mut evidence)?,
            Setup::LauncherKilledCounted => self.kill_and_count(&line, mode, &mut evidence)?,
            Setup::Again => self.again(&line, mode, &mut evidence)?,
            Setup::Tools => self.tools(probe.id, mode, &mut evidence)?,
            Setup::Leased | Setup::Scoped => self.leased(setup, &line, mode, &mut evidence)?,
            _ => self.once(setup, &line, mode, &mut evidence)?,
        }
        if let Some((mut child, output)) = sibling {
            std::thread::sleep(Duration::from_millis(30));
            kill(child.id(), Signal::TERM);
            let mut ignored = Evidence::default();
            self.finish(&mut child, Duration::from_secs(3), &mut ignored);
            evidence.sibling = String::from_utf8_lossy(&output.take()).into_owned();
        }
        self.sweep_stragglers();
        if mode == Mode::Caged {
            self.examine(setup, &mut evidence);
        }
        Ok(evidence)
    }

    pub(super) fn once(
        &self,
        setup: Setup,
        line: &[OsString],
        mode: Mode,
        evidence: &mut Evidence,
    ) -> Result<(), RunError> {
        let watched = setup.is_limited() || setup == Setup::Watched;
        let sampler = watched.then(|| Sampler::start(&self.stage.layout.program));
        let mut child = self.spawn(line, setup, mode)?;
        let (stdout, stderr) = (child.stdout.take(), child.stderr.take());
        if setup == Setup::SlowReader {
            let until = Instant::now() + Duration::from_millis(1200);
            while Instant::now() < until {
                evidence.launcher_mib = evidence.launcher_mib.max(resident_mib(child.id()));
                std::thread::sleep(Duration::from_millis(20));
            }
        }
        let output = stdout.map(Collected::start);
        let errors = stderr.map(Collected::start);
        let mut patience = self.patience(PATIENCE);
        match setup {
            Setup::Limits | Setup::LimitsUntilEnded | Setup::Watched => {
                let holds = || output.as_ref().is_some_and(|said| said.contains(HOLDING));
                self.wait_for(patience, || {
                    holds() || matches!(child.try_wait(), Ok(Some(_)))
                });
                if setup != Setup::LimitsUntilEnded || mode != Mode::Caged {
                    sampler.iter().for_each(Sampler::look_again);
                    self.release();
                }
            }
            Setup::LauncherKilled => {
                // A launcher that relays output dies with what it has not passed on yet.
                let started = || output.as_ref().is_some_and(|said| said.contains(STARTED));
                let gone = |child: &mut Child| matches!(child.try_wait(), Ok(Some(_)));
                self.wait_for(patience, || {
                    (self.heartbeat() > 0 && started()) || gone(&mut child)
                });
                kill(child.id(), Signal::KILL);
            }
            Setup::Deadline => {
                patience = self.patience(Duration::from_secs(6));
                if !(self.adapter.limits && mode == Mode::Caged) {
                    self.wait_until(|| self.heartbeat() > 0);
                    std::thread::sleep(Duration::from_millis(300));
                    kill(child.id(), Signal::TERM);
                    patience = self.patience(Duration::from_secs(2));
                }
            }
            Setup::Locking => {
                self.wait_for_heartbeat(&mut child);
                let lock = FlockOperation::NonBlockingLockExclusive;
                let file = File::open(&self.stage.layout.lock_file);
                evidence.answered = file.is_ok_and(|file| flock(file, lock).is_err());
                self.release();
            }
            Setup::Listening => {
                self.wait_for_heartbeat(&mut child);
                let address = ("127.0.0.1", self.stage.params.free_port);
                evidence.answered = TcpStream::connect(address)
                    .and_then(|mut stream| {
                        stream.set_read_timeout(Some(Duration::from_millis(500)))?;
                        let mut greeting = [0u8; 6];
                        stream.read_exact(&mut greeting)?;
                        Ok(&greeting == b"inside")
                    })
                    .unwrap_or(false);
            }
            _ => {}
        }
        self.finish(&mut child, patience, evidence);
        if self.heartbeat() > 0 {
            evidence.survived = self.still_beating();
        }
        evidence.output = output.map(|stream| stream.take()).unwrap_or_default();
        evidence.errors = errors.map(|stream| stream.take()).unwrap_or_default();
        evidence.samples = sampler.map(Sampler::finish).unwrap_or_default();
        Ok(())
    }

    /// Tells a probe that it may let go of what it holds.
    fn release(&self) {
        // Where it cannot be told, it lets go by itself.
        let _ = std::fs::write(self.stage.layout.suite.join(RELEASE), "");
    }

    fn wait_for_heartbeat(&self, child: &mut Child) {
        let path = &self.stage.layout.heartbeat;
        self.wait_until(|| path.exists() || matches!(child.try_wait(), Ok(Some(_))));
    }

    fn wait_until(&self, ready: impl FnMut() -> bool) {
        self.wait_for(self.patience(Duration::from_secs(5)), ready);
    }

    fn wait_for(&self, longest: Duration, mut ready: impl FnMut() -> bool) {
        let started = Instant::now();
        while !ready() && started.elapsed() < longest {
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    fn repeat(
        &self,
        times: u32,
        line: &[OsString],
        mode: Mode,
        evidence: &mut Evidence,
    ) -> Result<(), RunError> {
        // One run first: what a sandbox makes once (a state directory) is no leak.
        self.once(Setup::Plain, line, mode, evidence)?;
        let before = Inventory::take(&self.stage);
        let times = if mode == Mode::Caged {
            times
        } else {
            times.min(3)
        };
        for _ in 0..times {
            self.once(Setup::Plain, line, mode, evidence)?;
        }
        evidence.leftovers = self.leftovers_since(&before);
        Ok(())
    }

    /// What was left; some things need a moment to go, what is a leak stays.
    fn leftovers_since(&self, before: &Inventory) -> Vec<String> {
        let left = Inventory::take(&self.stage).added(before);
        if left.is_empty() {
            return left;
        }
        std::thread::sleep(Duration::from_millis(400));
        Inventory::take(&self.stage).added(before)
    }

    /// Kills the launcher in the middle of a run. What it could not take away itself is to be
    /// gone after the next start at the latest.
    fn kill_and_count(
        &self,
        line: &[OsString],
        mode: Mode,
        evidence: &mut Evidence,
    ) -> Result<(), RunError> {
        let quiet = mustwork::quiet_command(&self.stage.layout.program);
        let other = self.line(Setup::Plain, mode, quiet);
        let mut ignored = Evidence::default();
        self.once(Setup::Plain, &other, mode, &mut ignored)?;
        let before = Inventory::take(&self.stage);
        self.once(Setup::LauncherKilled, line, mode, evidence)?;
        // Counted by its own probe; here it would only be in the way of the next run.
        self.still_beating();
        self.once(Setup::Plain, &other, mode, &mut ignored)?;
        evidence.leftovers = self.leftovers_since(&before);
        Ok(())
    }

    /// Starts a second sandbox of the same user and waits until it is ready.
    fn start_sibling(&mut self, mode: Mode) -> Result<(Child, Collected), RunError> {
        let stage = &self.stage;
        let second = stage.layout.second.clone();
        let program = second.join(".suite/program");
        let name = format!("{}-sibling", stage.params.abstract_stream);
        let port = stage.params.free_port;
        let words = [
            program.as_os_str().to_owned(),
            "probe".into(),
            "role".into(),
            "sibling".into(),
            name.clone().into(),
            port.to_string().into(),
        ];
        let line = match mode {
            Mode::Caged => self.adapter.line(&Launch {
                launcher: &self.launcher,
                workspace: &second,
                read: None,
                hide: None,
                limits: None,
                in_memory: false,
                seconds: None,
                outside: true,
                network: None,
                key: None,
                ceiling: None,
                image: None,
                system: self.adapter.boots.then_some(&*self.system),
                command: words.to_vec(),
            }),
            _ => words.to_vec(),
        };
        let mut child = self.spawn(&line, Setup::OutsideCwd, mode)?;
        let missing = || RunError::Start {
            program: "the second sandbox".to_owned(),
            source: io::Error::other("no output"),
        };
        let output = Collected::start(child.stdout.take().ok_or_else(missing)?);
        self.wait_until(|| output.contains("ready") || matches!(child.try_wait(), Ok(Some(_))));
        let pids = sampler::processes_of(&program);
        self.stage.params.sibling_pid = pids.last().copied().unwrap_or(0);
        self.stage.params.sibling_abstract = name;
        self.stage.params.sibling_port = port;
        if !output.contains("ready") {
            return Err(missing());
        }
        self.stage.log.note(Channel::Sibling, "started");
        Ok((child, output))
    }

    /// Runs one item of the must-work list.
    pub(super) fn launch_item(
        &mut self,
        item: &mustwork::Item,
        mode: Mode,
    ) -> Result<Evidence, RunError> {
        self.prepare()?;
        self.stage.publish(&self.stage.params)?;
        let command = item.command(&self.stage.layout.program);
        let line = self.line(Setup::Plain, mode, command);
        let mut evidence = Evidence {
            line: line.clone(),
            ..Evidence::default()
        };
        self.once(Setup::Plain, &line, mode, &mut evidence)?;
        self.sweep_stragglers();
        Ok(evidence)
    }

    /// The system calls that the sandbox says it lets through, if it says so.
    pub(super) fn ask_declared(&self) -> Option<Vec<String>> {
        if !self.adapter.commands {
            return None;
        }
        let mut command = Command::new(&self.launcher);
        command.args(["plan", "--json"]);
        if self.adapter.boots {
            command.args(["--boot", "--root"]).arg(&self.system);
        }
        let output = command
            .args(["--", "/bin/true"])
            .env_clear()
            .envs(self.stage.environment())
            .current_dir(&self.stage.params.workspace)
            .stdin(Stdio::from(File::open("/dev/null").ok()?))
            .output()
            .ok()?;
        crate::classes::sy::declared_in(&output.stdout)
    }
}
