//! The weights of a model in a GPU's memory, row after row as kernels and cublasLt take them.

use std::path::Path;
use std::sync::Arc;

use faser_kernels::cuda::{
    AttentionArgs, CudaError, DeviceBuffer, Element, Gpu, KvElement, NOTHING, Ptr, RouteArgs, Upload,
};
use faser_kernels::{Dtype, RopeTable, Source};

use super::rows_packer::{CudaMatrix, RowsPacker};
use crate::checkpoint::has_weights;
use crate::experts::ExpertsBranch;
use crate::layer::Branch;
use crate::load::{Held, HeldRows, Likely, Packing, Shapes, Tensors, counted, load, open_files};
use crate::model::{HeadParts, Parts, rope_tables};
use crate::{Experts, Mlp, ModelConfig, ModelError, Progress, Shard, WeightSource};

/// A model whose weights are on a GPU, or a rank's shard of it. Layers that the models of a pair have in common are there once.
pub struct CudaModel {
    pub(super) config: ModelConfig,
    shard: Shard,
    /// The sizes of the shard.
    pub(super) own: ModelConfig,
    pub(super) element: Element,
    pub(super) kv: KvElement,
    pub(super) gpu: Arc<Gpu>,
    pub(super) parts: CudaParts,
    /// Of each layer that turns.
    pub(super) ropes: Vec<Option<Arc<DeviceBuffer>>>,
    /// u32 for each token of the vocabulary: its place among those that a head proposes, if those are not all.
    pub(super) places: Option<DeviceBuffer>,
}

/// A branch's weights on a GPU.
pub(super) type CudaBranch = Branch<CudaMatrix, DeviceBuffer>;

/// A branch of experts on a GPU: what all have of a kind stands in one piece, expert after expert.
pub(super) type CudaExperts = ExpertsBranch<CudaMatrix, DeviceBuffer>;

/// A model's weights on a GPU.
pub(super) type CudaParts = Parts<DeviceBuffer, CudaMatrix, DeviceBuffer>;

/// Where an optional vector is.
pub(super) fn ptr(buffer: &Option<DeviceBuffer>) -> Ptr {
    buffer.as_ref().map_or(Ptr::NULL, DeviceBuffer::ptr)
}

impl CudaModel {
    /// Loads a rank's shard of a model into a GPU's memory, as [`Model::load`](crate::Model::load) does into the host's, which has two pieces
    /// of 16 MiB of it at a time, beside the files' pages; or one layer, where weights are made.
    ///
    /// # Errors
    /// As there; or there is no kernel for a shape, or the GPU has not enough memory, and how much it takes.
    pub fn load(
        gpu: &Arc<Gpu>,
        source: &WeightSource,
        shard: Shard,
        dtype: Dtype,
        progress: &mut dyn FnMut(Progress),
    ) -> Result<CudaModel, ModelError> {
        CudaModel::load_beside(gpu, source, shard, None, dtype, progress)
    }

    /// The same of the draft of a target that is there: a head [fitted](crate::fitted) to it, whole, may borrow of it.
    ///
    /// # Errors
    /// As [`CudaModel::load`].
    pub fn load_draft(
        source: &WeightSource,
        shard: Shard,
        target: &CudaModel,
        dtype: Dtype,
        progress: &mut dyn FnMut(Progress),
    ) -> Result<CudaModel, ModelError> {
        CudaModel::load_beside(&target.gpu, source, shard, Some(target), dtype, progress)
    }

    fn load_beside(
        gpu: &Arc<Gpu>,
        source: &WeightSource,
        shard: Shard,
        target: Option<&CudaModel>,
        dtype: Dtype,
        progress: &mut dyn FnMut(Progress),
    ) -> Result<CudaModel, ModelError> {
        source.open(shard, dtype, |config, tensors| {
            let element = element(dtype);
            CudaModel::has_kernels(&config)?;
            fits(gpu, &config, element)?;
            let needed_bytes = CudaModel::weight_bytes(&config, source.path(), shard, dtype)?;
            let (free_bytes, total_bytes) = gpu.memory()?;
            if needed_bytes > free_bytes as u64 {
                return Err(CudaError::Weights { needed_bytes, dtype, free_bytes, total_bytes }.into());
            }
            CudaModel::of_tensors((gpu, config, shard), target, dtype, tensors, progress)
        })
    }

