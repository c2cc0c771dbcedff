//! `ironcage run`: starts a cage and waits for its command, or detaches.

use crate::cage_flags::{CageFlags, PlannedCage};
use crate::child_spawner::ChildSpawner;
use crate::error::{CliError, CommandResult, without_numbers};
use crate::named_hosts::NamedHosts;
use crate::render::{denial, denied_calls};
use crate::{
    announced, approved_rule, cages, change, failed_start, hidden_files, kept_state, lost_files,
    paths, system_changes,
};
use ironcage_backend::StartError;
use ironcage_host::{HostCaps, SystemFiles};
use ironcage_model::{CageId, Ending, Lent, LimitHit, Outcome, Printable, StartCode, Traffic};
use ironcage_supervisor::{AwaitedStart, ForkRole, Job, RunError, detach};
use ironcage_sys::rustix::io::Errno;
use ironcage_sys::steps;
use std::cell::{LazyCell, RefCell};
use std::ffi::OsString;
use std::path::{Path, PathBuf};

const EXAMPLES: &str = "\
Examples:
  ironcage run python3 agent.py
  ironcage run -e STAGE=test -p 8080:3000 -- npm start
  ironcage run -r ~/data -w ~/results --memory 4G --time 30m -- make report
  ironcage run --profile strict -- ./downloaded.sh";

/// Run a command in a cage
///
/// The command sees a read-only system, its workspace, an empty home directory and nothing else: no
/// network, no other process, none of your secrets. Everything it starts ends with it.
///
/// Exit status: that of the command; 124 if a time limit ended it, 125 for Ironcage's own errors,
/// 126 if the command cannot be executed, 127 if it is not found, 137 if the memory or disk limit
/// ended it, 128 plus the signal number if a signal killed it.
#[derive(Debug, clap::Args)]
#[command(after_long_help = EXAMPLES)]
pub(crate) struct Args {
    #[command(flatten)]
    flags: CageFlags,
    /// Name of the cage, for other commands and the audit log; unique among running cages
    #[arg(long, value_name = "NAME")]
    name: Option<String>,
    /// Run in the background: print the cage ID once the command runs, and keep its output
    #[arg(short, long, help_heading = "Background")]
    detach: bool,
    /// With -d, keep standard input open for `ironcage attach`; in the foreground it always is
    #[arg(short, long, help_heading = "Background")]
    interactive: bool,
    /// Remove the saved output when a background cage ends; a foreground cage saves none
    #[arg(long, help_heading = "Background")]
    rm: bool,
    /// Give the command a terminal [default: if standard input and output are terminals]
    #[arg(
        short = 't',
        long,
        overrides_with = "no_tty",
        help_heading = "Terminal"
    )]
    tty: bool,
    /// Give the command pipes, even at a terminal
    #[arg(short = 'T', long, help_heading = "Terminal")]
    no_tty: bool,
    /// Pass escape sequences through that act on your terminal: clipboard, notifications, reports
    #[arg(long, help_heading = "Terminal")]
    raw_terminal: bool,
    /// Print only errors
    #[arg(short, long)]
    quiet: bool,
    /// Command and its arguments; put `--` before a command that begins with `-` [default: your
    /// SHELL; with -d, none]
    #[arg(trailing_var_arg = true, value_name = "COMMAND", value_hint = clap::ValueHint::CommandWithArguments)]
    command: Vec<OsString>,
}

impl Args {
    /// Parses `[-q] [--workspace-mode MODE] -- COMMAND` without clap: describing sixty flags to it takes
    /// longer than mounting a cage's devices. `None` for anything else.
    pub(crate) fn plain(words: &[OsString]) -> Option<Args> {
        let end = words.iter().position(|word| word == "--")?;
        let (flags, rest) = words.split_at(end);
        let command = rest.get(1..).filter(|command| !command.is_empty())?;
        let (mut quiet, mut mode) = (false, None);
        let mut flags = flags.iter();
        while let Some(flag) = flags.next() {
            match flag.to_str()? {
                "-q" | "--quiet" if !quiet => quiet = true,
                "--workspace-mode" if mode.is_none() => {
                    mode = Some(flags.next()?.to_str()?.parse().ok()?);
                }
                _ => return None,
            }
        }
        let flags = CageFlags::in_mode(mode);
        Some(Args::of(flags, command.to_vec(), quiet))
    }
}

