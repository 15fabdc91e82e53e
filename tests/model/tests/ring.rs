//! The checks: the protocol of `docs/ring.md` is safe in every schedule within the
//! scopes below, and each broken protocol is caught. Carries G1, G2, G3, G9 and
//! G10 for plain claims, as the crate's opening says.
//!
//! `cargo test -p ring-model -- --nocapture` prints how many states were visited
//! and tells every counterexample.

#![allow(
    clippy::panic,
    reason = "clippy takes helpers of tests in this folder for production code"
)]

use std::collections::HashSet;

use ring_model::{Action, RingModel, Scope, State, Variant, Witness, narrate, promises, symmetry};
use stateright::{Checker, HasDiscoveries, Model};

/// What the counterexamples in `docs/ring.md` are compared with.
const DOCS: &str = include_str!("../../../docs/ring.md");

/// Everything that the model knows, by two transactions at once, on one key.
const TWO_AT_ONCE: Scope = Scope {
    sessions: 2,
    keys: 1,
    half_retention: 1,
    savepoints: true,
    repeatable_read: true,
    prepared: true,
    readers: true,
    one_job: false,
    on_time: false,
    symmetric: true,
    watch: None,
};

/// Checks the correct protocol in `scope` to the last state, prints how many there
/// are, and holds it to every promise.
fn check(what: &str, scope: Scope, at_least: usize) {
    let model = RingModel {
        variant: Variant::Correct,
        scope,
    };
    let checker = model.checker().threads(2).spawn_bfs().join();
    println!(
        "{what}: {} unique states, {} steps between them",
        checker.unique_state_count(),
        checker.state_count()
    );
    assert!(checker.is_done(), "{what}: stopped before the last state");
    checker.assert_properties();
    assert!(
        checker.unique_state_count() >= at_least,
        "{what}: fewer states than a model that means something has"
    );
}

#[test]
fn g1_g9_ring_is_safe_exhaustively() {
    check(
        "two transactions, two keys",
        Scope {
            keys: 2,
            ..TWO_AT_ONCE
        },
        5_000_000,
    );
    check(
        "three transactions, one key",
        Scope {
            sessions: 3,
            readers: false,
            ..TWO_AT_ONCE
        },
        1_000_000,
    );
    check(
        "two transactions, one key, ticks of a quarter retention",
        Scope {
            half_retention: 2,
            ..TWO_AT_ONCE
        },
        500_000,
    );
}

/// Another minute and a half of both cores, for the same promises: by request only.
#[cfg(ring_model_wide)]
#[test]
fn g1_g9_ring_is_safe_in_wider_scopes() {
    check(
        "three transactions, one key, readers",
        Scope {
            sessions: 3,
            ..TWO_AT_ONCE
        },
        5_000_000,
    );
    check(
        "three transactions, two keys, no savepoints, no readers",
        Scope {
            sessions: 3,
            keys: 2,
            savepoints: false,
            readers: false,
            ..TWO_AT_ONCE
        },
        5_000_000,
    );
}

#[test]
fn g9_rotation_on_time_protects_one_to_one_and_a_half_retentions() {
    let on_time = Scope {
        on_time: true,
        ..TWO_AT_ONCE
    };
    check("on time, ticks of half a retention", on_time, 100_000);
    check(
        "on time, ticks of a quarter retention",
        Scope {
            half_retention: 2,
            ..on_time
        },
        100_000,
    );
    check(
        "on time, three transactions",
        Scope {
            sessions: 3,
            readers: false,
            ..on_time
        },
        500_000,
    );
}

/// Without this a model in which nothing ever happens would pass.
#[test]
fn g2_g3_g10_what_the_promises_are_about_happens() {
    for witness in Witness::ALL {
        let model = RingModel {
            variant: Variant::Correct,
            scope: Scope {
                one_job: witness != Witness::ClaimedAfterOwnRotation,
                symmetric: false,
                watch: Some(witness),
                ..TWO_AT_ONCE
            },
        };
        let checker = model.checker().spawn_bfs().join();
        let path = checker.assert_any_discovery(promises::TOLD);
        println!("{witness:?}:");
        tell(&model, &path.into_actions());
    }
}

