//! Webhooks: addresses that are told what becomes of the cages of a project.
//!
//! Each is a file of its own, as keys are: `ironcage serve webhook` works while the service runs. What
//! is still to be sent is in the store, written together with what it tells of (ADR 77).

mod command;
mod delivery;
mod sender;
mod url;

pub(crate) use command::command;
pub(crate) use delivery::Deliveries;
pub(crate) use url::{HookUrl, not_public};

use crate::event_log::{Kind, ProjectEvent};
use crate::keys::{ID, is_id, is_project, random_bytes, random_hex, write_file};
use crate::store::{CageRecord, Delivery};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use serde::{Deserialize, Serialize};
use serde_json::json;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

/// Webhooks of one project.
pub(crate) const MOST_WEBHOOKS: usize = 16;
/// Bytes of a secret.
const SECRET: usize = 32;

/// Why webhooks cannot be used.
#[derive(Debug, thiserror::Error)]
pub(crate) enum WebhookError {
    #[error("cannot use {}", path.display())]
    File { path: PathBuf, source: io::Error },
    #[error("{} is not a webhook of the service", path.display())]
    Invalid {
        path: PathBuf,
        source: serde_json::Error,
    },
    #[error("there is no webhook `{}`", id.escape_debug())]
    NotFound { id: String },
    #[error("the name of a project has 1 to 64 of the characters a-z, 0-9, - and _")]
    Project,
    #[error("project {project} has {MOST_WEBHOOKS} webhooks already")]
    TooMany { project: String },
    #[error("cannot get random bytes")]
    Random(#[source] io::Error),
}

/// A webhook as it is kept.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Webhook {
    pub(crate) id: String,
    pub(crate) project: String,
    pub(crate) url: HookUrl,
    /// The events that it is told; all of them where none is named.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub(crate) events: BTreeSet<Kind>,
    /// Whether whoever made it may name addresses of the host and its networks, and HTTP.
    #[serde(default)]
    pub(crate) any_address: bool,
    /// Whether the operator made it, so that the ceiling of the project does not hold for it.
    #[serde(default)]
    pub(crate) operator: bool,
    /// Microseconds since the epoch.
    pub(crate) created: u64,
    /// The key of its signatures, which is needed in clear.
    secret: String,
}

impl Webhook {
    fn wants(&self, kind: Kind) -> bool {
        self.events.is_empty() || self.events.contains(&kind)
    }

    /// The secret as its receiver needs it.
    pub(crate) fn shown_secret(&self) -> String {
        format!("whsec_{}", self.secret)
    }
}

/// What a webhook is made of.
#[derive(Debug)]
pub(crate) struct NewWebhook {
    pub(crate) project: String,
    pub(crate) url: HookUrl,
    pub(crate) events: BTreeSet<Kind>,
    pub(crate) any_address: bool,
    pub(crate) operator: bool,
}

/// The webhooks of a data directory.
#[derive(Debug, Clone)]
pub(crate) struct Webhooks {
    directory: PathBuf,
}

fn file(path: &Path) -> impl FnOnce(io::Error) -> WebhookError {
    let path = path.to_owned();
    move |source| WebhookError::File { path, source }
}

fn read(path: &Path) -> Result<Webhook, WebhookError> {
    let text = fs::read(path).map_err(file(path))?;
    serde_json::from_slice(&text).map_err(|source| WebhookError::Invalid {
        path: path.to_owned(),
        source,
    })
}

/// Entries of a directory; empty if it does not exist.
fn entries(directory: &Path) -> Result<Vec<PathBuf>, WebhookError> {
    let found = match fs::read_dir(directory) {
        Ok(found) => found,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(file(directory)(error)),
    };
    let paths = found.map(|entry| entry.map(|entry| entry.path()));
    paths.collect::<Result<_, _>>().map_err(file(directory))
}

fn is_definition(path: &Path) -> bool {
    path.extension()
        .is_some_and(|extension| extension == "json")
}

impl Webhooks {
    pub(crate) fn in_data(data: &Path) -> Webhooks {
        Webhooks {
            directory: data.join("webhooks"),
        }
    }

    fn of_project(&self, project: &str) -> Result<PathBuf, WebhookError> {
        match is_project(project) {
            true => Ok(self.directory.join(project)),
            false => Err(WebhookError::Project),
        }
    }

    fn path(&self, project: &str, id: &str) -> Result<PathBuf, WebhookError> {
        match is_id(id) {
            true => Ok(self.of_project(project)?.join(format!("{id}.json"))),
            false => Err(WebhookError::NotFound { id: id.to_owned() }),
        }
    }

