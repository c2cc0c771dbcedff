//! Keys outside that the cage may use: which keys of the user's agents the policy means, and what
//! each may do.
//!
//! The plan has public keys alone. The private ones are in the agents, which the supervisor's key
//! filter asks for one signature at a time.

use crate::identity::ssh;
use crate::key_agent_error::{GpgKeyError, KeyAgentError, PublicKeyError};
use crate::leases::PermissionRequestTerms;
use crate::network::Network;
use crate::plan::{Item, SupervisorFile, Variable, ViewOp};
use crate::request::{GpgAgentKey, KeyAgents, SshAgentKey};
use crate::seccomp::Instruction;
use crate::view::ViewPlan;
use crate::{PlanError, Request, bytes};
use ironcage_model::{
    Destination, GPG_AGENT_SOCKET, GPG_HOME, GPG_KEYRING, HostRule, Isolation, KeyAgent, Ports,
    SSH_AGENT_SOCKET, base64,
};
use ironcage_policy::{Policy, SignKeyRule, SshKeyName};
use serde::Serialize;
use std::path::{Path, PathBuf};

/// Settings of gpg in a cage. Its home is read-only: there is no lock to take and no trust to keep.
const GPG_SETTINGS: &str = "# Written by Ironcage: your public keys of this cage, and no others.\nno-autostart\nlock-never\nno-random-seed-file\ntrust-model always\n";

/// A host that a key logs in to.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct LoginHost {
    /// Its name, and its port where that is not 22.
    pub host: String,
    /// Its public keys, in base64, as the user knows them.
    pub keys: Vec<String>,
}

/// A key of the ssh-agent.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct PlannedSshKey {
    /// As the policy names it.
    pub name: String,
    /// Its type, such as `ssh-ed25519`.
    pub kind: String,
    /// The public key, in base64.
    pub public: String,
    /// Whether it signs commits.
    pub signs_commits: bool,
    /// The hosts that it logs in to.
    pub logins: Vec<LoginHost>,
}

/// The ssh-agent, and its keys.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct SshSigning {
    /// The agent's socket on the host.
    #[serde(serialize_with = "bytes::path")]
    pub agent: PathBuf,
    /// The keys.
    pub keys: Vec<Item<PlannedSshKey>>,
}

/// A key of the gpg-agent.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct PlannedGpgKey {
    /// As the policy names it.
    pub name: String,
    /// Its fingerprint.
    pub fingerprint: String,
    /// The keygrips of what signs in it.
    pub grips: Vec<String>,
    /// The public key, in base64.
    pub public: String,
}

/// The gpg-agent, and its keys.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct GpgSigning {
    /// The agent's restricted socket on the host.
    #[serde(serialize_with = "bytes::path")]
    pub agent: PathBuf,
    /// Its version, which gpg asks for.
    pub version: String,
    /// The keys.
    pub keys: Vec<Item<PlannedGpgKey>>,
}

/// Keys outside that the cage may use.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Signing {
    /// Keys of the ssh-agent.
    pub ssh: Option<SshSigning>,
    /// Keys of the gpg-agent.
    pub gpg: Option<GpgSigning>,
    /// How a person is asked before each use; `null` where nobody is.
    pub confirm: Option<PermissionRequestTerms>,
    /// The settings of git that sign commits; empty where no key does.
    #[serde(skip)]
    pub(crate) git: String,
    /// The system call filter of the process that reads the cage's requests.
    #[serde(skip)]
    pub filter: Vec<Instruction>,
}

