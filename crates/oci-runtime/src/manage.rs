//! Commands for a container that was created: start, signal, pause, update, look, remove.

use crate::cgroup::SIGKILL;
use crate::error::{Error, IoContext as _};
use crate::hooks;
use crate::spec::Resources;
use crate::state::{ContainerRecord, Status, Store};
use ironcage_model::{Ending, EventKind};
use ironcage_sys::rustix::fs::{Mode, OFlags, open};
use ironcage_sys::rustix::io::Errno;
use std::io::Write as _;
use std::time::{Duration, Instant};

/// How long a killed container may take to be gone.
const PATIENCE: Duration = Duration::from_secs(10);
const PAUSE: Duration = Duration::from_millis(2);

fn wrong(action: &'static str, id: &str, wanted: &'static str, status: Status) -> Error {
    Error::WrongStatus {
        action,
        id: id.to_owned(),
        wanted,
        status: status.name(),
    }
}

/// Lets the first process execute its program.
pub(crate) fn start(store: &Store, id: &str) -> Result<(), Error> {
    let kept = store.open(id)?;
    let (record, status) = kept.look()?;
    if status != Status::Created {
        return Err(wrong("start", id, "created", status));
    }
    let action = || format!("start container {id:?}");
    let path = kept.waiting();
    // With nobody at the other end there is no container to start.
    let how = OFlags::WRONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let opened = match open(&path, how, Mode::empty()) {
        Err(Errno::NXIO) => return Err(wrong("start", id, "created", Status::Stopped)),
        other => other.doing(action)?,
    };
    std::fs::File::from(opened).write_all(b"0").doing(action)?;
    std::fs::remove_file(&path).doing(action)?;
    // Those of the engine may ask for the state, and exec.
    drop(kept);
    let state = serde_json::to_string(&record.shown(Status::Running)).unwrap_or_default();
    hooks::run("poststart", &record.spec.hooks.poststart, &state)
}

/// Signals the first process, or all.
pub(crate) fn kill(store: &Store, id: &str, signal: i32, all: bool) -> Result<(), Error> {
    let (record, status) = store.look(id)?;
    if all {
        record.groups.signal(signal);
        return Ok(());
    }
    if status == Status::Stopped || status == Status::Creating {
        return Err(wrong("signal", id, "running", status));
    }
    record.signal(signal)?;
    // Without processes of its own, those that the first one leaves are the container's all the same.
    if signal == SIGKILL && !crate::namespaces::has(&record.spec, "pid") {
        record.groups.signal(signal);
    }
    // What is frozen dies when it thaws.
    if signal == SIGKILL && status == Status::Paused {
        record.groups.freeze(false)?;
    }
    Ok(())
}

/// Removes a container and everything that is kept of it.
pub(crate) fn delete(store: &Store, id: &str, force: bool) -> Result<(), Error> {
    delete_ended(store, id, force, Ending::Unobserved)
}

/// The same, where it may be known how the first process ended.
fn delete_ended(store: &Store, id: &str, force: bool, ending: Ending) -> Result<(), Error> {
    let mut ending = ending;
    let kept = match store.open(id) {
        Err(Error::NoContainer { .. }) if force => return Ok(()),
        other => other?,
    };
    let (record, status) = match kept.look() {
        // The start was killed before it wrote anything down.
        Err(Error::NoContainer { .. }) if force => return kept.remove(),
        other => other?,
    };
    match status {
        Status::Stopped => {}
        _ if !force => return Err(wrong("delete", id, "stopped", status)),
        Status::Creating => {}
        _ => {
            kill_and_wait(&record)?;
            ending = Ending::Signalled { signal: SIGKILL };
        }
    }
    // Without a PID namespace, and after a start that was killed, processes may be left.
    record.groups.kill()?;
    record.groups.remove()?;
    // While it is kept, so that a kill in between is made up for by the next `delete`.
    if let Some(trail) = &record.audit {
        trail.end(ending);
    }
    kept.remove()?;
    let state = serde_json::to_string(&record.shown(Status::Stopped)).unwrap_or_default();
    // It is gone, whatever its hooks say: engines do not ask a second time.
    if let Err(error) = hooks::run("poststop", &record.spec.hooks.poststop, &state) {
        eprintln!("ironcage-oci-runtime: {error}");
    }
    Ok(())
}

fn kill_and_wait(record: &ContainerRecord) -> Result<(), Error> {
    let until = Instant::now() + PATIENCE;
    match record.signal(SIGKILL) {
        Ok(()) | Err(Error::WrongStatus { .. }) => {}
        Err(error) => return Err(error),
    }
    if record.groups.is_frozen() {
        record.groups.freeze(false)?;
    }
    while record.is_alive() {
        if Instant::now() > until {
            let why = "its first process did not end in time";
            return Err(Error::refused(
                format!("delete container {:?}", record.id),
                why,
            ));
        }
        std::thread::sleep(PAUSE);
    }
    Ok(())
}

/// Logs what happened. Neither a pause nor an end is kept from happening by a log.
fn note(record: &ContainerRecord, event: EventKind) {
    if let Some(trail) = &record.audit {
        trail.note(event);
    }
}

