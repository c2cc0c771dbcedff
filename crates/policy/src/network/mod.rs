//! The network part of a policy: which hosts the cage can reach, and which never.
//!
//! An empty list allows nothing. `deny` wins over `allow`, whatever their sources.

mod limits;
mod request;
mod rule;
mod secret;
mod upstream;

pub use limits::{InvalidNetworkLimit, NetworkLimit, NetworkLimitName, network_limits};
pub use request::requests;
pub(crate) use request::requests_to;
pub use rule::{InvalidHostRule, allowed, denied, host_name};
pub use secret::{aws, secret};
pub(crate) use secret::{
    aws_credentials, aws_source, model_host, proved_host, secret_host, secret_name, secret_place,
    secret_source,
};

pub use upstream::{UpstreamChoice, UpstreamRule, no_proxy, upstream};

pub(crate) use limits::is_no_wider as limits_within;

use crate::narrow::Dropped;
use crate::{PolicyError, Sourced};
use ironcage_model::{
    AwsRule, HostName, HostRule, HttpRule, LoginRule, Publish, SecretRule, SecretSource,
};
use schemars::JsonSchema;
use serde::Serialize;
use std::collections::BTreeSet;
use std::net::IpAddr;
use std::path::PathBuf;
use std::str::FromStr;

/// How much of the network a cage has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum NetworkMode {
    /// Nothing, whatever is allowed below this word.
    Off,
    Listed,
    /// What is listed, and what is allowed while the cage runs.
    Live,
    /// Every host of the internet; special addresses still only where they are listed.
    Open,
}

impl NetworkMode {
    /// Every mode, the narrowest first.
    pub const ALL: [NetworkMode; 4] = [
        NetworkMode::Off,
        NetworkMode::Listed,
        NetworkMode::Live,
        NetworkMode::Open,
    ];

    /// As it is written.
    pub fn name(self) -> &'static str {
        match self {
            NetworkMode::Off => "off",
            NetworkMode::Listed => "listed",
            NetworkMode::Live => "live",
            NetworkMode::Open => "open",
        }
    }
}

/// Text that is not a network mode.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("unknown network mode `{}`; expected off, listed, live or open", .0.escape_debug())]
pub struct InvalidNetworkMode(pub String);

impl FromStr for NetworkMode {
    type Err = InvalidNetworkMode;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        NetworkMode::ALL
            .into_iter()
            .find(|mode| mode.name() == text)
            .ok_or_else(|| InvalidNetworkMode(text.to_owned()))
    }
}

/// A name with an address of its own, which no resolver is asked for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Resolve {
    pub name: HostName,
    pub address: IpAddr,
}

impl FromStr for Resolve {
    type Err = InvalidHostRule;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let wrong = || InvalidHostRule {
            text: text.to_owned(),
            remedy: "expected NAME=ADDRESS, such as db.example=192.0.2.1".to_owned(),
        };
        let (name, address) = text.split_once('=').ok_or_else(wrong)?;
        let address = address.trim_start_matches('[').trim_end_matches(']');
        Ok(Resolve {
            name: host_name(name)?,
            address: address.parse().map_err(|_| wrong())?,
        })
    }
}

/// What one source says of the network.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct NetworkFragment {
    pub(crate) mode: Option<Sourced<NetworkMode>>,
    pub(crate) allow: Vec<Sourced<HostRule>>,
    pub(crate) deny: Vec<Sourced<HostRule>>,
    pub(crate) http: Vec<Sourced<HttpRule>>,
    pub(crate) models: Vec<Sourced<HostRule>>,
    pub(crate) secrets: Vec<Sourced<SecretRule>>,
    pub(crate) aws: Option<Sourced<AwsRule>>,
    pub(crate) logins: Vec<Sourced<LoginRule>>,
    pub(crate) bundles: Vec<Sourced<String>>,
    pub(crate) host_ports: Vec<Sourced<u16>>,
    pub(crate) resolve: Vec<Sourced<Resolve>>,
    pub(crate) never_open: Option<Sourced<bool>>,
    pub(crate) sockets: Vec<Sourced<PathBuf>>,
    pub(crate) publish: Vec<Sourced<Publish>>,
    pub(crate) limits: Vec<Sourced<NetworkLimit>>,
    pub(crate) upstream: Option<Sourced<UpstreamRule>>,
    pub(crate) authorities: Vec<Sourced<PathBuf>>,
}

