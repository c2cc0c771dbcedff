//! What Ironcage adds to a container: profiles of the node's operator, which a pod may narrow by
//! annotation and never widen.
//!
//! Every profile that applies is intersected with the others: capabilities by set, filters by
//! installing all of them, switches by the stricter one.

use crate::error::Error;
use crate::spec::Resources;
use ironcage_catalog::capabilities;
use ironcage_files::{Links, is_there, read_text};
use ironcage_plan::container_filter;
use ironcage_plan::seccomp::Instruction;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

/// Where the operator's profiles are.
pub(crate) const FILE: &str = "/etc/ironcage/oci-runtime.toml";
const LARGEST: u64 = 256 * 1024;
const LARGEST_ANNOTATION: usize = 16 * 1024;
/// The profile that every container is under.
const DEFAULT: &str = "default";
const PROFILE: &str = "dev.ironcage.profile";
const POLICY: &str = "dev.ironcage.policy";
const ANNOTATIONS: &str = "dev.ironcage.";
/// The system calls of `config.json` alone.
const AS_CONFIGURED: &str = "config";

/// Profiles that are built in; the operator's of the same name replaces one.
const BUILT_IN: &str = r#"
[profiles.default]
# The set of Docker and containerd without CAP_MKNOD: device rules are not the only lock then.
capabilities = ["CAP_CHOWN", "CAP_DAC_OVERRIDE", "CAP_FSETID", "CAP_FOWNER", "CAP_NET_RAW", "CAP_SETGID",
  "CAP_SETUID", "CAP_SETFCAP", "CAP_SETPCAP", "CAP_NET_BIND_SERVICE", "CAP_SYS_CHROOT", "CAP_KILL", "CAP_AUDIT_WRITE"]
syscalls = "standard"
syscall-groups = ["chroot"]

[profiles.strict]
capabilities = []
syscalls = "standard"
read-only-root = true
pids = 512
"#;

/// A profile as it is written.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields, default)]
struct Profile {
    syscalls: Option<String>,
    syscall_groups: Vec<String>,
    capabilities: Option<Vec<String>>,
    no_new_privs: Option<bool>,
    landlock: Option<bool>,
    read_only_root: bool,
    host_devices: Option<bool>,
    masked_paths: Vec<PathBuf>,
    read_only_paths: Vec<PathBuf>,
    memory: Option<i64>,
    pids: Option<i64>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct File {
    profiles: BTreeMap<String, Profile>,
}

/// A list of system calls, by its name and the names of groups on top of it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct List {
    name: String,
    groups: Vec<String>,
}

/// What is enforced on top of `config.json`. Kept with the container's state, for `exec`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Layers {
    /// The names of the profiles, for people.
    pub(crate) profiles: Vec<String>,
    /// All of these are installed.
    lists: Vec<List>,
    /// The most capabilities, a bit for each.
    pub(crate) capabilities: u64,
    pub(crate) no_new_privs: bool,
    pub(crate) landlock: bool,
    pub(crate) read_only_root: bool,
    pub(crate) host_devices: bool,
    pub(crate) masked_paths: Vec<PathBuf>,
    pub(crate) read_only_paths: Vec<PathBuf>,
    pub(crate) memory: Option<i64>,
    pub(crate) pids: Option<i64>,
}

/// The stricter of a bound and another number. Not above zero is no limit, and loses against one.
pub(crate) fn least(bound: Option<i64>, other: Option<i64>) -> Option<i64> {
    let limits = |number: &i64| *number > 0;
    match (bound.filter(limits), other.filter(limits)) {
        (Some(bound), Some(other)) => Some(bound.min(other)),
        (None, None) => other,
        (bound, other) => bound.or(other),
    }
}

/// The bit of a capability, by its name.
pub(crate) fn capability(name: &str) -> Option<u64> {
    capabilities::find(name).map(|found| 1 << found.number)
}

impl Layers {
    /// Nothing at all; every profile narrows it.
    fn open() -> Layers {
        Layers {
            profiles: Vec::new(),
            lists: Vec::new(),
            capabilities: u64::MAX,
            no_new_privs: false,
            landlock: false,
            read_only_root: false,
            host_devices: true,
            masked_paths: Vec::new(),
            read_only_paths: Vec::new(),
            memory: None,
            pids: None,
        }
    }

