//! `PolicyFile`: a policy file as written, every key optional, with the place of each value.
//!
//! This module checks only keys and types. `fragment` checks the values.

use crate::tool_sections::{McpSection, ToolsSection};
use schemars::JsonSchema;
use serde::Deserialize;
use std::collections::BTreeMap;
use toml::Spanned;

/// A policy: what a cage may see, change and use. All keys are optional; the profile sets the
/// others.
#[derive(Debug, Clone, Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
#[schemars(title = "ironcage.toml")]
pub struct PolicyFile {
    /// The profile (`"coding-agent"`) or the file (`"./base.toml"`) that this one builds on.
    #[schemars(with = "Option<String>")]
    pub extends: Option<Spanned<String>>,
    /// The profile to use without `--profile`. Only in the user's own configuration.
    #[schemars(skip)]
    pub profile: Option<Spanned<String>>,
    /// The isolation level: `namespace`, or a weaker one for hosts that lack what it needs.
    #[schemars(with = "Option<crate::schema::IsolationName>")]
    pub isolation: Option<Spanned<String>>,
    /// The directory that the agent works in.
    pub workspace: WorkspaceSection,
    /// Files and directories beyond the system and the workspace.
    pub files: FilesSection,
    /// What outlives a run: paths of the agent's home, and caches.
    pub state: StateSection,
    /// Environment variables. The cage has only those in this section and in the defaults.
    pub env: EnvSection,
    /// The agent's identity in the cage.
    pub process: ProcessSection,
    /// The hosts that the cage can reach. None, unless they are listed here.
    pub network: NetworkSection,
    /// Keys that stay outside, in your ssh-agent or gpg-agent, and that the cage may use. None, unless they are listed here.
    pub keys: KeysSection,
    /// The upper bound for leases of the running cage.
    pub ceiling: CeilingSection,
    /// How requests that follow from what an agent announces are judged.
    pub intent: IntentSection,
    /// Settings for permission requests.
    pub questions: QuestionsSection,
    /// Which data is private and which content is untrusted, and whether a cage with both needs approval.
    pub taint: TaintSection,
    /// Rules for tool calls, however they are made. Without this section, only the cage limits what tools do.
    #[schemars(with = "Option<ToolsSection>")]
    pub tools: Option<Spanned<ToolsSection>>,
    /// MCP servers behind `ironcage mcp gateway`, by name: lowercase letters, digits and hyphens.
    #[schemars(with = "BTreeMap<String, McpSection>")]
    pub mcp: BTreeMap<Spanned<String>, McpSection>,
    /// System calls.
    pub syscalls: SyscallsSection,
    /// Resource limits of the cage.
    pub limits: LimitsSection,
    /// The kernel mechanisms that the cage requires.
    pub layers: LayersSection,
}

/// The directory that the agent works in.
#[derive(Debug, Clone, Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct WorkspaceSection {
    /// `cow`: a copy-on-write view, the change stays pending until you apply it; `apply`: the same, applied when the command succeeds; `direct`: the real files, writable; `read-only`: the real files; `scratch`: an empty directory, deleted at the end.
    #[schemars(with = "Option<crate::WorkspaceMode>")]
    pub mode: Option<Spanned<String>>,
    /// Whether the change is in memory while the cage runs, limited by `limits.disk`, and saved at the end.
    #[schemars(with = "Option<bool>")]
    pub in_memory: Option<Spanned<bool>>,
    /// Protected paths in the workspace's root that stay writable, such as `.vscode`. If the change is applied at the end, also other paths that the host would execute or trust and that are to be applied, such as `Makefile` or `sub/.envrc`.
    #[schemars(with = "Vec<String>")]
    pub unprotect: Vec<Spanned<String>>,
}

