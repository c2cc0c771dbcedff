//! The judge that a policy may name: a command that is told what a command in a scope would be
//! given at once, and may have it asked for or denied. It cannot give anything, and where it does not
//! answer in time and in its form, a person is asked.

use ironcage_control::{Bytes, GrantRequest};
use ironcage_intent::Table;
use ironcage_model::{LeaseOrigin, Resource};
use ironcage_plan::{Item, Variable};
use ironcage_sys::clone::{Forked, Namespaces, exit_now, fork};
use ironcage_sys::process::close_all_but;
use ironcage_sys::rustix::event::{PollFd, PollFlags, Timespec, poll};
use ironcage_sys::rustix::fs::{MemfdFlags, memfd_create};
use ironcage_sys::rustix::io::Errno;
use ironcage_sys::rustix::pipe::{PipeFlags, pipe_with};
use ironcage_sys::rustix::process::{
    Pid, Signal, WaitId, WaitIdOptions, getpid, getppid, pidfd_send_signal,
    set_parent_process_death_signal, waitid,
};
use ironcage_sys::rustix::thread::set_name;
use serde::Deserialize;
use serde_json::json;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{Read as _, Seek as _, Write as _};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::process::CommandExt as _;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// How long it may take for one answer.
const PATIENCE: Duration = Duration::from_secs(5);
/// Most answers that are waited for, for one command.
const MOST_JUDGED: usize = 16;
/// The longest answer.
const LONGEST_ANSWER: u64 = 4096;
/// The longest reason that is put on record.
const LONGEST_REASON: usize = 200;
/// Exit status where the command could not be started.
const NOT_STARTED: i32 = 127;

/// What the judge says of one lease.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum LeaseOpinion {
    Allow,
    /// A person is asked; why.
    Ask(String),
    Deny(String),
}

/// What a judge is told of a command.
pub(super) struct JudgedCommand {
    /// All of it: what is cut off could be what matters.
    pub(super) text: String,
    /// Variables with which its programs execute something else (`BASH_ENV`, `PATH`), where they are
    /// not the cage's own.
    pub(super) environment: BTreeMap<String, String>,
}

/// The judge of one command, which is told what it is.
pub(super) struct LeaseJudge<'a> {
    words: &'a [String],
    command: JudgedCommand,
    origin: LeaseOrigin,
    /// What it said: the same is not asked twice.
    said: RefCell<BTreeMap<String, LeaseOpinion>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "kebab-case")]
enum JudgeVerdict {
    Allow,
    Ask,
    Deny,
}

#[derive(Deserialize)]
struct JudgeAnswer {
    verdict: JudgeVerdict,
    #[serde(default)]
    why: String,
}

impl<'a> LeaseJudge<'a> {
    /// The judge that a policy names; `None` where it names none, and for the operator's own wishes.
    pub(super) fn of(
        words: &'a [String],
        origin: LeaseOrigin,
        command: impl FnOnce() -> JudgedCommand,
    ) -> Option<Self> {
        let asked = !words.is_empty() && origin != LeaseOrigin::Operator;
        asked.then(|| LeaseJudge {
            words,
            command: command(),
            origin,
            said: RefCell::default(),
        })
    }

    /// What it says of a lease that would be given at once.
    pub(super) fn judge(&self, resource: &Resource, request: &GrantRequest) -> LeaseOpinion {
        let what = resource.to_string();
        if let Some(known) = self.said.borrow().get(&what) {
            return known.clone();
        }
        let judgement = match self.said.borrow().len() >= MOST_JUDGED {
            true => LeaseOpinion::Ask("is asked about 16 leases of a command at most".into()),
            false => {
                let question = json!({
                    "what": what,
                    "resource": resource,
                    "origin": self.origin,
                    "reason": request.reason,
                    "command": self.command.text,
                    "environment": self.command.environment,
                });
                read(answer(self.words, question.to_string().as_bytes()))
            }
        };
        self.said.borrow_mut().insert(what, judgement.clone());
        judgement
    }
}

/// The variables of a command with which programs execute something else, where the cage itself has
/// them otherwise or not at all.
pub(super) fn telling_environment(
    table: &Table,
    variables: &[(Bytes, Bytes)],
    own: &[Item<Variable>],
) -> BTreeMap<String, String> {
    let text = |bytes: &Bytes| String::from_utf8_lossy(&bytes.0).into_owned();
    let is_own = |(name, value): &&(Bytes, Bytes)| {
        let is = |own: &Item<Variable>| {
            own.what.name.as_bytes() == name.0 && own.what.value.as_bytes() == value.0
        };
        own.iter().any(is)
    };
    let told = variables.iter().filter(|variable| !is_own(variable));
    let told = told.map(|(name, value)| (text(name), text(value)));
    told.filter(|(name, _)| table.is_executed_variable(name))
        .collect()
}

/// Reads an answer: all that is not one has a person asked.
fn read(answer: Result<Vec<u8>, &'static str>) -> LeaseOpinion {
    let bytes = match answer {
        Ok(bytes) => bytes,
        Err(why) => return LeaseOpinion::Ask(why.to_owned()),
    };
    let Ok(JudgeAnswer { verdict, why }) = serde_json::from_slice(&bytes) else {
        return LeaseOpinion::Ask("gave an answer that is not understood".into());
    };
    let plain = why.chars().filter(|char| !char.is_control());
    let why: String = plain.take(LONGEST_REASON).collect();
    let why = match why.trim() {
        "" => "without a reason".to_owned(),
        why => why.to_owned(),
    };
    match verdict {
        JudgeVerdict::Allow => LeaseOpinion::Allow,
        JudgeVerdict::Ask => LeaseOpinion::Ask(format!("has you asked: {why}")),
        JudgeVerdict::Deny => LeaseOpinion::Deny(why),
    }
}