pub(crate) fn pause(store: &Store, id: &str) -> Result<(), Error> {
    let kept = store.open(id)?;
    match kept.look()? {
        (record, Status::Running | Status::Created) => {
            record.groups.freeze(true)?;
            note(&record, EventKind::Paused);
            Ok(())
        }
        (_, status) => Err(wrong("pause", id, "running", status)),
    }
}

pub(crate) fn resume(store: &Store, id: &str) -> Result<(), Error> {
    let kept = store.open(id)?;
    match kept.look()? {
        (record, Status::Paused) => {
            note(&record, EventKind::Unpaused);
            record.groups.freeze(false)
        }
        (_, status) => Err(wrong("resume", id, "paused", status)),
    }
}

/// Changes limits. What a profile bounds stays bounded.
pub(crate) fn update(store: &Store, id: &str, mut resources: Resources) -> Result<(), Error> {
    let kept = store.open(id)?;
    let (record, status) = kept.look()?;
    if matches!(status, Status::Stopped | Status::Creating) {
        return Err(wrong("update", id, "running", status));
    }
    record.layers.bound(&mut resources, true);
    resources.devices.clear();
    record.groups.limit(&resources, false)
}

pub(crate) fn state(store: &Store, id: &str) -> Result<String, Error> {
    let (record, status) = store.look(id)?;
    Ok(serde_json::to_string_pretty(&record.shown(status)).unwrap_or_default())
}

/// The processes of a container, as numbers or as the lines of `ps` about them.
pub(crate) fn ps(store: &Store, id: &str, json: bool, args: &[String]) -> Result<String, Error> {
    let (record, _) = store.look(id)?;
    let processes = record.groups.processes();
    if json {
        return Ok(serde_json::to_string(&processes).unwrap_or_default());
    }
    let args = match args {
        [] => &["-ef".to_owned()],
        args => args,
    };
    let action = || "run ps".to_owned();
    let output = std::process::Command::new("ps")
        .args(args)
        .output()
        .doing(action)?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let mut lines = text.lines();
    let head = lines.next().unwrap_or_default();
    let Some(column) = head.split_whitespace().position(|name| name == "PID") else {
        return Err(Error::refused(action(), "expected a column PID"));
    };
    let of_container = |line: &&str| {
        let number = line.split_whitespace().nth(column);
        number
            .and_then(|text| text.parse().ok())
            .is_some_and(|pid: i32| processes.contains(&pid))
    };
    let mut shown = vec![head];
    shown.extend(lines.filter(of_container));
    Ok(shown.join("\n"))
}

pub(crate) fn list(store: &Store, json: bool, quiet: bool) -> String {
    let all = store.all();
    if quiet {
        let ids = all.iter().map(|(record, _)| record.id.as_str());
        return ids.collect::<Vec<_>>().join("\n");
    }
    if json {
        let shown: Vec<_> = all
            .iter()
            .map(|(record, status)| record.shown(*status))
            .collect();
        return serde_json::to_string(&shown).unwrap_or_default();
    }
    let mut lines = vec![format!(
        "{:<24} {:<8} {:<9} {:<31} BUNDLE",
        "ID", "PID", "STATUS", "CREATED"
    )];
    for (record, status) in &all {
        let pid = match status {
            Status::Stopped => 0,
            _ => record.pid.unwrap_or(0),
        };
        let bundle = ironcage_model::Printable::new(&record.bundle);
        lines.push(format!(
            "{:<24} {pid:<8} {:<9} {:<31} {bundle}",
            record.id,
            status.name(),
            record.created,
        ));
    }
    lines.join("\n")
}

/// Prints what a container uses, once or until it ends, and each kill for memory.
pub(crate) fn events(store: &Store, id: &str, once: bool, interval: Duration) -> Result<(), Error> {
    let mut killed = None;
    loop {
        let (record, status) = store.look(id)?;
        if status == Status::Stopped {
            return match once {
                true => Err(wrong("look at", id, "running", status)),
                false => Ok(()),
            };
        }
        let now = record.groups.killed_for_memory();
        if !once && killed.is_some() && now > killed {
            println!("{}", serde_json::json!({ "type": "oom", "id": id }));
        }
        killed = now;
        let stats = record.groups.stats();
        println!(
            "{}",
            serde_json::json!({ "type": "stats", "id": id, "data": stats })
        );
        if once {
            return Ok(());
        }
        std::thread::sleep(interval);
    }
}

/// Waits for a container that this command started, and removes it.
pub(crate) fn run_to_its_end(store: &Store, id: &str, detach: bool) -> Result<u8, Error> {
    let (record, _) = store.look(id)?;
    if let Err(error) = start(store, id) {
        let _ = delete(store, id, true);
        return Err(error);
    }
    if detach {
        return Ok(0);
    }
    let ending = crate::exec::wait(record.pid.unwrap_or_default())?;
    let status = ending.exit_code();
    delete_ended(store, id, true, ending)?;
    Ok(status)
}

/// What this command makes is its own child, until it ends.
pub(crate) fn become_reaper() -> Result<(), Error> {
    use ironcage_sys::rustix::process::{getpid, set_child_subreaper};
    set_child_subreaper(Some(getpid())).doing(|| "become the reaper".into())
}
