//! The floor: the same namespaces and mounts as a cage, and nothing else, from a process
//! that is already there. A start costs the kernel this much, whatever program asks for it.
//!
//! No capability is dropped, no filter is loaded, nothing is confined: it is not a cage.

use crate::peers::{SystemDirectory, system_directories};
use crate::resident::serve;
use crate::{ArmError, BenchError};
use ironcage_sys::bench::{ALL_NAMESPACES, Program, clone_child, make_read_only, wait_for};
use ironcage_sys::rustix::fs::{Mode, OFlags, mkdir, open, symlink};
use ironcage_sys::rustix::io::Errno;
use ironcage_sys::rustix::mount::{
    MountFlags, MountPropagationFlags, UnmountFlags, mount, mount_bind_recursive, mount_change,
    unmount,
};
use ironcage_sys::rustix::process::{chdir, getegid, geteuid, pivot_root};
use std::ffi::{CStr, CString, OsStr};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// What the floor runs, and where.
#[derive(Debug, Clone)]
pub struct FloorRequest {
    /// An empty directory to mount the new root on.
    pub root: PathBuf,
    /// The directory that the command may write.
    pub workspace: PathBuf,
    /// The command, by its path; it gets no arguments.
    pub command: PathBuf,
}

/// Serves starts until standard input ends.
pub fn serve_floor(request: &FloorRequest) -> Result<(), BenchError> {
    let floor = Floor::new(request).map_err(BenchError::call("preparing the floor"))?;
    serve(|| floor.start()).map_err(BenchError::call("reading requests"))
}

#[derive(Debug)]
struct Bind {
    source: CString,
    target: CString,
    is_directory: bool,
    read_only: bool,
}

/// Everything is made beforehand, so that the child only makes system calls.
#[derive(Debug)]
struct Floor {
    root: CString,
    folders: Vec<CString>,
    links: Vec<(CString, CString)>,
    binds: Vec<Bind>,
    program: Program,
    ids: IdMaps,
}

/// Who the caller is in a user namespace that it makes.
#[derive(Debug)]
pub(crate) struct IdMaps {
    uid_map: String,
    gid_map: String,
}

impl IdMaps {
    /// The caller as root; to be asked before the namespace is made.
    pub(crate) fn of_caller() -> IdMaps {
        IdMaps {
            uid_map: format!("0 {} 1\n", geteuid().as_raw()),
            gid_map: format!("0 {} 1\n", getegid().as_raw()),
        }
    }

    /// Writes them, in the namespace.
    pub(crate) fn write(&self) -> FloorStep {
        for (file, text) in [
            ("/proc/self/setgroups", "deny"),
            ("/proc/self/uid_map", self.uid_map.as_str()),
            ("/proc/self/gid_map", self.gid_map.as_str()),
        ] {
            std::fs::write(file, text).map_err(|error| (file, error))?;
        }
        Ok(())
    }
}

