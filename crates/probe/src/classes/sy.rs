//! System calls that a sandbox should keep out of reach.

use super::{
    Attempts, Channel, Class, Control, Evidence, Inside, Kind, Observation, Oracle, Probe, Severity,
};
use crate::errno;
use crate::oracle::Decision;
use ironcage_sys::attack::{self, SweepAnswer};
use ironcage_sys::rustix::io::Errno;
use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read;

mod names;

const SY: Probe = Probe {
    kind: Kind::Surface,
    ..Probe::of(Class::Sy)
};
const SECCOMP: &str = "seccomp allow-list";
const NO_NESTING: &str = "no nested user namespaces (seccomp and counters)";
const NO_CAPABILITIES: &str = "no capabilities";

const NEWNS: i32 = ironcage_sys::rustix::thread::UnshareFlags::NEWNS.bits() as i32;
const NEWUSER: i32 = ironcage_sys::rustix::thread::UnshareFlags::NEWUSER.bits() as i32;
const NEWNET: i32 = ironcage_sys::rustix::thread::UnshareFlags::NEWNET.bits() as i32;

pub(crate) const PROBES: &[Probe] = &[
    Probe {
        id: "SY-01",
        title: "make a nested user namespace by unshare",
        canary: "the call's answer",
        layers: &[NO_NESTING],
        references: &["ATT&CK T1611", "user_namespaces(7)"],
        inside: |_| one("unshare(CLONE_NEWUSER)", || attack::share_nothing(NEWUSER)),
        ..SY
    },
    Probe {
        id: "SY-02",
        title: "make a nested user namespace by clone3",
        canary: "the call's answer",
        layers: &[
            "seccomp: clone3 answers ENOSYS, as its flags lie in memory",
            NO_NESTING,
        ],
        references: &["ATT&CK T1611"],
        inside: |_| one("clone3(CLONE_NEWUSER)", attack::clone3_user_namespace),
        ..SY
    },
    Probe {
        id: "SY-03",
        title: "nested: mount a tmpfs",
        canary: "the call's answer",
        layers: &[NO_NESTING, SECCOMP],
        references: &["ATT&CK T1611"],
        inside: |_| {
            nested("mount tmpfs", NEWNS, || {
                attack::mount_fs(c"tmpfs", c"/tmp", None)
            })
        },
        ..SY
    },
    Probe {
        id: "SY-04",
        title: "nested: mount an overlay",
        canary: "the call's answer",
        layers: &[NO_NESTING, SECCOMP],
        references: &["CVE-2023-0386", "ATT&CK T1068"],
        inside: |_| {
            nested("mount overlay", NEWNS, || {
                attack::mount_fs(c"tmpfs", c"/tmp", None)?;
                for name in ["lower", "upper", "work", "merged"] {
                    std::fs::create_dir(format!("/tmp/{name}"))
                        .map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))?;
                }
                let data = c"lowerdir=/tmp/lower,upperdir=/tmp/upper,workdir=/tmp/work";
                attack::mount_fs(c"overlay", c"/tmp/merged", Some(data))
            })
        },
        ..SY
    },
    Probe {
        id: "SY-05",
        title: "nested: reach netfilter",
        canary: "a bound netfilter socket",
        layers: &[NO_NESTING, "seccomp: netlink protocols are an allow-list"],
        references: &["CVE-2024-1086", "ATT&CK T1068"],
        inside: |_| nested("netfilter socket", NEWNET, || attack::netlink_socket(12)),
        ..SY
    },
    Probe {
        id: "SY-06",
        title: "nested: open a file system context",
        canary: "a context's descriptor",
        layers: &[NO_NESTING, SECCOMP],
        references: &["CVE-2022-0185", "ATT&CK T1068"],
        inside: |_| nested("fsopen", NEWNS, || attack::fs_context_open(c"tmpfs")),
        ..SY
    },
    Probe {
        id: "SY-07",
        title: "make an io_uring",
        canary: "the ring's descriptor",
        layers: &[SECCOMP],
        references: &["io_uring_setup(2)", "ATT&CK T1068"],
        inside: |_| one("io_uring_setup", attack::io_uring_setup),
        ..SY
    },
    Probe {
        id: "SY-08",
        kind: Kind::Effect,
        severity: Severity::Critical,
        title: "connect by io_uring, without a connect call",
        canary: "a listener with an abstract name",
        layers: &[SECCOMP, "network namespace"],
        references: &["ATT&CK T1685"],
        inside: |inside| {
            let name = inside.params.abstract_stream.clone();
            one("io_uring connect", || {
                attack::io_uring_connect_abstract(name.as_bytes())
            })
        },
        oracle: Oracle::Hit(Channel::Abstract),
        ..SY
    },
    Probe {
        id: "SY-09",
        title: "call the kernel by its 32-bit door",
        canary: "the answer of getpid by int 0x80",
        layers: &["seccomp: the architecture is checked"],
        references: &["ATT&CK T1685"],
        inside: |_| one("int 0x80", attack::int80_getpid),
        ..SY
    },
    Probe {
        id: "SY-11",
        title: "make a BPF map",
        canary: "the map's descriptor",
        layers: &[SECCOMP, NO_CAPABILITIES],
        references: &["CVE-2021-31440", "ATT&CK T1068"],
        control: Control::Privileged,
        inside: |_| one("bpf", attack::bpf_map_create),
        ..SY
    },
    Probe {
        id: "SY-12",
        severity: Severity::Medium,
        title: "open a performance counter",
        canary: "the counter's descriptor",
        layers: &[SECCOMP],
        references: &["perf_event_open(2)", "ATT&CK T1068"],
        control: Control::Privileged,
        inside: |_| one("perf_event_open", attack::perf_event_open_self),
        ..SY
    },
    Probe {
        id: "SY-13",
        severity: Severity::Medium,
        title: "handle page faults (userfaultfd)",
        canary: "the descriptor",
        layers: &[SECCOMP],
        references: &["userfaultfd(2)", "ATT&CK T1068"],
        inside: |_| one("userfaultfd", attack::userfault_descriptor),
        ..SY
    },
    Probe {
        id: "SY-14",
        severity: Severity::Medium,
        title: "reach the kernel's keyrings",
        canary: "the session keyring's id",
        layers: &[SECCOMP],
        references: &["keyctl(2)", "ATT&CK T1068"],
        inside: |_| {
            // A session without a keyring answers ENOKEY, which comes from the keyrings too.
            one("keyctl", || match attack::keyctl_session_keyring() {
                Err(Errno::NOKEY) => Ok(0),
                other => other,
            })
        },
        ..SY
    },
    Probe {
        id: "SY-15",
        severity: Severity::Low,
        title: "run a program from memory",
        canary: "the program's own exit status",
        layers: &["a list of allowed programs, where one is promised"],
        references: &["ATT&CK T1620"],
        inside: run_from_memory,
        ..SY
    },
    Probe {
        id: "SY-16",
        severity: Severity::Low,
        title: "switch off address randomisation",
        canary: "the call's answer",
        layers: &["seccomp: personality takes ordinary values only"],
        references: &["personality(2)", "ATT&CK T1685"],
        inside: |_| one("personality", attack::personality_set),
        ..SY
    },
    Probe {
        id: "SY-17",
        severity: Severity::Medium,
        title: "reach the local descriptor table",
        canary: "the call's answer",
        layers: &[SECCOMP],
        references: &["modify_ldt(2)", "ATT&CK T1068"],
        inside: |_| one("modify_ldt", attack::modify_ldt_read),
        ..SY
    },
    Probe {
        id: "SY-18",
        severity: Severity::Medium,
        title: "read the kernel's log",
        canary: "bytes of it",
        layers: &[SECCOMP, "no /dev/kmsg"],
        references: &["syslog(2)", "ATT&CK T1082"],
        control: Control::Privileged,
        inside: |_| {
            let mut attempts = Attempts::new();
            attempts.isolated("syslog", attack::kernel_log_size);
            let read = File::open("/dev/kmsg").and_then(|mut file| file.read(&mut [0u8; 512]));
            attempts.note("/dev/kmsg", read);
            attempts.done()
        },
        ..SY
    },
    Probe {
        id: "SY-19",
        severity: Severity::Critical,
        title: "set-user-id programs take effect (NoNewPrivs is 0)",
        canary: "the flag in /proc/self/status",
        layers: &["no_new_privs"],
        references: &["CIS Docker 5.25", "ATT&CK T1548"],
        inside: |_| status_fields(&["NoNewPrivs"], |_, value| value == "0"),
        ..SY
    },
    Probe {
        id: "SY-20",
        severity: Severity::Critical,
        title: "any capability is left, the bounding set included",
        canary: "the sets in /proc/self/status",
        layers: &[NO_CAPABILITIES],
        references: &["CIS Docker 5.3", "ATT&CK T1548"],
        inside: |_| {
            let sets = ["CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"];
            status_fields(&sets, |_, value| !value.trim_start_matches('0').is_empty())
        },
        ..SY
    },
    Probe {
        id: "SY-21",
        title: "there is no system call filter (Seccomp mode 0)",
        canary: "the mode in /proc/self/status",
        layers: &[SECCOMP],
        references: &["CIS Docker 5.21", "ATT&CK T1685"],
        inside: |_| status_fields(&["Seccomp"], |_, value| value == "0"),
        ..SY
    },
    Probe {
        id: "SY-22",
        title: "call the kernel by x32 numbers",
        canary: "the answer of getpid",
        layers: &["seccomp: x32 numbers are refused"],
        references: &["CVE-2014-0038", "ATT&CK T1685"],
        inside: |_| one("x32 getpid", attack::x32_getpid),
        ..SY
    },
    Probe {
        id: "SY-23",
        severity: Severity::Medium,
        title: "every system call against the declared list",
        canary: "the list that the sandbox declares",
        layers: &[SECCOMP],
        references: &["ATT&CK T1082"],
        inside: sweep,
        ..SY
    },
    Probe {
        id: "SY-25",
        severity: Severity::Medium,
        title: "change a call at its entry, after the filter",
        canary: "a nested user namespace made by a changed call",
        layers: &[
            "the kernel runs the filter after the tracer (4.8 and later)",
            NO_NESTING,
        ],
        references: &["seccomp(2)", "ATT&CK T1685"],
        inside: |_| {
            let mut attempts = Attempts::new();
            match attack::ptrace_change_syscall() {
                Ok(0) => attempts.say(true, "the changed call worked"),
                Ok(100) => attempts.say(false, "PTRACE_TRACEME refused"),
                Ok(_) => attempts.say(false, "the changed call was refused"),
                Err(error) => attempts.say(false, format!("ptrace: {}", errno::name(error))),
            }
            attempts.done()
        },
        ..SY
    },
];

