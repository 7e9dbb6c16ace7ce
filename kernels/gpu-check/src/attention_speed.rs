//! How fast attention reads keys and values, against a kernel that only reads.

use super::probes::{self, FillArgs};
use super::rates::read_bytes_per_s;
use super::{CheckResult, Report, Setting, seconds};
use faser_kernels::cuda::{
    Arena, AttentionArgs, AttentionPlan, BLOCK_SIZE, Chunk, CudaError, CudaLane, DeviceBuffer, Element, Gpu,
    KvElement, NOTHING, Ptr, Share, Tile,
};

const HEAD_DIM: usize = 128;
const KV_HEADS: usize = 8;
const ELEMENT: Element = Element::Bf16;

/// Some rows at the end of each of some sequences of one length.
#[derive(Clone, Copy)]
struct Shape {
    kv: KvElement,
    sequences: usize,
    rows: usize,
    group: usize,
    context: usize,
}

/// Rows of 1, 4 and 8, heads 4 and 8 to a key head, 1, 8 and 32 sequences, at 4096 positions, in bf16 and FP8.
///
/// # Errors
/// The GPU cannot be opened, or its memory is short.
pub fn attention(setting: &Setting, report: &mut Report<'_>) -> CheckResult {
    let gpu = Gpu::open(setting.ordinal, None)?;
    probes::load(&gpu)?;
    let lane = &mut CudaLane::new(&[Share::whole(&gpu)], false)?;
    let bandwidth = read_bytes_per_s(lane, setting)?;
    report.timed("a kernel that only reads", bandwidth / 1e9, "GB/s", None);
    let context = setting.size(4096, 40);
    for &sequences in setting.size(&[1, 8, 32][..], &[1, 2]) {
        for group in [4, 8] {
            for rows in [1, 4, 8] {
                for kv in [KvElement::Element(ELEMENT), KvElement::Fp8] {
                    let shape = Shape { kv, sequences, rows, group, context };
                    let (bytes, took) = shape.run(lane, setting)?;
                    let held = kv.dtype();
                    let what = format!(
                        "{sequences} x {rows} rows at {context} in {held}, {group} heads to a key head"
                    );
                    report.timed(&what, bytes / took / 1e9, "GB/s", Some(bandwidth / 1e9));
                    report.timed(what, took * 1e6, "us", None);
                }
            }
        }
    }
    Ok(())
}

impl Shape {
    /// Bytes of keys and values that a launch reads, and the seconds it takes with its merge.
    fn run(self, lane: &mut CudaLane, setting: &Setting) -> Result<(f64, f64), CudaError> {
        let Shape { kv, sequences, rows, group, context } = self;
        let (gpu, sms, element) = (lane.gpu().clone(), lane.sms(), ELEMENT);
        let blocks = context.div_ceil(BLOCK_SIZE);
        let cache = sequences * blocks * kv.block_bytes(KV_HEADS, HEAD_DIM);
        // Layers in turns, so that no cache holds what the next launch reads.
        let layers = setting.size((512usize << 20).div_ceil(2 * cache).max(2), 1);
        let (heads, total) = (KV_HEADS * group, sequences * rows);
        let each = AttentionPlan::positions((rows * group) as u32, context as u32, KV_HEADS);
        let plan = AttentionPlan::new(context as u32, sequences as u64 * each, sms);
        let buffer = |bytes| DeviceBuffer::zeroed(&gpu, bytes, "attention");
        let (keys, values) = (buffer(layers * cache)?, buffer(layers * cache)?);
        let (q, out) = (buffer(total * heads * HEAD_DIM * 4)?, buffer(total * heads * HEAD_DIM * 2)?);
        let (sums, stats) =
            (buffer(plan.sums_len(total, heads, HEAD_DIM) * 4)?, buffer(plan.stats_len(total, heads) * 8)?);
        for to in [&keys, &values] {
            // In FP8 codes are any, and scales numbers.
            let fill = if kv == KvElement::Fp8 { Element::F32 } else { element };
            let count = layers * cache / fill.bytes();
            lane.launch(&FillArgs::new(fill, to.ptr(), count, 1, 1.0).launch(sms))?;
        }
        lane.launch(&FillArgs::new(Element::F32, q.ptr(), total * heads * HEAD_DIM, 2, 1.0).launch(sms))?;
        let (fewest, most) = (AttentionArgs::FEWEST_QUERIES, rows * group);
        let launched = sequences * most.div_ceil(fewest) * KV_HEADS * plan.splits as usize;
        let queries = AttentionArgs::tile_queries(
            element,
            HEAD_DIM as u32,
            most as u32,
            (launched as u32, gpu.info().sms),
        );
        let stages = AttentionArgs::stages(element, kv, HEAD_DIM as u32, gpu.info().block_shared_bytes);
        let stages =
            stages.ok_or_else(|| CudaError::Unfit("a block has too little shared memory".to_owned()))?;
        let mut tiles = Vec::new();
        let seen: Vec<u32> = (context - rows..context).map(|position| position as u32).collect();
        Tile::cover(vec![seen.as_slice(); sequences], plan, group as u32, queries, &mut tiles);
        let chunk =
            |s: usize| Chunk { first: (s * rows) as u32, rows: rows as u32, sampled_from: NOTHING, since: 0 };
        let mut arena = Arena::new(
            &gpu,
            sequences * (blocks * 4 + 64) + total * 8 + tiles.len() * 8 + 1024,
            "attention",
        )?;
        let tables = arena.put(&(0..(sequences * blocks) as u32).collect::<Vec<u32>>());
        let positions: Vec<u32> = (0..total).map(|row| (context - rows + row % rows) as u32).collect();
        let (positions, chunks) =
            (arena.put(&positions), arena.put(&(0..sequences).map(chunk).collect::<Vec<_>>()));
        let (tiles_at, tickets) = (arena.put(&tiles), buffer(tiles.len() * KV_HEADS * 4)?);
        lane.send(&mut arena)?;
        let took = seconds(lane, setting.small, &mut |lane, run| {
            let layer = run % layers * cache;
            let args = AttentionArgs {
                q: q.ptr(),
                keys: keys.at(layer),
                values: values.at(layer),
                tables,
                positions,
                chunks,
                tiles: tiles_at,
                out: out.ptr(),
                sums: sums.ptr(),
                stats: stats.ptr(),
                sinks: Ptr::NULL,
                tickets: tickets.ptr(),
                q_stride: (heads * HEAD_DIM) as u32,
                table_stride: blocks as u32,
                heads: heads as u32,
                kv_heads: KV_HEADS as u32,
                head_dim: HEAD_DIM as u32,
                first: 0,
                window: 0,
                split: plan.split,
                splits: plan.splits,
                scale: (HEAD_DIM as f32).sqrt().recip(),
                soft_cap: 0.0,
            };
            lane.launch(&args.launch((element, kv), queries, stages, tiles.len() as u32))
        })?;
        Ok(((2 * cache) as f64, took))
    }
}
