//! The weights of a model in a GPU's memory, row after row as kernels and cublasLt take them.

use std::path::Path;
use std::sync::Arc;

use faser_kernels::cuda::{AttentionArgs, CudaError, DeviceBuffer, Element, Gpu, Ptr, Upload};
use faser_kernels::{Dtype, RopeTable, Source};

use crate::checkpoint::{Checkpoint, Files};
use crate::layer::{Branch, Layer};
use crate::load::{Held, Packer, Shapes, Tensors, counted, load};
use crate::model::{Parts, rope_table};
use crate::synthetic::{Synthetic, SyntheticSpec};
use crate::{ModelConfig, ModelError, Progress, Shard};

/// A model whose weights are on a GPU, or a rank's shard of it. Layers that the models of a pair have in common are there once.
pub struct CudaModel {
    pub(super) config: ModelConfig,
    shard: Shard,
    /// The sizes of the shard.
    pub(super) own: ModelConfig,
    pub(super) element: Element,
    pub(super) gpu: Arc<Gpu>,
    pub(super) embedding: Arc<DeviceBuffer>,
    pub(super) layers: Vec<Arc<CudaLayer>>,
    pub(super) norm: Arc<DeviceBuffer>,
    pub(super) head: Arc<DeviceBuffer>,
    pub(super) rope: Arc<DeviceBuffer>,
}

/// A layer's weights on a GPU.
pub(super) type CudaLayer = Layer<DeviceBuffer, DeviceBuffer>;

/// A branch's weights on a GPU.
pub(super) type CudaBranch = Branch<DeviceBuffer, DeviceBuffer>;

/// A model's weights on a GPU.
pub(super) type CudaParts = Parts<DeviceBuffer, DeviceBuffer, DeviceBuffer>;

/// Where an optional vector is.
pub(super) fn ptr(buffer: &Option<DeviceBuffer>) -> Ptr {
    buffer.as_ref().map_or(Ptr::NULL, DeviceBuffer::ptr)
}

impl CudaModel {
    /// Loads a model directory, as [`Model::load`](crate::Model::load) does, into a GPU's memory. The host's memory has two pieces of 16 MiB
    /// of it at a time, beside the files' pages.
    ///
    /// # Errors
    /// As there; or there is no kernel for the dtype or a shape, or the GPU has not enough memory, and how much it takes.
    pub fn load(
        gpu: &Arc<Gpu>,
        dir: &Path,
        dtype: Dtype,
        progress: &mut dyn FnMut(Progress),
    ) -> Result<CudaModel, ModelError> {
        CudaModel::load_shard(gpu, dir, Shard::WHOLE, dtype, progress)
    }

    /// As [`CudaModel::load`], one rank's shard of the model: nothing else is read of the files but their headers.
    ///
    /// # Errors
    /// As [`CudaModel::load`], or the model cannot be split so.
    pub fn load_shard(
        gpu: &Arc<Gpu>,
        dir: &Path,
        shard: Shard,
        dtype: Dtype,
        progress: &mut dyn FnMut(Progress),
    ) -> Result<CudaModel, ModelError> {
        CudaModel::load_as(gpu, ModelConfig::load(dir)?, dir, shard, dtype, progress)
    }

    /// As [`CudaModel::load_shard`], with a config that was loaded before.
    ///
    /// # Errors
    /// As [`CudaModel::load_shard`].
    pub fn load_as(
        gpu: &Arc<Gpu>,
        config: ModelConfig,
        dir: &Path,
        shard: Shard,
        dtype: Dtype,
        progress: &mut dyn FnMut(Progress),
    ) -> Result<CudaModel, ModelError> {
        let files = Files::map(dir)?;
        CudaModel::of(gpu, (config, shard), &mut Checkpoint::new(&files)?, dtype, progress)
    }

    /// Makes the pair of [`synthetic::pair`](crate::synthetic::pair) in a GPU's memory: target and draft, whose layers are the target's first.
    /// The host's memory has one layer of it at a time.
    ///
    /// # Errors
    /// As there, and as [`CudaModel::load`].
    pub fn synthetic_pair(
        gpu: &Arc<Gpu>,
        spec: &SyntheticSpec,
        dtype: Dtype,
        progress: &mut dyn FnMut(Progress),
    ) -> Result<(CudaModel, CudaModel), ModelError> {
        CudaModel::synthetic_shards(gpu, spec, Shard::WHOLE, dtype, progress)
    }

    /// As [`CudaModel::synthetic_pair`], one rank's shards of both, of a pair that is split alike.
    ///
    /// # Errors
    /// As there, or the models cannot be split so.
    pub fn synthetic_shards(
        gpu: &Arc<Gpu>,
        spec: &SyntheticSpec,
        shard: Shard,
        dtype: Dtype,
        progress: &mut dyn FnMut(Progress),
    ) -> Result<(CudaModel, CudaModel), ModelError> {
        let mut tensors = Synthetic::new(spec, dtype)?;
        let target = CudaModel::of(gpu, (spec.config(spec.layers), shard), &mut tensors, dtype, progress)?;
        let config = spec.config(spec.draft_layers);
        let draft = CudaModel {
            own: shard.config(&config),
            config,
            shard,
            element: target.element,
            gpu: gpu.clone(),
            embedding: target.embedding.clone(),
            layers: target.layers.iter().take(spec.draft_layers).cloned().collect(),
            norm: target.norm.clone(),
            head: target.head.clone(),
            rope: target.rope.clone(),
        };
        Ok((target, draft))
    }

