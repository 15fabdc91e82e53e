//! Consumers that are hard to shake off: a stream in which every message comes twice and in no
//! order, taken by several sessions at once, plain ones and those of position-ordered sequences.
//! Each writes its effect in the transaction of its claim. When the server goes away they stop; on
//! another, or on the same again, everything is delivered once more, and each effect must be there
//! once and in order, none of the acknowledged ones missing (G1, G4, G6, G8, G13).

use std::{
    collections::BTreeSet,
    sync::{
        Mutex,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    thread,
};

use inbox_test_support::{
    Database,
    inbox::{Arrival, Session},
    retention::{CONSUMER, try_claim},
};
use postgres::Error;
use rand::{SeedableRng, rngs::StdRng, seq::SliceRandom};

/// How many consumers there are.
const CONSUMERS: usize = 4;

/// How many messages of a context there are, and contexts and plain messages in a generation: what
/// is mixed with each other.
const POSITIONS: i64 = 5;
const CONTEXTS: usize = 3;
const PLAIN: usize = 10;

/// How many deliveries a generation has: each of its messages twice.
const DELIVERIES: usize = 2 * (PLAIN + CONTEXTS * POSITIONS as usize);

/// A message of the stream.
#[derive(Debug, Clone)]
struct Message {
    id: String,
    /// The context and the position; none for a plain one.
    place: Option<(String, i64)>,
}

/// The messages of a generation in the order in which they are delivered, the same at every call.
fn generation(number: usize) -> Vec<Message> {
    let plain = (0..PLAIN).map(|n| Message {
        id: format!("{number}-{n}"),
        place: None,
    });
    let sequenced = (0..CONTEXTS).flat_map(|context| {
        let context = format!("{number}-{context}");
        (1..=POSITIONS).map(move |position| Message {
            id: format!("{context}-{position}"),
            place: Some((context.clone(), position)),
        })
    });
    let once: Vec<_> = plain.chain(sequenced).collect();
    let mut all = [once.clone(), once].concat();
    all.shuffle(&mut StdRng::seed_from_u64(number as u64));
    all
}

/// Set when it is dropped, as it is by a panic.
struct GiveUp<'a>(&'a AtomicBool);

impl Drop for GiveUp<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// The stream and what was acknowledged of it.
#[derive(Debug, Default)]
pub struct Load {
    /// The next delivery of the whole stream.
    next: AtomicUsize,
    /// Whether the consumers are to stop: the test has failed, and its server stays.
    given_up: AtomicBool,
    /// The messages whose transaction was committed, so that the broker was told.
    acknowledged: Mutex<BTreeSet<String>>,
}

impl Load {
    /// What handlers write to, and the sequence that the messages follow.
    pub fn set_up(session: &mut Session) {
        Self::set_up_effects(session);
        Self::declare(session);
    }

