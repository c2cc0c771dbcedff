//! Where the values are.

use super::error::SecretError;
use super::login::Login;
use super::redact::InjectedValues;
use crate::order::SecretUses;
use crate::upstream::Upstream;
use ironcage_files::Links;
use ironcage_model::{
    AwsRule, HostName, HostRule, Reason, SecretPlace, SecretSource, StartCode, in_full,
};
use ironcage_plan::{Network, PlannedAws};
use serde::Deserialize;
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::hash::{BuildHasher as _, RandomState};
use std::io;
use std::os::unix::ffi::OsStringExt as _;
use std::process::{Command, ExitStatus, Stdio};
use std::rc::Rc;
use zeroize::{Zeroize as _, Zeroizing};

/// A shorter value could not be told from other text, a longer one is none.
pub(super) const SHORTEST: usize = 8;
pub(super) const LONGEST: usize = 8192;
/// Longest file that a value is read from: keys of AWS are a document with three of them.
const LONGEST_FILE: u64 = 64 * 1024;
/// Bytes of bodies that are held at once, until the server has taken them, all connections together.
const HELD: usize = 64 << 20;

/// A value, which goes when nobody uses it any more.
pub(crate) type Value = Rc<Zeroizing<Vec<u8>>>;

/// Who gets requests: a name, and a port of it.
pub(crate) type Origin = (HostName, u16);

pub(crate) struct Secret {
    pub(crate) name: String,
    pub(crate) placeholder: String,
    value: RefCell<Value>,
    pub(crate) hosts: Vec<HostRule>,
    pub(crate) places: Vec<SecretPlace>,
    /// How often it is still put on requests.
    pub(crate) left: Cell<SecretUses>,
}

impl Secret {
    /// Whether it is put on requests at all.
    pub(crate) fn is_given(&self) -> bool {
        self.left.get() != SecretUses::None
    }

    /// Takes one use. `false` where none is left.
    pub(crate) fn spend(&self) -> bool {
        match self.left.get() {
            SecretUses::Any => true,
            SecretUses::Some(left) if left > 0 => {
                self.left.set(SecretUses::Some(left - 1));
                true
            }
            SecretUses::Some(_) | SecretUses::None => false,
        }
    }
}

impl Secret {
    pub(crate) fn new(
        name: String,
        placeholder: String,
        value: &str,
        hosts: Vec<HostRule>,
        places: Vec<SecretPlace>,
    ) -> Self {
        Secret {
            name,
            placeholder,
            value: RefCell::new(owned(value)),
            hosts,
            places,
            left: Cell::new(SecretUses::Any),
        }
    }

    /// The value as it is now.
    pub(crate) fn value(&self) -> Value {
        Rc::clone(&self.value.borrow())
    }

    /// It has another value from now on.
    pub(crate) fn renew(&self, value: &str) {
        self.value.replace(owned(value));
    }
}

fn owned(value: &str) -> Value {
    Rc::new(Zeroizing::new(value.as_bytes().to_vec()))
}

/// Keys of Amazon's.
pub(crate) struct Signer {
    /// What stands for them in the cage.
    pub(crate) placeholder: String,
    pub(crate) placeholder_key: String,
    pub(crate) id: Zeroizing<String>,
    pub(crate) key: Zeroizing<String>,
    pub(crate) token: Option<Value>,
    pub(crate) hosts: Vec<HostRule>,
    /// What hands out credentials and is signed all the same.
    pub(crate) credentials: Vec<String>,
}

/// All secrets of a cage.
#[derive(Default)]
pub(crate) struct SecretStore {
    pub(crate) secrets: Vec<Secret>,
    pub(crate) signer: Option<Signer>,
    /// With the place of its access token among the secrets.
    pub(crate) logins: Vec<(Login, usize)>,
    pub(super) held: Rc<Cell<usize>>,
    /// What each origin got in this run: nothing else is looked for in its answers.
    pub(super) injected: RefCell<BTreeMap<Origin, Rc<InjectedValues>>>,
}

/// Room for a body as long as it is held: until the server has taken it, which takes as long as the
/// server likes.
#[derive(Debug)]
pub(crate) struct BodyRoom {
    held: Rc<Cell<usize>>,
    bytes: usize,
}

impl Drop for BodyRoom {
    fn drop(&mut self) {
        let held = self.held.get();
        self.held.set(held.saturating_sub(self.bytes));
    }
}