pub(crate) struct EndedRun {
    /// Exit status for the caller.
    pub(crate) code: u8,
    pub(crate) id: CageId,
    pub(crate) prepared: PlannedCage,
}

impl Args {
    /// A run in the foreground with default terminal handling.
    pub(crate) fn of(flags: CageFlags, command: Vec<OsString>, quiet: bool) -> Args {
        Args {
            flags,
            name: None,
            detach: false,
            interactive: false,
            rm: false,
            tty: false,
            no_tty: false,
            raw_terminal: false,
            quiet,
            command,
        }
    }
}

pub(crate) fn run(args: Args) -> CommandResult {
    let finished = match execute(args).inspect_err(failed_start::note)? {
        RunOutcome::Finished(finished) => finished,
        RunOutcome::InBackground(code) => return Ok(code),
    };
    // This process is about to exit: the kernel frees its memory faster than drop would.
    std::mem::forget(finished.prepared);
    Ok(finished.code)
}

pub(crate) enum RunOutcome {
    Finished(Box<EndedRun>),
    /// The cage runs in the background, or did not start; the exit status for the caller.
    InBackground(u8),
}

pub(crate) fn execute(mut args: Args) -> Result<RunOutcome, CliError> {
    args.flags.pull_image(args.quiet)?;
    if args.command.is_empty() && !args.detach && !args.flags.has_image() {
        args.command = vec![super::shell::users_shell()];
    }
    if args.flags.sticky && !args.detach {
        return Err(
            CliError::new("cannot use --sticky for a cage in the foreground")
                .hint("add -d; `ironcage exec` then runs commands in it"),
        );
    }
    // First, while nothing is open: the supervisor still has our standard error, and reports
    // everything that fails from here on.
    let background = match args.detach {
        false => None,
        true => match detach().map_err(CliError::new)? {
            ForkRole::Supervisor(background) => Some(background),
            ForkRole::Caller(awaited) => return await_start(awaited).map(RunOutcome::InBackground),
        },
    };
    let has_image = args.flags.has_image();
    steps::begin();
    steps::mark("program loaded");
    let mut prepared = args.flags.prepare(args.command)?;
    // An image and --boot name one where the caller did not.
    let program = prepared.plan.command.argv.first();
    let program = program.cloned().unwrap_or_default();
    let second = prepared.plan.command.argv.get(1);
    let has_command = second.is_some_and(|word| on_host(word).is_some());
    if !args.quiet {
        announce(&prepared);
    }
    steps::mark("plan");
    let _held = prepared.create_state()?;
    let _system = prepared.begin_system()?;
    let mode = prepared.resolved.policy.workspace_mode.value;
    let unprotected = prepared.resolved.policy.unprotect.iter();
    let allowed: Vec<PathBuf> = unprotected.map(|path| path.value.clone()).collect();
    let (place, new_change) = (prepared.change.place(), prepared.change.binding());
    let change = std::mem::take(&mut prepared.change).open(&prepared.plan, mode, &allowed)?;
    if let Some(change) = change.as_ref().filter(|_| !args.quiet) {
        change.announce();
    }
    steps::mark("change made");
    let interactive = !args.detach && !args.no_tty;
    let spawner = ChildSpawner {
        flags: &args.flags,
        parent: &prepared,
        place,
        change: change.as_ref().map(change::OpenChange::id),
    };
    let make_child = |birthright| spawner.make(birthright);
    let policy = &prepared.resolved.policy;
    // Lines that were told while the cage ran are not told again.
    let told = RefCell::new(Vec::new());
    let named = LazyCell::new(|| NamedHosts::of_run(&prepared));
    let denial_line = |denied: &Traffic| {
        let line = denial::line(denied, &named)?;
        told.borrow_mut().push(line.clone());
        Some(line)
    };
    let idle_step = || {
        let change = change.as_ref();
        change.is_some_and(change::OpenChange::remove_emptied)
    };
    let job = Job {
        idle_step: Some(&idle_step),
        child_spawner: Some(&make_child),
        permanent: Some(&approved_rule::make_permanent),
        parent: None,
        denial_line: (!args.quiet).then_some(&denial_line),
        plan: &prepared.plan,
        workspace_mode: policy.workspace_mode.value.name(),
        granted: &|| ironcage_policy::granted(policy),
        name: args.name,
        terminal: args.tty || (interactive && ironcage_terminal::is_interactive()),
        raw_terminal: args.raw_terminal,
        background,
        change: change.as_ref().map(change::OpenChange::id),
        new_change,
        keep_input: args.interactive,
    };
    let finished = match ironcage_supervisor::run(job) {
        Ok(ended) => ended,
        Err(error) => {
            if let Some(change) = change {
                change.abandon()?;
            }
            return Err(run_error(error));
        }
    };
    steps::mark("end recorded, cage gone");
    let ran = RanCommand {
        program: &program,
        has_image,
        has_command,
    };
    report(&finished.outcome, &ran, finished.id.as_str());
    if !args.quiet {
        report_denials(
            &finished.outcome,
            &told.borrow(),
            || &named,
            finished.id.as_str(),
        );
        report_model_leases(&finished.outcome.lent);
        report_hidden(&prepared, &finished.outcome)?;
        if finished.outcome.ending.exit_code() != 0
            && !matches!(finished.outcome.ending, Ending::NotExecuted { .. })
            && let Some(line) = system_changes::line(&prepared.plan, &prepared.home, has_image)
        {
            anstream::eprintln!("ironcage: {line}");
        }
        for line in lost_files::lines(&prepared.plan, &prepared.home) {
            anstream::eprintln!("ironcage: {line}");
        }
    }
    if let Some(mut change) = change {
        if let Some(storage) = &finished.storage {
            change.write_down(storage, prepared.plan.in_memory())?;
        }
        change.finish(
            &finished.id,
            &change::RunEnd {
                mode,
                succeeded: finished.outcome.ending.exit_code() == 0,
                // Nobody reads or answers in the background.
                quiet: args.quiet || args.detach,
            },
        )?;
    }
    kept_state::tidy(&prepared, args.quiet || args.detach)?;
    steps::mark("change kept or removed");
    // The supervisor reports the end of the cage now, after its change is in place.
    let code = finished.outcome.ending.exit_code();
    let id = finished.id.clone();
    drop(finished);
    if args.rm && args.detach {
        let archive = cages::all()?;
        archive.archive().remove(&id).map_err(|error| {
            CliError::new(format!("cannot remove the output of cage {id}: {error}"))
        })?;
    }
    let finished = EndedRun { code, id, prepared };
    Ok(RunOutcome::Finished(Box::new(finished)))
}

