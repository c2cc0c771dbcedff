//! The flags that describe a cage, shared by every command that starts or shows one.

mod image;
mod prepare;
mod task;
mod template;

pub(crate) use prepare::{Judgement, PlannedCage};

use crate::error::CliError;
use crate::values::{LayerName, NamedValue, SuggestedName, count};
use clap::{Args, ValueHint};
use ironcage_model::{Destination, Extent, HOST_NAME, Isolation, Layer, Mark, Publish, ShellMode};
use ironcage_policy::{
    Amount, CeilingWhat, Cpus, EnvRule, FlagLayer, HidePattern, NetworkLimit, NetworkMode, Policy,
    SideChannels, TimeLimit, WorkspaceMode,
};
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

#[derive(Debug, Clone, Default, Args)]
pub(crate) struct CageFlags {
    /// Profile to extend (see `ironcage profile list`)
    #[arg(long, value_name = "NAME", value_parser = SuggestedName::profiles(), help_heading = "Policy")]
    profile: Option<String>,
    /// Policy file to use instead of ironcage.toml
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath, help_heading = "Policy")]
    policy: Option<PathBuf>,
    /// Isolation level: namespace, microvm, wasm, oci, chroot or landlock
    #[arg(long, value_name = "LEVEL", value_parser = NamedValue::<Isolation>::of(&["namespace", "microvm", "wasm", "oci", "chroot", "landlock"]), hide_possible_values = true, help_heading = "Policy")]
    isolation: Option<Isolation>,
    /// OCI runtime for --isolation oci: crun, runc or runsc, or its path [default: crun]
    #[arg(long, value_name = "RUNTIME", help_heading = "Policy")]
    oci_runtime: Option<PathBuf>,
    /// Start even if this required layer is missing (can be repeated)
    #[arg(long, value_name = "LAYER", value_parser = LayerName, value_delimiter = ',', hide_possible_values = true, help_heading = "Policy")]
    allow_degraded: Vec<Layer>,
    /// Refuse to start without this layer (can be repeated)
    #[arg(long, value_name = "LAYER", value_parser = LayerName, hide_possible_values = true, help_heading = "Policy")]
    require: Vec<Layer>,
    /// Narrow leases to what TEXT, your task, names; others need approval
    #[arg(long, value_name = "TEXT", help_heading = "Policy")]
    task: Option<String>,
    /// Confirm a risky workspace or path, such as your home directory or keys
    #[arg(long, help_heading = "Policy")]
    i_know: bool,

    /// Make PATH readable (can be repeated)
    #[arg(short, long, value_name = "PATH", value_hint = ValueHint::AnyPath, help_heading = "Files")]
    read: Vec<PathBuf>,
    /// Make PATH writable, copy-on-write like the workspace; PATH:direct writes to the real files
    /// (can be repeated)
    #[arg(short, long, value_name = "PATH[:direct]", value_hint = ValueHint::AnyPath, help_heading = "Files")]
    write: Vec<PathBuf>,
    /// Hide PATH, even below a readable path; '*.pem' and '**/.env' hide matching files that exist
    /// at the start, at any depth (can be repeated)
    #[arg(long, value_name = "PATH|PATTERN", value_hint = ValueHint::AnyPath, help_heading = "Files")]
    hide: Vec<PathBuf>,
    /// Hide toolchains in PATH that are outside the system directories
    #[arg(long, help_heading = "Files")]
    no_toolchains: bool,
    /// Keep PATH of the home directory for the next run in this workspace (can be repeated)
    #[arg(long, value_name = "PATH", value_hint = ValueHint::AnyPath, help_heading = "Files")]
    state: Vec<PathBuf>,
    /// Neither use nor keep state and caches
    #[arg(long, conflicts_with = "state", help_heading = "Files")]
    no_state: bool,
    /// Let the kept caches read through to your own cargo, npm, pip, uv and Go caches
    #[arg(long, conflicts_with = "no_state", help_heading = "Files")]
    host_caches: bool,
    /// Workspace [default: the repository around the current directory, or that directory]
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath, help_heading = "Files")]
    workspace: Option<PathBuf>,
    /// Use DIR as the root file system, not the host's
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath, help_heading = "Files")]
    root: Option<PathBuf>,
    /// Use a container image as the root file system; `run` pulls it if it is missing
    #[arg(
        long,
        value_name = "IMAGE",
        conflicts_with = "root",
        add = crate::completion::images(),
        help_heading = "Files"
    )]
    image: Option<String>,
    /// Program to run with the arguments, in place of the image's entry point; an empty one runs the
    /// arguments alone
    #[arg(long, value_name = "PROGRAM", value_hint = ValueHint::CommandName, help_heading = "Files")]
    entrypoint: Option<OsString>,
    /// Start from a template: its system, and its policy unless --profile or --policy names one
    #[arg(
        long,
        value_name = "NAME",
        conflicts_with_all = ["root", "image", "writable_image"],
        add = crate::completion::templates(),
        help_heading = "Files"
    )]
    template: Option<String>,
    /// Let the cage change the image's files; `ironcage image commit` makes an image of that
    #[arg(long, requires = "image", help_heading = "Files")]
    writable_image: bool,
    /// Boot the system of --image, --template or --root: its init is PID 1, with the capabilities that
    /// an init needs. COMMAND has arguments for the init; `ironcage stop` shuts it down
    #[arg(long, conflicts_with_all = ["sticky", "observe"], help_heading = "Files")]
    pub(crate) boot: bool,
    /// Workspace mode: cow, apply, leased, direct, read-only or scratch
    #[arg(long, value_name = "MODE", value_parser = NamedValue::<WorkspaceMode>::of(&["cow", "apply", "leased", "direct", "read-only", "scratch"]), hide_possible_values = true, help_heading = "Files")]
    workspace_mode: Option<WorkspaceMode>,
    /// Keep changes in memory while the cage runs, where --disk is a hard limit, and write them to
    /// disk at the end. Starts from the real files
    #[arg(long, help_heading = "Files")]
    in_memory: bool,
    /// Start from the real files; an earlier pending change stays
    #[arg(long, help_heading = "Files")]
    fresh: bool,
    /// Make a protected workspace path writable; with --workspace-mode apply, also apply it, like
    /// any other file that the host would execute or trust, such as Makefile (can be repeated)
    #[arg(long, value_name = "PATH", value_hint = ValueHint::AnyPath, help_heading = "Files")]
    unprotect: Vec<PathBuf>,
    /// Working directory; without --workspace, the workspace is the repository around it [default:
    /// the current directory]
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath, help_heading = "Files")]
    cwd: Option<PathBuf>,

    /// Directory of the cage to start in, such as one of the image; a relative one is below the image's
    /// own working directory [default: that of the image if its own command runs, else --cwd]
    #[arg(
        long,
        value_name = "DIR",
        conflicts_with = "boot",
        help_heading = "Files"
    )]
    workdir: Option<PathBuf>,

    /// Set an environment variable, or pass yours through (can be repeated)
    #[arg(short, long, value_name = "NAME[=VALUE]", help_heading = "Process")]
    env: Vec<EnvRule>,
    /// Keep the cage running after its command ends, until it is stopped (with run -d)
    #[arg(long, help_heading = "Process")]
    pub(crate) sticky: bool,
    /// Record every use of a file, program or socket, for `ironcage policy tighten` and `policy
    /// test`; adds some ten microseconds to each use
    #[arg(long, help_heading = "Process")]
    pub(crate) observe: bool,
    /// Host name in the cage
    #[arg(long, value_name = "NAME", help_heading = "Process")]
    hostname: Option<String>,
    /// Run as user 0 inside the cage, which has no privileges on the host
    #[arg(long, help_heading = "Process")]
    root_inside: bool,
    /// Run as this user inside, by name from the image or by number: USER or USER:GROUP. User 0 is the
    /// same as --root-inside [default: the image's user, else the agent]
    #[arg(short, long, value_name = "USER[:GROUP]", conflicts_with_all = ["boot", "root_inside"], help_heading = "Process")]
    user: Option<String>,
    /// How the agent's shell commands run: `plain` (in the cage) or `scoped` (a command that needs a
    /// lease runs in a scope of its own, and only that scope holds the lease)
    #[arg(long, value_name = "MODE", value_parser = NamedValue::<ShellMode>::of(&["plain", "scoped"]), hide_possible_values = true, help_heading = "Process")]
    shell: Option<ShellMode>,
    /// Side-channel mitigation between agents that share a CPU: off, cores or hardened
    #[arg(long, value_name = "MODE", value_parser = NamedValue::<SideChannels>::of(&["off", "cores", "hardened"]), hide_possible_values = true, help_heading = "Process")]
    side_channels: Option<SideChannels>,
    /// Grant a capability in the cage's namespaces (can be repeated)
    #[arg(long, value_name = "NAME", value_parser = SuggestedName::capabilities(), hide_possible_values = true, help_heading = "Process")]
    cap: Vec<String>,
    /// System call list: standard or minimal
    #[arg(long, value_name = "LIST", value_parser = SuggestedName::syscall_lists(), hide_possible_values = true, help_heading = "Process")]
    syscalls: Option<String>,
    /// Add a system call group, for example debug (can be repeated)
    #[arg(long, value_name = "GROUP", value_parser = SuggestedName::syscall_groups(), hide_possible_values = true, help_heading = "Process")]
    syscall_group: Vec<String>,

    /// Allow connections to HOST: NAME[:PORT], '*.NAME', '**.NAME', an address or a network; the
    /// default ports are 80 and 443 (can be repeated)
    #[arg(long, value_name = "HOST", help_heading = "Network")]
    allow_host: Vec<String>,
    /// Deny connections to HOST, even where a rule allows them (can be repeated)
    #[arg(long, value_name = "HOST", help_heading = "Network")]
    deny_host: Vec<String>,
    /// Allow only these requests to a host: '[METHOD,..] NAME[:PORT][/PATH]', where * matches one
    /// path segment and ** any number (can be repeated)
    #[arg(long, value_name = "REQUESTS", help_heading = "Network")]
    http_allow: Vec<String>,
    /// Inject a secret into requests to HOST; the cage has a placeholder in the variable NAME.
    /// SOURCE is env:NAME, file:PATH, command:TEXT or keyring:SERVICE/USER [default: env:NAME].
    /// HOST must prove its name by TLS, or be http://host.ironcage:PORT, a loopback port of the
    /// host (can be repeated)
    #[arg(long, value_name = "NAME[=SOURCE]@HOST", help_heading = "Network")]
    secret: Vec<String>,
    /// Sign requests to AWS hosts with your keys; the cage signs with placeholders. SOURCE is env
    /// (AWS_ACCESS_KEY_ID and so on), file:PATH or command:TEXT, in the format of a
    /// credential_process. Requests that return credentials are signed only if the policy names
    /// them [default source: env]
    #[arg(long, value_name = "[SOURCE@]HOST[,HOST]", help_heading = "Network")]
    aws: Option<String>,
    /// Use and renew your login of an agent, claude or codex; the cage has a file of placeholders
    /// in its place (can be repeated)
    #[arg(long, value_name = "AGENT", value_parser = SuggestedName::logins(), hide_possible_values = true, help_heading = "Network")]
    login: Vec<String>,
    /// Allow connections to the hosts of a bundle, for example github or pip (can be repeated)
    #[arg(long, value_name = "NAME", value_parser = SuggestedName::bundles(), hide_possible_values = true, help_heading = "Network")]
    allow_bundle: Vec<String>,
    /// Allow connections to a loopback port of the host, as host.ironcage (can be repeated)
    #[arg(long, value_name = "PORT", help_heading = "Network")]
    allow_host_port: Vec<u16>,
    /// Resolve NAME to ADDRESS without DNS (can be repeated)
    #[arg(long, value_name = "NAME=ADDRESS", help_heading = "Network")]
    resolve: Vec<String>,
    /// Upstream proxy for connections to allowed hosts: http://HOST:PORT, env (HTTPS_PROXY and
    /// HTTP_PROXY of your environment) or off (default: env)
    #[arg(long, value_name = "URL|env|off", help_heading = "Network")]
    upstream_proxy: Option<String>,
    /// Network mode: off (no network, whatever the policy allows), listed (only allowed hosts),
    /// live (also hosts that `ironcage net allow` adds later) or open (every host)
    #[arg(long, value_name = "MODE", value_parser = NamedValue::<NetworkMode>::of(&["off", "listed", "live", "open"]), hide_possible_values = true, help_heading = "Network")]
    network: Option<NetworkMode>,
    /// Allow connections to a Unix socket on the host; a socket that controls the host, such as
    /// docker.sock, needs --i-know (can be repeated)
    #[arg(long, value_name = "PATH", value_hint = ValueHint::AnyPath, help_heading = "Network")]
    allow_socket: Vec<PathBuf>,
    /// Publish a port of the cage on the host's loopback: OUTER:INNER, for example 8080:3000 (can be
    /// repeated)
    #[arg(short, long, value_name = "PORTS", help_heading = "Network")]
    publish: Vec<Publish>,
    /// Limit outgoing traffic, for example bytes-out=100M: connections, requests-per-second,
    /// bytes-out-per-host, bytes-out, new-hosts-per-minute, body (can be repeated)
    #[arg(long, value_name = "NAME=VALUE", help_heading = "Network")]
    network_limit: Vec<NetworkLimit>,

    /// Log in to HOST with a key of your ssh-agent, which stays outside. KEY is a public key file, a
    /// fingerprint or a comment of `ssh-add -l`; HOST is in your known_hosts, and needs --allow-host
    /// HOST:22 (can be repeated)
    #[arg(long, value_name = "KEY@HOST[:PORT]", help_heading = "Keys")]
    ssh_key: Vec<String>,
    /// Sign commits and tags with a key that stays outside: ssh:KEY of your ssh-agent, or gpg:KEY of
    /// your gpg-agent (can be repeated; the first is git's)
    #[arg(long, value_name = "ssh:KEY|gpg:KEY", help_heading = "Keys")]
    sign_key: Vec<String>,
    /// Ask you before each use of a key
    #[arg(long, help_heading = "Keys")]
    confirm_keys: bool,

    /// Memory limit, for example 2G or 50%
    #[arg(long, value_name = "SIZE", help_heading = "Limits")]
    memory: Option<Amount>,
    /// CPU limit, for example 1.5 or 50%
    #[arg(long, value_name = "NUMBER", help_heading = "Limits")]
    cpus: Option<Cpus>,
    /// Limit on processes and threads
    #[arg(long, value_name = "NUMBER", value_parser = count::<u32>, help_heading = "Limits")]
    pids: Option<u32>,
    /// Limit on scratch storage, and on bytes added to writable directories
    #[arg(long, value_name = "SIZE", help_heading = "Limits")]
    disk: Option<Amount>,
    /// Limit on files in scratch storage, and on files added to writable directories
    #[arg(long, value_name = "NUMBER", value_parser = count::<u64>, help_heading = "Limits")]
    inodes: Option<u64>,
    /// Limit on open file descriptors of each process
    #[arg(long, value_name = "NUMBER", value_parser = count::<u64>, help_heading = "Limits")]
    files: Option<u64>,
    /// Limit on wall-clock time, for example 30s or 10m
    #[arg(long, value_name = "DURATION", help_heading = "Limits")]
    time: Option<TimeLimit>,
    /// Limit on time without output, input or CPU use
    #[arg(long, value_name = "DURATION", help_heading = "Limits")]
    idle: Option<TimeLimit>,
    /// Limit on WebAssembly instructions of each command, with --isolation wasm
    #[arg(long, value_name = "NUMBER", value_parser = count::<u64>, help_heading = "Limits")]
    fuel: Option<u64>,
}

