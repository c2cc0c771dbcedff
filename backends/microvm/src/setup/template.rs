//! Templates: machines that were saved when their guest was ready.

use super::{Manifest, Qemu, SetupError, digest_of, file, mark};
use ironcage_plan::{Acceleration, GuestTemplate, template_machine};
use ironcage_programs::Program;
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use std::fs;
use std::io::{self, Read as _};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::Command;

/// Their place in the guest's directory.
const PLACE: &str = "templates";
const DESCRIPTION: &str = "template.json";
/// What a template consists of.
const FILES: [&str; 2] = ["memory", "state"];

/// What a template was made from: it fits nothing else.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct TemplateOrigin {
    memory: u64,
    network: bool,
    kernel: String,
    initramfs: String,
    /// SHA-256 of QEMU, and its size and time of change, by which it is known again.
    qemu: String,
    qemu_mark: (u64, i64, i64),
    /// The program that starts QEMU, which gives the machine its devices.
    starter: (u64, i64, i64),
    kvm: bool,
    /// The CPU's name: a guest's clock and, with KVM, its instructions are the host's.
    cpu: String,
}

#[derive(Debug, Serialize, Deserialize)]
struct TemplateDescription {
    origin: TemplateOrigin,
    digest: String,
}

/// The name of the CPU.
fn cpu() -> String {
    let text = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let mut lines = text.lines();
    let line = lines.find_map(|line| line.strip_prefix("model name"));
    line.unwrap_or_default()
        .trim_matches([' ', '\t', ':'])
        .to_owned()
}

/// Templates of a guest that fit it, QEMU, and this host.
pub(super) fn find(
    directory: &Path,
    manifest: &Manifest,
    (qemu, acceleration): (&Qemu, Acceleration),
) -> Vec<GuestTemplate> {
    let entries = fs::read_dir(directory.join(PLACE)).into_iter().flatten();
    let marks = || {
        Some((
            mark(&qemu.program).ok()?,
            mark(&Program::Vmm.find().ok()?).ok()?,
        ))
    };
    let Some((qemu_mark, starter)) = marks() else {
        return Vec::new();
    };
    let cpu = cpu();
    let found = entries.flatten().filter_map(|entry| {
        let text = fs::read(entry.path().join(DESCRIPTION)).ok()?;
        let description: TemplateDescription = serde_json::from_slice(&text).ok()?;
        let origin = description.origin;
        let fits = origin.kernel == manifest.kernel
            && origin.initramfs == manifest.initramfs
            && origin.qemu_mark == qemu_mark
            && origin.starter == starter
            && origin.kvm == (acceleration == Acceleration::Kvm)
            && origin.cpu == cpu;
        fits.then(|| GuestTemplate {
            memory: origin.memory,
            network: origin.network,
            directory: entry.path(),
            digest: description.digest,
        })
    });
    found.collect()
}

/// Makes a template of a guest with this many MiB of memory, with a network interface or without.
///
/// # Errors
/// QEMU is too old, or the guest does not boot.
pub(super) fn make(
    (directory, kernel, initramfs): (&Path, &Path, &Path),
    manifest: &Manifest,
    (qemu, acceleration): (&Qemu, Acceleration),
    (memory, network): (u64, bool),
) -> Result<GuestTemplate, SetupError> {
    let starter = Program::Vmm.find()?;
    let templates = directory.join(PLACE);
    fs::create_dir_all(&templates).map_err(file("create", &templates))?;
    let scratch = tempfile::Builder::new()
        .prefix(".made.")
        .tempdir_in(directory)
        .map_err(file("create a directory in", directory))?;
    let program = qemu.program.to_string_lossy().into_owned();
    let firmware = qemu
        .firmware()
        .map(|path| path.to_string_lossy().into_owned());
    let machine = template_machine((program, firmware), (memory, network), acceleration);
    let text = machine.encode().map_err(io::Error::other);
    let described = scratch.path().join("machine.json");
    let write = || file("write", &described);
    fs::write(&described, text.map_err(write())?).map_err(write())?;
    let made = scratch.path().join("made");
    fs::create_dir(&made).map_err(file("create", &made))?;
    let output = Command::new(&starter)
        .arg("template")
        .args([&described, kernel, initramfs, &made])
        .env_clear()
        .stdin(std::process::Stdio::null())
        .output()
        .map_err(file("start", &starter))?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        let said = said.trim().trim_start_matches("ironcage: ");
        return Err(SetupError::Template(said.chars().take(600).collect()));
    }
    let program = fs::read(&qemu.program).map_err(file("read", &qemu.program))?;
    let origin = TemplateOrigin {
        memory,
        network,
        kernel: manifest.kernel.clone(),
        initramfs: manifest.initramfs.clone(),
        qemu: super::digest(&program),
        qemu_mark: mark(&qemu.program)?,
        starter: mark(&starter)?,
        kvm: acceleration == Acceleration::Kvm,
        cpu: cpu(),
    };
    let mut digest = Sha256::new();
    digest.update(serde_json::to_vec(&origin).map_err(|error| write()(error.into()))?);
    for name in FILES {
        let path = made.join(name);
        let mut saved = fs::File::open(&path).map_err(file("read", &path))?;
        let mut part = vec![0; 1 << 20];
        loop {
            match saved.read(&mut part).map_err(file("read", &path))? {
                0 => break,
                count => digest.update(part.get(..count).unwrap_or_default()),
            }
        }
        // The agent of a cage that root starts is another user.
        let readable = fs::Permissions::from_mode(0o644);
        fs::set_permissions(&path, readable).map_err(file("change", &path))?;
    }
    let digest = digest_of(digest);
    let description = TemplateDescription {
        origin,
        digest: digest.clone(),
    };
    let path = made.join(DESCRIPTION);
    let text = serde_json::to_vec_pretty(&description).map_err(io::Error::other);
    fs::write(&path, text.map_err(file("write", &path))?).map_err(file("write", &path))?;
    let readable = fs::Permissions::from_mode(0o755);
    fs::set_permissions(&made, readable).map_err(file("change", &made))?;
    let kind = if network { "network" } else { "alone" };
    let target = templates.join(format!("{memory}-{kind}"));
    super::replace(&target, &made, scratch.path())?;
    Ok(GuestTemplate {
        memory,
        network,
        directory: target,
        digest,
    })
}
