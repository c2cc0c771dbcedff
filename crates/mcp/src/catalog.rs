//! The tools that the gateway shows, by the names under which it shows them.

use crate::error::McpError;
use crate::pins::{Lock, QuarantineReason, ServerPin, suspicions};
use crate::settings::Settings;
use ironcage_tools::McpServer;
use rmcp::model::Tool;
use std::collections::{BTreeMap, BTreeSet};

/// Between the name of a server and that of its tool. Names of servers have no underscore.
const BETWEEN: &str = "__";

/// What one server has.
#[derive(Debug, Clone)]
pub(crate) struct Described {
    pub(crate) name: String,
    pub(crate) launch: McpServer,
    pub(crate) pin: ServerPin,
    pub(crate) tools: Vec<Tool>,
}

#[derive(Debug, Clone)]
pub(crate) struct Entry {
    pub(crate) server: String,
    /// As the server calls it.
    pub(crate) tool: String,
    pub(crate) pin: String,
    pub(crate) kept: Option<QuarantineReason>,
    /// As the client sees it.
    pub(crate) shown: Tool,
}

#[derive(Debug, Clone, Default)]
pub(crate) struct Catalog {
    entries: BTreeMap<String, Entry>,
}

impl Catalog {
    /// Puts together what the servers have. `single`: under the names that the server gives.
    pub(crate) fn make(
        settings: &Settings,
        described: &[Described],
        single: bool,
    ) -> Result<Self, McpError> {
        let names: Vec<(String, String)> = described
            .iter()
            .flat_map(|one| {
                one.tools
                    .iter()
                    .map(|tool| (one.name.clone(), tool.name.to_string()))
            })
            .collect();
        let mut lock = Lock::read(settings)?;
        // A tool may not pass for one of a server that does not run now, either.
        let known = lock.servers.iter().filter(|(name, _)| {
            let running = described.iter().any(|one| one.name == **name);
            !running
        });
        let known = known.flat_map(|(name, pin)| {
            let tools = pin.tools.keys();
            tools.map(|tool| (name.clone(), tool.clone()))
        });
        let names: Vec<(String, String)> = names.into_iter().chain(known).collect();
        let mut written = false;
        let mut entries: BTreeMap<String, Entry> = BTreeMap::new();
        for one in described {
            let found: BTreeMap<String, String> = one
                .tools
                .iter()
                .filter_map(|tool| {
                    Some((tool.name.to_string(), suspicions(tool, &one.name, &names)?))
                })
                .collect();
            let twice = twice(&one.tools);
            if twice.is_none() {
                written |= lock.first_use(&one.name, one.launch.first_use, &one.pin, &found);
            }
            for tool in &one.tools {
                let name = tool.name.to_string();
                let kept = lock.quarantine(&one.name, &one.pin, &name);
                let kept = match (kept, found.get(&name)) {
                    (Some(QuarantineReason::New), Some(why)) => {
                        Some(QuarantineReason::Suspicious(why.clone()))
                    }
                    (kept, _) => kept,
                };
                let kept = match twice {
                    Some(name) => Some(QuarantineReason::Twice(name.to_owned())),
                    None => kept,
                };
                let key = match single {
                    true => name.clone(),
                    false => format!("{}{BETWEEN}{name}", one.name),
                };
                let mut shown = tool.clone();
                shown.name = key.clone().into();
                let hash = one.pin.tools.get(&name).map(|pin| pin.hash.clone());
                let entry = Entry {
                    server: one.name.clone(),
                    tool: name,
                    pin: hash.unwrap_or_default(),
                    kept,
                    shown,
                };
                if let Some(known) = entries.insert(key.clone(), entry)
                    && known.server != one.name
                {
                    return Err(McpError::Collision {
                        what: "tool",
                        name: key,
                        first: known.server,
                        second: one.name.clone(),
                    });
                }
            }
        }
        if written {
            lock.write(settings)?;
        }
        Ok(Catalog { entries })
    }

    pub(crate) fn find(&self, name: &str) -> Option<&Entry> {
        self.entries.get(name)
    }

    /// What is shown to a client: what the policy lists, and nothing that is kept back.
    pub(crate) fn shown(&self, settings: &Settings) -> Vec<Tool> {
        let entries = self.entries.values();
        entries
            .filter(|entry| entry.kept.is_none())
            .filter(|entry| settings.policy.lists(&entry.server, &entry.tool))
            .map(|entry| entry.shown.clone())
            .collect()
    }

    /// What is kept back although the policy lists it.
    pub(crate) fn kept<'a>(&'a self, settings: &'a Settings) -> impl Iterator<Item = &'a Entry> {
        let entries = self.entries.values();
        entries.filter(|entry| {
            entry.kept.is_some() && settings.policy.lists(&entry.server, &entry.tool)
        })
    }
}

/// A name that two tools of a server have: which of them a call would reach is not known.
fn twice(tools: &[Tool]) -> Option<&str> {
    let mut seen = BTreeSet::new();
    let mut names = tools.iter().map(|tool| &*tool.name);
    names.find(|name| !seen.insert(*name))
}

#[cfg(test)]
mod tests {
    use super::*;
    use ironcage_tools::{FirstUse, ToolPolicy};
    use std::path::Path;
    use std::sync::Arc;

    fn settings(state: &Path) -> Settings {
        Settings {
            state: state.to_owned(),
            workspace: "/w".into(),
            ironcage: "/ironcage".into(),
            policy: Arc::new(ToolPolicy::default()),
        }
    }

    fn described(name: &str, tools: &[&str], first_use: FirstUse) -> Described {
        let tools: Vec<Tool> = tools
            .iter()
            .map(|tool| Tool::new((*tool).to_owned(), "", Arc::default()))
            .collect();
        let pins = tools
            .iter()
            .map(|tool| (tool.name.to_string(), crate::pins::ToolPin::of(tool)));
        Described {
            name: name.to_owned(),
            launch: McpServer {
                first_use,
                ..McpServer::default()
            },
            pin: ServerPin {
                launch: "l".to_owned(),
                instructions: None,
                tools: pins.collect(),
            },
            tools,
        }
    }

    #[test]
    fn a_name_twice_keeps_back_that_server_only() {
        let directory = tempfile::tempdir().unwrap();
        let settings = settings(directory.path());
        let servers = [
            described("a", &["read", "read", "list"], FirstUse::Pin),
            described("b", &["send"], FirstUse::Pin),
        ];
        let catalog = Catalog::make(&settings, &servers, false).unwrap();
        let kept = |name: &str| catalog.find(name).unwrap().kept.clone();
        let twice = Some(QuarantineReason::Twice("read".to_owned()));
        assert_eq!((kept("a__read"), kept("a__list")), (twice.clone(), twice));
        assert_eq!(kept("b__send"), None);
    }

    #[test]
    fn a_tool_named_as_one_of_a_server_that_does_not_run_is_suspicious() {
        let directory = tempfile::tempdir().unwrap();
        let settings = settings(directory.path());
        let first = [described("a", &["send"], FirstUse::Pin)];
        Catalog::make(&settings, &first, false).unwrap();
        let second = [described("b", &["send", "other"], FirstUse::Pin)];
        let catalog = Catalog::make(&settings, &second, false).unwrap();
        let kept = |name: &str| catalog.find(name).unwrap().kept.clone();
        assert!(matches!(
            kept("b__send"),
            Some(QuarantineReason::Suspicious(_))
        ));
        assert_eq!(kept("b__other"), None);
    }
}
