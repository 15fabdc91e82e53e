//! `wait => false`: `in_flight` at once for a message and for an instance that another transaction
//! holds, and nothing is left behind.

use std::thread;

use inbox_test_support::inbox::{Arrival, ISOLATION_LEVELS, Session, blocked};

use postgres::IsolationLevel;

use super::declared;

/// Everything that a session can see in the tables, and the settings that a call might change.
fn everything(session: &mut Session) -> String {
    session.value(
        "SELECT concat_ws(E'\\n',
             (SELECT string_agg(t::text, ' ' ORDER BY t::text) FROM sequence_instance t),
             (SELECT string_agg(t::text, ' ' ORDER BY t::text) FROM sequenced_message t),
             (SELECT string_agg(t::text, ' ' ORDER BY t::text) FROM buffered_message t),
             (SELECT string_agg(t::text, ' ' ORDER BY t::text) FROM sequential_inbox_idempotence t),
             current_setting('lock_timeout'), pg_current_xact_id_if_assigned())",
        &[],
    )
}

/// Each of these must be answered `in_flight`, while a call that waits would fail after 10 s.
#[track_caller]
fn all_in_flight(session: &mut Session, level: IsolationLevel, arrivals: &[Arrival<'_>]) {
    for arrival in arrivals {
        let before = everything(session);
        session.begin_at(level);
        session.run("SET LOCAL lock_timeout = '10s'");
        let received = session.decided("in_flight", &arrival.clone().without_waiting());
        assert!(received.reason.is_some(), "{received:?}");
        assert_eq!((received.instance, received.message), (None, None));
        let timeout: String = session.value("SHOW lock_timeout", &[]);
        assert_eq!(timeout, "10s", "the caller's setting is back");
        // The transaction is as good as new.
        session.write("used");
        session.commit();
        assert_eq!(everything(session), before, "{level:?}: {arrival:?}");
    }
}

#[test]
fn a_message_or_an_instance_that_is_held_is_in_flight_at_once() {
    for level in ISOLATION_LEVELS {
        let (database, mut holder) = declared();
        let mut other = Session::new(&database);
        holder.decided("process", &Arrival::new("first", "1"));
        let buffered = holder.decided("buffered", &Arrival::at("step", "2", 2));
        // The message itself, under its own context and another; another one of its instance.
        holder.begin();
        holder.decided("process", &Arrival::new("second", "2"));
        let held = [
            Arrival::new("second", "2"),
            Arrival::new("second", "2").of("context-2"),
            Arrival::new("other", "3"),
        ];
        all_in_flight(&mut other, level, &held);
        // What is held elsewhere does not concern another context.
        other.decided(
            "process",
            &Arrival::new("first", "far")
                .of("context-3")
                .without_waiting(),
        );
        holder.rollback();
        // An instance that a hand-out, an operator or a failure holds.
        for call in [
            "SELECT inbox_next(sequence_instance_id) FROM sequenced_message WHERE id = $1",
            "SELECT inbox_force($1)",
            "SELECT inbox_fail_message($1, 'e')",
        ] {
            holder.begin();
            holder.decided("process", &Arrival::at("step", "1", 1));
            holder.query(call, &[&buffered.message()]).expect(call);
            all_in_flight(&mut other, level, &[Arrival::at("step", "3", 3)]);
            holder.rollback();
        }
        // An instance that is only being created.
        holder.begin();
        holder.decided("process", &Arrival::new("first", "new").of("context-4"));
        all_in_flight(
            &mut other,
            level,
            &[Arrival::new("second", "new").of("context-4")],
        );
        holder.rollback();
        // Once nobody holds them, all of them are received.
        for arrival in held {
            let decision = if arrival.context == Some("context-2") {
                "duplicate"
            } else {
                "process"
            };
            other.decided(decision, &arrival.without_waiting());
        }
    }
}

#[test]
fn a_declaration_that_is_being_changed_is_in_flight_too() {
    let (database, mut holder) = declared();
    let mut other = Session::new(&database);
    holder.decided("process", &Arrival::new("first", "1"));
    holder.begin();
    holder.run(r#"SELECT inbox_declare_sequence('conditions', '2 days', '[{"type": "first"}]')"#);
    all_in_flight(
        &mut other,
        IsolationLevel::ReadCommitted,
        &[Arrival::new("first", "2")],
    );
    holder.rollback();
    other.decided("process", &Arrival::new("first", "2").without_waiting());
}

#[test]
fn a_settled_message_is_a_duplicate_at_once_though_its_instance_is_held() {
    let (database, mut holder) = declared();
    let mut other = Session::new(&database);
    holder.decided("process", &Arrival::new("first", "1"));
    holder.begin();
    holder.decided("process", &Arrival::new("other", "2"));
    other.run("SET lock_timeout = '10s'");
    other.decided("duplicate", &Arrival::new("first", "1").without_waiting());
    other.decided("duplicate", &Arrival::new("first", "1"));
    holder.rollback();
}

#[test]
fn not_waiting_decides_like_waiting_where_nobody_is_in_the_way() {
    let (_database, mut session) = declared();
    session.decided("buffered", &Arrival::new("second", "2").without_waiting());
    session.decided("duplicate", &Arrival::new("second", "2").without_waiting());
    let first = session.decided("process", &Arrival::new("first", "1").without_waiting());
    assert_eq!(session.drain(first.instance()), ["2"]);
    session.decided("process", &Arrival::at("step", "1", 1).without_waiting());
    session.decided(
        "rejected",
        &Arrival::at("step", "1 again", 1).without_waiting(),
    );
    // In the very transaction that holds it.
    session.begin();
    session.decided("process", &Arrival::new("other", "3").without_waiting());
    session.decided("duplicate", &Arrival::new("other", "3").without_waiting());
    session.decided("process", &Arrival::new("other", "4").without_waiting());
    session.commit();
}

#[test]
fn g3_a_message_that_was_in_flight_can_be_had_once_its_holder_is_gone() {
    let (database, mut session) = declared();
    let mut holder = Session::new(&database);
    holder.begin();
    holder.decided("process", &Arrival::new("first", "1"));
    session.decided("in_flight", &Arrival::new("first", "1").without_waiting());
    database.terminate(holder.pid());
    session.decided("process", &Arrival::new("first", "1").without_waiting());
}

#[test]
fn a_waiter_in_the_queue_does_not_make_not_waiting_wait() {
    let (database, mut holder) = declared();
    let mut waiting = Session::new(&database);
    let mut other = Session::new(&database);
    holder.decided("process", &Arrival::new("first", "1"));
    holder.begin();
    holder.decided("process", &Arrival::new("other", "2"));
    thread::scope(|scope| {
        let waiter = blocked(scope, &database, &mut waiting, |session| {
            session.decided("process", &Arrival::new("other", "3"));
        });
        all_in_flight(
            &mut other,
            IsolationLevel::ReadCommitted,
            &[Arrival::new("other", "4")],
        );
        holder.commit();
        waiter.join().unwrap();
    });
    other.decided("process", &Arrival::new("other", "4").without_waiting());
}
