//! Calls that the MCP gateway decided about, for `ironcage audit show` and `ironcage why`.

use ironcage_model::{Printable, ToolCall, ToolVerdict, find_reason};
use std::io::{self, Write};

/// One line for `ironcage audit show`.
pub(crate) fn event_line(out: &mut dyn Write, call: &ToolCall) -> io::Result<()> {
    let what = match call.verdict {
        ToolVerdict::Called => "called",
        ToolVerdict::Denied => "denied",
        ToolVerdict::Asked => "asked",
        ToolVerdict::Failed => "failed",
    };
    let why = call.because.as_ref().map(|why| format!(": {why}"));
    let how = match call.verdict {
        ToolVerdict::Called => format!(", {} bytes after {} ms", call.bytes, call.milliseconds),
        _ => why.unwrap_or_default(),
    };
    writeln!(
        out,
        "tool    {what} {} {}{}{how}",
        Printable::new(&call.method),
        Printable::new(&call.name),
        of_server(call)
    )
}

/// What `ironcage why` says of one that was not carried out, and how often that was.
pub(crate) fn explain(out: &mut dyn Write, call: &ToolCall, count: u64) -> io::Result<()> {
    let times = super::event::times(count);
    let why = call.because.as_ref();
    let text = why.map(ToString::to_string).unwrap_or_default();
    writeln!(
        out,
        "denied: {} {}{}, {times}: {text}",
        Printable::new(&call.method),
        Printable::new(&call.name),
        of_server(call)
    )?;
    if !call.rule.is_empty() {
        writeln!(out, "  the rule:      {}", Printable::new(&call.rule))?;
    }
    let entry = why.and_then(|why| find_reason(why.code()?));
    match entry {
        Some(entry) => crate::output::wrap(out, "  what to do:    ", entry.remedy),
        None => Ok(()),
    }
}

/// A call that no server was to answer has none.
fn of_server(call: &ToolCall) -> String {
    match call.server.is_empty() {
        true => String::new(),
        false => format!(" of {}", Printable::new(&call.server)),
    }
}
