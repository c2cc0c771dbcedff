//! `bench calls`: what a tool call costs through the MCP gateway, beside the same server bare and the same server in
//! a cage without the gateway.

use crate::scratch::Scratch;
use crate::statistics::{Shuffle, Summary};
use crate::table::{Table, number};
use crate::verdict::{Target, Verdict};
use crate::{ArmError, BenchError, HostFacts, own_program};
use serde::Serialize;
use serde_json::{Value, json};
use std::ffi::OsString;
use std::fmt;
use std::io::{self, BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Instant;

/// What the gateway may add to a call.
const ADDED: Target = Target {
    at_most: 0.3,
    unit: "ms",
};
/// Calls that are thrown away first.
const WARM_UP: usize = 50;
/// Calls of one arm before it is the next one's turn.
const TURN: usize = 50;
/// Calls that wait for their answers at once.
const IN_FLIGHT: usize = 64;
/// The part that this program plays as the server.
pub(crate) const SERVER: &str = "__bench-tools";
/// Its copy in the workspace.
const PROGRAM: &str = "server";

/// What is to be measured.
#[derive(Debug, Clone)]
pub struct CallsRequest {
    /// The `ironcage` program.
    pub ironcage: PathBuf,
    /// How many calls of each.
    pub runs: usize,
}

#[derive(Debug, Clone, Serialize)]
pub struct CallsReport {
    bench: &'static str,
    host: HostFacts,
    reproduce: String,
    arms: Vec<CallsArm>,
    verdicts: Vec<Verdict>,
}

#[derive(Debug, Clone, Serialize)]
struct CallsArm {
    name: &'static str,
    about: &'static str,
    milliseconds: Summary,
    times_bare: f64,
    /// With many calls on the way at once.
    calls_per_second: f64,
}

/// A server, or the gateway in front of it, and the client's side of its streams.
struct Peer {
    child: Child,
    stdin: ChildStdin,
    stdout: BufReader<ChildStdout>,
    next: u64,
}

fn answer(expected: &'static str, got: impl ToString) -> ArmError {
    ArmError::Answer {
        expected,
        got: got.to_string(),
    }
}

impl Peer {
    fn start(scratch: &Scratch, program: &Path, words: &[OsString]) -> Result<Self, BenchError> {
        let failed = |source| BenchError::Spawn {
            program: program.display().to_string(),
            source,
        };
        let mut child = Command::new(program)
            .args(words)
            .env_clear()
            .envs(scratch.environment())
            .current_dir(scratch.work())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .map_err(failed)?;
        let missing = || failed(io::ErrorKind::BrokenPipe.into());
        let stdin = child.stdin.take().ok_or_else(missing)?;
        let stdout = child.stdout.take().ok_or_else(missing)?;
        Ok(Peer {
            child,
            stdin,
            stdout: BufReader::new(stdout),
            next: 0,
        })
    }

    fn write(&mut self, message: &Value) -> Result<(), ArmError> {
        let mut line = message.to_string();
        line.push('\n');
        let written = self.stdin.write_all(line.as_bytes());
        written.map_err(ArmError::system("send a request"))
    }

    fn send(&mut self, method: &str, params: &Value) -> Result<u64, ArmError> {
        self.next += 1;
        let id = self.next;
        self.write(&json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params}))?;
        Ok(id)
    }

    /// The next answer.
    fn receive(&mut self) -> Result<Value, ArmError> {
        loop {
            let mut line = String::new();
            let read = self.stdout.read_line(&mut line);
            match read.map_err(ArmError::system("read an answer"))? {
                0 => return Err(answer("an answer", "the end")),
                _ => {
                    let message: Value = serde_json::from_str(&line)
                        .map_err(|error| answer("JSON", format!("{error}: {line}")))?;
                    if message.get("method").is_none() {
                        return Ok(message);
                    }
                }
            }
        }
    }

    fn ask(&mut self, method: &str, params: &Value) -> Result<Value, ArmError> {
        let id = self.send(method, params)?;
        let found = self.receive()?;
        match found["id"] == id {
            true => Ok(found),
            false => Err(answer("the answer to the last request", found)),
        }
    }

    fn greet(&mut self) -> Result<(), ArmError> {
        let client = json!({"name": "bench", "version": "1"});
        let start =
            json!({"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": client});
        self.ask("initialize", &start)?;
        self.write(&json!({"jsonrpc": "2.0", "method": "notifications/initialized"}))
    }

    /// One call, from the request to its result, in milliseconds.
    fn call(&mut self) -> Result<f64, ArmError> {
        let start = Instant::now();
        let found = self.ask("tools/call", &request())?;
        let elapsed = start.elapsed();
        done(&found)?;
        Ok(elapsed.as_secs_f64() * 1e3)
    }

    /// Many calls with some on the way at once: calls a second.
    fn rate(&mut self, calls: usize) -> Result<f64, ArmError> {
        let start = Instant::now();
        let mut sent = 0;
        for received in 0..calls {
            while sent < calls.min(received + IN_FLIGHT) {
                self.send("tools/call", &request())?;
                sent += 1;
            }
            done(&self.receive()?)?;
        }
        Ok(calls as f64 / start.elapsed().as_secs_f64())
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        // A server without a client ends; what does not is not waited for.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn request() -> Value {
    json!({"name": "echo", "arguments": {"text": "hello"}})
}

