//! The result: a table for people, JSON for everything else.

use std::collections::BTreeMap;
use std::fmt;
use std::fs;
use std::path::Path;
use std::thread;

use anyhow::Context;
use comfy_table::{CellAlignment, ContentArrangement, Table, presets};
use serde::Serialize;
use serde_json::Value;

use crate::machine;
use crate::rounds::{largest, median, smallest};
use crate::server::Server;

/// From which part of the processors' time that others use on a report mentions them.
const BUSY: f64 = 0.1;

/// How wide the table is where no terminal says so.
const WIDTH: u16 = 120;

/// What a figure is compared with.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Target {
    /// The ratio should be this or more.
    RatioAtLeast(f64),
    /// The ratio should be this or less.
    RatioAtMost(f64),
    /// Our own figure should be this or less.
    OursAtMost(f64),
    /// Shown for orientation.
    None,
}

/// A figure of every round, and the one that stands for them.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Series {
    pub(crate) value: f64,
    pub(crate) rounds: Vec<f64>,
}

impl Series {
    /// The median stands for the rounds.
    pub(crate) fn median(rounds: Vec<f64>) -> Self {
        Self {
            value: median(&rounds),
            rounds,
        }
    }

    /// The largest stands for the rounds.
    pub(crate) fn largest(rounds: Vec<f64>) -> Self {
        Self {
            value: largest(&rounds),
            rounds,
        }
    }
}

/// One line of the result.
#[derive(Debug, Clone)]
pub(crate) struct Row {
    /// The target's name, `P1` say.
    pub(crate) id: &'static str,
    /// What was measured, and against what.
    pub(crate) what: String,
    /// The unit of both figures.
    pub(crate) unit: &'static str,
    pub(crate) ours: Series,
    pub(crate) baseline: Option<Series>,
    pub(crate) ratio: Option<Series>,
    pub(crate) target: Target,
    /// What else was seen.
    pub(crate) note: Option<String>,
    /// More figures, for JSON only.
    pub(crate) detail: Option<Value>,
}

impl Row {
    /// Whether the target is met; nothing without a target.
    pub(crate) fn met(&self) -> Option<bool> {
        let ratio = self.ratio.as_ref().map_or(f64::NAN, |ratio| ratio.value);
        match self.target {
            Target::RatioAtLeast(least) => Some(ratio >= least),
            Target::RatioAtMost(most) => Some(ratio <= most),
            Target::OursAtMost(most) => Some(self.ours.value <= most),
            Target::None => None,
        }
    }

    pub(crate) fn target_text(&self) -> String {
        match self.target {
            Target::RatioAtLeast(least) => format!("≥ {least}"),
            Target::RatioAtMost(most) => format!("≤ {most}"),
            Target::OursAtMost(most) => format!("≤ {most} {}", self.unit),
            Target::None => String::new(),
        }
    }

    pub(crate) fn verdict(&self) -> &'static str {
        match self.met() {
            Some(true) => "yes",
            Some(false) => "NO",
            None => "",
        }
    }

    /// The ratio and between what its rounds lie.
    pub(crate) fn ratio_text(&self) -> String {
        self.ratio.as_ref().map_or_else(String::new, |ratio| {
            format!(
                "{:.2} ({:.2} to {:.2})",
                ratio.value,
                smallest(&ratio.rounds),
                largest(&ratio.rounds)
            )
        })
    }

    pub(crate) fn figure(&self, series: &Series) -> String {
        format!("{} {}", short(series.value), self.unit)
    }
}

/// The row in a line, for standard error while the rest is measured.
impl fmt::Display for Row {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}: {}", self.id, self.what, self.figure(&self.ours))?;
        if let Some(baseline) = &self.baseline {
            write!(f, ", baseline {}", self.figure(baseline))?;
        }
        if self.ratio.is_some() {
            write!(f, ", ratio {}", self.ratio_text())?;
        }
        if self.met().is_some() {
            write!(f, ", target {}: {}", self.target_text(), self.verdict())?;
        }
        match &self.note {
            Some(note) => write!(f, "; {note}"),
            None => Ok(()),
        }
    }
}

/// All rows, and what they were measured on.
#[derive(Debug)]
pub(crate) struct Report {
    pub(crate) rows: Vec<Row>,
    pub(crate) environment: BTreeMap<&'static str, String>,
    /// Why the figures say less than they should.
    pub(crate) reservations: Vec<String>,
    /// The median time of a small write transaction, in milliseconds.
    pub(crate) commit_ms: f64,
}

impl Report {
    /// An empty report about this server. `busy` is the part of the processors' time, from 0 to 1,
    /// that others used before it was started.
    pub(crate) fn new(server: &Server, busy: Option<f64>) -> anyhow::Result<Self> {
        let options = &server.options;
        let processors = thread::available_parallelism().map_or(0, usize::from);
        let mut environment = BTreeMap::from([
            (
                "started_at",
                server.cluster.sql("postgres", "SELECT now()")?,
            ),
            (
                "postgres",
                server.cluster.sql("postgres", "SELECT version()")?,
            ),
            ("processors", processors.to_string()),
            ("rounds", options.rounds().to_string()),
            ("seconds", options.seconds().to_string()),
            ("connections", options.connections.to_string()),
        ]);
        environment.extend(server.settings());
        let mut reservations = Vec::new();
        if options.quick {
            reservations.push("a quick run: short, and with fewer rows stored".to_owned());
        } else if options.rounds() < 5 {
            reservations.push("fewer than five rounds".to_owned());
        }
        if options.no_fsync {
            reservations.push("fsync is off, while the targets are meant with it".to_owned());
        }
        if let Some(busy) = busy.filter(|busy| *busy > BUSY) {
            reservations.push(format!(
                "others used {:.0} % of the processors before this began",
                busy * 100.0
            ));
        }
        let commit_ms = machine::commit_ms(server).context("timing commits")?;
        environment.insert("commit_ms", format!("{commit_ms:.3}"));
        Ok(Self {
            rows: Vec::new(),
            environment,
            reservations,
            commit_ms,
        })
    }