/// The states that stand for others are exactly those that stand for a reachable
/// one, so nothing that can happen is left out by taking alike states as one.
#[test]
fn symmetry_leaves_out_no_state() {
    let scope = Scope {
        readers: false,
        ..TWO_AT_ONCE
    };
    let with = |symmetric| RingModel {
        variant: Variant::Correct,
        scope: Scope { symmetric, ..scope },
    };
    let plain = reachable(&with(false));
    let folded = reachable(&with(true));
    assert!(folded.len() * 4 < plain.len());
    let stand_ins: HashSet<State> = plain
        .into_iter()
        .map(|state| symmetry::representative(&with(false), state))
        .collect();
    assert!(stand_ins == folded);
}

fn reachable(model: &RingModel) -> HashSet<State> {
    let mut seen = HashSet::from([model.start()]);
    let mut open = vec![model.start()];
    while let Some(state) = open.pop() {
        for next in model.next_states(&state) {
            if !seen.contains(&next) {
                seen.insert(next.clone());
                open.push(next);
            }
        }
    }
    seen
}

/// Finds the shortest way in which `variant` breaks its promise, prints it, and
/// compares it with what `docs/ring.md` tells.
fn catches(variant: Variant) {
    let model = RingModel {
        variant,
        scope: Scope {
            one_job: variant != Variant::RotationOverOwnClaim,
            on_time: variant == Variant::RotationWithoutPacing,
            symmetric: false,
            ..TWO_AT_ONCE
        },
    };
    let checker = model
        .checker()
        .finish_when(HasDiscoveries::AnyFailures)
        .spawn_bfs()
        .join();
    let (promise, path) = checker
        .discoveries()
        .into_iter()
        .next()
        .unwrap_or_else(|| panic!("{variant:?} breaks no promise: the check is blind to it"));
    let actions = path.into_actions();
    println!(
        "{variant:?} breaks \"{promise}\" in {} steps:",
        actions.len()
    );
    let story = tell(&model, &narrate::tidied(&model, &actions));
    assert!(
        DOCS.contains(&story),
        "docs/ring.md does not tell the shortest counterexample of {variant:?}:\n{story}"
    );
}

fn tell(model: &RingModel, actions: &[Action]) -> String {
    let story = narrate::narrate(model, actions)
        .unwrap_or_else(|| panic!("the checker found a path that the model does not have"))
        .join("\n");
    println!("{story}\n");
    story
}

#[test]
fn catches_no_gate() {
    catches(Variant::NoGate);
}

#[test]
fn catches_current_read_before_gate() {
    catches(Variant::CurrentReadBeforeGate);
}

#[test]
fn catches_current_read_with_old_snapshot() {
    catches(Variant::CurrentReadWithOldSnapshot);
}

#[test]
fn catches_sealed_probed_with_old_snapshot() {
    catches(Variant::SealedProbedWithOldSnapshot);
}

#[test]
fn catches_no_sealed_probe() {
    catches(Variant::NoSealedProbe);
}

#[test]
fn catches_gate_released_after_claim() {
    catches(Variant::GateReleasedAfterClaim);
}

#[test]
fn catches_gate_forgotten_after_savepoint_rollback() {
    catches(Variant::GateForgottenAfterSavepointRollback);
}

#[test]
fn catches_truncate_by_wrong_clock() {
    catches(Variant::TruncateByWrongClock);
}

#[test]
fn catches_seal_time_from_transaction_start() {
    catches(Variant::SealTimeFromTransactionStart);
}

#[test]
fn catches_rotation_over_own_claim() {
    catches(Variant::RotationOverOwnClaim);
}

#[test]
fn catches_rotation_reads_ring_before_gate() {
    catches(Variant::RotationReadsRingBeforeGate);
}

#[test]
fn catches_rotation_without_timeout() {
    catches(Variant::RotationWithoutTimeout);
}

#[test]
fn catches_rotation_without_pacing() {
    catches(Variant::RotationWithoutPacing);
}
