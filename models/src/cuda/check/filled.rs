//! Models of any shape, filled with small numbers where they are: to be timed, not to be understood.

use std::sync::Arc;

use faser_kernels::Source;
use faser_kernels::cuda::check::FillArgs;
use faser_kernels::cuda::{CudaLane, DeviceBuffer, Element, Gpu, Share, Upload};

use crate::cuda::CudaModel;
use crate::cuda::model::copy_rope;
use crate::load::{Packer, Shapes, load};
use crate::model::rope_table;
use crate::{ModelConfig, ModelError, Shard};

/// The largest weight: what goes through many layers stays finite.
const LARGEST: f32 = 0.02;

struct Filler {
    gpu: Arc<Gpu>,
    lane: CudaLane,
    element: Element,
    seed: u64,
}

impl CudaModel {
    /// A model whose weights are small numbers of a generator, made on the GPU. The kernels of checks are loaded there.
    ///
    /// # Errors
    /// The GPU has not enough memory.
    pub fn filled(gpu: &Arc<Gpu>, config: ModelConfig, element: Element) -> Result<CudaModel, ModelError> {
        gpu.load_checks()?;
        let lane = CudaLane::new(&[Share::whole(gpu)], false)?;
        let mut filler = Filler { gpu: gpu.clone(), lane, element, seed: 0 };
        let parts = load(&config, Shard::WHOLE, &mut Shapes, &mut filler, &mut |_| {})?;
        filler.lane.wait(&mut || {})?;
        let mut upload = Upload::new(gpu)?;
        let rope = copy_rope(gpu, &mut upload, &rope_table(&config)?)?;
        upload.finish()?;
        Ok(CudaModel::whole(config, element, gpu, parts, rope))
    }

    /// Bytes of the matrices that every pass reads: those of the layers, and the LM head.
    pub fn read_bytes(&self) -> u64 {
        let bytes = |matrix: &DeviceBuffer| matrix.bytes() as u64;
        self.layers.iter().map(|layer| layer.bytes(bytes, |_| 0)).sum::<u64>() + bytes(&self.head)
    }
}

impl Filler {
    fn filled(&mut self, element: Element, shapes: &[Source<'_>]) -> Result<DeviceBuffer, ModelError> {
        self.seed += 1;
        let count = shapes.iter().map(Source::len).sum();
        let buffer = DeviceBuffer::unfilled(&self.gpu, count * element.bytes(), "weights")?;
        let fill = FillArgs::new(element, buffer.ptr(), count, self.seed << 40, LARGEST);
        let sms = self.lane.sms();
        self.lane.launch(&fill.launch(sms))?;
        Ok(buffer)
    }
}

impl Packer for Filler {
    type Table = DeviceBuffer;
    type Matrix = DeviceBuffer;
    type Vector = DeviceBuffer;
    const READS: bool = false;

    fn table(&mut self, _cols: usize, source: Source<'_>) -> Result<DeviceBuffer, ModelError> {
        self.filled(self.element, &[source])
    }

    fn matrix(
        &mut self,
        _tensor: &str,
        _inputs: usize,
        sources: &[Source<'_>],
    ) -> Result<DeviceBuffer, ModelError> {
        self.filled(self.element, sources)
    }

    fn vector(&mut self, sources: &[Source<'_>]) -> Result<DeviceBuffer, ModelError> {
        self.filled(Element::F32, sources)
    }

    fn tied_head(
        &mut self,
        embedding: &Arc<DeviceBuffer>,
        _tensor: &str,
        _inputs: usize,
        _source: Source<'_>,
    ) -> Result<Arc<DeviceBuffer>, ModelError> {
        Ok(embedding.clone())
    }
}