impl SecretStore {
    /// Reads every value from where it comes, but for logins.
    ///
    /// # Errors
    /// Where there is none, or what is there is no secret. Never with a part of it.
    pub(crate) fn load(network: &Network) -> Result<Self, Reason> {
        let mut secrets = Vec::new();
        for item in &network.secrets {
            let rule = &item.what.rule;
            let value = read(&rule.from).and_then(checked);
            let value = value.map_err(|why| Reason::Start {
                code: StartCode::SecretMissing,
                text: format!("the secret {}: {}", rule.name, in_full(&why)),
            })?;
            let text = std::str::from_utf8(&value).unwrap_or_default();
            let (name, placeholder) = (rule.name.clone(), item.what.placeholder.clone());
            let (hosts, places) = (rule.hosts.clone(), rule.places.clone());
            let secret = Secret::new(name, placeholder, text, hosts, places);
            if rule.leased {
                secret.left.set(SecretUses::None);
            }
            secrets.push(secret);
        }
        let signer = match &network.aws {
            Some(item) => {
                let signer = signer(&item.what).map_err(|why| Reason::Start {
                    code: StartCode::AwsKeysMissing,
                    text: format!("the keys of aws: {}", in_full(&why)),
                })?;
                Some(signer)
            }
            None => None,
        };
        Ok(SecretStore {
            secrets,
            signer,
            ..SecretStore::default()
        })
    }

    /// A lease on a secret begins or ends.
    pub(crate) fn lease(&self, name: &str, uses: SecretUses) {
        for secret in self.secrets.iter().filter(|secret| secret.name == name) {
            secret.left.set(uses);
        }
    }

    /// Starts the token refreshers of logins. Each is a process of its own, forked from this one.
    ///
    /// # Errors
    /// Where there is no login, or no refresher to be had.
    pub(crate) fn start_logins(
        &mut self,
        network: &Network,
        upstream: &Rc<Upstream>,
    ) -> Result<(), Reason> {
        for item in &network.logins {
            let planned = &item.what;
            let started = Login::start(planned, (network, upstream));
            let (login, secrets) = started.map_err(|why| Reason::Start {
                code: StartCode::LoginMissing,
                text: format!("the login of {}: {why}", planned.rule.name),
            })?;
            self.logins.push((login, self.secrets.len()));
            self.secrets.extend(secrets);
        }
        Ok(())
    }

    /// Whether there is nothing in it.
    pub(crate) fn is_empty(&self) -> bool {
        self.secrets.is_empty() && self.signer.is_none()
    }

    /// Whether something in it is for this port of this name.
    pub(crate) fn is_for(&self, name: &HostName, port: u16) -> bool {
        let secrets = self.secrets.iter().flat_map(|secret| &secret.hosts);
        let mut hosts = secrets.chain(self.signer.iter().flat_map(|signer| &signer.hosts));
        hosts.any(|host| host.names(name, port))
    }

    /// Remembers that a value goes to an origin.
    pub(super) fn inject(&self, origin: &Origin, value: &Value) {
        let mut injected = self.injected.borrow_mut();
        let known = injected.get(origin).cloned().unwrap_or_default();
        let is_in_use = |value: &Value| {
            let mut secrets = self.secrets.iter();
            let signer = self.signer.as_ref();
            let token = signer.and_then(|signer| signer.token.as_ref());
            secrets.any(|secret| Rc::ptr_eq(&secret.value.borrow(), value))
                || token.is_some_and(|token| Rc::ptr_eq(token, value))
        };
        let Some(values) = known.with(value, is_in_use) else {
            return;
        };
        // Origins may be many, where the agent chooses names below one; what they got is the same.
        let mut all = injected.values();
        let same = all.find(|known| known.is_of(&values)).cloned();
        let made = same.unwrap_or_else(|| {
            let base = RandomState::new().hash_one(origin);
            Rc::new(InjectedValues::new(values, base))
        });
        injected.insert(origin.clone(), made);
    }

    /// The values that an origin got in this run.
    pub(super) fn injected(&self, origin: &Origin) -> Option<Rc<InjectedValues>> {
        self.injected.borrow().get(origin).cloned()
    }

    /// Room for so many bytes, if there is any.
    pub(crate) fn room(&self, bytes: usize) -> Option<BodyRoom> {
        let held = self.held.get().checked_add(bytes)?;
        (held <= HELD).then(|| {
            self.held.set(held);
            let held = Rc::clone(&self.held);
            BodyRoom { held, bytes }
        })
    }
}

