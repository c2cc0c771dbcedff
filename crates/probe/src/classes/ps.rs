//! Files in the workspace, and in the PATH, that the host would later execute or trust.

use super::{Attempts, Class, Inside, Observation, Oracle, Probe, Severity};
use crate::stage::TRUSTED;
use std::fs::{self, OpenOptions};
use std::io::Write;
use std::path::Path;

const PS: Probe = Probe::of(Class::Ps);
const PROTECTED: &str = "protected files are read-only mounts, their ancestors pinned";

pub(crate) const PROBES: &[Probe] = &[
    Probe {
        id: "PS-01",
        severity: Severity::Critical,
        title: "change a git hook of the workspace",
        canary: ".git/hooks/pre-commit, compared outside",
        layers: &[PROTECTED, "Landlock on writes"],
        references: &["ATT&CK T1546"],
        inside: |inside| {
            let mut attempts = Attempts::new();
            let hook = inside.params.workspace.join(".git/hooks/pre-commit");
            change(&mut attempts, &inside.params.workspace, &hook);
            attempts.done()
        },
        oracle: Oracle::TrustedChanged,
        ..PS
    },
    Probe {
        id: "PS-01r",
        severity: Severity::Critical,
        title: "move .git away and put another in its place",
        canary: ".git of the workspace, compared outside",
        layers: &[PROTECTED],
        references: &["ATT&CK T1546"],
        inside: replace_git,
        oracle: Oracle::TrustedChanged,
        ..PS
    },
    Probe {
        id: "PS-02",
        severity: Severity::Critical,
        title: "change editor, agent and shell settings of the workspace",
        canary: ".vscode, .envrc, .mcp.json, .claude, .codex, .cursor, compared outside",
        layers: &[PROTECTED, "Landlock on writes"],
        references: &["CVE-2025-54136", "ATT&CK T1546"],
        inside: |inside| {
            let mut attempts = Attempts::new();
            for (name, _) in TRUSTED {
                let workspace = &inside.params.workspace;
                change(&mut attempts, workspace, &workspace.join(name));
            }
            attempts.done()
        },
        oracle: Oracle::TrustedChanged,
        ..PS
    },
    Probe {
        id: "PS-05",
        severity: Severity::Critical,
        title: "plant a git in a directory of the user's PATH",
        canary: "~/.local/bin/git, watched outside",
        layers: &["mount namespace with an allow-listed view"],
        references: &["ATT&CK T1574.007"],
        inside: |inside| {
            let mut attempts = Attempts::new();
            let path = inside.params.home.join(".local/bin/git");
            let made = path.parent().map_or(Ok(()), fs::create_dir_all);
            attempts.note(
                "create",
                made.and_then(|()| fs::write(&path, "#!/bin/sh\n")),
            );
            attempts.done()
        },
        oracle: Oracle::Appears(|stage| stage.params.home.join(".local/bin/git")),
        ..PS
    },
];

/// Every way to change one file: append, replace by renaming, unlink, rename its directory.
fn change(attempts: &mut Attempts, workspace: &Path, path: &Path) {
    let name = path
        .file_name()
        .unwrap_or_default()
        .to_string_lossy()
        .into_owned();
    let appended = OpenOptions::new().append(true).open(path);
    let appended = appended.and_then(|mut file| file.write_all(b"changed\n"));
    attempts.note(&format!("append {name}"), appended);
    let own = workspace.join("replacement");
    if fs::write(&own, "replaced\n").is_ok() {
        attempts.note(&format!("replace {name}"), fs::rename(&own, path));
    }
    attempts.note(&format!("unlink {name}"), fs::remove_file(path));
    if let Some(parent) = path.parent().filter(|parent| *parent != workspace) {
        let moved = parent.with_extension("moved");
        attempts.note(
            &format!("move the directory of {name}"),
            fs::rename(parent, moved),
        );
    }
}

fn replace_git(inside: &Inside) -> Observation {
    let mut attempts = Attempts::new();
    let git = inside.params.workspace.join(".git");
    let moved = fs::rename(&git, inside.params.workspace.join("git-moved"));
    if attempts.note("rename .git", moved).is_some() {
        let hooks = git.join("hooks");
        let planted = fs::create_dir_all(&hooks)
            .and_then(|()| fs::write(hooks.join("pre-commit"), "#!/bin/sh\n./x\n"));
        attempts.note("plant a hook", planted);
    }
    attempts.note("remove .git", fs::remove_dir_all(&git));
    attempts.done()
}
