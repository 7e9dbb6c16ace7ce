//! Checks of a GPU that need a model: its logits against the CPU's; and models of any shape whose weights nobody has to bring.

use std::sync::Arc;

use faser_kernels::cuda::check::{CheckResult, FillArgs, Report, Setting};
use faser_kernels::cuda::{
    Chunk, CudaError, CudaLane, DeviceBuffer, Element, Gpu, Ptr, Sampler, Share, Upload,
};
use faser_kernels::{BlockId, Dtype, Isa, KvCache, Lane, Partition, Rows, Sampling, Source};

use super::model::RowsPacker;
use super::{CudaModel, CudaPasses, CudaSizes, PassInput};
use crate::load::{Shapes, load};
use crate::model::Parts;
use crate::rounding::Distance;
use crate::synthetic::SyntheticSpec;
use crate::{Model, ModelConfig, ModelError, Pass, Shard, WeightSource};

/// The largest weight: what goes through many layers stays finite.
const LARGEST: f32 = 0.02;

/// Tokens of each sequence, and how many of them are in the first pass.
pub const SEQUENCES: [(usize, usize); 2] = [(40, 39), (29, 24)];
const BLOCK: usize = 16;

impl CudaModel {
    /// A model whose weights are small numbers of a generator, made on the GPU. The kernels of checks are loaded there.
    ///
    /// # Errors
    /// The GPU has not enough memory.
    pub fn filled(gpu: &Arc<Gpu>, config: ModelConfig, element: Element) -> Result<CudaModel, ModelError> {
        gpu.load_checks()?;
        let mut lane = CudaLane::new(&[Share::whole(gpu)], false)?;
        let mut seed = 0;
        let fill = |buffer: &DeviceBuffer, element: Element, _: &[Source<'_>]| {
            seed += 1;
            let count = buffer.bytes() / element.bytes();
            let fill = FillArgs::new(element, buffer.ptr(), count, seed << 40, LARGEST);
            let sms = lane.sms();
            Ok(lane.launch(&fill.launch(sms))?)
        };
        let mut packer = RowsPacker { gpu, element, reads: false, fill };
        let parts = load(&config, Shard::WHOLE, &mut Shapes, &mut packer, &mut |_| {})?;
        lane.wait(&mut || {})?;
        CudaModel::new(gpu, (config, Shard::WHOLE), element, parts, Upload::new(gpu)?)
    }

    /// Bytes of the matrices that every pass reads: those of the layers, and the LM head.
    pub fn read_bytes(&self) -> u64 {
        let bytes = |matrix: &DeviceBuffer| matrix.bytes() as u64;
        let Parts { layers, head, .. } = &self.parts;
        layers.iter().map(|layer| layer.bytes(bytes, |_| 0)).sum::<u64>() + bytes(head)
    }
}

/// Logits of a synthetic model against the CPU's: prefill of two sequences together, then a row of one and some of the other. How far those
/// in f32 and bf16 are from those of the f32 model on the CPU, beside how far rounding puts them: so it does not matter which instruction set
/// this CPU has.
///
/// # Errors
/// The GPU cannot be opened, or memory is short.
pub fn logits(setting: &Setting, report: &mut Report<'_>) -> CheckResult {
    let gpu = Gpu::open(setting.ordinal, None)?;
    for kv_heads in [8, 4, 1] {
        let spec = spec(setting, kv_heads);
        let source = WeightSource::Synthetic(spec.clone());
        let target = Model::load(&source, Shard::WHOLE, Dtype::F32, &mut |_| {})?;
        let expected = on_cpu(&target)?;
        for dtype in [Dtype::F32, Dtype::Bf16] {
            let model = CudaModel::load(&gpu, &source, Shard::WHOLE, dtype, &mut |_| {})?;
            let distance = Distance::between(&[on_gpu(&Arc::new(model), &mut whole)?], &[&expected]);
            let most = Distance::of_rounding(dtype, spec.layers);
            let of = format!("of logits in {dtype}, 8 heads over {kv_heads}");
            report.at_most(format!("error {of}"), distance.rms, "", most.rms);
            report.at_most(format!("largest error {of}"), distance.largest, "", most.largest);
        }
    }
    Ok(())
}

