//! The protocol of ssh-agent: keys are listed, and sign a login to an allowed host or a commit.
//!
//! The purpose of a signature is read from the data to be signed. A login names its session, and the
//! client has to prove first which server has that session (`session-bind@openssh.com`).

mod purpose;

use crate::host_key::{fingerprint, verify};
use crate::wire::{Fields, framed, put_string};
use crate::{Denial, Exchange, Progress, Step, Use};
use ironcage_model::SigningReason;
use purpose::SignedData;

/// Longest message of a cage: logins and commits are some hundred bytes.
pub const LONGEST_REQUEST: usize = 16 * 1024;
/// Longest answer of the real agent, as OpenSSH bounds it.
const LONGEST_ANSWER: usize = 256 * 1024;
/// Sessions that one connection may prove: a client has one, or one for each host it jumps over.
const MOST_SESSIONS: usize = 16;

const FAILURE: u8 = 5;
const SUCCESS: u8 = 6;
const REQUEST_IDENTITIES: u8 = 11;
const IDENTITIES_ANSWER: u8 = 12;
const AGENT_SIGN_REQUEST: u8 = 13;
const AGENT_SIGN_RESPONSE: u8 = 14;
const EXTENSION: u8 = 27;
/// RSA with SHA-256 or SHA-512.
const KNOWN_FLAGS: u32 = 2 | 4;

const SESSION_BIND: &[u8] = b"session-bind@openssh.com";

/// A host that a key logs in to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProvenHost {
    /// Its name, as known hosts have it.
    pub host: String,
    /// Its public keys.
    pub keys: Vec<Vec<u8>>,
}

/// A key that the cage may use.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SshKey {
    /// Its name in the policy.
    pub name: String,
    /// What is listed beside it.
    pub comment: String,
    /// The public key.
    pub blob: Vec<u8>,
    pub signs_commits: bool,
    pub logins: Vec<ProvenHost>,
}

/// What a cage may do with an ssh-agent.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SshRules {
    pub keys: Vec<SshKey>,
}

/// A session that its server has signed.
#[derive(Debug, Clone)]
struct ProvedSession {
    id: Vec<u8>,
    host_key: Vec<u8>,
    /// The whole message: the real agent may bind keys to hosts, too.
    message: Vec<u8>,
}

/// What one connection has said.
#[derive(Debug, Default)]
pub struct SshConnection {
    heard: Vec<u8>,
    sessions: Vec<ProvedSession>,
    /// Whether the connection was forwarded to another host: nobody logs in by it.
    forwarded: bool,
}

impl SshConnection {
    pub(crate) fn receive(&mut self, bytes: &[u8]) {
        self.heard.extend_from_slice(bytes);
    }

    pub(crate) fn next(&mut self, rules: &SshRules) -> Step {
        let mut fields = Fields(&self.heard);
        let Some(length) = fields.number() else {
            return Step::More;
        };
        let length = usize::try_from(length).unwrap_or(usize::MAX);
        if length > LONGEST_REQUEST {
            let limit = LONGEST_REQUEST as u64;
            return Step::Close(Denial::of(SigningReason::KeyRequestTooLong { limit }));
        }
        let Some(message) = fields.take(length) else {
            return Step::More;
        };
        let message = message.to_vec();
        self.heard.drain(..length + 4);
        self.message(&message, rules)
    }

    fn message(&mut self, message: &[u8], rules: &SshRules) -> Step {
        let mut fields = Fields(message);
        match fields.byte() {
            Some(REQUEST_IDENTITIES) => Step::Reply(listed(rules)),
            Some(AGENT_SIGN_REQUEST) => self.sign(fields, rules),
            Some(EXTENSION) => match fields.string() {
                Some(SESSION_BIND) => match self.bind(fields, message) {
                    Ok(()) => Step::Reply(framed(&[SUCCESS])),
                    Err(reason) => denied(Denial::of(reason)),
                },
                Some(other) => {
                    let name: String = String::from_utf8_lossy(other).chars().take(64).collect();
                    not_allowed(format!("the extension {name}"))
                }
                None => denied(Denial::of(SigningReason::KeyRequestMalformed)),
            },
            Some(number) => not_allowed(request_name(number)),
            None => denied(Denial::of(SigningReason::KeyRequestMalformed)),
        }
    }

