//! `ironcage-reader`: reads a command from its input and prints what it needs.
//!
//! One JSON object goes in, with the command and where it would run; one comes out. It opens only
//! the files that the command would execute, executes nothing and connects to nothing.
#![forbid(unsafe_code)]

use ironcage_intent::{Context, ReadRequest, Shell, Table};
use ironcage_reader::Reader;
use ironcage_sys::rustix::process::{
    DumpableBehavior, Resource, Rlimit, set_dumpable_behavior, setrlimit,
};
use std::io::{self, Read, Write};
use std::process::ExitCode;

/// Longest request.
const LONGEST: u64 = 1024 * 1024;

fn main() -> ExitCode {
    match answer() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // Nothing to do if nobody reads it.
            let _ = writeln!(io::stderr(), "error: cannot read the command: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Seconds of CPU time, and bytes of memory: reading is bounded by itself, and these hold if it is
/// not.
const MOST_SECONDS: u64 = 2;
const MOST_MEMORY: u64 = 1 << 30;

fn limit() -> io::Result<()> {
    // Not by a limit: a cage denies changes of the one on core dumps.
    set_dumpable_behavior(DumpableBehavior::NotDumpable)?;
    for (resource, most) in [
        (Resource::Cpu, MOST_SECONDS),
        (Resource::As, MOST_MEMORY),
        (Resource::Fsize, 0),
    ] {
        let limit = Rlimit {
            current: Some(most),
            maximum: Some(most),
        };
        setrlimit(resource, limit)?;
    }
    Ok(())
}

fn answer() -> Result<(), Box<dyn std::error::Error>> {
    limit()?;
    let mut text = Vec::new();
    io::stdin().lock().take(LONGEST).read_to_end(&mut text)?;
    let request: ReadRequest = serde_json::from_slice(&text)?;
    let reader = match request.files {
        true => Reader::with_files()?,
        false => Reader::without_files()?,
    };
    let table = Table::shipped()?.following(Box::new(reader));
    let context = Context {
        cwd: request.cwd,
        home: request.home,
    };
    let needs = Shell::new(&table).read(&request.command, &context);
    let mut out = io::stdout().lock();
    serde_json::to_writer(&mut out, &needs)?;
    out.write_all(b"\n")?;
    Ok(())
}
