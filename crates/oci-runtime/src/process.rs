//! From a process of this program to one of the container: identity, limits, capabilities, Landlock,
//! filters, and the program.

use crate::check::mask;
use crate::error::{Error, IoContext as _};
use crate::policy::Layers;
use crate::rootfs::{Terminal, detached};
use crate::spec::{Process, Rlimit, Spec};
use crate::{namespaces, seccomp};
use ironcage_files::{Links, read_text};
use ironcage_layers::landlock::Ruleset;
use ironcage_layers::{filter, privileges};
use ironcage_plan::seccomp::Instruction;
use ironcage_plan::{Item, WriteRights, WriteRule};
use ironcage_sys::mount::MountAttributes;
use ironcage_sys::process::{
    CapabilityMasks, close_all_from, drop_bounding_set, pass_on, set_capability_sets,
};
use ironcage_sys::rustix::fs::{
    Access, AtFlags, CWD, FileType, Gid, Mode, OFlags, Uid, accessat, fchown, fstat, openat,
};
use ironcage_sys::rustix::io::{Errno, write};
use ironcage_sys::rustix::process::{Resource, chdir, getcwd, ioctl_tiocsctty, setrlimit, umask};
use ironcage_sys::rustix::stdio::{dup2_stderr, dup2_stdin, dup2_stdout};
use ironcage_sys::rustix::thread::{
    set_keep_capabilities, set_thread_groups, set_thread_res_gid, set_thread_res_uid,
};
use std::convert::Infallible;
use std::ffi::CString;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

const LONGEST_PASSWD: u64 = 1 << 20;

/// What is put on a process, ready before anything of it is in force.
#[derive(Debug)]
pub(crate) struct Confinement {
    filters: Vec<Vec<Instruction>>,
    writes: Option<Vec<Item<WriteRule>>>,
    host_sockets: bool,
    host_processes: bool,
}

impl Confinement {
    pub(crate) fn new(spec: &Spec, layers: &Layers) -> Result<Confinement, Error> {
        let mut filters = layers.filters()?;
        if let Some(configured) = &spec.linux.seccomp {
            filters.push(seccomp::program(configured)?);
        }
        if layers.landlock && ironcage_sys::host::landlock_abi() == 0 {
            return Err(Error::refused(
                "confine the container by Landlock",
                "this kernel does not have it, or it is switched off",
            )
            .with_hint(
                "boot with lsm=landlock,..., or set `landlock = false` in the node's profile",
            ));
        }
        Ok(Confinement {
            filters,
            writes: layers.landlock.then(|| writable(spec)),
            host_sockets: !namespaces::has(spec, "network"),
            host_processes: !namespaces::has(spec, "pid"),
        })
    }

    fn ruleset(&self) -> Result<Option<Ruleset>, Error> {
        let Some(writes) = &self.writes else {
            return Ok(None);
        };
        let scopes = (self.host_sockets, self.host_processes);
        let ruleset = Ruleset::on_container_writes(writes, scopes)?;
        // Programs open their streams again by /dev/stdout, also where that is a file of the host.
        for stream in streams() {
            ruleset.allow_open_file(stream);
        }
        Ok(Some(ruleset))
    }

    fn apply(&self, ruleset: Option<Ruleset>) -> Result<(), Error> {
        if let Some(ruleset) = ruleset {
            ruleset.enforce()?;
        }
        for program in &self.filters {
            filter::install_own(program)?;
        }
        Ok(())
    }
}

fn streams() -> [BorrowedFd<'static>; 3] {
    use ironcage_sys::rustix::stdio::{stderr, stdin, stdout};
    [stdin(), stdout(), stderr()]
}

/// Where the container may write by its mounts: everywhere, or in what is mounted writable into a
/// read-only root.
fn writable(spec: &Spec) -> Vec<Item<WriteRule>> {
    let rule = |path: PathBuf| Item {
        what: WriteRule {
            path,
            rights: WriteRights::Tree,
        },
        origin: "config.json".into(),
    };
    if !spec.root.as_ref().is_some_and(|root| root.readonly) {
        return vec![rule("/".into())];
    }
    let mounts = spec.mounts.iter().filter(|mount| {
        let words: Vec<&str> = mount.options.iter().map(String::as_str).collect();
        let last = words.iter().rev().find(|word| ["ro", "rw"].contains(word));
        last != Some(&"ro")
    });
    let mut rules: Vec<_> = mounts
        .map(|mount| rule(Path::new("/").join(&mount.destination)))
        .collect();
    // Devices that this program makes lie on a tmpfs that the engine mounts there.
    if Path::new("/dev").is_dir() {
        rules.push(rule("/dev".into()));
    }
    rules
}

