//! The profiles that ship, and the defaults below them.

/// A policy text that is part of the binary.
#[derive(Debug)]
pub(crate) struct Embedded {
    /// The profile's name.
    pub(crate) name: &'static str,
    /// What it is for, in one line.
    pub(crate) about: &'static str,
    /// The text as it lies in `policies/`, with its reasons.
    pub(crate) text: &'static str,
    /// The same without comments, which is what is parsed.
    pub(crate) compact: &'static str,
}

include!(concat!(env!("OUT_DIR"), "/profiles.rs"));

/// A profile that ships with Ironcage.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Profile {
    /// Its name.
    pub name: &'static str,
    /// What it is for, in one line.
    pub about: &'static str,
    /// Its text, with the reason for each entry.
    pub text: &'static str,
}

impl From<&Embedded> for Profile {
    fn from(embedded: &Embedded) -> Self {
        Profile {
            name: embedded.name,
            about: embedded.about,
            text: embedded.text,
        }
    }
}

/// Every profile, by name.
pub fn profiles() -> impl Iterator<Item = Profile> {
    PROFILES.iter().map(Profile::from)
}

/// The profile with this name.
pub fn profile(name: &str) -> Option<Profile> {
    find(name).map(Profile::from)
}

/// The text of the defaults that hold below every profile.
pub fn defaults_text() -> &'static str {
    DEFAULTS.text
}

pub(crate) fn find(name: &str) -> Option<&'static Embedded> {
    PROFILES.iter().find(|profile| profile.name == name)
}

/// The names of all profiles, for messages.
pub(crate) fn names() -> Vec<&'static str> {
    PROFILES.iter().map(|profile| profile.name).collect()
}

/// A commented policy file that builds on a profile, for `ironcage profile init`.
pub fn template(profile: &Profile) -> String {
    include_str!("../../../policies/template.toml").replace("@profile@", profile.name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    #[test]
    fn the_template_parses_as_it_is_and_with_every_key_switched_on() {
        for profile in profiles() {
            let text = template(&profile);
            let file = crate::parse(Path::new("ironcage.toml"), &text).unwrap();
            assert_eq!(file.extends.unwrap().into_inner(), profile.name);
            // A key that is switched off has no space after its `#`.
            let on: String = text
                .lines()
                .map(|line| match line.strip_prefix('#') {
                    Some(key) if !key.starts_with(' ') && !key.is_empty() => format!("{key}\n"),
                    _ => format!("{line}\n"),
                })
                .collect();
            let file = crate::parse(Path::new("ironcage.toml"), &on).unwrap();
            assert!(file.limits.idle.is_some() && !file.layers.require.is_empty());
        }
    }

    #[test]
    fn the_text_without_comments_says_the_same() {
        for embedded in PROFILES.iter().chain([&DEFAULTS]) {
            let table = |text: &str| toml::from_str::<toml::Table>(text).unwrap();
            assert_eq!(table(embedded.text), table(embedded.compact), "{}", embedded.name);
        }
    }

    #[test]
    fn every_entry_of_a_profile_has_a_comment_above_it() {
        for embedded in PROFILES.iter().chain([&DEFAULTS]) {
            let mut explained = false;
            for line in embedded.text.lines() {
                if line.starts_with('#') {
                    explained = true;
                } else if line.is_empty() || line.starts_with('[') {
                    explained = false;
                } else if line.contains(" = ") && !line.starts_with(' ') {
                    let own = line.starts_with("extends") || explained;
                    assert!(own, "{}: {line}", embedded.name);
                }
            }
        }
    }
}
