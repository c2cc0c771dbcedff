//! Holds a cage still while its files are worked on from outside.

use crate::{ClientError, Connection, PATIENCE, system};
use ironcage_control::{Reply, Request};
use ironcage_model::SupervisorReason;
use ironcage_sys::rustix::fs::{Dir, Mode, OFlags, openat};
use ironcage_sys::rustix::io::Errno;
use std::collections::BTreeMap;
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
pub struct FrozenCage<'a> {
    connection: &'a Connection,
    /// The cage's processes, as its own `/proc` tells them.
    proc: OwnedFd,
    stood: SwitchCounts,
}

/// How often each task of a cage that stands still was switched to and from, by its number there.
/// A signal that wakes a stopped process can be had from a timer: whoever moved was switched to.
#[derive(Debug, Default, PartialEq, Eq)]
struct SwitchCounts(BTreeMap<(u32, u32), u64>);

impl Connection {
    /// Stops every process of the cage, and waits until all have stopped.
    pub fn hold(&self) -> Result<FrozenCage<'_>, ClientError> {
        let begun = Instant::now();
        loop {
            self.send(&Request::Hold)?;
            let (reply, descriptors) = self.receive(Some(Instant::now() + PATIENCE))?;
            let proc = match (reply, descriptors.into_iter().next()) {
                (Reply::Held, Some(proc)) => proc,
                (other, _) => return Err(ClientError::Answer(format!("{other:?}"))),
            };
            let mut held = FrozenCage {
                connection: self,
                proc,
                stood: SwitchCounts::default(),
            };
            let until = Instant::now() + ROUND;
            let moving = loop {
                match standing(&held.proc).map_err(system("look at the cage's processes"))? {
                    // Twice the same: a task counts as stopped just before it is switched from.
                    Ok(stands) if stands == held.stood => return Ok(held),
                    Ok(stands) if Instant::now() < until => held.stood = stands,
                    Ok(stands) => break stands.not_in(&held.stood).unwrap_or_default(),
                    Err(moving) if Instant::now() >= until => break moving,
                    Err(_) => {}
                }
                std::thread::sleep(PAUSE);
            };
            held.release()?;
            if begun.elapsed() >= TRIED {
                return Err(ClientError::Refused {
                    reason: SupervisorReason::Unresponsive {
                        error: format!(
                            "its process {moving} does not stop; nothing was done, try again later"
                        ),
                    }
                    .into(),
                });
            }
        }
    }
}

impl FrozenCage<'_> {
    /// What has moved since the cage stood still, if anything has.
    pub fn moved(&self) -> Option<String> {
        let moved = match standing(&self.proc) {
            Ok(Ok(now)) => now.not_in(&self.stood)?,
            Ok(Err(moving)) => moving,
            Err(error) => return Some(format!("the cage's processes cannot be seen: {error}")),
        };
        Some(format!(
            "its process {moved} went on though it was told to stop"
        ))
    }

    /// Lets the cage go on, with copy-on-write views that show the real files as they are. Why
    /// they do not, if they could not be renewed.
    pub fn release(self) -> Result<Option<String>, ClientError> {
        match self.connection.ask(&Request::Release)? {
            Reply::Released { stale } => Ok(stale),
            other => Err(ClientError::Answer(format!("{other:?}"))),
        }
    }
}

impl SwitchCounts {
    /// A process with a task that is new or has moved. What is gone moves no more.
    fn not_in(&self, before: &SwitchCounts) -> Option<u32> {
        let mut tasks = self.0.iter();
        let moved = tasks.find(|(task, switches)| before.0.get(task) != Some(switches));
        moved.map(|((pid, _), _)| *pid)
    }
}

/// How the tasks of the cage stand, or a process that has not stopped, by its number there. PID 1
/// never does.
fn standing(proc: &OwnedFd) -> io::Result<Result<SwitchCounts, u32>> {
    let mut standing = SwitchCounts::default();
    for pid in numbers(proc, ".")? {
        if pid == 1 {
            continue;
        }
        let tasks = match numbers(proc, &format!("{pid}/task")) {
            Ok(tasks) => tasks,
            Err(error) if is_gone(&error) => continue,
            Err(error) => return Err(error),
        };
        for task in tasks {
            let mut text = Vec::new();
            let path = format!("{pid}/task/{task}/status");
            let flags = OFlags::RDONLY | OFlags::CLOEXEC;
            let read = openat(proc, &*path, flags, Mode::empty())
                .map_err(io::Error::from)
                .and_then(|file| std::fs::File::from(file).read_to_end(&mut text));
            match read {
                Ok(_) => {}
                Err(error) if is_gone(&error) => continue,
                Err(error) => return Err(error),
            }
            // A program's name need not be text.
            let text = String::from_utf8_lossy(&text);
            match seen(&text) {
                Some(TaskState::Stopped(switches)) => {
                    standing.0.insert((pid, task), switches);
                }
                Some(TaskState::Over) => {}
                None => return Ok(Err(pid)),
            }
        }
    }
    Ok(Ok(standing))
}

/// What is gone has stopped.
fn is_gone(error: &io::Error) -> bool {
    let gone = [Errno::NOENT, Errno::SRCH].map(Errno::raw_os_error);
    error
        .raw_os_error()
        .is_some_and(|error| gone.contains(&error))
}

enum TaskState {
    Stopped(u64),
    Over,
}

/// What the kernel tells of a task that does not move.
fn seen(status: &str) -> Option<TaskState> {
    // The name, which is the program's choice, comes in one line: the kernel escapes it.
    let field = |name: &str| status.lines().find_map(|line| line.strip_prefix(name));
    let number = |name: &str| field(name)?.trim().parse::<u64>().ok();
    match field("State:")?.trim().as_bytes().first()? {
        b'Z' | b'X' => Some(TaskState::Over),
        b'T' | b't' => Some(TaskState::Stopped(
            number("voluntary_ctxt_switches:")? + number("nonvoluntary_ctxt_switches:")?,
        )),
        _ => None,
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_task_that_stands_still_counts_as_standing() {
        let text = "Name:\tState: T\\nState:\nState:\tS (sleeping)\nvoluntary_ctxt_switches:\t1\nnonvoluntary_ctxt_switches:\t2\n";
        assert!(seen(text).is_none(), "its name says that it is stopped");
        let text = text.replace("S (sleeping)", "T (stopped)");
        assert!(matches!(seen(&text), Some(TaskState::Stopped(3))));
        assert!(matches!(
            seen("State:\tZ (zombie)\n"),
            Some(TaskState::Over)
        ));
        assert!(
            seen("State:\tT (stopped)\n").is_none(),
            "it cannot be told whether it moves"
        );
    }

    #[test]
    fn who_was_switched_to_or_is_new_has_moved_and_who_is_gone_has_not() {
        let standing = |tasks: &[(u32, u64)]| {
            SwitchCounts(
                tasks
                    .iter()
                    .map(|(pid, count)| ((*pid, *pid), *count))
                    .collect(),
            )
        };
        let before = standing(&[(2, 5), (3, 7)]);
        assert_eq!(standing(&[(2, 5), (3, 7)]).not_in(&before), None);
        assert_eq!(standing(&[(2, 5)]).not_in(&before), None);
        assert_eq!(standing(&[(2, 5), (3, 9)]).not_in(&before), Some(3));
        assert_eq!(standing(&[(2, 5), (3, 7), (4, 1)]).not_in(&before), Some(4));
    }
}
