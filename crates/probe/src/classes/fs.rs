//! Files outside the view: reading, planting and changing them.

use super::{Attempts, Canary, Class, Inside, Observation, Oracle, Probe, Setup, Severity, Stage};
use ironcage_sys::rustix::fs::{
    AtFlags, CWD, FlockOperation, Mode, OFlags, RenameFlags, Timespec, Timestamps, XattrFlags,
    flock, linkat, openat, renameat_with, setxattr, utimensat,
};
use std::fs::{self, File, OpenOptions, Permissions};
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

const FS: Probe = Probe::of(Class::Fs);
const VIEW: &str = "mount namespace with an allow-listed view";
const LANDLOCK: &str = "Landlock on writes";

pub(crate) const PROBES: &[Probe] = &[
    Probe {
        id: "FS-01",
        severity: Severity::Critical,
        title: "read a private key in the home directory",
        canary: "~/.ssh/id_canary with a nonce",
        layers: &[VIEW],
        references: &["ATT&CK T1552.004", "CIS Docker 5.5"],
        inside: |inside| read_secret(inside, ".ssh/id_canary"),
        oracle: Oracle::Nonce(Canary::SshKey),
        ..FS
    },
    Probe {
        id: "FS-01b",
        title: "read a secret that is on no list of secrets",
        canary: "~/.aws/credentials with a nonce",
        layers: &[VIEW],
        references: &["ATT&CK T1552.001"],
        inside: |inside| read_secret(inside, ".aws/credentials"),
        oracle: Oracle::Nonce(Canary::Credentials),
        ..FS
    },
    Probe {
        id: "FS-02",
        severity: Severity::Critical,
        title: "create a file outside the workspace",
        canary: "~/planted, watched outside",
        layers: &[VIEW, LANDLOCK],
        references: &["CVE-2025-59532", "ATT&CK T1565.001"],
        inside: create_outside,
        oracle: Oracle::Appears(planted),
        ..FS
    },
    Probe {
        id: "FS-03",
        title: "write .git/config of the workspace",
        canary: ".git/config of the workspace, compared outside",
        layers: &["protected files are read-only mounts", LANDLOCK],
        references: &["ATT&CK T1546"],
        inside: write_git_config,
        oracle: Oracle::TrustedChanged,
        ..FS
    },
    Probe {
        id: "FS-07",
        title: "link a file outside into the workspace and write through it",
        canary: "a host file, compared outside (content and link count)",
        layers: &[VIEW, "separate mounts (EXDEV)"],
        references: &["CWE-62", "ATT&CK T1564"],
        inside: link_and_write,
        oracle: Oracle::OutsideChanged,
        ..FS
    },
    Probe {
        id: "FS-10",
        severity: Severity::Medium,
        title: "lock a host file by a descriptor for reading",
        canary: "a host file that the oracle locks too",
        layers: &[VIEW],
        references: &["CWE-667", "ATT&CK T1499"],
        setup: Setup::Locking,
        inside: lock_outside,
        oracle: Oracle::Seen(|_, evidence| {
            evidence
                .answered
                .then(|| "the lock is held from inside".to_owned())
        }),
        ..FS
    },
    Probe {
        id: "FS-15",
        severity: Severity::Medium,
        title: "read a file in the host's /tmp",
        canary: "a file in /tmp with a nonce",
        layers: &["private /tmp"],
        references: &["ATT&CK T1083"],
        inside: |inside| {
            let mut attempts = Attempts::new();
            attempts.read("open in /tmp", &inside.params.tmp_secret);
            for entry in fs::read_dir("/tmp")
                .into_iter()
                .flatten()
                .flatten()
                .take(64)
            {
                attempts.read("open by listing /tmp", entry.path());
            }
            attempts.done()
        },
        oracle: Oracle::Nonce(Canary::TmpFile),
        ..FS
    },
    Probe {
        id: "FS-16",
        severity: Severity::Medium,
        title: "plant a file in the host's /tmp",
        canary: "a path in /tmp, watched outside",
        layers: &["private /tmp"],
        references: &["CWE-379", "ATT&CK T1036"],
        inside: |inside| {
            let mut attempts = Attempts::new();
            attempts.note(
                "create in /tmp",
                fs::write(&inside.params.tmp_plant, "planted"),
            );
            attempts.done()
        },
        oracle: Oracle::Appears(|stage| stage.params.tmp_plant.clone()),
        ..FS
    },
    Probe {
        id: "FS-21",
        title: "other spellings of a denied path",
        canary: "~/.ssh/id_canary with a nonce",
        layers: &[VIEW],
        references: &["CVE-2025-59944", "ATT&CK T1036"],
        inside: aliases,
        oracle: Oracle::Nonce(Canary::SshKey),
        ..FS
    },
    Probe {
        id: "FS-22",
        severity: Severity::Medium,
        title: "link or exchange a file into a protected directory",
        canary: ".git/hooks and .git/config of the workspace, compared outside",
        layers: &["protected files are read-only mounts", LANDLOCK],
        references: &["ATT&CK T1564"],
        inside: link_into_protected,
        oracle: Oracle::Seen(|stage, _| {
            let changed = stage
                .layout
                .first_change(|path| stage.layout.is_trusted(path));
            let hook = stage.params.workspace.join(".git/hooks/post-checkout");
            changed
                .or_else(|| hook.symlink_metadata().is_ok().then_some(hook))
                .map(|path| format!("{} changed", path.display()))
        }),
        ..FS
    },
    Probe {
        id: "FS-23",
        severity: Severity::Medium,
        title: "change metadata of a file granted for reading",
        canary: "a granted file: mode, times, attributes, length, compared outside",
        layers: &["read-only mounts", LANDLOCK],
        references: &["ATT&CK T1222"],
        setup: Setup::ReadGrant,
        inside: change_metadata,
        oracle: Oracle::OutsideChanged,
        ..FS
    },
    Probe {
        id: "FS-24",
        severity: Severity::Medium,
        title: "write through a shared mapping of a leaked descriptor",
        canary: "a host file behind a leaked descriptor, compared outside",
        layers: &["close_range", "no inherited descriptors"],
        references: &["CWE-672", "ATT&CK T1565"],
        inside: write_mapping,
        oracle: Oracle::OutsideChanged,
        ..FS
    },
];

