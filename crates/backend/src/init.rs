//! PID 1 of a cage: lets its backend enclose it, gives up what is left, starts the command.
//! [`spawner`](crate::spawner) is what it does from then on.
//!
//! It runs between the supervisor's fork and its own end; it never executes another image
//! itself. What it holds of the supervisor's memory is a copy of a small process without
//! secrets, its environment is wiped, and nobody inside may read it.

use crate::Grounds;
use crate::faults::step;
use crate::order::Order;
use crate::spawner::{COMMAND, Direct, Given, Spawner, find_program};
use crate::terminal;
use crate::wire::{self, Ready, ToInit};
use ironcage_layers::cgroup::ENTRY;
use ironcage_layers::filter::Prepared;
use ironcage_layers::view::{OwnerMap, Shared};
use ironcage_layers::weakened::{off, without};
use ironcage_layers::{LayerError, landlock, privileges, side_channels};
use ironcage_model::{Isolation, Layer, Switch};
use ironcage_plan::{Plan, Resource};
use ironcage_sys::clone::exit_now;
use ironcage_sys::rustix::fs::{Mode, OFlags, open, openat};
use ironcage_sys::rustix::io::{Errno, write};
use ironcage_sys::rustix::process::{Signal, chdir, set_parent_process_death_signal, umask};
use ironcage_sys::rustix::stdio;
use ironcage_sys::rustix::termios::Winsize;
use ironcage_sys::rustix::thread::set_name;
use ironcage_sys::spawn::{Image, Seat};
use std::cell::Cell;
use std::ffi::CString;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// What PID 1 gets from the supervisor besides the plan.
#[derive(Debug)]
pub struct Inheritance {
    /// The control socket.
    pub control: OwnedFd,
    /// The streams, as far as they are made outside.
    pub streams: InnerStreams,
    /// Maps for owned binds.
    pub owner_maps: Vec<OwnerMap>,
    /// The agent's ids outside.
    pub agent_outside: (u32, u32),
    /// The certificate authority of the cage's own, where its TLS is opened; else empty.
    pub authority: String,
    /// Trees of mounts that a scope shares with its cage; none for a cage itself.
    pub shared: Vec<Shared>,
    /// Files by which this process enters its cgroups.
    pub cgroup_entries: Vec<OwnedFd>,
    /// Whether a guardian stands above this process: then it is the first of the cage's, but of
    /// no pid namespace, and what goes to all of them is not its to send.
    pub guarded: bool,
    /// Whether the supervisor has let the command start; `false` at first.
    pub permitted: Cell<bool>,
}

impl Inheritance {
    /// Hears the supervisor's next word while the cage is being built: `true` when it is `Go`,
    /// `false` when it was the permit to start the command.
    pub(crate) fn hear_go(&self) -> bool {
        match wire::hear_supervisor(self.control.as_fd()) {
            Ok(ToInit::Go) => true,
            Ok(ToInit::Permit) => {
                self.permitted.set(true);
                false
            }
            // The supervisor is gone or confused: so is the cage.
            Ok(_) | Err(_) => exit_now(125),
        }
    }
}

/// Inner ends of the command's streams.
#[derive(Debug)]
pub enum InnerStreams {
    /// Three pipes.
    Pipes {
        /// Where the command reads.
        stdin: OwnedFd,
        /// Where it writes.
        stdout: OwnedFd,
        /// Where it writes what went wrong.
        stderr: OwnedFd,
    },
    /// A terminal, still to be made.
    Terminal {
        /// Its size.
        size: Winsize,
    },
}

const SIGCHLD: i32 = 17;

/// Runs PID 1 to its end. What differs between backends is done by `enclose`.
pub fn run(plan: &Plan, inheritance: Inheritance, enclose: Enclose) -> ! {
    let control = inheritance.control.as_fd();
    match build(plan, &inheritance, enclose) {
        Ok(spawner) => spawner.serve(),
        Err(error) => {
            // If the supervisor is gone too, there is nobody left to tell.
            let _ = wire::say_failed(control, &error);
            exit_now(125)
        }
    }
}

/// An error of a layer.
pub fn failed(layer: Layer, action: &str, source: impl Into<io::Error>) -> LayerError {
    LayerError {
        layer,
        action: action.into(),
        source: source.into(),
    }
}