    /// The client proves which server has a session.
    fn bind(&mut self, mut fields: Fields<'_>, message: &[u8]) -> Result<(), SigningReason> {
        let malformed = || SigningReason::KeyRequestMalformed;
        let host_key = fields.string().ok_or_else(malformed)?;
        let id = fields.string().ok_or_else(malformed)?;
        let signature = fields.string().ok_or_else(malformed)?;
        let forwarding = fields.byte().ok_or_else(malformed)? != 0;
        fields.end().ok_or_else(malformed)?;
        if forwarding {
            self.forwarded = true;
            return Err(SigningReason::KeyForwarded);
        }
        verify(host_key, id, signature)?;
        if self.sessions.iter().any(|known| known.id == id) {
            return Ok(());
        }
        if self.sessions.len() >= MOST_SESSIONS {
            return Err(malformed());
        }
        self.sessions.push(ProvedSession {
            id: id.to_owned(),
            host_key: host_key.to_owned(),
            message: message.to_owned(),
        });
        Ok(())
    }

    fn sign(&self, mut fields: Fields<'_>, rules: &SshRules) -> Step {
        let read = |fields: &mut Fields<'_>| {
            let blob = fields.string()?.to_owned();
            let data = fields.string()?.to_owned();
            let flags = fields.number()?;
            fields.end().map(|()| (blob, data, flags))
        };
        let Some((blob, data, flags)) = read(&mut fields) else {
            return denied(Denial::of(SigningReason::KeyRequestMalformed));
        };
        let deny = |key: String, reason| {
            denied(Denial {
                key: Some(key),
                purpose: None,
                reason,
            })
        };
        let Some(key) = rules.keys.iter().find(|key| key.blob == blob) else {
            return deny(fingerprint(&blob), SigningReason::KeyNotGiven);
        };
        if flags & !KNOWN_FLAGS != 0 {
            return deny(key.name.clone(), SigningReason::KeyRequestMalformed);
        }
        let purpose = match SignedData::of(&data) {
            None => Err(SigningReason::KeyPurposeUnknown),
            Some(SignedData::Signature { .. }) if !key.signs_commits => {
                Err(SigningReason::KeyNotForCommits)
            }
            Some(SignedData::Signature { namespace: "git" }) => Ok(ironcage_model::KeyPurpose::Git),
            Some(SignedData::Signature { namespace }) => Err(SigningReason::KeyOtherNamespace {
                namespace: namespace.chars().take(64).collect(),
            }),
            Some(SignedData::Login(login)) => self.judge_login(key, &login),
        };
        let purpose = match purpose {
            Ok(purpose) => purpose,
            Err(reason) => return deny(key.name.clone(), reason),
        };
        let mut request = vec![AGENT_SIGN_REQUEST];
        put_string(&mut request, &blob);
        put_string(&mut request, &data);
        request.extend_from_slice(&flags.to_be_bytes());
        let sessions = self.sessions.iter();
        let binds = sessions.map(|known| known.message.clone()).collect();
        Step::Use(Box::new(Use {
            key: key.name.clone(),
            purpose,
            exchange: Exchange::Ssh(SshExchange::new(binds, request)),
            refused: framed(&[FAILURE]),
        }))
    }

    /// Whether a key may log in to the server of a session.
    fn judge_login(
        &self,
        key: &SshKey,
        login: &purpose::Login<'_>,
    ) -> Result<ironcage_model::KeyPurpose, SigningReason> {
        if key.logins.is_empty() {
            return Err(SigningReason::KeyNotForLogins);
        }
        if login.key != key.blob {
            return Err(SigningReason::KeyPurposeUnknown);
        }
        if self.forwarded {
            return Err(SigningReason::KeyForwarded);
        }
        let mut sessions = self.sessions.iter();
        let session = sessions.find(|known| known.id == login.session);
        let session = session.ok_or(SigningReason::KeyHostNotProved)?;
        if login.host_key.is_some_and(|key| key != session.host_key) {
            return Err(SigningReason::KeyHostNotProved);
        }
        let mut hosts = key.logins.iter();
        let host = hosts.find(|host| host.keys.contains(&session.host_key));
        let host = host.ok_or_else(|| SigningReason::KeyHostNotAllowed {
            host_key: fingerprint(&session.host_key),
        })?;
        Ok(ironcage_model::KeyPurpose::Login {
            host: host.host.clone(),
            user: login.user.to_owned(),
        })
    }
}

fn denied(denial: Denial) -> Step {
    let reply = framed(&[FAILURE]);
    Step::Denied { denial, reply }
}

