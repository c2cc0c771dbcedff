//! Keys that stay outside the cage, in an ssh-agent or a gpg-agent: which the cage may use, and
//! what for.
//!
//! `KEY@HOST` logs in to a host with a key of the ssh-agent; `ssh:KEY` and `gpg:KEY` sign commits.

use crate::narrow::Dropped;
use crate::network::{InvalidHostRule, allowed};
use crate::{PolicyError, Sourced};
use ironcage_model::{Destination, HostRule, Ports, Printable};
use serde::Serialize;
use std::fmt;
use std::path::PathBuf;

/// The port of SSH servers.
const SSH_PORT: u16 = 22;
/// Longest name of a key.
const LONGEST: usize = 512;

/// How a key of the ssh-agent is named.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum SshKeyName {
    /// The file of its public key, or of the private key with the public one beside it.
    File(PathBuf),
    /// Its fingerprint, as `ssh-add -l` shows it.
    Fingerprint(String),
    /// Its comment, as `ssh-add -l` shows it.
    Comment(String),
}

impl fmt::Display for SshKeyName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SshKeyName::File(path) => Printable::new(path).fmt(f),
            SshKeyName::Fingerprint(text) | SshKeyName::Comment(text) => {
                Printable::new(text).fmt(f)
            }
        }
    }
}

/// A key with which the cage logs in to hosts.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct SshKeyRule {
    /// The key.
    pub key: SshKeyName,
    /// The hosts, each with one port.
    #[serde(serialize_with = "hosts_as_text")]
    pub hosts: Vec<HostRule>,
}

fn hosts_as_text<S: serde::Serializer>(hosts: &[HostRule], s: S) -> Result<S::Ok, S::Error> {
    s.collect_seq(hosts.iter().map(ToString::to_string))
}

impl fmt::Display for SshKeyRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let hosts: Vec<String> = self.hosts.iter().map(ToString::to_string).collect();
        write!(f, "{}@{}", self.key, hosts.join(","))
    }
}

/// A key with which the cage signs commits.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum SignKeyRule {
    /// A key of the ssh-agent.
    Ssh(SshKeyName),
    /// A key of the gpg-agent, as `gpg --local-user` names it.
    Gpg(String),
}

impl fmt::Display for SignKeyRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SignKeyRule::Ssh(key) => write!(f, "ssh:{key}"),
            SignKeyRule::Gpg(key) => write!(f, "gpg:{}", Printable::new(key)),
        }
    }
}

fn wrong(text: &str, remedy: &str) -> InvalidHostRule {
    InvalidHostRule {
        text: text.to_owned(),
        remedy: remedy.to_owned(),
    }
}

/// Turns the text of a path into a path.
pub(crate) type PathReader<'a> = dyn Fn(&str) -> PathBuf + 'a;

/// A key of the ssh-agent: what has a slash is a file, what starts with `SHA256:` a fingerprint,
/// anything else a comment.
fn ssh_key_name(text: &str, path: &PathReader<'_>) -> Result<SshKeyName, InvalidHostRule> {
    if text.is_empty() || text.len() > LONGEST || text.contains(char::is_control) {
        return Err(wrong(
            text,
            "expected a public key file such as ~/.ssh/id_ed25519.pub, a fingerprint SHA256:..., or a comment as `ssh-add -l` shows it",
        ));
    }
    Ok(match text {
        _ if text.starts_with("SHA256:") => {
            SshKeyName::Fingerprint(text.trim_end_matches('=').to_owned())
        }
        _ if text.contains('/') => SshKeyName::File(path(text)),
        _ => SshKeyName::Comment(text.to_owned()),
    })
}

/// A host to log in to: one name or address, and one port.
fn login_host(text: &str) -> Result<HostRule, InvalidHostRule> {
    let mut rule = match text.strip_prefix("127.0.0.1") {
        // A service of this machine has one name here.
        Some(port) if port.is_empty() || port.starts_with(':') => {
            allowed(&format!("localhost{port}"))?
        }
        _ => allowed(text)?,
    };
    match (&rule.to, rule.ports) {
        (Destination::Name(_), Ports::One(_)) => Ok(rule),
        (Destination::Name(_), Ports::Web) => {
            rule.ports = Ports::One(SSH_PORT);
            Ok(rule)
        }
        _ => Err(wrong(
            text,
            "expected one host name, or NAME:PORT: the host proves itself by its key in your known_hosts",
        )),
    }
}

/// A key and the hosts that it logs in to: `KEY@HOST[,HOST]`.
pub(crate) fn ssh_key(text: &str, path: &PathReader<'_>) -> Result<SshKeyRule, InvalidHostRule> {
    // A comment may have an @ of its own; hosts do not.
    let (key, hosts) = text.rsplit_once('@').ok_or_else(|| {
        wrong(
            text,
            "expected KEY@HOST, such as ~/.ssh/id_ed25519.pub@github.com",
        )
    })?;
    let hosts: Result<Vec<HostRule>, _> = hosts.split(',').map(login_host).collect();
    Ok(SshKeyRule {
        key: ssh_key_name(key, path)?,
        hosts: hosts?,
    })
}

