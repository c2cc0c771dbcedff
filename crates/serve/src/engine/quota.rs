//! Quotas of projects and keys, and the ceiling of a project's requests.

use super::life::last_end;
use super::{Engine, Entry, TIMEOUT};
use crate::api::types::{CageLimits, CreateCage, NetworkMode};
use crate::clock;
use crate::error::{ApiError, ApiResult, Code};
use crate::keys::Key;
use crate::projects::{Ceiling, MEMORY, Project, above};
use ironcage_model::{LimitKind, Resource, bytes_as_written};
use ironcage_policy::Size;
use std::sync::{Arc, Mutex, PoisonError};

/// Cages that are being created: they count before they run.
#[derive(Debug, Default)]
pub(super) struct Creations(Mutex<Vec<Arc<ReservedCage>>>);

/// A cage that is being created.
#[derive(Debug)]
struct ReservedCage {
    project: String,
    key: String,
    memory: u64,
}

/// Counts a creation as long as it lives.
#[derive(Debug)]
pub(super) struct Creating<'a> {
    creations: &'a Creations,
    own: Arc<ReservedCage>,
}

impl Drop for Creating<'_> {
    fn drop(&mut self) {
        let all = &self.creations.0;
        let mut all = all.lock().unwrap_or_else(PoisonError::into_inner);
        all.retain(|one| !Arc::ptr_eq(one, &self.own));
    }
}

/// What is used.
#[derive(Debug, Default, Clone, Copy)]
struct Used {
    cages: usize,
    memory: u64,
}

impl Used {
    fn add(&mut self, memory: u64) {
        self.cages += 1;
        self.memory = self.memory.saturating_add(memory);
    }
}

fn refused(message: String) -> ApiError {
    ApiError::new(Code::LimitReached, message).hint("delete cages that are not needed")
}

/// Refuses more memory than may be used together.
fn check_memory(whose: &str, used: Used, more: u64, most: Option<u64>) -> ApiResult<()> {
    match most {
        Some(most) if used.memory.saturating_add(more) > most => Err(refused(format!(
            "{whose} has cages with {} of memory and wants {} more; it may have {}",
            bytes_as_written(used.memory),
            bytes_as_written(more),
            bytes_as_written(most)
        ))),
        _ => Ok(()),
    }
}

/// Bytes of memory that the limits of a cage name.
fn named_memory(spec: &CreateCage) -> ApiResult<Option<u64>> {
    let text = spec
        .limits
        .as_ref()
        .and_then(|limits| limits.memory.as_deref());
    text.map(|text| {
        let size: Result<Size, _> = text.parse();
        size.map(|size| size.0)
            .map_err(|error| ApiError::invalid(ironcage_model::in_full(&error)))
    })
    .transpose()
}

/// Bounds what a cage may be by the ceiling of its project, and gives it a memory limit where memory
/// is counted. Returns that limit.
fn bounded(spec: &mut CreateCage, project: &Project, counted: bool) -> ApiResult<u64> {
    let ceiling = &project.ceiling;
    check_profile(spec, ceiling)?;
    if let Some(hosts) = spec.network.as_ref().filter(|_| ceiling.hosts.is_some()) {
        if hosts.mode == Some(NetworkMode::Open) {
            return Err(above("the whole network"));
        }
        for host in &hosts.allow {
            let rule = ironcage_policy::allowed(host)
                .map_err(|error| ApiError::invalid(ironcage_model::in_full(&error)))?;
            ceiling.check(&Resource::Host { rule })?;
        }
    }
    check_time(ceiling, spec.timeout.unwrap_or(TIMEOUT))?;
    if ceiling.memory.is_none() && !counted {
        // It may be a share of the host memory, which nobody asks for here.
        return Ok(named_memory(spec).ok().flatten().unwrap_or(MEMORY));
    }
    let most = ceiling.memory.unwrap_or(u64::MAX);
    let memory = named_memory(spec)?.unwrap_or(most.min(MEMORY));
    if memory > most {
        return Err(above(&format!("{} of memory", bytes_as_written(memory))));
    }
    let limits = spec.limits.get_or_insert_with(CageLimits::default);
    limits.memory = Some(bytes_as_written(memory));
    Ok(memory)
}

