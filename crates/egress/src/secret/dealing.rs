//! What one connection's requests have to do with secrets.

use super::body::{Kind, Put};
use super::login::Login;
use super::place::{basic, forms, parameters, replace, unescaped, write_basic};
use super::scan::{Pattern, Scanner, find};
use super::sigv4::{Claim, Keys, Payload, Signed, hash};
use super::vault::{Room, SHORTEST, Secret, Signer, Value, Vault};
use crate::http::{Asked, Fields, Refused};
use ironcage_model::{AwsRule, HostName, HostRule, SecretPlace};
use std::rc::Rc;
use std::time::SystemTime;
use zeroize::Zeroizing;

/// Longest body that is held while it is looked at; a longer one is looked at as it goes.
const LONGEST_BODY: u64 = 256 * 1024;
/// The same for one whose hash is a part of the signature, and not said.
const LONGEST_SIGNED: u64 = 8 << 20;

/// Secrets, as far as requests to one host go.
pub(crate) struct Dealing {
    vault: Rc<Vault>,
    name: HostName,
    port: u16,
    /// Values go to who has proved their name, and to nobody else.
    proved: bool,
}

fn elsewhere(secret: &Secret) -> String {
    let name = &secret.name;
    match secret.is_given() {
        true => nowhere_else(name),
        false => format!(
            "the secret {name} is not leased to this cage now; `ironcage grant ID --secret {name}` gives it for a while"
        ),
    }
}

fn nowhere_else(name: &str) -> String {
    format!("the secret {name} is not for this host, or not without TLS")
}

impl Dealing {
    /// `None` where the cage has no secrets.
    pub(crate) fn of(vault: &Rc<Vault>, name: &HostName, port: u16, proved: bool) -> Option<Self> {
        (!vault.is_empty()).then(|| Dealing {
            vault: Rc::clone(vault),
            name: name.clone(),
            port,
            proved,
        })
    }

    fn is_for(&self, hosts: &[HostRule]) -> bool {
        self.proved && hosts.iter().any(|host| host.names(&self.name, self.port))
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
        (self.vault.secrets.iter()).any(|secret| self.is_known_to_host(secret))
    }

    fn own(&self) -> impl Iterator<Item = &Secret> {
        let secrets = self.vault.secrets.iter();
        secrets.filter(|secret| self.is_own(secret))
    }

    /// Who signs requests to this host, where they are signed anew.
    fn signer(&self) -> Option<&Signer> {
        let signer = self.vault.signer.as_ref();
        signer.filter(|signer| self.is_for(&signer.hosts))
    }

    /// Logins that are for this host, with their access tokens.
    fn logins(&self) -> impl Iterator<Item = (&Login, &Secret)> {
        let logins = self.vault.logins.iter();
        logins
            .filter(|(login, _)| self.is_for(&login.hosts))
            .filter_map(|(login, at)| Some((login, self.vault.secrets.get(*at)?)))
    }

