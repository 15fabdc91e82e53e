//! P5: the order workload at an offered rate, and the highest rate that is sustained.
//!
//! Three measurements: the rate of the target in rounds; a search for the highest rate at which
//! the latency still holds; and latencies at rates below and above that one, for the picture.

use std::time::Duration;

use serde::Serialize;
use serde_json::json;

use super::Benchmark;
use crate::open_loop::{Observed, Offer, offer};
use crate::orders::{Shop, Till};
use crate::picture::{self, Curve};
use crate::report::{Row, Series, Target, short};
use crate::rounds::{largest, median};
use crate::server::Server;

pub(super) const BENCHMARK: Benchmark = Benchmark {
    id: "P5",
    what: "order workload at an offered rate",
    run,
};

/// The rate that the target speaks of, in messages a second.
const RATE: f64 = 1400.0;

/// The p95 up to which a rate is sustained, in milliseconds.
const P95_MS: f64 = 10.0;

/// The part of the offered messages that has to be done within the window.
const COMPLETED: f64 = 0.99;

/// How long a rate is offered before anything counts.
const WARM_UP: Duration = Duration::from_secs(1);

/// By how much the search goes up or down until it has a rate on either side.
const STEP: f64 = 1.5;

/// How close the two sides are when the search ends.
const PRECISION: f64 = 1.05;

/// Rates are multiples of this.
const LOWEST: f64 = 10.0;

/// A rate is sustained when it holds in two of three trials: one stall of a shared disk must not
/// end the search, one lucky moment not pass it.
const TRIALS: u32 = 3;

/// Rates of the picture, as parts of the highest one that is sustained.
const PARTS: [f64; 10] = [0.1, 0.25, 0.4, 0.55, 0.7, 0.8, 0.9, 1.0, 1.1, 1.2];

/// At most so often is each rate of the picture measured.
const PICTURE_ROUNDS: u32 = 3;

/// Latencies in milliseconds at one offered rate.
#[derive(Debug, Clone, Copy, Serialize)]
pub(crate) struct Point {
    /// Messages a second.
    pub(crate) rate: f64,
    pub(crate) p50: f64,
    pub(crate) p95: f64,
    pub(crate) p99: f64,
    pub(crate) max: f64,
    /// The part of the offered messages that was done within the window.
    pub(crate) completed: f64,
}

impl Point {
    fn new(rate: f64, observed: &Observed) -> Self {
        Self {
            rate,
            p50: observed.quantile_ms(0.5),
            p95: observed.quantile_ms(0.95),
            p99: observed.quantile_ms(0.99),
            max: observed.quantile_ms(1.0),
            completed: observed.completed_share(),
        }
    }

    fn is_sustained(&self) -> bool {
        self.p95 <= P95_MS && self.completed >= COMPLETED
    }

    /// The median of each figure, and the largest maximum.
    fn of_rounds(points: &[Self]) -> Self {
        let middle = |figure: fn(&Self) -> f64| median(&of_each(points, figure));
        Self {
            rate: middle(|point| point.rate),
            p50: middle(|point| point.p50),
            p95: middle(|point| point.p95),
            p99: middle(|point| point.p99),
            max: largest(&of_each(points, |point| point.max)),
            completed: middle(|point| point.completed),
        }
    }
}

fn of_each(points: &[Point], figure: fn(&Point) -> f64) -> Vec<f64> {
    points.iter().map(figure).collect()
}

fn run(server: &Server) -> anyhow::Result<Vec<Row>> {
    server.progress.doing("P5: storing claims".to_owned());
    let shop = Shop::open(server, "p5")?;
    let connections = server.options.connections;
    let tills = (0..connections)
        .map(|_| shop.till())
        .collect::<anyhow::Result<Vec<_>>>()?;
    let mut market = Market {
        server,
        tills,
        handled: 0,
    };

    let rounds = server.options.rounds();
    let at_target = (1..=rounds)
        .map(|round| market.offer(RATE, &format!("round {round} of {rounds}")))
        .collect::<anyhow::Result<Vec<_>>>()?;
    let highest = highest_sustained(RATE, |rate| market.sustains(rate))?;
    let curve = market.curve(highest)?;
    shop.check(market.handled)?;

    let picture = &server.options.svg;
    picture::draw(
        picture,
        &Curve {
            points: &curve,
            target: (RATE, P95_MS),
            highest,
            connections,
        },
    )?;
    let target = Point::of_rounds(&at_target);
    Ok(vec![
        Row {
            id: "P5",
            what: format!(
                "order workload, {RATE} messages a second offered, clients: {connections}: p95"
            ),
            unit: "ms",
            ours: Series::median(of_each(&at_target, |point| point.p95)),
            baseline: None,
            ratio: None,
            target: Target::OursAtMost(P95_MS),
            note: Some(format!(
                "p50 {} ms, p99 {} ms, longest {} ms; {:.1} % done within the window",
                short(target.p50),
                short(target.p99),
                short(target.max),
                target.completed * 100.0
            )),
            detail: Some(json!(at_target)),
        },
        Row {
            id: "P5",
            what: format!(
                "order workload, highest rate sustained, clients: {connections}: p95 within \
                 {P95_MS} ms, {:.0} % done within the window",
                COMPLETED * 100.0
            ),
            unit: "/s",
            ours: Series::median(vec![highest]),
            baseline: None,
            ratio: None,
            target: Target::None,
            note: Some(format!("latency over rate: {}", picture.display())),
            detail: Some(json!(curve)),
        },
    ])
}

