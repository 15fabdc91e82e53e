//! Claims of both kinds, plain and sequenced, behave alike: G1 to G5, G10, G12.
//!
//! Every test runs over both kinds, with real concurrent sessions. That a session waits is seen
//! in `pg_stat_activity`, not assumed.

use std::thread;

use inbox_test_support::Database;
use sequential_inbox_client::{
    Claim, Error, Failure, Kind as ClaimSpace, MessageState, Record, Sequence, SqlState, TryClaim,
};
use tokio_postgres::IsolationLevel;

use super::{
    Client, InboxExt, Transaction,
    session::{blocked, commit, connect, failed, pid, write},
};

/// Runs each test once with sequenced and once with plain claims.
macro_rules! over_both_kinds {
    ($($test:ident,)+) => {
        mod sequenced {
            $(
                #[test]
                fn $test() {
                    super::$test(super::Kind::Sequenced);
                }
            )+
        }

        mod plain {
            $(
                #[test]
                fn $test() {
                    super::$test(super::Kind::Plain);
                }
            )+
        }
    };
}

over_both_kinds! {
    g1_the_first_claim_wins_and_every_repeat_is_a_duplicate,
    g1_of_eight_sessions_at_once_one_wins,
    g2_duplicate_waits_then_skips_and_its_transaction_goes_on,
    g3_a_waiter_wins_when_the_winner_rolls_back,
    g3_a_waiter_wins_when_the_winner_rolls_back_to_a_savepoint,
    g3_a_waiter_wins_when_the_winners_backend_is_terminated,
    g4_claim_and_business_write_share_their_fate,
    g4_business_write_survives_a_duplicate,
    g5_a_failure_frees_the_key_for_a_resend,
    g5_a_failure_waits_for_the_session_that_is_processing,
    g5_a_rolled_back_failure_changes_nothing,
    g10_a_snapshot_older_than_the_winners_commit_is_an_error,
    g10_a_snapshot_newer_than_the_winners_commit_sees_the_duplicate,
    g12_one_id_under_two_names_is_two_claims,
    try_claim_never_waits,
    a_prepared_transaction_holds_its_claim,
    two_transactions_that_claim_crosswise_do_not_both_wait,
    a_claim_is_looked_up,
    odd_ids_are_kept_apart,
}

/// Which of the two claim spaces a test works in.
#[derive(Clone, Copy)]
pub(super) enum Kind {
    Sequenced,
    Plain,
}

/// A database, and claims of one kind in it.
pub(super) struct Claims {
    database: Database,
    kind: Kind,
    /// Of sequenced claims.
    instance: i64,
}

impl Claims {
    fn new(kind: Kind) -> Self {
        Self::on(Database::new(), kind)
    }

    pub(super) fn on(database: Database, kind: Kind) -> Self {
        let mut client = connect(&database);
        let instance = match kind {
            Kind::Plain => 0,
            Kind::Sequenced => commit(&mut client, |tx| {
                let orders = Sequence::new("orders", std::time::Duration::from_secs(3600));
                wait!(tx.inbox().declare_sequence(&orders)).unwrap();
                wait!(tx.inbox().sequence("orders", "order-1")).unwrap()
            }),
        };
        Self {
            database,
            kind,
            instance,
        }
    }

    pub(super) fn connect(&self) -> Client {
        connect(&self.database)
    }