/// What a process needs besides its description.
#[derive(Debug)]
pub(crate) struct Surroundings<'a> {
    pub(crate) confinement: &'a Confinement,
    pub(crate) terminal: Option<Terminal>,
    /// How many descriptors from three upwards the program gets.
    pub(crate) preserved: i32,
    pub(crate) keyring: Option<&'a str>,
}

/// Becomes the program of a process. `ready` is called when nothing but the program can fail; what it
/// waits for comes before the filters.
pub(crate) fn become_program(
    process: &Process,
    surroundings: Surroundings<'_>,
    ready: impl FnOnce() -> Result<(), Error>,
) -> Result<Infallible, Error> {
    let Surroundings {
        confinement,
        terminal,
        preserved,
        keyring,
    } = surroundings;
    if let Some(name) = keyring {
        let name = CString::new(format!("_ses.{name}")).unwrap_or_default();
        match ironcage_sys::process::new_session_keyring(&name) {
            // A kernel without keys has none to leak.
            Err(error) if error.raw_os_error() == Some(Errno::NOSYS.raw_os_error()) => {}
            other => other.doing(|| "join a session keyring of its own".into())?,
        }
    }
    process.rlimits.iter().try_for_each(limit)?;
    labels(process)?;
    match terminal {
        Some(Terminal { master, slave }) => {
            drop(master);
            take_terminal(&slave)?;
        }
        None => give_streams(process.user.uid),
    }
    let ruleset = confinement.ruleset()?;
    let held = match process.no_new_privileges {
        true => Some(ruleset),
        // Without no_new_privs only a privileged process may confine itself: that is now.
        false => {
            confinement.apply(ruleset)?;
            None
        }
    };
    if process.no_new_privileges {
        privileges::no_new_privileges()?;
    }
    let cwd = &process.cwd;
    // A user may enter what root cannot, and the other way round.
    let entered = chdir(cwd);
    take_identity(process)?;
    if entered.is_err() {
        chdir(cwd).doing(|| format!("chdir to cwd ({:?}) set in config.json", cwd.display()))?;
    }
    let here = getcwd(Vec::new()).doing(|| "find the working directory".into())?;
    check_inside(cwd, here.to_bytes())?;
    let mut env = process.env.clone();
    if !env.iter().any(|pair| pair.starts_with("HOME=")) {
        env.push(format!("HOME={}", home(process.user.uid)));
    }
    let program = find(process.args.first().map_or("", String::as_str), &env)?;
    ready()?;
    keep_only(preserved, held.as_ref().and_then(Option::as_ref))?;
    if let Some(ruleset) = held {
        confinement.apply(ruleset)?;
    }
    let mut command = Command::new(&program);
    command
        .args(process.args.iter().skip(1))
        .env_clear()
        .envs(env.iter().filter_map(|pair| pair.split_once('=')));
    if let Some(name) = process.args.first() {
        command.arg0(name);
    }
    Err(Error::failed(
        format!("exec {}", program.display()),
        command.exec(),
    ))
}

/// A link to a descriptor, as `/proc/self/fd/7`, may lead to a directory of the host. The kernel
/// names it without a slash in front then.
fn check_inside(cwd: &Path, here: &[u8]) -> Result<(), Error> {
    match here.first() {
        Some(b'/') => Ok(()),
        _ => Err(Error::refused(
            format!("chdir to cwd ({:?}) set in config.json", cwd.display()),
            "it leads out of the container",
        )),
    }
}

/// Closes every descriptor but the standard streams, those that the engine passes on, and the rules
/// that are still to be enforced.
fn keep_only(preserved: i32, ruleset: Option<&Ruleset>) -> Result<(), Error> {
    for number in 3..3 + preserved {
        pass_on(number).doing(|| format!("pass descriptor {number} on"))?;
    }
    let kept: Vec<BorrowedFd<'_>> = ruleset
        .iter()
        .map(|rules| rules.descriptor().as_fd())
        .collect();
    close_all_from(3 + preserved, &kept).doing(|| "close descriptors".into())
}

