//! The log of a container, in the audit logs of the user whom the runtime runs as.
//!
//! Each command opens it, writes its event and ends; nothing is held in between. A command that starts a
//! process is refused when it cannot be logged. Ending or stopping one is never refused for that.

use crate::check::mask;
use crate::error::{Error, IoContext as _};
use crate::namespaces;
use crate::spec::Spec;
use crate::state::ContainerRecord;
use ironcage_audit::{Container, Digest, Log, audit_dir, container, log_path};
use ironcage_files::{Links, read_text};
use ironcage_model::{
    CageId, Ending, Enforcement, Event, EventKind, Isolation, Layer, LayerReport,
};
use ironcage_sys::process::started_as;
use ironcage_sys::rustix::rand::{GetRandomFlags, getrandom};
use serde::{Deserialize, Serialize};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

const LONGEST_PASSWD: u64 = 1 << 20;

/// Where a container is logged. Kept with its record: later commands may have another environment.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Trail {
    pub(crate) cage: CageId,
    directory: PathBuf,
    root: PathBuf,
    id: String,
    /// When it was created, in microseconds since the epoch.
    since: u64,
}

impl Trail {
    pub(crate) fn new(root: &Path, id: &str) -> Result<Trail, Error> {
        let mut random = [0; 12];
        getrandom(&mut random, GetRandomFlags::empty())
            .doing(|| "make the ID of an audit log".into())?;
        Ok(Trail {
            cage: CageId::from_entropy(random),
            directory: directory()?,
            root: std::path::absolute(root).doing(|| format!("find {}", root.display()))?,
            id: id.to_owned(),
            since: now(),
        })
    }

    /// Logs a container whose program has not run yet.
    pub(crate) fn begin(
        &self,
        record: &ContainerRecord,
        plan: &namespaces::Plan,
    ) -> Result<(), Error> {
        let note = Container {
            cage: self.cage.clone(),
            id: self.id.clone(),
            root: self.root.clone(),
            execs: 0,
            since: self.since,
        };
        let enforced = serde_json::to_vec(&(&record.layers, &record.spec));
        let enforced = enforced.map_err(|error| Error::refused("log the container", error))?;
        let process = record.spec.process.as_ref();
        let start = EventKind::Start {
            name: Some(self.id.clone()),
            command: process
                .map(|process| process.args.clone())
                .unwrap_or_default(),
            workspace: record.bundle.to_string_lossy().into_owned(),
            profile: record.layers.profiles.join("+"),
            isolation: Some(Isolation::Oci),
            runtime: Some("ironcage-oci-runtime".into()),
            plan: Digest::of(&enforced).to_string(),
            layers: layers(record, plan),
            degraded: Vec::new(),
            shared: Vec::new(),
            parent: None,
        };
        let logged = note
            .save(&self.directory)
            .and_then(|()| Log::create(&self.directory, &self.cage))
            .and_then(|mut log| log.append(&self.event(start)));
        logged.map_err(|error| self.refused(&error))?;
        // Notes that stay keep nobody from starting.
        if let Err(error) = Container::forget_others(&self.directory, &self.root) {
            eprintln!("ironcage-oci-runtime: {error}");
        }
        Ok(())
    }

    /// Logs another command before it runs, and says which it is. One that cannot be logged is refused.
    pub(crate) fn exec(&self, command: &[String], detached: bool) -> Result<u32, Error> {
        let closed = |why: &str| {
            Error::refused(format!("log container {:?}", self.id), why)
                .with_hint("delete the container and create it again")
        };
        let log = Log::reopen(&self.directory, &self.cage);
        let log = log.map_err(|error| self.refused(&error))?;
        let mut log = log.ok_or_else(|| closed("its end is logged already"))?;
        // The log is locked: nobody else counts meanwhile.
        let note = container(&self.directory, &self.cage).map_err(|error| self.refused(&error))?;
        let mut note = note.ok_or_else(|| closed("the note beside its log was removed"))?;
        note.execs = note.execs.saturating_add(1);
        let number = note.execs;
        let exec = EventKind::Exec {
            number,
            command: command.to_vec(),
            detached,
            scope: false,
            plan: None,
        };
        let logged = note
            .save(&self.directory)
            .and_then(|()| log.append(&self.event(exec)));
        logged.map_err(|error| self.refused(&error))?;
        Ok(number)
    }

