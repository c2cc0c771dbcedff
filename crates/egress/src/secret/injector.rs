//! Puts secrets into the requests of one connection.

use super::body::{BodyKind, Put};
use super::login::Login;
use super::minting::Minting;
use super::negotiate;
use super::place::{basic, parameters, replace, unescaped, write_basic};
use super::redact::Redactor;
use super::scan::{Pattern, Scanner, find};
use super::sigv4::{Claim, Keys, Payload, Signed, hash};
use super::store::{BodyRoom, Origin, Secret, SecretStore, Signer};
use crate::http::{Fields, Refused, RequestParts};
use ironcage_model::{AwsRule, HOST_NAME, HostName, HostRule, NetworkReason, SecretPlace};
use std::rc::Rc;
use std::time::SystemTime;

/// Longest body that the proxy buffers to inspect it; it inspects a longer one while it streams.
const LONGEST_BODY: u64 = 256 * 1024;
/// The same for one whose hash is a part of the signature, and not said.
const LONGEST_SIGNED: u64 = 8 << 20;

/// Why a server may get values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ServerTrust {
    /// It proved its name by TLS.
    Proved,
    /// It listens on the host's own loopback, and not in this cage.
    OwnHost,
    Untrusted,
}

/// Secrets, as far as requests to one host go.
pub(crate) struct SecretInjector {
    store: Rc<SecretStore>,
    origin: Origin,
    trust: ServerTrust,
}

fn is_named(hosts: &[HostRule], (name, port): &Origin) -> bool {
    hosts.iter().any(|host| host.names(name, *port))
}

impl SecretInjector {
    /// `None` where the cage has no secrets.
    pub(crate) fn of(
        store: &Rc<SecretStore>,
        name: &HostName,
        port: u16,
        trust: ServerTrust,
    ) -> Option<Self> {
        (!store.is_empty()).then(|| SecretInjector {
            store: Rc::clone(store),
            origin: (name.clone(), port),
            trust,
        })
    }

    fn is_for(&self, hosts: &[HostRule]) -> bool {
        // No certificate is made out to the host's loopback; a policy has to name it
        // (`http://host.ironcage:PORT`), and nothing else without TLS.
        let own_host = |host: &HostRule| {
            let (name, port) = &self.origin;
            host.to.is_name(HOST_NAME) && host.names(name, *port)
        };
        match self.trust {
            ServerTrust::Proved => is_named(hosts, &self.origin),
            ServerTrust::OwnHost => hosts.iter().any(own_host),
            ServerTrust::Untrusted => false,
        }
    }

    /// Why the placeholder of a secret has no place in what goes to this host.
    fn elsewhere(&self, secret: &Secret) -> NetworkReason {
        let name = &secret.name;
        match secret.is_given() {
            true => self.nowhere_else(name, &secret.hosts),
            false => NetworkReason::SecretNotLeased {
                secret: name.clone(),
            },
        }
    }

    fn nowhere_else(&self, name: &str, hosts: &[HostRule]) -> NetworkReason {
        let secret = name.to_owned();
        let is_named = is_named(hosts, &self.origin);
        match self.trust {
            ServerTrust::Untrusted if is_named && self.origin.0.as_str() == HOST_NAME => {
                let port = self.origin.1.into();
                NetworkReason::SecretOwnPort { secret, port }
            }
            ServerTrust::OwnHost | ServerTrust::Untrusted if is_named => {
                NetworkReason::SecretTlsOnly { secret }
            }
            _ => NetworkReason::SecretWrongHost { secret },
        }
    }

    fn is_own(&self, secret: &Secret) -> bool {
        secret.is_given() && self.is_known_to_host(secret)
    }

    /// Whether the host may have the value, now or from a lease that is over: then it may come
    /// back in its answers.
    fn is_known_to_host(&self, secret: &Secret) -> bool {
        self.is_for(&secret.hosts)
    }

    fn is_any_known(&self) -> bool {
        (self.store.secrets.iter()).any(|secret| self.is_known_to_host(secret))
    }

    fn own(&self) -> impl Iterator<Item = &Secret> {
        let secrets = self.store.secrets.iter();
        secrets.filter(|secret| self.is_own(secret))
    }

    /// The signer of requests to this host, if the proxy signs them.
    fn signer(&self) -> Option<&Signer> {
        let signer = self.store.signer.as_ref();
        signer.filter(|signer| self.is_for(&signer.hosts))
    }

