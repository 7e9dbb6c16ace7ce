//! What passes cost: measured tables per lane and partition, kept monotone, corrected as passes are timed.

use std::time::Duration;

/// Row counts at which every pass is profiled; between them [`refine`] looks where cost is no line.
pub const ROW_GRID: [usize; 15] = [1, 2, 4, 8, 16, 32, 64, 65, 128, 129, 256, 257, 512, 1024, 2048];

/// How far the middle of two row counts may be off the line between them.
const BENT: f64 = 0.02;
/// Two row counts that are nearer to each other than this share of the smaller have no middle worth looking at.
const NEAR: f64 = 1.0 / 64.0;

/// No pass takes less.
const LEAST_S: f64 = 1e-9;

/// How far one timed pass moves the table at its rows; elsewhere the less, the further away.
const LEARNING_RATE: f64 = 0.08;
/// Distance, in doublings of the rows, at which it is a half of that.
const LEARNING_REACH: f64 = 0.25;
/// How fast a point that passes come near is known by them, and how fast that is forgotten where none comes. What is not known goes with the
/// machine's own speed: as far as the point that a pass was timed at.
const KNOWN_RATE: f64 = 0.1;
const KNOWN_MEMORY: f64 = 0.9998;
/// What attention was profiled to cost is off by no more than this factor.
const MOST_ATTENTION_TIMES: f64 = 16.0;
/// What a point that no pass came near counts beside one that is known, where the speed of the machine is asked for.
const LEAST_WEIGHT: f64 = 1e-3;
/// A single pass is believed to be off by no more than this factor: the rest is the machine doing something else.
const BELIEVED: f64 = 2.0;

/// What the attention of a pass goes over.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reach {
    /// Positions whose KV is read: those of a chunk once, however many rows it has.
    pub kv: usize,
    /// Sum of the rows' positions.
    pub rows: usize,
}

impl Reach {
    /// Rows at position 0.
    pub const NONE: Reach = Reach { kv: 0, rows: 0 };

    /// The last rows of a sequence, which ends at position `context`.
    pub(crate) fn last(rows: usize, context: usize) -> Reach {
        Reach { kv: context, rows: rows * context.saturating_sub(rows / 2) }
    }

    /// One row per chunk, at positions whose sum is `context`.
    pub fn single(context: usize) -> Reach {
        Reach { kv: context, rows: context }
    }
}

/// What attention costs, in femtoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AttentionCost {
    /// Per position whose KV is read.
    pub per_kv_fs: u64,
    /// Per row and position that it attends to.
    pub per_row_fs: u64,
}

impl AttentionCost {
    /// From what a pass of one row at position `context` takes longer than at position 0, and a pass of `rows` rows of one
    /// chunk, each at `context`.
    pub fn fitted(context: usize, rows: usize, one: Duration, many: Duration) -> AttentionCost {
        const FS_PER_S: f64 = 1e15;
        let (one, many) = (one.as_secs_f64(), many.as_secs_f64());
        let per_row =
            if rows > 1 { (many - one).max(0.0) / ((rows - 1) * context.max(1)) as f64 } else { 0.0 };
        let per_kv = (one / context.max(1) as f64 - per_row).max(0.0);
        // A float cast saturates.
        AttentionCost {
            per_kv_fs: (per_kv * FS_PER_S).round() as u64,
            per_row_fs: (per_row * FS_PER_S).round() as u64,
        }
    }

    /// Seconds of what is read, and of what rows attend to.
    fn seconds(self, reach: Reach) -> AttentionParts {
        let seconds = |fs: u64, of: usize| fs as f64 * of as f64 * 1e-15;
        AttentionParts { kv: seconds(self.per_kv_fs, reach.kv), rows: seconds(self.per_row_fs, reach.rows) }
    }
}

/// Something of each part of attention: of reading keys and values, and of what rows attend to.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AttentionParts {
    /// Of what is read.
    pub kv: f64,
    /// Of what rows attend to.
    pub rows: f64,
}

impl AttentionParts {
    /// The same of both.
    pub const fn both(value: f64) -> AttentionParts {
        AttentionParts { kv: value, rows: value }
    }

    fn with(self, other: AttentionParts, of: impl Fn(f64, f64) -> f64) -> AttentionParts {
        AttentionParts { kv: of(self.kv, other.kv), rows: of(self.rows, other.rows) }
    }

    fn sum(self) -> f64 {
        self.kv + self.rows
    }
}

/// How far a table was corrected.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Correction {
    /// Its points, in the mean of those that are known, as the logarithm of a factor: passes that contradict each other move what goes by them nowhere.
    pub points: f64,
    /// Attention, as factors.
    pub attention: AttentionParts,
}

impl Default for Correction {
    fn default() -> Correction {
        Correction { points: 0.0, attention: AttentionParts::both(1.0) }
    }
}