    /// The first part of every key: a message type or a consumer.
    fn name(&self) -> &'static str {
        match self.kind {
            Kind::Sequenced => "order.placed",
            Kind::Plain => "billing",
        }
    }

    pub(super) fn claim(&self, tx: &mut Transaction<'_>, id: &str) -> Result<Claim, Error> {
        self.claim_as(tx, self.name(), id)
    }

    fn claim_as(&self, tx: &mut Transaction<'_>, name: &str, id: &str) -> Result<Claim, Error> {
        match self.kind {
            Kind::Sequenced => wait!(tx.inbox().claim_sequenced(name, id, self.instance)),
            Kind::Plain => wait!(tx.inbox().claim(name, id)),
        }
    }

    fn try_claim(&self, tx: &mut Transaction<'_>, id: &str) -> Result<TryClaim, Error> {
        match self.kind {
            Kind::Sequenced => {
                wait!(
                    tx.inbox()
                        .try_claim_sequenced(self.name(), id, self.instance)
                )
            }
            Kind::Plain => wait!(tx.inbox().try_claim(self.name(), id)),
        }
    }

    fn failure<'a>(&self, id: &'a str) -> Failure<'a> {
        let failure = Failure::new(self.name(), id);
        match self.kind {
            Kind::Sequenced => failure.instance(self.instance),
            Kind::Plain => failure,
        }
    }

    fn lookup(&self, client: &mut Client, id: &str) -> Option<Record> {
        let records = commit(client, |tx| {
            wait!(tx.inbox().lookup(self.name(), id)).unwrap()
        });
        assert!(records.len() <= 1, "{records:?}");
        records.into_iter().next()
    }

    /// Claims and commits.
    pub(super) fn claimed(&self, id: &str) -> Claim {
        commit(&mut self.connect(), |tx| self.claim(tx, id).unwrap())
    }
}

fn g1_the_first_claim_wins_and_every_repeat_is_a_duplicate(kind: Kind) {
    let claims = Claims::new(kind);
    let mut client = claims.connect();
    commit(&mut client, |tx| {
        assert_eq!(claims.claim(tx, "evt-1").unwrap(), Claim::Claimed);
        assert_eq!(
            claims.claim(tx, "evt-1").unwrap(),
            Claim::Duplicate,
            "same transaction"
        );
    });
    commit(&mut client, |tx| {
        assert_eq!(
            claims.claim(tx, "evt-1").unwrap(),
            Claim::Duplicate,
            "same session"
        );
        assert_eq!(
            claims.claim(tx, "evt-2").unwrap(),
            Claim::Claimed,
            "another id"
        );
    });
    assert_eq!(claims.claimed("evt-1"), Claim::Duplicate, "another session");
}

fn g1_of_eight_sessions_at_once_one_wins(kind: Kind) {
    const SESSIONS: usize = 8;
    const IDS: usize = 20;
    let claims = Claims::new(kind);
    let start = std::sync::Barrier::new(SESSIONS);
    thread::scope(|scope| {
        for _ in 0..SESSIONS {
            scope.spawn(|| {
                let mut client = claims.connect();
                for number in 0..IDS {
                    let id = format!("evt-{number:02}");
                    start.wait();
                    commit(&mut client, |tx| {
                        if claims.claim(tx, &id).unwrap().is_claimed() {
                            write(tx, &id);
                        }
                    });
                }
            });
        }
    });
    let expected: Vec<_> = (0..IDS).map(|number| format!("evt-{number:02}")).collect();
    assert_eq!(claims.database.ledger(), expected);
}

fn g2_duplicate_waits_then_skips_and_its_transaction_goes_on(kind: Kind) {
    let claims = Claims::new(kind);
    let mut winner = claims.connect();
    let mut tx = wait!(winner.transaction()).unwrap();
    assert_eq!(claims.claim(&mut tx, "evt-1").unwrap(), Claim::Claimed);
    write(&mut tx, "winner");
    thread::scope(|scope| {
        let waiter = blocked(scope, &claims.database, |client| {
            commit(client, |tx| {
                let answer = claims.claim(tx, "evt-1").unwrap();
                write(tx, "waiter");
                answer
            })
        });
        wait!(tx.commit()).unwrap();
        assert_eq!(waiter.join().unwrap(), Claim::Duplicate);
    });
    assert_eq!(claims.database.ledger(), ["waiter", "winner"]);
}

