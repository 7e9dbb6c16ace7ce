//! Hidden states on a GPU, over a fake driver whose streams run only when they are waited for: what another lane reads of a row is the CPU's residual
//! stream, whatever leaves the pass, by launches and by graphs; and events alone order both lanes.

use std::ops::Range;
use std::sync::Arc;

use faser_kernels::cuda::{Arena, Chunk, CudaLane, Gpu, PruneArgs, PruneTest, Ptr, Sampler, Share};
use faser_kernels::{BlockId, Dtype, Isa, KvCache, Lane, Partition, Rows, Sampling};
use faser_models::cuda::{CudaHiddenStates, CudaModel, CudaPasses, CudaSizes, PassInput};
use faser_models::synthetic::{self, SyntheticSpec};
use faser_models::{Model, Shard, WeightSource};

use crate::cuda_fake;

const LAYERS: usize = 4;
const HIDDEN: usize = 64;
const NAMED: [usize; 3] = [0, 2, 3];
const WIDTH: usize = NAMED.len() * HIDDEN;
const MAX_ROWS: usize = 96;
/// No multiple of any pass.
const CAPACITY: usize = 2 * MAX_ROWS + 5;
/// Rows of each sequence: one pass comes by graphs, one is too large for them.
const SMALL: [usize; 3] = [7, 12, 4];
const LARGE: [usize; 3] = [31, 40, 22];

const SPEC: SyntheticSpec = SyntheticSpec {
    layers: LAYERS,
    draft_layers: 1,
    hidden: HIDDEN,
    intermediate: 96,
    heads: 4,
    kv_heads: 2,
    vocab: 300,
    max_context: 64,
    seed: 5,
    residual_scale: 1.0,
    mask_token: None,
};

fn tokens(text: usize, sequence: usize, rows: usize) -> Vec<u32> {
    (0..rows).map(|at| ((at * 31 + sequence * 7 + text * 13 + 1) % SPEC.vocab) as u32).collect()
}

/// The states of a sequence's rows on the CPU, by hand: begin, and the layers up to each of those named.
fn by_hand(model: &Model, tokens: &[u32]) -> Vec<Vec<f32>> {
    let mut states = vec![Vec::new(); tokens.len()];
    let lane = Lane::new(&Partition { cores: vec![0] }, Isa::detect()).unwrap();
    let positions: Vec<u32> = (0..tokens.len() as u32).collect();
    for layer in NAMED {
        let mut kv = KvCache::new(model.kv_shape(4, 16), model.kv_dtype()).unwrap();
        let mut scratch = model.scratch(tokens.len(), 1);
        let rows = Rows { positions: &positions, table_of: &vec![0; tokens.len()], tables: &[&[2, 0, 1]] };
        model.begin(&lane, &mut scratch, tokens);
        model.layers(&lane, 0..layer + 1, &mut kv, &mut scratch, rows);
        states.iter_mut().enumerate().for_each(|(row, to)| to.extend(scratch.residual().row(row)));
    }
    states
}

/// Rows that each sequence has behind each layer.
type Left = [[usize; 3]; LAYERS];

/// What happens to a pass behind its first layer, and behind its third.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Happens {
    Nothing,
    /// The first sequence is cancelled, then the last.
    Cancels,
    /// A test ends the second sequence after 3 rows; when the device has come so far, the last one is cancelled.
    Prunes,
}

impl Happens {
    fn left(self, rows: [usize; 3]) -> Left {
        let [a, b, c] = rows;
        match self {
            Happens::Nothing => [rows; 4],
            // The device begins when all is asked for: both flags are there at the first look.
            Happens::Cancels => [rows, [0, b, 0], [0, b, 0], [0, b, 0]],
            Happens::Prunes => [rows, [a, 3, c], [a, 3, c], [a, 3, 0]],
        }
    }

    fn behind(self, layer: usize, passes: &mut CudaPasses) {
        match (self, layer) {
            (Happens::Cancels, 0) => passes.cancel(0),
            (Happens::Cancels, 2) => passes.cancel(2),
            (Happens::Prunes, 2) => {
                passes.wait(&mut |_| {}).unwrap();
                passes.cancel(2);
            }
            (Happens::Prunes, 0) => drop(passes.test_proposals().unwrap()),
            _ => return,
        }
        passes.compact().unwrap();
    }
}

/// Both lanes, the writer's and the reader's, on shares of their own.
struct Lanes {
    passes: CudaPasses,
    reader: CudaLane,
    arena: Arena,
    hidden: Arc<CudaHiddenStates>,
}

