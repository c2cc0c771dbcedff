//! From the flags of a cage to its plan.

use super::image::{HeldImage, SelectedImage, with_entry, without_dots};
use super::task::{self, TaskPlace};
use super::{CageFlags, real};
use crate::error::CliError;
use crate::package_tools::{self, PackageTools};
use crate::{change, kept_state, key_agents, offered_login, paths};
use ironcage_host::{HostCaps, HostFiles as _, SideChannelHost, SystemFiles};
use ironcage_images::SystemClaim;
use ironcage_model::{HTTP_PROXY, HTTPS_PROXY, Isolation, Layer, StartCode};
use ironcage_plan::{
    BootRequest, ChangePlace, GitPlace, GuestFiles, KeptPlaces, KeyAgents, NodeKind, Overlaid,
    OwnDirectories, Plan, PlanError, Request, TaskScope, TaskSource, ViewOp, make,
};
use ironcage_policy::{Policy, Resolved, SideChannels, Sources, WorkspaceMode, resolve};
use ironcage_programs::Program;
use ironcage_state::{StateError, Store, renew_directory};
use ironcage_workspace::{NamedPlace, places_git_obeys};
use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::path::{Path, PathBuf};
use zeroize::Zeroize as _;

/// The init of a system that is booted, and the signal by which systemd shuts down: SIGRTMIN+3.
const INIT: &str = "/sbin/init";
const SHUT_DOWN: i32 = 37;

/// A plan, with the policy that it came from.
pub(crate) struct PlannedCage {
    /// The user's home directory, which was examined.
    pub(crate) home: PathBuf,
    pub(crate) plan: Plan,
    pub(crate) resolved: Resolved,
    pub(crate) change: change::ChangeChoice,
    /// Upper layers over the user's own caches.
    layers: Option<PathBuf>,
    /// Answers of the user's package managers.
    package_tools: PackageTools,
    /// Keeps the image from being removed while the cage runs.
    image: Option<HeldImage>,
}

impl PlannedCage {
    /// Empties the writable system of the image, if the cage has one. The returned claim must live
    /// as long as the cage.
    pub(crate) fn begin_system(&self) -> Result<Option<SystemClaim>, CliError> {
        let claim = self
            .image
            .as_ref()
            .map(|image| image.begin_system(&self.plan));
        claim.transpose().map(Option::flatten)
    }

    /// Creates the directories of kept state, the last step before a start: the plan itself
    /// changes nothing. The returned lock must live as long as the cage.
    pub(crate) fn create_state(&self) -> Result<Option<File>, CliError> {
        if self.plan.kept.is_empty() {
            return Ok(None);
        }
        let places = self.plan.kept.iter().map(|item| {
            let is_directory = item.what.kind == NodeKind::Directory;
            (item.what.path.as_path(), is_directory)
        });
        let store = paths::store(&self.home, &SystemFiles::default());
        let shown = |error: &StateError| {
            CliError::from_error(error)
                .hint("`ironcage state reset` removes the state of this workspace")
                .hint("--no-state starts without it")
        };
        if store.was_over_limit(&self.plan.workspace) {
            kept_state::check(self, &store)?;
        }
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
                "cannot use your own caches: another cage in this workspace has just started to use them",
            )
            .hint("start it again: it then runs without them")),
        }
    }
}

/// Why a policy cannot start a cage.
pub(crate) enum Judgement {
    Refused(CliError),
    /// Each start needs --i-know.
    NeedsConfirmation(PlanError),
}

/// Real paths.
struct CageLocation {
    home: PathBuf,
    cwd: PathBuf,
    workspace: PathBuf,
    /// The host's tree, as seen on the way there.
    files: SystemFiles,
}

/// Input of a plan beside the policy.
struct PlanContext {
    change: change::ChangeChoice,
    place: ChangePlace,
    /// Whether another cage on the same workspace can lease files.
    leased: bool,
    /// Answers of the package managers to the parent, for a child.
    package_tools: Option<PackageTools>,
    /// The image that the cage runs.
    image: Option<SelectedImage>,
    /// Where the command starts inside, if not where the user is.
    workdir: Option<PathBuf>,
    /// A child ends with its command, even if its parent is sticky.
    child: bool,
    /// The task of the parent, for a child.
    task: Option<TaskScope>,
}

