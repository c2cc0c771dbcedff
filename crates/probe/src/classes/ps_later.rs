//! Programs that a run leaves for others to execute: a host tool, or the next run.

use super::{
    Attempts, Class, Evidence, Inside, Observation, Oracle, Probe, Setup, Severity, Stage,
};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};

const PS: Probe = Probe::of(Class::Ps);

pub(crate) const PROBES: &[Probe] = &[
    Probe {
        id: "PS-06",
        title: "leave a program in the workspace where a host tool executes it",
        canary: "the suite plays the tool: it executes what lies in those places",
        layers: &[
            "the workspace is a copy-on-write view",
            "what would be executed is told and held",
        ],
        references: &["ATT&CK T1195"],
        inside: plant,
        oracle: Oracle::Seen(executed),
        ..PS
    },
    Probe {
        id: "PS-08",
        severity: Severity::Medium,
        title: "leave a program in a cache that the next run executes",
        canary: "a word that only the first run knew, printed by the second",
        layers: &[
            "private home and /tmp",
            "what is kept is the workspace's own",
        ],
        references: &["ATT&CK T1195"],
        setup: Setup::Again,
        inside: leave_and_find,
        oracle: Oracle::Seen(|_, evidence| {
            let word = evidence.legacy.as_deref()?;
            let came = crate::oracle::contains(&evidence.output, word.as_bytes());
            came.then(|| "the second run executed what the first had left".to_owned())
        }),
        ..PS
    },
];

/// Places in a workspace from which build tools, test runners and editors execute.
const EXECUTED: [&str; 7] = [
    ".venv/bin/python",
    "node_modules/.bin/tsc",
    ".cargo/config.toml",
    "build.rs",
    "Makefile",
    "conftest.py",
    "gradlew",
];

/// Says where the program that was planted tells that it ran.
const MARK: &str = "STAGE_MARK";

fn plant(inside: &Inside) -> Observation {
    let mut attempts = Attempts::new();
    for name in EXECUTED {
        let path = inside.params.workspace.join(name);
        let made = path.parent().map_or(Ok(()), fs::create_dir_all);
        let planted = made
            .and_then(|()| fs::write(&path, format!("#!/bin/sh\n: > \"${MARK}\"\n")))
            .and_then(|()| fs::set_permissions(&path, fs::Permissions::from_mode(0o755)));
        attempts.note(name, planted);
    }
    attempts.done()
}

/// Plays the tools: executes what lies there, outside of every sandbox.
fn executed(stage: &Stage, _: &Evidence) -> Option<String> {
    let mark = stage.params.outside.join("executed");
    let found = EXECUTED.iter().find(|name| {
        let path = stage.params.workspace.join(name);
        path.exists()
            && Command::new("/bin/sh")
                .arg(&path)
                .env(MARK, &mark)
                .stdin(Stdio::null())
                .stdout(Stdio::null())
                .stderr(Stdio::null())
                .status()
                .is_ok()
            && mark.exists()
    });
    found.map(|name| format!("{name} was executed outside"))
}

/// Caches that tools execute from, in the home directory and beside it.
fn places(inside: &Inside) -> Vec<PathBuf> {
    let home = &inside.params.home;
    let mut places: Vec<PathBuf> = [
        ".cache/pip/wheel",
        ".cache/ccache/cc",
        ".npm/_npx/tool",
        ".cargo/bin/cargo-tool",
        ".local/bin/git",
    ]
    .iter()
    .map(|name| home.join(name))
    .collect();
    places.extend([
        inside.params.tmp_plant.clone(),
        PathBuf::from("/dev/shm/left-plant"),
    ]);
    places
}

fn leave_and_find(inside: &Inside) -> Observation {
    let mut attempts = Attempts::new();
    for path in places(inside) {
        let what = path.display().to_string();
        if let Some(word) = &inside.params.legacy {
            let made = path.parent().map_or(Ok(()), fs::create_dir_all);
            let left = made.and_then(|()| fs::write(&path, format!("echo {word}\n")));
            attempts.note(&what, left);
        } else if let Some(output) =
            attempts.note(&what, Command::new("/bin/sh").arg(&path).output())
        {
            attempts.carry(&output.stdout);
        }
    }
    attempts.done()
}
