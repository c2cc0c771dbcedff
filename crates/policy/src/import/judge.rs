//! Turns rules and the host's tree into a draft: visible paths, and which of them are hidden or read-only.
//!
//! Doubts are decided for less: a directory in which a path that does not exist yet would have to be hidden is left
//! out as a whole. The system directories in the view are checked like all others.

use super::deny::{Denies, Deny, Left, left, remedy};
use super::parent_proxy::ImportedProxy;
use super::paths::{self, Spot};
use super::settings::{Rule, Rules};
use super::{Finding, Kind, Place, search};
use crate::{EnvRule, WorkspaceMode, credentials, system};
use ironcage_model::Printable;
use std::fs;
use std::path::{Path, PathBuf};

/// What will stand in the policy.
#[derive(Debug)]
pub(super) struct Draft {
    pub(super) mode: WorkspaceMode,
    /// Why the workspace appears as it does.
    pub(super) mode_why: String,
    pub(super) read: Vec<Line>,
    pub(super) write: Vec<Line>,
    pub(super) hide: Vec<Line>,
    /// Whether `read` makes a part of the workspace read-only.
    pub(super) held: bool,
    /// Variables that the defaults would pass and the settings forbid.
    pub(super) empty_env: Vec<String>,
    /// The setting because of which toolchains outside of the system are left out.
    pub(super) no_toolchains: Option<String>,
    /// Whether git must not know who the user is.
    pub(super) no_identity: bool,
    /// Hosts that can be reached, and those that cannot, as rules and with their settings.
    pub(super) allow_hosts: Vec<Rule>,
    pub(super) deny_hosts: Vec<Rule>,
    pub(super) upstream: Option<ImportedProxy>,
}

/// A path in a list, and the setting that it came from.
#[derive(Debug, Clone)]
pub(super) struct Line {
    pub(super) path: PathBuf,
    pub(super) why: String,
}

/// A tree that the settings give.
#[derive(Clone)]
struct GrantedTree<'a> {
    rule: &'a Rule,
    path: PathBuf,
}

/// Trees of the host that are in no cage.
const NEVER: [&str; 3] = ["/proc", "/sys", "/dev"];
/// Directories that a cage has of its own.
const OWN: [&str; 2] = ["/tmp", "/var/tmp"];

pub(super) fn judge(rules: &Rules, place: &Place, findings: &mut Vec<Finding>) -> Draft {
    let mut denies = Denies { place, findings };
    let deny_read = denies.of(&rules.deny_read, false);
    let deny_write = denies.of(&rules.deny_write, true);
    let mut judge = Judge {
        place,
        findings,
        deny_read: &deny_read,
        deny_write: &deny_write,
        draft: Draft {
            mode: WorkspaceMode::ReadOnly,
            mode_why: "no filesystem.allowWrite covers it".to_owned(),
            read: Vec::new(),
            write: Vec::new(),
            hide: Vec::new(),
            held: false,
            empty_env: Vec::new(),
            no_toolchains: None,
            no_identity: false,
            allow_hosts: rules.allow_hosts.clone(),
            deny_hosts: rules.deny_hosts.clone(),
            upstream: rules.upstream.clone(),
        },
        allow_read: Vec::new(),
        allow_write: Vec::new(),
    };
    judge.allow_write = judge.given(&rules.allow_write);
    judge.allow_read = judge.given(&rules.allow_read);
    judge.workspace(rules);
    judge.writable();
    judge.readable();
    judge.system();
    judge.environment(&rules.deny_env);
    judge.hidden_wins();
    judge.outside_the_view();
    judge.draft
}

struct Judge<'a> {
    place: &'a Place,
    findings: &'a mut Vec<Finding>,
    deny_read: &'a [Deny<'a>],
    deny_write: &'a [Deny<'a>],
    allow_read: Vec<GrantedTree<'a>>,
    allow_write: Vec<GrantedTree<'a>>,
    draft: Draft,
}

impl<'a> Judge<'a> {
    fn tell(&mut self, rule: &Rule, kind: Kind, note: impl Into<String>) {
        self.findings.push(rule.finding(kind, note));
    }

