//! A cage that is prepared before anybody asks for it, and adopted once.
//!
//! Its PID 1 has carried out the static part of the plan and waits on the control socket. It has
//! closed every other descriptor of the owner's, so it holds nothing of another cage. Whoever
//! adopts it sends the plan's own part; from there PID 1 does what it does in any start.

use crate::cage::{Ends, make_cgroup};
use crate::faults::step;
use crate::host_resources::pair;
use crate::ids::{self, Range, Reaped};
use crate::init::{self, Enclosed, Inheritance, InnerStreams, failed};
use crate::order::{read_sealed, seal_bytes};
use crate::wire::adoption::{self, Adoption};
use crate::wire::{self, FromInit};
use crate::{Helper, StartError, StartingCage, StreamKind, end};
use ironcage_layers::LayerError;
use ironcage_layers::cgroup::Cgroup;
use ironcage_layers::view::OwnerMap;
use ironcage_model::{CageId, Layer};
use ironcage_plan::{BoundPlan, IdMap, Item, OwnPart, Owner, StaticPart, ViewOp};
use ironcage_sys::clone::exit_now;
use ironcage_sys::rustix::io::Errno;
use ironcage_sys::rustix::process::{Pid, geteuid};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

/// A cage whose PID 1 waits to be adopted. Dropping it ends it.
#[derive(Debug)]
pub struct PreparedCage {
    id: CageId,
    /// All but what adoption takes; it ends PID 1 when it is dropped.
    waiting: Option<Waiting>,
}

#[derive(Debug)]
struct Waiting {
    part: Arc<StaticPart>,
    foundation: Foundation,
    control: OwnedFd,
    pid: Pid,
    pidfd: OwnedFd,
    helper: Option<Helper>,
    settled: bool,
}

/// What a prepared cage stands on outside, before its PID 1 is forked.
#[derive(Debug)]
pub struct Foundation {
    /// The cage's ids, where root prepares it.
    pub range: Option<Range>,
    /// The agent's ids outside.
    pub agent_outside: (u32, u32),
    owner_maps: Vec<OwnerMap>,
    children: Vec<Reaped>,
    cgroup: Option<Cgroup>,
}

impl Foundation {
    /// Claims ids, maps the owners that the plans of this kind name, and makes the cgroup. PID 1
    /// enters it when it is adopted.
    pub fn make(part: &StaticPart, id: &CageId) -> Result<Foundation, StartError> {
        let identity = &part.plan().identity;
        let (range, agent_outside) = match identity.map {
            IdMap::Own { uid, gid } => (None, (uid, gid)),
            IdMap::Range { .. } => {
                let range = Range::claim(id)?;
                let agent = (range.first + identity.uid, range.first + identity.gid);
                (Some(range), agent)
            }
        };
        let mut foundation = Foundation {
            range,
            agent_outside,
            owner_maps: Vec::new(),
            children: Vec::new(),
            cgroup: None,
        };
        foundation.map_owners(part.owners())?;
        step();
        foundation.cgroup = make_cgroup(part.plan(), id)?;
        step();
        Ok(foundation)
    }

    fn map_owners(&mut self, owners: &[Owner]) -> Result<(), StartError> {
        if self.range.is_none() {
            return Ok(());
        }
        for owner in owners {
            if self.owner_maps.iter().all(|map| map.owner != *owner) {
                let made = ids::owner_map(*owner, self.agent_outside);
                let (namespace, child) = made.map_err(|source| StartError::OwnerMap {
                    owner: owner.uid,
                    source,
                })?;
                self.children.push(child);
                self.owner_maps.push(OwnerMap {
                    owner: *owner,
                    namespace,
                });
            }
        }
        Ok(())
    }
}

/// Both ends of the control socket of a cage that is prepared: the owner's and PID 1's.
pub fn control_pair() -> Result<(OwnedFd, OwnedFd), StartError> {
    pair()
}

impl PreparedCage {
    /// A cage whose PID 1 was just forked.
    pub fn new(
        id: CageId,
        part: Arc<StaticPart>,
        foundation: Foundation,
        control: OwnedFd,
        (pid, pidfd): (Pid, OwnedFd),
        helper: Option<Helper>,
    ) -> PreparedCage {
        PreparedCage {
            id,
            waiting: Some(Waiting {
                part,
                foundation,
                control,
                pid,
                pidfd,
                helper,
                settled: false,
            }),
        }
    }