/// Files and directories beyond the system and the workspace. A path is absolute, starts
/// with `~/`, or is relative to the directory of the policy file.
#[derive(Debug, Clone, Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct FilesSection {
    /// Readable.
    #[schemars(with = "Vec<String>")]
    pub read: Vec<Spanned<String>>,
    /// Readable and writable. The change stays pending like the workspace's, unless the mode is `direct`.
    #[schemars(with = "Vec<String>")]
    pub write: Vec<Spanned<String>>,
    /// The real files, readable and writable in every mode: the agent's writes take effect at once.
    #[schemars(with = "Vec<String>")]
    pub write_direct: Vec<Spanned<String>>,
    /// Hidden, even below a visible path. `*.pem` and `**/.env` hide such names at any depth in the workspace and in
    /// other visible paths, `config/*.key` in one directory. Patterns hide what exists when the cage starts.
    #[schemars(with = "Vec<String>")]
    pub hide: Vec<Spanned<String>>,
    /// Whether files of the workspace with sensitive names, such as `.env` and private keys, are hidden unless a lease grants them.
    #[schemars(with = "Option<bool>")]
    pub hide_sensitive: Option<Spanned<bool>>,
    /// Whether toolchains outside the system directories that are on the caller's PATH are readable.
    #[schemars(with = "Option<bool>")]
    pub toolchains: Option<Spanned<bool>>,
}

/// What outlives a run. Each workspace has its own copies, never the user's.
#[derive(Debug, Clone, Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct StateSection {
    /// Paths in the agent's home that are kept: `.claude` or `~/.claude`.
    #[schemars(with = "Vec<String>")]
    pub keep: Vec<Spanned<String>>,
    /// Tool caches that are kept, such as `cargo`; each profile has its own.
    #[schemars(with = "Vec<crate::schema::CacheName>")]
    pub caches: Vec<Spanned<String>>,
    /// Whether the cage can read the user's own caches through the kept ones. Nothing is ever written there.
    #[schemars(with = "Option<bool>")]
    pub host_caches: Option<Spanned<bool>>,
    /// Most that one workspace keeps: `"1G"`. Beyond it the oldest log files go first, and if they are not enough, no
    /// cage starts with the kept state.
    #[schemars(with = "Option<String>")]
    pub limit: Option<Spanned<String>>,
    /// Most that one kept path of a workspace takes: `"512M"`.
    #[schemars(with = "Option<String>")]
    pub limit_per_path: Option<Spanned<String>>,
}

/// Environment variables.
#[derive(Debug, Clone, Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct EnvSection {
    /// Passed from the caller's environment if they are set.
    #[schemars(with = "Vec<String>")]
    pub pass: Vec<Spanned<String>>,
    /// Set to these values.
    #[schemars(with = "BTreeMap<String, String>")]
    pub set: BTreeMap<Spanned<String>, Spanned<String>>,
}

/// The agent's identity in the cage.
#[derive(Debug, Clone, Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct ProcessSection {
    /// The host name in the cage: letters, digits and hyphens, at most 63.
    #[schemars(with = "Option<String>", length(min = 1, max = 63))]
    pub hostname: Option<Spanned<String>>,
    /// Whether the agent is uid 0 in its user namespace; it never is outside.
    #[schemars(with = "Option<bool>")]
    pub root_inside: Option<Spanned<bool>>,
    /// Whether commands are root of the guest's kernel with `isolation = "microvm"`; never of the
    /// files, which stay the agent's.
    #[schemars(with = "Option<bool>")]
    pub guest_root: Option<Spanned<bool>>,
    /// Whether git in the cage has the user's name and email address for commits.
    #[schemars(with = "Option<bool>")]
    pub git_identity: Option<Spanned<bool>>,
    /// Side-channel mitigation between agents that share a CPU: `off`, `cores` or `hardened`.
    #[schemars(with = "Option<crate::SideChannels>")]
    pub side_channels: Option<Spanned<String>>,
    /// Capabilities inside the namespaces, such as `CAP_NET_BIND_SERVICE`.
    #[schemars(with = "Vec<crate::schema::CapabilityName>")]
    pub capabilities: Vec<Spanned<String>>,
}

/// Keys of your ssh-agent and gpg-agent. The cage gets signatures, and never a key.
#[derive(Debug, Clone, Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct KeysSection {
    /// Keys that log in to hosts by SSH: `"~/.ssh/id_ed25519.pub@github.com"`. A key is a public key file, a fingerprint or a comment of `ssh-add -l`; a host has its port, or 22, and is in your known_hosts.
    #[schemars(with = "Vec<String>")]
    pub ssh: Vec<Spanned<String>>,
    /// Keys that sign commits and tags: `"ssh:~/.ssh/id_ed25519.pub"` or `"gpg:you@example.com"`. The first is git's signing key in the cage.
    #[schemars(with = "Vec<String>")]
    pub sign: Vec<Spanned<String>>,
    /// Whether you are asked before each use of a key.
    #[schemars(with = "Option<bool>")]
    pub confirm: Option<Spanned<bool>>,
}

