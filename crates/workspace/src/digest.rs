//! The digest of a reading: what a review saw, and what an apply is to find unchanged.
//!
//! It covers what was printed, byte for byte, and the content of all that was selected. A cage that works
//! on the change can write between the two: then the digest is that of neither version, and no apply
//! matches it.

use crate::reading::{Reading, Status};
use crate::tree::{self, Kind, Node};
use crate::{Change, Roots, Selection, WorkspaceError, differences, unified};
use sha2::{Digest as _, Sha256};
use std::fmt::Write as _;
use std::io::{self, Read as _, Write};
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use std::str::FromStr;

/// How a change was shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReviewForm {
    /// As a diff for people.
    Text,
    /// As a diff for `git apply`.
    Raw,
    /// By its files; nothing of their content was shown.
    Files,
}

impl ReviewForm {
    const ALL: [ReviewForm; 3] = [ReviewForm::Text, ReviewForm::Raw, ReviewForm::Files];

    const fn name(self) -> &'static str {
        match self {
            ReviewForm::Text => "text",
            ReviewForm::Raw => "raw",
            ReviewForm::Files => "files",
        }
    }
}

impl ReviewDigest {
    /// How it was shown.
    pub const fn form(&self) -> ReviewForm {
        self.form
    }
}

/// The digest of a reading, as it is written: `text-`, `raw-` or `files-`, and 64 hexadecimal digits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReviewDigest {
    form: ReviewForm,
    digits: String,
}

impl std::fmt::Display for ReviewDigest {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}-{}", self.form.name(), self.digits)
    }
}

impl FromStr for ReviewDigest {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let parts = text.split_once('-');
        let found = parts.and_then(|(name, digits)| {
            let form = ReviewForm::ALL
                .into_iter()
                .find(|form| form.name() == name)?;
            let is_digit = |byte: u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
            (digits.len() == 64 && digits.bytes().all(is_digit)).then(|| ReviewDigest {
                form,
                digits: digits.to_owned(),
            })
        });
        found.ok_or("expected a digest as `ironcage change diff --digest` prints it")
    }
}

/// Passes bytes on and takes their digest.
struct Hashing<'a> {
    out: &'a mut dyn Write,
    hasher: Sha256,
}

impl Write for Hashing<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let count = self.out.write(bytes)?;
        self.hasher.update(bytes.get(..count).unwrap_or(bytes));
        Ok(count)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}

/// Writes a diff of the selected part without colours, and returns its digest. For
/// [`ReviewForm::Files`] nothing is written.
///
/// # Errors
/// Where the change cannot be read, or the diff cannot be written.
pub fn review(
    out: &mut dyn Write,
    change: &Change,
    selection: &Selection,
    form: ReviewForm,
) -> Result<ReviewDigest, WorkspaceError> {
    let reading = change.read_entries(selection)?;
    let roots = Roots::open(change)?;
    digest_of(out, (change, &roots, &reading), form)
}

/// The same of a reading.
///
/// # Errors
/// As [`review`].
pub fn digest_of(
    out: &mut dyn Write,
    (change, roots, reading): (&Change, &Roots, &Reading),
    form: ReviewForm,
) -> Result<ReviewDigest, WorkspaceError> {
    let failed = |action: &'static str| {
        move |source: io::Error| WorkspaceError::Io {
            action,
            path: change.workspace().to_owned(),
            source,
        }
    };
    let mut shown = Hashing {
        out,
        hasher: Sha256::new(),
    };
    if form != ReviewForm::Files {
        let style = unified::Style {
            colour: false,
            raw: form == ReviewForm::Raw,
        };
        let mut print = || -> io::Result<()> {
            let mut buffered = io::BufWriter::new(&mut shown);
            for difference in &differences(roots, reading, &|entry| entry.named) {
                unified::write(&mut buffered, (change, roots), difference, style)?;
            }
            if form == ReviewForm::Text {
                writeln!(buffered, "{:#}", change.summary_of(roots, reading))?;
            }
            buffered.flush()
        };
        print().map_err(failed("print the diff in"))?;
    }
    let mut hasher = shown.hasher;
    add_content(&mut hasher, roots, reading).map_err(failed("read the change in"))?;
    let digits = hasher.finalize();
    let digits = digits.iter().fold(String::new(), |mut text, byte| {
        // Writing to a string cannot fail.
        let _ = write!(text, "{byte:02x}");
        text
    });
    Ok(ReviewDigest { form, digits })
}

fn add_content(hasher: &mut Sha256, roots: &Roots, reading: &Reading) -> io::Result<()> {
    for entry in &reading.entries {
        if entry.status == Status::Touched {
            continue;
        }
        hasher.update([0, entry.status as u8]);
        hasher.update((entry.layer as u64).to_le_bytes());
        add_path(hasher, &entry.path);
        add_node(hasher, entry.before.as_ref());
        if let Some(before) = &entry.before {
            // The user's own file: another version of it was not reviewed either.
            let (seconds, part) = (before.modified.seconds, before.modified.nanoseconds);
            hasher.update(seconds.to_le_bytes());
            hasher.update(part.to_le_bytes());
        }
        add_node(hasher, entry.after.as_ref());
        if let Some(after) = &entry.after
            && after.kind == Kind::File
        {
            let mut file = tree::open_file_below(roots.upper(entry.layer)?, &entry.path)?;
            let mut content = Sha256::new();
            let mut part = vec![0; 64 * 1024];
            loop {
                let count = match file.read(&mut part) {
                    Ok(0) => break,
                    Ok(count) => count,
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                    Err(error) => return Err(error),
                };
                content.update(part.get(..count).unwrap_or_default());
            }
            hasher.update(content.finalize());
        }
    }
    Ok(())
}

fn add_path(hasher: &mut Sha256, path: &Path) {
    let bytes = path.as_os_str().as_bytes();
    hasher.update((bytes.len() as u64).to_le_bytes());
    hasher.update(bytes);
}

fn add_node(hasher: &mut Sha256, node: Option<&Node>) {
    let Some(node) = node else {
        hasher.update([0]);
        return;
    };
    hasher.update([1, node.kind as u8]);
    hasher.update(node.mode.to_le_bytes());
    let size = match node.kind {
        Kind::File => node.size,
        _ => 0,
    };
    hasher.update(size.to_le_bytes());
    add_path(hasher, node.target.as_deref().unwrap_or(Path::new("")));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_digest_reads_back_as_it_is_written() {
        for form in ReviewForm::ALL {
            let text = format!("{}-{}", form.name(), "0a".repeat(32));
            assert_eq!(text.parse::<ReviewDigest>().unwrap().to_string(), text);
        }
        let digits = "0a".repeat(32);
        for wrong in [
            String::new(),
            digits.clone(),
            format!("other-{digits}"),
            format!("text-{digits}0"),
            format!("text-{}", digits.to_uppercase()),
        ] {
            assert!(wrong.parse::<ReviewDigest>().is_err(), "{wrong}");
        }
    }
}
