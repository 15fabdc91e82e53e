//! What goes wrong and when: the order in which messages arrive, which of them arrive twice, whose
//! handler fails, whose connection is lost. All of it follows from the seed.

use std::collections::{BTreeMap, HashSet};

use rand::{
    SeedableRng,
    rngs::StdRng,
    seq::{SliceRandom, index},
};

use crate::stream::{Stream, hash};

/// Every how many messages one is delivered twice.
const TWICE_EVERY: usize = 5;

/// One handler in this many is interrupted by the loss of its connection; at least one in a stream.
const KILLED_EVERY: usize = 1000;

/// Of a hundred handlers, how many fail on their first try and are rolled back.
const ROLLED_BACK_PERCENT: u64 = 7;

/// Of a hundred handlers, how many fail on their first try and are recorded as failed.
const RECORDED_PERCENT: u64 = 4;

/// The order in which messages arrive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Arrival {
    /// Shuffled over the whole stream.
    Shuffled,
    /// Each case's messages shuffled among the places that they have in the stream.
    ShuffledWithinCases,
    /// The whole stream backwards.
    Reversed,
}

/// How often a message is delivered, before anything fails.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Copies {
    /// Once.
    One,
    /// Twice, to two sessions at the same moment.
    SameMoment,
    /// A second time after the first delivery was committed.
    AfterCommit,
}

/// How a handler's first try ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// It fails after it wrote; the transaction is rolled back.
    RolledBack,
    /// It fails after it wrote; the failure is recorded with `inbox_fail`.
    Recorded,
    /// Its session is terminated after it wrote and before it commits.
    Killed,
}

/// The first delivery of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Planned {
    /// The event's index in the stream.
    pub event: usize,
    /// How often it is delivered.
    pub copies: Copies,
}

/// A plan for one replay of a stream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Schedule {
    deliveries: Vec<Planned>,
    /// By the event's index in the stream.
    faults: Vec<Option<Fault>>,
    /// The events that are delivered twice.
    twice: HashSet<usize>,
}

impl Schedule {
    /// The plan for that stream; the same for the same arguments.
    pub fn new(stream: &Stream, arrival: Arrival, seed: u64) -> Self {
        let mut random = StdRng::seed_from_u64(seed);
        let count = stream.events().len();
        let deliveries: Vec<_> = order(stream, arrival, &mut random)
            .into_iter()
            .enumerate()
            .map(|(place, event)| {
                let copies = match (place + 1) / TWICE_EVERY % 2 {
                    _ if (place + 1) % TWICE_EVERY != 0 => Copies::One,
                    1 => Copies::SameMoment,
                    _ => Copies::AfterCommit,
                };
                Planned { event, copies }
            })
            .collect();
        let twice = deliveries
            .iter()
            .filter(|planned| planned.copies != Copies::One)
            .map(|planned| planned.event)
            .collect();
        let mut faults: Vec<_> = stream
            .events()
            .iter()
            .map(|event| match hash(seed, &event.event_id) % 100 {
                share if share < ROLLED_BACK_PERCENT => Some(Fault::RolledBack),
                share if share < ROLLED_BACK_PERCENT + RECORDED_PERCENT => Some(Fault::Recorded),
                _ => None,
            })
            .collect();
        for killed in index::sample(&mut random, count, count.div_ceil(KILLED_EVERY)) {
            if let Some(fault) = faults.get_mut(killed) {
                *fault = Some(Fault::Killed);
            }
        }
        Self {
            deliveries,
            faults,
            twice,
        }
    }

    /// The first deliveries, in the order of their arrival.
    pub fn deliveries(&self) -> &[Planned] {
        &self.deliveries
    }

    /// How the first try of the event's handler ends; `None`: well.
    pub fn fault(&self, event: usize) -> Option<Fault> {
        self.faults.get(event).copied().flatten()
    }

    /// Whether the event is delivered twice, before anything fails.
    pub fn is_delivered_twice(&self, event: usize) -> bool {
        self.twice.contains(&event)
    }

    /// How many messages are delivered twice.
    pub fn delivered_twice(&self) -> usize {
        self.twice.len()
    }

    /// How many messages are delivered twice at the same moment.
    pub fn at_the_same_moment(&self) -> usize {
        let copies = self.deliveries.iter().map(|planned| planned.copies);
        copies.filter(|&it| it == Copies::SameMoment).count()
    }

    /// How many handlers fail on their first try, lost connections included.
    pub fn failures(&self) -> usize {
        self.faults.iter().flatten().count()
    }

    /// How many connections are terminated.
    pub fn killed(&self) -> usize {
        let faults = self.faults.iter().flatten();
        faults.filter(|&&fault| fault == Fault::Killed).count()
    }
}