    pub(crate) fn exec_ended(&self, number: u32, ending: Ending, lived: Duration) {
        self.note(EventKind::ExecExit {
            number,
            ending,
            milliseconds: u64::try_from(lived.as_millis()).unwrap_or(u64::MAX),
        });
    }

    /// Logs the end, once, and that there is nothing more to come.
    pub(crate) fn end(&self, ending: Ending) {
        if log_path(&self.directory, &self.cage).exists() {
            self.note(EventKind::Exit {
                ending,
                milliseconds: now().saturating_sub(self.since) / 1000,
                usage: None,
            });
        }
        if let Err(error) = Container::forget(&self.directory, &self.cage) {
            eprintln!("ironcage-oci-runtime: {error}");
        }
    }

    /// Logs what happens whether or not it can be logged.
    pub(crate) fn note(&self, kind: EventKind) {
        let log = Log::reopen(&self.directory, &self.cage);
        let logged = log.and_then(|log| match log {
            Some(mut log) => log.append(&self.event(kind)),
            None => Ok(()),
        });
        if let Err(error) = logged {
            eprintln!("ironcage-oci-runtime: {}", self.refused(&error));
        }
    }

    fn event(&self, kind: EventKind) -> Event {
        Event {
            time: now(),
            cage: self.cage.clone(),
            kind,
        }
    }

    fn refused(&self, error: &ironcage_audit::Error) -> Error {
        let source = std::error::Error::source(error);
        let why = source.map_or_else(|| error.to_string(), |source| format!("{error}: {source}"));
        Error::refused(format!("log container {:?}", self.id), why).with_hint(
            "set XDG_STATE_HOME in the engine's environment to a directory that this user can write",
        )
    }
}

fn now() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    u64::try_from(since.unwrap_or_default().as_micros()).unwrap_or(u64::MAX)
}

/// Where this user's logs are. Services have no HOME, and sudo may keep another user's.
fn directory() -> Result<PathBuf, Error> {
    let variable = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty());
    let own = |path: &Path| {
        path.metadata()
            .is_ok_and(|found| found.uid() == started_as())
    };
    let home = variable("HOME").map(PathBuf::from);
    if variable("XDG_STATE_HOME").is_some() || home.is_some_and(|home| own(&home)) {
        return audit_dir().map_err(|error| Error::refused("find the audit logs", error));
    }
    let users = read_text(Path::new("/etc/passwd"), LONGEST_PASSWD, Links::Follow);
    let users = users.unwrap_or_default();
    let listed = users.lines().find_map(|line| {
        let mut fields = line.split(':').skip(2);
        let number: u32 = fields.next()?.parse().ok()?;
        (number == started_as()).then(|| fields.nth(2).map(PathBuf::from))?
    });
    match listed.filter(|home| home.is_absolute()) {
        Some(home) => Ok(home.join(".local/state/ironcage/audit")),
        None => Err(Error::refused(
            "find the audit logs",
            format!("user {} has no home directory", started_as()),
        )
        .with_hint("set HOME or XDG_STATE_HOME in the engine's environment")),
    }
}

