//! Turns the profiles in `policies/` into Rust, and checks them.
//!
//! The other data files there are turned by the build script of `catalog`. At run time only
//! policy files are parsed.

#[allow(dead_code, reason = "profiles need a part of it")]
#[path = "../catalog/build/data.rs"]
mod data;
#[path = "build/profiles.rs"]
mod profiles;

use data::{Failure, files, read, read_text, stem, variable, write};
use std::path::{Path, PathBuf};

fn main() {
    if let Err(failure) = generate() {
        // The text after `cargo::error=` is what cargo shows for the failed build.
        println!("cargo::error={failure}");
    }
}

fn generate() -> Result<(), Failure> {
    let policies = Path::new(&variable("CARGO_MANIFEST_DIR")?).join("../../policies");
    println!("cargo::rerun-if-changed={}", policies.display());
    println!("cargo::rerun-if-changed=build");
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-changed=../catalog/build/data.rs");
    let out = PathBuf::from(variable("OUT_DIR")?);
    write(&out.join("profiles.rs"), &profiles::emit(&policies)?)
}
