//! The protocol as it must be, and broken ones that the check has to catch: each
//! leaves out or misplaces one step that an implementation could plausibly miss.

use crate::state::{ClaimStep, RotateStep};

/// Which protocol a model follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Variant {
    /// As `docs/ring.md` has it.
    Correct,
    /// Claims do not take the gate.
    NoGate,
    /// A claim reads which table is current, and then takes the gate.
    CurrentReadBeforeGate,
    /// A claim reads which table is current after the gate, but with the snapshot
    /// its transaction or statement started with.
    CurrentReadWithOldSnapshot,
    /// A claim probes the sealed tables with the snapshot its transaction or
    /// statement started with.
    SealedProbedWithOldSnapshot,
    /// A claim does not look into the sealed tables.
    NoSealedProbe,
    /// A claim lets go of the gate when it has its answer, not at the end of its
    /// transaction.
    GateReleasedAfterClaim,
    /// A transaction that took the gate once does not ask again, though a rollback
    /// to a savepoint has released it.
    GateForgottenAfterSavepointRollback,
    /// A rotation counts the retention of a table from when it became current, not
    /// from when it was sealed.
    TruncateByWrongClock,
    /// A rotation records as seal time when its transaction started (`now()`), not
    /// the clock after the gate.
    SealTimeFromTransactionStart,
    /// A rotation goes ahead in a transaction that has a claim of its own in
    /// flight: its own locks do not stop it.
    RotationOverOwnClaim,
    /// A rotation reads the ring, and then takes the gate.
    RotationReadsRingBeforeGate,
    /// A rotation waits for its locks as long as it takes.
    RotationWithoutTimeout,
    /// A rotation happens as soon as the next table may be emptied, however short
    /// the current one has been current.
    RotationWithoutPacing,
}

/// What a protocol promises, and a broken one breaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Promise {
    /// G1 and G9: of one key, one winner inside a retention.
    OneWinner,
    /// Every wait of a claim ends.
    WaitsEnd,
    /// With rotation on time, no claim protects longer than one and a half
    /// retentions.
    AtMostOneAndAHalf,
}

impl Variant {
    /// The broken protocols.
    pub const BROKEN: [Variant; 13] = [
        Variant::NoGate,
        Variant::CurrentReadBeforeGate,
        Variant::CurrentReadWithOldSnapshot,
        Variant::SealedProbedWithOldSnapshot,
        Variant::NoSealedProbe,
        Variant::GateReleasedAfterClaim,
        Variant::GateForgottenAfterSavepointRollback,
        Variant::TruncateByWrongClock,
        Variant::SealTimeFromTransactionStart,
        Variant::RotationOverOwnClaim,
        Variant::RotationReadsRingBeforeGate,
        Variant::RotationWithoutTimeout,
        Variant::RotationWithoutPacing,
    ];

    /// The promise that the protocol breaks; none for the correct one.
    pub fn breaks(self) -> Option<Promise> {
        match self {
            Variant::Correct => None,
            Variant::RotationWithoutTimeout => Some(Promise::WaitsEnd),
            Variant::RotationWithoutPacing => Some(Promise::AtMostOneAndAHalf),
            _ => Some(Promise::OneWinner),
        }
    }

    /// The steps of a claim, in order.
    pub fn claim_steps(self) -> &'static [ClaimStep] {
        use ClaimStep::{Gate, Insert, Probe, ReadRing};
        match self {
            Variant::NoGate => &[ReadRing, Probe, Insert],
            Variant::CurrentReadBeforeGate => &[ReadRing, Gate, Probe, Insert],
            Variant::NoSealedProbe => &[Gate, ReadRing, Insert],
            _ => &[Gate, ReadRing, Probe, Insert],
        }
    }

    /// The steps of a rotation, in order.
    pub fn rotate_steps(self) -> &'static [RotateStep] {
        use RotateStep::{Gate, ReadRing, Truncate};
        match self {
            Variant::RotationReadsRingBeforeGate => &[ReadRing, Gate, Truncate],
            _ => &[Gate, ReadRing, Truncate],
        }
    }

    /// Whether a claim asks a snapshot older than its gate for rows or ring.
    pub fn uses_old_snapshot(self) -> bool {
        matches!(
            self,
            Variant::SealedProbedWithOldSnapshot | Variant::CurrentReadWithOldSnapshot
        )
    }
}