/// What holds for the container, as its log says it.
fn layers(record: &ContainerRecord, plan: &namespaces::Plan) -> Vec<LayerReport> {
    let spec = &record.spec;
    let namespace = |layer, name: &str| report(layer, of_namespace(spec, plan, name));
    let process = spec.process.as_ref();
    let held = process
        .and_then(|process| process.capabilities.as_ref())
        .map_or(0, |sets| mask(&sets.bounding) & record.layers.capabilities);
    let on = |on: bool, why: &str| match on {
        true => Enforcement::Full,
        false => Enforcement::Off(why.into()),
    };
    let limit = |number: Option<i64>| on(number.is_some_and(|number| number > 0), "no limit");
    let resources = &spec.linux.resources;
    let no_new_privs =
        record.layers.no_new_privs || process.is_some_and(|process| process.no_new_privileges);
    let filtered = spec.linux.seccomp.is_some() || record.layers.filters_calls();
    vec![
        namespace(Layer::UserNs, "user"),
        namespace(Layer::MountNs, "mount"),
        namespace(Layer::PidNs, "pid"),
        namespace(Layer::NetNs, "network"),
        namespace(Layer::IpcNs, "ipc"),
        namespace(Layer::UtsNs, "uts"),
        namespace(Layer::CgroupNs, "cgroup"),
        report(
            Layer::Capabilities,
            match held {
                0 => Enforcement::Full,
                held => Enforcement::Partial(format!("{} kept", held.count_ones())),
            },
        ),
        report(Layer::NoNewPrivs, on(no_new_privs, "by the node's profile")),
        report(Layer::Seccomp, on(filtered, "by the node's profile")),
        report(
            Layer::Landlock,
            on(record.layers.landlock, "by the node's profile"),
        ),
        report(Layer::Memory, limit(resources.memory.limit)),
        report(Layer::Pids, limit(resources.pids.limit)),
    ]
}

fn report(layer: Layer, enforcement: Enforcement) -> LayerReport {
    LayerReport { layer, enforcement }
}

fn of_namespace(spec: &Spec, plan: &namespaces::Plan, name: &str) -> Enforcement {
    match (namespaces::has(spec, name), plan.joins(name)) {
        (false, _) => Enforcement::Off("shared with the host by config.json".into()),
        (true, true) => Enforcement::Partial("joined by its path in config.json".into()),
        (true, false) => Enforcement::Full,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn trail(top: &Path) -> Trail {
        Trail {
            cage: "c0123456789ab".parse().unwrap(),
            directory: top.join("audit"),
            root: top.join("run"),
            id: "web".into(),
            since: 0,
        }
    }

    #[test]
    fn commands_are_counted_and_an_end_is_logged_once() {
        let top = tempfile::tempdir().unwrap();
        let trail = trail(top.path());
        // A start that was killed before its log was made.
        trail.end(Ending::Unobserved);
        let note = Container {
            cage: trail.cage.clone(),
            id: "web".into(),
            root: trail.root.clone(),
            execs: 0,
            since: 0,
        };
        note.save(&trail.directory).unwrap();
        drop(Log::create(&trail.directory, &trail.cage).unwrap());
        let words = ["true".to_owned()];
        assert_eq!(trail.exec(&words, false).unwrap(), 1);
        // Whoever removed the note: what runs is logged, or does not run.
        Container::forget(&trail.directory, &trail.cage).unwrap();
        assert!(trail.exec(&words, false).is_err());
        Container { execs: 1, ..note }
            .save(&trail.directory)
            .unwrap();
        assert_eq!(trail.exec(&words, true).unwrap(), 2);
        trail.note(EventKind::Paused);
        trail.end(Ending::Signalled { signal: 9 });
        trail.end(Ending::Unobserved);
        assert!(trail.exec(&words, false).is_err());
        let verdict = ironcage_audit::verify(&trail.directory, &trail.cage).unwrap();
        let intact = ironcage_audit::Verdict::Intact {
            lines: 4,
            running: false,
        };
        assert_eq!(verdict, intact);
    }

    #[test]
    fn what_cannot_be_logged_is_refused() {
        let top = tempfile::tempdir().unwrap();
        let trail = trail(top.path());
        assert!(trail.exec(&["true".to_owned()], false).is_err());
    }
}
