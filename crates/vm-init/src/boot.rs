//! From an empty initramfs to the shared root with its devices.

use ironcage_guest::{GuestSetup, PORT, ROOT_TAG, SCRATCH, network};
use ironcage_sys::rustix::fs::{FileType, Mode, OFlags, fcntl_setfl, makedev, mknodat, open};
use ironcage_sys::rustix::io::Errno;
use ironcage_sys::rustix::mount::{MountFlags, mount, mount_bind_recursive, mount_move};
use ironcage_sys::rustix::process::{chdir, chroot, umask};
use ironcage_sys::rustix::system::sethostname;
use ironcage_sys::rustix::time::{ClockId, Timespec, clock_settime};
use std::ffi::CStr;
use std::fs::{self, File};
use std::io;
use std::net::Ipv4Addr;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::symlink;
use std::path::Path;
use std::time::{Duration, Instant};

/// Where the shared root is mounted.
pub(crate) const ROOT: &str = "/r";
/// Modules of the initramfs, in the order of their names.
const MODULES: &str = "/modules";
/// Where the system call filter lies for [`crate::launch`].
pub(crate) const FILTER: &str = "/filter";
/// How long devices may take to appear.
const DEVICES: Duration = Duration::from_secs(60);

/// Something that did not work while the guest was set up.
#[derive(Debug, thiserror::Error)]
#[error("cannot {action}: {source}")]
pub(crate) struct BootError {
    action: String,
    source: io::Error,
}

pub(crate) fn doing<E: Into<io::Error>>(action: impl Into<String>) -> impl FnOnce(E) -> BootError {
    move |source| BootError {
        action: action.into(),
        source: source.into(),
    }
}

fn mount_new(kind: &str, place: &str, flags: MountFlags, data: &CStr) -> Result<(), BootError> {
    fs::create_dir_all(place).map_err(doing(format!("make {place}")))?;
    mount(kind, place, kind, flags, data).map_err(doing(format!("mount {kind} at {place}")))
}

/// The guest's own file systems and modules, then the control port.
pub(crate) fn begin() -> Result<OwnedFd, BootError> {
    // Devices have the modes that they are made with; commands get one of their own.
    umask(Mode::empty());
    let inert = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
    mount_new("proc", "/proc", inert, c"")?;
    mount_new("sysfs", "/sys", inert, c"")?;
    mount_new("devtmpfs", "/dev", MountFlags::NOSUID, c"mode=0755")?;
    mount_new(
        "devpts",
        "/dev/pts",
        MountFlags::NOSUID,
        c"ptmxmode=0666,mode=620",
    )?;
    load_modules(&is_early)?;
    port()
}

/// Modules that a guest has before it is told what it is for. Without the drivers of the shared root
/// and of the network, a machine that is saved then can be restored with others, which it does not
/// know.
fn is_early(name: &str) -> bool {
    let (_, name) = name.split_once('-').unwrap_or(("", name));
    let driver = matches!(name.trim_end_matches(".ko"), "virtiofs" | "virtio_net");
    !driver && !is_of_root(name)
}

/// Modules of what only root of the guest uses.
fn is_of_root(name: &str) -> bool {
    name.contains("overlay")
}

fn load_modules(wanted: &dyn Fn(&str) -> bool) -> Result<(), BootError> {
    let Ok(listed) = fs::read_dir(MODULES) else {
        // A kernel that has all of them built in.
        return Ok(());
    };
    let mut paths: Vec<_> = listed.flatten().map(|entry| entry.path()).collect();
    paths.sort();
    let name = |path: &Path| {
        path.file_name()
            .unwrap_or_default()
            .to_string_lossy()
            .into_owned()
    };
    paths.retain(|path| wanted(&name(path)));
    for path in paths {
        let action = || format!("load {}", path.display());
        let file = File::open(&path).map_err(doing(action()))?;
        ironcage_sys::guest::load_module(file.as_fd()).map_err(doing(action()))?;
    }
    Ok(())
}

