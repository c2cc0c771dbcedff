//! The command: its environment, where its program is looked for, where it starts.

use crate::plan::{Command, Identity, Item, NodeKind, Overlaid, Plan, Variable, ViewOp};
use crate::view::{ViewPlan, name_of};
use crate::{PlanError, Request, agent_help, network, wasm};
use ironcage_host::{HostFiles, NodeType};
use ironcage_model::{AwsRule, HTTP_PROXY, HTTPS_PROXY, Isolation};
use ironcage_policy::{EnvRule, Origin, Policy, WorkspaceMode, bundles};
use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

/// Programs of the system view.
const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// Variables that an image does not set.
const CAGES_OWN: [&str; 5] = ["HOME", "USER", "LOGNAME", "TMPDIR", "IRONCAGE"];

pub(crate) fn make(
    policy: &Policy,
    request: &Request,
    identity: &Identity,
    view: &ViewPlan,
    files: &dyn HostFiles,
) -> Result<Command, PlanError> {
    if request.argv.is_empty() && !request.sticky {
        return Err(PlanError::NoCommand);
    }
    let env = environment(policy, request, identity, view);
    // An empty workspace has no directory below it to start in.
    let scratch = policy.workspace_mode.value == WorkspaceMode::Scratch;
    let cwd = if let Some(workdir) = &request.workdir {
        workdir
    } else if scratch && request.cwd.starts_with(&request.workspace) {
        &request.workspace
    } else {
        &request.cwd
    };
    let is_named = request.workdir.is_some();
    if !is_visible(cwd, &view.ops) || is_named && is_missing(cwd, &view.ops, files) {
        return Err(PlanError::WorkingDirectory { path: cwd.clone() });
    }
    let candidates = match request.argv.first() {
        Some(_) if policy.isolation.value == Isolation::Wasm => wasm::candidates(),
        Some(program) => candidates(program, cwd, &env),
        None => Vec::new(),
    };
    Ok(Command {
        argv: request.argv.clone(),
        candidates,
        env,
        cwd: cwd.clone(),
    })
}

/// Variables that a flag passes by name and that the caller has not: most likely a slip.
pub(crate) fn not_passed(policy: &Policy, request: &Request) -> Vec<String> {
    let mut notes = Vec::new();
    for rule in &policy.env {
        if let EnvRule::Pass { name } = &rule.value
            && is_proxy(name)
        {
            notes.push(format!(
                "{} {name}: not passed; the egress proxy connects through that proxy, and programs in the cage need no setting for it",
                rule.origin
            ));
        } else if let (EnvRule::Pass { name }, Origin::Flag { .. }) = (&rule.value, &rule.origin)
            && !request
                .env
                .iter()
                .any(|(known, _)| matches(name, known.as_bytes()))
        {
            notes.push(format!(
                "{} {name}: not passed, because it is not set in your environment",
                rule.origin
            ));
        }
    }
    notes
}

/// Whether a variable names an upstream proxy: a program would look for that where it is not.
fn is_proxy(name: &str) -> bool {
    (HTTPS_PROXY.iter().chain(&HTTP_PROXY)).any(|known| name == *known)
}

impl Plan {
    /// The home directory of the agent, where it has one.
    pub fn home(&self) -> Option<&Path> {
        let mut variables = self.command.env.iter();
        let home = variables.find(|item| item.what.name == "HOME");
        home.map(|item| Path::new(&item.what.value))
    }

    /// Another command in the planned cage: the cage's own environment with `env` on top, and
    /// its working directory unless another is given. The view decides what is there.
    pub fn another(
        &self,
        argv: Vec<OsString>,
        env: Vec<(OsString, OsString)>,
        cwd: Option<PathBuf>,
    ) -> Result<Command, PlanError> {
        let program = argv.first().ok_or(PlanError::NoCommand)?.clone();
        let mut variables = self.command.env.clone();
        for (name, value) in env {
            variables.retain(|item| item.what.name != name);
            variables.push(Item {
                what: Variable { name, value },
                origin: "exec".into(),
            });
        }
        let cwd = self.command.cwd.join(cwd.unwrap_or_default());
        let wasm = self.isolation_level.what.isolation == Isolation::Wasm;
        Ok(Command {
            candidates: match wasm {
                true => wasm::candidates(),
                false => candidates(&program, &cwd, &variables),
            },
            argv,
            env: variables,
            cwd,
        })
    }
}

