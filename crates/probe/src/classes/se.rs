//! Secrets of the host and of the sandbox itself, and what tells which host it is.

use super::{
    Attempts, Canary, Class, Evidence, Inside, Kind, Observation, Oracle, Probe, Setup, Severity,
    Stage,
};
use crate::probe::ProxyRules;
use ironcage_sys::attack;
use std::fs;

const SE: Probe = Probe::of(Class::Se);
const VIEW: &str = "mount namespace with an allow-listed view";

pub(crate) const PROBES: &[Probe] = &[
    Probe {
        id: "SE-01",
        severity: Severity::Critical,
        title: "secrets in the launcher's environment",
        canary: "variables with a nonce",
        layers: &["the environment is an allow-list"],
        references: &["ATT&CK T1552.007"],
        inside: |_| {
            let mut attempts = Attempts::new();
            for (name, value) in std::env::vars_os() {
                let line = format!("{}={}", name.to_string_lossy(), value.to_string_lossy());
                attempts.carry(line.as_bytes());
            }
            attempts.read("/proc/self/environ", "/proc/self/environ");
            attempts.done()
        },
        oracle: Oracle::Nonce(Canary::Environment),
        ..SE
    },
    Probe {
        id: "SE-03",
        kind: Kind::Surface,
        severity: Severity::Medium,
        title: "the policy or tokens on a command line in view",
        canary: "the launcher's own command line",
        layers: &["pid namespace", "the policy is passed by descriptor"],
        references: &["ATT&CK T1057"],
        inside: |_| {
            let mut attempts = Attempts::new();
            for pid in super::pr::others() {
                attempts.read(
                    &format!("/proc/{pid}/cmdline"),
                    format!("/proc/{pid}/cmdline"),
                );
            }
            attempts.done()
        },
        oracle: Oracle::Seen(command_line_shown),
        ..SE
    },
    Probe {
        id: "SE-04",
        kind: Kind::Surface,
        severity: Severity::Low,
        title: "the host's name",
        canary: "the stage's random host name",
        layers: &["uts namespace"],
        references: &["ATT&CK T1082"],
        inside: |_| {
            let mut attempts = Attempts::new();
            let system = ironcage_sys::rustix::system::uname();
            attempts.carry(system.nodename().to_bytes());
            attempts.read("hostname", "/proc/sys/kernel/hostname");
            attempts.read("/etc/hosts", "/etc/hosts");
            attempts.done()
        },
        oracle: Oracle::Seen(|stage, evidence| {
            let shown = evidence.observation()?.data.contains(&stage.hostname);
            shown.then(|| "the host's name came out".to_owned())
        }),
        ..SE
    },
    Probe {
        id: "SE-05",
        kind: Kind::Surface,
        severity: Severity::Low,
        title: "what identifies the machine",
        canary: "machine-id, boot_id, DMI serials, MAC addresses, compared outside",
        layers: &["synthesised /etc", "masked /proc", "no /sys"],
        references: &["ATT&CK T1082"],
        inside: |_| {
            let mut attempts = Attempts::new();
            for (what, path) in IDENTITY {
                attempts.read(what, path);
            }
            attempts.done()
        },
        oracle: Oracle::Seen(identity_shown),
        ..SE
    },
    Probe {
        id: "SE-06",
        title: "the sandbox's own state: audit log, sockets, tokens",
        canary: "a file with a nonce in the sandbox's state directory",
        layers: &[VIEW, "own directories are never granted"],
        references: &["ATT&CK T1552"],
        inside: own_state,
        oracle: Oracle::Seen(|stage, evidence| {
            let nonce = stage.nonces.of(Canary::State);
            let read = crate::oracle::contains(&evidence.output, nonce.as_bytes());
            let state = |path: &std::path::Path| path == stage.params.state_secret;
            let changed = stage.layout.first_change(state).is_some();
            (read || changed).then(|| "the state was reached".to_owned())
        }),
        ..SE
    },
    Probe {
        id: "SE-06d",
        severity: Severity::Critical,
        title: "find what the egress proxy holds: a secret's value, the authority's key",
        canary: "a nonce that a secret of the policy stands for, and any private key in view",
        layers: &[
            "secrets are loaded in the proxy alone",
            VIEW,
            "pid namespace",
        ],
        references: &["ATT&CK T1552"],
        setup: Setup::Proxy(ProxyRules::Secret),
        inside: search_for_secrets,
        oracle: Oracle::Seen(|stage, evidence| {
            let nonce = stage.nonces.of(Canary::ProxySecret).as_bytes();
            let found = crate::oracle::contains(&evidence.output, nonce);
            let key = crate::oracle::contains(&evidence.output, b"PRIVATE KEY-----");
            (found || key).then(|| "a secret came out".to_owned())
        }),
        ..SE
    },
    Probe {
        id: "SE-07",
        severity: Severity::Medium,
        title: "a core file in the workspace",
        canary: "files named core in the workspace",
        layers: &["RLIMIT_CORE"],
        references: &["CWE-528", "ATT&CK T1005"],
        inside: |_| {
            let mut attempts = Attempts::new();
            let raised = attack::core_limit_raise();
            attempts.note("raise RLIMIT_CORE", raised);
            let crashed = attack::fork_run(|| attack::crash());
            attempts.say(false, format!("crash: {crashed:?}"));
            attempts.done()
        },
        oracle: Oracle::Seen(|stage, _| {
            let entries = fs::read_dir(&stage.params.workspace).ok()?.flatten();
            let name = |entry: fs::DirEntry| entry.file_name().to_string_lossy().into_owned();
            entries
                .map(name)
                .find(|name| name == "core" || name.starts_with("core."))
        }),
        ..SE
    },
];

