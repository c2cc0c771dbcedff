//! `ironcage-wasm`: runs one WebAssembly command, as the only program of a cage.
//!
//! PID 1 of a cage with `--isolation wasm` executes it in place of the command: its first argument
//! is the WebAssembly file, and what the command is given stands in a file that only Ironcage
//! writes ([`WASM_SETTINGS`]). The kernel holds the cage's rules around this process. A module that
//! breaks out of the runtime is a process in a namespace cage, no more.
#![forbid(unsafe_code)]

mod command;
mod error;
mod limits;

use error::RunError;
use ironcage_model::{WASM_SETTINGS, WasmSettings};
use std::io::Write as _;
use std::path::Path;
use std::process::ExitCode;

/// Longest settings file. Ironcage writes it; a longer one is a mistake.
const LONGEST_SETTINGS: u64 = 1024 * 1024;

fn main() -> ExitCode {
    match run() {
        Ok(status) => ExitCode::from(status),
        Err(error) => {
            let mut out = std::io::stderr();
            // Nothing to do if nobody reads it.
            let _ = writeln!(out, "error: {error}");
            if let Some(hint) = error.hint() {
                let _ = writeln!(out, "hint: {hint}");
            }
            ExitCode::from(error.status())
        }
    }
}

fn run() -> Result<u8, RunError> {
    let path = Path::new(WASM_SETTINGS);
    let text = ironcage_files::read_text(path, LONGEST_SETTINGS, ironcage_files::Links::Refuse)
        .map_err(RunError::NotInCage)?;
    let settings: WasmSettings = serde_json::from_str(&text).map_err(RunError::Settings)?;
    command::run(&settings, std::env::args_os().collect())
}
