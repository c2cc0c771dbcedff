//! E2B's code interpreter: code contexts, each of them a Jupyter kernel in the cage.
//!
//! A context is a process of the daemon that executes `kernel.py`, and its tag says which. So the
//! service remembers nothing of contexts, and finds them again after a restart (ADR 43). Their
//! output is untrusted: it is passed on to whoever has the sandbox's token, and never read.

use super::{E2bError, addressed, has_token, has_traffic_token};
use crate::api::{Json, Path, environment};
use crate::daemon::{Daemon, Link, PATIENCE, Received};
use crate::engine::{Engine, Entry};
use crate::error::{ApiError, ApiResult, Code};
use crate::keys::random_hex;
use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::{FromRequestParts, State};
use axum::http::request::Parts;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{delete, get, post};
use bytes::BytesMut;
use ironcage_cage_daemon::protocol::{Kind, ProcessState, Reply, Request, StartProcess};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc;

/// The template of sandboxes of the code interpreter's SDKs.
pub(crate) const TEMPLATE: &str = "code-interpreter-v1";
pub(super) const PORT: u16 = 49999;
/// What runs as a context.
const PROGRAM: &str = include_str!("kernel.py");
/// How the tag of a context's process begins.
const TAG: &str = "ironcage-code-context:";
/// Contexts of one cage.
const MOST_CONTEXTS: usize = 16;
/// How long a kernel may take to start, and to end.
const START: Duration = Duration::from_secs(120);
const END: Duration = Duration::from_secs(10);
/// Longest line of a context; longer events take several.
const LONGEST_LINE: usize = 128 * 1024;
const LONGEST_LANGUAGE: usize = 32;

pub(super) fn router() -> Router<Arc<Engine>> {
    Router::new()
        .route("/execute", post(execute))
        .route("/contexts", get(list).post(create))
        .route("/contexts/{id}", delete(remove))
        .route("/contexts/{id}/restart", post(restart))
}

/// A cage that runs, whose code interpreter the request may use: with the token of envd, or with the
/// one for ports.
#[derive(Debug)]
pub(super) struct Interpreter(Arc<Entry>);

impl FromRequestParts<Arc<Engine>> for Interpreter {
    type Rejection = Response;

    async fn from_request_parts(parts: &mut Parts, engine: &Arc<Engine>) -> Result<Self, Response> {
        let entry = addressed(&parts.headers, engine, PORT).await?;
        if has_token(&parts.headers, &entry) || has_traffic_token(&parts.headers, &entry) {
            return Ok(Interpreter(entry));
        }
        let message = "the access token is missing or not valid";
        Err(E2bError(ApiError::new(Code::Unauthorized, message)).into_response())
    }
}

/// A context as the tag of its process has it, and as E2B's API shows it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Context {
    id: String,
    language: String,
    cwd: String,
}

/// Whether a process is a context.
pub(super) fn is_context(process: &ProcessState) -> bool {
    context_of(process).is_some()
}

fn context_of(process: &ProcessState) -> Option<Context> {
    let text = process.tag.as_deref()?.strip_prefix(TAG)?;
    serde_json::from_str(text).ok()
}

/// The contexts of a cage, with their processes.
async fn contexts(daemon: &Arc<Daemon>) -> ApiResult<Vec<(u32, Context)>> {
    let replies = daemon.ask(&Request::Processes).await?;
    let found = replies.into_iter().filter_map(|reply| match reply {
        Reply::Process { process } if process.exit.is_none() => {
            Some((process.pid, context_of(&process)?))
        }
        _ => None,
    });
    Ok(found.collect())
}

async fn find(daemon: &Arc<Daemon>, id: &str) -> ApiResult<(u32, Context)> {
    let mut found = contexts(daemon).await?.into_iter();
    found.find(|(_, context)| context.id == id).ok_or_else(|| {
        ApiError::new(
            Code::NotFound,
            format!("context `{}` was not found", id.escape_debug()),
        )
    })
}

/// A language by the name that kernels have for it.
fn language(text: Option<String>) -> ApiResult<String> {
    let text = text.unwrap_or_default().to_ascii_lowercase();
    let name = match text.as_str() {
        "" | "python3" | "py" => "python",
        "js" => "javascript",
        "ts" => "typescript",
        "sh" => "bash",
        other => other,
    };
    let known = |byte: u8| byte.is_ascii_alphanumeric() || b"+#-._".contains(&byte);
    match name.len() <= LONGEST_LANGUAGE && name.bytes().all(known) {
        true => Ok(name.to_owned()),
        false => Err(ApiError::invalid("the language is not valid")),
    }
}

