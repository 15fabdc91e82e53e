//! Load at an offered rate: messages arrive when they arrive, however busy the consumers are.
//!
//! The times of arrival are drawn beforehand, as from many independent producers: with exponential
//! gaps, bursts included. A message's latency counts from its scheduled arrival to the end of its
//! transaction, the time it waited for a free session included. A slow moment is so felt by every
//! message that arrives in it, and not only by the one that was in hand (no coordinated omission).
//! What is not done when the measurement ends counts with how long it has waited by then.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::anyhow;
use hdrhistogram::Histogram;

/// How long threads have to start before the first arrival.
const LEAD: Duration = Duration::from_millis(20);

/// The longest latency that is told apart, in microseconds: a minute.
const LONGEST: u64 = 60_000_000;

/// Which load is offered, and for how long.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Offer {
    /// Messages a second.
    pub(crate) rate: f64,
    /// How long it is offered before anything counts.
    pub(crate) warm_up: Duration,
    /// How long it is then measured.
    pub(crate) window: Duration,
}

/// What was observed of the messages that arrived within the window.
#[derive(Debug)]
pub(crate) struct Observed {
    /// How many arrived.
    pub(crate) offered: u64,
    /// How many of them were done before the window ended.
    pub(crate) completed: u64,
    /// How many messages were handled in all, those of the warm-up included.
    pub(crate) handled: u64,
    /// Their latencies in microseconds.
    latencies: Histogram<u64>,
}

impl Observed {
    fn new() -> anyhow::Result<Self> {
        Ok(Self {
            offered: 0,
            completed: 0,
            handled: 0,
            latencies: Histogram::new_with_max(LONGEST, 3)?,
        })
    }

    /// The latency that this part of the messages did not exceed, in milliseconds.
    pub(crate) fn quantile_ms(&self, part: f64) -> f64 {
        self.latencies.value_at_quantile(part) as f64 / 1e3
    }

    /// The part of the offered messages that was done in time.
    pub(crate) fn completed_share(&self) -> f64 {
        self.completed as f64 / self.offered as f64
    }

    fn add(&mut self, other: &Self) -> anyhow::Result<()> {
        self.offered += other.offered;
        self.completed += other.completed;
        self.handled += other.handled;
        self.latencies.add(&other.latencies)?;
        Ok(())
    }
}

/// Offers the load to the workers, a thread each. Whoever is free takes the next message.
pub(crate) fn offer<W: Send>(
    load: &Offer,
    workers: &mut [W],
    work: impl Fn(&mut W) -> anyhow::Result<()> + Sync,
) -> anyhow::Result<Observed> {
    let arrivals = arrivals(load);
    let next = AtomicUsize::new(0);
    let start = Instant::now() + LEAD;
    let end = start + load.warm_up + load.window;
    let consume = |worker: &mut W| -> anyhow::Result<Observed> {
        let mut observed = Observed::new()?;
        while let Some(&arrival) = arrivals.get(next.fetch_add(1, Ordering::Relaxed)) {
            let arrives_at = start + arrival;
            thread::sleep(arrives_at.saturating_duration_since(Instant::now()));
            let mut done_at = end;
            let in_time = Instant::now() < end && {
                work(worker)?;
                observed.handled += 1;
                done_at = Instant::now();
                done_at <= end
            };
            if arrival >= load.warm_up {
                let latency = done_at.duration_since(arrives_at).as_micros();
                observed.offered += 1;
                observed.completed += u64::from(in_time);
                observed
                    .latencies
                    .saturating_record(u64::try_from(latency).unwrap_or(LONGEST));
            }
        }
        Ok(observed)
    };
    let mut total = Observed::new()?;
    thread::scope(|scope| {
        let consume = &consume;
        let threads: Vec<_> = workers
            .iter_mut()
            .map(|worker| scope.spawn(move || consume(worker)))
            .collect();
        for thread in threads {
            let observed = thread.join().map_err(|_| anyhow!("a thread panicked"))??;
            total.add(&observed)?;
        }
        Ok(total)
    })
}

/// When messages arrive, counted from the start.
fn arrivals(load: &Offer) -> Vec<Duration> {
    let end = (load.warm_up + load.window).as_secs_f64();
    let mut arrivals = Vec::with_capacity((end * load.rate * 1.1) as usize);
    let mut at = 0.0;
    loop {
        // From 0, included, to 1, not included: the logarithm is finite.
        at -= (1.0 - fastrand::f64()).ln() / load.rate;
        if at >= end {
            return arrivals;
        }
        arrivals.push(Duration::from_secs_f64(at));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn load(rate: f64, milliseconds: u64) -> Offer {
        Offer {
            rate,
            warm_up: Duration::ZERO,
            window: Duration::from_millis(milliseconds),
        }
    }

    #[test]
    fn as_many_arrive_as_are_offered() {
        let arrivals = arrivals(&load(100_000.0, 1000));
        assert!(arrivals.is_sorted());
        // Six standard deviations.
        assert!(
            (98_100..101_900).contains(&arrivals.len()),
            "{}",
            arrivals.len()
        );
    }

    #[test]
    fn whoever_arrives_while_all_are_busy_has_waited() {
        // The first message holds the only worker for most of the time. Measured from the start
        // of its own work, hardly any message would be slow.
        let mut workers = [true];
        let observed = offer(&load(1000.0, 400), &mut workers, |is_first| {
            if std::mem::take(is_first) {
                thread::sleep(Duration::from_millis(300));
            }
            Ok(())
        })
        .unwrap();
        assert!(observed.quantile_ms(0.5) > 50.0, "{observed:?}");
    }

    #[test]
    fn what_is_never_done_counts_as_slow_and_not_as_completed() {
        let mut workers = [()];
        let observed = offer(&load(1000.0, 300), &mut workers, |()| {
            thread::sleep(Duration::from_millis(30));
            Ok(())
        })
        .unwrap();
        assert!(observed.handled <= 11, "{observed:?}");
        assert!(observed.offered > 100, "{observed:?}");
        assert!(observed.completed_share() < 0.2, "{observed:?}");
        assert!(observed.quantile_ms(0.95) > 100.0, "{observed:?}");
    }

    #[test]
    fn a_worker_s_error_ends_the_measurement() {
        let failed = offer(&load(1000.0, 100), &mut [()], |()| Err(anyhow!("no")));
        assert_eq!(failed.unwrap_err().to_string(), "no");
    }
}
