//! Merges all sources of one run into one policy.
//!
//! Defaults, then the profile, the user's configuration, the policy file and the flags, each
//! on top of the one before. A file in the workspace can only narrow the policy below it,
//! unless the user has trusted it.

use crate::chain::{self, Chain};
use crate::diagnostic::Document;
use crate::lint::Lint;
use crate::narrow::{limits_to_weigh, narrow};
use crate::profiles::{self, Embedded};
use crate::search::find_policy_file;
use crate::trust::{TrustDigest, TrustStore, TrustedFile};
use crate::{FlagLayer, Policy, PolicyError, Sourced, commands, fragment, merge, secret};
use ironcage_catalog::commands::CommandProfile;
use ironcage_catalog::keys;
use ironcage_model::Printable;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

/// What a policy is made from.
#[derive(Debug, Clone, Default)]
pub struct Sources {
    pub profile: Option<String>,
    /// `--policy`: a file that the user named, and so trusts.
    pub policy_file: Option<PathBuf>,
    /// The workspace, absolute and without symbolic links.
    pub workspace: PathBuf,
    /// The command's name or path, which may decide the profile.
    pub command: Option<OsString>,
    /// Ironcage's configuration directory (`XDG_CONFIG_HOME/ironcage`), with `config.toml`.
    pub user_config_dir: Option<PathBuf>,
    /// Ironcage's state directory (`XDG_STATE_HOME/ironcage`), with the records of trust.
    pub state_dir: Option<PathBuf>,
    /// The user's home directory, for `~/`.
    pub home: PathBuf,
    /// The caller's environment variables that are not empty, by name: a known agent gets the key
    /// of its vendor.
    pub variables: Vec<OsString>,
    pub flags: FlagLayer,
}

/// A policy, and how it came about.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Resolved {
    pub policy: Policy,
    /// Which profile and why, in one line.
    pub profile_choice: String,
    /// What an untrusted file wanted and did not get.
    pub narrowed: Vec<String>,
    /// The policy file in force, if any.
    pub file: Option<PathBuf>,
    /// Whether that file's word counts in full.
    pub trusted: bool,
    /// Every file that was read, real paths: no agent may write them.
    pub documents: Vec<PathBuf>,
}

/// A policy file of a workspace before it is trusted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Examined {
    /// What would be recorded.
    pub trusted: TrustedFile,
    /// Every file whose content counts, base first.
    pub files: Vec<PathBuf>,
    /// What it would allow beyond the profile, in words.
    pub widens: Vec<String>,
    /// Whether it is trusted already.
    pub already: bool,
}

/// Makes the policy of one run.
///
/// # Errors
/// Where a source cannot be read, is not valid, or contradicts another.
pub fn resolve(sources: &Sources) -> Result<Resolved, PolicyError> {
    let config = load_config(sources)?;
    let found = match &sources.policy_file {
        Some(path) => Some((chain::load(path, &sources.home, false)?, true)),
        None => match find_policy_file(&sources.workspace, &sources.home) {
            Some(path) => {
                let chain = chain::load_found(&path, &sources.home)?;
                let trusted = is_trusted(sources, &chain);
                Some((chain, trusted))
            }
            None => None,
        },
    };
    let trusted_chain = found
        .as_ref()
        .filter(|(_, trusted)| *trusted)
        .map(|(chain, _)| chain);
    let (profile, profile_choice) = choose_profile(sources, trusted_chain, config.as_ref())?;
    let mut policy = base_policy(profile, &sources.home)?;
    policy.ceiling.place(&sources.workspace);
    add_command_bundles(&mut policy, sources);
    let mut documents = Vec::new();
    let mut narrowed = Vec::new();
    let (mut file, mut trusted) = (None, false);
    if let Some(chain) = config {
        apply_chain(&mut policy, chain, sources, &mut documents);
    }
    if let Some((chain, is_trusted)) = found {
        file = chain.links.last().map(|link| link.document.path.clone());
        trusted = is_trusted;
        if is_trusted {
            apply_chain(&mut policy, chain, sources, &mut documents);
        } else {
            narrowed = apply_untrusted(&mut policy, chain, sources, &mut documents)?;
        }
    }
    merge::apply(&mut policy, sources.flags.fragment(&sources.home)?);
    merge::add_capability_groups(&mut policy);
    merge::add_leased_secrets(&mut policy);
    add_command_keys(&mut policy, sources)?;
    let lint = Lint {
        workspace: &sources.workspace,
        documents: &documents,
    };
    lint.check(&policy)?;
    let documents = documents.iter().map(|document| document.path.clone());
    Ok(Resolved {
        documents: documents.collect(),
        policy,
        profile_choice,
        narrowed,
        file,
        trusted,
    })
}

