//! A Docker daemon of the stage's own: one that ran outside would make its containers outside,
//! where no canary is.

use super::bundle::show_one_cgroup_tree;
use ironcage_sys::process::close_all_but;
use ironcage_sys::rustix::fs::{FlockOperation, flock};
use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::os::fd::AsFd as _;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// The image that has the directories and links of a root, and nothing in them.
pub(super) const IMAGE: &str = "stage";

/// How long a daemon may take to answer on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// The address of the stage's daemon. The first who asks starts it, and it lives as long as the
/// stage: its users do not wait for a daemon with each container either.
pub(super) fn daemon(place: &Path, root: &Path) -> io::Result<OsString> {
    std::fs::create_dir_all(place)?;
    let lock = File::create(place.join("lock"))?;
    flock(&lock, FlockOperation::LockExclusive)?;
    let mut address = OsString::from("unix://");
    address.push(place.join("socket"));
    if answers(&address) {
        return Ok(address);
    }
    // The daemon is no child of its users: it has none of the descriptors that leaked to them.
    close_all_but(&[lock.as_fd()])?;
    show_one_cgroup_tree()?;
    let log = File::create(place.join("log"))?;
    let below = |name: &str| place.join(name);
    let mut daemon = Command::new("dockerd");
    daemon.arg("--data-root").arg(below("data"));
    daemon.arg("--exec-root").arg(below("exec"));
    daemon.arg("--pidfile").arg(below("pid"));
    daemon.arg("--host").arg(&address);
    daemon.args(["--bridge=none", "--iptables=false", "--ip6tables=false"]);
    daemon.args([
        "--ip-forward=false",
        "--ip-masq=false",
        "--storage-driver=vfs",
    ]);
    daemon.env_clear();
    daemon.env(
        "PATH",
        "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    );
    let said = log.try_clone()?;
    daemon.stdin(Stdio::null()).stdout(said).stderr(log);
    daemon.current_dir("/").process_group(0);
    let mut daemon = daemon.spawn()?;
    let began = Instant::now();
    while !answers(&address) {
        if let Some(status) = daemon.try_wait()? {
            return Err(io::Error::other(format!("dockerd ended: {status}")));
        }
        if began.elapsed() > PATIENCE {
            return Err(io::Error::other("dockerd does not answer"));
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    import(&address, root)?;
    Ok(address)
}

fn answers(address: &OsString) -> bool {
    let mut asked = Command::new("docker");
    asked.arg("--host").arg(address).arg("info");
    let quiet = asked.stdin(Stdio::null()).stdout(Stdio::null());
    quiet
        .stderr(Stdio::null())
        .status()
        .is_ok_and(|status| status.success())
}

fn import(address: &OsString, root: &Path) -> io::Result<()> {
    let mut packed = Command::new("tar");
    let packed = packed.arg("-C").arg(root).args(["-c", "."]);
    let mut packed = packed.stdout(Stdio::piped()).spawn()?;
    let archive = packed.stdout.take().map_or_else(Stdio::null, Stdio::from);
    let mut taken = Command::new("docker");
    taken.arg("--host").arg(address);
    taken.args(["import", "-", IMAGE]);
    let taken = taken.stdin(archive).stdout(Stdio::null()).status()?;
    match packed.wait()?.success() && taken.success() {
        true => Ok(()),
        false => Err(io::Error::other(format!("`docker import`: {taken}"))),
    }
}
