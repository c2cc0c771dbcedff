//! Makes the plan: assembles the parts in the order in which they are enforced.

use crate::bind::before_seal;
use crate::plan::{
    AccessRights, AccessRule, Bounds, Capability, Hardening, Hostname, IdMap, Identity,
    IsolationLevel, Item, Plan, Scratch, Variable,
};
use crate::{
    NoCapability, PlanError, Request, RuntimeProgram, boot, bounds, command, filter, isolation,
    keys, leases, microvm, network, oci, signing, sockets, system_root, taint, trust, user, view,
    wasm,
};
use ironcage_host::doctor::needs_consent;
use ironcage_host::{CgroupHost, HostCaps, HostFiles, Privilege};
use ironcage_model::{Enforcement, Isolation, Layer, LayerReport, ShellMode};
use ironcage_policy::{Policy, SideChannels, Sourced, capabilities};

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
    let of_user = user::policy(policy, request)?;
    let policy = of_user.as_ref().unwrap_or(policy);
    let boot = boot::make(policy, request)?;
    let booted = boot.is_some().then(|| boot::policy(policy));
    let policy = booted.as_ref().unwrap_or(policy);
    let system_root = system_root::is_given(policy, request);
    let of_system = system_root.then(|| system_root::policy(policy, host));
    let policy = of_system.as_ref().unwrap_or(policy);
    let isolation = policy.isolation.value;
    isolation::check(policy, request, host)?;
    let runtime = match isolation {
        Isolation::Oci => Some(oci::runtime(policy, request, host, files)?),
        _ => None,
    };
    let program = runtime.as_ref().map(|runtime| runtime.program);
    let (mut layers, degraded) = layers(policy, host, boot.is_some(), program)?;
    let identity = identity(policy, request, host, files)?;
    let landlock = holds(&layers, Layer::Landlock);
    let kept_nothing = (isolation == Isolation::Landlock).then(|| keeping_nothing(policy));
    let (mut network, proxy_notes) = match network::make(policy, request, files)? {
        Some((network, notes)) => (Some(network), notes),
        None => (None, Vec::new()),
    };
    let mut unread = None;
    if let Some(network) = network.as_mut() {
        network.extra_authorities = trust::extra(policy, request, files)?;
        let all = trust::authorities(&network.extra_authorities, files);
        if network.needs_authority() {
            network.authorities = all?;
        } else if network.live || network.models.is_some() {
            // Without any, rules over requests that come later are refused.
            network.authorities = all.unwrap_or_default();
        }
        if network.authorities.is_empty() && network.models.take().is_some() {
            unread = Some(
                "the model's responses are not read: this host has no certificate authorities to verify its server; install ca-certificates",
            );
        }
    }
    let mut signing_notes = Vec::new();
    let signing = signing::make(policy, request, network.as_ref(), &mut signing_notes)?;
    let mut view = view::make(
        kept_nothing.as_ref().unwrap_or(policy),
        request,
        host,
        files,
        (&identity, network.as_ref(), signing.as_ref()),
    )?;
    if system_root {
        system_root::settle(&mut view, policy, host);
    }
    if boot.is_some() {
        boot::places(&mut view);
    }
    let signing_files = signing.as_ref().map(|signing| signing.show(&mut view));
    match isolation {
        Isolation::Chroot => isolation::without_proc(&mut view, files),
        Isolation::Oci => oci::prepare(&mut view, request),
        Isolation::Landlock | Isolation::Namespace | Isolation::Wasm | Isolation::Microvm => {}
    }
    let leases = match isolation {
        Isolation::Namespace if boot.is_some() => None,
        Isolation::Namespace | Isolation::Wasm => leases::make(
            policy,
            request,
            (host, files),
            (&view.matched, view.sensitive_deeper),
        )?,
        Isolation::Microvm => {
            let made = leases::make(
                policy,
                request,
                (host, files),
                (&view.matched, view.sensitive_deeper),
            )?;
            made.map(|leases| microvm::leases(leases, &mut view.notes))
        }
        Isolation::Oci | Isolation::Chroot | Isolation::Landlock => None,
    };
    // All that can be written is one tmpfs, whose size and number of files the kernel holds. A
    // lease could give a directory of the host, and scopes and children each have a tmpfs of
    // their own.
    let alone = leases.is_none() && policy.ceiling.children.value == 0;
    if policy.in_memory.value && view.writable.is_empty() && alone {
        for report in &mut layers {
            if matches!(report.layer, Layer::Disk | Layer::Inodes) {
                report.enforcement = Enforcement::Full;
            }
        }
    }
    if let Some(leases) = &leases {
        leases::prepare(leases, files, &mut view);
    } else if policy.ceiling.is_given() {
        view.notes.push(match boot {
            Some(_) => "the policy's ceiling has no effect: a booted system has no leases, scopes or child cages".into(),
            None => "the policy's ceiling has no effect: leases need --isolation namespace or wasm".into(),
        });
    }
    let bounds = bounds::make(&policy.limits, host);
    let mut command = command::make(policy, request, &identity, &view, files)?;
    if isolation == Isolation::Wasm {
        wasm::prepare(
            &mut view.ops,
            (policy, request),
            (&bounds, leases.as_ref()),
            network.is_some(),
        );
    }
    match &leases {
        _ if isolation == Isolation::Wasm => {}
        Some(leases) => crate::shell::add_shims(leases, files, &mut view.ops, &mut command),
        None if policy.ceiling.shell.value == ShellMode::Scoped => view.notes.push(
            "the agent's shell has no scopes: the policy has no ceiling, so there are no leases for them"
                .into(),
        ),
        None => {}
    }
    if let Some(models) = network.as_mut().and_then(|network| network.models.as_mut()) {
        models.belong_to(&command);
    }
    let mut unenforced = isolation::unenforced(policy);
    let (mut access_rules, mut scratch) = (Vec::new(), None);
    if isolation == Isolation::Landlock {
        let lock = isolation::first_lock(&view, files)?;
        view.ops.clear();
        unenforced.extend(lock.unenforced);
        access_rules = lock.rules;
        let own = own_directory(request, lock.files, &mut command.env);
        access_rules.push(Item {
            what: AccessRule {
                path: own.path.clone(),
                rights: AccessRights::WriteTree,
            },
            origin: "built in".into(),
        });
        scratch = Some(own);
        if kept_nothing.is_some_and(|kept| {
            kept.keep.len() < policy.keep.len() || kept.caches.len() < policy.caches.len()
        }) {
            view.notes.push(
                "--isolation landlock keeps neither state nor caches: the home directory is new at each start"
                    .into(),
            );
        }
    }
    let (children, channels) = match isolation {
        Isolation::Namespace if boot.is_some() => (0, 0),
        Isolation::Namespace => (policy.ceiling.children.value, policy.ceiling.channels.value),
        // Messages are bytes; the streams of a child are descriptors, which no guest can send.
        Isolation::Microvm => (0, policy.ceiling.channels.value),
        // A WebAssembly command executes no program that could ask for either.
        Isolation::Wasm | Isolation::Oci | Isolation::Chroot | Isolation::Landlock => (0, 0),
    };
    let asked = policy.ceiling.children.value > 0 || policy.ceiling.channels.value > 0;
    if asked && children == 0 && channels == 0 && leases.is_some() {
        view.notes.push(format!(
            "ceiling.children and ceiling.channels have no effect with --isolation {isolation}: they need namespace"
        ));
    } else if policy.ceiling.children.value > children {
        view.notes.push(format!(
            "ceiling.children has no effect with --isolation {isolation}: it needs namespace"
        ));
    }
    let proxied = network.iter().flat_map(|network| &network.sockets);
    before_seal(&mut view.ops, proxied.map(sockets::proxy));
    before_seal(&mut view.ops, signing_files.into_iter().flatten());
    if leases.is_some() || children > 0 || channels > 0 {
        before_seal(&mut view.ops, sockets::for_requests());
    }
    let seccomp = filter::make(
        policy,
        host,
        filter::FilterOptions {
            leased: request.leased_beside
                || leases
                    .as_ref()
                    .is_some_and(|leases| !leases.paths.is_empty()),
            observed: request.observed,
            booted: boot.is_some(),
        },
    )?;
    let mut microvm = None;
    if isolation == Isolation::Microvm {
        let files = microvm::files(request)?;
        microvm = Some(microvm::make(
            (files, request, policy),
            (&bounds, network.is_some()),
            leases.as_ref(),
            &mut view.ops,
        )?);
    }
    let mut notes = view.notes;
    notes.extend(user::note(policy, request));
    notes.extend(command::not_passed(policy, request));
    notes.extend(keys::not_passed(policy, network.as_ref(), request));
    notes.extend(network.iter().flat_map(crate::network_notes::of));
    notes.extend(proxy_notes);
    if network.is_none() {
        notes.extend(crate::network_notes::without_network(&policy.network));
    }
    notes.extend(unread.map(str::to_owned));
    notes.extend(signing_notes);
    let mut capabilities = given_capabilities(policy)?;
    let mut counters = bounds::counters(host);
    if boot.is_some() {
        boot::raise(&mut counters);
    }
    if boot.is_some() || system_root {
        let more = match boot {
            Some(_) => boot::capabilities(),
            None => system_root::capabilities(host),
        };
        let more = more.into_iter();
        let known =
            |item: &Item<Capability>| capabilities.iter().any(|given| given.what == item.what);
        let more: Vec<_> = more.filter(|item| !known(item)).collect();
        capabilities.extend(more);
    }
    let mut plan = Plan {
        isolation_level: Item {
            what: IsolationLevel {
                isolation,
                runtime,
                microvm,
            },
            origin: policy.isolation.origin.to_string(),
        },
        access_rules,
        scratch,
        unenforced,
        profile: policy.profile.value.clone(),
        command,
        boot,
        system_root,
        sticky: request.sticky,
        scope: None,
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
        capabilities,
        counters: match isolation {
            Isolation::Landlock | Isolation::Oci => Vec::new(),
            Isolation::Chroot | Isolation::Namespace | Isolation::Wasm | Isolation::Microvm => {
                counters
            }
        },
        rlimits: bounds::rlimits(&bounds, host),
        write_rules: if landlock && isolation != Isolation::Landlock {
            view.write_rules
        } else {
            Vec::new()
        },
        landlock,
        processors: bounds::processors(&bounds, host, &mut notes),
        hardening: hardening(policy, host, &bounds)?,
        taint: None,
        tools: policy.tools.clone(),
        network,
        seccomp,
        leases,
        signing,
        children,
        channels,
        bounds,
        cgroup: host.cgroup.clone(),
        identity,
        layers,
        degraded,
        absent: view.absent,
        notes,
    };
    plan.taint = taint::make(&policy.taint, &plan, files);
    plan.update_machine();
    Ok(plan)
}

