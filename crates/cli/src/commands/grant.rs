//! `ironcage grant`: a permission for a running cage.

use crate::completed::running_cages;
use crate::error::{CliError, CommandResult};
use crate::running;
use crate::values::count;
use ironcage_control::{GrantRequest, Wanted};
use ironcage_model::{
    Approver, HostRule, HttpRule, Lease, LimitKind, Printable, Publish, Resource, Right, Span, Term,
};
use ironcage_policy::{Amount, Cpus, TimeLimit, allowed, requests};
use ironcage_runtime::client::{ClientError, Connection, Granted, grant, grant_path, grant_port};
use std::path::{Path, PathBuf};

/// Give a running cage a permission, for a while
///
/// A path appears in the cage where it is outside, with just that right, for every process in
/// it. What is written there is written to the real files. Hosts, requests, secrets, sockets and
/// ports are opened by the cage's network door; limits are raised. Nothing is given beyond the
/// ceiling of the cage's policy; what that marks `ask` is given because you say so here. The
/// lease ends with its time, with `ironcage revoke`, or with the cage.
#[derive(Debug, clap::Args)]
#[command(group(clap::ArgGroup::new("what").required(true).multiple(true).args([
    "read", "write", "host", "http", "secret", "socket", "publish", "memory", "cpus", "pids",
])))]
pub(crate) struct Args {
    /// Id of the cage, its beginning, or the cage's name
    #[arg(value_name = "ID", add = running_cages())]
    id: String,
    /// A file or directory to read (can be repeated)
    #[arg(short, long, value_name = "PATH")]
    read: Vec<PathBuf>,
    /// A file or directory to read and write (can be repeated)
    #[arg(short, long, value_name = "PATH")]
    write: Vec<PathBuf>,
    /// A host to connect to: NAME (ports 80 and 443), NAME:PORT, '*.NAME', an address (can be repeated)
    #[arg(long, value_name = "HOST", value_parser = allowed)]
    host: Vec<HostRule>,
    /// Requests to send: 'GET,HEAD api.example.com/v1/**' (can be repeated)
    #[arg(long, value_name = "REQUESTS", value_parser = requests)]
    http: Vec<HttpRule>,
    /// A secret of the ceiling, by its name (can be repeated)
    #[arg(long, value_name = "NAME")]
    secret: Vec<String>,
    /// A Unix socket of the host's to connect to (can be repeated)
    #[arg(long, value_name = "PATH")]
    socket: Vec<PathBuf>,
    /// A port inside to reach at the host's loopback: OUTER:INNER; 0 is any that is free (can be repeated)
    #[arg(long, value_name = "OUTER:INNER")]
    publish: Vec<Publish>,
    /// So much memory instead of the cage's limit, such as 8G
    #[arg(long, value_name = "SIZE")]
    memory: Option<Amount>,
    /// So many processors instead of the cage's limit, such as 2.5
    #[arg(long, value_name = "NUMBER")]
    cpus: Option<Cpus>,
    /// So many processes and threads instead of the cage's limit
    #[arg(long, value_name = "NUMBER", value_parser = count::<u32>)]
    pids: Option<u32>,
    /// For how long: 30s, 10m, or none for as long as the policy lets it [default: none]
    #[arg(long = "for", value_name = "TIME")]
    time: Option<TimeLimit>,
    /// For how many uses: connections, or requests where those are leased
    #[arg(long, value_name = "NUMBER", value_parser = count::<u32>)]
    count: Option<u32>,
    /// What for; it is put on record
    #[arg(long, value_name = "TEXT", default_value = "")]
    reason: String,
}

pub(crate) fn run(args: Args) -> CommandResult {
    let term = match args.time.as_ref().and_then(|time| time.0) {
        Some(time) => Term::Milliseconds(u64::try_from(time.as_millis()).unwrap_or(u64::MAX)),
        None => Term::UntilRevoked,
    };
    let others = others(&args)?;
    let connection = running::connect(&args.id)?;
    let request = |wanted| GrantRequest {
        wanted,
        term,
        uses: args.count,
        reason: args.reason.clone(),
    };
    let reads = args.read.iter().map(|path| (path, Right::Read));
    let writes = args.write.iter().map(|path| (path, Right::Write));
    for (path, right) in reads.chain(writes) {
        let granted = grant_path(&connection, path, request(Wanted::Path { right }));
        tell(granted, Printable::new(path))?;
    }
    for resource in others {
        let shown = resource.to_string();
        tell(one(&connection, resource, request), shown)?;
    }
    Ok(0)
}

