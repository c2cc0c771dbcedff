//! io_uring: work that the kernel does for a process without its making system calls.

use super::checked;
use rustix::io::Errno;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

#[repr(C)]
#[derive(Default)]
struct Offsets {
    head: u32,
    tail: u32,
    ring_mask: u32,
    ring_entries: u32,
    /// `flags` of the submission ring, `overflow` of the completion ring.
    fifth: u32,
    /// `dropped` of the submission ring, `cqes` of the completion ring.
    sixth: u32,
    /// `array` of the submission ring, `flags` of the completion ring.
    seventh: u32,
    reserved: u32,
    user_address: u64,
}

#[repr(C)]
#[derive(Default)]
struct Parameters {
    sq_entries: u32,
    cq_entries: u32,
    flags: u32,
    sq_thread_cpu: u32,
    sq_thread_idle: u32,
    features: u32,
    wq_fd: u32,
    reserved: [u32; 3],
    sq: Offsets,
    cq: Offsets,
}

#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Entry {
    opcode: u8,
    flags: u8,
    ioprio: u16,
    fd: i32,
    offset: u64,
    address: u64,
    length: u32,
    operation_flags: u32,
    user_data: u64,
    padding: [u64; 3],
}

fn setup(parameters: &mut Parameters) -> Result<OwnedFd, Errno> {
    let pointer: *mut Parameters = parameters;
    // SAFETY: the kernel reads and writes one io_uring_params.
    let fd = checked(unsafe { libc::syscall(libc::SYS_io_uring_setup, 4, pointer) })? as i32;
    // SAFETY: the kernel has just handed out this descriptor to us alone.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Makes a ring.
pub fn io_uring_setup() -> Result<OwnedFd, Errno> {
    setup(&mut Parameters::default())
}

struct Ring {
    fd: OwnedFd,
    parameters: Parameters,
    submission: *mut u8,
    completion: *mut u8,
    entries: *mut Entry,
}

impl Ring {
    fn new() -> Result<Ring, Errno> {
        let mut parameters = Parameters::default();
        let fd = setup(&mut parameters)?;
        let map = |offset: i64| {
            const LENGTH: usize = 4096;
            let protection = libc::PROT_READ | libc::PROT_WRITE;
            let flags = libc::MAP_SHARED;
            // SAFETY: the kernel chooses the address; a ring of four entries fits in a page.
            let memory = unsafe {
                libc::mmap(
                    std::ptr::null_mut(),
                    LENGTH,
                    protection,
                    flags,
                    fd.as_raw_fd(),
                    offset,
                )
            };
            if memory == libc::MAP_FAILED {
                Err(super::last_errno())
            } else {
                Ok(memory)
            }
        };
        let submission = map(0)?.cast();
        let completion = map(0x800_0000)?.cast();
        let entries = map(0x1000_0000)?.cast();
        Ok(Ring {
            fd,
            parameters,
            submission,
            completion,
            entries,
        })
    }

    fn word(base: *mut u8, offset: u32) -> *mut u32 {
        base.wrapping_add(offset as usize).cast()
    }

    /// Carries out one entry and gives its result. Entries are used in order, four at most.
    fn run(&mut self, entry: Entry, index: u32) -> Result<i32, Errno> {
        let slot = self.entries.wrapping_add(index as usize);
        // SAFETY: the entry array was mapped with room for four entries.
        unsafe { slot.write_volatile(entry) };
        let array = Self::word(self.submission, self.parameters.sq.seventh + 4 * index);
        // SAFETY: the offset of the index array was given by the kernel for this mapping.
        unsafe { array.write_volatile(index) };
        let tail = Self::word(self.submission, self.parameters.sq.tail);
        std::sync::atomic::fence(std::sync::atomic::Ordering::SeqCst);
        // SAFETY: the offset of the tail was given by the kernel for this mapping.
        unsafe { tail.write_volatile(index + 1) };
        std::sync::atomic::fence(std::sync::atomic::Ordering::SeqCst);
        // SAFETY: io_uring_enter takes numbers here and no signal mask.
        let entered =
            unsafe { libc::syscall(libc::SYS_io_uring_enter, self.fd.as_raw_fd(), 1, 1, 1, 0, 0) };
        checked(entered)?;
        // A completion is user_data (8 bytes), result (4), flags (4).
        let result = Self::word(self.completion, self.parameters.cq.sixth + 16 * index + 8);
        // SAFETY: the offset of the completions was given by the kernel for this mapping.
        let value = unsafe { result.read_volatile() } as i32;
        if value < 0 {
            Err(Errno::from_raw_os_error(-value))
        } else {
            Ok(value)
        }
    }
}

/// Makes a Unix socket and connects it to an abstract name, both by ring operations, so that
/// neither `socket` nor `connect` is ever called.
pub fn io_uring_connect_abstract(name: &[u8]) -> Result<(), Errno> {
    const OP_CONNECT: u8 = 16;
    const OP_SOCKET: u8 = 45;
    let mut ring = Ring::new()?;
    let entry = Entry {
        opcode: OP_SOCKET,
        fd: libc::AF_UNIX,
        offset: libc::SOCK_STREAM as u64,
        ..Entry::default()
    };
    let fd = ring.run(entry, 0)?;
    // SAFETY: the kernel has just handed out this descriptor to us alone.
    let socket = unsafe { OwnedFd::from_raw_fd(fd) };
    // SAFETY: an all-zero sockaddr_un is a valid value of that plain C struct.
    let mut address: libc::sockaddr_un = unsafe { std::mem::zeroed() };
    address.sun_family = libc::AF_UNIX as u16;
    let room = address.sun_path.len() - 1;
    for (slot, byte) in address.sun_path[1..].iter_mut().zip(name) {
        *slot = *byte as libc::c_char;
    }
    let length = std::mem::offset_of!(libc::sockaddr_un, sun_path) + 1 + name.len().min(room);
    let entry = Entry {
        opcode: OP_CONNECT,
        fd: socket.as_raw_fd(),
        offset: length as u64,
        address: (&raw const address) as u64,
        ..Entry::default()
    };
    ring.run(entry, 1).map(drop)
}