/// The caller's side of a background start.
fn await_start(awaited: AwaitedStart) -> CommandResult {
    match awaited.wait().map_err(CliError::new)? {
        Ok(id) => {
            anstream::println!("{id}");
            Ok(0)
        }
        Err(status) => Ok(status),
    }
}

/// Prints what the user should know of this start. A note that was printed for this workspace
/// before is not repeated, but a weaker cage is named every time.
fn announce(prepared: &PlannedCage) {
    let mut lines = vec![format!("ironcage: {}", prepared.resolved.profile_choice)];
    for denied in &prepared.resolved.narrowed {
        lines.push(format!("ironcage: not granted: {}", Printable::new(denied)));
    }
    if !prepared.resolved.narrowed.is_empty() {
        lines.push("  hint: `ironcage trust` to review the policy file and allow these".into());
    }
    for note in &prepared.plan.notes {
        lines.push(format!("ironcage: note: {}", Printable::new(note)));
    }
    let state = paths::state_dir(&prepared.home);
    if !announced::is_new(&state, &prepared.plan.workspace, &lines) {
        lines.clear();
    }
    let open = prepared.plan.unenforced.len();
    if open > 0 {
        lines.push(format!(
            "ironcage: {open} policy items are not enforced at this isolation level; `ironcage plan` lists them"
        ));
    }
    for layer in &prepared.plan.degraded {
        lines.push(format!(
            "ironcage: running without the layer {layer}, as --allow-degraded permits"
        ));
    }
    if !lines.is_empty() {
        lines.push(String::new());
    }
    // In one piece: standard error is written as it comes.
    anstream::eprint!("{}", lines.join("\n"));
}

