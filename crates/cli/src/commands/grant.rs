//! `ironcage grant`: a permission for a running cage.

use crate::completed::running_cages;
use crate::error::{CliError, CommandResult};
use crate::running;
use ironcage_control::{GrantRequest, Wanted};
use ironcage_model::{Approver, Lease, Right, Term};
use ironcage_policy::TimeLimit;
use ironcage_runtime::client::{ClientError, Granted, grant};
use std::path::PathBuf;

/// Give a running cage a permission, for a while
///
/// The path appears in the cage where it is outside, with just that right, for every process in
/// it. What is written there is written to the real files. Nothing is given beyond the ceiling of
/// the cage's policy; what that marks `ask` is given because you say so here. The lease ends with
/// its time, with `ironcage revoke`, or with the cage.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Id of the cage, its beginning, or the cage's name
    #[arg(value_name = "ID", add = running_cages())]
    id: String,
    /// A file or directory to read (can be repeated)
    #[arg(short, long, value_name = "PATH", required_unless_present = "write")]
    read: Vec<PathBuf>,
    /// A file or directory to read and write (can be repeated)
    #[arg(short, long, value_name = "PATH")]
    write: Vec<PathBuf>,
    /// For how long: 30s, 10m, or none for as long as the policy lets it [default: none]
    #[arg(long = "for", value_name = "TIME")]
    time: Option<TimeLimit>,
    /// What for; it is put on record
    #[arg(long, value_name = "TEXT", default_value = "")]
    reason: String,
}

pub(crate) fn run(args: Args) -> CommandResult {
    let term = match args.time.and_then(|time| time.0) {
        Some(time) => Term::Milliseconds(u64::try_from(time.as_millis()).unwrap_or(u64::MAX)),
        None => Term::UntilRevoked,
    };
    let reads = args.read.iter().map(|path| (path, Right::Read));
    let writes = args.write.iter().map(|path| (path, Right::Write));
    let connection = running::connect(&args.id)?;
    for (path, right) in reads.chain(writes) {
        let request = GrantRequest {
            wanted: Wanted::Path { right },
            term,
            uses: None,
            reason: args.reason.clone(),
        };
        match grant(&connection, path, request) {
            Ok(Granted::Lease(lease)) => anstream::println!("{}", in_words(&lease)),
            Ok(Granted::InBase { reason }) => anstream::println!("no lease is needed: {reason}"),
            Err(ClientError::Refused { reason }) => {
                let path = ironcage_model::Printable::new(path);
                let reason = ironcage_model::Printable::new(&reason).to_string();
                return Err(CliError::new(format!("{path} was not given: {reason}")));
            }
            Err(error) => return Err(running::said(error)),
        }
    }
    Ok(0)
}

/// A lease in one line.
pub(super) fn in_words(lease: &Lease) -> String {
    let term = match lease.term {
        Term::Milliseconds(time) => format!("for {}.{:03} s", time / 1000, time % 1000),
        Term::UntilRevoked => "until it is revoked".to_owned(),
    };
    let approver = match lease.approver {
        Approver::Policy => "the policy",
        Approver::Operator => "the operator",
    };
    format!(
        "lease {}: {} {term}, by {approver}",
        lease.number, lease.resource
    )
}
