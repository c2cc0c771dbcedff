//! Commands for agents inside a cage: `ironcage ask`, `child`, `send` and `receive`.
//!
//! `ironcage-inside` executes them. `ironcage` describes them on the host, and executes them, too,
//! where a cage sees the host's program.

#![allow(
    missing_docs,
    reason = "the comments are help texts, and the names say the rest"
)]

pub mod ask;
pub mod child;
pub mod receive;
pub mod send;

use crate::error::CommandResult;
use clap::Subcommand;

#[derive(Debug, Subcommand)]
pub enum Command {
    Ask(ask::Args),
    Child(child::Args),
    Send(send::Args),
    Receive(receive::Args),
}

impl Command {
    pub fn run(self) -> CommandResult {
        match self {
            Command::Ask(args) => ask::run(args),
            Command::Child(args) => child::run(args),
            Command::Send(args) => send::run(args),
            Command::Receive(args) => receive::run(args),
        }
    }
}
