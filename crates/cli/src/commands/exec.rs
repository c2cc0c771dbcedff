//! `ironcage exec`.

use crate::completion::running_cages;
use crate::error::{CliError, CommandResult};
use crate::exec_status::StatusFile;
use crate::running_change::RunningChange;
use crate::values::span;
use crate::{cages, paths};
use ironcage_client::{Connection, ExecOptions, ScopeOptions, exec};
use ironcage_control::{GrantRequest, LeaseTarget};
use ironcage_host::SystemFiles;
use ironcage_model::{Ending, LeaseOrigin, Printable, Resource, Right, Term};
use ironcage_policy::requests;
use ironcage_workspace::{ApplyOptions, Change, Selection, Store, take_owners_rights};
use std::ffi::{OsStr, OsString};
use std::io::IsTerminal as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Exit status of a command whose time was up, as timeout(1) has it.
const EXIT_TIME_UP: u8 = 124;

/// Run another command in a running cage
///
/// The command has a terminal if you are at one, as `ironcage run` gives it one. Otherwise it has
/// pipes, and standard input only with -i. It runs under every layer of the cage: mount view, limits, filters. It has the cage's
/// environment, with --env on top. It is killed when this command exits, unless -d is given; its
/// background processes live as long as the cage.
///
/// With --scope the command runs beside the cage instead of in it: it shares the workspace, and
/// neither sees the other's processes. Only the scope holds the leases of --lease, and everything
/// in the scope ends with the command.
///
/// Exit status: that of the command; 124 if --time ended it, 125 for Ironcage's own errors, 126 if
/// the command cannot be executed, 127 if it is not found, 128 plus the signal number if a signal
/// killed it.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Forward standard input
    #[arg(short, long)]
    interactive: bool,
    /// Give the command a terminal [default: if standard input and output are terminals]
    #[arg(short = 't', long, overrides_with = "no_tty")]
    tty: bool,
    /// Give the command pipes, even at a terminal
    #[arg(short = 'T', long)]
    no_tty: bool,
    /// Leave the command running; its output goes to the cage's output
    #[arg(short, long, conflicts_with_all = ["interactive", "tty"])]
    detach: bool,
    /// Set an environment variable, or pass yours through (can be repeated)
    #[arg(short, long, value_name = "NAME[=VALUE]")]
    env: Vec<OsString>,
    /// Working directory in the cage [default: the cage's]
    #[arg(long, value_name = "DIR", value_hint = clap::ValueHint::DirPath)]
    cwd: Option<OsString>,
    /// Pass escape sequences through that act on your terminal: clipboard, notifications, reports
    #[arg(long)]
    raw_terminal: bool,
    /// Run the command in a scope of its own, beside the cage
    #[arg(long, conflicts_with = "detach")]
    scope: bool,
    /// Grant the command a lease within the cage's ceiling: read=PATH or write=PATH (separate
    /// several with `:`), host=NAME[:PORT], 'http=GET NAME/PATH', secret=NAME, socket=PATH,
    /// publish=OUTER:INNER, memory=SIZE, cpus=N, pids=N, syscalls=GROUP, capability=NAME (can be
    /// repeated; implies --scope)
    #[arg(long, value_name = "WHAT", conflicts_with = "detach")]
    lease: Vec<OsString>,
    /// Reason for the leases, for the audit log
    #[arg(long, value_name = "TEXT", default_value = "", requires = "lease")]
    reason: String,
    /// Apply the cage's pending change if the command succeeds; withheld and flagged files stay
    /// pending unless the cage's policy lists them (`unprotect`)
    #[arg(long, conflicts_with = "detach")]
    commit_on_success: bool,
    /// Execute the tool call in FILE (`-` for standard input) instead of a command: Anthropic
    /// messages, OpenAI chat completions or responses, or MCP. It runs in a scope with the leases
    /// it needs, if the ceiling grants them automatically; the result has the format of the call.
    /// Exit status 0 if it was executed, 1 if it was denied
    #[arg(
        long, value_name = "FILE", value_hint = clap::ValueHint::FilePath,
        conflicts_with_all = ["command", "interactive", "tty", "no_tty", "detach", "env", "cwd", "raw_terminal", "scope", "lease", "reason", "commit_on_success"]
    )]
    intent: Option<PathBuf>,
    /// Kill the command and its process group after this time, for example 30s or 500ms
    #[arg(long, value_name = "TIME", value_parser = span, conflicts_with_all = ["detach", "intent"])]
    time: Option<Duration>,
    /// Write how the command ended, or why it did not start, to FILE as JSON; /dev/fd/N is a
    /// descriptor that you pass
    #[arg(long, value_name = "FILE", value_hint = clap::ValueHint::FilePath, conflicts_with_all = ["detach", "intent"])]
    status_file: Option<PathBuf>,
    /// Seconds to wait for approval of what the tool call needs
    #[arg(long, value_name = "SECONDS", default_value_t = 0, requires = "intent")]
    wait: u64,
    /// Cage ID, unique ID prefix, or name
    #[arg(value_name = "ID", add = running_cages())]
    id: String,
    /// Command and its arguments; put `--` before a command that begins with `-` [default: your
    /// SHELL]
    #[arg(trailing_var_arg = true, value_name = "COMMAND", value_hint = clap::ValueHint::CommandWithArguments)]
    command: Vec<OsString>,
}