/// What is done against side channels. Where the host lacks a means, nothing starts.
fn hardening(
    policy: &Policy,
    host: &HostCaps,
    bounds: &Bounds,
) -> Result<Option<Item<Hardening>>, PlanError> {
    let asked = &policy.side_channels;
    if asked.value == SideChannels::Off {
        return Ok(None);
    }
    let speculation = asked.value == SideChannels::Hardened;
    if speculation {
        let missing = match &host.side_channels {
            Some(there) => there.missing(),
            None => vec!["not examined on this host".into()],
        };
        if !missing.is_empty() {
            return Err(PlanError::SideChannels {
                origin: asked.origin.to_string(),
                missing,
            });
        }
    }
    // A share of all of them would leave none to anybody else.
    let whole = bounds.cpu.what.value.div_ceil(1000);
    let wanted = match u32::try_from(whole) {
        Ok(wanted) if wanted < host.cpus => wanted.max(1),
        _ => 1,
    };
    Ok(Some(Item {
        what: Hardening {
            wanted,
            processors: Vec::new(),
            speculation,
        },
        origin: asked.origin.to_string(),
    }))
}

fn holds(layers: &[LayerReport], layer: Layer) -> bool {
    layers
        .iter()
        .any(|report| report.layer == layer && !matches!(report.enforcement, Enforcement::Off(_)))
}

