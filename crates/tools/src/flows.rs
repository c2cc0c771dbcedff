//! Resources that a call needs of its server's cage, and marks that its result leaves.
//!
//! Where private data and the words of strangers have met, whoever wrote the words may have the data sent. From
//! then on a person is asked about each call through which data can leave, whatever the lists of tools say.

use crate::argument;
use crate::decide::Call;
use crate::pattern::Pattern;
use crate::rules::{ToolFlows, ToolPolicy};
use ironcage_model::{Resource, Taint, ToolReason};

/// What flows through one tool.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Flow {
    /// What its result can have in it.
    pub brings: Taint,
    /// Whether data can leave through it.
    pub sends: bool,
}

/// What the calls of a client have brought so far, and which call was the first to.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Flows {
    private: Option<String>,
    untrusted: Option<String>,
}

impl Flows {
    /// What there is of both.
    pub fn taint(&self) -> Taint {
        Taint {
            private: self.private.is_some(),
            untrusted: self.untrusted.is_some(),
        }
    }

    /// Why a person is asked about a call. What the call itself brings counts already.
    pub fn ask(&self, tool: &str, flow: Flow) -> Option<ToolReason> {
        let after = self.taint().with(flow.brings);
        let met = flow.sends && after.private && after.untrusted;
        let by = |known: &Option<String>| known.clone().unwrap_or_else(|| "this call".to_owned());
        met.then(|| ToolReason::FlowAsks {
            tool: tool.to_owned(),
            private: by(&self.private),
            untrusted: by(&self.untrusted),
        })
    }

    /// Lets a call begin, and remembers what it brings. In one step, so that no other call comes between.
    ///
    /// # Errors
    /// Why a person is asked about it, where nobody approved that.
    pub fn begin(
        &mut self,
        server: &str,
        tool: &str,
        flow: Flow,
        approved: bool,
    ) -> Result<(), ToolReason> {
        if !approved && let Some(reason) = self.ask(tool, flow) {
            return Err(reason);
        }
        self.mark(server, tool, flow);
        Ok(())
    }

    /// Remembers what a call brings.
    pub fn mark(&mut self, server: &str, tool: &str, flow: Flow) {
        let name = || Some(format!("{tool} of {server}"));
        if flow.brings.private && self.private.is_none() {
            self.private = name();
        }
        if flow.brings.untrusted && self.untrusted.is_none() {
            self.untrusted = name();
        }
    }
}

impl ToolPolicy {
    /// What flows through a tool. Every layer can say more, and none less.
    pub fn flow(&self, server: &str, tool: &str) -> Flow {
        let named = |list: fn(&ToolFlows) -> &Vec<Pattern>| {
            let mut all = std::iter::once(&self.rules).chain(&self.narrowing);
            all.any(|rules| {
                let rules = rules.servers.get(server);
                rules.is_some_and(|rules| list(&rules.flows).iter().any(|p| p.matches(tool)))
            })
        };
        Flow {
            brings: Taint {
                private: named(|flows| &flows.private),
                untrusted: named(|flows| &flows.untrusted),
            },
            sends: named(|flows| &flows.sends),
        }
    }

    /// What a call needs of its server's cage while it lasts. Only trusted sources give anything.
    pub fn needs(&self, call: &Call<'_>) -> Vec<Resource> {
        let rules = call
            .server
            .and_then(|server| self.rules.servers.get(server));
        let entries = rules.into_iter().flat_map(|rules| &rules.tools.arguments);
        let mut needs: Vec<Resource> = Vec::new();
        for entry in entries.filter(|entry| entry.tool.matches(call.tool)) {
            let found = argument::needs(&entry.arguments, call.tool, call.arguments, call.cwd);
            for need in found {
                if !needs.contains(&need) {
                    needs.push(need);
                }
            }
        }
        needs
    }

    /// Whether a call of a tool of this server can need a lease.
    pub fn leases(&self, server: &str) -> bool {
        let rules = self.rules.servers.get(server);
        let entries = rules.into_iter().flat_map(|rules| &rules.tools.arguments);
        let mut all = entries.flat_map(|entry| entry.arguments.values());
        all.any(|constraint| constraint.lease.is_some())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};
    use std::path::Path;

