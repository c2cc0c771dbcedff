//! `bench intent --corpus redcode`: what harmful commands do to canaries under each policy, and what
//! each policy costs a benign task.

use super::redcode::{self, ATTRIBUTION, RedCase};
use super::trial::{Outcome, TrialArm, TrialStage};
use crate::statistics::Summary;
use crate::table::Table;
use crate::verdict::{Target, Verdict};
use crate::{BenchError, HostFacts};
use serde::Serialize;
use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;

/// How often the benign task is timed in each arm.
const TASKS: usize = 5;

/// Attacks that leave the workspace under a profile as it ships.
const NONE: Target = Target {
    at_most: 0.0,
    unit: "cases",
};

/// What is to be measured.
#[derive(Debug, Clone)]
pub struct AttacksRequest {
    /// The `ironcage` program.
    pub ironcage: PathBuf,
    /// The directory that has the corpora.
    pub corpora: PathBuf,
    /// How many cases, spread evenly over the corpus; all where it has fewer.
    pub cases: usize,
}

/// What one arm let through, and what it cost.
#[derive(Debug, Clone, Serialize)]
struct PolicyArmReport {
    name: &'static str,
    about: &'static str,
    /// Cases that it ran: those with an effect under full access.
    cases: usize,
    /// Those that printed or changed a canary outside the workspace.
    effects: usize,
    reads: usize,
    changes: usize,
    by_category: BTreeMap<String, usize>,
    questions: usize,
    /// Excess authority-seconds of a case, in the median.
    case_excess_seconds: f64,
    task_succeeded: bool,
    task_questions: usize,
    task_excess_seconds: f64,
    /// The benign task without observing, in milliseconds.
    task_milliseconds: Summary,
}

#[derive(Debug, Clone, Serialize)]
pub struct AttacksReport {
    bench: &'static str,
    corpus: &'static str,
    attribution: &'static str,
    host: HostFacts,
    reproduce: String,
    /// Cases of the corpus, and those that ran.
    corpus_cases: usize,
    cases: usize,
    /// Cases that have an effect on the stage under full access.
    effective: usize,
    arms: Vec<PolicyArmReport>,
    verdicts: Vec<Verdict>,
}

/// Every n-th case, so that each category has its share.
fn spread(cases: Vec<RedCase>, count: usize) -> Vec<RedCase> {
    let total = cases.len();
    let picked = |at: &usize| at * count / total.max(1) != (at + 1) * count / total.max(1);
    let chosen = cases.into_iter().enumerate().filter(|(at, _)| picked(at));
    chosen.map(|(_, case)| case).collect()
}

/// Runs the cases under full access, and those with an effect under every other policy.
pub fn bench_attacks(request: &AttacksRequest) -> Result<AttacksReport, BenchError> {
    let all = redcode::read(&request.corpora)?;
    let corpus_cases = all.len();
    let cases = spread(all, request.cases.min(corpus_cases));
    let mut stage = TrialStage::new(&request.ironcage)?;
    let arms = stage.arms()?;
    let Some((full, others)) = arms.split_first() else {
        return Err(super::failed(&"no arms"));
    };
    let mut effective = Vec::new();
    let mut outcomes = Vec::new();
    for case in &cases {
        let staged = redcode::stage(&case.code, stage.host());
        let outcome = stage.run(full, &staged)?;
        if outcome.has_effect() {
            outcomes.push((case.category().to_owned(), outcome));
            effective.push((case, staged));
        }
    }
    let mut reports = vec![arm_report(&mut stage, full, outcomes)?];
    for arm in others {
        let mut outcomes = Vec::new();
        for (case, staged) in &effective {
            let outcome = stage.run(arm, staged)?;
            outcomes.push((case.category().to_owned(), outcome));
        }
        reports.push(arm_report(&mut stage, arm, outcomes)?);
    }
    let shipped = ["coding-agent", "locked"];
    let verdicts = reports.iter().filter(|arm| shipped.contains(&arm.name));
    let verdicts = verdicts
        .map(|arm| {
            let what = format!("{}: effects outside the workspace", arm.name);
            Verdict::new(what, arm.effects as f64, NONE)
        })
        .collect();
    Ok(AttacksReport {
        bench: "intent",
        corpus: "redcode",
        attribution: ATTRIBUTION,
        host: HostFacts::now(),
        reproduce: format!(
            "ironcage bench intent --corpus redcode --cases {}",
            cases.len()
        ),
        corpus_cases,
        cases: cases.len(),
        effective: effective.len(),
        arms: reports,
        verdicts,
    })
}

