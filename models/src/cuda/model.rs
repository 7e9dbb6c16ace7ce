//! The weights of a model in a GPU's memory, row after row as kernels and cublasLt take them.

use std::collections::HashMap;
use std::sync::Arc;

use faser_kernels::cuda::{AttentionArgs, CudaError, DeviceBuffer, Element, Gpu, Ptr, Upload};
use faser_kernels::{Dtype, Matrix, RopeTable, Table, Vector};
use half::bf16;

use crate::layer::Layer;
use crate::{Model, ModelConfig, ModelError, Progress};

/// A model whose weights are on a GPU. Layers that the models of a pair have in common are there once.
pub struct CudaModel {
    pub(super) config: ModelConfig,
    pub(super) element: Element,
    pub(super) gpu: Arc<Gpu>,
    pub(super) embedding: Arc<DeviceBuffer>,
    pub(super) layers: Vec<Arc<CudaLayer>>,
    pub(super) norm: Arc<DeviceBuffer>,
    pub(super) head: Arc<DeviceBuffer>,
    pub(super) rope: Arc<DeviceBuffer>,
}

pub(super) struct CudaLayer {
    pub(super) attention_norm: DeviceBuffer,
    pub(super) qkv: DeviceBuffer,
    pub(super) qkv_bias: Option<DeviceBuffer>,
    pub(super) q_norm: Option<DeviceBuffer>,
    pub(super) k_norm: Option<DeviceBuffer>,
    pub(super) o: DeviceBuffer,
    pub(super) o_bias: Option<DeviceBuffer>,
    pub(super) mlp_norm: DeviceBuffer,
    pub(super) gate_up: DeviceBuffer,
    pub(super) gate_up_bias: Option<DeviceBuffer>,
    pub(super) down: DeviceBuffer,
    pub(super) down_bias: Option<DeviceBuffer>,
}

/// Where an optional vector is.
pub(super) fn ptr(buffer: &Option<DeviceBuffer>) -> Ptr {
    buffer.as_ref().map_or(Ptr::NULL, DeviceBuffer::ptr)
}

impl CudaModel {
    /// The shape.
    pub fn config(&self) -> &ModelConfig {
        &self.config
    }

    /// In what matrices and KV are held.
    pub fn element(&self) -> Element {
        self.element
    }

    /// Its GPU.
    pub fn gpu(&self) -> &Arc<Gpu> {
        &self.gpu
    }
}

/// Copies the weights of `models` to the GPU; what they share in memory they share there. `progress` is called after each layer.
///
/// # Errors
/// The models are held in int8 or have a shape for which there are no kernels, or the GPU has not enough memory.
pub fn upload(
    gpu: &Arc<Gpu>,
    models: &[&Model],
    progress: &mut dyn FnMut(Progress),
) -> Result<Vec<CudaModel>, ModelError> {
    let total_bytes = models.iter().map(|model| model.weight_bytes()).sum();
    let mut copier = Copier {
        gpu,
        upload: Upload::new(gpu)?,
        layers: HashMap::new(),
        buffers: HashMap::new(),
        done: Progress { done_bytes: 0, total_bytes },
    };
    let mut copied = Vec::with_capacity(models.len());
    for model in models {
        copied.push(copier.model(model, progress)?);
    }
    copier.upload.finish()?;
    Ok(copied)
}

struct Copier<'a> {
    gpu: &'a Arc<Gpu>,
    upload: Upload,
    /// What is there already, by where it is on the host.
    layers: HashMap<*const Layer, Arc<CudaLayer>>,
    buffers: HashMap<*const (), Arc<DeviceBuffer>>,
    done: Progress,
}