    /// Makes a webhook.
    pub(crate) fn create(&self, new: NewWebhook) -> Result<Webhook, WebhookError> {
        let directory = self.of_project(&new.project)?;
        let webhook = Webhook {
            id: random_hex(ID).map_err(WebhookError::Random)?,
            project: new.project,
            url: new.url,
            events: new.events,
            any_address: new.any_address,
            operator: new.operator,
            created: crate::clock::now(),
            secret: BASE64.encode(random_bytes(SECRET).map_err(WebhookError::Random)?),
        };
        let made = fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(&directory);
        made.map_err(file(&directory))?;
        let there = entries(&directory)?;
        if there.iter().filter(|path| is_definition(path)).count() >= MOST_WEBHOOKS {
            return Err(WebhookError::TooMany {
                project: webhook.project,
            });
        }
        let path = self.path(&webhook.project, &webhook.id)?;
        let text = serde_json::to_vec_pretty(&webhook).map_err(|source| WebhookError::Invalid {
            path: path.clone(),
            source,
        })?;
        write_file(&path, &text).map_err(file(&path))?;
        Ok(webhook)
    }

    /// The webhooks of a project, the oldest first.
    pub(crate) fn list(&self, project: &str) -> Result<Vec<Webhook>, WebhookError> {
        let paths = entries(&self.of_project(project)?)?;
        let mut webhooks = Vec::new();
        for path in paths.iter().filter(|path| is_definition(path)) {
            match read(path) {
                // Somebody deleted it meanwhile.
                Err(WebhookError::File { source, .. })
                    if source.kind() == io::ErrorKind::NotFound => {}
                other => webhooks.push(other?),
            }
        }
        webhooks.sort_by(|one, other| (one.created, &one.id).cmp(&(other.created, &other.id)));
        Ok(webhooks)
    }

    /// Names of the projects that have had webhooks.
    pub(crate) fn projects(&self) -> Result<Vec<String>, WebhookError> {
        let names = entries(&self.directory)?.into_iter().filter_map(|path| {
            let name = path.file_name()?.to_str()?.to_owned();
            is_project(&name).then_some(name)
        });
        let mut names: Vec<String> = names.collect();
        names.sort();
        Ok(names)
    }

    pub(crate) fn get(&self, project: &str, id: &str) -> Result<Webhook, WebhookError> {
        match read(&self.path(project, id)?) {
            Err(WebhookError::File { source, .. }) if source.kind() == io::ErrorKind::NotFound => {
                Err(WebhookError::NotFound { id: id.to_owned() })
            }
            other => other,
        }
    }

    pub(crate) fn delete(&self, project: &str, id: &str) -> Result<(), WebhookError> {
        let path = self.path(project, id)?;
        match fs::remove_file(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                Err(WebhookError::NotFound { id: id.to_owned() })
            }
            other => other.map_err(file(&path)),
        }
    }

    /// What is to be sent about an event, by the webhook that gets it.
    pub(crate) fn deliveries(&self, record: &CageRecord, event: &ProjectEvent) -> Vec<Delivery> {
        let webhooks = match self.list(&record.project) {
            Ok(webhooks) => webhooks,
            Err(error) => {
                // Cages of the project can go on, and end.
                anstream::eprintln!(
                    "ironcage serve: the webhooks of project {} are not told of an event: {}",
                    record.project,
                    ironcage_model::in_full(&error)
                );
                return Vec::new();
            }
        };
        let wanting = webhooks
            .into_iter()
            .filter(|webhook| webhook.wants(event.kind));
        wanting
            .map(|webhook| Delivery {
                body: body(&event_id(record, event), record, event),
                id: event_id(record, event),
                webhook: webhook.id,
                project: webhook.project,
            })
            .collect()
    }
}

/// The id of an event: the same for every webhook and every attempt.
fn event_id(record: &CageRecord, event: &ProjectEvent) -> String {
    use sha2::{Digest, Sha256};
    let text = format!(
        "{}:{}:{}:{}",
        record.name,
        event.cage,
        event.kind.name(),
        event.time
    );
    let digest = crate::keys::hex(&Sha256::digest(text));
    format!("evt_{}", digest.get(..32).unwrap_or_default())
}

