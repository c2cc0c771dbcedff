//! Differences in git's unified format.
//!
//! Names are quoted as git quotes them. File content is escaped where it could control a
//! terminal, unless the caller asks for the raw bytes.

use crate::Change;
use crate::differences::{Difference, Roots, Versions, compare};
use crate::reading::Status;
use crate::tree::{Kind, Node};
use similar::ChangeTag;
use std::fmt::Write as _;
use std::io::{self, Write};
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

/// Lines around a change.
const CONTEXT: usize = 3;

/// How a difference is written.
#[derive(Debug, Clone, Copy, Default)]
pub struct Style {
    pub colour: bool,
    /// Bytes as they are, for `git apply`.
    pub raw: bool,
}

#[derive(Clone, Copy)]
enum Paint {
    Plain,
    Bold,
    Added,
    Removed,
    Place,
}

/// Writes one difference.
///
/// # Errors
/// Where it cannot be written. What cannot be read is said in its place.
pub fn write(
    out: &mut impl Write,
    (change, roots): (&Change, &Roots),
    difference: &Difference,
    style: Style,
) -> io::Result<()> {
    let old = difference
        .moved
        .as_ref()
        .map_or(&difference.path, |(from, _)| from);
    // For a program, as the directory knows them; for people, so that directories can be told apart.
    let name = |path: &Path| match style.raw {
        true => path.to_owned(),
        false => {
            let shown = change.shown(difference.layer, path);
            shown.strip_prefix("/").map(Path::to_owned).unwrap_or(shown)
        }
    };
    let (old, new) = (&name(old), &name(&difference.path));
    let (quoted_old, quoted_new) = (quoted("a/", old), quoted("b/", new));
    let mut head = vec![format!("diff --git {quoted_old} {quoted_new}")];
    match (&difference.before, &difference.after) {
        (None, Some(after)) => head.push(format!("new file mode {}", mode(after))),
        (Some(before), None) => head.push(format!("deleted file mode {}", mode(before))),
        (Some(before), Some(after)) if mode(before) != mode(after) => {
            head.push(format!("old mode {}", mode(before)));
            head.push(format!("new mode {}", mode(after)));
        }
        _ => {}
    }
    if let Some((_, percent)) = &difference.moved {
        head.push(format!("similarity index {percent}%"));
        head.push(format!("rename from {}", quoted("", old)));
        head.push(format!("rename to {}", quoted("", new)));
    }
    for line in head {
        paint(out, style, Paint::Bold, line.as_bytes())?;
    }
    let absent = "/dev/null".to_owned();
    let old_name = if difference.before.is_some() {
        quoted_old
    } else {
        absent.clone()
    };
    let new_name = if difference.after.is_some() {
        quoted_new
    } else {
        absent
    };
    match difference.versions(roots) {
        Ok(Versions::Same) => Ok(()),
        Ok(Versions::Binary) => {
            let line = format!("Binary files {old_name} and {new_name} differ");
            paint(out, style, Paint::Plain, line.as_bytes())
        }
        Ok(Versions::Large) => {
            let size = |node: &Option<Node>| node.as_ref().map_or(0, |node| node.size);
            let line = format!(
                "Files {old_name} and {new_name} are too large to compare: {} and {} bytes",
                size(&difference.before),
                size(&difference.after)
            );
            paint(out, style, Paint::Plain, line.as_bytes())
        }
        Ok(Versions::Text(old, new)) => {
            paint(
                out,
                style,
                Paint::Bold,
                format!("--- {old_name}").as_bytes(),
            )?;
            paint(
                out,
                style,
                Paint::Bold,
                format!("+++ {new_name}").as_bytes(),
            )?;
            hunks(out, &old, &new, style)
        }
        Err(error) => {
            let line = format!("Cannot read it: {error}");
            paint(out, style, Paint::Plain, line.as_bytes())
        }
    }
}

