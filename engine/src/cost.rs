//! What passes cost: measured tables per lane and partition, kept monotone, corrected as passes are timed.

use std::time::Duration;

/// Row counts at which a pass is profiled; between them cost is interpolated, beyond the last it is extrapolated.
pub const ROW_GRID: [usize; 12] = [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048];

/// How far one timed pass moves the table.
const LEARNING_RATE: f64 = 0.08;
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

    fn seconds(self, reach: Reach) -> f64 {
        (self.per_kv_fs as f64 * reach.kv as f64 + self.per_row_fs as f64 * reach.rows as f64) * 1e-15
    }
}

/// Cost of passes of one model on one partition: a monotone function of rows, plus a part for attention.
#[derive(Clone, Debug, PartialEq)]
pub struct PassCost {
    /// Seconds at each row count of [`ROW_GRID`], at position 0.
    base_s: [f64; ROW_GRID.len()],
    attention: AttentionCost,
}

impl PassCost {
    /// From profiled times at [`ROW_GRID`], of rows at position 0, and what attention adds. Where more rows took less, the machine was
    /// busy for one of the readings or the other: they share their mean.
    pub fn new(profiled: [Duration; ROW_GRID.len()], attention: AttentionCost) -> PassCost {
        let base_s = isotonic(profiled.map(|time| time.as_secs_f64().max(1e-9)));
        // To the nanosecond, as points are.
        PassCost { base_s: base_s.map(|seconds| duration(seconds).as_secs_f64()), attention }
    }

    /// Of passes that take so many µs, and as many more with every row.
    pub fn linear(pass_us: u64, row_us: u64, attention: AttentionCost) -> PassCost {
        PassCost::new(ROW_GRID.map(|rows| Duration::from_micros(pass_us + row_us * rows as u64)), attention)
    }

    /// Of a model that is not there: next to nothing.
    pub fn nothing() -> PassCost {
        PassCost::new([Duration::ZERO; ROW_GRID.len()], AttentionCost { per_kv_fs: 0, per_row_fs: 0 })
    }

    /// Times at [`ROW_GRID`], to the nanosecond: with [`PassCost::attention`] what [`PassCost::new`] takes.
    pub fn points(&self) -> [Duration; ROW_GRID.len()] {
        self.base_s.map(duration)
    }

    /// What attention adds.
    pub fn attention(&self) -> AttentionCost {
        self.attention
    }

    /// Seconds a pass of `rows` rows takes.
    pub fn seconds(&self, rows: usize, reach: Reach) -> f64 {
        if rows == 0 {
            return 0.0;
        }
        let (low, share) = place(rows);
        self.base_s[low] + share * (self.base_s[low + 1] - self.base_s[low]) + self.attention.seconds(reach)
    }

    /// Corrects the table by a pass that was timed.
    pub fn observe(&mut self, rows: usize, reach: Reach, took: Duration) {
        if rows == 0 {
            return;
        }
        let predicted = self.seconds(rows, reach);
        let error = (took.as_secs_f64() / predicted).clamp(1.0 / BELIEVED, BELIEVED).ln();
        let (low, share) = place(rows);
        let share = share.clamp(0.0, 1.0);
        self.base_s[low] *= (LEARNING_RATE * (1.0 - share) * error).exp();
        self.base_s[low + 1] *= (LEARNING_RATE * share * error).exp();
        self.make_monotone(if share > 0.5 { low + 1 } else { low });
    }

    /// More rows never cost less: what contradicts the point just learned gives way to it.
    fn make_monotone(&mut self, learned: usize) {
        for i in (0..learned).rev() {
            self.base_s[i] = self.base_s[i].min(self.base_s[i + 1]);
        }
        for i in learned + 1..ROW_GRID.len() {
            self.base_s[i] = self.base_s[i].max(self.base_s[i - 1]);
        }
    }
}

