//! `ironcage doctor`: what this host can enforce, layer by layer, and what mends the rest.
//!
//! It tries each layer in a child that is thrown away; it changes nothing.

use crate::error::{CliError, CommandResult};
use crate::json;
use crate::places;
use ironcage_host::doctor::{Examination, Finding, examine};
use ironcage_host::{HostError, Privilege, SystemFiles};
use ironcage_model::{Enforcement, Layer, Printable};
use serde::Serialize;
use std::io::{self, Write};

/// The profile whose required layers decide the exit status: that of ordinary commands.
const PROFILE: &str = "shell";

/// Say what this host can enforce, layer by layer, and the command that mends what is missing.
///
/// Exits with 0 if every layer that the profile `shell` requires is there, with 1 if not.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Print JSON.
    #[arg(long)]
    json: bool,
    /// Say which backend is for which risk.
    #[arg(long)]
    recommend: bool,
}

/// What is printed as JSON.
#[derive(Debug, Serialize)]
struct Report<'a> {
    #[serde(flatten)]
    examination: &'a Examination,
    profile: &'static str,
    required: &'a [Layer],
    missing: Vec<Layer>,
}

/// Runs the command.
pub(crate) fn run(args: Args) -> CommandResult {
    let home = places::home()?;
    let examination = match examine(
        &places::state_dir(&home),
        &ironcage_runtime::delivery_messages(),
    ) {
        Ok(examination) => examination,
        // This is the answer to the question, not a failure to answer it.
        Err(error @ HostError::KernelTooOld { .. }) => {
            anstream::println!("{error}");
            return Ok(1);
        }
        Err(error) => return Err(CliError::from_error(&error)),
    };
    let policy = ironcage_policy::resolve_profile(PROFILE, &home)
        .map_err(|error| CliError::from_error(&error))?;
    let required: Vec<Layer> = policy.require.iter().map(|layer| layer.value).collect();
    let missing: Vec<Layer> = examination
        .missing(&required)
        .into_iter()
        .map(|finding| finding.layer)
        .collect();
    let code = u8::from(!missing.is_empty());
    let mut out = anstream::stdout().lock();
    let written = if args.json {
        let report = Report {
            examination: &examination,
            profile: PROFILE,
            required: &required,
            missing,
        };
        let text = json::pretty(&report).map_err(CliError::new)?;
        writeln!(out, "{text}")
    } else if args.recommend {
        print_recommendations(&mut out, &examination)
    } else {
        print_findings(&mut out, &examination, &missing)
    };
    match written {
        // A reader that has seen enough is no error.
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(code),
        Err(error) => Err(CliError::new("cannot print the findings").hint(error)),
        Ok(()) => Ok(code),
    }
}

fn print_findings(
    out: &mut impl Write,
    examination: &Examination,
    missing: &[Layer],
) -> io::Result<()> {
    let power = match examination.privilege {
        Privilege::Root => "root: each cage gets ids of its own",
        Privilege::User => "user: the agent's id is the user's own",
    };
    writeln!(
        out,
        "Linux {} (at least {}), {}, uid {} ({power}), Landlock {}",
        Printable::new(&examination.kernel),
        examination.least_kernel,
        examination.place.name(),
        examination.uid,
        examination.landlock_abi,
    )?;
    writeln!(out, "\n{:<13} {:<8} how, or why not", "layer", "level")?;
    let mut said = None;
    for finding in &examination.findings {
        print_finding(out, finding, said)?;
        said = finding.remedy.as_deref().or(said);
    }
    writeln!(out)?;
    for extra in &examination.extras {
        let answer = if extra.works { "yes" } else { "no" };
        writeln!(
            out,
            "{}: {answer} ({})",
            extra.name,
            Printable::new(&extra.evidence)
        )?;
    }
    match ironcage_plan::installed_runtime(&SystemFiles::default()) {
        Some(runtime) => {
            let path = Printable::new(&runtime.path);
            writeln!(out, "--isolation oci: yes ({path} is installed)")?;
        }
        None => writeln!(out, "--isolation oci: no (crun is not installed)")?,
    }
    if missing.is_empty() {
        return writeln!(
            out,
            "\nEvery layer that profile `{PROFILE}` requires is there."
        );
    }
    write!(
        out,
        "\nNo cage with profile `{PROFILE}` starts here; missing:"
    )?;
    for layer in missing {
        write!(out, " {layer}")?;
    }
    writeln!(out)
}

/// Prints one layer; a remedy that was said just before is not said again.
fn print_finding(out: &mut impl Write, finding: &Finding, said: Option<&str>) -> io::Result<()> {
    let (level, text) = match &finding.enforcement {
        Enforcement::Full => ("full", &finding.evidence),
        Enforcement::Partial(how) => ("partial", how),
        Enforcement::Off(why) => ("OFF", why),
    };
    writeln!(
        out,
        "{:<13} {level:<8} {}",
        finding.layer.name(),
        Printable::new(text)
    )?;
    if level == "OFF" && *text != finding.evidence {
        writeln!(
            out,
            "{:<22} seen: {}",
            "",
            Printable::new(&finding.evidence)
        )?;
    }
    match &finding.remedy {
        Some(remedy) if said == Some(remedy) => writeln!(out, "{:<22} mend: the same", ""),
        Some(remedy) => writeln!(out, "{:<22} mend: {}", "", Printable::new(remedy)),
        None => Ok(()),
    }
}

fn print_recommendations(out: &mut impl Write, examination: &Examination) -> io::Result<()> {
    for entry in &examination.recommendations {
        let there = if entry.available {
            "available"
        } else {
            "not there yet"
        };
        writeln!(out, "{}", entry.risk)?;
        writeln!(out, "    {} ({there}): {}", entry.backend, entry.why)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn printed(finding: &Finding) -> String {
        let mut out = Vec::new();
        print_finding(&mut out, finding, None).unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn a_layer_that_is_off_shows_reason_evidence_and_remedy() {
        let text = printed(&Finding {
            layer: Layer::PidNs,
            enforcement: Enforcement::Off("masked".into()),
            evidence: "mounting proc was refused".into(),
            remedy: Some("docker run ...".into()),
        });
        assert!(
            text.starts_with("pid-ns        OFF      masked\n"),
            "{text}"
        );
        assert!(text.contains("seen: mounting proc was refused"));
        assert!(text.contains("mend: docker run ..."));
    }

    #[test]
    fn a_full_layer_is_one_line() {
        let text = printed(&Finding {
            layer: Layer::Seccomp,
            enforcement: Enforcement::Full,
            evidence: "tried".into(),
            remedy: None,
        });
        assert_eq!(text, "seccomp       full     tried\n");
    }
}
