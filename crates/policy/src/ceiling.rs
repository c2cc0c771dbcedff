//! The ceiling: what leases may give to a running cage beyond its base, and how.
//!
//! It has the grammar of the base in three parts, one for each [`Mark`]. Denying wins over
//! asking, asking over giving at once, whoever said it; what no part names is never given.

use crate::narrow::Dropped;
use crate::{Amount, Cpus, PolicyError, RulesFile, Sourced, TimeLimit};
use ironcage_model::{
    Extent, HOST_NAME, Holders, Mark, Printable, Right, SecretRule, ShellMode, WordsMode,
};
use serde::Serialize;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// How a ceiling names the workspace, wherever that is.
pub(crate) const WORKSPACE: &str = "@workspace";

/// A path in one part of the ceiling.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct CeilingPath {
    /// The path; what lies below it is meant too.
    pub path: PathBuf,
    /// What may be done with it.
    pub right: Right,
    pub mark: Mark,
}

impl CeilingPath {
    /// The key that it is written below.
    pub fn key(&self) -> String {
        format!("ceiling.{}.files.{}", self.mark.name(), self.right.name())
    }
}

/// A part of the ceiling that is not about paths.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct CeilingOther {
    #[serde(flatten)]
    pub what: CeilingWhat,
    pub mark: Mark,
}

/// What a part of the ceiling is about that is not about paths.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum CeilingWhat {
    /// What stands for itself.
    Extent(Extent),
    /// A secret, with where it comes from.
    Secret(SecretRule),
    /// A limit, which may be a share of what the host has.
    Limit(CeilingLimit),
    /// The hosts of a bundle, by its name.
    Bundle(String),
}

/// From which number of differences between words and deeds on a cage is trusted less.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Drift {
    /// Leases that answers open are shorter.
    pub shorten: Sourced<u32>,
    /// What is given at once is asked for.
    pub ask: Sourced<u32>,
    /// The cage is stopped.
    pub freeze: Sourced<u32>,
}

/// How far a limit may be raised.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum CeilingLimit {
    Memory(Amount),
    /// Processor time.
    Cpus(Cpus),
    /// Processes and threads.
    Pids(u32),
}

impl CeilingOther {
    /// The key that it is written below.
    pub fn key(&self) -> String {
        let below = match &self.what {
            CeilingWhat::Extent(Extent::Host(rule)) if rule.to.is_name(HOST_NAME) => {
                "network.host-ports"
            }
            CeilingWhat::Extent(Extent::Host(_)) => "network.allow",
            CeilingWhat::Extent(Extent::Http(_)) => "network.http",
            CeilingWhat::Extent(Extent::Secret(_)) | CeilingWhat::Secret(_) => "network.secrets",
            CeilingWhat::Extent(Extent::Socket(_)) => "network.sockets",
            CeilingWhat::Extent(Extent::Port(_)) => "network.publish",
            CeilingWhat::Extent(Extent::Limit { .. }) | CeilingWhat::Limit(_) => "limits",
            CeilingWhat::Extent(Extent::Syscalls(_)) => "syscalls.groups",
            CeilingWhat::Extent(Extent::Capability(_)) => "process.capabilities",
            CeilingWhat::Bundle(_) => "network.bundles",
        };
        format!("ceiling.{}.{below}", self.mark.name())
    }

    /// Whether an egress proxy has to be there for it.
    pub fn needs_proxy(&self) -> bool {
        match &self.what {
            CeilingWhat::Extent(extent) => extent.needs_proxy(),
            CeilingWhat::Secret(_) | CeilingWhat::Bundle(_) => true,
            CeilingWhat::Limit(_) => false,
        }
    }

