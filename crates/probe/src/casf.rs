//! The Common Agent Sandboxing Framework: which of its requirements a report shows.
//!
//! Reads the requirements (docs/casf/requirements.toml) and judges a report by them. Runs
//! nothing, and calls nothing met that a run cannot show: what a claim has to say is listed as
//! that.

use crate::report::{Report, Row, Verdict};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt::Write as _;

const REQUIREMENTS: &str = include_str!("../../../docs/casf/requirements.toml");

/// The requirements, as the standard lists them.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Standard {
    pub version: String,
    /// Its requirements, in their order.
    #[serde(rename = "requirement")]
    pub requirements: Vec<Requirement>,
}

/// One thing that a sandbox must do.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Requirement {
    /// Never used again with another meaning.
    pub id: String,
    /// The lowest level that asks for it.
    pub level: u8,
    pub title: String,
    pub text: String,
    pub check: Check,
    /// Ids of other standards that it answers to, by the standard's name.
    pub maps: BTreeMap<String, Vec<String>>,
}

/// What decides whether a requirement is met.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(untagged, deny_unknown_fields)]
pub enum Check {
    /// Probes: none gets through, and at least one tells the difference.
    Probes {
        /// Classes or ids.
        probes: Vec<String>,
        /// Only those of this kind.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        kind: Option<String>,
        /// Only those of this severity or worse.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        severity: Option<String>,
        /// What the claim must contain where none of them can be put to the sandbox.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        otherwise: Option<String>,
    },
    /// The list of what must work.
    MustWork {
        /// Always true.
        #[serde(rename = "must-work")]
        must_work: bool,
    },
    /// What the claim must contain.
    Claim { claim: String },
}

/// From the worst on.
const SEVERITIES: [&str; 4] = ["critical", "high", "medium", "low"];

impl Check {
    /// Whether a probe with this id, kind and severity is one of those that decide.
    pub fn takes(&self, id: &str, of_kind: &str, of_severity: &str) -> bool {
        let Check::Probes {
            probes,
            kind,
            severity,
            ..
        } = self
        else {
            return false;
        };
        let class = id.split('-').next().unwrap_or(id);
        let rank = |name: &str| SEVERITIES.iter().position(|entry| *entry == name);
        probes.iter().any(|name| name == id || name == class)
            && kind.as_deref().is_none_or(|kind| kind == of_kind)
            && severity
                .as_deref()
                .is_none_or(|least| rank(of_severity) <= rank(least))
    }

    fn takes_row(&self, row: &Row) -> bool {
        self.takes(&row.id, &row.kind, &row.severity)
    }
}

/// What a report says of a requirement.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum RequirementStatus {
    /// It is shown to be met.
    Met,
    /// It is shown not to be met.
    NotMet,
    /// Nothing in the report tells the difference.
    NotShown,
    /// No run can show it: the claim has to.
    ByClaim,
}

impl RequirementStatus {
    const fn name(self) -> &'static str {
        match self {
            RequirementStatus::Met => "met",
            RequirementStatus::NotMet => "NOT MET",
            RequirementStatus::NotShown => "not shown",
            RequirementStatus::ByClaim => "by claim",
        }
    }
}

/// A requirement with what a report says of it.
#[derive(Debug, Clone, Serialize)]
pub struct RequirementResult {
    pub id: String,
    /// The lowest level that asks for it.
    pub level: u8,
    pub title: String,
    /// What the report says.
    pub standing: RequirementStatus,
    /// The probes that decide, or what the claim must contain.
    pub evidence: String,
}

/// What a report shows of the standard.
#[derive(Debug, Clone, Serialize)]
pub struct Judgement {
    pub version: String,
    /// The highest level of which nothing that a run can show is missing; 0 for none.
    pub level: u8,
    /// What the claim for that level still has to contain.
    pub to_be_claimed: Vec<String>,
    pub requirements: Vec<RequirementResult>,
}

/// The name of a level.
pub const fn level_name(level: u8) -> &'static str {
    match level {
        0 => "none",
        1 => "Confined",
        2 => "Contained",
        _ => "Adversarial",
    }
}

impl Standard {
    /// The version that this suite checks.
    pub fn shipped() -> Result<Standard, toml::de::Error> {
        toml::from_str(REQUIREMENTS)
    }

