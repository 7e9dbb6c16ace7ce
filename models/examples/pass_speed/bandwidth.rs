//! How fast the lane's workers read memory.

use std::time::Instant;

use faser_kernels::{Lane, Tensor, ops};

/// Numbers of a row: 64 KiB.
const COLUMNS: usize = 1 << 14;

/// As much memory as the weights take, in huge pages as they are: what of it stays in a cache stays of the weights too.
pub(crate) struct Memory {
    numbers: Tensor,
    sums: Vec<f32>,
}

impl Memory {
    pub(crate) fn new(bytes: u64) -> Memory {
        let rows = (bytes as usize).div_ceil(COLUMNS * size_of::<f32>());
        let mut numbers = Tensor::zeros(rows, COLUMNS);
        // Written once, or every page would be the system's one page of zeros.
        (0..rows).for_each(|row| numbers.row_mut(row).fill(1.0));
        Memory { numbers, sums: vec![0.0; rows] }
    }

    /// Reads all of it twice. Bytes per second of the second time.
    pub(crate) fn read(&mut self, lane: &Lane) -> f64 {
        let rows = self.sums.len();
        let mut seconds = 0.0;
        for _ in 0..2 {
            let begin = Instant::now();
            ops::sum_rows(lane, self.numbers.view(rows), &mut self.sums);
            seconds = begin.elapsed().as_secs_f64();
        }
        assert!(self.sums.iter().all(|sum| *sum == COLUMNS as f32), "memory was read wrongly");
        (rows * COLUMNS * size_of::<f32>()) as f64 / seconds
    }
}
