//! A cage with a kernel of its own: a namespace cage whose view has, besides all that the command
//! sees, the program that boots a virtual machine and runs the command there.

use crate::bind::before_seal;
use crate::leases::Leases;
use crate::plan::{Access, Bounds, Item, NodeKind, Plan, ViewOp};
use crate::{PlanError, Request, bytes, filter};
use ironcage_guest::{
    GuestSetup, INITRAMFS, KERNEL, KVM, MACHINE, MachineConfig, PROGRAM, QEMU, Relay, SCRATCH,
    SYSTEM, TEMPLATE,
};
use ironcage_model::{ASK_SOCKET, Extent, Isolation, ShellMode};
use ironcage_policy::{Origin, Policy, SideChannels};
use serde::Serialize;
use std::fmt;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

/// Memory of the cage that is not the guest's: QEMU, the file server and those who carry streams.
const BESIDE: u64 = 160 << 20;
/// The least memory that a guest starts with.
const LEAST: u64 = 192 << 20;
/// The most memory of a guest: its kernel writes a list of all of it before it starts anything.
const MOST: u64 = 16 << 30;

/// Where a directory with QEMU has the program and its firmware, as a package has.
pub const QEMU_PROGRAM: &str = "/usr/bin/qemu-system-x86_64";
/// See [`QEMU_PROGRAM`].
pub const QEMU_FIRMWARE: &str = "/usr/share/qemu";

/// Where the host has its system.
const USR: &str = "/usr";

/// What carries out the guest's instructions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(tag = "accelerator", content = "no_kvm", rename_all = "kebab-case")]
pub enum Acceleration {
    /// The CPU, by the host's KVM.
    Kvm,
    /// QEMU, which translates them, and why.
    Tcg(NoKvm),
}

/// Why KVM is not used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum NoKvm {
    /// The host has no such device.
    Absent,
    /// The user, or the agent that root starts, may not open it.
    Denied,
    /// It runs the kernel of a guest many times slower than a CPU does.
    Slow,
    /// It does not run a guest at all.
    Failed,
}

impl NoKvm {
    /// The reason in words.
    pub fn reason(self) -> &'static str {
        match self {
            NoKvm::Absent => "this host has no /dev/kvm",
            NoKvm::Denied => "the agent may not open /dev/kvm",
            NoKvm::Slow => "KVM interprets the guest's kernel on this host",
            NoKvm::Failed => "KVM does not run a guest on this host",
        }
    }
}

impl fmt::Display for Acceleration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Acceleration::Kvm => f.write_str("kvm"),
            Acceleration::Tcg(why) => write!(f, "tcg, emulated: {}", why.reason()),
        }
    }
}

/// A machine that was saved when its guest was ready, and knew nothing of a cage.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GuestTemplate {
    /// RAM of the guest in MiB.
    pub memory: u64,
    /// Whether it has a network interface.
    pub network: bool,
    /// Where the guest's memory and the state of its devices are.
    pub directory: PathBuf,
    /// SHA-256 over what it was made from and what was saved, in hexadecimal.
    pub digest: String,
}

/// How a guest gets to its first command.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(tag = "start", rename_all = "kebab-case")]
pub enum GuestStart {
    /// From a template.
    Restored {
        /// The template's digest.
        template: String,
    },
    /// As every machine does, and why.
    Boots {
        /// The reason.
        boots: BootReason,
    },
}

/// Why a guest boots.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum BootReason {
    /// There is no template of this QEMU, kernel and initramfs.
    NoTemplate,
    /// No template has this much memory.
    OtherMemory,
    /// QEMU is started from another system than the view's.
    OtherSystem,
}

impl BootReason {
    /// The reason in words.
    pub fn reason(self) -> &'static str {
        match self {
            BootReason::NoTemplate => {
                "no template is set up; `ironcage setup microvm --warm` makes one"
            }
            BootReason::OtherMemory => {
                "no template has this size; `ironcage setup microvm --warm --memory SIZE` makes one"
            }
            BootReason::OtherSystem => "--root and --image have no template",
        }
    }
}

