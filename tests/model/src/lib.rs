//! The claim ring as a model that is checked exhaustively: every order of the
//! steps of claims, rotations, rollbacks and crashes, at READ COMMITTED and at
//! REPEATABLE READ.
//!
//! Carries G1 (one winner), G2 (wait, then skip), G3 (takeover), G9 (retention
//! never lies) and G10 (isolation levels) for plain claims, as far as they are a
//! question of which step comes before which. That the extension takes the steps
//! it should is for the tests against a real server; `docs/ring.md` is the text
//! that both follow.
//!
//! - [`state`]: what the database and its transactions look like at one moment.
//! - [`variant`]: the protocol as it must be, and with one step left out or
//!   misplaced.
//! - [`protocol`]: the atomic steps, each as Postgres lets it happen.
//! - [`promises`]: what must hold in every state, and what must be reachable.
//! - [`symmetry`]: which states are the same but for the names in them.
//! - [`narrate`]: a counterexample told as a list of steps.
//!
//! # Bounds, and why they are enough
//!
//! Time is not bounded: the protocol compares ages, never dates, so a state holds
//! ages, and an age beyond the longest one that anything asks for is as good as
//! any other. The state space is therefore finite with time running for ever and
//! any number of transactions and rotations after one another.
//!
//! What is bounded is what happens at once: [`Scope::sessions`] transactions
//! (prepared ones counted), one or two keys, one savepoint a transaction, ticks of
//! a half or a quarter of a retention. Two wins of one key are made by two
//! transactions, and what can come between them is one that rotates, so three at
//! once show every way in which they can overlap; a fourth could only do what one
//! of the three does before or after. Keys meet only where one transaction holds
//! several, for which two are enough. Savepoints inside savepoints release the
//! same locks and rows together as one does.

pub mod narrate;
pub mod promises;
pub mod protocol;
pub mod state;
pub mod symmetry;
pub mod variant;

pub use promises::Witness;
pub use protocol::{Action, RingModel, Scope};
pub use state::State;
pub use variant::Variant;
