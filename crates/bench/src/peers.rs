//! The peers that Ironcage is measured beside: how `bwrap`, `crun` and `sandlock` are asked for about
//! the same cage, as their users ask for it.

use crate::BenchError;
use crate::scratch::Scratch;
use ironcage_sys::rustix::process::{getegid, geteuid};
use serde_json::{Value, json};
use std::ffi::OsString;
use std::path::{Path, PathBuf};

/// One of /bin, /sbin, /lib, /lib64 as this host has it.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum SystemDirectory {
    /// A link into /usr.
    Link { path: PathBuf, target: PathBuf },
    /// A directory of its own, on a host whose /usr is not merged.
    Directory { path: PathBuf },
}

/// Those that this host has.
pub(crate) fn system_directories() -> Vec<SystemDirectory> {
    let all = ["/bin", "/sbin", "/lib", "/lib64"].map(PathBuf::from);
    all.into_iter()
        .filter_map(|path| match std::fs::read_link(&path) {
            Ok(target) => Some(SystemDirectory::Link { path, target }),
            Err(_) if path.is_dir() => Some(SystemDirectory::Directory { path }),
            Err(_) => None,
        })
        .collect()
}

/// A program on this process's search path, or in the usual places.
pub(crate) fn find_program(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let usual = ["/usr/local/bin", "/usr/bin", "/bin", "/usr/sbin", "/sbin"].map(PathBuf::from);
    std::env::split_paths(&path)
        .chain(usual)
        .filter(|directory| directory.is_absolute())
        .map(|directory| directory.join(name))
        .find(|candidate| candidate.is_file())
}

/// What `bwrap` is asked for.
#[derive(Debug, Clone, Copy)]
pub(crate) struct BwrapView<'a> {
    pub(crate) workspace: &'a Path,
    /// Compilers and interpreters want /etc; a bare start does not.
    pub(crate) with_etc: bool,
}

/// `bwrap` with all namespaces and the usual binds, up to the command.
pub(crate) fn bwrap_arguments(view: BwrapView<'_>) -> Vec<OsString> {
    let mut arguments: Vec<OsString> = ["--unshare-all", "--die-with-parent", "--ro-bind"]
        .into_iter()
        .chain(["/usr", "/usr"])
        .map(OsString::from)
        .collect();
    for entry in system_directories() {
        match entry {
            SystemDirectory::Link { path, target } => {
                arguments.extend(["--symlink".into(), target.into(), path.into()]);
            }
            SystemDirectory::Directory { path } => {
                arguments.extend(["--ro-bind".into(), path.clone().into(), path.into()]);
            }
        }
    }
    if view.with_etc {
        arguments.extend(["--ro-bind", "/etc", "/etc"].map(OsString::from));
    }
    arguments.extend(["--proc", "/proc", "--dev", "/dev", "--tmpfs", "/tmp"].map(OsString::from));
    let workspace = view.workspace.as_os_str();
    arguments.extend(["--bind".into(), workspace.into(), workspace.into()]);
    arguments.extend(["--chdir".into(), workspace.into(), "--".into()]);
    arguments
}

/// `sandlock run` as its manual has it: the system read-only, the workspace writable.
pub(crate) fn sandlock_arguments(workspace: &Path, command: &Path) -> Vec<OsString> {
    let mut arguments: Vec<OsString> = vec!["run".into()];
    for path in ["/usr", "/bin", "/lib", "/lib64", "/etc"].map(Path::new) {
        if path.exists() {
            arguments.extend(["-r".into(), path.into()]);
        }
    }
    arguments.extend(["-w".into(), workspace.into(), "--".into(), command.into()]);
    arguments
}

/// An OCI bundle in the scratch directory, with the workspace at /work.
#[derive(Debug)]
pub(crate) struct Bundle {
    path: PathBuf,
}

impl Bundle {
    /// Makes the directory with its root, and a specification for the command.
    pub(crate) fn new(
        scratch: &Scratch,
        name: &str,
        command: &[OsString],
    ) -> Result<Bundle, BenchError> {
        let path = scratch.folder(name)?;
        for folder in ["usr", "etc", "proc", "dev", "tmp", "work"] {
            scratch.folder(&format!("{name}/rootfs/{folder}"))?;
        }
        let mut mounts = vec![
            bind("/usr", Path::new("/usr"), "ro"),
            bind("/etc", Path::new("/etc"), "ro"),
        ];
        for entry in system_directories() {
            match entry {
                SystemDirectory::Link { path: link, target } => {
                    let link = path
                        .join("rootfs")
                        .join(link.strip_prefix("/").unwrap_or(&link));
                    std::os::unix::fs::symlink(target, &link)
                        .map_err(BenchError::file("make the link", link))?;
                }
                SystemDirectory::Directory { path: directory } => {
                    let inside = directory.to_string_lossy();
                    scratch.folder(&format!("{name}/rootfs{inside}"))?;
                    mounts.push(bind(&inside, &directory, "ro"));
                }
            }
        }
        let tmpfs = ["nosuid", "nodev", "mode=755", "size=65536k"];
        mounts.extend([
            json!({"destination": "/proc", "type": "proc", "source": "proc"}),
            json!({"destination": "/dev", "type": "tmpfs", "source": "tmpfs", "options": ["nosuid", "mode=755", "size=65536k"]}),
            json!({"destination": "/tmp", "type": "tmpfs", "source": "tmpfs", "options": tmpfs}),
            bind("/work", scratch.work(), "rw"),
        ]);
        let config = path.join("config.json");
        let text = oci_config(command, &mounts).to_string();
        std::fs::write(&config, text).map_err(BenchError::file("write", &config))?;
        Ok(Bundle { path })
    }

