//! The flags that describe a cage, shared by every command that makes or shows one.

mod prepare;

pub(crate) use prepare::{Judgement, Prepared};

use crate::error::CliError;
use crate::values::{LayerName, Offered, count};
use clap::{Args, ValueHint};
use ironcage_model::{Destination, Extent, HOST_NAME, Isolation, Layer, Mark, Publish, ShellMode};
use ironcage_policy::{
    Amount, CeilingWhat, Cpus, EnvRule, FlagLayer, HidePattern, NetworkLimit, NetworkMode, Policy,
    SideChannels, TimeLimit, WorkspaceMode,
};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

/// Flags that describe a cage.
#[derive(Debug, Clone, Default, Args)]
pub(crate) struct CageFlags {
    /// Profile to start from (see `ironcage profile list`)
    #[arg(long, value_name = "NAME", value_parser = Offered::profiles(), help_heading = "Policy")]
    profile: Option<String>,
    /// Policy file to use instead of looking for ironcage.toml
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath, help_heading = "Policy")]
    policy: Option<PathBuf>,
    /// How the cage is made: namespace, oci, chroot or landlock
    #[arg(long, value_name = "RUNG", help_heading = "Policy")]
    isolation: Option<Isolation>,
    /// The runtime of --isolation oci: crun, or an absolute path to one [default: the crun of the system]
    #[arg(long, value_name = "RUNTIME", help_heading = "Policy")]
    oci_runtime: Option<PathBuf>,
    /// Let the cage start although these required layers are missing (can be repeated)
    #[arg(long, value_name = "LAYER", value_parser = LayerName, value_delimiter = ',', hide_possible_values = true, help_heading = "Policy")]
    allow_degraded: Vec<Layer>,
    /// Refuse to start unless this layer holds (can be repeated)
    #[arg(long, value_name = "LAYER", value_parser = LayerName, hide_possible_values = true, help_heading = "Policy")]
    require: Vec<Layer>,
    /// Confirm a workspace or a path that gives away much, such as your home directory or keys
    #[arg(long, help_heading = "Policy")]
    i_know: bool,

    /// Let the agent read this path (can be repeated)
    #[arg(short, long, value_name = "PATH", value_hint = ValueHint::AnyPath, help_heading = "Files")]
    read: Vec<PathBuf>,
    /// Let the agent write this path; PATH:direct writes through at once, else the change is kept
    /// aside like the workspace's (can be repeated)
    #[arg(short, long, value_name = "PATH[:direct]", value_hint = ValueHint::AnyPath, help_heading = "Files")]
    write: Vec<PathBuf>,
    /// Hide this path, even below something readable; '*.pem' and '**/.env' hide such names at any
    /// depth, as they are at the start (can be repeated)
    #[arg(long, value_name = "PATH|PATTERN", value_hint = ValueHint::AnyPath, help_heading = "Files")]
    hide: Vec<PathBuf>,
    /// Do not show toolchains outside of the system's directories that PATH names
    #[arg(long, help_heading = "Files")]
    no_toolchains: bool,
    /// Keep this path of the home directory for the next run in this workspace (can be repeated)
    #[arg(long, value_name = "PATH", value_hint = ValueHint::AnyPath, help_heading = "Files")]
    state: Vec<PathBuf>,
    /// Keep nothing, and see nothing that was kept: no state, no caches
    #[arg(long, conflicts_with = "state", help_heading = "Files")]
    no_state: bool,
    /// Read what your own caches of cargo, npm, pip, uv and Go hold through those that are kept
    #[arg(long, conflicts_with = "no_state", help_heading = "Files")]
    host_caches: bool,
    /// The workspace [default: the repository around the current directory, else that directory]
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath, help_heading = "Files")]
    workspace: Option<PathBuf>,
    /// A directory with a system in it, seen instead of the host's own
    #[arg(long, value_name = "DIR", help_heading = "Files")]
    root: Option<PathBuf>,
    /// How the workspace appears: cow, apply, leased, direct, read-only or scratch
    #[arg(long, value_name = "MODE", help_heading = "Files")]
    workspace_mode: Option<WorkspaceMode>,
    /// Keep what is changed in memory while the cage runs, where --disk bounds it hard; it is
    /// written down at the end. Starts from the real files
    #[arg(long, help_heading = "Files")]
    in_memory: bool,
    /// Start from the real files although an earlier change is pending, which stays
    #[arg(long, help_heading = "Files")]
    fresh: bool,
    /// Leave this protected path of the workspace writable; with --workspace-mode apply, let it come over, as
    /// any other that the host would execute or trust, such as Makefile (can be repeated)
    #[arg(long, value_name = "PATH", value_hint = ValueHint::AnyPath, help_heading = "Files")]
    unprotect: Vec<PathBuf>,
    /// Working directory; without --workspace, the workspace is the repository around it
    /// [default: the current one]
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath, help_heading = "Files")]
    cwd: Option<PathBuf>,

    /// Set a variable, or pass the caller's (can be repeated)
    #[arg(long, value_name = "NAME[=VALUE]", help_heading = "Process")]
    env: Vec<EnvRule>,
    /// Let the cage live on when its command is over, until it is stopped (with run -d)
    #[arg(long, help_heading = "Process")]
    pub(crate) sticky: bool,
    /// Put every file, program and socket that is used on record, for `ironcage policy tighten` and
    /// `policy test`; each use costs some ten microseconds more
    #[arg(long, help_heading = "Process")]
    pub(crate) observe: bool,
    /// Host name inside
    #[arg(long, value_name = "NAME", help_heading = "Process")]
    hostname: Option<String>,
    /// Be user 0 inside; outside that is still nobody
    #[arg(long, help_heading = "Process")]
    root_inside: bool,
    /// Where commands of the agent's shell run: plain, in the cage, or scoped, each that needs a
    /// lease beside it, with that lease alone
    #[arg(long, value_name = "WAY", help_heading = "Process")]
    shell: Option<ShellMode>,
    /// Against what agents learn of each other by sharing a processor: off, cores or hardened
    #[arg(long, value_name = "MEANS", help_heading = "Process")]
    side_channels: Option<SideChannels>,
    /// Give back one capability inside the cage's namespaces (can be repeated)
    #[arg(long, value_name = "NAME", value_parser = Offered::capabilities(), hide_possible_values = true, help_heading = "Process")]
    cap: Vec<String>,
    /// List of system calls: standard or minimal
    #[arg(long, value_name = "LIST", value_parser = Offered::syscall_lists(), hide_possible_values = true, help_heading = "Process")]
    syscalls: Option<String>,
    /// Add a group of system calls, such as debug (can be repeated)
    #[arg(long, value_name = "GROUP", value_parser = Offered::syscall_groups(), hide_possible_values = true, help_heading = "Process")]
    syscall_group: Vec<String>,

    /// Let connections out to this host: NAME[:PORT], '*.NAME', '**.NAME', an address or a
    /// network; without a port 80 and 443 (can be repeated)
    #[arg(long, value_name = "HOST", help_heading = "Network")]
    allow_host: Vec<String>,
    /// Let no connection out to this host, even where it is allowed (can be repeated)
    #[arg(long, value_name = "HOST", help_heading = "Network")]
    deny_host: Vec<String>,
    /// Let only such requests out to a host: '[METHOD,..] NAME[:PORT][/PATH]', where * stands for
    /// a part of the path and ** for any number (can be repeated)
    #[arg(long, value_name = "REQUESTS", help_heading = "Network")]
    http_allow: Vec<String>,
    /// Let the network door put a secret of yours on requests to a host; the cage has a
    /// placeholder in the variable NAME. SOURCE is env:NAME, file:PATH, command:TEXT or
    /// keyring:SERVICE/USER; without one, your own variable NAME (can be repeated)
    #[arg(long, value_name = "NAME[=SOURCE]@HOST", help_heading = "Network")]
    secret: Vec<String>,
    /// Let the network door sign requests to hosts of Amazon's anew, with your keys; the cage
    /// signs with placeholders. SOURCE is env (the default: your variables AWS_ACCESS_KEY_ID and
    /// so on), file:PATH or command:TEXT, which say them as a credential_process does
    #[arg(long, value_name = "[SOURCE@]HOST[,HOST]", help_heading = "Network")]
    aws: Option<String>,
    /// Let the network door use your login of an agent, claude or codex, and renew it; the cage
    /// has a file of placeholders in its place (can be repeated)
    #[arg(long, value_name = "AGENT", help_heading = "Network")]
    login: Vec<String>,
    /// Let connections out to the hosts of a bundle, such as github or pip (can be repeated)
    #[arg(long, value_name = "NAME", help_heading = "Network")]
    allow_bundle: Vec<String>,
    /// Reach this port of the host's own loopback, as host.ironcage (can be repeated)
    #[arg(long, value_name = "PORT", help_heading = "Network")]
    allow_host_port: Vec<u16>,
    /// Take this address for a name, and ask no resolver (can be repeated)
    #[arg(long, value_name = "NAME=ADDRESS", help_heading = "Network")]
    resolve: Vec<String>,
    /// off: no network, whatever the policy allows; listed: what is allowed; live: also what
    /// `ironcage net allow` allows later; open: every host
    #[arg(long, value_name = "MODE", help_heading = "Network")]
    network: Option<NetworkMode>,
    /// Reach this Unix socket of the host's, and no other; what commands the host, such as
    /// docker.sock, needs --i-know (can be repeated)
    #[arg(long, value_name = "PATH", help_heading = "Network")]
    allow_socket: Vec<PathBuf>,
    /// Reach a port inside at the host's 127.0.0.1: OUTER:INNER, such as 8080:3000 (can be
    /// repeated)
    #[arg(long, value_name = "PORTS", help_heading = "Network")]
    publish: Vec<Publish>,
    /// Bound what goes out, such as bytes-out=100M: connections, requests-per-second,
    /// bytes-out-per-host, bytes-out, new-hosts-per-minute, body (can be repeated)
    #[arg(long, value_name = "NAME=VALUE", help_heading = "Network")]
    network_limit: Vec<NetworkLimit>,

    /// Memory, such as 2G or 50%
    #[arg(long, value_name = "SIZE", help_heading = "Limits")]
    memory: Option<Amount>,
    /// Processors, such as 1.5 or 50%
    #[arg(long, value_name = "NUMBER", help_heading = "Limits")]
    cpus: Option<Cpus>,
    /// Processes and threads
    #[arg(long, value_name = "NUMBER", value_parser = count::<u32>, help_heading = "Limits")]
    pids: Option<u32>,
    /// Ephemeral storage, and bytes added to writable directories
    #[arg(long, value_name = "SIZE", help_heading = "Limits")]
    disk: Option<Amount>,
    /// Files in ephemeral storage, and files added to writable directories
    #[arg(long, value_name = "NUMBER", value_parser = count::<u64>, help_heading = "Limits")]
    inodes: Option<u64>,
    /// Open descriptors for each process
    #[arg(long, value_name = "NUMBER", value_parser = count::<u64>, help_heading = "Limits")]
    files: Option<u64>,
    /// Wall-clock time, such as 30s or 10m
    #[arg(long, value_name = "DURATION", help_heading = "Limits")]
    time: Option<TimeLimit>,
    /// Time without output, input or processor use
    #[arg(long, value_name = "DURATION", help_heading = "Limits")]
    idle: Option<TimeLimit>,
}

