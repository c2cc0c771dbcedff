//! Files on the stage: a home with secrets, a project, places outside it.

use super::{Canary, Nonces, Programs, StageError, making, random_hex};
use crate::params::{Handle, Params};
use ironcage_sys::attack;
use std::ffi::CString;
use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// One file as it must be before every run.
struct CanaryFile {
    path: PathBuf,
    content: Vec<u8>,
    mode: u32,
    /// Set when the file was made: a replacement or a change of metadata shows.
    modified: Option<std::time::SystemTime>,
}

/// Where things lie, and what they must look like.
pub(crate) struct Layout {
    kept: Vec<CanaryFile>,
    /// Directories that have to be there though no kept file lies in them.
    directories: Vec<PathBuf>,
    /// Everything that a run may leave behind is under these.
    home: PathBuf,
    workspace: PathBuf,
    outside: PathBuf,
    granted: PathBuf,
    leased: PathBuf,
    /// The policy of a cage that can have leases.
    pub(crate) ceiling: PathBuf,
    tmp_plant: PathBuf,
    /// The suite's own directory in the workspace.
    pub(crate) suite: PathBuf,
    /// The program that runs inside.
    pub(crate) program: PathBuf,
    /// A copy of `ironcage` beside it.
    ironcage: PathBuf,
    pub(crate) params: PathBuf,
    /// Grows while a process of a probe lives.
    pub(crate) heartbeat: PathBuf,
    /// A host file, given as standard input or leaked.
    pub(crate) host_file: PathBuf,
    /// Only ever locked.
    pub(crate) lock_file: PathBuf,
    /// A second workspace.
    pub(crate) second: PathBuf,
    /// XDG_RUNTIME_DIR.
    pub(crate) runtime: PathBuf,
    /// Where launchers are copied to.
    pub(crate) bin: PathBuf,
}

/// Files in the root of a workspace that hosts execute or trust; present on the stage.
pub(crate) const TRUSTED: [(&str, &str); 8] = [
    (".git/hooks/pre-commit", "#!/bin/sh\nexit 0\n"),
    (
        ".git/config",
        "[core]\n\trepositoryformatversion = 0\n\tbare = false\n",
    ),
    (
        ".vscode/tasks.json",
        "{\"version\":\"2.0.0\",\"tasks\":[]}\n",
    ),
    (".envrc", "export STAGE=1\n"),
    (".mcp.json", "{\"mcpServers\":{}}\n"),
    (".claude/settings.json", "{}\n"),
    (".codex/config.toml", "\n"),
    (".cursor/mcp.json", "{\"mcpServers\":{}}\n"),
];

/// In the suite's directory: the program that boots machines, and the description of one.
pub(crate) const VMM: &str = "ironcage-vmm";
pub(crate) const MACHINE: &str = "machine.json";

/// A link in the workspace that leads out of it, where a probe is to find one.
pub(crate) const LEADS_OUT: &str = "leads-out";
/// A directory in the workspace that is on the PATH of whoever applies a change.
pub(crate) const ON_PATH: &str = "tools";

pub(crate) fn c_path(path: &Path) -> io::Result<CString> {
    CString::new(path.as_os_str().as_bytes()).map_err(io::Error::from)
}

