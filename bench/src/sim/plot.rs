//! The comparison as a picture: latency and throughput against the load, and speculative length and partition over time.

use std::ops::Range;

use plotters::coord::Shift;
use plotters::coord::combinators::BindKeyPoints;
use plotters::coord::ranged1d::{AsRangedCoord, ValueFormatter};
use plotters::drawing::DrawingAreaErrorKind;
use plotters::prelude::*;

use super::{Moment, SimReport, SimRun};
use crate::BenchError;

const WIDTH: u32 = 1200;
const HEIGHT: u32 = 900;
/// The first eight are told apart by most eyes (Okabe and Ito 2008).
const COLOURS: [RGBColor; 10] = [
    RGBColor(0, 114, 178),
    RGBColor(213, 94, 0),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    RGBColor(86, 180, 233),
    RGBColor(230, 159, 0),
    RGBColor(90, 90, 90),
    RGBColor(160, 60, 220),
    RGBColor(110, 80, 40),
    RGBColor(0, 0, 0),
];
const FONT: (&str, i32) = ("monospace", 13);
const LETTER: usize = 8;
const LINE: i32 = 20;

type Paper<'a> = DrawingArea<SVGBackend<'a>, Shift>;
type Drawn<T = ()> = Result<T, DrawingAreaErrorKind<std::io::Error>>;

/// One line of a panel.
struct Series {
    name: String,
    colour: RGBColor,
    points: Vec<(f64, f64)>,
}

impl SimReport {
    /// The picture, as an SVG file.
    ///
    /// # Errors
    /// It cannot be drawn.
    pub fn svg(&self) -> Result<String, BenchError> {
        let mut svg = String::new();
        self.draw(&SVGBackend::with_string(&mut svg, (WIDTH, HEIGHT)).into_drawing_area())
            .map_err(|error| BenchError::Plot(error.to_string()))?;
        Ok(svg)
    }

    fn draw(&self, paper: &Paper<'_>) -> Drawn {
        paper.fill(&WHITE)?;
        let text = |at, text: &str, colour: &RGBColor| {
            paper.draw_text(text, &TextStyle::from(FONT).color(colour), at)
        };
        let mut below = 12;
        for line in lines(&self.title, WIDTH as usize / LETTER - 5) {
            text((20, below), &line, &BLACK)?;
            below += LINE;
        }
        let mut at = 20;
        for series in self.series(|_| Vec::new()) {
            text((at, below), &series.name, &series.colour)?;
            at += ((series.name.len() + 3) * LETTER) as i32;
        }
        let panels = paper.margin(below + LINE, 10, 10, 10).split_evenly((2, 2));
        let [first, second, third, fourth] = panels.as_slice() else { return Ok(()) };
        if self.levels().len() > 1 {
            let load = if self.backlog { "batch" } else { "requests per second" };
            let against = |paper: &Paper<'_>, title: &str, figure: fn(&SimRun) -> f64| {
                let series = self.against_load(figure);
                let [x, y] = ranges(&series, true);
                let log =
                    |range: Range<f64>| range.clone().log_scale().with_key_points(round_numbers(&range));
                panel(paper, [title, load], (log(x), log(y)), &series)
            };
            against(first, "mean latency, s", |run| run.figures.latency_mean_s)?;
            against(second, "tokens per second", |run| run.figures.tokens_per_s)?;
        } else {
            self.over_time(first, "sequences running and waiting", |moment| moment.running + moment.waiting)?;
            self.over_time(second, "tokens per second", |moment| moment.tokens_per_s)?;
        }
        // Of several loads the heaviest is shown over time.
        self.over_time(third, "k over time", |moment| moment.k)?;
        self.over_time(fourth, "partition over time", |moment| moment.partition as f64)?;
        paper.present()
    }

    fn levels(&self) -> Vec<f64> {
        let mut levels: Vec<f64> = self.runs.iter().map(|run| run.level).collect();
        levels.sort_by(f64::total_cmp);
        levels.dedup();
        levels
    }

    fn contenders(&self) -> Vec<String> {
        let mut names = Vec::new();
        for name in self.runs.iter().map(|run| run.contender.to_string()) {
            if !names.contains(&name) {
                names.push(name);
            }
        }
        names
    }

    fn series(&self, points: impl Fn(&str) -> Vec<(f64, f64)>) -> Vec<Series> {
        let colours = COLOURS.iter().cycle();
        let named = self.contenders().into_iter().zip(colours);
        named.map(|(name, &colour)| Series { points: points(&name), name, colour }).collect()
    }

    /// Those that a logarithm is known of.
    fn against_load(&self, figure: impl Fn(&SimRun) -> f64) -> Vec<Series> {
        self.series(|name| {
            let runs = self.runs.iter().filter(|run| run.contender.to_string() == name);
            let points = runs.map(|run| (run.level, figure(run)));
            points.filter(|(x, y)| *x > 0.0 && *y > 0.0 && y.is_finite()).collect()
        })
    }

    fn over_time(&self, paper: &Paper<'_>, title: &str, figure: impl Fn(&Moment) -> f64) -> Drawn {
        let heaviest = self.levels().last().copied().unwrap_or(0.0);
        let series = self.series(|name| {
            let runs =
                self.runs.iter().filter(|run| run.level == heaviest && run.contender.to_string() == name);
            let moments = runs.flat_map(|run| &run.figures.timeline);
            moments.map(|moment| (moment.until_s, figure(moment))).collect()
        });
        let [x, y] = ranges(&series, false);
        panel(paper, [title, "s"], (x, y), &series)
    }
}

