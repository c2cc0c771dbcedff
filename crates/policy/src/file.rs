//! `PolicyFile`: a policy file as written, every key optional, with the place of each value.
//!
//! Only the shape is checked here: keys and types. What values mean, and whether they are
//! in range, is `fragment`'s to say.

use schemars::JsonSchema;
use serde::Deserialize;
use std::collections::BTreeMap;
use toml::Spanned;

/// A policy: what a cage may see, change and use. All keys are optional; what is not said
/// here comes from the profile.
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
    /// How the cage is made: `namespace`, or a weaker rung for hosts that lack what it needs.
    #[schemars(with = "Option<crate::schema::IsolationName>")]
    pub isolation: Option<Spanned<String>>,
    /// The directory that the agent works in.
    pub workspace: WorkspaceSection,
    /// Files and directories beyond the system and the workspace.
    pub files: FilesSection,
    /// What outlives a run: paths of the agent's home, and caches.
    pub state: StateSection,
    /// Environment variables. What is not named here or in the defaults is not there.
    pub env: EnvSection,
    /// Who the agent is inside.
    pub process: ProcessSection,
    /// What of the network can be reached. Nothing, unless it is named here.
    pub network: NetworkSection,
    /// What leases may give to the running cage beyond all this.
    pub ceiling: CeilingSection,
    /// How people are asked about what the ceiling gives after asking.
    pub questions: QuestionsSection,
    /// Which data is private and which content untrusted, and what follows where both meet.
    pub taint: TaintSection,
    /// System calls.
    pub syscalls: SyscallsSection,
    /// Bounds on what the cage uses.
    pub limits: LimitsSection,
    /// The kernel mechanisms that must hold.
    pub layers: LayersSection,
}

/// The directory that the agent works in.
#[derive(Debug, Clone, Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct WorkspaceSection {
    /// `cow`: a copy-on-write view, the change is kept aside until it is applied; `apply`: the same, applied when the command ends successfully; `direct`: the real files, writable; `read-only`: the real files; `scratch`: an empty directory, gone at the end.
    #[schemars(with = "Option<crate::WorkspaceMode>")]
    pub mode: Option<Spanned<String>>,
    /// Whether the change is in memory while the cage runs, bounded by `limits.disk`, and written down at its end.
    #[schemars(with = "Option<bool>")]
    pub in_memory: Option<Spanned<bool>>,
    /// Protected paths in the workspace's root that stay writable, such as `.vscode`; and, where the change is applied at the end, what else the host would execute or trust and is to come over, such as `Makefile` or `sub/.envrc`.
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
    /// Readable and writable. The change is kept aside like the workspace's, unless that is `direct`.
    #[schemars(with = "Vec<String>")]
    pub write: Vec<Spanned<String>>,
    /// Readable and writable as they are: what the agent writes is there at once, in every mode.
    #[schemars(with = "Vec<String>")]
    pub write_direct: Vec<Spanned<String>>,
    /// Not visible, even below something that is. `*.pem` and `**/.env` hide such names at any depth in the workspace
    /// and in what is given, `config/*.key` in one directory: as they are when the cage starts.
    #[schemars(with = "Vec<String>")]
    pub hide: Vec<Spanned<String>>,
    /// Whether toolchains outside of the system's directories, found by the caller's PATH, are readable.
    #[schemars(with = "Option<bool>")]
    pub toolchains: Option<Spanned<bool>>,
}

/// What outlives a run, for each workspace on its own and never the user's own copies.
#[derive(Debug, Clone, Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct StateSection {
    /// Paths of the agent's home that are kept: `.claude` or `~/.claude`.
    #[schemars(with = "Vec<String>")]
    pub keep: Vec<Spanned<String>>,
    /// Caches of tools that are kept, such as `cargo`; each profile has its own.
    #[schemars(with = "Vec<crate::schema::CacheName>")]
    pub caches: Vec<Spanned<String>>,
    /// Whether what the user's own caches hold can be read through those that are kept. Nothing is ever written there.
    #[schemars(with = "Option<bool>")]
    pub host_caches: Option<Spanned<bool>>,
}

