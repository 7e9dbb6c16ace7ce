//! Reading memory as fast as it goes: every byte of a large buffer once, in order, each core its own part.

use super::rate;
use faser_kernels::Tensor;
use std::hint::black_box;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

/// Bytes between two looks at the clock.
const PORTION: usize = 256 * 1024;
const COLS: usize = PORTION / size_of::<f32>();
/// f32 of a cache line.
const LINE: usize = 16;
/// Ways to read, which differ in how many bytes ahead memory is asked for. Without asking a core waits; which is better changes.
const WAYS: [fn(&[f32]) -> u32; 2] = [sum::<{ 4 * 1024 }>, sum::<{ 12 * 1024 }>];

/// A buffer too large for any cache, in huge pages where the system grants them, as weights are.
pub(crate) struct Memory {
    portions: Tensor,
    /// Where the next reading begins in each core's part: what was read last may still be in a cache.
    next: AtomicUsize,
}

impl Memory {
    /// A buffer of at least `bytes`, every page of it touched.
    pub(crate) fn new(bytes: usize) -> Memory {
        let count = bytes.div_ceil(PORTION);
        let mut portions = Tensor::zeros(count, COLS);
        (0..count).for_each(|i| portions.row_mut(i).fill(1.0));
        Memory { portions, next: AtomicUsize::new(0) }
    }

    /// Bytes read a second, these cores together: the best of a few ways, each tried for `time`.
    pub(crate) fn measure(&self, cores: &[usize], time: Duration) -> f64 {
        let count = self.portions.capacity();
        let part = count.div_ceil(cores.len().max(1));
        let mut best: f64 = 0.0;
        for way in WAYS {
            let (first, most) = (self.next.load(Relaxed), AtomicUsize::new(0));
            let rate = rate(cores, Duration::ZERO, time, |worker, n| {
                let portion = (worker * part + (first + n) % part) % count;
                black_box(way(self.portions.row(portion)));
                most.fetch_max(n + 1, Relaxed);
                PORTION as u64
            });
            self.next.store((first + most.into_inner()) % part, Relaxed);
            best = best.max(rate);
        }
        best
    }
}

/// Sum of the numbers' bits: in whole numbers the additions need no order.
fn sum<const AHEAD: usize>(portion: &[f32]) -> u32 {
    let mut sums = [0_u32; LINE];
    for line in portion.chunks_exact(LINE) {
        prefetch(line.as_ptr().cast::<u8>().wrapping_add(AHEAD));
        for (sum, number) in sums.iter_mut().zip(line) {
            *sum = sum.wrapping_add(number.to_bits());
        }
    }
    sums.into_iter().fold(0, u32::wrapping_add)
}

/// Asks for a cache line; any address will do.
fn prefetch(at: *const u8) {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: a hint, that never faults.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(at.cast()) };
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = at;
}
