//! `bench workspace`: what a copy-on-write workspace costs: the start of a command in trees of
//! different sizes, and work on one of them, bare, on the real files, copy-on-write, and on a
//! copy that is made first.

use crate::arm::Arm;
use crate::scratch::Scratch;
use crate::statistics::{Shuffle, Summary};
use crate::table::{Table, number};
use crate::task::{self, Arms, TaskArm, Worker};
use crate::verdict::{Target, Verdict};
use crate::{ArmError, BenchError, HostFacts};
use serde::Serialize;
use std::ffi::OsString;
use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// How much longer a start in the largest tree may take than in an empty one.
const FLAT: Target = Target {
    at_most: 10.0,
    unit: "%",
};
/// How much longer the agent's task may take copy-on-write than bare.
const TASK: Target = Target {
    at_most: 5.0,
    unit: "%",
};
/// How often the agent's task is done for each run of the others, which spread less.
const ROUNDS: usize = 5;
/// Files of the tree that work is done in, and of the archive that is unpacked in it.
const FILES: usize = 10_000;
const PER_DIRECTORY: usize = 100;
const PROGRAM: &str = include_str!("../task/program.c");

/// Work on the tree: a name, and a script that fails where the result is not the right one.
const WORK: [(&str, &str); 4] = [
    ("git status", "test -z \"$(git status --porcelain)\""),
    (
        "untar 10,000 files",
        "mkdir out && tar -C out -xf files.tar && test \"$(find out -type f | wc -l)\" = 10000",
    ),
    (
        "grep -r",
        "test \"$(grep -rl --include='*.txt' 'needle 77 ' . | wc -l)\" = 100",
    ),
    (
        "build",
        "mkdir out && for i in 1 2 3 4 5 6; do gcc -O2 -c program.c -o out/$i.o; done && test -s out/6.o",
    ),
];

/// What is to be measured.
#[derive(Debug, Clone)]
pub struct WorkspaceRequest {
    /// The `ironcage` program.
    pub ironcage: PathBuf,
    /// How many starts in each tree.
    pub starts: usize,
    /// How often each arm does each task.
    pub runs: usize,
    /// Files in the largest tree.
    pub files: usize,
}

#[derive(Debug, Clone, Serialize)]
pub struct WorkspaceReport {
    bench: &'static str,
    host: HostFacts,
    reproduce: String,
    starts: Vec<StartIn>,
    work: Vec<Work>,
    task: Vec<TaskArm>,
    verdicts: Vec<Verdict>,
}

#[derive(Debug, Clone, Serialize)]
struct StartIn {
    files: usize,
    name: &'static str,
    milliseconds: Summary,
}

#[derive(Debug, Clone, Serialize)]
struct Work {
    work: &'static str,
    name: &'static str,
    milliseconds: Summary,
    ratio_median: f64,
    ratio_min: f64,
}

/// Measures starts, then work.
pub fn bench_workspace(request: &WorkspaceRequest) -> Result<WorkspaceReport, BenchError> {
    if request.starts == 0 || request.runs == 0 {
        let why = "bench workspace needs at least one start and one run";
        return Err(BenchError::Request(why.to_owned()));
    }
    task::check_needs()?;
    let host = HostFacts::now();
    let starts = starts(request)?;
    let work = work(request)?;
    let task = agents_task(request)?;
    Ok(WorkspaceReport {
        bench: "workspace",
        host,
        reproduce: format!(
            "ironcage bench workspace --starts {} --runs {} --files {}",
            request.starts, request.runs, request.files
        ),
        verdicts: verdicts(&starts, &task),
        starts,
        work,
        task,
    })
}

fn verdicts(starts: &[StartIn], task: &[TaskArm]) -> Vec<Verdict> {
    let mut cow = starts.iter().filter(|start| start.name == "cow");
    let flat = cow.next().zip(cow.next_back()).map(|(empty, largest)| {
        let ratio = largest.milliseconds.median / empty.milliseconds.median;
        let what = format!("added to a start by {} files, by median", largest.files);
        Verdict::new(what, (ratio - 1.0) * 100.0, FLAT)
    });
    let added = task
        .iter()
        .filter(|arm| arm.name == "cow")
        .flat_map(|arm| [("by round", arm.ratio), ("by min", arm.ratio_min)])
        .map(|(by, ratio)| {
            let what = format!("added to the task by cow, {by}");
            Verdict::new(what, (ratio - 1.0) * 100.0, TASK)
        });
    flat.into_iter().chain(added).collect()
}

