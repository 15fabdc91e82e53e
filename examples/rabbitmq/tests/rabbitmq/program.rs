//! The program, from its start to SIGTERM.

use std::process::{Command, Stdio};

use inbox_test_support::{Database, wait_for};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};

use crate::setting::{Queue, message};

#[test]
fn the_program_consumes_until_it_is_asked_to_end() {
    let database = Database::new();
    let queue = Queue::new(&database);
    queue.publish(&message("order.placed", "evt-1"));
    queue.publish(&message("order.placed", "evt-1"));
    let mut program = Command::new(env!("CARGO_BIN_EXE_rabbitmq-consumer"))
        .args(["--queue", &queue.options.queue, "--consumer", "billing"])
        .env("AMQP_URL", &queue.options.amqp_url)
        .env("DATABASE_URL", database.dsn())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let handled = "SELECT count(*) FROM pg_tables WHERE tablename = 'handled'";
    wait_for("the program's table", || {
        (database.value::<i64>(handled) == 1).then_some(())
    });
    queue.publish(&message("order.placed", "evt-2"));
    let ids = "SELECT coalesce(array_agg(message_id ORDER BY number), '{}') FROM handled
               WHERE consumer = 'billing' AND message_type = 'order.placed' AND payload = '{}'";
    wait_for("the messages", || {
        (database.value::<Vec<String>>(ids) == ["evt-1", "evt-2"]).then_some(())
    });
    kill(Pid::from_raw(program.id().cast_signed()), Signal::SIGTERM).unwrap();
    assert!(program.wait().unwrap().success());
    assert!(queue.take_rest().is_empty());
}

#[test]
fn the_program_says_what_is_refused() {
    let output = Command::new(env!("CARGO_BIN_EXE_rabbitmq-consumer"))
        .args(["--queue", "q", "--consumer", "billing"])
        .args(["--dsn", "host=127.0.0.1 port=1 user=nobody"])
        .output()
        .unwrap();
    assert!(!output.status.success());
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(text.starts_with("error: "), "{text}");
}