/// A key that signs commits: `ssh:KEY` or `gpg:KEY`.
pub(crate) fn sign_key(text: &str, path: &PathReader<'_>) -> Result<SignKeyRule, InvalidHostRule> {
    let remedy = "expected ssh:KEY, such as ssh:~/.ssh/id_ed25519.pub, or gpg:KEY, such as gpg:you@example.com";
    match text.split_once(':') {
        Some(("ssh", key)) => Ok(SignKeyRule::Ssh(ssh_key_name(key, path)?)),
        // What starts with a hyphen is an option to gpg.
        Some(("gpg", key))
            if !key.is_empty()
                && key.len() <= LONGEST
                && !key.starts_with('-')
                && !key.contains(char::is_control) =>
        {
            Ok(SignKeyRule::Gpg(key.to_owned()))
        }
        _ => Err(wrong(text, remedy)),
    }
}

/// What one source says of keys.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct SigningKeysFragment {
    pub(crate) ssh: Vec<Sourced<SshKeyRule>>,
    pub(crate) sign: Vec<Sourced<SignKeyRule>>,
    pub(crate) confirm: Option<Sourced<bool>>,
}

/// The keys of a cage, fully merged.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct SigningKeys {
    /// Keys that log in to hosts.
    pub ssh: Vec<Sourced<SshKeyRule>>,
    /// Keys that sign commits.
    pub sign: Vec<Sourced<SignKeyRule>>,
    /// Whether a person is asked before each use.
    pub confirm: Sourced<bool>,
}

impl SigningKeys {
    pub(crate) fn from_defaults(fragment: SigningKeysFragment) -> Result<Self, PolicyError> {
        Ok(SigningKeys {
            ssh: fragment.ssh,
            sign: fragment.sign,
            confirm: fragment
                .confirm
                .ok_or(PolicyError::Incomplete("keys.confirm"))?,
        })
    }

    /// Puts a fragment on top.
    pub(crate) fn apply(&mut self, fragment: SigningKeysFragment) {
        for rule in fragment.ssh {
            if self.ssh.iter().all(|known| known.value != rule.value) {
                self.ssh.push(rule);
            }
        }
        for rule in fragment.sign {
            if self.sign.iter().all(|known| known.value != rule.value) {
                self.sign.push(rule);
            }
        }
        if let Some(confirm) = fragment.confirm {
            self.confirm = confirm;
        }
    }

    /// Whether the cage has a key at all.
    pub fn is_given(&self) -> bool {
        !self.ssh.is_empty() || !self.sign.is_empty()
    }

    /// Takes every key away.
    pub(crate) fn clear(&mut self) {
        self.ssh.clear();
        self.sign.clear();
    }

    pub(crate) fn is_no_wider(&self, other: &SigningKeys) -> bool {
        let ssh =
            (self.ssh.iter()).all(|own| other.ssh.iter().any(|known| known.value == own.value));
        let sign =
            (self.sign.iter()).all(|own| other.sign.iter().any(|known| known.value == own.value));
        // Nobody is asked about a key that is not there.
        let confirm = !self.is_given() || self.confirm.value >= other.confirm.value;
        ssh && sign && confirm
    }
}

impl SigningKeysFragment {
    /// Takes away what an untrusted file cannot set.
    pub(crate) fn narrow(&mut self, base: &SigningKeys, dropped: &mut Dropped) {
        dropped.keep("keys.ssh", &mut self.ssh, &base.ssh, ToString::to_string);
        dropped.keep("keys.sign", &mut self.sign, &base.sign, ToString::to_string);
        dropped.keep_if(
            "keys.confirm",
            &mut self.confirm,
            |confirm| *confirm >= base.confirm.value,
            bool::to_string,
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path(text: &str) -> PathBuf {
        PathBuf::from("/base").join(text)
    }

    #[test]
    fn keys_are_named_by_file_fingerprint_or_comment() {
        let file = ssh_key("/home/ann/.ssh/id.pub@github.com", &path).unwrap();
        assert_eq!(file.key, SshKeyName::File("/home/ann/.ssh/id.pub".into()));
        assert_eq!(file.to_string(), "/home/ann/.ssh/id.pub@github.com:22");
        let relative = ssh_key("keys/id.pub@github.com", &path).unwrap();
        assert_eq!(relative.key, SshKeyName::File("/base/keys/id.pub".into()));
        let comment = ssh_key("ann@laptop@a.example:2222,b.example", &path).unwrap();
        assert_eq!(comment.key, SshKeyName::Comment("ann@laptop".into()));
        assert_eq!(comment.hosts.len(), 2);
        let print = sign_key("ssh:SHA256:abc/def=", &path).unwrap();
        assert_eq!(
            print,
            SignKeyRule::Ssh(SshKeyName::Fingerprint("SHA256:abc/def".into()))
        );
        assert_eq!(
            sign_key("gpg:ann@example.org", &path).unwrap(),
            SignKeyRule::Gpg("ann@example.org".into())
        );
    }

    #[test]
    fn what_is_not_one_key_and_one_host_is_refused() {
        for text in [
            "",
            "key",
            "@github.com",
            "key@",
            "key@*.example",
            "key@*",
            "key@10.0.0.0/8:22",
            "key@a.example:*",
            "k\u{1b}ey@a.example",
        ] {
            assert!(ssh_key(text, &path).is_err(), "{text:?}");
        }
        for text in [
            "",
            "ssh:",
            "gpg:",
            "gpg:--export-secret-keys",
            "key",
            "x:key",
            "gpg:a\nb",
        ] {
            assert!(sign_key(text, &path).is_err(), "{text:?}");
        }
    }
}
