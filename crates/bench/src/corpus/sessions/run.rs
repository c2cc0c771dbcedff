//! Runs a session through `ironcage`, as a user would: the agent is a shell script in a cage, its
//! workspace and the host are directories of canaries, and the change is applied afterwards.

use super::attacks::{CANARIES, SECRET};
use super::{Session, Shape, failed};
use crate::BenchError;
use crate::corpus::trial::RunReport;
use crate::scratch::Scratch;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::Instant;

const LIMITS: [&str; 6] = ["--time", "60s", "--pids", "256", "--memory", "1G"];

/// One policy that the sessions run under.
#[derive(Debug, Clone)]
pub(super) struct SessionArm {
    pub(super) name: &'static str,
    pub(super) about: &'static str,
    flags: Vec<String>,
    /// Whether the workspace is written at once.
    direct: bool,
}

/// What a session did.
#[derive(Debug, Clone, Default)]
pub(super) struct SessionOutcome {
    pub(super) done: bool,
    pub(super) effect: bool,
    pub(super) questions: usize,
    pub(super) excess_seconds: f64,
    pub(super) milliseconds: f64,
}

/// Where sessions run.
#[derive(Debug)]
pub(super) struct SessionStage {
    ironcage: PathBuf,
    scratch: Scratch,
    host: PathBuf,
    runs: usize,
}

impl SessionStage {
    pub(super) fn new(ironcage: &Path) -> Result<Self, BenchError> {
        let scratch = Scratch::new()?;
        let host = scratch.folder("host")?;
        Ok(SessionStage {
            ironcage: ironcage.to_owned(),
            scratch,
            host,
            runs: 0,
        })
    }

    /// The arms: what the tasks need outside the workspace is `data` to read and `www` to write.
    pub(super) fn arms(&self) -> Result<Vec<SessionArm>, BenchError> {
        let host = self.host.display();
        let policy = |name: &str, mark: &str| {
            let path = self.scratch.path(name);
            let text = format!(
                "extends = \"coding-agent\"\n[ceiling]\nshell = \"scoped\"\n[ceiling.{mark}.files]\nread = [\"{host}/data\"]\nwrite = [\"{host}/www\"]\n[questions]\nexpire = \"1s\"\n"
            );
            std::fs::write(&path, text).map_err(BenchError::file("write", &path))?;
            Ok::<_, BenchError>(path.display().to_string())
        };
        let (auto, ask) = (policy("auto.toml", "auto")?, policy("ask.toml", "ask")?);
        let locked = self.scratch.path("locked.toml");
        let expiring = "extends = \"coding-agent-locked\"\n[questions]\nexpire = \"1s\"\n";
        std::fs::write(&locked, expiring).map_err(BenchError::file("write", &locked))?;
        let locked = locked.display().to_string();
        let full = self.scratch.path("full.toml");
        let shown = "extends = \"coding-agent\"\n[files]\nhide-sensitive = false\n";
        std::fs::write(&full, shown).map_err(BenchError::file("write", &full))?;
        let full = full.display().to_string();
        let (all, www, data) = (
            format!("{host}:direct"),
            format!("{host}/www:direct"),
            format!("{host}/data"),
        );
        let arm = |name, about, flags: &[&str]| SessionArm {
            name,
            about,
            flags: flags.iter().map(|&flag| flag.to_owned()).collect(),
            direct: name == "full",
        };
        Ok(vec![
            arm(
                "full",
                "a cage with the whole stage and the workspace writable",
                &["--policy", &full, "--workspace-mode", "direct", "-w", &all],
            ),
            arm(
                "static",
                "coding-agent with what the tasks need, by hand",
                &["--profile", "coding-agent", "-w", &www, "-r", &data],
            ),
            arm(
                "auto",
                "intent leases, ceiling.auto = what the tasks need",
                &["--policy", &auto],
            ),
            arm(
                "ask",
                "intent leases, ceiling.ask = what the tasks need, nobody answers",
                &["--policy", &ask],
            ),
            arm(
                "coding-agent",
                "the profile as it ships",
                &["--profile", "coding-agent"],
            ),
            arm(
                "locked",
                "coding-agent-locked as it ships, but requests expire after a second",
                &["--policy", &locked],
            ),
        ])
    }

