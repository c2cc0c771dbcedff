//! Why a policy cannot become a plan.

mod causes;

pub use causes::{NoBundle, NoCapability, NoOverlay, NoSocket};
use ironcage_model::{Isolation, Layer, Printable, StartCode};
use std::path::{Path, PathBuf};

fn shown(path: &Path) -> Printable<'_> {
    Printable::new(path)
}

/// Why a policy cannot become a plan.
#[derive(Debug, thiserror::Error)]
pub enum PlanError {
    /// A required layer cannot be had.
    #[error(
        "cannot enforce the required layer {layer} (from {origin}) with --isolation {isolation} on this host: {why}"
    )]
    MissingLayer {
        /// Which.
        layer: Layer,
        /// With which isolation level.
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
        "cannot enforce side-channels = \"hardened\" ({origin}): this host lacks {}; use --side-channels cores, or a separate machine or virtual machine with its own cores",
        missing.join("; ")
    )]
    SideChannels {
        /// Who asks.
        origin: String,
        /// What is missing, each with the reason.
        missing: Vec<String>,
    },
    /// Something that an isolation level cannot do.
    #[error("cannot use {what} ({origin}) with --isolation {isolation}: {why}")]
    Unsupported {
        /// The isolation level.
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
        "cannot observe what the command uses: denials cannot be reported to a supervisor here (a seccomp filter around this process already has a listener); run it without --observe"
    )]
    CannotObserve,
    /// A list without execve needs a listener for the first one, and there is none.
    #[error(
        "the system call list {list} allows no execve, so the command itself starts by the supervisor's answer, and denials cannot be reported to it here"
    )]
    NoFirstExec {
        /// The list.
        list: &'static str,
    },
    /// TLS is to be opened, and there is nothing to know servers by.
    #[error(
        "cannot verify servers for request rules and secrets: this host has no certificate authorities; install ca-certificates, or set SSL_CERT_FILE to a file of them"
    )]
    NoAuthorities,
    /// The upstream proxy of the caller's environment is not one that can be used.
    #[error(
        "cannot use the upstream proxy of {origin}: {why}; --upstream-proxy off connects without it"
    )]
    UpstreamProxy {
        /// The variable.
        origin: String,
        /// What is wrong with it.
        why: &'static str,
    },
    /// A path of the policy is not there.
    #[error(
        "cannot use {} ({origin}): it does not exist, or is not accessible",
        shown(path)
    )]
    MissingPath {
        /// The path.
        path: PathBuf,
        /// Who names it.
        origin: String,
    },
    /// A path that no cage may have.
    #[error("cannot use {} ({origin}): {why}", shown(path))]
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
        "cannot expand the hide pattern ({origin}): {} contains more than {what}; hide a whole directory, or start the pattern at a smaller one",
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
    #[error("cannot use {} ({origin}): {why}", shown(path))]
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
    #[error("cannot use {} as the workspace: {why}", shown(path))]
    Workspace {
        /// The path.
        path: PathBuf,
        /// Why not.
        why: &'static str,
        /// Whether naming it and `--i-know` would allow it.
        can_be_forced: bool,
    },
    /// A directory that cannot be had as a copy-on-write view.
    #[error("cannot create a copy-on-write view of {}: {why}", shown(path))]
    CopyOnWrite {
        /// The directory.
        path: PathBuf,
        /// Why not.
        why: NoOverlay,
    },
    /// A working directory outside of the view.
    #[error("the working directory {} is not in the cage", shown(path))]
    WorkingDirectory {
        /// The path.
        path: PathBuf,
    },
    /// The system of a cage cannot be booted.
    #[error("cannot boot a system ({origin}): {why}")]
    Boot {
        /// Who asks.
        origin: String,
        /// Why not, and what to do.
        why: String,
    },
    /// A user that the command cannot run as.
    #[error("cannot run as user {uid} ({origin}): {why}")]
    User {
        /// Its ID inside.
        uid: u32,
        /// Who asks.
        origin: String,
        /// Why not.
        why: &'static str,
    },
    /// No command.
    #[error("no command was given")]
    NoCommand,
    /// A list or group of system calls that does not exist.
    #[error("unknown system call list or group `{name}` ({origin})")]
    UnknownSyscalls {
        /// The name.
        name: String,
        /// Who names it.
        origin: String,
    },
    /// A capability that does not exist or cannot be given.
    #[error("cannot use the capability {name} ({origin}): {why}")]
    Capability {
        /// The name.
        name: String,
        /// Who names it.
        origin: String,
        /// Why not.
        why: NoCapability,
    },
    /// A socket of the host's that is not given.
    #[error("cannot use the socket {} ({origin}): {why}", Printable::new(path))]
    Socket {
        /// Which.
        path: PathBuf,
        /// Who gives it.
        origin: String,
        /// Why not.
        why: NoSocket,
    },
    /// A key outside that cannot be used.
    #[error("cannot use the key {} ({origin}): {problem}", Printable::new(name))]
    Key {
        /// As the policy names it.
        name: String,
        /// Who gives it.
        origin: String,
        /// Why not.
        problem: crate::KeyProblem,
    },
    /// A bundle of hosts that cannot be had.
    #[error("cannot use the bundle {name} ({origin}): {why}")]
    Bundle {
        /// The name.
        name: String,
        /// Who names it.
        origin: String,
        /// Why not.
        why: NoBundle,
    },
    /// A protected path to be lifted that is not protected.
    #[error("cannot unprotect {} ({origin}): it is not protected", shown(path))]
    NotProtected {
        /// The path.
        path: PathBuf,
        /// Who names it.
        origin: String,
    },
}

impl PlanError {
    /// The stable code.
    pub fn code(&self) -> StartCode {
        match self {
            PlanError::MissingLayer { .. } => StartCode::LayerMissing,
            PlanError::SideChannels { .. } => StartCode::SideChannels,
            PlanError::Unsupported { .. } => StartCode::Unsupported,
            PlanError::CannotObserve => StartCode::CannotObserve,
            PlanError::NoFirstExec { .. } => StartCode::NoFirstExec,
            PlanError::NoAuthorities => StartCode::NoAuthorities,
            PlanError::UpstreamProxy { .. } => StartCode::UpstreamProxy,
            PlanError::MissingPath { .. } => StartCode::PathMissing,
            PlanError::RefusedPath { .. } => StartCode::PathRefused,
            PlanError::HiddenWalk { .. } => StartCode::HideTooBroad,
            PlanError::GuardedPath { .. } => StartCode::PathGuarded,
            PlanError::Workspace { .. } => StartCode::WorkspaceRefused,
            PlanError::CopyOnWrite { .. } => StartCode::CopyOnWrite,
            PlanError::WorkingDirectory { .. } => StartCode::WorkingDirectory,
            PlanError::Boot { .. } | PlanError::User { .. } => StartCode::Unsupported,
            PlanError::NoCommand => StartCode::NoCommand,
            PlanError::UnknownSyscalls { .. } => StartCode::UnknownSyscalls,
            PlanError::Capability { .. } => StartCode::CapabilityRefused,
            PlanError::Socket { .. } => StartCode::SocketRefused,
            PlanError::Key { .. } => StartCode::KeyRefused,
            PlanError::Bundle { .. } => StartCode::BundleRefused,
            PlanError::NotProtected { .. } => StartCode::NotProtected,
        }
    }
}
