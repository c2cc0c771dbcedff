//! The decision over requests, and their record: what one connection's requests are held to,
//! whichever version of HTTP carries them.

use super::head::{Authority, Fields, Refused};
use super::passing::{HELD_FOR, LONGEST_HELD_FOR, Look, Passing};
use super::pipeline::RequestParts;
use crate::decide::Rules;
use crate::reader::Reader;
use crate::secret::{SecretInjector, Stopped, unescaped};
use crate::traffic_counters::TrafficEvent;
use ironcage_model::{HttpRule, NetworkReason, NetworkVerdict, Protocol, Reason, RequestPath};
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

/// Longest path in the record.
const LONGEST_PATH: usize = 160;

/// What somebody can do about a refusal.
const ASK: &str = "the cage denied this request, not the server: ask the user, or run `/.ironcage/bin/ironcage ask --host NAME --reason TEXT` where the cage has a ceiling";

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
    fn refuse(&self, kind: TrafficEvent);
    /// One was answered, or found nobody who would.
    fn note(&self, kind: TrafficEvent);
}

/// What the requests of one connection are held to.
pub(crate) struct Judge {
    pub(crate) authority: Authority,
    /// Where the requests are that are allowed: as the rules are when one comes.
    pub(crate) rules: Rc<Rules>,
    /// The rule that let the connection out.
    pub(crate) rule: String,
    /// What the requests have to do with secrets, where the cage has any.
    pub(crate) injector: Option<SecretInjector>,
    /// Who reads the bodies, where they are a model's.
    pub(crate) reader: Option<Rc<Reader>>,
    pub(crate) protocol: Protocol,
    /// Where the connection leads, once it does.
    pub(crate) address: RefCell<Option<String>>,
    /// Whether an upstream proxy takes the requests, with whole URLs.
    pub(crate) takes_urls: Cell<bool>,
    /// How long a message takes to the server and back.
    pub(crate) round_trip: Cell<Duration>,
    pub(crate) recorder: Rc<dyn Recorder>,
}

/// What the audit log says of a request.
#[derive(Debug)]
pub(crate) struct RequestRecord {
    /// Method and path.
    line: String,
    /// The rule that allows it.
    pub(super) rule: String,
    /// Whether it carries the token of a login.
    pub(super) uses_login: bool,
    /// Whether it is on record.
    told: Cell<bool>,
}

impl RequestRecord {
    pub(super) fn of(parts: &RequestParts) -> Self {
        RequestRecord {
            line: line(&parts.method, &parts.target),
            rule: String::new(),
            uses_login: false,
            told: Cell::new(false),
        }
    }
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
    /// The rule that allows a request.
    pub(super) fn decide(&self, asked: &RequestParts) -> Result<String, Refused> {
        let Authority { name, port, .. } = &self.authority;
        let Some(rules) = self.rules.requests(name, *port) else {
            return Ok(self.rule.clone());
        };
        // Some servers take the method or the path from there instead.
        if let Some((name, _)) = asked.fields.iter().find(|(name, _)| overrides(name)) {
            return Err(Refused::new(
                403,
                NetworkReason::RequestOverridden {
                    field: name.clone(),
                },
            ));
        }
        // A question about the server as a whole has no path.
        let path = match asked.target.as_str() {
            "*" => RequestPath::read("/"),
            target => RequestPath::read(target),
        };
        let path = path.map_err(|error| {
            let error = error.0.to_owned();
            Refused::new(403, NetworkReason::PathAmbiguous { error })
        })?;
        match rules.iter().find(|rule| rule.allows(&asked.method, &path)) {
            Some(rule) => match method_parameter(&asked.target) {
                Some(name) if !rule.methods.is_empty() => Err(Refused::new(
                    403,
                    NetworkReason::MethodOverridden {
                        parameter: name.to_owned(),
                    },
                )),
                _ => {
                    let about = |rule: &HttpRule| {
                        rule.is_about(name, *port) && rule.allows(&asked.method, &path)
                    };
                    self.rules
                        .begin_request(about)
                        .map_err(|denied| Refused::new(403, denied.reason))?;
                    Ok(rule.to_string())
                }
            },
            None => Err(Refused::new(
                403,
                NetworkReason::RequestNotAllowed {
                    request: line(&asked.method, &asked.target),
                },
            )),
        }
    }

