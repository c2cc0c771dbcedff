//! The denied paths of the settings on this host, and what they leave of a tree.

use super::paths::{self, Spot};
use super::settings::Rule;
use super::{Finding, Kind, Place};
use ironcage_model::Printable;
use std::fs;
use std::path::{Path, PathBuf};

/// Something that a rule keeps out, or keeps from being written.
#[derive(Debug)]
pub(super) struct Deny<'a> {
    pub(super) rule: &'a Rule,
    /// What is denied; everything below with it.
    pub(super) path: PathBuf,
    /// What has to be kept out for that: the path, or what is there above it.
    pub(super) cover: PathBuf,
    /// Where it came from a pattern, an allowed directory below it does not lift it.
    pub(super) pattern: bool,
}

/// What denies leave of a tree that a cage could show.
pub(super) enum Left<'a> {
    /// All of it but these.
    But(Vec<&'a Deny<'a>>),
    Nothing(&'a Deny<'a>),
}

/// Finds what rules deny, and tells what became of those that deny nothing.
pub(super) struct Denies<'a> {
    pub(super) place: &'a Place,
    pub(super) findings: &'a mut Vec<Finding>,
}

impl Denies<'_> {
    /// The denies of a list; those of writing are kept by mounts, which need a file or a directory.
    pub(super) fn of<'r>(&mut self, rules: &'r [Rule], mounted: bool) -> Vec<Deny<'r>> {
        let mut denies = Vec::new();
        for rule in rules {
            for spot in paths::spots(rule, self.place) {
                self.add(rule, spot, &mut denies);
            }
        }
        denies.retain(|deny| {
            let own = self.place.own.iter().any(|own| deny.path.starts_with(own));
            if own {
                let note = "Ironcage's own directories are never in a cage";
                self.findings.push(deny.rule.finding(Kind::Kept, note));
            }
            !own
        });
        for deny in denies.iter_mut().filter(|_| mounted) {
            let node = fs::metadata(&deny.cover);
            if self
                .place
                .own
                .iter()
                .any(|own| own.starts_with(&deny.cover))
            {
                deny.cover = PathBuf::from("/");
            } else if !node.is_ok_and(|node| node.is_dir() || node.is_file()) {
                deny.cover.pop();
            }
        }
        denies
    }

    fn add<'r>(&mut self, rule: &'r Rule, spot: Spot, denies: &mut Vec<Deny<'r>>) {
        let deny = |path: PathBuf, cover: PathBuf, pattern| Deny {
            rule,
            path,
            cover,
            pattern,
        };
        match spot {
            Spot::There(path) => denies.push(deny(path.clone(), path, false)),
            Spot::Missing { path, above } if !self.place.as_of_now => {
                denies.push(deny(path, above, false));
            }
            Spot::Missing { .. } => {
                let note = "does not exist now; import again when it does";
                self.findings.push(rule.finding(Kind::Differs, note));
            }
            Spot::Pattern { below, .. } if below == Path::new("/") => {
                let note = "starts at the root: srt ignores such a pattern on Linux, and so does this import";
                self.findings.push(rule.finding(Kind::NoEqual, note));
            }
            Spot::Pattern { below, parts } => {
                let now = if self.place.as_of_now {
                    paths::matches(&below, &parts)
                } else {
                    None
                };
                match now {
                    Some(found) => {
                        let note = format!(
                            "{} matches now; import again when there are more",
                            found.len()
                        );
                        self.findings.push(rule.finding(Kind::Differs, note));
                        denies.extend(found.into_iter().map(|path| deny(path.clone(), path, true)));
                    }
                    None => denies.push(deny(below.clone(), below, true)),
                }
            }
            Spot::Nothing => {
                let note = "nothing can have this name";
                self.findings.push(rule.finding(Kind::Kept, note));
            }
        }
    }
}

/// What a list of denies leaves of a tree, unless something lifts the tree out.
pub(super) fn left<'a>(
    denies: &'a [Deny<'a>],
    tree: &Path,
    lifted: impl Fn(&Deny<'_>) -> bool,
) -> Left<'a> {
    let mut inside = Vec::new();
    for deny in denies {
        let whole = tree.starts_with(&deny.path) && !lifted(deny);
        let part = deny.path.starts_with(tree) && deny.path != tree;
        if whole || (part && tree.starts_with(&deny.cover)) {
            return Left::Nothing(deny);
        }
        if part {
            inside.push(deny);
        }
    }
    Left::But(inside)
}

/// How to lose less.
pub(super) fn remedy(deny: &Deny<'_>) -> String {
    if deny.pattern {
        "With --as-of-now the import lists what the pattern matches now".to_owned()
    } else if deny.path != deny.cover {
        format!(
            "{} does not exist: create it and import again, or import with --as-of-now",
            Printable::new(&deny.path)
        )
    } else {
        String::new()
    }
}
