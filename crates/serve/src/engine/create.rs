//! Creation of a cage: checked, remembered, started, remembered again.

use super::{Engine, Entry, TIMEOUT, blocking, store_error};
use crate::api::types::{CreateCage, NetworkMode, OnTimeout, WorkspaceMode};
use crate::clock;
use crate::daemon::Daemon;
use crate::error::{ApiError, ApiResult, Code};
use crate::keys::{Key, Scope, hex, random_hex};
use crate::store::{CageRecord, Creation};
use ironcage_cage_daemon::protocol::{Reply, Request};
use ironcage_model::{CageId, Destination, HostRule};
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::io::AsyncReadExt;
use tokio::process::Command;

/// How long a start may take. A machine without time takes seconds; more is a fault.
const START: Duration = Duration::from_secs(120);
/// Longest message of a failed start that is passed on.
const LONGEST_MESSAGE: u64 = 8 * 1024;
const LONGEST_TIMEOUT: u32 = 31_536_000;
/// Entries and bytes of metadata and of environments.
const MOST_TEXTS: usize = 256;
const LONGEST_TEXTS: usize = 128 * 1024;
const LONGEST_POLICY: usize = 256 * 1024;

/// A cage to create, and who wants it.
#[derive(Debug, Clone)]
pub(crate) struct Order {
    pub(crate) spec: CreateCage,
    pub(crate) e2b_template: Option<String>,
    pub(crate) idempotency_key: Option<String>,
}

pub(super) fn check_timeout(seconds: u32) -> ApiResult<()> {
    match seconds {
        1..=LONGEST_TIMEOUT => Ok(()),
        _ => Err(ApiError::invalid(format!(
            "the timeout is {seconds} s; expected 1 to {LONGEST_TIMEOUT}"
        ))),
    }
}

pub(super) fn check_texts(what: &str, texts: &BTreeMap<String, String>) -> ApiResult<()> {
    let bytes: usize = texts
        .iter()
        .map(|(name, value)| name.len() + value.len())
        .sum();
    if texts.len() > MOST_TEXTS || bytes > LONGEST_TEXTS {
        return Err(ApiError::invalid(format!(
            "{what} has {} entries with {bytes} bytes; at most {MOST_TEXTS} with {LONGEST_TEXTS} are allowed",
            texts.len()
        )));
    }
    Ok(())
}

/// A value that becomes a word of a command line, and must not be taken for an option.
fn check_word(what: &str, word: &str) -> ApiResult<()> {
    if word.is_empty() || word.starts_with('-') || word.contains('\0') || word.len() > 4096 {
        return Err(ApiError::invalid(format!(
            "{what} is not valid: `{}`",
            word.chars().take(100).collect::<String>().escape_debug()
        )));
    }
    Ok(())
}

/// Profiles that every key may name: none of them opens a host, and what their ceilings let a lease
/// open is judged when it is granted.
const PROFILES: [&str; 6] = ["data", "node", "python", "rust", "shell", "strict"];

/// Whether a rule names hosts, not addresses, networks or everything.
fn is_name(host: &str) -> bool {
    if let Ok(rule) = host.parse::<HostRule>()
        && matches!(rule.to, Destination::Any | Destination::Net { .. })
    {
        return false;
    }
    let name = host.rsplit_once(':').map_or(host, |(name, _)| name);
    let is_address = host.contains(['/', '[', ' ']) || host.matches(':').count() > 1;
    let numeric = name
        .bytes()
        .all(|byte| byte.is_ascii_digit() || byte == b'.');
    !is_address && !numeric && name.trim_start_matches('*').len() > 1
}