    /// Logins that are for this host, with their access tokens.
    fn logins(&self) -> impl Iterator<Item = (&Login, &Secret)> {
        let logins = self.store.logins.iter();
        logins
            .filter(|(login, _)| self.is_for(&login.hosts))
            .filter_map(|(login, at)| Some((login, self.store.secrets.get(*at)?)))
    }

    /// Placeholders that have no place in what goes to this host, and why not.
    fn others(&self) -> Vec<(&str, NetworkReason)> {
        let secrets = self.store.secrets.iter();
        let mut others: Vec<(&str, NetworkReason)> = secrets
            .filter(|secret| !self.is_own(secret))
            .map(|secret| (secret.placeholder.as_str(), self.elsewhere(secret)))
            .collect();
        if let Some(signer) = &self.store.signer {
            // What stands for the key goes nowhere: signing needs no more.
            let [id, key, _] = AwsRule::VARIABLES;
            let why = |name: &str| self.nowhere_else(name, &signer.hosts);
            others.push((&signer.placeholder_key, why(key)));
            if self.signer().is_none() {
                others.push((&signer.placeholder, why(id)));
            }
        }
        others
    }

    /// Makes sure that the tokens of logins hold which a request would use.
    ///
    /// # Errors
    /// Where one does not, and cannot be renewed.
    pub(crate) async fn refresh(&self, fields: &Fields) -> Result<(), Refused> {
        for (login, access) in self.logins() {
            if carries(fields, access) {
                let renewed = login.refresh(access).await;
                renewed.map_err(|error| {
                    let (login, error) = (login.name.clone(), error.to_string());
                    Refused::new(502, NetworkReason::LoginNotRenewed { login, error })
                })?;
            }
        }
        Ok(())
    }

    /// Whether a request would use a login.
    pub(crate) fn uses_login(&self, fields: &Fields) -> bool {
        self.logins().any(|(_, access)| carries(fields, access))
    }

    /// The server has refused a request that used a login.
    pub(crate) fn login_was_refused(&self) {
        for (login, _) in self.logins() {
            login.was_refused();
        }
    }

    /// A request with values for the placeholders in its header.
    ///
    /// # Errors
    /// Where a placeholder stands in a place, or goes to a host, that is not its own.
    pub(crate) fn inject(&self, mut parts: RequestParts) -> Result<RequestParts, Refused> {
        self.nothing_of_others(&parts)?;
        for (login, access) in self.logins() {
            if stands_in(&access.placeholder, &parts) && !login.is_for(&self.origin, &parts) {
                let login = login.name.clone();
                return Err(Refused::new(
                    403,
                    NetworkReason::LoginWrongRequest { login },
                ));
            }
        }
        for secret in self.own() {
            if stands_in(&secret.placeholder, &parts) && !secret.spend() {
                return Err(Refused::new(403, used_up(secret)));
            }
            if put(secret, &mut parts)? {
                self.store.inject(&self.origin, &secret.value());
            }
        }
        let (secrets, keys) = (self.is_any_known(), self.signer().is_some());
        if secrets || keys {
            // Keys of Amazon's never go out, so their answers may come in parts.
            negotiate::normalise(&mut parts.fields, !secrets);
        }
        Ok(parts)
    }

    fn nothing_of_others(&self, parts: &RequestParts) -> Result<(), Refused> {
        for (placeholder, why) in self.others() {
            if stands_in(placeholder, parts) {
                return Err(Refused::new(403, why));
            }
        }
        Ok(())
    }

    /// Whether a body is to be held and looked at as a whole, and room for it. `length` is
    /// `None` where it is not said beforehand.
    ///
    /// # Errors
    /// Where it has to be, and cannot.
    pub(crate) fn holds_body(
        &self,
        parts: &RequestParts,
        host: &str,
        length: Option<u64>,
    ) -> Result<Option<BodyRoom>, Refused> {
        let signed = &Signed::of(parts, host);
        let hashed = match self.claim(signed)? {
            Some((_, claim)) => {
                let payload = claim.payload(signed.fields).map_err(invalid_signature)?;
                let read =
                    Minting::reads_body(&claim, signed, length).map_err(invalid_signature)?;
                payload == Payload::Hashed || read
            }
            None => false,
        };
        if hashed {
            let length = length.filter(|length| *length <= LONGEST_SIGNED);
            let room = length.and_then(|length| self.store.room(usize::try_from(length).ok()?));
            return match room {
                Some(room) => Ok(Some(room).filter(|_| length != Some(0))),
                None => Err(Refused::new(413, NetworkReason::AwsBodyTooLong)),
            };
        }
        let named = |secret: &Secret| {
            let mut places = secret.places.iter();
            places.any(|place| matches!(place, SecretPlace::Body(_)))
        };
        let wanted = !self.others().is_empty() || self.own().any(named);
        let length = length.filter(|length| (1..=LONGEST_BODY).contains(length) && wanted);
        Ok(length.and_then(|length| self.store.room(usize::try_from(length).ok()?)))
    }

