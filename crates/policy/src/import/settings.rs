//! Reads the settings: which rules they contain, and which are irrelevant for a policy.
//!
//! Keys are those of `@anthropic-ai/sandbox-runtime` up to 0.0.80, and of the `sandbox` section of Claude Code. `paths`
//! resolves their paths on this host.

use super::parent_proxy::{self, ImportedProxy};
use super::{Finding, ImportError, Kind, Place};
use crate::fragment::is_env_name;
use crate::network;
use serde_json::{Map, Value};
use std::path::PathBuf;

/// Everything in the settings that a policy can take up.
#[derive(Debug, Default)]
pub(super) struct Rules {
    pub(super) allow_write: Vec<Rule>,
    pub(super) deny_write: Vec<Rule>,
    pub(super) allow_read: Vec<Rule>,
    pub(super) deny_read: Vec<Rule>,
    /// Variables that must not come in.
    pub(super) deny_env: Vec<Rule>,
    /// `filesystem.disabled`: srt enforces no file rules at all.
    pub(super) all_files: bool,
    /// How deep srt looks for files that it never lets be written.
    pub(super) search_depth: usize,
    /// Hosts that can be reached.
    pub(super) allow_hosts: Vec<Rule>,
    /// Hosts, and networks of addresses, that cannot, whatever is allowed.
    pub(super) deny_hosts: Vec<Rule>,
    pub(super) upstream: Option<ImportedProxy>,
}

/// One entry of a list.
#[derive(Debug, Clone)]
pub(super) struct Rule {
    pub(super) key: String,
    /// The entry as written.
    pub(super) text: String,
    /// Whether it is a path and no pattern, whatever its characters.
    pub(super) literal: bool,
    /// Where it begins if it is relative.
    pub(super) from: PathBuf,
}

impl Rule {
    pub(super) fn finding(&self, kind: Kind, note: impl Into<String>) -> Finding {
        Finding {
            kind,
            subject: self.key.clone(),
            value: Some(format!("\"{}\"", self.text)),
            note: note.into(),
        }
    }
}

/// srt looks this deep unless told otherwise.
const SEARCH_DEPTH: usize = 3;

const NO_PROXY: &str = "the egress proxy of a cage is transparent: programs need no proxy settings, and it cannot be replaced";
const ALWAYS: &str = "always on in a cage";
const MACOS: &str = "a setting for macOS";
const WINDOWS: &str = "a setting for Windows";
const SRT_ITSELF: &str = "about srt itself";

/// Keys that no policy has an equal for, with the reason; those below `network` have their own list.
const NO_EQUAL: &[(&str, &str)] = &[
    ("ignoreViolations", "`ironcage why` explains every denial"),
    (
        "enableWeakerNestedSandbox",
        "never: a cage that cannot be built does not start; `ironcage doctor` reports what is missing",
    ),
    ("enableWeakerNetworkIsolation", MACOS),
    ("allowAppleEvents", MACOS),
    (
        "allowPty",
        "a setting for macOS; a cage has its own terminals",
    ),
    ("ripgrep", SRT_ITSELF),
    ("seccomp", SRT_ITSELF),
    ("bwrapPath", SRT_ITSELF),
    ("socatPath", SRT_ITSELF),
    ("javaAgentJarPath", SRT_ITSELF),
    ("windows", WINDOWS),
    (
        "git",
        "the agent owns the workspace in the cage, so git needs no safe.directory",
    ),
    (
        "autoAllowBashIfSandboxed",
        "about Claude Code's prompts, not about its sandbox",
    ),
    (
        "failIfUnavailable",
        "always on: a cage that cannot be built does not start",
    ),
];

