//! Starts child cages: checks the requested policy against the parent's, makes a plan, and runs it.
//!
//! This is a process of its own, forked from the parent's supervisor, because it parses input of
//! the agent.

use crate::cage_flags::{CageFlags, PlannedCage};
use crate::error::{CliError, EXIT_OURS};
use crate::paths;
use ironcage_control::ChildLine;
use ironcage_host::{HostCaps, SystemFiles};
use ironcage_model::{Printable, Reason, Right, SupervisorReason};
use ironcage_plan::{ChangePlace, amounts};
use ironcage_policy::{Policy, Reach, Resolved, Sourced, child_policy};
use ironcage_supervisor::{ChildSpec, Job};
use std::ffi::OsString;
use std::path::PathBuf;

/// In characters.
const LONGEST_REASON: usize = 4000;

pub(crate) struct ChildSpawner<'a> {
    pub(crate) flags: &'a CageFlags,
    pub(crate) parent: &'a PlannedCage,
    pub(crate) place: ChangePlace,
    /// The parent and all its children work on one change.
    pub(crate) change: Option<String>,
}

impl ChildSpawner<'_> {
    /// Runs a child to its end; returns the exit status of its supervisor.
    pub(crate) fn make(&self, spec: ChildSpec) -> u8 {
        let ChildSpec { wanted, parent } = spec;
        let prepared = self.prepare(wanted).and_then(|prepared| {
            let held = prepared.create_state()?;
            Ok((prepared, held))
        });
        let (prepared, _held) = match prepared {
            Ok(prepared) => prepared,
            Err(error) => {
                let text: String = error.message().chars().take(LONGEST_REASON).collect();
                parent.refuse(match error.code() {
                    Some(code) => Reason::Start { code, text },
                    None => SupervisorReason::ChildPolicy { error: text }.into(),
                });
                return EXIT_OURS;
            }
        };
        let spawner = ChildSpawner {
            flags: self.flags,
            parent: &prepared,
            place: self.place.clone(),
            change: self.change.clone(),
        };
        let make_child = |spec| spawner.make(spec);
        let policy = &prepared.resolved.policy;
        let job = Job {
            denial_line: None,
            idle_step: None,
            permanent: None,
            plan: &prepared.plan,
            workspace_mode: policy.workspace_mode.value.name(),
            granted: &|| ironcage_policy::granted(policy),
            name: None,
            terminal: false,
            raw_terminal: false,
            background: None,
            change: self.change.clone(),
            // The change is the parent's.
            new_change: None,
            keep_input: false,
            child_spawner: Some(&make_child),
            parent: Some(parent),
        };
        match ironcage_supervisor::run(job) {
            Ok(finished) => finished.outcome.ending.exit_code(),
            // A failed start was reported already.
            Err(_) => EXIT_OURS,
        }
    }

    fn prepare(&self, wanted: ChildLine) -> Result<PlannedCage, CliError> {
        let ChildLine {
            command,
            cwd,
            policy,
        } = wanted;
        let own = &self.parent.resolved;
        let home = paths::home(&SystemFiles::default())?;
        let workspace = &self.parent.plan.workspace;
        let host = HostCaps::quick(&paths::state_dir(&home))
            .map_err(|error| CliError::from_error(&error))?;
        let mut child = child_policy(
            &own.policy,
            policy.as_deref(),
            (workspace, &home),
            |limits| amounts(limits, &host),
        )
        .map_err(|error| CliError::from_error(&error))?;
        if policy.is_some() {
            self.follow(&mut child)?;
        }
        let resolved = Resolved {
            policy: child,
            ..own.clone()
        };
        let leases = self.parent.plan.leases.as_ref();
        let leased = leases.is_some_and(|leases| !leases.paths.is_empty());
        self.flags.prepare_child(
            self.parent,
            resolved,
            (workspace.clone(), PathBuf::from(cwd)),
            command.into_iter().map(OsString::from).collect(),
            (self.place.clone(), leased),
        )
    }

    /// Resolves the links of granted paths, and checks again that the parent has them: a link that
    /// the parent sees may lead out of its view.
    fn follow(&self, child: &mut Policy) -> Result<(), CliError> {
        let mut parent = self.parent.resolved.policy.clone();
        for path in parent
            .read
            .iter_mut()
            .chain(&mut parent.write)
            .chain(&mut parent.write_direct)
        {
            if let Ok(real) = path.value.canonicalize() {
                path.value = real;
            }
        }
        let reach = Reach::of_base(&parent, &self.parent.plan.workspace);
        let lists = [
            (&mut child.read, Right::Read),
            (&mut child.write, Right::Write),
            (&mut child.write_direct, Right::Write),
        ];
        for (list, right) in lists {
            for Sourced { value, .. } in list.iter_mut() {
                let real = value.canonicalize().ok();
                match real.filter(|real| reach.path(real, right)) {
                    Some(real) => *value = real,
                    None => {
                        return Err(CliError::new(format!(
                            "exceeds its parent: {} does not exist, or leads outside the parent's paths",
                            Printable::new(&value)
                        )));
                    }
                }
            }
        }
        Ok(())
    }
}
