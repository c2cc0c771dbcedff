//! The flags of one run: the topmost fragment of the merge.

use crate::ceiling::CeilingFragment;
use crate::fragment::{
    self, Fragment, LimitsFragment, check_capability, check_keep, check_unprotect, normal,
};
use crate::network::{self, InvalidHostRule, NetworkFragment, NetworkLimit, NetworkMode};
use crate::questions::QuestionsFragment;
use crate::signing_keys::{SigningKeysFragment, sign_key, ssh_key};
use crate::taint::TaintFragment;
use crate::tool_rules::ToolsFragment;
use crate::{
    Amount, Cpus, EnvRule, HidePattern, Origin, PolicyError, SideChannels, Sourced, TimeLimit,
    WorkspaceMode, bundles, logins, syscalls,
};
use ironcage_model::{Isolation, Layer, Publish, ShellMode};
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};

/// What the flags of one run say. Relative paths are relative to the current directory.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct FlagLayer {
    pub isolation: Option<Isolation>,
    pub shell: Option<ShellMode>,
    pub workspace_mode: Option<WorkspaceMode>,
    pub in_memory: bool,
    /// `--unprotect`, relative to the workspace.
    pub unprotect: Vec<PathBuf>,
    /// `-r`, `--read`.
    pub read: Vec<PathBuf>,
    /// `-w`, `--write`.
    pub write: Vec<PathBuf>,
    /// `-w PATH:direct`.
    pub write_direct: Vec<PathBuf>,
    pub hide: Vec<PathBuf>,
    pub hide_matching: Vec<HidePattern>,
    pub no_toolchains: bool,
    /// `--state`, relative to the home directory.
    pub state: Vec<PathBuf>,
    pub no_state: bool,
    pub host_caches: bool,
    pub env: Vec<EnvRule>,
    pub hostname: Option<String>,
    pub root_inside: bool,
    pub side_channels: Option<SideChannels>,
    /// `--cap`, with or without `CAP_`.
    pub capabilities: Vec<String>,
    pub syscalls: Option<String>,
    pub syscall_groups: Vec<String>,
    pub network: Option<NetworkMode>,
    pub allow_sockets: Vec<PathBuf>,
    pub publish: Vec<Publish>,
    pub network_limits: Vec<NetworkLimit>,
    pub allow_hosts: Vec<String>,
    pub deny_hosts: Vec<String>,
    pub http_allow: Vec<String>,
    pub secrets: Vec<String>,
    pub aws: Option<String>,
    pub logins: Vec<String>,
    /// `--allow-bundle`.
    pub bundles: Vec<String>,
    /// `--allow-host-port`.
    pub host_ports: Vec<u16>,
    pub resolve: Vec<String>,
    /// `--upstream-proxy`.
    pub upstream: Option<String>,
    /// `--ssh-key`.
    pub ssh_keys: Vec<String>,
    /// `--sign-key`.
    pub sign_keys: Vec<String>,
    /// `--confirm-keys`.
    pub confirm_keys: bool,
    pub memory: Option<Amount>,
    pub cpus: Option<Cpus>,
    pub pids: Option<u32>,
    pub disk: Option<Amount>,
    pub inodes: Option<u64>,
    pub files: Option<u64>,
    pub time: Option<TimeLimit>,
    pub idle: Option<TimeLimit>,
    pub fuel: Option<u64>,
    pub require: Vec<Layer>,
    pub allow_degraded: Vec<Layer>,
}

fn one<T>(flag: &'static str, value: Option<T>) -> Option<Sourced<T>> {
    value.map(|value| Sourced::new(value, origin(flag)))
}

fn each<T>(flag: &'static str, values: impl IntoIterator<Item = T>) -> Vec<Sourced<T>> {
    values
        .into_iter()
        .map(|value| Sourced::new(value, origin(flag)))
        .collect()
}

fn origin(flag: &'static str) -> Origin {
    Origin::Flag {
        flag: flag.to_owned(),
    }
}

fn wrong(flag: &'static str, reason: impl Into<String>) -> PolicyError {
    PolicyError::Flag {
        flag,
        reason: reason.into(),
    }
}

fn paths(flag: &'static str, paths: &[PathBuf]) -> Result<Vec<Sourced<PathBuf>>, PolicyError> {
    paths
        .iter()
        .map(|path| {
            let absolute = std::path::absolute(path)
                .map_err(|error| wrong(flag, format!("{}: {error}", path.display())))?;
            Ok(Sourced::new(normal(&absolute), origin(flag)))
        })
        .collect()
}

