//! The ceiling for leases of the running cage, resolved on this host, and what no lease can open.

use crate::bounds::milli_cpus;
use crate::plan::{Access, Item, NodeKind, ViewOp, WriteRights, WriteRule};
use crate::task::{TaskScope, TaskSource};
use crate::view::{NEVER, ViewPlan};
use crate::{PlanError, Request, bytes, guarded, network, view};
use ironcage_host::{HostCaps, HostFiles, NodeType};
use ironcage_model::{Extent, Holders, LimitKind, Mark, Right, ShellMode, WordsMode};
use ironcage_policy::{
    CeilingLimit, CeilingOther, CeilingWhat, ControlKey, Policy, Questions, RulesFile, Sourced,
    WorkspaceMode, credentials, protected,
};
use serde::Serialize;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// A path of the ceiling.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct LeasePath {
    /// Its real path; what lies below it is meant too.
    #[serde(serialize_with = "bytes::path")]
    pub path: PathBuf,
    /// What may be done with it.
    pub right: Right,
    /// How it is given.
    pub mark: Mark,
}

/// A part of the ceiling that is not about paths.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct LeasePart {
    /// What it is about.
    pub extent: Extent,
    /// How it is given.
    pub mark: Mark,
    /// The bundle that it came with; `null` for one that stands for itself.
    pub bundle: Option<String>,
}

/// From which number of differences between words and deeds on the cage is trusted less.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Drift {
    /// Leases that answers open are shorter.
    pub shorten: u32,
    /// What is given at once is asked for.
    pub ask: u32,
    /// The cage is stopped.
    pub freeze: u32,
}

/// A place that no lease gives, holds or lies in.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ClosedPlace {
    /// Its real path.
    #[serde(serialize_with = "bytes::path")]
    pub path: PathBuf,
    /// From which right on it is closed.
    pub right: Right,
}

/// Rules in Cedar that choose within the ceiling.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct LeaseRules {
    /// The file that they were read from.
    #[serde(serialize_with = "bytes::path")]
    pub path: PathBuf,
    /// Their text.
    pub text: String,
    /// Whether only what they forbid counts.
    pub only_forbids: bool,
}

/// What leases may give.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Leases {
    /// Files and directories.
    pub paths: Vec<Item<LeasePath>>,
    /// What is not about paths.
    pub others: Vec<Item<LeasePart>>,
    /// Rules that choose, within all of that, between giving, asking and refusing.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub cedar: Vec<Item<LeaseRules>>,
    /// What is never given, with the reason.
    pub closed: Vec<Item<ClosedPlace>>,
    /// How long a lease may live; `null` is as long as the cage.
    pub longest: Option<Duration>,
    /// How long holders may take to let go at its end.
    pub grace: Duration,
    /// What becomes of those who do not.
    pub holders: Holders,
    /// Where the commands of the agent's shell run.
    pub shell: ShellMode,
    /// What the words of a model's answer do.
    pub words: WordsMode,
    /// The places that the user's task names: what it does not name is asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub task: Option<TaskScope>,
    /// How long a lease may live that a model's answer opened; `null` is as long as others.
    pub call_longest: Option<Duration>,
    /// When the cage is trusted less.
    pub drift: Drift,
    /// Whether the workspace is the real tree, so that a lease in it may be too.
    pub real_workspace: bool,
    /// Whether files of the workspace with sensitive names are asked for that are not hidden,
    /// because there are too many names to look at.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub sensitive_deeper: bool,
    /// What the policy shows in the workspace by name.
    #[serde(
        skip_serializing_if = "Vec::is_empty",
        serialize_with = "bytes::path_list"
    )]
    pub shown: Vec<PathBuf>,
    /// Home directories, for what is guarded in them.
    #[serde(serialize_with = "bytes::path_list")]
    pub homes: Vec<PathBuf>,
    /// Whether what is guarded is given all the same, by explicit word.
    pub i_know: bool,
    /// A command that judges what would be given at once to a command in a scope.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub judge: Vec<String>,
    /// How people are asked.
    pub questions: PermissionRequestTerms,
}

