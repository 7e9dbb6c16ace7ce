//! Passes to be timed on a GPU: what a lane queues for a plan, tokens drawn and read back.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender};

use faser_engine::BlockId;
use faser_kernels::Sampling;
use faser_kernels::cuda::{BLOCK_SIZE, Chunk, NOTHING, NcclSeat, Ptr, Sampler, Share};
use faser_models::cuda::{CudaModel, CudaPasses, CudaSizes, PassInput};

use super::{SAMPLED_ROWS, Timed};
use crate::error::ServiceError;

pub(super) struct GpuPasses {
    /// The ways to the other ranks, if this is the first of a group: each carries out the passes that it hears of, rows and context.
    followers: Vec<Sender<(usize, usize)>>,
    passes: CudaPasses,
    drafts: bool,
    blocks: Vec<BlockId>,
    sampler: Sampler,
}

impl GpuPasses {
    /// Passes of one lane on its share, of at most `rows` rows and `context` tokens.
    pub(super) fn new(
        model: Arc<CudaModel>,
        share: Arc<Share>,
        drafts: bool,
        rows: usize,
        context: usize,
    ) -> Result<GpuPasses, ServiceError> {
        let blocks = rows.max(context.div_ceil(BLOCK_SIZE));
        let sizes = CudaSizes {
            blocks,
            max_rows: rows,
            max_logit_rows: rows.min(SAMPLED_ROWS),
            max_chunks: rows,
            max_context: context,
            max_gates: 1,
        };
        let sampling = Sampling { temperature: 1.0, ..Sampling::default() };
        Ok(GpuPasses {
            followers: Vec::new(),
            passes: CudaPasses::new(model, &[share], drafts, sizes)?,
            drafts,
            blocks: (0..blocks as BlockId).collect(),
            sampler: Sampler::new(&sampling, Ptr::NULL, Ptr::NULL, Ptr::NULL),
        })
    }
}

impl GpuPasses {
    /// From now on these are the passes of one rank of a group.
    pub(super) fn join(&mut self, seat: &NcclSeat) -> Result<(), ServiceError> {
        Ok(self.passes.join(seat)?)
    }

    /// From now on the ranks behind these ways do the same.
    pub(super) fn lead(&mut self, followers: Vec<Sender<(usize, usize)>>) {
        self.followers = followers;
    }

    /// Does what the first rank does until it ends.
    pub(super) fn follow(&mut self, told: &Receiver<(usize, usize)>) -> Result<(), ServiceError> {
        told.iter().try_for_each(|(rows, context)| self.pass(rows, context))
    }
}

impl Timed for GpuPasses {
    // Kernels are loaded and products chosen when they are first asked for.
    const FIRST_IS_COLD: bool = true;

    /// Rows without context are a chunk each, rows with context are one chunk that ends there.
    fn pass(&mut self, rows: usize, context: usize) -> Result<(), ServiceError> {
        // One that has gone is missed by the group.
        for follower in &self.followers {
            let _ = follower.send((rows, context));
        }
        let rows = if context == 0 { rows } else { rows.min(context + 1) };
        let alone = |row: usize| Chunk {
            first: row as u32,
            rows: 1,
            sampled_from: if row < SAMPLED_ROWS { 0 } else { NOTHING },
            first_sample: 0,
        };
        let (chunks, tables, begin): (Vec<Chunk>, Vec<&[BlockId]>, usize) = if context == 0 {
            ((0..rows).map(alone).collect(), (0..rows).map(|row| &self.blocks[row..=row]).collect(), 0)
        } else {
            let together = Chunk { first: 0, rows: rows as u32, sampled_from: 0, first_sample: 0 };
            let blocks = (context + 1).div_ceil(BLOCK_SIZE);
            (vec![together], vec![&self.blocks[..blocks]], context + 1 - rows)
        };
        let place = |row: usize| if context == 0 { (0, row as u32) } else { ((begin + row) as u32, 0) };
        let (positions, chunk_of): (Vec<u32>, Vec<u32>) = (0..rows).map(place).unzip();
        let of_plan: Vec<u32> = if self.drafts { (0..chunks.len() as u32).collect() } else { Vec::new() };
        self.passes.stage(&PassInput {
            of_plan: &of_plan,
            tokens: &vec![0; rows],
            positions: &positions,
            chunk_of: &chunk_of,
            chunks: &chunks,
            tables: &tables,
            samplers: &vec![self.sampler; chunks.len()],
            proposals: &vec![&[][..]; chunks.len()],
            adjusts: false,
            restricts: false,
            cuts: false,
            tests: &[],
        })?;
        self.passes.layers(0..self.passes.model().config().layers)?;
        self.passes.finish()?;
        let drawn = self.passes.draw(false)?;
        if !self.drafts {
            self.passes.judge(&drawn)?;
        }
        self.passes.fetch()?;
        Ok(self.passes.wait(&mut |_| {})?)
    }
}
