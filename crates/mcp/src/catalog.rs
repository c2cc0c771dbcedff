//! The tools that the gateway shows, by the names under which it shows them.

use crate::error::McpError;
use crate::pins::{Kept, Lock, ServerPin, suspicions};
use crate::settings::Settings;
use ironcage_tools::McpServer;
use rmcp::model::Tool;
use std::collections::BTreeMap;

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
    pub(crate) kept: Option<Kept>,
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
            written |= lock.first_use(&one.name, one.launch.first_use, &one.pin, &found);
            for tool in &one.tools {
                let name = tool.name.to_string();
                let kept = lock.kept(&one.name, &one.pin, &name);
                let kept = match (kept, found.get(&name)) {
                    (Some(Kept::New), Some(why)) => Some(Kept::Suspicious(why.clone())),
                    (kept, _) => kept,
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
                if let Some(known) = entries.insert(key.clone(), entry) {
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
