//! `ironcage doctor`: tries each layer in a child process, and changes nothing.

use crate::error::{CliError, CommandResult};
use crate::json;
use crate::paths;
use ironcage_host::doctor::{Examination, Finding, examine};
use ironcage_host::{HostError, Privilege, SystemFiles};
use ironcage_microvm::kvm::{self, KvmSpeed, decide};
use ironcage_microvm::setup::{Qemu, SetupError, find};
use ironcage_model::{Enforcement, Layer, Printable};
use ironcage_plan::{Acceleration, GuestFiles, RuntimeProgram};
use serde::Serialize;
use std::io::{self, Write};

/// The exit status depends on the layers that this profile requires.
const PROFILE: &str = "shell";

/// Report what this host can enforce, and how to fix what is missing
///
/// Exit status: 0 if the host has every layer that the profile `shell` requires, 1 if not.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// Recommend a backend for each kind of risk
    #[arg(long)]
    recommend: bool,
}

#[derive(Debug, Serialize)]
struct DoctorReport<'a> {
    #[serde(flatten)]
    examination: &'a Examination,
    profile: &'static str,
    required: &'a [Layer],
    missing: Vec<Layer>,
}

pub(crate) fn run(args: Args) -> CommandResult {
    let home = paths::home(&SystemFiles::default())?;
    let examination = match examine(
        &paths::state_dir(&home),
        &ironcage_supervisor::delivery_messages(),
    ) {
        Ok(examination) => examination,
        // A finding, not a failure to examine the host.
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
        let report = DoctorReport {
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
        // The reader closed the pipe.
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(code),
        Err(error) => Err(CliError::new(format!("cannot print the findings: {error}"))),
        Ok(()) => Ok(code),
    }
}

fn print_findings(
    out: &mut impl Write,
    examination: &Examination,
    missing: &[Layer],
) -> io::Result<()> {
    let power = match examination.privilege {
        Privilege::Root => "root: each cage gets its own IDs",
        Privilege::User => "user: the agent runs with the user's own ID",
    };
    writeln!(
        out,
        "Linux {} (minimum {}), {}, uid {} ({power}), Landlock {}",
        Printable::new(&examination.kernel),
        examination.least_kernel,
        examination.place.name(),
        examination.uid,
        examination.landlock_abi,
    )?;
    writeln!(out, "\n{:<13} {:<8} evidence", "layer", "level")?;
    let mut last = None;
    for finding in &examination.findings {
        print_finding(out, finding, last)?;
        last = finding.remedy.as_deref().or(last);
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
    let runtimes = ironcage_plan::installed_runtimes(&SystemFiles::default());
    let paths: Vec<String> = (runtimes.iter())
        .map(|runtime| Printable::new(&runtime.path).to_string())
        .collect();
    match runtimes.first().map(|runtime| runtime.program) {
        Some(RuntimeProgram::Crun) => {
            let paths = paths.join(", ");
            writeln!(out, "--isolation oci: yes ({paths})")?;
        }
        Some(other) => {
            let (paths, name) = (paths.join(", "), other.name());
            writeln!(out, "--isolation oci: with --oci-runtime {name} ({paths})")?;
        }
        None => writeln!(out, "--isolation oci: no (crun is not installed)")?,
    }
    match guest() {
        Ok(guest) => {
            let (qemu, kernel) = (Printable::new(&guest.qemu), Printable::new(&guest.version));
            let by = guest.acceleration;
            writeln!(
                out,
                "--isolation microvm: yes ({qemu}, {by}, kernel {kernel})"
            )?;
        }
        Err((why, hint)) => writeln!(out, "--isolation microvm: no ({why}; {hint})")?,
    }
    if let Some(speed) = kvm_speed() {
        let yes = match decide(&speed, true) {
            Acceleration::Kvm => "yes",
            Acceleration::Tcg(_) => "no",
        };
        writeln!(out, "KVM: {yes} ({})", Printable::new(&speed.to_string()))?;
    }
    if missing.is_empty() {
        return writeln!(
            out,
            "\nThis host has every layer that the profile `{PROFILE}` requires."
        );
    }
    write!(
        out,
        "\nCages with the profile `{PROFILE}` cannot start here; missing:"
    )?;
    for layer in missing {
        write!(out, " {layer}")?;
    }
    writeln!(out)
}

/// `last` is the remedy of the previous layer, which is not repeated.
fn print_finding(out: &mut impl Write, finding: &Finding, last: Option<&str>) -> io::Result<()> {
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
        Some(remedy) if last == Some(remedy) => writeln!(out, "{:<22} fix: the same", ""),
        Some(remedy) => writeln!(out, "{:<22} fix: {}", "", Printable::new(remedy)),
        None => Ok(()),
    }
}

fn print_recommendations(out: &mut impl Write, examination: &Examination) -> io::Result<()> {
    for entry in &examination.recommendations {
        let there = if entry.available {
            "available"
        } else {
            "not available yet"
        };
        writeln!(out, "{}", entry.risk)?;
        writeln!(out, "    {} ({there}): {}", entry.backend, entry.why)?;
    }
    Ok(())
}

/// How fast KVM is now, for the starts that follow too.
fn kvm_speed() -> Option<KvmSpeed> {
    let home = paths::home(&SystemFiles::default()).ok()?;
    Some(kvm::examine(&paths::guest(&home)))
}

/// The guest of microVMs that is set up, or what is missing and how to get it.
fn guest() -> Result<GuestFiles, (String, &'static str)> {
    let home = paths::home(&SystemFiles::default());
    let home = home.map_err(|_| ("no home directory".to_owned(), "set HOME"))?;
    let missing = |error: SetupError| (error.missing(), error.hint());
    // What it is made with comes first.
    let directory = paths::guest(&home);
    Qemu::find(&directory).map_err(missing)?;
    find(&directory).map_err(missing)
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
        assert!(text.contains("fix: docker run ..."));
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
