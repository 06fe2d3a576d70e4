//! Draws results as SVG files: bars, or lines over time or waiting time. Not responsible for which results are drawn
//! (`charts`).
//!
//! Invariant: every axis begins at zero, so that lengths are proportional to figures.

use std::path::Path;

use plotters::coord::Shift;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use crate::error::Result;

/// In pixels.
const HEIGHT: u32 = 320;
const WIDTH: u32 = 640;
const BAR: u32 = 34;
/// Ours comes first. The colours also differ in lightness.
const COLOURS: [RGBColor; 4] =
    [RGBColor(9, 105, 218), RGBColor(207, 34, 46), RGBColor(110, 119, 129), RGBColor(154, 103, 0)];
const INK: RGBColor = RGBColor(31, 35, 40);
const PALE: RGBColor = RGBColor(208, 215, 222);
const FONT: &str = "sans-serif";

/// Returns the end of an axis with room for all these values, and the decimals of its numbers.
fn axis(values: impl Iterator<Item = f64>) -> (f64, usize) {
    let largest = values.fold(0.0, f64::max);
    let end = if largest > 0.0 { largest * 1.08 } else { 1.0 };
    (end, if end >= 10.0 { 0 } else { (1.0 - end.log10().floor()).clamp(0.0, 6.0) as usize })
}

/// Returns a number with separators between the thousands.
fn grouped(value: f64, digits: usize) -> String {
    let mut text = format!("{value:.digits$}");
    let mut at = text.find('.').unwrap_or(text.len());
    while at > 3 {
        at -= 3;
        text.insert(at, ',');
    }
    text
}

/// Draws a white area with a title. Returns the area below the title.
fn begin<'a>(path: &'a Path, title: &str, height: u32) -> Result<DrawingArea<SVGBackend<'a>, Shift>> {
    let area = SVGBackend::new(path, (WIDTH, height)).into_drawing_area();
    area.fill(&WHITE)?;
    Ok(area.titled(title, (FONT, 16).into_font().color(&INK))?)
}

/// Draws bars, each with its name before it and its figure behind it. Ours have a colour of their own.
pub fn bars(path: &Path, title: &str, unit: &str, bars: &[(&str, f64)]) -> Result<()> {
    let area = begin(path, title, 90 + BAR * bars.len() as u32)?;
    let (end, digits) = axis(bars.iter().map(|bar| bar.1));
    let count = bars.len() as f64;
    let mut chart = ChartBuilder::on(&area)
        .margin(10)
        .margin_right(90)
        .x_label_area_size(38)
        .y_label_area_size(150)
        .build_cartesian_2d(0.0..end, 0.0..count)?;
    chart
        .configure_mesh()
        .disable_y_mesh()
        .disable_y_axis()
        .light_line_style(TRANSPARENT)
        .bold_line_style(PALE)
        .axis_style(PALE)
        .x_labels(6)
        .x_desc(unit)
        .x_label_formatter(&|value| grouped(*value, digits))
        .label_style((FONT, 12).into_font().color(&INK))
        .draw()?;
    let style = (FONT, 13).into_font().color(&INK);
    for (n, &(name, value)) in bars.iter().enumerate() {
        let middle = count - n as f64 - 0.5;
        let colour = if name.starts_with("pg_queue") { COLOURS[0] } else { COLOURS[2] };
        chart.draw_series([Rectangle::new([(0.0, middle - 0.32), (value, middle + 0.32)], colour.filled())])?;
        let number = grouped(value, digits);
        for (text, x, away, side) in [(number, value, 6, HPos::Left), (name.to_owned(), 0.0, -8, HPos::Right)] {
            let style = style.pos(Pos::new(side, VPos::Center));
            chart.draw_series([EmptyElement::at((x, middle)) + Text::new(text, (away, 0), style)])?;
        }
    }
    Ok(area.present()?)
}

/// Draws these lines, each with its name. `axes`: the titles of the axes.
pub fn lines(path: &Path, title: &str, axes: [&str; 2], lines: &[(&str, Vec<(f64, f64)>)]) -> Result<()> {
    let area = begin(path, title, HEIGHT)?;
    let points = || lines.iter().flat_map(|line| &line.1);
    let (x, y) = (axis(points().map(|point| point.0)), axis(points().map(|point| point.1)));
    let mut chart = ChartBuilder::on(&area)
        .margin(10)
        .margin_right(20)
        .x_label_area_size(38)
        .y_label_area_size(66)
        .build_cartesian_2d(0.0..x.0, 0.0..y.0)?;
    chart
        .configure_mesh()
        .disable_x_mesh()
        .light_line_style(TRANSPARENT)
        .bold_line_style(PALE)
        .axis_style(PALE)
        .x_desc(axes[0])
        .y_desc(axes[1])
        .x_labels(8)
        .y_labels(6)
        .x_label_formatter(&|value| grouped(*value, x.1))
        .y_label_formatter(&|value| grouped(*value, y.1))
        .label_style((FONT, 12).into_font().color(&INK))
        .draw()?;
    for ((name, points), colour) in lines.iter().zip(COLOURS) {
        chart
            .draw_series(LineSeries::new(points.iter().copied(), colour.stroke_width(2)))?
            .label(*name)
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