/// What a profile alone makes, as `ironcage profile show` prints it.
///
/// # Errors
/// If the profile does not exist.
pub fn resolve_profile(name: &str, home: &Path) -> Result<Policy, PolicyError> {
    base_policy(find_profile(name)?, home)
}

/// Looks at a policy file that the user is about to trust.
///
/// # Errors
/// Where the file cannot be read or is not valid.
pub fn examine(path: &Path, sources: &Sources) -> Result<Examined, PolicyError> {
    let chain = chain::load(path, &sources.home, false)?;
    let digest = TrustDigest::of(&chain.links);
    let already = is_trusted(sources, &chain);
    let files: Vec<PathBuf> = chain
        .links
        .iter()
        .flat_map(|link| std::iter::once(&link.document).chain(&link.rules))
        .map(|document| document.path.clone())
        .collect();
    let last = chain.links.last().map(|link| link.document.path.clone());
    let path = last.unwrap_or_else(|| path.to_owned());
    let config = load_config(sources)?;
    let (profile, _) = choose_profile(sources, None, config.as_ref())?;
    let mut policy = base_policy(profile, &sources.home)?;
    policy.ceiling.place(&sources.workspace);
    let mut documents = Vec::new();
    if let Some(chain) = config {
        apply_chain(&mut policy, chain, sources, &mut documents);
    }
    let weigh = chain
        .links
        .iter()
        .flat_map(|link| limits_to_weigh(&policy, &link.fragment));
    let mut widens: Vec<String> = weigh.collect();
    widens.extend(apply_untrusted(
        &mut policy,
        chain,
        sources,
        &mut documents,
    )?);
    Ok(Examined {
        trusted: TrustedFile { path, digest },
        files,
        widens,
        already,
    })
}

fn load_config(sources: &Sources) -> Result<Option<Chain>, PolicyError> {
    let Some(directory) = &sources.user_config_dir else {
        return Ok(None);
    };
    let path = directory.join("config.toml");
    match std::fs::symlink_metadata(&path) {
        Ok(_) => chain::load(&path, &sources.home, true).map(Some),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        // Not to be read is not the same as not to be there: it may ask for less.
        Err(source) => Err(PolicyError::Read { path, source }),
    }
}

fn is_trusted(sources: &Sources, chain: &Chain) -> bool {
    sources
        .state_dir
        .as_ref()
        .is_some_and(|state| TrustStore::new(state).is_trusted(&TrustDigest::of(&chain.links)))
}

fn find_profile(name: &str) -> Result<&'static Embedded, PolicyError> {
    profiles::find(name).ok_or_else(|| PolicyError::UnknownProfile {
        name: name.to_owned(),
        profiles: profiles::names().join(", "),
    })
}

/// The flag, else the file's own base, else the configuration's, else the command's, else
/// `shell`; with the reason.
fn choose_profile(
    sources: &Sources,
    file: Option<&Chain>,
    config: Option<&Chain>,
) -> Result<(&'static Embedded, String), PolicyError> {
    let because = |profile: &'static Embedded, why: String| {
        (profile, format!("profile {} ({why})", profile.name))
    };
    if let Some(name) = &sources.profile {
        return Ok(because(find_profile(name)?, "--profile".to_owned()));
    }
    for (chain, why) in [(file, "policy file"), (config, "your configuration")] {
        let Some(chain) = chain else { continue };
        if let (Some(profile), Some(link)) = (chain.chosen.or(chain.root), chain.links.last()) {
            let path = Printable::new(&link.document.path);
            return Ok(because(profile, format!("{why} {path}")));
        }
    }
    if let Some(entry) = sources.command.as_deref().and_then(commands::profile_for) {
        return Ok(because(
            find_profile(entry.profile)?,
            format!("for {}: {}", entry.command, entry.why),
        ));
    }
    Ok(because(find_profile("shell")?, "the default".to_owned()))
}

