//! QEMU: the system's, or a newer one that is unpacked as the user.
//!
//! Debian 12 installs QEMU 7.2, which cannot save a machine with a shared root. Its backports have
//! QEMU 10. It is not installed: its packages are unpacked below the state directory, with package
//! lists of their own, so that nothing of the host changes.

use super::kernel::output;
use super::{SetupError, file};
use ironcage_plan::{QEMU_FIRMWARE, QEMU_PROGRAM};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Where distributions install QEMU.
const INSTALLED: [&str; 2] = [
    "/usr/bin/qemu-system-x86_64",
    "/usr/local/bin/qemu-system-x86_64",
];
/// What is unpacked. The libraries are those of the installed package.
const PACKAGES: [&str; 3] = ["qemu-system-x86", "qemu-system-common", "qemu-system-data"];
/// The first version that was seen to save a machine with a shared root.
const SAVES: u32 = 10;
/// Debian's keys.
const KEYS: &str = "/usr/share/keyrings/debian-archive-keyring.gpg";

/// A QEMU.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Qemu {
    /// The program.
    pub program: PathBuf,
    /// The directory in which it was unpacked with its firmware; `None` for the system's.
    pub directory: Option<PathBuf>,
}

impl Qemu {
    /// The one that was unpacked beside a guest, else the system's.
    ///
    /// # Errors
    /// If neither exists.
    pub fn find(guest: &Path) -> Result<Qemu, SetupError> {
        let directory = unpacked(guest);
        let program = below(&directory, QEMU_PROGRAM);
        if program.is_file() {
            return Ok(Qemu {
                program,
                directory: Some(directory),
            });
        }
        let mut there = INSTALLED.iter().map(PathBuf::from);
        let program = there.find(|path| path.is_file());
        Ok(Qemu {
            program: program.ok_or(SetupError::NoQemu)?,
            directory: None,
        })
    }

    /// Where its firmware is, if not where the system has it.
    pub fn firmware(&self) -> Option<PathBuf> {
        let directory = self.directory.as_deref()?;
        Some(below(directory, QEMU_FIRMWARE))
    }

    /// Its version, as it says it.
    ///
    /// # Errors
    /// It does not start: a library may be missing.
    pub fn version(&self) -> Result<String, SetupError> {
        let text = output(Command::new(&self.program).arg("--version"))?;
        let mut words = text.split_whitespace();
        let version = words.find(|word| word.starts_with(|c: char| c.is_ascii_digit()));
        Ok(version.unwrap_or("unknown").to_owned())
    }

    /// Whether it can save and restore machines, by its version.
    pub fn can_save(version: &str) -> bool {
        let major = version.split('.').next().unwrap_or_default();
        major.parse::<u32>().is_ok_and(|major| major >= SAVES)
    }
}

/// Beside the guest, which is replaced as a whole.
fn unpacked(guest: &Path) -> PathBuf {
    guest.with_file_name("microvm-qemu")
}

fn below(directory: &Path, path: &str) -> PathBuf {
    directory.join(path.trim_start_matches('/'))
}

