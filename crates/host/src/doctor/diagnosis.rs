//! From a failure and the facts around it to a reason and a remedy. Pure.

use super::Place;
use crate::assess::{self, Facts};
use ironcage_sys::host::errno_text;
use ironcage_sys::rustix::io::Errno;

/// Why a user namespace was refused, and what to do.
pub(crate) fn userns_failure_hint(facts: &Facts, place: Place, errno: i32) -> String {
    if let Some(blocker) = assess::userns_blocker(facts) {
        return format!("{}; {}", blocker.why, blocker.remedy);
    }
    let errno = Errno::from_raw_os_error(errno);
    if errno == Errno::NOSPC || errno == Errno::USERS {
        return "the limit on user namespaces, or on their depth, is reached; as root: sysctl -w user.max_user_namespaces=15000 \
                (a cage inside a cage is refused on purpose)"
            .into();
    }
    if errno == Errno::NOMEM || errno == Errno::AGAIN {
        return "the kernel had no memory, or the limit on processes (ulimit -u) is reached".into();
    }
    if let Some(remedy) = place.nesting_remedy() {
        return format!(
            "{} does not let namespaces be made inside it; {remedy}",
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
        "the kernel refused it ({}): a seccomp filter or a security module around this process is likely; \
         `ironcage doctor` tries each layer",
        errno_text(errno.raw_os_error())
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::assess::tests::desktop;

    const EPERM: i32 = 1;
    const ENOSPC: i32 = 28;

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
        assert!(hint.contains("refused"), "{hint}");
    }

    #[test]
    fn a_profile_without_the_rule_is_named() {
        let mut facts = desktop();
        facts.sysctls.apparmor_restrict = Some(1);
        facts.sysctls.apparmor_label = Some("snap.code".into());
        let hint = userns_failure_hint(&facts, Place::Host, EPERM);
        assert!(hint.contains("AppArmor profile"), "{hint}");
    }
}