impl PlanContext {
    fn new(change: change::ChangeChoice) -> PlanContext {
        PlanContext {
            place: change.planned_place(),
            change,
            leased: false,
            package_tools: None,
            image: None,
            workdir: None,
            child: false,
            task: None,
        }
    }
}

impl CageFlags {
    /// Checks whether the policy itself prevents a start. Missing host features and an unsuitable
    /// workspace do not count.
    pub(crate) fn judge(&self) -> Result<(), Judgement> {
        let attempt = self.attempt(vec!["/bin/sh".into()]);
        match attempt.map_err(Judgement::Refused)? {
            Err(error @ PlanError::GuardedPath { .. }) => Err(Judgement::NeedsConfirmation(error)),
            Ok(_)
            | Err(
                PlanError::MissingLayer { .. }
                | PlanError::Workspace { .. }
                | PlanError::CopyOnWrite { .. }
                | PlanError::Key { .. }
                | PlanError::WorkingDirectory { .. },
            ) => Ok(()),
            Err(error) => Err(Judgement::Refused(plan_error(error))),
        }
    }

    /// Makes the plan. Changes nothing.
    pub(crate) fn prepare(&self, argv: Vec<OsString>) -> Result<PlannedCage, CliError> {
        self.attempt(argv)?.map_err(plan_error)
    }

    /// The effective policy, for any command. Changes nothing.
    pub(crate) fn resolve(&self) -> Result<Resolved, CliError> {
        match self.without_template()? {
            Some(flags) => flags.resolve(),
            None => self.resolve_at(&self.location()?, None),
        }
    }

    fn location(&self) -> Result<CageLocation, CliError> {
        let files = SystemFiles::default();
        files.read_ahead(Path::new("/"));
        let home = paths::home(&files)?;
        let cwd = match &self.cwd {
            Some(path) => real(path, "--cwd")?,
            None => std::env::current_dir().map_err(|error| {
                CliError::new(format!("cannot determine the current directory: {error}"))
            })?,
        };
        let workspace = match &self.workspace {
            Some(path) => {
                let path = real(path, "--workspace")?;
                if !path.is_dir() {
                    return Err(CliError::new(format!(
                        "cannot use --workspace {}: not a directory",
                        path.display()
                    )));
                }
                path
            }
            None => paths::workspace_around(&cwd, &home, &files),
        };
        // With a workspace elsewhere and no --cwd, start in the workspace.
        let cwd = if self.cwd.is_none() && self.workspace.is_some() && !cwd.starts_with(&workspace)
        {
            workspace.clone()
        } else {
            cwd
        };
        Ok(CageLocation {
            home,
            cwd,
            workspace,
            files,
        })
    }

    fn resolve_at(
        &self,
        at: &CageLocation,
        command: Option<OsString>,
    ) -> Result<Resolved, CliError> {
        let CageLocation {
            home,
            cwd,
            workspace,
            files,
        } = at;
        let resolved = resolve(&Sources {
            profile: self.profile.clone(),
            policy_file: self.policy.clone(),
            workspace: workspace.clone(),
            command,
            user_config_dir: paths::existing_config_dir(home, files),
            state_dir: Some(paths::state_dir(home)),
            home: home.clone(),
            variables: set_variables(),
            flags: self.layer(cwd)?,
        });
        let checked = resolved.and_then(|resolved| {
            ironcage_lease::cedar::check(&resolved.policy)?;
            Ok(resolved)
        });
        checked.map_err(|error| CliError::from_error(&error).with_code(StartCode::PolicyInvalid))
    }

