//! Between two layers, and after the last: proposals tested, rows let go, logits of those that get tokens.

use faser_kernels::cuda::{
    CompactPassArgs, CompactRowsArgs, CudaError, Element, Place, Product, PruneArgs, Ptr, Sample,
    ScoreTokensArgs, SoftCapArgs,
};

use super::CudaPasses;
use super::along::Samples;

/// Where the margins of a pruning checkpoint come back.
#[derive(Clone, Copy, Debug)]
pub struct PruneCheckpoint(pub(super) Place);

impl CudaPasses {
    /// Tests the pass's proposals where it is; rows behind those that fail leave at the next [`CudaPasses::compact`]. Its margins come back
    /// with what the pass brings.
    ///
    /// # Errors
    /// The driver refuses.
    pub fn test_proposals(&mut self) -> Result<PruneCheckpoint, CudaError> {
        let (model, pass, sms) = (self.model.clone(), self.pass, self.lane.sms());
        let (margins, place) = self.output.reserve::<f32>(pass.test_len);
        if pass.test_len == 0 {
            return Ok(PruneCheckpoint(place));
        }
        let most = pass.test_len as u32;
        let args = PruneArgs {
            tests: pass.tests,
            tokens: pass.alternatives,
            scores: pass.scores,
            most: pass.most,
            chunks: pass.rows.chunks,
            samplers: pass.tail.samplers,
            rows: pass.test_rows,
            margins,
            live: pass.live,
            count: pass.test_count,
        };
        self.lane.launch(&args.rows(most))?;
        self.final_norm(pass.test_rows, 1, (pass.test_count, most))?;
        let own = model.shard().tokens(&model.config);
        let scores = ScoreTokensArgs {
            x: self.final_normed.ptr(),
            w: model.parts.head.ptr(),
            tokens: pass.alternatives,
            out: pass.scores,
            rows: pass.test_count,
            inputs: model.config.hidden as u32,
            outputs: own.len() as u32,
            each: PruneArgs::SCORED as u32,
            first: own.start as u32,
            vocabulary: model.config.vocab as u32,
            soft_cap: model.config.logit_soft_cap.unwrap_or(0.0),
        };
        self.lane.launch(&scores.launch(model.element, most, sms))?;
        // Each rank has scored its own tokens; a sum with zeros is exact.
        self.lane.all_reduce_sum(pass.scores, pass.test_len * PruneArgs::SCORED, Element::F32)?;
        self.lane.launch(&args.test(most))?;
        Ok(PruneCheckpoint(place))
    }

    /// Rows that are not wanted any more leave the pass: those of chunks that were cancelled, and what tests have ruled out.
    ///
    /// # Errors
    /// The driver refuses.
    pub fn compact(&mut self) -> Result<(), CudaError> {
        self.shrink();
        self.pass.compacted = true;
        let pass = self.pass;
        let cancelled = match &self.group {
            None => self.cancelled.ptr(),
            Some(group) => group.flags_of_first(&mut self.lane, &self.cancelled, pass.chunk_count)?,
        };
        let args = CompactPassArgs {
            chunks: pass.rows.chunks,
            cancelled,
            live: pass.live,
            positions: pass.rows.positions,
            chunk_of: pass.rows.chunk_of,
            keep: self.keep.ptr(),
            samples: pass.tail.sample_rows,
            counts: pass.rows.counts,
            chunk_count: pass.chunk_count as u32,
        };
        self.lane.launch(&args.launch())?;
        let cols = self.model.config.hidden as u32;
        let args = CompactRowsArgs { x: self.x.ptr(), keep: self.keep.ptr(), counts: pass.rows.counts, cols };
        self.lane.launch(&args.launch())?;
        self.compact_streams()
    }

    /// Ends the layers: logits of the rows that get tokens; of a shard those of its tokens. The rows of a head pass on what the next begin with.
    ///
    /// # Errors
    /// The driver refuses.
    pub fn finish(&mut self) -> Result<(), CudaError> {
        let (model, pass) = (self.model.clone(), self.pass);
        let bucket = pass.tail.samples;
        if bucket == 0 {
            return Ok(());
        }
        // Of a sample the row stands first.
        let stride = (size_of::<Sample>() / size_of::<u32>()) as u32;
        self.final_norm(pass.tail.sample_rows, stride, (pass.sample_count(), bucket as u32))?;
        self.pass_on()?;
        let (out, outputs) = self.own_logits();
        let (x, hidden) = (self.final_normed.ptr(), model.config.hidden);
        let product = self.product(&model.parts.head, x, Ptr::NULL, out, [hidden, outputs]);
        self.multiply(Product { rows: bucket, ..product }, pass.sample_count())?;
        if let Some(cap) = model.config.logit_soft_cap {
            let args = SoftCapArgs { x: out, rows: pass.sample_count(), cols: outputs as u32, cap };
            self.lane.launch(&args.launch(bucket as u32, self.lane.sms()))?;
        }
        self.spread_logits(Samples { first: 0, most: bucket, count: pass.sample_count() })
    }
}
