//! The decision about one call.

use crate::argument;
use crate::constraint::Otherwise;
use crate::look::is_plain_name;
use crate::pattern::Pattern;
use crate::rules::{RuleSet, ServerRules, ToolPolicy, ToolRules};
use ironcage_model::ToolReason;
use serde_json::Value;
use std::path::Path;

/// A call of a tool.
#[derive(Debug, Clone, Copy)]
pub struct Call<'a> {
    /// The MCP server whose tool it is.
    pub server: Option<&'a str>,
    pub tool: &'a str,
    pub arguments: &'a Value,
    /// Where relative paths begin.
    pub cwd: Option<&'a Path>,
}

impl<'a> Call<'a> {
    /// The call of a tool by the name that a model uses: `mcp__SERVER__TOOL` is a server's.
    pub fn named(name: &'a str, arguments: &'a Value, cwd: Option<&'a Path>) -> Self {
        let (server, tool) = match name
            .strip_prefix("mcp__")
            .and_then(|rest| rest.split_once("__"))
        {
            Some((server, tool)) => (Some(server), tool),
            None => (None, name),
        };
        Call {
            server,
            tool,
            arguments,
            cwd,
        }
    }
}

/// What becomes of a call. A later one is worse.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Decision {
    Allow,
    /// A person decides.
    Ask(ToolReason),
    Deny(ToolReason),
}

impl Decision {
    fn rank(&self) -> u8 {
        match self {
            Decision::Allow => 0,
            Decision::Ask(_) => 1,
            Decision::Deny(_) => 2,
        }
    }

    /// The worse of two, the first where they are alike.
    fn and(self, other: Decision) -> Decision {
        match other.rank() > self.rank() {
            true => other,
            false => self,
        }
    }

    /// Whether it is no wider than another.
    pub fn is_within(&self, other: &Decision) -> bool {
        self.rank() >= other.rank()
    }

    /// Why it is not simply allowed.
    pub fn reason(&self) -> Option<&ToolReason> {
        match self {
            Decision::Allow => None,
            Decision::Ask(reason) | Decision::Deny(reason) => Some(reason),
        }
    }
}

/// A decision and the rule that it follows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Verdict {
    pub decision: Decision,
    /// Such as `mcp.files.allow: read_*`. Empty where no rule is about it.
    pub rule: String,
}

impl Verdict {
    fn of(decision: Decision, rule: String) -> Self {
        Verdict { decision, rule }
    }

    fn and(self, other: Verdict) -> Verdict {
        match other.decision.rank() > self.decision.rank() {
            true => other,
            false => self,
        }
    }
}

/// Whether a layer gives, or only takes away.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Layer {
    Base,
    Narrowing,
}

impl ToolPolicy {
    fn layers(&self) -> impl Iterator<Item = (Layer, &ToolRules)> {
        let narrowing = self.narrowing.iter().map(|rules| (Layer::Narrowing, rules));
        std::iter::once((Layer::Base, &self.rules)).chain(narrowing)
    }

    /// Decides about a call: every layer must admit it.
    pub fn decide(&self, call: &Call<'_>) -> Verdict {
        let tool = call.tool;
        if !is_plain_name(tool) || call.server.is_some_and(|server| !is_plain_name(server)) {
            let tool = crate::one_line(tool);
            let decision = Decision::Deny(ToolReason::NameAmbiguous { tool });
            return Verdict::of(decision, String::new());
        }
        let start = Verdict::of(Decision::Allow, String::new());
        let mut verdict: Option<Verdict> = None;
        for (layer, rules) in self.layers() {
            let found = in_layer(layer, rules, call);
            verdict = Some(match verdict {
                Some(verdict) => verdict.and(found),
                None => found,
            });
        }
        verdict.unwrap_or(start)
    }

    /// Why a call outside of the gateway is not made, and the rule: there nobody can be asked about one. Without rules for
    /// tools, only what the cage may do limits them.
    pub fn refusal(&self, call: &Call<'_>) -> Option<(ToolReason, String)> {
        if !self.has_tools() && call.server.is_none() {
            return None;
        }
        let verdict = self.decide(call);
        match verdict.decision {
            Decision::Allow => None,
            Decision::Ask(reason) | Decision::Deny(reason) => Some((reason, verdict.rule)),
        }
    }

    /// Whether a tool is in lists: some call of it may be allowed.
    pub fn lists(&self, server: &str, tool: &str) -> bool {
        if !is_plain_name(tool) {
            return false;
        }
        let call = Call {
            server: Some(server),
            tool,
            arguments: &Value::Null,
            cwd: None,
        };
        self.layers()
            .all(|(layer, rules)| by_name(layer, rules, &call).decision.rank() < 2)
    }

    /// Whether a resource may be read.
    pub fn resource(&self, server: &str, uri: &str) -> Verdict {
        let reason = ToolReason::ResourceNotAllowed {
            server: server.to_owned(),
            uri: crate::one_line(uri),
        };
        // Whatever could be read as another path is not compared.
        let tricks = uri.contains("..") || uri.contains('\\') || !crate::findings(uri).is_empty();
        let encoded = uri.to_ascii_lowercase();
        if tricks || encoded.contains("%2e") || encoded.contains("%2f") {
            return Verdict::of(Decision::Deny(reason), String::new());
        }
        self.named(server, "resources", uri, reason, |rules| {
            rules.resources.resources.as_ref()
        })
    }

    /// Whether a prompt may be fetched.
    pub fn prompt(&self, server: &str, name: &str) -> Verdict {
        let reason = ToolReason::PromptNotAllowed {
            server: server.to_owned(),
            prompt: crate::one_line(name),
        };
        self.named(server, "prompts", name, reason, |rules| {
            rules.resources.prompts.as_ref()
        })
    }

