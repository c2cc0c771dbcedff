//! The `ironcage-egress` program: the egress proxy of one cage.
//!
//! `ironcage` starts it for a cage that has a network, so that TLS, HTTP and an event loop are not
//! in the program that starts cages. It takes its rules from a descriptor, confines itself, and
//! ends with the supervisor.
#![forbid(unsafe_code)]

use std::process::ExitCode;

fn main() -> ExitCode {
    ironcage_egress::run_program()
}
