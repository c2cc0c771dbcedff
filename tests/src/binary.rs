//! Finds the `ironcage` binary under test and puts a copy where the unprivileged user can read it.

use std::env;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

/// Overrides which binary is tested; otherwise the workspace's own is built.
const VARIABLE: &str = "IRONCAGE_TEST_BINARY";

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
        true => &["--features", "cedar"],
        false => &[],
    };
    let status = Command::new(env!("CARGO"))
        .args([
            "build",
            "--quiet",
            "--locked",
            "--offline",
            "-p",
            "ironcage",
        ])
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

/// The target directory may lie in a home that only its owner can enter; a copy in the temporary directory does not.
///
/// The name carries size and time of the original, so that the processes of one `cargo test` share one copy.
fn publish(built: &Path) -> std::io::Result<PathBuf> {
    let original = fs::metadata(built)?;
    let stamp = original
        .modified()?
        .duration_since(std::time::UNIX_EPOCH)
        .map_or(0, |age| age.as_nanos());
    let place = env::temp_dir().join(format!(
        "ironcage-under-test-{}-{stamp:x}-{:x}",
        rustix::process::getuid().as_raw(),
        original.len()
    ));
    fs::create_dir_all(&place)?;
    fs::set_permissions(&place, fs::Permissions::from_mode(0o755))?;
    let copy = place.join("ironcage");
    if !copy.exists() {
        let part = place.join(format!("part-{}", std::process::id()));
        fs::copy(built, &part)?;
        fs::set_permissions(&part, fs::Permissions::from_mode(0o755))?;
        fs::rename(&part, &copy)?;
    }
    Ok(copy)
}
