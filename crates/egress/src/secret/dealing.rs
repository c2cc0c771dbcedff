//! What one connection's requests have to do with secrets.

use super::body::{Kind, Put};
use super::place::{basic, forms, parameters, replace, unescaped, write_basic};
use super::scan::{Pattern, Scanner, find};
use super::vault::{Room, SHORTEST, Secret, Vault};
use crate::http::{Asked, Fields, Refused};
use ironcage_model::{HostName, SecretPlace};
use std::rc::Rc;

/// Longest body that is held while it is looked at; a longer one is looked at as it goes.
const LONGEST_BODY: u64 = 256 * 1024;

/// Secrets, as far as requests to one host go.
pub(crate) struct Dealing {
    vault: Rc<Vault>,
    name: HostName,
    port: u16,
    /// Values go to who has proved their name, and to nobody else.
    proved: bool,
}

fn elsewhere(secret: &Secret) -> String {
    match secret.is_given() {
        true => format!(
            "the secret {} is not for this host, or not without TLS",
            secret.name
        ),
        false => format!(
            "the secret {} is not leased to this cage now; `ironcage grant ID --secret {}` gives it for a while",
            secret.name, secret.name
        ),
    }
}

impl Dealing {
    /// `None` where the cage has no secrets.
    pub(crate) fn of(vault: &Rc<Vault>, name: &HostName, port: u16, proved: bool) -> Option<Self> {
        (!vault.secrets.is_empty()).then(|| Dealing {
            vault: Rc::clone(vault),
            name: name.clone(),
            port,
            proved,
        })
    }

    fn is_own(&self, secret: &Secret) -> bool {
        secret.is_given() && self.is_known_to_host(secret)
    }

    /// Whether the host may have the value, now or from a lease that is over: then it may come
    /// back in its answers.
    fn is_known_to_host(&self, secret: &Secret) -> bool {
        let mut hosts = secret.hosts.iter();
        self.proved && hosts.any(|host| host.names(&self.name, self.port))
    }

    fn is_any_known(&self) -> bool {
        (self.vault.secrets.iter()).any(|secret| self.is_known_to_host(secret))
    }

    fn own(&self) -> impl Iterator<Item = &Secret> {
        self.vault
            .secrets
            .iter()
            .filter(|secret| self.is_own(secret))
    }

    fn others(&self) -> impl Iterator<Item = &Secret> {
        (self.vault.secrets.iter()).filter(|secret| !self.is_own(secret))
    }

    /// Puts values for placeholders in the head of a request.
    ///
    /// # Errors
    /// Where a placeholder stands in a place, or goes to a host, that is not its own.
    pub(crate) fn head(&self, asked: &mut Asked<'_>) -> Result<(), Refused> {
        self.nothing_of_others(asked)?;
        for secret in self.own() {
            if stands_in(secret, asked) && !secret.spend() {
                return Err(Refused::new(403, used_up(secret)));
            }
            put(secret, asked)?;
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
        for secret in self.others() {
            if stands_in(secret, asked) {
                return Err(Refused::new(403, elsewhere(secret)));
            }
        }
        Ok(())
    }

    /// Whether a body of this length is to be held and looked at as a whole, and room for it.
    pub(crate) fn holds_body(&self, length: u64) -> Option<Room<'_>> {
        let named = |secret: &Secret| {
            let mut places = secret.places.iter();
            places.any(|place| matches!(place, SecretPlace::Body(_)))
        };
        let wanted = self.others().next().is_some() || self.own().any(named);
        if !wanted || length == 0 || length > LONGEST_BODY {
            return None;
        }
        self.vault.room(usize::try_from(length).ok()?)
    }

    /// Puts values for placeholders in a body.
    ///
    /// # Errors
    /// Where one of another host's secrets stands in it, or one of this host's in a field that
    /// is not its own.
    pub(crate) fn body(&self, fields: &Fields, body: &mut Vec<u8>) -> Result<(), Refused> {
        for secret in self.others() {
            if find(body, secret.placeholder.as_bytes()).is_some() {
                return Err(Refused::new(403, elsewhere(secret)));
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
            match super::body::put(kind, body, &secret.placeholder, &secret.value, &paths) {
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
        let pattern = |secret: &Secret| {
            let text = secret.placeholder.clone().into_bytes();
            Pattern::stopping(text, elsewhere(secret))
        };
        Scanner::new(self.others().map(pattern).collect())
    }

    /// What covers values in what comes back.
    pub(crate) fn mask(&self) -> Option<Scanner> {
        let patterns = self.vault.secrets.iter().flat_map(|secret| {
            let exact = forms(&secret.value).into_iter().map(Pattern::covered);
            exact.chain([Pattern::covered_in_escapes(secret.value.to_vec())])
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
        if encoded && self.is_any_known() {
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
        fields.retain_mut(|(name, value)| {
            if let Some(Ok(covered)) = mask.as_mut().map(|mask| mask.whole(value)) {
                *value = covered;
            }
            // A name cannot be covered: it would be another.
            let name = squeezed(name.as_bytes());
            !self.vault.secrets.iter().any(|secret| {
                let value = squeezed(&secret.value);
                value.len() >= SHORTEST && find(&name, &value).is_some()
            })
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

/// Whether the placeholder of a secret stands anywhere in the head of a request.
fn stands_in(secret: &Secret, asked: &Asked<'_>) -> bool {
    let holds = |text: &[u8]| find(text, secret.placeholder.as_bytes()).is_some();
    let in_fields = asked.fields.iter().any(|(name, value)| {
        holds(name.as_bytes()) || holds(value) || basic(value).is_some_and(|said| holds(&said))
    });
    in_fields || holds(&unescaped(asked.target.as_bytes()))
}

/// Puts one value where its placeholder stands in the head of a request.
fn put(secret: &Secret, asked: &mut Asked<'_>) -> Result<(), Refused> {
    let (placeholder, value) = (secret.placeholder.as_str(), secret.value.as_slice());
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
    use ironcage_model::{Destination, HostRule, Ports, SecretRule};
    use zeroize::Zeroizing;

    fn name(text: &str) -> HostName {
        HostName::from_ascii(text.as_bytes()).unwrap()
    }

    fn dealing(host: &str, more: &[SecretPlace]) -> Dealing {
        let secret = |own: &str, host: &str| Secret {
            name: own.into(),
            placeholder: format!("ironcage-{own}"),
            value: Zeroizing::new(format!("value-of-{own}").into_bytes()),
            hosts: vec![HostRule {
                to: Destination::Name(name(host)),
                ports: Ports::Web,
            }],
            places: SecretRule::usual_places()
                .into_iter()
                .chain(more.iter().cloned())
                .collect(),
            left: std::cell::Cell::new(crate::order::SecretUses::Any),
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
        assert!(a.holds_body(100).is_some() && a.holds_body(1 << 30).is_none());
    }
}
