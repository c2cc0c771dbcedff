//! The command line, and the life of the service.

use crate::engine::{Engine, Settings, check_warm};
use crate::keys::{Key, KeyError, Keys, SCOPES, Scope};
use crate::listen::{Address, Listener};
use crate::projects::{Ceiling, Project, Projects, Quota};
use crate::tls::{Tls, TlsError};
use crate::{activation, api, clock, listen, router};
use clap::{Parser, Subcommand};
use ironcage_command::error::{CliError, CommandResult, EXIT_OURS};
use ironcage_command::json;
use ironcage_command::serve::{
    Action, Args, KeyAction, Options, Places, ProjectAction, ProjectBounds,
};
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
        Some(Action::Dashboard {
            project,
            read_only,
            listen,
        }) => link(places, project.as_deref(), read_only, &listen),
        Some(Action::Env { e2b, listen }) => env(places, &keys, e2b, &listen),
        Some(Action::Key { action }) => key(places, &keys, action),
        Some(Action::Project { action }) => project(places, action),
        Some(Action::Webhook { action }) => crate::webhooks::command(&places.data, action),
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

fn link(places: &Places, project: Option<&str>, read_only: bool, listen: &str) -> CommandResult {
    make(&places.data)?;
    let address = address(listen)?;
    if matches!(address, Address::Unix(_)) {
        return Err(CliError::new("a browser cannot use a Unix socket")
            .hint("start the service with --listen 127.0.0.1:PORT"));
    }
    let link = crate::dashboard::link(&places.data, project, read_only).map_err(key_error)?;
    // Behind the `#`, so that it is never sent as part of an address.
    anstream::println!("{address}/#link={link}");
    Ok(0)
}

#[derive(serde::Serialize)]
struct ShownKey {
    id: String,
    name: String,
    project: String,
    scopes: BTreeSet<Scope>,
    created: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    expires: Option<String>,
}