/// The network that a policy gives, fully merged.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Network {
    /// Whether every host of the internet is allowed.
    pub open: Sourced<bool>,
    /// Whether there is an egress proxy even without listed hosts, for rules that the user adds while
    /// the cage runs.
    pub live: Sourced<bool>,
    /// Whether an open network is an error.
    pub never_open: Sourced<bool>,
    pub allow: Vec<Sourced<HostRule>>,
    /// Hosts that are denied, even where they are allowed.
    pub deny: Vec<Sourced<HostRule>>,
    /// Requests that are allowed. A host that one of them is about gets no others.
    pub http: Vec<Sourced<HttpRule>>,
    /// Hosts of the agent's model, whose answers are read where they are allowed.
    pub models: Vec<Sourced<HostRule>>,
    /// Secrets that the cage has placeholders of.
    pub secrets: Vec<Sourced<SecretRule>>,
    /// AWS keys with which the egress proxy signs requests.
    pub aws: Option<Sourced<AwsRule>>,
    /// Logins that the cage has placeholders of.
    pub logins: Vec<Sourced<LoginRule>>,
    /// Bundles of allowed hosts, by name.
    pub bundles: Vec<Sourced<String>>,
    /// Ports of the host's own loopback.
    pub host_ports: Vec<Sourced<u16>>,
    /// Names with an address of their own.
    pub resolve: Vec<Sourced<Resolve>>,
    /// Unix sockets of the host's that are reached from inside.
    pub sockets: Vec<Sourced<PathBuf>>,
    /// Ports inside that are reached at the host's loopback.
    pub publish: Vec<Sourced<Publish>>,
    /// Bounds on what goes out.
    pub limits: Vec<Sourced<NetworkLimit>>,
    /// The proxy through which connections go out; `null` for that of the caller's environment.
    pub upstream: Option<Sourced<UpstreamRule>>,
    /// Files of certificate authorities that are trusted besides the system's.
    pub authorities: Vec<Sourced<PathBuf>>,
}

impl Network {
    pub(crate) fn from_defaults(fragment: NetworkFragment) -> Result<Self, PolicyError> {
        let incomplete = PolicyError::Incomplete;
        let mode = fragment.mode.ok_or(incomplete("network.mode"))?;
        Ok(Network {
            live: Sourced::new(mode.value == NetworkMode::Live, mode.origin.clone()),
            open: Sourced::new(mode.value == NetworkMode::Open, mode.origin),
            never_open: fragment
                .never_open
                .ok_or(incomplete("network.never-open"))?,
            allow: fragment.allow,
            deny: fragment.deny,
            http: fragment.http,
            models: fragment.models,
            secrets: fragment.secrets,
            aws: fragment.aws,
            logins: fragment.logins,
            bundles: fragment.bundles,
            host_ports: fragment.host_ports,
            resolve: fragment.resolve,
            sockets: fragment.sockets,
            publish: fragment.publish,
            limits: fragment.limits,
            upstream: fragment.upstream,
            authorities: fragment.authorities,
        })
    }

    /// Whether the cage has placeholders of something.
    pub fn has_placeholders(&self) -> bool {
        !(self.secrets.is_empty() && self.logins.is_empty()) || self.aws.is_some()
    }