/// What a backend has made before what all of them do.
#[derive(Debug)]
pub struct Enclosed {
    /// The process file system in which the cage's processes are seen.
    pub proc: OwnedFd,
    /// Any place of the ephemeral storage.
    pub storage: OwnedFd,
    /// The mount namespace in which the cage was built, where it has left that: with the last
    /// descriptor of it go its mounts, which takes a while.
    pub outgrown: Option<OwnedFd>,
    /// What leases and scopes stand on, where the backend has them.
    pub grounds: Option<Grounds>,
    /// The copy-on-write views.
    pub overlays: Vec<OwnedFd>,
}

/// What a backend does first, in the cage's first process: identity, file view, namespaces.
pub type Enclose = fn(&Plan, &Inheritance) -> Result<Enclosed, LayerError>;

fn build<'a>(
    plan: &Plan,
    inheritance: &'a Inheritance,
    enclose: Enclose,
) -> Result<Spawner<'a>, LayerError> {
    let control = inheritance.control.as_fd();
    die_with_parent()?;
    step();
    // First of all, so that whatever follows counts against the cage's limits.
    for entry in &inheritance.cgroup_entries {
        write(entry, ENTRY).map_err(|error| failed(Layer::Memory, "enter the cgroup", error))?;
    }
    step();
    let Enclosed {
        proc,
        storage: root,
        outgrown,
        grounds,
        overlays,
    } = enclose(plan, inheritance)?;
    // A change of ids takes the parent-death signal away.
    die_with_parent()?;
    step();
    umask(Mode::from_raw_mode(0o022));
    chdir(&plan.command.cwd)
        .map_err(|error| failed(Layer::MountNs, "enter the working directory", error))?;
    if !without(Layer::NoNewPrivs) {
        privileges::no_new_privileges()?;
    }
    match plan.rung.what.isolation {
        // No namespace in which this process could have any.
        Isolation::Landlock => privileges::give_up_capabilities()?,
        Isolation::Chroot | Isolation::Oci | Isolation::Namespace => {
            privileges::drop_capabilities(&plan.capabilities)?;
        }
    }
    step();
    if !without(Layer::Session) {
        privileges::new_session()?;
    }
    let terminal = match inheritance.streams {
        InnerStreams::Terminal { size } => Some(terminal::make(size)?),
        InnerStreams::Pipes { .. } => None,
    };
    let children = ironcage_sys::signals::catch(&[SIGCHLD])
        .map_err(|error| failed(Layer::PidNs, "catch the end of children", error))?;
    // Below a guardian there is none: the list would be the host's.
    let shared_memory = match inheritance.guarded {
        true => None,
        false => shared_memory(plan, proc.as_fd()),
    };
    let mut kept = vec![&proc, &root, &children];
    kept.extend(&shared_memory);
    kept.extend(&outgrown);
    if let Some(grounds) = &grounds {
        kept.push(&grounds.mounts);
        kept.extend(&grounds.storage);
    }
    kept.extend(&overlays);
    if let Some(pair) = &terminal {
        kept.extend([&pair.controller, &pair.command]);
    }
    close_descriptors(inheritance, &kept)?;
    privileges::set_rlimits(&plan.rlimits)?;
    if let Some(hardening) = &plan.hardening {
        side_channels::harden(&hardening.what)?;
    }
    if let Some(count) = plan.processors {
        privileges::keep_to_processors(count)?;
    }
    step();
    if !plan.access_rules.is_empty() {
        landlock::restrict_to(&plan.access_rules)?;
    } else if plan.landlock {
        landlock::restrict(&plan.write_rules)?;
    }
    step();
    // The supervisor lets the command start when its start is on record, which is done long
    // before this; without that nothing of the command's ever runs.
    while !inheritance.permitted.get() {
        inheritance.hear_go();
    }
    let program = program(plan)?;
    let filter = Prepared::new(&plan.seccomp);
    ironcage_sys::process::wipe_arguments_and_environment();
    // What `ps` in the cage shows of this process.
    let _ = set_name(c"ironcage-init");
    match off(Switch::Unreadable) {
        // The change of ids has taken it away.
        true => privileges::dumpable()?,
        false => privileges::not_dumpable()?,
    }
    step();
    let listener = match without(Layer::Seccomp) {
        true => None,
        false => filter.install()?,
    };
    step();
    // From here on the supervisor answers refused calls; without it they would wait. If it
    // is gone, sending fails, and nothing is started.
    let (controller, command_end) = match terminal {
        Some(pair) => (Some(pair.controller), Some(pair.command)),
        None => (None, None),
    };
    let ready = Ready {
        root,
        proc,
        listener,
        terminal: controller,
        shared_memory,
        outgrown,
        grounds,
        overlays,
    };
    wire::say_ready(control, &ready)
        .map_err(|error| failed(Layer::Seccomp, "hand the listener over", error))?;
    drop(ready);
    step();
    let mut spawner = Spawner::new(
        control,
        children,
        command_end,
        plan.sticky,
        inheritance.guarded,
        Box::new(Direct),
    );
    let (path, order) = match program {
        Ok(Some(program)) => program,
        // Nothing to start with: it waits for execs.
        Ok(None) => return Ok(spawner),
        Err(errno) => {
            // As if execve had said so. The supervisor hears this, then that we are gone.
            let _ = wire::say_not_executed(control, COMMAND, errno.raw_os_error());
            exit_now(127)
        }
    };
    start_command(&mut spawner, inheritance, &order.image(path))?;
    step();
    Ok(spawner)
}

