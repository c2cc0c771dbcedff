//! Sources of taint: private data and untrusted content, as they are on this host; and the places
//! through which it has marks from others, and gives them on.

use crate::bytes;
use crate::plan::{Access, AccessRights, Item, Overlaid, Plan, ViewOp};
use ironcage_host::HostFiles;
use ironcage_model::{Destination, Extent, HostRule, Ports, Resource, Taint};
use ironcage_policy::TaintRules;
use serde::Serialize;
use std::path::{Path, PathBuf};

/// What marks a cage.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Marking {
    /// Where private data lies.
    pub private: Vec<Item<PrivatePlace>>,
    /// Hosts whose content is not trusted.
    pub untrusted: Vec<Item<UntrustedHost>>,
    /// Whether outbound leases need approval where both meet.
    pub ask: bool,
    /// What the cage has from its start.
    pub start: Taint,
}

/// A file or directory with private data.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct PrivatePlace {
    /// Its real path.
    #[serde(serialize_with = "bytes::path")]
    pub path: PathBuf,
}

/// Hosts whose content is not trusted.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct UntrustedHost {
    /// Which.
    pub host: HostRule,
}

impl Marking {
    /// What a cage takes on with a lease: by what it can then do, not by what it does.
    pub fn brought(&self, resource: &Resource) -> Taint {
        match resource {
            Resource::Path { path, .. } | Resource::Socket { path } => Taint {
                private: self.is_private(Path::new(path)),
                untrusted: false,
            },
            Resource::Host { .. } | Resource::Http { .. } => Taint {
                private: false,
                untrusted: self.is_untrusted(resource),
            },
            Resource::Secret { .. }
            | Resource::Port { .. }
            | Resource::Limit { .. }
            | Resource::Syscalls { .. }
            | Resource::Capability { .. }
            | Resource::Key { .. } => Taint::NONE,
        }
    }

    /// Whether private data lies in a path, or around it.
    fn is_private(&self, path: &Path) -> bool {
        let mut all = self.private.iter().map(|item| &item.what.path);
        all.any(|private| path.starts_with(private) || private.starts_with(path))
    }

    fn is_untrusted(&self, resource: &Resource) -> bool {
        let mut all = self.untrusted.iter().map(|item| &item.what.host);
        all.any(|host| {
            let mut host = host.clone();
            // Who names no port means the host, whatever it is spoken to about.
            if host.ports == Ports::Web {
                host.ports = Ports::Any;
            }
            Extent::Host(host).meets(resource)
        })
    }
}

impl Plan {
    /// What a lease brings, where the policy marks anything.
    pub fn taint_of(&self, resource: &Resource) -> Taint {
        let marking = self.taint.as_ref();
        marking.map_or(Taint::NONE, |marking| marking.brought(resource))
    }

    /// Whether ways out are asked for where private data and untrusted content meet.
    pub fn asks_where_both_meet(&self) -> bool {
        self.taint.as_ref().is_some_and(|marking| marking.ask)
    }

    /// Files and directories of the host that the cage can read, by their real paths.
    pub fn read_places(&self) -> Vec<&Path> {
        let view = self.view.iter().flat_map(|item| match &item.what {
            ViewOp::Bind { access, .. } if *access == Access::Device => [None, None],
            ViewOp::Bind { source, .. } => [Some(source.as_path()), None],
            ViewOp::Overlay {
                of: Overlaid::Cache,
                lower,
                upper,
                ..
            } => [Some(lower.as_path()), Some(upper.as_path())],
            // A change is seen with what it is a change of, and by nobody else.
            ViewOp::Overlay { lower, .. } => [Some(lower.as_path()), None],
            _ => [None, None],
        });
        let opened = self.access_rules.iter().map(|item| match item.what.rights {
            AccessRights::Device => None,
            _ => Some(item.what.path.as_path()),
        });
        view.chain(opened).flatten().collect()
    }

