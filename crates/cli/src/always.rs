//! Writes what was approved for good into the user's own policy, with where it came from beside it.

use crate::error::CliError;
use crate::places;
use ironcage_control::QuestionDescription;
use ironcage_model::{CageId, Printable, Resource};
use ironcage_sys::rustix::fs::{FlockOperation, flock};
use ironcage_sys::rustix::process::geteuid;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use toml_edit::{Array, DocumentMut, Item, Table, Value};

/// Largest policy that is changed.
const LARGEST: u64 = 1 << 20;

/// A rule, and where it is to stand.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Rule {
    section: &'static str,
    key: &'static str,
    value: String,
    comment: String,
}

impl Rule {
    /// The rule that answers a question for good.
    pub(crate) fn of(cage: &CageId, described: &QuestionDescription) -> Result<Self, CliError> {
        let question = &described.question;
        let (section, key, value) = match &question.resource {
            Resource::Path { path, right } => ("files", right.name(), path.clone()),
            Resource::Host { rule } => ("network", "allow", rule.to_string()),
            other => {
                return Err(CliError::new(format!(
                    "{other} cannot be approved for good: only paths and hosts can"
                )));
            }
        };
        let reason: String = question.reason.chars().take(100).collect();
        let comment = format!(
            "approved {}, question {} of cage {cage}{}",
            today(),
            question.number,
            match reason.as_str() {
                "" => String::new(),
                reason => format!(", which said: {}", Printable::new(reason)),
            }
        );
        Ok(Rule {
            section,
            key,
            value,
            comment,
        })
    }

    /// The line that is written.
    pub(crate) fn line(&self) -> String {
        let value = Value::from(self.value.as_str());
        format!(
            "ceiling.always.{}.{} += {}  # {}",
            self.section,
            self.key,
            value.to_string().trim(),
            self.comment
        )
    }
}

fn today() -> String {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    let micros = since.map_or(0, |since| since.as_micros() as u64);
    let text = crate::commands::audit::utc(micros);
    text.chars().take(10).collect()
}

/// A policy with a rule more; `None` where it has it already.
fn with_rule(text: &str, rule: &Rule) -> Result<Option<String>, String> {
    let mut document: DocumentMut = text.parse().map_err(|error| format!("{error}"))?;
    let other = |what: &str| format!("`{what}` is not what it should be");
    let mut table: &mut Table = document.as_table_mut();
    for (depth, name) in ["ceiling", "always", rule.section].into_iter().enumerate() {
        let item = table.entry(name).or_insert_with(|| {
            let mut made = Table::new();
            // Only the innermost has a head of its own.
            made.set_implicit(depth < 2);
            Item::Table(made)
        });
        if let Item::Value(Value::InlineTable(inline)) = item {
            let made = std::mem::take(inline).into_table();
            *item = Item::Table(made);
        }
        table = item.as_table_mut().ok_or_else(|| other(name))?;
    }
    let list = table
        .entry(rule.key)
        .or_insert_with(|| Item::Value(Value::Array(Array::new())));
    let list = list.as_array_mut().ok_or_else(|| other(rule.key))?;
    if list.iter().any(|known| known.as_str() == Some(&rule.value)) {
        return Ok(None);
    }
    let mut value = Value::from(rule.value.as_str());
    value
        .decor_mut()
        .set_prefix(format!("\n  # {}\n  ", rule.comment));
    list.push_formatted(value);
    list.set_trailing_comma(true);
    list.set_trailing("\n");
    Ok(Some(document.to_string()))
}