/// A home that is new at each start keeps nothing.
fn keeping_nothing(policy: &Policy) -> Policy {
    Policy {
        keep: Vec::new(),
        caches: Vec::new(),
        ..policy.clone()
    }
}

/// The directory of a cage that has no storage of its own, and the variables that name it.
fn own_directory(
    request: &Request,
    files: Vec<(&'static str, String)>,
    env: &mut Vec<Item<Variable>>,
) -> Scratch {
    let path = isolation::scratch_below(&request.temporary);
    let places = [
        ("HOME", "home"),
        ("TMPDIR", "tmp"),
        ("GIT_CONFIG_SYSTEM", "gitconfig"),
    ];
    for (name, place) in places {
        env.retain(|item| item.what.name != name);
        env.push(Item {
            what: Variable {
                name: name.into(),
                value: path.join(place).into(),
            },
            origin: "built in".into(),
        });
    }
    Scratch {
        path,
        directories: vec!["home", "tmp"],
        files,
    }
}

fn identity(
    policy: &Policy,
    request: &Request,
    host: &HostCaps,
    files: &dyn HostFiles,
) -> Result<Identity, PlanError> {
    if policy.isolation.value == Isolation::Landlock {
        let (uid, gid) = isolation::agent_on_host(request, host, files)?;
        return Ok(Identity {
            uid,
            gid,
            map: IdMap::Own { uid, gid },
        });
    }
    let (uid, gid) = match user::chosen(policy, request)? {
        Some(user) => (user.uid, user.gid),
        None if policy.root_inside.value => (0, 0),
        None => (AGENT, AGENT),
    };
    Ok(Identity {
        uid,
        gid,
        map: match host.privilege {
            Privilege::Root => IdMap::Range { count: RANGE },
            Privilege::User => IdMap::Own {
                uid: host.uid,
                gid: host.gid,
            },
        },
    })
}

/// What each layer will enforce. A required one that is off stops the start, unless the user
/// has said by name that it may be.
fn layers(
    policy: &Policy,
    host: &HostCaps,
    booted: bool,
    program: Option<RuntimeProgram>,
) -> Result<(Vec<LayerReport>, Vec<Layer>), PlanError> {
    let mut degraded = Vec::new();
    let mut reports = Layer::ALL.map(|layer| LayerReport {
        layer,
        enforcement: isolation::enforcement(policy.isolation.value, host, layer),
    });
    if booted {
        boot::weaken(&mut reports);
    }
    if let Some(program) = program {
        oci::weaken(&mut reports, program, policy);
    }
    // An OCI runtime reports none, whatever the host can.
    let can_report_denials = host.seccomp_notify || policy.isolation.value == Isolation::Oci;
    let mut missing: Vec<(&Sourced<Layer>, String)> = Vec::new();
    for required in &policy.require {
        let report = reports.iter().find(|report| report.layer == required.value);
        let why = report.and_then(|report| {
            needs_consent(required.value, &report.enforcement, can_report_denials)
        });
        let Some(why) = why else {
            continue;
        };
        if policy
            .allow_degraded
            .iter()
            .any(|allowed| allowed.value == required.value)
        {
            degraded.push(required.value);
        } else {
            missing.push((required, why.to_owned()));
        }
    }
    if let Some((required, why)) = missing.first() {
        return Err(PlanError::MissingLayer {
            layer: required.value,
            isolation: policy.isolation.value,
            origin: required.origin.to_string(),
            why: why.clone(),
            missing: missing.iter().map(|(layer, _)| layer.value).collect(),
        });
    }
    Ok((reports.to_vec(), degraded))
}

fn given_capabilities(policy: &Policy) -> Result<Vec<Item<Capability>>, PlanError> {
    let mut given = Vec::new();
    for wanted in &policy.capabilities {
        let refuse = |why: NoCapability| PlanError::Capability {
            name: wanted.value.clone(),
            origin: wanted.origin.to_string(),
            why,
        };
        let known =
            capabilities::find(&wanted.value).ok_or_else(|| refuse(NoCapability::Unknown))?;
        if !known.allowed {
            return Err(refuse(NoCapability::Refused(known.why)));
        }
        given.push(Item {
            what: Capability {
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
