//! The virtual machine: QEMU's `microvm` machine with a control channel, the shared root and, with a
//! network, QEMU's user network, whose connections are those of the cage.

use crate::{FILES, VmError, doing};
use ironcage_guest::{INITRAMFS, KERNEL, MACHINE, MachineConfig, PORT, ROOT_TAG, SYSTEM, network};
use ironcage_sys::rustix::io::{FdFlags, fcntl_setfd};
use std::ffi::OsString;
use std::fs;
use std::os::fd::{AsFd, AsRawFd as _, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};

/// What every start of QEMU has.
const FIXED: [&str; 19] = [
    "-M",
    "microvm,x-option-roms=off,rtc=on,isa-serial=off,pit=off,pic=off",
    "-nodefaults",
    "-no-user-config",
    "-display",
    "none",
    "-monitor",
    "none",
    "-no-reboot",
    "-sandbox",
    "on,obsolete=deny,elevateprivileges=deny,spawn=deny,resourcecontrol=deny",
    "-global",
    "virtio-mmio.force-legacy=false",
    "-device",
    "virtio-serial-device",
    "-chardev",
    "stdio,id=control,signal=off",
    "-machine",
    "memory-backend=memory",
];

/// QEMU carries out the guest's instructions. Translated code is bounded: the cage keeps 160 MiB for
/// everything beside the guest's memory.
const EMULATED: [&str; 4] = ["-accel", "tcg,tb-size=64", "-cpu", "max,-la57"];
/// The host's CPU does.
const BY_KVM: [&str; 4] = ["-accel", "kvm", "-cpu", "host"];

/// Where distributions have QEMU's firmware.
const FIRMWARE: [&str; 2] = ["/usr/share/qemu", "/usr/share/seabios"];
/// The firmware of the machine: newer versions of QEMU start with another one.
const QBOOT: &str = "qboot.rom";

/// The host side of a machine: files, sockets and memory that QEMU gets.
pub(crate) struct Parts<'p> {
    pub(crate) kernel: &'p Path,
    pub(crate) initramfs: &'p Path,
    /// The file server's socket, as an option of QEMU.
    pub(crate) files: String,
    /// The guest's memory: a file, shared with the file server. Without one, QEMU makes it.
    pub(crate) memory: Option<OsString>,
    /// QEMU's own control socket, for a machine that is saved or restored.
    pub(crate) commands: Option<UnixStream>,
    /// Whether it waits for a saved state.
    pub(crate) restore: bool,
}

impl Parts<'_> {
    /// Those of a cage.
    pub(crate) fn of_cage() -> Parts<'static> {
        Parts {
            kernel: Path::new(KERNEL),
            initramfs: Path::new(INITRAMFS),
            files: format!("path={FILES},abstract=on"),
            memory: None,
            commands: None,
            restore: false,
        }
    }
}

/// Reads how the machine is made.
pub(crate) fn read(place: &Path) -> Result<MachineConfig, VmError> {
    let action = || format!("read {}", place.display());
    let bytes = fs::read(place).map_err(doing(action()))?;
    MachineConfig::decode(&bytes).map_err(doing(action()))
}

/// Starts QEMU in a cage, with this end of the control channel as its standard streams.
pub(crate) fn start(
    config: &MachineConfig,
    parts: &Parts<'_>,
    control: UnixStream,
) -> Result<Child, VmError> {
    let own = std::env::current_exe().map_err(doing("find this program"))?;
    let mut command = Command::new(own);
    command.env_clear().args(["confined", MACHINE]);
    match config.loader.as_deref() {
        None => command.arg(&config.qemu),
        Some(loader) => from_system(&mut command, loader, &config.qemu),
    };
    run(command, config, parts, control)
}

/// Starts QEMU by a command that names the program.
pub(crate) fn run(
    mut command: Command,
    config: &MachineConfig,
    parts: &Parts<'_>,
    control: UnixStream,
) -> Result<Child, VmError> {
    let output = control
        .try_clone()
        .map_err(doing("copy the control channel"))?;
    if let Some(commands) = &parts.commands {
        inherit(commands)?;
    }
    command
        .args(arguments(config, parts))
        .env("TMPDIR", "/tmp")
        .current_dir("/")
        .stdin(Stdio::from(OwnedFd::from(control)))
        .stdout(Stdio::from(OwnedFd::from(output)))
        .stderr(Stdio::piped())
        .spawn()
        .map_err(doing(format!("start {}", config.qemu)))
}

