//! Attempts of the containment suite from inside a sandbox, as safe functions.
//!
//! Every function makes one attempt that a hostile program would make and says what the
//! kernel answered. None of them is used to build a cage. They touch only what the caller
//! names; nothing here walks, guesses or repeats.

mod abi;
pub mod device;
mod fork;
mod ipc;
mod mount;
mod net;
mod process;
mod ring;
mod surface;
mod sweep;
mod tty;

/// The address family of kernel cryptography, for which rustix has no name.
pub const AF_ALG: i32 = libc::AF_ALG;

pub use abi::{int80_getpid, x32_getpid};
pub use fork::{ChildEnd, CollectedChild, fork_run, fork_start, run_as_init, wait_for};
pub use ipc::{
    message_queue_create, message_queue_open, message_queue_unlink, shared_memory_create,
    shared_memory_find, shared_memory_read, shared_memory_remove, sysv_queue_create,
    sysv_queue_find, sysv_queue_remove,
};
pub use mount::{
    FileHandle, bind_mount, clear_read_only, file_handle, fs_context_open, loopback_device_number,
    mount_fs, open_by_handle, remount_writable, unmount_detached,
};
pub use net::{add_loopback_address, loopback_up, netlink_socket, raw_frames, socket_of};
pub use process::{
    SignalSeen, block_signals, core_limit_raise, crash, die_with_parent, duplicate, hear_of_parent,
    kill_everyone, leak_memory, memory_address, ptrace_change_syscall, ptrace_detach, ptrace_seize,
    ptrace_seize_suspending_seccomp, read_memory, unblock_signals, wait_signal,
};
pub use ring::{io_uring_connect_abstract, io_uring_setup};
pub use surface::{
    SharedMapping, bpf_map_create, clone3_user_namespace, enter_namespace, kernel_log_size,
    keyctl_session_keyring, modify_ldt_read, nice_raise, perf_event_open_self, personality_set,
    realtime_schedule, run_from_memfd, share_nothing, touch_memory, userfault_descriptor,
    write_through_mapping,
};
pub use sweep::{SWEEP_END, SweepAnswer, sweep_skips, try_syscall};
pub use tty::{console_paste, drain_input, make_raw, push_input, steal_terminal};

use rustix::io::Errno;

/// The error that the last failed libc call left behind.
fn last_errno() -> Errno {
    let raw = std::io::Error::last_os_error().raw_os_error();
    raw.map_or(Errno::IO, Errno::from_raw_os_error)
}

/// A libc return value as a result: minus one is the error left in errno.
fn checked(value: libc::c_long) -> Result<libc::c_long, Errno> {
    if value == -1 {
        Err(last_errno())
    } else {
        Ok(value)
    }
}
