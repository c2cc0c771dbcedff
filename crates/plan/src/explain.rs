//! The plan as text for a person: exactly what would be enforced, in order, with origins.

use crate::network::NetworkRule;
use crate::plan::{
    Access, AccessRights, IdMap, Item, NodeKind, Plan, SupervisorFile, ViewOp, WriteRights,
};
use crate::seccomp::{DefaultAction, FilterRule};
use ironcage_model::{Extent, Printable, Span};
use std::collections::BTreeMap;
use std::fmt::{self, Write as _};

/// Which values the egress proxy does not mask in answers.
pub const UNCOVERED_VALUES: &str = "in answers, values of 16 bytes or more are covered; shorter ones are not, \
     nor a value that takes more than 4 KiB as the answer writes it";

/// How much is told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Detail {
    /// System calls by number and by what is special; all else in full.
    Brief,
    /// Everything.
    Full,
}

/// Writes the plan as text. Everything that came from outside is shown escaped.
pub fn explain(plan: &Plan, detail: Detail) -> String {
    let mut text = String::new();
    // Writing to a string cannot fail.
    let _ = write_all(plan, detail, &mut text);
    text
}

fn write_all(plan: &Plan, detail: Detail, out: &mut String) -> fmt::Result {
    let command: Vec<String> = plan
        .command
        .argv
        .iter()
        .map(|word| Printable::new(word).to_string())
        .collect();
    writeln!(out, "plan {}", plan.digest())?;
    writeln!(out, "profile    {}", plan.profile)?;
    let level = &plan.isolation_level;
    writeln!(
        out,
        "isolation  {}  [{}]",
        level.what.isolation,
        Printable::new(&level.origin)
    )?;
    if let Some(runtime) = &level.what.runtime {
        writeln!(out, "runtime    {}", Printable::new(&runtime.path))?;
    }
    if let Some(machine) = &level.what.microvm {
        writeln!(
            out,
            "machine    {} ({}), {} MiB, kernel {}",
            Printable::new(&machine.qemu),
            machine.acceleration,
            machine.memory,
            Printable::new(&machine.kernel)
        )?;
        writeln!(out, "start      {}", machine.start)?;
    }
    writeln!(out, "command    {}", command.join(" "))?;
    writeln!(out, "directory  {}", Printable::new(&plan.command.cwd))?;
    for note in &plan.notes {
        writeln!(out, "note       {}", Printable::new(note))?;
    }
    boot(plan, out)?;
    identity(plan, out)?;
    section(out, "environment", &plan.command.env, |variable, line| {
        write!(
            line,
            "{}={}",
            Printable::new(&variable.name),
            Printable::new(&variable.value)
        )
    })?;
    section(out, "file view, in this order", &plan.view, view_op)?;
    if !plan.absent.is_empty() {
        writeln!(
            out,
            "  {} protected names do not exist; those that appear are reported at the end",
            plan.absent.len()
        )?;
    }
    section(
        out,
        "restored capabilities",
        &plan.capabilities,
        |capability, line| line.write_str(&capability.name),
    )?;
    section(out, "kernel counters", &plan.counters, |counter, line| {
        write!(line, "{} = {}", counter.name, counter.value)
    })?;
    bounds(plan, out)?;
    section(out, "rlimits", &plan.rlimits, |rlimit, line| {
        write!(line, "{:?} = {}", rlimit.resource, rlimit.value)
    })?;
    section(
        out,
        "landlock: writes only below",
        &plan.write_rules,
        |rule, line| {
            let rights = match rule.rights {
                WriteRights::Tree => "everything in",
                WriteRights::Existing => "existing files in",
            };
            write!(line, "{rights} {}", Printable::new(&rule.path))
        },
    )?;
    first_lock(plan, out)?;
    network(plan, out)?;
    signing(plan, out)?;
    leases(plan, out)?;
    taint(plan, out)?;
    seccomp(plan, detail, out)?;
    writeln!(out, "\nlayers")?;
    for report in &plan.layers {
        writeln!(out, "  {:<14} {}", report.layer.name(), report.enforcement)?;
    }
    for layer in &plan.degraded {
        writeln!(out, "  degraded because you allowed it: {layer}")?;
    }
    if !plan.unenforced.is_empty() {
        let title = "in the policy, but not enforced";
        section(out, title, &plan.unenforced, |item, line| {
            write!(
                line,
                "{:<10} {}",
                item.layer.name(),
                Printable::new(&item.what)
            )
        })?;
    }
    Ok(())
}

