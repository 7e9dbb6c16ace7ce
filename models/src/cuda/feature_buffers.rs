//! The memory of heads on hidden states on a GPU: pages for what they read, the writer's end of them, and what a head's lane has more than a
//! model's. What is done with it: `cuda_features.rs`.

use std::sync::Arc;

use faser_kernels::Dtype;
use faser_kernels::cuda::{BLOCK_SIZE, CudaError, DeviceBuffer, Element};

use super::along::MarkovBuffers;
use super::rows_packer::CudaMatrix;
use super::{CudaModel, CudaSizes};
use crate::ModelConfig;
use crate::features::Fusion;

/// Features of the tokens in a target's blocks, of the element of the head. Allocated once, for both lanes.
pub struct CudaFeaturePages {
    pub(super) memory: DeviceBuffer,
    pub(super) width: usize,
    pub(super) element: Element,
}

impl CudaFeaturePages {
    /// Pages for a target's `blocks`, for this head.
    ///
    /// # Errors
    /// The GPU has not enough memory.
    pub fn new(head: &CudaModel, blocks: usize) -> Result<Arc<CudaFeaturePages>, CudaError> {
        let (width, element) = (head.config.hidden, head.element);
        let bytes = blocks * BLOCK_SIZE * width * element.bytes();
        let memory = DeviceBuffer::zeroed(&head.gpu, bytes, "what a head reads of its target")?;
        Ok(Arc::new(CudaFeaturePages { memory, width, element }))
    }

    /// Bytes of a token, of a head of this shape.
    pub fn bytes_per_token(head: &ModelConfig, dtype: Dtype) -> u64 {
        (head.hidden * dtype.beside().bytes()) as u64
    }
}

/// The writer's end, with room for its passes.
pub(super) struct FeatureWriter {
    pub(super) pages: Arc<CudaFeaturePages>,
    pub(super) fusion: Arc<Fusion<CudaMatrix, DeviceBuffer>>,
    /// f32 `[rows][streams * hidden]`.
    pub(super) streams: DeviceBuffer,
    /// The element's: the same, normed.
    pub(super) normed: DeviceBuffer,
    /// f32 `[rows][width]`.
    pub(super) fused: DeviceBuffer,
    /// The layer that the pass enters next.
    pub(super) reached: usize,
}

/// What a lane of a head has more than a model's.
pub(super) struct HeadBuffers {
    pub(super) pages: Option<Arc<CudaFeaturePages>>,
    /// f32 `[rows][hidden]`: the tokens' embeddings, where they stand beside the residual stream.
    pub(super) embedded: Option<DeviceBuffer>,
    /// f32 `[chunk][hidden]`.
    pub(super) passed_on: DeviceBuffer,
    /// f32 `[logit rows][proposed]`, where it proposes some tokens alone.
    pub(super) proposed: Option<DeviceBuffer>,
    /// Where the rows of its blocks depend on one another.
    pub(super) markov: Option<MarkovBuffers>,
}

impl HeadBuffers {
    pub(super) fn new(model: &CudaModel, sizes: &CudaSizes) -> Result<Option<HeadBuffers>, CudaError> {
        let Some(spec) = &model.config.head else { return Ok(None) };
        let f32 = size_of::<f32>();
        let row = model.config.hidden * f32;
        let buffer = |count: usize, each: usize| DeviceBuffer::zeroed(&model.gpu, count * each, "a head");
        Ok(Some(HeadBuffers {
            pages: None,
            embedded: model.config.block().is_none().then(|| buffer(sizes.rows(), row)).transpose()?,
            passed_on: buffer(CudaSizes::bucket(sizes.max_chunks), row)?,
            proposed: spec.proposed_vocab.map(|own| buffer(sizes.logit_rows(), own * f32)).transpose()?,
            markov: MarkovBuffers::new(&model.gpu, &model.config, sizes.logit_rows(), model.element)?,
        }))
    }
}
