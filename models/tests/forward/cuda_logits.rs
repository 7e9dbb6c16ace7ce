//! Models on a GPU against the f32 models on the CPU, over a fake driver: every family of the golden checkpoints, and synthetic shapes
//! for which there are kernels on tensor cores; prefill of two sequences together, then a row of one and several of the other.
//! `golden.rs` does the same for every instruction set.

use std::ops::Range;
use std::sync::Arc;

use faser_kernels::cuda::{Chunk, CudaError, Gpu, Ptr, Sampler, Share};
use faser_kernels::{BlockId, Dtype, Sampling};
use faser_models::cuda::{CudaModel, CudaPasses, CudaSizes, PassInput};
use faser_models::rounding::Distance;
use faser_models::synthetic::{self, SyntheticSpec};
use faser_models::{Model, Shard, WeightSource};

use crate::cuda_fake;
use crate::oracle;
use crate::sequences::{SEQUENCES, on_cpu, on_gpu as on_gpu_by, spec, spec_with_experts};
use crate::session::{golden, golden_cases};

/// A pass; its logits.
fn run(passes: &mut CudaPasses, input: &PassInput<'_>, cancels: bool) -> Result<Vec<f32>, CudaError> {
    let layers = passes.model().config().layers.len();
    passes.stage(input)?;
    passes.layers(0..1)?;
    let mut rows = input.tokens.len();
    if cancels {
        passes.cancel(0);
        passes.compact()?;
        rows -= input.chunks[0].rows as usize;
    }
    passes.layers(1..layers)?;
    passes.finish()?;
    passes.read_logits(rows)
}

/// Logits of both sequences. If the first is cancelled after a layer, it has none.
pub(crate) fn on_gpu(model: &Arc<CudaModel>, cancels: bool) -> Vec<f32> {
    let found = on_gpu_by(model, &mut |passes, input, second| {
        let mut logits = run(passes, input, cancels)?;
        // The first time is asked for launch by launch, the second captured, the third comes by the graphs.
        for _ in 0..if second { 2 } else { 0 } {
            let again = run(passes, input, cancels)?;
            assert!(again.iter().map(|x| x.to_bits()).eq(logits.iter().map(|x| x.to_bits())));
            logits = again;
        }
        Ok(logits)
    });
    found.unwrap()
}

#[track_caller]
fn is_rounding(what: &str, dtype: Dtype, layers: usize, found: &[f32], f32: &[f32]) {
    let (distance, most) = (Distance::between(&[found], &[f32]), Distance::of_rounding(dtype, layers));
    println!("{what}, {dtype}: {distance}");
    assert!(distance.is_within(most), "{what}, {dtype}: {distance} beyond {most}");
}

/// What candle says of such layers is in `oracle.rs`.
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
            let expected = on_cpu(&cpu).unwrap();
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
    let report = cuda_fake::inside("cuda_logits::every_family_has_the_cpus_logits", &[], || {
        let gpu = Gpu::open(0, None).unwrap();
        for case in &golden_cases() {
            let source = WeightSource::folder(&golden(case)).unwrap();
            let cpu = Model::load(&source, Shard::WHOLE, Dtype::F32, &mut |_| {}).unwrap();
            let expected = on_cpu(&cpu).unwrap();
            for dtype in [Dtype::F32, Dtype::Bf16] {
                let cuda = CudaModel::load(&gpu, &source, Shard::WHOLE, dtype, &mut |_| {});
                let cuda = Arc::new(cuda.unwrap());
                is_rounding(case, dtype, cpu.config().layers.len(), &on_gpu(&cuda, false), &expected);
            }
        }
    });
    let Some(report) = report else { return };
    for kernel in ["router", "route", "experts_activate_f32", "experts_f32", "sum_experts_f32"] {
        assert!(report.contains(&format!("runs of {kernel} ")), "{kernel}: {report}");
    }
}

