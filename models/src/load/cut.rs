//! Which rows and columns of a named tensor a shard has: see [`Shard`].

use std::ops::Range;

use faser_kernels::{Slice, Source};

use crate::layer_spec::Split;
use crate::{ModelConfig, Shard};

/// How one tensor is split over the ranks of a group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Cut {
    /// Every rank has all of it.
    Whole,
    /// Rows, which are outputs or tokens.
    Rows(Range<usize>),
    /// Columns, which are inputs: the outputs are summed over the ranks.
    Columns(Range<usize>),
}

impl Cut {
    /// A shard's part of a projection whose outputs are these.
    pub(super) fn rows(split: Split, shard: Shard, whole: &ModelConfig) -> Cut {
        if shard == Shard::WHOLE { Cut::Whole } else { Cut::Rows(split.of(shard, whole)) }
    }

    /// A shard's part of a projection whose inputs are these.
    pub(super) fn columns(split: Split, shard: Shard, whole: &ModelConfig) -> Cut {
        if shard == Shard::WHOLE { Cut::Whole } else { Cut::Columns(split.of(shard, whole)) }
    }

    /// Of a matrix `[rows, columns]`, or a bias (of one column, and never cut along it), what the shard has.
    pub(super) fn source<'a>(&self, whole: &'a Source<'a>, [rows, columns]: [usize; 2]) -> Source<'a> {
        match self {
            Cut::Rows(own) => Source::Part(whole, Slice::new(columns, own.clone(), 0..columns)),
            Cut::Columns(own) if columns > 1 => {
                Source::Part(whole, Slice::new(columns, 0..rows, own.clone()))
            }
            Cut::Whole | Cut::Columns(_) => *whole,
        }
    }

    /// The columns of a matrix of so many that the shard has.
    pub(super) fn inputs(&self, columns: usize) -> Range<usize> {
        match self {
            Cut::Columns(own) => own.clone(),
            _ => 0..columns,
        }
    }

    /// Whether the ranks' outputs are added up.
    pub(super) fn is_summed(&self) -> bool {
        matches!(self, Cut::Columns(_))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::super::{CpuPacker, Packing, Tensors, load};
    use super::*;
    use crate::ModelError;
    use crate::synthetic::SyntheticSpec;
    use faser_kernels::{Dtype, Make};

    /// Counts the numbers that are read of each tensor.
    struct Counted {
        names: Vec<String>,
        read: Mutex<Vec<usize>>,
    }

    /// One tensor at a time: what is read of it is told by its place in `names`.
    struct Asked<'a> {
        counted: &'a Counted,
        makes: Vec<Box<Make<'a>>>,
    }

    impl Tensors for Asked<'_> {
        fn tensor(&self, name: &str, shape: &[usize], _reason: &str) -> Result<Source<'_>, ModelError> {
            let place = self.counted.names.iter().position(|known| known == name);
            let place = place.unwrap_or_else(|| panic!("{name} is not expected"));
            Ok(Source::Made(shape.iter().product(), &*self.makes[place]))
        }
    }

    #[test]
    fn a_shard_reads_its_own_slices_alone() {
        let tiny = SyntheticSpec::preset("tiny").unwrap();
        let spec = SyntheticSpec { hidden: 128, heads: 8, kv_heads: 2, intermediate: 96, vocab: 300, ..tiny };
        let mut whole = spec.config(1);
        whole.layers[0].attention.qkv_bias = true;
        whole.layers[0].attention.o_bias = true;
        // Numbers that 4 ranks read of each tensor, all together.
        let (all, split_by_tokens) = (4, 300 * 128);
        let expected = [
            ("model.embed_tokens.weight", split_by_tokens),
            ("lm_head.weight", split_by_tokens),
            ("model.norm.weight", all * 128),
            ("model.layers.0.input_layernorm.weight", all * 128),
            ("model.layers.0.post_attention_layernorm.weight", all * 128),
            ("model.layers.0.self_attn.q_proj.weight", 128 * 128),
            ("model.layers.0.self_attn.q_proj.bias", 128),
            // Two KV heads of 16: each is held by two ranks.
            ("model.layers.0.self_attn.k_proj.weight", 2 * 32 * 128),
            ("model.layers.0.self_attn.k_proj.bias", 2 * 32),
            ("model.layers.0.self_attn.v_proj.weight", 2 * 32 * 128),
            ("model.layers.0.self_attn.v_proj.bias", 2 * 32),
            ("model.layers.0.self_attn.o_proj.weight", 128 * 128),
            // By the first rank.
            ("model.layers.0.self_attn.o_proj.bias", 128),
            ("model.layers.0.mlp.gate_proj.weight", 96 * 128),
            ("model.layers.0.mlp.up_proj.weight", 96 * 128),
            ("model.layers.0.mlp.down_proj.weight", 96 * 128),
        ];
        let names: Vec<String> = expected.iter().map(|(name, _)| (*name).to_owned()).collect();
        let counted = Counted { read: Mutex::new(vec![0; names.len()]), names };
        let make = |place: usize| -> Box<Make<'_>> {
            let counted = &counted;
            Box::new(move |_, to: &mut [f32]| counted.read.lock().unwrap()[place] += to.len())
        };
        let mut tensors = Asked { counted: &counted, makes: (0..expected.len()).map(make).collect() };
        for shard in Shard::all(4) {
            let packer = &mut CpuPacker { packing: Packing::new(&whole, Dtype::F32) };
            load(&whole, shard, None, &mut tensors, packer, &mut |_| {}).unwrap();
        }
        for ((name, expected), read) in expected.iter().zip(&*counted.read.lock().unwrap()) {
            assert_eq!(read, expected, "{name}");
        }
    }
}
