//! Kernels: finds one, or downloads Debian's; its version, and the files of its modules.

use super::{SetupError, file};
use ironcage_files::Links;
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Debian's kernel for virtual machines.
const PACKAGE: &str = "linux-image-cloud-amd64";
/// Largest kernel that is read.
const LARGEST: u64 = 256 << 20;
/// Directories of modules that are searched, at most.
const DEEP: usize = 12;

/// Which kernel is used.
#[derive(Debug, Clone, Default)]
pub struct KernelSource {
    /// This one.
    pub kernel: Option<PathBuf>,
    /// Its modules are below here.
    pub modules: Option<PathBuf>,
    /// Whether one may be downloaded.
    pub offline: bool,
}

/// A kernel with its modules.
#[derive(Debug)]
pub(super) struct Kernel {
    pub(super) image: PathBuf,
    pub(super) version: String,
    pub(super) source: String,
    modules: PathBuf,
}

impl Kernel {
    /// The kernel that was asked for; else an installed one for virtual machines, one from Debian,
    /// or the host's own.
    pub(super) fn find(source: &KernelSource, scratch: &Path) -> Result<Kernel, SetupError> {
        if let Some(image) = &source.kernel {
            return Kernel::at(image, source.modules.as_deref(), "--kernel");
        }
        let installed = installed();
        let cloud = |path: &&PathBuf| path.to_string_lossy().ends_with("-cloud-amd64");
        let mut tried = Vec::new();
        for image in installed.iter().filter(cloud) {
            match Kernel::at(image, source.modules.as_deref(), "installed") {
                Ok(kernel) => return Ok(kernel),
                Err(error) => tried.push(error.to_string()),
            }
        }
        if !source.offline {
            match download(scratch) {
                Ok(kernel) => return Ok(kernel),
                Err(error) => tried.push(error.to_string()),
            }
        }
        for image in installed.iter().filter(|path| !cloud(path)) {
            match Kernel::at(image, source.modules.as_deref(), "installed") {
                Ok(kernel) => return Ok(kernel),
                Err(error) => tried.push(error.to_string()),
            }
        }
        Err(SetupError::NoKernel(match tried.is_empty() {
            true => "there is none in /boot".into(),
            false => tried.join("; "),
        }))
    }

    fn at(image: &Path, modules: Option<&Path>, source: &str) -> Result<Kernel, SetupError> {
        let version = version(image)?;
        // Beside the kernel, as a package has it, or where the system has them.
        let beside = image
            .parent()
            .and_then(Path::parent)
            .map(|top| top.join("lib/modules").join(&version));
        let system = Path::new("/lib/modules").join(&version);
        let modules = match (modules, beside) {
            (Some(given), _) => given.to_owned(),
            (None, Some(beside)) if beside.is_dir() => beside,
            _ => system,
        };
        Ok(Kernel {
            image: image.to_owned(),
            version,
            source: format!("{source} {}", image.display()),
            modules,
        })
    }

    /// The files of these modules and of those that they need, in the order of loading.
    pub(super) fn modules(&self, wanted: &[&str]) -> Result<Vec<PathBuf>, SetupError> {
        let mut files = BTreeMap::new();
        collect(&self.modules, DEEP, &mut files);
        let built_in = fs::read_to_string(self.modules.join("modules.builtin")).unwrap_or_default();
        let built_in: Vec<String> = built_in
            .lines()
            .filter_map(|line| Some(plain(line.rsplit('/').next()?)))
            .collect();
        let mut ordered = Vec::new();
        for name in wanted {
            self.add(name, &files, &built_in, &mut ordered, 0)?;
        }
        Ok(ordered)
    }

    fn add(
        &self,
        name: &str,
        files: &BTreeMap<String, PathBuf>,
        built_in: &[String],
        ordered: &mut Vec<PathBuf>,
        depth: usize,
    ) -> Result<(), SetupError> {
        let missing = || SetupError::Module {
            version: self.version.clone(),
            name: name.to_owned(),
            place: self.modules.clone(),
        };
        let Some(path) = files.get(name) else {
            return match built_in.iter().any(|known| known == name) {
                true => Ok(()),
                false => Err(missing()),
            };
        };
        if ordered.contains(path) {
            return Ok(());
        }
        if depth > DEEP {
            return Err(missing());
        }
        let bytes = fs::read(path).map_err(file("read", path))?;
        for needed in needs(&bytes) {
            self.add(&needed, files, built_in, ordered, depth + 1)?;
        }
        ordered.push(path.clone());
        Ok(())
    }
}

/// Kernels in /boot, the newest name first.
fn installed() -> Vec<PathBuf> {
    let mut found: Vec<PathBuf> = fs::read_dir("/boot")
        .into_iter()
        .flatten()
        .flatten()
        .map(|entry| entry.path())
        .filter(|path| {
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            name.starts_with("vmlinuz-") && fs::File::open(path).is_ok()
        })
        .collect();
    found.sort();
    found.reverse();
    found
}

/// The name of a module as the kernel has it, of the name of its file.
fn plain(name: &str) -> String {
    name.trim_end_matches(".ko").replace('-', "_")
}

/// The files of modules below a directory, by name. Compressed ones are left out.
fn collect(directory: &Path, depth: usize, found: &mut BTreeMap<String, PathBuf>) {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    for entry in entries {
        let path = entry.path();
        let Ok(kind) = entry.file_type() else {
            continue;
        };
        if kind.is_dir() && depth > 0 {
            collect(&path, depth - 1, found);
        } else if kind.is_file() && path.extension().is_some_and(|end| end == "ko") {
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            found.insert(plain(&name), path.clone());
        }
    }
}

