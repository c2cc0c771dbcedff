//! `ironcage run`: a command in a cage, to its end.

use crate::cage_flags::{CageFlags, Prepared};
use crate::change;
use crate::error::{CliError, CommandResult, without_numbers};
use crate::nursery::Nursery;
use ironcage_backend::{COPY_ON_WRITE, MAP_OWNER, StartError};
use ironcage_host::HostCaps;
use ironcage_model::{CageId, Ending, Lent, LimitHit, Outcome, Printable};
use ironcage_runtime::{Awaited, Job, RunError, Side, detach};
use std::ffi::OsString;
use std::path::{Path, PathBuf};

const EXAMPLES: &str = "\
Examples:
  ironcage run -- python3 agent.py
  ironcage run -r ~/data -w ~/results --memory 4G --time 30m -- make report
  ironcage run --profile strict -- ./downloaded.sh";

/// Run a command in a cage
///
/// The command sees a read-only system, its workspace, an empty home directory and nothing
/// else: no network, no other process, no secret of yours. Everything it starts ends with it.
///
/// Exit status: the command's own; 124 when a time limit ended it, 125 for Ironcage's own
/// errors, 126 and 127 when the command cannot be executed or found, 137 when the memory or
/// disk limit ended it, 128 and the signal's number when a signal did.
#[derive(Debug, clap::Args)]
#[command(after_long_help = EXAMPLES)]
pub(crate) struct Args {
    #[command(flatten)]
    flags: CageFlags,
    /// Name of the cage, for the record and other commands; unique among those that run
    #[arg(long, value_name = "NAME")]
    name: Option<String>,
    /// Run in the background: print the cage's id once its command runs, and keep its output
    #[arg(short, long, help_heading = "Background")]
    detach: bool,
    /// Keep standard input of a background cage open for `ironcage attach`
    #[arg(short, long, requires = "detach", help_heading = "Background")]
    interactive: bool,
    /// Give the command a terminal of the cage's own [default: when standard input and output
    /// are terminals]
    #[arg(
        short = 't',
        long,
        overrides_with = "no_tty",
        help_heading = "Terminal"
    )]
    tty: bool,
    /// Give the command pipes even on a terminal
    #[arg(short = 'T', long, help_heading = "Terminal")]
    no_tty: bool,
    /// Let through what makes your terminal act or answer: clipboard, notifications, reports
    #[arg(long, help_heading = "Terminal")]
    raw_terminal: bool,
    /// Print nothing but errors
    #[arg(short, long)]
    quiet: bool,
    /// The command and its arguments
    #[arg(
        last = true,
        required_unless_present = "detach",
        value_name = "COMMAND"
    )]
    command: Vec<OsString>,
}

impl Args {
    /// What these words say, where they say no more than what to run. Most do, and describing
    /// sixty flags to the parser, to find none of them, takes longer than mounting a cage's
    /// devices. `None` for anything else, which is the parser's.
    pub(crate) fn plain(words: &[OsString]) -> Option<Args> {
        let end = words.iter().position(|word| word == "--")?;
        let (flags, rest) = words.split_at(end);
        let command = rest.get(1..).filter(|command| !command.is_empty())?;
        let quiet = match flags {
            [] => false,
            [word] if word == "-q" || word == "--quiet" => true,
            _ => return None,
        };
        Some(Args::of(CageFlags::default(), command.to_vec(), quiet))
    }
}

/// A run that is over, and what it was made from.
pub(crate) struct Ended {
    /// The exit status for the caller.
    pub(crate) code: u8,
    /// The cage.
    pub(crate) id: CageId,
    /// Its plan and policy.
    pub(crate) prepared: Prepared,
}

impl Args {
    /// In the foreground, with the terminal as it is.
    pub(crate) fn of(flags: CageFlags, command: Vec<OsString>, quiet: bool) -> Args {
        Args {
            flags,
            name: None,
            detach: false,
            interactive: false,
            tty: false,
            no_tty: false,
            raw_terminal: false,
            quiet,
            command,
        }
    }
}

pub(crate) fn run(args: Args) -> CommandResult {
    let ended = match to_the_end(args)? {
        Run::Ended(ended) => ended,
        Run::InBackground(code) => return Ok(code),
    };
    // This process ends: the kernel takes all of its memory at once, sooner than piece by piece.
    std::mem::forget(ended.prepared);
    Ok(ended.code)
}

