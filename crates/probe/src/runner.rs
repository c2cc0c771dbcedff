//! Runs a probe, uncaged and caged, and says what was found.

mod collected;
mod launch;
mod leased;
mod leftovers;
mod settings;
pub(crate) mod tools;

use crate::accepted;
use crate::adapter::{Adapter, Source};
use crate::catalogue;
use crate::matrix::{AblationOutcome, Alone, Matrix, MatrixLine, all_but};
use crate::mustwork;
use crate::oracle::{Decision, Evidence};
use crate::probe::{Control, Kind, Probe, Setup};
use crate::report::{Finding, MustWork, Report, Row, Verdict};
use crate::stage::{Programs, Stage, StageError};
use crate::switches;
use ironcage_model::Switch;
use ironcage_programs::Program;
use launch::{Mode, RunError};
use std::io;
use std::path::PathBuf;

/// Runs probes on one stage against one sandbox.
pub(crate) struct Runner {
    stage: Stage,
    adapter: Adapter,
    launcher: PathBuf,
    /// What the launcher's file must contain.
    launcher_content: Vec<u8>,
    launcher_name: String,
    /// A system of nothing but directories, for an adapter that boots one.
    system: PathBuf,
    /// System calls that the sandbox says it lets through.
    declared: Option<Vec<String>>,
    progress: bool,
    /// What a test build of Ironcage is told to leave out.
    off: Vec<Switch>,
}

impl Runner {
    /// Puts the sandbox's launcher on the stage.
    pub(crate) fn new(
        mut stage: Stage,
        adapter: Adapter,
        programs: Programs,
        progress: bool,
    ) -> io::Result<Runner> {
        if let Source::Ironcage = &adapter.source {
            if adapter.guest {
                let guest = programs.guest?;
                let vmm = stage
                    .layout
                    .install_launcher(Program::Vmm.name(), &programs.vmm?);
                vmm?;
                let init = guest.install(&stage.params.home)?;
                let init = stage
                    .layout
                    .install_launcher(Program::VmInit.name(), init)?;
                guest.date(&init)?;
            } else if adapter.as_vmm {
                stage.layout.install_vmm(&programs.vmm?)?;
            }
            for (program, content) in [
                (Program::Inside, programs.inside),
                (Program::Egress, programs.egress),
                (Program::Reader, programs.reader),
                (Program::Mcp, programs.mcp),
                (Program::Registry, programs.registry),
            ] {
                stage.layout.install_launcher(program.name(), &content?)?;
            }
        }
        let (launcher_content, launcher_name) = match &adapter.source {
            Source::Ironcage => (programs.ironcage?, "ironcage".to_owned()),
            Source::System(path) => {
                let name = path.file_name().unwrap_or_default().to_string_lossy();
                (std::fs::read(path)?, name.into_owned())
            }
            Source::None => (programs.suite, "launcher".to_owned()),
        };
        let launcher = stage
            .layout
            .install_launcher(&launcher_name, &launcher_content)?;
        stage.params.launcher.clone_from(&launcher);
        let system = launcher.with_file_name("system");
        if adapter.boots {
            for name in ["etc", "sbin", "usr", "var"] {
                std::fs::create_dir_all(system.join(name))?;
            }
        }
        let mut runner = Runner {
            stage,
            adapter,
            launcher,
            launcher_content,
            launcher_name,
            system,
            declared: None,
            progress,
            off: Vec::new(),
        };
        runner.declared = runner.ask_declared();
        Ok(runner)
    }

    /// Runs the probes with these ids and, if `complete`, the must-work list.
    pub(crate) fn run(&mut self, ids: &[String], complete: bool) -> Result<Report, StageError> {
        let chosen: Vec<&'static Probe> = catalogue::probes()
            .filter(|probe| ids.iter().any(|id| id == probe.id))
            .collect();
        let mut rows = Vec::new();
        for (index, probe) in chosen.iter().enumerate() {
            self.tell(&format!(
                "{:>3}/{} {} {}",
                index + 1,
                chosen.len(),
                probe.id,
                probe.title
            ));
            rows.push(Row::new(probe, self.judge(probe)?));
        }
        let must_work = if complete {
            self.must_work()?
        } else {
            Vec::new()
        };
        if self.progress {
            eprint!("\r\x1b[K");
        }
        let system = ironcage_sys::rustix::system::uname();
        Ok(Report {
            against: self.adapter.name.clone(),
            uid: ironcage_sys::rustix::process::geteuid().as_raw(),
            kernel: system.release().to_string_lossy().into_owned(),
            rows,
            must_work,
        })
    }