/// One secret. Its name is that of the variable with its placeholder in the cage.
#[derive(Debug, Clone, Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct SecretSection {
    /// The host names that get the secret.
    #[schemars(with = "Vec<String>")]
    pub hosts: Vec<Spanned<String>>,
    /// The source of its value: `"env:NAME"`, `"file:/PATH"`, `"command:TEXT"` or `"keyring:SERVICE/USER"`. The default is the environment variable of the same name.
    #[schemars(with = "Option<String>")]
    pub from: Option<Spanned<String>>,
    /// The parts of a request in which the value replaces the placeholder: `"header:NAME"`, `"basic"`, `"query:NAME"`, `"body:FIELD"`. The default is the usual credential headers and Basic credentials.
    #[serde(rename = "in")]
    #[schemars(with = "Vec<String>")]
    pub places: Vec<Spanned<String>>,
}

/// AWS keys: the cage signs with placeholders, and the egress proxy signs again with the real keys.
#[derive(Debug, Clone, Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct AwsSection {
    /// The host names that get signed requests.
    #[schemars(with = "Vec<String>")]
    pub hosts: Vec<Spanned<String>>,
    /// The source of the keys: `"env"`, or `"file:/PATH"` or `"command:TEXT"` in the format of a `credential_process`.
    #[schemars(with = "Option<String>")]
    pub from: Option<Spanned<String>>,
    /// Services and actions that hand out credentials and are signed all the same, such as `"sts"` or `"ecr:GetAuthorizationToken"`.
    #[schemars(with = "Vec<String>")]
    pub credentials: Vec<Spanned<String>>,
}

/// The login of an agent; keys that are not set have the shipped values.
#[derive(Debug, Clone, Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct LoginSection {
    /// The absolute path of the user's own login file.
    #[schemars(with = "Option<String>")]
    pub file: Option<Spanned<String>>,
    /// Hosts that get the access token, by name.
    #[schemars(with = "Vec<String>")]
    pub hosts: Vec<Spanned<String>>,
    /// The only requests that get the access token: `"POST /v1/messages/**"`. An account can do more than ask a model.
    #[schemars(with = "Vec<String>")]
    pub requests: Vec<Spanned<String>>,
    /// The URL that renews the token: `"https://NAME/PATH"`.
    #[schemars(with = "Option<String>")]
    pub token_url: Option<Spanned<String>>,
}