fn number(
    flag: &'static str,
    value: Option<u64>,
    range: RangeInclusive<u64>,
) -> Result<Option<Sourced<u64>>, PolicyError> {
    match value {
        Some(value) if !range.contains(&value) => Err(wrong(
            flag,
            format!(
                "{value} is out of range; expected a number from {} to {}",
                range.start(),
                range.end()
            ),
        )),
        value => Ok(one(flag, value)),
    }
}

fn known(
    flag: &'static str,
    name: &str,
    list: &'static [syscalls::SyscallList],
) -> Result<(), PolicyError> {
    if list.iter().any(|known| known.name == name) {
        return Ok(());
    }
    let names: Vec<&str> = list.iter().map(|known| known.name).collect();
    Err(wrong(
        flag,
        format!(
            "unknown name `{name}`; expected one of {}",
            names.join(", ")
        ),
    ))
}

impl FlagLayer {
    /// Checks the values and puts the flags beside them as origins.
    pub(crate) fn fragment(&self, home: &Path) -> Result<Fragment, PolicyError> {
        if let Some(name) = self
            .hostname
            .as_deref()
            .filter(|name| !fragment::is_hostname(name))
        {
            return Err(wrong(
                "--hostname",
                format!("invalid host name `{name}`; {}", fragment::HOSTNAME_RULE),
            ));
        }
        if let Some(rule) = self
            .env
            .iter()
            .find(|rule| !fragment::is_env_name(rule.name()))
        {
            return Err(wrong(
                "--env",
                format!("invalid variable name `{}`", rule.name()),
            ));
        }
        if let Some(list) = &self.syscalls {
            known("--syscalls", list, syscalls::lists())?;
        }
        for group in &self.syscall_groups {
            known("--syscall-group", group, syscalls::groups())?;
        }
        let capabilities = self
            .capabilities
            .iter()
            .map(|name| {
                check_capability(name)
                    .map_err(|(title, remedy)| wrong("--cap", format!("{title}; {remedy}")))
            })
            .collect::<Result<Vec<_>, _>>()?;
        let pids = number("--pids", self.pids.map(u64::from), fragment::PIDS)?;
        Ok(Fragment {
            isolation: one("--isolation", self.isolation),
            workspace_mode: one("--workspace-mode", self.workspace_mode),
            in_memory: one("--in-memory", self.in_memory.then_some(true)),
            unprotect: each("--unprotect", self.unprotected()?),
            read: paths("--read", &self.read)?,
            write: paths("--write", &self.write)?,
            write_direct: paths("--write", &self.write_direct)?,
            hide: paths("--hide", &self.hide)?,
            hide_matching: each("--hide", self.hide_matching.iter().cloned()),
            hide_sensitive: None,
            toolchains: one("--no-toolchains", self.no_toolchains.then_some(false)),
            host_caches: one("--host-caches", self.host_caches.then_some(true)),
            keep: each("--state", self.kept(home)?),
            state_limit: None,
            state_limit_per_path: None,
            caches: Vec::new(),
            keep_nothing: self.no_state,
            env: each("--env", self.env.iter().cloned()),
            hostname: one("--hostname", self.hostname.clone()),
            root_inside: one("--root-inside", self.root_inside.then_some(true)),
            guest_root: None,
            git_identity: None,
            side_channels: one("--side-channels", self.side_channels),
            capabilities: each("--cap", capabilities),
            syscalls: one("--syscalls", self.syscalls.clone()),
            syscall_groups: each("--syscall-group", self.syscall_groups.iter().cloned()),
            network: self.network()?,
            keys: self.keys(home)?,
            ceiling: CeilingFragment {
                shell: one("--shell", self.shell),
                ..CeilingFragment::default()
            },
            judge: None,
            questions: QuestionsFragment::default(),
            taint: TaintFragment::default(),
            tools: ToolsFragment::default(),
            limits: LimitsFragment {
                memory: one("--memory", self.memory),
                cpus: one("--cpus", self.cpus),
                pids: one("--pids", self.pids.filter(|_| pids.is_some())),
                disk: one("--disk", self.disk),
                inodes: number("--inodes", self.inodes, fragment::INODES)?,
                files: number("--files", self.files, fragment::FILES)?,
                time: one("--time", self.time),
                idle: one("--idle", self.idle),
                fuel: number("--fuel", self.fuel, fragment::FUEL)?,
            },
            require: each("--require", self.require.iter().copied()),
            allow_degraded: each("--allow-degraded", self.allow_degraded.iter().copied()),
        })
    }