/// Keeps a descriptor open, under its number, in the program that is started next.
pub(crate) fn inherit(descriptor: impl AsFd) -> Result<(), VmError> {
    fcntl_setfd(descriptor, FdFlags::empty()).map_err(doing("pass a descriptor on"))
}

/// The same for a template and for what is restored from it, but for `parts`.
fn arguments(config: &MachineConfig, parts: &Parts<'_>) -> Vec<OsString> {
    let mut words: Vec<OsString> = Vec::new();
    words.extend(FIXED.map(OsString::from));
    words.extend(if config.kvm { BY_KVM } else { EMULATED }.map(OsString::from));
    words.extend(["-bios", QBOOT].map(OsString::from));
    if let Some(firmware) = &config.firmware {
        words.extend(["-L", firmware].map(OsString::from));
    }
    words.extend(["-kernel".into(), parts.kernel.into()]);
    words.extend(["-initrd".into(), parts.initramfs.into()]);
    let memory = config.memory;
    words.extend(["-m".into(), format!("{memory}M").into(), "-object".into()]);
    let size = format!("id=memory,size={memory}M,share=on");
    words.push(match &parts.memory {
        None => format!("memory-backend-memfd,{size}").into(),
        Some(file) => {
            let mut option = OsString::from(format!("memory-backend-file,{size},mem-path="));
            option.push(file);
            option
        }
    });
    let options = [
        (
            "-device",
            format!("virtserialport,chardev=control,name={PORT}"),
        ),
        ("-chardev", format!("socket,id=files,{}", parts.files)),
        (
            "-device",
            format!("vhost-user-fs-device,chardev=files,tag={ROOT_TAG}"),
        ),
        ("-append", kernel_arguments(config.kvm)),
    ];
    let mut add = |name: &str, value: String| words.extend([name.into(), value.into()]);
    for (name, value) in options {
        add(name, value);
    }
    if config.guest.network {
        let (all, gateway, resolver, guest) = (
            network::NETWORK,
            network::GATEWAY,
            network::RESOLVER,
            network::GUEST,
        );
        add(
            "-netdev",
            format!(
                "user,id=net,ipv4=on,net={all},host={gateway},dns={resolver},dhcpstart={guest},ipv6=on"
            ),
        );
        add("-device", "virtio-net-device,netdev=net".into());
    }
    if let Some(commands) = &parts.commands {
        let number = commands.as_raw_fd();
        add("-chardev", format!("socket,id=commands,fd={number}"));
        add("-mon", "chardev=commands,mode=control".into());
    }
    if parts.restore {
        add("-incoming", "defer".into());
    }
    words
}

/// Starts QEMU from the host's system, in a view that has another one at the places that QEMU knows.
fn from_system<'c>(command: &'c mut Command, loader: &str, qemu: &str) -> &'c mut Command {
    let libraries = Path::new(loader).parent().unwrap_or(Path::new("/"));
    command
        .arg(loader)
        .arg("--library-path")
        .arg(libraries)
        .arg(qemu)
        .args(
            FIRMWARE
                .iter()
                .flat_map(|place| ["-L".into(), format!("{SYSTEM}{place}")]),
        )
        .env("QEMU_MODULE_DIR", libraries.join("qemu"))
}

/// The kernel's command line.
fn kernel_arguments(kvm: bool) -> String {
    let mut line = String::from("reboot=t panic=-1 quiet console=none no_timer_check");
    if kvm {
        // It has a clock of its own, and no translations.
        return line;
    }
    // The file server writes into the guest's memory behind the emulator's back: it must not find
    // translations of what was there before.
    line.push_str(" init_on_alloc=1");
    // Without it a kernel of Debian 12 waits for a timer that the machine does not have.
    if let Some(khz) = clock_rate() {
        line.push_str(&format!(" tsc_early_khz={khz}"));
    }
    line
}

/// The processor's rate in kHz, as /proc/cpuinfo has it in MHz.
fn clock_rate() -> Option<u64> {
    let text = fs::read_to_string("/proc/cpuinfo").ok()?;
    let line = text.lines().find(|line| line.starts_with("cpu MHz"))?;
    let (_, rate) = line.split_once(':')?;
    let (whole, part) = rate.trim().split_once('.').unwrap_or((rate.trim(), "0"));
    let part: String = format!("{part:0<3}").chars().take(3).collect();
    Some(whole.parse::<u64>().ok()? * 1000 + part.parse::<u64>().ok()?)
}