/// Why a key cannot be used.
#[derive(Debug, Clone, thiserror::Error)]
pub enum KeyProblem {
    /// The agent does not answer.
    #[error(transparent)]
    NoAgent(#[from] KeyAgentError),
    /// The file of a public key cannot be read.
    #[error("cannot read its public key: {0}")]
    NoPublicKey(#[from] PublicKeyError),
    /// The agent has no such key.
    #[error("the ssh-agent does not have it")]
    NotInAgent,
    /// The agent has several keys of that name.
    #[error("the ssh-agent has several keys with this comment")]
    Ambiguous,
    /// gpg has no such key, or none that signs.
    #[error(transparent)]
    NoGpgKey(#[from] GpgKeyError),
    /// The user does not know the host.
    #[error("your known_hosts has no key of {0}")]
    UnknownHost(String),
    /// The isolation level has no sockets.
    #[error("keys need --isolation namespace")]
    Isolation,
}

impl KeyProblem {
    /// What to do.
    pub fn hint(&self) -> &'static str {
        match self {
            KeyProblem::NoAgent(_) => {
                "start the agent: `eval $(ssh-agent)` and `ssh-add`, or `gpgconf --launch gpg-agent`"
            }
            KeyProblem::NoPublicKey(_) => {
                "name the .pub file, the fingerprint or the comment that `ssh-add -l` shows"
            }
            KeyProblem::NotInAgent => "`ssh-add -l` lists its keys; `ssh-add FILE` adds one",
            KeyProblem::Ambiguous => "name the fingerprint that `ssh-add -l` shows",
            KeyProblem::NoGpgKey(_) => "`gpg --list-secret-keys` lists your keys",
            KeyProblem::UnknownHost(_) => {
                "connect to it once outside the cage, and check its fingerprint"
            }
            KeyProblem::Isolation => "use --isolation namespace, or leave the key out",
        }
    }
}

pub(crate) fn make(
    policy: &Policy,
    request: &Request,
    network: Option<&Network>,
    notes: &mut Vec<String>,
) -> Result<Option<Signing>, PlanError> {
    let keys = &policy.keys;
    if !keys.is_given() {
        notes.extend(without_key(request, network));
        return Ok(None);
    }
    let mut made = Signing {
        ssh: None,
        gpg: None,
        confirm: (keys.confirm.value).then(|| PermissionRequestTerms::of(&policy.questions)),
        git: String::new(),
        filter: crate::filter::keys(),
    };
    for rule in &keys.ssh {
        let origin = rule.origin.to_string();
        let refuse = refusal(rule.value.key.to_string(), origin.clone());
        within_reach(policy).map_err(&refuse)?;
        let mut logins = Vec::new();
        for host in &rule.value.hosts {
            let shown = shown(host);
            let keys = ssh::host_keys(&request.known_hosts, host);
            if keys.is_empty() {
                return Err(refuse(KeyProblem::UnknownHost(shown)));
            }
            if network.is_none_or(|network| !ssh::is_reachable(network, host)) {
                let flag = match ssh::own_port(host) {
                    Some(port) => format!("--allow-host-port {port}"),
                    None => format!("--allow-host {host}"),
                };
                notes.push(format!(
                    "{origin} {}: no rule allows {host}; add {flag}",
                    rule.value.key
                ));
            }
            logins.push(LoginHost { host: shown, keys });
        }
        let key =
            ssh_key(&mut made, &request.key_agents, &rule.value.key, &origin).map_err(&refuse)?;
        key.logins.extend(logins);
    }
    for (index, rule) in keys.sign.iter().enumerate() {
        let origin = rule.origin.to_string();
        let git = match &rule.value {
            SignKeyRule::Ssh(name) => {
                let refuse = refusal(name.to_string(), origin.clone());
                within_reach(policy).map_err(&refuse)?;
                let key =
                    ssh_key(&mut made, &request.key_agents, name, &origin).map_err(&refuse)?;
                key.signs_commits = true;
                let (kind, public) = (&key.kind, &key.public);
                format!("[user]\n\tsigningKey = \"key::{kind} {public}\"\n[gpg]\n\tformat = ssh\n")
            }
            SignKeyRule::Gpg(name) => {
                let refuse = refusal(name.clone(), origin.clone());
                within_reach(policy).map_err(&refuse)?;
                let key = gpg_key(&mut made, request, name, origin.clone()).map_err(&refuse)?;
                format!("[user]\n\tsigningKey = {key}\n[gpg]\n\tformat = openpgp\n")
            }
        };
        // Git has one signing key; another is named with `git commit -S`.
        if index == 0 {
            made.git = git;
        }
    }
    Ok(Some(made))
}

/// A server that asks for a key, where the user has one and the cage does not.
fn without_key(request: &Request, network: Option<&Network>) -> Option<String> {
    let offered = request.key_agents.offered.as_ref()?;
    let server = ssh::servers(&request.known_hosts, network?);
    let server = shown(server.first()?);
    Some(format!(
        "the cage has no key to log in to {server}; add --ssh-key {offered}@{server}"
    ))
}

fn refusal(name: String, origin: String) -> impl Fn(KeyProblem) -> PlanError {
    move |problem| PlanError::Key {
        name: name.clone(),
        origin: origin.clone(),
        problem,
    }
}

fn within_reach(policy: &Policy) -> Result<(), KeyProblem> {
    match policy.isolation.value {
        Isolation::Namespace => Ok(()),
        Isolation::Wasm
        | Isolation::Oci
        | Isolation::Chroot
        | Isolation::Landlock
        | Isolation::Microvm => Err(KeyProblem::Isolation),
    }
}

/// A host as known hosts have it, which is how the log names it.
fn shown(rule: &HostRule) -> String {
    match (&rule.to, rule.ports) {
        (Destination::Name(name), Ports::One(22)) => name.to_string(),
        _ => rule.to_string(),
    }
}

/// The key of the plan that a name means, planned with its first use.
fn ssh_key<'a>(
    made: &'a mut Signing,
    agents: &KeyAgents,
    name: &SshKeyName,
    origin: &str,
) -> Result<&'a mut PlannedSshKey, KeyProblem> {
    let agent = match &agents.ssh {
        Some(Ok(agent)) => agent,
        Some(Err(why)) => return Err(why.clone().into()),
        None => return Err(KeyAgentError::NotAsked(KeyAgent::Ssh).into()),
    };
    let found: Vec<&SshAgentKey> = match name {
        SshKeyName::File(path) => {
            let mut files = agent.files.iter();
            let file = files.find(|(known, _)| known == path);
            let blob = match file {
                Some((_, Ok(blob))) => blob,
                Some((_, Err(why))) => return Err(why.clone().into()),
                None => return Err(PublicKeyError::NotRead.into()),
            };
            agent.keys.iter().filter(|key| key.blob == *blob).collect()
        }
        SshKeyName::Fingerprint(print) => {
            let fits = |key: &&SshAgentKey| key.fingerprint == *print;
            agent.keys.iter().filter(fits).collect()
        }
        SshKeyName::Comment(comment) => {
            let fits = |key: &&SshAgentKey| key.comment == *comment;
            agent.keys.iter().filter(fits).collect()
        }
    };
    let key = match found.as_slice() {
        [] => return Err(KeyProblem::NotInAgent),
        [key] => key,
        _ => return Err(KeyProblem::Ambiguous),
    };
    let signing = made.ssh.get_or_insert_with(|| SshSigning {
        agent: agent.socket.clone(),
        keys: Vec::new(),
    });
    let public = base64::encode(&key.blob);
    let at = signing.keys.iter().position(|k| k.what.public == public);
    let at = at.unwrap_or_else(|| {
        signing.keys.push(Item {
            what: PlannedSshKey {
                name: name.to_string(),
                kind: key.kind.clone(),
                public,
                signs_commits: false,
                logins: Vec::new(),
            },
            origin: origin.to_owned(),
        });
        signing.keys.len() - 1
    });
    let planned = signing.keys.get_mut(at).map(|item| &mut item.what);
    planned.ok_or(KeyProblem::NotInAgent)
}

