//! Projects: what all keys of one may use together, and the ceiling of what they may ask for.
//!
//! Each is a file of its own, as keys are: `ironcage serve project` works while the service runs, and
//! what it sets holds for the next request.

use crate::error::{ApiError, ApiResult, Code};
use crate::keys::{KeyError, is_project, write_new};
use ironcage_model::{Extent, HostRule, LimitKind, Resource};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

/// The most memory of a cage that names none, where memory is counted.
pub(crate) const MEMORY: u64 = 1 << 30;

/// What may be used.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Quota {
    /// Running cages.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) cages: Option<usize>,
    /// Bytes that the memory limits of running cages add up to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) memory: Option<u64>,
    /// Requests of one key in a second.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) rate: Option<u32>,
}

impl Quota {
    pub(crate) fn is_unlimited(&self) -> bool {
        *self == Quota::default()
    }
}

/// A project as it is kept.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Project {
    /// Running cages.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) cages: Option<usize>,
    /// Bytes that the memory limits of running cages add up to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) memory: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) cages_per_minute: Option<u32>,
    #[serde(default)]
    pub(crate) ceiling: Ceiling,
}

/// The most that keys of a project can ask for, whatever their scopes.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Ceiling {
    /// Profiles; any where nothing is said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) profiles: Option<BTreeSet<String>>,
    /// Hosts; any where nothing is said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) hosts: Option<Vec<HostRule>>,
    /// Bytes of memory of one cage.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) memory: Option<u64>,
    /// Seconds of one cage.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) timeout: Option<u32>,
}

impl Ceiling {
    /// Refuses a resource that is above it.
    pub(crate) fn check(&self, resource: &Resource) -> ApiResult<()> {
        let within = match (&self.hosts, resource) {
            (Some(hosts), Resource::Host { .. } | Resource::Http { .. }) => hosts
                .iter()
                .any(|host| Extent::Host(host.clone()).covers(resource)),
            (
                _,
                Resource::Limit {
                    limit: LimitKind::Memory,
                    value,
                },
            ) => self.memory.is_none_or(|most| *value <= most),
            _ => true,
        };
        match within {
            true => Ok(()),
            false => Err(above(&format!("the {resource}"))),
        }
    }
}

/// What is above the ceiling of a project.
pub(crate) fn above(what: &str) -> ApiError {
    ApiError::new(
        Code::Forbidden,
        format!("{what} is above the ceiling of the project"),
    )
    .hint("`ironcage serve project show` has the ceiling; the operator of the service sets it")
}

/// The projects of a data directory.
#[derive(Debug, Clone)]
pub(crate) struct Projects {
    directory: PathBuf,
}

impl Projects {
    pub(crate) fn in_data(data: &Path) -> Projects {
        Projects {
            directory: data.join("projects"),
        }
    }

    fn path(&self, name: &str) -> Result<PathBuf, KeyError> {
        match is_project(name) {
            true => Ok(self.directory.join(format!("{name}.json"))),
            false => Err(KeyError::Project),
        }
    }

    /// A project; one of which nothing was set is without limits.
    pub(crate) fn get(&self, name: &str) -> Result<Project, KeyError> {
        let path = self.path(name)?;
        match fs::read(&path) {
            Ok(text) => {
                serde_json::from_slice(&text).map_err(|source| KeyError::Invalid { path, source })
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Project::default()),
            Err(source) => Err(KeyError::File { path, source }),
        }
    }

    /// The same, for a request: the path of the file is not for who asks.
    pub(crate) fn of_request(&self, name: &str) -> ApiResult<Project> {
        self.get(name).map_err(|error| match error {
            KeyError::File { source, .. } => ApiError::internal("read the project", &source),
            KeyError::Invalid { source, .. } => ApiError::internal("read the project", &source),
            other => ApiError::internal("read the project", &other),
        })
    }

    pub(crate) fn set(&self, name: &str, project: &Project) -> Result<(), KeyError> {
        let path = self.path(name)?;
        let text = serde_json::to_vec_pretty(project).map_err(|source| KeyError::Invalid {
            path: path.clone(),
            source,
        })?;
        let made = fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(&self.directory);
        made.map_err(|source| KeyError::File {
            path: self.directory.clone(),
            source,
        })?;
        write_new(&path, &text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_project_is_without_limits_until_some_are_set() {
        let data = tempfile::tempdir().unwrap();
        let projects = Projects::in_data(data.path());
        assert_eq!(projects.get("team").unwrap(), Project::default());
        let project = Project {
            cages: Some(3),
            ceiling: Ceiling {
                hosts: Some(vec!["*.example.com".parse().unwrap()]),
                ..Ceiling::default()
            },
            ..Project::default()
        };
        projects.set("team", &project).unwrap();
        assert_eq!(projects.get("team").unwrap(), project);
        assert!(matches!(projects.get("../keys"), Err(KeyError::Project)));
        // What cannot be read is an error, and not a project without limits.
        fs::write(projects.path("team").unwrap(), b"cut").unwrap();
        assert!(projects.get("team").is_err());
    }

    #[test]
    fn a_ceiling_of_memory_holds_for_leases_too() {
        let limit = |limit, value| Resource::Limit { limit, value };
        let ceiling = Ceiling {
            memory: Some(1 << 30),
            ..Ceiling::default()
        };
        let above = limit(LimitKind::Memory, (1 << 30) + 1);
        assert_eq!(ceiling.check(&above).unwrap_err().code, Code::Forbidden);
        Ceiling::default().check(&above).unwrap();
        ceiling.check(&limit(LimitKind::Memory, 1 << 30)).unwrap();
        ceiling.check(&limit(LimitKind::Pids, 1 << 31)).unwrap();
    }

    #[test]
    fn a_ceiling_of_hosts_covers_what_is_in_it_and_nothing_wider() {
        let rule = |text: &str| Resource::Host {
            rule: text.parse().unwrap(),
        };
        let ceiling = Ceiling {
            hosts: Some(vec!["*.example.com".parse().unwrap()]),
            ..Ceiling::default()
        };
        ceiling.check(&rule("api.example.com")).unwrap();
        for above in [
            "example.org",
            "**.example.com",
            "api.example.com:22",
            "10.0.0.1",
        ] {
            assert!(ceiling.check(&rule(above)).is_err(), "{above}");
            Ceiling::default().check(&rule(above)).unwrap();
        }
    }
}
