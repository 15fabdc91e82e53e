//! The order workload of P5 and P9, through the client crate: claim the message, take the ordered
//! quantity out of stock, commit.
//!
//! It stands on what a service would use, `Consumer::process` and `Consumer::process_batch` of the
//! blocking driver: a thread that waits for its server costs least beside that server.

use std::cell::RefCell;

use anyhow::{Context, ensure};
use postgres::{Client, Statement};
use sequential_inbox_client::sync::Consumer;
use sequential_inbox_client::{Message, Outcome};
use serde::{Deserialize, Serialize};

use crate::pgbench::ID_RANGE;
use crate::rows::{STORED_CLAIMS, Side, Throughput, check_added, until};
use crate::server::{Database, Server};

/// The consumer's name; the stored claims are its own.
const CONSUMER: &str = "billing";

/// Items in stock: so many that two orders seldom meet at one.
const ITEMS: i32 = 10_000;

/// What each item has in stock at first.
const IN_STOCK: i64 = 1_000_000_000;

const STOCK: &str = "\
CREATE TABLE stock (item int PRIMARY KEY, quantity bigint NOT NULL CHECK (quantity >= 0))
    WITH (fillfactor = 70)";

const TAKE: &str = "UPDATE stock SET quantity = quantity - $2 WHERE item = $1";

/// A message's payload.
#[derive(Debug, Serialize, Deserialize)]
struct Order {
    item: i32,
    quantity: i64,
}

/// A database with items in stock and claims stored.
#[derive(Debug)]
pub(crate) struct Shop<'a> {
    database: Database<'a>,
    claims_before: i64,
}

impl<'a> Shop<'a> {
    /// Makes the database.
    pub(crate) fn open(server: &'a Server, name: &'static str) -> anyhow::Result<Self> {
        let database = server.database(name)?;
        database.store_plain_claims(server.options.rows(STORED_CLAIMS))?;
        database.execute(&[
            STOCK,
            &format!("INSERT INTO stock SELECT g, {IN_STOCK} FROM generate_series(1, {ITEMS}) g"),
        ])?;
        database.settle()?;
        let claims_before = claims(&database)?;
        Ok(Self {
            database,
            claims_before,
        })
    }

    /// A session that takes orders.
    pub(crate) fn till(&self) -> anyhow::Result<Till> {
        let mut client = self.database.session()?;
        let take = client.prepare(TAKE)?;
        Ok(Till {
            client,
            take,
            consumer: Consumer::plain(CONSUMER),
        })
    }

    /// Fails unless every order of this number was claimed and taken out of stock once.
    pub(crate) fn check(&self, orders: u64) -> anyhow::Result<()> {
        let after = claims(&self.database)?;
        check_added("claims", self.claims_before, after, orders)?;
        let taken = self.database.number(&format!(
            "SELECT sum({IN_STOCK} - quantity)::bigint FROM stock"
        ))?;
        check_added("taken items", 0, taken, orders)
    }
}

fn claims(database: &Database<'_>) -> anyhow::Result<i64> {
    database.number("SELECT count(*) FROM inbox_claims")
}

/// One session with its consumer.
pub(crate) struct Till {
    client: Client,
    take: Statement,
    consumer: Consumer,
}

impl Till {
    /// Takes one order in a transaction of its own.
    pub(crate) fn process(&mut self) -> anyhow::Result<()> {
        let take = &self.take;
        let outcome =
            self.consumer
                .process(&mut self.client, &order()?, |transaction, delivery| {
                    let order: Order = delivery.json()?;
                    transaction.execute(take, &[&order.item, &order.quantity])?;
                    Ok(())
                })?;
        applied(&outcome)
    }

    /// Takes this many orders in one transaction.
    fn process_batch(&mut self, size: u32) -> anyhow::Result<()> {
        let orders = (0..size)
            .map(|_| order())
            .collect::<anyhow::Result<Vec<_>>>()?;
        let take = &self.take;
        let outcomes =
            self.consumer
                .process_batch(&mut self.client, &orders, |transaction, delivery| {
                    let order: Order = delivery.json()?;
                    transaction.execute(take, &[&order.item, &order.quantity])?;
                    Ok(())
                })?;
        for outcome in outcomes {
            applied(&outcome?)?;
        }
        Ok(())
    }
}

/// A new order of one piece, as it would come from a broker.
fn order() -> anyhow::Result<Message<'static>> {
    let order = Order {
        item: fastrand::i32(1..=ITEMS),
        quantity: 1,
    };
    Message::new("order.placed", fastrand::u64(ID_RANGE).to_string())
        .json(&order)
        .context("making a message")
}

fn applied(outcome: &Outcome<()>) -> anyhow::Result<()> {
    ensure!(
        outcome.is_applied(),
        "a new message was not applied: {}",
        outcome.as_str()
    );
    Ok(())
}

/// One till as a side of a comparison, as fast as it can: single orders, or batches.
pub(crate) struct Polls {
    till: RefCell<Till>,
    /// How many orders a transaction takes; with 1 through `process`.
    size: u32,
}

impl Polls {
    /// A till that takes so many orders a transaction.
    pub(crate) fn new(till: Till, size: u32) -> Self {
        Self {
            till: RefCell::new(till),
            size,
        }
    }
}

impl Side for Polls {
    fn throughput(&self, _: &Server, seconds: u32) -> anyhow::Result<Throughput> {
        let mut till = self.till.borrow_mut();
        until(seconds, || {
            match self.size {
                1 => till.process()?,
                size => till.process_batch(size)?,
            }
            Ok(self.size)
        })
    }
}
