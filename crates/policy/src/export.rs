//! Converts a policy into the settings of another sandbox, and lists what they cannot express.
//!
//! The other sandbox enforces less, so the list is a part of the result, not a comment.

use crate::{Network, Policy, WorkspaceMode};
use ironcage_model::{Destination, HostRule};
use serde_json::{Value, json};
use std::fmt;
use std::path::{Path, PathBuf};

/// Settings of another sandbox.
#[derive(Debug, Clone, PartialEq)]
pub struct Exported {
    pub settings: Value,
    /// What they do not express.
    pub lost: Vec<Lost>,
}

/// A part of the policy that the settings do not express.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lost {
    /// The key of the policy.
    pub key: &'static str,
    pub note: String,
}

impl fmt::Display for Lost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.key, self.note)
    }
}

/// Where the policy holds.
#[derive(Debug, Clone, Copy)]
pub struct ExportPlace<'a> {
    pub workspace: &'a Path,
    /// The user's home directory.
    pub home: &'a Path,
}

/// Settings of Anthropic's sandbox-runtime (`srt`), which Claude Code has below `sandbox`.
pub fn srt(policy: &Policy, place: ExportPlace<'_>) -> Exported {
    let mut lost = Vec::new();
    let mut tell = |key, note: String| lost.push(Lost { key, note });
    let hidden: Vec<&PathBuf> = policy.hide.iter().map(|path| &path.value).collect();
    let visible = visible(policy, place);
    for path in &hidden {
        if visible.iter().any(|tree| path.starts_with(tree)) {
            tell(
                "files.hide",
                format!(
                    "srt shows {}: its allowRead wins over denyRead",
                    path.display()
                ),
            );
        }
    }
    tell(
        "files.read",
        "srt also reads the system as a whole; a cage sees only what the policy names".into(),
    );
    // The home directory is closed, and what the policy shows of it is opened again.
    let deny_read: Vec<&Path> = std::iter::once(place.home)
        .chain(hidden.iter().map(|path| path.as_path()))
        .collect();
    let writable = writable(policy, place, &mut lost);
    let (allowed, denied) = hosts(&policy.network, &mut lost);
    rest(policy, &mut lost);
    let settings = json!({
        "network": { "allowedDomains": allowed, "deniedDomains": denied },
        "filesystem": {
            "denyRead": texts(&deny_read),
            "allowRead": texts(&visible),
            "allowWrite": texts(&writable),
            "denyWrite": texts(&hidden),
        },
    });
    Exported { settings, lost }
}

/// A configuration of Microsoft's execution containers (MXC), schema 1.0.0.
pub fn mxc(policy: &Policy, place: ExportPlace<'_>) -> Exported {
    let mut lost = Vec::new();
    let hidden: Vec<&PathBuf> = policy.hide.iter().map(|path| &path.value).collect();
    let writable = writable(policy, place, &mut lost);
    let readable: Vec<PathBuf> = visible(policy, place)
        .into_iter()
        .filter(|path| !writable.contains(path))
        .collect();
    let allow = addresses(&policy.network.allow, &mut lost);
    let deny = addresses(&policy.network.deny, &mut lost);
    let mut egress = json!({ "default": "deny", "allow": allow });
    if !deny.is_empty() {
        egress["deny"] = deny.into();
    }
    let mut settings = json!({
        "version": "1.0.0",
        "containment": "process",
        "filesystem": {
            "readonlyPaths": texts(&readable),
            "readwritePaths": texts(&writable),
            "deniedPaths": texts(&hidden),
        },
        "network": {
            "egress": egress,
            "ingress": { "default": "deny", "hostLoopback": "deny" },
        },
    });
    match policy.limits.time.value {
        Some(time) => settings["process"] = json!({ "timeout": time.as_millis() as u64 }),
        None => settings["process"] = json!({}),
    }
    settings["process"]["cwd"] = place.workspace.display().to_string().into();
    lost.push(Lost {
        key: "files",
        note: "paths are of this host; the system directories that a command needs are not listed"
            .into(),
    });
    rest(policy, &mut lost);
    Exported { settings, lost }
}

fn texts<P: AsRef<Path>>(paths: &[P]) -> Vec<String> {
    let texts = paths.iter().map(|path| path.as_ref().display().to_string());
    texts.collect()
}

/// The trees that a cage shows beside the system.
fn visible(policy: &Policy, place: ExportPlace<'_>) -> Vec<PathBuf> {
    let mut paths = match policy.workspace_mode.value {
        WorkspaceMode::Scratch => Vec::new(),
        _ => vec![place.workspace.to_owned()],
    };
    let named = policy.read.iter().chain(&policy.write);
    let named = named.chain(&policy.write_direct).map(|path| &path.value);
    paths.extend(named.cloned());
    paths
}

