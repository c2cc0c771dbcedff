//! E2B's SDKs unmodified, beyond what every sandbox has: each method, and the code interpreter.

use super::service::{Service, installed, script, sdk};
use ironcage_tests::{Running, Stage, either, skip};
use std::path::{Path, PathBuf};
use std::time::Duration;

const PATIENCE: Duration = Duration::from_secs(60);

const LISTEN: [&str; 2] = ["--listen", "127.0.0.1:0"];

/// The Python environment with ipykernel that `scripts/test` installs, if it did.
fn interpreter() -> Option<PathBuf> {
    installed("e2b-interpreter", "bin/ipython")
}

/// A service that provides the code interpreter.
fn with_interpreter(stage: &Stage, interpreter: &Path) -> Service {
    let directory = interpreter.to_str().expect("a text");
    Service::with(
        stage,
        &[LISTEN[0], LISTEN[1], "--code-interpreter", directory],
    )
}

/// The Python of E2B's SDKs, with the code interpreter's.
fn python() -> Option<PathBuf> {
    let place = installed("e2b-python", "bin/python")?;
    match std::fs::read_dir(place.join("lib")).is_ok_and(|mut lib| {
        lib.any(|entry| {
            entry.is_ok_and(|entry| {
                entry
                    .path()
                    .join("site-packages/e2b_code_interpreter")
                    .exists()
            })
        })
    }) {
        true => Some(place.join("bin/python")),
        false => {
            skip("no e2b-code-interpreter: ./scripts/test installs it");
            None
        }
    }
}

/// An image of one static program in the store of a stage.
fn image(stage: &Stage) -> &'static str {
    let root = stage.base().join("image");
    for name in ["", "bin", "etc", "opt", "dev", "proc", "tmp"] {
        stage.mkdir(root.join(name));
    }
    let busybox = std::fs::read("/bin/busybox").expect("busybox-static");
    stage.write(root.join("bin/busybox"), busybox);
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(root.join("bin/busybox"), mode).expect("executable");
    for name in [
        "sh", "cat", "chmod", "cp", "dirname", "echo", "id", "ls", "mkdir", "mv", "printf", "pwd",
        "rm", "sleep", "stat", "test", "touch", "true",
    ] {
        std::os::unix::fs::symlink("busybox", root.join("bin").join(name)).expect("linked");
    }
    stage.write(root.join("etc/passwd"), "root:x:0:0:root:/root:/bin/sh\n");
    // The SDKs run every command with it.
    stage.write(root.join("bin/bash"), "#!/bin/sh\nexec /bin/sh \"$@\"\n");
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(root.join("bin/bash"), mode).expect("executable");
    let words = ["image", "load", "--name", "localhost/base:1"].map(std::ffi::OsString::from);
    let words = words.into_iter().chain([root.into_os_string()]);
    Running::start(&mut stage.ironcage(words))
        .finish(PATIENCE)
        .ok();
    "localhost/base:1"
}

/// Runs a script with the packages of npm at a place.
fn node(stage: &Stage, service: &Service, place: &Path, name: &str) {
    let text = script(stage, name);
    let modules = stage.base().join("node_modules");
    std::os::unix::fs::symlink(place.join("node_modules"), modules).expect("linked");
    sdk(stage, service, Path::new("/usr/bin/env"), &[&"node", &text]);
}

either! {
    fn every_method_of_the_sdk_of_pypi_works_or_is_refused(stage) {
        if let Some(place) = installed("e2b-python", "bin/python") {
            let service = Service::with(stage, &LISTEN);
            sdk(stage, &service, &place.join("bin/python"), &[&script(stage, "e2b_methods.py")]);
        }
    }

    fn the_class_of_the_sdk_of_pypi_that_does_not_wait_works_with_many_at_once(stage) {
        if let Some(place) = installed("e2b-python", "bin/python") {
            let service = Service::with(stage, &LISTEN);
            sdk(stage, &service, &place.join("bin/python"), &[&script(stage, "e2b_async.py")]);
        }
    }

    fn every_method_of_the_sdk_of_npm_works_or_is_refused(stage) {
        if let Some(place) = installed("e2b-node", "node_modules/e2b/package.json") {
            let service = Service::with(stage, &LISTEN);
            node(stage, &service, &place, "e2b_methods.mjs");
        }
    }

    fn snapshots_and_forks_of_the_sdk_of_pypi_have_files(stage) {
        if let Some(place) = installed("e2b-python", "bin/python") {
            let service = Service::with(stage, &LISTEN);
            sdk(stage, &service, &place.join("bin/python"), &[&script(stage, "e2b_snapshots.py")]);
        }
    }

    fn templates_of_the_sdk_of_pypi_are_built_and_used(stage) {
        if let Some(place) = installed("e2b-python", "bin/python") {
            let image = image(stage);
            let service = Service::with(stage, &LISTEN);
            sdk(stage, &service, &place.join("bin/python"), &[&script(stage, "e2b_templates.py"), &image]);
        }
    }

    fn run_code_of_pypi_runs_in_kernels_in_the_cage(stage) {
        if let (Some(python), Some(interpreter)) = (python(), interpreter()) {
            let service = with_interpreter(stage, &interpreter);
            sdk(stage, &service, &python, &[&script(stage, "e2b_code.py")]);
        }
    }

    fn run_code_without_a_kernel_is_refused_with_the_remedy(stage) {
        if let Some(python) = python() {
            let service = Service::with(stage, &LISTEN);
            sdk(stage, &service, &python, &[&script(stage, "e2b_code.py"), &"missing"]);
        }
    }

    fn run_code_of_npm_runs_in_kernels_in_the_cage(stage) {
        let place = installed("e2b-node", "node_modules/@e2b/code-interpreter/package.json");
        if let (Some(place), Some(interpreter)) = (place, interpreter()) {
            let service = with_interpreter(stage, &interpreter);
            node(stage, &service, &place, "e2b_code.mjs");
        }
    }
}