fn hunks(out: &mut impl Write, old: &[u8], new: &[u8], style: Style) -> io::Result<()> {
    let compared = compare(old, new);
    let mut unified = compared.unified_diff();
    unified.context_radius(CONTEXT);
    for hunk in unified.iter_hunks() {
        paint(
            out,
            style,
            Paint::Place,
            hunk.header().to_string().trim_end().as_bytes(),
        )?;
        for change in hunk.iter_changes() {
            let (sign, colour) = match change.tag() {
                ChangeTag::Insert => (b'+', Paint::Added),
                ChangeTag::Delete => (b'-', Paint::Removed),
                ChangeTag::Equal => (b' ', Paint::Plain),
            };
            let line = change.value();
            let ended = line.strip_suffix(b"\n");
            let mut shown = vec![sign];
            match style.raw {
                true => shown.extend_from_slice(ended.unwrap_or(line)),
                false => shown.extend(harmless(ended.unwrap_or(line)).into_bytes()),
            }
            paint(out, style, colour, &shown)?;
            if ended.is_none() {
                paint(out, style, Paint::Plain, b"\\ No newline at end of file")?;
            }
        }
    }
    Ok(())
}

/// Text of a file with what could act on a terminal escaped; tabs stay.
fn harmless(line: &[u8]) -> String {
    let parts: Vec<String> = line
        .split(|byte| *byte == b'\t')
        .map(|part| ironcage_model::Printable::bytes(part).to_string())
        .collect();
    parts.join("\t")
}

fn paint(out: &mut impl Write, style: Style, paint: Paint, line: &[u8]) -> io::Result<()> {
    let code = match paint {
        _ if !style.colour => "",
        Paint::Plain => "",
        Paint::Bold => "\x1b[1m",
        Paint::Added => "\x1b[32m",
        Paint::Removed => "\x1b[31m",
        Paint::Place => "\x1b[36m",
    };
    out.write_all(code.as_bytes())?;
    out.write_all(line)?;
    if !code.is_empty() {
        out.write_all(b"\x1b[m")?;
    }
    out.write_all(b"\n")
}

/// The mode as git tells it.
fn mode(node: &Node) -> String {
    match node.kind {
        Kind::File => format!("10{:04o}", node.mode),
        Kind::Link => "120000".to_owned(),
        Kind::Directory => format!("04{:04o}", node.mode),
        Kind::Pipe => format!("01{:04o}", node.mode),
        Kind::Socket => format!("14{:04o}", node.mode),
        Kind::Device => format!("02{:04o}", node.mode),
    }
}

/// A name as git quotes it: plain where it is harmless, else in quotes with escapes.
pub fn quoted(prefix: &str, path: &Path) -> String {
    let bytes = path.as_os_str().as_bytes();
    let text = ironcage_model::Printable::bytes(bytes).to_string();
    if text.as_bytes() == bytes && !bytes.iter().any(|byte| matches!(byte, b'"' | b'\\')) {
        return format!("{prefix}{text}");
    }
    let mut shown = format!("\"{prefix}");
    for byte in bytes {
        match byte {
            b'"' => shown.push_str("\\\""),
            b'\\' => shown.push_str("\\\\"),
            b'\n' => shown.push_str("\\n"),
            b'\t' => shown.push_str("\\t"),
            b' '..=b'~' => shown.push(char::from(*byte)),
            // Writing to a string cannot fail.
            byte => drop(write!(shown, "\\{byte:03o}")),
        }
    }
    shown.push('"');
    shown
}

/// The letter that stands for a status in a list of names.
pub fn letter(difference: &Difference) -> char {
    match difference.status {
        _ if difference.moved.is_some() => 'R',
        Status::Added => 'A',
        Status::Removed => 'D',
        Status::Modified => 'M',
        Status::Type => 'T',
        Status::Mode => 'M',
        Status::Touched => ' ',
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ffi::OsStr;

    #[test]
    fn names_are_quoted_as_git_quotes_them() {
        let shown = |bytes: &'static [u8]| quoted("a/", Path::new(OsStr::from_bytes(bytes)));
        assert_eq!(shown(b"src/plain file.rs"), "a/src/plain file.rs");
        assert_eq!(shown("naïve".as_bytes()), "a/naïve");
        assert_eq!(shown(b"x\ny\x1b[2J"), "\"a/x\\ny\\033[2J\"");
        assert_eq!(shown(b"\xff\"\\"), "\"a/\\377\\\"\\\\\"");
    }

    #[test]
    fn lines_cannot_act_on_a_terminal() {
        assert_eq!(harmless(b"a\tb\x1b[31m\r"), "a\tb\\u{1b}[31m\\u{d}");
    }
}