/// Environment variables.
#[derive(Debug, Clone, Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct EnvSection {
    /// Taken over from the caller's environment where they exist.
    #[schemars(with = "Vec<String>")]
    pub pass: Vec<Spanned<String>>,
    /// Set to these values.
    #[schemars(with = "BTreeMap<String, String>")]
    pub set: BTreeMap<Spanned<String>, Spanned<String>>,
}

/// Who the agent is inside.
#[derive(Debug, Clone, Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct ProcessSection {
    /// The host name inside: letters, digits and hyphens, 63 at most.
    #[schemars(with = "Option<String>", length(min = 1, max = 63))]
    pub hostname: Option<Spanned<String>>,
    /// Whether the agent is uid 0 of its user namespace; outside it never is.
    #[schemars(with = "Option<bool>")]
    pub root_inside: Option<Spanned<bool>>,
    /// Whether git inside knows the user's name and address, so that commits are theirs.
    #[schemars(with = "Option<bool>")]
    pub git_identity: Option<Spanned<bool>>,
    /// What is done against what agents learn of each other by sharing a processor.
    #[schemars(with = "Option<crate::SideChannels>")]
    pub side_channels: Option<Spanned<String>>,
    /// Capabilities inside the namespaces, such as `CAP_NET_BIND_SERVICE`.
    #[schemars(with = "Vec<crate::schema::CapabilityName>")]
    pub capabilities: Vec<Spanned<String>>,
}

/// One secret, named like the variable that holds its placeholder in the cage.
#[derive(Debug, Clone, Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct SecretSection {
    /// Hosts that it is for, by name.
    #[schemars(with = "Vec<String>")]
    pub hosts: Vec<Spanned<String>>,
    /// Where its value comes from: `"env:NAME"`, `"file:/PATH"`, `"command:TEXT"` or `"keyring:SERVICE/USER"`; without it, the variable of its own name.
    #[schemars(with = "Option<String>")]
    pub from: Option<Spanned<String>>,
    /// Places of a request in which the placeholder becomes the value: `"header:NAME"`, `"basic"`, `"query:NAME"`, `"body:FIELD"`; without it, fields that carry credentials by custom, and Basic credentials.
    #[serde(rename = "in")]
    #[schemars(with = "Vec<String>")]
    pub places: Vec<Spanned<String>>,
}

/// Keys of Amazon's: the cage signs with placeholders, the network door signs anew.
#[derive(Debug, Clone, Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct AwsSection {
    /// Hosts that they are for, by name.
    #[schemars(with = "Vec<String>")]
    pub hosts: Vec<Spanned<String>>,
    /// Where they come from: `"env"`, or `"file:/PATH"` and `"command:TEXT"`, which say them as a `credential_process` does.
    #[schemars(with = "Option<String>")]
    pub from: Option<Spanned<String>>,
}

/// A login of an agent's; what is not said is as it ships.
#[derive(Debug, Clone, Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct LoginSection {
    /// The user's own file, by its whole path.
    #[schemars(with = "Option<String>")]
    pub file: Option<Spanned<String>>,
    /// Hosts that get the access token, by name.
    #[schemars(with = "Vec<String>")]
    pub hosts: Vec<Spanned<String>>,
    /// Who renews the token: `"https://NAME/PATH"`.
    #[schemars(with = "Option<String>")]
    pub token_url: Option<Spanned<String>>,
}

