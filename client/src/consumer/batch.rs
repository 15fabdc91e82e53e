//! The order in which a batch takes its messages (G6).

use crate::Message;

/// The places of the messages in the order in which they are taken: by context, and within one
/// context, or without any, as they came.
///
/// Two batches so lock the instances they share in the same order, and cannot deadlock each other
/// over them.
pub(crate) fn order(messages: &[Message<'_>]) -> Vec<usize> {
    let mut order: Vec<usize> = (0..messages.len()).collect();
    // The sort is stable.
    order.sort_by_key(|&place| messages[place].context_id.as_deref());
    order
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn messages(contexts: &[Option<u8>]) -> Vec<Message<'static>> {
        contexts
            .iter()
            .enumerate()
            .map(|(place, context)| {
                let message = Message::new("t", place.to_string());
                match context {
                    Some(context) => message.context(context.to_string()),
                    None => message,
                }
            })
            .collect()
    }

    proptest! {
        #[test]
        fn each_message_once_and_each_context_in_its_order(
            contexts in prop::collection::vec(prop::option::of(0_u8..5), 0..40),
        ) {
            let messages = messages(&contexts);
            let order = order(&messages);
            let mut places = order.clone();
            places.sort_unstable();
            prop_assert_eq!(places, (0..messages.len()).collect::<Vec<_>>());
            for pair in order.windows(2) {
                let (first, second) = (&messages[pair[0]], &messages[pair[1]]);
                prop_assert!(first.context_id <= second.context_id);
                prop_assert!(first.context_id != second.context_id || pair[0] < pair[1]);
            }
        }

        #[test]
        fn two_batches_meet_shared_contexts_in_one_order(
            mut contexts in prop::collection::vec(prop::option::of(0_u8..5), 0..40),
        ) {
            let visited = |contexts: &[Option<u8>]| {
                let messages = messages(contexts);
                let mut visited: Vec<_> = order(&messages)
                    .into_iter()
                    .map(|place| messages[place].context_id.clone())
                    .collect();
                visited.dedup();
                visited
            };
            let forward = visited(&contexts);
            contexts.reverse();
            prop_assert_eq!(forward, visited(&contexts));
        }
    }
}