fn one<T>(what: &str, attempt: impl FnMut() -> Result<T, Errno>) -> Observation {
    let mut attempts = Attempts::new();
    attempts.isolated(what, attempt);
    attempts.done()
}

/// An attempt in a user namespace of its own, with full capabilities there.
fn nested<T>(what: &str, kinds: i32, mut attempt: impl FnMut() -> Result<T, Errno>) -> Observation {
    let mut attempts = Attempts::new();
    attempts.isolated(what, || {
        let user = ironcage_sys::rustix::process::geteuid().as_raw();
        let group = ironcage_sys::rustix::process::getegid().as_raw();
        attack::share_nothing(NEWUSER | kinds)?;
        // Where these are refused, files have no owner inside, which the attempt may stand.
        let _ = std::fs::write("/proc/self/uid_map", format!("{user} {user} 1"));
        let _ = std::fs::write("/proc/self/setgroups", "deny");
        let _ = std::fs::write("/proc/self/gid_map", format!("{group} {group} 1"));
        attempt()
    });
    attempts.done()
}

fn run_from_memory(inside: &Inside) -> Observation {
    let mut attempts = Attempts::new();
    let Some(program) = attempts.note("read the program", std::fs::read(&inside.program)) else {
        return attempts.done();
    };
    attempts = Attempts::new();
    attempts.isolated("memfd_create and execveat", || {
        match attack::fork_run(|| attack::run_from_memfd(&program, c"--version").raw_os_error()) {
            Ok(attack::ChildEnd::Exited(0)) => Ok(()),
            Ok(attack::ChildEnd::Exited(code)) => Err(Errno::from_raw_os_error(code)),
            Ok(attack::ChildEnd::Killed(_)) => Err(Errno::PERM),
            Err(error) => Err(error),
        }
    });
    attempts.done()
}

