//! The command line, and the life of the service.

use crate::engine::{Engine, Settings};
use crate::keys::{Key, KeyError, Keys, SCOPES, Scope};
use crate::listen::{Address, Listener};
use crate::{api, clock, listen, router};
use clap::{Parser, Subcommand};
use ironcage_command::error::{CliError, CommandResult, EXIT_OURS};
use ironcage_command::json;
use ironcage_command::serve::{Action, Args, KeyAction, Options, Places};
use ironcage_programs::Program;
use ironcage_sys::rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use tokio::signal::unix::{SignalKind, signal};

/// Cages by HTTP
// Who reads its help typed `ironcage`.
#[derive(Debug, Parser)]
#[command(name = "ironcage", version, max_term_width = 100)]
struct Cli {
    #[command(flatten)]
    places: Places,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Serve(Args),
}

pub(crate) fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => {
            // Printing can only fail because nobody is left to read it.
            let _ = error.print();
            return ExitCode::from(if error.use_stderr() { EXIT_OURS } else { 0 });
        }
    };
    let Command::Serve(args) = cli.command;
    match run(&cli.places, args) {
        Ok(code) => ExitCode::from(code),
        Err(error) => {
            error.print();
            ExitCode::from(EXIT_OURS)
        }
    }
}

fn run(places: &Places, args: Args) -> CommandResult {
    let keys = Keys::in_data(&places.data);
    match args.action {
        None => serve(places, &args.options),
        Some(Action::Openapi) => {
            let text = api::description();
            anstream::print!("{}", text.map_err(|error| CliError::from_error(&error))?);
            Ok(0)
        }
        Some(Action::Env { e2b, listen }) => env(places, &keys, e2b, &listen),
        Some(Action::Key { action }) => key(places, &keys, action),
    }
}

fn key_error(error: KeyError) -> CliError {
    let shown = CliError::from_error(&error);
    match error {
        KeyError::NotFound { .. } => shown.hint("`ironcage serve key list` shows the keys"),
        KeyError::Invalid { .. } => shown.hint("remove the file; nothing else is lost"),
        _ => shown,
    }
}

fn make(directory: &Path) -> Result<(), CliError> {
    let made = fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(directory);
    made.map_err(|error| CliError::new(format!("cannot create {}: {error}", directory.display())))
}

fn address(text: &str) -> Result<Address, CliError> {
    text.parse()
        .map_err(|error| CliError::new(format!("cannot listen on {text}: {error}")))
}

fn env(places: &Places, keys: &Keys, e2b: bool, listen: &str) -> CommandResult {
    make(&places.data)?;
    let key = keys.local().map_err(key_error)?;
    let address = address(listen)?;
    match e2b {
        true => {
            if matches!(address, Address::Unix(_)) {
                return Err(CliError::new("E2B's SDKs cannot use a Unix socket")
                    .hint("start the service with --listen 127.0.0.1:PORT"));
            }
            anstream::println!("export E2B_API_URL='{address}'");
            anstream::println!("export E2B_SANDBOX_URL='{address}'");
            anstream::println!("export E2B_API_KEY='{key}'");
        }
        false => {
            anstream::println!("export IRONCAGE_URL='{address}'");
            anstream::println!("export IRONCAGE_API_KEY='{key}'");
        }
    }
    Ok(0)
}

#[derive(serde::Serialize)]
struct ShownKey {
    id: String,
    name: String,
    project: String,
    scopes: BTreeSet<Scope>,
    created: String,
}

impl From<Key> for ShownKey {
    fn from(key: Key) -> ShownKey {
        ShownKey {
            created: clock::rfc3339(key.created),
            id: key.id,
            name: key.name,
            project: key.project,
            scopes: key.scopes,
        }
    }
}

