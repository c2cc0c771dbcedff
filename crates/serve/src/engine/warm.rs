//! Cages that are started before anybody asks for them (ADR 44).
//!
//! A warm cage is what `ironcage run -d` makes of the words that a request leads to, executed before
//! the request came. A request with other words starts a cage of its own, so nothing about a cage
//! changes when somebody gets it: its project, its end and its environment are kept by the service.

use super::warm_error::WarmError;
use super::words::words;
use super::{Engine, Settings, blocking, life, store_error};
use crate::api::types::{CageLimits, CreateCage};
use crate::clock;
use crate::daemon::Daemon;
use crate::error::{ApiError, ApiResult};
use crate::event_log::Kind;
use crate::keys::random_hex;
use crate::store::{CageRecord, Creation};
use futures_util::future::join_all;
use ironcage_client::{Cages, ClientError};
use ironcage_command::serve::WarmCages;
use ironcage_model::{CageId, bytes_as_written, in_full};
use ironcage_policy::{FILE_NAME, PolicyError, Resolved, Sources, resolve};
use std::collections::{HashSet, VecDeque};
use std::ffi::OsString;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::Notify;

/// The age at which a warm cage is replaced: a start reads more of the host than files of policies.
const OLDEST: Duration = Duration::from_secs(600);
/// How often full pools are looked at, and others.
const LOOK: Duration = Duration::from_secs(1);
const FILL: Duration = Duration::from_millis(50);
/// A pool that is half full leaves the CPUs to those who take from it until they pause.
const QUIET: Duration = Duration::from_millis(100);
/// Warm cages of one pool that start or end at the same time.
const AT_ONCE: usize = 4;
/// How long a pool waits after a start that failed.
const AFTER_FAILURE: Duration = Duration::from_secs(10);
/// How long the end of the service waits for the end of its warm cages.
const ENDING: Duration = Duration::from_secs(10);
/// How long a start that a killed service made may still take, in microseconds.
const START: u64 = 180_000_000;

/// The pools, one for each `--warm`.
#[derive(Debug, Default)]
pub(super) struct WarmPools {
    pools: Vec<WarmPool>,
    /// Names of warm cages that this service has in hand. A name is here before its row is in the
    /// store, and until after that is gone.
    names: Mutex<HashSet<String>>,
    stale: Mutex<Vec<WarmCage>>,
    last_taken: Mutex<Option<Instant>>,
    work: Notify,
    stopping: AtomicBool,
    adopted: AtomicU64,
}

#[derive(Debug)]
struct WarmPool {
    spec: CreateCage,
    count: usize,
    /// The words that a request must lead to as well.
    words: Vec<OsString>,
    state: Mutex<PoolState>,
}

#[derive(Debug, Default)]
struct PoolState {
    ready: VecDeque<WarmCage>,
    starting: usize,
    basis: Basis,
    rests_until: Option<Instant>,
    complaint: String,
}

/// A cage that runs and that nobody has yet.
#[derive(Debug)]
pub(super) struct WarmCage {
    pub(super) name: String,
    pub(super) id: CageId,
    pub(super) daemon: Arc<Daemon>,
    pub(super) home: String,
    pub(super) workspace: String,
    pool: usize,
    since: Instant,
}

/// Device, inode, times of change, size.
type Stamp = (u64, u64, [i64; 4], u64);

/// The files that decide what a cage of a pool is, as they were when it was started.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
struct Basis(Vec<(PathBuf, Option<Stamp>)>);

fn stamp(path: &Path) -> Option<Stamp> {
    let found = std::fs::metadata(path).ok()?;
    let times = [
        found.mtime(),
        found.mtime_nsec(),
        found.ctime(),
        found.ctime_nsec(),
    ];
    Some((found.dev(), found.ino(), times, found.size()))
}

impl Basis {
    fn of(paths: impl IntoIterator<Item = PathBuf>) -> Basis {
        let stamped = paths.into_iter().map(|path| {
            let stamp = stamp(&path);
            (path, stamp)
        });
        Basis(stamped.collect())
    }

