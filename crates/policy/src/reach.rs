//! The reach of a policy, by its base alone or by its ceiling too, and what one policy has beyond
//! the reach of another.
//!
//! [`is_no_wider`](crate::is_no_wider) asks whether one list is a part of another, entry by entry.
//! Here a host lies in a pattern and a file in a directory. Where containment is not plain, the
//! answer is the strict one.

use crate::narrow::list_within;
use crate::{CeilingWhat, EnvRule, Limits, Policy, WorkspaceMode, bundles};
use ironcage_model::{
    Destination, Extent, HOST_NAME, HostRule, Mark, PortPattern, Ports, Printable, Resource, Right,
};
use std::path::Path;

/// What a policy reaches.
#[derive(Debug, Clone, Copy)]
pub struct Reach<'a> {
    policy: &'a Policy,
    workspace: &'a Path,
    through: Option<Mark>,
}

/// Limits as numbers of one host: bytes of memory, thousandths of a processor, bytes of disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Amounts {
    /// Bytes of memory.
    pub memory: u64,
    /// Thousandths of a processor.
    pub cpu: u64,
    /// Bytes of disk.
    pub disk: u64,
}

impl<'a> Reach<'a> {
    /// What the base gives from the start.
    pub fn of_base(policy: &'a Policy, workspace: &'a Path) -> Self {
        Reach {
            policy,
            workspace,
            through: None,
        }
    }

    /// What the base gives, and the ceiling by this mark or one that is given sooner.
    pub fn through(policy: &'a Policy, workspace: &'a Path, mark: Mark) -> Self {
        Reach {
            policy,
            workspace,
            through: Some(mark),
        }
    }

    /// Whether a path is in reach.
    pub fn path(&self, path: &Path, right: Right) -> bool {
        let policy = self.policy;
        let below = |list: &[crate::Sourced<std::path::PathBuf>]| {
            list.iter().any(|given| path.starts_with(&given.value))
        };
        let mut patterns = policy.hide_matching.iter();
        if below(&policy.hide) || patterns.any(|pattern| pattern.value.hides(path)) {
            return false;
        }
        let mode = policy.workspace_mode.value;
        let in_workspace = path.starts_with(self.workspace)
            && match right {
                Right::Read => mode != WorkspaceMode::Scratch,
                Right::Write => mode.is_writable(),
            };
        let written = below(&policy.write) || below(&policy.write_direct);
        in_workspace
            || written
            || right == Right::Read && below(&policy.read)
            || self.leased_path(path, right)
    }

    fn leased_path(&self, path: &Path, right: Right) -> bool {
        let Some(through) = self.through else {
            return false;
        };
        let paths = &self.policy.ceiling.paths;
        // What is denied around it, in it, or to a lesser right, is denied.
        let denied = paths.iter().any(|part| {
            let part = &part.value;
            part.mark == Mark::Deny
                && part.right <= right
                && (path.starts_with(&part.path) || part.path.starts_with(path))
        });
        !denied
            && paths.iter().any(|part| {
                let part = &part.value;
                part.mark <= through
                    && part.right >= right
                    && path.starts_with(&part.path)
                    && !(through == Mark::Auto && self.policy.ceiling.asks_in(part, path, right))
            })
    }

    /// Whether anything but a path is in reach.
    pub fn gives(&self, wanted: &Resource) -> bool {
        let network = &self.policy.network;
        let denied = network.deny.iter().any(|rule| {
            let denied = Extent::Host(rule.value.clone());
            denied.meets(wanted)
        });
        !denied && (self.base(wanted) || self.leased(wanted))
    }

