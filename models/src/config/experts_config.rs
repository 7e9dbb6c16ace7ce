//! Mixtures of experts: how many, how wide, and in which layers, from the keys that families have for it.

use faser_kernels::ops::Activation;

use super::json_keys::{Keys, MAX_LAYERS, MAX_WIDTH};
use crate::{Experts, ModelError};

/// Experts of a layer: published models have some hundreds.
const MAX_EXPERTS: usize = 1 << 10;
/// Columns of all experts of a layer, a bound for what all weights take.
const MAX_COLUMNS: usize = 1 << 24;

/// What a family's keys of experts stand for where they are absent, and which it has.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct ExpertDefaults {
    pub(super) num_experts: usize,
    pub(super) num_experts_per_tok: usize,
    /// None: experts are as wide as `intermediate_size` says, all layers have some, and their weights are normalised.
    pub(super) moe_intermediate_size: Option<usize>,
    pub(super) shared_expert_intermediate_size: Option<usize>,
}

impl ExpertDefaults {
    /// The experts; `intermediate` is the model's.
    pub(super) fn read(
        &self,
        keys: &Keys,
        activation: Activation,
        intermediate: usize,
    ) -> Result<Experts, ModelError> {
        let count = self.count(keys)?;
        let active = keys.size_or("num_experts_per_tok", MAX_EXPERTS, self.num_experts_per_tok)?;
        if active > count {
            let problem = format!("is {active}, and there are {count} experts (`num_experts`)");
            return Err(keys.error("num_experts_per_tok", problem));
        }
        let width =
            |key, usual: Option<usize>| usual.map(|usual| keys.size_or(key, MAX_WIDTH, usual)).transpose();
        let own = width("moe_intermediate_size", self.moe_intermediate_size)?;
        let experts = Experts {
            activation,
            count,
            active,
            width: own.unwrap_or(intermediate),
            renormed: own.is_none() || keys.flag("norm_topk_prob", false)?,
            bias: false,
            shared: width("shared_expert_intermediate_size", self.shared_expert_intermediate_size)?,
        };
        if count * experts.width > MAX_COLUMNS {
            let key = if own.is_some() { "moe_intermediate_size" } else { "intermediate_size" };
            let problem = format!("times {count} experts (`num_experts`) is more than {MAX_COLUMNS}");
            return Err(keys.error(key, problem));
        }
        Ok(experts)
    }

    /// transformers has two names for it.
    fn count(&self, keys: &Keys) -> Result<usize, ModelError> {
        let [ours, theirs] = ["num_experts", "num_local_experts"];
        let both = (keys.size(ours, MAX_EXPERTS)?, keys.size(theirs, MAX_EXPERTS)?);
        match both {
            (Some(count), Some(other)) if count != other => {
                let problem =
                    format!("is {count}, and `{theirs}` is {other}: both are the number of experts");
                Err(keys.error(ours, problem))
            }
            (Some(count), _) | (None, Some(count)) => Ok(count),
            (None, None) => keys.size_or(ours, MAX_EXPERTS, self.num_experts),
        }
    }

    /// For each layer whether it has experts.
    pub(super) fn layers(&self, keys: &Keys, layers: usize) -> Result<Vec<bool>, ModelError> {
        if self.moe_intermediate_size.is_none() {
            return Ok(vec![true; layers]);
        }
        let step = keys.size_or("decoder_sparse_step", MAX_LAYERS, 1)?;
        let mut sparse: Vec<bool> = (1..=layers).map(|layer| layer.is_multiple_of(step)).collect();
        if let Some(list) = keys.get("mlp_only_layers") {
            let wrong = || {
                let problem = format!("is {list}, a list of numbers of layers is expected");
                keys.error("mlp_only_layers", problem)
            };
            for number in list.as_array().ok_or_else(wrong)? {
                let dense = number.as_u64().ok_or_else(wrong)?;
                if let Some(sparse) = usize::try_from(dense).ok().and_then(|layer| sparse.get_mut(layer)) {
                    *sparse = false;
                }
            }
        }
        Ok(sparse)
    }
}
