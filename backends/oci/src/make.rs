//! Has the container made: the view, the bundle, and the runtime's `run`.

use crate::bundle::{Ids, Locks, Program, ROOT, configuration};
use crate::exec::{Calls, ENVIRONMENT, NAME};
use crate::runtimes::options;
use ironcage_backend::container_monitor::ContainerResources;
use ironcage_backend::faults::step;
use ironcage_backend::ids::map_own;
use ironcage_backend::init::{Inheritance, failed};
use ironcage_backend::root;
use ironcage_layers::LayerError;
use ironcage_layers::view::{Entered, Processes};
use ironcage_model::{Layer, Printable};
use ironcage_plan::{BoundPlan, CONTAINER_INIT, IdMap, OciRuntime, RuntimeProgram, ViewOp};
use ironcage_sys::mount::{AttributeChange, MountAttributes, set_attributes};
use ironcage_sys::rustix::fs::{Mode, OFlags, open};
use ironcage_sys::rustix::mount::{MountFlags, mount, mount_bind, mount_bind_recursive};
use ironcage_sys::rustix::process::umask;
use std::io;
use std::os::fd::AsFd as _;
use std::path::Path;
use std::process::{Command, Stdio};

/// Everything of this cage's that the runtime reads or keeps.
const BUNDLE: &str = "/tmp";
/// How Ironcage's program in the view ends when it has no filter.
const UNFILTERED: i32 = 3;
/// Longest part of what a runtime said that is passed on.
const SAID: usize = 600;

fn wrong(action: &str, source: impl Into<io::Error>) -> LayerError {
    failed(Layer::MountNs, action, source)
}

/// Builds the view, writes the bundle and lets the runtime make the container of it.
pub(crate) fn make(
    plan: &BoundPlan<'_>,
    inheritance: &Inheritance,
) -> Result<ContainerResources, LayerError> {
    let none = || wrong("find the runtime", io::Error::other("the plan names none"));
    let runtime = plan
        .isolation_level
        .what
        .runtime
        .as_ref()
        .ok_or_else(none)?;
    let (uid, gid) = inheritance.agent_outside;
    let identity = &plan.identity;
    let (agent, ids) = match identity.map {
        IdMap::Own { .. } => {
            // Runtimes take root of a user namespace for root.
            map_own(None, (0, uid), (0, gid))?;
            let own = |inside| Ids {
                inside,
                outside: 0,
                count: 1,
            };
            ((0, 0), (own(identity.uid), own(identity.gid)))
        }
        IdMap::Range { count } => {
            let range = |inside, outside: u32| Ids {
                inside: 0,
                outside: outside - inside,
                count,
            };
            let ids = (range(identity.uid, uid), range(identity.gid, gid));
            ((uid, gid), ids)
        }
    };
    step();
    let view = root::begin(plan, inheritance, agent, Processes::Hosts { shown: false })?;
    view.lay_out(&plan.view)?;
    for item in &plan.view {
        match &item.what {
            // Of the container's own namespaces: the runtime mounts them there. It seals the root
            // when it has put its own links and devices into it.
            ViewOp::Seal
            | ViewOp::Proc
            | ViewOp::MaskProc { .. }
            | ViewOp::ReadOnlyProc { .. }
            | ViewOp::Cgroup
            | ViewOp::Terminals => {}
            op => view.mount(op)?,
        }
    }
    step();
    // Nothing of the host's is named from here on, so any directory can be covered.
    let data = c"mode=0755,size=64m";
    let flags = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
    mount("tmpfs", BUNDLE, "tmpfs", flags, data)
        .map_err(|error| wrong("mount a place for the bundle", error))?;
    std::fs::create_dir(ROOT).map_err(|error| wrong("make a place for the view", error))?;
    let Entered { storage, .. } = view.place_at(Path::new(ROOT))?;
    let locks = Locks::of(plan);
    let configured = configuration(plan, runtime.program, &locks, ids).to_string();
    std::fs::write(Path::new(BUNDLE).join("config.json"), configured)
        .map_err(|error| wrong("write config.json", error))?;
    step();
    show_one_cgroup_tree()?;
    if runtime.program == RuntimeProgram::Runc {
        close_cgroups()?;
    }
    run(runtime)?;
    step();
    if runtime.program == RuntimeProgram::Runsc && !plan.degraded.contains(&Layer::Seccomp) {
        verify_filter(runtime, &locks)?;
    }
    // runc starts each program with the one that it was started with.
    umask(Mode::from_raw_mode(0o022));
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let proc = open("/proc", flags, Mode::empty()).map_err(|error| wrong("open /proc", error))?;
    let calls = Calls::new(runtime, locks);
    Ok(ContainerResources {
        proc,
        storage,
        images: Box::new(calls.map_err(|error| wrong("open the view", error))?),
    })
}