    /// As a policy writes it.
    pub fn as_written(&self) -> String {
        match &self.what {
            CeilingWhat::Extent(extent) => extent.to_string(),
            CeilingWhat::Secret(rule) => rule.name.clone(),
            CeilingWhat::Limit(CeilingLimit::Memory(amount)) => format!("memory {amount}"),
            CeilingWhat::Limit(CeilingLimit::Cpus(cpus)) => format!("cpus {cpus}"),
            CeilingWhat::Limit(CeilingLimit::Pids(pids)) => format!("pids {pids}"),
            CeilingWhat::Bundle(name) => name.clone(),
        }
    }

    /// Whether it gives nothing that another one does not, or only after asking.
    fn lies_in(&self, other: &CeilingOther) -> bool {
        let within = match (&self.what, &other.what) {
            (CeilingWhat::Extent(own), CeilingWhat::Extent(outer)) => own.lies_in(outer),
            (CeilingWhat::Limit(own), CeilingWhat::Limit(outer)) => match (own, outer) {
                (CeilingLimit::Memory(a), CeilingLimit::Memory(b)) => a.is_within(*b),
                (CeilingLimit::Cpus(a), CeilingLimit::Cpus(b)) => a.is_within(*b),
                (CeilingLimit::Pids(a), CeilingLimit::Pids(b)) => a <= b,
                _ => false,
            },
            (own, outer) => own == outer,
        };
        within
            && match self.mark {
                Mark::Always => other.mark == Mark::Always,
                own => other.mark.gives() && other.mark <= own,
            }
    }
}

/// What one source says of the ceiling.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct CeilingFragment {
    pub(crate) longest: Option<Sourced<TimeLimit>>,
    pub(crate) grace: Option<Sourced<TimeLimit>>,
    pub(crate) holders: Option<Sourced<Holders>>,
    pub(crate) shell: Option<Sourced<ShellMode>>,
    pub(crate) words: Option<Sourced<WordsMode>>,
    pub(crate) call_longest: Option<Sourced<TimeLimit>>,
    pub(crate) children: Option<Sourced<u32>>,
    pub(crate) channels: Option<Sourced<u32>>,
    /// In the order of [`Drift`]'s fields.
    pub(crate) drift: [Option<Sourced<u32>>; 3],
    /// The file of rules that is named.
    pub(crate) cedar: Option<Sourced<PathBuf>>,
    pub(crate) rules: Option<Sourced<RulesFile>>,
    pub(crate) paths: Vec<Sourced<CeilingPath>>,
    pub(crate) others: Vec<Sourced<CeilingOther>>,
}

/// Puts the real workspace where it is named by [`WORKSPACE`].
fn place(paths: &mut [Sourced<CeilingPath>], workspace: &Path) {
    for part in paths {
        if let Ok(rest) = part.value.path.strip_prefix(WORKSPACE) {
            // Joined with nothing, it would end with a slash.
            part.value.path = workspace.components().chain(rest.components()).collect();
        }
    }
}

