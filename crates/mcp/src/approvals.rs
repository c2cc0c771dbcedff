//! Calls that wait for a person.
//!
//! Each is a file in Ironcage's state directory, which no cage sees: the gateway writes it, and
//! `ironcage mcp approve NUMBER` answers in it. An approval is for one call with these arguments,
//! once, and for a while.

use crate::error::McpError;
use crate::settings::{Settings, private_directory, replace};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::path::PathBuf;
use std::time::{Duration, SystemTime};

/// How long a call waits, and how long an answer counts.
const LASTS: Duration = Duration::from_secs(30 * 60);
/// Most calls that wait at once, and those of them that are calls of one tool: an agent repeats a call
/// with other arguments as often as it likes.
const MOST: usize = 64;
const MOST_OF_TOOL: usize = 16;
/// Longest arguments that are kept for a person to read.
const SHOWN: usize = 64 << 10;
/// Largest file of a call.
const LARGEST: u64 = 1 << 20;

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Waiting {
    pub(crate) number: u64,
    pub(crate) server: String,
    pub(crate) tool: String,
    /// Over the server, the tool and the arguments.
    pub(crate) digest: String,
    pub(crate) arguments: Value,
    pub(crate) reason: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) allowed: Option<bool>,
}

#[derive(Debug, Clone)]
pub(crate) struct Approvals {
    directory: PathBuf,
}

impl Approvals {
    pub(crate) fn open(settings: &Settings) -> Result<Self, McpError> {
        let directory = settings.directory().join("calls");
        private_directory(&directory)?;
        Ok(Approvals { directory })
    }

    /// Every call that waits or was answered, the oldest first. What is too old is removed.
    pub(crate) fn list(&self) -> Result<Vec<Waiting>, McpError> {
        let failed = |error| McpError::Read(self.directory.clone(), error);
        let mut found = Vec::new();
        for entry in std::fs::read_dir(&self.directory).map_err(failed)? {
            let path = entry.map_err(failed)?.path();
            if path.extension().is_none_or(|extension| extension != "json") {
                continue;
            }
            let changed = path.metadata().and_then(|found| found.modified());
            let age = changed.map(|at| SystemTime::now().duration_since(at).unwrap_or_default());
            if age.is_ok_and(|age| age > LASTS) {
                let _ = std::fs::remove_file(&path);
                continue;
            }
            let text = ironcage_files::read(&path, LARGEST, ironcage_files::Links::Refuse);
            let Ok(text) = text else {
                continue;
            };
            if let Ok(waiting) = serde_json::from_slice::<Waiting>(&text) {
                found.push(waiting);
            }
        }
        found.sort_by_key(|waiting| waiting.number);
        Ok(found)
    }

    fn path(&self, number: u64) -> PathBuf {
        self.directory.join(format!("{number}.json"))
    }

    fn write(&self, waiting: &Waiting) -> Result<(), McpError> {
        let path = self.path(waiting.number);
        let text = serde_json::to_vec(waiting);
        let text = text.map_err(|error| McpError::Write(path.clone(), error.into()))?;
        replace(&path, &text)
    }

    /// What a person said about a call. An answer is used up. A call that nobody was asked about
    /// waits from now on; `None` while it does.
    pub(crate) fn ask(&self, wanted: Waiting) -> Result<Option<bool>, McpError> {
        let known = self.list()?;
        let same = known.iter().find(|known| known.digest == wanted.digest);
        match same {
            Some(known) => {
                let Some(allowed) = known.allowed else {
                    return Ok(None);
                };
                let path = self.path(known.number);
                // Two calls cannot use one answer: the file can be removed only once.
                match std::fs::remove_file(&path) {
                    Ok(()) => Ok(Some(allowed)),
                    Err(_) => Ok(None),
                }
            }
            None => {
                let is_same_tool = |known: &&Waiting| {
                    (&known.server, &known.tool) == (&wanted.server, &wanted.tool)
                };
                let of_tool = known.iter().filter(is_same_tool).count();
                if known.len() >= MOST || of_tool >= MOST_OF_TOOL {
                    return Err(McpError::TooManyWaiting);
                }
                // What cannot be shown cannot be approved.
                if wanted.arguments.to_string().len() > SHOWN {
                    return Err(McpError::TooLong);
                }
                let last = known.last().map_or(0, |known| known.number);
                let mut wanted = wanted;
                // By the time: a number that somebody has read never means another call later.
                wanted.number = tenths().max(last + 1);
                while self.path(wanted.number).exists() {
                    wanted.number += 1;
                }
                self.write(&wanted)?;
                Ok(None)
            }
        }
    }

