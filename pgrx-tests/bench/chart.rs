//! Draws what was measured, as SVG files: bars beside each other, lines over time, how many waits were shorter.
//! Not responsible for what is drawn: `charts` decides that from the results.
//!
//! Invariant: every axis begins at zero, so that lengths are to each other as what they stand for.

use std::ops::Range;
use std::path::Path;

use plotters::coord::Shift;
use plotters::prelude::*;

use crate::error::Result;

/// In pixels.
const HEIGHT: u32 = 320;
const WIDTH: u32 = 640;
const BAR: u32 = 34;
/// Ours first; told apart by lightness, too.
const COLOURS: [RGBColor; 4] =
    [RGBColor(9, 105, 218), RGBColor(207, 34, 46), RGBColor(110, 119, 129), RGBColor(154, 103, 0)];
const INK: RGBColor = RGBColor(31, 35, 40);
const PALE: RGBColor = RGBColor(208, 215, 222);
const FONT: &str = "sans-serif";

/// A line, or a bar, with its name.
pub struct Series {
    pub name: &'static str,
    pub is_ours: bool,
    pub points: Vec<(f64, f64)>,
}

/// An axis: what it shows, how far it goes, and how a number on it is written.
pub struct Axis {
    pub title: &'static str,
    pub end: f64,
    pub digits: usize,
}

impl Axis {
    /// An axis on which all of these find room.
    pub fn for_all(title: &'static str, values: impl Iterator<Item = f64>) -> Self {
        let largest = values.fold(0.0, f64::max);
        let end = if largest > 0.0 { largest * 1.08 } else { 1.0 };
        let digits = if end >= 10.0 { 0 } else { (1.0 - end.log10().floor()).clamp(0.0, 6.0) as usize };
        Self { title, end, digits }
    }

    fn range(&self) -> Range<f64> {
        0.0..self.end
    }
}

/// Returns a number with its thousands set apart.
fn grouped(value: f64, digits: usize) -> String {
    let text = format!("{value:.digits$}");
    let (whole, rest) = text.split_at(text.find('.').unwrap_or(text.len()));
    let mut grouped = String::new();
    for (n, digit) in whole.chars().enumerate() {
        if n > 0 && (whole.len() - n) % 3 == 0 {
            grouped.push(',');
        }
        grouped.push(digit);
    }
    grouped + rest
}

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;

/// A white area with a title; the rest of it is returned.
fn begin<'a>(path: &'a Path, title: &str, height: u32) -> Result<Area<'a>> {
    let area = SVGBackend::new(path, (WIDTH, height)).into_drawing_area();
    area.fill(&WHITE)?;
    Ok(area.titled(title, (FONT, 16).into_font().color(&INK))?)
}

/// Draws a bar for each series, which has one point, with its number behind it.
pub fn bars(path: &Path, title: &str, axis: &Axis, series: &[Series]) -> Result<()> {
    let area = begin(path, title, 90 + BAR * series.len() as u32)?;
    let count = series.len() as f64;
    let mut chart = ChartBuilder::on(&area)
        .margin(10)
        .margin_right(90)
        .x_label_area_size(38)
        .y_label_area_size(150)
        .build_cartesian_2d(axis.range(), 0.0..count)?;
    chart
        .configure_mesh()
        .disable_y_mesh()
        .disable_y_axis()
        .light_line_style(TRANSPARENT)
        .bold_line_style(PALE)
        .axis_style(PALE)
        .x_labels(6)
        .x_desc(axis.title)
        .x_label_formatter(&|value| grouped(*value, axis.digits))
        .label_style((FONT, 12).into_font().color(&INK))
        .draw()?;
    for (n, series) in series.iter().enumerate() {
        let (value, middle) = (series.points.first().map_or(0.0, |point| point.1), count - n as f64 - 0.5);
        let colour = if series.is_ours { COLOURS[0] } else { COLOURS[2] };
        chart.draw_series([Rectangle::new([(0.0, middle - 0.32), (value, middle + 0.32)], colour.filled())])?;
        let (x, y) = chart.backend_coord(&(value, middle));
        let name_x = chart.backend_coord(&(0.0, middle)).0;
        let write = |text: String, at: (i32, i32), side| -> Result<()> {
            let style = (FONT, 13).into_font().color(&INK);
            let position = plotters::style::text_anchor::Pos::new(side, plotters::style::text_anchor::VPos::Center);
            let base = area.get_base_pixel();
            Ok(area.draw_text(&text, &style.pos(position), (at.0 - base.0, at.1 - base.1))?)
        };
        write(grouped(value, axis.digits), (x + 6, y), plotters::style::text_anchor::HPos::Left)?;
        write(series.name.to_owned(), (name_x - 8, y), plotters::style::text_anchor::HPos::Right)?;
    }
    Ok(area.present()?)
}

/// Draws a line for each series.
pub fn lines(path: &Path, title: &str, (x, y): (&Axis, &Axis), series: &[Series]) -> Result<()> {
    let area = begin(path, title, HEIGHT)?;
    let mut chart = ChartBuilder::on(&area)
        .margin(10)
        .margin_right(20)
        .x_label_area_size(38)
        .y_label_area_size(66)
        .build_cartesian_2d(x.range(), y.range())?;
    chart
        .configure_mesh()
        .disable_x_mesh()
        .light_line_style(TRANSPARENT)
        .bold_line_style(PALE)
        .axis_style(PALE)
        .x_desc(x.title)
        .y_desc(y.title)
        .x_labels(8)
        .y_labels(6)
        .x_label_formatter(&|value| grouped(*value, x.digits))
        .y_label_formatter(&|value| grouped(*value, y.digits))
        .label_style((FONT, 12).into_font().color(&INK))
        .draw()?;
    for (series, colour) in series.iter().zip(COLOURS) {
        chart
            .draw_series(LineSeries::new(series.points.iter().copied(), colour.stroke_width(2)))?
            .label(series.name)
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 18, y)], colour.stroke_width(2)));
    }
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::LowerRight)
        .margin(12)
        .background_style(WHITE.mix(0.85))
        .border_style(PALE)
        .label_font((FONT, 13).into_font().color(&INK))
        .draw()?;
    Ok(area.present()?)
}

/// Returns how large a share of the values is at most so large: in hundredths, at each value.
pub fn shares(values: &[f64]) -> Vec<(f64, f64)> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let hundred = 100.0 / sorted.len() as f64;
    // A thousand points are more than can be seen.
    let step = sorted.len().div_ceil(1000);
    let last = sorted.len().saturating_sub(1);
    let shown = |n: &usize| n.is_multiple_of(step) || *n == last;
    (0..sorted.len()).filter(shown).map(|n| (sorted[n], (n + 1) as f64 * hundred)).collect()
}