    /// The trees that a list gives and that are there.
    fn given(&mut self, rules: &'a [Rule]) -> Vec<GrantedTree<'a>> {
        let mut given = Vec::new();
        for rule in rules {
            let spots = paths::spots(rule, self.place);
            let there = spots.iter().find_map(|spot| match spot {
                Spot::There(path) => Some(path.clone()),
                _ => None,
            });
            match there {
                Some(path) => given.push(GrantedTree { rule, path }),
                None => {
                    let note = match spots.into_iter().next() {
                        // What lies in the workspace is as it is.
                        Some(Spot::Missing { path, .. })
                            if path.starts_with(&self.place.workspace) =>
                        {
                            given.push(GrantedTree { rule, path });
                            continue;
                        }
                        Some(Spot::Pattern { .. }) => {
                            "a policy allows files and directories by name, not by pattern"
                        }
                        _ => "does not exist, and a policy can only name existing paths",
                    };
                    self.tell(rule, Kind::Narrower, note);
                }
            }
        }
        given
    }

    /// What read rules leave of a tree. An allowed directory below a denied one is lifted out of it; a denied one
    /// below an allowed one stays denied.
    fn readable_of(&self, tree: &Path) -> Left<'a> {
        let lifted = |deny: &Deny<'_>| {
            let lifts = |given: &GrantedTree<'_>| {
                tree.starts_with(&given.path)
                    && given.path.starts_with(&deny.path)
                    && given.path != deny.path
            };
            !deny.pattern
                && (self.allow_read.iter().any(lifts) || self.allow_write.iter().any(lifts))
        };
        left(self.deny_read, tree, lifted)
    }

    fn writable_of(&self, tree: &Path) -> Left<'a> {
        left(self.deny_write, tree, |_| false)
    }

    fn workspace(&mut self, rules: &Rules) {
        let workspace = self.place.workspace.clone();
        match self.readable_of(&workspace) {
            Left::Nothing(deny) => {
                self.draft.mode = WorkspaceMode::Scratch;
                self.draft.mode_why = why(deny.rule);
                let note = format!(
                    "covers part of the workspace, now or later: the cage gets an empty workspace instead. {}",
                    remedy(deny)
                );
                self.tell(deny.rule, Kind::Narrower, note);
                return;
            }
            Left::But(denies) => self.hide(&denies),
        }
        let covering = self
            .allow_write
            .iter()
            .find(|given| workspace.starts_with(&given.path));
        let Some(source) = covering
            .map(|given| why(given.rule))
            .or_else(|| rules.all_files.then(|| "filesystem.disabled".to_owned()))
        else {
            return;
        };
        match self.writable_of(&workspace) {
            Left::Nothing(deny) => {
                self.draft.mode_why = why(deny.rule);
                let note = format!(
                    "covers all of the workspace, now or later: it is read-only. {}",
                    remedy(deny)
                );
                self.tell(deny.rule, Kind::Narrower, note);
            }
            Left::But(denies) => {
                self.draft.mode = WorkspaceMode::Direct;
                self.draft.mode_why = source;
                self.hold(&workspace, &denies);
                let (found, all) = search::guarded(&workspace, rules.search_depth);
                if !all {
                    self.findings.push(Finding {
                        kind: Kind::Differs,
                        subject: "files that srt always write-protects".to_owned(),
                        value: None,
                        note: "the workspace is too large to find all of them".to_owned(),
                    });
                }
                for path in found {
                    self.read_only(&workspace, &path, "srt always write-protects it");
                }
            }
        }
    }

    /// The directories beside the workspace that can be written.
    fn writable(&mut self) {
        for GrantedTree { rule, path } in &self.allow_write.clone() {
            if path.starts_with(&self.place.workspace) || self.place.workspace == *path {
                let direct = self.draft.mode == WorkspaceMode::Direct;
                if direct {
                    self.tell(rule, Kind::Kept, "in the workspace, which is writable");
                } else {
                    let note = "a part of a workspace cannot be writable on its own; use it as the workspace with `ironcage run --workspace`";
                    self.tell(rule, Kind::Narrower, note);
                }
                continue;
            }
            if !self.can_be_given(rule, path) {
                continue;
            }
            let holds_workspace = self.place.workspace.starts_with(path);
            if holds_workspace && self.draft.mode != WorkspaceMode::Direct {
                self.tell(
                    rule,
                    Kind::Narrower,
                    "contains the workspace, which is not writable",
                );
                continue;
            }
            let (reads, writes) = (self.readable_of(path), self.writable_of(path));
            match (reads, writes) {
                (Left::Nothing(deny), _) => self.kept_out(rule, deny),
                (Left::But(hidden), Left::Nothing(deny)) => {
                    let note = format!("read-only: {} covers all of it", why(deny.rule));
                    self.tell(rule, Kind::Narrower, note);
                    self.hide(&hidden);
                    self.draft.read.push(Line {
                        path: path.clone(),
                        why: why(rule),
                    });
                }
                (Left::But(hidden), Left::But(held)) => {
                    if self.would_hide_workspace(rule, &hidden) {
                        continue;
                    }
                    self.tell(rule, Kind::Kept, "files.write");
                    self.draft.write.push(Line {
                        path: path.clone(),
                        why: why(rule),
                    });
                    self.hide(&hidden);
                    self.hold(path, &held);
                }
            }
        }
    }

    /// What srt lifts out of a denied directory is named, and so is given; the rest of what can be read is not.
    fn readable(&mut self) {
        for GrantedTree { rule, path } in &self.allow_read.clone() {
            let in_workspace = path.starts_with(&self.place.workspace)
                && self.draft.mode != WorkspaceMode::Scratch;
            if in_workspace
                || self
                    .draft
                    .write
                    .iter()
                    .any(|line| path.starts_with(&line.path))
                || is_system(path)
            {
                self.tell(
                    rule,
                    Kind::Kept,
                    "already visible, except for the denyRead paths in it",
                );
                continue;
            }
            if !self.can_be_given(rule, path) {
                continue;
            }
            let reads = self.readable_of(path);
            match reads {
                Left::Nothing(deny) => self.kept_out(rule, deny),
                Left::But(hidden) => {
                    if self.would_hide_workspace(rule, &hidden) {
                        continue;
                    }
                    if self.place.workspace.starts_with(path)
                        && self.draft.mode == WorkspaceMode::Scratch
                    {
                        self.tell(
                            rule,
                            Kind::Narrower,
                            "contains the workspace, which is left out",
                        );
                        continue;
                    }
                    self.tell(rule, Kind::Kept, "files.read");
                    self.draft.read.push(Line {
                        path: path.clone(),
                        why: why(rule),
                    });
                    self.hide(&hidden);
                }
            }
        }
    }

    /// What the cage shows of the system is readable unless the settings say otherwise.
    fn system(&mut self) {
        for path in system_paths() {
            match self.readable_of(&path) {
                Left::Nothing(deny) if deny.path == deny.cover => {
                    let line = Line {
                        path,
                        why: why(deny.rule),
                    };
                    self.draft.hide.push(line);
                }
                Left::Nothing(deny) => {
                    let note = format!(
                        "does not exist; {} belongs to the system and stays visible",
                        Printable::new(&path)
                    );
                    self.tell(deny.rule, Kind::Differs, note);
                }
                Left::But(denies) => self.hide(&denies),
            }
        }
    }

    fn environment(&mut self, rules: &[Rule]) {
        let passed = crate::chain::defaults_fragment(&self.place.home).map(|defaults| defaults.env);
        for rule in rules {
            let by_default = passed.as_ref().is_ok_and(|rules| {
                rules.iter().any(|sourced| matches!(&sourced.value, EnvRule::Pass { name } if *name == rule.text))
            });
            if by_default {
                if !self.draft.empty_env.contains(&rule.text) {
                    self.draft.empty_env.push(rule.text.clone());
                }
                self.tell(
                    rule,
                    Kind::Kept,
                    "env.set, to an empty value, because the defaults would pass it",
                );
            } else {
                self.tell(rule, Kind::Kept, "not passed unless env.pass names it");
            }
        }
    }

    /// Whether a cage can have the path at all; says why not.
    fn can_be_given(&mut self, rule: &Rule, path: &Path) -> bool {
        let own = &self.place.own;
        let too_wide = path == Path::new("/")
            || self.place.home.starts_with(path)
            || own
                .iter()
                .any(|own| own.starts_with(path) || path.starts_with(own));
        let note = if OWN.iter().any(|own| path == Path::new(own)) {
            "the cage has its own"
        } else if NEVER.iter().any(|tree| path.starts_with(tree)) {
            "kernel file systems and host devices are never in a cage; it has its own"
        } else if too_wide {
            "contains your home or Ironcage's own directories; name the paths that are needed"
        } else if !fs::metadata(path).is_ok_and(|node| node.is_dir() || node.is_file()) {
            "does not exist, or is a socket, a pipe or a device, which files.read and files.write do not allow"
        } else {
            return true;
        };
        self.tell(rule, Kind::Narrower, note);
        false
    }

    fn kept_out(&mut self, rule: &Rule, deny: &Deny<'_>) {
        let note = format!(
            "left out: {} covers all of it. {}",
            why(deny.rule),
            remedy(deny)
        );
        self.tell(rule, Kind::Narrower, note);
    }

    /// A tree with a hidden directory in it that holds the workspace cannot be given: hiding would take both.
    fn would_hide_workspace(&mut self, rule: &Rule, hidden: &[&Deny<'_>]) -> bool {
        let Some(deny) = hidden
            .iter()
            .find(|deny| self.place.workspace.starts_with(&deny.cover))
        else {
            return false;
        };
        self.kept_out(rule, deny);
        true
    }

    fn hide(&mut self, denies: &[&Deny<'_>]) {
        for deny in denies {
            if self.draft.hide.iter().all(|line| line.path != deny.cover) {
                let note = if deny.path == deny.cover && !deny.pattern {
                    "files.hide".to_owned()
                } else {
                    format!(
                        "files.hide, as {}, which contains everything that it matches now or later",
                        Printable::new(&deny.cover)
                    )
                };
                self.tell(deny.rule, Kind::Kept, note);
                self.draft.hide.push(Line {
                    path: deny.cover.clone(),
                    why: why(deny.rule),
                });
            }
        }
    }

    /// Makes what may not be written read-only inside a tree that may.
    fn hold(&mut self, tree: &Path, denies: &[&Deny<'_>]) {
        for deny in denies {
            self.tell(
                deny.rule,
                Kind::Kept,
                "files.read, which makes it read-only below a writable path",
            );
            self.read_only(tree, &deny.cover, &why(deny.rule));
        }
    }

    fn read_only(&mut self, tree: &Path, path: &Path, why: &str) {
        let own = &self.place.own;
        let holds_own = |path: &Path| own.iter().any(|own| own.starts_with(path));
        let covered = self
            .draft
            .read
            .iter()
            .any(|line| path.starts_with(&line.path));
        if covered || holds_own(path) || own.iter().any(|own| path.starts_with(own)) {
            return;
        }
        // A mount cannot be moved away, but the directory that holds it can, unless it is one too.
        let between: Vec<&Path> = path
            .ancestors()
            .skip(1)
            .take_while(|above| *above != tree && !holds_own(above))
            .collect();
        for above in between.into_iter().rev() {
            if self.draft.write.iter().all(|line| line.path != above) {
                let name = path.file_name().unwrap_or_default();
                let why = format!("keeps {} from being moved", Printable::new(name));
                self.draft.write.push(Line {
                    path: above.to_owned(),
                    why,
                });
            }
        }
        self.draft.held |= path.starts_with(&self.place.workspace);
        self.draft.read.push(Line {
            path: path.to_owned(),
            why: why.to_owned(),
        });
    }

    /// Drops paths below hidden ones: a policy cannot allow them.
    fn hidden_wins(&mut self) {
        let hide = std::mem::take(&mut self.draft.hide);
        if let Some(line) = hide
            .iter()
            .find(|line| self.place.workspace.starts_with(&line.path))
        {
            self.draft.mode = WorkspaceMode::Scratch;
            self.draft.mode_why.clone_from(&line.why);
        }
        let seen = |line: &Line| {
            !hide
                .iter()
                .any(|hidden| line.path.starts_with(&hidden.path))
        };
        for list in [&mut self.draft.read, &mut self.draft.write] {
            list.retain(|line| {
                let keep = seen(line);
                if !keep {
                    self.findings.push(Finding {
                        kind: Kind::Narrower,
                        subject: line.why.clone(),
                        value: None,
                        note: format!("{} is below a hidden path", Printable::new(&line.path)),
                    });
                }
                keep
            });
        }
        self.draft.hide = hide;
    }

    /// What lies outside of all that is given. A run may still bring parts of it in by itself: toolchains that PATH
    /// names, and the name and address of git's settings.
    fn outside_the_view(&mut self) {
        let git = [".gitconfig", ".config/git/config"].map(|path| self.place.home.join(path));
        for deny in self.deny_read {
            if !self.draft.no_identity && git.iter().any(|path| path.starts_with(&deny.path)) {
                self.draft.no_identity = true;
                self.tell(
                    deny.rule,
                    Kind::Narrower,
                    "git settings reveal who you are: process.git-identity = false",
                );
            }
            let given = self.draft.read.iter().chain(&self.draft.write);
            let holds_given = given
                .map(|line| &line.path)
                .any(|path| path.starts_with(&deny.path))
                || self.place.workspace.starts_with(&deny.path);
            let in_workspace = deny.path.starts_with(&self.place.workspace);
            let there = deny.path == deny.cover;
            let listed = self.draft.hide.iter().any(|line| line.path == deny.path);
            if there && !holds_given && !in_workspace && !listed {
                self.draft.hide.push(Line {
                    path: deny.path.clone(),
                    why: why(deny.rule),
                });
                self.tell(deny.rule, Kind::Kept, "files.hide, and not visible");
            }
            if self.draft.no_toolchains.is_none() && !in_workspace && self.may_hold_toolchains(deny)
            {
                self.draft.no_toolchains = Some(why(deny.rule));
                let note = "may contain compilers or interpreters on your PATH: files.toolchains = false. Set it to true if it does not";
                self.tell(deny.rule, Kind::Narrower, note);
            }
        }
        for deny in self.deny_read.iter().chain(self.deny_write) {
            let same = deny.rule.finding(Kind::Kept, "");
            let told = self
                .findings
                .iter()
                .any(|told| told.subject == same.subject && told.value == same.value);
            if !told {
                self.tell(deny.rule, Kind::Kept, "not visible, or not writable");
            }
        }
    }

    /// Any directory may, but for those that hold credentials.
    fn may_hold_toolchains(&self, deny: &Deny<'_>) -> bool {
        let secret = credentials::ENTRIES
            .iter()
            .any(|entry| deny.path.starts_with(self.place.home.join(entry.path)));
        deny.path.is_dir() && !secret && !is_system(&deny.path)
    }
}

/// The setting that a line came from.
fn why(rule: &Rule) -> String {
    format!("{} \"{}\"", rule.key, rule.text)
}

/// What every cage sees of the system, where it really is; links lead to what is looked at anyway.
fn system_paths() -> impl Iterator<Item = PathBuf> {
    let etc = system::ETC
        .iter()
        .map(|entry| Path::new("/etc").join(entry.path));
    let directories = system::DIRECTORIES
        .iter()
        .map(|entry| PathBuf::from(entry.path));
    directories
        .chain(etc)
        .filter(|path| fs::symlink_metadata(path).is_ok_and(|node| node.is_dir() || node.is_file()))
}

fn is_system(path: &Path) -> bool {
    system_paths().any(|system| path.starts_with(system))
}
