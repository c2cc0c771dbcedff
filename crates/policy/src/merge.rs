//! Fragments on top of each other make the policy.

use crate::fragment::Fragment;
use crate::{
    Ceiling, CeilingWhat, Limits, Network, NetworkMode, Origin, Policy, PolicyError, Questions,
    SigningKeys, Sourced, TaintRules, TimeLimit,
};
use ironcage_model::SecretRule;
use std::time::Duration;

/// The policy that the built-in defaults alone make.
pub(crate) fn from_defaults(
    defaults: Fragment,
    profile: Sourced<String>,
) -> Result<Policy, PolicyError> {
    use PolicyError::Incomplete;
    let limits = defaults.limits;
    Ok(Policy {
        profile,
        isolation: defaults.isolation.ok_or(Incomplete("isolation"))?,
        require: defaults.require,
        allow_degraded: defaults.allow_degraded,
        workspace_mode: defaults
            .workspace_mode
            .ok_or(Incomplete("workspace.mode"))?,
        in_memory: defaults
            .in_memory
            .ok_or(Incomplete("workspace.in-memory"))?,
        unprotect: defaults.unprotect,
        read: defaults.read,
        write: defaults.write,
        write_direct: defaults.write_direct,
        hide: defaults.hide,
        hide_matching: defaults.hide_matching,
        hide_sensitive: defaults
            .hide_sensitive
            .ok_or(Incomplete("files.hide-sensitive"))?,
        toolchains: defaults.toolchains.ok_or(Incomplete("files.toolchains"))?,
        host_caches: defaults
            .host_caches
            .ok_or(Incomplete("state.host-caches"))?,
        state_limit: defaults.state_limit.ok_or(Incomplete("state.limit"))?,
        state_limit_per_path: defaults
            .state_limit_per_path
            .ok_or(Incomplete("state.limit-per-path"))?,
        keep: defaults.keep,
        caches: defaults.caches,
        env: defaults.env,
        hostname: defaults.hostname.ok_or(Incomplete("process.hostname"))?,
        root_inside: defaults
            .root_inside
            .ok_or(Incomplete("process.root-inside"))?,
        guest_root: defaults
            .guest_root
            .ok_or(Incomplete("process.guest-root"))?,
        git_identity: defaults
            .git_identity
            .ok_or(Incomplete("process.git-identity"))?,
        side_channels: defaults
            .side_channels
            .ok_or(Incomplete("process.side-channels"))?,
        capabilities: defaults.capabilities,
        syscalls: defaults.syscalls.ok_or(Incomplete("syscalls.list"))?,
        syscall_groups: defaults.syscall_groups,
        network: Network::from_defaults(defaults.network)?,
        keys: SigningKeys::from_defaults(defaults.keys)?,
        ceiling: Ceiling::from_defaults(defaults.ceiling)?,
        judge: defaults.judge,
        questions: Questions::from_defaults(defaults.questions)?,
        taint: TaintRules::from_defaults(defaults.taint)?,
        tools: ironcage_tools::ToolPolicy::default(),
        limits: Limits {
            memory: limits.memory.ok_or(Incomplete("limits.memory"))?,
            cpus: limits.cpus.ok_or(Incomplete("limits.cpus"))?,
            pids: limits.pids.ok_or(Incomplete("limits.pids"))?,
            disk: limits.disk.ok_or(Incomplete("limits.disk"))?,
            inodes: limits.inodes.ok_or(Incomplete("limits.inodes"))?,
            files: limits.files.ok_or(Incomplete("limits.files"))?,
            time: limits.time.map(duration).ok_or(Incomplete("limits.time"))?,
            idle: limits.idle.map(duration).ok_or(Incomplete("limits.idle"))?,
            fuel: limits.fuel,
        },
    })
}

fn duration(limit: Sourced<TimeLimit>) -> Sourced<Option<Duration>> {
    Sourced::new(limit.value.0, limit.origin)
}

fn replace<T>(slot: &mut Sourced<T>, value: Option<Sourced<T>>) {
    if let Some(value) = value {
        *slot = value;
    }
}

/// Appends what is not there yet; the first origin of a value stays.
fn append<T: PartialEq>(list: &mut Vec<Sourced<T>>, values: Vec<Sourced<T>>) {
    for value in values {
        if list.iter().all(|known| known.value != value.value) {
            list.push(value);
        }
    }
}

