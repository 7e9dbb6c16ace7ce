//! Models of any shape, filled with small numbers where they are: to be timed, not to be understood.

use std::sync::Arc;

use faser_kernels::Source;
use faser_kernels::cuda::check::FillArgs;
use faser_kernels::cuda::{CudaLane, DeviceBuffer, Element, Gpu, Share, Upload};

use crate::cuda::CudaModel;
use crate::cuda::model::RowsPacker;
use crate::load::{Shapes, load};
use crate::model::Parts;
use crate::{ModelConfig, ModelError, Shard};

/// The largest weight: what goes through many layers stays finite.
const LARGEST: f32 = 0.02;

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
