//! Names of images: `python:3.12`, `ghcr.io/owner/app@sha256:...`.

use crate::{Digest, ImageError};
use std::fmt;
use std::str::FromStr;

/// The registry of names that name none.
const DEFAULT_REGISTRY: &str = "docker.io";
/// Where that registry keeps images without an owner.
const DEFAULT_OWNER: &str = "library";
const DEFAULT_TAG: &str = "latest";
/// The limits of the distribution specification.
const MAX_NAME: usize = 255;
const MAX_TAG: usize = 128;

/// The name of an image, in full.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reference {
    /// Host and port of the registry.
    pub registry: String,
    pub repository: String,
    /// The tag; `latest` where neither tag nor digest is named.
    pub tag: Option<String>,
    /// The digest of the manifest, where the name pins one.
    pub digest: Option<Digest>,
}

impl Reference {
    /// Whether the registry is on this machine, where TLS may be left out.
    pub fn is_loopback(&self) -> bool {
        let host = match self.registry.rsplit_once(':') {
            Some((host, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => host,
            _ => self.registry.as_str(),
        };
        let host = host.trim_start_matches('[').trim_end_matches(']');
        host == "localhost"
            || host
                .parse::<std::net::IpAddr>()
                .is_ok_and(|address| address.is_loopback())
    }

    /// What follows the repository in a request: the digest if there is one, or the tag.
    pub fn tag_or_digest(&self) -> String {
        match (&self.digest, &self.tag) {
            (Some(digest), _) => digest.to_string(),
            (None, Some(tag)) => tag.clone(),
            (None, None) => DEFAULT_TAG.to_owned(),
        }
    }

    /// The name as people write it: without what is understood.
    pub fn familiar(&self) -> String {
        let full = self.to_string();
        let short = full
            .strip_prefix("docker.io/library/")
            .or_else(|| full.strip_prefix("docker.io/"));
        short.unwrap_or(&full).to_owned()
    }
}

impl fmt::Display for Reference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.registry, self.repository)?;
        if let Some(tag) = &self.tag {
            write!(f, ":{tag}")?;
        }
        if let Some(digest) = &self.digest {
            write!(f, "@{digest}")?;
        }
        Ok(())
    }
}

fn is_registry(part: &str) -> bool {
    part == "localhost" || part.contains(['.', ':'])
}

fn check_registry(part: &str) -> Result<(), &'static str> {
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b".-:[]".contains(&byte);
    let begins = part.starts_with(|first: char| first.is_ascii_alphanumeric() || first == '[');
    let host = match part.rsplit_once(':') {
        Some((host, port)) if !port.ends_with(']') => {
            match !port.is_empty() && port.bytes().all(|byte| byte.is_ascii_digit()) {
                true => host,
                false => return Err("the port of the registry is not a number"),
            }
        }
        _ => part,
    };
    match begins && !host.is_empty() && part.bytes().all(allowed) {
        true => Ok(()),
        false => Err("the registry is not a host name with an optional port"),
    }
}

fn check_repository(repository: &str) -> Result<(), &'static str> {
    let part = |part: &str| {
        let ends = |byte: Option<&u8>| {
            byte.is_some_and(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit())
        };
        let allowed =
            |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"._-".contains(&byte);
        let bytes = part.as_bytes();
        ends(bytes.first()) && ends(bytes.last()) && part.bytes().all(allowed)
    };
    match repository.len() <= MAX_NAME && repository.split('/').all(part) {
        true => Ok(()),
        false => Err("a repository has lower-case letters, digits, '.', '_' and '-' between '/'"),
    }
}

fn check_tag(tag: &str) -> Result<(), &'static str> {
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    let first = tag
        .bytes()
        .next()
        .is_some_and(|byte| byte.is_ascii_alphanumeric() || byte == b'_');
    match first && tag.len() <= MAX_TAG && tag.bytes().all(allowed) {
        true => Ok(()),
        false => Err("a tag has letters, digits, '.', '_' and '-'"),
    }
}

