//! What the machine can do at most, measured: multiply-adds in registers, and reading memory.
//!
//! Both are rates over a fixed time, on the cores that a lane's workers have, all of them at once: each core counts what it has done,
//! and the counts are added up. A few milliseconds suffice, so it can be done again beside everything that is compared with it.

#[cfg(target_arch = "x86_64")]
mod amx_peak;
mod peak;
#[cfg(target_arch = "x86_64")]
mod vector;

pub(crate) use peak::Peak;

use faser_kernels::{Isa, Lane, Partition, Tensor};
use std::hint::black_box;
use std::sync::Barrier;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// Units of work a second: `portion` does the `n`th portion and says how many units that was; it is done again and again on
/// each core for `warm_up` and then for `time`. `portion` is told which of the cores it is on, counted from 0, and `n`.
fn rate(
    cores: &[usize],
    warm_up: Duration,
    time: Duration,
    portion: impl Fn(usize, usize) -> u64 + Sync,
) -> f64 {
    let all_ready = Barrier::new(cores.len());
    let on_core = |worker: usize, core: usize| {
        pin(core);
        all_ready.wait();
        let (mut n, mut begin, mut units, mut warm) = (0, Instant::now(), 0, false);
        loop {
            units += portion(worker, n);
            n += 1;
            let elapsed = begin.elapsed();
            if warm && elapsed >= time {
                return units as f64 / elapsed.as_secs_f64();
            }
            if !warm && elapsed >= warm_up {
                (begin, units, warm) = (Instant::now(), 0, true);
            }
        }
    };
    std::thread::scope(|scope| {
        let on_core = &on_core;
        let cores = cores.iter().enumerate();
        let threads: Vec<_> =
            cores.map(|(worker, core)| scope.spawn(move || on_core(worker, *core))).collect();
        threads.into_iter().map(|thread| thread.join().expect("portions do not panic")).sum()
    })
}

/// Pins the calling thread as workers are pinned: a lane of one core is its owner alone. Where workers are not pinned it is not either.
fn pin(core: usize) {
    if let Ok(lane) = Lane::new(&Partition { cores: vec![core] }, Isa::Portable) {
        let _ = lane.pin_current_thread();
    }
}

/// Bytes between two looks at the clock.
const PORTION: usize = 256 * 1024;
const COLS: usize = PORTION / size_of::<f32>();
/// f32 of a cache line.
const LINE: usize = 16;
/// Ways to read, which differ in how many bytes ahead memory is asked for. Without asking a core waits; which is better changes.
const WAYS: [fn(&[f32]) -> u32; 2] = [sum::<{ 4 * 1024 }>, sum::<{ 12 * 1024 }>];

/// Reading memory as fast as it goes, every byte once, in order, each core its own part: a buffer too large for any
/// cache, in huge pages where the system grants them, as weights are.
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
