//! The memory of the service: its cages and the idempotency keys, in one file.
//!
//! A record is written before a cage starts and after it has: a service that is killed in between
//! finds the cage by the name that it was given (ADR 56).

mod deliveries;
mod usage;

pub(crate) use deliveries::{Delivery, WaitingDelivery, WebhookState};
pub(crate) use usage::{UsageRecord, UsageSample, UsedAmounts};

use crate::api::types::{CreateCage, OnTimeout};
use ironcage_model::{HostRule, LiveRule, NetworkVerdict};
use redb::{Database, ReadableDatabase, ReadableTable, TableDefinition};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fs::{OpenOptions, Permissions};
use std::io;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::Path;

const CAGES: TableDefinition<'_, &str, &[u8]> = TableDefinition::new("cages");
const CHANGES: TableDefinition<'_, &str, &[u8]> = TableDefinition::new("changes");
const SNAPSHOTS: TableDefinition<'_, &str, &[u8]> = TableDefinition::new("snapshots");
const TEMPLATES: TableDefinition<'_, &str, &[u8]> = TableDefinition::new("templates");
const CREATIONS: TableDefinition<'_, &str, &[u8]> = TableDefinition::new("idempotency");
/// Names of warm cages that nobody has yet, and since when.
const WARM: TableDefinition<'_, &str, &[u8]> = TableDefinition::new("warm");

/// The origin of rules that a connection to the supervisor adds, as the service does.
pub(crate) const OPERATOR: &str = "operator";

/// Why the store cannot be used.
#[derive(Debug, thiserror::Error)]
pub(crate) enum StoreError {
    #[error("cannot open the store {path}")]
    Open {
        path: String,
        source: Box<redb::Error>,
    },
    #[error("cannot use the store of the service")]
    Use(#[source] Box<redb::Error>),
    #[error("a record in the store is not valid")]
    Record(#[from] serde_json::Error),
}

fn using(error: impl Into<redb::Error>) -> StoreError {
    StoreError::Use(Box::new(error.into()))
}

/// A cage as it is remembered.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct CageRecord {
    /// The name that its supervisor has, which is given before there is an id.
    pub(crate) name: String,
    /// The cage's id, once it has started.
    pub(crate) id: Option<String>,
    pub(crate) project: String,
    pub(crate) spec: CreateCage,
    /// Microseconds since the epoch.
    pub(crate) created: u64,
    pub(crate) ends: u64,
    pub(crate) on_timeout: OnTimeout,
    pub(crate) paused: bool,
    /// How it ended, and when.
    pub(crate) ending: Option<(u64, String)>,
    pub(crate) home: String,
    pub(crate) workspace: String,
    /// The template as E2B's API names it, where it was created there.
    pub(crate) e2b_template: Option<String>,
    /// Token of E2B's envd.
    pub(crate) token: String,
    /// The pending change that it works on.
    #[serde(default)]
    pub(crate) change: Option<String>,
    /// Id of the key that created it.
    #[serde(default)]
    pub(crate) key: String,
    /// Bytes of memory that it is counted with.
    #[serde(default)]
    pub(crate) memory: Option<u64>,
    /// Whether its template brought a policy, or a profile that not every key may name.
    #[serde(default)]
    pub(crate) template_policy: bool,
    #[serde(default)]
    pub(crate) e2b: E2bState,
    /// The snapshot whose files it does not have yet.
    #[serde(default)]
    pub(crate) restoring: Option<String>,
}

/// A snapshot as it is remembered. Its files are in an archive beside the store.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct SnapshotRecord {
    pub(crate) id: String,
    pub(crate) project: String,
    pub(crate) name: Option<String>,
    /// The cage that it is of.
    pub(crate) cage: String,
    /// Microseconds since the epoch.
    pub(crate) created: u64,
    pub(crate) bytes: u64,
    /// Whether it goes as soon as cages have it.
    pub(crate) temporary: bool,
    /// What its cage was made of.
    pub(crate) spec: CreateCage,
    pub(crate) e2b_template: Option<String>,
    /// What cages of it begin with, besides files.
    #[serde(default)]
    pub(crate) state: Option<E2bState>,
    /// The template that it belongs to: it is not listed then.
    #[serde(default)]
    pub(crate) template: Option<String>,
}

