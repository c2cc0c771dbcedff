//! The scene of a case: a stage, a backend, and what is asked of them.

use super::isolation::IsolationLevel;
use ironcage_tests::{DIRECT, Ran, Running, Stage, TEST_USER, Who, skip};
use std::os::unix::fs::chown;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

pub(crate) const MINUTE: Duration = Duration::from_secs(60);

/// What a case finds: nothing to complain about, or what is not as promised.
pub(crate) type Finding = Result<(), String>;

pub(crate) struct Scene {
    pub(crate) stage: Stage,
    pub(crate) level: IsolationLevel,
    who: Who,
}

impl Scene {
    pub(crate) fn new(who: Who, level: IsolationLevel) -> Option<Scene> {
        let stage = Stage::new(who)?;
        if level == IsolationLevel::Microvm && !crate::microvm::set_up(&stage) {
            return None;
        }
        if let Some(missing) = level.missing() {
            skip(&format!(
                "{missing} is not there; ./scripts/test unpacks it"
            ));
            return None;
        }
        let temporary = stage.base().join("tmp");
        stage.mkdir(&temporary);
        if level == IsolationLevel::Landlock && who == Who::Root {
            // There the agent is the workspace's owner, who must not be root.
            let (uid, gid) = account(TEST_USER);
            chown(stage.project(), Some(uid), Some(gid)).expect("the project's owner");
        }
        Some(Scene { stage, level, who })
    }

    /// A cage on the real files, which every isolation level has.
    pub(crate) fn command(&self, flags: &[&str], command: &[&str]) -> Command {
        let mut all = self.flags();
        all.push("-q");
        all.extend(DIRECT);
        all.extend(flags);
        let mut run = self.stage.cage(&all, command);
        run.env("TMPDIR", self.temporary());
        run
    }

    pub(crate) fn flags(&self) -> Vec<&'static str> {
        self.level.flags(self.who)
    }

    pub(crate) fn temporary(&self) -> PathBuf {
        self.stage.base().join("tmp")
    }

    pub(crate) fn run(&self, flags: &[&str], command: &[&str]) -> Ran {
        Running::start(&mut self.command(flags, command)).finish(MINUTE)
    }

    pub(crate) fn sh(&self, script: &str) -> Ran {
        self.run(&[], &["/bin/sh", "-c", script])
    }

    pub(crate) fn python(&self, flags: &[&str], script: &str) -> Ran {
        self.run(flags, &["/usr/bin/python3", "-c", script])
    }

    /// `ironcage ARGS` beside the cage.
    pub(crate) fn ironcage(&self, args: &[&str]) -> Ran {
        Running::start(&mut self.stage.ironcage(args)).finish(MINUTE)
    }
}

pub(crate) fn account(name: &str) -> (u32, u32) {
    let passwd = std::fs::read_to_string("/etc/passwd").expect("/etc/passwd");
    let line = passwd
        .lines()
        .find(|line| line.starts_with(&format!("{name}:")));
    let fields: Vec<&str> = line.expect("scripts/test creates it").split(':').collect();
    (
        fields[2].parse().expect("a uid"),
        fields[3].parse().expect("a gid"),
    )
}

pub(crate) fn demand(holds: bool, what: impl FnOnce() -> String) -> Finding {
    if holds { Ok(()) } else { Err(what()) }
}

pub(crate) fn same<T: PartialEq + std::fmt::Debug>(found: T, wanted: T, of: &Ran) -> Finding {
    demand(found == wanted, || {
        format!("{found:?} and not {wanted:?}: {of:?}")
    })
}

pub(crate) fn marker(scene: &Scene) -> String {
    let name = scene
        .stage
        .base()
        .file_name()
        .expect("a name")
        .to_string_lossy();
    format!("marked-{name}")
}

/// A process that has left its session and its parent, ignores what can be ignored, and says that it is there.
pub(crate) fn stray(marker: &str) -> String {
    format!(
        "setsid setsid -f /bin/sh -c 'trap \"\" TERM INT HUP; echo beat >> beat; while :; do sleep 0.05; done' {marker}; while ! [ -s beat ]; do sleep 0.01; done"
    )
}
