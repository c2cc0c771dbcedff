use super::*;
use crate::CgroupV1;
use crate::NoCgroup;
use std::path::PathBuf;

/// A plain desktop: current kernel, an ordinary user, everything on.
pub(crate) fn desktop() -> Facts {
    Facts {
        release: "6.12.48-amd64".into(),
        kernel: Kernel {
            major: 6,
            minor: 12,
        },
        privilege: Privilege::User,
        uid: 1000,
        gid: 1000,
        landlock_abi: 6,
        seccomp: true,
        seccomp_notify: true,
        memory: 16 << 30,
        cpus: 8,
        namespaces: Namespaces::ALL,
        sysctls: Sysctls {
            max_user_namespaces: Some(63_000),
            ..Sysctls::default()
        },
        cgroup: CgroupHost::V2 {
            parent: PathBuf::from(
                "/sys/fs/cgroup/user.slice/user-1000.slice/user@1000.service/app.slice",
            ),
            controllers: vec!["cpu".into(), "memory".into(), "pids".into()],
        },
        swap_uncounted: false,
    }
}

fn off_text(facts: &Facts, layer: Layer) -> String {
    match layer_level(facts, layer) {
        Enforcement::Off(why) => why,
        other => panic!("{layer} is {other}"),
    }
}

fn partial_text(facts: &Facts, layer: Layer) -> String {
    match layer_level(facts, layer) {
        Enforcement::Partial(how) => how,
        other => panic!("{layer} is {other}"),
    }
}

#[test]
fn a_desktop_has_every_layer_but_the_watched_ones_in_full() {
    let weak: Vec<_> = layers(&desktop())
        .into_iter()
        .filter(|(_, level)| *level != Enforcement::Full)
        .map(|(layer, _)| layer)
        .collect();
    assert_eq!(weak, [Layer::Disk, Layer::Inodes]);
}

#[test]
fn ubuntu_rule_turns_user_namespaces_off_and_names_both_remedies() {
    let mut facts = desktop();
    facts.sysctls.apparmor_restrict = Some(1);
    facts.sysctls.apparmor_label = Some("unconfined".into());
    let why = off_text(&facts, Layer::UserNs);
    assert!(why.contains("/etc/apparmor.d/ironcage"), "{why}");
    assert!(why.contains("sysctl -w kernel.apparmor_restrict_unprivileged_userns=0"));
    off_text(&facts, Layer::PidNs);
    off_text(&facts, Layer::Counters);
}

#[test]
fn ubuntu_rule_does_not_hold_a_program_with_a_profile_nor_root() {
    let mut facts = desktop();
    facts.sysctls.apparmor_restrict = Some(1);
    facts.sysctls.apparmor_label = Some("ironcage (unconfined)".into());
    assert_eq!(layer_level(&facts, Layer::UserNs), Enforcement::Full);
    facts.sysctls.apparmor_label = Some("unconfined".into());
    facts.privilege = Privilege::Root;
    assert_eq!(layer_level(&facts, Layer::UserNs), Enforcement::Full);
}

#[test]
fn debian_switch_holds_users_and_not_root() {
    let mut facts = desktop();
    facts.sysctls.userns_clone = Some(0);
    assert!(off_text(&facts, Layer::UserNs).contains("unprivileged_userns_clone=1"));
    facts.privilege = Privilege::Root;
    assert_eq!(layer_level(&facts, Layer::UserNs), Enforcement::Full);
}

#[test]
fn a_maximum_of_zero_holds_root_as_well() {
    let mut facts = desktop();
    facts.privilege = Privilege::Root;
    facts.sysctls.max_user_namespaces = Some(0);
    assert!(off_text(&facts, Layer::UserNs).contains("user.max_user_namespaces=15000"));
    assert!(off_text(&facts, Layer::NetNs).contains("user namespace"));
}

#[test]
fn old_landlock_is_partial_and_names_what_is_missing() {
    let mut facts = desktop();
    facts.landlock_abi = 2;
    assert!(partial_text(&facts, Layer::Landlock).contains("truncation"));
    facts.landlock_abi = 4;
    let how = partial_text(&facts, Layer::Landlock);
    assert!(how.contains("abstract sockets") && !how.contains("truncation"));
    facts.landlock_abi = 0;
    assert!(off_text(&facts, Layer::Landlock).contains("lsm="));
}

#[test]
fn without_cgroups_limits_are_partial_and_carry_the_reason() {
    let mut facts = desktop();
    facts.cgroup = CgroupHost::None {
        why: NoCgroup::NotDelegated { group: "a".into() },
    };
    let how = partial_text(&facts, Layer::Memory);
    assert!(how.contains("watchdog") && how.contains("not delegated"));
    assert!(partial_text(&facts, Layer::Pids).contains("RLIMIT_NPROC"));
    assert!(partial_text(&facts, Layer::Cpu).contains("whole CPUs"));
    assert_eq!(layer_level(&facts, Layer::Files), Enforcement::Full);
}

#[test]
fn a_missing_controller_degrades_its_own_limit_only() {
    let mut facts = desktop();
    let memory = ("memory".to_owned(), PathBuf::from("/sys/fs/cgroup/memory"));
    facts.cgroup = CgroupHost::V1(CgroupV1 {
        controllers: [memory].into_iter().collect(),
    });
    assert_eq!(layer_level(&facts, Layer::Memory), Enforcement::Full);
    assert!(partial_text(&facts, Layer::Pids).contains("`pids`"));
}

#[test]
fn a_cgroup_that_does_not_count_swap_limits_memory_only_in_part() {
    let mut facts = desktop();
    assert_eq!(layer_level(&facts, Layer::Memory), Enforcement::Full);
    facts.swap_uncounted = true;
    let told = partial_text(&facts, Layer::Memory);
    assert!(told.contains("swap") && told.contains("watchdog"), "{told}");
    assert_eq!(layer_level(&facts, Layer::Pids), Enforcement::Full);
    // Without a cgroup the watchdog counts swap as it is.
    facts.cgroup = CgroupHost::None {
        why: NoCgroup::LeftOut,
    };
    assert!(!partial_text(&facts, Layer::Memory).contains("swapaccount"));
}

#[test]
fn below_another_listener_the_filter_holds_and_denials_are_not_reported() {
    let mut facts = desktop();
    facts.seccomp_notify = false;
    assert!(partial_text(&facts, Layer::Seccomp).contains("cannot be reported"));
    facts.seccomp = false;
    off_text(&facts, Layer::Seccomp);
}

#[test]
fn a_kernel_without_time_namespaces_turns_off_that_layer_alone() {
    let mut facts = desktop();
    facts.namespaces.time = false;
    assert!(off_text(&facts, Layer::TimeNs).contains("5.6"));
    assert_eq!(layer_level(&facts, Layer::PidNs), Enforcement::Full);
}
