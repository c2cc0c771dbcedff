//! Which of two policies is wider, and what an untrusted file can still set.

use crate::fragment::Fragment;
use crate::{EnvRule, Policy, Size, Sourced, WorkspaceMode};
use std::fmt::Display;
use std::path::{Path, PathBuf};
use std::time::Duration;

fn covered(path: &Path, by: &[Sourced<PathBuf>]) -> bool {
    by.iter().any(|above| path.starts_with(&above.value))
}

fn all_in<T: PartialEq>(inner: &[Sourced<T>], outer: &[Sourced<T>]) -> bool {
    inner
        .iter()
        .all(|a| outer.iter().any(|b| a.value == b.value))
}

/// Whether a limit on WebAssembly instructions is no wider than another; without one there is no limit.
pub(crate) fn fuel_within(fuel: &Option<Sourced<u64>>, most: &Option<Sourced<u64>>) -> bool {
    let number = |fuel: &Option<Sourced<u64>>| fuel.as_ref().map_or(u64::MAX, |fuel| fuel.value);
    number(fuel) <= number(most)
}

pub(crate) fn time_within(a: Option<Duration>, b: Option<Duration>) -> bool {
    match (a, b) {
        (_, None) => true,
        (Some(a), Some(b)) => a <= b,
        (None, Some(_)) => false,
    }
}

/// `minimal` is a part of `standard`; a test of the lists holds that.
pub(crate) fn list_within(a: &str, b: &str) -> bool {
    a == b || a == "minimal"
}

/// Whether what `b` has judged is judged by the same under `a`.
pub(crate) fn judged(a: &Policy, b: &Policy) -> bool {
    let command = |policy: &Policy| policy.judge.as_ref().map(|judge| judge.value.clone());
    b.judge.is_none() || command(a) == command(b)
}

/// What each variable comes to, in the order of names.
fn environment(policy: &Policy) -> std::collections::BTreeMap<&str, &EnvRule> {
    policy
        .env
        .iter()
        .map(|rule| (rule.value.name(), &rule.value))
        .collect()
}

/// Whether `a` opens nothing that `b` does not. Whatever cannot be compared counts as wider.
pub fn is_no_wider(a: &Policy, b: &Policy) -> bool {
    let written = |path: &Path| covered(path, &b.write) || covered(path, &b.write_direct);
    let readable = |path: &Path| covered(path, &b.read) || written(path);
    let files = a.workspace_mode.value.width() <= b.workspace_mode.value.width()
        && all_in(&a.unprotect, &b.unprotect)
        && a.read.iter().all(|path| readable(&path.value))
        && a.write.iter().all(|path| written(&path.value))
        && a.write_direct
            .iter()
            .all(|path| covered(&path.value, &b.write_direct))
        && b.hide.iter().all(|path| covered(&path.value, &a.hide))
        && all_in(&b.hide_matching, &a.hide_matching)
        && a.in_memory.value >= b.in_memory.value
        && judged(a, b)
        && a.hide_sensitive.value >= b.hide_sensitive.value
        && a.toolchains.value <= b.toolchains.value
        && a.host_caches.value <= b.host_caches.value
        && a.state_limit.value <= b.state_limit.value
        && a.state_limit_per_path.value <= b.state_limit_per_path.value
        && a.keep.iter().all(|path| covered(&path.value, &b.keep))
        && all_in(&a.caches, &b.caches);
    let outer = environment(b);
    let process = environment(a)
        .iter()
        .all(|(name, rule)| outer.get(name) == Some(rule))
        && a.hostname.value == b.hostname.value
        && a.root_inside.value <= b.root_inside.value
        && a.guest_root.value <= b.guest_root.value
        && a.git_identity.value <= b.git_identity.value
        && a.side_channels.value >= b.side_channels.value
        && all_in(&a.capabilities, &b.capabilities);
    let syscalls = list_within(&a.syscalls.value, &b.syscalls.value)
        && all_in(&a.syscall_groups, &b.syscall_groups);
    let layers = a.isolation.value >= b.isolation.value
        && all_in(&b.require, &a.require)
        && all_in(&a.allow_degraded, &b.allow_degraded);
    let (l, m) = (&a.limits, &b.limits);
    let limits = l.memory.value.is_within(m.memory.value)
        && l.cpus.value.is_within(m.cpus.value)
        && l.pids.value <= m.pids.value
        && l.disk.value.is_within(m.disk.value)
        && l.inodes.value <= m.inodes.value
        && l.files.value <= m.files.value
        && time_within(l.time.value, m.time.value)
        && time_within(l.idle.value, m.idle.value)
        && fuel_within(&l.fuel, &m.fuel);
    let network = a.network.is_no_wider(&b.network);
    let network = network && a.keys.is_no_wider(&b.keys);
    let ceiling = a.ceiling.is_no_wider(&b.ceiling);
    let taint = a.taint.is_no_wider(&b.taint);
    let tools = crate::tool_rules::is_no_wider(&a.tools, &b.tools);
    files && process && syscalls && layers && limits && network && ceiling && taint && tools
}

