//! Makes the plan: brings the parts together in the order in which they are enforced.

use crate::plan::{Hostname, IdMap, Identity, Item, Plan};
use crate::{PlanError, Request, bounds, command, filter, view};
use ironcage_host::{CgroupHost, HostCaps, HostFiles, Privilege};
use ironcage_model::{Enforcement, Layer, LayerReport};
use ironcage_policy::{Policy, capabilities};

/// Ids in the range of a cage that root starts.
const RANGE: u32 = 65_536;
/// The agent's id inside.
const AGENT: u32 = 1000;

/// Makes a plan, or says what stands against it. Changes nothing.
pub fn make(
    policy: &Policy,
    request: &Request,
    host: &HostCaps,
    files: &dyn HostFiles,
) -> Result<Plan, PlanError> {
    let (layers, degraded) = layers(policy, host)?;
    let identity = identity(policy, host);
    let landlock = holds(&layers, Layer::Landlock);
    let view = view::make(policy, request, host, files, &identity)?;
    let bounds = bounds::make(&policy.limits, host);
    let command = command::make(policy, request, &identity, &view)?;
    let mut notes = view.notes;
    notes.extend(command::not_passed(policy, request));
    Ok(Plan {
        profile: policy.profile.value.clone(),
        command,
        sticky: request.sticky,
        workspace: request.workspace.clone(),
        writable: view.writable,
        kept: view.kept,
        hostname: Item {
            what: Hostname {
                name: policy.hostname.value.clone(),
            },
            origin: policy.hostname.origin.to_string(),
        },
        time_namespace: holds(&layers, Layer::TimeNs),
        view: view.ops,
        capabilities: given_capabilities(policy)?,
        counters: bounds::counters(),
        rlimits: bounds::rlimits(&bounds, host),
        write_rules: if landlock {
            view.write_rules
        } else {
            Vec::new()
        },
        landlock,
        processors: bounds::processors(&bounds, host, &mut notes),
        seccomp: filter::make(policy, host)?,
        bounds,
        cgroup: host.cgroup.clone(),
        identity,
        layers,
        degraded,
        absent: view.absent,
        notes,
    })
}

fn holds(layers: &[LayerReport], layer: Layer) -> bool {
    layers
        .iter()
        .any(|report| report.layer == layer && !matches!(report.enforcement, Enforcement::Off(_)))
}

fn identity(policy: &Policy, host: &HostCaps) -> Identity {
    let id = if policy.root_inside.value { 0 } else { AGENT };
    Identity {
        uid: id,
        gid: id,
        map: match host.privilege {
            Privilege::Root => IdMap::Range { count: RANGE },
            Privilege::User => IdMap::Own {
                uid: host.uid,
                gid: host.gid,
            },
        },
    }
}

/// What each layer will enforce. A required one that is off stops the start, unless the user
/// has said by name that it may be.
fn layers(policy: &Policy, host: &HostCaps) -> Result<(Vec<LayerReport>, Vec<Layer>), PlanError> {
    let mut degraded = Vec::new();
    let reports = Layer::ALL.map(|layer| LayerReport {
        layer,
        enforcement: host
            .layers
            .get(&layer)
            .cloned()
            .unwrap_or_else(|| Enforcement::Off("not examined on this host".into())),
    });
    for required in &policy.require {
        let report = reports.iter().find(|report| report.layer == required.value);
        let Some(Enforcement::Off(why)) = report.map(|report| &report.enforcement) else {
            continue;
        };
        if policy
            .allow_degraded
            .iter()
            .any(|allowed| allowed.value == required.value)
        {
            degraded.push(required.value);
        } else {
            return Err(PlanError::MissingLayer {
                layer: required.value,
                origin: required.origin.to_string(),
                why: why.clone(),
            });
        }
    }
    Ok((reports.to_vec(), degraded))
}

fn given_capabilities(policy: &Policy) -> Result<Vec<Item<crate::plan::Capability>>, PlanError> {
    let mut given = Vec::new();
    for wanted in &policy.capabilities {
        let refuse = |why: &str| PlanError::Capability {
            name: wanted.value.clone(),
            origin: wanted.origin.to_string(),
            why: why.into(),
        };
        let known = capabilities::find(&wanted.value)
            .ok_or_else(|| refuse("there is no such capability"))?;
        if !known.allowed {
            return Err(refuse(known.why));
        }
        given.push(Item {
            what: crate::plan::Capability {
                name: known.name.into(),
                number: u32::from(known.number),
            },
            origin: wanted.origin.to_string(),
        });
    }
    Ok(given)
}

/// Whether a cgroup holds what the named controller bounds.
pub(crate) fn has_controller(host: &HostCaps, name: &str) -> bool {
    match &host.cgroup {
        CgroupHost::V2 { controllers, .. } => controllers.iter().any(|known| known == name),
        CgroupHost::V1(v1) => v1.controllers.contains_key(name),
        CgroupHost::None { .. } => false,
    }
}
