//! `ironcage audit key`.

use crate::audit_log;
use crate::error::{CliError, CommandResult};
use crate::output::print;
use ironcage_audit::{AuditKey, key_path};
use ironcage_model::Printable;

/// Print the public key that audit reports are signed with
///
/// Creates the key on first use, outside every cage. Give the public key to whoever verifies reports.
/// Keep a copy of it elsewhere: whoever can replace the key can sign a new history.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Print the path of the secret key instead
    #[arg(long)]
    path: bool,
}

pub(super) fn run(args: &Args) -> CommandResult {
    let key = signing_key()?;
    let path = key_path(&audit_log::directory()?);
    print(|out| match args.path {
        true => writeln!(out, "{}", Printable::new(&path)),
        false => writeln!(out, "{}", key.public()),
    })?;
    Ok(0)
}

/// The key of this user, made where there is none.
pub(super) fn signing_key() -> Result<AuditKey, CliError> {
    let path = key_path(&audit_log::directory()?);
    let failed = |error: ironcage_audit::SignError| CliError::from_error(&error);
    match AuditKey::read(&path).map_err(failed)? {
        Some(key) => Ok(key),
        None => AuditKey::create(&path).map_err(failed),
    }
}
