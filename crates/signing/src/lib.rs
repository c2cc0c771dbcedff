//! Requests of a cage to an ssh-agent or gpg-agent outside, and which are allowed.
//!
//! Everything here is pure: bytes of the cage go in, and out come answers, uses of a key that
//! somebody decides about, and the messages for the real agent once a use is allowed. A message of
//! the cage is never passed on: what the real agent gets is written from what was understood.
#![forbid(unsafe_code)]

pub mod gpg;
mod host_key;
pub mod ssh;
mod wire;

pub use host_key::fingerprint;

use ironcage_model::{KeyPurpose, SigningReason};

/// What follows from what a cage has written so far.
#[derive(Debug)]
pub enum Step {
    /// Nothing: a message is not whole yet.
    More,
    /// An answer that uses no key.
    Reply(Vec<u8>),
    /// A key is to be used, if whoever decides about that allows it.
    Use(Box<Use>),
    /// Something is denied: what goes on record, and the answer.
    Denied { denial: Denial, reply: Vec<u8> },
    /// Something is denied, and the connection cannot go on.
    Close(Denial),
    /// The cage is done.
    Bye(Vec<u8>),
}

/// A use of a key that was denied.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Denial {
    /// The key, as far as it is known.
    pub key: Option<String>,
    /// What for, as far as it is known.
    pub purpose: Option<KeyPurpose>,
    pub reason: SigningReason,
}

impl Denial {
    fn of(reason: SigningReason) -> Self {
        Denial {
            key: None,
            purpose: None,
            reason,
        }
    }
}

/// A use of a key that the rules allow.
#[derive(Debug)]
pub struct Use {
    /// The key, as the policy names it.
    pub key: String,
    pub purpose: KeyPurpose,
    /// What is done with the real agent.
    pub exchange: Exchange,
    /// The answer where it is not done after all.
    pub refused: Vec<u8>,
}

/// A conversation with the real agent about one signature.
#[derive(Debug)]
pub enum Exchange {
    Ssh(ssh::SshExchange),
    Gpg(gpg::GpgExchange),
}

/// How a conversation with the real agent goes on.
#[derive(Debug, PartialEq, Eq)]
pub enum Progress {
    /// More has to come.
    More,
    /// This is to be sent, and more has to come.
    Send(Vec<u8>),
    /// The answer for the cage.
    Signed(Vec<u8>),
    /// The agent did not sign, or is not one. The answer for the cage.
    Refused(Vec<u8>),
}

impl Exchange {
    /// What is sent first.
    pub fn begin(&mut self) -> Vec<u8> {
        match self {
            Exchange::Ssh(exchange) => exchange.begin(),
            Exchange::Gpg(exchange) => exchange.begin(),
        }
    }

    /// Takes what the real agent has sent.
    pub fn receive(&mut self, bytes: &[u8]) -> Progress {
        match self {
            Exchange::Ssh(exchange) => exchange.receive(bytes),
            Exchange::Gpg(exchange) => exchange.receive(bytes),
        }
    }
}

/// What one connection of the cage has said.
#[derive(Debug)]
pub enum Connection {
    Ssh(ssh::SshConnection),
    Gpg(gpg::GpgConnection),
}

/// The rules of either agent.
#[derive(Debug, Clone, Copy)]
pub struct Rules<'a> {
    pub ssh: &'a ssh::SshRules,
    pub gpg: &'a gpg::GpgRules,
}

impl Connection {
    /// What the cage is greeted with.
    pub fn greeting(&self) -> &'static [u8] {
        match self {
            Connection::Ssh(_) => b"",
            Connection::Gpg(_) => gpg::GREETING,
        }
    }

    /// Takes what the cage has written.
    pub fn receive(&mut self, bytes: &[u8]) {
        match self {
            Connection::Ssh(connection) => connection.receive(bytes),
            Connection::Gpg(connection) => connection.receive(bytes),
        }
    }

    /// Takes the next whole message.
    pub fn next(&mut self, rules: Rules<'_>) -> Step {
        match self {
            Connection::Ssh(connection) => connection.next(rules.ssh),
            Connection::Gpg(connection) => connection.next(rules.gpg),
        }
    }
}

/// Entry points for the fuzzer.
pub mod fuzz {
    use super::{Connection, Exchange, Rules, Step, gpg, ssh};

    fn rules() -> (ssh::SshRules, gpg::GpgRules) {
        let ssh = ssh::SshRules {
            keys: vec![ssh::SshKey {
                name: "key".into(),
                comment: "key".into(),
                blob: b"key".to_vec(),
                signs_commits: true,
                logins: Vec::new(),
            }],
        };
        let gpg = gpg::GpgRules {
            version: "2.2.40".into(),
            description: "a cage".into(),
            keys: vec![gpg::GpgKey {
                name: "key".into(),
                grips: vec!["8558A9D19C7287E08892909E3B1CE5A466871C10".into()],
            }],
        };
        (ssh, gpg)
    }

    /// What a cage writes to either agent, in pieces.
    pub fn agent_request(bytes: &[u8]) {
        let (ssh, gpg) = rules();
        let rules = Rules {
            ssh: &ssh,
            gpg: &gpg,
        };
        for mut connection in [
            Connection::Ssh(ssh::SshConnection::default()),
            Connection::Gpg(gpg::GpgConnection::default()),
        ] {
            for piece in bytes.chunks(37) {
                connection.receive(piece);
                loop {
                    match connection.next(rules) {
                        Step::More => break,
                        Step::Close(_) | Step::Bye(_) => return,
                        Step::Use(used) => assert_eq!(used.key, "key"),
                        Step::Reply(_) | Step::Denied { .. } => {}
                    }
                }
            }
        }
    }

    /// What a real agent, or who stands in its place, answers.
    pub fn agent_answer(bytes: &[u8]) {
        let _ = ssh::identities(bytes);
        for mut exchange in [
            Exchange::Ssh(ssh::SshExchange::new(Vec::new(), vec![13])),
            Exchange::Gpg(gpg::GpgExchange::new("A", "a cage", 8, "00")),
        ] {
            exchange.begin();
            for piece in bytes.chunks(37) {
                exchange.receive(piece);
            }
        }
    }
}
