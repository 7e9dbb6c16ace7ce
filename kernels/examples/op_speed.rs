//! Microseconds of the ops beside matmul, in the shape of a 1.1B Llama (22 layers, 2048 wide, 32 heads of 64 over 4, 32,000 tokens).
//!
//! `cargo run --release -p faser-kernels --example op_speed -- [THREADS]`

use faser_kernels::ops::{
    Activation, AttentionShape, TOP_TOKENS, Write, activate, attention, confidence, rms_norm, rope, sample,
    score_tokens, store_kv, top_tokens,
};
use faser_kernels::{
    Dtype, History, Isa, KvCache, KvShape, Lane, Matrix, RopeScaling, RopeSpec, RopeTable, Rows, SampleRow,
    Sampling, Source, Tensor, Vector,
};
use faser_topology::CpuDevice;
use std::time::{Duration, Instant};

const HEADS: usize = 32;
const KV: KvShape = KvShape { layers: 1, blocks: 160, block_size: 16, kv_heads: 4, head_dim: 64 };
const VOCABULARY: usize = 32_000;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let device = CpuDevice::discover()?;
    let threads = std::env::args().nth(1).map_or(Ok(device.cores.len()), |text| text.parse())?;
    let lane = Lane::new(&device.first(threads)?, Isa::detect())?;
    let pinned = lane.pin_current_thread();
    println!(
        "{}, {threads} threads, {}{}",
        device.name,
        lane.isa(),
        if pinned { "" } else { " (not pinned)" }
    );

    let values: Vec<f32> = (0..2048 * 2048).map(noise).collect();
    let seconds = best(|| drop(Matrix::pack(2048, &[Source::F32(&values)], Dtype::Bf16)));
    println!("pack 2048 x 2048 to bf16: {:.1} ns per row of 16", seconds * 1e9 / (2048.0 * 128.0));

    let table = RopeTable::new(&RopeSpec {
        head_dim: 64,
        rotated: 64,
        theta: 1e4,
        scaling: RopeScaling::None,
        max_positions: 4096,
    })?;
    let weight = Vector::new(Source::F32(&values[..2048]));
    println!("\n{:>5} {:>10} {:>10} {:>10}", "rows", "rms_norm", "rope", "activate");
    for rows in [1, 8, 64] {
        let (x, wide) = (
            Tensor::from_rows(2048, &values[..rows * 2048]),
            Tensor::from_rows(11_264, &values[..rows * 11_264]),
        );
        let (mut out, mut narrow) = (Tensor::zeros(rows, 2048), Tensor::zeros(rows, 5632));
        let positions: Vec<u32> = (0..rows as u32).collect();
        let norm = best(|| rms_norm(&lane, x.view(rows), &weight, 1e-5, out.view_mut(rows), Write::Replace));
        let rotate = best(|| rope(&lane, out.view_mut(rows), &positions, &table));
        let gate = best(|| activate(&lane, wide.view(rows), Activation::Silu, narrow.view_mut(rows)));
        println!("{rows:>5} {:>10.2} {:>10.2} {:>10.2}", norm * 1e6, rotate * 1e6, gate * 1e6);
    }

    println!(
        "\n{:>8} {:>5} {:>10} {:>10} {:>8} {:>8}",
        "context", "rows", "store_kv", "attention", "GFLOP/s", "GB/s"
    );
    for dtype in [Dtype::Bf16, Dtype::F32] {
        for (context, rows) in [(128, 1), (128, 8), (2048, 1), (2048, 8), (2048, 64), (2048, 256)] {
            one_sequence(&lane, dtype, context, rows, &values)?;
        }
    }

    println!("\nattention of sequences whose KV is in no cache, bf16");
    for heads in [(32, 4, 64), (32, 8, 128), (12, 12, 64)] {
        for of in [(1, 1, 2048), (16, 1, 2048), (4, 4, 2048), (16, 1, 128)] {
            sequences(&lane, heads, of, &values)?;
        }
    }

    println!("\n{:>20} {:>10}", "sampling", "us per row");
    let logits: Vec<f32> = values[..VOCABULARY].iter().map(|x| x * 10.0).collect();
    for (name, sampling) in [
        ("greedy", Sampling { temperature: 0.0, ..Sampling::default() }),
        ("temperature 1", Sampling::default()),
        ("top-p 0.9", Sampling { top_p: 0.9, ..Sampling::default() }),
        ("top-k 40", Sampling { top_k: 40, ..Sampling::default() }),
        ("penalty", Sampling { presence_penalty: 0.5, ..Sampling::default() }),
    ] {
        let history = History::new(500, &(0..1000).collect::<Vec<_>>(), &sampling);
        let logits = Tensor::from_rows(VOCABULARY, &logits);
        let row = SampleRow {
            row: 0,
            position: 1000,
            sampling: &sampling,
            history: &history,
            since: &[],
            allowed: None,
        };
        let mut out = [0];
        let seconds = best(|| sample(&lane, logits.view(1), &[row], &mut out));
        println!("{name:>20} {:>10.1}", seconds * 1e6);
    }
    alternatives(&lane, &values)
}

