//! The library: a broker starts beside others, is killed, starts again, and leaves nothing.

#![allow(
    clippy::expect_used,
    reason = "a test may fail by panicking, its helpers too"
)]

mod processes;

use std::net::TcpStream;

use throwaway_broker::Broker;

use processes::{in_folder, wait_until};

fn listens(broker: &Broker) -> bool {
    TcpStream::connect(("127.0.0.1", broker.port())).is_ok()
}

#[test]
fn killed_and_started_again_and_gone_in_the_end() {
    let broker = Broker::start().expect("a broker starts");
    let url = broker.amqp_url();
    let expected = format!("amqp://guest:guest@127.0.0.1:{}/%2f", broker.port());
    assert_eq!(url, expected);
    let folder = broker.log_path().parent().expect("a folder").to_owned();
    assert!(broker.is_running() && listens(&broker));
    assert!(in_folder(&folder) > 1, "the node and its port mapper run");

    broker.kill().expect("kill");
    broker.kill().expect("killing twice is harmless");
    assert!(!broker.is_running() && !listens(&broker));
    wait_until("the port mapper is gone with the node", || {
        in_folder(&folder) == 0
    });

    broker.start_again().expect("it starts again");
    broker.start_again().expect("starting twice is harmless");
    assert!(broker.is_running() && listens(&broker));
    assert_eq!(broker.amqp_url(), url);

    let port = broker.port();
    drop(broker);
    assert!(!folder.exists());
    TcpStream::connect(("127.0.0.1", port)).expect_err("nobody listens");
    wait_until("no process is left", || in_folder(&folder) == 0);
}

#[test]
fn two_brokers_have_nothing_in_common() {
    let (one, other) = std::thread::scope(|scope| {
        let starting = scope.spawn(Broker::start);
        let other = Broker::start().expect("a broker starts");
        let one = starting.join().expect("no panic").expect("a broker starts");
        (one, other)
    });
    assert_ne!(one.amqp_url(), other.amqp_url());
    assert_ne!(one.log_path(), other.log_path());
    drop(one);
    assert!(other.is_running() && listens(&other));
}