    /// Narrows by a profile. `source` says where that stands, for errors. What the profile does not
    /// say is strict where it is the node's, and unchanged where it is a pod's.
    fn narrow(
        &mut self,
        name: &str,
        profile: Profile,
        source: &str,
        node: bool,
    ) -> Result<(), Error> {
        let refuse = |why: String| Error::refused(format!("use {source}"), why);
        let widens = |key: &str| {
            refuse(format!("{key} would widen the profile of the node"))
                .with_hint(format!("ask the operator of the node to change {FILE}"))
        };
        let switch = |held: bool, said: Option<bool>, key: &str| match (node, said) {
            (true, said) => Ok(held || said.unwrap_or(true)),
            (false, Some(false)) if held => Err(widens(key)),
            (false, said) => Ok(held || said.unwrap_or(false)),
        };
        self.no_new_privs = switch(
            self.no_new_privs,
            profile.no_new_privs,
            "no-new-privs = false",
        )?;
        self.landlock = switch(self.landlock, profile.landlock, "landlock = false")?;
        self.host_devices &= match (node, profile.host_devices) {
            (true, said) => said.unwrap_or(false),
            (false, Some(true)) if !self.host_devices => return Err(widens("host-devices = true")),
            (false, said) => said.unwrap_or(true),
        };
        match profile.syscalls.as_deref().or(node.then_some("standard")) {
            None if profile.syscall_groups.is_empty() => {}
            None => return Err(refuse("syscall-groups needs a list in syscalls".into())),
            Some(AS_CONFIGURED) if node || self.lists.is_empty() => {}
            Some(AS_CONFIGURED) => return Err(widens("syscalls = \"config\"")),
            Some(list) => {
                // Known here, so that an unknown name does not show in the container alone.
                container_filter(list, &profile.syscall_groups).map_err(|name| {
                    refuse(format!("unknown system call list or group {name:?}"))
                })?;
                self.lists.push(List {
                    name: list.to_owned(),
                    groups: profile.syscall_groups,
                });
            }
        }
        if let Some(names) = profile.capabilities {
            let mut most = 0;
            for name in &names {
                most |= capability(name)
                    .ok_or_else(|| refuse(format!("unknown capability {name:?}")))?;
            }
            self.capabilities &= most;
        }
        for path in profile.masked_paths.iter().chain(&profile.read_only_paths) {
            if !path.is_absolute() {
                return Err(refuse(format!(
                    "{} is not an absolute path",
                    path.display()
                )));
            }
        }
        for (key, number) in [("pids", profile.pids), ("memory", profile.memory)] {
            if number.is_some_and(|number| number <= 0) {
                return Err(refuse(format!("{key} must be above zero"))
                    .with_hint(format!("leave {key} out where it has no limit")));
            }
        }
        self.read_only_root |= profile.read_only_root;
        self.masked_paths.extend(profile.masked_paths);
        self.read_only_paths.extend(profile.read_only_paths);
        self.memory = least(self.memory, profile.memory);
        self.pids = least(self.pids, profile.pids);
        self.profiles.push(name.to_owned());
        Ok(())
    }

    /// Takes from an engine's limits what would lift a bound. `kept` says whether a number that is
    /// not there, or zero, leaves the limit that is in force.
    pub(crate) fn bound(&self, resources: &mut Resources, kept: bool) {
        let before = resources.memory.limit;
        for (bound, wanted, file) in [
            (self.pids, &mut resources.pids.limit, "pids.max"),
            (self.memory, &mut resources.memory.limit, "memory.max"),
        ] {
            if bound.is_none() {
                continue;
            }
            if !(kept && matches!(wanted, None | Some(0))) {
                *wanted = least(bound, *wanted);
            }
            // The same limit by the name of its file, written last. A slash is dropped from a name.
            resources.unified.retain(|name, _| {
                !name
                    .chars()
                    .filter(|letter| *letter != '/')
                    .eq(file.chars())
            });
        }
        // The specification counts memory and swap together: less memory is not more swap.
        let memory = &mut resources.memory;
        if let (Some(before), Some(after), Some(swap)) = (before, memory.limit, memory.swap)
            && (1..=swap).contains(&before)
        {
            memory.swap = Some(after.saturating_add(swap - before));
        }
    }

    /// Whether system calls are filtered by more than `config.json` says.
    pub(crate) fn filters_calls(&self) -> bool {
        !self.lists.is_empty()
    }

    /// The programs of Ironcage's filters.
    pub(crate) fn filters(&self) -> Result<Vec<Vec<Instruction>>, Error> {
        let made = self.lists.iter().map(|list| {
            container_filter(&list.name, &list.groups).map_err(|name| {
                let why = format!("unknown system call list or group {name:?}");
                Error::refused("use the profile that the container was created with", why)
            })
        });
        made.collect()
    }
}