/// The hosts that the cage can reach. `deny` wins over `allow`.
#[derive(Debug, Clone, Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct NetworkSection {
    /// `off`: nothing, even if hosts are allowed; `listed`: the allowed hosts; `live`: also hosts that you allow while the cage runs, on any port; `open`: every host on the internet.
    #[schemars(with = "Option<crate::NetworkMode>")]
    pub mode: Option<Spanned<String>>,
    /// Allowed hosts: `"api.example.com"` (ports 80 and 443), `"db.example.com:5432"`, `"*.example.com"` (subdomains), `"**.example.com"` (the name and its subdomains), addresses and networks.
    #[schemars(with = "Vec<String>")]
    pub allow: Vec<Spanned<String>>,
    /// Denied hosts, even if they are also allowed; without a port, on every port.
    #[schemars(with = "Vec<String>")]
    pub deny: Vec<Spanned<String>>,
    /// Allowed requests: `"GET,HEAD api.example.com/v1/**"`. A host with a request rule gets no other requests, and the egress proxy intercepts its TLS.
    #[schemars(with = "Vec<String>")]
    pub http: Vec<Spanned<String>>,
    /// The allowed hosts that serve the agent's model: the egress proxy intercepts their TLS, and tool calls in their responses prepare leases within the ceiling.
    #[schemars(with = "Vec<String>")]
    pub models: Vec<Spanned<String>>,
    /// Secrets that the egress proxy adds to requests to their hosts; the cage has placeholders.
    #[schemars(with = "BTreeMap<String, SecretSection>")]
    pub secrets: BTreeMap<Spanned<String>, SecretSection>,
    /// AWS keys with which the egress proxy signs requests; the cage has placeholders.
    pub aws: Option<AwsSection>,
    /// Logins of agents, `claude` or `codex`: the cage has a file with placeholders, and the egress proxy has the token.
    #[schemars(with = "BTreeMap<String, LoginSection>")]
    pub logins: BTreeMap<Spanned<String>, LoginSection>,
    /// Bundles of hosts, such as `github`; `pip`, `uv`, `npm`, `cargo`, `go`, `maven` and `apt` follow your own settings for those tools.
    #[schemars(with = "Vec<crate::schema::BundleName>")]
    pub bundles: Vec<Spanned<String>>,
    /// Ports on the host's own loopback, which the cage reaches as `host.ironcage`.
    #[schemars(with = "Vec<u16>")]
    pub host_ports: Vec<Spanned<u16>>,
    /// Ports of the cage to publish on the host's loopback: `"8080:3000"` is port 3000 of the cage on the host's 8080.
    #[schemars(with = "Vec<String>")]
    pub publish: Vec<Spanned<String>>,
    /// Host Unix sockets that the cage can reach, each at its own path.
    #[schemars(with = "Vec<String>")]
    pub sockets: Vec<Spanned<String>>,
    /// Names with a fixed address, without a DNS query.
    #[schemars(with = "BTreeMap<String, String>")]
    pub resolve: BTreeMap<Spanned<String>, Spanned<String>>,
    /// Whether `mode = "open"` is an error, even as a flag.
    #[schemars(with = "Option<bool>")]
    pub never_open: Option<Spanned<bool>>,
    /// Limits on outgoing traffic.
    pub limits: NetworkLimitsSection,
    /// The upstream proxy through which the egress proxy connects to allowed hosts.
    pub upstream: Option<UpstreamSection>,
    /// Absolute paths of PEM files with certificate authorities, trusted besides those of the system: the egress proxy verifies servers by them, and programs in the cage find them.
    #[schemars(with = "Vec<String>")]
    pub authorities: Vec<Spanned<String>>,
}

/// The HTTP proxy of your network. By default, that of `HTTPS_PROXY`, `HTTP_PROXY` and `NO_PROXY` in your environment.
#[derive(Debug, Clone, Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct UpstreamSection {
    /// `"http://HOST:PORT"`; `"env"` for the variables of your environment; `"off"` to connect directly.
    #[schemars(with = "Option<String>")]
    pub proxy: Option<Spanned<String>>,
    /// Where the proxy's `USER:PASSWORD` comes from, as in `[network.secrets]`: `"env:NAME"`, `"file:PATH"`, `"command:..."` or `"keyring:SERVICE/USER"`. The cage never has them.
    #[schemars(with = "Option<String>")]
    pub credentials: Option<Spanned<String>>,
    /// Hosts that are reached without the proxy: names with all below them, addresses, networks, with a port if given.
    #[schemars(with = "Vec<String>")]
    pub no_proxy: Vec<Spanned<String>>,
}

/// Limits on traffic through the egress proxy; no limit by default.
#[derive(Debug, Clone, Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct NetworkLimitsSection {
    /// Concurrent connections.
    #[schemars(with = "Option<u64>", range(min = 1))]
    pub connections: Option<Spanned<u64>>,
    /// HTTP requests that the proxy sees, and connections that it does not inspect.
    #[schemars(with = "Option<u64>", range(min = 1))]
    pub requests_per_second: Option<Spanned<u64>>,
    /// Bytes sent to one host, such as `"10M"`.
    #[schemars(with = "Option<String>")]
    pub bytes_out_per_host: Option<Spanned<String>>,
    /// Bytes sent in total, such as `"100M"`.
    #[schemars(with = "Option<String>")]
    pub bytes_out: Option<Spanned<String>>,
    /// Hosts that the cage did not contact before.
    #[schemars(with = "Option<u64>", range(min = 1))]
    pub new_hosts_per_minute: Option<Spanned<u64>>,
    /// Bytes in the body of one request, if the proxy sees it, such as `"1M"`.
    #[schemars(with = "Option<String>")]
    pub body: Option<Spanned<String>>,
}

