//! Tells others that a question waits: a command of the user's, or an address of the web. Each is a
//! process of its own, for which nobody waits; it brings no answer back, only whether it could tell.

use crate::RunError;
use crate::supervise::Supervision;
use ironcage_model::{CageId, PermissionRequest};
use ironcage_sys::clone::{Forked, Namespaces, exit_now, fork};
use ironcage_sys::process::close_all_but;
use ironcage_sys::rustix::process::{
    Pid, Signal, WaitId, WaitIdOptions, getpid, getppid, pidfd_send_signal,
    set_parent_process_death_signal, waitid,
};
use ironcage_sys::rustix::thread::set_name;
use serde_json::json;
use std::io::Write;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// How long one may take.
const PATIENCE: Duration = Duration::from_secs(30);
/// How often it is looked whether it has ended.
const PACE: Duration = Duration::from_millis(20);
/// Those that are under way at once.
const MOST: usize = 8;
/// Exit status where the program could not be started.
const NOT_STARTED: i32 = 127;
/// Exit status where it took too long.
const TOO_SLOW: i32 = 124;

/// A process that tells of one question.
#[derive(Debug)]
pub(crate) struct Notifier {
    serial: u32,
    question: u32,
    /// What it does, in words.
    how: &'static str,
    pidfd: OwnedFd,
}

impl Notifier {
    /// By which it is known, and where its end shows.
    pub(crate) fn interest(&self) -> (u32, BorrowedFd<'_>) {
        (self.serial, self.pidfd.as_fd())
    }
}

impl Drop for Notifier {
    fn drop(&mut self) {
        // One that has ended needs no signal.
        let _ = pidfd_send_signal(&self.pidfd, Signal::KILL);
        let _ = waitid(WaitId::PidFd(self.pidfd.as_fd()), WaitIdOptions::EXITED);
    }
}

/// What is told of a question: of its first request, and what all of them are about.
fn message(
    cage: &CageId,
    name: Option<&str>,
    question: &PermissionRequest,
    requests: &[PermissionRequest],
) -> Vec<u8> {
    let what = requests.iter().map(|one| one.resource.to_string());
    let what: Vec<String> = what.collect();
    let mut value = json!({
        "cage": cage.as_str(),
        "name": name,
        "what": what.join(", "),
        "answer": format!("ironcage approve {cage}/{0}, or ironcage deny {cage}/{0}", question.number),
    });
    if let (Some(all), Ok(serde_json::Value::Object(fields))) =
        (value.as_object_mut(), serde_json::to_value(question))
    {
        all.extend(fields);
    }
    value.to_string().into_bytes()
}

impl Supervision<'_> {
    /// Tells of a question whoever the policy names.
    pub(crate) fn notify(&mut self, requests: &[PermissionRequest]) -> Result<(), RunError> {
        let Some(question) = requests.first() else {
            return Ok(());
        };
        let Some(terms) = self.plan.request_terms() else {
            return Ok(());
        };
        let mut commands: Vec<(&'static str, Vec<String>)> = Vec::new();
        if !terms.notify.is_empty() {
            commands.push(("questions.notify", terms.notify.clone()));
        }
        if let Some(address) = &terms.webhook {
            let kind = "content-type: application/json";
            let words = ["curl", "-sSf", "-m", "20", "-o", "/dev/null", "-H", kind];
            let rest = ["--data-binary", "@-", "--", address];
            let words = words.iter().chain(&rest).map(|word| (*word).to_owned());
            commands.push(("questions.webhook", words.collect()));
        }
        if commands.is_empty() {
            return Ok(());
        }
        let description = self.control.description();
        let name = description.name.as_deref();
        let text = message(&description.id, name, question, requests);
        for (how, words) in commands {
            let busy = self.permission_requests.notifiers.len() >= MOST;
            let supervisor = getpid();
            let forked = match busy {
                true => Err(std::io::Error::other("others are still under way")),
                false => fork(Namespaces::NONE, None),
            };
            match forked {
                Ok(Forked::Child) => run(&words, &text, supervisor),
                Ok(Forked::Parent { pidfd, .. }) => {
                    let last = self.permission_requests.notifiers.last();
                    self.permission_requests.notifiers.push(Notifier {
                        serial: last.map_or(0, |last| last.serial.wrapping_add(1)),
                        question: question.number,
                        how,
                        pidfd,
                    });
                }
                Err(error) => {
                    let why = error.to_string();
                    let untold = self.permission_requests.untold(question.number, how, &why);
                    self.apply(vec![untold], Instant::now())?;
                }
            }
        }
        Ok(())
    }

    pub(crate) fn notifier_ended(&mut self, serial: u32) -> Result<(), RunError> {
        let mut notifiers = self.permission_requests.notifiers.iter();
        let Some(index) = notifiers.position(|one| one.serial == serial) else {
            return Ok(());
        };
        let notifier = self.permission_requests.notifiers.remove(index);
        let waited = waitid(
            WaitId::PidFd(notifier.pidfd.as_fd()),
            WaitIdOptions::EXITED | WaitIdOptions::NOWAIT,
        );
        let status = waited
            .ok()
            .flatten()
            .and_then(|status| status.exit_status());
        let why = match status {
            Some(0) => return Ok(()),
            Some(NOT_STARTED) => "its program cannot be started".to_owned(),
            Some(TOO_SLOW) => format!("it took more than {} s", PATIENCE.as_secs()),
            Some(status) => format!("its program ended with status {status}"),
            None => "its program was killed".to_owned(),
        };
        let requests = &mut self.permission_requests;
        let untold = requests.untold(notifier.question, notifier.how, &why);
        self.apply(vec![untold], Instant::now())
    }
}

/// Runs a command with a text on its standard input, and exits as it does.
fn run(words: &[String], text: &[u8], supervisor: Pid) -> ! {
    let tethered = set_parent_process_death_signal(Some(Signal::KILL)).is_ok();
    if !tethered || getppid() != Some(supervisor) || close_all_but(&[]).is_err() {
        exit_now(NOT_STARTED);
    }
    let _ = set_name(c"ironcage-tells");
    exit_now(told(words, text).unwrap_or(NOT_STARTED))
}

fn told(words: &[String], text: &[u8]) -> Option<i32> {
    let (program, arguments) = words.split_first()?;
    let mut child = Command::new(program)
        .args(arguments)
        .current_dir("/")
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .ok()?;
    if let Some(mut input) = child.stdin.take() {
        // A pipe takes all of it at once; who does not read it needs it not.
        let _ = input.write_all(text);
    }
    let begun = Instant::now();
    loop {
        if let Some(status) = child.try_wait().ok()? {
            return Some(status.code().unwrap_or(1));
        }
        if begun.elapsed() > PATIENCE {
            let _ = child.kill();
            return Some(TOO_SLOW);
        }
        std::thread::sleep(PACE);
    }
}
