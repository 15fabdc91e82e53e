//! Counters by consumer and message type in bounded memory: the table itself, which knows
//! nothing of Postgres. `statistics` puts it into shared memory.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::args;

/// Marks an entry that nobody has taken.
const UNUSED: u8 = 0;

/// Whose messages an entry counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A plain consumer, by its name.
    Consumer = 1,
    /// A message type of a sequence.
    Sequence = 2,
}

/// What is counted, in the order of the columns of `inbox_stat`.
#[derive(Debug, Clone, Copy)]
pub enum Counter {
    Claimed,
    Duplicate,
    InFlight,
    Waited,
    WaitMicros,
    ReceivedProcess,
    ReceivedBuffered,
    ReceivedDuplicate,
    ReceivedDirect,
    ReceivedRejected,
    ReceivedInFlight,
    Released,
    Retried,
    Failed,
}

impl Counter {
    /// The one of a claim's answer.
    pub fn of_claim(won: bool) -> Self {
        if won { Self::Claimed } else { Self::Duplicate }
    }
}

/// How many counters there are: `Failed` is the last.
pub const COUNTERS: usize = Counter::Failed as usize + 1;

/// The counters of one name. A name has at most [`args::NAME_BYTES`] bytes.
pub struct Entry {
    database: u32,
    kind: u8,
    name_bytes: u16,
    name: [u8; args::NAME_BYTES],
    since: i64,
    counters: [AtomicU64; COUNTERS],
}

impl Entry {
    fn unused() -> Self {
        Self {
            database: 0,
            kind: UNUSED,
            name_bytes: 0,
            name: [0; args::NAME_BYTES],
            since: 0,
            counters: [const { AtomicU64::new(0) }; COUNTERS],
        }
    }

    /// `consumer`, `sequence`, or `others`.
    pub fn kind(&self) -> &'static str {
        match self.kind {
            kind if kind == Kind::Consumer as u8 => "consumer",
            kind if kind == Kind::Sequence as u8 => "sequence",
            _ => "others",
        }
    }

    /// The name; none for the others' entry.
    pub fn name(&self) -> Option<String> {
        (self.kind != UNUSED).then(|| String::from_utf8_lossy(self.name_of()).into_owned())
    }

    /// Since when it counts, by the clock of who took it.
    pub fn since(&self) -> i64 {
        self.since
    }

    /// The counters in the order of [`Counter`].
    pub fn values(&self) -> [i64; COUNTERS] {
        std::array::from_fn(|counter| {
            i64::try_from(self.counters[counter].load(Ordering::Relaxed)).unwrap_or(i64::MAX)
        })
    }

    /// Adds to some of the counters.
    pub fn add(&self, counts: &[(Counter, u64)]) {
        for (counter, number) in counts {
            self.counters[*counter as usize].fetch_add(*number, Ordering::Relaxed);
        }
    }

    fn name_of(&self) -> &[u8] {
        &self.name[..usize::from(self.name_bytes)]
    }

    fn is_of(&self, database: u32, kind: Kind, name: &[u8]) -> bool {
        self.database == database && self.kind == kind as u8 && self.name_of() == name
    }

    /// Counts from nothing from now on.
    fn start(&mut self, now: i64) {
        self.since = now;
        for counter in &mut self.counters {
            *counter.get_mut() = 0;
        }
    }
}

/// The counters of up to `N` names, and of all further names together. Who counts shares the
/// table; who takes or gives back entries has it alone.
pub struct Table<const N: usize> {
    /// Entries before this one are taken.
    used: usize,
    generation: u64,
    entries: [Entry; N],
    others: Entry,
}

impl<const N: usize> Table<N> {
    /// The place of those for which there was no room.
    const OTHERS: usize = N;

    /// A table without names.
    pub fn empty(now: i64) -> Self {
        let mut others = Entry::unused();
        others.start(now);
        Self {
            used: 0,
            generation: 0,
            entries: std::array::from_fn(|_| Entry::unused()),
            others,
        }
    }

    /// Changes whenever entries move: places found before are not to be used any more.
    pub fn generation(&self) -> u64 {
        self.generation
    }

    /// The entry at a place that was found.
    pub fn entry(&self, place: usize) -> &Entry {
        self.entries.get(place).unwrap_or(&self.others)
    }

    /// Where this name is counted; none: an entry is to be taken first.
    pub fn find(&self, database: u32, kind: Kind, name: &str) -> Option<usize> {
        self.entries[..self.used]
            .iter()
            .position(|entry| entry.is_of(database, kind, name.as_bytes()))
            .or_else(|| (self.used == N).then_some(Self::OTHERS))
    }

