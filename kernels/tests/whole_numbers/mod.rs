//! What tests of whole-numbered weights share: numbers that quantising to int8 does not change, and how far products are off.

use crate::reference::{Random, bits, lane, product};
use faser_kernels::{Isa, Lane, Matrix, Tensor};

/// Numbers that share a scale.
pub(crate) const BLOCK: usize = 32;

/// Rows of whole numbers from -127 to 127, each block with a scale of few digits and with 127 or -127 in it: quantising them
/// changes nothing.
pub(crate) struct Whole {
    cols: usize,
    numbers: Vec<i64>,
    scales: Vec<f32>,
}

impl Whole {
    pub(crate) fn new(random: &mut Random, rows: usize, cols: usize) -> Whole {
        let mut numbers: Vec<i64> = (0..rows * cols).map(|_| random.below(255) as i64 - 127).collect();
        for block in numbers.chunks_mut(cols).flat_map(|row| row.chunks_mut(BLOCK)) {
            let at = random.below(block.len());
            block[at] = if random.below(2) == 0 { 127 } else { -127 };
        }
        let scale = |random: &mut Random| {
            (1024 + random.below(1024)) as f32 * 2f32.powi(random.below(20) as i32 - 25)
        };
        let scales = (0..rows * cols.div_ceil(BLOCK)).map(|_| scale(random)).collect();
        Whole { cols, numbers, scales }
    }

    /// The blocks of a row, and their scales.
    pub(crate) fn blocks(&self, row: usize) -> impl Iterator<Item = (&[i64], f32)> {
        let scales = &self.scales[row * self.cols.div_ceil(BLOCK)..];
        self.numbers[row * self.cols..][..self.cols].chunks(BLOCK).zip(scales.iter().copied())
    }

    pub(crate) fn values(&self) -> Vec<f32> {
        let rows = 0..self.numbers.len() / self.cols;
        let blocks = rows.flat_map(|row| self.blocks(row));
        blocks.flat_map(|(block, scale)| block.iter().map(move |q| *q as f32 * scale)).collect()
    }
}

/// One row of few and of many has this number in this place: all of its outputs are NaN, and those of the others what they are alone.
pub(crate) fn one_of_them_is_not_finite(lane: &Lane, matrix: &Matrix, good: &[f32], (bad, at): (f32, usize)) {
    let alone = product(lane, Tensor::from_rows(good.len(), good).view(1), matrix);
    for (rows, place) in [(2, 0), (17, 0), (17, 16), (40, 20)] {
        let mut x = good.repeat(rows);
        x[place * good.len() + at] = bad;
        let out = product(lane, Tensor::from_rows(good.len(), &x).view(rows), matrix);
        for (r, bits_of_row) in bits(&out, rows).into_iter().enumerate() {
            let what = format!("{}: {bad} at {at} of row {place} of {rows}, row {r}", lane.isa());
            if r == place {
                assert!(out.row(r).iter().all(|y| y.is_nan()), "{what}");
            } else {
                assert_eq!(bits_of_row, bits(&alone, 1)[0], "{what}");
            }
        }
    }
}

/// A sum of uniform numbers: near enough to normal.
pub(crate) fn normal(random: &mut Random) -> f32 {
    (0..8).map(|_| random.number()).sum::<f32>() * (3.0f32 / 8.0).sqrt()
}

/// RMS error of `x` times a packed matrix beside the product with its weights `w` in f64, as a share of the RMS of that.
pub(crate) fn relative_error(x: &Tensor, rows: usize, matrix: &Matrix, w: &[f32]) -> f64 {
    let out = product(&lane(Isa::detect(), 2), x.view(rows), matrix);
    let (mut errors, mut squares) = (0.0, 0.0);
    for r in 0..rows {
        for (found, w) in out.row(r).iter().zip(w.chunks(matrix.in_features())) {
            let products = x.row(r).iter().zip(w);
            let exact: f64 = products.map(|(x, w)| f64::from(*x) * f64::from(*w)).sum();
            errors += (f64::from(*found) - exact).powi(2);
            squares += exact.powi(2);
        }
    }
    (errors / squares).sqrt()
}
