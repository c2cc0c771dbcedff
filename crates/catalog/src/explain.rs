//! Explains what a denial means, and what would allow it.
//!
//! The texts are data in `policies/explain.toml`, compiled in and parsed on demand. Nothing here
//! decides what is allowed; the policy does.

use ironcage_model::{Ending, LimitKind};
use serde::Deserialize;

const TEXT: &str = include_str!("../../../policies/explain.toml");

/// The signal by which the kernel ends a process for a system call.
const SIGSYS: i32 = linux_raw_sys::general::SIGSYS as i32;

/// The explanations that come with Ironcage cannot be read.
#[derive(Debug, thiserror::Error)]
#[error("cannot parse the built-in explanations (policies/explain.toml)")]
pub struct NotExplained(#[from] toml::de::Error);

/// What something means and what would allow it.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Explanation {
    /// What happened, and why a cage refuses it.
    pub means: String,
    /// What would allow it, or that nothing does, and why.
    pub allow: String,
}

/// Everything that can be explained.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Explanations {
    unknown: Explanation,
    syscall: Vec<Several>,
    limit: Vec<Named>,
    ending: Vec<Named>,
}

// Fields are repeated rather than flattened, as flattening would let unknown keys pass.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
struct Several {
    names: Vec<String>,
    means: String,
    allow: String,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
struct Named {
    name: String,
    means: String,
    allow: String,
}

impl Explanations {
    /// Those that come with Ironcage.
    pub fn built_in() -> Result<Self, NotExplained> {
        Ok(toml::from_str(TEXT)?)
    }

    /// Explains the denial of a system call; a general text if it has no entry.
    pub fn syscall(&self, name: &str) -> Explanation {
        self.syscall
            .iter()
            .find(|entry| entry.names.iter().any(|known| known == name))
            .map_or_else(
                || self.unknown.clone(),
                |entry| Explanation {
                    means: entry.means.clone(),
                    allow: entry.allow.clone(),
                },
            )
    }

    /// What it means that a limit was reached, and how it is raised.
    pub fn limit(&self, limit: LimitKind) -> Option<Explanation> {
        named(&self.limit, limit.name())
    }

