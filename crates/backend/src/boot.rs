//! The init of a booted system: PID 1 of a PID namespace below the cage's own.
//!
//! It is forked before there is a view, because only a process of that namespace can make the
//! process file system that shows it, and only before there are user namespaces the kernel lets it.
//! It waits, joins the namespaces that PID 1 of the cage made meanwhile, encloses itself by the same
//! plan, and executes the init. PID 1 of the cage stays above it: it is not seen inside, and what it
//! executes later lands in the namespace of the init.
//!
//! Until it executes the init it is Ironcage's own code, and talks to PID 1 of the cage alone.

use crate::faults::step;
use crate::init::failed;
use crate::order::Order;
use crate::spawner::find_program;
use ironcage_layers::filter::Prepared;
use ironcage_layers::identity::become_agent;
use ironcage_layers::view::own_processes;
use ironcage_layers::{LayerError, privileges, side_channels};
use ironcage_model::Layer;
use ironcage_plan::Plan;
use ironcage_sys::clone::{Forked, Namespaces, exit_now, fork, unshare};
use ironcage_sys::packet::{self, Packet, ancillary_space};
use ironcage_sys::process::close_all_but;
use ironcage_sys::rustix::fs::symlink;
use ironcage_sys::rustix::io::Errno;
use ironcage_sys::rustix::net::{
    AddressFamily, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketFlags, SocketType,
    send, sendmsg, socketpair,
};
use ironcage_sys::rustix::process::{
    Pid, PidfdFlags, Signal, chdir, getpid, pidfd_open, set_parent_process_death_signal, setsid,
    umask,
};
use ironcage_sys::rustix::thread::{ThreadNameSpaceType, move_into_thread_name_spaces};
use ironcage_sys::rustix::{fs::Mode, stdio};
use ironcage_sys::spawn::become_image;
use std::io::{self, IoSlice};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

const PROC: u8 = b'p';
const JOIN: u8 = b'j';
const JOINED: u8 = b'k';
const START: u8 = b's';
/// With a terminal instead of three pipes.
const START_ON_TERMINAL: u8 = b't';
const FAILED: u8 = b'f';
/// Longest message: an error in words.
const MAX: usize = 512;

/// The init before it is executed.
#[derive(Debug)]
pub struct WaitingInit {
    pid: Pid,
    socket: OwnedFd,
}

impl WaitingInit {
    /// Forks it into a new PID namespace, and its maker's later children with it. Returns the
    /// process file system of that namespace, too. The caller is in a cgroup namespace of its own
    /// from now on, whose root is the init's group.
    pub fn fork(plan: &Plan) -> Result<(WaitingInit, OwnedFd), LayerError> {
        let error = |action: &'static str| move |error| failed(Layer::PidNs, action, error);
        let (family, kind) = (AddressFamily::UNIX, SocketType::SEQPACKET);
        let pair = socketpair(family, kind, SocketFlags::CLOEXEC, None);
        let (socket, inner) = pair.map_err(|errno| failed(Layer::PidNs, "make a socket", errno))?;
        let above = pidfd_open(getpid(), PidfdFlags::empty())
            .map_err(|errno| failed(Layer::PidNs, "open the cage's PID 1", errno))?;
        unshare(Namespaces::PID.with(Namespaces::CGROUP))
            .map_err(error("unshare the namespaces of the init"))?;
        step();
        match fork(Namespaces::NONE, None).map_err(error("fork the init"))? {
            Forked::Child => wait(plan, &inner, &above),
            Forked::Parent { pid, pidfd } => {
                // Its end is heard at the socket, and by waiting.
                std::mem::forget((pidfd, inner, above));
                let init = WaitingInit { pid, socket };
                let mut packet = init.hear("make the process file system")?;
                match packet.descriptors.pop() {
                    Some(proc) if packet.bytes == [PROC] => Ok((init, proc)),
                    _ => Err(garbled()),
                }
            }
        }
    }

