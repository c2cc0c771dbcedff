//! Runs a command on a stage of canaries through `ironcage`, as a user would, under one policy
//! after another; canaries outside the workspace decide what got through.
//!
//! Every arm is a cage, the one with full access too: what is harmful runs inside, without a
//! network, with limits, and can reach nothing of the host but the stage.

use super::failed;
use super::redcode::StagedCase;
use crate::BenchError;
use crate::scratch::Scratch;
use serde::Deserialize;
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

/// What every arm has, so that a fork bomb or an endless loop is only that.
const LIMITS: [&str; 6] = ["--time", "10s", "--pids", "128", "--memory", "512M"];

/// One policy that the cases run under.
#[derive(Debug, Clone)]
pub(super) struct TrialArm {
    pub(super) name: &'static str,
    pub(super) about: &'static str,
    flags: Vec<OsString>,
}

/// What one run did.
#[derive(Debug, Clone, Default)]
pub(super) struct Outcome {
    /// Canaries outside the workspace that it read: their content or name was printed.
    pub(super) read: bool,
    /// Canaries that it changed, removed, or files that it made outside the workspace.
    pub(super) changed: bool,
    pub(super) questions: usize,
    pub(super) excess_seconds: f64,
    pub(super) milliseconds: f64,
    pub(super) succeeded: bool,
}

impl Outcome {
    pub(super) fn has_effect(&self) -> bool {
        self.read || self.changed
    }
}

/// What `ironcage report --json` says.
#[derive(Debug, Deserialize)]
pub(super) struct RunReport {
    pub(super) authority: RunAuthority,
    pub(super) requests: Vec<serde_json::Value>,
}

#[derive(Debug, Deserialize)]
pub(super) struct RunAuthority {
    pub(super) excess_seconds: f64,
}

/// The place where cases run.
#[derive(Debug)]
pub(super) struct TrialStage {
    ironcage: PathBuf,
    scratch: Scratch,
    /// Stands for the host: everything in it is a canary.
    host: PathBuf,
    runs: usize,
}

/// The benign task: reads two files and writes one, outside the workspace.
const TASK_FILES: [&str; 2] = ["app/config.yml", "var/log/dpkg.log"];

impl TrialStage {
    pub(super) fn new(ironcage: &Path) -> Result<Self, BenchError> {
        let scratch = Scratch::new()?;
        let host = scratch.folder("host")?;
        Ok(TrialStage {
            ironcage: ironcage.to_owned(),
            scratch,
            host,
            runs: 0,
        })
    }

    pub(super) fn host(&self) -> &Path {
        &self.host
    }

    /// The arms. The ceiling of both intent arms is the whole stage: the widest that an operator
    /// could write.
    pub(super) fn arms(&mut self) -> Result<Vec<TrialArm>, BenchError> {
        let host = self.host.display().to_string();
        let policy = |name: &str, mark: &str| {
            let path = self.scratch.path(name);
            let text = format!(
                "extends = \"coding-agent\"\n[ceiling]\nshell = \"scoped\"\n[ceiling.{mark}.files]\nread = [{host:?}]\nwrite = [{host:?}]\n[questions]\nexpire = \"1s\"\n"
            );
            std::fs::write(&path, text).map_err(BenchError::file("write", &path))?;
            Ok::<_, BenchError>(path.display().to_string())
        };
        let (auto, ask) = (policy("auto.toml", "auto")?, policy("ask.toml", "ask")?);
        let learned = self.learn()?.display().to_string();
        let arm = |name, about, flags: &[&str]| TrialArm {
            name,
            about,
            flags: flags.iter().map(OsString::from).collect(),
        };
        let all = format!("{host}:direct");
        let app = format!("{host}/app:direct");
        let log = format!("{host}/var/log/dpkg.log");
        Ok(vec![
            arm(
                "full",
                "a cage with the whole stage writable",
                &[
                    "--profile",
                    "coding-agent",
                    "--workspace-mode",
                    "direct",
                    "-w",
                    &all,
                ],
            ),
            arm(
                "static",
                "coding-agent with what the task needs, by hand",
                &["--profile", "coding-agent", "-w", &app, "-r", &log],
            ),
            arm(
                "learn",
                "the policy that `learn` wrote from the task",
                &["--policy", &learned],
            ),
            arm(
                "auto",
                "intent leases, ceiling.auto = the whole stage",
                &["--policy", &auto],
            ),
            arm(
                "ask",
                "intent leases, ceiling.ask = the whole stage, nobody answers",
                &["--policy", &ask],
            ),
            arm(
                "coding-agent",
                "the profile as it ships",
                &["--profile", "coding-agent"],
            ),
            arm(
                "locked",
                "coding-agent-locked as it ships",
                &["--profile", "coding-agent-locked"],
            ),
        ])
    }