fn base_policy(profile: &'static Embedded, home: &Path) -> Result<Policy, PolicyError> {
    let name = Sourced::new(profile.name.to_owned(), merge::profile_origin(profile.name));
    let mut policy = merge::from_defaults(chain::defaults_fragment(home)?, name)?;
    for fragment in chain::profile_fragments(profile, home)? {
        merge::apply(&mut policy, fragment);
    }
    Ok(policy)
}

/// The entry of the command, where it gets the profile that is made for it.
fn command_entry(policy: &Policy, sources: &Sources) -> Option<&'static CommandProfile> {
    let entry = sources.command.as_deref().and_then(commands::profile_for);
    entry.filter(|entry| entry.profile == policy.profile.value)
}

/// The hosts that a command comes with.
fn add_command_bundles(policy: &mut Policy, sources: &Sources) {
    let Some(entry) = command_entry(policy, sources) else {
        return;
    };
    let bundles = entry.bundles.iter().map(|name| {
        let origin = merge::profile_origin(entry.profile);
        Sourced::new((*name).to_owned(), origin)
    });
    policy.network.bundles.extend(bundles);
}

/// The keys of an agent's vendor that the caller has, as secrets for the vendor's hosts; unless the
/// policy says something about the variable or has a login for the host, or another variable sends
/// the agent to other hosts.
fn add_command_keys(policy: &mut Policy, sources: &Sources) -> Result<(), PolicyError> {
    let Some(entry) = command_entry(policy, sources) else {
        return Ok(());
    };
    let is_set = |name: &str| sources.variables.iter().any(|known| known == name);
    for key in entry.keys.iter().filter_map(|name| keys::find(name)) {
        let network = &policy.network;
        let decided = network
            .secrets
            .iter()
            .any(|secret| secret.value.name == key.variable)
            || policy
                .env
                .iter()
                .any(|rule| rule.value.name() == key.variable)
            || key.base_url.is_some_and(is_set)
            || !network.logins.is_empty();
        if decided || key.hosts.is_empty() || !is_set(key.variable) {
            continue;
        }
        let text = format!("{}@{}", key.variable, key.hosts.join(","));
        let rule = secret(&text).map_err(|error| PolicyError::Flag {
            flag: "--secret",
            reason: error.to_string(),
        })?;
        let origin = merge::profile_origin(entry.profile);
        policy.network.secrets.push(Sourced::new(rule, origin));
    }
    Ok(())
}

fn apply_chain(
    policy: &mut Policy,
    chain: Chain,
    sources: &Sources,
    documents: &mut Vec<Document>,
) {
    for mut link in chain.links {
        documents.push(link.document);
        documents.extend(link.rules);
        link.fragment.ceiling.place(&sources.workspace);
        merge::apply(policy, link.fragment);
    }
}

/// Takes from an untrusted chain only what narrows; returns the rest in words.
fn apply_untrusted(
    policy: &mut Policy,
    chain: Chain,
    sources: &Sources,
    documents: &mut Vec<Document>,
) -> Result<Vec<String>, PolicyError> {
    let mut narrowed = Vec::new();
    let take = |policy: &mut Policy, mut fragment: fragment::Fragment| {
        fragment.ceiling.place(&sources.workspace);
        let dropped = narrow(policy, &mut fragment, &sources.workspace);
        merge::apply(policy, fragment);
        dropped
    };
    if let Some(profile) = chain
        .root
        .filter(|profile| profile.name != policy.profile.value)
    {
        let mut wider = false;
        for fragment in chain::profile_fragments(profile, &sources.home)? {
            wider |= !take(policy, fragment).is_empty();
        }
        if wider {
            let path = chain
                .links
                .first()
                .map(|link| Printable::new(&link.document.path).to_string());
            let path = path.unwrap_or_default();
            narrowed.push(format!(
                "extends {}, in the parts that are wider ({path})",
                profile.name
            ));
        }
    }
    for link in chain.links {
        documents.push(link.document);
        documents.extend(link.rules);
        narrowed.extend(take(policy, link.fragment));
    }
    Ok(narrowed)
}
