//! `/v1/cages/{id}/processes` and `/v1/cages/{id}/run`.

use super::events::{Events, Gone};
use super::types::{
    Encoding, OutputEvent, OutputQuery, OutputStream, Process, ProcessExit, ProcessList, PtySize,
    RunCommand, RunResult, SendSignal, StartProcess, StdinQuery,
};
use super::{Caller, Json, Path, Query, Shared};
use crate::daemon::{Daemon, Link, PATIENCE, Received};
use crate::engine::Entry;
use crate::error::{ApiError, ApiResult, ErrorBody};
use crate::keys::Scope;
use crate::signals;
use crate::{answers, clock};
use axum::body::{Body, BodyDataStream};
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::Response;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use futures_util::StreamExt;
use ironcage_cage_daemon::protocol::{self, Kind, Reply, Request, TerminalSize};
use serde_json::json;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::task::JoinSet;
use tokio::time::Instant;

/// How often a stream shows that it lives.
const KEEP_ALIVE: Duration = Duration::from_secs(20);
const OUTPUT: usize = 10 << 20;
const MOST_OUTPUT: usize = 16 << 20;
const RUN_TIME: u32 = 60;
const LONGEST_RUN: u32 = 86_400;

fn shown(process: protocol::ProcessState) -> Process {
    Process {
        pid: process.pid,
        argv: process.argv,
        cwd: process.cwd,
        tag: process.tag,
        pty: process.terminal,
        started_at: clock::rfc3339(process.started),
        output: process.output,
        output_from: process.output_from,
        exit: process.exit.map(exit),
    }
}

fn exit(exit: protocol::Exit) -> ProcessExit {
    ProcessExit {
        code: exit.code,
        signal: exit.signal,
    }
}

fn words(argv: Vec<String>, command: Option<String>) -> ApiResult<Vec<String>> {
    match (argv.is_empty(), command) {
        (false, None) => Ok(argv),
        (true, Some(command)) => Ok(vec!["/bin/sh".into(), "-c".into(), command]),
        _ => Err(ApiError::invalid("give either `argv` or `command`")),
    }
}

/// The variables of a cage, and on top of them those of one process.
pub(crate) fn environment(
    entry: &Entry,
    own: BTreeMap<String, String>,
) -> BTreeMap<String, String> {
    let mut env = entry.record().spec.env;
    env.extend(own);
    env
}

async fn one(daemon: &Arc<Daemon>, request: &Request) -> ApiResult<Process> {
    match daemon.ask_one(request).await? {
        Reply::Process { process } => Ok(shown(process)),
        _ => Err(daemon.garbled("not a process")),
    }
}

/// Start a process
///
/// It runs until it ends, whether or not somebody follows it, and also when the service restarts.
#[utoipa::path(post, path = "/v1/cages/{id}/processes", tag = "processes", params(("id" = String, Path)),
    request_body = StartProcess,
    responses((status = 201, body = Process), (status = "default", body = ErrorBody)))]
pub(super) async fn start_process(
    caller: Caller,
    State(engine): Shared,
    Path(id): Path<String>,
    Json(start): Json<StartProcess>,
) -> ApiResult<(StatusCode, axum::Json<Process>)> {
    caller.needs(Scope::Cages)?;
    let entry = engine.cage(&caller.key, &id)?;
    let start = protocol::StartProcess {
        argv: words(start.argv, start.command)?,
        env: environment(&entry, start.env),
        cwd: start.cwd,
        input: start.stdin,
        terminal: start.pty.map(size),
        tag: start.tag,
    };
    let request = Request::Start {
        start,
        follow: false,
    };
    let process = one(entry.running()?, &request).await?;
    Ok((StatusCode::CREATED, axum::Json(process)))
}

fn size(size: PtySize) -> TerminalSize {
    TerminalSize {
        rows: size.rows,
        columns: size.columns,
    }
}

/// List processes that the API started
///
/// Those that run, and the last 64 that ended.
#[utoipa::path(get, path = "/v1/cages/{id}/processes", tag = "processes", params(("id" = String, Path)),
    responses((status = 200, body = ProcessList), (status = "default", body = ErrorBody)))]
