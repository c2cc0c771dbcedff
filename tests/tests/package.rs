//! What `scripts/package` makes: the tarball and the Debian package hold what they should, the same each time, and what
//! they install runs a cage for an unprivileged user.

use ironcage_tests::{Ran, Running, Stage, Who, binary, skip};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::time::Duration;

/// Names the binary to package; otherwise it is the release build if that is of the same commit, else the one under test.
const VARIABLE: &str = "IRONCAGE_PACKAGE_BINARY";

/// All that is packaged.
const PROGRAMS: [&str; 12] = [
    "ironcage",
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

/// The time of all that is packaged, in seconds and as a day. Not the commit's: one may be made while the test runs.
const MOMENT: (&str, &str) = ("1700000000", "2023-11-14");

/// Compressing a binary takes a while on a busy machine.
const DEADLINE: Duration = Duration::from_secs(300);

fn top() -> PathBuf {
    let top = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    top.canonicalize().expect("the top of the workspace")
}

#[track_caller]
fn run(command: &mut Command) -> Ran {
    Running::start(command).finish(DEADLINE)
}

fn version(binary: &Path) -> String {
    run(Command::new(binary).arg("--version")).ok().stdout()
}

/// Version and commit, without the kind of build.
fn source(told: &str) -> String {
    told.split(", ").next().unwrap_or_default().to_owned()
}

fn packaged_binary() -> &'static Path {
    static BINARY: OnceLock<PathBuf> = OnceLock::new();
    BINARY.get_or_init(|| {
        if let Some(named) = std::env::var_os(VARIABLE) {
            return named.into();
        }
        let tests = std::env::current_exe().expect("our own path");
        let target = tests.ancestors().nth(3).expect("the target directory");
        let release = target.join("release/ironcage");
        let whole = PROGRAMS
            .iter()
            .all(|name| release.with_file_name(name).exists());
        let same = whole && source(&version(&release)) == source(&version(binary()));
        let chosen = if same { release } else { stripped() };
        eprintln!("packaging {}", chosen.display());
        chosen
    })
}

/// The programs under test without what debuggers read, which takes longest to compress.
fn stripped() -> PathBuf {
    let place = binary().with_file_name("stripped");
    fs::create_dir_all(&place).expect("a directory");
    for name in PROGRAMS {
        let from = binary().with_file_name(name);
        run(Command::new("strip")
            .arg("-o")
            .arg(place.join(name))
            .arg(from))
        .ok();
    }
    place.join(PROGRAMS[0])
}

struct Packages {
    _place: tempfile::TempDir,
    tarball: PathBuf,
    deb: PathBuf,
}

/// Whether this machine has what packaging needs; where it has not, the test counts as skipped.
fn can_package() -> bool {
    let there = Command::new("dpkg-deb").arg("--version").output().is_ok();
    if !there {
        skip("there is no dpkg-deb");
    }
    there
}

/// Packages, made anew.
fn packages() -> Option<Packages> {
    if !can_package() {
        return None;
    }
    let place = tempfile::tempdir().expect("a directory");
    let bytes = fs::metadata(packaged_binary()).expect("a program").len();
    let told = run(Command::new(top().join("scripts/package"))
        .env("IRONCAGE_BINARY", packaged_binary())
        .env("IRONCAGE_LARGEST", bytes.to_string())
        .env("IRONCAGE_DIST", place.path())
        // The programs of a debug build are large, and nobody downloads these packages.
        .env("IRONCAGE_COMPRESSION", "1")
        .env("SOURCE_DATE_EPOCH", MOMENT.0))
    .ok()
    .stdout();
    let size = format!("{bytes} bytes, at most {bytes}");
    assert!(told.contains(&size), "no {size} in {told}");
    let version = env!("CARGO_PKG_VERSION");
    Some(Packages {
        tarball: place
            .path()
            .join(format!("ironcage-{version}-x86_64-linux.tar.gz")),
        deb: place.path().join(format!("ironcage_{version}_amd64.deb")),
        _place: place,
    })
}

