//! Fills the panels of a matrix by several threads: packing takes longer than reading the file.
//!
//! Each panel is made of its own rows alone, so a matrix has the same bits whatever the threads.

use super::Source;
use crate::KernelError;
use std::num::NonZero;
use std::sync::{Mutex, OnceLock, PoisonError};
use std::thread;

/// Where an output's row is: its source, and the first element there.
pub(super) type Row<'a> = (&'a Source<'a>, usize);

/// Numbers for which a thread more is worth its start.
const NUMBERS_OF_THREAD: usize = 1 << 18;
/// More threads wait for memory.
const MOST_THREADS: usize = 16;

/// The rows of `sources`, one after the other, each of so many elements.
pub(super) fn rows<'a>(sources: &'a [Source<'a>], in_features: usize) -> Vec<Row<'a>> {
    let of_source =
        |source: &'a Source<'a>| (0..source.len()).step_by(in_features).map(move |at| (source, at));
    sources.iter().flat_map(of_source).collect()
}

/// Fills `packed`, panels of `panel` elements, each of so many rows of its own.
///
/// # Errors
/// That of the first panel for which `fill` has one.
pub(super) fn fill_panels<T: Send>(
    packed: &mut [T],
    panel: (usize, usize),
    rows: &[Row<'_>],
    fill: impl Fn(&mut [T], &[Row<'_>]) -> Result<(), KernelError> + Sync,
) -> Result<(), KernelError> {
    let threads = (packed.len() / NUMBERS_OF_THREAD).clamp(1, threads());
    fill_by(threads, packed, panel, rows, fill)
}

fn fill_by<T: Send>(
    threads: usize,
    packed: &mut [T],
    (panel, rows_of_panel): (usize, usize),
    rows: &[Row<'_>],
    fill: impl Fn(&mut [T], &[Row<'_>]) -> Result<(), KernelError> + Sync,
) -> Result<(), KernelError> {
    let panels = packed.chunks_exact_mut(panel.max(1)).zip(rows.chunks(rows_of_panel)).enumerate();
    // With it the first failure, by its panel: once there is one no further panel is begun, and those before it are.
    let left = Mutex::new((panels, None));
    let work = || {
        loop {
            let next = {
                let (panels, failed) = &mut *left.lock().unwrap_or_else(PoisonError::into_inner);
                if failed.is_some() { None } else { panels.next() }
            };
            let Some((place, (panel, rows))) = next else { return };
            if let Err(error) = fill(panel, rows) {
                let (_, failed) = &mut *left.lock().unwrap_or_else(PoisonError::into_inner);
                if failed.as_ref().is_none_or(|(known, _)| place < *known) {
                    *failed = Some((place, error));
                }
            }
        }
    };
    thread::scope(|scope| {
        for _ in 1..threads {
            // Where the system has no thread left, there are those that are.
            let _ = thread::Builder::new().name("faser-pack".to_owned()).spawn_scoped(scope, work);
        }
        work();
    });
    let (_, failed) = left.into_inner().unwrap_or_else(PoisonError::into_inner);
    failed.map_or(Ok(()), |(_, error)| Err(error))
}

/// As many as this process may run at once.
fn threads() -> usize {
    static THREADS: OnceLock<usize> = OnceLock::new();
    *THREADS.get_or_init(|| thread::available_parallelism().map_or(1, NonZero::get).min(MOST_THREADS))
}

#[cfg(test)]
mod tests {
    use super::super::panel_sizes::PANEL;
    use super::*;

    #[test]
    fn every_panel_gets_its_own_rows_whatever_the_threads() {
        let numbers: Vec<f32> = (0..1000 * 3).map(|i| i as f32).collect();
        let (first, second) = numbers.split_at(70 * 3);
        let sources = [Source::F32(first), Source::F32(second)];
        let rows = rows(&sources, 3);
        assert_eq!(rows.len(), 1000);
        let packed = |threads| {
            let mut packed = vec![0.0; 1000_usize.next_multiple_of(PANEL) * 3];
            let fill = |panel: &mut [f32], rows: &[Row<'_>]| {
                for (to, (source, at)) in panel.chunks_exact_mut(3).zip(rows) {
                    source.read(*at, to);
                }
                Ok(())
            };
            fill_by(threads, &mut packed, (PANEL * 3, PANEL), &rows, fill).unwrap();
            packed
        };
        for threads in [1, 2, 7, 100] {
            let packed = packed(threads);
            assert_eq!(packed[..3000], numbers, "{threads} threads");
            assert!(packed[3000..].iter().all(|x| *x == 0.0), "{threads} threads");
        }
    }

    #[test]
    fn the_first_failure_is_told_whatever_the_threads() {
        let numbers = vec![1.0; 50 * PANEL];
        let sources = [Source::F32(&numbers)];
        let rows = rows(&sources, 1);
        for threads in [1, 3, 8] {
            let mut packed = vec![0_u32; 50 * PANEL];
            let found = fill_by(threads, &mut packed, (PANEL, PANEL), &rows, |_, rows| {
                let elements = rows[0].1;
                if elements < 20 * PANEL {
                    return Ok(());
                }
                Err(KernelError::NotWholeRows { elements, columns: 1 })
            });
            let said = found.unwrap_err().to_string();
            assert!(said.contains(&format!("{} elements", 20 * PANEL)), "{threads} threads: {said}");
        }
    }
}