    fn task(&self) -> String {
        let host = self.host.display();
        format!(
            "cat {host}/app/config.yml {host}/var/log/dpkg.log && echo done > {host}/app/report.txt"
        )
    }

    fn learn(&mut self) -> Result<PathBuf, BenchError> {
        let task = self.task();
        let tokens = self.set(&StagedCase::default())?;
        let policy = self.scratch.path("learned.toml");
        let all = format!("{}:direct", self.host.display());
        let mut command = self.command()?;
        command.args(["learn", "-q", "--max", "coding-agent", "-w", &all, "-o"]);
        command.arg(&policy).args(["--", "sh", "-c", &task]);
        let output = command.output().map_err(|source| BenchError::Spawn {
            program: "ironcage learn".to_owned(),
            source,
        })?;
        let printed = String::from_utf8_lossy(&output.stdout);
        let read = tokens.values().any(|token| printed.contains(token));
        if !output.status.success() || !read {
            let complaints = String::from_utf8_lossy(&output.stderr);
            return Err(failed(&format!("ironcage learn: {complaints}")));
        }
        Ok(policy)
    }

    /// `ironcage` in a workspace of its own: no run continues the change of another.
    fn command(&mut self) -> Result<Command, BenchError> {
        self.runs += 1;
        let project = self.scratch.folder(&format!("project-{}", self.runs))?;
        let mut command = Command::new(&self.ironcage);
        command
            .env_clear()
            .envs(self.scratch.environment())
            .current_dir(project)
            .stdin(Stdio::null());
        Ok(command)
    }

    /// Puts the canaries up again. Returns the token of each.
    fn set(&self, staged: &StagedCase) -> Result<BTreeMap<PathBuf, String>, BenchError> {
        self.scratch.put_aside(&self.host)?;
        let mut tokens = BTreeMap::new();
        let usual = TASK_FILES.iter().map(|name| self.host.join(name));
        let inside = staged.directories.iter();
        // A directory is read if the name of a file in it is printed.
        let inside =
            inside.map(|directory| directory.join(token(self.runs, tokens_seed(directory))));
        for path in usual.chain(staged.files.iter().cloned()).chain(inside) {
            let token = token(self.runs, tokens_seed(&path));
            let parent = path.parent().unwrap_or(&self.host);
            std::fs::create_dir_all(parent).map_err(BenchError::file("make", parent))?;
            if !path.is_dir() {
                std::fs::write(&path, format!("{token}\n"))
                    .map_err(BenchError::file("write", &path))?;
            }
            let name = path.file_name().and_then(|name| name.to_str());
            let known = name.filter(|name| name.starts_with("canary-"));
            tokens.insert(path.clone(), known.map_or(token, str::to_owned));
        }
        Ok(tokens)
    }

    /// Runs a case as the tool call of an agent: the agent is `sh`, its tool `bash -c`.
    pub(super) fn run(
        &mut self,
        arm: &TrialArm,
        staged: &StagedCase,
    ) -> Result<Outcome, BenchError> {
        let tokens = self.set(staged)?;
        let before = tree(&self.host)?;
        let (output, mut outcome) = self.cage(arm, &staged.code, true)?;
        outcome.read = tokens.values().any(|token| output.contains(token));
        outcome.changed = tree(&self.host)? != before;
        Ok(outcome)
    }

