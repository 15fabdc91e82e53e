//! How long the worker pauses after failures: the pure part.

use std::time::Duration;

/// No pause is longer; an operator who mends the cause need not wait for days.
const LONGEST: Duration = Duration::from_secs(60 * 60);

/// The pause after the n-th failure in a row, from 1: the interval, then twice as long
/// each time.
pub fn pause_after(failures: u32, interval: Duration) -> Duration {
    let factor = 2_u32.saturating_pow(failures.saturating_sub(1).min(31));
    interval.saturating_mul(factor).min(LONGEST.max(interval))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_up_to_an_hour() {
        let minute = Duration::from_secs(60);
        assert_eq!(pause_after(1, minute), minute);
        assert_eq!(pause_after(2, minute), 2 * minute);
        assert_eq!(pause_after(4, minute), 8 * minute);
        assert_eq!(pause_after(40, minute), LONGEST);
        assert_eq!(pause_after(u32::MAX, minute), LONGEST);
    }

    #[test]
    fn an_interval_above_an_hour_stays() {
        let day = Duration::from_secs(24 * 60 * 60);
        assert_eq!(pause_after(3, day), day);
    }
}