fn check_profile(spec: &CreateCage, ceiling: &Ceiling) -> ApiResult<()> {
    let bound = ceiling.profiles.is_some() || ceiling.hosts.is_some();
    if bound && spec.policy.is_some() {
        return Err(above("a policy of its own"));
    }
    let Some(profile) = &spec.profile else {
        return Ok(());
    };
    let within = match &ceiling.profiles {
        Some(profiles) => profiles.contains(profile),
        // Others may open hosts.
        None => ceiling.hosts.is_none() || super::check::opens_no_host(profile),
    };
    match within {
        true => Ok(()),
        false => Err(above(&format!("the profile `{}`", profile.escape_debug()))),
    }
}

fn check_time(ceiling: &Ceiling, seconds: u32) -> ApiResult<()> {
    match ceiling.timeout.is_none_or(|most| seconds <= most) {
        true => Ok(()),
        false => Err(above(&format!("a timeout of {seconds} s"))),
    }
}

impl Engine {
    /// The ceiling of the project of a cage.
    pub(crate) fn ceiling(&self, entry: &Entry) -> ApiResult<Ceiling> {
        let name = entry.lock().project.clone();
        Ok(self.projects.of_request(&name)?.ceiling)
    }

    /// Refuses a timeout by which a cage would live longer than the ceiling lets it, since it was
    /// created.
    pub(super) fn check_lifetime(&self, entry: &Entry, seconds: u32) -> ApiResult<()> {
        let latest = self.latest_end(entry, seconds)?;
        let now = clock::now();
        if now + u64::from(seconds) * 1_000_000 > latest {
            let left = latest.saturating_sub(now) / 1_000_000;
            return Err(above(&format!("a timeout of {seconds} s from now"))
                .hint(format!("cage {} may live {left} s longer", entry.id)));
        }
        Ok(())
    }

    /// When a cage ends at the latest, whoever moves its end. A timeout above the ceiling is refused.
    pub(super) fn latest_end(&self, entry: &Entry, seconds: u32) -> ApiResult<u64> {
        let ceiling = self.ceiling(entry)?;
        check_time(&ceiling, seconds)?;
        let created = entry.lock().created;
        Ok(ceiling
            .timeout
            .map_or(u64::MAX, |most| last_end(created, most)))
    }

    /// Counts the memory that a cage gets by a lease, where its project and the key that created it
    /// may have as much. `Some` with what was counted before, where it is more.
    pub(crate) fn count_more(&self, entry: &Entry, resource: &Resource) -> ApiResult<Option<u64>> {
        let Resource::Limit {
            limit: LimitKind::Memory,
            value,
        } = *resource
        else {
            return Ok(None);
        };
        let all = &self.creating.0;
        let creating = all.lock().unwrap_or_else(PoisonError::into_inner);
        let record = entry.record();
        let before = record.memory.unwrap_or(MEMORY);
        let Some(more) = value.checked_sub(before).filter(|more| *more > 0) else {
            return Ok(None);
        };
        let project = self.projects.of_request(&record.project)?;
        let key = self
            .keys
            .quota_of(&record.key)
            .map_err(|error| ApiError::internal("read the quota of the key", &error))?;
        let (by_project, by_key) = self.used(&creating, &record.project, &record.key);
        for (whose, used, most) in [
            (
                format!("project {}", record.project),
                by_project,
                project.memory,
            ),
            (format!("key {}", record.key), by_key, key.memory),
        ] {
            check_memory(&whose, used, more, most)?;
        }
        // In the record before the lease: a creation in between counts it.
        self.change(entry, |record| record.memory = Some(value))?;
        Ok(Some(before))
    }

    /// Counts what was counted before a lease that was not granted.
    pub(crate) fn count_less(&self, entry: &Entry, before: u64) -> ApiResult<()> {
        self.change(entry, |record| record.memory = Some(before))
    }

