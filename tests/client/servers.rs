//! Servers of the test's own, which are killed or copied (G3). They are left out of the suite's run
//! through PgBouncer, which stands in front of the program's server and of no other.

use inbox_test_support::{Database, start_cluster};
use sequential_inbox_client::{Claim, Message, SqlState};

use super::{
    InboxExt,
    claims::{Claims, Kind},
    connect_to,
    errors::refused,
    session::{commit, connect},
};

#[test]
fn g3_a_later_delivery_wins_after_the_server_is_killed() {
    for kind in [Kind::Sequenced, Kind::Plain] {
        let cluster = start_cluster();
        let claims = Claims::on(Database::on(&cluster), kind);
        assert_eq!(claims.claimed("evt-committed"), Claim::Claimed);
        let mut winner = claims.connect();
        let mut tx = wait!(winner.transaction()).unwrap();
        assert_eq!(claims.claim(&mut tx, "evt-1").unwrap(), Claim::Claimed);
        cluster.stop_immediate().unwrap();
        assert!(wait!(tx.commit()).is_err());
        cluster.start().unwrap();
        assert_eq!(claims.claimed("evt-1"), Claim::Claimed);
        assert_eq!(claims.claimed("evt-committed"), Claim::Duplicate);
    }
}

#[test]
fn a_standby_refuses_what_writes_and_answers_a_lookup() {
    let primary = start_cluster();
    let database = Database::on(&primary);
    commit(&mut connect(&database), |tx| {
        assert!(
            wait!(tx.inbox().claim("billing", "evt-1"))
                .unwrap()
                .is_claimed()
        );
    });
    let standby = primary.standby().unwrap();
    standby.catch_up(&primary).unwrap();
    let mut client = connect_to(&standby.dsn_of(database.name()));
    let read_only = &SqlState::READ_ONLY_SQL_TRANSACTION;
    let error = refused(&mut client, read_only, |tx| {
        wait!(tx.inbox().claim("billing", "evt-2"))
    });
    assert!(error.to_string().contains("standby"), "{error}");
    let message = Message::new("order.placed", "evt-1").context("order-1");
    refused(&mut client, read_only, |tx| {
        wait!(tx.inbox().receive(&message))
    });
    let known = commit(&mut client, |tx| {
        wait!(tx.inbox().lookup("billing", "evt-1")).unwrap()
    });
    assert!(
        known.len() == 1 && known[0].claimed_at.is_some(),
        "{known:?}"
    );
}
