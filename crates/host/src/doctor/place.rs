//! In what kind of place this process runs: a plain host, a container, WSL2, gVisor.

use serde::Serialize;
use std::fs;
use std::path::Path;

/// What surrounds this process, as far as it changes what can be enforced.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Place {
    /// A host or a virtual machine of its own.
    Host,
    Docker,
    Podman,
    /// A container of LXC or Incus.
    Lxc,
    /// A pod of Kubernetes.
    Kubernetes,
    /// Another container.
    Container,
    /// Windows Subsystem for Linux, version 2.
    Wsl2,
    /// gVisor: a kernel in user space.
    Gvisor,
}

/// The traces that places leave.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Traces {
    pub(crate) release: String,
    /// `/proc/version`.
    pub(crate) version: String,
    /// `/proc/1/cgroup` and the own one.
    pub(crate) cgroup: String,
    pub(crate) dockerenv: bool,
    pub(crate) containerenv: bool,
    pub(crate) kubernetes: bool,
    /// Whether the process and cgroup namespaces are the host's own.
    pub(crate) initial_namespaces: bool,
    /// The variable `container` that LXC, Podman and systemd-nspawn set, where readable.
    pub(crate) container: Option<String>,
}

impl Place {
    /// Where this process runs.
    pub fn here() -> Place {
        Place::from_traces(&Traces {
            release: fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default(),
            version: fs::read_to_string("/proc/version").unwrap_or_default(),
            cgroup: fs::read_to_string("/proc/1/cgroup").unwrap_or_default()
                + &fs::read_to_string("/proc/self/cgroup").unwrap_or_default(),
            dockerenv: Path::new("/.dockerenv").exists(),
            containerenv: Path::new("/run/.containerenv").exists(),
            kubernetes: Path::new("/var/run/secrets/kubernetes.io").exists(),
            initial_namespaces: in_initial("pid", 0xEFFF_FFFC) && in_initial("cgroup", 0xEFFF_FFFB),
            container: fs::read_to_string("/run/systemd/container")
                .ok()
                .or_else(|| std::env::var("container").ok())
                .map(|text| text.trim().to_owned()),
        })
    }

    /// The most specific place that the traces show.
    pub(crate) fn from_traces(traces: &Traces) -> Place {
        let named = |word: &str| traces.cgroup.contains(word);
        // gVisor gives itself away by a fixed version text, in whatever container it stands.
        if traces.version.contains("gVisor") || traces.release.contains("gvisor") {
            return Place::Gvisor;
        }
        let wsl = traces.release.to_ascii_lowercase().contains("microsoft");
        // An image that was unpacked into a virtual machine keeps its marks.
        if traces.initial_namespaces {
            return if wsl { Place::Wsl2 } else { Place::Host };
        }
        if traces.kubernetes || named("kubepods") {
            return Place::Kubernetes;
        }
        if traces.containerenv || named("libpod") || traces.container.as_deref() == Some("podman") {
            return Place::Podman;
        }
        if traces.dockerenv || named("/docker") {
            return Place::Docker;
        }
        if named("/lxc") || traces.container.as_deref() == Some("lxc") {
            return Place::Lxc;
        }
        if traces
            .container
            .as_deref()
            .is_some_and(|name| !name.is_empty() && name != "wsl")
        {
            return Place::Container;
        }
        if wsl {
            return Place::Wsl2;
        }
        Place::Host
    }

