//! Policy x Request x HostCaps to Plan.
//!
//! Pure: looks at the host only through `HostFiles`, changes nothing. The plan is the waist
//! of Ironcage: what it holds is what will be enforced, in order, and nothing that comes
//! after it reads the policy again.
#![warn(missing_docs)]
#![forbid(unsafe_code)]

mod agent_help;
mod bind;
mod boot;
mod bounds;
mod bytes;
mod command;
mod error;
mod etc;
mod explain;
mod filter;
mod filter_leased;
mod filter_shared;
mod guarded;
mod identity;
mod isolation;
mod key_agent_error;
mod keys;
mod leases;
mod locate;
mod login;
mod make;
mod microvm;
mod network;
mod network_notes;
pub mod observed;
mod oci;
mod persistent_state;
mod plan;
mod prepared;
mod request;
mod scope;
pub mod seccomp;
mod shared;
mod shell;
mod signing;
mod sockets;
mod system_root;
mod taint;
mod task;
mod toolchains;
mod trust;
mod upstream;
mod user;
mod view;
mod wasm;
mod workspace;

pub use bind::{BindError, Bindings, BoundPlan, ChangeBinding, FileBinding};
pub use bounds::amounts;
pub use error::{NoBundle, NoCapability, NoOverlay, NoSocket, PlanError};
pub use explain::{Detail, UNCOVERED_VALUES, explain};
pub use filter::{
    container as container_filter, keys as key_filter, proxy as proxy_filter, vmm as vmm_filter,
};
pub use identity::git::{GitSetting, git_settings};
pub use ironcage_guest::KVM;
pub use isolation::enforcement;
pub use key_agent_error::{GpgKeyError, KeyAgentError, PublicKeyError};
pub use leases::{
    ClosedPlace, Drift, LeasePart, LeasePath, LeaseRules, Leases, PermissionRequestTerms,
    protected_names,
};
pub use locate::{Located, PathStatus, guard, locate};
pub use login::PlannedLogin;
pub use make::make;
pub use microvm::{
    Acceleration, BootReason, GuestFiles, GuestStart, GuestTemplate, Microvm, NoKvm, QEMU_FIRMWARE,
    QEMU_PROGRAM, template_machine,
};
pub use network::{
    FixedAddress, HostPort, ModelHost, Models, Network, NetworkRule, PlannedAws, PlannedSecret,
    RequestRule,
};
pub use oci::{CONTAINER_INIT, OciRuntime, RuntimeProgram, installed_runtimes};
pub use plan::*;
pub use prepared::{OwnPart, StaticPart, Unfit};
pub use request::{
    AskedHost, BootRequest, ChangeLayer, ChangePlace, GitPlace, GpgAgent, GpgAgentKey, ImageRoot,
    KeptPlaces, KeyAgents, OwnDirectories, Request, RunUser, SshAgent, SshAgentKey, ToolSettings,
    UserOrigin,
};
pub use signing::{
    GpgSigning, KeyProblem, LoginHost, PlannedGpgKey, PlannedSshKey, Signing, SshSigning,
};
pub use sockets::{AllowedSocket, commands as socket_controls};
pub use taint::{Marking, PrivatePlace, UntrustedHost};
pub use task::{TaskScope, TaskSource};
pub use upstream::{PlannedProxy, ProxyCredentials, UpstreamProxy};