/// What of the network can be reached. Denying wins over allowing.
#[derive(Debug, Clone, Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct NetworkSection {
    /// `off`: nothing, whatever was allowed below; `listed`: what is allowed; `live`: also what is allowed while the cage runs, about any port; `open`: every host of the internet.
    #[schemars(with = "Option<crate::NetworkMode>")]
    pub mode: Option<Spanned<String>>,
    /// Hosts that are allowed: `"api.example.com"` (ports 80 and 443), `"db.example.com:5432"`, `"*.example.com"` (names below it), `"**.example.com"` (also itself), addresses and networks.
    #[schemars(with = "Vec<String>")]
    pub allow: Vec<Spanned<String>>,
    /// Hosts that are denied, even where they are allowed; without a port on every one.
    #[schemars(with = "Vec<String>")]
    pub deny: Vec<Spanned<String>>,
    /// Requests that are allowed: `"GET,HEAD api.example.com/v1/**"`. A host that one of them is about gets no others; its TLS is opened.
    #[schemars(with = "Vec<String>")]
    pub http: Vec<Spanned<String>>,
    /// Hosts of the agent's model, of those that are allowed: their TLS is opened, and the tool calls in their answers prepare leases below the ceiling.
    #[schemars(with = "Vec<String>")]
    pub models: Vec<Spanned<String>>,
    /// Secrets that the network door puts on requests to their hosts; the cage has placeholders.
    #[schemars(with = "BTreeMap<String, SecretSection>")]
    pub secrets: BTreeMap<Spanned<String>, SecretSection>,
    /// Keys of Amazon's with which the network door signs requests anew; the cage has placeholders.
    pub aws: Option<AwsSection>,
    /// Logins of agents, `claude` or `codex`: the cage has a file of placeholders, the network door the token.
    #[schemars(with = "BTreeMap<String, LoginSection>")]
    pub logins: BTreeMap<Spanned<String>, LoginSection>,
    /// Bundles of hosts, such as `github`; `pip`, `npm`, `cargo` and `apt` follow your own settings of those tools.
    #[schemars(with = "Vec<crate::schema::BundleName>")]
    pub bundles: Vec<Spanned<String>>,
    /// Ports of the host's own loopback, reached as `host.ironcage`.
    #[schemars(with = "Vec<u16>")]
    pub host_ports: Vec<Spanned<u16>>,
    /// Ports inside that are reached at the host's loopback: `"8080:3000"` is the cage's 3000 at the host's 8080.
    #[schemars(with = "Vec<String>")]
    pub publish: Vec<Spanned<String>>,
    /// Unix sockets of the host's that are reached from inside, each by its own path.
    #[schemars(with = "Vec<String>")]
    pub sockets: Vec<Spanned<String>>,
    /// Names with an address of their own, which no resolver is asked for.
    #[schemars(with = "BTreeMap<String, String>")]
    pub resolve: BTreeMap<Spanned<String>, Spanned<String>>,
    /// Whether `mode = "open"` is refused, whoever asks for it.
    #[schemars(with = "Option<bool>")]
    pub never_open: Option<Spanned<bool>>,
    /// Bounds on what goes out.
    pub limits: NetworkLimitsSection,
}

/// Bounds on what goes through the network door; without one there is none.
#[derive(Debug, Clone, Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct NetworkLimitsSection {
    /// Connections at once.
    #[schemars(with = "Option<u64>", range(min = 1))]
    pub connections: Option<Spanned<u64>>,
    /// Requests of HTTP that the door sees, and connections that it does not look into.
    #[schemars(with = "Option<u64>", range(min = 1))]
    pub requests_per_second: Option<Spanned<u64>>,
    /// Bytes that go out to one host, such as `"10M"`.
    #[schemars(with = "Option<String>")]
    pub bytes_out_per_host: Option<Spanned<String>>,
    /// Bytes that go out in total, such as `"100M"`.
    #[schemars(with = "Option<String>")]
    pub bytes_out: Option<Spanned<String>>,
    /// Hosts that were not reached before.
    #[schemars(with = "Option<u64>", range(min = 1))]
    pub new_hosts_per_minute: Option<Spanned<u64>>,
    /// Bytes in the body of one request, where the door sees it, such as `"1M"`.
    #[schemars(with = "Option<String>")]
    pub body: Option<Spanned<String>>,
}

