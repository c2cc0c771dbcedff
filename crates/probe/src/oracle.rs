//! The oracle: decides outside, by what happened to the canaries.

use crate::errno;
use crate::inside::{OBSERVED, Observation, STARTED};
use crate::sampler::Samples;
use crate::stage::{Canary, Channel, Stage};
use ironcage_model::{
    Enforcement, Event, EventKind, Layer, LayerReport, LimitHit, LimitKind, Traffic,
};
use std::path::PathBuf;

/// What is known after one run.
#[derive(Debug, Default)]
pub(crate) struct Evidence {
    /// What came out on standard output.
    pub(crate) output: Vec<u8>,
    /// What came out on standard error.
    pub(crate) errors: Vec<u8>,
    /// How the launcher ended: its exit status, or minus the signal.
    pub(crate) status: i32,
    /// Whether it had to be stopped by the suite.
    pub(crate) overdue: bool,
    /// What was seen of the probe's processes while it ran.
    pub(crate) samples: Samples,
    /// Whether a process of the probe still acted after the end.
    pub(crate) survived: bool,
    /// What was left on the stage.
    pub(crate) leftovers: Vec<String>,
    /// Whether the suite reached a listener of the probe.
    pub(crate) answered: bool,
    /// Resident memory of the launcher at its most, in MiB.
    pub(crate) launcher_mib: u64,
    /// The launcher's command line.
    pub(crate) line: Vec<std::ffi::OsString>,
    /// What the second sandbox printed.
    pub(crate) sibling: String,
    /// Whether what the policy allows went through, where a network is tested.
    pub(crate) permitted: Option<bool>,
    /// What the first of two runs was to leave.
    pub(crate) legacy: Option<String>,
    /// What is wrong with the sandbox's own record of the run.
    pub(crate) broken_record: Option<String>,
    /// What the sandbox said when the change of the run was applied.
    pub(crate) applied: Option<String>,
    /// Limits that the run reached, by the sandbox's own record.
    pub(crate) limits: Vec<LimitHit>,
    /// Layers that the sandbox says it held in full.
    pub(crate) full: Vec<Layer>,
    /// Connections that the sandbox's own record has.
    pub(crate) traffic: Vec<Traffic>,
}

impl Evidence {
    /// Whether the sandbox started the probe at all, and gave it what the policy allows.
    pub(crate) fn started(&self) -> bool {
        contains(&self.output, STARTED.as_bytes()) && self.permitted != Some(false)
    }

    /// What the probe saw inside, if it lived to tell.
    pub(crate) fn observation(&self) -> Option<Observation> {
        let text = String::from_utf8_lossy(&self.output);
        let line = text
            .lines()
            .rev()
            .find_map(|line| line.strip_prefix(OBSERVED))?;
        serde_json::from_str(line).ok()
    }

    /// Takes what the sandbox's own record says about limits.
    pub(crate) fn take_record(&mut self, lines: &[u8]) {
        let events = serde_json::Deserializer::from_slice(lines).into_iter::<Event>();
        for event in events.map_while(Result::ok) {
            match event.kind {
                EventKind::Start { layers, .. } => {
                    let full = |report: &LayerReport| report.enforcement == Enforcement::Full;
                    let full = layers.into_iter().filter(full);
                    self.full.extend(full.map(|report| report.layer));
                }
                EventKind::Limit(hit) => self.limits.push(hit),
                EventKind::Network(traffic) => self.traffic.push(traffic),
                _ => {}
            }
        }
    }

    /// Whether the run was ended for going past this limit, and its record says by how much.
    pub(crate) fn was_ended_for(&self, limit: LimitKind) -> bool {
        let mut hits = self.limits.iter();
        let told = hits.any(|hit| hit.limit == limit && hit.ended && hit.used.is_some());
        // What a limit ends has this status, whatever the command's own was.
        told && self.status == 137
    }

    /// What the probe was answered, in words.
    pub(crate) fn answer(&self) -> String {
        match self.observation() {
            Some(observation) if observation.reached => {
                format!("no effect outside ({})", observation.detail)
            }
            Some(observation) => observation.detail,
            None if self.overdue => "no answer in time".to_owned(),
            None if self.status < 0 => format!("killed by {}", errno::signal(-self.status)),
            None => {
                let errors = String::from_utf8_lossy(&self.errors);
                let last = errors.lines().rfind(|line| !line.trim().is_empty());
                format!(
                    "ended with status {}: {}",
                    self.status,
                    last.unwrap_or("no message")
                )
            }
        }
    }
}

/// What the oracle decided.
#[derive(Debug, Clone)]
pub(crate) struct Decision {
    /// Whether the probe got through.
    pub(crate) through: bool,
    /// What shows it, or what stopped it.
    pub(crate) detail: String,
}

/// What decides about a probe.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Oracle {
    /// The secret of this canary came out.
    Nonce(Canary),
    /// Something was noticed here.
    Hit(Channel),
    /// This path came to be.
    Appears(fn(&Stage) -> PathBuf),
    /// A file outside the workspace changed, in content or metadata.
    OutsideChanged,
    /// A file of the workspace that hosts trust changed, or something came beside it.
    TrustedChanged,
    /// The interface answered: for surfaces, the observation itself.
    Reached,
    /// Something else, given with the probe.
    Seen(fn(&Stage, &Evidence) -> Option<String>),
}

/// Whether `needle` is in `hay`.
pub(crate) fn contains(hay: &[u8], needle: &[u8]) -> bool {
    hay.windows(needle.len()).any(|window| window == needle)
}

impl Oracle {
    /// Decides about one run.
    pub(crate) fn decide(&self, stage: &Stage, evidence: &Evidence) -> Decision {
        let found = match self {
            Oracle::Nonce(canary) => {
                let nonce = stage.nonces.of(*canary).as_bytes();
                contains(&evidence.output, nonce).then(|| "the nonce came out".to_owned())
            }
            Oracle::Hit(channel) => stage.log.settled(*channel),
            Oracle::Appears(path) => {
                let path = path(stage);
                path.symlink_metadata()
                    .is_ok()
                    .then(|| format!("{} exists", path.display()))
            }
            Oracle::OutsideChanged => stage
                .layout
                .first_change(|path| !path.starts_with(&stage.params.workspace))
                .map(|path| format!("{} changed", path.display())),
            Oracle::TrustedChanged => stage
                .layout
                .first_change(|path| stage.layout.is_trusted(path))
                .map(|path| format!("{} changed", path.display())),
            Oracle::Reached => evidence
                .observation()
                .filter(|observation| observation.reached)
                .map(|observation| observation.detail),
            Oracle::Seen(look) => look(stage, evidence),
        };
        match found {
            Some(detail) => match evidence.observation() {
                Some(seen) if seen.reached && seen.detail != detail => Decision {
                    through: true,
                    detail: format!("{detail} ({})", seen.detail),
                },
                _ => Decision {
                    through: true,
                    detail,
                },
            },
            None => Decision {
                through: false,
                detail: evidence.answer(),
            },
        }
    }
}