/// How people are asked about what is given after asking.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct PermissionRequestTerms {
    /// How long an answer is waited for; `null` is as long as the cage runs.
    pub expire: Option<Duration>,
    /// How long the same is not asked again after it was denied.
    pub remember: Duration,
    /// The key that calls the prompt on a terminal.
    pub key: ControlKey,
    /// A command that is run for each question; empty where there is none.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub notify: Vec<String>,
    /// An address to which each question is sent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub webhook: Option<String>,
}

impl PermissionRequestTerms {
    pub(crate) fn of(questions: &Questions) -> Self {
        let notify = questions.notify.as_ref();
        PermissionRequestTerms {
            expire: questions.expire.value,
            remember: questions.remember.value.unwrap_or(Duration::MAX),
            key: questions.key.value,
            notify: notify.map(|words| words.value.clone()).unwrap_or_default(),
            webhook: questions.webhook.as_ref().map(|said| said.value.clone()),
        }
    }
}

impl Leases {
    /// Why a path of a view that keeps changes aside is given by no lease. What is written there
    /// is looked through before it is applied, and what is hidden below a path stays so.
    pub fn never_in_view(&self, path: &Path) -> Option<String> {
        let mut closed = self.closed.iter();
        let hidden = |item: &&Item<ClosedPlace>| {
            item.what.right == Right::Read && path.starts_with(&item.what.path)
        };
        closed.find(hidden).map(|closed| closed.origin.clone())
    }

    /// Why a path of the host is given by no lease, whatever the ceiling says.
    pub fn never(&self, path: &Path, right: Right) -> Option<String> {
        for (tree, why) in NEVER {
            let inside_kernel_tree = tree != "/" && path.starts_with(tree);
            if path == Path::new(tree) || inside_kernel_tree {
                return Some(why.to_owned());
            }
        }
        let around = |place: &Path| path.starts_with(place) || place.starts_with(path);
        let mut closed = self.closed.iter();
        if let Some(closed) =
            closed.find(|item| right >= item.what.right && around(&item.what.path))
        {
            return Some(closed.origin.clone());
        }
        if right == Right::Write
            && let Some(name) = lies_in_protected(path)
        {
            return Some(format!(
                "the host would execute or trust files written to {name}"
            ));
        }
        if self.i_know {
            return None;
        }
        let access = match right {
            Right::Read => Access::Read,
            Right::Write => Access::Write,
        };
        guarded::why(&self.homes, path, access).map(|guard| guard.why)
    }
}

/// The protected name that a path is or lies in, whatever directory that is in.
fn lies_in_protected(path: &Path) -> Option<&'static str> {
    let mut entries = protected::ENTRIES.iter();
    let found = entries.find(|entry| {
        path.ancestors().skip(1).any(|around| {
            path.strip_prefix(around)
                .is_ok_and(|rest| rest.starts_with(entry.path))
        })
    });
    found.map(|entry| entry.path)
}

/// Names in a directory that a lease for writing must not hold: the host would execute or trust
/// what is written there.
pub fn protected_names() -> impl Iterator<Item = &'static str> {
    protected::ENTRIES.iter().map(|entry| entry.path)
}

