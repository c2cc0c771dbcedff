//! `ironcage __forecast`: counts the permission requests that an agent's commands would cause, for
//! `ironcage bench intent`. Nothing is run, opened or recorded.

use crate::cage_flags::CageFlags;
use crate::error::{CliError, CommandResult};
use crate::json;
use ironcage_intent::{Context, Destination, Shell, Table};
use ironcage_model::{Contact, Resource};
use ironcage_supervisor::forecast;
use serde::Serialize;
use std::path::Path;

/// Count the leases that a JSON list of commands would need
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Profile to apply
    #[arg(long)]
    profile: String,
}

#[derive(Debug, Default, Serialize)]
struct RequestCounts {
    commands: usize,
    /// Commands that need no lease.
    plain: usize,
    given: usize,
    refused: usize,
    /// Requests, if the same resource is requested once.
    asked: usize,
    /// Requests, if every command requests again.
    asked_each_time: usize,
}

pub(crate) fn run(args: Args) -> CommandResult {
    let commands: Vec<String> =
        serde_json::from_reader(std::io::stdin().lock()).map_err(|error| {
            CliError::new(format!(
                "cannot read the commands: expected a JSON list of strings: {error}"
            ))
        })?;
    // An empty project: what is not in it is outside.
    let place = std::env::temp_dir().join(format!("ironcage-corpus-{}", std::process::id()));
    std::fs::create_dir(&place)
        .map_err(|error| CliError::new(format!("cannot create {}: {error}", place.display())))?;
    let mut flags = CageFlags::in_workspace(place.clone());
    flags.set_base(Some(args.profile), None);
    let prepared = flags.prepare(vec!["/bin/true".into()]);
    // It is empty.
    let _ = std::fs::remove_dir(&place);
    let plan = prepared?.plan;
    let tools = Table::shipped().map_err(|error| CliError::from_error(&error))?;
    let context = Context {
        cwd: plan.workspace.clone(),
        home: plan.home().map(Path::to_owned),
    };
    let mut counts = RequestCounts::default();
    let mut known: Vec<Resource> = Vec::new();
    for command in commands {
        let needs = Shell::new(&tools).read(&command, &context);
        let contacts = needs.destinations.iter().map(|to| match to {
            Destination::Host { .. } => Contact::Host(to.to_string()),
            Destination::Bundle(name) => Contact::Bundle(name.clone()),
            Destination::Remote(name) => Contact::Remote(name.clone()),
        });
        let (reads, writes) = (
            needs.reads_and_enters().cloned(),
            needs.writes.iter().cloned(),
        );
        let outcome = forecast(&plan, reads.collect(), writes.collect(), contacts.collect());
        counts.commands += 1;
        counts.given += outcome.given.len();
        counts.refused += outcome.refused.len();
        counts.asked_each_time += outcome.asked.len();
        let nothing =
            outcome.given.is_empty() && outcome.asked.is_empty() && outcome.refused.is_empty();
        counts.plain += usize::from(nothing);
        for resource in outcome.asked {
            if !known.contains(&resource) {
                counts.asked += 1;
                known.push(resource);
            }
        }
    }
    let text = json::line(&counts).map_err(CliError::new)?;
    anstream::println!("{text}");
    Ok(0)
}
