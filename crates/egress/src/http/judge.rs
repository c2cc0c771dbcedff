//! The decision over requests, and their record: what one connection's requests are held to,
//! whichever version of HTTP carries them.

use super::Passing;
use super::head::{Authority, Fields, Refused};
use crate::decide::Rules;
use crate::ledger::Kind;
use crate::reader::Reader;
use crate::secret::{Dealing, Room, Scanner, Signed, Stopped, unescaped};
use ironcage_model::{HttpRule, NetworkVerdict, Protocol, RequestPath};
use std::cell::{Cell, RefCell};
use std::rc::Rc;

/// Longest path in the record.
const LONGEST_PATH: usize = 160;

/// What somebody can do about a refusal.
const ASK: &str = "the cage refused this, not the server: ask the user, or run `ironcage ask --host NAME --reason TEXT` where the cage has a ceiling";

/// Fields of intermediaries that say for which host or path a request was.
const FORWARDED: [&str; 8] = [
    "host", "method", "path", "prefix", "server", "uri", "url", "query",
];

/// Parameters of a query by which some servers take another method.
const METHOD_PARAMETERS: [&str; 5] = [
    "_method",
    "_httpmethod",
    "$httpmethod",
    "x-http-method",
    "x-http-method-override",
];

/// Whether a request can say by this field that it is another. Servers that hand fields on as
/// variables do not tell `_` and other signs from `-`.
fn overrides(name: &str) -> bool {
    let sign = |c: char| {
        if c.is_ascii_alphanumeric() {
            c.to_ascii_lowercase()
        } else {
            '-'
        }
    };
    let name: String = name.chars().map(sign).collect();
    let Some(rest) = name.strip_prefix("x-") else {
        return matches!(name.as_str(), "forwarded" | "http-method-override");
    };
    rest.contains("override")
        || rest.starts_with("original-")
        || rest.starts_with("rewrite-")
        || matches!(
            rest,
            "http-method" | "method" | "host" | "envoy-original-path"
        )
        || (rest.strip_prefix("forwarded-")).is_some_and(|said| FORWARDED.contains(&said))
}

/// The parameter of a query by which some servers take another method, where there is one.
fn method_parameter(target: &str) -> Option<&'static str> {
    let (_, query) = target.split_once('?')?;
    query.split(['&', ';']).find_map(|part| {
        let name = part.split('=').next().unwrap_or_default();
        let name = unescaped(name.as_bytes());
        let mut known = METHOD_PARAMETERS.iter().copied();
        known.find(|known| name.trim_ascii().eq_ignore_ascii_case(known.as_bytes()))
    })
}

/// Who keeps the record of requests.
pub(crate) trait Recorder {
    /// One was refused.
    fn refuse(&self, kind: Kind);
    /// One was answered, or found nobody who would.
    fn note(&self, kind: Kind);
}

/// What the requests of one connection are held to.
pub(crate) struct Judge {
    pub(crate) authority: Authority,
    /// Where the requests are that are allowed: as the rules are when one comes.
    pub(crate) rules: Rc<Rules>,
    /// The rule that let the connection out.
    pub(crate) rule: String,
    /// What the requests have to do with secrets, where the cage has any.
    pub(crate) dealing: Option<Dealing>,
    /// Who reads the bodies, where they are a model's.
    pub(crate) reader: Option<Rc<Reader>>,
    pub(crate) protocol: Protocol,
    /// Where the connection leads, once it does.
    pub(crate) address: RefCell<Option<String>>,
    pub(crate) recorder: Rc<dyn Recorder>,
}

/// A request as the judge sees it; it may change the target and the fields.
pub(crate) struct Asked<'a> {
    pub(crate) method: &'a str,
    pub(crate) target: &'a mut String,
    pub(crate) fields: &'a mut Fields,
}

/// A request that goes on.
#[derive(Debug)]
pub(crate) struct Passed {
    /// Method and path, for the record.
    line: String,
    rule: String,
    /// Whether it carries the token of a login.
    uses_login: bool,
    /// Whether it is on record.
    told: Cell<bool>,
}

/// Method and path without the query, in which secrets may stand.
fn line(method: &str, target: &str) -> String {
    let path = target.split('?').next().unwrap_or_default();
    let mut line = format!("{method} {path}");
    if line.len() > LONGEST_PATH {
        let end = (0..=LONGEST_PATH)
            .rev()
            .find(|at| line.is_char_boundary(*at));
        line.truncate(end.unwrap_or(0));
        line.push('\u{2026}');
    }
    line
}

