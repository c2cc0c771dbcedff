//! What PID 1 is to execute, and how that travels to it: as bytes in a memfd, because arguments
//! and environment may be longer than a packet.

use ironcage_plan::Command;
use ironcage_sys::rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, fstat, memfd_create};
use ironcage_sys::rustix::io::{Errno, pread, write};
use ironcage_sys::spawn::Image;
use std::ffi::CString;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;

/// Longest order: more than a kernel takes as arguments and environment.
const MAX: usize = 8 * 1024 * 1024;

/// A program to execute.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Order {
    /// Paths to try for the program.
    pub candidates: Vec<CString>,
    pub argv: Vec<CString>,
    pub envp: Vec<CString>,
    /// Its working directory; none for PID 1's own.
    pub cwd: Vec<CString>,
}

fn strings<'a>(items: impl Iterator<Item = &'a [u8]>) -> io::Result<Vec<CString>> {
    items
        .map(|bytes| CString::new(bytes).map_err(io::Error::other))
        .collect()
}

impl Order {
    /// The order to execute a planned command, in PID 1's working directory.
    pub(crate) fn here(command: &Command) -> io::Result<Order> {
        let entries: Vec<Vec<u8>> = command
            .env
            .iter()
            .map(|item| {
                let mut entry = item.what.name.as_bytes().to_vec();
                entry.push(b'=');
                entry.extend(item.what.value.as_bytes());
                entry
            })
            .collect();
        Ok(Order {
            candidates: strings(command.candidates.iter().map(|p| p.as_os_str().as_bytes()))?,
            argv: strings(command.argv.iter().map(|word| word.as_bytes()))?,
            envp: strings(entries.iter().map(Vec::as_slice))?,
            cwd: Vec::new(),
        })
    }

    /// The same, in the command's own working directory.
    pub(crate) fn there(command: &Command) -> io::Result<Order> {
        let mut order = Order::here(command)?;
        order.cwd = strings(std::iter::once(command.cwd.as_os_str().as_bytes()))?;
        Ok(order)
    }

    /// What is to be executed, once it is known where.
    pub(crate) fn image(self, path: CString) -> Image {
        Image {
            path,
            argv: self.argv,
            envp: self.envp,
            cwd: self.cwd.into_iter().next(),
        }
    }

    fn lists(&self) -> [&Vec<CString>; 4] {
        [&self.candidates, &self.argv, &self.envp, &self.cwd]
    }

    fn encode(&self) -> io::Result<Vec<u8>> {
        let mut bytes = Vec::with_capacity(4096);
        let number = |length: usize| {
            u32::try_from(length)
                .map(u32::to_le_bytes)
                .map_err(io::Error::other)
        };
        for list in self.lists() {
            bytes.extend(number(list.len())?);
            for item in list {
                bytes.extend(number(item.as_bytes().len())?);
                bytes.extend(item.as_bytes());
            }
        }
        Ok(bytes)
    }

    fn decode(mut bytes: &[u8]) -> Option<Order> {
        let rest = &mut bytes;
        let order = Order {
            candidates: take_list(rest)?,
            argv: take_list(rest)?,
            envp: take_list(rest)?,
            cwd: take_list(rest)?,
        };
        rest.is_empty().then_some(order)
    }

    /// Puts the order into a memfd that does not change any more.
    pub(crate) fn seal(&self) -> io::Result<OwnedFd> {
        seal_bytes(&self.encode()?)
    }

    /// PID 1's side: reads an order.
    pub(crate) fn open(memory: &OwnedFd) -> Result<Order, Errno> {
        Order::decode(&read_sealed(memory)?).ok_or(Errno::INVAL)
    }
}

/// Puts bytes into a memfd that does not change any more.
pub(crate) fn seal_bytes(bytes: &[u8]) -> io::Result<OwnedFd> {
    if bytes.len() > MAX {
        return Err(Errno::TOOBIG.into());
    }
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let memory = memfd_create("ironcage-order", flags)?;
    let mut rest = bytes;
    while !rest.is_empty() {
        let count = write(&memory, rest)?;
        rest = rest.get(count..).unwrap_or_default();
    }
    let seals = SealFlags::SHRINK | SealFlags::GROW | SealFlags::WRITE | SealFlags::SEAL;
    fcntl_add_seals(&memory, seals)?;
    Ok(memory)
}

/// PID 1's side: reads them.
pub(crate) fn read_sealed(memory: &OwnedFd) -> Result<Vec<u8>, Errno> {
    let size = usize::try_from(fstat(memory)?.st_size).map_err(|_| Errno::TOOBIG)?;
    if size > MAX {
        return Err(Errno::TOOBIG);
    }
    read_all(memory.as_fd(), size)
}

fn read_all(memory: BorrowedFd<'_>, size: usize) -> Result<Vec<u8>, Errno> {
    let mut bytes = vec![0; size];
    let mut filled = 0;
    while let Some(rest) = bytes.get_mut(filled..).filter(|rest| !rest.is_empty()) {
        match pread(memory, rest, filled as u64)? {
            0 => return Err(Errno::INVAL),
            count => filled += count,
        }
    }
    Ok(bytes)
}

fn take_number(bytes: &mut &[u8]) -> Option<usize> {
    let (number, rest) = bytes.split_first_chunk::<4>()?;
    *bytes = rest;
    usize::try_from(u32::from_le_bytes(*number)).ok()
}

fn take_list(bytes: &mut &[u8]) -> Option<Vec<CString>> {
    let count = take_number(bytes)?;
    // Each takes four bytes at least: a count that promises more is wrong.
    if count > bytes.len() / 4 {
        return None;
    }
    let mut list = Vec::with_capacity(count);
    for _ in 0..count {
        let length = take_number(bytes)?;
        let (item, rest) = bytes.split_at_checked(length)?;
        *bytes = rest;
        list.push(CString::new(item).ok()?);
    }
    Some(list)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn order() -> Order {
        let list = |items: &[&str]| items.iter().map(|i| CString::new(*i).unwrap()).collect();
        Order {
            candidates: list(&["/bin/x", "/usr/bin/x"]),
            argv: list(&["x", "", &"long".repeat(100_000)]),
            envp: list(&["A=1"]),
            cwd: list(&["/"]),
        }
    }

    #[test]
    fn an_order_arrives_as_it_was_sent_however_long() {
        let memory = order().seal().unwrap();
        assert_eq!(Order::open(&memory).unwrap(), order());
    }

    #[test]
    fn an_order_that_was_cut_or_that_promises_more_than_it_has_is_refused() {
        let bytes = order().encode().unwrap();
        for length in [0, 3, 4, 9, 30, bytes.len() - 1] {
            assert_eq!(Order::decode(&bytes[..length]), None, "{length}");
        }
        let mut more = bytes.clone();
        more.push(0);
        assert_eq!(Order::decode(&more), None);
        let mut many = bytes;
        many[..4].copy_from_slice(&u32::MAX.to_le_bytes());
        assert_eq!(Order::decode(&many), None);
    }
}
