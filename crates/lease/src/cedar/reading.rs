//! The text of rules to rules, with each mistake shown at its line.

use super::SCHEMA;
use cedar_policy::{
    Effect, EntityTypeName, Policy, PolicyId, PolicySet, Schema, ValidationMode, Validator,
};
use ironcage_model::Printable;
use ironcage_policy::RulesFile;
use miette::Diagnostic;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::str::FromStr as _;

/// Annotations that mean something here.
pub(crate) const REASON: &str = "reason";
pub(crate) const ANSWER: &str = "answer";
pub(crate) const ASK: &str = "ask";
const ID: &str = "id";

/// Bounds of what is read: an untrusted file's too, and every decision looks at all of it while the
/// supervisor waits.
const LONGEST: usize = 16 * 1024;
const DEEPEST: usize = 64;
/// Most rules of a cage, and most paths that they name.
pub(crate) const MOST_RULES: usize = 200;
pub(crate) const MOST_PATHS: usize = 200;

/// What is wrong with a file of rules.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {title}")]
pub(crate) struct Mistake {
    line: usize,
    span: Range<usize>,
    title: String,
    label: String,
}

/// Why the rules of a plan cannot be read.
#[derive(Debug, thiserror::Error)]
pub(crate) enum RulesError {
    /// From Cedar's own library, whose errors hold their whole source.
    #[error("{0}")]
    Library(String),
    #[error("{}: {mistake}", Printable::new(.path))]
    File { path: PathBuf, mistake: Mistake },
    #[error("there are {count} {what}, and at most {most} can be looked at; say it with fewer")]
    TooMany {
        what: &'static str,
        count: usize,
        most: usize,
    },
}

impl Mistake {
    fn new(text: &str, span: Range<usize>, title: String, label: impl Into<String>) -> Self {
        let before = text.as_bytes().get(..span.start).unwrap_or_default();
        Mistake {
            line: before.iter().filter(|byte| **byte == b'\n').count() + 1,
            span,
            title,
            label: label.into(),
        }
    }

    /// From what the language's own library found.
    fn found(text: &str, error: &(impl Diagnostic + ?Sized), otherwise: Range<usize>) -> Self {
        let label = error.labels().and_then(|mut labels| labels.next());
        let span = label.as_ref().map_or(otherwise, |label| {
            let start = label.offset();
            start..start.saturating_add(label.len())
        });
        let label = label.and_then(|label| label.label().map(str::to_owned));
        let help = error.help().map(|help| help.to_string());
        Mistake::new(
            text,
            span,
            error.to_string(),
            label.or(help).unwrap_or_else(|| "here".to_owned()),
        )
    }
}

/// A rule, with where it stands.
pub(crate) struct Rule {
    pub(crate) policy: Policy,
    /// Its place in the text.
    span: Range<usize>,
}

/// The schema. That it is one is tested.
pub(crate) fn schema() -> Result<Schema, RulesError> {
    match Schema::from_cedarschema_str(SCHEMA) {
        Ok((schema, _)) => Ok(schema),
        Err(error) => Err(RulesError::Library(error.to_string())),
    }
}

/// Reads the rules of a file, in its order; each is named by file and line.
pub(crate) fn read(path: &Path, text: &str, schema: &Schema) -> Result<Vec<Rule>, Mistake> {
    let bounded = |title: String, remedy: &str| Err(Mistake::new(text, 0..0, title, remedy));
    if text.len() > LONGEST {
        let title = format!("there are more than {} KiB of rules", LONGEST / 1024);
        return bounded(title, "say it with fewer");
    }
    if depth(text) > DEEPEST {
        let title = format!("something is nested more than {DEEPEST} deep");
        return bounded(title, "say it with less in one another");
    }
    let set = PolicySet::from_str(text).map_err(|errors| match errors.iter().next() {
        Some(error) => Mistake::found(text, error, 0..0),
        None => Mistake::new(text, 0..0, errors.to_string(), "here"),
    })?;
    if let Some(template) = set.templates().next() {
        let span = place(text, &template.to_cedar(), 0);
        let title = "a rule with slots is not supported".to_owned();
        return Err(Mistake::new(text, span, title, "leaves something open"));
    }
    let mut found: Vec<&Policy> = set.policies().collect();
    // They are numbered as they stand in the text.
    found.sort_by_key(|policy| number(policy.id()));
    let file = path.file_name().unwrap_or(path.as_os_str());
    let file = Printable::new(file).to_string();
    let mut rules: Vec<Rule> = Vec::new();
    for policy in found {
        let from = rules.last().map_or(0, |last| last.span.end);
        let span = place(text, &policy.to_cedar().unwrap_or_default(), from);
        words(text, policy, &span)?;
        let before = text.as_bytes().get(..span.start).unwrap_or_default();
        let line = before.iter().filter(|byte| **byte == b'\n').count() + 1;
        // Two rules in one line are told apart by where they begin.
        let mut id = format!("{file}:{line}");
        if rules.iter().any(|rule| rule.policy.id().to_string() == id) {
            let start = before.iter().rev().take_while(|byte| **byte != b'\n');
            id = format!("{id}:{}", start.count() + 1);
        }
        rules.push(Rule {
            policy: policy.new_id(PolicyId::new(id)),
            span,
        });
    }
    let mut fitting = PolicySet::new();
    for rule in &rules {
        fitting.add(rule.policy.clone()).map_err(|error| {
            Mistake::new(text, rule.span.clone(), error.to_string(), "this rule")
        })?;
    }
    let result = Validator::new(schema.clone()).validate(&fitting, ValidationMode::Strict);
    let whole = |id: &PolicyId| {
        let mut known = rules.iter();
        let rule = known.find(|rule| rule.policy.id() == id);
        rule.map_or(0..0, |rule| rule.span.clone())
    };
    if let Some(error) = result.validation_errors().next() {
        return Err(Mistake::found(text, error, whole(error.policy_id())));
    }
    // A rule that can never apply forbids nothing, whatever its author meant.
    if let Some(warning) = result.validation_warnings().next() {
        return Err(Mistake::found(text, warning, whole(warning.policy_id())));
    }
    Ok(rules)
}