fn not_allowed(request: impl Into<String>) -> Step {
    let request = request.into();
    denied(Denial::of(SigningReason::KeyRequestNotAllowed { request }))
}

/// What a message is called, by its number.
fn request_name(number: u8) -> String {
    match number {
        17 | 25 => "a key to add".into(),
        18 => "a key to remove".into(),
        19 => "a request to remove every key".into(),
        20 | 26 => "a smart card to add".into(),
        21 => "a smart card to remove".into(),
        22 => "a request to lock it".into(),
        23 => "a request to unlock it".into(),
        number => format!("message {number}"),
    }
}

/// The keys that the cage may use, whatever else the real agent has.
fn listed(rules: &SshRules) -> Vec<u8> {
    let mut answer = vec![IDENTITIES_ANSWER];
    let count = u32::try_from(rules.keys.len()).unwrap_or(u32::MAX);
    answer.extend_from_slice(&count.to_be_bytes());
    for key in &rules.keys {
        put_string(&mut answer, &key.blob);
        put_string(&mut answer, key.comment.as_bytes());
    }
    framed(&answer)
}

/// A key that an agent lists.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Identity {
    /// The type of the key, such as `ssh-ed25519`.
    pub kind: String,
    pub blob: Vec<u8>,
    pub comment: String,
}

/// The request for an agent's keys.
pub fn identities_request() -> Vec<u8> {
    framed(&[REQUEST_IDENTITIES])
}

/// Reads an agent's keys from its answer; `None` where that is not whole or not one.
pub fn identities(answer: &[u8]) -> Option<Vec<Identity>> {
    let mut frame = Fields(answer);
    let mut fields = Fields(frame.string()?);
    frame.end()?;
    if fields.byte()? != IDENTITIES_ANSWER {
        return None;
    }
    let mut found = Vec::new();
    for _ in 0..fields.number()? {
        let blob = fields.string()?.to_owned();
        let comment = String::from_utf8_lossy(fields.string()?).into_owned();
        let kind = Fields(&blob).text()?.to_owned();
        found.push(Identity {
            kind,
            blob,
            comment,
        });
    }
    fields.end()?;
    Some(found)
}

/// How long an answer with an agent's keys is, once its first bytes are there.
pub fn answer_length(answer: &[u8]) -> Option<usize> {
    let length = usize::try_from(Fields(answer).number()?).ok()?;
    Some(length.min(LONGEST_ANSWER).saturating_add(4))
}

/// A conversation with the real ssh-agent: the sessions that were proved, then one signature.
#[derive(Debug)]
pub struct SshExchange {
    binds: Vec<Vec<u8>>,
    request: Vec<u8>,
    heard: Vec<u8>,
    /// Answers to sessions that are still to come. What they say does not matter: an older agent
    /// does not know the message.
    before: usize,
}

impl SshExchange {
    pub(crate) fn new(binds: Vec<Vec<u8>>, request: Vec<u8>) -> Self {
        SshExchange {
            before: binds.len(),
            binds,
            request,
            heard: Vec::new(),
        }
    }

    pub(crate) fn begin(&mut self) -> Vec<u8> {
        let messages = self.binds.iter().chain([&self.request]);
        messages.flat_map(|message| framed(message)).collect()
    }

    pub(crate) fn receive(&mut self, bytes: &[u8]) -> Progress {
        self.heard.extend_from_slice(bytes);
        let refused = || Progress::Refused(framed(&[FAILURE]));
        loop {
            let mut fields = Fields(&self.heard);
            let Some(length) = fields.number() else {
                return Progress::More;
            };
            let length = usize::try_from(length).unwrap_or(usize::MAX);
            if length > LONGEST_ANSWER {
                return refused();
            }
            let Some(answer) = fields.take(length) else {
                return Progress::More;
            };
            if self.before == 0 {
                let mut answer = Fields(answer);
                let signed = (answer.byte() == Some(AGENT_SIGN_RESPONSE)).then_some(answer);
                let signature = signed.and_then(|mut rest| {
                    let signature = rest.string()?;
                    rest.end().map(|()| signature)
                });
                let Some(signature) = signature else {
                    return refused();
                };
                let mut reply = vec![AGENT_SIGN_RESPONSE];
                put_string(&mut reply, signature);
                return Progress::Signed(framed(&reply));
            }
            self.before -= 1;
            self.heard.drain(..length + 4);
        }
    }
}

#[cfg(test)]
mod tests;
