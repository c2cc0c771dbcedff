//! `package.json`: the scripts that `npm run` and its kind execute.

use ironcage_intent::{Argument, Code, CodeCommand, CodeNeeds, CommandText, Unsure};
use serde_json::Value;

const LONGEST: usize = 1024 * 1024;

pub(crate) fn read(code: &Code<'_>) -> CodeNeeds {
    let mut found = CodeNeeds::default();
    let read: Option<Value> = (code.text.len() <= LONGEST)
        .then(|| serde_json::from_str(code.text).ok())
        .flatten();
    let (Some(package), Some((first, rest))) = (read, code.arguments.split_first()) else {
        found.needs.unsure(
            Unsure::Everything,
            "the scripts of package.json cannot be read",
        );
        return found;
    };
    let Argument {
        text: name,
        whole: true,
    } = first
    else {
        found.needs.unsure(
            Unsure::Everything,
            "the script of package.json is not known",
        );
        return found;
    };
    let script = |name: &str| {
        package
            .get("scripts")?
            .get(name)?
            .as_str()
            .map(str::to_owned)
    };
    let Some(main) = script(name) else {
        found.needs.unsure(
            Unsure::Everything,
            format!("package.json has no script `{name}`"),
        );
        return found;
    };
    // What stands after `--` is added.
    let added: Vec<&str> = rest
        .iter()
        .map(|word| word.text.as_str())
        .filter(|word| *word != "--")
        .collect();
    let main = match added.is_empty() {
        true => main,
        false => format!("{main} {}", added.join(" ")),
    };
    let before = script(&format!("pre{name}"));
    let after = script(&format!("post{name}"));
    for text in [before, Some(main), after].into_iter().flatten() {
        found.commands.push(CodeCommand {
            text: CommandText::Script(text),
            cwd: code.cwd.map(std::path::Path::to_owned),
        });
    }
    found
}
