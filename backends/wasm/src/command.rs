//! Reads a WebAssembly file, gives it what the settings say, and runs it to its end.

use crate::error::RunError;
use crate::limits::MemoryLimit;
use ironcage_files::Links;
use ironcage_model::WasmSettings;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use wasmtime::component::{Component, Linker as ComponentLinker, ResourceTable};
use wasmtime::{Config, Engine, Linker, Module, Store, Trap};
use wasmtime_wasi::p1::WasiP1Ctx;
use wasmtime_wasi::p2::bindings::sync::Command;
use wasmtime_wasi::{FsPerms, I32Exit, WasiCtx, WasiCtxBuilder, WasiCtxView, WasiView};

/// Largest WebAssembly file. Interpreters of languages have some 30 MB.
const LARGEST_FILE: u64 = 256 * 1024 * 1024;

/// What a command of WASI preview 1 has.
struct CoreState {
    wasi: WasiP1Ctx,
    limit: MemoryLimit,
}

/// What a command of WASI preview 2 has.
struct ComponentState {
    wasi: WasiCtx,
    table: ResourceTable,
    limit: MemoryLimit,
}

impl WasiView for ComponentState {
    fn ctx(&mut self) -> WasiCtxView<'_> {
        WasiCtxView {
            ctx: &mut self.wasi,
            table: &mut self.table,
        }
    }
}

/// The first bytes of a WebAssembly file tell a core module from a component.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Binary {
    Core,
    Component,
}

impl Binary {
    fn of(bytes: &[u8]) -> Option<Binary> {
        match bytes.get(..8)? {
            b"\0asm\x01\0\0\0" => Some(Binary::Core),
            // The layer is 1; the version before it still changes from draft to draft.
            [0, b'a', b's', b'm', _, _, 1, 0] => Some(Binary::Component),
            _ => None,
        }
    }
}

/// Runs the command that `words` names, and returns its exit status.
pub(crate) fn run(settings: &WasmSettings, words: Vec<OsString>) -> Result<u8, RunError> {
    let path = PathBuf::from(words.first().ok_or(RunError::NoCommand)?);
    let bytes =
        ironcage_files::read(&path, LARGEST_FILE, Links::Follow).map_err(RunError::Module)?;
    let binary = Binary::of(&bytes).ok_or_else(|| RunError::NotWasm(path.clone()))?;
    let engine = engine(settings)?;
    let mut wasi = context(settings, words)?;
    let limit = MemoryLimit::new(settings.memory);
    let ended = match binary {
        Binary::Core => run_core(&engine, &path, &bytes, settings, wasi.build_p1(), limit)?,
        Binary::Component => run_component(&engine, &path, &bytes, settings, wasi.build(), limit)?,
    };
    match ended {
        Ok(status) => Ok(status),
        Err(error) => status_of(&error, settings),
    }
}

/// What running it came to: an exit status, or an error that may be the exit of the command.
type Ended = Result<u8, wasmtime::Error>;

fn run_core(
    engine: &Engine,
    path: &Path,
    bytes: &[u8],
    settings: &WasmSettings,
    wasi: WasiP1Ctx,
    limit: MemoryLimit,
) -> Result<Ended, RunError> {
    let module = Module::from_binary(engine, bytes).map_err(|error| invalid(path, &error))?;
    let mut linker: Linker<CoreState> = Linker::new(engine);
    wasmtime_wasi::p1::add_to_linker_sync(&mut linker, |state| &mut state.wasi)
        .map_err(|error| RunError::Engine(format!("{error:#}")))?;
    let mut store = Store::new(engine, CoreState { wasi, limit });
    store.limiter(|state| &mut state.limit);
    fuel(&mut store, settings)?;
    if module.get_export("_start").is_none() {
        return Err(RunError::NoStart(path.to_owned()));
    }
    let instance = match linker.instantiate(&mut store, &module) {
        Ok(instance) => instance,
        // A start section already runs code of the module.
        Err(error) if error.is::<Trap>() || error.is::<I32Exit>() => return Ok(Err(error)),
        Err(error) => return Err(invalid(path, &error)),
    };
    let start = instance
        .get_typed_func::<(), ()>(&mut store, "_start")
        .map_err(|error| invalid(path, &error))?;
    Ok(start.call(&mut store, ()).map(|()| 0))
}

