//! A temporary home, project and set of XDG directories, and the commands that run there.

use crate::turn::SharedTurn;
use crate::{Ran, Running, TEST_USER, binary, skip, took};
use std::ffi::OsStr;
use std::fs;
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// What hangs is killed after this long. Generous: the machine may be busy with other tests.
const DEADLINE: Duration = Duration::from_secs(120);

/// The search path of every command on a stage: the system's own programs, whatever the developer has installed.
const SEARCH_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// The flags of a cage that works on the real files, for tests of what happens to those.
pub const DIRECT: [&str; 2] = ["--workspace-mode", "direct"];

/// Who starts the cage.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Who {
    /// The superuser of the host.
    Root,
    /// The unprivileged user.
    User,
}

impl Who {
    /// Who runs a test that needs one of the two; both in a full run, and whoever runs the tests if that is not root.
    pub fn alternating(test: &str) -> &'static [Who] {
        if !rustix::process::getuid().is_root() {
            return &[Who::User];
        }
        match (crate::full(), test.bytes().map(u32::from).sum::<u32>() % 2) {
            (true, _) => &[Who::Root, Who::User],
            (false, 0) => &[Who::Root],
            (false, _) => &[Who::User],
        }
    }
}

/// A place to start cages from. Everything in it goes when it is dropped.
#[derive(Debug)]
pub struct Stage {
    who: Who,
    uid: u32,
    gid: u32,
    base: TempDir,
    began: Instant,
    _turn: Arc<SharedTurn>,
}

impl Stage {
    /// A stage for the given user, or `None` when this process cannot become that user (which counts as skipped).
    ///
    /// # Panics
    /// When the directories cannot be made, or when tests run as root and the unprivileged user is missing.
    pub fn new(who: Who) -> Option<Self> {
        let me = rustix::process::getuid();
        let (uid, gid) = match (who, me.is_root()) {
            (Who::Root, true) => (0, 0),
            (Who::Root, false) => {
                skip("needs root; ./scripts/test runs as root");
                return None;
            }
            (Who::User, true) => account(TEST_USER)
                .unwrap_or_else(|| panic!("no user {TEST_USER}: ./scripts/test creates it")),
            (Who::User, false) => (me.as_raw(), rustix::process::getgid().as_raw()),
        };
        let turn = SharedTurn::take();
        let base = tempfile::Builder::new()
            .prefix("ironcage-stage-")
            .permissions(fs::Permissions::from_mode(0o755))
            .tempdir()
            .unwrap_or_else(|error| panic!("a directory for the stage: {error}"));
        let stage = Stage {
            who,
            uid,
            gid,
            base,
            began: Instant::now(),
            _turn: turn,
        };
        chown(stage.base(), Some(uid), Some(gid))
            .unwrap_or_else(|error| panic!("{}: {error}", stage.base().display()));
        for name in ["home", "home/project", "state", "config", "run", "aside"] {
            stage.mkdir(stage.base().join(name));
        }
        let private = fs::Permissions::from_mode(0o700);
        fs::set_permissions(stage.base().join("run"), private)
            .unwrap_or_else(|error| panic!("run: {error}"));
        Some(stage)
    }

    /// Who runs here.
    pub fn who(&self) -> Who {
        self.who
    }

    /// The user id outside of the one who runs here.
    pub fn uid(&self) -> u32 {
        self.uid
    }

    /// The directory that holds all others.
    pub fn base(&self) -> &Path {
        self.base.path()
    }

    /// HOME of the one who runs here.
    pub fn home(&self) -> PathBuf {
        self.base().join("home")
    }

    /// The current directory of every command, and with it the default workspace.
    pub fn project(&self) -> PathBuf {
        self.base().join("home/project")
    }

    /// A directory that no cage sees unless it is granted.
    pub fn aside(&self) -> PathBuf {
        self.base().join("aside")
    }

    /// Where Ironcage keeps its state: XDG_STATE_HOME.
    pub fn state(&self) -> PathBuf {
        self.base().join("state")
    }

    /// Where Ironcage keeps what lives as long as a cage: XDG_RUNTIME_DIR.
    pub fn run_dir(&self) -> PathBuf {
        self.base().join("run")
    }

    /// Makes a directory that belongs to the one who runs here.
    ///
    /// # Panics
    /// When it cannot.
    pub fn mkdir(&self, path: impl AsRef<Path>) {
        let path = path.as_ref();
        let made = fs::create_dir(path).and_then(|()| chown(path, Some(self.uid), Some(self.gid)));
        made.unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    }

