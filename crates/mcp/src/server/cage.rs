//! The cage behind the tools, started with the first call.

use crate::error::McpError;
use crate::settings::Settings;
use ironcage_client::{WaitingCall, WaitingCalls};
use std::ffi::OsString;
use std::path::PathBuf;
use std::process::Stdio;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt};
use tokio::process::Command;
use tokio::sync::{Mutex, RwLock};

/// Most bytes of each stream that a result has.
const MOST_OUTPUT: u64 = 256 << 10;

/// What a command printed, and how it ended.
#[derive(Debug, Clone)]
pub(super) struct Output {
    /// `None` where a signal or the deadline ended it.
    pub(super) status: Option<i32>,
    pub(super) stdout: String,
    /// Standard output with what cannot be seen still in it.
    pub(super) unchanged: String,
    /// Over standard output as it was.
    pub(super) digest: String,
    pub(super) stderr: String,
    pub(super) cut: bool,
    pub(super) timed_out: bool,
}

impl Output {
    pub(super) fn succeeded(&self) -> bool {
        self.status == Some(0)
    }
}

pub(super) struct Cage {
    settings: Settings,
    profile: Option<String>,
    policy: Option<PathBuf>,
    approvals: WaitingCalls,
    /// Its ID, once it runs.
    id: Mutex<Option<String>>,
    /// An apply has the cage alone: what a person approved must not change meanwhile.
    pub(super) using: RwLock<()>,
}

impl Cage {
    pub(super) fn new(
        settings: Settings,
        profile: Option<String>,
        policy: Option<PathBuf>,
    ) -> Result<Self, McpError> {
        Ok(Cage {
            approvals: settings.calls()?,
            settings,
            profile,
            policy,
            id: Mutex::default(),
            using: RwLock::default(),
        })
    }

    /// The ID of the cage, which is started if none runs.
    pub(super) async fn id(&self) -> Result<String, McpError> {
        let mut known = self.id.lock().await;
        if let Some(id) = known.as_ref() {
            // A limit or the user may have ended it.
            let alive = self
                .ironcage(&["exec", id, "--", "/bin/true"], None, None)
                .await?;
            if alive.succeeded() {
                return Ok(id.clone());
            }
        }
        let mut words: Vec<OsString> = ["run", "--quiet", "--detach", "--rm"]
            .map(OsString::from)
            .to_vec();
        words.extend(["--workspace".into(), self.settings.workspace.clone().into()]);
        if let Some(profile) = &self.profile {
            words.extend(["--profile".into(), profile.into()]);
        }
        if let Some(policy) = &self.policy {
            words.extend(["--policy".into(), policy.into()]);
        }
        let started = self.execute(words, None, None).await?;
        let id = started.stdout.trim().to_owned();
        if !started.succeeded() || id.is_empty() {
            return Err(McpError::Cage(started.stderr.trim().to_owned()));
        }
        *known = Some(id.clone());
        Ok(id)
    }

    pub(super) fn approved(&self, waiting: WaitingCall) -> Result<Option<bool>, McpError> {
        Ok(self.approvals.ask(waiting)?)
    }

    pub(super) fn workspace(&self) -> &std::path::Path {
        &self.settings.workspace
    }

    /// Ends the cage. Afterwards nothing in it runs, or there is an error.
    pub(super) async fn stop(&self) -> Result<(), McpError> {
        let mut known = self.id.lock().await;
        let Some(id) = known.as_ref() else {
            return Ok(());
        };
        let words = ["stop", "--quiet", "--time", "2", id];
        let stopped = self.ironcage(&words, None, None).await?;
        if !stopped.succeeded() {
            // It may have ended before: by a limit, or because the user stopped it.
            let running = self.ironcage(&["ps", "--quiet"], None, None).await?;
            let ended = running.succeeded()
                && !running.cut
                && running.stdout.lines().all(|line| line.trim() != id);
            if !ended {
                return Err(McpError::Stop(stopped.stderr.trim().to_owned()));
            }
        }
        *known = None;
        Ok(())
    }

    pub(super) async fn ironcage(
        &self,
        words: &[&str],
        input: Option<&str>,
        deadline: Option<Duration>,
    ) -> Result<Output, McpError> {
        self.execute(words.iter().map(OsString::from).collect(), input, deadline)
            .await
    }

    async fn execute(
        &self,
        words: Vec<OsString>,
        input: Option<&str>,
        deadline: Option<Duration>,
    ) -> Result<Output, McpError> {
        let failed = |error: std::io::Error| McpError::Cage(error.to_string());
        let mut child = Command::new(&self.settings.ironcage)
            .args(words)
            .env("IRONCAGE_ERROR_CODES", "1")
            .stdin(match input {
                Some(_) => Stdio::piped(),
                None => Stdio::null(),
            })
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .map_err(failed)?;
        let stdin = child.stdin.take();
        let (stdout, stderr) = (child.stdout.take(), child.stderr.take());
        let write = async {
            if let (Some(mut stdin), Some(input)) = (stdin, input) {
                // A command that reads nothing closes it.
                let _ = stdin.write_all(input.as_bytes()).await;
            }
        };
        let all = async {
            let (_, out, err) = tokio::join!(write, bounded(stdout), bounded(stderr));
            let status = child.wait().await.map_err(failed)?;
            Ok::<_, McpError>((status, out, err))
        };
        let ended = match deadline {
            Some(deadline) => tokio::time::timeout(deadline, all).await,
            None => Ok(all.await),
        };
        match ended {
            Ok(ended) => {
                let (status, out, err) = ended?;
                Ok(Output {
                    status: status.code(),
                    stdout: ironcage_tools::printable(&out.text),
                    unchanged: out.text,
                    digest: out.digest,
                    stderr: ironcage_tools::printable(&err.text),
                    cut: out.cut || err.cut,
                    timed_out: false,
                })
            }
            Err(_) => Ok(Output {
                status: None,
                stdout: String::new(),
                unchanged: String::new(),
                digest: String::new(),
                stderr: String::new(),
                cut: false,
                timed_out: true,
            }),
        }
    }
}

#[derive(Debug, Default)]
struct Stream {
    text: String,
    digest: String,
    /// Whether it said more, or could not be read to its end.
    cut: bool,
}

/// What a stream says, up to a limit; the rest is read and dropped, so that the command can go on.
async fn bounded(stream: Option<impl AsyncRead + Unpin>) -> Stream {
    let Some(mut stream) = stream else {
        return Stream::default();
    };
    let mut bytes = Vec::new();
    let read = (&mut stream)
        .take(MOST_OUTPUT)
        .read_to_end(&mut bytes)
        .await;
    let cut = match read {
        Ok(_) => tokio::io::copy(&mut stream, &mut tokio::io::sink())
            .await
            .map_or(true, |rest| rest > 0),
        Err(_) => true,
    };
    Stream {
        text: String::from_utf8_lossy(&bytes).into_owned(),
        digest: crate::settings::hex(&bytes),
        cut,
    }
}
