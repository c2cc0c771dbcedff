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