/// What E2B's API says of a sandbox beyond its spec.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct E2bState {
    /// Whether a request to the sandbox resumes it.
    pub(crate) auto_resume: bool,
    pub(crate) internet: Option<bool>,
    /// Hosts as they were named.
    pub(crate) allow_out: Vec<String>,
    pub(crate) deny_out: Vec<String>,
    /// Numbers of the rules that were added for them.
    pub(crate) rules: Vec<u32>,
    /// What is being put in their place.
    pub(crate) rules_intent: Option<RulesIntent>,
    /// Whether the rules of the cage do not follow from these hosts yet.
    pub(crate) rules_pending: bool,
    /// Whether its ports need its token.
    pub(crate) private_ports: bool,
    /// The host name that programs behind its ports see.
    pub(crate) mask_host: Option<String>,
    /// The build of a template that it is for.
    pub(crate) building: Option<String>,
    /// Where commands run that name no directory.
    pub(crate) workdir: Option<String>,
    /// What a cage of the template runs at its start, and what succeeds once that is ready.
    pub(crate) start: Option<String>,
    pub(crate) ready: Option<String>,
}

/// Rules that are about to be added to a cage, noted before: a service that is killed in between finds
/// by it which of them are its own.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct RulesIntent {
    /// Numbers of the rules that they replace.
    pub(crate) replaced: Vec<u32>,
    /// Numbers of all rules that the cage had.
    pub(crate) before: Vec<u32>,
    pub(crate) rules: Vec<(NetworkVerdict, HostRule)>,
}

impl E2bState {
    /// The rules of a cage that were added for its hosts, those of an update that was cut off included.
    pub(crate) fn own_rules(&self, live: &[LiveRule]) -> Vec<u32> {
        let intended = |rule: &LiveRule| {
            self.rules_intent.as_ref().is_some_and(|intent| {
                let is_plain = rule.requests.is_none() && rule.uses.is_none();
                let is_new = !intent.before.contains(&rule.number)
                    && rule.origin == OPERATOR
                    && is_plain
                    && intent.rules.contains(&(rule.verdict, rule.rule.clone()));
                is_new || intent.replaced.contains(&rule.number)
            })
        };
        let own = |rule: &&LiveRule| self.rules.contains(&rule.number) || intended(rule);
        live.iter().filter(own).map(|rule| rule.number).collect()
    }
}

/// A template that was built, as it is remembered.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct TemplateRecord {
    pub(crate) id: String,
    pub(crate) project: String,
    pub(crate) name: String,
    /// Microseconds since the epoch.
    pub(crate) created: u64,
    pub(crate) builds: Vec<TemplateBuild>,
    /// The build that a tag is of, and since when.
    pub(crate) tags: BTreeMap<String, (String, u64)>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct TemplateBuild {
    pub(crate) id: String,
    pub(crate) snapshot: String,
}

/// Whose cage worked on a pending change last.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ChangeOwner {
    pub(crate) project: String,
    pub(crate) cage: String,
}

/// A creation that is not to be repeated.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Creation {
    /// SHA-256 of the request.
    pub(crate) request: String,
    /// Name of the record.
    pub(crate) cage: String,
    pub(crate) time: u64,
}

/// Makes the file where there is none, for its owner alone: it has tokens and environments.
fn own(path: &Path) -> io::Result<()> {
    let file = OpenOptions::new()
        .append(true)
        .create(true)
        .mode(0o600)
        .open(path)?;
    file.set_permissions(Permissions::from_mode(0o600))
}

#[derive(Debug)]
pub(crate) struct Store(Database);

