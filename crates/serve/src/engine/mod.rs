//! The cages of the service: one table, rebuilt from the store and the runtime directory.
//!
//! Every cage has its own supervisor, which outlives the service. The engine starts cages by
//! executing `ironcage run`, and is a client of their control sockets. Both APIs call it.

mod changes;
mod check;
mod create;
mod life;
mod packing;
mod quota;
mod recover;
mod snapshots;
mod template;
mod templates;
mod usage;
mod warm;
mod warm_error;
mod words;

pub(crate) use changes::ListedChange;
pub(crate) use check::is_open_to_all;
pub(crate) use create::Order;
pub(crate) use snapshots::MOST_FORKS;
pub(crate) use templates::{BuildStatus, KnownBuild, TemplateSource, TemplateStep};
pub(crate) use warm::check_warm;

use crate::api::types::{self, CageState, OnTimeout};
use crate::clock;
use crate::command_line::CommandLine;
use crate::daemon::Daemon;
use crate::e2b::Watchers;
use crate::error::{ApiError, ApiResult, Code};
use crate::event_log::{EventLog, Kind, ProjectEvent};
use crate::keys::{Key, Keys, Scope};
use crate::limits::Limits;
use crate::metrics::Metrics;
use crate::projects::Projects;
use crate::store::{CageRecord, Delivery, E2bState, Store, StoreError};
use crate::traffic::Traffics;
use crate::usage::UsageBook;
use crate::webhooks::{Deliveries, Webhooks};
use ironcage_client::Cages;
use ironcage_command::serve::WarmCages;
use ironcage_model::CageId;
use std::collections::{HashMap, HashSet};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use tokio::sync::{Notify, Semaphore};

/// Cages that start at the same time: each is a process that works for some milliseconds.
const STARTS: usize = 16;

/// How the service is run.
#[derive(Debug, Clone)]
pub(crate) struct Settings {
    /// Where it keeps its own files.
    pub(crate) data: PathBuf,
    /// The program that starts cages.
    pub(crate) ironcage: PathBuf,
    /// The program that is put into cages.
    pub(crate) inside: PathBuf,
    /// Where cages without a directory have their empty workspace.
    pub(crate) workspaces: PathBuf,
    /// The user's home directory, and Ironcage's configuration there.
    pub(crate) home: PathBuf,
    pub(crate) config: PathBuf,
    /// Whether sandboxes of E2B's API may have the whole network.
    pub(crate) internet: bool,
    /// The Python environment of E2B's code interpreter, where the service provides one.
    pub(crate) code_interpreter: Option<PathBuf>,
    /// Cages of one project at once.
    pub(crate) most_cages: usize,
    /// Requests of one key in a second.
    pub(crate) rate: u32,
    /// Cages that are started before they are created.
    pub(crate) warm: Vec<WarmCages>,
}

#[derive(Debug)]
pub(crate) struct Engine {
    pub(crate) settings: Settings,
    pub(crate) keys: Keys,
    pub(crate) command_line: CommandLine,
    pub(crate) events: EventLog,
    pub(crate) limits: Limits,
    pub(crate) metrics: Metrics,
    pub(crate) projects: Projects,
    pub(crate) webhooks: Webhooks,
    pub(crate) deliveries: Deliveries,
    pub(crate) traffics: Traffics,
    pub(crate) usage: UsageBook,
    pub(crate) store: Store,
    cages: RwLock<HashMap<String, Arc<Entry>>>,
    /// Cages that are being created.
    creating: quota::Creations,
    /// Snapshots that are being written.
    packings: packing::Packings,
    starts: Semaphore,
    /// Names of cages whose start this service has in hand.
    starting: Mutex<HashSet<String>>,
    warm: warm::WarmPools,
    /// Builds of templates that this service knows.
    pub(crate) builds: templates::Builds,
    /// Places for files of templates.
    pub(crate) uploads: crate::e2b::Uploads,
}

