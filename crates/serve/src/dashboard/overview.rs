//! The figures in the list of cages: use, pending requests and traffic.

use crate::api::types::{Cage, CageState, PermissionRequest, Usage};
use crate::api::{Caller, Query};
use crate::engine::{Engine, Entry};
use crate::error::ApiResult;
use crate::keys::Scope;
use crate::traffic::{TrafficSums, Traffics};
use axum::extract::State;
use futures_util::StreamExt;
use ironcage_client::Cages;
use serde::{Deserialize, Serialize};
use std::sync::Arc;

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
    Query(query): Query<CagesQuery>,
) -> ApiResult<axum::Json<Overview>> {
    caller.needs(Scope::Read)?;
    let seen = engine.list(&caller.key);
    let traffics = engine.traffics.clone();
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
