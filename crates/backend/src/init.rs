//! PID 1 of a cage: lets its backend enclose it, gives up what is left, starts the command.
//! [`spawner`](crate::spawner) is what it does from then on.
//!
//! It runs between the supervisor's fork and its own end; it never executes another image
//! itself. Its copy of the supervisor's memory is that of a small process without
//! secrets, its environment is wiped, and nobody inside may read it.

use crate::MountContext;
use crate::boot::WaitingInit;
use crate::faults::step;
use crate::guest;
use crate::order::Order;
use crate::spawner::{COMMAND, ProgramStreams, Spawner, find_program};
use crate::terminal;
use crate::wire::{self, Ready, ToInit};
use ironcage_layers::ablation::{off, without};
use ironcage_layers::cgroup::ENTRY;
use ironcage_layers::filter::Prepared;
use ironcage_layers::view::{OwnerMap, Shared};
use ironcage_layers::{LayerError, landlock, privileges, side_channels};
use ironcage_model::{Isolation, Layer, Switch};
use ironcage_plan::{BoundPlan, Plan, Resource};
use ironcage_sys::clone::exit_now;
use ironcage_sys::rustix::fs::{Mode, OFlags, open, openat};
use ironcage_sys::rustix::io::{Errno, write};
use ironcage_sys::rustix::net::{AddressFamily, SocketFlags, SocketType, netlink, socket_with};
use ironcage_sys::rustix::process::{Signal, chdir, set_parent_process_death_signal, umask};
use ironcage_sys::rustix::stdio;
use ironcage_sys::rustix::termios::Winsize;
use ironcage_sys::rustix::thread::set_name;
use ironcage_sys::spawn::{Image, Seat};
use ironcage_sys::steps::mark;
use std::cell::Cell;
use std::ffi::CString;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;

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
    /// Whether a subreaper stands above this process: then it is the first of the cage's, but of
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
    Terminal { size: Winsize },
}

const SIGCHLD: i32 = ironcage_sys::rustix::process::Signal::CHILD.as_raw();

