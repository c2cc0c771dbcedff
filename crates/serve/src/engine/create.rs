//! Creation of a cage: checked, remembered, started, remembered again.

use super::check::check;
use super::warm::Adopted;
use super::words::words;
use super::{CageEvent, Engine, Entry, TIMEOUT, blocking, store_error};
use crate::api::types::{CreateCage, OnTimeout};
use crate::clock;
use crate::command_line::PrintedError;
use crate::daemon::Daemon;
use crate::error::{ApiError, ApiResult, Code};
use crate::event_log::Kind;
use crate::keys::{Key, hex, random_hex};
use crate::store::{CageRecord, Creation, E2bState};
use ironcage_cage_daemon::protocol::{Reply, Request};
use ironcage_model::CageId;
use sha2::{Digest, Sha256};
use std::path::Path;
use std::process::Stdio;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::io::AsyncReadExt;
use tokio::process::Command;

/// How long a start may take. A machine without time takes seconds; more is a fault.
const START: Duration = Duration::from_secs(120);
/// Longest message of a failed start that is passed on.
const LONGEST_MESSAGE: u64 = 8 * 1024;

/// A cage to create, and who wants it.
#[derive(Debug, Clone)]
pub(crate) struct Order {
    pub(crate) spec: CreateCage,
    pub(crate) e2b_template: Option<String>,
    pub(crate) e2b: E2bState,
    pub(crate) idempotency_key: Option<String>,
}

/// A start that failed, and whether it is known that no cage came of it.
pub(super) struct Failed {
    pub(super) error: ApiError,
    pub(super) known: bool,
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

impl Engine {
    /// Creates a cage. It is created to its end also when the client goes away meanwhile.
    pub(crate) async fn create(self: &Arc<Self>, key: &Key, order: Order) -> ApiResult<Arc<Entry>> {
        check(&order.spec, key, self.settings.internet)?;
        let (engine, key) = (Arc::clone(self), key.clone());
        let created = tokio::spawn(async move {
            let entry = engine.create_checked(&key, order).await?;
            engine.finish_restore(&entry).await?;
            Ok(entry)
        });
        let created = created
            .await
            .map_err(|error| ApiError::internal("create a cage", &error))?;
        self.metrics.created(created.is_ok());
        created
    }

    async fn create_checked(self: &Arc<Self>, key: &Key, order: Order) -> ApiResult<Arc<Entry>> {
        let Order {
            mut spec,
            e2b_template,
            mut e2b,
            idempotency_key,
        } = order;
        let body = serde_json::to_vec(&(&spec, &e2b_template, &e2b))
            .map_err(|error| ApiError::internal("encode a request", &error))?;
        let request = hex(&Sha256::digest(&body));
        let idempotency = idempotency_key.map(|text| format!("{}/{text}", key.project));
        if let Some(idempotency) = &idempotency
            && let Some(earlier) = self.store.creation(idempotency).map_err(store_error)?
        {
            return self.created_earlier(&earlier, &request);
        }
        let restoring = self.start_from(key, &mut spec, &mut e2b)?;
        let template_policy = self.resolve_template(&mut spec, &key.project)?;
        let (memory, _counted) = self.reserve(key, &mut spec)?;
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
            change: None,
            key: key.id.clone(),
            memory: Some(memory),
            e2b,
            restoring,
            template_policy,
        };
        let creation = idempotency.as_deref().map(|idempotency| {
            let creation = Creation {
                request: request.clone(),
                cage: String::new(),
                time: now,
            };
            (idempotency, creation)
        });
        match self.adopt(&record, creation.as_ref())? {
            Adopted::Yes(entry) => return Ok(entry),
            Adopted::Earlier(earlier) => return self.created_earlier(&earlier, &request),
            Adopted::No => {}
        }
        let _starting = self.starting(&record.name);
        // The same request may have come twice at once.
        let earlier = self.store.put_new(&record, creation.as_ref(), &[]);
        if let Some(earlier) = earlier.map_err(store_error)? {
            return self.created_earlier(&earlier, &request);
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
        let id = self.start_process(record).await?;
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

    /// Starts a cage when it is its turn.
    pub(super) async fn start_process(&self, record: &CageRecord) -> Result<CageId, Failed> {
        let turn = self.starts.acquire().await;
        let _turn = turn.map_err(|error| ApiError::internal("start a cage", &error))?;
        self.execute(record).await
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
            (record.home, record.workspace) = describe(&daemon).await.map_err(without_daemon)?;
            self.note_change(record, id).await?;
        }
        let event = self.event(record, id, Kind::Created);
        self.store
            .put_telling(record, &event.deliveries)
            .map_err(store_error)?;
        let entry = self.entry(record.clone(), id.clone(), daemon);
        self.enter(&entry, event);
        Ok(entry)
    }