    fn base(&self, wanted: &Resource) -> bool {
        let policy = self.policy;
        let network = &policy.network;
        match wanted {
            Resource::Host { .. } => {
                // A host that a rule over requests is about gets no others.
                let ruled = network.http.iter();
                let mut ruled = ruled.map(|rule| Extent::Http(rule.value.clone()));
                !ruled.any(|rule| rule.meets(wanted)) && self.whole_host(wanted)
            }
            Resource::Http { .. } => {
                let mut ruled = network.http.iter();
                let whole = self.whole_host(wanted) && {
                    let met = |rule: &Extent| rule.meets(wanted);
                    !network.http.iter().any(|rule| {
                        let host = Extent::Host(rule.value.host.clone());
                        met(&host)
                    })
                };
                whole || ruled.any(|rule| Extent::Http(rule.value.clone()).covers(wanted))
            }
            Resource::Secret { name } => network.secrets.iter().any(|s| s.value.name == *name),
            Resource::Socket { path } => {
                let path = Path::new(path);
                network.sockets.iter().any(|own| own.value == path)
            }
            Resource::Port { publish } => network.publish.iter().any(|p| p.value == *publish),
            Resource::Syscalls { group } => policy.syscall_groups.iter().any(|g| g.value == *group),
            Resource::Capability { name } => policy.capabilities.iter().any(|c| c.value == *name),
            Resource::Path { .. } | Resource::Limit { .. } | Resource::Key { .. } => false,
        }
    }

    fn whole_host(&self, wanted: &Resource) -> bool {
        let network = &self.policy.network;
        let any = HostRule {
            to: Destination::Any,
            ports: Ports::Any,
        };
        if network.open.value && Extent::Host(any).covers(wanted) {
            return true;
        }
        let own = network.allow.iter().map(|rule| rule.value.clone());
        let bundled = network.bundles.iter();
        let bundled = bundled.filter_map(|bundle| bundles::find(&bundle.value));
        let bundled = bundled.flat_map(|bundle| bundle.hosts);
        let bundled = bundled.filter_map(|host| crate::allowed(host).ok());
        let ports = network.host_ports.iter();
        let ports = ports.filter_map(|port| format!("{HOST_NAME}:{}", port.value).parse().ok());
        let mut all = own.chain(bundled).chain(ports);
        all.any(|rule| Extent::Host(rule).covers(wanted))
    }

    fn leased(&self, wanted: &Resource) -> bool {
        let Some(through) = self.through else {
            return false;
        };
        let others = &self.policy.ceiling.others;
        let holds = |what: &CeilingWhat, whole: bool| match (what, wanted) {
            (CeilingWhat::Extent(extent), _) if whole => extent.covers(wanted),
            (CeilingWhat::Extent(extent), _) => extent.meets(wanted),
            (CeilingWhat::Secret(rule), Resource::Secret { name }) => rule.name == *name,
            _ => false,
        };
        !others
            .iter()
            .any(|part| part.value.mark == Mark::Deny && holds(&part.value.what, false))
            && others
                .iter()
                .any(|part| part.value.mark <= through && holds(&part.value.what, true))
    }

    /// What a policy has that this does not reach, in words; nothing where it is within.
    ///
    /// `amounts` turns limits into numbers of the host, as they may be shares of what it has. A
    /// ceiling of `inner` has to lie in what is reached here by the same mark.
    pub fn lacks(&self, inner: &Policy, amounts: impl Fn(&Limits) -> Amounts) -> Vec<String> {
        let mut beyond = Beyond::default();
        self.files(inner, &mut beyond);
        self.process(inner, &mut beyond);
        self.limits(inner, amounts, &mut beyond);
        self.network(inner, &mut beyond);
        self.ceiling(inner, &mut beyond);
        beyond.0
    }