/// Cost from a point to the next.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Line {
    /// Rows from which on another line holds.
    pub(crate) end: usize,
    from: f64,
    span: f64,
    low_s: f64,
    rise_s: f64,
}

impl Line {
    /// Seconds of a pass of so many rows, without attention.
    pub(crate) fn seconds(&self, rows: usize) -> f64 {
        if rows == 0 {
            return 0.0;
        }
        let share = (rows as f64 - self.from) / self.span;
        // A line that goes steeply down before the first point ends at nothing.
        (self.low_s + share * self.rise_s).max(LEAST_S)
    }
}

/// What is worked with and says nothing.
#[derive(Clone, Debug)]
struct Work(Vec<f64>);

impl PartialEq for Work {
    fn eq(&self, _: &Work) -> bool {
        true
    }
}

/// The natural logarithm of a factor, which is mostly near 1: there a few terms of its series are as exact, and take a fifth of the time.
fn ln(factor: f64) -> f64 {
    if (factor - 1.0).abs() > 0.1 {
        return factor.ln();
    }
    let z = (factor - 1.0) / (factor + 1.0);
    let square = z * z;
    let terms = [1.0 / 9.0, 1.0 / 7.0, 1.0 / 5.0, 1.0 / 3.0, 1.0];
    2.0 * z * terms.into_iter().fold(0.0, |sum, term| sum * square + term)
}

/// Where a pass lies among the points of a table.
struct Place {
    /// Of its rows from one.
    doublings: f64,
    /// The point before it, and how far towards the next it is: 0 to 1.
    low: usize,
    share: f64,
}

impl Place {
    /// How near it comes to a point: 0 to 1.
    fn near(&self, point: usize, doublings: f64) -> f64 {
        let apart = (doublings - self.doublings) / LEARNING_REACH;
        let between = match point.wrapping_sub(self.low) {
            0 => 1.0 - self.share,
            1 => self.share,
            _ => 0.0,
        };
        between.max(1.0 / (1.0 + apart * apart))
    }
}

/// Cost of passes of one model on one partition: a function of rows that never falls, plus a part for attention.
#[derive(Clone, Debug, PartialEq)]
pub struct PassCost {
    /// Row counts, ascending, at least two, and seconds of a pass of so many rows at position 0.
    points: Vec<(usize, f64)>,
    /// Of each point's rows from one.
    doublings: Vec<f64>,
    /// Of each point, how far it is known by passes that came near: 0 to 1.
    known: Vec<f64>,
    attention: AttentionCost,
    /// How many times as much attention costs as it says, as passes have taught: of each part as far as it is part of the pass.
    attention_times: AttentionParts,
    /// Ranks that rows are divided among, each of which has its own pass at the same time.
    ranks: usize,
    /// The points' seconds before a pass was looked at.
    before: Work,
}

impl PassCost {
    /// From profiled times of rows at position 0, by row count, and what attention adds. Where more rows took less, the machine was
    /// busy for one of the readings or the other: they share their mean. Between points cost is a line, and so before the first and beyond the
    /// last of at least two.
    pub fn new(profiled: &[(usize, Duration)], attention: AttentionCost) -> PassCost {
        let mut points: Vec<(usize, Duration)> =
            profiled.iter().copied().filter(|&(rows, _)| rows > 0).collect();
        points.sort_unstable();
        points.dedup_by_key(|&mut (rows, _)| rows);
        while points.len() < 2 {
            // Nothing was measured, or one row count alone.
            let last = points.last().map_or((1, Duration::ZERO), |&(rows, time)| (2 * rows, 2 * time));
            points.push(last);
        }
        let times: Vec<f64> = points.iter().map(|(_, time)| time.as_secs_f64().max(LEAST_S)).collect();
        let rows = points.iter().map(|&(rows, _)| rows);
        // To the nanosecond, as points are.
        let seconds = isotonic(&times).into_iter().map(|seconds| duration(seconds).as_secs_f64());
        let points: Vec<(usize, f64)> = rows.zip(seconds).collect();
        let doublings = points.iter().map(|&(rows, _)| (rows as f64).log2()).collect();
        let known = vec![0.0; points.len()];
        let before = Work(known.clone());
        let attention_times = AttentionParts::both(1.0);
        PassCost { points, doublings, known, attention, attention_times, ranks: 1, before }
    }

    /// The same, with rows divided evenly among so many ranks that each have a pass of their own at the same time: what is asked for and observed from
    /// now on are the rows of all of them.
    #[must_use]
    pub(crate) fn over(self, ranks: usize) -> PassCost {
        PassCost { ranks, ..self }
    }

    /// Ranks that rows are divided among.
    pub(crate) fn ranks(&self) -> usize {
        self.ranks
    }

