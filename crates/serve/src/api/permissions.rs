//! `/v1/cages/{id}/leases`, `/v1/cages/{id}/requests`, `/v1/cages/{id}/usage` and
//! `/v1/cages/{id}/audit`.

use super::types::{
    Approve, AuditEvents, AuditQuery, Deny, Grant, Lease, LeaseList, LeaseResult,
    PermissionRequest, PermissionRequestList, Usage,
};
use super::{Caller, Json, Path, Query, Shared};
use crate::answers;
use crate::engine::{Entry, blocking, is_open_to_all};
use crate::error::{ApiError, ApiResult, Code, ErrorBody};
use crate::keys::{Key, Scope};
use crate::log_places::LogPlaces;
use axum::Extension;
use axum::extract::State;
use axum::http::StatusCode;
use ironcage_client::{Cages, ClientError, Connection};
use ironcage_control::{
    ApproveRequest, GrantRequest, LeaseDescription, LeaseTarget, PermissionRequestDescription,
    Reply, Request,
};
use ironcage_model::{GrantedLease, HostRule, LeaseOutcome, RequestOutcome, Resource, Term};
use std::sync::Arc;

const LONGEST_REASON: usize = 1000;
/// Events of one answer, and about how many bytes of them.
const MOST_EVENTS: usize = 1000;
const MOST_BYTES: usize = 8 << 20;

/// Asks the supervisor of a cage that has not ended.
pub(crate) async fn ask<T: Send + 'static>(
    entry: &Arc<Entry>,
    question: impl FnOnce(&Connection) -> Result<T, ClientError> + Send + 'static,
) -> ApiResult<T> {
    let id = entry.id.clone();
    blocking(move || Ok(question(&Cages::of_user()?.connect(&id)?)?)).await
}

fn shown(lease: LeaseDescription) -> Lease {
    Lease {
        number: lease.lease.number,
        resource: lease.lease.resource.to_string(),
        state: lease.state.name().to_owned(),
        reason: lease.lease.reason,
        milliseconds_left: lease.milliseconds_left,
        uses_left: lease.uses_left,
    }
}

fn result(outcome: RequestOutcome) -> LeaseResult {
    match outcome {
        LeaseOutcome::Granted(GrantedLease::Open(lease)) => LeaseResult::Granted {
            lease: Some(lease.number),
        },
        LeaseOutcome::Granted(GrantedLease::ForScope { .. }) => {
            LeaseResult::Granted { lease: None }
        }
        LeaseOutcome::InBase { reason } => LeaseResult::Unneeded {
            reason: reason.to_string(),
        },
        LeaseOutcome::Pending { question, reason } => LeaseResult::Pending {
            request: question,
            reason: reason.to_string(),
        },
        LeaseOutcome::Denied { reason } => LeaseResult::Denied {
            code: reason.code().map(str::to_owned),
            reason: reason.to_string(),
        },
    }
}

fn check_reason(reason: &str) -> ApiResult<()> {
    match reason.len() <= LONGEST_REASON {
        true => Ok(()),
        false => Err(ApiError::invalid(format!(
            "the reason is longer than {LONGEST_REASON} bytes"
        ))),
    }
}

/// Refuses what a key without the scope `host` may not give: more than hosts by their names, and
/// limits.
pub(crate) fn check_resource(resource: &Resource, key: &Key, internet: bool) -> ApiResult<()> {
    let given = match resource {
        Resource::Host { rule } => is_open_to_all(rule, internet),
        Resource::Limit { .. } => true,
        _ => false,
    };
    match given || key.may(Scope::Host) {
        true => Ok(()),
        false => Err(ApiError::new(
            Code::Forbidden,
            format!("to give {resource} needs a key with the scope `host`"),
        )
        .hint("without it hosts are given by their names, and limits")),
    }
}

fn term(seconds: Option<u32>) -> Option<Term> {
    seconds.map(|seconds| Term::Milliseconds(u64::from(seconds) * 1000))
}

/// List the leases of a cage
#[utoipa::path(get, path = "/v1/cages/{id}/leases", tag = "permissions", params(("id" = String, Path)),
    responses((status = 200, body = LeaseList), (status = "default", body = ErrorBody)))]