pub(super) async fn list_processes(
    caller: Caller,
    State(engine): Shared,
    Path(id): Path<String>,
) -> ApiResult<axum::Json<ProcessList>> {
    caller.needs(Scope::Read)?;
    let entry = engine.cage(&caller.key, &id)?;
    let replies = entry.running()?.ask(&Request::Processes).await?;
    let processes = replies.into_iter().filter_map(|reply| match reply {
        Reply::Process { process } => Some(shown(process)),
        _ => None,
    });
    Ok(axum::Json(ProcessList {
        processes: processes.collect(),
    }))
}

/// Get a process
#[utoipa::path(get, path = "/v1/cages/{id}/processes/{pid}", tag = "processes",
    params(("id" = String, Path), ("pid" = u32, Path)),
    responses((status = 200, body = Process), (status = "default", body = ErrorBody)))]
pub(super) async fn get_process(
    caller: Caller,
    State(engine): Shared,
    Path((id, pid)): Path<(String, u32)>,
) -> ApiResult<axum::Json<Process>> {
    caller.needs(Scope::Read)?;
    let entry = engine.cage(&caller.key, &id)?;
    let process = one(entry.running()?, &Request::Process { pid }).await?;
    Ok(axum::Json(process))
}

/// Follow the output of a process
///
/// Events: `start` with `{"from": BYTE}`, then `output` with an `OutputEvent`, at the end `exit` with
/// a `ProcessExit`, or `error` with an `ErrorBody`. The process goes on when the client goes away;
/// `from` continues where it was. The last MiB of output is kept.
#[utoipa::path(get, path = "/v1/cages/{id}/processes/{pid}/output", tag = "processes",
    params(("id" = String, Path), ("pid" = u32, Path), OutputQuery),
    responses((status = 200, content_type = "text/event-stream", body = OutputEvent), (status = "default", body = ErrorBody)))]
pub(super) async fn process_output(
    caller: Caller,
    State(engine): Shared,
    Path((id, pid)): Path<(String, u32)>,
    Query(query): Query<OutputQuery>,
) -> ApiResult<Response> {
    caller.needs(Scope::Read)?;
    let entry = engine.cage(&caller.key, &id)?;
    let daemon = entry.running()?;
    let mut link = daemon
        .send(&Request::Follow {
            pid,
            from: query.from,
        })
        .await?;
    match link.receive(Some(PATIENCE)).await? {
        Received::Reply(Reply::Process { .. }) => {}
        _ => return Err(daemon.garbled("not a process")),
    }
    let (events, response) = Events::channel();
    tokio::spawn(async move {
        let work = follow(link, &events);
        events.run(&engine, &caller.key, work).await;
    });
    Ok(response)
}

async fn follow(mut link: Link, events: &Events) -> Result<(), Gone> {
    let mut offset = 0;
    loop {
        let received = match tokio::time::timeout(KEEP_ALIVE, link.receive(None)).await {
            Ok(received) => received,
            // A frame that has come in part would be lost: none takes as long as this.
            Err(_) => {
                events.keep_alive().await?;
                continue;
            }
        };
        match received {
            Ok(Received::Reply(Reply::Following { from })) => {
                offset = from;
                events.send("start", &json!({ "from": from })).await?;
            }
            Ok(Received::Data(kind, bytes)) => {
                let stream = match kind {
                    Kind::Stderr => OutputStream::Stderr,
                    Kind::Terminal => OutputStream::Pty,
                    _ => OutputStream::Stdout,
                };
                let data = BASE64.encode(&bytes);
                events
                    .send(
                        "output",
                        &OutputEvent {
                            stream,
                            offset,
                            data,
                        },
                    )
                    .await?;
                offset = offset.saturating_add(bytes.len() as u64);
            }
            Ok(Received::Reply(Reply::Exited { exit: how })) => {
                return events.send("exit", &exit(how)).await;
            }
            Ok(Received::Reply(_) | Received::Done) => return Ok(()),
            Err(error) => return events.send("error", &error.body()).await,
        }
    }
}

/// Write to the input of a process
///
/// The body is written as it is. Answers when the process has taken it into its pipe.
#[utoipa::path(post, path = "/v1/cages/{id}/processes/{pid}/stdin", tag = "processes",
    params(("id" = String, Path), ("pid" = u32, Path), StdinQuery),
    request_body(content = Vec<u8>, content_type = "application/octet-stream"),
    responses((status = 204), (status = "default", body = ErrorBody)))]
