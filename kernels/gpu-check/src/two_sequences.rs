//! Two sequences through a model, on the CPU and on a GPU: prefill of both together, then a row of one and some of the other. Also a module of
//! tests of models.

use std::sync::Arc;

use faser_kernels::cuda::{Chunk, CudaError, Ptr, Sampler, Share};
use faser_kernels::{BlockId, Dtype, Isa, KvCache, Lane, Partition, Rows, Sampling};
use faser_models::cuda::{CudaModel, CudaPasses, CudaSizes, PassInput};
use faser_models::synthetic::SyntheticSpec;
use faser_models::{Model, ModelConfig, ModelError, Pass};

/// Tokens of each sequence, and how many of them are in the first pass.
pub(crate) const SEQUENCES: [(usize, usize); 2] = [(42, 41), (30, 25)];
const BLOCK: usize = 16;

/// The shape of a model for them.
pub(crate) fn spec(small: bool, kv_heads: usize) -> SyntheticSpec {
    let size = |large, of_small| if small { of_small } else { large };
    SyntheticSpec {
        layers: size(6, 2),
        draft_layers: 1,
        hidden: size(1024, 256),
        intermediate: size(2816, 96),
        experts: 0,
        experts_per_token: 0,
        heads: 8,
        kv_heads,
        vocab: size(32_000, 300),
        max_context: 64,
        seed: 5,
        residual_scale: 0.5,
        mask_token: None,
    }
}

/// The same with experts. In bf16 a row goes to all of them: rounding turns choices between nearly equal ones, and what another expert makes of
/// a row is no matter of rounding.
pub(crate) fn spec_with_experts(small: bool, dtype: Dtype) -> SyntheticSpec {
    let (experts, experts_per_token) = if dtype == Dtype::F32 { (8, 3) } else { (4, 4) };
    SyntheticSpec { experts, experts_per_token, ..spec(small, 4) }
}

fn tokens(config: &ModelConfig, sequence: usize) -> Vec<u32> {
    (0..SEQUENCES[sequence].0).map(|i| ((i * 31 + sequence * 7 + 3) % config.vocab) as u32).collect()
}

/// Logits of every row, sequence after sequence.
///
/// # Errors
/// Memory is short.
pub(crate) fn on_cpu(model: &Model) -> Result<Vec<f32>, ModelError> {
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
pub(crate) type RunPass<'a> =
    dyn FnMut(&mut CudaPasses, &PassInput<'_>, bool) -> Result<Vec<f32>, CudaError> + 'a;

/// The same, both sequences in the same two passes.
///
/// # Errors
/// Memory is short, or what `pass` says.
pub(crate) fn on_gpu(model: &Arc<CudaModel>, pass: &mut RunPass<'_>) -> Result<Vec<f32>, ModelError> {
    let config = model.config();
    let rows = SEQUENCES.iter().map(|(len, _)| len).sum();
    let sizes = CudaSizes {
        blocks: 8,
        max_rows: rows,
        max_logit_rows: rows,
        max_chunks: 2,
        max_sequences: 2,
        max_context: 64,
        max_prune_checkpoints: 0,
        deterministic: false,
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