/// Plans a key of gpg; returns its fingerprint.
fn gpg_key(
    made: &mut Signing,
    request: &Request,
    name: &str,
    origin: String,
) -> Result<String, KeyProblem> {
    let agent = match &request.key_agents.gpg {
        Some(Ok(agent)) => agent,
        Some(Err(why)) => return Err(why.clone().into()),
        None => return Err(KeyAgentError::NotAsked(KeyAgent::Gpg).into()),
    };
    let found = agent.keys.iter().find(|(known, _)| known == name);
    let key: &GpgAgentKey = match found {
        Some((_, Ok(key))) => key,
        Some((_, Err(why))) => return Err((*why).into()),
        None => return Err(GpgKeyError::NotAsked.into()),
    };
    let signing = made.gpg.get_or_insert_with(|| GpgSigning {
        agent: agent.socket.clone(),
        version: agent.version.clone(),
        keys: Vec::new(),
    });
    signing.keys.push(Item {
        what: PlannedGpgKey {
            name: name.to_owned(),
            fingerprint: key.fingerprint.clone(),
            grips: key.grips.clone(),
            public: base64::encode(&key.keyring),
        },
        origin,
    });
    Ok(key.fingerprint.clone())
}

impl Signing {
    /// What of it is in the view, and the variables that name it.
    pub(crate) fn show(&self, view: &mut ViewPlan) -> Vec<Item<ViewOp>> {
        let mut ops = Vec::new();
        let mut variable = |name: &str, value: &str, origin: &str| {
            view.variables.push(Item {
                what: Variable {
                    name: name.into(),
                    value: value.into(),
                },
                origin: origin.to_owned(),
            });
        };
        let file = |file, target: &str, origin: &str| Item {
            what: ViewOp::Supervisor {
                file,
                target: target.into(),
            },
            origin: origin.to_owned(),
        };
        if let Some(first) = self.ssh.as_ref().and_then(|ssh| ssh.keys.first()) {
            let origin = &first.origin;
            variable("SSH_AUTH_SOCK", SSH_AGENT_SOCKET, origin);
            ops.push(file(SupervisorFile::SshAgent, SSH_AGENT_SOCKET, origin));
        }
        if let Some(first) = self.gpg.as_ref().and_then(|gpg| gpg.keys.first()) {
            let origin = &first.origin;
            variable("GNUPGHOME", GPG_HOME, origin);
            ops.push(Item {
                what: ViewOp::Directory {
                    target: GPG_HOME.into(),
                    // gpg warns of a home that others could read.
                    mode: 0o700,
                    agents: true,
                },
                origin: origin.clone(),
            });
            ops.push(Item {
                what: ViewOp::File {
                    target: Path::new(GPG_HOME).join("gpg.conf"),
                    content: GPG_SETTINGS.into(),
                    mode: 0o644,
                },
                origin: origin.clone(),
            });
            ops.push(file(SupervisorFile::GpgAgent, GPG_AGENT_SOCKET, origin));
            ops.push(file(SupervisorFile::GpgKeyring, GPG_KEYRING, origin));
        }
        ops
    }

