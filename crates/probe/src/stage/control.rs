//! A stand-in for the socket by which a running sandbox is told what to do. It lies where
//! Ironcage's lie, and its server trusts whoever comes.

use super::log::{Channel, HitLog};
use super::{StageError, making};
use crate::params::Params;
use ironcage_sys::rustix::net::{
    AddressFamily, RecvFlags, SocketAddrUnix, SocketFlags, SocketType, accept, bind, listen, recv,
    socket_with,
};
use std::fs::DirBuilder;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::DirBuilderExt;
use std::path::PathBuf;

/// The beginning of a request that a supervisor understands.
pub(crate) const REQUEST: &[u8] = b"IC\x01\0\0\0\0\0\"describe\"";

fn socket() -> io::Result<OwnedFd> {
    let (family, kind) = (AddressFamily::UNIX, SocketType::SEQPACKET);
    Ok(socket_with(family, kind, SocketFlags::CLOEXEC, None)?)
}

/// Connects to a control socket.
pub(crate) fn dial(path: &std::path::Path) -> io::Result<OwnedFd> {
    let socket = socket()?;
    ironcage_sys::rustix::net::connect(&socket, &SocketAddrUnix::new(path)?)?;
    Ok(socket)
}

/// Starts it; it ends with the process.
pub(super) fn start(params: &mut Params, log: &HitLog) -> Result<(), StageError> {
    let uid = ironcage_sys::rustix::process::geteuid().as_raw();
    let directory = PathBuf::from(format!("/run/user/{uid}/ironcage/cages"));
    let what = || "a stand-in for a control socket".to_owned();
    DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(&directory)
        .map_err(making(what()))?;
    params.control_socket = directory.join("stand-in");
    let listening = || -> io::Result<OwnedFd> {
        let listener = socket()?;
        bind(&listener, &SocketAddrUnix::new(&params.control_socket)?)?;
        listen(&listener, 64)?;
        Ok(listener)
    };
    let listener = listening().map_err(making(what()))?;
    let log = log.clone();
    std::thread::spawn(move || {
        while let Ok(client) = accept(&listener) {
            let mut packet = vec![0u8; 256 << 10];
            let Ok((_, length)) = recv(&client, packet.as_mut_slice(), RecvFlags::empty()) else {
                continue;
            };
            match &packet[..length] == REQUEST {
                true => log.note(Channel::Control, "a request was taken"),
                false => log.note(Channel::Frames, format!("{length} bytes were taken")),
            }
        }
    });
    Ok(())
}
