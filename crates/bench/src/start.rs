//! `bench start`: what a start costs, from spawn to exit, beside the bare command, the
//! peers and the floor.

use crate::arm::Arm;
use crate::peers::{
    Bundle, BwrapView, bwrap_arguments, crun_arguments, find_program, sandlock_arguments, version,
};
use crate::resident::{HYBRID, Resident};
use crate::scratch::Scratch;
use crate::statistics::{Shuffle, Summary};
use crate::table::{Table, number};
use crate::verdict::{Target, Verdict};
use crate::{ArmError, BenchError, HostFacts, own_program};
use ironcage_sys::rustix::process::geteuid;
use serde::Serialize;
use std::ffi::OsString;
use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// What Ironcage may add to a bare start, as a share of what `bwrap` adds: required, and then as
/// goals.
struct Bars {
    arm: &'static str,
    required: f64,
    goals: [f64; 2],
}

const BARS: [Bars; 2] = [
    Bars {
        arm: "ironcage",
        required: 1.3,
        goals: [1.0, 0.6],
    },
    Bars {
        arm: "direct",
        required: 1.0,
        goals: [0.8, 0.6],
    },
];
/// Starts that are thrown away first: caches fill, lazy things are made.
const WARM_UP: usize = 5;

/// An emulated machine: its starts take seconds, and are measured this often.
const EMULATED: &str = "microvm";
const EMULATED_RUNS: usize = 5;

/// What is to be measured.
#[derive(Debug, Clone)]
pub struct StartRequest {
    /// The `ironcage` program.
    pub ironcage: PathBuf,
    /// How many starts of each.
    pub runs: usize,
    /// The command that is started, by its absolute path; it gets no arguments.
    pub command: PathBuf,
}

#[derive(Debug, Clone, Serialize)]
pub struct StartReport {
    bench: &'static str,
    host: HostFacts,
    reproduce: String,
    arms: Vec<ArmReport>,
    verdicts: Vec<Verdict>,
}

#[derive(Debug, Clone, Serialize)]
struct ArmReport {
    name: &'static str,
    about: String,
    #[serde(flatten)]
    outcome: ArmOutcome,
}

#[derive(Debug, Clone, Serialize)]
#[serde(tag = "status", rename_all = "kebab-case")]
enum ArmOutcome {
    Measured {
        milliseconds: Summary,
        added_median: f64,
        added_min: f64,
    },
    Unavailable {
        reason: String,
    },
}

struct Candidate {
    name: &'static str,
    about: String,
    state: Result<Arm, ArmError>,
    times: Vec<Duration>,
}

impl Candidate {
    fn new(name: &'static str, about: impl Into<String>, state: Result<Arm, ArmError>) -> Self {
        Candidate {
            name,
            about: about.into(),
            state,
            times: Vec::new(),
        }
    }

    /// Without these two there is nothing to compare.
    fn is_required(&self) -> bool {
        matches!(self.name, "bare" | "ironcage")
    }

    fn measure(&mut self) -> Result<(), BenchError> {
        let Ok(arm) = &mut self.state else {
            return Ok(());
        };
        match arm.measure()? {
            Ok(elapsed) => self.times.push(elapsed),
            Err(reason) if self.is_required() => {
                return Err(BenchError::Failed {
                    arm: self.name.to_owned(),
                    reason,
                });
            }
            Err(reason) => self.state = Err(reason),
        }
        Ok(())
    }
}