    fn named(
        &self,
        server: &str,
        key: &str,
        name: &str,
        reason: ToolReason,
        list: impl Fn(&ServerRules) -> Option<&Vec<Pattern>>,
    ) -> Verdict {
        let mut rule = String::new();
        for (layer, rules) in self.layers() {
            let found = rules.servers.get(server).and_then(&list);
            let hit = match (found, layer) {
                (Some(patterns), _) => patterns.iter().find(|pattern| pattern.matches(name)),
                (None, Layer::Narrowing) => continue,
                (None, Layer::Base) => None,
            };
            match hit {
                Some(pattern) if rule.is_empty() => rule = format!("mcp.{server}.{key}: {pattern}"),
                Some(_) => {}
                None => return Verdict::of(Decision::Deny(reason), format!("mcp.{server}.{key}")),
            }
        }
        Verdict::of(Decision::Allow, rule)
    }

    /// Whether a server may do what every layer must say `true` to.
    pub fn may(&self, server: &str, what: impl Fn(&ServerRules) -> Option<bool>) -> bool {
        self.layers().all(|(layer, rules)| {
            let said = rules.servers.get(server).and_then(&what);
            said.unwrap_or(layer == Layer::Narrowing)
        })
    }

    /// The largest result that a server may answer with, in bytes.
    pub fn largest_result(&self, server: &str) -> Option<u64> {
        let limits = self.layers();
        limits
            .filter_map(|(_, rules)| rules.servers.get(server)?.largest_result)
            .min()
    }
}

fn in_layer(layer: Layer, rules: &ToolRules, call: &Call<'_>) -> Verdict {
    let mut verdict = by_name(layer, rules, call);
    if verdict.decision.rank() == 2 {
        return verdict;
    }
    let full = full_name(call);
    let own = call.server.and_then(|server| {
        let rules = rules.servers.get(server)?;
        Some((format!("mcp.{server}"), &rules.tools, call.tool))
    });
    let all = rules.tools.as_ref();
    let all = all.map(|rules| ("tools".to_owned(), rules, full.as_str()));
    for (section, rules, name) in own.into_iter().chain(all) {
        for entry in rules.arguments.iter().filter(|e| e.tool.matches(name)) {
            let found = argument::unmet(&entry.arguments, call.tool, call.arguments, call.cwd);
            let Some((otherwise, reason)) = found else {
                continue;
            };
            let decision = match otherwise {
                Otherwise::Ask => Decision::Ask(reason),
                Otherwise::Deny => Decision::Deny(reason),
            };
            let rule = format!("{section}.arguments.{}", entry.tool);
            verdict = verdict.and(Verdict::of(decision, rule));
        }
    }
    verdict
}

/// The name by which models call it.
fn full_name(call: &Call<'_>) -> String {
    match call.server {
        Some(server) => format!("mcp__{server}__{}", call.tool),
        None => call.tool.to_owned(),
    }
}

fn by_name(layer: Layer, rules: &ToolRules, call: &Call<'_>) -> Verdict {
    let full = full_name(call);
    let own = match call.server {
        Some(server) => rules.servers.get(server).map(|rules| &rules.tools),
        None => rules.tools.as_ref(),
    };
    let section = match call.server {
        Some(server) => format!("mcp.{server}"),
        None => "tools".to_owned(),
    };
    let mut verdict = match (own, layer) {
        (Some(rules), layer) => by_list(layer, rules, &section, call.tool, call.tool),
        (None, Layer::Narrowing) => Verdict::of(Decision::Allow, String::new()),
        // Without rules for tools, what the cage may do is the only limit.
        (None, Layer::Base) if call.server.is_none() => Verdict::of(Decision::Allow, String::new()),
        (None, Layer::Base) => {
            let tool = call.tool.to_owned();
            Verdict::of(Decision::Deny(ToolReason::NotListed { tool }), section)
        }
    };
    // What `[tools]` denies or asks about holds for the tools of servers too.
    if let (Some(_), Some(all)) = (call.server, &rules.tools) {
        let only = RuleSet {
            allow: None,
            ..all.clone()
        };
        let found = by_list(Layer::Narrowing, &only, "tools", &full, call.tool);
        verdict = Verdict::of(
            verdict.decision.clone().and(found.decision.clone()),
            match found.decision.rank() > verdict.decision.rank() {
                true => found.rule,
                false => verdict.rule,
            },
        );
    }
    verdict
}

fn by_list(layer: Layer, rules: &RuleSet, section: &str, name: &str, tool: &str) -> Verdict {
    let hit = |list: &[Pattern]| list.iter().find(|pattern| pattern.matches(name)).cloned();
    let tool = tool.to_owned();
    if let Some(pattern) = hit(&rules.deny) {
        let rule = format!("{section}.deny: {pattern}");
        return Verdict::of(Decision::Deny(ToolReason::Denied { tool }), rule);
    }
    if let Some(pattern) = hit(&rules.ask) {
        let rule = format!("{section}.ask: {pattern}");
        return Verdict::of(Decision::Ask(ToolReason::ApprovalRequired { tool }), rule);
    }
    match &rules.allow {
        Some(allow) => match hit(allow) {
            Some(pattern) => Verdict::of(Decision::Allow, format!("{section}.allow: {pattern}")),
            None => Verdict::of(
                Decision::Deny(ToolReason::NotListed { tool }),
                format!("{section}.allow"),
            ),
        },
        None if layer == Layer::Narrowing => Verdict::of(Decision::Allow, String::new()),
        None => Verdict::of(
            Decision::Deny(ToolReason::NotListed { tool }),
            section.to_owned(),
        ),
    }
}