    /// Whether a variable of the caller's holds a secret, which no other process reads.
    pub fn is_secret_variable(&self, name: &std::ffi::OsStr) -> bool {
        let mut secrets = self.secrets.iter().map(|secret| &secret.value.from);
        secrets.any(|from| matches!(from, SecretSource::Env(own) if name == own.as_str()))
            || self.aws.is_some() && AwsRule::VARIABLES.iter().any(|known| name == *known)
            || (self.upstream.iter()).any(|rule| {
                matches!(&rule.value.credentials, Some(SecretSource::Env(own)) if name == own.as_str())
            })
    }

    /// Whether anything can be reached at all.
    pub fn is_given(&self) -> bool {
        self.open.value
            || self.live.value
            || !(self.publish.is_empty() && self.sockets.is_empty())
            || !(self.allow.is_empty()
                && self.http.is_empty()
                && self.bundles.is_empty()
                && self.host_ports.is_empty())
    }

    /// Puts a fragment on top. `off` takes away what was allowed below it.
    pub(crate) fn apply(&mut self, fragment: NetworkFragment) {
        if let Some(mode) = fragment.mode {
            if mode.value == NetworkMode::Off {
                self.allow.clear();
                self.http.clear();
                self.bundles.clear();
                self.host_ports.clear();
                self.publish.clear();
                self.sockets.clear();
            }
            self.live = Sourced::new(mode.value == NetworkMode::Live, mode.origin.clone());
            self.open = Sourced::new(mode.value == NetworkMode::Open, mode.origin);
        }
        // Once said it stays: what a profile never opens, no flag opens.
        if let Some(never) = fragment.never_open
            && never.value
            && !self.never_open.value
        {
            self.never_open = never;
        }
        append(&mut self.allow, fragment.allow);
        append(&mut self.deny, fragment.deny);
        append(&mut self.http, fragment.http);
        append(&mut self.models, fragment.models);
        self.secrets.retain(|known| {
            let mut said = fragment.secrets.iter();
            said.all(|rule| rule.value.name != known.value.name)
        });
        self.secrets.extend(fragment.secrets);
        if fragment.aws.is_some() {
            self.aws = fragment.aws;
        }
        self.logins.retain(|known| {
            let mut said = fragment.logins.iter();
            said.all(|rule| rule.value.name != known.value.name)
        });
        self.logins.extend(fragment.logins);
        append(&mut self.bundles, fragment.bundles);
        append(&mut self.host_ports, fragment.host_ports);
        append(&mut self.publish, fragment.publish);
        append(&mut self.sockets, fragment.sockets);
        // Later words win.
        self.resolve.retain(|known| {
            let mut said = fragment.resolve.iter();
            said.all(|rule| rule.value.name != known.value.name)
        });
        self.resolve.extend(fragment.resolve);
        limits::apply(&mut self.limits, fragment.limits);
        if fragment.upstream.is_some() {
            self.upstream = fragment.upstream;
        }
        append(&mut self.authorities, fragment.authorities);
    }

    /// Whether it opens nothing that `other` does not.
    pub(crate) fn is_no_wider(&self, other: &Network) -> bool {
        let all_in = |inner: &[Sourced<HostRule>], outer: &[Sourced<HostRule>]| {
            inner
                .iter()
                .all(|a| outer.iter().any(|b| a.value == b.value))
        };
        let text_in = |inner: &[Sourced<String>], outer: &[Sourced<String>]| {
            inner
                .iter()
                .all(|a| outer.iter().any(|b| a.value == b.value))
        };
        let port = |asked: &Sourced<u16>| {
            other
                .host_ports
                .iter()
                .any(|known| known.value == asked.value)
        };
        self.open.value <= other.open.value
            && self.live.value <= other.live.value
            && self.never_open.value >= other.never_open.value
            && all_in(&self.allow, &other.allow)
            && all_in(&other.deny, &self.deny)
            && all_in(&self.models, &other.models)
            && text_in(&self.bundles, &other.bundles)
            && self.host_ports.iter().all(port)
            && (self.sockets.iter()).all(|a| other.sockets.iter().any(|b| a.value == b.value))
            && (self.publish.iter()).all(|a| other.publish.iter().any(|b| a.value == b.value))
            // More of them can be wider, and fewer too: without any, a host gets every request.
            && self.secrets.len() == other.secrets.len()
            && (self.secrets.iter()).all(|a| other.secrets.iter().any(|b| a.value == b.value))
            && self.aws.as_ref().map(|rule| &rule.value) == other.aws.as_ref().map(|rule| &rule.value)
            && self.logins.len() == other.logins.len()
            && (self.logins.iter()).all(|a| other.logins.iter().any(|b| a.value == b.value))
            && self.http.len() == other.http.len()
            && (self.http.iter()).all(|a| other.http.iter().any(|b| a.value == b.value))
            && self.resolve.len() == other.resolve.len()
            && (self.resolve.iter().zip(&other.resolve)).all(|(a, b)| a.value == b.value)
            && limits::is_no_wider(&self.limits, &other.limits)
            && self.leaves_as(other)
    }