fn done(found: &Value) -> Result<(), ArmError> {
    match found["result"]["content"][0]["text"] == "hello" {
        true => Ok(()),
        false => Err(answer("the echo", found)),
    }
}

/// Is the server: one tool, which repeats its argument. Until standard input ends.
pub fn serve_tools() -> Result<(), BenchError> {
    let failed = BenchError::call("serving tools");
    let serve = || -> io::Result<()> {
        let mut out = io::stdout().lock();
        for line in io::stdin().lock().lines() {
            let asked: Value = serde_json::from_str(&line?)?;
            let Some(id) = asked.get("id") else {
                continue;
            };
            let result = match asked["method"].as_str() {
                Some("initialize") => json!({
                    "protocolVersion": asked["params"]["protocolVersion"],
                    "capabilities": {"tools": {}},
                    "serverInfo": {"name": "bench", "version": "1"},
                }),
                Some("tools/list") => {
                    let schema =
                        json!({"type": "object", "properties": {"text": {"type": "string"}}});
                    json!({"tools": [{"name": "echo", "description": "Repeats.", "inputSchema": schema}]})
                }
                _ => {
                    let text = &asked["params"]["arguments"]["text"];
                    json!({"content": [{"type": "text", "text": text}], "isError": false})
                }
            };
            writeln!(
                out,
                "{}",
                json!({"jsonrpc": "2.0", "id": id, "result": result})
            )?;
            out.flush()?;
        }
        Ok(())
    };
    serve().map_err(failed)
}

