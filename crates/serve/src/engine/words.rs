//! The words of `ironcage run` that a cage is started with.

use super::Settings;
use crate::api::types::WorkspaceMode;
use crate::store::CageRecord;
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};

impl Settings {
    /// The empty directory that a cage without a directory has for its workspace.
    pub(super) fn empty(&self) -> PathBuf {
        self.workspaces.join("empty")
    }
}

/// The code interpreter that the service provides for a cage.
pub(super) fn interpreter<'a>(settings: &'a Settings, record: &CageRecord) -> Option<&'a Path> {
    let wanted = record.e2b_template.as_deref() == Some(crate::e2b::CODE_INTERPRETER);
    let provided = settings.code_interpreter.as_deref();
    provided.filter(|_| wanted)
}

/// Everything about a cage that is fixed at its start is in these words: a warm cage is given to a
/// request that leads to the same.
pub(super) fn words(
    settings: &Settings,
    record: &CageRecord,
    policy: Option<&Path>,
) -> Vec<OsString> {
    let spec = &record.spec;
    let mut words: Vec<OsString> = [
        "run",
        "-d",
        "-q",
        "--rm",
        "--isolation",
        "namespace",
        "--name",
    ]
    .map(OsString::from)
    .into();
    words.push((&record.name).into());
    if spec.directory.is_none() {
        // State is kept by the path of the workspace, which these cages share.
        words.push("--no-state".into());
    }
    let mut flag = |name: &str, value: &dyn AsRef<OsStr>| {
        let mut word = OsString::from(name);
        word.push("=");
        word.push(value);
        words.push(word);
    };
    flag("--read", &settings.inside);
    if let Some(interpreter) = interpreter(settings, record) {
        flag("--read", &interpreter);
    }
    match &spec.directory {
        Some(directory) => {
            flag("--workspace", directory);
            flag("--cwd", directory);
            let mode = spec.workspace_mode.unwrap_or(WorkspaceMode::Cow);
            flag("--workspace-mode", &mode.name());
        }
        None => {
            let workspace = match &record.e2b.building {
                // The writable image of a cage belongs to its workspace.
                Some(build) => settings.workspaces.join(format!("build-{build}")),
                None => settings.empty(),
            };
            flag("--workspace", &workspace);
            flag("--cwd", &workspace);
            flag("--workspace-mode", &WorkspaceMode::Scratch.name());
        }
    }
    for (name, value) in [
        ("--profile", &spec.profile),
        ("--image", &spec.image),
        ("--template", &spec.template),
    ] {
        if let Some(value) = value {
            flag(name, value);
        }
    }
    if let Some(policy) = policy {
        flag("--policy", &policy);
    }
    if let Some(limits) = &spec.limits {
        for (name, value) in [
            ("--memory", &limits.memory),
            ("--cpus", &limits.cpus),
            ("--disk", &limits.disk),
        ] {
            if let Some(value) = value {
                flag(name, value);
            }
        }
        if let Some(pids) = limits.pids {
            flag("--pids", &pids.to_string());
        }
    }
    if let Some(network) = &spec.network {
        if let Some(mode) = network.mode {
            flag("--network", &mode.name());
        }
        network
            .allow
            .iter()
            .for_each(|host| flag("--allow-host", host));
        network
            .deny
            .iter()
            .for_each(|host| flag("--deny-host", host));
    }
    if record.e2b.building.is_some() && spec.image.is_some() {
        words.extend(["--writable-image", "--root-inside"].map(OsString::from));
    }
    words.push("--".into());
    words.push((&settings.inside).into());
    words.push("__daemon".into());
    words.push((&record.name).into());
    words
}
