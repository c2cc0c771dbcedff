//! Settings that a cage with the isolation level `wasm` hands to the program that runs WebAssembly in it.

use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// Where the program is inside.
pub const WASM_PROGRAM: &str = "/.ironcage/bin/wasm";
/// Where its settings are inside, as JSON.
pub const WASM_SETTINGS: &str = "/.ironcage/wasm.json";

/// How WebAssembly commands of a cage run. The kernel holds the cage's rules around the program;
/// these decide what of the cage a WebAssembly command is given at all.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WasmSettings {
    /// Directories that a command can open files below, by the same paths.
    pub directories: Vec<PathBuf>,
    /// Whether it can use sockets and look names up: only where the cage has an egress proxy.
    pub network: bool,
    /// Bytes of memory and tables, of one command.
    pub memory: u64,
    /// Instructions that one command may execute, roughly; without it there is no such limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fuel: Option<u64>,
}