/// The output of a context, by lines.
struct Lines {
    link: Link,
    buffer: BytesMut,
    /// The end of what it wrote to standard error.
    errors: Vec<u8>,
}

impl Lines {
    /// Waits until everything that comes from now on will be read.
    async fn begin(mut link: Link) -> ApiResult<Lines> {
        loop {
            match link.receive(Some(PATIENCE)).await? {
                Received::Reply(Reply::Following { .. }) => {
                    return Ok(Lines {
                        link,
                        buffer: BytesMut::new(),
                        errors: Vec::new(),
                    });
                }
                Received::Reply(_) => {}
                Received::Data(..) | Received::Done => return Err(unexpected()),
            }
        }
    }

    /// The next line; `None` where the context is over.
    async fn next(&mut self) -> ApiResult<Option<Bytes>> {
        let mut searched = 0;
        loop {
            let rest = self.buffer.get(searched..).unwrap_or_default();
            if let Some(at) = rest.iter().position(|byte| *byte == b'\n') {
                let mut line = self.buffer.split_to(searched + at + 1);
                line.truncate(searched + at);
                return Ok(Some(line.freeze()));
            }
            searched = self.buffer.len();
            if searched > LONGEST_LINE {
                return Err(unexpected());
            }
            match self.link.receive(None).await? {
                Received::Data(Kind::Stdout, bytes) => self.buffer.extend_from_slice(&bytes),
                Received::Data(Kind::Stderr, bytes) => {
                    self.errors.extend_from_slice(&bytes);
                    let long = self.errors.len().saturating_sub(2000);
                    self.errors.drain(..long);
                }
                Received::Data(..) => return Err(unexpected()),
                Received::Reply(Reply::Exited { .. }) | Received::Done => return Ok(None),
                Received::Reply(_) => {}
            }
        }
    }
}

fn unexpected() -> ApiError {
    ApiError::new(
        Code::CageUnresponsive,
        "the code context does not answer as it should",
    )
}

fn not_started(language: &str, why: &str) -> ApiError {
    ApiError::new(
        Code::StartFailed,
        format!("cannot start a code context of the language {language}: {why}"),
    )
    .hint(
        "install ipykernel, or the kernel of the language, in the Python of the image, or start the \
         service with --code-interpreter DIRECTORY, a Python environment that has them",
    )
}

/// Starts a context and waits until its kernel answers.
async fn start(engine: &Engine, entry: &Entry, context: &Context) -> ApiResult<u32> {
    let daemon = entry.running()?;
    if contexts(daemon).await?.len() >= MOST_CONTEXTS {
        return Err(ApiError::new(
            Code::LimitReached,
            format!("the sandbox has {MOST_CONTEXTS} code contexts already"),
        ));
    }
    let python = match engine.interpreter(&entry.record()) {
        Some(directory) => directory.join("bin/python").to_string_lossy().into_owned(),
        None => "python3".to_owned(),
    };
    let tag = serde_json::to_string(context)
        .map_err(|error| ApiError::internal("encode a code context", &error))?;
    let start = StartProcess {
        argv: vec![
            python,
            "-c".to_owned(),
            PROGRAM.to_owned(),
            context.language.clone(),
        ],
        env: environment(entry, BTreeMap::new()),
        cwd: Some(context.cwd.clone()),
        input: true,
        terminal: None,
        tag: Some(format!("{TAG}{tag}")),
    };
    let mut link = daemon
        .send(&Request::Start {
            start,
            follow: true,
        })
        .await?;
    let pid = match link.receive(Some(PATIENCE)).await {
        Ok(Received::Reply(Reply::Process { process })) => process.pid,
        Ok(_) => return Err(unexpected()),
        Err(error) if error.code == Code::NotExecuted => {
            return Err(not_started(&context.language, &error.message));
        }
        Err(error) => return Err(error),
    };
    let started = async {
        let mut lines = Lines::begin(link).await?;
        match lines.next().await? {
            Some(line) if *line == *b"ready" => Ok(()),
            Some(line) => {
                let text = String::from_utf8_lossy(&line);
                let why = text.strip_prefix("failed ").unwrap_or(&text);
                Err(not_started(&context.language, why))
            }
            None => Err(not_started(
                &context.language,
                String::from_utf8_lossy(&lines.errors).trim(),
            )),
        }
    };
    let started = tokio::time::timeout(START, started).await;
    let result = started.unwrap_or_else(|_| {
        let why = format!("its kernel did not answer within {} s", START.as_secs());
        Err(not_started(&context.language, &why))
    });
    if result.is_err() {
        end(daemon, pid).await?;
    }
    result.map(|()| pid)
}

