//! Makefiles: the recipes of a target and of what it depends on.

use ironcage_intent::{Code, CodeCommand, CodeNeeds, CommandText, Unsure};
use std::collections::{BTreeMap, BTreeSet};

const LONGEST: usize = 256 * 1024;

/// Rules, and expansions of one text.
const MOST_RULES: usize = 2000;
const MOST_EXPANSIONS: u32 = 2000;

#[derive(Debug, Default, Clone)]
struct Rule {
    needs: Vec<String>,
    recipe: Vec<String>,
}

#[derive(Debug, Default)]
struct Makefile {
    variables: BTreeMap<String, String>,
    rules: BTreeMap<String, Rule>,
    first: Option<String>,
    /// Includes and conditions: what they do is not followed.
    more: bool,
    /// Rules for a pattern, by it.
    patterns: Vec<(String, Rule)>,
}

pub(crate) fn read(code: &Code<'_>) -> CodeNeeds {
    let mut found = CodeNeeds::default();
    if code.text.len() > LONGEST {
        found
            .needs
            .unsure(Unsure::Everything, "the makefile is too long");
        return found;
    }
    let mut makefile = parse(code.text);
    let mut targets = Vec::new();
    for argument in code.arguments {
        match argument.text.split_once('=') {
            _ if !argument.whole => found
                .needs
                .unsure(Unsure::Everything, "a target of make is not known"),
            Some((name, value)) => {
                drop(makefile.variables.insert(name.to_owned(), value.to_owned()))
            }
            None if argument.text.starts_with('-') => {}
            None => targets.push(argument.text.clone()),
        }
    }
    if targets.is_empty() {
        targets.extend(makefile.first.clone());
    }
    let mut done = BTreeSet::new();
    let mut order = Vec::new();
    for target in &targets {
        if makefile.rule(target).is_none() {
            found.needs.unsure(
                Unsure::Everything,
                format!("the makefile has no rule for `{target}` that is followed"),
            );
        }
        makefile.order(target, &mut done, &mut order);
    }
    for target in order {
        let Some(rule) = makefile.rule(&target) else {
            continue;
        };
        let mut script = String::new();
        for line in &rule.recipe {
            let line = line.trim_start().trim_start_matches(['@', '-', '+']);
            let mut budget = MOST_EXPANSIONS;
            script.push_str(&makefile.expand(line, &target, &rule.needs, &mut budget));
            script.push('\n');
        }
        if !script.is_empty() {
            found.commands.push(CodeCommand {
                text: CommandText::Script(script),
                cwd: code.cwd.map(std::path::Path::to_owned),
            });
        }
    }
    if makefile.more {
        found.needs.unsure(
            Unsure::Writes,
            "the makefile has patterns, conditions or includes that are not followed",
        );
    }
    found
}