fn arm_report(
    stage: &mut TrialStage,
    arm: &TrialArm,
    outcomes: Vec<(String, Outcome)>,
) -> Result<PolicyArmReport, BenchError> {
    let count = |is: fn(&Outcome) -> bool| outcomes.iter().filter(|(_, one)| is(one)).count();
    let mut by_category = BTreeMap::new();
    for (category, outcome) in &outcomes {
        if outcome.has_effect() {
            *by_category.entry(category.clone()).or_insert(0) += 1;
        }
    }
    let excess: Vec<f64> = outcomes.iter().map(|(_, one)| one.excess_seconds).collect();
    let observed = stage.run_task(arm, true)?;
    let mut times = Vec::new();
    let mut succeeded = observed.succeeded;
    for _ in 0..TASKS {
        let run = stage.run_task(arm, false)?;
        succeeded &= run.succeeded;
        times.push(run.milliseconds);
    }
    Ok(PolicyArmReport {
        name: arm.name,
        about: arm.about,
        cases: outcomes.len(),
        effects: count(Outcome::has_effect),
        reads: count(|one| one.read),
        changes: count(|one| one.changed),
        by_category,
        questions: outcomes.iter().map(|(_, one)| one.questions).sum(),
        case_excess_seconds: Summary::of(&excess).map_or(0.0, |summary| summary.median),
        task_succeeded: succeeded,
        task_questions: observed.questions,
        task_excess_seconds: observed.excess_seconds,
        task_milliseconds: Summary::of(&times).ok_or_else(|| super::failed(&"no samples"))?,
    })
}

impl fmt::Display for AttacksReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}\n{}", self.host, self.reproduce)?;
        writeln!(f, "{}\n", self.attribution)?;
        writeln!(
            f,
            "{} of {} cases ran; {} have an effect on the stage under full access, and ran in every arm",
            self.cases, self.corpus_cases, self.effective
        )?;
        let mut table = Table::new([
            "arm",
            "effects",
            "reads",
            "changes",
            "questions",
            "excess",
            "task",
            "task q.",
            "task excess",
            "task ms",
        ]);
        for arm in &self.arms {
            table.row([
                arm.name.to_owned(),
                format!("{}/{}", arm.effects, arm.cases),
                arm.reads.to_string(),
                arm.changes.to_string(),
                arm.questions.to_string(),
                format!("{:.1}", arm.case_excess_seconds),
                if arm.task_succeeded { "done" } else { "failed" }.to_owned(),
                arm.task_questions.to_string(),
                format!("{:.1}", arm.task_excess_seconds),
                format!("{:.0}", arm.task_milliseconds.median),
            ]);
        }
        write!(f, "{table}")?;
        writeln!(f)?;
        for arm in &self.arms {
            write!(f, "{}: {}", arm.name, arm.about)?;
            let categories: Vec<String> = arm
                .by_category
                .iter()
                .map(|(category, count)| format!("{category}: {count}"))
                .collect();
            match categories.is_empty() {
                true => writeln!(f)?,
                false => writeln!(f, "; effects by category {}", categories.join(", "))?,
            }
        }
        writeln!(
            f,
            "excess is the median of excess authority-seconds of a case; no arm has a network, so cases that only contact a host have no effect in any"
        )?;
        for verdict in &self.verdicts {
            writeln!(f, "{verdict}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_of_the_cases_is_spread_over_all() {
        let cases: Vec<RedCase> = (0..600)
            .map(|number| RedCase {
                id: format!("{}_{}", number / 30, number % 30),
                code: String::new(),
            })
            .collect();
        let some = spread(cases.clone(), 40);
        assert_eq!(some.len(), 40);
        let categories: std::collections::BTreeSet<_> =
            some.iter().map(|case| case.category().to_owned()).collect();
        assert_eq!(categories.len(), 20);
        assert_eq!(spread(cases, 600).len(), 600);
        assert!(spread(Vec::new(), 5).is_empty());
    }
}
