//! From what an engine wrote to what is made: refuses what cannot be honoured, and narrows the rest
//! by Ironcage's layers.

use crate::error::Error;
use crate::policy::{Layers, capability};
use crate::spec::{Capabilities, Process, Resources, Spec};
use ironcage_catalog::capabilities;
use std::path::{Component, Path};

/// More than engines write; each costs the kernel something.
const MOST_MOUNTS: usize = 4096;
const MOST_DEVICES: usize = 1024;

fn refuse(what: impl Into<String>, why: impl std::fmt::Display) -> Error {
    Error::refused(format!("create a container with {}", what.into()), why)
}

/// Checks a configuration and narrows it.
pub(crate) fn narrowed(mut spec: Spec, layers: &Layers) -> Result<Spec, Error> {
    if !spec.oci_version.starts_with("1.") {
        let why = "expected version 1.x of the OCI runtime specification";
        return Err(refuse(format!("ociVersion {:?}", spec.oci_version), why));
    }
    let Some(root) = &mut spec.root else {
        return Err(refuse("no root", "config.json names no root file system"));
    };
    root.readonly |= layers.read_only_root;
    if spec.mounts.len() > MOST_MOUNTS || spec.linux.devices.len() > MOST_DEVICES {
        return Err(refuse(
            "so long a list",
            "there are too many mounts or devices",
        ));
    }
    for mount in &spec.mounts {
        let place = &mount.destination;
        let climbs = place.components().any(|part| part == Component::ParentDir);
        if climbs || place.as_os_str().is_empty() {
            let why = "the destination of a mount must be a path without `..`";
            return Err(refuse(format!("the mount {}", place.display()), why));
        }
        if !mount.uid_mappings.is_empty() || !mount.gid_mappings.is_empty() {
            let why = "idmapped mounts are not supported by this runtime";
            return Err(refuse(format!("the mount {}", place.display()), why));
        }
    }
    let linux = &mut spec.linux;
    for (there, what) in [
        (linux.intel_rdt.is_some(), "intelRdt"),
        (linux.personality.is_some(), "a personality"),
        (!linux.time_offsets.is_empty(), "timeOffsets"),
        (!linux.mount_label.is_empty(), "a mountLabel (SELinux)"),
        (
            !linux.resources.network.priorities.is_empty(),
            "network priorities",
        ),
    ] {
        if there {
            return Err(refuse(what, "this runtime cannot set it"));
        }
    }
    devices(&spec.linux.resources, layers)?;
    for device in spec
        .linux
        .devices
        .iter()
        .filter(|device| device.kind == "b")
    {
        if !layers.host_devices {
            return Err(of_the_host(format!(
                "the block device {}",
                device.path.display()
            )));
        }
    }
    let linux = &mut spec.linux;
    linux.masked_paths.extend(layers.masked_paths.clone());
    linux.readonly_paths.extend(layers.read_only_paths.clone());
    layers.bound(&mut linux.resources, false);
    if let Some(process) = &mut spec.process {
        narrow_process(process, layers)?;
    }
    Ok(spec)
}

fn of_the_host(what: String) -> Error {
    refuse(what, "it reaches the devices of the host, as privileged containers do")
        .with_hint("set `host-devices = true` in the node's profile, or use another runtime for this container")
}

/// Rules that open every device are privileged containers'.
fn devices(resources: &Resources, layers: &Layers) -> Result<(), Error> {
    if layers.host_devices {
        return Ok(());
    }
    let any = |number: Option<i64>| number.is_none_or(|number| number < 0);
    let opens = resources.devices.iter().find(|rule| {
        let used = rule.access.contains(['r', 'w']) || rule.access.is_empty();
        let block = rule.kind == "b";
        let every = any(rule.major) && any(rule.minor);
        rule.allow && used && (block || every || matches!(rule.kind.as_str(), "a" | ""))
    });
    match opens {
        Some(rule) => Err(of_the_host(format!(
            "the device rule `{} {} {}`",
            rule.kind,
            rule.major.map_or("*".into(), |number| number.to_string()),
            rule.access
        ))),
        None => Ok(()),
    }
}

/// The bits of capabilities by their names; those that this build does not know are left out, as the
/// specification allows.
pub(crate) fn mask(names: &[String]) -> u64 {
    let known = names.iter().filter_map(|name| capability(name));
    known.fold(0, |mask, bit| mask | bit)
}