/// What pruning inside a pass adds: the draft's top tokens, and their scores halfway through the target.
fn alternatives(lane: &Lane, values: &[f32]) -> Result<(), Box<dyn std::error::Error>> {
    println!("\n{:>10} {:>5} {:>12} {:>12}", "vocabulary", "rows", "confidence", "top_tokens");
    for vocabulary in [VOCABULARY, 128_256] {
        for rows in [1, 16] {
            let logits = Tensor::from_rows(vocabulary, &values[..rows * vocabulary]);
            let (tokens, mut sure, mut top) = (vec![7; rows], vec![0.0; rows], vec![[0; TOP_TOKENS]; rows]);
            let confidence = best(|| confidence(lane, logits.view(rows), &tokens, &[], &mut sure));
            let top_tokens = best(|| top_tokens(lane, logits.view(rows), &mut top));
            println!("{vocabulary:>10} {rows:>5} {:>12.1} {:>12.1}", confidence * 1e6, top_tokens * 1e6);
        }
    }

    println!("\n{:>5} {:>12}  us, {TOP_TOKENS} tokens per row", "rows", "score_tokens");
    for dtype in [Dtype::Bf16, Dtype::F32] {
        let sources = vec![Source::F32(values); VOCABULARY / 2048 + 1];
        let head = Matrix::pack(2048, &sources, dtype)?;
        for rows in [1, 8, 64] {
            let x = Tensor::from_rows(2048, &values[..rows * 2048]);
            let mut out = vec![0.0; rows * TOP_TOKENS];
            // Other tokens at every call: the head is not in the cache when a pass comes to it.
            let mut call = 0;
            let seconds = best(|| {
                call += 1;
                let token = |i: usize| ((call * out.len() + i).wrapping_mul(0x9e37_79b9) >> 7) % VOCABULARY;
                let tokens: Vec<u32> = (0..out.len()).map(|i| token(i) as u32).collect();
                score_tokens(lane, x.view(rows), &head, &tokens, &mut out);
            });
            println!("{rows:>5} {:>12.1}  {dtype}", seconds * 1e6);
        }
    }
    Ok(())
}

fn noise(i: usize) -> f32 {
    (i.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40) as f32 / (1 << 23) as f32 - 1.0
}

