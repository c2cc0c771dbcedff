//! `bench intent`: what it costs that leases follow what the agent is about to do: a whole run of a
//! scripted agent, the reading of its model's answer, and how often a person would be asked.
//!
//! The agent does the mixed task of `bench task` in ten commands, each by its shell, of which three
//! need something outside its workspace (`task/agent.sh`): bare, in a cage that has all of it from
//! the start, and in one whose shell has a scope made for each command that needs a lease.

use crate::arm::Arm;
use crate::scratch::Scratch;
use crate::statistics::Summary;
use crate::task::{Arms, TaskArm, Worker, check_needs, in_turns};
use crate::verdict::{Target, Verdict};
use crate::{ArmError, BenchError, HostFacts};
use ironcage_intent::{AnswerPart, AnswerReader, Calls, Context, Encoding, Format, Table as Tools};
use serde::{Deserialize, Serialize};
use std::ffi::OsString;
use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Instant;

/// How much longer the run may take than one with everything from the start.
const TARGET: Target = Target {
    at_most: 5.0,
    unit: "%",
};
/// How much may be added to an event of the stream.
const EVENT: Target = Target {
    at_most: 1000.0,
    unit: "us",
};

/// Events of the answer whose reading is timed.
const EVENTS: usize = 2000;

/// What is to be measured.
#[derive(Debug, Clone)]
pub struct IntentRequest {
    /// The `ironcage` program.
    pub ironcage: PathBuf,
    /// How often each arm does its run.
    pub runs: usize,
    /// How often a person would be asked on the corpus.
    pub questions: RequestForecast,
}

/// What commands of the corpus would come to.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct RequestForecast {
    #[serde(default)]
    pub policy: String,
    pub commands: usize,
    /// Those that need nothing that the cage lacks.
    pub plain: usize,
    /// Things that would be given at once.
    pub given: usize,
    /// Things that nobody could give.
    pub refused: usize,
    /// Questions, where the same is asked once.
    pub asked: usize,
    /// Questions, where each command asks anew.
    pub asked_each_time: usize,
}

#[derive(Debug, Clone, Serialize)]
pub struct IntentReport {
    bench: &'static str,
    host: HostFacts,
    reproduce: String,
    arms: Vec<TaskArm>,
    /// Reading one event of an answer, in microseconds.
    event_microseconds: Summary,
    questions: RequestForecast,
    verdicts: Vec<Verdict>,
}

fn failed(arm: &'static str) -> impl Fn(String) -> BenchError {
    move |reason: String| BenchError::Failed {
        arm: arm.to_owned(),
        reason: ArmError::Result(reason),
    }
}

/// The agent bare, with the shell that agents take, in a cage that has all of it from the start, and in one that has a lease made
/// for each command that needs one.
fn workers(
    request: &IntentRequest,
    scratch: &Scratch,
    (data, reports): (&Path, &Path),
) -> Result<Vec<Worker>, BenchError> {
    let (data, reports) = (data.display().to_string(), reports.display().to_string());
    let policy = scratch.path("intent.toml");
    let text = format!(
        "[ceiling]\nshell = \"scoped\"\n[ceiling.auto.files]\nread = [{data:?}]\nwrite = [{reports:?}]\n"
    );
    std::fs::write(&policy, text).map_err(BenchError::file("write", &policy))?;
    let policy = policy.display().to_string();
    let worker = |name, about: &str, program: &Path, words: &[&str]| {
        let words: Vec<OsString> = words.iter().map(OsString::from).collect();
        let arm = Arm::spawned(name, program, &words, scratch.work(), scratch)?;
        Ok::<_, BenchError>(Worker::new(name, about.to_owned(), arm))
    };
    let run = ["run", "-q", "--workspace-mode", "direct"];
    let agent = ["--", "/bin/sh", "agent.sh"];
    let reports = format!("{reports}:direct");
    let all = ["-r", &data, "-w", &reports, "--env", "SHELL=/bin/bash"];
    let scoped = ["--policy", policy.as_str()];
    Ok(vec![
        worker(
            "bare",
            "sh agent.sh",
            Path::new("/bin/sh"),
            &["-c", "SHELL=/bin/bash exec /bin/sh agent.sh"],
        )?,
        worker(
            "static",
            "all of it from the start: -r DATA -w REPORTS:direct",
            &request.ironcage,
            &[&run[..], &all, &agent].concat(),
        )?,
        worker(
            "intent",
            "leases for each command: ceiling.auto, shell = \"scoped\"",
            &request.ironcage,
            &[&run[..], &scoped, &agent].concat(),
        )?,
    ])
}