    /// Seconds of so many rows of one sequence, which are all on its rank.
    pub(crate) fn seconds_of_one(&self, rows: usize, Reach { kv, rows: of_rows }: Reach) -> f64 {
        let of_all = Reach { kv: kv * self.ranks, rows: of_rows * self.ranks };
        self.seconds(rows * self.ranks, of_all)
    }

    /// What a rank has of so many rows.
    fn of_a_rank(&self, rows: usize, Reach { kv, rows: of_rows }: Reach) -> (usize, Reach) {
        let part = |all: usize| all.div_ceil(self.ranks);
        (part(rows), Reach { kv: part(kv), rows: part(of_rows) })
    }

    /// Of passes that take so many µs, and as many more with every row.
    pub fn linear(pass_us: u64, row_us: u64, attention: AttentionCost) -> PassCost {
        let time = |rows: usize| (rows, Duration::from_micros(pass_us + row_us * rows as u64));
        PassCost::new(&[time(1), time(1024)], attention)
    }

    /// Of a model that is not there: next to nothing.
    pub fn nothing() -> PassCost {
        PassCost::new(&[], AttentionCost { per_kv_fs: 0, per_row_fs: 0 })
    }

    /// Row counts and times, to the nanosecond: with [`PassCost::attention`] what [`PassCost::new`] takes.
    pub fn points(&self) -> impl Iterator<Item = (usize, Duration)> + '_ {
        self.points.iter().map(|&(rows, seconds)| (rows, duration(seconds)))
    }

    /// What attention adds, as it was profiled.
    pub fn attention(&self) -> AttentionCost {
        self.attention
    }

    /// Seconds a pass of `rows` rows takes.
    pub fn seconds(&self, rows: usize, reach: Reach) -> f64 {
        if rows == 0 {
            return 0.0;
        }
        let (rows, reach) = self.of_a_rank(rows, reach);
        self.line(rows).seconds(rows) + self.attention_seconds(reach)
    }

    /// The line that so many rows are on.
    pub(crate) fn line(&self, rows: usize) -> Line {
        let low = self.low(rows);
        let ((from, low_s), (to, high_s)) = (self.points[low], self.points[low + 1]);
        let end = if low + 2 < self.points.len() { to } else { usize::MAX };
        Line { end, from: from as f64, span: to as f64 - from as f64, low_s, rise_s: high_s - low_s }
    }

    /// Seconds of them that are attention's.
    pub(crate) fn attention_seconds(&self, reach: Reach) -> f64 {
        self.attention_parts(reach).sum()
    }

    fn attention_parts(&self, reach: Reach) -> AttentionParts {
        self.attention_times.with(self.attention.seconds(reach), |times, seconds| times * seconds)
    }

    /// Seconds that a row adds to a pass of about so many: the slope over a good part of them, so that steps count as what they are in the mean.
    pub(crate) fn row_seconds(&self, rows: usize) -> f64 {
        let half = (rows / 4).max(4);
        let (from, to) = (rows.saturating_sub(half).max(1), rows + half);
        (self.seconds(to, Reach::NONE) - self.seconds(from, Reach::NONE)) / (to - from) as f64
    }

    /// Seconds that each of the last rows of a pass adds, in the mean of a quarter of its rows, but for those that it has `without` proposals; infinite
    /// if there are no others. What is behind the edge of a step that it ends at is not in it.
    pub(crate) fn last_row_seconds(&self, rows: usize, without: usize) -> f64 {
        let from = rows.saturating_sub((rows / 4).max(4)).max(without).max(1);
        match rows.saturating_sub(from) {
            0 => f64::INFINITY,
            last => (self.seconds(rows, Reach::NONE) - self.seconds(from, Reach::NONE)) / last as f64,
        }
    }

    /// The smallest pass of at most `most` rows whose row costs no more than `slack` times the cheapest one's.
    pub(crate) fn best_size(&self, most: usize, slack: f64) -> usize {
        let row_s = |rows: usize| self.seconds(rows, Reach::NONE) / rows.max(1) as f64;
        // A row is cheapest at the end of a step, and that is at a point.
        let points = || self.points.iter().map(|&(rows, _)| rows).filter(|&rows| rows < most).chain([most]);
        let least = points().map(row_s).fold(f64::INFINITY, f64::min);
        let size = points().find(|&rows| row_s(rows) <= slack * least).unwrap_or(most);
        // The same step goes on.
        let seconds = self.seconds(size, Reach::NONE) * 1.002;
        points()
            .filter(|&rows| rows > size)
            .take_while(|&rows| self.seconds(rows, Reach::NONE) <= seconds)
            .last()
            .unwrap_or(size)
    }

    /// Corrects the table by a pass that was timed: near its rows for what such passes cost, and wherever passes have taught nothing for the speed of
    /// the machine, which is another one than when it was profiled; and attention, as far as it is part of the pass. Returns how far it went, for
    /// tables that go by it.
    pub fn observe(&mut self, rows: usize, reach: Reach, took: Duration) -> Correction {
        if rows == 0 {
            return Correction::default();
        }
        let predicted = self.seconds(rows, reach);
        let (rows, reach) = self.of_a_rank(rows, reach);
        let parts = self.attention_parts(reach);
        let of_attention = parts.sum() / predicted;
        let error = (took.as_secs_f64() / predicted).clamp(1.0 / BELIEVED, BELIEVED).ln();
        let step = LEARNING_RATE * error * (1.0 - of_attention);
        let times_before = self.attention_times;
        let times = |part: f64| 1.0 + LEARNING_RATE * error * part / predicted;
        self.follow_attention(AttentionParts { kv: times(parts.kv), rows: times(parts.rows) });
        let low = self.low(rows);
        let share = self.share(low, rows).clamp(0.0, 1.0);
        let pass = Place { doublings: (rows as f64).log2(), low, share };
        self.before.0.iter_mut().zip(&self.points).for_each(|(before, &(_, seconds))| *before = seconds);
        for (i, ((_, seconds), known)) in self.points.iter_mut().zip(&self.known).enumerate() {
            let near = pass.near(i, self.doublings[i]);
            *seconds = (*seconds * (1.0 + step * near.max(1.0 - *known))).max(LEAST_S);
        }
        self.make_monotone(if share > 0.5 { low + 1 } else { low });
        let points = self.moved();
        for (i, known) in self.known.iter_mut().enumerate() {
            let near = pass.near(i, self.doublings[i]);
            *known = *known * KNOWN_MEMORY + KNOWN_RATE * near * near * (1.0 - *known);
        }
        Correction { points, attention: self.attention_times.with(times_before, |now, before| now / before) }
    }

    /// How far its points went from where they were before, as the logarithm of a factor: in the mean, by how far they are known, of all alike
    /// before any is.
    fn moved(&self) -> f64 {
        let weights = || self.known.iter().map(|known| LEAST_WEIGHT + known);
        let factors = self.points.iter().zip(&self.before.0).map(|(&(_, after), before)| after / before);
        let logs = factors.zip(weights()).map(|(factor, weight)| weight * ln(factor));
        logs.sum::<f64>() / weights().sum::<f64>()
    }

    /// The machine became slower or faster, by what another table has learned: moves what no pass has taught.
    pub(crate) fn follow(&mut self, step: f64) {
        for ((_, seconds), known) in self.points.iter_mut().zip(&mut self.known) {
            *seconds = (*seconds * (1.0 + step * (1.0 - *known))).max(LEAST_S);
            *known *= KNOWN_MEMORY;
        }
        // What moved gives way to what is known.
        if step > 0.0 {
            self.make_monotone(self.points.len() - 1);
        } else {
            self.make_monotone(0);
        }
    }

    /// The same model's attention costs so many times as much as was believed, elsewhere on the device.
    pub(crate) fn follow_attention(&mut self, times: AttentionParts) {
        let within = |times: f64| times.clamp(1.0 / MOST_ATTENTION_TIMES, MOST_ATTENTION_TIMES);
        self.attention_times = self.attention_times.with(times, |before, times| within(before * times));
    }

    /// More rows never cost less: what contradicts the point just learned gives way to it.
    fn make_monotone(&mut self, learned: usize) {
        for i in (0..learned).rev() {
            self.points[i].1 = self.points[i].1.min(self.points[i + 1].1);
        }
        for i in learned + 1..self.points.len() {
            self.points[i].1 = self.points[i].1.max(self.points[i - 1].1);
        }
    }

    /// The point before a row count that has one behind it.
    fn low(&self, rows: usize) -> usize {
        let before = self.points.partition_point(|&(point, _)| point <= rows);
        before.saturating_sub(1).min(self.points.len() - 2)
    }

    /// How far from a point towards the next a row count is: 0 there, 1 at the next, more beyond the last, less than 0 before the first.
    fn share(&self, low: usize, rows: usize) -> f64 {
        let (from, to) = (self.points[low].0 as f64, self.points[low + 1].0 as f64);
        (rows as f64 - from) / (to - from)
    }
}