    fn holds(&self) -> bool {
        !self.0.is_empty() && self.0.iter().all(|(path, was)| stamp(path) == *was)
    }
}

/// The policy that a cage of a pool gets, by the sources that `ironcage run` has.
fn policy(settings: &Settings, spec: &CreateCage) -> Result<Resolved, PolicyError> {
    resolve(&Sources {
        profile: spec.profile.clone(),
        workspace: settings.empty(),
        command: settings.inside.file_name().map(OsString::from),
        user_config_dir: Some(settings.config.clone()).filter(|path| path.is_dir()),
        state_dir: settings.data.parent().map(Path::to_owned),
        home: settings.home.clone(),
        ..Sources::default()
    })
}

fn check_time(profile: &str, found: &Resolved) -> Result<(), WarmError> {
    let limits = &found.policy.limits;
    match limits.time.value.is_some() || limits.idle.value.is_some() {
        true => Err(WarmError::BoundedTime {
            profile: profile.to_owned(),
        }),
        false => Ok(()),
    }
}

/// What `--warm` asks for that this host cannot give: checked before the service starts.
pub(crate) fn check_warm(settings: &Settings) -> Result<(), WarmError> {
    for wanted in &settings.warm {
        let spec = spec_of(wanted);
        let profile = wanted.profile.as_deref().unwrap_or("default");
        check_time(profile, &policy(settings, &spec)?)?;
    }
    Ok(())
}

fn spec_of(wanted: &WarmCages) -> CreateCage {
    CreateCage {
        profile: wanted.profile.clone(),
        limits: wanted.memory.map(|size| CageLimits {
            memory: Some(bytes_as_written(size.0)),
            ..CageLimits::default()
        }),
        ..CreateCage::default()
    }
}

/// A record of nobody, for the words of its start.
fn nobody(name: String, spec: CreateCage) -> CageRecord {
    CageRecord {
        name,
        id: None,
        project: String::new(),
        spec,
        created: 0,
        ends: 0,
        on_timeout: crate::api::types::OnTimeout::Delete,
        paused: false,
        ending: None,
        home: String::new(),
        workspace: String::new(),
        e2b_template: None,
        token: String::new(),
        change: None,
        key: String::new(),
        memory: None,
        template_policy: false,
        e2b: crate::store::E2bState::default(),
        restoring: None,
    }
}

impl WarmPool {
    fn lock(&self) -> MutexGuard<'_, PoolState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn profile(&self) -> &str {
        self.spec.profile.as_deref().unwrap_or("default")
    }

    /// The files that decide what a cage is, or why none may be started in advance.
    fn basis(&self, settings: &Settings) -> Result<Basis, WarmError> {
        let found = policy(settings, &self.spec)?;
        check_time(self.profile(), &found)?;
        let empty = settings.empty();
        let above = empty.ancestors().map(|above| above.join(FILE_NAME));
        let programs = [&settings.ironcage, &settings.inside].map(PathBuf::clone);
        let config = [settings.config.join("config.toml")];
        let paths = programs.into_iter().chain(config).chain(above);
        Ok(Basis::of(paths.chain(found.documents)))
    }
}

impl PoolState {
    /// Says once what is wrong.
    fn complain(&mut self, profile: &str, message: &str) {
        self.rests_until = Some(Instant::now() + AFTER_FAILURE);
        if self.complaint != message {
            message.clone_into(&mut self.complaint);
            let message = ironcage_model::Printable::new(message);
            anstream::eprintln!(
                "ironcage serve: cannot keep cages of the profile {profile} warm: {message}"
            );
        }
    }
}

impl WarmPools {
    pub(super) fn new(settings: &Settings) -> WarmPools {
        let pools = settings.warm.iter().map(|wanted| {
            let spec = spec_of(wanted);
            WarmPool {
                words: words(settings, &nobody(String::new(), spec.clone()), None),
                spec,
                count: wanted.count,
                state: Mutex::default(),
            }
        });
        WarmPools {
            pools: pools.collect(),
            ..WarmPools::default()
        }
    }

