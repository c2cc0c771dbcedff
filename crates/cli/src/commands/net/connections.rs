//! `ironcage net` without a command: the connections of a cage, from its audit log.

use super::follow;
use crate::error::CommandResult;
use crate::named_hosts::NamedHosts;
use crate::output::print;
use crate::render::remedy::remedy;
use crate::render::traffic::{NO_NETWORK, summary};
use crate::{audit_log, json, paths};
use ironcage_host::SystemFiles;
use ironcage_model::{EventKind, NetworkVerdict, Traffic};
use std::collections::BTreeMap;
use std::path::Path;

/// Connections with the same key are one line.
type TrafficKey = (
    bool,
    String,
    u16,
    Option<String>,
    Option<String>,
    Option<String>,
    (Option<String>, Option<u16>),
);

pub(super) fn run(cage: Option<&str>, follow: bool, json: bool) -> CommandResult {
    let (id, path) = audit_log::find_log(cage)?;
    if follow {
        return follow::run(&path, &id, json);
    }
    let mut sums: BTreeMap<TrafficKey, Traffic> = BTreeMap::new();
    let mut ended = None;
    let mut runs = true;
    let mut named = NamedHosts::default();
    for record in audit_log::records(&path, 0)? {
        match record.event.kind {
            EventKind::Start {
                command, workspace, ..
            } => {
                let (home, at) = (paths::home(&SystemFiles::default())?, Path::new(&workspace));
                named = NamedHosts::of_command(&command, at, at, &home);
            }
            EventKind::Exit { .. } => runs = false,
            EventKind::Network(traffic) => add(&mut sums, traffic),
            EventKind::DoorEnded { reason } => ended = Some(reason),
            _ => {}
        }
    }
    if json {
        return print(|out| {
            for traffic in sums.values() {
                writeln!(out, "{}", json::line(traffic)?)?;
            }
            Ok(())
        })
        .map(|()| 0);
    }
    print(|out| {
        if sums.is_empty() {
            writeln!(out, "cage {id}: no connections")?;
            writeln!(out, "  {NO_NETWORK}")?;
        }
        for traffic in sums.values() {
            writeln!(out, "{}", summary(traffic))?;
            if let Some(remedy) = remedy(traffic, &named) {
                writeln!(out, "         to allow it:     {remedy}")?;
                if let Some(rule) = remedy.live().filter(|_| runs) {
                    writeln!(
                        out,
                        "         while it runs:   ironcage net allow {id} {rule}"
                    )?;
                }
            }
        }
        if let Some(reason) = &ended {
            writeln!(out, "the egress proxy ended before the cage: {reason}")?;
        }
        Ok(())
    })?;
    Ok(0)
}

fn add(sums: &mut BTreeMap<TrafficKey, Traffic>, traffic: Traffic) {
    let key = (
        traffic.verdict == NetworkVerdict::Denied,
        traffic.host.clone(),
        traffic.port,
        traffic.address.clone(),
        traffic.rule.clone(),
        traffic.reason.as_ref().map(ToString::to_string),
        (traffic.request.clone(), traffic.status),
    );
    match sums.get_mut(&key) {
        Some(known) => {
            known.connections = known.connections.saturating_add(traffic.connections);
            known.sent = known.sent.saturating_add(traffic.sent);
            known.received = known.received.saturating_add(traffic.received);
        }
        None => {
            sums.insert(key, traffic);
        }
    }
}
