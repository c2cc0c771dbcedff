//! `ironcage exec`: another command in a running cage.

use crate::completed::running_cages;
use crate::error::{CliError, CommandResult};
use crate::live::Live;
use crate::{places, running};
use ironcage_control::{GrantRequest, Wanted};
use ironcage_model::{Ending, LeaseOrigin, Printable, Resource, Right, Term};
use ironcage_policy::requests;
use ironcage_runtime::client::{Connection, ExecOptions, ScopeOptions, exec};
use ironcage_workspace::{ApplyOptions, Change, Selection, Store, take_owners_rights};
use std::ffi::{OsStr, OsString};
use std::io::IsTerminal as _;
use std::path::{Path, PathBuf};

/// Run another command in a running cage
///
/// It is held by everything that holds the cage: its view, its limits, its filters. Its
/// environment is the cage's own, with --env on top. It ends when this command ends, unless -d
/// is given; what it started in the background stays, as long as the cage does.
///
/// With --scope it runs beside the cage instead of in it: it shares the workspace, and neither
/// sees the other. What --lease names is there for it alone, and everything that it started ends
/// with it.
///
/// Exit status: the command's own; 125 for Ironcage's own errors, 126 and 127 when the command
/// cannot be executed or found, 128 and the signal's number when a signal ended it.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Pass standard input on
    #[arg(short, long)]
    interactive: bool,
    /// Give the command a terminal of the cage's own; where you are at one, it gets your keys (-i)
    #[arg(short = 't', long)]
    tty: bool,
    /// Leave the command running; its output goes where the cage's goes
    #[arg(short, long, conflicts_with_all = ["interactive", "tty"])]
    detach: bool,
    /// Set a variable, or pass the caller's (can be repeated)
    #[arg(long, value_name = "NAME[=VALUE]")]
    env: Vec<OsString>,
    /// Working directory inside [default: the cage's]
    #[arg(long, value_name = "DIR")]
    cwd: Option<OsString>,
    /// Let through what makes your terminal act or answer: clipboard, notifications, reports
    #[arg(long)]
    raw_terminal: bool,
    /// Run it beside the cage, in a scope that ends with it
    #[arg(long, conflicts_with = "detach")]
    scope: bool,
    /// Give it a lease of its own, within the cage's ceiling: read=PATH or write=PATH (several
    /// with `:` between them), host=NAME[:PORT], 'http=GET NAME/PATH', secret=NAME, socket=PATH,
    /// publish=OUTER:INNER, memory=SIZE, cpus=N, pids=N, syscalls=GROUP, capability=NAME (can be
    /// repeated; implies --scope)
    #[arg(long, value_name = "WHAT", conflicts_with = "detach")]
    lease: Vec<OsString>,
    /// What its leases are for; it is put on record
    #[arg(long, value_name = "TEXT", default_value = "", requires = "lease")]
    reason: String,
    /// Apply what the cage has changed when the command ends with status 0; what is withheld or
    /// flagged stays aside, unless the cage's policy lists it (`unprotect`)
    #[arg(long, conflicts_with = "detach")]
    commit_on_success: bool,
    /// Carry out a tool call in a file, or `-`, instead of a command: of Anthropic's messages,
    /// OpenAI's chat completions or responses, or MCP. It runs in a scope with what it needs, as
    /// far as the ceiling gives that at once; its result is printed in the same shape. Exit status
    /// 0 when it was carried out, 1 when it was refused
    #[arg(
        long, value_name = "FILE", value_hint = clap::ValueHint::FilePath,
        conflicts_with_all = ["command", "interactive", "tty", "detach", "env", "cwd", "raw_terminal", "scope", "lease", "reason", "commit_on_success"]
    )]
    intent: Option<PathBuf>,
    /// How many seconds to wait for a person's answer to what a tool call needs
    #[arg(long, value_name = "SECONDS", default_value_t = 0, requires = "intent")]
    wait: u64,
    /// Id of the cage, its beginning, or the cage's name
    #[arg(value_name = "ID", add = running_cages())]
    id: String,
    /// The command and its arguments
    #[arg(
        last = true,
        required_unless_present = "intent",
        value_name = "COMMAND"
    )]
    command: Vec<OsString>,
}

impl Args {
    /// What these words say, where they say no more than where and what to run: the parser need
    /// not be asked. `None` for anything else, which is the parser's.
    pub(crate) fn plain(words: &[OsString]) -> Option<Args> {
        let end = words.iter().position(|word| word == "--")?;
        let (flags, rest) = words.split_at(end);
        let command = rest.get(1..).filter(|command| !command.is_empty())?;
        let [id] = flags else { return None };
        let id = id.to_str().filter(|id| !id.starts_with('-'))?;
        Some(Args {
            interactive: false,
            tty: false,
            detach: false,
            env: Vec::new(),
            cwd: None,
            raw_terminal: false,
            scope: false,
            lease: Vec::new(),
            reason: String::new(),
            commit_on_success: false,
            intent: None,
            wait: 0,
            id: id.to_owned(),
            command: command.to_vec(),
        })
    }
}

