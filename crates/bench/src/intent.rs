//! `bench intent`: what it costs that leases follow what the agent is about to do: a whole run of a
//! scripted agent, the reading of its model's answer, and how often a person would be asked.
//!
//! The agent is a script of ten commands, each by its shell, of which three need something outside
//! of its workspace: bare, in a cage that has all of it from the start, and in one whose shell
//! has a scope made for each command that needs a lease.

use crate::scratch::Scratch;
use crate::statistics::{Shuffle, Summary};
use crate::table::{Table, number};
use crate::verdict::{Target, Verdict};
use crate::{BenchError, HostFacts};
use ironcage_intent::{Answer, Calls, Context, Encoding, Format, Said, Table as Tools};
use serde::Serialize;
use std::fmt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

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
    pub questions: Questions,
}

/// What commands of the corpus would come to.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Questions {
    /// By which policy.
    pub policy: String,
    /// Commands.
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

/// What was measured.
#[derive(Debug, Clone, Serialize)]
pub struct IntentReport {
    bench: &'static str,
    host: HostFacts,
    reproduce: String,
    arms: Vec<ArmReport>,
    /// Reading one event of an answer, in microseconds.
    event_microseconds: Summary,
    questions: Questions,
    verdicts: Vec<Verdict>,
}

#[derive(Debug, Clone, Serialize)]
struct ArmReport {
    name: &'static str,
    about: &'static str,
    milliseconds: Summary,
}

fn failed(arm: &'static str) -> impl Fn(String) -> BenchError {
    move |reason| BenchError::Failed {
        arm: arm.to_owned(),
        reason,
    }
}

/// The agent: ten commands, with the thinking between them left out.
fn script(data: &Path, reports: &Path) -> String {
    let (data, reports) = (data.display(), reports.display());
    let commands = [
        "for i in $(seq 200); do echo line $i > file-$i; done".to_owned(),
        "grep -l 7 file-* | wc -l > found".into(),
        "python3 -c 'print(sum(i * i for i in range(2000000)))' > sum".into(),
        format!("cat {data}/rows.csv > rows.csv"),
        "sed -i s/1/one/ rows.csv".into(),
        format!("sort {data}/rows.csv | uniq -c > counted"),
        "tar cf all.tar file-* && tar tf all.tar | wc -l > listed".into(),
        "python3 -c 'import json; json.dump(list(range(200000)), open(\"numbers.json\", \"w\"))'"
            .into(),
        "rm -f file-* all.tar numbers.json".into(),
        format!("cp rows.csv {reports}/rows.csv"),
    ];
    let mut text = String::from("set -e\n");
    for command in commands {
        text.push_str(&format!(
            "\"$SHELL\" -c '{}'\n",
            command.replace('\'', "'\\''")
        ));
    }
    text
}

struct ArmSetup {
    name: &'static str,
    about: &'static str,
    program: PathBuf,
    arguments: Vec<String>,
    times: Vec<f64>,
}

fn arms(
    request: &IntentRequest,
    scratch: &Scratch,
    (data, reports): (&Path, &Path),
) -> Result<Vec<ArmSetup>, BenchError> {
    let policy = scratch.path("intent.toml");
    let text = format!(
        "[ceiling]\nshell = \"scoped\"\n[ceiling.auto.files]\nread = [{:?}]\nwrite = [{:?}]\n",
        data.display().to_string(),
        reports.display().to_string()
    );
    std::fs::write(&policy, text).map_err(BenchError::file("write", &policy))?;
    let run = |flags: &[String]| {
        let mut arguments: Vec<String> = ["run", "-q", "--workspace-mode", "direct"]
            .map(str::to_owned)
            .to_vec();
        arguments.extend_from_slice(flags);
        arguments.extend(["--", "/bin/sh", "agent.sh"].map(str::to_owned));
        arguments
    };
    let arm = |name, about, program: &Path, arguments| ArmSetup {
        name,
        about,
        program: program.to_owned(),
        arguments,
        times: Vec::new(),
    };
    Ok(vec![
        arm(
            "bare",
            "sh agent.sh",
            Path::new("/bin/sh"),
            vec!["agent.sh".into()],
        ),
        arm(
            "static",
            "all of it from the start: -r DATA -w REPORTS:direct",
            &request.ironcage,
            run(&[
                "-r".into(),
                data.display().to_string(),
                "-w".into(),
                format!("{}:direct", reports.display()),
                "--env".into(),
                "SHELL=/bin/sh".into(),
            ]),
        ),
        arm(
            "intent",
            "leases for each command: ceiling.auto, --shell scoped",
            &request.ironcage,
            run(&["--policy".into(), policy.display().to_string()]),
        ),
    ])
}