/// What is installed runs where it was unpacked, for the unprivileged user, in a cage.
fn runs(stage: &Stage, installed: &Path) {
    let told = run(stage.outside(installed).arg("--version")).ok().stdout();
    assert_eq!(told, version(packaged_binary()));
    let script = "id -u; echo made > made; cat /etc/shadow";
    let ran = run(stage
        .outside(installed)
        .args(["run", "-q", "--workspace-mode", "direct", "--"])
        .args(["/bin/sh", "-c", script]));
    assert_eq!(ran.stdout(), "1000\n", "{ran:?}");
    assert_ne!(ran.code(), 0, "{ran:?}");
    assert_eq!(stage.read("made").as_deref(), Some("made\n"));
    // With a ceiling, and so with what asks.
    let script = ["/.ironcage/bin/ironcage", "ask", "--help"];
    let asked = run(stage
        .outside(installed)
        .args(["run", "-q", "--profile", "coding-agent", "--"])
        .args(script))
    .ok();
    assert!(asked.stdout().contains("--reason"), "{asked:?}");
    let shown = run(stage.outside(installed).args(["probe", "show", "FS-01"])).ok();
    assert!(shown.stdout().starts_with("FS-01 "), "{shown:?}");
}

#[test]
fn what_is_packaged_is_complete_and_runs() {
    let (Some(packages), Some(stage)) = (packages(), Stage::new(Who::User)) else {
        return;
    };
    the_debian_package_installs_a_program_that_runs(&packages, &stage);
    fs::remove_file(stage.project().join("made")).expect("the file that the cage made");
    the_tarball_holds_a_program_that_runs(&packages, &stage);
}

fn the_debian_package_installs_a_program_that_runs(packages: &Packages, stage: &Stage) {
    let list = run(Command::new("dpkg-deb").arg("-c").arg(&packages.deb))
        .ok()
        .stdout();
    for line in list.lines() {
        let mut fields = line.split_whitespace();
        let mode = fields.next().unwrap_or_default();
        assert_eq!(fields.next(), Some("root/root"), "{line}");
        assert_eq!(fields.nth(1), Some(MOMENT.1), "{line}");
        assert!(
            !mode.contains(['s', 't']) && !mode[4..].contains('w'),
            "{line}"
        );
    }
    for (mode, path) in [
        ("-rwxr-xr-x", "./usr/bin/ironcage"),
        ("-rwxr-xr-x", "./usr/libexec/ironcage/ironcage-egress"),
        ("-rwxr-xr-x", "./usr/libexec/ironcage/ironcage-inside"),
        ("-rwxr-xr-x", "./usr/libexec/ironcage/ironcage-lab"),
        ("-rwxr-xr-x", "./usr/libexec/ironcage/ironcage-mcp"),
        ("-rwxr-xr-x", "./usr/libexec/ironcage/ironcage-oci-runtime"),
        ("-rwxr-xr-x", "./usr/libexec/ironcage/ironcage-reader"),
        ("-rwxr-xr-x", "./usr/libexec/ironcage/ironcage-registry"),
        ("-rwxr-xr-x", "./usr/libexec/ironcage/ironcage-serve"),
        ("-rwxr-xr-x", "./usr/libexec/ironcage/ironcage-vm-init"),
        ("-rwxr-xr-x", "./usr/libexec/ironcage/ironcage-vmm"),
        ("-rwxr-xr-x", "./usr/libexec/ironcage/ironcage-wasm"),
        (
            "-rw-r--r--",
            "./usr/lib/systemd/system/ironcage-serve@.service",
        ),
        (
            "-rw-r--r--",
            "./usr/lib/systemd/user/ironcage-serve.service",
        ),
        ("-rw-r--r--", "./usr/lib/systemd/user/ironcage-serve.socket"),
        ("-rw-r--r--", "./usr/share/man/man1/ironcage.1.gz"),
        ("-rw-r--r--", "./usr/share/man/man1/ironcage-run.1.gz"),
        (
            "-rw-r--r--",
            "./usr/share/man/man1/ironcage-policy-import-srt.1.gz",
        ),
        (
            "-rw-r--r--",
            "./usr/share/bash-completion/completions/ironcage",
        ),
        ("-rw-r--r--", "./usr/share/zsh/vendor-completions/_ironcage"),
        (
            "-rw-r--r--",
            "./usr/share/fish/vendor_completions.d/ironcage.fish",
        ),
        ("-rw-r--r--", "./usr/share/doc/ironcage/copyright"),
        ("-rw-r--r--", "./usr/share/doc/ironcage/changelog.gz"),
    ] {
        let found = list
            .lines()
            .any(|line| line.starts_with(mode) && line.ends_with(&format!(" {path}")));
        assert!(found, "no {mode} {path} in\n{list}");
    }
    let about = run(Command::new("dpkg-deb").arg("-I").arg(&packages.deb))
        .ok()
        .stdout();
    for line in [
        "Package: ironcage",
        concat!("Version: ", env!("CARGO_PKG_VERSION")),
        "Architecture: amd64",
        "Section: utils",
    ] {
        assert!(about.contains(line), "no {line} in\n{about}");
    }
    for script in [
        "Recommends",
        "Depends",
        "preinst",
        "postinst",
        "prerm",
        "postrm",
    ] {
        assert!(!about.contains(script), "{script} in\n{about}");
    }
    let root = stage.base().join("root");
    run(Command::new("dpkg-deb")
        .arg("-x")
        .arg(&packages.deb)
        .arg(&root))
    .ok();
    runs(stage, &root.join("usr/bin/ironcage"));
}