    /// What an ending means that is not the command's own; `None` if it is, or if a limit
    /// says it better.
    pub fn ending(&self, ending: &Ending) -> Option<Explanation> {
        let name = match ending {
            Ending::NotExecuted { .. } if ending.exit_code() == 127 => "not-found",
            Ending::NotExecuted { .. } => "not-executable",
            Ending::Signalled { signal: SIGSYS } => "bad-system-call",
            Ending::Failed { .. } => "failed",
            Ending::Exited { .. }
            | Ending::Stopped
            | Ending::Unobserved
            | Ending::Signalled { .. }
            | Ending::Limit { .. } => return None,
        };
        named(&self.ending, name)
    }
}

fn named(entries: &[Named], name: &str) -> Option<Explanation> {
    let entry = entries.iter().find(|entry| entry.name == name)?;
    Some(Explanation {
        means: entry.means.clone(),
        allow: entry.allow.clone(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    /// Every system call of x86_64, one per line, as the kernel's headers name them.
    const KNOWN: &str = include_str!("../tests/syscalls-x86_64.txt");

    fn built_in() -> Explanations {
        Explanations::built_in().unwrap()
    }

    #[test]
    fn every_system_call_named_exists_and_is_named_once() {
        let known: BTreeSet<&str> = KNOWN.lines().collect();
        let mut seen = BTreeSet::new();
        for entry in built_in().syscall {
            assert!(!entry.names.is_empty());
            for name in entry.names {
                assert!(known.contains(name.as_str()), "{name} does not exist");
                assert!(seen.insert(name.clone()), "{name} is explained twice");
            }
        }
        assert!(!known.contains("mountt"), "the list must be able to refuse");
    }

    #[test]
    fn every_explanation_says_something_in_both_fields() {
        let all = built_in();
        let texts = all
            .syscall
            .into_iter()
            .map(|entry| (entry.means, entry.allow))
            .chain(
                all.limit
                    .into_iter()
                    .chain(all.ending)
                    .map(|entry| (entry.means, entry.allow)),
            )
            .chain([(all.unknown.means, all.unknown.allow)]);
        for (means, allow) in texts {
            assert!(means.ends_with('.') && means.len() > 20, "{means}");
            assert!(allow.ends_with('.') && allow.len() > 20, "{allow}");
        }
    }

    #[test]
    fn an_entry_without_a_field_or_with_an_unknown_one_is_refused() {
        let lacking = TEXT.replacen("allow =", "alow =", 1);
        assert!(toml::from_str::<Explanations>(&lacking).is_err());
        assert!(toml::from_str::<Explanations>(TEXT).is_ok());
    }

    #[test]
    fn every_limit_names_the_flag_that_raises_it() {
        use LimitKind::{Cpus, Disk, Files, Idle, Inodes, Memory, Pids, Time};
        let all = built_in();
        for limit in [Memory, Cpus, Pids, Disk, Inodes, Files, Time, Idle] {
            let explanation = all.limit(limit).unwrap();
            assert!(explanation.allow.contains(&format!("--{limit} ")));
        }
    }

    #[test]
    fn endings_that_are_not_the_commands_own_are_explained() {
        let all = built_in();
        let missing = all.ending(&Ending::NotExecuted { errno: 2 }).unwrap();
        assert!(missing.allow.contains("-r PATH"));
        let refused = all.ending(&Ending::NotExecuted { errno: 13 }).unwrap();
        assert_ne!(refused, missing);
        assert!(all.ending(&Ending::Signalled { signal: 31 }).is_some());
        let reason = ironcage_model::SupervisorReason::Stopping.into();
        assert!(all.ending(&Ending::Failed { reason }).is_some());
        assert!(all.ending(&Ending::Exited { code: 1 }).is_none());
        assert!(all.ending(&Ending::Signalled { signal: 9 }).is_none());
    }

    #[test]
    fn a_system_call_without_an_entry_gets_the_general_text() {
        let all = built_in();
        assert_eq!(all.syscall("syscall_9999"), all.unknown);
        assert_ne!(all.syscall("mount"), all.unknown);
        assert_eq!(all.syscall("umount2"), all.syscall("mount"));
    }

    /// The system calls that a data file of the policy allows whatever their arguments, and
    /// those that it speaks of at all.
    fn listed(file: &std::path::Path) -> (BTreeSet<String>, BTreeSet<String>) {
        #[derive(Deserialize)]
        struct List {
            allow: Vec<Entry>,
        }
        #[derive(Deserialize)]
        struct Entry {
            names: Vec<String>,
            when: Option<toml::Value>,
        }
        let text = std::fs::read_to_string(file).unwrap();
        let list: List = toml::from_str(&text).unwrap();
        let names = |always: bool| {
            list.allow
                .iter()
                .filter(|entry| !always || entry.when.is_none())
                .flat_map(|entry| entry.names.clone())
                .collect()
        };
        (names(true), names(false))
    }

    fn syscall_lists() -> std::path::PathBuf {
        std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../policies/syscalls")
    }

    #[test]
    fn what_would_allow_it_agrees_with_the_groups_that_exist() {
        let all = built_in();
        let mut groups = BTreeSet::new();
        for file in std::fs::read_dir(syscall_lists().join("groups")).unwrap() {
            let file = file.unwrap().path();
            let group = file.file_stem().unwrap().to_str().unwrap().to_owned();
            for name in listed(&file).1 {
                let allow = all.syscall(&name).allow;
                let key = format!("groups = [\"{group}\"]");
                assert!(allow.contains(&key), "{name} is in {group}: {allow}");
            }
            groups.insert(group);
        }
        assert!(groups.contains("debug"));
        for entry in &all.syscall {
            for named in entry.allow.split("groups = [\"").skip(1) {
                let group = named.split('"').next().unwrap();
                assert!(groups.contains(group), "there is no group {group}");
            }
        }
    }

    #[test]
    fn what_would_allow_it_agrees_with_the_standard_list() {
        let all = built_in();
        let (always, sometimes) = listed(&syscall_lists().join("standard.toml"));
        for entry in &all.syscall {
            for name in &entry.names {
                if entry.allow.starts_with("Nothing") {
                    assert!(!always.contains(name), "standard allows {name}");
                }
                if entry.allow.starts_with("`list = \"standard\"`") {
                    assert!(always.contains(name), "standard does not allow {name}");
                }
            }
        }
        for name in KNOWN.lines().filter(|name| !sometimes.contains(*name)) {
            assert_ne!(
                all.syscall(name),
                all.unknown,
                "{name} is refused unexplained"
            );
        }
    }
}
