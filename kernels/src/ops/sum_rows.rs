//! sum_rows: `out[r]` becomes the sum of row `r` of `x`. It does nothing but read: how fast it goes through more than the caches hold is
//! the bandwidth that other ops can be measured by.

use crate::memory::{SharedMut, View};
use crate::simd::{Kernel, Simd, dispatch};
use crate::{Lane, Op};

/// Sums each row.
///
/// # Panics
/// If `out` is not as long as `x` has rows.
pub fn sum_rows(lane: &Lane, x: View<'_>, out: &mut [f32]) {
    assert_eq!(out.len(), x.rows(), "sum_rows: one place per row");
    let out = SharedMut::new(out);
    let isa = lane.supported();
    // At some 40 GB/s.
    lane.for_each(Op::SumRows, x.rows(), x.cols() / 10, |r, _| {
        // SAFETY: each row is one item, done once.
        let place = unsafe { out.part(r, 1) };
        place[0] = dispatch(isa, Sum { x: x.row(r) });
    });
}

struct Sum<'a> {
    x: &'a [f32],
}

impl Kernel for Sum<'_> {
    type Output = f32;

    /// Both halves of the row at once: two streams are read faster than one (by a quarter, and four or eight by less, on a Xeon with AMX).
    #[inline(always)]
    fn run<S: Simd>(self, s: S) -> f32 {
        let half = self.x.len().div_ceil(2).next_multiple_of(S::LANES).min(self.x.len());
        let (first, second) = self.x.split_at(half);
        let mut sums = [s.splat(0.0); 2];
        for at in (0..half).step_by(S::LANES) {
            sums[0] = s.add(sums[0], s.load_some(&first[at..]));
            sums[1] = s.add(sums[1], s.load_some(second.get(at..).unwrap_or_default()));
        }
        s.sum(s.add(sums[0], sums[1]))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Isa, Partition, Tensor};

    #[test]
    fn sums_are_those_of_the_rows() {
        // Whole numbers: exact in any order.
        for cols in [1, 7, 16, 130, 1031] {
            let values: Vec<f32> = (0..5 * cols).map(|i| ((i * 7919) % 101) as f32 - 30.0).collect();
            let expected: Vec<f32> = values.chunks(cols).map(|row| row.iter().sum()).collect();
            let x = Tensor::from_rows(cols, &values);
            for isa in Isa::available() {
                let lane = Lane::new(&Partition { cores: vec![0, 0] }, isa).unwrap();
                let mut out = [0.0; 5];
                sum_rows(&lane, x.view(5), &mut out);
                assert_eq!(out[..], expected, "{isa}, {cols} columns");
            }
        }
    }
}
