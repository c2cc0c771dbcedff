//! `/v1/snapshots`, and what is made of a running cage: snapshots and forks.

use super::types::Cage;
use super::{Caller, Json, Path, Query, Shared};
use crate::clock;
use crate::engine::MOST_FORKS;
use crate::error::{ApiResult, ErrorBody, ErrorDetail};
use crate::keys::Scope;
use crate::store::SnapshotRecord;
use axum::extract::State;
use axum::http::StatusCode;
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

/// The files of a cage at one time.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub(crate) struct Snapshot {
    #[schema(example = "s0123456789abcdef")]
    pub(crate) id: String,
    pub(crate) name: Option<String>,
    /// The cage that it is of.
    pub(crate) cage: String,
    /// RFC 3339.
    pub(crate) created_at: String,
    pub(crate) bytes: u64,
}

impl From<SnapshotRecord> for Snapshot {
    fn from(record: SnapshotRecord) -> Snapshot {
        Snapshot {
            id: record.id,
            name: record.name,
            cage: record.cage,
            created_at: clock::rfc3339(record.created),
            bytes: record.bytes,
        }
    }
}

#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub(crate) struct SnapshotList {
    pub(crate) snapshots: Vec<Snapshot>,
}

#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct TakeSnapshot {
    /// A name by which cages are created; an earlier snapshot loses it.
    #[serde(default)]
    pub(crate) name: Option<String>,
}

#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct RestoreSnapshot {
    /// Id or name.
    pub(crate) snapshot: String,
}

#[derive(Debug, Default, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct ListSnapshots {
    /// Only those of this cage.
    pub(crate) cage: Option<String>,
}

#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct ForkCage {
    /// Cages to make [default: 1].
    #[serde(default)]
    #[schema(minimum = 1, maximum = 20)]
    pub(crate) count: Option<usize>,
    /// Seconds until they are ended [default: 300].
    #[serde(default)]
    #[schema(minimum = 1, maximum = 31_536_000)]
    pub(crate) timeout: Option<u32>,
}

/// One cage of a fork: the cage, or why it was not made.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub(crate) struct ForkedCage {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) cage: Option<Cage>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) error: Option<ErrorDetail>,
}

#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub(crate) struct ForkedCages {
    pub(crate) cages: Vec<ForkedCage>,
}

/// Take a snapshot of the files of a running cage
///
/// Its home, `/tmp` and its workspace, if that goes with it; not its processes and their memory. The
/// cage goes on: a file that is written meanwhile may be in it half. It stays when the cage is gone.
#[utoipa::path(post, path = "/v1/cages/{id}/snapshots", tag = "snapshots", params(("id" = String, Path)),
    request_body = TakeSnapshot,
    responses((status = 201, body = Snapshot), (status = "default", body = ErrorBody)))]
pub(super) async fn take_snapshot(
    caller: Caller,
    State(engine): Shared,
    Path(id): Path<String>,
    Json(wanted): Json<TakeSnapshot>,
) -> ApiResult<(StatusCode, axum::Json<Snapshot>)> {
    caller.needs(Scope::Cages)?;
    let entry = engine.cage(&caller.key, &id)?;
    let snapshot = engine.snapshot(&entry, wanted.name).await?;
    Ok((StatusCode::CREATED, axum::Json(snapshot.into())))
}

/// Replace the files of a running cage by those of a snapshot
///
/// Processes go on, with the files that they have open.
#[utoipa::path(post, path = "/v1/cages/{id}/restore", tag = "snapshots", params(("id" = String, Path)),
    request_body = RestoreSnapshot,
    responses((status = 200, body = Cage), (status = "default", body = ErrorBody)))]
pub(super) async fn restore_snapshot(
    caller: Caller,
    State(engine): Shared,
    Path(id): Path<String>,
    Json(wanted): Json<RestoreSnapshot>,
) -> ApiResult<axum::Json<Cage>> {
    caller.needs(Scope::Cages)?;
    let entry = engine.cage(&caller.key, &id)?;
    let snapshot = engine.find_snapshot(&caller.key, &wanted.snapshot)?;
    engine.restore(&entry, &snapshot, true).await?;
    Ok(axum::Json(entry.shown()))
}

/// Make cages with the files of a running one
///
/// They have its system, environment, metadata and network, and none of its processes.
#[utoipa::path(post, path = "/v1/cages/{id}/fork", tag = "snapshots", params(("id" = String, Path)),
    request_body = ForkCage,
    responses((status = 201, body = ForkedCages), (status = "default", body = ErrorBody)))]
pub(super) async fn fork_cage(
    caller: Caller,
    State(engine): Shared,
    Path(id): Path<String>,
    Json(wanted): Json<ForkCage>,
) -> ApiResult<(StatusCode, axum::Json<ForkedCages>)> {
    caller.needs(Scope::Cages)?;
    let entry = engine.cage(&caller.key, &id)?;
    let count = wanted.count.unwrap_or(1).min(MOST_FORKS + 1);
    let forks = engine
        .fork(&caller.key, &entry, count, wanted.timeout)
        .await?;
    let forks = forks.into_iter().map(|fork| match fork {
        Ok(entry) => ForkedCage {
            cage: Some(entry.shown()),
            error: None,
        },
        Err(error) => ForkedCage {
            cage: None,
            error: Some(error.body().error),
        },
    });
    let cages = forks.collect();
    Ok((StatusCode::CREATED, axum::Json(ForkedCages { cages })))
}

/// List snapshots, the newest first
#[utoipa::path(get, path = "/v1/snapshots", tag = "snapshots", params(ListSnapshots),
    responses((status = 200, body = SnapshotList), (status = "default", body = ErrorBody)))]
pub(super) async fn list_snapshots(
    caller: Caller,
    State(engine): Shared,
    Query(query): Query<ListSnapshots>,
) -> ApiResult<axum::Json<SnapshotList>> {
    caller.needs(Scope::Read)?;
    let found = engine.snapshots(&caller.key)?.into_iter();
    let found = found.filter(|one| query.cage.as_ref().is_none_or(|cage| one.cage == *cage));
    let snapshots = found.map(Snapshot::from).collect();
    Ok(axum::Json(SnapshotList { snapshots }))
}

/// Get a snapshot
#[utoipa::path(get, path = "/v1/snapshots/{snapshot}", tag = "snapshots", params(("snapshot" = String, Path)),
    responses((status = 200, body = Snapshot), (status = "default", body = ErrorBody)))]
pub(super) async fn get_snapshot(
    caller: Caller,
    State(engine): Shared,
    Path(id): Path<String>,
) -> ApiResult<axum::Json<Snapshot>> {
    caller.needs(Scope::Read)?;
    let snapshot = engine.find_snapshot(&caller.key, &id)?;
    Ok(axum::Json(snapshot.into()))
}

/// Delete a snapshot
///
/// Cages that were made of it keep their files.
#[utoipa::path(delete, path = "/v1/snapshots/{snapshot}", tag = "snapshots", params(("snapshot" = String, Path)),
    responses((status = 204), (status = "default", body = ErrorBody)))]
pub(super) async fn delete_snapshot(
    caller: Caller,
    State(engine): Shared,
    Path(id): Path<String>,
) -> ApiResult<StatusCode> {
    caller.needs(Scope::Cages)?;
    let snapshot = engine.find_snapshot(&caller.key, &id)?;
    engine.delete_snapshot(&snapshot).await?;
    Ok(StatusCode::NO_CONTENT)
}