pub(super) async fn list_leases(
    caller: Caller,
    State(engine): Shared,
    Path(id): Path<String>,
) -> ApiResult<axum::Json<LeaseList>> {
    caller.needs(Scope::Read)?;
    let entry = engine.cage(&caller.key, &id)?;
    let leases = ask(&entry, ironcage_client::leases).await?;
    let leases = leases.into_iter().map(shown).collect();
    Ok(axum::Json(LeaseList { leases }))
}

/// Allow a host to a running cage for a time
///
/// Within the ceiling of the cage's policy. Paths, ports and limits are granted with `ironcage grant`.
#[utoipa::path(post, path = "/v1/cages/{id}/leases", tag = "permissions", params(("id" = String, Path)),
    request_body = Grant,
    responses((status = 200, body = LeaseResult), (status = "default", body = ErrorBody)))]
pub(super) async fn grant_lease(
    caller: Caller,
    State(engine): Shared,
    Path(id): Path<String>,
    Json(wanted): Json<Grant>,
) -> ApiResult<axum::Json<LeaseResult>> {
    caller.needs(Scope::Permissions)?;
    let entry = engine.cage(&caller.key, &id)?;
    check_reason(&wanted.reason)?;
    let rule: HostRule = wanted.host.parse().map_err(|error| {
        ApiError::invalid(format!(
            "`{}` is not a host: {error}",
            wanted.host.escape_debug()
        ))
    })?;
    let resource = Resource::Host { rule };
    check_resource(&resource, &caller.key, engine.settings.internet)?;
    engine.ceiling(&entry)?.check(&resource)?;
    let request = GrantRequest {
        wanted: LeaseTarget::Other(resource),
        term: term(wanted.seconds).unwrap_or(Term::UntilRevoked),
        uses: None,
        reason: wanted.reason,
    };
    let outcome = ask(&entry, move |cage| {
        ironcage_client::grant(cage, request, &[])
    })
    .await?;
    Ok(axum::Json(result(outcome)))
}

/// Revoke a lease
///
/// Answers when the kernel has confirmed that no process holds it.
#[utoipa::path(delete, path = "/v1/cages/{id}/leases/{number}", tag = "permissions",
    params(("id" = String, Path), ("number" = u32, Path)),
    responses((status = 204), (status = "default", body = ErrorBody)))]
pub(super) async fn revoke_lease(
    caller: Caller,
    State(engine): Shared,
    Path((id, number)): Path<(String, u32)>,
) -> ApiResult<StatusCode> {
    caller.needs(Scope::Permissions)?;
    let entry = engine.cage(&caller.key, &id)?;
    let mut proven = true;
    let proven = ask(&entry, move |cage| {
        ironcage_client::revoke(cage, Some(number), |ended| {
            proven &= matches!(ended.end, ironcage_model::LeaseEnd::Revoked);
        })?;
        Ok(proven)
    })
    .await?;
    match proven {
        true => Ok(StatusCode::NO_CONTENT),
        false => Err(ApiError::new(
            Code::Conflict,
            format!("lease {number} is over for new uses, and processes still hold it"),
        )
        .hint("end the processes, or the cage")),
    }
}

/// List the permission requests that wait for an answer
#[utoipa::path(get, path = "/v1/cages/{id}/requests", tag = "permissions", params(("id" = String, Path)),
    responses((status = 200, body = PermissionRequestList), (status = "default", body = ErrorBody)))]
pub(super) async fn list_requests(
    caller: Caller,
    State(engine): Shared,
    Path(id): Path<String>,
) -> ApiResult<axum::Json<PermissionRequestList>> {
    caller.needs(Scope::Read)?;
    let entry = engine.cage(&caller.key, &id)?;
    let requests = ask(&entry, ironcage_client::questions).await?;
    let requests = requests.into_iter().map(shown_request).collect();
    Ok(axum::Json(PermissionRequestList { requests }))
}

fn shown_request(waiting: PermissionRequestDescription) -> PermissionRequest {
    PermissionRequest {
        number: waiting.question.number,
        resource: waiting.question.resource.to_string(),
        reason: waiting.question.reason,
        asked: waiting.asked,
        milliseconds_left: waiting.milliseconds_left,
    }
}

/// Approve a permission request
#[utoipa::path(post, path = "/v1/cages/{id}/requests/{number}/approve", tag = "permissions",
    params(("id" = String, Path), ("number" = u32, Path)), request_body = Approve,
    responses((status = 200, body = LeaseResult), (status = "default", body = ErrorBody)))]