/// Executes the cage's command with the streams that it was given.
pub(crate) fn start_command(
    spawner: &mut Spawner<'_>,
    inheritance: &Inheritance,
    image: &Image,
) -> Result<(), LayerError> {
    let end = match &spawner.terminal {
        Some(end) => Some(
            end.try_clone()
                .map_err(|error| failed(Layer::Session, "copy a descriptor", error))?,
        ),
        None => None,
    };
    let given = match (&inheritance.streams, &end) {
        (
            InnerStreams::Pipes {
                stdin,
                stdout,
                stderr,
            },
            _,
        ) => Given {
            stdin: match without(Layer::Descriptors) {
                true => stdio::stdin(),
                false => stdin.as_fd(),
            },
            stdout: stdout.as_fd(),
            stderr: stderr.as_fd(),
            seat: Seat::Group,
        },
        (InnerStreams::Terminal { .. }, Some(end)) => Given {
            stdin: end.as_fd(),
            stdout: end.as_fd(),
            stderr: end.as_fd(),
            seat: Seat::Foreground(end.as_fd()),
        },
        (InnerStreams::Terminal { .. }, None) => exit_now(125),
    };
    spawner
        .execute(COMMAND, image, given)
        .map_err(|error| failed(Layer::PidNs, "fork the command", error))
}

/// The command and where its program is; `None` where the cage starts without one. Found out
/// before the filter is in force.
fn program(plan: &Plan) -> Result<Result<Option<(CString, Order)>, Errno>, LayerError> {
    if plan.command.argv.is_empty() {
        return Ok(Ok(None));
    }
    let order = Order::here(&plan.command)
        .map_err(|error| failed(Layer::PidNs, "prepare the command", error))?;
    Ok(find_program(&order.candidates).map(|path| Some((path, order))))
}

/// The list of System V segments, where no cgroup counts them. It shows those of the namespace
/// in which it was opened, whoever reads it; so it is opened here. A kernel without System V
/// has none.
fn shared_memory(plan: &Plan, proc: BorrowedFd<'_>) -> Option<OwnedFd> {
    let mut rlimits = plan.rlimits.iter();
    if !rlimits.any(|item| item.what.resource == Resource::Data) {
        return None;
    }
    let flags = OFlags::RDONLY | OFlags::CLOEXEC;
    openat(proc, "sysvipc/shm", flags, Mode::empty()).ok()
}

pub(crate) fn die_with_parent() -> Result<(), LayerError> {
    if off(Switch::Tether) {
        return Ok(());
    }
    set_parent_process_death_signal(Some(Signal::KILL))
        .map_err(|error| failed(Layer::PidNs, "ask to die with the supervisor", error))
}

pub(crate) fn close_descriptors(
    inheritance: &Inheritance,
    more: &[&OwnedFd],
) -> Result<(), LayerError> {
    if without(Layer::Descriptors) {
        return Ok(());
    }
    let null = open("/dev/null", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())
        .map_err(|error| failed(Layer::Descriptors, "open /dev/null", error))?;
    let dup = |result: Result<(), Errno>| {
        result.map_err(|error| failed(Layer::Descriptors, "let the caller's streams go", error))
    };
    dup(stdio::dup2_stdin(&null))?;
    dup(stdio::dup2_stdout(&null))?;
    dup(stdio::dup2_stderr(&null))?;
    drop(null);
    let mut keep = vec![inheritance.control.as_fd()];
    if let InnerStreams::Pipes {
        stdin,
        stdout,
        stderr,
    } = &inheritance.streams
    {
        keep.extend([stdin.as_fd(), stdout.as_fd(), stderr.as_fd()]);
    }
    keep.extend(more.iter().map(AsFd::as_fd));
    ironcage_sys::process::close_all_but(&keep)
        .map_err(|error| failed(Layer::Descriptors, "close descriptors", error))
}