/// The events' indices in the order of their arrival.
fn order(stream: &Stream, arrival: Arrival, random: &mut StdRng) -> Vec<usize> {
    let mut order: Vec<usize> = (0..stream.events().len()).collect();
    match arrival {
        Arrival::Shuffled => order.shuffle(random),
        Arrival::Reversed => order.reverse(),
        Arrival::ShuffledWithinCases => {
            // Sorted, so that the seed alone decides.
            let mut cases = BTreeMap::<&str, Vec<usize>>::new();
            for (index, event) in stream.events().iter().enumerate() {
                cases.entry(&event.context_id).or_default().push(index);
            }
            for places in cases.into_values() {
                let mut shuffled = places.clone();
                shuffled.shuffle(random);
                for (place, event) in places.into_iter().zip(shuffled) {
                    order[place] = event;
                }
            }
        }
    }
    order
}

#[cfg(test)]
mod tests {
    use super::*;

    fn schedule(arrival: Arrival, seed: u64) -> (Stream, Schedule) {
        let stream = Stream::generate(1).unwrap();
        let schedule = Schedule::new(&stream, arrival, seed);
        (stream, schedule)
    }

    fn arrivals(schedule: &Schedule) -> Vec<usize> {
        schedule.deliveries().iter().map(|it| it.event).collect()
    }

    #[test]
    fn every_event_arrives() {
        for arrival in [
            Arrival::Shuffled,
            Arrival::ShuffledWithinCases,
            Arrival::Reversed,
        ] {
            let (stream, schedule) = schedule(arrival, 5);
            let mut events = arrivals(&schedule);
            assert_ne!(
                events,
                (0..stream.events().len()).collect::<Vec<_>>(),
                "{arrival:?}"
            );
            events.sort_unstable();
            assert_eq!(
                events,
                (0..stream.events().len()).collect::<Vec<_>>(),
                "{arrival:?}"
            );
        }
    }

    #[test]
    fn the_seed_decides() {
        for arrival in [Arrival::Shuffled, Arrival::ShuffledWithinCases] {
            let (_, first) = schedule(arrival, 5);
            assert_eq!(first, schedule(arrival, 5).1);
            assert_ne!(arrivals(&first), arrivals(&schedule(arrival, 6).1));
        }
    }

    #[test]
    fn shuffled_within_cases_keeps_each_case_in_its_places() {
        let (stream, schedule) = schedule(Arrival::ShuffledWithinCases, 5);
        for (place, event) in arrivals(&schedule).into_iter().enumerate() {
            assert_eq!(
                stream.events()[place].context_id,
                stream.events()[event].context_id
            );
        }
    }

    #[test]
    fn reversed_is_the_whole_stream_backwards() {
        let (stream, schedule) = schedule(Arrival::Reversed, 5);
        let backwards: Vec<_> = (0..stream.events().len()).rev().collect();
        assert_eq!(arrivals(&schedule), backwards);
    }

    #[test]
    fn every_fifth_is_delivered_twice_and_half_of_them_at_the_same_moment() {
        let (stream, schedule) = schedule(Arrival::Shuffled, 5);
        for (place, planned) in schedule.deliveries().iter().enumerate() {
            assert_eq!(planned.copies != Copies::One, place % 5 == 4, "{place}");
            assert_eq!(schedule.is_delivered_twice(planned.event), place % 5 == 4);
        }
        let twice = stream.events().len() / 5;
        assert_eq!(schedule.delivered_twice(), twice);
        assert_eq!(schedule.at_the_same_moment(), twice.div_ceil(2));
    }

    #[test]
    fn each_kind_of_fault_occurs() {
        let (stream, schedule) = schedule(Arrival::Shuffled, 5);
        let count = stream.events().len();
        let of = |fault| {
            (0..count)
                .filter(|&event| schedule.fault(event) == Some(fault))
                .count()
        };
        assert!((count / 30..count / 8).contains(&of(Fault::RolledBack)));
        assert!((count / 60..count / 12).contains(&of(Fault::Recorded)));
        assert_eq!(of(Fault::Killed), count.div_ceil(KILLED_EVERY));
        assert_eq!(of(Fault::Killed), schedule.killed());
        assert_eq!(
            of(Fault::RolledBack) + of(Fault::Recorded) + of(Fault::Killed),
            schedule.failures()
        );
        assert_eq!(schedule.fault(count), None);
    }

    #[test]
    fn a_single_event_loses_its_connection() {
        let event = Stream::generate(1).unwrap().events()[0].clone();
        let stream = Stream::new(vec![event]).unwrap();
        let schedule = Schedule::new(&stream, Arrival::Shuffled, 5);
        assert_eq!(schedule.fault(0), Some(Fault::Killed));
        assert_eq!(schedule.delivered_twice(), 0);
    }
}
