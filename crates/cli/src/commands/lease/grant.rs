//! `ironcage lease grant`, or `ironcage grant`.

use crate::cages;
use crate::completion::running_cages;
use crate::error::{CliError, CommandResult};
use crate::json;
use crate::render::lease::lease_text;
use crate::values::count;
use ironcage_client::{ClientError, Connection, grant, grant_path, grant_port};
use ironcage_control::{GrantRequest, LeaseTarget};
use ironcage_model::{
    GrantedLease, HostRule, HttpRule, Lease, LeaseOutcome, LimitKind, Printable, Publish, Reason,
    RequestOutcome, Resource, Right, Term,
};
use ironcage_policy::{Amount, Cpus, TimeLimit, allowed, requests};
use std::path::{Path, PathBuf};

/// Grant a running cage a permission for a limited time
///
/// A path appears in the cage where it is on the host, with exactly that right, for every process
/// in the cage; writes go to the real files. The egress proxy opens hosts, requests, secrets,
/// sockets and ports. Limits are raised. Nothing is granted beyond the ceiling of the cage's
/// policy; your command is the approval for what the ceiling marks `ask`. The lease ends with its
/// time, with `ironcage revoke`, or with the cage.
#[derive(Debug, clap::Args)]
#[command(group(clap::ArgGroup::new("what").required(true).multiple(true).args([
    "read", "write", "host", "http", "secret", "socket", "publish", "memory", "cpus", "pids",
])))]
pub(crate) struct Args {
    /// Cage ID, unique ID prefix, or name
    #[arg(value_name = "ID", add = running_cages())]
    id: String,
    /// Grant reading a file or directory (can be repeated)
    #[arg(short, long, value_name = "PATH")]
    read: Vec<PathBuf>,
    /// Grant reading and writing a file or directory (can be repeated)
    #[arg(short, long, value_name = "PATH")]
    write: Vec<PathBuf>,
    /// Grant connections to a host: NAME (ports 80 and 443), NAME:PORT, '*.NAME' or an address
    /// (can be repeated)
    #[arg(long, value_name = "HOST", value_parser = allowed)]
    host: Vec<HostRule>,
    /// Grant HTTP requests, for example 'GET,HEAD api.example.com/v1/**' (can be repeated)
    #[arg(long, value_name = "REQUESTS", value_parser = requests)]
    http: Vec<HttpRule>,
    /// Grant a secret that the ceiling names (can be repeated)
    #[arg(long, value_name = "NAME")]
    secret: Vec<String>,
    /// Grant connections to a Unix socket on the host (can be repeated)
    #[arg(long, value_name = "PATH")]
    socket: Vec<PathBuf>,
    /// Publish a port of the cage on the host's loopback; OUTER 0 picks a free port (can be
    /// repeated)
    #[arg(long, value_name = "OUTER:INNER")]
    publish: Vec<Publish>,
    /// Raise the memory limit to SIZE, for example 8G
    #[arg(long, value_name = "SIZE")]
    memory: Option<Amount>,
    /// Raise the CPU limit to NUMBER, for example 2.5
    #[arg(long, value_name = "NUMBER")]
    cpus: Option<Cpus>,
    /// Raise the limit on processes and threads to NUMBER
    #[arg(long, value_name = "NUMBER", value_parser = count::<u32>)]
    pids: Option<u32>,
    /// Duration of the lease, for example 30s or 10m; `none` is as long as the policy allows
    /// [default: none]
    #[arg(long = "for", value_name = "TIME")]
    time: Option<TimeLimit>,
    /// Number of uses: connections, or requests with --http
    #[arg(long, value_name = "NUMBER", value_parser = count::<u32>)]
    count: Option<u32>,
    /// Reason, for the audit log
    #[arg(long, value_name = "TEXT", default_value = "")]
    reason: String,
    /// Print the open leases as JSON; what needs no lease is not listed
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: Args) -> CommandResult {
    let term = match args.time.as_ref().and_then(|time| time.0) {
        Some(time) => Term::Milliseconds(u64::try_from(time.as_millis()).unwrap_or(u64::MAX)),
        None => Term::UntilRevoked,
    };
    let others = others(&args)?;
    let connection = cages::connect(&args.id)?;
    let mut granted_leases = GrantReport::new(args.json);
    let request = |wanted| GrantRequest {
        wanted,
        term,
        uses: args.count,
        reason: args.reason.clone(),
    };
    let reads = args.read.iter().map(|path| (path, Right::Read));
    let writes = args.write.iter().map(|path| (path, Right::Write));
    for (path, right) in reads.chain(writes) {
        let granted = grant_path(&connection, path, request(LeaseTarget::Path { right }));
        granted_leases.take(granted, Printable::new(path))?;
    }
    for resource in others {
        let shown = resource.to_string();
        granted_leases.take(grant_one(&connection, resource, request), shown)?;
    }
    granted_leases.finish()
}