/// What leases may give to a running cage, and how: nothing beyond this is ever given, whoever asks. Denying wins over asking, asking over giving at once.
#[derive(Debug, Clone, Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct CeilingSection {
    /// How long a lease may live: `"1h"` or `"none"`.
    #[schemars(with = "Option<crate::schema::Time>")]
    pub longest: Option<Spanned<String>>,
    /// How long those who use a lease may take to let go of it when it ends: `"2s"`.
    #[schemars(with = "Option<crate::schema::Time>")]
    pub grace: Option<Spanned<String>>,
    /// How long a lease may live that a tool call in a model's answer opened: `"10m"`. It ends earlier when the call's result goes to the model.
    #[schemars(with = "Option<crate::schema::Time>")]
    pub call_longest: Option<Spanned<String>>,
    /// How often what happens may differ from what the model's answers said before the cage is trusted less.
    pub drift: DriftSection,
    /// How many child cages may live at once that somebody in the cage opened, with those that they open: 0 to 64.
    #[schemars(with = "Option<u64>", range(max = 64))]
    pub children: Option<Spanned<u64>>,
    /// How many channels to and from other cages the operator may open: 0 to 64.
    #[schemars(with = "Option<u64>", range(max = 64))]
    pub channels: Option<Spanned<u64>>,
    /// What becomes of those who do not let go: `kill` ends them, and the cage where they cannot be found; `keep` lets them keep what they have open, and the lease is not on record as revoked.
    #[schemars(with = "Option<crate::schema::HoldersName>")]
    pub holders: Option<Spanned<String>>,
    /// Where the commands of the agent's shell run: with `scoped` each that needs a lease runs in a scope of its own, which alone has it; with `plain` in the cage.
    #[schemars(with = "Option<crate::schema::ShellModeName>")]
    pub shell: Option<Spanned<String>>,
    /// What the words of a model's answer do: with `narrow`, what its calls need and its words do not name is asked for where they name other places that can be leased; with `note` they stand beside questions, and nothing else.
    #[schemars(with = "Option<crate::schema::WordsModeName>")]
    pub words: Option<Spanned<String>>,
    /// A file of rules in Cedar that choose, within the parts below, what is given at once, what is asked about and what is never given. It needs an `ironcage` that was built with the feature `cedar`.
    #[schemars(with = "Option<String>")]
    pub cedar: Option<Spanned<String>>,
    /// Given at once, although another part asks first: what `ironcage approve --always` writes.
    pub always: CeilingAlways,
    /// Given at once, to whoever asks.
    pub auto: CeilingPart,
    /// Given when you say so.
    pub ask: CeilingPart,
    /// Never given, even below something that is.
    pub deny: CeilingPart,
}

/// From which number of differences on between what was said and what is done a cage is trusted less.
#[derive(Debug, Clone, Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct DriftSection {
    /// Leases that answers open live a quarter as long.
    #[schemars(with = "Option<u64>", range(min = 1))]
    pub shorten: Option<Spanned<u64>>,
    /// What is given at once is asked for instead.
    #[schemars(with = "Option<u64>", range(min = 1))]
    pub ask: Option<Spanned<u64>>,
    /// The cage is stopped for you to look at.
    #[schemars(with = "Option<u64>", range(min = 1))]
    pub freeze: Option<Spanned<u64>>,
}

/// How people are asked. A policy file of a workspace that is not trusted says nothing here.
#[derive(Debug, Clone, Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct QuestionsSection {
    /// How long an answer is waited for: `"30m"`.
    #[schemars(with = "Option<crate::schema::Time>")]
    pub expire: Option<Spanned<String>>,
    /// How long the same is not asked again after it was denied: `"10m"`.
    #[schemars(with = "Option<crate::schema::Time>")]
    pub remember: Option<Spanned<String>>,
    /// The key that calls the prompt on the terminal of an interactive run while a question waits: `"ctrl-^"`.
    #[schemars(with = "Option<String>")]
    pub key: Option<Spanned<String>>,
    /// A command that is run for each question, with the question as JSON on its standard input.
    #[schemars(with = "Vec<String>")]
    pub notify: Vec<Spanned<String>>,
    /// An address to which each question is sent as JSON, by `curl`.
    #[schemars(with = "Option<String>")]
    pub webhook: Option<Spanned<String>>,
}

/// Which data is private and which content untrusted. A cage that can read or reach such a thing, from its start or by a
/// lease, is marked, and so is whoever reads its workspace, its caches or its messages.
#[derive(Debug, Clone, Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct TaintSection {
    /// Paths with private data.
    #[schemars(with = "Vec<String>")]
    pub private: Vec<Spanned<String>>,
    /// Hosts whose content is not trusted: `"*"` is every one.
    #[schemars(with = "Vec<String>")]
    pub untrusted: Vec<Spanned<String>>,
    /// Whether leases by which something could leave the cage need approval where both meet, also those that are given at once.
    #[schemars(with = "Option<bool>")]
    pub ask: Option<Spanned<bool>>,
}

/// A part of the ceiling, in the words of the base.
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