impl FromStr for Reference {
    type Err = ImageError;

    fn from_str(text: &str) -> Result<Self, ImageError> {
        let invalid = |why: &'static str| ImageError::BadReference {
            text: text.chars().take(200).collect(),
            why,
        };
        let (rest, digest) = match text.split_once('@') {
            Some((rest, digest)) => (rest, Some(digest.parse::<Digest>()?)),
            None => (text, None),
        };
        // A ':' before the last '/' is a port.
        let (name, tag) = match rest.rsplit_once(':') {
            Some((name, tag)) if !tag.contains('/') => (name, Some(tag)),
            _ => (rest, None),
        };
        let (registry, repository) = match name.split_once('/') {
            Some((registry, repository)) if is_registry(registry) => {
                (registry.to_owned(), repository.to_owned())
            }
            Some(_) => (DEFAULT_REGISTRY.to_owned(), name.to_owned()),
            None => (
                DEFAULT_REGISTRY.to_owned(),
                format!("{DEFAULT_OWNER}/{name}"),
            ),
        };
        let registry = match registry.as_str() {
            "index.docker.io" | "registry-1.docker.io" => DEFAULT_REGISTRY.to_owned(),
            _ => registry,
        };
        check_registry(&registry).map_err(invalid)?;
        check_repository(&repository).map_err(invalid)?;
        if let Some(tag) = tag {
            check_tag(tag).map_err(invalid)?;
        }
        let tag = match (tag, &digest) {
            (Some(tag), _) => Some(tag.to_owned()),
            (None, None) => Some(DEFAULT_TAG.to_owned()),
            (None, Some(_)) => None,
        };
        Ok(Reference {
            registry,
            repository,
            tag,
            digest,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_completed_as_docker_does_it() {
        for (text, full, familiar) in [
            ("python", "docker.io/library/python:latest", "python:latest"),
            (
                "python:3.12",
                "docker.io/library/python:3.12",
                "python:3.12",
            ),
            (
                "owner/app",
                "docker.io/owner/app:latest",
                "owner/app:latest",
            ),
            (
                "ghcr.io/owner/app:v1",
                "ghcr.io/owner/app:v1",
                "ghcr.io/owner/app:v1",
            ),
            (
                "localhost:5000/test",
                "localhost:5000/test:latest",
                "localhost:5000/test:latest",
            ),
            (
                "127.0.0.1:5000/a/b:t",
                "127.0.0.1:5000/a/b:t",
                "127.0.0.1:5000/a/b:t",
            ),
        ] {
            let reference: Reference = text.parse().unwrap();
            assert_eq!(reference.to_string(), full);
            assert_eq!(reference.familiar(), familiar);
            assert_eq!(full.parse::<Reference>().unwrap(), reference);
        }
    }

    #[test]
    fn a_digest_pins_and_leaves_the_tag_open() {
        let digest = Digest::of(b"manifest");
        let text = format!("python@{digest}");
        let reference: Reference = text.parse().unwrap();
        assert_eq!(reference.tag, None);
        assert_eq!(reference.tag_or_digest(), digest.to_string());
    }

    #[test]
    fn what_is_not_a_name_is_refused() {
        for wrong in [
            "",
            "/",
            "Python",
            "../etc",
            "a//b",
            "a/",
            "python:",
            "python:-x",
            "python:a/b",
            "python@sha256:12",
            "ho st.io/a",
            "a b",
            "registry.io/../x",
        ] {
            assert!(wrong.parse::<Reference>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn only_this_machine_is_loopback() {
        for (text, is) in [
            ("localhost:5000/a", true),
            ("127.0.0.1:5000/a", true),
            ("[::1]:5000/a", true),
            ("localhost.example.com/a", false),
            ("127.0.0.1.example.com/a", false),
            ("python", false),
        ] {
            let reference: Reference = text.parse().unwrap();
            assert_eq!(reference.is_loopback(), is, "{text}");
        }
    }
}