fn check(spec: &CreateCage, key: &Key, internet: bool) -> ApiResult<()> {
    let needs_host = |what: &str| match key.may(Scope::Host) {
        true => Ok(()),
        false => Err(ApiError::new(
            Code::Forbidden,
            format!("{what} needs a key with the scope `host`"),
        )),
    };
    check_timeout(spec.timeout.unwrap_or(TIMEOUT))?;
    check_texts("metadata", &spec.metadata)?;
    check_texts("env", &spec.env)?;
    if let Some(name) = spec
        .env
        .keys()
        .find(|name| name.is_empty() || name.contains(['=', '\0']))
    {
        return Err(ApiError::invalid(format!(
            "`{}` is not the name of a variable",
            name.escape_debug()
        )));
    }
    if let Some(profile) = &spec.profile
        && !PROFILES.contains(&profile.as_str())
    {
        // It may open the network, or name files of the host.
        let allowed = PROFILES.join(", ");
        needs_host(&format!("a profile other than {allowed}"))?;
    }
    if let Some(policy) = &spec.policy {
        needs_host("a policy")?;
        if policy.len() > LONGEST_POLICY {
            return Err(ApiError::new(
                Code::TooLarge,
                format!("the policy is longer than {LONGEST_POLICY} bytes"),
            ));
        }
        if spec.profile.is_some() {
            return Err(
                ApiError::invalid("`policy` and `profile` exclude each other")
                    .hint("name the profile in the policy: `extends = \"NAME\"`"),
            );
        }
    }
    match (&spec.directory, spec.workspace_mode) {
        (Some(directory), _) => {
            needs_host("a directory of the host")?;
            if !Path::new(directory).is_absolute() {
                return Err(ApiError::invalid(format!(
                    "the directory `{}` is not absolute",
                    directory.escape_debug()
                )));
            }
        }
        (None, None | Some(WorkspaceMode::Scratch)) => {}
        (None, Some(mode)) => {
            return Err(ApiError::invalid(format!(
                "the workspace mode {} needs a directory",
                mode.name()
            )));
        }
    }
    if spec.image.is_some() {
        // One that is missing is pulled, with the credentials of the operator.
        needs_host("an image")?;
    }
    if spec.image.is_some() && spec.template.is_some() {
        return Err(ApiError::invalid(
            "`image` and `template` exclude each other",
        ));
    }
    let words = [
        ("profile", &spec.profile),
        ("image", &spec.image),
        ("template", &spec.template),
    ];
    for (what, word) in words {
        word.as_deref()
            .map_or(Ok(()), |word| check_word(what, word))?;
    }
    if let Some(limits) = &spec.limits {
        for (what, word) in [
            ("memory", &limits.memory),
            ("cpus", &limits.cpus),
            ("disk", &limits.disk),
        ] {
            word.as_deref()
                .map_or(Ok(()), |word| check_word(what, word))?;
        }
    }
    if let Some(network) = &spec.network {
        let mut hosts = network.allow.iter().chain(&network.deny);
        hosts.try_for_each(|host| check_word("host", host))?;
        let wide = network.allow.iter().find(|host| !is_name(host));
        if !internet && (network.mode == Some(NetworkMode::Open) || wide.is_some()) {
            needs_host("the whole network, or a host by its address,")?;
        }
        if network.mode == Some(NetworkMode::Off) && !network.allow.is_empty() {
            return Err(ApiError::invalid(
                "the network is off, and hosts are allowed; one of the two",
            ));
        }
    }
    Ok(())
}

/// A start that failed, and whether it is known that no cage came of it.
struct Failed {
    error: ApiError,
    known: bool,
}

impl From<ApiError> for Failed {
    fn from(error: ApiError) -> Failed {
        Failed { error, known: true }
    }
}

/// The name of a cage that this service is about to start, as long as it lives.
struct Starting<'a> {
    names: &'a Mutex<std::collections::HashSet<String>>,
    name: String,
}

impl Drop for Starting<'_> {
    fn drop(&mut self) {
        let mut names = self.names.lock().unwrap_or_else(PoisonError::into_inner);
        names.remove(&self.name);
    }
}

/// Counts a creation as long as it lives.
struct Creating<'a> {
    table: &'a Mutex<std::collections::HashMap<String, usize>>,
    project: String,
}

impl Drop for Creating<'_> {
    fn drop(&mut self) {
        let mut table = self.table.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = table.get_mut(&self.project) {
            *count = count.saturating_sub(1);
        }
    }
}

impl Engine {
    /// Creates a cage. It is created to its end also when the client goes away meanwhile.
    pub(crate) async fn create(self: &Arc<Self>, key: &Key, order: Order) -> ApiResult<Arc<Entry>> {
        check(&order.spec, key, self.settings.internet)?;
        let (engine, key) = (Arc::clone(self), key.clone());
        let created = tokio::spawn(async move { engine.create_checked(&key, order).await });
        created
            .await
            .map_err(|error| ApiError::internal("create a cage", &error))?
    }

