//! Namespaces of a container: new ones, and those of others that it joins by their paths.

use crate::error::{Error, IoContext as _};
use crate::spec::{IdMapping, Spec};
use ironcage_sys::clone::Namespaces as New;
use ironcage_sys::rustix::fs::{Mode, OFlags, open};
use ironcage_sys::rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use std::os::fd::{AsFd as _, OwnedFd};
use std::path::Path;

/// A kind of namespace: its name in `config.json`, the kernel's, and its flag.
struct Known {
    name: &'static str,
    file: &'static str,
    new: New,
    kind: LinkNameSpaceType,
}

/// In the order in which they are joined: the mount namespace after those whose paths may lie on
/// the host, the user namespace last, because the others may belong to the host's.
const KNOWN: [Known; 8] = [
    known("pid", "pid", New::PID, LinkNameSpaceType::ProcessID),
    known("network", "net", New::NET, LinkNameSpaceType::Network),
    known(
        "ipc",
        "ipc",
        New::IPC,
        LinkNameSpaceType::InterProcessCommunication,
    ),
    known(
        "uts",
        "uts",
        New::UTS,
        LinkNameSpaceType::HostNameAndNISDomainName,
    ),
    known(
        "cgroup",
        "cgroup",
        New::CGROUP,
        LinkNameSpaceType::ControlGroup,
    ),
    known("time", "time", New::TIME, LinkNameSpaceType::Time),
    known("mount", "mnt", New::MOUNT, LinkNameSpaceType::Mount),
    known("user", "user", New::USER, LinkNameSpaceType::User),
];

const fn known(name: &'static str, file: &'static str, new: New, kind: LinkNameSpaceType) -> Known {
    Known {
        name,
        file,
        new,
        kind,
    }
}

/// One to join.
#[derive(Debug)]
pub(crate) struct Joined {
    name: &'static str,
    kind: LinkNameSpaceType,
    descriptor: OwnedFd,
}

/// What a container has of its own, and what it shares with whom.
#[derive(Debug)]
pub(crate) struct Plan {
    pub(crate) new: New,
    pub(crate) joined: Vec<Joined>,
    pub(crate) new_user: bool,
    pub(crate) any_user: bool,
    pub(crate) new_uts: bool,
}

impl Plan {
    /// Whether a kind is another's that is joined.
    pub(crate) fn joins(&self, name: &str) -> bool {
        self.joined.iter().any(|joined| joined.name == name)
    }
}

/// Whether a kind is in the configuration at all; else the container shares the host's.
pub(crate) fn has(spec: &Spec, name: &str) -> bool {
    spec.linux.namespaces.iter().any(|one| one.kind == name)
}

fn is_new(spec: &Spec, name: &str) -> bool {
    let own = |one: &&crate::spec::Namespace| one.kind == name;
    let found = spec.linux.namespaces.iter().find(own);
    found.is_some_and(|one| one.path.as_os_str().is_empty())
}

pub(crate) fn plan(spec: &Spec) -> Result<Plan, Error> {
    let refuse =
        |what: String, why: &str| Error::refused(format!("create a container with {what}"), why);
    let listed = &spec.linux.namespaces;
    for (index, one) in listed.iter().enumerate() {
        if !KNOWN.iter().any(|known| known.name == one.kind) {
            return Err(refuse(
                format!("the namespace {:?}", one.kind),
                "unknown type",
            ));
        }
        if listed
            .iter()
            .take(index)
            .any(|other| other.kind == one.kind)
        {
            return Err(refuse(
                format!("two namespaces of type {}", one.kind),
                "expected one",
            ));
        }
    }
    if !is_new(spec, "mount") {
        let why = "its file system is made in a mount namespace of its own";
        return Err(refuse("no new mount namespace".into(), why));
    }
    let new_user = is_new(spec, "user");
    if new_user && (spec.linux.uid_mappings.is_empty() || spec.linux.gid_mappings.is_empty()) {
        let why = "uidMappings and gidMappings are needed with it";
        return Err(refuse("a new user namespace".into(), why));
    }
    let mut new = New::NONE;
    let mut joined = Vec::new();
    for known in &KNOWN {
        let Some(one) = listed.iter().find(|one| one.kind == known.name) else {
            continue;
        };
        if one.path.as_os_str().is_empty() {
            new = new.with(known.new);
        } else {
            joined.push(opened(known, &one.path)?);
        }
    }
    Ok(Plan {
        new,
        joined,
        new_user,
        any_user: has(spec, "user"),
        new_uts: is_new(spec, "uts"),
    })
}

