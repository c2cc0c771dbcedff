//! Expands the hide patterns of a policy: a bounded walk through the trees in the view. A tree
//! that is too large is an error, because a secret in it could stay visible.

use super::Builder;
use crate::PlanError;
use crate::plan::{HiddenBy, ViewOp};
use ironcage_host::NodeType;
use ironcage_policy::{HidePattern, Policy, Progress, Sourced};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

/// The most names that are looked at.
const MOST_NAMES: usize = 1_000_000;
/// The most that is hidden: each is a mount.
const MOST_HIDDEN: usize = 2_000;

/// What a walk found.
#[derive(Default)]
struct PatternMatches {
    names: usize,
    /// What is hidden, with the pattern's number.
    hidden: Vec<(PathBuf, usize)>,
    /// Directories that could not be read, and are hidden for that.
    closed: Vec<PathBuf>,
}

impl Builder<'_> {
    /// Hides what the policy's patterns name in the trees that are given.
    pub(super) fn hide_matching(
        &mut self,
        policy: &Policy,
        given: &[PathBuf],
    ) -> Result<(), PlanError> {
        let patterns = &policy.hide_matching;
        if patterns.is_empty() {
            return Ok(());
        }
        let mut found = PatternMatches::default();
        for (root, from) in self.walked(patterns, given) {
            self.walk(&root, &from, patterns, &mut found)?;
        }
        for path in &found.closed {
            self.hide(
                path,
                HiddenBy::Policy,
                "it may contain a hidden file, and cannot be read".into(),
            );
            self.made.notes.push(format!(
                "{} is hidden, because it cannot be searched for files to hide",
                path.display()
            ));
        }
        let mut counts = vec![0_usize; patterns.len()];
        for (path, number) in &found.hidden {
            if let Some(pattern) = patterns.get(*number) {
                counts[*number] += usize::from(self.hide_found(path, pattern, given));
            }
        }
        for (pattern, count) in patterns.iter().zip(counts) {
            self.made.notes.push(format!(
                "{} hides {count} of {} names that exist now; files that appear later stay visible",
                pattern.value, found.names
            ));
        }
        Ok(())
    }

    /// Where the walk begins, with how far each pattern has come there: trees that are given,
    /// and none of them twice.
    fn walked(
        &self,
        patterns: &[Sourced<HidePattern>],
        given: &[PathBuf],
    ) -> Vec<(PathBuf, Vec<Progress>)> {
        let mut roots: Vec<&PathBuf> = given.iter().collect();
        roots.sort();
        roots.dedup();
        let outer: Vec<&PathBuf> = roots
            .iter()
            .filter(|root| {
                !roots
                    .iter()
                    .any(|other| other != *root && root.starts_with(other))
            })
            .copied()
            .collect();
        let mut walked = Vec::new();
        for root in outer {
            // One walk for the patterns that hold everywhere, and one for each of the others.
            let everywhere = patterns.iter().map(|pattern| match pattern.value.below() {
                None => pattern.value.begin(),
                Some(_) => Progress::NOWHERE,
            });
            walked.push((root.clone(), everywhere.collect::<Vec<_>>()));
            for (number, pattern) in patterns.iter().enumerate() {
                let Some(below) = pattern.value.below() else {
                    continue;
                };
                let mut from = vec![Progress::NOWHERE; patterns.len()];
                let begin = pattern.value.begin();
                if below.starts_with(root) {
                    from[number] = begin;
                    walked.push((below.to_owned(), from));
                } else if let Ok(rest) = root.strip_prefix(below) {
                    from[number] = rest
                        .iter()
                        .fold(begin, |at, name| pattern.value.step(at, name.as_bytes()));
                    walked.push((root.clone(), from));
                }
            }
        }
        walked.retain(|(_, from)| from.iter().any(|at| !at.is_over()));
        walked
    }

    fn walk(
        &self,
        root: &Path,
        from: &[Progress],
        patterns: &[Sourced<HidePattern>],
        found: &mut PatternMatches,
    ) -> Result<(), PlanError> {
        let too_much = |what: String| PlanError::HiddenWalk {
            path: root.to_owned(),
            what,
            origin: patterns
                .first()
                .map(|pattern| pattern.origin.to_string())
                .unwrap_or_default(),
        };
        let mut left = vec![(root.to_owned(), from.to_vec())];
        while let Some((directory, from)) = left.pop() {
            let names = match self.files.list(&directory) {
                Ok(names) => names,
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => continue,
                Err(_) if directory == root => continue,
                Err(_) => {
                    found.closed.push(directory);
                    continue;
                }
            };
            found.names += names.len();
            if found.names > MOST_NAMES {
                return Err(too_much(format!("{MOST_NAMES} names")));
            }
            for (name, kind) in names {
                let at: Vec<Progress> = patterns
                    .iter()
                    .zip(&from)
                    .map(|(pattern, from)| pattern.value.step(*from, name.as_bytes()))
                    .collect();
                let hidden = patterns
                    .iter()
                    .zip(&at)
                    .position(|(pattern, at)| pattern.value.is_hidden(*at));
                if let Some(number) = hidden {
                    found.hidden.push((directory.join(&name), number));
                    if found.hidden.len() > MOST_HIDDEN {
                        return Err(too_much(format!("{MOST_HIDDEN} names to hide")));
                    }
                } else if kind == NodeType::Directory && at.iter().any(|at| !at.is_over()) {
                    left.push((directory.join(&name), at));
                }
            }
        }
        Ok(())
    }

    /// Hides one path that was found, or what it leads to where it is a link.
    fn hide_found(
        &mut self,
        path: &Path,
        pattern: &Sourced<HidePattern>,
        given: &[PathBuf],
    ) -> bool {
        let Some(node) = self.files.node(path) else {
            return false;
        };
        let real = match node.kind {
            NodeType::Symlink => match self.files.real(path) {
                Ok(real) => real,
                // It leads nowhere.
                Err(_) => return false,
            },
            _ => path.to_owned(),
        };
        let holds_a_tree = given.iter().any(|tree| tree.starts_with(&real));
        let visible = given.iter().any(|tree| real.starts_with(tree));
        if holds_a_tree || !visible {
            if holds_a_tree {
                self.made.notes.push(format!(
                    "{} is not hidden: it points to a whole tree that the cage has",
                    path.display()
                ));
            }
            return false;
        }
        let known = |item: &crate::plan::Item<ViewOp>| matches!(&item.what, ViewOp::Hide { target, .. } if real.starts_with(target));
        if self.made.ops.iter().any(known) {
            return true;
        }
        if node.kind == NodeType::File && node.links > 1 {
            self.made.notes.push(format!(
                "{} has another name (a hard link), under which it may be visible",
                path.display()
            ));
        }
        let origin = format!("{}: {}", pattern.origin, pattern.value);
        self.hide(&real, HiddenBy::Policy, origin.clone());
        self.made.matched.push((real, origin));
        true
    }
}