/// Starts each arm once per round, `runs` rounds, and compares.
pub fn bench_start(request: &StartRequest) -> Result<StartReport, BenchError> {
    if request.runs == 0 || !request.command.is_absolute() {
        let why = "bench start needs at least one run and a command by its absolute path";
        return Err(BenchError::Request(why.to_owned()));
    }
    let host = HostFacts::now();
    let scratch = Scratch::new()?;
    let mut candidates = candidates(request, &scratch)?;
    let mut shuffle = Shuffle::new();
    for round in 0..WARM_UP + request.runs {
        if round == WARM_UP {
            candidates.iter_mut().for_each(|c| c.times.clear());
        }
        for index in shuffle.order(candidates.len()) {
            let candidate = &mut candidates[index];
            let enough = round < WARM_UP || candidate.times.len() >= EMULATED_RUNS;
            if candidate.name != EMULATED || !enough {
                candidate.measure()?;
            }
        }
    }
    let command = request.command.display();
    let reproduce = format!(
        "ironcage bench start --runs {} --command {command}",
        request.runs
    );
    let arms = outcomes(candidates);
    let verdicts = verdicts(&arms);
    Ok(StartReport {
        bench: "start",
        host,
        reproduce,
        arms,
        verdicts,
    })
}

fn candidates(request: &StartRequest, scratch: &Scratch) -> Result<Vec<Candidate>, BenchError> {
    let command = request.command.as_path();
    let work = scratch.work();
    let bare = Arm::spawned("bare", command, &[], work, scratch)?;
    let caged = |name, flags: &[&str]| {
        let words = ["run", "-q"].iter().chain(flags).chain(&["--"]);
        let words = words.map(OsString::from).chain([command.into()]);
        let words: Vec<OsString> = words.collect();
        Arm::spawned(name, &request.ironcage, &words, work, scratch)
    };
    let ironcage = caged("ironcage", &[])?;
    let direct = caged("direct", &["--workspace-mode", "direct"])?;
    let flags = ["--isolation", EMULATED, "--memory", "512M"];
    let emulated = match scratch.copy_guest()? {
        true => Ok(caged(EMULATED, &flags)?),
        false => Err(ArmError::Result(
            "`ironcage setup microvm` makes its guest".into(),
        )),
    };
    Ok(vec![
        Candidate::new("bare", command.display().to_string(), Ok(bare)),
        bwrap(command, scratch)?,
        crun(request, scratch)?,
        sandlock(command, scratch)?,
        floor(request, scratch)?,
        Candidate::new("ironcage", "run -q, all layers", Ok(ironcage)),
        Candidate::new(
            "direct",
            "the same on the real files, with --workspace-mode direct",
            Ok(direct),
        ),
        Candidate::new(
            EMULATED,
            format!("--isolation microvm --memory 512M, emulated, {EMULATED_RUNS} starts"),
            emulated,
        ),
    ])
}

fn bwrap(command: &Path, scratch: &Scratch) -> Result<Candidate, BenchError> {
    let Some(program) = find_program("bwrap") else {
        let reason = Err(ArmError::NotInstalled {
            package: "bubblewrap",
        });
        return Ok(Candidate::new("bwrap", "", reason));
    };
    let mut arguments = bwrap_arguments(BwrapView {
        workspace: scratch.work(),
        with_etc: false,
    });
    arguments.push(command.into());
    let arm = Arm::spawned("bwrap", &program, &arguments, scratch.work(), scratch)?;
    let about = format!("{}, --unshare-all and the usual binds", version(&program));
    Ok(Candidate::new("bwrap", about, Ok(arm)))
}

fn sandlock(command: &Path, scratch: &Scratch) -> Result<Candidate, BenchError> {
    let Some(program) = find_program("sandlock") else {
        let reason = Err(ArmError::NotInstalled {
            package: "sandlock-cli",
        });
        return Ok(Candidate::new("sandlock", "", reason));
    };
    let arguments = sandlock_arguments(scratch.work(), command);
    let arm = Arm::spawned("sandlock", &program, &arguments, scratch.work(), scratch)?;
    let about = format!("{}, Landlock and seccomp, no namespaces", version(&program));
    Ok(Candidate::new("sandlock", about, Ok(arm)))
}