impl Judge {
    /// Makes sure that what a request is to carry is there: tokens of logins are renewed.
    pub(crate) async fn refresh(&self, fields: &Fields) -> Result<(), Refused> {
        let Some(dealing) = &self.dealing else {
            return Ok(());
        };
        let renewed = dealing.refresh(fields).await;
        if let Err(refused) = &renewed {
            self.refuse(None, refused);
        }
        renewed
    }

    /// Signs a request anew, where that is done: its target and its fields.
    pub(crate) fn sign(
        &self,
        (method, target, fields): (&str, &str, &Fields),
        body: Option<&[u8]>,
    ) -> Result<Option<(String, Fields)>, Refused> {
        let Some(dealing) = &self.dealing else {
            return Ok(None);
        };
        let host = &self.authority.written();
        dealing.sign(
            &Signed {
                method,
                target,
                host,
                fields,
            },
            body,
        )
    }

    /// Room for a body that is to be held and looked at as a whole.
    pub(crate) fn holds_body(
        &self,
        (method, target, fields): (&str, &str, &Fields),
        length: Option<u64>,
    ) -> Result<Option<Room<'_>>, Refused> {
        let Some(dealing) = &self.dealing else {
            return Ok(None);
        };
        let host = &self.authority.written();
        dealing.holds_body(
            length,
            &Signed {
                method,
                target,
                host,
                fields,
            },
        )
    }

    /// Decides over a request.
    pub(crate) fn judge(&self, mut asked: Asked<'_>) -> Result<Passed, Refused> {
        let shown = line(asked.method, asked.target);
        let dealing = self.dealing.as_ref();
        let uses_login = dealing.is_some_and(|dealing| dealing.uses_login(asked.fields));
        let decided = self.decide(&asked).and_then(|rule| {
            if let Some(dealing) = &self.dealing {
                dealing.head(&mut asked)?;
            }
            Ok(rule)
        });
        match decided {
            Ok(rule) => Ok(Passed {
                line: shown,
                rule,
                uses_login,
                told: Cell::new(false),
            }),
            Err(refused) => {
                self.refuse(Some(shown), &refused);
                Err(refused)
            }
        }
    }

    fn decide(&self, asked: &Asked<'_>) -> Result<String, Refused> {
        let Authority { name, port, .. } = &self.authority;
        let Some(rules) = self.rules.requests(name, *port) else {
            return Ok(self.rule.clone());
        };
        // Some servers take the method or the path from there instead.
        if let Some((name, _)) = asked.fields.iter().find(|(name, _)| overrides(name)) {
            return Err(Refused::new(
                403,
                format!("the field {name} can make it another request than the rules see"),
            ));
        }
        // A question about the server as a whole has no path.
        let path = match asked.target.as_str() {
            "*" => RequestPath::read("/"),
            target => RequestPath::read(target),
        };
        let path = path.map_err(|error| Refused::new(403, error.0))?;
        match rules.iter().find(|rule| rule.allows(asked.method, &path)) {
            Some(rule) => match method_parameter(asked.target) {
                Some(name) if !rule.methods.is_empty() => Err(Refused::new(
                    403,
                    format!("the parameter {name} can make it another method than the rules see"),
                )),
                _ => {
                    let about = |rule: &HttpRule| {
                        rule.is_about(name, *port) && rule.allows(asked.method, &path)
                    };
                    self.rules
                        .begin_request(about)
                        .map_err(|denied| Refused::new(403, denied.reason))?;
                    Ok(rule.to_string())
                }
            },
            None => Err(Refused::new(
                403,
                format!("no rule allows {} here", line(asked.method, asked.target)),
            )),
        }
    }

    fn kind(&self, verdict: NetworkVerdict) -> Kind {
        Kind {
            verdict,
            host: self.authority.name.to_string(),
            port: self.authority.port,
            protocol: self.protocol,
            address: self.address.borrow().clone(),
            rule: None,
            reason: None,
            request: None,
            status: None,
        }
    }

    /// Records that something was refused: a request, or what was none.
    pub(crate) fn refuse(&self, shown: Option<String>, refused: &Refused) {
        self.recorder.refuse(Kind {
            request: shown,
            status: Some(refused.status),
            reason: Some(refused.reason.clone()),
            ..self.kind(NetworkVerdict::Denied)
        });
    }

    /// What looks at what goes out.
    fn watch(&self) -> Option<Scanner> {
        self.dealing.as_ref().and_then(Dealing::watch)
    }

    /// What covers secrets in what comes back.
    fn mask(&self) -> Option<Scanner> {
        self.dealing.as_ref().and_then(Dealing::mask)
    }

    /// What the body of a request passes; one that was held was looked at before.
    pub(crate) fn way_out(&self, fields: &Fields, held: bool) -> Passing {
        let reader = self.reader.as_ref();
        let watch = reader.and_then(|reader| reader.request(fields));
        Passing::new(self.watch().filter(|_| !held), watch)
    }

    /// What the body of an answer passes.
    pub(crate) fn way_back(&self, status: u16, fields: &Fields) -> Passing {
        let reader = self.reader.as_ref();
        let watch = reader.and_then(|reader| reader.answer(status, fields));
        Passing::new(self.mask(), watch)
    }

    /// What passes both ways where another protocol is spoken from now on.
    pub(crate) fn both_ways(&self) -> (Passing, Passing) {
        if let Some(reader) = &self.reader {
            reader.switched();
        }
        let out = Passing::new(self.watch(), None);
        (out, Passing::new(self.mask(), None))
    }

    /// Covers secrets in the fields of an answer.
    pub(crate) fn answer(&self, fields: &mut Fields) -> Result<(), Refused> {
        match &self.dealing {
            Some(dealing) => dealing.answer(fields),
            None => Ok(()),
        }
    }

    /// Covers secrets in fields that follow a body of an answer.
    pub(crate) fn cover(&self, fields: &mut Fields) {
        if let Some(dealing) = &self.dealing {
            dealing.cover(fields);
        }
    }

    /// Records how a request broke off: because it was stopped, or otherwise.
    pub(crate) fn broke(&self, passed: &Passed, error: &std::io::Error) {
        let inner = error.get_ref();
        match inner.and_then(|inner| inner.downcast_ref::<Stopped>()) {
            Some(stopped) => self.stop(passed, &Refused::new(403, stopped.reason.clone())),
            None => self.unanswered(passed, "the connection broke"),
        }
    }

    /// Records that a request which was to go on did not.
    pub(crate) fn stop(&self, passed: &Passed, refused: &Refused) {
        passed.told.set(true);
        self.refuse(Some(passed.line.clone()), refused);
    }

    /// Records how a server answered a request, once.
    pub(crate) fn answered(&self, passed: &Passed, status: u16) {
        if let (401, true, Some(dealing)) = (status, passed.uses_login, &self.dealing) {
            dealing.login_was_refused();
        }
        self.note(passed, Some(status), None);
    }

    /// Records that a request went on and got no answer.
    pub(crate) fn unanswered(&self, passed: &Passed, reason: &str) {
        self.note(passed, None, Some(reason.to_owned()));
    }

    fn note(&self, passed: &Passed, status: Option<u16>, reason: Option<String>) {
        if !passed.told.replace(true) {
            self.recorder.note(Kind {
                request: Some(passed.line.clone()),
                status,
                reason,
                rule: Some(passed.rule.clone()),
                ..self.kind(NetworkVerdict::Allowed)
            });
        }
    }
}