fn parse(text: &str) -> Makefile {
    let mut makefile = Makefile::default();
    let mut targets: Vec<String> = Vec::new();
    let joined = text.replace("\\\r\n", " ").replace("\\\n", " ");
    for line in joined.lines() {
        if let Some(recipe) = line.strip_prefix('\t') {
            for target in &targets {
                let mut patterns = makefile.patterns.iter_mut().rev();
                let pattern = patterns.find(|(pattern, _)| pattern == target);
                match pattern.map(|(_, rule)| rule) {
                    Some(rule) => rule.recipe.push(recipe.to_owned()),
                    None => {
                        if let Some(rule) = makefile.rules.get_mut(target) {
                            rule.recipe.push(recipe.to_owned());
                        }
                    }
                }
            }
            continue;
        }
        let plain = line.split(" #").next().unwrap_or(line).trim_end();
        if plain.trim().is_empty() || plain.starts_with('#') {
            continue;
        }
        let keyword = plain.split_whitespace().next().unwrap_or_default();
        if matches!(
            keyword,
            "include" | "-include" | "define" | "ifeq" | "ifdef" | "ifndef" | "ifneq"
        ) {
            makefile.more = true;
            continue;
        }
        if matches!(
            keyword,
            "endif" | "else" | "endef" | "export" | "unexport" | ".PHONY:"
        ) && !plain.contains('=')
        {
            continue;
        }
        let assigned = plain.find('=').filter(|at| {
            let before = plain.get(..*at).unwrap_or_default();
            !before.trim_end_matches([':', '?', '+', '!']).contains(':')
        });
        if let Some(at) = assigned {
            let (name, value) = plain.split_at(at);
            let mark = name.chars().last();
            let name = name.trim_end_matches([':', '?', '+', '!']).trim();
            let name = name.strip_prefix("export ").unwrap_or(name).to_owned();
            let value = value.trim_start_matches('=').trim().to_owned();
            match mark {
                Some('?') if makefile.variables.contains_key(&name) => {}
                Some('+') => {
                    let held = makefile.variables.entry(name).or_default();
                    held.push(' ');
                    held.push_str(&value);
                }
                _ => drop(makefile.variables.insert(name, value)),
            }
            continue;
        }
        let Some((names, needs)) = plain.split_once(':') else {
            continue;
        };
        let (needs, inline) = match needs.split_once(';') {
            Some((needs, recipe)) => (needs, Some(recipe.to_owned())),
            None => (needs, None),
        };
        let mut budget = MOST_EXPANSIONS;
        let names = makefile.expand(names, "", &[], &mut budget);
        let needs = makefile.expand(needs.trim_start_matches(':'), "", &[], &mut budget);
        targets = names.split_whitespace().map(str::to_owned).collect();
        for target in targets.iter().filter(|target| target.contains('%')) {
            if makefile.patterns.len() < MOST_RULES {
                let needs = needs.split_whitespace().filter(|word| *word != "|");
                let rule = Rule {
                    needs: needs.map(str::to_owned).collect(),
                    recipe: inline.clone().into_iter().collect(),
                };
                makefile.patterns.push((target.clone(), rule));
            }
        }
        for target in targets.iter().filter(|target| !target.contains('%')) {
            if makefile.rules.len() >= MOST_RULES {
                makefile.more = true;
                break;
            }
            if makefile.first.is_none() && !target.starts_with('.') && !target.contains('%') {
                makefile.first = Some(target.clone());
            }
            let rule = makefile.rules.entry(target.clone()).or_default();
            let order_only = |word: &&str| *word != "|";
            rule.needs.extend(
                needs
                    .split_whitespace()
                    .filter(order_only)
                    .map(str::to_owned),
            );
            rule.recipe.extend(inline.clone());
        }
    }
    makefile
}

impl Makefile {
    /// The rule of a target: its own, and where that has no recipe, the one of a pattern.
    fn rule(&self, target: &str) -> Option<Rule> {
        let own = self.rules.get(target);
        if own.is_some_and(|rule| !rule.recipe.is_empty()) {
            return own.cloned();
        }
        let matched = self.patterns.iter().find_map(|(pattern, rule)| {
            let (before, after) = pattern.split_once('%')?;
            let stem = target.strip_prefix(before)?.strip_suffix(after)?;
            let needs = rule.needs.iter().map(|need| need.replacen('%', stem, 1));
            Some(Rule {
                needs: needs.collect(),
                recipe: rule
                    .recipe
                    .iter()
                    .map(|line| line.replace("$*", stem))
                    .collect(),
            })
        });
        match (own, matched) {
            (Some(own), Some(mut rule)) => {
                rule.needs.extend(own.needs.iter().cloned());
                Some(rule)
            }
            (own, matched) => matched.or_else(|| own.cloned()),
        }
    }

