use super::*;
use crate::assess::tests::desktop;
use crate::doctor::needs_consent;

const EPERM: i32 = ironcage_sys::rustix::io::Errno::PERM.raw_os_error();
const EACCES: i32 = ironcage_sys::rustix::io::Errno::ACCESS.raw_os_error();
const ENOSPC: i32 = ironcage_sys::rustix::io::Errno::NOSPC.raw_os_error();
const EROFS: i32 = ironcage_sys::rustix::io::Errno::ROFS.raw_os_error();

fn all_work() -> Results {
    [
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
        Subject::CgroupGroup,
        Subject::Overlay,
        Subject::IdMappedMounts,
        Subject::Delivery,
    ]
    .into_iter()
    .map(|subject| (subject, TrialResult::Worked))
    .collect()
}

fn refused(doing: &str, errno: i32) -> TrialResult {
    TrialResult::Refused {
        doing: doing.into(),
        errno,
    }
}

fn find(findings: &[Finding], layer: Layer) -> &Finding {
    findings.iter().find(|one| one.layer == layer).unwrap()
}

fn remedy(findings: &[Finding], layer: Layer) -> String {
    find(findings, layer).remedy.clone().unwrap()
}

fn is_off(finding: &Finding) -> bool {
    matches!(finding.enforcement, Enforcement::Off(_))
}

#[test]
fn a_host_where_everything_works_needs_no_remedy() {
    let findings = findings(&desktop(), Place::Host, &all_work());
    assert_eq!(findings.len(), Layer::ALL.len());
    assert!(
        findings
            .iter()
            .all(|one| one.remedy.is_none() && !is_off(one))
    );
}

#[test]
fn ubuntu_is_told_the_profile_and_the_switch_and_the_rest_to_mend_that_first() {
    let mut facts = desktop();
    facts.sysctls.apparmor_restrict = Some(1);
    facts.sysctls.apparmor_label = Some("unconfined".into());
    let mut results = all_work();
    results.insert(
        Subject::UserNs,
        refused("writing /proc/self/uid_map", EPERM),
    );
    let findings = findings(&facts, Place::Host, &results);
    let user = find(&findings, Layer::UserNs);
    assert!(is_off(user) && user.evidence.contains("uid_map"));
    let text = remedy(&findings, Layer::UserNs);
    assert!(
        text.contains("/etc/apparmor.d/ironcage") && text.contains("sysctl -w"),
        "{text}"
    );
    assert!(is_off(find(&findings, Layer::PidNs)));
    assert!(remedy(&findings, Layer::NetNs).contains("user-ns first"));
    assert!(!is_off(find(&findings, Layer::Seccomp)));
}

#[test]
fn ubuntu_that_refuses_only_at_the_first_mount_is_told_the_same() {
    let mut facts = desktop();
    facts.sysctls.apparmor_restrict = Some(1);
    facts.sysctls.apparmor_label = Some("unprivileged_userns".into());
    let mut results = all_work();
    results.insert(Subject::MountNs, refused("mounting tmpfs on /tmp", EACCES));
    let text = remedy(&findings(&facts, Place::Host, &results), Layer::MountNs);
    assert!(text.contains("/etc/apparmor.d/ironcage"), "{text}");
}

#[test]
fn a_suspected_blocker_that_the_trial_did_not_meet_is_none() {
    let mut facts = desktop();
    facts.sysctls.apparmor_restrict = Some(1);
    facts.sysctls.apparmor_label = Some("unconfined".into());
    let findings = findings(&facts, Place::Host, &all_work());
    assert_eq!(
        find(&findings, Layer::UserNs).enforcement,
        Enforcement::Full
    );
    assert_eq!(
        find(&findings, Layer::MountNs).enforcement,
        Enforcement::Full
    );
}

#[test]
fn docker_with_a_masked_proc_is_told_how_to_start_the_container() {
    let mut results = all_work();
    results.insert(Subject::PidNs, refused("mounting proc on /proc", EPERM));
    results.insert(
        Subject::Counters,
        refused("writing /proc/sys/user/max_user_namespaces", EROFS),
    );
    let findings = findings(&desktop(), Place::Docker, &results);
    assert!(
        find(&findings, Layer::PidNs)
            .enforcement
            .to_string()
            .contains("masked")
    );
    assert!(remedy(&findings, Layer::PidNs).contains("systempaths=unconfined"));
    assert!(
        find(&findings, Layer::Counters)
            .enforcement
            .to_string()
            .contains("read-only")
    );
    assert!(!is_off(find(&findings, Layer::MountNs)));
}

#[test]
fn the_same_on_a_host_names_the_mounts_in_the_way() {
    let mut results = all_work();
    results.insert(Subject::PidNs, refused("mounting proc on /proc", EPERM));
    results.insert(
        Subject::Counters,
        refused("writing /proc/sys/user/max_user_namespaces", EROFS),
    );
    let findings = findings(&desktop(), Place::Host, &results);
    assert!(remedy(&findings, Layer::PidNs).contains("mountinfo"));
    assert!(remedy(&findings, Layer::Counters).contains("remount"));
}