/// Runs PID 1 to its end. `enclose` is what a backend does first: identity, file view, namespaces.
pub fn run(
    plan: &BoundPlan<'_>,
    inheritance: Inheritance,
    enclose: impl FnOnce(&BoundPlan<'_>, &Inheritance) -> Result<Enclosed, LayerError>,
) -> ! {
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
        code: ironcage_model::StartCode::LayerFailed,
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
    pub mount_context: Option<MountContext>,
    /// The copy-on-write views.
    pub overlays: Vec<OwnedFd>,
    /// Roots of mounts in the view, by their places.
    pub places: Vec<(PathBuf, OwnedFd)>,
    /// The resolver's socket of a cage without a network.
    pub resolver: Option<OwnedFd>,
    /// The init of a booted system, which waits to be executed.
    pub init: Option<WaitingInit>,
}

fn build<'a>(
    plan: &BoundPlan<'_>,
    inheritance: &'a Inheritance,
    enclose: impl FnOnce(&BoundPlan<'_>, &Inheritance) -> Result<Enclosed, LayerError>,
) -> Result<Spawner<'a>, LayerError> {
    let control = inheritance.control.as_fd();
    mark("PID 1: forked");
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
        mount_context,
        overlays,
        places,
        resolver,
        init,
    } = enclose(plan, inheritance)?;
    mark("PID 1: counters, agent's ids");
    // A change of ids takes the parent-death signal away.
    die_with_parent()?;
    step();
    umask(Mode::from_raw_mode(0o022));
    chdir(&plan.command.cwd)
        .map_err(|error| failed(Layer::MountNs, "enter the working directory", error))?;
    if !without(Layer::NoNewPrivs) {
        privileges::no_new_privileges()?;
    }
    match plan.isolation_level.what.isolation {
        // No namespace in which this process could have any.
        Isolation::Landlock => privileges::give_up_capabilities()?,
        _ if plan.system_root => privileges::keep_root_capabilities(&plan.capabilities)?,
        Isolation::Chroot
        | Isolation::Oci
        | Isolation::Namespace
        | Isolation::Wasm
        | Isolation::Microvm => {
            privileges::drop_capabilities(&plan.capabilities)?;
        }
    }
    step();
    mark("PID 1: capabilities");
    if !without(Layer::Session) {
        privileges::new_session()?;
    }
    let terminal = match inheritance.streams {
        // The init has it for its console, and no session of this process's does.
        InnerStreams::Terminal { size } if init.is_some() => Some(terminal::make_free(size)?),
        InnerStreams::Terminal { size } => Some(terminal::make(size)?),
        InnerStreams::Pipes { .. } => None,
    };
    let children = ironcage_sys::signals::catch(&[SIGCHLD])
        .map_err(|error| failed(Layer::PidNs, "catch the end of children", error))?;
    // Below a subreaper there are none: the lists would be the host's.
    let (shared_memory, sockets) = match inheritance.guarded {
        true => (None, None),
        false => (shared_memory(plan, proc.as_fd()), socket_list(plan)),
    };
    // Opened while the process has what it needs for that, and closed with the rest.
    let ruleset = match (plan.access_rules.as_slice(), plan.landlock) {
        ([], false) => None,
        ([], true) => {
            // Elsewhere the handle may be of the host's, which the view does not show.
            let own = plan.isolation_level.what.isolation.has_all_namespaces();
            let proc = own.then(|| proc.as_fd());
            let rules = &plan.write_rules;
            Some(landlock::Ruleset::on_writes(rules, &places, proc)?)
        }
        (rules, _) => Some(landlock::Ruleset::on_everything(rules)?),
    };
    // Closed by their numbers with the rest, rules or not: another owner must not close them again.
    std::mem::forget(places);
    let mut kept = vec![&proc, &root, &children];
    kept.extend(ruleset.as_ref().map(landlock::Ruleset::descriptor));
    kept.extend(&shared_memory);
    kept.extend(&sockets);
    kept.extend(&outgrown);
    if let Some(mount_context) = &mount_context {
        kept.push(&mount_context.mounts);
        kept.extend(&mount_context.storage);
    }
    kept.extend(&overlays);
    kept.extend(&resolver);
    kept.extend(init.as_ref().map(WaitingInit::socket));
    if let Some(pair) = &terminal {
        kept.extend([&pair.controller, &pair.command]);
    }
    replace_streams()?;
    // Closing once, after the handles are passed on, takes fewer calls. But with as many open files
    // as there are by now, a low limit would leave no number for the filter's listener.
    let closes_early = is_short_of_files(plan);
    if closes_early {
        close_descriptors(inheritance, &kept)?;
    }
    mark("PID 1: rules of Landlock, descriptors");
    privileges::set_rlimits(&plan.rlimits)?;
    if let Some(hardening) = &plan.hardening {
        side_channels::harden(&hardening.what)?;
    }
    if let Some(count) = plan.processors {
        privileges::keep_to_processors(count)?;
    }
    step();
    if let Some(ruleset) = ruleset {
        if without(Layer::NoNewPrivs) {
            // Without it there is no Landlock either.
            privileges::no_new_privileges()?;
        }
        let spent = ruleset.enforce()?;
        if !closes_early {
            // It goes with the rest.
            std::mem::forget(spent);
        }
    }
    step();
    mark("PID 1: rlimits, Landlock");
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
    mark("PID 1: filter");
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
        sockets,
        outgrown,
        mount_context,
        resolver,
        overlays,
    };
    wire::say_ready(control, &ready)
        .map_err(|error| failed(Layer::Seccomp, "pass the listener on", error))?;
    let init_socket = init.as_ref().map(WaitingInit::socket);
    let ours = ours(
        inheritance,
        [Some(&children), command_end.as_ref(), init_socket],
    );
    let spent = ready.into_descriptors();
    let close = match (without(Layer::Descriptors), closes_early) {
        // Then this process has others, too.
        (true, _) => ironcage_sys::process::close_together(spent),
        (false, true) => ironcage_sys::process::close_together_but(spent, &ours),
        (false, false) => {
            // They are closed by their numbers, with all that is not named.
            std::mem::forget(spent);
            ironcage_sys::process::close_all_but(&ours)
        }
    };
    close.map_err(|error| failed(Layer::Descriptors, "close handles", error))?;
    step();
    let mut spawner = Spawner::new(
        control,
        children,
        command_end,
        plan.sticky,
        inheritance.guarded,
        guest::images(plan),
    );
    if let (Some(init), Some(boot)) = (init, &plan.boot) {
        spawner.shut_down_by(boot.what.stop_signal);
        start_init(&mut spawner, inheritance, init)?;
        return Ok(spawner);
    }
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
    let image = match plan.isolation_level.what.microvm {
        None => Ok(order.image(path)),
        Some(_) => {
            let on_terminal = spawner.terminal.is_some();
            spawner.image(COMMAND, order, on_terminal)
        }
    };
    match image {
        Ok(image) => start_command(&mut spawner, inheritance, &image)?,
        Err(errno) => {
            let _ = wire::say_not_executed(control, COMMAND, errno.raw_os_error());
            exit_now(127)
        }
    }
    mark("PID 1: ready told, command forked");
    step();
    Ok(spawner)
}