/// What an untrusted file wanted beyond the policy, in words.
#[derive(Default)]
pub(crate) struct Dropped(Vec<String>);

impl Dropped {
    pub(crate) fn note<T>(&mut self, what: &str, value: impl Display, sourced: &Sourced<T>) {
        self.0.push(format!("{what} {value} ({})", sourced.origin));
    }

    /// Keeps of a list what `base` has already.
    pub(crate) fn keep<T>(
        &mut self,
        what: &str,
        list: &mut Vec<Sourced<T>>,
        base: &[Sourced<T>],
        show: impl Fn(&T) -> String,
    ) where
        T: PartialEq,
    {
        list.retain(|item| {
            let there = base.iter().any(|known| known.value == item.value);
            if !there {
                self.note(what, show(&item.value), item);
            }
            there
        });
    }

    /// Keeps a value that `narrower` finds no wider than the base's.
    pub(crate) fn keep_if<T>(
        &mut self,
        what: &str,
        slot: &mut Option<Sourced<T>>,
        narrower: impl Fn(&T) -> bool,
        show: impl Fn(&T) -> String,
    ) {
        if let Some(wanted) = slot.take_if(|value| !narrower(&value.value)) {
            self.note(what, show(&wanted.value), &wanted);
        }
    }
}

/// Removes from an untrusted fragment what would widen `base`, and returns a description of it.
/// `apply` then makes a policy that is not wider than `base`.
pub(crate) fn narrow(base: &mut Policy, fragment: &mut Fragment, workspace: &Path) -> Vec<String> {
    let mut dropped = Dropped::default();
    let path = |path: &PathBuf| ironcage_model::Printable::new(path).to_string();
    let inside = base.workspace_mode.value != WorkspaceMode::Scratch;
    let writable = base.workspace_mode.value.is_writable();
    // Paths that the base already allows are not reported.
    let quiet = |item: &PathBuf, write: bool| {
        let given = covered(item, &base.write)
            || covered(item, &base.write_direct)
            || (!write && covered(item, &base.read));
        given || (item.starts_with(workspace) && if write { writable } else { inside })
    };
    for (what, list, write) in [
        ("files.read", &mut fragment.read, false),
        ("files.write", &mut fragment.write, true),
    ] {
        for item in std::mem::take(list) {
            if !quiet(&item.value, write) {
                dropped.note(what, path(&item.value), &item);
            }
        }
    }
    dropped.keep(
        "files.write-direct",
        &mut fragment.write_direct,
        &base.write_direct,
        path,
    );
    dropped.keep(
        "workspace.unprotect",
        &mut fragment.unprotect,
        &base.unprotect,
        path,
    );
    dropped.keep_if(
        "isolation",
        &mut fragment.isolation,
        |wanted| *wanted >= base.isolation.value,
        |wanted| wanted.name().to_owned(),
    );
    dropped.keep_if(
        "workspace.mode",
        &mut fragment.workspace_mode,
        |mode| mode.width() <= base.workspace_mode.value.width(),
        |mode| mode.name().to_owned(),
    );
    for rule in std::mem::take(&mut fragment.env) {
        let name = ironcage_model::Printable::new(rule.value.name()).to_string();
        if base.env.iter().all(|known| known.value != rule.value) {
            dropped.note("env", name, &rule);
        }
    }
    dropped.keep_if(
        "process.hostname",
        &mut fragment.hostname,
        |name| *name == base.hostname.value,
        String::clone,
    );
    dropped.keep_if(
        "process.root-inside",
        &mut fragment.root_inside,
        |root| *root <= base.root_inside.value,
        bool::to_string,
    );
    dropped.keep_if(
        "process.guest-root",
        &mut fragment.guest_root,
        |root| *root <= base.guest_root.value,
        bool::to_string,
    );
    dropped.keep_if(
        "process.git-identity",
        &mut fragment.git_identity,
        |given| *given <= base.git_identity.value,
        bool::to_string,
    );
    fragment.keys.narrow(&base.keys, &mut dropped);
    dropped.keep_if(
        "process.side-channels",
        &mut fragment.side_channels,
        |given| *given >= base.side_channels.value,
        |given| given.name().to_owned(),
    );
    dropped.keep_if(
        "files.hide-sensitive",
        &mut fragment.hide_sensitive,
        |given| *given >= base.hide_sensitive.value,
        bool::to_string,
    );
    dropped.keep_if(
        "files.toolchains",
        &mut fragment.toolchains,
        |given| *given <= base.toolchains.value,
        bool::to_string,
    );
    // What is kept in memory fills no disk of the user's.
    dropped.keep_if(
        "workspace.in-memory",
        &mut fragment.in_memory,
        |given| *given >= base.in_memory.value,
        bool::to_string,
    );
    dropped.keep_if(
        "state.host-caches",
        &mut fragment.host_caches,
        |given| *given <= base.host_caches.value,
        bool::to_string,
    );
    // Not even less: files are removed where a limit is exceeded.
    for (key, given, own) in [
        ("state.limit", &mut fragment.state_limit, &base.state_limit),
        (
            "state.limit-per-path",
            &mut fragment.state_limit_per_path,
            &base.state_limit_per_path,
        ),
    ] {
        dropped.keep_if(key, given, |given| *given == own.value, Size::to_string);
    }
    dropped.keep("state.keep", &mut fragment.keep, &base.keep, path);
    let text = |name: &String| name.clone();
    dropped.keep("state.caches", &mut fragment.caches, &base.caches, text);
    dropped.keep(
        "process.capabilities",
        &mut fragment.capabilities,
        &base.capabilities,
        text,
    );
    dropped.keep_if(
        "syscalls.list",
        &mut fragment.syscalls,
        |list| list_within(list, &base.syscalls.value),
        text,
    );
    dropped.keep(
        "syscalls.groups",
        &mut fragment.syscall_groups,
        &base.syscall_groups,
        text,
    );
    if fragment
        .syscalls
        .as_ref()
        .is_some_and(|list| list.value == "minimal")
    {
        // `minimal` takes no groups; without them the result is narrower still.
        base.syscall_groups.clear();
        fragment.syscall_groups.clear();
    }
    let layer = |layer: &ironcage_model::Layer| layer.to_string();
    dropped.keep(
        "layers.allow-degraded",
        &mut fragment.allow_degraded,
        &base.allow_degraded,
        layer,
    );
    crate::network::narrow(&base.network, &mut fragment.network, &mut dropped);
    crate::ceiling::narrow(&base.ceiling, &mut fragment.ceiling, &mut dropped);
    // It would choose what is run outside, and what judges it.
    dropped.keep_if(
        "intent.judge",
        &mut fragment.judge,
        |_| false,
        |words| words.join(" "),
    );
    crate::questions::narrow(&mut fragment.questions, &mut dropped);
    crate::taint::narrow(&base.taint, &mut fragment.taint, &mut dropped);
    crate::tool_rules::narrow(&base.tools, &mut fragment.tools, &mut dropped);
    narrow_limits(base, fragment, &mut dropped);
    dropped.0
}