impl CeilingFragment {
    /// Puts the real workspace where it is named.
    pub(crate) fn place(&mut self, workspace: &Path) {
        place(&mut self.paths, workspace);
    }
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
    /// Where the commands of the agent's shell run.
    pub shell: Sourced<ShellMode>,
    /// What the words of a model's answer do.
    pub words: Sourced<WordsMode>,
    /// How long a lease may live that a model's answer opened; `None` is as long as others.
    pub call_longest: Sourced<Option<Duration>>,
    /// How many child cages may live at once, with theirs.
    pub children: Sourced<u32>,
    /// How many channels the operator may open.
    pub channels: Sourced<u32>,
    /// When the cage is trusted less.
    pub drift: Drift,
    /// Rules that choose within the parts: those of every source together.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub cedar: Vec<Sourced<RulesFile>>,
    /// Files and directories.
    pub paths: Vec<Sourced<CeilingPath>>,
    /// What is not about paths.
    pub others: Vec<Sourced<CeilingOther>>,
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
            shell: fragment.shell.ok_or(incomplete("ceiling.shell"))?,
            words: fragment.words.ok_or(incomplete("ceiling.words"))?,
            call_longest: fragment
                .call_longest
                .map(duration)
                .ok_or(incomplete("ceiling.call-longest"))?,
            children: fragment.children.ok_or(incomplete("ceiling.children"))?,
            channels: fragment.channels.ok_or(incomplete("ceiling.channels"))?,
            drift: match fragment.drift {
                [Some(shorten), Some(ask), Some(freeze)] => Drift {
                    shorten,
                    ask,
                    freeze,
                },
                _ => return Err(incomplete("ceiling.drift")),
            },
            cedar: fragment.rules.into_iter().collect(),
            paths: fragment.paths,
            others: fragment.others,
        })
    }

    /// Puts the real workspace where it is named.
    pub(crate) fn place(&mut self, workspace: &Path) {
        place(&mut self.paths, workspace);
    }

    /// Whether any lease could ever be given.
    pub fn is_given(&self) -> bool {
        let paths = self.paths.iter().map(|path| path.value.mark);
        let others = self.others.iter().map(|other| other.value.mark);
        paths.chain(others).any(Mark::gives)
    }

    /// The network was turned off: nothing of it is given by leases either.
    pub(crate) fn without_network(&mut self) {
        self.others.retain(|other| !other.value.needs_proxy());
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
        if let Some(shell) = fragment.shell {
            self.shell = shell;
        }
        if let Some(words) = fragment.words {
            self.words = words;
        }
        if let Some(longest) = fragment.call_longest {
            self.call_longest = duration(longest);
        }
        if let Some(children) = fragment.children {
            self.children = children;
        }
        if let Some(channels) = fragment.channels {
            self.channels = channels;
        }
        let drift = &mut self.drift;
        let known = [&mut drift.shorten, &mut drift.ask, &mut drift.freeze];
        for (known, said) in known.into_iter().zip(fragment.drift) {
            if let Some(said) = said {
                *known = said;
            }
        }
        if let Some(rules) = fragment.rules {
            let known = |known: &Sourced<RulesFile>| known.value == rules.value;
            if !self.cedar.iter().any(known) {
                self.cedar.push(rules);
            }
        }
        for path in fragment.paths {
            if self.paths.iter().all(|known| known.value != path.value) {
                self.paths.push(path);
            }
        }
        for other in fragment.others {
            if let CeilingWhat::Secret(said) = &other.value.what {
                // Later words win: two values of one name are none.
                self.others.retain(|known| {
                    !matches!(&known.value.what, CeilingWhat::Secret(rule) if rule.name == said.name)
                });
            }
            if self.others.iter().all(|known| known.value != other.value) {
                self.others.push(other);
            }
        }
    }

    /// Whether a path with this right can be had by this mark or a narrower one.
    fn gives(&self, path: &Path, right: Right, mark: Mark) -> bool {
        self.paths.iter().any(|part| {
            let part = &part.value;
            let enough = match mark {
                Mark::Always => part.mark == Mark::Always,
                _ => part.mark.gives() && part.mark <= mark,
            };
            enough
                && part.right >= right
                && path.starts_with(&part.path)
                && !(mark == Mark::Auto && self.asks_in(part, path, right))
        })
    }

    /// Whether a part that gives at once does not, because of one that asks about a path or about
    /// something in it.
    pub(crate) fn asks_in(&self, auto: &CeilingPath, path: &Path, right: Right) -> bool {
        self.paths.iter().map(|part| &part.value).any(|part| {
            part.mark == Mark::Ask
                && part.right <= right
                && Mark::asks_before(&part.path, &auto.path)
                && (path.starts_with(&part.path) || part.path.starts_with(path))
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
            let paths = parts.all(|part| self.paths.iter().any(|own| own.value == part.value));
            let mut others = other.others.iter().filter(|part| part.value.mark == mark);
            paths && others.all(|part| self.others.iter().any(|own| own.value == part.value))
        };
        let mut others = self
            .others
            .iter()
            .filter(|own| own.value.mark != Mark::Deny);
        let known = |rules: &Sourced<RulesFile>, of: &Ceiling| {
            of.cedar.iter().any(|known| known.value == rules.value)
        };
        let rules = other.cedar.iter().all(|rules| known(rules, self))
            && (self.cedar.iter()).all(|own| own.value.only_forbids || known(own, other));
        given
            && rules
            && others.all(|own| {
                other
                    .others
                    .iter()
                    .any(|part| own.value.lies_in(&part.value))
            })
            && kept_back(Mark::Ask)
            && kept_back(Mark::Deny)
            && time_within(self.longest.value, other.longest.value)
            && time_within(self.grace.value, other.grace.value)
            && self.holders.value <= other.holders.value
            && self.shell.value <= other.shell.value
            && self.words.value <= other.words.value
            && time_within(self.call_longest.value, other.call_longest.value)
            && self.children.value <= other.children.value
            && self.channels.value <= other.channels.value
            && self.drift.shorten.value <= other.drift.shorten.value
            && self.drift.ask.value <= other.drift.ask.value
            && self.drift.freeze.value <= other.drift.freeze.value
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
        (
            "ceiling.call-longest",
            &mut fragment.call_longest,
            base.call_longest.value,
        ),
    ] {
        dropped.keep_if(
            what,
            slot,
            |wanted| time_within(wanted.0, bound),
            ToString::to_string,
        );
    }
    let known = [&base.drift.shorten, &base.drift.ask, &base.drift.freeze];
    for (slot, known) in fragment.drift.iter_mut().zip(known) {
        dropped.keep_if(
            "ceiling.drift",
            slot,
            |wanted| *wanted <= known.value,
            u32::to_string,
        );
    }
    for (what, slot, most) in [
        (
            "ceiling.children",
            &mut fragment.children,
            base.children.value,
        ),
        (
            "ceiling.channels",
            &mut fragment.channels,
            base.channels.value,
        ),
    ] {
        dropped.keep_if(what, slot, |wanted| *wanted <= most, u32::to_string);
    }
    dropped.keep_if(
        "ceiling.holders",
        &mut fragment.holders,
        |wanted| *wanted <= base.holders.value,
        |wanted| wanted.name().to_owned(),
    );
    dropped.keep_if(
        "ceiling.shell",
        &mut fragment.shell,
        |wanted| *wanted <= base.shell.value,
        |wanted| wanted.name().to_owned(),
    );
    dropped.keep_if(
        "ceiling.words",
        &mut fragment.words,
        |wanted| *wanted <= base.words.value,
        |wanted| wanted.name().to_owned(),
    );
    if let Some(rules) = &mut fragment.rules {
        rules.value.only_forbids = true;
        let shown = format!("permits of {}", Printable::new(&rules.value.path));
        dropped.note("ceiling.cedar", shown, rules);
    }
    fragment.paths.retain(|part| {
        let CeilingPath { path, right, mark } = &part.value;
        let kept = *mark == Mark::Deny || base.gives(path, *right, *mark);
        if !kept {
            dropped.note(&part.value.key(), Printable::new(path), part);
        }
        kept
    });
    fragment.others.retain(|part| {
        let mut base = base.others.iter();
        let kept = part.value.mark == Mark::Deny
            || base.any(|known| part.value.lies_in(&known.value))
                // Another value of a secret by the same name would take the place of this one.
                && !matches!(part.value.what, CeilingWhat::Secret(_));
        if !kept {
            let shown = match &part.value.what {
                // Its name alone does not tell which command is run for it, and who gets it.
                CeilingWhat::Secret(rule) => crate::network::in_words(rule),
                _ => part.value.as_written(),
            };
            dropped.note(&part.value.key(), shown, part);
        }
        kept
    });
}
