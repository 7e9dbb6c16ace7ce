//! Makes a model of named tensors: which there are, in what order, and which of them are fused; the same for every source and device.

mod cut;
mod open_files;
mod own_bits;
mod tensors;
mod weight_sizes;
mod weight_source;

use std::cmp::Ordering;
use std::sync::Arc;

use faser_kernels::{
    Dtype, EightBitForm, EightBitRecords, FourBitRecords, HeadRows, Make, Matrix, Slice, Source, Table,
    Vector, WeightRecords,
};

use self::cut::Cut;
pub(crate) use self::open_files::open_files;
pub use self::own_bits::OwnBits;
pub(crate) use self::tensors::{EMBEDDING, HEAD, MARKOV, PROJECTION, ROUTER, Tensors};
pub(crate) use self::weight_sizes::{Counter, Held, Likely, Shapes, counted};
pub use self::weight_source::WeightSource;
use crate::experts::{ExpertsBranch, GatedMlp};
use crate::features::Fusion;
use crate::layer::{Branch, Layer, MlpBranch};
use crate::layer_spec::{BranchWeights, ExpertsWeights, GatedWeights, MlpWeights, QkNorm, Split};
use crate::markov::{Markov, Surety};
use crate::model::{HeadParts, Parts};
use crate::{
    BlockSpec, FuseNorm, HeadKind, HeadSpec, MarkovKind, MarkovSpec, ModelConfig, ModelError, Shard,
};

/// How far loading has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// Bytes read or made so far.
    pub done_bytes: u64,
    /// Bytes in all.
    pub total_bytes: u64,
}

/// Makes what a device computes with, of tensors as they are stored.
pub(crate) trait Packer {
    /// The token embedding.
    type Table;
    /// A matrix of weights.
    type Matrix;
    /// A norm or a bias.
    type Vector;
    /// Whether the numbers count, not the shapes alone.
    fn reads(&self) -> bool {
        true
    }

    /// What comes next is of this one of so many experts, whose tensors are alike; or of none.
    fn expert(&mut self, _expert: Option<(usize, usize)>) {}