/// One panel: its title, what its columns are, its axes and lines.
fn panel<X, Y>(paper: &Paper<'_>, [title, of]: [&str; 2], (x, y): (X, Y), series: &[Series]) -> Drawn
where
    X: AsRangedCoord<Value = f64>,
    Y: AsRangedCoord<Value = f64>,
    X::CoordDescType: ValueFormatter<f64>,
    Y::CoordDescType: ValueFormatter<f64>,
{
    let mut chart = ChartBuilder::on(paper)
        .caption(title, FONT)
        .margin(10)
        .x_label_area_size(40)
        .y_label_area_size(60)
        .build_cartesian_2d(x, y)?;
    let mut mesh = chart.configure_mesh();
    let label = |value: &f64| number(*value);
    mesh.x_desc(of).axis_desc_style(FONT).label_style(FONT).light_line_style(TRANSPARENT);
    mesh.x_label_formatter(&label).y_label_formatter(&label).draw()?;
    for line in series {
        chart.draw_series(LineSeries::new(line.points.iter().copied(), line.colour.stroke_width(2)))?;
    }
    Ok(())
}

/// From the least to the largest of all columns and of all values; from 0, where the axes are not logarithmic.
fn ranges(series: &[Series], log: bool) -> [Range<f64>; 2] {
    let range = |of: fn(&(f64, f64)) -> f64| {
        let values = series.iter().flat_map(|series| series.points.iter().map(of));
        let values = values.filter(|value| value.is_finite());
        let found = values.fold(None, |range: Option<(f64, f64)>, value| {
            Some(range.map_or((value, value), |(from, to)| (from.min(value), to.max(value))))
        });
        match (found, log) {
            (Some((from, to)), true) => from * 0.8..to * 1.25,
            (Some((_, to)), false) if to > 0.0 => 0.0..to * 1.05,
            (None, true) => 1.0..10.0,
            (_, false) => 0.0..1.0,
        }
    };
    [range(|point| point.0), range(|point| point.1)]
}

/// 1, 2 and 5 times powers of ten.
fn round_numbers(range: &Range<f64>) -> Vec<f64> {
    let decades = range.start.log10().floor() as i32..=range.end.log10().ceil() as i32;
    let numbers = decades.flat_map(|decade| [1.0, 2.0, 5.0].map(|digit| digit * 10f64.powi(decade)));
    numbers.filter(|number| range.contains(number)).collect()
}

/// The words of a text, in lines of so many letters at most.
fn lines(text: &str, most: usize) -> Vec<String> {
    let mut lines = vec![String::new()];
    for word in text.split(' ') {
        match lines.last_mut() {
            Some(line) if line.is_empty() => line.push_str(word),
            Some(line) if line.len() + 1 + word.len() <= most => *line += &format!(" {word}"),
            _ => lines.push(word.to_owned()),
        }
    }
    lines
}

/// A number in few letters.
fn number(value: f64) -> String {
    let digits = if value == 0.0 || value.abs() >= 10.0 {
        0
    } else {
        (1.0 - value.abs().log10().floor()).min(6.0) as usize
    };
    let text = format!("{value:.digits$}");
    if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.').to_owned() } else { text }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_round_and_short() {
        assert_eq!(round_numbers(&(0.3..30.0)), [0.5, 1.0, 2.0, 5.0, 10.0, 20.0]);
        let labels: Vec<String> = [0.0, 0.25, 2.0, 2.5, 1200.0].map(number).into();
        assert_eq!(labels, ["0", "0.25", "2", "2.5", "1200"]);
    }

    #[test]
    fn long_titles_are_broken_between_words() {
        assert_eq!(lines("one two three", 7), ["one two", "three"]);
        assert_eq!(lines("one", 2), ["one"]);
        let report = SimReport { title: "word ".repeat(50), backlog: false, runs: Vec::new() };
        let longest = report.svg().unwrap().lines().map(|line| line.matches("word").count()).max();
        assert!(longest.is_some_and(|words| (20..30).contains(&words)), "{longest:?}");
    }

    #[test]
    fn a_report_without_runs_is_a_picture_too() {
        let report = SimReport { title: "nothing".to_owned(), backlog: false, runs: Vec::new() };
        let svg = report.svg().unwrap();
        assert!(svg.starts_with("<svg") && svg.contains("nothing") && svg.ends_with("</svg>\n"), "{svg}");
    }
}
