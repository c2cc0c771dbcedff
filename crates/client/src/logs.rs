//! Reading the output of a background cage.

use crate::{Cages, ClientError, system};
use ironcage_control::Request;
use ironcage_model::CageId;
use ironcage_state::{EARLIER_LOG, OUTPUT_LOG};
use ironcage_sys::rustix::fs::{Mode, OFlags, open};
use ironcage_sys::rustix::io::Errno;
use ironcage_sys::rustix::stdio;
use ironcage_sys::rustix::termios::isatty;
use ironcage_terminal::filter::Filter;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::Duration;

/// How often it is looked for more.
const LOOK: Duration = Duration::from_millis(100);

/// What of the output is shown.
#[derive(Debug, Clone, Copy, Default)]
pub struct LogOptions {
    /// Only so many lines from the end.
    pub tail: Option<usize>,
    /// Whether to go on until the cage is gone.
    pub follow: bool,
    /// Whether sequences that make the user's terminal act or answer are let through.
    pub raw_terminal: bool,
}

/// Writes the output of a background cage to standard output. On a terminal it is filtered as
/// it would have been when the command wrote it there.
pub fn logs(cages: &Cages, id: &CageId, options: LogOptions) -> Result<(), ClientError> {
    let directory = cages.archive().of(id);
    let mut out = Shown {
        filter: (isatty(stdio::stdout()) && !options.raw_terminal).then(Filter::default),
    };
    // Before the first look, so that nothing is missed between the last and the end.
    let connection = match options.follow {
        true => match cages.connect(id) {
            Ok(connection) => Some(connection),
            Err(ClientError::NotRunning { .. }) => None,
            Err(error) => return Err(error),
        },
        false => None,
    };
    if let Some(connection) = &connection {
        connection.send(&Request::Wait)?;
    }
    let mut current = open_log(&directory, OUTPUT_LOG)?;
    let mut text = Vec::new();
    if let Some(mut before) = open_log(&directory, EARLIER_LOG)? {
        before
            .read_to_end(&mut text)
            .map_err(system("read the log"))?;
    }
    if let Some(current) = &mut current {
        current
            .read_to_end(&mut text)
            .map_err(system("read the log"))?;
    }
    let start = options.tail.map_or(0, |lines| last_lines(&text, lines));
    if !out.show(text.get(start..).unwrap_or_default())? {
        return Ok(());
    }
    let Some(connection) = connection else {
        return Ok(());
    };
    loop {
        // What is written before the end is said is there when it is heard.
        let over = match connection.take() {
            Ok(None) => false,
            Ok(Some(_)) | Err(ClientError::Gone { .. }) => true,
            Err(error) => return Err(error),
        };
        let mut more = Vec::new();
        if let Some(file) = &mut current {
            file.read_to_end(&mut more)
                .map_err(system("read the log"))?;
        }
        if let Some(mut newer) = newer(&directory, current.as_ref())? {
            newer
                .read_to_end(&mut more)
                .map_err(system("read the log"))?;
            current = Some(newer);
        }
        if !out.show(&more)? || over {
            return Ok(());
        }
        std::thread::sleep(LOOK);
    }
}

fn open_log(directory: &Path, name: &str) -> Result<Option<File>, ClientError> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    match open(directory.join(name), flags, Mode::empty()) {
        Ok(file) => Ok(Some(file.into())),
        Err(Errno::NOENT) => Ok(None),
        Err(error) => Err(system("open the log")(error)),
    }
}

/// The log that has taken the place of the one that is read.
fn newer(directory: &Path, current: Option<&File>) -> Result<Option<File>, ClientError> {
    let inode = |file: &File| file.metadata().map(|found| found.ino()).ok();
    let now = open_log(directory, OUTPUT_LOG)?;
    Ok(now.filter(|now| current.and_then(inode) != inode(now)))
}

/// Where the last lines of a text begin.
fn last_lines(text: &[u8], lines: usize) -> usize {
    let end = text.len() - usize::from(text.ends_with(b"\n"));
    let breaks = text.iter().take(end).enumerate().rev();
    let mut breaks = breaks.filter(|(_, byte)| **byte == b'\n');
    match lines.checked_sub(1) {
        None => text.len(),
        Some(skipped) => breaks.nth(skipped).map_or(0, |(place, _)| place + 1),
    }
}

struct Shown {
    filter: Option<Filter>,
}

impl Shown {
    /// `false` when nobody reads any more.
    fn show(&mut self, bytes: &[u8]) -> Result<bool, ClientError> {
        let mut out = io::stdout().lock();
        let written = match &mut self.filter {
            Some(filter) => {
                let mut passed = Vec::with_capacity(bytes.len());
                filter.feed(bytes, &mut passed);
                out.write_all(&passed)
            }
            None => out.write_all(bytes),
        };
        match written.and_then(|()| out.flush()) {
            Ok(()) => Ok(true),
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(false),
            Err(error) => Err(system("write the log")(error)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_lines_are_found_with_and_without_a_newline_at_the_end() {
        let last = |text: &'static str, lines| &text[last_lines(text.as_bytes(), lines)..];
        assert_eq!(last("a\nb\nc\n", 2), "b\nc\n");
        assert_eq!(last("a\nb\nc", 2), "b\nc");
        assert_eq!(last("a\nb\n", 5), "a\nb\n");
        assert_eq!(last("a\nb\n", 0), "");
        assert_eq!(last("", 3), "");
    }
}
