//! Prepares the workspace before a run, examines it afterwards, and starts runs that follow one
//! another.

use super::Runner;
use super::launch::{Mode, RunError};
use crate::classes::committed::{OF_IMAGE, TOP, harmless_was_committed};
use crate::classes::planted::harmless_came_over;
use crate::classes::rs::changes;
use crate::classes::su_control::{HARMLESS, HOSTILE};
use crate::oracle::Evidence;
use crate::probe::Setup;
use crate::stage::allowed::PERMITTED;
use crate::stage::{Channel, LEADS_OUT, ON_PATH, making, random_hex};
use std::ffi::{OsStr, OsString};
use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::symlink;
use std::process::{Command, Output, Stdio};

/// The image of a run that can write it, and the one that is made of that.
pub(super) const IMAGE: &str = "probe:1";
const COMMITTED: &str = "probe:2";

impl Runner {
    /// Puts into the workspace what a setup wants there; `restore` takes it away.
    pub(super) fn lay_out(&self, setup: Setup) -> Result<(), RunError> {
        let workspace = &self.stage.params.workspace;
        let write = |name: &str, text: &str| {
            fs::write(workspace.join(name), text)
                .map_err(making(format!("{name} of the workspace")))
        };
        match setup {
            Setup::HostilePolicy => {
                for (name, text) in HOSTILE {
                    write(name, text)?;
                }
            }
            Setup::Exchanged => {
                let (name, hostile) = HOSTILE[0];
                write(name, HARMLESS)?;
                if self.adapter.commands {
                    let trusted = self.own_command(&["trust", "--yes", name])?;
                    if !trusted.status.success() {
                        let why = String::from_utf8_lossy(&trusted.stderr).into_owned();
                        let failed = making("approved settings");
                        return Err(failed(std::io::Error::other(why)).into());
                    }
                }
                write(name, hostile)?;
            }
            Setup::LimitsInMemory => {
                // What earlier runs have written down is not this one's.
                let kept = fs::remove_dir_all(changes(&self.stage));
                kept.or_else(|error| match error.kind() {
                    ErrorKind::NotFound => Ok(()),
                    _ => Err(error),
                })
                .map_err(making("a place for changes"))?;
            }
            Setup::Applied => {
                let link = workspace.join(LEADS_OUT);
                symlink("../outside", link).map_err(making("a link of the workspace"))?;
                fs::create_dir(workspace.join(ON_PATH))
                    .map_err(making("a directory of programs in the workspace"))?;
            }
            Setup::Committed if self.adapter.has_images() => {
                let root = self.stage.params.home.join("of-image");
                let top = root.join(TOP);
                fs::create_dir_all(&top)
                    .and_then(|()| fs::create_dir_all(root.join("etc")))
                    .and_then(|()| fs::write(top.join(OF_IMAGE), ""))
                    .map_err(making("the directory of an image"))?;
                let root = root.to_string_lossy();
                let loaded = self.own_command(&["image", "load", &root, "--name", IMAGE])?;
                if !loaded.status.success() {
                    let why = String::from_utf8_lossy(&loaded.stderr).into_owned();
                    return Err(making("an image")(std::io::Error::other(why)).into());
                }
            }
            _ => {}
        }
        Ok(())
    }

    /// Another command of the sandbox's own, as its user calls it.
    pub(super) fn own_command(&self, words: &[&str]) -> Result<Output, RunError> {
        let environment = self.stage.environment();
        let mut path = self.stage.params.workspace.join(ON_PATH).into_os_string();
        path.push(":");
        path.push(
            environment
                .get(OsStr::new("PATH"))
                .cloned()
                .unwrap_or_default(),
        );
        Command::new(&self.launcher)
            .args(words)
            .env_clear()
            .envs(environment)
            .env("PATH", path)
            .current_dir(&self.stage.params.workspace)
            .stdin(Stdio::null())
            .output()
            .map_err(|source| RunError::Start {
                program: self.launcher.display().to_string(),
                source,
            })
    }

    /// What is to be seen only after a caged run.
    pub(super) fn examine(&self, setup: Setup, evidence: &mut Evidence) {
        match setup {
            Setup::Proxy(_) | Setup::Crowded => {
                let asked = self
                    .stage
                    .heard
                    .request(|request| request.target == PERMITTED);
                evidence.permitted = Some(asked.is_some());
                if setup == Setup::Crowded
                    && self.adapter.commands
                    && let Ok(output) = self.own_command(&["audit", "show", "last", "--json"])
                {
                    evidence.take_record(&output.stdout);
                }
            }
            Setup::Keys => {
                let signed = self.stage.log.settled(Channel::AgentAllowed);
                evidence.permitted = Some(signed.is_some());
            }
            Setup::Applied if self.adapter.commands => {
                // Where nothing is kept aside, there is nothing to apply.
                let said = match self.own_command(&["apply"]) {
                    Ok(output) => String::from_utf8_lossy(&output.stdout).into_owned(),
                    Err(error) => error.to_string(),
                };
                evidence.applied = Some(said);
                evidence.permitted = Some(harmless_came_over(&self.stage));
            }
            Setup::Committed => {
                let said = match self.own_command(&["image", "commit", COMMITTED]) {
                    Ok(output) => String::from_utf8_lossy(&output.stderr).into_owned(),
                    Err(error) => error.to_string(),
                };
                // What is wrong with it is told where what is allowed did not go through.
                evidence.errors.extend(said.as_bytes());
                evidence.applied = Some(said);
                evidence.permitted = Some(harmless_was_committed(&self.stage));
            }
            setup if setup.is_limited() && self.adapter.commands => {
                // Without a record nothing is said to be held, and nothing to have been ended.
                if let Ok(output) = self.own_command(&["audit", "show", "last", "--json"]) {
                    evidence.take_record(&output.stdout);
                }
            }
            // A sandbox that started nothing has no record: that is not an escape.
            Setup::Recorded if self.adapter.commands && evidence.started() => {
                let found = match self.own_command(&["audit", "verify", "last"]) {
                    Ok(output) if output.status.success() => return,
                    Ok(output) => String::from_utf8_lossy(&output.stderr).into_owned(),
                    Err(error) => error.to_string(),
                };
                evidence.broken_record = Some(format!("the record of the run: {found}"));
            }
            _ => {}
        }
    }

    /// One run that is told a word to leave, and one that is not.
    pub(super) fn again(
        &mut self,
        line: &[OsString],
        mode: Mode,
        evidence: &mut Evidence,
    ) -> Result<(), RunError> {
        let word = random_hex(16).map_err(making("random numbers"))?;
        self.stage.params.legacy = Some(word.clone());
        self.stage.publish(&self.stage.params)?;
        let mut first = Evidence::default();
        let ran = self.once(Setup::Plain, line, mode, &mut first);
        self.stage.params.legacy = None;
        ran?;
        self.stage.publish(&self.stage.params)?;
        self.once(Setup::Plain, line, mode, evidence)?;
        evidence.legacy = Some(word);
        Ok(())
    }
}
