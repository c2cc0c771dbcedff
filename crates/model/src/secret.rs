//! Secrets that the egress proxy puts on requests: which, from where, for which hosts, and in which
//! place. Never their values.

use crate::network::{HOST_NAME, HostName, HostRule};
use crate::request::HttpRule;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

/// Text that is not the normal form of what it should name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct InvalidSecretText(&'static str);

impl fmt::Display for InvalidSecretText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "not {} in its normal form", self.0)
    }
}

impl std::error::Error for InvalidSecretText {}

/// Reads what [`fmt::Display`] printed, where a rule is handed to another program.
macro_rules! read_as_printed {
    ($type:ty) => {
        impl<'de> Deserialize<'de> for $type {
            fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                let text = <std::borrow::Cow<'de, str>>::deserialize(deserializer)?;
                text.parse().map_err(serde::de::Error::custom)
            }
        }
    };
}

read_as_printed!(SecretSource);
read_as_printed!(SecretPlace);
read_as_printed!(TokenServer);

/// Where a secret comes from when a cage starts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SecretSource {
    /// A variable of the caller's.
    Env(String),
    /// A file.
    File(PathBuf),
    /// What a command of the shell prints, outside of the cage.
    Command(String),
    /// An entry of the user's keyring.
    Keyring {
        /// The attribute `service` of the entry.
        service: String,
        /// Its attribute `username`.
        user: String,
    },
}

/// As a policy writes it.
impl fmt::Display for SecretSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SecretSource::Env(name) => write!(f, "env:{name}"),
            SecretSource::File(path) => write!(f, "file:{}", path.display()),
            SecretSource::Command(command) => write!(f, "command:{command}"),
            SecretSource::Keyring { service, user } => write!(f, "keyring:{service}/{user}"),
        }
    }
}

impl FromStr for SecretSource {
    type Err = InvalidSecretText;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        const INVALID: InvalidSecretText = InvalidSecretText("the source of a secret");
        let (kind, rest) = text.split_once(':').ok_or(INVALID)?;
        Ok(match kind {
            "env" => SecretSource::Env(rest.to_owned()),
            "file" => SecretSource::File(rest.into()),
            "command" => SecretSource::Command(rest.to_owned()),
            "keyring" => {
                let (service, user) = rest.split_once('/').ok_or(INVALID)?;
                SecretSource::Keyring {
                    service: service.to_owned(),
                    user: user.to_owned(),
                }
            }
            _ => return Err(INVALID),
        })
    }
}

impl Serialize for SecretSource {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// A place of a request in which a placeholder becomes the secret.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SecretPlace {
    /// A field of the head, by its name in lower case.
    Header(String),
    /// The password or the user of Basic credentials.
    Basic,
    /// A parameter of the query.
    Query(String),
    /// A field of a body in JSON or of a form: its name, or names with dots between.
    Body(String),
}

/// As a policy writes it.
impl fmt::Display for SecretPlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SecretPlace::Header(name) => write!(f, "header:{name}"),
            SecretPlace::Basic => f.write_str("basic"),
            SecretPlace::Query(name) => write!(f, "query:{name}"),
            SecretPlace::Body(name) => write!(f, "body:{name}"),
        }
    }
}

impl FromStr for SecretPlace {
    type Err = InvalidSecretText;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Ok(match text.split_once(':') {
            None if text == "basic" => SecretPlace::Basic,
            Some(("header", name)) => SecretPlace::Header(name.to_owned()),
            Some(("query", name)) => SecretPlace::Query(name.to_owned()),
            Some(("body", name)) => SecretPlace::Body(name.to_owned()),
            _ => return Err(InvalidSecretText("the place of a secret")),
        })
    }
}

impl Serialize for SecretPlace {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// A secret that the cage has a placeholder of.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SecretRule {
    /// The variable that holds the placeholder in the cage.
    pub name: String,
    /// Where the value comes from.
    pub from: SecretSource,
    /// For whom it is.
    pub hosts: Vec<HostRule>,
    /// In which places of a request.
    pub places: Vec<SecretPlace>,
    /// Whether the placeholder becomes the value only while there is a lease on it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub leased: bool,
}