    fn files(&self, inner: &Policy, beyond: &mut Beyond) {
        let outer = self.policy;
        let mode = inner.workspace_mode.value;
        beyond.unless(
            mode.width() <= outer.workspace_mode.value.width(),
            "workspace.mode",
            mode.name(),
        );
        for path in &inner.unprotect {
            let known = outer.unprotect.iter().any(|own| own.value == path.value);
            beyond.unless(known, "workspace.unprotect", Printable::new(&path.value));
        }
        for (key, list, right) in [
            ("files.read", &inner.read, Right::Read),
            ("files.write", &inner.write, Right::Write),
        ] {
            for path in list {
                let within = self.path(&path.value, right);
                beyond.unless(within, key, Printable::new(&path.value));
            }
        }
        for path in &inner.write_direct {
            let mut direct = outer.write_direct.iter();
            let within = direct.any(|own| path.value.starts_with(&own.value))
                || self.leased_path(&path.value, Right::Write);
            beyond.unless(within, "files.write-direct", Printable::new(&path.value));
        }
        for hidden in &outer.hide {
            let mut own = inner.hide.iter();
            let hides = own.any(|own| hidden.value.starts_with(&own.value));
            beyond.unless(hides, "without files.hide", Printable::new(&hidden.value));
        }
        let hides = |pattern: &crate::HidePattern| {
            let mut own = inner.hide_matching.iter();
            own.any(|own| own.value == *pattern)
        };
        let all = outer.hide_matching.iter().all(|p| hides(&p.value));
        beyond.unless(all, "without files.hide", "a pattern");
        for (key, own, most) in [
            ("files.toolchains", &inner.toolchains, &outer.toolchains),
            // The other way round: it takes away.
            (
                "files.hide-sensitive",
                &outer.hide_sensitive,
                &inner.hide_sensitive,
            ),
            ("state.host-caches", &inner.host_caches, &outer.host_caches),
            (
                "process.root-inside",
                &inner.root_inside,
                &outer.root_inside,
            ),
            ("process.guest-root", &inner.guest_root, &outer.guest_root),
            (
                "process.git-identity",
                &inner.git_identity,
                &outer.git_identity,
            ),
            // The other way round: it bounds the disk hard.
            ("workspace.in-memory", &outer.in_memory, &inner.in_memory),
        ] {
            beyond.unless(own.value <= most.value, key, own.value);
        }
        for path in &inner.keep {
            let mut kept = outer.keep.iter();
            let within = kept.any(|own| path.value.starts_with(&own.value));
            beyond.unless(within, "state.keep", Printable::new(&path.value));
        }
        for cache in &inner.caches {
            let within = outer.caches.iter().any(|own| own.value == cache.value);
            beyond.unless(within, "state.caches", &cache.value);
        }
    }

    fn process(&self, inner: &Policy, beyond: &mut Beyond) {
        let outer = self.policy;
        for rule in &inner.env {
            let known = outer.env.iter().any(|own| own.value == rule.value);
            let passes = matches!(rule.value, EnvRule::Pass { .. });
            let key = if passes { "env.pass" } else { "env.set" };
            beyond.unless(known, key, Printable::new(rule.value.name()));
        }
        beyond.unless(
            inner.side_channels.value >= outer.side_channels.value,
            "process.side-channels",
            inner.side_channels.value,
        );
        beyond.unless(
            inner.isolation.value >= outer.isolation.value,
            "isolation",
            inner.isolation.value,
        );
        beyond.unless(
            list_within(&inner.syscalls.value, &outer.syscalls.value),
            "syscalls.list",
            &inner.syscalls.value,
        );
        for group in &inner.syscall_groups {
            let wanted = Resource::Syscalls {
                group: group.value.clone(),
            };
            beyond.unless(self.gives(&wanted), "syscalls.groups", &group.value);
        }
        for capability in &inner.capabilities {
            let wanted = Resource::Capability {
                name: capability.value.clone(),
            };
            beyond.unless(
                self.gives(&wanted),
                "process.capabilities",
                &capability.value,
            );
        }
        for layer in &outer.require {
            let required = inner.require.iter().any(|own| own.value == layer.value);
            beyond.unless(required, "without layers.require", layer.value);
        }
        for layer in &inner.allow_degraded {
            let allowed = outer.allow_degraded.iter();
            let allowed = allowed.map(|own| own.value).any(|own| own == layer.value);
            beyond.unless(allowed, "layers.allow-degraded", layer.value);
        }
    }

