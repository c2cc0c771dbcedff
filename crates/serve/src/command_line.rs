//! Commands of `ironcage` that the service executes: what the command line can do is not done a
//! second time here (ADR 39).

use crate::error::{ApiError, ApiResult, Code};
use ironcage_command::failure::FailureCode;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use std::collections::HashMap;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::process::Command;
use tokio::sync::{AcquireError, Semaphore};

/// Commands at once; each works on a disk.
const AT_ONCE: usize = 8;
/// How many of them are of one project: whatever its keys ask for, others have their turn.
const OF_PROJECT: usize = 2;
/// How long one waits for its turn, and how long it may take.
const TURN: Duration = Duration::from_secs(30);
const TIME: Duration = Duration::from_secs(300);
/// Bytes that a command may print.
const MOST_OUTPUT: u64 = 16 << 20;
const MOST_ERRORS: u64 = 64 * 1024;
/// Exit status for the errors of `ironcage` itself.
const OURS: i32 = 125;

/// The command line, and how much of it is used at once.
#[derive(Debug, Clone)]
pub(crate) struct CommandLine {
    program: PathBuf,
    turns: Arc<Semaphore>,
    /// The turns of projects that execute something.
    of_projects: Arc<Mutex<HashMap<String, Arc<Semaphore>>>>,
}

/// What a command printed.
pub(crate) struct Printing {
    pub(crate) bytes: Vec<u8>,
    /// Whether it would have printed more. It was killed then.
    pub(crate) truncated: bool,
}

/// An error as `IRONCAGE_ERROR_CODES=json` prints it.
#[derive(Debug, Deserialize)]
struct Printed {
    error: PrintedError,
}

#[derive(Debug, Deserialize)]
pub(crate) struct PrintedError {
    pub(crate) message: String,
    code: Option<String>,
    hints: Vec<String>,
}

impl PrintedError {
    /// The error in what a command printed. Warnings may stand before it.
    pub(crate) fn find(text: &[u8]) -> Option<PrintedError> {
        let mut lines = text.split(|byte| *byte == b'\n').rev();
        let found = lines.find_map(|line| serde_json::from_slice::<Printed>(line).ok());
        found.map(|printed| printed.error)
    }

    /// As an error of the API.
    pub(crate) fn into_api(self, code: Code) -> ApiError {
        let shown = ApiError::new(code, self.message);
        match self.hints.is_empty() {
            true => shown,
            false => shown.hint(self.hints.join("; ")),
        }
    }
}

impl CommandLine {
    pub(crate) fn new(program: PathBuf) -> CommandLine {
        CommandLine {
            program,
            turns: Arc::new(Semaphore::new(AT_ONCE)),
            of_projects: Arc::default(),
        }
    }

    /// What a command for a project prints. It is carried out to its end also when the client goes away.
    pub(crate) async fn run<W: AsRef<OsStr>>(
        &self,
        project: &str,
        words: &[W],
    ) -> ApiResult<Vec<u8>> {
        self.run_in(project, Path::new("/"), words).await
    }

    /// The same, in a directory that the command is about.
    pub(crate) async fn run_in<W: AsRef<OsStr>>(
        &self,
        project: &str,
        directory: &Path,
        words: &[W],
    ) -> ApiResult<Vec<u8>> {
        let printed = self.spawn(project, directory, words, MOST_OUTPUT).await?;
        match printed.truncated {
            false => Ok(printed.bytes),
            true => Err(ApiError::new(
                Code::TooLarge,
                format!("the answer is longer than {MOST_OUTPUT} bytes"),
            )
            .hint("name a path")),
        }
    }

    /// The same, of which only the first bytes are wanted.
    pub(crate) async fn run_up_to<W: AsRef<OsStr>>(
        &self,
        project: &str,
        words: &[W],
        most: u64,
    ) -> ApiResult<Printing> {
        self.spawn(project, Path::new("/"), words, most).await
    }

