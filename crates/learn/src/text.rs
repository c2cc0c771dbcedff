//! A policy as text: sections, each entry with its reason, and what is proposed as comments.

use ironcage_model::Printable;
use ironcage_policy::quoted;
use std::fmt::Write as _;
use std::path::Path;

/// One entry of a list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Entry {
    /// As TOML writes it.
    pub(crate) value: String,
    pub(crate) why: String,
    /// Whether it is only proposed, and so a comment.
    pub(crate) proposed: bool,
}

/// A section of a policy file.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Section {
    name: &'static str,
    single: Vec<(String, Entry)>,
    lists: Vec<(&'static str, Vec<Entry>)>,
    remarks: Vec<String>,
}

impl Section {
    pub(crate) fn new(name: &'static str) -> Self {
        Section {
            name,
            ..Section::default()
        }
    }

    /// A single value.
    pub(crate) fn set(&mut self, key: &str, value: impl Into<String>, why: impl Into<String>) {
        let entry = Entry {
            value: value.into(),
            why: why.into(),
            proposed: false,
        };
        self.single.push((key.to_owned(), entry));
    }

    /// One more entry of a list.
    pub(crate) fn add(&mut self, key: &'static str, value: String, why: impl Into<String>) {
        self.push(key, value, why, false);
    }

    /// One more entry that is only proposed.
    pub(crate) fn propose(&mut self, key: &'static str, value: String, why: impl Into<String>) {
        self.push(key, value, why, true);
    }

    fn push(&mut self, key: &'static str, value: String, why: impl Into<String>, proposed: bool) {
        let entry = Entry {
            value,
            why: why.into(),
            proposed,
        };
        match self.lists.iter_mut().find(|(known, _)| *known == key) {
            Some((_, entries)) => {
                if entries.iter().all(|known| known.value != entry.value) {
                    entries.push(entry);
                }
            }
            None => self.lists.push((key, vec![entry])),
        }
    }

    /// A line that proposes nothing.
    pub(crate) fn remark(&mut self, text: impl Into<String>) {
        self.remarks.push(text.into());
    }

    /// Entries that count, and those that are proposed.
    pub(crate) fn count(&self) -> (usize, usize) {
        let entries = self.lists.iter().flat_map(|(_, entries)| entries);
        let (proposed, given): (Vec<_>, Vec<_>) = entries.partition(|entry| entry.proposed);
        (given.len(), proposed.len())
    }

    pub(crate) fn write(&self, out: &mut String) {
        if self.single.is_empty() && self.lists.is_empty() && self.remarks.is_empty() {
            return;
        }
        // Writing to a string cannot fail.
        let _ = writeln!(out, "\n[{}]", self.name);
        for remark in &self.remarks {
            let _ = writeln!(out, "# {}", comment(remark));
        }
        for (key, entry) in &self.single {
            let _ = writeln!(out, "# {}", comment(&entry.why));
            let _ = writeln!(out, "{key} = {}", entry.value);
        }
        for (key, entries) in &self.lists {
            let _ = writeln!(out, "{key} = [");
            for entry in entries {
                let mark = if entry.proposed { "# " } else { "" };
                let _ = writeln!(out, "  # {}", comment(&entry.why));
                let _ = writeln!(out, "  {mark}{},", entry.value);
            }
            out.push_str("]\n");
        }
    }
}

/// Text from a record in a comment: on one line, with nothing that a terminal acts on.
pub(crate) fn comment(text: &str) -> String {
    Printable::new(text).to_string()
}

/// A path as a policy writes it; `None` where it is no text.
pub(crate) fn path(path: &Path, home: &Path) -> Option<String> {
    let text = match path.strip_prefix(home) {
        Ok(rest) if rest.as_os_str().is_empty() => "~".to_owned(),
        Ok(rest) => format!("~/{}", rest.to_str()?),
        Err(_) => path.to_str()?.to_owned(),
    };
    Some(quoted(&text))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_proposed_is_a_comment_and_a_name_cannot_leave_its_comment() {
        let mut section = Section::new("files");
        section.add("read", quoted("/a"), "read by cat");
        section.propose("read", quoted("/b\nwrite = [\"/\"]"), "by x\ny = 1");
        section.add("read", quoted("/a"), "again");
        let mut text = String::new();
        section.write(&mut text);
        let value: Vec<&str> = text.lines().filter(|line| !line.contains('#')).collect();
        assert_eq!(value, ["", "[files]", "read = [", "  \"/a\",", "]"]);
        assert_eq!(section.count(), (1, 1));
    }

    #[test]
    fn paths_at_home_are_written_from_there() {
        let home = Path::new("/home/u");
        assert_eq!(path(Path::new("/home/u/x"), home).unwrap(), "\"~/x\"");
        assert_eq!(path(Path::new("/home/ux"), home).unwrap(), "\"/home/ux\"");
        assert_eq!(path(home, home).unwrap(), "\"~\"");
    }
}
