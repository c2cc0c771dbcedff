//! A virtual machine that does nothing but count, to learn how fast KVM is.
//!
//! Where a hypervisor lends KVM to its guests without the hardware's help, `/dev/kvm` exists and
//! works, and the kernel of a guest is interpreted. So what counts here is code in ring 0, in 64-bit
//! mode with paging on, as the code of a kernel is.

use crate::check;
use std::ffi::CStr;
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::time::{Duration, Instant};

/// Rounds of the loop in one measurement.
pub const LOOPS: u64 = 20_000;
/// Measurements, of which the fastest counts: another process may have had the CPU meanwhile.
const TRIES: u32 = 5;

/// Numbers of linux/kvm.h: `_IO`, `_IOR` and `_IOW` of the type 0xae.
const GET_API_VERSION: libc::c_ulong = 0xae00;
const CREATE_VM: libc::c_ulong = 0xae01;
const GET_VCPU_MMAP_SIZE: libc::c_ulong = 0xae04;
const CREATE_VCPU: libc::c_ulong = 0xae41;
const SET_TSS_ADDR: libc::c_ulong = 0xae47;
const RUN: libc::c_ulong = 0xae80;
const SET_USER_MEMORY_REGION: libc::c_ulong = 0x4020_ae46;
const SET_REGS: libc::c_ulong = 0x4090_ae82;
const GET_SREGS: libc::c_ulong = 0x8138_ae83;
const SET_SREGS: libc::c_ulong = 0x4138_ae84;
const API_VERSION: i64 = 12;
const EXIT_HLT: u32 = 5;
/// Where `struct kvm_run` has the reason of an exit.
const EXIT_REASON: usize = 8;

/// The guest's memory: three page tables, then the page with the code.
const PAGE: usize = 4096;
const MEMORY: usize = 4 * PAGE;
const CODE: u64 = 3 * PAGE as u64;
/// Unused addresses, where processors without the newest virtualization keep what they need.
const TSS: libc::c_ulong = 0xfffb_d000;

/// `dec rcx; jnz` back to it; `hlt`.
const LOOP: [u8; 6] = [0x48, 0xff, 0xc9, 0x75, 0xfb, 0xf4];

/// `struct kvm_userspace_memory_region`.
#[repr(C)]
struct GuestMemory {
    slot: u32,
    flags: u32,
    guest: u64,
    size: u64,
    address: u64,
}

/// `struct kvm_regs`: rax, rbx, rcx and so on; then rip and rflags.
type Registers = [u64; 18];
const RCX: usize = 2;
const RIP: usize = 16;
const RFLAGS: usize = 17;

/// `struct kvm_segment`.
#[repr(C)]
#[derive(Clone, Copy)]
struct SegmentRegister {
    base: u64,
    limit: u32,
    selector: u16,
    kind: u8,
    present: u8,
    privilege: u8,
    default_size: u8,
    code_or_data: u8,
    long: u8,
    granularity: u8,
    rest: [u8; 3],
}

/// ds, es, fs, gs and ss, which follow cs.
const DATA_SEGMENTS: usize = 5;

/// `struct kvm_sregs`.
#[repr(C)]
struct SystemRegisters {
    /// cs, ds, es, fs, gs, ss, tr and ldt.
    segments: [SegmentRegister; 8],
    tables: [u64; 4],
    /// cr0, cr2, cr3, cr4, cr8, efer and the base of the interrupt controller.
    control: [u64; 7],
    interrupts: [u64; 4],
}

const _: () = assert!(size_of::<GuestMemory>() == 32);
const _: () = assert!(size_of::<Registers>() == 144);
const _: () = assert!(size_of::<SystemRegisters>() == 312);

/// How long [`LOOPS`] rounds take in ring 0 of a guest, measured in a child that is killed when
/// the time is up: `None`.
///
/// # Errors
/// There is no KVM, it may not be used, or it does not run the guest.
pub fn measure(limit: Duration) -> io::Result<Option<Duration>> {
    let (reader, writer) = pipe()?;
    // SAFETY: fork shares no memory with the child, which runs `child` only: that allocates
    // nothing, takes no lock and never returns.
    let pid = unsafe { libc::fork() };
    if pid < 0 {
        return Err(io::Error::last_os_error());
    }
    if pid == 0 {
        child(writer.as_raw_fd());
    }
    drop(writer);
    let report = receive(File::from(reader), Instant::now() + limit);
    // SAFETY: our own child, which nobody has waited for.
    unsafe { libc::kill(pid, libc::SIGKILL) };
    reap(pid);
    match report? {
        None => Ok(None),
        Some((0, nanoseconds)) => Ok(Some(Duration::from_nanos(nanoseconds))),
        Some((errno, _)) => Err(io::Error::from_raw_os_error(errno as i32)),
    }
}