fn g3_a_waiter_wins_when_the_winner_rolls_back(kind: Kind) {
    let claims = Claims::new(kind);
    let mut winner = claims.connect();
    let mut tx = wait!(winner.transaction()).unwrap();
    assert_eq!(claims.claim(&mut tx, "evt-1").unwrap(), Claim::Claimed);
    thread::scope(|scope| {
        let waiter = blocked(scope, &claims.database, |client| {
            commit(client, |tx| claims.claim(tx, "evt-1").unwrap())
        });
        wait!(tx.rollback()).unwrap();
        assert_eq!(waiter.join().unwrap(), Claim::Claimed);
    });
    assert_eq!(claims.claimed("evt-1"), Claim::Duplicate);
}

fn g3_a_waiter_wins_when_the_winner_rolls_back_to_a_savepoint(kind: Kind) {
    let claims = Claims::new(kind);
    let mut winner = claims.connect();
    let mut tx = wait!(winner.transaction()).unwrap();
    let mut savepoint = wait!(tx.savepoint("before_the_claim")).unwrap();
    assert_eq!(
        claims.claim(&mut savepoint, "evt-1").unwrap(),
        Claim::Claimed
    );
    thread::scope(|scope| {
        let waiter = blocked(scope, &claims.database, |client| {
            commit(client, |tx| claims.claim(tx, "evt-1").unwrap())
        });
        wait!(savepoint.rollback()).unwrap();
        // The winner's transaction is still open.
        assert_eq!(waiter.join().unwrap(), Claim::Claimed);
    });
    assert_eq!(claims.claim(&mut tx, "evt-1").unwrap(), Claim::Duplicate);
    wait!(tx.commit()).unwrap();
}

fn g3_a_waiter_wins_when_the_winners_backend_is_terminated(kind: Kind) {
    let claims = Claims::new(kind);
    let mut winner = claims.connect();
    let mut tx = wait!(winner.transaction()).unwrap();
    let winner_pid = pid(&mut tx);
    assert_eq!(claims.claim(&mut tx, "evt-1").unwrap(), Claim::Claimed);
    write(&mut tx, "winner");
    thread::scope(|scope| {
        let waiter = blocked(scope, &claims.database, |client| {
            commit(client, |tx| {
                let answer = claims.claim(tx, "evt-1").unwrap();
                write(tx, "waiter");
                answer
            })
        });
        claims.database.terminate(winner_pid);
        assert_eq!(waiter.join().unwrap(), Claim::Claimed);
    });
    let error = claims.claim(&mut tx, "evt-2").unwrap_err();
    assert!(
        !error.is_retryable(),
        "a lost connection is not a serialization failure: {error}"
    );
    assert!(wait!(tx.commit()).is_err());
    assert_eq!(claims.database.ledger(), ["waiter"]);
}

fn g4_claim_and_business_write_share_their_fate(kind: Kind) {
    let claims = Claims::new(kind);
    let mut client = claims.connect();
    for (attempt, expected) in [("rolled back", Claim::Claimed), ("again", Claim::Claimed)] {
        let mut tx = wait!(client.transaction()).unwrap();
        assert_eq!(
            claims.claim(&mut tx, "evt-1").unwrap(),
            expected,
            "{attempt}"
        );
        write(&mut tx, attempt);
        if attempt == "rolled back" {
            wait!(tx.rollback()).unwrap();
            assert_eq!(claims.lookup(&mut client, "evt-1"), None);
        } else {
            wait!(tx.commit()).unwrap();
        }
    }
    assert_eq!(claims.database.ledger(), ["again"]);
    assert!(claims.lookup(&mut client, "evt-1").is_some());
}

fn g4_business_write_survives_a_duplicate(kind: Kind) {
    let claims = Claims::new(kind);
    assert_eq!(claims.claimed("evt-1"), Claim::Claimed);
    commit(&mut claims.connect(), |tx| {
        write(tx, "before");
        assert_eq!(claims.claim(tx, "evt-1").unwrap(), Claim::Duplicate);
        write(tx, "after");
    });
    assert_eq!(claims.database.ledger(), ["after", "before"]);
}

