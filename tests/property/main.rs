//! Random declarations and random histories on several sessions, compared step by step with a
//! small pure model (G1, G3 to G8): every answer, every message's state, what is ready, the
//! instances, the claims, what handlers wrote and what the views show. The stored next position is
//! left out: it may lag behind what has passed until the next message comes.
//!
//! Each history has a seed of its own. Every run tries the same ones, so that what it says does
//! not depend on the day; others are tried on request. A failing one is made as small as it gets,
//! and its seed is added to `regressions.txt`, whose seeds are tried first ever after.
//!
//! - `PROPTEST_CASES=n`: n histories instead of the usual number
//! - `PROPERTY_SEED=n`: begins with that seed; `PROPERTY_SEED=random` draws one

// A test fails by panicking, and so do its helpers.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod history;
mod interleaving;
mod model;
mod world;

use std::{
    cell::RefCell,
    collections::BTreeMap,
    env,
    fs::{self, OpenOptions},
    io::Write,
    sync::{
        Mutex,
        atomic::{AtomicU64, Ordering},
    },
    thread,
    time::{Instant, SystemTime},
};

use proptest::{
    strategy::Strategy,
    test_runner::{Config, RngAlgorithm, TestCaseError, TestRng, TestRunner},
};

use world::World;

/// How many histories are tried where nobody says how many: half a minute's worth.
const CASES: u64 = 300;

/// How many worlds are tried side by side, each with a database of its own.
const WORKERS: usize = 2;

/// Histories between two clean-ups of a world's database.
const TIDY: usize = 50;

const REGRESSIONS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/property/regressions.txt");

#[test]
fn g1_to_g8_random_histories_agree_with_the_model() {
    let cases: u64 = number("PROPTEST_CASES").unwrap_or(CASES);
    let first = match env::var("PROPERTY_SEED").as_deref() {
        Ok("random") => {
            let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
            since.expect("a clock after 1970").as_nanos() as u64 & 0xFFFF_FFFF_0000
        }
        _ => number("PROPERTY_SEED").unwrap_or(1),
    };
    let mut seeds = regressions();
    println!(
        "{} seeds of {REGRESSIONS}, then {first} and the following",
        seeds.len()
    );
    seeds.reverse();
    let seeds = Mutex::new(seeds);
    let following = AtomicU64::new(0);
    let begin = Instant::now();
    let counts: Vec<(usize, BTreeMap<String, usize>)> = thread::scope(|scope| {
        let workers: Vec<_> = (0..WORKERS)
            .map(|_| {
                scope.spawn(|| {
                    let mut world = World::new();
                    let mut count = 0;
                    loop {
                        let known = seeds.lock().unwrap().pop();
                        let seed = known.or_else(|| {
                            let n = following.fetch_add(1, Ordering::Relaxed);
                            (n < cases).then_some(first + n)
                        });
                        let Some(seed) = seed else {
                            return (count, world.answers);
                        };
                        if let Err(difference) = try_one(&mut world, seed) {
                            if known.is_none() {
                                remember(seed);
                            }
                            panic!("PROPERTY_SEED={seed}: {difference}");
                        }
                        count += 1;
                        if count % TIDY == 0 {
                            world.tidy();
                        }
                    }
                })
            })
            .collect();
        let ends: Vec<_> = workers.into_iter().map(|worker| worker.join()).collect();
        ends.into_iter().map(Result::unwrap).collect()
    });
    let count: usize = counts.iter().map(|(count, _)| count).sum();
    let mut answers: BTreeMap<&str, usize> = BTreeMap::new();
    for (answer, times) in counts.iter().flat_map(|(_, answers)| answers) {
        *answers.entry(answer).or_default() += times;
    }
    println!(
        "{count} histories in {:.0?}; calls and answers: {answers:#?}",
        begin.elapsed()
    );
    assert!(count > 0);
}

/// Draws the history of a seed and runs it; the smallest one that differs, if it does.
fn try_one(world: &mut World, seed: u64) -> Result<(), String> {
    let mut bytes = [0; 32];
    bytes[..8].copy_from_slice(&seed.to_le_bytes());
    let config = Config {
        failure_persistence: None,
        max_shrink_iters: 3000,
        ..Config::default()
    };
    let mut runner =
        TestRunner::new_with_rng(config, TestRng::from_seed(RngAlgorithm::ChaCha, &bytes));
    let tree = history::histories()
        .new_tree(&mut runner)
        .expect("a history");
    let world = RefCell::new(world);
    let outcome = runner.run_one(tree, |history| {
        let mut world = world.borrow_mut();
        world.run(&history).map_err(TestCaseError::fail)
    });
    match outcome {
        Ok(_) => Ok(()),
        Err(error) => Err(error.to_string()),
    }
}

/// A number of the environment.
fn number(name: &str) -> Option<u64> {
    let text = env::var(name).ok()?;
    Some(
        text.parse()
            .unwrap_or_else(|_| panic!("{name} is not a number: {text}")),
    )
}

/// The seeds of histories that once failed, one a line, with a remark.
fn regressions() -> Vec<u64> {
    let text = fs::read_to_string(REGRESSIONS).expect(REGRESSIONS);
    text.lines()
        .filter(|line| !line.starts_with('#'))
        .filter_map(|line| line.split_whitespace().next())
        .map(|seed| seed.parse().expect(seed))
        .collect()
}

/// Adds a seed to them.
fn remember(seed: u64) {
    let file = OpenOptions::new().append(true).open(REGRESSIONS);
    // Where the sources cannot be written to, the seed is still printed.
    if let Ok(mut file) = file {
        let _ = writeln!(file, "{seed}");
    }
}
