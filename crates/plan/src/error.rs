//! Why a policy cannot become a plan.

use ironcage_model::{Isolation, Layer, Printable};
use std::path::{Path, PathBuf};

fn shown(path: &Path) -> Printable<'_> {
    Printable::new(path)
}

/// Why a policy cannot become a plan.
#[derive(Debug, thiserror::Error)]
pub enum PlanError {
    /// A required layer cannot be had.
    #[error(
        "the policy requires the layer {layer} (from {origin}), and --isolation {isolation} lacks it here: {why}"
    )]
    MissingLayer {
        /// Which.
        layer: Layer,
        /// With which rung.
        isolation: Isolation,
        /// Who requires it.
        origin: String,
        /// Why it is not there.
        why: String,
        /// Every required layer that is missing, this one included.
        missing: Vec<Layer>,
    },
    /// Means against side channels that this host lacks.
    #[error(
        "{origin} asks for everything against side channels, and this host lacks {}; --side-channels cores does without, and a machine of its own (a virtual one with its own cores) does not need them",
        missing.join("; ")
    )]
    SideChannels {
        /// Who asks.
        origin: String,
        /// What is missing, each with the reason.
        missing: Vec<String>,
    },
    /// Something that a rung of the ladder cannot do.
    #[error("{origin} asks for {what}, which --isolation {isolation} cannot have: {why}")]
    Unsupported {
        /// The rung.
        isolation: Isolation,
        /// What was asked for.
        what: String,
        /// Who asks.
        origin: String,
        /// Why not.
        why: &'static str,
    },
    /// What a run uses is to be observed, and the kernel cannot report it.
    #[error(
        "what the command uses cannot be observed: this kernel does not report system calls to a supervisor (seccomp user notification, Linux 5.5); `ironcage run` works without"
    )]
    CannotObserve,
    /// TLS is to be opened, and there is nothing to know servers by.
    #[error(
        "rules over requests and secrets need certificate authorities to know servers by, and this host has none: install ca-certificates, or name a file of them in SSL_CERT_FILE"
    )]
    NoAuthorities,
    /// A path of the policy is not there.
    #[error(
        "{origin} names {}, which does not exist or cannot be seen",
        shown(path)
    )]
    MissingPath {
        /// The path.
        path: PathBuf,
        /// Who names it.
        origin: String,
    },
    /// A path that no cage may have.
    #[error("{origin} names {}: {why}", shown(path))]
    RefusedPath {
        /// The path.
        path: PathBuf,
        /// Who names it.
        origin: String,
        /// Why it is refused.
        why: &'static str,
    },
    /// What patterns hide cannot be found by a walk of a sane length.
    #[error(
        "{origin} hides by a pattern, and in {} there are more than {what}: name the directory that they lie in, or begin the pattern with a smaller one",
        shown(path)
    )]
    HiddenWalk {
        /// Where.
        path: PathBuf,
        /// What there is too much of.
        what: String,
        /// Who names the pattern.
        origin: String,
    },
    /// A path that is given only by an explicit word.
    #[error("{origin} names {}: {why}", shown(path))]
    GuardedPath {
        /// The path.
        path: PathBuf,
        /// Who names it.
        origin: String,
        /// Why it is guarded.
        why: String,
        /// Whether parts of it are given without that word.
        parts_are_free: bool,
    },
    /// A workspace that would give away too much.
    #[error("{} cannot be the workspace: {why}", shown(path))]
    Workspace {
        /// The path.
        path: PathBuf,
        /// Why not.
        why: &'static str,
        /// Whether naming it and `--i-know` would allow it.
        can_be_forced: bool,
    },
    /// A directory that cannot be had as a copy-on-write view.
    #[error("{} cannot be had copy-on-write: {why}", shown(path))]
    CopyOnWrite {
        /// The directory.
        path: PathBuf,
        /// Why not.
        why: String,
    },
    /// A working directory outside of the view.
    #[error("the working directory {} is not visible in the cage", shown(path))]
    WorkingDirectory {
        /// The path.
        path: PathBuf,
    },
    /// No command.
    #[error("no command was given")]
    NoCommand,
    /// A list or group of system calls that does not exist.
    #[error("{origin} names the system call list or group `{name}`, which does not exist")]
    UnknownSyscalls {
        /// The name.
        name: String,
        /// Who names it.
        origin: String,
    },
    /// A capability that does not exist or cannot be given.
    #[error("{origin} names the capability {name}: {why}")]
    Capability {
        /// The name.
        name: String,
        /// Who names it.
        origin: String,
        /// Why not.
        why: String,
    },
    /// A socket of the host's that is not given.
    #[error("{origin} gives the socket {}: {why}", Printable::new(path))]
    Socket {
        /// Which.
        path: PathBuf,
        /// Who gives it.
        origin: String,
        /// Why not.
        why: String,
    },
    /// A bundle of hosts that cannot be had.
    #[error("{origin} names the bundle {name}: {why}")]
    Bundle {
        /// The name.
        name: String,
        /// Who names it.
        origin: String,
        /// Why not.
        why: String,
    },
    /// A protected path to be lifted that is not protected.
    #[error(
        "{origin} lifts the protection of {}, which is not protected",
        shown(path)
    )]
    NotProtected {
        /// The path.
        path: PathBuf,
        /// Who names it.
        origin: String,
    },
}
