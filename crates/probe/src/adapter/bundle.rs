//! Peers that want a root directory: it is made on the stage, and the peer takes this process's
//! place.
//!
//! The directory has the host's system read-only, /etc, and the workspace at its own path: what
//! a user of these tools would put into an image. Everything else is the peer's own default.

use super::{Launch, docker};
use crate::stage::sweep;
use ironcage_sys::attack;
use ironcage_sys::rustix::fs::{fstat, makedev};
use ironcage_sys::rustix::mount::{MountPropagationFlags, mount_change};
use ironcage_sys::rustix::process::{getegid, geteuid};
use ironcage_sys::rustix::stdio;
use serde_json::{Value, json};
use std::ffi::{CString, OsString};
use std::fs::File;
use std::io::{self, Write as _};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

pub(super) const CHROOT: &str = "chroot";
pub(super) const NSPAWN: &str = "systemd-nspawn";
pub(super) const CRUN: &str = "crun";
pub(super) const RUNC: &str = "runc";
pub(super) const RUNSC: &str = "runsc";
pub(super) const PODMAN: &str = "podman";
pub(super) const DOCKER: &str = "docker";
pub(super) const SRT: &str = "srt";
pub(super) const LANDLOCK: &str = "landlock";

/// The line that plays the part below.
pub(super) fn line(kind: &str, launch: &Launch<'_>) -> Vec<OsString> {
    let program = launch.workspace.join(".suite/program");
    let mut line: Vec<OsString> = vec![program.into()];
    line.extend(["probe", "role", "peer", kind].map(OsString::from));
    line.extend([launch.workspace.into(), "--".into()]);
    line.extend(launch.command.iter().cloned());
    line
}

/// Links of the root into /usr, as this host has them.
pub(super) fn links_to_usr() -> Vec<(PathBuf, PathBuf)> {
    ["/bin", "/sbin", "/lib", "/lib64"]
        .into_iter()
        .filter_map(|path| Some((path.into(), std::fs::read_link(path).ok()?)))
        .collect()
}

/// Starts the peer in this process's place. Comes back only with an error.
pub(crate) fn become_peer(kind: &str, workspace: &Path, command: &[OsString]) -> io::Error {
    match prepare(kind, workspace, command) {
        Ok(mut peer) => peer.exec(),
        Err(error) => error,
    }
}

