//! The parts that the suite's program plays: outside, on the stage, inside.
//!
//! `run_suite` starts the program again as the stage; the stage starts it as canary, as control
//! and inside the sandbox. Every part but the first is reached by `probe role NAME ...`.

use crate::adapter::{Adapter, bundle};
use crate::catalogue;
use crate::inside::{self, Inside};
use crate::matrix::Matrix;
use crate::mustwork;
use crate::params::Params;
use crate::probe::Probe;
use crate::report::Report;
use crate::runner::Runner;
use crate::stage::{
    MACHINE, Programs, Stage, StageError, VMM, making, namespaces, random_hex, victim,
};
use ironcage_egress::ProxyIds;
use ironcage_guest::{GuestSetup, MachineConfig};
use ironcage_model::in_full;
use ironcage_plan::{Acceleration, NoKvm};
use ironcage_sys::attack;
use ironcage_sys::rustix::fs::{MemfdFlags, memfd_create};
use ironcage_sys::rustix::mount::{MountPropagationFlags, mount_change};
use ironcage_sys::rustix::process::setsid;
use serde::{Deserialize, Serialize};
use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// The port of the rule of a proxy that is taken over.
const PROXY_PORT: u16 = 443;

/// What to run.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Options {
    /// Ids of the probes.
    pub ids: Vec<String>,
    /// Whether the must-work list is run too.
    pub must_work: bool,
    /// A built-in sandbox, or nothing.
    pub against: Option<String>,
    /// A command line of another one, or nothing.
    pub against_command: Option<String>,
    /// Whether to show progress on standard error.
    pub progress: bool,
    /// Whether the cages lack what stops each probe.
    pub weakened: bool,
}

