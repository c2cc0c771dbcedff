//! Identifies the peer of a control socket.
//!
//! The same user ID is not enough: a process in a cage that this user started has it too. So the
//! peer must also be in the user and PID namespace that the supervisor was started in. A peer
//! that cannot be identified is rejected.

use ironcage_sys::net::peer_pidfd;
use ironcage_sys::process::started_as;
use ironcage_sys::rustix::event::{PollFd, PollFlags, Timespec, poll};
use ironcage_sys::rustix::fs::{AtFlags, CWD, Mode, OFlags, open, statat};
use ironcage_sys::rustix::io::Errno;
use ironcage_sys::rustix::net::sockopt::socket_peercred;
use ironcage_sys::rustix::process::{PidfdFlags, pidfd_open};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// What a peer must have in common with the supervisor. Taken before a cage is started, because
/// the supervisor's own namespaces may change after that.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Examination {
    uid: u32,
    user: (u64, u64),
    pid: (u64, u64),
}

/// Why a peer was rejected.
#[derive(Debug, thiserror::Error)]
pub enum PeerDenial {
    /// It is another user.
    #[error("the peer is user {theirs}, but the cage belongs to user {ours}")]
    User {
        /// The peer's user id.
        theirs: u32,
        /// The supervisor's.
        ours: u32,
    },
    /// It lives in another namespace.
    #[error("the peer is not in the supervisor's {kind} namespace")]
    Namespace {
        /// Which kind.
        kind: &'static str,
    },
    /// It is gone, or hides.
    #[error("cannot identify the peer")]
    Unknown(#[source] io::Error),
}

impl PeerDenial {
    /// Whether it was gone before it could be looked at, as a client is that has asked nothing.
    pub fn is_gone(&self) -> bool {
        let errno = match self {
            PeerDenial::Unknown(error) => Errno::from_io_error(error),
            PeerDenial::User { .. } | PeerDenial::Namespace { .. } => None,
        };
        matches!(errno, Some(Errno::SRCH | Errno::NOENT))
    }
}

impl Examination {
    /// What a peer of this process must have.
    pub fn of_this_process() -> io::Result<Self> {
        Ok(Examination {
            uid: started_as(),
            user: namespace(CWD, "/proc/self/ns/user")?,
            pid: namespace(CWD, "/proc/self/ns/pid")?,
        })
    }
}

fn open_process(path: &str) -> Result<OwnedFd, Errno> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    open(path, flags, Mode::empty())
}

fn namespace(process: BorrowedFd<'_>, name: &str) -> Result<(u64, u64), Errno> {
    // Follows the link to the namespace itself.
    let stat = statat(process, name, AtFlags::empty())?;
    Ok((stat.st_dev, stat.st_ino))
}

fn is_alive(pidfd: BorrowedFd<'_>) -> Result<bool, Errno> {
    let mut fds = [PollFd::from_borrowed_fd(pidfd, PollFlags::IN)];
    poll(&mut fds, Some(&Timespec::default()))?;
    Ok(fds[0].revents().is_empty())
}

/// Looks at the process that connected.
pub fn examine(socket: BorrowedFd<'_>, wanted: &Examination) -> Result<(), PeerDenial> {
    let unknown = |error: Errno| PeerDenial::Unknown(error.into());
    let credentials = socket_peercred(socket).map_err(unknown)?;
    let theirs = credentials.uid.as_raw();
    if theirs != wanted.uid {
        let ours = wanted.uid;
        return Err(PeerDenial::User { theirs, ours });
    }
    let pid = credentials.pid;
    // Before Linux 6.5 the number has to do; it could only have been given to another process
    // since the peer connected, which is a moment ago.
    let pidfd = match peer_pidfd(socket).map_err(PeerDenial::Unknown)? {
        Some(pidfd) => pidfd,
        None => pidfd_open(pid, PidfdFlags::empty()).map_err(unknown)?,
    };
    let process = open_process(&format!("/proc/{}", pid.as_raw_nonzero())).map_err(unknown)?;
    let user = namespace(process.as_fd(), "ns/user").map_err(unknown)?;
    let own_pid = namespace(process.as_fd(), "ns/pid").map_err(unknown)?;
    // Alive after its directory was opened: so the directory is that process's.
    if !is_alive(pidfd.as_fd()).map_err(unknown)? {
        return Err(unknown(Errno::SRCH));
    }
    if user != wanted.user {
        return Err(PeerDenial::Namespace { kind: "user" });
    }
    if own_pid != wanted.pid {
        return Err(PeerDenial::Namespace { kind: "pid" });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_is_its_own_peer_and_a_wrong_namespace_or_user_is_refused() {
        let (one, _other) = crate::pair().unwrap();
        let wanted = Examination::of_this_process().unwrap();
        examine(one.as_fd(), &wanted).unwrap();
        let user = Examination {
            user: (wanted.user.0, wanted.user.1 + 1),
            ..wanted
        };
        let refused = examine(one.as_fd(), &user).unwrap_err();
        assert!(
            refused
                .to_string()
                .contains("not in the supervisor's user namespace")
        );
        let pid = Examination {
            pid: (0, 0),
            ..wanted
        };
        let refused = examine(one.as_fd(), &pid).unwrap_err();
        assert!(
            refused
                .to_string()
                .contains("not in the supervisor's pid namespace")
        );
        let uid = Examination {
            uid: wanted.uid + 1,
            ..wanted
        };
        assert!(matches!(
            examine(one.as_fd(), &uid),
            Err(PeerDenial::User { .. })
        ));
    }
}