    fn names(&self) -> MutexGuard<'_, HashSet<String>> {
        self.names.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn stops(&self) -> bool {
        self.stopping.load(Ordering::Acquire)
    }

    pub(super) fn discard(&self, cage: WarmCage) {
        let mut stale = self.stale.lock().unwrap_or_else(PoisonError::into_inner);
        stale.push(cage);
        drop(stale);
        self.work.notify_one();
    }

    /// A warm cage that was started with these words.
    fn take(&self, words: &[OsString]) -> Option<WarmCage> {
        let pool = self.pools.iter().find(|pool| pool.words == words)?;
        if self.stops() {
            return None;
        }
        let mut taken = self
            .last_taken
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        *taken = Some(Instant::now());
        drop(taken);
        self.work.notify_one();
        let mut state = pool.lock();
        if !state.basis.holds() {
            return None;
        }
        while let Some(cage) = state.ready.pop_front() {
            if cage.since.elapsed() < OLDEST && cage.daemon.renew_idle() {
                return Some(cage);
            }
            self.discard(cage);
        }
        None
    }

    /// Puts one back that was not used.
    fn give_back(&self, cage: WarmCage) {
        match self.pools.get(cage.pool) {
            Some(pool) if !self.stops() => pool.lock().ready.push_front(cage),
            _ => self.discard(cage),
        }
    }

    /// Drops what is old, gone or made by another policy, and counts what is to be started now.
    fn look_at(&self, pool: &WarmPool, settings: &Settings) -> usize {
        let mut state = pool.lock();
        if !state.basis.holds() {
            state.ready.drain(..).for_each(|cage| self.discard(cage));
            match pool.basis(settings) {
                Ok(basis) => state.basis = basis,
                Err(why) => {
                    state.basis = Basis::default();
                    state.complain(pool.profile(), &in_full(&why));
                    return 0;
                }
            }
        }
        for _ in 0..state.ready.len() {
            let Some(cage) = state.ready.pop_front() else {
                break;
            };
            match cage.since.elapsed() < OLDEST && cage.daemon.renew_idle() {
                true => state.ready.push_back(cage),
                false => self.discard(cage),
            }
        }
        if state
            .rests_until
            .is_some_and(|until| Instant::now() < until)
        {
            return 0;
        }
        let taken = *self
            .last_taken
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let quiet = taken.is_none_or(|taken| taken.elapsed() >= QUIET);
        if !quiet && state.ready.len() * 2 >= pool.count {
            return 0;
        }
        let missing = pool
            .count
            .saturating_sub(state.ready.len() + state.starting);
        let now = missing.min(AT_ONCE.saturating_sub(state.starting));
        state.starting += now;
        now
    }

    fn full(&self) -> bool {
        self.pools
            .iter()
            .all(|pool| pool.lock().ready.len() >= pool.count)
    }

    fn starting(&self) -> usize {
        self.pools.iter().map(|pool| pool.lock().starting).sum()
    }
}