    /// The same, taking an entry if need be.
    pub fn find_or_take(&mut self, database: u32, kind: Kind, name: &str, now: i64) -> usize {
        if let Some(found) = self.find(database, kind, name) {
            return found;
        }
        let place = self.used;
        let entry = &mut self.entries[place];
        entry.database = database;
        entry.kind = kind as u8;
        entry.name[..name.len()].copy_from_slice(name.as_bytes());
        entry.name_bytes = name.len() as u16;
        entry.start(now);
        self.used += 1;
        place
    }

    /// Whether the place is a name's own entry.
    pub fn is_own(&self, place: usize) -> bool {
        place != Self::OTHERS
    }

    /// A database's entries, and the others' if they were needed.
    pub fn of_database(&self, database: u32) -> impl Iterator<Item = &Entry> {
        let others = self.others.values().iter().any(|value| *value != 0);
        self.entries[..self.used]
            .iter()
            .filter(move |entry| entry.database == database)
            .chain(others.then_some(&self.others))
    }

    /// Gives back a database's entries, or all; those that stay close up. What was counted for
    /// the others starts anew.
    pub fn give_back(&mut self, of: Option<u32>, now: i64) {
        let mut kept = 0;
        for place in 0..self.used {
            if of.is_some_and(|database| self.entries[place].database != database) {
                self.entries.swap(kept, place);
                kept += 1;
            }
        }
        self.used = kept;
        self.generation += 1;
        self.others.start(now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HERE: u32 = 1;
    const ELSEWHERE: u32 = 2;

    fn count<const N: usize>(table: &mut Table<N>, database: u32, kind: Kind, name: &str) {
        let place = table.find_or_take(database, kind, name, 7);
        table.entry(place).add(&[(Counter::Claimed, 1)]);
    }

    /// Kind, name and what was claimed.
    fn claimed<const N: usize>(
        table: &Table<N>,
        database: u32,
    ) -> Vec<(&'static str, Option<String>, i64)> {
        table
            .of_database(database)
            .map(|entry| (entry.kind(), entry.name(), entry.values()[0]))
            .collect()
    }

    fn row(kind: &'static str, name: &str, claimed: i64) -> (&'static str, Option<String>, i64) {
        (kind, Some(name.to_owned()), claimed)
    }

    #[test]
    fn names_are_told_apart_by_kind_and_database() {
        let mut table = Table::<4>::empty(0);
        count(&mut table, HERE, Kind::Consumer, "a");
        count(&mut table, HERE, Kind::Consumer, "a");
        count(&mut table, HERE, Kind::Sequence, "a");
        count(&mut table, ELSEWHERE, Kind::Consumer, "a");
        assert_eq!(
            claimed(&table, HERE),
            [row("consumer", "a", 2), row("sequence", "a", 1)]
        );
        assert_eq!(claimed(&table, ELSEWHERE), [row("consumer", "a", 1)]);
    }

    #[test]
    fn who_finds_no_room_is_counted_among_the_others() {
        let mut table = Table::<2>::empty(0);
        for name in ["a", "b", "c", "d", "a"] {
            count(&mut table, HERE, Kind::Consumer, name);
        }
        assert_eq!(
            claimed(&table, HERE),
            [
                row("consumer", "a", 2),
                row("consumer", "b", 1),
                ("others", None, 2)
            ]
        );
    }

    #[test]
    fn what_is_given_back_makes_room_and_moves_nothing_of_others_value() {
        let mut table = Table::<3>::empty(0);
        count(&mut table, HERE, Kind::Consumer, "a");
        count(&mut table, ELSEWHERE, Kind::Consumer, "b");
        count(&mut table, HERE, Kind::Consumer, "c");
        count(&mut table, HERE, Kind::Consumer, "d");
        let before = table.generation();
        table.give_back(Some(HERE), 9);
        assert_ne!(table.generation(), before);
        assert_eq!(claimed(&table, HERE), []);
        assert_eq!(claimed(&table, ELSEWHERE), [row("consumer", "b", 1)]);
        // An entry that was used before starts from nothing.
        count(&mut table, HERE, Kind::Sequence, "e");
        assert_eq!(claimed(&table, HERE), [row("sequence", "e", 1)]);
        table.give_back(None, 9);
        assert_eq!(claimed(&table, ELSEWHERE), []);
    }

    #[test]
    fn the_longest_name_fits() {
        let longest = "x".repeat(args::NAME_BYTES);
        let mut table = Table::<1>::empty(0);
        count(&mut table, HERE, Kind::Consumer, &longest);
        assert_eq!(claimed(&table, HERE), [row("consumer", &longest, 1)]);
    }
}
