//! The chaos test as part of `make test`: one run that must find nothing, and one with consumers that
//! take messages without a claim, which must be found out (G1, G3, G4, G6, G7, G8).

// A test fails by panicking, and so do its helpers.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::{
    process::{Command, Stdio},
    sync::{Mutex, PoisonError},
};

/// One run at a time: each takes the whole machine.
static ALONE: Mutex<()> = Mutex::new(());

/// Another seed than the default: see docs/chaos.md.
const SEED_VARIABLE: &str = "CHAOS_SEED";

fn chaos(arguments: &[&str]) -> Command {
    let seed = std::env::var(SEED_VARIABLE).unwrap_or_else(|_| "1".to_owned());
    let mut command = Command::new(env!("CARGO_BIN_EXE_chaos"));
    command.args(["--seed", &seed]).args(arguments);
    command.stdin(Stdio::null());
    command
}

/// A minute of chaos, and as much longer as it takes to make a hundred kills and twenty thousand
/// deliveries: on a slow machine it takes longer, and does not fail.
#[test]
fn g1_g3_g4_g6_g7_g8_nothing_is_lost_doubled_or_out_of_order() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    // What it tells, the seed and the figures, goes to the log of the tests.
    let status = chaos(&[
        "--duration=60",
        "--min-kills=100",
        "--min-deliveries=20000",
        "--limit=1800",
    ])
    .status()
    .expect("it is started");
    assert!(status.success(), "{status}; the seed is told above");
}

/// The check is no formality: without the claims it finds double effects, effects that nothing knows
/// of, and effects out of order.
#[test]
fn without_claims_the_same_run_is_found_out() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let output = chaos(&[
        "--unclaimed",
        "--duration=5",
        "--min-kills=10",
        "--min-deliveries=1000",
        "--limit=900",
    ])
    .output()
    .expect("it is started");
    let told = String::from_utf8_lossy(&output.stdout);
    let complaints = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{told}{complaints}");
    for found in [
        "VIOLATED: G1 more than one effect: ",
        "VIOLATED: G4 an effect without a claim: ",
        "VIOLATED: G4 an effect without a record: ",
        "VIOLATED: G6 out of order: ",
    ] {
        assert!(told.contains(found), "{found}\n{told}{complaints}");
    }
    // It is the claims that are missing, and nothing else goes wrong.
    assert!(!told.contains("WRONG: "), "{told}{complaints}");
}
