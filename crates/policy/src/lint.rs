//! Finds contradictions and missing paths in a merged policy, and shows where they were written.

use crate::diagnostic::Document;
use crate::{Diagnostic, Origin, Policy, PolicyError, Sourced, WorkspaceMode};
use ironcage_model::Printable;
use std::ops::Range;
use std::path::{Path, PathBuf};

/// What is needed to judge a merged policy.
pub(crate) struct Lint<'a> {
    pub(crate) workspace: &'a Path,
    pub(crate) documents: &'a [Document],
}

impl Lint<'_> {
    /// Checks everything; the first error is returned.
    pub(crate) fn check(&self, policy: &Policy) -> Result<(), PolicyError> {
        self.whole_host(policy)?;
        self.hidden_and_given(policy)?;
        self.writes_in_an_unwritable_workspace(policy)?;
        self.groups_on_minimal(policy)?;
        self.open_where_never(policy)?;
        self.missing(policy)
    }

    /// Paths that would bring in the host's own view of itself.
    fn whole_host(&self, policy: &Policy) -> Result<(), PolicyError> {
        let given = policy
            .read
            .iter()
            .map(|path| ("read", path))
            .chain(policy.write.iter().map(|path| ("write", path)))
            .chain(policy.write_direct.iter().map(|path| ("write", path)));
        for (right, path) in given {
            let why = if path.value == Path::new("/") {
                "that is the whole host, with every socket and secret"
            } else if path.value.starts_with("/proc") {
                "that shows the host's processes; a cage has its own /proc"
            } else if path.value == Path::new("/dev") {
                "that contains the host's disks and terminals"
            } else if path.value == Path::new("/sys") && right == "write" {
                "that controls the host's devices"
            } else {
                continue;
            };
            let shown = Printable::new(&path.value);
            return Err(self.refuse(
                path,
                format!("cannot make {shown} visible in a cage: {why}"),
                "too wide",
                "name the files or directories that the cage needs",
            ));
        }
        Ok(())
    }

    fn hidden_and_given(&self, policy: &Policy) -> Result<(), PolicyError> {
        for hidden in &policy.hide {
            if self.workspace.starts_with(&hidden.value)
                && policy.workspace_mode.value != WorkspaceMode::Scratch
            {
                return Err(self.refuse(
                    hidden,
                    format!(
                        "{} hides the whole workspace",
                        Printable::new(&hidden.value)
                    ),
                    "hidden",
                    "hide paths in it, or use mode = \"scratch\"",
                ));
            }
            let given = policy
                .read
                .iter()
                .map(|path| ("readable", path))
                .chain(policy.write.iter().map(|path| ("writable", path)))
                .chain(policy.write_direct.iter().map(|path| ("writable", path)))
                .find(|(_, path)| path.value.starts_with(&hidden.value));
            if let Some((right, path)) = given {
                let shown = Printable::new(&path.value);
                return Err(self.contradiction(
                    format!("{shown} is both {right} and hidden"),
                    (path, right),
                    (hidden, "hidden"),
                    "remove one of the two",
                ));
            }
        }
        Ok(())
    }

    fn writes_in_an_unwritable_workspace(&self, policy: &Policy) -> Result<(), PolicyError> {
        let mode = &policy.workspace_mode;
        if mode.value.is_writable() {
            return Ok(());
        }
        let Some(inside) = policy
            .write
            .iter()
            .chain(&policy.write_direct)
            .find(|path| path.value.starts_with(self.workspace))
        else {
            return Ok(());
        };
        let shown = Printable::new(&inside.value);
        let mode_name = Sourced::new(PathBuf::from(mode.value.name()), mode.origin.clone());
        Err(self.contradiction(
            format!(
                "{shown} is writable, but its workspace is {}",
                mode.value.name()
            ),
            (inside, "writable"),
            (&mode_name, "the workspace's mode"),
            "use mode = \"cow\" or \"direct\", or write outside the workspace",
        ))
    }

    fn groups_on_minimal(&self, policy: &Policy) -> Result<(), PolicyError> {
        let (list, Some(group)) = (&policy.syscalls, policy.syscall_groups.first()) else {
            return Ok(());
        };
        if list.value != "minimal" {
            return Ok(());
        }
        let as_path =
            |text: &Sourced<String>| Sourced::new(PathBuf::from(&text.value), text.origin.clone());
        Err(self.contradiction(
            format!(
                "the system call list `minimal` does not allow groups, but the policy has `{}`",
                group.value
            ),
            (&as_path(group), "a group"),
            (&as_path(list), "the list"),
            "use list = \"standard\", or remove the group",
        ))
    }

    fn open_where_never(&self, policy: &Policy) -> Result<(), PolicyError> {
        let network = &policy.network;
        if !(network.open.value && network.never_open.value) {
            return Ok(());
        }
        Err(PolicyError::Contradiction {
            what: "the policy opens the network, but another part forbids it".to_owned(),
            first: network.open.origin.clone(),
            second: network.never_open.origin.clone(),
            remedy: "name the hosts with --allow-host, or use another profile".to_owned(),
        })
    }

    /// A path that does not exist is a typo, or a secret that stays visible.
    /// Profiles may name paths that not every host has.
    fn missing(&self, policy: &Policy) -> Result<(), PolicyError> {
        for path in policy
            .read
            .iter()
            .chain(&policy.write)
            .chain(&policy.write_direct)
            .chain(&policy.hide)
        {
            let written = matches!(path.origin, Origin::File { .. } | Origin::Flag { .. });
            if written && std::fs::metadata(&path.value).is_err() {
                // A shell expands `~` only at the beginning of a word: not in `--read=~/x`.
                let literal = path.value.components().any(|part| part.as_os_str() == "~");
                // Docker's -w is the working directory.
                let write = matches!(&path.origin, Origin::Flag { flag } if *flag == "--write");
                return Err(self.refuse(
                    path,
                    format!("{} does not exist", Printable::new(&path.value)),
                    "missing, or not accessible",
                    match &path.origin {
                        Origin::Flag { .. } if literal => {
                            "`~` was not expanded: put a space before the path instead of `=`"
                        }
                        _ if write => {
                            "correct the path or create it; --cwd sets the working directory"
                        }
                        _ => "correct the path, create it, or remove it",
                    },
                ));
            }
        }
        Ok(())
    }

    /// The document and the place of a value, where it came from a file.
    fn place(&self, value: &Sourced<PathBuf>) -> Option<(&Document, Range<usize>)> {
        let Origin::File { path, line } = &value.origin else {
            return None;
        };
        let document = self
            .documents
            .iter()
            .find(|document| document.path == *path)?;
        let text = value.value.to_string_lossy();
        // Written in full, or relative to something: the last part stands there either way.
        let last = value.value.file_name().map(|name| name.to_string_lossy());
        let span = document.find_in_line(*line, &text);
        let whole = document.find_in_line(*line, "");
        let span = match last {
            Some(last) if span == whole => document.find_in_line(*line, &last),
            _ => span,
        };
        Some((document, span))
    }

    fn refuse(
        &self,
        value: &Sourced<PathBuf>,
        title: String,
        label: &str,
        remedy: &str,
    ) -> PolicyError {
        match self.place(value) {
            Some((document, span)) => Diagnostic::new(document, span, title, label)
                .remedy(remedy)
                .into(),
            None => PolicyError::Refused {
                what: title,
                origin: value.origin.clone(),
                remedy: remedy.to_owned(),
            },
        }
    }

    fn contradiction(
        &self,
        title: String,
        (first, first_label): (&Sourced<PathBuf>, &str),
        (second, second_label): (&Sourced<PathBuf>, &str),
        remedy: &str,
    ) -> PolicyError {
        match (self.place(first), self.place(second)) {
            (Some((a, span)), Some((b, other))) => Diagnostic::new(a, span, title, first_label)
                .context(b, other, second_label)
                .remedy(remedy)
                .into(),
            _ => PolicyError::Contradiction {
                what: title,
                first: first.origin.clone(),
                second: second.origin.clone(),
                remedy: remedy.to_owned(),
            },
        }
    }
}
