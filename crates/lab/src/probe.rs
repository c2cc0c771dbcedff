//! `ironcage probe`: the containment suite.

use crate::missing;
use ironcage_command::error::{CliError, CommandResult};
use ironcage_command::json;
use ironcage_command::lab::probe::{Action, Args, Format, Suite};
use ironcage_files::Links;
use ironcage_probe::casf::{Judgement, Standard, level_name};
use ironcage_probe::{
    Options, Probe, Report, SuiteError, Verdict, accepted, find, probes, role, run_matrix,
    run_suite, select,
};
use ironcage_programs::Program;
use std::io::{IsTerminal, Write};
use std::path::Path;
use std::process::Command;

pub(crate) fn run(args: Args) -> CommandResult {
    match args.command {
        None => suite(&[], args.suite),
        Some(Action::Run(run)) => suite(&run.names, run.suite),
        Some(Action::Casf { report, json }) => casf(report.as_deref(), json),
        Some(Action::Matrix {
            names,
            json,
            markdown,
        }) => matrix(&names, json, markdown),
        Some(Action::List { json }) => list(json),
        Some(Action::Show { id }) => show(&id),
        Some(Action::Role { name, rest }) => Ok(role::play(&name, &rest)),
    }
}

fn print(text: &str) -> CommandResult {
    let mut out = std::io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        // A reader that has seen enough is no error.
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => {
            Err(CliError::new(format!("standard output: {error}")))
        }
        _ => Ok(0),
    }
}

fn json(value: &impl serde::Serialize) -> Result<String, CliError> {
    Ok(json::pretty(value).map_err(CliError::new)? + "\n")
}

fn suite(names: &[String], run: Suite) -> CommandResult {
    let format = if run.json { Format::Json } else { run.format };
    if run.casf && !matches!(format, Format::Table | Format::Json) {
        return Err(CliError::new("--casf prints a table or JSON only")
            .hint("leave --casf out, or write --format table or json"));
    }
    if run.casf && !names.is_empty() {
        return Err(CliError::new(
            "--casf judges the whole suite, not single probes",
        ));
    }
    let chosen = select(names).map_err(|error| CliError::from_error(&error))?;
    let options = Options {
        ids: chosen.iter().map(|probe| probe.id.to_owned()).collect(),
        must_work: names.is_empty(),
        against: run.against,
        against_command: run.against_command,
        progress: std::io::stderr().is_terminal(),
        weakened: false,
    };
    let report = run_suite(&options).map_err(|error| match error {
        SuiteError::Adapter(_) => CliError::from_error(&error),
        SuiteError::Start(_) | SuiteError::Stage(_) => CliError::from_error(&error)
            .hint("the stage needs namespaces; `ironcage doctor` says what this host allows"),
    })?;
    let judgement = match run.casf {
        true => Some(standard()?.judge(&report)),
        false => None,
    };
    let text = match (format, &judgement) {
        (Format::Json, None) => json(&report)?,
        (Format::Json, Some(casf)) => json(&JudgedReport {
            casf,
            report: &report,
        })?,
        (Format::Table, None) => report.table(),
        (Format::Table, Some(casf)) => format!("{}\n{}", report.table(), casf.text()),
        (Format::Junit, _) => report.junit(),
        (Format::Markdown, _) => report.markdown(),
        (Format::Html, _) => report.html(),
    };
    print(&text)?;
    Ok(u8::from(!report.holds()))
}

/// Whether the `ironcage` under test is a build that can; it says so in its version.
fn can_leave_layers_out() -> Result<bool, CliError> {
    let ironcage = Program::Ironcage.find().map_err(|error| missing(&error))?;
    let output = Command::new(&ironcage).arg("--version").output();
    let output = output.map_err(|error| {
        CliError::new(format!("cannot execute {}: {error}", ironcage.display()))
    })?;
    Ok(String::from_utf8_lossy(&output.stdout).contains("layers can be disabled"))
}

fn matrix(names: &[String], as_json: bool, markdown: bool) -> CommandResult {
    if !can_leave_layers_out()? {
        return Err(
            CliError::new("this ironcage is a release build: it cannot leave a layer out").hint(
                "`cargo build` without --release makes one that can, and says so in --version",
            ),
        );
    }
    if !ironcage_sys::rustix::process::geteuid().is_root() {
        return Err(CliError::new(
            "the matrix needs root: an ordinary user has no namespace without the user namespace",
        ));
    }
    let chosen = select(names).map_err(|error| CliError::from_error(&error))?;
    let ids = chosen.iter().map(|probe| probe.id.to_owned()).collect();
    let matrix = run_matrix(ids, std::io::stderr().is_terminal())
        .map_err(|error| CliError::from_error(&error))?;
    print(&match (as_json, markdown) {
        (true, _) => json(&matrix)?,
        (false, true) => matrix.markdown(),
        (false, false) => matrix.text(),
    })?;
    Ok(u8::from(!matrix.holds()))
}

