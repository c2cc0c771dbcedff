//! System V IPC and POSIX message queues: canaries outside, attempts inside.

use super::{checked, last_errno};
use rustix::io::Errno;
use std::ffi::CStr;

/// Makes a shared memory segment that holds `content`; gives its id.
pub fn shared_memory_create(key: i32, content: &[u8]) -> Result<i32, Errno> {
    let flags = libc::IPC_CREAT | libc::IPC_EXCL | 0o600;
    // SAFETY: shmget takes numbers only.
    let id = checked(unsafe { libc::shmget(key, content.len().max(1), flags) }.into())? as i32;
    // SAFETY: a null address lets the kernel choose; the mapping is private to this function.
    let memory = unsafe { libc::shmat(id, std::ptr::null(), 0) };
    if memory as isize == -1 {
        return Err(last_errno());
    }
    // SAFETY: the segment was made with at least this length and nothing else refers to it.
    unsafe { std::ptr::copy_nonoverlapping(content.as_ptr(), memory.cast(), content.len()) };
    // SAFETY: the address came from shmat and is not used afterwards.
    checked(unsafe { libc::shmdt(memory) }.into())?;
    Ok(id)
}

/// Looks for a segment by key; gives its id.
pub fn shared_memory_find(key: i32) -> Result<i32, Errno> {
    // SAFETY: shmget takes numbers only.
    checked(unsafe { libc::shmget(key, 0, 0) }.into()).map(|id| id as i32)
}

/// Reads `length` bytes of a segment.
pub fn shared_memory_read(id: i32, length: usize) -> Result<Vec<u8>, Errno> {
    // SAFETY: an all-zero shmid_ds is a valid value of that plain C struct.
    let mut info: libc::shmid_ds = unsafe { std::mem::zeroed() };
    // SAFETY: info is a valid, writable shmid_ds.
    checked(unsafe { libc::shmctl(id, libc::IPC_STAT, &raw mut info) }.into())?;
    // SAFETY: a null address lets the kernel choose; read-only.
    let memory = unsafe { libc::shmat(id, std::ptr::null(), libc::SHM_RDONLY) };
    if memory as isize == -1 {
        return Err(last_errno());
    }
    let mut content = vec![0; length.min(info.shm_segsz)];
    // SAFETY: the segment is at least as long as `content`.
    unsafe { std::ptr::copy_nonoverlapping(memory.cast(), content.as_mut_ptr(), content.len()) };
    // SAFETY: the address came from shmat and is not used afterwards.
    checked(unsafe { libc::shmdt(memory) }.into())?;
    Ok(content)
}

/// Removes a segment.
pub fn shared_memory_remove(id: i32) -> Result<(), Errno> {
    // SAFETY: IPC_RMID ignores the buffer.
    checked(unsafe { libc::shmctl(id, libc::IPC_RMID, std::ptr::null_mut()) }.into()).map(drop)
}

/// Makes a System V message queue; gives its id.
pub fn sysv_queue_create(key: i32) -> Result<i32, Errno> {
    // SAFETY: msgget takes numbers only.
    checked(unsafe { libc::msgget(key, libc::IPC_CREAT | libc::IPC_EXCL | 0o600) }.into())
        .map(|id| id as i32)
}

/// Looks for a System V message queue by key; gives its id.
pub fn sysv_queue_find(key: i32) -> Result<i32, Errno> {
    // SAFETY: msgget takes numbers only.
    checked(unsafe { libc::msgget(key, 0) }.into()).map(|id| id as i32)
}

/// Removes a System V message queue.
pub fn sysv_queue_remove(id: i32) -> Result<(), Errno> {
    // SAFETY: IPC_RMID ignores the buffer.
    checked(unsafe { libc::msgctl(id, libc::IPC_RMID, std::ptr::null_mut()) }.into()).map(drop)
}

const MESSAGE_SIZE: usize = 128;

/// Makes a POSIX message queue (the name begins with a slash) that holds a message several times.
pub fn message_queue_create(name: &CStr, message: &[u8], copies: u8) -> Result<(), Errno> {
    // SAFETY: an all-zero mq_attr is a valid value of that plain C struct.
    let mut attributes: libc::mq_attr = unsafe { std::mem::zeroed() };
    attributes.mq_maxmsg = copies.max(1).into();
    attributes.mq_msgsize = MESSAGE_SIZE as libc::c_long;
    let flags = libc::O_CREAT | libc::O_EXCL | libc::O_WRONLY;
    // SAFETY: the name is a C string, the attributes are valid for the call.
    let queue = unsafe { libc::mq_open(name.as_ptr(), flags, 0o600, &raw mut attributes) };
    checked(queue.into())?;
    let mut sent = Ok(0);
    for _ in 0..copies {
        // SAFETY: the message is valid for its length.
        let answer = unsafe { libc::mq_send(queue, message.as_ptr().cast(), message.len(), 0) };
        sent = sent.and(checked(answer.into()));
    }
    // SAFETY: the queue's descriptor was opened above and is not used afterwards.
    checked(unsafe { libc::mq_close(queue) }.into())?;
    sent.map(drop)
}

/// Opens a POSIX message queue and takes one message.
pub fn message_queue_open(name: &CStr) -> Result<Vec<u8>, Errno> {
    let flags = libc::O_RDONLY | libc::O_NONBLOCK;
    // SAFETY: the name is a C string.
    let queue = unsafe { libc::mq_open(name.as_ptr(), flags) };
    checked(queue.into())?;
    let mut buffer = vec![0u8; MESSAGE_SIZE];
    let priority = std::ptr::null_mut();
    // SAFETY: the buffer has the queue's message size.
    let length =
        unsafe { libc::mq_receive(queue, buffer.as_mut_ptr().cast(), MESSAGE_SIZE, priority) };
    let received = checked(length as libc::c_long);
    // SAFETY: the queue's descriptor was opened above and is not used afterwards.
    checked(unsafe { libc::mq_close(queue) }.into())?;
    buffer.truncate(usize::try_from(received?).unwrap_or(0));
    Ok(buffer)
}

/// Removes a POSIX message queue.
pub fn message_queue_unlink(name: &CStr) -> Result<(), Errno> {
    // SAFETY: the name is a C string.
    checked(unsafe { libc::mq_unlink(name.as_ptr()) }.into()).map(drop)
}
