//! The user inside: the agent, user 0 where the policy says so, or the user that an image or a flag
//! names.
//!
//! Any other ID than 0 is as good as the agent's: it has no privileges, and the same files outside.
//! So an image may choose among these, and user 0 stays with the policy.

use crate::request::{RunUser, UserOrigin};
use crate::{PlanError, Request};
use ironcage_model::Isolation;
use ironcage_policy::{Origin, Policy, Sourced};

const FLAG: &str = "--user";

/// The user that counts, if that is neither the agent nor decided by the policy.
pub(crate) fn chosen<'r>(
    policy: &Policy,
    request: &'r Request,
) -> Result<Option<&'r RunUser>, PlanError> {
    let Some(user) = request.user.as_ref().filter(|_| request.boot.is_none()) else {
        return Ok(None);
    };
    let by_flag = user.origin == UserOrigin::Flag;
    let refused = |why| {
        Err(PlanError::User {
            uid: user.uid,
            origin: FLAG.into(),
            why,
        })
    };
    let root_inside = policy.root_inside.value;
    match (user.uid, by_flag) {
        (_, true) if policy.isolation.value == Isolation::Landlock => {
            refused("--isolation landlock has no users of its own")
        }
        (0, true) if !root_inside => refused("the policy does not allow user 0; see --root-inside"),
        (0, false) => Ok(None),
        // The policy's word counts more than the image's.
        (_, false) if root_inside => Ok(None),
        _ => Ok(Some(user)),
    }
}

/// The policy of a command whose user a flag names: that is not user 0, whatever the policy's own
/// default.
pub(crate) fn policy(policy: &Policy, request: &Request) -> Result<Option<Policy>, PlanError> {
    let user = chosen(policy, request)?;
    let other = user.filter(|user| user.uid != 0 && policy.root_inside.value);
    Ok(other.map(|_| Policy {
        root_inside: Sourced::new(false, Origin::Flag { flag: FLAG.into() }),
        ..policy.clone()
    }))
}

/// What the user of a cage should know of an image's user that does not count.
pub(crate) fn note(policy: &Policy, request: &Request) -> Option<String> {
    let user = request.user.as_ref()?;
    let UserOrigin::Image(image) = &user.origin else {
        return None;
    };
    match (user.uid, policy.root_inside.value) {
        (0, false) => Some(format!(
            "the image {image} names user 0: the command runs as the agent; --root-inside allows user 0"
        )),
        (uid, true) if uid != 0 => Some(format!(
            "the image {image} names user {uid}: the command runs as user 0, as the policy says"
        )),
        _ => None,
    }
}