impl From<Key> for ShownKey {
    fn from(key: Key) -> ShownKey {
        ShownKey {
            created: clock::rfc3339(key.created),
            expires: key.expires.map(clock::rfc3339),
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
            rate,
            max_cages,
            max_memory,
        } => {
            make(&places.data)?;
            let scopes = scopes.iter().map(|scope| scope.parse::<Scope>());
            let scopes: BTreeSet<Scope> =
                scopes.collect::<Result<_, _>>().map_err(CliError::new)?;
            let scopes = match scopes.is_empty() {
                true => [Scope::Cages].into(),
                false => scopes,
            };
            let quota = Quota {
                cages: max_cages,
                memory: max_memory.map(|size| size.0),
                rate,
            };
            let made = keys.create_with(&name, &project, scopes, quota, None);
            let (_, text) = made.map_err(key_error)?;
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

/// What was given, as a project is kept.
fn bounded(bounds: ProjectBounds) -> Result<Project, CliError> {
    let hosts = bounds
        .hosts
        .iter()
        .map(|host| ironcage_policy::allowed(host).map_err(|error| CliError::from_error(&error)));
    let hosts: Vec<_> = hosts.collect::<Result<_, _>>()?;
    let profiles: BTreeSet<String> = bounds.profiles.into_iter().collect();
    Ok(Project {
        cages: bounds.max_cages,
        memory: bounds.max_memory.map(|size| size.0),
        cages_per_minute: bounds.cages_per_minute,
        ceiling: Ceiling {
            profiles: (!profiles.is_empty()).then_some(profiles),
            hosts: (!hosts.is_empty()).then_some(hosts),
            memory: bounds.cage_memory.map(|size| size.0),
            timeout: bounds.cage_timeout,
        },
    })
}

fn project(places: &Places, action: ProjectAction) -> CommandResult {
    let projects = Projects::in_data(&places.data);
    let (name, project) = match action {
        ProjectAction::Set { name, bounds } => {
            make(&places.data)?;
            let project = bounded(*bounds)?;
            projects.set(&name, &project).map_err(key_error)?;
            (name, project)
        }
        ProjectAction::Show { name } => {
            let project = projects.get(&name).map_err(key_error)?;
            (name, project)
        }
    };
    let shown = serde_json::json!({ "project": name, "bounds": project });
    let text = json::pretty(&shown);
    let text = text.map_err(|error| CliError::new(format!("cannot print JSON: {error}")))?;
    anstream::println!("{text}");
    Ok(0)
}

fn home() -> Result<PathBuf, CliError> {
    let home = std::env::var_os("HOME").map(PathBuf::from);
    home.filter(|home| home.is_absolute()).ok_or_else(|| {
        CliError::new("cannot find your home directory: HOME is not an absolute path")
            .hint("set HOME to your home directory")
    })
}

/// The directory of the user's configuration, as `ironcage` finds it.
fn config(home: &Path) -> PathBuf {
    let named = std::env::var_os("XDG_CONFIG_HOME").map(PathBuf::from);
    let named = named.filter(|path| path.is_absolute());
    named
        .unwrap_or_else(|| home.join(".config"))
        .join("ironcage")
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

/// The environment of the code interpreter, where it has a Python.
fn interpreter(directory: &Path) -> Result<PathBuf, CliError> {
    let failed = |error: std::io::Error| {
        CliError::new(format!(
            "cannot use {} as the code interpreter: {error}",
            directory.display()
        ))
        .hint("make it with `python3 -m venv DIRECTORY && DIRECTORY/bin/pip install ipykernel`")
    };
    let directory = directory.canonicalize().map_err(failed)?;
    fs::metadata(directory.join("bin/python")).map_err(failed)?;
    Ok(directory)
}

/// The certificate, where one is named.
fn certificate(options: &Options) -> Result<Option<Tls>, CliError> {
    let (Some(certificate), Some(key)) = (&options.tls_cert, &options.tls_key) else {
        return Ok(None);
    };
    let loaded = Tls::load(certificate, key).map_err(|error| {
        let shown = CliError::from_error(&error);
        match error {
            TlsError::OpenKey { path } => shown.hint(format!("chmod o= {}", path.display())),
            _ => shown.hint("--tls-cert names a certificate chain, and --tls-key its key, as PEM"),
        }
    })?;
    Ok(Some(loaded))
}

/// The socket that is listened on: the one that systemd passes, or one of the service's own.
async fn listener(options: &Options, tls: bool) -> Result<(Listener, Address), CliError> {
    let own = address(&options.listen)?;
    let passed = activation::socket().map_err(|error| CliError::from_error(&error))?;
    let failed = |error: std::io::Error| {
        CliError::new(format!("cannot listen on {}: {error}", options.listen))
            .hint("--listen names another address")
    };
    let tls_needed = |address: &Address| {
        if !tls && address.is_remote() {
            return Err(CliError::new(format!(
                "cannot listen on {address}: other machines reach it, and the service has no certificate"
            ))
            .hint("name one with --tls-cert FILE and --tls-key FILE, or listen on loopback behind a TLS proxy"));
        }
        let wants = matches!(address, Address::Tcp { tls: true, .. });
        match wants && !tls {
            true => Err(CliError::new(format!(
                "cannot listen on {address}: the service has no certificate"
            ))
            .hint("name one with --tls-cert FILE and --tls-key FILE")),
            false => Ok(()),
        }
    };
    let listener = match passed {
        Some(socket) => Listener::of(socket).map_err(failed)?,
        None => {
            tls_needed(&own)?;
            Listener::bind(&own).await.map_err(failed)?
        }
    };
    let address = listener.address(tls).map_err(failed)?;
    // One that was passed is held to the same.
    tls_needed(&address)?;
    Ok((listener, address))
}

fn serve(places: &Places, options: &Options) -> CommandResult {
    let tls = certificate(options)?;
    raise_open_files()?;
    make(&places.data)?;
    let inside = Program::Inside
        .find()
        .map_err(|error| CliError::from_error(&error).hint(error.hint()))?;
    let code_interpreter = options.code_interpreter.as_deref();
    let code_interpreter = code_interpreter.map(interpreter).transpose()?;
    let home = home()?;
    let settings = Settings {
        data: places.data.clone(),
        // Not below the service's own files, which cages must not see.
        workspaces: home.join(".local/share/ironcage"),
        config: config(&home),
        home,
        ironcage: places.ironcage.clone(),
        inside,
        most_cages: options.max_cages,
        rate: options.rate,
        internet: options.allow_internet,
        code_interpreter,
        warm: options.warm.clone(),
    };
    make(&settings.workspaces.join("empty"))?;
    check_warm(&settings).map_err(|why| {
        CliError::new(format!(
            "cannot keep cages warm: {}",
            ironcage_model::in_full(&why)
        ))
        .hint("leave this profile out of --warm; its cages start when they are created")
    })?;
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
        let (listener, address) = listener(options, tls.is_some()).await?;
        engine.recover().await.map_err(|error| {
            CliError::new(format!("cannot find the cages again: {}", error.message))
        })?;
        anstream::println!("ironcage serve: listening on {address}");
        activation::notify("READY=1");
        tokio::spawn(std::sync::Arc::clone(&engine).keep_time());
        tokio::spawn(std::sync::Arc::clone(&engine).keep_warm());
        tokio::spawn(std::sync::Arc::clone(&engine).deliver_webhooks());
        tokio::spawn(std::sync::Arc::clone(&engine).keep_usage());
        let router = router::router(std::sync::Arc::clone(&engine));
        let end = async {
            ended().await;
            activation::notify("STOPPING=1");
            engine.events.stop();
        };
        listen::serve(listener, tls, router, options.max_connections, end).await;
        engine.end_warm_cages().await;
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
