//! Rules, and what they say of a request.

use super::cases::{self, Cases, Forbidden, OneCase};
use super::reading::{ANSWER, ASK, REASON, RulesError, bounded, path_literals, read, schema};
use crate::{Case, Choice, Rules};
use cedar_policy::{Authorizer, Decision as Said, Effect, Policy, PolicyId, PolicySet, Schema};
use ironcage_model::{Mark, Printable};
use ironcage_plan::{Item, LeaseRules};
use std::cell::RefCell;
use std::rc::Rc;

/// The rules of a plan, read; or why they cannot be, and then nothing is given.
pub struct RuleSet {
    read: Result<Ready, RulesError>,
}

struct Ready {
    schema: Schema,
    policies: PolicySet,
    forbidden: Forbidden,
}

/// What was said of one case, the strictest first.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Verdict {
    Deny(String),
    Ask(String),
    Nothing,
    Permit(String),
}

impl RuleSet {
    /// Reads the rules of a plan. They were looked through when the policy was made.
    pub fn of(files: &[Item<LeaseRules>]) -> Self {
        RuleSet {
            read: Self::read(files),
        }
    }

    fn read(files: &[Item<LeaseRules>]) -> Result<Ready, RulesError> {
        let schema = schema()?;
        let mut policies = PolicySet::new();
        let mut forbidden = Forbidden::default();
        let (mut count, mut paths) = (0, 0);
        for (at, Item { what: file, .. }) in files.iter().enumerate() {
            let rules =
                read(&file.path, &file.text, &schema).map_err(|mistake| RulesError::File {
                    path: file.path.clone(),
                    mistake,
                })?;
            for rule in rules {
                let mut policy = rule.policy;
                count += 1;
                paths += path_literals(&policy).len();
                bounded(count, paths)?;
                match policy.effect() {
                    Effect::Permit if file.only_forbids => continue,
                    Effect::Permit => {}
                    Effect::Forbid => {
                        forbidden.paths.extend(path_literals(&policy));
                        // By its text: one too many is asked about, and none is missed.
                        let text = policy.to_string().to_ascii_lowercase();
                        forbidden.requests |= text.contains("http");
                    }
                }
                // Two files of one name.
                if policies.policy(policy.id()).is_some() {
                    policy =
                        policy.new_id(PolicyId::new(format!("{} (file {})", policy.id(), at + 1)));
                }
                let added = policies.add(policy);
                added.map_err(|error| RulesError::Library(error.to_string()))?;
            }
        }
        forbidden.paths.sort();
        forbidden.paths.dedup();
        Ok(Ready {
            schema,
            policies,
            forbidden,
        })
    }
}

impl Ready {
    /// A rule in words.
    fn shown(&self, id: &PolicyId) -> String {
        let policy = self.policies.policy(id);
        let annotation = |key| policy.and_then(|policy| policy.annotation(key));
        let name = annotation("id").map(|name| format!(" `{}`", Printable::new(name)));
        let reason = annotation(REASON).map(|reason| format!(": {}", Printable::new(reason)));
        format!(
            "rule{} ({id}){}",
            name.unwrap_or_default(),
            reason.unwrap_or_default()
        )
    }

    fn asks(policy: &Policy) -> bool {
        policy.annotation(ANSWER) == Some(ASK)
    }

    fn judge(&self, case: &OneCase) -> Verdict {
        let response =
            Authorizer::new().is_authorized(&case.request, &self.policies, &case.entities);
        // A rule that could not be evaluated counts for nothing in Cedar, also where it forbids.
        if let Some(error) = response.diagnostics().errors().next() {
            return Verdict::Deny(format!(
                "the rules cannot be evaluated: {}",
                Printable::new(&error.to_string())
            ));
        }
        let mut by: Vec<&PolicyId> = response.diagnostics().reason().collect();
        by.sort_by_key(|id| id.to_string());
        let asks = |id: &&PolicyId| self.policies.policy(id).is_some_and(Self::asks);
        let hard = by.iter().find(|id| !asks(id)).copied();
        match (response.decision(), hard, by.first()) {
            (Said::Allow, _, Some(id)) if case.permits => {
                Verdict::Permit(format!("permitted by {}", self.shown(id)))
            }
            (Said::Allow, ..) | (Said::Deny, _, None) => Verdict::Nothing,
            (Said::Deny, Some(id), _) => Verdict::Deny(format!("forbidden by {}", self.shown(id))),
            (Said::Deny, None, Some(id)) => {
                Verdict::Ask(format!("to be asked for by {}", self.shown(id)))
            }
        }
    }

    fn choose(&self, case: &Case<'_>) -> Verdict {
        let (cases, at_least_asked) = match cases::make(case, &self.forbidden, &self.schema) {
            Ok(Cases::All {
                cases,
                at_least_asked,
            }) => (cases, at_least_asked),
            Ok(Cases::Several(why)) => return Verdict::Deny(why.to_owned()),
            Err(error) => {
                let error = Printable::new(&error.to_string()).to_string();
                return Verdict::Deny(format!("the rules cannot be asked: {error}"));
            }
        };
        let said = cases.iter().map(|case| (case.permits, self.judge(case)));
        // Beside what is asked for, silence says nothing.
        let said = said.filter(|(permits, verdict)| *permits || *verdict < Verdict::Nothing);
        said.map(|(_, verdict)| verdict)
            .chain(at_least_asked.map(|why| Verdict::Ask(why.to_owned())))
            .min()
            .unwrap_or(Verdict::Nothing)
    }
}

impl Rules for RuleSet {
    fn choose(&self, case: &Case<'_>) -> Option<Choice> {
        let verdict = match &self.read {
            Ok(ready) => ready.choose(case),
            Err(error) => Verdict::Deny(format!("the rules cannot be read: {error}")),
        };
        let (mark, reason) = match verdict {
            Verdict::Deny(reason) => (Mark::Deny, reason),
            Verdict::Ask(reason) => (Mark::Ask, reason),
            Verdict::Permit(reason) => (Mark::Auto, reason),
            Verdict::Nothing => return None,
        };
        Some(Choice { mark, reason })
    }
}

/// Rules, with the text that they were read from.
type Known = (Vec<Item<LeaseRules>>, Rc<RuleSet>);

thread_local! {
    /// What was read last: the same rules are read once, not for each request.
    static LAST: RefCell<Option<Known>> = const { RefCell::new(None) };
}

/// Does something with the rules of a plan.
pub(crate) fn with<T>(files: &[Item<LeaseRules>], work: impl FnOnce(&RuleSet) -> T) -> T {
    let known = LAST.with_borrow(|last| match last {
        Some((known, rules)) if known == files => Some(Rc::clone(rules)),
        _ => None,
    });
    let rules = known.unwrap_or_else(|| {
        let rules = Rc::new(RuleSet::of(files));
        LAST.set(Some((files.to_vec(), Rc::clone(&rules))));
        rules
    });
    work(&rules)
}
