//! The trials of `ironcage doctor`: the steps that a throw-away child takes for each subject.

use crate::assess::Facts;
use crate::{CgroupHost, Privilege};
use ironcage_sys::faults;
use ironcage_sys::host::errno_text;
use ironcage_sys::trial::{self, Step};
use std::collections::BTreeMap;
use std::ffi::CString;
use std::fs;
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

const NEW_MOUNT: u32 = ironcage_sys::rustix::thread::UnshareFlags::NEWNS.bits();
const NEW_CGROUP: u32 = ironcage_sys::rustix::thread::UnshareFlags::NEWCGROUP.bits();
const NEW_UTS: u32 = ironcage_sys::rustix::thread::UnshareFlags::NEWUTS.bits();
const NEW_IPC: u32 = ironcage_sys::rustix::thread::UnshareFlags::NEWIPC.bits();
const NEW_USER: u32 = ironcage_sys::rustix::thread::UnshareFlags::NEWUSER.bits();
const NEW_PID: u32 = ironcage_sys::rustix::thread::UnshareFlags::NEWPID.bits();
const NEW_NET: u32 = ironcage_sys::rustix::thread::UnshareFlags::NEWNET.bits();
const NEW_TIME: u32 = ironcage_sys::rustix::thread::UnshareFlags::NEWTIME.bits();
const NETFILTER: i32 = 12;
const PRIVATE: u64 = (1 << 14) | (1 << 18);
const NO_SUID_DEV: u64 = 2 | 4;

/// A thing that is tried.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Subject {
    UserNs,
    MountNs,
    PidNs,
    NetNs,
    IpcNs,
    UtsNs,
    CgroupNs,
    TimeNs,
    Counters,
    Seccomp,
    SeccompNotify,
    Landlock,
    CgroupGroup,
    Overlay,
    IdMappedMounts,
    Delivery,
}

impl Subject {
    const IN_CHILD: [Subject; 13] = [
        Subject::UserNs,
        Subject::MountNs,
        Subject::PidNs,
        Subject::NetNs,
        Subject::IpcNs,
        Subject::UtsNs,
        Subject::CgroupNs,
        Subject::TimeNs,
        Subject::Counters,
        Subject::Seccomp,
        Subject::SeccompNotify,
        Subject::Landlock,
        Subject::IdMappedMounts,
    ];
}

/// How a trial went.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum TrialResult {
    Worked,
    /// A step was refused.
    Refused {
        /// What was being done.
        doing: String,
        errno: i32,
    },
    NotTried {
        why: String,
    },
}

pub(crate) fn run(facts: &Facts, state: &Path, delivery: &[u8]) -> BTreeMap<Subject, TrialResult> {
    let mut results: BTreeMap<Subject, TrialResult> = Subject::IN_CHILD
        .into_iter()
        .map(|subject| (subject, run_one(facts, &steps(facts, subject), subject)))
        .collect();
    results.insert(Subject::Overlay, overlay(facts, state));
    results.insert(Subject::Delivery, deliver(facts, delivery));
    results.insert(Subject::CgroupGroup, make_group(&facts.cgroup));
    results
}

fn run_one(facts: &Facts, steps: &[Step], subject: Subject) -> TrialResult {
    if subject == Subject::IdMappedMounts && facts.privilege != Privilege::Root {
        return TrialResult::NotTried {
            why: "only root uses them; here the agent has the user's own id".into(),
        };
    }
    match trial::attempt(steps) {
        Ok(None) => TrialResult::Worked,
        Ok(Some(failure)) => TrialResult::Refused {
            doing: steps.get(failure.step).map_or_else(String::new, in_words),
            errno: failure.errno,
        },
        Err(error) => TrialResult::NotTried {
            why: error.to_string(),
        },
    }
}

