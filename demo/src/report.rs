//! The table at the end: what was counted, what was to be expected, and whether they agree.

use std::time::Duration;

use comfy_table::{Cell, CellAlignment, Color, Table, presets::UTF8_FULL_CONDENSED};
use indicatif::HumanCount;
use sequential_inbox_client::MessageType;

use crate::{
    declaration::complete_instances, replay::Kind, schedule::Schedule, stream::Stream,
    tally::Counts,
};

/// How many wrong effects of a part are shown, and how many violations of its order.
const SHOWN_ERRORS: usize = 5;

/// What a replay must give, from the stream and the schedule alone.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Expected {
    /// Effects, and handlers that committed: one for each event.
    pub effects: u64,
    /// One for each message that is delivered twice: failures and takeovers change nothing in it.
    pub duplicates: u64,
    /// One for each message that is delivered to two sessions at the same moment.
    pub waited: u64,
    /// One for each fault of the schedule.
    pub failed: u64,
    /// The faults that are lost connections.
    pub killed: u64,
    /// Complete instances; `None` when completion is not looked at.
    pub closed: Option<u64>,
}

impl Expected {
    /// What is to be expected of that kind of replay.
    pub fn new(kind: &Kind, stream: &Stream, schedule: &Schedule, types: &[MessageType]) -> Self {
        let closed = match kind {
            Kind::Ordered(ordering) => Some(complete_instances(types, *ordering, stream) as u64),
            Kind::Plain(_) | Kind::Claims => None,
        };
        Self {
            effects: stream.events().len() as u64,
            duplicates: schedule.delivered_twice() as u64,
            waited: schedule.at_the_same_moment() as u64,
            failed: schedule.failures() as u64,
            killed: schedule.killed() as u64,
            closed,
        }
    }
}

/// Who delivered a replay's messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Delivered {
    /// The demo's own broker: each delivery follows from the schedule.
    Scripted {
        /// How many there were.
        deliveries: u64,
    },
    /// RabbitMQ, which decides itself when and to whom it delivers.
    RabbitMq {
        /// How many came in.
        deliveries: u64,
        /// How many were given back.
        returned: u64,
        /// Messages that were given up as dead letters, and retried.
        given_up: u64,
        /// How often the broker was killed.
        broker_kills: u64,
    },
}

/// What a replay gave.
#[derive(Debug, Clone)]
pub struct Outcome {
    /// The part's name.
    pub title: String,
    /// What the consumers counted.
    pub counts: Counts,
    /// Who delivered.
    pub delivered: Delivered,
    /// Rows in the ledger.
    pub effects: u64,
    /// Events that were handled too early; `None` when the order is not looked at.
    pub violations: Option<Vec<String>>,
    /// Instances in the state CLOSED.
    pub closed: u64,
    /// Messages that are not done.
    pub unfinished: u64,
    /// Wrong effects and accounts.
    pub errors: Vec<String>,
    /// How long the consumers ran.
    pub elapsed: Duration,
    /// What was to be expected.
    pub expected: Expected,
}

/// A number of the table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Figure {
    value: u64,
    /// `None`: whatever it is, is right.
    expected: Option<u64>,
}

impl Figure {
    const fn is_right(self) -> bool {
        match self.expected {
            Some(expected) => self.value == expected,
            None => true,
        }
    }
}

