//! The schema that the extension lives in, as a quoted identifier (G14).

use std::fmt;

/// The schema that `CREATE EXTENSION sequential_inbox` put the functions in.
///
/// Give it to [`Inbox::in_schema`](crate::Inbox::in_schema) and every call is qualified with it:
/// it then works whatever the session's `search_path`, and no object that somebody else put in
/// front of the extension can take a function's place. The name is quoted, so any name is safe,
/// and it is taken as it is: `Schema::new("Inbox")` is not the schema `inbox`.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Schema {
    quoted: String,
}

impl Schema {
    /// The schema of that name.
    #[must_use]
    pub fn new(name: &str) -> Self {
        Self {
            quoted: format!("\"{}\"", name.replace('"', "\"\"")),
        }
    }
}

/// The name as a quoted SQL identifier.
impl fmt::Display for Schema {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.quoted)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn g14_a_schema_name_cannot_leave_its_quotes() {
        assert_eq!(Schema::new("inbox").to_string(), r#""inbox""#);
        assert_eq!(Schema::new("My Inbox").to_string(), r#""My Inbox""#);
        assert_eq!(Schema::new(r#"a"b"#).to_string(), r#""a""b""#);
        assert_eq!(
            Schema::new(r#"x"."y"; DROP SCHEMA public; --"#).to_string(),
            r#""x"".""y""; DROP SCHEMA public; --""#
        );
        assert_eq!(Schema::new(r"back\slash").to_string(), r#""back\slash""#);
    }
}
