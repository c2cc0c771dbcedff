//! Tells the binary which commit it was built from.
//!
//! Asks `git`; outside the project's own repository the commit is `unknown`, never a guess. The tree is dirty if a file
//! that goes into the binary has changed; documentation does not count.

use std::path::{Path, PathBuf};
use std::process::Command;

/// Inputs of the binary, relative to the top of the workspace.
const SOURCES: [&str; 6] = [
    ".cargo",
    "Cargo.lock",
    "Cargo.toml",
    "backends",
    "crates",
    "policies",
];

fn main() {
    let top = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    println!("cargo::rerun-if-changed=build.rs");
    // Without these a build after an edit would still call itself clean.
    for source in SOURCES {
        println!("cargo::rerun-if-changed={}", top.join(source).display());
    }
    let commit = commit(&top).unwrap_or_else(|| "unknown".to_owned());
    println!("cargo::rustc-env=IRONCAGE_COMMIT={commit}");
    let target = std::env::var("TARGET").unwrap_or_else(|_| "unknown target".to_owned());
    println!("cargo::rustc-env=IRONCAGE_TARGET={target}");
}

/// The commit that is checked out, with `-dirty` where the sources are not the commit's.
fn commit(top: &Path) -> Option<String> {
    // A tree without a repository of its own may lie in another project's.
    let repository = PathBuf::from(git(top, &["rev-parse", "--show-toplevel"])?);
    if repository.canonicalize().ok()? != top.canonicalize().ok()? {
        return None;
    }
    watch(top);
    let commit = git(top, &["rev-parse", "--short=12", "HEAD"])?;
    let mut status = vec!["status", "--porcelain", "--"];
    status.extend(SOURCES);
    let clean = git(top, &status)?.is_empty();
    Some(if clean {
        commit
    } else {
        format!("{commit}-dirty")
    })
}

/// Has this script run again when another commit is checked out or made.
fn watch(top: &Path) {
    let mut watched = vec!["HEAD".to_owned(), "packed-refs".to_owned()];
    watched.extend(git(top, &["symbolic-ref", "--quiet", "HEAD"]));
    for name in watched {
        let Some(path) = git(top, &["rev-parse", "--git-path", &name]) else {
            continue;
        };
        let path = top.join(path);
        // Cargo takes a file that is not there for one that has changed, on every build.
        if path.exists() {
            println!("cargo::rerun-if-changed={}", path.display());
        }
    }
}

/// The output of git, or `None` if git is absent or fails.
fn git(top: &Path, args: &[&str]) -> Option<String> {
    let output = Command::new("git")
        .arg("--no-optional-locks")
        .args(args)
        .current_dir(top)
        .output()
        .ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    output
        .status
        .success()
        .then(|| text.trim_end_matches('\n').to_owned())
}
