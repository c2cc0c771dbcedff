//! The ceiling of one source: the same paths as in the base, in three parts.

use super::{Check, PIDS};
use crate::ceiling::{
    CeilingFragment, CeilingLimit, CeilingOther, CeilingPath, CeilingWhat, WORKSPACE,
};
use crate::file::{CeilingLimits, CeilingNetwork, CeilingPart, CeilingSection, TaintSection};
use crate::network::{self, InvalidHostRule};
use crate::taint::TaintFragment;
use crate::{Diagnostic, Sourced, bundles, syscalls};
use ironcage_model::{
    Destination, Extent, HOST_NAME, Holders, HostRule, InvalidPortPattern, Mark, Ports, Right,
    ShellMode, WordsMode,
};
use std::path::{Component, Path, PathBuf};
use toml::Spanned;

/// The ports of a rule over every host of the internet: `*`, `*:22`, `*:*`.
fn every_host(text: &str) -> Option<Ports> {
    match text.strip_prefix('*')? {
        "" => Some(Ports::Web),
        ":*" => Some(Ports::Any),
        rest => {
            let digits = rest.strip_prefix(':')?;
            let plain = digits.bytes().all(|byte| byte.is_ascii_digit());
            let port = digits.parse().ok().filter(|port| *port > 0 && plain)?;
            Some(Ports::One(port))
        }
    }
}

