//! Shards: what one rank of a group holds of a model (tensor parallelism after Megatron-LM, Shoeybi et al. 2019).
//!
//! ```text
//!               rank 0            rank 1
//! embedding     tokens 0..V/2     tokens V/2..V      rows summed over the ranks
//! q, k, v       heads 0..H/2      heads H/2..H       (split by outputs: each rank attends with its heads)
//! o             inputs 0..H/2     inputs H/2..H      outputs summed over the ranks
//! gate, up      outputs           outputs
//! down          inputs            inputs             outputs summed over the ranks
//! experts       as gate, up and down, each expert
//! router        all of it         all of it
//! LM head       tokens 0..V/2     tokens V/2..V      each rank has logits of its tokens
//! norms         all of them       all of them
//! ```
//! Ranks that are more than the KV heads share them: each holds the one that its query heads read.
//!
//! Where layers are split too (pipeline parallelism), the ranks stand in stages, one behind the other: heads, MLPs and experts are split over the
//! ranks of a stage, layers over the stages, and tokens over all ranks.

use std::ops::Range;

use faser_kernels::collective::part;

use crate::layer_spec::{QkNorm, Split};
use crate::{Mlp, ModelConfig, ModelError};

/// Which part of a model: that of one rank of a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shard {
    /// The rank, below `ranks`.
    pub rank: usize,
    /// Ranks of the group, at least one.
    pub ranks: usize,
    /// Stages that the layers are split into, of equally many ranks each, which stand together: 1 where they are not split.
    pub stages: usize,
}

impl Shard {
    /// All of a model.
    pub const WHOLE: Shard = Shard::of(0, 1);

    /// That of one of so many ranks, which have all layers.
    pub const fn of(rank: usize, ranks: usize) -> Shard {
        Shard { rank, ranks, stages: 1 }
    }

    /// The shards of a group, rank after rank.
    pub fn all(ranks: usize) -> impl Iterator<Item = Shard> {
        (0..ranks).map(move |rank| Shard::of(rank, ranks))
    }

    /// The shards of a group whose layers are split into stages, rank after rank.
    pub fn all_in_stages(ranks: usize, stages: usize) -> impl Iterator<Item = Shard> {
        (0..ranks).map(move |rank| Shard { rank, ranks, stages })
    }

    /// Ranks of a stage.
    pub fn width(self) -> usize {
        self.ranks / self.stages
    }

    /// Which of them it is.
    pub fn place(self) -> usize {
        self.rank % self.width()
    }

    /// Which stage it is of.
    pub fn stage(self) -> usize {
        self.rank / self.width()
    }

    /// The ranks of a stage.
    pub fn ranks_of(self, stage: usize) -> Range<usize> {
        stage * self.width()..(stage + 1) * self.width()
    }

    /// The layers of a stage.
    pub fn layers_of(self, stage: usize, whole: &ModelConfig) -> Range<usize> {
        part(whole.layers.len(), stage, self.stages)
    }

    /// The layers that it has.
    pub fn layers(self, whole: &ModelConfig) -> Range<usize> {
        self.layers_of(self.stage(), whole)
    }

    /// Whether a model of this shape can be split so.
    ///
    /// # Errors
    /// [`ModelError::Shard`] names the size that does not divide.
    pub fn check(self, config: &ModelConfig) -> Result<(), ModelError> {
        let Shard { rank, ranks, stages } = self;
        let vocab = config.vocab;
        let problem = if ranks == 0 || rank >= ranks {
            format!("there is no rank {rank}")
        } else if stages == 0 || !ranks.is_multiple_of(stages) {
            format!("they do not stand evenly in {stages} stages")
        } else if stages > config.layers.len() {
            format!("its {} layers are fewer than {stages} stages", config.layers.len())
        } else if stages > 1 && config.head.is_some() {
            "it is a head on hidden states, which has no stages".to_owned()
        } else if let Some(problem) = self.uneven(config) {
            problem
        } else if part(vocab, ranks - 1, ranks).is_empty() {
            format!("a vocabulary of {vocab} leaves some without a token")
        } else {
            return Ok(());
        };
        Err(ModelError::Shard { ranks, problem })
    }

    /// What does not divide over the ranks of a stage.
    fn uneven(self, config: &ModelConfig) -> Option<String> {
        let ranks = self.width();
        let ModelConfig { heads, kv_heads, intermediate, .. } = *config;
        let experts = || config.layers.iter().map(|layer| layer.mlp.kind.experts());
        let mut widths =
            experts().flatten().flat_map(|experts| [Some(experts.width), experts.shared]).flatten();
        Some(if !heads.is_multiple_of(ranks) {
            format!("its {heads} heads cannot be split evenly")
        } else if !kv_heads.is_multiple_of(ranks) && !ranks.is_multiple_of(kv_heads) {
            format!("its {kv_heads} KV heads can neither be split evenly nor be held by equally many ranks")
        } else if !intermediate.is_multiple_of(ranks) && experts().any(|experts| experts.is_none()) {
            format!("its MLP's {intermediate} columns cannot be split evenly")
        } else if let Some(width) = widths.find(|width| !width.is_multiple_of(ranks)) {
            format!("the {width} columns of an expert cannot be split evenly")
        } else if ranks > 1
            && config.layers.iter().any(|layer| layer.attention.qk_norm == Some(QkNorm::Whole))
        {
            "its q and k are normalised over all heads, and ranks have some".to_owned()
        } else {
            return None;
        })
    }

