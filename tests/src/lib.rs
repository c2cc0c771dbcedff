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
pub mod web;

pub use binary::binary;
pub use host::{Host, tree};
pub use process::{Exit, Ran, Running, processes_with, wait_until, wait_until_still};
pub use screen::Screen;
pub use session::{Step, agrees, play, renewed, steps};
pub use stage::{DIRECT, Stage, Who};
pub use tls_web::TlsWeb;
pub use toolchain::rust_toolchain;

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