impl Check<'_> {
    pub(super) fn ceiling(&self, section: &CeilingSection) -> Result<CeilingFragment, Diagnostic> {
        let (mut paths, mut others) = (Vec::new(), Vec::new());
        let always = CeilingPart {
            files: section.always.files.clone(),
            network: CeilingNetwork {
                allow: section.always.network.allow.clone(),
                ..CeilingNetwork::default()
            },
            ..CeilingPart::default()
        };
        for (mark, part) in [
            (Mark::Always, &always),
            (Mark::Auto, &section.auto),
            (Mark::Ask, &section.ask),
            (Mark::Deny, &section.deny),
        ] {
            for (right, list) in [
                (Right::Read, &part.files.read),
                (Right::Write, &part.files.write),
            ] {
                paths.extend(self.each(list, |this, text| {
                    let path = match this.in_workspace(text)? {
                        Some(path) => path,
                        None => this.path(text)?,
                    };
                    Ok(CeilingPath { path, right, mark })
                })?);
            }
            for what in self.others(mark, part)? {
                let Sourced { value, origin } = what;
                others.push(Sourced::new(CeilingOther { what: value, mark }, origin));
            }
        }
        Ok(CeilingFragment {
            longest: self.one(&section.longest, Self::quantity)?,
            grace: self.one(&section.grace, Self::quantity)?,
            call_longest: self.one(&section.call_longest, Self::quantity)?,
            drift: [
                self.differences(&section.drift.shorten)?,
                self.differences(&section.drift.ask)?,
                self.differences(&section.drift.freeze)?,
            ],
            children: self.cages(&section.children)?,
            channels: self.cages(&section.channels)?,
            holders: self.one(&section.holders, |this, text| {
                let kinds = [Holders::Kill, Holders::Keep];
                let name = this.name_of(text, "value of `holders`", &kinds.map(Holders::name))?;
                Ok(match name.as_str() {
                    "keep" => Holders::Keep,
                    _ => Holders::Kill,
                })
            })?,
            shell: self.one(&section.shell, |this, text| {
                let name = this.name_of(
                    text,
                    "value of `shell`",
                    &ShellMode::ALL.map(ShellMode::name),
                )?;
                Ok(match name.as_str() {
                    "scoped" => ShellMode::Scoped,
                    _ => ShellMode::Plain,
                })
            })?,
            words: self.one(&section.words, |this, text| {
                let names = WordsMode::ALL.map(WordsMode::name);
                let name = this.name_of(text, "value of `words`", &names)?;
                Ok(match name.as_str() {
                    "narrow" => WordsMode::Narrow,
                    _ => WordsMode::Note,
                })
            })?,
            cedar: self.one(&section.cedar, Self::path)?,
            // Set by the code that reads the files of a policy.
            rules: None,
            paths,
            others,
        })
    }

    /// A path that is named by its place in the workspace, which is not known here.
    fn in_workspace(&self, text: &Spanned<String>) -> Result<Option<PathBuf>, Diagnostic> {
        let path = Path::new(text.get_ref());
        let Ok(rest) = path.strip_prefix(WORKSPACE) else {
            return Ok(None);
        };
        let plain = |part: Component<'_>| matches!(part, Component::Normal(_));
        if !rest.components().all(plain) || text.get_ref().contains('\0') {
            let title = format!("invalid path `{}`", text.get_ref());
            return Err(self
                .wrong(text, title, "outside the workspace")
                .remedy("use @workspace, or @workspace/ and a path in it"));
        }
        Ok(Some(path.components().collect()))
    }

    /// How many of something that is between cages.
    fn cages(&self, said: &Option<Spanned<u64>>) -> Result<Option<Sourced<u32>>, Diagnostic> {
        let said = self.number(said, 0..=64)?;
        Ok(said.map(|said| {
            let value = u32::try_from(said.value).unwrap_or_default();
            Sourced::new(value, said.origin)
        }))
    }

    /// What one source says of private data and untrusted content.
    pub(super) fn taint(&self, section: &TaintSection) -> Result<TaintFragment, Diagnostic> {
        Ok(TaintFragment {
            private: self.each(&section.private, Self::path)?,
            untrusted: self.each(&section.untrusted, |this, text| {
                if let Some(ports) = every_host(text.get_ref()) {
                    let to = Destination::Any;
                    return Ok(HostRule { to, ports });
                }
                network::denied(text.get_ref()).map_err(|error| {
                    let title = format!("invalid host `{}`", error.text);
                    this.wrong(text, title, "not understood")
                        .remedy(error.remedy)
                })
            })?,
            ask: self.one(&section.ask, |_, value| Ok(*value.get_ref()))?,
        })
    }

    fn differences(&self, said: &Option<Spanned<u64>>) -> Result<Option<Sourced<u32>>, Diagnostic> {
        let said = self.number(said, 1..=u64::from(u32::MAX))?;
        Ok(said.map(|said| {
            let value = u32::try_from(said.value).unwrap_or(u32::MAX);
            Sourced::new(value, said.origin)
        }))
    }

    /// What one part says of anything but paths.
    fn others(
        &self,
        mark: Mark,
        part: &CeilingPart,
    ) -> Result<Vec<Sourced<CeilingWhat>>, Diagnostic> {
        let network = &part.network;
        let wrong = |text: &Spanned<String>, error: InvalidHostRule| {
            let title = format!("invalid host `{}`", error.text);
            self.wrong(text, title, "not understood")
                .remedy(error.remedy)
        };
        let mut all = Vec::new();
        let mut take = |found: Vec<Sourced<Extent>>| {
            all.extend(found.into_iter().map(|found| {
                let Sourced { value, origin } = found;
                Sourced::new(CeilingWhat::Extent(value), origin)
            }));
        };
        take(self.each(&network.allow, |this, text| {
            if let Some(ports) = every_host(text.get_ref()) {
                let to = Destination::Any;
                return Ok(Extent::Host(HostRule { to, ports }));
            }
            let read = match mark {
                Mark::Deny => network::denied,
                Mark::Always | Mark::Auto | Mark::Ask => network::allowed,
            };
            let rule = read(text.get_ref()).map_err(|error| wrong(text, error))?;
            if mark == Mark::Deny && matches!(rule.to, Destination::Net { .. }) {
                // Where a name leads is known when it is connected to, long after the decision.
                return Err(this
                    .wrong(text, "a ceiling can deny leases by name, not by address", "an address")
                    .remedy("put the address into `deny` under [network], which applies to the whole cage"));
            }
            Ok(Extent::Host(rule))
        })?);
        take(self.each(&network.http, |_, text| {
            let rule = network::requests(text.get_ref()).map_err(|error| wrong(text, error))?;
            Ok(Extent::Http(rule))
        })?);
        take(self.each(&network.publish, |this, text| {
            let pattern = text.get_ref().parse();
            pattern
                .map(Extent::Port)
                .map_err(|error: InvalidPortPattern| {
                    this.wrong(text, error.to_string(), "not understood")
                })
        })?);
        take(self.each(&network.sockets, |this, text| {
            let path = this.path(text)?;
            let path = path.into_os_string().into_string();
            path.map(Extent::Socket).map_err(|_| {
                this.wrong(
                    text,
                    "the path of a leased socket must be UTF-8",
                    "not UTF-8",
                )
            })
        })?);
        take(self.each(&part.syscalls.groups, |this, text| {
            let names: Vec<&str> = syscalls::groups().iter().map(|group| group.name).collect();
            this.name_of(text, "system call group", &names)
                .map(Extent::Syscalls)
        })?);
        take(self.each(&part.process.capabilities, |this, text| {
            this.capability(text).map(Extent::Capability)
        })?);
        for bundle in self.each(&network.bundles, |this, text| {
            this.name_of(text, "bundle", &bundles::names())
        })? {
            let what = CeilingWhat::Bundle(bundle.value);
            all.push(Sourced::new(what, bundle.origin));
        }
        for port in &network.host_ports {
            let name = network::host_name(HOST_NAME)
                .map_err(|error| self.wrong(port, error.to_string(), "not understood"))?;
            let rule = HostRule {
                to: Destination::Name(name),
                ports: Ports::One(*port.get_ref()),
            };
            let what = CeilingWhat::Extent(Extent::Host(rule));
            all.push(self.sourced(what, port.span()));
        }
        match mark {
            // By its name alone, whatever it is for.
            Mark::Deny => {
                for name in network.secrets.keys() {
                    let what = CeilingWhat::Extent(Extent::Secret(name.get_ref().clone()));
                    all.push(self.sourced(what, name.span()));
                }
            }
            Mark::Always | Mark::Auto | Mark::Ask => {
                for Sourced { value, origin } in self.secrets(&network.secrets)? {
                    all.push(Sourced::new(CeilingWhat::Secret(value), origin));
                }
            }
        }
        all.extend(self.raised_limits(&part.limits)?);
        Ok(all)
    }

    fn raised_limits(
        &self,
        limits: &CeilingLimits,
    ) -> Result<Vec<Sourced<CeilingWhat>>, Diagnostic> {
        let memory = self.one(&limits.memory, Self::quantity)?;
        let memory = memory.map(|said| Sourced::new(CeilingLimit::Memory(said.value), said.origin));
        let cpus = self.one(&limits.cpus, Self::cpus)?;
        let cpus = cpus.map(|said| Sourced::new(CeilingLimit::Cpus(said.value), said.origin));
        let pids = self.number(&limits.pids, PIDS)?;
        let pids = pids.map(|said| {
            let value = u32::try_from(said.value).unwrap_or(u32::MAX);
            Sourced::new(CeilingLimit::Pids(value), said.origin)
        });
        let found = [memory, cpus, pids].into_iter().flatten();
        Ok(found
            .map(|limit| Sourced::new(CeilingWhat::Limit(limit.value), limit.origin))
            .collect())
    }
}
