//! `process.Process` of envd.

use super::rpc::{self, Envelopes, Gone, JsonReply, Messages, RpcError, RpcResult};
use super::{Sandbox, interpreter};
use crate::api::environment;
use crate::api::types::CageState;
use crate::daemon::{Daemon, Link, Received};
use crate::engine::Entry;
use crate::error::ApiError;
use axum::body::Bytes;
use axum::extract::Request;
use axum::http::HeaderMap;
use axum::response::Response;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use ironcage_cage_daemon::protocol::{
    Kind, ProcessState, Reply, Request as DaemonRequest, StartProcess, TerminalSize,
};
use serde::Deserialize;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// How long the end of a killed process is waited for.
const ENDING: Duration = Duration::from_secs(5);
/// How often a process is looked at whose client left before its deadline.
const LOOK: Duration = Duration::from_secs(15);

fn done() -> JsonReply {
    Ok(axum::Json(json!({})))
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Config {
    cmd: String,
    args: Vec<String>,
    envs: BTreeMap<String, String>,
    cwd: Option<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Size {
    cols: u16,
    rows: u16,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Pty {
    size: Option<Size>,
}

impl Pty {
    fn size(self) -> TerminalSize {
        let size = self.size.unwrap_or(Size { cols: 80, rows: 24 });
        TerminalSize {
            rows: size.rows,
            columns: size.cols,
        }
    }
}

#[derive(Debug, Deserialize)]
struct Start {
    process: Config,
    pty: Option<Pty>,
    tag: Option<String>,
    stdin: Option<bool>,
}

/// A process by its id or its tag.
#[derive(Debug, Deserialize)]
struct Selector {
    pid: Option<u32>,
    tag: Option<String>,
}

impl Selector {
    /// A process that ended while it was spoken to is one that is not there.
    async fn gone(daemon: &Arc<Daemon>, pid: u32, error: RpcError) -> RpcError {
        match running(daemon).await {
            Ok(running) if running.iter().all(|process| process.pid != pid) => missing(pid),
            Ok(_) | Err(_) => error,
        }
    }

    async fn pid(&self, daemon: &Arc<Daemon>) -> RpcResult<u32> {
        match (self.pid, &self.tag) {
            (Some(pid), _) => Ok(pid),
            (None, Some(tag)) => {
                let found = running(daemon).await?;
                let found = found
                    .into_iter()
                    .find(|process| process.tag.as_ref() == Some(tag));
                let missing = || {
                    RpcError::new(
                        "not_found",
                        format!("process with tag {} not found", tag.escape_debug()),
                    )
                };
                found.map(|process| process.pid).ok_or_else(missing)
            }
            (None, None) => Err(RpcError::invalid("the message names no process")),
        }
    }
}

fn missing(pid: u32) -> RpcError {
    RpcError::new("not_found", format!("process with pid {pid} not found"))
}

async fn running(daemon: &Arc<Daemon>) -> Result<Vec<ProcessState>, ApiError> {
    let replies = daemon.ask(&DaemonRequest::Processes).await?;
    let processes = replies.into_iter().filter_map(|reply| match reply {
        Reply::Process { process } => Some(process),
        _ => None,
    });
    // Kernels of code contexts belong to the service, as at E2B.
    Ok(processes
        .filter(|process| process.exit.is_none() && !interpreter::is_context(process))
        .collect())
}

pub(super) async fn start(
    Sandbox(entry): Sandbox,
    headers: HeaderMap,
    body: Bytes,
) -> RpcResult<Response> {
    let start: Start = rpc::enveloped(&body)?;
    let deadline = rpc::deadline(&headers)?;
    let mut argv = vec![start.process.cmd];
    argv.extend(start.process.args);
    let terminal = start.pty.map(Pty::size);
    let request = DaemonRequest::Start {
        start: StartProcess {
            argv,
            env: environment(&entry, start.process.envs),
            cwd: Some(match start.process.cwd.filter(|cwd| !cwd.is_empty()) {
                Some(cwd) => rpc::from_home(&cwd),
                None => rpc::from_home(&entry.record().e2b.workdir.unwrap_or_default()),
            }),
            input: start.stdin.unwrap_or(true),
            terminal,
            tag: start.tag,
        },
        follow: true,
    };
    let daemon = entry.running()?;
    let link = daemon.send(&request).await?;
    let following = FollowedProcess {
        keepalive: rpc::keepalive(&headers),
        deadline,
        // As at E2B: what has no time any more is not left behind.
        kills: Some(Arc::clone(&entry)),
        connecting: false,
    };
    Ok(stream(link, following))
}

#[derive(Debug, Deserialize)]
struct Selected {
    process: Selector,
}

pub(super) async fn connect(
    Sandbox(entry): Sandbox,
    headers: HeaderMap,
    body: Bytes,
) -> RpcResult<Response> {
    let selected: Selected = rpc::enveloped(&body)?;
    let deadline = rpc::deadline(&headers)?;
    let daemon = entry.running()?;
    let pid = selected.process.pid(daemon).await?;
    let link = daemon
        .send(&DaemonRequest::Follow { pid, from: None })
        .await?;
    let following = FollowedProcess {
        keepalive: rpc::keepalive(&headers),
        deadline,
        kills: None,
        connecting: true,
    };
    Ok(stream(link, following))
}

/// How the events of a process are passed on.
struct FollowedProcess {
    keepalive: Duration,
    deadline: Option<Instant>,
    /// The cage whose process is killed at the deadline.
    kills: Option<Arc<Entry>>,
    /// Whether the process was there before.
    connecting: bool,
}

/// A process that was seen to run: its id, and its start, by which it is told from a later one.
type SeenProcess = (u32, u64);

/// Passes the events of a process on.
fn stream(mut link: Link, following: FollowedProcess) -> Response {
    let (messages, response) = Messages::channel();
    tokio::spawn(async move {
        let mut seen = None;
        let late = tokio::select! {
            passed = pass(&mut link, &messages, &following, &mut seen) => match passed {
                Ok(()) => return,
                Err(Gone) => false,
            },
            () = messages.closed() => false,
            () = rpc::passed(following.deadline) => true,
        };
        if late {
            // A client that is gone needs no answer.
            let _ = messages.end(Some(rpc::late())).await;
        }
        drop((link, messages));
        // The time of a process is over also where its client left.
        if let (Some(entry), Some(seen), Some(deadline)) =
            (following.kills, seen, following.deadline)
        {
            end_at(&entry, seen, deadline).await;
        }
    });
    response
}

/// Kills a process at its deadline. It is looked at now and then until that: a connection of its own
/// would be one that its cage lacks.
async fn end_at(entry: &Entry, seen: SeenProcess, deadline: Instant) {
    loop {
        if entry.state() == CageState::Ended {
            return;
        }
        // One that is paused, or does not answer, is looked at again.
        if let Ok(daemon) = entry.running()
            && let Ok(running) = running(daemon).await
        {
            let mut running = running.iter();
            if !running.any(|process| (process.pid, process.started) == seen) {
                return;
            }
            if Instant::now() >= deadline {
                let (pid, signal) = (seen.0, 9);
                // It may have ended in this moment.
                let _ = daemon.ask(&DaemonRequest::Signal { pid, signal }).await;
                return;
            }
        }
        let now = Instant::now();
        let next = now + LOOK;
        tokio::time::sleep_until(if deadline > now {
            next.min(deadline)
        } else {
            next
        })
        .await;
    }
}

async fn pass(
    link: &mut Link,
    messages: &Messages,
    following: &FollowedProcess,
    seen: &mut Option<SeenProcess>,
) -> Result<(), Gone> {
    let event = |event: Value| json!({ "event": event });
    loop {
        let message = match tokio::time::timeout(following.keepalive, link.receive(None)).await {
            Err(_) => event(json!({ "keepalive": {} })),
            Ok(Ok(Received::Reply(Reply::Process { process }))) => {
                // To connect to a process that is over is an error there.
                if following.connecting && process.exit.is_some() {
                    return messages.end(Some(missing(process.pid))).await;
                }
                *seen = Some((process.pid, process.started));
                event(json!({ "start": { "pid": process.pid } }))
            }
            Ok(Ok(Received::Data(kind, bytes))) => {
                let name = match kind {
                    Kind::Stderr => "stderr",
                    Kind::Terminal => "pty",
                    _ => "stdout",
                };
                event(json!({ "data": { name: BASE64.encode(&bytes) } }))
            }
            Ok(Ok(Received::Reply(Reply::Exited { exit }))) => {
                *seen = None;
                let status = match (exit.code, exit.signal) {
                    (Some(code), _) => format!("exit status {code}"),
                    (None, Some(9)) => "signal: killed".to_owned(),
                    (None, Some(15)) => "signal: terminated".to_owned(),
                    (None, signal) => format!("signal: {}", signal.unwrap_or_default()),
                };
                let mut end = json!({ "exitCode": exit.code.unwrap_or(-1), "exited": exit.code.is_some(), "status": status });
                if exit.code != Some(0)
                    && let Some(end) = end.as_object_mut()
                {
                    end.insert("error".into(), status.into());
                }
                event(json!({ "end": end }))
            }
            Ok(Ok(Received::Reply(_))) => continue,
            Ok(Ok(Received::Done)) => return messages.end(None).await,
            Ok(Err(error)) => return messages.end(Some(error.into())).await,
        };
        messages.send(&message).await?;
    }
}

pub(super) async fn list(Sandbox(entry): Sandbox) -> JsonReply {
    let shown = |process: ProcessState| {
        let mut words = process.argv.into_iter();
        let mut shown = json!({
            "config": {
                "cmd": words.next().unwrap_or_default(),
                "args": words.collect::<Vec<_>>(),
                "envs": process.env,
                "cwd": process.cwd,
            },
            "pid": process.pid,
        });
        if let (Some(tag), Some(shown)) = (process.tag, shown.as_object_mut()) {
            shown.insert("tag".into(), tag.into());
        }
        shown
    };
    let processes: Vec<_> = running(entry.running()?)
        .await?
        .into_iter()
        .map(shown)
        .collect();
    Ok(axum::Json(json!({ "processes": processes })))
}

#[derive(Debug, Deserialize)]
struct Input {
    stdin: Option<String>,
    pty: Option<String>,
}

#[derive(Debug, Deserialize)]
struct SendInput {
    process: Selector,
    input: Input,
}

pub(super) async fn send_input(Sandbox(entry): Sandbox, body: Bytes) -> JsonReply {
    let wanted: SendInput = rpc::unary(&body)?;
    let daemon = entry.running()?;
    let pid = wanted.process.pid(daemon).await?;
    input(daemon, pid, wanted.input).await?;
    done()
}

pub(super) async fn close_stdin(Sandbox(entry): Sandbox, body: Bytes) -> JsonReply {
    let wanted: Selected = rpc::unary(&body)?;
    let daemon = entry.running()?;
    let pid = wanted.process.pid(daemon).await?;
    let mut link = daemon
        .send(&DaemonRequest::Input { pid, close: true })
        .await?;
    let closed = async {
        link.write(Kind::End, &[]).await?;
        link.replies().await
    };
    match closed.await {
        Ok(_) => done(),
        Err(error) => Err(Selector::gone(daemon, pid, error.into()).await),
    }
}

#[derive(Debug, Deserialize)]
struct SendSignal {
    process: Selector,
    signal: String,
}

pub(super) async fn send_signal(Sandbox(entry): Sandbox, body: Bytes) -> JsonReply {
    let wanted: SendSignal = rpc::unary(&body)?;
    let signal = match wanted.signal.as_str() {
        "SIGNAL_SIGKILL" => 9,
        "SIGNAL_SIGTERM" => 15,
        other => {
            return Err(RpcError::invalid(format!(
                "unknown signal `{}`",
                other.escape_debug()
            )));
        }
    };
    let daemon = entry.running()?;
    let pid = wanted.process.pid(daemon).await?;
    daemon.ask(&DaemonRequest::Signal { pid, signal }).await?;
    if signal == 9 {
        // Who asks what runs then does not find it any more. One that cannot end yet is not waited for.
        let _ = tokio::time::timeout(ENDING, gone(daemon, pid)).await;
    }
    done()
}

/// Waits for the end of a process.
async fn gone(daemon: &Arc<Daemon>, pid: u32) -> Result<(), ApiError> {
    let follow = DaemonRequest::Follow { pid, from: None };
    let mut link = daemon.send(&follow).await?;
    loop {
        match link.receive(None).await? {
            Received::Reply(Reply::Process { process }) if process.exit.is_some() => break,
            Received::Reply(Reply::Exited { .. }) | Received::Done => break,
            Received::Reply(_) | Received::Data(..) => {}
        }
    }
    Ok(())
}

#[derive(Debug, Deserialize)]
struct Update {
    process: Selector,
    pty: Option<Pty>,
}

pub(super) async fn update(Sandbox(entry): Sandbox, body: Bytes) -> JsonReply {
    let wanted: Update = rpc::unary(&body)?;
    let daemon = entry.running()?;
    let pid = wanted.process.pid(daemon).await?;
    if let Some(pty) = wanted.pty {
        // The terminal of one that has ended can be resized, and nobody sees it.
        if running(daemon)
            .await?
            .iter()
            .all(|process| process.pid != pid)
        {
            return Err(missing(pid));
        }
        let size = pty.size();
        daemon.ask(&DaemonRequest::Resize { pid, size }).await?;
    }
    done()
}

/// A message of a stream of input: a process first, and then what it is to read.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct InputEvent {
    start: Option<Selected>,
    data: Option<InputData>,
}

#[derive(Debug, Deserialize)]
struct InputData {
    input: Input,
}

/// Passes input on as it comes. The answer is a stream of its one message, as that of the call is.
pub(super) async fn stream_input(Sandbox(entry): Sandbox, request: Request) -> Response {
    let (messages, response) = Messages::channel();
    let mut events = Envelopes::of(request.into_body());
    let done = async {
        let daemon = entry.running()?;
        let first: Option<InputEvent> = events.next().await?;
        let process = first.and_then(|event| event.start);
        let process =
            process.ok_or_else(|| RpcError::invalid("the first message names no process"))?;
        let pid = process.process.pid(daemon).await?;
        while let Some(event) = events.next::<InputEvent>().await? {
            if let Some(data) = event.data {
                input(daemon, pid, data.input).await?;
            }
        }
        Ok::<_, RpcError>(())
    };
    let last = match done.await {
        Ok(()) => messages.send(&json!({})).await.map(|()| None),
        Err(error) => Ok(Some(error)),
    };
    if let Ok(error) = last {
        // A client that is gone needs no answer.
        let _ = messages.end(error).await;
    }
    response
}

/// Writes to the input of a process.
async fn input(daemon: &Arc<Daemon>, pid: u32, input: Input) -> RpcResult<()> {
    let text = input.stdin.or(input.pty).unwrap_or_default();
    let bytes = BASE64
        .decode(text)
        .map_err(|error| RpcError::invalid(format!("the input is not base64: {error}")))?;
    let request = DaemonRequest::Input { pid, close: false };
    let written = async {
        let mut link = daemon.send(&request).await?;
        link.write_data(&bytes).await?;
        link.write(Kind::End, &[]).await?;
        link.replies().await
    };
    match written.await {
        Ok(_) => Ok(()),
        Err(error) => Err(Selector::gone(daemon, pid, error.into()).await),
    }
}
