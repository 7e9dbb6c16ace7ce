//! Models on a GPU against the f32 models on the CPU, over a fake driver: every family of the golden checkpoints, and synthetic shapes
//! for which there are kernels on tensor cores; prefill of two sequences together, then a row of one and several of the other.
//! `golden.rs` does the same for every instruction set.

use std::sync::Arc;

use faser_kernels::cuda::{Chunk, Gpu, Ptr, Sampler, Share};
use faser_kernels::{BlockId, Dtype, Isa, Sampling};
use faser_models::cuda::{CudaModel, CudaPasses, CudaSizes, PassInput};
use faser_models::rounding::Distance;
use faser_models::synthetic::{self, SyntheticSpec};
use faser_models::{Model, ModelConfig, Shard, WeightSource};

use crate::cuda_fake;
use crate::oracle;
use crate::session::{Session, golden, golden_cases};

/// Tokens of each sequence, and how many of them are in the first pass.
const SEQUENCES: [(usize, usize); 2] = [(40, 39), (29, 24)];

fn tokens(config: &ModelConfig, sequence: usize) -> Vec<u32> {
    (0..SEQUENCES[sequence].0).map(|i| ((i * 31 + sequence * 7 + 3) % config.vocab) as u32).collect()
}

/// Logits of every row, sequence after sequence.
fn on_cpu(model: &Model) -> Vec<Vec<f32>> {
    let mut logits = Vec::new();
    for (sequence, (len, first)) in SEQUENCES.into_iter().enumerate() {
        let tokens = tokens(model.config(), sequence);
        let mut session = Session::new(model, Isa::detect(), len, len);
        logits.extend(session.feed(0, &tokens[..first]));
        logits.extend(session.feed(first, &tokens[first..]));
    }
    logits
}

/// A pass; its logits.
fn run(passes: &mut CudaPasses, input: &PassInput<'_>, cancels: bool) -> Vec<f32> {
    let layers = passes.model().config().layers.len();
    passes.stage(input).unwrap();
    passes.layers(0..1).unwrap();
    let mut rows = input.tokens.len();
    if cancels {
        passes.cancel(0);
        passes.shed().unwrap();
        rows -= input.chunks[0].rows as usize;
    }
    passes.layers(1..layers).unwrap();
    passes.finish().unwrap();
    passes.read_logits(rows).unwrap()
}

/// The same, both sequences in the same passes. If the first sequence is cancelled after a layer, it has no logits.
fn on_gpu(model: &Arc<CudaModel>, cancels: bool) -> Vec<Vec<f32>> {
    let config = model.config();
    let rows = SEQUENCES.iter().map(|(len, _)| len).sum();
    let sizes = CudaSizes {
        blocks: 8,
        max_rows: rows,
        max_logit_rows: rows,
        max_chunks: 2,
        max_context: 64,
        max_gates: 0,
    };
    let share = Share::whole(model.gpu());
    let mut passes = CudaPasses::new(model.clone(), &[share], false, sizes).unwrap();
    let tables: [Vec<BlockId>; 2] = [vec![5, 0, 3], vec![7, 2]];
    let sampler = Sampler::new(&Sampling::default(), Ptr::NULL, Ptr::NULL, Ptr::NULL);
    let mut found: [Vec<Vec<f32>>; 2] = Default::default();
    for second in [false, true] {
        let (mut all, mut positions, mut chunk_of, mut chunks) = (vec![], vec![], vec![], vec![]);
        for (sequence, (len, first)) in SEQUENCES.into_iter().enumerate() {
            let range = if second { first..len } else { 0..first };
            let (begin, rows) = (all.len() as u32, range.len() as u32);
            chunks.push(Chunk { first: begin, rows, sampled_from: 0, since: 0 });
            chunk_of.extend(range.clone().map(|_| sequence as u32));
            positions.extend(range.clone().map(|position| position as u32));
            all.extend(&tokens(config, sequence)[range]);
        }
        let input = PassInput {
            tokens: &all,
            positions: &positions,
            chunk_of: &chunk_of,
            chunks: &chunks,
            tables: &tables.each_ref().map(Vec::as_slice),
            samplers: &[sampler, sampler],
            proposals: &[&[], &[]],
            ..PassInput::default()
        };
        let mut logits = run(&mut passes, &input, cancels);
        if second {
            // The first time is asked for launch by launch, the second captured, the third comes by the graphs.
            for _ in 0..2 {
                let again = run(&mut passes, &input, cancels);
                assert!(again.iter().map(|x| x.to_bits()).eq(logits.iter().map(|x| x.to_bits())));
                logits = again;
            }
        }
        if cancels {
            chunk_of.retain(|sequence| *sequence == 1);
        }
        for (row, logits) in logits.chunks(config.vocab).enumerate() {
            found[chunk_of[row] as usize].push(logits.to_vec());
        }
    }
    found.concat()
}

#[track_caller]
fn is_rounding(what: &str, dtype: Dtype, layers: usize, found: &[Vec<f32>], f32: &[Vec<f32>]) {
    let (distance, most) = (Distance::between(found, f32), Distance::of_rounding(dtype, layers));
    println!("{what}, {dtype}: {distance}");
    assert!(distance.is_within(most), "{what}, {dtype}: {distance} beyond {most}");
}