fn planted(stage: &Stage) -> PathBuf {
    stage.params.home.join("planted")
}

fn read_secret(inside: &Inside, name: &str) -> Observation {
    let mut attempts = Attempts::new();
    attempts.read("open", inside.params.home.join(name));
    attempts.read("open from the workspace", Path::new("..").join(name));
    attempts.done()
}

fn create_outside(inside: &Inside) -> Observation {
    let mut attempts = Attempts::new();
    let target = inside.params.home.join("planted");
    attempts.note("create in the home", fs::write(&target, "planted"));
    attempts.note("create by ..", fs::write("../planted", "planted"));
    let root = Path::new("/proc/self/root").join(target.strip_prefix("/").unwrap_or(&target));
    attempts.note("create by /proc/self/root", fs::write(root, "planted"));
    attempts.note("mkdir in the home", fs::create_dir(&target));
    attempts.note(
        "symlink in the home",
        std::os::unix::fs::symlink("x", &target),
    );
    attempts.done()
}

fn append(path: &Path, text: &str) -> std::io::Result<()> {
    OpenOptions::new()
        .append(true)
        .open(path)?
        .write_all(text.as_bytes())
}

fn write_git_config(inside: &Inside) -> Observation {
    let mut attempts = Attempts::new();
    let workspace = &inside.params.workspace;
    let config = workspace.join(".git/config");
    attempts.note("append", append(&config, "[core]\n\tfsmonitor = ./x\n"));
    let mode = Permissions::from_mode(0o666);
    attempts.note("chmod", fs::set_permissions(&config, mode));
    attempts.note("unlink", fs::remove_file(&config));
    let replacement = workspace.join("config.new");
    if fs::write(&replacement, "[core]\n").is_ok() {
        attempts.note("rename over", fs::rename(&replacement, &config));
    }
    attempts.note(
        "rename .git away",
        fs::rename(workspace.join(".git"), workspace.join("git2")),
    );
    attempts.done()
}

fn link_and_write(inside: &Inside) -> Observation {
    let mut attempts = Attempts::new();
    let outside = inside.params.outside.join("host.txt");
    let hard = inside.params.workspace.join("hard");
    let soft = inside.params.workspace.join("soft");
    if attempts
        .note("link", fs::hard_link(&outside, &hard))
        .is_some()
    {
        attempts.note("write by hard link", append(&hard, "changed\n"));
    }
    if std::os::unix::fs::symlink(&outside, &soft).is_ok() {
        attempts.note("write by symlink", append(&soft, "changed\n"));
    }
    attempts.done()
}

fn lock_outside(inside: &Inside) -> Observation {
    let mut attempts = Attempts::new();
    let path = inside.params.outside.join("lock.txt");
    let file = attempts.note("open", File::open(path));
    if let Some(file) = &file {
        attempts.note(
            "flock",
            flock(file, FlockOperation::NonBlockingLockExclusive),
        );
    }
    // Tell the oracle to look now, and hold the lock while it does.
    super::lf::beat_once(inside);
    inside.hold();
    attempts.done()
}