impl Engine {
    /// Makes a record that of a warm cage, where one was started with the words that it leads to, and
    /// brings it into the table.
    pub(super) fn adopt(
        self: &Arc<Self>,
        record: &CageRecord,
        creation: Option<&(&str, Creation)>,
    ) -> ApiResult<Adopted> {
        if self.warm.pools.is_empty() || record.spec.policy.is_some() {
            return Ok(Adopted::No);
        }
        let unnamed = CageRecord {
            name: String::new(),
            ..record.clone()
        };
        let Some(cage) = self.warm.take(&words(&self.settings, &unnamed, None)) else {
            return Ok(Adopted::No);
        };
        let record = CageRecord {
            name: cage.name.clone(),
            id: Some(cage.id.to_string()),
            home: cage.home.clone(),
            workspace: cage.workspace.clone(),
            ..unnamed
        };
        let event = self.event(&record, &cage.id, Kind::Created);
        match self.store.put_new(&record, creation, &event.deliveries) {
            Ok(None) => {}
            Ok(Some(earlier)) => {
                self.warm.give_back(cage);
                return Ok(Adopted::Earlier(earlier));
            }
            Err(error) => {
                // Whether it was written is not known, so nobody else may get it.
                self.warm.discard(cage);
                return Err(store_error(error));
            }
        }
        self.warm.names().remove(&cage.name);
        self.warm.adopted.fetch_add(1, Ordering::Relaxed);
        let entry = self.entry(record, cage.id, cage.daemon);
        self.enter(&entry, event);
        Ok(Adopted::Yes(entry))
    }

    /// Warm cages that are ready, by profile, and those that somebody got.
    pub(crate) fn warm_cages(&self) -> (Vec<(String, usize)>, u64) {
        let ready = self.warm.pools.iter();
        let ready = ready.map(|pool| (pool.profile().to_owned(), pool.lock().ready.len()));
        (ready.collect(), self.warm.adopted.load(Ordering::Relaxed))
    }

    /// Keeps the pools full. Does not return, unless there is none.
    pub(crate) async fn keep_warm(self: Arc<Self>) {
        if self.warm.pools.is_empty() {
            return;
        }
        while !self.warm.stops() {
            for (index, pool) in self.warm.pools.iter().enumerate() {
                for _ in 0..self.warm.look_at(pool, &self.settings) {
                    tokio::spawn(Arc::clone(&self).fill(index));
                }
            }
            let engine = Arc::clone(&self);
            tokio::spawn(async move { engine.end_stale().await });
            match self.warm.full() {
                true => {
                    let _ = tokio::time::timeout(LOOK, self.warm.work.notified()).await;
                }
                false => tokio::time::sleep(FILL).await,
            }
        }
    }

    async fn fill(self: Arc<Self>, index: usize) {
        let Some(pool) = self.warm.pools.get(index) else {
            return;
        };
        let basis = pool.lock().basis.clone();
        let started = self.start_warm(index, pool).await;
        let mut state = pool.lock();
        state.starting -= 1;
        match started {
            Ok(cage) if state.basis == basis && !self.warm.stops() => {
                state.complaint.clear();
                state.ready.push_back(cage);
            }
            Ok(cage) => self.warm.discard(cage),
            Err(error) => state.complain(pool.profile(), &error.message),
        }
    }

    async fn start_warm(&self, index: usize, pool: &WarmPool) -> ApiResult<WarmCage> {
        let random =
            random_hex(6).map_err(|error| ApiError::internal("get random bytes", &error))?;
        let name = format!("serve-{random}");
        self.warm.names().insert(name.clone());
        let started = self.start_named(index, pool, &name).await;
        if started.is_err() {
            // A row that is left names a cage that may still appear: it is looked for, and ended.
            self.warm.names().remove(&name);
        }
        started
    }

    async fn start_named(&self, index: usize, pool: &WarmPool, name: &str) -> ApiResult<WarmCage> {
        self.store
            .put_warm(name, clock::now())
            .map_err(store_error)?;
        let record = nobody(name.to_owned(), pool.spec.clone());
        let id = match self.start_process(&record).await {
            Ok(id) => id,
            Err(failed) => {
                if failed.known {
                    self.store.forget_warm(name).map_err(store_error)?;
                }
                return Err(failed.error);
            }
        };
        let daemon = Daemon::new(id.clone(), self.relay(name));
        let (home, workspace) = super::create::describe(&daemon).await?;
        Ok(WarmCage {
            name: name.to_owned(),
            id,
            daemon,
            home,
            workspace,
            pool: index,
            since: Instant::now(),
        })
    }

