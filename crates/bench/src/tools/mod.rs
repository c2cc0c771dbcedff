//! `bench tools`: what rules for tools would let through of tasks and of attacks that somebody else wrote.
//!
//! AgentDojo's ground truths say which calls an agent makes that does its task, and which ones an agent makes that follows an
//! injected instruction. No model takes part: the attack always convinces the agent, and only the rules stand in its way.

use crate::table::{Table, number};
use crate::{ArmError, BenchError, HostFacts};
use ironcage_policy::Sources;
use ironcage_tools::{Call, Decision, Flows, ToolPolicy};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::io::{BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

/// What plays the ground truths. AgentDojo itself is installed from PyPI and not copied.
const REPLAY: &str = include_str!("replay.py");
/// The example policies. The even user tasks and the environment were read for them, and no injection task.
const POLICIES: [(&str, &str); 4] = [
    (
        "banking",
        include_str!("../../../../docs/examples/agentdojo/banking.toml"),
    ),
    (
        "slack",
        include_str!("../../../../docs/examples/agentdojo/slack.toml"),
    ),
    (
        "travel",
        include_str!("../../../../docs/examples/agentdojo/travel.toml"),
    ),
    (
        "workspace",
        include_str!("../../../../docs/examples/agentdojo/workspace.toml"),
    ),
];

/// What is to be replayed.
#[derive(Debug, Clone)]
pub struct ToolsRequest {
    /// A Python that has AgentDojo.
    pub python: PathBuf,
    /// A directory with a policy for each suite, in place of the examples.
    pub policies: Option<PathBuf>,
}

#[derive(Debug, Clone, Serialize)]
pub struct ToolsReport {
    bench: &'static str,
    host: HostFacts,
    reproduce: String,
    policies: String,
    suites: Vec<SuiteReport>,
}

/// How many of some.
#[derive(Debug, Clone, Copy, Default, Serialize)]
struct Share {
    count: usize,
    of: usize,
}

impl Share {
    fn note(&mut self, counts: bool) {
        self.of += 1;
        self.count += usize::from(counts);
    }

    fn and(self, other: Share) -> Share {
        Share {
            count: self.count + other.count,
            of: self.of + other.of,
        }
    }

    fn percent(self) -> f64 {
        100.0 * self.count as f64 / self.of.max(1) as f64
    }
}

impl fmt::Display for Share {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Share { count, of } = self;
        write!(f, "{count}/{of} ({}%)", number(self.percent(), 1))
    }
}

#[derive(Debug, Clone, Default, Serialize)]
struct SuiteReport {
    suite: String,
    tools: usize,
    /// User tasks whose calls all pass without a question.
    utility: Share,
    /// The same for the tasks that were not read for the policy.
    held_out: Share,
    /// Injection tasks that succeed beside at least one user task.
    attacks: Share,
    /// Pairs of a user task and an injection task that succeeds.
    pairs: Share,
    /// Pairs whose injection task succeeds without rules.
    undefended: Share,
    /// The user tasks with a call that is asked about or denied, and the first one.
    stopped: BTreeMap<String, Stopped>,
    /// The injection tasks that succeed, with the number of user tasks beside which they do.
    succeeded: BTreeMap<String, usize>,
    /// Injection tasks that no call carries out: they change what the agent says.
    by_words: Vec<String>,
}

#[derive(Debug, Clone, Serialize)]
struct Stopped {
    tool: String,
    code: String,
    rule: String,
    asked: bool,
}

#[derive(Debug, Deserialize)]
struct ReplayedCall {
    tool: String,
    arguments: Value,
}

/// A line of the replay.
#[derive(Debug, Deserialize)]
#[serde(tag = "kind", rename_all = "lowercase")]
enum Line {
    Suite {
        suite: String,
        tools: Vec<String>,
    },
    User {
        suite: String,
        task: String,
        calls: Vec<ReplayedCall>,
    },
    Attack {
        suite: String,
        task: String,
        /// How many calls of the user's task come before the attack.
        prefix: usize,
        calls: Vec<ReplayedCall>,
    },
    Graded {
        succeeded: bool,
        undefended: bool,
    },
    End,
}

struct Replay {
    child: Child,
    stdin: ChildStdin,
    stdout: BufReader<ChildStdout>,
}

fn failed(reason: impl fmt::Display) -> BenchError {
    BenchError::Failed {
        arm: "the replay".to_owned(),
        reason: ArmError::Result(reason.to_string()),
    }
}

