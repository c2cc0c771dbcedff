//! Runs with MCP servers: the suite plays the agent, and the probe is the server.

use super::Runner;
use super::launch::{Mode, RunError};
use crate::classes::to::{self, Scenario};
use crate::inside::{OBSERVED, Observation, STARTED};
use crate::oracle::Evidence;
use crate::probe::Setup;
use crate::stage::making;
use serde_json::{Value, json};
use std::ffi::OsString;
use std::fmt::Write as _;
use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

/// How long an answer may take. The first one waits until the cages of all servers run.
const PATIENCE: Duration = Duration::from_secs(60);
/// How long a change of a list may take until it is known everywhere.
const SETTLES: Duration = Duration::from_millis(700);

/// What came of a scenario.
pub(crate) struct Played {
    /// Whether the harmless part went through.
    pub(crate) permitted: bool,
    /// What shows that the attack did.
    pub(crate) through: Option<String>,
}

/// A connection on standard streams.
struct Connection {
    child: Child,
    stdin: Option<ChildStdin>,
    lines: Receiver<String>,
    number: u64,
}

/// The agent: it believes everything and does as it is told.
pub(crate) struct Agent {
    /// Each server's own, or the gateway's alone.
    connections: Vec<(String, Connection)>,
    /// Whether a gateway is between it and the servers.
    gateway: bool,
    /// Everything that it was told.
    heard: String,
    asked: Vec<String>,
}

impl Connection {
    fn start(command: &mut Command) -> std::io::Result<Self> {
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()?;
        let stdin = child.stdin.take();
        let stdout = child.stdout.take();
        let (sender, lines) = channel();
        std::thread::spawn(move || {
            let Some(stdout) = stdout else {
                return;
            };
            for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                if sender.send(line).is_err() {
                    return;
                }
            }
        });
        Ok(Connection {
            child,
            stdin,
            lines,
            number: 0,
        })
    }

    fn write(&mut self, line: &str) {
        if let Some(stdin) = &mut self.stdin {
            // One that is gone is noticed by the missing answer.
            let _ = writeln!(stdin, "{line}").and_then(|()| stdin.flush());
        }
    }
}

impl Agent {
    fn connection(&mut self, server: &str) -> Option<&mut Connection> {
        let gateway = self.gateway;
        let mut all = self.connections.iter_mut();
        let found = all.find(|(name, _)| gateway || name == server);
        found.map(|(_, connection)| connection)
    }

    /// Sends a request and waits for its result; an error is one too.
    fn ask(&mut self, server: &str, method: &str, params: &str) -> Value {
        let Some(connection) = self.connection(server) else {
            return Value::Null;
        };
        connection.number += 1;
        let number = connection.number;
        connection.write(&format!(
            "{{\"jsonrpc\":\"2.0\",\"id\":{number},\"method\":\"{method}\",\"params\":{params}}}"
        ));
        loop {
            let Some(connection) = self.connection(server) else {
                return Value::Null;
            };
            let Ok(line) = connection.lines.recv_timeout(PATIENCE) else {
                return Value::Null;
            };
            let Ok(message) = serde_json::from_str::<Value>(&line) else {
                continue;
            };
            let asked = message["method"].as_str().map(str::to_owned);
            if let (Some(method), Some(id)) = (&asked, message.get("id")) {
                // It answers whatever it is asked.
                let content = json!({"type": "text", "text": "yes"});
                let result = json!({"role": "assistant", "content": content, "model": "m"});
                connection
                    .write(&json!({"jsonrpc": "2.0", "id": id, "result": result}).to_string());
                self.asked.push(method.clone());
            }
            self.heard.push_str(&line);
            self.heard.push('\n');
            // A message that cannot be read is answered without its number.
            if asked.is_none() && (message["id"] == number || message["id"].is_null()) {
                return match message.get("result") {
                    Some(result) => result.clone(),
                    None => message,
                };
            }
        }
    }

    fn greet(&mut self) {
        let names: Vec<String> = self
            .connections
            .iter()
            .map(|(name, _)| name.clone())
            .collect();
        let client = json!({"name": "suite", "version": "1"});
        let capabilities = json!({"sampling": {}});
        let start = json!({"protocolVersion": "2025-11-25", "capabilities": capabilities, "clientInfo": client});
        for name in names {
            self.ask(&name, "initialize", &start.to_string());
            if let Some(connection) = self.connection(&name) {
                connection.write("{\"jsonrpc\":\"2.0\",\"method\":\"notifications/initialized\"}");
            }
        }
    }