/// A cage of the table.
#[derive(Debug)]
pub(crate) struct Entry {
    pub(crate) id: CageId,
    pub(crate) daemon: Arc<Daemon>,
    record: Mutex<CageRecord>,
    /// Watches of E2B's API whose events are fetched.
    pub(crate) watchers: Watchers,
    /// One start of a code context of E2B's API at a time.
    pub(crate) contexts: tokio::sync::Mutex<()>,
    /// One change of its network rules by E2B's API at a time.
    pub(crate) rules: tokio::sync::Mutex<()>,
    /// Told when the record changes.
    pub(crate) changed: Notify,
    /// One change of state at a time.
    pub(crate) turn: tokio::sync::Mutex<()>,
}

impl Entry {
    fn lock(&self) -> MutexGuard<'_, CageRecord> {
        self.record.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn record(&self) -> CageRecord {
        self.lock().clone()
    }

    pub(crate) fn state(&self) -> CageState {
        state_of(&self.lock())
    }

    /// The daemon of a cage that can answer.
    pub(crate) fn running(&self) -> ApiResult<&Arc<Daemon>> {
        match self.state() {
            CageState::Running => Ok(&self.daemon),
            CageState::Paused => Err(ApiError::new(
                Code::CagePaused,
                format!("cage {} is paused", self.id),
            )
            .hint(format!("POST /v1/cages/{}/resume", self.id))),
            CageState::Ended => {
                let record = self.record();
                let how = record
                    .ending
                    .map_or_else(String::new, |(_, how)| format!(": {how}"));
                Err(ApiError::new(
                    Code::CageEnded,
                    format!("cage {} has ended{how}", self.id),
                ))
            }
        }
    }

    /// The cage as the native API shows it.
    pub(crate) fn shown(&self) -> types::Cage {
        let record = self.record();
        types::Cage {
            id: self.id.to_string(),
            state: state_of(&record),
            profile: record.spec.profile,
            directory: record.spec.directory,
            image: record.spec.image,
            template: record.spec.template,
            metadata: record.spec.metadata,
            created_at: clock::rfc3339(record.created),
            ends_at: clock::rfc3339(record.ends),
            on_timeout: record.on_timeout,
            ending: record.ending.map(|(_, how)| how),
            home: record.home,
            workspace: record.workspace,
            change: record.change,
        }
    }
}

/// Something that became of a cage, and what webhooks are told about it.
#[derive(Debug)]
struct CageEvent {
    project: String,
    event: ProjectEvent,
    deliveries: Vec<Delivery>,
}

fn state_of(record: &CageRecord) -> CageState {
    match (&record.ending, record.paused) {
        (Some(_), _) => CageState::Ended,
        (None, true) => CageState::Paused,
        (None, false) => CageState::Running,
    }
}

pub(crate) fn store_error(error: StoreError) -> ApiError {
    ApiError::internal("use the store", &error)
}

/// Runs what waits for a supervisor or a disk on a thread of its own.
pub(crate) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> ApiResult<T> + Send + 'static,
) -> ApiResult<T> {
    let done = tokio::task::spawn_blocking(work).await;
    done.map_err(|error| ApiError::internal("finish a task", &error))?
}

impl Engine {
    /// Opens the store. [`Engine::recover`] finds the cages.
    pub(crate) fn open(settings: Settings) -> Result<Arc<Engine>, StoreError> {
        Ok(Arc::new(Engine {
            store: Store::open(&settings.data.join("serve.redb"))?,
            keys: Keys::in_data(&settings.data),
            events: EventLog::new(clock::now()),
            metrics: Metrics::default(),
            projects: Projects::in_data(&settings.data),
            webhooks: Webhooks::in_data(&settings.data),
            deliveries: Deliveries::default(),
            traffics: Traffics::default(),
            usage: UsageBook::default(),
            limits: Limits::new(settings.rate),
            command_line: CommandLine::new(settings.ironcage.clone()),
            warm: warm::WarmPools::new(&settings),
            builds: templates::Builds::default(),
            uploads: crate::e2b::Uploads::default(),
            settings,
            cages: RwLock::default(),
            creating: quota::Creations::default(),
            packings: packing::Packings::default(),
            starts: Semaphore::new(STARTS),
            starting: Mutex::default(),
        }))
    }

