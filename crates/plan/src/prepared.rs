//! A plan in two parts, for a cage that is prepared before anybody asks for it.
//!
//! The static part is carried out when the cage is prepared: what every plan of one kind has, and
//! nothing of the tenant who gets the cage. The own part is the rest, and arrives when the cage is
//! adopted. Together they are the adopting plan and nothing else: [`StaticPart::own_part`] refuses
//! a plan for which that is not so.

mod codec;

use crate::bind::BoundPlan;
use crate::plan::{Access, Command, Item, Owner, Plan, ViewOp, WriteRule};
use ironcage_model::Isolation;
use std::path::{Path, PathBuf};

/// Host trees that belong to the system and to none of its users.
const SYSTEM: &[&str] = &[
    "/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/etc", "/dev",
];

/// Generated files whose content is the same for every tenant of a policy.
const COMMON_FILES: &[&str] = &[
    "/etc/passwd",
    "/etc/group",
    "/etc/hosts",
    "/etc/hostname",
    "/etc/machine-id",
    "/etc/nsswitch.conf",
    "/etc/resolv.conf",
];

/// Files that the view hides others with.
const HIDDEN: &str = "/.hidden";

/// What a cage is prepared by: a plan without the parts that belong to a tenant.
#[derive(Debug, Clone)]
pub struct StaticPart {
    plan: Plan,
    owners: Vec<Owner>,
}

/// What of a plan arrives when a prepared cage is adopted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OwnPart {
    /// The program.
    pub command: Command,
    /// Whether the cage outlives its command.
    pub sticky: bool,
    /// The rest of the file view, in order.
    pub view: Vec<Item<ViewOp>>,
    /// Where Landlock lets writes through.
    pub write_rules: Vec<Item<WriteRule>>,
}

/// Why a plan and a prepared cage do not go together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Unfit {
    /// Only the namespace backend prepares cages.
    #[error("cages of isolation level {0} cannot be prepared")]
    Isolation(Isolation),
    /// A value that is fixed when a cage is prepared differs.
    #[error("the plan differs from the prepared cage in its {0}")]
    Differs(&'static str),
    /// The own part would change what the static part has made.
    #[error("the plan does not contain the file view of the prepared cage")]
    View,
}

impl StaticPart {
    /// The static part of all plans that are like this one. Only what belongs to no tenant is
    /// kept of it.
    ///
    /// # Errors
    /// Where cages by this plan cannot be prepared.
    pub fn of(plan: &Plan) -> Result<StaticPart, Unfit> {
        let isolation = plan.isolation_level.what.isolation;
        if isolation != Isolation::Namespace {
            return Err(Unfit::Isolation(isolation));
        }
        if plan.hardening.is_some() {
            // Which processors a cage has is known only when it starts.
            return Err(Unfit::Differs("side-channel mitigation"));
        }
        let in_memory = plan.in_memory().next().is_some();
        let mut view: Vec<Item<ViewOp>> = Vec::new();
        let mut own: Vec<&ViewOp> = Vec::new();
        for item in &plan.view {
            let op = &item.what;
            let fixed = is_common(op, &plan.workspace, &view)
                && !(in_memory && covers(op))
                && !own.iter().any(|own| overlap(own, op));
            match fixed {
                true => view.push(item.clone()),
                false => own.push(op),
            }
        }
        let mut owners = Vec::new();
        for item in &plan.view {
            if let ViewOp::Bind {
                owner: Some(owner), ..
            }
            | ViewOp::Overlay {
                owner: Some(owner), ..
            } = &item.what
                && !owners.contains(owner)
            {
                owners.push(*owner);
            }
        }
        let plan = Plan {
            command: nothing(),
            sticky: false,
            workspace: PathBuf::new(),
            writable: Vec::new(),
            kept: Vec::new(),
            view,
            write_rules: Vec::new(),
            absent: Vec::new(),
            notes: Vec::new(),
            unenforced: Vec::new(),
            ..plan.clone()
        };
        Ok(StaticPart { plan, owners })
    }

    /// The plan that a cage is prepared by. It has no command, and its view is the static one.
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// Owners on disk of what the plans of this kind mount: known by number alone.
    pub fn owners(&self) -> &[Owner] {
        &self.owners
    }

    /// What a plan has besides this part.
    ///
    /// # Errors
    /// Where a cage that was prepared by this part cannot become one by that plan.
    pub fn own_part(&self, plan: &BoundPlan<'_>) -> Result<OwnPart, Unfit> {
        self.same_layers(plan)?;
        let in_memory = plan.in_memory().next().is_some();
        let mut fixed = self.plan.view.iter().peekable();
        let mut own: Vec<Item<ViewOp>> = Vec::new();
        for item in &plan.view {
            match fixed.peek() {
                Some(next) if next.what == item.what => {
                    // Made before what comes first in the plan: that must not make a difference.
                    if own.iter().any(|own| overlap(&own.what, &item.what))
                        || (in_memory && covers(&item.what))
                    {
                        return Err(Unfit::View);
                    }
                    fixed.next();
                }
                _ => own.push(item.clone()),
            }
        }
        match fixed.next() {
            Some(_) => Err(Unfit::View),
            None => Ok(OwnPart {
                command: plan.command.clone(),
                sticky: plan.sticky,
                view: own,
                write_rules: plan.write_rules.clone(),
            }),
        }
    }

