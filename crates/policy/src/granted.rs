//! The grants of a policy, entry by entry, as the audit log has them: for whoever later wants to
//! give less. Values of secrets are not among them.

use crate::{EnvRule, Origin, Policy, Sourced};
use ironcage_model::{Grant, Printable};
use std::path::PathBuf;

/// More entries are not told.
const MOST: usize = 512;
/// More bytes are not told: the line of a record is bounded, and escaped a byte becomes six.
const MOST_BYTES: usize = 96 << 10;

/// Entries of a policy; `true` where there are more than are told.
pub fn granted(policy: &Policy) -> (Vec<Grant>, bool) {
    let mut list = List::default();
    list.one("workspace.mode", policy.workspace_mode.value.name(), {
        &policy.workspace_mode.origin
    });
    for (key, paths) in [
        ("workspace.unprotect", &policy.unprotect),
        ("files.read", &policy.read),
        ("files.write", &policy.write),
        ("files.write-direct", &policy.write_direct),
        ("state.keep", &policy.keep),
        ("network.sockets", &policy.network.sockets),
    ] {
        list.paths(key, paths);
    }
    for (key, switch) in [
        ("files.toolchains", &policy.toolchains),
        ("state.host-caches", &policy.host_caches),
        ("process.root-inside", &policy.root_inside),
        ("process.guest-root", &policy.guest_root),
        ("process.git-identity", &policy.git_identity),
        ("network.open", &policy.network.open),
    ] {
        if switch.value {
            list.one(key, "true", &switch.origin);
        }
    }
    let network = &policy.network;
    list.all("state.caches", &policy.caches);
    list.all("process.capabilities", &policy.capabilities);
    list.all("syscalls.groups", &policy.syscall_groups);
    list.all("network.allow", &network.allow);
    list.all("network.http", &network.http);
    list.all("network.bundles", &network.bundles);
    list.all("network.host-ports", &network.host_ports);
    list.all("network.publish", &network.publish);
    for secret in &network.secrets {
        let hosts = secret.value.host_texts();
        let value = format!("{}@{}", secret.value.name, hosts.join(","));
        list.one("network.secrets", &value, &secret.origin);
    }
    list.all("keys.ssh", &policy.keys.ssh);
    list.all("keys.sign", &policy.keys.sign);
    for login in &network.logins {
        list.one("network.logins", &login.value.name, &login.origin);
    }
    for rule in &policy.env {
        if let EnvRule::Pass { name } = &rule.value {
            list.one("env.pass", name, &rule.origin);
        }
    }
    let limits = &policy.limits;
    list.one("limits.memory", &limits.memory.value.to_string(), {
        &limits.memory.origin
    });
    list.one("limits.pids", &limits.pids.value.to_string(), {
        &limits.pids.origin
    });
    (list.grants, list.more)
}

#[derive(Default)]
struct List {
    grants: Vec<Grant>,
    bytes: usize,
    more: bool,
}

impl List {
    fn one(&mut self, key: &str, value: &str, origin: &Origin) {
        let origin = origin.to_string();
        let bytes = self.bytes + value.len() + origin.len();
        // What cannot be told in full is not told at all.
        if self.grants.len() >= MOST || bytes > MOST_BYTES {
            self.more = true;
            return;
        }
        self.bytes = bytes;
        self.grants.push(Grant {
            key: key.to_owned(),
            value: value.to_owned(),
            origin,
        });
    }

    fn all<T: ToString>(&mut self, key: &str, values: &[Sourced<T>]) {
        for value in values {
            self.one(key, &value.value.to_string(), &value.origin);
        }
    }

    fn paths(&mut self, key: &str, paths: &[Sourced<PathBuf>]) {
        for path in paths {
            // Escaped where it is not text: it is compared with what is told, and shown.
            let shown = Printable::new(&path.value).to_string();
            self.one(key, &shown, &path.origin);
        }
    }
}