fn g5_a_failure_frees_the_key_for_a_resend(kind: Kind) {
    let claims = Claims::new(kind);
    let mut client = claims.connect();
    assert_eq!(claims.claimed("evt-1"), Claim::Claimed);
    for attempt in 1..=2 {
        let error = format!("card service: 50{attempt}");
        commit(&mut client, |tx| {
            let failure = claims.failure("evt-1").error(&*error);
            assert!(wait!(tx.inbox().fail(&failure)).unwrap());
        });
        let record = claims.lookup(&mut client, "evt-1").unwrap();
        assert_eq!(record.state, Some(MessageState::Failed));
        assert_eq!(record.attempts, Some(attempt));
        assert_eq!(record.last_error, Some(error));
        assert_eq!(record.claimed_at, None);
        assert_eq!(claims.claimed("evt-1"), Claim::Claimed, "a resend wins");
        assert_eq!(claims.claimed("evt-1"), Claim::Duplicate, "once");
    }
}

fn g5_a_failure_waits_for_the_session_that_is_processing(kind: Kind) {
    let claims = Claims::new(kind);
    let mut winner = claims.connect();
    for commits in [true, false] {
        let id = if commits {
            "evt-commits"
        } else {
            "evt-rolls-back"
        };
        let mut tx = wait!(winner.transaction()).unwrap();
        assert_eq!(claims.claim(&mut tx, id).unwrap(), Claim::Claimed);
        thread::scope(|scope| {
            let failing = blocked(scope, &claims.database, |client| {
                commit(client, |tx| {
                    wait!(tx.inbox().fail(&claims.failure(id))).unwrap()
                })
            });
            if commits {
                wait!(tx.commit()).unwrap();
            } else {
                wait!(tx.rollback()).unwrap();
            }
            // A bare claim says that the message was taken, not that it was processed, so the
            // failure is recorded either way, and no claim is left beside it.
            assert!(failing.join().unwrap());
        });
        let record = claims.lookup(&mut winner, id).unwrap();
        assert_eq!(
            (record.state, record.claimed_at),
            (Some(MessageState::Failed), None)
        );
        assert_eq!(claims.claimed(id), Claim::Claimed);
    }
}

fn g5_a_rolled_back_failure_changes_nothing(kind: Kind) {
    let claims = Claims::new(kind);
    let mut client = claims.connect();
    assert_eq!(claims.claimed("evt-1"), Claim::Claimed);
    let before = claims.lookup(&mut client, "evt-1").unwrap();
    let mut tx = wait!(client.transaction()).unwrap();
    assert!(wait!(tx.inbox().fail(&claims.failure("evt-1"))).unwrap());
    wait!(tx.rollback()).unwrap();
    assert_eq!(claims.lookup(&mut client, "evt-1").unwrap(), before);
    assert_eq!(claims.claimed("evt-1"), Claim::Duplicate);
}

/// The levels at which a transaction keeps one snapshot.
const SNAPSHOT_LEVELS: [IsolationLevel; 2] =
    [IsolationLevel::RepeatableRead, IsolationLevel::Serializable];

fn g10_a_snapshot_older_than_the_winners_commit_is_an_error(kind: Kind) {
    let claims = Claims::new(kind);
    let mut client = claims.connect();
    for level in SNAPSHOT_LEVELS {
        let id = format!("{level:?}");
        let transaction = client.build_transaction().isolation_level(level);
        let mut tx = wait!(transaction.start()).unwrap();
        wait!(tx.query("SELECT count(*) FROM ledger", &[])).unwrap();
        assert_eq!(claims.claimed(&id), Claim::Claimed);
        let error = failed(
            claims.claim(&mut tx, &id),
            &SqlState::T_R_SERIALIZATION_FAILURE,
        );
        assert!(error.is_retryable());
        wait!(tx.rollback()).unwrap();
    }
}