/// The upper bound for leases of a running cage: nothing grants more, whoever asks. `deny` wins. Between `ask` and `auto`, the part closer to a path counts, and `ask` if they are equal; elsewhere `ask` wins.
#[derive(Debug, Clone, Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct CeilingSection {
    /// The longest duration of a lease: `"1h"` or `"none"`.
    #[schemars(with = "Option<crate::schema::Time>")]
    pub longest: Option<Spanned<String>>,
    /// The grace period for processes that still use a resource when its lease ends: `"2s"`.
    #[schemars(with = "Option<crate::schema::Time>")]
    pub grace: Option<Spanned<String>>,
    /// The longest duration of a lease that a tool call in a model's response opened: `"10m"`. The lease ends earlier when the call's result goes to the model.
    #[schemars(with = "Option<crate::schema::Time>")]
    pub call_longest: Option<Spanned<String>>,
    /// How often a cage may diverge from what its model announced before Ironcage trusts it less.
    pub drift: DriftSection,
    /// The number of child cages that may exist at once, including all descendants: 0 to 64.
    #[schemars(with = "Option<u64>", range(max = 64))]
    pub children: Option<Spanned<u64>>,
    /// Experimental. The number of channels to and from other cages that you may open: 0 to 64.
    #[schemars(with = "Option<u64>", range(max = 64))]
    pub channels: Option<Spanned<u64>>,
    /// What happens after the grace period: `kill` kills the processes that use the resource, or the cage if they cannot be found; `keep` lets them keep what they have open, and the audit log does not report the lease as revoked.
    #[schemars(with = "Option<crate::schema::HoldersName>")]
    pub holders: Option<Spanned<String>>,
    /// How the agent's shell commands run: `plain`, in the cage; `scoped`, a command that needs a lease runs in a scope of its own, and only that scope holds the lease.
    #[schemars(with = "Option<crate::schema::ShellModeName>")]
    pub shell: Option<Spanned<String>>,
    /// How the text of a model's response is used: `note` shows it in permission requests; with `narrow`, a resource that the tool calls need and the text does not name also needs approval, if the text names others.
    #[schemars(with = "Option<crate::schema::WordsModeName>")]
    pub words: Option<Spanned<String>>,
    /// Experimental. A file of Cedar rules that choose between granting, asking and denying, within the parts below. It needs an `ironcage` built with the feature `cedar`.
    #[schemars(with = "Option<String>")]
    pub cedar: Option<Spanned<String>>,
    /// Granted at once, although another part asks first: `ironcage approve --always` writes this.
    pub always: CeilingAlways,
    /// Granted at once.
    pub auto: CeilingPart,
    /// Granted when you approve.
    pub ask: CeilingPart,
    /// Never granted, even below a path that is.
    pub deny: CeilingPart,
}

/// The number of divergences from what the model announced at which Ironcage trusts a cage less.
#[derive(Debug, Clone, Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct DriftSection {
    /// Leases that model responses open last a quarter as long.
    #[schemars(with = "Option<u64>", range(min = 1))]
    pub shorten: Option<Spanned<u64>>,
    /// Leases that are granted at once need approval.
    #[schemars(with = "Option<u64>", range(min = 1))]
    pub ask: Option<Spanned<u64>>,
    /// The cage is frozen until you resume it.
    #[schemars(with = "Option<u64>", range(min = 1))]
    pub freeze: Option<Spanned<u64>>,
}

/// How requests that follow from what an agent announces are judged. Ignored in an untrusted policy file of a workspace.
#[derive(Debug, Clone, Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct IntentSection {
    /// A command that judges each lease which the ceiling would grant at once to a command in a scope. It can only have it asked for or denied.
    #[schemars(with = "Vec<String>")]
    pub judge: Vec<Spanned<String>>,
}

