//! Rules for tools: how sources merge, and what an untrusted source may still say.
//!
//! Trusted sources add to each other. An untrusted one becomes a layer of its own, which each call
//! must pass too: whatever it says, it can only take away.

use crate::Sourced;
use crate::narrow::Dropped;
use ironcage_tools::{
    ArgumentRules, McpServer, Pattern, RuleSet, ServerRules, ToolFlows, ToolPolicy, ToolRules,
};
use std::collections::BTreeMap;

/// What one source says.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct ToolsFragment {
    pub(crate) tools: Option<Sourced<RuleSet>>,
    pub(crate) servers: BTreeMap<String, Sourced<ServerRules>>,
    /// How servers are started.
    pub(crate) launches: BTreeMap<String, Sourced<McpServer>>,
    /// Whether it can only take away.
    pub(crate) narrowing: bool,
}

impl ToolsFragment {
    fn is_empty(&self) -> bool {
        self.tools.is_none() && self.servers.is_empty() && self.launches.is_empty()
    }

    fn rules(self) -> ToolRules {
        let servers = self.servers.into_iter();
        ToolRules {
            tools: self.tools.map(|tools| tools.value),
            servers: servers.map(|(name, rules)| (name, rules.value)).collect(),
        }
    }
}

/// Puts a fragment on top.
pub(crate) fn apply(policy: &mut ToolPolicy, mut fragment: ToolsFragment) {
    if fragment.is_empty() {
        return;
    }
    if fragment.narrowing {
        policy.narrowing.push(fragment.rules());
        return;
    }
    for (name, server) in std::mem::take(&mut fragment.launches) {
        policy.servers.insert(name, server.value);
    }
    let rules = fragment.rules();
    if let Some(tools) = rules.tools {
        add(policy.rules.tools.get_or_insert_default(), tools);
    }
    for (name, server) in rules.servers {
        let known = policy.rules.servers.entry(name).or_default();
        add(&mut known.tools, server.tools);
        append(&mut known.resources.resources, server.resources.resources);
        append(&mut known.resources.prompts, server.resources.prompts);
        known.flows.private.extend(server.flows.private);
        known.flows.untrusted.extend(server.flows.untrusted);
        known.flows.sends.extend(server.flows.sends);
        known.sampling = server.sampling.or(known.sampling);
        known.elicitation = server.elicitation.or(known.elicitation);
        known.roots = server.roots.or(known.roots);
        known.largest_result = server.largest_result.or(known.largest_result);
    }
}

fn append(list: &mut Option<Vec<Pattern>>, more: Option<Vec<Pattern>>) {
    if let Some(more) = more {
        list.get_or_insert_default().extend(more);
    }
}

fn add(known: &mut RuleSet, more: RuleSet) {
    append(&mut known.allow, more.allow);
    known.ask.extend(more.ask);
    known.deny.extend(more.deny);
    for entry in more.arguments {
        let mut all = known.arguments.iter_mut();
        match all.find(|own| own.tool == entry.tool) {
            Some(own) => own.arguments.extend(entry.arguments),
            None => known.arguments.push(entry),
        }
    }
}

/// Makes an untrusted fragment one that only takes away, and notes what it wanted beyond that.
pub(crate) fn narrow(base: &ToolPolicy, fragment: &mut ToolsFragment, dropped: &mut Dropped) {
    fragment.narrowing = true;
    for (name, server) in std::mem::take(&mut fragment.launches) {
        if base.servers.get(&name) != Some(&server.value) {
            dropped.note("mcp", format!("{name}: how the server is started"), &server);
        }
    }
    for (name, server) in &fragment.servers {
        let own = base.rules.servers.get(name);
        let known = own.and_then(|own| own.tools.allow.as_deref());
        let wanted = server.value.tools.allow.iter().flatten();
        let more: Vec<&str> = wanted
            .filter(|pattern| !covered(pattern, known.unwrap_or_default()))
            .map(Pattern::as_str)
            .collect();
        if !more.is_empty() {
            dropped.note(&format!("mcp.{name}.allow"), more.join(", "), server);
        }
    }
    // A section for a server that no trusted source knows says nothing.
    let known = |name: &String| base.rules.servers.contains_key(name);
    fragment.servers.retain(|name, _| known(name));
}

/// Whether everything that a pattern names is named by one of the others.
fn covered(pattern: &Pattern, others: &[Pattern]) -> bool {
    let mut others = others.iter();
    others.any(|other| other == pattern || other.matches(pattern.as_str()))
}

/// Whether `a` admits nothing that `b` does not. What cannot be compared counts as wider.
pub(crate) fn is_no_wider(a: &ToolPolicy, b: &ToolPolicy) -> bool {
    let layers = b.narrowing.iter().all(|layer| a.narrowing.contains(layer));
    let launches = a.servers.iter();
    let launches = launches
        .into_iter()
        .all(|(name, server)| b.servers.get(name) == Some(server));
    let tools = match (&a.rules.tools, &b.rules.tools) {
        (None, Some(_)) => false,
        (Some(a), Some(b)) => within(a, b),
        (_, None) => true,
    };
    let servers = a.rules.servers.iter().all(|(name, own)| {
        let outer = b.rules.servers.get(name);
        outer.is_some_and(|outer| server_within(own, outer))
    });
    // The tools of servers obey what `[tools]` denies, so both must hold.
    layers && launches && tools && servers
}

fn within(a: &RuleSet, b: &RuleSet) -> bool {
    let allow = b.allow.as_deref().unwrap_or_default();
    let admitted = |pattern: &Pattern| covered(pattern, allow);
    let asked = |pattern: &Pattern| covered(pattern, allow) || covered(pattern, &b.ask);
    let kept = |entry: &ArgumentRules| {
        let own = a.arguments.iter().find(|own| own.tool == entry.tool);
        own.is_some_and(|own| own.arguments == entry.arguments)
    };
    a.allow.iter().flatten().all(admitted)
        && a.ask.iter().all(asked)
        && b.deny.iter().all(|pattern| a.deny.contains(pattern))
        && b.ask
            .iter()
            .all(|pattern| a.ask.contains(pattern) || a.deny.contains(pattern))
        && b.arguments.iter().all(kept)
}

fn server_within(a: &ServerRules, b: &ServerRules) -> bool {
    let list = |a: &Option<Vec<Pattern>>, b: &Option<Vec<Pattern>>| {
        let outer = b.as_deref().unwrap_or_default();
        a.iter().flatten().all(|pattern| covered(pattern, outer))
    };
    let flag = |a: Option<bool>, b: Option<bool>| a.unwrap_or(false) <= b.unwrap_or(false);
    let size = match (a.largest_result, b.largest_result) {
        (_, None) => a.largest_result.is_none(),
        (Some(a), Some(b)) => a <= b,
        (None, Some(_)) => false,
    };
    // What is marked less is asked about less.
    let marked = |list: fn(&ToolFlows) -> &Vec<Pattern>| {
        list(&b.flows)
            .iter()
            .all(|pattern| list(&a.flows).contains(pattern))
    };
    within(&a.tools, &b.tools)
        && marked(|flows| &flows.private)
        && marked(|flows| &flows.untrusted)
        && marked(|flows| &flows.sends)
        && list(&a.resources.resources, &b.resources.resources)
        && list(&a.resources.prompts, &b.resources.prompts)
        && flag(a.sampling, b.sampling)
        && flag(a.elicitation, b.elicitation)
        && flag(a.roots, b.roots)
        && size
}
