//! The picture of P5: latency over offered rate.

use std::fs;
use std::path::Path;

use anyhow::{Context, anyhow};
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use crate::rows::Point;

/// In pixels, where a browser does not scale it.
const SIZE: (u32, u32) = (880, 520);

/// Any font that every browser has.
const FONT: &str = "sans-serif";

const TEXT: RGBColor = RGBColor(51, 51, 51);
const GRID: RGBColor = RGBColor(225, 225, 225);
const FINE_GRID: RGBColor = RGBColor(243, 243, 243);
const TARGET: RGBColor = RGBColor(120, 120, 120);

/// A latency that is drawn: its name, its colour and where it stands in a point. The colours can
/// be told apart without red and green, too.
type Line = (&'static str, RGBColor, fn(&Point) -> f64);

const LINES: [Line; 3] = [
    ("p99", RGBColor(204, 85, 0), |point| point.p99),
    ("p95", RGBColor(0, 90, 160), |point| point.p95),
    ("p50", RGBColor(0, 150, 130), |point| point.p50),
];

/// What is drawn.
#[derive(Debug)]
pub(crate) struct Curve<'a> {
    /// By rate.
    pub(crate) points: &'a [Point],
    /// A rate, and the p95 in milliseconds that it should have.
    pub(crate) target: (f64, f64),
    /// The highest rate that is sustained.
    pub(crate) highest: f64,
    pub(crate) connections: u32,
}

/// Draws it as SVG into a file.
pub(crate) fn draw(path: &Path, curve: &Curve<'_>) -> anyhow::Result<()> {
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder).with_context(|| format!("making {}", folder.display()))?;
    }
    let mut svg = String::new();
    // Its error type holds what cannot be sent between threads.
    draw_into(&mut svg, curve).map_err(|error| anyhow!("drawing {}: {error}", path.display()))?;
    fs::write(path, svg).with_context(|| format!("writing {}", path.display()))
}

fn draw_into(svg: &mut String, curve: &Curve<'_>) -> Result<(), Box<dyn std::error::Error>> {
    let (target_rate, target_ms) = curve.target;
    let end = curve
        .points
        .iter()
        .map(|point| point.rate)
        .fold(target_rate, f64::max)
        * 1.05;
    let area = SVGBackend::with_string(svg, SIZE).into_drawing_area();
    area.fill(&WHITE)?;
    let title = format!(
        "Order workload: latency over offered rate, {} connections",
        curve.connections
    );
    let mut chart = ChartBuilder::on(&area)
        .caption(title, (FONT, 18).into_font().color(&TEXT))
        .margin(14)
        .x_label_area_size(44)
        .y_label_area_size(64)
        .build_cartesian_2d(0.0..end, heights(curve).log_scale())?;
    let label = (FONT, 14).into_font().color(&TEXT);
    chart
        .configure_mesh()
        .x_desc("messages a second, offered")
        .y_desc("milliseconds from arrival to commit")
        .x_label_formatter(&|rate| format!("{rate:.0}"))
        .y_label_formatter(&|ms| format!("{ms}"))
        .bold_line_style(GRID)
        .light_line_style(FINE_GRID)
        .axis_style(TEXT)
        .label_style(label.clone())
        .axis_desc_style(label.clone())
        .draw()?;

    let dashed = TARGET.stroke_width(1);
    let (bottom, top) = (heights(curve).start, heights(curve).end);
    for ends in [
        [(0.0, target_ms), (end, target_ms)],
        [(target_rate, bottom), (target_rate, top)],
    ] {
        chart.draw_series(DashedLineSeries::new(ends, 5, 4, dashed))?;
    }
    let side = if target_rate < end / 2.0 {
        HPos::Left
    } else {
        HPos::Right
    };
    let note = (FONT, 13).into_font().color(&TARGET);
    chart.draw_series([
        Text::new(
            format!("target: p95 within {target_ms} ms"),
            (end * 0.01, target_ms * 1.12),
            note.clone().pos(Pos::new(HPos::Left, VPos::Bottom)),
        ),
        Text::new(
            format!(" at {target_rate}/s "),
            (target_rate, top * 0.8),
            note.pos(Pos::new(side, VPos::Top)),
        ),
    ])?;
    for (name, colour, latency) in LINES {
        let points: Vec<_> = curve
            .points
            .iter()
            .map(|point| (point.rate, latency(point)))
            .collect();
        chart
            .draw_series(LineSeries::new(points.clone(), colour.stroke_width(2)))?
            .label(name)
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 18, y)], colour.stroke_width(2)));
        chart.draw_series(
            points
                .into_iter()
                .map(|point| Circle::new(point, 3, colour.filled())),
        )?;
    }
    chart
        .draw_series(
            [(curve.highest, bottom)]
                .map(|foot| TriangleMarker::new(foot, 7, ShapeStyle::from(&TEXT).filled())),
        )?
        .label(format!("highest sustained: {:.0}/s", curve.highest))
        .legend(|(x, y)| TriangleMarker::new((x + 9, y), 6, ShapeStyle::from(&TEXT).filled()));
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::UpperLeft)
        .margin(12)
        .background_style(WHITE.mix(0.9))
        .border_style(GRID)
        .label_font(label)
        .draw()?;
    area.present()?;
    Ok(())
}

/// Whole powers of ten around everything that is drawn, in milliseconds.
fn heights(curve: &Curve<'_>) -> std::ops::Range<f64> {
    let mut smallest = curve.target.1;
    let mut largest = curve.target.1;
    for point in curve.points {
        smallest = smallest.min(point.p50);
        largest = largest.max(point.p99);
    }
    let power = |exponent: f64| 10_f64.powf(exponent);
    power(smallest.max(0.001).log10().floor())..power((largest * 1.01).log10().ceil())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_picture_shows_every_line_the_target_and_the_units() {
        let point = |rate, p50| Point {
            rate,
            p50,
            p95: p50 * 3.0,
            p99: p50 * 9.0,
            max: p50 * 20.0,
            completed: 1.0,
        };
        let curve = Curve {
            points: &[point(400.0, 0.8), point(1400.0, 1.1), point(4000.0, 90.0)],
            target: (1400.0, 10.0),
            highest: 3200.0,
            connections: 8,
        };
        assert_eq!(heights(&curve), 0.1..1000.0);
        let mut svg = String::new();
        draw_into(&mut svg, &curve).unwrap();
        for text in [
            "p50",
            "p95",
            "p99",
            "messages a second, offered",
            "milliseconds from arrival to commit",
            "target: p95 within 10 ms",
            "highest sustained: 3200/s",
        ] {
            assert!(svg.contains(text), "no {text:?} in {svg}");
        }
    }
}
