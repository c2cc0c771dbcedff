//! Names of error numbers and signals, as manuals write them.

use ironcage_sys::rustix::io::Errno;
use std::io;

/// `EPERM` rather than a sentence.
pub(crate) fn name(errno: Errno) -> String {
    let known = match errno {
        Errno::PERM => "EPERM",
        Errno::NOENT => "ENOENT",
        Errno::SRCH => "ESRCH",
        Errno::INTR => "EINTR",
        Errno::IO => "EIO",
        Errno::NXIO => "ENXIO",
        Errno::BADF => "EBADF",
        Errno::CHILD => "ECHILD",
        Errno::AGAIN => "EAGAIN",
        Errno::NOMEM => "ENOMEM",
        Errno::ACCESS => "EACCES",
        Errno::FAULT => "EFAULT",
        Errno::BUSY => "EBUSY",
        Errno::EXIST => "EEXIST",
        Errno::XDEV => "EXDEV",
        Errno::NODEV => "ENODEV",
        Errno::NOTDIR => "ENOTDIR",
        Errno::ISDIR => "EISDIR",
        Errno::INVAL => "EINVAL",
        Errno::MFILE => "EMFILE",
        Errno::NOTTY => "ENOTTY",
        Errno::TXTBSY => "ETXTBSY",
        Errno::FBIG => "EFBIG",
        Errno::NOSPC => "ENOSPC",
        Errno::SPIPE => "ESPIPE",
        Errno::ROFS => "EROFS",
        Errno::PIPE => "EPIPE",
        Errno::NAMETOOLONG => "ENAMETOOLONG",
        Errno::NOSYS => "ENOSYS",
        Errno::NOTEMPTY => "ENOTEMPTY",
        Errno::LOOP => "ELOOP",
        Errno::NOTSOCK => "ENOTSOCK",
        Errno::PROTONOSUPPORT => "EPROTONOSUPPORT",
        Errno::SOCKTNOSUPPORT => "ESOCKTNOSUPPORT",
        Errno::OPNOTSUPP => "EOPNOTSUPP",
        Errno::AFNOSUPPORT => "EAFNOSUPPORT",
        Errno::ADDRNOTAVAIL => "EADDRNOTAVAIL",
        Errno::NETUNREACH => "ENETUNREACH",
        Errno::CONNRESET => "ECONNRESET",
        Errno::NOTCONN => "ENOTCONN",
        Errno::TIMEDOUT => "ETIMEDOUT",
        Errno::CONNREFUSED => "ECONNREFUSED",
        Errno::HOSTUNREACH => "EHOSTUNREACH",
        Errno::STALE => "ESTALE",
        Errno::DQUOT => "EDQUOT",
        Errno::NOKEY => "ENOKEY",
        Errno::USERS => "EUSERS",
        other => return format!("errno {}", other.raw_os_error()),
    };
    known.to_owned()
}

/// The name of what the kernel answered, or the text of an error that is not its.
pub(crate) fn of(error: &io::Error) -> String {
    match error.raw_os_error() {
        Some(raw) => name(Errno::from_raw_os_error(raw)),
        None => error.kind().to_string(),
    }
}

/// `SIGSYS` rather than 31.
pub(crate) fn signal(number: i32) -> String {
    let known = match number {
        1 => "SIGHUP",
        2 => "SIGINT",
        6 => "SIGABRT",
        9 => "SIGKILL",
        11 => "SIGSEGV",
        13 => "SIGPIPE",
        15 => "SIGTERM",
        31 => "SIGSYS",
        other => return format!("signal {other}"),
    };
    known.to_owned()
}
