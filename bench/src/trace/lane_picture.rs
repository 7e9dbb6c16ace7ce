//! A stretch of a record as a picture: lanes as rows over time, passes as boxes, their chunks as cells inside.

use std::collections::BTreeMap;
use std::ops::Range;
use std::time::Duration;

use faser_engine::LaneKind;
use faser_engine::record::{Mark, PassRecord, Record};

use super::cells::{Cell, draft_cells, verify_cells};
use super::fate::Fates;
use crate::canvas::{Area, Canvas, Colour, LETTER, round_step};

const WIDTH: usize = 1600;
const HEIGHT: usize = 590;
/// The columns that time has.
const LEFT: f64 = 130.0;
const RIGHT: f64 = 1580.0;
/// The rows of the picture, from their upper edges.
const VERIFY: Band = Band { top: 150.0, height: 150.0 };
const BOTH: Band = Band { top: 308.0, height: 14.0 };
const DRAFT: Band = Band { top: 330.0, height: 110.0 };
const NOTES: Band = Band { top: 466.0, height: 16.0 };
/// Lines of notes under the draft lane.
const NOTE_LINES: usize = 3;
const AXIS: f64 = 530.0;

/// Boxes below this width are a mere colour.
const NARROW: f64 = 4.0;

const BLACK: Colour = Colour::BLACK;
const GREY: Colour = Colour(0xd7_d7d7);
const DARK: Colour = Colour(0x5a_5a5a);
const PASS: Colour = Colour(0xd6_e4f2);
const TOGETHER: Colour = Colour(0xff_f7d6);
const BOTH_AT_WORK: Colour = Colour(0xe6_9f00);
const CANCEL: Colour = Colour(0xbe_003c);

/// A horizontal part of the picture.
struct Band {
    top: f64,
    height: f64,
}

/// Where a picture of this length shows the most: around the rejection that cancelled the most proposals drafted ahead, or from
/// the first verify pass on if there is none.
pub fn telling_window(record: &Record, length: Duration) -> Range<Duration> {
    let mut best: Option<(usize, Duration)> = None;
    for (at, mark) in &record.marks {
        if let Mark::EpochMoved { moved, .. } = mark
            && moved.cancelled()
            && best.is_none_or(|(unsent, _)| moved.unsent > unsent)
        {
            best = Some((moved.unsent, *at));
        }
    }
    let first = || record.passes.iter().find(|pass| pass.lane == LaneKind::Verify).map(|pass| pass.began);
    let start = match best {
        Some((_, at)) => at.saturating_sub(length * 11 / 20),
        None => first().unwrap_or(record.from),
    };
    start..start + length
}

/// The stretch `window` of a record as an SVG file; `title` says what was recorded.
pub fn picture(record: &Record, window: Range<Duration>, title: &str) -> String {
    let shows = |pass: &&PassRecord| pass.ended > window.start && pass.began < window.end;
    let passes: Vec<_> = record.passes.iter().filter(shows).collect();
    let canvas = Canvas::new(WIDTH, HEIGHT);
    let mut scene = Scene { canvas, record, fates: Fates::of(record), window: window.clone() };
    scene.head(title);
    scene.overlap(&passes);
    passes.iter().for_each(|pass| scene.pass(pass));
    scene.captions(&passes);
    scene.cancellations();
    scene.axis();
    scene.canvas.svg()
}

struct Scene<'a> {
    canvas: Canvas,
    record: &'a Record,
    fates: Fates<'a>,
    window: Range<Duration>,
}