impl Outcome {
    /// The rows of the table; `None` where a row does not apply.
    fn figures(&self) -> Vec<(&'static str, Option<Figure>)> {
        let (counts, expected) = (&self.counts, &self.expected);
        let free = |value| {
            Some(Figure {
                value,
                expected: None,
            })
        };
        let due = |value, expected| {
            Some(Figure {
                value,
                expected: Some(expected),
            })
        };
        let ordered = |figure| self.violations.as_ref().and(figure);
        let violations = self.violations.as_ref().map_or(0, Vec::len) as u64;
        // What follows from the schedule alone, and what only RabbitMQ does.
        let (deliveries, is_scripted, [returned, given_up, broker_kills]) = match self.delivered {
            Delivered::Scripted { deliveries } => (deliveries, true, [None; 3]),
            Delivered::RabbitMq {
                deliveries,
                returned,
                given_up,
                broker_kills,
            } => (
                deliveries,
                false,
                [returned, given_up, broker_kills].map(free),
            ),
        };
        let scripted = |figure: Option<Figure>| figure.filter(|_| is_scripted);
        let duplicates = if is_scripted {
            due(counts.duplicates, expected.duplicates)
        } else {
            free(counts.duplicates)
        };
        vec![
            ("deliveries", free(deliveries)),
            ("applied", scripted(due(counts.applied, expected.effects))),
            ("duplicates skipped", duplicates),
            ("waited", scripted(due(counts.waited, expected.waited))),
            ("took over", scripted(free(counts.took_over))),
            ("failed and retried", due(counts.failed, expected.failed)),
            (
                "connections terminated",
                due(counts.killed, expected.killed),
            ),
            ("given back to the broker", returned),
            ("given up, then retried", given_up),
            ("broker killed", broker_kills),
            ("buffered", ordered(free(counts.buffered))),
            ("released", ordered(free(counts.released))),
            (
                "most waiting at once",
                scripted(ordered(free(counts.most_waiting))),
            ),
            ("order violations", ordered(due(violations, 0))),
            (
                "instances closed",
                expected.closed.and_then(|closed| due(self.closed, closed)),
            ),
            ("messages left unfinished", due(self.unfinished, 0)),
            ("effects in the ledger", due(self.effects, expected.effects)),
            ("effects expected", free(expected.effects)),
        ]
    }

    /// What differs from what was to be expected, one line each.
    pub fn problems(&self) -> Vec<String> {
        let figures = self.figures().into_iter();
        let mut problems: Vec<String> = figures
            .filter_map(|(name, figure)| Some((name, figure?)))
            .filter(|(_, figure)| !figure.is_right())
            .map(|(name, figure)| {
                let expected = HumanCount(figure.expected.unwrap_or_default());
                format!("{name}: {}, expected {expected}", HumanCount(figure.value))
            })
            .collect();
        for details in [Some(&self.errors), self.violations.as_ref()] {
            let details = details.map_or(&[][..], Vec::as_slice);
            problems.extend(details.iter().take(SHOWN_ERRORS).cloned());
            if details.len() > SHOWN_ERRORS {
                problems.push(format!("… and {} more", details.len() - SHOWN_ERRORS));
            }
        }
        problems
    }
}

/// The table of all parts, a column each.
pub fn table(outcomes: &[Outcome]) -> String {
    let mut table = Table::new();
    table.load_style(UTF8_FULL_CONDENSED);
    let titles = outcomes.iter().map(|outcome| outcome.title.as_str());
    table.set_header(std::iter::once("").chain(titles));
    let columns: Vec<_> = outcomes.iter().map(Outcome::figures).collect();
    let rows = columns.first().map_or(0, Vec::len);
    for row in 0..rows {
        let figures: Vec<_> = columns
            .iter()
            .filter_map(|column| column.get(row))
            .collect();
        if figures.iter().all(|(_, figure)| figure.is_none()) {
            continue;
        }
        let name = figures.first().map_or("", |(name, _)| name);
        let cells = figures.iter().map(|(_, figure)| cell(*figure));
        table.add_row(std::iter::once(Cell::new(name)).chain(cells));
    }
    let seconds = outcomes.iter().map(|outcome| {
        Cell::new(format!("{:.1}", outcome.elapsed.as_secs_f64()))
            .set_alignment(CellAlignment::Right)
    });
    table.add_row(std::iter::once(Cell::new("seconds")).chain(seconds));
    table.to_string()
}

