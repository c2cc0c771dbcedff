//! Finds the `ironcage` binary under test and puts a copy where the unprivileged user can read it, with the programs that
//! belong to it beside it.

use sha2::{Digest as _, Sha256};
use std::env;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

/// Overrides which binary is tested, with the programs beside it; otherwise the workspace's own is built.
const VARIABLE: &str = "IRONCAGE_TEST_BINARY";

/// Packages of the programs that belong to it, named like them.
const BESIDE: [&str; 11] = [
    "ironcage-egress",
    "ironcage-inside",
    "ironcage-lab",
    "ironcage-mcp",
    "ironcage-reader",
    "ironcage-oci-runtime",
    "ironcage-registry",
    "ironcage-serve",
    "ironcage-vm-init",
    "ironcage-vmm",
    "ironcage-wasm",
];

/// The binary under test, built once per test process, in a directory that every user can read.
///
/// # Panics
/// When it cannot be built or copied: without it no test means anything.
pub fn binary() -> &'static Path {
    static BINARY: OnceLock<PathBuf> = OnceLock::new();
    BINARY.get_or_init(|| {
        let built = env::var_os(VARIABLE).map_or_else(build, PathBuf::from);
        publish(&built).unwrap_or_else(|error| panic!("copying {}: {error}", built.display()))
    })
}

fn build() -> PathBuf {
    let manifest = Path::new(env!("CARGO_MANIFEST_DIR")).join("../Cargo.toml");
    let features: &[&str] = match cfg!(feature = "cedar") {
        true => &["--features", "ironcage/cedar"],
        false => &[],
    };
    let beside = BESIDE.iter().flat_map(|package| ["-p", *package]);
    let status = Command::new(env!("CARGO"))
        .args([
            "build",
            "--quiet",
            "--locked",
            "--offline",
            "-p",
            "ironcage",
        ])
        .args(beside)
        .args(features)
        .arg("--manifest-path")
        .arg(&manifest)
        .status();
    match status {
        Ok(status) if status.success() => {}
        other => panic!("cargo build -p ironcage: {other:?}"),
    }
    // The test executable is <target>/<profile>/deps/NAME-HASH; the binary of the dev profile is <target>/debug/ironcage.
    let tests = env::current_exe().unwrap_or_else(|error| panic!("current_exe: {error}"));
    let Some(target) = tests.ancestors().nth(3) else {
        panic!("{} is not in a cargo target directory", tests.display());
    };
    target.join("debug/ironcage")
}

/// Copies a program that is executed afterwards, by a process of its own. A copy by this process would be open for
/// writing in whatever another test forks at that moment, and executing it would fail with "Text file busy".
///
/// # Errors
/// When it cannot be copied.
pub fn copy_program(from: &Path, to: &Path) -> std::io::Result<()> {
    let status = Command::new("cp").arg("--").arg(from).arg(to).status()?;
    match status.success() {
        true => Ok(()),
        false => Err(std::io::Error::other(format!(
            "cp {}: {status}",
            from.display()
        ))),
    }
}

/// The target directory may lie in a home that only its owner can enter; a copy in the temporary directory does not.
///
/// The name carries size and time of the originals, so that the processes of one `cargo test` share one copy.
fn publish(built: &Path) -> std::io::Result<PathBuf> {
    // Those of a binary that was named may be missing: tests that need one say so.
    let beside: Vec<PathBuf> = BESIDE
        .iter()
        .map(|name| built.with_file_name(name))
        .filter(|path| path.exists())
        .collect();
    let mut stamp = String::new();
    for path in beside.iter().map(PathBuf::as_path).chain([built]) {
        let original = fs::metadata(path)?;
        let age = original.modified()?.duration_since(std::time::UNIX_EPOCH);
        let age = age.map_or(0, |age| age.as_nanos());
        stamp.push_str(&format!("-{age:x}-{:x}", original.len()));
    }
    let own = rustix::process::getuid().as_raw();
    // A hash: the stamps of all programs together are longer than a name may be.
    let stamp: String = Sha256::digest(stamp.as_bytes())[..8]
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect();
    let place = env::temp_dir().join(format!("ironcage-under-test-{own}-{stamp}"));
    fs::create_dir_all(&place)?;
    fs::set_permissions(&place, fs::Permissions::from_mode(0o755))?;
    let copy = |path: &Path, name: &str| {
        let copy = place.join(name);
        if !copy.exists() {
            let part = place.join(format!("part-{name}-{}", std::process::id()));
            copy_program(path, &part)?;
            fs::set_permissions(&part, fs::Permissions::from_mode(0o755))?;
            fs::rename(&part, &copy)?;
        }
        Ok::<PathBuf, std::io::Error>(copy)
    };
    for path in &beside {
        copy(
            path,
            &path.file_name().unwrap_or_default().to_string_lossy(),
        )?;
    }
    copy(built, "ironcage")
}
