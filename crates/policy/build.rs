//! Turns the data files in `policies/` into Rust statics, and checks them.
//!
//! A name that does not exist, an entry without a reason or a list that contradicts itself
//! fails the build with the file and the entry. At run time only policy files are parsed.

#[path = "build/emit.rs"]
mod emit;
#[path = "build/executed.rs"]
mod executed;
#[path = "build/places.rs"]
mod places;
#[path = "build/profiles.rs"]
mod profiles;
#[path = "build/syscalls.rs"]
mod syscalls;
#[allow(dead_code, unreachable_pub)]
#[path = "src/syscalls/table.rs"]
mod table;

use std::path::{Path, PathBuf};
use std::{env, fs};

/// What is wrong with a data file, in one line.
type Failure = String;

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
    let protected = emit::paths(&policies.join("protected.toml"), "protected", "ENTRIES")?;
    write(&out.join("protected.rs"), &protected)?;
    let executed = executed::emit(
        &policies.join("executed.toml"),
        &policies.join("protected.toml"),
    )?;
    write(&out.join("executed.rs"), &executed)?;
    let credentials = emit::paths(&policies.join("credentials.toml"), "credential", "ENTRIES")?;
    write(&out.join("credentials.rs"), &credentials)?;
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
        ("logins", places::logins(&policies.join("logins.toml"))?),
        ("git", places::git(&policies.join("git.toml"))?),
        (
            "kept_files",
            places::kept_files(&policies.join("kept-files.toml"))?,
        ),
    ] {
        write(&out.join(name).with_extension("rs"), &code)?;
    }
    let profiles = profiles::emit(&policies)?;
    write(&out.join("profiles.rs"), &profiles.code)?;
    let commands = emit::commands(&policies.join("commands.toml"), &profiles.names)?;
    write(&out.join("commands.rs"), &commands)
}

fn variable(name: &str) -> Result<String, Failure> {
    env::var(name).map_err(|error| format!("{name}: {error}"))
}

fn write(path: &Path, code: &str) -> Result<(), Failure> {
    fs::write(path, code).map_err(|error| format!("{}: {error}", path.display()))
}

/// Reads a data file into its type; the failure names the file, the line and the key.
fn read<T: serde::de::DeserializeOwned>(path: &Path) -> Result<T, Failure> {
    let text = read_text(path)?;
    toml::from_str(&text).map_err(|error| {
        let line = error
            .span()
            .map_or(1, |span| text[..span.start].matches('\n').count() + 1);
        format!("{}:{line}: {}", path.display(), error.message())
    })
}

fn read_text(path: &Path) -> Result<String, Failure> {
    fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))
}

/// The files `*.toml` of a folder, ordered by name.
fn files(folder: &Path) -> Result<Vec<PathBuf>, Failure> {
    let listing = fs::read_dir(folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    let mut paths = Vec::new();
    for entry in listing {
        let path = entry
            .map_err(|error| format!("{}: {error}", folder.display()))?
            .path();
        if path
            .extension()
            .is_some_and(|extension| extension == "toml")
        {
            paths.push(path);
        }
    }
    paths.sort();
    Ok(paths)
}

/// The file's name without `.toml`, which is the name of what it holds.
fn stem(path: &Path) -> String {
    path.file_stem()
        .map(|stem| stem.to_string_lossy().into_owned())
        .unwrap_or_default()
}

/// Fails where a reason is missing: an entry that nobody can explain must not ship.
fn check_reason(path: &Path, entry: &str, why: &str) -> Result<(), Failure> {
    if why.trim().is_empty() {
        return Err(format!("{}: `{entry}` has no reason", path.display()));
    }
    Ok(())
}