impl fmt::Display for GuestStart {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            GuestStart::Restored { template } => write!(f, "restored from sha256:{template}"),
            GuestStart::Boots { boots } => write!(f, "boots: {}", boots.reason()),
        }
    }
}

/// What a microVM is made of, as `ironcage setup microvm` has left it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GuestFiles {
    /// The VMM.
    pub qemu: PathBuf,
    /// What loads the VMM and its libraries, by its real path.
    pub loader: PathBuf,
    /// The program that boots the machine, on the host.
    pub program: PathBuf,
    /// The guest's kernel.
    pub kernel: PathBuf,
    /// Its initramfs.
    pub initramfs: PathBuf,
    /// The kernel's version.
    pub version: String,
    /// SHA-256 of both, in hexadecimal.
    pub kernel_digest: String,
    /// See `kernel_digest`.
    pub initramfs_digest: String,
    /// The directory that QEMU and its firmware are in, where they are not the system's.
    pub qemu_directory: Option<PathBuf>,
    /// Templates that these files fit.
    pub templates: Vec<GuestTemplate>,
    /// What carries out its instructions, as it was measured on this host.
    pub acceleration: Acceleration,
}

/// The machine of a cage.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Microvm {
    /// The VMM.
    #[serde(serialize_with = "bytes::path")]
    pub qemu: PathBuf,
    /// What loads it, where the view's system is another than the host's: both are below
    /// [`SYSTEM`] then.
    #[serde(skip)]
    pub loader: Option<PathBuf>,
    /// What carries out the guest's instructions.
    #[serde(flatten)]
    pub acceleration: Acceleration,
    /// The directory with QEMU and its firmware, where they are not the system's.
    #[serde(skip)]
    pub qemu_directory: Option<PathBuf>,
    /// How it gets to its first command. The guest of a scope boots.
    #[serde(flatten)]
    pub start: GuestStart,
    /// Whether commands are root of the guest's kernel.
    pub root: bool,
    /// RAM of the guest in MiB.
    pub memory: u64,
    /// RAM of the guest of a scope in MiB; `null` where there can be none.
    pub scope_memory: Option<u64>,
    /// The version of the guest's kernel.
    pub kernel: String,
    /// SHA-256 of the kernel, in hexadecimal.
    pub kernel_digest: String,
    /// SHA-256 of the initramfs, in hexadecimal.
    pub initramfs_digest: String,
}

fn refusal(what: impl Into<String>, origin: impl ToString, why: &'static str) -> PlanError {
    PlanError::Unsupported {
        isolation: Isolation::Microvm,
        what: what.into(),
        origin: origin.to_string(),
        why,
    }
}

/// Refuses what a guest cannot have: nothing is ignored in silence.
pub(crate) fn check(policy: &Policy, request: &Request) -> Result<(), PlanError> {
    if let Some(capability) = policy.capabilities.first() {
        return Err(refusal(
            format!("the capability {}", capability.value),
            &capability.origin,
            "the agent has none in the guest; use --isolation namespace",
        ));
    }
    if request.observed {
        return Err(refusal(
            "observing what the command uses",
            "the run",
            "system calls in the guest are not reported; use --isolation namespace",
        ));
    }
    if policy.syscalls.value == "minimal" {
        return Err(refusal(
            "the system call list `minimal`",
            &policy.syscalls.origin,
            "the virtual machine itself needs more; the guest has the list `standard`",
        ));
    }
    if policy.root_inside.value {
        return Err(refusal(
            "user 0",
            &policy.root_inside.origin,
            "the agent is an ordinary user in the guest; use --isolation namespace",
        ));
    }
    if policy.side_channels.value != SideChannels::Off {
        return Err(refusal(
            "side-channel mitigations",
            &policy.side_channels.origin,
            "guests do not have them yet; use --isolation namespace",
        ));
    }
    Ok(())
}

