//! A broker that delivers at least once: a queue that redelivers what was not acknowledged, and
//! delivers some messages twice, to two sessions at the same moment or one after the other.

use std::{
    collections::{HashSet, VecDeque},
    pin::pin,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicI32, Ordering},
    },
    time::Duration,
};

use anyhow::{Context, Result};
use tokio::{
    sync::{Barrier, Notify},
    time::timeout,
};

use crate::schedule::{Copies, Planned};

/// How many other messages are delivered before one comes again, while there are as many: a
/// redelivery comes soon, and yet among others.
const REDELIVERY_DISTANCE: usize = 25;

/// How long one of two sessions waits for the other to have the same message. Never waited out
/// while consumers take what is delivered.
const PATIENCE: Duration = Duration::from_secs(60);

/// A message on its way to a consumer, who either acknowledges it or gives it back.
#[derive(Debug)]
#[must_use = "a delivery is acknowledged or given back"]
pub struct Delivery {
    /// The event's index in the stream.
    pub event: usize,
    /// Where another session gets the same message at the same moment.
    pub seat: Option<Seat>,
}

/// One of the two seats of a meeting: a message is delivered to two sessions at the same moment.
#[derive(Debug)]
pub struct Seat {
    meeting: Arc<Meeting>,
    side: usize,
}

#[derive(Debug)]
struct Meeting {
    barrier: Barrier,
    /// The server's process ids of the two sessions.
    pids: [AtomicI32; 2],
    /// Whether one of them holds the message.
    is_held: AtomicBool,
}

impl Seat {
    /// Returns when the other session has the message too. The argument is the server's process
    /// id of this session.
    ///
    /// # Errors
    ///
    /// When the other does not come.
    pub async fn meet(&self, pid: i32) -> Result<()> {
        self.meeting.pids[self.side].store(pid, Ordering::Release);
        timeout(PATIENCE, self.meeting.barrier.wait())
            .await
            .context("the second session did not take its delivery")?;
        Ok(())
    }

    /// Called by a session that got the message: the first of the two learns the other's process
    /// id, whose call cannot end before this one's transaction does.
    pub fn first_holder_learns_other(&self) -> Option<i32> {
        let was_held = self.meeting.is_held.swap(true, Ordering::AcqRel);
        (!was_held).then(|| self.meeting.pids[1 - self.side].load(Ordering::Acquire))
    }
}

/// The broker; shared by all consumers of one group.
#[derive(Debug)]
pub struct Broker {
    state: Mutex<State>,
    changed: Notify,
}

#[derive(Debug)]
struct State {
    queue: VecDeque<Queued>,
    /// Deliveries that were neither acknowledged nor given back yet.
    in_flight: usize,
    /// Events whose second copy is due when the first was committed.
    second_copies: HashSet<usize>,
    deliveries: u64,
}

#[derive(Debug)]
enum Queued {
    First(Planned),
    Again(Delivery),
}

impl Broker {
    /// A broker that has those messages to deliver.
    pub fn new(planned: &[Planned]) -> Self {
        Self {
            state: Mutex::new(State {
                queue: planned.iter().copied().map(Queued::First).collect(),
                in_flight: 0,
                second_copies: HashSet::new(),
                deliveries: 0,
            }),
            changed: Notify::new(),
        }
    }

    /// The next message, waiting for one while a delivery may still be given back; `None` when
    /// everything was acknowledged.
    pub async fn next(&self) -> Option<Delivery> {
        loop {
            let mut changed = pin!(self.changed.notified());
            changed.as_mut().enable();
            {
                let mut state = self.state();
                if let Some(delivery) = state.take() {
                    drop(state);
                    // There may be a second copy for somebody who waits.
                    self.changed.notify_waiters();
                    return Some(delivery);
                }
                if state.in_flight == 0 {
                    return None;
                }
            }
            changed.await;
        }
    }

    /// The message was committed, whatever the answer: it is not delivered again for its own sake.
    pub fn acknowledge(&self, delivery: Delivery) {
        self.state().in_flight -= 1;
        drop(delivery);
        self.changed.notify_waiters();
    }

    /// The message was not committed, or its failure was recorded: it is delivered again.
    pub fn give_back(&self, delivery: Delivery) {
        let mut state = self.state();
        state.in_flight -= 1;
        state.put(delivery.event);
        drop(state);
        self.changed.notify_waiters();
    }

    /// Delivers an acknowledged message once more, since its failure was recorded.
    pub fn resend(&self, event: usize) {
        self.state().put(event);
        self.changed.notify_waiters();
    }

    /// A delivery of the event was committed: its second copy is due, where it has one.
    pub fn follow_up(&self, event: usize) {
        let mut state = self.state();
        if state.second_copies.remove(&event) {
            state.put(event);
            drop(state);
            self.changed.notify_waiters();
        }
    }

    /// How many deliveries there were.
    pub fn deliveries(&self) -> u64 {
        self.state().deliveries
    }