const NETWORK: &[(&str, Kind, &str)] = &[
    (
        "deniedDomainReasons",
        Kind::NoEqual,
        "`ironcage why` has its own explanations",
    ),
    ("strictAllowlist", Kind::Kept, ALWAYS),
    (
        "allowAllDomains",
        Kind::Narrower,
        "only `--network open` allows every host, for one run; list the needed hosts in network.allow",
    ),
    (
        "allowManagedDomainsOnly",
        Kind::NoEqual,
        "Ironcage has no managed settings",
    ),
    (
        "allowUnixSockets",
        Kind::Narrower,
        "network.sockets allows host sockets one by one (srt has no list of them on Linux)",
    ),
    (
        "allowAllUnixSockets",
        Kind::NoEqual,
        "network.sockets allows host sockets one by one; programs in a cage can use their own",
    ),
    (
        "allowLocalBinding",
        Kind::NoEqual,
        "programs can always listen on the cage's own loopback, which is not reachable from outside; network.publish opens a port",
    ),
    ("allowMachLookup", Kind::NoEqual, MACOS),
    ("httpProxyPort", Kind::NoEqual, NO_PROXY),
    ("socksProxyPort", Kind::NoEqual, NO_PROXY),
    ("mitmProxy", Kind::NoEqual, NO_PROXY),
    (
        "filterRequest",
        Kind::NoEqual,
        "network.http restricts requests by method and path",
    ),
    (
        "tlsTerminate",
        Kind::NoEqual,
        "the egress proxy intercepts TLS where a request rule or a secret needs it",
    ),
    (
        "allowPlaintextHeaderSet",
        Kind::NoEqual,
        "network.secrets adds secrets to requests, only over TLS",
    ),
    (
        "stripResponseHeaders",
        Kind::NoEqual,
        "responses pass unchanged, except for secrets, which are masked",
    ),
    (
        "refuseOpaqueTunnels",
        Kind::NoEqual,
        "network.http makes the egress proxy intercept the connections that it allows",
    ),
    ("requireHostMatch", Kind::Kept, ALWAYS),
];

/// Reads the rules of a settings file, of srt's own or Claude Code's.
pub(super) fn read(
    value: &Value,
    place: &Place,
    findings: &mut Vec<Finding>,
) -> Result<Rules, ImportError> {
    let top = object(value, "the settings")?;
    let mut reader = Reader {
        from: place.workspace.clone(),
        prefix: "",
        rules: Rules {
            search_depth: SEARCH_DEPTH,
            ..Rules::default()
        },
        findings,
    };
    match top.get("sandbox") {
        None => reader.sandbox(top)?,
        Some(sandbox) => {
            if top.contains_key("filesystem") || top.contains_key("network") {
                return Err(ImportError::Shape {
                    key: "sandbox".to_owned(),
                    wanted: "either srt's settings (filesystem, network) or Claude Code's (sandbox), not both",
                });
            }
            reader.claude(top, object(sandbox, "sandbox")?, place)?;
        }
    }
    Ok(reader.rules)
}

struct Reader<'a> {
    /// Where relative paths begin.
    from: PathBuf,
    /// Before the names of keys: `sandbox.` in Claude Code's settings.
    prefix: &'static str,
    rules: Rules,
    findings: &'a mut Vec<Finding>,
}