    /// What the cages of a project use, and those of one of its keys.
    fn used(&self, creating: &[Arc<ReservedCage>], project: &str, key: &str) -> (Used, Used) {
        let (mut by_project, mut by_key) = (Used::default(), Used::default());
        for entry in self.all() {
            let record = entry.lock();
            if record.ending.is_none() && record.project == project {
                by_project.add(record.memory.unwrap_or(MEMORY));
                if record.key == key {
                    by_key.add(record.memory.unwrap_or(MEMORY));
                }
            }
        }
        for one in creating.iter().filter(|one| one.project == project) {
            by_project.add(one.memory);
            if one.key == key {
                by_key.add(one.memory);
            }
        }
        (by_project, by_key)
    }

    /// Bounds what a cage may be, and counts it: the memory that it is counted with, and the count.
    pub(super) fn reserve(
        &self,
        key: &Key,
        spec: &mut CreateCage,
    ) -> ApiResult<(u64, Creating<'_>)> {
        let project = self.projects.of_request(&key.project)?;
        let counted = project.memory.is_some() || key.quota.memory.is_some();
        let memory = bounded(spec, &project, counted)?;
        let all = &self.creating.0;
        let mut creating = all.lock().unwrap_or_else(PoisonError::into_inner);
        let (by_project, by_key) = self.used(&creating, &key.project, &key.id);
        let most_cages = project.cages.unwrap_or(self.settings.most_cages);
        for (whose, used, cages, bytes) in [
            (
                format!("project {}", key.project),
                by_project,
                Some(most_cages),
                project.memory,
            ),
            (
                format!("key {}", key.id),
                by_key,
                key.quota.cages,
                key.quota.memory,
            ),
        ] {
            let count = used.cages;
            if cages.is_some_and(|most| count >= most) {
                return Err(refused(format!(
                    "{whose} has {count} cages, as many as it may have"
                )));
            }
            check_memory(&whose, used, memory, bytes)?;
        }
        if let Some(most) = project.cages_per_minute {
            self.limits.creation(&key.project, most)?;
        }
        let own = Arc::new(ReservedCage {
            project: key.project.clone(),
            key: key.id.clone(),
            memory,
        });
        creating.push(Arc::clone(&own));
        let creating = Creating {
            creations: &self.creating,
            own,
        };
        Ok((memory, creating))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::types::CageNetwork;

    fn with_memory(memory: &str) -> CreateCage {
        CreateCage {
            limits: Some(CageLimits {
                memory: Some(memory.to_owned()),
                ..CageLimits::default()
            }),
            ..CreateCage::default()
        }
    }

    #[test]
    fn a_cage_gets_the_memory_that_it_is_counted_with() {
        let free = Project::default();
        let ceiling = Project {
            ceiling: Ceiling {
                memory: Some(512 << 20),
                ..Ceiling::default()
            },
            ..Project::default()
        };
        let memory = |spec: &CreateCage| spec.limits.clone().unwrap_or_default().memory;
        let mut spec = CreateCage::default();
        assert_eq!(bounded(&mut spec, &free, false).unwrap(), MEMORY);
        assert_eq!(memory(&spec), None);
        assert_eq!(bounded(&mut spec, &free, true).unwrap(), MEMORY);
        assert_eq!(memory(&spec).as_deref(), Some("1G"));
        let mut spec = CreateCage::default();
        assert_eq!(bounded(&mut spec, &ceiling, false).unwrap(), 512 << 20);
        assert_eq!(memory(&spec).as_deref(), Some("512M"));
        assert_eq!(
            bounded(&mut with_memory("64M"), &ceiling, true).unwrap(),
            64 << 20
        );
        // A share of the host memory is not counted, and more is above the ceiling.
        let code = |spec: &str, project: &Project, counted| {
            bounded(&mut with_memory(spec), project, counted).map_err(|error| error.code)
        };
        assert_eq!(code("50%", &free, true), Err(Code::InvalidRequest));
        assert_eq!(code("50%", &free, false), Ok(MEMORY));
        assert_eq!(code("513M", &ceiling, false), Err(Code::Forbidden));
    }

    #[test]
    fn memory_by_a_lease_is_counted_as_long_as_there_is_some() {
        let data = tempfile::tempdir().unwrap();
        let engine = Engine::open(crate::engine::tests::settings(data.path())).unwrap();
        let project = Project {
            memory: Some(1000 << 20),
            ..Project::default()
        };
        engine.projects.set("team", &project).unwrap();
        let quota = crate::projects::Quota {
            memory: Some(500 << 20),
            ..crate::projects::Quota::default()
        };
        let key = engine.keys.create_with("k", "team", [].into(), quota, None);
        let (key, _) = key.unwrap();
        let add = |id: &str, key: &str, memory: u64| {
            let record = crate::store::CageRecord {
                name: id.to_owned(),
                project: "team".to_owned(),
                key: key.to_owned(),
                memory: Some(memory << 20),
                ..crate::engine::life::tests::record()
            };
            let id: ironcage_model::CageId = id.parse().unwrap();
            let daemon = crate::daemon::Daemon::new(id.clone(), Vec::new());
            let entry = engine.entry(record, id, daemon);
            engine.insert(&entry);
            entry
        };
        let (own, other) = (
            add("c0123456789ab", &key.id, 200),
            add("c0123456789ac", "", 200),
        );
        let memory = |value: u64| Resource::Limit {
            limit: LimitKind::Memory,
            value: value << 20,
        };
        let code = |entry, value| {
            let counted = engine.count_more(entry, &memory(value));
            counted.map_err(|error| error.code)
        };
        let held = |entry: &Entry| entry.lock().memory.unwrap() >> 20;
        // Above what the key may have, and above what the project may.
        assert_eq!(code(&own, 501), Err(Code::LimitReached));
        assert_eq!(code(&other, 801), Err(Code::LimitReached));
        assert_eq!((held(&own), held(&other)), (200, 200));
        assert_eq!(code(&own, 500), Ok(Some(200 << 20)));
        assert_eq!(code(&other, 501), Err(Code::LimitReached));
        assert_eq!(code(&other, 500), Ok(Some(200 << 20)));
        assert_eq!((held(&own), held(&other)), (500, 500));
        // Less than it has is nothing more, and other limits are not counted.
        assert_eq!(code(&own, 400), Ok(None));
        let pids = Resource::Limit {
            limit: LimitKind::Pids,
            value: u64::MAX,
        };
        assert_eq!(engine.count_more(&own, &pids).unwrap(), None);
        let mut wanted = with_memory("64M");
        let create = |spec: &mut CreateCage| engine.reserve(&key, spec).map(drop);
        assert_eq!(create(&mut wanted).unwrap_err().code, Code::LimitReached);
        engine.count_less(&own, 200 << 20).unwrap();
        create(&mut wanted).unwrap();
    }

    #[test]
    fn what_is_above_the_ceiling_is_refused_and_what_is_below_is_not() {
        let project = Project {
            ceiling: Ceiling {
                profiles: Some(["python".to_owned()].into()),
                hosts: Some(vec!["*.example.com".parse().unwrap()]),
                timeout: Some(600),
                ..Ceiling::default()
            },
            ..Project::default()
        };
        let network = |mode, allow: &[&str]| CreateCage {
            network: Some(CageNetwork {
                mode,
                allow: allow.iter().map(ToString::to_string).collect(),
                deny: vec!["every host".to_owned()],
            }),
            ..CreateCage::default()
        };
        let named = |profile: &str| CreateCage {
            profile: Some(profile.to_owned()),
            ..CreateCage::default()
        };
        let long = CreateCage {
            timeout: Some(601),
            ..CreateCage::default()
        };
        let policy = CreateCage {
            policy: Some(String::new()),
            ..CreateCage::default()
        };
        for mut spec in [
            CreateCage::default(),
            named("python"),
            network(Some(NetworkMode::Live), &["api.example.com"]),
        ] {
            bounded(&mut spec, &project, false).unwrap();
        }
        for mut spec in [
            named("rust"),
            long,
            policy,
            network(Some(NetworkMode::Open), &[]),
            network(None, &["api.example.com", "other.org"]),
        ] {
            let refused = bounded(&mut spec, &project, false).unwrap_err();
            assert_eq!(refused.code, Code::Forbidden, "{spec:?}");
            bounded(&mut spec, &Project::default(), false).unwrap();
        }
    }
}
