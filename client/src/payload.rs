//! Payloads: raw bytes as they came from the broker, or JSON through serde.

use serde::{Serialize, de::DeserializeOwned};

use crate::Error;

/// A value whose payload form is JSON.
///
/// ```
/// use sequential_inbox_client::Json;
///
/// let bytes = Json(vec![1, 2, 3]).encode()?;
/// assert_eq!(bytes, b"[1,2,3]");
/// let Json(numbers) = Json::<Vec<u32>>::decode(&bytes)?;
/// assert_eq!(numbers, [1, 2, 3]);
/// # Ok::<(), sequential_inbox_client::Error>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Json<T>(pub T);

impl<T: Serialize> Json<T> {
    /// The value as JSON bytes.
    ///
    /// # Errors
    ///
    /// [`Error::Json`] when the type refuses to be serialised.
    pub fn encode(&self) -> Result<Vec<u8>, Error> {
        serde_json::to_vec(&self.0).map_err(Error::Json)
    }
}

impl<T: DeserializeOwned> Json<T> {
    /// Reads the value from JSON bytes.
    ///
    /// # Errors
    ///
    /// [`Error::Json`] when the bytes are not JSON or not of that type.
    pub fn decode(payload: &[u8]) -> Result<Self, Error> {
        serde_json::from_slice(payload)
            .map(Self)
            .map_err(Error::Json)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_that_are_not_the_type_are_an_error() {
        assert!(matches!(Json::<u32>::decode(b"\"x\""), Err(Error::Json(_))));
        assert!(matches!(Json::<u32>::decode(b""), Err(Error::Json(_))));
        assert!(matches!(
            Json::<u32>::decode(b"\xff\xfe"),
            Err(Error::Json(_))
        ));
    }
}