/// What became of a run.
pub(crate) enum Run {
    /// It is over.
    Ended(Box<Ended>),
    /// It goes on in the background, or did not start; this is the exit status for who asked.
    InBackground(u8),
}

/// Runs it.
pub(crate) fn to_the_end(args: Args) -> Result<Run, CliError> {
    if args.flags.sticky && !args.detach {
        return Err(CliError::new("--sticky is for cages in the background")
            .hint("add -d; `ironcage exec` then runs commands in it"));
    }
    // First of all, while nothing is open: whatever fails from here on is said by the
    // supervisor, on standard error that it still has.
    let background = match args.detach {
        false => None,
        true => match detach().map_err(CliError::new)? {
            Side::Supervisor(background) => Some(background),
            Side::Caller(awaited) => return await_start(awaited).map(Run::InBackground),
        },
    };
    let program = args.command.first().cloned().unwrap_or_default();
    let mut prepared = args.flags.prepare(args.command)?;
    if !args.quiet {
        announce(&prepared);
    }
    let _held = prepared.make_places()?;
    let mode = prepared.resolved.policy.workspace_mode.value;
    let unprotected = prepared.resolved.policy.unprotect.iter();
    let allowed: Vec<PathBuf> = unprotected.map(|path| path.value.clone()).collect();
    let place = prepared.change.place();
    let change = std::mem::take(&mut prepared.change).open(&prepared.plan, mode, &allowed)?;
    if let Some(change) = change.as_ref().filter(|_| !args.quiet) {
        change.announce();
    }
    let interactive = !args.detach && !args.no_tty;
    let nursery = Nursery {
        flags: &args.flags,
        parent: &prepared,
        place,
        change: change.as_ref().map(change::Open::id),
    };
    let maker = |birthright| nursery.make(birthright);
    let job = Job {
        children: Some(&maker),
        kin: None,
        plan: &prepared.plan,
        policy: &prepared.resolved.policy,
        name: args.name,
        terminal: args.tty || (interactive && ironcage_runtime::terminal::is_interactive()),
        raw_terminal: args.raw_terminal,
        background,
        change: change.as_ref().map(change::Open::id),
        keep_input: args.interactive,
    };
    let finished = match ironcage_runtime::run(job) {
        Ok(ended) => ended,
        Err(error) => {
            if let Some(change) = change {
                change.abandon()?;
            }
            return Err(run_error(error));
        }
    };
    report(&finished.outcome, &program, finished.id.as_str());
    if !args.quiet {
        tell_lent(&finished.outcome.lent);
    }
    if let Some(mut change) = change {
        if let Some(storage) = &finished.storage {
            change.write_down(storage, prepared.plan.in_memory())?;
        }
        change.finish(
            &finished.id,
            &change::End {
                mode,
                succeeded: finished.outcome.ending.exit_code() == 0,
                // In the background nobody reads or answers.
                quiet: args.quiet || args.detach,
            },
        )?;
    }
    // Who waits for the cage hears of its end now: what it changed is in its place.
    let code = finished.outcome.ending.exit_code();
    let id = finished.id.clone();
    drop(finished);
    Ok(Run::Ended(Box::new(Ended { code, id, prepared })))
}

/// The caller's side of a start in the background.
fn await_start(awaited: Awaited) -> CommandResult {
    match awaited.wait().map_err(CliError::new)? {
        Ok(id) => {
            anstream::println!("{id}");
            Ok(0)
        }
        Err(status) => Ok(status),
    }
}

fn announce(prepared: &Prepared) {
    anstream::eprintln!("ironcage: {}", prepared.resolved.profile_choice);
    for wanted in &prepared.resolved.narrowed {
        anstream::eprintln!("ironcage: not granted: {}", Printable::new(wanted));
    }
    if !prepared.resolved.narrowed.is_empty() {
        anstream::eprintln!("  hint: `ironcage trust` shows that file and lets it have these");
    }
    for note in &prepared.plan.notes {
        anstream::eprintln!("ironcage: note: {}", Printable::new(note));
    }
    let open = prepared.plan.unenforced.len();
    if open > 0 {
        anstream::eprintln!(
            "ironcage: {open} item(s) of the policy are not enforced with this isolation; `ironcage plan` names them"
        );
    }
    for layer in &prepared.plan.degraded {
        anstream::eprintln!("ironcage: running without the layer {layer}, as you allowed");
    }
}