    /// The ID that the cage has had since it was prepared.
    pub fn id(&self) -> &CageId {
        &self.id
    }

    /// Waits until the cage is prepared. [`adopt`](Self::adopt) does so too.
    ///
    /// # Errors
    /// Where it could not be prepared.
    pub fn settle(&mut self) -> Result<(), StartError> {
        match &mut self.waiting {
            Some(waiting) => waiting.settle(),
            None => Err(StartError::Died),
        }
    }

    /// Makes the cage one by this plan. `network` starts what the plan's network needs, if it has
    /// one. The caller goes on with [`StartingCage::await_ready`], as after any start.
    ///
    /// # Errors
    /// Where the plan is not like the one that the cage was prepared by, or PID 1 is gone. The
    /// cage is ended then.
    pub fn adopt(
        mut self,
        plan: &BoundPlan<'_>,
        kind: StreamKind,
        network: impl FnOnce(&Foundation, Pid, BorrowedFd<'_>) -> Result<AdoptedNetwork, StartError>,
    ) -> Result<StartingCage, StartError> {
        let Some(mut waiting) = self.waiting.take() else {
            return Err(StartError::Died);
        };
        match waiting.adopt(plan, kind, network) {
            Ok((streams, network)) => Ok(waiting.into_starting(streams, network)),
            Err(error) => {
                waiting.end();
                Err(error)
            }
        }
    }
}

/// What the network of an adopted cage needs besides its namespace.
#[derive(Debug, Default)]
pub struct AdoptedNetwork {
    pub proxy: Option<ironcage_egress::Proxy>,
    /// The process that makes the network namespace.
    pub helper: Option<Helper>,
    /// The certificate authority of the proxy.
    pub authority: String,
}

impl Waiting {
    fn settle(&mut self) -> Result<(), StartError> {
        if self.settled {
            return Ok(());
        }
        let helped = self.helper.take().map_or(Ok(()), Helper::finish);
        let heard = adoption::hear_prepared(self.control.as_fd()).map_err(StartError::Channel)?;
        match heard {
            None => {
                helped?;
                self.settled = true;
                Ok(())
            }
            Some(FromInit::Failed {
                layer,
                errno,
                action,
                code,
            }) => Err(StartError::Layer {
                layer,
                action,
                errno,
                code,
            }),
            Some(_) => Err(helped.err().unwrap_or(StartError::Died)),
        }
    }

