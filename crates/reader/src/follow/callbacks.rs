//! Functions that are given to something else, which calls them.

use super::Program;
use super::call::CallArguments;
use crate::value::Value;

impl Program<'_> {
    /// Functions that are given to something else are called by it: with what is given for them,
    /// where its name says so.
    pub(super) fn call_back(&mut self, name: &str, given: &CallArguments) {
        let is_function = |value: &Value| matches!(value, Value::Function(..) | Value::Method(..));
        let last = name.rsplit('.').next().unwrap_or(name);
        let maps = matches!(
            last,
            "map" | "imap" | "imap_unordered" | "starmap" | "map_async" | "starmap_async"
        );
        let passes = matches!(
            last,
            "submit" | "apply" | "apply_async" | "to_thread" | "call_soon" | "delayed" | "partial"
        );
        if let Some((function, rest)) = given.arguments.split_first()
            && (maps || passes)
            && (is_function(function) || matches!(function, Value::Library(_)))
        {
            let function = function.clone();
            if passes {
                let arguments = match (rest.first(), last) {
                    (Some(Value::List(list)), "apply" | "apply_async") => list.to_vec(),
                    _ => rest.to_vec(),
                };
                self.call_value(&function, arguments, &[]);
                return;
            }
            let over = rest.first().cloned().unwrap_or(Value::Unknown);
            for element in self.elements(&over) {
                let arguments = match element {
                    Value::List(parts) if last.starts_with("starmap") => parts.to_vec(),
                    element => vec![element],
                };
                self.call_value(&function, arguments, &[]);
            }
            return;
        }
        // `Thread(target=work, args=(path,))`.
        if let Some(target) = given.named("target").cloned() {
            let arguments = match given.named("args") {
                Some(Value::List(list)) => list.to_vec(),
                _ => Vec::new(),
            };
            if is_function(&target) || matches!(target, Value::Library(_)) {
                self.call_value(&target, arguments, &[]);
            }
            return;
        }
        let values = given
            .arguments
            .iter()
            .chain(given.named.iter().map(|(_, value)| value));
        let functions: Vec<Value> = values.filter(|value| is_function(value)).cloned().collect();
        for function in functions {
            self.call_value(&function, Vec::new(), &[]);
        }
    }
}