fn one(
    connection: &Connection,
    resource: Resource,
    request: impl Fn(Wanted) -> GrantRequest,
) -> Result<Granted, ClientError> {
    match resource {
        Resource::Port { publish } => {
            let request = request(Wanted::Other(Resource::Port { publish }));
            grant_port(connection, publish, request)
        }
        other => grant(connection, request(Wanted::Other(other)), &[]),
    }
}

/// The real path of a socket.
pub(super) fn socket(path: &Path) -> Result<String, CliError> {
    let real = path.canonicalize().map_err(|error| {
        CliError::new(format!("{} cannot be found: {error}", Printable::new(path)))
    })?;
    let path = real.into_os_string().into_string();
    path.map_err(|_| CliError::new("the name of a leased socket is text"))
}

/// Everything that is asked for but paths.
fn others(args: &Args) -> Result<Vec<Resource>, CliError> {
    let mut all = Vec::new();
    for rule in &args.host {
        all.push(Resource::Host { rule: rule.clone() });
    }
    for rule in &args.http {
        all.push(Resource::Http { rule: rule.clone() });
    }
    for name in &args.secret {
        all.push(Resource::Secret { name: name.clone() });
    }
    for path in &args.socket {
        let path = socket(path)?;
        all.push(Resource::Socket { path });
    }
    for publish in &args.publish {
        all.push(Resource::Port { publish: *publish });
    }
    let memory = args.memory.map(memory).transpose()?;
    let cpus = args.cpus.map(cpus).transpose()?;
    all.extend([memory, cpus, args.pids.map(pids)].into_iter().flatten());
    Ok(all)
}

fn share() -> CliError {
    CliError::new("a lease on a limit names an amount, not a share of the host's")
}

/// So much memory.
pub(super) fn memory(amount: Amount) -> Result<Resource, CliError> {
    match amount {
        Amount::Bytes(value) => Ok(Resource::Limit {
            limit: LimitKind::Memory,
            value,
        }),
        _ => Err(share()),
    }
}

/// So many processors.
pub(super) fn cpus(amount: Cpus) -> Result<Resource, CliError> {
    match amount {
        Cpus::Milli(milli) => Ok(Resource::Limit {
            limit: LimitKind::Cpus,
            value: u64::from(milli),
        }),
        _ => Err(share()),
    }
}

/// So many processes and threads.
pub(super) fn pids(pids: u32) -> Resource {
    Resource::Limit {
        limit: LimitKind::Pids,
        value: u64::from(pids),
    }
}

fn tell(
    granted: Result<Granted, ClientError>,
    what: impl std::fmt::Display,
) -> Result<(), CliError> {
    match granted {
        Ok(Granted::Lease(lease)) => anstream::println!("{}", in_words(&lease)),
        Ok(Granted::ToCommand) => {
            anstream::println!("the command that needs it gets it, and it alone");
        }
        Ok(Granted::InBase { reason }) => {
            let reason = Printable::new(&reason);
            anstream::println!("no lease is needed: {reason}");
        }
        Err(ClientError::Refused { reason }) => {
            let reason = Printable::new(&reason).to_string();
            return Err(CliError::new(format!("{what} was not given: {reason}")));
        }
        Err(error) => return Err(running::said(error)),
    }
    Ok(())
}

/// A lease in one line.
pub(super) fn in_words(lease: &Lease) -> String {
    let term = match lease.term {
        Term::Milliseconds(time) => format!("for {}", Span(time)),
        Term::UntilRevoked => "until it is revoked".to_owned(),
    };
    let uses = match lease.uses {
        Some(1) => ", once".to_owned(),
        Some(uses) => format!(", {uses} times"),
        None => String::new(),
    };
    let approver = match lease.approver {
        Approver::Policy => "the policy",
        Approver::Operator => "the operator",
    };
    format!(
        "lease {}: {} {term}{uses}, by {approver}",
        lease.number, lease.resource
    )
}
