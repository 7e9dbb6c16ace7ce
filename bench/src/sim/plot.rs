//! The comparison as a picture: latency and throughput against the load, and speculative length and partition over time.

use super::{Moment, SimReport, SimRun};
use crate::BenchError;
use crate::canvas::{Canvas, Colour, LETTER, round_step};

const WIDTH: usize = 1200;
const HEIGHT: usize = 900;
const BLACK: Colour = [0; 3];
const GREY: Colour = [215; 3];
/// Told apart by most eyes (Okabe and Ito 2008).
const COLOURS: [Colour; 8] = [
    [0, 114, 178],
    [213, 94, 0],
    [0, 158, 115],
    [204, 121, 167],
    [86, 180, 233],
    [230, 159, 0],
    [90, 90, 90],
    [160, 60, 220],
];

/// One line of a panel.
struct Series {
    name: String,
    colour: Colour,
    points: Vec<(f64, f64)>,
}

/// One panel: where it is and what its axes say.
struct Panel<'a> {
    corner: (f64, f64),
    title: &'a str,
    x: &'a str,
    log_y: bool,
    log_x: bool,
}

impl SimReport {
    /// The picture, as a PNG file.
    ///
    /// # Errors
    /// The encoder's.
    pub fn png(&self) -> Result<Vec<u8>, BenchError> {
        let mut canvas = Canvas::new(WIDTH, HEIGHT);
        canvas.text((20.0, 12.0), &self.title, BLACK);
        let mut at = 20.0;
        for series in self.series(|_| Vec::new()) {
            canvas.text((at, 28.0), &series.name, series.colour);
            at += ((series.name.len() + 3) * LETTER) as f64;
        }
        let load = if self.backlog { "batch" } else { "requests per second" };
        let (left, right, top, bottom) = (70.0, 670.0, 60.0, 500.0);
        let panel = |corner, title, x, log_x, log_y| Panel { corner, title, x, log_y, log_x };
        let several = self.levels().len() > 1;
        if several {
            let against = |figure: fn(&SimRun) -> f64| self.against_load(figure);
            panel((left, top), "mean latency, s", load, true, true)
                .draw(&mut canvas, &against(|run| run.figures.latency_mean_s));
            panel((right, top), "tokens per second", load, true, true)
                .draw(&mut canvas, &against(|run| run.figures.tokens_per_s));
        } else {
            panel((left, top), "sequences running and waiting", "s", false, false)
                .draw(&mut canvas, &self.over_time(|moment| moment.running + moment.waiting));
            panel((right, top), "tokens per second", "s", false, false)
                .draw(&mut canvas, &self.over_time(|moment| moment.tokens_per_s));
        }
        // Of several loads the heaviest is shown over time.
        panel((left, bottom), "k over time", "s", false, false)
            .draw(&mut canvas, &self.over_time(|moment| moment.k));
        panel((right, bottom), "partition over time", "s", false, false)
            .draw(&mut canvas, &self.over_time(|moment| moment.partition as f64));
        canvas.png()
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

    fn against_load(&self, figure: impl Fn(&SimRun) -> f64) -> Vec<Series> {
        self.series(|name| {
            let runs = self.runs.iter().filter(|run| run.contender.to_string() == name);
            runs.map(|run| (run.level, figure(run))).collect()
        })
    }

    fn over_time(&self, figure: impl Fn(&Moment) -> f64) -> Vec<Series> {
        let heaviest = self.levels().last().copied().unwrap_or(0.0);
        self.series(|name| {
            let runs =
                self.runs.iter().filter(|run| run.level == heaviest && run.contender.to_string() == name);
            runs.flat_map(|run| &run.figures.timeline)
                .map(|moment| (moment.until_s, figure(moment)))
                .collect()
        })
    }
}

const PLOT_WIDTH: f64 = 500.0;
const PLOT_HEIGHT: f64 = 330.0;

impl Panel<'_> {
    fn draw(&self, canvas: &mut Canvas, series: &[Series]) {
        let all = || series.iter().flat_map(|series| &series.points).copied();
        let x = Axis::over(all().map(|point| point.0), self.log_x);
        let y = Axis::over(all().map(|point| point.1), self.log_y);
        let (left, top) = self.corner;
        let place = |(px, py): (f64, f64)| {
            (left + x.share(px) * PLOT_WIDTH, top + PLOT_HEIGHT - y.share(py) * PLOT_HEIGHT)
        };
        for tick in y.ticks() {
            let (_, at) = place((x.from, tick));
            canvas.line((left, at), (left + PLOT_WIDTH, at), 1, GREY);
            let label = number(tick);
            canvas.text((left - 6.0 - (label.len() * LETTER) as f64, at - 4.0), &label, BLACK);
        }
        for tick in x.ticks() {
            let (at, _) = place((tick, y.from));
            canvas.line((at, top), (at, top + PLOT_HEIGHT), 1, GREY);
            let label = number(tick);
            canvas.text((at - (label.len() * LETTER / 2) as f64, top + PLOT_HEIGHT + 6.0), &label, BLACK);
        }
        canvas.line((left, top), (left, top + PLOT_HEIGHT), 1, BLACK);
        canvas.line((left, top + PLOT_HEIGHT), (left + PLOT_WIDTH, top + PLOT_HEIGHT), 1, BLACK);
        canvas.text((left, top - 16.0), self.title, BLACK);
        let end = left + PLOT_WIDTH - (self.x.len() * LETTER) as f64;
        canvas.text((end, top + PLOT_HEIGHT + 22.0), self.x, BLACK);
        for line in series {
            for ends in line.points.windows(2) {
                canvas.line(place(ends[0]), place(ends[1]), 2, line.colour);
            }
        }
    }
}

