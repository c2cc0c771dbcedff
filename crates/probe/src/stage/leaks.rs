//! Descriptors that the launcher inherits by mistake, as CVE-2024-21626 had it.
//!
//! They are opened without close-on-exec at numbers from 40 on; every process that the suite
//! starts inherits them.

use super::log::{Channel, HitLog};
use super::{Layout, StageError, making};
use crate::params::Params;
use ironcage_sys::rustix::fs::{Mode, OFlags, open};
use ironcage_sys::rustix::io::{FdFlags, fcntl_dupfd_cloexec, fcntl_setfd};
use ironcage_sys::rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use ironcage_sys::rustix::process::{Pid, PidfdFlags, pidfd_open};
use std::fs::File;
use std::io::{IoSlice, Read};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;

/// The descriptors; closing them would end the leak.
pub(crate) struct LeakedFds {
    _leaked: Vec<OwnedFd>,
}

const FIRST: i32 = 40;

fn leak(held: &mut Vec<OwnedFd>, fd: impl AsFd) -> Result<i32, StageError> {
    let copy = fcntl_dupfd_cloexec(fd, FIRST).map_err(making("a leaked descriptor"))?;
    fcntl_setfd(&copy, FdFlags::empty()).map_err(making("a leaked descriptor"))?;
    let number = copy.as_raw_fd();
    held.push(copy);
    Ok(number)
}

/// An accomplice: answers the first byte with a descriptor of the home directory.
fn serve_pair(mut end: UnixStream, home: &Path, log: &HitLog) -> Result<(), StageError> {
    let directory = File::open(home).map_err(making("a descriptor of the home directory"))?;
    let log = log.clone();
    std::thread::spawn(move || {
        let mut byte = [0u8; 64];
        while let Ok(length @ 1..) = end.read(&mut byte) {
            log.note(Channel::LeakedPair, format!("{length} bytes"));
            let descriptors = [directory.as_fd()];
            let mut space = [const { std::mem::MaybeUninit::uninit() }; 64];
            let mut control = SendAncillaryBuffer::new(&mut space);
            control.push(SendAncillaryMessage::ScmRights(&descriptors));
            // The other end may be gone; what it sent is already noted.
            let _ = sendmsg(
                &end,
                &[IoSlice::new(b"d")],
                &mut control,
                SendFlags::NOSIGNAL,
            );
        }
    });
    Ok(())
}

impl LeakedFds {
    pub(crate) fn open(
        params: &mut Params,
        layout: &Layout,
        log: &HitLog,
        network: File,
    ) -> Result<LeakedFds, StageError> {
        let mut held = Vec::new();
        let what = "a leaked descriptor";
        let home = open(
            &params.home,
            OFlags::DIRECTORY | OFlags::CLOEXEC,
            Mode::empty(),
        )
        .map_err(making(what))?;
        params.leaks.directory = leak(&mut held, home)?;
        let victim = Pid::from_raw(params.victim.pid)
            .ok_or_else(|| making(what)(std::io::Error::other("no canary process")))?;
        let pidfd = pidfd_open(victim, PidfdFlags::empty()).map_err(making(what))?;
        params.leaks.pidfd = leak(&mut held, pidfd)?;
        params.leaks.network = leak(&mut held, network)?;

        let (near, far) = UnixStream::pair().map_err(making(what))?;
        serve_pair(far, &params.home, log)?;
        params.leaks.socket_pair = leak(&mut held, near)?;

        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).map_err(making(what))?;
        let address = listener.local_addr().map_err(making(what))?;
        let near = TcpStream::connect(address).map_err(making(what))?;
        let (mut far, _) = listener.accept().map_err(making(what))?;
        let log = log.clone();
        std::thread::spawn(move || {
            let mut buffer = [0u8; 64];
            while let Ok(length @ 1..) = far.read(&mut buffer) {
                log.note(Channel::LeakedTcp, format!("{length} bytes"));
            }
        });
        params.leaks.tcp = leak(&mut held, near)?;

        let file = open(
            &layout.host_file,
            OFlags::RDWR | OFlags::CLOEXEC,
            Mode::empty(),
        )
        .map_err(making(what))?;
        params.leaks.file = leak(&mut held, file)?;
        Ok(LeakedFds { _leaked: held })
    }
}
