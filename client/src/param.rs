//! The parameters of a call. Each knows its SQL type, so that a call needs no prepared statement
//! to find out.

use std::{
    borrow::Cow,
    error, fmt,
    time::{Duration, SystemTime},
};

use bytes::{BufMut, BytesMut};
use serde_json::Value;
use tokio_postgres::types::{IsNull, ToSql, Type, to_sql_checked};

/// One parameter. `None` is NULL.
pub(crate) enum Param<'a> {
    Text(Option<&'a str>),
    Name(&'a str),
    TextArray(Vec<&'a str>),
    BigInt(Option<i64>),
    Integer(i32),
    Boolean(bool),
    Bytes(Option<&'a [u8]>),
    Jsonb(Option<Cow<'a, Value>>),
    Interval(Option<Duration>),
    Timestamp(Option<SystemTime>),
    #[cfg(feature = "uuid")]
    Uuid(uuid::Uuid),
}

impl<'a> Param<'a> {
    pub(crate) const fn text(value: &'a str) -> Self {
        Self::Text(Some(value))
    }

    /// The SQL type, which also decides between functions of one name.
    pub(crate) const fn sql_type(&self) -> Type {
        match self {
            Self::Text(_) => Type::TEXT,
            Self::Name(_) => Type::NAME,
            Self::TextArray(_) => Type::TEXT_ARRAY,
            Self::BigInt(_) => Type::INT8,
            Self::Integer(_) => Type::INT4,
            Self::Boolean(_) => Type::BOOL,
            Self::Bytes(_) => Type::BYTEA,
            Self::Jsonb(_) => Type::JSONB,
            Self::Interval(_) => Type::INTERVAL,
            Self::Timestamp(_) => Type::TIMESTAMPTZ,
            #[cfg(feature = "uuid")]
            Self::Uuid(_) => Type::UUID,
        }
    }
}

/// Shows the type alone: the driver may log parameters, and a payload is nobody's business.
impl fmt::Debug for Param<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.sql_type())
    }
}

impl ToSql for Param<'_> {
    fn to_sql(
        &self,
        ty: &Type,
        out: &mut BytesMut,
    ) -> Result<IsNull, Box<dyn error::Error + Sync + Send>> {
        match self {
            Self::Text(value) => value.to_sql(ty, out),
            Self::Name(value) => value.to_sql(ty, out),
            Self::TextArray(values) => values.to_sql(ty, out),
            Self::BigInt(value) => value.to_sql(ty, out),
            Self::Integer(value) => value.to_sql(ty, out),
            Self::Boolean(value) => value.to_sql(ty, out),
            Self::Bytes(value) => value.to_sql(ty, out),
            Self::Jsonb(value) => value.as_deref().to_sql(ty, out),
            Self::Interval(value) => match value {
                Some(duration) => write_interval(*duration, out),
                None => Ok(IsNull::Yes),
            },
            Self::Timestamp(value) => value.to_sql(ty, out),
            #[cfg(feature = "uuid")]
            Self::Uuid(value) => value.to_sql(ty, out),
        }
    }

    fn accepts(_: &Type) -> bool {
        // A parameter is only ever sent with its own `sql_type`.
        true
    }

    to_sql_checked!();
}

/// Writes an interval in its wire form: microseconds, days, months. All of the duration goes into
/// the microseconds, so that no calendar and no daylight saving can stretch it.
fn write_interval(
    duration: Duration,
    out: &mut BytesMut,
) -> Result<IsNull, Box<dyn error::Error + Sync + Send>> {
    // Rounded up: what is longer than nothing must not arrive as nothing.
    let microseconds = i64::try_from(duration.as_nanos().div_ceil(1_000))
        .map_err(|_| format!("a duration of {duration:?} is longer than an interval can be"))?;
    out.put_i64(microseconds);
    out.put_i32(0);
    out.put_i32(0);
    Ok(IsNull::No)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn interval(duration: Duration) -> Result<i64, String> {
        let mut out = BytesMut::new();
        write_interval(duration, &mut out).map_err(|e| e.to_string())?;
        assert_eq!(out.len(), 16);
        assert_eq!(out[8..], [0; 8], "days and months");
        Ok(i64::from_be_bytes(out[..8].try_into().unwrap()))
    }

    #[test]
    fn an_interval_is_exact_to_the_microsecond_and_never_rounds_to_nothing() {
        assert_eq!(interval(Duration::ZERO), Ok(0));
        assert_eq!(interval(Duration::from_nanos(1)), Ok(1));
        assert_eq!(interval(Duration::from_nanos(1_001)), Ok(2));
        assert_eq!(
            interval(Duration::from_secs(14 * 86_400)),
            Ok(1_209_600_000_000)
        );
        assert_eq!(
            interval(Duration::from_micros(i64::MAX as u64)),
            Ok(i64::MAX)
        );
    }

    #[test]
    fn g11_a_duration_beyond_an_interval_is_an_error() {
        let error = interval(Duration::MAX).unwrap_err();
        assert!(error.contains("longer than an interval"), "{error}");
    }

    #[test]
    fn debug_output_never_holds_the_content() {
        assert_eq!(format!("{:?}", Param::Bytes(Some(b"secret"))), "bytea");
    }
}