fn status_fields(fields: &[&str], open: impl Fn(&str, &str) -> bool) -> Observation {
    let mut attempts = Attempts::new();
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    for line in status.lines() {
        let Some((name, value)) = line.split_once(':') else {
            continue;
        };
        if fields.contains(&name) {
            let value = value.trim();
            attempts.say(open(name, value), format!("{name} {value}"));
        }
    }
    attempts.done()
}

/// What each number answered, as text: `name=errno`.
fn sweep(_: &Inside) -> Observation {
    let mut answers: BTreeMap<String, String> = BTreeMap::new();
    let mut reachable = 0;
    for number in (0..attack::SWEEP_END).filter(|number| !attack::sweep_skips(*number)) {
        let answer = match attack::try_syscall(number) {
            Ok(SweepAnswer::Value) => "ok".to_owned(),
            Ok(SweepAnswer::Error(error)) => errno::name(error),
            Ok(SweepAnswer::Killed(signal)) => errno::signal(signal),
            Ok(SweepAnswer::Blocked) => "blocked".to_owned(),
            Err(error) => format!("fork {}", errno::name(error)),
        };
        if is_kernels(&answer) {
            reachable += 1;
        }
        answers.insert(names::of(number), answer);
    }
    Observation {
        reached: reachable > 0,
        detail: format!("{reachable} system calls are answered by the kernel"),
        data: serde_json::to_string(&answers).unwrap_or_default(),
    }
}