pub(super) async fn write_stdin(
    caller: Caller,
    State(engine): Shared,
    Path((id, pid)): Path<(String, u32)>,
    Query(query): Query<StdinQuery>,
    body: Body,
) -> ApiResult<StatusCode> {
    caller.needs(Scope::Cages)?;
    let entry = engine.cage(&caller.key, &id)?;
    let mut body = body.into_data_stream();
    let first = next_bytes(&mut body).await?;
    let request = Request::Input {
        pid,
        close: query.close,
    };
    let mut link = entry.running()?.send(&request).await?;
    let mut bytes = first;
    while let Some(chunk) = bytes {
        link.write_data(&chunk).await?;
        bytes = next_bytes(&mut body).await?;
    }
    link.write(Kind::End, &[]).await?;
    link.replies().await?;
    Ok(StatusCode::NO_CONTENT)
}

/// The next part of a body.
pub(crate) async fn next_bytes(body: &mut BodyDataStream) -> ApiResult<Option<axum::body::Bytes>> {
    match body.next().await.transpose() {
        Ok(bytes) => Ok(bytes),
        Err(error) => Err(ApiError::invalid(format!(
            "the body did not arrive whole: {error}"
        ))),
    }
}

/// Send a signal to a process and its children
///
/// It goes to the process group.
#[utoipa::path(post, path = "/v1/cages/{id}/processes/{pid}/signal", tag = "processes",
    params(("id" = String, Path), ("pid" = u32, Path)), request_body = SendSignal,
    responses((status = 204), (status = "default", body = ErrorBody)))]
pub(super) async fn send_signal(
    caller: Caller,
    State(engine): Shared,
    Path((id, pid)): Path<(String, u32)>,
    Json(wanted): Json<SendSignal>,
) -> ApiResult<StatusCode> {
    caller.needs(Scope::Cages)?;
    let entry = engine.cage(&caller.key, &id)?;
    let signal = signals::number(&wanted.signal).ok_or_else(|| {
        ApiError::invalid(format!(
            "unknown signal `{}`; expected a name such as SIGTERM, or a number",
            wanted.signal.escape_debug()
        ))
    })?;
    entry
        .running()?
        .ask(&Request::Signal { pid, signal })
        .await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Set the size of the terminal of a process
#[utoipa::path(post, path = "/v1/cages/{id}/processes/{pid}/resize", tag = "processes",
    params(("id" = String, Path), ("pid" = u32, Path)), request_body = PtySize,
    responses((status = 204), (status = "default", body = ErrorBody)))]
pub(super) async fn resize_pty(
    caller: Caller,
    State(engine): Shared,
    Path((id, pid)): Path<(String, u32)>,
    Json(wanted): Json<PtySize>,
) -> ApiResult<StatusCode> {
    caller.needs(Scope::Cages)?;
    let entry = engine.cage(&caller.key, &id)?;
    let size = size(wanted);
    entry.running()?.ask(&Request::Resize { pid, size }).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Run a command to its end
///
/// Starts a process, gives it `stdin`, and answers with its output when it has ended. One that takes
/// longer than `timeout` is killed with its children; so is one whose client goes away.
#[utoipa::path(post, path = "/v1/cages/{id}/run", tag = "processes", params(("id" = String, Path)),
    request_body = RunCommand,
    responses((status = 200, body = RunResult), (status = "default", body = ErrorBody)))]