    /// One rank's shard of the draft of such a pair alone.
    ///
    /// # Errors
    /// As [`CudaModel::synthetic_shards`].
    pub fn synthetic_draft(
        gpu: &Arc<Gpu>,
        spec: &SyntheticSpec,
        shard: Shard,
        dtype: Dtype,
        progress: &mut dyn FnMut(Progress),
    ) -> Result<CudaModel, ModelError> {
        let alone = SyntheticSpec { layers: spec.draft_layers, ..spec.clone() };
        Ok(CudaModel::synthetic_shards(gpu, &alone, shard, dtype, progress)?.1)
    }

    /// Bytes of GPU memory that the weights of a shard of such a model take.
    ///
    /// # Errors
    /// There are no kernels for the dtype.
    pub fn weight_bytes(whole: &ModelConfig, shard: Shard, dtype: Dtype) -> Result<u64, ModelError> {
        let weights = counted(whole, shard, &mut Shapes, Held::Rows(element(dtype)?.bytes()))?;
        Ok(weights + (whole.max_context * whole.head_dim * size_of::<f32>()) as u64)
    }

    fn of(
        gpu: &Arc<Gpu>,
        (config, shard): (ModelConfig, Shard),
        tensors: &mut dyn Tensors,
        dtype: Dtype,
        progress: &mut dyn FnMut(Progress),
    ) -> Result<CudaModel, ModelError> {
        shard.check(&config)?;
        let element = element(dtype)?;
        fits(gpu, &config, element)?;
        let needed_bytes = CudaModel::weight_bytes(&config, shard, dtype)?;
        let (free_bytes, total_bytes) = gpu.memory()?;
        if needed_bytes > free_bytes as u64 {
            return Err(CudaError::Weights { needed_bytes, dtype, free_bytes, total_bytes }.into());
        }
        let mut packer = CudaPacker { gpu, upload: Upload::new(gpu)?, element };
        let Parts { embedding, layers, norm, head } = load(&config, shard, tensors, &mut packer, progress)?;
        let rope = Arc::new(copy_rope(gpu, &mut packer.upload, &rope_table(&config)?)?);
        packer.upload.finish()?;
        let own = shard.config(&config);
        Ok(CudaModel { config, shard, own, element, gpu: gpu.clone(), embedding, layers, norm, head, rope })
    }

    /// A whole model of this shape with these weights.
    pub(super) fn whole(
        config: ModelConfig,
        element: Element,
        gpu: &Arc<Gpu>,
        parts: CudaParts,
        rope: DeviceBuffer,
    ) -> CudaModel {
        let Parts { embedding, layers, norm, head } = parts;
        let (own, shard) = (config.clone(), Shard::WHOLE);
        CudaModel {
            config,
            shard,
            own,
            element,
            gpu: gpu.clone(),
            embedding,
            layers,
            norm,
            head,
            rope: Arc::new(rope),
        }
    }

    /// The shape of the whole model.
    pub fn config(&self) -> &ModelConfig {
        &self.config
    }

    /// What of the whole this is. The lanes that run a shard are those of its rank in the group.
    pub fn shard(&self) -> Shard {
        self.shard
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

/// Rows in a GPU's memory.
struct CudaPacker<'a> {
    gpu: &'a Arc<Gpu>,
    upload: Upload,
    element: Element,
}

impl CudaPacker<'_> {
    /// Sources one after the other.
    fn buffer(&mut self, sources: &[Source<'_>], element: Element) -> Result<DeviceBuffer, ModelError> {
        let len: usize = sources.iter().map(Source::len).sum();
        let buffer = DeviceBuffer::unfilled(self.gpu, len * element.bytes(), "a tensor of the weights")?;
        let mut first = 0;
        for source in sources {
            self.upload.numbers(&buffer, first, *source, element)?;
            first += source.len();
        }
        Ok(buffer)
    }
}

/// The angles of all positions, copied.
pub(super) fn copy_rope(
    gpu: &Arc<Gpu>,
    upload: &mut Upload,
    rope: &RopeTable,
) -> Result<DeviceBuffer, CudaError> {
    let row = rope.head_dim();
    let len = rope.max_positions() * row;
    let buffer = DeviceBuffer::unfilled(gpu, len * size_of::<f32>(), "the rope table")?;
    upload.values::<f32>(&buffer, 0, len, |from, to| {
        to.iter_mut().zip(from..).for_each(|(x, i)| *x = rope.row(i / row)[i % row]);
    })?;
    Ok(buffer)
}

impl Packer for CudaPacker<'_> {
    type Table = DeviceBuffer;
    type Matrix = DeviceBuffer;
    type Vector = DeviceBuffer;

    fn table(&mut self, _cols: usize, source: Source<'_>) -> Result<DeviceBuffer, ModelError> {
        self.buffer(&[source], self.element)
    }

    fn matrix(
        &mut self,
        _tensor: &str,
        _inputs: usize,
        sources: &[Source<'_>],
    ) -> Result<DeviceBuffer, ModelError> {
        self.buffer(sources, self.element)
    }

    fn vector(&mut self, sources: &[Source<'_>]) -> Result<DeviceBuffer, ModelError> {
        self.buffer(sources, Element::F32)
    }

    /// Both are rows: it is there once.
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