pub(super) async fn approve_request(
    caller: Caller,
    State(engine): Shared,
    Path((id, number)): Path<(String, u32)>,
    Json(wanted): Json<Approve>,
) -> ApiResult<axum::Json<LeaseResult>> {
    caller.needs(Scope::Permissions)?;
    let entry = engine.cage(&caller.key, &id)?;
    // A number is used once: what waits under it does not become something else.
    let waiting = waiting(&entry, number).await?;
    check_resource(
        &waiting.question.resource,
        &caller.key,
        engine.settings.internet,
    )?;
    engine.ceiling(&entry)?.check(&waiting.question.resource)?;
    let counted = engine.count_more(&entry, &waiting.question.resource)?;
    let request = ApproveRequest {
        number,
        term: term(wanted.seconds),
        uses: wanted.uses,
    };
    let outcome = ask(&entry, move |cage| ironcage_client::approve(cage, request)).await?;
    // One that failed without an answer may have been granted: it stays counted.
    if let Some(before) = counted.filter(|_| !matches!(outcome, LeaseOutcome::Granted(_))) {
        engine.count_less(&entry, before)?;
    }
    Ok(axum::Json(result(outcome)))
}

/// The request of a cage that waits under a number.
async fn waiting(entry: &Arc<Entry>, number: u32) -> ApiResult<PermissionRequestDescription> {
    let waiting = ask(entry, ironcage_client::questions).await?;
    let mut waiting = waiting.into_iter();
    let found = waiting.find(|waiting| waiting.question.number == number);
    found.ok_or_else(|| {
        ApiError::new(
            Code::NotFound,
            format!("no request {number} of cage {} waits", entry.id),
        )
        .hint(format!("GET /v1/cages/{}/requests", entry.id))
    })
}

/// Deny a permission request
#[utoipa::path(post, path = "/v1/cages/{id}/requests/{number}/deny", tag = "permissions",
    params(("id" = String, Path), ("number" = u32, Path)), request_body = Deny,
    responses((status = 204), (status = "default", body = ErrorBody)))]
pub(super) async fn deny_request(
    caller: Caller,
    State(engine): Shared,
    Path((id, number)): Path<(String, u32)>,
    Json(wanted): Json<Deny>,
) -> ApiResult<StatusCode> {
    caller.needs(Scope::Permissions)?;
    let entry = engine.cage(&caller.key, &id)?;
    check_reason(&wanted.reason)?;
    waiting(&entry, number).await?;
    ask(&entry, move |cage| {
        ironcage_client::deny(cage, number, wanted.reason)
    })
    .await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Measure what a cage uses now
#[utoipa::path(get, path = "/v1/cages/{id}/usage", tag = "cages", params(("id" = String, Path)),
    responses((status = 200, body = Usage), (status = "default", body = ErrorBody)))]
pub(super) async fn usage(
    caller: Caller,
    State(engine): Shared,
    Path(id): Path<String>,
) -> ApiResult<axum::Json<Usage>> {
    caller.needs(Scope::Read)?;
    let entry = engine.cage(&caller.key, &id)?;
    Ok(axum::Json(ask(&entry, measure).await?))
}

fn measure(cage: &Connection) -> Result<Usage, ClientError> {
    let stats = match cage.ask(&Request::Stats)? {
        Reply::Stats(stats) => stats,
        other => return Err(ClientError::Answer(format!("{other:?}"))),
    };
    Ok(Usage {
        memory: stats.memory,
        memory_limit: stats.memory_limit,
        memory_peak: stats.memory_peak,
        cpu_microseconds: stats.cpu_microseconds,
        pids: stats.pids,
        pids_limit: stats.pids_limit,
        storage: stats.storage,
    })
}

/// What a cage uses, and its requests that wait.
pub(crate) async fn look(entry: &Arc<Entry>) -> ApiResult<(Usage, Vec<PermissionRequest>)> {
    ask(entry, |cage| {
        let waiting = ironcage_client::questions(cage)?;
        let waiting = waiting.into_iter().map(shown_request).collect();
        Ok((measure(cage)?, waiting))
    })
    .await
}

/// Read the audit log of a cage
///
/// Events as `docs/reference/audit-log.md` describes them, from a number on. At most 1,000, or some 8 MiB.
#[utoipa::path(get, path = "/v1/cages/{id}/audit", tag = "cages", params(("id" = String, Path), AuditQuery),
    responses((status = 200, body = AuditEvents), (status = "default", body = ErrorBody)))]