fn body(id: &str, record: &CageRecord, event: &ProjectEvent) -> String {
    let metadata: &BTreeMap<String, String> = &record.spec.metadata;
    json!({
        "id": id,
        "type": format!("cage.{}", event.kind.name()),
        "timestamp": event.time,
        "project": record.project,
        "data": {
            "cage": event.cage,
            "state": event.state,
            "ending": event.ending,
            "metadata": metadata,
        },
    })
    .to_string()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::types::CageState;
    use crate::engine::tests::record;

    fn new(project: &str, events: &[Kind]) -> NewWebhook {
        NewWebhook {
            project: project.to_owned(),
            url: "https://hooks.example.com/cages".parse().unwrap(),
            events: events.iter().copied().collect(),
            any_address: false,
            operator: false,
        }
    }

    #[test]
    fn a_webhook_belongs_to_its_project_and_is_kept_for_its_owner_alone() {
        use std::os::unix::fs::PermissionsExt;
        let data = tempfile::tempdir().unwrap();
        let webhooks = Webhooks::in_data(data.path());
        let webhook = webhooks.create(new("team", &[])).unwrap();
        assert_eq!(webhooks.get("team", &webhook.id).unwrap(), webhook);
        assert_eq!(
            webhooks.list("team").unwrap(),
            std::slice::from_ref(&webhook)
        );
        assert_eq!(webhooks.projects().unwrap(), ["team"]);
        let path = webhooks.path("team", &webhook.id).unwrap();
        assert_eq!(
            fs::metadata(&path).unwrap().permissions().mode() & 0o777,
            0o600
        );
        for (project, id) in [
            ("other", webhook.id.as_str()),
            ("team", "../team"),
            ("team", "000000000000"),
        ] {
            assert!(matches!(
                webhooks.get(project, id),
                Err(WebhookError::NotFound { .. })
            ));
            assert!(webhooks.delete(project, id).is_err());
        }
        assert!(matches!(
            webhooks.list("../team"),
            Err(WebhookError::Project)
        ));
        webhooks.delete("team", &webhook.id).unwrap();
        assert_eq!(webhooks.list("team").unwrap(), []);
        assert_eq!(webhooks.list("nobody").unwrap(), []);
    }

    #[test]
    fn a_project_has_a_bounded_number_of_webhooks_with_secrets_of_their_own() {
        let data = tempfile::tempdir().unwrap();
        let webhooks = Webhooks::in_data(data.path());
        let secrets: BTreeSet<String> = (0..MOST_WEBHOOKS)
            .map(|_| webhooks.create(new("team", &[])).unwrap().shown_secret())
            .collect();
        assert_eq!(secrets.len(), MOST_WEBHOOKS);
        assert!(
            secrets
                .iter()
                .all(|secret| secret.starts_with("whsec_") && secret.len() == 50)
        );
        let refused = webhooks.create(new("team", &[]));
        assert!(matches!(refused, Err(WebhookError::TooMany { .. })));
        webhooks.create(new("other", &[])).unwrap();
    }

    #[test]
    fn an_event_goes_to_the_webhooks_of_its_project_that_want_it() {
        let data = tempfile::tempdir().unwrap();
        let webhooks = Webhooks::in_data(data.path());
        let all = webhooks.create(new("team", &[])).unwrap();
        let ends = webhooks.create(new("team", &[Kind::Ended])).unwrap();
        webhooks.create(new("other", &[])).unwrap();
        let record = CageRecord {
            project: "team".to_owned(),
            ..record()
        };
        let event = |kind| ProjectEvent {
            kind,
            cage: "c1".to_owned(),
            state: CageState::Ended,
            time: "2026-11-19T00:00:00Z".to_owned(),
            ending: Some("stopped".to_owned()),
        };
        let told = |kind| {
            let deliveries = webhooks.deliveries(&record, &event(kind));
            let mut ids: Vec<_> = deliveries.iter().map(|one| one.webhook.clone()).collect();
            ids.sort();
            (ids, deliveries)
        };
        let mut both = vec![all.id.clone(), ends.id];
        both.sort();
        let (ids, deliveries) = told(Kind::Ended);
        assert_eq!(ids, both);
        assert_eq!(told(Kind::Paused).0, [all.id]);
        let body: serde_json::Value = serde_json::from_str(&deliveries[0].body).unwrap();
        assert_eq!(body["type"], "cage.ended");
        assert_eq!(body["data"]["ending"], "stopped");
        assert_eq!(body["id"], deliveries[0].id.as_str());
        assert_eq!(deliveries[0].id, deliveries[1].id);
    }
}