    /// Judges a report.
    pub fn judge(&self, report: &Report) -> Judgement {
        let requirements: Vec<RequirementResult> = self
            .requirements
            .iter()
            .map(|requirement| {
                let (standing, evidence) = stand(requirement, report);
                RequirementResult {
                    id: requirement.id.clone(),
                    level: requirement.level,
                    title: requirement.title.clone(),
                    standing,
                    evidence,
                }
            })
            .collect();
        let missing = requirements
            .iter()
            .filter(|judged| {
                matches!(
                    judged.standing,
                    RequirementStatus::NotMet | RequirementStatus::NotShown
                )
            })
            .map(|judged| judged.level)
            .min();
        // A level with nothing that a run shows would be reached by silence.
        let shown = requirements
            .iter()
            .filter(|judged| judged.standing == RequirementStatus::Met)
            .map(|judged| judged.level)
            .max()
            .unwrap_or(0);
        let level = missing.map_or(shown, |level| shown.min(level.saturating_sub(1)));
        let to_be_claimed = requirements
            .iter()
            .filter(|judged| judged.standing == RequirementStatus::ByClaim && judged.level <= level)
            .map(|judged| judged.id.clone())
            .collect();
        Judgement {
            version: self.version.clone(),
            level,
            to_be_claimed,
            requirements,
        }
    }
}

fn stand(requirement: &Requirement, report: &Report) -> (RequirementStatus, String) {
    match &requirement.check {
        Check::Claim { claim } => (
            RequirementStatus::ByClaim,
            format!("the claim must contain {claim}"),
        ),
        Check::MustWork { .. } => {
            let tried: Vec<_> = report
                .must_work
                .iter()
                .filter(|item| item.works.is_some())
                .collect();
            let failed: Vec<&str> = tried
                .iter()
                .filter(|item| item.works == Some(false))
                .map(|item| item.name.as_str())
                .collect();
            if tried.is_empty() {
                return (RequirementStatus::NotShown, "nothing was tried".into());
            }
            if failed.is_empty() {
                return (
                    RequirementStatus::Met,
                    format!("{} of {0} work", tried.len()),
                );
            }
            (
                RequirementStatus::NotMet,
                format!("fails: {}", failed.join(", ")),
            )
        }
        check @ Check::Probes { .. } => by_probes(check, report),
    }
}

fn by_probes(check: &Check, report: &Report) -> (RequirementStatus, String) {
    let rows: Vec<&Row> = report
        .rows
        .iter()
        .filter(|row| check.takes_row(row))
        .collect();
    let with = |wanted: &dyn Fn(Verdict) -> bool| -> Vec<&str> {
        rows.iter()
            .filter(|row| wanted(row.finding.verdict))
            .map(|row| row.id.as_str())
            .collect()
    };
    let failed = with(&Verdict::fails);
    let accepted = with(&|verdict| verdict == Verdict::OpenAccepted);
    let blocked = with(&|verdict| verdict == Verdict::Blocked);
    let silent = with(&|verdict| matches!(verdict, Verdict::NotDiscriminating | Verdict::Skipped));
    if !failed.is_empty() {
        return (
            RequirementStatus::NotMet,
            format!("gets through: {}", failed.join(", ")),
        );
    }
    if let Check::Probes {
        otherwise: Some(claim),
        ..
    } = check
        && rows
            .iter()
            .all(|row| row.finding.verdict == Verdict::Skipped)
    {
        let evidence = format!("the claim must contain {claim}");
        return (RequirementStatus::ByClaim, evidence);
    }
    let mut evidence = format!("{} blocked", blocked.len());
    if !accepted.is_empty() {
        let _ = write!(evidence, "; open with a reason: {}", accepted.join(", "));
    }
    if !silent.is_empty() {
        let _ = write!(evidence, "; shows nothing here: {}", silent.join(", "));
    }
    let standing = if blocked.is_empty() {
        RequirementStatus::NotShown
    } else {
        RequirementStatus::Met
    };
    (standing, evidence)
}