    async fn end_stale(&self) {
        let stale = {
            let mut stale = self
                .warm
                .stale
                .lock()
                .unwrap_or_else(PoisonError::into_inner);
            std::mem::take(&mut *stale)
        };
        for some in stale.chunks(AT_ONCE) {
            join_all(some.iter().map(|cage| self.end_warm(cage))).await;
        }
    }

    /// Ends a warm cage. One that cannot be ended now is found by its row later.
    async fn end_warm(&self, cage: &WarmCage) {
        cage.daemon.drop_idle(true);
        let id = cage.id.clone();
        let stopped = blocking(move || life::stop(&id)).await;
        if stopped.is_ok() {
            // A row that stays names a cage that is gone.
            let _ = self.store.forget_warm(&cage.name);
        }
        self.warm.names().remove(&cage.name);
    }

    /// Ends all warm cages, at the end of the service.
    pub(crate) async fn end_warm_cages(&self) {
        self.warm.stopping.store(true, Ordering::Release);
        let ended = async {
            loop {
                for pool in &self.warm.pools {
                    let ready = std::mem::take(&mut pool.lock().ready);
                    ready.into_iter().for_each(|cage| self.warm.discard(cage));
                }
                self.end_stale().await;
                if self.warm.starting() == 0 && self.warm.names().is_empty() {
                    break;
                }
                tokio::time::sleep(FILL).await;
            }
        };
        // What is left is ended by the next service.
        let _ = tokio::time::timeout(ENDING, ended).await;
    }

    /// Ends warm cages that a killed service left, and starts that failed half-way.
    pub(super) async fn finish_warm(&self) {
        let Ok(rows) = self.store.warm() else {
            return;
        };
        for (name, since) in rows {
            if self.warm.names().contains(&name) {
                continue;
            }
            // One that somebody got meanwhile has no row any more: that goes before the name does.
            let left = self.store.warm();
            if !left.is_ok_and(|rows| rows.iter().any(|(left, _)| *left == name)) {
                continue;
            }
            let wanted = name.clone();
            let found = blocking(move || match Cages::of_user()?.find(&wanted) {
                Ok(id) => Ok(Some(id)),
                Err(ClientError::NotFound { .. }) => Ok(None),
                Err(error) => Err(error.into()),
            });
            let old = since + START < clock::now();
            let gone = match found.await {
                Ok(Some(id)) => {
                    let stopped = blocking(move || life::stop(&id)).await;
                    // One that is in the log and not running may be just starting.
                    stopped.is_ok_and(|ran| ran || old)
                }
                Ok(None) => old,
                Err(_) => false,
            };
            if gone {
                let _ = self.store.forget_warm(&name);
            }
        }
    }
}

/// What became of a request to adopt.
pub(super) enum Adopted {
    Yes(Arc<super::Entry>),
    No,
    /// The creation that this key was used for.
    Earlier(Creation),
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(directory: &Path, warm: &[&str]) -> Settings {
        let warm = warm.iter().map(|text| text.parse().unwrap()).collect();
        let home = directory.join("home");
        let settings = Settings {
            data: directory.join("state/serve"),
            ironcage: "/usr/bin/ironcage".into(),
            inside: "/usr/bin/ironcage-inside".into(),
            workspaces: home.join("share"),
            config: home.join("config"),
            home,
            internet: false,
            code_interpreter: None,
            most_cages: 1,
            rate: 1,
            warm,
        };
        std::fs::create_dir_all(settings.empty()).unwrap();
        std::fs::create_dir_all(&settings.config).unwrap();
        settings
    }

    fn warm_cage(name: &str, since: Instant) -> WarmCage {
        let id: CageId = "c7h2k9m4q1xz8".parse().unwrap();
        WarmCage {
            name: name.to_owned(),
            daemon: Daemon::new(id.clone(), Vec::new()),
            id,
            home: String::new(),
            workspace: String::new(),
            pool: 0,
            since,
        }
    }