fn boot(plan: &Plan, out: &mut String) -> fmt::Result {
    let Some(boot) = &plan.boot else {
        return Ok(());
    };
    writeln!(
        out,
        "boot       the command is PID 1 of a PID namespace; signal {} shuts it down  [{}]",
        boot.what.stop_signal,
        Printable::new(&boot.origin)
    )?;
    match &boot.what.group {
        Some(group) => writeln!(out, "group      one below {}", Printable::new(group)),
        None => writeln!(out, "group      one below the cage's"),
    }
}

/// What Landlock lets be opened where it is the first lock, and the cage's own directory.
fn first_lock(plan: &Plan, out: &mut String) -> fmt::Result {
    if let Some(scratch) = &plan.scratch {
        writeln!(
            out,
            "\nthe cage's own directory, removed at the end ({} is the cage's ID)\n  {}",
            crate::plan::CAGE,
            Printable::new(&scratch.path)
        )?;
    }
    if plan.access_rules.is_empty() {
        return Ok(());
    }
    let title = "landlock: only these can be opened";
    section(out, title, &plan.access_rules, |rule, line| {
        let rights = match rule.rights {
            AccessRights::ReadTree | AccessRights::ReadFile => "read-only",
            AccessRights::WriteTree | AccessRights::WriteFile => "writable",
            AccessRights::Device => "device",
        };
        write!(line, "{rights:<10} {}", Printable::new(&rule.path))
    })
}

fn leases(plan: &Plan, out: &mut String) -> fmt::Result {
    let Some(leases) = &plan.leases else {
        return Ok(());
    };
    let title = "leases: paths that the running cage can get";
    section(out, title, &leases.paths, |part, line| {
        let (mark, right) = (part.mark.name(), part.right.name());
        write!(line, "{mark:<5} {right:<6} {}", Printable::new(&part.path))
    })?;
    if leases.others.is_empty() {
        return Ok(());
    }
    let title = "leases: other resources that the running cage can get";
    section(out, title, &leases.others, |part, line| {
        let kind = match &part.extent {
            Extent::Host(_) => "host ",
            Extent::Http(_) => "requests ",
            Extent::Secret(_) => "secret ",
            Extent::Socket(_) => "socket ",
            Extent::Port(_) => "port ",
            Extent::Limit { .. } => "",
            Extent::Syscalls(_) => "system calls ",
            Extent::Capability(_) => "capability ",
        };
        write!(line, "{:<5} {kind}{}", part.mark.name(), part.extent)
    })
}

fn taint(plan: &Plan, out: &mut String) -> fmt::Result {
    let Some(marking) = &plan.taint else {
        return Ok(());
    };
    let title = "taint: private data in";
    section(out, title, &marking.private, |place, line| {
        write!(line, "{}", Printable::new(&place.path))
    })?;
    let title = "taint: untrusted content from";
    section(out, title, &marking.untrusted, |untrusted, line| {
        write!(line, "{}", untrusted.host)
    })?;
    writeln!(out, "  the cage starts with: {}", marking.start)?;
    writeln!(
        out,
        "  with both, a lease through which data could leave {}",
        match marking.ask {
            true => "needs approval",
            false => "follows the ceiling",
        }
    )
}

fn signing(plan: &Plan, out: &mut String) -> fmt::Result {
    let Some(signing) = &plan.signing else {
        return Ok(());
    };
    let asked = match signing.confirm {
        Some(_) => ", and you are asked before each use",
        None => "",
    };
    if let Some(ssh) = &signing.ssh {
        let title = format!("keys of the ssh-agent, which stay outside{asked}");
        section(out, &title, &ssh.keys, |key, line| {
            write!(line, "{}", Printable::new(&key.name))?;
            for login in &key.logins {
                write!(line, " logs in to {}", Printable::new(&login.host))?;
            }
            match key.signs_commits {
                true => write!(line, " signs commits"),
                false => Ok(()),
            }
        })?;
    }
    if let Some(gpg) = &signing.gpg {
        let title = format!("keys of the gpg-agent, which stay outside{asked}");
        section(out, &title, &gpg.keys, |key, line| {
            let (name, print) = (Printable::new(&key.name), &key.fingerprint);
            write!(line, "{name} ({print}) signs documents")
        })?;
    }
    Ok(())
}