/// What programs see as the name of the user.
fn user_name(request: &Request, identity: &Identity) -> String {
    let listed = request
        .image
        .as_ref()
        .and_then(|image| name_of(&image.passwd, identity.uid));
    match (listed, identity.uid) {
        (Some(name), _) => name.to_owned(),
        (None, 0) => "root".into(),
        (None, _) => "agent".into(),
    }
}

fn environment(
    policy: &Policy,
    request: &Request,
    identity: &Identity,
    view: &ViewPlan,
) -> Vec<Item<Variable>> {
    let user = user_name(request, identity);
    let mut variables: Vec<Item<Variable>> = Vec::new();
    let mut set = |name: OsString, value: OsString, origin: String| {
        variables.retain(|item| item.what.name != name);
        variables.push(Item {
            what: Variable { name, value },
            origin,
        });
    };
    let built_in = || "built in".to_owned();
    set("PATH".into(), search_path(view), built_in());
    set("HOME".into(), request.home.clone().into(), built_in());
    set("USER".into(), user.clone().into(), built_in());
    set("LOGNAME".into(), user.into(), built_in());
    set("SHELL".into(), "/bin/sh".into(), built_in());
    set("TMPDIR".into(), "/tmp".into(), built_in());
    set("IRONCAGE".into(), "1".into(), built_in());
    if policy.ceiling.is_given() {
        set(
            agent_help::VARIABLE.into(),
            agent_help::FILE.into(),
            built_in(),
        );
    }
    // Where a git that was not built for /usr looks for it.
    let git = "/etc/gitconfig";
    set("GIT_CONFIG_SYSTEM".into(), git.into(), built_in());
    let network = &policy.network;
    for bundle in bundles::ENTRIES {
        let is_allowed =
            network.open.value || network.bundles.iter().any(|b| b.value == bundle.name);
        for (name, value) in bundle.without.iter().filter(|_| !is_allowed) {
            let origin = format!("built in: no bundle {}", bundle.name);
            set(name.into(), value.into(), origin);
        }
    }
    if let Some(image) = &request.image {
        for (name, value) in &image.env {
            // The cage's own home and user are the agent's, whatever the image says.
            if !CAGES_OWN.contains(&name.as_str()) {
                set(name.into(), value.into(), format!("image {}", image.name));
            }
        }
    }
    for item in &view.variables {
        let Variable { name, value } = item.what.clone();
        set(name, value, item.origin.clone());
    }
    let secrets = &policy.network.secrets;
    let is_secret = |name: &OsString| policy.network.is_secret_variable(name);
    for rule in &policy.env {
        let origin = rule.origin.to_string();
        match &rule.value {
            EnvRule::Set { name, value } => set(name.into(), value.into(), origin),
            EnvRule::Pass { name } => {
                for (known, value) in &request.env {
                    let proxy = known.to_str().is_some_and(is_proxy);
                    if matches(name, known.as_bytes()) && !is_secret(known) && !proxy {
                        set(known.clone(), value.clone(), origin.clone());
                    }
                }
            }
        }
    }
    // Last: nothing else is to stand where a placeholder does.
    if policy.has_proxy() {
        for secret in secrets {
            let name = &secret.value.name;
            let value = network::placeholder(name, request.nonce);
            set(name.into(), value.into(), secret.origin.to_string());
        }
        if let Some(keys) = &policy.network.aws {
            let [id, key, _] = AwsRule::VARIABLES;
            let origin = || keys.origin.to_string();
            set(id.into(), network::aws_id(request.nonce).into(), origin());
            set(key.into(), network::aws_key(request.nonce).into(), origin());
        }
    }
    variables
}

