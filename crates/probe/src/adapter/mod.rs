//! Sandboxes under test: one value each, started as their users start them.

pub(crate) mod bundle;
mod docker;
mod network;
mod peers;

use crate::params::Limits;
use crate::probe::ProxyRules;
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};

/// What a sandbox is asked to do for one run.
#[derive(Debug)]
pub(crate) struct Launch<'a> {
    /// The launcher's copy on the stage.
    pub(crate) launcher: &'a Path,
    /// Visible and writable inside.
    pub(crate) workspace: &'a Path,
    /// A directory outside to be visible, read-only.
    pub(crate) read: Option<&'a Path>,
    /// A directory of the workspace to be hidden.
    pub(crate) hide: Option<&'a Path>,
    /// Limits on resources.
    pub(crate) limits: Option<Limits>,
    /// The change of the workspace is kept in memory, and nothing is given as it is.
    pub(crate) in_memory: bool,
    /// A limit on time, in seconds.
    pub(crate) seconds: Option<u32>,
    /// The launcher does not start in the workspace.
    pub(crate) outside: bool,
    /// A network with these rules.
    pub(crate) network: Option<ProxyRules>,
    /// A key of the user's ssh-agent, for commits.
    pub(crate) key: Option<&'a str>,
    /// A name, and a policy by which it can be given leases.
    pub(crate) ceiling: Option<(&'a str, &'a Path)>,
    /// An image that can be written, as its root.
    pub(crate) image: Option<&'a str>,
    /// A directory whose system is booted, with the command as its init.
    pub(crate) system: Option<&'a Path>,
    pub(crate) command: Vec<OsString>,
}

/// An adapter that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum AdapterError {
    /// There is none of that name.
    #[error(
        "unknown sandbox `{name}`; expected one of {there}, or --against-command for any other"
    )]
    Unknown {
        /// The name that was given.
        name: String,
        there: String,
    },
    /// Its program is not on this machine.
    #[error("`{program}` is not installed; the package `{package}` has it")]
    Missing {
        program: &'static str,
        /// The package that has it.
        package: &'static str,
    },
    /// Only root can start it.
    #[error("`{0}` cannot be used without root: run the suite as root")]
    NeedsRoot(&'static str),
    /// The command line lacks a placeholder.
    #[error("`{0}` lacks {{command}}, which stands for the program to hold")]
    NoCommand(String),
}

