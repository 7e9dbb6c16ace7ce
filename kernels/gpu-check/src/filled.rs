//! Models of any shape whose weights nobody has to bring.

use std::sync::Arc;

use faser_kernels::cuda::{CudaLane, Element, Gpu, Share};
use faser_models::cuda::CudaModel;
use faser_models::{ModelConfig, ModelError, Shard};

use super::probes::{self, FillArgs};

/// The largest weight: what goes through many layers stays finite.
const LARGEST: f32 = 0.02;

/// A model whose weights are small numbers of a generator, made on the GPU. The kernels of checks are loaded there.
///
/// # Errors
/// The GPU has not enough memory.
pub(crate) fn filled(gpu: &Arc<Gpu>, config: ModelConfig, element: Element) -> Result<CudaModel, ModelError> {
    probes::load(gpu)?;
    let mut lane = CudaLane::new(&[Share::whole(gpu)], false)?;
    let mut seed = 0;
    let model = CudaModel::filled(gpu, (config, Shard::WHOLE), element.dtype(), |buffer, held| {
        let element = held.unwrap_or(element);
        seed += 1;
        let count = buffer.bytes() / element.bytes();
        let fill = FillArgs::new(element, buffer.ptr(), count, seed << 40, LARGEST);
        let sms = lane.sms();
        lane.launch(&fill.launch(sms))
    })?;
    lane.wait(&mut || {})?;
    Ok(model)
}
