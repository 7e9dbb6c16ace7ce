//! Hidden states on the CPU: what is read of a row is, bit for bit, the residual stream behind the layers named, whatever leaves the pass and
//! however its layers are asked for; and what was overwritten is lost, never wrong.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use faser_kernels::{BlockId, Dtype, Isa, KvCache, Lane, Partition, Rows};
use faser_models::synthetic::{SyntheticSpec, pair};
use faser_models::{HiddenStates, Model, Scratch, Shard};

use crate::session::load;

/// Rows of each sequence.
const SEQUENCES: [usize; 3] = [4, 5, 3];
const ROWS: usize = 12;
const MAX_ROWS: usize = 16;

/// A model on a lane: passes of some rows of each sequence, from position 0 on.
struct Device<'m> {
    model: &'m Model,
    lane: Lane,
    kv: KvCache,
    scratch: Scratch,
}

impl<'m> Device<'m> {
    fn new(model: &'m Model, hidden: Option<&Arc<HiddenStates>>) -> Device<'m> {
        let mut scratch = model.scratch(MAX_ROWS, MAX_ROWS);
        if let Some(hidden) = hidden {
            scratch.attach(hidden.clone());
        }
        Device {
            model,
            lane: Lane::new(&Partition { cores: vec![0] }, Isa::detect()).unwrap(),
            kv: KvCache::new(model.kv_shape(SEQUENCES.len(), 16), model.kv_dtype()).unwrap(),
            scratch,
        }
    }

    fn begin(&mut self) {
        let tokens: Vec<u32> = rows(SEQUENCES).map(|(s, at)| ((at * 31 + s * 7 + 1) % 64) as u32).collect();
        self.model.begin(&self.lane, &mut self.scratch, &tokens);
    }

    fn layers(&mut self, layers: std::ops::Range<usize>, left: [usize; 3]) {
        let positions: Vec<u32> = rows(left).map(|(_, position)| position as u32).collect();
        let table_of: Vec<u32> = rows(left).map(|(sequence, _)| sequence as u32).collect();
        let tables: [&[BlockId]; 3] = [&[2], &[0], &[1]];
        let rows = Rows { positions: &positions, table_of: &table_of, tables: &tables };
        self.model.layers(&self.lane, layers, &mut self.kv, &mut self.scratch, rows);
    }

    /// Of each sequence only so many rows stay of those that it has.
    fn keep(&mut self, before: [usize; 3], after: [usize; 3]) {
        let stays = |&(_, (sequence, at)): &(u32, (usize, usize))| at < after[sequence];
        let keep: Vec<u32> = (0..).zip(rows(before)).filter(stays).map(|(row, _)| row).collect();
        self.model.keep(&mut self.scratch, before.iter().sum(), &keep);
    }

    fn whole_pass(&mut self) {
        self.begin();
        self.layers(0..self.model.config().layers.len(), SEQUENCES);
    }
}

/// Sequence and position of each row.
fn rows(counts: [usize; 3]) -> impl Iterator<Item = (usize, usize)> {
    counts.into_iter().enumerate().flat_map(|(sequence, rows)| (0..rows).map(move |at| (sequence, at)))
}

/// Synthetic models of four layers, and families of their own ways to the residual stream.
fn models() -> Vec<Model> {
    let spec = SyntheticSpec { residual_scale: 1.0, ..SyntheticSpec::preset("tiny").unwrap() };
    let golden = |case| load(case, Shard::WHOLE, Dtype::F32).unwrap();
    let [f32, bf16] = [Dtype::F32, Dtype::Bf16].map(|dtype| pair(&spec, dtype, &mut |_| {}).unwrap().0);
    vec![f32, bf16, golden("gemma2"), golden("qwen3-tied")]
}

/// The states of each row of a whole pass, by hand: begin, and the layers up to each of those named.
fn by_hand(model: &Model, layers: &[usize]) -> Vec<Vec<u32>> {
    let mut states = vec![Vec::new(); ROWS];
    for layer in layers {
        let mut device = Device::new(model, None);
        device.begin();
        device.layers(0..layer + 1, SEQUENCES);
        for (row, states) in states.iter_mut().enumerate() {
            states.extend(bits(device.scratch.residual().row(row)));
        }
    }
    states
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

/// One row's, if they are there.
fn read(hidden: &HiddenStates, row: u64) -> Option<Vec<u32>> {
    let mut states = vec![f32::NAN; hidden.layers().width()];
    hidden.read(row..row + 1, &mut states).then(|| bits(&states))
}

#[test]
fn states_are_the_residual_stream_behind_the_layers_named() {
    for model in models() {
        let last = model.config().layers.len() - 1;
        for named in [vec![0], vec![last], vec![0, last], (0..=last).collect()] {
            let expected = by_hand(&model, &named);
            let hidden = HiddenStates::new(model.config(), &named, 2 * MAX_ROWS);
            let device = &mut Device::new(&model, Some(&hidden));
            device.whole_pass();
            let first = device.scratch.first_hidden().unwrap();
            for (row, expected) in expected.iter().enumerate() {
                assert!(read(&hidden, first + row as u64).as_ref() == Some(expected), "{model:?} {named:?}");
            }
            // All together they stand row by row.
            let mut all = vec![0.0; ROWS * hidden.layers().width()];
            assert!(hidden.read(first..first + ROWS as u64, &mut all));
            assert_eq!(bits(&all), expected.concat());
        }
    }
}

#[test]
fn rows_that_leave_have_no_states_and_change_none() {
    for model in models() {
        let last = model.config().layers.len() - 1;
        let named = [0, last];
        let expected = by_hand(&model, &named);
        let hidden = HiddenStates::new(model.config(), &named, 2 * MAX_ROWS);
        let device = &mut Device::new(&model, Some(&hidden));
        // Before the first layer named, between both, and behind the last.
        let (second, third, fourth) = ([2, 5, 1], [2, 3, 0], [1, 1, 0]);
        device.begin();
        device.keep(SEQUENCES, second);
        device.layers(0..1, second);
        device.keep(second, third);
        device.layers(1..last + 1, third);
        device.keep(third, fourth);
        let first = device.scratch.first_hidden().unwrap();
        for ((row, (sequence, at)), expected) in (0..).zip(rows(SEQUENCES)).zip(expected) {
            let expected = (at < third[sequence]).then_some(expected);
            assert!(read(&hidden, first + row) == expected, "{model:?}: row {at} of sequence {sequence}");
        }
        assert!(!hidden.read(first..first + 3, &mut vec![0.0; 3 * hidden.layers().width()]));
    }
}

#[test]
fn rows_that_were_overwritten_are_lost() {
    let model = models().remove(0);
    let expected = by_hand(&model, &[1, 2]);
    // No multiple of a pass: rows stand in another slot each time, and pass over the end.
    let capacity = 2 * MAX_ROWS + 3;
    let hidden = HiddenStates::new(model.config(), &[1, 2], capacity);
    let device = &mut Device::new(&model, Some(&hidden));
    for pass in 1..=7u64 {
        device.begin();
        let (begun, claimed) = ((pass - 1) * ROWS as u64, pass * ROWS as u64);
        assert_eq!(device.scratch.first_hidden(), Some(begun));
        device.layers(0..2, SEQUENCES);
        let are_there_up_to = |end: u64| {
            for row in 0..claimed + 3 {
                let there = row < end && row + capacity as u64 >= claimed;
                let of_pass = &expected[row as usize % ROWS];
                assert!(read(&hidden, row).as_ref() == there.then_some(of_pass), "pass {pass}, row {row}");
            }
        };
        // Under way: its rows are not there yet, and what they will stand on is not any more.
        are_there_up_to(begun);
        device.layers(2..4, SEQUENCES);
        are_there_up_to(claimed);
    }
}

#[test]
fn a_reader_beside_the_writer_never_sees_half_a_row() {
    let model = models().remove(0);
    let expected = by_hand(&model, &[0, 3]);
    let capacity = 2 * MAX_ROWS + 1;
    let hidden = HiddenStates::new(model.config(), &[0, 3], capacity);
    let (written, enough) = (AtomicU64::new(0), AtomicBool::new(false));
    let (mut found, mut lost) = (0, 0);
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| {
            let device = &mut Device::new(&model, Some(&hidden));
            while !enough.load(Ordering::Relaxed) {
                device.whole_pass();
                written.fetch_add(ROWS as u64, Ordering::Release);
            }
        });
        while (found < 100_000 || lost < 10_000) && !writer.is_finished() {
            // The oldest rows there are: the next pass takes their slots.
            let end = written.load(Ordering::Acquire);
            for row in end.saturating_sub(capacity as u64)..end {
                match read(&hidden, row) {
                    Some(states) => {
                        found += 1;
                        if states != expected[row as usize % ROWS] {
                            enough.store(true, Ordering::Relaxed);
                            panic!("row {row}");
                        }
                    }
                    None => lost += 1,
                }
            }
        }
        enough.store(true, Ordering::Relaxed);
    });
}

#[test]
#[should_panic(expected = "[2, 1] are no layers, in their order, of 4")]
fn layers_are_named_in_their_order() {
    HiddenStates::new(models()[0].config(), &[2, 1], 32);
}

#[test]
#[should_panic(expected = "31 rows of hidden states, with passes of 16")]
fn a_ring_has_room_for_two_passes() {
    let model = models().remove(0);
    Device::new(&model, Some(&HiddenStates::new(model.config(), &[1], 31)));
}