/// The layers of a container: the node's default profile, then what its annotations say.
pub(crate) fn resolve(
    file: Option<&Path>,
    annotations: &BTreeMap<String, String>,
) -> Result<Layers, Error> {
    let built_in: File = toml::from_str(BUILT_IN)
        .map_err(|error| Error::refused("read built-in profiles", error))?;
    let mut profiles = built_in.profiles;
    profiles.extend(operators(file)?.profiles);
    let named = |name: &str| {
        profiles.get(name).cloned().ok_or_else(|| {
            let known: Vec<&str> = profiles.keys().map(String::as_str).collect();
            Error::refused(
                format!("use the profile {name:?}"),
                format!("expected {}", known.join(", ")),
            )
        })
    };
    if let Some(unknown) = annotations
        .keys()
        .find(|key| key.starts_with(ANNOTATIONS) && *key != PROFILE && *key != POLICY)
    {
        return Err(Error::refused(
            format!("use the annotation {unknown:?}"),
            format!("expected {PROFILE} or {POLICY}"),
        ));
    }
    let mut layers = Layers::open();
    let source = format!("the profile {DEFAULT:?}");
    layers.narrow(DEFAULT, named(DEFAULT)?, &source, true)?;
    if let Some(name) = annotations.get(PROFILE).filter(|name| *name != DEFAULT) {
        let source = format!("the profile {name:?}");
        // The operator's word, chosen by the pod: keys that it does not say narrow nothing.
        layers.narrow(name, named(name)?, &source, false)?;
    }
    if let Some(text) = annotations.get(POLICY) {
        let source = format!("the annotation {POLICY}");
        if text.len() > LARGEST_ANNOTATION {
            let why = format!("longer than {LARGEST_ANNOTATION} bytes");
            return Err(Error::refused(format!("use {source}"), why));
        }
        let profile = toml::from_str(text)
            .map_err(|error| Error::refused(format!("use {source}"), error.message()))?;
        layers.narrow("annotation", profile, &source, false)?;
    }
    Ok(layers)
}

