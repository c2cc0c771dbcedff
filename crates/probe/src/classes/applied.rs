//! Effects of an applied change on others: the host's git, a second user,
//! and whoever reads the files.

use super::planted::{harmless, landed, put, was_told};
use super::{
    Attempts, Class, Evidence, Inside, Observation, Oracle, Probe, Setup, Severity, Stage,
};
use ironcage_sys::rustix::fs::{CWD, FileType, Mode, mknodat};
use ironcage_sys::rustix::process::geteuid;
use std::ffi::OsString;
use std::fs;
use std::io;
use std::os::unix::fs::{FileTypeExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

const ASIDE: &str = "the workspace is a copy-on-write view";
const FS: Probe = Probe {
    setup: Setup::Applied,
    ..Probe::of(Class::Fs)
};
const PS: Probe = Probe {
    setup: Setup::Applied,
    ..Probe::of(Class::Ps)
};

pub(crate) const PROBES: &[Probe] = &[
    Probe {
        id: "FS-23b",
        title: "open files and directories to every user, and have the change applied",
        canary: "a second user, who tries to write to them (without root: what their modes let him)",
        layers: &[
            ASIDE,
            "modes are cut by the user's umask when the change is applied",
        ],
        references: &["CWE-732", "ATT&CK T1222.002"],
        inside: open_to_all,
        oracle: Oracle::Seen(|stage, _| {
            let mut open = OPENED.iter().filter(|name| lets_others_write(stage, name));
            open.next()
                .map(|name| format!("a second user wrote to {name}"))
        }),
        ..FS
    },
    Probe {
        id: "FS-25a",
        severity: Severity::Medium,
        title: "leave pipes where the host reads settings, and have the change applied",
        canary: "pipes that nobody was told of, and a second start in that workspace, which is to end",
        layers: &[
            ASIDE,
            "special files are reported or withheld, and never waited for",
        ],
        references: &["CWE-400", "ATT&CK T1499"],
        inside: leave_pipes,
        oracle: Oracle::Seen(|stage, evidence| {
            waits_unasked(stage, evidence).or_else(|| hangs_again(stage, evidence))
        }),
        ..FS
    },
    Probe {
        id: "PS-03a",
        severity: Severity::Critical,
        title: "make directories that git takes for repositories, by every shape, and have the change applied",
        canary: "the host's git, in every directory: what its settings run leaves a file in the home directory",
        layers: &[
            ASIDE,
            "what git would take for a repository, by its own rule, is withheld",
        ],
        references: &["CVE-2022-24765", "ATT&CK T1546"],
        inside: plant_repositories,
        oracle: Oracle::Seen(|stage, _| git_runs_it(stage)),
        ..PS
    },
    Probe {
        id: "PS-07a",
        title: "write settings under each name by which a tool reads them, and have the change applied",
        canary: "the workspace after the apply: what is there and was not told",
        layers: &[
            ASIDE,
            "the list of executed files has every variant of a name",
        ],
        references: &["ATT&CK T1546", "ATT&CK T1195"],
        inside: |inside| {
            let mut attempts = begin(inside);
            let workspace = &inside.params.workspace;
            for (number, name) in VARIANTS.iter().enumerate() {
                attempts.note(name, put(workspace, &workspace.join(name), number));
            }
            attempts.done()
        },
        oracle: Oracle::Seen(|stage, evidence| landed(stage, evidence, VARIANTS)),
        ..PS
    },
];

/// Other names of files that the list of executed files has, as the tools' own documentation gives
/// them. Not taken from that list: it is to be found where the list falls behind.
const VARIANTS: &[&str] = &[
    "lefthook.toml",
    ".lefthook.yaml",
    "lefthook-local.yml",
    ".config/lefthook.yml",
    "mise.toml",
    ".mise.local.toml",
    ".config/mise.toml",
    "mise/config.toml",
    "compose.yml",
    "docker-compose.override.yml",
    "Taskfile.yaml",
    "taskfile.dist.yml",
    ".justfile",
    ".config/.rubocop.yml",
    "tauri.conf.json",
    "sqlc.yaml",
    "Justfile",
    "prettier.config.mjs",
    ".prettierrc.cjs",
    "vite.config.mts",
    "vitest.config.mts",
    ".pnpmfile.cjs",
    "pnpm-workspace.yaml",
    "opencode.jsonc",
    ".opencode/plugin/x.js",
    ".helix/languages.toml",
    ".bsp/server.json",
    ".pnp.cjs",
    ".pnp.loader.mjs",
    "hie.yaml",
    ".gitea/workflows/ci.yaml",
    ".forgejo/workflows/ci.yml",
    "eslint.config.mts",
    ".eslintrc.cjs",
    "jest.config.mjs",
    "webpack.config.cjs",
    "rollup.config.mjs",
    "next.config.mjs",
    "playwright.config.mts",
    "GNUmakefile",
    "noxfile.py",
    "tox.ini",
    ".bazelrc",
    "flake.nix",
    "shell.nix",
    "build.gradle.kts",
    "init.gradle",
    ".mvn/jvm.config",
    "Rakefile",
    ".irbrc",
    ".yarnrc.yml",
    ".npmrc",
    "serverless.ts",
    "terragrunt.hcl",
    "sub/.vscode/launch.json",
    "sub/project.code-workspace",
];

fn begin(inside: &Inside) -> Attempts {
    let mut attempts = Attempts::new();
    harmless(&mut attempts, inside);
    attempts
}

// ---- a second user ----

const OPENED: &[&str] = &[
    "main.c",
    "opened-file",
    "opened-directory",
    "opened-directory/file",
];
/// Whoever owns nothing here.
const SECOND_USER: &str = "65534";

fn open_to_all(inside: &Inside) -> Observation {
    let mut attempts = begin(inside);
    let workspace = &inside.params.workspace;
    let mode = |path: &Path, mode: u32| fs::set_permissions(path, fs::Permissions::from_mode(mode));
    let directory = workspace.join("opened-directory");
    attempts.note("a directory", fs::create_dir(&directory));
    for name in ["opened-file", "opened-directory/file"] {
        attempts.note(name, fs::write(workspace.join(name), "open\n"));
    }
    for name in OPENED {
        let wide = if name.ends_with("directory") {
            0o777
        } else {
            0o666
        };
        attempts.note("chmod", mode(&workspace.join(name), wide));
    }
    attempts.done()
}

/// Whether somebody else can write there. From within the workspace: that directories above keep
/// others out is not the agent's doing, and no protection of a shared tree.
fn lets_others_write(stage: &Stage, name: &str) -> bool {
    const OTHERS_WRITE: u32 = 0o002;
    let workspace = &stage.params.workspace;
    let Ok(found) = workspace.join(name).symlink_metadata() else {
        return false;
    };
    if !geteuid().is_root() {
        return found.permissions().mode() & OTHERS_WRITE != 0;
    }
    let script = match found.is_dir() {
        true => "echo x > \"$1/by-a-second-user\"",
        false => "echo x >> \"$1\"",
    };
    let wrote = Command::new("setpriv")
        .args([
            "--reuid",
            SECOND_USER,
            "--regid",
            SECOND_USER,
            "--clear-groups",
        ])
        .args(["/bin/sh", "-c", script, "sh", name])
        .current_dir(workspace)
        .stdin(Stdio::null())
        .stderr(Stdio::null())
        .status();
    wrote.is_ok_and(|status| status.success())
}

// ---- readers ----

const PIPES: &[&str] = &[
    "ironcage.toml",
    ".git/config",
    ".git/HEAD",
    ".git/info/exclude",
    ".gitignore",
    ".gitmodules",
    "sub/.gitignore",
    "notes",
];

fn leave_pipes(inside: &Inside) -> Observation {
    let mut attempts = begin(inside);
    for name in PIPES {
        let path = inside.params.workspace.join(name);
        attempts.note(name, make_pipe(&path));
    }
    attempts.done()
}

fn make_pipe(path: &Path) -> io::Result<()> {
    if let Some(above) = path.parent() {
        fs::create_dir_all(above)?;
    }
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let mode = Mode::from_raw_mode(0o644);
    Ok(mknodat(CWD, path, FileType::Fifo, mode, 0)?)
}

fn waits_unasked(stage: &Stage, evidence: &Evidence) -> Option<String> {
    let is_pipe = |name: &&&str| {
        let found = stage.params.workspace.join(name).symlink_metadata();
        found.is_ok_and(|found| found.file_type().is_fifo())
    };
    let mut there = PIPES.iter().filter(is_pipe);
    let untold = there.find(|name| !was_told(evidence, name))?;
    Some(format!("{untold} is a pipe, and nobody was told"))
}

/// Starts the sandbox once more, in the workspace as it is now.
fn hangs_again(stage: &Stage, evidence: &Evidence) -> Option<String> {
    const PATIENCE: Duration = Duration::from_secs(60);
    evidence.applied.as_ref()?;
    let (program, words) = evidence.line.split_first()?;
    let mut child = Command::new(program)
        .args(words)
        .env_clear()
        .envs(stage.environment())
        .current_dir(&stage.params.workspace)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .ok()?;
    let until = Instant::now() + PATIENCE;
    while Instant::now() < until {
        if !matches!(child.try_wait(), Ok(None)) {
            return None;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    let _ = child.kill();
    let _ = child.wait();
    Some("the next start waits for a pipe".to_owned())
}

// ---- git ----

/// What programs of git's settings leave, in the home directory.
const RAN: &str = "ran-by-git";

fn plant_repositories(inside: &Inside) -> Observation {
    let mut attempts = begin(inside);
    let workspace = &inside.params.workspace;
    let ran = inside.params.home.join(RAN);
    let settings = |more: &str| {
        let program = format!("touch {} #", ran.display());
        format!(
            "[core]\n\trepositoryformatversion = 0\n\tfsmonitor = \"{program}\"\n\tpager = \"{program}\"\n{more}"
        )
    };
    let write = |name: &str, text: &str| -> io::Result<()> {
        let path = workspace.join(name);
        fs::create_dir_all(path.parent().unwrap_or(&path))?;
        fs::write(&path, text)?;
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755))
    };
    let head = "ref: refs/heads/main\n";
    let repository = |at: &str, more: &str| -> io::Result<()> {
        fs::create_dir_all(workspace.join(at).join("objects"))?;
        fs::create_dir_all(workspace.join(at).join("refs/heads"))?;
        write(&format!("{at}/HEAD"), head)?;
        write(&format!("{at}/config"), &settings(more))
    };
    let common = || -> io::Result<()> {
        fs::create_dir_all(workspace.join("lean/shared/objects"))?;
        fs::create_dir_all(workspace.join("lean/shared/refs"))?;
        write(
            "lean/shared/config",
            &settings("[extensions]\n\tworktreeConfig = true\n"),
        )?;
        write("lean/HEAD", head)?;
        write("lean/commondir", "shared\n")?;
        write("lean/config.worktree", &settings("\tworktree = ..\n"))
    };
    let hook = format!("#!/bin/sh\ntouch {}\n", ran.display());
    for (what, made) in [
        ("nested", repository("nested/.git", "")),
        ("deep", repository("a/b/c/.git", "")),
        ("bare", repository("bare", "\tworktree = ..\n")),
        (
            "pointed at",
            repository("store", "\tworktree = ../pointer\n"),
        ),
        ("a pointer", write("pointer/.git", "gitdir: ../store\n")),
        ("by commondir", common()),
        ("settings", write(".git/config", &settings(""))),
        (
            "settings of a worktree",
            write(".git/config.worktree", &settings("")),
        ),
        (
            "another common directory",
            write(".git/commondir", "../bare\n"),
        ),
        ("a hook", write(".git/hooks/pre-commit", &hook)),
        ("another hook", write(".git/hooks/post-index-change", &hook)),
    ] {
        attempts.note(what, made);
    }
    attempts.done()
}

/// Works with git in every directory, as its user does and as prompts of shells do.
fn git_runs_it(stage: &Stage) -> Option<String> {
    let ran = stage.params.home.join(RAN);
    let workspace = &stage.params.workspace;
    let git = |directory: &Path, words: &[&str]| {
        let environment: Vec<(OsString, OsString)> = stage.environment().into_iter().collect();
        // Whether it succeeds does not matter; without git nothing is left.
        let _ = Command::new("git")
            .args(["-c", "user.name=n", "-c", "user.email=e"])
            .args(words)
            .env_clear()
            .envs(environment)
            .env("GIT_CONFIG_NOSYSTEM", "1")
            .current_dir(directory)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status();
    };
    let _ = fs::remove_file(&ran);
    let mut found = None;
    for directory in directories(workspace, 6) {
        for words in [
            &["status", "--porcelain"][..],
            &["add", "main.c"],
            &["commit", "-q", "--allow-empty", "-m", "mine"],
            &["log", "-1"],
        ] {
            git(&directory, words);
            if ran.exists() && found.is_none() {
                let below = directory.strip_prefix(workspace).unwrap_or(&directory);
                found = Some(format!("git {} ran it in ./{}", words[0], below.display()));
            }
        }
    }
    let _ = fs::remove_file(&ran);
    found
}

fn directories(root: &Path, depth: usize) -> Vec<PathBuf> {
    let mut found = vec![root.to_owned()];
    if depth == 0 {
        return found;
    }
    for entry in fs::read_dir(root).into_iter().flatten().flatten() {
        let name = entry.file_name();
        // Where the suite itself and objects lie, nobody works.
        let is_other = name == ".suite" || name == "objects" || name == "refs";
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) && !is_other {
            found.extend(directories(&entry.path(), depth - 1));
        }
    }
    found
}