impl Store {
    /// Opens the store, for this process alone.
    pub(crate) fn open(path: &Path) -> Result<Store, StoreError> {
        let failed = |error: redb::Error| StoreError::Open {
            path: path.display().to_string(),
            source: Box::new(error),
        };
        own(path).map_err(|error| failed(redb::Error::Io(error)))?;
        let database = Database::create(path).map_err(|error| failed(error.into()))?;
        let write = database.begin_write().map_err(using)?;
        write.open_table(CAGES).map_err(using)?;
        write.open_table(CREATIONS).map_err(using)?;
        write.open_table(CHANGES).map_err(using)?;
        write.open_table(SNAPSHOTS).map_err(using)?;
        write.open_table(TEMPLATES).map_err(using)?;
        write.open_table(WARM).map_err(using)?;
        deliveries::open(&write)?;
        usage::open(&write)?;
        write.commit().map_err(using)?;
        Ok(Store(database))
    }

    pub(crate) fn cages(&self) -> Result<Vec<CageRecord>, StoreError> {
        let read = self.0.begin_read().map_err(using)?;
        let table = read.open_table(CAGES).map_err(using)?;
        let mut records = Vec::new();
        for row in table.iter().map_err(using)? {
            let (_, value) = row.map_err(using)?;
            records.push(serde_json::from_slice(value.value())?);
        }
        Ok(records)
    }

    pub(crate) fn cage(&self, name: &str) -> Result<Option<CageRecord>, StoreError> {
        let read = self.0.begin_read().map_err(using)?;
        let table = read.open_table(CAGES).map_err(using)?;
        let found = table.get(name).map_err(using)?;
        Ok(found
            .map(|value| serde_json::from_slice(value.value()))
            .transpose()?)
    }

    pub(crate) fn put(&self, record: &CageRecord) -> Result<(), StoreError> {
        let value = serde_json::to_vec(record)?;
        self.write(CAGES, |table| {
            table
                .insert(record.name.as_str(), value.as_slice())
                .map(drop)
        })
    }

    pub(crate) fn remove(&self, name: &str) -> Result<(), StoreError> {
        self.write(CAGES, |table| table.remove(name).map(drop))
    }

    pub(crate) fn snapshots(&self) -> Result<Vec<SnapshotRecord>, StoreError> {
        let read = self.0.begin_read().map_err(using)?;
        let table = read.open_table(SNAPSHOTS).map_err(using)?;
        let mut records = Vec::new();
        for row in table.iter().map_err(using)? {
            let (_, value) = row.map_err(using)?;
            records.push(serde_json::from_slice(value.value())?);
        }
        Ok(records)
    }

    pub(crate) fn snapshot(&self, id: &str) -> Result<Option<SnapshotRecord>, StoreError> {
        let read = self.0.begin_read().map_err(using)?;
        let table = read.open_table(SNAPSHOTS).map_err(using)?;
        let found = table.get(id).map_err(using)?;
        Ok(found
            .map(|value| serde_json::from_slice(value.value()))
            .transpose()?)
    }

    /// Keeps a snapshot. Another one of its project loses the name that this one has.
    pub(crate) fn put_snapshot(&self, snapshot: &SnapshotRecord) -> Result<(), StoreError> {
        let write = self.0.begin_write().map_err(using)?;
        {
            let mut table = write.open_table(SNAPSHOTS).map_err(using)?;
            let mut renamed = Vec::new();
            for row in table.iter().map_err(using)? {
                let (_, value) = row.map_err(using)?;
                let mut other: SnapshotRecord = serde_json::from_slice(value.value())?;
                let same = other.name.is_some() && other.name == snapshot.name;
                if same && other.project == snapshot.project {
                    other.name = None;
                    renamed.push(other);
                }
            }
            for record in renamed.iter().chain([snapshot]) {
                let value = serde_json::to_vec(record)?;
                table
                    .insert(record.id.as_str(), value.as_slice())
                    .map_err(using)?;
            }
        }
        write.commit().map_err(using)
    }

    pub(crate) fn remove_snapshot(&self, id: &str) -> Result<(), StoreError> {
        self.write(SNAPSHOTS, |table| table.remove(id).map(drop))
    }

    pub(crate) fn templates(&self) -> Result<Vec<TemplateRecord>, StoreError> {
        let read = self.0.begin_read().map_err(using)?;
        let table = read.open_table(TEMPLATES).map_err(using)?;
        let mut records = Vec::new();
        for row in table.iter().map_err(using)? {
            let (_, value) = row.map_err(using)?;
            records.push(serde_json::from_slice(value.value())?);
        }
        Ok(records)
    }