/// Writes a line to a context.
async fn tell(daemon: &Arc<Daemon>, pid: u32, line: &Value) -> ApiResult<()> {
    let mut link = daemon.send(&Request::Input { pid, close: false }).await?;
    link.write_data(format!("{line}\n").as_bytes()).await?;
    link.write(Kind::End, &[]).await?;
    link.replies().await.map(drop)
}

/// Ends a context: asks it to, so that it ends its kernel, and kills it otherwise.
async fn end(daemon: &Arc<Daemon>, pid: u32) -> ApiResult<()> {
    let asked = async {
        let follower = daemon.send(&Request::Follow { pid, from: None }).await?;
        let mut lines = Lines::begin(follower).await?;
        let mut link = daemon.send(&Request::Input { pid, close: true }).await?;
        link.write(Kind::End, &[]).await?;
        link.replies().await?;
        while lines.next().await?.is_some() {}
        Ok::<(), ApiError>(())
    };
    if let Ok(Ok(())) = tokio::time::timeout(END, asked).await {
        return Ok(());
    }
    match daemon.ask(&Request::Signal { pid, signal: 9 }).await {
        Err(error) if error.code != Code::NotFound => Err(error),
        _ => Ok(()),
    }
}

#[derive(Debug, Default, Deserialize)]
struct NewContext {
    language: Option<String>,
    cwd: Option<String>,
}

async fn create(
    State(engine): State<Arc<Engine>>,
    Interpreter(entry): Interpreter,
    Json(wanted): Json<NewContext>,
) -> Result<Response, E2bError> {
    let id = random_hex(12).map_err(|error| ApiError::internal("get random bytes", &error))?;
    let context = Context {
        id,
        language: language(wanted.language)?,
        cwd: wanted.cwd.unwrap_or_else(|| entry.record().home),
    };
    let _one = entry.contexts.lock().await;
    start(&engine, &entry, &context).await?;
    Ok((StatusCode::CREATED, axum::Json(context)).into_response())
}

async fn list(Interpreter(entry): Interpreter) -> Result<axum::Json<Vec<Context>>, E2bError> {
    let found = contexts(entry.running()?).await?;
    Ok(axum::Json(
        found.into_iter().map(|(_, context)| context).collect(),
    ))
}

async fn remove(
    Interpreter(entry): Interpreter,
    Path(id): Path<String>,
) -> Result<StatusCode, E2bError> {
    let daemon = entry.running()?;
    let (pid, _) = find(daemon, &id).await?;
    end(daemon, pid).await?;
    Ok(StatusCode::NO_CONTENT)
}

async fn restart(
    State(engine): State<Arc<Engine>>,
    Interpreter(entry): Interpreter,
    Path(id): Path<String>,
) -> Result<StatusCode, E2bError> {
    let daemon = entry.running()?;
    let _one = entry.contexts.lock().await;
    let (pid, context) = find(daemon, &id).await?;
    end(daemon, pid).await?;
    start(&engine, &entry, &context).await?;
    Ok(StatusCode::NO_CONTENT)
}

#[derive(Debug, Deserialize)]
struct Execute {
    code: String,
    context_id: Option<String>,
    language: Option<String>,
    env_vars: Option<BTreeMap<String, String>>,
}

/// The process of the context that is to execute something. The default one of a language starts
/// with its first use, and has the language as its id.
async fn context_for(engine: &Engine, entry: &Entry, wanted: &Execute) -> ApiResult<u32> {
    let daemon = entry.running()?;
    match (&wanted.context_id, &wanted.language) {
        (Some(_), Some(_)) => Err(ApiError::invalid(
            "context_id and language exclude each other",
        )),
        // As E2B's own server names the default one.
        (Some(id), None) if id != "default" => Ok(find(daemon, id).await?.0),
        (_, name) => {
            let language = language(name.clone())?;
            let _one = entry.contexts.lock().await;
            match find(daemon, &language).await {
                Ok((pid, _)) => Ok(pid),
                Err(error) if error.code == Code::NotFound => {
                    let context = Context {
                        id: language.clone(),
                        language,
                        cwd: entry.record().home,
                    };
                    start(engine, entry, &context).await
                }
                Err(error) => Err(error),
            }
        }
    }
}

