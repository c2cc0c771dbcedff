//! Git's settings in the cage: the user's name and address and what else is harmless.
//!
//! The user's files are read as text here and never by git: no include is followed, no
//! program is started, and only the keys of `policies/git.toml` are taken.

use crate::network::PlannedSecret;
use crate::plan::Item;
use ironcage_model::{Destination, HOST_NAME};
use ironcage_policy::git;
use std::fmt::Write as _;
use std::path::Path;

/// Settings that have git sign what it makes.
const SIGNS: [&str; 2] = ["commit.gpgsign", "tag.gpgsign"];

/// One setting of git.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GitSetting {
    /// Section and key, in lower case: `user.name`.
    pub key: &'static str,
    /// The value, without quotes and escapes.
    pub value: String,
}

/// Takes the known keys from the text of a configuration file. A key that comes twice has
/// its last value. What is not understood is passed over, as nothing depends on it.
pub fn git_settings(text: &str) -> Vec<GitSetting> {
    let mut settings: Vec<GitSetting> = Vec::new();
    let mut section = String::new();
    let mut lines = text.lines();
    while let Some(line) = lines.next() {
        let line = line.trim();
        if let Some(rest) = line.strip_prefix('[') {
            // A subsection, `[url "..."]`, has none of the known keys.
            section = match rest.split_once(']') {
                Some((name, _)) => name.trim().to_ascii_lowercase(),
                None => String::new(),
            };
            continue;
        }
        let Some((name, value)) = line.split_once('=') else {
            continue;
        };
        let mut value = value.to_owned();
        while value.ends_with('\\') && !value.ends_with("\\\\") {
            value.pop();
            value.push_str(lines.next().unwrap_or_default());
        }
        let key = format!("{section}.{}", name.trim().to_ascii_lowercase());
        let Some(known) = git::KEYS.iter().find(|known| known.name == key) else {
            continue;
        };
        settings.retain(|setting| setting.key != known.name);
        if let Some(value) = unquoted(value.trim()) {
            settings.push(GitSetting {
                key: known.name,
                value,
            });
        }
    }
    settings
}

/// A value as git reads it, or `None` when it has no end or holds a control character.
fn unquoted(text: &str) -> Option<String> {
    let mut value = String::new();
    let mut quoted = false;
    let mut characters = text.chars();
    while let Some(character) = characters.next() {
        match character {
            '"' => quoted = !quoted,
            '#' | ';' if !quoted => break,
            '\\' => match characters.next()? {
                escaped @ ('"' | '\\') => value.push(escaped),
                _ => return None,
            },
            character if character.is_control() && character != '\t' => return None,
            character => value.push(character),
        }
    }
    let value = if text.ends_with('"') {
        value
    } else {
        value.trim_end().to_owned()
    };
    (!quoted && !value.is_empty()).then_some(value)
}

/// The text of the cage's `/etc/gitconfig`.
pub(crate) fn config(settings: &[GitSetting], workspace: &Path, signs: bool) -> String {
    let mut text = String::from("# Made by Ironcage from your own settings.\n");
    let mut put = |section: &str, key: &str, value: &str| {
        let value = value.replace('\\', "\\\\").replace('"', "\\\"");
        // Writing to a string cannot fail.
        let _ = writeln!(text, "[{section}]\n\t{key} = \"{value}\"");
    };
    // Without a key in the cage, every commit would fail by them.
    let taken = settings.iter().filter(|s| signs || !SIGNS.contains(&s.key));
    for setting in taken {
        if let Some((section, key)) = setting.key.split_once('.') {
            put(section, key, &setting.value);
        }
    }
    // The workspace may belong to somebody else than the one who runs the cage; inside it is
    // the agent's to work in, by the user's word. A path that is no text stays unsafe.
    if let Some(workspace) = workspace
        .to_str()
        .filter(|path| !path.contains(char::is_control))
    {
        put("safe", "directory", workspace);
    }
    text
}

/// What answers git's questions for credentials in the cage: the placeholder of a secret, for
/// each name that it is for. The proxy puts the value in its place.
pub(crate) fn credentials(secrets: &[Item<PlannedSecret>]) -> String {
    let mut text = String::new();
    for secret in secrets.iter().map(|item| &item.what) {
        for host in &secret.rule.hosts {
            let Destination::Name(name) = &host.to else {
                continue;
            };
            let scheme = match name.as_str() {
                HOST_NAME => "http",
                _ => "https",
            };
            let placeholder = &secret.placeholder;
            // Writing to a string cannot fail.
            let _ = writeln!(
                text,
                "[credential \"{scheme}://{host}\"]\n\thelper = \"!f() {{ test \\\"$1\\\" = get && echo username=x-access-token && echo password={placeholder}; }}; f\""
            );
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn value<'a>(settings: &'a [GitSetting], key: &str) -> Option<&'a str> {
        settings
            .iter()
            .find(|setting| setting.key == key)
            .map(|setting| setting.value.as_str())
    }

    #[test]
    fn known_keys_are_taken_and_what_runs_is_not() {
        let settings = git_settings(
            "# comment\n[user]\n\tName = Ann \"van\" Dijk # her\n\temail = \"ann@example.org\"\n\
             [core]\n  editor = vim\n  sshCommand = evil\n  autocrlf = input ; as on the host\n\
             [alias]\n  x = !evil\n[include]\n  path = /evil\n[credential]\n  helper = store\n\
             [user \"other\"]\n  name = Bob\n[url \"evil\"]\n  insteadOf = good\n[user]\n email = ann@new.example\n",
        );
        assert_eq!(value(&settings, "user.name"), Some("Ann van Dijk"));
        assert_eq!(value(&settings, "user.email"), Some("ann@new.example"));
        assert_eq!(value(&settings, "core.autocrlf"), Some("input"));
        assert_eq!(settings.len(), 3, "{settings:?}");
    }

    #[test]
    fn a_value_cannot_bring_in_a_line_or_a_section_of_its_own() {
        for text in [
            "[user]\nname = a\\n[alias] x = !evil\n",
            "[user]\nname = \"a\u{1b}[2J\"\n",
            "[user]\nname = \"open\n",
        ] {
            assert_eq!(git_settings(text), [], "{text}");
        }
        let quotes = git_settings("[user]\nname = \"a \\\"b\\\" \\\\ c\"\n");
        assert_eq!(value(&quotes, "user.name"), Some("a \"b\" \\ c"));
        let made = config(&quotes, Path::new("/w"), false);
        assert!(made.contains("name = \"a \\\"b\\\" \\\\ c\"\n"), "{made}");
        assert_eq!(git_settings(&made), quotes);
    }

    #[test]
    fn commits_are_signed_by_default_only_where_a_key_can() {
        let settings = git_settings("[commit]\ngpgSign = true\n[user]\nsigningKey = ABCD\n");
        assert_eq!(value(&settings, "commit.gpgsign"), Some("true"));
        assert_eq!(settings.len(), 1, "the key is the cage's own");
        let with = config(&settings, Path::new("/w"), true);
        assert!(with.contains("[commit]\n\tgpgsign = \"true\""), "{with}");
        assert!(!config(&settings, Path::new("/w"), false).contains("gpgsign"));
    }

    #[test]
    fn a_workspace_whose_name_could_break_a_line_is_not_written() {
        let safe = config(&[], Path::new("/home/ann/a b"), false);
        assert!(safe.contains("directory = \"/home/ann/a b\""));
        assert!(!config(&[], Path::new("/home/ann/a\n[alias]"), false).contains("alias"));
    }
}
