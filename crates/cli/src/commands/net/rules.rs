//! `ironcage net rules`.

use super::CageArgument;
use crate::error::{CliError, CommandResult};
use crate::json;
use crate::output::print;
use crate::render::traffic::{limits_text, verb};
use ironcage_model::Printable;

/// Show the network rules and limits of a running cage
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    #[command(flatten)]
    cage: CageArgument,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub(super) fn run(args: Args) -> CommandResult {
    let rules = args.cage.rules()?;
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
                verb(rule.verdict),
                rule.written()
            )?;
        }
        if let Some(ports) = &rules.ports {
            let ports: Vec<String> = ports.iter().map(u16::to_string).collect();
            writeln!(out, "ports    {}", ports.join(", "))?;
        }
        writeln!(out, "limits   {}", limits_text(&rules.limits))
    })?;
    Ok(0)
}
