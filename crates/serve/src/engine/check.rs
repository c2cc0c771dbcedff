//! Checks of a cage that a caller wants: the rights of its key, and values that are invalid for anybody.

use super::TIMEOUT;
use crate::api::types::{CreateCage, NetworkMode, WorkspaceMode};
use crate::error::{ApiError, ApiResult, Code};
use crate::keys::{Key, Scope};
use ironcage_model::{Destination, HOST_NAME, HostRule};
use std::collections::BTreeMap;
use std::path::Path;

const LONGEST_TIMEOUT: u32 = 31_536_000;
/// Entries and bytes of metadata and of environments.
const MOST_TEXTS: usize = 256;
const LONGEST_TEXTS: usize = 128 * 1024;
const LONGEST_POLICY: usize = 256 * 1024;
/// Processes and threads of a cage: its first process, the daemon with a thread for every connection
/// and process, a relay, and a command with another one behind a pipe.
pub(super) const LEAST_PIDS: u32 = 16;
const MOST_PIDS: u32 = 4_194_304;

pub(super) fn check_timeout(seconds: u32) -> ApiResult<()> {
    match seconds {
        1..=LONGEST_TIMEOUT => Ok(()),
        _ => Err(ApiError::invalid(format!(
            "the timeout is {seconds} s; expected 1 to {LONGEST_TIMEOUT}"
        ))),
    }
}

pub(super) fn check_texts(what: &str, texts: &BTreeMap<String, String>) -> ApiResult<()> {
    let bytes: usize = texts
        .iter()
        .map(|(name, value)| name.len() + value.len())
        .sum();
    if texts.len() > MOST_TEXTS || bytes > LONGEST_TEXTS {
        return Err(ApiError::invalid(format!(
            "{what} has {} entries with {bytes} bytes; at most {MOST_TEXTS} with {LONGEST_TEXTS} are allowed",
            texts.len()
        )));
    }
    Ok(())
}

/// A value that becomes a word of a command line, and must not be taken for an option.
fn check_word(what: &str, word: &str) -> ApiResult<()> {
    if word.is_empty() || word.starts_with('-') || word.contains('\0') || word.len() > 4096 {
        return Err(ApiError::invalid(format!(
            "{what} is not valid: `{}`",
            word.chars().take(100).collect::<String>().escape_debug()
        )));
    }
    Ok(())
}

/// Profiles that every key may name: none of them opens a host, and what their ceilings let a lease
/// open is judged when it is granted.
const PROFILES: [&str; 6] = ["data", "node", "python", "rust", "shell", "strict"];

/// Whether a profile is known to open no host.
pub(super) fn opens_no_host(profile: &str) -> bool {
    PROFILES.contains(&profile)
}

/// Whether a rule is about the host of the service itself: its loopback has ports of other programs,
/// and those that other projects publish.
fn is_own_host(rule: &HostRule) -> bool {
    let below = |name: &str, above: &str| {
        let rest = name.strip_suffix(above);
        rest.is_some_and(|rest| rest.is_empty() || rest.ends_with('.'))
    };
    match &rule.to {
        Destination::Name(name) => below(name.as_str(), HOST_NAME),
        Destination::Below(name) | Destination::NameAndBelow(name) => {
            below(name.as_str(), HOST_NAME) || below(HOST_NAME, name.as_str())
        }
        Destination::Any | Destination::Net { .. } => false,
    }
}

/// Whether a key without the scope `host` may open what a rule names: hosts by their names and, where
/// the service gives the whole network, the rest of it. The host itself never.
pub(crate) fn is_open_to_all(rule: &HostRule, internet: bool) -> bool {
    let wide = matches!(rule.to, Destination::Any | Destination::Net { .. });
    !is_own_host(rule) && (internet || !wide)
}