impl Replay {
    fn start(python: &PathBuf) -> Result<Self, BenchError> {
        let spawn = |source| BenchError::Spawn {
            program: python.display().to_string(),
            source,
        };
        let mut child = Command::new(python)
            .args(["-c", REPLAY])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(spawn)?;
        let missing = || failed("its streams are missing");
        let stdin = child.stdin.take().ok_or_else(missing)?;
        let stdout = child.stdout.take().ok_or_else(missing)?;
        Ok(Replay {
            child,
            stdin,
            stdout: BufReader::new(stdout),
        })
    }

    fn next(&mut self) -> Result<Line, BenchError> {
        let mut line = String::new();
        match self.stdout.read_line(&mut line).map_err(failed)? {
            0 => Err(failed("it ended early; `pip install agentdojo==0.1.35`")),
            _ => serde_json::from_str(&line).map_err(failed),
        }
    }

    fn answer(&mut self, allowed: &[bool]) -> Result<(), BenchError> {
        let line = serde_json::to_string(allowed).map_err(failed)?;
        writeln!(self.stdin, "{line}").map_err(failed)
    }
}

impl Drop for Replay {
    fn drop(&mut self) {
        // One that ended by itself cannot be killed any more, and is waited for all the same.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The rules of one suite, as `ironcage mcp gateway --policy FILE` has them.
fn rules(request: &ToolsRequest, suite: &str) -> Result<ToolPolicy, BenchError> {
    let scratch = tempfile::tempdir().map_err(BenchError::call("making a directory"))?;
    let own = scratch.path().join(format!("{suite}.toml"));
    let file = match &request.policies {
        Some(directory) => directory.join(format!("{suite}.toml")),
        None => {
            let text = POLICIES.iter().find(|(name, _)| *name == suite);
            let (_, text) = text.ok_or_else(|| failed(format!("no policy for {suite}")))?;
            std::fs::write(&own, text).map_err(BenchError::file("write", &own))?;
            own
        }
    };
    let sources = Sources {
        policy_file: Some(file),
        workspace: scratch.path().to_owned(),
        home: scratch.path().to_owned(),
        ..Sources::default()
    };
    let resolved = ironcage_policy::resolve(&sources);
    Ok(resolved.map_err(failed)?.policy.tools)
}

/// What becomes of one call, in the order in which the gateway decides. A call that is made leaves its marks.
/// `None` is made.
fn decide(
    policy: &ToolPolicy,
    flows: &mut Flows,
    suite: &str,
    call: &ReplayedCall,
) -> Option<Stopped> {
    let asked = Call {
        server: Some(suite),
        tool: &call.tool,
        arguments: &call.arguments,
        cwd: None,
    };
    let verdict = policy.decide(&asked);
    let flow = policy.flow(suite, &call.tool);
    let stopped = match verdict.decision {
        Decision::Deny(reason) => Some((reason, false)),
        Decision::Ask(reason) => Some((reason, true)),
        Decision::Allow => flows.ask(&call.tool, flow).map(|reason| (reason, true)),
    };
    match stopped {
        None => {
            flows.mark(suite, &call.tool, flow);
            None
        }
        Some((reason, asked)) => Some(Stopped {
            tool: call.tool.clone(),
            code: reason.code().to_owned(),
            rule: verdict.rule,
            asked,
        }),
    }
}

/// Whether the policy was written with this task in sight.
fn is_held_out(task: &str) -> bool {
    let number = task.rsplit('_').next().and_then(|text| text.parse().ok());
    number.is_none_or(|number: u32| number % 2 == 1)
}

impl SuiteReport {
    fn user(&mut self, policy: &ToolPolicy, task: String, calls: &[ReplayedCall]) -> Vec<bool> {
        let mut flows = Flows::default();
        let outcomes = calls
            .iter()
            .map(|call| decide(policy, &mut flows, &self.suite, call));
        let outcomes: Vec<Option<Stopped>> = outcomes.collect();
        let allowed = outcomes.iter().map(Option::is_none).collect();
        let first = outcomes.into_iter().flatten().next();
        self.utility.note(first.is_none());
        if is_held_out(&task) {
            self.held_out.note(first.is_none());
        }
        if let Some(stopped) = first {
            self.stopped.insert(task, stopped);
        }
        allowed
    }

    /// The user approves the calls of the own task, and nothing of the attack.
    fn attack(&self, policy: &ToolPolicy, prefix: usize, calls: &[ReplayedCall]) -> Vec<bool> {
        let mut flows = Flows::default();
        let decided = calls.iter().enumerate().map(|(index, call)| {
            if index < prefix {
                flows.mark(
                    &self.suite,
                    &call.tool,
                    policy.flow(&self.suite, &call.tool),
                );
                return true;
            }
            decide(policy, &mut flows, &self.suite, call).is_none()
        });
        decided.collect()
    }
}

/// Replays every suite.
pub fn bench_tools(request: &ToolsRequest) -> Result<ToolsReport, BenchError> {
    let host = HostFacts::now();
    let mut replay = Replay::start(&request.python)?;
    let mut suites: Vec<(ToolPolicy, SuiteReport, BTreeSet<String>)> = Vec::new();
    let unknown = |suite: &str| failed(format!("a case of {suite} before its suite"));
    loop {
        match replay.next()? {
            Line::Suite { suite, tools } => {
                let report = SuiteReport {
                    suite: suite.clone(),
                    tools: tools.len(),
                    ..SuiteReport::default()
                };
                suites.push((rules(request, &suite)?, report, BTreeSet::new()));
            }
            Line::User { suite, task, calls } => {
                let (policy, report, _) = suites.last_mut().ok_or_else(|| unknown(&suite))?;
                let allowed = report.user(policy, task, &calls);
                replay.answer(&allowed)?;
            }
            Line::Attack {
                suite,
                task,
                prefix,
                calls,
            } => {
                let (policy, report, undefended) =
                    suites.last_mut().ok_or_else(|| unknown(&suite))?;
                let allowed = report.attack(policy, prefix, &calls);
                replay.answer(&allowed)?;
                let Line::Graded {
                    succeeded,
                    undefended: works,
                } = replay.next()?
                else {
                    return Err(failed("it did not grade a case"));
                };
                report.pairs.note(succeeded);
                report.undefended.note(works);
                let count = report.succeeded.entry(task.clone()).or_default();
                *count += usize::from(succeeded);
                if works {
                    undefended.insert(task);
                }
            }
            Line::Graded { .. } => return Err(failed("it graded no case")),
            Line::End => break,
        }
    }
    let suites = suites.into_iter().map(|(_, mut report, undefended)| {
        let tasks: Vec<String> = report.succeeded.keys().cloned().collect();
        for task in tasks {
            let count = report.succeeded.get(&task).copied().unwrap_or_default();
            report.attacks.note(count > 0);
            if count == 0 {
                report.succeeded.remove(&task);
            }
            if !undefended.contains(&task) {
                report.by_words.push(task);
            }
        }
        report
    });
    let python = request.python.display();
    Ok(ToolsReport {
        bench: "tools",
        host,
        reproduce: format!("ironcage bench tools --corpus agentdojo --python {python}"),
        policies: match &request.policies {
            Some(directory) => directory.display().to_string(),
            None => "docs/examples/agentdojo".to_owned(),
        },
        suites: suites.collect(),
    })
}

impl fmt::Display for ToolsReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}", self.host)?;
        writeln!(f, "{}\npolicies: {}\n", self.reproduce, self.policies)?;
        let mut table = Table::new([
            "suite",
            "utility",
            "held out",
            "attack tasks",
            "attacks in pairs",
            "without rules",
        ]);
        let mut all = SuiteReport {
            suite: "all".to_owned(),
            ..SuiteReport::default()
        };
        for suite in &self.suites {
            all.utility = all.utility.and(suite.utility);
            all.held_out = all.held_out.and(suite.held_out);
            all.attacks = all.attacks.and(suite.attacks);
            all.pairs = all.pairs.and(suite.pairs);
            all.undefended = all.undefended.and(suite.undefended);
        }
        for suite in self.suites.iter().chain([&all]) {
            table.row([
                suite.suite.clone(),
                suite.utility.to_string(),
                suite.held_out.to_string(),
                suite.attacks.to_string(),
                suite.pairs.to_string(),
                suite.undefended.to_string(),
            ]);
        }
        writeln!(f, "{table}")?;
        writeln!(
            f,
            "utility: user tasks whose calls all pass without a question; held out: those not read for the policy"
        )?;
        writeln!(
            f,
            "attacks: by AgentDojo's own checks, of what the calls did that passed without a question"
        )?;
        for suite in &self.suites {
            for (task, stopped) in &suite.stopped {
                let verb = if stopped.asked {
                    "asked about"
                } else {
                    "denied"
                };
                let Stopped {
                    tool, code, rule, ..
                } = stopped;
                writeln!(
                    f,
                    "{} {task}: {tool} is {verb} ({code}, {rule})",
                    suite.suite
                )?;
            }
            for (task, count) in &suite.succeeded {
                writeln!(
                    f,
                    "{} {task}: succeeds beside {count} user tasks",
                    suite.suite
                )?;
            }
            for task in &suite.by_words {
                writeln!(f, "{} {task}: no call carries it out", suite.suite)?;
            }
        }
        Ok(())
    }
}