    #[test]
    fn a_request_gets_a_warm_cage_only_where_it_leads_to_the_same_words() {
        let directory = tempfile::tempdir().unwrap();
        let settings = settings(directory.path(), &["default=1", "python=1,memory=1G"]);
        let pools = WarmPools::new(&settings);
        let pool = |spec: CreateCage| {
            let record = nobody(String::new(), spec);
            let words = words(&settings, &record, None);
            pools.pools.iter().position(|pool| pool.words == words)
        };
        let with = |json: serde_json::Value| serde_json::from_value::<CreateCage>(json).unwrap();
        // What the service keeps itself makes no difference.
        let kept = serde_json::json!({
            "env": { "A": "1" }, "metadata": { "m": "1" }, "timeout": 5, "on_timeout": "pause",
        });
        assert_eq!(pool(with(kept)), Some(0));
        let python = serde_json::json!({ "profile": "python", "limits": { "memory": "1G" } });
        assert_eq!(pool(with(python)), Some(1));
        for other in [
            serde_json::json!({ "profile": "python" }),
            serde_json::json!({ "profile": "shell" }),
            serde_json::json!({ "limits": { "memory": "1G" } }),
            serde_json::json!({ "limits": { "pids": 5 } }),
            serde_json::json!({ "directory": "/srv" }),
            serde_json::json!({ "image": "alpine" }),
            serde_json::json!({ "template": "t" }),
            serde_json::json!({ "network": { "mode": "live" } }),
            serde_json::json!({ "network": { "allow": ["example.com"] } }),
        ] {
            assert_eq!(pool(with(other.clone())), None, "{other}");
        }
    }

    #[test]
    fn a_policy_that_limits_time_is_not_started_in_advance() {
        let directory = tempfile::tempdir().unwrap();
        check_warm(&settings(directory.path(), &["default=1", "python=1"])).unwrap();
        for profile in ["strict=1", "data=1"] {
            let refused = check_warm(&settings(directory.path(), &[profile])).unwrap_err();
            assert!(
                matches!(refused, WarmError::BoundedTime { .. }),
                "{refused}"
            );
        }
        let unknown = settings(directory.path(), &["absent=1"]);
        check_warm(&unknown).unwrap_err();
        let settings = settings(directory.path(), &["default=1"]);
        let config = settings.config.join("config.toml");
        std::fs::write(config, "[limits]\ntime = \"5m\"\n").unwrap();
        check_warm(&settings).unwrap_err();
    }

    #[test]
    fn cages_of_another_policy_are_dropped_and_nobody_gets_one_meanwhile() {
        let directory = tempfile::tempdir().unwrap();
        let settings = settings(directory.path(), &["default=2"]);
        let pools = WarmPools::new(&settings);
        let pool = &pools.pools[0];
        assert_eq!(pools.look_at(pool, &settings), 2);
        assert_eq!(pools.look_at(pool, &settings), 0);
        assert!(pool.lock().basis.holds());
        let ready = || {
            let mut state = pool.lock();
            state.ready.push_back(warm_cage("serve-1", Instant::now()));
        };
        ready();
        std::fs::write(settings.config.join("config.toml"), "[limits]\npids = 99\n").unwrap();
        assert!(pools.take(&pool.words).is_none());
        assert_eq!(pool.lock().ready.len(), 1);
        pools.look_at(pool, &settings);
        assert!(pool.lock().ready.is_empty() && pool.lock().basis.holds());
        assert_eq!(pools.stale.lock().unwrap().len(), 1);
        // One without a connection is not given away either.
        ready();
        assert!(pools.take(&pool.words).is_none());
        assert_eq!(pools.stale.lock().unwrap().len(), 2);
        // A policy that is not valid any more leaves the pool empty.
        std::fs::write(
            settings.config.join("config.toml"),
            "[limits]\ntime = \"5m\"\n",
        )
        .unwrap();
        assert_eq!(pools.look_at(pool, &settings), 0);
        assert!(pools.take(&pool.words).is_none());
    }
}
