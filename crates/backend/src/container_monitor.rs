//! The first process of a cage that another program makes.
//!
//! It stands below a subreaper and outside the cage. It has the cage made, waits for the
//! supervisor's permit, and then does what PID 1 does elsewhere: executes, passes signals on,
//! reports. It executes the other program, which runs the order inside.

use crate::init::{self, Inheritance, InnerStreams, failed};
use crate::order::Order;
use crate::spawner::{COMMAND, Images, Spawner};
use crate::wire::{self, Ready};
use crate::{faults::step, terminal};
use ironcage_layers::cgroup::ENTRY;
use ironcage_layers::{LayerError, privileges};
use ironcage_model::Layer;
use ironcage_plan::BoundPlan;
use ironcage_sys::clone::exit_now;
use ironcage_sys::rustix::io::write;
use ironcage_sys::rustix::process::{getpid, set_child_subreaper};
use ironcage_sys::rustix::thread::set_name;
use std::os::fd::{AsFd, OwnedFd};

const SIGCHLD: i32 = ironcage_sys::rustix::process::Signal::CHILD.as_raw();

/// What a backend has had made.
#[derive(Debug)]
pub struct ContainerResources {
    /// The host's process file system.
    pub proc: OwnedFd,
    /// Any place of the ephemeral storage.
    pub storage: OwnedFd,
    /// From orders to what is executed for them.
    pub images: Box<dyn Images>,
}

/// Has the cage made, without its command.
pub type Make = fn(&BoundPlan<'_>, &Inheritance) -> Result<ContainerResources, LayerError>;

/// Runs the first process to its end.
pub fn run(plan: &BoundPlan<'_>, inheritance: &Inheritance, make: Make) -> ! {
    match conduct(plan, inheritance, make) {
        Ok(mut spawner) => {
            // What ended before signals of children were caught.
            spawner.reap();
            spawner.serve()
        }
        Err(error) => {
            // If the supervisor is gone too, there is nobody left to tell.
            let _ = wire::say_failed(inheritance.control.as_fd(), &error);
            exit_now(125)
        }
    }
}

fn conduct<'a>(
    plan: &BoundPlan<'_>,
    inheritance: &'a Inheritance,
    make: Make,
) -> Result<Spawner<'a>, LayerError> {
    let control = inheritance.control.as_fd();
    init::die_with_parent()?;
    step();
    // First of all, so that whatever follows counts against the cage's limits.
    for entry in &inheritance.cgroup_entries {
        write(entry, ENTRY).map_err(|error| failed(Layer::Memory, "enter the cgroup", error))?;
    }
    if let Some(count) = plan.processors {
        privileges::keep_to_processors(count)?;
    }
    // What the other program leaves behind is collected here.
    set_child_subreaper(Some(getpid()))
        .map_err(|error| failed(Layer::PidNs, "become a subreaper", error))?;
    privileges::new_session()?;
    let terminal = match inheritance.streams {
        InnerStreams::Terminal { size } => Some(terminal::make(size)?),
        InnerStreams::Pipes { .. } => None,
    };
    let kept = terminal
        .iter()
        .flat_map(|pair| [&pair.controller, &pair.command]);
    let maps = inheritance.owner_maps.iter().map(|map| &map.namespace);
    let kept: Vec<&OwnedFd> = kept.chain(maps).collect();
    init::replace_streams()?;
    init::close_descriptors(inheritance, &kept)?;
    let ContainerResources {
        proc,
        storage,
        images,
    } = make(plan, inheritance)?;
    step();
    let children = ironcage_sys::signals::catch(&[SIGCHLD])
        .map_err(|error| failed(Layer::PidNs, "catch the end of children", error))?;
    while !inheritance.permitted.get() {
        inheritance.hear_go();
    }
    ironcage_sys::process::wipe_arguments_and_environment();
    let _ = set_name(c"ironcage-oci");
    privileges::not_dumpable()?;
    step();
    let (controller, command_end) = match terminal {
        Some(pair) => (Some(pair.controller), Some(pair.command)),
        None => (None, None),
    };
    let ready = Ready {
        root: storage,
        proc,
        listener: None,
        terminal: controller,
        shared_memory: None,
        sockets: None,
        outgrown: None,
        mount_context: None,
        resolver: None,
        overlays: Vec::new(),
    };
    wire::say_ready(control, &ready)
        .map_err(|error| failed(Layer::MountNs, "hand the cage over", error))?;
    drop(ready);
    step();
    let mut spawner = Spawner::new(control, children, command_end, plan.sticky, true, images);
    if plan.command.argv.is_empty() {
        // Nothing to start with: it waits for execs.
        return Ok(spawner);
    }
    let order = Order::there(&plan.command)
        .map_err(|error| failed(Layer::PidNs, "prepare the command", error))?;
    let on_terminal = spawner.terminal.is_some();
    match spawner.image(COMMAND, order, on_terminal) {
        Ok(image) => init::start_command(&mut spawner, inheritance, &image)?,
        Err(errno) => {
            // As if execve had said so. The supervisor hears this, then that we are gone.
            let _ = wire::say_not_executed(control, COMMAND, errno.raw_os_error());
            exit_now(127)
        }
    }
    step();
    Ok(spawner)
}