/// Settings for permission requests. Ignored in an untrusted policy file of a workspace.
#[derive(Debug, Clone, Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct QuestionsSection {
    /// When an unanswered request expires: `"30m"`.
    #[schemars(with = "Option<crate::schema::Time>")]
    pub expire: Option<Spanned<String>>,
    /// How long a denial also denies repeated requests for the same resource: `"10m"`.
    #[schemars(with = "Option<crate::schema::Time>")]
    pub remember: Option<Spanned<String>>,
    /// The key that opens the prompt on the terminal of an interactive run while a request is pending: `"ctrl-^"`.
    #[schemars(with = "Option<String>")]
    pub key: Option<Spanned<String>>,
    /// A command to run for each request, with the request as JSON on its standard input.
    #[schemars(with = "Vec<String>")]
    pub notify: Vec<Spanned<String>>,
    /// A URL to which `curl` sends each request as JSON.
    #[schemars(with = "Option<String>")]
    pub webhook: Option<Spanned<String>>,
}

/// Experimental. Which data is private and which content is untrusted. A cage that can read or reach it, from its start or through a
/// lease, is marked, and so is every cage that reads its workspace, its caches or its messages.
#[derive(Debug, Clone, Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct TaintSection {
    /// Paths with private data.
    #[schemars(with = "Vec<String>")]
    pub private: Vec<Spanned<String>>,
    /// Hosts whose content is not trusted: `"*"` is every host.
    #[schemars(with = "Vec<String>")]
    pub untrusted: Vec<Spanned<String>>,
    /// Whether leases through which data could leave a cage with both marks need approval, even those that are granted at once.
    #[schemars(with = "Option<bool>")]
    pub ask: Option<Spanned<bool>>,
}

/// A part of the ceiling, with the same keys as the base.
#[derive(Debug, Clone, Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct CeilingPart {
    /// Files and directories.
    pub files: CeilingFiles,
    /// Hosts, requests, secrets, ports and sockets.
    pub network: CeilingNetwork,
    /// Wider limits.
    pub limits: CeilingLimits,
    /// System calls, for one command.
    pub syscalls: CeilingSyscalls,
    /// Capabilities, for one command.
    pub process: CeilingProcess,
}

/// Standing approvals.
#[derive(Debug, Clone, Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct CeilingAlways {
    /// Files and directories.
    pub files: CeilingFiles,
    /// Hosts.
    pub network: AlwaysNetwork,
}

/// Standing approvals of hosts.
#[derive(Debug, Clone, Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct AlwaysNetwork {
    /// As in `network.allow`.
    #[schemars(with = "Vec<String>")]
    pub allow: Vec<Spanned<String>>,
}

/// Network resources that leases may open. A cage with any of these has an egress proxy from the start, which denies everything without a lease.
#[derive(Debug, Clone, Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct CeilingNetwork {
    /// Hosts, written as in `network.allow`; `"*"` is every host on the internet on ports 80 and 443, `"*:22"` on port 22, `"*:*"` on every port.
    #[schemars(with = "Vec<String>")]
    pub allow: Vec<Spanned<String>>,
    /// Requests, written as in `network.http`.
    #[schemars(with = "Vec<String>")]
    pub http: Vec<Spanned<String>>,
    /// Secrets, written as in `network.secrets`. Their placeholders are in the cage from the start; the values replace them while there is a lease.
    #[schemars(with = "BTreeMap<String, SecretSection>")]
    pub secrets: BTreeMap<Spanned<String>, SecretSection>,
    /// Bundles of hosts, as in `network.bundles`. A tool call that needs a bundle gets it by name.
    #[schemars(with = "Vec<crate::schema::BundleName>")]
    pub bundles: Vec<Spanned<String>>,
    /// Ports on the host's own loopback.
    #[schemars(with = "Vec<u16>")]
    pub host_ports: Vec<Spanned<u16>>,
    /// Ports of the cage that may be published: `"8080:3000"`, with `*` for any, as in `"*:3000"` or `"*"`.
    #[schemars(with = "Vec<String>")]
    pub publish: Vec<Spanned<String>>,
    /// Host Unix sockets.
    #[schemars(with = "Vec<String>")]
    pub sockets: Vec<Spanned<String>>,
}

/// How far leases may raise limits.
#[derive(Debug, Clone, Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct CeilingLimits {
    /// Memory: `"8G"` or a share of the host's, `"90%"`.
    #[schemars(with = "Option<crate::schema::Size>")]
    pub memory: Option<Spanned<String>>,
    /// CPUs: `4` or a share of the host's, `"100%"`.
    #[schemars(with = "Option<crate::schema::Processors>")]
    pub cpus: Option<Spanned<CpusText>>,
    /// Processes and threads.
    #[schemars(with = "Option<u32>", range(min = 2, max = 4194304))]
    pub pids: Option<Spanned<u64>>,
}