    fn all(&self) -> Vec<Arc<Entry>> {
        let cages = self.cages.read().unwrap_or_else(PoisonError::into_inner);
        cages.values().cloned().collect()
    }

    fn insert(&self, entry: &Arc<Entry>) {
        let mut cages = self.cages.write().unwrap_or_else(PoisonError::into_inner);
        cages.insert(entry.id.to_string(), Arc::clone(entry));
    }

    fn take(&self, id: &CageId) {
        let mut cages = self.cages.write().unwrap_or_else(PoisonError::into_inner);
        cages.remove(id.as_str());
    }

    /// Whether a key sees a cage.
    fn sees(key: &Key, entry: &Entry) -> bool {
        key.may(Scope::Admin) || entry.lock().project == key.project
    }

    /// A cage that a key sees. One of another project is as absent as one that never was.
    pub(crate) fn cage(&self, key: &Key, id: &str) -> ApiResult<Arc<Entry>> {
        let found = self.any_cage(id);
        found
            .filter(|entry| Self::sees(key, entry))
            .ok_or_else(|| ApiError::no_cage(id))
    }

    /// A cage, whoever asks: what its token then decides.
    pub(crate) fn any_cage(&self, id: &str) -> Option<Arc<Entry>> {
        let cages = self.cages.read().unwrap_or_else(PoisonError::into_inner);
        cages.get(id).cloned()
    }

    /// The cages that a key sees, the newest first.
    pub(crate) fn list(&self, key: &Key) -> Vec<Arc<Entry>> {
        let mut seen = self.all();
        seen.retain(|entry| Self::sees(key, entry));
        seen.sort_by_key(|entry| {
            let record = entry.lock();
            (std::cmp::Reverse(record.created), record.name.clone())
        });
        seen
    }

    /// Changes a record, in the store first.
    fn change<T>(&self, entry: &Entry, change: impl FnOnce(&mut CageRecord) -> T) -> ApiResult<T> {
        let mut record = entry.lock();
        let mut changed = record.clone();
        let result = change(&mut changed);
        // What is only noted for after a kill is nobody's event.
        let mut told = changed.clone();
        told.e2b.rules_intent.clone_from(&record.e2b.rules_intent);
        let kind = match (state_of(&record), state_of(&changed)) {
            _ if *record == told => None,
            (before, after) if before == after => Some(Kind::Updated),
            (_, CageState::Running) => Some(Kind::Resumed),
            (_, CageState::Paused) => Some(Kind::Paused),
            (_, CageState::Ended) => Some(Kind::Ended),
        };
        let event = kind.map(|kind| self.event(&changed, &entry.id, kind));
        let deliveries = event.as_ref().map_or(&[][..], |event| &event.deliveries);
        self.store
            .put_telling(&changed, deliveries)
            .map_err(store_error)?;
        *record = changed;
        drop(record);
        if let Some(event) = event {
            self.tell(event);
        }
        entry.changed.notify_waiters();
        Ok(result)
    }

    /// What became of a cage. What webhooks are told goes into the store together with the record:
    /// [`Engine::tell`] follows.
    fn event(&self, record: &CageRecord, cage: &CageId, kind: Kind) -> CageEvent {
        let event = ProjectEvent {
            kind,
            cage: cage.to_string(),
            state: state_of(record),
            time: clock::rfc3339(clock::now()),
            ending: record.ending.as_ref().map(|(_, how)| how.clone()),
        };
        CageEvent {
            project: record.project.clone(),
            deliveries: self.webhooks.deliveries(record, &event),
            event,
        }
    }

