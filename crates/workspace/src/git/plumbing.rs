//! The host's git, asked about a real git directory: which commit HEAD is, and what is in a tree.
//!
//! An agent wrote nothing there but what was checked and came over. The commands read objects and
//! references: they run no hook, filter or pager, ask no server, and see no replaced objects.

use super::index::{DIRECTORY, ObjectFormat};
use super::refs;
use std::collections::BTreeMap;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};

/// The most that is read of what git says. A few kilobytes of objects are a tree of billions of
/// files, if each directory is ten times the same one; no repository of people lists as much.
const LARGEST_OUTPUT: u64 = 256 * 1024 * 1024;

/// Why git did not say what was asked.
#[derive(Debug, thiserror::Error)]
pub(crate) enum PlumbingError {
    #[error("cannot start git, which lists what is committed: {0}")]
    Start(#[source] io::Error),
    #[error("git cannot tell {what}")]
    Failed { what: &'static str },
    #[error("git cannot tell {what}: more than {limit} MiB", limit = LARGEST_OUTPUT >> 20)]
    TooLarge { what: &'static str },
}

impl From<PlumbingError> for io::Error {
    fn from(error: PlumbingError) -> io::Error {
        io::Error::other(error)
    }
}

/// Mode and object of every file in a commit, and the objects of its directories.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct CommittedTree {
    pub(crate) files: BTreeMap<Vec<u8>, (u32, Vec<u8>)>,
    pub(crate) directories: BTreeMap<Vec<u8>, Vec<u8>>,
}

/// A real git directory.
pub(crate) struct Plumbing {
    git: PathBuf,
}

impl Plumbing {
    pub(crate) fn of(git: &Path) -> Plumbing {
        Plumbing {
            git: git.to_owned(),
        }
    }

    /// How git ended, and what it said of something.
    fn run(
        &self,
        what: &'static str,
        arguments: &[&str],
    ) -> Result<(ExitStatus, Vec<u8>), PlumbingError> {
        let mut child = Command::new("git")
            .args(["-c", "safe.directory=*", "-c", "core.commitGraph=false"])
            .arg("--git-dir")
            .arg(&self.git)
            .args(arguments)
            .current_dir("/")
            .env_clear()
            .env("PATH", std::env::var_os("PATH").unwrap_or_default())
            .env("GIT_CONFIG_NOSYSTEM", "1")
            .env("GIT_CONFIG_GLOBAL", "/dev/null")
            .env("GIT_NO_LAZY_FETCH", "1")
            // The same for a git that does not know it: no transport has this name.
            .env("GIT_ALLOW_PROTOCOL", "none")
            .env("GIT_NO_REPLACE_OBJECTS", "1")
            .env("GIT_OPTIONAL_LOCKS", "0")
            .env("GIT_TERMINAL_PROMPT", "0")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .map_err(PlumbingError::Start)?;
        let mut said = Vec::new();
        let read = match child.stdout.take() {
            Some(stdout) => stdout.take(LARGEST_OUTPUT + 1).read_to_end(&mut said),
            None => Ok(0),
        };
        let is_whole = read.is_ok() && said.len() as u64 <= LARGEST_OUTPUT;
        if !is_whole {
            // It may have ended by itself: its pipe is closed.
            let _ = child.kill();
        }
        let status = child.wait().map_err(PlumbingError::Start)?;
        match (read, is_whole) {
            (Err(_), _) => Err(PlumbingError::Failed { what }),
            (Ok(_), false) => Err(PlumbingError::TooLarge { what }),
            (Ok(_), true) => Ok((status, said)),
        }
    }

    pub(crate) fn object_format(&self) -> Result<ObjectFormat, PlumbingError> {
        let what = "how objects are named";
        let (_, said) = self.run(what, &["rev-parse", "--show-object-format"])?;
        match said.trim_ascii() {
            b"sha1" => Ok(ObjectFormat::Sha1),
            b"sha256" => Ok(ObjectFormat::Sha256),
            _ => Err(PlumbingError::Failed { what }),
        }
    }

    /// The commit that HEAD is; `None` before the first one.
    pub(crate) fn head(&self) -> Result<Option<String>, PlumbingError> {
        let what = "what HEAD is";
        let (status, said) = self.run(what, &["rev-parse", "-q", "--verify", "HEAD"])?;
        let text = String::from_utf8_lossy(&said).trim().to_owned();
        match status.code() {
            Some(0) if refs::is_object_name(&text) => Ok(Some(text)),
            Some(1) => Ok(None),
            _ => Err(PlumbingError::Failed { what }),
        }
    }

    /// What is in a commit or a tree.
    pub(crate) fn tree(&self, object: &str) -> Result<CommittedTree, PlumbingError> {
        let what = "what is committed";
        let failed = || PlumbingError::Failed { what };
        let list = ["ls-tree", "-r", "-t", "-z", "--full-tree", object];
        let (status, said) = self.run(what, &list)?;
        if !status.success() {
            return Err(failed());
        }
        let mut tree = CommittedTree::default();
        let lines = said.split(|byte| *byte == 0);
        for line in lines.filter(|line| !line.is_empty()) {
            let (mode, object, path) = parse(line).ok_or_else(failed)?;
            match mode {
                DIRECTORY => drop(tree.directories.insert(path, object)),
                mode => drop(tree.files.insert(path, (mode, object))),
            }
        }
        Ok(tree)
    }

    /// What is in a file that was committed or staged; `None` where git has no such object.
    pub(crate) fn blob(&self, object: &str) -> Result<Option<Vec<u8>>, PlumbingError> {
        let (status, said) = self.run("what is in a file", &["cat-file", "blob", object])?;
        Ok(status.success().then_some(said))
    }
}

/// `MODE TYPE OBJECT\tPATH`.
fn parse(line: &[u8]) -> Option<(u32, Vec<u8>, Vec<u8>)> {
    let tab = line.iter().position(|byte| *byte == b'\t')?;
    let fields = std::str::from_utf8(&line[..tab]).ok()?;
    let mut fields = fields.split(' ');
    let mode = u32::from_str_radix(fields.next()?, 8).ok()?;
    let object = fields.nth(1).and_then(from_hexadecimal)?;
    // Commits of old have files that their group may write: git takes them as others.
    let mode = match mode {
        0o100_664 => 0o100_644,
        mode => mode,
    };
    Some((mode, object, line[tab + 1..].to_vec()))
}

pub(crate) fn from_hexadecimal(text: &str) -> Option<Vec<u8>> {
    let pairs = text.as_bytes().chunks(2);
    pairs
        .map(|pair| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok())
        .collect()
}
