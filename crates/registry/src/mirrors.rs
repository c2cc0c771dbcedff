//! Where an image is fetched from: mirrors of `registries.conf`, then its own registry.

use ironcage_command::error::CliError;
use ironcage_files::{Links, read_text};
use ironcage_images::Reference;
use serde::Deserialize;
use std::path::{Path, PathBuf};

const MAX_FILE: u64 = 1024 * 1024;

#[derive(Debug, Default, Deserialize)]
struct Registries {
    #[serde(default)]
    registry: Vec<Registry>,
}

#[derive(Debug, Deserialize)]
struct Registry {
    #[serde(default)]
    prefix: Option<String>,
    #[serde(default)]
    location: Option<String>,
    #[serde(default)]
    blocked: bool,
    #[serde(default)]
    insecure: bool,
    #[serde(default)]
    mirror: Vec<Mirror>,
}

#[derive(Debug, Deserialize)]
struct Mirror {
    location: String,
    #[serde(default)]
    insecure: bool,
}

/// A place to fetch an image from.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Source {
    /// What the image is called there.
    pub(crate) reference: Reference,
    /// Whether the file says to leave out TLS there.
    pub(crate) insecure: bool,
}

impl Source {
    fn itself(image: &Reference) -> Source {
        Source {
            reference: image.clone(),
            insecure: false,
        }
    }
}

/// The user's file, which replaces the system's.
fn file() -> Option<PathBuf> {
    let home = std::env::var_os("HOME").map(PathBuf::from);
    let own = home.map(|home| home.join(".config/containers/registries.conf"));
    let system = PathBuf::from("/etc/containers/registries.conf");
    own.into_iter().chain([system]).find(|path| path.exists())
}

/// The places to fetch an image from, in order.
pub(crate) fn sources(image: &Reference) -> Result<Vec<Source>, CliError> {
    let Some(path) = file() else {
        return Ok(vec![Source::itself(image)]);
    };
    let text =
        read_text(&path, MAX_FILE, Links::Follow).map_err(|error| CliError::from_error(&error))?;
    of(&text, image, &path)
}

fn of(text: &str, image: &Reference, path: &Path) -> Result<Vec<Source>, CliError> {
    let registries: Registries = toml::from_str(text).map_err(|error| {
        CliError::new(format!(
            "cannot read {}: {}",
            path.display(),
            error.message()
        ))
    })?;
    let full = format!("{}/{}", image.registry, image.repository);
    let best = registries
        .registry
        .iter()
        .filter_map(|registry| {
            let prefix = registry
                .prefix
                .as_deref()
                .or(registry.location.as_deref())?;
            Some((registry, rest(&full, prefix)?, prefix.len()))
        })
        .max_by_key(|(_, _, length)| *length);
    let Some((registry, below, _)) = best else {
        return Ok(vec![Source::itself(image)]);
    };
    if registry.blocked {
        return Err(CliError::new(format!(
            "cannot pull {image}: {} blocks its registry",
            path.display()
        )));
    }
    let own = registry
        .location
        .as_deref()
        .unwrap_or(&full[..full.len() - below.len()]);
    let mirrors = registry.mirror.iter();
    let locations = mirrors.map(|mirror| (mirror.location.as_str(), mirror.insecure));
    let sources = locations
        .chain([(own, registry.insecure)])
        .map(|(location, insecure)| {
            let reference = at(location, below, image)?;
            if insecure && !reference.is_loopback() {
                return Err(CliError::new(format!(
                    "cannot use {location} without TLS: it is not on this machine"
                ))
                .hint(format!("remove `insecure = true` from {}", path.display())));
            }
            Ok(Source {
                reference,
                insecure,
            })
        });
    sources.collect()
}

/// What follows a prefix, if the name is below it.
fn rest<'n>(full: &'n str, prefix: &str) -> Option<&'n str> {
    let rest = full.strip_prefix(prefix)?;
    (rest.is_empty() || rest.starts_with('/')).then_some(rest)
}

fn at(location: &str, below: &str, image: &Reference) -> Result<Reference, CliError> {
    let full = format!("{location}{below}");
    let invalid = || CliError::new(format!("invalid mirror location `{location}`"));
    let (registry, repository) = full.split_once('/').ok_or_else(invalid)?;
    let moved = Reference {
        registry: registry.to_owned(),
        repository: repository.to_owned(),
        ..image.clone()
    };
    // By the rules for names that a user types.
    moved.to_string().parse().map_err(|_| invalid())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sources(text: &str, image: &str) -> Vec<String> {
        let image = image.parse().unwrap();
        let found = of(text, &image, Path::new("registries.conf")).unwrap();
        let names = found.iter().map(|source| source.reference.to_string());
        names.collect()
    }

    #[test]
    fn tls_is_left_out_for_this_machine_only() {
        let image = "python:3.12".parse().unwrap();
        let of = |mirror: &str| {
            let text = format!(
                "[[registry]]\nlocation = \"docker.io\"\n[[registry.mirror]]\nlocation = \"{mirror}/hub\"\ninsecure = true\n"
            );
            super::of(&text, &image, Path::new("registries.conf"))
        };
        let sources = of("localhost:5000").unwrap();
        assert!(sources[0].insecure && !sources[1].insecure, "{sources:?}");
        assert!(of("mirror.example:5000").is_err());
    }

    const MIRRORS: &str = r#"
        unqualified-search-registries = ["docker.io"]
        [[registry]]
        location = "docker.io"
        [[registry.mirror]]
        location = "mirror.example:5000/hub"
        [[registry]]
        prefix = "old.example/team"
        location = "new.example/moved"
        [[registry]]
        location = "evil.example"
        blocked = true
    "#;

    #[test]
    fn a_mirror_comes_first_and_the_registry_itself_last() {
        assert_eq!(
            sources(MIRRORS, "python:3.12"),
            [
                "mirror.example:5000/hub/library/python:3.12",
                "docker.io/library/python:3.12"
            ]
        );
        assert_eq!(
            sources(MIRRORS, "old.example/team/app:1"),
            ["new.example/moved/app:1"]
        );
        for other in ["ghcr.io/a/b:1", "old.example/teams/app:1"] {
            assert_eq!(sources(MIRRORS, other), [other]);
        }
    }

    #[test]
    fn a_blocked_registry_is_refused_and_a_broken_file_is_named() {
        let image = "evil.example/a:1".parse().unwrap();
        assert!(of(MIRRORS, &image, Path::new("registries.conf")).is_err());
        assert!(of("[[registry", &image, Path::new("registries.conf")).is_err());
    }
}
