//! `bench exec`: what another command in a running cage costs, over the control socket and as a
//! command, beside a bare spawn.

use crate::arm::Arm;
use crate::scratch::Scratch;
use crate::statistics::{Shuffle, Summary};
use crate::table::{Table, number};
use crate::verdict::{Target, Verdict};
use crate::{ArmError, BenchError, HostFacts};
use ironcage_control::{
    Bytes, Channel, Dialled, ExecRequest, ExecStreams, Packet, Reply, Request, RuntimeDir,
    ScopeRequest,
};
use ironcage_model::{CageId, Ending};
use ironcage_sys::rustix::event::{PollFd, PollFlags, poll};
use serde::Serialize;
use std::ffi::OsString;
use std::fmt;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

/// What an exec over the socket may cost, in bare spawns.
const OVER_THE_SOCKET: Target = Target {
    at_most: 1.5,
    unit: "",
};
/// What it may cost as a command.
const AS_A_COMMAND: Target = Target {
    at_most: 2.5,
    unit: "",
};
/// What it may cost in a scope of its own.
const IN_A_SCOPE: Target = Target {
    at_most: 2.5,
    unit: "",
};
/// Execs that are thrown away first: caches fill, lazy things are made.
const WARM_UP: usize = 5;

/// What is to be measured.
#[derive(Debug, Clone)]
pub struct ExecBenchRequest {
    /// The `ironcage` program.
    pub ironcage: PathBuf,
    /// How many execs of each.
    pub runs: usize,
    /// The command, by its absolute path; it gets no arguments.
    pub command: PathBuf,
}

#[derive(Debug, Clone, Serialize)]
pub struct ExecReport {
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
    milliseconds: Summary,
    times_bare: f64,
}

/// A sticky cage that is stopped when this is dropped.
pub(crate) struct Cage<'a> {
    ironcage: &'a Path,
    scratch: &'a Scratch,
    pub(crate) id: CageId,
}

impl<'a> Cage<'a> {
    pub(crate) fn start(
        ironcage: &'a Path,
        scratch: &'a Scratch,
        flags: &[&str],
    ) -> Result<Self, BenchError> {
        let mut words = vec!["run", "-q", "-d"];
        words.extend(flags);
        let output = ours(ironcage, scratch, &words)?;
        let text = String::from_utf8_lossy(&output.stdout).trim().to_owned();
        let failed = |reason: String| BenchError::Failed {
            arm: "ironcage".to_owned(),
            reason: ArmError::Result(reason),
        };
        if !output.status.success() {
            return Err(failed(String::from_utf8_lossy(&output.stderr).into_owned()));
        }
        let id = text.parse().map_err(|_| failed(format!("no id: {text}")))?;
        Ok(Cage {
            ironcage,
            scratch,
            id,
        })
    }
}

impl Drop for Cage<'_> {
    fn drop(&mut self) {
        // Its state goes with the scratch anyway.
        let _ = ours(
            self.ironcage,
            self.scratch,
            &["rm", "--force", self.id.as_str()],
        );
    }
}

fn ours(
    ironcage: &Path,
    scratch: &Scratch,
    arguments: &[&str],
) -> Result<std::process::Output, BenchError> {
    Command::new(ironcage)
        .args(arguments)
        .env_clear()
        .envs(scratch.environment())
        .current_dir(scratch.work())
        .output()
        .map_err(|source| BenchError::Spawn {
            program: "ironcage".to_owned(),
            source,
        })
}

/// Connects to a cage's control socket.
pub(crate) fn dial(place: &RuntimeDir, id: &CageId) -> Result<Channel, ArmError> {
    let entries = place.entries().map_err(ArmError::system("list cages"))?;
    let entry = entries.into_iter().find(|entry| entry.id == *id);
    let entry = entry.ok_or(ArmError::CageGone)?;
    match RuntimeDir::dial(&entry).map_err(ArmError::system("connect to the cage"))? {
        Dialled::Open(channel) => Ok(channel),
        other => Err(ArmError::Answer {
            expected: "an open connection",
            got: format!("{other:?}"),
        }),
    }
}

/// One exec over the control socket, from the connection to the exit status.
pub(crate) fn over_the_socket(
    place: &RuntimeDir,
    id: &CageId,
    command: &Path,
    scope: Option<ScopeRequest>,
) -> Result<Duration, ArmError> {
    let start = Instant::now();
    let channel = dial(place, id)?;
    let request = Request::Exec(ExecRequest {
        argv: vec![Bytes(command.as_os_str().as_bytes().to_vec())],
        env: Vec::new(),
        cwd: None,
        streams: ExecStreams::Pipes { input: false },
        scope,
    });
    channel
        .send(&request, &[])
        .map_err(ArmError::system("send a request"))?;
    // The outer ends of the streams stay open until the end.
    let mut streams = Vec::new();
    loop {
        match next(&channel)? {
            Packet::Message(Reply::Started { .. }, descriptors) => streams.extend(descriptors),
            Packet::Message(Reply::ExecEnded(Ending::Exited { code: 0 }), _) => {
                return Ok(start.elapsed());
            }
            other => {
                return Err(ArmError::Answer {
                    expected: "the end of the command",
                    got: format!("{other:?}"),
                });
            }
        }
    }
}