/// What a person has approved for good.
#[derive(Debug, Clone, Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct CeilingAlways {
    /// Files and directories.
    pub files: CeilingFiles,
    /// Hosts.
    pub network: AlwaysNetwork,
}

/// Hosts that a person has approved for good.
#[derive(Debug, Clone, Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct AlwaysNetwork {
    /// As in `network.allow`.
    #[schemars(with = "Vec<String>")]
    pub allow: Vec<Spanned<String>>,
}

/// What leases may open of the network, or parts of it. A cage whose ceiling gives any of it has a network door from the start, through which nothing goes without a lease.
#[derive(Debug, Clone, Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct CeilingNetwork {
    /// Hosts, written as in `network.allow`; `"*"` is every host of the internet on ports 80 and 443, `"*:22"` on that one, `"*:*"` on every one.
    #[schemars(with = "Vec<String>")]
    pub allow: Vec<Spanned<String>>,
    /// Requests, written as in `network.http`.
    #[schemars(with = "Vec<String>")]
    pub http: Vec<Spanned<String>>,
    /// Secrets, written as in `network.secrets`. Their placeholders are in the cage from the start; they become the values while there is a lease.
    #[schemars(with = "BTreeMap<String, SecretSection>")]
    pub secrets: BTreeMap<Spanned<String>, SecretSection>,
    /// Bundles of hosts, as in `network.bundles`: what the model is about to use of one is known by its name.
    #[schemars(with = "Vec<crate::schema::BundleName>")]
    pub bundles: Vec<Spanned<String>>,
    /// Ports of the host's own loopback.
    #[schemars(with = "Vec<u16>")]
    pub host_ports: Vec<Spanned<u16>>,
    /// Ports inside that may be published: `"8080:3000"`, with `*` for any, as in `"*:3000"` or `"*"`.
    #[schemars(with = "Vec<String>")]
    pub publish: Vec<Spanned<String>>,
    /// Unix sockets of the host's.
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
    /// Processors: `4` or a share of the host's, `"100%"`.
    #[schemars(with = "Option<crate::schema::Processors>")]
    pub cpus: Option<Spanned<CpusText>>,
    /// Processes and threads.
    #[schemars(with = "Option<u32>", range(min = 2, max = 4194304))]
    pub pids: Option<Spanned<u64>>,
}

/// System calls that one command may be given.
#[derive(Debug, Clone, Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct CeilingSyscalls {
    /// Groups beyond the list, such as `debug`.
    #[schemars(with = "Vec<crate::schema::GroupName>")]
    pub groups: Vec<Spanned<String>>,
}

/// Capabilities that one command may be given.
#[derive(Debug, Clone, Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct CeilingProcess {
    /// Capabilities inside the namespaces, such as `CAP_NET_BIND_SERVICE`.
    #[schemars(with = "Vec<crate::schema::CapabilityName>")]
    pub capabilities: Vec<Spanned<String>>,
}

/// Files and directories that leases may give, or parts of them.
#[derive(Debug, Clone, Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct CeilingFiles {
    /// To read.
    #[schemars(with = "Vec<String>")]
    pub read: Vec<Spanned<String>>,
    /// To read and write, as they are: what is written is there at once.
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

/// Bounds on what the cage uses.
#[derive(Debug, Clone, Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct LimitsSection {
    /// Memory, temporary files included: `"2G"` or a share of the host's, `"50%"`.
    #[schemars(with = "Option<crate::schema::Size>")]
    pub memory: Option<Spanned<String>>,
    /// Processors: `1.5` or a share of the host's, `"50%"`.
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
    /// Time without output, input or processor use: `"5m"` or `"none"`.
    #[schemars(with = "Option<crate::schema::Time>")]
    pub idle: Option<Spanned<String>>,
}

/// Processors as a number or as text.
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

/// The kernel mechanisms that must hold.
#[derive(Debug, Clone, Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct LayersSection {
    /// Layers without which a cage does not start, beyond the profile's.
    #[schemars(with = "Vec<crate::schema::LayerName>")]
    pub require: Vec<Spanned<String>>,
    /// Required layers that may be missing all the same.
    #[schemars(with = "Vec<crate::schema::LayerName>")]
    pub allow_degraded: Vec<Spanned<String>>,
}