/// System calls that one command may get.
#[derive(Debug, Clone, Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct CeilingSyscalls {
    /// Groups beyond the list, such as `debug`.
    #[schemars(with = "Vec<crate::schema::GroupName>")]
    pub groups: Vec<Spanned<String>>,
}

/// Capabilities that one command may get.
#[derive(Debug, Clone, Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct CeilingProcess {
    /// Capabilities inside the namespaces, such as `CAP_NET_BIND_SERVICE`.
    #[schemars(with = "Vec<crate::schema::CapabilityName>")]
    pub capabilities: Vec<Spanned<String>>,
}

/// Files and directories that leases may open, or parts of them.
#[derive(Debug, Clone, Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct CeilingFiles {
    /// To read.
    #[schemars(with = "Vec<String>")]
    pub read: Vec<Spanned<String>>,
    /// To read and write the real files: writes take effect at once.
    #[schemars(with = "Vec<String>")]
    pub write: Vec<Spanned<String>>,
}

/// System calls.
#[derive(Debug, Clone, Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct SyscallsSection {
    /// `standard`: ordinary programs; `minimal`: one program without children or sockets.
    #[schemars(with = "Option<crate::schema::ListName>")]
    pub list: Option<Spanned<String>>,
    /// Groups of system calls beyond the list, such as `debug`.
    #[schemars(with = "Vec<crate::schema::GroupName>")]
    pub groups: Vec<Spanned<String>>,
}

/// Resource limits of the cage.
#[derive(Debug, Clone, Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct LimitsSection {
    /// Memory, temporary files included: `"2G"` or a share of the host's, `"50%"`.
    #[schemars(with = "Option<crate::schema::Size>")]
    pub memory: Option<Spanned<String>>,
    /// CPUs: `1.5` or a share of the host's, `"50%"`.
    #[schemars(with = "Option<crate::schema::Processors>")]
    pub cpus: Option<Spanned<CpusText>>,
    /// Processes and threads.
    #[schemars(with = "Option<u32>", range(min = 2, max = 4194304))]
    pub pids: Option<Spanned<u64>>,
    /// Bytes written: `"4G"` or a share of the host's disk, `"10%"`.
    #[schemars(with = "Option<crate::schema::Size>")]
    pub disk: Option<Spanned<String>>,
    /// Files created.
    #[schemars(with = "Option<u64>", range(min = 64))]
    pub inodes: Option<Spanned<u64>>,
    /// Open descriptors of each process.
    #[schemars(with = "Option<u64>", range(min = 16, max = 1048576))]
    pub files: Option<Spanned<u64>>,
    /// Wall-clock time: `"30m"` or `"none"`.
    #[schemars(with = "Option<crate::schema::Time>")]
    pub time: Option<Spanned<String>>,
    /// Time without output, input or CPU use: `"5m"` or `"none"`.
    #[schemars(with = "Option<crate::schema::Time>")]
    pub idle: Option<Spanned<String>>,
    /// WebAssembly instructions of each command, roughly, with `isolation = "wasm"`.
    #[schemars(with = "Option<u64>", range(min = 1))]
    pub fuel: Option<Spanned<u64>>,
}

/// A number of CPUs, or a share as text.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(
    untagged,
    expecting = "expected a number such as 1.5 or a share such as \"50%\""
)]
pub enum CpusText {
    /// A whole number.
    Whole(i64),
    /// A number.
    Number(f64),
    /// A share, or a number as text.
    Text(String),
}

/// The kernel mechanisms that the cage requires.
#[derive(Debug, Clone, Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct LayersSection {
    /// Layers without which a cage does not start, beyond the profile's.
    #[schemars(with = "Vec<crate::schema::LayerName>")]
    pub require: Vec<Spanned<String>>,
    /// Required layers that may be missing.
    #[schemars(with = "Vec<crate::schema::LayerName>")]
    pub allow_degraded: Vec<Spanned<String>>,
}