    /// Placeholders that have no place in what goes to this host, and why not.
    fn others(&self) -> Vec<(&str, String)> {
        let secrets = self.vault.secrets.iter();
        let mut others: Vec<(&str, String)> = secrets
            .filter(|secret| !self.is_own(secret))
            .map(|secret| (secret.placeholder.as_str(), elsewhere(secret)))
            .collect();
        if let Some(signer) = &self.vault.signer {
            // What stands for the key goes nowhere: signing needs no more.
            let [id, key, _] = AwsRule::VARIABLES;
            others.push((&signer.placeholder_key, nowhere_else(key)));
            if self.signer().is_none() {
                others.push((&signer.placeholder, nowhere_else(id)));
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
                renewed.map_err(|why| Refused::new(502, why))?;
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

    /// Puts values for placeholders in the head of a request.
    ///
    /// # Errors
    /// Where a placeholder stands in a place, or goes to a host, that is not its own.
    pub(crate) fn head(&self, asked: &mut Asked<'_>) -> Result<(), Refused> {
        self.nothing_of_others(asked)?;
        for secret in self.own() {
            if stands_in(&secret.placeholder, asked) && !secret.spend() {
                return Err(Refused::new(403, used_up(secret)));
            }
            put(secret, asked)?;
        }
        if self.signer().is_some() {
            // The same as below, but that parts of objects are asked for: keys never go out, and
            // the field with the session's token is none that Amazon sends back.
            asked.fields.retain(|(name, _)| name != "accept-encoding");
            let identity = ("accept-encoding".to_owned(), b"identity".to_vec());
            asked.fields.push(identity);
        }
        if self.is_any_known() {
            // A value could not be covered in what is compressed, nor where each answer holds a
            // part of it.
            asked.fields.retain(|(name, _)| {
                !matches!(
                    name.as_str(),
                    "accept-encoding" | "sec-websocket-extensions" | "range" | "if-range"
                )
            });
            let identity = ("accept-encoding".to_owned(), b"identity".to_vec());
            asked.fields.push(identity);
        }
        Ok(())
    }

    fn nothing_of_others(&self, asked: &Asked<'_>) -> Result<(), Refused> {
        for (placeholder, why) in self.others() {
            if stands_in(placeholder, asked) {
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
        length: Option<u64>,
        signed: &Signed<'_>,
    ) -> Result<Option<Room<'_>>, Refused> {
        let hashed = match self.claim(signed)? {
            Some((_, claim)) => {
                let payload = claim.payload(signed.fields);
                payload.map_err(|why| Refused::new(403, why))? == Payload::Hashed
            }
            None => false,
        };
        if hashed {
            let length = length.filter(|length| *length <= LONGEST_SIGNED);
            let room = length.and_then(|length| self.vault.room(usize::try_from(length).ok()?));
            return match room {
                Some(room) => Ok(Some(room).filter(|_| length != Some(0))),
                None => Err(Refused::new(
                    413,
                    "a body that is a part of the signature has its length said beforehand, and at most 8 MiB",
                )),
            };
        }
        let named = |secret: &Secret| {
            let mut places = secret.places.iter();
            places.any(|place| matches!(place, SecretPlace::Body(_)))
        };
        let wanted = !self.others().is_empty() || self.own().any(named);
        let length = length.filter(|length| (1..=LONGEST_BODY).contains(length) && wanted);
        Ok(length.and_then(|length| self.vault.room(usize::try_from(length).ok()?)))
    }

    /// What a request to a host whose requests are signed anew says of its signature.
    fn claim(&self, signed: &Signed<'_>) -> Result<Option<(&Signer, Claim)>, Refused> {
        let Some(signer) = self.signer() else {
            return Ok(None);
        };
        let refused =
            |why: &str| Refused::new(403, format!("requests to this host are signed: {why}"));
        let claim = Claim::read(signed).map_err(refused)?;
        let claim = claim.ok_or_else(|| refused("this one is not"))?;
        if claim.id != signer.placeholder {
            return Err(refused("this one is, with a key that is not this cage's"));
        }
        Ok(Some((signer, claim)))
    }

    /// Signs a request anew, where requests to this host are. Returns its target and fields.
    ///
    /// # Errors
    /// Where it is not signed by the cage, or not for now.
    pub(crate) fn sign(
        &self,
        signed: &Signed<'_>,
        body: Option<&[u8]>,
    ) -> Result<Option<(String, Fields)>, Refused> {
        let Some((signer, claim)) = self.claim(signed)? else {
            return Ok(None);
        };
        let refused = |why: &str| Refused::new(403, why.to_owned());
        let payload = match (claim.payload(signed.fields), body) {
            (Ok(Payload::Said(said)), _) => said,
            (Ok(Payload::Hashed), body) => hash(body.unwrap_or_default()),
            (Err(why), _) => return Err(refused(why)),
        };
        if !claim.is_now(SystemTime::now()) {
            return Err(refused(
                "its signature is not for now: the time that it says is more than 15 minutes off, or it has expired",
            ));
        }
        let path = claim.is_by(&signer.placeholder_key, signed, &payload);
        let path =
            path.ok_or_else(|| refused("its signature does not fit the request as it came here"))?;
        let keys = Keys {
            id: &signer.id,
            key: &signer.key,
            token: signer.token.as_ref().map(|token| token.as_str()),
        };
        Ok(Some(claim.sign(&keys, signed, &payload, path)))
    }

    /// Puts values for placeholders in a body.
    ///
    /// # Errors
    /// Where one of another host's secrets stands in it, or one of this host's in a field that
    /// is not its own.
    pub(crate) fn body(&self, fields: &Fields, body: &mut Vec<u8>) -> Result<(), Refused> {
        for (placeholder, why) in self.others() {
            if find(body, placeholder.as_bytes()).is_some() {
                return Err(Refused::new(403, why));
            }
        }
        let Some(kind) = Kind::of(fields) else {
            return Ok(());
        };
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
            match super::body::put(kind, body, &secret.placeholder, &value, &paths) {
                Put::With(with) => {
                    if !secret.spend() {
                        return Err(Refused::new(403, used_up(secret)));
                    }
                    *body = with;
                }
                Put::Nothing => {}
                Put::Misplaced => {
                    return Err(Refused::new(
                        403,
                        format!(
                            "the secret {} is not for this field of the body",
                            secret.name
                        ),
                    ));
                }
            }
        }
        Ok(())
    }

    /// What looks at a body as it goes out.
    pub(crate) fn watch(&self) -> Option<Scanner> {
        let pattern = |(placeholder, why): (&str, String)| {
            Pattern::stopping(placeholder.as_bytes().to_vec(), why)
        };
        Scanner::new(self.others().into_iter().map(pattern).collect())
    }

    /// Every value that is not to come back, those of before included.
    fn values(&self) -> impl Iterator<Item = Value> {
        let secrets = self.vault.secrets.iter().flat_map(Secret::every_value);
        let keys = self.vault.signer.iter().flat_map(|signer| {
            let value = |text: &str| Rc::new(Zeroizing::new(text.as_bytes().to_vec()));
            let token = signer.token.as_ref().map(|token| value(token));
            [Some(value(&signer.key)), token]
        });
        secrets.chain(keys.flatten())
    }

    /// What covers values in what comes back.
    pub(crate) fn mask(&self) -> Option<Scanner> {
        let patterns = self.values().flat_map(|value| {
            let exact = forms(&value).into_iter().map(Pattern::covered);
            exact.chain([Pattern::covered_in_escapes(value.to_vec())])
        });
        Scanner::new(patterns.collect())
    }

    /// Covers values in the fields of an answer.
    ///
    /// # Errors
    /// Where the answer is compressed, so that values in it could not be covered.
    pub(crate) fn answer(&self, fields: &mut Fields) -> Result<(), Refused> {
        let encoded = fields.iter().any(|(name, value)| {
            name == "content-encoding" && !value.eq_ignore_ascii_case(b"identity")
        });
        if encoded && (self.is_any_known() || self.signer().is_some()) {
            return Err(Refused::new(
                502,
                "the server's answer is compressed, which it was not asked for: a secret in it could not be covered",
            ));
        }
        self.cover(fields);
        Ok(())
    }

    /// Covers values in fields that come back, before a body or after it.
    pub(crate) fn cover(&self, fields: &mut Fields) {
        let mut mask = self.mask();
        let every: Vec<Vec<u8>> = self.values().map(|value| squeezed(&value)).collect();
        fields.retain_mut(|(name, value)| {
            if let Some(Ok(covered)) = mask.as_mut().map(|mask| mask.whole(value)) {
                *value = covered;
            }
            // A name cannot be covered: it would be another.
            let name = squeezed(name.as_bytes());
            !every
                .iter()
                .any(|value| value.len() >= SHORTEST && find(&name, value).is_some())
        });
    }
}

/// Letters and digits alone, in small letters: what is left of a value in the name of a field.
fn squeezed(text: &[u8]) -> Vec<u8> {
    let kept = text.iter().filter(|byte| byte.is_ascii_alphanumeric());
    kept.map(u8::to_ascii_lowercase).collect()
}

fn used_up(secret: &Secret) -> String {
    format!("the lease on the secret {} is used up", secret.name)
}

/// Whether a placeholder stands anywhere in the head of a request.
fn stands_in(placeholder: &str, asked: &Asked<'_>) -> bool {
    let holds = |text: &[u8]| find(text, placeholder.as_bytes()).is_some();
    let in_fields = asked.fields.iter().any(|(name, value)| {
        holds(name.as_bytes()) || holds(value) || basic(value).is_some_and(|said| holds(&said))
    });
    in_fields || holds(&unescaped(asked.target.as_bytes()))
}

/// Whether a field holds the placeholder of a secret.
fn carries(fields: &Fields, secret: &Secret) -> bool {
    let placeholder = secret.placeholder.as_bytes();
    fields
        .iter()
        .any(|(_, value)| find(value, placeholder).is_some())
}

/// Puts one value where its placeholder stands in the head of a request.
fn put(secret: &Secret, asked: &mut Asked<'_>) -> Result<(), Refused> {
    let current = secret.value();
    let (placeholder, value) = (secret.placeholder.as_str(), current.as_slice());
    let holds = |text: &[u8]| find(text, placeholder.as_bytes()).is_some();
    let misplaced = |place: &str| {
        Refused::new(
            403,
            format!("the secret {} is not for {place}", secret.name),
        )
    };
    let is = |wanted: &SecretPlace| secret.places.contains(wanted);
    for (name, said) in asked.fields.iter_mut() {
        if let Some(credentials) = basic(said).filter(|credentials| holds(credentials)) {
            let of_credentials = matches!(name.as_str(), "authorization");
            if !(of_credentials && is(&SecretPlace::Basic)) {
                return Err(misplaced(&format!("credentials in the field {name}")));
            }
            *said = write_basic(&replace(&credentials, placeholder, value));
        } else if holds(said) {
            if !is(&SecretPlace::Header(name.clone())) {
                return Err(misplaced(&format!("the field {name}")));
            }
            *said = replace(said, placeholder, value);
        }
    }
    let (path, query) = match asked.target.split_once('?') {
        Some((path, query)) => (path, Some(query)),
        None => (asked.target.as_str(), None),
    };
    if holds(&unescaped(path.as_bytes())) {
        return Err(misplaced("a path"));
    }
    let Some(query) = query.filter(|query| holds(&unescaped(query.as_bytes()))) else {
        return Ok(());
    };
    let named = |name: &[u8]| {
        is(&SecretPlace::Query(
            String::from_utf8_lossy(name).into_owned(),
        ))
    };
    let with = parameters(query, placeholder, value, named);
    if holds(&unescaped(with.as_bytes())) {
        return Err(misplaced("this parameter of the query"));
    }
    *asked.target = format!("{path}?{with}");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use ironcage_model::{Destination, Ports, SecretRule};

    fn name(text: &str) -> HostName {
        HostName::from_ascii(text.as_bytes()).unwrap()
    }

    fn dealing(host: &str, more: &[SecretPlace]) -> Dealing {
        let secret = |own: &str, host: &str| {
            let hosts = vec![HostRule {
                to: Destination::Name(name(host)),
                ports: Ports::Web,
            }];
            let places = SecretRule::usual_places().into_iter();
            let places = places.chain(more.iter().cloned()).collect();
            let (placeholder, value) = (format!("ironcage-{own}"), format!("value-of-{own}"));
            Secret::new(own.into(), placeholder, &value, hosts, places)
        };
        let vault = Rc::new(Vault {
            secrets: vec![secret("a", "a.com"), secret("b", "b.com")],
            ..Vault::default()
        });
        Dealing::of(&vault, &name(host), 443, true).unwrap()
    }

    fn head(dealing: &Dealing, target: &str, field: (&str, &str)) -> Result<String, Refused> {
        let mut target = target.to_owned();
        let mut fields: Fields = vec![(field.0.to_owned(), field.1.as_bytes().to_vec())];
        dealing.head(&mut Asked {
            method: "GET",
            target: &mut target,
            fields: &mut fields,
        })?;
        let said = String::from_utf8(fields[0].1.clone()).unwrap();
        Ok(format!("{target} {said}"))
    }

    #[test]
    fn a_value_stands_where_it_may_and_only_there() {
        let a = dealing("a.com", &[SecretPlace::Query("key".into())]);
        let bearer = ("authorization", "Bearer ironcage-a");
        assert_eq!(head(&a, "/", bearer).unwrap(), "/ Bearer value-of-a");
        let basic = head(&a, "/", ("authorization", "Basic eDppcm9uY2FnZS1h")).unwrap();
        assert_eq!(basic, "/ Basic eDp2YWx1ZS1vZi1h");
        let query = head(&a, "/x?key=ironcage-a&y=1", ("x", "y")).unwrap();
        assert_eq!(query, "/x?key=value-of-a&y=1 y");
        for (target, field) in [
            ("/", ("user-agent", "ironcage-a")),
            ("/?other=ironcage-a", ("x", "y")),
            ("/?ironcage-a=1", ("x", "y")),
            ("/ironcage-a", ("x", "y")),
            ("/", ("authorization", "Bearer ironcage-b")),
            ("/", ("authorization", "Basic eDppcm9uY2FnZS1i")),
            ("/ironcage%2Db", ("x", "y")),
            ("/", ("x-other", "Basic eDppcm9uY2FnZS1h")),
        ] {
            assert_eq!(
                head(&a, target, field).unwrap_err().status,
                403,
                "{target} {field:?}"
            );
        }
    }

    #[test]
    fn bodies_are_looked_at_and_answers_covered() {
        let a = dealing("a.com", &[SecretPlace::Body("token".into())]);
        let json: Fields = vec![("content-type".into(), b"application/json".to_vec())];
        let mut body = br#"{"token":"ironcage-a"}"#.to_vec();
        a.body(&json, &mut body).unwrap();
        assert_eq!(body, br#"{"token":"value-of-a"}"#);
        let form: Fields = vec![(
            "content-type".into(),
            b"application/x-www-form-urlencoded".to_vec(),
        )];
        let mut body = b"token=ironcage-a&x=1".to_vec();
        a.body(&form, &mut body).unwrap();
        assert_eq!(body, b"token=value-of-a&x=1");
        let mut body = b"token=ironcage-a&x=ironcage-a".to_vec();
        assert_eq!(a.body(&form, &mut body).unwrap_err().status, 403);
        let mut body = br#"{"token":"\u0069roncage-a","issue":"ironcage-a"}"#.to_vec();
        assert_eq!(a.body(&json, &mut body).unwrap_err().status, 403);
        let mut other = b"text with ironcage-b in it".to_vec();
        assert_eq!(a.body(&form, &mut other).unwrap_err().status, 403);
        assert!(a.watch().unwrap().pass(b"x ironcage-b").is_err());
        assert!(a.watch().unwrap().pass(b"x ironcage-a").is_ok());
        let covered = a.mask().unwrap().whole(b"<value-of-a>").unwrap();
        assert_eq!(covered, b"<**********>");
        let mut fields: Fields = vec![("location".into(), b"/?t=value-of-a".to_vec())];
        a.answer(&mut fields).unwrap();
        assert_eq!(fields[0].1, b"/?t=**********");
        let mut named: Fields = vec![
            ("x-value-of-a".into(), b"1".to_vec()),
            ("x-other".into(), b"1".to_vec()),
        ];
        a.answer(&mut named).unwrap();
        assert_eq!(named.len(), 1);
        for echoed in [
            "valu\\u0065-of-a",
            "%76alue%2dof-a",
            "76616c75652d6f662d61",
            "76616C75652D6F662D61",
            "value&#45;of&#x2D;a",
        ] {
            let covered = a.mask().unwrap().whole(echoed.as_bytes()).unwrap();
            assert_eq!(covered, "*".repeat(echoed.len()).into_bytes(), "{echoed}");
        }
        let mut gzip: Fields = vec![("content-encoding".into(), b"gzip".to_vec())];
        assert!(a.answer(&mut gzip).is_err());
        let request = Signed {
            method: "POST",
            target: "/",
            host: "a.com",
            fields: &json,
        };
        let holds = |length| a.holds_body(Some(length), &request).unwrap().is_some();
        assert!(holds(100) && !holds(1 << 30) && !holds(0));
        // A value that it had before is covered too.
        a.vault.secrets[0].renew("another-value");
        let covered = a
            .mask()
            .unwrap()
            .whole(b"value-of-a another-value")
            .unwrap();
        assert_eq!(covered, b"********** *************");
    }
}
