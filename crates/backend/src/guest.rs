//! The command and every exec of a cage with a virtual machine: what is ordered is executed in the
//! guest, and what is executed here is a client that carries its streams.

use crate::order::Order;
use crate::spawner::{Direct, Images, find_program};
use ironcage_guest::{PORTS_SOCKET, PROGRAM};
use ironcage_plan::Plan;
use ironcage_sys::rustix::fs::{Access, FileType, access, stat};
use ironcage_sys::rustix::io::Errno;
use ironcage_sys::rustix::net::{
    AddressFamily, SendFlags, SocketAddrUnix, SocketFlags, SocketType, connect, send, socket_with,
};
use ironcage_sys::spawn::Image;
use std::ffi::CString;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt as _;

/// From orders to what is executed for them, in the cage of a plan.
pub(crate) fn images(plan: &Plan) -> Box<dyn Images> {
    match plan.isolation_level.what.microvm {
        None => Box::new(Direct),
        Some(_) => Box::new(Clients {
            cwd: plan.command.cwd.as_os_str().as_bytes().to_vec(),
        }),
    }
}

/// From orders to clients.
#[derive(Debug)]
struct Clients {
    /// Where a command starts that names no directory.
    cwd: Vec<u8>,
}

impl Images for Clients {
    fn image(&mut self, _: u32, order: Order, _: bool) -> Result<Image, Errno> {
        // The guest's root is the view that this process sees.
        let program = find_program(&order.candidates)?;
        is_executable(&program)?;
        let text = |bytes: &[u8]| CString::new(bytes).map_err(|_| Errno::INVAL);
        let cwd = match order.cwd.first() {
            Some(cwd) => cwd.clone(),
            None => text(&self.cwd)?,
        };
        let own = text(PROGRAM.as_bytes())?;
        let mut argv = vec![own.clone(), text(b"client")?, cwd.clone(), program];
        argv.extend(order.argv);
        Ok(Image {
            path: own,
            argv,
            envp: order.envp,
            cwd: Some(cwd),
        })
    }

    /// The monitor carries it into the guest. Before there is a machine, nobody listens.
    fn dial(&self, port: u16, _: bool) -> Result<OwnedFd, Errno> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
        let address = SocketAddrUnix::new_abstract_name(PORTS_SOCKET.as_bytes())?;
        connect(&socket, &address)?;
        let sent = send(&socket, &port.to_be_bytes(), SendFlags::NOSIGNAL)?;
        match sent {
            2 => Ok(socket),
            _ => Err(Errno::AGAIN),
        }
    }
}

/// Whether a program can be executed: the kernel that would say so is the guest's.
fn is_executable(program: &CString) -> Result<(), Errno> {
    let found = stat(program.as_c_str())?;
    access(program.as_c_str(), Access::EXEC_OK)?;
    match FileType::from_raw_mode(found.st_mode) {
        FileType::RegularFile => Ok(()),
        _ => Err(Errno::ACCESS),
    }
}
