//! Commands that failed because they change the system, or become root: a cage has the host's system to
//! read, and nobody in it becomes another user. Programs only see "Read-only file system", or that their
//! files are absent.
//!
//! The command is read as in `hidden_files`, outside the cage and for the user alone.

use crate::hidden_files;
use ironcage_intent::Needs;
use ironcage_model::Printable;
use ironcage_plan::{Plan, locate};
use std::path::Path;

/// Where a system has its own files.
const SYSTEM: [&str; 8] = [
    "/bin", "/boot", "/etc", "/lib", "/opt", "/sbin", "/usr", "/var",
];
/// Programs that install into the system.
const INSTALLERS: [&str; 8] = [
    "apk", "apt", "apt-get", "aptitude", "dnf", "pacman", "yum", "zypper",
];
/// The subcommands of those programs that install something.
const INSTALLS: [&str; 9] = [
    "add",
    "dist-upgrade",
    "in",
    "install",
    "purge",
    "remove",
    "update",
    "upgrade",
    "-S",
];
/// Programs that make the user root.
const TO_ROOT: [&str; 5] = ["doas", "pkexec", "run0", "su", "sudo"];

/// Whether a program is for becoming root.
pub(crate) fn is_for_root(program: &Path) -> bool {
    is_one_of(program, &TO_ROOT)
}

fn is_one_of(program: &Path, names: &[&str]) -> bool {
    let name = program.file_name().and_then(|name| name.to_str());
    name.is_some_and(|name| names.contains(&name))
}

/// The alternative to becoming root.
pub(crate) fn instead_of_root(has_image: bool) -> &'static str {
    match has_image {
        true => {
            "a cage has no root to become: leave that program out; --root-inside runs the command as root of the image's files"
        }
        false => {
            "a cage has no root to become: leave that program out; to change a system, `--image NAME --writable-image --root-inside` gives the cage its own"
        }
    }
}

/// A line for a command that failed, if it would change the system or become root.
pub(crate) fn line(plan: &Plan, home: &Path, has_image: bool) -> Option<String> {
    let argv = plan.command.argv.iter();
    let words: Vec<String> = argv
        .map(|word| word.to_string_lossy().into_owned())
        .collect();
    let needs = hidden_files::needs(&words, &plan.command.cwd, home)?;
    explain(&needs, &words, has_image, |path| {
        path.starts_with(&plan.workspace) || locate(plan, path).standing.is_writable()
    })
}

fn explain(
    needs: &Needs,
    words: &[String],
    has_image: bool,
    is_writable: impl Fn(&Path) -> bool,
) -> Option<String> {
    let mut programs = needs.programs.iter().map(Path::new);
    if let Some(program) = programs.clone().find(|program| is_for_root(program)) {
        let shown = Printable::new(program);
        return Some(format!("{shown}: {}", instead_of_root(has_image)));
    }
    let flags = match has_image {
        true => "--writable-image --root-inside",
        false => "--image NAME --writable-image --root-inside",
    };
    let is_system = |path: &Path| SYSTEM.iter().any(|tree| path.starts_with(tree));
    let mut written = needs.writes.iter();
    if let Some(path) = written.find(|path| is_system(path) && !is_writable(path)) {
        let shown = Printable::new(path);
        return Some(format!(
            "{shown} belongs to the system, which this cage cannot change; to give it one of its own: {flags}"
        ));
    }
    let mut words = words.iter().flat_map(|word| word.split_whitespace());
    let installer = programs.find(|program| is_one_of(program, &INSTALLERS))?;
    (words.any(|word| INSTALLS.contains(&word)) && !is_writable(Path::new("/usr"))).then(|| {
        format!(
            "{} changes the system, which this cage cannot; to give it one of its own: {flags}",
            Printable::new(installer)
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(command: &str, has_image: bool, writable: bool) -> Option<String> {
        let words: Vec<String> = command.split(' ').map(str::to_owned).collect();
        let (work, home) = (Path::new("/work"), Path::new("/home/you"));
        let needs = hidden_files::needs(&words, work, home).unwrap();
        explain(&needs, &words, has_image, |path| {
            writable || path.starts_with(work)
        })
    }

    #[test]
    fn a_command_that_changes_the_system_is_told_what_gives_it_one() {
        let flags = "--image NAME --writable-image --root-inside";
        for command in [
            "touch /etc/x",
            "apt-get install -y hello",
            "/usr/bin/apt-get update",
            "sudo apt install hello",
        ] {
            let line = told(command, false, false);
            assert!(
                line.as_ref().is_some_and(|line| line.contains(flags)),
                "{command}: {line:?}"
            );
        }
        let line = told("touch /etc/x", true, false).unwrap();
        assert!(
            line.starts_with("/etc/x") && !line.contains("--image NAME"),
            "{line}"
        );
        // It can already, or failed for another reason.
        for command in ["touch /etc/x", "apt-get install -y hello"] {
            assert_eq!(told(command, true, true), None, "{command}");
        }
        for command in ["touch x", "cat /etc/x", "apt-get --version", "false"] {
            assert_eq!(told(command, false, false), None, "{command}");
        }
    }

    #[test]
    fn there_is_no_root_to_become() {
        assert!(is_for_root(Path::new("sudo")) && is_for_root(Path::new("/usr/bin/doas")));
        assert!(!is_for_root(Path::new("sudoku")) && !is_for_root(Path::new("id")));
        assert!(told("sudo id", false, false).is_some_and(|line| line.contains("no root")));
        let with_image = told("sudo id", true, true).unwrap();
        assert!(with_image.contains("--root-inside") && !with_image.contains("NAME"));
    }
}
