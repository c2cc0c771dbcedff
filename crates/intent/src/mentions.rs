//! Places that free text names: paths and hosts in a model's words and visible reasoning.
//!
//! Words are not calls. A mention says at most what a person may be told beside a
//! question, or what was left out; whoever uses it grants nothing by it. Text comes in pieces of
//! any size; one word of it is kept, and a bounded number of names.

use crate::needs::tidy;
use crate::shell::Context;
use std::path::PathBuf;

/// Longest word that can be a name.
const LONGEST: usize = 256;
/// Names that are kept of one answer: whoever names more has announced nothing.
const MOST: usize = 64;

/// Something that words name.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Mention {
    /// A path, absolute and in one spelling.
    Path(PathBuf),
    /// A host, without its port.
    Host(String),
}

/// A reader of the words of one answer.
#[derive(Debug, Default)]
pub struct Mentions {
    word: String,
    /// Whether the word is longer than a name.
    long: bool,
    found: Vec<Mention>,
    /// How many of them were taken.
    taken: usize,
}

/// What stands between words, in prose, in Markdown and in quotes.
fn separates(mark: char) -> bool {
    mark.is_whitespace() || mark.is_control() || "`\"\\'<>()[]{}|,;*=“”‘’«»…".contains(mark)
}

impl Mentions {
    /// Takes the next words.
    pub fn read(&mut self, text: &str, context: &Context) {
        for mark in text.chars() {
            if separates(mark) {
                self.pause(context);
            } else if self.word.len() + mark.len_utf8() > LONGEST {
                self.long = true;
                self.word.clear();
            } else if !self.long {
                self.word.push(mark);
            }
        }
    }

    /// What was last said is whole: something else comes, or nothing more.
    pub fn pause(&mut self, context: &Context) {
        let long = std::mem::take(&mut self.long);
        if !long && self.found.len() < MOST {
            let word = self.word.trim_end_matches(['.', ':', '!', '?']);
            let mention = mention(word, context);
            if let Some(mention) = mention.filter(|mention| !self.found.contains(mention)) {
                self.found.push(mention);
            }
        }
        self.word.clear();
    }

    /// What was found and not taken before.
    pub fn take(&mut self) -> Vec<Mention> {
        let new = self.found.get(self.taken..).unwrap_or_default().to_vec();
        self.taken = self.found.len();
        new
    }
}

/// What a word names, if anything.
fn mention(word: &str, context: &Context) -> Option<Mention> {
    if let Some((scheme, rest)) = word.split_once("://") {
        let plain = !scheme.is_empty() && scheme.bytes().all(|byte| byte.is_ascii_alphanumeric());
        let authority = rest.split(['/', '?', '#']).next().filter(|_| plain)?;
        let host = authority.rsplit('@').next()?;
        return host_of(host, 1);
    }
    if let Some(rest) = word.strip_prefix("~/") {
        let home = context.home.as_ref()?;
        return path(tidy(home, rest));
    }
    if ["/", "./", "../"]
        .iter()
        .any(|start| word.starts_with(start))
    {
        return path(tidy(&context.cwd, word));
    }
    if let Some((_, rest)) = word.split_once('@') {
        return host_of(rest, 1);
    }
    host_of(word.split('/').next()?, 2)
}

/// The root says nothing, and neither does what cannot be told on.
fn path(path: PathBuf) -> Option<Mention> {
    let told = path.parent().is_some() && path.to_str().is_some();
    told.then_some(Mention::Path(path))
}

/// A host of at least so many labels, with or without a port.
fn host_of(text: &str, least: usize) -> Option<Mention> {
    let name = text.split(':').next()?.to_ascii_lowercase();
    let name = name.strip_suffix('.').unwrap_or(&name);
    let label = |label: &str| {
        (1..=63).contains(&label.len())
            && label
                .bytes()
                .all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
    };
    let labels = name.split('.').count();
    let whole = labels >= least && name.split('.').all(label);
    whole.then(|| Mention::Host(name.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn context() -> Context {
        Context {
            cwd: "/project".into(),
            home: Some("/home/user".into()),
        }
    }

    fn found(pieces: &[&str]) -> Vec<String> {
        let (mut mentions, context) = (Mentions::default(), context());
        for piece in pieces {
            mentions.read(piece, &context);
        }
        mentions.pause(&context);
        let shown = |mention| match mention {
            Mention::Path(path) => path.display().to_string(),
            Mention::Host(name) => name,
        };
        mentions.take().into_iter().map(shown).collect()
    }

    #[test]
    fn paths_and_hosts_are_found_in_prose_markdown_and_addresses() {
        let text = "First I read `/srv/data/rows.csv`, (see ../notes/a.md) and ~/x; \
            then **push** to https://user:pw@git.example.org:8443/x?y, git@host.example:team/r.git \
            or registry.test:443/npm. And/or / nothing, // either.";
        let wanted = [
            "/srv/data/rows.csv",
            "/notes/a.md",
            "/home/user/x",
            "git.example.org",
            "host.example",
            "registry.test",
        ];
        assert_eq!(found(&[text]), wanted);
        let bytes: Vec<String> = text.chars().map(String::from).collect();
        let bytes: Vec<&str> = bytes.iter().map(String::as_str).collect();
        assert_eq!(found(&bytes), wanted);
    }

    #[test]
    fn what_is_kept_is_bounded_whatever_comes() {
        let (mut mentions, context) = (Mentions::default(), context());
        let padding = "/a".repeat(1 << 20);
        for _ in 0..50 {
            mentions.read(&padding, &context);
            assert!(mentions.word.len() <= LONGEST);
        }
        mentions.read(" /after ", &context);
        assert_eq!(mentions.take(), [Mention::Path("/after".into())]);
        for number in 0..100_000 {
            mentions.read(&format!("/x/{number} "), &context);
        }
        assert_eq!(mentions.found.len(), MOST);
        assert_eq!(mentions.take().len(), MOST - 1);
        assert!(mentions.take().is_empty());
    }
}