    /// Whether connections go out the same way, to servers that are known by the same authorities.
    pub(crate) fn leaves_as(&self, other: &Network) -> bool {
        let value =
            |rule: &Option<Sourced<UpstreamRule>>| rule.as_ref().map(|rule| rule.value.clone());
        value(&self.upstream) == value(&other.upstream)
            && self.authorities.len() == other.authorities.len()
            && (self.authorities.iter().zip(&other.authorities)).all(|(a, b)| a.value == b.value)
    }
}

fn append<T: PartialEq>(list: &mut Vec<Sourced<T>>, values: Vec<Sourced<T>>) {
    for value in values {
        if list.iter().all(|known| known.value != value.value) {
            list.push(value);
        }
    }
}

/// Describes a secret to the user who decides whether to trust it.
pub(crate) fn in_words(secret: &SecretRule) -> String {
    let hosts = secret.host_texts();
    format!(
        "{} from {} for {}",
        secret.name,
        source_in_words(&secret.from),
        hosts.join(", ")
    )
}

fn source_in_words(source: &SecretSource) -> String {
    let runs = match source {
        SecretSource::Command(_) => ", WHICH RUNS OUTSIDE THE CAGE AT EACH START,",
        SecretSource::Env(_) | SecretSource::File(_) | SecretSource::Keyring { .. } => "",
    };
    let source = source.to_string();
    format!("{}{runs}", ironcage_model::Printable::new(&source))
}

/// The same for keys of Amazon's: who gets signatures and the session token.
fn aws_in_words(rule: &AwsRule) -> String {
    let mut text = format!(
        "from {} for {}",
        source_in_words(&rule.from),
        texts(&rule.hosts)
    );
    if !rule.credentials.is_empty() {
        text.push_str(", and for CALLS THAT HAND OUT CREDENTIALS: ");
        text.push_str(&rule.credentials.join(", "));
    }
    ironcage_model::Printable::new(&text).to_string()
}

/// The same for a login: who gets the access token, with which requests, and who gets the refresh
/// token.
fn login_in_words(login: &LoginRule) -> String {
    let requests: BTreeSet<String> = login.requests.iter().map(request_in_words).collect();
    let requests: Vec<String> = requests.into_iter().collect();
    let file = match &login.file {
        Some(file) => format!(" from {}", ironcage_model::Printable::new(file)),
        None => String::new(),
    };
    format!(
        "{}{file} for {}, renewed at {}, with {}",
        login.name,
        texts(&login.hosts),
        login.token_server,
        requests.join("; ")
    )
}

fn request_in_words(request: &HttpRule) -> String {
    match request.methods.is_empty() {
        true => request.path.to_string(),
        false => format!("{} {}", request.methods.join(","), request.path),
    }
}

fn texts(hosts: &[HostRule]) -> String {
    let hosts: Vec<String> = hosts.iter().map(HostRule::to_string).collect();
    hosts.join(", ")
}