    pub(crate) fn put_template(&self, template: &TemplateRecord) -> Result<(), StoreError> {
        let value = serde_json::to_vec(template)?;
        self.write(TEMPLATES, |table| {
            let id = template.id.as_str();
            table.insert(id, value.as_slice()).map(drop)
        })
    }

    pub(crate) fn remove_template(&self, id: &str) -> Result<(), StoreError> {
        self.write(TEMPLATES, |table| table.remove(id).map(drop))
    }

    pub(crate) fn creation(&self, key: &str) -> Result<Option<Creation>, StoreError> {
        let read = self.0.begin_read().map_err(using)?;
        let table = read.open_table(CREATIONS).map_err(using)?;
        let found = table.get(key).map_err(using)?;
        Ok(found
            .map(|value| serde_json::from_slice(value.value()))
            .transpose()?)
    }

    /// A new record, and the creation of it that may be asked for again, together. Where its key has a
    /// creation already, that one, and nothing is written. A warm cage of this name is one no more.
    /// What webhooks are told about it is written with it.
    pub(crate) fn put_new(
        &self,
        record: &CageRecord,
        creation: Option<&(&str, Creation)>,
        deliveries: &[Delivery],
    ) -> Result<Option<Creation>, StoreError> {
        let cage = serde_json::to_vec(record)?;
        let write = self.0.begin_write().map_err(using)?;
        {
            if let Some((key, creation)) = creation {
                let value = serde_json::to_vec(&Creation {
                    cage: record.name.clone(),
                    ..creation.clone()
                })?;
                let mut creations = write.open_table(CREATIONS).map_err(using)?;
                // Writers follow one another, so between this look and the commit is none.
                if let Some(earlier) = creations.get(key).map_err(using)? {
                    return Ok(Some(serde_json::from_slice(earlier.value())?));
                }
                creations.insert(key, value.as_slice()).map_err(using)?;
            }
            let mut warm = write.open_table(WARM).map_err(using)?;
            warm.remove(record.name.as_str()).map_err(using)?;
            let mut cages = write.open_table(CAGES).map_err(using)?;
            cages
                .insert(record.name.as_str(), cage.as_slice())
                .map_err(using)?;
        }
        deliveries::enqueue(&write, deliveries)?;
        write.commit().map_err(using)?;
        Ok(None)
    }

    /// Warm cages that nobody has yet: their names, and since when.
    pub(crate) fn warm(&self) -> Result<Vec<(String, u64)>, StoreError> {
        let read = self.0.begin_read().map_err(using)?;
        let table = read.open_table(WARM).map_err(using)?;
        let mut names = Vec::new();
        for row in table.iter().map_err(using)? {
            let (name, since) = row.map_err(using)?;
            let since = serde_json::from_slice(since.value())?;
            names.push((name.value().to_owned(), since));
        }
        Ok(names)
    }

    pub(crate) fn put_warm(&self, name: &str, since: u64) -> Result<(), StoreError> {
        let since = serde_json::to_vec(&since)?;
        self.write(WARM, |table| table.insert(name, since.as_slice()).map(drop))
    }

    pub(crate) fn forget_warm(&self, name: &str) -> Result<(), StoreError> {
        self.write(WARM, |table| table.remove(name).map(drop))
    }

    /// Whether a creation that may be asked for again names a record.
    pub(crate) fn creates(&self, name: &str) -> Result<bool, StoreError> {
        let read = self.0.begin_read().map_err(using)?;
        let table = read.open_table(CREATIONS).map_err(using)?;
        for row in table.iter().map_err(using)? {
            let (_, value) = row.map_err(using)?;
            let creation: Creation = serde_json::from_slice(value.value())?;
            if creation.cage == name {
                return Ok(true);
            }
        }
        Ok(false)
    }

    pub(crate) fn forget_creation(&self, key: &str) -> Result<(), StoreError> {
        self.write(CREATIONS, |table| table.remove(key).map(drop))
    }