    /// Runs one session under one policy, and looks at what is left.
    pub(super) fn run(
        &mut self,
        arm: &SessionArm,
        session: &Session,
    ) -> Result<SessionOutcome, BenchError> {
        self.runs += 1;
        let project = self.scratch.folder(&format!("project-{}", self.runs))?;
        let secret = format!("canary-{}-secret", self.runs);
        let tokens = self.set(session, &project, &secret)?;
        let before = canaries(&self.host)?;
        let agent = self.agent(session);
        let start = Instant::now();
        let mut run = self.command(&project);
        run.args(["run", "-q"]).args(LIMITS).args(&arm.flags);
        let output = outputs(run.args(["--observe", "--", "sh", "-c", &agent]))?;
        let milliseconds = start.elapsed().as_secs_f64() * 1e3;
        let mut printed = String::from_utf8_lossy(&output.stdout).into_owned();
        printed.push_str(&String::from_utf8_lossy(&output.stderr));
        // 125 is ours: the session never ran, and nothing can be said of it.
        if output.status.code() == Some(125) {
            return Err(failed(&format!(
                "{}: {}: {printed}",
                arm.name, session.name
            )));
        }
        if !arm.direct {
            outputs(self.command(&project).args(["apply"]))?;
        }
        let report = outputs(self.command(&project).args(["report", "--json"]))?;
        let report: RunReport =
            serde_json::from_slice(&report.stdout).map_err(|error| failed(&error))?;
        let done = session.work.results.iter().all(|(name, text)| {
            std::fs::read_to_string(self.at(name, &project)).is_ok_and(|found| found == *text)
        });
        let planted = session
            .injection
            .as_ref()
            .and_then(|one| one.plants.as_ref());
        let planted = planted.is_some_and(|(name, text)| {
            std::fs::read_to_string(project.join(name)).is_ok_and(|found| found.contains(text))
        });
        let read = tokens.iter().any(|token| printed.contains(token));
        let changed = canaries(&self.host)? != before;
        Ok(SessionOutcome {
            done,
            effect: read || changed || planted || printed.contains(&secret),
            questions: report.requests.len(),
            excess_seconds: report.authority.excess_seconds,
            milliseconds,
        })
    }

    fn at(&self, name: &str, project: &Path) -> PathBuf {
        match name.strip_prefix("@H/") {
            Some(rest) => self.host.join(rest),
            None => project.join(name),
        }
    }

    /// Makes the files of a session. Returns the tokens of the canaries outside the cage.
    fn set(
        &self,
        session: &Session,
        project: &Path,
        secret: &str,
    ) -> Result<Vec<String>, BenchError> {
        self.scratch.put_aside(&self.host)?;
        let host = self.host.display().to_string();
        let mut files: BTreeMap<PathBuf, String> = BTreeMap::new();
        let mut tokens = Vec::new();
        for (number, (name, text)) in CANARIES.iter().enumerate() {
            let token = format!("canary-{}-{number}", self.runs);
            files.insert(self.host.join(name), text.replace("@T", &token));
            tokens.push(token);
        }
        for place in ["www/robots.txt", "data/README"] {
            files.insert(self.host.join(place), "\n".to_owned());
        }
        for (name, text) in &session.work.files {
            let text = text.replace("@H", &host).replace(SECRET, secret);
            files.insert(self.at(name, project), text);
        }
        for (path, text) in files {
            let parent = path.parent().unwrap_or(&self.host);
            std::fs::create_dir_all(parent).map_err(BenchError::file("make", parent))?;
            std::fs::write(&path, text).map_err(BenchError::file("write", &path))?;
        }
        let mut git = Command::new("git");
        git.args(["init", "-q"]).current_dir(project);
        git.env_clear().envs(self.scratch.environment());
        let made = outputs(&mut git)?;
        match made.status.success() {
            true => Ok(tokens),
            false => Err(failed(&String::from_utf8_lossy(&made.stderr))),
        }
    }

    /// The agent as a script: one call of its shell after the other, whatever came of the one before.
    fn agent(&self, session: &Session) -> String {
        let host = self.host.display().to_string();
        let mut script = String::new();
        if session.shape == Shape::ClaudeCode {
            script.push_str("mkdir -p ~/.claude/shell-snapshots && echo 'shopt -s expand_aliases' > ~/.claude/shell-snapshots/snapshot.sh\n");
        }
        for command in session.commands() {
            script.push_str(&session.shape.call(&command.replace("@H", &host)));
            script.push('\n');
        }
        script.push_str("true\n");
        script
    }

    fn command(&self, project: &Path) -> Command {
        let mut command = Command::new(&self.ironcage);
        command
            .env_clear()
            .envs(self.scratch.environment())
            .current_dir(project)
            .stdin(Stdio::null());
        command
    }
}

fn outputs(command: &mut Command) -> Result<Output, BenchError> {
    command.output().map_err(|source| BenchError::Spawn {
        program: command.get_program().to_string_lossy().into_owned(),
        source,
    })
}

/// What the canaries of the host hold; also what was made beside them.
fn canaries(host: &Path) -> Result<BTreeMap<PathBuf, Vec<u8>>, BenchError> {
    let mut found = BTreeMap::new();
    let mut left = vec![host.join("home"), host.join("etc")];
    while let Some(directory) = left.pop() {
        let entries = match std::fs::read_dir(&directory) {
            Ok(entries) => entries,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => continue,
            Err(error) => return Err(BenchError::file("read", &directory)(error)),
        };
        for entry in entries.flatten() {
            let path = entry.path();
            match path.is_dir() {
                true => left.push(path),
                false => {
                    let content = std::fs::read(&path).unwrap_or_default();
                    found.insert(path, content);
                }
            }
        }
    }
    Ok(found)
}
