//! The rights of an owner over files whose mode keeps even him out.
//!
//! An agent may leave directories that their owner can neither read nor write, and a change that
//! holds one must still be read, applied and discarded as it is. In a user namespace of its own
//! a process is above the modes of its user's files, and of nobody else's.

use ironcage_sys::clone::{Namespaces, unshare};
use ironcage_sys::rustix::process::{getegid, geteuid};
use std::io;

/// Gives this process, which must have one thread, the rights of an owner over its user's files.
/// Root has them already.
///
/// # Errors
/// Where the system allows no user namespaces. What cannot be read is then an obstacle of its
/// entry, and told.
pub fn take_owners_rights() -> io::Result<()> {
    let (user, group) = (geteuid(), getegid());
    if user.is_root() {
        return Ok(());
    }
    unshare(Namespaces::USER)?;
    std::fs::write("/proc/self/setgroups", "deny")?;
    let (user, group) = (user.as_raw(), group.as_raw());
    std::fs::write("/proc/self/uid_map", format!("{user} {user} 1"))?;
    std::fs::write("/proc/self/gid_map", format!("{group} {group} 1"))
}