fn report_denials<'n>(
    outcome: &Outcome,
    told: &[String],
    named: impl FnOnce() -> &'n NamedHosts,
    id: &str,
) {
    let (denied, more) = (&outcome.network_denied, outcome.network_denied_more);
    // The command is read only where something of it was denied.
    let lines = match denied.is_empty() {
        true => Vec::new(),
        false => denial::summary(denied, more, named(), id),
    };
    for line in lines {
        if !told.contains(&line) {
            anstream::eprintln!("{line}");
        }
    }
    // A program that does without a call has nothing to tell.
    if outcome.ending.exit_code() != 0 {
        for line in denied_calls::lines(&outcome.syscalls_denied, id) {
            anstream::eprintln!("{line}");
        }
    }
}

/// Names files of the host that the command asked for in vain, and once for a workspace the flag by
/// which a command can have what its ceiling gives at the moment of need.
fn report_hidden(prepared: &PlannedCage, outcome: &Outcome) -> Result<(), CliError> {
    let plan = &prepared.plan;
    let home = paths::home(&SystemFiles::default())?;
    let hidden = match outcome.ending.exit_code() {
        0 => Vec::new(),
        _ => {
            let words = plan.command.argv.iter();
            let words: Vec<String> = words
                .map(|word| word.to_string_lossy().into_owned())
                .collect();
            hidden_files::named_by(plan, &home, &words)
        }
    };
    for file in &hidden {
        anstream::eprintln!("ironcage: {}", file.line());
    }
    let in_ceiling = hidden_files::in_ceiling(plan, &hidden)
        || denial::in_ceiling(plan, &outcome.network_denied);
    if plan.shares_storage() || !in_ceiling {
        return Ok(());
    }
    let line = "ironcage: the ceiling gives what this run was denied; with `--shell scoped`, commands request it when they need it";
    let state = paths::state_dir(&home);
    if announced::is_new(&state, &plan.workspace, &[line.to_owned()]) {
        anstream::eprintln!("{line}");
    }
    Ok(())
}

fn report_model_leases(lent: &Lent) {
    if lent.leases > 0 {
        anstream::eprintln!(
            "ironcage: the model's tool calls used {} leases: open for {:.1} s of {:.0} s granted",
            lent.leases,
            lent.open_milliseconds as f64 / 1000.0,
            lent.given_milliseconds as f64 / 1000.0
        );
    }
}

/// A command that was to run, as far as a message needs it.
struct RanCommand<'a> {
    program: &'a OsString,
    has_image: bool,
    /// Whether the word behind the program names a program of the host.
    has_command: bool,
}

/// Reports what the exit status does not show.
fn report(outcome: &Outcome, ran: &RanCommand<'_>, id: &str) {
    let RanCommand {
        program,
        has_image,
        has_command,
    } = *ran;
    for hit in &outcome.limits {
        limit_line(hit);
    }
    if let Some(reason) = &outcome.door_narrowed {
        anstream::eprintln!(
            "ironcage: the egress proxy listened only on the ports that rules name: {}; `ironcage doctor` reports what is missing",
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
            "ironcage: the command created {}, which your own tools execute or trust: review it before you continue",
            paths.join(", ")
        );
    }
    if let Ending::NotExecuted { errno } = &outcome.ending {
        let reason = match *errno {
            errno if errno == Errno::NOENT.raw_os_error() => "no such program".to_owned(),
            errno => without_numbers(&std::io::Error::from_raw_os_error(errno).to_string()),
        };
        anstream::eprintln!(
            "ironcage: cannot execute {} in the cage: {reason}",
            Printable::new(program)
        );
        let missing = *errno == Errno::NOENT.raw_os_error();
        if missing && system_changes::is_for_root(Path::new(program)) {
            anstream::eprintln!("  hint: {}", system_changes::instead_of_root(has_image));
            return;
        }
        let image = (program.to_str()).filter(|word| missing && is_like_image(word, has_command));
        let is_name = missing && Path::new(program).components().count() == 1;
        match on_host(program) {
            Some(found) => anstream::eprintln!(
                "  hint: on the host it is {}, which the cage does not see; -r shows it",
                Printable::new(&found)
            ),
            // The programs of an image are its own.
            None if is_name && image.is_none_or(|word| !word.contains(':')) && !has_image => {
                anstream::eprintln!("  hint: it is not in your PATH either: install it first");
            }
            None => {}
        }
        if let Some(image) = image {
            anstream::eprintln!(
                "  hint: to run a command in an image, `ironcage run --image {} -- COMMAND`",
                Printable::new(image)
            );
        }
        anstream::eprintln!("  hint: `ironcage why {id}` explains denials");
    }
}