/// What leases give in a guest: files, directories and what the egress proxy decides about.
pub(crate) fn leases(made: Leases, notes: &mut Vec<String>) -> Leases {
    let (others, dropped): (Vec<_>, Vec<_>) = made.others.into_iter().partition(|part| {
        !matches!(
            part.what.extent,
            Extent::Limit { .. } | Extent::Syscalls(_) | Extent::Capability(_)
        )
    });
    if !dropped.is_empty() {
        notes.push(
            "--isolation microvm: leases on limits, system calls and capabilities need --isolation namespace".into(),
        );
    }
    if made.shell == ShellMode::Scoped {
        notes.push("--isolation microvm: the agent's shell has no scopes".into());
    }
    Leases {
        others,
        shell: ShellMode::Plain,
        ..made
    }
}

/// The files of a request.
pub(crate) fn files(request: &Request) -> Result<&GuestFiles, PlanError> {
    request.guest.as_ref().ok_or_else(|| {
        refusal(
            "a guest",
            "--isolation microvm",
            "no guest is set up; run `ironcage setup microvm`",
        )
    })
}

/// Memory of the cage that the guests of its scopes share, as there can be one at a time; `None`
/// where the limit leaves too little for two guests.
fn scope_share(limit: u64) -> Option<u64> {
    let share = (limit / 4).max(LEAST + BESIDE);
    let rest = limit.checked_sub(share + BESIDE)?;
    (rest >= LEAST).then_some(share)
}

/// The template of a machine with as much memory as it may have, and its memory in MiB. Where nobody
/// chose the limit, a guest has less than it allows rather than boot.
fn choose_template<'t>(
    files: &'t GuestFiles,
    (memory, network): (u64, bool),
    limit: &Origin,
) -> (Option<&'t GuestTemplate>, u64) {
    let by_default = matches!(limit, Origin::BuiltIn | Origin::Profile { .. });
    let fits = |template: &&GuestTemplate| {
        let size = match by_default {
            true => template.memory <= memory,
            false => template.memory == memory,
        };
        size && template.network == network
    };
    let template = files
        .templates
        .iter()
        .filter(fits)
        .max_by_key(|template| template.memory);
    (
        template,
        template.map_or(memory, |template| template.memory),
    )
}

