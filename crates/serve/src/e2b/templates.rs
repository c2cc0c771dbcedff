//! Templates of E2B's API: uploads of files, builds, their logs, names and tags.

use super::E2bError;
use super::sandboxes::{E2bResult, Shared, not_yet};
use super::snapshots;
use crate::api::types::CageLimits;
use crate::api::{Caller, Json, Path, Query};
use crate::clock;
use crate::engine::{BuildStatus, Engine, KnownBuild, TemplateSource, TemplateStep};
use crate::error::{ApiError, ApiResult, Code};
use crate::keys::{Key, Scope, random_hex};
use crate::store::{SnapshotRecord, TemplateRecord};
use axum::Router;
use axum::body::Body;
use axum::extract::{DefaultBodyLimit, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{delete, get, post, put};
use flate2::write::MultiGzDecoder;
use futures_util::StreamExt;
use serde::Deserialize;
use serde_json::{Value, json};
use std::collections::HashMap;
use std::io::Write;
use std::sync::{Arc, Mutex, PoisonError};
use tokio::io::AsyncWriteExt;

/// Bytes of the files of one step, unpacked.
const MOST_FILES: u64 = 2 << 30;
/// Places for uploads that were given out, and microseconds for which one holds.
const MOST_UPLOADS: usize = 1024;
const UPLOAD: u64 = 3_600_000_000;
/// Lines of one answer with a log.
const LINES: usize = 100;
const DEFAULT_TAG: &str = "default";

/// Places for uploads that were given out: whose they are, for which hash, and until when.
#[derive(Debug, Default)]
pub(crate) struct Uploads(Mutex<HashMap<String, (String, String, u64)>>);

pub(super) fn router() -> Router<Arc<Engine>> {
    Router::new()
        .route("/templates", get(list))
        .route("/v3/templates", post(request))
        .route("/v2/templates", post(request))
        .route("/templates/aliases/{alias}", get(alias))
        .route("/templates/tags", post(assign_tags).delete(remove_tags))
        .route("/templates/{id}", delete(remove))
        .route("/templates/{id}/tags", get(tags))
        .route("/templates/{id}/files/{hash}", get(place))
        .route(
            "/template-uploads/{token}",
            put(upload).layer(DefaultBodyLimit::disable()),
        )
        .route("/v2/templates/{id}/builds/{build}", post(start))
        .route("/templates/{id}/builds/{build}/status", get(status))
}

/// A name, and the tag behind it. The project before it is left out where it is the caller's own; a name
/// with another one is the name of nothing.
fn tagged<'a>(project: &str, text: &'a str) -> (&'a str, Option<&'a str>) {
    let own = text.strip_prefix(project);
    let name = own.and_then(|rest| rest.strip_prefix('/')).unwrap_or(text);
    match name.split_once(':') {
        Some((name, tag)) => (name, Some(tag)),
        None => (name, None),
    }
}

fn found(engine: &Engine, key: &Key, text: &str) -> ApiResult<TemplateRecord> {
    let (name, _) = tagged(&key.project, text);
    engine.find_template(&key.project, name)?.ok_or_else(|| {
        ApiError::new(
            Code::NotFound,
            format!("template `{}` was not found", text.escape_debug()),
        )
    })
}