impl Lanes {
    fn new(model: &Arc<CudaModel>) -> Lanes {
        let gpu = model.gpu();
        let sizes = CudaSizes {
            blocks: 12,
            max_rows: MAX_ROWS,
            max_logit_rows: MAX_ROWS,
            max_chunks: 3,
            max_context: 64,
            max_prune_checkpoints: 1,
        };
        let split = Share::split(gpu, 16).unwrap();
        let mut passes = CudaPasses::new(model.clone(), &[split.verify], false, sizes).unwrap();
        let hidden = CudaHiddenStates::new(gpu, model.config(), &NAMED, CAPACITY).unwrap();
        passes.attach(hidden.clone());
        let reader = CudaLane::new(&[split.draft], true).unwrap();
        let arena = Arena::new(gpu, MAX_ROWS * WIDTH * 4 + 64, "states that were read").unwrap();
        Lanes { passes, reader, arena, hidden }
    }

    fn stage(&mut self, text: usize, counts: [usize; 3]) {
        let (mut all, mut positions, mut chunk_of, mut chunks) = (vec![], vec![], vec![], vec![]);
        for (sequence, rows) in counts.into_iter().enumerate() {
            chunks.push(Chunk { first: all.len() as u32, rows: rows as u32, sampled_from: 0, since: 0 });
            chunk_of.extend((0..rows).map(|_| sequence as u32));
            positions.extend((0..rows).map(|position| position as u32));
            all.extend(tokens(text, sequence, rows));
        }
        let tables: [&[BlockId]; 3] = [&[5, 0, 3], &[7, 2, 8], &[1, 4, 6]];
        let sampler = Sampler::new(&Sampling::default(), Ptr::NULL, Ptr::NULL, Ptr::NULL);
        let test = PruneTest { chunk: 1, offset: 2, position: 3, proposal: 9 };
        let input = PassInput {
            tokens: &all,
            positions: &positions,
            chunk_of: &chunk_of,
            chunks: &chunks,
            tables: &tables,
            samplers: &[sampler; 3],
            proposals: &[&[], &[], &[]],
            tests: &[(test, [1, 2, 3, 4, 5, 6, 7, 8, 9], f32::NEG_INFINITY)],
            ..PassInput::default()
        };
        const { assert!(PruneArgs::SCORED == 9) };
        self.passes.stage(&input).unwrap();
    }

    /// Asks for a pass, and waits for nothing; the index of its first row.
    fn pass(&mut self, text: usize, counts: [usize; 3], happens: Happens) -> u64 {
        self.stage(text, counts);
        for layers in [0..1, 1..3, 3..4] {
            self.passes.layers(layers.clone()).unwrap();
            happens.behind(layers.end - 1, &mut self.passes);
        }
        self.passes.finish().unwrap();
        self.passes.first_hidden().unwrap()
    }

    /// Asks the reader's lane for rows; nobody waits.
    fn ask(&mut self, rows: Range<u64>) -> bool {
        self.arena.clear();
        let (to, _) = self.arena.reserve::<f32>((rows.end - rows.start) as usize * WIDTH);
        self.hidden.read(&mut self.reader, rows, to).unwrap()
    }

    /// What was asked for last: the reader's lane alone is waited for.
    fn answer(&mut self, rows: usize) -> Vec<Vec<f32>> {
        self.arena.clear();
        let (_, place) = self.arena.reserve::<f32>(rows * WIDTH);
        self.reader.fetch(&mut self.arena).unwrap();
        self.reader.wait(&mut || {}).unwrap();
        self.arena.get::<f32>(place).chunks(WIDTH).map(<[f32]>::to_vec).collect()
    }
}

fn models(gpu: &Arc<Gpu>) -> (Model, Arc<CudaModel>) {
    let (cpu, _) = synthetic::pair(&SPEC, Dtype::F32, &mut |_| {}).unwrap();
    let source = WeightSource::Synthetic(SPEC);
    let cuda = CudaModel::load(gpu, &source, Shard::WHOLE, Dtype::F32, &mut |_| {}).unwrap();
    (cpu, Arc::new(cuda))
}

/// The states of all rows of a pass on the CPU.
fn expected(cpu: &Model, text: usize, counts: [usize; 3]) -> Vec<Vec<f32>> {
    (0..3).flat_map(|sequence| by_hand(cpu, &tokens(text, sequence, counts[sequence]))).collect()
}

#[track_caller]
fn assert_close(found: &[f32], expected: &[f32], what: &str) {
    let largest = expected.iter().fold(0.0f32, |largest, x| largest.max(x.abs()));
    let distance = found.iter().zip(expected).fold(0.0f32, |most, (a, b)| most.max((a - b).abs()));
    assert!(distance <= 1e-5 * largest, "{what}: {distance} off, of {largest}");
}

