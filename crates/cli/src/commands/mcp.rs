//! `ironcage mcp`, which `ironcage-mcp` executes.
//!
//! The policy is resolved here, by the same rules as for a cage, and handed over in a file that has
//! no name: the gateway knows nothing of trust.

use crate::cage_flags::CageFlags;
use crate::error::{CliError, CommandResult};
use crate::paths;
use ironcage_command::mcp::{Action, Args};
use ironcage_host::SystemFiles;
use ironcage_model::Printable;
use ironcage_programs::Program;
use ironcage_sys::rustix::fs::{MemfdFlags, memfd_create};
use ironcage_sys::rustix::io::{FdFlags, fcntl_setfd};
use std::fs::File;
use std::io::{IsTerminal as _, Seek, SeekFrom, Write};
use std::os::fd::AsRawFd;
use std::os::unix::process::CommandExt;
use std::process::Command;

/// Replaces this process with `ironcage-mcp`, with the same arguments and the resolved policy.
pub(crate) fn run(args: &Args) -> CommandResult {
    let home = paths::home(&SystemFiles::default())?;
    let program = Program::Mcp
        .find()
        .map_err(|error| CliError::from_error(&error).hint(error.hint()))?;
    let own = std::env::current_exe()
        .map_err(|error| CliError::new(format!("cannot find this program: {error}")))?;
    let mut command = Command::new(&program);
    command
        .arg("--state")
        .arg(paths::state_dir(&home))
        .arg("--ironcage")
        .arg(own)
        .arg("--workspace")
        .arg(paths::workspace_here()?);
    // Open until the other program has read it.
    let mut handed_over = None;
    if args.needs_policy() {
        let file = policy(args)?;
        command.arg("--rules").arg(file.as_raw_fd().to_string());
        handed_over = Some(file);
    }
    if let Some(words) = server_on_streams(args)
        && std::io::stdin().is_terminal()
    {
        anstream::eprintln!(
            "ironcage: waiting for an MCP client on standard input; `claude mcp add NAME -- ironcage {words}` adds this to an agent, Ctrl-D ends it"
        );
    }
    let error = command.args(std::env::args_os().skip(1)).exec();
    drop(handed_over);
    Err(CliError::new(format!(
        "cannot execute {}: {error}",
        program.display()
    )))
}

/// The words of a command that serves a client on its standard streams, which nobody types.
fn server_on_streams(args: &Args) -> Option<&'static str> {
    match &args.command {
        None if args.listen.listen.is_none() => Some("mcp"),
        Some(Action::Gateway(gateway)) if gateway.listen.listen.is_none() => Some("mcp gateway"),
        _ => None,
    }
}

/// The rules for tools of the policy here, in a file without a name.
fn policy(args: &Args) -> Result<File, CliError> {
    let mut flags = CageFlags::default();
    flags.set_base(None, args.policy_file().cloned());
    let resolved = flags.resolve()?;
    for narrowed in &resolved.narrowed {
        let narrowed = Printable::new(narrowed);
        anstream::eprintln!("ironcage: note: ignored in an untrusted policy file: {narrowed}");
    }
    let failed = |error: std::io::Error| {
        CliError::new(format!("cannot hand the policy to ironcage-mcp: {error}"))
    };
    let file = memfd_create("ironcage-tools", MemfdFlags::empty()).map_err(|e| failed(e.into()))?;
    fcntl_setfd(&file, FdFlags::empty()).map_err(|errno| failed(errno.into()))?;
    let mut file = File::from(file);
    serde_json::to_writer(&mut file, &resolved.policy.tools)
        .map_err(|error| failed(error.into()))?;
    file.flush().map_err(failed)?;
    file.seek(SeekFrom::Start(0)).map_err(failed)?;
    Ok(file)
}
