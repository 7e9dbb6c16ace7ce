//! What the machine can do at most, measured: multiply-adds in registers, and reading memory.
//!
//! Both are rates over a fixed time, on the cores that a lane's workers have, all of them at once: each core counts what it has done,
//! and the counts are added up. A few milliseconds suffice, so it can be done again beside everything that is compared with it.

#[cfg(target_arch = "x86_64")]
mod amx;
mod peak;
mod read;
#[cfg(target_arch = "x86_64")]
mod vector;

pub(crate) use peak::Peak;
pub(crate) use read::Memory;

use faser_kernels::{Isa, Lane, Partition};
use std::sync::Barrier;
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
