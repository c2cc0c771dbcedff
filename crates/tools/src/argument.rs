//! The arguments of a call against the rules for them.
//!
//! A tool with rules for its arguments takes only arguments that the rules name: an argument that
//! nobody thought of is one way around a rule. `*` names all others.

use crate::constraint::{Constraint, Otherwise};
use ironcage_model::{Resource, ToolReason};
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::Path;

/// Constraints by argument: `path`, `options.depth`, `files.*` (each element), `*` (all others).
pub(crate) type Constraints = BTreeMap<String, Constraint>;

/// Deepest arguments that are looked at.
const DEEPEST: usize = 64;

/// What is wrong with the arguments, and what follows. The worst comes first.
pub(crate) fn unmet(
    rules: &Constraints,
    tool: &str,
    arguments: &Value,
    cwd: Option<&Path>,
) -> Option<(Otherwise, ToolReason)> {
    let empty = Value::Object(serde_json::Map::new());
    let arguments = match arguments {
        Value::Null => &empty,
        other => other,
    };
    let mut check = Check {
        rules,
        tool,
        cwd,
        worst: None,
        needs: Vec::new(),
    };
    check.below("", arguments, 0);
    for (name, rule) in rules.iter().filter(|(_, rule)| rule.required) {
        let names: Vec<&str> = name.split('.').collect();
        if !has(arguments, &names) {
            check.note(
                rule.otherwise,
                ToolReason::ArgumentMissing {
                    tool: tool.to_owned(),
                    argument: name.clone(),
                },
            );
        }
    }
    check.worst
}

/// What a call needs of its server's cage, by the rules for its arguments.
pub(crate) fn needs(
    rules: &Constraints,
    tool: &str,
    arguments: &Value,
    cwd: Option<&Path>,
) -> Vec<Resource> {
    let mut check = Check {
        rules,
        tool,
        cwd,
        worst: None,
        needs: Vec::new(),
    };
    check.below("", arguments, 0);
    check.needs
}

/// Whether something is given at a place, in every element where the place says so. For many programs `null` is the same as
/// nothing, and stands for a default that no rule saw.
fn has(value: &Value, names: &[&str]) -> bool {
    match names {
        [] => !value.is_null(),
        ["*", rest @ ..] => match value {
            Value::Array(items) => items.iter().all(|item| has(item, rest)),
            Value::Object(fields) => fields.values().all(|field| has(field, rest)),
            _ => true,
        },
        [name, rest @ ..] => value.get(*name).is_some_and(|value| has(value, rest)),
    }
}

struct Check<'a> {
    rules: &'a Constraints,
    tool: &'a str,
    cwd: Option<&'a Path>,
    worst: Option<(Otherwise, ToolReason)>,
    needs: Vec<Resource>,
}