/// The modules that a module says it needs: the line `depends=` of its description.
fn needs(module: &[u8]) -> Vec<String> {
    const KEY: &[u8] = b"\0depends=";
    let Some(at) = module.windows(KEY.len()).position(|window| window == KEY) else {
        return Vec::new();
    };
    let rest = module.get(at + KEY.len()..).unwrap_or_default();
    let line = rest.split(|byte| *byte == 0).next().unwrap_or_default();
    let text = String::from_utf8_lossy(line);
    let names = text.split(',').filter(|name| !name.is_empty());
    names.map(plain).collect()
}

/// The version in the header of a bzImage.
fn version(path: &Path) -> Result<String, SetupError> {
    let wrong = |why: &str| SetupError::Kernel {
        path: path.to_owned(),
        why: why.into(),
    };
    let bytes = ironcage_files::read(path, LARGEST, Links::Follow);
    let bytes = bytes.map_err(|error| wrong(&error.reason()))?;
    // The boot protocol of x86: a signature, and a pointer to the text less a sector.
    if bytes.get(0x202..0x206) != Some(b"HdrS") {
        return Err(wrong("not a bzImage"));
    }
    let pointer = match bytes.get(0x20e..0x210) {
        Some(&[low, high]) => usize::from(u16::from_le_bytes([low, high])) + 0x200,
        _ => return Err(wrong("its header is cut off")),
    };
    let text = bytes.get(pointer..).unwrap_or_default();
    let word = text
        .split(|byte| *byte == 0 || *byte == b' ')
        .next()
        .unwrap_or_default();
    let name: String = String::from_utf8_lossy(word).into_owned();
    let valid = |c: char| c.is_ascii_alphanumeric() || "._+-~".contains(c);
    match name.is_empty() || name.len() > 128 || !name.chars().all(valid) {
        true => Err(wrong("its header names no version")),
        false => Ok(name),
    }
}

/// Downloads and unpacks Debian's kernel for virtual machines, as the user.
fn download(scratch: &Path) -> Result<Kernel, SetupError> {
    let depends = output(Command::new("apt-cache").args(["depends", "--important", PACKAGE]))?;
    let package = depends
        .lines()
        .filter_map(|line| line.trim().strip_prefix("Depends: "))
        .find(|name| name.starts_with("linux-image-"))
        .ok_or_else(|| SetupError::NoKernel(format!("apt knows no package {PACKAGE}")))?
        .to_owned();
    let archive = scratch.join("package");
    fs::create_dir(&archive).map_err(file("create", &archive))?;
    output(
        Command::new("apt-get")
            .args(["download", "-q", &package])
            .current_dir(&archive),
    )?;
    let found = fs::read_dir(&archive).map_err(file("read", &archive))?;
    let downloaded = found
        .flatten()
        .map(|entry| entry.path())
        .find(|path| path.extension().is_some_and(|end| end == "deb"))
        .ok_or_else(|| SetupError::NoKernel(format!("apt-get downloaded no {package}")))?;
    let tree = scratch.join("tree");
    output(
        Command::new("dpkg-deb")
            .arg("-x")
            .arg(&downloaded)
            .arg(&tree),
    )?;
    let boot = fs::read_dir(tree.join("boot")).map_err(file("read", &tree))?;
    let image = boot
        .flatten()
        .map(|entry| entry.path())
        .find(|path| {
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            name.starts_with("vmlinuz-")
        })
        .ok_or_else(|| SetupError::NoKernel(format!("{package} has no kernel")))?;
    let kernel = Kernel::at(&image, None, "package")?;
    Ok(Kernel {
        source: format!("package {package}"),
        ..kernel
    })
}

pub(super) fn output(command: &mut Command) -> Result<String, SetupError> {
    let name = command.get_program().to_string_lossy().into_owned();
    let failed = |said: String| SetupError::Command {
        command: name.clone(),
        said,
    };
    let output = command
        .env("LC_ALL", "C.UTF-8")
        .stdin(std::process::Stdio::null())
        .output()
        .map_err(|error| failed(error.to_string()))?;
    match output.status.success() {
        true => Ok(String::from_utf8_lossy(&output.stdout).into_owned()),
        false => {
            let said = String::from_utf8_lossy(&output.stderr);
            Err(failed(said.trim().chars().take(400).collect()))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_module_names_what_it_needs() {
        assert_eq!(
            needs(b"\x7fELF..license=GPL\0depends=virtio,virtio-ring\0name=x\0"),
            ["virtio", "virtio_ring"]
        );
        assert!(needs(b"..\0depends=\0name=virtio\0").is_empty());
    }

    #[test]
    fn a_file_that_is_not_a_kernel_is_refused_by_name() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("vmlinuz");
        fs::write(&path, vec![0; 4096]).unwrap();
        let error = version(&path).unwrap_err();
        assert!(matches!(error, SetupError::Kernel { .. }), "{error}");
        let mut bytes = vec![0; 4096];
        bytes[0x202..0x206].copy_from_slice(b"HdrS");
        bytes[0x20e..0x210].copy_from_slice(&0x100_u16.to_le_bytes());
        bytes[0x300..0x310].copy_from_slice(b"6.1.0-56-cloud (");
        fs::write(&path, &bytes).unwrap();
        assert_eq!(version(&path).unwrap(), "6.1.0-56-cloud");
    }
}