/// Whether somebody may have meant an image by a program, as `docker run` takes one there: it has a
/// tag, or a command follows it.
fn is_like_image(word: &str, has_command: bool) -> bool {
    let (path, tag) = word.rsplit_once(':').unwrap_or((word, ""));
    let part = |text: &str| {
        text.chars()
            .all(|c| c.is_ascii_alphanumeric() || "._-".contains(c))
    };
    let relative = !path.starts_with(['/', '.']) && path.split('/').all(|name| !name.is_empty());
    (has_command || !tag.is_empty()) && part(tag) && relative && path.split('/').all(part)
}

fn limit_line(hit: &LimitHit) {
    let flag = hit.limit.name();
    let what = match (hit.ended, hit.used_as_written()) {
        (true, Some(used)) => format!("ended the cage, which used {used}"),
        (true, None) => "ended the cage".to_owned(),
        (false, _) => "was reached".to_owned(),
    };
    anstream::eprintln!(
        "ironcage: the {flag} limit of {} {what}; --{flag} raises it",
        hit.value
    );
}

/// The program in the caller's PATH.
fn on_host(program: &OsString) -> Option<std::path::PathBuf> {
    if Path::new(program).components().count() > 1 {
        return None;
    }
    std::env::split_paths(&std::env::var_os("PATH")?)
        .map(|directory| directory.join(program))
        .find(|path| path.is_file())
}

fn run_error(error: RunError) -> CliError {
    let code = error.code();
    let shown = CliError::from_error(&error).with_code(code);
    if Path::new(ironcage_model::ASK_SOCKET).exists() {
        return shown.hint("you are in a cage: use `ironcage child`");
    }
    if std::env::var_os("IRONCAGE").is_some() {
        return shown.hint(
            "you are in a cage without a ceiling; with `children = 1` under [ceiling] in its policy, use `ironcage child`",
        );
    }
    match (&error, code) {
        (RunError::Start(StartError::Fork(source)), _) => shown
            .hint(HostCaps::diagnose_userns_failure(
                source.raw_os_error().unwrap_or_default(),
            ))
            .hint("`ironcage doctor` examines this host"),
        // --workspace-mode direct would fail in the same way.
        (RunError::Start(StartError::Layer { .. }), StartCode::OwnerMap) => shown
            .hint("only cages of root map owners: start it as the owner of the files")
            .hint("or copy the directory (`cp -a`) to another file system, and start there")
            .hint("or set XDG_STATE_HOME to another file system, if that one lacks support"),
        (RunError::Start(StartError::Layer { .. }), StartCode::CopyOnWrite) => shown
            .hint("`ironcage doctor` tests this directory's file system")
            .hint("use --workspace-mode direct to work on the real files")
            .hint("or copy the directory (`cp -a`) to another file system, and start there")
            .hint("or set XDG_STATE_HOME to another file system, if that one lacks support"),
        // A missing secret is the caller's problem, not the host's.
        (RunError::Start(_), StartCode::SecretMissing) => {
            shown.hint("set that variable, or name another source: --secret NAME=file:/PATH@HOST")
        }
        (RunError::Program(missing), _) => shown.hint(missing.hint()),
        (RunError::Start(_), _) => shown.hint("`ironcage doctor` examines this host"),
        _ => shown,
    }
}
