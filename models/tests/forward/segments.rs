//! A pass in segments: rows that leave it between layers change nothing for those that stay, and scores on the way are
//! what the LM head would say. And the times of a pass are those of its ops.

use std::time::Instant;

use faser_kernels::{BlockId, Dtype, Isa, KvCache, Lane, Op, Partition, Rows};
use faser_models::synthetic::{SyntheticSpec, pair};
use faser_models::{Model, Pass, Scratch, Shard};

use crate::oracle::Random;
use crate::session::load;

const BLOCK_SIZE: usize = 16;
const SEQUENCES: usize = 5;
/// Positions of a sequence that were computed in an earlier pass.
const COMPUTED: [usize; SEQUENCES] = [0, 3, 17, 30, 9];
/// Rows of a sequence in the pass.
const ROWS: [usize; SEQUENCES] = [4, 1, 6, 8, 3];

/// All models here: four layers in both types, and sliding windows in some layers.
fn models() -> Vec<Model> {
    let golden = |case| load(case, Shard::WHOLE, Dtype::F32).unwrap();
    let spec = SyntheticSpec { residual_scale: 1.0, ..SyntheticSpec::preset("tiny").unwrap() };
    let [f32, bf16, int8, int4] = [Dtype::F32, Dtype::Bf16, Dtype::Int8, Dtype::Int4]
        .map(|dtype| pair(&spec, dtype, &mut |_| {}).unwrap().0);
    vec![f32, bf16, golden("qwen2-some-layers-sliding"), golden("qwen3-tied"), golden("gemma2"), int8, int4]
}

/// The rows of a pass.
#[derive(Clone, Debug)]
struct Batch {
    tokens: Vec<u32>,
    positions: Vec<u32>,
    table_of: Vec<u32>,
}

impl Batch {
    /// Of each sequence the positions of its range.
    fn new(model: &Model, range: impl Fn(usize) -> std::ops::Range<usize>) -> Batch {
        let mut batch = Batch { tokens: Vec::new(), positions: Vec::new(), table_of: Vec::new() };
        for sequence in 0..SEQUENCES {
            for position in range(sequence) {
                batch.tokens.push(((position * 31 + sequence * 7 + 1) % model.config().vocab) as u32);
                batch.positions.push(position as u32);
                batch.table_of.push(sequence as u32);
            }
        }
        batch
    }

    fn keep(&mut self, keep: &[u32]) {
        for rows in [&mut self.tokens, &mut self.positions, &mut self.table_of] {
            *rows = keep.iter().map(|row| rows[*row as usize]).collect();
        }
    }

    /// What is left when each sequence loses some of its last rows.
    fn without_tails(&self, random: &mut Random) -> Vec<u32> {
        let left: [usize; SEQUENCES] = std::array::from_fn(|sequence| {
            let rows = self.table_of.iter().filter(|of| **of as usize == sequence).count();
            rows - if random.below(2) == 0 { 0 } else { random.below(rows + 1) }
        });
        let mut seen = [0; SEQUENCES];
        let mut stays = |sequence: usize| {
            seen[sequence] += 1;
            seen[sequence] <= left[sequence]
        };
        (0u32..).zip(&self.table_of).filter(|(_, of)| stays(**of as usize)).map(|(row, _)| row).collect()
    }

    fn all(&self) -> Vec<u32> {
        (0..self.tokens.len() as u32).collect()
    }
}

/// A model on a lane, with the KV of what was computed before.
struct Device<'m> {
    model: &'m Model,
    lane: Lane,
    kv: KvCache,
    scratch: Scratch,
    tables: Vec<Vec<BlockId>>,
}

