//! Throwaway RabbitMQ nodes: real brokers, started in a temporary folder, gone with the process
//! that asked for them.
//!
//! What a consumer does when its broker redelivers, goes away and comes back can only be seen with
//! a real one, so a [`Broker`] is Debian's `rabbitmq-server`, and it can be killed with SIGKILL and
//! started again on the same data and the same ports. The tests of consumption from RabbitMQ, the
//! demo and the chaos run stand on it (G1, G3, G8).
//!
//! ```no_run
//! use throwaway_broker::Broker;
//!
//! let broker = Broker::start()?;
//! println!("connect to {}", broker.amqp_url());
//! # Ok::<(), throwaway_broker::Error>(())
//! ```
//!
//! A node is alone in every respect: its own folder, name, cookie, AMQP port, distribution port and
//! port mapper (epmd), all on the loopback interface, without plugins. A RabbitMQ that the system
//! runs is neither used nor touched.
//!
//! Which RabbitMQ: the `rabbitmq-server` that the environment variable `RABBITMQ_SERVER` names,
//! else Debian's, else the first in the `PATH`. Started by root, it runs as the user `rabbitmq`.

mod broker;
mod error;
mod janitor;
mod node;
mod server_user;

pub use broker::Broker;
pub use error::Error;
