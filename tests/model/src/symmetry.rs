//! Which states are the same but for the names in them.
//!
//! The protocol treats the tables of the ring alike but for their order, keys
//! alike, and transactions alike. Of all states that turn into one another by
//! naming the current table 0, by exchanging keys and by exchanging transactions,
//! one stands for all.

use crate::protocol::RingModel;
use crate::state::{
    Holdings, Key, MAX_KEYS, Phase, Ring, Rotation, Session, Snapshot, State, TABLES, Table,
};

/// The state that stands for `state`.
pub fn representative(model: &RingModel, state: State) -> State {
    let current = model.ring(&state).current;
    if model.scope.keys < MAX_KEYS {
        return renamed(state, current, |key| key);
    }
    let exchanged = renamed(state.clone(), current, |key| MAX_KEYS as Key - 1 - key);
    renamed(state, current, |key| key).min(exchanged)
}

/// `state` with `current` called 0, keys renamed by `key`, and the transactions
/// in order.
fn renamed(mut state: State, current: Table, key: impl Fn(Key) -> Key + Copy) -> State {
    let table = |table: Table| (table + TABLES - current) % TABLES;
    // Most states need no new names: only a rotation moves the current table.
    if current != 0 || key(0) != 0 {
        let won = state.won;
        for (k, won) in won.into_iter().enumerate() {
            state.won[usize::from(key(k as Key))] = won;
        }
        state.ring = state.ring.map(|ring| rename_ring(ring, table));
        state.committed = state.committed.renamed(table, key);
        for session in state.sessions.iter_mut().filter(|s| !s.is_idle()) {
            *session = rename_session(session, table, key);
        }
    }
    // The transactions that a model does not use are idle and stay last.
    state.sessions.sort_unstable_by(|a, b| b.cmp(a));
    state
}

fn rename_ring(ring: Ring, table: impl Fn(Table) -> Table) -> Ring {
    let mut sealed = ring.sealed;
    for t in 0..TABLES {
        sealed[usize::from(table(t))] = ring.sealed[usize::from(t)];
    }
    Ring {
        current: table(ring.current),
        sealed,
    }
}

fn rename_session(
    session: &Session,
    table: impl Fn(Table) -> Table + Copy,
    key: impl Fn(Key) -> Key + Copy,
) -> Session {
    let held = session.held.map(|held| Holdings {
        gate: held.gate,
        touched: held.touched.renamed(table),
        rows: held.rows.renamed(table, key),
    });
    let snapshot = session.snapshot.map(|snapshot| Snapshot {
        rows: snapshot.rows.renamed(table, key),
        current: snapshot.current.map(table),
    });
    let phase = match session.phase {
        Phase::Claim {
            key: claimed,
            step,
            current,
        } => Phase::Claim {
            key: key(claimed),
            step,
            current: current.map(table),
        },
        phase @ (Phase::Ready | Phase::Rotate(_)) => phase,
    };
    Session {
        held,
        snapshot,
        phase,
        rotation: Rotation {
            from: session.rotation.from.map(table),
            ..session.rotation
        },
        ..*session
    }
}