    /// Tells those who follow the events of its project what became of a cage.
    fn tell(&self, event: CageEvent) {
        self.events.tell(&event.project, event.event);
        if !event.deliveries.is_empty() {
            self.deliveries.wake();
        }
    }

    /// Changes when a cage ends, and its metadata.
    pub(crate) fn update(&self, entry: &Entry, update: types::UpdateCage) -> ApiResult<()> {
        if let Some(timeout) = update.timeout {
            check::check_timeout(timeout)?;
            self.check_lifetime(entry, timeout)?;
        }
        if let Some(metadata) = &update.metadata {
            check::check_texts("metadata", metadata)?;
        }
        if entry.state() == CageState::Ended {
            entry.running()?;
        }
        self.change(entry, |record| {
            if let Some(timeout) = update.timeout {
                record.ends = clock::now() + u64::from(timeout) * 1_000_000;
            }
            record.on_timeout = update.on_timeout.unwrap_or(record.on_timeout);
            if let Some(metadata) = update.metadata {
                record.spec.metadata = metadata;
            }
        })
    }

    /// Changes what E2B's API keeps of a cage.
    pub(crate) fn note_e2b(
        &self,
        entry: &Entry,
        change: impl FnOnce(&mut E2bState),
    ) -> ApiResult<()> {
        self.change(entry, |record| change(&mut record.e2b))
    }

    /// Moves the end of a cage back, never forward, and not beyond what its project may have.
    pub(crate) fn prolong(&self, entry: &Entry, seconds: u32) -> ApiResult<()> {
        check::check_timeout(seconds)?;
        let ends = clock::now() + u64::from(seconds) * 1_000_000;
        let ends = ends.min(self.latest_end(entry, seconds)?);
        self.change(entry, |record| record.ends = record.ends.max(ends))
    }
}

/// What a cage says of itself as text.
pub(crate) fn ending_text(cages: &Cages, id: &CageId) -> String {
    match cages.ending(id) {
        Ok(Some(ending)) => match ending {
            ironcage_model::Ending::Exited { code } => {
                format!("its daemon exited with status {code}")
            }
            ironcage_model::Ending::Signalled { signal } => format!("ended by signal {signal}"),
            ironcage_model::Ending::Limit { hit } => {
                format!("ended by the limit {}", hit.limit.name())
            }
            ironcage_model::Ending::Stopped => "stopped".to_owned(),
            other => format!("ended with status {}", other.exit_code()),
        },
        Ok(None) => "killed together with its supervisor".to_owned(),
        Err(error) => format!("ended; its audit log cannot be read: {error}"),
    }
}

/// The time that a cage has where nothing is said.
pub(crate) const TIMEOUT: u32 = 300;

impl Entry {
    /// Closes what leads into the cage.
    fn let_go(&self) {
        self.watchers.clear();
        self.daemon.drop_idle(true);
    }

    /// Whether it may reach more than the profiles that every key may name: by a policy or a profile
    /// that was named, or by its template.
    pub(crate) fn has_own_policy(&self) -> bool {
        let record = self.lock();
        let profile = record.spec.profile.as_deref();
        record.template_policy
            || record.spec.policy.is_some()
            || !profile.is_none_or(check::opens_no_host)
    }

    pub(crate) fn on_timeout(&self) -> OnTimeout {
        self.lock().on_timeout
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::Settings;

    pub(crate) use super::life::tests::record;

    /// A service that executes `ironcage` in this directory, and keeps its files there.
    pub(crate) fn settings(data: &std::path::Path) -> Settings {
        Settings {
            data: data.to_owned(),
            ironcage: data.join("ironcage"),
            inside: data.join("inside"),
            workspaces: data.to_owned(),
            home: data.to_owned(),
            config: data.to_owned(),
            internet: false,
            code_interpreter: None,
            most_cages: 10,
            rate: 10,
            warm: Vec::new(),
        }
    }
}