/// The machine of a plan, with what its view needs for it. [`Plan::update_machine`] fills in how it
/// is made.
pub(crate) fn make(
    (files, request, policy): (&GuestFiles, &Request, &Policy),
    (bounds, network): (&Bounds, bool),
    leases: Option<&Leases>,
    view: &mut Vec<Item<ViewOp>>,
) -> Result<Microvm, PlanError> {
    let limit = &bounds.memory;
    let share = leases.and_then(|_| scope_share(limit.what.value));
    // The guest's memory is a file of the VMM's, and the disk limit bounds the size of each file.
    let within = |memory: u64| memory.min(MOST).min(bounds.disk.what.value);
    let own = limit.what.value.saturating_sub(share.unwrap_or(0) + BESIDE);
    let memory = within(own);
    if memory < LEAST {
        return Err(refusal(
            format!("a memory limit of {} MiB", limit.what.value >> 20),
            &limit.origin,
            "the guest and the virtual machine need at least 352 MiB; raise --memory",
        ));
    }
    let other_system = request.root.is_some() || request.image.is_some();
    let of_system = files.qemu_directory.is_none();
    if other_system && !(files.loader.starts_with(USR) && files.qemu.starts_with(USR)) && of_system
    {
        return Err(refusal(
            "another root file system",
            "--root or --image",
            "QEMU or its dynamic loader is not in /usr; use --isolation namespace",
        ));
    }
    let limited_by = &policy.limits.memory.origin;
    let (template, memory) = match other_system {
        true => (None, memory >> 20),
        false => choose_template(files, (memory >> 20, network), limited_by),
    };
    let start = match template {
        Some(template) => GuestStart::Restored {
            template: template.digest.clone(),
        },
        None => GuestStart::Boots {
            boots: match (other_system, files.templates.is_empty()) {
                (true, _) => BootReason::OtherSystem,
                (false, true) => BootReason::NoTemplate,
                (false, false) => BootReason::OtherMemory,
            },
        },
    };
    let machine = Microvm {
        qemu_directory: files.qemu_directory.clone(),
        start,
        qemu: files.qemu.clone(),
        loader: other_system.then(|| files.loader.clone()),
        acceleration: files.acceleration,
        root: policy.guest_root.value,
        memory,
        scope_memory: share.map(|share| within(share - BESIDE) >> 20),
        kernel: files.version.clone(),
        kernel_digest: files.kernel_digest.clone(),
        initramfs_digest: files.initramfs_digest.clone(),
    };
    let origin = || "the virtual machine".to_owned();
    let bind = |source: &Path, target: &str| Item {
        what: ViewOp::Bind {
            source: source.to_owned(),
            target: target.into(),
            access: Access::Read,
            kind: NodeKind::File,
            owner: None,
        },
        origin: origin(),
    };
    // Only where it is used: the agent is in the guest, but a guest that takes QEMU over is not.
    let device = (machine.acceleration == Acceleration::Kvm).then(|| Item {
        what: ViewOp::Bind {
            source: KVM.into(),
            target: KVM.into(),
            access: Access::Device,
            kind: NodeKind::File,
            owner: None,
        },
        origin: origin(),
    });
    let described = Item {
        what: ViewOp::File {
            target: MACHINE.into(),
            content: String::new(),
            mode: 0o444,
        },
        origin: origin(),
    };
    let tree = |source: &Path, target: &str| Item {
        what: ViewOp::Bind {
            source: source.to_owned(),
            target: target.into(),
            access: Access::Read,
            kind: NodeKind::Directory,
            owner: None,
        },
        origin: origin(),
    };
    let qemu = (files.qemu_directory.as_deref()).map(|source| tree(source, QEMU));
    let template = template.map(|template| tree(&template.directory, TEMPLATE));
    let system = other_system.then(|| tree(Path::new(USR), &format!("{SYSTEM}/usr")));
    let ops = [
        bind(&files.program, PROGRAM),
        bind(&files.kernel, KERNEL),
        bind(&files.initramfs, INITRAMFS),
        described,
    ];
    let places = [SCRATCH, "/sys"].map(|place| Item {
        what: ViewOp::Directory {
            target: place.into(),
            mode: 0o755,
            agents: false,
        },
        origin: policy.guest_root.origin.to_string(),
    });
    let places = places.into_iter().filter(|_| machine.root);
    before_seal(
        view,
        ops.into_iter()
            .chain(device)
            .chain(system)
            .chain(qemu)
            .chain(template)
            .chain(places),
    );
    Ok(machine)
}

/// How a template's machine is made: as the machines that are restored from it, and of no cage.
pub fn template_machine(
    (qemu, firmware): (String, Option<String>),
    (memory, network): (u64, bool),
    acceleration: Acceleration,
) -> MachineConfig {
    MachineConfig {
        qemu,
        firmware,
        loader: None,
        memory,
        restore: false,
        kvm: acceleration == Acceleration::Kvm,
        vmm_filter: Vec::new(),
        files_filter: filter::vm_files(),
        guest: GuestSetup {
            uid: 0,
            gid: 0,
            root: false,
            hostname: String::new(),
            network,
            files: 0,
            processes: 0,
            filter: Vec::new(),
            time: 0,
            entropy: Vec::new(),
            relays: Vec::new(),
        },
    }
}

impl Plan {
    /// Writes how the machine of this plan is made into its view, as the rest of the plan is now.
    pub fn update_machine(&mut self) {
        let Some(content) = self.machine() else {
            return;
        };
        let mut files = self
            .view
            .iter_mut()
            .filter_map(|item| match &mut item.what {
                ViewOp::File {
                    target, content, ..
                } if target == Path::new(MACHINE) => Some(content),
                _ => None,
            });
        if let Some(file) = files.next() {
            *file = content;
        }
    }