    /// Tries the probes with these ids in cages that lack what stops them.
    pub(crate) fn matrix(&mut self, ids: &[String]) -> Result<Matrix, StageError> {
        let chosen: Vec<&'static Probe> = catalogue::probes()
            .filter(|probe| ids.iter().any(|id| id == probe.id))
            .collect();
        let mut lines = Vec::new();
        for (index, probe) in chosen.iter().enumerate() {
            self.tell(&format!("{:>3}/{} {}", index + 1, chosen.len(), probe.id));
            lines.push(self.weakened(probe)?);
        }
        if self.progress {
            eprint!("\r\x1b[K");
        }
        let system = ironcage_sys::rustix::system::uname();
        Ok(Matrix {
            kernel: system.release().to_string_lossy().into_owned(),
            lines,
        })
    }

    fn weakened(&mut self, probe: &Probe) -> Result<MatrixLine, StageError> {
        let mut line = MatrixLine::new(probe);
        line.control = match self.control(probe) {
            Ok(decision) => decision.through,
            Err(RunError::Stage(error)) => return Err(error),
            Err(_) => false,
        };
        let parts = switches::of(probe.id);
        if !line.control || parts.is_empty() {
            return Ok(line);
        }
        let (seen, detail) = self.without(probe, parts.clone())?;
        line.without = Some(seen);
        line.detail = detail;
        for part in &parts {
            let (seen, _) = self.without(probe, all_but(&parts, *part))?;
            line.alone.push(Alone {
                part: part.to_string(),
                seen,
            });
        }
        Ok(line)
    }

    /// One run of a probe in a cage without these parts.
    fn without(
        &mut self,
        probe: &Probe,
        off: Vec<Switch>,
    ) -> Result<(AblationOutcome, String), StageError> {
        self.off = off;
        let tried = self.attempt(probe, Mode::Caged);
        self.off.clear();
        match tried {
            Ok((decision, _)) if decision.through => {
                Ok((AblationOutcome::Through, decision.detail))
            }
            Ok((decision, evidence)) if evidence.started() => {
                Ok((AblationOutcome::Stopped, decision.detail))
            }
            Ok((_, evidence)) => Ok((AblationOutcome::Unknown, not_started(&evidence))),
            Err(RunError::Stage(error)) => Err(error),
            Err(error) => Ok((AblationOutcome::Unknown, error.to_string())),
        }
    }

    fn tell(&self, line: &str) {
        if self.progress {
            let short: String = line.chars().take(78).collect();
            eprint!("\r\x1b[K{short}");
        }
    }

    fn must_work(&mut self) -> Result<Vec<MustWork>, StageError> {
        let mut items = Vec::new();
        for item in mustwork::ITEMS {
            self.tell(&format!("must work: {}", item.name));
            let found = match item.missing_tool() {
                _ if self.adapter.proxy || self.adapter.as_vmm => MustWork {
                    name: item.name.to_owned(),
                    works: None,
                    detail: "a process of Ironcage's own runs no programs".to_owned(),
                },
                Some(tool) => MustWork {
                    name: item.name.to_owned(),
                    works: None,
                    detail: format!("{tool} is not in the system directories"),
                },
                None => self.try_item(item)?,
            };
            items.push(found);
        }
        Ok(items)
    }

    fn try_item(&mut self, item: &mustwork::Item) -> Result<MustWork, StageError> {
        let verdict = |works, detail| MustWork {
            name: item.name.to_owned(),
            works,
            detail,
        };
        let bare = self.launch_item(item, Mode::Bare);
        if let Err(why) = worked(bare)? {
            return Ok(verdict(None, format!("does not work uncaged: {why}")));
        }
        if self.adapter.is_bare() {
            return Ok(verdict(Some(true), String::new()));
        }
        Ok(match worked(self.launch_item(item, Mode::Caged))? {
            Ok(()) => verdict(Some(true), String::new()),
            Err(why) => verdict(Some(false), why.to_string()),
        })
    }

    /// Why a probe cannot be put to this sandbox.
    fn unsupported(&self, probe: &Probe) -> Option<String> {
        let adapter = &self.adapter;
        let lacks = |what: &str| {
            Some(format!(
                "the sandbox is not asked for {what} by its adapter"
            ))
        };
        match probe.setup {
            _ if adapter.is_bare() => None,
            _ if adapter.guest && probe.id == "LE-15" => {
                Some("child cages need descriptors, which a guest cannot pass".to_owned())
            }
            Setup::HostStdin if adapter.as_vmm => {
                Some("standard input of a VMM is its control channel".to_owned())
            }
            Setup::Keys if adapter.guest => Some("a guest has no keys".to_owned()),
            Setup::Tools if adapter.guest => {
                Some("the gateway's own cages are not at this level".to_owned())
            }
            setup if setup.is_limited() && adapter.guest => Some(
                "its limits are around the machine, which needs more than they leave".to_owned(),
            ),
            Setup::Mask if !adapter.hides => lacks("hidden directories"),
            Setup::ReadGrant if !adapter.grants => lacks("read-only grants"),
            Setup::LimitsInMemory if !adapter.in_memory => lacks("a workspace in memory"),
            setup if setup.is_limited() && !adapter.limits => lacks("limits"),
            Setup::Proxy(_) | Setup::Crowded if !adapter.network => lacks("a network with rules"),
            Setup::Keys if !adapter.network => lacks("a key of the user's agent"),
            Setup::Leased | Setup::Scoped if !adapter.network => lacks("leases"),
            Setup::Committed if !adapter.has_images() => lacks("an image that can be written"),
            Setup::Exchanged if !adapter.commands => lacks("approval"),
            Setup::Tools if !adapter.commands => lacks("a gateway for tools"),
            _ => None,
        }
    }