    fn reserve(&self, project: &str) -> ApiResult<Creating<'_>> {
        let mut table = self.creating.lock().unwrap_or_else(PoisonError::into_inner);
        let creating = table.entry(project.to_owned()).or_default();
        let mine = |entry: &Arc<Entry>| {
            let record = entry.lock();
            record.project == project && record.ending.is_none()
        };
        let existing = self.all().iter().filter(|entry| mine(entry)).count();
        if existing + *creating >= self.settings.most_cages {
            return Err(ApiError::new(
                Code::LimitReached,
                format!("project {project} has {existing} cages, as many as it may have"),
            )
            .hint(
                "delete cages that are not needed, or start the service with a higher --max-cages",
            ));
        }
        *creating += 1;
        Ok(Creating {
            table: &self.creating,
            project: project.to_owned(),
        })
    }

    async fn create_checked(self: &Arc<Self>, key: &Key, order: Order) -> ApiResult<Arc<Entry>> {
        let Order {
            spec,
            e2b_template,
            idempotency_key,
        } = order;
        let body = serde_json::to_vec(&(&spec, &e2b_template))
            .map_err(|error| ApiError::internal("encode a request", &error))?;
        let request = hex(&Sha256::digest(&body));
        let idempotency = idempotency_key.map(|text| format!("{}/{text}", key.project));
        if let Some(idempotency) = &idempotency
            && let Some(earlier) = self.store.creation(idempotency).map_err(store_error)?
        {
            return self.created_earlier(&earlier, &request);
        }
        let _counted = self.reserve(&key.project)?;
        let random = |bytes| {
            random_hex(bytes).map_err(|error| ApiError::internal("get random bytes", &error))
        };
        let now = clock::now();
        let mut record = CageRecord {
            name: format!("serve-{}", random(6)?),
            id: None,
            project: key.project.clone(),
            created: now,
            ends: now + u64::from(spec.timeout.unwrap_or(TIMEOUT)) * 1_000_000,
            on_timeout: spec.on_timeout.unwrap_or(OnTimeout::Delete),
            spec,
            paused: false,
            ending: None,
            home: String::new(),
            workspace: String::new(),
            e2b_template,
            token: random(24)?,
        };
        let _starting = self.starting(&record.name);
        match &idempotency {
            Some(idempotency) => {
                let creation = Creation {
                    request: request.clone(),
                    cage: record.name.clone(),
                    time: now,
                };
                let earlier = self.store.put_creation(idempotency, &creation, &record);
                // The same request came twice at once.
                if let Some(earlier) = earlier.map_err(store_error)? {
                    return self.created_earlier(&earlier, &request);
                }
            }
            None => self.store.put(&record).map_err(store_error)?,
        }
        let Failed { error, known } = match self.start(&mut record).await {
            Ok(entry) => return Ok(entry),
            Err(failed) => failed,
        };
        if let Some(idempotency) = &idempotency {
            self.store
                .forget_creation(idempotency)
                .map_err(store_error)?;
        }
        match known {
            true => self.store.remove(&record.name),
            // A cage may still appear under this name: it is looked for, and ended.
            false => {
                (record.id, record.created) = (None, clock::now());
                self.store.put(&record)
            }
        }
        .map_err(store_error)?;
        Err(error)
    }

    fn starting(&self, name: &str) -> Starting<'_> {
        let mut names = self.starting.lock().unwrap_or_else(PoisonError::into_inner);
        names.insert(name.to_owned());
        Starting {
            names: &self.starting,
            name: name.to_owned(),
        }
    }

    fn created_earlier(&self, earlier: &Creation, request: &str) -> ApiResult<Arc<Entry>> {
        if earlier.request != request {
            return Err(ApiError::new(
                Code::IdempotencyMismatch,
                "this idempotency key was used with another request",
            )
            .hint("use a new key for a new request"));
        }
        let found = self
            .all()
            .into_iter()
            .find(|entry| entry.lock().name == earlier.cage);
        found.ok_or_else(|| {
            ApiError::new(
                Code::Conflict,
                "the request with this idempotency key is being carried out, or its cage is gone",
            )
        })
    }

    /// Starts the cage of a record and brings it into the table.
    async fn start(self: &Arc<Self>, record: &mut CageRecord) -> Result<Arc<Entry>, Failed> {
        let id = {
            let _turn = self
                .starts
                .acquire()
                .await
                .map_err(|error| ApiError::internal("start a cage", &error))?;
            self.execute(record).await?
        };
        match self.join(record, &id).await {
            Ok(entry) => Ok(entry),
            Err(error) => {
                // Nobody would find it again.
                let stopped = id.clone();
                let stopped = blocking(move || super::life::stop(&stopped)).await;
                Err(Failed {
                    error,
                    known: stopped.is_ok(),
                })
            }
        }
    }

    /// Brings a cage that runs into the table.
    pub(super) async fn join(
        self: &Arc<Self>,
        record: &mut CageRecord,
        id: &CageId,
    ) -> ApiResult<Arc<Entry>> {
        record.id = Some(id.to_string());
        let daemon = Daemon::new(id.clone(), self.relay(&record.name));
        if record.home.is_empty() {
            match daemon.ask_one(&Request::Info).await? {
                Reply::Info { home, cwd } => (record.home, record.workspace) = (home, cwd),
                _ => return Err(daemon.garbled("it does not describe itself")),
            }
        }
        self.store.put(record).map_err(store_error)?;
        let entry = self.entry(record.clone(), id.clone(), daemon);
        self.insert(&entry);
        self.watch(&entry);
        Ok(entry)
    }

    pub(super) fn entry(&self, record: CageRecord, id: CageId, daemon: Arc<Daemon>) -> Arc<Entry> {
        Arc::new(Entry {
            id,
            daemon,
            record: Mutex::new(record),
            watchers: crate::e2b::Watchers::default(),
            changed: tokio::sync::Notify::new(),
            turn: tokio::sync::Mutex::new(()),
        })
    }

    pub(super) fn relay(&self, name: &str) -> Vec<String> {
        let program = self.settings.inside.to_string_lossy().into_owned();
        [
            program,
            "__daemon".into(),
            "--relay".into(),
            name.to_owned(),
        ]
        .into()
    }

    /// The empty directory that a cage without a directory has for its workspace.
    fn empty(&self) -> PathBuf {
        self.settings.workspaces.join("empty")
    }

    fn arguments(&self, record: &CageRecord, policy: Option<&Path>) -> Vec<OsString> {
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
        let mut flag = |name: &str, value: &dyn AsRef<std::ffi::OsStr>| {
            let mut word = OsString::from(name);
            word.push("=");
            word.push(value);
            words.push(word);
        };
        flag("--read", &self.settings.inside);
        match &spec.directory {
            Some(directory) => {
                flag("--workspace", directory);
                flag("--cwd", directory);
                let mode = spec.workspace_mode.unwrap_or(WorkspaceMode::Cow);
                flag("--workspace-mode", &mode.name());
            }
            None => {
                flag("--workspace", &self.empty());
                flag("--cwd", &self.empty());
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
        words.push("--".into());
        words.push((&self.settings.inside).into());
        words.push("__daemon".into());
        words.push((&record.name).into());
        words
    }

    /// Executes `ironcage run -d`.
    async fn execute(&self, record: &CageRecord) -> Result<CageId, Failed> {
        let failed =
            |what: &'static str| move |error: std::io::Error| ApiError::internal(what, &error);
        // Once it is executed, a cage may come of it.
        let unknown = |what: &'static str| {
            move |error: std::io::Error| Failed {
                error: ApiError::internal(what, &error),
                known: false,
            }
        };
        let policy = match &record.spec.policy {
            Some(text) => {
                let path = self.settings.data.join(format!("{}.toml", record.name));
                tokio::fs::write(&path, text)
                    .await
                    .map_err(failed("write the policy"))?;
                Some(path)
            }
            None => None,
        };
        let mut child = Command::new(&self.settings.ironcage)
            .args(self.arguments(record, policy.as_deref()))
            .current_dir("/")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .map_err(failed("execute ironcage"))?;
        let (mut out, mut errors) = (String::new(), Vec::new());
        let (stdout, stderr) = (child.stdout.take(), child.stderr.take());
        let read = async {
            if let Some(stdout) = stdout {
                stdout.take(4096).read_to_string(&mut out).await?;
            }
            if let Some(stderr) = stderr {
                stderr
                    .take(LONGEST_MESSAGE)
                    .read_to_end(&mut errors)
                    .await?;
            }
            child.wait().await
        };
        let ended = tokio::time::timeout(START, read).await;
        let killed = match ended {
            Ok(_) => Ok(()),
            Err(_) => child.kill().await,
        };
        if let Some(policy) = policy {
            tokio::fs::remove_file(policy)
                .await
                .map_err(unknown("remove the policy"))?;
        }
        killed.map_err(unknown("kill ironcage"))?;
        let status = match ended {
            Ok(status) => status.map_err(unknown("wait for ironcage"))?,
            Err(_) => {
                return Err(Failed {
                    error: ApiError::new(
                        Code::Timeout,
                        format!("the cage did not start within {} s", START.as_secs()),
                    ),
                    known: false,
                });
            }
        };
        if !status.success() {
            let error = start_error(&String::from_utf8_lossy(&errors));
            // One that a signal ended may have left a cage.
            let known = status.code().is_some();
            return Err(Failed { error, known });
        }
        out.trim()
            .parse()
            .map_err(|error: ironcage_model::InvalidCageId| Failed {
                error: ApiError::internal("read the id of the cage", &error),
                known: false,
            })
    }
}

