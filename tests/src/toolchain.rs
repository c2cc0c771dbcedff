//! The Rust toolchain that runs the tests, where cages of either user can have it.

use crate::{Stage, Who, skip};
use std::path::{Path, PathBuf};
use std::process::Command;

/// A Rust toolchain that the one who runs here can read, outside of the project.
///
/// Toolchains live in a home that others may not enter; hard links to their files cost nothing and can be read.
pub fn rust_toolchain(stage: &Stage) -> Option<PathBuf> {
    let output = Command::new("rustc")
        .args(["--print", "sysroot"])
        .output()
        .expect("rustc");
    let installed = PathBuf::from(String::from_utf8(output.stdout).expect("a path").trim());
    if stage.who() == Who::Root || readable(stage, &installed) {
        return Some(installed);
    }
    let linked = stage.aside().join("toolchain");
    stage.mkdir(&linked);
    let copied = Command::new("cp")
        .arg("-al")
        .args([installed.join("bin"), installed.join("lib")])
        .arg(&linked)
        .status()
        .is_ok_and(|status| status.success());
    if !copied || !readable(stage, &linked) {
        skip(
            "the Rust toolchain lies where the unprivileged user cannot read it, on another file system",
        );
        return None;
    }
    Some(linked)
}

fn readable(stage: &Stage, toolchain: &Path) -> bool {
    let script = format!("'{}/bin/rustc' --version", toolchain.display());
    stage.sh_outside(&script).exit == crate::Exit::Code(0)
}
