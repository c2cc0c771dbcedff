//! Policy text to `PolicyFile` to `Policy`.
//!
//! Parses, inherits profiles, merges layers of files and flags, lints, decides trust. It
//! does not look at what the host can enforce (that is `host`) and makes no mounts or
//! filters of it (that is `plan`).
#![forbid(unsafe_code)]

pub mod bundles;
mod ceiling;
mod chain;
mod child;
mod diagnostic;
mod error;
pub mod export;
mod file;
mod flags;
mod fragment;
mod granted;
mod hide;
pub mod import;
mod lint;
pub mod logins;
mod merge;
mod narrow;
mod network;
mod origin;
mod parse;
mod policy;
mod profiles;
mod quantity;
mod questions;
mod quoted;
mod reach;
mod resolve;
mod rules;
pub mod schema;
mod search;
mod signing_keys;
mod taint;
mod tool_rules;
mod tool_sections;
mod trust;

pub use ceiling::{Ceiling, CeilingLimit, CeilingOther, CeilingPath, CeilingWhat, Drift};
pub use child::{ChildPolicyError, child_policy};
pub use diagnostic::Diagnostic;
pub use error::PolicyError;
pub use file::{
    AlwaysNetwork, AwsSection, CeilingAlways, CeilingFiles, CeilingLimits, CeilingNetwork,
    CeilingPart, CeilingProcess, CeilingSection, CeilingSyscalls, CpusText, DriftSection,
    EnvSection, FilesSection, KeysSection, LayersSection, LimitsSection, LoginSection,
    NetworkSection, PolicyFile, ProcessSection, QuestionsSection, StateSection, SyscallsSection,
    TaintSection, WorkspaceSection,
};
pub use flags::FlagLayer;
pub use granted::granted;
pub use hide::{HidePattern, Progress};
pub use ironcage_catalog::{
    Executed, Fixed, GitKey, Listed, Masked, Sensitive, caches, capabilities, commands,
    credentials, executed, git, guarded, keys, protected, sensitive, syscalls, system, toolchains,
};
pub use narrow::is_no_wider;
pub use network::{
    InvalidHostRule, InvalidNetworkLimit, InvalidNetworkMode, Network, NetworkLimit,
    NetworkLimitName, NetworkMode, Resolve, UpstreamChoice, UpstreamRule, allowed, aws, denied,
    host_name, network_limits, no_proxy, requests, secret, upstream,
};
pub use origin::Origin;
pub use parse::parse;
pub use policy::{
    Amount, Cpus, EnvRule, InvalidEnvRule, InvalidMode, InvalidSideChannels, Limits, Policy,
    SideChannels, Sourced, WorkspaceMode,
};
pub use profiles::{Profile, defaults_text, profile, profiles, template};
pub use quantity::{InvalidQuantity, Size, TimeLimit};
pub use questions::{ControlKey, InvalidKey, Questions};
pub use quoted::quoted;
pub use reach::{Amounts, Reach};
pub use resolve::{Examined, Resolved, Sources, examine, resolve, resolve_profile};
pub use rules::RulesFile;
pub use search::{FILE_NAME, find_policy_file};
pub use signing_keys::{SignKeyRule, SigningKeys, SshKeyName, SshKeyRule};
pub use taint::TaintRules;
pub use tool_sections::{ArgumentsSection, ConstraintSection, McpSection, ToolsSection};
pub use trust::{TrustDigest, TrustError, TrustStore, TrustedFile};
