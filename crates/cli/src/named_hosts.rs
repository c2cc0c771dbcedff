//! Hosts that a command names, with the port that it connects to, and where names lead that no DNS
//! server is asked for: a denied lookup has the name alone.
//!
//! The command is read outside the cage and only for the user, who is told one flag that is enough.

use crate::cage_flags::PlannedCage;
use crate::hidden_files;
use ironcage_files::Links;
use ironcage_intent::{Destination, Needs, Unknown, Unsure};
use ironcage_model::{HostName, HostRule, Ports, special};
use std::net::IpAddr;
use std::path::Path;

/// Longest file of names that is read.
const LONGEST: u64 = 1 << 20;

/// Hosts of a run, as its command and its policy have them.
#[derive(Debug, Default)]
pub(crate) struct NamedHosts {
    rules: Vec<HostRule>,
    /// Names with an address of their own, from the policy and from the host's file of names.
    fixed: Vec<(String, IpAddr)>,
}

impl NamedHosts {
    /// Those of the command of a run.
    pub(crate) fn of_run(run: &PlannedCage) -> Self {
        let plan = &run.plan;
        let words = plan.command.argv.iter();
        let words: Vec<String> = words
            .map(|word| word.to_string_lossy().into_owned())
            .collect();
        let mut named = Self::of_command(&words, &plan.command.cwd, &plan.workspace, &run.home);
        // The policy's come first: they are what the cage is given.
        let fixed = run.resolved.policy.network.resolve.iter();
        let fixed = fixed.map(|fixed| (fixed.value.name.to_string(), fixed.value.address));
        named.fixed.splice(0..0, fixed);
        named
    }

    /// Those of a command that began in `cwd`.
    pub(crate) fn of_command(
        command: &[String],
        cwd: &Path,
        workspace: &Path,
        home: &Path,
    ) -> Self {
        let mut needs = hidden_files::needs(command, cwd, home).unwrap_or_default();
        // Something in it was not read, such as another port than the usual one (`ssh -p`).
        let unread = |unknown: &Unknown| unknown.what == Unsure::Everything;
        if needs.unknown.iter().any(unread) {
            needs.destinations.clear();
        }
        let names = ironcage_files::read_text(Path::new("/etc/hosts"), LONGEST, Links::Follow);
        NamedHosts {
            rules: rules(&needs, workspace),
            fixed: in_hosts_file(&names.unwrap_or_default()),
        }
    }

    /// The port to which the command connects at a host, unless that is one of the web's, which
    /// rules allow anyway.
    pub(crate) fn port_of(&self, host: &str) -> Option<u16> {
        let name = HostName::from_ascii(host.as_bytes()).ok()?;
        let mut rules = self.rules.iter().filter(|rule| rule.knows(&name));
        let web = |rule: &&HostRule| Ports::Web.contains(rule_port(rule).unwrap_or(80));
        match rules.clone().any(|rule| web(&rule)) {
            true => None,
            false => rules.find_map(rule_port),
        }
    }

    /// The special address that a name leads to, which a rule for the name alone does not allow.
    pub(crate) fn leads_to(&self, host: &str) -> Option<IpAddr> {
        let mut fixed = self.fixed.iter();
        let (_, address) = fixed.find(|(name, _)| name.eq_ignore_ascii_case(host))?;
        special(*address).map(|_| *address)
    }
}

fn rule_port(rule: &HostRule) -> Option<u16> {
    match rule.ports {
        Ports::One(port) => Some(port),
        Ports::Web | Ports::Any => None,
    }
}

/// Where a command connects to, as rules that name one host each.
fn rules(needs: &Needs, workspace: &Path) -> Vec<HostRule> {
    let mut rules = Vec::new();
    for destination in &needs.destinations {
        match destination {
            Destination::Host { .. } => rules.extend(destination.to_string().parse()),
            Destination::Remote(name) => {
                rules.extend(ironcage_supervisor::remote_hosts(workspace, name));
            }
            Destination::Bundle(_) => {}
        }
    }
    rules
}

/// The names of a file such as /etc/hosts, each with its address.
fn in_hosts_file(names: &str) -> Vec<(String, IpAddr)> {
    let lines = names.lines();
    let lines = lines.map(|line| line.split('#').next().unwrap_or_default());
    lines
        .filter_map(|line| {
            let mut words = line.split_ascii_whitespace();
            let address: IpAddr = words.next()?.parse().ok()?;
            Some(words.map(move |name| (name.to_owned(), address)))
        })
        .flatten()
        .collect()
}

#[cfg(test)]
impl NamedHosts {
    /// Of these rules, and this file of names.
    pub(crate) fn made_of(rules: &[&str], names: &str) -> Self {
        NamedHosts {
            rules: rules.iter().map(|rule| rule.parse().unwrap()).collect(),
            fixed: in_hosts_file(names),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(command: &[&str]) -> NamedHosts {
        let words: Vec<String> = command.iter().map(|word| (*word).to_owned()).collect();
        let nowhere = Path::new("/nonexistent");
        NamedHosts::of_command(&words, nowhere, nowhere, nowhere)
    }

    #[test]
    fn the_port_is_the_one_that_the_command_connects_to() {
        for (command, port) in [
            (&["curl", "http://dev.example:3000/x"][..], Some(3000)),
            (&["ssh", "git@dev.example"], Some(22)),
            (&["git", "clone", "git@dev.example:a/b.git"], Some(22)),
            (&["sh", "-c", "cd x; psql -h dev.example db"], Some(5432)),
            (&["ssh", "-p", "2222", "dev.example"], None),
            (&["curl", "https://dev.example/"], None),
            (&["curl", "http://other.example:3000/"], None),
            (
                &["sh", "-c", "curl https://dev.example; ssh dev.example"],
                None,
            ),
        ] {
            assert_eq!(of(command).port_of("dev.example"), port, "{command:?}");
        }
    }

    #[test]
    fn a_name_of_the_hosts_own_file_needs_its_address_too() {
        let names = "127.0.0.1 localhost\n10.0.0.9 git.test Box # work\n93.184.216.34 far.test\n";
        let named = NamedHosts::made_of(&[], names);
        let led = |name| named.leads_to(name).map(|address| address.to_string());
        assert_eq!(led("git.test").as_deref(), Some("10.0.0.9"));
        assert_eq!(led("box").as_deref(), Some("10.0.0.9"));
        assert_eq!(led("far.test"), None, "the name alone is enough");
        assert_eq!(led("work"), None);
    }
}