impl Reader<'_> {
    /// Claude Code: the working directory is writable without a word, and rules for its own tools narrow the sandbox.
    fn claude(
        &mut self,
        top: &Map<String, Value>,
        sandbox: &Map<String, Value>,
        place: &Place,
    ) -> Result<(), ImportError> {
        self.prefix = "sandbox.";
        // In a project's .claude paths begin at the project, in the user's own at ~/.claude.
        let in_dot_claude = place
            .settings_dir
            .file_name()
            .is_some_and(|name| name == ".claude");
        self.from = match place.settings_dir.parent() {
            Some(_) if place.settings_dir == place.home.join(".claude") => {
                place.settings_dir.clone()
            }
            Some(project) if in_dot_claude => project.to_owned(),
            _ => place.workspace.clone(),
        };
        self.rules.allow_write.push(Rule {
            key: "Claude Code's default".to_owned(),
            text: ".".to_owned(),
            literal: true,
            from: place.workspace.clone(),
        });
        if sandbox.get("enabled") != Some(&Value::Bool(true)) {
            self.tell(
                Kind::Differs,
                "enabled",
                None,
                "is not true: Claude Code runs without this sandbox; a cage is always enforced",
            );
        }
        self.sandbox(sandbox)?;
        self.prefix = "";
        if let Some(permissions) = top.get("permissions") {
            self.permissions(object(permissions, "permissions")?)?;
        }
        for key in top
            .keys()
            .filter(|key| !matches!(key.as_str(), "sandbox" | "permissions" | "$schema"))
        {
            self.findings.push(Finding {
                kind: Kind::NoEqual,
                subject: key.clone(),
                value: None,
                note: "not about the sandbox".to_owned(),
            });
        }
        Ok(())
    }

    fn sandbox(&mut self, sandbox: &Map<String, Value>) -> Result<(), ImportError> {
        for (key, value) in sandbox {
            match key.as_str() {
                "filesystem" => self.filesystem(object(value, "filesystem")?)?,
                "network" => self.network(object(value, "network")?)?,
                "credentials" => self.credentials(object(value, "credentials")?)?,
                "mandatoryDenySearchDepth" => {
                    let depth = value.as_u64().filter(|depth| (1..=10).contains(depth));
                    let depth = depth.and_then(|depth| usize::try_from(depth).ok());
                    self.rules.search_depth =
                        depth.ok_or_else(|| self.shape(key, "a number from 1 to 10"))?;
                    self.tell(
                        Kind::Kept,
                        key,
                        Some(value),
                        "the depth at which this import searched for such files",
                    );
                }
                "excludedCommands" => {
                    self.each(Kind::NoEqual, key, value, "every command runs in the cage")
                }
                "allowUnsandboxedCommands" => self.tell(
                    Kind::NoEqual,
                    key,
                    Some(value),
                    "no command leaves the cage",
                ),
                "enabled" | "$schema" => {}
                _ => match NO_EQUAL.iter().find(|(known, _)| known == key) {
                    Some((_, note)) => self.each(Kind::NoEqual, key, value, note),
                    None => self.unknown(key, value),
                },
            }
        }
        Ok(())
    }

    fn filesystem(&mut self, section: &Map<String, Value>) -> Result<(), ImportError> {
        for (key, value) in section {
            let full = format!("filesystem.{key}");
            match key.as_str() {
                "denyRead" => {
                    let rules = self.paths(&full, value)?;
                    self.rules.deny_read.extend(rules);
                }
                "allowRead" => {
                    let rules = self.paths(&full, value)?;
                    self.rules.allow_read.extend(rules);
                }
                "denyWrite" => {
                    let rules = self.paths(&full, value)?;
                    self.rules.deny_write.extend(rules);
                }
                "allowWrite" => {
                    let rules = self.paths(&full, value)?;
                    self.rules.allow_write.extend(rules);
                }
                "disabled" => {
                    self.rules.all_files = value.as_bool().ok_or_else(|| self.shape(&full, "true or false"))?;
                    if self.rules.all_files {
                        self.tell(Kind::Narrower, &full, Some(value), "srt enforced no file rules; a cage always does, and gets the workspace");
                    }
                }
                "allowGitConfig" => self.tell(Kind::NoEqual, &full, Some(value), "all of .git is protected; --unprotect .git makes it writable except for its hooks and config"),
                "allowManagedReadPathsOnly" => self.tell(Kind::NoEqual, &full, Some(value), "Ironcage has no managed settings"),
                _ => self.unknown(&full, value),
            }
        }
        Ok(())
    }

    fn network(&mut self, section: &Map<String, Value>) -> Result<(), ImportError> {
        for (key, value) in section {
            let full = format!("network.{key}");
            match key.as_str() {
                "allowedDomains" => self.allowed_hosts(&full, value)?,
                "deniedDomains" | "deniedResolvedAddresses" => self.denied_hosts(&full, value)?,
                "parentProxy" => self.parent_proxy(&full, value)?,
                _ => match NETWORK.iter().find(|(known, ..)| known == key) {
                    Some((_, kind, note)) => self.each(*kind, &full, value, note),
                    None => self.unknown(&full, value),
                },
            }
        }
        Ok(())
    }

    fn parent_proxy(&mut self, key: &str, value: &Value) -> Result<(), ImportError> {
        let read = parent_proxy::read(value);
        let (proxy, notes) = read.ok_or_else(|| self.shape(key, parent_proxy::SHAPE))?;
        for (kind, part, note) in notes {
            self.tell(kind, &format!("{key}{part}"), None, &note);
        }
        self.rules.upstream = proxy;
        Ok(())
    }

    fn hosts(&self, key: &str, value: &Value) -> Result<Vec<Rule>, ImportError> {
        let text = |entry: &Value| match entry {
            Value::String(text) if !text.is_empty() => {
                Ok(self.rule(key, text.trim().to_owned(), true))
            }
            _ => Err(self.shape(key, "a list of hosts")),
        };
        self.list(key, value)?.iter().map(text).collect()
    }

    fn allowed_hosts(&mut self, key: &str, value: &Value) -> Result<(), ImportError> {
        for rule in self.hosts(key, value)? {
            let note = match network::allowed(&rule.text) {
                _ if rule.text.eq_ignore_ascii_case("localhost") => {
                    "network.host-ports allows the host's own servers, port by port".to_owned()
                }
                Err(error) => error.remedy,
                Ok(_) => {
                    self.rules.allow_hosts.push(rule.clone());
                    "on ports 80 and 443, where srt allowed every port; HOST:22 in network.allow adds another".to_owned()
                }
            };
            self.findings.push(rule.finding(Kind::Narrower, note));
        }
        Ok(())
    }

    fn denied_hosts(&mut self, key: &str, value: &Value) -> Result<(), ImportError> {
        for rule in self.hosts(key, value)? {
            if network::denied(&rule.text).is_err() {
                return Err(self.shape(key, "a list of hosts that rules can name"));
            }
            self.findings.push(rule.finding(Kind::Kept, "network.deny"));
            self.rules.deny_hosts.push(rule);
        }
        Ok(())
    }

    fn credentials(&mut self, section: &Map<String, Value>) -> Result<(), ImportError> {
        for (key, value) in section {
            let full = format!("credentials.{key}");
            match key.as_str() {
                "files" => {
                    for entry in self.list(&full, value)? {
                        let text = self.field(&full, entry, "path")?;
                        let rule = self.rule(&full, text.to_owned(), false);
                        self.masked(entry, &rule);
                        self.rules.deny_read.push(rule);
                    }
                }
                "envVars" => {
                    for entry in self.list(&full, value)? {
                        let name = self.field(&full, entry, "name")?;
                        if !is_env_name(name) {
                            return Err(self.shape(&full, "the name of a variable"));
                        }
                        let rule = self.rule(&full, name.to_owned(), true);
                        self.masked(entry, &rule);
                        self.rules.deny_env.push(rule);
                    }
                }
                "awsPairs" | "sigv4" | "allowPlaintextInject" => {
                    self.each(
                        Kind::NoEqual,
                        &full,
                        value,
                        "secrets stay outside the cage; with network.secrets and network.aws the egress proxy adds them to requests",
                    );
                }
                _ => self.unknown(&full, value),
            }
        }
        Ok(())
    }

    /// A masked secret is one that a stand-in goes in for; a cage gets neither.
    fn masked(&mut self, entry: &Value, rule: &Rule) {
        if entry.get("mode").and_then(Value::as_str) != Some("deny") {
            self.findings.push(rule.finding(
                Kind::NoEqual,
                "a masked secret has no equivalent: it stays outside the cage, as with mode \"deny\"",
            ));
        }
    }

    /// Rules for Claude Code's own tools, which its sandbox takes over.
    fn permissions(&mut self, section: &Map<String, Value>) -> Result<(), ImportError> {
        for (key, value) in section {
            let full = format!("permissions.{key}");
            if key != "deny" {
                self.each(
                    Kind::NoEqual,
                    &full,
                    value,
                    "about Claude Code's prompts; not imported",
                );
                continue;
            }
            for entry in self.list(&full, value)? {
                let text = entry
                    .as_str()
                    .ok_or_else(|| self.shape(&full, "a list of strings"))?;
                let path = |tool: &str| {
                    text.strip_prefix(tool)?
                        .strip_prefix('(')?
                        .strip_suffix(')')
                };
                let (written, reads) = match (path("Read"), path("Edit").or_else(|| path("Write")))
                {
                    (Some(written), _) => (written, true),
                    (None, Some(written)) => (written, false),
                    (None, None) => {
                        let note = "about Claude Code's tools, not about its sandbox";
                        self.push(
                            Kind::NoEqual,
                            full.clone(),
                            Some(format!("\"{text}\"")),
                            note,
                        );
                        continue;
                    }
                };
                // There one slash begins at the settings, two at the root.
                let path = match written.strip_prefix('/') {
                    Some(rest) if rest.starts_with('/') => rest.to_owned(),
                    Some(rest) => format!("./{rest}"),
                    None => written.to_owned(),
                };
                if path.is_empty() {
                    return Err(self.shape(&full, "a rule with a path"));
                }
                let rule = self.rule(&full, path, false);
                if reads {
                    self.rules.deny_read.push(rule);
                } else {
                    self.rules.deny_write.push(rule);
                }
            }
        }
        Ok(())
    }

    fn rule(&self, key: &str, text: String, literal: bool) -> Rule {
        Rule {
            key: format!("{}{key}", self.prefix),
            text,
            literal,
            from: self.from.clone(),
        }
    }

    /// A list of paths: texts, or `{ "path": ..., "literal": true }`.
    fn paths(&self, key: &str, value: &Value) -> Result<Vec<Rule>, ImportError> {
        self.list(key, value)?
            .iter()
            .map(|entry| match entry {
                Value::String(text) if !text.is_empty() => Ok(self.rule(key, text.clone(), false)),
                Value::Object(fields) if fields.get("literal") == Some(&Value::Bool(true)) => {
                    let text = self.field(key, entry, "path")?;
                    Ok(self.rule(key, text.to_owned(), true))
                }
                _ => Err(self.shape(key, "a list of paths")),
            })
            .collect()
    }

    fn list<'v>(&self, key: &str, value: &'v Value) -> Result<&'v Vec<Value>, ImportError> {
        value.as_array().ok_or_else(|| self.shape(key, "a list"))
    }

    fn field<'v>(
        &self,
        key: &str,
        entry: &'v Value,
        field: &'static str,
    ) -> Result<&'v str, ImportError> {
        let text = entry
            .get(field)
            .and_then(Value::as_str)
            .filter(|text| !text.is_empty());
        text.ok_or_else(|| self.shape(key, "a list whose entries have a path or a name"))
    }

    fn shape(&self, key: &str, wanted: &'static str) -> ImportError {
        ImportError::Shape {
            key: format!("{}{key}", self.prefix),
            wanted,
        }
    }

    fn push(&mut self, kind: Kind, subject: String, value: Option<String>, note: &str) {
        self.findings.push(Finding {
            kind,
            subject,
            value,
            note: note.to_owned(),
        });
    }

    fn tell(&mut self, kind: Kind, key: &str, value: Option<&Value>, note: &str) {
        self.push(
            kind,
            format!("{}{key}", self.prefix),
            value.map(short),
            note,
        );
    }

    /// One finding for each entry of a list, or one for all of it; what is switched off or empty asks for nothing.
    fn each(&mut self, kind: Kind, key: &str, value: &Value, note: &str) {
        match value {
            Value::Null | Value::Bool(false) => {}
            Value::Array(entries) => {
                for entry in entries {
                    self.tell(kind, key, Some(entry), note);
                }
            }
            Value::Object(fields) if fields.is_empty() => {}
            _ => self.tell(kind, key, Some(value), note),
        }
    }

    fn unknown(&mut self, key: &str, value: &Value) {
        self.tell(
            Kind::Unknown,
            key,
            Some(value),
            "unknown to this version of Ironcage",
        );
    }
}

fn object<'v>(value: &'v Value, key: &str) -> Result<&'v Map<String, Value>, ImportError> {
    value.as_object().ok_or_else(|| ImportError::Shape {
        key: key.to_owned(),
        wanted: "an object",
    })
}

/// A value on one line, cut where it is long.
fn short(value: &Value) -> String {
    const LONGEST: usize = 120;
    let text = value.to_string();
    match text.char_indices().nth(LONGEST) {
        Some((end, _)) => format!("{}...", text.get(..end).unwrap_or_default()),
        None => text,
    }
}