/// What candle says of such layers is in `shapes.rs`.
#[test]
fn layers_of_any_mixture_have_the_cpus_logits() {
    cuda_fake::inside("cuda_logits::layers_of_any_mixture_have_the_cpus_logits", &[], || {
        let gpu = Gpu::open(0, None).unwrap();
        for seed in 0..12 {
            let mut random = oracle::Random(seed);
            let config = oracle::config(&mut random);
            let checkpoint = oracle::Checkpoint::new(&config, &mut random, &format!("gpu-{seed}"));
            let folder = checkpoint.folder();
            let source = WeightSource::Folder(folder.to_owned(), Box::new(config.clone()));
            let cpu = Model::load(&source, Shard::WHOLE, Dtype::F32, &mut |_| {}).unwrap();
            let expected = on_cpu(&cpu);
            for dtype in [Dtype::F32, Dtype::Bf16] {
                let cuda = CudaModel::load(&gpu, &source, Shard::WHOLE, dtype, &mut |_| {});
                let what = format!("seed {seed}: {config:?}");
                let layers = config.layers.len();
                is_rounding(&what, dtype, layers, &on_gpu(&Arc::new(cuda.unwrap()), false), &expected);
            }
        }
    });
}

#[test]
fn every_family_has_the_cpus_logits() {
    cuda_fake::inside("cuda_logits::every_family_has_the_cpus_logits", &[], || {
        let gpu = Gpu::open(0, None).unwrap();
        for case in &golden_cases() {
            let source = WeightSource::folder(&golden(case)).unwrap();
            let cpu = Model::load(&source, Shard::WHOLE, Dtype::F32, &mut |_| {}).unwrap();
            let expected = on_cpu(&cpu);
            for dtype in [Dtype::F32, Dtype::Bf16] {
                let cuda = CudaModel::load(&gpu, &source, Shard::WHOLE, dtype, &mut |_| {});
                let cuda = Arc::new(cuda.unwrap());
                is_rounding(case, dtype, cpu.config().layers.len(), &on_gpu(&cuda, false), &expected);
            }
        }
    });
}

#[test]
fn heads_that_share_keys_have_the_cpus_logits() {
    let report = cuda_fake::inside("cuda_logits::heads_that_share_keys_have_the_cpus_logits", &[], || {
        let gpu = Gpu::open(0, None).unwrap();
        for kv_heads in [8, 4, 1] {
            let spec = SyntheticSpec {
                layers: 2,
                draft_layers: 1,
                hidden: 256,
                intermediate: 96,
                heads: 8,
                kv_heads,
                vocab: 300,
                max_context: 64,
                seed: 5,
                residual_scale: 0.5,
            };
            let (cpu, cpu_draft) = synthetic::pair(&spec, Dtype::F32, &mut |_| {}).unwrap();
            let expected = [on_cpu(&cpu), on_cpu(&cpu_draft)];
            for dtype in [Dtype::F32, Dtype::Bf16] {
                let source = WeightSource::Synthetic(spec.clone());
                let cuda = CudaModel::load(&gpu, &source, Shard::WHOLE, dtype, &mut |_| {}).unwrap();
                let draft = cuda.first_layers(spec.draft_layers);
                for (cuda, expected) in [cuda, draft].into_iter().zip(&expected) {
                    let layers = cuda.config().layers.len();
                    let what = format!("8 heads over {kv_heads}, {layers} layers");
                    is_rounding(&what, dtype, layers, &on_gpu(&Arc::new(cuda), false), expected);
                }
            }
        }
    });
    let Some(report) = report else { return };
    // Prefill, and the second pass with its few rows, went over tensor cores.
    for kernel in ["attention_mma_32_16", "attention_mma_32_64", "matmul_8_bf16", "attention_f32"] {
        assert!(report.contains(&format!("runs of {kernel} ")), "{kernel}: {report}");
    }
    assert!(report.contains("graphs left 0\n") && !report.contains("graphs launched 0\n"), "{report}");
}

#[test]
fn rows_that_the_host_cancels_are_not_multiplied_any_more() {
    let report =
        cuda_fake::inside("cuda_logits::rows_that_the_host_cancels_are_not_multiplied_any_more", &[], || {
            let gpu = Gpu::open(0, None).unwrap();
            let case = golden("llama");
            let source = WeightSource::folder(&case).unwrap();
            let cpu = on_cpu(&Model::load(&source, Shard::WHOLE, Dtype::F32, &mut |_| {}).unwrap());
            let cuda =
                Arc::new(CudaModel::load(&gpu, &source, Shard::WHOLE, Dtype::F32, &mut |_| {}).unwrap());
            let layers = cuda.config().layers.len();
            is_rounding("half of it", Dtype::F32, layers, &on_gpu(&cuda, true), &cpu[SEQUENCES[0].0..]);
        });
    let Some(report) = report else { return };
    let rows = report.lines().find_map(|line| line.strip_prefix("rows of products ")).unwrap();
    // Two layers of four products and the LM head: the second layer and the head have the second sequence's rows alone. Of the three
    // runs of the second pass the layers of the last are graphs, whose products were counted when they were captured.
    let (both, one) =
        (CudaSizes::bucket(39 + 24) + 2 * CudaSizes::bucket(1 + 5), 24 + 2 * CudaSizes::bucket(5));
    assert_eq!(rows.parse::<usize>().unwrap(), 4 * both + 5 * one + CudaSizes::bucket(5));
}
