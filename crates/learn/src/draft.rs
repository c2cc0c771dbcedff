//! Drafts the smallest policy for what a run used.

mod network;

use crate::files::{Cover, Used};
use crate::observed_run::ObservedRun;
use crate::text::{self, Section};
use ironcage_model::{Isolation, Mark, Observation, Right, Use, bytes_as_written};
use ironcage_plan::{NodeKind, PathStatus, Plan, guard, locate};
use ironcage_policy::{EnvRule, Policy, Reach, SideChannels, WorkspaceMode, quoted, syscalls};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// Paths that are proposed at most: a program that tries everything is told in part.
const PROPOSED: usize = 40;
/// Memory and processes are given twice as much as was seen, and this much at least.
const LEAST_MEMORY: u64 = 512 << 20;
const LEAST_PIDS: u64 = 64;
const MEMORY_STEP: u64 = 64 << 20;

/// What is on the host.
pub trait Host {
    /// What a path is; `None` where there is nothing, or nothing that can be given.
    fn kind(&self, path: &Path) -> Option<NodeKind>;
    /// Files with a sensitive name in a directory or below it, as far as the host looks.
    fn sensitive(&self, directory: &Path) -> Vec<PathBuf>;
}

/// What a policy is learned from.
#[derive(Clone, Copy)]
pub struct Source<'a> {
    /// The record of the run.
    pub record: &'a ObservedRun,
    /// The policy of that run: nothing is written that this does not reach.
    pub max: &'a Policy,
    /// The plan of that run.
    pub plan: &'a Plan,
    /// What the profile alone gives on which the new policy stands.
    pub base: &'a Policy,
    /// The user's home directory.
    pub home: &'a Path,
    /// What is on the host.
    pub host: &'a dyn Host,
}

/// A policy that was learned.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Learned {
    /// The sections of the policy file, without what stands before them.
    pub text: String,
    /// Entries that it gives.
    pub given: usize,
    /// Entries that it only proposes.
    pub proposed: usize,
}

/// Makes the least policy.
pub fn learn(source: &Source<'_>) -> Learned {
    let sections = [
        workspace(source),
        files(source),
        state(source),
        environment(source),
        environment_set(source),
        process(source),
        syscalls(source),
        limits(source),
        layers(source),
    ];
    let mut all: Vec<Section> = sections.into();
    all.extend(network::network(source));
    all.extend(network::ceiling(source));
    let mut learned = Learned {
        text: String::new(),
        given: 0,
        proposed: 0,
    };
    if source.max.isolation.value != source.base.isolation.value {
        let isolation: Isolation = source.max.isolation.value;
        learned.text = format!("isolation = {}\n", quoted(isolation.name()));
    }
    for section in &all {
        let (given, proposed) = section.count();
        learned.given += given;
        learned.proposed += proposed;
        section.write(&mut learned.text);
    }
    learned
}

fn by(programs: &BTreeSet<String>) -> String {
    programs.iter().cloned().collect::<Vec<_>>().join(", ")
}

fn is_file_use(seen: &Observation) -> bool {
    matches!(seen.how, Use::Look | Use::Read | Use::Write | Use::Execute)
}

fn workspace(source: &Source<'_>) -> Section {
    let mut section = Section::new("workspace");
    let Source {
        record, max, plan, ..
    } = source;
    let mode = max.workspace_mode.value;
    let mut writes = record.seen.iter().filter(|seen| {
        seen.how == Use::Write && Path::new(&seen.what).starts_with(&plan.workspace)
    });
    let written = writes.next();
    let (mode, why) = match written {
        Some(seen) => (mode, format!("{} wrote {}", seen.program, seen.what)),
        None if mode.is_writable() => (
            WorkspaceMode::ReadOnly,
            "no write in the workspace".to_owned(),
        ),
        None => (mode, "as in the run".to_owned()),
    };
    section.set("mode", quoted(mode.name()), why);
    if max.in_memory.value && (mode.is_writable() || mode.is_copy_on_write()) {
        section.set("in-memory", "true", "as in the run");
    }
    for path in &max.unprotect {
        let whole = plan.workspace.join(&path.value);
        let mut uses = record.seen.iter();
        let used =
            uses.any(|seen| seen.how == Use::Write && Path::new(&seen.what).starts_with(&whole));
        if let (true, Some(text)) = (used, path.value.to_str()) {
            section.add("unprotect", quoted(text), "written");
        }
    }
    section
}