/// What sandboxes of a template start with, where the project has one of that name.
pub(super) fn snapshot_of(
    engine: &Engine,
    key: &Key,
    text: &str,
) -> ApiResult<Option<SnapshotRecord>> {
    let (name, tag) = tagged(&key.project, text);
    let Some(record) = engine.find_template(&key.project, name)? else {
        return Ok(None);
    };
    let build = match tag {
        Some(tag) => record.tags.get(tag),
        // The newest build, where none has the tag of those without.
        None => record.tags.get(DEFAULT_TAG),
    };
    let build = match (build, tag) {
        (Some((build, _)), _) => record.builds.iter().find(|one| one.id == *build),
        (None, None) => record.builds.last(),
        (None, Some(_)) => None,
    };
    let missing = || {
        ApiError::new(
            Code::NotFound,
            format!("template `{}` has no such build", text.escape_debug()),
        )
    };
    let id = &build.ok_or_else(missing)?.snapshot;
    let snapshot = engine.store.snapshot(id);
    let snapshot = snapshot.map_err(|error| ApiError::internal("use the store", &error))?;
    snapshot.map(Some).ok_or_else(missing)
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct NewBuild {
    name: Option<String>,
    alias: Option<String>,
    tags: Option<Vec<String>>,
    cpu_count: Option<u32>,
    #[serde(rename = "memoryMB")]
    memory: Option<u64>,
}

async fn request(
    caller: Caller,
    State(engine): Shared,
    Json(wanted): Json<NewBuild>,
) -> E2bResult<Response> {
    caller.needs(Scope::Cages)?;
    let text = wanted.name.or(wanted.alias);
    let text = text.ok_or_else(|| ApiError::invalid("the template has no name"))?;
    let (name, tag) = tagged(&caller.key.project, &text);
    let mut tags = wanted.tags.unwrap_or_default();
    tags.extend(tag.map(str::to_owned));
    let limits = (wanted.cpu_count.is_some() || wanted.memory.is_some()).then(|| CageLimits {
        memory: wanted.memory.map(|memory| format!("{memory}M")),
        cpus: wanted.cpu_count.map(|count| count.to_string()),
        ..CageLimits::default()
    });
    let build = engine.request_build(&caller.key, name, tags, limits)?;
    let tags = match build.tags.is_empty() {
        true => vec![DEFAULT_TAG.to_owned()],
        false => build.tags,
    };
    let body = json!({
        "templateID": build.template,
        "buildID": build.id,
        "public": false,
        "names": [format!("{}/{}", build.project, build.name)],
        "aliases": [build.name],
        "tags": tags,
    });
    Ok((StatusCode::ACCEPTED, axum::Json(body)).into_response())
}

fn is_hash(text: &str) -> bool {
    (16..=128).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_hexdigit())
}

/// Where the files of a step are to be sent, if they are not here.
async fn place(
    caller: Caller,
    State(engine): Shared,
    Path((_, hash)): Path<(String, String)>,
    headers: HeaderMap,
) -> E2bResult<Response> {
    caller.needs(Scope::Cages)?;
    if !is_hash(&hash) {
        return Err(ApiError::invalid("the hash of the files is not hexadecimal").into());
    }
    let present = engine.uploaded(&caller.key.project, &hash).exists();
    let token = random_hex(24).map_err(|error| ApiError::internal("get random bytes", &error))?;
    {
        let mut uploads = engine
            .uploads
            .0
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let now = clock::now();
        uploads.retain(|_, (_, _, end)| *end > now);
        if uploads.len() >= MOST_UPLOADS {
            return Err(ApiError::new(Code::LimitReached, "too many uploads are expected").into());
        }
        let upload = (caller.key.project.clone(), hash, now + UPLOAD);
        uploads.insert(token.clone(), upload);
    }
    let host = headers
        .get(header::HOST)
        .and_then(|host| host.to_str().ok());
    let host = host.ok_or_else(|| ApiError::invalid("the request names no host"))?;
    let scheme = headers
        .get("x-forwarded-proto")
        .and_then(|value| value.to_str().ok());
    let scheme = scheme.filter(|scheme| *scheme == "https").unwrap_or("http");
    let url = format!("{scheme}://{host}/template-uploads/{token}");
    let body = json!({ "present": present, "url": url });
    Ok((StatusCode::CREATED, axum::Json(body)).into_response())
}

/// Takes the files of a step. The place is known to nobody but who asked for it.
async fn upload(
    State(engine): Shared,
    Path(token): Path<String>,
    body: Body,
) -> E2bResult<StatusCode> {
    let upload = {
        let mut uploads = engine
            .uploads
            .0
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        uploads.remove(&token)
    };
    let upload = upload.filter(|(_, _, end)| *end > clock::now());
    let (project, hash, _) = upload
        .ok_or_else(|| ApiError::new(Code::NotFound, "this place for an upload does not exist"))?;
    let path = engine.uploaded(&project, &hash);
    let part = path.with_extension(format!("{token}.part"));
    let written = receive(&part, body).await;
    let kept = match written {
        Ok(()) => tokio::fs::rename(&part, &path)
            .await
            .map_err(|error| ApiError::internal("keep an upload", &error)),
        Err(error) => Err(error),
    };
    if kept.is_err() {
        // It may not have been made.
        let _ = tokio::fs::remove_file(&part).await;
    }
    kept?;
    Ok(StatusCode::OK)
}