/// Whether every connection of a network namespace can be led to one socket.
fn deliver(facts: &Facts, messages: &[u8]) -> TrialResult {
    if faults::lacks("nf_tables") {
        return TrialResult::NotTried {
            why: "this test build treats the host as one without nf_tables".into(),
        };
    }
    let mut steps = user_namespace(facts);
    steps.push(Step::Unshare(NEW_NET));
    steps.push(Step::Netlink {
        protocol: NETFILTER,
        messages: messages.to_vec(),
    });
    run_one(facts, &steps, Subject::Delivery)
}

/// The steps for a subject; those in a user namespace begin with it.
fn steps(facts: &Facts, subject: Subject) -> Vec<Step> {
    let in_user_namespace = |more: Vec<Step>| {
        let mut all = user_namespace(facts);
        all.extend(more);
        all
    };
    match subject {
        Subject::UserNs => user_namespace(facts),
        Subject::MountNs => in_user_namespace(vec![
            Step::Unshare(NEW_MOUNT),
            private_mounts(),
            mount(c"tmpfs", c"/tmp", NO_SUID_DEV, c"mode=755"),
            Step::PivotRoot(c"/tmp".into()),
        ]),
        Subject::PidNs => in_user_namespace(vec![
            Step::Unshare(NEW_MOUNT | NEW_PID),
            Step::Fork,
            private_mounts(),
            mount(c"proc", c"/proc", NO_SUID_DEV | 8, c""),
        ]),
        Subject::NetNs => in_user_namespace(vec![Step::Unshare(NEW_NET), Step::LoopbackUp]),
        Subject::IpcNs => in_user_namespace(vec![Step::Unshare(NEW_IPC)]),
        Subject::UtsNs => in_user_namespace(vec![
            Step::Unshare(NEW_UTS),
            Step::SetHostName(c"cage".into()),
        ]),
        Subject::CgroupNs => in_user_namespace(vec![Step::Unshare(NEW_CGROUP)]),
        Subject::TimeNs => in_user_namespace(vec![Step::Unshare(NEW_TIME), Step::Fork]),
        Subject::Counters => {
            in_user_namespace(vec![write(c"/proc/sys/user/max_user_namespaces", "0")])
        }
        Subject::Seccomp => vec![Step::NoNewPrivileges, Step::Seccomp { listener: false }],
        Subject::SeccompNotify => vec![Step::NoNewPrivileges, Step::Seccomp { listener: true }],
        Subject::Landlock => vec![Step::NoNewPrivileges, Step::Landlock],
        // The current directory: whether a file system can do it differs from one to the next.
        Subject::IdMappedMounts => vec![Step::IdMappedMount(c".".into())],
        Subject::Overlay | Subject::CgroupGroup | Subject::Delivery => Vec::new(),
    }
}

/// A copy-on-write view of the current directory with changes in the state directory: whether
/// two file systems can do that differs from one pair to the next.
fn overlay(facts: &Facts, state: &Path) -> TrialResult {
    let scratch = state.join(format!("doctor-{}", std::process::id()));
    let not_tried = |why: String| TrialResult::NotTried { why };
    // Of the kernel's option string, not of overlayfs.
    if scratch
        .as_os_str()
        .as_bytes()
        .iter()
        .any(|byte| b",:\\".contains(byte))
    {
        return not_tried(format!(
            "cannot use {} in a mount option",
            scratch.display()
        ));
    }
    let made = ["upper", "work", "merged"]
        .iter()
        .try_for_each(|name| fs::create_dir_all(scratch.join(name)));
    let result = match made {
        Err(error) => not_tried(format!("{}: {error}", scratch.display())),
        Ok(()) => overlay_in(facts, &scratch),
    };
    // What the kernel made in it is empty and closed; if it stays, it does no harm.
    let closed = scratch.join("work/work");
    let _ = fs::set_permissions(closed, fs::Permissions::from_mode(0o700));
    let _ = fs::remove_dir_all(&scratch);
    result
}

