//! `/v1/usage`: what the cages of a project used, also those that have ended.

use super::{Caller, Query, Shared};
use crate::clock;
use crate::engine::{blocking, store_error};
use crate::error::{ApiError, ApiResult, ErrorBody};
use crate::keys::Scope;
use crate::store::{UsageRecord, UsedAmounts};
use axum::extract::State;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use utoipa::{IntoParams, ToSchema};

/// Cages of a page where nothing is said, and at most.
const PAGE: usize = 100;
const LARGEST_PAGE: usize = 1000;

#[derive(Debug, Default, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct UsageQuery {
    /// Cages of a page [default: 100].
    #[param(minimum = 1, maximum = 1000)]
    pub(crate) limit: Option<usize>,
    /// Where the page before this one ended [default: the first page].
    pub(crate) cursor: Option<String>,
}

/// What one cage used.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub(crate) struct CageUsage {
    pub(crate) cage: String,
    /// RFC 3339.
    pub(crate) started_at: String,
    /// RFC 3339; absent while it runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) ended_at: Option<String>,
    pub(crate) used: UsedAmounts,
}

/// What the cages of a project used.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub(crate) struct ProjectUsage {
    /// All cages since the project's first, also those that are not listed any more.
    pub(crate) total: UsedAmounts,
    /// The newest first: those that run, and the last 10,000 that ended.
    pub(crate) cages: Vec<CageUsage>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) next_cursor: Option<String>,
}

impl From<UsageRecord> for CageUsage {
    fn from(record: UsageRecord) -> CageUsage {
        CageUsage {
            cage: record.cage,
            started_at: clock::rfc3339(record.started),
            ended_at: record.ended.map(clock::rfc3339),
            used: record.used,
        }
    }
}

/// Show what the cages of the project used
///
/// Cages that run are looked at every five seconds or so, and once more when they are deleted. What a cage
/// used between the last look and an end of its own is not counted.
#[utoipa::path(get, path = "/v1/usage", tag = "service", params(UsageQuery),
    responses((status = 200, body = ProjectUsage), (status = "default", body = ErrorBody)))]
pub(super) async fn project_usage(
    caller: Caller,
    State(engine): Shared,
    Query(query): Query<UsageQuery>,
) -> ApiResult<axum::Json<ProjectUsage>> {
    caller.needs(Scope::Read)?;
    let limit = match query.limit.unwrap_or(PAGE) {
        limit @ 1..=LARGEST_PAGE => limit,
        other => {
            return Err(ApiError::invalid(format!(
                "the limit is {other}; expected 1 to {LARGEST_PAGE}"
            )));
        }
    };
    let project = caller.key.project;
    let found = blocking(move || {
        let (kept, gone) = engine.store.usage_of(&project).map_err(store_error)?;
        let mut records: BTreeMap<(u64, String), UsageRecord> = BTreeMap::new();
        // What runs is newer in memory than in the store.
        let running = engine.usage.all().into_iter();
        let running = running.filter(|record| record.project == project);
        for record in kept.into_iter().chain(running) {
            records.insert((record.started, record.cage.clone()), record);
        }
        Ok((records, gone))
    });
    let (records, mut total) = found.await?;
    for record in records.values() {
        total.add(record.used);
    }
    let mut newest: Vec<UsageRecord> = records.into_values().rev().collect();
    if let Some(cursor) = query.cursor.filter(|cursor| !cursor.is_empty()) {
        let place = newest.iter().position(|record| record.cage == cursor);
        let place = place.ok_or_else(|| {
            ApiError::invalid(format!(
                "the cursor `{}` is not valid any more",
                cursor.escape_debug()
            ))
            .hint("list from the start")
        })?;
        newest.drain(..=place);
    }
    let more = newest.len() > limit;
    newest.truncate(limit);
    Ok(axum::Json(ProjectUsage {
        total,
        next_cursor: newest
            .last()
            .filter(|_| more)
            .map(|record| record.cage.clone()),
        cages: newest.into_iter().map(CageUsage::from).collect(),
    }))
}