#[test]
fn experts_on_tensor_cores_have_the_cpus_logits() {
    let name = "cuda_logits::experts_on_tensor_cores_have_the_cpus_logits";
    let report = cuda_fake::inside(name, &[], || {
        let gpu = Gpu::open(0, None).unwrap();
        for dtype in [Dtype::F32, Dtype::Bf16] {
            let spec = spec_with_experts(true, dtype);
            let (cpu, _) = synthetic::pair(&spec, Dtype::F32, &mut |_| {}).unwrap();
            let (expected, source) = (on_cpu(&cpu).unwrap(), WeightSource::Synthetic(spec.clone()));
            let free = gpu.memory().unwrap().0;
            let cuda = CudaModel::load(&gpu, &source, Shard::WHOLE, dtype, &mut |_| {}).unwrap();
            let needed = CudaModel::weight_bytes(cuda.config(), None, Shard::WHOLE, dtype).unwrap();
            let used = (free - gpu.memory().unwrap().0) as u64;
            assert!((needed..needed + 1024).contains(&used), "{used} bytes of {needed} in {dtype}");
            let layers = cuda.config().layers.len();
            let what = format!("{} of {} experts", spec.experts_per_token, spec.experts);
            is_rounding(&what, dtype, layers, &on_gpu(&Arc::new(cuda), false), &expected);
        }
    });
    let Some(report) = report else { return };
    // Prefill, and the second pass with its few rows, which graphs held.
    for kernel in ["experts_activate_8", "experts_8", "experts_activate_32", "experts_32", "sum_experts_bf16"]
    {
        assert!(report.contains(&format!("runs of {kernel} ")), "{kernel}: {report}");
    }
    assert!(report.contains("graphs left 0\n") && !report.contains("graphs launched 0\n"), "{report}");
}

/// Rows of two sequences, which have these tables, each from a position on, as one pass; the logits of each row.
pub(crate) fn feed(
    passes: &mut CudaPasses,
    tables: [&[BlockId]; 2],
    parts: &[(usize, Range<usize>)],
) -> Vec<Vec<f32>> {
    let vocab = passes.model().config().vocab;
    let token = |sequence, position| ((position * 37 + sequence * 11 + 5) % vocab) as u32;
    let parts = parts.iter().map(|(sequence, range)| {
        let tokens = range.clone().map(|position| token(*sequence, position)).collect();
        (tables[*sequence], range.start, tokens)
    });
    feed_tokens(passes, &parts.collect::<Vec<_>>())
}

/// The same of these tokens of sequences.
pub(crate) fn feed_tokens(passes: &mut CudaPasses, parts: &[(&[BlockId], usize, Vec<u32>)]) -> Vec<Vec<f32>> {
    let vocab = passes.model().config().vocab;
    let (mut all, mut positions, mut chunk_of, mut chunks) = (vec![], vec![], vec![], vec![]);
    for (chunk, (_, start, tokens)) in parts.iter().enumerate() {
        let (first, rows) = (all.len() as u32, tokens.len() as u32);
        chunks.push(Chunk { first, rows, sampled_from: 0, since: 0 });
        chunk_of.extend(tokens.iter().map(|_| chunk as u32));
        positions.extend(*start as u32..*start as u32 + rows);
        all.extend(tokens);
    }
    let tables: Vec<&[BlockId]> = parts.iter().map(|(table, ..)| *table).collect();
    let sampler = Sampler::new(&Sampling::default(), Ptr::NULL, Ptr::NULL, Ptr::NULL);
    let (samplers, proposals) = (vec![sampler; parts.len()], vec![&[][..]; parts.len()]);
    let input = PassInput {
        tokens: &all,
        positions: &positions,
        chunk_of: &chunk_of,
        chunks: &chunks,
        tables: &tables,
        samplers: &samplers,
        proposals: &proposals,
        ..PassInput::default()
    };
    run(passes, &input, false).unwrap().chunks(vocab).map(<[f32]>::to_vec).collect()
}

#[test]
fn a_row_of_experts_has_the_same_bits_alone_and_among_others() {
    let name = "cuda_logits::a_row_of_experts_has_the_same_bits_alone_and_among_others";
    cuda_fake::inside(name, &[], || {
        let gpu = Gpu::open(0, None).unwrap();
        let folder = |case: &str| WeightSource::folder(&golden(case)).unwrap();
        let cases = ["mixtral", "qwen2-moe", "qwen3-moe", "gpt-oss"].map(|case| (case, folder(case)));
        let synthetic = ("synthetic", WeightSource::Synthetic(spec_with_experts(true, Dtype::F32)));
        for (case, source) in cases.into_iter().chain([synthetic]) {
            let model = CudaModel::load(&gpu, &source, Shard::WHOLE, Dtype::F32, &mut |_| {}).unwrap();
            let model = Arc::new(model);
            let sizes = CudaSizes {
                blocks: 5,
                max_rows: 64,
                max_logit_rows: 64,
                max_chunks: 2,
                max_sequences: 2,
                max_context: 32,
                max_prune_checkpoints: 0,
                deterministic: false,
            };
            let passes = || CudaPasses::new(model.clone(), &[Share::whole(&gpu)], false, sizes).unwrap();
            let feed = |passes: &mut CudaPasses, parts: &[_]| feed(passes, [&[4, 1], &[0, 3]], parts);
            let mut alone = passes();
            let single: Vec<Vec<f32>> =
                (0..27).map(|at| feed(&mut alone, &[(0, at..at + 1)]).remove(0)).collect();
            // A prompt in two chunks beside another's, then a row that decodes beside a prompt's.
            let mut together = passes();
            let mut found = feed(&mut together, &[(1, 0..19), (0, 0..7)]).split_off(19);
            found.extend(feed(&mut together, &[(0, 7..26), (1, 19..20)]).into_iter().take(19));
            found.extend(feed(&mut together, &[(0, 26..27), (1, 20..30)]).into_iter().take(1));
            for (at, (found, single)) in found.iter().zip(&single).enumerate() {
                assert!(single.iter().all(|x| x.is_finite()), "{case}: row {at}");
                let same = found.iter().zip(single).all(|(x, y)| x.to_bits() == y.to_bits());
                assert!(same, "{case}: row {at} depends on the rows beside it");
            }
        }
    });
}