    fn kind(&self, verdict: NetworkVerdict) -> TrafficEvent {
        TrafficEvent {
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
        self.recorder.refuse(TrafficEvent {
            request: shown,
            status: Some(refused.status),
            reason: Some(refused.reason.clone().into()),
            ..self.kind(NetworkVerdict::Denied)
        });
    }

    /// What looks at what goes out.
    fn look_out(&self) -> Look {
        let scanner = self.injector.as_ref().and_then(SecretInjector::watch);
        scanner.map_or(Look::Nothing, Look::Stops)
    }

    /// What covers secrets in what comes back.
    fn look_back(&self) -> Look {
        let redactor = self.injector.as_ref().map(SecretInjector::redactor);
        redactor.map_or(Look::Nothing, Look::Redacts)
    }

    /// What the body of a request passes; one that was held was looked at before.
    pub(crate) fn way_out(&self, fields: &Fields, held: bool) -> Passing {
        let reader = self.reader.as_ref();
        let watch = reader.and_then(|reader| reader.request(fields));
        let look = match held {
            true => Look::Nothing,
            false => self.look_out(),
        };
        Passing::new(look, watch, HELD_FOR)
    }

    /// How long an end without a delimiter is held back while the server is silent. One that sends
    /// much waits for the other side again and again, a round trip each time: an end that comes
    /// before such a pause is not over.
    fn held_for(&self) -> Duration {
        (self.round_trip.get() * 3).clamp(HELD_FOR, LONGEST_HELD_FOR)
    }

    /// What the body of an answer passes.
    pub(crate) fn way_back(&self, status: u16, fields: &Fields) -> Passing {
        let reader = self.reader.as_ref();
        let watch = reader.and_then(|reader| reader.answer(status, fields));
        Passing::new(self.look_back(), watch, self.held_for())
    }

    /// What passes both ways where another protocol is spoken from now on.
    pub(crate) fn both_ways(&self) -> (Passing, Passing) {
        if let Some(reader) = &self.reader {
            reader.switched();
        }
        let out = Passing::new(self.look_out(), None, HELD_FOR);
        let back = Passing::new(self.look_back(), None, self.held_for());
        (out, back)
    }

    /// Covers secrets in the fields of an answer.
    pub(crate) fn answer(&self, fields: &mut Fields) -> Result<(), Refused> {
        match &self.injector {
            Some(injector) => injector.answer(fields),
            None => Ok(()),
        }
    }

    /// Covers secrets in fields that follow a body of an answer.
    pub(crate) fn cover(&self, fields: &mut Fields) {
        if let Some(injector) = &self.injector {
            injector.cover(fields);
        }
    }

    /// Records how a request broke off: because it was stopped, or otherwise.
    pub(crate) fn broke(&self, record: &RequestRecord, error: &std::io::Error) {
        let inner = error.get_ref();
        match inner.and_then(|inner| inner.downcast_ref::<Stopped>()) {
            Some(stopped) => self.stop(record, &Refused::new(403, stopped.reason.clone())),
            None => self.unanswered(record, NetworkReason::ConnectionBroke),
        }
    }

    /// Records that a request which was to go on did not.
    pub(crate) fn stop(&self, record: &RequestRecord, refused: &Refused) {
        record.told.set(true);
        self.refuse(Some(record.line.clone()), refused);
    }

    /// Records how a server answered a request, once.
    pub(crate) fn answered(&self, record: &RequestRecord, status: u16) {
        if let (401, true, Some(injector)) = (status, record.uses_login, &self.injector) {
            injector.login_was_refused();
        }
        self.note(record, Some(status), None);
    }

    /// Records that a request went on and got no answer.
    pub(crate) fn unanswered(&self, record: &RequestRecord, reason: NetworkReason) {
        self.note(record, None, Some(reason));
    }

    fn note(&self, record: &RequestRecord, status: Option<u16>, reason: Option<NetworkReason>) {
        if !record.told.replace(true) {
            self.recorder.note(TrafficEvent {
                request: Some(record.line.clone()),
                status,
                reason: reason.map(Reason::from),
                rule: Some(record.rule.clone()),
                ..self.kind(NetworkVerdict::Allowed)
            });
        }
    }
}

/// The words of a refusal, which a program can read.
pub(crate) fn refusal(refused: &Refused) -> String {
    let (error, code) = ("ironcage", refused.reason.code());
    let reason = refused.reason.to_string();
    // Who reads it is often a model: it is told what to do instead of trying on.
    let said = match refused.status {
        403 => serde_json::json!({ "error": error, "code": code, "reason": reason, "ask": ASK }),
        _ => serde_json::json!({ "error": error, "code": code, "reason": reason }),
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
