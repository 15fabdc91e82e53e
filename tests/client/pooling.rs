//! What shows that the suite's sessions go through PgBouncer in transaction mode, and that nothing
//! of the client hangs on a server process: sessions share them and change them, and what one has
//! prepared by name is gone in the next.

use std::time::Duration;

use inbox_test_support::{Database, pgbouncer::console};
use sequential_inbox_client::{Claim, Decision, Message, MessageType, Sequence, SqlState};

use super::{
    Client, InboxExt,
    session::{commit, connect, pid},
};

const HOUR: Duration = Duration::from_secs(3600);

/// Runs `work` while another session holds the server process that this session had last, so that
/// it must get another one.
fn elsewhere(database: &Database, client: &mut Client, work: impl FnOnce(&mut Client)) {
    let last = commit(client, pid);
    let mut other = connect(database);
    let mut held = wait!(other.transaction()).unwrap();
    // The one that was free; PgBouncer opens a new one only when there is none.
    pid(&mut held);
    work(client);
    assert_ne!(commit(client, pid), last);
    wait!(held.rollback()).unwrap();
}

#[test]
fn sessions_share_a_server_process_that_belongs_to_pgbouncer() {
    let database = Database::new();
    let mut sessions: Vec<Client> = (0..5).map(|_| connect(&database)).collect();
    let mut pids: Vec<i32> = sessions
        .iter_mut()
        .map(|client| commit(client, pid))
        .collect();
    pids.sort_unstable();
    pids.dedup();
    // One, unless PgBouncer has closed an idle one on a slow machine.
    assert!(pids.len() < sessions.len(), "{pids:?}");
    assert_eq!(console("SHOW CLIENTS", &database, "link").len(), 5);
    let mut tx = wait!(sessions[0].transaction()).unwrap();
    let own = pid(&mut tx).to_string();
    let servers = console("SHOW SERVERS", &database, "remote_pid");
    assert!(servers.contains(&own), "{own} is not in {servers:?}");
    let modes = console("SHOW POOLS", &database, "pool_mode");
    assert!(modes.iter().all(|mode| mode == "transaction") && !modes.is_empty());
}

#[test]
fn g1_g7_every_transaction_may_run_in_another_server_process() {
    let database = Database::new();
    let mut client = connect(&database);
    let orders = Sequence::new("orders", HOUR)
        .message(MessageType::new("order.placed"))
        .message(MessageType::new("order.paid").after("order.placed"));
    commit(&mut client, |tx| {
        wait!(tx.inbox().declare_sequence(&orders)).unwrap()
    });
    let message = |message_type: &'static str, id: &'static str| {
        Message::new(message_type, id).context("order-1")
    };
    let receive = |client: &mut Client, message| {
        commit(client, |tx| wait!(tx.inbox().receive(&message)).unwrap())
    };
    let paid = receive(&mut client, message("order.paid", "evt-2"));
    assert_eq!(paid.decision, Decision::Buffered);
    elsewhere(&database, &mut client, |client| {
        let placed = receive(client, message("order.placed", "evt-1"));
        assert_eq!(placed.decision, Decision::Process);
        elsewhere(&database, client, |client| {
            let next = commit(client, |tx| {
                wait!(tx.inbox().next(placed.sequence_instance_id)).unwrap()
            });
            assert_eq!(next.expect("it is released").idempotence_id, "evt-2");
        });
        let again = receive(client, message("order.placed", "evt-1"));
        assert_eq!(again.decision, Decision::Duplicate);
    });
}

#[test]
fn what_is_prepared_by_name_is_gone_and_the_client_does_not_need_it() {
    let database = Database::new();
    let mut client = connect(&database);
    let prepared = commit(&mut client, |tx| wait!(tx.prepare("SELECT 1")).unwrap());
    elsewhere(&database, &mut client, |client| {
        let mut tx = wait!(client.transaction()).unwrap();
        let error = wait!(tx.query(&prepared, &[])).expect_err("it is elsewhere");
        let unknown = &SqlState::INVALID_SQL_STATEMENT_NAME;
        assert_eq!(error.code(), Some(unknown), "{error}");
        wait!(tx.rollback()).unwrap();
        commit(client, |tx| {
            let claim = wait!(tx.inbox().claim("billing", "evt-1")).unwrap();
            assert_eq!(claim, Claim::Claimed);
        });
    });
}
