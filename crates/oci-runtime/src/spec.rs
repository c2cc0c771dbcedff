//! `config.json` of a bundle, as far as it is about Linux (OCI runtime specification 1.2).
//!
//! Fields that nobody here knows are ignored, as the specification wants it; those that are known
//! and cannot be honoured are refused in `check.rs`.

use crate::error::{Error, IoContext as _};
use serde::{Deserialize, Deserializer, Serialize};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// The version of the specification that this program reads.
pub(crate) const VERSION: &str = "1.2.0";

/// A `config.json` is never this large: Docker's longest, with a filter, has some 60 KB.
const LARGEST: u64 = 8 << 20;

/// `null` where a list or a table may stand, as some engines write it.
fn or_default<'de, D, T>(source: D) -> Result<T, D::Error>
where
    D: Deserializer<'de>,
    T: Default + Deserialize<'de>,
{
    Ok(Option::<T>::deserialize(source)?.unwrap_or_default())
}

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct Spec {
    pub(crate) oci_version: String,
    pub(crate) root: Option<Root>,
    #[serde(deserialize_with = "or_default")]
    pub(crate) mounts: Vec<Mount>,
    pub(crate) process: Option<Process>,
    pub(crate) hostname: String,
    pub(crate) domainname: String,
    #[serde(deserialize_with = "or_default")]
    pub(crate) hooks: Hooks,
    #[serde(deserialize_with = "or_default")]
    pub(crate) annotations: BTreeMap<String, String>,
    #[serde(deserialize_with = "or_default")]
    pub(crate) linux: Linux,
}

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct Root {
    pub(crate) path: PathBuf,
    pub(crate) readonly: bool,
}

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct Mount {
    pub(crate) destination: PathBuf,
    #[serde(rename = "type")]
    pub(crate) kind: String,
    pub(crate) source: PathBuf,
    #[serde(deserialize_with = "or_default")]
    pub(crate) options: Vec<String>,
    #[serde(deserialize_with = "or_default", skip_serializing_if = "Vec::is_empty")]
    pub(crate) uid_mappings: Vec<IdMapping>,
    #[serde(deserialize_with = "or_default", skip_serializing_if = "Vec::is_empty")]
    pub(crate) gid_mappings: Vec<IdMapping>,
}

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct Process {
    pub(crate) terminal: bool,
    pub(crate) console_size: Option<ConsoleSize>,
    #[serde(deserialize_with = "or_default")]
    pub(crate) user: User,
    #[serde(deserialize_with = "or_default")]
    pub(crate) args: Vec<String>,
    #[serde(deserialize_with = "or_default")]
    pub(crate) env: Vec<String>,
    pub(crate) cwd: PathBuf,
    pub(crate) capabilities: Option<Capabilities>,
    #[serde(deserialize_with = "or_default")]
    pub(crate) rlimits: Vec<Rlimit>,
    pub(crate) no_new_privileges: bool,
    pub(crate) apparmor_profile: String,
    pub(crate) oom_score_adj: Option<i32>,
    pub(crate) selinux_label: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) scheduler: Option<serde_json::Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) io_priority: Option<serde_json::Value>,
}

