//! Bytes of weights, without weights: the same walk over a model's tensors, by their shapes alone.

use std::path::Path;
use std::sync::Arc;

use faser_kernels::{Codes, Dtype, FourBitForm, FourBits, Make, Matrix, Source};
use serde_json::Value;

use super::open_files::open_files;
use super::{PROJECTION, Packer, Packing, Tensors, load};
use crate::checkpoint::has_weights;
use crate::config::Keys;
use crate::model::Parts;
use crate::{ModelConfig, ModelError, Shard, WeightQuantisation};

impl ModelConfig {
    /// The shape that the keys of a config.json say; `place` is named in errors.
    ///
    /// # Errors
    /// As [`ModelConfig::load`].
    pub fn from_json(place: &Path, keys: Value) -> Result<ModelConfig, ModelError> {
        ModelConfig::from_keys(&Keys::of(place, keys)?, None)
    }

    /// Bytes of the weights of a shard of a model of this shape, as the CPU's kernels take them. Which weights files have quantised is not
    /// known here: in int4 those of a quantised checkpoint are taken for layers' projections, with zero points.
    ///
    /// # Errors
    /// The model cannot be split so.
    pub fn weight_bytes(&self, shard: Shard, dtype: Dtype) -> Result<u64, ModelError> {
        shard.check(self)?;
        counted(self, shard, &mut Likely::of(self), Held::Panels(Packing::new(self, dtype)))
    }

    /// The same of the weights in `path`, by the headers there: what files have quantised may take more or less in int4.
    ///
    /// # Errors
    /// The model cannot be split so, or there are no files, or they are damaged or of another shape.
    pub fn stored_weight_bytes(&self, path: &Path, shard: Shard, dtype: Dtype) -> Result<u64, ModelError> {
        shard.check(self)?;
        open_files(path, self, |tensors| {
            counted(self, shard, tensors, Held::Panels(Packing::new(self, dtype)))
        })
    }

    /// Parameters of a model of this shape, and how many of them a token goes through: of its experts those that it is sent to, of the embedding
    /// all.
    ///
    /// # Errors
    /// It is a head, which is nothing alone.
    pub fn parameters(&self) -> Result<(u64, u64), ModelError> {
        let all = counted(self, Shard::WHOLE, &mut Shapes, Held::Numbers)?;
        let experts = self.layers.iter().filter_map(|layer| layer.mlp.kind.experts());
        let idle = experts.map(|experts| 3 * self.hidden * experts.width * (experts.count - experts.active));
        Ok((all, all - idle.sum::<usize>() as u64))
    }

    /// Looks that the safetensors files of `dir`, or the GGUF file that it is, hold a model of this shape, by their headers alone; false if
    /// there are no such files.
    ///
    /// # Errors
    /// They are there, and damaged or of another shape.
    pub fn check_headers(&self, dir: &Path) -> Result<bool, ModelError> {
        if has_weights(dir) { self.check_weights(dir).map(|()| true) } else { Ok(false) }
    }

    /// The same of a model whose weights have to be there.
    ///
    /// # Errors
    /// They are not, or damaged, or of another shape.
    pub fn check_weights(&self, dir: &Path) -> Result<(), ModelError> {
        open_files(dir, self, |tensors| {
            counted(self, Shard::WHOLE, tensors, Held::Panels(Packing::new(self, Dtype::F32)))
        })?;
        Ok(())
    }
}

/// What packing the tensors of a shard would take, in bytes.
pub(crate) fn counted(
    config: &ModelConfig,
    shard: Shard,
    tensors: &mut dyn Tensors,
    held: Held,
) -> Result<u64, ModelError> {
    let mut counter = Counter::new(held);
    // What a head borrows is the target's.
    let target = Parts {
        embedding: Arc::new(()),
        layers: Vec::new(),
        norm: Arc::new(()),
        head: Arc::new(()),
        of_head: None,
    };
    load(config, shard, Some(&target), tensors, &mut counter, &mut |_| {})?;
    Ok(counter.bytes)
}

/// Tensors that have a shape and nothing in them.
pub(crate) struct Shapes;

const NOTHING: &Make<'static> = &|_, _| {};

impl Tensors for Shapes {
    fn tensor(&self, _name: &str, shape: &[usize], _reason: &str) -> Result<Source<'_>, ModelError> {
        Ok(Source::Made(shape.iter().product(), NOTHING))
    }
}

/// The same, of a checkpoint whose projections of layers are quantised, if its config.json says so.
pub(crate) struct Likely {
    codes: Option<LikelyCodes>,
    /// Those of experts alone.
    of_experts: bool,
}

struct LikelyCodes(WeightQuantisation);

impl Likely {
    pub(crate) fn of(config: &ModelConfig) -> Likely {
        let codes = config.quantised.map(LikelyCodes);
        Likely { codes, of_experts: config.quantised == Some(WeightQuantisation::Mxfp4) }
    }
}

impl Tensors for Likely {
    fn tensor(&self, name: &str, shape: &[usize], reason: &str) -> Result<Source<'_>, ModelError> {
        match &self.codes {
            Some(codes) if name.ends_with(PROJECTION) && (!self.of_experts || name.contains(".experts.")) => {
                Ok(Source::Codes(shape.iter().product(), codes))
            }
            _ => Shapes.tensor(name, shape, reason),
        }
    }
}

impl Codes for LikelyCodes {
    fn widen(&self, _from: usize, _to: &mut [f32]) {}