/// Measures between the points where cost is no line, until it is one nearly everywhere or `measure` has had enough: next
/// where most can be learned in a second, so that the edges of a staircase are found first where passes are short and
/// steps high. A middle may lie on the line of a staircase by chance: where it does, those of both halves are looked at
/// too. What is measured in the end does not depend on the order.
pub fn refine(points: &mut Vec<(usize, Duration)>, mut measure: impl FnMut(usize) -> Option<Duration>) {
    points.sort_unstable();
    let mut open: Vec<Gap> =
        points.windows(2).map(|pair| Gap { low: pair[0], high: pair[1], doubted: false }).collect();
    open.retain(Gap::worth_a_look);
    while let Some(next) = (0..open.len()).max_by(|&a, &b| open[a].promise().total_cmp(&open[b].promise())) {
        let gap = open.swap_remove(next);
        let middle = gap.middle();
        let Some(time) = measure(middle) else { return };
        points.push((middle, time));
        let bent = (time.as_secs_f64() / gap.line(middle) - 1.0).abs() > BENT;
        if bent || !gap.doubted {
            let halves = [(gap.low, (middle, time)), ((middle, time), gap.high)];
            open.extend(
                halves
                    .map(|(low, high)| Gap { low, high, doubted: !bent })
                    .into_iter()
                    .filter(Gap::worth_a_look),
            );
        }
    }
}

