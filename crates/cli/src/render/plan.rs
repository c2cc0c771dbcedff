//! A plan in ten lines.

use crate::cage_flags::PlannedCage;
use crate::error::CommandResult;
use crate::output::{print, size};
use ironcage_model::{Enforcement, HOST_NAME, Mark, Printable};
use ironcage_plan::{Network, Plan, UNCOVERED_VALUES};
use ironcage_policy::Policy;
use std::fmt::Display;
use std::path::PathBuf;

/// More are counted.
const MOST_NAMED: usize = 4;

pub(crate) fn summarize(prepared: &PlannedCage) -> CommandResult {
    let (plan, policy) = (&prepared.plan, &prepared.resolved.policy);
    let command = plan.command.argv.iter().map(Printable::new);
    let command: Vec<String> = command.map(|word| word.to_string()).collect();
    let choice = &prepared.resolved.profile_choice;
    let mode = policy.workspace_mode.value.name();
    let workspace = Printable::new(&plan.workspace);
    print(|out| {
        writeln!(out, "{choice}")?;
        for denied in &prepared.resolved.narrowed {
            writeln!(out, "not granted  {}", Printable::new(denied))?;
        }
        writeln!(out, "command      {}", command.join(" "))?;
        writeln!(out, "workspace    {workspace} ({mode})")?;
        writeln!(
            out,
            "readable     the system, toolchains{}",
            readable(policy)
        )?;
        writeln!(
            out,
            "writable     the workspace, an empty home, /tmp{}",
            writable(policy)
        )?;
        writeln!(out, "network      {}", network(plan))?;
        writeln!(out, "on request   {}", leases(plan))?;
        writeln!(out, "limits       {}", limits(plan))?;
        writeln!(out, "layers       {}", layers(plan))?;
        if plan.network.as_ref().is_some_and(Network::has_secrets) {
            writeln!(out, "note         {UNCOVERED_VALUES}")?;
        }
        for note in &plan.notes {
            writeln!(out, "note         {}", Printable::new(note))?;
        }
        writeln!(
            out,
            "`ironcage plan --all` shows every item with its origin"
        )
    })?;
    Ok(0)
}

/// The first few, and how many more there are.
fn named<T: Display>(items: impl IntoIterator<Item = T>) -> String {
    let items: Vec<String> = items.into_iter().map(|item| item.to_string()).collect();
    let shown = items.iter().take(MOST_NAMED).cloned().collect::<Vec<_>>();
    match items.len().saturating_sub(MOST_NAMED) {
        0 => shown.join(", "),
        more => format!("{} and {more} more", shown.join(", ")),
    }
}

fn appended<'p>(paths: impl Iterator<Item = &'p PathBuf>) -> String {
    match named(paths.map(Printable::new)) {
        text if text.is_empty() => text,
        text => format!(", {text}"),
    }
}

fn readable(policy: &Policy) -> String {
    appended(policy.read.iter().map(|path| &path.value))
}

fn writable(policy: &Policy) -> String {
    let written = policy.write.iter().chain(&policy.write_direct);
    appended(written.map(|path| &path.value))
}

fn network(plan: &Plan) -> String {
    let Some(network) = &plan.network else {
        return "none".to_owned();
    };
    let mut parts = Vec::new();
    match named(network.allow.iter().map(|item| &item.what.rule)) {
        text if text.is_empty() => parts.push("no hosts".to_owned()),
        text => parts.push(text),
    }
    let own = network.host_ports.iter();
    let own = named(own.map(|item| format!("{HOST_NAME}:{}", item.what.port)));
    if !own.is_empty() {
        parts.push(format!("ports of this host: {own}"));
    }
    let sockets = named(
        network
            .sockets
            .iter()
            .map(|item| Printable::new(&item.what.path).to_string()),
    );
    if !sockets.is_empty() {
        parts.push(format!("sockets of this host: {sockets}"));
    }
    if network.live {
        parts.push("and hosts that `ironcage net allow` adds".to_owned());
    }
    let ports = network.publish.iter().map(|item| item.what.to_string());
    let ports = named(ports);
    if !ports.is_empty() {
        parts.push(format!("published ports {ports}"));
    }
    let secrets = network.secrets.len() + network.logins.len() + usize::from(network.aws.is_some());
    if secrets > 0 {
        let noun = if secrets == 1 { "secret" } else { "secrets" };
        parts.push(format!("{secrets} {noun} that the cage does not hold"));
    }
    parts.join("; ")
}

fn leases(plan: &Plan) -> String {
    let Some(leases) = &plan.leases else {
        return "nothing: the policy has no ceiling".to_owned();
    };
    let marks = leases.paths.iter().map(|item| item.what.mark);
    let marks = marks.chain(leases.others.iter().map(|item| item.what.mark));
    let (mut auto, mut ask) = (0, 0);
    for mark in marks {
        match mark {
            Mark::Always | Mark::Auto => auto += 1,
            Mark::Ask => ask += 1,
            Mark::Deny => {}
        }
    }
    format!("{auto} items granted automatically, {ask} with your approval")
}

fn limits(plan: &Plan) -> String {
    let bounds = &plan.bounds;
    let time = match bounds.time.what.value {
        Some(time) => format!(", {} s", time.as_secs()),
        None => String::new(),
    };
    format!(
        "memory {}, {} CPUs, {} processes, disk {}{time}",
        size(bounds.memory.what.value),
        bounds.cpu.what.value as f64 / 1000.0,
        bounds.pids.what.value,
        size(bounds.disk.what.value),
    )
}

fn layers(plan: &Plan) -> String {
    let of = |wanted: fn(&Enforcement) -> bool| {
        let layers = plan.layers.iter();
        let layers = layers.filter(move |report| wanted(&report.enforcement));
        layers.map(|report| report.layer.name())
    };
    let full = of(|how| matches!(how, Enforcement::Full)).count();
    let mut text = format!("{} enforced in full", full);
    let partial = named(of(|how| matches!(how, Enforcement::Partial(_))));
    if !partial.is_empty() {
        text.push_str(&format!("; in part: {partial}"));
    }
    let off = named(of(|how| matches!(how, Enforcement::Off(_))));
    if !off.is_empty() {
        text.push_str(&format!("; off: {off}"));
    }
    text
}