    /// A shard of a model of these tensors; of the target a head may borrow what is held as it is itself.
    pub(crate) fn of_tensors(
        (gpu, config, shard): (&Arc<Gpu>, ModelConfig, Shard),
        target: Option<&CudaModel>,
        dtype: Dtype,
        tensors: &mut dyn Tensors,
        progress: &mut dyn FnMut(Progress),
    ) -> Result<CudaModel, ModelError> {
        let mut upload = Upload::new(gpu)?;
        let fill = |buffer: &DeviceBuffer, held, sources: &[Source<'_>]| match held {
            HeldRows::Records(records) => upload.records(buffer, records, sources),
            HeldRows::Numbers(dtype) => {
                let (mut first, element) = (0, element(dtype));
                for source in sources {
                    upload.numbers(buffer, first, *source, element)?;
                    first += source.len();
                }
                Ok(())
            }
        };
        let element = element(dtype);
        let mut packer = RowsPacker::new(gpu, Packing::new(&config, dtype), true, fill);
        let target = target.filter(|target| target.element == element).map(|target| &target.parts);
        let parts = load(&config, shard, target, tensors, &mut packer, progress)?;
        CudaModel::new(gpu, (config, shard), element, parts, upload)
    }

    /// A rank's shard of a model whose tensors `fill` fills, one after the other; it is told what each is held in, or nothing of one in records.
    ///
    /// # Errors
    /// What `fill` says, or the GPU has not enough memory.
    pub fn filled(
        gpu: &Arc<Gpu>,
        (config, shard): (ModelConfig, Shard),
        dtype: Dtype,
        mut fill: impl FnMut(&DeviceBuffer, Option<Element>) -> Result<(), CudaError>,
    ) -> Result<CudaModel, ModelError> {
        let fill = |buffer: &DeviceBuffer, held, _: &[Source<'_>]| {
            let element = match held {
                HeldRows::Numbers(dtype) => Some(element(dtype)),
                HeldRows::Records(_) => None,
            };
            Ok(fill(buffer, element)?)
        };
        let element = element(dtype);
        let mut packer = RowsPacker::new(gpu, Packing::new(&config, dtype), false, fill);
        let parts = load(&config, shard, None, &mut Shapes, &mut packer, &mut |_| {})?;
        CudaModel::new(gpu, (config, shard), element, parts, Upload::new(gpu)?)
    }

    /// The model of the first `layers` layers, which are shared.
    ///
    /// # Panics
    /// If there are not so many.
    pub fn first_layers(&self, layers: usize) -> CudaModel {
        CudaModel {
            config: self.config.first_layers(layers),
            shard: self.shard,
            own: self.own.first_layers(layers),
            element: self.element,
            kv: self.kv,
            gpu: self.gpu.clone(),
            parts: self.parts.first_layers(layers),
            ropes: self.ropes[..layers].to_vec(),
            places: None,
        }
    }

    /// The same with keys and values held otherwise than activations.
    #[must_use]
    pub fn with_kv(self, kv: KvElement) -> CudaModel {
        CudaModel { kv, ..self }
    }

    /// Looks whether there are kernels for all layers of a model.
    ///
    /// # Errors
    /// A row goes to more experts than there is a kernel for.
    pub fn has_kernels(config: &ModelConfig) -> Result<(), CudaError> {
        let most = RouteArgs::MOST_ACTIVE as usize;
        for (index, layer) in config.layers.iter().enumerate() {
            let Mlp::Experts(Experts { active, count, .. }) = layer.mlp.kind else { continue };
            if active > most || count > RouteArgs::MOST_EXPERTS as usize {
                return Err(CudaError::Unfit(format!(
                    "a row goes to {active} of {count} experts in layer {index}: there are kernels for {most} of {} (`num_experts_per_tok` of \
                     `model.target` or `model.draft`): set `device.kind: cpu`",
                    RouteArgs::MOST_EXPERTS
                )));
            }
        }
        Ok(())
    }

    /// Bytes of GPU memory that the weights of a shard of such a model take; in fewer bits than bf16's by the headers of its files, which say what they have in as
    /// many bits, if they are in `path`.
    ///
    /// # Errors
    /// There are no kernels for the layers; or the files are damaged, or of another shape.
    pub fn weight_bytes(
        whole: &ModelConfig,
        path: Option<&Path>,
        shard: Shard,
        dtype: Dtype,
    ) -> Result<u64, ModelError> {
        CudaModel::has_kernels(whole)?;
        let held = Held::Rows(Packing::new(whole, dtype));
        let weights = match path {
            Some(path) if dtype.is_in_records() && has_weights(path) => {
                open_files(path, whole, |tensors| counted(whole, shard, tensors, held))?
            }
            _ => counted(whole, shard, &mut Likely::of(whole), held)?,
        };
        let has_own = |layer: &usize| {
            whole.layers[*layer].attention.rope.is_some() && whole.turns_like(*layer).is_none()
        };
        let ropes = (0..whole.layers.len()).filter(has_own).count();
        Ok(weights + (ropes * whole.max_context * whole.head_dim * size_of::<f32>()) as u64)
    }

    /// A shard with these weights; `upload` brought them.
    fn new(
        gpu: &Arc<Gpu>,
        (config, shard): (ModelConfig, Shard),
        element: Element,
        parts: CudaParts,
        mut upload: Upload,
    ) -> Result<CudaModel, ModelError> {
        let ropes = rope_tables(&config, |rope| Ok(copy_rope(gpu, &mut upload, &rope)?))?;
        let tokens = parts.of_head.as_ref().and_then(|of_head| of_head.target_tokens.as_deref());
        let places = places_on(gpu, &mut upload, tokens, config.vocab)?;
        upload.finish()?;
        let own = shard.config(&config);
        let (kv, gpu) = (KvElement::Element(element), gpu.clone());
        Ok(CudaModel { config, shard, own, element, kv, gpu, parts, ropes, places })
    }

