//! The consumer process of the chaos test.

use std::process::ExitCode;

fn main() -> ExitCode {
    inbox_chaos::consumer::main(None)
}