/// Measures both sides of a step once more, right behind each other, the highest step first, until none is left that was not seen so or `measure` has
/// had enough. The lower times count, and no step is higher than it was then: a machine that became slower, or was asked in another way, makes an edge
/// where none is, and passes are planned to end at edges. It is a step where time grows faster than the rows.
pub fn confirm(points: &mut [(usize, Duration)], mut measure: impl FnMut(usize) -> Option<Duration>) {
    points.sort_unstable();
    let mut steps: Vec<usize> = (1..points.len()).collect();
    let height = |points: &[(usize, Duration)], high: usize| {
        let [of_low, of_high] =
            [high - 1, high].map(|i| points[i].1.as_secs_f64() / points[i].0.max(1) as f64);
        of_high / of_low.max(f64::MIN_POSITIVE)
    };
    loop {
        let heights = steps.iter().map(|&high| height(points, high)).enumerate();
        let Some((place, highest)) = heights.max_by(|a, b| a.1.total_cmp(&b.1)) else { return };
        if highest <= 1.0 + BENT {
            return;
        }
        let high = steps.swap_remove(place);
        let Some(low_time) = measure(points[high - 1].0) else { return };
        let Some(high_time) = measure(points[high].0) else { return };
        let rise = (high_time.as_secs_f64() / low_time.as_secs_f64().max(LEAST_S)).max(1.0);
        let [low, before] = [points[high - 1].1.min(low_time), points[high].1];
        points[high - 1].1 = low;
        points[high].1 = before.min(high_time).min(low.mul_f64(rise));
        // The one behind it is higher now.
        if points[high].1.mul_f64(1.0 + BENT) < before
            && high + 1 < points.len()
            && !steps.contains(&(high + 1))
        {
            steps.push(high + 1);
        }
    }
}

/// Row counts between two that were measured.
struct Gap {
    low: (usize, Duration),
    high: (usize, Duration),
    /// It is half of one whose middle was on the line.
    doubted: bool,
}

impl Gap {
    fn middle(&self) -> usize {
        self.low.0.midpoint(self.high.0)
    }

    /// Seconds of so many rows, if cost is a line.
    fn line(&self, rows: usize) -> f64 {
        let share = (rows - self.low.0) as f64 / (self.high.0 - self.low.0) as f64;
        let [low_s, high_s] = [self.low.1, self.high.1].map(|time| time.as_secs_f64());
        low_s + share * (high_s - low_s)
    }

    /// No middle can be far off if both ends cost the same.
    fn worth_a_look(&self) -> bool {
        let near = ((self.high.0 - self.low.0) as f64) < NEAR * self.low.0 as f64;
        self.middle() > self.low.0 && !near && self.high.1 > self.low.1.mul_f64(1.0 + BENT)
    }

    /// How far its middle may be off, as a share, by the second that a pass of its lower end takes.
    fn promise(&self) -> f64 {
        let low_s = self.low.1.as_secs_f64().max(LEAST_S);
        (self.high.1.as_secs_f64() / low_s - 1.0) / low_s
    }
}

/// The nearest sequence that never falls, by squared error: neighbours that fall are pooled.
fn isotonic(points: &[f64]) -> Vec<f64> {
    let mut pools: Vec<(f64, usize)> = Vec::with_capacity(points.len());
    for &point in points {
        let (mut mean, mut size) = (point, 1);
        while let Some(&(before, count)) = pools.last().filter(|&&(before, _)| before > mean) {
            mean = (mean * size as f64 + before * count as f64) / (size + count) as f64;
            size += count;
            pools.pop();
        }
        pools.push((mean, size));
    }
    pools.into_iter().flat_map(|(mean, size)| std::iter::repeat_n(mean, size)).collect()
}

/// What a partition's two lanes cost.
#[derive(Clone, Debug, PartialEq)]
pub struct PartitionCosts {
    /// One draft step over so many sequences.
    pub draft: PassCost,
    /// One verify pass over so many rows.
    pub verify: PassCost,
}