impl Check<'_> {
    fn note(&mut self, otherwise: Otherwise, reason: ToolReason) {
        if self
            .worst
            .as_ref()
            .is_none_or(|(known, _)| *known < otherwise)
        {
            self.worst = Some((otherwise, reason));
        }
    }

    /// Looks at everything in a value whose place is `prefix`, which ends in a dot.
    fn below(&mut self, prefix: &str, value: &Value, depth: usize) {
        let parts: Vec<(Option<&str>, &Value)> = match value {
            Value::Object(fields) => fields.iter().map(|(k, v)| (Some(k.as_str()), v)).collect(),
            Value::Array(items) if !prefix.is_empty() => items.iter().map(|v| (None, v)).collect(),
            _ => {
                let reason = ToolReason::Argument {
                    tool: self.tool.to_owned(),
                    argument: crate::one_line(prefix.trim_end_matches('.')),
                    part: "type".to_owned(),
                };
                self.note(Otherwise::Deny, reason);
                return;
            }
        };
        for (name, value) in parts {
            let shown = format!("{prefix}{}", name.unwrap_or("*"));
            // A name with a dot or a star in it would be read as a place.
            let plain = name.is_some_and(|name| !name.contains(['.', '*']));
            let exact = plain.then(|| shown.clone());
            let places = exact.into_iter().chain([format!("{prefix}*")]);
            let shown = crate::one_line(&shown);
            let place = places.into_iter().find(|place| self.names(place));
            // `PATH` beside a rule for `path` is not one of all others.
            let others = format!("{prefix}*");
            let place = place.filter(|place| {
                *place != others || !name.is_some_and(|name| self.looks_ruled(prefix, name))
            });
            let Some(place) = place else {
                let reason = ToolReason::ArgumentNotListed {
                    tool: self.tool.to_owned(),
                    argument: shown,
                };
                self.note(Otherwise::Deny, reason);
                continue;
            };
            if let Some(rule) = self.rules.get(&place) {
                self.needs.extend(rule.needs(value, self.cwd));
            }
            if let Some(rule) = self.rules.get(&place)
                && let Some(part) = rule.unmet(value, self.cwd)
            {
                let reason = ToolReason::Argument {
                    tool: self.tool.to_owned(),
                    argument: shown,
                    part: part.to_owned(),
                };
                self.note(rule.otherwise, reason);
            }
            let inner = format!("{place}.");
            if depth < DEEPEST && self.rules.keys().any(|key| key.starts_with(&inner)) {
                self.below(&inner, value, depth + 1);
            }
        }
    }

    /// Whether the name looks like one that a rule at this place names.
    fn looks_ruled(&self, prefix: &str, name: &str) -> bool {
        let like = |name: &str| crate::skeleton(name).replace('_', "");
        let name = like(name);
        let mut keys = self.rules.keys();
        keys.any(|key| {
            let rest = key.strip_prefix(prefix);
            let own = rest.and_then(|rest| rest.split('.').next());
            own.is_some_and(|own| own != "*" && like(own) == name)
        })
    }

    /// Whether a rule is about this place, or about something in it.
    fn names(&self, place: &str) -> bool {
        let inner = format!("{place}.");
        self.rules.contains_key(place) || self.rules.keys().any(|key| key.starts_with(&inner))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn rules(value: Value) -> Constraints {
        serde_json::from_value(value).unwrap()
    }

    fn code(rules: &Constraints, arguments: Value) -> Option<(Otherwise, &'static str)> {
        unmet(rules, "t", &arguments, Some(Path::new("/w")))
            .map(|(otherwise, reason)| (otherwise, reason.code()))
    }

    #[test]
    fn arguments_that_no_rule_names_are_refused() {
        let rules = rules(json!({"path": {"path-below": ["/w"], "required": true}}));
        assert_eq!(code(&rules, json!({"path": "a"})), None);
        let not_listed = Some((Otherwise::Deny, "tool-argument-not-listed"));
        assert_eq!(
            code(&rules, json!({"path": "a", "paths": ["/etc"]})),
            not_listed
        );
        assert_eq!(code(&rules, json!({"path": "a", "*": 1})), not_listed);
        let missing = Some((Otherwise::Deny, "tool-argument-missing"));
        assert_eq!(code(&rules, json!({})), missing);
        assert_eq!(code(&rules, Value::Null), missing);
        let wrong = Some((Otherwise::Deny, "tool-argument"));
        assert_eq!(code(&rules, json!({"path": "/etc"})), wrong);
        assert_eq!(code(&rules, json!({"path": {"x": "/w"}})), wrong);
        assert_eq!(code(&rules, json!({"path": ["/w/a", "/etc"]})), wrong);
        assert_eq!(code(&rules, json!("text")), wrong);
    }

    #[test]
    fn what_is_required_is_given_in_every_element_and_null_is_not() {
        let rules = rules(json!({
            "edits.*.path": {"path-below": ["/w"], "required": true},
            "edits.*.text": {},
            "mode": {"required": true},
        }));
        let missing = Some((Otherwise::Deny, "tool-argument-missing"));
        let edits = |edits: Value| code(&rules, json!({"edits": edits, "mode": "a"}));
        assert_eq!(
            edits(json!([{"path": "/w/a"}, {"path": "b", "text": "x"}])),
            None
        );
        assert_eq!(edits(json!([])), None);
        assert_eq!(edits(json!([{"path": "/w/a"}, {"text": "x"}])), missing);
        assert_eq!(code(&rules, json!({"mode": "a"})), missing);
        assert_eq!(code(&rules, json!({"edits": [], "mode": null})), missing);
    }

    #[test]
    fn a_name_that_looks_like_a_ruled_one_is_not_one_of_all_others() {
        let rules = rules(json!({"file_path": {"path-below": ["/w"]}, "*": {}}));
        let not_listed = Some((Otherwise::Deny, "tool-argument-not-listed"));
        for name in [
            "FILE_PATH",
            "filePath",
            "file-path",
            "file_p\u{430}th",
            "file_path ",
        ] {
            assert_eq!(code(&rules, json!({name: "/etc"})), not_listed, "{name}");
        }
        assert_eq!(code(&rules, json!({"file_path": "a", "mode": "x"})), None);
    }

    #[test]
    fn rules_reach_into_lists_and_objects() {
        let rules = rules(json!({
            "edits.*.path": {"path-below": ["/w"]},
            "edits.*.text": {},
            "options.depth": {"range": [1, 3], "otherwise": "ask"},
            "*": {"longest": 3}
        }));
        let edits = |path: &str| json!({"edits": [{"path": "/w/a", "text": "x"}, {"path": path, "text": ""}]});
        assert_eq!(code(&rules, edits("/w/b")), None);
        assert_eq!(
            code(&rules, edits("/etc/x")),
            Some((Otherwise::Deny, "tool-argument"))
        );
        assert_eq!(code(&rules, json!({"options": {"depth": 2}})), None);
        assert_eq!(
            code(&rules, json!({"options": {"depth": 9}})),
            Some((Otherwise::Ask, "tool-argument"))
        );
        assert_eq!(
            code(&rules, json!({"options": {"depth": 2, "follow": true}})),
            Some((Otherwise::Deny, "tool-argument-not-listed"))
        );
        // The worse of two.
        assert_eq!(
            code(&rules, json!({"options": {"depth": 9}, "x": "long"})),
            Some((Otherwise::Deny, "tool-argument"))
        );
        assert_eq!(code(&rules, json!({"x": "ok"})), None);
    }
}
