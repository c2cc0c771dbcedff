//! The virtual machine: QEMU's `microvm` machine with a control channel, the shared root and, with a
//! network, QEMU's user network, whose connections are those of the cage.

use crate::{FILES, VmError, doing};
use ironcage_guest::{INITRAMFS, KERNEL, MACHINE, MachineConfig, PORT, ROOT_TAG, SYSTEM, network};
use std::fs;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};

/// What every start of QEMU has.
const FIXED: [&str; 23] = [
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
    "-kernel",
    KERNEL,
    "-initrd",
    INITRAMFS,
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

/// Reads how the machine is made.
pub(crate) fn read(place: &Path) -> Result<MachineConfig, VmError> {
    let action = || format!("read {}", place.display());
    let bytes = fs::read(place).map_err(doing(action()))?;
    MachineConfig::decode(&bytes).map_err(doing(action()))
}

/// Starts QEMU, with this end of the control channel as its standard streams.
pub(crate) fn start(config: &MachineConfig, control: UnixStream) -> Result<Child, VmError> {
    let output = control
        .try_clone()
        .map_err(doing("copy the control channel"))?;
    let memory = config.memory;
    let own = std::env::current_exe().map_err(doing("find this program"))?;
    let mut command = Command::new(own);
    command.env_clear().args(["confined", MACHINE]);
    match config.loader.as_deref() {
        None => command.arg(&config.qemu),
        Some(loader) => from_system(&mut command, loader, &config.qemu),
    };
    command
        .args(FIXED)
        .args(if config.kvm { BY_KVM } else { EMULATED })
        .arg("-m")
        .arg(format!("{memory}M"))
        .arg("-object")
        .arg(format!(
            "memory-backend-memfd,id=memory,size={memory}M,share=on"
        ))
        .arg("-device")
        .arg(format!("virtserialport,chardev=control,name={PORT}"))
        .arg("-chardev")
        .arg(format!("socket,id=files,path={FILES},abstract=on"))
        .arg("-device")
        .arg(format!("vhost-user-fs-device,chardev=files,tag={ROOT_TAG}"))
        .arg("-append")
        .arg(kernel_arguments(config.kvm));
    if config.guest.network {
        let (all, gateway, resolver, guest) = (
            network::NETWORK,
            network::GATEWAY,
            network::RESOLVER,
            network::GUEST,
        );
        command
            .arg("-netdev")
            .arg(format!(
                "user,id=net,ipv4=on,net={all},host={gateway},dns={resolver},dhcpstart={guest},ipv6=on"
            ))
            .args(["-device", "virtio-net-device,netdev=net"]);
    }
    command
        .env("TMPDIR", "/tmp")
        .current_dir("/")
        .stdin(Stdio::from(OwnedFd::from(control)))
        .stdout(Stdio::from(OwnedFd::from(output)))
        .stderr(Stdio::piped())
        .spawn()
        .map_err(doing(format!("start {}", config.qemu)))
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
