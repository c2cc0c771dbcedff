//! A policy file and all that it extends, read once, base first.

use crate::diagnostic::Document;
use crate::fragment::{self, Base, Fragment, Source};
use crate::parse::parse_document;
use crate::profiles::{self, Embedded};
use crate::{Diagnostic, PolicyError, RulesFile, Sourced};
use ironcage_files::{Links, ReadError, read_text};
use ironcage_model::Printable;
use std::fs;
use std::path::{Path, PathBuf};

/// No policy that a person wrote is larger; a file that is would only cost memory.
const LARGEST: u64 = 256 * 1024;
/// A policy on a policy on a policy; more is a mistake.
const DEEPEST: usize = 16;

/// One file of a chain.
pub(crate) struct Link {
    pub(crate) document: Document,
    /// The rules that it names.
    pub(crate) rules: Option<Document>,
    pub(crate) fragment: Fragment,
}

/// A file, what it extends, and the profile below all.
pub(crate) struct Chain {
    /// The profile that the lowest file extends.
    pub(crate) root: Option<&'static Embedded>,
    /// What the file's own `profile` key names; only for the user's configuration.
    pub(crate) chosen: Option<&'static Embedded>,
    /// The files, base first.
    pub(crate) links: Vec<Link>,
}

/// Reads a file as text; only a regular file of sane size.
pub(crate) fn read(path: &Path) -> Result<Document, PolicyError> {
    let text = read_text(path, LARGEST, Links::Follow).map_err(|error| match error {
        ReadError::Failed { path, source } => PolicyError::Read { path, source },
        other => PolicyError::NotAPolicy {
            path: path.to_owned(),
            reason: other.reason(),
        },
    })?;
    Ok(Document {
        path: path.to_owned(),
        text: text.into(),
    })
}

/// Reads a file that was found in a workspace and all that it extends. An agent may have put
/// it there: a link, or a base outside its directory, would make us read other files of the
/// user and show their lines in an error.
pub(crate) fn load_found(path: &Path, home: &Path) -> Result<Chain, PolicyError> {
    let is_link = fs::symlink_metadata(path).is_ok_and(|metadata| metadata.is_symlink());
    if is_link {
        return Err(PolicyError::NotAPolicy {
            path: path.to_owned(),
            reason: "a symbolic link; use `--policy` for a file outside the workspace".into(),
        });
    }
    read_chain(path, home, false, path.parent())
}

/// Reads a file that the user named, and all that it extends.
pub(crate) fn load(path: &Path, home: &Path, is_config: bool) -> Result<Chain, PolicyError> {
    read_chain(path, home, is_config, None)
}

fn read_chain(
    path: &Path,
    home: &Path,
    is_config: bool,
    within: Option<&Path>,
) -> Result<Chain, PolicyError> {
    let within = within.map(canonical).transpose()?;
    let mut chain = Chain {
        root: None,
        chosen: None,
        links: Vec::new(),
    };
    let mut next = Some(canonical(path)?);
    let mut named: Option<Diagnostic> = None;
    while let Some(path) = next.take() {
        let document = match read(&path) {
            Ok(document) => document,
            // A base that cannot be read is an error of the line that names it.
            Err(error) => return Err(named.map_or(error, PolicyError::from)),
        };
        let file = parse_document(&document)?;
        if let Some(name) = &file.profile {
            let profile =
                config_profile(&document, name, home, is_config && chain.links.is_empty())?;
            chain.chosen = Some(profile);
        }
        let mut fragment = fragment::from_file(&file, &document, &Source::File, home)?;
        let rules = match (&fragment.ceiling.cedar, &file.ceiling.cedar) {
            (Some(named), Some(written)) => {
                let rules = read_rules(&document, written, &named.value, within.as_deref())?;
                let origin = named.origin.clone();
                fragment.ceiling.rules = Some(Sourced::new(RulesFile::of(&rules), origin));
                Some(rules)
            }
            _ => None,
        };
        chain.links.push(Link {
            document,
            rules,
            fragment,
        });
        let (Some(link), Some(extends)) = (chain.links.last(), &file.extends) else {
            continue;
        };
        let document = &link.document;
        match fragment::base(document, extends, home)? {
            Base::Profile(profile) => chain.root = Some(profile),
            Base::File(base) => {
                let missing = Diagnostic::new(
                    document,
                    extends.span(),
                    format!("cannot read `{}`", extends.get_ref()),
                    format!("names {}", Printable::new(&base)),
                )
                .remedy(format!(
                    "the chain is {}; use a path relative to this file",
                    trail(&chain.links, &base)
                ));
                let base = fs::canonicalize(&base).map_err(|_| missing.clone())?;
                if within
                    .as_ref()
                    .is_some_and(|within| !base.starts_with(within))
                {
                    return Err(Diagnostic::new(
                        document,
                        extends.span(),
                        "a policy file in a workspace cannot extend a file outside its directory",
                        "outside the directory",
                    )
                    .remedy("copy that file next to this one, or pass this one with --policy")
                    .into());
                }
                let seen = chain.links.iter().any(|link| link.document.path == base);
                if seen || chain.links.len() >= DEEPEST {
                    return Err(Diagnostic::new(
                        document,
                        extends.span(),
                        "a policy extends itself",
                        "closes the cycle",
                    )
                    .remedy(format!("break the cycle {}", trail(&chain.links, &base)))
                    .into());
                }
                named = Some(missing);
                next = Some(base);
            }
        }
    }
    chain.links.reverse();
    Ok(chain)
}