fn key(places: &Places, keys: &Keys, action: KeyAction) -> CommandResult {
    match action {
        KeyAction::Create {
            name,
            project,
            scopes,
        } => {
            make(&places.data)?;
            let scopes = scopes.iter().map(|scope| scope.parse::<Scope>());
            let scopes: BTreeSet<Scope> =
                scopes.collect::<Result<_, _>>().map_err(CliError::new)?;
            let scopes = match scopes.is_empty() {
                true => [Scope::Cages].into(),
                false => scopes,
            };
            let (_, text) = keys.create(&name, &project, scopes).map_err(key_error)?;
            anstream::println!("{text}");
        }
        KeyAction::List { json: true } => {
            let shown = keys
                .list()
                .map_err(key_error)?
                .into_iter()
                .map(ShownKey::from);
            let text = json::pretty(&shown.collect::<Vec<_>>());
            let text =
                text.map_err(|error| CliError::new(format!("cannot print JSON: {error}")))?;
            anstream::println!("{text}");
        }
        KeyAction::List { json: false } => {
            for key in keys.list().map_err(key_error)? {
                let scopes: Vec<_> = SCOPES
                    .iter()
                    .filter(|scope| key.scopes.contains(scope))
                    .map(|scope| scope.name())
                    .collect();
                let (created, name) = (
                    clock::rfc3339(key.created),
                    ironcage_model::Printable::new(&key.name).to_string(),
                );
                anstream::println!(
                    "{}  {created}  {}  {}  {name}",
                    key.id,
                    key.project,
                    scopes.join(",")
                );
            }
        }
        KeyAction::Revoke { id } => {
            keys.revoke(&id).map_err(key_error)?;
            anstream::println!("{id}");
        }
    }
    Ok(0)
}

/// Where cages without a directory have their workspace: not below the service's own files, which
/// cages must not see.
fn workspaces() -> Result<PathBuf, CliError> {
    let home = std::env::var_os("HOME").map(PathBuf::from);
    let home = home.filter(|home| home.is_absolute()).ok_or_else(|| {
        CliError::new("cannot find your home directory: HOME is not an absolute path")
            .hint("set HOME to your home directory")
    })?;
    Ok(home.join(".local/share/ironcage"))
}

/// Lets this process open as many files as it may: a connection takes one, and a cage that is used some.
fn raise_open_files() -> Result<(), CliError> {
    let files = getrlimit(Resource::Nofile);
    let raised = Rlimit {
        current: files.maximum,
        ..files
    };
    setrlimit(Resource::Nofile, raised).map_err(|error| {
        CliError::new(format!("cannot raise the limit of open files: {error}"))
            .hint("ulimit -Sn shows it, and ulimit -Hn how far it can be raised")
    })
}

fn serve(places: &Places, options: &Options) -> CommandResult {
    let address = address(&options.listen)?;
    raise_open_files()?;
    make(&places.data)?;
    let inside = Program::Inside
        .find()
        .map_err(|error| CliError::from_error(&error).hint(error.hint()))?;
    let settings = Settings {
        data: places.data.clone(),
        workspaces: workspaces()?,
        ironcage: places.ironcage.clone(),
        inside,
        most_cages: options.max_cages,
        internet: options.allow_internet,
    };
    make(&settings.workspaces.join("empty"))?;
    let engine = Engine::open(settings).map_err(|error| {
        CliError::from_error(&error)
            .hint("one service uses a data directory at a time: is another one running?")
    })?;
    engine.keys.local().map_err(key_error)?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(std::thread::available_parallelism().map_or(2, |count| count.get().min(8)))
        .enable_all()
        .build()
        .map_err(|error| CliError::new(format!("cannot start the runtime: {error}")))?;
    let done = runtime.block_on(async {
        let listener = Listener::bind(&address).await.map_err(|error| {
            CliError::new(format!("cannot listen on {}: {error}", options.listen))
                .hint("--listen names another address")
        })?;
        engine.recover().await.map_err(|error| {
            CliError::new(format!("cannot find the cages again: {}", error.message))
        })?;
        let shown = listener.address().unwrap_or(address);
        anstream::println!("ironcage serve: listening on {shown}");
        tokio::spawn(std::sync::Arc::clone(&engine).keep_time());
        let router = router::router(engine);
        listen::serve(listener, router, options.max_connections, ended()).await;
        Ok(0)
    });
    // Tasks that wait for supervisors hold nothing that is lost.
    runtime.shutdown_background();
    done
}

/// Waits for a signal that asks the service to end.
async fn ended() {
    let (Ok(mut term), Ok(mut interrupt)) = (
        signal(SignalKind::terminate()),
        signal(SignalKind::interrupt()),
    ) else {
        return std::future::pending().await;
    };
    tokio::select! {
        _ = term.recv() => {}
        _ = interrupt.recv() => {}
    }
}
