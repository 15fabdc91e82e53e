//! The two kinds of claims, so that one test runs over both: a plain consumer's and those of a
//! sequence. Calls are SQL texts, as any language would send them.

use crate::{Database, inbox::Session};

/// Which of the two claim spaces a test works in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// `inbox_claim(consumer, message_id)`
    Plain,
    /// `inbox_claim(message_type, idempotence_id, sequence_instance_id)`
    Sequenced,
}

/// Runs each of the functions once a kind, as tests `plain::…` and `sequenced::…`.
#[macro_export]
macro_rules! over_both_kinds {
    ($($test:ident,)+) => {
        mod plain {
            $(
                #[test]
                fn $test() {
                    super::$test($crate::kinds::Kind::Plain);
                }
            )+
        }

        mod sequenced {
            $(
                #[test]
                fn $test() {
                    super::$test($crate::kinds::Kind::Sequenced);
                }
            )+
        }
    };
}

impl Kind {
    /// A fresh database on the program's server in which such claims can be made.
    pub fn database(self) -> Database {
        let database = Database::new();
        self.set_up(&database);
        database
    }

    /// Declares what such claims need: for a sequence its declaration and one instance.
    pub fn set_up(self, database: &Database) {
        if self == Self::Sequenced {
            database.execute(
                "SELECT inbox_declare_sequence('orders', '1 day');
                 SELECT inbox_sequence('orders', 'order-1')",
            );
        }
    }

    /// The first part of every key: a consumer or a message type.
    pub fn name(self) -> &'static str {
        match self {
            Self::Plain => "billing",
            Self::Sequenced => "order.placed",
        }
    }

    /// The arguments that stand for a message, the id being an SQL expression.
    fn key(self, id: &str) -> String {
        match self {
            Self::Plain => format!("'billing', {id}"),
            Self::Sequenced => format!("'order.placed', {id}, (SELECT id FROM sequence_instance)"),
        }
    }

    /// A query with one row and one boolean: `inbox_claim`, the id being an SQL expression.
    pub fn claim_of(self, id: &str) -> String {
        format!("SELECT inbox_claim({})", self.key(id))
    }

    /// The same with the word of `inbox_try_claim`.
    pub fn try_claim_of(self, id: &str) -> String {
        format!("SELECT inbox_try_claim({})", self.key(id))
    }

    /// The same with the boolean of `inbox_fail`.
    pub fn fail_of(self, id: &str) -> String {
        format!("SELECT inbox_fail({})", self.key(id))
    }

    /// `inbox_claim` in that session, which must succeed.
    #[track_caller]
    pub fn claim(self, session: &mut Session, id: &str) -> bool {
        session.value(&self.claim_of("$1::text"), &[&id])
    }

    /// `inbox_try_claim` in that session, which must succeed.
    #[track_caller]
    pub fn try_claim(self, session: &mut Session, id: &str) -> String {
        session.value(&self.try_claim_of("$1::text"), &[&id])
    }

    /// How many claims of that id are stored, committed ones and the session's own.
    #[track_caller]
    pub fn stored(self, session: &mut Session, id: &str) -> i64 {
        session.value(
            "SELECT count(*) FROM inbox_claims WHERE id1 = $1 AND id2 = $2",
            &[&self.name(), &id],
        )
    }
}