    fn adopt(
        &mut self,
        plan: &BoundPlan<'_>,
        kind: StreamKind,
        network: impl FnOnce(&Foundation, Pid, BorrowedFd<'_>) -> Result<AdoptedNetwork, StartError>,
    ) -> Result<(Ends, AdoptedNetwork), StartError> {
        let own = self.part.own_part(plan).map_err(StartError::Unfit)?;
        self.settle()?;
        self.foundation.map_owners(&owners(&own.view))?;
        let foundation = &self.foundation;
        let ends = Ends::make(kind).map_err(StartError::Channel)?;
        if geteuid().as_raw() != foundation.agent_outside.0 {
            let given = ends.give_to(foundation.agent_outside);
            given.map_err(StartError::Channel)?;
        }
        step();
        let network = network(foundation, self.pid, self.control.as_fd())?;
        let memory = seal_bytes(&own.encode(&network.authority)).map_err(StartError::Channel)?;
        let entries = match &foundation.cgroup {
            Some(cgroup) => cgroup.entries().map_err(StartError::Channel)?,
            None => Vec::new(),
        };
        let (streams, terminal) = match &ends.inner {
            InnerStreams::Pipes {
                stdin,
                stdout,
                stderr,
            } => (Some([stdin.as_fd(), stdout.as_fd(), stderr.as_fd()]), None),
            InnerStreams::Terminal { size } => (None, Some(*size)),
        };
        let maps = foundation.owner_maps.iter();
        let told = adoption::tell_adopted(
            self.control.as_fd(),
            &Adoption {
                own: memory.as_fd(),
                streams,
                terminal,
                cgroup_entries: entries.iter().map(AsFd::as_fd).collect(),
                owner_maps: maps.map(|map| (map.owner, map.namespace.as_fd())).collect(),
            },
        );
        told.map_err(StartError::Channel)?;
        step();
        Ok((ends, network))
    }

    fn into_starting(self, ends: Ends, network: AdoptedNetwork) -> StartingCage {
        StartingCage {
            control: self.control,
            pid: self.pid,
            pidfd: self.pidfd,
            guard: None,
            cgroup: self.foundation.cgroup,
            range: self.foundation.range,
            streams: ends.outer,
            helper: network.helper,
            proxy: network.proxy,
            children: self.foundation.children,
        }
    }

    fn end(mut self) {
        end(&self.pidfd);
        // Waited for, so that no process is left.
        let _ = self.helper.take().map(Helper::finish);
    }
}

impl Drop for PreparedCage {
    fn drop(&mut self) {
        if let Some(waiting) = self.waiting.take() {
            waiting.end();
        }
    }
}

fn owners(view: &[Item<ViewOp>]) -> Vec<Owner> {
    let owner = |item: &Item<ViewOp>| match item.what {
        ViewOp::Bind { owner, .. } | ViewOp::Overlay { owner, .. } => owner,
        _ => None,
    };
    view.iter().filter_map(owner).collect()
}

/// PID 1 of a prepared cage, to its end. `prepare` carries out the static part; `enclose` goes on
/// with what it has made, once the own part is there.
pub fn wait<T>(
    part: &StaticPart,
    control: OwnedFd,
    agent_outside: (u32, u32),
    prepare: impl FnOnce(BorrowedFd<'_>) -> Result<T, LayerError>,
    enclose: impl FnOnce(
        T,
        &[Item<ViewOp>],
        &BoundPlan<'_>,
        &Inheritance,
    ) -> Result<Enclosed, LayerError>,
) -> ! {
    let adopted = init::die_with_parent()
        .and_then(|()| init::close_all_but_control(control.as_fd()))
        .and_then(|()| {
            step();
            let made = prepare(control.as_fd())?;
            step();
            adoption::say_prepared(control.as_fd())
                .map_err(|error| failed(Layer::PidNs, "report that the cage is prepared", error))?;
            let (adoption, own, authority) = hear_adoption(control.as_fd())?;
            Ok((made, adoption, own, authority))
        });
    let (made, adoption, own, authority) = match adopted {
        Ok(adopted) => adopted,
        Err(error) => {
            // If the owner is gone too, there is nobody left to tell.
            let _ = wire::say_failed(control.as_fd(), &error);
            exit_now(125)
        }
    };
    let view = own.view.clone();
    let plan = part.complete(own);
    let inheritance = Inheritance {
        control,
        streams: match (adoption.streams, adoption.terminal) {
            (Some([stdin, stdout, stderr]), _) => InnerStreams::Pipes {
                stdin,
                stdout,
                stderr,
            },
            (None, Some(size)) => InnerStreams::Terminal { size },
            (None, None) => exit_now(125),
        },
        owner_maps: (adoption.owner_maps.into_iter())
            .map(|(owner, namespace)| OwnerMap { owner, namespace })
            .collect(),
        agent_outside,
        authority,
        shared: Vec::new(),
        cgroup_entries: adoption.cgroup_entries,
        guarded: false,
        permitted: false.into(),
    };
    init::run(&plan, inheritance, |plan, inheritance| {
        enclose(made, &view, plan, inheritance)
    })
}

fn hear_adoption(
    control: BorrowedFd<'_>,
) -> Result<(Adoption<OwnedFd>, OwnPart, String), LayerError> {
    let refused = |error: std::io::Error| failed(Layer::PidNs, "read the plan's own part", error);
    let Some(adoption) = adoption::hear_adopted(control).map_err(refused)? else {
        // The owner is gone: so is the cage.
        exit_now(125)
    };
    let bytes = read_sealed(&adoption.own).map_err(|errno| refused(errno.into()))?;
    let decoded = OwnPart::decode(&bytes).ok_or_else(|| refused(Errno::INVAL.into()))?;
    Ok((adoption, decoded.0, decoded.1))
}