fn network(plan: &Plan, out: &mut String) -> fmt::Result {
    let Some(network) = &plan.network else {
        return writeln!(out, "\nnetwork\n  none");
    };
    let rule = |rule: &NetworkRule, line: &mut String| write!(line, "{}", rule.rule);
    section(out, "network: allowed hosts", &network.allow, rule)?;
    if network.live {
        writeln!(
            out,
            "  and hosts that `ironcage net allow` adds while the cage runs"
        )?;
    }
    if !network.deny.is_empty() {
        section(out, "network: denied hosts", &network.deny, rule)?;
    }
    if !network.http.is_empty() {
        let title = "network: hosts with request rules, with TLS interception";
        section(out, title, &network.http, |http, line| {
            write!(line, "{}", http.rule)
        })?;
    }
    if let Some(models) = &network.models {
        let title = "network: models whose responses prepare leases, with TLS interception";
        section(out, title, &models.hosts, |host, line| {
            write!(line, "{}", host.rule)
        })?;
    }
    if !network.secrets.is_empty() {
        let title =
            "network: secrets that the egress proxy adds to requests; the cage never has them";
        section(out, title, &network.secrets, |secret, line| {
            let rule = &secret.rule;
            let hosts = rule.host_texts();
            let from = rule.from.to_string();
            let from = Printable::new(&from);
            write!(line, "{} from {from} for {}", rule.name, hosts.join(", "))
        })?;
    }
    if let Some(keys) = &network.aws {
        let title =
            "network: AWS keys with which the egress proxy signs requests; the cage never has them";
        section(out, title, std::slice::from_ref(keys), |keys, line| {
            let rule = &keys.rule;
            let hosts: Vec<String> = rule.hosts.iter().map(ToString::to_string).collect();
            let from = rule.from.to_string();
            let from = Printable::new(&from);
            write!(line, "keys from {from} for {}", hosts.join(", "))?;
            match rule.credentials.as_slice() {
                [] => Ok(()),
                named => write!(
                    line,
                    ", and for {}, which HANDS OUT CREDENTIALS",
                    named.join(", ")
                ),
            }
        })?;
    }
    if !network.logins.is_empty() {
        let title =
            "network: logins that the egress proxy adds to requests; the cage never has them";
        section(out, title, &network.logins, |login, line| {
            let rule = &login.rule;
            let hosts: Vec<String> = rule.hosts.iter().map(ToString::to_string).collect();
            write!(
                line,
                "{} from {} for {}, renewed at {}",
                rule.name,
                Printable::new(&login.source),
                hosts.join(", "),
                rule.token_server
            )
        })?;
    }
    if network.has_secrets() {
        writeln!(out, "  {UNCOVERED_VALUES}")?;
    }
    if !network.host_ports.is_empty() {
        let title = "network: the host's own loopback, as host.ironcage";
        section(out, title, &network.host_ports, |port, line| {
            write!(line, "port {}", port.port)
        })?;
    }
    if !network.sockets.is_empty() {
        let title = "network: host sockets";
        section(out, title, &network.sockets, |socket, line| {
            write!(line, "{}", Printable::new(&socket.path))?;
            match &socket.commands {
                Some(commands) => write!(line, ", which CONTROLS {commands}"),
                None => Ok(()),
            }
        })?;
    }
    if !network.publish.is_empty() {
        let title = "network: ports published on the host's loopback";
        section(out, title, &network.publish, |port, line| {
            write!(line, "127.0.0.1:{} is {} inside", port.outer, port.inner)
        })?;
    }
    if let Some(upstream) = &network.upstream {
        let proxies: Vec<Item<String>> =
            [("TLS and TCP", &upstream.https), ("HTTP", &upstream.http)]
                .into_iter()
                .filter_map(|(carries, proxy)| {
                    let proxy = proxy.as_ref()?;
                    Some(Item {
                        what: format!("{carries} by {}", proxy.what.server),
                        origin: proxy.origin.clone(),
                    })
                })
                .collect();
        let title = "network: upstream proxies; the cage sees neither them nor their credentials";
        section(out, title, &proxies, |text, line| write!(line, "{text}"))?;
        if !upstream.no_proxy.is_empty() {
            let direct: Vec<String> = upstream.no_proxy.iter().map(ToString::to_string).collect();
            writeln!(out, "  not for {}", direct.join(", "))?;
        }
    }
    if !network.extra_authorities.is_empty() {
        writeln!(
            out,
            "\nnetwork: certificate authorities besides the system's"
        )?;
        for path in &network.extra_authorities {
            writeln!(out, "  {}", Printable::new(path))?;
        }
    }
    if !network.resolve.is_empty() {
        let title = "network: names with a fixed address";
        section(out, title, &network.resolve, |fixed, line| {
            write!(line, "{} is {}", fixed.name, fixed.address)
        })?;
    }
    Ok(())
}

