//! Why a command could not run, or how it ended by itself.

use ironcage_files::ReadError;
use ironcage_model::{Printable, WASM_SETTINGS};
use std::ffi::OsString;
use std::io;
use std::path::PathBuf;

#[derive(Debug, thiserror::Error)]
pub(crate) enum RunError {
    #[error("ironcage-wasm runs inside a cage only: {0}")]
    NotInCage(#[source] ReadError),
    #[error("cannot read {WASM_SETTINGS}: {0}")]
    Settings(#[source] serde_json::Error),
    #[error("cannot read the WebAssembly file: no file was named")]
    NoCommand,
    #[error("cannot read the WebAssembly file: {0}")]
    Module(#[source] ReadError),
    #[error("cannot run {}: it is not a WebAssembly file", Printable::new(.0))]
    NotWasm(PathBuf),
    #[error("cannot run {}: {cause}", Printable::new(path))]
    Invalid { path: PathBuf, cause: String },
    #[error("cannot run {}: it exports no function `_start`, so it is a library and not a command", Printable::new(.0))]
    NoStart(PathBuf),
    #[error("cannot pass the argument {}: WASI arguments are UTF-8", Printable::new(.0))]
    Argument(OsString),
    #[error("cannot open the directory {}: {cause}", path.display())]
    Directory { path: PathBuf, cause: String },
    #[error("cannot start the WebAssembly runtime: {0}")]
    Engine(String),
    #[error("cannot find the working directory: {0}")]
    WorkingDirectory(#[source] io::Error),
    #[error("the command executed more instructions than `limits.fuel` allows ({0})")]
    Fuel(u64),
    #[error("the command trapped: {0}")]
    Trap(String),
}

impl RunError {
    /// As a shell has it: 127 for what is not there, 126 for what cannot be executed, 128 and the
    /// number of SIGABRT for a command that ended by a fault of its own.
    pub(crate) fn status(&self) -> u8 {
        match self {
            RunError::Module(error) if error.is_absent() => 127,
            RunError::Fuel(_) | RunError::Trap(_) => 134,
            RunError::NotInCage(_)
            | RunError::Settings(_)
            | RunError::NoCommand
            | RunError::Module(_)
            | RunError::NotWasm(_)
            | RunError::Invalid { .. }
            | RunError::NoStart(_)
            | RunError::Argument(_)
            | RunError::Directory { .. }
            | RunError::Engine(_)
            | RunError::WorkingDirectory(_) => 126,
        }
    }

    pub(crate) fn hint(&self) -> Option<&'static str> {
        match self {
            RunError::NotInCage(_) => {
                Some("run a WebAssembly file with `ironcage run --isolation wasm -- FILE`")
            }
            RunError::Module(error) if error.is_absent() => {
                Some("only the cage's own files are there; `-r FILE` makes another one readable")
            }
            RunError::NotWasm(_) => Some(
                "a cage with --isolation wasm executes WebAssembly only; use --isolation namespace for programs",
            ),
            RunError::NoStart(_) => Some("build it for the target wasm32-wasip1 or wasm32-wasip2"),
            RunError::Fuel(_) => Some("raise it with --fuel NUMBER"),
            _ => None,
        }
    }
}
