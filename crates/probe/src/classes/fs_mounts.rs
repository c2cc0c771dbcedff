//! The mounts that make the view: taking them away, remounting them, going around them.

use super::{
    Attempts, Canary, Class, Control, Inside, Kind, Observation, Oracle, Probe, Setup, Severity,
};
use crate::inside::publish;
use ironcage_sys::attack::{self, ChildEnd, FileHandle};
use ironcage_sys::rustix::fs::{
    CWD, FileType, Mode, OFlags, StatVfsMountFlags, mknodat, open, statvfs,
};
use std::ffi::CString;
use std::fs::File;
use std::io::Read;
use std::os::fd::AsFd;
use std::path::Path;

const FS: Probe = Probe::of(Class::Fs);
const NO_CAPABILITIES: &str = "no capabilities";
const SECCOMP: &str = "seccomp";

pub(crate) const PROBES: &[Probe] = &[
    Probe {
        id: "FS-05r",
        title: "reach a hidden directory from a nested user and mount namespace",
        canary: "a file with a nonce under a mask",
        layers: &[
            "locked mounts",
            "no nested user namespaces (seccomp, counters)",
        ],
        references: &["ATT&CK T1611"],
        setup: Setup::Mask,
        control: Control::PrivilegedMounts,
        inside: nested_unmask,
        oracle: Oracle::Nonce(Canary::Masked),
        ..FS
    },
    Probe {
        id: "FS-08",
        severity: Severity::Critical,
        title: "open a secret by its file handle",
        canary: "~/.ssh/id_canary with a nonce, and its real handle",
        layers: &[NO_CAPABILITIES, SECCOMP],
        references: &["ATT&CK T1611", "open_by_handle_at(2)"],
        control: Control::Privileged,
        inside: open_handle,
        oracle: Oracle::Nonce(Canary::SshKey),
        ..FS
    },
    Probe {
        id: "FS-11",
        kind: Kind::Surface,
        severity: Severity::Medium,
        title: "the workspace allows set-user-id programs or device nodes",
        canary: "the mount's flags",
        layers: &["mounts are nosuid and nodev"],
        references: &["ATT&CK T1548.001"],
        inside: mount_flags,
        ..FS
    },
    Probe {
        id: "FS-12",
        severity: Severity::Critical,
        title: "make a device node in the workspace and open it",
        canary: "a node that opens",
        layers: &[NO_CAPABILITIES, "nodev", SECCOMP],
        references: &["ATT&CK T1611"],
        control: Control::Privileged,
        inside: device_node,
        oracle: Oracle::Reached,
        ..FS
    },
    Probe {
        id: "FS-13",
        severity: Severity::Critical,
        title: "remount a read-only mount writable and write",
        canary: "a granted directory, compared outside",
        layers: &[NO_CAPABILITIES, SECCOMP, "locked mounts"],
        references: &["ATT&CK T1611"],
        setup: Setup::ReadGrant,
        control: Control::PrivilegedMounts,
        inside: remount,
        oracle: Oracle::Seen(|stage, _| {
            let path = stage.params.granted.join("created.txt");
            path.exists().then(|| format!("{} exists", path.display()))
        }),
        ..FS
    },
    Probe {
        id: "FS-14",
        severity: Severity::Critical,
        title: "unmount what hides a directory",
        canary: "a file with a nonce under a mask",
        layers: &[NO_CAPABILITIES, SECCOMP, "locked mounts"],
        references: &["CVE-2025-31133", "ATT&CK T1611"],
        setup: Setup::Mask,
        control: Control::PrivilegedMounts,
        inside: unmount,
        oracle: Oracle::Nonce(Canary::Masked),
        ..FS
    },
];

const NEWNS: i32 = ironcage_sys::rustix::thread::UnshareFlags::NEWNS.bits() as i32;
const NEWUSER: i32 = ironcage_sys::rustix::thread::UnshareFlags::NEWUSER.bits() as i32;

fn text(path: &Path) -> CString {
    CString::new(path.as_os_str().as_encoded_bytes()).unwrap_or_default()
}

fn try_unmask(attempts: &mut Attempts, inside: &Inside) {
    let masked = text(&inside.params.masked);
    attempts.note("umount2", attack::unmount_detached(&masked));
    let secret = inside.params.masked.join("secret");
    attempts.read("read under the mask", &secret);
    // A bind of the parent without what is mounted below shows what the mask covers.
    let elsewhere = inside.params.workspace.join("elsewhere");
    if std::fs::create_dir(&elsewhere).is_ok() {
        let bound = attack::bind_mount(&text(&inside.params.workspace), &text(&elsewhere), false);
        if attempts.note("bind the parent", bound).is_some() {
            attempts.read("read by the bind", elsewhere.join("masked/secret"));
        }
    }
}