fn g10_a_snapshot_newer_than_the_winners_commit_sees_the_duplicate(kind: Kind) {
    let claims = Claims::new(kind);
    let mut client = claims.connect();
    for level in SNAPSHOT_LEVELS {
        let id = format!("{level:?}");
        assert_eq!(claims.claimed(&id), Claim::Claimed);
        let transaction = client.build_transaction().isolation_level(level);
        let mut tx = wait!(transaction.start()).unwrap();
        wait!(tx.query("SELECT count(*) FROM ledger", &[])).unwrap();
        assert_eq!(claims.claim(&mut tx, &id).unwrap(), Claim::Duplicate);
        wait!(tx.commit()).unwrap();
    }
}

fn g12_one_id_under_two_names_is_two_claims(kind: Kind) {
    let claims = Claims::new(kind);
    commit(&mut claims.connect(), |tx| {
        assert_eq!(
            claims.claim_as(tx, "first", "evt-1").unwrap(),
            Claim::Claimed
        );
        assert_eq!(
            claims.claim_as(tx, "second", "evt-1").unwrap(),
            Claim::Claimed
        );
    });
    commit(&mut claims.connect(), |tx| {
        assert_eq!(
            claims.claim_as(tx, "first", "evt-1").unwrap(),
            Claim::Duplicate
        );
        assert_eq!(
            claims.claim_as(tx, "second", "evt-1").unwrap(),
            Claim::Duplicate
        );
        assert_eq!(
            claims.claim_as(tx, "third", "evt-1").unwrap(),
            Claim::Claimed
        );
    });
}

fn try_claim_never_waits(kind: Kind) {
    let claims = Claims::new(kind);
    let mut winner = claims.connect();
    let mut other = claims.connect();
    let mut tx = wait!(winner.transaction()).unwrap();
    assert_eq!(
        claims.try_claim(&mut tx, "evt-1").unwrap(),
        TryClaim::Claimed
    );
    assert_eq!(
        claims.try_claim(&mut tx, "evt-1").unwrap(),
        TryClaim::Duplicate
    );
    commit(&mut other, |tx| {
        // A call that waits would run into this.
        wait!(tx.batch_execute("SET LOCAL lock_timeout = '5s'")).unwrap();
        assert_eq!(claims.try_claim(tx, "evt-1").unwrap(), TryClaim::InFlight);
        assert_eq!(
            claims.try_claim(tx, "evt-2").unwrap(),
            TryClaim::Claimed,
            "usable"
        );
    });
    wait!(tx.commit()).unwrap();
    commit(&mut other, |tx| {
        assert_eq!(claims.try_claim(tx, "evt-1").unwrap(), TryClaim::Duplicate);
    });
}

fn a_prepared_transaction_holds_its_claim(kind: Kind) {
    let claims = Claims::new(kind);
    let mut client = claims.connect();
    // Prepared transactions share their names over the whole server.
    let name = claims.database.name();
    for (end, after) in [
        ("COMMIT", TryClaim::Duplicate),
        ("ROLLBACK", TryClaim::Claimed),
    ] {
        let mut tx = wait!(client.transaction()).unwrap();
        assert_eq!(claims.claim(&mut tx, end).unwrap(), Claim::Claimed);
        wait!(tx.batch_execute(&format!("PREPARE TRANSACTION '{name}'"))).unwrap();
        // The session has no transaction any more, and the commit ends nothing.
        wait!(tx.commit()).unwrap();

        let mut tx = wait!(client.transaction()).unwrap();
        assert_eq!(claims.try_claim(&mut tx, end).unwrap(), TryClaim::InFlight);
        wait!(tx.batch_execute("SET LOCAL lock_timeout = '50ms'")).unwrap();
        let error = failed(claims.claim(&mut tx, end), &SqlState::LOCK_NOT_AVAILABLE);
        assert!(!error.is_retryable());
        wait!(tx.rollback()).unwrap();

        wait!(client.batch_execute(&format!("{end} PREPARED '{name}'"))).unwrap();
        let answer = commit(&mut client, |tx| claims.try_claim(tx, end).unwrap());
        assert_eq!(answer, after, "{end}");
    }
}