fn prepare(kind: &str, workspace: &Path, command: &[OsString]) -> io::Result<Command> {
    let runtime = PathBuf::from(format!("/run/user/{}", geteuid().as_raw()));
    let place = runtime.join(format!("peer-{}", std::process::id()));
    std::fs::create_dir_all(&place)?;
    let root = place.join("rootfs");
    tell_group()?;
    match kind {
        CHROOT => {
            make_root(&root, workspace)?;
            fill_root(&root, workspace)?;
            let mut peer = Command::new("chroot");
            peer.arg(&root).args(command);
            Ok(peer)
        }
        NSPAWN => {
            make_root(&root, workspace)?;
            let mut bind = OsString::from("--bind=");
            bind.push(workspace);
            let mut chdir = OsString::from("--chdir=");
            chdir.push(workspace);
            let mut peer = Command::new("systemd-nspawn");
            peer.args(["--quiet", "--register=no", "--keep-unit", "--pipe", "-D"]);
            peer.arg(&root)
                .args(["--bind-ro=/usr", "--bind-ro=/etc"])
                .args([bind, chdir, "--".into()])
                .args(command);
            Ok(peer)
        }
        DOCKER => {
            make_root(&root, workspace)?;
            let daemon = docker::daemon(&runtime.join("docker"), &root)?;
            let mut peer = Command::new("docker");
            peer.arg("--host").arg(daemon);
            peer.args(["run", "--rm", "--network=none", "--log-driver=none"]);
            peer.arg("--cgroup-parent").arg(group()).arg("--volume");
            peer.arg(volume(Path::new("/usr"), ":ro")).arg("--volume");
            peer.arg(volume(Path::new("/etc"), ":ro")).arg("--volume");
            peer.arg(volume(workspace, ":rw")).arg("--workdir");
            peer.arg(workspace).arg(docker::IMAGE).args(command);
            Ok(peer)
        }
        PODMAN => {
            make_root(&root, workspace)?;
            show_one_cgroup_tree()?;
            // One store for all runs: each takes megabytes of the stage.
            let store = runtime.join("podman");
            let mut peer = Command::new("podman");
            peer.arg("--root").arg(store.join("storage"));
            peer.arg("--runroot").arg(store.join("run"));
            peer.arg("--tmpdir").arg(store.join("tmp"));
            peer.args(["--cgroup-manager=cgroupfs", "--events-backend=none", "run"]);
            peer.args(["--rm", "--network=none", "--cgroups=disabled"]);
            peer.args(["--log-driver=none", "--volume"]);
            peer.arg(volume(Path::new("/usr"), ":ro")).arg("--volume");
            peer.arg(volume(Path::new("/etc"), ":ro")).arg("--volume");
            peer.arg(volume(workspace, ":rw")).arg("--workdir");
            peer.arg(workspace).arg("--rootfs").arg(&root).args(command);
            Ok(peer)
        }
        LANDLOCK => {
            restrict(workspace).map_err(io::Error::other)?;
            let program = command.first().ok_or(io::ErrorKind::InvalidInput)?;
            let mut peer = Command::new(program);
            peer.args(&command[1..]);
            Ok(peer)
        }
        SRT => {
            let settings = place.join("settings.json");
            let text = json!({
                "network": {"allowedDomains": [], "deniedDomains": []},
                "filesystem": {"denyRead": [], "allowWrite": [workspace], "denyWrite": []},
            });
            std::fs::write(&settings, text.to_string())?;
            let mut peer = Command::new("srt");
            peer.arg("--settings").arg(&settings).args(command);
            Ok(peer)
        }
        runtime @ (CRUN | RUNC | RUNSC) => {
            make_root(&root, workspace)?;
            if runtime == CRUN {
                show_one_cgroup_tree()?;
            }
            write_specification(runtime, &place, workspace, command)?;
            let mut peer = Command::new(runtime);
            peer.arg("--root").arg(place.join("state"));
            match runtime {
                CRUN => peer.arg("--cgroup-manager=disabled"),
                RUNSC => {
                    // It gives its streams to nobody: not the device that every program of the
                    // host has.
                    let input = fstat(stdio::stdin()).map_err(io::Error::from)?;
                    if input.st_rdev == makedev(1, 3) {
                        let nothing = place.join("nothing");
                        File::create(&nothing)?;
                        peer.stdin(File::open(&nothing)?);
                    }
                    peer.args(["--network=none", "--ignore-cgroups"])
                }
                _ => &mut peer,
            };
            peer.args(["run", "--bundle"]).arg(&place);
            peer.arg(group());
            Ok(peer)
        }
        other => Err(io::Error::other(format!("unknown peer `{other}`"))),
    }
}

/// Waits in the cage for what it has been promised.
const UNTIL_WRITABLE: &str = r#"until cd "$PWD" && [ -w . ]; do sleep 0.01; done; exec "$@""#;
/// The operator, who asks until the cage is there, or its launcher is not.
const GRANT: &str = r#"while [ -d "/proc/$3" ]; do
"$0" grant "$1" --write "$2" --reason "the task" >/dev/null 2>&1 && exit; sleep 0.01; done"#;

/// The line that plays the part below.
pub(super) fn leases_line(launch: &Launch<'_>) -> Vec<OsString> {
    let program = launch.workspace.join(".suite/program");
    let mut line: Vec<OsString> = vec![program.into()];
    line.extend(["probe", "role", "leases"].map(OsString::from));
    line.extend([launch.launcher.into(), launch.workspace.into(), "--".into()]);
    line.extend(launch.command.iter().cloned());
    line
}