/// Times the reading of an answer, event by event, as the reader does it.
fn read_events() -> Result<Summary, BenchError> {
    let failed = failed("reader");
    let error = |error: &dyn fmt::Display| failed(error.to_string());
    let calls = Calls::shipped().map_err(|e| error(&e))?;
    let tools = Tools::shipped().map_err(|e| error(&e))?;
    let context = Context {
        cwd: "/project".into(),
        home: Some("/home/user".into()),
    };
    let event = |name: &str, data: &str| format!("event: {name}\ndata: {data}\n\n");
    let mut answer = AnswerReader::new(Format::Events, Encoding::Identity);
    let mut times = Vec::new();
    let mut seen = 0;
    for index in 0..EVENTS / 4 {
        let start = event(
            "content_block_start",
            &format!(
                "{{\"type\":\"content_block_start\",\"index\":{index},\"content_block\":{{\"type\":\"tool_use\",\"id\":\"t{index}\",\"name\":\"Bash\",\"input\":{{}}}}}}"
            ),
        );
        let part = |text: &str| {
            let part = serde_json::Value::String(text.to_owned());
            event(
                "content_block_delta",
                &format!(
                    "{{\"type\":\"content_block_delta\",\"index\":{index},\"delta\":{{\"type\":\"input_json_delta\",\"partial_json\":{part}}}}}"
                ),
            )
        };
        let end = event(
            "content_block_stop",
            &format!("{{\"type\":\"content_block_stop\",\"index\":{index}}}"),
        );
        let events = [
            start,
            part("{\"command\":\"npm install demo && cp -r build "),
            part(&format!("../reports/{index} | tee log\"}}")),
            end,
        ];
        for event in events {
            let start = Instant::now();
            for said in answer.feed(event.as_bytes()) {
                if let AnswerPart::Call(call) = said {
                    seen += usize::from(!calls.needs(&call, &tools, &context).writes.is_empty());
                }
            }
            times.push(start.elapsed().as_secs_f64() * 1e6);
        }
    }
    if seen != EVENTS / 4 {
        return Err(failed(format!("{seen} calls were read of {}", EVENTS / 4)));
    }
    Summary::of(&times).ok_or_else(|| failed("no samples".into()))
}

/// Does the run once per arm and round, reads answers, and says what the corpus would come to.
pub fn bench_intent(request: &IntentRequest) -> Result<IntentReport, BenchError> {
    if request.runs == 0 {
        let why = "bench intent needs at least one run";
        return Err(BenchError::Request(why.to_owned()));
    }
    check_needs()?;
    let host = HostFacts::now();
    let scratch = Scratch::new()?;
    let (data, reports) = (scratch.folder("data")?, scratch.folder("reports")?);
    let rows = data.join("rows.csv");
    std::fs::write(&rows, "1,2\n3,4\n").map_err(BenchError::file("write", &rows))?;
    let arms = in_turns(
        workers(request, &scratch, (&data, &reports))?,
        request.runs,
        &scratch,
    )?;
    let ratio = |name: &str| {
        let arm = arms.iter().find(|arm| arm.name == name);
        arm.map_or(f64::NAN, |arm| arm.ratio)
    };
    let more = |than: &str| (ratio("intent") / ratio(than) - 1.0) * 100.0;
    let event_microseconds = read_events()?;
    let verdicts = vec![
        Verdict::new("the run, beside static, by round", more("static"), TARGET),
        Verdict::new("the run, beside bare, by round", more("bare"), TARGET),
        Verdict::new("an event, p99", event_microseconds.p99, EVENT),
    ];
    Ok(IntentReport {
        bench: "intent",
        host,
        reproduce: format!("ironcage bench intent --runs {}", request.runs),
        arms,
        event_microseconds,
        questions: request.questions.clone(),
        verdicts,
    })
}

impl fmt::Display for IntentReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}", self.host)?;
        writeln!(f, "{}\n", self.reproduce)?;
        write!(f, "{}", Arms(&self.arms))?;
        writeln!(
            f,
            "\nmilliseconds for a run of ten commands, three of which need a lease, without the model's thinking between them"
        )?;
        writeln!(
            f,
            "reading an event of an answer: median {:.1} us, p99 {:.1} us; it is read from a copy, for which the stream does not wait",
            self.event_microseconds.median, self.event_microseconds.p99
        )?;
        let questions = &self.questions;
        let share = |count: usize| 100.0 * count as f64 / questions.commands.max(1) as f64;
        writeln!(
            f,
            "{} commands of the corpus under {}: {} need nothing; {} things given at once, {} refused; {:.1} questions for a hundred commands ({:.1} if nothing were remembered)",
            questions.commands,
            questions.policy,
            questions.plain,
            questions.given,
            questions.refused,
            share(questions.asked),
            share(questions.asked_each_time)
        )?;
        for verdict in &self.verdicts {
            writeln!(f, "{verdict}")?;
        }
        Ok(())
    }
}
