//! Where a program begins, without what Rust's standard library does before `main`.
//!
//! That is some twenty system calls: it reads `/proc/self/maps` to find the guard page of the
//! stack, and makes a second stack for a handler that prints a line when the first one overflows.
//! The kernel ends an overflowing program by that guard page all the same. Two of the calls are
//! worth having and are made here.

use std::ffi::{CStr, OsString, c_char, c_int};
use std::os::unix::ffi::OsStringExt as _;
use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};

/// Makes `$main`, a `fn() -> u8` that returns the exit status, the program. The crate says
/// `#![no_main]`, but not in tests. Its arguments are in [`arguments`]: where the C library is
/// musl, the standard library does not have them.
#[macro_export]
macro_rules! entry {
    ($main:path) => {
        #[cfg(not(test))]
        #[unsafe(no_mangle)]
        extern "C" fn main(
            count: ::std::ffi::c_int,
            words: *const *const ::std::ffi::c_char,
        ) -> ::std::ffi::c_int {
            // SAFETY: as the C library gives them to `main`.
            unsafe { $crate::entry::run($main, count, words) }
        }
    };
}

/// Runs a program to its end. For [`entry!`](crate::entry!) alone.
///
/// # Safety
/// At `words` are `count` pointers to strings that live as long as the process.
#[doc(hidden)]
pub unsafe fn run(main: fn() -> u8, count: c_int, words: *const *const c_char) -> c_int {
    open_standard_streams();
    // SAFETY: no handler, no memory; the only thread has no other disposition yet.
    unsafe { libc::signal(libc::SIGPIPE, libc::SIG_IGN) };
    WORDS.store(words.cast_mut(), Ordering::Relaxed);
    COUNT.store(usize::try_from(count).unwrap_or(0), Ordering::Relaxed);
    // Flushes the standard output, which a return to the C library would not.
    std::process::exit(main().into())
}

static COUNT: AtomicUsize = AtomicUsize::new(0);
static WORDS: AtomicPtr<*const c_char> = AtomicPtr::new(std::ptr::null_mut());

/// The arguments of the program, its own name first.
pub fn arguments() -> Vec<OsString> {
    let words = WORDS.load(Ordering::Relaxed);
    let word = |index: usize| {
        // SAFETY: within the `COUNT` pointers that `run` was given.
        let place = unsafe { words.add(index) };
        // SAFETY: as above.
        let word = unsafe { *place };
        // SAFETY: each is a string that ends with a zero and lives as long as the process.
        let word = unsafe { CStr::from_ptr(word) };
        OsString::from_vec(word.to_bytes().to_vec())
    };
    (0..COUNT.load(Ordering::Relaxed)).map(word).collect()
}

/// A program may be started with closed standard streams; the next file that it opened would take
/// the place of one of them, and what it prints would end up there.
fn open_standard_streams() {
    let mut streams = [0, 1, 2].map(|fd| libc::pollfd {
        fd,
        events: 0,
        revents: 0,
    });
    // SAFETY: three entries that live across the call, which waits for nothing.
    let found = unsafe { libc::poll(streams.as_mut_ptr(), 3, 0) };
    let closed = |stream: &libc::pollfd| stream.revents & libc::POLLNVAL != 0;
    // Where poll itself is refused, an open for each that is closed finds out.
    let is_closed = |stream: &libc::pollfd| match found {
        // SAFETY: plain numbers.
        ..0 => unsafe { libc::fcntl(stream.fd, libc::F_GETFD) < 0 },
        _ => closed(stream),
    };
    for stream in streams.iter().filter(|stream| is_closed(stream)) {
        // SAFETY: a constant string; the lowest free number is that of the closed stream.
        let opened = unsafe { libc::open(c"/dev/null".as_ptr(), libc::O_RDWR) };
        if opened != stream.fd {
            std::process::abort();
        }
    }
}
