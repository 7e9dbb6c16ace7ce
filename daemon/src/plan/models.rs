//! The models of a plan: their shapes, and what shards of them take. From config.json and the headers of weight files alone.

use std::cell::RefCell;
use std::collections::HashMap;
use std::path::Path;

use faser_actors::{Dtype, PassLimits};
use faser_engine::EngineConfig;
use faser_models::cuda::CudaModel;
use faser_models::{ModelConfig, Scratch, Shard, fitted};
use faser_topology::{Divisible, PlanModel, Share, ShareBytes};

use super::Facts;
use crate::config::{Config, ModelSource, NamedShape};
use crate::error::DaemonError;
use crate::locate;

/// A pair, by its shapes.
pub(super) struct Models {
    pub(super) target: NamedShape,
    pub(super) draft: Option<NamedShape>,
    pub(super) notes: Vec<String>,
}

impl Models {
    /// The pair that the config names.
    pub(super) fn of(config: &Config) -> Result<Models, DaemonError> {
        let mut notes = Vec::new();
        let mut folder = |dir: &Path| named(dir, &mut notes);
        let (target, draft) = match &config.model.source {
            ModelSource::Demo { draft } => {
                let pair = locate::demo_pair()?;
                let draft = draft.then(|| folder(&pair.join("draft"))).transpose()?;
                (folder(&pair.join("target"))?, draft)
            }
            ModelSource::Directories { target, draft } => {
                (folder(target)?, draft.as_deref().map(&mut folder).transpose()?)
            }
            ModelSource::Synthetic { spec, draft } => {
                let (target, draft_shape) = spec.configs()?;
                let of = |name: &str, config| NamedShape { name: name.to_owned(), config };
                (of("synthetic target", target), draft.then(|| of("synthetic draft", draft_shape)))
            }
            ModelSource::Shape { target, draft } => ((**target).clone(), draft.as_deref().cloned()),
        };
        // Whether tokenizers are the same is seen where they are read.
        let tokens = matches!(config.model.source, ModelSource::Directories { .. }).then_some(0);
        let fit = |draft: NamedShape| -> Result<NamedShape, DaemonError> {
            Ok(NamedShape { config: fitted(&target.config, draft.config, tokens)?, ..draft })
        };
        let draft = draft.map(fit).transpose()?;
        Ok(Models { target, draft, notes })
    }
}

fn named(dir: &Path, notes: &mut Vec<String>) -> Result<NamedShape, DaemonError> {
    let config = ModelConfig::load(dir)?;
    if !config.check_headers(dir)? {
        notes.push(format!("{} has no weights: planned by its config.json alone", dir.display()));
    }
    let name = dir.file_name().unwrap_or(dir.as_os_str()).to_string_lossy().into_owned();
    Ok(NamedShape { name, config })
}

/// One model, ready to be asked what shards of it take.
pub(super) struct Planned<'a> {
    shape: &'a NamedShape,
    whole: Divisible,
    bounds: &'a EngineConfig,
    on_gpu: bool,
    is_target: bool,
    /// A plan asks for the same shards again and again.
    known: RefCell<HashMap<(String, usize, usize), ShareBytes>>,
}

impl<'a> Planned<'a> {
    pub(super) fn new(
        shape: &'a NamedShape,
        bounds: &'a EngineConfig,
        on_gpu: bool,
        is_target: bool,
    ) -> Planned<'a> {
        let ModelConfig { heads, kv_heads, intermediate, vocab, .. } = shape.config;
        let layers = shape.config.layers.len();
        let whole = Divisible { layers, heads, kv_heads, columns: intermediate, tokens: vocab };
        Planned { shape, whole, bounds, on_gpu, is_target, known: RefCell::default() }
    }

    pub(super) fn model<'m>(&'m self, bytes: &'m dyn Fn(&Share, &str) -> ShareBytes) -> PlanModel<'m> {
        PlanModel {
            name: &self.shape.name,
            whole: &self.whole,
            max_context: self.shape.config.max_context,
            bytes,
        }
    }

    pub(super) fn facts(&self, model: &PlanModel<'_>, dtype: &str, ranks: usize) -> Facts {
        let whole = (model.bytes)(&self.whole.share(0, 1), dtype);
        let ModelConfig { heads, kv_heads, hidden, vocab, .. } = self.shape.config;
        Facts {
            name: self.shape.name.clone(),
            dtype: dtype.to_owned(),
            layers: self.whole.layers,
            heads,
            kv_heads,
            hidden,
            vocab,
            ranks,
            weight_bytes: whole.weight_bytes,
            kv_bytes_per_token: whole.kv_bytes_per_token,
        }
    }

    /// What a share of it takes.
    pub(super) fn bytes(&self, share: &Share, dtype: &str) -> ShareBytes {
        let key = (dtype.to_owned(), share.rank, share.ranks);
        if let Some(known) = self.known.borrow().get(&key) {
            return *known;
        }
        let dtype = [Dtype::F32, Dtype::Int8].into_iter().find(|held| held.to_string() == dtype);
        let bytes =
            self.computed(Shard { rank: share.rank, ranks: share.ranks }, dtype.unwrap_or(Dtype::Bf16));
        self.known.borrow_mut().insert(key, bytes);
        bytes
    }

    fn computed(&self, shard: Shard, dtype: Dtype) -> ShareBytes {
        let whole = &self.shape.config;
        let own = shard.config(whole);
        // The planner asks for shards that it has checked; a model that cannot be held so fits nowhere.
        let weight_bytes = if self.on_gpu {
            CudaModel::weight_bytes(whole, shard, dtype).unwrap_or(u64::MAX >> 16)
        } else {
            whole.weight_bytes(shard, dtype).unwrap_or(u64::MAX >> 16)
        };
        let kv_bytes_per_token = own.kv_bytes_per_token(dtype.beside());
        ShareBytes { weight_bytes, kv_bytes_per_token, workspace_bytes: self.workspace(&own, shard, dtype) }
    }

    fn workspace(&self, own: &ModelConfig, shard: Shard, dtype: Dtype) -> u64 {
        let limits = PassLimits::of(self.bounds);
        if !self.on_gpu {
            let logit_rows = if self.is_target { limits.verify_logit_rows } else { limits.draft_logit_rows };
            return Scratch::bytes(own, limits.rows, logit_rows);
        }
        let sizes =
            if self.is_target { limits.cuda_verify(self.bounds) } else { limits.cuda_draft(self.bounds) };
        sizes.workspace_bytes(&self.shape.config, shard, dtype)
    }
}
