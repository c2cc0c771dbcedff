//! The peers: other sandboxes, with the flags that their users take.

use super::bundle;
use super::{Adapter, AdapterError, Launch, Line, Source};
use ironcage_sys::rustix::process::geteuid;
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};

pub(super) struct Peer {
    /// What it is called in `--against`.
    pub(super) name: &'static str,
    /// What it is called in reports.
    title: &'static str,
    program: &'static str,
    package: &'static str,
    line: fn(&Launch<'_>) -> Vec<OsString>,
    /// Whether the launcher is copied to the stage, so that it may be attacked.
    copied: bool,
    hides: bool,
    grants: bool,
    root_only: bool,
}

const PEER: Peer = Peer {
    name: "",
    title: "",
    program: "",
    package: "",
    line: bwrap_line,
    copied: false,
    hides: false,
    grants: false,
    root_only: false,
};

/// Every peer, in the order of the documentation.
pub(super) const PEERS: &[Peer] = &[
    Peer {
        name: "chroot",
        title: "chroot",
        program: "chroot",
        package: "coreutils",
        line: |launch| bundle::line(bundle::CHROOT, launch),
        root_only: true,
        ..PEER
    },
    Peer {
        name: "bwrap",
        title: "bwrap --ro-bind / /",
        program: "bwrap",
        package: "bubblewrap",
        line: bwrap_line,
        copied: true,
        hides: true,
        grants: true,
        ..PEER
    },
    Peer {
        name: "bwrap-hard",
        title: "bwrap, every namespace and a short view",
        program: "bwrap",
        package: "bubblewrap",
        line: bwrap_hard_line,
        copied: true,
        hides: true,
        grants: true,
        ..PEER
    },
    Peer {
        name: "systemd-nspawn",
        title: "systemd-nspawn -D",
        program: "systemd-nspawn",
        package: "systemd-container",
        line: |launch| bundle::line(bundle::NSPAWN, launch),
        root_only: true,
        ..PEER
    },
    Peer {
        name: "firejail",
        title: "firejail --net=none, its default profile",
        program: "firejail",
        package: "firejail",
        line: firejail_line,
        root_only: true,
        ..PEER
    },
    Peer {
        name: "crun",
        title: "crun with its default specification",
        program: "crun",
        package: "crun",
        line: |launch| bundle::line(bundle::CRUN, launch),
        ..PEER
    },
    Peer {
        name: "runc",
        title: "runc with its default specification",
        program: "runc",
        package: "runc",
        line: |launch| bundle::line(bundle::RUNC, launch),
        ..PEER
    },
    Peer {
        name: "podman",
        title: "podman run --network none --rootfs",
        program: "podman",
        package: "podman",
        line: |launch| bundle::line(bundle::PODMAN, launch),
        root_only: true,
        ..PEER
    },
    Peer {
        name: "docker",
        title: "docker run --network none",
        program: "dockerd",
        package: "docker.io",
        line: |launch| bundle::line(bundle::DOCKER, launch),
        root_only: true,
        ..PEER
    },
    Peer {
        name: "runsc",
        title: "runsc (gVisor) with its default specification",
        program: "runsc",
        package: "runsc",
        line: |launch| bundle::line(bundle::RUNSC, launch),
        root_only: true,
        ..PEER
    },
    Peer {
        name: "srt",
        title: "srt (sandbox-runtime), no hosts",
        program: "srt",
        package: "@anthropic-ai/sandbox-runtime (npm install --global)",
        line: |launch| bundle::line(bundle::SRT, launch),
        ..PEER
    },
];

/// The adapter of the peer with this name.
pub(super) fn named(name: &str) -> Result<Adapter, AdapterError> {
    let Some(peer) = PEERS.iter().find(|peer| peer.name == name) else {
        return Err(AdapterError::Unknown {
            name: name.to_owned(),
            there: Adapter::names().join(", "),
        });
    };
    let program = system_program(peer.program, peer.package)?;
    if peer.root_only && !geteuid().is_root() {
        return Err(AdapterError::NeedsRoot(peer.name));
    }
    Ok(Adapter {
        name: peer.title.to_owned(),
        line: Line::Built(peer.line),
        source: if peer.copied {
            Source::System(program)
        } else {
            Source::None
        },
        hides: peer.hides,
        grants: peer.grants,
        limits: false,
        in_memory: false,
        commands: false,
        network: false,
        proxy: false,
        boots: false,
        as_vmm: false,
        guest: false,
    })
}

fn system_program(program: &'static str, package: &'static str) -> Result<PathBuf, AdapterError> {
    let places = [
        "/usr/local/bin",
        "/usr/bin",
        "/bin",
        "/usr/sbin",
        "/usr/local/sbin",
    ];
    places
        .iter()
        .map(|place| Path::new(place).join(program))
        .find(|path| path.is_file())
        .ok_or(AdapterError::Missing { program, package })
}

fn words(list: &[&OsStr]) -> Vec<OsString> {
    list.iter().map(|word| (*word).to_owned()).collect()
}

/// As its users commonly take it: the whole system read-only, the workspace writable.
fn bwrap_line(launch: &Launch<'_>) -> Vec<OsString> {
    let workspace = launch.workspace.as_os_str();
    let fixed = [
        "--ro-bind",
        "/",
        "/",
        "--dev",
        "/dev",
        "--proc",
        "/proc",
        "--unshare-pid",
        "--bind",
    ];
    let mut line = vec![launch.launcher.into()];
    line.extend(fixed.map(OsString::from));
    line.extend(words(&[workspace, workspace]));
    if let Some(path) = launch.hide {
        line.extend(words(&[OsStr::new("--tmpfs"), path.as_os_str()]));
    }
    line.extend(words(&[OsStr::new("--chdir"), workspace, OsStr::new("--")]));
    line.extend(launch.command.iter().cloned());
    line
}

/// With the profile that it has for programs it does not know.
fn firejail_line(launch: &Launch<'_>) -> Vec<OsString> {
    let mut line: Vec<OsString> = [
        "firejail",
        "--quiet",
        "--profile=default",
        "--net=none",
        "--",
    ]
    .map(OsString::from)
    .to_vec();
    line.extend(launch.command.iter().cloned());
    line
}

/// With everything that it offers but a filter of the user's own.
fn bwrap_hard_line(launch: &Launch<'_>) -> Vec<OsString> {
    let fixed = [
        "--unshare-all",
        "--unshare-user",
        "--disable-userns",
        "--die-with-parent",
        "--new-session",
        "--cap-drop",
        "ALL",
        "--clearenv",
        "--setenv",
        "PATH",
        "/usr/bin:/bin",
        "--hostname",
        "sandbox",
        "--ro-bind",
        "/usr",
        "/usr",
        "--ro-bind",
        "/etc",
        "/etc",
        "--proc",
        "/proc",
        "--dev",
        "/dev",
        "--tmpfs",
        "/tmp",
    ];
    let mut line = vec![launch.launcher.into()];
    line.extend(fixed.map(OsString::from));
    for (path, target) in bundle::links_to_usr() {
        line.extend(["--symlink".into(), target.into(), path.into()]);
    }
    let workspace = launch.workspace.as_os_str();
    line.extend(words(&[OsStr::new("--bind"), workspace, workspace]));
    if let Some(path) = launch.read {
        let path = path.as_os_str();
        line.extend(words(&[OsStr::new("--ro-bind"), path, path]));
    }
    if let Some(path) = launch.hide {
        line.extend(words(&[OsStr::new("--tmpfs"), path.as_os_str()]));
    }
    line.extend(words(&[OsStr::new("--chdir"), workspace, OsStr::new("--")]));
    line.extend(launch.command.iter().cloned());
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_missing_is_named_with_its_package() {
        let missing = system_program("no-such-program", "its-package").unwrap_err();
        assert!(missing.to_string().contains("its-package"));
        assert!(system_program("env", "coreutils").is_ok());
    }

    #[test]
    fn an_unknown_name_is_answered_with_those_there_are() {
        let error = named("nosuch").unwrap_err().to_string();
        assert!(error.contains("bwrap-hard") && error.contains("ironcage-root-inside"));
    }
}