#[derive(Debug, Clone, Copy, Default, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct ConsoleSize {
    pub(crate) height: u16,
    pub(crate) width: u16,
}

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct User {
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    pub(crate) umask: Option<u32>,
    #[serde(deserialize_with = "or_default")]
    pub(crate) additional_gids: Vec<u32>,
}

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Capabilities {
    #[serde(deserialize_with = "or_default")]
    pub(crate) bounding: Vec<String>,
    #[serde(deserialize_with = "or_default")]
    pub(crate) effective: Vec<String>,
    #[serde(deserialize_with = "or_default")]
    pub(crate) inheritable: Vec<String>,
    #[serde(deserialize_with = "or_default")]
    pub(crate) permitted: Vec<String>,
    #[serde(deserialize_with = "or_default")]
    pub(crate) ambient: Vec<String>,
}

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Rlimit {
    #[serde(rename = "type")]
    pub(crate) kind: String,
    pub(crate) soft: u64,
    pub(crate) hard: u64,
}

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct Hooks {
    #[serde(deserialize_with = "or_default")]
    pub(crate) prestart: Vec<Hook>,
    #[serde(deserialize_with = "or_default")]
    pub(crate) create_runtime: Vec<Hook>,
    #[serde(deserialize_with = "or_default")]
    pub(crate) create_container: Vec<Hook>,
    #[serde(deserialize_with = "or_default")]
    pub(crate) start_container: Vec<Hook>,
    #[serde(deserialize_with = "or_default")]
    pub(crate) poststart: Vec<Hook>,
    #[serde(deserialize_with = "or_default")]
    pub(crate) poststop: Vec<Hook>,
}

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Hook {
    pub(crate) path: PathBuf,
    #[serde(deserialize_with = "or_default")]
    pub(crate) args: Vec<String>,
    #[serde(deserialize_with = "or_default")]
    pub(crate) env: Vec<String>,
    pub(crate) timeout: Option<u32>,
}

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct Linux {
    #[serde(deserialize_with = "or_default")]
    pub(crate) uid_mappings: Vec<IdMapping>,
    #[serde(deserialize_with = "or_default")]
    pub(crate) gid_mappings: Vec<IdMapping>,
    #[serde(deserialize_with = "or_default")]
    pub(crate) sysctl: BTreeMap<String, String>,
    #[serde(deserialize_with = "or_default")]
    pub(crate) resources: Resources,
    pub(crate) cgroups_path: String,
    #[serde(deserialize_with = "or_default")]
    pub(crate) namespaces: Vec<Namespace>,
    #[serde(deserialize_with = "or_default")]
    pub(crate) devices: Vec<Device>,
    pub(crate) seccomp: Option<Seccomp>,
    pub(crate) rootfs_propagation: String,
    #[serde(deserialize_with = "or_default")]
    pub(crate) masked_paths: Vec<PathBuf>,
    #[serde(deserialize_with = "or_default")]
    pub(crate) readonly_paths: Vec<PathBuf>,
    pub(crate) mount_label: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) intel_rdt: Option<serde_json::Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) personality: Option<serde_json::Value>,
    #[serde(
        deserialize_with = "or_default",
        skip_serializing_if = "BTreeMap::is_empty"
    )]
    pub(crate) time_offsets: BTreeMap<String, serde_json::Value>,
}

#[derive(Debug, Clone, Copy, Default, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct IdMapping {
    #[serde(rename = "containerID")]
    pub(crate) container: u32,
    #[serde(rename = "hostID")]
    pub(crate) host: u32,
    pub(crate) size: u32,
}

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Namespace {
    #[serde(rename = "type")]
    pub(crate) kind: String,
    pub(crate) path: PathBuf,
}

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct Device {
    pub(crate) path: PathBuf,
    #[serde(rename = "type")]
    pub(crate) kind: String,
    pub(crate) major: i64,
    pub(crate) minor: i64,
    pub(crate) file_mode: Option<u32>,
    pub(crate) uid: Option<u32>,
    pub(crate) gid: Option<u32>,
}

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct Seccomp {
    pub(crate) default_action: String,
    pub(crate) default_errno_ret: Option<u32>,
    #[serde(deserialize_with = "or_default")]
    pub(crate) architectures: Vec<String>,
    #[serde(deserialize_with = "or_default")]
    pub(crate) flags: Vec<String>,
    pub(crate) listener_path: String,
    #[serde(deserialize_with = "or_default")]
    pub(crate) syscalls: Vec<SyscallRule>,
}

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct SyscallRule {
    #[serde(deserialize_with = "or_default")]
    pub(crate) names: Vec<String>,
    pub(crate) action: String,
    pub(crate) errno_ret: Option<u32>,
    #[serde(deserialize_with = "or_default")]
    pub(crate) args: Vec<SyscallArgument>,
}

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct SyscallArgument {
    pub(crate) index: u32,
    pub(crate) value: u64,
    pub(crate) value_two: u64,
    pub(crate) op: String,
}

