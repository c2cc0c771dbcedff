//! Asks the reader program, which has the grammars of other languages.

use crate::needs::{Needs, Unsure};
use crate::shell::{Context, Shell};
use crate::tools::Table;
use serde::{Deserialize, Serialize};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::time::Duration;

/// How long the reader program may take. It is bounded by itself; this is for a host under load.
const PATIENCE: Duration = Duration::from_secs(3);

/// Longest answer of the reader program.
const LONGEST: u64 = 1024 * 1024;

/// What the reader program is asked.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ReadRequest {
    /// The command, as a shell would be given it.
    pub command: String,
    /// Where it would run.
    pub cwd: PathBuf,
    pub home: Option<PathBuf>,
    /// Whether files that the command would execute may be opened.
    pub files: bool,
}

/// What a command needs, with the programs that it executes. The reader program is asked only
/// where the command executes something that the shell's grammar cannot follow.
pub fn read_with(program: &Path, table: &Table, command: &str, context: &Context) -> Needs {
    let needs = Shell::new(table).read(command, context);
    let everything = |needs: &Needs| {
        let mut unknown = needs.unknown.iter();
        unknown.any(|unknown| unknown.what == Unsure::Everything)
    };
    if !everything(&needs) {
        return needs;
    }
    let request = ReadRequest {
        command: command.to_owned(),
        cwd: context.cwd.clone(),
        home: context.home.clone(),
        files: true,
    };
    match ask(program, &request) {
        Ok(found) => found,
        Err(error) => {
            let mut needs = needs;
            let why = format!("the reader program failed: {error}");
            needs.unsure(Unsure::Everything, why);
            needs
        }
    }
}

fn ask(program: &Path, request: &ReadRequest) -> io::Result<Needs> {
    let mut child = Command::new(program)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .env_clear()
        .spawn()?;
    let (Some(mut input), Some(output)) = (child.stdin.take(), child.stdout.take()) else {
        return Err(io::ErrorKind::BrokenPipe.into());
    };
    let text = serde_json::to_vec(request)?;
    let (sender, receiver) = mpsc::channel();
    let talk = std::thread::spawn(move || {
        let told = input.write_all(&text);
        drop(input);
        let mut answer = Vec::new();
        let read = told.and_then(|()| output.take(LONGEST).read_to_end(&mut answer));
        // Nobody waits any more: there is nothing to tell.
        let _ = sender.send(read.map(|_| answer));
    });
    let answer = receiver.recv_timeout(PATIENCE);
    // It has answered, or is too slow.
    let _ = child.kill();
    child.wait()?;
    let _ = talk.join();
    let answer = answer.map_err(|_| io::Error::from(io::ErrorKind::TimedOut))??;
    let needs: Needs = serde_json::from_slice(&answer)?;
    Ok(needs.within_bounds())
}
