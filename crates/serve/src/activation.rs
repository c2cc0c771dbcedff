//! A socket that systemd opened for the service, and the place to report to.

use ironcage_sys::process::inherited;
use ironcage_sys::rustix::net::sockopt::socket_acceptconn;
use std::ffi::OsString;
use std::io;
use std::os::fd::OwnedFd;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};

/// The first descriptor that is passed.
const FIRST: i32 = 3;

/// Why a socket that was passed cannot be used.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ActivationError {
    #[error("systemd passed {0} sockets; expected one")]
    Many(String),
    #[error("cannot use the socket that systemd passed")]
    Socket(#[source] io::Error),
    #[error("the socket that systemd passed does not listen")]
    Deaf,
}

/// The socket that systemd listens on for this process, if it does (`LISTEN_FDS`).
pub(crate) fn socket() -> Result<Option<OwnedFd>, ActivationError> {
    let of = |name: &str| std::env::var(name).ok();
    passed(
        of("LISTEN_PID").as_deref(),
        of("LISTEN_FDS").as_deref(),
        std::process::id(),
    )?
    .then(|| {
        let socket = inherited(FIRST).map_err(ActivationError::Socket)?;
        let listens = socket_acceptconn(&socket);
        match listens.map_err(|error| ActivationError::Socket(error.into()))? {
            true => Ok(socket),
            false => Err(ActivationError::Deaf),
        }
    })
    .transpose()
}

/// Whether this process was passed a socket. One that was meant for another process is not its own.
fn passed(pid: Option<&str>, count: Option<&str>, own: u32) -> Result<bool, ActivationError> {
    let (Some(pid), Some(count)) = (pid, count) else {
        return Ok(false);
    };
    if pid.parse() != Ok(own) {
        return Ok(false);
    }
    match count {
        "0" => Ok(false),
        "1" => Ok(true),
        _ => Err(ActivationError::Many(
            ironcage_model::Printable::new(count).to_string(),
        )),
    }
}

/// Reports a state to systemd, where it asked for it (`NOTIFY_SOCKET`).
pub(crate) fn notify(state: &str) {
    if let Some(path) = std::env::var_os("NOTIFY_SOCKET") {
        // Without the report systemd ends the service after its own timeout, and says why.
        let _ = report(&path, state);
    }
}

fn report(path: &OsString, state: &str) -> io::Result<()> {
    let address = match path.as_bytes().strip_prefix(b"@") {
        Some(name) => SocketAddr::from_abstract_name(name)?,
        None => SocketAddr::from_pathname(path)?,
    };
    UnixDatagram::unbound()?.send_to_addr(state.as_bytes(), &address)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_socket_for_this_process_is_taken() {
        let passed = |pid, count| passed(pid, count, 42);
        assert!(passed(Some("42"), Some("1")).unwrap());
        for (pid, count) in [
            (None, Some("1")),
            (Some("42"), None),
            (Some("41"), Some("1")),
            (Some("x"), Some("1")),
            (Some("42"), Some("0")),
        ] {
            assert!(!passed(pid, count).unwrap(), "{pid:?} {count:?}");
        }
        passed(Some("42"), Some("2")).unwrap_err();
        passed(Some("42"), Some("-1")).unwrap_err();
    }
}
