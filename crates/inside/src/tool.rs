//! `ironcage __tool`: executes a tool call about files. It runs in a scope, under every layer of
//! the cage, and can open only what the scope has.

mod patch;
mod search;

use ironcage_command::error::{CliError, CommandResult};
use ironcage_intent::{Action, Call, Calls, Context, FileAction, FileWork};
use ironcage_model::Printable;
use ironcage_sys::rustix::fs::{Mode, OFlags, open};
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

/// Largest file that is read or edited.
const LARGEST: u64 = 8 * 1024 * 1024;
/// Longest call.
const LONGEST: u64 = 2 * 1024 * 1024;

/// Execute a tool call about files
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// File with the call
    call: PathBuf,
}

pub(crate) fn run(args: Args) -> CommandResult {
    let mut text = Vec::new();
    let read = File::open(args.call).and_then(|file| file.take(LONGEST).read_to_end(&mut text));
    read.map_err(|error| CliError::new(format!("cannot read the call: {error}")))?;
    let call = Call::read(&text).map_err(|error| CliError::from_error(&error))?;
    let calls = Calls::shipped().map_err(|error| CliError::from_error(&error))?;
    let here = std::env::current_dir().map_err(|error| {
        CliError::new(format!("cannot determine the current directory: {error}"))
    })?;
    let context = Context {
        cwd: here.clone(),
        home: std::env::var_os("HOME").map(PathBuf::from),
    };
    let told = match calls.action(&call, &context) {
        Some(Action::File(file)) => carry_out(&file),
        Some(Action::Search { path, search }) => search::run(&path, &search, &here),
        Some(Action::Patch(files)) => patch::apply(&files),
        Some(Action::Script { .. } | Action::Program { .. } | Action::Fetch { .. }) | None => {
            return Err(CliError::new(
                "cannot execute the tool call: it is not about a file",
            ));
        }
    };
    let told = told.map_err(|error| CliError::from_error(&error))?;
    let mut out = io::stdout().lock();
    let written = out.write_all(told.as_bytes()).and_then(|()| out.flush());
    written.map_err(|error| CliError::new(format!("cannot print the result: {error}")))?;
    Ok(0)
}

/// Why a tool call about a file failed.
#[derive(Debug, thiserror::Error)]
enum ToolError {
    #[error("{path}")]
    File { path: String, source: io::Error },
    #[error("cannot edit {path}: the text to replace in edit {edit} was not found")]
    NotFound { path: String, edit: usize },
    #[error(
        "cannot edit {path}: the text to replace in edit {edit} occurs {times} times; \
         include more context"
    )]
    Ambiguous {
        path: String,
        edit: usize,
        times: usize,
    },
    #[error("cannot open {path}: expected a regular file")]
    NotRegular { path: String },
    #[error("cannot read {path}: larger than {LARGEST} bytes")]
    TooLarge { path: String },
    #[error("cannot read {path}: not valid UTF-8")]
    NotUtf8 { path: String },
    #[error("cannot patch {path}: the lines of hunk {hunk} were not found")]
    HunkNotFound { path: String, hunk: usize },
    #[error("cannot patch {path}: the patch names it twice")]
    PatchedTwice { path: String },
    #[error("cannot patch {path}: it exists")]
    Exists { path: String },
    #[error("invalid pattern")]
    Pattern(#[source] Box<regex::Error>),
}

