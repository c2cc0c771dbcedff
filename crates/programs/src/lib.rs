//! The programs that belong together, and where each finds the others.
//!
//! A program finds the others beside itself or, if it is in a `bin`, in `libexec/ironcage` beside that.
//! It does not use PATH or the environment: neither the workspace nor the agent may choose what is put
//! into a cage or started outside one.
#![forbid(unsafe_code)]

use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// One of the programs that are built and packaged together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Program {
    /// The command: policy, plan, start, supervisor.
    Ironcage,
    /// The egress proxy of a cage that has a network.
    Egress,
    /// What is put into a cage.
    Inside,
    /// Reads programs that commands execute.
    Reader,
    /// The containment suite and the benchmarks.
    Lab,
    /// Boots and serves the virtual machine of a cage, inside it.
    Vmm,
    /// The first process of a guest.
    VmInit,
    /// Runs containers of Docker, podman, containerd and Kubernetes.
    OciRuntime,
    /// Container images, from registries and archives to the store.
    Registry,
    /// Runs WebAssembly commands, inside a cage.
    Wasm,
    /// Cages by HTTP.
    Serve,
    /// The gateway for MCP servers, and Ironcage as an MCP server.
    Mcp,
}

/// The directory below `libexec`.
const LIBEXEC: &str = "libexec/ironcage";

impl Program {
    /// The name of its file.
    pub fn name(self) -> &'static str {
        match self {
            Program::Ironcage => "ironcage",
            Program::Egress => "ironcage-egress",
            Program::Inside => "ironcage-inside",
            Program::Reader => "ironcage-reader",
            Program::Lab => "ironcage-lab",
            Program::Vmm => "ironcage-vmm",
            Program::VmInit => "ironcage-vm-init",
            Program::OciRuntime => "ironcage-oci-runtime",
            Program::Registry => "ironcage-registry",
            Program::Wasm => "ironcage-wasm",
            Program::Serve => "ironcage-serve",
            Program::Mcp => "ironcage-mcp",
        }
    }

    /// Finds it from where the running program lies.
    pub fn find(self) -> Result<PathBuf, FindError> {
        let own = std::env::current_exe().map_err(FindError::Own)?;
        self.find_from(&own)
    }

    /// The same, for a program that lies at `own`.
    fn find_from(self, own: &Path) -> Result<PathBuf, FindError> {
        let name = self.name();
        // What the kernel says of one whose file was replaced or removed while it ran.
        if own.as_os_str().as_bytes().ends_with(b" (deleted)") {
            return Err(FindError::Replaced { name });
        }
        let owner = own.metadata().map_err(FindError::Own)?.uid();
        let mut looked = Vec::new();
        for place in places(own) {
            let path = place.join(name);
            match path.metadata() {
                Ok(found) if found.is_file() => {
                    // In a shared directory a stranger may have put one there.
                    if found.uid() != owner && found.uid() != 0 {
                        return Err(FindError::Foreign { path });
                    }
                    return Ok(path);
                }
                _ => looked.push(place),
            }
        }
        Err(FindError::Missing { name, looked })
    }
}

/// Where the programs beside the one at `own` may lie.
fn places(own: &Path) -> Vec<PathBuf> {
    let Some(beside) = own.parent() else {
        return Vec::new();
    };
    let mut places = vec![beside.to_owned()];
    if beside.ends_with("bin") {
        places.extend(beside.parent().map(|top| top.join(LIBEXEC)));
    }
    if beside.ends_with(LIBEXEC) {
        places.extend(beside.ancestors().nth(2).map(|top| top.join("bin")));
    }
    places
}