/// The words of a refusal, which a program can read.
pub(crate) fn refusal(refused: &Refused) -> String {
    let (error, reason) = ("ironcage", &refused.reason);
    // Who reads it is often a model: it is told what to do instead of trying on.
    let said = match refused.status {
        403 => serde_json::json!({ "error": error, "reason": reason, "ask": ASK }),
        _ => serde_json::json!({ "error": error, "reason": reason }),
    };
    let mut body = said.to_string();
    body.push('\n');
    body
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_makes_a_request_another_is_known_in_every_spelling() {
        for name in [
            "x-http-method-override",
            "x_http_method_override",
            "x-http.method-override",
            "x-method-override",
            "x-http-method",
            "x-original-url",
            "x_original_uri",
            "x-rewrite-url",
            "x-envoy-original-path",
            "x-forwarded-host",
            "x-forwarded-uri",
            "x-forwarded-prefix",
            "x-host",
            "forwarded",
        ] {
            assert!(overrides(name), "{name}");
        }
        for name in [
            "x-forwarded-for",
            "x-forwarded-proto",
            "x-api-key",
            "authorization",
            "host",
        ] {
            assert!(!overrides(name), "{name}");
        }
        for target in [
            "/a?_method=DELETE",
            "/a?x=1&_m%65thod=PUT",
            "/?a;_METHOD=x",
            "/?_HttpMethod=PATCH",
        ] {
            assert!(method_parameter(target).is_some(), "{target}");
        }
        for target in ["/_method=x", "/a?method=x", "/a?x=_method=y", "/a"] {
            assert!(method_parameter(target).is_none(), "{target}");
        }
    }
}