/// Rows of a sequence, fed in chunks of so many, some of them beside another's.
pub(crate) fn fed(
    passes: &mut CudaPasses,
    tables: [&[BlockId]; 2],
    chunks: &[usize],
    beside: usize,
) -> Vec<Vec<f32>> {
    let (mut found, mut at, mut others) = (Vec::new(), 0, 0);
    for &rows in chunks {
        let mut parts = vec![(0, at..at + rows)];
        if beside > 0 {
            parts.insert(0, (1, others..others + beside));
            others += beside;
        }
        found.extend(feed(passes, tables, &parts).into_iter().skip(parts.len().saturating_sub(1) * beside));
        at += rows;
    }
    found
}

#[test]
fn rows_of_deterministic_passes_have_the_same_bits_in_any_pass() {
    let name = "cuda_logits::rows_of_deterministic_passes_have_the_same_bits_in_any_pass";
    let report = cuda_fake::inside(name, &[], || {
        let gpu = Gpu::open(0, None).unwrap();
        let long =
            |spec, max_context| WeightSource::Synthetic(SyntheticSpec { layers: 1, max_context, ..spec });
        let dense = |most| long(spec(true, 4), most);
        let experts = long(spec_with_experts(true, Dtype::Bf16), 150);
        for (case, source, dtype) in [
            ("dense", dense(520), Dtype::Bf16),
            ("in f32", dense(150), Dtype::F32),
            ("int4", dense(150), Dtype::Int4),
            ("fp8", dense(150), Dtype::Fp8),
            ("int8", dense(150), Dtype::Int8),
            ("experts", experts.clone(), Dtype::Bf16),
            ("experts in fp8", experts, Dtype::Fp8),
        ] {
            let model = Arc::new(CudaModel::load(&gpu, &source, Shard::WHOLE, dtype, &mut |_| {}).unwrap());
            let most = model.config().max_context;
            let each = most.div_ceil(16);
            let sizes = CudaSizes {
                blocks: 2 * each,
                max_rows: most,
                max_logit_rows: most,
                max_chunks: 2,
                max_sequences: 2,
                max_context: most,
                max_prune_checkpoints: 0,
                deterministic: true,
            };
            let blocks: Vec<BlockId> = (0..2 * each as BlockId).rev().collect();
            let (own, other) = blocks.split_at(each);
            let fed = |chunks: &[usize], beside: usize| {
                assert_eq!(chunks.iter().sum::<usize>(), most);
                let mut passes = CudaPasses::new(model.clone(), &[Share::whole(&gpu)], false, sizes).unwrap();
                fed(&mut passes, [own, other], chunks, beside)
            };
            let whole = fed(&if most == 520 { [512, 1, 7] } else { [140, 1, 9] }, 0);
            assert!(whole.iter().flatten().all(|x| x.is_finite()), "{case}");
            let other: &[usize] =
                if most == 520 { &[1, 1, 2, 8, 9, 16, 18, 65, 130, 270] } else { &[1, 7, 9, 17, 116] };
            for (at, (found, first)) in fed(other, 5).iter().zip(&whole).enumerate() {
                let same = found.iter().zip(first).all(|(x, y)| x.to_bits() == y.to_bits());
                assert!(same, "{case}: row {at} has other bits in chunks of {other:?} beside five rows");
            }
        }
    });
    let Some(report) = report else { return };
    for kernel in [
        "matmul_8_bf16",
        "matmul_8_norm",
        "matmul_8_int4_norm",
        "matmul_8_fp8_norm",
        "matmul_8_int8_norm",
        "matmul_16_bf16",
        "matmul_64_bf16",
        "matmul_64_bf16_parts",
        "matmul_64_int4",
        "matmul_64_int4_parts",
        "matmul_64_fp8",
        "matmul_64_fp8_parts",
        "matmul_64_int8",
        "matmul_64_int8_parts",
        "experts_activate_32_fp8",
        "matmul_f32",
    ] {
        assert!(report.contains(&format!("runs of {kernel} ")), "{kernel}: {report}");
    }
    // Nothing by cublasLt, and no matrix is widened.
    assert!(!report.contains("runs of dequantise"), "{report}");
    assert!(report.contains("rows of products 0\n"), "{report}");
}