impl Copier<'_> {
    fn model(&mut self, model: &Model, progress: &mut dyn FnMut(Progress)) -> Result<CudaModel, ModelError> {
        let config = model.config().clone();
        let element = element(model.dtype())?;
        fits(self.gpu, &config, element)?;
        let parts = &model.parts;
        let embedding =
            self.once(Arc::as_ptr(&parts.embedding).cast(), |copier| copier.table(&parts.embedding))?;
        let norm = self.once(Arc::as_ptr(&parts.norm).cast(), |copier| copier.vector(&parts.norm))?;
        let head = self.once(Arc::as_ptr(&parts.head).cast(), |copier| copier.matrix(&parts.head))?;
        self.tell(parts.embedding.bytes() + parts.norm.bytes() + parts.head.bytes(), progress);
        let mut layers = Vec::with_capacity(config.layers);
        for layer in &parts.layers {
            let key = Arc::as_ptr(layer);
            if !self.layers.contains_key(&key) {
                let copied = Arc::new(self.layer(layer)?);
                self.layers.insert(key, copied);
            }
            layers.push(self.layers[&key].clone());
            self.tell(layer.bytes(), progress);
        }
        let rope = Arc::new(self.rope(&model.rope)?);
        Ok(CudaModel { config, element, gpu: self.gpu.clone(), embedding, layers, norm, head, rope })
    }

    fn tell(&mut self, bytes: u64, progress: &mut dyn FnMut(Progress)) {
        self.done.done_bytes += bytes;
        progress(self.done);
    }

    fn once(
        &mut self,
        key: *const (),
        copy: impl FnOnce(&mut Self) -> Result<DeviceBuffer, CudaError>,
    ) -> Result<Arc<DeviceBuffer>, CudaError> {
        if let Some(there) = self.buffers.get(&key) {
            return Ok(there.clone());
        }
        let copied = Arc::new(copy(self)?);
        self.buffers.insert(key, copied.clone());
        Ok(copied)
    }

    fn layer(&mut self, layer: &Layer) -> Result<CudaLayer, CudaError> {
        Ok(CudaLayer {
            attention_norm: self.vector(&layer.attention_norm)?,
            qkv: self.matrix(&layer.qkv)?,
            qkv_bias: self.optional(layer.qkv_bias.as_ref())?,
            q_norm: self.optional(layer.q_norm.as_ref())?,
            k_norm: self.optional(layer.k_norm.as_ref())?,
            o: self.matrix(&layer.o)?,
            o_bias: self.optional(layer.o_bias.as_ref())?,
            mlp_norm: self.vector(&layer.mlp_norm)?,
            gate_up: self.matrix(&layer.gate_up)?,
            gate_up_bias: self.optional(layer.gate_up_bias.as_ref())?,
            down: self.matrix(&layer.down)?,
            down_bias: self.optional(layer.down_bias.as_ref())?,
        })
    }

    fn optional(&mut self, vector: Option<&Vector>) -> Result<Option<DeviceBuffer>, CudaError> {
        vector.map(|vector| self.vector(vector)).transpose()
    }

    fn vector(&mut self, vector: &Vector) -> Result<DeviceBuffer, CudaError> {
        let buffer = DeviceBuffer::zeroed(self.gpu, vector.len() * size_of::<f32>(), WEIGHTS)?;
        self.upload.rows::<f32>(&buffer, 1, vector.len(), |_, to| to.copy_from_slice(vector.as_slice()))?;
        Ok(buffer)
    }

    fn matrix(&mut self, matrix: &Matrix) -> Result<DeviceBuffer, CudaError> {
        let (rows, row) = (matrix.out_features(), matrix.in_features());
        let buffer = DeviceBuffer::zeroed(self.gpu, rows * row * matrix.dtype().bytes(), WEIGHTS)?;
        match matrix.dtype() {
            Dtype::F32 => {
                self.upload.rows::<f32>(&buffer, rows, row, |r, to| assert!(matrix.unpack_f32(r, to)))?;
            }
            _ => self.upload.rows::<bf16>(&buffer, rows, row, |r, to| assert!(matrix.unpack_bf16(r, to)))?,
        }
        Ok(buffer)
    }

    fn table(&mut self, table: &Table) -> Result<DeviceBuffer, CudaError> {
        let (rows, row) = (table.rows(), table.cols());
        let buffer = DeviceBuffer::zeroed(self.gpu, table.bytes() as usize, WEIGHTS)?;
        if table.f32_row(0).is_some() {
            let read = |r: usize, to: &mut [f32]| to.copy_from_slice(table.f32_row(r).unwrap_or(&[]));
            self.upload.rows(&buffer, rows, row, read)?;
        } else {
            let read = |r: usize, to: &mut [bf16]| to.copy_from_slice(table.bf16_row(r).unwrap_or(&[]));
            self.upload.rows(&buffer, rows, row, read)?;
        }
        Ok(buffer)
    }

    fn rope(&mut self, rope: &RopeTable) -> Result<DeviceBuffer, CudaError> {
        let (rows, row) = (rope.max_positions(), rope.head_dim());
        let buffer = DeviceBuffer::zeroed(self.gpu, rows * row * size_of::<f32>(), "the rope table")?;
        self.upload.rows::<f32>(&buffer, rows, row, |r, to| to.copy_from_slice(rope.row(r)))?;
        Ok(buffer)
    }
}

const WEIGHTS: &str = "weights";

fn element(dtype: Dtype) -> Result<Element, CudaError> {
    match dtype {
        Dtype::F32 => Ok(Element::F32),
        Dtype::Bf16 => Ok(Element::Bf16),
        Dtype::Int8 => Err(CudaError::Unfit("int8 weights run on the CPU alone: choose bf16".to_owned())),
    }
}

/// Refuses shapes that kernels do not take, before anything is copied.
fn fits(gpu: &Gpu, config: &ModelConfig, element: Element) -> Result<(), CudaError> {
    let unfit = |text: String| Err(CudaError::Unfit(text));
    let (dim, vocab) = (config.head_dim as u32, config.vocab);
    if dim > 256 || !dim.is_multiple_of(2) {
        return unfit(format!("heads of {dim} elements have no kernel on a GPU: at most 256, even"));
    }
    if vocab > 1 << 19 {
        return unfit(format!("a vocabulary of {vocab} tokens has no sampler on a GPU: at most {}", 1 << 19));
    }
    let most = gpu.info().block_shared_bytes;
    let needed = AttentionArgs::shared_bytes(element, dim);
    if needed > most {
        let name = &gpu.info().name;
        return unfit(format!(
            "attention over heads of {dim} needs {needed} bytes of shared memory for a block, and {name} has {most}: use another GPU or the CPU"
        ));
    }
    Ok(())
}