    /// The tools, as the agent is told of them.
    pub(crate) fn list(&mut self, server: &str) -> String {
        self.ask(server, "tools/list", "{}").to_string()
    }

    pub(crate) fn call(&mut self, server: &str, tool: &str, arguments: Value) -> Value {
        self.call_raw(server, tool, &arguments.to_string())
    }

    /// A call whose arguments are this text.
    pub(crate) fn call_raw(&mut self, server: &str, tool: &str, arguments: &str) -> Value {
        let name = match self.gateway {
            true => format!("{server}__{tool}"),
            false => tool.to_owned(),
        };
        let params = format!("{{\"name\":\"{name}\",\"arguments\":{arguments}}}");
        self.ask(server, "tools/call", &params)
    }

    pub(crate) fn was_asked(&self, method: &str) -> bool {
        self.asked.iter().any(|asked| asked == method)
    }

    /// Gives what was said beside any answer time to be known.
    pub(crate) fn settle(&self) {
        std::thread::sleep(SETTLES);
    }
}

impl Runner {
    /// One run of a probe with its servers.
    pub(super) fn tools(
        &self,
        id: &str,
        mode: Mode,
        evidence: &mut Evidence,
    ) -> Result<(), RunError> {
        let Some(scenario) = to::scenario(id) else {
            return Ok(());
        };
        let mut agent = self.agent(&scenario, mode)?;
        agent.greet();
        let params = &self.stage.params;
        let played = (scenario.play)(&mut agent, params);
        evidence.permitted = Some(played.permitted);
        let mut told = format!("{STARTED}\n{}", agent.heard);
        for (_, connection) in &mut agent.connections {
            connection.stdin.take();
            let mut ended = Evidence::default();
            self.finish(&mut connection.child, super::launch::PATIENCE, &mut ended);
            evidence.status = ended.status;
            if let Some(stderr) = connection.child.stderr.take() {
                let mut stderr = stderr.take(64 << 10);
                // What it said is only shown where something failed.
                let _ = stderr.read_to_end(&mut evidence.errors);
            }
        }
        // Last, behind whatever the server said.
        let seen = Observation {
            reached: played.through.is_some(),
            detail: played
                .through
                .unwrap_or_else(|| "did not get through".to_owned()),
            data: String::new(),
        };
        let line = serde_json::to_string(&seen).unwrap_or_default();
        let _ = writeln!(told, "{OBSERVED}{line}");
        evidence.output = told.into_bytes();
        Ok(())
    }

    fn server(&self, name: &str) -> Vec<OsString> {
        let layout = &self.stage.layout;
        vec![
            layout.program.clone().into_os_string(),
            "probe".into(),
            "role".into(),
            "tool-server".into(),
            name.into(),
            layout.params.clone().into_os_string(),
        ]
    }

    fn agent(&self, scenario: &Scenario, mode: Mode) -> Result<Agent, RunError> {
        let mut agent = Agent {
            connections: Vec::new(),
            gateway: mode == Mode::Caged,
            heard: String::new(),
            asked: Vec::new(),
        };
        let mut connect = |name: &str, line: &[OsString]| {
            let mut command = self.command(line, Setup::Tools, mode);
            let started = Connection::start(&mut command).map_err(|source| RunError::Start {
                program: name.to_owned(),
                source,
            })?;
            agent.connections.push((name.to_owned(), started));
            Ok::<_, RunError>(())
        };
        if mode != Mode::Caged {
            for name in scenario.servers {
                connect(name, &self.server(name))?;
            }
            return Ok(agent);
        }
        let mut policy = String::new();
        for name in scenario.servers {
            let words: Vec<String> = self
                .server(name)
                .iter()
                .map(|word| Value::from(word.to_string_lossy()).to_string())
                .collect();
            let rules = (scenario.rules)(name, &self.stage.params);
            let _ = writeln!(
                policy,
                "[mcp.{name}]\ncommand = [{}]\nfirst-use = \"pin\"\n{rules}",
                words.join(", ")
            );
        }
        let path = self.stage.layout.tools();
        std::fs::write(&path, policy).map_err(making("the rules of the gateway"))?;
        let line = [
            self.launcher.clone().into_os_string(),
            "mcp".into(),
            "gateway".into(),
            "--policy".into(),
            path.into_os_string(),
        ];
        connect("the gateway", &line)?;
        Ok(agent)
    }
}