/// A step of the child's that failed.
pub(crate) type FloorStep = Result<(), (&'static str, io::Error)>;

fn step<T>(name: &'static str, result: Result<T, Errno>) -> Result<T, (&'static str, io::Error)> {
    result.map_err(|errno| (name, errno.into()))
}

fn c_path(path: impl AsRef<OsStr>) -> io::Result<CString> {
    Ok(CString::new(path.as_ref().as_bytes())?)
}

/// An absolute path, relative to the new root.
fn inside(path: &Path) -> &Path {
    path.strip_prefix("/").unwrap_or(path)
}

impl Floor {
    fn new(request: &FloorRequest) -> io::Result<Floor> {
        let mut folders = Vec::new();
        for name in ["dev", "proc", "tmp"] {
            folders.push(c_path(name)?);
        }
        let mut links = Vec::new();
        let mut binds = Vec::new();
        let mut bind = |path: &Path, read_only: bool| -> io::Result<()> {
            // A host without /opt has one bind less.
            if let Ok(facts) = path.metadata() {
                binds.push(Bind {
                    source: c_path(path)?,
                    target: c_path(inside(path))?,
                    is_directory: facts.is_dir(),
                    read_only,
                });
            }
            Ok(())
        };
        for directory in ["/usr", "/etc", "/opt"] {
            bind(Path::new(directory), true)?;
        }
        for entry in system_directories() {
            match entry {
                SystemDirectory::Link { path, target } => {
                    links.push((c_path(target)?, c_path(inside(&path))?));
                }
                SystemDirectory::Directory { path } => bind(&path, true)?,
            }
        }
        for device in ["null", "zero", "urandom", "full"] {
            bind(&Path::new("/dev").join(device), false)?;
        }
        // At a short path of its own: the way to it is no part of the floor.
        binds.push(Bind {
            source: c_path(&request.workspace)?,
            target: c_path("work")?,
            is_directory: true,
            read_only: false,
        });
        let none: [(&str, &str); 0] = [];
        Ok(Floor {
            root: c_path(&request.root)?,
            folders,
            links,
            binds,
            program: Program::new(&request.command, [""; 0], none)?,
            ids: IdMaps::of_caller(),
        })
    }

    fn start(&self) -> Result<Duration, ArmError> {
        let started = Instant::now();
        let pid =
            clone_child(ALL_NAMESPACES, || self.child()).map_err(ArmError::system("clone3"))?;
        let status = wait_for(pid).map_err(ArmError::system("wait"))?;
        let elapsed = started.elapsed();
        if status.success() {
            Ok(elapsed)
        } else {
            Err(ArmError::Result(status.to_string()))
        }
    }

    fn child(&self) -> u8 {
        let (name, error) = match self.enter() {
            Ok(()) => ("execve", self.program.exec()),
            Err(failed) => failed,
        };
        eprintln!("{name}: {error}");
        99
    }

    fn enter(&self) -> FloorStep {
        self.ids.write()?;
        let private = MountPropagationFlags::PRIVATE | MountPropagationFlags::REC;
        step("mount(/, MS_PRIVATE)", mount_change(c"/", private))?;
        let safe = MountFlags::NOSUID | MountFlags::NODEV;
        let options = Some(c"size=64m,mode=755");
        step(
            "mount(tmpfs)",
            mount(c"tmpfs", &self.root, c"tmpfs", safe, options),
        )?;
        step("chdir", chdir(&*self.root))?;
        self.make_entries()?;
        for bind in &self.binds {
            step(
                "mount(MS_BIND)",
                mount_bind_recursive(&bind.source, &bind.target),
            )?;
            if bind.read_only {
                make_read_only(&bind.target).map_err(|error| ("mount_setattr", error))?;
            }
        }
        let safe = safe | MountFlags::NOEXEC;
        step(
            "mount(proc)",
            mount(c"proc", c"proc", c"proc", safe, None::<&CStr>),
        )?;
        // The old root lands on top of the new one at "."; taken off, the new one is left.
        step("pivot_root", pivot_root(c".", c"."))?;
        step("umount2", unmount(c".", UnmountFlags::DETACH))?;
        step("chdir(/)", chdir(c"/"))
    }

    fn make_entries(&self) -> FloorStep {
        let plain = Mode::from_raw_mode(0o755);
        for folder in &self.folders {
            step("mkdir", mkdir(folder, plain))?;
        }
        for (target, path) in &self.links {
            step("symlink", symlink(target, path))?;
        }
        for bind in &self.binds {
            if bind.is_directory {
                step("mkdir", mkdir(&bind.target, plain))?;
            } else {
                let flags = OFlags::CREATE | OFlags::WRONLY | OFlags::CLOEXEC;
                step(
                    "open",
                    open(&bind.target, flags, Mode::from_raw_mode(0o644)),
                )?;
            }
        }
        Ok(())
    }
}
