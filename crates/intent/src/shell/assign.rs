//! Variables that a script sets, and those that are set for one command.

use super::walk::{Walk, named};
use super::word::Word;
use crate::needs::Unsure;
use std::path::Path;
use tree_sitter::Node;

/// Variables that hold directories in which programs or modules are searched.
const SEARCH_PATHS: &[&str] = &[
    "PATH",
    "PYTHONPATH",
    "NODE_PATH",
    "PERL5LIB",
    "LD_LIBRARY_PATH",
    "MANPATH",
    "PKG_CONFIG_PATH",
    "GOPATH",
];

impl<'t> Walk<'_, 't> {
    pub(super) fn assign(&mut self, node: Node<'t>, exported: bool) {
        let Some(name) = node.child_by_field_name("name") else {
            return;
        };
        let whole = name.kind() == "variable_name" && !self.text(node).contains("+=");
        let name = self
            .text(name)
            .split('[')
            .next()
            .unwrap_or_default()
            .to_owned();
        let mut values = Some(vec![Word::Plain(String::new())]);
        if let Some(value) = node.child_by_field_name("value") {
            if value.kind() == "array" {
                values = self.array(value);
            } else {
                let words = self.expand(value);
                let known = words.iter().any(|word| !word.known().is_empty());
                let plain = words.iter().all(|word| matches!(word, Word::Plain(_)));
                values = (known || plain).then_some(words);
            }
        }
        let maybe = self.scope.maybe;
        let is_array = node
            .child_by_field_name("value")
            .is_some_and(|value| value.kind() == "array");
        let known = match (whole, is_array, self.scope.variables.get(&name)) {
            (true, _, _) => values,
            // `x+=(more)`.
            (false, true, Some(mut held)) => values.map(|values| {
                held.extend(values);
                held
            }),
            _ => None,
        };
        self.scope.variables.set(&name, known, maybe);
        // The shell's own splitting of words follows it.
        let splits = name == "IFS" && !exported;
        if self.search_path(node, &name) {
            return;
        }
        if !splits && self.table.environment.executes(&name)
            || (exported && !self.table.environment.is_harmless(&name))
        {
            self.needs.unsure(
                Unsure::Everything,
                format!("`{name}` changes what later programs do"),
            );
        }
    }

    /// Directories in which programs or modules are searched, where all of them are known: they are
    /// read. `false` for any other variable.
    fn search_path(&mut self, node: Node<'t>, name: &str) -> bool {
        if !SEARCH_PATHS.contains(&name) {
            return false;
        }
        let Some(value) = node.child_by_field_name("value") else {
            return false;
        };
        let text = self.text(value).trim_matches(['"', '\'']).to_owned();
        let itself = [format!("${name}"), format!("${{{name}}}")];
        let mut places = Vec::new();
        for part in text
            .split(':')
            .filter(|part| !itself.iter().any(|own| own == part))
        {
            match self.with_variables(part) {
                Some(place) if !place.is_empty() => places.push(place),
                Some(_) => {}
                None => return false,
            }
        }
        let home = self.scope.home.clone().unwrap_or_default();
        let places: Vec<String> = places
            .into_iter()
            .map(|place| match place.strip_prefix("~/") {
                Some(rest) => home.join(rest).to_string_lossy().into_owned(),
                None => place,
            })
            .collect();
        // Programs of any name may lie elsewhere, also those that this command names.
        let installed = |place: &String| {
            let own = [".local/bin", ".cargo/bin", "go/bin"];
            place.starts_with("/usr/")
                || place.starts_with("/opt/")
                || own.iter().any(|own| Path::new(place) == home.join(own))
        };
        if name == "PATH" && !places.iter().all(installed) {
            return false;
        }
        for place in places {
            self.read(&Word::Plain(place));
        }
        true
    }

    /// What an array holds; its variable stands for each of these.
    fn array(&mut self, node: Node<'t>) -> Option<Vec<Word>> {
        let mut held = Vec::new();
        for element in named(node) {
            let source = self.text(element).to_owned();
            // `[key]=value`: the value is what follows.
            let key = source.strip_prefix('[').and_then(|rest| rest.find("]="));
            for word in self.expand(element) {
                let cut = key.map_or(0, |at| at + 3);
                match word {
                    Word::Pattern { text, .. } if key.is_some() => {
                        held.push(Word::Plain(text.get(cut..).unwrap_or_default().to_owned()));
                    }
                    word @ Word::Plain(_) => held.push(word.without(cut)),
                    _ => return None,
                }
            }
        }
        Some(held)
    }

    /// A variable that is set for one command only.
    pub(super) fn before_command(&mut self, node: Node<'t>, splits: bool) {
        if let Some(value) = node.child_by_field_name("value") {
            self.expand(value);
        }
        let name = node.child_by_field_name("name");
        let name = name
            .map(|name| self.text(name).to_owned())
            .unwrap_or_default();
        // How `read` takes a line apart changes neither files nor programs.
        let own = splits && name == "IFS" || self.search_path(node, &name);
        if !own && !self.table.environment.is_harmless(&name) {
            self.needs.unsure(
                Unsure::Everything,
                format!("`{name}` may change what the program does"),
            );
        }
    }
}