    /// The signature of a request to a host whose requests the proxy signs.
    fn claim(&self, signed: &Signed<'_>) -> Result<Option<(&Signer, Claim)>, Refused> {
        let Some(signer) = self.signer() else {
            return Ok(None);
        };
        let refused = |error: &str| {
            let error = error.to_owned();
            Refused::new(403, NetworkReason::AwsNotSigned { error })
        };
        let claim = Claim::read(signed).map_err(refused)?;
        let claim = claim.ok_or_else(|| refused("this one is not"))?;
        if claim.id != signer.placeholder {
            return Err(refused("this one is, with a key of another cage"));
        }
        Ok(Some((signer, claim)))
    }

    /// A request signed again with the real keys, where requests to this host are. `host` is what
    /// its `Host` field says.
    ///
    /// # Errors
    /// Where it is not signed by the cage, or not for now.
    pub(crate) fn sign(
        &self,
        parts: RequestParts,
        host: &str,
        body: Option<&[u8]>,
    ) -> Result<RequestParts, Refused> {
        let signed = &Signed::of(&parts, host);
        let Some((signer, claim)) = self.claim(signed)? else {
            return Ok(parts);
        };
        let payload = match (claim.payload(signed.fields), body) {
            (Ok(Payload::Said(said)), _) => said,
            (Ok(Payload::Hashed), body) => hash(body.unwrap_or_default()),
            (Err(why), _) => return Err(invalid_signature(why)),
        };
        if !claim.is_now(SystemTime::now()) {
            return Err(invalid_signature(
                "the signature is not valid now: its time is more than 15 minutes off, or it has expired",
            ));
        }
        let path = claim.is_by(&signer.placeholder_key, signed, &payload);
        let path = path.ok_or_else(|| {
            invalid_signature("the signature does not match the request as it arrived")
        })?;
        let (host, _) = &self.origin;
        if let Some(minting) = Minting::of(&claim, host, signed, body)
            && !minting.is_named(&signer.credentials, &signer.hosts, host)
        {
            let name = minting.name().to_string();
            let reason = NetworkReason::AwsHandsOutCredentials { name };
            return Err(Refused::new(403, reason));
        }
        let keys = Keys {
            id: &signer.id,
            key: &signer.key,
            token: (signer.token.as_ref()).and_then(|token| std::str::from_utf8(token).ok()),
        };
        if let Some(token) = &signer.token {
            self.store.inject(&self.origin, token);
        }
        let (target, fields) = claim.sign(&keys, signed, &payload, path);
        Ok(RequestParts {
            method: parts.method,
            target,
            fields,
        })
    }

    /// A body with values for the placeholders in it; `None` where there are none.
    ///
    /// # Errors
    /// Where one of another host's secrets stands in it, or one of this host's in a field that
    /// is not its own.
    pub(crate) fn inject_body(
        &self,
        fields: &Fields,
        body: &[u8],
    ) -> Result<Option<Vec<u8>>, Refused> {
        for (placeholder, why) in self.others() {
            if find(body, placeholder.as_bytes()).is_some() {
                return Err(Refused::new(403, why));
            }
        }
        let Some(kind) = BodyKind::of(fields) else {
            return Ok(None);
        };
        let mut injected: Option<Vec<u8>> = None;
        for secret in self.own() {
            let places = secret.places.iter();
            let paths: Vec<&str> = places
                .filter_map(|place| match place {
                    SecretPlace::Body(path) => Some(path.as_str()),
                    _ => None,
                })
                .collect();
            if paths.is_empty() {
                continue;
            }
            let value = secret.value();
            let body = injected.as_deref().unwrap_or(body);
            match super::body::put(kind, body, &secret.placeholder, &value, &paths) {
                Put::With(with) => {
                    if !secret.spend() {
                        return Err(Refused::new(403, used_up(secret)));
                    }
                    self.store.inject(&self.origin, &value);
                    injected = Some(with);
                }
                Put::Nothing => {}
                Put::Misplaced => {
                    return Err(Refused::new(
                        403,
                        NetworkReason::SecretWrongPlace {
                            secret: secret.name.clone(),
                            place: "body:FIELD".into(),
                        },
                    ));
                }
            }
        }
        Ok(injected)
    }