    /// Writes everything, each round's figures included.
    pub(crate) fn write(&self, path: &Path) -> anyhow::Result<()> {
        #[derive(Serialize)]
        struct JsonRow<'a> {
            id: &'a str,
            what: &'a str,
            unit: &'a str,
            ours: &'a Series,
            baseline: &'a Option<Series>,
            ratio: &'a Option<Series>,
            target: Option<String>,
            met: Option<bool>,
            note: &'a Option<String>,
            #[serde(skip_serializing_if = "Option::is_none")]
            detail: &'a Option<Value>,
        }
        #[derive(Serialize)]
        struct Json<'a> {
            environment: &'a BTreeMap<&'static str, String>,
            reservations: &'a [String],
            rows: Vec<JsonRow<'a>>,
        }
        let rows = self.rows.iter().map(|row| JsonRow {
            id: row.id,
            what: &row.what,
            unit: row.unit,
            ours: &row.ours,
            baseline: &row.baseline,
            ratio: &row.ratio,
            target: row.met().map(|_| row.target_text()),
            met: row.met(),
            note: &row.note,
            detail: &row.detail,
        });
        let json = serde_json::to_string_pretty(&Json {
            environment: &self.environment,
            reservations: &self.reservations,
            rows: rows.collect(),
        })
        .context("making JSON of the result")?;
        if let Some(folder) = path.parent() {
            fs::create_dir_all(folder).with_context(|| format!("making {}", folder.display()))?;
        }
        fs::write(path, json + "\n").with_context(|| format!("writing {}", path.display()))
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut table = Table::new();
        table
            .load_preset(presets::UTF8_HORIZONTAL_ONLY)
            .set_content_arrangement(ContentArrangement::Dynamic)
            .set_header(["", "what", "ours", "baseline", "ratio", "target", "met"]);
        if !table.is_tty() {
            table.set_width(WIDTH);
        }
        for column in [2, 3] {
            if let Some(column) = table.column_mut(column) {
                column.set_cell_alignment(CellAlignment::Right);
            }
        }
        for row in &self.rows {
            let baseline = row.baseline.as_ref();
            let what = match &row.note {
                Some(note) => format!("{}\n{note}", row.what),
                None => row.what.clone(),
            };
            table.add_row([
                row.id.to_owned(),
                what,
                row.figure(&row.ours),
                baseline.map_or_else(String::new, |series| row.figure(series)),
                row.ratio_text(),
                row.target_text(),
                row.verdict().to_owned(),
            ]);
        }
        writeln!(f, "{table}")?;
        writeln!(
            f,
            "In brackets: the smallest and the largest ratio of a round. A small commit takes {} ms here.",
            short(self.commit_ms)
        )?;
        for reservation in &self.reservations {
            writeln!(f, "Mind: {reservation}.")?;
        }
        let judged = self.rows.iter().filter_map(Row::met);
        let missed = judged.clone().filter(|met| !met).count();
        match (missed, judged.count()) {
            (_, 0) => Ok(()),
            (0, all) => write!(f, "All {all} targets are met."),
            (missed, all) => write!(f, "{missed} of {all} targets MISSED."),
        }
    }
}

/// A figure with about three digits that count.
pub(crate) fn short(value: f64) -> String {
    match value.abs() {
        0.0 => "0".to_owned(),
        size if size < 1.0 => format!("{value:.3}"),
        size if size < 10.0 => format!("{value:.2}"),
        size if size < 100.0 => format!("{value:.1}"),
        _ => format!("{value:.0}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(ratio: f64, target: Target) -> Row {
        Row {
            id: "P0",
            what: "nothing".to_owned(),
            unit: "ms",
            ours: Series::median(vec![3.0]),
            baseline: None,
            ratio: Some(Series::median(vec![ratio])),
            target,
            note: None,
            detail: None,
        }
    }

    #[test]
    fn a_target_is_met_at_its_limit_and_missed_beyond() {
        assert_eq!(row(0.95, Target::RatioAtLeast(0.95)).met(), Some(true));
        assert_eq!(row(0.94, Target::RatioAtLeast(0.95)).met(), Some(false));
        assert_eq!(row(12.1, Target::RatioAtMost(12.0)).met(), Some(false));
        assert_eq!(row(1.0, Target::OursAtMost(3.0)).met(), Some(true));
        assert_eq!(row(1.0, Target::OursAtMost(2.9)).met(), Some(false));
        assert_eq!(row(1.0, Target::None).met(), None);
    }

    #[test]
    fn a_figure_that_could_not_be_measured_meets_no_target() {
        assert_eq!(row(f64::NAN, Target::RatioAtLeast(0.0)).met(), Some(false));
        assert_eq!(row(f64::NAN, Target::RatioAtMost(9.0)).met(), Some(false));
    }
}