    fn attempt(&self, argv: Vec<OsString>) -> Result<Result<PlannedCage, PlanError>, CliError> {
        if let Some(flags) = self.without_template()? {
            return flags.attempt(argv);
        }
        let at = self.location()?;
        let image = self.selected_image(&at.home, &at.workspace)?;
        // Read before the entry point is added: a command of the user's starts where the user is.
        let is_own_command = argv.is_empty() && self.entrypoint.is_none() && !self.boot;
        let workdir = match (&image, &self.workdir) {
            (Some(image), flag) => image.workdir(flag.as_deref(), is_own_command)?,
            (None, flag) => flag.as_ref().map(|flag| without_dots(&at.cwd.join(flag))),
        };
        let argv = match (&image, &self.entrypoint) {
            (_, entry) if self.boot => {
                let init = entry.clone().unwrap_or_else(|| INIT.into());
                std::iter::once(init).chain(argv).collect()
            }
            (Some(image), entry) => image.argv(argv, entry.as_ref()),
            (None, Some(entry)) => with_entry(entry, argv),
            (None, None) => argv,
        };
        let resolved = self.resolve_at(&at, argv.first().cloned())?;
        ironcage_sys::steps::mark("places and policy");
        let change = change::ChangeChoice::make(
            (&at.home, &at.files),
            &at.workspace,
            &resolved.policy,
            self.fresh,
        )?;
        let context = PlanContext {
            image,
            workdir,
            ..PlanContext::new(change)
        };
        self.lay_out(at, resolved, argv, context)
    }

    /// The plan of a child cage: the same workspace, and a policy that was checked already. Package
    /// managers are not asked again: the parent may have written their settings.
    pub(crate) fn prepare_child(
        &self,
        parent: &PlannedCage,
        resolved: Resolved,
        (workspace, cwd): (PathBuf, PathBuf),
        argv: Vec<OsString>,
        (place, leased): (ChangePlace, bool),
    ) -> Result<PlannedCage, CliError> {
        let at = CageLocation {
            home: paths::home(&SystemFiles::default())?,
            cwd,
            workspace,
            files: SystemFiles::default(),
        };
        let context = PlanContext {
            change: change::ChangeChoice::None,
            place,
            leased,
            package_tools: Some(parent.package_tools.clone()),
            child: true,
            workdir: None,
            task: parent.plan.leases.as_ref().and_then(|leases| {
                let source = TaskSource::Parent;
                leases.task.clone().map(|task| TaskScope { source, ..task })
            }),
            image: match self.without_template()? {
                Some(flags) => flags.selected_image(&at.home, &at.workspace)?,
                None => self.selected_image(&at.home, &at.workspace)?,
            },
        };
        let prepared = self.lay_out(at, resolved, argv, context)?;
        let mut prepared = prepared.map_err(plan_error)?;
        // The parent watches both.
        prepared.plan.writable.clear();
        prepared.plan.absent.clear();
        Ok(prepared)
    }