fn opened(known: &Known, path: &Path) -> Result<Joined, Error> {
    let how = OFlags::RDONLY | OFlags::CLOEXEC;
    let descriptor = open(path, how, Mode::empty())
        .doing(|| format!("open the {} namespace {}", known.name, path.display()))?;
    Ok(Joined {
        name: known.name,
        kind: known.kind,
        descriptor,
    })
}

/// All namespaces of a running process that differ from this one's.
pub(crate) fn of_process(pid: i32) -> Result<Vec<Joined>, Error> {
    let mut joined = Vec::new();
    for known in &KNOWN {
        let path = format!("/proc/{pid}/ns/{}", known.file);
        let own = format!("/proc/self/ns/{}", known.file);
        let theirs = std::fs::read_link(&path);
        // A kernel without that kind has no such file.
        if theirs.is_err() || theirs.ok() == std::fs::read_link(own).ok() {
            continue;
        }
        joined.push(opened(known, Path::new(&path))?);
    }
    Ok(joined)
}

/// Joins them, in their order.
pub(crate) fn join(joined: &[Joined]) -> Result<(), Error> {
    for one in joined {
        move_into_link_name_space(one.descriptor.as_fd(), Some(one.kind))
            .doing(|| format!("join the {} namespace", one.name))?;
    }
    Ok(())
}

pub(crate) fn joins_user(joined: &[Joined]) -> bool {
    joined.iter().any(|one| one.name == "user")
}

/// Writes the maps of a new user namespace.
pub(crate) fn write_maps(pid: i32, spec: &Spec) -> Result<(), Error> {
    let text = |mappings: &[IdMapping]| {
        let lines = mappings
            .iter()
            .map(|one| format!("{} {} {}\n", one.container, one.host, one.size));
        lines.collect::<String>()
    };
    for (file, mappings) in [
        ("uid_map", &spec.linux.uid_mappings),
        ("gid_map", &spec.linux.gid_mappings),
    ] {
        let path = format!("/proc/{pid}/{file}");
        std::fs::OpenOptions::new()
            .write(true)
            .open(&path)
            .and_then(|mut file| std::io::Write::write_all(&mut file, text(mappings).as_bytes()))
            .doing(|| format!("write {path}"))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn planned(namespaces: &str) -> Result<Plan, Error> {
        let text = format!(r#"{{"linux":{{"namespaces":[{namespaces}]}}}}"#);
        plan(&crate::spec::parse(text.as_bytes()).unwrap())
    }

    #[test]
    fn new_ones_are_made_and_others_joined_by_path() {
        let made = planned(
            r#"{"type":"mount"},{"type":"uts"},{"type":"network","path":"/proc/self/ns/net"}"#,
        )
        .unwrap();
        assert_eq!(made.new, New::MOUNT.with(New::UTS));
        assert_eq!(made.joined.len(), 1);
        assert!(made.new_uts && !made.any_user);
    }

    #[test]
    fn what_no_container_can_be_made_with_is_refused() {
        for (namespaces, why) in [
            (r#"{"type":"pid"}"#, "no new mount namespace"),
            (r#"{"type":"mount"},{"type":"mount"}"#, "two namespaces"),
            (r#"{"type":"mount"},{"type":"disk"}"#, "unknown type"),
            (r#"{"type":"mount"},{"type":"user"}"#, "uidMappings"),
            (
                r#"{"type":"mount"},{"type":"ipc","path":"/no/such"}"#,
                "no such file",
            ),
        ] {
            let error = planned(namespaces).unwrap_err().to_string();
            assert!(error.contains(why), "{error}");
        }
    }
}
