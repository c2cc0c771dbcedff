//! The checked values of one source (a file, a profile or the flags), each with its origin.
//! `merge` combines fragments.

mod ceiling;
mod checks;
mod keys;
mod network;
mod questions;
mod tools;

use crate::ceiling::CeilingFragment;
use crate::diagnostic::Document;
use crate::file::CpusText;
use crate::network::NetworkFragment;
use crate::parse::nearest;
use crate::quantity::Size;
use crate::questions::QuestionsFragment;
use crate::signing_keys::SigningKeysFragment;
use crate::taint::TaintFragment;
use crate::tool_rules::ToolsFragment;
use crate::{
    Amount, Cpus, Diagnostic, EnvRule, HidePattern, Origin, PolicyFile, SideChannels, Sourced,
    TimeLimit, WorkspaceMode, caches, profiles, syscalls,
};
pub(crate) use checks::{
    HOSTNAME_RULE, check_capability, check_keep, check_unprotect, is_env_name, is_hostname, normal,
};
use ironcage_model::{Isolation, Layer};
use std::ops::{Range, RangeInclusive};
use std::path::{Path, PathBuf};
use std::str::FromStr;
use toml::Spanned;

/// What one source says. Lists are appended, single values override.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Fragment {
    pub(crate) isolation: Option<Sourced<Isolation>>,
    pub(crate) workspace_mode: Option<Sourced<WorkspaceMode>>,
    pub(crate) in_memory: Option<Sourced<bool>>,
    pub(crate) unprotect: Vec<Sourced<PathBuf>>,
    pub(crate) read: Vec<Sourced<PathBuf>>,
    pub(crate) write: Vec<Sourced<PathBuf>>,
    pub(crate) write_direct: Vec<Sourced<PathBuf>>,
    pub(crate) hide: Vec<Sourced<PathBuf>>,
    pub(crate) hide_matching: Vec<Sourced<HidePattern>>,
    pub(crate) hide_sensitive: Option<Sourced<bool>>,
    pub(crate) toolchains: Option<Sourced<bool>>,
    pub(crate) host_caches: Option<Sourced<bool>>,
    pub(crate) state_limit: Option<Sourced<Size>>,
    pub(crate) state_limit_per_path: Option<Sourced<Size>>,
    pub(crate) keep: Vec<Sourced<PathBuf>>,
    pub(crate) caches: Vec<Sourced<String>>,
    /// Takes away what is kept so far; only flags say so.
    pub(crate) keep_nothing: bool,
    pub(crate) env: Vec<Sourced<EnvRule>>,
    pub(crate) hostname: Option<Sourced<String>>,
    pub(crate) root_inside: Option<Sourced<bool>>,
    pub(crate) guest_root: Option<Sourced<bool>>,
    pub(crate) git_identity: Option<Sourced<bool>>,
    pub(crate) side_channels: Option<Sourced<SideChannels>>,
    pub(crate) capabilities: Vec<Sourced<String>>,
    pub(crate) syscalls: Option<Sourced<String>>,
    pub(crate) syscall_groups: Vec<Sourced<String>>,
    pub(crate) network: NetworkFragment,
    pub(crate) keys: SigningKeysFragment,
    pub(crate) ceiling: CeilingFragment,
    pub(crate) judge: Option<Sourced<Vec<String>>>,
    pub(crate) questions: QuestionsFragment,
    pub(crate) taint: TaintFragment,
    pub(crate) tools: ToolsFragment,
    pub(crate) limits: LimitsFragment,
    pub(crate) require: Vec<Sourced<Layer>>,
    pub(crate) allow_degraded: Vec<Sourced<Layer>>,
}

/// The limits that one source sets.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct LimitsFragment {
    pub(crate) memory: Option<Sourced<Amount>>,
    pub(crate) cpus: Option<Sourced<Cpus>>,
    pub(crate) pids: Option<Sourced<u32>>,
    pub(crate) disk: Option<Sourced<Amount>>,
    pub(crate) inodes: Option<Sourced<u64>>,
    pub(crate) files: Option<Sourced<u64>>,
    pub(crate) time: Option<Sourced<TimeLimit>>,
    pub(crate) idle: Option<Sourced<TimeLimit>>,
    pub(crate) fuel: Option<Sourced<u64>>,
}