pub(super) async fn audit_log(
    caller: Caller,
    State(engine): Shared,
    Path(id): Path<String>,
    Extension(places): Extension<LogPlaces>,
    Query(query): Query<AuditQuery>,
) -> ApiResult<axum::Json<AuditEvents>> {
    caller.needs(Scope::Read)?;
    let entry = engine.cage(&caller.key, &id)?;
    places.forget(&engine);
    let id = entry.id.clone();
    let events = blocking(move || {
        let wrong = |error: ironcage_audit::Error| ApiError::internal("read the audit log", &error);
        let place = Cages::of_user()?.audit().to_owned();
        let log = ironcage_audit::log_path(&place, &id);
        let (mut events, mut bytes) = (Vec::new(), 0);
        let mut encoded = Ok(());
        let read = places.read(id.as_str(), &log, query.from.unwrap_or(1), |event| {
            match serde_json::to_value(event) {
                Ok(event) => {
                    bytes += event.to_string().len();
                    events.push(event);
                }
                Err(error) => encoded = Err(ApiError::internal("encode the audit log", &error)),
            }
            encoded.is_ok() && events.len() < MOST_EVENTS && bytes < MOST_BYTES
        });
        read.map_err(wrong)?;
        encoded?;
        Ok((events, bytes))
    });
    let (events, bytes) = events.await?;
    answers::hold(bytes)?;
    Ok(axum::Json(AuditEvents { events }))
}

/// What was denied in a cage, in words.
#[derive(Debug, serde::Serialize, utoipa::ToSchema)]
pub(crate) struct DenialReport {
    pub(crate) cage: String,
    /// What `ironcage why` prints: each denial, what it means, and what would allow it.
    pub(crate) text: String,
}

/// Explain what was denied in a cage
///
/// From its audit log, as `ironcage why` does. It changes nothing.
#[utoipa::path(get, path = "/v1/cages/{id}/why", tag = "cages", params(("id" = String, Path)),
    responses((status = 200, body = DenialReport), (status = "default", body = ErrorBody)))]
pub(super) async fn explain_denials(
    caller: Caller,
    State(engine): Shared,
    Path(id): Path<String>,
) -> ApiResult<axum::Json<DenialReport>> {
    caller.needs(Scope::Read)?;
    let cage = engine.cage(&caller.key, &id)?.id.to_string();
    let text = engine.command_line.run(&["why", &cage]).await?;
    answers::hold(text.len())?;
    Ok(axum::Json(DenialReport {
        cage,
        text: String::from_utf8_lossy(&text).into_owned(),
    }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::keys::Keys;

    #[test]
    fn without_the_scope_host_only_hosts_by_name_and_limits_are_given() {
        let data = tempfile::tempdir().unwrap();
        let keys = Keys::in_data(data.path());
        let make = |scopes: &[Scope]| {
            let scopes = scopes.iter().copied().collect();
            keys.create("k", "team", scopes).unwrap().0
        };
        let plain = make(&[Scope::Permissions]);
        let host = make(&[Scope::Permissions, Scope::Host]);
        let rule = |text: &str| Resource::Host {
            rule: text.parse().unwrap(),
        };
        for given in [
            rule("api.example.com"),
            rule("*.example.com:443"),
            Resource::Limit {
                limit: ironcage_model::LimitKind::Memory,
                value: 1 << 30,
            },
        ] {
            check_resource(&given, &plain, false).unwrap();
        }
        for wide in [rule("every host"), rule("10.0.0.0/8"), rule("127.0.0.1:22")] {
            let refused = check_resource(&wide, &plain, false).unwrap_err();
            assert_eq!(refused.code, Code::Forbidden);
            check_resource(&wide, &plain, true).unwrap();
            check_resource(&wide, &host, false).unwrap();
        }
        let requests = |text: &str| Resource::Http {
            rule: ironcage_policy::requests(text).unwrap(),
        };
        for own in [
            rule("host.ironcage:5432"),
            rule("*.ironcage:5432"),
            requests("GET host.ironcage:5432/**"),
        ] {
            for internet in [false, true] {
                let refused = check_resource(&own, &plain, internet).unwrap_err();
                assert_eq!(refused.code, Code::Forbidden);
            }
            check_resource(&own, &host, false).unwrap();
        }
        let socket = Resource::Socket {
            path: "/run/docker.sock".to_owned(),
        };
        assert!(check_resource(&socket, &plain, true).is_err());
        check_resource(&socket, &host, false).unwrap();
    }
}