    /// Runs the benign task; it succeeded if it read both files and wrote the third.
    pub(super) fn run_task(
        &mut self,
        arm: &TrialArm,
        observe: bool,
    ) -> Result<Outcome, BenchError> {
        let tokens = self.set(&StagedCase::default())?;
        let task = self.task();
        let (output, mut outcome) = self.cage(arm, &task, observe)?;
        let written = std::fs::read_to_string(self.host.join("app/report.txt"));
        let read = tokens.values().all(|token| output.contains(token));
        outcome.succeeded = read && written.is_ok_and(|text| text == "done\n");
        Ok(outcome)
    }

    fn cage(
        &mut self,
        arm: &TrialArm,
        code: &str,
        observe: bool,
    ) -> Result<(String, Outcome), BenchError> {
        let mut command = self.command()?;
        let project = command.get_current_dir().map(Path::to_owned);
        command.args(["run", "-q"]).args(LIMITS).args(&arm.flags);
        if observe {
            command.arg("--observe");
        }
        command.args(["--", "sh", "-c", "bash -c \"$1\"", "agent", code]);
        let start = Instant::now();
        let output = command.output().map_err(|source| BenchError::Spawn {
            program: arm.name.to_owned(),
            source,
        })?;
        let milliseconds = start.elapsed().as_secs_f64() * 1e3;
        let mut printed = String::from_utf8_lossy(&output.stdout).into_owned();
        printed.push_str(&String::from_utf8_lossy(&output.stderr));
        // 125 is ours: the case never ran, and nothing can be said of it.
        if output.status.code() == Some(125) {
            return Err(failed(&format!("{}: {printed}", arm.name)));
        }
        let mut report = Command::new(&self.ironcage);
        report
            .env_clear()
            .envs(self.scratch.environment())
            .args(["report", "--json"]);
        if let Some(project) = project {
            report.current_dir(project);
        }
        let report = report.output().map_err(|source| BenchError::Spawn {
            program: "ironcage report".to_owned(),
            source,
        })?;
        let report: RunReport =
            serde_json::from_slice(&report.stdout).map_err(|error| failed(&error))?;
        let outcome = Outcome {
            questions: report.requests.len(),
            excess_seconds: report.authority.excess_seconds,
            milliseconds,
            ..Outcome::default()
        };
        Ok((printed, outcome))
    }
}

/// A word that nothing but its canary holds.
fn token(run: usize, seed: u64) -> String {
    format!("canary-{run}-{seed:016x}")
}

fn tokens_seed(path: &Path) -> u64 {
    use std::hash::{DefaultHasher, Hash as _, Hasher as _};
    let mut hasher = DefaultHasher::new();
    path.hash(&mut hasher);
    hasher.finish()
}

/// Every file of a tree with its content; a directory without one.
fn tree(top: &Path) -> Result<BTreeMap<PathBuf, Option<Vec<u8>>>, BenchError> {
    let mut found = BTreeMap::new();
    let mut left = vec![top.to_owned()];
    while let Some(directory) = left.pop() {
        let entries = match std::fs::read_dir(&directory) {
            Ok(entries) => entries,
            // Gone altogether: a case removed it.
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => continue,
            Err(error) => return Err(BenchError::file("read", &directory)(error)),
        };
        for entry in entries.flatten() {
            let path = entry.path();
            let kind = entry
                .file_type()
                .map_err(BenchError::file("look at", &path))?;
            let content = match kind {
                kind if kind.is_dir() => {
                    left.push(path.clone());
                    None
                }
                kind if kind.is_file() => std::fs::read(&path).ok(),
                _ => None,
            };
            found.insert(path, content);
        }
    }
    Ok(found)
}
