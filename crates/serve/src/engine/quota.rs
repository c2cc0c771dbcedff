//! Quotas of projects and keys, and the ceiling of a project's requests.

use super::{Engine, Entry, TIMEOUT};
use crate::api::types::{CageLimits, CreateCage, NetworkMode};
use crate::error::{ApiError, ApiResult, Code};
use crate::keys::Key;
use crate::projects::{Ceiling, MEMORY, Project, above};
use ironcage_model::{Resource, bytes_as_written};
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
        // It may be a share of the host's, which nobody asks for here.
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

    /// Refuses a lifetime above the ceiling.
    pub(super) fn check_lifetime(&self, entry: &Entry, seconds: u32) -> ApiResult<()> {
        check_time(&self.ceiling(entry)?, seconds)
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
        let (mut by_project, mut by_key) = (Used::default(), Used::default());
        for entry in self.all() {
            let record = entry.lock();
            if record.ending.is_none() && record.project == key.project {
                by_project.add(record.memory.unwrap_or(MEMORY));
                if record.key == key.id {
                    by_key.add(record.memory.unwrap_or(MEMORY));
                }
            }
        }
        for one in creating.iter().filter(|one| one.project == key.project) {
            by_project.add(one.memory);
            if one.key == key.id {
                by_key.add(one.memory);
            }
        }
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
            if let Some(most) = bytes
                && used.memory.saturating_add(memory) > most
            {
                return Err(refused(format!(
                    "{whose} has cages with {} of memory and wants {} more; it may have {}",
                    bytes_as_written(used.memory),
                    bytes_as_written(memory),
                    bytes_as_written(most)
                )));
            }
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
        // A share of the host's is not counted, and more is above the ceiling.
        let code = |spec: &str, project: &Project, counted| {
            bounded(&mut with_memory(spec), project, counted).map_err(|error| error.code)
        };
        assert_eq!(code("50%", &free, true), Err(Code::InvalidRequest));
        assert_eq!(code("50%", &free, false), Ok(MEMORY));
        assert_eq!(code("513M", &ceiling, false), Err(Code::Forbidden));
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