impl Args {
    /// Parses `ID -- COMMAND` without clap, which takes longer than the rest of an exec's client.
    /// `None` for anything else.
    pub(crate) fn plain(words: &[OsString]) -> Option<Args> {
        let end = words.iter().position(|word| word == "--")?;
        let (flags, rest) = words.split_at(end);
        let command = rest.get(1..).filter(|command| !command.is_empty())?;
        let [id] = flags else { return None };
        let id = id.to_str().filter(|id| !id.starts_with('-'))?;
        Some(Args {
            interactive: false,
            tty: false,
            no_tty: false,
            detach: false,
            env: Vec::new(),
            cwd: None,
            raw_terminal: false,
            scope: false,
            lease: Vec::new(),
            reason: String::new(),
            commit_on_success: false,
            intent: None,
            time: None,
            status_file: None,
            wait: 0,
            id: id.to_owned(),
            command: command.to_vec(),
        })
    }
}

pub(crate) fn run(args: Args) -> CommandResult {
    if let Some(path) = &args.intent {
        return super::tool_call::run(&args.id, path, args.wait);
    }
    let mut status = StatusFile::create(args.status_file.as_deref())?;
    let done = execute(args, &mut status);
    if let Err(error) = &done {
        status.failed(error)?;
    }
    done
}

fn execute(args: Args, status: &mut StatusFile) -> CommandResult {
    let command = match args.command.is_empty() {
        true => vec![super::shell::users_shell()],
        false => args.command,
    };
    let program = command.first().cloned().unwrap_or_default();
    let at_terminal = !args.detach && !args.no_tty && ironcage_terminal::is_interactive();
    let terminal = args.tty || at_terminal;
    let mut env = args
        .env
        .into_iter()
        .map(variable)
        .collect::<Result<Vec<_>, _>>()?
        .into_iter()
        .flatten()
        .collect::<Vec<_>>();
    // A program on a terminal needs its type.
    if terminal
        && !env.iter().any(|(name, _)| name == "TERM")
        && let Some(kind) = std::env::var_os("TERM")
    {
        env.push(("TERM".into(), kind));
    }
    let scope = scope_of(args.scope, &args.lease, &args.reason)?;
    let committed = match args.commit_on_success {
        true => Some(CommitOnSuccess::find(&args.id)?),
        false => None,
    };
    let connection = cages::connect(&args.id)?;
    let end = exec(
        &connection,
        ExecOptions {
            argv: command,
            env,
            cwd: args.cwd,
            // Without input nobody could leave the terminal.
            input: args.interactive || (terminal && std::io::stdin().is_terminal()),
            terminal,
            detached: args.detach,
            raw_terminal: args.raw_terminal,
            scope,
            time: args.time,
        },
    )
    .map_err(cages::client_error)?;
    let Some(end) = end else {
        return Ok(0);
    };
    let ending = &end.ending;
    let exit_code = match end.timed_out {
        true => EXIT_TIME_UP,
        false => ending.exit_code(),
    };
    if end.timed_out && !status.is_wanted() {
        anstream::eprintln!(
            "ironcage: killed {}: the time of --time is up",
            Printable::new(&program)
        );
    }
    status.ended(&end, exit_code)?;
    if let Ending::NotExecuted { errno } = ending {
        let reason = std::io::Error::from_raw_os_error(*errno);
        anstream::eprintln!(
            "ironcage: cannot execute {} in the cage: {reason}",
            Printable::new(&program)
        );
    }
    match committed {
        Some(committed) if exit_code == 0 => committed.apply(),
        _ => Ok(exit_code),
    }
}

/// The change to apply if the command succeeds.
struct CommitOnSuccess {
    store: Store,
    change: Change,
    cage: Connection,
}

impl CommitOnSuccess {
    fn find(cage: &str) -> Result<CommitOnSuccess, CliError> {
        let store = paths::changes(
            &paths::home(&SystemFiles::default())?,
            &SystemFiles::default(),
        );
        let cage = cages::connect(cage)?;
        let change = cages::change_of(&store, &cage)?.ok_or_else(|| {
            CliError::new("cannot use --commit-on-success: the cage has no pending change")
                .hint("its workspace is not copy-on-write, so writes go to the real files at once")
        })?;
        Ok(CommitOnSuccess {
            store,
            change,
            cage,
        })
    }