fn limit(limit: &Rlimit) -> Result<(), Error> {
    let action = || format!("set the limit {}", limit.kind);
    let resource = match limit.kind.as_str() {
        "RLIMIT_AS" => Resource::As,
        "RLIMIT_CORE" => Resource::Core,
        "RLIMIT_CPU" => Resource::Cpu,
        "RLIMIT_DATA" => Resource::Data,
        "RLIMIT_FSIZE" => Resource::Fsize,
        "RLIMIT_LOCKS" => Resource::Locks,
        "RLIMIT_MEMLOCK" => Resource::Memlock,
        "RLIMIT_MSGQUEUE" => Resource::Msgqueue,
        "RLIMIT_NICE" => Resource::Nice,
        "RLIMIT_NOFILE" => Resource::Nofile,
        "RLIMIT_NPROC" => Resource::Nproc,
        "RLIMIT_RSS" => Resource::Rss,
        "RLIMIT_RTPRIO" => Resource::Rtprio,
        "RLIMIT_RTTIME" => Resource::Rttime,
        "RLIMIT_SIGPENDING" => Resource::Sigpending,
        "RLIMIT_STACK" => Resource::Stack,
        _ => return Err(Error::refused(action(), "unknown type")),
    };
    let value = |number: u64| (number != u64::MAX).then_some(number);
    let wanted = ironcage_sys::rustix::process::Rlimit {
        current: value(limit.soft),
        maximum: value(limit.hard),
    };
    setrlimit(resource, wanted).doing(action)
}

/// Has the kernel's security module change the label with the program.
fn labels(process: &Process) -> Result<(), Error> {
    for (label, module, file, text) in [
        (
            &process.apparmor_profile,
            "/sys/module/apparmor/parameters/enabled",
            "self/attr/apparmor/exec",
            format!("exec {}", process.apparmor_profile),
        ),
        (
            &process.selinux_label,
            "/sys/fs/selinux/enforce",
            "self/attr/exec",
            process.selinux_label.clone(),
        ),
    ] {
        if label.is_empty() {
            continue;
        }
        let action = || format!("use the security label {label:?}");
        if !Path::new(module).exists() {
            let why = "the kernel's module for it is not active";
            return Err(Error::refused(action(), why));
        }
        // Not by /proc, where the image may have something else.
        let proc = detached("proc", Path::new("proc"), &[], MountAttributes::NONE)?;
        let opened = openat(&proc, file, OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty());
        write(opened.doing(action)?, text.as_bytes()).doing(action)?;
    }
    Ok(())
}

fn take_terminal(slave: &OwnedFd) -> Result<(), Error> {
    let action = || "take the terminal".to_owned();
    ioctl_tiocsctty(slave).doing(action)?;
    dup2_stdin(slave).doing(action)?;
    dup2_stdout(slave).doing(action)?;
    dup2_stderr(slave).doing(action)
}

/// Lets the user of the container open its streams again. Pipes only: a file or a device of the host
/// stays its owner's.
fn give_streams(uid: u32) {
    for stream in streams() {
        let pipe = fstat(stream).is_ok_and(|stat| {
            stat.st_uid != uid && FileType::from_raw_mode(stat.st_mode) == FileType::Fifo
        });
        if pipe {
            // The user is not mapped where the pipe's maker is: then it stays as it is.
            let _ = fchown(stream, Some(Uid::from_raw(uid)), None);
        }
    }
}

fn take_identity(process: &Process) -> Result<(), Error> {
    let held = process.capabilities.clone().unwrap_or_default();
    let masks = CapabilityMasks {
        bounding: mask(&held.bounding),
        effective: mask(&held.effective),
        permitted: mask(&held.permitted),
        inheritable: mask(&held.inheritable),
        ambient: mask(&held.ambient),
    };
    drop_bounding_set(masks.bounding).doing(|| "drop capabilities".into())?;
    set_keep_capabilities(true).doing(|| "keep capabilities".into())?;
    let user = &process.user;
    let groups: Vec<Gid> = user
        .additional_gids
        .iter()
        .map(|gid| Gid::from_raw(*gid))
        .collect();
    match set_thread_groups(&groups) {
        // A user namespace whose maker gave setgroups up has no groups to drop.
        Err(Errno::PERM) if groups.is_empty() => {}
        other => other.doing(|| "set supplementary groups".into())?,
    }
    let (uid, gid) = (Uid::from_raw(user.uid), Gid::from_raw(user.gid));
    set_thread_res_gid(gid, gid, gid).doing(|| format!("become group {}", user.gid))?;
    set_thread_res_uid(uid, uid, uid).doing(|| format!("become user {}", user.uid))?;
    set_capability_sets(masks).doing(|| "set capabilities".into())?;
    set_keep_capabilities(false).doing(|| "keep capabilities".into())?;
    umask(Mode::from_raw_mode(user.umask.unwrap_or(0o022) & 0o777));
    Ok(())
}