/// Has a command answer, which ends with its answer or is killed.
fn answer(words: &[String], question: &[u8]) -> Result<Vec<u8>, &'static str> {
    let failed = "could not be started";
    let (ours, theirs) = pipe_with(PipeFlags::CLOEXEC).map_err(|_| failed)?;
    let supervisor = getpid();
    let pidfd = match fork(Namespaces::NONE, None) {
        Ok(Forked::Child) => {
            drop(ours);
            run(words, question, theirs, supervisor)
        }
        Ok(Forked::Parent { pidfd, .. }) => pidfd,
        Err(_) => return Err(failed),
    };
    drop(theirs);
    let answer = hear(ours);
    // One that has ended needs no signal.
    if answer.is_err() {
        let _ = pidfd_send_signal(&pidfd, Signal::KILL);
    }
    let status = waitid(WaitId::PidFd(pidfd.as_fd()), WaitIdOptions::EXITED);
    let status = status
        .ok()
        .flatten()
        .and_then(|status| status.exit_status());
    match (answer, status) {
        (Err(why), _) => Err(why),
        (Ok(answer), Some(0)) => Ok(answer),
        (Ok(_), Some(NOT_STARTED)) => Err(failed),
        (Ok(_), _) => Err("failed"),
    }
}

/// Reads to the end of the pipe, for as long as the judge may take.
fn hear(pipe: OwnedFd) -> Result<Vec<u8>, &'static str> {
    let until = Instant::now() + PATIENCE;
    let mut pipe = File::from(pipe);
    let mut heard = Vec::new();
    loop {
        let left = until.saturating_duration_since(Instant::now());
        let timeout = Timespec::try_from(left).unwrap_or_default();
        let mut fds = [PollFd::new(&pipe, PollFlags::IN)];
        match poll(&mut fds, Some(&timeout)) {
            Ok(0) => return Err("did not answer in time"),
            Ok(_) => {}
            Err(Errno::INTR) => continue,
            Err(_) => return Err("could not be heard"),
        }
        let mut part = [0; 1024];
        match pipe.read(&mut part) {
            Ok(0) => return Ok(heard),
            Ok(count) => heard.extend(part.get(..count).unwrap_or_default()),
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Err(_) => return Err("could not be heard"),
        }
        if heard.len() as u64 > LONGEST_ANSWER {
            return Err("gave an answer that is too long");
        }
    }
}

/// Runs the command in the place of this process, which has nothing but the pipe.
fn run(words: &[String], question: &[u8], pipe: OwnedFd, supervisor: Pid) -> ! {
    let tethered = set_parent_process_death_signal(Some(Signal::KILL)).is_ok();
    let alone = close_all_but(&[pipe.as_fd()]).is_ok();
    if !tethered || !alone || getppid() != Some(supervisor) {
        exit_now(NOT_STARTED);
    }
    let _ = set_name(c"ironcage-judge");
    let executed = || {
        // Not a pipe, which a long question would fill while nobody reads it yet.
        let mut told = File::from(memfd_create("question", MemfdFlags::CLOEXEC).ok()?);
        told.write_all(question).ok()?;
        told.rewind().ok()?;
        let (program, arguments) = words.split_first()?;
        let error = Command::new(program)
            .args(arguments)
            .current_dir("/")
            .stdin(Stdio::from(told))
            .stdout(Stdio::from(pipe))
            .stderr(Stdio::null())
            .exec();
        Some(error)
    };
    let _ = executed();
    exit_now(NOT_STARTED)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(text: &str) -> LeaseOpinion {
        read(Ok(text.as_bytes().to_vec()))
    }

    #[test]
    fn a_judge_is_told_of_variables_with_which_something_else_is_executed() {
        let table = Table::shipped().unwrap();
        let bytes = |text: &str| Bytes(text.as_bytes().to_vec());
        let said = [
            ("PATH", "/usr/bin"),
            ("HOME", "/tmp/other"),
            ("BASH_ENV", "/tmp/x"),
            ("LD_PRELOAD", "/tmp/y"),
            ("LANG", "C"),
        ];
        let said = said.map(|(name, value)| (bytes(name), bytes(value)));
        let own = [("PATH", "/usr/bin"), ("HOME", "/home/agent")].map(|(name, value)| Item {
            what: Variable {
                name: name.into(),
                value: value.into(),
            },
            origin: String::new(),
        });
        let told = telling_environment(&table, &said, &own);
        let told: Vec<&str> = told.keys().map(String::as_str).collect();
        assert_eq!(told, ["BASH_ENV", "HOME", "LD_PRELOAD"]);
    }

    #[test]
    fn only_an_answer_in_its_form_allows_or_denies() {
        assert_eq!(said("{\"verdict\":\"allow\"}"), LeaseOpinion::Allow);
        let denied = said("{\"verdict\":\"deny\",\"why\":\"not \\u001b[1mthis\"}");
        assert_eq!(denied, LeaseOpinion::Deny("not [1mthis".into()));
        for text in [
            "",
            "allow",
            "{}",
            "{\"verdict\":\"yes\"}",
            "{\"verdict\":\"allow\"}{\"verdict\":\"deny\"}",
            "{\"verdict\":\"ask\"}",
        ] {
            assert!(matches!(said(text), LeaseOpinion::Ask(_)), "{text}");
        }
        let long = format!("{{\"verdict\":\"deny\",\"why\":\"{}\"}}", "x".repeat(4000));
        assert_eq!(said(&long), LeaseOpinion::Deny("x".repeat(LONGEST_REASON)));
    }
}
