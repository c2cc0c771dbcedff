//! Makes the children that somebody in a cage opens: from what they want to a policy that is
//! checked against the parent's, a plan, and a run.
//!
//! This happens in a process of its own, forked from the parent's supervisor: what is read here is
//! the agent's.

use crate::cage_flags::{CageFlags, Prepared};
use crate::error::{CliError, EXIT_OURS};
use crate::places;
use ironcage_control::ChildLine;
use ironcage_host::HostCaps;
use ironcage_model::{Printable, Right};
use ironcage_plan::{ChangePlace, amounts};
use ironcage_policy::{Policy, Reach, Resolved, Sourced, child_policy};
use ironcage_runtime::{Birthright, Job};
use std::ffi::OsString;
use std::path::PathBuf;

/// Longest reason that is told, in characters.
const LONGEST: usize = 4000;

/// What children are made from.
pub(crate) struct Nursery<'a> {
    /// How the parent was started.
    pub(crate) flags: &'a CageFlags,
    /// The parent.
    pub(crate) parent: &'a Prepared,
    /// Where the layers of the change are.
    pub(crate) place: ChangePlace,
    /// The change that all of them work on.
    pub(crate) change: Option<String>,
}

impl Nursery<'_> {
    /// Makes a child and runs it to its end. The exit status of its supervisor.
    pub(crate) fn make(&self, birthright: Birthright) -> u8 {
        let Birthright { wanted, kin } = birthright;
        let prepared = self.prepare(wanted).and_then(|prepared| {
            let held = prepared.make_places()?;
            Ok((prepared, held))
        });
        let (prepared, _held) = match prepared {
            Ok(prepared) => prepared,
            Err(error) => {
                kin.refuse(error.message().chars().take(LONGEST).collect());
                return EXIT_OURS;
            }
        };
        let nursery = Nursery {
            flags: self.flags,
            parent: &prepared,
            place: self.place.clone(),
            change: self.change.clone(),
        };
        let maker = |birthright| nursery.make(birthright);
        let job = Job {
            plan: &prepared.plan,
            policy: &prepared.resolved.policy,
            name: None,
            terminal: false,
            raw_terminal: false,
            background: None,
            change: self.change.clone(),
            keep_input: false,
            children: Some(&maker),
            kin: Some(kin),
        };
        match ironcage_runtime::run(job) {
            Ok(finished) => finished.outcome.ending.exit_code(),
            // Told already, where it did not start.
            Err(_) => EXIT_OURS,
        }
    }

    fn prepare(&self, wanted: ChildLine) -> Result<Prepared, CliError> {
        let ChildLine {
            command,
            cwd,
            policy,
        } = wanted;
        let own = &self.parent.resolved;
        let home = places::home()?;
        let workspace = &self.parent.plan.workspace;
        let host = HostCaps::quick(&places::state_dir(&home))
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

    /// Follows the links of what is given, and looks once more whether the parent has it: a link
    /// in what the parent sees may lead out of it.
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
                            "beyond what its parent has: {} is not there, or leads out of it",
                            Printable::new(&value)
                        )));
                    }
                }
            }
        }
        Ok(())
    }
}