impl Layout {
    /// Makes every file and tells `params` where they are.
    pub(crate) fn create(
        params: &mut Params,
        nonces: &Nonces,
        programs: &Programs,
    ) -> Result<Layout, StageError> {
        let home = params.home.clone();
        let tag = random_hex(6).map_err(making("random numbers"))?;
        let uid = ironcage_sys::rustix::process::geteuid().as_raw();
        let workspace = home.join("project");
        let suite = workspace.join(".suite");
        params.workspace.clone_from(&workspace);
        params.outside = home.join("outside");
        params.granted = home.join("granted");
        params.leased = home.join("leased");
        params.masked = workspace.join("masked");
        params.tmp_secret = PathBuf::from(format!("/tmp/report-{tag}.txt"));
        params.tmp_plant = PathBuf::from(format!("/tmp/plant-{tag}"));
        params.shm_secret = PathBuf::from(format!("/dev/shm/segment-{tag}"));
        params.state_secret = home.join(".local/state/ironcage/audit/stage.jsonl");
        let mut layout = Layout {
            kept: Vec::new(),
            directories: Vec::new(),
            outside: params.outside.clone(),
            granted: params.granted.clone(),
            leased: params.leased.clone(),
            ceiling: home.join("ceiling.toml"),
            tmp_plant: params.tmp_plant.clone(),
            program: suite.join("program"),
            ironcage: suite.join("ironcage"),
            params: suite.join("params.json"),
            heartbeat: suite.join("heartbeat"),
            host_file: params.outside.join("host.txt"),
            lock_file: params.outside.join("lock.txt"),
            second: home.join("second"),
            runtime: PathBuf::from(format!("/run/user/{uid}")),
            bin: home.join(".local/bin"),
            suite,
            home: home.clone(),
            workspace: workspace.clone(),
        };
        let secret = |canary| format!("{}\n", nonces.of(canary)).into_bytes();
        layout.keep(home.join(".ssh/id_canary"), secret(Canary::SshKey), 0o600);
        layout.keep(
            home.join(".aws/credentials"),
            secret(Canary::Credentials),
            0o600,
        );
        layout.keep(params.state_secret.clone(), secret(Canary::State), 0o600);
        layout.keep(params.masked.join("secret"), secret(Canary::Masked), 0o644);
        layout.keep(params.tmp_secret.clone(), secret(Canary::TmpFile), 0o644);
        layout.keep(params.shm_secret.clone(), secret(Canary::ShmFile), 0o644);
        layout.keep(
            layout.host_file.clone(),
            b"host content, as it was\n".to_vec(),
            0o644,
        );
        layout.keep(layout.lock_file.clone(), b"lock me\n".to_vec(), 0o644);
        layout.keep(
            params.granted.join("readable.txt"),
            b"readable\n".to_vec(),
            0o644,
        );
        layout.keep(
            params.leased.join("file"),
            crate::classes::le::CONTENT.to_vec(),
            0o644,
        );
        let ceiling = format!(
            "[ceiling]\ngrace = \"1s\"\nchildren = 2\n[ceiling.auto.files]\nwrite = [\"{}\"]\n",
            params.leased.display()
        );
        layout.keep(layout.ceiling.clone(), ceiling.into_bytes(), 0o644);
        layout.keep(
            workspace.join("main.c"),
            b"int main(void) { return 0; }\n".to_vec(),
            0o644,
        );
        layout.keep(
            workspace.join(".git/HEAD"),
            b"ref: refs/heads/main\n".to_vec(),
            0o644,
        );
        for (name, content) in TRUSTED {
            let mode = if name.contains("hooks") { 0o755 } else { 0o644 };
            layout.keep(workspace.join(name), content.as_bytes().to_vec(), mode);
        }
        layout.directories = vec![
            workspace.join(".git/objects"),
            workspace.join(".git/refs/heads"),
            layout.suite.clone(),
            layout.second.join(".suite"),
            layout.runtime.clone(),
            layout.bin.clone(),
            home.join("elsewhere"),
        ];
        layout.restore()?;
        layout.install(programs)?;
        let key = c_path(&home.join(".ssh/id_canary")).map_err(making("a path"))?;
        let handle = attack::file_handle(&key).map_err(making("a file handle of the key"))?;
        params.handle = Handle {
            kind: handle.kind,
            bytes: handle.bytes,
        };
        Ok(layout)
    }

    /// Where the stand-in for the user's ssh-agent listens.
    pub(crate) fn agent_socket(&self) -> PathBuf {
        self.runtime.join("stage-agent")
    }

    fn keep(&mut self, path: PathBuf, content: Vec<u8>, mode: u32) {
        self.kept.push(CanaryFile {
            path,
            content,
            mode,
            modified: None,
        });
    }

    fn install(&self, programs: &Programs) -> Result<(), StageError> {
        let second = self.second.join(".suite/program");
        let mut files = vec![
            (self.program.clone(), &programs.suite),
            (second, &programs.suite),
        ];
        if let Ok(ironcage) = &programs.ironcage {
            files.push((self.ironcage.clone(), ironcage));
        }
        for (path, content) in files {
            fs::write(&path, content)
                .and_then(|()| fs::set_permissions(&path, fs::Permissions::from_mode(0o755)))
                .map_err(making(path.display().to_string()))?;
        }
        Ok(())
    }

    /// The rules for the servers of a run with tools.
    pub(crate) fn tools(&self) -> PathBuf {
        self.home.join("tools.toml")
    }

    /// Puts the program that boots machines beside the suite's own, where a cage shows both, with a
    /// description of a machine that it confines itself for.
    pub(crate) fn install_vmm(&self, content: &[u8]) -> io::Result<()> {
        let vmm = self.vmm();
        fs::write(&vmm, content)?;
        fs::set_permissions(&vmm, fs::Permissions::from_mode(0o755))?;
        let machine = crate::role::machine().map_err(io::Error::other)?;
        fs::write(self.suite.join(MACHINE), machine)
    }

    fn vmm(&self) -> PathBuf {
        self.suite.join(VMM)
    }