pub(super) fn check(spec: &CreateCage, key: &Key, internet: bool) -> ApiResult<()> {
    let needs_host = |what: &str| match key.may(Scope::Host) {
        true => Ok(()),
        false => Err(ApiError::new(
            Code::Forbidden,
            format!("{what} needs a key with the scope `host`"),
        )),
    };
    check_timeout(spec.timeout.unwrap_or(TIMEOUT))?;
    check_texts("metadata", &spec.metadata)?;
    check_texts("env", &spec.env)?;
    if let Some(name) = spec
        .env
        .keys()
        .find(|name| name.is_empty() || name.contains(['=', '\0']))
    {
        return Err(ApiError::invalid(format!(
            "`{}` is not the name of a variable",
            name.escape_debug()
        )));
    }
    if let Some(profile) = &spec.profile
        && !PROFILES.contains(&profile.as_str())
    {
        // It may open the network, or name files of the host.
        let allowed = PROFILES.join(", ");
        needs_host(&format!("a profile other than {allowed}"))?;
    }
    if let Some(policy) = &spec.policy {
        needs_host("a policy")?;
        if policy.len() > LONGEST_POLICY {
            return Err(ApiError::new(
                Code::TooLarge,
                format!("the policy is longer than {LONGEST_POLICY} bytes"),
            ));
        }
        if spec.profile.is_some() {
            return Err(
                ApiError::invalid("`policy` and `profile` exclude each other")
                    .hint("name the profile in the policy: `extends = \"NAME\"`"),
            );
        }
    }
    match (&spec.directory, spec.workspace_mode) {
        (Some(directory), _) => {
            needs_host("a directory of the host")?;
            if !Path::new(directory).is_absolute() {
                return Err(ApiError::invalid(format!(
                    "the directory `{}` is not absolute",
                    directory.escape_debug()
                )));
            }
        }
        (None, None | Some(WorkspaceMode::Scratch)) => {}
        (None, Some(mode)) => {
            return Err(ApiError::invalid(format!(
                "the workspace mode {} needs a directory",
                mode.name()
            )));
        }
    }
    if spec.image.is_some() {
        // One that is missing is pulled, with the credentials of the operator.
        needs_host("an image")?;
    }
    if spec.snapshot.is_some()
        && (spec.image.is_some() || spec.template.is_some() || spec.directory.is_some())
    {
        return Err(ApiError::invalid(
            "`snapshot` excludes `image`, `template` and `directory`",
        ));
    }
    if spec.image.is_some() && spec.template.is_some() {
        return Err(ApiError::invalid(
            "`image` and `template` exclude each other",
        ));
    }
    let words = [
        ("profile", &spec.profile),
        ("image", &spec.image),
        ("template", &spec.template),
    ];
    for (what, word) in words {
        word.as_deref()
            .map_or(Ok(()), |word| check_word(what, word))?;
    }
    if let Some(limits) = &spec.limits {
        for (what, word) in [
            ("memory", &limits.memory),
            ("cpus", &limits.cpus),
            ("disk", &limits.disk),
        ] {
            word.as_deref()
                .map_or(Ok(()), |word| check_word(what, word))?;
        }
        if let Some(pids) = limits.pids
            && !(LEAST_PIDS..=MOST_PIDS).contains(&pids)
        {
            return Err(ApiError::invalid(format!(
                "limits.pids is {pids}; expected {LEAST_PIDS} to {MOST_PIDS}"
            ))
            .hint("the daemon of the cage needs processes and threads, too: leave it out for the limit of the profile"));
        }
    }
    if let Some(network) = &spec.network {
        let mut hosts = network.allow.iter().chain(&network.deny);
        hosts.try_for_each(|host| check_word("host", host))?;
        if !internet && network.mode == Some(NetworkMode::Open) {
            needs_host("the whole network")?;
        }
        for host in &network.allow {
            let rule = ironcage_policy::allowed(host)
                .map_err(|error| ApiError::invalid(ironcage_model::in_full(&error)))?;
            if !is_open_to_all(&rule, internet) {
                needs_host(&format!("{rule}, which is not a host by its name,"))?;
            }
        }
        if network.mode == Some(NetworkMode::Off) && !network.allow.is_empty() {
            return Err(ApiError::invalid(
                "the network is off, and hosts are allowed; one of the two",
            ));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::types::CageLimits;

    #[test]
    fn a_limit_of_processes_has_room_for_the_daemon() {
        let (_data, plain) = key(&[Scope::Cages]);
        let checked = |pids| {
            let limits = CageLimits {
                pids: Some(pids),
                ..CageLimits::default()
            };
            let spec = CreateCage {
                limits: Some(limits),
                ..CreateCage::default()
            };
            check(&spec, &plain, false)
        };
        for pids in [0, 2, LEAST_PIDS - 1, MOST_PIDS + 1] {
            let error = checked(pids).unwrap_err();
            assert!(error.code == Code::InvalidRequest && error.hint.is_some());
        }
        for pids in [LEAST_PIDS, MOST_PIDS] {
            assert!(checked(pids).is_ok(), "{pids}");
        }
    }

    #[test]
    fn a_key_opens_hosts_by_name_and_the_host_itself_only_with_its_scope() {
        let (_data, plain) = key(&[Scope::Cages]);
        let (_other, host) = key(&[Scope::Cages, Scope::Host]);
        let allow = |host: &str| CreateCage {
            network: Some(crate::api::types::CageNetwork {
                mode: None,
                allow: vec![host.to_owned()],
                deny: Vec::new(),
            }),
            ..CreateCage::default()
        };
        let code = |name: &str, key: &Key, internet| {
            check(&allow(name), key, internet).map_err(|error| error.code)
        };
        for name in [
            "api.example.com",
            "api.example.com:443",
            "*.api.example.com",
            "**.api.example.com",
            "localhost",
            "nothost.ironcage",
        ] {
            assert_eq!(code(name, &plain, false), Ok(()), "{name}");
        }
        for wide in [
            "10.0.0.0/8",
            "10.0.0.1",
            "10.0.0.1:80",
            "::1",
            "[::1]:80",
            "fe80::/10",
        ] {
            assert_eq!(code(wide, &plain, false), Err(Code::Forbidden), "{wide}");
            assert_eq!(code(wide, &plain, true), Ok(()), "{wide}");
            assert_eq!(code(wide, &host, false), Ok(()), "{wide}");
        }
        // Its loopback is nobody's network, also where the service gives the whole of that.
        for own in [
            "host.ironcage:5432",
            "HOST.Ironcage.:5432",
            "a.host.ironcage",
            "**.host.ironcage",
            "*.ironcage:22",
        ] {
            for internet in [false, true] {
                assert_eq!(code(own, &plain, internet), Err(Code::Forbidden), "{own}");
            }
            assert_eq!(code(own, &host, false), Ok(()), "{own}");
        }
        for wrong in ["*", "every host", "0.0.0.0/0", "a b"] {
            assert_eq!(
                code(wrong, &host, true),
                Err(Code::InvalidRequest),
                "{wrong}"
            );
        }
    }

    fn key(scopes: &[Scope]) -> (tempfile::TempDir, Key) {
        let data = tempfile::tempdir().unwrap();
        let keys = crate::keys::Keys::in_data(data.path());
        let scopes = scopes.iter().copied().collect();
        let (key, _) = keys.create("k", "team", scopes).unwrap();
        (data, key)
    }

    #[test]
    fn profiles_and_images_that_reach_beyond_the_cage_need_the_scope_host() {
        let (_data, plain) = key(&[Scope::Cages]);
        let (_other, host) = key(&[Scope::Cages, Scope::Host]);
        let profile = |name: &str| CreateCage {
            profile: Some(name.to_owned()),
            ..CreateCage::default()
        };
        for name in PROFILES {
            check(&profile(name), &plain, false).unwrap();
        }
        let image = CreateCage {
            image: Some("alpine".to_owned()),
            ..CreateCage::default()
        };
        for wanted in [
            profile("learning"),
            profile("coding-agent"),
            profile("mine"),
            image,
        ] {
            let refused = check(&wanted, &plain, true).unwrap_err();
            assert_eq!(refused.code, Code::Forbidden, "{wanted:?}");
            check(&wanted, &host, false).unwrap();
        }
    }
}