    fn form(&self) -> Result<FourBitForm, &'static str> {
        self.0.likely_form()
    }

    fn fp8_run(&self) -> Option<usize> {
        self.0.fp8_run()
    }

    fn four_bits(&self, _from: usize) -> Option<FourBits> {
        None
    }
}

/// How a device holds weights; vectors are f32 everywhere.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Held {
    /// The CPU's panels.
    Panels(Packing),
    /// Rows, as a GPU has them; a tied head is the embedding.
    Rows(Packing),
    /// Not at all: numbers are counted, and not their bytes.
    Numbers,
}

/// Packs nothing, and counts what packing would take.
pub(crate) struct Counter {
    held: Held,
    bytes: u64,
}

impl Counter {
    /// Nothing counted yet.
    pub(crate) fn new(held: Held) -> Counter {
        Counter { held, bytes: 0 }
    }
}

impl Packer for Counter {
    type Table = ();
    type Matrix = ();
    type Vector = ();

    fn reads(&self) -> bool {
        false
    }

    fn table(&mut self, _cols: usize, source: Source<'_>) -> Result<(), ModelError> {
        let each = match self.held {
            Held::Panels(packing) | Held::Rows(packing) => packing.dtype.beside().bytes(),
            Held::Numbers => 1,
        };
        self.bytes += (source.len() * each) as u64;
        Ok(())
    }

    fn matrix(&mut self, tensor: &str, inputs: usize, sources: &[Source<'_>]) -> Result<(), ModelError> {
        self.bytes += match self.held {
            Held::Panels(packing) => Matrix::bytes_of(inputs, sources, packing.asked(tensor, sources)),
            Held::Rows(packing) => packing.rows(tensor, inputs, sources).bytes(sources) as u64,
            Held::Numbers => sources.iter().map(Source::len).sum::<usize>() as u64,
        };
        Ok(())
    }

    fn vector(&mut self, sources: &[Source<'_>]) -> Result<(), ModelError> {
        let each = if let Held::Numbers = self.held { 1 } else { size_of::<f32>() };
        self.bytes += sources.iter().map(|source| (source.len() * each) as u64).sum::<u64>();
        Ok(())
    }

    fn tied_head(
        &mut self,
        _embedding: &Arc<()>,
        tensor: &str,
        inputs: usize,
        source: Source<'_>,
    ) -> Result<Arc<()>, ModelError> {
        match self.held {
            Held::Panels(_) => self.matrix(tensor, inputs, &[source]).map(Arc::new),
            Held::Rows(_) | Held::Numbers => Ok(Arc::new(())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Model, WeightSource};

    fn golden(case: &str) -> std::path::PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(case)
    }

    #[test]
    fn bytes_by_shape_are_those_of_the_loaded_model() {
        for case in [
            "llama-gqa8-llama3-rope-tied",
            "llama-linear-rope-biases",
            "qwen2-tied",
            "qwen3-sharded",
            "gemma2",
            "gemma3",
            "qwen3-moe",
            "mixtral-sliding-stacked",
            "qwen2-moe",
        ] {
            let source = WeightSource::folder(&golden(case)).unwrap();
            let config = source.config().unwrap();
            for (dtype, ranks) in [
                (Dtype::F32, 1),
                (Dtype::Bf16, 1),
                (Dtype::Int8, 1),
                (Dtype::Int4, 1),
                (Dtype::Bf16, 2),
                (Dtype::F32, 4),
            ] {
                for shard in Shard::all(ranks) {
                    // Not every one of them can be split.
                    let Ok(bytes) = config.weight_bytes(shard, dtype) else {
                        assert!(shard.check(&config).is_err());
                        continue;
                    };
                    let model = Model::load(&source, shard, dtype, &mut |_| {}).unwrap();
                    assert_eq!(bytes, model.weight_bytes(), "{case} {dtype} {shard}");
                }
            }
        }
    }

    /// Qwen3-30B-A3B, which its card says to have 30.5 billion parameters, of which 3.3 billion are active.
    #[test]
    fn parameters_of_a_token_are_those_of_its_experts() {
        let keys = serde_json::json!({
            "architectures": ["Qwen3MoeForCausalLM"], "head_dim": 128, "num_hidden_layers": 48, "norm_topk_prob": true,
        });
        let (all, active) =
            ModelConfig::from_json(Path::new("config.json"), keys).unwrap().parameters().unwrap();
        assert_eq!((all / 10_000_000, active / 10_000_000), (3053, 335));
        let dense = ModelConfig::load(&golden("qwen2-tied")).unwrap().parameters().unwrap();
        assert_eq!(dense.0, dense.1);
    }

    #[test]
    fn headers_are_looked_at_where_there_are_some() {
        let dir = golden("qwen3-sharded");
        let config = ModelConfig::load(&dir).unwrap();
        assert!(config.check_headers(&dir).unwrap());
        let other = ModelConfig { intermediate: config.intermediate + 1, ..config.clone() };
        assert!(matches!(other.check_headers(&dir), Err(ModelError::Shape { .. })));
        let shallower = config.layers[1..].to_vec();
        let shallower = ModelConfig { layers: shallower, ..config.clone() };
        assert!(matches!(shallower.check_headers(&dir), Err(ModelError::UnexpectedTensor { .. })));
        assert!(!config.check_headers(&dir.join("nowhere")).unwrap());
    }
}