    /// Its directory.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// The directory that becomes the root.
    pub(crate) fn root(&self) -> PathBuf {
        self.path.join("rootfs")
    }
}

fn bind(destination: &str, source: &Path, mode: &str) -> Value {
    let source = source.to_string_lossy();
    json!({"destination": destination, "type": "bind", "source": source, "options": ["rbind", mode]})
}

/// The same namespaces as `bwrap` has with --unshare-all; no seccomp, no limits.
fn oci_config(command: &[OsString], mounts: &[Value]) -> Value {
    let words: Vec<_> = command.iter().map(|word| word.to_string_lossy()).collect();
    let kinds = ["user", "mount", "pid", "network", "ipc", "uts", "cgroup"];
    let namespaces: Vec<Value> = kinds.iter().map(|kind| json!({"type": kind})).collect();
    let map = |id: u32| json!([{"containerID": 0, "hostID": id, "size": 1}]);
    json!({
        "ociVersion": "1.0.0",
        "process": {
            "terminal": false,
            "user": {"uid": 0, "gid": 0},
            "args": words,
            "env": ["PATH=/usr/bin:/bin"],
            "cwd": "/work",
            "noNewPrivileges": true,
            "capabilities": {},
        },
        "root": {"path": "rootfs", "readonly": true},
        "mounts": mounts,
        "linux": {
            "namespaces": namespaces,
            "uidMappings": map(geteuid().as_raw()),
            "gidMappings": map(getegid().as_raw()),
        },
    })
}

/// `crun run` of a bundle with one of its ways to treat cgroups.
pub(crate) fn crun_arguments(scratch: &Scratch, bundle: &Path, manager: &str) -> Vec<OsString> {
    let id = format!("ironcage-bench-{}", std::process::id());
    vec![
        "--root".into(),
        scratch.path("crun").into(),
        format!("--cgroup-manager={manager}").into(),
        "run".into(),
        "--bundle".into(),
        bundle.into(),
        id.into(),
    ]
}

/// The first line of `PROGRAM --version`.
pub(crate) fn version(program: &Path) -> String {
    let output = std::process::Command::new(program)
        .arg("--version")
        .output();
    let text = output.map(|o| String::from_utf8_lossy(&o.stdout).into_owned());
    let text = text.unwrap_or_default();
    text.lines().next().unwrap_or("unknown version").to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bwrap_is_asked_for_all_namespaces_and_one_writable_directory() {
        let view = BwrapView {
            workspace: Path::new("/w"),
            with_etc: false,
        };
        let arguments = bwrap_arguments(view);
        let text: Vec<_> = arguments.iter().map(|a| a.to_string_lossy()).collect();
        assert_eq!(text[..2], ["--unshare-all", "--die-with-parent"]);
        let writable = text.iter().filter(|a| *a == "--bind").count();
        assert_eq!(writable, 1);
        assert!(!text.iter().any(|a| a == "/etc"));
        assert_eq!(text.last().unwrap(), "--");
        let with_etc = bwrap_arguments(BwrapView {
            with_etc: true,
            ..view
        });
        assert!(with_etc.iter().any(|a| a == "/etc"));
    }

    #[test]
    fn bundle_names_the_command_and_only_existing_sources() {
        let scratch = Scratch::new().unwrap();
        let bundle = Bundle::new(&scratch, "bundle", &["/bin/true".into()]).unwrap();
        let text = std::fs::read_to_string(bundle.path().join("config.json")).unwrap();
        let config: Value = serde_json::from_str(&text).unwrap();
        assert_eq!(config["process"]["args"][0], "/bin/true");
        for mount in config["mounts"].as_array().unwrap() {
            let destination = mount["destination"].as_str().unwrap();
            assert!(bundle.root().join(&destination[1..]).is_dir());
        }
    }

    #[test]
    fn a_program_that_does_not_exist_is_not_found() {
        assert_eq!(find_program("no-such-program-here"), None);
        assert!(find_program("sh").is_some());
    }
}