/// Lets the init of a booted system be executed with the cage's streams.
fn start_init(
    spawner: &mut Spawner<'_>,
    inheritance: &Inheritance,
    init: WaitingInit,
) -> Result<(), LayerError> {
    let started = match (&inheritance.streams, &spawner.terminal) {
        (
            InnerStreams::Pipes {
                stdin,
                stdout,
                stderr,
            },
            _,
        ) => init.start([stdin.as_fd(), stdout.as_fd(), stderr.as_fd()], false)?,
        (InnerStreams::Terminal { .. }, Some(end)) => {
            init.start([end.as_fd(), end.as_fd(), end.as_fd()], true)?
        }
        (InnerStreams::Terminal { .. }, None) => exit_now(125),
    };
    match started {
        Ok(pid) => spawner.adopt(COMMAND, pid),
        Err(number) => {
            let _ = wire::say_not_executed(spawner.control, COMMAND, number);
            exit_now(127)
        }
    }
    Ok(())
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
        ) => ProgramStreams {
            stdin: match without(Layer::Descriptors) {
                true => stdio::stdin(),
                false => stdin.as_fd(),
            },
            stdout: stdout.as_fd(),
            stderr: stderr.as_fd(),
            seat: Seat::Group,
        },
        (InnerStreams::Terminal { .. }, Some(end)) => ProgramStreams {
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
    if !is_memory_watched(plan) {
        return None;
    }
    let flags = OFlags::RDONLY | OFlags::CLOEXEC;
    openat(proc, "sysvipc/shm", flags, Mode::empty()).ok()
}

fn is_memory_watched(plan: &Plan) -> bool {
    let mut rlimits = plan.rlimits.iter();
    rlimits.any(|item| item.what.resource == Resource::Data)
}

/// Where the kernel lists the sockets of this network namespace, whoever asks: what waits in them
/// is memory that only a cgroup would count. A kernel without the list has none.
fn socket_list(plan: &Plan) -> Option<OwnedFd> {
    if !is_memory_watched(plan) {
        return None;
    }
    let protocol = Some(netlink::SOCK_DIAG);
    let (kind, flags) = (SocketType::DGRAM, SocketFlags::CLOEXEC);
    socket_with(AddressFamily::NETLINK, kind, flags, protocol).ok()
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
    let keep = ours(inheritance, more.iter().copied().map(Some));
    close_all_but(&keep)
}

/// In a prepared cage: nothing of the owner's stays, neither its other cages nor its streams.
pub(crate) fn close_all_but_control(control: BorrowedFd<'_>) -> Result<(), LayerError> {
    replace_streams()?;
    close_all_but(&[control])
}

/// Open files of a start that are not of a single mount or rule, with much to spare.
const OTHER_FILES: usize = 512;

/// Whether the plan's limit on open files may be lower than what a start has open.
fn is_short_of_files(plan: &Plan) -> bool {
    // A mount and a rule leave two descriptors at most.
    let open = OTHER_FILES + 2 * (plan.view.len() + plan.write_rules.len());
    let mut limits = plan.rlimits.iter().map(|item| &item.what);
    limits.any(|limit| limit.resource == Resource::OpenFiles && limit.value < open as u64)
}

fn close_all_but(keep: &[BorrowedFd<'_>]) -> Result<(), LayerError> {
    if without(Layer::Descriptors) {
        return Ok(());
    }
    ironcage_sys::process::close_all_but(keep)
        .map_err(|error| failed(Layer::Descriptors, "close descriptors", error))
}

/// Puts nothing in the place of the caller's standard streams.
pub(crate) fn replace_streams() -> Result<(), LayerError> {
    if without(Layer::Descriptors) {
        return Ok(());
    }
    let null = open("/dev/null", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())
        .map_err(|error| failed(Layer::Descriptors, "open /dev/null", error))?;
    let dup = |result: Result<(), Errno>| {
        result.map_err(|error| failed(Layer::Descriptors, "close the caller's streams", error))
    };
    dup(stdio::dup2_stdin(&null))?;
    dup(stdio::dup2_stdout(&null))?;
    dup(stdio::dup2_stderr(&null))?;
    // It goes with the rest.
    std::mem::forget(null);
    Ok(())
}

/// What PID 1 goes on with: the control socket, the streams of the command, and `more`.
fn ours<'a>(
    inheritance: &'a Inheritance,
    more: impl IntoIterator<Item = Option<&'a OwnedFd>>,
) -> Vec<BorrowedFd<'a>> {
    let mut ours = vec![inheritance.control.as_fd()];
    if let InnerStreams::Pipes {
        stdin,
        stdout,
        stderr,
    } = &inheritance.streams
    {
        ours.extend([stdin.as_fd(), stdout.as_fd(), stderr.as_fd()]);
    }
    ours.extend(more.into_iter().flatten().map(AsFd::as_fd));
    ours
}
