//! The decision over requests, and their record: what one connection's requests are held to,
//! whichever version of HTTP carries them.

use super::head::{Authority, Fields, Refused};
use crate::decide::Rules;
use crate::ledger::Kind;
use crate::secret::{Dealing, Scanner, Stopped};
use ironcage_model::{NetworkVerdict, Protocol, RequestPath};
use std::cell::{Cell, RefCell};
use std::rc::Rc;

/// Longest path in the record.
const LONGEST_PATH: usize = 160;

/// Fields by which a request can say that it is another.
const OVERRIDES: [&str; 6] = [
    "x-http-method-override",
    "x-http-method",
    "x-method-override",
    "x-original-url",
    "x-rewrite-url",
    "x-override-url",
];

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
    /// Decides over a request.
    pub(crate) fn judge(&self, mut asked: Asked<'_>) -> Result<Passed, Refused> {
        let shown = line(asked.method, asked.target);
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
        if let Some((name, _)) =
            (asked.fields.iter()).find(|(name, _)| OVERRIDES.contains(&name.as_str()))
        {
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
            Some(rule) => Ok(rule.to_string()),
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

    /// What looks at a body as it goes out.
    pub(crate) fn watch(&self) -> Option<Scanner> {
        self.dealing.as_ref().and_then(Dealing::watch)
    }

    /// What covers secrets in what comes back.
    pub(crate) fn mask(&self) -> Option<Scanner> {
        self.dealing.as_ref().and_then(Dealing::mask)
    }

    /// Covers secrets in the fields of an answer.
    pub(crate) fn answer(&self, fields: &mut Fields) -> Result<(), Refused> {
        match &self.dealing {
            Some(dealing) => dealing.answer(fields),
            None => Ok(()),
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
    let mut body = serde_json::json!({ "error": "ironcage", "reason": refused.reason }).to_string();
    body.push('\n');
    body
}