/// Writes an archive, unpacked where it is packed.
async fn receive(path: &std::path::Path, body: Body) -> ApiResult<()> {
    let failed = |error: std::io::Error| ApiError::internal("write an upload", &error);
    if let Some(parent) = path.parent() {
        tokio::fs::create_dir_all(parent).await.map_err(failed)?;
    }
    let mut options = tokio::fs::OpenOptions::new();
    let opened = options.write(true).create_new(true).mode(0o600).open(path);
    let mut file = opened.await.map_err(failed)?;
    let mut body = body.into_data_stream();
    let mut decoder: Option<MultiGzDecoder<Vec<u8>>> = None;
    let (mut first, mut written) = (true, 0_u64);
    let invalid = |error: std::io::Error| {
        ApiError::invalid(format!("the upload is not a valid archive: {error}"))
    };
    while let Some(bytes) = body.next().await {
        let bytes = bytes.map_err(|error| {
            ApiError::invalid(format!("the body did not arrive whole: {error}"))
        })?;
        if first && bytes.starts_with(&[0x1f, 0x8b]) {
            decoder = Some(MultiGzDecoder::new(Vec::new()));
        }
        first = first && bytes.is_empty();
        for piece in bytes.chunks(8 * 1024) {
            let unpacked = match &mut decoder {
                Some(decoder) => {
                    decoder.write_all(piece).map_err(invalid)?;
                    std::mem::take(decoder.get_mut())
                }
                None => piece.to_vec(),
            };
            written += unpacked.len() as u64;
            if written > MOST_FILES {
                return Err(ApiError::new(
                    Code::TooLarge,
                    format!(
                        "the files of a step have more than {} GiB",
                        MOST_FILES >> 30
                    ),
                ));
            }
            file.write_all(&unpacked).await.map_err(failed)?;
        }
    }
    if let Some(decoder) = decoder {
        let last = decoder.finish().map_err(invalid)?;
        file.write_all(&last).await.map_err(failed)?;
    }
    file.flush().await.map_err(failed)
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct StartBuild {
    from_image: Option<String>,
    from_template: Option<String>,
    from_image_registry: Option<Value>,
    steps: Option<Vec<WrittenStep>>,
    start_cmd: Option<String>,
    ready_cmd: Option<String>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct WrittenStep {
    #[serde(rename = "type")]
    kind: String,
    #[serde(default)]
    args: Vec<String>,
    #[serde(default)]
    files_hash: Option<String>,
}

/// The steps as they are carried out.
fn steps(written: Vec<WrittenStep>) -> ApiResult<Vec<TemplateStep>> {
    let mut steps = Vec::with_capacity(written.len());
    for (index, step) in written.into_iter().enumerate() {
        let wrong = |what: &str| ApiError::invalid(format!("step {}: {what}", index + 1));
        let mut args = step.args.into_iter();
        let mut next = || args.next();
        steps.push(match step.kind.as_str() {
            "RUN" => TemplateStep::Run {
                command: next().ok_or_else(|| wrong("a command is missing"))?,
            },
            "COPY" | "ADD" => {
                let (source, target) = next()
                    .zip(next())
                    .ok_or_else(|| wrong("a path is missing"))?;
                // The user does not matter: a cage has one.
                let mode = next().and_then(|_| next()).unwrap_or_default();
                if !mode.bytes().all(|byte| (b'0'..=b'7').contains(&byte)) {
                    return Err(wrong("the mode is not octal"));
                }
                let files = step.files_hash.filter(|hash| is_hash(hash));
                TemplateStep::Copy {
                    source,
                    target,
                    mode,
                    files: files.ok_or_else(|| wrong("the hash of its files is missing"))?,
                }
            }
            "ENV" => {
                let args: Vec<String> = args.collect();
                if !args.len().is_multiple_of(2) {
                    return Err(wrong("a variable has no value"));
                }
                let pairs = args.chunks_exact(2).filter_map(|pair| match pair {
                    [name, value] => Some((name.clone(), value.clone())),
                    _ => None,
                });
                TemplateStep::Env(pairs.collect())
            }
            "WORKDIR" => TemplateStep::Workdir(next().ok_or_else(|| wrong("a path is missing"))?),
            // A cage has one user, who may be root of its image while the template is built.
            "USER" => TemplateStep::Env(Default::default()),
            other => {
                return Err(wrong(&format!("`{}` is not a step", other.escape_debug())));
            }
        });
    }
    Ok(steps)
}

async fn start(
    caller: Caller,
    State(engine): Shared,
    Path((_, build)): Path<(String, String)>,
    Json(wanted): Json<StartBuild>,
) -> E2bResult<Response> {
    caller.needs(Scope::Cages)?;
    if wanted
        .from_image_registry
        .is_some_and(|registry| !registry.is_null())
    {
        return Err(not_yet("`fromImageRegistry`")
            .hint("`docker login` or `podman login` of the service's user holds for fromImage")
            .into());
    }
    let mut source = TemplateSource {
        steps: steps(wanted.steps.unwrap_or_default())?,
        start: wanted.start_cmd.filter(|command| !command.is_empty()),
        ready: wanted.ready_cmd.filter(|command| !command.is_empty()),
        ..TemplateSource::default()
    };
    match (
        wanted.from_image.as_deref(),
        wanted.from_template.as_deref(),
    ) {
        (Some(_), Some(_)) => {
            return Err(
                ApiError::invalid("`fromImage` and `fromTemplate` exclude each other").into(),
            );
        }
        // E2B's own base image, which no registry of a user has: the system of this host.
        (None, None)
        | (Some("e2bdev/base" | "e2bdev/base:latest"), None)
        | (None, Some("base")) => {}
        (Some(image), None) => source.image = Some(image.to_owned()),
        (None, Some(super::CODE_INTERPRETER)) => {
            source.e2b_template = Some(super::CODE_INTERPRETER.to_owned());
        }
        (None, Some(name)) => {
            let base = match snapshot_of(&engine, &caller.key, name)? {
                Some(snapshot) => snapshot,
                None => snapshots::by_name(&engine, &caller.key, name)?,
            };
            source.e2b_template = base.e2b_template;
            source.snapshot = Some(base.id);
        }
    }
    engine.start_build(&caller.key, &build, source)?;
    Ok((StatusCode::ACCEPTED, axum::Json(json!({}))).into_response())
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct StatusQuery {
    logs_offset: Option<usize>,
    limit: Option<usize>,
}

async fn status(
    caller: Caller,
    State(engine): Shared,
    Path((template, build)): Path<(String, String)>,
    Query(query): Query<StatusQuery>,
) -> E2bResult<axum::Json<Value>> {
    caller.needs(Scope::Read)?;
    let build = match engine.build(&caller.key.project, &build) {
        Ok(build) => build,
        // Of one that a service before this carried out, the result is known.
        Err(error) => {
            let record = engine.find_template(&caller.key.project, &template)?;
            let built =
                record.is_some_and(|record| record.builds.iter().any(|one| one.id == build));
            return match built {
                true => Ok(axum::Json(json!({
                    "templateID": template, "buildID": build, "status": "ready",
                    "logs": [], "logEntries": [],
                }))),
                false => Err(error.into()),
            };
        }
    };
    Ok(axum::Json(shown(&build, &query)))
}

fn shown(build: &KnownBuild, query: &StatusQuery) -> Value {
    let limit = query.limit.unwrap_or(LINES).min(LINES);
    let lines = build
        .log
        .iter()
        .skip(query.logs_offset.unwrap_or(0))
        .take(limit);
    let lines: Vec<Value> = lines
        .map(|line| {
            let level = match line.is_error {
                true => "warn",
                false => "info",
            };
            json!({
                "timestamp": clock::rfc3339(line.time), "level": level,
                "message": line.text, "step": line.step.as_deref().unwrap_or("base"),
            })
        })
        .collect();
    let mut shown = json!({
        "templateID": build.template,
        "buildID": build.id,
        "status": match build.status {
            BuildStatus::Waiting => "waiting",
            BuildStatus::Building => "building",
            BuildStatus::Ready => "ready",
            BuildStatus::Failed => "error",
        },
        "logs": [],
        "logEntries": lines,
    });
    if let (Some((step, message)), Some(shown)) = (&build.reason, shown.as_object_mut()) {
        shown.insert("reason".into(), json!({ "message": message, "step": step }));
    }
    shown
}

async fn alias(
    caller: Caller,
    State(engine): Shared,
    Path(name): Path<String>,
) -> E2bResult<axum::Json<Value>> {
    caller.needs(Scope::Read)?;
    let record = found(&engine, &caller.key, &name)?;
    Ok(axum::Json(
        json!({ "templateID": record.id, "public": false }),
    ))
}

async fn list(caller: Caller, State(engine): Shared) -> E2bResult<axum::Json<Vec<Value>>> {
    caller.needs(Scope::Read)?;
    let records = engine.templates(&caller.key.project)?.into_iter();
    let shown = records.map(|record| {
        json!({
            "templateID": record.id,
            "buildID": record.builds.last().map(|build| build.id.clone()).unwrap_or_default(),
            "cpuCount": 1, "memoryMB": 0, "diskSizeMB": 0, "public": false,
            "aliases": [record.name], "names": [format!("{}/{}", record.project, record.name)],
            "createdAt": clock::rfc3339(record.created), "updatedAt": clock::rfc3339(record.created),
            "createdBy": null, "lastSpawnedAt": null, "spawnCount": 0,
            "buildCount": record.builds.len(), "envdVersion": super::ENVD, "buildStatus": "ready",
        })
    });
    Ok(axum::Json(shown.collect()))
}

/// Deletes a template or a snapshot, which are one kind there.
async fn remove(
    caller: Caller,
    State(engine): Shared,
    Path(id): Path<String>,
) -> E2bResult<StatusCode> {
    caller.needs(Scope::Cages)?;
    match engine.find_template(&caller.key.project, tagged(&caller.key.project, &id).0)? {
        Some(record) => engine.delete_template(&record).await?,
        None => {
            let snapshot = snapshots::by_name(&engine, &caller.key, &id).map_err(E2bError)?;
            engine.delete_snapshot(&snapshot).await?;
        }
    }
    Ok(StatusCode::NO_CONTENT)
}

#[derive(Debug, Deserialize)]
struct AssignTags {
    target: String,
    tags: Vec<String>,
}

#[derive(Debug, Deserialize)]
struct RemoveTags {
    name: String,
    tags: Vec<String>,
}

fn put_record(engine: &Engine, record: &TemplateRecord) -> ApiResult<()> {
    let put = engine.store.put_template(record);
    put.map_err(|error| ApiError::internal("use the store", &error))
}

async fn assign_tags(
    caller: Caller,
    State(engine): Shared,
    Json(wanted): Json<AssignTags>,
) -> E2bResult<Response> {
    caller.needs(Scope::Cages)?;
    let mut record = found(&engine, &caller.key, &wanted.target)?;
    let tag = tagged(&caller.key.project, &wanted.target)
        .1
        .unwrap_or(DEFAULT_TAG);
    let build = record.tags.get(tag).map(|(build, _)| build.clone());
    let build = build.ok_or_else(|| {
        ApiError::new(
            Code::NotFound,
            format!("template `{}` was not found", wanted.target.escape_debug()),
        )
    })?;
    for tag in &wanted.tags {
        if !tag
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || b"._-".contains(&byte))
            || tag.is_empty()
        {
            return Err(
                ApiError::invalid("a tag has letters, digits and the characters . _ -").into(),
            );
        }
        record
            .tags
            .insert(tag.clone(), (build.clone(), clock::now()));
    }
    put_record(&engine, &record)?;
    let body = json!({ "tags": wanted.tags, "buildID": build });
    Ok((StatusCode::CREATED, axum::Json(body)).into_response())
}

async fn remove_tags(
    caller: Caller,
    State(engine): Shared,
    Json(wanted): Json<RemoveTags>,
) -> E2bResult<StatusCode> {
    caller.needs(Scope::Cages)?;
    let mut record = found(&engine, &caller.key, &wanted.name)?;
    for tag in &wanted.tags {
        record.tags.remove(tag);
    }
    put_record(&engine, &record)?;
    Ok(StatusCode::NO_CONTENT)
}

async fn tags(
    caller: Caller,
    State(engine): Shared,
    Path(id): Path<String>,
) -> E2bResult<axum::Json<Vec<Value>>> {
    caller.needs(Scope::Read)?;
    let record = found(&engine, &caller.key, &id)?;
    let shown = record.tags.iter().map(|(tag, (build, since))| {
        json!({ "tag": tag, "buildID": build, "createdAt": clock::rfc3339(*since) })
    });
    Ok(axum::Json(shown.collect()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_may_have_a_project_and_a_tag() {
        for (text, expected) in [
            ("web", ("web", None)),
            ("web:v1", ("web", Some("v1"))),
            ("team/web:v1", ("web", Some("v1"))),
            ("other/web:v1", ("other/web", Some("v1"))),
        ] {
            assert_eq!(tagged("team", text), expected);
        }
    }

    #[test]
    fn steps_are_read_and_what_is_not_one_is_refused() {
        let step = |kind: &str, args: &[&str], hash: Option<&str>| {
            steps(vec![WrittenStep {
                kind: kind.to_owned(),
                args: args.iter().map(|arg| (*arg).to_owned()).collect(),
                files_hash: hash.map(str::to_owned),
            }])
        };
        let hash = "0123456789abcdef";
        assert!(step("RUN", &["true", "root"], None).is_ok());
        assert!(step("ENV", &["A", "1"], None).is_ok());
        assert!(step("COPY", &["a", "b", "user", "755"], Some(hash)).is_ok());
        for (kind, args, files) in [
            ("RUN", &[][..], None),
            ("ENV", &["A"], None),
            ("COPY", &["a"], Some(hash)),
            ("COPY", &["a", "b"], None),
            ("COPY", &["a", "b"], Some("../../etc/passwd")),
            ("COPY", &["a", "b", "", "+x"], Some(hash)),
            ("HEALTHCHECK", &["x"], None),
        ] {
            assert!(step(kind, args, files).is_err(), "{kind} {args:?}");
        }
    }
}