const IDENTITY: [(&str, &str); 6] = [
    ("machine-id", "/etc/machine-id"),
    ("dbus machine-id", "/var/lib/dbus/machine-id"),
    ("boot_id", "/proc/sys/kernel/random/boot_id"),
    ("product_uuid", "/sys/class/dmi/id/product_uuid"),
    ("board_serial", "/sys/class/dmi/id/board_serial"),
    ("eth0 address", "/sys/class/net/eth0/address"),
];

fn identity_shown(_: &Stage, evidence: &Evidence) -> Option<String> {
    let data = evidence.observation()?.data;
    let shown = |(what, path): &(&'static str, &str)| {
        let value = fs::read_to_string(path).unwrap_or_default();
        let value = value.trim();
        (value.len() > 5 && data.contains(value)).then_some(*what)
    };
    let names: Vec<&str> = IDENTITY.iter().filter_map(shown).collect();
    (!names.is_empty()).then(|| format!("came out: {}", names.join(", ")))
}

fn command_line_shown(stage: &Stage, evidence: &Evidence) -> Option<String> {
    let data = evidence.observation()?.data;
    let program = evidence.line.first()?.to_string_lossy().into_owned();
    let own = stage.layout.program.to_string_lossy().into_owned();
    // Uncaged there is no launcher; the suite's own command lines stand for it.
    let shown = if program == own {
        data.contains("role\0canary")
    } else {
        data.split('\n')
            .any(|line| line.starts_with(&program) || line.contains("bwrap\0"))
    };
    shown.then(|| "the launcher's command line came out".to_owned())
}

/// Everything that may hold it: variables, other processes, what lies in view.
fn search_for_secrets(_: &Inside) -> Observation {
    let mut attempts = Attempts::new();
    super::ne_proxy::permitted(&mut attempts);
    for (name, value) in std::env::vars_os() {
        let line = format!("{}={}", name.to_string_lossy(), value.to_string_lossy());
        attempts.carry(line.as_bytes());
    }
    for pid in super::pr::others() {
        for part in ["environ", "cmdline", "mem", "maps"] {
            attempts.read(
                &format!("/proc/{pid}/{part}"),
                format!("/proc/{pid}/{part}"),
            );
        }
    }
    for place in [
        "/etc/ssl",
        "/etc/ssl/private",
        "/etc",
        "/run",
        "/tmp",
        "/dev/shm",
        "/",
    ] {
        let entries = fs::read_dir(place).into_iter().flatten().flatten();
        for path in entries
            .map(|entry| entry.path())
            .filter(|path| path.is_file())
        {
            let text = fs::read(&path).unwrap_or_default();
            if crate::oracle::contains(&text, b"PRIVATE KEY-----") {
                attempts.say(true, format!("a key in {}", path.display()));
                attempts.carry(b"PRIVATE KEY-----");
            }
        }
    }
    attempts.done()
}

fn own_state(inside: &Inside) -> Observation {
    let mut attempts = Attempts::new();
    let secret = &inside.params.state_secret;
    attempts.read("read", secret);
    attempts.note("write", fs::OpenOptions::new().append(true).open(secret));
    attempts.note("unlink", fs::remove_file(secret));
    if let Some(directory) = secret.parent() {
        for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
            attempts.read("by listing", entry.path());
        }
    }
    attempts.done()
}