    /// A person's answer.
    pub(crate) fn answer(&self, number: u64, allowed: bool) -> Result<(), McpError> {
        let mut known = self.list()?.into_iter();
        let found = known.find(|known| known.number == number);
        let mut waiting = found.ok_or(McpError::NoCall(number))?;
        if waiting.allowed.is_some() {
            return Err(McpError::Answered(number));
        }
        waiting.allowed = Some(allowed);
        self.write(&waiting)
    }
}

/// Tenths of a second since 2026 began.
fn tenths() -> u64 {
    const BEGAN: u64 = 1_767_225_600;
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    let tenths = now.unwrap_or_default().as_millis() / 100;
    u64::try_from(tenths)
        .unwrap_or(u64::MAX)
        .saturating_sub(BEGAN * 10)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn call(digest: &str) -> Waiting {
        Waiting {
            number: 0,
            server: "files".into(),
            tool: "write".into(),
            digest: digest.into(),
            arguments: json!({"path": "a"}),
            reason: "r".into(),
            allowed: None,
        }
    }

    #[test]
    fn an_answer_counts_once_and_for_its_call_only() {
        let directory = tempfile::tempdir().unwrap();
        let approvals = Approvals {
            directory: directory.path().to_owned(),
        };
        assert_eq!(approvals.ask(call("a")).unwrap(), None);
        assert_eq!(approvals.ask(call("a")).unwrap(), None);
        assert_eq!(approvals.ask(call("b")).unwrap(), None);
        let numbers = || -> Vec<u64> {
            let known = approvals.list().unwrap();
            known.iter().map(|call| call.number).collect()
        };
        let [first, second] = numbers()[..] else {
            panic!("{:?}", numbers());
        };
        approvals.answer(first, true).unwrap();
        approvals.answer(second, false).unwrap();
        assert!(matches!(
            approvals.answer(second, true),
            Err(McpError::Answered(_))
        ));
        assert!(matches!(
            approvals.answer(9, true),
            Err(McpError::NoCall(9))
        ));
        assert_eq!(approvals.ask(call("a")).unwrap(), Some(true));
        assert_eq!(approvals.ask(call("b")).unwrap(), Some(false));
        assert_eq!(approvals.ask(call("a")).unwrap(), None);
    }

    #[test]
    fn junk_calls_of_a_tool_leave_room_for_calls_of_others() {
        let directory = tempfile::tempdir().unwrap();
        let approvals = Approvals {
            directory: directory.path().to_owned(),
        };
        for number in 0..MOST_OF_TOOL {
            assert_eq!(approvals.ask(call(&number.to_string())).unwrap(), None);
        }
        let more = approvals.ask(call("more"));
        assert!(matches!(more, Err(McpError::TooManyWaiting)), "{more:?}");
        // What waits already is still answered, and another tool is asked about.
        assert_eq!(approvals.ask(call("0")).unwrap(), None);
        let other = Waiting {
            tool: "read".into(),
            ..call("other")
        };
        assert_eq!(approvals.ask(other).unwrap(), None);
        let waiting = approvals.list().unwrap();
        assert_eq!(waiting.len(), MOST_OF_TOOL + 1);
        approvals.answer(waiting[0].number, false).unwrap();
        assert_eq!(approvals.ask(call("0")).unwrap(), Some(false));
        assert_eq!(approvals.ask(call("more")).unwrap(), None);
    }

    #[test]
    fn what_is_too_long_to_show_is_not_asked_about() {
        let directory = tempfile::tempdir().unwrap();
        let approvals = Approvals {
            directory: directory.path().to_owned(),
        };
        let mut long = call("a");
        long.arguments = json!({"text": "x".repeat(SHOWN)});
        assert!(matches!(approvals.ask(long), Err(McpError::TooLong)));
        assert!(approvals.list().unwrap().is_empty());
        assert_eq!(approvals.ask(call("a")).unwrap(), None);
    }
}