/// The last `rows` rows of a sequence of `context`.
fn one_sequence(
    lane: &Lane,
    dtype: Dtype,
    context: usize,
    rows: usize,
    values: &[f32],
) -> Result<(), Box<dyn std::error::Error>> {
    let mut kv = KvCache::new(KV, dtype)?;
    let blocks: Vec<u32> = (0..KV.blocks as u32).collect();
    let positions: Vec<u32> = (context - rows..context).map(|position| position as u32).collect();
    let table_of = vec![0; rows];
    let pass = Rows { positions: &positions, table_of: &table_of, tables: &[&blocks] };
    let (q, k) =
        (Tensor::from_rows(2048, &values[..rows * 2048]), Tensor::from_rows(256, &values[..rows * 256]));
    let mut out = Tensor::zeros(rows, 2048);
    let stored = best(|| store_kv(lane, k.view(rows), k.view(rows), &mut kv, 0, pass));
    let shape =
        AttentionShape { heads: HEADS, scale: 0.125, soft_cap: None, window: None, first: 0, sinks: None };
    let seconds = best(|| attention(lane, q.view(rows), &kv, 0, pass, shape, out.view_mut(rows)));
    let seen: usize = positions.iter().map(|position| *position as usize + 1).sum();
    let flop = (4 * seen * HEADS * KV.head_dim) as f64;
    let bytes = (2 * context * KV.kv_heads * KV.head_dim * dtype.bytes()) as f64;
    println!(
        "{context:>8} {rows:>5} {:>10.2} {:>10.2} {:>8.1} {:>8.1}  {dtype}",
        stored * 1e6,
        seconds * 1e6,
        flop / seconds / 1e9,
        bytes / seconds / 1e9
    );
    Ok(())
}

/// The last rows of each of some sequences, layer after layer.
fn sequences(
    lane: &Lane,
    (heads, kv_heads, head_dim): (usize, usize, usize),
    (count, rows, context): (usize, usize, usize),
    values: &[f32],
) -> Result<(), Box<dyn std::error::Error>> {
    const MEMORY: usize = 400 << 20;
    let (each, token) = (context / 16 + 1, 4 * kv_heads * head_dim);
    let layers = MEMORY.div_ceil(count * each * 16 * token).clamp(2, 64);
    let shape = KvShape { layers, blocks: count * each, block_size: 16, kv_heads, head_dim };
    let mut kv = KvCache::new(shape, Dtype::Bf16)?;
    // Blocks of a sequence lie apart.
    let table =
        |sequence| (0..each).map(move |block| ((block * 7 % each) * count + sequence) as u32).collect();
    let tables: Vec<Vec<u32>> = (0..count).map(table).collect();
    let tables: Vec<&[u32]> = tables.iter().map(Vec::as_slice).collect();
    let width = kv_heads * head_dim;
    let k = Tensor::from_rows(width, &values[..context * width]);
    let all: Vec<u32> = (0..context as u32).collect();
    for (layer, sequence) in (0..layers).flat_map(|layer| (0..count).map(move |of| (layer, of as u32))) {
        let pass = Rows { positions: &all, table_of: &vec![sequence; context], tables: &tables };
        store_kv(lane, k.view(context), k.view(context), &mut kv, layer, pass);
    }
    let n = count * rows;
    let positions: Vec<u32> = (0..n).map(|row| (context - rows + row % rows) as u32).collect();
    let table_of: Vec<u32> = (0..n).map(|row| (row / rows) as u32).collect();
    let pass = Rows { positions: &positions, table_of: &table_of, tables: &tables };
    let q = Tensor::from_rows(heads * head_dim, &values[..n * heads * head_dim]);
    let mut out = Tensor::zeros(n, heads * head_dim);
    let attended =
        AttentionShape { heads, scale: 0.125, soft_cap: None, window: None, first: 0, sinks: None };
    let seconds = best(|| {
        (0..layers).for_each(|layer| attention(lane, q.view(n), &kv, layer, pass, attended, out.view_mut(n)));
    }) / layers as f64;
    println!(
        "{heads:>3} heads over {kv_heads:>2}, {head_dim:>3}: {count:>2} x {rows} rows at {context:>4}: {:>8.1} us {:>6.1} GFLOP/s {:>5.1} GB/s",
        seconds * 1e6,
        (4 * n * context * heads * head_dim) as f64 / seconds / 1e9,
        (count * context * token) as f64 / seconds / 1e9
    );
    Ok(())
}

/// Seconds of the fastest call in a tenth of a second: what the machine can do when nobody disturbs it.
fn best(mut call: impl FnMut()) -> f64 {
    let (begin, mut best) = (Instant::now(), f64::INFINITY);
    while best.is_infinite() || begin.elapsed() < Duration::from_millis(100) {
        let start = Instant::now();
        call();
        best = best.min(start.elapsed().as_secs_f64());
    }
    best
}