fn run_once(arm: &ArmSetup, scratch: &Scratch, reports: &Path) -> Result<f64, BenchError> {
    let failed = failed(arm.name);
    let written = reports.join("rows.csv");
    // What was there before is not what this run wrote.
    let _ = std::fs::remove_file(&written);
    let mut command = Command::new(&arm.program);
    command
        .args(&arm.arguments)
        .current_dir(scratch.work())
        .env_clear()
        .envs(scratch.environment())
        .env("SHELL", "/bin/sh")
        .stdin(Stdio::null())
        .stdout(Stdio::null());
    let start = Instant::now();
    let ran = command
        .output()
        .map_err(|error| failed(error.to_string()))?;
    let time = start.elapsed();
    let said = String::from_utf8_lossy(&ran.stderr);
    if !ran.status.success() || !written.exists() {
        return Err(failed(format!("{}: {said}", ran.status)));
    }
    Ok(milliseconds(time))
}

fn milliseconds(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
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
    let mut answer = Answer::new(Format::Events, Encoding::Identity);
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
                if let Said::Call(call) = said {
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
    let host = HostFacts::now();
    let scratch = Scratch::new()?;
    let (data, reports) = (scratch.folder("data")?, scratch.folder("reports")?);
    let rows = data.join("rows.csv");
    std::fs::write(&rows, "1,2\n3,4\n").map_err(BenchError::file("write", &rows))?;
    let agent = scratch.work().join("agent.sh");
    std::fs::write(&agent, script(&data, &reports)).map_err(BenchError::file("write", &agent))?;
    let mut arms = arms(request, &scratch, (&data, &reports))?;
    let mut shuffle = Shuffle::new();
    // The first round fills the caches and is not counted.
    for round in 0..=request.runs {
        for index in shuffle.order(arms.len()) {
            let Some(arm) = arms.get_mut(index) else {
                continue;
            };
            let time = run_once(arm, &scratch, &reports)?;
            if round > 0 {
                arm.times.push(time);
            }
        }
    }
    let mut told = Vec::new();
    for arm in &arms {
        let none = || failed(arm.name)("no samples".into());
        told.push(ArmReport {
            name: arm.name,
            about: arm.about,
            milliseconds: Summary::of(&arm.times).ok_or_else(none)?,
        });
    }
    let median = |name: &str| {
        let arm = told.iter().find(|arm| arm.name == name);
        arm.map_or(f64::NAN, |arm| arm.milliseconds.median)
    };
    let more = |than: &str| (median("intent") / median(than) - 1.0) * 100.0;
    let event_microseconds = read_events()?;
    let verdicts = vec![
        Verdict::new("the run, beside static", more("static"), TARGET),
        Verdict::new("the run, beside bare", more("bare"), TARGET),
        Verdict::new("an event, p99", event_microseconds.p99, EVENT),
    ];
    Ok(IntentReport {
        bench: "intent",
        host,
        reproduce: format!("ironcage bench intent --runs {}", request.runs),
        arms: told,
        event_microseconds,
        questions: request.questions.clone(),
        verdicts,
    })
}

impl fmt::Display for IntentReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}", self.host)?;
        writeln!(f, "{}\n", self.reproduce)?;
        let mut table = Table::new(["arm", "median ms", "min ms", "p99 ms", "about"]);
        for arm in &self.arms {
            table.row([
                arm.name.to_owned(),
                number(arm.milliseconds.median, 1),
                number(arm.milliseconds.min, 1),
                number(arm.milliseconds.p99, 1),
                arm.about.to_owned(),
            ]);
        }
        write!(f, "{table}")?;
        writeln!(
            f,
            "\na run of ten commands, three of which need a lease, without the model's thinking between them"
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