    /// Whether everything was acknowledged.
    pub fn is_done(&self) -> bool {
        let state = self.state();
        state.queue.is_empty() && state.in_flight == 0
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// Takes the first message of the queue.
    fn take(&mut self) -> Option<Delivery> {
        let delivery = match self.queue.pop_front()? {
            Queued::Again(delivery) => delivery,
            Queued::First(Planned { event, copies }) => match copies {
                Copies::One => Delivery { event, seat: None },
                Copies::AfterCommit => {
                    self.second_copies.insert(event);
                    Delivery { event, seat: None }
                }
                Copies::SameMoment => {
                    let [seat, other] = meeting();
                    // In front, so that whoever comes next takes it: of two consumers and more,
                    // one alone ever waits for another.
                    self.queue.push_front(Queued::Again(Delivery {
                        event,
                        seat: Some(other),
                    }));
                    let seat = Some(seat);
                    Delivery { event, seat }
                }
            },
        };
        self.in_flight += 1;
        self.deliveries += 1;
        Some(delivery)
    }

    /// Queues a message a little later.
    fn put(&mut self, event: usize) {
        let place = self.queue.len().min(REDELIVERY_DISTANCE);
        let delivery = Delivery { event, seat: None };
        self.queue.insert(place, Queued::Again(delivery));
    }
}

fn meeting() -> [Seat; 2] {
    let meeting = Arc::new(Meeting {
        barrier: Barrier::new(2),
        pids: [AtomicI32::new(0), AtomicI32::new(0)],
        is_held: AtomicBool::new(false),
    });
    [0, 1].map(|side| Seat {
        meeting: Arc::clone(&meeting),
        side,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(copies: &[Copies]) -> Vec<Planned> {
        let events = copies.iter().copied().enumerate();
        events
            .map(|(event, copies)| Planned { event, copies })
            .collect()
    }

    async fn take(broker: &Broker) -> Delivery {
        broker.next().await.expect("there is a message")
    }

    #[tokio::test]
    async fn what_is_acknowledged_comes_once() {
        let broker = Broker::new(&plan(&[Copies::One; 3]));
        for event in 0..3 {
            assert!(!broker.is_done());
            let delivery = take(&broker).await;
            assert_eq!(delivery.event, event);
            broker.acknowledge(delivery);
        }
        assert!(broker.next().await.is_none());
        assert!(broker.is_done());
        assert_eq!(broker.deliveries(), 3);
    }

    #[tokio::test]
    async fn what_is_given_back_comes_again_among_others() {
        let broker = Broker::new(&plan(&[Copies::One; 100]));
        let first = take(&broker).await;
        broker.give_back(first);
        for _ in 0..REDELIVERY_DISTANCE {
            let delivery = take(&broker).await;
            assert_ne!(delivery.event, 0);
            broker.acknowledge(delivery);
        }
        assert_eq!(take(&broker).await.event, 0);
    }

    #[tokio::test]
    async fn a_consumer_waits_for_what_may_be_given_back() {
        let broker = Broker::new(&plan(&[Copies::One]));
        let only = take(&broker).await;
        let (next, ()) = tokio::join!(broker.next(), async {
            tokio::task::yield_now().await;
            broker.give_back(only);
        });
        let next = next.expect("it is delivered again");
        let (none, ()) = tokio::join!(broker.next(), async {
            tokio::task::yield_now().await;
            broker.acknowledge(next);
        });
        assert!(none.is_none());
    }

    #[tokio::test]
    async fn a_second_copy_comes_after_the_commit_and_once() {
        let broker = Broker::new(&plan(&[Copies::AfterCommit]));
        let failed = take(&broker).await;
        broker.give_back(failed);
        let first = take(&broker).await;
        broker.follow_up(0);
        broker.acknowledge(first);
        let second = take(&broker).await;
        assert_eq!(second.event, 0);
        broker.follow_up(0);
        broker.acknowledge(second);
        assert!(broker.next().await.is_none());
        assert_eq!(broker.deliveries(), 3);
    }

    #[tokio::test]
    async fn two_sessions_meet_and_the_first_holder_learns_of_the_other() {
        let broker = Broker::new(&plan(&[Copies::SameMoment, Copies::One]));
        let one = take(&broker).await;
        let other = take(&broker).await;
        assert_eq!((one.event, other.event), (0, 0));
        let (one, other) = (one.seat.unwrap(), other.seat.unwrap());
        let (first, second) = tokio::join!(one.meet(11), other.meet(22));
        assert!(first.is_ok() && second.is_ok());
        assert_eq!(other.first_holder_learns_other(), Some(11));
        assert_eq!(one.first_holder_learns_other(), None);
        assert_eq!(take(&broker).await.event, 1);
    }

    #[tokio::test]
    async fn a_resent_message_is_delivered() {
        let broker = Broker::new(&[]);
        assert!(broker.next().await.is_none());
        broker.resend(4);
        assert!(!broker.is_done());
        assert_eq!(take(&broker).await.event, 4);
    }
}