/// The shape of its models.
pub fn spec(setting: &Setting, kv_heads: usize) -> SyntheticSpec {
    SyntheticSpec {
        layers: setting.size(6, 2),
        draft_layers: 1,
        hidden: setting.size(1024, 256),
        intermediate: setting.size(2816, 96),
        heads: 8,
        kv_heads,
        vocab: setting.size(32_000, 300),
        max_context: 64,
        seed: 5,
        residual_scale: 0.5,
    }
}

fn tokens(config: &ModelConfig, sequence: usize) -> Vec<u32> {
    (0..SEQUENCES[sequence].0).map(|i| ((i * 31 + sequence * 7 + 3) % config.vocab) as u32).collect()
}

/// Logits of every row, sequence after sequence.
///
/// # Errors
/// Memory is short.
pub fn on_cpu(model: &Model) -> Result<Vec<f32>, ModelError> {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let lane = Lane::new(&Partition { cores: (0..cores).collect() }, Isa::auto()?)?;
    let mut all = Vec::new();
    for (sequence, (len, first)) in SEQUENCES.into_iter().enumerate() {
        let blocks = len.div_ceil(BLOCK);
        let mut kv = KvCache::new(model.kv_shape(blocks, BLOCK), model.kv_dtype())?;
        let mut scratch = model.scratch(len, len);
        let table: Vec<BlockId> = (0..blocks as BlockId).collect();
        let tokens = tokens(model.config(), sequence);
        for range in [0..first, first..len] {
            let positions: Vec<u32> = range.clone().map(|position| position as u32).collect();
            let rows = Rows { positions: &positions, table_of: &vec![0; range.len()], tables: &[&table] };
            let wanted: Vec<u32> = (0..range.len() as u32).collect();
            model.forward(
                &lane,
                &mut kv,
                &mut scratch,
                &Pass { tokens: &tokens[range], rows, logits: &wanted },
            );
            (0..wanted.len()).for_each(|row| all.extend_from_slice(scratch.logits().row(row)));
        }
    }
    Ok(all)
}

/// Runs a pass, the first or the second, and returns its logits: of all rows, or of the last.
pub type RunPass<'a> = dyn FnMut(&mut CudaPasses, &PassInput<'_>, bool) -> Result<Vec<f32>, CudaError> + 'a;

/// The same, both sequences in the same two passes.
///
/// # Errors
/// Memory is short, or what `pass` says.
pub fn on_gpu(model: &Arc<CudaModel>, pass: &mut RunPass<'_>) -> Result<Vec<f32>, ModelError> {
    let config = model.config();
    let rows = SEQUENCES.iter().map(|(len, _)| len).sum();
    let sizes = CudaSizes {
        blocks: 8,
        max_rows: rows,
        max_logit_rows: rows,
        max_chunks: 2,
        max_context: 64,
        max_prune_checkpoints: 0,
    };
    let mut passes = CudaPasses::new(model.clone(), &[Share::whole(model.gpu())], false, sizes)?;
    let tables: [&[BlockId]; 2] = [&[5, 0, 3], &[7, 2]];
    let sampler = Sampler::new(&Sampling::default(), Ptr::NULL, Ptr::NULL, Ptr::NULL);
    let mut found: [Vec<f32>; 2] = Default::default();
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
            tables: &tables,
            samplers: &[sampler, sampler],
            proposals: &[&[], &[]],
            ..PassInput::default()
        };
        let logits = pass(&mut passes, &input, second)?;
        let rows = all.len() - logits.len() / config.vocab..;
        for (logits, sequence) in logits.chunks(config.vocab).zip(&chunk_of[rows]) {
            found[*sequence as usize].extend_from_slice(logits);
        }
    }
    Ok(found.concat())
}

fn whole(passes: &mut CudaPasses, input: &PassInput<'_>, _: bool) -> Result<Vec<f32>, CudaError> {
    passes.stage(input)?;
    passes.layers(0..passes.model().config().layers.len())?;
    passes.finish()?;
    passes.read_logits(input.tokens.len())
}
