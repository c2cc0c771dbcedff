//! `ironcage net allow` and its kin: rules and limits of a running cage.

use super::super::audit::print;
use crate::completed::running_cages;
use crate::error::{CliError, CommandResult};
use crate::json;
use crate::running;
use ironcage_control::{NetworkRequest, NetworkRules, Reply};
use ironcage_model::{
    HostRule, HttpRule, LiveRule, NetworkLimits, NetworkVerdict, Printable, RuleChange,
    bytes_as_written,
};
use ironcage_policy::{NetworkLimit, NetworkLimitName};
use ironcage_runtime::client::ClientError;

/// A running cage.
#[derive(Debug, clap::Args)]
pub(super) struct Cage {
    /// The cage: its id or the beginning of it, or its name
    #[arg(value_name = "CAGE", add = running_cages())]
    cage: String,
}

/// A host to deny.
#[derive(Debug, clap::Args)]
pub(super) struct Deny {
    #[command(flatten)]
    cage: Cage,
    /// The host, as --deny-host takes it; host.ironcage:PORT is a port of the host's own
    #[arg(value_name = "HOST")]
    host: String,
}

/// A host to allow, or requests to it.
#[derive(Debug, clap::Args)]
pub(super) struct Allow {
    #[command(flatten)]
    cage: Cage,
    /// The host, as --allow-host takes it; host.ironcage:PORT is a port of the host's own
    #[arg(value_name = "HOST", required_unless_present = "http")]
    host: Option<String>,
    /// Some requests only, as --http-allow takes them: the host gets no others
    #[arg(long, value_name = "[METHOD,..] HOST[/PATH]", conflicts_with = "host")]
    http: Option<String>,
}

/// Rules to take away.
#[derive(Debug, clap::Args)]
pub(super) struct Remove {
    #[command(flatten)]
    cage: Cage,
    /// Their numbers, as `ironcage net rules` shows them
    #[arg(value_name = "NUMBER", required = true)]
    numbers: Vec<u32>,
}