impl CageFlags {
    /// Takes a profile, or a policy file, as what all else stands on.
    pub(crate) fn set_base(&mut self, profile: Option<String>, file: Option<PathBuf>) {
        self.profile = profile;
        self.policy = file;
    }

    /// Whether a profile or a policy file was named.
    pub(crate) fn names_policy(&self) -> bool {
        self.profile.is_some() || self.policy.is_some()
    }

    /// Opens from the start what leases could open of the network, for a run that is to show
    /// what it needs.
    pub(crate) fn open_leasable(&mut self, policy: &Policy) {
        for part in &policy.ceiling.others {
            let CeilingWhat::Extent(Extent::Host(rule)) = &part.value.what else {
                continue;
            };
            match (part.value.mark, &rule.to) {
                (Mark::Deny, _) => {}
                (_, Destination::Any) if policy.network.never_open.value => {}
                (_, Destination::Any) => self.network = Some(NetworkMode::Open),
                (_, Destination::Name(name)) if name.as_str() == HOST_NAME => {}
                _ => self.allow_host.push(rule.to_string()),
            }
        }
    }

    /// A cage with a policy file that is named, and nothing else said.
    pub(crate) fn of_policy(path: &Path, workspace: Option<PathBuf>) -> Self {
        CageFlags {
            policy: Some(path.to_owned()),
            workspace,
            fresh: true,
            ..CageFlags::default()
        }
    }