/// Goes on as Ironcage with a workspace that can only be read, and a lease to write in it that is
/// granted while the cage runs. Comes back only with an error.
pub(crate) fn become_leased(ironcage: &Path, workspace: &Path, command: &[OsString]) -> io::Error {
    match leased(ironcage, workspace, command) {
        Ok(mut peer) => peer.exec(),
        Err(error) => error,
    }
}

fn leased(program: &Path, workspace: &Path, command: &[OsString]) -> io::Result<Command> {
    let id = std::process::id().to_string();
    let name = format!("leased-{id}");
    let mut operator = Command::new("/bin/sh");
    operator.args(["-c", GRANT]).arg(program).arg(&name);
    let null = std::process::Stdio::null;
    operator.arg(workspace).arg(&id).stdin(null());
    operator.stdout(null()).stderr(null()).spawn()?;
    let mut peer = Command::new(program);
    peer.args(["run", "-q", "--fresh", "--profile", "coding-agent-locked"]);
    // The operator grants the leases, as the shell's commands would request their own.
    peer.args(["--shell", "plain", "--name", &name, "--workspace"])
        .arg(workspace);
    peer.args(["--i-know", "--", "/bin/sh", "-c", UNTIL_WRITABLE, "sh"]);
    peer.args(command);
    Ok(peer)
}

/// What the peer's control group is called, where it makes one.
fn group() -> String {
    format!("peer-{}", std::process::id())
}

/// Lets the stage remove that group when it ends: a killed peer does not.
fn tell_group() -> io::Result<()> {
    let home = std::env::var_os("HOME").unwrap_or_default();
    let path = Path::new(&home).join(sweep::PEER_GROUPS);
    if let Some(above) = path.parent() {
        std::fs::create_dir_all(above)?;
    }
    let mut file = File::options().create(true).append(true).open(path)?;
    file.write_all(format!("{}\n", group()).as_bytes())
}

/// A directory of the host's, at its own path inside.
fn volume(path: &Path, mode: &str) -> OsString {
    let mut text = path.as_os_str().to_owned();
    text.push(":");
    text.push(path);
    text.push(mode);
    text
}

/// What a plain runner of Landlock does: the system can be read, the workspace, /tmp and devices
/// written, no TCP port is named, and signals and abstract sockets stay within. No other mechanism.
fn restrict(workspace: &Path) -> Result<(), landlock::RulesetError> {
    use landlock::{
        ABI, Access, AccessFs, AccessNet, CompatLevel, Compatible, Ruleset, RulesetAttr,
        RulesetCreatedAttr, Scope, path_beneath_rules,
    };
    let newest = ABI::V6;
    let system = [
        "/usr", "/bin", "/sbin", "/lib", "/lib64", "/etc", "/proc", "/dev",
    ];
    let written = [workspace, Path::new("/tmp"), Path::new("/dev")];
    Ruleset::default()
        .set_compatibility(CompatLevel::BestEffort)
        .handle_access(AccessFs::from_all(newest))?
        .handle_access(AccessNet::from_all(newest))?
        .scope(Scope::from_all(newest))?
        .create()?
        .add_rules(path_beneath_rules(system, AccessFs::from_read(newest)))?
        .add_rules(path_beneath_rules(written, AccessFs::from_all(newest)))?
        .restrict_self()
        .map(drop)
}

/// The directories and links of a root.
fn make_root(root: &Path, workspace: &Path) -> io::Result<()> {
    for name in ["usr", "etc", "proc", "dev", "tmp", "sys", "run", "root"] {
        std::fs::create_dir_all(root.join(name))?;
    }
    for (path, target) in links_to_usr() {
        let name = path.strip_prefix("/").unwrap_or(&path);
        std::os::unix::fs::symlink(target, root.join(name))?;
    }
    let inside = workspace.strip_prefix("/").unwrap_or(workspace);
    std::fs::create_dir_all(root.join(inside))
}

