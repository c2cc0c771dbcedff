//! The plan as text for a person: exactly what would be enforced, in order, with origins.

use crate::network::NetworkRule;
use crate::plan::{Access, AccessRights, IdMap, Item, NodeKind, Plan, ViewOp, WriteRights};
use crate::seccomp::{FilterRule, Refusal};
use ironcage_model::{Extent, Printable, Span};
use std::collections::BTreeMap;
use std::fmt::{self, Write as _};

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
    let rung = &plan.rung;
    writeln!(
        out,
        "isolation  {}  [{}]",
        rung.what.isolation,
        Printable::new(&rung.origin)
    )?;
    if let Some(runtime) = &rung.what.runtime {
        writeln!(out, "runtime    {}", Printable::new(&runtime.path))?;
    }
    writeln!(out, "command    {}", command.join(" "))?;
    writeln!(out, "directory  {}", Printable::new(&plan.command.cwd))?;
    for note in &plan.notes {
        writeln!(out, "note       {}", Printable::new(note))?;
    }
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
            "  {} protected names are not there; those that appear are reported at the end",
            plan.absent.len()
        )?;
    }
    section(
        out,
        "capabilities given back",
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
                WriteRights::Existing => "existing files of",
            };
            write!(line, "{rights} {}", Printable::new(&rule.path))
        },
    )?;
    first_lock(plan, out)?;
    network(plan, out)?;
    leases(plan, out)?;
    taint(plan, out)?;
    seccomp(plan, detail, out)?;
    writeln!(out, "\nlayers")?;
    for report in &plan.layers {
        writeln!(out, "  {:<14} {}", report.layer.name(), report.enforcement)?;
    }
    for layer in &plan.degraded {
        writeln!(out, "  degraded by explicit word: {layer}")?;
    }
    if !plan.unenforced.is_empty() {
        let title = "asked for by the policy, and not enforced";
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

/// What Landlock lets be opened where it is the first lock, and the cage's own directory.
fn first_lock(plan: &Plan, out: &mut String) -> fmt::Result {
    if let Some(scratch) = &plan.scratch {
        writeln!(
            out,
            "\nown directory, removed at the end ({} stands for the cage's id)\n  {}",
            crate::plan::CAGE,
            Printable::new(&scratch.path)
        )?;
    }
    if plan.access_rules.is_empty() {
        return Ok(());
    }
    let title = "landlock: nothing can be opened but";
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
    let title = "leases: what the running cage may be given";
    section(out, title, &leases.paths, |part, line| {
        let (mark, right) = (part.mark.name(), part.right.name());
        write!(line, "{mark:<5} {right:<6} {}", Printable::new(&part.path))
    })?;
    if leases.others.is_empty() {
        return Ok(());
    }
    let title = "leases: and beside files";
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
    let title = "taint: private data lies in";
    section(out, title, &marking.private, |place, line| {
        write!(line, "{}", Printable::new(&place.path))
    })?;
    let title = "taint: what these hosts serve is not trusted";
    section(out, title, &marking.untrusted, |untrusted, line| {
        write!(line, "{}", untrusted.host)
    })?;
    writeln!(out, "  from its start the cage has: {}", marking.start)?;
    writeln!(
        out,
        "  where both meet, leases by which something could leave are {}",
        match marking.ask {
            true => "asked for first",
            false => "given as the ceiling says",
        }
    )
}

fn network(plan: &Plan, out: &mut String) -> fmt::Result {
    let Some(network) = &plan.network else {
        return writeln!(out, "\nnetwork\n  none");
    };
    let rule = |rule: &NetworkRule, line: &mut String| write!(line, "{}", rule.rule);
    section(out, "network: goes out", &network.allow, rule)?;
    if network.live {
        writeln!(
            out,
            "  and what `ironcage net allow` allows while the cage runs"
        )?;
    }
    if !network.deny.is_empty() {
        section(out, "network: denied all the same", &network.deny, rule)?;
    }
    if !network.http.is_empty() {
        let title = "network: only these requests go out to their hosts, whose TLS is opened";
        section(out, title, &network.http, |http, line| {
            write!(line, "{}", http.rule)
        })?;
    }
    if let Some(models) = &network.models {
        let title = "network: models whose answers prepare leases, and whose TLS is opened for it";
        section(out, title, &models.hosts, |host, line| {
            write!(line, "{host}")
        })?;
    }
    if !network.secrets.is_empty() {
        let title = "network: secrets that the door puts on requests, and the cage never has";
        section(out, title, &network.secrets, |secret, line| {
            let rule = &secret.rule;
            let hosts: Vec<String> = rule.hosts.iter().map(ToString::to_string).collect();
            let from = rule.from.to_string();
            let from = Printable::new(&from);
            write!(line, "{} from {from} for {}", rule.name, hosts.join(", "))
        })?;
    }
    if let Some(keys) = &network.aws {
        let title =
            "network: requests that the door signs with keys of Amazon's, which the cage never has";
        section(out, title, std::slice::from_ref(keys), |keys, line| {
            let rule = &keys.rule;
            let hosts: Vec<String> = rule.hosts.iter().map(ToString::to_string).collect();
            let from = rule.from.to_string();
            let from = Printable::new(&from);
            write!(line, "keys from {from} for {}", hosts.join(", "))
        })?;
    }
    if !network.logins.is_empty() {
        let title = "network: logins that the door puts on requests, and the cage never has";
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
    if !network.host_ports.is_empty() {
        let title = "network: the host's own loopback, as host.ironcage";
        section(out, title, &network.host_ports, |port, line| {
            write!(line, "port {}", port.port)
        })?;
    }
    if !network.sockets.is_empty() {
        let title = "network: sockets of the host";
        section(out, title, &network.sockets, |socket, line| {
            write!(line, "{}", Printable::new(&socket.path))?;
            match socket.commands {
                Some(commands) => write!(line, ", which COMMANDS {commands}"),
                None => Ok(()),
            }
        })?;
    }
    if !network.publish.is_empty() {
        let title = "network: ports inside at the host's loopback";
        section(out, title, &network.publish, |port, line| {
            write!(line, "127.0.0.1:{} is {} inside", port.outer, port.inner)
        })?;
    }
    if !network.resolve.is_empty() {
        let title = "network: names with an address of their own";
        section(out, title, &network.resolve, |fixed, line| {
            write!(line, "{} is {}", fixed.name, fixed.address)
        })?;
    }
    Ok(())
}

fn identity(plan: &Plan, out: &mut String) -> fmt::Result {
    let outside = match plan.identity.map {
        IdMap::Own { uid, gid } => format!("user {uid}, group {gid} outside"),
        IdMap::Range { count } => {
            format!("a range of {count} ids outside that no other cage has")
        }
    };
    writeln!(
        out,
        "agent      user {}, group {} inside; {outside}",
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
        "processors at least {} in whole cores of its own{more}  [{}]",
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
                write!(line, " (user {} outside is the agent)", owner.uid)?;
            }
            Ok(())
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
                line.write_str(", changes in memory, at the end")?;
            } else {
                line.write_str(", changes")?;
            }
            write!(line, " to {}", Printable::new(upper))?;
            if let Some(owner) = owner {
                write!(line, " (user {} outside is the agent)", owner.uid)?;
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
        ViewOp::Terminals => line.write_str("terminals  /dev/pts"),
        ViewOp::Seal => line.write_str("seal       everything else is read-only"),
    }
}

fn bounds(plan: &Plan, out: &mut String) -> fmt::Result {
    let bounds = &plan.bounds;
    writeln!(out, "\nlimits")?;
    for (name, item, unit) in [
        ("memory", &bounds.memory, "bytes"),
        ("cpus", &bounds.cpu, "thousandths of a processor"),
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
        Refusal::Notify => "refused with EPERM and recorded",
        Refusal::Errno => "refused with EPERM",
    };
    writeln!(
        out,
        "\nsystem calls: {} named, {} instructions; the rest is {refusal}",
        rules.len(),
        plan.seccomp.program.len()
    )?;
    if plan.seccomp.one_exec {
        writeln!(out, "  execve is let through once, to start the command")?;
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
            verdict if verdict.starts_with("allow") => "allowed by their arguments",
            _ => "answered with an error, unseen",
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
    writeln!(out, "  --full names each, with its reason")
}