    /// The sizes of this shard of a model: those of the whole but for layers, heads, KV heads, MLPs and vocabulary.
    pub fn config(self, whole: &ModelConfig) -> ModelConfig {
        let own = |width: usize| part(width, self.place(), self.width()).len();
        let mut layers = whole.layers[self.layers(whole)].to_vec();
        for layer in &mut layers {
            if let Mlp::Experts(experts) = &mut layer.mlp.kind {
                (experts.width, experts.shared) = (own(experts.width), experts.shared.map(own));
            }
        }
        ModelConfig {
            layers,
            heads: self.heads(whole).len(),
            kv_heads: self.kv_heads(whole).len(),
            intermediate: self.intermediate(whole).len(),
            vocab: self.tokens(whole).len(),
            ..whole.clone()
        }
    }

    /// The tokens whose embeddings and logits it has.
    pub fn tokens(self, whole: &ModelConfig) -> Range<usize> {
        part(whole.vocab, self.rank, self.ranks)
    }

    pub(crate) fn heads(self, whole: &ModelConfig) -> Range<usize> {
        part(whole.heads, self.place(), self.width())
    }

    pub(crate) fn kv_heads(self, whole: &ModelConfig) -> Range<usize> {
        if self.width() <= whole.kv_heads {
            return part(whole.kv_heads, self.place(), self.width());
        }
        let own = self.place() * whole.kv_heads / self.width();
        own..own + 1
    }

    pub(crate) fn intermediate(self, whole: &ModelConfig) -> Range<usize> {
        part(whole.intermediate, self.place(), self.width())
    }

    /// What is added once alone, a bias or the residual stream, is added by the first rank of a stage.
    pub(crate) fn is_first(self) -> bool {
        self.place() == 0
    }
}

impl Split {
    /// How many there are in the whole model.
    pub(crate) fn width(self, whole: &ModelConfig) -> usize {
        match self {
            Split::Heads => whole.q_width(),
            Split::KvHeads => whole.kv_width(),
            Split::Mlp => whole.intermediate,
            Split::Width(width) => width,
            Split::Tokens => whole.vocab,
        }
    }

    /// Those of a shard.
    pub(crate) fn of(self, shard: Shard, whole: &ModelConfig) -> Range<usize> {
        let wide = |heads: Range<usize>| heads.start * whole.head_dim..heads.end * whole.head_dim;
        match self {
            Split::Heads => wide(shard.heads(whole)),
            Split::KvHeads => wide(shard.kv_heads(whole)),
            Split::Mlp => shard.intermediate(whole),
            Split::Width(width) => part(width, shard.place(), shard.width()),
            Split::Tokens => shard.tokens(whole),
        }
    }
}

impl std::fmt::Display for Shard {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "rank {} of {}", self.rank, self.ranks)?;
        if self.stages == 1 { Ok(()) } else { write!(f, " in {} stages", self.stages) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::synthetic::SyntheticSpec;

    fn config(heads: usize, kv_heads: usize, intermediate: usize) -> ModelConfig {
        let tiny = SyntheticSpec::preset("tiny").unwrap();
        SyntheticSpec { hidden: 16 * heads, heads, kv_heads, intermediate, ..tiny }.config(1)
    }

    #[test]
    fn query_heads_find_their_kv_head_on_their_rank() {
        for (heads, kv_heads) in [(8, 2), (8, 8), (8, 1), (8, 4)] {
            let whole = config(heads, kv_heads, 64);
            for ranks in [1, 2, 4, 8] {
                let mut next = 0;
                for shard in Shard::all(ranks) {
                    shard.check(&whole).unwrap();
                    let own = shard.config(&whole);
                    assert_eq!(own.heads * ranks, heads);
                    assert_eq!(own.kv_heads, (kv_heads / ranks).max(1));
                    for (place, head) in shard.heads(&whole).enumerate() {
                        assert_eq!(head, next);
                        next += 1;
                        let kv = shard.kv_heads(&whole).start + place / (own.heads / own.kv_heads);
                        assert_eq!(kv, head / (heads / kv_heads), "{heads} {kv_heads} {shard}");
                    }
                }
            }
        }
    }

    #[test]
    fn what_cannot_be_split_is_refused_by_name() {
        let refusal =
            |config: &ModelConfig, rank, ranks| Shard::of(rank, ranks).check(config).unwrap_err().to_string();
        assert!(refusal(&config(8, 2, 64), 0, 3).contains("8 heads"));
        assert!(refusal(&config(6, 3, 64), 0, 2).contains("3 KV heads"));
        assert!(refusal(&config(8, 2, 65), 1, 2).contains("65 columns"));
        assert!(refusal(&config(8, 2, 64), 2, 2).contains("no rank 2"));
        let few = ModelConfig { vocab: 5, ..config(8, 2, 64) };
        assert!(refusal(&few, 0, 4).contains("vocabulary of 5"));
    }
}
