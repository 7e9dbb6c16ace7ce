//! What passes cost: measured tables per lane and partition, kept monotone, corrected as passes are timed (D6).

use std::time::Duration;

/// Row counts at which a pass is profiled; between them cost is interpolated, beyond the last it is extrapolated.
pub const ROW_GRID: [usize; 12] = [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048];

/// How far one timed pass moves the table.
const LEARNING_RATE: f64 = 0.08;
/// A single pass is believed to be off by no more than this factor: the rest is the machine doing something else.
const BELIEVED: f64 = 2.0;

/// Cost of passes of one model on one partition: a monotone function of rows, plus a part for attention.
#[derive(Clone, Debug, PartialEq)]
pub struct PassCost {
    /// Seconds at each row count of [`ROW_GRID`], without context.
    base_s: [f64; ROW_GRID.len()],
    /// Seconds per row and token of its context.
    per_context_s: f64,
}

impl PassCost {
    /// From profiled times at [`ROW_GRID`], without context; and seconds per row and context token.
    pub fn new(profiled: [Duration; ROW_GRID.len()], per_context: Duration) -> PassCost {
        let mut cost = PassCost {
            base_s: profiled.map(|time| time.as_secs_f64().max(1e-9)),
            per_context_s: per_context.as_secs_f64(),
        };
        cost.make_monotone(0);
        cost
    }

    /// Times at [`ROW_GRID`], without context, to the nanosecond: with [`PassCost::per_context`] what [`PassCost::new`] takes.
    pub fn points(&self) -> [Duration; ROW_GRID.len()] {
        self.base_s.map(duration)
    }

    /// Time per row and token of its context, to the nanosecond.
    pub fn per_context(&self) -> Duration {
        duration(self.per_context_s)
    }

    /// Seconds a pass of `rows` rows takes; `context` is the sum of all rows' positions.
    pub fn seconds(&self, rows: usize, context: usize) -> f64 {
        if rows == 0 {
            return 0.0;
        }
        let (low, share) = place(rows);
        self.base_s[low] + share * (self.base_s[low + 1] - self.base_s[low]) + self.attention(context)
    }

    /// Seconds that attention over `context` tokens adds.
    pub fn attention(&self, context: usize) -> f64 {
        self.per_context_s * context as f64
    }

    /// Corrects the table by a pass that was timed.
    pub fn observe(&mut self, rows: usize, context: usize, took: Duration) {
        if rows == 0 {
            return;
        }
        let predicted = self.seconds(rows, context);
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
        PassCost::new(
            ROW_GRID.map(|rows| Duration::from_micros(1000 + 10 * rows as u64)),
            Duration::from_nanos(5),
        )
    }

    #[test]
    fn between_and_beyond_the_grid_cost_is_linear() {
        let cost = staircase();
        for (rows, expected) in [(1, 1010), (3, 1030), (12, 1120), (512, 6120), (4096, 41960)] {
            assert!((cost.seconds(rows, 0) * 1e6 - f64::from(expected)).abs() < 1e-6, "{rows}");
        }
        assert!((cost.seconds(1, 1000) - cost.seconds(1, 0) - 5e-6).abs() < 1e-12);
        assert_eq!(cost.seconds(0, 0), 0.0);
    }

    #[test]
    fn a_machine_that_slows_down_is_believed_after_a_while() {
        let mut cost = staircase();
        for _ in 0..200 {
            cost.observe(8, 0, Duration::from_micros(3000));
        }
        assert!((cost.seconds(8, 0) * 1e3 - 3.0).abs() < 0.1, "{}", cost.seconds(8, 0));
        // One hiccup is not.
        cost.observe(8, 0, Duration::from_secs(1));
        assert!(cost.seconds(8, 0) < 3.3e-3);
    }

    proptest! {
        #[test]
        fn more_rows_never_cost_less(
            profiled in prop::array::uniform12(1..10_000u64),
            passes in prop::collection::vec((1..600usize, 0..10_000usize, 1..100_000u64), 0..50),
        ) {
            let mut cost = PassCost::new(profiled.map(Duration::from_micros), Duration::from_nanos(3));
            for (rows, context, took) in passes {
                cost.observe(rows, context, Duration::from_micros(took));
            }
            for rows in 1..600 {
                prop_assert!(cost.seconds(rows, 0) <= cost.seconds(rows + 1, 0) * (1.0 + 1e-12));
            }
        }

        #[test]
        fn a_profiled_table_is_made_again_of_its_points(
            profiled in prop::array::uniform12(0..1_000_000_000_000_000u64),
            per_context in 0..1_000_000_000u64,
        ) {
            let cost = PassCost::new(profiled.map(Duration::from_nanos), Duration::from_nanos(per_context));
            prop_assert!(cost.points().is_sorted());
            prop_assert_eq!(cost.per_context(), Duration::from_nanos(per_context));
            prop_assert_eq!(&PassCost::new(cost.points(), cost.per_context()), &cost);
        }
    }
}