fn writable(policy: &Policy, place: ExportPlace<'_>, lost: &mut Vec<Lost>) -> Vec<PathBuf> {
    let mode = policy.workspace_mode.value;
    let mut paths = Vec::new();
    match mode {
        WorkspaceMode::ReadOnly | WorkspaceMode::Scratch | WorkspaceMode::Leased => {}
        WorkspaceMode::Direct => paths.push(place.workspace.to_owned()),
        WorkspaceMode::Cow | WorkspaceMode::Apply => {
            paths.push(place.workspace.to_owned());
            lost.push(Lost {
                key: "workspace.mode",
                note: format!(
                    "`{}` becomes direct: changes reach the real files at once",
                    mode.name()
                ),
            });
        }
    }
    let named = policy.write.iter().chain(&policy.write_direct);
    paths.extend(named.map(|path| path.value.clone()));
    paths
}

/// Names for lists of domains.
fn hosts(network: &Network, lost: &mut Vec<Lost>) -> (Vec<String>, Vec<String>) {
    let mut of = |rules: &[crate::Sourced<HostRule>], allowed: bool| {
        let mut names = Vec::new();
        for rule in rules {
            match &rule.value.to {
                Destination::Name(name) => names.push(name.to_string()),
                Destination::Below(name) => names.push(format!("*.{name}")),
                Destination::NameAndBelow(name) => {
                    names.extend([name.to_string(), format!("*.{name}")]);
                }
                Destination::Any | Destination::Net { .. } => lost.push(Lost {
                    key: if allowed {
                        "network.allow"
                    } else {
                        "network.deny"
                    },
                    note: format!("`{}` is not a list of names, and is left out", rule.value),
                }),
            }
        }
        names
    };
    let allowed = of(&network.allow, true);
    let denied = of(&network.deny, false);
    if !allowed.is_empty() {
        lost.push(Lost {
            key: "network.allow",
            note: "without ports: every port of the host is allowed".into(),
        });
    }
    (allowed, denied)
}

/// Rules for addresses. Names have no place in them.
fn addresses(rules: &[crate::Sourced<HostRule>], lost: &mut Vec<Lost>) -> Vec<Value> {
    let mut out = Vec::new();
    for rule in rules {
        match &rule.value.to {
            Destination::Net { address, prefix } => {
                out.push(json!({ "to": [{ "cidr": format!("{address}/{prefix}") }] }));
            }
            _ => lost.push(Lost {
                key: "network",
                note: format!(
                    "`{}` is a name; direct egress rules take addresses",
                    rule.value
                ),
            }),
        }
    }
    out
}

/// What neither format has.
fn rest(policy: &Policy, lost: &mut Vec<Lost>) {
    let network = &policy.network;
    let mut tell = |given: bool, key, note: &str| {
        if given {
            lost.push(Lost {
                key,
                note: note.to_owned(),
            });
        }
    };
    tell(
        !policy.hide_matching.is_empty(),
        "files.hide",
        "patterns are left out",
    );
    tell(
        network.open.value,
        "network.mode",
        "`open` is left out: name the hosts",
    );
    tell(
        network.live.value,
        "network.mode",
        "`live` is left out: no host is added later",
    );
    tell(
        !network.http.is_empty(),
        "network.http",
        "requests are not restricted",
    );
    tell(
        !network.secrets.is_empty() || network.aws.is_some() || !network.logins.is_empty(),
        "network.secrets",
        "the agent would have to hold its secrets itself",
    );
    tell(
        policy.keys.is_given(),
        "keys",
        "the agent would have to reach your ssh-agent or gpg-agent itself",
    );
    tell(
        !network.bundles.is_empty(),
        "network.bundles",
        "add the hosts of the bundles",
    );
    tell(
        !network.host_ports.is_empty(),
        "network.host-ports",
        "left out",
    );
    tell(!network.sockets.is_empty(), "network.sockets", "left out");
    tell(!network.publish.is_empty(), "network.publish", "left out");
    tell(
        !network.limits.is_empty(),
        "network.limits",
        "traffic is not limited",
    );
    tell(
        policy.ceiling.is_given(),
        "ceiling",
        "nothing can be requested or leased later",
    );
    tell(
        true,
        "limits",
        "memory, CPUs, processes and disk are not limited",
    );
    tell(
        true,
        "syscalls",
        "the filter of system calls is the other sandbox's own",
    );
    tell(true, "env", "the environment is not filtered");
    tell(
        !policy.keep.is_empty(),
        "state.keep",
        "state lies in the real home directory",
    );
    tell(true, "audit log", "nothing is recorded");
}