/// crun refuses to start where versions 1 and 2 of cgroups are mounted side by side, also when it
/// is to leave them alone: it is shown version 2 by itself.
fn show_one_cgroup_tree() -> Result<(), LayerError> {
    let (all, second) = ("/sys/fs/cgroup", "/sys/fs/cgroup/unified");
    if !Path::new(second).is_dir() {
        return Ok(());
    }
    mount_bind(second, all).map_err(|error| wrong("show crun one tree of cgroups", error))
}

/// runc makes a cgroup wherever it can, and a killed start would leave it: it can nowhere.
fn close_cgroups() -> Result<(), LayerError> {
    let doing = |error: io::Error| wrong("close the cgroups to runc", error);
    let all = "/sys/fs/cgroup";
    if !Path::new(all).is_dir() {
        return Ok(());
    }
    mount_bind_recursive(all, all).map_err(|error| doing(error.into()))?;
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let all = open(all, flags, Mode::empty()).map_err(|error| doing(error.into()))?;
    let change = AttributeChange {
        set: MountAttributes::READ_ONLY,
        recursive: true,
        ..AttributeChange::default()
    };
    set_attributes(all.as_fd(), change).map_err(doing)
}

/// Lets the runtime make the container and start its first process. Comes back when it runs.
fn run(runtime: &OciRuntime) -> Result<(), LayerError> {
    let name = Printable::new(&runtime.path).to_string();
    let log = Path::new(BUNDLE).join("log");
    let doing = |error: io::Error| wrong(&format!("start {name}"), error);
    // crun gives the standard streams to the agent: what it gets here is the cage's own, and by no
    // means the host's /dev/null.
    let append = std::fs::OpenOptions::new()
        .append(true)
        .create(true)
        .open(&log);
    let said = append.map_err(doing)?;
    let nothing = Path::new(BUNDLE).join("nothing");
    std::fs::File::create(&nothing).map_err(doing)?;
    let nothing = std::fs::File::open(&nothing).map_err(doing)?;
    // The container's first process inherits it and lets it go once it runs. Before that it still
    // is the runtime's, outside the container's user namespace, and nobody can join it. Nobody
    // joins gVisor's, whose own processes would keep it.
    let (mut runs, output) = io::pipe().map_err(doing)?;
    let output: Stdio = match runtime.program {
        RuntimeProgram::Crun | RuntimeProgram::Runc => output.into(),
        RuntimeProgram::Runsc => {
            drop(output);
            said.try_clone().map_err(doing)?.into()
        }
    };
    let status = Command::new(&runtime.path)
        .args(options(runtime.program))
        .args(["run", "--detach", "--bundle", BUNDLE, NAME])
        .env_clear()
        .envs(ENVIRONMENT)
        .current_dir(BUNDLE)
        .stdin(nothing)
        .stdout(output)
        .stderr(said)
        .status()
        .map_err(doing)?;
    if status.success() {
        io::copy(&mut runs, &mut io::sink()).map_err(doing)?;
        return Ok(());
    }
    let said = std::fs::read(&log).unwrap_or_default();
    let said = String::from_utf8_lossy(said.get(..SAID).unwrap_or(&said)).into_owned();
    let said = Printable::new(said.trim()).to_string();
    let action = format!("create the container with {name}: {said}");
    Err(wrong(&action, io::Error::other(status.to_string())))
}

/// Versions of runsc apply the filter to the first process alone. Every command is an exec, so one
/// of Ironcage's own looks whether it has a filter.
fn verify_filter(runtime: &OciRuntime, locks: &Locks) -> Result<(), LayerError> {
    const DOING: &str = "verify that runsc applies the filter to commands";
    let doing = |error: io::Error| failed(Layer::Seccomp, DOING, error);
    let process = locks.process(&Program {
        args: &[CONTAINER_INIT.to_owned(), "__container-filtered".to_owned()],
        env: &[],
        cwd: "/",
        terminal: false,
    });
    let file = Path::new(BUNDLE).join("filtered.json");
    std::fs::write(&file, process.to_string()).map_err(doing)?;
    let nothing = || std::fs::File::open(Path::new(BUNDLE).join("nothing"));
    let log = std::fs::OpenOptions::new()
        .append(true)
        .open(Path::new(BUNDLE).join("log"));
    let log = log.map_err(doing)?;
    let status = Command::new(&runtime.path)
        .args(options(runtime.program))
        .args(["exec", "--process"])
        .arg(&file)
        .arg(NAME)
        .env_clear()
        .envs(ENVIRONMENT)
        .current_dir(BUNDLE)
        .stdin(nothing().map_err(doing)?)
        .stdout(log.try_clone().map_err(doing)?)
        .stderr(log)
        .status()
        .map_err(doing)?;
    match status.code() {
        Some(0) => Ok(()),
        Some(UNFILTERED) => Err(doing(io::Error::other(
            "this version does not; use a newer one, or --allow-degraded seccomp",
        ))),
        _ => Err(doing(io::Error::other(status.to_string()))),
    }
}