    fn limits(&self, inner: &Policy, amounts: impl Fn(&Limits) -> Amounts, beyond: &mut Beyond) {
        let (own, most) = (amounts(&inner.limits), amounts(&self.policy.limits));
        let (l, m) = (&inner.limits, &self.policy.limits);
        for (key, within, value) in [
            (
                "limits.memory",
                own.memory <= most.memory,
                l.memory.value.to_string(),
            ),
            ("limits.cpus", own.cpu <= most.cpu, l.cpus.value.to_string()),
            (
                "limits.disk",
                own.disk <= most.disk,
                l.disk.value.to_string(),
            ),
            (
                "limits.pids",
                l.pids.value <= m.pids.value,
                l.pids.value.to_string(),
            ),
            (
                "limits.inodes",
                l.inodes.value <= m.inodes.value,
                l.inodes.value.to_string(),
            ),
            (
                "limits.files",
                l.files.value <= m.files.value,
                l.files.value.to_string(),
            ),
            (
                "limits.time",
                crate::narrow::time_within(l.time.value, m.time.value),
                "longer".into(),
            ),
            (
                "limits.idle",
                crate::narrow::time_within(l.idle.value, m.idle.value),
                "longer".into(),
            ),
            (
                "limits.fuel",
                crate::narrow::fuel_within(&l.fuel, &m.fuel),
                "more".into(),
            ),
        ] {
            beyond.unless(within, key, value);
        }
    }

    fn network(&self, inner: &Policy, beyond: &mut Beyond) {
        let (own, outer) = (&inner.network, &self.policy.network);
        beyond.unless(own.open.value <= outer.open.value, "network.mode", "open");
        beyond.unless(own.live.value <= outer.live.value, "network.mode", "live");
        beyond.unless(
            own.never_open.value >= outer.never_open.value,
            "network.never-open",
            own.never_open.value,
        );
        for rule in &outer.deny {
            let denied = own.deny.iter().any(|own| own.value == rule.value);
            beyond.unless(denied, "without network.deny", &rule.value);
        }
        for rule in &own.allow {
            let wanted = Resource::Host {
                rule: rule.value.clone(),
            };
            beyond.unless(self.gives(&wanted), "network.allow", &rule.value);
        }
        for port in &own.host_ports {
            let rule = format!("{HOST_NAME}:{}", port.value).parse();
            let within = rule.is_ok_and(|rule| self.gives(&Resource::Host { rule }));
            beyond.unless(within, "network.host-ports", port.value);
        }
        for rule in &own.http {
            let wanted = Resource::Http {
                rule: rule.value.clone(),
            };
            beyond.unless(self.gives(&wanted), "network.http", &rule.value);
        }
        // What reaches a host as a whole goes past a rule about its requests.
        let whole = own.open.value || !own.bundles.is_empty();
        for rule in outer.http.iter().filter(|_| whole) {
            let mut ruled = own.http.iter();
            let ruled = ruled.any(|own| own.value.host == rule.value.host);
            beyond.unless(ruled, "without network.http", &rule.value);
        }
        for bundle in &own.bundles {
            // What a tool names when it is asked is not known here.
            let same = outer.bundles.iter().any(|own| own.value == bundle.value);
            beyond.unless(same, "network.bundles", &bundle.value);
        }
        for path in &own.sockets {
            let within = path.value.to_str().is_some_and(|path| {
                self.gives(&Resource::Socket {
                    path: path.to_owned(),
                })
            });
            beyond.unless(within, "network.sockets", Printable::new(&path.value));
        }
        for publish in &own.publish {
            let wanted = Resource::Port {
                publish: publish.value,
            };
            beyond.unless(self.gives(&wanted), "network.publish", publish.value);
        }
        let keys = inner.keys.is_no_wider(&self.policy.keys);
        beyond.unless(
            keys,
            "keys",
            "keys that are not there, or without keys.confirm",
        );
        for secret in &own.secrets {
            let mut base = outer.secrets.iter().map(|own| &own.value);
            let leased = self.through.is_some()
                && self.policy.ceiling.others.iter().any(|part| {
                    part.value.mark != Mark::Deny
                        && matches!(&part.value.what, CeilingWhat::Secret(rule) if *rule == secret.value)
                });
            let within = base.any(|own| *own == secret.value) || leased;
            beyond.unless(within, "network.secrets", &secret.value.name);
        }
        for login in &own.logins {
            let within = outer.logins.iter().any(|own| own.value == login.value);
            beyond.unless(within, "network.logins", &login.value.name);
        }
        if let Some(aws) = &own.aws {
            let same = outer.aws.as_ref().map(|own| &own.value) == Some(&aws.value);
            beyond.unless(same, "network.aws", &aws.value.from);
        }
        for resolve in &own.resolve {
            let within = outer.resolve.iter().any(|own| own.value == resolve.value);
            beyond.unless(within, "network.resolve", &resolve.value.name);
        }
        beyond.unless(
            crate::network::limits_within(&own.limits, &outer.limits),
            "network.limits",
            "wider",
        );
    }

