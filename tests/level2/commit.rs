//! The connection is lost at the commit: nobody knows what happened until the redelivery (G1, G3,
//! G4).

use cutting_proxy::{Cut, Proxy};
use rand::{RngExt, SeedableRng, rngs::SmallRng};
use sequential_inbox_client::{Message, Outcome, ProcessError};

use super::{
    Client, Consumer, open, server,
    setting::{both_modes, connect, database, dsn_through, message},
};

/// Each mode, this often.
const ROUNDS: u64 = 50;

/// A proxy in front of the server that cuts every commit there.
fn cutting(cut: Cut) -> Proxy {
    Proxy::start(server(), move || Some(cut)).unwrap()
}

/// Processes a message with a handler that writes its id into the ledger.
fn process(
    consumer: &Consumer,
    client: &mut Client,
    message: &Message<'_>,
) -> Result<Outcome<()>, ProcessError> {
    wait!(consumer.process(
        client,
        message,
        handler!(|tx, delivery| {
            let id = &*delivery.message.idempotence_id;
            done!(tx.execute("INSERT INTO ledger VALUES ($1)", &[&id]))?;
            Ok(())
        }),
    ))
}

#[test]
fn g1_g3_a_commit_that_was_cut_is_unknown_and_the_redelivery_decides() {
    for consumer in both_modes() {
        // Nothing is given up, were it the last attempt.
        let consumer = consumer.give_up_after(1).reschedule_failures(true);
        let database = database();
        let mut direct = connect(&database);
        let (mut applied, mut duplicates) = (0, 0);
        for seed in 0..ROUNDS {
            let mut random = SmallRng::seed_from_u64(seed);
            let cut = Cut::ALL[random.random_range(0..3)];
            let id = format!("evt-{seed}");
            let context = format!("order-{}", random.random_range(0..5));
            let message = message("order.placed", &id).context(context);
            let proxy = cutting(cut);
            let mut cut_off = open(&dsn_through(&database, proxy.address()));
            let error = process(&consumer, &mut cut_off, &message).expect_err("no acknowledgement");
            assert!(error.is_unknown(), "seed {seed}, {cut:?}: {error:?}");
            assert!(!error.is_retryable());
            let outcome = process(&consumer, &mut direct, &message).unwrap();
            match (cut, &outcome) {
                (Cut::Before | Cut::During, Outcome::Applied(())) => applied += 1,
                (Cut::After | Cut::During, Outcome::Duplicate) => duplicates += 1,
                _ => panic!("seed {seed}, {cut:?}: {outcome:?}"),
            }
        }
        assert!(applied > 0 && duplicates > 0, "{applied} and {duplicates}");
        let mut once: Vec<String> = (0..ROUNDS).map(|seed| format!("evt-{seed}")).collect();
        once.sort_unstable();
        assert_eq!(database.ledger(), once);
        let failed: i64 =
            database.value("SELECT count(*) FROM sequenced_message WHERE state = 'FAILED'");
        assert_eq!(failed, 0, "nothing is recorded of what is not known");
    }
}

#[test]
fn a_batch_that_was_cut_is_unknown_as_a_whole() {
    for consumer in both_modes() {
        let database = database();
        let ids: Vec<String> = (0..5).map(|number| format!("evt-{number}")).collect();
        let messages: Vec<Message<'_>> = ids
            .iter()
            .map(|id| message("order.placed", id).context(id.as_str()))
            .collect();
        let mut handled = 0;
        for cut in [Cut::Before, Cut::After] {
            let proxy = cutting(cut);
            let mut cut_off = open(&dsn_through(&database, proxy.address()));
            let error = wait!(consumer.process_batch(
                &mut cut_off,
                &messages,
                handler!(|tx, delivery| {
                    handled += 1;
                    let id = &*delivery.message.idempotence_id;
                    done!(tx.execute("INSERT INTO ledger VALUES ($1)", &[&id]))?;
                    Ok(())
                }),
            ))
            .expect_err("no acknowledgement");
            assert!(error.is_unknown(), "{cut:?}: {error:?}");
        }
        assert_eq!(handled, 10, "and not one by one");
        assert_eq!(database.ledger(), ids);
    }
}