    /// Puts a launcher of the sandbox under test where its users have it, as a copy that may
    /// be attacked; gives its path.
    pub(crate) fn install_launcher(&self, name: &str, content: &[u8]) -> io::Result<PathBuf> {
        let path = self.bin.join(name);
        if fs::read(&path).is_ok_and(|present| present == content) {
            return Ok(path);
        }
        // A new file: the old one may still be running.
        match fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        fs::write(&path, content)?;
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755))?;
        Ok(path)
    }

    /// Puts every file back and takes away what a run left.
    pub(crate) fn restore(&mut self) -> Result<(), StageError> {
        for stray in self.strays() {
            let gone = if stray.is_dir() && !stray.is_symlink() {
                fs::remove_dir_all(&stray)
            } else {
                fs::remove_file(&stray)
            };
            gone.map_err(making(format!("clean, {}", stray.display())))?;
        }
        for directory in &self.directories {
            fs::create_dir_all(directory).map_err(making(directory.display().to_string()))?;
        }
        for kept in &mut self.kept {
            if kept.modified.is_some() && kept.intact() {
                continue;
            }
            let named = || kept.path.display().to_string();
            if let Some(parent) = kept.path.parent() {
                fs::create_dir_all(parent).map_err(making(named()))?;
            }
            // A plain file is written in place: leaked descriptors refer to it.
            let plain = fs::symlink_metadata(&kept.path)
                .is_ok_and(|metadata| metadata.is_file() && metadata.nlink() == 1);
            if plain {
                let writable = fs::Permissions::from_mode(0o600);
                fs::set_permissions(&kept.path, writable).map_err(making(named()))?;
            } else if let Err(error) = fs::remove_file(&kept.path)
                && error.kind() != io::ErrorKind::NotFound
            {
                return Err(making(named())(error));
            }
            fs::write(&kept.path, &kept.content)
                .and_then(|()| {
                    fs::set_permissions(&kept.path, fs::Permissions::from_mode(kept.mode))
                })
                .map_err(making(named()))?;
            let metadata = fs::symlink_metadata(&kept.path).map_err(making(named()))?;
            kept.modified = metadata.modified().ok();
        }
        Ok(())
    }

    /// What lies where a probe could plant something, and is not the stage's.
    fn strays(&self) -> Vec<PathBuf> {
        let owned = |path: &Path| {
            self.kept.iter().any(|kept| kept.path.starts_with(path))
                || self.directories.iter().any(|kept| kept.starts_with(path))
        };
        let mut strays = Vec::new();
        let git = self.workspace.join(".git");
        let places = [
            &self.workspace,
            &self.outside,
            &self.granted,
            &self.leased,
            &git,
            &git.join("hooks"),
            &git.join("objects"),
            &git.join("refs"),
            &git.join("refs/heads"),
            &self.workspace.join(".vscode"),
            &self.workspace.join(".claude"),
        ];
        for place in places {
            let Ok(entries) = fs::read_dir(place) else {
                continue;
            };
            strays.extend(
                entries
                    .flatten()
                    .map(|entry| entry.path())
                    .filter(|path| !owned(path)),
            );
        }
        let suite = fs::read_dir(&self.suite).into_iter().flatten().flatten();
        let (vmm, machine) = (self.vmm(), self.suite.join(MACHINE));
        let own = [&self.program, &self.ironcage, &self.params, &vmm, &machine];
        strays.extend(
            suite
                .map(|entry| entry.path())
                .filter(|path| !own.contains(&path)),
        );
        let planted = [
            self.home.join("planted"),
            self.bin.join("git"),
            self.home.join(".cache"),
            self.home.join(".npm"),
            self.home.join(".cargo"),
            self.home.join(".config/ironcage"),
            self.tmp_plant.clone(),
        ];
        strays.extend(
            planted
                .into_iter()
                .filter(|path| path.symlink_metadata().is_ok()),
        );
        for place in [Path::new("/tmp"), Path::new("/dev/shm"), &self.home] {
            let entries = fs::read_dir(place).into_iter().flatten().flatten();
            let left = |path: &PathBuf| {
                path.file_name()
                    .is_some_and(|name| name.as_encoded_bytes().starts_with(b"left-"))
            };
            strays.extend(entries.map(|entry| entry.path()).filter(left));
        }
        strays
    }

    /// The first file that is not as it must be, among those for which `within` holds.
    pub(crate) fn first_change(&self, within: impl Fn(&Path) -> bool) -> Option<PathBuf> {
        let mut relevant = self.kept.iter().filter(|kept| within(&kept.path));
        relevant
            .find(|kept| !kept.intact())
            .map(|kept| kept.path.clone())
    }

    /// Whether `path` is one of the workspace's files that hosts trust.
    pub(crate) fn is_trusted(&self, path: &Path) -> bool {
        TRUSTED
            .iter()
            .any(|(name, _)| path == self.workspace.join(name))
    }
}

impl CanaryFile {
    fn intact(&self) -> bool {
        let Ok(metadata) = fs::symlink_metadata(&self.path) else {
            return false;
        };
        metadata.is_file()
            && metadata.mode() & 0o7777 == self.mode
            && metadata.nlink() == 1
            && metadata.modified().ok() == self.modified
            && fs::read(&self.path).is_ok_and(|content| content == self.content)
    }
}
