//! Checks of a cage that a caller wants: the rights of its key, and values that are invalid for anybody.

use super::TIMEOUT;
use crate::api::types::{CreateCage, NetworkMode, WorkspaceMode};
use crate::error::{ApiError, ApiResult, Code};
use crate::keys::{Key, Scope};
use ironcage_model::{Destination, HostRule};
use std::collections::BTreeMap;
use std::path::Path;

const LONGEST_TIMEOUT: u32 = 31_536_000;
/// Entries and bytes of metadata and of environments.
const MOST_TEXTS: usize = 256;
const LONGEST_TEXTS: usize = 128 * 1024;
const LONGEST_POLICY: usize = 256 * 1024;

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

/// Whether a rule names hosts, not addresses, networks or everything.
fn is_name(host: &str) -> bool {
    if let Ok(rule) = host.parse::<HostRule>()
        && matches!(rule.to, Destination::Any | Destination::Net { .. })
    {
        return false;
    }
    let name = host.rsplit_once(':').map_or(host, |(name, _)| name);
    let is_address = host.contains(['/', '[', ' ']) || host.matches(':').count() > 1;
    let numeric = name
        .bytes()
        .all(|byte| byte.is_ascii_digit() || byte == b'.');
    !is_address && !numeric && name.trim_start_matches('*').len() > 1
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
    }
    if let Some(network) = &spec.network {
        let mut hosts = network.allow.iter().chain(&network.deny);
        hosts.try_for_each(|host| check_word("host", host))?;
        let wide = network.allow.iter().find(|host| !is_name(host));
        if !internet && (network.mode == Some(NetworkMode::Open) || wide.is_some()) {
            needs_host("the whole network, or a host by its address,")?;
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

    #[test]
    fn a_host_is_a_name_or_an_address() {
        for name in [
            "api.example.com",
            "api.example.com:443",
            "*.api.example.com",
            "**.api.example.com",
            "localhost",
        ] {
            assert!(is_name(name), "{name}");
        }
        for other in [
            "*",
            "**",
            "*:443",
            "0.0.0.0/0",
            "10.0.0.1",
            "10.0.0.1:80",
            "::1",
            "[::1]:80",
            "fe80::/10",
            "every host",
        ] {
            assert!(!is_name(other), "{other}");
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
