//! Turns the data files in `policies/` into Rust statics, and checks them.
//!
//! A name that does not exist, an entry without a reason or a list that contradicts itself
//! fails the build with the file and the entry. At run time only policy files are parsed.

#[path = "build/data.rs"]
mod data;
#[path = "build/emit.rs"]
mod emit;
#[path = "build/executed.rs"]
mod executed;
#[path = "build/places.rs"]
mod places;
#[path = "build/syscalls.rs"]
mod syscalls;
#[allow(dead_code, unreachable_pub)]
#[path = "src/syscalls/table.rs"]
mod table;

use data::{Failure, check_reason, files, read, stem, variable, write};
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
    let out = PathBuf::from(variable("OUT_DIR")?);
    write(
        &out.join("syscalls.rs"),
        &syscalls::emit(&policies.join("syscalls"))?,
    )?;
    write(
        &out.join("system.rs"),
        &emit::system(&policies.join("system.toml"))?,
    )?;
    let lists = executed::emit(
        &policies.join("executed.toml"),
        &policies.join("protected.toml"),
    )?;
    write(&out.join("protected.rs"), &lists.protected)?;
    write(&out.join("executed.rs"), &lists.executed)?;
    let credentials = emit::paths(&policies.join("credentials.toml"), "credential", "ENTRIES")?;
    write(&out.join("credentials.rs"), &credentials)?;
    let sensitive = emit::sensitive(&policies.join("sensitive.toml"))?;
    write(&out.join("sensitive.rs"), &sensitive)?;
    let guarded = emit::guarded(&policies.join("guarded.toml"))?;
    write(&out.join("guarded.rs"), &guarded)?;
    let capabilities = emit::capabilities(&policies.join("capabilities.toml"))?;
    write(&out.join("capabilities.rs"), &capabilities)?;
    for (name, code) in [
        (
            "toolchains",
            places::toolchains(&policies.join("toolchains.toml"))?,
        ),
        ("caches", places::caches(&policies.join("caches.toml"))?),
        ("bundles", places::bundles(&policies.join("bundles.toml"))?),
        ("keys", places::keys(&policies.join("keys.toml"))?),
        ("logins", places::logins(&policies.join("logins.toml"))?),
        ("git", places::git(&policies.join("git.toml"))?),
        (
            "kept_files",
            places::kept_files(&policies.join("kept-files.toml"))?,
        ),
    ] {
        write(&out.join(name).with_extension("rs"), &code)?;
    }
    let profiles = files(&policies.join("profiles"))?;
    let names = profiles.iter().map(|path| stem(path)).collect();
    let keys = places::key_names(&policies.join("keys.toml"))?;
    let commands = emit::commands(&policies.join("commands.toml"), &names, &keys)?;
    write(&out.join("commands.rs"), &commands)
}