impl Judgement {
    /// The text for people.
    pub fn text(&self) -> String {
        let mut text = format!(
            "CASF {}: what this run shows\n\n{:<10} {:<5}  {:<50}  {:<9}  EVIDENCE\n",
            self.version, "ID", "LEVEL", "REQUIREMENT", "STANDING"
        );
        for judged in &self.requirements {
            let _ = writeln!(
                text,
                "{:<10} {:<5}  {:<50}  {:<9}  {}",
                judged.id,
                judged.level,
                judged.title,
                judged.standing.name(),
                judged.evidence
            );
        }
        let _ = write!(
            text,
            "\nlevel reached: {} ({})",
            self.level,
            level_name(self.level)
        );
        if !self.to_be_claimed.is_empty() {
            let _ = write!(
                text,
                ", as far as a run shows it; the claim has to show {}",
                self.to_be_claimed.join(", ")
            );
        }
        text.push('\n');
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::catalogue;
    use crate::report::{Finding, MustWork};

    fn standard() -> Standard {
        Standard::shipped().unwrap()
    }

    /// A report in which every probe has this verdict.
    fn report(verdict: impl Fn(&str) -> Verdict, works: bool) -> Report {
        Report {
            against: "x".into(),
            uid: 1,
            kernel: "6".into(),
            rows: catalogue::probes()
                .map(|probe| {
                    let finding = Finding {
                        verdict: verdict(probe.id),
                        detail: String::new(),
                        control: String::new(),
                    };
                    Row::new(probe, finding)
                })
                .collect(),
            must_work: vec![MustWork {
                name: "work".into(),
                works: Some(works),
                detail: String::new(),
            }],
        }
    }

    fn level(verdict: impl Fn(&str) -> Verdict) -> u8 {
        standard().judge(&report(verdict, true)).level
    }

    #[test]
    fn ids_are_unique_and_begin_with_their_level() {
        let mut ids: Vec<String> = Vec::new();
        for requirement in standard().requirements {
            assert!(
                requirement
                    .id
                    .starts_with(&format!("CASF-{}.", requirement.level))
            );
            assert!(!ids.contains(&requirement.id), "{}", requirement.id);
            ids.push(requirement.id);
        }
    }

    #[test]
    fn every_check_by_probes_takes_some_and_names_only_what_there_is() {
        for requirement in standard().requirements {
            let Check::Probes { probes, .. } = &requirement.check else {
                continue;
            };
            for name in probes {
                assert!(
                    catalogue::probes()
                        .any(|probe| probe.id == name || probe.class.prefix() == name),
                    "{}: {name}",
                    requirement.id
                );
            }
            assert!(
                report(|_| Verdict::Blocked, true)
                    .rows
                    .iter()
                    .any(|row| requirement.check.takes_row(row)),
                "{} is decided by no probe",
                requirement.id
            );
        }
    }

    #[test]
    fn every_probe_decides_something() {
        let standard = standard();
        for row in &report(|_| Verdict::Blocked, true).rows {
            assert!(
                standard
                    .requirements
                    .iter()
                    .any(|requirement| requirement.check.takes_row(row)),
                "{} decides no requirement",
                row.id
            );
        }
    }

    #[test]
    fn one_escape_takes_the_level_that_asks_for_it() {
        assert_eq!(level(|_| Verdict::Blocked), 2);
        let but = |lost: &'static str, verdict: Verdict| {
            level(move |id| {
                if id == lost {
                    verdict
                } else {
                    Verdict::Blocked
                }
            })
        };
        assert_eq!(but("FS-01", Verdict::Escaped), 0);
        assert_eq!(but("FS-01", Verdict::Unknown), 0);
        // Of medium severity: level 1 does not ask for it.
        assert_eq!(but("FS-10", Verdict::Escaped), 1);
        assert_eq!(but("SY-07", Verdict::Open), 1);
        assert_eq!(but("SY-15", Verdict::OpenAccepted), 2);
        // One of two that show it, and the only one.
        assert_eq!(but("SU-08", Verdict::NotDiscriminating), 2);
        assert_eq!(but("SU-07", Verdict::NotDiscriminating), 1);
    }

    #[test]
    fn a_sandbox_in_which_nothing_works_reaches_nothing() {
        let judged = standard().judge(&report(|_| Verdict::Blocked, false));
        assert_eq!(judged.level, 0);
        let mut none = report(|_| Verdict::Blocked, true);
        none.must_work.clear();
        assert_eq!(standard().judge(&none).level, 0);
    }

    #[test]
    fn what_only_a_claim_can_show_is_never_called_met() {
        let judged = standard().judge(&report(|_| Verdict::Blocked, true));
        assert!(judged.to_be_claimed.contains(&"CASF-2.10".to_owned()));
        assert!(judged.text().contains("the claim has to show CASF-2.10"));
        assert!(judged.level < 3);
    }

    #[test]
    fn a_network_that_nobody_can_be_given_is_left_to_the_claim() {
        let standing = |verdict: Verdict| {
            let proxy = |id: &str| {
                ["NE-20", "NE-20b", "NE-28", "NE-29"].contains(&id)
                    || ("NE-21".."NE-27").contains(&id)
            };
            let judged = standard().judge(&report(
                |id| if proxy(id) { verdict } else { Verdict::Blocked },
                true,
            ));
            let mut all = judged.requirements.into_iter();
            all.find(|judged| judged.id == "CASF-2.9").unwrap().standing
        };
        assert_eq!(standing(Verdict::Blocked), RequirementStatus::Met);
        assert_eq!(standing(Verdict::Skipped), RequirementStatus::ByClaim);
        assert_eq!(
            standing(Verdict::NotDiscriminating),
            RequirementStatus::NotShown
        );
        assert_eq!(standing(Verdict::Escaped), RequirementStatus::NotMet);
    }
}
