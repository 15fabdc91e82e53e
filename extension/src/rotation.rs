//! When the ring of claim tables may move on: the pure part (guarantee G9).
//!
//! Times are microseconds of the database's clock. Knows nothing of Postgres; the
//! model check in `tests/model` explores the same rules.

/// How many tables the ring has.
pub const TABLES: usize = 3;

/// What is stored of the ring.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ring {
    /// The table that takes new claims.
    pub current: usize,
    /// When it became current.
    pub current_since: i64,
    /// When each table was sealed; none: it is current, or was never used.
    pub sealed_at: [Option<i64>; TABLES],
}

/// What can be done with the ring now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Plan {
    /// Nothing before this time.
    NotBefore(i64),
    /// Empty this table and make it current.
    MoveTo(usize),
}

impl Ring {
    /// The ring that has never moved: since when its first table is current is not
    /// known, so it counts as long ago.
    pub const INITIAL: Self = Self {
        current: 0,
        current_since: i64::MIN,
        sealed_at: [None; TABLES],
    };

    /// The table that a rotation would empty: the oldest sealed one.
    pub fn next(&self) -> usize {
        (self.current + 1) % TABLES
    }

    /// When the ring may move on at the earliest.
    ///
    /// The table to be emptied must have been sealed one whole retention ago, because
    /// its newest claim may have been committed at the moment of sealing. The current
    /// one must have been current for half a retention, or the tables would not last.
    pub fn due_at(&self, retention: i64) -> i64 {
        let half_over = self.current_since.saturating_add(retention / 2);
        match self.sealed_at[self.next()] {
            Some(sealed_at) => half_over.max(sealed_at.saturating_add(retention)),
            None => half_over,
        }
    }

    /// What can be done at this time.
    pub fn plan(&self, now: i64, retention: i64) -> Plan {
        let due_at = self.due_at(retention);
        if now < due_at {
            Plan::NotBefore(due_at)
        } else {
            Plan::MoveTo(self.next())
        }
    }

    /// The ring with a table, of which it is not known when it was sealed, sealed at this
    /// time: what is in it is protected for a retention from now.
    pub fn sealed(&self, table: usize, now: i64) -> Self {
        let mut sealed_at = self.sealed_at;
        sealed_at[table] = Some(now);
        Self { sealed_at, ..*self }
    }

    /// The ring after it moved on at this time.
    pub fn moved(&self, now: i64) -> Self {
        let mut sealed_at = self.sealed_at;
        sealed_at[self.current] = Some(now);
        sealed_at[self.next()] = None;
        Self {
            current: self.next(),
            current_since: now,
            sealed_at,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const START: Ring = Ring {
        current: 0,
        current_since: 0,
        sealed_at: [None; TABLES],
    };

    #[test]
    fn g9_prompt_rotations_come_every_half_retention() {
        let mut ring = START;
        for round in 1..10 {
            let now = round * 50;
            assert_eq!(ring.plan(now - 1, 100), Plan::NotBefore(now));
            assert_eq!(ring.plan(now, 100), Plan::MoveTo(ring.next()));
            ring = ring.moved(now);
        }
    }

    #[test]
    fn g9_a_longer_retention_holds_the_next_rotation_back() {
        let ring = START.moved(50).moved(100);
        assert_eq!(ring.due_at(100), 150);
        assert_eq!(ring.due_at(1000), 1050);
    }

    #[test]
    fn g9_a_table_sealed_late_is_kept_for_a_retention() {
        let ring = Ring::INITIAL.sealed(1, 1000);
        assert_eq!(ring.plan(1099, 100), Plan::NotBefore(1100));
        assert_eq!(ring.plan(1100, 100), Plan::MoveTo(1));
    }

    proptest! {
        /// Whatever the pauses between housekeeping runs: a claim committed while its
        /// table was current stays for at least one retention.
        #[test]
        fn g9_a_claim_protects_for_a_retention(pauses in prop::collection::vec(1_i64..80, 1..60), retention in 2_i64..200) {
            let mut ring = START;
            let mut now = 0;
            // The latest time at which a claim in each table may have been committed.
            let mut newest = [0_i64; TABLES];
            for pause in pauses {
                now += pause;
                newest[ring.current] = now;
                if let Plan::MoveTo(next) = ring.plan(now, retention) {
                    if ring.sealed_at[next].is_some() {
                        prop_assert!(now - newest[next] >= retention);
                    }
                    ring = ring.moved(now);
                    newest[next] = now;
                }
            }
        }

        /// With housekeeping at least every `late`, no claim outlives one and a half
        /// retentions by more than the delays of the three rotations it waits for.
        #[test]
        fn g9_a_claim_ends_after_one_and_a_half(late in 1_i64..10, retention in 20_i64..200) {
            let mut ring = START;
            let mut oldest = [None::<i64>; TABLES];
            let mut now = 0;
            while now < 10 * retention {
                now += late;
                oldest[ring.current].get_or_insert(now);
                if let Plan::MoveTo(next) = ring.plan(now, retention) {
                    oldest[next] = None;
                    ring = ring.moved(now);
                }
                for claimed in oldest.iter().flatten() {
                    prop_assert!(now - claimed <= retention + retention / 2 + 3 * late + 1);
                }
            }
        }
    }
}