fn names(mask: u64) -> Vec<String> {
    let held = (0..64_u8).filter(|number| mask & (1 << number) != 0);
    let named = held.filter_map(capabilities::by_number);
    named.map(|found| found.name.to_owned()).collect()
}

/// Checks and narrows what a process of the container may.
pub(crate) fn narrow_process(process: &mut Process, layers: &Layers) -> Result<(), Error> {
    for (there, what) in [
        (process.scheduler.is_some(), "a scheduler"),
        (process.io_priority.is_some(), "an ioPriority"),
    ] {
        if there {
            return Err(refuse(what, "this runtime cannot set it"));
        }
    }
    if process.args.is_empty() {
        return Err(refuse("no command", "process.args is empty"));
    }
    if !Path::new(&process.cwd).is_absolute() {
        let what = format!("the working directory {:?}", process.cwd.display());
        return Err(refuse(what, "expected an absolute path"));
    }
    let text = process.args.iter().chain(&process.env);
    if text.into_iter().any(|word| word.contains('\0')) {
        return Err(refuse("a NUL byte", "in an argument or in the environment"));
    }
    process.no_new_privileges |= layers.no_new_privs;
    let held = process.capabilities.take().unwrap_or_default();
    let narrow = |list: &[String]| mask(list) & layers.capabilities;
    let bounding = narrow(&held.bounding);
    let permitted = narrow(&held.permitted);
    let inheritable = narrow(&held.inheritable);
    process.capabilities = Some(Capabilities {
        bounding: names(bounding),
        permitted: names(permitted),
        effective: names(narrow(&held.effective) & permitted),
        inheritable: names(inheritable),
        ambient: names(narrow(&held.ambient) & permitted & inheritable),
    });
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    fn layers() -> Layers {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("node.toml");
        std::fs::write(&path, "").unwrap();
        crate::policy::resolve(Some(&path), &BTreeMap::new()).unwrap()
    }

    fn spec(text: &str) -> Result<Spec, Error> {
        let parsed = crate::spec::parse(text.as_bytes()).unwrap();
        narrowed(parsed, &layers())
    }

    #[test]
    fn capabilities_are_those_that_both_give() {
        let made = spec(
            r#"{"ociVersion":"1.0.2","root":{"path":"rootfs"},"process":{"args":["x"],"cwd":"/",
            "capabilities":{"bounding":["CAP_CHOWN","CAP_SYS_ADMIN","CAP_MKNOD","CAP_OF_TOMORROW"],
            "permitted":["CAP_CHOWN"],"effective":["CAP_CHOWN","CAP_KILL"],"inheritable":null}}}"#,
        )
        .unwrap();
        let process = made.process.unwrap();
        assert!(process.no_new_privileges);
        let held = process.capabilities.unwrap();
        assert_eq!(held.bounding, ["CAP_CHOWN"]);
        assert_eq!(held.effective, ["CAP_CHOWN"]);
        assert!(held.ambient.is_empty());
    }

    #[test]
    fn what_cannot_be_honoured_is_refused_by_name() {
        let good = r#"{"ociVersion":"1.0.2","root":{"path":"r"}}"#;
        assert!(spec(good).is_ok());
        for (rest, why) in [
            (r#""mounts":[{"destination":"/a/../b"}]"#, "without `..`"),
            (r#""linux":{"intelRdt":{}}"#, "intelRdt"),
            (
                r#""linux":{"devices":[{"path":"/dev/sda","type":"b"}]}"#,
                "block device",
            ),
            (
                r#""linux":{"resources":{"devices":[{"allow":true,"access":"rwm"}]}}"#,
                "device rule",
            ),
            (r#""process":{"args":["x"],"cwd":"tmp"}"#, "absolute path"),
            (r#""process":{"args":[],"cwd":"/"}"#, "no command"),
        ] {
            let text = format!(r#"{{"ociVersion":"1.0.2","root":{{"path":"r"}},{rest}}}"#);
            let error = spec(&text).unwrap_err().to_string();
            assert!(error.contains(why), "{error}");
        }
        let making = r#"{"ociVersion":"1.0.2","root":{"path":"r"},"linux":{"resources":{"devices":[
            {"allow":false,"access":"rwm"},{"allow":true,"type":"c","access":"m"},
            {"allow":true,"type":"c","major":1,"minor":3,"access":"rwm"}]}}}"#;
        assert!(spec(making).is_ok());
    }
}
