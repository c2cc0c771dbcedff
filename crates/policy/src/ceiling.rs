//! The ceiling: what leases may give to a running cage beyond its base, and how.
//!
//! It has the grammar of the base in three parts, one for each [`Mark`]. Denying wins over
//! asking, asking over giving at once, whoever said it; what no part names is never given.

use crate::narrow::Dropped;
use crate::{PolicyError, Sourced, TimeLimit};
use ironcage_model::{Holders, Mark, Printable, Right};
use serde::Serialize;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// A path in one part of the ceiling.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct CeilingPath {
    /// The path; what lies below it is meant too.
    pub path: PathBuf,
    /// What may be done with it.
    pub right: Right,
    /// How it is given.
    pub mark: Mark,
}

impl CeilingPath {
    /// The key that it is written below.
    pub fn key(&self) -> String {
        format!("ceiling.{}.files.{}", self.mark.name(), self.right.name())
    }
}

/// What one source says of the ceiling.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct CeilingFragment {
    pub(crate) longest: Option<Sourced<TimeLimit>>,
    pub(crate) grace: Option<Sourced<TimeLimit>>,
    pub(crate) holders: Option<Sourced<Holders>>,
    pub(crate) paths: Vec<Sourced<CeilingPath>>,
}

/// The bound of all leases, fully merged.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Ceiling {
    /// How long a lease may live; `None` is as long as its cage.
    pub longest: Sourced<Option<Duration>>,
    /// How long those who use a lease may take to let go of it when it ends.
    pub grace: Sourced<Option<Duration>>,
    /// What becomes of those who do not.
    pub holders: Sourced<Holders>,
    /// Files and directories.
    pub paths: Vec<Sourced<CeilingPath>>,
}

fn duration(limit: Sourced<TimeLimit>) -> Sourced<Option<Duration>> {
    Sourced::new(limit.value.0, limit.origin)
}

impl Ceiling {
    pub(crate) fn from_defaults(fragment: CeilingFragment) -> Result<Self, PolicyError> {
        let incomplete = PolicyError::Incomplete;
        Ok(Ceiling {
            longest: fragment
                .longest
                .map(duration)
                .ok_or(incomplete("ceiling.longest"))?,
            grace: fragment
                .grace
                .map(duration)
                .ok_or(incomplete("ceiling.grace"))?,
            holders: fragment.holders.ok_or(incomplete("ceiling.holders"))?,
            paths: fragment.paths,
        })
    }

    /// Whether any lease could ever be given.
    pub fn is_given(&self) -> bool {
        self.paths.iter().any(|path| path.value.mark != Mark::Deny)
    }

    /// Puts a fragment on top.
    pub(crate) fn apply(&mut self, fragment: CeilingFragment) {
        if let Some(longest) = fragment.longest {
            self.longest = duration(longest);
        }
        if let Some(grace) = fragment.grace {
            self.grace = duration(grace);
        }
        if let Some(holders) = fragment.holders {
            self.holders = holders;
        }
        for path in fragment.paths {
            if self.paths.iter().all(|known| known.value != path.value) {
                self.paths.push(path);
            }
        }
    }

    /// Whether a path with this right can be had by this mark or a narrower one.
    fn gives(&self, path: &Path, right: Right, mark: Mark) -> bool {
        self.paths.iter().any(|part| {
            let part = &part.value;
            part.mark <= mark && part.right >= right && path.starts_with(&part.path)
        })
    }

    /// Whether it opens nothing that `other` does not.
    pub(crate) fn is_no_wider(&self, other: &Ceiling) -> bool {
        let given = self
            .paths
            .iter()
            .filter(|part| part.value.mark != Mark::Deny)
            .all(|part| {
                let CeilingPath { path, right, mark } = &part.value;
                other.gives(path, *right, *mark)
            });
        // What is not allowed at once or by asking must not be either here.
        let kept_back = |mark: Mark| {
            let mut parts = other.paths.iter().filter(|part| part.value.mark == mark);
            parts.all(|part| self.paths.iter().any(|own| own.value == part.value))
        };
        given
            && kept_back(Mark::Ask)
            && kept_back(Mark::Deny)
            && time_within(self.longest.value, other.longest.value)
            && time_within(self.grace.value, other.grace.value)
            && self.holders.value <= other.holders.value
    }
}

fn time_within(a: Option<Duration>, b: Option<Duration>) -> bool {
    match (a, b) {
        (_, None) => true,
        (Some(a), Some(b)) => a <= b,
        (None, Some(_)) => false,
    }
}

/// Takes out of an untrusted fragment what would widen `base`. Denying is always heard, and so
/// is asking for what is given at once.
pub(crate) fn narrow(base: &Ceiling, fragment: &mut CeilingFragment, dropped: &mut Dropped) {
    for (what, slot, bound) in [
        ("ceiling.longest", &mut fragment.longest, base.longest.value),
        ("ceiling.grace", &mut fragment.grace, base.grace.value),
    ] {
        dropped.keep_if(
            what,
            slot,
            |wanted| time_within(wanted.0, bound),
            ToString::to_string,
        );
    }
    dropped.keep_if(
        "ceiling.holders",
        &mut fragment.holders,
        |wanted| *wanted <= base.holders.value,
        |wanted| wanted.name().to_owned(),
    );
    fragment.paths.retain(|part| {
        let CeilingPath { path, right, mark } = &part.value;
        let kept = *mark == Mark::Deny || base.gives(path, *right, *mark);
        if !kept {
            dropped.note(&part.value.key(), Printable::new(path), part);
        }
        kept
    });
}