/// A suite that could not be run.
#[derive(Debug, thiserror::Error)]
pub enum SuiteError {
    /// The sandbox under test is not usable.
    #[error(transparent)]
    Adapter(#[from] crate::adapter::AdapterError),
    /// The program could not start itself as the stage.
    #[error("the stage cannot be started")]
    Start(#[source] io::Error),
    /// The stage said why it could not go on.
    #[error("{0}")]
    Stage(String),
}

/// What the stage tells the outside.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum StageReply {
    Report(Report),
    Matrix(Matrix),
    Failed(String),
}

fn adapter_of(options: &Options) -> Result<Adapter, crate::adapter::AdapterError> {
    match (&options.against_command, &options.against) {
        (Some(template), _) => Adapter::command(template),
        (None, Some(name)) => Adapter::named(name),
        (None, None) => Ok(Adapter::ironcage()),
    }
}

/// Runs the suite on a stage of its own and gives what it found. When the caller ends, for
/// whatever reason, the stage and everything on it ends too.
pub fn run_suite(options: &Options) -> Result<Report, SuiteError> {
    match on_a_stage(options)? {
        StageReply::Report(report) => Ok(report),
        StageReply::Matrix(_) => Err(SuiteError::Stage("the stage ran something else".into())),
        StageReply::Failed(why) => Err(SuiteError::Stage(why)),
    }
}

/// Tries probes in cages of Ironcage that lack what stops them. Needs root, without whom the user
/// namespace cannot be left out, and a program that is a test build.
pub fn run_matrix(ids: Vec<String>, progress: bool) -> Result<Matrix, SuiteError> {
    let options = Options {
        ids,
        must_work: false,
        // With the real files, so that a change to them is one.
        against: Some("ironcage-direct".into()),
        against_command: None,
        progress,
        weakened: true,
    };
    match on_a_stage(&options)? {
        StageReply::Matrix(matrix) => Ok(matrix),
        StageReply::Report(_) => Err(SuiteError::Stage("the stage ran something else".into())),
        StageReply::Failed(why) => Err(SuiteError::Stage(why)),
    }
}

fn on_a_stage(options: &Options) -> Result<StageReply, SuiteError> {
    adapter_of(options)?;
    let text = serde_json::to_string(options).map_err(|error| SuiteError::Start(error.into()))?;
    let program = std::env::current_exe().map_err(SuiteError::Start)?;
    let output = Command::new(program)
        .args(["probe", "role", "stage", &text])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .and_then(std::process::Child::wait_with_output)
        .map_err(SuiteError::Start)?;
    serde_json::from_slice(&output.stdout)
        .map_err(|_| SuiteError::Stage(format!("the stage ended early ({})", output.status)))
}

/// Plays a part; gives the exit status.
pub fn play(name: &str, rest: &[OsString]) -> u8 {
    let words: Vec<String> = rest
        .iter()
        .map(|word| word.to_string_lossy().into_owned())
        .collect();
    let done = match (name, words.as_slice()) {
        ("stage", [options]) => return stage(options),
        ("canary", _) => victim::run(),
        ("inside", [id, params]) => run_inside(id, Path::new(params)),
        ("as-proxy", [id, params]) => run_as_proxy(id, Path::new(params)),
        // Told here, where a confined process can open no file.
        ("inside-told", [id, params]) => run_told(id, params),
        ("as-vmm", [id, params]) => Err(become_vmm(id, Path::new(params))),
        ("scope", [params]) => crate::classes::le::scope(Path::new(params)),
        ("tool-server", [name, params]) => crate::classes::to::serve(name, Path::new(params)),
        ("works", [item]) => return mustwork::run(item),
        ("sibling", [abstract_name, port]) => crate::classes::su::sibling(abstract_name, port),
        ("privileged", [mask, grant, _, ..]) => privileged(mask, grant, &rest[2..]),
        ("terminal", [path, _, ..]) => from_terminal(Path::new(path), &rest[1..]),
        ("hoard", [_, ..]) => return hoard(rest),
        ("leases", [ironcage, workspace, _, ..]) => {
            let (ironcage, workspace) = (Path::new(ironcage), Path::new(workspace));
            let command = command_after_dashes(rest);
            command.and_then(|line| Err(bundle::become_leased(ironcage, workspace, line)))
        }
        ("peer", [kind, workspace, _, ..]) => {
            let command = command_after_dashes(rest);
            command.and_then(|line| Err(bundle::become_peer(kind, Path::new(workspace), line)))
        }
        _ => Err(io::Error::other(format!(
            "the suite has no part `{name}` with these arguments"
        ))),
    };
    match done {
        Ok(()) => 0,
        Err(error) => {
            eprintln!("ironcage: {name}: {error}");
            125
        }
    }
}

fn stage(options: &str) -> u8 {
    let answer = |answer: &StageReply| {
        let text = serde_json::to_vec(answer).unwrap_or_default();
        let mut out = io::stdout();
        // Without a reader there is nobody to tell.
        let _ = out.write_all(&text).and_then(|()| out.flush());
    };
    let prepared = || -> Result<(Options, PathBuf, Programs, String), StageError> {
        let options = serde_json::from_str(options)
            .map_err(|error| making("its options")(io::Error::from(error)))?;
        // Read now: the stage covers the home directory, in which the program may lie.
        let programs = Programs::read()?;
        let hostname = random_hex(6).map_err(making("random numbers"))?;
        Ok((
            options,
            namespaces::home_directory()?,
            programs,
            format!("stage-{hostname}"),
        ))
    };
    let ran = prepared().and_then(|(options, home, programs, hostname)| {
        namespaces::run_in_stage(&home, &hostname, || {
            match on_stage(&options, home.clone(), programs, &hostname) {
                Ok(found) => answer(&found),
                Err(error) => answer(&StageReply::Failed(in_full(&error))),
            }
            0
        })
    });
    match ran {
        Ok(code) => u8::try_from(code).unwrap_or(125),
        Err(error) => {
            answer(&StageReply::Failed(in_full(&error)));
            125
        }
    }
}

/// Why nothing could be run on the stage.
#[derive(Debug, thiserror::Error)]
enum OnStageError {
    #[error(transparent)]
    Adapter(#[from] crate::adapter::AdapterError),
    #[error(
        "`{0}` is not there on the stage, which covers /tmp, /run and the home directory; \
         put it elsewhere"
    )]
    Hidden(String),
    #[error(transparent)]
    Stage(#[from] StageError),
    #[error("the sandbox cannot be put on the stage")]
    Sandbox(#[source] io::Error),
}

fn on_stage(
    options: &Options,
    home: PathBuf,
    programs: Programs,
    hostname: &str,
) -> Result<StageReply, OnStageError> {
    let adapter = adapter_of(options)?;
    if let Some(program) = adapter.hidden_program() {
        return Err(OnStageError::Hidden(program.to_string()));
    }
    let stage = Stage::build(home, &programs, hostname.to_owned())?;
    let mut runner =
        Runner::new(stage, adapter, programs, options.progress).map_err(OnStageError::Sandbox)?;
    let ran = match options.weakened {
        true => runner.matrix(&options.ids).map(StageReply::Matrix),
        false => runner
            .run(&options.ids, options.must_work)
            .map(StageReply::Report),
    };
    Ok(ran?)
}

fn probe_inside(id: &str, params: &Path) -> io::Result<(&'static Probe, Inside)> {
    told_inside(id, &std::fs::read_to_string(params)?)
}

fn told_inside(id: &str, params: &str) -> io::Result<(&'static Probe, Inside)> {
    let params: Params = serde_json::from_str(params)?;
    let probe = catalogue::find(id).ok_or_else(|| io::Error::other(format!("no probe `{id}`")))?;
    let suite = params.workspace.join(".suite");
    let inside = Inside {
        program: suite.join("program"),
        ironcage: suite.join("ironcage"),
        params,
    };
    Ok((probe, inside))
}

fn run_inside(id: &str, params: &Path) -> io::Result<()> {
    let (probe, inside) = probe_inside(id, params)?;
    inside::run(probe, &inside);
    Ok(())
}

fn run_told(id: &str, params: &str) -> io::Result<()> {
    let (probe, inside) = told_inside(id, params)?;
    inside::run(probe, &inside);
    Ok(())
}

/// A probe in a process that is confined as the egress proxy of a cage with one host and one
/// port is: what somebody who takes the proxy over could do.
fn run_as_proxy(id: &str, params: &Path) -> io::Result<()> {
    /// As root gives each proxy: an id that nobody has.
    const NOBODYS: u32 = 0x6fff_0000;
    let (probe, inside) = probe_inside(id, params)?;
    let ids = ironcage_sys::rustix::process::geteuid()
        .is_root()
        .then_some(ProxyIds { id: NOBODYS });
    ironcage_egress::confine_as_proxy(&[PROXY_PORT], &ironcage_plan::proxy_filter(), ids)?;
    inside::run(probe, &inside);
    Ok(())
}

/// The description of a machine that a VMM confines itself for.
pub(crate) fn machine() -> serde_json::Result<String> {
    let guest = GuestSetup {
        uid: 0,
        gid: 0,
        root: false,
        hostname: String::new(),
        network: false,
        files: 0,
        processes: 0,
        filter: Vec::new(),
        time: 0,
        entropy: Vec::new(),
        relays: Vec::new(),
    };
    let config = MachineConfig {
        qemu: String::new(),
        loader: None,
        memory: 0,
        firmware: None,
        restore: false,
        kvm: false,
        vmm_filter: ironcage_plan::vmm_filter(Acceleration::Tcg(NoKvm::Absent)),
        files_filter: Vec::new(),
        guest,
    };
    config.encode()
}

/// Replaces this process by a probe that is confined by `ironcage-vmm` as QEMU is: what a guest that
/// takes QEMU over could do. By then it can open neither the program nor the parameters: the one is
/// standard input, the others are an argument.
fn become_vmm(id: &str, params: &Path) -> io::Error {
    let Some(suite) = params.parent() else {
        return io::ErrorKind::InvalidInput.into();
    };
    let program = || -> io::Result<File> {
        let mut program = File::from(memfd_create("program", MemfdFlags::CLOEXEC)?);
        program.write_all(&std::fs::read(std::env::current_exe()?)?)?;
        Ok(program)
    };
    match program().and_then(|program| Ok((program, std::fs::read_to_string(params)?))) {
        Ok((program, params)) => Command::new(suite.join(VMM))
            .arg("confined")
            .arg(suite.join(MACHINE))
            .args([
                "/proc/self/fd/0",
                "probe",
                "role",
                "inside-told",
                id,
                &params,
            ])
            .stdin(program)
            .exec(),
        Err(error) => error,
    }
}

fn command_after_dashes(rest: &[OsString]) -> io::Result<&[OsString]> {
    let start = rest
        .iter()
        .position(|word| word == "--")
        .map_or(0, |at| at + 1);
    rest.get(start..)
        .filter(|line| !line.is_empty())
        .ok_or_else(|| io::Error::other("no command"))
}

/// Replaces this process by the command after `--`.
fn become_command(rest: &[OsString]) -> io::Error {
    match command_after_dashes(rest) {
        Ok(line) => Command::new(&line[0]).args(&line[1..]).exec(),
        Err(error) => error,
    }
}

/// The control with every capability: a mount namespace of its own, the mask and the grant.
fn privileged(mask: &str, grant: &str, rest: &[OsString]) -> io::Result<()> {
    const NEWNS: i32 = ironcage_sys::rustix::thread::UnshareFlags::NEWNS.bits() as i32;
    attack::share_nothing(NEWNS)?;
    mount_change(
        "/",
        MountPropagationFlags::PRIVATE | MountPropagationFlags::REC,
    )?;
    if mask != "-" {
        let mask = std::ffi::CString::new(mask)?;
        attack::mount_fs(c"tmpfs", &mask, None)?;
    }
    if grant != "-" {
        let grant = std::ffi::CString::new(grant)?;
        attack::bind_mount(&grant, &grant, true)?;
    }
    Err(become_command(rest))
}

/// Starts the command as a shell in a terminal would: leader of a session on that terminal.
fn from_terminal(path: &Path, rest: &[OsString]) -> io::Result<()> {
    setsid()?;
    // Opening it makes it the controlling terminal, as this session has none.
    let _terminal = File::options().read(true).write(true).open(path)?;
    Err(become_command(rest))
}

/// A faulty launcher: keeps all output of its command in memory before passing it on.
fn hoard(rest: &[OsString]) -> u8 {
    let run = || -> io::Result<u8> {
        let line = command_after_dashes(rest)?;
        let mut child = Command::new(&line[0])
            .args(&line[1..])
            .stdout(Stdio::piped())
            .spawn()?;
        let mut all = Vec::new();
        if let Some(mut output) = child.stdout.take() {
            output.read_to_end(&mut all)?;
        }
        io::stdout().write_all(&all)?;
        Ok(child
            .wait()?
            .code()
            .and_then(|code| u8::try_from(code).ok())
            .unwrap_or(1))
    };
    run().unwrap_or(125)
}