/// The home directory of a user, as the image's own list of users has it.
fn home(uid: u32) -> String {
    let users =
        read_text(Path::new("/etc/passwd"), LONGEST_PASSWD, Links::Follow).unwrap_or_default();
    let found = users.lines().find_map(|line| {
        let mut fields = line.split(':').skip(2);
        let number: u32 = fields.next()?.parse().ok()?;
        (number == uid).then(|| fields.nth(2).map(str::to_owned))?
    });
    found
        .filter(|home| !home.is_empty())
        .unwrap_or_else(|| "/".into())
}

/// The program, as a search in PATH finds it. Engines look for these words.
fn find(name: &str, env: &[String]) -> Result<PathBuf, Error> {
    let refuse = |why: &str| Err(Error::InContainer(format!("exec: {name:?}: {why}")));
    let executable = |path: &Path| -> Result<(), Errno> {
        let found = ironcage_sys::rustix::fs::stat(path)?;
        if FileType::from_raw_mode(found.st_mode).is_dir() {
            return Err(Errno::ISDIR);
        }
        match accessat(CWD, path, Access::EXEC_OK, AtFlags::EACCESS) {
            // A filter of config.json can be in force already, and not know this call. The kernel
            // decides again when the program is executed.
            Err(Errno::PERM | Errno::NOSYS) if found.st_mode & 0o111 != 0 => Ok(()),
            other => other,
        }
    };
    if name.contains('/') {
        return match executable(Path::new(name)) {
            Ok(()) => Ok(name.into()),
            Err(Errno::NOENT | Errno::NOTDIR) => {
                refuse(&format!("stat {name}: no such file or directory"))
            }
            Err(Errno::ISDIR) => refuse("is a directory: permission denied"),
            Err(_) => refuse("permission denied"),
        };
    }
    let path = env.iter().rev().find_map(|pair| pair.strip_prefix("PATH="));
    let mut denied = false;
    for directory in path
        .unwrap_or("")
        .split(':')
        .filter(|part| part.starts_with('/'))
    {
        let candidate = Path::new(directory).join(name);
        match executable(&candidate) {
            Ok(()) if !name.is_empty() => return Ok(candidate),
            Err(Errno::ACCESS) => denied = true,
            _ => {}
        }
    }
    match denied {
        true => refuse("permission denied"),
        false => refuse("executable file not found in $PATH"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_is_found_in_path_and_errors_are_those_that_engines_look_for() {
        let env = ["PATH=/no/such:/bin".to_owned()];
        assert_eq!(find("sh", &env).unwrap(), Path::new("/bin/sh"));
        assert_eq!(find("/bin/sh", &[]).unwrap(), Path::new("/bin/sh"));
        for (name, why) in [
            ("no-such-program", "executable file not found in $PATH"),
            ("", "executable file not found in $PATH"),
            ("/no/such/program", "no such file or directory"),
            ("/etc/passwd", "permission denied"),
            ("/etc", "permission denied"),
        ] {
            let error = find(name, &env).unwrap_err().to_string();
            assert!(error.contains(why), "{name}: {error}");
        }
    }

    #[test]
    fn a_working_directory_of_the_host_is_refused() {
        let cwd = Path::new("/proc/self/fd/7");
        assert!(check_inside(cwd, b"/").is_ok());
        assert!(check_inside(cwd, b"/srv").is_ok());
        for outside in [&b"(unreachable)/srv"[..], b"(unreachable)", b""] {
            assert!(check_inside(cwd, outside).is_err());
        }
    }

    #[test]
    fn a_read_only_root_is_writable_where_something_writable_is_mounted() {
        let spec = |text: &str| crate::spec::parse::<Spec>(text.as_bytes()).unwrap();
        let open = writable(&spec(r#"{"root":{"path":"r"}}"#));
        assert_eq!(open.first().unwrap().what.path, Path::new("/"));
        let closed = writable(&spec(
            r#"{"root":{"path":"r","readonly":true},"mounts":[{"destination":"/data"},
            {"destination":"/etc/x","options":["rw","ro"]}]}"#,
        ));
        let paths: Vec<&Path> = closed.iter().map(|rule| rule.what.path.as_path()).collect();
        assert_eq!(paths, [Path::new("/data"), Path::new("/dev")]);
    }
}
