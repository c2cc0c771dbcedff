//! The features of this runtime, in the form that the specification gives them.

use crate::policy::capability;
use crate::spec;
use ironcage_catalog::capabilities;

pub(crate) fn features() -> serde_json::Value {
    let names = (0..64)
        .filter_map(capabilities::by_number)
        .map(|found| found.name);
    let names: Vec<&str> = names.filter(|name| capability(name).is_some()).collect();
    serde_json::json!({
        "ociVersionMin": "1.0.0",
        "ociVersionMax": spec::VERSION,
        "hooks": ["prestart", "createRuntime", "createContainer", "startContainer", "poststart", "poststop"],
        "mountOptions": [
            "async", "atime", "bind", "defaults", "dev", "diratime", "exec", "noatime", "nodev",
            "nodiratime", "noexec", "nosuid", "nosymfollow", "private", "rbind", "rdev", "relatime",
            "rexec", "rnodev", "rnoexec", "rnosuid", "ro", "rprivate", "rro", "rrw", "rshared",
            "rslave", "rsuid", "rw", "shared", "slave", "strictatime", "suid", "symfollow", "tmpcopyup",
        ],
        "linux": {
            "namespaces": ["cgroup", "ipc", "mount", "network", "pid", "time", "user", "uts"],
            "capabilities": names,
            "cgroup": { "v1": true, "v2": true, "systemd": false, "systemdUser": false, "rdma": false },
            "seccomp": {
                "enabled": true,
                "actions": [
                    "SCMP_ACT_ALLOW", "SCMP_ACT_ERRNO", "SCMP_ACT_KILL", "SCMP_ACT_KILL_PROCESS",
                    "SCMP_ACT_KILL_THREAD", "SCMP_ACT_LOG", "SCMP_ACT_TRACE", "SCMP_ACT_TRAP",
                ],
                "operators": [
                    "SCMP_CMP_EQ", "SCMP_CMP_GE", "SCMP_CMP_GT", "SCMP_CMP_LE", "SCMP_CMP_LT",
                    "SCMP_CMP_MASKED_EQ", "SCMP_CMP_NE",
                ],
                "archs": ["SCMP_ARCH_X86_64"],
            },
            "apparmor": { "enabled": true },
            "selinux": { "enabled": true },
            "intelRdt": { "enabled": false },
            "mountExtensions": { "idmap": { "enabled": false } },
        },
        "annotations": { "dev.ironcage.landlock-abi": ironcage_sys::host::landlock_abi().to_string() },
    })
}
