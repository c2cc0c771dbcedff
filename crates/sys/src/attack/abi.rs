//! The other doors into the kernel: 32-bit and x32 calls from a 64-bit process.

use rustix::io::Errno;

/// `int 0x80` with the 32-bit number of getpid; a filter that checks the architecture kills it.
///
/// Preconditions: run in a child of its own, as the answer may be the death of the caller.
pub fn int80_getpid() -> Result<i64, Errno> {
    #[cfg(target_arch = "x86_64")]
    {
        const GETPID_32: u64 = 20;
        let answer: u64;
        // SAFETY: getpid takes no argument and writes no memory; int 0x80 clobbers r8..r11.
        unsafe {
            std::arch::asm!("int 0x80", inlateout("rax") GETPID_32 => answer,
                out("r8") _, out("r9") _, out("r10") _, out("r11") _);
        }
        // The 32-bit entry sign-extends errors to 64 bits only in the low half.
        let signed = i64::from(answer as u32 as i32);
        if (-4095..0).contains(&signed) {
            return Err(Errno::from_raw_os_error(-signed as i32));
        }
        Ok(signed)
    }
    #[cfg(not(target_arch = "x86_64"))]
    Err(Errno::NOSYS)
}

/// getpid by its x32 number.
///
/// Preconditions: run in a child of its own, as the answer may be the death of the caller.
pub fn x32_getpid() -> Result<i64, Errno> {
    #[cfg(target_arch = "x86_64")]
    {
        const X32_BIT: libc::c_long = 0x4000_0000;
        // SAFETY: getpid takes no argument and writes no memory.
        super::checked(unsafe { libc::syscall(X32_BIT | libc::SYS_getpid) })
    }
    #[cfg(not(target_arch = "x86_64"))]
    Err(Errno::NOSYS)
}