/// Downloads and unpacks the QEMU of Debian's backports, in the place of an earlier one.
///
/// # Errors
/// The host is not Debian, its archive has none, or it does not start with the host's libraries.
pub fn unpack(guest: &Path) -> Result<(), SetupError> {
    let suite = backports()?;
    let target = unpacked(guest);
    let parent = target.parent().unwrap_or(Path::new("/"));
    fs::create_dir_all(parent).map_err(file("create", parent))?;
    let scratch = tempfile::Builder::new()
        .prefix(".microvm-qemu.")
        .tempdir_in(parent)
        .map_err(file("create a directory in", parent))?;
    let place = |name: &str| scratch.path().join(name);
    for name in [
        "lists/partial",
        "cache/archives/partial",
        "packages",
        "tree",
    ] {
        let path = place(name);
        fs::create_dir_all(&path).map_err(file("create", &path))?;
    }
    let sources = place("sources.list");
    let text = format!("deb [signed-by={KEYS}] {} {suite} main\n", mirror()?);
    fs::write(&sources, text).map_err(file("write", &sources))?;
    let apt = || {
        let mut command = Command::new("apt-get");
        for (name, path) in [
            ("Dir::State::lists", place("lists")),
            ("Dir::Cache", place("cache")),
            ("Dir::Etc::sourcelist", sources.clone()),
        ] {
            command.arg("-o").arg(format!("{name}={}", path.display()));
        }
        for option in [
            "Dir::Etc::sourceparts=/dev/null",
            "Acquire::Languages=none",
            // Else root's apt becomes another user, who cannot write here.
            "APT::Sandbox::User=",
        ] {
            command.args(["-o", option]);
        }
        command.arg("-q").current_dir(place("packages"));
        command
    };
    output(apt().arg("update"))?;
    output(apt().args(["download", "-t", &suite]).args(PACKAGES))?;
    let found = place("packages");
    let entries = fs::read_dir(&found).map_err(file("read", &found))?;
    for package in entries.flatten() {
        let mut unpack = Command::new("dpkg-deb");
        output(unpack.arg("-x").arg(package.path()).arg(place("tree")))?;
    }
    let made = Qemu {
        program: below(&place("tree"), QEMU_PROGRAM),
        directory: Some(place("tree")),
    };
    let version = made.version()?;
    if !Qemu::can_save(&version) {
        return Err(SetupError::NoNewQemu(format!(
            "{suite} has version {version}"
        )));
    }
    super::replace(&target, &place("tree"), scratch.path())
}

/// The suite of this Debian that has newer versions.
fn backports() -> Result<String, SetupError> {
    let text = fs::read_to_string("/etc/os-release").unwrap_or_default();
    let value = |key: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(key))?;
        Some(line.trim_matches('"').to_owned())
    };
    match (value("ID=").as_deref(), value("VERSION_CODENAME=")) {
        (Some("debian"), Some(name)) => Ok(format!("{name}-backports")),
        _ => Err(SetupError::NoNewQemu("this host is not Debian".into())),
    }
}

/// The archive that the host itself uses.
fn mirror() -> Result<String, SetupError> {
    let text = output(Command::new("apt-get").args([
        "indextargets",
        "--format",
        "$(LABEL) $(SUITE) $(SITE)",
        "Created-By: Packages",
    ]))?;
    let mut lines = text.lines().map(|line| line.split(' ').collect::<Vec<_>>());
    let found = lines.find_map(|words| match words.as_slice() {
        ["Debian", _, site] if site.starts_with("http") => Some((*site).to_owned()),
        _ => None,
    });
    found.ok_or_else(|| SetupError::NoNewQemu("apt knows no archive of Debian".into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unpacked_qemu_is_used_before_the_systems() {
        let state = tempfile::tempdir().unwrap();
        let guest = state.path().join("microvm");
        let own = state.path().join("microvm-qemu");
        // The system's, or none.
        assert!(
            Qemu::find(&guest).is_ok_and(|qemu| qemu.directory.is_none())
                || INSTALLED.iter().all(|path| !Path::new(path).is_file())
        );
        let program = below(&own, QEMU_PROGRAM);
        fs::create_dir_all(program.parent().unwrap()).unwrap();
        fs::write(
            &program,
            "#!/bin/sh\necho QEMU emulator version 10.0.2 '(Debian 1:10.0.2)'\n",
        )
        .unwrap();
        let qemu = Qemu::find(&guest).unwrap();
        assert_eq!(
            (&qemu.program, qemu.directory.as_ref()),
            (&program, Some(&own))
        );
        assert_eq!(qemu.firmware(), Some(own.join("usr/share/qemu")));
    }

    #[test]
    fn only_versions_that_save_a_shared_root_make_templates() {
        for (version, can) in [
            ("7.2.22", false),
            ("9.2.0", false),
            ("10.0.2", true),
            ("11.0", true),
            ("unknown", false),
        ] {
            assert_eq!(Qemu::can_save(version), can, "{version}");
        }
    }
}
