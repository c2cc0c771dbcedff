//! The way from the flags of a cage to its plan.

use super::{CageFlags, real};
use crate::error::CliError;
use crate::{asked, change, places};
use ironcage_host::{HostCaps, SideChannelHost, SystemFiles};
use ironcage_model::Isolation;
use ironcage_plan::{
    AskedHost, ChangePlace, KeptPlaces, NodeKind, Overlaid, OwnDirectories, Plan, PlanError,
    Request, ViewOp, make,
};
use ironcage_policy::{Resolved, SideChannels, Sources, resolve};
use ironcage_state::{StateError, Store, renew_directory};
use std::ffi::OsString;
use std::fs::File;
use std::os::unix::ffi::OsStringExt as _;
use std::path::PathBuf;
use zeroize::Zeroize as _;

/// A plan, and how its policy came about.
pub(crate) struct Prepared {
    pub(crate) plan: Plan,
    pub(crate) resolved: Resolved,
    pub(crate) change: change::Choice,
    /// Where the changes to the user's own caches go.
    layers: Option<PathBuf>,
    /// What the user's tools named when they were asked.
    asked_hosts: Vec<AskedHost>,
}

impl Prepared {
    /// Makes the places of what outlives the run, where they are missing. The last step
    /// before a start: the plan itself changes nothing.
    /// Returns what is to be held as long as the cage runs.
    pub(crate) fn make_places(&self) -> Result<Option<File>, CliError> {
        if self.plan.kept.is_empty() {
            return Ok(None);
        }
        let places = self.plan.kept.iter().map(|item| {
            let is_directory = item.what.kind == NodeKind::Directory;
            (item.what.path.as_path(), is_directory)
        });
        let store = places::store(&places::home()?);
        let shown = |error: &StateError| {
            CliError::from_error(error)
                .hint("`ironcage state reset` removes what is kept for this workspace")
                .hint("--no-state starts without it")
        };
        store
            .make(&self.plan.workspace, places)
            .map_err(|error| shown(&error))?;
        let reads_caches = self.plan.view.iter().any(|item| {
            let cache = Overlaid::Cache;
            matches!(&item.what, ViewOp::Overlay { of, .. } if *of == cache)
        });
        let Some(layers) = self.layers.as_ref().filter(|_| reads_caches) else {
            return Ok(None);
        };
        match Store::claim_layers(layers).map_err(|error| shown(&error))? {
            Some(held) => {
                for item in &self.plan.view {
                    if let ViewOp::Overlay {
                        of: Overlaid::Cache,
                        work,
                        ..
                    } = &item.what
                    {
                        renew_directory(work).map_err(|error| shown(&error))?;
                    }
                }
                Ok(Some(held))
            }
            None => Err(CliError::new(
                "another cage has just begun to read your own caches in this workspace",
            )
            .hint("start again: this one then runs without them")),
        }
    }
}

/// Why a policy does not lead to a plan.
pub(crate) enum Judgement {
    /// No cage can start with it.
    Refused(CliError),
    /// One can, with an explicit word at each start.
    NeedsWord(PlanError),
}

/// Where a cage is made: real paths.
struct At {
    home: PathBuf,
    cwd: PathBuf,
    workspace: PathBuf,
}

/// What a cage works on beside its policy.
struct Beside {
    change: change::Choice,
    place: ChangePlace,
    /// Whether files can be leased to another cage on the same workspace.
    leased: bool,
    /// What the user's tools named for another cage, whose words are these.
    asked_hosts: Option<Vec<AskedHost>>,
}

impl Beside {
    fn change(change: change::Choice) -> Beside {
        Beside {
            place: change.place(),
            change,
            leased: false,
            asked_hosts: None,
        }
    }
}

impl CageFlags {
    /// Whether the policy itself stands against a start. What this host lacks, and a workspace
    /// that is none, are no faults of the policy.
    pub(crate) fn judge(&self) -> Result<(), Judgement> {
        let attempt = self.attempt(vec!["/bin/sh".into()]);
        match attempt.map_err(Judgement::Refused)? {
            Err(error @ PlanError::GuardedPath { .. }) => Err(Judgement::NeedsWord(error)),
            Ok(_)
            | Err(
                PlanError::MissingLayer { .. }
                | PlanError::Workspace { .. }
                | PlanError::CopyOnWrite { .. }
                | PlanError::WorkingDirectory { .. },
            ) => Ok(()),
            Err(error) => Err(Judgement::Refused(plan_error(error))),
        }
    }

    /// From flags to a plan. Changes nothing.
    pub(crate) fn prepare(&self, argv: Vec<OsString>) -> Result<Prepared, CliError> {
        self.attempt(argv)?.map_err(plan_error)
    }

