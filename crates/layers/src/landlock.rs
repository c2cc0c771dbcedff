//! Landlock: a second lock on file writes, on signals and on abstract sockets; or the first lock
//! on everything, where there are no namespaces.
//!
//! As the second lock only write rights are handled: rules on reads cost up to half of an open, and the mount
//! namespace already decides what can be read. No TCP rules: they know ports only, and the
//! network namespace does that work.

use crate::error::LayerError;
use ironcage_model::Layer;
use ironcage_plan::{AccessRights, AccessRule, Item, WriteRights, WriteRule};
use ironcage_sys::mount::open_source;
use landlock::{
    ABI, Access as _, AccessFs, AccessNet, BitFlags, CompatLevel, Compatible, PathBeneath, PathFd,
    Ruleset, RulesetAttr, RulesetCreatedAttr, Scope,
};
use std::io;

fn failed(action: String, error: impl std::error::Error + Send + Sync + 'static) -> LayerError {
    LayerError {
        layer: Layer::Landlock,
        action,
        source: io::Error::other(error),
    }
}

/// Restricts the calling process, for good. What an older kernel does not know is left out;
/// the plan's report says so.
pub fn restrict(rules: &[Item<WriteRule>]) -> Result<(), LayerError> {
    // Not TRUNCATE and IOCTL_DEV: handling them makes the kernel walk the path at every open,
    // reads included (+250 to +600 ns), for what read-only mounts and the short list of
    // devices already hold. Opening for writing with O_TRUNC needs WRITE_FILE, which is here.
    let all = AccessFs::from_write(ABI::V2);
    let scopes = Scope::AbstractUnixSocket | Scope::Signal;
    let mut ruleset = Ruleset::default()
        .set_compatibility(CompatLevel::BestEffort)
        .handle_access(all)
        .and_then(|ruleset| ruleset.scope(scopes))
        .and_then(Ruleset::create)
        .map_err(|error| failed("make a ruleset".into(), error))?;
    for item in rules {
        let WriteRule { path, rights } = &item.what;
        let access: BitFlags<AccessFs> = match rights {
            WriteRights::Tree => all,
            WriteRights::Existing => AccessFs::WriteFile.into(),
        };
        let shown = || format!("add a rule for {}", path.display());
        let fd = PathFd::new(path).map_err(|error| failed(shown(), error))?;
        ruleset = ruleset
            .add_rule(PathBeneath::new(fd, access))
            .map_err(|error| failed(shown(), error))?;
    }
    ruleset
        .restrict_self()
        .map(drop)
        .map_err(|error| failed("restrict this process".into(), error))
}

/// Restricts the calling process, for good, to what the rules name: every right on files, TCP,
/// signals and abstract sockets. A kernel that does not know all of them is refused.
pub fn restrict_to(rules: &[Item<AccessRule>]) -> Result<(), LayerError> {
    let all = AccessFs::from_all(ABI::V6);
    // No rule on ports follows: none can be bound or connected to. Sockets are the filter's to
    // refuse; this is the second lock.
    let mut ruleset = Ruleset::default()
        .set_compatibility(CompatLevel::HardRequirement)
        .handle_access(all)
        .and_then(|ruleset| ruleset.handle_access(AccessNet::BindTcp | AccessNet::ConnectTcp))
        .and_then(|ruleset| ruleset.scope(Scope::AbstractUnixSocket | Scope::Signal))
        .and_then(Ruleset::create)
        .map_err(|error| failed("make a ruleset".into(), error))?;
    for item in rules {
        let AccessRule { path, rights } = &item.what;
        let shown = || format!("add a rule for {}", path.display());
        // Follows no link: the path is a real one, and what has become a link since then is
        // somebody's try to have a rule for another place.
        let fd = match open_source(path) {
            Ok(fd) => fd,
            // What the host's own permissions keep the agent from reaching needs no rule.
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => continue,
            Err(error) => return Err(failed(shown(), error)),
        };
        ruleset = ruleset
            .add_rule(PathBeneath::new(fd, granted(*rights)))
            .map_err(|error| failed(shown(), error))?;
    }
    ruleset
        .restrict_self()
        .map(drop)
        .map_err(|error| failed("restrict this process".into(), error))
}

fn granted(rights: AccessRights) -> BitFlags<AccessFs> {
    let read = AccessFs::Execute | AccessFs::ReadFile;
    let write = AccessFs::WriteFile | AccessFs::Truncate;
    match rights {
        AccessRights::ReadTree => read | AccessFs::ReadDir,
        AccessRights::ReadFile => read,
        // Not using devices: there are none in a workspace that were not put there.
        AccessRights::WriteTree => {
            AccessFs::from_all(ABI::V6)
                & !(AccessFs::IoctlDev | AccessFs::MakeChar | AccessFs::MakeBlock)
        }
        AccessRights::WriteFile => read | write,
        AccessRights::Device => AccessFs::ReadFile | AccessFs::WriteFile | AccessFs::IoctlDev,
    }
}