/// Calls each in turns, `runs` times, and compares.
pub fn bench_calls(request: &CallsRequest) -> Result<CallsReport, BenchError> {
    if request.runs == 0 {
        let why = "bench calls needs at least one run";
        return Err(BenchError::Request(why.to_owned()));
    }
    let host = HostFacts::now();
    let scratch = Scratch::new()?;
    let program = scratch.work().join(PROGRAM);
    std::fs::copy(own_program()?, &program).map_err(BenchError::file("copy to", &program))?;
    let policy = scratch.path("policy.toml");
    let rules = format!(
        "[mcp.bench]\ncommand = [{}, \"{SERVER}\"]\nfirst-use = \"pin\"\nallow = [\"echo\"]\n\
         [mcp.bench.arguments.echo]\ntext = {{ longest = 100 }}\n",
        Value::from(program.to_string_lossy())
    );
    std::fs::write(&policy, rules).map_err(BenchError::file("write", &policy))?;
    let words = |list: &[&str]| list.iter().map(OsString::from).collect::<Vec<_>>();
    let mut caged = words(&["run", "--quiet", "--workspace-mode", "read-only", "--"]);
    caged.extend([program.clone().into(), SERVER.into()]);
    let mut gateway = words(&["mcp", "gateway", "--server", "bench", "--policy"]);
    gateway.push(policy.into());
    let ironcage = &request.ironcage;
    let mut peers = [
        ("bare", Peer::start(&scratch, &program, &words(&[SERVER]))?),
        ("caged", Peer::start(&scratch, ironcage, &caged)?),
        ("gateway", Peer::start(&scratch, ironcage, &gateway)?),
    ];
    let failed = |arm: &str| {
        let arm = arm.to_owned();
        move |reason| BenchError::Failed { arm, reason }
    };
    let mut times = [Vec::new(), Vec::new(), Vec::new()];
    let mut rates = Vec::new();
    for (name, peer) in &mut peers {
        peer.greet().map_err(failed(name))?;
        for _ in 0..WARM_UP {
            peer.call().map_err(failed(name))?;
        }
    }
    let mut shuffle = Shuffle::new();
    while times.iter().any(|times| times.len() < request.runs) {
        for index in shuffle.order(times.len()) {
            if let (Some((name, peer)), Some(times)) = (peers.get_mut(index), times.get_mut(index))
            {
                for _ in 0..TURN.min(request.runs - times.len()) {
                    times.push(peer.call().map_err(failed(name))?);
                }
            }
        }
    }
    for (name, peer) in &mut peers {
        rates.push(peer.rate(request.runs).map_err(failed(name))?);
    }
    report(host, request.runs, &times, &rates)
}

fn report(
    host: HostFacts,
    runs: usize,
    times: &[Vec<f64>; 3],
    rates: &[f64],
) -> Result<CallsReport, BenchError> {
    let about = [
        ("bare", "the server, started by the bench"),
        ("caged", "the same behind `ironcage run`"),
        (
            "gateway",
            "the same behind `ironcage mcp gateway`, with rules, a pin and the audit log",
        ),
    ];
    let none = || BenchError::Request("no samples".to_owned());
    let [bare, ..] = times;
    let bare = Summary::of(bare).ok_or_else(none)?;
    let mut arms = Vec::new();
    for (((name, about), times), rate) in about.into_iter().zip(times).zip(rates) {
        let milliseconds = Summary::of(times).ok_or_else(none)?;
        arms.push(CallsArm {
            name,
            about,
            milliseconds,
            times_bare: milliseconds.median / bare.median,
            calls_per_second: *rate,
        });
    }
    let gateway = arms.last().ok_or_else(none)?;
    let added = gateway.milliseconds.median - bare.median;
    Ok(CallsReport {
        bench: "calls",
        host,
        reproduce: format!("ironcage bench calls --runs {runs}"),
        verdicts: vec![Verdict::new(
            "added by the gateway to a call, by median",
            added,
            ADDED,
        )],
        arms,
    })
}

impl fmt::Display for CallsReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}", self.host)?;
        writeln!(f, "{}\n", self.reproduce)?;
        let mut table = Table::new([
            "arm",
            "median ms",
            "quartiles",
            "p99 ms",
            "x bare",
            "calls/s",
        ]);
        for arm in &self.arms {
            table.row([
                arm.name.to_owned(),
                number(arm.milliseconds.median, 3),
                arm.milliseconds.spread(3),
                number(arm.milliseconds.p99, 3),
                number(arm.times_bare, 2),
                number(arm.calls_per_second, 0),
            ]);
        }
        writeln!(f, "{table}")?;
        for arm in &self.arms {
            writeln!(f, "{}: {}", arm.name, arm.about)?;
        }
        writeln!(f, "calls/s: with {IN_FLIGHT} calls on the way at once")?;
        for verdict in &self.verdicts {
            writeln!(f, "{verdict}")?;
        }
        Ok(())
    }
}