impl SecretRule {
    /// Fields that carry credentials by custom: where a policy names no place, these and Basic
    /// credentials are it.
    pub const USUAL_HEADERS: [&str; 8] = [
        "authorization",
        "x-api-key",
        "api-key",
        "x-goog-api-key",
        "private-token",
        "x-auth-token",
        "x-vault-token",
        "x-amz-security-token",
    ];

    /// The places of a secret for which a policy names none.
    pub fn usual_places() -> Vec<SecretPlace> {
        let headers = Self::USUAL_HEADERS.iter();
        headers
            .map(|name| SecretPlace::Header((*name).to_owned()))
            .chain([SecretPlace::Basic])
            .collect()
    }

    /// Its hosts, as a policy writes them.
    pub fn host_texts(&self) -> Vec<String> {
        let text = |host: &HostRule| match host.to.is_name(HOST_NAME) {
            // Without TLS, which is said.
            true => format!("http://{host}"),
            false => host.to_string(),
        };
        self.hosts.iter().map(text).collect()
    }

    /// Whether it is for this port of this name.
    pub fn is_for(&self, name: &HostName, port: u16) -> bool {
        self.hosts.iter().any(|host| host.names(name, port))
    }
}

/// Keys of Amazon's with which requests to some hosts are signed anew.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AwsRule {
    /// Where the keys come from: the caller's variables, or what a file or command says in the
    /// form of `credential_process`.
    pub from: SecretSource,
    /// For whom they are.
    pub hosts: Vec<HostRule>,
    /// What hands out credentials and is signed all the same: a service, or `service:Action`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub credentials: Vec<String>,
}

impl AwsRule {
    /// The variables that hold the keys, by custom.
    pub const VARIABLES: [&str; 3] = [
        "AWS_ACCESS_KEY_ID",
        "AWS_SECRET_ACCESS_KEY",
        "AWS_SESSION_TOKEN",
    ];
}

/// Which agent's file a login is kept in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum LoginFormat {
    /// Claude Code's.
    Claude,
    /// Codex's.
    Codex,
}

/// Where a login's tokens are renewed: a server that proves its name by TLS.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TokenServer {
    /// The name.
    pub name: HostName,
    /// The port.
    pub port: u16,
    /// The path.
    pub path: String,
}

/// As a policy writes it.
impl fmt::Display for TokenServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.port {
            443 => write!(f, "https://{}{}", self.name, self.path),
            port => write!(f, "https://{}:{port}{}", self.name, self.path),
        }
    }
}

impl FromStr for TokenServer {
    type Err = InvalidSecretText;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        const INVALID: InvalidSecretText = InvalidSecretText("the address of a token server");
        let rest = text.strip_prefix("https://").ok_or(INVALID)?;
        let (host, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
        let (name, port) = match host.split_once(':') {
            Some((name, port)) => (name, port.parse().map_err(|_| INVALID)?),
            None => (host, 443),
        };
        Ok(TokenServer {
            name: HostName::from_ascii(name.as_bytes()).map_err(|_| INVALID)?,
            port,
            path: path.to_owned(),
        })
    }
}

impl Serialize for TokenServer {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// A login that the cage has a placeholder of.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LoginRule {
    /// Its name, which is the agent's.
    pub name: String,
    /// Which form its file has.
    pub format: LoginFormat,
    /// The user's own file; `None` is the usual one below their home.
    pub file: Option<PathBuf>,
    /// Who renews its tokens.
    pub token_server: TokenServer,
    /// By which name the agent is known there; no secret.
    pub client: String,
    /// Who gets the access token.
    pub hosts: Vec<HostRule>,
    /// With which requests: an account can do more than answer a model's questions.
    pub requests: Vec<HttpRule>,
}