/// A figure as a cell: in colour on a terminal where something was to be expected, and with what
/// was expected where it differs.
fn cell(figure: Option<Figure>) -> Cell {
    let Some(figure) = figure else {
        return Cell::new("");
    };
    let value = HumanCount(figure.value);
    let cell = match figure.expected {
        None => Cell::new(value),
        Some(_) if figure.is_right() => Cell::new(value).fg(Color::Green),
        Some(expected) => {
            Cell::new(format!("{value} (expected {})", HumanCount(expected))).fg(Color::Red)
        }
    };
    cell.set_alignment(CellAlignment::Right)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outcome() -> Outcome {
        Outcome {
            title: "part".to_owned(),
            counts: Counts {
                applied: 1000,
                duplicates: 200,
                waited: 100,
                failed: 90,
                killed: 1,
                buffered: 400,
                released: 390,
                ..Counts::default()
            },
            delivered: Delivered::Scripted { deliveries: 1300 },
            effects: 1000,
            violations: Some(Vec::new()),
            closed: 150,
            unfinished: 0,
            errors: Vec::new(),
            elapsed: Duration::from_millis(1234),
            expected: Expected {
                effects: 1000,
                duplicates: 200,
                waited: 100,
                failed: 90,
                killed: 1,
                closed: Some(150),
            },
        }
    }

    #[test]
    fn what_was_expected_is_no_problem() {
        assert_eq!(outcome().problems(), Vec::<String>::new());
    }

    #[test]
    fn whatever_differs_is_a_problem() {
        type Change = fn(&mut Outcome);
        let changes: [(Change, &str); 10] = [
            (
                |it| it.counts.applied += 1,
                "applied: 1,001, expected 1,000",
            ),
            (|it| it.counts.duplicates -= 1, "duplicates skipped: 199"),
            (|it| it.counts.waited = 0, "waited: 0"),
            (|it| it.counts.failed = 91, "failed and retried: 91"),
            (|it| it.counts.killed = 0, "connections terminated: 0"),
            (|it| it.effects = 999, "effects in the ledger: 999"),
            (|it| it.closed = 151, "instances closed: 151, expected 150"),
            (|it| it.unfinished = 1, "messages left unfinished: 1"),
            (
                |it| it.violations = Some(vec!["too early".to_owned()]),
                "order violations: 1",
            ),
            (|it| it.errors.push("lost".to_owned()), "lost"),
        ];
        for (change, complaint) in changes {
            let mut outcome = outcome();
            change(&mut outcome);
            let problems = outcome.problems();
            assert!(problems[0].contains(complaint), "{problems:?}");
        }
    }

    #[test]
    fn rabbitmq_delivers_as_it_likes() {
        let mut outcome = outcome();
        outcome.delivered = Delivered::RabbitMq {
            deliveries: 1777,
            returned: 99,
            given_up: 44,
            broker_kills: 1,
        };
        outcome.counts.duplicates += 7;
        (outcome.counts.applied, outcome.counts.waited) = (0, 0);
        assert_eq!(outcome.problems(), Vec::<String>::new());
        let shown = table(std::slice::from_ref(&outcome));
        for figure in ["1,777", "99", "44", "207"] {
            assert!(shown.contains(figure), "{shown}");
        }
        assert!(!shown.contains("took over"), "{shown}");
        outcome.effects += 1;
        assert_eq!(outcome.problems().len(), 1);
    }

    #[test]
    fn the_table_shows_what_was_expected_where_it_differs() {
        let mut wrong = outcome();
        wrong.effects = 1001;
        wrong.title = "other".to_owned();
        let table = table(&[outcome(), wrong]);
        assert!(table.contains("1,001 (expected 1,000)"), "{table}");
        assert!(table.contains("1.2"), "{table}");
    }

    #[test]
    fn rows_that_apply_to_no_part_are_left_out() {
        let mut plain = outcome();
        plain.violations = None;
        plain.expected.closed = None;
        let shown = table(std::slice::from_ref(&plain));
        assert!(!shown.contains("order violations"), "{shown}");
        assert!(!shown.contains("instances closed"), "{shown}");
        assert!(table(&[plain, outcome()]).contains("order violations"));
    }

    #[test]
    fn long_lists_of_errors_are_cut() {
        let mut outcome = outcome();
        outcome.errors = vec!["lost".to_owned(); 30];
        let problems = outcome.problems();
        assert_eq!(problems.len(), SHOWN_ERRORS + 1);
        assert_eq!(problems.last().unwrap(), "… and 25 more");
    }
}