    /// Bytes of the matrices that every pass reads: those of the layers, and the LM head. Of experts it is all, of which a pass reads those that its
    /// rows go to.
    pub fn read_bytes(&self) -> u64 {
        let bytes = |matrix: &CudaMatrix| matrix.bytes() as u64;
        let Parts { layers, head, .. } = &self.parts;
        layers.iter().map(|layer| layer.bytes(bytes, |_| 0)).sum::<u64>() + bytes(head)
    }

    /// Numbers of the largest matrix in records that is widened: experts' never are.
    pub(super) fn most_widened(&self) -> Option<usize> {
        self.parts
            .layers
            .iter()
            .flat_map(|layer| layer.matrices_of_all())
            .filter_map(CudaMatrix::widens_to)
            .max()
    }

    /// Stages of keys and values that attention has under way on this GPU.
    pub(super) fn attention_stages(&self) -> u32 {
        let (dim, most) = (self.config.head_dim as u32, self.gpu.info().block_shared_bytes);
        AttentionArgs::stages(self.element, self.kv, dim, most)
            .expect("a model that does not fit was refused")
    }

    /// Whether the logits of a row, of a head that proposes a block, depend on the token drawn before it, or the head says how sure it is.
    pub(super) fn follows(&self) -> bool {
        let follows = |of_head: &HeadParts<_, _, _>| of_head.markov.is_some() || of_head.surety.is_some();
        self.parts.of_head.as_ref().is_some_and(follows)
    }

    /// The shape of the whole model.
    pub fn config(&self) -> &ModelConfig {
        &self.config
    }

    /// What of the whole this is. The lanes that run a shard are those of its rank in the group.
    pub fn shard(&self) -> Shard {
        self.shard
    }

    /// In what vectors and activations are held.
    pub fn element(&self) -> Element {
        self.element
    }

    /// In what keys and values are held.
    pub fn kv(&self) -> KvElement {
        self.kv
    }

    /// Its GPU.
    pub fn gpu(&self) -> &Arc<Gpu> {
        &self.gpu
    }
}

/// Copies the map of the tokens that a head proposes to its GPU, if it has one: where each token of the vocabulary is among them.
fn places_on(
    gpu: &Arc<Gpu>,
    upload: &mut Upload,
    tokens: Option<&[u32]>,
    vocab: usize,
) -> Result<Option<DeviceBuffer>, CudaError> {
    let Some(tokens) = tokens else { return Ok(None) };
    let mut places = vec![NOTHING; vocab];
    (0..).zip(tokens).for_each(|(place, token)| places[*token as usize] = place);
    let bytes = places.len() * size_of::<u32>();
    let buffer = DeviceBuffer::unfilled(gpu, bytes, "the tokens that a head proposes")?;
    upload.values::<u32>(&buffer, 0, places.len(), |from, to| {
        to.copy_from_slice(&places[from..from + to.len()]);
    })?;
    Ok(Some(buffer))
}

/// The angles of all positions, copied.
fn copy_rope(gpu: &Arc<Gpu>, upload: &mut Upload, rope: &RopeTable) -> Result<DeviceBuffer, CudaError> {
    let row = rope.head_dim();
    let len = rope.max_positions() * row;
    let buffer = DeviceBuffer::unfilled(gpu, len * size_of::<f32>(), "the rope table")?;
    upload.values::<f32>(&buffer, 0, len, |from, to| {
        to.iter_mut().zip(from..).for_each(|(x, i)| *x = rope.row(i / row)[i % row]);
    })?;
    Ok(buffer)
}

/// What kernels compute with, of a model that is held in `dtype`.
fn element(dtype: Dtype) -> Element {
    match dtype {
        Dtype::F32 => Element::F32,
        Dtype::Bf16 | Dtype::Int8 | Dtype::Fp8 | Dtype::Int4 => Element::Bf16,
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
    attention_fits(gpu, (element, KvElement::Element(element)), config.head_dim)
}

/// Refuses heads that a block has no room for.
pub(super) fn attention_fits(
    gpu: &Gpu,
    (element, kv): (Element, KvElement),
    head_dim: usize,
) -> Result<(), CudaError> {
    let (most, name) = (gpu.info().block_shared_bytes, &gpu.info().name);
    if AttentionArgs::stages(element, kv, head_dim as u32, most).is_some() {
        return Ok(());
    }
    Err(CudaError::Unfit(format!(
        "attention over heads of {head_dim} with KV in {} needs more shared memory for a block than the {most} bytes that {name} has: use \
         another GPU or the CPU",
        kv.dtype()
    )))
}
