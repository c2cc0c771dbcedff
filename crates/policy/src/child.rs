//! The policy of a child cage: what a process in a cage asks for, checked against the cage's own.
//!
//! The text comes from the agent and is not trusted. It cannot name files to read. Each part of
//! it must be within what the parent has, and whatever the parent is denied, the child is denied.

use crate::diagnostic::Document;
use crate::fragment::{self, Base, Source};
use crate::narrow::Dropped;
use crate::parse::parse_document;
use crate::{
    Amounts, Ceiling, CeilingWhat, Limits, NetworkLimitName, Policy, PolicyError, Reach, Sourced,
    WorkspaceMode, merge, profiles, resolve_profile,
};
use ironcage_model::{Mark, Printable};
use std::path::Path;

/// The profile of a child's policy that does not name one.
const BASE: &str = "strict";
/// The name of a child's policy in messages.
const NAME: &str = "the child's policy";

/// Why a child's policy was rejected.
#[derive(Debug, thiserror::Error)]
pub enum ChildPolicyError {
    /// The text is not a valid policy.
    #[error("{0}")]
    Policy(#[from] PolicyError),
    /// It names a file.
    #[error("a child's policy can extend a profile by name, but not a file")]
    Extends,
    /// It asks for more than its parent has, or for something that a child cannot have.
    #[error("the child's policy asks for more than its parent has: {}", .0.join("; "))]
    Beyond(Vec<String>),
}

/// Makes the policy of a child from its text; without one, the parent's own, as far as a child
/// can have it. `amounts` turns limits into numbers of the host.
///
/// # Errors
/// If the text is not a valid policy, or asks for anything that the parent does not have.
pub fn child_policy(
    parent: &Policy,
    text: Option<&str>,
    (workspace, home): (&Path, &Path),
    amounts: impl Fn(&Limits) -> Amounts,
) -> Result<Policy, ChildPolicyError> {
    let (child, mut beyond) = match text {
        None => (same(parent), Vec::new()),
        Some(text) => {
            let child = written(parent, text, (workspace, home), &amounts)?;
            let beyond = Reach::of_base(parent, workspace).lacks(&child, amounts);
            (child, beyond)
        }
    };
    shared(parent, &child, workspace, &mut beyond);
    if beyond.is_empty() {
        Ok(child)
    } else {
        Err(ChildPolicyError::Beyond(beyond))
    }
}

/// What the parent has, without what is the parent's alone.
fn same(parent: &Policy) -> Policy {
    let mut child = parent.clone();
    child.ceiling.children.value = 0;
    // A signature for a child could be asked for by whoever is in it, unseen by its parent.
    child.keys.clear();
    // A host port can be published only once.
    child.network.publish.clear();
    child
        .ceiling
        .paths
        .retain(|part| part.value.mark == Mark::Deny);
    let others = &mut child.ceiling.others;
    others.retain(|part| !matches!(part.value.what, CeilingWhat::Limit(_)));
    child
}

fn written(
    parent: &Policy,
    text: &str,
    (workspace, home): (&Path, &Path),
    amounts: &impl Fn(&Limits) -> Amounts,
) -> Result<Policy, ChildPolicyError> {
    let document = Document {
        path: workspace.join(NAME),
        text: text.into(),
    };
    let invalid = |diagnostic| ChildPolicyError::Policy(PolicyError::Invalid(diagnostic));
    let file = parse_document(&document).map_err(invalid)?;
    if file.profile.is_some() {
        return Err(ChildPolicyError::Extends);
    }
    if file.ceiling.cedar.is_some() {
        let whose = "ceiling.cedar: a child always has its parent's rules";
        return Err(ChildPolicyError::Beyond(vec![whose.to_owned()]));
    }
    let profile = match &file.extends {
        None => BASE,
        Some(extends) if profiles::find(extends.get_ref()).is_none() => {
            return Err(ChildPolicyError::Extends);
        }
        Some(extends) => match fragment::base(&document, extends, home).map_err(invalid)? {
            Base::Profile(profile) => profile.name,
            Base::File(_) => return Err(ChildPolicyError::Extends),
        },
    };
    let mut child = resolve_profile(profile, home)?;
    inherit(parent, &mut child, amounts);
    let questions = child.questions.clone();
    let mut said = fragment::from_file(&file, &document, &Source::File, home).map_err(invalid)?;
    // The rules of a child only take away from its parent's.
    crate::tool_rules::narrow(&parent.tools, &mut said.tools, &mut Dropped::default());
    merge::apply(&mut child, said);
    merge::add_capability_groups(&mut child);
    merge::add_leased_secrets(&mut child);
    if child.questions != questions {
        let whose = "questions: a child always has its parent's settings".to_owned();
        return Err(ChildPolicyError::Beyond(vec![whose]));
    }
    if !child.network.leaves_as(&parent.network) {
        let whose =
            "network.upstream and network.authorities: a child always has its parent's".to_owned();
        return Err(ChildPolicyError::Beyond(vec![whose]));
    }
    Ok(child)
}

/// What holds for the child whatever its policy says, and bounds where the profile alone would be
/// wider.
fn inherit(parent: &Policy, child: &mut Policy, amounts: &impl Fn(&Limits) -> Amounts) {
    // What is kept is kept apart by profile: a child has its parent's caches, and none that
    // another profile's cages execute from.
    child.profile = parent.profile.clone();
    child.isolation = parent.isolation.clone();
    child.in_memory = parent.in_memory.clone();
    child.hide_sensitive = parent.hide_sensitive.clone();
    child.unprotect = parent.unprotect.clone();
    child.questions = parent.questions.clone();
    child.judge = parent.judge.clone();
    child.taint = parent.taint.clone();
    child.tools = parent.tools.clone();
    child.allow_degraded = parent.allow_degraded.clone();
    child.side_channels = parent.side_channels.clone();
    child.hostname = parent.hostname.clone();
    union(&mut child.require, &parent.require);
    union(&mut child.hide, &parent.hide);
    union(&mut child.hide_matching, &parent.hide_matching);
    union(&mut child.network.deny, &parent.network.deny);
    // What the profile sets alike for everybody, and the parent may have been denied.
    child.env.retain(|rule| {
        let mut known = parent.env.iter();
        known.any(|known| known.value == rule.value)
    });
    if parent.network.never_open.value {
        child.network.never_open = parent.network.never_open.clone();
    }
    let (own, outer) = (&mut child.ceiling, &parent.ceiling);
    // What the profile alone would have it given: a child's text names what that is to be.
    own.paths.clear();
    own.others.clear();
    for part in outer.paths.iter().filter(|p| p.value.mark == Mark::Deny) {
        own.paths.push(part.clone());
    }
    for part in outer.others.iter().filter(|p| p.value.mark == Mark::Deny) {
        own.others.push(part.clone());
    }
    own.longest = outer.longest.clone();
    own.grace = outer.grace.clone();
    own.holders = outer.holders.clone();
    own.call_longest = outer.call_longest.clone();
    own.drift = outer.drift.clone();
    own.words = outer.words.clone();
    own.cedar = outer.cedar.clone();
    if child.workspace_mode.value == WorkspaceMode::Leased {
        // Leases of paths are the parent's.
        child.workspace_mode.value = WorkspaceMode::ReadOnly;
    }
    if child.workspace_mode.value.width() > parent.workspace_mode.value.width()
        || child.workspace_mode.value.is_copy_on_write()
    {
        child.workspace_mode = parent.workspace_mode.clone();
    }
    // One cgroup holds both.
    child.limits.memory = parent.limits.memory.clone();
    child.limits.cpus = parent.limits.cpus.clone();
    child.limits.pids = parent.limits.pids.clone();
    let (l, m) = (&mut child.limits, &parent.limits);
    if amounts(l).disk > amounts(m).disk {
        l.disk = m.disk.clone();
    }
    narrower(&mut l.inodes, &m.inodes);
    narrower(&mut l.files, &m.files);
    for (own, most) in [(&mut l.time, &m.time), (&mut l.idle, &m.idle)] {
        if !crate::narrow::time_within(own.value, most.value) {
            *own = most.clone();
        }
    }
    if !crate::narrow::fuel_within(&l.fuel, &m.fuel) {
        l.fuel = m.fuel.clone();
    }
    child.network.limits = parent.network.limits.clone();
    child.network.upstream = parent.network.upstream.clone();
    child.network.authorities = parent.network.authorities.clone();
}

fn union<T: PartialEq + Clone>(list: &mut Vec<Sourced<T>>, more: &[Sourced<T>]) {
    for item in more {
        if list.iter().all(|known| known.value != item.value) {
            list.push(item.clone());
        }
    }
}

fn narrower<T: PartialOrd + Clone>(own: &mut Sourced<T>, most: &Sourced<T>) {
    if own.value > most.value {
        *own = most.clone();
    }
}

/// Collects what a child cannot have because it shares its parent's workspace, cgroup and ids.
fn shared(parent: &Policy, child: &Policy, workspace: &Path, beyond: &mut Vec<String>) {
    let mut unless = |holds: bool, what: String| {
        if !holds {
            beyond.push(what);
        }
    };
    unless(
        child.isolation.value == parent.isolation.value,
        format!(
            "isolation: {} (must be the parent's)",
            child.isolation.value
        ),
    );
    let (own, outer) = (child.workspace_mode.value, parent.workspace_mode.value);
    let alike = own == outer
        || own.is_copy_on_write() && outer.is_copy_on_write() && outer != WorkspaceMode::Leased
        || own == WorkspaceMode::Scratch
        || own == WorkspaceMode::ReadOnly && outer != WorkspaceMode::Scratch;
    unless(
        alike,
        format!(
            "workspace.mode: {} (the child shares its parent's workspace; expected {}, read-only or scratch)",
            own.name(),
            outer.name()
        ),
    );
    for hidden in &child.hide {
        let known = parent.hide.iter().any(|own| own.value == hidden.value);
        unless(
            known || !hidden.value.starts_with(workspace),
            format!(
                "files.hide: {} (a child sees its parent's workspace unchanged)",
                Printable::new(&hidden.value)
            ),
        );
    }
    let patterns = child.hide_matching.iter();
    let known = patterns
        .clone()
        .all(|own| parent.hide_matching.iter().any(|p| p.value == own.value));
    unless(
        known,
        "files.hide: a pattern (a child sees its parent's workspace unchanged)".into(),
    );
    for (key, list) in [
        ("files.read", &child.read),
        ("files.write", &child.write),
        ("files.write-direct", &child.write_direct),
    ] {
        for path in list {
            unless(
                !path.value.starts_with(workspace),
                format!(
                    "{key}: {} (a child gets the whole workspace of its parent)",
                    Printable::new(&path.value)
                ),
            );
        }
    }
    for path in &child.write {
        let same = parent.write.iter().any(|own| own.value == path.value);
        unless(
            same,
            format!(
                "files.write: {} (only copy-on-write paths of the parent)",
                Printable::new(&path.value)
            ),
        );
    }
    // The parent could put links into paths that it writes directly, while the child starts.
    let direct = parent.write_direct.iter().map(|path| path.value.as_path());
    let replaced: Vec<&Path> = direct.collect();
    for path in child
        .read
        .iter()
        .chain(&child.write)
        .chain(&child.write_direct)
    {
        let below = |root: &&Path| path.value.starts_with(root) && path.value != **root;
        unless(
            !replaced.iter().any(below),
            format!(
                "files: {} (below a path that the parent can write and could replace)",
                Printable::new(&path.value)
            ),
        );
    }
    for (key, same) in [
        (
            "limits.memory",
            child.limits.memory.value == parent.limits.memory.value,
        ),
        (
            "limits.cpus",
            child.limits.cpus.value == parent.limits.cpus.value,
        ),
        (
            "limits.pids",
            child.limits.pids.value == parent.limits.pids.value,
        ),
    ] {
        let told = beyond_told(key);
        unless(same, told);
    }
    unless(
        child.taint.is_no_wider(&parent.taint),
        "taint.ask: false".into(),
    );
    ceiling(&parent.ceiling, &child.ceiling, &mut unless);
    let own = &child.network;
    let leased = child.ceiling.others.iter();
    let leased = leased.filter(|part| part.value.mark != Mark::Deny);
    // All of them but the size of a body are sums.
    let mut limits = parent.network.limits.iter();
    let summed = limits.any(|limit| limit.value.name != NetworkLimitName::Body);
    let outbound = own.open.value
        || !(own.allow.is_empty() && own.http.is_empty() && own.bundles.is_empty())
        || !(own.host_ports.is_empty() && own.sockets.is_empty())
        || leased.count() > 0;
    unless(
        !outbound || !summed,
        "network: the parent's network.limits would not count the child's traffic".into(),
    );
    unless(
        !child.keys.is_given(),
        "keys: only the parent can use keys".into(),
    );
    let models = &child.network.models;
    let known = |rule: &Sourced<ironcage_model::HostRule>| {
        let mut own = parent.network.models.iter();
        own.any(|own| own.value == rule.value)
    };
    unless(
        models.iter().all(known),
        "network.models: hosts that the parent does not have".into(),
    );
}

fn beyond_told(key: &str) -> String {
    format!("{key}: a child counts against its parent's limit; leave this key out")
}

fn ceiling(parent: &Ceiling, child: &Ceiling, unless: &mut impl FnMut(bool, String)) {
    unless(
        child.children.value < parent.children.value.max(1),
        format!(
            "ceiling.children: {} (must be less than the parent's {})",
            child.children.value, parent.children.value
        ),
    );
    unless(
        child.channels.value <= parent.channels.value,
        format!("ceiling.channels: {}", child.channels.value),
    );
    for part in &child.paths {
        unless(
            part.value.mark == Mark::Deny,
            format!(
                "{}: {} (only the parent can lease paths, because open files could be passed through the shared workspace)",
                part.value.key(),
                Printable::new(&part.value.path)
            ),
        );
    }
    for part in &child.others {
        let limit = matches!(part.value.what, CeilingWhat::Limit(_));
        unless(
            !limit || part.value.mark == Mark::Deny,
            format!("{}: only the parent can lease limits", part.value.key()),
        );
    }
    unless(
        crate::narrow::time_within(child.call_longest.value, parent.call_longest.value),
        "ceiling.call-longest: longer than the parent's".into(),
    );
    unless(
        child.words.value <= parent.words.value,
        "ceiling.words: the parent's is `narrow`".into(),
    );
    let (own, outer) = (&child.drift, &parent.drift);
    let within = own.shorten.value <= outer.shorten.value
        && own.ask.value <= outer.ask.value
        && own.freeze.value <= outer.freeze.value;
    unless(within, "ceiling.drift: later than the parent's".into());
}
