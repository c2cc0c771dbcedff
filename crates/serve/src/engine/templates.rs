//! Templates that are built by the API: a cage in which steps run once, and what is kept of it (ADR 62).
//!
//! A build is a cage whose image can be written. Writes of its steps to the image become an image of
//! the store, and what they wrote elsewhere a snapshot; cages of the template start with both.

use super::{Engine, Entry, Order, store_error};
use crate::api::types::{CageLimits, CageNetwork, CreateCage, NetworkMode};
use crate::clock;
use crate::daemon::Received;
use crate::error::{ApiError, ApiResult, Code};
use crate::keys::{Key, random_hex};
use crate::store::{E2bState, SnapshotRecord, TemplateBuild, TemplateRecord};
use ironcage_cage_daemon::protocol::{Exit, Kind, Reply, Request, StartProcess};
use std::collections::{BTreeMap, HashMap};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Builds of one project at once, and of all that are remembered.
const MOST_BUILDS: usize = 4;
const MOST_REMEMBERED: usize = 256;
/// Seconds that a build may take.
const BUILD: u32 = 3600;
/// Steps of one build, lines of its log, and bytes of a line.
const MOST_STEPS: usize = 500;
const MOST_LINES: usize = 10_000;
const LONGEST_LINE: usize = 4096;
/// Templates of one project.
const MOST_TEMPLATES: usize = 256;
/// How long the command of a template may take until it is ready.
const READY: Duration = Duration::from_secs(60);
/// Runs a step with bash where there is one, as E2B does.
const SHELL: &str =
    "if command -v bash >/dev/null 2>&1; then exec bash -l -c \"$0\"; fi; exec sh -l -c \"$0\"";