    /// Lets it join the caller's namespaces, before the caller can no longer be looked into.
    pub fn join(&self) -> Result<(), LayerError> {
        self.say(&[JOIN], &[])?;
        match self.hear("join the cage's namespaces")?.bytes.as_slice() {
            [JOINED] => Ok(()),
            _ => Err(garbled()),
        }
    }

    /// Its socket, for who closes everything else.
    pub(crate) fn socket(&self) -> &OwnedFd {
        &self.socket
    }

    /// Lets it execute the init with these streams. An error number is what execve answered.
    pub(crate) fn start(
        self,
        streams: [BorrowedFd<'_>; 3],
        terminal: bool,
    ) -> Result<Result<Pid, i32>, LayerError> {
        let start = if terminal { START_ON_TERMINAL } else { START };
        self.say(&[start], &streams)?;
        // The end of the socket is the success: it is closed on exec.
        let packet = packet::receive(self.socket.as_fd(), true, MAX, 0)
            .map_err(|error| failed(Layer::PidNs, "hear the init", error))?
            .unwrap_or_default();
        match packet.bytes.as_slice() {
            [] => Ok(Ok(self.pid)),
            [START, number @ ..] => Ok(Err(error_number(number))),
            _ => Err(refusal(&packet)),
        }
    }

    fn say(&self, bytes: &[u8], descriptors: &[BorrowedFd<'_>]) -> Result<(), LayerError> {
        say(self.socket.as_fd(), bytes, descriptors)
            .map_err(|error| failed(Layer::PidNs, "tell the init", error))
    }

    fn hear(&self, action: &str) -> Result<Packet, LayerError> {
        let packet = packet::receive(self.socket.as_fd(), true, MAX, 1)
            .map_err(|error| failed(Layer::PidNs, "hear the init", error))?
            .unwrap_or_default();
        match packet.bytes.first() {
            None => Err(failed(Layer::PidNs, action, io::ErrorKind::UnexpectedEof)),
            Some(&FAILED) => Err(refusal(&packet)),
            Some(_) => Ok(packet),
        }
    }
}

fn garbled() -> LayerError {
    failed(Layer::PidNs, "hear the init", io::ErrorKind::InvalidData)
}

fn error_number(bytes: &[u8]) -> i32 {
    bytes
        .first_chunk::<4>()
        .map_or(Errno::IO.raw_os_error(), |four| i32::from_le_bytes(*four))
}

/// What the init could not do, in its words.
fn refusal(packet: &Packet) -> LayerError {
    let rest = packet.bytes.get(1..).unwrap_or_default();
    let text = String::from_utf8_lossy(rest.get(4..).unwrap_or_default()).into_owned();
    let source = io::Error::from_raw_os_error(error_number(rest));
    failed(Layer::PidNs, &format!("start the init: {text}"), source)
}

fn say(socket: BorrowedFd<'_>, bytes: &[u8], descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
    let mut space = [MaybeUninit::uninit(); ancillary_space(3)];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    if !descriptors.is_empty() {
        ancillary.push(SendAncillaryMessage::ScmRights(descriptors));
    }
    let flags = SendFlags::NOSIGNAL;
    sendmsg(socket, &[IoSlice::new(bytes)], &mut ancillary, flags)?;
    Ok(())
}

/// The init's own side.
fn wait(plan: &Plan, socket: &OwnedFd, above: &OwnedFd) -> ! {
    let error = match become_init(plan, socket, above) {
        Ok(never) => match never {},
        Err(error) => error,
    };
    let number = error.source.raw_os_error();
    let number = number.unwrap_or(Errno::IO.raw_os_error()).to_le_bytes();
    let mut bytes = vec![FAILED];
    bytes.extend(number);
    bytes.extend(error.action.bytes().take(MAX - bytes.len()));
    let _ = send(socket, &bytes, SendFlags::NOSIGNAL);
    exit_now(125)
}

enum Never {}

fn become_init(plan: &Plan, socket: &OwnedFd, above: &OwnedFd) -> Result<Never, LayerError> {
    let doing = |layer, action: &'static str| move |errno: Errno| failed(layer, action, errno);
    set_parent_process_death_signal(Some(Signal::KILL))
        .map_err(doing(Layer::PidNs, "ask to die with the cage"))?;
    close_all_but(&[socket.as_fd(), above.as_fd()])
        .map_err(|error| failed(Layer::Descriptors, "close descriptors", error))?;
    let proc = own_processes()?;
    let heard = |action: &'static str| move |error| failed(Layer::PidNs, action, error);
    say(socket.as_fd(), &[PROC], &[proc.as_fd()])
        .map_err(heard("pass the process file system on"))?;
    drop(proc);
    step();
    if hear(socket)?.bytes != [JOIN] {
        exit_now(125);
    }
    let namespaces = ThreadNameSpaceType::USER
        | ThreadNameSpaceType::MOUNT
        | ThreadNameSpaceType::INTER_PROCESS_COMMUNICATION
        | ThreadNameSpaceType::HOST_NAME_AND_NIS_DOMAIN_NAME
        | ThreadNameSpaceType::CONTROL_GROUP
        | ThreadNameSpaceType::NETWORK;
    move_into_thread_name_spaces(above.as_fd(), namespaces)
        .map_err(doing(Layer::UserNs, "join the cage's namespaces"))?;
    say(socket.as_fd(), &[JOINED], &[]).map_err(heard("tell the cage's PID 1"))?;
    step();
    let mut order = hear(socket)?;
    let terminal = match order.bytes.as_slice() {
        [START] => false,
        [START_ON_TERMINAL] => true,
        // The cage ends before it began.
        _ => exit_now(125),
    };
    let own_map = matches!(plan.identity.map, ironcage_plan::IdMap::Own { .. });
    become_agent(plan.identity.uid, plan.identity.gid, !own_map)?;
    if terminal {
        // The first terminal of the cage's own file system of terminals.
        symlink("pts/0", "/dev/console").map_err(doing(Layer::Session, "name the console"))?;
    }
    setsid().map_err(doing(Layer::Session, "start a session"))?;
    umask(Mode::from_raw_mode(0o022));
    chdir("/").map_err(doing(Layer::MountNs, "enter the root"))?;
    let program = Order::here(&plan.command)
        .map_err(|error| failed(Layer::PidNs, "prepare the init", error))?;
    let path = find_program(&program.candidates);
    for (target, stream) in order.descriptors.drain(..).enumerate() {
        let put = match target {
            0 => stdio::dup2_stdin(&stream),
            1 => stdio::dup2_stdout(&stream),
            _ => stdio::dup2_stderr(&stream),
        };
        put.map_err(doing(Layer::Descriptors, "pass the streams on"))?;
    }
    privileges::no_new_privileges()?;
    privileges::keep_root_capabilities(&plan.capabilities)?;
    privileges::set_rlimits(&plan.rlimits)?;
    if let Some(hardening) = &plan.hardening {
        side_channels::harden(&hardening.what)?;
    }
    if let Some(count) = plan.processors {
        privileges::keep_to_processors(count)?;
    }
    close_all_but(&[socket.as_fd()])
        .map_err(|error| failed(Layer::Descriptors, "close descriptors", error))?;
    let filter = Prepared::new(&plan.seccomp);
    step();
    // A booted cage has no listener: its plan has a filter that answers by itself.
    filter.install()?;
    step();
    let errno = match path {
        Ok(path) => become_image(&program.image(path)),
        Err(errno) => errno.into(),
    };
    let number = errno.raw_os_error().unwrap_or(Errno::IO.raw_os_error());
    let mut bytes = vec![START];
    bytes.extend(number.to_le_bytes());
    let _ = send(socket, &bytes, SendFlags::NOSIGNAL);
    exit_now(127)
}

fn hear(socket: &OwnedFd) -> Result<Packet, LayerError> {
    let packet = packet::receive(socket.as_fd(), true, MAX, 3)
        .map_err(|error| failed(Layer::PidNs, "hear the cage's PID 1", error))?;
    Ok(packet.unwrap_or_default())
}