fn run_component(
    engine: &Engine,
    path: &Path,
    bytes: &[u8],
    settings: &WasmSettings,
    wasi: WasiCtx,
    limit: MemoryLimit,
) -> Result<Ended, RunError> {
    let component = Component::from_binary(engine, bytes).map_err(|error| invalid(path, &error))?;
    let mut linker: ComponentLinker<ComponentState> = ComponentLinker::new(engine);
    wasmtime_wasi::p2::add_to_linker_sync(&mut linker)
        .map_err(|error| RunError::Engine(format!("{error:#}")))?;
    let state = ComponentState {
        wasi,
        table: ResourceTable::new(),
        limit,
    };
    let mut store = Store::new(engine, state);
    store.limiter(|state| &mut state.limit);
    fuel(&mut store, settings)?;
    let command = match Command::instantiate(&mut store, &component, &linker) {
        Ok(command) => command,
        Err(error) if error.is::<Trap>() || error.is::<I32Exit>() => return Ok(Err(error)),
        Err(error) => return Err(invalid(path, &error)),
    };
    let ended = command.wasi_cli_run().call_run(&mut store);
    Ok(ended.map(|result| u8::from(result.is_err())))
}

fn engine(settings: &WasmSettings) -> Result<Engine, RunError> {
    let mut config = Config::new();
    config.consume_fuel(settings.fuel.is_some());
    Engine::new(&config).map_err(|error| RunError::Engine(format!("{error:#}")))
}

fn fuel<T>(store: &mut Store<T>, settings: &WasmSettings) -> Result<(), RunError> {
    match settings.fuel {
        Some(fuel) => store
            .set_fuel(fuel)
            .map_err(|error| RunError::Engine(format!("{error:#}"))),
        None => Ok(()),
    }
}

/// Arguments, environment, streams, directories and network, as the settings say.
fn context(settings: &WasmSettings, words: Vec<OsString>) -> Result<WasiCtxBuilder, RunError> {
    let mut wasi = WasiCtxBuilder::new();
    // One process, one command: a thread for each file operation would only wait for it.
    wasi.allow_blocking_current_thread(true);
    for word in words {
        wasi.arg(word.into_string().map_err(RunError::Argument)?);
    }
    for (name, value) in std::env::vars_os() {
        // A variable that is not text cannot be passed, and the command cannot ask for it either.
        if let (Ok(name), Ok(value)) = (name.into_string(), value.into_string()) {
            wasi.env(name, value);
        }
    }
    wasi.inherit_stdio();
    let here = std::env::current_dir().map_err(RunError::WorkingDirectory)?;
    // Relative paths of preview 1 are looked up below the directory that is called so.
    open(&mut wasi, &here, ".")?;
    for directory in &settings.directories {
        if let Some(name) = directory.to_str() {
            open(&mut wasi, directory, name)?;
        }
    }
    if let Some(here) = here.to_str() {
        wasi.initial_cwd(here);
    }
    if settings.network {
        // The egress proxy decides about each connection.
        wasi.inherit_network();
        wasi.allow_ip_name_lookup(true);
    } else {
        wasi.allow_tcp(false);
        wasi.allow_udp(false);
    }
    Ok(wasi)
}

/// Gives a directory. The kernel decides what may be read and written there.
fn open(wasi: &mut WasiCtxBuilder, path: &Path, name: &str) -> Result<(), RunError> {
    // A path of the policy that is a file: what the cage shows around it, which is little more.
    let around = path.parent().filter(|_| path.is_file());
    let (path, name) = match (around, around.and_then(Path::to_str)) {
        (Some(around), Some(name)) => (around, name),
        _ => (path, name),
    };
    // What the cage does not have, no program in it could open.
    if !path.exists() {
        return Ok(());
    }
    wasi.preopened_dir(path, name, FsPerms::ReadWrite)
        .map_err(|error| RunError::Directory {
            path: path.to_owned(),
            cause: format!("{error:#}"),
        })?;
    Ok(())
}

fn invalid(path: &Path, error: &wasmtime::Error) -> RunError {
    RunError::Invalid {
        path: path.to_owned(),
        cause: format!("{error:#}"),
    }
}

/// The exit status that a command chose, or why it ended without one.
fn status_of(error: &wasmtime::Error, settings: &WasmSettings) -> Result<u8, RunError> {
    if let Some(I32Exit(status)) = error.downcast_ref::<I32Exit>() {
        // As the kernel does with a process's.
        return Ok(status.to_le_bytes()[0]);
    }
    match (error.downcast_ref::<Trap>(), settings.fuel) {
        (Some(Trap::OutOfFuel), Some(fuel)) => Err(RunError::Fuel(fuel)),
        (Some(trap), _) => Err(RunError::Trap(trap.to_string())),
        (None, _) => Err(RunError::Trap(format!("{error:#}"))),
    }
}

#[cfg(test)]
#[path = "command_tests.rs"]
mod tests;
