//! What a run tells of itself in the end.

use std::{fmt, time::Duration};

use cutting_proxy::Cut;

use crate::{
    checker::{Violation, by_kind},
    tally::Tally,
};

/// How many violations of each kind are told in full.
const TOLD: usize = 10;

/// How often what was struck.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Kills {
    /// Consumer processes, with SIGKILL.
    pub consumers: u64,
    /// Sessions, with `pg_terminate_backend`.
    pub sessions: u64,
    /// Immediate stops of the server.
    pub servers: u64,
    /// The broker's node, with SIGKILL.
    pub brokers: u64,
}

impl Kills {
    /// All of them.
    pub const fn total(self) -> u64 {
        self.consumers + self.sessions + self.servers + self.brokers
    }
}

/// How often a connection was cut at its COMMIT.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Cuts {
    /// The COMMIT never reached the server.
    pub before: u64,
    /// Nobody waited for the answer.
    pub during: u64,
    /// The answer never reached the client.
    pub after: u64,
}

impl Cuts {
    /// One more of that kind.
    pub const fn count(&mut self, cut: Cut) {
        match cut {
            Cut::Before => self.before += 1,
            Cut::During => self.during += 1,
            Cut::After => self.after += 1,
        }
    }

    /// All of them.
    pub const fn total(self) -> u64 {
        self.before + self.during + self.after
    }
}

/// The figures of a run, and what is wrong.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Report {
    /// What the run can be repeated with.
    pub seed: u64,
    /// How long things were struck.
    pub chaos: Duration,
    /// How long the whole run took.
    pub elapsed: Duration,
    /// Consumer processes that were started.
    pub processes: u64,
    /// Contexts and their messages, each counted once.
    pub contexts: u64,
    /// The same.
    pub messages: u64,
    /// Messages published, copies included.
    pub published: u64,
    /// What the consumers did.
    pub tally: Tally,
    /// What was struck.
    pub kills: Kills,
    /// Connections cut at COMMIT.
    pub cuts: Cuts,
    /// Processes that a handler of their own aborted.
    pub aborted: u64,
    /// Effects in the ledger.
    pub effects: u64,
    /// Dead letters that were meant to be, before the operator came.
    pub poison: u64,
    /// Dead letters by bad luck, which the operator had retried.
    pub unlucky: u64,
    /// Messages that the operator skipped.
    pub skipped: u64,
    /// Dead letters that are left, as they are meant to be.
    pub dead_letters: u64,
    /// What must never happen.
    pub violations: Vec<Violation>,
    /// What else went wrong: a consumer that ended by itself, a run that did not come to rest.
    pub problems: Vec<String>,
}

impl Report {
    /// Whether nothing is wrong.
    pub fn is_good(&self) -> bool {
        self.violations.is_empty() && self.problems.is_empty()
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (tally, kills, cuts) = (self.tally, self.kills, self.cuts);
        let seconds = |time: Duration| format!("{:.1} s", time.as_secs_f64());
        let rows = [
            (
                "chaos",
                format!(
                    "{}, of {} in all",
                    seconds(self.chaos),
                    seconds(self.elapsed)
                ),
            ),
            (
                "messages",
                format!(
                    "{} of {} contexts, published {} times",
                    self.messages, self.contexts, self.published
                ),
            ),
            (
                "deliveries",
                format!(
                    "{}, of them {} the broker's redeliveries",
                    tally.deliveries, tally.redelivered
                ),
            ),
            (
                "handed out",
                format!("{} times by the inbox", tally.handed_out),
            ),
            (
                "answers",
                format!(
                    "{} applied, {} duplicate, {} buffered, {} failed, {} given up",
                    tally.applied, tally.duplicates, tally.buffered, tally.failures, tally.given_up
                ),
            ),
            (
                "kills",
                format!(
                    "{}: {} consumers, {} sessions, {} servers, {} brokers",
                    kills.total(),
                    kills.consumers,
                    kills.sessions,
                    kills.servers,
                    kills.brokers
                ),
            ),
            (
                "commits cut",
                format!(
                    "{}: {} before, {} during, {} after",
                    cuts.total(),
                    cuts.before,
                    cuts.during,
                    cuts.after
                ),
            ),
            (
                "processes",
                format!(
                    "{} started, {} aborted by a handler",
                    self.processes, self.aborted
                ),
            ),
            (
                "dead letters",
                format!(
                    "{} poison, {} by bad luck; {} skipped, {} left as dead letters",
                    self.poison, self.unlucky, self.skipped, self.dead_letters
                ),
            ),
            ("effects", self.effects.to_string()),
            ("violations", self.violations.len().to_string()),
        ];
        for (name, figures) in rows {
            writeln!(f, "{name:>14}  {figures}")?;
        }
        for (kind, count) in by_kind(&self.violations) {
            writeln!(f, "VIOLATED: {}: {count}", kind.text())?;
            let of_kind = self.violations.iter().filter(|it| it.kind == kind);
            for violation in of_kind.take(TOLD) {
                writeln!(f, "  {}", violation.details)?;
            }
            if count > TOLD {
                writeln!(f, "  … and {} more", count - TOLD)?;
            }
        }
        for problem in &self.problems {
            writeln!(f, "WRONG: {problem}")?;
        }
        write!(f, "seed {}", self.seed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checker::Kind;

    #[test]
    fn what_is_wrong_is_told() {
        let mut report = Report {
            seed: 7,
            ..Report::default()
        };
        assert!(report.is_good());
        assert!(report.to_string().ends_with("\nseed 7"));
        report.problems.push("a consumer ended".to_owned());
        assert!(!report.is_good());
        report.problems.clear();
        report.violations = vec![
            Violation {
                kind: Kind::Lost,
                details: "payment.made \"7\"".to_owned(),
            };
            TOLD + 2
        ];
        assert!(!report.is_good());
        let told = report.to_string();
        assert!(
            told.contains(&format!("VIOLATED: G8 lost: {}", TOLD + 2)),
            "{told}"
        );
        assert!(told.contains("… and 2 more"), "{told}");
    }

    #[test]
    fn kills_and_cuts_add_up() {
        let kills = Kills {
            consumers: 1,
            sessions: 2,
            servers: 3,
            brokers: 4,
        };
        assert_eq!(kills.total(), 10);
        let mut cuts = Cuts::default();
        for cut in Cut::ALL {
            cuts.count(cut);
        }
        assert_eq!((cuts.before, cuts.during, cuts.after), (1, 1, 1));
        assert_eq!(cuts.total(), 3);
    }
}