/// How its command line is made.
#[derive(Debug, Clone)]
enum Line {
    /// By a function.
    Built(fn(&Launch<'_>) -> Vec<OsString>),
    /// From words with `{workspace}` and `{command}`.
    Template(Vec<String>),
}

/// Where its launcher comes from.
#[derive(Debug, Clone)]
pub(crate) enum Source {
    /// The `ironcage` that belongs to the suite's program.
    Ironcage,
    /// A program of the system, copied to the stage so that it may be attacked.
    System(PathBuf),
    /// There is none, or it stays where it is.
    None,
}

/// One sandbox under test.
#[derive(Debug, Clone)]
pub struct Adapter {
    /// Its name in reports.
    pub name: String,
    line: Line,
    pub(crate) source: Source,
    /// Whether it can hide a directory of the workspace.
    pub(crate) hides: bool,
    /// Whether it can show a directory outside, read-only.
    pub(crate) grants: bool,
    /// Whether it has limits on resources.
    pub(crate) limits: bool,
    /// Whether it can keep the change of a workspace in memory.
    pub(crate) in_memory: bool,
    /// Whether its launcher is Ironcage's, with its other commands: plan, trust, audit.
    pub(crate) commands: bool,
    /// Whether it can be given a network with rules.
    pub(crate) network: bool,
    /// Whether it is the egress proxy's own confinement, in which no programs run.
    pub(crate) proxy: bool,
    /// Whether it boots a system, whose init the command is.
    pub(crate) boots: bool,
    /// Whether it is the VMM's in the cage of a microVM.
    pub(crate) as_vmm: bool,
    /// Whether it boots a guest, which takes seconds where that is emulated.
    pub(crate) guest: bool,
}

fn ironcage_line(launch: &Launch<'_>) -> Vec<OsString> {
    ironcage_with(&[], launch)
}

fn ironcage_root_line(launch: &Launch<'_>) -> Vec<OsString> {
    ironcage_with(&["--root-inside"], launch)
}

fn ironcage_direct_line(launch: &Launch<'_>) -> Vec<OsString> {
    if launch.in_memory {
        // Real files are not in memory: what is asked for comes first.
        return ironcage_line(launch);
    }
    ironcage_with(&["--workspace-mode", "direct"], launch)
}

fn ironcage_chroot_line(launch: &Launch<'_>) -> Vec<OsString> {
    let degraded = ["--allow-degraded", "pid-ns,uts-ns"];
    ironcage_with(
        &[&["--isolation", "chroot"], &degraded[..]].concat(),
        launch,
    )
}

fn ironcage_landlock_line(launch: &Launch<'_>) -> Vec<OsString> {
    let isolation = ["--isolation", "landlock", "--workspace-mode", "direct"];
    let degraded = ["--allow-degraded", "user-ns,mount-ns,pid-ns,uts-ns"];
    ironcage_with(&[&isolation[..], &degraded[..]].concat(), launch)
}

/// The command is the init: it has what an init is given back, and nothing is between it and the cage.
fn ironcage_boot_line(launch: &Launch<'_>) -> Vec<OsString> {
    let (Some(system), Some((init, arguments))) = (launch.system, launch.command.split_first())
    else {
        return ironcage_line(launch);
    };
    let flags = ["--boot".into(), "--root".into(), system.into()];
    let mut flags: Vec<OsString> = flags.into();
    flags.extend(["--entrypoint".into(), init.clone()]);
    ironcage_of(&flags, launch, arguments)
}

fn ironcage_with(flags: &[&str], launch: &Launch<'_>) -> Vec<OsString> {
    let flags: Vec<OsString> = flags.iter().map(OsString::from).collect();
    ironcage_of(&flags, launch, &launch.command)
}

fn ironcage_of(flags: &[OsString], launch: &Launch<'_>, command: &[OsString]) -> Vec<OsString> {
    // Each probe starts from the real files, not from what the one before it left aside.
    let mut line: Vec<OsString> = vec![launch.launcher.into()];
    line.extend(["run", "--quiet", "--fresh"].map(OsString::from));
    line.extend(flags.iter().cloned());
    // The suite's own directory is given as it is: heartbeats in it are watched from outside,
    // and in a copy-on-write view nobody would see them.
    let mut suite = launch.workspace.join(".suite").into_os_string();
    suite.push(":direct");
    match (launch.in_memory, launch.image) {
        (true, _) => line.push("--in-memory".into()),
        // Where real files can be written, root of an image sets no set-id bits.
        (false, Some(image)) => {
            line.extend(["--image", image, "--writable-image", "--root-inside"].map(OsString::from))
        }
        (false, None) => line.extend(["--write".into(), suite]),
    }
    let mut flag =
        |name: &str, value: &OsStr| line.extend([OsString::from(name), value.to_owned()]);
    if launch.outside {
        flag("--workspace", launch.workspace.as_os_str());
    }
    if let Some(path) = launch.read {
        flag("--read", path.as_os_str());
    }
    if let Some(path) = launch.hide {
        flag("--hide", path.as_os_str());
    }
    if let Some((name, policy)) = launch.ceiling {
        flag("--name", OsStr::new(name));
        flag("--policy", policy.as_os_str());
    }
    if let Some(limits) = launch.limits {
        let values = [
            ("--memory", format!("{}M", limits.memory_mib)),
            ("--pids", limits.pids.to_string()),
            ("--disk", format!("{}M", limits.disk_mib)),
            ("--inodes", limits.inodes.to_string()),
            ("--files", limits.files.to_string()),
            (
                "--cpus",
                format!(
                    "{}.{:02}",
                    limits.cpu_percent / 100,
                    limits.cpu_percent % 100
                ),
            ),
        ];
        for (name, value) in values {
            flag(name, OsStr::new(&value));
        }
    }
    if let Some(seconds) = launch.seconds {
        flag("--time", OsStr::new(&format!("{seconds}s")));
    }
    if let Some(key) = launch.key {
        flag("--sign-key", OsStr::new(&format!("ssh:{key}")));
    }
    if let Some(rules) = launch.network {
        line.extend(network::flags(rules));
    }
    line.push("--".into());
    line.extend(command.iter().cloned());
    line
}

/// A guest of a microVM; the suite's program runs in it.
fn ironcage_microvm_line(launch: &Launch<'_>) -> Vec<OsString> {
    // The built-in limits follow the stage's small file systems, and the guest's memory follows them.
    let machine = ["--isolation", "microvm", "--memory", "768M", "--disk", "1G"];
    ironcage_with(&machine, launch)
}

/// The suite's program in the cage of a microVM, in the place of QEMU and confined as that is.
fn vmm_line(launch: &Launch<'_>) -> Vec<OsString> {
    let mut line = ironcage_line(launch);
    let mut words = line.iter_mut().rev();
    if let Some(word) = words.nth(2).filter(|word| *word == "inside") {
        *word = "as-vmm".into();
    }
    line
}

/// The suite's program under the egress proxy's own confinement; what is no probe stays as it is.
fn proxy_line(launch: &Launch<'_>) -> Vec<OsString> {
    let mut line = launch.command.clone();
    if let Some(word) = line.get_mut(3).filter(|word| *word == "inside") {
        *word = "as-proxy".into();
    }
    line
}

fn bare_line(launch: &Launch<'_>) -> Vec<OsString> {
    launch.command.clone()
}

impl Adapter {
    /// Ironcage itself, by the program that lies beside the suite's.
    pub fn ironcage() -> Adapter {
        Adapter {
            name: "ironcage".to_owned(),
            line: Line::Built(ironcage_line),
            source: Source::Ironcage,
            hides: true,
            grants: true,
            limits: true,
            in_memory: true,
            commands: true,
            network: true,
            proxy: false,
            boots: false,
            as_vmm: false,
            guest: false,
        }
    }

    /// No sandbox at all: the control.
    pub fn none() -> Adapter {
        Adapter {
            name: "none".to_owned(),
            line: Line::Built(bare_line),
            source: Source::None,
            hides: false,
            grants: false,
            limits: false,
            in_memory: false,
            commands: false,
            network: false,
            proxy: false,
            boots: false,
            as_vmm: false,
            guest: false,
        }
    }

    /// The names of the built-in adapters.
    pub fn names() -> Vec<&'static str> {
        let own = [
            "ironcage",
            "ironcage-direct",
            "ironcage-leases",
            "ironcage-root-inside",
            "ironcage-chroot",
            "ironcage-landlock",
            "ironcage-boot",
            "ironcage-microvm",
            "ironcage-egress",
            "ironcage-vmm",
            "none",
            "landlock",
        ];
        own.into_iter()
            .chain(peers::PEERS.iter().map(|peer| peer.name))
            .collect()
    }

    /// The built-in adapter of that name.
    pub fn named(name: &str) -> Result<Adapter, AdapterError> {
        match name {
            "ironcage" => Ok(Adapter::ironcage()),
            "ironcage-root-inside" => Ok(Adapter {
                name: "ironcage --root-inside".to_owned(),
                line: Line::Built(ironcage_root_line),
                ..Adapter::ironcage()
            }),
            "ironcage-direct" => Ok(Adapter {
                name: "ironcage --workspace-mode direct".to_owned(),
                line: Line::Built(ironcage_direct_line),
                ..Adapter::ironcage()
            }),
            "ironcage-leases" => Ok(Adapter {
                name: "ironcage, the workspace leased while the cage runs".to_owned(),
                line: Line::Built(bundle::leases_line),
                hides: false,
                grants: false,
                limits: false,
                in_memory: false,
                commands: false,
                network: false,
                ..Adapter::ironcage()
            }),
            "ironcage-chroot" => Ok(Adapter {
                name: "ironcage --isolation chroot".to_owned(),
                line: Line::Built(ironcage_chroot_line),
                in_memory: false,
                ..Adapter::ironcage()
            }),
            // It hides nothing below a place that may be read, and says so.
            "ironcage-landlock" => Ok(Adapter {
                name: "ironcage --isolation landlock".to_owned(),
                line: Line::Built(ironcage_landlock_line),
                hides: false,
                in_memory: false,
                ..Adapter::ironcage()
            }),
            // It has neither leases nor children, and its system is not the host's.
            "ironcage-boot" => Ok(Adapter {
                name: "ironcage --boot, as its init".to_owned(),
                line: Line::Built(ironcage_boot_line),
                network: false,
                boots: true,
                ..Adapter::ironcage()
            }),
            "ironcage-egress" => Ok(Adapter {
                name: "the process of Ironcage's egress proxy, taken over".to_owned(),
                line: Line::Built(proxy_line),
                source: Source::Ironcage,
                proxy: true,
                ..Adapter::none()
            }),
            "ironcage-microvm" => Ok(Adapter {
                name: "ironcage --isolation microvm (emulated)".to_owned(),
                line: Line::Built(ironcage_microvm_line),
                in_memory: false,
                guest: true,
                ..Adapter::ironcage()
            }),
            "ironcage-vmm" => Ok(Adapter {
                name: "the process of QEMU in the cage of a microVM, taken over".to_owned(),
                line: Line::Built(vmm_line),
                source: Source::Ironcage,
                hides: true,
                grants: true,
                limits: true,
                as_vmm: true,
                ..Adapter::none()
            }),
            "none" => Ok(Adapter::none()),
            "landlock" => Ok(Adapter {
                name: "Landlock alone, by the suite's own runner".to_owned(),
                line: Line::Built(|launch| bundle::line(bundle::LANDLOCK, launch)),
                ..Adapter::none()
            }),
            other => peers::named(other),
        }
    }

    /// Any other sandbox, by its command line: `tool {workspace} -- {command}`.
    pub fn command(template: &str) -> Result<Adapter, AdapterError> {
        let words: Vec<String> = template.split_whitespace().map(str::to_owned).collect();
        if !words.iter().any(|word| word == "{command}") {
            return Err(AdapterError::NoCommand(template.to_owned()));
        }
        Ok(Adapter {
            name: template.to_owned(),
            line: Line::Template(words),
            source: Source::None,
            hides: false,
            grants: false,
            limits: false,
            in_memory: false,
            commands: false,
            network: false,
            proxy: false,
            boots: false,
            as_vmm: false,
            guest: false,
        })
    }

    /// The command line of one run.
    pub(crate) fn line(&self, launch: &Launch<'_>) -> Vec<OsString> {
        match &self.line {
            Line::Built(build) => build(launch),
            Line::Template(words) => {
                let mut line = Vec::new();
                for word in words {
                    if word == "{command}" {
                        line.extend(launch.command.iter().cloned());
                    } else {
                        let workspace = launch.workspace.to_string_lossy();
                        line.push(word.replace("{workspace}", &workspace).into());
                    }
                }
                line
            }
        }
    }

    /// The program of a template, which must be there on the stage too.
    pub(crate) fn hidden_program(&self) -> Option<&str> {
        match &self.line {
            Line::Template(words) => {
                let program = words.first().map(String::as_str)?;
                (program.contains('/') && !Path::new(program).exists()).then_some(program)
            }
            Line::Built(_) => None,
        }
    }

    /// Whether it can be started with an image that can be written, and make an image of that.
    pub(crate) fn has_images(&self) -> bool {
        self.name == "ironcage"
    }

    /// Whether this is the bare control.
    pub(crate) fn is_bare(&self) -> bool {
        self.name == "none"
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn launch<'a>(command: &[&str]) -> Launch<'a> {
        Launch {
            launcher: Path::new("/bin/launcher"),
            workspace: Path::new("/w s"),
            read: None,
            hide: None,
            limits: None,
            in_memory: false,
            seconds: None,
            outside: false,
            network: None,
            key: None,
            ceiling: None,
            image: None,
            system: None,
            command: command.iter().map(OsString::from).collect(),
        }
    }

    #[test]
    fn a_template_keeps_the_commands_words_apart() {
        let adapter = Adapter::command("tool --in {workspace} -- {command}").unwrap();
        let line = adapter.line(&launch(&["a b", "c"]));
        assert_eq!(
            line,
            ["tool", "--in", "/w s", "--", "a b", "c"].map(OsString::from)
        );
    }

    #[test]
    fn a_template_without_the_command_is_refused() {
        assert!(matches!(
            Adapter::command("tool"),
            Err(AdapterError::NoCommand(_))
        ));
    }
}
