//! What a claim answers (G1, G2).

use crate::text_enum::text_enum;

/// The answer of a claim that waits for a concurrent duplicate.
///
/// There will never be a third answer, so a `match` over both is complete.
#[must_use = "a duplicate must not be handled again"]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Claim {
    /// This transaction owns the message: do the work here, commit, then acknowledge.
    Claimed,
    /// A committed transaction, or an earlier claim in this one, has it: commit and acknowledge
    /// without doing the work. The transaction stays usable.
    Duplicate,
}

impl Claim {
    /// Whether this transaction owns the message.
    #[must_use]
    pub const fn is_claimed(self) -> bool {
        matches!(self, Self::Claimed)
    }
}

impl From<bool> for Claim {
    /// The boolean of `inbox_claim`.
    fn from(claimed: bool) -> Self {
        if claimed {
            Self::Claimed
        } else {
            Self::Duplicate
        }
    }
}

text_enum! {
    /// The answer of a claim that never waits for another transaction.
    #[must_use = "only a claimed message may be handled"]
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
    #[non_exhaustive]
    pub enum TryClaim {
        /// This transaction owns the message: do the work here, commit, then acknowledge.
        Claimed = "claimed",
        /// A committed transaction, or an earlier claim in this one, has it: commit and
        /// acknowledge without doing the work.
        Duplicate = "duplicate",
        /// Another transaction is working on it and has not ended yet: nothing was claimed and
        /// nothing is decided. Do not acknowledge; try again later.
        InFlight = "in_flight",
    }
}

impl TryClaim {
    /// Whether this transaction owns the message.
    #[must_use]
    pub const fn is_claimed(self) -> bool {
        matches!(self, Self::Claimed)
    }
}