pub(crate) fn run(args: Args) -> CommandResult {
    if let Some(path) = &args.intent {
        return super::call::run(&args.id, path, args.wait);
    }
    let program = args.command.first().cloned().unwrap_or_default();
    let mut env = args
        .env
        .into_iter()
        .map(variable)
        .collect::<Result<Vec<_>, _>>()?
        .into_iter()
        .flatten()
        .collect::<Vec<_>>();
    // A program on a terminal has to know which kind.
    if args.tty
        && !env.iter().any(|(name, _)| name == "TERM")
        && let Some(kind) = std::env::var_os("TERM")
    {
        env.push(("TERM".into(), kind));
    }
    let scope = scope_of(args.scope, &args.lease, &args.reason)?;
    let committed = match args.commit_on_success {
        true => Some(Committed::find(&args.id)?),
        false => None,
    };
    let connection = running::connect(&args.id)?;
    let ending = exec(
        &connection,
        ExecOptions {
            argv: args.command,
            env,
            cwd: args.cwd,
            // A terminal at which nobody can type could not even be left.
            input: args.interactive || (args.tty && std::io::stdin().is_terminal()),
            terminal: args.tty,
            detached: args.detach,
            raw_terminal: args.raw_terminal,
            scope,
        },
    )
    .map_err(running::said)?;
    let Some(ending) = ending else {
        return Ok(0);
    };
    if let Ending::NotExecuted { errno } = &ending {
        let reason = std::io::Error::from_raw_os_error(*errno);
        anstream::eprintln!(
            "ironcage: cannot execute {} in the cage: {reason}",
            Printable::new(&program)
        );
    }
    match committed {
        Some(committed) if ending.exit_code() == 0 => committed.apply(),
        _ => Ok(ending.exit_code()),
    }
}

/// The change that is applied when the command succeeds.
struct Committed {
    store: Store,
    change: Change,
    cage: Connection,
}

impl Committed {
    fn find(cage: &str) -> Result<Committed, CliError> {
        let store = places::changes(&places::home()?);
        let cage = running::connect(cage)?;
        let change = running::change_of(&store, &cage)?.ok_or_else(|| {
            CliError::new("the cage has no pending change that could be applied")
                .hint("its workspace is not copy-on-write: what it writes is there already")
        })?;
        Ok(Committed {
            store,
            change,
            cage,
        })
    }

    fn apply(self) -> CommandResult {
        // Refused on hosts without user namespaces: what cannot be read there is told.
        let _ = take_owners_rights();
        let options = ApplyOptions {
            hold_flagged: true,
            allowed: self.change.allowed().to_vec(),
            ..ApplyOptions::default()
        };
        let live = Live {
            store: &self.store,
            change: &self.change,
            cage: &self.cage,
        };
        let applied = live.apply(&Selection::everything(), &options)?.applied;
        anstream::eprintln!("ironcage: {applied}");
        Ok(u8::from(!applied.conflicts.is_empty()))
    }
}

/// The scope that the flags ask for, if they do.
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
                "--lease takes read=PATH, write=PATH, host=NAME, http=REQUESTS, secret=NAME, socket=PATH, publish=OUTER:INNER, memory=SIZE, cpus=N, pids=N, syscalls=GROUP or capability=NAME, not `{}`",
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
                        path: super::grant::socket(Path::new(OsStr::from_bytes(paths)))?,
                    },
                    b"publish" => Resource::Port {
                        publish: name()?.parse().map_err(|_| wrong())?,
                    },
                    b"memory" => super::grant::memory(name()?.parse().map_err(|_| wrong())?)?,
                    b"cpus" => super::grant::cpus(name()?.parse().map_err(|_| wrong())?)?,
                    b"pids" => super::grant::pids(name()?.parse().map_err(|_| wrong())?),
                    b"syscalls" => Resource::Syscalls {
                        group: name()?.to_owned(),
                    },
                    b"capability" => Resource::Capability {
                        name: name()?.to_owned(),
                    },
                    _ => return Err(wrong()),
                };
                leases.push((grant(Wanted::Other(resource)), None));
                continue;
            }
        };
        for path in paths.split(|byte| *byte == b':') {
            if path.is_empty() {
                return Err(wrong());
            }
            let path = PathBuf::from(OsString::from_vec(path.to_vec()));
            leases.push((grant(Wanted::Path { right }), Some(path)));
        }
    }
    let wanted = scope || !leases.is_empty();
    Ok(wanted.then_some(ScopeOptions {
        leases,
        origin: LeaseOrigin::Operator,
    }))
}

/// `NAME=VALUE`, or the caller's value of `NAME`, if it has one.
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
            "--env takes NAME=VALUE, or NAME to pass your own",
        ));
    }
    let name = OsString::from_vec(name.to_vec());
    Ok(value.map(|value| (name, value)))
}