/// The caller's PATH as far as it is there inside, in the caller's order: a program of theirs
/// may stand in front of the system's, or behind it. Then what it does not name of the system's.
fn search_path(view: &ViewPlan) -> OsString {
    let system: Vec<&Path> = PATH.split(':').map(Path::new).collect();
    let visible = |entry: &Path| {
        // From the end: toolchains and the workspace come after the system.
        view.ops.iter().rev().any(|item| match &item.what {
            ViewOp::Symlink { target, .. } => entry.starts_with(target),
            op => {
                let directory = op
                    .from_host()
                    .filter(|(_, kind)| *kind == NodeKind::Directory);
                directory.is_some_and(|(target, _)| entry.starts_with(target))
            }
        })
    };
    let named = view.search.iter().map(PathBuf::as_path);
    let callers = named.filter(|entry| {
        let plain = !entry.as_os_str().as_bytes().contains(&b':');
        system.contains(entry) || (plain && visible(entry))
    });
    let rest = system
        .iter()
        .copied()
        .filter(|known| !view.search.iter().any(|entry| entry == known));
    let mut path = OsString::new();
    for entry in callers.chain(rest) {
        if !path.is_empty() {
            path.push(":");
        }
        path.push(entry);
    }
    path
}

/// Whether a name fits a rule: itself, or a prefix with a star as in `LC_*`.
pub(crate) fn matches(rule: &str, name: &[u8]) -> bool {
    match rule.strip_suffix('*') {
        Some(prefix) => name.starts_with(prefix.as_bytes()),
        None => rule.as_bytes() == name,
    }
}

fn candidates(program: &OsString, cwd: &Path, env: &[Item<Variable>]) -> Vec<PathBuf> {
    if program.as_bytes().contains(&b'/') {
        return vec![cwd.join(program)];
    }
    env.iter()
        .filter(|item| item.what.name == "PATH")
        .flat_map(|item| item.what.value.as_bytes().split(|byte| *byte == b':'))
        .filter(|directory| directory.starts_with(b"/"))
        .filter(|directory| !crate::shell::is_shim(directory))
        .map(|directory| PathBuf::from(OsString::from_vec(directory.to_vec())).join(program))
        .collect()
}

/// Whether a directory is there inside: made, or part of something bound.
fn is_visible(path: &Path, ops: &[Item<ViewOp>]) -> bool {
    path == Path::new("/")
        || ops.iter().any(|item| match &item.what {
            ViewOp::Directory { target, .. } => target.starts_with(path),
            op => op
                .from_host()
                .filter(|(_, kind)| *kind == NodeKind::Directory)
                .is_some_and(|(target, _)| path.starts_with(target) || target.starts_with(path)),
        })
}

/// Whether the innermost tree around a directory does not have it. What links lead to is the
/// kernel's to say.
fn is_missing(path: &Path, ops: &[Item<ViewOp>], files: &dyn HostFiles) -> bool {
    let trees = ops.iter().filter_map(|item| match &item.what {
        ViewOp::Bind { source, target, .. } => Some((target, Some(source))),
        ViewOp::Overlay {
            of: Overlaid::System,
            lower,
            target,
            ..
        } => Some((target, Some(lower))),
        ViewOp::Overlay { target, .. } => Some((target, None)),
        ViewOp::Ephemeral { target, .. } => Some((target, None)),
        _ => None,
    });
    let around = trees.filter(|(target, _)| path.starts_with(target));
    let Some((target, Some(source))) = around.max_by_key(|(target, _)| target.components().count())
    else {
        return false;
    };
    let mut place = source.clone();
    for part in path.strip_prefix(target).unwrap_or(Path::new("")) {
        place.push(part);
        match files.kind(&place) {
            Some(NodeType::Directory) => {}
            Some(NodeType::Symlink) => return false,
            _ => return true,
        }
    }
    false
}