    /// A function of make, or a reference with a substitution; `None` for those that are not
    /// carried out here.
    fn function(&self, text: &str, budget: &mut u32) -> Option<String> {
        let mut expanded = |text: &str| {
            *budget = budget.saturating_sub(1);
            match *budget {
                0 => String::new(),
                _ => self.expand(text, "", &[], budget),
            }
        };
        let over = |words: &str, change: &dyn Fn(&str) -> String| {
            let words: Vec<String> = words.split_whitespace().take(2000).map(change).collect();
            words.join(" ")
        };
        let swap = |from: String, to: String| {
            move |word: &str| -> String {
                let (before, after) = from.split_once('%').unwrap_or(("", &from));
                let stem = word
                    .strip_prefix(before)
                    .and_then(|rest| rest.strip_suffix(after));
                match (stem, to.contains('%') || from.contains('%')) {
                    (Some(stem), true) => to.replacen('%', stem, 1),
                    (Some(stem), false) => format!("{stem}{to}"),
                    (None, _) => word.to_owned(),
                }
            }
        };
        if let Some((name, change)) = text.split_once(':')
            && let Some((from, to)) = change.split_once('=')
            && !name.contains(' ')
        {
            let value = expanded(self.variables.get(name)?);
            return Some(over(&value, &swap(from.to_owned(), to.to_owned())));
        }
        let (name, rest) = text.split_once(' ')?;
        let parts: Vec<&str> = rest.splitn(3, ',').map(str::trim).collect();
        match (name, parts.as_slice()) {
            // The shell finds the files.
            ("wildcard" | "strip" | "sort" | "abspath" | "realpath", _) => Some(expanded(rest)),
            ("patsubst" | "subst", [from, to, words]) => {
                let words = expanded(words);
                match name {
                    "subst" => Some(words.replace(from, to)),
                    _ => Some(over(&words, &swap((*from).to_owned(), (*to).to_owned()))),
                }
            }
            ("addprefix", [prefix, words]) => {
                let (prefix, words) = (expanded(prefix), expanded(words));
                Some(over(&words, &|word| format!("{prefix}{word}")))
            }
            ("addsuffix", [suffix, words]) => {
                let (suffix, words) = (expanded(suffix), expanded(words));
                Some(over(&words, &|word| format!("{word}{suffix}")))
            }
            ("notdir", _) => {
                let words = expanded(rest);
                let last = |word: &str| word.rsplit('/').next().unwrap_or(word).to_owned();
                Some(over(&words, &last))
            }
            ("shell", _) => Some(format!("$({})", expanded(rest))),
            _ => None,
        }
    }

    /// What is made before a target, and the target.
    fn order(&self, target: &str, done: &mut BTreeSet<String>, order: &mut Vec<String>) {
        // A rule at a time: chains can be long.
        let mut left = vec![(target.to_owned(), false)];
        while let Some((target, ready)) = left.pop() {
            if ready {
                order.push(target);
                continue;
            }
            if !done.insert(target.clone()) {
                continue;
            }
            left.push((target.clone(), true));
            if let Some(rule) = self.rule(&target).filter(|_| done.len() < MOST_RULES) {
                left.extend(rule.needs.iter().rev().map(|need| (need.clone(), false)));
            }
        }
    }

    fn expand(&self, text: &str, target: &str, needs: &[String], budget: &mut u32) -> String {
        let mut made = String::new();
        let mut rest = text;
        while let Some((before, after)) = rest.split_once('$') {
            made.push_str(before);
            if *budget == 0 || made.len() > LONGEST {
                return made;
            }
            *budget -= 1;
            let mut chars = after.chars();
            match chars.next() {
                Some('$') => {
                    made.push('$');
                    rest = chars.as_str();
                }
                Some('@') => {
                    made.push_str(target);
                    rest = chars.as_str();
                }
                Some('<') => {
                    made.push_str(needs.first().map_or("", String::as_str));
                    rest = chars.as_str();
                }
                Some('^' | '?' | '+') => {
                    made.push_str(&needs.join(" "));
                    rest = chars.as_str();
                }
                Some(open @ ('(' | '{')) => {
                    let close = if open == '(' { ')' } else { '}' };
                    let inner = chars.as_str();
                    let end = closing(inner, open, close);
                    let name = inner.get(..end).unwrap_or_default();
                    rest = inner.get(end + 1..).unwrap_or_default();
                    match self.variables.get(name) {
                        Some(value) => made.push_str(&self.expand(value, target, needs, budget)),
                        None if name == "MAKE" => made.push_str("make"),
                        None if name == "CC" => made.push_str("cc"),
                        None if name == "CURDIR" => made.push('.'),
                        None if name == "RM" => made.push_str("rm -f"),
                        // Of a function, or from elsewhere: a variable of the shell that is not set.
                        None if name.contains([' ', ':']) => match self.function(name, budget) {
                            Some(value) => made.push_str(&value),
                            None => made.push_str("${IRONCAGE_UNKNOWN}"),
                        },
                        None => {
                            made.push_str("${");
                            made.push_str(&name.replace(
                                |char: char| !char.is_ascii_alphanumeric() && char != '_',
                                "_",
                            ));
                            made.push('}');
                        }
                    }
                }
                _ => rest = after,
            }
        }
        made.push_str(rest);
        made
    }
}

/// Where a reference ends: brackets inside belong to it.
fn closing(text: &str, open: char, close: char) -> usize {
    let mut depth = 0_usize;
    for (at, char) in text.char_indices() {
        match char {
            char if char == open => depth += 1,
            char if char == close && depth == 0 => return at,
            char if char == close => depth -= 1,
            _ => {}
        }
    }
    text.len()
}