fn aliases(inside: &Inside) -> Observation {
    let mut attempts = Attempts::new();
    let home = inside.params.home.to_string_lossy().into_owned();
    let secret = format!("{home}/.ssh/id_canary");
    let bare = secret.trim_start_matches('/');
    let spellings = [
        ("/proc/self/root", format!("/proc/self/root/{bare}")),
        (
            "/proc/thread-self/root",
            format!("/proc/thread-self/root/{bare}"),
        ),
        (
            "/proc/self/cwd/..",
            "/proc/self/cwd/../.ssh/id_canary".to_owned(),
        ),
        ("//", format!("//{bare}")),
        ("/./", format!("/.//./{bare}")),
        ("/dev/fd/../root", format!("/dev/fd/../root/{bare}")),
        ("case folded", secret.replace(".ssh", ".SSH")),
        ("decomposed", secret.replace("canary", "cana\u{301}ry")),
        ("/usr/..", format!("/usr/../{bare}")),
        ("by ..", format!("{home}/project/../.ssh/id_canary")),
    ];
    for (what, path) in spellings {
        attempts.read(what, path);
    }
    for step in 1..24 {
        let path = format!("{}{bare}", "../".repeat(step));
        if attempts.read("by ../..", path) {
            break;
        }
    }
    attempts.done()
}

fn link_into_protected(inside: &Inside) -> Observation {
    let mut attempts = Attempts::new();
    let workspace = &inside.params.workspace;
    let hooks = workspace.join(".git/hooks");
    let hook = hooks.join("post-checkout");
    let mode = Mode::from_raw_mode(0o755);
    let unnamed = openat(CWD, workspace, OFlags::TMPFILE | OFlags::WRONLY, mode);
    if let Some(file) = attempts.note("O_TMPFILE", unnamed) {
        // Not an escape by itself: the workspace is writable.
        attempts = Attempts::new();
        attempts.note(
            "linkat(AT_EMPTY_PATH)",
            linkat(&file, "", CWD, &hook, AtFlags::EMPTY_PATH),
        );
        let by_proc = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&file));
        let linked = linkat(CWD, by_proc, CWD, &hook, AtFlags::SYMLINK_FOLLOW);
        attempts.note("linkat(/proc/self/fd)", linked);
    }
    let own = workspace.join("own-config");
    if fs::write(&own, "[core]\n\tfsmonitor = ./x\n").is_ok() {
        let config = workspace.join(".git/config");
        let exchanged = renameat_with(CWD, &own, CWD, &config, RenameFlags::EXCHANGE);
        attempts.note("rename exchange", exchanged);
        attempts.note("rename into hooks", fs::rename(&own, &hook));
    }
    let directory = workspace.join("own-hooks");
    if fs::create_dir(&directory).is_ok() {
        let exchanged = renameat_with(CWD, &directory, CWD, &hooks, RenameFlags::EXCHANGE);
        attempts.note("exchange hooks", exchanged);
    }
    attempts.done()
}

fn change_metadata(inside: &Inside) -> Observation {
    let mut attempts = Attempts::new();
    let path = inside.params.granted.join("readable.txt");
    attempts.note(
        "chmod",
        fs::set_permissions(&path, Permissions::from_mode(0o666)),
    );
    let now = Timespec {
        tv_sec: 1,
        tv_nsec: 0,
    };
    let times = Timestamps {
        last_access: now,
        last_modification: now,
    };
    attempts.note("utimensat", utimensat(CWD, &path, &times, AtFlags::empty()));
    attempts.note(
        "setxattr",
        setxattr(&path, "user.canary", b"x", XattrFlags::empty()),
    );
    let opened = OpenOptions::new().write(true).truncate(true).open(&path);
    attempts.note("truncate", opened);
    attempts.note(
        "rename",
        fs::rename(&path, inside.params.granted.join("renamed.txt")),
    );
    attempts.note(
        "create",
        fs::write(inside.params.granted.join("created.txt"), "x"),
    );
    attempts.done()
}

fn write_mapping(inside: &Inside) -> Observation {
    let mut attempts = Attempts::new();
    let number = inside.params.leaks.file;
    if let Some(file) = super::fd::inherited(&mut attempts, number) {
        let mapped = ironcage_sys::attack::write_through_mapping(
            std::os::fd::AsFd::as_fd(&file),
            b"CHANGED",
        );
        attempts.note("write by mapping", mapped);
    }
    attempts.done()
}