    /// Those of them to which something that it writes can come: at once, or when its change is
    /// applied.
    pub fn filled_places(&self) -> Vec<&Path> {
        let view = self.view.iter().flat_map(|item| match &item.what {
            ViewOp::Bind { source, access, .. } if *access == Access::Write => {
                [Some(source.as_path()), None]
            }
            // Nothing is ever applied to a cache of the user's own, or to an image.
            ViewOp::Overlay {
                of: Overlaid::Cache | Overlaid::System,
                upper,
                ..
            } => [Some(upper.as_path()), None],
            ViewOp::Overlay { lower, .. } => [Some(lower.as_path()), None],
            _ => [None, None],
        });
        let opened = self.access_rules.iter().map(|item| match item.what.rights {
            AccessRights::WriteTree | AccessRights::WriteFile => Some(item.what.path.as_path()),
            _ => None,
        });
        view.chain(opened).flatten().collect()
    }

    fn is_hidden(&self, path: &Path) -> bool {
        self.view.iter().any(|item| match &item.what {
            ViewOp::Hide { target, .. } => path.starts_with(target),
            _ => false,
        })
    }

    /// What a cage with this plan has from its start.
    fn first_taint(&self, marking: &Marking) -> Taint {
        let places = self.read_places();
        let private = marking.private.iter().any(|item| {
            let path = &item.what.path;
            let mut places = places.iter();
            !self.is_hidden(path)
                && places.any(|place| place.starts_with(path) || path.starts_with(place))
        });
        let untrusted = self.network.as_ref().is_some_and(|network| {
            let hosts = network.allow.iter().map(|item| item.what.rule.clone());
            let asked = network.http.iter().map(|item| item.what.rule.host.clone());
            let mut all = hosts.chain(asked);
            // Where every host is reached, so is every host that is named.
            let reached = all.any(|rule| {
                rule.to == Destination::Any || marking.is_untrusted(&Resource::Host { rule })
            });
            reached && !marking.untrusted.is_empty()
        });
        Taint { private, untrusted }
    }
}

/// What marks the cage of a plan that is otherwise made.
pub(crate) fn make(rules: &TaintRules, plan: &Plan, files: &dyn HostFiles) -> Option<Marking> {
    if rules.private.is_empty() && rules.untrusted.is_empty() && !rules.ask.value {
        return None;
    }
    let real = |path: &PathBuf| files.real(path).unwrap_or_else(|_| path.clone());
    let private = rules.private.iter().map(|path| Item {
        what: PrivatePlace {
            path: real(&path.value),
        },
        origin: path.origin.to_string(),
    });
    let untrusted = rules.untrusted.iter().map(|rule| Item {
        what: UntrustedHost {
            host: rule.value.clone(),
        },
        origin: rule.origin.to_string(),
    });
    let mut marking = Marking {
        private: private.collect(),
        untrusted: untrusted.collect(),
        ask: rules.ask.value,
        start: Taint::NONE,
    };
    marking.start = plan.first_taint(&marking);
    Some(marking)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_without_a_port_is_untrusted_at_every_port_and_one_with_a_port_at_that() {
        let brings = |host: &str, wanted: &str| {
            let host = host.parse().unwrap();
            let marking = Marking {
                private: Vec::new(),
                untrusted: vec![Item {
                    what: UntrustedHost { host },
                    origin: String::new(),
                }],
                ask: true,
                start: Taint::NONE,
            };
            let rule = wanted.parse().unwrap();
            marking.brought(&Resource::Host { rule }).untrusted
        };
        for wanted in ["b.test", "b.test:8080", "c.test:22"] {
            assert!(brings("every host", wanted), "{wanted}");
        }
        assert!(brings("b.test", "b.test:8080") && !brings("b.test", "c.test"));
        assert!(brings("b.test:22", "b.test:22") && !brings("b.test:22", "b.test:8080"));
    }
}