impl Scene<'_> {
    /// The column of a time, within the picture.
    fn x(&self, at: Duration) -> f64 {
        let Range { start, end } = self.window;
        let share = at.saturating_sub(start).as_secs_f64() / (end - start).as_secs_f64();
        LEFT + share.clamp(0.0, 1.0) * (RIGHT - LEFT)
    }

    fn area(&self, between: (Duration, Duration), band: &Band) -> Area {
        let (left, right) = (self.x(between.0), self.x(between.1));
        Area { left, top: band.top, width: (right - left).max(1.0), height: band.height }
    }

    fn text(&mut self, left: f64, top: f64, text: &str, colour: Colour) {
        self.canvas.text((left, top), text, colour);
    }

    fn head(&mut self, title: &str) {
        let Range { start, end } = self.window;
        let stretch = format!(
            "{:.0} ms, from {:.3} s on. A box is one pass of a lane; what overlaps in time ran at the same time.",
            (end - start).as_secs_f64() * 1e3,
            start.as_secs_f64()
        );
        self.text(20.0, 12.0, title, BLACK);
        self.text(20.0, 30.0, &stretch, DARK);
        let mut at = 20.0;
        for (i, cell) in Cell::ALL.into_iter().enumerate() {
            if i == 4 {
                at = 20.0;
            }
            let top = if i < 4 { 58.0 } else { 80.0 };
            cell.draw(&mut self.canvas, Area { left: at, top, width: 14.0, height: 14.0 });
            self.text(at + 20.0, top + 3.0, cell.meaning(), BLACK);
            at += ((cell.meaning().len() + 5) * LETTER) as f64;
        }
        self.canvas.hatch(Area { left: 20.0, top: 102.0, width: 14.0, height: 14.0 }, Colour::WHITE, CANCEL);
        let cancelled = "proposal, cancelled: not sent yet when a pass rejected what it was built on";
        self.text(40.0, 105.0, cancelled, CANCEL);
        let checkpoint = 40.0 + ((cancelled.len() + 4) * LETTER) as f64;
        self.checkpoint_line(checkpoint, 102.0, 14.0);
        self.text(
            checkpoint + 10.0,
            105.0,
            "pruning checkpoint: unlikely proposals leave the pass here",
            BLACK,
        );
        for (band, name, of) in [
            (&VERIFY, "verify lane", "target model"),
            (&BOTH, "both at work", ""),
            (&DRAFT, "draft lane", "draft model"),
        ] {
            let middle = band.top + band.height / 2.0 - if of.is_empty() { 4.0 } else { 12.0 };
            self.text(16.0, middle, name, BLACK);
            self.text(16.0, middle + 16.0, of, DARK);
        }
    }

    /// Shades the times at which both lanes are at work.
    fn overlap(&mut self, passes: &[&PassRecord]) {
        let of = |lane| passes.iter().filter(move |pass| pass.lane == lane);
        let mut together = Vec::new();
        for verify in of(LaneKind::Verify) {
            for draft in of(LaneKind::Draft) {
                let between = (verify.began.max(draft.began), verify.ended.min(draft.ended));
                if between.0 < between.1 {
                    together.push(between);
                }
            }
        }
        let all = Band { top: VERIFY.top - 4.0, height: DRAFT.top + DRAFT.height - VERIFY.top + 8.0 };
        for &between in &together {
            self.canvas.fill(self.area(between, &all), TOGETHER);
        }
        for between in together {
            self.canvas.fill(self.area(between, &BOTH), BOTH_AT_WORK);
        }
    }

    fn pass(&mut self, pass: &PassRecord) {
        let band = match pass.lane {
            LaneKind::Draft => &DRAFT,
            LaneKind::Verify => &VERIFY,
        };
        let area = self.area((pass.began, pass.ended), band);
        self.canvas.fill(area, PASS);
        if area.width < NARROW {
            return;
        }
        match pass.lane {
            LaneKind::Draft => self.draft(pass, area),
            LaneKind::Verify => self.verify(pass, area),
        }
        self.canvas.frame(area, DARK);
    }

    fn draft(&mut self, pass: &PassRecord, area: Area) {
        let rows = draft_cells(pass, &self.fates);
        let steps = if pass.steps == 1 { String::new() } else { format!("{} steps", pass.steps) };
        let short = pass.steps.to_string();
        let words = [steps, if pass.steps == 1 { String::new() } else { short }];
        self.fit(&words, Area { top: area.top + 4.0, ..area }, BLACK);
        let inner = Area {
            left: area.left + 1.0,
            top: area.top + 16.0,
            width: area.width - 2.0,
            height: area.height - 18.0,
        };
        let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
        let (width, height) = (inner.width / columns.max(1) as f64, inner.height / rows.len().max(1) as f64);
        for (row, cells) in rows.iter().enumerate() {
            for (column, cell) in cells.iter().enumerate() {
                let (left, top) = (inner.left + column as f64 * width, inner.top + row as f64 * height);
                cell.draw(&mut self.canvas, Area { left, top, width, height });
            }
        }
    }

    fn verify(&mut self, pass: &PassRecord, area: Area) {
        let rows = verify_cells(pass);
        let mut top = area.top + 6.0;
        let PassRecord { step, rows: all, proposals, accepted, pruned, .. } = *pass;
        let took = (pass.ended - pass.began).as_secs_f64() * 1e3;
        let verdict = if proposals == 0 {
            [String::new(), String::new()]
        } else {
            [format!("{accepted} of {proposals} accepted"), format!("{accepted}/{proposals}")]
        };
        let counted = if all == 1 { "1 row".to_owned() } else { format!("{all} rows") };
        for words in [[format!("pass {step}: {counted}"), format!("{all}")], verdict] {
            self.fit(&words, Area { top, ..area }, BLACK);
            top += 13.0;
        }
        if pruned > 0 {
            self.fit(&[format!("{pruned} pruned"), format!("-{pruned}")], Area { top, ..area }, BLACK);
        }
        let predicted = pass.predicted.map_or(0.0, |predicted| predicted.as_secs_f64() * 1e3);
        let words = [
            format!("{took:.1} ms, predicted {predicted:.1}"),
            format!("{took:.1} ms"),
            format!("{took:.0}"),
        ];
        let words = if predicted > 0.0 { &words[..] } else { &words[1..] };
        self.fit(words, Area { top: area.top + area.height - 13.0, ..area }, DARK);
        let (left, top) = (area.left + 4.0, area.top + 46.0);
        let (width, height) = (area.width - 8.0, area.height - 46.0 - 18.0);
        let columns = rows.iter().map(Vec::len).max().unwrap_or(0).max(1);
        let width = (width / columns as f64).min(16.0);
        let height = (height / rows.len().max(1) as f64).min(32.0);
        for (row, cells) in rows.iter().enumerate() {
            for (column, cell) in cells.iter().enumerate() {
                let (left, top) = (left + column as f64 * width, top + row as f64 * height);
                cell.draw(&mut self.canvas, Area { left, top, width, height });
            }
        }
        for &checkpoint in &pass.prune_checkpoints {
            let share = checkpoint as f64 / self.record.target_layers.max(1) as f64;
            let x = self.x(pass.began + (pass.ended - pass.began).mul_f64(share));
            self.checkpoint_line(x, area.top + 44.0, area.height - 60.0);
        }
    }

    /// Says under the draft lane what was drafted ahead and what was not.
    fn captions(&mut self, passes: &[&PassRecord]) {
        let drafts: Vec<_> = passes.iter().filter(|pass| pass.lane == LaneKind::Draft).collect();
        for run in drafts.chunk_by(|a, b| (a.partition > 0) == (b.partition > 0)) {
            let (Some(first), Some(last)) = (run.first(), run.last()) else { continue };
            let words = if first.partition > 0 {
                ["past the frontier, while passes run", "past the frontier", "ahead"]
            } else {
                ["drafted before the pass", "before the pass", "before"]
            };
            let under = Band { top: DRAFT.top + DRAFT.height + 8.0, height: 1.0 };
            let area = self.area((first.began, last.ended), &under);
            self.canvas.fill(Area { top: area.top - 4.0, ..area }, DARK);
            self.fit(&words.map(str::to_owned), area, DARK);
        }
    }

    /// A dashed line.
    fn checkpoint_line(&mut self, x: f64, top: f64, height: f64) {
        let mut y = top;
        while y < top + height {
            self.canvas.line((x, y), (x, (y + 4.0).min(top + height)), 2, DARK);
            y += 8.0;
        }
    }

    /// The longest of the texts that an area is wide enough for.
    fn fit(&mut self, words: &[String], area: Area, colour: Colour) {
        if let Some(words) = words.iter().find(|words| ((words.len() * LETTER) as f64) < area.width - 4.0) {
            self.text(area.left + 4.0, area.top, words, colour);
        }
    }

    /// A line from each pass that cancelled something down to what it cancelled, and a note.
    fn cancellations(&mut self) {
        let mut ends = [0.0_f64; NOTE_LINES];
        let mut passes: BTreeMap<u64, (Duration, usize)> = BTreeMap::new();
        for (at, mark) in self.record.marks.iter().filter(|(at, _)| self.window.contains(at)) {
            if let Mark::EpochMoved { moved, by: Some(by) } = mark
                && moved.cancelled()
            {
                let (_, cancelled) = passes.entry(*by).or_insert((*at, 0));
                *cancelled += moved.unsent + usize::from(moved.drafting.is_some());
            }
        }
        for (by, (at, cancelled)) in passes {
            let x = self.x(at);
            let bottom = DRAFT.top + DRAFT.height;
            self.canvas.line((x, VERIFY.top - 6.0), (x, bottom + 6.0), 2, CANCEL);
            let proposals = if cancelled == 1 { "proposal cancelled" } else { "proposals cancelled" };
            let note = format!("pass {by} rejects, {cancelled} {proposals}");
            let width = (note.len() * LETTER) as f64;
            let left = (x - width / 2.0).clamp(LEFT, RIGHT - width);
            let Some(line) = ends.iter().position(|&end| end < left) else { continue };
            ends[line] = left + width + LETTER as f64;
            let top = NOTES.top + line as f64 * NOTES.height;
            self.canvas.line((x, bottom), (x, top - 2.0), 2, CANCEL);
            self.text(left, top, &note, CANCEL);
        }
    }

    fn axis(&mut self) {
        let length_ms = (self.window.end - self.window.start).as_secs_f64() * 1e3;
        self.canvas.line((LEFT, AXIS), (RIGHT, AXIS), 1, BLACK);
        let step = round_step(length_ms / 12.0);
        for tick in 0..=(length_ms / step) as usize {
            let tick_ms = tick as f64 * step;
            let x = LEFT + tick_ms / length_ms * (RIGHT - LEFT);
            self.canvas.line((x, AXIS), (x, AXIS + 5.0), 1, BLACK);
            self.canvas.line((x, VERIFY.top - 8.0), (x, VERIFY.top - 5.0), 1, GREY);
            let label = if step < 1.0 { format!("{tick_ms:.2}") } else { format!("{tick_ms:.0}") };
            self.text(x - (label.len() * LETTER / 2) as f64, AXIS + 12.0, &label, BLACK);
        }
        self.text(RIGHT - 24.0 * LETTER as f64, AXIS + 32.0, "milliseconds in this view", DARK);
    }
}
