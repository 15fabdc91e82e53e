//! Tests of the shell modules inside of a server; run by `cargo pgrx test`. What needs
//! several sessions stands in `tests/`.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

#[pgrx::pg_schema]
mod tests {
    use std::time::Duration;

    use pgrx::pg_sys::BuiltinOid::TEXTOID;
    use pgrx::prelude::*;

    use crate::claims::{self, MessageKey};
    use crate::nowait::{within, without_waiting};
    use crate::probe::Holder;
    use crate::spi::{Db, Statement, arg};

    static ONE: Statement = Statement::new("SELECT a FROM {s}one WHERE a {=} $1", &[TEXTOID]);
    static CREATE_INSTANCE: Statement = Statement::new(
        "INSERT INTO {s}sequence_instance (name, context_id, retain_until) \
         VALUES ('s', 'c', pg_catalog.clock_timestamp()) RETURNING id",
        &[],
    );

    /// The schema that the tests' extension was created in.
    fn extension() -> Db {
        let namespace = Spi::get_one::<pg_sys::Oid>(
            "SELECT extnamespace FROM pg_extension WHERE extname = 'sequential_inbox'",
        )
        .unwrap()
        .unwrap();
        Db::connect(namespace)
    }

    fn schema(name: &str) -> Db {
        Db::connect(
            Spi::get_one_with_args::<pg_sys::Oid>("SELECT $1::regnamespace::oid", &[name.into()])
                .unwrap()
                .unwrap(),
        )
    }

    #[pg_test]
    fn a_probe_sees_nobody_then_its_own_claim() {
        let db = extension();
        let key = MessageKey {
            message_type: "probe",
            idempotence_id: "1",
        };
        assert_eq!(claims::holder(&db, key), Holder::Nobody);
        let instance = db.write(&CREATE_INSTANCE, &[]).get::<i64>(0, 0).unwrap();
        assert!(claims::claim(&db, key, instance));
        assert_eq!(
            claims::holder(&db, key),
            Holder::Settled {
                after_snapshot: false
            }
        );
        claims::delete(&db, key);
        assert_eq!(claims::holder(&db, key), Holder::Nobody);
    }

    #[pg_test]
    fn work_that_waits_for_nobody_keeps_its_result_and_the_time_out_is_put_back() {
        let before = Spi::get_one::<String>("SHOW lock_timeout").unwrap();
        let inside = without_waiting(|| Spi::get_one::<String>("SHOW lock_timeout").unwrap());
        assert_eq!(inside, Some(Some("1ms".to_owned())));
        let longer = within(Duration::from_millis(250), || {
            Spi::get_one::<String>("SHOW lock_timeout").unwrap()
        });
        assert_eq!(longer, Some("250ms".to_owned()));
        assert_eq!(Spi::get_one::<String>("SHOW lock_timeout").unwrap(), before);
    }

    #[pg_test]
    fn a_lock_time_out_inside_leaves_nothing_behind() {
        Spi::run("CREATE TABLE tests.kept (a int)").unwrap();
        let gave_up = without_waiting(|| {
            Spi::run("INSERT INTO tests.kept VALUES (1)").unwrap();
            Spi::run("DO $$ BEGIN RAISE EXCEPTION 'busy' USING ERRCODE = '55P03'; END $$").unwrap();
        });
        assert_eq!(gave_up, None);
        assert_eq!(
            Spi::get_one::<i64>("SELECT count(*) FROM tests.kept").unwrap(),
            Some(0)
        );
    }

    #[pg_test(error = "other")]
    fn another_error_inside_passes_through() {
        without_waiting(|| Spi::run("DO $$ BEGIN RAISE EXCEPTION 'other'; END $$").unwrap());
    }

    #[pg_test]
    fn g14_a_prepared_statement_follows_its_schema() {
        Spi::run(
            "CREATE SCHEMA one; CREATE TABLE one.one (a text); INSERT INTO one.one VALUES ('x');
             CREATE SCHEMA \"T w\"\"o\"; CREATE TABLE \"T w\"\"o\".one (a text)",
        )
        .unwrap();
        assert_eq!(schema("one").write(&ONE, &[arg("x")]).len(), 1);
        assert_eq!(schema("\"T w\"\"o\"").write(&ONE, &[arg("x")]).len(), 0);
        Spi::run("ALTER SCHEMA one RENAME TO renamed").unwrap();
        assert_eq!(schema("renamed").write(&ONE, &[arg("x")]).len(), 1);
        Spi::run("DROP TABLE renamed.one; CREATE TABLE renamed.one (a text)").unwrap();
        assert_eq!(schema("renamed").write(&ONE, &[arg("x")]).len(), 0);
    }

    #[pg_test(error = "the installed extension sequential_inbox lacks what its library needs")]
    fn a_missing_table_is_an_outdated_extension() {
        Spi::run("CREATE SCHEMA bare").unwrap();
        schema("bare").write(&ONE, &[arg("x")]);
    }
}