    async fn spawn<W: AsRef<OsStr>>(
        &self,
        project: &str,
        directory: &Path,
        words: &[W],
        most: u64,
    ) -> ApiResult<Printing> {
        let words = words.iter().map(|word| word.as_ref().to_owned()).collect();
        let (command_line, project) = (self.clone(), project.to_owned());
        let directory = directory.to_owned();
        let ran = tokio::spawn(async move {
            command_line
                .execute(&project, &directory, words, most)
                .await
        });
        ran.await
            .map_err(|error| ApiError::internal("finish a command", &error))?
    }

    /// The turns of a project. Those of projects that execute nothing are not kept.
    fn of_project(&self, project: &str) -> Arc<Semaphore> {
        let mut all = self
            .of_projects
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        all.retain(|_, turns| Arc::strong_count(turns) > 1);
        let turns = all.entry(project.to_owned());
        Arc::clone(turns.or_insert_with(|| Arc::new(Semaphore::new(OF_PROJECT))))
    }

    /// The same, as JSON.
    pub(crate) async fn json<T: DeserializeOwned, W: AsRef<OsStr>>(
        &self,
        project: &str,
        words: &[W],
    ) -> ApiResult<T> {
        let printed = self.run(project, words).await?;
        serde_json::from_slice(&printed)
            .map_err(|error| ApiError::internal("read what ironcage prints", &error))
    }

    async fn execute(
        &self,
        project: &str,
        directory: &Path,
        words: Vec<std::ffi::OsString>,
        most: u64,
    ) -> ApiResult<Printing> {
        let of_project = self.of_project(project);
        // Its own turn first: one that waits for that takes none of the others.
        let turns = async {
            let own = of_project.acquire().await?;
            Ok((own, self.turns.acquire().await?))
        };
        let turns = tokio::time::timeout(TURN, turns).await;
        let _turns = turns
            .map_err(|_| {
                ApiError::new(
                    Code::LimitReached,
                    format!(
                        "{OF_PROJECT} commands on changes of project {project}, or {AT_ONCE} of all projects, run already"
                    ),
                )
                .retry_after(TURN)
            })?
            .map_err(|error: AcquireError| ApiError::internal("execute ironcage", &error))?;
        let failed =
            |what: &'static str| move |error: std::io::Error| ApiError::internal(what, &error);
        let mut child = Command::new(&self.program)
            .args(words)
            .env("IRONCAGE_ERROR_CODES", "json")
            .current_dir(directory)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .map_err(failed("execute ironcage"))?;
        let (stdout, stderr) = (child.stdout.take(), child.stderr.take());
        let work = async {
            let (out, errors) = tokio::join!(read(stdout, most), read(stderr, MOST_ERRORS));
            let (mut bytes, errors) = (
                out.map_err(failed("read what ironcage prints"))?,
                errors.map_err(failed("read what ironcage prints"))?,
            );
            if bytes.len() as u64 > most {
                child.kill().await.map_err(failed("kill ironcage"))?;
                bytes.truncate(usize::try_from(most).unwrap_or(usize::MAX));
                return Ok(Printing {
                    bytes,
                    truncated: true,
                });
            }
            let status = child.wait().await.map_err(failed("wait for ironcage"))?;
            match status.code() {
                // 1 is an outcome, which is printed.
                Some(0 | 1) => Ok(Printing {
                    bytes,
                    truncated: false,
                }),
                Some(OURS) => Err(printed_error(&errors)),
                _ => Err(ApiError::new(
                    Code::Internal,
                    format!("ironcage ended with {status}"),
                )),
            }
        };
        let done = tokio::time::timeout(TIME, work).await;
        done.unwrap_or_else(|_| {
            Err(ApiError::new(
                Code::Timeout,
                format!("ironcage did not end within {} s", TIME.as_secs()),
            ))
        })
    }
}

