//! Tool calls that wait for a person.
//!
//! Each is a file in Ironcage's state directory, which no cage sees: the MCP gateway writes it, and `ironcage approve`,
//! `ironcage mcp approve` or the dashboard answers in it. An approval is for one call with these arguments, once, and for
//! a while.

use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::fs::{DirBuilder, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

/// How long a call waits, and how long an approval counts.
const LASTS: Duration = Duration::from_secs(30 * 60);
/// How long the same call is denied again without a person, as with permission requests.
const REMEMBERED: Duration = Duration::from_secs(10 * 60);
/// Most calls of a workspace that wait at once, and those of them that are calls of one tool: an agent
/// repeats a call with other arguments as often as it likes.
const MOST: usize = 64;
const MOST_OF_TOOL: usize = 16;
/// Longest arguments that are kept for a person to read.
const SHOWN: usize = 64 << 10;
/// Largest file of a call.
const LARGEST: u64 = 1 << 20;

/// Why a call that waits cannot be read or answered.
#[derive(Debug, thiserror::Error)]
pub enum ToolCallError {
    #[error("cannot read {}", .0.display())]
    Read(PathBuf, #[source] io::Error),
    #[error("cannot write {}", .0.display())]
    Write(PathBuf, #[source] io::Error),
    #[error("no call {0} waits for approval")]
    NotFound(u64),
    #[error("calls of several workspaces have the number {0}")]
    Several(u64),
    #[error("the call {0} was answered before")]
    Answered(u64),
    #[error("the arguments are too long to show, so nobody can approve them")]
    TooLong,
    #[error("too many calls wait for approval")]
    TooManyWaiting,
}

impl ToolCallError {
    /// What to do about it.
    pub fn hint(&self) -> Option<&'static str> {
        match self {
            ToolCallError::NotFound(_)
            | ToolCallError::Answered(_)
            | ToolCallError::TooManyWaiting => {
                Some("`ironcage mcp pins` lists the calls that wait")
            }
            ToolCallError::Several(_) => {
                Some("answer with `ironcage mcp approve` or `ironcage mcp deny` in its workspace")
            }
            _ => None,
        }
    }
}

/// A call that waits, or was answered and not made yet.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct WaitingCall {
    pub number: u64,
    pub server: String,
    pub tool: String,
    /// Over the server, the tool and the arguments.
    pub digest: String,
    pub arguments: Value,
    /// Why a person is asked.
    pub reason: String,
    /// The workspace of the gateway.
    #[serde(default)]
    pub workspace: PathBuf,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub allowed: Option<bool>,
}

impl WaitingCall {
    fn lasts(&self) -> Duration {
        match self.allowed {
            Some(false) => REMEMBERED,
            _ => LASTS,
        }
    }
}

/// The calls of the gateways of one workspace.
#[derive(Debug, Clone)]
pub struct WaitingCalls {
    directory: PathBuf,
}

/// Below the state directory: a directory for each workspace.
fn workspaces(state: &Path) -> PathBuf {
    state.join("mcp")
}

impl WaitingCalls {
    /// # Errors
    /// If its directory cannot be made.
    pub fn open(directory: PathBuf) -> Result<Self, ToolCallError> {
        let made = DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(&directory);
        made.map_err(|error| ToolCallError::Write(directory.clone(), error))?;
        Ok(WaitingCalls { directory })
    }

    /// Those of every workspace.
    fn everywhere(state: &Path) -> Result<Vec<Self>, ToolCallError> {
        let place = workspaces(state);
        let entries = match std::fs::read_dir(&place) {
            Ok(entries) => entries,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(ToolCallError::Read(place, error)),
        };
        let mut all = Vec::new();
        for entry in entries {
            let entry = entry.map_err(|error| ToolCallError::Read(place.clone(), error))?;
            let directory = entry.path().join("calls");
            if directory.is_dir() {
                all.push(WaitingCalls { directory });
            }
        }
        Ok(all)
    }

    /// Every call that waits for an answer, in any workspace, the oldest first.
    ///
    /// # Errors
    /// If a directory cannot be read.
    pub fn pending(state: &Path) -> Result<Vec<WaitingCall>, ToolCallError> {
        let mut pending = Vec::new();
        for calls in WaitingCalls::everywhere(state)? {
            let listed = calls.list()?.into_iter();
            pending.extend(listed.filter(|call| call.allowed.is_none()));
        }
        pending.sort_by_key(|call| call.number);
        Ok(pending)
    }

    /// Answers a call of any workspace.
    ///
    /// # Errors
    /// If no such call waits, or several do.
    pub fn answer_pending(
        state: &Path,
        number: u64,
        allowed: bool,
    ) -> Result<WaitingCall, ToolCallError> {
        let mut found = Vec::new();
        for calls in WaitingCalls::everywhere(state)? {
            if calls.list()?.iter().any(|call| call.number == number) {
                found.push(calls);
            }
        }
        match found.as_slice() {
            [] => Err(ToolCallError::NotFound(number)),
            [calls] => calls.answer(number, allowed),
            _ => Err(ToolCallError::Several(number)),
        }
    }

    /// Every call that waits or was answered, the oldest first. What is too old is removed.
    ///
    /// # Errors
    /// If the directory cannot be read.
    pub fn list(&self) -> Result<Vec<WaitingCall>, ToolCallError> {
        let failed = |error| ToolCallError::Read(self.directory.clone(), error);
        let mut found = Vec::new();
        for entry in std::fs::read_dir(&self.directory).map_err(failed)? {
            let path = entry.map_err(failed)?.path();
            if path.extension().is_none_or(|extension| extension != "json") {
                continue;
            }
            let changed = path.metadata().and_then(|found| found.modified());
            let Ok(changed) = changed else {
                continue;
            };
            let text = ironcage_files::read(&path, LARGEST, ironcage_files::Links::Refuse);
            let read = text
                .ok()
                .and_then(|text| serde_json::from_slice::<WaitingCall>(&text).ok());
            let age = SystemTime::now()
                .duration_since(changed)
                .unwrap_or_default();
            match read {
                Some(call) if age <= call.lasts() => found.push(call),
                _ if age > REMEMBERED => drop(std::fs::remove_file(&path)),
                // It is written at this moment, or is not one of ours.
                _ => {}
            }
        }
        found.sort_by_key(|call| call.number);
        Ok(found)
    }

    fn path(&self, number: u64) -> PathBuf {
        self.directory.join(format!("{number}.json"))
    }

    /// Writes the file whole: a new one, or in the place of the one that is there. Returns whether it did: a new one takes
    /// no number of another call.
    fn write(&self, call: &WaitingCall, new: bool) -> Result<bool, ToolCallError> {
        static SERIAL: AtomicU64 = AtomicU64::new(0);
        let path = self.path(call.number);
        let failed = |error: io::Error| ToolCallError::Write(path.clone(), error);
        let text = serde_json::to_vec(call).map_err(|error| failed(error.into()))?;
        let serial = SERIAL.fetch_add(1, Ordering::Relaxed);
        let own = format!("{}.{}.{serial}.new", call.number, std::process::id());
        let beside = self.directory.join(own);
        // One of the same name was left by a process that was killed.
        let _ = std::fs::remove_file(&beside);
        let mut options = OpenOptions::new();
        options.write(true).create_new(true).mode(0o600);
        let mut file = options.open(&beside).map_err(failed)?;
        let written = file.write_all(&text).and_then(|()| match new {
            true => std::fs::hard_link(&beside, &path),
            false => std::fs::rename(&beside, &path),
        });
        if new || written.is_err() {
            let _ = std::fs::remove_file(&beside);
        }
        match written {
            Ok(()) => Ok(true),
            Err(error) if new && error.kind() == io::ErrorKind::AlreadyExists => Ok(false),
            Err(error) => Err(failed(error)),
        }
    }

    /// What a person said about a call. An approval is used up, and a denial counts for a while. A call that nobody was
    /// asked about waits from now on; `None` while it does.
    ///
    /// # Errors
    /// If it cannot be kept, or is too long for a person to read.
    pub fn ask(&self, wanted: WaitingCall) -> Result<Option<bool>, ToolCallError> {
        let known = self.list()?;
        let same = known.iter().find(|known| known.digest == wanted.digest);
        match same {
            Some(known) => match known.allowed {
                // Two calls cannot use one approval: the file can be removed only once.
                Some(true) => Ok(std::fs::remove_file(self.path(known.number))
                    .ok()
                    .map(|()| true)),
                answered => Ok(answered),
            },
            None => {
                let waiting = known.iter().filter(|call| call.allowed.is_none());
                let of_tool = waiting
                    .clone()
                    .filter(|call| (&call.server, &call.tool) == (&wanted.server, &wanted.tool));
                if waiting.clone().count() >= MOST || of_tool.count() >= MOST_OF_TOOL {
                    return Err(ToolCallError::TooManyWaiting);
                }
                // What cannot be shown cannot be approved.
                if wanted.arguments.to_string().len() > SHOWN {
                    return Err(ToolCallError::TooLong);
                }
                let last = known.last().map_or(0, |known| known.number);
                let mut wanted = wanted;
                // By the time: a number that somebody has read never means another call later.
                wanted.number = tenths().max(last + 1);
                while !self.write(&wanted, true)? {
                    wanted.number += 1;
                }
                Ok(None)
            }
        }
    }

    /// A person's answer.
    ///
    /// # Errors
    /// If no such call waits.
    pub fn answer(&self, number: u64, allowed: bool) -> Result<WaitingCall, ToolCallError> {
        let mut known = self.list()?.into_iter();
        let found = known.find(|known| known.number == number);
        let mut waiting = found.ok_or(ToolCallError::NotFound(number))?;
        if waiting.allowed.is_some() {
            return Err(ToolCallError::Answered(number));
        }
        waiting.allowed = Some(allowed);
        self.write(&waiting, false)?;
        Ok(waiting)
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

    fn call(digest: &str) -> WaitingCall {
        WaitingCall {
            number: 0,
            server: "files".into(),
            tool: "write".into(),
            digest: digest.into(),
            arguments: json!({"path": "a"}),
            reason: "r".into(),
            workspace: "/w".into(),
            allowed: None,
        }
    }

    #[test]
    fn an_approval_counts_once_a_denial_for_a_while_and_each_for_its_call_only() {
        let directory = tempfile::tempdir().unwrap();
        let calls = WaitingCalls::open(directory.path().to_owned()).unwrap();
        assert_eq!(calls.ask(call("a")).unwrap(), None);
        assert_eq!(calls.ask(call("a")).unwrap(), None);
        assert_eq!(calls.ask(call("b")).unwrap(), None);
        let listed = calls.list().unwrap();
        let [first, second] = listed.as_slice() else {
            panic!("{listed:?}");
        };
        calls.answer(first.number, true).unwrap();
        calls.answer(second.number, false).unwrap();
        let again = calls.answer(second.number, true);
        assert!(matches!(again, Err(ToolCallError::Answered(_))));
        let other = calls.answer(9, true);
        assert!(matches!(other, Err(ToolCallError::NotFound(9))));
        assert_eq!(calls.ask(call("a")).unwrap(), Some(true));
        assert_eq!(calls.ask(call("a")).unwrap(), None);
        assert_eq!(calls.ask(call("b")).unwrap(), Some(false));
        // Nobody is asked again at once.
        assert_eq!(calls.ask(call("b")).unwrap(), Some(false));
    }

    #[test]
    fn junk_calls_of_a_tool_leave_room_for_calls_of_others() {
        let directory = tempfile::tempdir().unwrap();
        let calls = WaitingCalls::open(directory.path().to_owned()).unwrap();
        for number in 0..MOST_OF_TOOL {
            assert_eq!(calls.ask(call(&number.to_string())).unwrap(), None);
        }
        let more = calls.ask(call("more"));
        assert!(
            matches!(more, Err(ToolCallError::TooManyWaiting)),
            "{more:?}"
        );
        // What waits already is still answered, and another tool is asked about.
        assert_eq!(calls.ask(call("0")).unwrap(), None);
        let other = WaitingCall {
            tool: "read".into(),
            ..call("other")
        };
        assert_eq!(calls.ask(other).unwrap(), None);
        let waiting = calls.list().unwrap();
        assert_eq!(waiting.len(), MOST_OF_TOOL + 1);
        calls.answer(waiting[0].number, false).unwrap();
        assert_eq!(calls.ask(call("0")).unwrap(), Some(false));
        assert_eq!(calls.ask(call("more")).unwrap(), None);
    }

    #[test]
    fn what_is_too_long_to_show_is_not_asked_about() {
        let directory = tempfile::tempdir().unwrap();
        let calls = WaitingCalls::open(directory.path().to_owned()).unwrap();
        let mut long = call("a");
        long.arguments = json!({"text": "x".repeat(SHOWN)});
        assert!(matches!(calls.ask(long), Err(ToolCallError::TooLong)));
        assert!(calls.list().unwrap().is_empty());
        assert_eq!(calls.ask(call("a")).unwrap(), None);
    }

    #[test]
    fn calls_of_every_workspace_are_found_and_answered_by_their_number() {
        let state = tempfile::tempdir().unwrap();
        assert_eq!(WaitingCalls::pending(state.path()).unwrap(), []);
        let of = |name: &str| WaitingCalls::open(state.path().join("mcp").join(name).join("calls"));
        let (one, two) = (of("one").unwrap(), of("two").unwrap());
        one.ask(call("a")).unwrap();
        two.ask(call("b")).unwrap();
        let pending = WaitingCalls::pending(state.path()).unwrap();
        assert_eq!(pending.len(), 2);
        let number = one.list().unwrap()[0].number;
        // Both may have come within a tenth of a second.
        let several = two.list().unwrap()[0].number == number;
        match WaitingCalls::answer_pending(state.path(), number, true) {
            Ok(answered) => assert_eq!((answered.digest.as_str(), several), ("a", false)),
            Err(error) => assert!(several && matches!(error, ToolCallError::Several(_))),
        }
        let missing = WaitingCalls::answer_pending(state.path(), 9, true);
        assert!(matches!(missing, Err(ToolCallError::NotFound(9))));
    }
}
