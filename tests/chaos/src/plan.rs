//! What is struck and when. The plan follows from the seed alone; which transaction a strike meets is
//! up to the machine.

use std::{ops::RangeInclusive, time::Duration};

use cutting_proxy::Cut;
use rand::{RngExt, SeedableRng, rngs::SmallRng};

/// The pause between two strikes, in milliseconds.
const PAUSES: RangeInclusive<u64> = 60..=400;

/// How many strikes there are between two stops of the server.
const STRIKES_BETWEEN_STOPS: RangeInclusive<u32> = 40..=70;

/// How many strikes there are between two kills of the broker, which is away for longer.
const STRIKES_BETWEEN_BROKER_KILLS: RangeInclusive<u32> = 110..=170;

/// A blow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Strike {
    /// SIGKILL to a consumer; which one is that number modulo their count.
    KillConsumer(usize),
    /// `pg_terminate_backend` of a consumer's session; which one is that number modulo their count.
    TerminateSession {
        /// The number.
        pick: usize,
        /// Only of those in a transaction, while there are any.
        in_transaction: bool,
    },
    /// The next connection that commits is cut at its COMMIT.
    CutCommit(Cut),
    /// An immediate stop of PostgreSQL, which recovers as after a crash.
    StopServer,
    /// SIGKILL to the broker's node.
    KillBroker,
}

/// Strikes without end, each with the pause before it.
#[derive(Debug)]
pub struct Plan {
    random: SmallRng,
    until_stop: u32,
    until_broker_kill: u32,
}

impl Plan {
    /// The plan of that seed.
    pub fn new(seed: u64) -> Self {
        let mut random = SmallRng::seed_from_u64(seed);
        let until_stop = random.random_range(STRIKES_BETWEEN_STOPS);
        let until_broker_kill = random.random_range(STRIKES_BETWEEN_BROKER_KILLS);
        Self {
            random,
            until_stop,
            until_broker_kill,
        }
    }

    fn strike(&mut self) -> Strike {
        self.until_stop -= 1;
        if self.until_stop == 0 {
            self.until_stop = self.random.random_range(STRIKES_BETWEEN_STOPS);
            return Strike::StopServer;
        }
        self.until_broker_kill -= 1;
        if self.until_broker_kill == 0 {
            self.until_broker_kill = self.random.random_range(STRIKES_BETWEEN_BROKER_KILLS);
            return Strike::KillBroker;
        }
        match self.random.random_range(0..100) {
            0..55 => Strike::KillConsumer(self.random.random_range(0..usize::MAX)),
            55..80 => Strike::TerminateSession {
                pick: self.random.random_range(0..usize::MAX),
                in_transaction: self.random.random_ratio(3, 4),
            },
            _ => Strike::CutCommit(Cut::ALL[self.random.random_range(0..Cut::ALL.len())]),
        }
    }
}

impl Iterator for Plan {
    type Item = (Duration, Strike);

    fn next(&mut self) -> Option<Self::Item> {
        let pause = Duration::from_millis(self.random.random_range(PAUSES));
        Some((pause, self.strike()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_seed_gives_the_same_plan() {
        let first = |seed| Plan::new(seed).take(300).collect::<Vec<_>>();
        assert_eq!(first(5), first(5));
        assert_ne!(first(5), first(6));
    }

    #[test]
    fn every_kind_of_strike_comes() {
        for seed in 0..20 {
            let strikes: Vec<Strike> = Plan::new(seed).take(220).map(|(_, it)| it).collect();
            let count = |is: fn(&Strike) -> bool| strikes.iter().filter(|it| is(it)).count();
            assert!(count(|it| matches!(it, Strike::KillConsumer(_))) >= 80);
            assert!(count(|it| matches!(it, Strike::TerminateSession { .. })) >= 25);
            assert!(count(|it| matches!(it, Strike::StopServer)) >= 3);
            assert!(count(|it| matches!(it, Strike::KillBroker)) >= 1);
            for cut in Cut::ALL {
                assert!(strikes.contains(&Strike::CutCommit(cut)), "seed {seed}");
            }
        }
    }
}
