//! The host's git, asked about a real git directory: which commit HEAD is, and what is in a tree.
//!
//! An agent wrote nothing there but what was checked and came over. The commands read objects and
//! references: they run no hook, filter or pager, ask no server, and see no replaced objects.

use super::index::{DIRECTORY, ObjectFormat};
use super::refs;
use ironcage_sys::rustix;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{ChildStdout, Command, ExitStatus, Stdio};
use std::time::Duration;

/// The most that is read of what git says. A few kilobytes of objects are a tree of billions of
/// files, if each directory is ten times the same one; no repository of people lists as much.
const LARGEST_OUTPUT: u64 = 256 * 1024 * 1024;

const READ_AT_ONCE: usize = 64 * 1024;

/// How long git may say nothing. It waits for whoever writes to a FIFO that its settings include,
/// and the owner of a tree in which another user applies can make one.
const PATIENCE: Duration = Duration::from_secs(60);

/// Why git did not say what was asked.
#[derive(Debug, thiserror::Error)]
pub(crate) enum PlumbingError {
    #[error("cannot start git, which lists what is committed: {0}")]
    Start(#[source] io::Error),
    #[error("git cannot tell {what}")]
    Failed { what: &'static str },
    #[error("git cannot tell {what}: more than {limit} MiB", limit = LARGEST_OUTPUT >> 20)]
    TooLarge { what: &'static str },
    #[error(
        "git cannot tell {what}: timed out; look for a FIFO among what `git config --show-origin --list` reads"
    )]
    Silent { what: &'static str },
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
    patience: Duration,
}

impl Plumbing {
    pub(crate) fn of(git: &Path) -> Plumbing {
        Plumbing {
            git: git.to_owned(),
            patience: PATIENCE,
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
        let said = match child.stdout.take() {
            Some(stdout) => self.read(&stdout, what),
            None => Ok(Vec::new()),
        };
        if said.is_err() {
            // It may have ended by itself: its pipe is closed.
            let _ = child.kill();
        }
        let status = child.wait().map_err(PlumbingError::Start)?;
        Ok((status, said?))
    }

    /// Everything that git says, up to its end.
    fn read(&self, stdout: &ChildStdout, what: &'static str) -> Result<Vec<u8>, PlumbingError> {
        let mut said = Vec::new();
        let patience = Timespec::try_from(self.patience);
        let patience = patience.map_err(|_| PlumbingError::Failed { what })?;
        while said.len() as u64 <= LARGEST_OUTPUT {
            let mut waited = [PollFd::new(stdout, PollFlags::IN)];
            match poll(&mut waited, Some(&patience)) {
                Ok(0) => return Err(PlumbingError::Silent { what }),
                Ok(_) => {}
                Err(Errno::INTR) => continue,
                Err(_) => return Err(PlumbingError::Failed { what }),
            }
            said.reserve(READ_AT_ONCE);
            match rustix::io::read(stdout, rustix::buffer::spare_capacity(&mut said)) {
                Ok(0) => return Ok(said),
                Ok(_) | Err(Errno::INTR) => {}
                Err(_) => return Err(PlumbingError::Failed { what }),
            }
        }
        Err(PlumbingError::TooLarge { what })
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

#[cfg(test)]
mod tests {
    use super::*;

    fn repository() -> (tempfile::TempDir, PathBuf) {
        let base = tempfile::tempdir().expect("a directory");
        let git = base.path().join("git");
        let made = Command::new("git")
            .args(["init", "-q", "--bare"])
            .arg(&git)
            .output()
            .expect("git");
        assert!(made.status.success());
        (base, git)
    }

    #[test]
    fn git_that_waits_for_a_fifo_is_ended() {
        let (base, git) = repository();
        let mut plumbing = Plumbing::of(&git);
        assert!(matches!(
            plumbing.object_format(),
            Ok(ObjectFormat::Sha1 | ObjectFormat::Sha256)
        ));
        let fifo = base.path().join("fifo");
        let mode = rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR;
        rustix::fs::mkfifoat(rustix::fs::CWD, &fifo, mode).expect("a FIFO");
        let config = git.join("config");
        let mut settings = std::fs::read_to_string(&config).expect("settings");
        settings.push_str(&format!("[include]\n\tpath = {}\n", fifo.display()));
        std::fs::write(&config, settings).expect("written");
        plumbing.patience = Duration::from_millis(300);
        assert!(matches!(
            plumbing.object_format(),
            Err(PlumbingError::Silent { .. })
        ));
    }
}
