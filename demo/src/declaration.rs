//! What the ordered part declares: the message types, and what is to be expected of them.

use std::{
    collections::{BTreeSet, HashSet},
    fs::File,
    io::BufReader,
    path::Path,
};

use anyhow::{Context, Result, ensure};
use sequential_inbox_client::{MessageType, Ordering};

use crate::stream::Stream;

/// Reads a JSON array of message types, in the form that `inbox_declare_sequence` takes.
///
/// # Errors
///
/// When it cannot be read or is no such array.
pub fn read_types(path: &Path) -> Result<Vec<MessageType>> {
    let shown = path.display();
    let file = File::open(path).with_context(|| format!("cannot open {shown}"))?;
    serde_json::from_reader(BufReader::new(file))
        .with_context(|| format!("{shown} is not a list of message types"))
}

/// The types that a stream has, without conditions, for a sequence ordered by position.
pub fn types_of(stream: &Stream) -> Vec<MessageType> {
    stream
        .message_types()
        .into_iter()
        .map(MessageType::new)
        .collect()
}

/// Checks that every type of the stream is declared.
///
/// # Errors
///
/// When one is not, with its name.
pub fn check_covers(types: &[MessageType], stream: &Stream) -> Result<()> {
    let declared: BTreeSet<&str> = types.iter().map(|it| it.name.as_str()).collect();
    let missing: Vec<&str> = stream
        .message_types()
        .difference(&declared)
        .copied()
        .collect();
    ensure!(
        missing.is_empty(),
        "the sequence does not declare message types of the stream: {}",
        missing.join(", ")
    );
    Ok(())
}

/// How many instances are complete, and therefore closed, when every event of the stream was
/// handled: with conditions, those that have every type that is not optional; by position, those
/// that have a final one.
pub fn complete_instances(types: &[MessageType], ordering: Ordering, stream: &Stream) -> usize {
    let names = |chosen: fn(&MessageType) -> bool| -> HashSet<&str> {
        types
            .iter()
            .filter(|it| chosen(it))
            .map(|it| it.name.as_str())
            .collect()
    };
    match ordering {
        Ordering::Position => stream.cases_with_any(&names(|it| it.is_final)),
        _ => stream.cases_with_all(&names(|it| !it.optional)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stream::generated_types;

    #[test]
    fn completion_is_counted_by_the_ordering() {
        let stream = Stream::generate(3).unwrap();
        let types = generated_types();
        let by_conditions = complete_instances(&types, Ordering::Conditions, &stream);
        let by_position = complete_instances(&types, Ordering::Position, &stream);
        assert_eq!(by_conditions, by_position);
        assert!(by_conditions > 0);

        let bare = types_of(&stream);
        assert_eq!(complete_instances(&bare, Ordering::Position, &stream), 0);
        let all = complete_instances(&bare, Ordering::Conditions, &stream);
        assert_eq!(
            all, 0,
            "no order is reminded, shipped and collected at once"
        );
    }

    #[test]
    fn an_undeclared_type_is_named() {
        let stream = Stream::generate(3).unwrap();
        let mut types = generated_types();
        assert!(check_covers(&types, &stream).is_ok());
        types.retain(|it| it.name != "order.picked");
        let error = check_covers(&types, &stream).unwrap_err().to_string();
        assert!(error.ends_with("order.picked"), "{error}");
    }
}
