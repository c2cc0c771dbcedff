//! A workspace, a change over it, and an overlay of both in which commands of an agent run.
#![allow(dead_code)]

use ironcage_workspace::{Change, LayerRequest, LayerRole, Store};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// The shell that runs in the overlay: `$1` real, `$2` upper, `$3` work, `$4` the script.
const MOUNT: &str = r#"
set -e
mkdir -p "$5"
mount -t overlay -o "userxattr,lowerdir=$1,upperdir=$2,workdir=$3" overlay "$5"
cd "$5"
exec /bin/sh -ec "$4"
"#;

/// A file system in memory, where waiting for the disk is for nothing, if it can carry an overlay.
pub(crate) fn place() -> PathBuf {
    use ironcage_sys::rustix::fs::{XattrFlags, fsetxattr};
    let memory = Path::new("/dev/shm");
    let able = tempfile::tempfile_in(memory)
        .is_ok_and(|file| fsetxattr(&file, "user.try", b"y", XattrFlags::empty()).is_ok());
    match able {
        true => memory.to_owned(),
        false => std::env::temp_dir(),
    }
}

/// Mounts each layer over its real directory: four arguments, then the next.
const MOUNT_OVER: &str = r#"
set -e
script=$1; shift
cd /
top=$1
while [ $# -gt 0 ]; do
    mount -t overlay -o "userxattr,lowerdir=$1,upperdir=$2,workdir=$3" overlay "$1"
    shift 3
done
cd "$top"
exec /bin/sh -ec "$script"
"#;

pub(crate) struct Bed {
    pub(crate) base: tempfile::TempDir,
    pub(crate) store: Store,
    pub(crate) workspace: PathBuf,
}

impl Bed {
    pub(crate) fn new() -> Bed {
        let base = tempfile::tempdir_in(place()).expect("a directory");
        let workspace = base.path().join("project");
        std::fs::create_dir(&workspace).expect("a workspace");
        let store = Store::open(&base.path().join("state"));
        Bed {
            base,
            store,
            workspace,
        }
    }

    /// Commands of the host in the real workspace.
    pub(crate) fn host(&self, script: &str) {
        let output = Command::new("/bin/sh")
            .args(["-ec", script])
            .current_dir(&self.workspace)
            .env("HOME", self.base.path())
            .output()
            .expect("a shell");
        assert!(output.status.success(), "{script}: {output:?}");
    }

    /// What a script of the host says.
    pub(crate) fn say(&self, script: &str) -> String {
        let output = Command::new("/bin/sh")
            .args(["-ec", script])
            .current_dir(&self.workspace)
            .env("HOME", self.base.path())
            .output()
            .expect("a shell");
        assert!(output.status.success(), "{script}: {output:?}");
        String::from_utf8(output.stdout).expect("text")
    }

    /// Begins a change. What the host did before lies before it in time.
    pub(crate) fn begin(&self) -> Change {
        std::thread::sleep(std::time::Duration::from_millis(20));
        let layers = [LayerRequest {
            role: LayerRole::Workspace,
            real: self.workspace.clone(),
            place: PathBuf::new(),
        }];
        let draft = self.store.draft(&self.workspace).expect("a draft");
        self.store
            .create(&self.workspace, draft, "cow", &layers)
            .expect("a change")
            .0
    }

    /// Commands of an agent in the overlay.
    pub(crate) fn agent(&self, change: &Change, script: &str) {
        let output = self.try_agent(change, script);
        assert!(output.status.success(), "{script}: {output:?}");
    }

    pub(crate) fn try_agent(&self, change: &Change, script: &str) -> Output {
        let layer = &change.layers()[0];
        Command::new("unshare")
            .args(["-Urm", "/bin/sh", "-c", MOUNT, "sh"])
            .args([&layer.real, &layer.upper, &layer.work])
            .arg(script)
            .arg(self.base.path().join("merged"))
            .output()
            .expect("unshare")
    }

    /// Begins a change over the workspace and further git directories.
    pub(crate) fn begin_with_git(&self, workspace: &Path, git: &[PathBuf]) -> Change {
        std::thread::sleep(std::time::Duration::from_millis(20));
        let mut layers = vec![LayerRequest {
            role: LayerRole::Workspace,
            real: workspace.to_owned(),
            place: PathBuf::new(),
        }];
        layers.extend(git.iter().enumerate().map(|(number, real)| LayerRequest {
            role: LayerRole::Git,
            real: real.clone(),
            place: PathBuf::from(format!("layers/{number}")),
        }));
        let draft = self.store.draft(workspace).expect("a draft");
        self.store
            .create(workspace, draft, "cow", &layers)
            .expect("a change")
            .0
    }

    /// Commands of an agent where every layer lies over its real directory.
    pub(crate) fn agent_over(&self, change: &Change, script: &str) {
        let mut command = Command::new("unshare");
        command.args(["-Urm", "/bin/sh", "-c", MOUNT_OVER, "sh", script]);
        for layer in change.layers() {
            command.args([&layer.real, &layer.upper, &layer.work]);
        }
        let output = command
            .env("HOME", self.base.path())
            .env("GIT_CONFIG_NOSYSTEM", "1")
            .output()
            .expect("unshare");
        assert!(output.status.success(), "{script}: {output:?}");
    }

    /// A begun change in which the agent has run a script.
    pub(crate) fn changed_by(&self, script: &str) -> Change {
        let change = self.begin();
        self.agent(&change, script);
        change
    }

    pub(crate) fn read(&self, path: impl AsRef<Path>) -> Option<String> {
        std::fs::read_to_string(self.workspace.join(path)).ok()
    }
}
