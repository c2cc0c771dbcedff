//! Finds permissions that a logged run had and never used.

use crate::observed_run::ObservedRun;
use ironcage_model::{
    Destination, Grant, HOST_NAME, HostName, HostRule, NetworkVerdict, Observation, Protocol, Use,
    bytes_as_written,
};
use ironcage_policy::{bundles, syscalls};
use std::path::Path;

/// A limit this many times above the peak is too high.
const FAR: u64 = 4;
/// Below these amounts a lower limit gains nothing.
const LEAST_MEMORY: u64 = 512 << 20;
const LEAST_PIDS: u64 = 64;
const MEMORY_STEP: u64 = 64 << 20;

/// A permission that was not used, or not to its full extent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Excess {
    /// What was given, and where that was said.
    pub grant: Grant,
    pub why: String,
    /// What would have been enough; `None` is nothing.
    pub instead: Option<String>,
}

/// What a run was given and never used, and what its record cannot show.
pub fn tighten(record: &ObservedRun, home: &Path) -> (Vec<Excess>, Vec<String>) {
    let Some(usage) = &record.usage else {
        let why = "the audit log has no end and does not list what the policy allowed: the run is not over, its supervisor was killed, or an earlier version wrote the log";
        return (Vec::new(), vec![why.into()]);
    };
    let mut notes = Vec::new();
    let mut excess = Vec::new();
    if usage.more {
        notes.push(
            "the policy allowed more than the audit log lists; the rest is not judged".into(),
        );
    }
    let judge = Judge {
        record,
        home,
        grants: &usage.granted,
        unknown: match (record.is_observed(), record.left_out) {
            (false, _) => Some(NOT_OBSERVED),
            (true, 0) => None,
            (true, _) => Some(INCOMPLETE),
        },
    };
    for grant in &usage.granted {
        match judge.grant(grant) {
            Finding::Used => {}
            Finding::Unknown(why) => {
                if !notes.iter().any(|known| known == why) {
                    notes.push(why.to_owned());
                }
            }
            Finding::Excess { why, instead } => excess.push(Excess {
                grant: grant.clone(),
                why,
                instead,
            }),
        }
    }
    for lease in &record.leases {
        if judge.lease_unused(lease) {
            excess.push(Excess {
                grant: Grant {
                    key: format!("lease {}", lease.number),
                    value: lease.resource.to_string(),
                    origin: "granted during the run".into(),
                },
                why: "not used".into(),
                instead: None,
            });
        }
    }
    (excess, notes)
}

enum Finding {
    Used,
    Unknown(&'static str),
    Excess {
        why: String,
        instead: Option<String>,
    },
}

fn unused(why: impl Into<String>) -> Finding {
    Finding::Excess {
        why: why.into(),
        instead: None,
    }
}

fn used_if(used: bool, why: &str) -> Finding {
    match used {
        true => Finding::Used,
        false => unused(why),
    }
}

struct Judge<'a> {
    record: &'a ObservedRun,
    home: &'a Path,
    grants: &'a [Grant],
    /// Why nothing can be said of files, programs and system call groups.
    unknown: Option<&'static str>,
}

const INCOMPLETE: &str = "this run used more files and programs than the audit log lists: what it did not use is not known";
const NOT_OBSERVED: &str = "this run did not observe files, programs and system call groups: start one with --observe or `ironcage learn`";