/// What `ironcage run` wrote, as an error of the API.
fn start_error(text: &str) -> ApiError {
    let mut message = Vec::new();
    let mut hints = Vec::new();
    for line in text.lines() {
        match line.trim_start().strip_prefix("hint: ") {
            Some(hint) => hints.push(hint.to_owned()),
            None => message.push(line.strip_prefix("ironcage: ").unwrap_or(line).to_owned()),
        }
    }
    let message = message.join("\n");
    let error = ApiError::new(
        Code::StartFailed,
        match message.is_empty() {
            true => "the cage did not start".to_owned(),
            false => message,
        },
    );
    match hints.is_empty() {
        true => error,
        false => error.hint(hints.join("; ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_is_a_name_or_an_address() {
        for name in [
            "api.example.com",
            "api.example.com:443",
            "*.api.example.com",
            "**.api.example.com",
            "localhost",
        ] {
            assert!(is_name(name), "{name}");
        }
        for other in [
            "*",
            "**",
            "*:443",
            "0.0.0.0/0",
            "10.0.0.1",
            "10.0.0.1:80",
            "::1",
            "[::1]:80",
            "fe80::/10",
            "every host",
        ] {
            assert!(!is_name(other), "{other}");
        }
    }

    fn key(scopes: &[Scope]) -> (tempfile::TempDir, Key) {
        let data = tempfile::tempdir().unwrap();
        let keys = crate::keys::Keys::in_data(data.path());
        let scopes = scopes.iter().copied().collect();
        let (key, _) = keys.create("k", "team", scopes).unwrap();
        (data, key)
    }

    #[test]
    fn profiles_and_images_that_reach_beyond_the_cage_need_the_scope_host() {
        let (_data, plain) = key(&[Scope::Cages]);
        let (_other, host) = key(&[Scope::Cages, Scope::Host]);
        let profile = |name: &str| CreateCage {
            profile: Some(name.to_owned()),
            ..CreateCage::default()
        };
        for name in PROFILES {
            check(&profile(name), &plain, false).unwrap();
        }
        let image = CreateCage {
            image: Some("alpine".to_owned()),
            ..CreateCage::default()
        };
        for wanted in [
            profile("learning"),
            profile("coding-agent"),
            profile("mine"),
            image,
        ] {
            let refused = check(&wanted, &plain, true).unwrap_err();
            assert_eq!(refused.code, Code::Forbidden, "{wanted:?}");
            check(&wanted, &host, false).unwrap();
        }
    }

    #[test]
    fn what_ironcage_says_of_a_failed_start_is_an_error_with_its_hints() {
        let error = start_error("ironcage: cannot start: no\n  hint: one\n  hint: two\n");
        assert_eq!(error.code, Code::StartFailed);
        assert_eq!(
            (error.message.as_str(), error.hint.as_deref()),
            ("cannot start: no", Some("one; two"))
        );
        assert_eq!(start_error("").message, "the cage did not start");
    }
}
