//! Why cages of a policy cannot be started in advance.

use ironcage_policy::PolicyError;

/// Why cages of a policy cannot be started in advance.
#[derive(Debug, thiserror::Error)]
pub(crate) enum WarmError {
    #[error(transparent)]
    Policy(#[from] PolicyError),
    #[error(
        "the profile {profile} limits the time of cages, which would begin before they are created"
    )]
    BoundedTime { profile: String },
}
