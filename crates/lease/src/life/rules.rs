//! Rules for processes that still use a lease when it ends.

use ironcage_model::Holders;
use std::time::Duration;

/// How those who use a lease are made to let go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Expulsion {
    /// The mount helper finds and kills them all, on one order.
    ByHelper,
    /// They are outside the helper's namespace: the caller looks for them and kills whom it finds,
    /// then the helper tries again.
    BySearch {
        /// How often, at most.
        rounds: u32,
        /// How long those who were killed may take to be gone, each round.
        pause: Duration,
    },
}

/// What follows where the policy keeps holders, and one of them writes on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StillUsed {
    /// The lease stays until they are done.
    Wait,
    /// They are expelled: nobody is left who could wait for them.
    Expel,
}

/// How a lease ends while it is used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EndingRules {
    /// How long its holders may take to let go.
    pub grace: Duration,
    /// What the policy says of those who do not.
    pub holders: Holders,
    /// How they are expelled.
    pub expulsion: Expulsion,
    /// What follows where they are kept and still write.
    pub still_used: StillUsed,
}

impl EndingRules {
    /// Those of a lease of the cage's own.
    pub fn of_cage(grace: Duration, holders: Holders) -> Self {
        EndingRules {
            grace,
            holders,
            expulsion: Expulsion::ByHelper,
            still_used: StillUsed::Wait,
        }
    }

    /// Those of a lease of a scope, all of whose processes are dead when it ends: whoever still
    /// uses it is in the cage.
    pub fn of_scope(holders: Holders) -> Self {
        EndingRules {
            grace: Duration::ZERO,
            holders,
            expulsion: Expulsion::BySearch {
                rounds: 20,
                pause: Duration::from_millis(10),
            },
            still_used: StillUsed::Expel,
        }
    }
}