    /// What handlers write to.
    pub fn set_up_effects(session: &mut Session) {
        session.run(
            "CREATE TABLE effect (number bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
                message_id text NOT NULL, context text, place bigint)",
        );
    }

    /// The sequence that the messages follow.
    pub fn declare(session: &mut Session) {
        session.run(
            "SELECT inbox_declare_sequence('steps', '1 day', '[{\"type\": \"step\"}]', ordering => 'position')",
        );
    }

    /// How many messages were acknowledged so far.
    pub fn acknowledged(&self) -> usize {
        self.acknowledged.lock().unwrap().len()
    }

    /// Consumers on that server until it goes away, while `meanwhile` runs, which must see to that.
    pub fn until_it_is_gone(&self, database: &Database, meanwhile: impl FnOnce()) {
        thread::scope(|scope| {
            for _ in 0..CONSUMERS {
                let mut session = Session::new(database);
                scope.spawn(move || {
                    while !self.given_up.load(Ordering::Relaxed) {
                        let delivery = self.next.fetch_add(1, Ordering::Relaxed);
                        let messages = generation(delivery / DELIVERIES);
                        if self
                            .deliver(&mut session, &messages[delivery % DELIVERIES])
                            .is_err()
                        {
                            break;
                        }
                    }
                });
            }
            let failing = GiveUp(&self.given_up);
            meanwhile();
            std::mem::forget(failing);
        });
    }

    /// Nothing that was acknowledged is missing.
    #[track_caller]
    pub fn nothing_acknowledged_is_lost(&self, session: &mut Session) {
        let kept: Vec<String> = session.value(
            "SELECT array_agg(id) FROM (SELECT id2 FROM inbox_claims WHERE id1 = $1
                UNION SELECT idempotence_id FROM sequenced_message) k (id)",
            &[&CONSUMER],
        );
        let kept: BTreeSet<_> = kept.into_iter().collect();
        let acknowledged = self.acknowledged.lock().unwrap();
        let lost: Vec<_> = acknowledged.difference(&kept).collect();
        assert!(lost.is_empty(), "acknowledged and lost: {lost:?}");
        assert!(!acknowledged.is_empty());
        // A claim or a record has its effect, and the other way round (G4).
        session.run(&format!("SET test.consumer = '{CONSUMER}'"));
        let torn: i64 = session.value(TORN, &[]);
        assert_eq!(
            torn, 0,
            "claims without an effect, or effects without a claim"
        );
    }

    /// Delivers all that was ever begun once more, by all consumers, on a server that stays; then
    /// every effect is there once, and in order.
    pub fn again_until_all_is_done(&self, database: &Database) {
        let generations = self.next.load(Ordering::Relaxed).div_ceil(DELIVERIES);
        let next = AtomicUsize::new(0);
        thread::scope(|scope| {
            for _ in 0..CONSUMERS {
                let (mut session, next) = (Session::new(database), &next);
                scope.spawn(move || {
                    loop {
                        let delivery = next.fetch_add(1, Ordering::Relaxed);
                        if delivery >= generations * DELIVERIES {
                            break;
                        }
                        let messages = generation(delivery / DELIVERIES);
                        self.deliver(&mut session, &messages[delivery % DELIVERIES])
                            .expect("this server stays");
                    }
                });
            }
        });
        // What a consumer left behind when its server went away.
        let mut session = Session::new(database);
        while hand_out(&mut session, None).expect("this server stays") {}
        let effects: Vec<String> = session.value("SELECT array_agg(message_id) FROM effect", &[]);
        let mut expected: Vec<_> = (0..generations)
            .flat_map(generation)
            .map(|message| message.id)
            .collect();
        expected.sort();
        expected.dedup();
        let mut sorted = effects;
        sorted.sort();
        assert_eq!(sorted, expected, "each effect once");
        let out_of_order: i64 = session.value(
            "SELECT count(*) FROM (SELECT place, row_number() OVER (PARTITION BY context ORDER BY number) n
                FROM effect WHERE context IS NOT NULL) o WHERE place <> n",
            &[],
        );
        assert_eq!(out_of_order, 0);
        let unfinished: i64 = session.value(
            "SELECT count(*) FROM sequenced_message WHERE state <> 'PROCESSED'",
            &[],
        );
        assert_eq!(unfinished, 0);
        self.nothing_acknowledged_is_lost(&mut session);
    }

    /// One delivery: a message is acknowledged when its transaction is committed, and what it
    /// releases is handed out after that.
    fn deliver(&self, session: &mut Session, message: &Message) -> Result<(), Error> {
        session.query("BEGIN", &[])?;
        let mut released_by = None;
        match &message.place {
            None => {
                if try_claim(session, &message.id)? {
                    take_effect(session, &message.id, None)?;
                }
            }
            Some((context, position)) => {
                let arrival = Arrival::at("step", &message.id, *position).of(context);
                let received = session.try_receive(&arrival)?;
                if received.decision == "process" {
                    take_effect(session, &message.id, Some((context, *position)))?;
                    released_by = received.instance;
                }
            }
        }
        session.query("COMMIT", &[])?;
        self.acknowledged.lock().unwrap().insert(message.id.clone());
        while released_by.is_some() && hand_out(session, released_by)? {}
        Ok(())
    }
}

/// How many plain claims have no effect, effects no claim, records of processed messages no effect,
/// in one snapshot.
const TORN: &str = "
    SELECT count(*) FROM (
        SELECT id2 AS id FROM inbox_claims WHERE id1 = current_setting('test.consumer')
        UNION ALL SELECT idempotence_id FROM sequenced_message WHERE state = 'PROCESSED'
    ) k FULL JOIN effect e ON e.message_id = k.id
    WHERE e.message_id IS NULL OR k.id IS NULL";

/// The same on a standby, where such a look may be cancelled by what is replayed meanwhile.
pub fn look_for_torn_ones(standby: &mut Session) {
    standby.run(&format!("SET test.consumer = '{CONSUMER}'"));
    match standby.query(TORN, &[]) {
        Ok(rows) => assert_eq!(rows[0].get::<_, i64>(0), 0),
        Err(error) => {
            let code = error.code().map(|code| code.code().to_owned());
            assert_eq!(code.as_deref(), Some("40001"), "{error:?}");
        }
    }
}

/// Handles the next message of an instance, or of any; whether there was one.
fn hand_out(session: &mut Session, instance: Option<i64>) -> Result<bool, Error> {
    session.query("BEGIN", &[])?;
    let released = session.try_next(instance)?;
    if let Some(it) = &released {
        let context = it.context.as_deref().expect("a context");
        let position = it.position.expect("a position");
        take_effect(session, &it.id, Some((context, position)))?;
    }
    session.query("COMMIT", &[])?;
    Ok(released.is_some())
}

/// What a handler does.
fn take_effect(session: &mut Session, id: &str, place: Option<(&str, i64)>) -> Result<(), Error> {
    session.query(
        "INSERT INTO effect (message_id, context, place) VALUES ($1, $2, $3)",
        &[&id, &place.map(|it| it.0), &place.map(|it| it.1)],
    )?;
    Ok(())
}
