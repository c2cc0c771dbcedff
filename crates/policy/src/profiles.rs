//! The profiles that ship, and the defaults below them.

use crate::PolicyFile;
use std::collections::BTreeMap;
use toml::Spanned;

/// A policy text that is part of the binary.
#[derive(Debug)]
pub(crate) struct Embedded {
    pub(crate) name: &'static str,
    /// What it is for, in one line.
    pub(crate) about: &'static str,
    /// The text as it lies in `policies/`, with its reasons.
    pub(crate) text: &'static str,
    /// Makes what the text parses to, without parsing it.
    pub(crate) file: fn() -> PolicyFile,
}

include!(concat!(env!("OUT_DIR"), "/profiles.rs"));

/// A value that stands nowhere in particular: values of profiles have no lines.
fn at<T>(value: T) -> Spanned<T> {
    Spanned::new(0..0, value)
}

fn texts(values: &[&str]) -> Vec<Spanned<String>> {
    values.iter().map(|value| at((*value).to_owned())).collect()
}

fn pairs(values: &[(&str, &str)]) -> BTreeMap<Spanned<String>, Spanned<String>> {
    values
        .iter()
        .map(|(name, value)| (at((*name).to_owned()), at((*value).to_owned())))
        .collect()
}

/// A profile that ships with Ironcage.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Profile {
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
            for section in [
                "[network]",
                "[ceiling]",
                "[ceiling.ask.files]",
                "[questions]",
            ] {
                assert!(text.contains(section), "{section}");
            }
        }
    }

    #[test]
    fn what_is_built_in_is_what_the_text_says() {
        use crate::diagnostic::Document;
        use crate::fragment::{Source, from_file};
        for embedded in PROFILES.iter().chain([&DEFAULTS]) {
            let document = Document {
                path: embedded.name.into(),
                text: embedded.text.into(),
            };
            let parsed = crate::parse(Path::new(embedded.name), embedded.text).unwrap();
            let made = (embedded.file)();
            let extends =
                |file: &PolicyFile| file.extends.as_ref().map(|name| name.get_ref().clone());
            assert_eq!(extends(&parsed), extends(&made));
            let source = Source::Profile(embedded.name);
            let fragment = |file| from_file(file, &document, &source, Path::new("/h")).unwrap();
            assert_eq!(fragment(&parsed), fragment(&made), "{}", embedded.name);
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