/// Reads a secret from where it comes.
pub(crate) fn read(from: &SecretSource) -> Result<Zeroizing<Vec<u8>>, SecretError> {
    Ok(Zeroizing::new(match from {
        SecretSource::Env(name) => std::env::var_os(name)
            .ok_or_else(|| SecretError::NoVariable(name.clone()))?
            .into_vec(),
        // The user's own, who may keep it behind a link; an agent may have put a FIFO there.
        SecretSource::File(path) => ironcage_files::read(path, LONGEST_FILE, Links::Follow)?,
        SecretSource::Command(command) => {
            let ran = said_by(Command::new("/bin/sh").args(["-c", command]))
                .map_err(SecretError::Command)?;
            ran.map_err(SecretError::CommandFailed)?
        }
        SecretSource::Keyring { service, user } => {
            let words = ["lookup", "service", service, "username", user];
            let ran =
                said_by(Command::new("secret-tool").args(words)).map_err(SecretError::Keyring)?;
            ran.map_err(|status| SecretError::KeyringFailed {
                status,
                service: service.clone(),
                user: user.clone(),
            })?
        }
    }))
}

/// What a command prints, or how it ended where that was no success.
fn said_by(command: &mut Command) -> io::Result<Result<Vec<u8>, ExitStatus>> {
    let ran = command
        .stdin(Stdio::null())
        .stderr(Stdio::inherit())
        .output()?;
    let mut output = ran.stdout;
    if !ran.status.success() {
        output.zeroize();
        return Ok(Err(ran.status));
    }
    Ok(Ok(output))
}

/// A value that can stand in a request, without what ends its line.
fn checked(mut value: Zeroizing<Vec<u8>>) -> Result<Zeroizing<Vec<u8>>, SecretError> {
    while value.last().is_some_and(u8::is_ascii_whitespace) {
        value.pop();
    }
    if value.iter().any(|byte| !(0x21..0x7f).contains(byte)) {
        return Err(SecretError::NotAscii);
    }
    if !(SHORTEST..=LONGEST).contains(&value.len()) {
        return Err(SecretError::Length(value.len()));
    }
    Ok(value)
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct ProcessCredentials {
    access_key_id: String,
    secret_access_key: String,
    #[serde(default)]
    session_token: Option<String>,
}

fn signer(planned: &PlannedAws) -> Result<Signer, SecretError> {
    let said = match &planned.rule.from {
        SecretSource::Env(_) => {
            let [id, key, token] = AwsRule::VARIABLES;
            let variable = |name: &str| {
                let value = read(&SecretSource::Env(name.to_owned())).and_then(checked)?;
                Ok::<_, SecretError>(String::from_utf8_lossy(&value).into_owned())
            };
            ProcessCredentials {
                access_key_id: variable(id)?,
                secret_access_key: variable(key)?,
                session_token: match std::env::var_os(token) {
                    Some(value) if !value.is_empty() => Some(variable(token)?),
                    _ => None,
                },
            }
        }
        other => {
            let text = read(other)?;
            // Not with the error, which may hold a part of it.
            serde_json::from_slice(&text).map_err(|_| SecretError::NotCredentials)?
        }
    };
    let check = |text: String| {
        let plain = text.len() >= SHORTEST && text.bytes().all(|b| (0x21..0x7f).contains(&b));
        let text = Zeroizing::new(text);
        plain.then_some(text).ok_or(SecretError::NotInHeader)
    };
    let id = check(said.access_key_id)?;
    if id.contains(['/', ',']) {
        return Err(SecretError::AccessKeyId);
    }
    Ok(Signer {
        placeholder: planned.id.clone(),
        placeholder_key: planned.key.clone(),
        id,
        key: check(said.secret_access_key)?,
        token: match said.session_token {
            Some(token) => Some(owned(&check(token)?)),
            None => None,
        },
        hosts: planned.rule.hosts.clone(),
        credentials: planned.rule.credentials.clone(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_come_from_files_and_commands_and_errors_do_not_hold_them() {
        let place = std::env::temp_dir().join(format!("secret-{}", std::process::id()));
        std::fs::write(&place, "value-of-file\n").unwrap();
        let read = |from: &SecretSource| read(from).and_then(checked);
        let from_file = read(&SecretSource::File(place.clone())).unwrap();
        assert_eq!(from_file.as_slice(), b"value-of-file");
        std::fs::write(&place, "short").unwrap();
        let error = read(&SecretSource::File(place.clone())).unwrap_err();
        assert!(matches!(error, SecretError::Length(5)), "{error}");
        assert!(!in_full(&error).contains("short"), "{error}");
        std::fs::remove_file(&place).unwrap();
        assert!(read(&SecretSource::File(place)).is_err());
        let command = |text: &str| read(&SecretSource::Command(text.into()));
        assert_eq!(
            command("echo from-command").unwrap().as_slice(),
            b"from-command"
        );
        let failed = command("exit 3").unwrap_err();
        assert!(matches!(failed, SecretError::CommandFailed(status) if status.code() == Some(3)));
        assert!(command("echo two words").is_err());
        assert!(read(&SecretSource::Env("IRONCAGE_NO_SUCH_VARIABLE".into())).is_err());
    }
}
