//! `ironcage bench`: what a cage costs, measured on this host.

use crate::cage_flags::CageFlags;
use crate::error::{CliError, CommandResult};
use crate::json;
use clap::Subcommand;
use ironcage_bench as bench;
use ironcage_intent::{Context, Destination, Shell, Table};
use ironcage_model::{Contact, Resource};
use ironcage_runtime::forecast;
use serde::Serialize;
use std::ffi::OsString;
use std::fmt::Display;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Exit status of a bench whose checks failed; a missed target is not one of them.
const CHECK_FAILED: u8 = 1;

/// Measure what a cage costs on this host, beside the bare command and the peers.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    bench: Bench,
    /// Print JSON instead of a table.
    #[arg(long, global = true)]
    json: bool,
}

#[derive(Debug, Subcommand)]
enum Bench {
    /// The start of a command, from spawn to exit: bare, bwrap, crun, the floor, Ironcage.
    Start {
        /// How many starts of each.
        #[arg(long, default_value_t = 200)]
        runs: usize,
        /// The command to start, by its absolute path; it gets no arguments.
        #[arg(long, value_name = "PATH", default_value = "/bin/true")]
        command: PathBuf,
    },
    /// Another command in a running cage: bare, over the control socket, by `ironcage exec`.
    Exec {
        /// How many execs of each.
        #[arg(long, default_value_t = 200)]
        runs: usize,
        /// The command to start, by its absolute path; it gets no arguments.
        #[arg(long, value_name = "PATH", default_value = "/bin/true")]
        command: PathBuf,
    },
    /// Leases of a running cage, opened and revoked over its control socket, and what they leave behind;
    /// a scope beside a plain exec; the agent's task with leases, without, and bare.
    Leases {
        /// How many of each kind.
        #[arg(long, default_value_t = 500)]
        runs: usize,
        /// How many times each does the agent's task (the one of `bench task`); 0 leaves it out.
        #[arg(long, default_value_t = 10)]
        tasks: usize,
        /// Open and revoke them at a steady pace for so long afterwards, such as 10m, and say what that leaves.
        #[arg(long, value_name = "TIME", value_parser = soak_time)]
        soak: Option<Duration>,
        /// The pace of --soak.
        #[arg(long, value_name = "NUMBER/min", value_parser = per_minute, default_value = "10000/min", requires = "soak")]
        rate: u32,
    },
    /// Leases that follow what the agent is about to do: a whole run of a scripted agent beside bare and
    /// static, reading its model's answer, and how often a person would be asked.
    Intent {
        /// How many runs of each.
        #[arg(long, default_value_t = 20)]
        runs: usize,
    },
    /// Single system calls, bare and in the cage.
    Syscalls {
        /// How many times each side is measured.
        #[arg(long, default_value_t = 15)]
        rounds: usize,
    },
    /// A mixed task of an agent's (200 files, grep, git, gcc, Python): bare, bwrap, Ironcage.
    Task {
        /// How many times each does the task.
        #[arg(long, default_value_t = 20)]
        runs: usize,
        /// Also with `--side-channels cores` and `hardened`, where they can be had here.
        #[arg(long)]
        side_channels: bool,
    },
    /// The field's table: system call, memory, task, start and escapes, for every sandbox here.
    Table {
        /// How many starts of each; the task is done a tenth as often.
        #[arg(long, default_value_t = 50)]
        runs: usize,
        /// Leave the containment suite out, which takes minutes for each sandbox.
        #[arg(long)]
        without_escapes: bool,
        /// Write the chart here as well.
        #[arg(long, value_name = "FILE")]
        svg: Option<PathBuf>,
        /// Write one page with table and chart here as well.
        #[arg(long, value_name = "FILE")]
        html: Option<PathBuf>,
    },
    /// A copy-on-write workspace: starts in trees of different sizes, and work on one: bare, on
    /// the real files, copy-on-write, on a copy.
    Workspace {
        /// How many starts in each tree.
        #[arg(long, default_value_t = 30)]
        starts: usize,
        /// How many times each does each task.
        #[arg(long, default_value_t = 3)]
        runs: usize,
        /// Files in the largest tree.
        #[arg(long, default_value_t = 300_000)]
        files: usize,
    },
    /// The network door: throughput, connections and requests, beside bare loopback, a bridge of
    /// socat, and pasta.
    Network {
        /// How many times each is measured.
        #[arg(long, default_value_t = 5)]
        rounds: usize,
        /// How many starts without and with a network.
        #[arg(long, default_value_t = 50)]
        starts: usize,
    },
    /// The memory of Ironcage's own processes while many cages sleep at once.
    Memory {
        /// How many cages.
        #[arg(long, default_value_t = 500)]
        cages: usize,
    },
}