async fn read(stream: Option<impl AsyncRead + Unpin>, most: u64) -> std::io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    if let Some(stream) = stream {
        stream.take(most + 1).read_to_end(&mut bytes).await?;
    }
    Ok(bytes)
}

/// Failures of commands on changes that are answered with 404.
const NOT_FOUND: [FailureCode; 2] = [FailureCode::NoSuchChange, FailureCode::NotInChange];

/// What a command on changes that failed printed, as an error of the API.
fn printed_error(text: &[u8]) -> ApiError {
    let Some(error) = PrintedError::find(text) else {
        let text = String::from_utf8_lossy(text);
        return ApiError::new(Code::Internal, format!("ironcage failed: {}", text.trim()));
    };
    let code = match error.code.as_deref() {
        Some(code) if NOT_FOUND.map(FailureCode::code).contains(&code) => Code::NotFound,
        _ => Code::Conflict,
    };
    error.into_api(code)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_that_was_printed_keeps_its_message_and_its_code() {
        let text = b"ironcage: a warning\n{\"error\":{\"message\":\"no\",\"code\":\"not-in-change\",\"denied\":false,\"hints\":[\"a\",\"b\"]}}\n";
        let error = printed_error(text);
        assert_eq!(
            (error.code, error.message.as_str(), error.hint.as_deref()),
            (Code::NotFound, "no", Some("a; b"))
        );
        let other = b"{\"error\":{\"message\":\"in use\",\"code\":\"change-in-use\",\"hints\":[]}}";
        assert_eq!(printed_error(other).code, Code::Conflict);
        assert_eq!(printed_error(b"Killed").code, Code::Internal);
    }

    #[tokio::test]
    async fn what_a_command_prints_is_bounded_and_its_end_is_told_apart() {
        let shell = CommandLine::new("/bin/sh".into());
        assert_eq!(
            shell.run("a", &["-c", "echo yes; exit 1"]).await.unwrap(),
            b"yes\n"
        );
        let long = shell.run("a", &["-c", "head -c 17000000 /dev/zero"]).await;
        assert_eq!(long.unwrap_err().code, Code::TooLarge);
        let failed = shell.run("a", &["-c", "exit 3"]).await;
        assert_eq!(failed.unwrap_err().code, Code::Internal);
        let printed = |most| shell.run_up_to("a", &["-c", "echo yes"], most);
        let whole = printed(4).await.unwrap();
        assert_eq!(
            (whole.bytes.as_slice(), whole.truncated),
            (&b"yes\n"[..], false)
        );
        let part = printed(3).await.unwrap();
        assert_eq!((part.bytes.as_slice(), part.truncated), (&b"yes"[..], true));
    }

    #[tokio::test]
    async fn a_project_that_executes_much_leaves_turns_to_others() {
        let data = tempfile::tempdir().unwrap();
        let shell = CommandLine::new("/bin/sh".into());
        let go = data.path().join("go");
        let wait = format!(
            ": > {}/$$; while [ ! -e {} ]; do sleep 0.05; done",
            data.path().display(),
            go.display()
        );
        let waiting: Vec<_> = (0..AT_ONCE)
            .map(|_| {
                let (shell, wait) = (shell.clone(), wait.clone());
                tokio::spawn(async move { shell.run("greedy", &["-c", &wait]).await.map(drop) })
            })
            .collect();
        let begun = || data.path().read_dir().unwrap().count();
        while begun() < OF_PROJECT {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        assert_eq!(
            shell.run("other", &["-c", "echo yes"]).await.unwrap(),
            b"yes\n"
        );
        assert_eq!(begun(), OF_PROJECT);
        std::fs::write(&go, "").unwrap();
        for one in waiting {
            one.await.unwrap().unwrap();
        }
        shell.run("other", &["-c", "true"]).await.unwrap();
        assert_eq!(shell.of_projects.lock().unwrap().len(), 1);
    }
}
