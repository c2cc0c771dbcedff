//! The `ironcage-oci-runtime` program: runc's command line, for Docker, podman, containerd and
//! Kubernetes.
//!
//! Each command is one process that ends; nothing stays beside a container. `create` builds it up to
//! the program (`create.rs`, `init.rs`), `start` lets that run. On top of what the engine's
//! `config.json` says come Ironcage's layers (`policy.rs`).
#![forbid(unsafe_code)]

mod audit;
mod cgroup;
mod channel;
mod check;
mod clock;
mod create;
mod error;
mod exec;
mod features;
mod hooks;
mod init;
mod kernel;
mod manage;
mod namespaces;
mod options;
mod policy;
mod process;
mod protect;
mod rootfs;
mod seccomp;
mod signal;
mod spec;
mod state;

use clap::Parser as _;
use error::Error;
use options::{Cli, Command, Format, Global};
use state::Store;
use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::process::ExitCode;

/// Of a runtime's own errors; engines read the text from the log.
const FAILED: u8 = 1;

fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => {
            // Printing can only fail because nobody is left to read it.
            let _ = error.print();
            return ExitCode::from(if error.use_stderr() { FAILED } else { 0 });
        }
    };
    let global = cli.global;
    match run(&global, cli.command) {
        Ok(status) => ExitCode::from(status),
        Err(error) => {
            report(&global, &error);
            ExitCode::from(FAILED)
        }
    }
}

/// Engines read the last line of the log, people the terminal.
fn report(global: &Global, error: &Error) {
    let text = ironcage_model::Printable::new(&error.to_string()).to_string();
    if let Some(path) = &global.log {
        let line = match global.log_format {
            Format::Json => {
                serde_json::json!({ "level": "error", "msg": text, "time": clock::now() })
                    .to_string()
            }
            Format::Text => format!("time={:?} level=error msg={text:?}", clock::now()),
        };
        let opened = std::fs::OpenOptions::new()
            .append(true)
            .create(true)
            .mode(0o600)
            .open(path);
        // Without its log an engine still has the exit status and the terminal's text.
        let _ = opened.and_then(|mut file| writeln!(file, "{line}"));
    }
    eprintln!("ironcage-oci-runtime: {text}");
    if let Some(hint) = error.hint() {
        eprintln!("hint: {hint}");
    }
}

fn run(global: &Global, command: Command) -> Result<u8, Error> {
    if global.systemd_cgroup {
        return Err(
            Error::refused("use --systemd-cgroup", "this runtime writes cgroups itself").with_hint(
                "set the engine's cgroup driver to cgroupfs (native.cgroupdriver=cgroupfs, SystemdCgroup = false, cgroupDriver: cgroupfs)",
            ),
        );
    }
    let store = Store::new(global.root());
    let said = match command {
        Command::Create(args) => {
            protect::enter()?;
            create::create(&store, &args.request(global)?)?;
            return Ok(0);
        }
        Command::Run(args) => {
            protect::enter()?;
            let (request, detach) = (args.create.request(global)?, args.detach);
            manage::become_reaper()?;
            create::create(&store, &request)?;
            return manage::run_to_its_end(&store, &request.id, detach);
        }
        Command::Exec(args) => {
            protect::enter()?;
            let request = args.request(&store)?;
            return exec::exec(&store, request);
        }
        Command::Start { id } => manage::start(&store, &id).map(|()| None)?,
        Command::State { id } => Some(manage::state(&store, &id)?),
        Command::Kill { id, signal, all } => {
            manage::kill(&store, &id, signal::parse(&signal)?, all).map(|()| None)?
        }
        Command::Delete { id, force } => manage::delete(&store, &id, force).map(|()| None)?,
        Command::Pause { id } => manage::pause(&store, &id).map(|()| None)?,
        Command::Resume { id } => manage::resume(&store, &id).map(|()| None)?,
        Command::Ps { id, format, args } => Some(manage::ps(&store, &id, format.is_json(), &args)?),
        Command::List { format, quiet } => {
            Some(manage::list(&store, format.is_json(), quiet)).filter(|text| !text.is_empty())
        }
        Command::Update(args) => {
            let id = args.id.clone();
            manage::update(&store, &id, args.resources()?).map(|()| None)?
        }
        Command::Events {
            id,
            stats,
            interval,
        } => manage::events(&store, &id, stats, interval).map(|()| None)?,
        Command::Features => Some(format!("{:#}", features::features())),
        Command::Checkpoint { .. } | Command::Restore { .. } => {
            return Err(Error::refused(
                "checkpoint a container",
                "its filters and its Landlock rules cannot be put on a process again",
            ));
        }
    };
    if let Some(said) = said {
        // An engine that stopped reading has what it wants.
        let _ = writeln!(std::io::stdout(), "{said}");
    }
    Ok(0)
}