/// Writes a rule into the user's configuration. Returns where; `None` where it stood there.
pub(crate) fn write(rule: &Rule) -> Result<Option<PathBuf>, CliError> {
    let home = places::home()?;
    let path = places::config_dir(&home).join("config.toml");
    let shown = Printable::new(&path).to_string();
    let failed = |error: io::Error| CliError::new(format!("{shown} cannot be changed: {error}"));
    let directory = path.parent().unwrap_or(Path::new("/"));
    fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(directory)
        .map_err(failed)?;
    // One at a time: two who read the same text would forget each other's rule.
    let lock = File::open(directory).map_err(failed)?;
    flock(&lock, FlockOperation::LockExclusive).map_err(|error| failed(error.into()))?;
    let own = |metadata: &fs::Metadata| {
        metadata.uid() == geteuid().as_raw() && metadata.mode() & 0o022 == 0
    };
    if !own(&lock.metadata().map_err(failed)?) {
        return Err(CliError::new(format!(
            "{shown} is not changed: others can write to its directory"
        ))
        .hint("a policy that others can write is not yours: mend its owner and mode"));
    }
    let mut text = String::new();
    let mut mode = 0o600;
    let flags = ironcage_sys::rustix::fs::OFlags::NOFOLLOW.bits() as i32;
    match OpenOptions::new()
        .read(true)
        .custom_flags(flags)
        .open(&path)
    {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => {
            return Err(failed(error).hint("a link is not followed: write the rule where it leads"));
        }
        Ok(file) => {
            let metadata = file.metadata().map_err(failed)?;
            if !own(&metadata) || !metadata.is_file() {
                return Err(CliError::new(format!(
                    "{shown} is not changed: it is not a file that only you can write"
                )));
            }
            mode = metadata.mode() & 0o777;
            file.take(LARGEST)
                .read_to_string(&mut text)
                .map_err(failed)?;
        }
    }
    let wrong = |why: String| {
        CliError::new(format!("{shown} is not changed: {}", Printable::new(&why)))
            .hint("`ironcage policy check` shows what is wrong with it")
    };
    let Some(changed) = with_rule(&text, rule).map_err(wrong)? else {
        return Ok(None);
    };
    // What would not be understood is not written.
    if ironcage_policy::parse(&path, &changed).is_err() {
        return Err(wrong("it is no policy".into()));
    }
    let made = path.with_extension(format!("toml.{}", std::process::id()));
    let replaced = replace(&made, &path, &changed, mode);
    if replaced.is_err() {
        let _ = fs::remove_file(&made);
    }
    replaced.map_err(failed)?;
    Ok(Some(path))
}

fn replace(made: &Path, path: &Path, text: &str, mode: u32) -> io::Result<()> {
    let mut options = OpenOptions::new();
    let mut file = options.write(true).create_new(true).mode(mode).open(made)?;
    file.write_all(text.as_bytes())?;
    file.sync_all()?;
    fs::rename(made, path)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rule(key: &'static str, value: &str) -> Rule {
        Rule {
            section: "files",
            key,
            value: value.into(),
            comment: "approved, question 1".into(),
        }
    }

    #[test]
    fn a_rule_is_added_with_its_origin_and_every_comment_stays() {
        let text =
            "# mine\nprofile = \"shell\" # why\n\n[ceiling.ask.files]\nread = [\"~/a\"] # here\n";
        let once = with_rule(text, &rule("read", "/srv/b")).unwrap().unwrap();
        for kept in text.lines() {
            assert!(once.contains(kept), "{kept}: {once}");
        }
        assert!(once.contains("# approved, question 1"), "{once}");
        let parsed: toml::Table = once.parse().unwrap();
        let read = |table: &toml::Table, key: &str| {
            table["ceiling"]["always"]["files"][key]
                .as_array()
                .unwrap()
                .len()
        };
        assert_eq!(read(&parsed, "read"), 1);
        // The same is not written twice, another beside it.
        assert_eq!(with_rule(&once, &rule("read", "/srv/b")).unwrap(), None);
        let twice = with_rule(&once, &rule("read", "/srv/\"c"))
            .unwrap()
            .unwrap();
        let twice = with_rule(&twice, &rule("write", "/srv/d"))
            .unwrap()
            .unwrap();
        let parsed: toml::Table = twice.parse().unwrap();
        assert_eq!((read(&parsed, "read"), read(&parsed, "write")), (2, 1));
        assert!(
            ironcage_policy::parse(Path::new("x.toml"), &twice).is_ok(),
            "{twice}"
        );
    }

    #[test]
    fn what_is_written_in_other_shapes_is_understood_or_left_alone() {
        for text in [
            "",
            "ceiling.always.files = { read = [\"/a\"] }\n",
            "[ceiling]\nlongest = \"1h\"\n",
        ] {
            let with = with_rule(text, &rule("read", "/srv/b")).unwrap().unwrap();
            assert!(
                ironcage_policy::parse(Path::new("x.toml"), &with).is_ok(),
                "{with}"
            );
            assert!(with.contains("/srv/b"));
        }
        for text in [
            "ceiling = 1\n",
            "ceiling.always.files.read = \"x\"\n",
            "[[ceiling]]\n",
            "[",
        ] {
            assert!(with_rule(text, &rule("read", "/srv/b")).is_err(), "{text}");
        }
        // What was said inside stays in its comment.
        let mut hostile = rule("read", "/srv/b");
        hostile.comment = Printable::new("x\n[files]\nread = [\"/\"]").to_string();
        let with = with_rule("", &hostile).unwrap().unwrap();
        let parsed: toml::Table = with.parse().unwrap();
        assert!(parsed.get("files").is_none(), "{with}");
    }
}