    /// A cage in a workspace, and nothing else said.
    pub(crate) fn in_workspace(workspace: PathBuf) -> Self {
        CageFlags {
            workspace: Some(workspace),
            fresh: true,
            ..CageFlags::default()
        }
    }

    fn layer(&self, cwd: &Path) -> Result<FlagLayer, CliError> {
        let (direct, kept_aside) = written(&self.write);
        let (hide_matching, hidden) = hidden(&self.hide, cwd)?;
        let absolute = |paths: &[PathBuf]| paths.iter().map(|path| cwd.join(path)).collect();
        Ok(FlagLayer {
            isolation: self.isolation,
            shell: self.shell,
            workspace_mode: self.workspace_mode,
            in_memory: self.in_memory,
            unprotect: self.unprotect.clone(),
            read: absolute(&self.read),
            write: absolute(&kept_aside),
            write_direct: absolute(&direct),
            hide: absolute(&hidden),
            hide_matching,
            no_toolchains: self.no_toolchains,
            state: self.state.clone(),
            no_state: self.no_state,
            host_caches: self.host_caches,
            env: self.env.clone(),
            hostname: self.hostname.clone(),
            root_inside: self.root_inside,
            side_channels: self.side_channels,
            capabilities: self.cap.clone(),
            syscalls: self.syscalls.clone(),
            syscall_groups: self.syscall_group.clone(),
            network: self.network,
            allow_sockets: self.allow_socket.clone(),
            publish: self.publish.clone(),
            network_limits: self.network_limit.clone(),
            allow_hosts: self.allow_host.clone(),
            deny_hosts: self.deny_host.clone(),
            http_allow: self.http_allow.clone(),
            secrets: self.secret.clone(),
            aws: self.aws.clone(),
            logins: self.login.clone(),
            bundles: self.allow_bundle.clone(),
            host_ports: self.allow_host_port.clone(),
            resolve: self.resolve.clone(),
            memory: self.memory,
            cpus: self.cpus,
            pids: self.pids,
            disk: self.disk,
            inodes: self.inodes,
            files: self.files,
            time: self.time,
            idle: self.idle,
            require: self.require.clone(),
            allow_degraded: self.allow_degraded.clone(),
        })
    }
}