    /// The policy that flags and files come to, whatever the command. Changes nothing.
    pub(crate) fn resolve(&self) -> Result<Resolved, CliError> {
        self.resolve_at(&self.at()?, None)
    }

    /// Where the cage is made.
    fn at(&self) -> Result<At, CliError> {
        let home = places::home()?;
        let cwd = match &self.cwd {
            Some(path) => real(path, "--cwd")?,
            None => std::env::current_dir().map_err(|error| {
                CliError::new(format!("cannot tell the current directory: {error}"))
            })?,
        };
        let workspace = match &self.workspace {
            Some(path) => {
                let path = real(path, "--workspace")?;
                if !path.is_dir() {
                    return Err(CliError::new(format!(
                        "--workspace {} is not a directory",
                        path.display()
                    )));
                }
                path
            }
            None => places::workspace_around(&cwd, &home),
        };
        // A workspace elsewhere, and the user did not say where to start: start in it.
        let cwd = if self.cwd.is_none() && self.workspace.is_some() && !cwd.starts_with(&workspace)
        {
            workspace.clone()
        } else {
            cwd
        };
        Ok(At {
            home,
            cwd,
            workspace,
        })
    }

    fn resolve_at(&self, at: &At, command: Option<OsString>) -> Result<Resolved, CliError> {
        let At {
            home,
            cwd,
            workspace,
        } = at;
        let resolved = resolve(&Sources {
            profile: self.profile.clone(),
            policy_file: self.policy.clone(),
            workspace: workspace.clone(),
            command,
            user_config_dir: Some(places::config_dir(home)),
            state_dir: Some(places::state_dir(home)),
            home: home.clone(),
            flags: self.layer(cwd)?,
        });
        let checked = resolved.and_then(|resolved| {
            ironcage_cedar::check(&resolved.policy)?;
            Ok(resolved)
        });
        checked.map_err(|error| CliError::from_error(&error))
    }

    fn attempt(&self, argv: Vec<OsString>) -> Result<Result<Prepared, PlanError>, CliError> {
        let at = self.at()?;
        let resolved = self.resolve_at(&at, argv.first().cloned())?;
        let change = change::Choice::make(&at.home, &at.workspace, &resolved.policy, self.fresh)?;
        self.lay_out(at, resolved, argv, Beside::change(change))
    }

    /// The plan of a child of a cage with these flags: the same workspace, and a policy that has
    /// been checked. No tool is asked anew: the parent may have written its settings.
    pub(crate) fn prepare_child(
        &self,
        parent: &Prepared,
        resolved: Resolved,
        (workspace, cwd): (PathBuf, PathBuf),
        argv: Vec<OsString>,
        (place, leased): (ChangePlace, bool),
    ) -> Result<Prepared, CliError> {
        let at = At {
            home: places::home()?,
            cwd,
            workspace,
        };
        let beside = Beside {
            change: change::Choice::None,
            place,
            leased,
            asked_hosts: Some(parent.asked_hosts.clone()),
        };
        let prepared = self.lay_out(at, resolved, argv, beside)?;
        let mut prepared = prepared.map_err(plan_error)?;
        // Both are looked after by the parent, whose they are.
        prepared.plan.writable.clear();
        prepared.plan.absent.clear();
        Ok(prepared)
    }