/// Runs one bench and prints its report.
pub(crate) fn run(args: Args) -> CommandResult {
    let ironcage = std::env::current_exe()
        .map_err(|error| CliError::new(format!("cannot find the ironcage program: {error}")))?;
    let json = args.json;
    match args.bench {
        Bench::Start { runs, command } => {
            let request = bench::StartRequest {
                ironcage,
                runs,
                command,
            };
            let report = bench::bench_start(&request).map_err(failed)?;
            print(&report, json)
        }
        Bench::Exec { runs, command } => {
            let request = bench::ExecBenchRequest {
                ironcage,
                runs,
                command,
            };
            let report = bench::bench_exec(&request).map_err(failed)?;
            print(&report, json)
        }
        Bench::Leases {
            runs,
            tasks,
            soak,
            rate,
        } => {
            let soak = soak.map(|time| bench::Soak {
                time,
                per_minute: rate,
            });
            let request = bench::LeasesRequest {
                ironcage,
                runs,
                tasks,
                soak,
            };
            let report = bench::bench_leases(&request).map_err(failed)?;
            print(&report, json)
        }
        Bench::Intent { runs } => {
            let request = bench::IntentRequest {
                ironcage,
                runs,
                questions: count_questions()?,
            };
            let report = bench::bench_intent(&request).map_err(failed)?;
            print(&report, json)
        }
        Bench::Syscalls { rounds } => {
            let request = bench::SyscallsRequest { ironcage, rounds };
            let report = bench::bench_syscalls(&request).map_err(failed)?;
            print(&report, json)
        }
        Bench::Network { rounds, starts } => {
            let request = bench::NetworkBenchRequest {
                ironcage,
                rounds,
                starts,
            };
            let report = bench::bench_network(&request).map_err(failed)?;
            print(&report, json)
        }
        Bench::Task {
            runs,
            side_channels,
        } => {
            let request = bench::TaskRequest {
                ironcage,
                runs,
                side_channels,
            };
            let report = bench::bench_task(&request).map_err(failed)?;
            print(&report, json)
        }
        Bench::Table {
            runs,
            without_escapes,
            svg,
            html,
        } => {
            let request = bench::FieldRequest { ironcage, runs };
            let mut report = bench::bench_field(&request).map_err(failed)?;
            if !without_escapes {
                count_escapes(&mut report)?;
            }
            for (path, text) in [(svg, report.svg()), (html, report.html())] {
                if let Some(path) = path {
                    std::fs::write(&path, text)
                        .map_err(|error| CliError::new(format!("{}: {error}", path.display())))?;
                }
            }
            print(&report, json)
        }
        Bench::Workspace {
            starts,
            runs,
            files,
        } => {
            let request = bench::WorkspaceRequest {
                ironcage,
                starts,
                runs,
                files,
            };
            let report = bench::bench_workspace(&request).map_err(failed)?;
            print(&report, json)
        }
        Bench::Memory { cages } => {
            let request = bench::MemoryRequest { ironcage, cages };
            let report = bench::bench_memory(&request).map_err(failed)?;
            print(&report, json)?;
            Ok(if report.is_sound() { 0 } else { CHECK_FAILED })
        }
    }
}

/// Commands as agents write them, one to a paragraph, with what they need below.
const CORPUS: &str = include_str!("../../../intent/tests/corpus.txt");
/// The profile by which they are judged.
const JUDGED_BY: &str = "coding-agent";

/// How often a person would be asked if an agent ran the commands of the corpus here.
fn count_questions() -> Result<bench::Questions, CliError> {
    // An empty project: what is not in it is outside.
    let place = std::env::temp_dir().join(format!("ironcage-corpus-{}", std::process::id()));
    std::fs::create_dir(&place)
        .map_err(|error| CliError::new(format!("{}: {error}", place.display())))?;
    let mut flags = CageFlags::in_workspace(place.clone());
    flags.set_base(Some(JUDGED_BY.to_owned()), None);
    let prepared = flags.prepare(vec!["/bin/true".into()]);
    // Nothing was put into it.
    let _ = std::fs::remove_dir(&place);
    let plan = prepared?.plan;
    let tools = Table::shipped().map_err(|error| CliError::from_error(&error))?;
    let context = Context {
        cwd: plan.workspace.clone(),
        home: plan.home().map(Path::to_owned),
    };
    let mut questions = bench::Questions {
        policy: JUDGED_BY.to_owned(),
        ..bench::Questions::default()
    };
    let mut known: Vec<Resource> = Vec::new();
    let commands = CORPUS
        .lines()
        .filter(|line| !line.is_empty() && !line.starts_with(' ') && !line.starts_with('#'));
    for command in commands {
        let needs = Shell::new(&tools).read(&command.replace("\\n", "\n"), &context);
        let contacts = needs.destinations.iter().map(|to| match to {
            Destination::Host { .. } => Contact::Host(to.to_string()),
            Destination::Bundle(name) => Contact::Bundle(name.clone()),
            Destination::Remote(name) => Contact::Remote(name.clone()),
        });
        let (reads, writes) = (needs.reads.iter().cloned(), needs.writes.iter().cloned());
        let told = forecast(&plan, reads.collect(), writes.collect(), contacts.collect());
        questions.commands += 1;
        questions.given += told.given.len();
        questions.refused += told.refused.len();
        questions.asked_each_time += told.asked.len();
        let nothing = told.given.is_empty() && told.asked.is_empty() && told.refused.is_empty();
        questions.plain += usize::from(nothing);
        for resource in told.asked {
            if !known.contains(&resource) {
                questions.asked += 1;
                known.push(resource);
            }
        }
    }
    Ok(questions)
}

