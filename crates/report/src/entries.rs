//! The permissions of a run as entries: one path or one host each, from the policy, from leases
//! and from rules that the operator added.

use crate::authority::{EntrySpan, EntryUse, Source, Unknown};
use crate::uses::{Open, Uses};
use ironcage_catalog::bundles;
use ironcage_model::{Grant, HostRule, HttpRule, Lease, LiveRule, Resource, Right};
use std::path::{Path, PathBuf};

/// What is needed to judge the entries of a policy.
pub(crate) struct Base<'a> {
    pub(crate) uses: &'a Uses,
    pub(crate) workspace: &'a Path,
    pub(crate) home: Option<&'a Path>,
    pub(crate) from: u64,
    pub(crate) until: u64,
}

/// The path or host of one policy value, and its use.
struct EntryVerdict {
    what: String,
    used: EntryUse,
}

impl Base<'_> {
    /// The entries of one value of the policy; empty where it gives neither paths nor hosts.
    pub(crate) fn entries(&self, grant: &Grant) -> Vec<EntrySpan> {
        let judged = self.judge(&grant.key, &grant.value);
        let source = Source::Base {
            key: grant.key.clone(),
            origin: grant.origin.clone(),
        };
        let spans = judged.into_iter().map(|judged| EntrySpan {
            source: source.clone(),
            what: judged.what,
            from: self.from,
            until: self.until,
            used: judged.used,
        });
        spans.collect()
    }

    fn open(&self) -> Open {
        Open {
            from: self.from,
            until: self.until,
            whole_run: true,
        }
    }

    fn judge(&self, key: &str, value: &str) -> Vec<EntryVerdict> {
        let open = self.open();
        let unknown = EntryUse::Unknown {
            because: Unknown::NotListed,
        };
        let one = |what: String, used| vec![EntryVerdict { what, used }];
        match key {
            "workspace.mode" => self.workspace(value),
            "files.read" => vec![self.path(Path::new(value), Right::Read)],
            "files.write" | "files.write-direct" => {
                vec![self.path(Path::new(value), Right::Write)]
            }
            "state.keep" => match self.home {
                Some(home) => vec![self.path(&home.join(value), Right::Write)],
                None => one(format!("write ~/{value}"), unknown),
            },
            // One entry: which directories they are is not in the log.
            "files.toolchains" => one("read toolchains".to_owned(), unknown),
            "network.sockets" => one(format!("socket {value}"), self.uses.socket(value, open)),
            "network.host-ports" => one(
                format!("host port {value}"),
                self.uses.host_port(value, open),
            ),
            "network.open" => one("host *".to_owned(), self.uses.open_network(open)),
            "network.allow" => vec![self.host(value)],
            "network.http" => {
                let rule = value.parse::<HttpRule>().ok().map(|rule| rule.host);
                let used = self.uses.rule(value, rule.as_ref(), open);
                one(format!("requests {value}"), used)
            }
            "network.bundles" => match bundles::find(value) {
                Some(bundle) if !bundle.asked => {
                    bundle.hosts.iter().map(|host| self.host(host)).collect()
                }
                _ => one(format!("hosts of {value}"), unknown),
            },
            _ => Vec::new(),
        }
    }

    /// Reading the workspace is one permission, and writing it another.
    fn workspace(&self, mode: &str) -> Vec<EntryVerdict> {
        let rights: &[Right] = match mode {
            "cow" | "apply" | "direct" | "scratch" => &[Right::Read, Right::Write],
            "none" => &[],
            _ => &[Right::Read],
        };
        let judge = |right: &Right| EntryVerdict {
            what: format!("{} {}", right.name(), self.workspace.display()),
            used: self.uses.path(self.workspace, *right, true, self.open()),
        };
        rights.iter().map(judge).collect()
    }

    fn path(&self, path: &Path, right: Right) -> EntryVerdict {
        EntryVerdict {
            what: format!("{} {}", right.name(), path.display()),
            used: self.uses.path(path, right, false, self.open()),
        }
    }

    fn host(&self, written: &str) -> EntryVerdict {
        let rule = written.parse::<HostRule>().ok();
        EntryVerdict {
            what: format!("host {written}"),
            used: self.uses.rule(written, rule.as_ref(), self.open()),
        }
    }
}

/// When something was open, and what it is called.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Span {
    pub(crate) from: u64,
    pub(crate) until: u64,
}

impl Span {
    fn open(self) -> Open {
        Open {
            from: self.from,
            until: self.until,
            whole_run: false,
        }
    }
}

/// The entry of a lease; `None` where it gives neither a path nor a host.
pub(crate) fn of_lease(lease: &Lease, span: Span, uses: &Uses) -> Option<EntrySpan> {
    let open = span.open();
    let used = match &lease.resource {
        Resource::Path { path, right } => uses.path(&PathBuf::from(path), *right, false, open),
        Resource::Host { rule } => uses.rule(&rule.to_string(), Some(rule), open),
        Resource::Http { rule } => uses.rule(&rule.to_string(), Some(&rule.host), open),
        Resource::Socket { path } => uses.socket(path, open),
        Resource::Secret { .. }
        | Resource::Key { .. }
        | Resource::Port { .. }
        | Resource::Limit { .. }
        | Resource::Syscalls { .. }
        | Resource::Capability { .. } => return None,
    };
    Some(EntrySpan {
        source: Source::Lease {
            number: lease.number,
        },
        what: lease.resource.to_string(),
        from: span.from,
        until: span.until,
        used,
    })
}

/// The entry of a rule that was added to the running cage.
pub(crate) fn of_rule(rule: &LiveRule, span: Span, uses: &Uses) -> EntrySpan {
    let written = rule.written();
    EntrySpan {
        source: Source::LiveRule {
            number: rule.number,
        },
        used: uses.rule(&written, Some(&rule.rule), span.open()),
        what: format!("host {written}"),
        from: span.from,
        until: span.until,
    }
}