    /// Brings a new cage into the table.
    pub(super) fn enter(self: &Arc<Self>, entry: &Arc<Entry>, event: CageEvent) {
        self.insert(entry);
        self.begin_usage(entry);
        self.tell(event);
        self.watch(entry);
    }

    pub(super) fn entry(&self, record: CageRecord, id: CageId, daemon: Arc<Daemon>) -> Arc<Entry> {
        Arc::new(Entry {
            id,
            daemon,
            record: Mutex::new(record),
            watchers: crate::e2b::Watchers::default(),
            contexts: tokio::sync::Mutex::new(()),
            rules: tokio::sync::Mutex::new(()),
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

    /// The code interpreter that the service provides for a cage.
    pub(crate) fn interpreter(&self, record: &CageRecord) -> Option<&Path> {
        super::words::interpreter(&self.settings, record)
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
            .args(words(&self.settings, record, policy.as_deref()))
            .env("IRONCAGE_ERROR_CODES", "json")
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
            let error = start_error(&errors);
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

/// The home and the working directory of a cage, by its daemon.
pub(super) async fn describe(daemon: &Arc<Daemon>) -> ApiResult<(String, String)> {
    match daemon.ask_one(&Request::Info).await? {
        Reply::Info { home, cwd } => Ok((home, cwd)),
        _ => Err(daemon.garbled("it does not describe itself")),
    }
}

/// The error of a new cage whose daemon does not answer: what was asked for leaves it no place, such as
/// the limits of a policy.
fn without_daemon(error: ApiError) -> ApiError {
    match error.code {
        Code::CageUnresponsive => ApiError::new(
            Code::StartFailed,
            format!("cannot start the daemon of the cage: {}", error.message),
        )
        .hint(format!(
            "raise `pids` (at least {}) and `memory` under [limits] of its policy or profile",
            super::check::LEAST_PIDS
        )),
        _ => error,
    }
}

/// What `ironcage run` printed, as an error of the API.
fn start_error(printed: &[u8]) -> ApiError {
    if let Some(error) = PrintedError::find(printed) {
        return error.into_api(Code::StartFailed);
    }
    // It was killed, or what it printed was cut.
    let text = String::from_utf8_lossy(printed);
    ApiError::new(
        Code::StartFailed,
        match text.trim() {
            "" => "the cage did not start",
            text => text,
        },
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_ironcage_says_of_a_failed_start_is_an_error_with_its_hints() {
        let error = start_error(
            b"ironcage: warning: hint: old\n{\"error\":{\"message\":\"cannot start: no\",\"code\":null,\"denied\":false,\"hints\":[\"one\",\"two\"]}}\n",
        );
        assert_eq!(error.code, Code::StartFailed);
        assert_eq!(
            (error.message.as_str(), error.hint.as_deref()),
            ("cannot start: no", Some("one; two"))
        );
        assert_eq!(start_error(b"").message, "the cage did not start");
        assert_eq!(start_error(b"killed\n").message, "killed");
    }

    #[test]
    fn a_new_cage_without_a_daemon_did_not_start_and_other_errors_stay() {
        let unresponsive = without_daemon(ApiError::new(Code::CageUnresponsive, "ended"));
        assert_eq!(unresponsive.code, Code::StartFailed);
        assert!(unresponsive.hint.is_some_and(|hint| hint.contains("pids")));
        let ended = without_daemon(ApiError::new(Code::CageEnded, "ended"));
        assert_eq!((ended.code, ended.hint), (Code::CageEnded, None));
    }
}