/// The first of crun's ways to treat cgroups that works here.
fn crun(request: &StartRequest, scratch: &Scratch) -> Result<Candidate, BenchError> {
    let Some(program) = find_program("crun") else {
        let reason = Err(ArmError::NotInstalled { package: "crun" });
        return Ok(Candidate::new("crun", "", reason));
    };
    let bundle = Bundle::new(scratch, "bundle", &[request.command.clone().into()])?;
    let mut refusal = ArmError::NoSamples;
    let managers = ["systemd", "cgroupfs", "disabled"];
    for manager in managers {
        let arguments = crun_arguments(scratch, bundle.path(), manager);
        let mut arm = Arm::spawned("crun", &program, &arguments, scratch.work(), scratch)?;
        match arm.measure()? {
            Ok(_) => {
                let about = format!("{}, cgroup manager {manager}", version(&program));
                return Ok(Candidate::new("crun", about, Ok(arm)));
            }
            Err(reason) => refusal = reason,
        }
    }
    // A hybrid cgroup tree is refused by crun; root can show it one that is not.
    if geteuid().is_root() && Path::new(HYBRID).is_dir() {
        for manager in managers {
            let mut arguments: Vec<OsString> = vec!["__bench-launcher".into(), "--".into()];
            arguments.push(program.clone().into());
            arguments.extend(crun_arguments(scratch, bundle.path(), manager));
            let resident = Resident::start("crun", &own_program()?, &arguments, scratch)?;
            let mut arm = Arm::Resident(resident);
            match arm.measure()? {
                Ok(_) => {
                    let about = format!(
                        "{}, cgroup manager {manager}, in a mount namespace with the version 2 tree alone",
                        version(&program)
                    );
                    return Ok(Candidate::new("crun", about, Ok(arm)));
                }
                Err(reason) => refusal = reason,
            }
        }
    }
    Ok(Candidate::new("crun", version(&program), Err(refusal)))
}

fn floor(request: &StartRequest, scratch: &Scratch) -> Result<Candidate, BenchError> {
    let arguments: Vec<OsString> = vec![
        "__bench-floor".into(),
        "--root".into(),
        scratch.folder("floor")?.into(),
        "--workspace".into(),
        scratch.work().into(),
        "--".into(),
        request.command.clone().into(),
    ];
    let resident = Resident::start("floor", &own_program()?, &arguments, scratch)?;
    let about = "the same namespaces and mounts and nothing else, from a resident process";
    Ok(Candidate::new("floor", about, Ok(Arm::Resident(resident))))
}

fn outcomes(candidates: Vec<Candidate>) -> Vec<ArmReport> {
    let summary = |candidate: &Candidate| match &candidate.state {
        Ok(_) => Summary::of_times(&candidate.times).ok_or(ArmError::NoSamples),
        Err(reason) => Err(reason.clone()),
    };
    let bare = candidates
        .iter()
        .find(|candidate| candidate.name == "bare")
        .and_then(|candidate| summary(candidate).ok());
    candidates
        .into_iter()
        .map(|candidate| ArmReport {
            name: candidate.name,
            outcome: match (summary(&candidate), bare) {
                (Ok(milliseconds), Some(bare)) => ArmOutcome::Measured {
                    milliseconds,
                    added_median: milliseconds.median - bare.median,
                    added_min: milliseconds.min - bare.min,
                },
                (Ok(_), None) => ArmOutcome::Unavailable {
                    reason: ArmError::NothingToCompare.to_string(),
                },
                (Err(error), _) => ArmOutcome::Unavailable {
                    reason: error.to_string(),
                },
            },
            about: candidate.about,
        })
        .collect()
}