    fn ceiling(&self, inner: &Policy, beyond: &mut Beyond) {
        let own = &inner.ceiling;
        for part in own.paths.iter().map(|part| &part.value) {
            if part.mark == Mark::Deny {
                continue;
            }
            let by = Reach {
                through: Some(part.mark),
                ..*self
            };
            let within = by.path(&part.path, part.right);
            beyond.unless(within, &part.key(), Printable::new(&part.path));
        }
        for part in own.others.iter().map(|part| &part.value) {
            if part.mark == Mark::Deny {
                continue;
            }
            let outer = self.policy.ceiling.others.iter();
            let within = match resource(&part.what) {
                Some(wanted) => {
                    let by = Reach {
                        through: Some(part.mark),
                        ..*self
                    };
                    by.gives(&wanted)
                }
                None => outer.map(|known| &known.value).any(|known| {
                    known.what == part.what && known.mark <= part.mark && known.mark != Mark::Deny
                }),
            };
            beyond.unless(within, &part.key(), part.as_written());
        }
        let outer = &self.policy.ceiling;
        if own.is_given() {
            for part in outer.paths.iter().map(|part| &part.value) {
                let mut kept = own.paths.iter();
                let denied = part.mark != Mark::Deny || kept.any(|own| own.value == *part);
                // A part that gives what contains it would bring it along.
                let mut given = own.paths.iter().map(|own| &own.value);
                let apart =
                    given.all(|own| own.mark == Mark::Deny || !part.path.starts_with(&own.path));
                beyond.unless(denied || apart, "without ceiling.deny", {
                    Printable::new(&part.path)
                });
            }
        }
        for (key, time, most) in [
            ("ceiling.longest", own.longest.value, outer.longest.value),
            ("ceiling.grace", own.grace.value, outer.grace.value),
        ] {
            let within = !own.is_given() || crate::narrow::time_within(time, most);
            beyond.unless(within, key, "longer");
        }
        let judged = !own.is_given() || crate::narrow::judged(inner, self.policy);
        beyond.unless(judged, "without intent.judge", "another one");
        let holders = !own.is_given() || own.holders.value <= outer.holders.value;
        beyond.unless(holders, "ceiling.holders", own.holders.value.name());
    }
}

/// What a part of a ceiling gives, where that can be asked for as a whole.
fn resource(what: &CeilingWhat) -> Option<Resource> {
    Some(match what {
        CeilingWhat::Extent(Extent::Host(rule)) => Resource::Host { rule: rule.clone() },
        CeilingWhat::Extent(Extent::Http(rule)) => Resource::Http { rule: rule.clone() },
        CeilingWhat::Extent(Extent::Socket(path)) => Resource::Socket { path: path.clone() },
        CeilingWhat::Extent(Extent::Syscalls(group)) => Resource::Syscalls {
            group: group.clone(),
        },
        CeilingWhat::Extent(Extent::Capability(name)) => {
            Resource::Capability { name: name.clone() }
        }
        CeilingWhat::Extent(Extent::Port(PortPattern {
            outer: Some(outer),
            inner: Some(inner),
        })) => Resource::Port {
            publish: ironcage_model::Publish {
                outer: *outer,
                inner: *inner,
            },
        },
        _ => return None,
    })
}

#[derive(Default)]
struct Beyond(Vec<String>);

impl Beyond {
    fn unless(&mut self, within: bool, key: &str, value: impl std::fmt::Display) {
        if !within {
            self.0.push(format!("{key}: {value}"));
        }
    }
}
