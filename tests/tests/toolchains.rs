//! Toolchains outside of the system: found by PATH or by the command, readable, and nothing beside them.

use ironcage_tests::{Ran, Running, Stage, either, skip};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

const SYSTEM: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

fn finish(command: &mut Command) -> Ran {
    Running::start(command).finish(Duration::from_secs(300))
}

fn program(stage: &Stage, path: &Path, text: &str) {
    stage.write(path, text);
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o700)).expect("its mode");
}

/// A cargo of the user's own with one program, credentials beside it, and a PATH that names it.
fn with_cargo(stage: &Stage, flags: &[&str], script: &str) -> Ran {
    let bin = stage.home().join(".cargo/bin");
    program(stage, &bin.join("hello"), "#!/bin/sh\necho hello from $0\n");
    stage.write(stage.home().join(".cargo/credentials.toml"), "canary");
    stage.write(stage.home().join(".npmrc"), "canary");
    let private = std::fs::Permissions::from_mode(0o700);
    std::fs::set_permissions(stage.home().join(".cargo"), private).expect("its mode");
    let mut cage = stage.cage(flags, &["/bin/sh", "-c", script]);
    cage.env("PATH", format!("{}:{SYSTEM}", bin.display()));
    finish(&mut cage)
}

either! {
    fn a_program_of_a_toolchain_runs_and_cannot_be_changed(stage) {
        let ran = with_cargo(stage, &[], "hello && ! echo x >> ~/.cargo/bin/hello && touch ~/.cargo/mine").ok();
        assert!(ran.stdout().contains(".cargo/bin/hello"), "{ran:?}");
        assert!(!stage.home().join(".cargo/mine").exists());
    }

    fn credentials_beside_a_toolchain_are_not_there(stage) {
        let script = "cat ~/.cargo/credentials.toml ~/.npmrc; ls -A ~ ~/.cargo";
        let inside = with_cargo(stage, &[], script).stdout();
        assert!(!inside.contains("canary") && !inside.contains("npmrc"), "{inside}");
        let outside = stage.sh_outside(script).stdout();
        assert!(outside.contains("canary"), "the host has them: {outside}");
    }

    fn without_toolchains_the_program_is_not_found(stage) {
        with_cargo(stage, &["--no-toolchains"], "hello").ended(127);
        with_cargo(stage, &["--profile", "strict"], "hello").ended(127);
        with_cargo(stage, &["--profile", "shell"], "hello").ok();
    }

    fn the_callers_order_of_the_path_holds_inside(stage) {
        let first = with_cargo(stage, &[], "echo $PATH").ok().stdout();
        let bin = stage.home().join(".cargo/bin").display().to_string();
        assert!(first.starts_with(&format!("{bin}:/usr/local/sbin:")), "{first}");
        let mut cage = stage.cage(&[], &["/bin/sh", "-c", "echo $PATH"]);
        cage.env("PATH", format!("/usr/bin:{bin}:.:{}", stage.aside().display()));
        let last = finish(&mut cage).ok().stdout();
        assert!(last.starts_with(&format!("/usr/bin:{bin}:/usr/local/sbin:")), "{last}");
        assert!(!last.contains("pending"), "{last}");
    }

    fn a_virtual_environment_elsewhere_is_found_by_the_command(stage) {
        let venv = stage.aside().join("venv");
        let made = finish(
            stage
                .outside("/usr/bin/python3")
                .args(["-m", "venv", "--without-pip"])
                .arg(&venv),
        );
        if made.exit != ironcage_tests::Exit::Code(0) {
            skip("needs /usr/bin/python3 with its venv module");
            return;
        }
        stage.write(stage.aside().join("secret"), "canary");
        let python = venv.join("bin/python").display().to_string();
        let script = "import sys; print(sys.prefix)";
        let ran = stage.run(&[], &[&python, "-c", script]).ok();
        assert_eq!(ran.stdout().trim(), venv.display().to_string());
        let secret = stage.aside().join("secret").display().to_string();
        stage.run(&[], &[&python, "-c", &format!("open({secret:?})")]).ended(1).says("FileNotFoundError");
    }

    fn cargo_of_this_machine_builds_without_a_grant(stage) {
        let Some(owner) = cargo() else {
            skip("needs rustup's cargo on PATH");
            return;
        };
        let (home, rustup) = (owner.join(".cargo"), owner.join(".rustup"));
        if finish(stage.outside(home.join("bin/cargo")).arg("--version").env("RUSTUP_HOME", &rustup)).exit
            != ironcage_tests::Exit::Code(0)
        {
            skip("this user cannot run the cargo on PATH");
            return;
        }
        stage.write(stage.project().join("Cargo.toml"), "[package]\nname = \"tiny\"\nversion = \"0.1.0\"\nedition = \"2021\"\n");
        stage.write(stage.project().join("src/main.rs"), "fn main() { println!(\"built\"); }\n");
        let mut cage = stage.cage(&[], &["cargo", "run", "--offline"]);
        cage.env("PATH", format!("{}:{SYSTEM}", home.join("bin").display()))
            .env("CARGO_HOME", &home)
            .env("RUSTUP_HOME", &rustup);
        let ran = finish(&mut cage).ok();
        assert_eq!(ran.stdout().trim(), "built");
    }
}

/// The home directory in which rustup keeps a cargo that is on PATH.
fn cargo() -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    let mut homes = std::env::split_paths(&path)
        .filter(|directory| directory.ends_with(".cargo/bin"))
        .filter_map(|directory| directory.ancestors().nth(2).map(Path::to_owned));
    homes.find(|home| home.join(".cargo/bin/cargo").exists() && home.join(".rustup").exists())
}