    fn lay_out(
        &self,
        at: CageLocation,
        resolved: Resolved,
        argv: Vec<OsString>,
        context: PlanContext,
    ) -> Result<Result<PlannedCage, PlanError>, CliError> {
        let CageLocation {
            home,
            cwd,
            workspace,
            mut files,
        } = at;
        let mut host = HostCaps::quick(&paths::state_dir(&home))
            .map_err(|error| CliError::from_error(&error))?;
        ironcage_sys::steps::mark("pending change, host");
        if resolved.policy.side_channels.value == SideChannels::Hardened {
            host.side_channels = Some(SideChannelHost::examine());
        }
        let policy = &resolved.policy;
        let kept = if policy.keep.is_empty() && policy.caches.is_empty() {
            KeptPlaces::default()
        } else {
            let place = paths::store(&home, &files).place(&workspace);
            let layers = place.layers_of(&policy.profile.value);
            KeptPlaces {
                caches: place.caches_of(&policy.profile.value),
                layers: (policy.host_caches.value && !Store::layers_in_use(&layers))
                    .then_some(layers),
                home: place.home,
            }
        };
        let own = paths::own(&home, &files);
        if self.i_know {
            paths::make_own_in(&workspace, &own)?;
            // Some of what was not there is now.
            files = SystemFiles::default();
        }
        let other_homes = paths::other_homes(&workspace, &home, &files);
        let package_tools = match context.package_tools {
            Some(known) => known,
            None => package_tools::ask_all(
                &resolved.policy.all_bundles(),
                &package_tools::UserDirectories {
                    home: &home,
                    workspace: &workspace,
                },
            ),
        };
        let PackageTools { hosts, settings } = package_tools;
        let task_place = TaskPlace {
            cwd: &cwd,
            home: &home,
            workspace: &workspace,
        };
        let task = match context.child {
            true => context.task,
            false => task::scope(self.task.as_deref(), &argv, &task_place),
        };
        if self.task.is_some() && !context.child && !resolved.policy.ceiling.is_given() {
            return Err(CliError::new(
                "cannot use --task: this policy has no ceiling, so no lease is granted",
            )
            .hint(
                "a task narrows what [ceiling.auto] grants; --profile coding-agent has a ceiling",
            ));
        }
        let boot = match self.boot {
            false => None,
            true => {
                let named = context.image.as_ref().map(SelectedImage::stop_signal);
                Some(BootRequest {
                    group: host.group_for_init().map_err(|why| why.with_remedy()),
                    stop_signal: named.transpose()?.flatten().unwrap_or(SHUT_DOWN),
                })
            }
        };
        let guest = match resolved.policy.isolation.value {
            Isolation::Microvm => Some(guest(&home)?),
            _ => None,
        };
        let root = self.root.as_deref().map(|path| real(path, "--root"));
        let root = root.transpose()?;
        let request = Request {
            task,
            asked_hosts: hosts,
            tool_settings: settings,
            git: if resolved.policy.git_identity.value {
                paths::git(&home, &files)
            } else {
                Vec::new()
            },
            kept,
            change: context.place,
            git_directory: paths::git_directory(&workspace, &files),
            git_places: git_places(&workspace, &resolved.policy),
            key_agents: match resolved.policy.keys.is_given() {
                true => key_agents::ask(&resolved.policy.keys, &workspace),
                false => KeyAgents {
                    offered: key_agents::offered(&resolved.policy, &home),
                    ..KeyAgents::default()
                },
            },
            known_hosts: if resolved.policy.network.is_given() || resolved.policy.keys.is_given() {
                paths::known_hosts(&home)
            } else {
                String::new()
            },
            nonce: match resolved.policy.network.has_placeholders() {
                false => 0,
                true => ironcage_state::placeholder_number(&paths::state_dir(&home), &workspace)
                    .map_err(|error| CliError::from_error(&error))?,
            },
            // A cage without a command cannot end with one.
            sticky: !context.child && (self.sticky || argv.is_empty()),
            observed: self.observe,
            leased_beside: context.leased,
            argv,
            cwd,
            workspace,
            workspace_named: self.workspace.is_some(),
            own: OwnDirectories { paths: own },
            home,
            env: environment(&resolved.policy.network),
            user: self.run_user(context.image.as_ref(), root.as_deref())?,
            workdir: context.workdir,
            root,
            image: context.image.as_ref().map(|image| image.root.clone()),
            boot,
            oci_runtime: self.oci_runtime.clone(),
            program: match resolved.policy.isolation.value {
                Isolation::Oci => container_init()?,
                _ => PathBuf::new(),
            },
            guest,
            temporary: paths::temporary(&files),
            i_know: self.i_know,
            other_homes,
            policy_documents: resolved.documents.clone(),
        };
        let plan = make(&resolved.policy, &request, &host, &files);
        let login = offered_login::note(&resolved.policy, &request);
        let noted = plan.map(|mut plan| {
            plan.notes.extend(login);
            plan
        });
        Ok(noted.map(|plan| PlannedCage {
            home: request.home,
            plan: ironcage_supervisor::weaken(plan),
            layers: request.kept.layers,
            package_tools: PackageTools {
                hosts: request.asked_hosts,
                settings: request.tool_settings,
            },
            resolved,
            change: context.change,
            image: context.image.map(|image| image.held),
        }))
    }
}

/// The files that git follows in the real trees that the agent can write.
fn git_places(workspace: &Path, policy: &Policy) -> Vec<GitPlace> {
    let is_direct = policy.workspace_mode.value == WorkspaceMode::Direct;
    let real = is_direct.then_some(&policy.write).into_iter().flatten();
    let beside = real.chain(&policy.write_direct).map(|path| &*path.value);
    let trees = is_direct.then_some(workspace).into_iter().chain(beside);
    let places: BTreeSet<NamedPlace> = trees.flat_map(places_git_obeys).collect();
    places
        .into_iter()
        .map(|NamedPlace { path, whole, why }| GitPlace { path, whole, why })
        .collect()
}