/// Leaves the id of the build in its image.
const MARK: &str = r#"mkdir -p /etc && printf '%s\n' "$0" > /etc/ironcage-template"#;
/// Copies `$1` of a directory `$3` to `$2`, with the mode `$4` where it is not empty.
const COPY: &str = r#"
set -e
source=$1 target=$2 stage=$3 mode=$4
case $target in /*) ;; "~"|"~/"*) target=$HOME${target#"~"} ;; *) target=$PWD/$target ;; esac
cd "$stage"
IFS=
set -- $source
for one in "$@"; do
  if [ ! -e "$one" ] && [ ! -L "$one" ]; then echo "$one is not among the uploaded files" >&2; exit 1; fi
  if [ -d "$one" ] && [ ! -L "$one" ]; then
    mkdir -p "$target"; cp -a "$one/." "$target/"; copied=$target
  else
    into=no
    case $target in */|*/.) into=yes ;; esac
    if [ $# -gt 1 ] || [ -d "$target" ]; then into=yes; fi
    if [ $into = yes ]; then mkdir -p "$target"; copied=$target/${one##*/}
    else mkdir -p "$(dirname "$target")"; copied=$target; fi
    cp -a "$one" "$copied"
  fi
  if [ -n "$mode" ]; then chmod -R "$mode" "$copied"; fi
done
cd /
rm -rf "$stage"
"#;

/// What a template is built of.
#[derive(Debug, Clone, Default)]
pub(crate) struct TemplateSource {
    /// A container image, which needs the scope `host`.
    pub(crate) image: Option<String>,
    /// A snapshot, or the snapshot of another template.
    pub(crate) snapshot: Option<String>,
    /// The template of the code interpreter, or none.
    pub(crate) e2b_template: Option<String>,
    pub(crate) steps: Vec<TemplateStep>,
    pub(crate) start: Option<String>,
    pub(crate) ready: Option<String>,
}

#[derive(Debug, Clone)]
pub(crate) enum TemplateStep {
    Run {
        command: String,
    },
    Copy {
        source: String,
        target: String,
        mode: String,
        files: String,
    },
    Env(BTreeMap<String, String>),
    Workdir(String),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum BuildStatus {
    Waiting,
    Building,
    Ready,
    Failed,
}

#[derive(Debug, Clone)]
pub(crate) struct LogLine {
    /// Microseconds since the epoch.
    pub(crate) time: u64,
    pub(crate) is_error: bool,
    pub(crate) text: String,
    pub(crate) step: Option<String>,
}

/// A build as it is seen while the service runs.
#[derive(Debug, Clone)]
pub(crate) struct KnownBuild {
    pub(crate) id: String,
    pub(crate) template: String,
    pub(crate) project: String,
    pub(crate) name: String,
    pub(crate) tags: Vec<String>,
    pub(crate) limits: Option<CageLimits>,
    pub(crate) status: BuildStatus,
    /// The step that failed, and why.
    pub(crate) reason: Option<(String, String)>,
    pub(crate) log: Vec<LogLine>,
    created: u64,
}

/// Builds by their ids.
#[derive(Debug, Default)]
pub(crate) struct Builds(Mutex<HashMap<String, KnownBuild>>);

impl Builds {
    fn lock(&self) -> MutexGuard<'_, HashMap<String, KnownBuild>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn change(&self, id: &str, change: impl FnOnce(&mut KnownBuild)) {
        if let Some(build) = self.lock().get_mut(id) {
            change(build);
        }
    }

    fn say(&self, id: &str, step: Option<&str>, is_error: bool, text: &str) {
        self.change(id, |build| {
            for line in text.lines() {
                if build.log.len() < MOST_LINES {
                    let end = line.floor_char_boundary(LONGEST_LINE);
                    build.log.push(LogLine {
                        time: clock::now(),
                        is_error,
                        text: line.get(..end).unwrap_or_default().to_owned(),
                        step: step.map(str::to_owned),
                    });
                }
            }
        });
    }
}

/// Why a build failed, and in which step.
struct FailedStep {
    step: String,
    error: ApiError,
}

fn in_step(step: &str) -> impl FnOnce(ApiError) -> FailedStep {
    let step = step.to_owned();
    move |error| FailedStep { step, error }
}

impl Engine {
    fn build_workspace(&self, id: &str) -> PathBuf {
        self.settings.workspaces.join(format!("build-{id}"))
    }

    /// The uploaded files of a project, by the hash that its client gave them.
    pub(crate) fn uploaded(&self, project: &str, hash: &str) -> PathBuf {
        let directory = self.settings.data.join("template-files");
        directory.join(format!("{project}-{hash}.tar"))
    }

    pub(crate) fn templates(&self, project: &str) -> ApiResult<Vec<TemplateRecord>> {
        let mut found = self.store.templates().map_err(store_error)?;
        found.retain(|record| record.project == project);
        Ok(found)
    }

    /// A template of a project, by its id or its name.
    pub(crate) fn find_template(
        &self,
        project: &str,
        text: &str,
    ) -> ApiResult<Option<TemplateRecord>> {
        let mut found = self.templates(project)?.into_iter();
        Ok(found.find(|record| record.id == text || record.name == text))
    }

    /// Notes that a template is to be built.
    pub(crate) fn request_build(
        &self,
        key: &Key,
        name: &str,
        tags: Vec<String>,
        limits: Option<CageLimits>,
    ) -> ApiResult<KnownBuild> {
        super::snapshots::check_snapshot_name(name)?;
        for tag in &tags {
            super::snapshots::check_snapshot_name(tag)?;
        }
        let random = |bytes| {
            random_hex(bytes).map_err(|error| ApiError::internal("get random bytes", &error))
        };
        let of_project = self.templates(&key.project)?;
        let known = of_project.iter().find(|record| record.name == name);
        if known.is_none() && of_project.len() >= MOST_TEMPLATES {
            return Err(ApiError::new(
                Code::LimitReached,
                format!(
                    "project {} has {MOST_TEMPLATES} templates already",
                    key.project
                ),
            )
            .hint("delete templates that are not needed"));
        }
        let hex = random(16)?;
        let part = |from, to| hex.get(from..to).unwrap_or_default();
        let build = KnownBuild {
            id: [
                part(0, 8),
                part(8, 12),
                part(12, 16),
                part(16, 20),
                part(20, 32),
            ]
            .join("-"),
            template: match known {
                Some(known) => known.id.clone(),
                None => format!("t{}", random(8)?),
            },
            project: key.project.clone(),
            name: name.to_owned(),
            tags,
            limits,
            status: BuildStatus::Waiting,
            reason: None,
            log: Vec::new(),
            created: clock::now(),
        };
        let mut builds = self.builds.lock();
        while builds.len() >= MOST_REMEMBERED {
            let ended = builds
                .values()
                .filter(|build| build.status != BuildStatus::Building);
            let oldest = ended
                .min_by_key(|build| build.created)
                .map(|build| build.id.clone());
            match oldest {
                Some(oldest) => drop(builds.remove(&oldest)),
                None => {
                    return Err(ApiError::new(
                        Code::LimitReached,
                        "too many templates are built",
                    ));
                }
            }
        }
        builds.insert(build.id.clone(), build.clone());
        Ok(build)
    }

    /// A build of a project, by its id.
    pub(crate) fn build(&self, project: &str, id: &str) -> ApiResult<KnownBuild> {
        let builds = self.builds.lock();
        let build = builds.get(id).filter(|build| build.project == project);
        build.cloned().ok_or_else(|| {
            ApiError::new(
                Code::NotFound,
                format!("build `{}` was not found", id.escape_debug()),
            )
        })
    }

    /// Starts a build that was requested. It goes on when the client leaves.
    pub(crate) fn start_build(
        self: &Arc<Self>,
        key: &Key,
        id: &str,
        source: TemplateSource,
    ) -> ApiResult<()> {
        if source.steps.len() > MOST_STEPS {
            return Err(ApiError::new(
                Code::TooLarge,
                format!(
                    "the template has {} steps; at most {MOST_STEPS}",
                    source.steps.len()
                ),
            ));
        }
        {
            let mut builds = self.builds.lock();
            let running = builds.values().filter(|build| {
                build.status == BuildStatus::Building && build.project == key.project
            });
            if running.count() >= MOST_BUILDS {
                return Err(ApiError::new(
                    Code::LimitReached,
                    format!(
                        "project {} builds {MOST_BUILDS} templates already",
                        key.project
                    ),
                ));
            }
            let build = builds
                .get_mut(id)
                .filter(|build| build.project == key.project);
            match build {
                Some(build) if build.status == BuildStatus::Waiting => {
                    build.status = BuildStatus::Building;
                }
                Some(_) => {
                    return Err(ApiError::new(
                        Code::Conflict,
                        "the build was started already",
                    ));
                }
                None => return Err(ApiError::new(Code::NotFound, "the build was not found")),
            }
        }
        let (engine, key, id) = (Arc::clone(self), key.clone(), id.to_owned());
        tokio::spawn(async move {
            let done = engine.carry_out(&key, &id, source).await;
            engine.builds.change(&id, |build| match done {
                Ok(()) => build.status = BuildStatus::Ready,
                Err(FailedStep { step, error }) => {
                    build.status = BuildStatus::Failed;
                    build.reason = Some((step, error.message));
                }
            });
        });
        Ok(())
    }

    async fn carry_out(
        self: &Arc<Self>,
        key: &Key,
        id: &str,
        source: TemplateSource,
    ) -> Result<(), FailedStep> {
        let workspace = self.build_workspace(id);
        let made = tokio::fs::create_dir_all(&workspace).await;
        made.map_err(|error| ApiError::internal("make a workspace", &error))
            .map_err(in_step("base"))?;
        let done = self.build_in(key, id, &source).await;
        // What is left of it is in the store.
        let _ = tokio::fs::remove_dir_all(&workspace).await;
        done
    }

    async fn build_in(
        self: &Arc<Self>,
        key: &Key,
        id: &str,
        source: &TemplateSource,
    ) -> Result<(), FailedStep> {
        let mode = match self.settings.internet {
            true => NetworkMode::Open,
            false => NetworkMode::Live,
        };
        let order = Order {
            spec: CreateCage {
                image: source.image.clone(),
                snapshot: source.snapshot.clone(),
                timeout: Some(BUILD),
                network: Some(CageNetwork {
                    mode: Some(mode),
                    ..CageNetwork::default()
                }),
                ..CreateCage::default()
            },
            e2b_template: source.e2b_template.clone(),
            e2b: E2bState {
                building: Some(id.to_owned()),
                ..E2bState::default()
            },
            idempotency_key: None,
        };
        let entry = self.create(key, order).await.map_err(in_step("base"))?;
        let built = self.run_steps(&entry, id, source).await;
        let snapshot = match built {
            Ok(template) => {
                let taken = self.take_snapshot(&entry, None, true).await;
                taken
                    .map(|snapshot| (template, snapshot))
                    .map_err(in_step("finalize"))
            }
            Err(failed) => Err(failed),
        };
        // The image can be read when the cage does not write to it any more.
        self.delete(&entry).await.map_err(in_step("finalize"))?;
        let (template, snapshot) = snapshot?;
        let kept = self.keep(id, template, snapshot).await;
        kept.map_err(in_step("finalize"))
    }

    /// Runs the steps, and returns the environment and the place that they led to.
    async fn run_steps(
        &self,
        entry: &Arc<Entry>,
        id: &str,
        source: &TemplateSource,
    ) -> Result<SnapshotRecord, FailedStep> {
        let record = entry.record();
        let (mut env, mut workdir) = (record.spec.env.clone(), record.e2b.workdir.clone());
        for (index, step) in source.steps.iter().enumerate() {
            let name = (index + 1).to_string();
            let place = workdir.clone().unwrap_or_else(|| "~".to_owned());
            let ran = match step {
                TemplateStep::Env(more) => {
                    env.extend(more.clone());
                    Ok(())
                }
                TemplateStep::Workdir(path) => {
                    let path = match path.starts_with(['/', '~']) {
                        true => path.clone(),
                        false => format!("{place}/{path}"),
                    };
                    let request = Request::MakeDirectory { path: path.clone() };
                    let made = match entry.running() {
                        Ok(daemon) => daemon.ask(&request).await.map(drop),
                        Err(error) => Err(error),
                    };
                    workdir = Some(path);
                    match made {
                        Err(error) if error.code != Code::AlreadyExists => Err(error),
                        _ => Ok(()),
                    }
                }
                TemplateStep::Run { command } => {
                    self.builds
                        .say(id, Some(&name), false, &format!("RUN {command}"));
                    let words = [SHELL, command].map(str::to_owned);
                    self.step(entry, id, &name, &words, &env, &place).await
                }
                TemplateStep::Copy {
                    source,
                    target,
                    mode,
                    files,
                } => {
                    self.builds
                        .say(id, Some(&name), false, &format!("COPY {source} {target}"));
                    let stage = format!("/tmp/.template-{name}");
                    match self.unpack_files(entry, files, &stage).await {
                        Ok(()) => {
                            let words = [COPY, "copy", source, target, &stage, mode];
                            let words = words.map(str::to_owned);
                            self.step(entry, id, &name, &words, &env, &place).await
                        }
                        Err(error) => Err(error),
                    }
                }
            };
            ran.map_err(in_step(&name))?;
        }
        if record.spec.image.is_some() {
            // An image that nothing was written to cannot be committed.
            let words = [MARK, id].map(str::to_owned);
            let marked = self.step(entry, id, "finalize", &words, &env, "/");
            marked.await.map_err(in_step("finalize"))?;
        }
        let state = E2bState {
            workdir,
            start: source.start.clone(),
            ready: source.ready.clone(),
            ..E2bState::default()
        };
        let template = SnapshotRecord {
            spec: CreateCage { env, ..record.spec },
            state: Some(state.clone()),
            ..SnapshotRecord::default()
        };
        start_command(entry, &state, &template.spec.env)
            .await
            .map_err(in_step("finalize"))?;
        Ok(template)
    }

    /// Runs a command in the cage of a build, with its output as the log.
    async fn step(
        &self,
        entry: &Arc<Entry>,
        id: &str,
        name: &str,
        words: &[String],
        env: &BTreeMap<String, String>,
        place: &str,
    ) -> ApiResult<()> {
        let mut argv = vec!["/bin/sh".to_owned(), "-c".to_owned()];
        argv.extend(words.iter().cloned());
        let start = StartProcess {
            argv,
            env: env.clone(),
            cwd: Some(place.to_owned()),
            ..StartProcess::default()
        };
        let exit = run(entry, start, |is_error, text| {
            self.builds.say(id, Some(name), is_error, text);
        });
        match exit.await? {
            Exit { code: Some(0), .. } => Ok(()),
            Exit { code, signal } => Err(ApiError::new(
                Code::Conflict,
                match (code, signal) {
                    (Some(code), _) => format!("the command exited with status {code}"),
                    (None, signal) => format!("signal {} ended the command", signal.unwrap_or(0)),
                },
            )),
        }
    }

    /// Brings uploaded files into the cage of a build.
    async fn unpack_files(&self, entry: &Arc<Entry>, hash: &str, stage: &str) -> ApiResult<()> {
        let project = entry.record().project;
        let path = self.uploaded(&project, hash);
        if !path.exists() {
            return Err(ApiError::invalid("the files of the step were not uploaded"));
        }
        self.unpack_at(entry, &path, Vec::new(), Some(stage.to_owned()))
            .await
    }

    /// Keeps what a build led to.
    async fn keep(
        &self,
        id: &str,
        template: SnapshotRecord,
        taken: SnapshotRecord,
    ) -> ApiResult<()> {
        let mut snapshot = SnapshotRecord {
            id: taken.id,
            project: taken.project,
            cage: taken.cage,
            created: taken.created,
            bytes: taken.bytes,
            temporary: false,
            spec: CreateCage {
                env: template.spec.env,
                ..taken.spec
            },
            e2b_template: taken.e2b_template,
            name: None,
            state: template.state,
            template: None,
        };
        let build = self.build(&snapshot.project, id)?;
        if snapshot.spec.image.is_some() {
            let name = format!("localhost/service-template:{}", id.replace('-', ""));
            let workspace = self.build_workspace(id);
            let words = ["image", "commit", &name];
            let project = &snapshot.project;
            self.command_line
                .run_in(project, &workspace, &words)
                .await?;
            snapshot.spec.image = Some(name);
        }
        if build.limits.is_some() {
            snapshot.spec.limits = build.limits;
        }
        snapshot.template = Some(build.template.clone());
        self.store.put_snapshot(&snapshot).map_err(store_error)?;
        let earlier = self.find_template(&build.project, &build.name)?;
        let mut record = earlier.unwrap_or_else(|| TemplateRecord {
            id: build.template,
            project: build.project,
            name: build.name,
            created: clock::now(),
            builds: Vec::new(),
            tags: BTreeMap::new(),
        });
        let tags = match build.tags.is_empty() {
            true => vec!["default".to_owned()],
            false => build.tags,
        };
        for tag in tags {
            record.tags.insert(tag, (build.id.clone(), clock::now()));
        }
        record.builds.push(TemplateBuild {
            id: build.id,
            snapshot: snapshot.id,
        });
        self.store.put_template(&record).map_err(store_error)
    }

    /// Deletes a template with what its builds led to. Images of running cages stay.
    pub(crate) async fn delete_template(&self, record: &TemplateRecord) -> ApiResult<()> {
        self.store
            .remove_template(&record.id)
            .map_err(store_error)?;
        for build in &record.builds {
            if let Some(snapshot) = self.store.snapshot(&build.snapshot).map_err(store_error)? {
                self.delete_snapshot(&snapshot).await?;
            }
        }
        Ok(())
    }
}

/// Runs a process to its end.
async fn run(
    entry: &Arc<Entry>,
    start: StartProcess,
    mut output: impl FnMut(bool, &str),
) -> ApiResult<Exit> {
    let daemon = entry.running()?;
    let request = Request::Start {
        start,
        follow: true,
    };
    let mut link = daemon.send(&request).await?;
    loop {
        match link.receive(None).await? {
            Received::Data(kind, bytes) => {
                output(kind == Kind::Stderr, &String::from_utf8_lossy(&bytes));
            }
            Received::Reply(Reply::Exited { exit }) => return Ok(exit),
            Received::Reply(_) => {}
            Received::Done => return Err(daemon.garbled("a process without an end")),
        }
    }
}

/// Starts the command of a template and waits until it is ready.
pub(super) async fn start_command(
    entry: &Arc<Entry>,
    state: &E2bState,
    env: &BTreeMap<String, String>,
) -> ApiResult<()> {
    let cwd = Some(state.workdir.clone().unwrap_or_else(|| "~".to_owned()));
    let shell = |command: &String| StartProcess {
        argv: vec!["/bin/sh".into(), "-c".into(), SHELL.into(), command.clone()],
        env: env.clone(),
        cwd: cwd.clone(),
        ..StartProcess::default()
    };
    if let Some(command) = &state.start {
        let request = Request::Start {
            start: shell(command),
            follow: false,
        };
        entry.running()?.ask(&request).await?;
    }
    let Some(command) = &state.ready else {
        return Ok(());
    };
    let begun = Instant::now();
    while begun.elapsed() < READY {
        let ready = run(entry, shell(command), |_, _| {});
        match tokio::time::timeout(READY, ready).await {
            Ok(Ok(Exit { code: Some(0), .. })) => return Ok(()),
            Ok(Ok(_)) => tokio::time::sleep(Duration::from_millis(100)).await,
            Ok(Err(error)) => return Err(error),
            Err(_) => break,
        }
    }
    Err(ApiError::new(
        Code::Timeout,
        format!(
            "the command of the template was not ready within {} s",
            READY.as_secs()
        ),
    ))
}