    fn machine(&self) -> Option<String> {
        let machine = self.isolation_level.what.microvm.as_ref()?;
        let memory = match self.scope {
            Some(_) => machine.scope_memory.unwrap_or(machine.memory),
            None => machine.memory,
        };
        let of_host = |path: &Path| {
            let top = machine.loader.as_ref().map_or("", |_| SYSTEM);
            format!("{top}{}", path.display())
        };
        let restored = matches!(machine.start, GuestStart::Restored { .. });
        let (qemu, firmware) = match &machine.qemu_directory {
            None => (of_host(&machine.qemu), None),
            Some(_) => (
                format!("{QEMU}{QEMU_PROGRAM}"),
                Some(format!("{QEMU}{QEMU_FIRMWARE}")),
            ),
        };
        let config = MachineConfig {
            qemu,
            firmware,
            restore: restored && self.scope.is_none(),
            loader: machine.loader.as_deref().map(of_host),
            memory,
            kvm: machine.acceleration == Acceleration::Kvm,
            vmm_filter: filter::vmm(machine.acceleration),
            files_filter: filter::vm_files(),
            guest: GuestSetup {
                uid: self.identity.uid,
                gid: self.identity.gid,
                root: machine.root,
                hostname: self.hostname.what.name.clone(),
                network: self.network.is_some(),
                files: self.bounds.files.what.value,
                processes: self.bounds.pids.what.value,
                filter: self.seccomp.unreported(),
                time: 0,
                entropy: Vec::new(),
                relays: self.relays(),
            },
        };
        // It holds nothing that JSON lacks.
        config.encode().ok()
    }

    /// Places in the guest that lead to the same places of the cage.
    fn relays(&self) -> Vec<Relay> {
        let asks = self
            .view
            .iter()
            .any(|item| item.what.target() == Some(Path::new(ASK_SOCKET)));
        let asks = asks.then(|| Relay::Socket(ASK_SOCKET.into()));
        let network = self.network.iter();
        let sockets = network.clone().flat_map(|network| &network.sockets);
        let sockets =
            sockets.map(|item| Relay::Socket(item.what.path.as_os_str().as_bytes().to_vec()));
        let ports = network.flat_map(|network| &network.host_ports);
        let ports = ports.map(|item| Relay::Port(item.what.port));
        asks.into_iter().chain(sockets).chain(ports).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_template_is_used_for_its_own_size_or_where_nobody_chose_one() {
        let template = |memory, network| GuestTemplate {
            memory,
            network,
            directory: PathBuf::new(),
            digest: String::new(),
        };
        let files = GuestFiles {
            qemu: PathBuf::new(),
            loader: PathBuf::new(),
            program: PathBuf::new(),
            kernel: PathBuf::new(),
            initramfs: PathBuf::new(),
            version: String::new(),
            kernel_digest: String::new(),
            initramfs_digest: String::new(),
            qemu_directory: None,
            templates: vec![
                template(512, true),
                template(1024, true),
                template(512, false),
            ],
            acceleration: Acceleration::Tcg(NoKvm::Absent),
        };
        let named = Origin::Flag {
            flag: "--memory".into(),
        };
        for (memory, network, limit, wanted) in [
            (2048, true, &Origin::BuiltIn, Some(1024)),
            (600, true, &Origin::BuiltIn, Some(512)),
            (2048, false, &Origin::BuiltIn, Some(512)),
            (500, true, &Origin::BuiltIn, None),
            (512, true, &named, Some(512)),
            (2048, true, &named, None),
            (1024, false, &named, None),
        ] {
            let (chosen, size) = choose_template(&files, (memory, network), limit);
            assert_eq!(chosen.map(|template| template.memory), wanted);
            assert_eq!(size, wanted.unwrap_or(memory));
            assert!(chosen.is_none_or(|template| template.network == network));
        }
    }

    #[test]
    fn two_guests_and_what_is_beside_them_fit_into_the_limit() {
        let mib = 1 << 20;
        for limit in [704 * mib, 1024 * mib, 8192 * mib] {
            let share = scope_share(limit).unwrap();
            assert!(share - BESIDE >= LEAST);
            assert!(limit - share - BESIDE >= LEAST);
        }
        assert_eq!(scope_share(703 * mib), None);
        assert_eq!(scope_share(0), None);
    }
}
