//! Derives findings from facts and trials: how far each layer works, why, and how to fix it. Pure.

use super::trials::{Subject, TrialResult, refusal};
use super::{Extra, Finding, Place};
use crate::SideChannelHost;
use crate::assess::{self, Facts};
use crate::{CgroupHost, NoCgroup, Privilege};
use ironcage_model::{Enforcement, Layer};
use ironcage_sys::host::errno_text;
use ironcage_sys::rustix::io::Errno;
use std::collections::BTreeMap;

type Results = BTreeMap<Subject, TrialResult>;

/// One finding for every layer.
pub(crate) fn findings(facts: &Facts, place: Place, results: &Results) -> Vec<Finding> {
    let context = Context {
        facts,
        place,
        results,
    };
    let assessed = assess::layers(facts);
    Layer::ALL
        .into_iter()
        .map(|layer| {
            let level = assessed
                .get(&layer)
                .cloned()
                .unwrap_or_else(|| Enforcement::Off("not assessed".into()));
            context.finding(layer, level)
        })
        .collect()
}

/// What is not a layer but needed by some cages.
pub(crate) fn extras(results: &Results) -> Vec<Extra> {
    let extra = |name, subject| {
        let (works, evidence) = match results.get(&subject) {
            Some(TrialResult::Worked) => (true, "tried".to_owned()),
            Some(TrialResult::Refused { doing, errno }) => (false, refusal(doing, *errno)),
            Some(TrialResult::NotTried { why }) => (false, format!("not tried: {why}")),
            None => (false, "not tried".to_owned()),
        };
        Extra {
            name,
            works,
            evidence,
        }
    };
    let mut overlay = extra("copy-on-write view of this directory", Subject::Overlay);
    if !overlay.works {
        overlay.evidence.push_str(
            "; use --workspace-mode direct, a copy of the directory on another file system, or an \
             XDG_STATE_HOME there",
        );
    }
    let mut delivery = extra("egress proxy on every port", Subject::Delivery);
    if !delivery.works {
        delivery.evidence.push_str(
            "; without it only the ports in the rules reach the egress proxy, one by one, and a rule \
             for all ports is rejected; if the kernel has the module, fix it as root with: modprobe nft_tproxy",
        );
    }
    let there = SideChannelHost::examine();
    let missing = there.missing();
    let side_channels = Extra {
        name: "--side-channels hardened",
        works: missing.is_empty(),
        evidence: match missing.is_empty() {
            true => "the kernel reports it".to_owned(),
            false => format!("missing {}", missing.join("; missing ")),
        },
    };
    let faults = Extra {
        name: "leases on first access to a path",
        works: false,
        evidence: "not in this version, with or without /dev/fuse: Ironcage reads tool calls and \
                   commands before they run, and anything else uses `ironcage ask`"
            .to_owned(),
    };
    vec![
        overlay,
        delivery,
        extra("idmapped mounts", Subject::IdMappedMounts),
        side_channels,
        faults,
    ]
}

struct Context<'a> {
    facts: &'a Facts,
    place: Place,
    results: &'a Results,
}