/// The sessions to which rates are offered.
struct Market<'a> {
    server: &'a Server,
    tills: Vec<Till>,
    handled: u64,
}

impl Market<'_> {
    fn offer(&mut self, rate: f64, when: &str) -> anyhow::Result<Point> {
        self.server
            .progress
            .doing(format!("P5 order workload, {rate:.0}/s offered: {when}"));
        let load = Offer {
            rate,
            warm_up: WARM_UP,
            window: Duration::from_secs(self.server.options.seconds().into()),
        };
        let observed = offer(&load, &mut self.tills, Till::process)?;
        self.handled += observed.handled;
        Ok(Point::new(rate, &observed))
    }

    fn sustains(&mut self, rate: f64) -> anyhow::Result<bool> {
        let mut sustained = 0;
        for trial in 1..=TRIALS {
            let held = self.offer(rate, "looking for the highest")?.is_sustained();
            sustained += u32::from(held);
            let majority = TRIALS / 2 + 1;
            if sustained == majority || trial - sustained == majority {
                break;
            }
        }
        Ok(sustained > TRIALS / 2)
    }

    /// Latencies at rates around the highest: up in one round, down in the next, the median of
    /// the rounds at each.
    fn curve(&mut self, highest: f64) -> anyhow::Result<Vec<Point>> {
        // Where nothing is sustained, around the target instead.
        let around = if highest > 0.0 { highest } else { RATE };
        let mut rates: Vec<f64> = PARTS.iter().map(|part| round_rate(part * around)).collect();
        rates.push(RATE);
        rates.sort_by(f64::total_cmp);
        rates.dedup();
        let mut points = vec![Vec::new(); rates.len()];
        for round in 0..self.server.options.rounds().min(PICTURE_ROUNDS) {
            for turn in 0..rates.len() {
                let place = if round % 2 == 0 {
                    turn
                } else {
                    rates.len() - 1 - turn
                };
                points[place].push(self.offer(rates[place], "for the picture")?);
            }
        }
        Ok(points.iter().map(|them| Point::of_rounds(them)).collect())
    }
}

/// The highest rate that is sustained, searched from one on; 0 when not even the lowest is.
fn highest_sustained(
    from: f64,
    mut sustains: impl FnMut(f64) -> anyhow::Result<bool>,
) -> anyhow::Result<f64> {
    let mut low = from;
    let mut high = from;
    if sustains(from)? {
        while high == low {
            high = round_rate(low * STEP);
            if sustains(high)? {
                low = high;
            }
        }
    } else {
        while high == low {
            if high <= LOWEST {
                return Ok(0.0);
            }
            low = round_rate(high / STEP);
            if !sustains(low)? {
                high = low;
            }
        }
    }
    while high / low > PRECISION {
        let middle = round_rate((low + high) / 2.0);
        if middle == low || middle == high {
            break;
        }
        if sustains(middle)? {
            low = middle;
        } else {
            high = middle;
        }
    }
    Ok(low)
}

/// A rate as one would write it down.
fn round_rate(rate: f64) -> f64 {
    (rate / LOWEST).round().max(1.0) * LOWEST
}

#[cfg(test)]
mod tests {
    use super::*;

    fn search(limit: f64) -> f64 {
        highest_sustained(1400.0, |rate| Ok(rate <= limit)).unwrap()
    }

    #[test]
    fn the_search_ends_just_below_the_limit() {
        for limit in [60.0, 300.0, 1399.0, 1400.0, 1401.0, 5000.0, 40_000.0] {
            let found = search(limit);
            assert!(found <= limit, "{found} > {limit}");
            assert!(found * PRECISION + 10.0 >= limit, "{found} << {limit}");
        }
        assert_eq!(search(0.0), 0.0);
    }

    #[test]
    fn a_rate_is_sustained_when_both_conditions_hold() {
        let point = Point {
            rate: 1400.0,
            p50: 1.0,
            p95: 10.0,
            p99: 50.0,
            max: 900.0,
            completed: 0.99,
        };
        assert!(point.is_sustained());
        assert!(!Point { p95: 10.1, ..point }.is_sustained());
        let unfinished = Point {
            completed: 0.98,
            ..point
        };
        assert!(!unfinished.is_sustained());
    }

    #[test]
    fn rounds_come_to_their_medians_and_the_longest() {
        let point = |p50, max| Point {
            rate: 100.0,
            p50,
            p95: 1.0,
            p99: 1.0,
            max,
            completed: 1.0,
        };
        let all = Point::of_rounds(&[point(3.0, 5.0), point(1.0, 90.0), point(2.0, 6.0)]);
        assert_eq!((all.p50, all.max), (2.0, 90.0));
    }
}
