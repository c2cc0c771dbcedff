//! `ironcage bench`: what a cage costs, measured on this host.

use crate::missing;
use ironcage_bench as bench;
use ironcage_command::error::{CliError, CommandResult};
use ironcage_command::json;
use ironcage_command::lab::bench::{Args, Bench, Corpus, ToolCorpus};
use ironcage_programs::Program;
use serde::Serialize;
use std::ffi::OsString;
use std::fmt::Display;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Exit status of a bench whose checks failed; a missed target is not one of them.
const CHECK_FAILED: u8 = 1;

/// Runs one bench and prints its report.
pub(crate) fn run(args: Args) -> CommandResult {
    let ironcage = Program::Ironcage.find().map_err(|error| missing(&error))?;
    let json = args.json;
    match args.bench {
        Bench::Start {
            runs,
            command,
            steps,
            resident,
            soak,
        } => {
            let request = bench::StartRequest {
                ironcage,
                runs,
                command,
            };
            if steps {
                let report = bench::bench_steps(&request).map_err(failed)?;
                return print(&report, json);
            }
            if resident {
                let report = bench::bench_pool(&request, soak).map_err(failed)?;
                return print(&report, json);
            }
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
        Bench::Calls { runs } => {
            let report = bench::bench_calls(&bench::CallsRequest { ironcage, runs });
            print(&report.map_err(failed)?, json)
        }
        Bench::Tools {
            corpus: ToolCorpus::Agentdojo,
            python,
            policies,
        } => {
            let report = bench::bench_tools(&bench::ToolsRequest { python, policies });
            print(&report.map_err(failed)?, json)
        }
        Bench::Image { starts, runs } => {
            let request = bench::ImageRequest {
                ironcage,
                starts,
                runs,
            };
            let report = bench::bench_image(&request).map_err(failed)?;
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
        Bench::Intent {
            corpus: Some(Corpus::Redcode),
            corpora,
            cases,
            ..
        } => {
            let request = bench::AttacksRequest {
                ironcage,
                corpora,
                cases,
            };
            let report = bench::bench_attacks(&request).map_err(no_corpus)?;
            print(&report, json)
        }
        Bench::Intent {
            corpus: Some(Corpus::Sessions),
            cases,
            ..
        } => {
            let request = bench::SessionsRequest { ironcage, cases };
            let report = bench::bench_sessions(&request).map_err(failed)?;
            print(&report, json)
        }
        Bench::Intent {
            corpus: Some(corpus),
            ..
        } => {
            let corpus = match corpus {
                Corpus::Heldout => bench::LabelledCorpus::HeldOut,
                Corpus::Terminal => bench::LabelledCorpus::Terminal,
                Corpus::Fresh => bench::LabelledCorpus::Fresh,
                Corpus::Second => bench::LabelledCorpus::Second,
                _ => bench::LabelledCorpus::Foreign,
            };
            let report = bench::bench_corpus(corpus).map_err(failed)?;
            print(&report, json)
        }
        Bench::Intent {
            runs, corpus: None, ..
        } => {
            let request = bench::IntentRequest {
                questions: count_questions(&ironcage)?,
                ironcage,
                runs,
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
        Bench::Serve { runs, burst, idle } => {
            let request = bench::ServeRequest {
                ironcage,
                runs,
                burst,
                idle,
            };
            let report = bench::bench_serve(&request).map_err(failed)?;
            print(&report, json)
        }
        Bench::Memory { cages, network } => {
            let request = bench::MemoryRequest {
                ironcage,
                cages,
                network,
            };
            let report = bench::bench_memory(&request).map_err(failed)?;
            print(&report, json)?;
            Ok(if report.is_sound() { 0 } else { CHECK_FAILED })
        }
    }
}

/// Commands as agents write them, one to a paragraph, with what they need below.
const CORPUS: &str = include_str!("../../intent/tests/corpus.txt");
/// The profile by which they are judged.
const JUDGED_BY: &str = "coding-agent";

/// How often a person would be asked if an agent ran the commands of the corpus here: `ironcage`
/// decides, as it would for a cage with that profile.
fn count_questions(ironcage: &Path) -> Result<bench::RequestForecast, CliError> {
    let commands = CORPUS
        .lines()
        .filter(|line| !line.is_empty() && !line.starts_with(' ') && !line.starts_with('#'))
        .map(|line| line.replace("\\n", "\n"));
    let commands = serde_json::to_vec(&commands.collect::<Vec<_>>()).map_err(CliError::new)?;
    let failed = |why: &dyn Display| {
        CliError::new(format!(
            "cannot decide about the commands of the corpus: {why}"
        ))
    };
    let mut child = Command::new(ironcage)
        .args(["__forecast", "--profile", JUDGED_BY])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .map_err(|error| failed(&error))?;
    if let Some(mut input) = child.stdin.take() {
        input.write_all(&commands).map_err(|error| failed(&error))?;
    }
    let output = child.wait_with_output().map_err(|error| failed(&error))?;
    if !output.status.success() {
        return Err(failed(&output.status));
    }
    let counted = serde_json::from_slice(&output.stdout).map_err(|error| failed(&error))?;
    Ok(bench::RequestForecast {
        policy: JUDGED_BY.to_owned(),
        ..counted
    })
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

fn no_corpus(error: bench::BenchError) -> CliError {
    let absent = matches!(error, bench::BenchError::NoCorpus { .. });
    match absent {
        true => failed(error).hint("--corpora DIR names the directory that has it"),
        false => failed(error),
    }
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

/// The server of `bench calls`.
pub(crate) fn run_tools() -> CommandResult {
    bench::serve_tools().map_err(failed)?;
    Ok(0)
}

/// Times system calls where it stands, for `bench syscalls`.
pub(crate) fn run_syscalls() -> CommandResult {
    bench::time_syscalls().map_err(failed)?;
    Ok(0)
}