impl Context<'_> {
    fn finding(&self, layer: Layer, assessed: Enforcement) -> Finding {
        match subject_of(layer) {
            Some(subject) => self.tried(layer, subject, assessed),
            None if is_by_cgroup(layer) => self.by_cgroup(layer, assessed),
            None => Finding {
                layer,
                evidence: match layer {
                    Layer::Disk | Layer::Inodes => "a property of tmpfs and of the watchdog",
                    _ => "every supported kernel has it",
                }
                .into(),
                enforcement: assessed,
                remedy: None,
            },
        }
    }

    /// A layer that a trial decides. What the facts know to be in the way comes first: its
    /// reason is better than an error number.
    fn tried(&self, layer: Layer, subject: Subject, assessed: Enforcement) -> Finding {
        let result = self.results.get(&subject);
        let needs_user_namespace = matches!(
            layer,
            Layer::MountNs
                | Layer::PidNs
                | Layer::NetNs
                | Layer::IpcNs
                | Layer::UtsNs
                | Layer::CgroupNs
                | Layer::TimeNs
                | Layer::Counters
        );
        if needs_user_namespace && !self.worked(Subject::UserNs) {
            return Finding {
                layer,
                enforcement: Enforcement::Off("needs the user namespace".into()),
                evidence: "needs the user namespace".into(),
                remedy: Some("fix user-ns first".into()),
            };
        }
        match result {
            Some(TrialResult::Worked) => self.worked_finding(layer, assessed),
            Some(TrialResult::Refused { doing, errno }) => {
                let evidence = refusal(doing, *errno);
                let (why, remedy) = self.explain(layer, subject, *errno);
                Finding {
                    layer,
                    enforcement: Enforcement::Off(why.unwrap_or_else(|| evidence.clone())),
                    evidence,
                    remedy: Some(remedy),
                }
            }
            Some(TrialResult::NotTried { why }) => Finding {
                layer,
                enforcement: Enforcement::Off(format!("could not be tried: {why}")),
                evidence: why.clone(),
                remedy: self.place.nesting_remedy().map(str::to_owned),
            },
            None => Finding {
                layer,
                enforcement: assessed,
                evidence: "not tried".into(),
                remedy: None,
            },
        }
    }

    fn worked(&self, subject: Subject) -> bool {
        self.results.get(&subject) == Some(&TrialResult::Worked)
    }

    /// The trial succeeded, so a blocker that the facts suspected does not exist. The kernel's version
    /// may still lack something.
    fn worked_finding(&self, layer: Layer, assessed: Enforcement) -> Finding {
        let mut finding = Finding {
            layer,
            enforcement: match assessed {
                Enforcement::Off(_) => Enforcement::Full,
                other => other,
            },
            evidence: what_worked(layer).into(),
            remedy: None,
        };
        if layer == Layer::Seccomp && !self.worked(Subject::SeccompNotify) {
            finding.enforcement = Enforcement::Partial(assess::UNREPORTED.into());
            finding.remedy = Some(match self.place {
                Place::Wsl2 => {
                    "start cages with --allow-degraded seccomp: the filter is enforced, but denials are not reported".into()
                }
                _ => {
                    "start Ironcage outside that filter, or cages with --allow-degraded seccomp: the filter is enforced, but denials are not reported".into()
                }
            });
        } else if layer == Layer::Landlock && finding.enforcement != Enforcement::Full {
            finding.remedy = Some("install Linux 6.12 or later".into());
        }
        finding
    }

    /// Reason, where it is known better than by the error number, and remedy.
    fn explain(&self, layer: Layer, subject: Subject, errno: i32) -> (Option<String>, String) {
        if subject == Subject::UserNs {
            if let Some(blocker) = assess::userns_blocker(self.facts) {
                return (Some(blocker.why), blocker.remedy);
            }
            return (None, userns_failure_hint(self.facts, self.place, errno));
        }
        if let Some(blocker) = assess::blocker(self.facts, layer) {
            return (Some(blocker.why), blocker.remedy);
        }
        let error = Errno::from_raw_os_error(errno);
        if matches!(self.facts.sysctls.apparmor_restrict, Some(1..))
            && self.facts.privilege == Privilege::User
        {
            let why = "AppArmor denies capabilities in this program's user namespaces";
            return (Some(why.into()), assess::apparmor_remedy());
        }
        if error == Errno::NOSPC {
            let remedy = "as root, for the namespace above: sysctl -w user.max_mnt_namespaces=15000 (also max_pid_, max_net_, max_ipc_, max_uts_, max_cgroup_, max_time_)";
            return (
                Some("the limit on namespaces is reached".into()),
                remedy.into(),
            );
        }
        match (subject, self.place.nesting_remedy()) {
            (Subject::PidNs, Some(remedy)) => {
                let why = "the kernel denies a new /proc while parts of the current one are masked, as in containers";
                (Some(why.into()), remedy.into())
            }
            (Subject::Counters, Some(remedy)) => (Some("/proc/sys is read-only here".into()), remedy.into()),
            (_, Some(remedy)) => (None, remedy.into()),
            (Subject::PidNs, None) if error == Errno::PERM => (
                Some("the kernel denies a new /proc while parts of the current one are mounted over".into()),
                "as root, unmount the mounts that this lists: grep ' /proc/' /proc/self/mountinfo".into(),
            ),
            (Subject::Counters, None) if error == Errno::ROFS => (
                Some("/proc/sys is read-only here".into()),
                "as root: mount -o remount,bind,rw /proc/sys".into(),
            ),
            (Subject::Landlock, None) => (
                None,
                "add `landlock` to the list in the boot parameter lsm= (see /sys/kernel/security/lsm)".into(),
            ),
            (_, None) if self.place == Place::Wsl2 => {
                (None, "in Windows: wsl --update && wsl --shutdown".into())
            }
            (_, None) => (
                None,
                "probably a seccomp filter or a security module around this process: start Ironcage outside it".into(),
            ),
        }
    }

    fn by_cgroup(&self, layer: Layer, assessed: Enforcement) -> Finding {
        let result = self.results.get(&Subject::CgroupGroup);
        let place = match &self.facts.cgroup {
            CgroupHost::V2 { parent, .. } => format!("cgroup version 2 below {}", parent.display()),
            CgroupHost::V1(_) => "cgroup version 1".into(),
            CgroupHost::None { .. } => "no cgroup".into(),
        };
        match result {
            Some(TrialResult::Refused { doing, errno }) => Finding {
                layer,
                enforcement: Enforcement::Partial(format!("by a fallback: {}", next_best(layer))),
                evidence: refusal(doing, *errno),
                remedy: Some(self.delegation_remedy()),
            },
            _ => Finding {
                layer,
                remedy: (assessed != Enforcement::Full).then(|| self.delegation_remedy()),
                enforcement: assessed,
                evidence: place,
            },
        }
    }

    /// How cgroups are handed to this user.
    fn delegation_remedy(&self) -> String {
        if let Some(remedy) = self.container_cgroup_remedy() {
            return remedy.into();
        }
        if let CgroupHost::None { why } = &self.facts.cgroup
            && !matches!(why, NoCgroup::NotDelegated { .. })
            && let Some(remedy) = why.remedy()
        {
            return remedy.to_owned();
        }
        if self.facts.privilege == Privilege::Root {
            return "boot with systemd, or as root: mount -t cgroup2 none /sys/fs/cgroup && \
                    echo '+memory +pids +cpu' > /sys/fs/cgroup/cgroup.subtree_control"
                .into();
        }
        let mut remedy = String::from(
            "start with: systemd-run --user --scope -p Delegate=yes ironcage run ...; for all controllers, as root: \
             mkdir -p /etc/systemd/system/user@.service.d && printf '[Service]\\nDelegate=cpu cpuset io memory pids\\n' \
             > /etc/systemd/system/user@.service.d/delegate.conf && systemctl daemon-reload",
        );
        if self.place == Place::Wsl2 {
            remedy.push_str("; WSL2 starts systemd with: printf '[boot]\\nsystemd=true\\n' >> /etc/wsl.conf, then in Windows: wsl --shutdown");
        }
        remedy
    }

    const fn container_cgroup_remedy(&self) -> Option<&'static str> {
        match self.place {
            Place::Docker | Place::Podman => Some(
                "start the container with: --cgroupns=private -v /sys/fs/cgroup:/sys/fs/cgroup:rw and an init that creates sub-cgroups, or set --memory, --pids-limit and --cpus on the container itself",
            ),
            Place::Kubernetes => {
                Some("set resources.limits of the pod: they apply to all cages in it together")
            }
            Place::Lxc | Place::Container | Place::Gvisor => Some(
                "set the limits on the container itself: they apply to all cages in it together",
            ),
            Place::Host | Place::Wsl2 => None,
        }
    }
}