/// Waits for the next answer.
pub(crate) fn next(channel: &Channel) -> Result<Packet<Reply>, ArmError> {
    loop {
        let packet = channel
            .receive(false)
            .map_err(ArmError::system("read an answer"))?;
        if let Some(packet) = packet {
            return Ok(packet);
        }
        let mut fds = [PollFd::new(channel, PollFlags::IN)];
        poll(&mut fds, None).map_err(ArmError::system("poll"))?;
    }
}

/// Runs each once per round, `runs` rounds, and compares.
pub fn bench_exec(request: &ExecBenchRequest) -> Result<ExecReport, BenchError> {
    if request.runs == 0 || !request.command.is_absolute() {
        let why = "bench exec needs at least one run and a command by its absolute path";
        return Err(BenchError::Request(why.to_owned()));
    }
    let host = HostFacts::now();
    let scratch = Scratch::new()?;
    let cage = Cage::start(&request.ironcage, &scratch, &[])?;
    let place = RuntimeDir::of_user(&scratch.path("state").join("ironcage"));
    let command = request.command.as_path();
    let mut bare = Arm::spawned("bare", command, &[], scratch.work(), &scratch)?;
    let words = ["exec", cage.id.as_str(), "--"].map(OsString::from);
    let words: Vec<OsString> = words.into_iter().chain([command.into()]).collect();
    let mut caged = Arm::spawned("exec", &request.ironcage, &words, scratch.work(), &scratch)?;
    let mut times = [Vec::new(), Vec::new(), Vec::new(), Vec::new()];
    let mut shuffle = Shuffle::new();
    for round in 0..WARM_UP + request.runs {
        if round == WARM_UP {
            times.iter_mut().for_each(Vec::clear);
        }
        for index in shuffle.order(times.len()) {
            let (arm, measured) = match index {
                0 => ("bare", bare.measure()?),
                1 => ("socket", over_the_socket(&place, &cage.id, command, None)),
                2 => ("exec", caged.measure()?),
                _ => {
                    let scope = Some(ScopeRequest::default());
                    ("scope", over_the_socket(&place, &cage.id, command, scope))
                }
            };
            let elapsed = measured.map_err(|reason| BenchError::Failed {
                arm: arm.to_owned(),
                reason,
            })?;
            times[index].push(elapsed);
        }
    }
    let about = [
        (
            "bare",
            format!("{} started by the bench", command.display()),
        ),
        (
            "socket",
            "the same in the cage, over its control socket".to_owned(),
        ),
        ("exec", "the same by `ironcage exec`".to_owned()),
        (
            "scope",
            "the same in a scope of its own, over the control socket, to its end".to_owned(),
        ),
    ];
    let none = || BenchError::Request("no samples".to_owned());
    let bare = Summary::of_times(&times[0]).ok_or_else(none)?;
    let mut arms = Vec::new();
    for ((name, about), times) in about.into_iter().zip(&times) {
        let milliseconds = Summary::of_times(times).ok_or_else(none)?;
        arms.push(ArmReport {
            name,
            about,
            milliseconds,
            times_bare: milliseconds.median / bare.median,
        });
    }
    let verdicts = arms
        .iter()
        .zip([
            None,
            Some(OVER_THE_SOCKET),
            Some(AS_A_COMMAND),
            Some(IN_A_SCOPE),
        ])
        .filter_map(|(arm, target)| {
            let what = format!("{} / bare, by median", arm.name);
            Some(Verdict::new(what, arm.times_bare, target?))
        })
        .collect();
    Ok(ExecReport {
        bench: "exec",
        host,
        reproduce: format!(
            "ironcage bench exec --runs {} --command {}",
            request.runs,
            command.display()
        ),
        arms,
        verdicts,
    })
}

impl fmt::Display for ExecReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}", self.host)?;
        writeln!(f, "{}\n", self.reproduce)?;
        let mut table = Table::new([
            "arm",
            "median ms",
            "quartiles",
            "min ms",
            "p99 ms",
            "x bare",
        ]);
        for arm in &self.arms {
            table.row([
                arm.name.to_owned(),
                number(arm.milliseconds.median, 3),
                arm.milliseconds.spread(3),
                number(arm.milliseconds.min, 3),
                number(arm.milliseconds.p99, 3),
                number(arm.times_bare, 2),
            ]);
        }
        write!(f, "{table}")?;
        writeln!(f)?;
        for arm in &self.arms {
            writeln!(f, "{}: {}", arm.name, arm.about)?;
        }
        for verdict in &self.verdicts {
            writeln!(f, "{verdict}")?;
        }
        Ok(())
    }
}