fn carry_out(file: &FileAction) -> Result<String, ToolError> {
    let path = file.path.as_path();
    let shown = Printable::new(path);
    let failed = |source: io::Error| ToolError::File {
        path: shown.to_string(),
        source,
    };
    match &file.what {
        FileWork::Read { first, count } => {
            let text = contents(path)?;
            let skipped = usize::try_from(first - 1).unwrap_or(usize::MAX);
            let count = count.map_or(usize::MAX, |count| {
                usize::try_from(count).unwrap_or(usize::MAX)
            });
            let lines = text.split_inclusive('\n').skip(skipped).take(count);
            Ok(lines.collect())
        }
        FileWork::List => {
            let mut names = Vec::new();
            for entry in fs::read_dir(path).map_err(failed)? {
                let entry = entry.map_err(failed)?;
                let directory = entry.file_type().is_ok_and(|kind| kind.is_dir());
                let mark = if directory { "/" } else { "" };
                names.push(format!("{}{mark}\n", Printable::new(&entry.file_name())));
            }
            names.sort();
            Ok(names.concat())
        }
        FileWork::Write { content } => {
            if let Some(around) = path.parent() {
                fs::create_dir_all(around).map_err(failed)?;
            }
            write(path, content.as_bytes())?;
            Ok(format!("wrote {shown}, {} bytes\n", content.len()))
        }
        FileWork::Edit { edits } => {
            let mut text = contents(path)?;
            for (index, edit) in edits.iter().enumerate() {
                let found = match edit.old.is_empty() {
                    true => 0,
                    false => text.matches(&edit.old).count(),
                };
                let (path, edit_number) = (|| shown.to_string(), index + 1);
                text = match (found, edit.everywhere) {
                    (0, _) => {
                        return Err(ToolError::NotFound {
                            path: path(),
                            edit: edit_number,
                        });
                    }
                    (1, _) | (_, true) => text.replace(&edit.old, &edit.new),
                    (many, false) => {
                        return Err(ToolError::Ambiguous {
                            path: path(),
                            edit: edit_number,
                            times: many,
                        });
                    }
                };
            }
            write(path, text.as_bytes())?;
            Ok(format!("changed {shown}, {} edits\n", edits.len()))
        }
    }
}

fn contents(path: &Path) -> Result<String, ToolError> {
    let path_shown = || Printable::new(path).to_string();
    String::from_utf8(bytes(path)?).map_err(|_| ToolError::NotUtf8 { path: path_shown() })
}

/// Opens a regular file. Anything else is refused without waiting: somebody may have put a FIFO there.
fn open_regular(path: &Path, how: OFlags) -> Result<File, ToolError> {
    let shown = || Printable::new(path).to_string();
    let failed = |source: io::Error| ToolError::File {
        path: shown(),
        source,
    };
    let flags = how | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let file = open(path, flags, Mode::from(0o666)).map_err(|error| failed(error.into()))?;
    let file = File::from(file);
    match file.metadata().map_err(failed)?.is_file() {
        true => Ok(file),
        false => Err(ToolError::NotRegular { path: shown() }),
    }
}

/// Writes a whole file, in the place of what it has.
fn write(path: &Path, content: &[u8]) -> Result<(), ToolError> {
    let mut file = open_regular(path, OFlags::WRONLY | OFlags::CREATE)?;
    let written = file.set_len(0).and_then(|()| file.write_all(content));
    written.map_err(|source| ToolError::File {
        path: Printable::new(path).to_string(),
        source,
    })
}

fn bytes(path: &Path) -> Result<Vec<u8>, ToolError> {
    let shown = || Printable::new(path).to_string();
    let failed = |source: io::Error| ToolError::File {
        path: shown(),
        source,
    };
    let file = open_regular(path, OFlags::RDONLY)?;
    let mut bytes = Vec::new();
    file.take(LARGEST + 1)
        .read_to_end(&mut bytes)
        .map_err(failed)?;
    if bytes.len() as u64 > LARGEST {
        return Err(ToolError::TooLarge { path: shown() });
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use ironcage_sys::rustix::fs::{CWD, FileType, mknodat};

    #[test]
    fn what_is_not_a_file_is_refused_without_waiting_and_a_file_is_replaced() {
        let place = tempfile::tempdir().unwrap();
        let fifo = place.path().join("fifo");
        let mode = Mode::RUSR | Mode::WUSR;
        mknodat(CWD, &fifo, FileType::Fifo, mode, 0).unwrap();
        assert!(matches!(bytes(&fifo), Err(ToolError::NotRegular { .. })));
        // Nobody reads it, which the kernel says.
        assert!(matches!(write(&fifo, b"x"), Err(ToolError::File { .. })));
        let zero = Path::new("/dev/zero");
        assert!(matches!(bytes(zero), Err(ToolError::NotRegular { .. })));
        let file = place.path().join("file");
        write(&file, b"a longer text").unwrap();
        write(&file, b"text").unwrap();
        assert_eq!(bytes(&file).unwrap(), b"text");
    }
}
