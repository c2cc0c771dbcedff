//! Holds a cage still while its files are worked on from outside.

use super::{ClientError, Connection, PATIENCE, system};
use ironcage_control::{Reply, Request};
use ironcage_sys::rustix::fs::{Dir, Mode, OFlags, openat};
use std::io::{self, Read as _};
use std::os::fd::{AsFd as _, OwnedFd};
use std::time::{Duration, Instant};

/// How long a process may take to stop before all are let go and told again: one that waits for
/// a child which was stopped before it executed waits for ever.
const ROUND: Duration = Duration::from_secs(2);
/// How long it is tried at all.
const TRIED: Duration = Duration::from_secs(30);
const PAUSE: Duration = Duration::from_millis(1);

/// A cage that stands still; it goes on when this is released, or the connection ends.
#[derive(Debug)]
pub struct Held<'a> {
    connection: &'a Connection,
}

impl Connection {
    /// Stops every process of the cage, and waits until all have stopped.
    pub fn hold(&self) -> Result<Held<'_>, ClientError> {
        let begun = Instant::now();
        loop {
            self.send(&Request::Hold)?;
            let (reply, descriptors) = self.receive(Some(Instant::now() + PATIENCE))?;
            let proc = match (reply, descriptors.into_iter().next()) {
                (Reply::Held, Some(proc)) => proc,
                (other, _) => return Err(ClientError::Answer(format!("{other:?}"))),
            };
            let held = Held { connection: self };
            let until = Instant::now() + ROUND;
            let moving = loop {
                match moving(&proc).map_err(system("look at the cage's processes"))? {
                    None => return Ok(held),
                    Some(moving) if Instant::now() >= until => break moving,
                    Some(_) => std::thread::sleep(PAUSE),
                }
            };
            held.release()?;
            if begun.elapsed() >= TRIED {
                return Err(ClientError::Refused {
                    reason: format!(
                        "its process {moving} does not stop; nothing was done, try again later"
                    ),
                });
            }
        }
    }
}

impl Held<'_> {
    /// Lets the cage go on, with copy-on-write views that show the real files as they are. Why
    /// they do not, if they could not be renewed.
    pub fn release(self) -> Result<Option<String>, ClientError> {
        match self.connection.ask(&Request::Release)? {
            Reply::Released { stale } => Ok(stale),
            other => Err(ClientError::Answer(format!("{other:?}"))),
        }
    }
}

/// A process of the cage that has not stopped, by its number there; PID 1 never does.
fn moving(proc: &OwnedFd) -> io::Result<Option<u32>> {
    for pid in numbers(proc, ".")? {
        if pid == 1 {
            continue;
        }
        // What is gone has stopped.
        let Ok(tasks) = numbers(proc, &format!("{pid}/task")) else {
            continue;
        };
        for task in tasks {
            let path = format!("{pid}/task/{task}/stat");
            let Ok(file) = openat(
                proc,
                &*path,
                OFlags::RDONLY | OFlags::CLOEXEC,
                Mode::empty(),
            ) else {
                continue;
            };
            let mut text = Vec::new();
            if std::fs::File::from(file).read_to_end(&mut text).is_err() {
                continue;
            }
            // The name before it is the program's choice, and may hold anything.
            let after = text.iter().rposition(|byte| *byte == b')').unwrap_or(0);
            if !matches!(text.get(after + 2), Some(b'T' | b't' | b'Z' | b'X')) {
                return Ok(Some(pid));
            }
        }
    }
    Ok(None)
}

fn numbers(proc: &OwnedFd, path: &str) -> io::Result<Vec<u32>> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let directory = openat(proc.as_fd(), path, flags, Mode::empty())?;
    let mut found = Vec::new();
    for entry in Dir::new(directory)? {
        let name: Option<u32> = entry?
            .file_name()
            .to_str()
            .ok()
            .and_then(|name| name.parse().ok());
        found.extend(name);
    }
    Ok(found)
}