    /// Writes a file that belongs to the one who runs here, with the directories above it.
    ///
    /// # Panics
    /// When it cannot.
    pub fn write(&self, path: impl AsRef<Path>, content: impl AsRef<[u8]>) {
        let path = path.as_ref();
        if let Some(parent) = path.parent()
            && !parent.exists()
        {
            // A chain of missing parents is made from the top, so that each gets its owner.
            let mut missing: Vec<&Path> = parent.ancestors().take_while(|p| !p.exists()).collect();
            while let Some(directory) = missing.pop() {
                self.mkdir(directory);
            }
        }
        let written =
            fs::write(path, content).and_then(|()| chown(path, Some(self.uid), Some(self.gid)));
        written.unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    }

    /// What a file in the project holds, or `None` when there is none.
    pub fn read(&self, relative: impl AsRef<Path>) -> Option<String> {
        fs::read_to_string(self.project().join(relative)).ok()
    }

    /// Any program of the host, run outside of every cage by the one who runs here.
    pub fn outside(&self, program: impl AsRef<OsStr>) -> Command {
        // Signals that the caller of the tests ignores (nohup, a shell's background job) would stay ignored in all
        // that is started here; env sets them back and then executes the program in its own place.
        let mut command = Command::new("/usr/bin/env");
        command
            .arg("--default-signal")
            .arg(program)
            .env_clear()
            .env("PATH", SEARCH_PATH)
            .env("HOME", self.home())
            .env("LANG", "C.UTF-8")
            .env("XDG_STATE_HOME", self.state())
            .env("XDG_CONFIG_HOME", self.base().join("config"))
            .env("XDG_RUNTIME_DIR", self.run_dir())
            // What `Ran::denied` looks for.
            .env("IRONCAGE_ERROR_CODES", "1")
            .current_dir(self.project());
        if rustix::process::getuid().is_root() && self.who == Who::User {
            command.uid(self.uid).gid(self.gid);
        }
        command
    }

    /// `ironcage ARGS`, not yet started.
    pub fn ironcage<S: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = S>) -> Command {
        let mut command = self.outside(binary());
        command.args(args);
        command
    }

    /// `ironcage run FLAGS -- COMMAND`, not yet started.
    pub fn cage(&self, flags: &[&str], command: &[&str]) -> Command {
        let mut run = self.ironcage(["run"]);
        run.args(flags).arg("--").args(command);
        run
    }

    /// `ironcage run FLAGS -- COMMAND`, run to its end.
    #[track_caller]
    pub fn run(&self, flags: &[&str], command: &[&str]) -> Ran {
        Running::start(&mut self.cage(flags, command)).finish(DEADLINE)
    }

    /// A shell script in a cage with all defaults, run to its end.
    #[track_caller]
    pub fn sh(&self, script: &str) -> Ran {
        self.run(&[], &["/bin/sh", "-c", script])
    }

    /// A shell script in a cage with flags, run to its end.
    #[track_caller]
    pub fn sh_with(&self, flags: &[&str], script: &str) -> Ran {
        self.run(flags, &["/bin/sh", "-c", script])
    }

    /// A shell script in a cage that works on the real files, run to its end.
    #[track_caller]
    pub fn sh_direct(&self, script: &str) -> Ran {
        self.sh_with(&DIRECT, script)
    }

    /// A shell script outside of every cage, run to its end: the arm that shows what the host would have allowed.
    #[track_caller]
    pub fn sh_outside(&self, script: &str) -> Ran {
        Running::start(self.outside("/bin/sh").args(["-c", script])).finish(DEADLINE)
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        let names = named_cages_below(self.base());
        if !names.is_empty() {
            let words = ["stop", "--time", "1"].map(str::to_owned);
            let mut stop = self.ironcage(words.iter().chain(&names));
            let _ = Running::start(&mut stop).finish(DEADLINE);
        }
        took(self.began.elapsed());
    }
}

/// Names of the cages that still run with files of a stage: those of a service outlive it, and would stay for ever.
fn named_cages_below(base: &Path) -> Vec<String> {
    let Some(base) = base.to_str() else {
        return Vec::new();
    };
    let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
    let lines = processes.filter_map(|process| fs::read(process.path().join("cmdline")).ok());
    let named = lines.filter_map(|line| {
        let words: Vec<_> = line
            .split(|byte| *byte == 0)
            .map(String::from_utf8_lossy)
            .collect();
        let is_cage = words.get(1).is_some_and(|word| word == "run");
        let is_ours = words.iter().any(|word| word.contains(base));
        let name = words.iter().position(|word| word == "--name")?;
        (is_cage && is_ours).then(|| words.get(name + 1).map(|name| name.to_string()))?
    });
    named.collect()
}

/// User and group id of an account in /etc/passwd.
fn account(name: &str) -> Option<(u32, u32)> {
    let passwd = fs::read_to_string("/etc/passwd").ok()?;
    let line = passwd
        .lines()
        .find(|line| line.split(':').next() == Some(name))?;
    let mut fields = line.split(':').skip(2);
    let uid = fields.next()?.parse().ok()?;
    let gid = fields.next()?.parse().ok()?;
    Some((uid, gid))
}