impl Judge<'_> {
    fn files(&self) -> impl Iterator<Item = &Observation> {
        let seen = self.record.seen.iter();
        seen.filter(|seen| seen.found && !matches!(seen.how, Use::Call | Use::Connect))
    }

    fn below(&self, place: &Path) -> impl Iterator<Item = &Observation> {
        self.files()
            .filter(move |seen| Path::new(&seen.what).starts_with(place))
    }

    fn grant(&self, grant: &Grant) -> Finding {
        let value = grant.value.as_str();
        const BY_OBSERVING: [&str; 8] = [
            "workspace.mode",
            "files.read",
            "files.write",
            "files.write-direct",
            "workspace.unprotect",
            "files.toolchains",
            "state.keep",
            "syscalls.groups",
        ];
        if let Some(why) = self.unknown
            && BY_OBSERVING.contains(&grant.key.as_str())
        {
            return Finding::Unknown(why);
        }
        match grant.key.as_str() {
            "workspace.mode" => self.workspace(value),
            "workspace.unprotect" => {
                let place = self.record.workspace.join(value);
                let written = self.below(&place).any(|seen| seen.how == Use::Write);
                used_if(written, "not written")
            }
            "files.read" => used_if(
                self.below(Path::new(value)).next().is_some(),
                "nothing below it was used",
            ),
            "files.write" | "files.write-direct" => self.write(value),
            "files.toolchains" => used_if(self.toolchain(), "no toolchain was used"),
            "state.keep" => {
                let place = self.home.join(value);
                used_if(
                    self.below(&place).next().is_some(),
                    "nothing below it was used",
                )
            }
            "syscalls.groups" => {
                let list = syscalls::group(value);
                let mut calls = self.record.calls();
                let called =
                    calls.any(|seen| list.is_some_and(|list| list.rule(&seen.what).is_some()));
                used_if(called, "none of its system calls was made")
            }
            "network.open" => self.open(),
            "network.allow" | "network.http" => used_if(self.rule(value), "no connection used it"),
            "network.host-ports" => used_if(
                self.connections()
                    .any(|traffic| traffic.host == HOST_NAME && traffic.port.to_string() == value),
                "no connection was made to it",
            ),
            "network.sockets" => used_if(
                self.connections()
                    .any(|traffic| traffic.protocol == Protocol::Unix && traffic.host == value),
                "no connection was made to it",
            ),
            "network.bundles" => match bundles::find(value) {
                Some(bundle) if !bundle.asked => used_if(
                    bundle.hosts.iter().any(|host| self.rule(host)),
                    "no connection was made to its hosts",
                ),
                _ => Finding::Unknown(
                    "the audit log does not have the hosts of package tool bundles",
                ),
            },
            "network.secrets" => self.secret(value),
            "limits.memory" => self.limit(
                self.record.usage.as_ref().and_then(|usage| usage.memory),
                self.record
                    .usage
                    .as_ref()
                    .and_then(|usage| usage.memory_limit),
                (LEAST_MEMORY, MEMORY_STEP),
                bytes_as_written,
            ),
            "limits.pids" => self.limit(
                self.record.usage.as_ref().and_then(|usage| usage.pids),
                self.record
                    .usage
                    .as_ref()
                    .and_then(|usage| usage.pids_limit),
                (LEAST_PIDS, 1),
                |value| value.to_string(),
            ),
            "state.caches" | "state.host-caches" => {
                Finding::Unknown("the use of caches is not judged, because they only save time")
            }
            "network.publish" => {
                Finding::Unknown("the audit log does not have connections to published ports")
            }
            "network.logins" => {
                Finding::Unknown("the audit log does not show whether a login was used")
            }
            "env.pass" => {
                Finding::Unknown("the audit log does not show which variables a program reads")
            }
            "process.capabilities" | "process.root-inside" | "process.guest-root" => {
                Finding::Unknown("the audit log does not show whether a capability was used")
            }
            _ => Finding::Used,
        }
    }

    fn workspace(&self, mode: &str) -> Finding {
        let writable = matches!(mode, "cow" | "apply" | "direct");
        let workspace = &self.record.workspace;
        let written = self.below(workspace).any(|seen| seen.how == Use::Write);
        if !writable || written {
            return Finding::Used;
        }
        Finding::Excess {
            why: "no write in the workspace".into(),
            instead: Some("read-only".into()),
        }
    }

    fn write(&self, place: &str) -> Finding {
        let place = Path::new(place);
        if self.below(place).any(|seen| seen.how == Use::Write) {
            return Finding::Used;
        }
        match self.below(place).next() {
            Some(_) => unused("only read: files.read is enough"),
            None => unused("nothing below it was used"),
        }
    }

    /// Whether something was used that no other entry gave: toolchains are told as a whole.
    fn toolchain(&self) -> bool {
        self.files().any(|seen| {
            let path = Path::new(&seen.what);
            let given = self.grants.iter().any(|grant| match grant.key.as_str() {
                "files.read" | "files.write" | "files.write-direct" => {
                    path.starts_with(&grant.value)
                }
                "state.keep" => path.starts_with(self.home.join(&grant.value)),
                _ => false,
            });
            let cache = [".cache", ".cargo/registry", ".cargo/git", ".npm", "go/pkg"];
            let cache = cache
                .iter()
                .any(|name| path.starts_with(self.home.join(name)));
            seen.below && !given && !cache && !path.starts_with(&self.record.workspace)
        })
    }

    fn connections(&self) -> impl Iterator<Item = &ironcage_model::Traffic> {
        self.record.connections(NetworkVerdict::Allowed)
    }

    fn rule(&self, rule: &str) -> bool {
        self.connections()
            .any(|traffic| traffic.rule.as_deref() == Some(rule))
    }

    fn open(&self) -> Finding {
        let by_it = |traffic: &&ironcage_model::Traffic| {
            let rule = traffic.rule.as_deref().map(str::parse::<HostRule>);
            rule.is_some_and(|rule| rule.is_ok_and(|rule| rule.to == Destination::Any))
        };
        let mut hosts: Vec<String> = self
            .connections()
            .filter(by_it)
            .filter_map(|traffic| crate::hosts::rule(&traffic.host, traffic.port))
            .map(|rule| rule.to_string())
            .collect();
        hosts.sort();
        hosts.dedup();
        match hosts.is_empty() {
            true => unused("no connection needed it"),
            false => Finding::Excess {
                why: "every host was allowed, and these were contacted".into(),
                instead: Some(hosts.join(", ")),
            },
        }
    }

    fn secret(&self, value: &str) -> Finding {
        let hosts = value.split_once('@').map_or("", |(_, hosts)| hosts);
        let rules: Vec<HostRule> = hosts.split(',').filter_map(|h| h.parse().ok()).collect();
        let contacted = self.connections().any(|traffic| {
            let name = HostName::from_ascii(traffic.host.as_bytes());
            name.is_ok_and(|name| rules.iter().any(|rule| rule.names(&name, traffic.port)))
        });
        match contacted {
            true => Finding::Unknown(
                "the audit log does not show whether a secret was added to a request; its hosts were contacted",
            ),
            false => unused("none of its hosts was contacted"),
        }
    }

    fn limit(
        &self,
        most: Option<u64>,
        limit: Option<u64>,
        (least, step): (u64, u64),
        shown: impl Fn(u64) -> String,
    ) -> Finding {
        let (Some(most), Some(limit)) = (most, limit) else {
            return Finding::Unknown("memory and processes were not measured in this run");
        };
        let enough = most.saturating_mul(2).max(least).div_ceil(step) * step;
        if limit / FAR < most || limit <= enough {
            return Finding::Used;
        }
        Finding::Excess {
            why: format!("the peak was {}, the limit {}", shown(most), shown(limit)),
            instead: Some(shown(enough)),
        }
    }

    fn lease_unused(&self, lease: &ironcage_model::Lease) -> bool {
        use ironcage_model::Resource;
        match &lease.resource {
            Resource::Path { path, .. } => {
                self.unknown.is_none() && self.below(Path::new(path)).next().is_none()
            }
            Resource::Host { rule } => !self.rule(&rule.to_string()),
            Resource::Http { rule } => !self.rule(&rule.to_string()),
            Resource::Socket { path } => !self
                .connections()
                .any(|traffic| traffic.protocol == Protocol::Unix && traffic.host == *path),
            _ => false,
        }
    }
}