#[test]
fn docker_that_refuses_namespaces_is_told_so() {
    let mut results = all_work();
    results.insert(Subject::UserNs, refused("making the namespace", EPERM));
    let text = remedy(
        &findings(&desktop(), Place::Docker, &results),
        Layer::UserNs,
    );
    assert!(
        text.contains("docker run --security-opt seccomp=unconfined"),
        "{text}"
    );
}

#[test]
fn missing_delegation_is_mended_by_a_scope_or_a_drop_in() {
    let mut facts = desktop();
    facts.cgroup = CgroupHost::None {
        why: NoCgroup::NotDelegated {
            group: "user.slice/user-1000.slice/session-3.scope".into(),
        },
    };
    let text = remedy(&findings(&facts, Place::Host, &all_work()), Layer::Memory);
    assert!(text.contains("systemd-run --user --scope"), "{text}");
    assert!(text.contains("user@.service.d/delegate.conf"), "{text}");
}

#[test]
fn a_group_that_cannot_be_made_after_all_is_partial() {
    let mut results = all_work();
    results.insert(
        Subject::CgroupGroup,
        refused("making /sys/fs/cgroup/x", EROFS),
    );
    let findings = findings(&desktop(), Place::Host, &results);
    let memory = find(&findings, Layer::Memory);
    assert!(matches!(&memory.enforcement, Enforcement::Partial(how) if how.contains("watchdog")));
    assert!(!is_off(find(&findings, Layer::Files)));
}

#[test]
fn wsl_without_systemd_is_told_how_to_get_it_and_old_landlock_is_partial() {
    let mut facts = desktop();
    facts.release = "5.15.167.4-microsoft-standard-WSL2".into();
    facts.landlock_abi = 1;
    facts.cgroup = CgroupHost::None {
        why: NoCgroup::LeftOut,
    };
    let findings = findings(&facts, Place::Wsl2, &all_work());
    assert!(remedy(&findings, Layer::Pids).contains("systemd=true"));
    let landlock = find(&findings, Layer::Landlock);
    assert!(matches!(landlock.enforcement, Enforcement::Partial(_)));
    assert!(remedy(&findings, Layer::Landlock).contains("6.12"));
}

#[test]
fn a_kernel_without_landlock_is_told_the_boot_parameter() {
    let mut facts = desktop();
    facts.landlock_abi = 0;
    let mut results = all_work();
    results.insert(Subject::Landlock, refused("entering a Landlock domain", 95));
    let findings = findings(&facts, Place::Host, &results);
    assert!(is_off(find(&findings, Layer::Landlock)));
    assert!(remedy(&findings, Layer::Landlock).contains("lsm="));
}

#[test]
fn under_another_listener_a_start_needs_consent() {
    let mut results = all_work();
    results.insert(Subject::SeccompNotify, refused("installing a filter", 16));
    let findings = findings(&desktop(), Place::Host, &results);
    let seccomp = find(&findings, Layer::Seccomp);
    assert!(matches!(seccomp.enforcement, Enforcement::Partial(_)));
    let remedy = seccomp.remedy.as_deref().unwrap_or_default();
    assert!(remedy.contains("--allow-degraded seccomp"), "{remedy}");
    let consent = |can_report| needs_consent(Layer::Seccomp, &seccomp.enforcement, can_report);
    assert!(consent(false).is_some() && consent(true).is_none());
    // Other layers may be partial.
    let disk = find(&findings, Layer::Disk);
    assert!(matches!(disk.enforcement, Enforcement::Partial(_)));
    assert!(needs_consent(Layer::Disk, &disk.enforcement, false).is_none());
}

#[test]
fn a_known_switch_comes_before_guesses() {
    let mut facts = desktop();
    facts.sysctls.userns_clone = Some(0);
    let hint = userns_failure_hint(&facts, Place::Docker, EPERM);
    assert!(hint.contains("unprivileged_userns_clone"), "{hint}");
}

#[test]
fn in_a_container_the_hint_says_how_to_start_it() {
    let hint = userns_failure_hint(&desktop(), Place::Docker, EPERM);
    assert!(hint.contains("docker run --security-opt"), "{hint}");
}

#[test]
fn a_used_up_limit_is_told_from_a_refusal() {
    let hint = userns_failure_hint(&desktop(), Place::Docker, ENOSPC);
    assert!(hint.contains("max_user_namespaces"), "{hint}");
    let hint = userns_failure_hint(&desktop(), Place::Host, EPERM);
    assert!(hint.contains("denied"), "{hint}");
}

#[test]
fn a_profile_without_the_rule_is_named() {
    let mut facts = desktop();
    facts.sysctls.apparmor_restrict = Some(1);
    facts.sysctls.apparmor_label = Some("snap.code".into());
    let hint = userns_failure_hint(&facts, Place::Host, EPERM);
    assert!(hint.contains("AppArmor profile"), "{hint}");
}