/// As in [`assert_close`], for all rows and layers; what a row has not come to is as it was, zeros at the beginning.
fn assert_states(found: &[Vec<f32>], expected: &[Vec<f32>], counts: [usize; 3], left: Option<Left>) {
    let rows =
        counts.iter().enumerate().flat_map(|(sequence, rows)| (0..*rows).map(move |at| (sequence, at)));
    for (((sequence, at), found), expected) in rows.zip(found).zip(expected) {
        for (place, layer) in NAMED.into_iter().enumerate() {
            let columns = place * HIDDEN..(place + 1) * HIDDEN;
            let what = format!("row {at} of sequence {sequence} behind layer {layer}");
            // A row is in a layer if what left before it did not take it.
            match left {
                Some(left) if at >= left[layer][sequence] => {
                    assert!(found[columns].iter().all(|x| *x == 0.0), "{what}");
                }
                _ => assert_close(&found[columns.clone()], &expected[columns], &what),
            }
        }
    }
}

#[test]
fn states_read_by_another_lane_are_the_cpus() {
    let report = cuda_fake::inside("cuda_hidden::states_read_by_another_lane_are_the_cpus", &[], || {
        let gpu = Gpu::open(0, None).unwrap();
        let (cpu, cuda) = models(&gpu);
        for counts in [SMALL, LARGE] {
            let rows: usize = counts.iter().sum();
            // All texts have been by before the first pass of a ring by graphs.
            let expected = [0, 1, 2, 3].map(|text| expected(&cpu, text, counts));
            for happens in [Happens::Nothing, Happens::Cancels, Happens::Prunes] {
                let mut lanes = Lanes::new(&cuda);
                let stays: Vec<usize> = happens.left(counts)[3].to_vec();
                for (text, expected) in expected.iter().enumerate() {
                    let first = lanes.pass(text, counts, happens);
                    assert_eq!(first, (text * rows) as u64);
                    assert!(lanes.ask(first..first + rows as u64));
                    let found = lanes.answer(rows);
                    if text == 0 {
                        assert_states(&found, expected, counts, Some(happens.left(counts)));
                        continue;
                    }
                    // Slots come again, and so do not begin with zeros: what stays is right.
                    let mut begin = 0;
                    for (sequence, &stays) in stays.iter().enumerate() {
                        for row in begin..begin + stays {
                            assert_close(&found[row], &expected[row], &format!("text {text}, {happens:?}"));
                        }
                        begin += counts[sequence];
                    }
                }
            }
        }
    });
    let Some(report) = report else { return };
    let number = |words: &str| -> usize {
        let line = report.lines().find_map(|line| line.strip_prefix(words));
        line.and_then(|rest| rest.trim().parse().ok()).unwrap()
    };
    assert!(number("graphs launched") >= 3 * 3 * 3, "{report}");
    assert_eq!((number("events left"), number("memory left"), number("streams left")), (0, 0, 0), "{report}");
}

#[test]
fn a_pass_waits_for_what_reads_the_rows_that_it_overwrites() {
    cuda_fake::inside("cuda_hidden::a_pass_waits_for_what_reads_the_rows_that_it_overwrites", &[], || {
        let gpu = Gpu::open(0, None).unwrap();
        let (cpu, cuda) = models(&gpu);
        let rows = LARGE.iter().sum::<usize>();
        let lanes = &mut Lanes::new(&cuda);
        let first = lanes.pass(0, LARGE, Happens::Nothing);
        let read = first..first + rows as u64;
        assert!(lanes.ask(read.clone()));
        // The reader's lane has done nothing yet, and the writer's goes on until it has overwritten these rows.
        for text in 1..4 {
            lanes.pass(text, LARGE, Happens::Nothing);
            lanes.passes.wait(&mut |_| {}).unwrap();
        }
        assert_states(&lanes.answer(rows), &expected(&cpu, 0, LARGE), LARGE, None);
        assert!(!lanes.ask(read));
    });
}

#[test]
fn what_is_lost_or_not_asked_for_yet_is_not_read() {
    cuda_fake::inside("cuda_hidden::what_is_lost_or_not_asked_for_yet_is_not_read", &[], || {
        let gpu = Gpu::open(0, None).unwrap();
        let (_, cuda) = models(&gpu);
        let rows = LARGE.iter().sum::<usize>() as u64;
        let lanes = &mut Lanes::new(&cuda);
        for pass in 0..5 {
            let begun = pass * rows;
            let oldest = (begun + rows).saturating_sub(CAPACITY as u64);
            lanes.stage(0, LARGE);
            lanes.passes.layers(0..3).unwrap();
            // Under way: not even the rows of the first layer named.
            assert!(!lanes.ask(begun..begun + 1));
            assert!(oldest >= begun || lanes.ask(begun - 1..begun));
            assert!(oldest == 0 || !lanes.ask(oldest - 1..oldest + 1));
            lanes.passes.layers(3..4).unwrap();
            assert!(lanes.ask(begun..begun + 1) && lanes.ask(begun + rows - 1..begun + rows));
            assert!(!lanes.ask(begun + rows - 1..begun + rows + 1));
            assert!(lanes.ask(oldest..oldest + 1));
            lanes.passes.finish().unwrap();
        }
    });
}