/// Whether an answer came from the kernel and not from a filter. EPERM and ENOSYS may be
/// either's and count for the filter.
fn is_kernels(answer: &str) -> bool {
    !matches!(answer, "EPERM" | "ENOSYS" | "SIGSYS" | "SIGKILL") && !answer.starts_with("fork ")
}

/// Compares what the sweep found with what the sandbox says that it lets through.
pub(crate) fn against_declared(
    evidence: &Evidence,
    declared: Option<&[String]>,
    found: Decision,
) -> Decision {
    let Some(declared) = declared else {
        let detail = format!("{}; no list is declared", found.detail);
        return Decision { detail, ..found };
    };
    let Some(observation) = evidence.observation() else {
        return found;
    };
    let answers: BTreeMap<String, String> =
        serde_json::from_str(&observation.data).unwrap_or_default();
    let reached = answers
        .iter()
        .filter(|(_, answer)| is_kernels(answer))
        .map(|(name, _)| name);
    let beyond: Vec<&str> = reached
        .filter(|name| !declared.contains(name))
        .map(String::as_str)
        .collect();
    let listed = declared.len();
    if beyond.is_empty() && !answers.is_empty() {
        let detail = format!("{}, all of the {listed} declared", observation.detail);
        Decision {
            through: false,
            detail,
        }
    } else {
        let detail = format!("answered but not declared: {}", beyond.join(", "));
        Decision {
            through: true,
            detail,
        }
    }
}

/// The system calls that the output of `plan --json` allows, with or without conditions.
pub(crate) fn declared_in(plan: &[u8]) -> Option<Vec<String>> {
    #[derive(serde::Deserialize)]
    struct Plan {
        seccomp: Filter,
    }
    #[derive(serde::Deserialize)]
    struct Filter {
        rules: Vec<Rule>,
    }
    #[derive(serde::Deserialize)]
    struct Rule {
        number: u32,
        verdict: String,
    }
    let plan: Plan = serde_json::from_slice(plan).ok()?;
    let allowed = plan
        .seccomp
        .rules
        .into_iter()
        .filter(|rule| rule.verdict.starts_with("allow"));
    Some(allowed.map(|rule| names::of(rule.number)).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_that_is_answered_but_not_declared_is_found() {
        let observation = Observation {
            reached: true,
            detail: "2".into(),
            data: r#"{"read":"EBADF","mount":"EFAULT","bpf":"EPERM"}"#.into(),
        };
        let text = serde_json::to_string(&observation).unwrap();
        let output = format!("{}{text}\n", crate::inside::OBSERVED).into_bytes();
        let evidence = Evidence {
            output,
            ..Evidence::default()
        };
        let decide = |declared: &[&str]| {
            let declared: Vec<String> = declared.iter().map(ToString::to_string).collect();
            let start = Decision {
                through: true,
                detail: String::new(),
            };
            against_declared(&evidence, Some(&declared), start)
        };
        assert!(decide(&["read"]).through);
        assert!(!decide(&["read", "mount"]).through);
    }

    #[test]
    fn a_plan_declares_what_it_allows_and_not_what_it_answers_with_an_error() {
        let plan = br#"{"seccomp":{"rules":[
            {"number":0,"verdict":"allow"},
            {"number":16,"verdict":"allow if arg1 not in [5412], else error 1"},
            {"number":435,"verdict":"error 38"}]}}"#;
        assert_eq!(declared_in(plan).unwrap(), [names::of(0), names::of(16)]);
        assert!(declared_in(b"{}").is_none());
    }
}
