//! Policy x Request x HostCaps to Plan.
//!
//! Pure: looks at the host only through `HostFiles`, changes nothing. The plan is the waist
//! of Ironcage: what it holds is what will be enforced, in order, and nothing that comes
//! after it reads the policy again.
#![forbid(unsafe_code)]

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
mod kept;
mod leases;
mod locate;
mod login;
mod make;
mod network;
mod network_notes;
pub mod observed;
mod oci;
mod plan;
mod request;
mod rung;
mod scope;
pub mod seccomp;
mod shared;
mod shell;
mod sockets;
mod taint;
mod toolchains;
mod trust;
mod view;
mod workspace;

pub use bounds::amounts;
pub use error::PlanError;
pub use explain::{Detail, explain};
pub use filter::door as door_filter;
pub use identity::git::{GitSetting, git_settings};
pub use leases::{
    ClosedPlace, Drift, LeasePart, LeasePath, LeaseRules, Leases, QuestionTerms, protected_names,
};
pub use locate::{Located, Standing, guard, locate};
pub use login::PlannedLogin;
pub use make::make;
pub use network::{
    FixedAddress, HostPort, Models, Network, NetworkRule, PlannedAws, PlannedSecret, RequestRule,
};
pub use oci::{CONTAINER_INIT, OciRuntime, installed_runtime};
pub use plan::*;
pub use request::{AskedHost, ChangeLayer, ChangePlace, KeptPlaces, OwnDirectories, Request};
pub use rung::enforcement;
pub use sockets::AllowedSocket;
pub use taint::{Marking, PrivatePlace, UntrustedHost};