/// Takes out of an untrusted fragment what would widen `base`. Denying is always heard.
pub(crate) fn narrow(base: &Network, fragment: &mut NetworkFragment, dropped: &mut Dropped) {
    dropped.keep_if(
        "network.mode",
        &mut fragment.mode,
        |mode| match mode {
            NetworkMode::Open => base.open.value,
            NetworkMode::Live => base.live.value,
            NetworkMode::Listed | NetworkMode::Off => true,
        },
        |mode| mode.name().to_owned(),
    );
    dropped.keep(
        "network.allow",
        &mut fragment.allow,
        &base.allow,
        HostRule::to_string,
    );
    dropped.keep(
        "network.http",
        &mut fragment.http,
        &base.http,
        HttpRule::to_string,
    );
    // Whose words prepare leases is the user's to say.
    dropped.keep(
        "network.models",
        &mut fragment.models,
        &base.models,
        HostRule::to_string,
    );
    dropped.keep(
        "network.secrets",
        &mut fragment.secrets,
        &base.secrets,
        in_words,
    );
    dropped.keep_if(
        "network.aws",
        &mut fragment.aws,
        |rule| base.aws.as_ref().is_some_and(|known| known.value == *rule),
        aws_in_words,
    );
    dropped.keep(
        "network.logins",
        &mut fragment.logins,
        &base.logins,
        login_in_words,
    );
    dropped.keep(
        "network.bundles",
        &mut fragment.bundles,
        &base.bundles,
        String::clone,
    );
    dropped.keep(
        "network.host-ports",
        &mut fragment.host_ports,
        &base.host_ports,
        u16::to_string,
    );
    dropped.keep(
        "network.sockets",
        &mut fragment.sockets,
        &base.sockets,
        |path| ironcage_model::Printable::new(path).to_string(),
    );
    dropped.keep(
        "network.publish",
        &mut fragment.publish,
        &base.publish,
        Publish::to_string,
    );
    limits::narrow(&base.limits, &mut fragment.limits, dropped);
    // Who carries the connections, and by whom servers are known, is the user's word.
    dropped.keep_if(
        "network.upstream",
        &mut fragment.upstream,
        |rule| (base.upstream.as_ref()).is_some_and(|known| known.value == *rule),
        UpstreamRule::in_words,
    );
    dropped.keep(
        "network.authorities",
        &mut fragment.authorities,
        &base.authorities,
        |path| ironcage_model::Printable::new(path).to_string(),
    );
    // Where a name leads is the user's word, never the workspace's.
    for rule in std::mem::take(&mut fragment.resolve) {
        if base.resolve.iter().all(|known| known.value != rule.value) {
            let shown = format!("{} is {}", rule.value.name, rule.value.address);
            dropped.note("network.resolve", shown, &rule);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_that_runs_a_command_says_so_to_who_is_to_trust_it() {
        let secret = |from| SecretRule {
            name: "KEY".into(),
            from,
            hosts: vec!["evil.test".parse().unwrap()],
            leased: false,
            places: Vec::new(),
        };
        let shown = in_words(&secret(SecretSource::Command("touch ~/ran".into())));
        for part in ["KEY", "touch ~/ran", "OUTSIDE THE CAGE", "evil.test"] {
            assert!(shown.contains(part), "{part}: {shown}");
        }
        let aws = AwsRule {
            from: SecretSource::Command("touch ~/ran".into()),
            hosts: vec!["evil.test".parse().unwrap()],
            credentials: vec!["sts".into()],
        };
        let shown = aws_in_words(&aws);
        for part in [
            "touch ~/ran",
            "OUTSIDE THE CAGE",
            "evil.test",
            "HAND OUT CREDENTIALS: sts",
        ] {
            assert!(shown.contains(part), "{part}: {shown}");
        }
        let shown = in_words(&secret(SecretSource::Env("KEY".into())));
        assert!(
            shown.contains("env:KEY") && !shown.contains("OUTSIDE"),
            "{shown}"
        );
    }
}
