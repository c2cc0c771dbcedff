//! The sandboxes of the field's table, each with the command line that its users take.

use crate::arm::Arm;
use crate::peers::{Bundle, BwrapView, bwrap_arguments, find_program, version};
use crate::resident::{CGROUP, HYBRID, Resident};
use crate::scratch::Scratch;
use crate::task::{self, LEASED, leased_line};
use crate::{ArmError, BenchError, own_program};
use ironcage_sys::rustix::process::geteuid;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

/// How the containment suite is pointed at the same sandbox.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Suspect {
    /// By the name that `probe run --against` knows.
    Named(&'static str),
    /// By the same command line, with `{workspace}` and `{command}` in it.
    Line(String),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    None,
    Chroot,
    Bwrap,
    Nspawn,
    Namespaces,
    Oci(&'static str),
    Ironcage,
    Leases,
}

/// One sandbox.
#[derive(Debug, Clone)]
pub(super) struct Contestant {
    pub(super) name: &'static str,
    pub(super) about: String,
    program: PathBuf,
    kind: Kind,
    /// Whether it only starts where the version 2 cgroup tree stands alone.
    private_cgroup: bool,
}

const ALL: [(&str, Kind, &str, &str); 10] = [
    ("none", Kind::None, "sh", "dash"),
    ("chroot", Kind::Chroot, "chroot", "coreutils"),
    ("bwrap", Kind::Bwrap, "bwrap", "bubblewrap"),
    (
        "systemd-nspawn",
        Kind::Nspawn,
        "systemd-nspawn",
        "systemd-container",
    ),
    ("namespaces only", Kind::Namespaces, "unshare", "util-linux"),
    ("crun", Kind::Oci("crun"), "crun", "crun"),
    ("runc", Kind::Oci("runc"), "runc", "runc"),
    ("gVisor", Kind::Oci("runsc"), "runsc", "runsc"),
    ("Ironcage", Kind::Ironcage, "ironcage", "ironcage"),
    ("Ironcage, leases", Kind::Leases, "ironcage", "ironcage"),
];

const UNSHARE: [&str; 10] = [
    "--user",
    "--map-root-user",
    "--mount",
    "--pid",
    "--ipc",
    "--uts",
    "--net",
    "--fork",
    "--mount-proc",
    "--",
];

/// Those that this host has and this user may start; the others with the reason.
pub(super) fn all(ironcage: &Path) -> (Vec<Contestant>, Vec<(&'static str, ArmError)>) {
    let mut present = Vec::new();
    let mut absent = Vec::new();
    for (name, kind, program, package) in ALL {
        let found = match kind {
            Kind::Ironcage | Kind::Leases => Some(ironcage.to_owned()),
            _ => find_program(program),
        };
        let needs_root = matches!(kind, Kind::Chroot | Kind::Nspawn | Kind::Oci("runsc"));
        match found {
            None => absent.push((name, ArmError::NotInstalled { package })),
            Some(_) if needs_root && !geteuid().is_root() => {
                absent.push((name, ArmError::NeedsRoot));
            }
            Some(program) => present.push(Contestant {
                name,
                about: about(kind, &program),
                program,
                kind,
                private_cgroup: false,
            }),
        }
    }
    (present, absent)
}

fn about(kind: Kind, program: &Path) -> String {
    let flags = match kind {
        Kind::None => return "the bare command".to_owned(),
        Kind::Ironcage => return "ironcage run, every layer, no leases".to_owned(),
        Kind::Leases => {
            return LEASED.to_owned();
        }
        Kind::Chroot => "the system read-only and the workspace bound into a directory",
        Kind::Bwrap => "--unshare-all and the usual binds",
        Kind::Nspawn => "-D, the system and the workspace bound",
        Kind::Namespaces => "user, mount, pid, ipc, uts and network, nothing else",
        Kind::Oci(_) => "every namespace, no filter",
    };
    format!("{}, {flags}", version(program))
}

impl Contestant {
    /// Whether there is no table without it.
    pub(super) fn is_required(&self) -> bool {
        matches!(self.kind, Kind::None | Kind::Ironcage)
    }

    /// What brings a file over from where it is kept aside, where it is.
    pub(super) fn fetch(&self, scratch: &Scratch, file: &str) -> Result<Option<Arm>, BenchError> {
        if self.kind != Kind::Leases {
            return Ok(None);
        }
        task::fetch(&self.program, scratch, file).map(Some)
    }

    /// Where the workspace is inside.
    pub(super) fn work(&self, scratch: &Scratch) -> PathBuf {
        match self.kind {
            Kind::Chroot | Kind::Nspawn | Kind::Oci(_) => PathBuf::from("/work"),
            Kind::None | Kind::Bwrap | Kind::Namespaces | Kind::Ironcage | Kind::Leases => {
                scratch.work().to_owned()
            }
        }
    }

    /// Program and arguments for a command inside. `purpose` keeps bundles apart.
    pub(super) fn line(
        &self,
        scratch: &Scratch,
        purpose: &str,
        command: &[OsString],
    ) -> Result<(PathBuf, Vec<OsString>), BenchError> {
        let program = self.program.clone();
        let folder = format!("{purpose}-{}", self.name.replace(' ', "-"));
        let with = |mut arguments: Vec<OsString>| {
            arguments.extend(command.iter().cloned());
            arguments
        };
        Ok(match self.kind {
            Kind::None => {
                let first = command.first().cloned().unwrap_or_default();
                (first.into(), command.get(1..).unwrap_or_default().to_vec())
            }
            Kind::Ironcage => {
                let flags = ["run", "-q", "--workspace-mode", "direct", "--"];
                (program, with(flags.map(OsString::from).to_vec()))
            }
            Kind::Leases => {
                let line = leased_line(&program, scratch.work());
                (own_program()?, with(line))
            }
            Kind::Bwrap => {
                let view = BwrapView {
                    workspace: scratch.work(),
                    with_etc: true,
                };
                (program, with(bwrap_arguments(view)))
            }
            Kind::Namespaces => (program, with(UNSHARE.map(OsString::from).to_vec())),
            Kind::Chroot => {
                let root = Bundle::new(scratch, &folder, command)?.root();
                // What its users do before, in a mount namespace so that it goes again.
                let script = "mount --make-rprivate / && mount --bind /usr \"$1/usr\" && \
                    mount -o remount,ro,bind \"$1/usr\" && mount --bind /etc \"$1/etc\" && \
                    mount --bind /dev \"$1/dev\" && mount -t proc proc \"$1/proc\" && \
                    mount --bind \"$2\" \"$1/work\" && root=$1 chroot=$3 && shift 3 && \
                    exec \"$chroot\" \"$root\" /bin/sh -c 'cd /work && exec \"$@\"' sh \"$@\"";
                let mut arguments: Vec<OsString> = ["--mount", "/bin/sh", "-c", script, "sh"]
                    .map(OsString::from)
                    .to_vec();
                arguments.extend([root.into(), scratch.work().into(), program.into()]);
                (PathBuf::from("/usr/bin/unshare"), with(arguments))
            }
            Kind::Nspawn => {
                let root = Bundle::new(scratch, &folder, command)?.root();
                let mut bind = OsString::from("--bind=");
                bind.push(scratch.work());
                bind.push(":/work");
                let mut arguments: Vec<OsString> =
                    ["--quiet", "--register=no", "--keep-unit", "--pipe", "-D"]
                        .map(OsString::from)
                        .to_vec();
                arguments.push(root.into());
                arguments.extend(["--bind-ro=/usr", "--bind-ro=/etc"].map(OsString::from));
                arguments.extend([bind, "--chdir=/work".into(), "--".into()]);
                (program, with(arguments))
            }
            Kind::Oci(runtime) => {
                let bundle = Bundle::new(scratch, &folder, command)?;
                let mut arguments: Vec<OsString> = Vec::new();
                match runtime {
                    "crun" => arguments.push("--cgroup-manager=disabled".into()),
                    "runsc" => {
                        arguments
                            .extend(["--network=none", "--ignore-cgroups"].map(OsString::from));
                    }
                    _ => {}
                }
                arguments.extend(["--root".into(), scratch.path("oci").into()]);
                arguments.extend(["run".into(), "--bundle".into(), bundle.path().into()]);
                arguments.push(format!("{folder}-{}", std::process::id()).into());
                (program, arguments)
            }
        })
    }

    /// The same, from a mount namespace with one cgroup tree where it wants that.
    pub(super) fn whole_line(
        &self,
        scratch: &Scratch,
        purpose: &str,
        command: &[OsString],
    ) -> Result<(PathBuf, Vec<OsString>), BenchError> {
        let (program, arguments) = self.line(scratch, purpose, command)?;
        if !self.private_cgroup {
            return Ok((program, arguments));
        }
        let script =
            format!("mount --make-rprivate / && mount --bind {HYBRID} {CGROUP} && exec \"$@\"");
        let mut line: Vec<OsString> = ["--mount", "/bin/sh", "-c"].map(OsString::from).to_vec();
        line.extend([script.into(), "sh".into(), program.into()]);
        line.extend(arguments);
        Ok((PathBuf::from("/usr/bin/unshare"), line))
    }

    /// The command inside, to be started and timed again and again.
    pub(super) fn arm(
        &self,
        scratch: &Scratch,
        purpose: &str,
        command: &[OsString],
    ) -> Result<Arm, BenchError> {
        let (program, arguments) = self.line(scratch, purpose, command)?;
        if !self.private_cgroup {
            return Arm::spawned(self.name, &program, &arguments, scratch.work(), scratch);
        }
        let mut line: Vec<OsString> = vec!["__bench-launcher".into(), "--".into(), program.into()];
        line.extend(arguments);
        Resident::start(self.name, &own_program()?, &line, scratch).map(Arm::Resident)
    }

    /// Finds out whether it starts at all; the reason if not.
    pub(super) fn try_out(
        &mut self,
        scratch: &Scratch,
    ) -> Result<Result<(), ArmError>, BenchError> {
        let command = [OsString::from("/bin/true")];
        let plain = self.arm(scratch, "try", &command)?.measure()?;
        let hybrid = geteuid().is_root() && Path::new(HYBRID).is_dir();
        if plain.is_err() && self.kind == Kind::Oci("crun") && hybrid {
            self.private_cgroup = true;
            self.about.push_str(", the version 2 cgroup tree alone");
            let again = self.arm(scratch, "again", &command)?.measure()?;
            return Ok(again.map(drop));
        }
        Ok(plain.map(drop))
    }

    /// How the suite is pointed at it.
    pub(super) fn suspect(&self) -> Suspect {
        let line = |words: Vec<OsString>| {
            let words: Vec<String> = words
                .iter()
                .map(|word| word.to_string_lossy().into_owned())
                .collect();
            let program = self.program.display();
            Suspect::Line(format!("{program} {} {{command}}", words.join(" ")))
        };
        match self.kind {
            Kind::None => Suspect::Named("none"),
            Kind::Chroot => Suspect::Named("chroot"),
            Kind::Nspawn => Suspect::Named("systemd-nspawn"),
            Kind::Oci(runtime) => Suspect::Named(runtime),
            Kind::Ironcage => Suspect::Named("ironcage"),
            Kind::Leases => Suspect::Named("ironcage-leases"),
            Kind::Namespaces => line(UNSHARE.map(OsString::from).to_vec()),
            Kind::Bwrap => line(bwrap_arguments(BwrapView {
                workspace: Path::new("{workspace}"),
                with_etc: true,
            })),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_suite_gets_the_very_flags_that_are_timed() {
        let contestant = |kind| Contestant {
            name: "x",
            about: String::new(),
            program: "/usr/bin/x".into(),
            kind,
            private_cgroup: false,
        };
        let Suspect::Line(line) = contestant(Kind::Bwrap).suspect() else {
            panic!("a line");
        };
        assert!(line.starts_with("/usr/bin/x --unshare-all"));
        assert!(line.contains("--bind {workspace} {workspace}"));
        assert!(line.ends_with("-- {command}"));
        assert_eq!(
            contestant(Kind::Oci("runsc")).suspect(),
            Suspect::Named("runsc")
        );
    }

    #[test]
    fn what_is_not_there_is_named_with_its_package() {
        let (present, absent) = all(Path::new("/bin/true"));
        assert!(present.iter().any(|contestant| contestant.name == "none"));
        assert!(
            present
                .iter()
                .any(|contestant| contestant.name == "Ironcage")
        );
        assert_eq!(present.len() + absent.len(), ALL.len());
        for (_, reason) in absent {
            assert!(matches!(
                reason,
                ArmError::NotInstalled { .. } | ArmError::NeedsRoot
            ));
        }
    }
}