/// Reads the rules file of a policy file. A policy file that must not name other files must not
/// name rules outside its directory either.
fn read_rules(
    document: &Document,
    written: &toml::Spanned<String>,
    path: &Path,
    within: Option<&Path>,
) -> Result<Document, PolicyError> {
    let wrong = |label: String, remedy: &str| {
        let title = format!("cannot read the rules file `{}`", written.get_ref());
        PolicyError::from(Diagnostic::new(document, written.span(), title, label).remedy(remedy))
    };
    let named = format!("names {}", Printable::new(path));
    let real = fs::canonicalize(path).map_err(|error| {
        let label = format!("{named}: {error}");
        wrong(label, "use a path relative to this file")
    })?;
    if within.is_some_and(|within| !real.starts_with(within)) {
        return Err(wrong(
            "outside the directory".to_owned(),
            "rules of a policy file in a workspace must be in its directory; copy them there, or pass this file with --policy",
        ));
    }
    read(&real).map_err(|error| {
        let why = match &error {
            PolicyError::NotAPolicy { reason, .. } => reason.clone(),
            PolicyError::Read { source, .. } => source.to_string(),
            other => other.to_string(),
        };
        let remedy = "a rules file is text of at most 256 KiB";
        wrong(format!("{named}: {why}"), remedy)
    })
}

fn config_profile(
    document: &Document,
    name: &toml::Spanned<String>,
    home: &Path,
    allowed: bool,
) -> Result<&'static Embedded, Diagnostic> {
    let wrong = |title: &str, remedy: &str| {
        Diagnostic::new(document, name.span(), title, "not here").remedy(remedy)
    };
    if !allowed {
        return Err(wrong(
            "`profile` is only allowed in the user's configuration",
            "use extends = \"...\" to build on a profile",
        ));
    }
    match fragment::base(document, name, home)? {
        Base::Profile(profile) => Ok(profile),
        Base::File(_) => Err(wrong(
            "`profile` takes the name of a profile, not a file",
            "use extends = \"./file.toml\" to build on a file",
        )),
    }
}

fn canonical(path: &Path) -> Result<PathBuf, PolicyError> {
    fs::canonicalize(path).map_err(|source| PolicyError::Read {
        path: path.to_owned(),
        source,
    })
}

/// The way through the chain, for messages.
fn trail(links: &[Link], last: &Path) -> String {
    let mut names: Vec<String> = links
        .iter()
        .map(|link| Printable::new(&link.document.path).to_string())
        .collect();
    names.push(Printable::new(last).to_string());
    names.join(" -> ")
}

/// What a profile says, its own bases first. Profiles ship with the binary and extend
/// only each other, which a test holds.
pub(crate) fn profile_fragments(
    profile: &'static Embedded,
    home: &Path,
) -> Result<Vec<Fragment>, PolicyError> {
    let mut fragments = Vec::new();
    let mut next = Some(profile);
    while let Some(profile) = next.take() {
        let document = Document {
            path: PathBuf::from(format!("profile {}", profile.name)),
            text: profile.text.into(),
        };
        let file = (profile.file)();
        let source = Source::Profile(profile.name);
        fragments.push(fragment::from_file(&file, &document, &source, home)?);
        if let Some(extends) = &file.extends {
            next = match fragment::base(&document, extends, home)? {
                Base::Profile(base) if fragments.len() < DEEPEST => Some(base),
                _ => {
                    return Err(PolicyError::UnknownProfile {
                        name: extends.get_ref().clone(),
                        profiles: profiles::names().join(", "),
                    });
                }
            };
        }
    }
    fragments.reverse();
    Ok(fragments)
}

/// What the built-in defaults say.
pub(crate) fn defaults_fragment(home: &Path) -> Result<Fragment, PolicyError> {
    let document = Document {
        path: PathBuf::from("built-in defaults"),
        text: profiles::DEFAULTS.text.into(),
    };
    let file = (profiles::DEFAULTS.file)();
    Ok(fragment::from_file(
        &file,
        &document,
        &Source::BuiltIn,
        home,
    )?)
}
