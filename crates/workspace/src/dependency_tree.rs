//! Trees of installed packages: a Python environment, a `node_modules`.
//!
//! Their parts belong together, and much of one would be executed: an interpreter without its
//! library, or a program without the packages that it loads, is of no use and looks as if it were
//! whole. So such a tree is one decision, whatever the names in it.

use crate::tree;
use std::ffi::OsStr;
use std::io;
use std::os::fd::{AsFd as _, BorrowedFd};
use std::path::{Path, PathBuf};

/// What a tree of packages is of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PackageManager {
    /// A Python or Conda environment.
    Python,
    /// A `node_modules`.
    Node,
}

impl PackageManager {
    /// The shape's name in `policies/executed.toml`.
    pub(crate) fn shape(self) -> &'static str {
        match self {
            PackageManager::Python => "python-environment",
            PackageManager::Node => "node-modules",
        }
    }
}

/// A tree of installed packages that an entry is, or lies in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DependencyTree {
    pub manager: PackageManager,
    /// The outermost directory of it, below the layer's real directory.
    pub root: PathBuf,
}

/// What only the directory of a Python or Conda environment has in it.
const MARKERS: [&str; 2] = ["pyvenv.cfg", "conda-meta"];
/// Programs by which a directory called `venv` or `env` is told from a package of that name.
const PROGRAMS: [(&str, &str); 3] = [
    ("bin", "activate"),
    ("bin", "python"),
    ("Scripts", "activate"),
];

impl DependencyTree {
    /// Whether a directory is such a tree, by its name and by what the change and the real tree
    /// have in it.
    pub(crate) fn of(
        path: &Path,
        upper: BorrowedFd<'_>,
        lower: Option<BorrowedFd<'_>>,
    ) -> io::Result<Option<DependencyTree>> {
        let name = path.file_name().unwrap_or_default();
        let of = |manager| {
            Some(DependencyTree {
                manager,
                root: path.to_owned(),
            })
        };
        if name == "node_modules" {
            return Ok(of(PackageManager::Node));
        }
        let both = || [Some(upper), lower].into_iter().flatten();
        let mut is_python = name == ".venv";
        for directory in both() {
            for marker in MARKERS {
                is_python |= has(directory, marker)?;
            }
            if ["venv", "env", "virtualenv"]
                .iter()
                .any(|usual| name == *usual)
            {
                is_python |= has_program(directory)?;
            }
        }
        Ok(is_python.then(|| of(PackageManager::Python)).flatten())
    }
}

fn has(directory: BorrowedFd<'_>, name: &str) -> io::Result<bool> {
    Ok(tree::look(directory, OsStr::new(name))?.is_some_and(|node| !node.whiteout))
}

fn has_program(directory: BorrowedFd<'_>) -> io::Result<bool> {
    for (folder, program) in PROGRAMS {
        // No directory, or a link, which is judged as what it is.
        let Ok(folder) = tree::open_directory(directory, OsStr::new(folder)) else {
            continue;
        };
        if has(folder.as_fd(), program)? {
            return Ok(true);
        }
    }
    Ok(false)
}