fn the_tarball_holds_a_program_that_runs(packages: &Packages, stage: &Stage) {
    run(Command::new("tar")
        .arg("-xzf")
        .arg(&packages.tarball)
        .arg("--no-same-owner")
        .arg("-C")
        .arg(stage.base()))
    .ok();
    let name = concat!("ironcage-", env!("CARGO_PKG_VERSION"), "-x86_64-linux");
    let unpacked = stage.base().join(name);
    for (path, holds) in [
        ("LICENSE", "Apache License"),
        ("README.md", "Ironcage"),
        ("man/ironcage.1", ".TH"),
        ("man/ironcage-run.1", "workspace"),
        ("completions/ironcage.bash", "complete"),
        ("completions/_ironcage", "#compdef"),
        ("completions/ironcage.fish", "--command ironcage"),
    ] {
        let text = fs::read_to_string(unpacked.join(path)).expect(path);
        assert!(text.contains(holds), "no {holds:?} in {path}");
    }
    runs(stage, &unpacked.join("ironcage"));
}

#[test]
fn the_same_binary_makes_the_same_packages() {
    let (Some(first), Some(second)) = (packages(), packages()) else {
        return;
    };
    for (one, other) in [(first.tarball, second.tarball), (first.deb, second.deb)] {
        let (a, b) = (fs::read(&one), fs::read(&other));
        assert!(
            a.expect("a package") == b.expect("a package"),
            "{} differs",
            one.display()
        );
    }
}

#[test]
fn a_binary_of_another_version_is_not_packaged() {
    if !can_package() {
        return;
    }
    let place = tempfile::tempdir().expect("a directory");
    let ran = run(Command::new(top().join("scripts/package"))
        .env("IRONCAGE_BINARY", "/bin/echo")
        .env("IRONCAGE_DIST", place.path()));
    assert_eq!(ran.code(), 1, "{ran:?}");
    assert!(ran.stderr.contains("not version"), "{ran:?}");
}

#[test]
fn a_program_that_has_grown_too_large_is_not_packaged() {
    if !can_package() {
        return;
    }
    let place = tempfile::tempdir().expect("a directory");
    let bytes = fs::metadata(packaged_binary()).expect("a program").len();
    let refused = run(Command::new(top().join("scripts/package"))
        .env("IRONCAGE_BINARY", packaged_binary())
        .env("IRONCAGE_LARGEST", (bytes - 1).to_string())
        .env("IRONCAGE_DIST", place.path())
        .env("SOURCE_DATE_EPOCH", MOMENT.0))
    .ended(1);
    assert!(refused.stderr.contains("more than"), "{refused:?}");
    let made = fs::read_dir(place.path()).expect("a directory").count();
    assert_eq!(made, 0, "nothing is packaged");
}

#[test]
fn the_version_tells_commit_target_and_build() {
    let told = version(binary());
    let git = Command::new("git")
        .args(["rev-parse", "--short=12", "HEAD"])
        .current_dir(top())
        .output();
    let commit = match git {
        // A binary that was named may be of any commit.
        _ if std::env::var_os("IRONCAGE_TEST_BINARY").is_some() => String::new(),
        Ok(output) if output.status.success() => {
            String::from_utf8_lossy(&output.stdout).trim().to_owned()
        }
        _ => "unknown".to_owned(),
    };
    let expected = format!("ironcage {} ({commit}", env!("CARGO_PKG_VERSION"));
    assert!(told.starts_with(&expected), "{told} is not {expected}...");
    assert!(told.contains("x86_64-unknown-linux-gnu"), "{told}");
    let debug = told.contains("debug, fault injection, layers can be disabled");
    assert!(debug || told.contains(", release)"), "{told}");
}
