//! The `ironcage-registry` program: container images, from registries and archives to the store, and
//! templates that are built on them.
//!
//! `ironcage image` and `ironcage template` execute it. It is apart so that the program that starts cages has no HTTP
//! client in it.
#![forbid(unsafe_code)]

mod credentials;
mod images;
mod mirrors;
mod progress;
mod pull;
mod templates;

use clap::{Parser, Subcommand};
use ironcage_command::error::{CliError, EXIT_OURS};
use ironcage_command::failure::FailureCode;
use ironcage_command::{image, template};
use ironcage_images::{ImageError, Store};
use ironcage_sys::rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::path::PathBuf;
use std::process::ExitCode;

/// Manage container images and templates
// Who reads its help typed `ironcage`.
#[derive(Debug, Parser)]
#[command(name = "ironcage", version, max_term_width = 100)]
struct Cli {
    /// Where images are kept
    #[arg(long, hide = true)]
    store: PathBuf,
    /// The workspace whose last cage is meant
    #[arg(long, hide = true)]
    workspace: Option<PathBuf>,
    /// The program that starts cages
    #[arg(long, hide = true, default_value = "ironcage")]
    ironcage: PathBuf,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Image(image::Args),
    Template(template::Args),
}

/// Memory of this program at most. The HTTP client reads a manifest whole, whatever its size.
const MOST_MEMORY: u64 = 2 << 30;

/// Lowers the memory limit to [`MOST_MEMORY`]; a lower one stays.
fn limit_memory() -> Result<(), CliError> {
    let now = getrlimit(Resource::Data);
    let least = |now: Option<u64>| Some(now.map_or(MOST_MEMORY, |now| now.min(MOST_MEMORY)));
    let limit = Rlimit {
        current: least(now.current),
        maximum: least(now.maximum),
    };
    setrlimit(Resource::Data, limit)
        .map_err(|error| CliError::new(format!("cannot limit the memory of this program: {error}")))
}

fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => {
            // Printing can only fail because nobody is left to read it.
            let _ = error.print();
            return ExitCode::from(if error.use_stderr() { EXIT_OURS } else { 0 });
        }
    };
    let store = || Store::open(&cli.store).map_err(|error| image_error(&error));
    let result = match cli.command {
        Command::Image(args) => limit_memory()
            .and_then(|()| store())
            .and_then(|store| images::run(&store, cli.workspace.as_deref(), args.command)),
        // Without the limit, which its cages would inherit.
        Command::Template(args) => {
            store().and_then(|store| templates::run(&store, &cli.ironcage, args.command))
        }
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            error.print();
            ExitCode::from(EXIT_OURS)
        }
    }
}

/// An error about an image, for the terminal.
fn image_error(error: &ImageError) -> CliError {
    let shown = CliError::from_error(error);
    let shown = match error {
        ImageError::InUse { .. }
        | ImageError::OfTemplate { .. }
        | ImageError::SharedInUse { .. } => shown.with_failure(FailureCode::ImageInUse),
        ImageError::NothingToCommit => shown.with_failure(FailureCode::NothingToCommit),
        ImageError::NoTemplate { .. } => shown.with_failure(FailureCode::NoSuchTemplate),
        ImageError::SharedIsRoots => shown.with_failure(FailureCode::SharedStoreIsRoots),
        _ => shown,
    };
    match error.hint() {
        Some(hint) => shown.hint(hint),
        None => shown,
    }
}