/// A range, linear or logarithmic.
struct Axis {
    from: f64,
    to: f64,
    log: bool,
}

impl Axis {
    fn over(values: impl Iterator<Item = f64>, log: bool) -> Axis {
        let (mut from, mut to) = (f64::INFINITY, f64::NEG_INFINITY);
        for value in values.filter(|value| value.is_finite() && (!log || *value > 0.0)) {
            from = from.min(value);
            to = to.max(value);
        }
        if from > to {
            (from, to) = (if log { 1.0 } else { 0.0 }, 10.0);
        }
        if log {
            Axis { from: from * 0.8, to: to * 1.25, log }
        } else {
            Axis { from: 0.0, to: if to > 0.0 { to * 1.05 } else { 1.0 }, log }
        }
    }

    /// Where a value is: 0 at the beginning, 1 at the end.
    fn share(&self, value: f64) -> f64 {
        if self.log {
            (value.max(self.from) / self.from).ln() / (self.to / self.from).ln()
        } else {
            (value - self.from) / (self.to - self.from)
        }
    }

    /// Round numbers on it.
    fn ticks(&self) -> Vec<f64> {
        if self.log {
            let decades = self.from.log10().floor() as i32..=self.to.log10().ceil() as i32;
            let ticks = decades.flat_map(|decade| [1.0, 2.0, 5.0].map(|digit| digit * 10f64.powi(decade)));
            return ticks.filter(|tick| (self.from..=self.to).contains(tick)).collect();
        }
        let step = round_step((self.to - self.from) / 6.0);
        let last = ((self.to - self.from) / step) as usize;
        (0..=last).map(|i| self.from + step * i as f64).collect()
    }
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
    fn ticks_are_round_and_within() {
        let linear = Axis { from: 0.0, to: 730.0, log: false };
        assert_eq!(linear.ticks(), [0.0, 200.0, 400.0, 600.0]);
        let log = Axis { from: 0.3, to: 30.0, log: true };
        assert_eq!(log.ticks().len(), 6);
        assert!((log.share(3.0) - 0.5).abs() < 1e-9);
        let labels: Vec<String> = [0.0, 0.25, 2.0, 2.5, 1200.0].map(number).into();
        assert_eq!(labels, ["0", "0.25", "2", "2.5", "1200"]);
    }

    #[test]
    fn a_report_without_runs_is_a_picture_too() {
        let report = SimReport { title: "nothing".to_owned(), backlog: false, runs: Vec::new() };
        assert!(report.png().unwrap().len() > 100);
    }
}