/// The mixed task of `bench task`, in a workspace made anew for each run.
fn agents_task(request: &WorkspaceRequest) -> Result<Vec<TaskArm>, BenchError> {
    let scratch = Scratch::new()?;
    let workers = vec![
        Worker::bare(&scratch)?,
        Worker::caged("direct", "direct", &request.ironcage, &scratch)?,
        Worker::caged("cow", "cow", &request.ironcage, &scratch)?,
    ];
    task::in_turns(workers, request.runs * ROUNDS, &scratch)
}

fn starts(request: &WorkspaceRequest) -> Result<Vec<StartIn>, BenchError> {
    let mut measured = Vec::new();
    for files in [0, FILES.min(request.files), request.files] {
        let scratch = Scratch::new()?;
        // Empty ones: nothing reads them, and some disks take long to let go of what was in them.
        fill(scratch.work(), files, |_| String::new())?;
        let mut arms = Vec::new();
        for mode in ["direct", "cow"] {
            let arguments = caged(mode, &["/bin/true".into()]);
            let arm = Arm::spawned(
                mode,
                &request.ironcage,
                &arguments,
                scratch.work(),
                &scratch,
            )?;
            arms.push((mode, arm, Vec::new()));
        }
        let mut shuffle = Shuffle::new();
        for round in 0..=request.starts {
            for index in shuffle.order(arms.len()) {
                let (name, arm, times) = &mut arms[index];
                let elapsed = arm.measure()?.map_err(|reason| failed(name, reason))?;
                // The first round fills the caches and is not counted.
                if round > 0 {
                    times.push(elapsed);
                }
            }
        }
        measured.extend(arms.into_iter().filter_map(|(name, _, times)| {
            Some(StartIn {
                files,
                name,
                milliseconds: Summary::of_times(&times)?,
            })
        }));
    }
    Ok(measured)
}

/// `ironcage run` of a command. A change of its own each time, so that none finds what the one
/// before it left.
fn caged(mode: &str, command: &[OsString]) -> Vec<OsString> {
    let flags = ["run", "-q", "--fresh", "--workspace-mode", mode, "--"];
    let flags = flags.into_iter().map(OsString::from);
    flags.chain(command.iter().cloned()).collect()
}

fn failed(arm: &str, reason: ArmError) -> BenchError {
    BenchError::Failed {
        arm: arm.to_owned(),
        reason,
    }
}

/// So many files, a hundred in each directory, with what each is to hold.
fn fill(work: &Path, files: usize, text: fn(usize) -> String) -> Result<(), BenchError> {
    for number in 0..files {
        let directory = work.join(format!("d{:05}", number / PER_DIRECTORY));
        if number % PER_DIRECTORY == 0 {
            std::fs::create_dir(&directory).map_err(BenchError::file("make", &directory))?;
        }
        let path = directory.join(format!("f{number}.txt"));
        std::fs::write(&path, text(number)).map_err(BenchError::file("write", &path))?;
    }
    Ok(())
}

struct Doer {
    name: &'static str,
    arm: Arm,
    times: Vec<Duration>,
}

fn work(request: &WorkspaceRequest) -> Result<Vec<Work>, BenchError> {
    let scratch = Scratch::new()?;
    let work = scratch.work().to_owned();
    fill(&work, FILES, |number| {
        format!("file {number}\nneedle {} here\n", number % PER_DIRECTORY)
    })?;
    let program = work.join("program.c");
    std::fs::write(&program, PROGRAM).map_err(BenchError::file("write", &program))?;
    prepare(&work, &scratch)?;
    let mut measured = Vec::new();
    for (name, script) in WORK {
        let mut workers = doers(request, &scratch, script)?;
        let mut shuffle = Shuffle::new();
        for round in 0..=request.runs {
            for index in shuffle.order(workers.len()) {
                let worker = &mut workers[index];
                clean(&scratch)?;
                let elapsed = worker.arm.measure()?;
                let elapsed = elapsed.map_err(|reason| failed(worker.name, reason))?;
                if round > 0 {
                    worker.times.push(elapsed);
                }
            }
        }
        clean(&scratch)?;
        measured.extend(summarise(name, workers));
    }
    Ok(measured)
}