/// Two are the least with which a shell can start anything; four million is the kernel's bound.
pub(crate) const PIDS: RangeInclusive<u64> = 2..=4_194_304;
/// Below this not even the cage's own directories fit.
pub(crate) const INODES: RangeInclusive<u64> = 64..=u32::MAX as u64;
/// The dynamic loader needs a few; the kernel's `nr_open` is a million unless raised.
pub(crate) const FILES: RangeInclusive<u64> = 16..=1_048_576;
/// A TOML number is signed.
pub(crate) const FUEL: RangeInclusive<u64> = 1..=i64::MAX as u64;

/// Where a text came from, which its values keep as their origin.
pub(crate) enum Source<'a> {
    BuiltIn,
    Profile(&'a str),
    File,
}

/// Checks a file's values and puts their origins beside them.
pub(crate) fn from_file(
    file: &PolicyFile,
    document: &Document,
    source: &Source<'_>,
    home: &Path,
) -> Result<Fragment, Diagnostic> {
    Check {
        document,
        source,
        home,
    }
    .fragment(file)
}

struct Check<'a> {
    document: &'a Document,
    source: &'a Source<'a>,
    home: &'a Path,
}

impl Check<'_> {
    fn fragment(&self, file: &PolicyFile) -> Result<Fragment, Diagnostic> {
        let mut env = self.each(&file.env.pass, |this, name| {
            let name = this.env_name(name)?;
            Ok(EnvRule::Pass { name })
        })?;
        for (name, value) in &file.env.set {
            let rule = EnvRule::Set {
                name: self.env_name(name)?,
                value: self.env_value(value)?,
            };
            env.push(self.sourced(rule, name.span()));
        }
        let process = &file.process;
        let (patterns, paths): (Vec<_>, Vec<_>) =
            (file.files.hide.iter().cloned()).partition(|text| HidePattern::is_one(text.get_ref()));
        let path = |this: &Self, text: &Spanned<String>| this.path(text);
        Ok(Fragment {
            isolation: self.one(&file.isolation, Self::isolation)?,
            workspace_mode: self.one(&file.workspace.mode, Self::mode)?,
            in_memory: self.one(&file.workspace.in_memory, |_, value| Ok(*value.get_ref()))?,
            unprotect: self.each(&file.workspace.unprotect, Self::unprotect)?,
            read: self.each(&file.files.read, path)?,
            write: self.each(&file.files.write, path)?,
            write_direct: self.each(&file.files.write_direct, path)?,
            hide: self.each(&paths, path)?,
            hide_matching: self.each(&patterns, Self::hide_pattern)?,
            hide_sensitive: self
                .one(&file.files.hide_sensitive, |_, value| Ok(*value.get_ref()))?,
            toolchains: self.one(&file.files.toolchains, |_, value| Ok(*value.get_ref()))?,
            host_caches: self.one(&file.state.host_caches, |_, value| Ok(*value.get_ref()))?,
            state_limit: self.one(&file.state.limit, Self::quantity)?,
            state_limit_per_path: self.one(&file.state.limit_per_path, Self::quantity)?,
            keep: self.each(&file.state.keep, |this, text| {
                check_keep(Path::new(text.get_ref()), this.home).map_err(|remedy| {
                    let title = format!("cannot keep `{}`", text.get_ref());
                    this.wrong(text, title, "not a path in the home directory")
                        .remedy(remedy)
                })
            })?,
            caches: self.each(&file.state.caches, |this, text| {
                this.name_of(text, "cache", &caches::names())
            })?,
            keep_nothing: false,
            env,
            hostname: self.one(&process.hostname, Self::hostname)?,
            root_inside: self.one(&process.root_inside, |_, value| Ok(*value.get_ref()))?,
            guest_root: self.one(&process.guest_root, |_, value| Ok(*value.get_ref()))?,
            git_identity: self.one(&process.git_identity, |_, value| Ok(*value.get_ref()))?,
            side_channels: self.one(&process.side_channels, Self::side_channels)?,
            capabilities: self.each(&process.capabilities, Self::capability)?,
            syscalls: self.one(&file.syscalls.list, |this, text| {
                let names: Vec<&str> = syscalls::lists().iter().map(|list| list.name).collect();
                this.name_of(text, "system call list", &names)
            })?,
            syscall_groups: self.each(&file.syscalls.groups, |this, text| {
                let names: Vec<&str> = syscalls::groups().iter().map(|group| group.name).collect();
                this.name_of(text, "system call group", &names)
            })?,
            network: self.network(&file.network)?,
            keys: self.keys(&file.keys)?,
            ceiling: self.ceiling(&file.ceiling)?,
            judge: self.program(&file.intent.judge, "/usr/local/bin/judge")?,
            questions: self.questions(&file.questions)?,
            taint: self.taint(&file.taint)?,
            tools: self.tools(file)?,
            limits: self.limits(file)?,
            require: self.each(&file.layers.require, Self::layer)?,
            allow_degraded: self.each(&file.layers.allow_degraded, Self::layer)?,
        })
    }

    fn limits(&self, file: &PolicyFile) -> Result<LimitsFragment, Diagnostic> {
        let limits = &file.limits;
        Ok(LimitsFragment {
            memory: self.one(&limits.memory, Self::quantity)?,
            cpus: self.one(&limits.cpus, Self::cpus)?,
            pids: self.number(&limits.pids, PIDS)?.map(|pids| {
                Sourced::new(u32::try_from(pids.value).unwrap_or(u32::MAX), pids.origin)
            }),
            disk: self.one(&limits.disk, Self::quantity)?,
            inodes: self.number(&limits.inodes, INODES)?,
            files: self.number(&limits.files, FILES)?,
            time: self.one(&limits.time, Self::quantity)?,
            idle: self.one(&limits.idle, Self::quantity)?,
            fuel: self.number(&limits.fuel, FUEL)?,
        })
    }

    fn origin(&self, span: &Range<usize>) -> Origin {
        match self.source {
            Source::BuiltIn => Origin::BuiltIn,
            Source::Profile(name) => Origin::Profile {
                name: (*name).to_owned(),
            },
            Source::File => Origin::File {
                path: self.document.path.clone(),
                line: self.document.line(span.start),
            },
        }
    }

    fn sourced<T>(&self, value: T, span: Range<usize>) -> Sourced<T> {
        Sourced::new(value, self.origin(&span))
    }

    fn one<V, T>(
        &self,
        value: &Option<Spanned<V>>,
        check: impl Fn(&Self, &Spanned<V>) -> Result<T, Diagnostic>,
    ) -> Result<Option<Sourced<T>>, Diagnostic> {
        value
            .as_ref()
            .map(|value| Ok(self.sourced(check(self, value)?, value.span())))
            .transpose()
    }

    fn each<T>(
        &self,
        values: &[Spanned<String>],
        check: impl Fn(&Self, &Spanned<String>) -> Result<T, Diagnostic>,
    ) -> Result<Vec<Sourced<T>>, Diagnostic> {
        values
            .iter()
            .map(|value| Ok(self.sourced(check(self, value)?, value.span())))
            .collect()
    }

    fn wrong<V>(
        &self,
        at: &Spanned<V>,
        title: impl Into<String>,
        label: impl Into<String>,
    ) -> Diagnostic {
        Diagnostic::new(self.document, at.span(), title, label)
    }

    fn quantity<T: FromStr<Err = crate::InvalidQuantity>>(
        &self,
        text: &Spanned<String>,
    ) -> Result<T, Diagnostic> {
        text.get_ref()
            .parse()
            .map_err(|error: crate::InvalidQuantity| {
                let title = format!("cannot parse `{}`", error.text.escape_debug());
                self.wrong(text, title, "invalid or out of range")
                    .remedy(format!("expected {}", error.wanted))
            })
    }

    fn cpus(&self, value: &Spanned<CpusText>) -> Result<Cpus, Diagnostic> {
        let text = match value.get_ref() {
            CpusText::Whole(number) => number.to_string(),
            CpusText::Number(number) => number.to_string(),
            CpusText::Text(text) => text.clone(),
        };
        text.parse().map_err(|error: crate::InvalidQuantity| {
            let title = format!("cannot parse `{}`", error.text.escape_debug());
            self.wrong(value, title, "invalid or out of range")
                .remedy(format!("expected {}", error.wanted))
        })
    }

    fn number(
        &self,
        value: &Option<Spanned<u64>>,
        range: RangeInclusive<u64>,
    ) -> Result<Option<Sourced<u64>>, Diagnostic> {
        self.one(value, |this, number| {
            let value = *number.get_ref();
            if range.contains(&value) {
                return Ok(value);
            }
            let (least, most) = (range.start(), range.end());
            Err(this
                .wrong(number, format!("{value} is out of range"), "out of range")
                .remedy(format!("expected a number from {least} to {most}")))
        })
    }

    fn side_channels(&self, text: &Spanned<String>) -> Result<SideChannels, Diagnostic> {
        let names = SideChannels::ALL.map(SideChannels::name);
        let name = self.name_of(text, "side-channel mode", &names)?;
        let mut all = SideChannels::ALL.into_iter();
        let found = all.find(|value| value.name() == name);
        Ok(found.unwrap_or(SideChannels::Hardened))
    }

    fn mode(&self, text: &Spanned<String>) -> Result<WorkspaceMode, Diagnostic> {
        self.name_of(
            text,
            "workspace mode",
            &WorkspaceMode::ALL.map(WorkspaceMode::name),
        )?
        .parse()
        .map_err(|error: crate::InvalidMode| self.wrong(text, error.to_string(), "unknown"))
    }

    fn isolation(&self, text: &Spanned<String>) -> Result<Isolation, Diagnostic> {
        self.name_of(text, "isolation", &Isolation::ALL.map(Isolation::name))?
            .parse()
            .map_err(|error: ironcage_model::UnknownIsolation| {
                self.wrong(text, error.to_string(), "unknown")
            })
    }

    fn layer(&self, text: &Spanned<String>) -> Result<Layer, Diagnostic> {
        self.name_of(text, "layer", &Layer::ALL.map(Layer::name))?
            .parse()
            .map_err(|error: ironcage_model::UnknownLayer| {
                self.wrong(text, error.to_string(), "unknown")
            })
    }

    fn name_of(
        &self,
        text: &Spanned<String>,
        kind: &str,
        names: &[&str],
    ) -> Result<String, Diagnostic> {
        let name = text.get_ref();
        if names.contains(&name.as_str()) {
            return Ok(name.clone());
        }
        let diagnostic = self.wrong(text, format!("unknown {kind} `{name}`"), "unknown name");
        Err(match nearest(name, names) {
            Some(near) => diagnostic.remedy(format!("did you mean \"{near}\"?")),
            None => diagnostic.remedy(format!("expected one of {}", names.join(", "))),
        })
    }

    fn capability(&self, text: &Spanned<String>) -> Result<String, Diagnostic> {
        check_capability(text.get_ref()).map_err(|(title, remedy)| {
            self.wrong(text, title, "not available in a cage")
                .remedy(remedy)
        })
    }

    fn hostname(&self, text: &Spanned<String>) -> Result<String, Diagnostic> {
        let name = text.get_ref();
        if is_hostname(name) {
            return Ok(name.clone());
        }
        Err(self
            .wrong(
                text,
                format!("invalid host name `{name}`"),
                "not a host name",
            )
            .remedy(HOSTNAME_RULE))
    }

    fn env_name(&self, text: &Spanned<String>) -> Result<String, Diagnostic> {
        let name = text.get_ref();
        if is_env_name(name) {
            return Ok(name.clone());
        }
        Err(self
            .wrong(text, format!("invalid variable name `{name}`"), "not a name")
            .remedy("a name must not be empty or contain `=` or NUL; put values into set = { NAME = \"value\" }"))
    }

    fn env_value(&self, text: &Spanned<String>) -> Result<String, Diagnostic> {
        if text.get_ref().contains('\0') {
            return Err(self
                .wrong(
                    text,
                    "the value of a variable contains a NUL",
                    "contains a NUL",
                )
                .remedy("remove it; the kernel ends a value at a NUL"));
        }
        Ok(text.get_ref().clone())
    }

    fn unprotect(&self, text: &Spanned<String>) -> Result<PathBuf, Diagnostic> {
        check_unprotect(text.get_ref()).map_err(|error| {
            let title = format!("`{}` is not a protected path", text.get_ref());
            self.wrong(text, title, "not protected")
                .remedy(error.to_string())
        })
    }

    fn hide_pattern(&self, text: &Spanned<String>) -> Result<HidePattern, Diagnostic> {
        enum Wrong {
            Path(Diagnostic),
            Pattern(&'static str),
        }
        impl From<&'static str> for Wrong {
            fn from(why: &'static str) -> Wrong {
                Wrong::Pattern(why)
            }
        }
        let absolute = |_: &str| self.path(text).map_err(Wrong::Path);
        HidePattern::parse(text.get_ref(), absolute).map_err(|wrong| match wrong {
            Wrong::Path(diagnostic) => diagnostic,
            Wrong::Pattern(why) => {
                let title = format!("invalid pattern `{}`", text.get_ref());
                self.wrong(text, title, why)
                    .remedy("use a pattern such as `*.pem`, `**/.env` or `config/*.key`")
            }
        })
    }

    pub(super) fn path(&self, text: &Spanned<String>) -> Result<PathBuf, Diagnostic> {
        let written = text.get_ref().as_str();
        let refuse = |label: &str, remedy: &str| {
            let title = format!("invalid path `{written}`");
            Err(self.wrong(text, title, label).remedy(remedy))
        };
        if written.is_empty() || written.contains('\0') {
            return refuse(
                "empty, or contains a NUL",
                "use an absolute path, ~/..., or a path relative to this file",
            );
        }
        let path = match written.strip_prefix('~') {
            Some("") => self.home.to_owned(),
            Some(rest) => match rest.strip_prefix('/') {
                Some(rest) => self.home.join(rest.trim_start_matches('/')),
                None => return refuse("another user's home", "use an absolute path"),
            },
            None if written.starts_with('/') => PathBuf::from(written),
            None => match self.source {
                Source::File => {
                    let base = self.document.path.parent().unwrap_or(Path::new("/"));
                    base.join(written)
                }
                _ => {
                    return refuse(
                        "relative",
                        "a profile has no directory; use ~/... or an absolute path",
                    );
                }
            },
        };
        Ok(normal(&path))
    }
}

/// The profile or file that a file builds on; what is wrong with it where it is neither.
pub(crate) enum Base {
    Profile(&'static profiles::Embedded),
    File(PathBuf),
}

/// What `extends` (or the configuration's `profile`) names.
pub(crate) fn base(
    document: &Document,
    name: &Spanned<String>,
    home: &Path,
) -> Result<Base, Diagnostic> {
    let text = name.get_ref();
    if let Some(profile) = profiles::find(text) {
        return Ok(Base::Profile(profile));
    }
    if text.contains('/') || text.ends_with(".toml") {
        let check = Check {
            document,
            source: &Source::File,
            home,
        };
        return check.path(name).map(Base::File);
    }
    let names = profiles::names();
    let diagnostic = Diagnostic::new(
        document,
        name.span(),
        format!("unknown profile `{text}`"),
        "unknown profile",
    );
    Err(match nearest(text, &names) {
        Some(near) => diagnostic.remedy(format!("did you mean \"{near}\"?")),
        None => diagnostic.remedy(format!(
            "expected one of {}; for a file, write a slash, as in \"./base.toml\"",
            names.join(", ")
        )),
    })
}