    /// The plan that PID 1 carries out: this part, and the own part that it was sent. The digest
    /// stays with the sender.
    pub fn complete(&self, own: OwnPart) -> BoundPlan<'_> {
        let OwnPart {
            command,
            sticky,
            view,
            write_rules,
        } = own;
        let mut plan = self.plan.clone();
        plan.command = command;
        plan.sticky = sticky;
        plan.view.extend(view);
        plan.write_rules = write_rules;
        BoundPlan::of_parts(&self.plan, plan)
    }

    /// Compares every field that PID 1 reads and that no own part carries. All fields are named, so
    /// that a new one needs a decision.
    fn same_layers(&self, plan: &Plan) -> Result<(), Unfit> {
        let Plan {
            isolation_level,
            identity,
            hostname,
            time_namespace,
            capabilities,
            counters,
            rlimits,
            landlock,
            access_rules,
            scratch,
            processors,
            hardening,
            network,
            leases,
            seccomp,
            bounds,
            cgroup,
            scope,
            boot,
            system_root,
            // In the own part.
            command: _,
            sticky: _,
            view: _,
            write_rules: _,
            // The supervisor's; PID 1 reads none of them.
            profile: _,
            workspace: _,
            writable: _,
            kept: _,
            children: _,
            channels: _,
            signing: _,
            taint: _,
            tools: _,
            layers: _,
            degraded: _,
            unenforced: _,
            absent: _,
            notes: _,
        } = plan;
        let ours = &self.plan;
        let same = [
            (
                ours.isolation_level.what == isolation_level.what,
                "isolation level",
            ),
            (ours.identity == *identity, "identity"),
            (ours.hostname.what == hostname.what, "host name"),
            (ours.time_namespace == *time_namespace, "time namespace"),
            (ours.capabilities == *capabilities, "capabilities"),
            (ours.counters == *counters, "kernel counters"),
            (ours.rlimits == *rlimits, "rlimits"),
            (ours.landlock == *landlock, "Landlock rules"),
            (ours.access_rules == *access_rules, "Landlock rules"),
            (ours.scratch == *scratch, "storage"),
            (ours.processors == *processors, "processors"),
            (ours.hardening == *hardening, "side-channel mitigation"),
            (ours.network.is_some() == network.is_some(), "network"),
            (ours.leases.is_some() == leases.is_some(), "leases"),
            (ours.seccomp == *seccomp, "system call filter"),
            (ours.bounds == *bounds, "limits"),
            (ours.cgroup == *cgroup, "cgroup"),
            (ours.scope == *scope, "scope"),
            (ours.boot == *boot, "init system"),
            (ours.system_root == *system_root, "root of the system"),
        ];
        match same.iter().find(|(same, _)| !same) {
            Some((_, what)) => Err(Unfit::Differs(what)),
            None => Ok(()),
        }
    }
}

fn nothing() -> Command {
    Command {
        argv: Vec::new(),
        candidates: Vec::new(),
        env: Vec::new(),
        cwd: PathBuf::from("/"),
    }
}

/// Whether an operation belongs to no tenant. `before` has the static operations before it.
fn is_common(op: &ViewOp, workspace: &Path, before: &[Item<ViewOp>]) -> bool {
    if op
        .target()
        .is_some_and(|target| target.starts_with(workspace))
    {
        return false;
    }
    match op {
        ViewOp::Directory { .. }
        | ViewOp::Symlink { .. }
        | ViewOp::Ephemeral { .. }
        | ViewOp::Proc
        | ViewOp::ReadOnlyProc { .. }
        | ViewOp::Terminals => true,
        ViewOp::File { target, .. } => {
            target.starts_with(HIDDEN)
                || COMMON_FILES.iter().any(|known| target == Path::new(known))
        }
        ViewOp::Bind {
            source,
            access: Access::Read | Access::Device,
            owner: None,
            ..
        } => SYSTEM.iter().any(|tree| source.starts_with(tree)),
        ViewOp::MaskProc { instead, .. } => instead.is_none_or(|file| {
            let file = Path::new(file);
            before
                .iter()
                .any(|item| matches!(&item.what, ViewOp::File { target, .. } if target == file))
        }),
        ViewOp::Bind { .. }
        | ViewOp::Authorities { .. }
        | ViewOp::Cover { .. }
        | ViewOp::Supervisor { .. }
        | ViewOp::Overlay { .. }
        | ViewOp::Pin { .. }
        | ViewOp::Hide { .. }
        | ViewOp::Cgroup
        | ViewOp::Seal => false,
    }
}

/// Whether an operation makes the directory of covers read-only, in which changes in memory have
/// their place.
fn covers(op: &ViewOp) -> bool {
    matches!(op, ViewOp::MaskProc { .. } | ViewOp::Hide { .. })
}

/// Where an operation makes or mounts something.
fn place(op: &ViewOp) -> &Path {
    match op {
        ViewOp::Proc => Path::new("/proc"),
        ViewOp::Cgroup => Path::new("/sys/fs/cgroup"),
        ViewOp::Terminals => Path::new("/dev/pts"),
        // The whole view.
        _ => op.target().unwrap_or(Path::new("/")),
    }
}

/// Whether it matters which of two operations comes first.
fn overlap(one: &ViewOp, other: &ViewOp) -> bool {
    let (one, other) = (place(one), place(other));
    one.starts_with(other) || other.starts_with(one)
}
