//! Rules that the operator has written in Cedar. Experimental.
//!
//! They choose between giving at once, asking and refusing for what lies in the ceiling, and are
//! asked about nothing else. Without the feature `cedar` nothing of the language is in the program,
//! and a policy that names rules is refused.

#[cfg(feature = "cedar")]
mod cases;
#[cfg(feature = "cedar")]
mod reading;
#[cfg(feature = "cedar")]
mod rules;

use ironcage_policy::{Policy, PolicyError};

#[cfg(feature = "cedar")]
pub use rules::RuleSet;
#[cfg(feature = "cedar")]
pub(crate) use rules::with;

/// What rules can be about, in Cedar's own words.
pub const SCHEMA: &str = include_str!("schema.cedarschema");

/// Whether this program knows the language.
pub const KNOWN: bool = cfg!(feature = "cedar");

/// Looks through the rules of a policy.
///
/// # Errors
/// Where they are no rules that fit the schema, or this program does not know the language.
pub fn check(policy: &Policy) -> Result<(), PolicyError> {
    let files = &policy.ceiling.cedar;
    if files.is_empty() {
        return Ok(());
    }
    #[cfg(feature = "cedar")]
    {
        let mut so_far = (0, 0);
        for file in files {
            reading::look_through(&file.value, &mut so_far)?;
        }
    }
    #[cfg(not(feature = "cedar"))]
    if let Some(file) = files.first() {
        return Err(PolicyError::Refused {
            what: "the policy has rules in Cedar, which this ironcage does not know".into(),
            origin: file.origin.clone(),
            remedy: "take one that was built with `--features cedar`, or write the decision as [ceiling.auto], [ceiling.ask] and [ceiling.deny]".into(),
        });
    }
    Ok(())
}