/// How deep brackets stand in one another, those in texts and comments too.
fn depth(text: &str) -> usize {
    let (mut now, mut most) = (0_usize, 0);
    for byte in text.bytes() {
        match byte {
            b'(' | b'[' | b'{' => now += 1,
            b')' | b']' | b'}' => now = now.saturating_sub(1),
            _ => {}
        }
        most = most.max(now);
    }
    most
}

/// Whether so many can be looked at in one decision.
pub(crate) fn bounded(rules: usize, paths: usize) -> Result<(), RulesError> {
    let most = |what, count, most| match count > most {
        true => Err(RulesError::TooMany { what, count, most }),
        false => Ok(()),
    };
    most("rules", rules, MOST_RULES)?;
    most("paths in rules", paths, MOST_PATHS)
}

/// The place of a rule in the text of its file.
fn place(text: &str, rule: &str, from: usize) -> Range<usize> {
    let rest = text.get(from..).unwrap_or_default();
    match rest.find(rule) {
        Some(at) if !rule.is_empty() => from + at..from + at + rule.len(),
        _ => from..from,
    }
}

/// The number that a rule has from being read.
fn number(id: &PolicyId) -> (usize, String) {
    let text = id.to_string();
    let digits: String = text.chars().filter(char::is_ascii_digit).collect();
    (digits.parse().unwrap_or(usize::MAX), text)
}

/// Checks what only means something here: annotations, and paths.
fn words(text: &str, policy: &Policy, span: &Range<usize>) -> Result<(), Mistake> {
    let wrong = |title: String, label: &str| Mistake::new(text, span.clone(), title, label);
    for (key, value) in policy.annotations() {
        match (key, value) {
            (ID | REASON, _) => {}
            (ANSWER, ASK) if policy.effect() == Effect::Forbid => {}
            (ANSWER, ASK) => {
                return Err(wrong(
                    "`@answer(\"ask\")` stands on a rule that forbids".to_owned(),
                    "permits",
                ));
            }
            (ANSWER, other) => {
                return Err(wrong(
                    format!("unknown annotation `@answer({other:?})`"),
                    "write @answer(\"ask\"), or nothing",
                ));
            }
            (other, _) => {
                return Err(wrong(
                    format!("`@{other}` means nothing here"),
                    "write @id, @reason or @answer",
                ));
            }
        }
    }
    for path in path_literals(policy) {
        let real: std::path::PathBuf = Path::new(&path).components().collect();
        let climbs = path.split('/').any(|part| part == "..");
        if !path.starts_with('/') || climbs || real.as_os_str() != path.as_str() {
            return Err(wrong(
                format!("`Path::{path:?}` is not a real path"),
                "write an absolute path without `.`, `..` and a slash at its end",
            ));
        }
    }
    Ok(())
}

/// Every path that a rule names.
pub(crate) fn path_literals(policy: &Policy) -> Vec<String> {
    let Ok(kind) = EntityTypeName::from_str("Path") else {
        return Vec::new();
    };
    let named = policy.entity_literals().into_iter();
    let named = named.filter(|uid| *uid.type_name() == kind);
    named.map(|uid| uid.id().unescaped().to_owned()).collect()
}

/// Looks through a file of a policy; `before` are the rules and the paths of those before it.
pub(crate) fn look_through(
    file: &RulesFile,
    before: &mut (usize, usize),
) -> Result<(), ironcage_policy::Diagnostic> {
    let schema = schema().map_err(|error| file.mistake(0..0, error.to_string(), "the schema"))?;
    let rules = read(&file.path, &file.text, &schema)
        .map_err(|mistake| file.mistake(mistake.span, mistake.title, mistake.label))?;
    before.0 += rules.len();
    before.1 += (rules.iter().map(|rule| path_literals(&rule.policy).len())).sum::<usize>();
    let (rules, paths) = *before;
    bounded(rules, paths)
        .map_err(|error| file.mistake(0..0, error.to_string(), "with those in this file"))
}