/// The tree as a repository, and an archive of it. Git packs so many objects by itself, in the
/// background and under the hands of those who are measured; so that is done here.
fn prepare(work: &Path, scratch: &Scratch) -> Result<(), BenchError> {
    let script = "tar -cf files.tar d* && git init -q . && git config gc.auto 0 && git config maintenance.auto false && printf 'files.tar\\nout\\n' > .git/info/exclude && \
                  git add . && git -c user.name=bench -c user.email=bench@example.invalid commit -q -m all && git repack -adq";
    let arguments = ["-c", script].map(OsString::from);
    let mut arm = Arm::spawned("prepare", Path::new("/bin/sh"), &arguments, work, scratch)?;
    arm.measure()?.map_err(|reason| failed("prepare", reason))?;
    Ok(())
}

fn doers(
    request: &WorkspaceRequest,
    scratch: &Scratch,
    script: &str,
) -> Result<Vec<Doer>, BenchError> {
    let shell = Path::new("/bin/sh");
    let plain = ["-c".into(), OsString::from(script)];
    let copied = format!("cp -a . ../copy && cd ../copy && {script}");
    let command = ["/bin/sh".into(), "-c".into(), OsString::from(script)];
    let arms = [
        ("bare", shell, plain.to_vec()),
        ("direct", &request.ironcage, caged("direct", &command)),
        ("cow", &request.ironcage, caged("cow", &command)),
        ("copy", shell, vec!["-c".into(), copied.into()]),
    ];
    arms.into_iter()
        .map(|(name, program, arguments)| {
            Ok(Doer {
                name,
                arm: Arm::spawned(name, program, &arguments, scratch.work(), scratch)?,
                times: Vec::new(),
            })
        })
        .collect()
}

/// Takes away what a run left: in the tree, beside it, and in Ironcage's state.
fn clean(scratch: &Scratch) -> Result<(), BenchError> {
    scratch.put_aside(&scratch.work().join("out"))?;
    scratch.put_aside(&scratch.path("copy"))?;
    scratch.put_aside(&scratch.path("state"))
}

fn summarise(work: &'static str, workers: Vec<Doer>) -> Vec<Work> {
    let bare = workers
        .first()
        .and_then(|bare| Summary::of_times(&bare.times));
    workers
        .into_iter()
        .filter_map(|worker| {
            let milliseconds = Summary::of_times(&worker.times)?;
            let bare = bare?;
            Some(Work {
                work,
                name: worker.name,
                milliseconds,
                ratio_median: milliseconds.median / bare.median,
                ratio_min: milliseconds.min / bare.min,
            })
        })
        .collect()
}

impl fmt::Display for WorkspaceReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "a copy-on-write workspace, milliseconds")?;
        write!(f, "{}", self.host)?;
        writeln!(f, "command: {}\n", self.reproduce)?;
        let mut table = Table::new(["start of /bin/true", "median", "min", "p99"]);
        for start in &self.starts {
            table.row([
                format!("{} files, {}", start.files, start.name),
                number(start.milliseconds.median, 2),
                number(start.milliseconds.min, 2),
                number(start.milliseconds.p99, 2),
            ]);
        }
        writeln!(f, "{table}")?;
        let mut table = Table::new(["work", "median", "min", "ratio (median)", "ratio (min)"]);
        for work in &self.work {
            table.row([
                format!("{}, {}", work.work, work.name),
                number(work.milliseconds.median, 1),
                number(work.milliseconds.min, 1),
                number(work.ratio_median, 3),
                number(work.ratio_min, 3),
            ]);
        }
        writeln!(f, "{table}")?;
        writeln!(
            f,
            "direct: on the real files in a cage; cow: the default; copy: `cp -a` first, then bare\n"
        )?;
        writeln!(f, "the agent's task, as in `ironcage bench task`")?;
        writeln!(f, "{}", Arms(&self.task))?;
        for verdict in &self.verdicts {
            writeln!(f, "{verdict}")?;
        }
        Ok(())
    }
}