/// The operator's file. One that is named has to be there.
fn operators(named: Option<&Path>) -> Result<File, Error> {
    let path = named.unwrap_or(Path::new(FILE));
    if named.is_none() && !is_there(path) {
        return Ok(File::default());
    }
    let action = || format!("use {}", path.display());
    let found = path
        .metadata()
        .map_err(|error| Error::failed(action(), error))?;
    // Whoever can write it decides what every container on this node may do.
    if found.uid() != 0 && found.uid() != ironcage_sys::process::started_as() {
        return Err(Error::refused(
            action(),
            "it belongs neither to root nor to this user",
        ));
    }
    if found.mode() & 0o022 != 0 {
        return Err(
            Error::refused(action(), "others than its owner can write it")
                .with_hint(format!("chmod go-w {}", path.display())),
        );
    }
    let text = read_text(path, LARGEST, Links::Follow)
        .map_err(|error| Error::refused(action(), error.reason()))?;
    toml::from_str(&text).map_err(|error| Error::refused(action(), error))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn annotated(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
        let owned = |(key, value): &(&str, &str)| ((*key).to_owned(), (*value).to_owned());
        pairs.iter().map(owned).collect()
    }

    fn with(file: &str, pairs: &[(&str, &str)]) -> Result<Layers, Error> {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("node.toml");
        std::fs::write(&path, file).unwrap();
        resolve(Some(&path), &annotated(pairs))
    }

    #[test]
    fn the_default_is_strict_and_the_operator_alone_relaxes_it() {
        let layers = with("", &[]).unwrap();
        assert!(layers.no_new_privs && layers.landlock && !layers.host_devices);
        assert_eq!(
            layers.capabilities & capability("CAP_SYS_ADMIN").unwrap(),
            0
        );
        assert_ne!(layers.capabilities & capability("CAP_CHOWN").unwrap(), 0);
        assert_eq!(layers.filters().unwrap().len(), 1);
        let relaxed = "[profiles.default]\nno-new-privs = false\nlandlock = false\nsyscalls = 'config'\nhost-devices = true\n";
        let layers = with(relaxed, &[]).unwrap();
        assert!(!layers.no_new_privs && !layers.landlock && layers.host_devices);
        assert!(layers.filters().unwrap().is_empty());
    }

    #[test]
    fn an_annotation_narrows() {
        let policy =
            "capabilities = ['CAP_CHOWN', 'CAP_SYS_ADMIN']\npids = 9\nsyscalls = 'standard'";
        let layers = with("", &[(PROFILE, "strict"), (POLICY, policy)]).unwrap();
        // Strict has none, and the annotation gives none back.
        assert_eq!(layers.capabilities, 0);
        assert!(layers.read_only_root);
        assert_eq!(layers.pids, Some(9));
        assert_eq!(layers.filters().unwrap().len(), 3);
        let layers = with("", &[(POLICY, policy)]).unwrap();
        assert_eq!(layers.capabilities, capability("CAP_CHOWN").unwrap());
    }

    #[test]
    fn no_limit_never_wins_over_a_bound() {
        for (bound, other, made) in [
            (Some(9), Some(4), Some(4)),
            (Some(9), Some(-1), Some(9)),
            (Some(9), Some(0), Some(9)),
            (Some(-1), Some(4), Some(4)),
            (Some(9), None, Some(9)),
            (None, Some(-1), Some(-1)),
            (None, None, None),
        ] {
            assert_eq!(least(bound, other), made, "{bound:?} {other:?}");
        }
        let node = "[profiles.default]\npids = 64\n";
        for (said, made) in [("pids = 9", 9), ("pids = 512", 64)] {
            let layers = with(node, &[(POLICY, said)]).unwrap();
            assert_eq!(layers.pids, Some(made));
        }
        assert!(with("[profiles.default]\npids = 0\n", &[]).is_err());
    }

    #[test]
    fn a_file_of_the_group_does_not_lift_a_bound() {
        let text = br#"{"unified":{"pids.max":"max","/pids.max":"max","memory.max":"max","memory.high":"5"}}"#;
        let wanted = || crate::spec::parse::<Resources>(text).unwrap();
        let names = |made: &Resources| made.unified.keys().cloned().collect::<Vec<_>>();
        let bounded = with("[profiles.default]\npids = 64\n", &[]).unwrap();
        let mut made = wanted();
        bounded.bound(&mut made, false);
        assert_eq!(made.pids.limit, Some(64));
        assert_eq!(names(&made), ["memory.high", "memory.max"]);
        // An update that does not speak of processes leaves their limit.
        let mut made = wanted();
        bounded.bound(&mut made, true);
        assert_eq!(made.pids.limit, None);
        assert_eq!(names(&made), ["memory.high", "memory.max"]);
        made.pids.limit = Some(-1);
        bounded.bound(&mut made, true);
        assert_eq!(made.pids.limit, Some(64));
        let mut made = wanted();
        with("", &[]).unwrap().bound(&mut made, false);
        assert_eq!(names(&made).len(), 4);
    }

    #[test]
    fn a_bound_on_memory_does_not_become_swap() {
        let bounded = with("[profiles.default]\nmemory = 100\n", &[]).unwrap();
        for (text, limit, swap) in [
            (r#"{"memory":{"limit":400,"swap":450}}"#, 100, Some(150)),
            (r#"{"memory":{"limit":60,"swap":90}}"#, 60, Some(90)),
            (r#"{"memory":{"limit":400,"swap":-1}}"#, 100, Some(-1)),
            (r#"{"memory":{"swap":300}}"#, 100, Some(300)),
            ("{}", 100, None),
        ] {
            let mut made = crate::spec::parse::<Resources>(text.as_bytes()).unwrap();
            bounded.bound(&mut made, false);
            assert_eq!((made.memory.limit, made.memory.swap), (Some(limit), swap));
        }
    }

    #[test]
    fn an_annotation_that_widens_or_is_unknown_is_refused() {
        for (key, value, why) in [
            (POLICY, "no-new-privs = false", "would widen"),
            (POLICY, "landlock = false", "would widen"),
            (POLICY, "host-devices = true", "would widen"),
            (POLICY, "syscalls = 'config'", "would widen"),
            (POLICY, "syscalls = 'all'", "unknown system call list"),
            (
                POLICY,
                "capabilities = ['CAP_EVERYTHING']",
                "unknown capability",
            ),
            (POLICY, "masked-paths = ['etc']", "not an absolute path"),
            (POLICY, "pids = -1", "pids must be above zero"),
            (POLICY, "memory = 0", "memory must be above zero"),
            (POLICY, "network = true", "unknown field"),
            (PROFILE, "relaxed", "expected default, strict"),
            (
                "dev.ironcage.profil",
                "strict",
                "expected dev.ironcage.profile",
            ),
        ] {
            let error = with("", &[(key, value)]).unwrap_err().to_string();
            assert!(error.contains(why), "{key} = {value}: {error}");
        }
        let long = "#".repeat(LARGEST_ANNOTATION + 1);
        assert!(with("", &[(POLICY, &long)]).is_err());
    }

    #[test]
    fn a_file_that_others_can_write_is_refused() {
        use std::os::unix::fs::PermissionsExt as _;
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("node.toml");
        std::fs::write(&path, "").unwrap();
        assert!(resolve(Some(&path), &BTreeMap::new()).is_ok());
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o666)).unwrap();
        assert!(resolve(Some(&path), &BTreeMap::new()).is_err());
        assert!(resolve(Some(&directory.path().join("absent")), &BTreeMap::new()).is_err());
    }
}
