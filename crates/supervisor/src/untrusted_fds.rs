//! Lets go of descriptors that the agent had a hand in, and keeps more of them out.
//!
//! The last process to close a file waits until that is done: with a TCP socket that lingers, or a
//! Unix socket in whose queue such a one lies, as long as the agent likes. A process on its way out
//! does not wait. So no process that enforces anything closes such a descriptor last, and none
//! receives more than the few that it needs: both are left to processes that are there for nothing
//! else.

use ironcage_control::{Channel, pair};
use ironcage_sys::clone::{Forked, Namespaces, exit_now, fork};
use ironcage_sys::packet::{receive, send_with};
use ironcage_sys::process::close_all_but;
use ironcage_sys::rustix::event::{PollFd, PollFlags, poll};
use ironcage_sys::rustix::io::{Errno, read};
use ironcage_sys::rustix::net::{SendFlags, send};
use ironcage_sys::rustix::pipe::{PipeFlags, pipe_with};
use ironcage_sys::rustix::process::{Pid, WaitId, WaitIdOptions, getpid, waitid};
use std::cell::RefCell;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// Longest message that is passed on. A shell's are some words.
const LONGEST: usize = 256 * 1024;
/// As many descriptors as the kernel lets one message have.
const MOST: usize = 253;

thread_local! {
    /// Those that were made for it, and are gone or about to be, each with who made it. By number,
    /// and no descriptor: a forked supervisor closes what it does not know, and has a copy of this.
    static MADE: RefCell<Vec<(Pid, Pid)>> = const { RefCell::new(Vec::new()) };
}

fn bury() {
    let own = getpid();
    MADE.with_borrow_mut(|made| {
        made.retain(|(parent, pid)| {
            let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG;
            *parent == own && matches!(waitid(WaitId::Pid(*pid), options), Ok(None))
        });
    });
}

fn remember(pid: Pid) {
    MADE.with_borrow_mut(|made| made.push((getpid(), pid)));
}

/// Closes descriptors of the agent's without ever waiting for that.
pub(crate) fn close_elsewhere(fds: Vec<OwnedFd>) {
    bury();
    if fds.is_empty() {
        return;
    }
    let made = pipe_with(PipeFlags::CLOEXEC).map_err(io::Error::from);
    let made = made.and_then(|ends| Ok((ends, fork(Namespaces::NONE, None)?)));
    match made {
        Ok(((reader, writer), Forked::Child)) => {
            drop(writer);
            let mut kept: Vec<BorrowedFd<'_>> = fds.iter().map(AsFd::as_fd).collect();
            kept.push(reader.as_fd());
            let _ = close_all_but(&kept);
            // Until nobody else has them.
            while matches!(read(&reader, &mut [0; 1]), Err(Errno::INTR)) {}
            exit_now(0)
        }
        Ok(((reader, writer), Forked::Parent { pid, .. })) => {
            remember(pid);
            drop(reader);
            drop(fds);
            drop(writer);
        }
        // They stay open, until there are no descriptors left and nobody is heard any more.
        Err(_) => std::mem::forget(fds),
    }
}

/// Puts a process between somebody in the cage and this one: words come through, descriptors end
/// the connection.
///
/// # Errors
/// Where there is no process to be had.
pub(crate) fn words_only(client: Channel) -> io::Result<Channel> {
    bury();
    let (ours, theirs) = pair()?;
    match fork(Namespaces::NONE, None)? {
        Forked::Child => {
            drop(ours);
            let _ = close_all_but(&[client.as_fd(), theirs.as_fd()]);
            // Until the other process has let go of the client: it must not be the last.
            let mut fds = [PollFd::new(&theirs, PollFlags::IN)];
            while matches!(poll(&mut fds, None), Err(Errno::INTR)) {}
            let _ = receive(theirs.as_fd(), false, 1, 0);
            while pass(client.as_fd(), theirs.as_fd()).is_ok() {}
            exit_now(0)
        }
        Forked::Parent { pid, .. } => {
            remember(pid);
            drop(theirs);
            drop(client);
            send(&ours, b"!", SendFlags::NOSIGNAL)?;
            Ok(ours)
        }
    }
}

/// Passes what has come on, from either side. An error ends it.
fn pass(client: BorrowedFd<'_>, supervisor: BorrowedFd<'_>) -> io::Result<()> {
    let mut fds = [
        PollFd::from_borrowed_fd(client, PollFlags::IN),
        PollFd::from_borrowed_fd(supervisor, PollFlags::IN),
    ];
    match poll(&mut fds, None) {
        Ok(_) => {}
        Err(Errno::INTR) => return Ok(()),
        Err(error) => return Err(error.into()),
    }
    let end = || io::Error::from(io::ErrorKind::UnexpectedEof);
    // What the supervisor says last comes through, however the client ends.
    if !fds[1].revents().is_empty()
        && let Some(packet) = receive(supervisor, false, LONGEST, 1)?
    {
        match packet.descriptors.first() {
            _ if packet.bytes.is_empty() => return Err(end()),
            Some(memory) => send_with(client, &packet.bytes, memory.as_fd())?,
            None => send(
                client,
                &packet.bytes,
                SendFlags::NOSIGNAL | SendFlags::DONTWAIT,
            )
            .map(drop)?,
        }
        return Ok(());
    }
    if !fds[0].revents().is_empty()
        && let Some(packet) = receive(client, false, LONGEST, MOST)?
    {
        if packet.bytes.is_empty() || packet.truncated || !packet.descriptors.is_empty() {
            return Err(end());
        }
        send(supervisor, &packet.bytes, SendFlags::NOSIGNAL).map(drop)?;
    }
    Ok(())
}
