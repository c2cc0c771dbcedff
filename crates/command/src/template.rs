//! The arguments of `ironcage template`. `ironcage-registry` executes them.

#![allow(
    missing_docs,
    reason = "the comments are help texts, and these have none of their own"
)]

use clap::{Subcommand, ValueHint};
use std::path::PathBuf;

/// Build and list templates: a system, a policy and set-up commands
///
/// `ironcage run --template NAME` starts a cage from one. Each set-up command runs once, in a cage;
/// a later build runs only what changed.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(subcommand)]
    pub command: Action,
}

#[derive(Debug, Subcommand)]
pub enum Action {
    /// Build a template from a file
    ///
    /// The file names a base (`image` or `root`), `steps`, the `files` that they read, and the
    /// `profile` or `policy` of cages from the template.
    Build {
        /// Name of the template
        name: String,
        /// Template file
        #[arg(default_value = "template.toml", value_hint = ValueHint::FilePath)]
        file: PathBuf,
        /// Run every step, also those that did not change
        #[arg(long)]
        no_cache: bool,
        /// Print nothing but errors
        #[arg(long, short)]
        quiet: bool,
    },
    /// List templates
    List {
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Show one template
    Show {
        /// Name of the template
        name: String,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Remove images of steps that no template is built on
    ///
    /// A later build with such a step runs it again.
    Prune,
    /// Remove templates
    ///
    /// Images of their steps stay for later builds; `ironcage template prune` removes them.
    Rm {
        /// Names
        #[arg(required = true, value_name = "NAME")]
        names: Vec<String>,
    },
}