fn overlay_in(facts: &Facts, scratch: &Path) -> TrialResult {
    let shown = scratch.display();
    let options = format!("lowerdir=.,upperdir={shown}/upper,workdir={shown}/work,userxattr");
    let (Ok(target), Ok(options)) = (
        CString::new(scratch.join("merged").into_os_string().into_vec()),
        CString::new(options),
    ) else {
        return TrialResult::NotTried {
            why: "the path of the state directory contains a NUL".into(),
        };
    };
    let mut steps = user_namespace(facts);
    steps.extend([
        Step::Unshare(NEW_MOUNT),
        private_mounts(),
        mount(c"overlay", &target, NO_SUID_DEV, &options),
    ]);
    run_one(facts, &steps, Subject::Overlay)
}

fn user_namespace(facts: &Facts) -> Vec<Step> {
    vec![
        Step::Unshare(NEW_USER),
        write(c"/proc/self/setgroups", "deny"),
        write(c"/proc/self/uid_map", &format!("1000 {} 1", facts.uid)),
        write(c"/proc/self/gid_map", &format!("1000 {} 1", facts.gid)),
    ]
}

fn write(path: &std::ffi::CStr, text: &str) -> Step {
    Step::Write {
        path: path.into(),
        bytes: text.into(),
    }
}

fn mount(
    kind: &std::ffi::CStr,
    target: &std::ffi::CStr,
    flags: u64,
    options: &std::ffi::CStr,
) -> Step {
    Step::Mount {
        source: kind.into(),
        target: target.into(),
        kind: kind.into(),
        flags,
        options: options.into(),
    }
}

fn private_mounts() -> Step {
    Step::Mount {
        source: c"none".into(),
        target: c"/".into(),
        kind: CString::default(),
        flags: PRIVATE,
        options: CString::default(),
    }
}

fn in_words(step: &Step) -> String {
    let shown = |text: &CString| text.to_string_lossy().into_owned();
    match step {
        Step::Unshare(_) => "creating the namespace".into(),
        Step::Fork => "starting a process in it".into(),
        Step::Write { path, .. } => format!("writing {}", shown(path)),
        Step::MakeDirectory(path) => format!("creating {}", shown(path)),
        Step::Mount { kind, target, .. } if kind.is_empty() => {
            format!("making mounts below {} private", shown(target))
        }
        Step::Mount { kind, target, .. } => {
            format!("mounting {} on {}", shown(kind), shown(target))
        }
        Step::PivotRoot(_) => "changing the root".into(),
        Step::SetHostName(_) => "setting the host name".into(),
        Step::LoopbackUp => "bringing the loopback interface up".into(),
        Step::Netlink { .. } => "asking nf_tables to deliver every connection".into(),
        Step::IdMappedMount(_) => "mapping ids on a copy of the current directory's mount".into(),
        Step::NoNewPrivileges => "setting no_new_privs".into(),
        Step::Landlock => "entering a Landlock domain".into(),
        Step::Seccomp { .. } => "installing a filter".into(),
    }
}

/// Makes a group and removes it again.
fn make_group(host: &CgroupHost) -> TrialResult {
    let parents: Vec<&Path> = match host {
        CgroupHost::V2 { parent, .. } => vec![parent],
        CgroupHost::V1(v1) => v1.controllers.values().map(|path| path.as_path()).collect(),
        CgroupHost::None { why } => {
            let why = why.with_remedy();
            return TrialResult::NotTried { why };
        }
    };
    for parent in parents {
        let group = parent.join(format!("ironcage-doctor-{}", std::process::id()));
        let made = fs::create_dir(&group).and_then(|()| fs::remove_dir(&group));
        if let Err(error) = made {
            return TrialResult::Refused {
                doing: format!("creating {}", group.display()),
                errno: error.raw_os_error().unwrap_or(0),
            };
        }
    }
    TrialResult::Worked
}

/// The message of a failed trial.
pub(crate) fn refusal(doing: &str, errno: i32) -> String {
    format!("{doing} failed: {}", errno_text(errno))
}