fn verdicts(arms: &[ArmReport]) -> Vec<Verdict> {
    let added = |wanted: &str| {
        let arm = arms.iter().find(|arm| arm.name == wanted)?;
        match arm.outcome {
            ArmOutcome::Measured {
                added_median,
                added_min,
                ..
            } => Some((added_median, added_min)),
            ArmOutcome::Unavailable { .. } => None,
        }
    };
    let Some(theirs) = added("bwrap") else {
        return Vec::new();
    };
    let mut verdicts = Vec::new();
    for bars in &BARS {
        let Some(ours) = added(bars.arm) else {
            continue;
        };
        let ratios = [
            ("by median", ours.0 / theirs.0),
            ("by min", ours.1 / theirs.1),
        ];
        for (how, ratio) in ratios {
            let what = format!("added by {} / added by bwrap, {how}", bars.arm);
            let mut judge = |what: String, at_most: f64| {
                verdicts.push(Verdict::new(what, ratio, Target { at_most, unit: "" }));
            };
            judge(what.clone(), bars.required);
            for goal in bars.goals {
                judge(format!("{what}, goal"), goal);
            }
        }
    }
    verdicts
}

impl fmt::Display for StartReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "start of a command, spawn to exit, milliseconds")?;
        write!(f, "{}", self.host)?;
        writeln!(f, "command: {}\n", self.reproduce)?;
        let mut table = Table::new([
            "",
            "median",
            "quartiles",
            "min",
            "p99",
            "added (median)",
            "added (min)",
        ]);
        for arm in &self.arms {
            if let ArmOutcome::Measured {
                milliseconds,
                added_median,
                added_min,
            } = &arm.outcome
            {
                table.row([
                    arm.name.to_owned(),
                    number(milliseconds.median, 2),
                    milliseconds.spread(2),
                    number(milliseconds.min, 2),
                    number(milliseconds.p99, 2),
                    number(*added_median, 2),
                    number(*added_min, 2),
                ]);
            }
        }
        writeln!(f, "{table}")?;
        for arm in &self.arms {
            match &arm.outcome {
                ArmOutcome::Measured { milliseconds, .. } => {
                    writeln!(
                        f,
                        "{}: {} ({} runs)",
                        arm.name, arm.about, milliseconds.runs
                    )?;
                }
                ArmOutcome::Unavailable { reason } => {
                    writeln!(f, "{}: not measured: {reason}", arm.name)?;
                }
            }
        }
        writeln!(f)?;
        for verdict in &self.verdicts {
            writeln!(f, "{verdict}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn measured(name: &'static str, median: f64, min: f64) -> ArmReport {
        let milliseconds = Summary {
            runs: 1,
            median,
            min,
            p99: median,
            quartiles: [median, median],
        };
        ArmReport {
            name,
            about: String::new(),
            outcome: ArmOutcome::Measured {
                milliseconds,
                added_median: median - 1.0,
                added_min: min - 1.0,
            },
        }
    }

    #[test]
    fn ratio_is_of_what_each_adds_over_bare() {
        let arms = [
            measured("bare", 1.0, 1.0),
            measured("bwrap", 5.0, 3.0),
            measured("ironcage", 3.0, 2.5),
        ];
        let verdicts = verdicts(&arms);
        let judged: Vec<_> = verdicts
            .iter()
            .map(|verdict| (verdict.value, verdict.target.at_most, verdict.met))
            .collect();
        let median = [(0.5, 1.3, true), (0.5, 1.0, true), (0.5, 0.6, true)];
        let min = [(0.75, 1.3, true), (0.75, 1.0, true), (0.75, 0.6, false)];
        assert_eq!(judged, [median, min].concat());
    }

    #[test]
    fn without_bwrap_there_is_no_ratio() {
        let arms = [measured("bare", 1.0, 1.0), measured("ironcage", 3.0, 2.5)];
        assert!(verdicts(&arms).is_empty());
    }

    #[test]
    fn relative_command_and_zero_runs_are_refused() {
        let request = StartRequest {
            ironcage: "/nonexistent".into(),
            runs: 1,
            command: "true".into(),
        };
        assert!(matches!(bench_start(&request), Err(BenchError::Request(_))));
        let request = StartRequest {
            runs: 0,
            command: "/bin/true".into(),
            ..request
        };
        assert!(matches!(bench_start(&request), Err(BenchError::Request(_))));
    }
}
