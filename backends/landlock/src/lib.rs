//! The landlock backend: for hosts that forbid user namespaces.
//!
//! No namespace at all. The agent sees the host's tree and can open of it what the plan allows:
//! Landlock is the first lock here, on reads too. The filter refuses sockets and what reaches
//! other processes, rlimits and a watchdog bound what is used, a guardian ends what the command
//! leaves behind. Home and temporary files are a directory of the cage's own, removed at the
//! end.
#![forbid(unsafe_code)]

use ironcage_backend::init::{self, Enclosed, Inheritance, failed};
use ironcage_backend::{Ability, Answer, Backend, Birth, StartError, StreamKind, guardian};
use ironcage_layers::identity::become_agent;
use ironcage_layers::{LayerError, privileges};
use ironcage_model::{CageId, Isolation, Layer};
use ironcage_plan::Plan;
use ironcage_sys::clone::Namespaces;
use ironcage_sys::rustix::fs::{Mode, OFlags, open};
use ironcage_sys::rustix::process::geteuid;
use std::io;

/// The backend.
#[derive(Debug, Clone, Copy)]
pub struct Landlock;

impl Backend for Landlock {
    fn isolation(&self) -> Isolation {
        Isolation::Landlock
    }

    fn can(&self, ability: Ability) -> Answer {
        match ability {
            Ability::Terminal => Answer::Yes("a terminal of the host's devpts"),
            Ability::Exec => Answer::Yes(
                "by the first process, under every layer that it is under itself; no terminal: opening one would open the user's own",
            ),
            Ability::Limits => Answer::Yes("cgroup where there is one, rlimits, watchdog"),
            ability => guardian::can(ability),
        }
    }

    fn start(&self, plan: &Plan, id: &CageId, kind: StreamKind) -> Result<Birth, StartError> {
        guardian::start(plan, id, kind, Namespaces::NONE, |plan, inheritance| {
            init::run(plan, inheritance, enclose)
        })
    }
}

/// Becomes the agent. The locks come after, as with every backend.
fn enclose(plan: &Plan, _: &Inheritance) -> Result<Enclosed, LayerError> {
    let scratch = plan.scratch.as_ref().ok_or_else(|| {
        let why = io::Error::other("the plan has none");
        failed(Layer::Landlock, "find the cage's own directory", why)
    })?;
    if plan.access_rules.is_empty() {
        let why = io::Error::other("the plan has no rules for it");
        return Err(failed(Layer::Landlock, "be the first lock", why));
    }
    let flags = OFlags::DIRECTORY | OFlags::CLOEXEC;
    let proc = open("/proc", flags | OFlags::PATH, Mode::empty())
        .map_err(|error| failed(Layer::PidNs, "open /proc", error))?;
    if geteuid().is_root() {
        // While this process may: as the agent it may not.
        privileges::drop_bounding_set()?;
        become_agent(plan.identity.uid, plan.identity.gid, true)?;
    }
    let storage = open(&scratch.path, flags | OFlags::PATH, Mode::empty())
        .map_err(|error| failed(Layer::Landlock, "open the cage's own directory", error))?;
    Ok(Enclosed {
        proc,
        storage,
        outgrown: None,
        grounds: None,
        overlays: Vec::new(),
    })
}