    /// Forgets creations from before a time.
    pub(crate) fn forget_creations(&self, before: u64) -> Result<(), StoreError> {
        self.write(CREATIONS, |table| {
            table.retain(|_, value| {
                serde_json::from_slice(value)
                    .is_ok_and(|creation: Creation| creation.time >= before)
            })
        })
    }

    /// Whose the pending changes are, by their ids.
    pub(crate) fn change_owners(&self) -> Result<BTreeMap<String, ChangeOwner>, StoreError> {
        let read = self.0.begin_read().map_err(using)?;
        let table = read.open_table(CHANGES).map_err(using)?;
        let mut owners = BTreeMap::new();
        for row in table.iter().map_err(using)? {
            let (id, owner) = row.map_err(using)?;
            owners.insert(
                id.value().to_owned(),
                serde_json::from_slice(owner.value())?,
            );
        }
        Ok(owners)
    }

    pub(crate) fn put_change_owner(&self, id: &str, owner: &ChangeOwner) -> Result<(), StoreError> {
        let value = serde_json::to_vec(owner)?;
        self.write(CHANGES, |table| {
            table.insert(id, value.as_slice()).map(drop)
        })
    }

    pub(crate) fn forget_change_owner(&self, id: &str) -> Result<(), StoreError> {
        self.write(CHANGES, |table| table.remove(id).map(drop))
    }

    fn write(
        &self,
        table: TableDefinition<'_, &'static str, &'static [u8]>,
        change: impl FnOnce(
            &mut redb::Table<'_, &'static str, &'static [u8]>,
        ) -> Result<(), redb::StorageError>,
    ) -> Result<(), StoreError> {
        let write = self.0.begin_write().map_err(using)?;
        {
            let mut table = write.open_table(table).map_err(using)?;
            change(&mut table).map_err(using)?;
        }
        write.commit().map_err(using)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_store_is_for_its_owner_alone_also_one_that_was_not() {
        let data = tempfile::tempdir().unwrap();
        let path = data.path().join("serve.redb");
        for _ in 0..2 {
            drop(Store::open(&path).unwrap());
            let mode = || std::fs::metadata(&path).unwrap().permissions().mode() & 0o777;
            assert_eq!(mode(), 0o600);
            std::fs::set_permissions(&path, Permissions::from_mode(0o644)).unwrap();
            assert_eq!(mode(), 0o644);
        }
    }

    #[test]
    fn a_key_has_one_creation_until_it_is_forgotten() {
        let data = tempfile::tempdir().unwrap();
        let store = Store::open(&data.path().join("serve.redb")).unwrap();
        let record = |name: &str| CageRecord {
            name: name.to_owned(),
            id: None,
            project: "team".to_owned(),
            spec: CreateCage::default(),
            created: 1,
            ends: 2,
            on_timeout: OnTimeout::Delete,
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
            e2b: E2bState::default(),
            restoring: None,
        };
        let creation = |name: &str| Creation {
            request: "r".to_owned(),
            cage: name.to_owned(),
            time: 1,
        };
        let put = |name: &str| store.put_new(&record(name), Some(&("team/k", creation(""))), &[]);
        assert_eq!(put("one").unwrap(), None);
        assert_eq!(put("two").unwrap(), Some(creation("one")));
        let names: Vec<_> = store.cages().unwrap().into_iter().map(|r| r.name).collect();
        assert_eq!(names, ["one"]);
        store.forget_creation("team/k").unwrap();
        assert_eq!(put("two").unwrap(), None);
        // A warm cage becomes one of a project with its record, and not with a creation that was earlier.
        let warm = || {
            let warm = store.warm().unwrap().into_iter();
            warm.map(|(name, _)| name).collect::<Vec<_>>()
        };
        store.put_warm("three", 1).unwrap();
        assert_eq!(put("three").unwrap(), Some(creation("two")));
        assert_eq!(warm(), ["three"]);
        assert_eq!(store.put_new(&record("three"), None, &[]).unwrap(), None);
        assert_eq!(warm(), [""; 0]);
    }
}
