//! Adds a permanently approved permission to the user's own policy, with its origin as a comment.

use crate::error::CliError;
use crate::paths;
use ironcage_control::PermissionRequestDescription;
use ironcage_files::{Links, open_regular};
use ironcage_host::SystemFiles;
use ironcage_model::{CageId, Printable, Resource};
use ironcage_supervisor::NotPermanent;
use ironcage_sys::rustix::fs::{FlockOperation, flock};
use ironcage_sys::rustix::process::geteuid;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use toml_edit::{Array, DocumentMut, Item, Table, Value};

const LARGEST: u64 = 1 << 20;

/// An entry below `[ceiling.always]`.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct ApprovedRule {
    section: &'static str,
    key: &'static str,
    value: String,
    comment: String,
}

impl ApprovedRule {
    /// The rule that makes the answer to a request permanent.
    pub(crate) fn of(
        cage: &CageId,
        described: &PermissionRequestDescription,
    ) -> Result<Self, CliError> {
        let question = &described.question;
        let (section, key, value) = match &question.resource {
            Resource::Path { path, right } => ("files", right.name(), path.clone()),
            Resource::Host { rule } => ("network", "allow", rule.to_string()),
            other => {
                return Err(CliError::new(format!(
                    "cannot approve {other} permanently: only paths and hosts can be"
                )));
            }
        };
        let reason: String = question.reason.chars().take(100).collect();
        let comment = format!(
            "approved {}, request {} of cage {cage}{}",
            today(),
            question.number,
            match reason.as_str() {
                "" => String::new(),
                reason => format!(", reason given: {}", Printable::new(reason)),
            }
        );
        Ok(ApprovedRule {
            section,
            key,
            value,
            comment,
        })
    }

    /// The rule in one line, for the user.
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
    let text = crate::output::utc(micros);
    text.chars().take(10).collect()
}

/// Why a rule cannot be added to the text of a policy.
#[derive(Debug, thiserror::Error)]
enum PolicyNotEdited {
    #[error(transparent)]
    Toml(#[from] toml_edit::TomlError),
    #[error("the result would not be a valid policy")]
    Invalid,
    #[error("`{key}` has an unexpected type")]
    Type { key: &'static str },
}

/// The policy with the rule added; `None` if it has the rule already.
fn with_rule(text: &str, rule: &ApprovedRule) -> Result<Option<String>, PolicyNotEdited> {
    let mut document: DocumentMut = text.parse()?;
    let other = |key: &'static str| PolicyNotEdited::Type { key };
    let mut table: &mut Table = document.as_table_mut();
    for (depth, name) in ["ceiling", "always", rule.section].into_iter().enumerate() {
        let item = table.entry(name).or_insert_with(|| {
            let mut made = Table::new();
            // Only the innermost table gets a header of its own.
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

/// Makes the answer to a request permanent, for the prompt of a run.
pub(crate) fn make_permanent(
    cage: &CageId,
    described: &PermissionRequestDescription,
) -> Result<(), NotPermanent> {
    let rule = ApprovedRule::of(cage, described);
    let written = rule.and_then(|rule| write(&rule));
    written
        .map(|_| ())
        .map_err(|error| NotPermanent(error.message().to_owned()))
}

/// Adds a rule to the user's configuration. Returns the file; `None` if the rule was there.
pub(crate) fn write(rule: &ApprovedRule) -> Result<Option<PathBuf>, CliError> {
    let home = paths::home(&SystemFiles::default())?;
    let path = paths::config_dir(&home).join("config.toml");
    let shown = Printable::new(&path).to_string();
    let failed = |error: io::Error| CliError::new(format!("cannot change {shown}: {error}"));
    let directory = path.parent().unwrap_or(Path::new("/"));
    fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(directory)
        .map_err(failed)?;
    // One writer at a time: two that read the same text would lose one rule.
    let lock = File::open(directory).map_err(failed)?;
    flock(&lock, FlockOperation::LockExclusive).map_err(|error| failed(error.into()))?;
    let own = |metadata: &fs::Metadata| {
        metadata.uid() == geteuid().as_raw() && metadata.mode() & 0o022 == 0
    };
    if !own(&lock.metadata().map_err(failed)?) {
        return Err(CliError::new(format!(
            "cannot change {shown}: other users can write to its directory"
        ))
        .hint("make yourself the owner, and remove write permission for group and others"));
    }
    let mut text = String::new();
    let mut mode = 0o600;
    match open_regular(&path, Links::Refuse) {
        Err(error) if error.is_absent() => {}
        Err(error) => {
            return Err(CliError::from_error(&error)
                .hint("symbolic links are not followed: add the rule to the file itself"));
        }
        Ok((file, _)) => {
            let metadata = file.metadata().map_err(failed)?;
            if !own(&metadata) {
                return Err(CliError::new(format!(
                    "cannot change {shown}: other users can write to it"
                )));
            }
            mode = metadata.mode() & 0o777;
            file.take(LARGEST)
                .read_to_string(&mut text)
                .map_err(failed)?;
        }
    }
    let wrong = |why: PolicyNotEdited| {
        let why = why.to_string();
        CliError::new(format!("cannot change {shown}: {}", Printable::new(&why)))
            .hint("`ironcage policy check` shows what is wrong with it")
    };
    let Some(changed) = with_rule(&text, rule).map_err(wrong)? else {
        return Ok(None);
    };
    // Never write a policy that cannot be read back.
    if ironcage_policy::parse(&path, &changed).is_err() {
        return Err(wrong(PolicyNotEdited::Invalid));
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

    fn rule(key: &'static str, value: &str) -> ApprovedRule {
        ApprovedRule {
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
        // The agent's text stays in its comment.
        let mut hostile = rule("read", "/srv/b");
        hostile.comment = Printable::new("x\n[files]\nread = [\"/\"]").to_string();
        let with = with_rule("", &hostile).unwrap().unwrap();
        let parsed: toml::Table = with.parse().unwrap();
        assert!(parsed.get("files").is_none(), "{with}");
    }
}