    fn apply(self) -> CommandResult {
        // Refused on hosts without user namespaces; a file that cannot be read there is reported.
        let _ = take_owners_rights();
        let options = ApplyOptions {
            hold_flagged: true,
            allowed: self.change.allowed().to_vec(),
            ..ApplyOptions::default()
        };
        let running = RunningChange::new(&self.store, &self.change, &self.cage);
        let applied = running.apply(&Selection::everything(), &options)?.applied;
        anstream::eprintln!("ironcage: {applied}");
        Ok(u8::from(!applied.conflicts.is_empty()))
    }
}

/// The scope that the flags describe.
fn scope_of(
    scope: bool,
    words: &[OsString],
    reason: &str,
) -> Result<Option<ScopeOptions>, CliError> {
    use std::os::unix::ffi::{OsStrExt, OsStringExt};
    let mut leases = Vec::new();
    for word in words {
        let wrong = || {
            CliError::new(format!(
                "invalid lease `{}`: expected read=PATH, write=PATH, host=NAME, http=REQUESTS, secret=NAME, socket=PATH, publish=OUTER:INNER, memory=SIZE, cpus=N, pids=N, syscalls=GROUP or capability=NAME",
                Printable::new(word)
            ))
        };
        let bytes = word.as_bytes();
        let place = bytes.iter().position(|byte| *byte == b'=');
        let (right, paths) = bytes.split_at(place.ok_or_else(wrong)?);
        let paths = paths.get(1..).unwrap_or_default();
        let grant = |wanted| GrantRequest {
            wanted,
            term: Term::UntilRevoked,
            uses: None,
            reason: reason.to_owned(),
        };
        let name = || std::str::from_utf8(paths).map_err(|_| wrong());
        let right = match right {
            b"read" => Right::Read,
            b"write" => Right::Write,
            kind => {
                let resource = match kind {
                    b"host" => Resource::Host {
                        rule: name()?.parse().map_err(|_| wrong())?,
                    },
                    b"http" => Resource::Http {
                        rule: requests(name()?).map_err(|_| wrong())?,
                    },
                    b"secret" => Resource::Secret {
                        name: name()?.to_owned(),
                    },
                    b"socket" => Resource::Socket {
                        path: super::lease::grant::socket(Path::new(OsStr::from_bytes(paths)))?,
                    },
                    b"publish" => Resource::Port {
                        publish: name()?.parse().map_err(|_| wrong())?,
                    },
                    b"memory" => {
                        super::lease::grant::memory(name()?.parse().map_err(|_| wrong())?)?
                    }
                    b"cpus" => super::lease::grant::cpus(name()?.parse().map_err(|_| wrong())?)?,
                    b"pids" => super::lease::grant::pids(name()?.parse().map_err(|_| wrong())?),
                    b"syscalls" => Resource::Syscalls {
                        group: name()?.to_owned(),
                    },
                    b"capability" => Resource::Capability {
                        name: name()?.to_owned(),
                    },
                    _ => return Err(wrong()),
                };
                leases.push((grant(LeaseTarget::Other(resource)), None));
                continue;
            }
        };
        for path in paths.split(|byte| *byte == b':') {
            if path.is_empty() {
                return Err(wrong());
            }
            let path = PathBuf::from(OsString::from_vec(path.to_vec()));
            leases.push((grant(LeaseTarget::Path { right }), Some(path)));
        }
    }
    let wanted = scope || !leases.is_empty();
    Ok(wanted.then_some(ScopeOptions {
        leases,
        origin: LeaseOrigin::Operator,
    }))
}

/// `NAME=VALUE`, or `NAME` with the caller's value.
fn variable(text: OsString) -> Result<Option<(OsString, OsString)>, CliError> {
    use std::os::unix::ffi::{OsStrExt, OsStringExt};
    let bytes = text.as_bytes();
    let place = bytes.iter().position(|byte| *byte == b'=');
    let (name, value) = match place {
        Some(place) => {
            let (name, value) = bytes.split_at(place);
            let value = value.get(1..).unwrap_or_default();
            (name, Some(OsString::from_vec(value.to_vec())))
        }
        None => (bytes, std::env::var_os(&text)),
    };
    if name.is_empty() {
        return Err(CliError::new(
            "invalid --env: expected NAME=VALUE, or NAME to pass yours through",
        ));
    }
    let name = OsString::from_vec(name.to_vec());
    Ok(value.map(|value| (name, value)))
}
