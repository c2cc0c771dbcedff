//! The agent's shell, where its commands run in scopes: programs named like shells that stand
//! ahead of them, and variables that lead there.

use crate::bind::before_seal;
use crate::leases::Leases;
use crate::plan::{Command, Item, SupervisorFile, Variable, ViewOp};
use ironcage_host::HostFiles;
use ironcage_model::{READER_PROGRAM, SHELL_PLACE, ShellMode};
use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// Shells that can be stood ahead of, the one that agents like best first.
const SHELLS: [&str; 4] = ["bash", "zsh", "sh", "dash"];

/// What a link there leads to: the program that is in view where anything can be asked for.
const PROGRAM: &str = "../bin/ironcage";

/// Where the system has shells.
const PLACES: [&str; 2] = ["/bin", "/usr/bin"];

/// Puts the shims into the view, and what leads to them into the environment.
pub(crate) fn add_shims(
    leases: &Leases,
    files: &dyn HostFiles,
    view: &mut Vec<Item<ViewOp>>,
    command: &mut Command,
) {
    if leases.shell != ShellMode::Scoped {
        return;
    }
    let there = |name: &&str| {
        let mut places = PLACES.iter();
        places.any(|place| files.node(&Path::new(place).join(name)).is_some())
    };
    let shells: Vec<&str> = SHELLS.into_iter().filter(there).collect();
    let Some(first) = shells.first() else {
        return;
    };
    let origin = || "ceiling.shell".to_owned();
    let links = shells.iter().map(|name| Item {
        what: ViewOp::Symlink {
            target: Path::new(SHELL_PLACE).join(name),
            to: PROGRAM.into(),
        },
        origin: origin(),
    });
    let reader = Item {
        what: ViewOp::Supervisor {
            file: SupervisorFile::ReaderProgram,
            target: READER_PROGRAM.into(),
        },
        origin: origin(),
    };
    before_seal(view, links.chain([reader]));
    let shell = Path::new(SHELL_PLACE).join(first);
    for item in view.iter_mut() {
        // Some agents ask there which shell is the user's.
        if let ViewOp::File {
            target, content, ..
        } = &mut item.what
            && target == Path::new("/etc/passwd")
        {
            *content = content.replace(":/bin/sh\n", &format!(":{}\n", shell.display()));
        }
    }
    for item in &mut command.env {
        let Variable { name, value } = &mut item.what;
        if name == "PATH" {
            let mut path = OsString::from(SHELL_PLACE);
            path.push(":");
            path.push(&value);
            *value = path;
        } else if name == "SHELL" && item.origin == "built in" {
            *value = shell.clone().into();
            item.origin = origin();
        }
    }
}

/// Whether a directory of PATH is that of the stand-ins, which are for the agent: what the user
/// starts is what they name.
pub(crate) fn is_shim(directory: &[u8]) -> bool {
    directory == Path::new(SHELL_PLACE).as_os_str().as_bytes()
}