/// The nearest sequence that never falls, by squared error: neighbours that fall are pooled.
fn isotonic<const N: usize>(points: [f64; N]) -> [f64; N] {
    let mut pools: Vec<(f64, usize)> = Vec::with_capacity(N);
    for point in points {
        let (mut mean, mut size) = (point, 1);
        while let Some(&(before, count)) = pools.last().filter(|&&(before, _)| before > mean) {
            mean = (mean * size as f64 + before * count as f64) / (size + count) as f64;
            size += count;
            pools.pop();
        }
        pools.push((mean, size));
    }
    let mut pooled = pools.into_iter().flat_map(|(mean, size)| std::iter::repeat_n(mean, size));
    points.map(|point| pooled.next().unwrap_or(point))
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

/// The grid cell of a row count, and where in it: 0 at its beginning, 1 at its end, more beyond the grid.
fn place(rows: usize) -> (usize, f64) {
    let low = ROW_GRID.iter().rposition(|&grid| grid <= rows).unwrap_or(0).min(ROW_GRID.len() - 2);
    let (from, to) = (ROW_GRID[low] as f64, ROW_GRID[low + 1] as f64);
    (low, (rows as f64 - from) / (to - from))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn staircase() -> PassCost {
        PassCost::linear(1000, 10, AttentionCost { per_kv_fs: 3_000_000, per_row_fs: 2_000_000 })
    }

    #[test]
    fn a_reading_of_a_busy_moment_is_spread_and_not_carried_on() {
        let points = |ms: [u64; ROW_GRID.len()]| {
            let cost = PassCost::new(ms.map(Duration::from_millis), AttentionCost::default());
            cost.points().map(|time| time.as_millis())
        };
        let quiet = [10, 10, 12, 14, 20, 30, 50, 90, 170, 330, 650, 1290];
        assert_eq!(points(quiet), quiet.map(u128::from));
        // Two rows took 40 ms: of them and those behind that took less, as many share a mean as must.
        let busy = [10, 40, 12, 14, 20, 30, 50, 90, 170, 330, 650, 1290];
        assert_eq!(points(busy), [10, 21, 21, 21, 21, 30, 50, 90, 170, 330, 650, 1290]);
    }

    #[test]
    fn between_and_beyond_the_grid_cost_is_linear() {
        let cost = staircase();
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
    fn a_machine_that_slows_down_is_believed_after_a_while() {
        let mut cost = staircase();
        for _ in 0..200 {
            cost.observe(8, Reach::NONE, Duration::from_micros(3000));
        }
        assert!((cost.seconds(8, Reach::NONE) * 1e3 - 3.0).abs() < 0.1, "{}", cost.seconds(8, Reach::NONE));
        // One hiccup is not.
        cost.observe(8, Reach::NONE, Duration::from_secs(1));
        assert!(cost.seconds(8, Reach::NONE) < 3.3e-3);
    }

    proptest! {
        #[test]
        fn more_rows_never_cost_less(
            profiled in prop::array::uniform12(1..10_000u64),
            passes in prop::collection::vec((1..600usize, 0..10_000usize, 1..100_000u64), 0..50),
        ) {
            let mut cost = PassCost::new(profiled.map(Duration::from_micros), AttentionCost { per_kv_fs: 1, per_row_fs: 3_000_000 });
            for (rows, context, took) in passes {
                cost.observe(rows, Reach::single(context), Duration::from_micros(took));
            }
            for rows in 1..600 {
                prop_assert!(cost.seconds(rows, Reach::NONE) <= cost.seconds(rows + 1, Reach::NONE) * (1.0 + 1e-12));
            }
        }

        #[test]
        fn a_profiled_table_is_made_again_of_its_points(
            profiled in prop::array::uniform12(0..1_000_000_000_000_000u64),
            (per_kv_fs, per_row_fs) in (0..u64::from(u32::MAX), 0..u64::from(u32::MAX)),
        ) {
            let attention = AttentionCost { per_kv_fs, per_row_fs };
            let cost = PassCost::new(profiled.map(Duration::from_nanos), attention);
            prop_assert!(cost.points().is_sorted());
            prop_assert_eq!(cost.attention(), attention);
            prop_assert_eq!(&PassCost::new(cost.points(), cost.attention()), &cost);
        }
    }
}