    fn policy(rules: Value, narrowing: Value) -> ToolPolicy {
        let text = json!({"rules": {"servers": {"s": rules}}, "narrowing": [{"servers": {"s": narrowing}}]});
        serde_json::from_value(text).unwrap()
    }

    #[test]
    fn a_call_needs_what_its_arguments_name_and_nothing_else() {
        let policy = policy(
            json!({"arguments": [{"tool": "copy", "arguments": {
                "from": {"path-below": ["/data"], "lease": "read"},
                "to.*": {"path-below": ["/data"], "lease": "write"},
                "url": {"host-in": ["api.example.com"], "lease": "connect"},
                "note": {},
            }}]}),
            json!({"arguments": [{"tool": "copy", "arguments": {"note": {"lease": "write"}}}]}),
        );
        let arguments = json!({"from": "a", "to": ["/data/b", "/data/c"], "url": "https://api.example.com/x", "note": "/etc"});
        let call = Call {
            server: Some("s"),
            tool: "copy",
            arguments: &arguments,
            cwd: Some(Path::new("/data")),
        };
        let needs: Vec<String> = policy
            .needs(&call)
            .iter()
            .map(ToString::to_string)
            .collect();
        let expected = [
            "read /data/a",
            "write /data/b",
            "write /data/c",
            "host api.example.com:443",
        ];
        let mut sorted = needs.clone();
        sorted.sort();
        let mut wanted = expected.map(str::to_owned).to_vec();
        wanted.sort();
        assert_eq!(sorted, wanted);
        let other = Call {
            tool: "list",
            ..call
        };
        assert!(policy.needs(&other).is_empty());
        assert!(policy.leases("s") && !policy.leases("t"));
    }

    #[test]
    fn what_cannot_be_leased_is_refused() {
        let policy = policy(
            json!({"allow": ["get"], "arguments": [{"tool": "get", "arguments": {"path": {"lease": "read"}}}]}),
            json!({}),
        );
        let decide = |path: Value| {
            let arguments = json!({ "path": path });
            let call = Call {
                server: Some("s"),
                tool: "get",
                arguments: &arguments,
                cwd: None,
            };
            policy.decide(&call).decision
        };
        assert_eq!(decide(json!("/data/a")).reason(), None);
        for path in [
            json!("/data/../etc"),
            json!(3),
            json!("relative"),
            json!("~/x"),
        ] {
            let code = decide(path.clone()).reason().map(ToolReason::code);
            assert_eq!(code, Some("tool-argument"), "{path}");
        }
    }

    #[test]
    fn where_private_data_met_untrusted_content_a_way_out_is_asked_about() {
        let policy = policy(
            json!({"private": ["read_mail"], "sends": ["send_*", "fetch"]}),
            json!({"untrusted": ["fetch"]}),
        );
        let flow = |tool: &str| policy.flow("s", tool);
        let mut flows = Flows::default();
        assert_eq!(flows.ask("send_mail", flow("send_mail")), None);
        flows.mark("s", "read_mail", flow("read_mail"));
        // One of both is not enough, and what sends nothing is not asked about.
        assert_eq!(flows.ask("send_mail", flow("send_mail")), None);
        // This call would bring the second itself.
        let reason = flows.ask("fetch", flow("fetch")).unwrap();
        assert_eq!(reason.code(), "tool-flow-approval-required");
        flows.mark("s", "fetch", flow("fetch"));
        assert!(flows.taint().private && flows.taint().untrusted);
        assert!(flows.ask("send_mail", flow("send_mail")).is_some());
        assert_eq!(flows.ask("read_mail", flow("read_mail")), None);
        // A call that waited meanwhile does not begin without a person's word.
        assert!(
            flows
                .begin("s", "send_mail", flow("send_mail"), false)
                .is_err()
        );
        flows
            .begin("s", "send_mail", flow("send_mail"), true)
            .unwrap();
        flows
            .begin("s", "read_mail", flow("read_mail"), false)
            .unwrap();
        assert_eq!(policy.flow("other", "send_mail"), Flow::default());
    }
}
