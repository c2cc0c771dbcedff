//! The `[tools]` and `[mcp.SERVER]` sections of one source.

use super::Check;
use crate::quantity::Size;
use crate::tool_rules::ToolsFragment;
use crate::tool_sections::{ArgumentsSection, ConstraintSection, McpSection, ToolsSection};
use crate::{Diagnostic, PolicyFile, WorkspaceMode, network, profiles};
use ironcage_tools::{
    ArgumentRules, CallLease, Constraint, FirstUse, Matcher, McpServer, Numbers, Otherwise,
    Pattern, Resources, RuleSet, Schema, ServerRules, SqlClass, ToolFlows,
};
use std::collections::BTreeMap;
use toml::Spanned;

/// Longest name of a server: clients limit the names of tools.
const LONGEST_NAME: usize = 32;

impl Check<'_> {
    pub(super) fn tools(&self, file: &PolicyFile) -> Result<ToolsFragment, Diagnostic> {
        let mut fragment = ToolsFragment::default();
        if let Some(section) = &file.tools {
            let rules = self.tool_rules(section.get_ref())?;
            fragment.tools = Some(self.sourced(rules, section.span()));
        }
        for (name, section) in &file.mcp {
            let plain =
                |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
            let text = name.get_ref();
            if text.is_empty() || text.len() > LONGEST_NAME || !text.bytes().all(plain) {
                return Err(self
                    .wrong(name, format!("invalid server name `{text}`"), "not a name")
                    .remedy("use at most 32 lowercase letters, digits and hyphens"));
            }
            let rules = self.server_rules(section)?;
            fragment
                .servers
                .insert(text.clone(), self.sourced(rules, name.span()));
            if let Some(server) = self.server(name, section)? {
                fragment
                    .launches
                    .insert(text.clone(), self.sourced(server, name.span()));
            }
        }
        Ok(fragment)
    }

    fn tool_rules(&self, section: &ToolsSection) -> Result<RuleSet, Diagnostic> {
        Ok(RuleSet {
            allow: self.optional(&section.allow)?,
            ask: self.patterns(&section.ask)?,
            deny: self.patterns(&section.deny)?,
            arguments: self.arguments(&section.arguments)?,
        })
    }

    fn server_rules(&self, section: &McpSection) -> Result<ServerRules, Diagnostic> {
        let value = |said: &Option<Spanned<bool>>| said.as_ref().map(|said| *said.get_ref());
        let largest: Option<crate::Sourced<Size>> =
            self.one(&section.largest_result, Self::quantity)?;
        Ok(ServerRules {
            tools: RuleSet {
                allow: self.optional(&section.allow)?,
                ask: self.patterns(&section.ask)?,
                deny: self.patterns(&section.deny)?,
                arguments: self.arguments(&section.arguments)?,
            },
            resources: Resources {
                resources: self.optional(&section.resources)?,
                prompts: self.optional(&section.prompts)?,
            },
            flows: ToolFlows {
                private: self.patterns(&section.private)?,
                untrusted: self.patterns(&section.untrusted)?,
                sends: self.patterns(&section.sends)?,
            },
            sampling: value(&section.sampling),
            elicitation: value(&section.elicitation),
            roots: value(&section.roots),
            largest_result: largest.map(|size| size.value.0),
        })
    }

    /// How the server is started, if the section says so.
    fn server(
        &self,
        name: &Spanned<String>,
        section: &McpSection,
    ) -> Result<Option<McpServer>, Diagnostic> {
        let text =
            |said: &Option<Spanned<String>>| said.as_ref().map(|said| said.get_ref().clone());
        let path = |said: &Option<Spanned<String>>| {
            let said = said.as_ref();
            said.map(|said| self.path(said)).transpose()
        };
        if let Some(mode) = &section.workspace_mode {
            let names = WorkspaceMode::ALL.map(WorkspaceMode::name);
            self.name_of(mode, "workspace mode", &names)?;
        }
        if let Some(profile) = &section.profile {
            self.name_of(profile, "profile", &profiles::names())?;
        }
        for variable in &section.env {
            self.env_name(variable)?;
        }
        if let Some(url) = &section.url {
            let text = url.get_ref();
            let web = text.starts_with("https://") || text.starts_with("http://");
            if !web || !text.bytes().all(|byte| byte.is_ascii_graphic()) || text.contains('@') {
                return Err(self
                    .wrong(url, "invalid URL of a server", "not understood")
                    .remedy("expected \"https://host/path\", without user and password"));
            }
            if !section.command.is_empty() {
                let title = format!("the server `{}` has a command and a URL", name.get_ref());
                return Err(self
                    .wrong(url, title, "the second of both")
                    .remedy("remove one of them"));
            }
        }
        let server = McpServer {
            command: section
                .command
                .iter()
                .map(|word| word.get_ref().clone())
                .collect(),
            url: text(&section.url),
            token: text(&section.token),
            policy: path(&section.policy)?,
            profile: text(&section.profile),
            workspace: path(&section.workspace)?,
            workspace_mode: text(&section.workspace_mode),
            env: section
                .env
                .iter()
                .map(|name| name.get_ref().clone())
                .collect(),
            first_use: match &section.first_use {
                Some(said) if self.name_of(said, "first use", &["ask", "pin"])? == "pin" => {
                    FirstUse::Pin
                }
                _ => FirstUse::Ask,
            },
        };
        Ok((server != McpServer::default()).then_some(server))
    }

    fn optional(
        &self,
        said: &Option<Vec<Spanned<String>>>,
    ) -> Result<Option<Vec<Pattern>>, Diagnostic> {
        let said = said.as_ref();
        said.map(|list| self.patterns(list)).transpose()
    }

    fn patterns(&self, list: &[Spanned<String>]) -> Result<Vec<Pattern>, Diagnostic> {
        list.iter().map(|text| self.pattern(text)).collect()
    }

    fn pattern(&self, text: &Spanned<String>) -> Result<Pattern, Diagnostic> {
        Pattern::new(text.get_ref()).map_err(|error| {
            let title = format!("invalid name `{}`", text.get_ref().escape_debug());
            self.wrong(text, title, error.to_string())
                .remedy("use a name, or a pattern such as \"read_*\"")
        })
    }

    fn arguments(&self, section: &ArgumentsSection) -> Result<Vec<ArgumentRules>, Diagnostic> {
        let mut rules = Vec::new();
        for (tool, arguments) in section {
            let tool = self.pattern(tool)?;
            let mut constraints = BTreeMap::new();
            for (name, constraint) in arguments {
                constraints.insert(name.get_ref().clone(), self.constraint(constraint)?);
            }
            rules.push(ArgumentRules {
                tool,
                arguments: constraints,
            });
        }
        Ok(rules)
    }

    /// What a call is leased, where the argument says in one way only what it names.
    fn call_lease(
        &self,
        text: &Spanned<String>,
        said: &ConstraintSection,
    ) -> Result<CallLease, Diagnostic> {
        let names = CallLease::ALL.map(CallLease::name);
        let name = self.name_of(text, "lease", &names)?;
        let mut all = CallLease::ALL.into_iter();
        let found = all.find(|lease| lease.name() == name);
        let lease = found.unwrap_or(CallLease::Read);
        let (key, given) = match lease {
            CallLease::Connect => ("host-in", said.host_in.is_some()),
            CallLease::Read | CallLease::Write => ("path-below", said.path_below.is_some()),
        };
        match given {
            true => Ok(lease),
            false => {
                let title = format!("the lease `{name}` has no `{key}` beside it");
                let remedy = format!("add `{key}`: what calls can be leased at most");
                Err(self.wrong(text, title, "unbounded").remedy(remedy))
            }
        }
    }

    fn constraint(&self, said: &ConstraintSection) -> Result<Constraint, Diagnostic> {
        let path_below = said.path_below.as_ref().map(|list| {
            let paths = list.iter().map(|text| self.path(text));
            paths.collect::<Result<Vec<_>, _>>()
        });
        let host_in = said.host_in.as_ref().map(|list| {
            let hosts = list.iter().map(|text| {
                network::allowed(text.get_ref()).map_err(|error| {
                    let title = format!("invalid host `{}`", error.text);
                    self.wrong(text, title, "not understood")
                        .remedy(error.remedy)
                })
            });
            hosts.collect::<Result<Vec<_>, _>>()
        });
        let one_of = said
            .one_of
            .as_ref()
            .map(|list| list.iter().map(json).collect());
        let range = said.range.as_ref().map(|range| {
            let [least, most] = *range.get_ref();
            Numbers::new(least, most).map_err(|error| {
                self.wrong(range, "invalid range", error.to_string())
                    .remedy("use [LEAST, MOST]")
            })
        });
        let matches = said.matches.as_ref().map(|text| {
            Matcher::new(text.get_ref()).map_err(|error| {
                self.wrong(text, "invalid regular expression", error.to_string())
                    .remedy("use the syntax of Rust's regex; the whole text must match")
            })
        });
        let sql = said.sql.as_ref().map(|list| {
            let names = SqlClass::ALL.map(SqlClass::name);
            let classes = list.iter().map(|text| {
                let name = self.name_of(text, "SQL class", &names)?;
                let mut all = SqlClass::ALL.into_iter();
                let found = all.find(|class| class.name() == name);
                Ok(found.unwrap_or(SqlClass::Read))
            });
            classes.collect::<Result<Vec<_>, Diagnostic>>()
        });
        let schema = said.schema.as_ref().map(|schema| {
            Schema::new(json(schema.get_ref())).map_err(|error| {
                self.wrong(schema, "invalid schema", error.to_string())
                    .remedy("leave out what is not supported")
            })
        });
        let otherwise = match &said.otherwise {
            Some(text) if self.name_of(text, "consequence", &["ask", "deny"])? == "ask" => {
                Otherwise::Ask
            }
            _ => Otherwise::Deny,
        };
        let lease = match &said.lease {
            Some(text) => Some(self.call_lease(text, said)?),
            None => None,
        };
        Ok(Constraint {
            lease,
            required: said.required.as_ref().is_some_and(|said| *said.get_ref()),
            path_below: path_below.transpose()?,
            host_in: host_in.transpose()?,
            one_of,
            range: range.transpose()?,
            longest: said.longest.as_ref().map(|said| *said.get_ref()),
            matches: matches.transpose()?,
            sql: sql.transpose()?,
            schema: schema.transpose()?,
            otherwise,
        })
    }
}

/// A value of TOML as JSON. Dates become text.
fn json(value: &toml::Value) -> serde_json::Value {
    use serde_json::Value;
    match value {
        toml::Value::String(text) => Value::String(text.clone()),
        toml::Value::Integer(number) => Value::from(*number),
        toml::Value::Float(number) => Value::from(*number),
        toml::Value::Boolean(value) => Value::Bool(*value),
        toml::Value::Datetime(date) => Value::String(date.to_string()),
        toml::Value::Array(items) => Value::Array(items.iter().map(json).collect()),
        toml::Value::Table(table) => {
            let fields = table.iter().map(|(key, value)| (key.clone(), json(value)));
            Value::Object(fields.collect())
        }
    }
}