fn duration(seconds: f64) -> Duration {
    Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn sloping() -> PassCost {
        PassCost::linear(1000, 10, AttentionCost { per_kv_fs: 3_000_000, per_row_fs: 2_000_000 })
    }

    #[test]
    fn the_logarithm_of_a_factor_is_what_it_is() {
        for thousandths in 200..3000 {
            let factor = f64::from(thousandths) / 1000.0;
            assert!((ln(factor) - factor.ln()).abs() <= 1e-13, "{factor}: {} {}", ln(factor), factor.ln());
        }
        assert_eq!(ln(1.0), 0.0);
    }

    #[test]
    fn a_reading_of_a_busy_moment_is_spread_and_not_carried_on() {
        let points = |ms: [u64; 12]| {
            let profiled: Vec<_> = (1..).zip(ms.map(Duration::from_millis)).collect();
            let cost = PassCost::new(&profiled, AttentionCost::default());
            cost.points().map(|(_, time)| time.as_millis()).collect::<Vec<_>>()
        };
        let quiet = [10, 10, 12, 14, 20, 30, 50, 90, 170, 330, 650, 1290];
        assert_eq!(points(quiet), quiet.map(u128::from));
        // Two rows took 40 ms: of them and those behind that took less, as many share a mean as must.
        let busy = [10, 40, 12, 14, 20, 30, 50, 90, 170, 330, 650, 1290];
        assert_eq!(points(busy), [10, 21, 21, 21, 21, 30, 50, 90, 170, 330, 650, 1290]);
    }

    #[test]
    fn an_edge_that_a_slow_moment_made_goes_and_one_of_the_device_stays() {
        let truth = |rows: usize| {
            let time = Duration::from_micros(1000 + 10 * rows as u64);
            if rows > 64 { 2 * time } else { time }
        };
        let rows = [1, 8, 15, 16, 24, 31, 32, 64, 65, 90, 96, 100, 104, 128, 256];
        let measured = |slow: &dyn Fn(usize) -> bool| {
            rows.map(|rows| (rows, if slow(rows) { truth(rows).mul_f64(1.5) } else { truth(rows) }))
        };
        let off = |points: &[(usize, Duration)]| {
            let off = |&(rows, time): &(usize, Duration)| {
                (time.as_secs_f64() / truth(rows).as_secs_f64() - 1.0).abs()
            };
            points.iter().map(off).fold(0.0, f64::max)
        };
        // The machine was slow for a moment, or is since, and while it is asked again, or not.
        let moment = [16, 32, 96, 100, 104];
        let [some, since] = [measured(&|rows| moment.contains(&rows)), measured(&|rows| rows >= 90)];
        for (points, now) in [(some, 1.0), (since, 1.0), (since, 1.5)] {
            let (mut points, mut asked) = (points, 0);
            assert!(off(&points) > 0.4);
            confirm(&mut points, |rows| {
                asked += 1;
                Some(truth(rows).mul_f64(now))
            });
            assert!(off(&points) < 1e-6 && asked <= 24, "{now} {asked} {points:?}");
        }
        // The highest is asked of first, and one side alone tells nothing.
        let (mut points, mut asked) = (since, Vec::new());
        confirm(&mut points, |rows| {
            asked.push(rows);
            (asked.len() == 1).then(|| truth(rows) / 2)
        });
        assert_eq!((asked, points), (vec![64, 65], since));
    }

    #[test]
    fn where_time_grows_no_faster_than_rows_nothing_is_asked_again() {
        let line = |rows: usize| (rows, Duration::from_micros(20 + 100 * rows as u64));
        confirm(&mut [1, 2, 4, 8, 16, 17, 18, 64].map(line), |rows| panic!("{rows} rows"));
        confirm(&mut [line(5)], |rows| panic!("{rows} rows"));
        confirm(&mut [], |rows| panic!("{rows} rows"));
    }

    #[test]
    fn steps_are_found_between_the_points() {
        // As a GPU whose products go by tiles of 64 rows.
        let truth = |rows: usize| Duration::from_micros(1000 + 80 * rows.next_multiple_of(64) as u64);
        let mut points: Vec<_> = ROW_GRID.map(|rows| (rows, truth(rows))).to_vec();
        let mut measured = 0;
        refine(&mut points, |rows| {
            measured += 1;
            Some(truth(rows))
        });
        let cost = PassCost::new(&points, AttentionCost::default());
        let off = |rows: usize| (cost.seconds(rows, Reach::NONE) / truth(rows).as_secs_f64() - 1.0).abs();
        let worst = (1..=512).max_by(|&a, &b| off(a).total_cmp(&off(b))).unwrap_or(1);
        let far = (1..=512).filter(|&rows| off(rows) > 0.03).count();
        assert!(far < 50, "{far} of 512 rows are off, {worst} by {}", off(worst));
        assert!(measured < 90, "{measured}");
        // Where there is no time for all of them the edges of short passes come first.
        let mut points: Vec<_> = ROW_GRID.map(|rows| (rows, truth(rows))).to_vec();
        let mut left = 24;
        refine(&mut points, |rows| {
            left -= 1;
            (left > 0).then(|| truth(rows))
        });
        let cost = PassCost::new(&points, AttentionCost::default());
        for edge in [192, 320] {
            let [before, behind] = [edge - 2, edge + 4].map(|rows| cost.seconds(rows, Reach::NONE));
            assert!(behind - before > 3e-3, "{edge}: {points:?}");
        }
        // A line is left alone, and who has had enough is not asked again.
        let mut line = vec![(1, Duration::from_micros(11)), (1001, Duration::from_micros(1011))];
        refine(&mut line, |rows| Some(Duration::from_micros(10 + rows as u64)));
        assert_eq!(line.len(), 5);
        let mut asked = 0;
        refine(&mut ROW_GRID.map(|rows| (rows, truth(rows))).to_vec(), |_| {
            asked += 1;
            None
        });
        assert_eq!(asked, 1);
    }

    #[test]
    fn a_pass_ends_where_a_step_does() {
        let truth = |rows: usize| Duration::from_micros(1000 + 80 * rows.next_multiple_of(64) as u64);
        let every: Vec<_> = (1..=1024).map(|rows| (rows, truth(rows))).collect();
        let cost = PassCost::new(&every, AttentionCost::default());
        // 1,000 us are 6 % of 208 rows'; the step before ends at 192.
        assert_eq!(cost.best_size(1024, 1.06), 192);
        // What is more than a step and less than two is not cheap.
        assert_eq!(cost.best_size(100, 1.06), 64);
        assert_eq!(cost.best_size(1, 1.06), 1);
    }

    #[test]
    fn between_and_beyond_the_grid_cost_is_linear() {
        let cost = sloping();
        for (rows, expected) in [(1, 1010), (3, 1030), (12, 1120), (512, 6120), (4096, 41960)] {
            assert!((cost.seconds(rows, Reach::NONE) * 1e6 - f64::from(expected)).abs() < 1e-6, "{rows}");
        }
        assert!((cost.seconds(1, Reach::single(1000)) - cost.seconds(1, Reach::NONE) - 5e-6).abs() < 1e-12);
        assert_eq!(cost.seconds(0, Reach::NONE), 0.0);
    }

    #[test]
    fn attention_is_told_apart_into_reading_and_computing() {
        let micros = |us| Duration::from_micros(us);
        // 1,000 positions: 5 us to read and 1 us per row to compute.
        let attention = AttentionCost::fitted(1000, 8, micros(6), micros(13));
        assert_eq!((attention.per_kv_fs / 100, attention.per_row_fs / 100), (50_000, 10_000));
        // A machine that says more rows cost less is not believed.
        let odd = AttentionCost::fitted(1000, 8, micros(6), micros(5));
        assert_eq!((odd.per_kv_fs / 100, odd.per_row_fs), (60_000, 0));
    }

    #[test]
    fn what_no_pass_has_taught_goes_with_the_speed_of_the_machine() {
        let truth = |rows: usize| 1e-3 + 1e-5 * rows as f64;
        let table =
            || PassCost::new(&ROW_GRID.map(|rows| (rows, duration(truth(rows)))), AttentionCost::default());
        let (mut verify, mut draft) = (table(), table());
        let mut pass = |rows, faster: f64, verify: &mut PassCost| {
            draft.follow(verify.observe(rows, Reach::NONE, duration(truth(rows) * faster)).points);
        };
        let times = |cost: &PassCost, rows| cost.seconds(rows, Reach::NONE) / truth(rows);
        let close = |a: f64, b: f64| (a / b - 1.0).abs() < 0.02;
        (0..200).for_each(|_| pass(1, 0.7, &mut verify));
        assert!([1, 4, 16, 256].iter().all(|&rows| close(times(&verify, rows), 0.7)), "{verify:?}");
        // What was taught is not forgotten for what one row takes.
        (0..200).for_each(|_| pass(16, 0.9, &mut verify));
        (0..200).for_each(|_| pass(1, 0.6, &mut verify));
        assert!(close(times(&verify, 16), 0.9) && close(times(&verify, 1), 0.6), "{verify:?}");
        // But for a while only.
        (0..20_000).for_each(|_| pass(1, 0.6, &mut verify));
        (0..200).for_each(|_| pass(1, 1.2, &mut verify));
        assert!(times(&verify, 16) > 1.5, "{verify:?}");
        assert!(times(&draft, 4) > 1.1, "{draft:?}");
    }

    #[test]
    fn what_attention_costs_is_learned_and_moves_no_other_table() {
        // Profiled ten times too dear, as of one sequence on a device that many fill; contexts come and go.
        let attention = AttentionCost { per_kv_fs: 50_000_000, per_row_fs: 20_000_000 };
        let mut verify = PassCost::linear(1000, 2, attention);
        let mut draft = PassCost::linear(250, 1, AttentionCost::default());
        let reach = |context: usize, rows: usize| Reach { kv: 64 * context, rows: rows * context };
        let truth = |rows: usize, reach: Reach| {
            1e-3 + 2e-6 * rows as f64 + 5e-9 * reach.kv as f64 + 2e-9 * reach.rows as f64
        };
        for pass in 0..4000 {
            for rows in [64, 128] {
                let reach = reach(60 + pass % 128, rows);
                let correction = verify.observe(rows, reach, duration(truth(rows, reach)));
                draft.follow(correction.points);
            }
        }
        for (context, rows) in [(60, 64), (187, 64), (60, 128), (187, 128)] {
            let reach = reach(context, rows);
            let found = verify.seconds(rows, reach) / truth(rows, reach);
            assert!((0.85..1.15).contains(&found), "{context} {rows}: {found}");
        }
        let drafts = draft.seconds(110, Reach::NONE) / 360e-6;
        assert!((0.8..1.25).contains(&drafts), "{drafts}");
        // What was learned on one partition is believed on another.
        let mut other = PassCost::linear(1000, 2, attention);
        other.follow_attention(AttentionParts::both(0.1));
        let reach = reach(187, 64);
        assert!((other.seconds(64, reach) / truth(64, reach) - 1.0).abs() < 0.05);
    }

    #[test]
    fn prompts_behind_long_contexts_say_nothing_of_what_single_rows_read() {
        let attention = AttentionCost { per_kv_fs: 400_000_000, per_row_fs: 40_000_000 };
        let mut verify = PassCost::linear(1000, 20, attention);
        let single = |verify: &PassCost| verify.seconds(1, Reach::single(10_000));
        let (profiled, rows_s) = (single(&verify), verify.seconds(512, Reach::NONE));
        // What their rows attend to costs three times as much as was profiled.
        for pass in 1..20 {
            let reach = Reach::last(512, 512 * pass);
            let took = rows_s + 3.0 * 40e-9 * reach.rows as f64 + 400e-9 * reach.kv as f64;
            verify.observe(512, reach, duration(took));
        }
        assert!(single(&verify) < 1.25 * profiled, "{} {profiled}", single(&verify));
        let reach = Reach::last(512, 10_000);
        let found = verify.attention_seconds(reach);
        assert!(found > 1.5 * (40e-9 * reach.rows as f64 + 400e-9 * reach.kv as f64), "{found}");
    }

    #[test]
    fn a_machine_that_slows_down_is_believed_after_a_while() {
        let mut cost = sloping();
        for _ in 0..200 {
            cost.observe(8, Reach::NONE, Duration::from_micros(3000));
        }
        assert!((cost.seconds(8, Reach::NONE) * 1e3 - 3.0).abs() < 0.1, "{}", cost.seconds(8, Reach::NONE));
        // One hiccup is not.
        cost.observe(8, Reach::NONE, Duration::from_secs(1));
        assert!(cost.seconds(8, Reach::NONE) < 3.3e-3);
    }

    fn of(profiled: Vec<(usize, u64)>, time: fn(u64) -> Duration) -> Vec<(usize, Duration)> {
        profiled.into_iter().map(|(rows, times)| (rows, time(times))).collect()
    }

    proptest! {
        #[test]
        fn more_rows_never_cost_less(
            profiled in prop::collection::vec((1..600usize, 1..10_000u64), 0..12),
            passes in prop::collection::vec((1..600usize, 0..10_000usize, 1..100_000u64), 0..50),
        ) {
            let mut cost = PassCost::new(&of(profiled, Duration::from_micros), AttentionCost { per_kv_fs: 1, per_row_fs: 3_000_000 });
            for (rows, context, took) in passes {
                cost.observe(rows, Reach::single(context), Duration::from_micros(took));
            }
            for rows in 1..600 {
                prop_assert!(cost.seconds(rows, Reach::NONE) > 0.0);
                prop_assert!(cost.seconds(rows, Reach::NONE) <= cost.seconds(rows + 1, Reach::NONE) * (1.0 + 1e-12));
            }
        }

        #[test]
        fn a_profiled_table_is_made_again_of_its_points(
            profiled in prop::collection::vec((0..3000usize, 0..1_000_000_000_000_000u64), 0..40),
            (per_kv_fs, per_row_fs) in (0..u64::from(u32::MAX), 0..u64::from(u32::MAX)),
        ) {
            let attention = AttentionCost { per_kv_fs, per_row_fs };
            let cost = PassCost::new(&of(profiled, Duration::from_nanos), attention);
            let points: Vec<_> = cost.points().collect();
            prop_assert!(points.is_sorted_by(|a, b| a.0 < b.0 && a.1 <= b.1));
            prop_assert_eq!(cost.attention(), attention);
            prop_assert_eq!(&PassCost::new(&points, cost.attention()), &cost);
        }
    }
}