    pub const fn name(self) -> &'static str {
        match self {
            Place::Host => "a host",
            Place::Docker => "a Docker container",
            Place::Podman => "a Podman container",
            Place::Lxc => "an LXC container",
            Place::Kubernetes => "a Kubernetes pod",
            Place::Container => "a container",
            Place::Wsl2 => "WSL2",
            Place::Gvisor => "gVisor",
        }
    }

    /// How a container is to be started so that namespaces can be made inside it.
    pub(crate) const fn nesting_remedy(self) -> Option<&'static str> {
        match self {
            Place::Host | Place::Wsl2 => None,
            Place::Docker => Some(
                "start the container with: docker run --security-opt seccomp=unconfined --security-opt apparmor=unconfined \
                 --security-opt systempaths=unconfined --user 1000:1000 ...",
            ),
            Place::Podman => Some(
                "start the container with: podman run --security-opt seccomp=unconfined --security-opt label=disable \
                 --security-opt unmask=ALL --device /dev/fuse ...",
            ),
            Place::Lxc => Some(
                "allow nesting, on the host: lxc config set CONTAINER security.nesting=true (Proxmox: pct set ID --features nesting=1)",
            ),
            Place::Kubernetes => Some(
                "in the pod's securityContext: hostUsers: false, procMount: Unmasked, seccompProfile: {type: Unconfined}, \
                 appArmorProfile: {type: Unconfined}",
            ),
            Place::Container => Some(
                "start the container with unmasked /proc and a seccomp profile that allows clone, unshare, mount and pivot_root in user namespaces",
            ),
            Place::Gvisor => Some(
                "gVisor implements no Landlock and only part of the namespaces: run Ironcage on the host, outside the gVisor sandbox",
            ),
        }
    }
}

/// Whether this process is in a namespace that the kernel made at boot; their numbers are fixed.
fn in_initial(kind: &str, number: u64) -> bool {
    let link = fs::read_link(Path::new("/proc/self/ns").join(kind));
    link.is_ok_and(|link| link.as_os_str().to_str() == Some(&format!("{kind}:[{number}]")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn traces(change: impl FnOnce(&mut Traces)) -> Place {
        let mut traces = Traces {
            release: "6.8.0-45-generic".into(),
            version: "Linux version 6.8.0-45-generic".into(),
            cgroup: "0::/user.slice\n".into(),
            ..Traces::default()
        };
        change(&mut traces);
        Place::from_traces(&traces)
    }

    #[test]
    fn a_plain_host_leaves_no_traces() {
        assert_eq!(traces(|_| ()), Place::Host);
    }

    #[test]
    fn containers_are_told_apart() {
        assert_eq!(traces(|t| t.dockerenv = true), Place::Docker);
        assert_eq!(
            traces(|t| t.cgroup = "4:memory:/docker/abc\n".into()),
            Place::Docker
        );
        assert_eq!(traces(|t| t.containerenv = true), Place::Podman);
        assert_eq!(
            traces(|t| t.cgroup = "0::/kubepods.slice/x\n".into()),
            Place::Kubernetes
        );
        assert_eq!(traces(|t| t.container = Some("lxc".into())), Place::Lxc);
        assert_eq!(
            traces(|t| t.container = Some("systemd-nspawn".into())),
            Place::Container
        );
    }

    #[test]
    fn a_virtual_machine_made_from_an_image_is_a_host() {
        let machine = |t: &mut Traces| {
            t.dockerenv = true;
            t.initial_namespaces = true;
        };
        assert_eq!(traces(machine), Place::Host);
    }

    #[test]
    fn wsl_and_gvisor_are_known_by_their_kernels() {
        let wsl = |t: &mut Traces| t.release = "5.15.167.4-microsoft-standard-WSL2".into();
        assert_eq!(traces(wsl), Place::Wsl2);
        let gvisor = |t: &mut Traces| {
            t.version = "Linux version 4.4.0 (gVisor)".into();
            t.dockerenv = true;
        };
        assert_eq!(traces(gvisor), Place::Gvisor);
    }

    #[test]
    fn every_container_has_a_remedy_and_a_host_needs_none() {
        for place in [
            Place::Docker,
            Place::Podman,
            Place::Lxc,
            Place::Kubernetes,
            Place::Container,
            Place::Gvisor,
        ] {
            assert!(place.nesting_remedy().is_some(), "{place:?}");
        }
        assert_eq!(Place::Host.nesting_remedy(), None);
    }
}