/// Reports granted leases: a line for each as it comes, or JSON at the end.
pub(in crate::commands) struct GrantReport(Option<Vec<Lease>>);

impl GrantReport {
    pub(in crate::commands) fn new(json: bool) -> GrantReport {
        GrantReport(json.then(Vec::new))
    }

    /// After an error, JSON has the leases that were opened before it.
    pub(in crate::commands) fn take(
        &mut self,
        granted: Result<RequestOutcome, ClientError>,
        what: impl std::fmt::Display,
    ) -> Result<(), CliError> {
        let done = match (&mut self.0, granted) {
            (Some(open), Ok(LeaseOutcome::Granted(granted))) => {
                if let GrantedLease::Open(lease) = granted {
                    open.push(lease);
                }
                Ok(())
            }
            (Some(_), Ok(LeaseOutcome::InBase { .. })) => Ok(()),
            (_, granted) => report(granted, what),
        };
        if done.is_err() {
            self.print()?;
        }
        done
    }

    pub(in crate::commands) fn finish(self) -> CommandResult {
        self.print()?;
        Ok(0)
    }

    fn print(&self) -> Result<(), CliError> {
        if let Some(open) = &self.0 {
            anstream::println!("{}", json::line(open).map_err(CliError::new)?);
        }
        Ok(())
    }
}

fn grant_one(
    connection: &Connection,
    resource: Resource,
    request: impl Fn(LeaseTarget) -> GrantRequest,
) -> Result<RequestOutcome, ClientError> {
    match resource {
        Resource::Port { publish } => {
            let request = request(LeaseTarget::Other(Resource::Port { publish }));
            grant_port(connection, publish, request)
        }
        other => grant(connection, request(LeaseTarget::Other(other)), &[]),
    }
}

/// The real path of a socket.
pub(in crate::commands) fn socket(path: &Path) -> Result<String, CliError> {
    let real = path
        .canonicalize()
        .map_err(|error| CliError::new(format!("cannot find {}: {error}", Printable::new(path))))?;
    let path = real.into_os_string().into_string();
    path.map_err(|path| {
        let shown = Printable::new(&path);
        CliError::new(format!("cannot lease {shown}: the path is not valid UTF-8"))
    })
}

/// Every requested resource except paths.
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

fn percentage() -> CliError {
    CliError::new("cannot lease a percentage of the host: name an amount, for example 8G")
}

pub(in crate::commands) fn memory(amount: Amount) -> Result<Resource, CliError> {
    match amount {
        Amount::Bytes(value) => Ok(Resource::Limit {
            limit: LimitKind::Memory,
            value,
        }),
        _ => Err(percentage()),
    }
}

pub(in crate::commands) fn cpus(amount: Cpus) -> Result<Resource, CliError> {
    match amount {
        Cpus::Milli(milli) => Ok(Resource::Limit {
            limit: LimitKind::Cpus,
            value: u64::from(milli),
        }),
        _ => Err(percentage()),
    }
}

pub(in crate::commands) fn pids(pids: u32) -> Resource {
    Resource::Limit {
        limit: LimitKind::Pids,
        value: u64::from(pids),
    }
}

fn report(
    granted: Result<RequestOutcome, ClientError>,
    what: impl std::fmt::Display,
) -> Result<(), CliError> {
    match granted {
        Ok(LeaseOutcome::Granted(GrantedLease::Open(lease))) => {
            anstream::println!("{}", lease_text(&lease));
        }
        Ok(LeaseOutcome::Granted(GrantedLease::ForScope { .. })) => {
            anstream::println!("granted to the requesting command only");
        }
        Ok(LeaseOutcome::InBase { reason }) => {
            anstream::println!("no lease needed: {reason}");
        }
        Ok(LeaseOutcome::Denied { reason }) | Err(ClientError::Refused { reason }) => {
            return Err(denied(what, &reason));
        }
        Ok(LeaseOutcome::Pending { question, reason }) => {
            return Err(CliError::new(format!(
                "cannot grant {what}: {reason}: it waits as request {question}"
            )));
        }
        Err(error) => return Err(cages::client_error(error)),
    }
    Ok(())
}

fn denied(what: impl std::fmt::Display, reason: &Reason) -> CliError {
    CliError::new(format!("cannot grant {what}: {reason}")).with_denial(reason)
}