/// The child's report: an error number and a time. `None` if the time is up before.
fn receive(mut reader: File, until: Instant) -> io::Result<Option<(u64, u64)>> {
    let mut report = [0_u8; 16];
    loop {
        let left = until.saturating_duration_since(Instant::now());
        let mut fd = libc::pollfd {
            fd: reader.as_raw_fd(),
            events: libc::POLLIN,
            revents: 0,
        };
        let left = libc::c_int::try_from(left.as_millis()).unwrap_or(libc::c_int::MAX);
        // SAFETY: one entry that lives across the call.
        match check(i64::from(unsafe { libc::poll(&raw mut fd, 1, left) })) {
            Ok(0) => return Ok(None),
            Ok(_) => break,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    // Written at once: a pipe does not cut what is this short.
    reader.read_exact(&mut report)?;
    let (errno, time) = report.split_at(8);
    let number = |bytes: &[u8]| bytes.try_into().map_or(0, u64::from_ne_bytes);
    Ok(Some((number(errno), number(time))))
}

fn pipe() -> io::Result<(OwnedFd, OwnedFd)> {
    let mut ends: [RawFd; 2] = [-1; 2];
    // SAFETY: the array has room for the two descriptors.
    check(i64::from(unsafe {
        libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC)
    }))?;
    // SAFETY: fresh from the kernel and owned by nobody else.
    let reader = unsafe { OwnedFd::from_raw_fd(ends[0]) };
    // SAFETY: as above.
    let writer = unsafe { OwnedFd::from_raw_fd(ends[1]) };
    Ok((reader, writer))
}

fn reap(pid: libc::pid_t) {
    loop {
        // SAFETY: a null status is allowed; waits for our own child.
        let waited = unsafe { libc::waitpid(pid, std::ptr::null_mut(), 0) };
        if waited >= 0 || io::Error::last_os_error().kind() != io::ErrorKind::Interrupted {
            return;
        }
    }
}

/// Runs in the child. Allocates nothing.
fn child(report: RawFd) -> ! {
    // SAFETY: no memory is involved. It ends with its parent, also one that is killed.
    unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) };
    let (errno, time) = match count() {
        Ok(time) => (0, u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)),
        Err(error) => (error.raw_os_error().unwrap_or(libc::EIO) as u64, 0),
    };
    let mut bytes = [0_u8; 16];
    bytes[..8].copy_from_slice(&errno.to_ne_bytes());
    bytes[8..].copy_from_slice(&time.to_ne_bytes());
    // SAFETY: sixteen bytes of a live array, to a pipe.
    unsafe { libc::write(report, bytes.as_ptr().cast(), bytes.len()) };
    // SAFETY: never returns.
    unsafe { libc::_exit(0) }
}

/// An ioctl whose argument is a number. Descriptors and mappings here go with the process.
fn ask(descriptor: RawFd, call: libc::c_ulong, argument: libc::c_ulong) -> io::Result<i64> {
    // SAFETY: none of the calls made by this function takes a pointer.
    check(i64::from(unsafe {
        libc::ioctl(descriptor, call as libc::Ioctl, argument)
    }))
}

/// An ioctl whose argument is a structure of the size that the call's number has.
fn pass<T>(descriptor: RawFd, call: libc::c_ulong, argument: &mut T) -> io::Result<()> {
    // `_IOR` and `_IOW` have the size in these bits.
    if (call >> 16) & 0x3fff != size_of::<T>() as libc::c_ulong {
        return Err(io::Error::from_raw_os_error(libc::EINVAL));
    }
    // SAFETY: the structure lives across the call, and is as large as the kernel takes it to be.
    check(i64::from(unsafe {
        libc::ioctl(
            descriptor,
            call as libc::Ioctl,
            std::ptr::from_mut(argument),
        )
    }))
    .map(drop)
}

fn map(descriptor: RawFd, length: usize) -> io::Result<*mut u8> {
    let kind = match descriptor {
        -1 => libc::MAP_ANONYMOUS | libc::MAP_PRIVATE,
        _ => libc::MAP_SHARED,
    };
    let access = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: the kernel chooses the address, so no memory that is in use is touched.
    let place = unsafe { libc::mmap(std::ptr::null_mut(), length, access, kind, descriptor, 0) };
    match place {
        libc::MAP_FAILED => Err(io::Error::last_os_error()),
        place => Ok(place.cast()),
    }
}