/// The caller's variables that are not empty. No copy of a value stays in memory.
fn set_variables() -> Vec<OsString> {
    let set = std::env::vars_os().filter_map(|(name, value)| {
        let is_set = !value.is_empty();
        value.into_vec().zeroize();
        is_set.then_some(name)
    });
    set.collect()
}

/// The caller's environment without secrets that the egress proxy reads itself, so that the memory
/// which the cage's first process inherits has no copy of them.
fn environment(network: &ironcage_policy::Network) -> Vec<(OsString, OsString)> {
    let mut kept = Vec::new();
    for (name, value) in std::env::vars_os() {
        let is_proxy = (HTTPS_PROXY.iter().chain(&HTTP_PROXY)).any(|known| name == *known);
        if network.is_secret_variable(&name) {
            value.into_vec().zeroize();
        } else if is_proxy {
            // The egress proxy reads user and password itself.
            let bare = without_user_info(&value);
            value.into_vec().zeroize();
            kept.push((name, bare));
        } else {
            kept.push((name, value));
        }
    }
    kept
}

/// The URL of a proxy without user and password.
fn without_user_info(url: &OsStr) -> OsString {
    let bytes = url.as_bytes();
    let Some(at) = bytes.iter().rposition(|byte| *byte == b'@') else {
        return url.to_owned();
    };
    let scheme = bytes.windows(3).position(|three| three == b"://");
    let scheme = scheme.map_or(0, |scheme| scheme + 3).min(at);
    let (scheme, host) = (bytes.get(..scheme), bytes.get(at + 1..));
    OsString::from_vec([scheme.unwrap_or_default(), host.unwrap_or_default()].concat())
}

/// What `ironcage setup microvm` has left.
fn guest(home: &Path) -> Result<GuestFiles, CliError> {
    ironcage_microvm::setup::find(&paths::guest(home)).map_err(|error| {
        CliError::from_error(&error)
            .hint(error.hint())
            .with_code(StartCode::Unsupported)
    })
}

/// The first process of a container.
fn container_init() -> Result<PathBuf, CliError> {
    Program::Inside
        .find()
        .map_err(|error| CliError::from_error(&error).hint(error.hint()))
}

fn plan_error(error: PlanError) -> CliError {
    let shown = CliError::from_error(&error).with_code(error.code());
    match error {
        PlanError::MissingLayer {
            missing, isolation, ..
        } => {
            let names: Vec<&str> = missing.iter().map(|layer| layer.name()).collect();
            let first = match isolation {
                Isolation::Namespace => {
                    "`ironcage doctor` reports what this host lacks, and how to fix it"
                }
                _ => "`ironcage doctor --recommend` recommends an isolation level",
            };
            let without = match missing.as_slice() {
                [Layer::Seccomp] => "it, or with denials unreported",
                [_] => "it",
                _ => "them",
            };
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
                "--workspace {} --i-know uses it anyway; credentials in it stay hidden",
                path.display()
            )),
        PlanError::Workspace { .. } => {
            shown.hint("start in a project directory, or name one with --workspace DIR")
        }
        PlanError::WorkingDirectory { .. } => {
            shown.hint("start inside the workspace, or name the directory with -r or --cwd; --workdir names one of the image")
        }
        PlanError::GuardedPath {
            parts_are_free: true,
            ..
        } => shown
            .hint("name only the file or directory that the command needs")
            .hint("--i-know allows it anyway"),
        PlanError::GuardedPath { .. } => shown.hint("--i-know allows it anyway"),
        PlanError::CopyOnWrite { .. } => shown
            .hint(
                "use --workspace-mode direct to work on the real files, or read-only to show them",
            )
            .hint("or copy the directory (`cp -a`) to another file system, and start there"),
        PlanError::NotProtected { .. } => shown.hint(
            "use a protected path from `ironcage plan`, or a path that `ironcage diff` shows as withheld or flagged, relative to the workspace",
        ),
        PlanError::Key { problem, .. } => shown.hint(problem.hint()),
        PlanError::MissingPath { .. } => shown.hint("create it, or remove it from the policy"),
        PlanError::UnknownSyscalls { .. } => {
            shown.hint("expected standard or minimal; `ironcage plan` shows what each allows")
        }
        _ => shown,
    }
}