fn identity(plan: &Plan, out: &mut String) -> fmt::Result {
    let outside = match plan.identity.map {
        IdMap::Own { uid, gid } => format!("user {uid}, group {gid} on the host"),
        IdMap::Range { count } => {
            format!("its own range of {count} ids on the host")
        }
    };
    writeln!(
        out,
        "agent      user {}, group {} in the cage; {outside}",
        plan.identity.uid, plan.identity.gid
    )?;
    writeln!(
        out,
        "host name  {}  [{}]",
        plan.hostname.what.name, plan.hostname.origin
    )?;
    let Some(hardening) = &plan.hardening else {
        return Ok(());
    };
    let more = match hardening.what.speculation {
        true => ", core scheduling, speculation controls",
        false => "",
    };
    writeln!(
        out,
        "CPUs       at least {}, in whole cores of its own{more}  [{}]",
        hardening.what.wanted, hardening.origin
    )
}

fn section<T>(
    out: &mut String,
    title: &str,
    items: &[Item<T>],
    show: impl Fn(&T, &mut String) -> fmt::Result,
) -> fmt::Result {
    writeln!(out, "\n{title}")?;
    if items.is_empty() {
        writeln!(out, "  none")?;
    }
    for item in items {
        let mut line = String::new();
        show(&item.what, &mut line)?;
        writeln!(out, "  {line:<56} [{}]", Printable::new(&item.origin))?;
    }
    Ok(())
}

fn view_op(op: &ViewOp, line: &mut String) -> fmt::Result {
    match op {
        ViewOp::Directory { target, mode, .. } => {
            write!(line, "directory  {} ({mode:o})", Printable::new(target))
        }
        ViewOp::Symlink { target, to } => write!(
            line,
            "link       {} -> {}",
            Printable::new(target),
            Printable::new(to)
        ),
        ViewOp::File { target, .. } => write!(line, "file       {}", Printable::new(target)),
        ViewOp::Authorities { target, .. } => {
            write!(line, "file       {} (authorities)", Printable::new(target))
        }
        ViewOp::Cover { target, with } => write!(
            line,
            "cover      {} with {}",
            Printable::new(target),
            Printable::new(with)
        ),
        ViewOp::Ephemeral { target, .. } => {
            write!(line, "ephemeral  {}", Printable::new(target))
        }
        ViewOp::Bind {
            source,
            target,
            access,
            kind,
            owner,
        } => {
            let word = match access {
                Access::Read => "read-only",
                Access::Write => "writable",
                Access::Device => "device",
            };
            write!(line, "{word:<10} {}", Printable::new(target))?;
            if source != target {
                write!(line, " from {}", Printable::new(source))?;
            }
            if let (Some(owner), NodeKind::Directory) = (owner, kind) {
                write!(line, " (host user {} is the agent)", owner.uid)?;
            }
            Ok(())
        }
        ViewOp::Supervisor { file, target } => {
            let file = match file {
                SupervisorFile::SocketProxy => "its socket proxy",
                SupervisorFile::RequestSocket => "the socket for permission requests",
                SupervisorFile::SshAgent => "the key filter before the ssh-agent",
                SupervisorFile::GpgAgent => "the key filter before the gpg-agent",
                SupervisorFile::GpgKeyring => "public keys of gpg",
                SupervisorFile::InsideProgram => "ironcage-inside",
                SupervisorFile::ReaderProgram => "ironcage-reader",
                SupervisorFile::WasmProgram => "ironcage-wasm",
            };
            write!(line, "read-only  {} from {file}", Printable::new(target))
        }
        ViewOp::Overlay {
            lower,
            target,
            upper,
            owner,
            memory,
            locked,
            ..
        } => {
            let kind = if *locked { "leased    " } else { "overlay   " };
            write!(line, "{kind} {}", Printable::new(target))?;
            if lower != target {
                write!(line, " of {}", Printable::new(lower))?;
            }
            if memory.is_some() {
                line.write_str(", changes in memory, saved at the end")?;
            } else {
                line.write_str(", changes")?;
            }
            write!(line, " to {}", Printable::new(upper))?;
            if let Some(owner) = owner {
                write!(line, " (host user {} is the agent)", owner.uid)?;
            }
            Ok(())
        }
        ViewOp::Pin {
            target,
            access: Access::Read,
        } => write!(line, "protect    {}", Printable::new(target)),
        ViewOp::Pin { target, .. } => write!(line, "pin        {}", Printable::new(target)),
        ViewOp::Hide { target, .. } => write!(line, "hide       {}", Printable::new(target)),
        ViewOp::Proc => line.write_str("processes  /proc"),
        ViewOp::MaskProc { target, .. } => write!(line, "mask       {}", Printable::new(target)),
        ViewOp::ReadOnlyProc { target } => {
            write!(line, "read-only  {}", Printable::new(target))
        }
        ViewOp::Cgroup => line.write_str("cgroup     /sys/fs/cgroup: the init's own group"),
        ViewOp::Terminals => line.write_str("terminals  /dev/pts"),
        ViewOp::Seal => line.write_str("seal       everything else is read-only"),
    }
}