/// The control port, by its name.
fn port() -> Result<OwnedFd, BootError> {
    let until = Instant::now() + DEVICES;
    loop {
        let ports = fs::read_dir("/sys/class/virtio-ports")
            .into_iter()
            .flatten();
        for entry in ports.flatten() {
            let name = fs::read_to_string(entry.path().join("name")).unwrap_or_default();
            if name.trim_end() == PORT {
                let path = Path::new("/dev").join(entry.file_name());
                let flags = OFlags::RDWR | OFlags::CLOEXEC;
                let port = open(&path, flags, Mode::empty());
                let port = port.map_err(doing("open the control port"))?;
                fcntl_setfl(&port, OFlags::NONBLOCK).map_err(doing("set up the control port"))?;
                return Ok(port);
            }
        }
        if Instant::now() > until {
            let missing = io::Error::from(io::ErrorKind::NotFound);
            return Err(doing("find the control port")(missing));
        }
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Mounts the shared root and prepares it for the agent.
pub(crate) fn finish(setup: &GuestSetup) -> Result<(), BootError> {
    let time = Timespec {
        tv_sec: (setup.time / 1_000_000_000) as i64,
        tv_nsec: (setup.time % 1_000_000_000) as i64,
    };
    clock_settime(ClockId::Realtime, time).map_err(doing("set the clock"))?;
    if let Ok(bytes) = <&[u8; 32]>::try_from(setup.entropy.as_slice()) {
        let pool = File::open("/dev/urandom").map_err(doing("open /dev/urandom"))?;
        ironcage_sys::guest::add_entropy(pool.as_fd(), bytes).map_err(doing("add randomness"))?;
    }
    load_modules(&|name| !is_early(name) && (setup.root || !is_of_root(name)))?;
    sethostname(setup.hostname.as_bytes()).map_err(doing("set the host name"))?;
    fs::write(FILTER, &setup.filter).map_err(doing("keep the system call filter"))?;
    fs::create_dir_all(ROOT).map_err(doing("make the place of the root"))?;
    let flags = MountFlags::NOSUID | MountFlags::NODEV;
    mount(ROOT_TAG, ROOT, "virtiofs", flags, c"").map_err(doing("mount the shared root"))?;
    let inert = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
    mount("proc", "/r/proc", "proc", inert, c"").map_err(doing("mount /proc"))?;
    // A view need not have it.
    if Path::new("/r/sys").is_dir() {
        let flags = match setup.root {
            true => inert,
            false => inert | MountFlags::RDONLY,
        };
        mount("sysfs", "/r/sys", "sysfs", flags, c"").map_err(doing("mount /sys"))?;
    }
    if setup.root {
        of_root().map_err(doing("mount what root of the guest uses"))?;
    }
    devices().map_err(doing("make the devices"))?;
    ironcage_sys::net::loopback_up().map_err(doing("bring up the loopback interface"))?;
    if setup.network {
        let bits = u32::MAX << (32 - u32::from(network::PREFIX));
        let mask = Ipv4Addr::from(bits);
        let eth0 = ironcage_sys::guest::configure_interface;
        eth0("eth0", network::GUEST, mask, network::GATEWAY)
            .map_err(doing("configure the network interface"))?;
    }
    Ok(())
}

/// Control groups of this kernel, and storage on which root can make devices, set owners and stack
/// file systems.
fn of_root() -> io::Result<()> {
    let inert = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
    if Path::new("/r/sys/fs/cgroup").is_dir() {
        mount("cgroup2", "/r/sys/fs/cgroup", "cgroup2", inert, c"")?;
    }
    let place = format!("{ROOT}{SCRATCH}");
    mount("tmpfs", &place, "tmpfs", MountFlags::empty(), c"mode=0755")?;
    Ok(())
}

/// Makes the shared root the root of this program and of its mounts: in a directory that it has only
/// changed its root to, the kernel makes no user namespaces.
pub(crate) fn enter_root() -> Result<(), BootError> {
    let action = || "enter the shared root";
    chdir(ROOT).map_err(doing(action()))?;
    mount_move(".", "/").map_err(doing(action()))?;
    chroot(".").map_err(doing(action()))
}

/// The devices that a cage has, on a tmpfs: of the guest's own kernel.
fn devices() -> io::Result<()> {
    let flags = MountFlags::NOSUID | MountFlags::NOEXEC;
    mount("tmpfs", "/r/dev", "tmpfs", flags, c"mode=0755,size=64k")?;
    let dev = File::open("/r/dev")?;
    for (name, major, minor) in [
        ("null", 1, 3),
        ("zero", 1, 5),
        ("full", 1, 7),
        ("random", 1, 8),
        ("urandom", 1, 9),
        ("tty", 5, 0),
    ] {
        let mode = Mode::from_raw_mode(0o666);
        let device = makedev(major, minor);
        match mknodat(&dev, name, FileType::CharacterDevice, mode, device) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(error) => return Err(error.into()),
        }
    }
    for (name, to) in [
        ("fd", "/proc/self/fd"),
        ("stdin", "/proc/self/fd/0"),
        ("stdout", "/proc/self/fd/1"),
        ("stderr", "/proc/self/fd/2"),
        ("ptmx", "pts/ptmx"),
    ] {
        symlink(to, Path::new("/r/dev").join(name))?;
    }
    fs::create_dir("/r/dev/pts")?;
    mount_bind_recursive("/dev/pts", "/r/dev/pts")?;
    fs::create_dir("/r/dev/shm")?;
    let flags = flags | MountFlags::NODEV;
    mount("tmpfs", "/r/dev/shm", "tmpfs", flags, c"mode=1777")?;
    Ok(())
}