/// Resolves the ceiling; `None` where it gives nothing.
pub(crate) fn make(
    policy: &Policy,
    request: &Request,
    (host, files): (&HostCaps, &dyn HostFiles),
    (matched, sensitive_deeper): (&[(PathBuf, String)], bool),
) -> Result<Option<Leases>, PlanError> {
    let ceiling = &policy.ceiling;
    if !ceiling.is_given() {
        return Ok(None);
    }
    let mut paths = Vec::new();
    for part in &ceiling.paths {
        let named = &part.value.path;
        // What is not there yet may come; a link that is made then leads to another real path,
        // which this one does not cover.
        let path = files.real(named).unwrap_or_else(|_| named.clone());
        if path != *named && named.starts_with(&request.workspace) {
            return Err(PlanError::RefusedPath {
                path: named.clone(),
                origin: part.origin.to_string(),
                why: "a symbolic link in the workspace is on its path, and may point anywhere",
            });
        }
        // Where the workspace's repository lies elsewhere, it comes along with the workspace.
        let whole =
            path == request.workspace && policy.workspace_mode.value == WorkspaceMode::Leased;
        let beside = request.git_directory.clone().filter(|_| whole);
        paths.extend([Some(path), beside].into_iter().flatten().map(|path| Item {
            what: LeasePath {
                path,
                right: part.value.right,
                mark: part.value.mark,
            },
            origin: part.origin.to_string(),
        }));
    }
    Ok(Some(Leases {
        paths,
        others: others(policy, request, host, files)?,
        cedar: ceiling.cedar.iter().map(rules).collect(),
        closed: closed(policy, request, files, matched),
        longest: ceiling.longest.value,
        grace: ceiling.grace.value.unwrap_or(Duration::MAX),
        holders: ceiling.holders.value,
        shell: ceiling.shell.value,
        words: ceiling.words.value,
        task: request.task.clone().filter(|task| {
            task.source != TaskSource::Prompt || ceiling.words.value == WordsMode::Narrow
        }),
        call_longest: ceiling.call_longest.value,
        drift: Drift {
            shorten: ceiling.drift.shorten.value,
            ask: ceiling.drift.ask.value,
            freeze: ceiling.drift.freeze.value,
        },
        real_workspace: policy.workspace_mode.value == WorkspaceMode::Direct,
        sensitive_deeper,
        shown: view::sensitive::shown(policy, &request.workspace),
        homes: guarded::known_homes(request),
        i_know: request.i_know,
        judge: policy
            .judge
            .as_ref()
            .map(|judge| judge.value.clone())
            .unwrap_or_default(),
        questions: PermissionRequestTerms::of(&policy.questions),
    }))
}

fn rules(file: &Sourced<RulesFile>) -> Item<LeaseRules> {
    Item {
        what: LeaseRules {
            path: file.value.path.clone(),
            text: file.value.text.clone(),
            only_forbids: file.value.only_forbids,
        },
        origin: file.origin.to_string(),
    }
}

/// What is not about paths: shares of the host as numbers, sockets by their real paths, bundles by
/// their hosts.
fn others(
    policy: &Policy,
    request: &Request,
    host: &HostCaps,
    files: &dyn HostFiles,
) -> Result<Vec<Item<LeasePart>>, PlanError> {
    let one = |what: &CeilingWhat| match what {
        CeilingWhat::Extent(Extent::Socket(path)) => {
            let real = files.real(Path::new(path)).ok();
            let real = real.and_then(|real| real.to_str().map(str::to_owned));
            vec![Extent::Socket(real.unwrap_or_else(|| path.clone()))]
        }
        CeilingWhat::Extent(extent) => vec![extent.clone()],
        CeilingWhat::Secret(rule) => vec![Extent::Secret(rule.name.clone())],
        CeilingWhat::Limit(limit) => {
            let (limit, value) = match limit {
                CeilingLimit::Memory(amount) => (LimitKind::Memory, amount.of(host.memory)),
                CeilingLimit::Cpus(cpus) => (LimitKind::Cpus, milli_cpus(*cpus, host.cpus)),
                CeilingLimit::Pids(pids) => (LimitKind::Pids, u64::from(*pids)),
            };
            vec![Extent::Limit { limit, value }]
        }
        CeilingWhat::Bundle(_) => Vec::new(),
    };
    let mut parts = Vec::new();
    for Sourced { value, origin } in &policy.ceiling.others {
        let CeilingOther { what, mark } = value;
        if let CeilingWhat::Bundle(name) = what {
            let name = Sourced::new(name.clone(), origin.clone());
            for host in network::hosts_of(&name, &request.asked_hosts)? {
                parts.push(Item {
                    what: LeasePart {
                        extent: Extent::Host(host.what.rule),
                        mark: *mark,
                        bundle: Some(name.value.clone()),
                    },
                    origin: host.origin,
                });
            }
        }
        parts.extend(one(what).into_iter().map(|extent| Item {
            what: LeasePart {
                extent,
                mark: *mark,
                bundle: None,
            },
            origin: origin.to_string(),
        }));
    }
    Ok(parts)
}