/// Limits that are written as a size against a share of the host, or the other way round.
/// Untrusted, the smaller of both holds, and nothing is lost; trusted, they hold as they are,
/// which may be more.
pub(crate) fn limits_to_weigh(base: &Policy, fragment: &Fragment) -> Vec<String> {
    let (limits, base) = (&fragment.limits, &base.limits);
    let mut found = Dropped::default();
    for (what, wanted, bound) in [
        ("limits.memory", &limits.memory, base.memory.value),
        ("limits.disk", &limits.disk, base.disk.value),
    ] {
        if let Some(wanted) = wanted
            && !wanted.value.is_within(bound)
            && wanted.value.least(bound) != bound
        {
            let shown = format!("{}, if that is more than {bound}", wanted.value);
            found.note(what, shown, wanted);
        }
    }
    let bound = base.cpus.value;
    if let Some(wanted) = &limits.cpus
        && !wanted.value.is_within(bound)
        && wanted.value.least(bound) != bound
    {
        let shown = format!("{}, if that is more than {bound}", wanted.value);
        found.note("limits.cpus", shown, wanted);
    }
    found.0
}

/// Amounts become the smaller of both; a wish for more is noted.
fn narrow_limits(base: &Policy, fragment: &mut Fragment, dropped: &mut Dropped) {
    let (limits, base) = (&mut fragment.limits, &base.limits);
    for (what, slot, bound) in [
        ("limits.memory", &mut limits.memory, base.memory.value),
        ("limits.disk", &mut limits.disk, base.disk.value),
    ] {
        dropped.keep_if(
            what,
            slot,
            |wanted| wanted.least(bound) != bound,
            |wanted| wanted.to_string(),
        );
        if let Some(wanted) = slot {
            wanted.value = wanted.value.least(bound);
        }
    }
    let bound = base.cpus.value;
    dropped.keep_if(
        "limits.cpus",
        &mut limits.cpus,
        |wanted| wanted.least(bound) != bound,
        |wanted| wanted.to_string(),
    );
    if let Some(wanted) = &mut limits.cpus {
        wanted.value = wanted.value.least(bound);
    }
    dropped.keep_if(
        "limits.pids",
        &mut limits.pids,
        |n| *n <= base.pids.value,
        u32::to_string,
    );
    dropped.keep_if(
        "limits.inodes",
        &mut limits.inodes,
        |n| *n <= base.inodes.value,
        u64::to_string,
    );
    dropped.keep_if(
        "limits.files",
        &mut limits.files,
        |n| *n <= base.files.value,
        u64::to_string,
    );
    let bound = base.fuel.as_ref().map_or(u64::MAX, |fuel| fuel.value);
    dropped.keep_if(
        "limits.fuel",
        &mut limits.fuel,
        |n| *n <= bound,
        u64::to_string,
    );
    for (what, slot, bound) in [
        ("limits.time", &mut limits.time, base.time.value),
        ("limits.idle", &mut limits.idle, base.idle.value),
    ] {
        dropped.keep_if(
            what,
            slot,
            |wanted| time_within(wanted.0, bound),
            |wanted| wanted.to_string(),
        );
    }
}
