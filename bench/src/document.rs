//! The result as the tables of the documentation, and their way into it.
//!
//! What was measured stands between two comments in a page. Nothing else of a page is touched, and
//! the README gets a choice of the rows only.

use std::fmt::Write;
use std::fs;
use std::path::Path;

use anyhow::{Context, ensure};

use crate::report::{Report, Row, short};

/// Begins a line; the rest of it says to people what may stand below.
const BEGIN: &str = "<!-- figures: begin";
const END: &str = "<!-- figures: end -->";

/// Pages with figures, from the root of the project.
const PERFORMANCE: &str = "docs/performance.md";
const README: &str = "README.md";

/// Where the page shows the picture.
const PICTURE: &str = "docs/images/latency.svg";

/// Writes both tables into one file, to look at and to copy from.
pub(crate) fn write(report: &Report, path: &Path) -> anyhow::Result<()> {
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder).with_context(|| format!("making {}", folder.display()))?;
    }
    let text = format!(
        "For {PERFORMANCE}:\n\n{}\nFor {README}:\n\n{}",
        all_rows(report),
        chosen_rows(report)
    );
    fs::write(path, text).with_context(|| format!("writing {}", path.display()))
}

/// Puts the tables and the picture into the documentation below the project's root.
pub(crate) fn update(report: &Report, svg: &Path, root: &Path) -> anyhow::Result<()> {
    for (page, figures) in [
        (PERFORMANCE, all_rows(report)),
        (README, chosen_rows(report)),
    ] {
        let path = root.join(page);
        let text = fs::read_to_string(&path).with_context(|| format!("reading {page}"))?;
        let text = replaced(&text, &figures).with_context(|| format!("in {page}"))?;
        fs::write(&path, text).with_context(|| format!("writing {page}"))?;
    }
    fs::copy(svg, root.join(PICTURE)).with_context(|| format!("copying to {PICTURE}"))?;
    Ok(())
}

/// The page with the figures between its comments.
fn replaced(page: &str, figures: &str) -> anyhow::Result<String> {
    let begin = page.find(BEGIN);
    let begin = begin.with_context(|| format!("there is no line that begins with {BEGIN:?}"))?;
    let line = page[begin..].find('\n').map(|length| begin + length + 1);
    let line = line.context("nothing follows the line of the figures")?;
    let end = page[line..].find(END).map(|length| line + length);
    let end = end.with_context(|| format!("no {END:?} follows"))?;
    ensure!(
        page.matches(BEGIN).count() == 1,
        "there is more than one line that begins with {BEGIN:?}"
    );
    Ok(format!("{}{figures}{}", &page[..line], &page[end..]))
}

/// What the figures were measured on, as a sentence.
fn measured_on(report: &Report) -> String {
    let of = |name: &str| report.environment.get(name).map_or("", String::as_str);
    let server: Vec<_> = of("postgres").split(' ').take(2).collect();
    let mut text = format!(
        "Measured with `make bench`: {}, {} processors, fsync {} (a small commit takes {} ms), \
         medians of {} rounds.",
        server.join(" "),
        of("processors"),
        of("fsync"),
        short(report.commit_ms),
        of("rounds"),
    );
    for reservation in &report.reservations {
        // Writing into a String cannot fail.
        let _ = write!(text, " Mind: {reservation}.");
    }
    text
}

/// Every row.
fn all_rows(report: &Report) -> String {
    let mut text = format!(
        "{}\n\n| | what | ours | baseline | ratio | target | met |\n|---|---|--:|--:|---|---|---|\n",
        measured_on(report)
    );
    for row in &report.rows {
        let what = match &row.note {
            Some(note) => format!("{}; {note}", row.what),
            None => row.what.clone(),
        };
        let baseline = row.baseline.as_ref();
        let cells = [
            row.id.to_owned(),
            what,
            row.figure(&row.ours),
            baseline.map_or_else(String::new, |series| row.figure(series)),
            row.ratio_text(),
            row.target_text(),
            row.verdict().to_owned(),
        ];
        let _ = writeln!(text, "| {} |", cells.join(" | "));
    }
    text
}

/// A line of the README's table: the call, what it is compared with, and rows: those of a name
/// whose description contains a text, and what stands behind their ratio.
type Line = (
    &'static str,
    &'static str,
    &'static [(&'static str, &'static str, &'static str)],
);

const LINES: [Line; 5] = [
    (
        "`inbox_claim` of a sequenced message",
        "the hand-written `INSERT … ON CONFLICT DO NOTHING`, same table",
        &[
            ("P1", "clients: 1", " with 1 client"),
            ("P1", "clients: 4", " with 4"),
        ],
    ),
    (
        "`inbox_claim` of a plain message",
        "the same into one table, which then has to be cleaned up",
        &[("P2", "", "")],
    ),
    (
        "`inbox_claim_batch`, 100 at a time",
        "single claims",
        &[("P3", "", "")],
    ),
    (
        "`inbox_receive`",
        "look up, claim, look up, store and release in five transactions",
        &[
            ("P4", "clients: 1", " with 1 client"),
            ("P4", "clients: 4", " with 4"),
        ],
    ),
    (
        "the Rust client's `process_batch`, 100 messages that each update a row",
        "`process`",
        &[("P9", "", "")],
    ),
];

