//! The part of a learned policy that is about the network and the ceiling.

use super::{Source, UNSEEN, tried};
use crate::hosts::{Needs, needs};
use crate::text::{self, Section};
use ironcage_model::{HOST_NAME, Mark, NetworkVerdict, Resource, Right, SecretRule, Use};
use ironcage_plan::guard;
use ironcage_policy::{Reach, quoted};
use std::path::Path;

pub(super) fn network(source: &Source<'_>) -> Vec<Section> {
    let mut section = Section::new("network");
    let Source {
        record, max, plan, ..
    } = source;
    let reach = Reach::through(max, &plan.workspace, Mark::Ask);
    let made = needs(record.connections(NetworkVerdict::Allowed), Some(max));
    let refused = needs(record.connections(NetworkVerdict::Denied), None);
    let rest = add_network(&mut section, &reach, &made);
    let mut proposed = rest;
    proposed.hosts.extend(refused.hosts);
    proposed.host_ports.extend(refused.host_ports);
    proposed.sockets.extend(refused.sockets);
    for needed in &proposed.hosts {
        let wanted = Resource::Host {
            rule: needed.rule.clone(),
        };
        // What the bound's ceiling has is there, to be asked for.
        if !reach.gives(&wanted) {
            let why = format!("outside the policy of the run; {}", needed.why);
            section.propose("allow", quoted(&needed.rule.to_string()), why);
        }
    }
    for needed in &proposed.host_ports {
        let why = format!("outside the policy of the run; {}", needed.why);
        section.propose("host-ports", needed.rule.to_string(), why);
    }
    let connected = record.seen.iter().filter(|seen| seen.how == Use::Connect);
    for seen in connected.filter(|seen| !seen.found) {
        if source.host.kind(Path::new(&seen.what)).is_some() {
            let why = format!("{} tried to connect to it", seen.program);
            section.propose("sockets", quoted(&seen.what), why);
        }
    }
    for publish in &max.network.publish {
        section.add("publish", quoted(&publish.value.to_string()), UNSEEN);
    }
    for rule in &max.network.deny {
        section.add("deny", quoted(&rule.value.to_string()), "denied in the run");
    }
    if max.network.never_open.value {
        section.set("never-open", "true", "as in the run");
    }
    let mut sections = vec![section];
    let contacted = |rule: &SecretRule| {
        record.connections(NetworkVerdict::Allowed).any(|traffic| {
            let name = ironcage_model::HostName::from_ascii(traffic.host.as_bytes());
            name.is_ok_and(|name| {
                rule.hosts
                    .iter()
                    .any(|host| host.names(&name, traffic.port))
            })
        })
    };
    let mut secrets = Section::new("network.secrets");
    for secret in max.network.secrets.iter().map(|secret| &secret.value) {
        if !secret.leased && contacted(secret) {
            let why = "its host was contacted; the audit log does not show whether it was used";
            secrets.set(&quoted(&secret.name), secret_table(secret), why);
        }
    }
    sections.push(secrets);
    let mut resolve = Section::new("network.resolve");
    for fixed in max.network.resolve.iter().map(|fixed| &fixed.value) {
        let mut made = record.connections(NetworkVerdict::Allowed);
        if made.any(|traffic| traffic.host == fixed.name.as_str()) {
            let name = quoted(fixed.name.as_str());
            resolve.set(&name, quoted(&fixed.address.to_string()), "as in the run");
        }
    }
    sections.push(resolve);
    let mut limits = Section::new("network.limits");
    for limit in &max.network.limits {
        let value = limit.value.to_string();
        let is_number = value.bytes().all(|byte| byte.is_ascii_digit());
        let value = if is_number { value } else { quoted(&value) };
        limits.set(limit.value.name.name(), value, "as in the run");
    }
    sections.push(limits);
    sections
}

fn secret_table(secret: &SecretRule) -> String {
    let hosts = secret.host_texts();
    let hosts: Vec<String> = hosts.iter().map(|host| quoted(host)).collect();
    let places = secret.places.iter().map(|place| quoted(&place.to_string()));
    let places: Vec<String> = places.collect();
    format!(
        "{{ hosts = [{}], from = {}, in = [{}] }}",
        hosts.join(", "),
        quoted(&secret.from.to_string()),
        places.join(", ")
    )
}

/// Adds what is within reach; returns the rest.
fn add_network(section: &mut Section, reach: &Reach<'_>, made: &Needs) -> Needs {
    let mut rest = Needs::default();
    for needed in &made.hosts {
        let wanted = Resource::Host {
            rule: needed.rule.clone(),
        };
        match reach.gives(&wanted) {
            true => section.add("allow", quoted(&needed.rule.to_string()), &*needed.why),
            false => rest.hosts.push(needed.clone()),
        }
    }
    for needed in &made.requests {
        let wanted = Resource::Http {
            rule: needed.rule.clone(),
        };
        if reach.gives(&wanted) {
            section.add("http", quoted(&needed.rule.to_string()), &*needed.why);
        }
    }
    for needed in &made.host_ports {
        let rule = format!("{HOST_NAME}:{}", needed.rule).parse();
        match rule.is_ok_and(|rule| reach.gives(&Resource::Host { rule })) {
            true => section.add("host-ports", needed.rule.to_string(), &*needed.why),
            false => rest.host_ports.push(needed.clone()),
        }
    }
    for needed in &made.sockets {
        let path = needed.rule.clone();
        match reach.gives(&Resource::Socket { path }) {
            true => section.add("sockets", quoted(&needed.rule), &*needed.why),
            false => rest.sockets.push(needed.clone()),
        }
    }
    rest
}

/// What was tried in vain and the bound's own ceiling would give, by asking.
pub(super) fn ceiling(source: &Source<'_>) -> Vec<Section> {
    let Source {
        record, max, plan, ..
    } = source;
    let reach = Reach::through(max, &plan.workspace, Mark::Ask);
    let mut files = Section::new("ceiling.ask.files");
    for (path, right, program) in tried(source) {
        let guarded = guard(source.home, &path, right == Right::Write).is_some();
        if let (false, true, Some(text)) = (
            guarded,
            reach.path(&path, right),
            text::path(&path, source.home),
        ) {
            let why = format!("{program} tried it; the policy of the run allows it after approval");
            files.add(right.name(), text, why);
        }
    }
    let mut network = Section::new("ceiling.ask.network");
    for needed in needs(record.connections(NetworkVerdict::Denied), None).hosts {
        let text = quoted(&needed.rule.to_string());
        let wanted = Resource::Host { rule: needed.rule };
        if reach.gives(&wanted) {
            let why = format!(
                "denied in the run; its policy allows it after approval; {}",
                needed.why
            );
            network.add("allow", text, why);
        }
    }
    vec![files, network]
}
