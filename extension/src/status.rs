//! `inbox_status`: the settings in force and the ring's next rotation, for the view
//! `inbox_settings`.

use std::time::Duration;

use pgrx::datum::Interval;
use pgrx::iter::TableIterator;
use pgrx::prelude::*;

use crate::errors::{InboxError, Result, or_raise};
use crate::ring;
use crate::settings;
use crate::spi::{Db, is_preloaded};

fn interval(span: Duration) -> Result<Interval> {
    const DAY: u64 = 24 * 60 * 60;
    let days = i32::try_from(span.as_secs() / DAY).unwrap_or(i32::MAX);
    let rest = span.saturating_sub(Duration::from_secs(u64::from(days.unsigned_abs()) * DAY));
    let micros = i64::try_from(rest.as_micros()).unwrap_or(i64::MAX);
    Interval::new(0, days, micros)
        .map_err(|error| InboxError::invalid(format!("a setting is out of range: {error}")))
}

/// `inbox_status()`
#[pg_extern(sql = false)]
#[allow(clippy::type_complexity)]
fn inbox_status(
    fcinfo: pg_sys::FunctionCallInfo,
) -> TableIterator<
    'static,
    (
        name!(preloaded, bool),
        name!(housekeeping, bool),
        name!(housekeeping_interval, Interval),
        name!(housekeeping_batch_size, i32),
        name!(housekeeping_databases, Vec<String>),
        name!(claim_retention, Interval),
        name!(dead_letter_retention, Interval),
        name!(rotation_lock_timeout, Interval),
        name!(notify, bool),
        name!(next_rotation_at, Option<TimestampWithTimeZone>),
    ),
> {
    let row = or_raise((|| {
        let db = Db::read_only(fcinfo);
        Ok((
            is_preloaded(),
            settings::housekeeping(),
            interval(settings::housekeeping_interval())?,
            settings::housekeeping_batch_size(),
            settings::housekeeping_databases(),
            interval(settings::claim_retention())?,
            interval(settings::dead_letter_retention())?,
            interval(settings::rotation_lock_timeout())?,
            settings::notify(),
            ring::next_rotation(&db),
        ))
    })());
    TableIterator::once(row)
}