    fn network(&self) -> Result<NetworkFragment, PolicyError> {
        fn hosts<T>(
            flag: &'static str,
            texts: &[String],
            parse: impl Fn(&str) -> Result<T, InvalidHostRule>,
        ) -> Result<Vec<Sourced<T>>, PolicyError> {
            let parsed: Result<Vec<T>, _> = texts.iter().map(|text| parse(text)).collect();
            parsed
                .map(|rules| each(flag, rules))
                .map_err(|error| wrong(flag, error.to_string()))
        }
        let names = bundles::names();
        if let Some(name) = self
            .bundles
            .iter()
            .find(|name| !names.contains(&name.as_str()))
        {
            return Err(wrong(
                "--allow-bundle",
                format!(
                    "unknown name `{name}`; expected one of {}",
                    names.join(", ")
                ),
            ));
        }
        if self.host_ports.contains(&0) {
            return Err(wrong(
                "--allow-host-port",
                "invalid port 0; expected a number from 1 to 65535",
            ));
        }
        Ok(NetworkFragment {
            mode: one("--network", self.network),
            allow: hosts("--allow-host", &self.allow_hosts, network::allowed)?,
            deny: hosts("--deny-host", &self.deny_hosts, network::denied)?,
            http: hosts("--http-allow", &self.http_allow, network::requests)?,
            models: Vec::new(),
            secrets: hosts("--secret", &self.secrets, network::secret)?,
            aws: hosts("--aws", self.aws.as_slice(), network::aws)?.pop(),
            logins: hosts("--login", &self.logins, logins::login)?,
            bundles: each("--allow-bundle", self.bundles.iter().cloned()),
            host_ports: each("--allow-host-port", self.host_ports.iter().copied()),
            resolve: hosts("--resolve", &self.resolve, str::parse)?,
            never_open: None,
            sockets: paths("--allow-socket", &self.allow_sockets)?,
            publish: each("--publish", self.publish.iter().copied()),
            limits: each("--network-limit", self.network_limits.iter().copied()),
            upstream: hosts("--upstream-proxy", self.upstream.as_slice(), |text| {
                Ok(network::UpstreamRule {
                    proxy: network::upstream(text)?,
                    credentials: None,
                    no_proxy: Vec::new(),
                })
            })?
            .pop(),
            authorities: Vec::new(),
        })
    }

    fn keys(&self, home: &Path) -> Result<SigningKeysFragment, PolicyError> {
        // As in a policy file, and else below the current directory. Nothing is opened here.
        let path = |text: &str| {
            let path = match text.strip_prefix("~/") {
                Some(rest) => home.join(rest),
                None => PathBuf::from(text),
            };
            normal(&std::path::absolute(&path).unwrap_or(path))
        };
        let ssh = self.ssh_keys.iter().map(|text| ssh_key(text, &path));
        let ssh: Result<Vec<_>, _> = ssh.collect();
        let sign = self.sign_keys.iter().map(|text| sign_key(text, &path));
        let sign: Result<Vec<_>, _> = sign.collect();
        Ok(SigningKeysFragment {
            ssh: each(
                "--ssh-key",
                ssh.map_err(|e| wrong("--ssh-key", e.to_string()))?,
            ),
            sign: each(
                "--sign-key",
                sign.map_err(|e| wrong("--sign-key", e.to_string()))?,
            ),
            confirm: one("--confirm-keys", self.confirm_keys.then_some(true)),
        })
    }

    fn unprotected(&self) -> Result<Vec<PathBuf>, PolicyError> {
        let check = |path: &PathBuf| {
            let text = path.to_string_lossy();
            check_unprotect(&text).map_err(|remedy| {
                let shown = ironcage_model::Printable::new(Path::new(path));
                wrong(
                    "--unprotect",
                    format!("`{shown}` is not a protected path; {remedy}"),
                )
            })
        };
        self.unprotect.iter().map(check).collect()
    }

    fn kept(&self, home: &Path) -> Result<Vec<PathBuf>, PolicyError> {
        let check = |path: &PathBuf| {
            check_keep(path, home).map_err(|remedy| {
                let shown = ironcage_model::Printable::new(path);
                wrong("--state", format!("cannot keep `{shown}`; {remedy}"))
            })
        };
        self.state.iter().map(check).collect()
    }
}
