//! The figures in the list of cages: use, pending requests and traffic.

use crate::api::types::{Cage, CageState, PermissionRequest, Usage};
use crate::api::{Caller, Query};
use crate::engine::{Engine, Entry};
use crate::error::ApiResult;
use crate::keys::Scope;
use axum::Extension;
use axum::extract::State;
use futures_util::StreamExt;
use ironcage_audit::{LogPlace, Tail};
use ironcage_client::Cages;
use ironcage_model::{EventKind, NetworkVerdict, Traffic};
use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

/// Cages of one answer.
const MOST: usize = 200;
/// Cages that are asked at the same time.
const AT_ONCE: usize = 16;

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct CagesQuery {
    /// Text that a cage must have in its ID, its project, its metadata or what it was made from.
    #[serde(default)]
    find: Option<String>,
    /// Only this cage.
    #[serde(default)]
    id: Option<String>,
}

#[derive(Debug, Serialize)]
pub(super) struct Overview {
    cages: Vec<CageOverview>,
    /// Cages that match; more than there are in `cages` where they are too many.
    total: usize,
    /// Microseconds since the epoch, by which rates are reckoned.
    time: u64,
}

#[derive(Debug, Serialize)]
struct CageOverview {
    #[serde(flatten)]
    cage: Cage,
    project: String,
    /// Absent where it has ended, or does not answer.
    #[serde(skip_serializing_if = "Option::is_none")]
    usage: Option<Usage>,
    requests: Vec<PermissionRequest>,
    network: TrafficSums,
}

/// Connections of a cage and their bytes, as its audit log has them: the proxy sums up for some seconds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
struct TrafficSums {
    connections: u64,
    denied: u64,
    sent: u64,
    received: u64,
}

impl TrafficSums {
    fn add(&mut self, traffic: &Traffic) {
        let count = match traffic.verdict {
            NetworkVerdict::Allowed => &mut self.connections,
            NetworkVerdict::Denied => &mut self.denied,
        };
        *count = count.saturating_add(traffic.connections);
        self.sent = self.sent.saturating_add(traffic.sent);
        self.received = self.received.saturating_add(traffic.received);
    }
}

/// Lines of a log that are held at once.
const BATCH: usize = 64;

/// The sums of cages, as far as their logs were read.
#[derive(Debug, Clone, Default)]
pub(super) struct Traffics(Arc<Mutex<HashMap<String, (LogPlace, TrafficSums)>>>);

impl Traffics {
    /// The sums of one cage. Its log is read on from where the last look ended.
    fn of(&self, id: &str, log: &Path) -> TrafficSums {
        let lock = || self.0.lock().unwrap_or_else(PoisonError::into_inner);
        // Without a log, or one that cannot be read, nothing is known to have gone out; the page of the
        // cage, which reads the log too, says why.
        let (place, sums) = lock().get(id).copied().unwrap_or_default();
        let (place, sums) = add_lines(log, place, sums);
        lock().insert(id.to_owned(), (place, sums));
        sums
    }

    /// Forgets cages that the service has forgotten.
    fn forget(&self, engine: &Engine) {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        known.retain(|id, _| engine.any_cage(id).is_some());
    }
}

/// Adds the lines of a log after a place.
fn add_lines(log: &Path, place: LogPlace, mut sums: TrafficSums) -> (LogPlace, TrafficSums) {
    let Ok(mut tail) = Tail::open_at(log, place) else {
        return (place, sums);
    };
    while let Ok(lines) = tail.next_lines(BATCH)
        && !lines.is_empty()
    {
        for line in lines.iter().flatten() {
            if let EventKind::Network(traffic) = &line.event.kind {
                sums.add(traffic);
            }
        }
    }
    (tail.place(), sums)
}

fn matches(cage: &Cage, project: &str, find: &str) -> bool {
    let from = [&cage.profile, &cage.directory, &cage.image, &cage.template];
    let mut texts = [Some(&cage.id)].into_iter().chain(from.map(Option::as_ref));
    let find = find.to_lowercase();
    let has = |text: &str| text.to_lowercase().contains(&find);
    texts.any(|text| text.is_some_and(|text| has(text)))
        || has(project)
        || cage
            .metadata
            .iter()
            .any(|(name, value)| has(name) || has(value))
}

/// Lists the cages that a key sees: those that run and are paused, then those that ended.
pub(super) async fn cages(
    caller: Caller,
    State(engine): State<Arc<Engine>>,
    Extension(traffics): Extension<Traffics>,
    Query(query): Query<CagesQuery>,
) -> ApiResult<axum::Json<Overview>> {
    caller.needs(Scope::Read)?;
    let seen = engine.list(&caller.key);
    traffics.forget(&engine);
    let find = query.find.unwrap_or_default();
    let mut found: Vec<(Arc<Entry>, Cage, String)> = seen
        .into_iter()
        .map(|entry| {
            let (cage, project) = (entry.shown(), entry.record().project);
            (entry, cage, project)
        })
        .filter(|(_, cage, project)| {
            query.id.as_ref().is_none_or(|id| *id == cage.id) && matches(cage, project, &find)
        })
        .collect();
    found.sort_by_key(|(_, cage, _)| cage.state == CageState::Ended);
    let total = found.len();
    found.truncate(MOST);
    let cages = futures_util::stream::iter(found)
        .map(|(entry, cage, project)| {
            let traffics = traffics.clone();
            async move { look(&entry, cage, project, traffics).await }
        })
        .buffered(AT_ONCE)
        .collect()
        .await;
    Ok(axum::Json(Overview {
        cages,
        total,
        time: crate::clock::now(),
    }))
}

async fn look(entry: &Arc<Entry>, cage: Cage, project: String, traffics: Traffics) -> CageOverview {
    // One that does not answer is shown without numbers: the rest of the list is not held up by it.
    let (usage, requests) = match cage.state {
        CageState::Ended => (None, Vec::new()),
        CageState::Running | CageState::Paused => match crate::api::look(entry).await {
            Ok((usage, requests)) => (Some(usage), requests),
            Err(_) => (None, Vec::new()),
        },
    };
    let id = entry.id.clone();
    let network = crate::engine::blocking(move || {
        let log = ironcage_audit::log_path(Cages::of_user()?.audit(), &id);
        Ok(traffics.of(id.as_str(), &log))
    });
    CageOverview {
        cage,
        project,
        usage,
        requests,
        network: network.await.unwrap_or_default(),
    }
}
