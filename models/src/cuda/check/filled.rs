//! Models of any shape, filled with small numbers where they are: to be timed, not to be understood.

use std::sync::Arc;

use faser_kernels::cuda::check::FillArgs;
use faser_kernels::cuda::{CudaError, CudaLane, DeviceBuffer, Element, Gpu, Share, Upload};

use crate::cuda::CudaModel;
use crate::cuda::model::{CudaLayer, copy_rope};
use crate::model::{Parts, rope_table};
use crate::{ModelConfig, ModelError};

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
        let (hidden, vocab) = (config.hidden, config.vocab);
        let embedding = Arc::new(filler.matrix(vocab, hidden)?);
        let head =
            if config.tie_embeddings { embedding.clone() } else { Arc::new(filler.matrix(vocab, hidden)?) };
        let norm = Arc::new(filler.vector(hidden)?);
        let layers = (0..config.layers).map(|_| filler.layer(&config).map(Arc::new));
        let layers = layers.collect::<Result<Vec<_>, _>>()?;
        filler.lane.wait(&mut || {})?;
        let mut upload = Upload::new(gpu)?;
        let rope = copy_rope(gpu, &mut upload, &rope_table(&config)?)?;
        upload.finish()?;
        let parts = Parts { embedding, layers, norm, head };
        Ok(CudaModel::whole(config, element, gpu, parts, rope))
    }

    /// Bytes of the matrices that every pass reads: those of the layers, and the LM head.
    pub fn read_bytes(&self) -> u64 {
        let ModelConfig { hidden, intermediate, layers, vocab, .. } = self.config;
        let layer = hidden * (2 * self.config.q_width() + 2 * self.config.kv_width() + 3 * intermediate);
        ((layers * layer + vocab * hidden) * self.element.bytes()) as u64
    }
}

impl Filler {
    fn filled(&mut self, element: Element, count: usize) -> Result<DeviceBuffer, CudaError> {
        self.seed += 1;
        let buffer = DeviceBuffer::unfilled(&self.gpu, count * element.bytes(), "weights")?;
        let fill = FillArgs::new(element, buffer.ptr(), count, self.seed << 40, LARGEST);
        let sms = self.lane.sms();
        self.lane.launch(&fill.launch(sms))?;
        Ok(buffer)
    }

    fn matrix(&mut self, outputs: usize, inputs: usize) -> Result<DeviceBuffer, CudaError> {
        self.filled(self.element, outputs * inputs)
    }

    fn vector(&mut self, len: usize) -> Result<DeviceBuffer, CudaError> {
        self.filled(Element::F32, len)
    }

    fn vector_if(&mut self, there: bool, len: usize) -> Result<Option<DeviceBuffer>, CudaError> {
        there.then(|| self.vector(len)).transpose()
    }

    fn layer(&mut self, config: &ModelConfig) -> Result<CudaLayer, CudaError> {
        let ModelConfig { hidden, intermediate, head_dim, .. } = *config;
        let (q, kv) = (config.q_width(), config.kv_width());
        Ok(CudaLayer {
            attention_norm: self.vector(hidden)?,
            qkv: self.matrix(q + 2 * kv, hidden)?,
            qkv_bias: self.vector_if(config.qkv_bias, q + 2 * kv)?,
            q_norm: self.vector_if(config.qk_norm, head_dim)?,
            k_norm: self.vector_if(config.qk_norm, head_dim)?,
            o: self.matrix(hidden, q)?,
            o_bias: self.vector_if(config.o_bias, hidden)?,
            mlp_norm: self.vector(hidden)?,
            gate_up: self.matrix(2 * intermediate, hidden)?,
            gate_up_bias: self.vector_if(config.mlp_bias, 2 * intermediate)?,
            down: self.matrix(hidden, intermediate)?,
            down_bias: self.vector_if(config.mlp_bias, hidden)?,
        })
    }
}
