//! Commands of `ironcage` that the service executes: what the command line can do is not done a
//! second time here (ADR 39).

use crate::error::{ApiError, ApiResult, Code};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::process::Command;
use tokio::sync::Semaphore;

/// Commands at once; each works on a disk.
const AT_ONCE: usize = 8;
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
}

/// An error as `IRONCAGE_ERROR_CODES=json` prints it.
#[derive(Debug, Deserialize)]
struct Printed {
    error: PrintedError,
}

#[derive(Debug, Deserialize)]
struct PrintedError {
    message: String,
    code: Option<String>,
    hints: Vec<String>,
}

impl CommandLine {
    pub(crate) fn new(program: PathBuf) -> CommandLine {
        CommandLine {
            program,
            turns: Arc::new(Semaphore::new(AT_ONCE)),
        }
    }

    /// What a command prints. It is carried out to its end also when the client goes away.
    pub(crate) async fn run<W: AsRef<OsStr>>(&self, words: &[W]) -> ApiResult<Vec<u8>> {
        self.run_in(Path::new("/"), words).await
    }

    /// The same, in a directory that the command is about.
    pub(crate) async fn run_in<W: AsRef<OsStr>>(
        &self,
        directory: &Path,
        words: &[W],
    ) -> ApiResult<Vec<u8>> {
        let words = words.iter().map(|word| word.as_ref().to_owned()).collect();
        let (command_line, directory) = (self.clone(), directory.to_owned());
        let ran = tokio::spawn(async move { command_line.execute(&directory, words).await });
        ran.await
            .map_err(|error| ApiError::internal("finish a command", &error))?
    }

    /// The same, as JSON.
    pub(crate) async fn json<T: DeserializeOwned, W: AsRef<OsStr>>(
        &self,
        words: &[W],
    ) -> ApiResult<T> {
        let printed = self.run(words).await?;
        serde_json::from_slice(&printed)
            .map_err(|error| ApiError::internal("read what ironcage prints", &error))
    }

    async fn execute(
        &self,
        directory: &Path,
        words: Vec<std::ffi::OsString>,
    ) -> ApiResult<Vec<u8>> {
        let turn = tokio::time::timeout(TURN, self.turns.acquire()).await;
        let _turn = turn
            .map_err(|_| {
                ApiError::new(
                    Code::LimitReached,
                    format!("{AT_ONCE} commands on changes run already"),
                )
                .retry_after(TURN)
            })?
            .map_err(|error| ApiError::internal("execute ironcage", &error))?;
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
            let (out, errors) = tokio::join!(read(stdout, MOST_OUTPUT), read(stderr, MOST_ERRORS));
            let (out, errors) = (
                out.map_err(failed("read what ironcage prints"))?,
                errors.map_err(failed("read what ironcage prints"))?,
            );
            if out.len() as u64 > MOST_OUTPUT {
                return Err(ApiError::new(
                    Code::TooLarge,
                    format!("the answer is longer than {MOST_OUTPUT} bytes"),
                )
                .hint("name a path"));
            }
            let status = child.wait().await.map_err(failed("wait for ironcage"))?;
            match status.code() {
                // 1 is an outcome, which is printed.
                Some(0 | 1) => Ok(out),
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

/// The error that a command printed. Warnings may stand before it.
fn printed_error(text: &[u8]) -> ApiError {
    let lines = text.split(|byte| *byte == b'\n').rev();
    let found = lines
        .filter_map(|line| serde_json::from_slice::<Printed>(line).ok())
        .next();
    let Some(Printed { error }) = found else {
        let text = String::from_utf8_lossy(text);
        return ApiError::new(Code::Internal, format!("ironcage failed: {}", text.trim()));
    };
    let code = match error.code.as_deref() {
        Some("unknown_change" | "not_in_change") => Code::NotFound,
        _ => Code::Conflict,
    };
    let shown = ApiError::new(code, error.message);
    match error.hints.is_empty() {
        true => shown,
        false => shown.hint(error.hints.join("; ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_that_was_printed_keeps_its_message_and_its_code() {
        let text = b"ironcage: a warning\n{\"error\":{\"message\":\"no\",\"code\":\"not_in_change\",\"denied\":false,\"hints\":[\"a\",\"b\"]}}\n";
        let error = printed_error(text);
        assert_eq!(
            (error.code, error.message.as_str(), error.hint.as_deref()),
            (Code::NotFound, "no", Some("a; b"))
        );
        let other = b"{\"error\":{\"message\":\"in use\",\"code\":\"change_in_use\",\"hints\":[]}}";
        assert_eq!(printed_error(other).code, Code::Conflict);
        assert_eq!(printed_error(b"Killed").code, Code::Internal);
    }

    #[tokio::test]
    async fn what_a_command_prints_is_bounded_and_its_end_is_told_apart() {
        let shell = CommandLine::new("/bin/sh".into());
        assert_eq!(
            shell.run(&["-c", "echo yes; exit 1"]).await.unwrap(),
            b"yes\n"
        );
        let long = shell.run(&["-c", "head -c 17000000 /dev/zero"]).await;
        assert_eq!(long.unwrap_err().code, Code::TooLarge);
        let failed = shell.run(&["-c", "exit 3"]).await;
        assert_eq!(failed.unwrap_err().code, Code::Internal);
    }
}
