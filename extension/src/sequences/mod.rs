//! Sequences: order without loss (guarantees G6, G7, G8).
//!
//! - `condition`: message types and release conditions, pure
//! - `declaration`: `inbox_declare_sequence` and what is declared
//! - `instance`: one run of a sequence, its row lock, `inbox_sequence`
//! - `message`: the record of one message and its payload
//! - `release`: what may be handled next once something was processed
//! - `receive`: `inbox_receive`
//! - `next`: `inbox_next`
//! - `operator`: retry, force, skip, skip gaps, close

pub mod condition;
pub mod declaration;
pub mod instance;
pub mod message;
mod next;
pub mod operator;
mod receive;
pub mod release;
