//! What happened between cages, in words.

use ironcage_model::{EventKind, Printable};
use std::io::{self, Write};

/// One line for an event of a family.
pub(super) fn line(out: &mut dyn Write, kind: &EventKind) -> io::Result<()> {
    match kind {
        EventKind::ChildOpened {
            child,
            command,
            workspace,
        } => writeln!(
            out,
            "child   {child}: {}, on the same workspace ({})",
            Printable::new(&command.join(" ")),
            Printable::new(workspace)
        ),
        EventKind::ChildEnded {
            child,
            status,
            milliseconds,
        } => writeln!(
            out,
            "child   {child}: ended with status {status} after {}.{:03} s",
            milliseconds / 1000,
            milliseconds % 1000
        ),
        EventKind::ChildRefused { reason } => {
            writeln!(out, "child   refused: {}", Printable::new(reason))
        }
        _ => Ok(()),
    }
}