fn own_mounts() -> io::Result<()> {
    const NEWNS: i32 = ironcage_sys::rustix::thread::UnshareFlags::NEWNS.bits() as i32;
    attack::share_nothing(NEWNS)?;
    let private = MountPropagationFlags::PRIVATE | MountPropagationFlags::REC;
    Ok(mount_change("/", private)?)
}

/// crun refuses to start where version 1 and 2 of cgroups are mounted side by side: it is shown
/// version 2 alone.
pub(super) fn show_one_cgroup_tree() -> io::Result<()> {
    let (all, second) = (c"/sys/fs/cgroup", c"/sys/fs/cgroup/unified");
    if !geteuid().is_root() || !Path::new("/sys/fs/cgroup/unified").is_dir() {
        return Ok(());
    }
    own_mounts()?;
    Ok(attack::bind_mount(second, all, false)?)
}

/// What chroot leaves to its users: the mounts, here in a mount namespace of their own.
fn fill_root(root: &Path, workspace: &Path) -> io::Result<()> {
    own_mounts()?;
    let path = |path: &Path| CString::new(path.as_os_str().as_bytes());
    let inside = |name: &Path| root.join(name.strip_prefix("/").unwrap_or(name));
    for (name, read_only) in [("/usr", true), ("/etc", true), ("/dev", false)] {
        let name = Path::new(name);
        attack::bind_mount(&path(name)?, &path(&inside(name))?, read_only)?;
    }
    attack::bind_mount(&path(workspace)?, &path(&inside(workspace))?, false)?;
    attack::mount_fs(c"proc", &path(&root.join("proc"))?, None)?;
    Ok(())
}

/// The runtime's own default specification, with the command, the system and the workspace.
fn write_specification(
    runtime: &str,
    place: &Path,
    workspace: &Path,
    command: &[OsString],
) -> io::Result<()> {
    let rootless = !geteuid().is_root();
    let mut spec = Command::new(runtime);
    spec.arg("spec").current_dir(place);
    match runtime {
        RUNSC => {
            spec.args(["--", "/bin/true"]);
        }
        _ if rootless => {
            spec.arg("--rootless");
        }
        _ => {}
    }
    let status = spec.status()?;
    if !status.success() {
        return Err(io::Error::other(format!("`{runtime} spec`: {status}")));
    }
    let path = place.join("config.json");
    let mut config: Value = serde_json::from_slice(&std::fs::read(&path)?)?;
    let text = |word: &OsString| word.to_string_lossy().into_owned();
    config["process"]["args"] = command.iter().map(text).collect();
    config["process"]["cwd"] = json!(workspace);
    config["process"]["terminal"] = json!(false);
    let bind = |path: &Path, mode: &str| json!({"destination": path, "type": "bind", "source": path, "options": ["rbind", mode]});
    if let Some(mounts) = config["mounts"].as_array_mut() {
        mounts.retain(|mount| mount["destination"] != "/sys/fs/cgroup");
        mounts.push(bind(Path::new("/usr"), "ro"));
        mounts.push(bind(Path::new("/etc"), "ro"));
        mounts.push(json!({"destination": "/tmp", "type": "tmpfs", "source": "tmpfs"}));
        mounts.push(bind(workspace, "rw"));
    }
    if runtime == CRUN
        && let Some(linux) = config["linux"].as_object_mut()
    {
        // Limits on devices, which it cannot set without a cgroup.
        linux.remove("resources");
    }
    if rootless {
        // The stage's own user namespace maps nobody else.
        let map = |id: u32| json!([{"containerID": 0, "hostID": id, "size": 1}]);
        config["linux"]["uidMappings"] = map(geteuid().as_raw());
        config["linux"]["gidMappings"] = map(getegid().as_raw());
    }
    std::fs::write(&path, config.to_string())
}
