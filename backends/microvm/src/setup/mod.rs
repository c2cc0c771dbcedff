//! The guest: a kernel, an initramfs with the modules that it needs, and the init.
//!
//! All of it lies in one directory of the user's, with a manifest that says what it was made from.

mod cpio;
mod kernel;
mod qemu;
mod template;

use crate::kvm;
use ironcage_plan::{GuestFiles, GuestTemplate};
use ironcage_programs::{FindError, Program};
use kernel::Kernel;
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use std::fmt::Write as _;
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

pub use kernel::KernelSource;
pub use qemu::{Qemu, unpack};

/// Names in the directory.
const KERNEL: &str = "kernel";
const INITRAMFS: &str = "initramfs";
const MANIFEST: &str = "manifest.json";
/// Modules that a guest needs, as far as its kernel does not have them built in.
const MODULES: [&str; 4] = ["virtio_mmio", "virtio_console", "virtiofs", "virtio_net"];
/// Modules that root of a guest uses, where the kernel has them.
const OF_ROOT: [&str; 1] = ["overlay"];
/// Where programs name what loads them.
const LOADER: &str = "/lib64/ld-linux-x86-64.so.2";

/// Why there is no guest, or none could be made.
#[derive(Debug, thiserror::Error)]
pub enum SetupError {
    /// Nothing was set up.
    #[error("cannot use --isolation microvm: no guest is set up")]
    Missing,
    /// It belongs to another version of the programs.
    #[error("cannot use --isolation microvm: the guest was set up by another version")]
    Stale,
    /// The VMM is not installed.
    #[error("cannot use --isolation microvm: qemu-system-x86_64 is not installed")]
    NoQemu,
    /// No kernel was found, and none could be downloaded.
    #[error("cannot find a kernel for the guest: {0}")]
    NoKernel(String),
    /// A file is not a kernel that a guest can start with.
    #[error("cannot use {} as the guest's kernel: {why}", path.display())]
    Kernel {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        why: String,
    },
    /// A module that a guest needs is not there.
    #[error("cannot use kernel {version}: it has no module {name} in {}", place.display())]
    Module {
        /// The kernel's version.
        version: String,
        /// The module.
        name: String,
        /// Where it was looked for.
        place: PathBuf,
    },
    /// A program of the package is missing.
    #[error(transparent)]
    Program(#[from] FindError),
    /// There is no QEMU to unpack.
    #[error("cannot unpack a newer QEMU: {0}")]
    NoNewQemu(String),
    /// QEMU cannot save a machine with a shared root.
    #[error("cannot make a template: QEMU {0} cannot save a machine with a shared root")]
    OldQemu(String),
    /// The template's guest did not boot, or was not saved.
    #[error("cannot make a template: {0}")]
    Template(String),
    /// A file cannot be read or written.
    #[error("cannot {action} {}: {source}", path.display())]
    File {
        /// What was tried.
        action: &'static str,
        /// The file.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// A command failed.
    #[error("cannot set up the guest: {command} failed: {said}")]
    Command {
        /// The command.
        command: String,
        /// What it said.
        said: String,
    },
}

impl SetupError {
    /// What is missing, without what it would be for.
    pub fn missing(&self) -> String {
        let text = self.to_string();
        let told = text.strip_prefix("cannot use --isolation microvm: ");
        told.unwrap_or(&text).to_owned()
    }

    /// What can be done about it.
    pub fn hint(&self) -> &'static str {
        match self {
            SetupError::Missing | SetupError::Stale => "run `ironcage setup microvm`",
            SetupError::NoQemu => {
                "run `apt install --no-install-recommends qemu-system-x86`, then `ironcage setup microvm`"
            }
            SetupError::NoKernel(_) | SetupError::Command { .. } => {
                "run `sudo apt-get update` and try again, or name a kernel with --kernel FILE"
            }
            SetupError::Kernel { .. } => {
                "name a kernel in the format bzImage, such as /boot/vmlinuz-VERSION, that you can read"
            }
            SetupError::Module { .. } => {
                "name the directory with the kernel's modules with --modules DIR; compressed modules cannot be used"
            }
            SetupError::NoNewQemu(_) => "install QEMU 10 or newer, which `--warm` then uses",
            SetupError::OldQemu(_) => {
                "run `ironcage setup microvm --qemu --warm`, which unpacks QEMU 10 of Debian's backports"
            }
            SetupError::Template(_) => "run it without --warm: guests boot then",
            SetupError::Program(error) => error.hint(),
            SetupError::File { .. } => "check that you can read and write it",
        }
    }
}

fn file(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> SetupError {
    let path = path.to_owned();
    move |source| SetupError::File {
        action,
        path,
        source,
    }
}

/// What the files of a guest were made from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Manifest {
    /// The kernel's version, as its file says it.
    pub version: String,
    /// Where the kernel came from.
    pub source: String,
    /// SHA-256 of the kernel, in hexadecimal.
    pub kernel: String,
    /// SHA-256 of the initramfs, in hexadecimal.
    pub initramfs: String,
    /// Modules in the initramfs, in the order in which they are loaded.
    pub modules: Vec<String>,
    /// Size and change time of the guest's init, which tell one version from another.
    init: (u64, i64, i64),
}

fn mark(program: &Path) -> Result<(u64, i64, i64), SetupError> {
    let found = fs::metadata(program).map_err(file("read", program))?;
    Ok((found.size(), found.mtime(), found.mtime_nsec()))
}

/// The guest that was set up in a directory.
///
/// # Errors
/// Where there is none, or it does not fit these programs.
pub fn find(directory: &Path) -> Result<GuestFiles, SetupError> {
    let manifest = manifest(directory)?;
    if manifest.init != mark(&Program::VmInit.find()?)? {
        return Err(SetupError::Stale);
    }
    let loader = Path::new(LOADER);
    let qemu = Qemu::find(directory)?;
    let acceleration = kvm::acceleration(directory);
    Ok(GuestFiles {
        templates: template::find(directory, &manifest, (&qemu, acceleration)),
        qemu: qemu.program,
        qemu_directory: qemu.directory,
        loader: loader.canonicalize().map_err(file("find", loader))?,
        program: Program::Vmm.find()?,
        kernel: directory.join(KERNEL),
        initramfs: directory.join(INITRAMFS),
        version: manifest.version,
        kernel_digest: manifest.kernel,
        initramfs_digest: manifest.initramfs,
        acceleration,
    })
}

/// The manifest of a directory.
///
/// # Errors
/// Where nothing was set up there.
pub fn manifest(directory: &Path) -> Result<Manifest, SetupError> {
    let path = directory.join(MANIFEST);
    let bytes = match fs::read(&path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Err(SetupError::Missing),
        other => other.map_err(file("read", &path))?,
    };
    serde_json::from_slice(&bytes).map_err(|_| SetupError::Stale)
}

/// Makes a guest in a directory, in the place of an earlier one.
///
/// # Errors
/// Where no kernel is found, or its modules are not. The earlier guest is then as it was.
pub fn set_up(directory: &Path, source: &KernelSource) -> Result<Manifest, SetupError> {
    let init = Program::VmInit.find()?;
    let parent = directory.parent().unwrap_or(directory);
    fs::create_dir_all(parent).map_err(file("create", parent))?;
    let scratch = tempfile::Builder::new()
        .prefix(".microvm.")
        .tempdir_in(parent)
        .map_err(file("create a directory in", parent))?;
    let kernel = Kernel::find(source, scratch.path())?;
    let mut modules = kernel.modules(&MODULES)?;
    let of_root = kernel.modules(&OF_ROOT).unwrap_or_default();
    modules.extend(
        of_root
            .into_iter()
            .filter(|path| !modules.contains(path))
            .collect::<Vec<_>>(),
    );
    let made = scratch.path().join("made");
    fs::create_dir(&made).map_err(file("create", &made))?;
    let mut archive = cpio::Archive::default();
    for place in ["dev", "modules", "proc", "r", "sys"] {
        archive.directory(place);
    }
    // The init has no console, and a program without standard streams opens this in their place.
    archive.device("dev/null", [1, 3]);
    let program = fs::read(&init).map_err(file("read", &init))?;
    archive.file("init", 0o755, &program);
    let mut names = Vec::new();
    for (index, path) in modules.iter().enumerate() {
        let module = fs::read(path).map_err(file("read", path))?;
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        archive.file(&format!("modules/{index:02}-{name}"), 0o644, &module);
        names.push(name.into_owned());
    }
    let archive = archive.finish();
    let image = fs::read(&kernel.image).map_err(file("read", &kernel.image))?;
    let manifest = Manifest {
        version: kernel.version,
        source: kernel.source,
        kernel: digest(&image),
        initramfs: digest(&archive),
        modules: names,
        init: mark(&init)?,
    };
    let text = serde_json::to_vec_pretty(&manifest)
        .map_err(|error| file("write", &made)(io::Error::other(error)))?;
    for (name, content) in [(KERNEL, &image), (INITRAMFS, &archive), (MANIFEST, &text)] {
        let path = made.join(name);
        fs::write(&path, content).map_err(file("write", &path))?;
    }
    replace(directory, &made, scratch.path())?;
    Ok(manifest)
}

/// Makes the templates of a guest with this many MiB of memory: with a network interface, and without.
///
/// # Errors
/// QEMU is too old, or the guest does not boot.
pub fn warm(directory: &Path, memory: u64) -> Result<Vec<GuestTemplate>, SetupError> {
    let manifest = manifest(directory)?;
    let qemu = Qemu::find(directory)?;
    let version = qemu.version()?;
    if !Qemu::can_save(&version) {
        return Err(SetupError::OldQemu(version));
    }
    let files = (directory.join(KERNEL), directory.join(INITRAMFS));
    let by = (&qemu, kvm::acceleration(directory));
    let sizes = [false, true].map(|network| (memory, network));
    let made =
        sizes.map(|size| template::make((directory, &files.0, &files.1), &manifest, by, size));
    made.into_iter().collect()
}

/// Puts the new directory in the place of the old one. A cage that runs keeps the files it has open.
fn replace(directory: &Path, made: &Path, scratch: &Path) -> Result<(), SetupError> {
    match fs::rename(directory, scratch.join("old")) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            return Err(file("replace", directory)(error));
        }
        _ => {}
    }
    fs::rename(made, directory).map_err(file("write", directory))
}

fn digest(bytes: &[u8]) -> String {
    digest_of(Sha256::new_with_prefix(bytes))
}

fn digest_of(digest: Sha256) -> String {
    let mut text = String::with_capacity(64);
    for byte in digest.finalize() {
        // Writing to a string cannot fail.
        let _ = write!(text, "{byte:02x}");
    }
    text
}
