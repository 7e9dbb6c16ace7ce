//! Models of any shape whose weights nobody has to bring.

use std::sync::Arc;

use faser_kernels::Dtype;
use faser_kernels::cuda::{CudaLane, Gpu, Share};
use faser_models::cuda::CudaModel;
use faser_models::{ModelConfig, ModelError, Shard};

use super::probes::{self, FillArgs};

/// The largest weight: what goes through many layers stays finite.
const LARGEST: f32 = 0.02;

/// A model whose weights are small numbers of a generator, made on the GPU. Records, which are codes and scales, are words of a generator that are finite
/// however they are read: codes of 8 bits are positive and their scales tiny, those of 4 bits negative and up to some 4. The kernels of checks are loaded there.
///
/// # Errors
/// The GPU has not enough memory.
pub(crate) fn filled(gpu: &Arc<Gpu>, config: ModelConfig, dtype: Dtype) -> Result<CudaModel, ModelError> {
    probes::load(gpu)?;
    let mut lane = CudaLane::new(&[Share::whole(gpu)], false)?;
    let mut seed = 0;
    let model = CudaModel::filled(gpu, (config, Shard::WHOLE), dtype, |buffer, held| {
        seed += 1;
        let fill = match held {
            Some(element) => {
                let count = buffer.bytes() / element.bytes();
                FillArgs::new(element, buffer.ptr(), count, seed << 40, LARGEST)
            }
            None => FillArgs::words(buffer.ptr(), buffer.bytes() / 4, seed << 40),
        };
        let sms = lane.sms();
        lane.launch(&fill.launch(sms))
    })?;
    lane.wait(&mut || {})?;
    Ok(model)
}