async fn execute(
    State(engine): State<Arc<Engine>>,
    Interpreter(entry): Interpreter,
    Json(wanted): Json<Execute>,
) -> Result<Response, E2bError> {
    let pid = context_for(&engine, &entry, &wanted).await?;
    let daemon = Arc::clone(entry.running()?);
    let id = random_hex(8).map_err(|error| ApiError::internal("get random bytes", &error))?;
    let mut lines = Lines::begin(daemon.send(&Request::Follow { pid, from: None }).await?).await?;
    let line = json!({ "op": "execute", "id": id, "code": wanted.code, "env": wanted.env_vars });
    tell(&daemon, pid, &line).await?;
    let (sender, receiver) = mpsc::channel(4);
    tokio::spawn(async move {
        let finished = tokio::select! {
            passed = pass(&mut lines, &id, &sender) => passed.is_ok(),
            () = sender.closed() => false,
        };
        if !finished {
            // Nobody waits for it any more, so it is interrupted. A context that is gone has ended it.
            let _ = tell(&daemon, pid, &json!({ "op": "interrupt", "id": id })).await;
        }
    });
    let stream = futures_util::stream::unfold(receiver, |mut receiver| async move {
        let bytes: Bytes = receiver.recv().await?;
        Some((Ok::<_, Infallible>(bytes), receiver))
    });
    let headers = [(header::CONTENT_TYPE, "application/x-ndjson")];
    Ok((headers, Body::from_stream(stream)).into_response())
}

/// The client is gone.
struct Gone;

/// Passes the events of one execution on, up to its end.
async fn pass(lines: &mut Lines, id: &str, sender: &mpsc::Sender<Bytes>) -> Result<(), Gone> {
    let send = async |bytes: Bytes| sender.send(bytes).await.map_err(|_| Gone);
    loop {
        let line = match lines.next().await {
            Ok(Some(line)) => line,
            ended => {
                let why = match ended {
                    Err(error) => error.message,
                    Ok(_) => "the code context ended".to_owned(),
                };
                let event = json!({ "type": "error", "name": "ContextEnded", "value": why, "traceback": "" });
                return send(Bytes::from(format!("{event}\n"))).await;
            }
        };
        // Lines of other executions, and the rest of one that began before this one.
        let Some(mine) = line.strip_prefix(id.as_bytes()) else {
            continue;
        };
        match mine {
            b" end" => return Ok(()),
            [b' ', b'+', ..] => send(line.slice(id.len() + 2..)).await?,
            [b' ', b'.', ..] => {
                send(line.slice(id.len() + 2..)).await?;
                send(Bytes::from_static(b"\n")).await?;
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn process(tag: Option<&str>) -> ProcessState {
        ProcessState {
            pid: 1,
            argv: Vec::new(),
            env: BTreeMap::new(),
            cwd: String::new(),
            tag: tag.map(str::to_owned),
            terminal: false,
            started: 0,
            output: 0,
            output_from: 0,
            exit: None,
        }
    }

    #[test]
    fn a_context_is_known_by_the_tag_of_its_process() {
        let context = Context {
            id: "python".to_owned(),
            language: "python".to_owned(),
            cwd: "/home".to_owned(),
        };
        let tag = format!("{TAG}{}", serde_json::to_string(&context).unwrap());
        assert_eq!(context_of(&process(Some(&tag))), Some(context));
        for other in [None, Some("mine"), Some(TAG), Some(r#"{"id":"a"}"#)] {
            assert_eq!(context_of(&process(other)), None, "{other:?}");
        }
    }

    #[test]
    fn languages_have_one_name() {
        let of = |text: &str| language(Some(text.to_owned()));
        assert_eq!(language(None).unwrap(), "python");
        for (text, name) in [("Python", "python"), ("js", "javascript"), ("r", "r")] {
            assert_eq!(of(text).unwrap(), name);
        }
        for bad in ["a b", "../x", &"x".repeat(LONGEST_LANGUAGE + 1)] {
            assert_eq!(of(bad).unwrap_err().code, Code::InvalidRequest, "{bad}");
        }
    }
}