    fn lay_out(
        &self,
        at: At,
        resolved: Resolved,
        argv: Vec<OsString>,
        beside: Beside,
    ) -> Result<Result<Prepared, PlanError>, CliError> {
        let At {
            home,
            cwd,
            workspace,
        } = at;
        let mut host = HostCaps::quick(&places::state_dir(&home))
            .map_err(|error| CliError::from_error(&error))?;
        if resolved.policy.side_channels.value == SideChannels::Hardened {
            host.side_channels = Some(SideChannelHost::examine());
        }
        let policy = &resolved.policy;
        let kept = if policy.keep.is_empty() && policy.caches.is_empty() {
            KeptPlaces::default()
        } else {
            let place = places::store(&home).place(&workspace);
            let layers = place.layers_of(&policy.profile.value);
            KeptPlaces {
                caches: place.caches_of(&policy.profile.value),
                layers: (policy.host_caches.value && !Store::layers_in_use(&layers))
                    .then_some(layers),
                home: place.home,
            }
        };
        let own = places::own(&home);
        if self.i_know {
            places::make_own_in(&workspace, &own)?;
        }
        let other_homes = places::other_homes(&workspace, &home);
        let asked_hosts = match beside.asked_hosts {
            Some(known) => known,
            None => asked::hosts(
                &resolved.policy.all_bundles(),
                &asked::Places {
                    home: &home,
                    workspace: &workspace,
                },
            ),
        };
        let request = Request {
            asked_hosts,
            git: if resolved.policy.git_identity.value {
                places::git(&home)
            } else {
                Vec::new()
            },
            kept,
            change: beside.place,
            git_directory: places::git_directory(&workspace),
            known_hosts: if resolved.policy.network.is_given() {
                places::known_hosts(&home)
            } else {
                String::new()
            },
            // Without a command there is none whose end could be the cage's.
            sticky: self.sticky || argv.is_empty(),
            observed: self.observe,
            leased_beside: beside.leased,
            argv,
            cwd,
            workspace,
            workspace_named: self.workspace.is_some(),
            own: OwnDirectories { paths: own },
            home,
            env: environment(&resolved.policy.network),
            nonce: match resolved.policy.network.has_placeholders() {
                false => 0,
                true => nonce()?,
            },
            root: self
                .root
                .as_deref()
                .map(|path| real(path, "--root"))
                .transpose()?,
            oci_runtime: self.oci_runtime.clone(),
            program: match resolved.policy.isolation.value {
                Isolation::Oci => own_program()?,
                _ => PathBuf::new(),
            },
            temporary: places::temporary(),
            i_know: self.i_know,
            other_homes,
            policy_documents: resolved.documents.clone(),
        };
        let files = SystemFiles::default();
        let plan = make(&resolved.policy, &request, &host, &files);
        Ok(plan.map(|plan| Prepared {
            plan,
            layers: request.kept.layers,
            asked_hosts: request.asked_hosts,
            resolved,
            change: beside.change,
        }))
    }
}

/// The caller's environment without secrets that the network door reads for itself: what is
/// not copied is in no memory that the cage's first process inherits.
fn environment(network: &ironcage_policy::Network) -> Vec<(OsString, OsString)> {
    let mut kept = Vec::new();
    for (name, value) in std::env::vars_os() {
        if network.is_secret_variable(&name) {
            value.into_vec().zeroize();
        } else {
            kept.push((name, value));
        }
    }
    kept
}

/// The program that is running, which is also the first process of a container.
fn own_program() -> Result<PathBuf, CliError> {
    let own = std::env::current_exe();
    own.map_err(|error| CliError::new(format!("cannot tell where ironcage itself is: {error}")))
}

/// What makes the placeholders of one cage different from those of another.
fn nonce() -> Result<u64, CliError> {
    use ironcage_sys::rustix::rand::{GetRandomFlags, getrandom};
    let mut bytes = [0; 8];
    getrandom(&mut bytes, GetRandomFlags::empty())
        .map_err(|error| CliError::new(format!("no random numbers: {error}")))?;
    Ok(u64::from_ne_bytes(bytes))
}

fn plan_error(error: PlanError) -> CliError {
    let shown = CliError::from_error(&error);
    match error {
        PlanError::MissingLayer {
            missing, isolation, ..
        } => {
            let names: Vec<&str> = missing.iter().map(|layer| layer.name()).collect();
            let first = match isolation {
                Isolation::Namespace => {
                    "`ironcage doctor` says what this host lacks and the command that mends it"
                }
                _ => "`ironcage doctor --recommend` says when to use which isolation",
            };
            let without = if names.len() == 1 { "it" } else { "them" };
            shown.hint(first).hint(format!(
                "--allow-degraded {} starts without {without}",
                names.join(",")
            ))
        }
        PlanError::Workspace {
            path,
            can_be_forced: true,
            ..
        } => shown
            .hint("start in a project directory, or name one with --workspace DIR")
            .hint(format!(
                "--workspace {} --i-know takes it all the same; credentials in it stay hidden",
                path.display()
            )),
        PlanError::Workspace { .. } => {
            shown.hint("start in a project directory, or name one with --workspace DIR")
        }
        PlanError::WorkingDirectory { .. } => {
            shown.hint("start inside of the workspace, or give the directory with -r or --cwd")
        }
        PlanError::GuardedPath {
            parts_are_free: true,
            ..
        } => shown
            .hint("name only what the command needs: a file or directory in it")
            .hint("--i-know gives it all the same"),
        PlanError::GuardedPath { .. } => shown.hint("--i-know gives it all the same"),
        PlanError::CopyOnWrite { .. } => shown
            .hint("--workspace-mode direct works on the real files, read-only only shows them")
            .hint("or copy the directory (`cp -a`) to where that is possible, and start there"),
        PlanError::MissingPath { .. } => shown.hint("make it first, or take it out of the policy"),
        PlanError::UnknownSyscalls { .. } => {
            shown.hint("the lists are standard and minimal; `ironcage plan` shows what each allows")
        }
        _ => shown,
    }
}
