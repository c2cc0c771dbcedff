//! `ironcage setup`: installs, as root, what a host lacks for cages.

mod microvm;

use crate::confirm::confirm;
use crate::error::{CliError, CommandResult};
use crate::failure::FailureCode;
use ironcage_host::setup::{Action, gather, plan, undo};
use ironcage_model::Printable;
use std::io::Write as _;
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Install what this host lacks for cages (as root, after showing it)
///
/// Adds what is missing: an AppArmor profile for the installed program only, delegation of cgroup
/// controllers to users by systemd, and subordinate IDs for one user. Shows every file with its
/// content, and every command, first. Running it again changes nothing.
#[derive(Debug, clap::Args)]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct Args {
    #[command(subcommand)]
    part: Option<Part>,
    /// Print what would be done, and do nothing
    #[arg(long)]
    dry_run: bool,
    /// Do not ask for confirmation
    #[arg(short, long)]
    yes: bool,
    /// Remove what an earlier setup installed
    #[arg(long)]
    undo: bool,
    /// User who gets subordinate IDs [default: the user who called sudo]
    #[arg(long, value_name = "NAME", value_hint = clap::ValueHint::Username)]
    user: Option<String>,
    /// Path of the installed program [default: this one]
    #[arg(long, value_name = "PATH")]
    binary: Option<PathBuf>,
    /// Root directory of the host to set up; commands run only for /
    #[arg(long, value_name = "DIR", default_value = "/")]
    root: PathBuf,
}

#[derive(Debug, clap::Subcommand)]
enum Part {
    /// Set up the guest of --isolation microvm, as the user who starts cages
    ///
    /// Finds a kernel, or downloads Debian's kernel for virtual machines with apt-get, and makes an
    /// initramfs with the modules that a guest needs. Needs no root. Running it again replaces the
    /// guest; cages that run keep theirs.
    Microvm(microvm::Args),
}

pub(crate) fn run(args: Args) -> CommandResult {
    if let Some(Part::Microvm(args)) = args.part {
        return microvm::run(&args);
    }
    let here = args.root == Path::new("/");
    let binary = match args.binary {
        Some(path) => path,
        None => std::env::current_exe().map_err(|error| {
            CliError::new(format!("cannot find the path of this program: {error}"))
        })?,
    };
    let user = args.user.or_else(|| std::env::var("SUDO_USER").ok());
    let user = user.filter(|name| name != "root");
    if let Some(name) = user.as_deref().filter(|_| !args.undo)
        && !is_known(name, &args.root, here)
    {
        let name = Printable::new(name);
        return Err(CliError::new(format!(
            "cannot set up user {name}: no such user on this host"
        ))
        .hint("--user NAME names the user who gets subordinate IDs"));
    }
    let facts = gather(&args.root, &binary, user.as_deref());
    let actions = if args.undo {
        undo(&facts)
    } else {
        plan(&facts).map_err(|error| CliError::from_error(&error))?
    };
    if actions.is_empty() {
        anstream::println!("Nothing to do.");
        return Ok(0);
    }
    for action in &actions {
        show(action, here);
    }
    if args.dry_run {
        return Ok(0);
    }
    if here && !ironcage_sys::rustix::process::geteuid().is_root() {
        return Err(CliError::new("cannot set up this host: not root")
            .with_failure(FailureCode::NotRoot)
            .hint("sudo ironcage setup"));
    }
    if !args.yes && !confirm("Do this?", "nothing done", "--yes")? {
        anstream::println!("Nothing done.");
        return Ok(1);
    }
    for action in &actions {
        carry_out(action, &args.root, here)?;
    }
    anstream::println!("Done. `ironcage doctor` reports what this host can enforce now.");
    Ok(0)
}

/// Looks in the host's passwd file, then asks its name services.
fn is_known(name: &str, root: &Path, here: bool) -> bool {
    let passwd = std::fs::read_to_string(root.join("etc/passwd")).unwrap_or_default();
    let listed = passwd
        .lines()
        .any(|line| line.split(':').next() == Some(name));
    let known_to_nss = || {
        let mut getent = trusted("getent");
        getent.args(["passwd", "--", name]);
        getent.stdout(Stdio::null()).stderr(Stdio::null());
        getent.status().is_ok_and(|status| status.success())
    };
    listed || here && known_to_nss()
}

fn show(action: &Action, here: bool) {
    match action {
        Action::Write { path, content, why } => {
            anstream::println!("write {} ({why})", Printable::new(path));
            for line in content.lines() {
                anstream::println!("    {}", Printable::new(line));
            }
        }
        Action::Remove { path } => anstream::println!("remove {}", Printable::new(path)),
        Action::Run { argv } if here => anstream::println!("run {}", argv.join(" ")),
        Action::Run { argv } => {
            anstream::println!("skip, because --root is not /: {}", argv.join(" "))
        }
    }
}

fn carry_out(action: &Action, root: &Path, here: bool) -> Result<(), CliError> {
    let place = |path: &Path| root.join(path.strip_prefix("/").unwrap_or(path));
    match action {
        Action::Write { path, content, .. } => {
            let path = place(path);
            write(&path, content)
                .map_err(|error| CliError::new(format!("cannot write {}: {error}", path.display())))
        }
        Action::Remove { path } => {
            let path = place(path);
            match std::fs::remove_file(&path) {
                Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(CliError::new(
                    format!("cannot remove {}: {error}", path.display()),
                )),
                _ => Ok(()),
            }
        }
        Action::Run { .. } if !here => Ok(()),
        Action::Run { argv } => execute(argv),
    }
}

/// Writes the whole file or nothing: to a temporary file, then renamed, with its old mode.
fn write(path: &Path, content: &str) -> std::io::Result<()> {
    let parent = path.parent().unwrap_or(Path::new("/"));
    std::fs::create_dir_all(parent)?;
    let mode = std::fs::metadata(path).map_or(0o644, |metadata| metadata.mode() & 0o777);
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let beside = parent.join(format!(".{name}.ironcage-{}", std::process::id()));
    let written = std::fs::OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(&beside)
        .and_then(|mut file| {
            file.write_all(content.as_bytes())?;
            file.set_permissions(std::fs::Permissions::from_mode(mode))?;
            file.sync_all()
        })
        .and_then(|()| std::fs::rename(&beside, path));
    if written.is_err() {
        let _ = std::fs::remove_file(&beside);
    }
    written
}

/// A system program. Never by the caller's PATH: this runs as root.
fn trusted(program: &str) -> Command {
    let mut command = Command::new(program);
    command
        .env_clear()
        .env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin");
    command
}

fn execute(argv: &[String]) -> Result<(), CliError> {
    let Some((program, arguments)) = argv.split_first() else {
        return Ok(());
    };
    let shown = argv.join(" ");
    let status = trusted(program)
        .args(arguments)
        .status()
        .map_err(|error| CliError::new(format!("cannot run {shown}: {error}")))?;
    if status.success() {
        Ok(())
    } else {
        Err(CliError::new(format!(
            "cannot complete the setup: {shown} failed ({status})"
        ))
        .hint("`ironcage setup --undo` removes what was installed"))
    }
}