/// Why a program was not found.
#[derive(Debug, thiserror::Error)]
pub enum FindError {
    /// Where the running program lies cannot be told.
    #[error("cannot tell where this program lies")]
    Own(#[source] io::Error),
    /// The running program's file is gone, and with it the place beside it.
    #[error("cannot find {name}: this program was replaced while it ran")]
    Replaced {
        /// The program that was looked for.
        name: &'static str,
    },
    /// It is nowhere.
    #[error("cannot find {name} in {}", listed(looked))]
    Missing {
        /// The program that was looked for.
        name: &'static str,
        /// The directories that were looked into.
        looked: Vec<PathBuf>,
    },
    /// There is one, of somebody else's.
    #[error("{} belongs neither to root nor to the owner of the running program", path.display())]
    Foreign {
        /// The program that was found.
        path: PathBuf,
    },
}

impl FindError {
    /// What can be done about it.
    pub fn hint(&self) -> &'static str {
        match self {
            FindError::Own(_) => "mount /proc, where programs find their own file",
            FindError::Replaced { .. } => "start it again",
            FindError::Missing { .. } => {
                "install all programs of the package together; `cargo build --workspace` builds them side by side"
            }
            FindError::Foreign { .. } => "remove it, and install all programs as one user",
        }
    }
}

fn listed(places: &[PathBuf]) -> String {
    let places = places.iter().map(|place| place.display().to_string());
    places.collect::<Vec<_>>().join(" or ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    fn install(path: &Path) -> PathBuf {
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, "").unwrap();
        path.to_owned()
    }

    #[test]
    fn a_program_beside_is_found_and_one_elsewhere_is_not() {
        let top = tempfile::tempdir().unwrap();
        let own = install(&top.path().join("debug/ironcage"));
        install(&top.path().join("libexec/ironcage/ironcage-lab"));
        let error = Program::Lab.find_from(&own).unwrap_err();
        assert!(matches!(&error, FindError::Missing { looked, .. } if looked.len() == 1));
        let lab = install(&top.path().join("debug/ironcage-lab"));
        assert_eq!(Program::Lab.find_from(&own).unwrap(), lab);
        assert_eq!(Program::Ironcage.find_from(&lab).unwrap(), own);
    }

    #[test]
    fn programs_in_bin_and_libexec_find_each_other() {
        let top = tempfile::tempdir().unwrap();
        let own = install(&top.path().join("usr/bin/ironcage"));
        let lab = install(&top.path().join("usr/libexec/ironcage/ironcage-lab"));
        assert_eq!(Program::Lab.find_from(&own).unwrap(), lab);
        assert_eq!(Program::Ironcage.find_from(&lab).unwrap(), own);
    }

    #[test]
    fn a_directory_of_the_name_is_no_program() {
        let top = tempfile::tempdir().unwrap();
        let own = install(&top.path().join("ironcage"));
        fs::create_dir(top.path().join("ironcage-lab")).unwrap();
        let error = Program::Lab.find_from(&own).unwrap_err();
        assert!(matches!(error, FindError::Missing { .. }));
    }

    #[test]
    fn a_stranger_s_program_is_refused_and_root_s_is_taken() {
        let top = tempfile::tempdir().unwrap();
        let own = install(&top.path().join("ironcage"));
        let lab = install(&top.path().join("ironcage-lab"));
        // Only root can give files away.
        if std::os::unix::fs::chown(&lab, Some(12_345), None).is_err() {
            return;
        }
        let error = Program::Lab.find_from(&own).unwrap_err();
        assert!(matches!(error, FindError::Foreign { .. }));
        std::os::unix::fs::chown(&own, Some(12_345), None).unwrap();
        assert_eq!(Program::Lab.find_from(&own).unwrap(), lab);
        std::os::unix::fs::chown(&lab, Some(0), None).unwrap();
        assert_eq!(Program::Lab.find_from(&own).unwrap(), lab);
    }

    #[test]
    fn beside_a_program_that_was_replaced_nothing_is_looked_for() {
        let error = Program::Lab.find_from(Path::new("/usr/bin/ironcage (deleted)"));
        assert!(matches!(error, Err(FindError::Replaced { .. })));
    }
}