impl CageFlags {
    /// No flags but `--workspace-mode`, where it is given.
    pub(crate) fn in_mode(workspace_mode: Option<WorkspaceMode>) -> CageFlags {
        CageFlags {
            workspace_mode,
            ..CageFlags::default()
        }
    }

    /// Sets the profile or policy file that the other flags extend.
    pub(crate) fn set_base(&mut self, profile: Option<String>, file: Option<PathBuf>) {
        self.profile = profile;
        self.policy = file;
    }

    pub(crate) fn names_policy(&self) -> bool {
        self.profile.is_some() || self.policy.is_some()
    }

    /// Opens from the start the network that leases could open, for a run that is observed.
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

    /// A cage with this policy file and default flags.
    pub(crate) fn of_policy(path: &Path, workspace: Option<PathBuf>) -> Self {
        CageFlags {
            policy: Some(path.to_owned()),
            workspace,
            fresh: true,
            ..CageFlags::default()
        }
    }

    /// A cage in this workspace with default flags.
    pub(crate) fn in_workspace(workspace: PathBuf) -> Self {
        CageFlags {
            workspace: Some(workspace),
            fresh: true,
            ..CageFlags::default()
        }
    }

    fn layer(&self, cwd: &Path) -> Result<FlagLayer, CliError> {
        let (direct, copied) = written(&self.write);
        let (hide_matching, hidden) = hidden(&self.hide, cwd)?;
        let absolute = |paths: &[PathBuf]| paths.iter().map(|path| cwd.join(path)).collect();
        Ok(FlagLayer {
            isolation: self.isolation,
            shell: self.shell,
            workspace_mode: self.workspace_mode,
            in_memory: self.in_memory,
            unprotect: self.unprotect.clone(),
            read: absolute(&self.read),
            write: absolute(&copied),
            write_direct: absolute(&direct),
            hide: absolute(&hidden),
            hide_matching,
            no_toolchains: self.no_toolchains,
            state: self.state.clone(),
            no_state: self.no_state,
            host_caches: self.host_caches,
            env: self.env.clone(),
            hostname: self.hostname.clone(),
            root_inside: self.root_inside || self.is_user_zero(),
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
            upstream: self.upstream_proxy.clone(),
            ssh_keys: self.ssh_key.clone(),
            sign_keys: self.sign_key.clone(),
            confirm_keys: self.confirm_keys,
            memory: self.memory,
            cpus: self.cpus,
            pids: self.pids,
            disk: self.disk,
            inodes: self.inodes,
            files: self.files,
            time: self.time,
            idle: self.idle,
            fuel: self.fuel,
            require: self.require.clone(),
            allow_degraded: self.allow_degraded.clone(),
        })
    }
}