    /// Rows of `cols`.
    fn table(&mut self, cols: usize, source: Source<'_>) -> Result<Self::Table, ModelError>;

    /// Several `[outputs, inputs]` one after the other along their outputs; errors name the `tensor`.
    fn matrix(
        &mut self,
        tensor: &str,
        inputs: usize,
        sources: &[Source<'_>],
    ) -> Result<Self::Matrix, ModelError>;

    /// Several one after the other.
    fn vector(&mut self, sources: &[Source<'_>]) -> Result<Self::Vector, ModelError>;

    /// The LM head of a model whose embedding it is: another form of it, or that one.
    fn tied_head(
        &mut self,
        _embedding: &Arc<Self::Table>,
        tensor: &str,
        inputs: usize,
        source: Source<'_>,
    ) -> Result<Arc<Self::Matrix>, ModelError> {
        self.matrix(tensor, inputs, &[source]).map(Arc::new)
    }
}

/// Packs matrices into panels.
pub(crate) struct CpuPacker {
    pub(crate) packing: Packing,
}

/// In what the matrices of a model are held.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Packing {
    pub(crate) dtype: Dtype,
    /// Its safetensors files have quantised matrices.
    quantised: bool,
    /// They have, or its GGUF file has: others were kept from it.
    others_kept: bool,
}

impl Packing {
    /// Of a model that is held in `dtype`.
    pub(crate) fn new(config: &ModelConfig, dtype: Dtype) -> Packing {
        let quantised = config.quantised.is_some();
        Packing { dtype, quantised, others_kept: quantised || config.in_blocks }
    }

    /// In what a matrix is asked for. In int4 an LM head is int8, as in the mixes of llama.cpp, and so is what a quantised checkpoint has
    /// otherwise, unless the file has it in no more bits. A router of experts is f32.
    fn asked(self, tensor: &str, sources: &[Source<'_>]) -> Dtype {
        if tensor.ends_with(ROUTER) {
            return Dtype::F32;
        }
        let is_kept = self.others_kept || tensor == HEAD || tensor == EMBEDDING;
        if self.dtype == Dtype::Int4 && is_kept && !sources.iter().all(has_own_bits) {
            return Dtype::Int8;
        }
        self.dtype
    }

    /// How a GPU has a matrix. In int8, fp8 and int4 projections of layers are in records, where kernels take them so; all other matrices, and, but for int8,
    /// what a quantised checkpoint has in other bits, are bf16.
    pub(crate) fn rows(self, tensor: &str, inputs: usize, sources: &[Source<'_>]) -> HeldRows {
        if tensor.ends_with(ROUTER) {
            return HeldRows::Numbers(Dtype::F32);
        }
        let is_projection = tensor.ends_with(PROJECTION) && !tensor.starts_with(MARKOV);
        let stays = |has_own: fn(&Source<'_>) -> bool| !self.quantised || sources.iter().all(has_own);
        let records = match self.dtype {
            Dtype::Int4 if is_projection && stays(has_own_bits) => {
                FourBitRecords::of(inputs, sources).map(WeightRecords::FourBits)
            }
            Dtype::Fp8 if is_projection && stays(|source| source.fp8_run().is_some()) => {
                EightBitRecords::of(inputs, sources, EightBitForm::Fp8).map(WeightRecords::EightBits)
            }
            Dtype::Int8 if is_projection => {
                EightBitRecords::of(inputs, sources, EightBitForm::Int8).map(WeightRecords::EightBits)
            }
            _ => None,
        };
        records.map_or(HeldRows::Numbers(self.dtype.beside()), HeldRows::Records)
    }
}

/// How a GPU has a matrix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HeldRows {
    /// Row after row of numbers.
    Numbers(Dtype),
    /// In fewer bits.
    Records(WeightRecords),
}

impl HeldRows {
    /// Memory that it takes, in bytes.
    pub(crate) fn bytes(self, sources: &[Source<'_>]) -> usize {
        match self {
            HeldRows::Numbers(dtype) => sources.iter().map(Source::len).sum::<usize>() * dtype.bytes(),
            HeldRows::Records(records) => records.bytes(),
        }
    }
}

/// Whether a file has a matrix in 4 bits that int4 keeps.
fn has_own_bits(source: &Source<'_>) -> bool {
    matches!(source.four_bit_form(), Some(Ok(_)))
}

impl Packer for CpuPacker {
    type Table = Table;
    type Matrix = Matrix;
    type Vector = Vector;

    fn table(&mut self, cols: usize, source: Source<'_>) -> Result<Table, ModelError> {
        Ok(Table::new(cols, source, self.packing.dtype.beside())?)
    }

    fn matrix(&mut self, tensor: &str, inputs: usize, sources: &[Source<'_>]) -> Result<Matrix, ModelError> {
        let packed = Matrix::pack(inputs, sources, self.packing.asked(tensor, sources));
        packed.map_err(|source| ModelError::Pack { tensor: tensor.to_owned(), source })
    }

    fn vector(&mut self, sources: &[Source<'_>]) -> Result<Vector, ModelError> {
        Ok(Vector::concat(sources))
    }
}

/// For what has to be there, and is not held.
struct PacksNothing;

impl Packer for PacksNothing {
    type Table = ();
    type Matrix = ();
    type Vector = ();

    fn reads(&self) -> bool {
        false
    }

    fn table(&mut self, _cols: usize, _source: Source<'_>) -> Result<(), ModelError> {
        Ok(())
    }

    fn matrix(&mut self, _tensor: &str, _inputs: usize, _sources: &[Source<'_>]) -> Result<(), ModelError> {
        Ok(())
    }

    fn vector(&mut self, _sources: &[Source<'_>]) -> Result<(), ModelError> {
        Ok(())
    }
}

/// A model's weights as a packer makes them.
pub(crate) type PartsOf<P> = Parts<<P as Packer>::Table, <P as Packer>::Matrix, <P as Packer>::Vector>;

/// What rows of a block take from the token before them.
type MarkovOf<P> = Markov<<P as Packer>::Table, <P as Packer>::Matrix, <P as Packer>::Vector>;

/// Its layers.
type LayersOf<P> = Vec<Arc<Layer<<P as Packer>::Matrix, <P as Packer>::Vector>>>;

/// Packs a shard of all tensors of a model, and looks that there are no others. `config` is the whole model's; `target` has what a head
/// borrows, if the model is one; `progress` is called after each matrix or vector.
pub(crate) fn load<P: Packer>(
    config: &ModelConfig,
    shard: Shard,
    target: Option<&PartsOf<P>>,
    tensors: &mut dyn Tensors,
    packer: &mut P,
    progress: &mut dyn FnMut(Progress),
) -> Result<PartsOf<P>, ModelError> {
    let done = Progress { done_bytes: 0, total_bytes: tensors.total_bytes() };
    progress(done);
    let mut loader = Loader { config, shard, tensors, packer, done, progress };
    let parts = match &config.head {
        None => loader.parts()?,
        Some(head) => loader.head(head, target)?,
    };
    loader.tensors.finish(config.tie_embeddings)?;
    Ok(parts)
}

/// Packs the tensors of one layer of a whole model, for which `tensors` are ready.
pub(crate) fn load_layer<P: Packer>(
    config: &ModelConfig,
    index: usize,
    tensors: &mut dyn Tensors,
    packer: &mut P,
) -> Result<Layer<P::Matrix, P::Vector>, ModelError> {
    let done = Progress { done_bytes: 0, total_bytes: 0 };
    Loader { config, shard: Shard::WHOLE, tensors, packer, done, progress: &mut |_| {} }.layer(index)
}

struct Loader<'a, P> {
    config: &'a ModelConfig,
    shard: Shard,
    tensors: &'a mut dyn Tensors,
    packer: &'a mut P,
    done: Progress,
    progress: &'a mut dyn FnMut(Progress),
}

impl<P: Packer> Loader<'_, P> {
    fn parts(&mut self) -> Result<PartsOf<P>, ModelError> {
        let ModelConfig { hidden, tie_embeddings, .. } = *self.config;
        let (embedding, tied) = self.tokens(EMBEDDING, "vocab_size, hidden_size", |packer, own| {
            let embedding = Arc::new(packer.table(hidden, own)?);
            let tied = || packer.tied_head(&embedding, EMBEDDING, hidden, own);
            let tied = tie_embeddings.then(tied).transpose()?;
            Ok((embedding, tied))
        })?;
        let head = match tied {
            Some(head) => head,
            None => {
                let reason = "tie_word_embeddings is false; vocab_size, hidden_size";
                Arc::new(self.tokens(HEAD, reason, |packer, own| packer.matrix(HEAD, hidden, &[own]))?)
            }
        };
        let layers = self.layers()?;
        let norm = self.norm_as("model.norm", hidden, "hidden_size", self.config.logit_scale, None)?;
        Ok(Parts { embedding, layers, norm: Arc::new(norm), head, of_head: None })
    }

    fn layers(&mut self) -> Result<LayersOf<P>, ModelError> {
        let own = self.shard.layers(self.config);
        let mut layers = Vec::with_capacity(own.len());
        for index in 0..self.config.layers.len() {
            self.tensors.prepare(index)?;
            if own.contains(&index) {
                layers.push(Arc::new(self.layer(index)?));
            } else {
                self.elsewhere(index)?;
            }
        }
        Ok(layers)
    }

    /// A layer of another stage: its tensors have to be there, and are not read.
    fn elsewhere(&mut self, index: usize) -> Result<(), ModelError> {
        let Loader { config, shard, done, .. } = *self;
        let (tensors, progress) = (&mut *self.tensors, &mut *self.progress);
        let mut loader = Loader { config, shard, tensors, packer: &mut PacksNothing, done, progress };
        loader.layer(index)?;
        self.done = loader.done;
        Ok(())
    }

    /// A head, which borrows what it has not of its target.
    fn head(&mut self, spec: &HeadSpec, target: Option<&PartsOf<P>>) -> Result<PartsOf<P>, ModelError> {
        let ModelConfig { hidden, vocab, rms_eps, .. } = *self.config;
        let borrowed = || {
            let problem = "the draft is a head, which borrows of its target: it is loaded with it";
            target.ok_or_else(|| ModelError::Pair(problem.to_owned()))
        };
        let embedding = match spec.own_embedding {
            true => self.tokens("embed_tokens.weight", "vocab_size, hidden_size", |packer, own| {
                packer.table(hidden, own).map(Arc::new)
            })?,
            false => borrowed()?.embedding.clone(),
        };
        let proposed = spec.proposed_vocab;
        let head = match (spec.own_lm_head, proposed) {
            (true, None) => Arc::new(self.tokens(HEAD, "vocab_size, hidden_size", |packer, own| {
                packer.matrix(HEAD, hidden, &[own])
            })?),
            (true, Some(proposed)) => {
                let name = HEAD.trim_end_matches(".weight").to_owned();
                let whole = Projection::whole(name, [proposed, hidden]);
                Arc::new(self.matrix(&[whole], "draft_vocab_size, hidden_size")?)
            }
            (false, None) => borrowed()?.head.clone(),
            (false, Some(proposed)) => {
                let problem = format!(
                    "the draft is a head that proposes {proposed} tokens, and has no lm_head.weight for them"
                );
                return Err(ModelError::Pair(problem));
            }
        };
        let target_tokens = proposed.map(|proposed| self.target_tokens(proposed, vocab)).transpose()?;
        let width = spec.streams_width();
        let norms = match spec.fuse_norm {
            FuseNorm::None => Vec::new(),
            FuseNorm::Whole => vec![self.norm("input_norm", width, "target_hidden_size")?],
            FuseNorm::Each => {
                let each = (0..spec.streams_count()).map(|stream| {
                    self.norm(&format!("fc_norm.{stream}"), spec.target_hidden, "target_hidden_size")
                });
                each.collect::<Result<_, _>>()?
            }
        };
        let fc = Projection::whole("fc".to_owned(), [hidden, width]);
        let matrix = self.matrix(&[fc], "hidden_size, target_hidden_size, the layer ids of hidden states")?;
        let mask_features = match spec.kind {
            HeadKind::Masks => Some(self.mask_features(spec)?),
            HeadKind::Steps | HeadKind::Block(_) => None,
        };
        let (mut norm_after, mut markov, mut surety) = (None, None, None);
        if let HeadKind::Block(block) = spec.kind {
            norm_after = Some(self.norm("hidden_norm", hidden, "hidden_size")?);
            markov = block.markov.map(|markov| self.markov(markov, proposed)).transpose()?;
            surety = block.confidence.map(|_| self.surety(&block)).transpose()?;
        }
        let streams = spec.streams.clone();
        let fusion = Arc::new(Fusion { streams, norms, matrix, norm_after, rms_eps });
        let layers = self.layers()?;
        let norm = Arc::new(self.norm("norm", hidden, "hidden_size")?);
        let of_head = Some(HeadParts { fusion, target_tokens, mask_features, markov, surety });
        Ok(Parts { embedding, layers, norm, head, of_head })
    }

    /// What rows of a block take from the token before them.
    fn markov(&mut self, spec: MarkovSpec, proposed: Option<usize>) -> Result<MarkovOf<P>, ModelError> {
        const REASON: &str = "vocab_size, markov_rank";
        let MarkovSpec { kind, rank } = spec;
        let ModelConfig { hidden, vocab, stored_vocab, .. } = *self.config;
        let name = |part: &str| format!("{MARKOV}{part}");
        let (before, bytes) = {
            let name = name("markov_w1.weight");
            let stored = self.tensors.tensor(&name, &[stored_vocab, rank], REASON)?;
            finite(self.packer, &name, &stored)?;
            let padded = padding(&stored);
            (self.packer.table(rank, with_rows(&stored, &padded, vocab, rank))?, stored.bytes())
        };
        self.tell(bytes);
        let whole = |part: &str, shape| Projection::whole(name(part), shape);
        let bias = match proposed {
            Some(proposed) => {
                self.matrix(&[whole("markov_w2", [proposed, rank])], "draft_vocab_size, markov_rank")?
            }
            None => {
                let name = name("markov_w2.weight");
                let (packed, bytes) = {
                    let stored = self.tensors.tensor(&name, &[stored_vocab, rank], REASON)?;
                    finite(self.packer, &name, &stored)?;
                    let padded = padding(&stored);
                    let all = with_rows(&stored, &padded, vocab, rank);
                    (self.packer.matrix(&name, rank, &[all])?, stored.bytes())
                };
                self.tell(bytes);
                packed
            }
        };
        let mix = match kind {
            MarkovKind::Vanilla => None,
            MarkovKind::Gated => Some(whole("gate_proj", [rank, hidden + rank])),
            MarkovKind::Recurrent => Some(whole("joint_proj", [3 * rank, 2 * rank + hidden])),
        };
        let mix = match mix {
            None => None,
            Some(mix) => {
                let (mix, reason) = ([mix], "markov_head_type, markov_rank, hidden_size");
                let matrix = self.matrix(&mix, reason)?;
                // It is there: a head is no shard.
                self.bias(&mix, reason)?.map(|bias| (matrix, bias))
            }
        };
        Ok(Markov { kind, before, bias, mix })
    }

    /// What says how sure rows of a block are.
    fn surety(&mut self, block: &BlockSpec) -> Result<Surety<P::Vector>, ModelError> {
        let width = self.config.hidden + block.confidence_rank();
        let mut part = |name: &str, shape: &[usize]| {
            let reason = "enable_confidence_head, confidence_head_with_markov, hidden_size, markov_rank";
            let source = self.tensors.tensor(name, shape, reason)?;
            finite(self.packer, name, &source)?;
            self.packer.vector(&[source])
        };
        let weights = part("confidence_head.proj.weight", &[1, width])?;
        let bias = part("confidence_head.proj.bias", &[1])?;
        self.tell(((width + 1) * size_of::<f32>()) as u64);
        Ok(Surety { weights, bias })
    }

    /// What is learned in place of the target's streams where those are not known, fused as they are. It takes no device: it is done once.
    fn mask_features(&mut self, spec: &HeadSpec) -> Result<P::Vector, ModelError> {
        const UNKNOWN: &str = "mask_hidden";
        let (hidden, width, eps) = (self.config.hidden, spec.streams_width(), self.config.rms_eps);
        let read = |loader: &Self, name: &str, shape: &[usize]| -> Result<Vec<f32>, ModelError> {
            let reason = "hidden_size, target_hidden_size, the layer ids of hidden states";
            let source = loader.tensors.tensor(name, shape, reason)?;
            if !loader.packer.reads() {
                return Ok(Vec::new());
            }
            finite(loader.packer, name, &source)?;
            let mut numbers = vec![0.0; source.len()];
            source.read_f32(0, &mut numbers);
            Ok(numbers)
        };
        let mut unknown = read(self, UNKNOWN, &[1, 1, width])?;
        let each = match spec.fuse_norm {
            FuseNorm::None => 0,
            FuseNorm::Whole => width,
            FuseNorm::Each => spec.target_hidden,
        };
        for (number, part) in unknown.chunks_mut(each.max(1)).enumerate().filter(|_| each > 0) {
            let name = match spec.fuse_norm {
                FuseNorm::Each => format!("fc_norm.{number}.weight"),
                _ => "input_norm.weight".to_owned(),
            };
            let weight = read(self, &name, &[each])?;
            let mean = part.iter().map(|x| x * x).sum::<f32>() / each as f32;
            let factor = (mean + eps).sqrt().recip();
            part.iter_mut().zip(weight).for_each(|(x, weight)| *x *= factor * weight);
        }
        let matrix = read(self, "fc.weight", &[hidden, width])?;
        let fused = matrix.chunks(width).map(|row| row.iter().zip(&unknown).map(|(w, x)| w * x).sum());
        let fused: Vec<f32> = fused.collect();
        let numbers = |from: usize, to: &mut [f32]| {
            let known = fused.get(from..).unwrap_or_default();
            to.iter_mut().zip(known).for_each(|(to, known)| *to = *known);
        };
        let made = self.packer.vector(&[Source::Made(hidden, &numbers)])?;
        self.tell((width * size_of::<f32>()) as u64);
        Ok(made)
    }

    /// Of each token that a head proposes, which of the target's `vocab` it is: `d2t` has how much further that is.
    fn target_tokens(&mut self, proposed: usize, vocab: usize) -> Result<Arc<[u32]>, ModelError> {
        const MAP: &str = "d2t";
        let further = self.tensors.integers(MAP, proposed, "draft_vocab_size")?;
        let target = (0_i64..).zip(&further).map(|(own, further)| {
            let token = own.checked_add(*further).and_then(|token| u32::try_from(token).ok());
            token.filter(|token| (*token as usize) < vocab).ok_or(own)
        });
        let tokens: Result<Vec<u32>, i64> = target.collect();
        let refuse =
            |problem: String| ModelError::Pair(format!("the draft is a head whose `{MAP}` {problem}"));
        let tokens = tokens.map_err(|own| {
            refuse(format!(
                "leads token {own} out of the target's vocabulary of {vocab}: it was made for another target"
            ))
        })?;
        let mut sorted = tokens.clone();
        sorted.sort_unstable();
        match sorted.windows(2).find(|pair| pair[0] == pair[1]) {
            Some(twice) if self.packer.reads() => Err(refuse(format!("has token {} twice", twice[0]))),
            _ => Ok(tokens.into()),
        }
    }

    /// A matrix with a row for each token, of as many tokens as the model has: packs what of it the shard has.
    fn tokens<T>(
        &mut self,
        name: &str,
        reason: &str,
        pack: impl FnOnce(&mut P, Source<'_>) -> Result<T, ModelError>,
    ) -> Result<T, ModelError> {
        let ModelConfig { hidden, vocab, stored_vocab, .. } = *self.config;
        let (packed, bytes) = {
            let stored = self.tensors.tensor(name, &[stored_vocab, hidden], reason)?;
            let padded = padding(&stored);
            let all = with_rows(&stored, &padded, vocab, hidden);
            let own = Cut::rows(Split::Tokens, self.shard, self.config).source(&all, [vocab, hidden]);
            finite(self.packer, name, if vocab == stored_vocab { &own } else { &stored })?;
            if self.packer.reads() {
                self.tensors.look(name)?;
            }
            (pack(self.packer, own)?, stored.bytes())
        };
        self.tell(bytes);
        Ok(packed)
    }

    fn layer(&mut self, index: usize) -> Result<Layer<P::Matrix, P::Vector>, ModelError> {
        let config = self.config;
        let place = match &config.head {
            None => format!("model.layers.{index}"),
            Some(head) => head.layer_place(index),
        };
        let spec = &config.layers[index];
        let attention = &spec.attention;
        let heads = attention.rope.as_ref().and_then(|rope| rope.reordered(config.head_dim));
        let qk_norm = |loader: &mut Self, part, all: usize| {
            let name = format!("{place}.self_attn.{part}");
            let width = match attention.qk_norm {
                None => return Ok(None),
                Some(QkNorm::Heads) => config.head_dim,
                Some(QkNorm::Whole) => all,
            };
            loader.norm_as(&name, width, "architectures, head_dim", 1.0, heads).map(Some)
        };
        Ok(Layer {
            attention: self.branch(&place, &spec.attention_weights(), heads)?,
            q_norm: qk_norm(self, "q_norm", config.q_width())?,
            k_norm: qk_norm(self, "k_norm", config.kv_width())?,
            sinks: attention.sinks.then(|| self.sinks(&place)).transpose()?,
            stream_norm: match attention.beside_embedding {
                Some(kind) => {
                    Some(self.norm(&format!("{place}.{}", kind.norm), config.hidden, "hidden_size")?)
                }
                None => None,
            },
            mlp: match spec.mlp_weights() {
                MlpWeights::Dense(mlp) => MlpBranch::Dense(self.branch(&place, &mlp, None)?),
                MlpWeights::Experts(mlp) => MlpBranch::Experts(self.experts(&place, &mlp)?),
            },
        })
    }

    fn experts(
        &mut self,
        place: &str,
        weights: &ExpertsWeights,
    ) -> Result<ExpertsBranch<P::Matrix, P::Vector>, ModelError> {
        let hidden = self.config.hidden;
        let norm = format!("{place}.{}", weights.norms.before.expect("experts have a norm before them"));
        let whole = |(name, outputs): &(&str, usize)| {
            Projection::whole(format!("{place}.{name}"), [*outputs, hidden])
        };
        let router: Vec<Projection> = weights.router.iter().map(whole).collect();
        let norm_before = self.norm(&norm, hidden, "num_hidden_layers, hidden_size")?;
        let matrix = self.matrix(&router, "num_experts, hidden_size")?;
        let router_bias = if weights.router_bias { self.bias(&router, "num_experts")? } else { None };
        let mut each = Vec::with_capacity(weights.each.len());
        for (index, expert) in weights.each.iter().enumerate() {
            self.packer.expert(Some((index, weights.each.len())));
            each.push(self.gated(place, expert)?);
        }
        self.packer.expert(None);
        let shared = weights.shared.as_ref().map(|expert| self.gated(place, expert)).transpose()?;
        Ok(ExpertsBranch { norm_before, router: matrix, router_bias, each, shared })
    }

    fn gated(
        &mut self,
        place: &str,
        weights: &GatedWeights,
    ) -> Result<GatedMlp<P::Matrix, P::Vector>, ModelError> {
        let inputs = self.inputs(place, &weights.inputs, self.config.hidden);
        let output = self.output(place, &weights.output);
        let bias = |loader: &mut Self, of: &[Projection]| {
            if weights.bias { loader.bias(of, weights.keys) } else { Ok(None) }
        };
        Ok(GatedMlp {
            inputs: self.matrix(&inputs, weights.keys)?,
            inputs_bias: bias(self, &inputs)?,
            output: self.matrix(&output, weights.keys)?,
            output_bias: bias(self, &output)?,
        })
    }

    /// Projections to these outputs.
    fn inputs(&self, place: &str, parts: &[(String, Split)], inputs: usize) -> Vec<Projection> {
        let (config, shard) = (self.config, self.shard);
        let part = |(name, split): &(String, Split)| Projection {
            cut: Cut::rows(*split, shard, config),
            ..Projection::whole(format!("{place}.{name}"), [split.width(config), inputs])
        };
        parts.iter().map(part).collect()
    }

    /// The projection back from these inputs.
    fn output(&self, place: &str, (name, split): &(String, Split)) -> [Projection; 1] {
        [Projection {
            cut: Cut::columns(*split, self.shard, self.config),
            ..Projection::whole(format!("{place}.{name}"), [self.config.hidden, split.width(self.config)])
        }]
    }

    /// `heads`: in what order the rows of its q and k are packed, if it is another one than that of the checkpoint.
    fn branch(
        &mut self,
        place: &str,
        branch: &BranchWeights,
        heads: Option<HeadRows>,
    ) -> Result<Branch<P::Matrix, P::Vector>, ModelError> {
        let hidden = self.config.hidden;
        let norm = |loader: &mut Self, name: &str| {
            loader.norm(&format!("{place}.{name}"), hidden, "num_hidden_layers, hidden_size")
        };
        let mut inputs = self.inputs(place, &branch.inputs, branch.input_streams * hidden);
        let all: usize = inputs.iter().map(|part| part.shape[0]).sum();
        let mut first = 0;
        for (part, (name, _)) in inputs.iter_mut().zip(&branch.inputs) {
            part.heads = heads.filter(|_| TURNED.contains(&name.as_str()));
            if let Some(fused) = branch.fused {
                part.name = format!("{place}.{fused}");
                part.within = Some(Within { first, all });
            }
            first += part.shape[0];
        }
        let output = self.output(place, &branch.output);
        let bias = |loader: &mut Self, there: bool, of: &[Projection]| {
            if there { loader.bias(of, branch.bias_keys) } else { Ok(None) }
        };
        Ok(Branch {
            norm_before: branch.norms.before.map(|name| norm(self, name)).transpose()?,
            inputs: self.matrix(&inputs, branch.keys)?,
            inputs_bias: bias(self, branch.inputs_bias, &inputs)?,
            output: self.matrix(&output, branch.keys)?,
            output_bias: bias(self, branch.output_bias, &output)?,
            norm_after: branch.norms.after.map(|name| norm(self, name)).transpose()?,
        })
    }

    /// Several projections of the same input, fused along their outputs.
    fn matrix(&mut self, parts: &[Projection], reason: &str) -> Result<P::Matrix, ModelError> {
        let inputs = parts.first().map_or(0, |part| part.cut.inputs(part.shape[1]).len());
        self.packed(parts, "weight", reason, |packer, name, own| packer.matrix(name, inputs, own))
    }

    /// Their biases. What is summed over the ranks has its bias once.
    fn bias(&mut self, parts: &[Projection], reason: &str) -> Result<Option<P::Vector>, ModelError> {
        let here = self.shard.is_first() || !parts.iter().any(|part| part.cut.is_summed());
        self.packed(parts, "bias", reason, |packer, _, own| here.then(|| packer.vector(own)).transpose())
    }

    /// Packs what the shard has of the weights or the biases of some projections.
    fn packed<T>(
        &mut self,
        parts: &[Projection],
        kind: &str,
        reason: &str,
        pack: impl FnOnce(&mut P, &str, &[Source<'_>]) -> Result<T, ModelError>,
    ) -> Result<T, ModelError> {
        let is_bias = kind == "bias";
        let cols = |part: &Projection| if is_bias { 1 } else { part.shape[1] };
        let names: Vec<String> = parts.iter().map(|part| format!("{}.{kind}", part.name)).collect();
        let stored = parts.iter().zip(&names).map(|(part, name)| {
            let shape = [part.within.map_or(part.shape[0], |within| within.all), part.shape[1]];
            self.tensors.tensor(name, if is_bias { &shape[..1] } else { &shape }, reason)
        });
        let stored = stored.collect::<Result<Vec<Source<'_>>, _>>()?;
        let whole = parts.iter().zip(&stored).map(|(part, stored)| match part.within {
            None => *stored,
            Some(Within { first, .. }) => {
                let rows = first..first + part.shape[0];
                Source::Part(stored, Slice::new(cols(part), rows, 0..cols(part)))
            }
        });
        let whole: Vec<Source<'_>> = whole.collect();
        let bytes = whole.iter().map(Source::bytes).sum();
        // What the shard has is all that is looked at.
        let own =
            parts.iter().zip(&whole).map(|(part, whole)| part.cut.source(whole, [part.shape[0], cols(part)]));
        let own: Vec<Source<'_>> = own.collect();
        names.iter().zip(&own).try_for_each(|(name, source)| finite(self.packer, name, source))?;
        if self.packer.reads() {
            names.iter().try_for_each(|name| self.tensors.look(name))?;
        }
        let ordered = parts.iter().zip(&own).map(|(part, own)| match part.heads {
            None => *own,
            Some(heads) => Source::Reordered(own, HeadRows { cols: cols(part), ..heads }),
        });
        let ordered: Vec<Source<'_>> = ordered.collect();
        let packed = pack(self.packer, names.first().map_or("", String::as_str), &ordered)?;
        self.tell(bytes);
        Ok(packed)
    }

    /// The norm of this name.
    fn norm(&mut self, name: &str, width: usize, reason: &str) -> Result<P::Vector, ModelError> {
        self.norm_as(name, width, reason, 1.0, None)
    }

    /// The same, multiplied by a factor; `heads`: of heads whose elements are in another order than in the checkpoint.
    fn norm_as(
        &mut self,
        name: &str,
        width: usize,
        reason: &str,
        factor: f32,
        heads: Option<HeadRows>,
    ) -> Result<P::Vector, ModelError> {
        let (name, offset) = (format!("{name}.weight"), self.config.norm_offset);
        let stored = self.tensors.tensor(&name, &[width], reason)?;
        finite(self.packer, &name, &stored)?;
        let bytes = stored.bytes();
        let source = heads.map_or(stored, |heads| Source::Reordered(&stored, heads));
        let changed = move |from: usize, to: &mut [f32]| {
            source.read_f32(from, to);
            to.iter_mut().for_each(|x| *x = (*x + offset) * factor);
        };
        let norm = match (offset, factor) {
            (0.0, 1.0) => self.packer.vector(&[source])?,
            _ => self.packer.vector(&[Source::Made(width, &changed)])?,
        };
        self.tell(bytes);
        Ok(norm)
    }

    /// A number for each of the shard's heads.
    fn sinks(&mut self, place: &str) -> Result<P::Vector, ModelError> {
        let (name, heads) = (format!("{place}.self_attn.sinks"), self.config.heads);
        let source = self.tensors.tensor(&name, &[heads], "architectures, num_attention_heads")?;
        let own = Cut::Rows(self.shard.heads(self.config)).source(&source, [heads, 1]);
        finite(self.packer, &name, &own)?;
        let (bytes, sinks) = (source.bytes(), self.packer.vector(&[own])?);
        self.tell(bytes);
        Ok(sinks)
    }

    fn tell(&mut self, bytes: u64) {
        self.done.done_bytes += bytes;
        (self.progress)(self.done);
    }
}

/// The projections whose outputs are rotated.
const TURNED: [&str; 2] = ["self_attn.q_proj", "self_attn.k_proj"];

/// A projection `[outputs, inputs]` of a layer.
struct Projection {
    /// That of its tensors less `.weight`.
    name: String,
    shape: [usize; 2],
    /// Where it is a part of its tensors.
    within: Option<Within>,
    /// What of it a shard has.
    cut: Cut,
    /// In what order its outputs are packed, if it is another one than theirs.
    heads: Option<HeadRows>,
}

/// Which of `all` rows of a tensor.
#[derive(Clone, Copy)]
struct Within {
    first: usize,
    all: usize,
}

impl Projection {
    /// All of a tensor, as it is, on every rank.
    fn whole(name: String, shape: [usize; 2]) -> Projection {
        Projection { name, shape, within: None, cut: Cut::Whole, heads: None }
    }
}

/// The numbers of a source, and zeros behind them.
fn padding<'a>(stored: &'a Source<'a>) -> impl Fn(usize, &mut [f32]) + use<'a> {
    move |from, to| {
        let there = stored.len().saturating_sub(from).min(to.len());
        let (known, rest) = to.split_at_mut(there);
        if there > 0 {
            stored.read_f32(from, known);
        }
        rest.fill(0.0);
    }
}

/// A matrix of `cols` columns with so many of its rows, or with rows of zeros behind them.
fn with_rows<'a>(stored: &'a Source<'a>, padded: &'a Make<'a>, rows: usize, cols: usize) -> Source<'a> {
    match stored.len().cmp(&(rows * cols)) {
        Ordering::Equal => *stored,
        Ordering::Greater => Source::Part(stored, Slice::new(cols, 0..rows, 0..cols)),
        Ordering::Less => Source::Made(rows * cols, padded),
    }
}

/// Refuses what would make all that follows from it no number either.
fn finite<P: Packer>(packer: &P, tensor: &str, source: &Source<'_>) -> Result<(), ModelError> {
    match packer.reads().then(|| source.first_not_finite()).flatten() {
        Some((place, value)) => Err(ModelError::NotFinite { tensor: tensor.to_owned(), place, value }),
        None => Ok(()),
    }
}