    /// The public keys of gpg as one keyring; empty where there are none.
    pub fn gpg_keyring(&self) -> Vec<u8> {
        let keys = self.gpg.iter().flat_map(|gpg| &gpg.keys);
        let keys = keys.filter_map(|key| base64::decode(&key.what.public));
        keys.flatten().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::request::SshAgent;

    fn agent() -> KeyAgents {
        let key = |name: &str, comment: &str| SshAgentKey {
            kind: "ssh-ed25519".into(),
            blob: name.as_bytes().to_vec(),
            fingerprint: format!("SHA256:{name}"),
            comment: comment.into(),
        };
        KeyAgents {
            offered: None,
            ssh: Some(Ok(SshAgent {
                socket: "/run/agent".into(),
                keys: vec![key("one", "ann"), key("two", "bob"), key("three", "bob")],
                files: vec![
                    ("/k/one.pub".into(), Ok(b"one".to_vec())),
                    ("/k/four.pub".into(), Ok(b"four".to_vec())),
                    ("/k/none.pub".into(), Err(PublicKeyError::NotRead)),
                ],
            })),
            gpg: None,
        }
    }

    fn find(name: &SshKeyName) -> Result<String, KeyProblem> {
        let mut made = Signing {
            ssh: None,
            gpg: None,
            confirm: None,
            git: String::new(),
            filter: Vec::new(),
        };
        ssh_key(&mut made, &agent(), name, "test").map(|key| key.public.clone())
    }

    #[test]
    fn a_name_means_one_key_of_the_agent_or_none() {
        let one = base64::encode(b"one");
        for name in [
            SshKeyName::File("/k/one.pub".into()),
            SshKeyName::Fingerprint("SHA256:one".into()),
            SshKeyName::Comment("ann".into()),
        ] {
            assert_eq!(find(&name).unwrap(), one);
        }
        for name in [
            SshKeyName::File("/k/four.pub".into()),
            SshKeyName::Fingerprint("SHA256:o".into()),
        ] {
            assert!(matches!(find(&name), Err(KeyProblem::NotInAgent)));
        }
        let two = find(&SshKeyName::Comment("bob".into()));
        assert!(matches!(two, Err(KeyProblem::Ambiguous)));
        let unread = find(&SshKeyName::File("/k/none.pub".into()));
        assert!(matches!(unread, Err(KeyProblem::NoPublicKey(_))));
    }
}