#[test]
fn passes_of_many_rows_come_by_graphs_with_the_same_bits() {
    let name = "cuda_logits::passes_of_many_rows_come_by_graphs_with_the_same_bits";
    let report = cuda_fake::inside(name, &[], || {
        let gpu = Gpu::open(0, None).unwrap();
        let spec = SyntheticSpec { layers: 2, max_context: 96, ..spec(true, 4) };
        let source = WeightSource::Synthetic(spec);
        let model = CudaModel::load(&gpu, &source, Shard::WHOLE, Dtype::Bf16, &mut |_| {}).unwrap();
        let model = Arc::new(model);
        let sizes = CudaSizes {
            blocks: 12,
            max_rows: 128,
            max_logit_rows: 128,
            max_chunks: 2,
            max_sequences: 2,
            max_context: 96,
            max_prune_checkpoints: 0,
            deterministic: false,
        };
        let passes = || CudaPasses::new(model.clone(), &[Share::whole(&gpu)], false, sizes).unwrap();
        let feed = |passes: &mut CudaPasses, rows: [usize; 2]| {
            let tables: [&[BlockId]; 2] = [&[11, 1, 9, 3, 7, 5], &[0, 10, 2, 8, 4, 6]];
            feed(passes, tables, &[(0, 0..rows[0]), (1, 0..rows[1])])
        };
        // Of one bucket: asked for launch by launch, captured, and by the graphs.
        let mut together = passes();
        for (rows, cold) in [([70, 50], true), ([80, 40], true), ([72, 48], false)] {
            let (found, alone) = (feed(&mut together, rows), feed(&mut passes(), rows));
            assert_eq!(together.was_cold(), cold, "{rows:?} rows");
            assert_eq!(found.len(), rows[0] + rows[1]);
            let (found, alone) = (found.iter().flatten(), alone.iter().flatten());
            assert!(alone.clone().all(|x| x.is_finite()));
            assert!(found.map(|x| x.to_bits()).eq(alone.map(|x| x.to_bits())), "{rows:?} rows");
        }
    });
    let Some(report) = report else { return };
    // One for each layer, twice.
    assert!(report.contains("graphs launched 4\n") && report.contains("graphs left 0\n"), "{report}");
}

#[test]
fn heads_that_share_keys_have_the_cpus_logits() {
    // Of so few SMs that tiles of attention are large where rows are many.
    let name = "cuda_logits::heads_that_share_keys_have_the_cpus_logits";
    let report = cuda_fake::inside(name, &[("FASER_FAKE_SMS", "2")], || {
        let gpu = Gpu::open(0, None).unwrap();
        for kv_heads in [8, 4, 1] {
            let spec = spec(true, kv_heads);
            let (cpu, cpu_draft) = synthetic::pair(&spec, Dtype::F32, &mut |_| {}).unwrap();
            let expected = [&cpu, &cpu_draft].map(|model| on_cpu(model).unwrap());
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
    let products = ["matmul_8_bf16", "matmul_8_heads", "matmul_8_activate"];
    for kernel in ["attention_mma_32_16", "attention_mma_32_64", "attention_f32"].into_iter().chain(products)
    {
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
            let cpu = on_cpu(&Model::load(&source, Shard::WHOLE, Dtype::F32, &mut |_| {}).unwrap()).unwrap();
            let cuda =
                Arc::new(CudaModel::load(&gpu, &source, Shard::WHOLE, Dtype::F32, &mut |_| {}).unwrap());
            let (layers, of_second) = (cuda.config().layers.len(), SEQUENCES[0].0 * cuda.config().vocab);
            is_rounding("half of it", Dtype::F32, layers, &on_gpu(&cuda, true), &cpu[of_second..]);
        });
    let Some(report) = report else { return };
    let rows = report.lines().find_map(|line| line.strip_prefix("rows of products ")).unwrap();
    // Two layers of four products and the LM head: the second layer and the head have the second sequence's rows alone. Of the three
    // runs of the second pass the layers of the last are graphs, whose products were counted when they were captured.
    let of = |first, second| CudaSizes::bucket(first) + 2 * CudaSizes::bucket(second);
    let (both, one) = (of(41 + 25, 1 + 5), of(25, 5));
    assert_eq!(rows.parse::<usize>().unwrap(), 4 * both + 5 * one + CudaSizes::bucket(5));
}