/// Says how long what the model's answers opened was open.
fn tell_lent(lent: &Lent) {
    if lent.leases > 0 {
        anstream::eprintln!(
            "ironcage: what the model called had {} leases, open for {:.1} s of the {:.0} s that they were given",
            lent.leases,
            lent.open_milliseconds as f64 / 1000.0,
            lent.given_milliseconds as f64 / 1000.0
        );
    }
}

/// Says what the exit status alone does not tell.
fn report(outcome: &Outcome, program: &OsString, id: &str) {
    for hit in &outcome.limits {
        limit_line(hit);
    }
    if let Some(reason) = &outcome.door_narrowed {
        anstream::eprintln!(
            "ironcage: the network door listened on the ports of the rules only: {}; `ironcage doctor` says what is missing",
            Printable::new(reason)
        );
    }
    if !outcome.planted.is_empty() {
        let paths: Vec<String> = outcome
            .planted
            .iter()
            .map(|path| Printable::new(path).to_string())
            .collect();
        anstream::eprintln!(
            "ironcage: the command made {}, which your own tools execute or trust: read it before you go on",
            paths.join(", ")
        );
    }
    if let Ending::NotExecuted { errno } = &outcome.ending {
        const ENOENT: i32 = 2;
        let reason = match *errno {
            ENOENT => "there is no such program".to_owned(),
            errno => without_numbers(&std::io::Error::from_raw_os_error(errno).to_string()),
        };
        anstream::eprintln!(
            "ironcage: cannot execute {} in the cage: {reason}",
            Printable::new(program)
        );
        if let Some(found) = on_host(program) {
            anstream::eprintln!(
                "  hint: on the host it is {}, which the cage does not see: -r gives it",
                Printable::new(&found)
            );
        }
        anstream::eprintln!("  hint: `ironcage why {id}` says more");
    }
}

fn limit_line(hit: &LimitHit) {
    let flag = hit.limit.name();
    let what = if hit.ended {
        "ended the cage"
    } else {
        "was reached"
    };
    anstream::eprintln!(
        "ironcage: the {flag} limit of {} {what}; --{flag} raises it",
        hit.value
    );
}

/// Where the caller's own PATH has a program that the cage did not find.
fn on_host(program: &OsString) -> Option<std::path::PathBuf> {
    if Path::new(program).components().count() > 1 {
        return None;
    }
    std::env::split_paths(&std::env::var_os("PATH")?)
        .map(|directory| directory.join(program))
        .find(|path| path.is_file())
}

fn run_error(error: RunError) -> CliError {
    let shown = CliError::from_error(&error);
    if Path::new(ironcage_control::ASK_SOCKET).exists() {
        return shown.hint("this is inside of a cage: `ironcage child` opens one within it");
    }
    match &error {
        RunError::Start(StartError::Fork(source)) => shown
            .hint(HostCaps::diagnose_userns_failure(
                source.raw_os_error().unwrap_or_default(),
            ))
            .hint("`ironcage doctor` examines this host"),
        // On the real files it is the same.
        RunError::Start(StartError::Layer { action, .. }) if action.contains(MAP_OWNER) => shown
            .hint("only root's cages map owners: start it as the user whose files they are")
            .hint("or copy the directory (`cp -a`) to another file system, and start there")
            .hint("XDG_STATE_HOME on another file system, if it is the one that cannot"),
        RunError::Start(StartError::Layer { action, .. }) if action.contains(COPY_ON_WRITE) => {
            shown
                .hint("`ironcage doctor` tries what this directory's file system can do")
                .hint("--workspace-mode direct works on the real files")
                .hint("or copy the directory (`cp -a`) to another file system, and start there")
                .hint("XDG_STATE_HOME on another file system, if it is the one that cannot")
        }
        // A secret that is not there is the caller's to give, not the host's.
        RunError::Start(StartError::Door(source)) if source.to_string().contains("the secret ") => {
            shown
                .hint("set that variable, or say where the value is: --secret NAME=file:/PATH@HOST")
        }
        RunError::Start(_) => shown.hint("`ironcage doctor` examines this host"),
        _ => shown,
    }
}