/// Limits. Those that are not given are left as they are, which `update` relies on.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct Resources {
    #[serde(deserialize_with = "or_default")]
    pub(crate) devices: Vec<DeviceRule>,
    #[serde(deserialize_with = "or_default")]
    pub(crate) memory: Memory,
    #[serde(deserialize_with = "or_default")]
    pub(crate) cpu: Cpu,
    #[serde(deserialize_with = "or_default")]
    pub(crate) pids: Pids,
    #[serde(rename = "blockIO", deserialize_with = "or_default")]
    pub(crate) block_io: BlockIo,
    #[serde(deserialize_with = "or_default")]
    pub(crate) hugepage_limits: Vec<HugepageLimit>,
    #[serde(deserialize_with = "or_default")]
    pub(crate) network: Network,
    #[serde(deserialize_with = "or_default")]
    pub(crate) unified: BTreeMap<String, String>,
}

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct DeviceRule {
    pub(crate) allow: bool,
    #[serde(rename = "type")]
    pub(crate) kind: String,
    pub(crate) major: Option<i64>,
    pub(crate) minor: Option<i64>,
    pub(crate) access: String,
}

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct Memory {
    pub(crate) limit: Option<i64>,
    pub(crate) reservation: Option<i64>,
    pub(crate) swap: Option<i64>,
    pub(crate) swappiness: Option<u64>,
    #[serde(rename = "disableOOMKiller")]
    pub(crate) disable_oom_killer: Option<bool>,
}

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct Cpu {
    pub(crate) shares: Option<u64>,
    pub(crate) quota: Option<i64>,
    pub(crate) period: Option<u64>,
    pub(crate) burst: Option<u64>,
    pub(crate) realtime_runtime: Option<i64>,
    pub(crate) realtime_period: Option<u64>,
    pub(crate) cpus: String,
    pub(crate) mems: String,
    pub(crate) idle: Option<i64>,
}

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Pids {
    pub(crate) limit: Option<i64>,
}

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct BlockIo {
    pub(crate) weight: Option<u16>,
    #[serde(deserialize_with = "or_default")]
    pub(crate) throttle_read_bps_device: Vec<Throttle>,
    #[serde(deserialize_with = "or_default")]
    pub(crate) throttle_write_bps_device: Vec<Throttle>,
    #[serde(rename = "throttleReadIOPSDevice", deserialize_with = "or_default")]
    pub(crate) throttle_read_iops_device: Vec<Throttle>,
    #[serde(rename = "throttleWriteIOPSDevice", deserialize_with = "or_default")]
    pub(crate) throttle_write_iops_device: Vec<Throttle>,
}

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Throttle {
    pub(crate) major: i64,
    pub(crate) minor: i64,
    pub(crate) rate: u64,
}

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct HugepageLimit {
    pub(crate) page_size: String,
    pub(crate) limit: u64,
}

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct Network {
    #[serde(rename = "classID")]
    pub(crate) class: Option<u32>,
    #[serde(deserialize_with = "or_default")]
    pub(crate) priorities: Vec<serde_json::Value>,
}

/// Reads a JSON file of an engine.
pub(crate) fn read<T: for<'de> Deserialize<'de>>(path: &Path) -> Result<T, Error> {
    let action = || format!("read {}", path.display());
    let text = ironcage_files::read(path, LARGEST, ironcage_files::Links::Follow)
        .map_err(|error| Error::refused(action(), error.reason()))?;
    parse(&text).map_err(|error| Error::refused(action(), error))
}

/// Parses JSON; deep nesting is refused by the parser.
pub(crate) fn parse<T: for<'de> Deserialize<'de>>(text: &[u8]) -> Result<T, serde_json::Error> {
    serde_json::from_slice(text)
}

/// Reads what a command gets on its standard input, up to the same size.
pub(crate) fn read_input<T: for<'de> Deserialize<'de>>() -> Result<T, Error> {
    use std::io::Read as _;
    let mut text = Vec::new();
    std::io::stdin()
        .take(LARGEST)
        .read_to_end(&mut text)
        .doing(|| "read standard input".into())?;
    parse(&text).map_err(|error| Error::refused("read standard input", error))
}
