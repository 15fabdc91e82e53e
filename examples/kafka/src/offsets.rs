//! Where the partitions stand (G6, G8): which are held at a message that failed, and how often it
//! did. Pure: nothing here talks to Kafka.

use std::collections::HashMap;

/// A topic and the number of one of its partitions.
pub(crate) type Partition = (String, i32);

/// A message that failed, and at which its partition stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Failing {
    offset: i64,
    failures: u32,
}

/// The partitions that stand at a message that failed.
#[derive(Debug, Default)]
pub(crate) struct Standing(HashMap<Partition, Failing>);

impl Standing {
    /// Whether a message may be handled now. One behind a message that failed may not: it was on its
    /// way when the partition was moved back, and comes again behind that one.
    pub(crate) fn admits(&self, partition: &Partition, offset: i64) -> bool {
        let failing = self.0.get(partition);
        failing.is_none_or(|failing| offset <= failing.offset)
    }

    /// How often the message has failed.
    pub(crate) fn failures(&self, partition: &Partition, offset: i64) -> u32 {
        let failing = self.0.get(partition).filter(|it| it.offset == offset);
        failing.map_or(0, |it| it.failures)
    }

    /// It has failed once more; how often that makes.
    pub(crate) fn failed(&mut self, partition: &Partition, offset: i64) -> u32 {
        let failures = self.failures(partition, offset).saturating_add(1);
        let failing = Failing { offset, failures };
        self.0.insert(partition.clone(), failing);
        failures
    }

    /// It is taken care of, and its partition goes on. An earlier one that came again changes
    /// nothing.
    pub(crate) fn done(&mut self, partition: &Partition, offset: i64) {
        if self.0.get(partition).is_some_and(|it| it.offset <= offset) {
            self.0.remove(partition);
        }
    }

    /// The partition is somebody else's now, or begins anew.
    pub(crate) fn forget(&mut self, partition: &Partition) {
        self.0.remove(partition);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn g6_a_partition_stands_at_what_failed_and_no_other_does() {
        let (one, other) = (("t".to_owned(), 0), ("t".to_owned(), 1));
        let mut standing = Standing::default();
        assert!(standing.admits(&one, 5));
        assert_eq!(standing.failed(&one, 5), 1);
        assert!(!standing.admits(&one, 6), "it would overtake");
        assert!(standing.admits(&one, 5) && standing.admits(&one, 4));
        assert!(standing.admits(&other, 6));
        assert_eq!(standing.failures(&other, 5), 0);
        assert_eq!(standing.failed(&one, 5), 2);
        standing.done(&one, 4);
        assert!(!standing.admits(&one, 6), "5 has not succeeded yet");
        standing.done(&one, 5);
        assert!(standing.admits(&one, 6));
        assert_eq!(standing.failures(&one, 5), 0);
    }

    #[test]
    fn a_partition_that_is_lost_begins_anew() {
        let one = ("t".to_owned(), 0);
        let mut standing = Standing::default();
        standing.failed(&one, 5);
        standing.forget(&one);
        assert!(standing.admits(&one, 6));
        assert_eq!(standing.failed(&one, 5), 1);
    }
}