fn nested_unmask(inside: &Inside) -> Observation {
    // In a child: entering a user namespace changes the caller for good. What is read there
    // comes out with the child's own observation.
    let nested = |flags: i32, what: &str| {
        let end = attack::fork_run(|| {
            let mut attempts = Attempts::new();
            if attempts.note(what, attack::share_nothing(flags)).is_some() {
                attempts = Attempts::new();
                try_unmask(&mut attempts, inside);
            }
            let observation = attempts.done();
            publish(&observation);
            i32::from(!observation.reached)
        });
        end.unwrap_or(ChildEnd::Exited(1))
    };
    let ends = [
        (
            "user and mount namespace",
            nested(NEWUSER | NEWNS, "unshare(NEWUSER|NEWNS)"),
        ),
        ("mount namespace", nested(NEWNS, "unshare(NEWNS)")),
    ];
    let mut attempts = Attempts::new();
    for (what, end) in ends {
        attempts.say(end == ChildEnd::Exited(0), format!("{what}: {end:?}"));
    }
    attempts.done()
}

fn unmount(inside: &Inside) -> Observation {
    let mut attempts = Attempts::new();
    try_unmask(&mut attempts, inside);
    attempts.done()
}

fn open_handle(inside: &Inside) -> Observation {
    let mut attempts = Attempts::new();
    let handle = FileHandle {
        kind: inside.params.handle.kind,
        bytes: inside.params.handle.bytes.clone(),
    };
    // Any descriptor on the same file system will do: the workspace lies on it.
    for place in [
        inside.params.workspace.as_path(),
        Path::new("/"),
        Path::new("/usr"),
    ] {
        let Ok(mount) = File::open(place) else {
            continue;
        };
        let opened = attack::open_by_handle(mount.as_fd(), &handle);
        if let Some(file) = attempts.note("open_by_handle_at", opened) {
            let mut content = Vec::new();
            let read = File::from(file).read_to_end(&mut content);
            if attempts.note("read", read).is_some() {
                attempts.carry(&content);
            }
        }
    }
    attempts.done()
}

fn mount_flags(inside: &Inside) -> Observation {
    let mut attempts = Attempts::new();
    if let Ok(flags) = statvfs(&inside.params.workspace).map(|answer| answer.f_flag) {
        let nosuid = flags.contains(StatVfsMountFlags::NOSUID);
        let nodev = flags.contains(StatVfsMountFlags::NODEV);
        attempts.say(!nosuid, if nosuid { "nosuid" } else { "suid" });
        attempts.say(!nodev, if nodev { "nodev" } else { "dev" });
    }
    attempts.done()
}

fn device_node(inside: &Inside) -> Observation {
    let mut attempts = Attempts::new();
    let zero = ironcage_sys::rustix::fs::makedev(1, 5);
    let nodes = [
        ("character 1:5", FileType::CharacterDevice, zero),
        (
            "block 7:0",
            FileType::BlockDevice,
            attack::loopback_device_number(),
        ),
    ];
    for (what, kind, number) in nodes {
        for directory in [
            inside.params.workspace.as_path(),
            Path::new("/tmp"),
            Path::new("/dev"),
        ] {
            let path = directory.join(format!("node-{}", what.len()));
            let made = mknodat(CWD, &path, kind, Mode::from_raw_mode(0o666), number);
            let Ok(()) = made else {
                attempts.note(&format!("mknod {what}"), made);
                continue;
            };
            let opened = open(&path, OFlags::RDONLY | OFlags::NONBLOCK, Mode::empty());
            attempts.note(&format!("open {what}"), opened);
            // Gone again wherever it was made.
            let _ = std::fs::remove_file(&path);
        }
    }
    attempts.done()
}

fn remount(inside: &Inside) -> Observation {
    let mut attempts = Attempts::new();
    // The stage's mount only: nothing of the machine is ever made writable.
    let granted = text(&inside.params.granted);
    attempts.note("remount", attack::remount_writable(&granted));
    attempts.note("mount_setattr", attack::clear_read_only(&granted));
    let created = inside.params.granted.join("created.txt");
    attempts.note("create", std::fs::write(&created, "x"));
    attempts.done()
}