const fn what_worked(layer: Layer) -> &'static str {
    match layer {
        Layer::UserNs => "created one and mapped an id",
        Layer::MountNs => "created one, mounted a tmpfs and changed the root",
        Layer::PidNs => "created one and mounted its /proc",
        Layer::NetNs => "created one and brought its loopback up",
        Layer::UtsNs => "created one and set its host name",
        Layer::TimeNs => "created one and started a process in it",
        Layer::Counters => "set the limit on user namespaces to 0 in a user namespace",
        Layer::Seccomp => "installed a filter with a listener",
        Layer::Landlock => "entered a domain",
        _ => "made one",
    }
}

const fn is_by_cgroup(layer: Layer) -> bool {
    matches!(layer, Layer::Memory | Layer::Cpu | Layer::Pids)
}

const fn next_best(layer: Layer) -> &'static str {
    match layer {
        Layer::Memory => "RLIMIT_DATA for each process and a watchdog over the total",
        Layer::Pids => "RLIMIT_NPROC in the user namespace",
        _ => "a set of whole CPUs; no fractions of one",
    }
}

const fn subject_of(layer: Layer) -> Option<Subject> {
    Some(match layer {
        Layer::UserNs => Subject::UserNs,
        Layer::MountNs => Subject::MountNs,
        Layer::PidNs => Subject::PidNs,
        Layer::NetNs => Subject::NetNs,
        Layer::IpcNs => Subject::IpcNs,
        Layer::UtsNs => Subject::UtsNs,
        Layer::CgroupNs => Subject::CgroupNs,
        Layer::TimeNs => Subject::TimeNs,
        Layer::Counters => Subject::Counters,
        Layer::Seccomp => Subject::Seccomp,
        Layer::Landlock => Subject::Landlock,
        _ => return None,
    })
}

/// Why a user namespace was refused, and what to do.
pub(crate) fn userns_failure_hint(facts: &Facts, place: Place, errno: i32) -> String {
    if let Some(blocker) = assess::userns_blocker(facts) {
        return format!("{}; {}", blocker.why, blocker.remedy);
    }
    let errno = Errno::from_raw_os_error(errno);
    if errno == Errno::NOSPC || errno == Errno::USERS {
        return "the limit on user namespaces, or on their depth, is reached; as root: sysctl -w user.max_user_namespaces=15000 \
                (a cage in a cage is denied on purpose)"
            .into();
    }
    if errno == Errno::NOMEM || errno == Errno::AGAIN {
        return "the kernel is out of memory, or the limit on processes (ulimit -u) is reached"
            .into();
    }
    if let Some(remedy) = place.nesting_remedy() {
        return format!(
            "{} does not allow namespaces inside it; {remedy}",
            place.name()
        );
    }
    if matches!(facts.sysctls.apparmor_restrict, Some(1..)) {
        return format!(
            "the AppArmor profile of this program does not allow user namespaces; {}",
            assess::apparmor_remedy()
        );
    }
    if place == Place::Wsl2 {
        return "WSL1 or an old WSL2 kernel; in Windows: wsl --update && wsl --shutdown".into();
    }
    format!(
        "the kernel denied it ({}), probably because of a seccomp filter or a security module around this process; \
         `ironcage doctor` tries each layer",
        errno_text(errno.raw_os_error())
    )
}

#[cfg(test)]
#[path = "diagnosis_tests.rs"]
mod tests;
