//! The table of what each backend can and enforces is what the code says. `UPDATE=1 cargo test
//! -p ironcage-supervisor --test backends` writes it anew.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use ironcage_backend::{Ability, Support};
use ironcage_host::{
    CgroupHost, HostCaps, Inotify, Kernel, Privilege, WATCHED_DISK, WATCHED_INODES,
};
use ironcage_model::{Enforcement, Isolation, Layer};
use ironcage_plan::enforcement;
use ironcage_supervisor::backend;
use std::fmt::Write as _;
use std::path::Path;

/// The strongest first, as users read.
fn levels() -> impl Iterator<Item = Isolation> {
    Isolation::ALL.into_iter().rev()
}

/// An unprivileged user on a host that has everything.
fn host() -> HostCaps {
    HostCaps {
        swap_uncounted: false,
        kernel: Kernel {
            major: 6,
            minor: 18,
        },
        privilege: Privilege::User,
        uid: 1000,
        gid: 1000,
        landlock_abi: 7,
        seccomp_notify: true,
        memory: 16 << 30,
        disk: 200 << 30,
        cpus: 8,
        cgroup: CgroupHost::V2 {
            parent: "/sys/fs/cgroup/user.slice".into(),
            controllers: ["memory", "pids", "cpu"].map(String::from).to_vec(),
        },
        inotify: Inotify::default(),
        side_channels: None,
        layers: Layer::ALL
            .into_iter()
            .map(|layer| match layer {
                // No host has them in full: no kernel counts what one cage adds on disk.
                Layer::Disk => (layer, Enforcement::Partial(WATCHED_DISK.into())),
                Layer::Inodes => (layer, Enforcement::Partial(WATCHED_INODES.into())),
                _ => (layer, Enforcement::Full),
            })
            .collect(),
    }
}

fn table() -> String {
    let mut text = String::from(
        "# The backends\n\nGenerated from the code: `UPDATE=1 cargo test -p ironcage-supervisor --test backends` updates this page. \
         The guide is [isolation levels](../guides/isolation.md).\n\n\
         ## What each can\n\nStarting a cage, its streams, its end and the audit log are every backend's. A backend refuses the rest with the reason given here.\n\n",
    );
    let names: Vec<String> = levels().map(|rung| format!("`{rung}`")).collect();
    let _ = writeln!(
        text,
        "| | {} |\n|---|---|---|---|---|---|",
        names.join(" | ")
    );
    for ability in Ability::ALL {
        let cells: Vec<String> = levels()
            .map(|rung| match backend(rung).can(ability) {
                Support::Yes(how) => how.to_owned(),
                Support::No(why) => format!("**no**: {why}"),
            })
            .collect();
        let _ = writeln!(text, "| {} | {} |", ability.name(), cells.join(" | "));
    }
    text.push_str(
        "\n## What each enforces\n\nFor an unprivileged user on a host that has everything (Linux 6.12 or later, cgroup v2 delegated). \
         A layer that is off and required stops the start; `--allow-degraded LAYER` accepts that, and is recorded.\n\n",
    );
    let _ = writeln!(
        text,
        "| layer | {} |\n|---|---|---|---|---|---|",
        names.join(" | ")
    );
    for layer in Layer::ALL {
        let cells: Vec<String> = levels()
            .map(|rung| match enforcement(rung, &host(), layer) {
                Enforcement::Full => "full".to_owned(),
                Enforcement::Partial(how) => format!("partial: {how}"),
                Enforcement::Off(why) => format!("**off**: {why}"),
            })
            .collect();
        let _ = writeln!(text, "| `{layer}` | {} |", cells.join(" | "));
    }
    text
}

#[test]
fn the_table_of_backends_is_up_to_date() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/reference/backends.md");
    let wanted = table();
    if std::env::var_os("UPDATE").is_some() {
        std::fs::write(&path, &wanted).unwrap();
    }
    let there = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(
        there == wanted,
        "{} is out of date; run with UPDATE=1",
        path.display()
    );
}

#[test]
fn every_isolation_level_has_the_backend_of_its_name() {
    for rung in Isolation::ALL {
        assert_eq!(backend(rung).isolation(), rung);
    }
}

#[test]
fn a_weaker_isolation_level_enforces_no_layer_further() {
    let level = |rung, layer| match enforcement(rung, &host(), layer) {
        Enforcement::Full => 2,
        Enforcement::Partial(_) => 1,
        Enforcement::Off(_) => 0,
    };
    for layer in Layer::ALL {
        // A runtime applies no Landlock, which the rungs below are made of: it is compared with
        // the strongest alone.
        let ladder = [Isolation::Landlock, Isolation::Chroot, Isolation::Namespace];
        for rungs in [&ladder[..], &[Isolation::Oci, Isolation::Namespace]] {
            let levels: Vec<u8> = rungs.iter().map(|rung| level(*rung, layer)).collect();
            assert!(levels.is_sorted(), "{layer}: {levels:?}");
        }
    }
}