    fn judge(&mut self, probe: &Probe) -> Result<Finding, StageError> {
        if let Some(reason) = self.unsupported(probe) {
            return Ok(Finding {
                verdict: Verdict::Skipped,
                detail: reason,
                control: String::new(),
            });
        }
        let control = match self.control(probe) {
            Ok(decision) => decision,
            Err(RunError::Stage(error)) => return Err(error),
            Err(error) => Decision {
                through: false,
                detail: error.to_string(),
            },
        };
        if !control.through {
            let detail = format!("uncaged: {}", control.detail);
            return Ok(Finding {
                verdict: Verdict::NotDiscriminating,
                detail,
                control: control.detail,
            });
        }
        if self.adapter.is_bare() {
            let verdict = self.through(probe);
            return Ok(Finding {
                verdict,
                detail: control.detail.clone(),
                control: control.detail,
            });
        }
        let (verdict, detail) = match self.attempt(probe, Mode::Caged) {
            Ok((decision, _)) if decision.through => (self.through(probe), decision.detail),
            Ok((decision, evidence)) if evidence.started() => (Verdict::Blocked, decision.detail),
            Ok((_, evidence)) => (Verdict::Unknown, not_started(&evidence)),
            Err(RunError::Stage(error)) => return Err(error),
            Err(error) => (Verdict::Unknown, error.to_string()),
        };
        Ok(Finding {
            verdict,
            detail,
            control: control.detail,
        })
    }

    fn through(&self, probe: &Probe) -> Verdict {
        match probe.kind {
            Kind::Effect => Verdict::Escaped,
            Kind::Surface if accepted::reason(probe.id).is_some() => Verdict::OpenAccepted,
            Kind::Surface => Verdict::Open,
        }
    }

    fn control(&mut self, probe: &Probe) -> Result<Decision, RunError> {
        let modes: &[Mode] = match probe.control {
            Control::SameUser => &[Mode::Bare],
            Control::Privileged => &[Mode::Bare, Mode::Privileged],
            Control::PrivilegedMounts => &[Mode::Privileged],
            Control::FaultyLauncher => &[Mode::Faulty],
        };
        let mut last = Decision {
            through: false,
            detail: String::new(),
        };
        for mode in modes {
            (last, _) = self.attempt(probe, *mode)?;
            if last.through {
                break;
            }
        }
        Ok(last)
    }

    /// One run of a probe on a stage as new, and what the oracle says.
    fn attempt(&mut self, probe: &Probe, mode: Mode) -> Result<(Decision, Evidence), RunError> {
        let evidence = self.launch_probe(probe, mode)?;
        let mut decision = probe.oracle.decide(&self.stage, &evidence);
        if probe.id == "SY-23" && mode == Mode::Caged {
            decision =
                crate::classes::sy::against_declared(&evidence, self.declared.as_deref(), decision);
        }
        if probe.setup.is_limited() && !decision.through {
            let seen = &evidence.samples;
            decision.detail = format!(
                "{} (at most {} tasks, {} MiB, {} descriptors, {} ticks)",
                decision.detail, seen.tasks, seen.resident_mib, seen.descriptors, seen.ticks
            );
        }
        self.stage.layout.restore()?;
        Ok((decision, evidence))
    }
}

fn not_started(evidence: &Evidence) -> String {
    if evidence.permitted == Some(false) {
        return format!("what is allowed did not go through: {}", evidence.answer());
    }
    let errors = String::from_utf8_lossy(&evidence.errors);
    let line = errors
        .lines()
        .find(|line| !line.trim().is_empty() && !line.contains("WEAKENED"))
        .unwrap_or("no message");
    format!("not started, status {}: {line}", evidence.status)
}

/// Why a must-work item did not work: what it wrote, or why it was not started.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct MustWorkFailure(String);

/// Whether a must-work item worked, and why not.
fn worked(run: Result<Evidence, RunError>) -> Result<Result<(), MustWorkFailure>, StageError> {
    match run {
        Ok(evidence) if mustwork::succeeded(&evidence) => Ok(Ok(())),
        Ok(evidence) => Ok(Err(MustWorkFailure(mustwork::failure(&evidence)))),
        Err(RunError::Stage(error)) => Err(error),
        Err(error) => Ok(Err(MustWorkFailure(error.to_string()))),
    }
}
