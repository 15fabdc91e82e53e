//! How far a replay is: a bar on a terminal, now and then a line elsewhere.

use std::io::{IsTerminal, stderr};

use anyhow::Result;
use indicatif::{HumanCount, ProgressBar, ProgressStyle};
use std::sync::atomic::{AtomicU64, Ordering};

/// How many lines tell of one replay when there is no terminal.
const LINES: u64 = 4;

/// The progress of one replay.
#[derive(Debug)]
pub struct Progress {
    title: String,
    total: u64,
    done: AtomicU64,
    /// `None` when standard error is no terminal.
    bar: Option<ProgressBar>,
}

impl Progress {
    /// Starts to show a replay with that many effects to come.
    ///
    /// # Errors
    ///
    /// None that depends on the arguments: the bar's template is fixed.
    pub fn start(title: &str, total: u64) -> Result<Self> {
        let bar = if stderr().is_terminal() {
            let style = ProgressStyle::with_template(
                "{msg:<34} {wide_bar:.cyan/blue} {human_pos:>6}/{human_len} {elapsed:>4}",
            )?;
            let bar = ProgressBar::new(total).with_style(style);
            bar.set_message(title.to_owned());
            Some(bar)
        } else {
            None
        };
        Ok(Self {
            title: title.to_owned(),
            total,
            done: AtomicU64::new(0),
            bar,
        })
    }

    /// One more effect was committed.
    pub fn step(&self) {
        let done = self.done.fetch_add(1, Ordering::Relaxed) + 1;
        match &self.bar {
            Some(bar) => bar.inc(1),
            None if is_worth_a_line(done, self.total) => eprintln!(
                "{}: {} of {} messages",
                self.title,
                HumanCount(done),
                HumanCount(self.total)
            ),
            None => {}
        }
    }

    /// Ends the display, leaving a line behind.
    pub fn finish(&self) {
        if let Some(bar) = &self.bar {
            bar.abandon();
        }
    }
}

/// Whether another share of the whole is done.
const fn is_worth_a_line(done: u64, total: u64) -> bool {
    done * LINES / total != (done - 1) * LINES / total
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_replay_is_told_in_a_few_lines() {
        let lines = |total| -> Vec<u64> {
            (1..=total)
                .filter(|&done| is_worth_a_line(done, total))
                .collect()
        };
        assert_eq!(lines(1000), [250, 500, 750, 1000]);
        assert_eq!(lines(1), [1]);
    }
}