impl<'m> Device<'m> {
    fn new(model: &'m Model, isa: Isa) -> Device<'m> {
        let tables: Vec<Vec<BlockId>> =
            (0..SEQUENCES as u32).map(|i| vec![3 * i + 2, 3 * i, 3 * i + 1]).collect();
        let mut device = Device {
            model,
            lane: Lane::new(&Partition { cores: vec![0, 1] }, isa).unwrap(),
            kv: KvCache::new(model.kv_shape(3 * SEQUENCES, BLOCK_SIZE), model.kv_dtype()).unwrap(),
            scratch: model.scratch(64, ROWS.iter().sum()),
            tables,
        };
        device.forward(&Batch::new(model, |sequence| 0..COMPUTED[sequence]), &[]);
        device
    }

    /// Calls `run` with everything that a segment needs.
    fn with<T>(
        &mut self,
        batch: &Batch,
        run: impl FnOnce(&Model, &Lane, &mut KvCache, &mut Scratch, Rows<'_>) -> T,
    ) -> T {
        let tables: Vec<&[BlockId]> = self.tables.iter().map(Vec::as_slice).collect();
        let rows = Rows { positions: &batch.positions, table_of: &batch.table_of, tables: &tables };
        run(self.model, &self.lane, &mut self.kv, &mut self.scratch, rows)
    }

    fn forward(&mut self, batch: &Batch, wanted: &[u32]) -> Vec<Vec<f32>> {
        self.with(batch, |model, lane, kv, scratch, rows| {
            model.forward(lane, kv, scratch, &Pass { tokens: &batch.tokens, rows, logits: wanted });
        });
        self.logits(wanted.len())
    }

    fn logits(&self, rows: usize) -> Vec<Vec<f32>> {
        (0..rows).map(|row| self.scratch.logits().row(row).to_vec()).collect()
    }

    fn begin(&mut self, batch: &Batch) {
        self.model.begin(&self.lane, &mut self.scratch, &batch.tokens);
    }

    fn layer(&mut self, batch: &Batch, layer: usize) {
        self.with(batch, |model, lane, kv, scratch, rows| {
            model.layers(lane, layer..layer + 1, kv, scratch, rows);
        });
    }

    fn score(&mut self, n: usize, rows: &[u32], tokens: &[u32]) -> Vec<f32> {
        let mut out = vec![f32::NAN; tokens.len()];
        self.model.score(&self.lane, &mut self.scratch, n, rows, tokens, &mut out);
        out
    }
}

fn verify_pass(model: &Model) -> Batch {
    Batch::new(model, |sequence| COMPUTED[sequence]..COMPUTED[sequence] + ROWS[sequence])
}

fn bits(logits: &[f32]) -> Vec<u32> {
    logits.iter().map(|logit| logit.to_bits()).collect()
}

#[test]
fn rows_that_leave_change_nothing_for_those_that_stay() {
    let mut left = 0;
    for model in models() {
        for isa in Isa::available() {
            let whole = verify_pass(&model);
            let expected = Device::new(&model, isa).forward(&whole, &whole.all());
            for seed in 0..8 {
                let mut random = Random(seed);
                let mut device = Device::new(&model, isa);
                // Which row of the whole pass each row is.
                let (mut batch, mut origin) = (whole.clone(), whole.all());
                device.begin(&batch);
                for layer in 0..model.config().layers.len() {
                    let n = batch.tokens.len();
                    if random.below(2) == 0 && n > 0 {
                        let rows = [random.below(n) as u32, 0];
                        device.score(n, &rows, &[5, 6, 7, 8]);
                    }
                    let keep = batch.without_tails(&mut random);
                    device.model.keep(&mut device.scratch, n, &keep);
                    batch.keep(&keep);
                    origin = keep.iter().map(|row| origin[*row as usize]).collect();
                    device.layer(&batch, layer);
                }
                let n = batch.tokens.len();
                left += whole.tokens.len() - n;
                device.model.finish(&device.lane, &mut device.scratch, n, &batch.all());
                for (found, row) in device.logits(n).iter().zip(&origin) {
                    let expected = &expected[*row as usize];
                    assert_eq!(bits(found), bits(expected), "{isa} {model:?} seed {seed} row {row}");
                }
                // The next pass computes what left, as if it had never been there.
                let rest = Batch::new(&model, |sequence| {
                    let kept = batch.table_of.iter().filter(|of| **of as usize == sequence).count();
                    COMPUTED[sequence] + kept..COMPUTED[sequence] + ROWS[sequence]
                });
                let gone: Vec<u32> = whole.all().into_iter().filter(|row| !origin.contains(row)).collect();
                for (found, row) in device.forward(&rest, &rest.all()).iter().zip(&gone) {
                    assert_eq!(bits(found), bits(&expected[*row as usize]), "{isa} {model:?} then row {row}");
                }
            }
        }
    }
    assert!(left > 200, "hardly any row left: {left}");
}

#[test]
fn scores_after_the_last_layer_are_the_logits() {
    for model in models() {
        for isa in Isa::available() {
            let whole = verify_pass(&model);
            let n = whole.tokens.len();
            let mut device = Device::new(&model, isa);
            let expected = device.forward(&whole, &whole.all());
            let vocab = model.config().vocab;
            let rows: Vec<u32> = (0..n as u32).rev().step_by(2).collect();
            for each in [1, 8, 9] {
                let mut random = Random(each);
                let tokens: Vec<u32> =
                    (0..rows.len() * each as usize).map(|_| random.below(vocab) as u32).collect();
                let scores = device.score(n, &rows, &tokens);
                for (i, (score, token)) in scores.iter().zip(&tokens).enumerate() {
                    let logit = expected[rows[i / each as usize] as usize][*token as usize];
                    assert_eq!(score.to_bits(), logit.to_bits(), "{isa} {model:?}: {score} is not {logit}");
                }
            }
            assert!(device.logits(n) == expected, "scores disturbed the logits");
            let again = whole.all();
            device.model.finish(&device.lane, &mut device.scratch, n, &again);
            assert!(device.logits(n) == expected, "scores disturbed the residual stream");
        }
    }
}

#[test]
fn scores_on_the_way_come_near_the_logits() {
    // The synthetic pair's last layers add little: halfway through, the arg max of the whole is often there already.
    let spec = SyntheticSpec { residual_scale: 0.02, ..SyntheticSpec::preset("tiny").unwrap() };
    let (model, _) = pair(&spec, Dtype::F32, &mut |_| {}).unwrap();
    let whole = verify_pass(&model);
    let mut device = Device::new(&model, Isa::detect());
    let all: Vec<u32> = (0..model.config().vocab as u32).collect();
    device.begin(&whole);
    let mut distance = Vec::new();
    for layer in 0..model.config().layers.len() {
        device.layer(&whole, layer);
        distance.push(device.score(whole.tokens.len(), &[2], &all));
    }
    let last = distance.pop().unwrap();
    let distance: Vec<f32> = distance
        .iter()
        .map(|scores| scores.iter().zip(&last).map(|(a, b)| (a - b).powi(2)).sum::<f32>().sqrt())
        .collect();
    assert!(distance[0] > 0.0 && distance[2] < distance[0], "{distance:?}");
    let length = last.iter().map(|logit| logit * logit).sum::<f32>().sqrt();
    assert!(distance[0] < 0.5 * length, "{distance:?} of {length}");
}

#[test]
fn all_rows_may_leave() {
    let model = models().remove(0);
    let (mut batch, mut device) = (verify_pass(&model), Device::new(&model, Isa::detect()));
    let expected = device.forward(&batch, &batch.all());
    device.begin(&batch);
    device.layer(&batch, 0);
    device.model.keep(&mut device.scratch, batch.tokens.len(), &[]);
    batch.keep(&[]);
    assert!(device.score(0, &[], &[]).is_empty());
    device.layer(&batch, 1);
    device.model.finish(&device.lane, &mut device.scratch, 0, &[]);
    let batch = verify_pass(&model);
    assert!(device.forward(&batch, &batch.all()) == expected);
}

#[test]
#[should_panic(expected = "28 rows with logits in a scratch for 22")]
fn more_rows_than_may_have_logits_are_not_scored() {
    let model = models().remove(0);
    let mut device = Device::new(&model, Isa::Portable);
    let rows: Vec<u32> = (0..28).collect();
    device.score(30, &rows, &[0; 28]);
}

#[test]
#[should_panic(expected = "the scratch of another model")]
fn the_scratch_of_another_model_is_refused() {
    let models = models();
    let mut scratch = Scratch::new(models[2].config(), 4, 4);
    models[0].keep(&mut scratch, 4, &[1]);
}

/// A lane's times of a whole pass: every op of it is counted, and nothing twice.
#[test]
fn a_pass_is_the_sum_of_its_ops() {
    let (model, _) = pair(&SyntheticSpec::preset("tiny").unwrap(), Dtype::Bf16, &mut |_| {}).unwrap();
    let lane = Lane::new(&Partition { cores: vec![0, 0] }, Isa::detect()).unwrap();
    let mut kv = KvCache::new(model.kv_shape(1, 16), model.kv_dtype()).unwrap();
    let mut scratch = model.scratch(8, 8);
    let numbers: Vec<u32> = (0..8).collect();
    let rows = Rows { positions: &numbers, table_of: &[0; 8], tables: &[&[0]] };
    lane.count_times();
    let begin = Instant::now();
    model.forward(&lane, &mut kv, &mut scratch, &Pass { tokens: &numbers, rows, logits: &numbers });
    let (whole, times) = (begin.elapsed(), lane.times());

    let layers = model.config().layers.len() as u64;
    for op in Op::all() {
        let calls = match op {
            Op::Embed | Op::GatherRows => 1,
            // Those of layers, and their activations, belong to their matmuls.
            Op::RmsNorm => 1,
            Op::Matmul => 4 * layers + 1,
            Op::Rope | Op::StoreKv | Op::Attention => layers,
            _ => 0,
        };
        assert_eq!(times.of(op).calls, calls, "{op}");
        assert_eq!(times.of(op).total_ns > 0, calls > 0, "{op}");
    }
    assert!(u128::from(times.sum().total_ns) <= whole.as_nanos(), "{times:?} in {whole:?}");
}