fn two_transactions_that_claim_crosswise_do_not_both_wait(kind: Kind) {
    let claims = Claims::new(kind);
    let mut first = claims.connect();
    let mut tx = wait!(first.transaction()).unwrap();
    assert_eq!(claims.claim(&mut tx, "evt-1").unwrap(), Claim::Claimed);
    thread::scope(|scope| {
        let other = blocked(scope, &claims.database, |client| {
            let mut tx = wait!(client.transaction()).unwrap();
            assert_eq!(claims.claim(&mut tx, "evt-2").unwrap(), Claim::Claimed);
            let answer = claims.claim(&mut tx, "evt-1");
            let end = if answer.is_ok() {
                wait!(tx.commit())
            } else {
                wait!(tx.rollback())
            };
            end.unwrap();
            answer
        });
        let answer = claims.claim(&mut tx, "evt-2");
        let end = if answer.is_ok() {
            wait!(tx.commit())
        } else {
            wait!(tx.rollback())
        };
        end.unwrap();
        let answers = [answer, other.join().unwrap()];
        // The one that was chosen as the victim gave way, and the other won both.
        let winners = answers
            .iter()
            .filter(|answer| matches!(answer, Ok(Claim::Claimed)))
            .count();
        assert_eq!(winners, 1, "{answers:?}");
        let victim = answers.into_iter().find_map(Result::err).expect("a victim");
        assert_eq!(
            victim.sqlstate(),
            Some(&SqlState::T_R_DEADLOCK_DETECTED),
            "{victim}"
        );
        assert!(victim.is_retryable());
    });
    assert_eq!(claims.claimed("evt-1"), Claim::Duplicate);
    assert_eq!(claims.claimed("evt-2"), Claim::Duplicate);
}

fn a_claim_is_looked_up(kind: Kind) {
    let claims = Claims::new(kind);
    let mut client = claims.connect();
    assert_eq!(claims.lookup(&mut client, "evt-1"), None);
    assert_eq!(claims.claimed("evt-1"), Claim::Claimed);
    let record = claims.lookup(&mut client, "evt-1").unwrap();
    match kind {
        Kind::Sequenced => {
            assert_eq!(record.kind, ClaimSpace::Sequence);
            assert_eq!(record.sequence_instance_id, Some(claims.instance));
        }
        Kind::Plain => {
            assert_eq!(record.kind, ClaimSpace::Consumer);
            assert_eq!(record.sequence_instance_id, None);
        }
    }
    let now: std::time::SystemTime = claims.database.value("SELECT clock_timestamp()");
    assert!(
        record.claimed_at.is_some_and(|time| time <= now),
        "{record:?}"
    );
    assert_eq!(
        (record.message_id, record.state, record.attempts),
        (None, None, None)
    );
    // Looking is reading: it works where writing does not.
    let mut tx = wait!(client.build_transaction().read_only(true).start()).unwrap();
    assert_eq!(
        wait!(tx.inbox().lookup(claims.name(), "evt-1")).unwrap(),
        [record]
    );
}

fn odd_ids_are_kept_apart(kind: Kind) {
    let claims = Claims::new(kind);
    let longest = "x".repeat(1024);
    let ids = [
        "it's",
        "it''s",
        "\"quoted\"",
        r"back\slash",
        r"back\\slash",
        "%s",
        "$1",
        "line\nbreak",
        "line\\nbreak",
        " ",
        "  ",
        "é",
        "e\u{301}",
        "\u{1f980}",
        "EVT",
        "evt",
        "NULL",
        "{}",
        &longest,
    ];
    commit(&mut claims.connect(), |tx| {
        for id in ids {
            assert_eq!(claims.claim(tx, id).unwrap(), Claim::Claimed, "{id}");
        }
    });
    commit(&mut claims.connect(), |tx| {
        for id in ids {
            assert_eq!(claims.claim(tx, id).unwrap(), Claim::Duplicate, "{id}");
        }
    });
}