/// Makes the machine and lets it count.
fn count() -> io::Result<Duration> {
    const DEVICE: &CStr = c"/dev/kvm";
    // SAFETY: a C string that lives across the call.
    let kvm = unsafe { libc::open(DEVICE.as_ptr(), libc::O_RDWR | libc::O_CLOEXEC) };
    check(i64::from(kvm))?;
    if ask(kvm, GET_API_VERSION, 0)? != API_VERSION {
        return Err(io::Error::from_raw_os_error(libc::EPROTO));
    }
    let descriptor = |number: i64| number as RawFd;
    let machine = descriptor(ask(kvm, CREATE_VM, 0)?);
    ask(machine, SET_TSS_ADDR, TSS)?;
    let memory = map(-1, MEMORY)?;
    let write = |place: usize, bytes: &[u8]| {
        let place = memory.wrapping_add(place);
        // SAFETY: the callers below write within the four pages of the mapping above, which
        // nobody else knows yet.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), place, bytes.len()) };
    };
    // Present and writable; the last one is a page of 2 MiB, from address 0.
    write(0, &(PAGE as u64 | 3).to_ne_bytes());
    write(PAGE, &((2 * PAGE as u64) | 3).to_ne_bytes());
    write(2 * PAGE, &0x83_u64.to_ne_bytes());
    write(CODE as usize, &LOOP);
    let mut region = GuestMemory {
        slot: 0,
        flags: 0,
        guest: 0,
        size: MEMORY as u64,
        address: memory as u64,
    };
    pass(machine, SET_USER_MEMORY_REGION, &mut region)?;
    let processor = descriptor(ask(machine, CREATE_VCPU, 0)?);
    let length = usize::try_from(ask(kvm, GET_VCPU_MMAP_SIZE, 0)?).unwrap_or(0);
    if length < EXIT_REASON + size_of::<u32>() {
        return Err(io::Error::from_raw_os_error(libc::EPROTO));
    }
    let state = map(processor, length)?;
    enter_ring_0(processor)?;
    let mut fastest = Duration::MAX;
    for _ in 0..TRIES {
        let mut registers: Registers = [0; 18];
        registers[RCX] = LOOPS;
        registers[RIP] = CODE;
        registers[RFLAGS] = 2;
        pass(processor, SET_REGS, &mut registers)?;
        let start = Instant::now();
        while let Err(error) = ask(processor, RUN, 0) {
            if error.kind() != io::ErrorKind::Interrupted {
                return Err(error);
            }
        }
        fastest = fastest.min(start.elapsed());
        let reason = state.wrapping_add(EXIT_REASON).cast::<u32>();
        // SAFETY: within the mapping, which is that long, and aligned as the page is.
        let reason = unsafe { reason.read_volatile() };
        if reason != EXIT_HLT {
            return Err(io::Error::from_raw_os_error(libc::EIO));
        }
    }
    Ok(fastest)
}

/// 64-bit mode with paging, at the highest privilege.
fn enter_ring_0(processor: RawFd) -> io::Result<()> {
    const PROTECTED: u64 = 1;
    const EXTENSION: u64 = 1 << 4;
    const PAGING: u64 = 1 << 31;
    const PHYSICAL_ADDRESS_EXTENSION: u64 = 1 << 5;
    const LONG_MODE: u64 = (1 << 8) | (1 << 10);
    // SAFETY: integers only, for which zero is a value.
    let mut system: SystemRegisters = unsafe { std::mem::zeroed() };
    pass(processor, GET_SREGS, &mut system)?;
    let flat = SegmentRegister {
        base: 0,
        limit: u32::MAX,
        selector: 1 << 3,
        // Code that can be read and executed, and was.
        kind: 11,
        present: 1,
        privilege: 0,
        default_size: 0,
        code_or_data: 1,
        long: 1,
        granularity: 1,
        rest: [0; 3],
    };
    let data = SegmentRegister {
        selector: 2 << 3,
        // Data that can be written.
        kind: 3,
        default_size: 1,
        long: 0,
        ..flat
    };
    let [code, others @ ..] = &mut system.segments;
    *code = flat;
    for segment in others.iter_mut().take(DATA_SEGMENTS) {
        *segment = data;
    }
    let [cr0, _, cr3, cr4, _, efer, _] = &mut system.control;
    *cr0 = PROTECTED | EXTENSION | PAGING;
    *cr3 = 0;
    *cr4 = PHYSICAL_ADDRESS_EXTENSION;
    *efer = LONG_MODE;
    pass(processor, SET_SREGS, &mut system)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_guest_counts_or_the_reason_why_not_is_an_error_of_the_kernel() {
        match measure(Duration::from_secs(60)) {
            Ok(Some(time)) => assert!(time > Duration::ZERO),
            Ok(None) => eprintln!("KVM did not answer in a minute"),
            Err(error) => {
                let errno = error.raw_os_error().unwrap();
                assert!(errno != libc::EINVAL && errno != libc::EIO, "{error}");
            }
        }
    }

    #[test]
    fn a_measurement_ends_when_its_time_is_up() {
        // No time at all: what has not answered yet is killed.
        if let Ok(Some(time)) = measure(Duration::ZERO) {
            assert!(time > Duration::ZERO);
        }
    }
}