/// The patterns and the paths of `--hide`.
fn hidden(named: &[PathBuf], cwd: &Path) -> Result<(Vec<HidePattern>, Vec<PathBuf>), CliError> {
    let (mut patterns, mut paths) = (Vec::new(), Vec::new());
    for path in named {
        match path.to_str().filter(|text| HidePattern::is_one(text)) {
            None => paths.push(path.clone()),
            Some(text) => {
                let pattern = HidePattern::parse(text, |text| Ok(cwd.join(text)));
                let pattern = pattern.map_err(|why: &'static str| {
                    CliError::new(format!(
                        "invalid pattern `{}` in --hide: {why}",
                        text.escape_debug()
                    ))
                    .hint("expected for example '*.pem', '**/.env' or 'config/*.key'")
                })?;
                patterns.push(pattern);
            }
        }
    }
    Ok((patterns, paths))
}

/// The paths of `-w`: first those with the suffix `:direct`, without it, then the others.
fn written(paths: &[PathBuf]) -> (Vec<PathBuf>, Vec<PathBuf>) {
    let direct = |path: &PathBuf| {
        let bytes = path.as_os_str().as_bytes().strip_suffix(b":direct")?;
        Some(PathBuf::from(OsStr::from_bytes(bytes)))
    };
    let copied = paths.iter().filter(|path| direct(path).is_none());
    (
        paths.iter().filter_map(direct).collect(),
        copied.cloned().collect(),
    )
}

fn real(path: &Path, flag: &str) -> Result<PathBuf, CliError> {
    std::fs::canonicalize(path).map_err(|error| {
        CliError::new(format!("cannot resolve {flag} {}: {error}", path.display()))
    })
}
