//! The stage on which real cages are tested: who runs, where, and with which binary.
//!
//! Every end-to-end test runs twice, as root and as the unprivileged user `ironcage-test`; [`both!`] writes the two
//! tests. A test gets a [`Stage`]: a home directory, a project in it and XDG directories, all temporary and owned by
//! the one who runs. What a machine cannot do is skipped with [`skip`], which says why and counts.
//!
//! It asserts nothing about cages itself; that is for the files in `tests/tests/`.
#![forbid(unsafe_code)]

mod binary;
mod host;
mod process;
mod screen;
mod session;
mod stage;
mod tls_web;
mod toolchain;
mod turn;
mod upstream;
pub mod web;

pub use binary::{binary, copy_program};
pub use host::{Host, tree};
pub use process::{Exit, Ran, Running, processes_with, wait_until, wait_until_still};
pub use screen::Screen;
pub use session::{Step, agrees, play, renewed, steps};
pub use stage::{DIRECT, Stage, Who};
pub use tls_web::TlsWeb;
pub use toolchain::rust_toolchain;
pub use turn::{ExclusiveTurn, exclusive};
pub use upstream::UpstreamProxy;

use std::io::Write;

/// The unprivileged user that tests drop to; `scripts/test` creates it.
pub const TEST_USER: &str = "ironcage-test";

/// Names the file that collects skipped tests, one line each; `scripts/test` prints it at the end.
pub const SKIPS_VARIABLE: &str = "IRONCAGE_TEST_SKIPS";

/// Says that a test did not run, and why, where both the reader of the output and `scripts/test` find it.
///
/// # Panics
/// When the file that collects the skips cannot be written: an uncounted skip would read as a pass.
pub fn skip(why: &str) {
    let test = std::thread::current().name().unwrap_or("a test").to_owned();
    eprintln!("skipped: {test}: {why}");
    if let Some(path) = std::env::var_os(SKIPS_VARIABLE) {
        let written = std::fs::OpenOptions::new()
            .append(true)
            .create(true)
            .open(&path)
            .and_then(|mut file| file.write_all(format!("{test}: {why}\n").as_bytes()));
        if let Err(error) = written {
            panic!("{}: {error}", path.to_string_lossy());
        }
    }
}

/// Set by `./scripts/test --full`.
pub const FULL_VARIABLE: &str = "IRONCAGE_TEST_FULL";

/// Whether this is a full run; where it is not, tests take smaller counts.
pub fn full() -> bool {
    std::env::var_os(FULL_VARIABLE).is_some()
}

/// Skips a test that belongs to a full run alone. Returns whether it goes on.
pub fn only_in_full() -> bool {
    if !full() {
        skip("runs in ./scripts/test --full");
    }
    full()
}

/// Names the file that collects how long tests took, one line each; `scripts/test` prints the slowest at the end.
pub const TIMES_VARIABLE: &str = "IRONCAGE_TEST_TIMES";

/// Writes down how long the test of this thread had its stage.
fn took(time: std::time::Duration) {
    let Some(path) = std::env::var_os(TIMES_VARIABLE) else {
        return;
    };
    let test = std::thread::current().name().unwrap_or("a test").to_owned();
    let line = format!("{:.1} {test}\n", time.as_secs_f64());
    let file = std::fs::OpenOptions::new()
        .append(true)
        .create(true)
        .open(path);
    // The list is for people; a test does not fail for it.
    let _ = file.and_then(|mut file| file.write_all(line.as_bytes()));
}

/// Writes a test once for root and once for the unprivileged user.
///
/// ```ignore
/// both! {
///     fn the_exit_status_is_the_commands(stage) {
///         assert_eq!(stage.sh("exit 3").code(), 3);
///     }
/// }
/// ```
#[macro_export]
macro_rules! both {
    ($($(#[$attr:meta])* fn $name:ident($stage:ident) $body:block)*) => {$(
        mod $name {
            #[allow(unused_imports)]
            use super::*;

            fn scene($stage: &$crate::Stage) $body

            $(#[$attr])*
            #[test]
            fn as_root() {
                if let Some(stage) = $crate::Stage::new($crate::Who::Root) {
                    scene(&stage);
                }
            }

            $(#[$attr])*
            #[test]
            fn as_user() {
                if let Some(stage) = $crate::Stage::new($crate::Who::User) {
                    scene(&stage);
                }
            }
        }
    )*};
}

/// Writes a test that is run by one of the two users, where root and user take the same way; by both in a full run.
///
/// Which of the two it is depends on the test's name, so that about half of the tests of a file run as each. Where
/// identity, mounts or cgroups differ between the two, write [`both!`].
#[macro_export]
macro_rules! either {
    ($($(#[$attr:meta])* fn $name:ident($stage:ident) $body:block)*) => {$(
        $(#[$attr])*
        #[test]
        fn $name() {
            fn scene($stage: &$crate::Stage) $body

            for who in $crate::Who::alternating(concat!(module_path!(), stringify!($name))) {
                if let Some(stage) = $crate::Stage::new(*who) {
                    scene(&stage);
                }
            }
        }
    )*};
}