/// Puts a fragment on top.
pub(crate) fn apply(policy: &mut Policy, fragment: Fragment) {
    let Fragment {
        limits,
        network,
        keys,
        ceiling,
        questions,
        taint,
        tools,
        ..
    } = fragment;
    let off = |mode: &Sourced<NetworkMode>| mode.value == NetworkMode::Off;
    if network.mode.as_ref().is_some_and(off) {
        policy.ceiling.without_network();
    }
    policy.network.apply(network);
    policy.keys.apply(keys);
    policy.ceiling.apply(ceiling);
    policy.judge = fragment.judge.or(policy.judge.take());
    policy.questions.apply(questions);
    policy.taint.apply(taint);
    crate::tool_rules::apply(&mut policy.tools, tools);
    append(&mut policy.require, fragment.require);
    append(&mut policy.allow_degraded, fragment.allow_degraded);
    replace(&mut policy.isolation, fragment.isolation);
    replace(&mut policy.workspace_mode, fragment.workspace_mode);
    append(&mut policy.unprotect, fragment.unprotect);
    append(&mut policy.read, fragment.read);
    append(&mut policy.write, fragment.write);
    append(&mut policy.write_direct, fragment.write_direct);
    append(&mut policy.hide, fragment.hide);
    append(&mut policy.hide_matching, fragment.hide_matching);
    replace(&mut policy.hide_sensitive, fragment.hide_sensitive);
    replace(&mut policy.toolchains, fragment.toolchains);
    replace(&mut policy.host_caches, fragment.host_caches);
    replace(&mut policy.state_limit, fragment.state_limit);
    replace(
        &mut policy.state_limit_per_path,
        fragment.state_limit_per_path,
    );
    replace(&mut policy.in_memory, fragment.in_memory);
    if fragment.keep_nothing {
        policy.keep.clear();
        policy.caches.clear();
    }
    append(&mut policy.keep, fragment.keep);
    append(&mut policy.caches, fragment.caches);
    // Later rules win, so a repeated one moves to the end.
    policy.env.retain(|known| {
        fragment
            .env
            .iter()
            .all(|rule| rule.value.name() != known.value.name())
    });
    policy.env.extend(fragment.env);
    replace(&mut policy.hostname, fragment.hostname);
    replace(&mut policy.root_inside, fragment.root_inside);
    replace(&mut policy.guest_root, fragment.guest_root);
    replace(&mut policy.git_identity, fragment.git_identity);
    replace(&mut policy.side_channels, fragment.side_channels);
    append(&mut policy.capabilities, fragment.capabilities);
    replace(&mut policy.syscalls, fragment.syscalls);
    append(&mut policy.syscall_groups, fragment.syscall_groups);
    replace(&mut policy.limits.memory, limits.memory);
    replace(&mut policy.limits.cpus, limits.cpus);
    replace(&mut policy.limits.pids, limits.pids);
    replace(&mut policy.limits.disk, limits.disk);
    replace(&mut policy.limits.inodes, limits.inodes);
    replace(&mut policy.limits.files, limits.files);
    replace(&mut policy.limits.time, limits.time.map(duration));
    replace(&mut policy.limits.idle, limits.idle.map(duration));
    if limits.fuel.is_some() {
        policy.limits.fuel = limits.fuel;
    }
}

/// Adds the secrets that leases may give to those of the cage: it has their placeholders from
/// the start, and the egress proxy their values.
pub(crate) fn add_leased_secrets(policy: &mut Policy) {
    for part in &policy.ceiling.others {
        let CeilingWhat::Secret(rule) = &part.value.what else {
            continue;
        };
        let secrets = &mut policy.network.secrets;
        if secrets.iter().all(|known| known.value.name != rule.name) {
            let rule = SecretRule {
                leased: true,
                ..rule.clone()
            };
            secrets.push(Sourced::new(rule, part.origin.clone()));
        }
    }
}

/// Adds the groups of system calls that given capabilities are useless without. `minimal`
/// takes no groups, so a capability that needs one does nothing there.
pub(crate) fn add_capability_groups(policy: &mut Policy) {
    if policy.syscalls.value == "minimal" {
        return;
    }
    let groups: Vec<Sourced<String>> = policy
        .capabilities
        .iter()
        .filter_map(|capability| {
            let group = crate::capabilities::find(&capability.value)?.group?;
            Some(Sourced::new(group.to_owned(), capability.origin.clone()))
        })
        .collect();
    append(&mut policy.syscall_groups, groups);
}

/// The origin of a profile.
pub(crate) fn profile_origin(name: &str) -> Origin {
    Origin::Profile {
        name: name.to_owned(),
    }
}