    /// What looks at a body as it goes out.
    pub(crate) fn watch(&self) -> Option<Scanner> {
        let pattern = |(placeholder, reason): (&str, NetworkReason)| Pattern {
            text: placeholder.as_bytes().to_vec(),
            reason,
        };
        Scanner::new(self.others().into_iter().map(pattern).collect())
    }

    /// What covers values in what comes back.
    pub(crate) fn redactor(&self) -> Redactor {
        Redactor::new(&self.store, self.origin.clone())
    }

    /// Covers values in the fields of an answer.
    ///
    /// # Errors
    /// Where the answer is encoded so that values in it could not be covered.
    pub(crate) fn answer(&self, fields: &mut Fields) -> Result<(), Refused> {
        // First of all: what follows says in its errors what the server said.
        self.cover(fields);
        if self.is_any_known() || self.signer().is_some() {
            negotiate::check(fields)?;
        }
        Ok(())
    }

    /// Covers values in fields that come back, before a body or after it.
    pub(crate) fn cover(&self, fields: &mut Fields) {
        let Some(values) = self.store.injected(&self.origin) else {
            return;
        };
        fields.retain_mut(|(name, value)| {
            *value = values.covered(value);
            !values.is_in_name(name)
        });
    }
}

fn used_up(secret: &Secret) -> NetworkReason {
    NetworkReason::SecretUsedUp {
        secret: secret.name.clone(),
    }
}

fn invalid_signature(error: &str) -> Refused {
    let error = error.to_owned();
    Refused::new(403, NetworkReason::AwsSignatureInvalid { error })
}

/// Whether a placeholder stands anywhere in the head of a request.
fn stands_in(placeholder: &str, parts: &RequestParts) -> bool {
    let holds = |text: &[u8]| find(text, placeholder.as_bytes()).is_some();
    let in_fields = parts.fields.iter().any(|(name, value)| {
        holds(name.as_bytes()) || holds(value) || basic(value).is_some_and(|said| holds(&said))
    });
    in_fields || holds(&unescaped(parts.target.as_bytes()))
}

/// Whether a field holds the placeholder of a secret.
fn carries(fields: &Fields, secret: &Secret) -> bool {
    let placeholder = secret.placeholder.as_bytes();
    fields
        .iter()
        .any(|(_, value)| find(value, placeholder).is_some())
}

/// Puts one value where its placeholder stands in the head of a request. Returns whether it stands
/// there.
fn put(secret: &Secret, parts: &mut RequestParts) -> Result<bool, Refused> {
    let mut stands = false;
    let current = secret.value();
    let (placeholder, value) = (secret.placeholder.as_str(), current.as_slice());
    let holds = |text: &[u8]| find(text, placeholder.as_bytes()).is_some();
    let misplaced = |place: String| {
        let secret = secret.name.clone();
        Refused::new(403, NetworkReason::SecretWrongPlace { secret, place })
    };
    let nowhere = |place: String| {
        let secret = secret.name.clone();
        Refused::new(403, NetworkReason::SecretNowhere { secret, place })
    };
    let is = |wanted: &SecretPlace| secret.places.contains(wanted);
    for (name, said) in parts.fields.iter_mut() {
        if let Some(credentials) = basic(said).filter(|credentials| holds(credentials)) {
            let of_credentials = matches!(name.as_str(), "authorization");
            if !of_credentials {
                return Err(nowhere(format!("basic credentials in the field {name}")));
            }
            if !is(&SecretPlace::Basic) {
                return Err(misplaced("basic".into()));
            }
            *said = write_basic(&replace(&credentials, placeholder, value));
            stands = true;
        } else if holds(said) {
            if !is(&SecretPlace::Header(name.clone())) {
                return Err(misplaced(format!("header:{name}")));
            }
            *said = replace(said, placeholder, value);
            stands = true;
        }
    }
    let (path, query) = match parts.target.split_once('?') {
        Some((path, query)) => (path, Some(query)),
        None => (parts.target.as_str(), None),
    };
    if holds(&unescaped(path.as_bytes())) {
        return Err(nowhere("a path".into()));
    }
    let Some(query) = query.filter(|query| holds(&unescaped(query.as_bytes()))) else {
        return Ok(stands);
    };
    let named = |name: &[u8]| {
        is(&SecretPlace::Query(
            String::from_utf8_lossy(name).into_owned(),
        ))
    };
    let with = parameters(query, placeholder, value, named);
    if holds(&unescaped(with.as_bytes())) {
        return Err(misplaced("query:NAME".into()));
    }
    parts.target = format!("{path}?{with}");
    Ok(true)
}

#[cfg(test)]
#[path = "injector_tests.rs"]
mod tests;