/// The uppermost path of the bound that gives this one, with the key that it stands in.
fn granted<'a>(max: &'a Policy, path: &Path) -> Option<(&'static str, &'a Path)> {
    let lists = [
        ("write-direct", &max.write_direct),
        ("write", &max.write),
        ("read", &max.read),
    ];
    lists.into_iter().find_map(|(key, list)| {
        let given = list.iter().map(|path| path.value.as_path());
        let found = given.filter(|given| path.starts_with(given));
        found
            .min_by_key(|path| path.components().count())
            .map(|path| (key, path))
    })
}

/// The path itself or the nearest above it that is on the host, no further up than `top`.
fn existing(source: &Source<'_>, path: &Path, top: &Path) -> PathBuf {
    let mut above = path.ancestors().take_while(|path| path.starts_with(top));
    let found = above.find(|path| source.host.kind(path).is_some());
    found.unwrap_or(top).to_owned()
}

fn files(source: &Source<'_>) -> Section {
    let mut section = Section::new("files");
    let Source {
        record, max, plan, ..
    } = source;
    let mut used: BTreeMap<(&'static str, PathBuf), Used> = BTreeMap::new();
    let mut toolchain = None;
    for seen in record.seen.iter().filter(|seen| is_file_use(seen)) {
        let path = Path::new(&seen.what);
        let located = locate(plan, path);
        let origin = located.origin.as_deref().unwrap_or_default();
        if seen.found && origin.starts_with("toolchain") {
            toolchain.get_or_insert(seen);
        }
        if path.starts_with(&plan.workspace) {
            continue;
        }
        let Some((key, top)) = granted(max, path) else {
            continue;
        };
        let wrote = seen.how == Use::Write && located.standing.is_writable();
        if !seen.found {
            continue;
        }
        let (key, wanted) = match wrote {
            // A file that is saved is often made anew beside it.
            true => (key, path.parent().unwrap_or(path)),
            false => ("read", path),
        };
        let wanted = if wanted.starts_with(top) { wanted } else { top };
        let place = existing(source, wanted, top);
        let uses = used.entry((key, top.to_owned())).or_default();
        match seen.how {
            Use::Look => uses.look(place, &seen.program),
            _ => uses.add(place, &seen.program),
        }
    }
    let sensitive = |directory: &Path| source.host.sensitive(directory);
    let covered = used
        .iter()
        .map(|((key, top), uses)| (*key, uses.cover(top, &sensitive)));
    let covered: Vec<(&str, Vec<Cover>)> = covered.collect();
    let mut written = BTreeSet::new();
    for (key, covers) in &covered {
        if *key != "read" {
            written.extend(covers.iter().map(|cover| cover.path.clone()));
        }
    }
    for (key, covers) in covered {
        for Cover {
            path,
            uses,
            programs,
        } in covers
        {
            // What may be written may be read: a second entry would make it read-only again, or
            // name an output that is not there before the run.
            if key == "read" && path.ancestors().any(|above| written.contains(above)) {
                continue;
            }
            if let Some(text) = text::path(&path, source.home) {
                let verb = if key == "read" { "read" } else { "written" };
                let why = match uses {
                    1 => format!("{verb} by {}", by(&programs)),
                    _ => format!("{uses} paths {verb} by {}", by(&programs)),
                };
                section.add(key, text, why);
            }
        }
    }
    refused_files(source, &mut section);
    for path in &max.hide {
        if let Some(text) = text::path(&path.value, source.home) {
            section.add("hide", text, format!("hidden in the run ({})", path.origin));
        }
    }
    for pattern in &max.hide_matching {
        let text = quoted(&pattern.value.to_string());
        section.add(
            "hide",
            text,
            format!("hidden in the run ({})", pattern.origin),
        );
    }
    if max.hide_sensitive.value {
        section.set("hide-sensitive", "true", "as in the run");
    }
    match toolchain {
        Some(seen) if max.toolchains.value => section.set(
            "toolchains",
            "true",
            format!("{} used {}", seen.program, seen.what),
        ),
        _ => section.set(
            "toolchains",
            "false",
            "no toolchain outside the system directories was used",
        ),
    }
    section
}

/// What was tried and not there, or read-only: proposed, never given.
fn refused_files(source: &Source<'_>, section: &mut Section) {
    let reach = Reach::through(source.max, &source.plan.workspace, Mark::Ask);
    for (path, right, program) in tried(source) {
        let Some(text) = text::path(&path, source.home) else {
            continue;
        };
        if let Some(why) = guard(source.home, &path, right == Right::Write) {
            section.remark(format!(
                "{program} tried {}, not proposed: {why}",
                path.display()
            ));
        } else if !reach.path(&path, right) {
            let why = format!("{program} tried it, and the policy of the run did not allow it");
            section.propose(right.name(), text, why);
        }
    }
}

/// Paths that were tried in vain and are there on the host, with who tried.
fn tried(source: &Source<'_>) -> Vec<(PathBuf, Right, String)> {
    let Source { record, plan, .. } = source;
    let mut found: BTreeMap<(PathBuf, Right), String> = BTreeMap::new();
    for seen in record.seen.iter().filter(|seen| is_file_use(seen)) {
        let path = PathBuf::from(&seen.what);
        let standing = locate(plan, &path).standing;
        let read_only = matches!(standing, PathStatus::ReadOnly(_));
        let right = match seen.how {
            Use::Write if read_only => Right::Write,
            // What a program makes in a home of its own is not the host's.
            Use::Write => continue,
            _ => Right::Read,
        };
        let in_vain = right == Right::Write || !seen.found;
        let is_tree = path == source.home || path.parent().is_none();
        if in_vain && !is_tree && source.host.kind(&path).is_some() && found.len() < PROPOSED {
            let programs = found.entry((path, right)).or_default();
            if programs.is_empty() {
                programs.clone_from(&seen.program);
            }
        }
    }
    found
        .into_iter()
        .map(|((path, right), program)| (path, right, program))
        .collect()
}

fn state(source: &Source<'_>) -> Section {
    let mut section = Section::new("state");
    let Source {
        record, max, plan, ..
    } = source;
    let seen = || record.seen.iter().filter(|seen| is_file_use(seen));
    for kept in &max.keep {
        let place = source.home.join(&kept.value);
        let mut used = seen().filter(|seen| Path::new(&seen.what).starts_with(&place));
        if let (Some(seen), Some(text)) = (used.next(), kept.value.to_str()) {
            section.add("keep", quoted(text), format!("used by {}", seen.program));
        }
    }
    for cache in &max.caches {
        let begins = format!("cache {}", cache.value);
        let mut used = seen().filter(|seen| {
            let origin = locate(plan, Path::new(&seen.what)).origin;
            origin.is_some_and(|origin| {
                let rest = origin.strip_prefix(&begins);
                rest.is_some_and(|rest| rest.starts_with([',', ':']))
            })
        });
        if let Some(seen) = used.next() {
            let why = format!("used by {}", seen.program);
            section.add("caches", quoted(&cache.value), why);
        }
    }
    if max.host_caches.value {
        section.set("host-caches", "true", "as in the run");
    }
    section
}

const UNSEEN: &str = "as in the run: the audit log does not show whether it was used";

fn environment(source: &Source<'_>) -> Section {
    let mut section = Section::new("env");
    let base = &source.base.env;
    for rule in &source.max.env {
        if let EnvRule::Pass { name } = &rule.value
            && base.iter().all(|known| known.value != rule.value)
        {
            section.add("pass", quoted(name), UNSEEN);
        }
    }
    section
}

fn environment_set(source: &Source<'_>) -> Section {
    let mut section = Section::new("env.set");
    let base = &source.base.env;
    for rule in &source.max.env {
        if let EnvRule::Set { name, value } = &rule.value
            && base.iter().all(|known| known.value != rule.value)
        {
            section.set(&quoted(name), quoted(value), UNSEEN);
        }
    }
    section
}

fn process(source: &Source<'_>) -> Section {
    let mut section = Section::new("process");
    let (max, base) = (source.max, source.base);
    if max.hostname.value != base.hostname.value {
        section.set("hostname", quoted(&max.hostname.value), "as in the run");
    }
    if max.root_inside.value != base.root_inside.value {
        section.set("root-inside", max.root_inside.value.to_string(), UNSEEN);
    }
    if max.guest_root.value != base.guest_root.value {
        section.set("guest-root", max.guest_root.value.to_string(), UNSEEN);
    }
    if max.git_identity.value != base.git_identity.value {
        let value = max.git_identity.value.to_string();
        section.set("git-identity", value, "as in the run");
    }
    if max.side_channels.value != SideChannels::Off {
        let value = quoted(max.side_channels.value.name());
        section.set("side-channels", value, "as in the run");
    }
    for capability in &max.capabilities {
        section.add("capabilities", quoted(&capability.value), UNSEEN);
    }
    section
}

fn syscalls(source: &Source<'_>) -> Section {
    let mut section = Section::new("syscalls");
    let Source { record, max, .. } = source;
    if max.syscalls.value != source.base.syscalls.value {
        section.set("list", quoted(&max.syscalls.value), "as in the run");
    }
    for group in &max.syscall_groups {
        let list = syscalls::group(&group.value);
        let has = |name: &str| list.is_some_and(|list| list.rule(name).is_some());
        let needed = max.capabilities.iter().any(|capability| {
            // Capabilities bring the groups along that they are of no use without.
            ironcage_policy::capabilities::find(&capability.value)
                .is_some_and(|known| known.group == Some(&group.value))
        });
        let mut calls = record.calls().filter(|seen| has(&seen.what));
        if let Some(seen) = calls.next() {
            let why = format!("{} called {}", seen.program, seen.what);
            section.add("groups", quoted(&group.value), why);
        } else if needed {
            section.add("groups", quoted(&group.value), "a capability needs it");
        }
    }
    for (name, refused) in &record.denied {
        let mut groups = syscalls::groups().iter();
        let group = groups.find(|group| group.rule(name).is_some());
        let (count, programs) = (refused.count, by(&refused.programs));
        match group {
            Some(group) if max.syscalls.value != "minimal" => {
                let given = max.syscall_groups.iter();
                let given = given.filter(|known| known.value == group.name);
                if given.count() == 0 {
                    let why = format!("{name} was denied to {programs}, times: {count}");
                    section.propose("groups", quoted(group.name), why);
                }
            }
            _ => section.remark(format!(
                "{name} was denied to {programs}, times: {count}; no group allows it"
            )),
        }
    }
    section
}

fn limits(source: &Source<'_>) -> Section {
    let mut section = Section::new("limits");
    let (max, base) = (&source.max.limits, &source.base.limits);
    let bounds = &source.plan.bounds;
    let usage = source.record.usage.clone().unwrap_or_default();
    match usage.memory {
        Some(peak) => {
            let wanted = peak.saturating_mul(2).max(LEAST_MEMORY);
            let wanted = wanted.div_ceil(MEMORY_STEP).saturating_mul(MEMORY_STEP);
            let most = bounds.memory.what.value;
            let value = if wanted < most { wanted } else { most };
            let why = format!("twice the peak of the run, {}", bytes_as_written(peak));
            section.set("memory", quoted(&bytes_as_written(value)), why);
        }
        None if max.memory.value != base.memory.value => {
            let value = quoted(&max.memory.value.to_string());
            section.set("memory", value, "as in the run: not measured");
        }
        None => {}
    }
    let pids = match usage.pids {
        Some(peak) => {
            let wanted = peak.saturating_mul(2).max(LEAST_PIDS);
            let value = wanted.min(bounds.pids.what.value);
            let why = format!("twice the peak of the run, {peak}");
            Some((value, why))
        }
        None if max.pids.value != base.pids.value => {
            Some((max.pids.value.into(), "as in the run: not measured".into()))
        }
        None => None,
    };
    if let Some((value, why)) = pids {
        section.set("pids", value.to_string(), why);
    }
    let mut same = |key: &str, own: String, base: String, text: bool| {
        if own != base {
            let value = if text { quoted(&own) } else { own };
            section.set(key, value, "as in the run");
        }
    };
    let cpus = |limits: &ironcage_policy::Limits| limits.cpus.value.to_string();
    let disk = |limits: &ironcage_policy::Limits| limits.disk.value.to_string();
    let is_share = cpus(max).ends_with('%');
    same("cpus", cpus(max), cpus(base), is_share);
    same("disk", disk(max), disk(base), true);
    same(
        "inodes",
        max.inodes.value.to_string(),
        base.inodes.value.to_string(),
        false,
    );
    same(
        "files",
        max.files.value.to_string(),
        base.files.value.to_string(),
        false,
    );
    let time = |time: Option<std::time::Duration>| match time {
        Some(time) => format!("{}s", time.as_secs()),
        None => "none".into(),
    };
    same("time", time(max.time.value), time(base.time.value), true);
    same("idle", time(max.idle.value), time(base.idle.value), true);
    let fuel = |limits: &ironcage_policy::Limits| limits.fuel.as_ref().map(|fuel| fuel.value);
    if let Some(most) = fuel(max) {
        let known = fuel(base).unwrap_or_default();
        same("fuel", most.to_string(), known.to_string(), false);
    }
    section
}

fn layers(source: &Source<'_>) -> Section {
    let mut section = Section::new("layers");
    for layer in &source.max.require {
        let known = source.base.require.iter();
        if known
            .map(|known| known.value)
            .all(|known| known != layer.value)
        {
            section.add("require", quoted(layer.value.name()), "as in the run");
        }
    }
    for layer in &source.max.allow_degraded {
        section.add(
            "allow-degraded",
            quoted(layer.value.name()),
            "as in the run",
        );
    }
    section
}