/// Points the containment suite at each sandbox of the table.
fn count_escapes(report: &mut bench::FieldReport) -> Result<(), CliError> {
    let effects: Vec<String> = ironcage_probe::probes()
        .filter(|probe| probe.kind == ironcage_probe::Kind::Effect)
        .map(|probe| probe.id.to_owned())
        .collect();
    for (index, name, suspect) in report.suspects() {
        anstream::eprintln!("containment suite: {name}");
        let (against, against_command) = match suspect {
            bench::Suspect::Named(name) => (Some(name.to_owned()), None),
            bench::Suspect::Line(line) => (None, Some(line)),
        };
        let options = ironcage_probe::Options {
            ids: effects.clone(),
            must_work: false,
            against,
            against_command,
            progress: false,
            weakened: false,
        };
        let found =
            ironcage_probe::run_suite(&options).map_err(|error| CliError::from_error(&error))?;
        let (blocked, of) = found.effects();
        report.enter(index, bench::Escapes { blocked, of });
    }
    Ok(())
}

fn failed(error: bench::BenchError) -> CliError {
    CliError::from_error(&error)
}

fn print(report: &(impl Serialize + Display), json: bool) -> CommandResult {
    if json {
        let text = json::pretty(report).map_err(CliError::new)?;
        anstream::println!("{text}");
    } else {
        anstream::print!("{report}");
    }
    Ok(0)
}

/// The floor of `bench start`, as a process of its own.
#[derive(Debug, clap::Args)]
pub(crate) struct FloorArgs {
    /// An empty directory to mount the new root on.
    #[arg(long)]
    root: PathBuf,
    /// The directory that the command may write.
    #[arg(long)]
    workspace: PathBuf,
    /// The command.
    command: PathBuf,
}

/// Serves starts of the floor until standard input ends.
pub(crate) fn run_floor(args: FloorArgs) -> CommandResult {
    let request = bench::FloorRequest {
        root: args.root,
        workspace: args.workspace,
        command: args.command,
    };
    bench::serve_floor(&request).map_err(failed)?;
    Ok(0)
}

/// The client of `bench network`.
#[derive(Debug, clap::Args)]
pub(crate) struct NetworkClientArgs {
    /// Where the server is.
    host: String,
    /// Its port.
    port: u16,
}

/// Measures a network from where it is started.
pub(crate) fn run_network_client(args: NetworkClientArgs) -> CommandResult {
    bench::measure_network(&args.host, args.port).map_err(failed)?;
    Ok(0)
}

/// Starts of a peer from a mount namespace of its own, for `bench start`.
#[derive(Debug, clap::Args)]
pub(crate) struct LauncherArgs {
    /// The peer.
    program: PathBuf,
    /// Its arguments.
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    arguments: Vec<OsString>,
}

/// Serves starts of the peer until standard input ends.
pub(crate) fn run_launcher(args: LauncherArgs) -> CommandResult {
    let launch = bench::PrivateCgroupLaunch {
        program: args.program,
        arguments: args.arguments,
    };
    bench::serve_launches(&launch).map_err(failed)?;
    Ok(0)
}

/// Times system calls where it stands, for `bench syscalls`.
pub(crate) fn run_syscalls() -> CommandResult {
    bench::time_syscalls().map_err(failed)?;
    Ok(0)
}

/// How long a soak is.
fn soak_time(text: &str) -> Result<Duration, String> {
    let limit: ironcage_policy::TimeLimit = text.parse().map_err(|error| format!("{error}"))?;
    let why = "a soak ends: give it a time, such as 10m";
    limit
        .0
        .filter(|time| !time.is_zero())
        .ok_or_else(|| why.into())
}

/// A pace, `10000/min`.
fn per_minute(text: &str) -> Result<u32, String> {
    let number = text
        .strip_suffix("/min")
        .and_then(|number| number.parse().ok());
    let why = "a pace is a number of leases a minute, such as 10000/min";
    number
        .filter(|number| *number > 0)
        .ok_or_else(|| why.into())
}
