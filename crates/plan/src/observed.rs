//! System calls that say what a command uses, for runs that are observed: which of their
//! arguments name a file, and how it is used.
//!
//! Nothing is decided by what is read there. The caller can change the memory behind an argument
//! at any time; the cage holds it as it would hold it unobserved.

use ironcage_policy::syscalls;

/// How a call uses what it names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Touch {
    /// It looks at it: whether it is there, its size and times.
    Look,
    /// It reads it.
    Read,
    /// It makes, changes or removes it.
    Write,
    /// It executes it.
    Execute,
    /// It opens it, and this argument has the flags.
    Open(u8),
    /// It opens it, and this argument is the address of the flags.
    OpenHow(u8),
    /// It connects to it: the argument is the address of a socket's address, the next its length.
    Connect,
}

/// One thing that a call names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Named {
    /// The argument with the directory that a relative path begins in; `None` is the working
    /// directory.
    pub at: Option<u8>,
    /// The argument with the address of the path.
    pub path: u8,
    /// How it is used.
    pub touch: Touch,
}

const fn here(path: u8, touch: Touch) -> Named {
    Named {
        at: None,
        path,
        touch,
    }
}

const fn at(directory: u8, touch: Touch) -> Named {
    Named {
        at: Some(directory),
        path: directory + 1,
        touch,
    }
}

const LOOK: &[Named] = &[here(0, Touch::Look)];
const LOOK_AT: &[Named] = &[at(0, Touch::Look)];
const WRITE: &[Named] = &[here(0, Touch::Write)];
const WRITE_AT: &[Named] = &[at(0, Touch::Write)];

const CALLS: &[(&str, &[Named])] = &[
    ("open", &[here(0, Touch::Open(1))]),
    ("openat", &[at(0, Touch::Open(2))]),
    ("openat2", &[at(0, Touch::OpenHow(2))]),
    ("creat", WRITE),
    ("execve", &[here(0, Touch::Execute)]),
    ("execveat", &[at(0, Touch::Execute)]),
    ("stat", LOOK),
    ("lstat", LOOK),
    ("access", LOOK),
    ("chdir", LOOK),
    ("readlink", LOOK),
    ("statfs", LOOK),
    ("getxattr", LOOK),
    ("listxattr", LOOK),
    ("newfstatat", LOOK_AT),
    ("statx", LOOK_AT),
    ("faccessat", LOOK_AT),
    ("faccessat2", LOOK_AT),
    ("readlinkat", LOOK_AT),
    ("inotify_add_watch", &[here(1, Touch::Read)]),
    ("mkdir", WRITE),
    ("rmdir", WRITE),
    ("unlink", WRITE),
    ("truncate", WRITE),
    ("chown", WRITE),
    ("lchown", WRITE),
    ("utime", WRITE),
    ("utimes", WRITE),
    ("mkdirat", WRITE_AT),
    ("unlinkat", WRITE_AT),
    ("fchownat", WRITE_AT),
    ("utimensat", WRITE_AT),
    ("futimesat", WRITE_AT),
    ("rename", &[here(0, Touch::Write), here(1, Touch::Write)]),
    ("renameat", &[at(0, Touch::Write), at(2, Touch::Write)]),
    ("renameat2", &[at(0, Touch::Write), at(2, Touch::Write)]),
    ("link", &[here(0, Touch::Read), here(1, Touch::Write)]),
    ("linkat", &[at(0, Touch::Read), at(2, Touch::Write)]),
    ("symlink", &[here(1, Touch::Write)]),
    ("symlinkat", &[at(1, Touch::Write)]),
    ("connect", &[here(1, Touch::Connect)]),
];

/// What a system call names that is observed; `None` where it names nothing.
pub fn call(number: u32) -> Option<&'static [Named]> {
    let name = syscalls::name(number)?;
    let found = CALLS.iter().find(|(known, _)| *known == name)?;
    Some(found.1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use ironcage_policy::syscalls::SyscallAction;

    #[test]
    fn every_call_of_the_table_is_one_and_is_let_through_by_its_number() {
        let list = syscalls::list("standard").unwrap();
        for (name, named) in CALLS {
            let number = syscalls::number(name).unwrap_or_else(|| panic!("{name}"));
            assert_eq!(call(number).unwrap(), *named);
            let rule = list.rule(name).unwrap_or_else(|| panic!("{name}"));
            assert!(matches!(rule.action, SyscallAction::Allow), "{name}");
        }
        assert_eq!(call(syscalls::number("read").unwrap()), None);
    }
}