/// What `--hide` names: patterns, and paths.
fn hidden(named: &[PathBuf], cwd: &Path) -> Result<(Vec<HidePattern>, Vec<PathBuf>), CliError> {
    let (mut patterns, mut paths) = (Vec::new(), Vec::new());
    for path in named {
        match path.to_str().filter(|text| HidePattern::is_one(text)) {
            None => paths.push(path.clone()),
            Some(text) => {
                let pattern = HidePattern::parse(text, |text| Ok(cwd.join(text)));
                let pattern = pattern.map_err(|why: &'static str| {
                    CliError::new(format!(
                        "--hide: `{}` is no pattern: {why}",
                        text.escape_debug()
                    ))
                    .hint("write '*.pem', '**/.env' or 'config/*.key'")
                })?;
                patterns.push(pattern);
            }
        }
    }
    Ok((patterns, paths))
}

/// The paths of `-w`: those that end in `:direct`, without it, and the others.
fn written(paths: &[PathBuf]) -> (Vec<PathBuf>, Vec<PathBuf>) {
    let direct = |path: &PathBuf| {
        let bytes = path.as_os_str().as_bytes().strip_suffix(b":direct")?;
        Some(PathBuf::from(OsStr::from_bytes(bytes)))
    };
    let kept_aside = paths.iter().filter(|path| direct(path).is_none());
    (
        paths.iter().filter_map(direct).collect(),
        kept_aside.cloned().collect(),
    )
}

fn real(path: &Path, flag: &str) -> Result<PathBuf, CliError> {
    std::fs::canonicalize(path)
        .map_err(|error| CliError::new(format!("{flag} {}: {error}", path.display())))
}
