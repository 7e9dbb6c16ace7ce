//! What the experts of a pass take of a GPU's memory.

use std::sync::Arc;

use faser_kernels::cuda::{CudaError, DeviceBuffer, Element, Gpu};

use crate::ModelConfig;

/// Room for the experts' activations: a row has as many as it has experts.
pub(super) struct ExpertBuffers {
    /// f32 `[rows][router's outputs]`.
    pub(super) logits: DeviceBuffer,
    /// u32 `[rows][active]`, and f32 likewise.
    pub(super) chosen: DeviceBuffer,
    pub(super) places: DeviceBuffer,
    pub(super) group_rows: DeviceBuffer,
    pub(super) weights: DeviceBuffer,
    /// u32: how many groups, the expert of each, where each begins.
    pub(super) groups: DeviceBuffer,
    /// By places, the element's `[rows * active][width]` and f32 `[rows * active][hidden]`.
    pub(super) activated: DeviceBuffer,
    pub(super) products: DeviceBuffer,
    /// f32 `[rows][hidden]`: what the shared expert makes.
    pub(super) shared: DeviceBuffer,
}

impl ExpertBuffers {
    /// Bytes of each, for passes of up to `rows` rows of a model whose shard has these sizes; elements have `held` bytes.
    fn sizes(own: &ModelConfig, rows: usize, held: usize) -> Option<[usize; 9]> {
        let spec = own.experts()?;
        let (word, pairs, hidden) = (size_of::<u32>(), rows * spec.active, own.hidden);
        let of_pairs = pairs * word;
        let shared = if spec.shared.is_some() { rows * hidden * word } else { 0 };
        let (logits, groups) = (rows * spec.router_width() * word, (2 * spec.count + 2) * word);
        let (activated, products) = (pairs * spec.width * held, pairs * hidden * word);
        Some([logits, of_pairs, of_pairs, of_pairs, of_pairs, groups, activated, products, shared])
    }

    /// Bytes that they take, for planning; 0 without experts.
    pub(super) fn bytes(own: &ModelConfig, rows: usize, held: usize) -> usize {
        ExpertBuffers::sizes(own, rows, held).map_or(0, |sizes| sizes.iter().sum())
    }

    /// None without experts.
    pub(super) fn new(
        gpu: &Arc<Gpu>,
        own: &ModelConfig,
        rows: usize,
        element: Element,
    ) -> Result<Option<ExpertBuffers>, CudaError> {
        let Some(bytes) = ExpertBuffers::sizes(own, rows, element.bytes()) else { return Ok(None) };
        let [logits, chosen, places, group_rows, weights, groups, activated, products, shared] =
            bytes.map(|bytes| DeviceBuffer::zeroed(gpu, bytes, "activations of experts"));
        let (logits, chosen, places, group_rows) = (logits?, chosen?, places?, group_rows?);
        let (weights, groups, activated) = (weights?, groups?, activated?);
        let (products, shared) = (products?, shared?);
        Ok(Some(ExpertBuffers {
            logits,
            chosen,
            places,
            group_rows,
            weights,
            groups,
            activated,
            products,
            shared,
        }))
    }
}