/// The README's choice.
fn chosen_rows(report: &Report) -> String {
    // The first that fits is the one with the target.
    let find = |id: &str, part: &str| {
        report
            .rows
            .iter()
            .find(|row| row.id == id && row.what.contains(part))
    };
    let mut text = format!(
        "{}\n\n| call | against | ratio |\n|---|---|---|\n",
        measured_on(report)
    );
    for (call, against, parts) in LINES {
        let ratios: Vec<_> = parts
            .iter()
            .filter_map(|(id, part, behind)| {
                let ratio = find(id, part)?.ratio.as_ref()?;
                Some(format!("{}{behind}", short(ratio.value)))
            })
            .collect();
        if !ratios.is_empty() {
            let _ = writeln!(text, "| {call} | {against} | {} |", ratios.join(", "));
        }
    }
    if let (Some(offered), Some(highest)) = (find("P5", "offered"), find("P5", "highest")) {
        let _ = writeln!(text, "\n{}", of_the_orders(offered, highest));
    }
    text
}

/// P5 as a sentence.
fn of_the_orders(offered: &Row, highest: &Row) -> String {
    format!(
        "Claim, update and commit through the Rust client: p95 {} from arrival to commit at 1,400 \
         messages a second, and up to {} the p95 stays within 10 ms: \
         [performance](docs/performance.md).",
        offered.figure(&offered.ours),
        highest.figure(&highest.ours),
    )
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::report::{Series, Target};

    const PAGE: &str =
        "before\n<!-- figures: begin. Only these. -->\nold\nolder\n<!-- figures: end -->\nafter\n";

    #[test]
    fn only_what_stands_between_the_comments_is_replaced() {
        assert_eq!(
            replaced(PAGE, "new\n").unwrap(),
            "before\n<!-- figures: begin. Only these. -->\nnew\n<!-- figures: end -->\nafter\n"
        );
    }

    #[test]
    fn a_page_without_both_comments_is_left_alone() {
        assert!(replaced("before\nafter\n", "new\n").is_err());
        assert!(replaced(&PAGE.replace(END, ""), "new\n").is_err());
        assert!(replaced(&PAGE.repeat(2), "new\n").is_err());
    }

    fn row(id: &'static str, what: &str, ratio: Option<f64>) -> Row {
        Row {
            id,
            what: what.to_owned(),
            unit: "/s",
            ours: Series::median(vec![4711.0]),
            baseline: None,
            ratio: ratio.map(|ratio| Series::median(vec![ratio])),
            target: ratio.map_or(Target::None, |_| Target::RatioAtLeast(2.0)),
            note: None,
            detail: None,
        }
    }

    #[test]
    fn figures_and_picture_get_into_the_documentation() {
        let report = Report {
            rows: vec![
                row("P1", "claim, clients: 1", Some(1.25)),
                row("P1", "claim, clients: 4", Some(3.5)),
                row("P4", "receive, clients: 4", Some(4.5)),
                row("P5", "orders, 1400 offered", None),
                row("P5", "orders, highest rate", None),
            ],
            environment: BTreeMap::from([("postgres", "PostgreSQL 15.1 on a machine".to_owned())]),
            reservations: Vec::new(),
            commit_ms: 0.25,
        };
        let root = tempfile::tempdir().unwrap();
        fs::create_dir_all(root.path().join("docs/images")).unwrap();
        for page in [PERFORMANCE, README] {
            fs::write(root.path().join(page), PAGE).unwrap();
        }
        let svg = root.path().join("new.svg");
        fs::write(&svg, "<svg/>").unwrap();
        update(&report, &svg, root.path()).unwrap();

        let read = |page| fs::read_to_string(root.path().join(page)).unwrap();
        let performance = read(PERFORMANCE);
        assert!(performance.contains("PostgreSQL 15.1, "), "{performance}");
        let line = "| P1 | claim, clients: 1 | 4711 /s |  | 1.25 (1.25 to 1.25) | ≥ 2 | NO |\n";
        assert!(performance.contains(line), "{performance}");
        let readme = read(README);
        assert!(
            readme.contains(" same table | 1.25 with 1 client, 3.50 with 4 |\n"),
            "{readme}"
        );
        // One of its two rows was measured; of the plain claim none.
        assert!(readme.contains(" | 4.50 with 4 |\n"), "{readme}");
        assert!(!readme.contains("a plain message"), "{readme}");
        assert!(readme.contains("up to 4711 /s"), "{readme}");
        assert!(
            readme.ends_with("<!-- figures: end -->\nafter\n"),
            "{readme}"
        );
        assert_eq!(read(PICTURE), "<svg/>");
    }

    #[test]
    fn the_project_s_pages_have_their_comments() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        for page in [PERFORMANCE, README] {
            let text = fs::read_to_string(root.join(page)).unwrap();
            assert!(replaced(&text, "").is_ok(), "{page}");
        }
    }
}
