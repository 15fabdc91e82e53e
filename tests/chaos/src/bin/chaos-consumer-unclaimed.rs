//! A consumer process that is wrong on purpose: its calls of the inbox go to stand-ins that let
//! everybody take every message. All else is the same. A run with it must be found out.

use std::process::ExitCode;

use inbox_chaos::{consumer, ledger};

fn main() -> ExitCode {
    consumer::main(Some(ledger::UNCLAIMED))
}