/// Rules to show.
#[derive(Debug, clap::Args)]
pub(super) struct Show {
    #[command(flatten)]
    cage: Cage,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Limits to set.
#[derive(Debug, clap::Args)]
pub(super) struct Limit {
    #[command(flatten)]
    cage: Cage,
    /// Limits, as --network-limit takes them, such as bytes-out=100M
    #[arg(value_name = "NAME=VALUE", required = true)]
    limits: Vec<NetworkLimit>,
}

fn ask(cage: &Cage, request: NetworkRequest) -> Result<Reply, CliError> {
    let connection = running::connect(&cage.cage)?;
    connection.ask_network(request).map_err(running::said)
}

fn unexpected(reply: &Reply) -> CliError {
    running::said(ClientError::Answer(format!("{reply:?}")))
}

/// Asks for a change and tells what came of it.
fn request(cage: &Cage, request: NetworkRequest, what: &str) -> CommandResult {
    match ask(cage, request)? {
        Reply::NetworkChanged { numbers, closed } => {
            let numbers: Vec<String> = numbers.iter().map(u32::to_string).collect();
            let numbers = match numbers.as_slice() {
                [] => String::new(),
                [one] => format!(" rule {one}"),
                more => format!(" rules {}", more.join(", ")),
            };
            let closed = match closed {
                0 => String::new(),
                1 => "; 1 open connection was closed".to_owned(),
                more => format!("; {more} open connections were closed"),
            };
            print(|out| writeln!(out, "{what}{numbers}{closed}"))?;
            Ok(0)
        }
        other => Err(unexpected(&other)),
    }
}

pub(super) fn allow(args: Allow) -> CommandResult {
    let wrong = |error| CliError::from_error(&error);
    let (rule, requests) = match (&args.http, &args.host) {
        (Some(text), _) => {
            let requests = ironcage_policy::requests(text).map_err(wrong)?;
            (requests.host.clone(), Some(requests))
        }
        (None, host) => {
            let host = host.as_deref().unwrap_or_default();
            (ironcage_policy::allowed(host).map_err(wrong)?, None)
        }
    };
    let verdict = NetworkVerdict::Allowed;
    add(&args.cage, verdict, rule, requests)
}

pub(super) fn deny(args: Deny) -> CommandResult {
    let rule = ironcage_policy::denied(&args.host);
    let rule = rule.map_err(|error| CliError::from_error(&error))?;
    add(&args.cage, NetworkVerdict::Denied, rule, None)
}

fn add(
    cage: &Cage,
    verdict: NetworkVerdict,
    rule: HostRule,
    requests: Option<HttpRule>,
) -> CommandResult {
    let asked = NetworkRequest::Add {
        verdict,
        rule,
        requests,
    };
    request(cage, asked, "added")
}

pub(super) fn remove(args: Remove) -> CommandResult {
    let numbers = args.numbers;
    request(&args.cage, NetworkRequest::Remove { numbers }, "removed")
}

pub(super) fn reset(cage: Cage) -> CommandResult {
    request(&cage, NetworkRequest::Reset, "removed")
}

fn rules(cage: &Cage) -> Result<NetworkRules, CliError> {
    match ask(cage, NetworkRequest::Rules)? {
        Reply::NetworkRules(rules) => Ok(*rules),
        other => Err(unexpected(&other)),
    }
}

pub(super) fn show(args: Show) -> CommandResult {
    let rules = rules(&args.cage)?;
    if args.json {
        let text = json::pretty(&rules).map_err(CliError::new)?;
        print(|out| writeln!(out, "{text}"))?;
        return Ok(0);
    }
    print(|out| {
        for rule in &rules.allow {
            writeln!(out, "plan     allow  {rule}")?;
        }
        for port in &rules.host_ports {
            writeln!(out, "plan     allow  host.ironcage:{port}")?;
        }
        for rule in &rules.http {
            writeln!(out, "plan     allow  {rule}")?;
        }
        for rule in &rules.deny {
            writeln!(out, "plan     deny   {rule}")?;
        }
        for rule in &rules.live {
            let number = format!("live {}", rule.number);
            let origin = Printable::new(&rule.origin);
            writeln!(
                out,
                "{number:<8} {:<5}  {}  ({origin})",
                word(rule.verdict),
                rule.written()
            )?;
        }
        if let Some(ports) = &rules.ports {
            let ports: Vec<String> = ports.iter().map(u16::to_string).collect();
            writeln!(out, "ports    {}", ports.join(", "))?;
        }
        writeln!(out, "limits   {}", limits_in_words(&rules.limits))
    })?;
    Ok(0)
}

pub(super) fn limit(args: Limit) -> CommandResult {
    let mut limits = rules(&args.cage)?.limits;
    for NetworkLimit { name, value } in args.limits {
        let slot = match name {
            NetworkLimitName::Connections => &mut limits.connections,
            NetworkLimitName::RequestsPerSecond => &mut limits.requests_per_second,
            NetworkLimitName::BytesOutPerHost => &mut limits.bytes_out_per_host,
            NetworkLimitName::BytesOut => &mut limits.bytes_out,
            NetworkLimitName::NewHostsPerMinute => &mut limits.new_hosts_per_minute,
            NetworkLimitName::Body => &mut limits.body,
        };
        *slot = Some(value);
    }
    let what = format!("limits: {}", limits_in_words(&limits));
    request(&args.cage, NetworkRequest::Limits(limits), &what)
}

fn word(verdict: NetworkVerdict) -> &'static str {
    match verdict {
        NetworkVerdict::Allowed => "allow",
        NetworkVerdict::Denied => "deny",
    }
}

/// A change of a rule in one line.
pub(in crate::commands) fn change_in_words(
    change: RuleChange,
    rule: &LiveRule,
    closed: u64,
) -> String {
    let change = match change {
        RuleChange::Added => "added",
        RuleChange::Removed => "removed",
    };
    let (verdict, number) = (word(rule.verdict), rule.number);
    let origin = Printable::new(&rule.origin);
    let closed = match closed {
        0 => String::new(),
        closed => format!(", {closed} open connections closed"),
    };
    format!(
        "rule {number} {change} by {origin}: {verdict} {}{closed}",
        rule.written()
    )
}

/// Limits in one line.
pub(in crate::commands) fn limits_in_words(limits: &NetworkLimits) -> String {
    let number = |limit: Option<u64>, what: &str| limit.map(|limit| format!("{limit} {what}"));
    let size = |limit: Option<u64>, what: &str| {
        limit.map(|limit| format!("{} {what}", bytes_as_written(limit)))
    };
    let parts: Vec<String> = [
        number(limits.connections, "connections"),
        number(limits.requests_per_second, "requests a second"),
        size(limits.bytes_out_per_host, "out to each host"),
        size(limits.bytes_out, "out in total"),
        number(limits.new_hosts_per_minute, "new hosts a minute"),
        size(limits.body, "in a body"),
    ]
    .into_iter()
    .flatten()
    .collect();
    if parts.is_empty() {
        return "none".into();
    }
    parts.join(", ")
}