fn bounds(plan: &Plan, out: &mut String) -> fmt::Result {
    let bounds = &plan.bounds;
    writeln!(out, "\nlimits")?;
    for (name, item, unit) in [
        ("memory", &bounds.memory, "bytes"),
        ("cpus", &bounds.cpu, "thousandths of a CPU"),
        ("pids", &bounds.pids, "processes and threads"),
        ("disk", &bounds.disk, "bytes"),
        ("inodes", &bounds.inodes, "files"),
        ("files", &bounds.files, "open descriptors"),
    ] {
        let line = format!("{name:<8} {} {unit}", item.what.value);
        writeln!(out, "  {line:<56} [{}]", item.origin)?;
    }
    for (name, item) in [("time", &bounds.time), ("idle", &bounds.idle)] {
        let value = match item.what.value {
            Some(duration) => {
                Span(u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)).to_string()
            }
            None => "none".into(),
        };
        let line = format!("{name:<8} {value}");
        writeln!(out, "  {line:<56} [{}]", item.origin)?;
    }
    Ok(())
}

fn seccomp(plan: &Plan, detail: Detail, out: &mut String) -> fmt::Result {
    let rules = plan.seccomp.rules();
    let refusal = match plan.seccomp.refusal {
        DefaultAction::Notify => "denied with EPERM and logged",
        DefaultAction::Errno => "denied with EPERM",
    };
    writeln!(
        out,
        "\nsystem calls: {} listed, {} instructions; all others are {refusal}",
        rules.len(),
        plan.seccomp.program.len()
    )?;
    if plan.seccomp.one_exec {
        writeln!(out, "  execve is allowed once, to start the command")?;
    }
    if detail == Detail::Brief {
        return seccomp_in_brief(&rules, out);
    }
    for rule in &rules {
        let line = format!("{:<24} {}", rule.syscall, rule.verdict);
        writeln!(out, "  {line:<56} [{}: {}]", rule.origin, rule.why)?;
    }
    Ok(())
}

/// Rules by what they say and where they come from, the simple ones by number alone.
fn seccomp_in_brief(rules: &[FilterRule], out: &mut String) -> fmt::Result {
    let mut sorted: BTreeMap<(&str, &str), Vec<&str>> = BTreeMap::new();
    for rule in rules {
        let kind = match rule.verdict.as_str() {
            "allow" => "allowed",
            verdict if verdict.starts_with("allow") => "allowed with certain arguments",
            _ => "answered with an error, not logged",
        };
        let names = sorted.entry((&rule.origin, kind)).or_default();
        names.push(rule.syscall);
    }
    for ((origin, kind), names) in &sorted {
        let line = match *kind {
            "allowed" => format!("{} {kind}", names.len()),
            _ => format!("{} {kind}: {}", names.len(), names.join(" ")),
        };
        writeln!(out, "  {line:<56} [{origin}]")?;
    }
    writeln!(out, "  --full lists each call with its reason")
}