pub(super) async fn run_command(
    caller: Caller,
    State(engine): Shared,
    Path(id): Path<String>,
    Json(run): Json<RunCommand>,
) -> ApiResult<axum::Json<RunResult>> {
    caller.needs(Scope::Cages)?;
    let entry = engine.cage(&caller.key, &id)?;
    let timeout = match run.timeout.unwrap_or(RUN_TIME) {
        seconds @ 1..=LONGEST_RUN => Duration::from_secs(seconds.into()),
        other => {
            return Err(ApiError::invalid(format!(
                "the timeout is {other} s; expected 1 to {LONGEST_RUN}"
            )));
        }
    };
    let limit = run.max_output.unwrap_or(OUTPUT);
    if limit > MOST_OUTPUT {
        return Err(ApiError::invalid(format!(
            "max_output is {limit}; expected at most {MOST_OUTPUT}"
        )));
    }
    let input = match (run.stdin, run.encoding) {
        (None, _) => None,
        (Some(text), Encoding::Utf8) => Some(text.into_bytes()),
        (Some(text), Encoding::Base64) => Some(
            BASE64
                .decode(text)
                .map_err(|error| ApiError::invalid(format!("stdin is not base64: {error}")))?,
        ),
    };
    let daemon = entry.running()?;
    let start = protocol::StartProcess {
        argv: words(run.argv, run.command)?,
        env: environment(&entry, run.env),
        cwd: run.cwd,
        input: input.is_some(),
        terminal: None,
        tag: None,
    };
    let deadline = Instant::now() + timeout;
    let mut link = daemon
        .send(&Request::Start {
            start,
            follow: true,
        })
        .await?;
    let pid = match link.receive(Some(PATIENCE)).await? {
        Received::Reply(Reply::Process { process }) => process.pid,
        _ => return Err(daemon.garbled("not a process")),
    };
    let mut killer = KillOnDrop {
        daemon: Arc::clone(daemon),
        pid,
        armed: true,
    };
    // It ends with this request.
    let mut fed = JoinSet::new();
    if let Some(input) = input {
        fed.spawn(feed(Arc::clone(daemon), pid, input));
    }
    let mut collected = Collected {
        limit,
        ..Collected::default()
    };
    let timed_out = tokio::time::timeout_at(deadline, collected.collect(daemon, &mut link)).await;
    let timed_out = match timed_out {
        Ok(result) => {
            result?;
            false
        }
        Err(_) => {
            drop(link);
            killer.kill().await?;
            collected.exit = Some(ProcessExit {
                code: None,
                signal: Some(9),
            });
            true
        }
    };
    killer.armed = false;
    drop(fed);
    let text = |bytes: Vec<u8>| match run.encoding {
        Encoding::Utf8 => String::from_utf8_lossy(&bytes).into_owned(),
        Encoding::Base64 => BASE64.encode(bytes),
    };
    let exit = collected
        .exit
        .ok_or_else(|| daemon.garbled("the end of the process is missing"))?;
    Ok(axum::Json(RunResult {
        exit,
        truncated: collected.truncated,
        stdout: text(collected.stdout),
        stderr: text(collected.stderr),
        timed_out,
    }))
}

async fn feed(daemon: Arc<Daemon>, pid: u32, input: Vec<u8>) -> ApiResult<()> {
    let mut link = daemon.send(&Request::Input { pid, close: true }).await?;
    for chunk in input.chunks(protocol::CHUNK) {
        // A process that does not read its input holds it up as long as it runs.
        link.write_waiting(Kind::Data, chunk).await?;
    }
    link.write_waiting(Kind::End, &[]).await?;
    while !matches!(link.receive(None).await?, Received::Done) {}
    Ok(())
}

#[derive(Default)]
struct Collected {
    limit: usize,
    stdout: Vec<u8>,
    stderr: Vec<u8>,
    truncated: bool,
    exit: Option<ProcessExit>,
}

impl Collected {
    async fn collect(&mut self, daemon: &Arc<Daemon>, link: &mut Link) -> ApiResult<()> {
        loop {
            match link.receive(None).await? {
                Received::Data(kind, bytes) => {
                    let to = match kind {
                        Kind::Stderr => &mut self.stderr,
                        _ => &mut self.stdout,
                    };
                    let room = self.limit.saturating_sub(to.len());
                    let taken = bytes.get(..room.min(bytes.len())).unwrap_or_default();
                    answers::hold(taken.len())?;
                    to.extend_from_slice(taken);
                    self.truncated |= bytes.len() > room;
                }
                Received::Reply(Reply::Following { .. }) => {}
                Received::Reply(Reply::Exited { exit: how }) => self.exit = Some(exit(how)),
                Received::Done => return Ok(()),
                Received::Reply(_) => return Err(daemon.garbled("not output")),
            }
        }
    }
}

/// Kills a process whose client went away.
struct KillOnDrop {
    daemon: Arc<Daemon>,
    pid: u32,
    armed: bool,
}

impl KillOnDrop {
    async fn kill(&mut self) -> ApiResult<()> {
        self.armed = false;
        kill(&self.daemon, self.pid).await
    }
}

async fn kill(daemon: &Arc<Daemon>, pid: u32) -> ApiResult<()> {
    match daemon.ask(&Request::Signal { pid, signal: 9 }).await {
        // It has just ended.
        Err(error) if error.code == crate::error::Code::NotFound => Ok(()),
        other => other.map(drop),
    }
}

impl Drop for KillOnDrop {
    fn drop(&mut self) {
        if self.armed {
            let (daemon, pid) = (Arc::clone(&self.daemon), self.pid);
            tokio::spawn(async move { kill(&daemon, pid).await });
        }
    }
}