#[derive(serde::Serialize)]
struct JudgedReport<'a> {
    casf: &'a Judgement,
    report: &'a Report,
}

fn standard() -> Result<Standard, CliError> {
    Standard::shipped().map_err(|error| CliError::from_error(&error))
}

/// The largest report that is read.
const LARGEST_REPORT: u64 = 64 << 20;

fn casf(report: Option<&Path>, as_json: bool) -> CommandResult {
    let standard = standard()?;
    let Some(path) = report else {
        return print(&if as_json {
            json(&standard)?
        } else {
            requirements(&standard)
        });
    };
    let name = path.display();
    let bytes = ironcage_files::read(path, LARGEST_REPORT, Links::Follow)
        .map_err(|error| CliError::from_error(&error))?;
    let report: Report = serde_json::from_slice(&bytes).map_err(|error| {
        CliError::new(format!("{name}: not a report of the suite: {error}"))
            .hint("`ironcage probe run --json` prints one")
    })?;
    let judgement = standard.judge(&report);
    print(&if as_json {
        json(&judgement)?
    } else {
        judgement.text()
    })
}

fn requirements(standard: &Standard) -> String {
    let mut text = format!(
        "Common Agent Sandboxing Framework {} (docs/casf)\n",
        standard.version
    );
    let mut level = 0;
    for requirement in &standard.requirements {
        if requirement.level != level {
            level = requirement.level;
            text.push_str(&format!("\nLevel {level}: {}\n", level_name(level)));
        }
        text.push_str(&format!(
            "  {:<10} {}\n             {}\n",
            requirement.id, requirement.title, requirement.text
        ));
    }
    text
}

#[derive(serde::Serialize)]
struct Catalogue {
    probes: Vec<Probe>,
    accepted: &'static [accepted::AcceptedSurface],
}

fn list(as_json: bool) -> CommandResult {
    if as_json {
        let probes = probes().copied().collect();
        return print(&json(&Catalogue {
            probes,
            accepted: accepted::SURFACES,
        })?);
    }
    let mut text = String::new();
    let mut class = None;
    for probe in probes() {
        if class != Some(probe.class) {
            class = Some(probe.class);
            text.push_str(&format!("\n{}  {}\n", probe.class, probe.class.subject()));
        }
        let line = (probe.id, probe.kind, probe.severity, probe.title);
        text.push_str(&format!(
            "  {:<7} {:<8} {:<9} {}\n",
            line.0, line.1, line.2, line.3
        ));
    }
    text.push_str("\nSurfaces that stay open by design\n");
    for entry in accepted::SURFACES {
        text.push_str(&format!(
            "  {:<7} {}\n          behind it: {}\n",
            entry.id, entry.reason, entry.behind
        ));
    }
    print(text.trim_start())
}

fn show(id: &str) -> CommandResult {
    let probe = find(id).ok_or_else(|| {
        CliError::new(format!("unknown probe `{}`", id.escape_debug()))
            .hint("`ironcage probe list` shows every probe")
    })?;
    let mut text = format!("{}  {}\n\n", probe.id, probe.title);
    let mut field = |name: &str, value: &str| text.push_str(&format!("{name:<12} {value}\n"));
    field(
        "class",
        &format!("{} ({})", probe.class, probe.class.subject()),
    );
    field("kind", &probe.kind.to_string());
    field("severity", &probe.severity.to_string());
    field("canary", probe.canary);
    field("stopped by", &probe.layers.join("; "));
    field("references", &probe.references.join("; "));
    if let Some(entry) = accepted::reason(probe.id) {
        field("accepted", entry.reason);
        field("behind it", entry.behind);
    }
    text.push_str("\nVerdicts\n");
    let verdicts = [
        Verdict::Blocked,
        Verdict::Escaped,
        Verdict::Open,
        Verdict::OpenAccepted,
        Verdict::NotDiscriminating,
        Verdict::Skipped,
        Verdict::Unknown,
    ];
    for verdict in verdicts {
        text.push_str(&format!(
            "  {:<19} {}\n",
            verdict.to_string(),
            verdict.meaning()
        ));
    }
    print(&text)
}