fn closed(
    policy: &Policy,
    request: &Request,
    files: &dyn HostFiles,
    matched: &[(PathBuf, String)],
) -> Vec<Item<ClosedPlace>> {
    let place = |path: &Path, origin: &str| Item {
        what: ClosedPlace {
            path: files.real(path).unwrap_or_else(|_| path.to_owned()),
            right: Right::Read,
        },
        origin: origin.to_owned(),
    };
    let mut closed = Vec::new();
    for own in &request.own.paths {
        closed.push(place(
            own,
            "it overlaps Ironcage's own directories, which are never in a cage",
        ));
    }
    for document in &request.policy_documents {
        let why = "it is or contains one of your policy files, which no agent may write";
        let mut item = place(document, why);
        item.what.right = Right::Write;
        closed.push(item);
    }
    let hidden = policy.hide.iter();
    let hidden = hidden.map(|hidden| (&hidden.value, hidden.origin.to_string()));
    let matched = matched.iter();
    for (path, origin) in hidden.chain(matched.map(|(path, origin)| (path, origin.clone()))) {
        let why = format!(
            "it overlaps {}, which the policy hides ({origin})",
            path.display()
        );
        closed.push(place(path, &why));
    }
    // A secret is one under its other name too.
    for home in guarded::known_homes(request) {
        for entry in credentials::ENTRIES {
            let named = home.join(entry.path);
            let is_link = files
                .node(&named)
                .is_some_and(|node| node.kind == NodeType::Symlink);
            if is_link && !request.i_know {
                let why = format!("{} points there and contains secrets", named.display());
                closed.push(place(&named, &why));
            }
        }
    }
    closed
}

/// Makes the view ready for leases: directories in which a leased one can appear, and Landlock
/// rules above them, because those only ever tighten.
pub(crate) fn prepare(leases: &Leases, files: &dyn HostFiles, view: &mut ViewPlan) {
    for item in &leases.paths {
        let LeasePath { path, right, mark } = &item.what;
        let in_view = view.ops.iter().any(|op| {
            matches!(&op.what, ViewOp::Overlay { target, locked: true, .. } if path.starts_with(target))
        });
        let Some(parent) = path.parent().filter(|_| mark.gives() && !in_view) else {
            continue;
        };
        let covered = view.ops.iter().any(|op| match &op.what {
            ViewOp::Directory { target, .. } => target == parent,
            ViewOp::Ephemeral { target, .. } => parent.starts_with(target),
            other => other.from_host().is_some_and(|(target, kind)| {
                kind == NodeKind::Directory && parent.starts_with(target)
            }),
        });
        if !covered && parent != Path::new("/") {
            let directory = Item {
                what: ViewOp::Directory {
                    target: parent.to_owned(),
                    mode: 0o755,
                    agents: false,
                },
                origin: item.origin.clone(),
            };
            // Before the root is sealed, which is last.
            view.ops.insert(view.ops.len().saturating_sub(1), directory);
        }
        // A file, or one that is to be made, is leased by its name in the directory around it: then
        // that one is mounted.
        let is_directory = files
            .node(path)
            .is_some_and(|node| node.kind == NodeType::Directory);
        let above = match is_directory {
            true => parent,
            false => parent
                .parent()
                .filter(|above| *above != Path::new("/"))
                .unwrap_or(parent),
        };
        let ruled = view.write_rules.iter().any(|rule| {
            rule.what.rights == WriteRights::Tree && above.starts_with(&rule.what.path)
        });
        if *right == Right::Write && !ruled {
            // On the directory above: a rule on a mount point itself does not cover what is
            // mounted there later. What is beside it stays read-only by its mount.
            view.write_rules.push(Item {
                what: WriteRule {
                    path: above.to_owned(),
                    rights: WriteRights::Tree,
                },
                origin: item.origin.clone(),
            });
        }
    }
}
